"""The page for a person's own data: a verdict, bounds with their price on steps that had no part in them, and text."""

import html
import io
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from app_pages import html_of, links, one_scan, open_app, root, said, widget
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
    widget(at.file_uploader, "dropped").set_value(uploaded).run()
    assert not at.exception
    return at


def tables_of(at: AppTest) -> list[dict[str, dict[str, str]]]:
    """Return each table with grades: first cell → column → text, such as "3.1 % good"."""
    found_tables = []
    for element in at.get("html"):
        if "rl-graded'>" not in element.proto.body:
            continue
        head, *rows = (
            [
                html.unescape(re.sub(r"<small>.*?</small>|<[^>]*>", "", cell))
                for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)
            ]
            for row in element.proto.body.split("<tr>")[1:]
        )
        found_tables.append({row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows})
    return found_tables


def test_the_systems_own_numbers_come_first(root: Path) -> None:
    """Count on the same ratios what verl's numbers keep: a cap of 2, a band of 0.5 to 5, a geometric mean within 0.1 %.

    The differences have a deviation of 0.05, so no ratio is outside 0.5 to 2. The mean over 50 of them has one of
    0.05/√50 = 0.007, so few answers are within 0.001, and the effective sample size is far below one half.
    """
    make_run(root, "alpha", steps=1)
    at = dropped(("step_1.npz", step_file(1)))
    verl, _ = tables_of(at)
    d = differences(1).astype(np.float32).astype(float)
    ess = np.exp(d).sum() ** 2 / d.size / np.exp(2 * d).sum()
    assert verl["Cap each token's weight at 2"] == {
        "kept": "100.00 %", "clipped": "0.00 % good", "zeroed": "0.00 %", "ESS": f"{100 * ess:.2f} % good"
    }  # fmt: skip
    inside = (np.abs(d.mean(1)) <= np.log(1.001)).mean()
    row = verl["Reject answers with a mean ratio outside 0.999 to 1.001"]
    assert row == {
        "kept": f"{100 * inside:.2f} %", "clipped": "–", "zeroed": f"{100 * (1 - inside):.2f} %",
        "ESS": f"{100 * inside:.2f} % bad",
    }  # fmt: skip
    assert widget(at.selectbox, "take").value == "decoupled_token_is"
    offered = widget(at.selectbox, "take").options
    assert "Cap each token's weight at 2 (decoupled_token_is)" in offered
    assert (
        "Reject answers with a mean ratio outside 0.999 to 1.001 (decoupled_geo_rs)" not in offered
    )  # bad here, so not advised
    content = yaml.safe_load(at.code[0].value)
    assert content["algorithm"]["rollout_correction"]["rollout_is_threshold"] == 2.0
    assert content["actor_rollout_ref"] == {"rollout": {"calculate_log_probs": True}}
    assert "# made with rlcorr; this state of the playground: /?view=bench&run=upload_" in at.code[0].value
    assert at.code[1].value.startswith("# verl 0.9.1\nalgorithm.rollout_correction.rollout_is=token ")


def test_bounds_are_chosen_on_the_first_steps_and_priced_on_the_last(root: Path) -> None:
    """The band keeps 95 % of the tokens of the first two steps: the 95th percentile of the distances from 0."""
    make_run(root, "alpha", steps=1)
    at = dropped(*((f"step_{step}.npz", step_file(step)) for step in (1, 2, 3)), keep="95 %")
    assert "Chosen on step 1 to 2 and checked on step 3" in said(at)
    _, budget = tables_of(at)
    band = budget["band of each token's weight"]
    before = np.abs(np.concatenate([differences(1), differences(2)])).ravel()
    assert float(band["threshold"]) == pytest.approx(np.exp(np.quantile(before, 0.95)), rel=2e-3)
    assert float(band["kept where chosen"].removesuffix(" %")) == pytest.approx(95, abs=0.05)
    last = np.abs(differences(3)) <= np.log(float(band["threshold"]))
    assert float(band["kept"].removesuffix(" %")) == pytest.approx(100 * last.mean(), abs=0.05)
    mean = budget["mean ratio of an answer"]
    inside = [np.abs(differences(step).mean(1)) <= np.log(float(mean["threshold"])) for step in (1, 2, 3)]
    assert mean["kept where chosen"] == f"{100 * np.concatenate(inside[:2]).mean():.2f} %"
    assert mean["kept"] == f"{100 * inside[2].mean():.2f} %"
    assert "A cap on the weights is not among them" in said(at)
    widget(at.selectbox, "take").set_value("decoupled_geo_rs@0.95").run()
    correction = yaml.safe_load(at.code[0].value)["algorithm"]["rollout_correction"]
    assert correction["rollout_rs"] == "seq_mean_k1"
    low, high = map(float, correction["rollout_rs_threshold"].split("_"))
    assert (1 / low, high) == pytest.approx((float(mean["threshold"]), float(mean["threshold"])), rel=5e-5)


