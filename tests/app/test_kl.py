"""The page KL losses: its example against formulas, its recorded positions against the library, its links."""

import json
import math
import re
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from app_pages import committed, headlines, live_parts, one_scan, open_app, pictures, root, said
from app_runs import make_run
from starlette.requests import Request

from rlcorr.gradients.kl_losses import kl_report
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.strips.packing import unpack

__all__ = ["committed", "one_scan", "root"]  # fixtures

RECORDED = "stale_4"


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("distance", [0.25, 1.0, 3.0, 5.0])
def test_the_example_is_what_the_formulas_give(committed: None, distance: float) -> None:
    """∇KL(π‖ref) = π (δ − KL) and ∇KL(ref‖π) = π − ref in the logits; E[k1] = E[k3] = KL, and E[k2] = E[δ²/2]."""
    from data.kl_example import DIRECTION, REFERENCE, example

    start, way = REFERENCE.numpy(), DIRECTION.numpy()
    ref, policy = softmax(start), softmax(start + distance * way)
    delta = np.log(policy / ref)
    kl, other = float(policy @ delta), float(-ref @ delta)
    true, reverse = policy * (delta - kl), policy - ref
    values = {"k1": kl, "k2": float(policy @ delta**2 / 2), "k3": kl, "k3+": kl}
    gradients = {"k1": 0 * true, "k2": true, "k3": reverse, "k3+": true}
    for loss, value in values.items():
        got = example(loss, distance)
        assert (got.policy, got.reference, got.value) == pytest.approx((kl, other, value))
        assert [x.numpy() for x in got.gradients] == [
            pytest.approx(one, abs=1e-12) for one in (true, reverse, gradients[loss])
        ]
        assert got.slopes == pytest.approx([x @ way for x in (true, reverse, gradients[loss])], abs=1e-12)


def test_a_recorded_step_shows_the_librarys_angle_and_length(committed: None) -> None:
    tokens = read_gradients(runs.ROOT / RECORDED, last_sketch(runs.ROOT / RECORDED))[1].next_tokens
    assert tokens is not None
    angles = {}
    for loss in ("k1", "k2", "k3", "k3+"):
        report, at = kl_report(tokens, loss), open_app("kl", run=RECORDED, kl_loss=loss)
        shown = headlines(at)
        if loss == "k1":  # its gradient has no length, so it has no direction
            assert shown["Angle"] == ("–", "")
            assert "As a loss, k1 pulls nowhere: on average its gradient is 0." in said(at)
            continue
        angles[loss] = math.degrees(math.acos(min(report.cosine.value, 1.0)))
        assert shown["Angle"][0] == f"{angles[loss]:.0f}°"
        assert float(shown["Length"][0]) == pytest.approx(report.length.value, rel=0.01)
    assert angles["k2"] < 0.1 > angles["k3+"]
    assert f"As a loss, k3 pulls {angles['k3']:.0f}° away from the true gradient" in said(open_app("kl", run=RECORDED))


def test_a_slider_shows_what_the_page_shows(committed: None) -> None:
    """Of the distance and of the position: sentence, numbers and arrows at their last values."""
    from components import offers

    first = open_app("kl", run=RECORDED)  # its addresses answer as long as it is there
    (part,) = live_parts(first)
    for slider in part["sliders"]:
        scope = {"type": "http", "path_params": {"ticket": slider["strip"].removeprefix("strips/")}}
        receive: Any = anyio.sleep_forever  # the browser says nothing more
        about = unpack(bytes(anyio.run(offers.get_offered, Request(scope, receive)).body)).about
        at = open_app("kl", run=RECORDED, **{slider["key"]: f"{slider['values'][-1]:g}"})
        (there,) = live_parts(at)
        assert about["texts"]["answer"][-1] == there["texts"]["answer"] != part["texts"]["answer"]
        assert {label: texts[-1] for label, texts in about["numbers"].items()} == {
            label: text for label, (text, _) in headlines(at).items()
        }
        drawn = {shown["key"]: shown["figure"] for row in there["rows"] for shown in row}
        moved = {key: moves["figures"][-1] for key, moves in about["pictures"].items() if moves["figures"]}
        assert moved == {key: drawn[key] for key in moved}
        assert moved


def test_a_run_without_recorded_positions_has_the_example(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app("kl", kl_distance="1")
    assert "only the example is shown" in said(at)
    arrows, values, _ = pictures(at)
    assert arrows["title"] == "Its gradient in the example"
    assert json.loads(values["figure"])["layout"]["shapes"][0]["x0"] == 1
    assert re.search(r"k3 pulls 22° away from the true gradient, 1\.04 times as hard", said(at))


def test_the_sampler_can_stand_for_the_reference(committed: None) -> None:
    tokens = read_gradients(runs.ROOT / RECORDED, last_sketch(runs.ROOT / RECORDED))[1].next_tokens
    assert tokens is not None
    length = kl_report(tokens, "k3", "rollout").length.value
    shown = headlines(open_app("kl", run=RECORDED, kl_target="sampler"))
    assert float(shown["Length"][0]) == pytest.approx(length, rel=0.01)


def test_a_position_is_kept_by_the_address_and_one_beyond_the_recorded_ones_is_the_mean(committed: None) -> None:
    last, mean = (open_app("kl", run="smol_sketch_stale_6", kl_position=number) for number in ("48", "0"))
    assert live_parts(last)[0]["sliders"][1]["value"] == 48
    assert headlines(last) != headlines(mean)
    assert headlines(open_app("kl", run=RECORDED, kl_position="40")) == headlines(open_app("kl", run=RECORDED))


def test_the_address_says_what_it_cannot_show(committed: None) -> None:
    assert "unknown loss 'k9'" in said(open_app("kl", kl_loss="k9"))
    assert "kl_distance=9 is out of range" in said(open_app("kl", kl_distance="9"))
