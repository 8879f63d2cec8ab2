"""Settings of pretraining, which makes the warm start."""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["qwen2", "qwen2_narrow", "qwen3_moe"]
PretrainTask = Literal["addition", "sorting"]


@dataclass(frozen=True)
class PretrainConfig:
    """Supervised training of the warm start, on a GPU if there is one. On a CPU, the same seed and number of threads
    give the same model."""

    run: str = "warm_start"
    """Name of the run; it is written to runs/local/<name>."""
    architecture: Architecture = "qwen2"
    """qwen2 (width 192), qwen2_narrow (width 128), or qwen3_moe (8 experts, of which each token uses 2)."""
    task: PretrainTask = "addition"
    """addition (mixed with running sums), or sorting."""
    max_steps: int = 5000
    """Largest number of steps."""
    stop_at_accuracy: float = 0.35
    """Stop when greedy decoding answers this share of the held-out prompts of the task completely. A model that knows
    only half of the task leaves PPO something to learn."""
    eval_every: int = 100
    """Steps between evaluations."""
    eval_prompts: int = 512
    """Held-out prompts per evaluation."""
    addition_every: int = 10
    """One step in this many trains on additions, the others on running sums, which are learned much more slowly; 1:
    additions only."""
    seed: int = 0
    """Seed of the initial weights and the prompts."""
