"""Every view, every run and every kind of preset: nothing raises, and the headline numbers are the library's.

The full product of views, presets and runs is about 4,000 pages. Opened are about 100: each committed run in one view,
and each kind of preset on one run. What only one preset does on one run is left to chance.
"""

import re

import pytest
from app_pages import committed, four_digits, headlines, kinds, one_scan, open_app, said, shown, two_digits, widget
from app_runs import PROJECT, last_batch
from streamlit.testing.v1 import AppTest

from rlcorr import correct, evaluate, preset
from rlcorr.gradients.report import GradientReport, report
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients

__all__ = ["committed", "one_scan"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("committed")]

RUNS = sorted({path.parent.parent.name for path in runs.ROOT.glob("*/steps/*.parquet")})
SKETCHED = [
    "bf16",  # every likely answer; the smallest
    "kv_fp8",  # a cache of 8 bits
    "kv_fp8_e5m2",  # only sampled answers, and the longest
    "stale_head",  # an engine behind the trainer
    "top_p",  # an engine that cuts the distribution
    "moe_bf16",  # a mixture of experts
]
"""One run of each kind that has a score sketch: what the gradient view depends on."""
OF_EACH_KIND = [*SKETCHED, "async", "both_bf16", "long_bf16"]  # several versions, no sketch, a longer task
PAGES = (PROJECT / "app" / "text" / "pages.py").read_text(encoding="utf-8")
VIEWS = re.findall(r'"(\w+)": PageWords', PAGES)
PARTS = [
    ("kl", {"kl_loss": "k1"}), ("training", {"part": "Study"}),
    ("training", {"part": "Train"}), ("learn", {"learn": "Glossary"}),
    ("learn", {"learn": "Teaching"}), ("learn", {"learn": "Decision card"}), ("learn", {"learn": "Papers"}),
]  # fmt: skip
"""Views with something else chosen than what they open with."""
PATIENCE = 300.0
"""Seconds for one page, which takes half a one: on a busy machine it waits for others."""


def choose(at: AppTest, key: str, name: str) -> None:
    if widget(at.selectbox, key).value != name:
        widget(at.selectbox, key).set_value(name)


def quiet(at: AppTest) -> bool:
    return not at.exception and not at.error


def test_the_runs_of_each_kind_are_committed() -> None:
    assert all(runs.list_sketches(runs.ROOT / name) for name in SKETCHED)
    assert {*OF_EACH_KIND} <= {*RUNS}


@pytest.mark.parametrize("number", range(len(VIEWS)), ids=VIEWS)
def test_every_run_opens(number: int) -> None:
    """Each in one view. No widget shows another value than its field, or each request would look like a choice."""
    view = VIEWS[number]
    for slug in RUNS[number :: len(VIEWS)]:
        at = open_app(view, run=slug)
        assert quiet(at), slug
        before = dict(at.session_state["visit"].values)
        at.run(timeout=PATIENCE)
        assert at.session_state["visit"].values == before, slug
        assert not at.session_state["visit"].notices, slug
    for _, query in (part for part in PARTS if part[0] == view):
        at = open_app(view, **query)
        assert quiet(at), query
        before = dict(at.session_state["visit"].values)
        assert at.run(timeout=PATIENCE).session_state["visit"].values == before, query


@pytest.mark.parametrize("number", range(len(OF_EACH_KIND)), ids=OF_EACH_KIND)
def test_the_bench_shows_the_librarys_numbers(number: int) -> None:
    """Each kind of preset on one run."""
    slug = OF_EACH_KIND[number]
    batch, at = last_batch(slug), open_app("bench", run=slug)
    for name in kinds()[number :: len(OF_EACH_KIND)]:
        choose(at, "preset", name)
        at.run(timeout=PATIENCE)
        assert quiet(at), name
        reported = evaluate(batch, preset(name))[1]
        expected = {key.removeprefix("rollout_corr/"): value for key, value in reported.items()}
        numbers = shown(at)
        for label, key in (
            ("Mean weight", "trained_is_mean"),
            ("k3 before", "k3_kl"),
            ("Mean |Δ| before", "abs_log_ratio"),
        ):
            assert numbers[label] == four_digits(expected[key]), (name, label)
        for label, key in (("Kept tokens", "kept_fraction"), ("ESS of the kept", "trained_eff_sample_size")):
            assert read_percent(numbers[label]) == pytest.approx(expected[key], abs=1e-4), (name, label)
        touched = read_percent(numbers["Answers touched"])
        assert touched == pytest.approx(expected["rollout_rs_seq_masked_fraction"], abs=1e-4), name
        clipped = expected.get("rollout_is_oob_ratio")
        assert (numbers["Weights clipped"] == "–") == (clipped is None), name
        if clipped is not None:
            assert read_percent(numbers["Weights clipped"]) == pytest.approx(clipped, abs=1e-4), name
        assert preset(name).explain() in said(at), name


def read_percent(text: str) -> float:
    """0.01 and 99.99 where the page says that it is less, or more, than that."""
    return float(text.strip("<> %")) / 100


@pytest.mark.parametrize("number", range(len(SKETCHED)), ids=SKETCHED)
def test_the_gradient_view_shows_the_librarys_numbers(number: int) -> None:
    slug = SKETCHED[number]
    step = last_sketch(runs.ROOT / slug)
    batch, sketch = read_gradients(runs.ROOT / slug, step)
    at = open_app("gradient", run=slug, step=str(step))
    for name in kinds()[number :: 3 * len(SKETCHED)]:
        choose(at, "preset", name)
        at.run(timeout=PATIENCE)
        assert quiet(at), name
        reported = report(batch, sketch, preset(name))
        if reported.reference_length.value == 0:
            assert "The on-policy gradient of this step cannot be distinguished from noise" in said(at)
        else:
            assert headlines(at) == expected_headlines(reported), name


def expected_headlines(reported: GradientReport) -> dict[str, tuple[str, str]]:
    """Number and interval of each, as the page writes them."""
    intervals = {
        "Progress (η)": reported.progress[0], "Bias": reported.relative_bias, "Noise": reported.noise[0],
        "Cosine": reported.cosine, "Step length": reported.scale, "ESS of answers": reported.ess,
    }  # fmt: skip
    texts = {label: [two_digits(end) for end in (i.value, i.low, i.high)] for label, i in intervals.items()}
    return {
        label: (value, "unknown from these data" if value == "–" else f"{low} to {high}")
        for label, (value, low, high) in texts.items()
    }


@pytest.mark.parametrize("names", [("decoupled_seq_is", "decoupled_k3_rs"), ("trl_opsm", "slime_mis")])
def test_two_presets_are_compared(names: tuple[str, str]) -> None:
    """What one of them alone trains on agrees with their masks and weights."""
    for slug in OF_EACH_KIND[::4]:
        at = open_app("compare", run=slug, preset=names[0], preset_b=names[1])
        assert quiet(at), slug
        results = [correct(last_batch(slug), preset(name)) for name in names]
        by_a, by_b = ((result.weights * result.keep_mask) > 0 for result in results)
        assert shown(at)["Only A"] == f"{int((by_a & ~by_b).sum()):,}", slug
        assert shown(at)["Only B"] == f"{int((by_b & ~by_a).sum()):,}", slug
