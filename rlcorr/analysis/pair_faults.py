"""Faults of the pairs themselves, which no correction mends: values that are no log-probs, padding, shifts and bases.

Each test returns a symptom, whose sentence is in `symptoms.SIGNS`, or None. (N,) are the tokens of a batch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers, select_tokens
from rlcorr.analysis.symptoms import SIGNS, Symptom, percent, short, some_rows
from rlcorr.types import TokenBatch

LEFT = 0.25
"""Largest share of Σ|d| of an answer that a move or another base may leave. Moves of unrelated rows of 40 tokens leave
at least 0.48."""
IMPOSSIBLE, FEWEST_FILLED = -50.0, 3
"""A log-prob that no sampler draws, e^−50 is 2e-22; and the number of tokens that must have such a value, equal in all
bits, before it is reported as a fill value."""
LOG_HALF, UNFILLED = -0.6931, 0.03
"""Share of the zeros of one side that must be below what a cut explains, see `unfilled`. It counts only zeros to which
the other side gives a probability below one half. Zeros of cuts have at most 0.016, unfilled tokens at least 0.097."""
RUN, RUN_SHARE = 2, 0.01
"""Tokens of a run of one constant at an end of an answer from which on it may be padding, and the smallest share of the
tokens that is reported; less changes no number that anyone reads."""
FILLED_UP = 0.4
"""Share of the answers between others of their length that must have a run. In micro-batches of two it is one half; in
a recorded run of which many answers end in tokens of probability 1, it is 0.13."""
ALL, UNEQUAL = 0.9, 8
"""Share of the answers with a run, and the difference between the longest and the shortest run, if all answers of the
batch are equally long and none is without a run."""
MOVED = 32
"""Smallest number of tokens behind zeros, or in all stretches of answers, that must agree after a move."""
LAGS = (1, -1, 2, -2, 3, -3)
"""Numbers of tokens by which one side may be moved: a template or a tool call loses one to three."""
SHIFTED, SHORTEST = 100, 8
"""Tokens from which on a shift of the whole batch is tested, and that a stretch of one answer must have."""
AT_ONCE = 1 << 14
"""Places of the answers that are tested together: few enough for the processor's cache."""
SUSPICIOUS = 0.1
"""Mean |Δ| of an answer from which on it is tested alone; rounding to bfloat16 makes 0.03 on small models."""
LN10, LN2 = math.log(10), math.log(2)
_DECIMAL, _BITS = "are in base 10: multiply them by 2.3026, which is ln 10", "multiply them by 0.6931, which is ln 2"
BASES = {
    LN10: f"the engine's log-probs {_DECIMAL}",
    LN2: f"the engine's log-probs are in base 2, that is in bits: {_BITS}",
    1 / LN10: f"the trainer's log-probs {_DECIMAL}",
    1 / LN2: f"the trainer's log-probs are in base 2, that is in bits: {_BITS}",
    LN10 / LN2: "the engine's log-probs are in base 10 (multiply them by 2.3026), the trainer's in base 2 (by 0.6931)",
    LN2 / LN10: "the engine's log-probs are in base 2 (multiply them by 0.6931), the trainer's in base 10 (by 2.3026)",
}
"""p/q if both sides mean the same probabilities → what to do. The natural logarithm is used everywhere here."""
NEAR, SPREAD = 0.02, 0.4
"""Largest relative distance of the median of p/q from one of them, and of four fifths of all p/q."""
OF_ANOTHER_BASE, IN_ANSWER = 20, 4
"""Smallest number of tokens, in all answers of another base together and in one of them."""


def strongest(symptoms: Iterable[Symptom | None]) -> Symptom | None:
    """Return the strongest symptom; None if there is none."""
    return max((one for one in symptoms if one), key=lambda symptom: symptom.strength, default=None)


# --- values that are no log-probs ---


