"""What to set: for prepared dumps, the sentence names the gap, the effect of the system's default, and one setting."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from app_runs import last_batch

from rlcorr import PRESETS, TokenBatch
from rlcorr.analysis.advice import Advice, Option, advise, options
from rlcorr.analysis.budget import choose_bound, kept, pooled
from rlcorr.analysis.verdicts import look
from rlcorr.bounds import BAND
from rlcorr.systems.export import SYSTEMS, can_express


def batch(d: np.ndarray, *, seed: int = 0) -> TokenBatch:
    """Return a batch with these log-ratios; the engine's log-probs are between −4.2 and −0.2."""
    rollout = -(np.random.default_rng(100 + seed).random(d.shape) ** 3) * 4 - 0.2
    old, engine = (torch.tensor(x, dtype=torch.float32) for x in (rollout + d, rollout))
    return TokenBatch.from_log_probs(old, engine, torch.ones(d.shape))


def noise(size: float, width: int = 200, seed: int = 0) -> TokenBatch:
    return batch(size * np.random.default_rng(seed).standard_normal((40, width)), seed=seed)


def moved() -> TokenBatch:
    """Return a batch whose trainer's log-probs are those of the token before."""
    whole = noise(0.01)
    return whole.replace(old_log_probs=whole.tensors()["old_log_probs"].roll(1, 1))


def marked() -> TokenBatch:
    whole = noise(0.01)
    rollout = whole.rollout_log_probs.clone()
    rollout[:, 7] = -9999.0
    return whole.replace(rollout_log_probs=rollout)


def decimal() -> TokenBatch:
    whole = noise(0.001)
    return whole.replace(rollout_log_probs=whole.rollout_log_probs / np.log(10))


def one_token() -> TokenBatch:
    whole = noise(0.02)
    rollout = whole.rollout_log_probs.clone()
    rollout[3, 5] = -39.9
    return whole.replace(rollout_log_probs=rollout)


FINE, MEND = (
    "default, no correction, is fine. As a safeguard, cap each token's weight at ",
    "Set nothing: mend this first",
)
CAP_2, CAP_3 = "Set this: cap each token's weight at 2 (", "Set this: cap each token's weight at 3 ("
LARGER, BF16 = (
    "Your gap is larger than bfloat16 rounding (k3 ",
    "Your gap looks like ordinary rounding to bfloat16 (k3 ",
)
RUNS = {name: [last_batch(name)] for name in (
    "smol_bf16_both", "bf16", "control_fp32", "smol_kv_fp8_e5m2", "smol_weights_fp8", "smol_weights_int8", "stale_4",
    "gpu_smol_stale_6", "stale_head", "smol_top_p",
)}  # fmt: skip
DUMPS: dict[str, tuple[list[TokenBatch], str, str, str]] = {
    "healthy bf16": (RUNS["smol_bf16_both"], "verl", BF16, f"verl's {FINE}2"),
    "healthy, SkyRL": (RUNS["smol_bf16_both"], "SkyRL", BF16, f"SkyRL's {FINE}2"),
    "healthy, short answers, TRL": (RUNS["smol_bf16_both"], "TRL", BF16, "touches none of your tokens and is fine."),
    "healthy, long answers, TRL": ([noise(0.03, 1500)], "TRL", BF16, CAP_3),
    "healthy, two steps": ([noise(0.02), noise(0.03, seed=1)], "slime", BF16, f"slime's {FINE}2"),
    "16 bits": (RUNS["bf16"], "AReaL", "Your gap looks like ordinary rounding to ", f"AReaL's {FINE}5"),
    "float32": (RUNS["control_fp32"], "verl", "Your two sides agree up to", f"verl's {FINE}2"),
    "fp8 cache": (RUNS["smol_kv_fp8_e5m2"], "verl", LARGER, f"changes nothing. {CAP_2}clips 0.79 % of your tokens)"),
    "fp8 cache, TRL": (RUNS["smol_kv_fp8_e5m2"], "TRL", LARGER, CAP_3),
    "fp8 weights": (RUNS["smol_weights_fp8"], "slime", LARGER, CAP_2),
    "int8 weights": (RUNS["smol_weights_int8"], "NeMo RL", LARGER, CAP_2),
    "the default is a cap": (
        RUNS["smol_weights_int8"],
        "open-instruct",
        LARGER,
        "is right: cap each token's weight at 2",
    ),
    "stale": (RUNS["stale_4"], "verl", LARGER, CAP_2),
    "stale, with its parts": (RUNS["gpu_smol_stale_6"], "verl", "Your gap is mostly old weights: ", CAP_2),
    "stale head": (RUNS["stale_head"], "verl", "The output head of one side may be old", CAP_2),
    "top-p": (
        RUNS["smol_top_p"],
        "verl",
        "It looks as if your engine samples with top-p",
        "Set this: top_p 1 and top_k",
    ),
    "bypass mode": (
        [noise(0.0)],
        "verl",
        "Identical: both sides have the same 8,000 log-probs",
        "no other setting would",
    ),
    "shift": ([moved()], "verl", "Looks like a shift by one", MEND),
    "padding": ([marked()], "TRL", "Looks like padding", MEND),
    "base 10": ([decimal()], "verl", "Logarithms of two bases", MEND),
    "a fault in one step": ([noise(0.02), moved(), noise(0.02)], "verl", "Step 1: Looks like a shift by one", MEND),
    "one token": ([one_token()], "verl", "One token makes 100 % of k3. Without it: your gap looks like ordinary", FINE),
    "nothing to set": (
        RUNS["stale_4"],
        "torchtitan",
        LARGER,
        "No setting of torchtitan fits, so find the cause first.",
    ),
}


