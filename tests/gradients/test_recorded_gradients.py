"""What the committed runs show about gradients; every number here is also in README or in a lesson."""

import math
from dataclasses import fields

import pytest

from rlcorr.gradients.kl_losses import KLGradientReport, kl_report
from rlcorr.gradients.report import GradientReport, compare, report
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.recipes import read_index
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch

pytestmark = pytest.mark.slow  # half a second for each run

FLOAT16 = 2e-3
"""Scores are stored in float16."""


def reported(name: str, preset_name: str) -> GradientReport:
    run = runs.find_run(name)
    step = last_sketch(run)
    return report(updated_batch(run, step), read_sketch(run, step), preset(preset_name))


def test_without_a_mismatch_what_looks_like_a_bias_is_noise() -> None:
    none = reported("control_fp32", "disabled")
    assert none.bias.low == 0
    for other in ("decoupled_token_is", "decoupled_seq_is", "decoupled_geo_rs"):
        assert reported("control_fp32", other).length.value == pytest.approx(none.length.value, rel=1e-3)


@pytest.mark.parametrize("name", read_index())
def test_every_number_lies_in_its_interval_or_is_not_known(name: str) -> None:
    """A cosine of 1.00 once stood beside an interval from 0.37 to 0.66, that of stale_4 with geometric rejection."""
    run = runs.find_run(name)
    step = last_sketch(run)
    batch, sketch = updated_batch(run, step), read_sketch(run, step)
    measurable = [entry.config for entry in PRESETS.values() if entry.config.loss_type not in ("clip_cov", "kl_cov")]
    for of_preset in compare(batch, sketch, measurable).reports:
        numbers = {f.name: getattr(of_preset, f.name) for f in fields(of_preset) if f.name != "projection_error"}
        for label, interval in {**numbers, "noise": of_preset.noise}.items():
            assert math.isnan(interval.value) or interval.low <= interval.value <= interval.high, (label, interval)


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


@pytest.mark.parametrize("name", read_index())
def test_kl_estimators_on_real_places(name: str) -> None:
    """On-policy: E[∇k1] = 0, E[∇k2] = ∇KL(π‖ref), E[∇k3] = ∇KL(ref‖π), exact over the next token."""
    k1, k2, k3 = (places(name, estimator) for estimator in ("k1", "k2", "k3"))
    assert k1.length.value < FLOAT16 * k1.noise.value
    assert (k2.cosine.value, k2.length.value) == pytest.approx((1, 1), abs=0.01)
    assert k3.reverse_cosine.value == pytest.approx(1, abs=0.01)
