"""Check the capstone: six recordings, their causes, a correction for each, and the share that it will keep.

The files are in lessons/capstone/: two steps of each recording to look at, and one that only the checks use. The right
answers are encoded in answers.txt, so that nobody reads them by accident.
"""

import base64
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from study_ends import contrasts
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.budget import keep_at_least
from rlcorr.analysis.log_prob_pairs import logits, median_slope, tokens_of
from rlcorr.analysis.published import rounding
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.ratios import k3, ratio
from rlcorr.records.step_files import to_step
from rlcorr.records.study import Endpoint
from rlcorr.teaching.check import RIGHT, Exercise

FOLDER = Path(__file__).resolve().parent.parent / "capstone"
NAMES = ("one", "two", "three", "four", "five", "six")
CAUSES = (
    "rounding", "coarse format", "old weights", "cut", "temperature", "shift by one", "padding", "stale head",
)  # fmt: skip
TO_REPAIR = ("cut", "temperature", "shift by one", "padding", "stale head")
"""Causes that one repairs instead of correcting for them."""
HELD_OUT = 3
TOLERANCE = 0.02
"""How far the expected share may be from the share of the held-out step."""
MOSTLY = 0.98
"""A rule that keeps more than this share is an alarm for outliers, which nothing speaks against."""


def load(name: str, step: int) -> TokenBatch:
    """Return a recorded step, 1 or 2, of one of the six; log-probs in float64."""
    batch = to_step(FOLDER / f"{name}_{step}.parquet", step).batch
    return batch.replace(**{key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")})


def gaps(name: str, steps: tuple[int, ...] = (1, 2)) -> Tensor:
    """Return d of every token of these steps, (N,)."""
    batches = [load(name, step) for step in steps]
    return torch.cat([(b.tensors()["old_log_probs"] - b.rollout_log_probs)[b.response_mask] for b in batches])


def opened() -> dict[str, str]:
    """Return the cause of each recording. Do not call it before you have an answer of your own."""
    return json.loads(zlib.decompress(base64.b85decode((FOLDER / "answers.txt").read_text(encoding="ascii").strip())))


# --- what an update by reward does to d ---


def _moved(d: Tensor, advantages: Tensor, mask: Tensor) -> tuple[float, float]:
    values = []
    for row in range(len(d)):
        total = sum(float(d[row, t]) for t in range(d.shape[1]) if mask[row, t])
        values.append(float(advantages[row]) * total)
    mean = sum(values) / len(values)
    variance = sum((x - mean) ** 2 for x in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _of_values(values: Tensor, correction: int = 1) -> tuple[Tensor, Tensor]:
    return values.mean(), values.std(correction=correction) / len(values) ** 0.5


def _updated(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    d = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    mask = torch.arange(5) < torch.tensor([[5], [2], [4], [1], [5], [3], [2]])
    return d.where(mask, math.nan), torch.randn(7, dtype=torch.float64, generator=generator), mask


MOVED = Exercise(
    expected=_moved,
    cases=(
        (
            torch.tensor([[0.5, 0.25], [-0.5, math.nan], [0.25, 0.25]], dtype=torch.float64),
            torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64),
            torch.tensor([[True, True], [True, False], [True, True]]),
        ),
        _updated(0),
        _updated(1),
    ),
    mistakes=(
        (lambda d, a, mask: _of_values((d * a[:, None])[mask]),
         "You averaged over tokens. The tokens of an answer are not independent: sum over each answer first."),
        (lambda d, a, mask: _of_values(a * d.where(mask, 0).sum(1) / mask.sum(1)),
         "You took the mean of d over an answer. The log-ratio of an answer is the sum."),
        (lambda d, a, mask: _of_values(d.where(mask, 0).sum(1)),
         "The advantage is missing: without it the mean only says whether the trainer likes these answers less."),
        (lambda d, a, mask: (_of_values(a * d.where(mask, 0).sum(1))[0], (a * d.where(mask, 0).sum(1)).std()),
         "That is the spread of one answer. The standard error of the mean is smaller by √B."),
        (lambda d, a, mask: _of_values(a * d.where(mask, 0).sum(1), correction=0),
         "Your standard deviation divides by N. For a sample it divides by N − 1, as torch's `std` does by default."),
    ),
)  # fmt: skip

# --- the causes ---


def _zeros(name: str) -> int:
    """Return on how many tokens both log-probs are exactly 0, as they are on padding."""
    batches = (load(name, 1), load(name, 2))
    both = [(b.rollout_log_probs == 0) & (b.tensors()["old_log_probs"] == 0) & b.response_mask for b in batches]
    return sum(int(x.sum()) for x in both)


def _shift_gain(name: str) -> tuple[float, float]:
    """Return the mean |d| as it is, and the smaller one of the two after a shift by one token."""
    plain, moved = [], []
    for step in (1, 2):
        batch = load(name, step)
        p, q, mask = batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask
        both = mask[:, 1:] & mask[:, :-1]
        plain.append((p - q)[:, 1:][both].abs())
        moved.append(torch.stack([(p[:, 1:] - q[:, :-1])[both].abs(), (p[:, :-1] - q[:, 1:])[both].abs()]))
    return float(torch.cat(plain).mean()), float(torch.cat(moved, 1).mean(1).min())


def _slope(name: str) -> float:
    slopes = [median_slope(*logits(tokens_of(load(name, step)))[:2]) for step in (1, 2)]
    return sum(slopes) / len(slopes)


def _learned(name: str) -> tuple[float, float]:
    """Return the mean of A · Σd over the answers of both steps, and its standard error."""
    values = []
    for step in (1, 2):
        batch = load(name, step)
        d = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs).where(batch.response_mask, 0)
        values.append(batch.tensors()["advantages"][:, 0].double() * d.sum(1))
    mean, error = _of_values(torch.cat(values))
    return float(mean), float(error)


def _against(claim: str, name: str) -> str:
    """Return a measured reason against a claim about a recording. It is true whatever the cause is."""
    d = gaps(name)
    r = ratio(d)
    mean, error, size = float(r.mean()), float(r.std()) / len(r) ** 0.5, float(k3(d).mean())
    plain, moved = _shift_gain(name)
    if claim == "shift by one":
        return (
            f"shifting one list by a token changes the mean |d| from {plain:.3f} to {moved:.3f}; it must become small."
        )
    if claim == "padding":
        return f"on padding both log-probs are exactly 0; here they are on {_zeros(name)} of {len(d):,} tokens."
    if claim == "stale head":
        return "does the token id explain two fifths of the variance of the gaps in log-odds? Test it."
    if claim == "cut":
        return f"a cut makes nearly all ratios at most 1; here {float((r > 1.02).double().mean()):.0%} are above 1.02."
    if claim == "temperature":
        return f"the slope of the gaps in log-odds over the engine's is {_slope(name):.2f}; compare it with lesson 13."
    if claim in ("rounding", "coarse format") and abs(mean - 1) > 4 * error:
        return f"rounding keeps the mean ratio at 1, and here it is {mean:.3f} ± {error:.3f}."
    if claim == "rounding":
        return (
            f"rounding to 16 bits has left a k3 of at most {rounding('bfloat16')[1]:.4f} so far; here it is {size:.4f}."
        )
    gain, noise = _learned(name)
    if claim == "old weights":
        return f"an update by reward leaves a positive mean of A·Σd; here it is {gain:.3f} ± {noise:.3f}."
    return f"k3 is {size:.4f}, and the mean of A·Σd is {gain:.3f} ± {noise:.3f}; which causes leave both?"


def graded(answer: dict[str, str]) -> dict[str, str]:
    """Return "right" for every right cause, and a reason against every other one."""
    return {name: _grade(name, answer.get(name)) for name in NAMES}


def _grade(name: str, claim: str | None) -> str:
    if claim not in CAUSES:
        return f"{claim!r} is no cause of the list: {', '.join(CAUSES)}"
    return RIGHT if opened()[name] == claim else f"not {claim}: {_against(claim, name)}"


def _all(cause: str) -> Callable[[], dict[str, str]]:
    return lambda: dict.fromkeys(NAMES, cause)


DIAGNOSES = Exercise(
    expected=opened,
    cases=((),),
    mistakes=(
        (_all("rounding"),
         "You call all six healthy. At least look at the mean ratio and at k3 of each."),
        (_all("old weights"),
         "You give old weights as the cause of all six. Only one of them has learned."),
        (_all("temperature"),
         "You give the temperature as the cause of all six. The causes are all different."),
    ),
    part=graded,
)  # fmt: skip

# --- a correction for each, and the share that it will keep ---

Plan = dict[str, tuple[CorrectionConfig | None, float | None]]
CAP = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
ACCURACY = Endpoint(steps=0, margin=0.05)
"""The greedy accuracy of the last weights."""


def graded_plan(plan: Plan) -> dict[str, str]:
    """Return "right" or a reason for every recording; shares are measured on the held-out step."""
    return {name: _grade_plan(name, *plan.get(name, (None, None))) for name in NAMES}


def _grade_plan(name: str, config: CorrectionConfig | None, share: float | None) -> str:
    if opened()[name] in TO_REPAIR:
        hidden = "its cause can be repaired. A correction would hide it and train on what is left: return (None, None)."
        return RIGHT if config is None else hidden
    if config is None or share is None:
        return "nothing can be repaired before the next step. To correct nothing is CorrectionConfig(), which keeps 1."
    batch = held_out(name)
    kept, largest = kept_share(batch, config), float(correct(batch, config).weights.max())
    if opened()[name] == "old weights" and config.rollout_is is None:
        return (
            "the ratios are not used. In the planned study of old weights a cap of 2 on the token weights changed the "
            f"accuracy by {_measured('smol_last_weights', 'token_cap')} (lesson 04)."
        )
    if config.rollout_is is not None and (largest > 10 or config.rollout_is_threshold == math.inf):
        return f"the largest weight here is {largest:.1f}, and no cap limits that of the next step."
    if kept < MOSTLY:
        return (
            f"it rejects {1 - kept:.0%} of the tokens. No rejection rule was better than none on the real model: with "
            f"old weights, a band that keeps 95 % changed the accuracy by {_measured('smol_stale_6', 'geometric_95')}."
        )
    if abs(kept - share) > TOLERANCE:
        return f"you expect {share:.2f}; on the held-out step it keeps {kept:.2f}."
    return RIGHT


def _measured(study: str, arm: str) -> str:
    """Return what an arm of a study of the real model gains over no correction, in the accuracy of the last weights."""
    gain = contrasts(study, ACCURACY)[arm, "none"].difference
    return f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]"


def kept_share(batch: TokenBatch, config: CorrectionConfig) -> float:
    """Return the share of the tokens that a correction keeps."""
    return float(correct(batch, config).keep_mask.sum() / batch.response_mask.sum())


def held_out(name: str) -> TokenBatch:
    """Return the step that nobody looks at before grading."""
    return to_step(FOLDER / "held_out" / f"{name}.parquet", HELD_OUT).batch


def sound_plan() -> Plan:
    """Return the plan of lessons 04 and 08: a cap against old weights, nothing against rounding in any format."""
    plans: dict[str, tuple[CorrectionConfig | None, float | None]] = dict.fromkeys(CAUSES, (CorrectionConfig(), 1.0))
    plans |= dict.fromkeys(TO_REPAIR, (None, None)) | {"old weights": (CAP, 1.0)}
    return {name: plans[cause] for name, cause in opened().items()}


def rejecting_plan() -> Plan:
    """Return a plan that rejects a tenth of the tokens of the shown steps, and knows how many it will keep."""
    loose = replace(CAP, rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=2.0),))
    plan = dict(sound_plan())
    for name in (name for name, (config, _) in plan.items() if config):
        bounds = [keep_at_least(load(name, step), loose, 0.9, BoundId(0)) for step in (1, 2)]
        config = at_threshold(loose, max(bounds), BoundId(0))
        plan[name] = (config, sum(kept_share(load(name, step), config) for step in (1, 2)) / 2)
    return plan


STRICT = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001),))
UNCAPPED = CorrectionConfig(
    rollout_is="token",
    rollout_is_threshold=math.inf,
    rollout_rs=(RejectionRule.named("token_k1", lower=1e-9, upper=1e9),),
)

PLANS = Exercise(
    expected=sound_plan,
    cases=((),),
    mistakes=(
        (lambda: dict.fromkeys(NAMES, (None, None)),
         "You stop all six. Three of them have nothing that could be repaired before the next step."),
        (lambda: dict.fromkeys(NAMES, (STRICT, 1.0)),
         "You take bounds of ±0.1 % on the geometric mean for all six. They were made for answers of thousands of "
         "tokens; these have about twenty."),
        (lambda: dict.fromkeys(NAMES, (UNCAPPED, 1.0)),
         "You take weights without a cap and rules without a bound for all six: nothing limits what a token can do."),
        (rejecting_plan,
         "You treat the causes rightly, and then reject a tenth of the tokens, for which there is no evidence."),
    ),
    part=graded_plan,
)  # fmt: skip