def test_a_fault_shows_no_table_and_no_text(root: Path) -> None:
    """Check a shift by one token, two equal sides, and a fault of an earlier step than the one that is shown."""
    make_run(root, "alpha", steps=1)
    whole = np.load(io.BytesIO(step_file(1)))
    rollout = -np.random.default_rng(5).random(whole["rollout_log_probs"].shape).astype(np.float32)
    old = rollout + differences(1).astype(np.float32)
    for name, (p, q), sentence in (
        ("shifted.npz", (old.clip(max=0), np.roll(rollout, 1, axis=1)), "Looks like a shift by one"),
        ("same.npz", (rollout, rollout), "Identical: both sides have the same 2,000 log-probs"),
    ):
        file = io.BytesIO()
        np.savez(file, response_mask=whole["response_mask"], old_log_probs=p, rollout_log_probs=q)
        at = dropped((name, file.getvalue()))
        assert sentence in said(at)
        assert "There are no thresholds and no configuration here" in said(at)
        assert not tables_of(at)
        assert not at.code
        at = dropped((f"step_1_{name}", file.getvalue()), ("step_2.npz", step_file(2)))
        assert "Step 1 of this run has a fault." in said(at)
        assert not tables_of(at)
        assert not at.code


def test_one_token_that_decides_is_named_with_a_link(root: Path) -> None:
    """One log-prob of −39.9 among 2,000: the log-ratio is clamped to 20, and k3 there is e^20 − 21 = 4.9e8."""
    make_run(root, "alpha", steps=1)
    whole = dict(np.load(io.BytesIO(step_file(1))))
    whole["rollout_log_probs"][31, 7] = -39.9
    file = io.BytesIO()
    np.savez(file, **whole)
    at = dropped(("pairs.npz", file.getvalue()))
    text = said(at)
    assert "##### One token makes 100 % of k3: response 31, token 7 (log-probs −39.9 in the sampler" in text
    assert "Also: Looks like precision" in text
    assert "chat template" not in text
    (link,) = [link for link in links(at) if link["label"] == "See token 7 of response 31"]
    assert link["to"] == {"view": "tokens", "token": "31.7"}
    d = np.delete(differences(1).ravel(), 31 * WIDTH + 7)
    sizes = next(e.proto.body for e in at.get("html") if "without the token" in e.proto.body)
    mean, without, _, median = re.findall(
        r"<td>([^<]*)</td>", next(row for row in sizes.split("<tr>") if ">k3<" in row)
    )
    assert float(mean) == pytest.approx(np.expm1(20) / 2000, rel=1e-3)
    assert float(without) == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-3)
    assert float(median) == pytest.approx(np.median(np.exp(d) - 1 - d), rel=1e-2)
    assert len(tables_of(at)) == 2  # one token is no reason to choose nothing


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
    assert "##### Looks like padding: the sampler's log-prob is exactly −9999 on 40 tokens (2 %)" in text
    assert "- padding (1 step): Looks like padding: the sampler's log-prob is exactly −9999" in text
    assert "- precision (2 steps, the worst is step" in text


def test_a_mask_keeps_only_tokens_with_a_weight(root: Path) -> None:
    """AReaL, NeMo RL and verl have an IcePop band of 0.5 to 5. A tenth of the tokens has a ratio of 0.2. A band that
    keeps 80 % zeroes more than the glossary's 5 %, and is not offered."""
    make_run(root, "alpha", steps=1)
    rollout = np.full((40, 50), -1.0, np.float32)
    old = rollout.copy()
    old[:, ::10] += np.log(0.2)
    old[:, 1] -= 0.01
    file = io.BytesIO()
    np.savez(file, response_mask=rollout < 0, old_log_probs=old, rollout_log_probs=rollout)
    at = dropped(("pairs.npz", file.getvalue()), system="NeMo RL", keep="80 %")
    assert "The run has only one step" in said(at)
    row = tables_of(at)[0]["Zero each token's weight outside 0.5 to 5"]
    assert (row["kept"], row["zeroed"]) == ("90.00 %", "10.00 % bad")  # the glossary's limit is 5 %
    widget(at.selectbox, "system").set_value("slime").run()
    assert "Cap each token's weight at 2" in tables_of(at)[0]
    page = html_of(at)
    assert "mean k3 of an answer<small>slime cannot express it</small>" in page
    assert not any("mean k3 of an answer" in label for label in widget(at.selectbox, "take").options)
    assert "--tis-clip 2.0" in at.code[0].value


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
    widget(at.segmented_control, "measure").set_value("mean |d|").run()
    assert f"mean |d| is {short(float(np.abs(d).mean()))}. It is larger than " in said(at)
    assert "Measured causes of gaps of this size: " in said(at)
