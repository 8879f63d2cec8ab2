"""Synthetic policies with one cause or several, and the recorded runs: what is named, and what is not."""

import math

import numpy as np
import pytest
import torch
from causes import TOKENS, Drawn, batch_of, cut, draw, moved, noisy, patterns, rounded, scored, small, steep, unfilled

from rlcorr import TokenBatch
from rlcorr.analysis.log_prob_pairs import logits, tokens_of
from rlcorr.analysis.triage import top_p_mass, triage
from rlcorr.errors import UsageError
from rlcorr.records import runs

# --- one cause ---

EITHER = pytest.mark.parametrize("make", [small, steep])


@EITHER
def test_a_float32_engine_is_clean(make) -> None:
    z = make()
    (symptom,) = triage(scored(draw(z), z.float()))
    assert symptom.pattern == "clean"
    assert symptom.strength == pytest.approx(1, abs=1e-3)


@EITHER
def test_rounding_to_bfloat16_is_precision(make) -> None:
    z = make()
    (symptom,) = triage(scored(draw(z), rounded(z)))
    assert symptom.pattern == "precision"
    assert 0.45 < symptom.numbers["share_above_one"] < 0.55
    assert symptom.numbers["mean_ratio"] == pytest.approx(1, abs=4 * symptom.numbers["mean_ratio_error"])


@EITHER
@pytest.mark.parametrize("temperature", [0.6, 0.7, 0.9, 1.3])
@pytest.mark.parametrize("raw", [False, True])
def test_a_temperature_is_named_and_its_slope_is_near(make, temperature: float, raw: bool) -> None:
    """Sampled at T and scored at 1, p = βq + c with β = T; reported raw and scored at T, β = 1/T."""
    z = make()
    drawn = draw(z, temperature=temperature, raw=raw)
    (symptom,) = triage(scored(drawn, z / temperature if raw else z))
    assert symptom.pattern == "temperature"
    assert symptom.strength > 0.95
    expected = (1 / temperature if raw else temperature) - 1
    assert 0.7 < symptom.numbers["slope"] / expected < 1.1
    assert symptom.numbers["temperature"] == pytest.approx(1 / (1 + symptom.numbers["slope"]))
    assert f"is {symptom.numbers['slope']:.2f}. It should be 1/T − 1" in symptom.sentence
    if temperature in (0.6, 0.7):
        assert ("these are raw" in symptom.sentence) == raw


def test_with_two_tokens_the_temperature_is_exact() -> None:
    """One other token has no entropy: y = (β − 1)·x."""
    z = small()[:, :2]
    (symptom,) = triage(scored(draw(z, temperature=0.7)))
    assert symptom.numbers["slope"] == pytest.approx(0.7 - 1, abs=1e-4)
    assert symptom.numbers["temperature"] == pytest.approx(1 / 0.7, abs=1e-3)


@EITHER
@pytest.mark.parametrize("cuts", [{"top_p": 0.9}, {"top_p": 0.5}, {"top_k": 3}])
def test_a_cut_is_named_and_its_mass_is_the_mean_ratio(make, cuts: dict) -> None:
    """r = S, the mass that was kept at that place: sums over the kept part of the trainer's policy."""
    z = make()
    drawn = draw(z, **cuts)
    (symptom,) = triage(scored(drawn))
    assert symptom.pattern == "top-p mass"
    kept = torch.isfinite(cut(z.log_softmax(-1), **cuts))
    mass = float(torch.where(kept, z.softmax(-1), 0).sum(-1).mean())
    assert symptom.numbers["mean_ratio"] == pytest.approx(mass, rel=1e-5)
    assert f"{mass:.3f}" in symptom.sentence


