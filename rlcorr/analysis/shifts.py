"""Log-probs of one side that belong to a neighbouring token: in all answers, in some, or in a part of an answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.symptoms import Symptom, short, some_rows
from rlcorr.types import TokenBatch

LAGS = (1, -1, 2, -2, 3, -3)
"""Numbers of tokens by which one side may be moved: a template or a tool call loses one to three."""
FEWEST = 100
"""Smallest number of tokens for which a shift of the whole batch is tested."""
SUSPICIOUS = 0.1
"""Mean |Δ| of an answer from which on it is tested alone; rounding to bfloat16 makes 0.03 on small models."""
SHORTEST, TOGETHER = 8, 32
"""Tokens that a stretch of one answer must have, and all stretches together."""
AT_ONCE = 1 << 14
"""Places of the answers that are tested together: few enough for the processor's cache."""
LEFT = 0.25
"""Largest share of |Δ| that the move may leave in a stretch. Of 62,400 moves of unrelated rows with 10 to 100 tokens,
over vocabularies of 12 and 800, one leaves less (a row of 20), and no row of 40 or more leaves less than 0.48."""


@dataclass(frozen=True)
class _Moved:
    """What a move by `lag` does to the stretch of each answer that gains most, (B,) each."""

    lag: int
    start: Tensor  # first token of the stretch
    tokens: Tensor
    before: Tensor  # Σ|Δ| in the stretch
    after: Tensor  # the same after the move


def shift(batch: TokenBatch) -> Symptom | None:
    """Check whether p of a token agrees better with q of a token before or after it.

    Of a batch, one half of Σ|d| must disappear, over the tokens that have such a neighbour. Otherwise, of each answer
    the stretch of tokens counts that gains most, and a quarter of its |d| may remain. The strength is the share of
    Σ|d| that disappears.
    """
    old, rollout = batch.tensors()["old_log_probs"], batch.rollout_log_probs
    pairs = old, rollout, batch.response_mask & old.isfinite() & rollout.isfinite()
    sizes, counts = _by_few(lambda p, q, mask: _sums(p - q, mask), pairs)
    suspects = (sizes / counts.clamp(min=1) > SUSPICIOUS).nonzero()[:, 0]
    if not len(suspects):
        return None
    candidates = [_whole(pairs, lag) for lag in LAGS[:2]]
    if not any(candidates):
        some = [x[suspects] for x in pairs]
        lags = [lag for lag in LAGS if abs(lag) < old.shape[1]]
        parts = [_Moved(lag, *_by_few(lambda p, q, mask, n=lag: _moved(p, q, mask, n), some)) for lag in lags]
        candidates = [_of_some(part, suspects, len(old), float(sizes.sum()), sizes[suspects]) for part in parts]
    return max((one for one in candidates if one), key=lambda symptom: symptom.strength, default=None)


def _by_few(test: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]], pairs: Sequence[Tensor]) -> list[Tensor]:
    """Return what the test returns of all answers, a few at a time: of all at once it takes most of an import's memory.

    Args:
        test: gets log-probs (b, T) in float64 and the mask of their real tokens, and returns numbers per answer.
        pairs: log-probs and mask of all answers, (B, T) each.
    """
    few = zip(*(x.split(max(AT_ONCE // max(x.shape[1], 1), 1)) for x in pairs), strict=True)
    parts = [test(old.double(), rollout.double(), real) for old, rollout, real in few]
    return [torch.cat(x) for x in zip(*parts, strict=True)]


def _sums(d: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ|d| and the number of the real tokens of each answer."""
    return torch.where(real, d.abs(), 0).sum(-1), real.sum(-1)


def _whole(pairs: Sequence[Tensor], lag: int) -> Symptom | None:
    """Check a move of all tokens."""

    def both_sums(old: Tensor, rollout: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        here, there, both = _neighbours(old, rollout, real, lag)
        return *_sums(here, both), _sums(there, both)[0]

    before, count, after = (float(x.sum()) for x in _by_few(both_sums, pairs))
    if count < FEWEST or not after < before / 2:
        return None
    before, after = before / count, after / count
    sentence = f"Looks like a shift by one: π_old of a token matches π_rollout of the {_name(lag)} (mean |Δ| "
    sentence += f"{short(after)} instead of {short(before)})."
    return Symptom(
        "shift by one", sentence, {"abs_log_ratio": before, "abs_log_ratio_moved": after}, 1 - after / before
    )


def _neighbours(old: Tensor, rollout: Tensor, real: Tensor, lag: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return d, d after q is moved by `lag` tokens, and the tokens whose neighbour is real, (B, T − |lag|) each."""
    stay, move = slice(max(-lag, 0), -lag if lag > 0 else None), slice(max(lag, 0), lag if lag < 0 else None)
    return old[:, stay] - rollout[:, stay], old[:, stay] - rollout[:, move], real[:, stay] & real[:, move]


def _moved(old: Tensor, rollout: Tensor, real: Tensor, lag: int) -> tuple[Tensor, ...]:
    """Return the stretch of each answer whose |Δ| the move lowers most: the largest sum of consecutive gains.

    The four tensors are those of `_Moved`.
    """
    here, there, both = _neighbours(old, rollout, real, lag)
    here, there = (torch.where(both, d.abs(), 0) for d in (here, there))
    sums = torch.nn.functional.pad((here - there).cumsum(-1), (1, 0))  # (B, T − |lag| + 1)
    lowest, places_of_lowest = sums.cummin(-1)
    end = (sums - lowest).argmax(-1)
    start = places_of_lowest.gather(-1, end[:, None])[:, 0]
    places = torch.arange(here.shape[1])
    inside = (places >= start[:, None]) & (places < end[:, None])
    before, after = ((x * inside).sum(-1) for x in (here, there))
    return start + max(-lag, 0), (inside & both).sum(-1), before, after


def _of_some(part: _Moved, suspects: Tensor, answers: int, total: float, sizes: Tensor) -> Symptom | None:
    """Return the symptom of the answers whose stretch the move repairs; `sizes`, (B,), are Σ|d| of the suspects."""
    repaired = (part.tokens >= SHORTEST) & (part.after < LEFT * part.before) & (part.before > sizes / 4)
    count = int(part.tokens[repaired].sum())
    if count < TOGETHER:
        return None
    before, after = (float(x[repaired].sum()) / count for x in (part.before, part.after))
    by = {1: "one", 2: "two", 3: "three"}[abs(part.lag)]
    first = int(part.start[repaired][0])
    sentence = f"Looks like a shift by {by} in {some_rows(suspects[repaired], answers)}: π_old of a token matches "
    sentence += (
        f"π_rollout of the {_name(part.lag)} (mean |Δ| {short(after)} instead of {short(before)}), in the first "
    )
    sentence += f"of them from token {first} on. One side has lost or added tokens there, as after a tool call or a "
    sentence += "second tokenisation: score the ids that the engine returned."
    numbers = {"abs_log_ratio": before, "abs_log_ratio_moved": after, "rows": float(repaired.sum())}
    return Symptom("shift by one", sentence, numbers, float((part.before - part.after)[repaired].sum()) / total)


def _name(lag: int) -> str:
    if abs(lag) == 1:
        return "next token" if lag > 0 else "previous token"
    return f"token {abs(lag)} {'after' if lag > 0 else 'before'} it"
