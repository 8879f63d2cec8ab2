"""What the committed runs show about gradients, whichever kind of sketch they have; every number here is also in README
or in a lesson."""

import itertools
import math
import re
from dataclasses import fields

import pytest

from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import KLGradientReport, kl_report
from rlcorr.gradients.report import GradientReport, compare, difference, report
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.recipes import read_index
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch

pytestmark = pytest.mark.slow  # half a second for each run

FLOAT16 = 2e-3
"""Scores are stored in float16."""


def reported(name: str, preset_name: str) -> GradientReport:
    run = runs.find_run(name)
    return report(*read_gradients(run, last_sketch(run)), preset(preset_name))


def test_without_a_mismatch_there_is_no_bias() -> None:
    """Whatever does not reject: at most a hundredth of the gradient."""
    none = reported("control_fp32", "disabled")
    for other in ("disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop"):
        got = reported("control_fp32", other)
        assert got.relative_bias.high <= 0.01
        assert got.length.value == pytest.approx(none.length.value, rel=1e-3)


SKETCHED = [name for name in read_index() if runs.list_sketches(runs.ROOT / name)]
FEW_PROMPTS = ("control_fp32", "kv_fp8", "stale_4", "async", "top_p", "temperature_raw", "stale_head")
"""Runs whose gradient is exact but for the projection: all their prompts are sketched."""
PRESETS_COMPARED = [entry.config for entry in PRESETS.values()][::4]


@pytest.mark.parametrize("name", SKETCHED)
def test_the_gradients_of_a_run(name: str) -> None:
    """Every number is in its interval or is not known. A cosine of 1.00 once stood beside an interval from 0.37 to
    0.66. What cannot be negative is not, and a share is at most 1.

    If all prompts are sketched, most presets have a bias that is known to 0.1, or to two fifths of it."""
    run = runs.find_run(name)
    batch, sketch = read_gradients(run, last_sketch(run))
    ranking = compare(batch, sketch, PRESETS_COMPARED)
    for of_preset in ranking.reports:
        numbers = {f.name: getattr(of_preset, f.name) for f in fields(of_preset)}
        for label in ("noise", "progress"):
            numbers |= {f"{label} {place}": interval for place, interval in enumerate(numbers[label])}
        for label, interval in numbers.items():
            if isinstance(interval, Interval):
                rounding = 1e-5 * abs(interval.value)  # of sums of float32, in another order in each bootstrap sample
                outside = interval.value < interval.low - rounding or interval.value > interval.high + rounding
                assert not outside, (label, interval)
                assert label in ("cosine", "scale") or not interval.value < 0, (label, interval)
        assert all(not share.high > 1 for share in of_preset.progress)
    if isinstance(sketch, ExactSketch):
        assert all(0.9 < share <= 1 + 1e-4 for share in sketch.answers.coverage.values())
    if name in FEW_PROMPTS:
        assert sketch.finite_population_factor == 0
        biases = [of_preset.relative_bias for of_preset in ranking.reports]
        narrow = sum(bias.high - bias.low <= max(0.1, 0.4 * bias.value) for bias in biases)
        assert narrow >= 0.7 * len(biases)
        told = [difference(a, b).tells for a, b in itertools.combinations(ranking.progress[:, 0], 2)]
        assert any(told) or name == "control_fp32"


def test_presets_differ_by_more_than_their_error_with_a_coarse_cache() -> None:
    """Of the variance: nothing > k3 rejection > rejection by the geometric mean, all three intervals apart."""
    nothing, k3, geometric = (
        reported("kv_fp8_e5m2", name).variance for name in ("disabled", "decoupled_k3_rs", "decoupled_geo_rs")
    )
    assert nothing.low > k3.high
    assert k3.low > geometric.high


def places(name: str, estimator: str) -> KLGradientReport:
    run = runs.find_run(name)
    sketch = read_sketch(run, last_sketch(run))
    positions = sketch.next_tokens or sketch.kl_gradients
    assert positions is not None
    return kl_report(positions, estimator)


