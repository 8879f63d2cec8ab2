"""Rejection rules, which exclude tokens or sequences from the loss, and what they reject of a batch.

A wrong value raises `UsageError` at construction. r = π_old/π_rollout and d = log r, per token. In bypass mode π_θ
takes the place of π_old. The rules follow verl's rollout correction, with its faults repaired: bounds are on r, and are
compared on log r.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rlcorr.divergences import DIVERGENCES, SIGNED, Divergence
from rlcorr.errors import UsageError, member, positive, two_sided, unknown
from rlcorr.ratios import Reduce, over_sequence
from rlcorr.types import TokenBatch

Level = Literal["token", "sequence"]
AppliesTo = Literal["all", "negative", "outward"]

_RATIO = {
    None: "ratio",
    "sum": "product of the sequence's ratios",
    "mean": "geometric mean of the sequence's ratios",
    "max": "largest ratio of the sequence",
    "min": "smallest ratio of the sequence",
}
_OVER = {
    None: "",
    "sum": "sum over the sequence of ",
    "mean": "mean over the sequence of ",
    "max": "largest ",
    "min": "smallest ",
}
_SCOPE = {
    "all": "",
    "negative": "; tokens with an advantage ≥ 0 always stay",
    "outward": "; tokens that the update moves back always stay",
}


@dataclass(frozen=True)
class RejectionRule:
    """A rule that keeps a token, or a whole sequence, only if a divergence is inside its bounds.

    The divergences are in `DIVERGENCES`; those of ratios sum and mean to the product and the geometric mean of the
    ratios. A signed divergence takes a lower bound, an upper bound, or both; the others only an upper one. A bound
    itself is inside, and NaN is outside.
    """

    level: Level
    divergence: str
    upper: float = math.inf
    lower: float | None = None
    reduce: Reduce | None = None
    applies_to: AppliesTo = "all"
    """all: every token; negative: tokens with A < 0; outward: tokens whose ratio the update moves away
    from 1, d·A > 0."""

    def __post_init__(self) -> None:
        member("level", self.level, Level)
        if self.divergence not in DIVERGENCES:
            raise unknown("divergence", self.divergence, DIVERGENCES)
        member("applies_to", self.applies_to, AppliesTo)
        if self.level == "sequence":
            member("reduce", self.reduce or "none", Reduce)
            if self._divergence.of_answer is not None:
                raise UsageError(f"{self.divergence} looks at an answer already: level must be 'token'.")
        elif self.reduce is not None:
            raise UsageError(f"a token rule reduces nothing: reduce must be None, got {self.reduce!r}.")
        if self.reduce == "min" and not self._divergence.signed:
            raise UsageError(
                f"{self.name}: the smallest {self.divergence} is no use; min goes with {', '.join(SIGNED)}."
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        name, lower, upper = self.name, self.lower, self.upper
        divergence = self._divergence
        if not divergence.signed and lower is not None:
            raise UsageError(f"{name} is a divergence ≥ 0 and takes only an upper bound; got lower={lower}.")
        if lower is None and upper == math.inf:
            raise UsageError(f"{name} has no bound: give lower, upper or both.")
        if divergence.signed and not divergence.neutral:
            two_sided(name, lower, upper)
        else:
            positive(name, lower, upper)
        if not divergence.signed and upper < divergence.neutral:
            raise UsageError(
                f"{name}: {divergence.subject} is never below {divergence.neutral:g}, so upper={upper} would reject "
                "everything."
            )

    @property
    def _divergence(self) -> Divergence:
        return DIVERGENCES[self.divergence]

    @property
    def name(self) -> str:
        """Return the name of the rule, such as token_k1 or seq_mean_k3. It is verl's name if verl has the rule."""
        base = f"token_{self.divergence}" if self.level == "token" else f"seq_{self.reduce}_{self.divergence}"
        return base if self.applies_to == "all" else f"{base}_{self.applies_to}"

    def explain(self) -> str:
        """Explain in one sentence what the rule keeps."""
        subject = _OVER[self.reduce] + self._divergence.subject
        subject = _RATIO[self.reduce] if self.divergence == "k1" else subject
        lower = "" if self.lower is None else f"{self.lower:g} ≤ "
        upper = "" if self.upper == math.inf else f" ≤ {self.upper:g}"
        return f"Rule {self.name} keeps a {self.level} while {lower}{subject}{upper}{_SCOPE[self.applies_to]}."

    @classmethod
    def named(cls, name: str, *, upper: float = math.inf, lower: float | None = None) -> "RejectionRule":
        """Return the rule with this name and these bounds: `RejectionRule.named("seq_mean_k1", upper=1.001)`.

        Raises `UsageError` if there is no rule of this name.
        """
        if name not in RULE_NAMES:
            raise unknown("rejection rule", name, RULE_NAMES)
        level, divergence, reduce, applies_to = RULE_NAMES[name]
        return cls(
            level=level, divergence=divergence, reduce=reduce, applies_to=applies_to, lower=lower, upper=upper
        )  # fmt: skip


