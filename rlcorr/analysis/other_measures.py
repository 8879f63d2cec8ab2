"""Measures of the gap that other systems print, and the k3 or mean |d| that follows from them.

d = log π_trainer − log π_engine of tokens that the engine drew, and r = e^d.
"""

import math
from typing import Literal

from rlcorr.analysis.published import Measure
from rlcorr.analysis.symptoms import short
from rlcorr.errors import UsageError

Convertible = Literal["token_mult_prob_error", "ppl_ratio"]
OtherMeasure = Convertible | Literal["mean_ratio"]
"""`token_mult_prob_error` of NeMo RL: the mean of e^|d|. `ppl_ratio` of verl: the mean over answers of e^(mean of −d),
the perplexity of the trainer over that of the engine. `mean_ratio`: the mean of r."""
ACCEPTED = 1.05
"""The token_mult_prob_error above which NeMo RL's guide on tensor parallelism suspects a bug."""
NEAR_ONE = 0.01
"""Distance of a mean ratio from 1 that a batch of some thousand tokens has by chance."""


def converted(size: float, measure: Convertible) -> tuple[float, Measure, str]:
    """Return the mean |d| or k3 that follows from a token_mult_prob_error or a ppl_ratio, and a sentence about it.

    - By Jensen's inequality the mean of |d| is at most log(mean of e^|d|).
    - The mean of −d estimates KL(π_engine‖π_trainer), as k3 does, if no token was cut.

    Raises `UsageError` for a value below 1.
    """
    if not 1 <= size < math.inf:
        why = {
            "token_mult_prob_error": "it is a mean of e^|d|",
            "ppl_ratio": "below 1 the noise of the batch is larger than the gap; use k3, which has less noise",
        }[measure]
        raise UsageError(f"{measure} must be at least 1 and finite; got {size:g}: {why}.")
    log = math.log(size)
    if measure == "ppl_ratio":
        return log, "k3", (
            f"A perplexity ratio of {size:g} is a mean log-ratio of {short(log)}. It estimates the same KL divergence "
            "as k3, with more noise, if the engine drew its tokens without top-p or top-k."
        )  # fmt: skip
    verdict = "above" if size > ACCEPTED else "not above"
    return log, "abs", (
        f"token_mult_prob_error is {size:g}, {verdict} the {ACCEPTED} from which NeMo RL's guide suspects a bug. Mean "
        f"|d| is at most its logarithm, {short(log)}; a few tokens with a large d make it much smaller."
    )  # fmt: skip


def about_mean_ratio(size: float) -> str:
    """Explain a mean of r. Raises `UsageError` unless it is above 0 and finite."""
    if not 0 < size < math.inf:
        raise UsageError(f"mean_ratio must be above 0 and finite; got {size:g}.")
    if abs(size - 1) <= NEAR_ONE:
        return (
            f"A mean ratio of {size:g} says nothing about the size of the gap: it is 1 for any two policies. Use k3 "
            "or abs."
        )
    if size < 1:
        return (
            f"A mean ratio of {size:g} is below 1, so the trainer gives {100 * (1 - size):.3g} % of its probability to "
            "tokens that the engine cannot draw: top-p, top-k or min-p in the engine alone, or a batch "
            "without its rarest tokens. Qwen2.5-1.5B-Instruct with top-p 0.8 had 0.896, and 1.001 with top-p on both "
            "sides (GuoCheng24/batch-logprob-gap README T11)."
        )
    return (
        f"A mean ratio of {size:g} is above 1, which is impossible on average for tokens that the engine drew with "
        "these log-probs: look for another temperature, log-probs from before it, or shifted tokens. In a small batch, "
        "a few tokens with huge ratios can do it."
    )
