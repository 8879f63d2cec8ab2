"""Logarithms of two bases: one side was written with log10 or log2, or in bits."""

import math

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers, select_tokens
from rlcorr.analysis.symptoms import Symptom, some_rows

LN10, LN2 = math.log(10), math.log(2)
BASES = {
    LN10: "the engine's log-probs are in base 10: multiply them by 2.3026, which is ln 10",
    LN2: "the engine's log-probs are in base 2, that is in bits: multiply them by 0.6931, which is ln 2",
    1 / LN10: "the trainer's log-probs are in base 10: multiply them by 2.3026, which is ln 10",
    1 / LN2: "the trainer's log-probs are in base 2, that is in bits: multiply them by 0.6931, which is ln 2",
    LN10 / LN2: "the engine's log-probs are in base 10 (multiply them by 2.3026), the trainer's in base 2 (by 0.6931)",
    LN2 / LN10: "the engine's log-probs are in base 2 (multiply them by 0.6931), the trainer's in base 10 (by 2.3026)",
}
"""p/q if both sides mean the same probabilities → what to do. The natural logarithm is used everywhere here."""
NEAR = 0.02
"""Largest relative distance of the median of p/q from one of them."""
LEFT = 0.25
"""Largest share of Σ|d| of an answer that may remain. Temperatures with such a β leave more in nearly every answer,
because p = βq − ln Σ exp(βq), and the last term differs between positions."""
SMALLEST = 0.2
"""Share of Σ|q| that Σ|d| of an answer must have: it is |p/q − 1|, at least 0.3, less `LEFT`. Only saves time."""
FEWEST, IN_ANSWER = 20, 4
"""Smallest number of tokens, in all answers of another base together and in one of them."""
SPREAD = 0.4
"""Largest relative distance of four fifths of the ratios p/q from it. Noise of one size on all logits has at most this
relative size; one large token in an answer, which would otherwise decide its sums, has not."""


def other_base(tokens: Tokens, mask: Tensor) -> Symptom | None:
    """Check whether p is the same multiple of q on every token of all answers or of some: logarithms of another base.

    The strength is the share of Σ|d| that the multiplication removes in these answers.

    Args:
        tokens: the tokens of a batch, (N,).
        mask: where they are in the batch, (B, T), with N true entries.
    """
    answer = mask.nonzero()[:, 0]
    d = (tokens.old - tokens.rollout).abs()
    resolved = (tokens.old < -0.01) & (tokens.rollout < -0.01)
    gap = torch.zeros(len(mask), dtype=torch.float64).index_add_(0, answer, d)
    size = torch.zeros_like(gap).index_add_(0, answer, tokens.rollout.abs())
    if not bool((gap > SMALLEST * size).any()):
        return None
    count = torch.bincount(answer[resolved], minlength=len(mask))
    symptoms = []
    for base, advice in BASES.items():
        left = torch.zeros_like(gap).index_add_(0, answer, (tokens.old - base * tokens.rollout).abs())
        chosen = ((left < LEFT * gap) & (count >= IN_ANSWER))[answer]
        part = select_tokens(tokens, chosen & resolved)
        if len(part.old) < FEWEST or not _is_constant(part.old / part.rollout / base):
            continue
        rows, answers = answer[chosen].unique(), len(answer.unique())
        where = "" if len(rows) == answers else f" in {some_rows(rows, answers)}"
        sentence = f"Logarithms of two bases{where}: π_old's are {base:.3f} times those of π_rollout on every token, "
        strength = 1 - float(left[rows].sum() / gap[rows].sum())
        symptoms.append(Symptom("beyond rounding", f"{sentence}so {advice}.", mismatch_numbers(tokens), strength))
    return max(symptoms, key=lambda symptom: symptom.strength, default=None)


def _is_constant(ratios: Tensor) -> bool:
    """Check whether ratios, (N,), are 1 in the median, and near 1 except for the lowest and the highest tenth."""
    low, middle, high = (float(ratios.kthvalue(max(1, round(q * len(ratios)))).values) for q in (0.1, 0.5, 0.9))
    return abs(middle - 1) <= NEAR and low >= 1 - SPREAD and high <= 1 + SPREAD
