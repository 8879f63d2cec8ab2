"""Rejection rules, which exclude tokens or sequences from the loss. A wrong value raises `UsageError` at construction.

r = π_old/π_rollout and d = log r, per token. In bypass mode π_θ takes the place of π_old.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rlcorr.errors import UsageError, unknown
from rlcorr.validated import member, positive, two_sided

Level = Literal["token", "sequence"]
Reduce = Literal["sum", "mean", "max", "min"]
Divergence = Literal[
    "k1", "k2", "k3", "binary_kl", "prob_diff", "signed_kl", "abs_ratio_error", "mult_error", "forward_kl", "binary_tv",
    "prefix_gap",
]  # fmt: skip
AppliesTo = Literal["all", "negative", "outward"]

SIGNED: tuple[Divergence, ...] = ("k1", "prob_diff", "signed_kl")
"""Divergences with a direction. They may have a lower and an upper bound, the others only an upper one."""

PREFIX_DIVERGENCES: tuple[Divergence, ...] = ("prefix_gap",)
"""Divergences of a token that also depend on the tokens before it."""

_SUBJECT = {
    "k1": "ratio",
    "k2": "k2",
    "k3": "k3",
    "binary_kl": "two-sided binary KL",
    "prob_diff": "π_old − π_rollout",
    "signed_kl": "signed binary KL",
    "abs_ratio_error": "|r − 1|",
    "mult_error": "e^|log r|",
    "forward_kl": "binary KL(π_rollout‖π_old)",
    "binary_tv": "|π_old − π_rollout|",
    "prefix_gap": "w|π_old − π_rollout| + what the answer has overspent before",
}
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

    P and Q are the two-outcome distributions "this token or another" under π_old and π_rollout.

    k1               r itself; sum and mean give the product and the geometric mean of the ratios, min and max a veto
    k2, k3           d²/2 and eᵈ − 1 − d
    binary_kl        max(KL(P‖Q), KL(Q‖P)) (KPop)
    prob_diff        π_old − π_rollout, in [−1, 1] (binary total variation, with its sign)
    signed_kl        KL(Q‖P), with the sign of π_old − π_rollout
    abs_ratio_error  |r − 1|, whose mean estimates twice the total variation
    mult_error       e^|d| ≥ 1, the factor by which the two probabilities differ
    forward_kl       KL(Q‖P), without a sign (FlashREINFORCE)
    binary_tv        |π_old − π_rollout|, the total variation of P and Q
    prefix_gap       weighted binary_tv plus what earlier tokens of the answer exceeded their budget by; for token
                     rules only (CPPO; module `prefix_gap`)

    k1, prob_diff and signed_kl take a lower bound, an upper bound, or both; the others only an upper one. A bound
    itself is inside, and NaN is outside.
    """

    level: Level
    divergence: Divergence
    upper: float = math.inf
    lower: float | None = None
    reduce: Reduce | None = None
    applies_to: AppliesTo = "all"
    """all: every token; negative: tokens with A < 0; outward: tokens whose ratio the update moves away
    from 1, d·A > 0."""

    def __post_init__(self) -> None:
        member("level", self.level, Level)
        member("divergence", self.divergence, Divergence)
        member("applies_to", self.applies_to, AppliesTo)
        if self.level == "sequence":
            member("reduce", self.reduce or "none", Reduce)
            if self.divergence in PREFIX_DIVERGENCES:
                raise UsageError(f"{self.divergence} looks at an answer already: level must be 'token'.")
        elif self.reduce is not None:
            raise UsageError(f"a token rule reduces nothing: reduce must be None, got {self.reduce!r}.")
        if self.reduce == "min" and self.divergence not in SIGNED:
            raise UsageError(
                f"{self.name}: the smallest {self.divergence} is no use; min goes with {', '.join(SIGNED)}."
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        name, lower, upper = self.name, self.lower, self.upper
        if self.divergence not in SIGNED and lower is not None:
            raise UsageError(f"{name} is a divergence ≥ 0 and takes only an upper bound; got lower={lower}.")
        if lower is None and upper == math.inf:
            raise UsageError(f"{name} has no bound: give lower, upper or both.")
        if self.divergence in ("prob_diff", "signed_kl"):
            two_sided(name, lower, upper)
        else:
            positive(name, lower, upper)
        if self.divergence == "mult_error" and upper < 1:
            raise UsageError(f"{name}: e^|d| is never below 1, so upper={upper} would reject everything.")

    @property
    def name(self) -> str:
        """Return the name of the rule, such as token_k1 or seq_mean_k3. It is verl's name if verl has the rule."""
        base = f"token_{self.divergence}" if self.level == "token" else f"seq_{self.reduce}_{self.divergence}"
        return base if self.applies_to == "all" else f"{base}_{self.applies_to}"

    def explain(self) -> str:
        """Explain in one sentence what the rule keeps."""
        subject = _OVER[self.reduce] + _SUBJECT[self.divergence]
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


def _rule_names() -> dict[str, tuple[Level, Divergence, Reduce | None, AppliesTo]]:
    parts: dict[str, tuple[Level, Divergence, Reduce | None, AppliesTo]] = {}
    reduces: tuple[Reduce | None, ...] = (None, *get_args(Reduce))
    for applies_to in get_args(AppliesTo):
        suffix = "" if applies_to == "all" else f"_{applies_to}"
        for reduce in reduces:
            for divergence in get_args(Divergence) if reduce != "min" else SIGNED:
                if reduce and divergence in PREFIX_DIVERGENCES:
                    continue
                base = f"seq_{reduce}_{divergence}" if reduce else f"token_{divergence}"
                parts[base + suffix] = ("sequence" if reduce else "token", divergence, reduce, applies_to)
    return parts


RULE_NAMES = _rule_names()
"""Name of a rule → its level, divergence, reduction and the tokens to which it applies."""