def rule_names() -> dict[str, tuple[Level, str, Reduce | None, AppliesTo]]:
    """Return the parts of every rule, by its name: each divergence per token and reduced over a sequence.

    >>> rule_names()["seq_mean_k3_negative"]
    ('sequence', 'k3', 'mean', 'negative')
    """
    parts: dict[str, tuple[Level, str, Reduce | None, AppliesTo]] = {}
    reduces: tuple[Reduce | None, ...] = (None, *get_args(Reduce))
    for applies_to in get_args(AppliesTo):
        suffix = "" if applies_to == "all" else f"_{applies_to}"
        for reduce in reduces:
            for divergence in DIVERGENCES if reduce != "min" else SIGNED:
                if reduce and DIVERGENCES[divergence].of_answer is not None:
                    continue
                base = f"seq_{reduce}_{divergence}" if reduce else f"token_{divergence}"
                parts[base + suffix] = ("sequence" if reduce else "token", divergence, reduce, applies_to)
    return parts


RULE_NAMES = rule_names()
"""Name of a rule → its level, divergence, reduction and the tokens to which it applies."""


# --- rejection: a rule's statistic, and its comparison with the bounds ---


def reject(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> Tensor:
    """Return the number k ≥ 1 of the first rule that rejects each real token, else 0; (B, T) int8.

    A NaN statistic is rejected.
    """
    rejected_by = torch.zeros_like(d, dtype=torch.int8)
    for index, rule in enumerate(rules, start=1):
        rejects = ~passes(rule, rule_statistic(rule, batch, d), batch, d)
        rejected_by = torch.where((rejected_by == 0) & rejects & batch.response_mask, index, rejected_by)
    return rejected_by


def rule_statistic(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return the value that the rule compares with its bounds: (B, T) for a token rule, (B, 1) for a sequence rule.

    For k1 this is log r, not −log r, so that its bounds are bounds on the ratio.

    >>> d = torch.tensor([[0.0, 2.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), old_log_probs=d)
    >>> rule_statistic(RejectionRule.named("seq_mean_k1", upper=2.0), batch, d).tolist()
    [[1.0]]
    """
    pair = batch.old_log_probs, batch.rollout_log_probs
    per_token = DIVERGENCES[rule.divergence].of(d, *pair, batch.response_mask)
    if rule.reduce is None:
        return per_token
    return over_sequence(per_token, batch.response_mask, rule.reduce)[:, None]


def log_bounds(rule: RejectionRule) -> tuple[float, float]:
    """Return the bounds on the rule's statistic. For k1 they are the logarithms of the configured bounds.

    Logarithms are compared because exp would round, and move a ratio that is exactly on a bound.
    """
    lower = -math.inf if rule.lower is None else rule.lower
    if rule.divergence != "k1":
        return lower, rule.upper
    return (lower if rule.lower is None else math.log(lower)), math.log(rule.upper)


def inside(rule: RejectionRule, statistic: Tensor) -> Tensor:
    """Check whether the statistic is inside the rule's bounds. NaN is outside."""
    lower, upper = log_bounds(rule)
    return (statistic >= lower) & (statistic <= upper)


def passes(rule: RejectionRule, statistic: Tensor, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return which tokens the rule keeps: those inside its bounds, and those to which it does not apply."""
    if rule.applies_to == "all":
        return inside(rule, statistic)
    assert batch.advantages is not None
    return inside(rule, statistic) | ~_applies(rule.applies_to, batch.advantages, d)


def _applies(applies_to: AppliesTo, advantages: Tensor, d: Tensor) -> Tensor:
    """Return the tokens to which the rule applies. The negated form makes it apply to a NaN."""
    if applies_to == "negative":
        return ~(advantages >= 0)
    return ~(d * advantages <= 0)
