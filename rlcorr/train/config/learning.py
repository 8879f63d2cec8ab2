"""Settings of the advantages, the optimizer, the score sketches and rejection by budget."""

from dataclasses import dataclass
from typing import Literal

from rlcorr.errors import check, unknown
from rlcorr.losses.advantages import GROUPED
from rlcorr.rules import RULE_NAMES

Estimator = Literal["gae", "grpo", "rloo", "reinforce_pp"]
Sharding = Literal["ddp", "fsdp"]
Precision = Literal["float32", "bfloat16", "float16"]
AT_RANDOM = ("random_token", "random_sequence", "random_negative")


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages. Those of gae and reinforce_pp are normalised to zero mean and unit variance over
    the kept tokens of the batch."""

    estimator: Estimator = "gae"
    """gae (PPO, with a critic), or one without a critic: grpo, rloo or reinforce_pp."""
    gae_lambda: float = 1.0
    """gae: the λ of generalised advantage estimation."""
    norm_by_std: bool = True
    """grpo: divide by the standard deviation of the group. Off: Dr. GRPO."""

    def __post_init__(self) -> None:
        check(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "between 0 and 1")

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
    sharding: Sharding = "ddp"
    """With several ranks: every rank has the whole model (ddp), or a part of it (fsdp)."""
    precision: Precision = "float32"
    """Number format of the trainer's matrix products, in scores and updates: float32, or autocast to bfloat16 or
    float16. Weights stay float32. float16 scales the loss; a step that overflows is skipped and counted."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer, and compute the layer again in the backward pass: less memory, a third more
    work."""

    def __post_init__(self) -> None:
        for name in (
            "epochs", "minibatches", "microbatch_tokens", "learning_rate", "final_learning_rate", "max_grad_norm"
        ):  # fmt: skip
            check(getattr(self, name) > 0, name, getattr(self, name), "> 0")


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
    reference_answers: int = 0
    """Answers that the trained weights themselves sample in float32; their mean gradient is the one that a correction
    should have. Each part that is done is kept for --resume. 0: none, and exact sequence weights give that gradient."""
    exact_prompts: int = 0
    """Additional prompts for which every likely answer is sketched, so that expectations over answers are exact. Only
    for short answers; 0: none."""
    smallest_probability: float = 5e-4
    """Exact sketches: leave out answers that are less likely than this under both policies."""

    def __post_init__(self) -> None:
        prompts, smallest = self.exact_prompts, self.smallest_probability
        check(prompts == 0 or prompts >= 8, "sketch.exact_prompts", prompts, "0 or ≥ 8")
        check(self.reference_answers >= 0, "sketch.reference_answers", self.reference_answers, "≥ 0")
        check(0 < smallest < 1, "sketch.smallest_probability", smallest, "above 0 and below 1")

    def made_at(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0 and (self.until == 0 or step <= self.until)


@dataclass(frozen=True)
class BudgetConfig:
    """Rejection by budget: every batch keeps the same share of its tokens, however large its mismatch is. The bound is
    solved for on every batch."""

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
