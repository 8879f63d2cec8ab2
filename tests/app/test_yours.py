"""The page for a person's own data: a verdict, bounds with their price on steps that had no part in them, and text."""

import html
import io
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from app_pages import one_scan, open_app, root, said
from app_runs import make_run
from streamlit.testing.v1 import AppTest

from rlcorr.analysis.symptoms import short

__all__ = ["one_scan", "root"]  # fixtures

VIEW = "views/yours.py"
ROWS, WIDTH = 40, 50


def differences(seed: int) -> np.ndarray:
    return 0.05 * np.random.default_rng(seed).standard_normal((ROWS, WIDTH))


def step_file(seed: int) -> bytes:
    d = differences(seed).astype(np.float32)
    rollout = np.full_like(d, -1.0)
    file = io.BytesIO()
    np.savez(file, response_mask=np.ones_like(d, bool), old_log_probs=rollout + d, rollout_log_probs=rollout)
    return file.getvalue()


def dropped(*files: tuple[str, bytes], **query: str) -> AppTest:
    at = open_app(VIEW, **query)
    uploaded = [(name, content, "application/octet-stream") for name, content in files]
    at.file_uploader(key="dropped").set_value(uploaded).run()
    assert not at.exception
    return at


def table_of(at: AppTest) -> dict[str, list[str]]:
    """What is limited → its cells."""
    page = next(element.proto.body for element in at.get("html") if "what is limited" in element.proto.body)
    rows = [[html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in page.split("<tr>")[2:]]
    return {row[0]: row[1:] for row in rows}


def test_bounds_are_chosen_on_the_first_steps_and_priced_on_the_last(root: Path) -> None:
    """The cap of token weights leaves 95 % of the tokens of the first two steps below it: their 95th percentile."""
    make_run(root, "alpha", steps=1)
    at = dropped(*((f"step_{step}.npz", step_file(step)) for step in (1, 2, 3)))
    assert "Chosen on step 1 to 2 and checked on step 3" in said(at)
    threshold, kept, unseen, cut, _ = table_of(at)["cap on each token's weight"]
    before = np.exp(np.concatenate([differences(1), differences(2)]).ravel())
    assert float(threshold) == pytest.approx(np.quantile(before, 0.95), rel=2e-3)
    assert (kept, unseen) == ("100.00 %", "100.00 %")
    last = np.exp(differences(3))
    assert cut == f"{100 * (last > float(threshold)).mean():.2f} %"
    threshold, kept, unseen, _, _ = table_of(at)["geometric mean of an answer"]
    inside = [np.abs(differences(step).mean(1)) <= np.log(float(threshold)) for step in (1, 2, 3)]
    assert kept == f"{100 * np.concatenate(inside[:2]).mean():.2f} %"
    assert unseen == f"{100 * inside[2].mean():.2f} %"
    text = yaml.safe_load(at.code[0].value)
    correction = text["algorithm"]["rollout_correction"]
    assert correction["rollout_is_threshold"] == float(table_of(at)["cap on each token's weight"][0])


def test_every_step_has_a_part_in_the_diagnosis(root: Path) -> None:
    """The differences have a deviation of 0.05, so k3 is about 0.05²/2 = 0.00125; the last step holds a mark, too."""
    make_run(root, "alpha", steps=1)
    whole = np.load(io.BytesIO(step_file(3)))
    rollout = whole["rollout_log_probs"].copy()
    rollout[:, 7] = -9999
    marked = io.BytesIO()
    np.savez(marked, **{**whole, "rollout_log_probs": rollout})
    at = dropped(("step_1.npz", step_file(1)), ("step_2.npz", step_file(2)), ("step_3.npz", marked.getvalue()))
    text = said(at).replace("\\", "")
    assert "##### Looks like padding: the engine's log-prob is exactly −9999 on 40 tokens (2 %)" in text
    assert "- padding (1 step): Looks like padding: the engine's log-prob is exactly −9999" in text
    assert "- precision (2 steps, the worst is step" in text


def test_another_budget_and_another_system(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = dropped(("step_1.npz", step_file(1)), keep="80 %", system="slime")
    assert "The run has only one step" in said(at)
    ratios = np.exp(differences(1)).ravel()
    threshold = float(table_of(at)["cap on each token's weight"][0])
    assert threshold == pytest.approx(np.quantile(ratios, 0.8), rel=2e-3)
    assert f"--tis-clip {threshold:g}" in at.code[0].value


def test_before_anything_is_dropped_it_shows_what_one_gets(root: Path) -> None:
    make_run(root, "alpha", steps=3)
    at = open_app(VIEW)
    assert "You have not dropped a file yet. As an example, the page shows the recorded run **alpha**." in said(at)
    assert len(table_of(at)) == 5


def test_what_cannot_be_read_is_said_and_changes_nothing(root: Path) -> None:
    make_run(root, "alpha", steps=2)
    at = dropped(("pairs.pkl", b"\x80\x04}q\x00."))
    assert "pickle" in "\n".join(error.value for error in at.error)
    assert "the recorded run **alpha**" in said(at)


def test_the_gap_is_placed_among_measured_ones_and_the_thresholds_are_carried_over(root: Path) -> None:
    """The picture and the sentences are for the selected step, the last one. Answers have 50 tokens."""
    make_run(root, "alpha", steps=1)
    at = dropped(*((f"step_{step}.npz", step_file(step)) for step in (1, 2)))
    assert "Is this gap normal?" in said(at)
    d = differences(2)
    assert f"k3 is {short(float((np.exp(d) - 1 - d).mean()))}. It is larger than " in said(at)
    cut = next(e.proto.body for e in at.get("html") if "first 20" in e.proto.body)
    assert re.findall(r"<th>(?:<[^>]*>)?(.*?)(?:</span>)?</th>", cut)[1:] == [
        "first 5",
        "first 10",
        "first 20",
        "whole, up to 50",
    ]
    within = next(e.proto.body for e in at.get("html") if "±5 %" in e.proto.body)
    share = float((np.abs(np.expm1(differences(2).astype(np.float32))) <= 0.05).mean())
    assert f"<td>{100 * share:.2f} %</td>" in within
    at.segmented_control(key="measure").set_value("mean |d|").run()
    assert f"mean |d| is {short(float(np.abs(d).mean()))}. It is larger than " in said(at)
    assert "Measured causes of gaps of this size: " in said(at)
