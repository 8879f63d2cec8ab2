"""A small batch whose tokens meet every bound."""

import oracle

from rlcorr import RejectionRule
from rlcorr.rules import RULE_NAMES

SPREAD = (0.0, 1e-4, 0.02, -0.3, 0.9, -2.5)
"""Log-ratios of every size that occurs, in the order in which the tokens take them."""


def given_pairs() -> oracle.Pairs:
    """Six responses of 1 to 7 tokens, log-probs from −0.02 to −6.5, one log-ratio beyond the clamp."""
    lengths = (7, 5, 1, 3, 6, 2)
    mask = [[t < n for t in range(7)] for n in lengths]
    rollout = [[-(0.02 + 1.3 * ((3 * b + 5 * t) % 6)) for t in range(7)] for b in range(6)]
    old = [
        [min(rollout[b][t] + SPREAD[(b + 2 * t) % 6] / (1 + b % 3), -1e-5) for t in range(7)] for b in range(6)
    ]  # fmt: skip
    rollout[4][2], old[4][2] = -30.0, -0.5
    advantages = [[(-1.0) ** (b + t) * (0.25 + 0.5 * t) * (t != 3) for t in range(7)] for b in range(6)]
    return oracle.Pairs(old, rollout, mask, 7, "float32", advantages)


GIVEN = given_pairs()


BATCH = oracle.to_batch(GIVEN)


TOKENS = [(b, t) for b, row in enumerate(GIVEN.mask) for t, real in enumerate(row) if real]


def rule_of(name: str) -> RejectionRule:
    """With bounds that the batch above meets on both sides."""
    bounds = {
        "k1": (0.8, 1.3),
        "prob_diff": (-0.05, 0.1),
        "signed_kl": (-0.01, 0.02),
        "mult_error": (None, 1.2),
    }
    lower, upper = bounds.get(RULE_NAMES[name][1], (None, 0.05))
    return RejectionRule.named(name, lower=lower, upper=upper)