@pytest.mark.parametrize("name", SKETCHED)
def test_kl_estimators_on_real_places(name: str) -> None:
    """On-policy: E[∇k1] = 0, E[∇k2] = ∇KL(π‖ref), E[∇k3] = ∇KL(ref‖π), exact over the next token."""
    k1, k2, k3 = (places(name, estimator) for estimator in ("k1", "k2", "k3"))
    assert k1.length.value < FLOAT16 * (k2.length.value if math.isnan(k1.noise.value) else k1.noise.value)
    assert (k2.cosine.value, k2.length.value) == pytest.approx((1, 1), abs=0.01)
    assert k3.reverse_cosine.value == pytest.approx(1, abs=0.01)


REAL = ("smol_sketch_bf16", "smol_sketch_kv_fp8", "smol_sketch_stale_6")
IN_WORDS = {
    "none": "disabled",
    "cap of 2 on each token": "decoupled_token_is",
    "cap of 2 on each answer": "decoupled_seq_is",
}


def test_the_table_of_the_real_model_in_the_readme() -> None:
    """Every number of it, as it is rounded there; an interval of no width is written as its value."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    table = [
        row.split(" | ") for row in re.findall(r"^\| `(smol_sketch_\w+` \| (?:none|cap).*) \|$", text, re.MULTILINE)
    ]
    assert [(row[0].rstrip("`"), row[1]) for row in table] == [*itertools.product(REAL, IN_WORDS)]
    for run, rows in itertools.groupby(table, lambda row: row[0].rstrip("`")):
        batch, sketch = read_gradients(runs.find_run(run), last_sketch(runs.find_run(run)))
        ranking = compare(batch, sketch, [preset(name) for name in IN_WORDS.values()])
        for place, row in enumerate(rows):
            of_preset = ranking.reports[place]
            gained = difference(ranking.progress[place, 0], ranking.progress[0, 0])
            intervals = [of_preset.relative_bias, of_preset.cosine, of_preset.progress[0], *([gained] if place else [])]
            for written, interval in zip(filter(None, (cell.strip(" |") for cell in row[2:])), intervals, strict=True):
                numbers = [float(number) for number in re.findall(r"-?[\d.]+", written)]
                digits = len(written.partition(".")[2].partition(" ")[0])
                exact = [interval.value, interval.low, interval.high][: len(numbers)]
                assert numbers == pytest.approx(exact, abs=0.6 * 10**-digits), (run, row[1], written)


def test_what_k3_makes_of_old_tokens() -> None:
    """README: the mean of k3 is 5,779, that of k2 1.6, and two tokens make 92 % of the first. By its definition."""
    batch = read_gradients(runs.find_run(REAL[-1]), last_sketch(runs.find_run(REAL[-1])))[0]
    assert batch.old_log_probs is not None
    assert batch.ref_log_probs is not None
    delta = (batch.old_log_probs - batch.ref_log_probs)[batch.response_mask].double()
    k3 = (-delta).exp() - 1 + delta
    assert (len(delta), float(k3.mean()), float(delta.square().mean() / 2)) == pytest.approx(
        (2181, 5779, 1.6), rel=0.01
    )
    assert float(k3.topk(2).values.sum() / k3.sum()) == pytest.approx(0.92, abs=0.005)


def test_how_far_k3_pulls_away_on_the_real_model() -> None:
    angles, lengths = ((14, 10, 23), (8, 7, 14), (35, 28, 52)), ((1.1, 0.9, 1.3), (1.2, 1.0, 1.3), (1.9, 1.1, 3.0))
    for name, angle, length in zip(REAL, angles, lengths, strict=True):
        got = places(name, "k3")
        degrees = [math.degrees(math.acos(cosine)) for cosine in (got.cosine.value, got.cosine.high, got.cosine.low)]
        assert degrees == pytest.approx(angle, abs=0.6)
        assert (got.length.value, got.length.low, got.length.high) == pytest.approx(length, abs=0.06)
