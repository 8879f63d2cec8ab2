"""What lesson 15 asks for, and its patients. Do not read on before you have done exercise 3: the bugs are here."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlcorr import CorrectionConfig, CorrectionResult, RejectionRule, TokenBatch, correct
from rlcorr.objective import aggregate
from rlcorr.teaching.check import Exercise, Mistake

TREATMENT = CorrectionConfig(
    rollout_is="token",
    rollout_is_threshold=2.0,
    rollout_rs=(RejectionRule("sequence", "k1", upper=1.02, lower=0.98, reduce="mean"),),
)
"""Token ratios, capped at 2; answers whose geometric mean leaves 0.98 … 1.02 are rejected."""


@dataclass(frozen=True)
class Patient:
    """A recorded batch as a training loop sees it."""

    batch: TokenBatch
    result: CorrectionResult
    loss_of_ones: float
    """What the loop's average makes of a loss of 1 on every kept token."""


def treated(batch: TokenBatch, *, denominator: Any = "fixed") -> Patient:
    """The batch, corrected without a bug (with another denominator if one is named)."""
    result, mask = correct(batch, TREATMENT), batch.response_mask
    ones = torch.ones(mask.shape, dtype=torch.float64)
    return Patient(batch, result, float(aggregate(ones, result.keep_mask, mask, denominator=denominator)))


# --- one bug each ---


def _logit(log_p: Tensor) -> Tensor:
    c = log_p.double().clamp(-50.0, -1e-8)
    return c - (-torch.expm1(c)).log()


def _log_prob(logit: Tensor) -> Tensor:
    return -torch.nn.functional.softplus(-logit).float()


def _shift(batch: TokenBatch) -> Patient:
    """The engine's list starts with a placeholder, and nobody dropped it."""
    return treated(batch.replace(rollout_log_probs=batch.rollout_log_probs.roll(1, -1)))


def _upside_down(batch: TokenBatch) -> Patient:
    """engine − trainer instead of trainer − engine."""
    p, q = batch.tensors()["old_log_probs"], batch.rollout_log_probs
    return treated(batch.replace(old_log_probs=q, rollout_log_probs=p))


def _temperature(batch: TokenBatch) -> Patient:
    """Sampled and trained at a temperature of 0.7; the engine reports the log-prob before it. As if all other tokens
    were one, because the others were not recorded."""
    return treated(batch.replace(rollout_log_probs=_log_prob(0.7 * _logit(batch.rollout_log_probs))))


def _padding(batch: TokenBatch) -> Patient:
    """The mask of a batch that is not padded. Padding has log-prob 0 on both sides."""
    zeroed = {name: batch.tensors()[name].where(batch.response_mask, 0) for name in PAIR}
    return treated(batch.replace(**zeroed, response_mask=torch.ones_like(batch.response_mask)))


def _bf16(batch: TokenBatch) -> Patient:
    """Both log-probs came out of autocast, and were subtracted as they came."""
    return treated(batch.replace(**{name: batch.tensors()[name].bfloat16().float() for name in PAIR}))


def _mask_off(batch: TokenBatch) -> Patient:
    """The mask begins at the last token of the prompt, to which the trainer gives e⁻¹⁶ (as the warm start does, which
    never learned to write one) and the engine's list a 0; and it misses the last token of the answer."""
    p, q, ids = (batch.tensors()[name].roll(1, -1) for name in (*PAIR, "response_ids"))
    generator = torch.Generator().manual_seed(15)
    p[:, 0], q[:, 0] = -16 + 0.7 * torch.randn(len(p), generator=generator), 0.0
    ids[:, 0] = batch.tensors()["prompt_ids"][:, -1]
    return treated(batch.replace(old_log_probs=p, rollout_log_probs=q, response_ids=ids))


def _stale_head(batch: TokenBatch) -> Patient:
    """The engine's head is old: a constant per token id between the logits. Less what all ids share, because a softmax
    does not see it."""
    ids = batch.tensors()["response_ids"].long()
    moved = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(15))[ids]
    moved -= moved.exp()[batch.response_mask].mean().log()
    return treated(batch.replace(old_log_probs=_log_prob(_logit(batch.tensors()["old_log_probs"]) + moved)))


