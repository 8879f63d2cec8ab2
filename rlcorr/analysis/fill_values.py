"""Values that are not log-probs: NaN, fill values such as −9999, and the zeros of padding."""

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens
from rlcorr.analysis.symptoms import Symptom, percent
from rlcorr.types import TokenBatch

IMPOSSIBLE = -50.0
"""A log-prob that no sampler draws: e^−50 is 2e-22. Several tokens with one such value, equal in all bits, have a fill
value."""
FEWEST = 3
"""Number of tokens that must have a fill value before it is reported."""
LOG_HALF = -0.6931
UNFILLED = 0.03
"""Share of the zeros of one side that must be below what a cut explains, see `unfilled`. It counts only zeros to which
the other side gives a probability below one half.

Measured on softmaxes over 12 to 5,000 tokens with noise of 0 to 1 on the logits. Zeros made by top-p 0.3 to 0.99 or
top-k 5: at most 0.003 (2 of 676; over three tokens 0.016). With 2.5 to 90 % of the tokens unfilled: at least 0.197, and
at least 0.097 together with the zeros of top-p 0.9. Eleven recorded runs (a dense model, a mixture of experts, long
answers): 0 as recorded (`top_p` has 776 zeros), and at least 0.25 after 5 to 50 % of their columns are set to 0.
"""
SIDES = {
    "both log-probs are": ("old", "rollout"),
    "the engine's log-prob is": ("rollout",),
    "the trainer's log-prob is": ("old",),
}


def not_finite(finite: Tensor) -> Symptom:
    """Return how many of the tokens, (N,), have a log-prob that is NaN or infinite."""
    count, total = int((~finite).sum()), len(finite)
    sentence = f"Not finite: {count:,} of {total:,} tokens have a log-prob that is NaN or infinite."
    return Symptom("not finite", sentence, {"tokens": count}, 1.0)


def left_out(batch: TokenBatch, tokens: int) -> Symptom | None:
    """Return how many tokens are not in the batch because the engine's log-prob was NaN.

    The strength is their share.
    """
    count = batch.count_unpaired()
    if not count:
        return None
    share = count / (count + tokens)
    sentence = f"Not finite: {count:,} of {count + tokens:,} tokens have no log-prob of the engine "
    sentence += "and are left out of every number."
    return Symptom("not finite", sentence, {"tokens": count, "left_out": share}, share)


def marked(tokens: Tokens, finite: Tensor) -> tuple[list[Symptom], Tensor]:
    """Return the fill values of the tokens, (N,), and a mask of the finite tokens without one.

    The strength is the share of Σ|d| on tokens with a fill value, or the share of these tokens if that is larger. The
    second is larger if both sides have the fill value, because then d = 0.
    """
    symptoms, real = [], finite
    total = float((tokens.old - tokens.rollout)[finite].abs().sum())
    for name, sides in SIDES.items():
        columns = [getattr(tokens, side) for side in sides]
        mark = filled_value(columns[0][real])
        filled = real if mark is None else real & torch.stack([column == mark for column in columns]).all(0)
        count = int(filled.sum())
        if mark is None or count < FEWEST:
            continue
        share, d = count / len(filled), float((tokens.old - tokens.rollout)[filled].abs().sum())
        sentence = f"Looks like padding: {name} exactly {mark:g} on {count:,} tokens ({percent(share)}). "
        sentence += "This value marks a missing log-prob. "
        if len(sides) == 2:
            sentence += "The response_mask includes positions without a token."
        else:
            sentence += "These tokens have no ratio."
        numbers = {"tokens": count, "share_of_tokens": share, "value": mark}
        symptoms.append(
            Symptom("padding", sentence.replace("exactly -", "exactly −"), numbers, max(d / max(total, 1e-300), share))
        )
        real = real & ~filled
    return symptoms, real


def filled_value(log_probs: Tensor) -> float | None:
    """Return the value that means "none" among log-probs, (N,), such as −9999, −100 or −1e30; None if there is none.

    At least `FEWEST` tokens have exactly this value, and at least half of the values at or below `IMPOSSIBLE` are equal
    to it. Log-probs of policies that are far apart are also that low, but spread out.
    """
    low = log_probs[log_probs <= IMPOSSIBLE]
    if len(low) < FEWEST:
        return None
    values, counts = low.unique(return_counts=True)
    most = int(counts.argmax())
    return float(values[most]) if int(counts[most]) >= max(FEWEST, len(low) / 2) else None


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
        sentence = f"Looks like padding: the {name}'s log-prob is exactly 0 on {count:,} tokens ({percent(share)}), "
        sentence += (
            "but the other side gives them a probability below one half. They were not filled in: record them, or "
        )
        sentence += "leave these tokens out with response_mask."
        if bool((side == 0).all()):
            sentence = f"Looks like padding: the {name}'s log-prob is exactly 0 on all {len(zeros):,} tokens. It was "
            sentence += "not filled in, or sampling was greedy."
        symptoms.append(Symptom("padding", sentence, {"tokens": count, "share_of_tokens": share}, strength))
    return max(symptoms, key=lambda symptom: symptom.strength, default=None)


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
    if below < max(FEWEST, UNFILLED * int((zeros & below_half).sum())):
        return torch.zeros_like(zeros)
    return zeros & below_half
