"""Values that are no log-probs: NaN, marks such as −9999, and the zeros of padding."""

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens
from rlcorr.analysis.symptoms import Symptom, percent
from rlcorr.types import TokenBatch

IMPOSSIBLE = -50.0
"""A log-prob that nobody draws: e^−50 is 2e-22. Several tokens that share one such value, bit for bit, hold a mark."""
FEWEST = 3
"""Tokens that must hold a filled value before it is named."""
LOG_HALF = -0.6931
UNFILLED = 0.03
"""Share of the zeros of one side, of those to which the other gives less than one half, that must lie below what a cut
explains, see `unfilled`.

Measured on softmaxes over 12 to 5,000 tokens with noise of 0 to 1 on the logits. Zeros that top-p 0.3 to 0.99 or
top-k 5 made: at most 0.003 (2 of 676; over three tokens 0.016). With 2.5 to 90 % of the tokens unfilled: 0.197 and
more, beside the zeros of top-p 0.9 at least 0.097. Eleven recorded runs, of a dense model, of experts and of long
answers: 0 as they are (`top_p` has 776 zeros), and 0.25 and more once 5 to 50 % of their columns are set to 0.
"""
SIDES = {
    "both log-probs are": ("old", "rollout"),
    "the engine's log-prob is": ("rollout",),
    "the trainer's log-prob is": ("old",),
}


def not_finite(finite: Tensor) -> Symptom:
    """Return how many of the tokens (N,) have a log-prob that is NaN or infinite."""
    count, total = int((~finite).sum()), len(finite)
    sentence = f"Not finite: {count:,} of {total:,} tokens have a log-prob that is NaN or infinite."
    return Symptom("not finite", sentence, {"tokens": count}, 1.0)


def left_out(batch: TokenBatch, tokens: int) -> Symptom | None:
    """Return how many tokens are not in the batch because the engine's log-prob was NaN. Strength: their share."""
    count = batch.count_unpaired()
    if not count:
        return None
    share = count / (count + tokens)
    sentence = f"Not finite: {count:,} of {count + tokens:,} tokens have no log-prob of the engine "
    sentence += "and are left out of every number."
    return Symptom("not finite", sentence, {"tokens": count, "share_of_tokens": share}, share)


def marked(tokens: Tokens, finite: Tensor) -> tuple[list[Symptom], Tensor]:
    """Return which marks the tokens (N,) hold, and which finite tokens hold none.

    Strength: the share of Σ|d| of the marked tokens, or of all tokens if that is larger, as where both sides hold the
    mark.
    """
    symptoms, real = [], finite
    total = float((tokens.old - tokens.rollout)[finite].abs().sum())
    for name, sides in SIDES.items():
        columns = [getattr(tokens, side) for side in sides]
        mark = filled_value(columns[0][real])
        here = real if mark is None else real & torch.stack([column == mark for column in columns]).all(0)
        count = int(here.sum())
        if mark is None or count < FEWEST:
            continue
        share, d = count / len(here), float((tokens.old - tokens.rollout)[here].abs().sum())
        sentence = (
            f"Looks like padding: {name} exactly {mark:g} on {count:,} tokens ({percent(share)}), which stands for "
        )
        sentence += "none. "
        sentence += "The response_mask counts places that hold no token." if len(sides) == 2 else "They have no ratio."
        numbers = {"tokens": count, "share_of_tokens": share, "value": mark}
        symptoms.append(
            Symptom("padding", sentence.replace("exactly -", "exactly −"), numbers, max(d / max(total, 1e-300), share))
        )
        real = real & ~here
    return symptoms, real


def filled_value(log_probs: Tensor) -> float | None:
    """Return the value that stands for "none" among log-probs (N,), such as −9999, −100 or −1e30; None if there is
    none. At least `FEWEST` tokens hold exactly this value, and at least half of those at or below `IMPOSSIBLE`: the
    log-probs of policies that are far apart spread there."""
    low = log_probs[log_probs <= IMPOSSIBLE]
    if len(low) < FEWEST:
        return None
    values, counts = low.unique(return_counts=True)
    most = int(counts.argmax())
    return float(values[most]) if int(counts[most]) >= max(FEWEST, len(low) / 2) else None


def padding(tokens: Tokens) -> Symptom | None:
    """Return whether zeros of one side were never filled in, see `unfilled`. Strength: the share of Σ|d| of those to
    which the other side gives less than one half, from 1 % on."""
    d = (tokens.old - tokens.rollout).abs()
    symptoms = []
    for name, side, other in (("engine", tokens.rollout, tokens.old), ("trainer", tokens.old, tokens.rollout)):
        odd = unfilled(side, other)
        count, strength = int(odd.sum()), float(d[odd].sum() / d.sum())
        if strength < 0.01:
            continue
        share = count / len(odd)
        sentence = f"Looks like padding: the {name}'s log-prob is exactly 0 on {count:,} tokens ({percent(share)}) to "
        sentence += "which the other side gives less than one half."
        if bool((side == 0).all()):
            sentence = f"Looks like padding: the {name}'s log-prob is exactly 0 on all {len(odd):,} tokens, so it was "
            sentence += "not filled in, or the sampling was greedy."
        symptoms.append(Symptom("padding", sentence, {"tokens": count, "share_of_tokens": share}, strength))
    return max(symptoms, key=lambda symptom: symptom.strength, default=None)


def unfilled(side: Tensor, other: Tensor) -> Tensor:
    """Return which tokens (N,) hold a 0 on one side that was never filled in; none where a cut explains the zeros.

    A token that is alone in its nucleus has log-prob 0, and π_old = S, the mass that was kept. The other tokens show
    the same S: their log-ratio is log S. So a zero is unfilled if the other side is below one half
    times the first percentile of the ratio of the other tokens. If too few zeros are that low, a cut made them all.
    """
    zeros, below_half = side == 0, other < LOG_HALF
    others = (other - side)[~zeros & (other != 0)]
    hundredth = -(-len(others) // 100)  # not quantile, which takes 16 million numbers at most
    lowest = min(float(others.kthvalue(hundredth).values), 0.0) if hundredth else 0.0
    below = int((zeros & (other < LOG_HALF + lowest)).sum())
    if below < max(FEWEST, UNFILLED * int((zeros & below_half).sum())):
        return torch.zeros_like(zeros)
    return zeros & below_half
