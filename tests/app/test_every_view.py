"""Every view, every preset and every committed run: nothing raises, and the headline numbers are the library's.

The full product of views, presets and runs is about 4,000 pages. Opened are about 250: every preset in every view, on
another run in each, and every run in every view; one run of each kind in the two views that take seconds. What only one
preset does on one run is left to chance.
"""

import math
import re
from itertools import zip_longest

import pytest
from app_pages import committed, four_digits, headlines, kinds, one_scan, open_app, said, shown, widget
from app_runs import PROJECT
from streamlit.testing.v1 import AppTest

from rlcorr import PRESETS, correct, evaluate, preset
from rlcorr.gradients.report import GradientReport, report
from rlcorr.records import runs
from rlcorr.records.recipes import sketched_runs
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
VIEWS = [f"views/{name}.py" for name in re.findall(r'"(\w+)": PageWords', PAGES)]
BENCH, TOKENS, COMPARE, GRADIENT = (f"views/{name}.py" for name in ("bench", "tokens", "compare", "gradient"))
WITH_PRESETS = (BENCH, TOKENS, COMPARE, GRADIENT)
WITHOUT_RUN = ("views/start.py", "views/learn.py")
YOURS = "views/yours.py"
PATIENCE = 300.0
"""Seconds for one page, which takes half a one: on a busy machine it waits for others."""


def presets_of(view: str, slug: str) -> list[str]:
    """Return the presets that are opened in this view on this run. A gradient page costs as much as four others, and
    shows what depends on the configuration alone: there, one preset of each kind is enough."""
    names, opened = (kinds(), SKETCHED) if view == GRADIENT else (list(PRESETS), RUNS)
    return names[(opened.index(slug) + WITH_PRESETS.index(view)) % len(opened) :: len(opened)]


def test_every_preset_and_every_run_is_opened_in_every_view() -> None:
    for view in WITH_PRESETS:
        names, slugs = (kinds(), SKETCHED) if view == GRADIENT else (list(PRESETS), RUNS)
        opened = [presets_of(view, slug) for slug in slugs]
        assert sorted(name for of_run in opened for name in of_run) == sorted(names), view
        assert all(opened), view
    assert {*WITH_PRESETS} <= {*VIEWS}
    assert {*SKETCHED} <= {*sketched_runs()}
    assert {*OF_EACH_KIND} <= {*RUNS}


def choose(at: AppTest, key: str, name: str) -> None:
    if widget(at.selectbox, key).value != name:
        widget(at.selectbox, key).set_value(name)


def quiet(at: AppTest) -> bool:
    return not at.exception and not at.error


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in WITH_PRESETS])
def test_a_view_without_presets_opens_on_every_run(view: str) -> None:
    """Those that show no run, on one; the one that reads every step of a run, on a run of each kind."""
    at = open_app(view, run=RUNS[0])
    assert "preset" not in [box.key for box in at.selectbox], "this view belongs to those with presets, above"
    for slug in RUNS[:1] if view in WITHOUT_RUN else OF_EACH_KIND if view == YOURS else RUNS:
        opened = open_app(view, run=slug)
        assert quiet(opened), slug


@pytest.mark.parametrize("slug", RUNS)
def test_the_bench_shows_the_librarys_numbers(slug: str) -> None:
    run = runs.ROOT / slug
    batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
    at = open_app(BENCH, run=slug)
    for name in presets_of(BENCH, slug):
        choose(at, "preset", name)
        at.run(timeout=PATIENCE)
        assert quiet(at), name
        reported = evaluate(batch, preset(name))[1]
        expected = {key.removeprefix("rollout_corr/"): value for key, value in reported.items()}
        numbers = shown(at)
        for label, key in (("Mean weight", "trained_is_mean"), ("k3", "k3_kl"), ("Mean |Δ|", "abs_log_ratio")):
            assert numbers[label] == four_digits(expected[key]), (name, label)
        for label, key in (("Kept tokens", "kept_fraction"), ("ESS of the kept", "trained_eff_sample_size")):
            assert read_percent(numbers[label]) == pytest.approx(expected[key], abs=1e-4), (name, label)
        touched = read_percent(numbers["Sequences touched"])
        assert touched == pytest.approx(expected["rollout_rs_seq_masked_fraction"], abs=1e-4), name
        clipped = expected.get("rollout_is_oob_ratio")
        assert (numbers["Weights clipped"] == "–") == (clipped is None), name
        if clipped is not None:
            assert read_percent(numbers["Weights clipped"]) == pytest.approx(clipped, abs=1e-4), name


def read_percent(text: str) -> float:
    """0.01 and 99.99 where the page says that it is less, or more, than that."""
    return float(text.strip("<> %")) / 100


@pytest.mark.parametrize("slug", SKETCHED)
def test_the_gradient_view_shows_the_librarys_numbers(slug: str) -> None:
    run = runs.ROOT / slug
    step = last_sketch(run)
    batch, sketch = read_gradients(run, step)
    at = open_app(GRADIENT, run=slug, step=str(step))
    for name in presets_of(GRADIENT, slug):
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
        "Cosine": reported.cosine, "Step length": reported.scale, "Sequence ESS": reported.ess,
    }  # fmt: skip
    texts = {label: [written(end) for end in (i.value, i.low, i.high)] for label, i in intervals.items()}
    return {
        label: (value, "unknown from these data" if value == "–" else f"{low} to {high}")
        for label, (value, low, high) in texts.items()
    }


def written(value: float) -> str:
    """Two digits after the point, or two that are not 0."""
    if math.isnan(value):
        return "–"
    return f"{value:.2f}" if abs(value) >= 0.1 or abs(value) < 5e-5 else f"{value:.2g}"


@pytest.mark.parametrize("slug", RUNS)
def test_the_microscope_opens(slug: str) -> None:
    at = open_app(TOKENS, run=slug)
    for name in presets_of(TOKENS, slug):
        choose(at, "preset", name)
        at.run(timeout=PATIENCE)
        assert quiet(at), name
        assert preset(name).explain() in said(at)


@pytest.mark.parametrize("slug", RUNS)
def test_two_presets_are_compared(slug: str) -> None:
    """Two at a time; what one of them alone trains on agrees with their masks and weights."""
    run = runs.ROOT / slug
    batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
    at, names = open_app(COMPARE, run=slug), presets_of(COMPARE, slug)
    for a, b in zip_longest(names[::2], names[1::2], fillvalue=names[0]):
        choose(at, "preset", a)
        choose(at, "preset_b", b)
        at.run(timeout=PATIENCE)
        assert quiet(at), (a, b)
        by_a, by_b = ((result.weights * result.keep_mask) > 0 for result in (correct(batch, preset(n)) for n in (a, b)))
        numbers = shown(at)
        assert numbers["Only A"] == f"{int((by_a & ~by_b).sum()):,}", (a, b)
        assert numbers["Only B"] == f"{int((by_b & ~by_a).sum()):,}", (a, b)


@pytest.mark.parametrize("slug", RUNS)
def test_every_run_is_compared_with_another(slug: str) -> None:
    at = open_app(COMPARE, run=slug, compare="two runs")
    assert quiet(at)
    assert f"{slug}, step" in said(at)  # after the title, if the run has one
