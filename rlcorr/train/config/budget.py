"""Settings of rejection by budget, which solves for a new bound on every batch."""

from dataclasses import dataclass

from rlcorr.errors import unknown
from rlcorr.rules import RULE_NAMES
from rlcorr.validated import check

AT_RANDOM = ("random_token", "random_sequence", "random_negative")


@dataclass(frozen=True)
class BudgetConfig:
    """Rejection by budget: every batch keeps the same share of its tokens, however large its mismatch is."""

    rule: str = ""
    """Rejection rule in addition to the preset, such as token_k1 or seq_mean_k1. Its bound is solved for on every
    batch. For comparison, random_token, random_sequence and random_negative (tokens with A < 0 of random sequences)
    reject at random. Empty: no budget."""
    keep: float = 0.8
    """Share of the response tokens to keep."""

    def __post_init__(self) -> None:
        names = (*RULE_NAMES, *AT_RANDOM)
        if self.rule and self.rule not in names:
            raise unknown("budget.rule", self.rule, names)
        check(0 < self.keep <= 1, "budget.keep", self.keep, "above 0 and at most 1")

    @property
    def at_random(self) -> bool:
        return self.rule in AT_RANDOM