def _weights_twice(batch: TokenBatch) -> Patient:
    """The loss multiplies by the weights; so did whoever made the advantages."""
    patient = treated(batch)
    return replace(patient, result=replace(patient.result, weights=patient.result.weights.square()))


def _mask_twice(batch: TokenBatch) -> Patient:
    """Rejected tokens are set to 0, and the mean is then taken over what is kept."""
    return treated(batch, denominator="kept")


PAIR = ("old_log_probs", "rollout_log_probs")
PLANTS: dict[str, Callable[[TokenBatch], Patient]] = {
    "shift by one": _shift,
    "upside down": _upside_down,
    "wrong temperature": _temperature,
    "padding counted": _padding,
    "bf16 subtraction": _bf16,
    "mask off by one": _mask_off,
    "stale head": _stale_head,
    "weights twice": _weights_twice,
    "mask twice": _mask_twice,
}
_WARD = dict(zip("ABCDEFGHI", random.Random(15).sample(list(PLANTS), len(PLANTS)), strict=True))


def ward(batch: TokenBatch) -> dict[str, Patient]:
    """Patient A to patient I, each with one bug."""
    return {letter: PLANTS[bug](batch) for letter, bug in _WARD.items()}


def chart() -> dict[str, str]:
    """Letter → bug. The lesson looks here once, after exercise 3."""
    return dict(_WARD)


# --- what is asked for ---


def _z(d: Tensor, of: Callable[[list[float]], float] = lambda d: sum(d) / len(d)) -> float:
    values = d.tolist()
    mean = sum(values) / len(values)
    variance = sum((x - mean) ** 2 for x in values) / (len(values) - 1)
    return of(values) / (variance / len(values)) ** 0.5