def marked(tokens: Tokens, finite: Tensor) -> tuple[list[Symptom], Tensor]:
    """Return the fill values of the tokens, such as −9999, and a mask of the finite tokens without one, (N,).

    The strength is the share of Σ|d| on tokens with a fill value, or the share of these tokens if that is larger. The
    second is larger if both sides have the fill value, because then d = 0.
    """
    symptoms, real, size = [], finite, (tokens.old - tokens.rollout).abs()
    total = max(float(size[finite].sum()), 1e-300)
    for side, columns in {
        "both": (tokens.old, tokens.rollout), "engine": (tokens.rollout,), "trainer": (tokens.old,)
    }.items():  # fmt: skip
        value = _fill_value(columns[0][real])
        filled = real & torch.stack([column == value for column in columns]).all(0) if value is not None else ~real
        count = int(filled.sum())
        if value is None or count < FEWEST_FILLED:
            continue
        share = count / len(filled)
        sign = SIGNS["fill value of both" if side == "both" else "fill value"]
        words = {"side": side, "value": f"{value:g}".replace("-", "−", 1), "count": count, "share": percent(share)}
        numbers = {"tokens": count, "share_of_tokens": share, "value": value}
        symptoms.append(sign.symptom(max(float(size[filled].sum()) / total, share), numbers, **words))
        real = real & ~filled
    return symptoms, real


def _fill_value(log_probs: Tensor) -> float | None:
    """Return the value that means "none" among log-probs, (N,), such as −9999, −100 or −1e30; None if there is none.

    At least `FEWEST_FILLED` tokens have exactly this value, and at least half of the values at or below `IMPOSSIBLE`
    are equal to it. Log-probs of policies that are far apart are also that low, but spread out.
    """
    low = log_probs[log_probs <= IMPOSSIBLE]
    if len(low) < FEWEST_FILLED:
        return None
    values, counts = low.unique(return_counts=True)
    most = int(counts.argmax())
    return float(values[most]) if int(counts[most]) >= max(FEWEST_FILLED, len(low) / 2) else None


# --- padding ---


def constant_runs(tokens: Tokens, real: Tensor) -> tuple[list[Symptom], Tensor]:
    """Check whether answers begin or end with one constant, such as 0, on both sides: padding that only a mask shows.

    A policy that is certain of a token has log-prob 0 on both sides, too. So the runs must fill up the answers to the
    length of the longest one next to them, see `_filled_up`. The strength is the share of the tokens.

    Returns:
        The symptom, if there is one, and a mask (N,) of the `real` tokens, (N,), without such padding.
    """
    answer, width, place = tokens.answer, tokens.widths, tokens.place
    same = real & (tokens.old == tokens.rollout)
    twice = same[1:] & same[:-1] & (tokens.old[1:] == tokens.old[:-1]) & (answer[1:] == answer[:-1])
    if not bool(twice.any()):
        return [], real
    constant = tokens.old[1:][twice].mode().values
    hit, padded = same & (tokens.old == constant), torch.zeros_like(same)
    for places in (place, width[answer] - 1 - place):  # counted from the beginning, and from the end
        # The run ends at the first place that has another value.
        length = width.scatter_reduce(0, answer[~hit], places[~hit], "amin")
        padded |= _filled_up(length, width)[answer] & (places < length[answer])
    count = int(padded.sum())
    share = count / len(answer)
    if share < RUN_SHARE:
        return [], real
    value = f"{float(constant):g}".replace("-", "−")
    rows = some_rows(tokens.rows[answer[padded].unique()], len(width))
    numbers = {"tokens": float(count), "share_of_tokens": share, "value": float(constant)}
    words = {"value": value, "count": count, "share": percent(share), "rows": rows}
    symptom = SIGNS["constant run"].symptom(share, numbers, **words)
    return [replace(symptom, places=tokens.where(padded))], real & ~padded


