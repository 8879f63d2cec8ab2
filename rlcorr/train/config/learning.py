"""Settings of the advantages, the optimizer and the score sketches."""

from dataclasses import dataclass
from typing import Literal

from rlcorr.losses.advantages import GROUPED
from rlcorr.validated import check, member

Estimator = Literal["gae", "grpo", "rloo", "reinforce_pp"]
Critic = Literal["shared", "separate"]
Sharding = Literal["ddp", "fsdp"]
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: Estimator = "gae"
    """gae (PPO, with a critic), or one without a critic: grpo, rloo or reinforce_pp."""
    critic: Critic = "shared"
    """gae: shared (a value head on the policy's own trunk) or separate (a value model that starts as a copy of the
    policy)."""
    gamma: float = 1.0
    """gae and reinforce_pp: discount factor per token."""
    gae_lambda: float = 1.0
    """gae: the λ of generalised advantage estimation."""
    value_coef: float = 0.1
    """gae: weight of the value loss."""
    whiten: bool = True
    """gae and reinforce_pp: normalise to zero mean and unit variance over the kept tokens of the batch."""
    norm_by_std: bool = True
    """grpo: divide by the standard deviation of the group. Off: Dr. GRPO."""

    def __post_init__(self) -> None:
        member("estimator", self.estimator, Estimator)
        member("critic", self.critic, Critic)
        for name in ("gamma", "gae_lambda"):
            check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        check(self.value_coef >= 0, "value_coef", self.value_coef, "≥ 0")

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
    """Largest number of tokens, padding included, in one forward pass. The gradients of the micro-batches add up to the
    gradient of the mini-batch."""
    learning_rate: float = 3e-4
    """Learning rate at the beginning of the run."""
    final_learning_rate: float = 3e-5
    """Learning rate of the last step; the rate falls linearly to it."""
    max_grad_norm: float = 1.0
    """Scale a gradient with a larger norm down to this norm."""
    entropy_coef: float = 0.0
    """Weight of the bonus on the entropy of the kept tokens."""
    sharding: Sharding = "ddp"
    """With several ranks: every rank has the whole model (ddp), or a part of it (fsdp)."""
    precision: Precision = "float32"
    """Number format of the trainer's matrix products, in scores and updates: float32, or autocast to bfloat16 or
    float16. Weights stay float32. float16 scales the loss; a step that overflows is skipped and counted."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer, and compute the layer again in the backward pass: less memory, a third more
    work."""
    share_prompts: bool = True
    """Compute a prompt once for all its answers, if that saves a quarter of the tokens and the model's layers attend to
    all earlier tokens. The numbers differ in their rounding only."""

    def __post_init__(self) -> None:
        for name in (
            "epochs", "minibatches", "microbatch_tokens", "learning_rate", "final_learning_rate", "max_grad_norm"
        ):  # fmt: skip
            check(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        check(self.entropy_coef >= 0, "entropy_coef", self.entropy_coef, "≥ 0")
        member("sharding", self.sharding, Sharding)
        member("precision", self.precision, Precision)


@dataclass(frozen=True)
class SketchConfig:
    """Score sketches of recorded steps. Gradient bias and variance are computed from them. They are made in float32,
    whatever the trainer's precision is."""

    every: int = 0
    """Steps between sketches; 0: no sketches. A step with a sketch is recorded as well."""
    until: int = 0
    """Last step that may have a sketch; 0: the last step of the run."""
    directions: int = 512
    """Number K of random directions in parameter space: the error of a cosine is about 1/√K."""
    places: int = 32
    """Response tokens at which every token of the vocabulary is sketched, for exact gradients of KL losses."""
    exact_prompts: int = 0
    """Additional prompts for which every likely answer is sketched, so that expectations over answers are exact. Only
    for short answers; 0: none."""
    smallest_probability: float = 5e-4
    """Exact sketches: leave out answers that are less likely than this under both policies."""
    tree_mib: int = 256
    """Exact sketches: memory for all answers in MiB; the run stops with an error if they need more."""
    reference_prompts: int = 0
    """Ignored. Configurations of version 0.1 have it: prompts for an on-policy gradient of its own."""
    answers: int = 0
    """Ignored. Configurations of version 0.1 have it: further answers for the gradient."""
    answer_directions: int = 0
    """Ignored. Configurations of version 0.1 have it: number of directions of further answers."""

    def __post_init__(self) -> None:
        check(self.every >= 0, "sketch.every", self.every, "≥ 0")
        check(self.until >= 0, "sketch.until", self.until, "≥ 0")
        check(self.directions >= 1, "sketch.directions", self.directions, "≥ 1")
        check(self.places >= 1, "sketch.places", self.places, "≥ 1")
        check(
            self.exact_prompts == 0 or self.exact_prompts >= 8, "sketch.exact_prompts", self.exact_prompts, "0 or ≥ 8"
        )
        smallest = self.smallest_probability
        check(0 < smallest < 1, "sketch.smallest_probability", smallest, "above 0 and below 1")
        check(self.tree_mib >= 1, "sketch.tree_mib", self.tree_mib, "≥ 1")

    def made_at(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0 and (self.until == 0 or step <= self.until)
