"""Rejection rules, which exclude tokens or sequences from the loss. A wrong value raises `UsageError` at construction.

r = π_old/π_rollout and d = log r, per token. In bypass mode π_θ takes the place of π_old.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rlcorr.divergences import DIVERGENCES, SIGNED, Divergence
from rlcorr.errors import UsageError, unknown
from rlcorr.ratios import Reduce
from rlcorr.validated import member, positive, two_sided

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