def _filled_up(length: Tensor, width: Tensor) -> Tensor:
    """Return the answers whose run fills them up to the length of the answers before or after them, (A,).

    Both numbers of tokens are of each answer, (A,): of the run at one end, and of the answer with the run.
    """
    block = pad((width[1:] != width[:-1]).long(), (1, 0)).cumsum(0)  # answers of one length
    shortest = length.clone().scatter_reduce(0, block, length, "amin", include_self=False)[block]
    runs = length >= RUN
    if not bool(block.any()) and float(runs.double().mean()) >= ALL and int(length.max() - length.min()) >= UNEQUAL:
        return runs
    candidates = (torch.bincount(block)[block] > 1) & (shortest < RUN)
    filled = runs & candidates
    count = int(filled.sum())
    enough = count >= 3 and count >= FILLED_UP * int(candidates.sum()) and 2 * count >= int(runs.sum())
    return filled if enough else torch.zeros_like(filled)


def padding(tokens: Tokens) -> Symptom | None:
    """Check whether zeros of one side were never filled in, see `unfilled`.

    The strength is their share of Σ|d|. Below 1 % nothing is reported.
    """
    d = (tokens.old - tokens.rollout).abs()
    symptoms = []
    for name, side, other in (("engine", tokens.rollout, tokens.old), ("trainer", tokens.old, tokens.rollout)):
        zeros = unfilled(side, other)
        count, strength = int(zeros.sum()), float(d[zeros].sum() / d.sum())
        if strength < 0.01:
            continue
        share = count / len(zeros)
        sign = SIGNS["all unfilled" if bool((side == 0).all()) else "unfilled"]
        words = {"side": name, "count": count, "share": percent(share), "total": len(zeros)}
        symptoms.append(sign.symptom(strength, {"tokens": count, "share_of_tokens": share}, **words))
    return strongest(symptoms)


