"""What the committed runs show about gradients, whichever kind of sketch they have; every number here is also in README
or in a lesson."""

import itertools
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
    next_tokens = read_sketch(run, last_sketch(run)).next_tokens
    assert next_tokens is not None
    return kl_report(next_tokens, estimator)


@pytest.mark.parametrize("name", SKETCHED)
def test_kl_estimators_on_real_places(name: str) -> None:
    """On-policy: E[∇k1] = 0, E[∇k2] = ∇KL(π‖ref), E[∇k3] = ∇KL(ref‖π), exact over the next token."""
    k1, k2, k3 = (places(name, estimator) for estimator in ("k1", "k2", "k3"))
    assert k1.length.value < FLOAT16 * k1.noise.value
    assert (k2.cosine.value, k2.length.value) == pytest.approx((1, 1), abs=0.01)
    assert k3.reverse_cosine.value == pytest.approx(1, abs=0.01)