def advice_of(batches: Sequence[TokenBatch], system: str) -> Advice:
    return advise([look(step, one) for step, one in enumerate(batches)], batches[-1], system)


@pytest.mark.parametrize("name", DUMPS)
def test_the_sentence_names_the_gap_the_default_and_one_setting(name: str) -> None:
    batches, system, cause, setting = DUMPS[name]
    advice = advice_of(batches, system)
    assert advice.sentence.startswith(cause)
    assert f"{system}'s default" in advice.sentence
    assert setting in advice.sentence
    assert (advice.take is None) == (setting in (MEND, "no other setting would"))
    if advice.take is not None:
        assert can_express(system, advice.take.config, advice.take.loss) or advice.take.is_default
    for row in advice.options:
        assert not row.promise


def test_bypass_mode_gets_a_way_on() -> None:
    reason = advice_of([noise(0.0)], "verl").reason
    assert "In bypass mode this is so by design" in reason
    assert "bypass_mode: false" in reason


def test_the_numbers_are_counted_on_the_last_step() -> None:
    """Count TRL's default: an answer whose product of ratios is above 3 gets weight 0."""
    first, last = noise(0.001, 1500), noise(0.03, 1500, seed=1)
    d = 0.03 * np.random.default_rng(1).standard_normal((40, 1500))
    share = (np.exp(d.astype(np.float32).sum(1)) > 3).mean()
    assert 0.05 < share < 0.5
    advice = advice_of([first, last], "TRL")
    assert f"TRL's default zeroes {100 * share:.2g} % of your tokens." in advice.sentence
    assert "A product over an answer" in advice.reason
    assert (advice.step, advice.k3) == (1, pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-3))


def test_the_mildest_setting_of_every_system_is_bad_by_no_number() -> None:
    for system in SYSTEMS:
        advice = advice_of([last_batch("stale_4")], system)
        taken = advice.take
        assert taken is not None
        assert not taken.acts or (taken.effect == kept(last_batch("stale_4"), taken.config) and taken.is_advised), (
            system
        )


def test_no_correction_is_an_option_wherever_it_can_be_written() -> None:
    for system in SYSTEMS:
        rows = options(last_batch("bf16"), system)
        assert rows[0].is_default
        assert len({row.key for row in rows}) == len(rows)
        if can_express(system, PRESETS["disabled"].config, None):
            assert any(not row.acts for row in rows), system


@pytest.mark.parametrize("share", [0.8, 0.95, 0.99, 0.999])
def test_no_row_keeps_less_than_promised_unmarked(share: float) -> None:
    """The last of three steps has a larger gap, or the same one. A promise that is not kept is said, with its size."""
    for last in (0.03, 0.02):
        chosen_on = pooled([noise(0.02), noise(0.022, seed=1)])
        unseen = noise(last, seed=2)
        for name in ("decoupled_token_icepop", "decoupled_geo_rs", "decoupled_k3_rs"):
            _, config = choose_bound(chosen_on, PRESETS[name].config, share, BAND)
            option = Option(config, None, name, kept(unseen, config), promise=share, step=2)
            points = 100 * (share - option.effect.unchanged)  # pyright: ignore[reportAttributeAccessIssue]
            assert bool(option.shortfall) == (points >= 0.005)
            if points > 1:
                assert option.is_missed
                assert option.shortfall == f"missed by {points:.2g} points on step 2: it does not carry over"
                assert not option.is_advised
