"""Advantages, the optimizer, and score sketches."""

from dataclasses import dataclass
from typing import Literal

from rlcorr.config import KL_ESTIMATORS
from rlcorr.errors import UsageError, unknown
from rlcorr.losses.advantages import GROUPED
from rlcorr.train.config.checks import check
from rlcorr.validated import member

Estimator = Literal["gae", "grpo", "rloo", "reinforce_pp"]
Critic = Literal["shared", "separate"]
Sharding = Literal["ddp", "fsdp"]
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: Estimator = "gae"
    """gae (PPO, with a critic), grpo, rloo or reinforce_pp (without)."""
    critic: Critic = "shared"
    """gae: a value head on the policy's own trunk, or a separate value model that starts as a copy of it."""
    gamma: float = 1.0
    gae_lambda: float = 1.0
    value_clip: float = 0.2
    value_coef: float = 0.1
    whiten: bool = True
    """gae and reinforce_pp: zero mean and unit variance over the kept tokens of the batch."""
    norm_by_std: bool = True
    """grpo: divide by the standard deviation of the group; without: Dr. GRPO."""
    rejected_in_groups: bool = False
    """grpo and rloo: whether sequences of which nothing is kept still count in their group's mean and deviation."""
    kl_reward_coef: float = 0.0
    """Subtract this times KL(π_old‖π_ref) from each token's reward."""
    kl_reward_type: str = "k1"
    """Estimator of that penalty."""

    def __post_init__(self) -> None:
        member("estimator", self.estimator, Estimator)
        member("critic", self.critic, Critic)
        for name in ("gamma", "gae_lambda"):
            check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("value_coef", "kl_reward_coef"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "≥ 0")
        check(self.value_clip > 0, "value_clip", self.value_clip, "> 0")
        if self.kl_reward_type not in KL_ESTIMATORS:
            raise unknown("kl_reward_type", self.kl_reward_type, KL_ESTIMATORS)

    @property
    def grouped(self) -> bool:
        return self.estimator in GROUPED


@dataclass(frozen=True)
class OptimConfig:
    """Epochs × mini-batches × micro-batches, and the optimizer (AdamW without weight decay)."""

    epochs: int = 2
    """Passes over each batch."""
    minibatches: int = 2
    """Optimizer steps per pass."""
    microbatch_tokens: int = 16384
    """Most tokens, padding included, that go through the model at once; gradients add up to the mini-batch's."""
    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    """What the learning rate falls to, linearly, at the last step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    max_grad_norm: float = 1.0
    entropy_coef: float = 0.0
    """Bonus on the entropy of the kept tokens."""
    sharding: Sharding = "ddp"
    """Several ranks: every rank holds the whole model (ddp), or a part of it (fsdp)."""
    precision: Precision = "float32"
    """Number format of the trainer's products: float32, or autocast to bfloat16 or float16, over float32 weights, in
    scores and updates alike. float16 scales the loss; a step that overflows is skipped and counted."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer, and compute it again in the backward pass: less memory, a third more work."""

    def __post_init__(self) -> None:
        for name in (
            "epochs", "minibatches", "microbatch_tokens", "learning_rate", "final_learning_rate", "max_grad_norm"
        ):  # fmt: skip
            check(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        for name in ("warmup_steps", "entropy_coef"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "≥ 0")
        member("sharding", self.sharding, Sharding)
        member("precision", self.precision, Precision)


@dataclass(frozen=True)
class SketchConfig:
    """Score sketches of recorded steps: what gradient bias and variance are computed from. They are made in float32,
    whatever the trainer's precision is."""

    every: int = 0
    """Steps between sketches; 0: none. A step with a sketch is recorded as well."""
    until: int = 0
    """The last step that may have one; 0: that of the run."""
    directions: int = 256
    """Random directions K of the parameter space: a cosine is known to about 1/√K."""
    reference_prompts: int = 1024
    """Prompts that the trainer's own float32 weights answer, for the on-policy gradient."""
    places: int = 32
    """Response tokens for which every token of the vocabulary is sketched, for exact gradients of KL losses."""
    exact_prompts: int = 0
    """Other prompts of which every likely answer is sketched as well: expectations over answers are exact then. For
    short answers; 0: none."""
    smallest_probability: float = 5e-4
    """Exact sketches: answers that are less likely than this under both policies are left out."""
    tree_mib: int = 256
    """Exact sketches: memory for all answers; more of them are refused."""
    answers: int = 0
    """Answers to other prompts, drawn with the weights that sampled the step's own; gradients are measured on these.
    For long answers; 0: gradients are measured on the step's own."""
    answer_directions: int = 0
    """Directions for these answers, the first of all; 0: all."""

    def __post_init__(self) -> None:
        check(self.every >= 0, "sketch.every", self.every, "≥ 0")
        check(self.until >= 0, "sketch.until", self.until, "≥ 0")
        check(self.directions >= 1, "sketch.directions", self.directions, "≥ 1")
        check(self.places >= 1, "sketch.places", self.places, "≥ 1")
        check(self.reference_prompts >= 64, "sketch.reference_prompts", self.reference_prompts, "≥ 64")
        check(
            self.exact_prompts == 0 or self.exact_prompts >= 8, "sketch.exact_prompts", self.exact_prompts, "0 or ≥ 8"
        )
        smallest = self.smallest_probability
        check(0 < smallest < 1, "sketch.smallest_probability", smallest, "above 0 and below 1")
        check(self.tree_mib >= 1, "sketch.tree_mib", self.tree_mib, "≥ 1")
        check(self.answers >= 0, "sketch.answers", self.answers, "≥ 0")
        most = self.directions
        check(
            0 <= self.answer_directions <= most, "sketch.answer_directions", self.answer_directions,
            f"between 0 and sketch.directions, which is {most}",
        )  # fmt: skip
        if self.answers and self.exact_prompts:
            raise UsageError(
                f"gradients are measured on {self.answers} sampled answers or on every likely answer to "
                f"{self.exact_prompts} prompts, not on both: leave sketch.answers or sketch.exact_prompts out."
            )

    def made_at(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0 and (self.until == 0 or step <= self.until)