def test_a_stale_head_is_named_by_its_constants_per_token() -> None:
    z = small()
    offset = 0.3 * torch.randn(12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (symptom,) = triage(scored(draw(z), z + offset))
    assert symptom.pattern == "stale tensor"
    (without_ids,) = triage(scored(draw(z), z + offset).replace(response_ids=None))
    assert without_ids.pattern == "undecided"
    assert symptom.sentence.startswith("May be a stale output head")


@EITHER
@pytest.mark.parametrize("size", [0.3, 0.5, 1.0])
def test_other_weights_are_undecided_and_nothing_else(make, size: float) -> None:
    z = make()
    (symptom,) = triage(scored(draw(z), noisy(z, size)))
    assert symptom.pattern == "undecided"
    assert "weights a few updates old (0.0027 to 0.5)" in symptom.sentence


@EITHER
def test_another_prompt_is_told_by_its_size(make) -> None:
    (symptom,) = triage(scored(draw(make()), make(seed=7)))
    assert symptom.pattern == "beyond rounding"
    assert "another prompt or chat template" in symptom.sentence


@pytest.mark.parametrize(("by", "name"), [(1, "next"), (-1, "previous")])
def test_a_shift_is_named_with_its_direction(by: int, name: str) -> None:
    """Rolled to the right, column t + 1 of π_rollout holds the token of column t."""
    z = small()
    (symptom,) = triage(moved(draw(z), rounded(z), by))
    assert symptom.pattern == "shift by one"
    assert f"of the {name} token" in symptom.sentence
    assert symptom.strength > 0.95


def test_identical() -> None:
    drawn = draw(small())
    (symptom,) = triage(batch_of(drawn.rollout, drawn.rollout))
    assert (symptom.pattern, symptom.strength) == ("identical", 1)
    assert "2,000 log-probs" in symptom.sentence


# --- several causes ---


@EITHER
@pytest.mark.parametrize("change", [rounded, lambda z: noisy(z, 0.1)], ids=["bfloat16", "noise"])
def test_a_temperature_or_a_cut_is_named_through_noise(make, change) -> None:
    z = make()
    assert patterns(scored(draw(z, temperature=0.7), change(z))) == ["temperature"]
    assert patterns(scored(draw(z, top_p=0.8), change(z))) == ["top-p mass"]


@EITHER
def test_a_small_cut_is_named_although_rounding_would_explain_its_size(make) -> None:
    z = make()
    (symptom,) = triage(scored(draw(z, top_p=0.97), rounded(z)))
    assert symptom.pattern == "top-p mass"
    assert symptom.numbers["k3"] < 1e-3


@EITHER
def test_a_temperature_with_a_cut_is_both(make) -> None:
    z = make()
    assert patterns(scored(draw(z, temperature=0.7, top_p=0.9))) == ["temperature", "top-p mass"]


def test_not_finite_comes_first_and_hides_nothing() -> None:
    batch = scored(draw(small(), temperature=0.7))
    old = batch.tensors()["old_log_probs"].clone()
    old[0, :3] = torch.tensor([math.nan, -math.inf, math.nan])
    first, second = triage(batch.replace(old_log_probs=old))
    assert first.sentence.startswith("Not finite: 3 of 2,000 tokens")
    assert second.pattern == "temperature"
    (only,) = triage(batch.replace(old_log_probs=old * math.nan))
    assert only.numbers["tokens"] == TOKENS


# --- what pairs cannot show ---


def test_a_temperature_that_is_in_neither_log_prob_is_invisible() -> None:
    """Sampled at 0.7, reported and scored at 1: rounding is all that is left."""
    z = small()
    assert patterns(scored(draw(z, temperature=0.7, raw=True), rounded(z))) == ["precision"]


def test_a_temperature_below_the_noise_is_not_named() -> None:
    z = small()
    assert patterns(scored(draw(z, temperature=0.99), noisy(z, 0.1))) == ["precision"]


EXPECTED = {
    "control_fp32": "clean",
    "bf16": "precision",
    "temperature_raw": "precision",  # as runs/index.toml says: both log-probs are of a policy that sampled nothing
    "top_p": "top-p mass",
    "stale_head": "stale tensor",
    "stale_4": "undecided",
    "async": "undecided",
    "kv_fp8": "precision",  # 8e-4 and 1.7e-3: rounding to bfloat16 makes as much in larger models
    "kv_fp8_e5m2": "undecided",  # pairs of an 8-bit cache look like those of older weights
    "moe_bf16": "precision",
    "moe_replay": "precision",
    "both_bf16": "precision",
    "both_fp16": "precision",
    "long_bf16": "precision",
    "long_kv_fp8_e5m2": "undecided",
    "long_stale_4": "undecided",
    "smol_bf16_both": "precision",
    "smol_kv_fp8": "undecided",
    "smol_long": "undecided",
    "smol_fp32": "clean",
    "smol_kv_fp8_e5m2": "undecided",
    "smol_stale_6": "undecided",
    "smol_weights_int8": "undecided",
    "smol_weights_fp8": "undecided",
    "smol_bf16": "undecided",
    "smol_top_p": "top-p mass",
    "gpu_smol_stale_6": "old weights",
    "gpu_smol_replay": "precision",
    "gpu_smol_lcm": "precision",
    "gpu_smol_bf16": "precision",
    "gpu_smol_kv_fp8": "undecided",
    "gpu_smol_fp8": "undecided",
    "gpu_smol_long": "precision",
}
AT_STEPS = {
    ("long_stale_4", 20): ["precision"],  # weights four updates old, at a learning rate that has fallen: k3 is 0.0027
    # Its trainer has scored the weights that sampled, so the two parts of the gap are diagnosed apart.
    **{("gpu_smol_stale_6", step): ["old weights", "precision"] for step in (6, 12, 18, 24)},
    ("smol_top_p", 15): ["top-p mass", "undecided"],  # the cut, and rounding besides
}


def test_every_recorded_run_has_an_expectation() -> None:
    assert set(EXPECTED) == set(runs.list_runs()) - {path.name for path in runs.LOCAL.glob("*/")}


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_runs(name: str) -> None:
    run = runs.ROOT / name
    for step in runs.list_steps(run):
        assert patterns(runs.read_step(run, step).batch) == AT_STEPS.get((name, step), [EXPECTED[name]]), step


# --- the numbers ---


def test_numbers_counted_with_numpy() -> None:
    z = small()
    batch = scored(draw(z), noisy(z, 0.5))
    (symptom,) = triage(batch)
    old, rollout = batch.tensors()["old_log_probs"].numpy(), batch.rollout_log_probs.numpy()
    d = (old.astype(float) - rollout).ravel()
    k3 = np.exp(d) - 1 - d
    assert symptom.numbers["abs_log_ratio"] == pytest.approx(np.abs(d).mean())
    assert symptom.numbers["k3"] == pytest.approx(k3.mean())
    assert symptom.numbers["mult_error"] == pytest.approx(np.exp(np.abs(d)).mean())
    assert symptom.numbers["mean_ratio"] == pytest.approx(np.exp(d).mean())
    assert symptom.numbers["mean_ratio_error"] == pytest.approx(np.exp(d).std(ddof=1) / math.sqrt(len(d)))
    assert symptom.numbers["share_above_one"] == pytest.approx((d > 0).mean())
    assert symptom.numbers["worst_share"] == pytest.approx(np.sort(k3)[-20:].sum() / k3.sum())
    # The logits of the drawn token and of the others differ by 0.5 each, the others' averaged away in part.
    assert 0.5 < symptom.numbers["logit_noise"] < 0.5 * math.sqrt(2)
    assert symptom.strength == pytest.approx(1 - 2.9e-3 / k3.mean())


def test_the_share_per_token_is_that_of_an_analysis_of_variance() -> None:
    z = small()
    offset = 0.3 * torch.randn(12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    batch = scored(draw(z), z + offset)
    (symptom,) = triage(batch)
    _, y, ids = logits(tokens_of(batch))
    assert ids is not None
    groups = [[v for v, i in zip(y.tolist(), ids.tolist(), strict=True) if i == token] for token in set(ids.tolist())]
    means = [sum(g) / len(g) for g in groups]
    grand = sum(y.tolist()) / len(y)
    between = sum(len(g) * (m - grand) ** 2 for g, m in zip(groups, means, strict=True))
    within = sum((v - m) ** 2 for g, m in zip(groups, means, strict=True) for v in g)
    error = within / (len(y) - len(groups))
    omega = (between - (len(groups) - 1) * error) / (between + within + error)
    assert symptom.numbers["share_per_token"] == symptom.strength == pytest.approx(omega)


def test_a_mean_below_one_that_few_tokens_make_is_no_cut() -> None:
    """One in fifty ratios is 20, the others 0.3: the mean of 0.69 is ten errors below 1 only because it is heavy."""
    d = torch.full((4000,), math.log(0.3)).double()
    d[::50] = math.log(20)
    rollout = torch.full((4000,), math.log(0.04)).double()
    assert top_p_mass(tokens_of(batch_of(rollout + d, rollout))) is None


def test_strengths_are_shares_and_fall() -> None:
    z = small()
    for batch in (scored(draw(z, temperature=0.7, top_p=0.9)), unfilled(draw(z, temperature=0.7))):
        strengths = [symptom.strength for symptom in triage(batch)]
        assert strengths == sorted(strengths, reverse=True)
        assert all(0 <= strength <= 1 for strength in strengths)


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_a_few_tokens_are_looked_at_too(tokens: int) -> None:
    rollout = torch.linspace(-3, -0.1, tokens)[None]
    batch = TokenBatch.from_log_probs(rollout * 0.999, rollout, torch.ones(1, tokens))
    assert patterns(batch) == ["precision"]


def test_what_is_missing_is_said() -> None:
    batch = scored(draw(small()))
    with pytest.raises(UsageError, match="needs old_log_probs"):
        triage(batch.replace(old_log_probs=None))
    with pytest.raises(UsageError, match="needs tokens"):
        triage(batch.replace(response_mask=torch.zeros_like(batch.response_mask)))


# --- three policies ---


def with_age(drawn: Drawn, sampling: torch.Tensor, age: float) -> TokenBatch:
    """Scored by sampling weights with these logits, and by newer weights whose logits differ by noise of this size."""
    newer = noisy(sampling, age)
    return scored(drawn, newer).replace(sampled_log_probs=scored(drawn, sampling).old_log_probs)


@EITHER
def test_old_weights_are_named_if_the_sampling_weights_were_scored(make) -> None:
    """k3 of the age's part is that of the whole gap up to rounding; without the third log-prob it is undecided."""
    z = make()
    batch = with_age(draw(z), rounded(z), 0.3)
    old, engine = triage(batch)
    assert (old.pattern, engine.pattern) == ("old weights", "precision")
    assert engine.sentence.startswith("The engine's part: Looks like precision: k3 is ")
    (whole,) = triage(batch.replace(sampled_log_probs=None))
    assert whole.pattern == "undecided"
    assert old.numbers["k3"] == whole.numbers["k3"]
    assert old.strength > 0.95


@EITHER
def test_a_fault_of_the_engine_is_found_below_the_age_of_the_weights(make) -> None:
    """The engine cuts at top-p 0.9, and the newer weights hide it in the whole gap."""
    z = make()
    batch = with_age(draw(z, top_p=0.9), z, 1.0)
    assert "top-p mass" in [symptom.pattern for symptom in triage(batch)]
    assert triage(batch)[0].pattern == "old weights"


def test_weights_of_the_same_age_leave_the_engine_alone() -> None:
    z = small()
    batch = scored(draw(z), rounded(z))
    same = batch.replace(sampled_log_probs=batch.old_log_probs)
    assert triage(same) == triage(batch)
