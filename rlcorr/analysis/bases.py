"""Logarithms of two bases: one side was written with log10 or log2, or in bits."""

import math

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers, select_tokens
from rlcorr.analysis.symptoms import Symptom

BASES = {
    math.log(10): "the engine's log-probs are in base 10: multiply them by 2.3026, which is ln 10",
    math.log(2): "the engine's log-probs are in base 2, that is in bits: multiply them by 0.6931, which is ln 2",
    1 / math.log(10): "the trainer's log-probs are in base 10: multiply them by 2.3026, which is ln 10",
    1 / math.log(2): "the trainer's log-probs are in base 2, that is in bits: multiply them by 0.6931, which is ln 2",
    math.log2(
        10
    ): "the engine's log-probs are in base 10 (multiply them by 2.3026), the trainer's in base 2 (by 0.6931)",
    math.log10(
        2
    ): "the engine's log-probs are in base 2 (multiply them by 0.6931), the trainer's in base 10 (by 2.3026)",
}
"""p/q if both sides mean the same probabilities → what to do. The natural logarithm is used everywhere here."""
NEAR = 0.02
"""Largest relative distance of the median of p/q from one of them."""
LEFT = 0.25
"""Largest share of Σ|d| that may remain. A temperature with such a β leaves at least 0.5 (softmaxes over 2 to 800
tokens), because p = βq − ln Σ exp(βq) differs between positions by the last term."""
FEWEST = 20
"""Smallest number of tokens for which it is tested."""


def other_base(tokens: Tokens) -> Symptom | None:
    """Check whether p is the same multiple of q on every token, as with logarithms of another base.

    The strength is the share of Σ|d| that the multiplication removes.
    """
    resolved = select_tokens(tokens, (tokens.old < -0.01) & (tokens.rollout < -0.01))
    if len(resolved.old) < FEWEST:
        return None
    multiple = float((resolved.old / resolved.rollout).median())
    nearest = min(BASES, key=lambda base: abs(math.log(multiple / base)))
    left = float(
        (resolved.old - nearest * resolved.rollout).abs().sum() / (resolved.old - resolved.rollout).abs().sum()
    )
    if abs(multiple / nearest - 1) > NEAR or not left < LEFT:
        return None
    sentence = f"Logarithms of two bases: π_old's are {multiple:.3f} times those of π_rollout on every token, so "
    sentence += f"{BASES[nearest]}."
    return Symptom("beyond rounding", sentence, mismatch_numbers(tokens), 1 - left)