def unfilled(side: Tensor, other: Tensor) -> Tensor:
    """Return the tokens, (N,), with a 0 on one side that was never filled in. If a cut explains the zeros, return none.

    With top-p a token that is alone in its nucleus has log-prob 0 in the engine, and π_old = S, the probability mass
    that was kept. The other tokens show the same S: their log-ratio is log S. So a zero is unfilled if the other side
    is below one half times the first percentile of the ratios of the other tokens. If only a few zeros are that low, a
    cut made all of them.
    """
    zeros, below_half = side == 0, other < LOG_HALF
    others = (other - side)[~zeros & (other != 0)]
    hundredth = -(-len(others) // 100)  # torch.quantile takes at most 16 million numbers
    lowest = min(float(others.kthvalue(hundredth).values), 0.0) if hundredth else 0.0
    below = int((zeros & (other < LOG_HALF + lowest)).sum())
    enough = below >= max(FEWEST_FILLED, UNFILLED * int((zeros & below_half).sum()))
    return zeros & below_half if enough else torch.zeros_like(zeros)


def opposite_sides(tokens: Tokens) -> Symptom | None:
    """Check whether answers of one side begin or end with zeros, and agree with the other if moved by their number.

    The number of zeros is the length of the padding, so it differs between answers. The strength is the share of Σ|Δ|
    of the batch that the move removes: rows with one to three zeros look like a `shift`, which removes less of it.
    """
    is_zero = (tokens.rollout == 0) | (tokens.old == 0)
    if not bool(is_zero.any()):
        return None
    answers, total_size = tokens.answer, float((tokens.old - tokens.rollout).abs().sum())
    part = select_tokens(tokens, torch.isin(answers, answers[is_zero].unique()))
    answer, width, place = part.answer, part.widths, part.place
    symptoms = []
    for name, side, other in (("engine", part.rollout, part.old), ("trainer", part.old, part.rollout)):
        for end, places in (("left", place), ("right", width[answer] - 1 - place)):
            zeros = width.scatter_reduce(0, answer[side != 0], places[side != 0], "amin")[answer]
            text = ((zeros > 0) & (places >= zeros)).nonzero()[:, 0]
            moved = text - zeros[text] if end == "left" else text + zeros[text]
            count = torch.bincount(answer[text], minlength=len(width))
            gaps, left = (
                torch.bincount(answer[text], (side[text] - other[at]).abs(), minlength=len(width))
                for at in (text, moved)
            )
            fits = (count >= SHORTEST) & (left < LEFT * gaps)
            if (total := int(count[fits].sum())) < MOVED:
                continue
            before, after = (float(x[fits].sum()) for x in (gaps, left))
            rows = some_rows(part.rows[fits], len(tokens.widths))
            sizes = {"before": short(before / total), "after": short(after / total)}
            symptom = SIGNS["opposite sides"].symptom(
                (before - after) / total_size, mismatch_numbers(tokens), side=name, end=end, rows=rows, **sizes
            )
            symptoms.append(symptom)
    return strongest(symptoms)


# --- log-probs of a neighbouring token ---


def shift(batch: TokenBatch) -> Symptom | None:
    """Check whether p of a token agrees better with q of a token before or after it.

    Of a batch, one half of Σ|d| must disappear, over the tokens that have such a neighbour. Otherwise, of each answer
    the stretch of tokens counts that gains most, and a quarter of its |d| may remain. The strength is the share of
    Σ|d| that disappears.
    """
    old, rollout = batch.tensors()["old_log_probs"], batch.rollout_log_probs
    pairs = old, rollout, batch.response_mask & old.isfinite() & rollout.isfinite()
    sizes, counts = _by_few(lambda p, q, real: _sums(p - q, real), pairs)
    suspects = (sizes / counts.clamp(min=1) > SUSPICIOUS).nonzero()[:, 0]
    if not len(suspects):
        return None
    if whole := strongest(_shift_of_all(pairs, lag) for lag in LAGS[:2]):
        return whole
    some, lags = [x[suspects] for x in pairs], [lag for lag in LAGS if abs(lag) < old.shape[1]]
    return strongest(_shift_of_some(some, lag, suspects, sizes) for lag in lags)


def _by_few(test: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]], pairs: Sequence[Tensor]) -> list[Tensor]:
    """Return what the test returns of all answers, a few at a time: of all at once it takes most of an import's memory.

    The test gets log-probs (b, T) in float64 and the mask of their real tokens, and returns numbers per answer.
    """
    few = zip(*(x.split(max(AT_ONCE // max(x.shape[1], 1), 1)) for x in pairs), strict=True)
    parts = [test(old.double(), rollout.double(), real) for old, rollout, real in few]
    return [torch.cat(x) for x in zip(*parts, strict=True)]


def _sums(d: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ|d| and the number of the real tokens of each answer."""
    return torch.where(real, d.abs(), 0).sum(-1), real.sum(-1)


def _shift_of_all(pairs: Sequence[Tensor], lag: int) -> Symptom | None:
    def both_sums(p: Tensor, q: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        here, there, both = _neighbours(p, q, real, lag)
        return *_sums(here, both), _sums(there, both)[0]

    before, count, after = (float(x.sum()) for x in _by_few(both_sums, pairs))
    if count < SHIFTED or not after < before / 2:
        return None
    before, after = before / count, after / count
    words = {"neighbour": _neighbour(lag), "before": short(before), "after": short(after)}
    numbers = {"abs_log_ratio": before, "abs_log_ratio_moved": after}
    return SIGNS["shift of all"].symptom(1 - after / before, numbers, **words)


def _shift_of_some(pairs: Sequence[Tensor], lag: int, suspects: Tensor, sizes: Tensor) -> Symptom | None:
    """Check the stretch of each suspect, a row of `pairs`; `sizes`, (B,), are Σ|d| of all rows of the batch."""
    start, tokens, before, after = _by_few(lambda p, q, real: _stretches(p, q, real, lag), pairs)
    repaired = (tokens >= SHORTEST) & (after < LEFT * before) & (before > sizes[suspects] / 4)
    count = int(tokens[repaired].sum())
    if count < MOVED:
        return None
    mean_before, mean_after = (float(x[repaired].sum()) / count for x in (before, after))
    words = {
        "by": {1: "one", 2: "two", 3: "three"}[abs(lag)], "rows": some_rows(suspects[repaired], len(sizes)),
        "neighbour": _neighbour(lag), "before": short(mean_before), "after": short(mean_after),
        "first": int(start[repaired][0]),
    }  # fmt: skip
    numbers = {"abs_log_ratio": mean_before, "abs_log_ratio_moved": mean_after, "rows": float(repaired.sum())}
    return SIGNS["shift of some"].symptom(float((before - after)[repaired].sum() / sizes.sum()), numbers, **words)


def _stretches(old: Tensor, rollout: Tensor, real: Tensor, lag: int) -> tuple[Tensor, ...]:
    """Return the stretch of each answer whose |Δ| the move lowers most: the largest sum of consecutive gains.

    The four tensors are its first token, its number of tokens, and Σ|Δ| before and after the move, (B,) each.
    """
    here, there, both = _neighbours(old, rollout, real, lag)
    here, there = (torch.where(both, d.abs(), 0) for d in (here, there))
    sums = pad((here - there).cumsum(-1), (1, 0))  # (B, T − |lag| + 1)
    lowest, places_of_lowest = sums.cummin(-1)
    end = (sums - lowest).argmax(-1, keepdim=True)
    start = places_of_lowest.gather(-1, end)
    places = torch.arange(here.shape[1])
    inside = (places >= start) & (places < end)
    before, after = ((x * inside).sum(-1) for x in (here, there))
    return start[:, 0] + max(-lag, 0), (inside & both).sum(-1), before, after


def _neighbours(old: Tensor, rollout: Tensor, real: Tensor, lag: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return d, d after q is moved by `lag` tokens, and the tokens whose neighbour is real, (B, T − |lag|) each."""
    stay, move = slice(max(-lag, 0), -lag if lag > 0 else None), slice(max(lag, 0), lag if lag < 0 else None)
    return old[:, stay] - rollout[:, stay], old[:, stay] - rollout[:, move], real[:, stay] & real[:, move]


def _neighbour(lag: int) -> str:
    if abs(lag) == 1:
        return "next token" if lag > 0 else "previous token"
    return f"token {abs(lag)} {'after' if lag > 0 else 'before'} it"


# --- logarithms of two bases ---


def other_base(tokens: Tokens) -> Symptom | None:
    """Check whether p is the same multiple of q on every token of all answers or of some: log10, log2, or bits.

    The strength is the share of Σ|d| that the multiplication removes in these answers.
    """
    answer = tokens.answer
    gap = torch.bincount(answer, (tokens.old - tokens.rollout).abs())
    resolved = (tokens.old < -0.01) & (tokens.rollout < -0.01)
    count = torch.bincount(answer[resolved], minlength=len(gap))
    symptoms = []
    for base, advice in BASES.items():
        left = torch.bincount(answer, (tokens.old - base * tokens.rollout).abs())
        some = (left < LEFT * gap) & (count >= IN_ANSWER)
        part = select_tokens(tokens, some[answer] & resolved)
        if len(part.old) < OF_ANOTHER_BASE or not _is_constant(part.old / part.rollout / base):
            continue
        words = {"where": "" if bool(some.all()) else f" in {some_rows(tokens.rows[some], len(some))}"}
        strength = 1 - float(left[some].sum() / gap[some].sum())
        numbers = mismatch_numbers(tokens)
        symptoms.append(SIGNS["another base"].symptom(strength, numbers, base=base, advice=advice, **words))
    return strongest(symptoms)


def _is_constant(ratios: Tensor) -> bool:
    """Check whether ratios, (N,), are 1 in the median, and near 1 except for the lowest and the highest tenth."""
    low, middle, high = (float(ratios.kthvalue(max(1, round(q * len(ratios)))).values) for q in (0.1, 0.5, 0.9))
    return abs(middle - 1) <= NEAR and low >= 1 - SPREAD and high <= 1 + SPREAD
