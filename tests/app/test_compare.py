"""The Compare view's script: both configurations come from the URL, swap, and show what the library says of them."""

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
from app_pages import (
    chosen,
    committed,
    four_digits,
    live_parts,
    one_scan,
    open_app,
    open_view,
    root,
    said,
    shown,
    two_digits,
    widget,
)
from app_runs import add_step, make_record, make_run
from streamlit.testing.v1 import AppTest

from rlcorr import evaluate, preset
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import compare_gradients
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/compare.py"


def tables(at: AppTest) -> str:
    moving = [table for part in live_parts(at) for table in part["tables"].values()]
    return "".join([*moving, *(str(e.proto.body) for e in at.get("html"))])


NAMES = {
    "kept_fraction": "Kept tokens",
    "rollout_rs_seq_masked_fraction": "Answers touched",
    "trained_eff_sample_size": "ESS of the kept",
    "trained_is_mean": "Mean weight",
    "rollout_is_oob_ratio": "Weights clipped",
}
"""Metric → its name on the page."""


def row(at: AppTest, metric: str) -> list[str]:
    """The cells of one metric: A, B, B − A."""
    after = tables(at).split(f">{NAMES.get(metric, metric)}</abbr>")[1].split("</tr>")[0]
    return [cell.split("</td>")[0] for cell in after.split("<td>")[1:]]


