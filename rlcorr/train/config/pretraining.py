"""The warm start."""

from dataclasses import dataclass
from typing import Literal

from rlcorr.train.config.checks import check
from rlcorr.validated import member

Architecture = Literal["qwen2", "qwen2_narrow", "qwen2_half_billion", "qwen3_moe"]
PretrainTask = Literal["addition", "sorting"]


@dataclass(frozen=True)
class PretrainConfig:
    """Supervised training of the warm start, on a GPU where there is one; on a CPU the same seed and thread count give
    the same model."""

    run: str = "warm_start"
    """Name of the run; it is written to runs/local/<name>."""
    architecture: Architecture = "qwen2"
    """qwen2, qwen2_narrow: of width 128 instead of 192, qwen2_half_billion: of the shape of Qwen2.5-0.5B, or qwen3_moe:
    a mixture of 8 experts, of which each token takes 2."""
    task: PretrainTask = "addition"
    """addition, with running sums in between, or sorting alone."""
    max_steps: int = 5000
    stop_at_accuracy: float = 0.35
    """Stop once greedy decoding answers this share of held-out prompts of the task completely: half-taught leaves PPO
    something to do."""
    eval_every: int = 100
    eval_prompts: int = 512
    """Held-out prompts of an evaluation."""
    addition_every: int = 10
    """Steps per step on additions, which are learned far sooner than the running sums of the others; 1: additions
    alone."""
    addition_batch: int = 48
    running_sum_batch: int = 16
    sorting_batch: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        member("architecture", self.architecture, Architecture)
        member("task", self.task, PretrainTask)
        for name in ("addition_every", "eval_prompts"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "≥ 1")
