"""The settings of an experiment in the Lab."""

from dataclasses import dataclass
from typing import Literal

from rlcorr.errors import UsageError, check, is_number, member, number
from rlcorr.lab.task import DIGITS
from rlcorr.weights import Weights

Level = Literal["none", "token", "sequence", "geometric"]
Bound = Literal["cap", "mask", "band", "reject"]
TWO_SIDED = ("band", "reject")
"""Bounds that also hold below the inverse of the threshold."""
Penalty = Literal["none", "k1", "k2", "k3", "k3+"]
Optimizer = Literal["adamw", "sgd"]

RATIOS = {"none": "nothing", "token": "each ratio", "sequence": "their product", "geometric": "their geometric mean"}
BOUNDS = {"cap": "a cap of", "mask": "a mask above", "band": "a band up to", "reject": "rejection above"}
"""Level and bound in words."""
MAX_LAG, MAX_STEPS, MAX_SEEDS = 64, 1000, 32


@dataclass(frozen=True)
class Experiment:
    """A training run in the Lab: how the sampler differs from the policy, what corrects it, and how it learns.

    Raises `UsageError` for a value out of its range.
    """

    lag: int = 16
    """Age of the sampler's weights in updates; 0: it has those of the policy."""
    noise: float = 0.0
    """Standard deviation of normal noise on the sampler's logits, drawn anew at each step, as coarse rounding makes."""
    top_p: float = 1.0
    """The sampler draws from its likeliest tokens that together have this probability. It reports the log-probs of
    its whole distribution, as vLLM does unless asked otherwise."""
    length: int = 3
    """Tokens of an answer, each a digit that must be right."""
    ratio: Level = "token"
    """What is weighted by: a level of `rlcorr.weights.LEVELS`; none: every weight is 1."""
    bound: Bound = "cap"
    """cap: a weight above the threshold becomes the threshold. mask: it becomes 0. band: so does one below its
    inverse. reject: as band, and every weight inside is 1."""
    threshold: float = 2.0
    penalty: Penalty = "none"
    """Estimator of the KL penalty against the policy of the start; k3+ has the value of k3 and the gradient of k2."""
    penalty_coef: float = 0.1
    optimizer: Optimizer = "adamw"
    learning_rate: float = 0.05
    steps: int = 120
    seed: int = 0
    """The first seed; the others follow it."""
    seeds: int = 8

    def __post_init__(self) -> None:
        for name, allowed in (("ratio", Level), ("bound", Bound), ("penalty", Penalty), ("optimizer", Optimizer)):
            member(name, getattr(self, name), allowed)
        for name, low, high in (
            ("lag", 0, MAX_LAG), ("length", 1, len(DIGITS)), ("steps", 1, MAX_STEPS), ("seed", 0, 2**31),
            ("seeds", 1, MAX_SEEDS),
        ):  # fmt: skip
            value = getattr(self, name)
            check(is_number(value) and low <= value <= high and value == int(value), name, value, f"{low} to {high}")
        number(self, "noise", "from 0 to 10", lambda x: 0 <= x <= 10)
        number(self, "top_p", "above 0, at most 1", lambda x: 0 < x <= 1)
        number(self, "learning_rate", "above 0, at most 100", lambda x: 0 < x <= 100)
        number(self, "penalty_coef", "from 0 to 100", lambda x: 0 <= x <= 100)
        number(self, "threshold", "from 0.01 to 1000", lambda x: 0.01 <= x <= 1000)
        if self.bound in TWO_SIDED and self.threshold < 1:
            raise UsageError(f"a range from 1/threshold needs a threshold of at least 1; got {self.threshold}.")

    def named(self) -> str:
        """Return the correction in words, such as "a cap of 2 on each ratio".

        >>> Experiment(ratio="sequence", bound="mask", threshold=4).named()
        'a mask above 4 on their product'
        """
        return f"{BOUNDS[self.bound]} {self.threshold:g} on {RATIOS[self.ratio]}"

    def weights(self, threshold: float) -> Weights:
        """Return the library's weights for a threshold. Needs a ratio to weight by."""
        lower = 1 / threshold if self.bound in TWO_SIDED else None
        return Weights(self.ratio, threshold, lower, "truncate" if self.bound == "cap" else "mask")