def _random_d(seed: int, mean: float, count: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + 0.2 * torch.randn(count, dtype=torch.float64, generator=generator)


UPSIDE_DOWN = Exercise(
    expected=lambda d: _z(d) > 3,
    cases=(
        (torch.tensor([0.1, 0.2, 0.1, 0.2], dtype=torch.float64),),  # mean 0.15, error 0.029
        (torch.tensor([-0.1, -0.2, -0.1, -0.2], dtype=torch.float64),),
        (torch.tensor([0.4, -0.3, 0.3, -0.2], dtype=torch.float64),),  # above 0 by chance
        (_random_d(0, 0.05),),
        (_random_d(1, 0.005),),
        (_random_d(2, -0.05),),
        (torch.tensor([-0.1] * 200 + [1.5] * 8, dtype=torch.float64),),  # a few large ratios
    ),
    mistakes=(
        Mistake(lambda d: bool(d.mean() > 0), "Above 0 by how much? A mean has a standard error: ask for three of it."),
        Mistake(lambda d: _z(d) < -3, "The other way round: the mean of d is below 0 when everything is right."),
        Mistake(
            lambda d: bool((d.exp().mean() - 1) > 3 * d.exp().std() / len(d) ** 0.5),
            "That looks at the mean of r. A large ratio moves it far; ask for the mean of d.",
        ),
        Mistake(
            lambda d: bool(d.mean() > 3 * d.std()),
            "That is the spread of one token. The error of the mean is smaller by √N.",
        ),
        Mistake(lambda d: abs(_z(d)) > 3, "Both sides ring. Far below 0 is what a healthy gap looks like."),
    ),
    equivalents=(
        lambda d: bool(d.mean() * len(d) ** 0.5 > 3 * d.std()),
        lambda d: bool(d.mean() > 3 * d.std() / len(d) ** 0.5),
    ),
)


def _gaps(old: Tensor, rollout: Tensor, mask: Tensor, by: int, edge: bool = False) -> list[float]:
    """|p_t − q_{t+by}| of every token that has a next one (`edge`: also of the last)."""
    gaps = []
    for p, q, real in zip(old.tolist(), rollout.tolist(), mask.tolist(), strict=True):
        for t in range(len(p) - 1):
            if real[t] and real[t + 1]:
                gaps.append(abs(p[t] - q[t + by]))
        last = sum(real) - 1
        if edge and last >= 0:
            gaps.append(abs(p[last] - q[(last + by) % len(q)]))
    return gaps


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_P = torch.tensor([[-1.0, -3.0, -0.5, -9.0]], dtype=torch.float64)
_Q = torch.tensor([[-7.0, -1.0, -3.0, -0.5]], dtype=torch.float64)
_REAL = torch.ones(1, 4, dtype=torch.bool)


def _random_case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand(6, 9, dtype=torch.float64, generator=generator)
    rollout = old.roll(1, -1) + 0.05 * torch.randn(6, 9, dtype=torch.float64, generator=generator)
    mask = torch.arange(9) < torch.tensor([[9], [6], [4], [2], [8], [5]])
    return old.where(mask, torch.nan), rollout.where(mask, torch.nan), mask


MOVED = Exercise(
    expected=lambda old, rollout, mask: 1 - _mean(_gaps(old, rollout, mask, 1)) / _mean(_gaps(old, rollout, mask, 0)),
    cases=((_P, _Q, _REAL), (_P, _P - 0.1, _REAL), _random_case(0), _random_case(1)),
    mistakes=(
        Mistake(
            lambda old, rollout, mask: float(
                1 - (old - rollout.roll(-1, -1)).abs()[mask].mean() / (old - rollout).abs()[mask].mean()
            ),
            "The last token has no next one: `roll` gave it the first of the row, or padding.",
        ),
        Mistake(
            lambda old, rollout, mask: 1 - _mean(_gaps(rollout, old, mask, 1)) / _mean(_gaps(rollout, old, mask, 0)),
            "The other direction: compare p of a token with q of the token after it.",
        ),
        Mistake(
            lambda old, rollout, mask: _mean(_gaps(old, rollout, mask, 1)) / _mean(_gaps(old, rollout, mask, 0)),
            "That is the share that is left. The share that the move takes away is 1 minus it.",
        ),
        Mistake(
            lambda old, rollout, mask: _mean(_gaps(old, rollout, mask, 0)) - _mean(_gaps(old, rollout, mask, 1)),
            "Divide by the size before the move: a share does not depend on how large the gap is.",
        ),
    ),
    equivalents=(
        lambda old, rollout, mask: float(
            1
            - (old[:, :-1] - rollout[:, 1:]).abs()[mask[:, 1:]].sum()
            / (old[:, :-1] - rollout[:, :-1]).abs()[mask[:, 1:]].sum()
        ),
    ),
)


def _rights(named: Any) -> Any:
    """Letter → whether its bug is named. So a wrong answer is told which letter is wrong, not what it has."""
    if not isinstance(named, dict):
        return named
    return {letter: named.get(letter) == bug for letter, bug in _WARD.items()}


def _exchanged(first: str, second: str) -> dict[str, str]:
    other = {first: second, second: first}
    return {letter: other.get(bug, bug) for letter, bug in _WARD.items()}


DIAGNOSES = Exercise(
    expected=lambda: dict(_WARD),
    cases=((),),
    part=_rights,
    mistakes=(
        Mistake(
            lambda: _exchanged("wrong temperature", "stale head"),
            "Both bend the logits. A temperature does it more, the surer a token is; a stale head by token id.",
        ),
        Mistake(
            lambda: _exchanged("padding counted", "mask off by one"),
            "Counted padding adds tokens that are not there. A mask that is off by one keeps their number.",
        ),
        Mistake(
            lambda: _exchanged("weights twice", "mask twice"),
            "Squared weights go beyond the cap. A second mask leaves the weights alone and changes the scale.",
        ),
        Mistake(
            lambda: _exchanged("shift by one", "upside down"),
            "A shift compares neighbours. Upside down compares the right tokens, and turns the sign of every d.",
        ),
    ),
    equivalents=(lambda: {letter: _WARD[letter] for letter in "IHGFEDCBA"},),
)