def log_ratios(run: Path, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    batch = runs.read_step(run, step).batch
    mask = batch.response_mask.numpy()
    old = batch.tensors()["old_log_probs"].double().numpy()
    return np.where(mask, old - batch.rollout_log_probs.double().numpy(), 0), mask


def test_masks_and_metrics_counted_with_numpy(root: Path) -> None:
    """A masks tokens beyond 1.1 and below 0.9, B rejects sequences by their geometric mean."""
    run = make_run(root, "alpha", steps=1)
    d, mask = log_ratios(run)
    by_a = mask & (np.exp(d) >= 0.9) & (np.exp(d) <= 1.1)
    geometric = np.exp(d.sum(1) / mask.sum(1))
    by_b = mask & ((geometric >= 0.98) & (geometric <= 1.02))[:, None]
    query = {"is_upper": "1.1", "is_lower": "0.9", "preset_b": "decoupled_geo_rs"}
    bounds = {"b.seq_mean_k1_upper": "1.02", "b.seq_mean_k1_lower": "0.98"}
    at = open_app(VIEW, preset="decoupled_token_icepop", **query, **bounds)
    assert not at.warning
    numbers = shown(at)
    assert numbers["Differ on"] == f"{100 * (by_a ^ by_b).sum() / mask.sum():.2f} %"
    assert numbers["Only A"] == f"{(by_a & ~by_b).sum():,}"
    assert numbers["Only B"] == f"{(by_b & ~by_a).sum():,}"
    kept = by_b.sum() / mask.sum()
    assert row(at, "kept_fraction") == ["1", f"{kept:.4g}", f"{kept - 1:+.4g}".replace("-", "−")]
    mean = np.exp(d)[by_a].sum() / mask.sum()
    assert row(at, "trained_is_mean")[:2] == [f"{mean:.4g}", "1"]


def test_every_shown_metric_is_the_librarys(root: Path) -> None:
    run = make_run(root, "alpha", steps=1)
    batch = runs.read_step(run, 0).batch
    for names in (("decoupled_seq_is", "decoupled_k3_rs"), ("trl_opsm", "slime_mis")):
        at = open_app(VIEW, preset=names[0], preset_b=names[1])
        a, b = (evaluate(batch, preset(n))[1] for n in names)
        for key in {*a, *b} & {f"rollout_corr/{name}" for name in NAMES}:
            cells = row(at, key.removeprefix("rollout_corr/"))
            assert cells[:2] == [four_digits(values[key]) if key in values else "–" for values in (a, b)], key
    assert "step 0 of alpha has no score sketch" in said(at)


def test_gradients_are_the_librarys(committed: None) -> None:
    run = runs.ROOT / "kv_fp8_e5m2"
    batch, sketch = read_gradients(run, last_sketch(run))
    a, b = preset("decoupled_token_is"), preset("decoupled_k3_rs")
    gradients = compare_gradients(batch, sketch, a, b, batch_sizes=[8192])
    at = open_app(VIEW, run=run.name, preset_b="decoupled_k3_rs", answers="8192")
    assert row(at, "Noise")[2] == difference(gradients.noise[0])
    assert row(at, "Progress (η)")[2] == difference(gradients.progress[0])
    assert row(at, "Bias")[2] == difference(gradients.bias)
    assert row(at, "Cosine")[2] == difference(gradients.cosine)
    progress = gradients.b.progress[0]
    value, low, high = map(two_digits, (progress.value, progress.low, progress.high))
    assert row(at, "Progress (η)")[1] == f"{value} [{low},\u00a0{high}]"


def difference(of: Interval) -> str:
    value, low, high = (end if end.startswith("-") or end == "–" else f"+{end}" for end in map(two_digits, astuple(of)))
    return f"{value} [{low},\u00a0{high}]".replace("-", "−")


def test_swap(root: Path) -> None:
    """Presets, bounds and choices change sides; what A had alone, B has alone."""
    make_run(root, "alpha", steps=1)
    query = {"preset": "decoupled_token_icepop", "is_upper": "1.1", "denominator": "kept", "b.is_upper": "1.3"}
    at = open_app(VIEW, preset_b="decoupled_seq_is", **query)
    before, texts = shown(at), said(at)
    at.button(key="swap").click().run()
    assert not at.exception
    assert (widget(at.selectbox, "preset").value, widget(at.selectbox, "preset_b").value) == (
        "decoupled_seq_is", "decoupled_token_icepop",
    )  # fmt: skip
    after = shown(at)
    assert (after["Only A"], after["Only B"]) == (before["Only B"], before["Only A"])
    assert after["Differ on"] == before["Differ on"]
    assert [chosen(at, key) for key in ("b.is_upper", "b.denominator", "is_upper")] == [1.1, "kept", 1.3]
    for sentence in ("outside [0.5, 1.1]", "a weight above 1.3 becomes 1.3"):
        assert sentence in texts
        assert sentence in said(at)
    assert at.query_params["b.is_upper"] == "1.1"
    at.button(key="swap").click().run()
    assert shown(at) == before


def test_as_fields_are_those_of_the_bench(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(VIEW, **{"is_upper": "3", "preset_b": "decoupled_seq_is", "b.is_upper": "7"})
    open_view(at, "views/bench.py")
    assert "a weight above 3 becomes 3" in said(at)
    open_view(at, VIEW)
    assert "a weight above 3 becomes 3" in said(at)
    assert "a weight above 7 becomes 7" in said(at)
    assert widget(at.selectbox, "preset_b").value == "decoupled_seq_is"
    widget(at.selectbox, "preset_b").set_value("decoupled_token_icepop").run()
    assert (chosen(at, "b.is_upper"), chosen(at, "is_upper")) == (None, 3.0)


def test_a_configuration_that_the_step_does_not_allow(root: Path) -> None:
    run = make_run(root, "alpha", steps=0, status="running")
    record = make_record(0)
    add_step(run, replace(record, batch=record.batch.replace(advantages=None)))
    at = open_app(VIEW, preset_b="trl_opsm")
    assert "seq_mean_k1_negative asks for the sign of the advantage" in said(at)
    assert not shown(at)
    widget(at.selectbox, "preset_b").set_value("decoupled_seq_is").run()
    assert "Differ on" in shown(at)


def test_an_address_of_two_runs_shows_two_configurations(root: Path) -> None:
    """Version 0.1 compared runs, too: its addresses name keys that nothing knows any more."""
    make_run(root, "alpha", steps=1)
    make_run(root, "beta", steps=2)
    at = open_app(VIEW, compare="two runs", run="alpha", run_b="beta", step_b="0", preset_b="decoupled_geo_rs")
    assert "The address has compare=, run_b=, step_b= which means nothing here." in said(at)
    assert "Differ on" in shown(at)
    assert widget(at.selectbox, "preset_b").value == "decoupled_geo_rs"


def test_a_run_without_steps(root: Path) -> None:
    make_run(root, "gamma", steps=0, status="running")
    assert "no step yet" in said(open_app(VIEW, run="gamma"))
