"""What a person can set. Field docstrings become `--help`; wrong values are refused before anything starts."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.presets import PRESETS, preset
from rlcorr.runs import ROOT
from rlcorr.train.tasks import get_task

EngineName = Literal["auto", "vllm", "transformers"]
Dtype = Literal["float32", "float16", "bfloat16"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e5m2"]

TRAINER_LOSS = LossConfig(use_kl_loss=True)
"""PPO's numbers, with a small KL term to the frozen starting model."""

WARM_START = ROOT / "warm_start" / "checkpoint"


@dataclass(frozen=True)
class RolloutConfig:
    """The engine that samples. Its settings are where the mismatch comes from."""

    engine: EngineName = "auto"
    """vllm, transformers, or auto: vllm where it is installed."""
    dtype: Dtype = "bfloat16"
    """Number format of the engine's weights and activations; the trainer always computes in float32."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Number format of the engine's KV cache (vllm); auto: the same as dtype."""
    temperature: float = 1.0
    """Sampling temperature; log-probs are those of the tempered distribution, in the engine and in the trainer."""

    def __post_init__(self) -> None:
        for name, allowed in (("engine", EngineName), ("dtype", Dtype), ("kv_cache_dtype", KvCacheDtype)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown(name, getattr(self, name), get_args(allowed))
        _require(self.temperature > 0, "temperature", self.temperature, "> 0")


@dataclass(frozen=True)
class TrainConfig:
    """PPO-clip with a value head, on one device."""

    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: the task and the next free number."""
    task: str = "addition"
    """addition or running_sum."""
    model: Path = WARM_START
    """Directory of the model to start from, in Hugging Face format."""
    preset: str = "decoupled_token_is"
    """Correction, by preset name."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    steps: int = 400
    """Updates of the engine's weights."""
    stop_at_accuracy: float = 1.1
    """Stop once the held-out greedy accuracy reaches this; above 1: never."""
    prompts_per_step: int = 256
    samples_per_prompt: int = 1
    epochs: int = 2
    """Passes over each batch."""
    minibatches: int = 2
    """Optimizer steps per pass."""
    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    """What the learning rate falls to, linearly, at the last step."""
    loss: LossConfig = TRAINER_LOSS
    """The numbers of the policy loss and of its KL terms; a preset with numbers of its own sets those."""
    value_clip: float = 0.2
    value_coef: float = 0.1
    gamma: float = 1.0
    gae_lambda: float = 1.0
    max_grad_norm: float = 1.0
    eval_every: int = 10
    """Steps between greedy evaluations on held-out prompts."""
    eval_prompts: int = 512
    record_every: int = 1
    """Steps between recorded batches; metrics are written at every step."""
    seed: int = 0

    def __post_init__(self) -> None:
        get_task(self.task)
        preset(self.preset)
        if not (self.model / "config.json").is_file():
            raise UsageError(f"no model at {self.model}: it must hold config.json; the warm start is {WARM_START}.")
        self.policy_loss  # noqa: B018 refuses numbers that contradict the preset's
        if Path(self.run).name != self.run or self.run in (".", ".."):
            raise UsageError(f"run must be a plain name, without folders; got {self.run!r}.")
        positive = ("steps", "prompts_per_step", "samples_per_prompt", "epochs", "minibatches", "eval_every")
        for name in (
            *positive,
            "eval_prompts",
            "record_every",
            "learning_rate",
            "final_learning_rate",
            "max_grad_norm",
        ):
            _require(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        for name in ("gamma", "gae_lambda"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        _require(
            self.minibatches <= self.prompts_per_step * self.samples_per_prompt,
            "minibatches",
            self.minibatches,
            "at most prompts_per_step · samples_per_prompt",
        )

    @property
    def policy_loss(self) -> LossConfig:
        """`loss` with the numbers that the preset sets. Raises `UsageError` where both set one."""
        own, plain = PRESETS[self.preset].loss, LossConfig()
        names = [f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(plain, f.name)]
        for name in names:
            if getattr(self.loss, name) not in (getattr(TRAINER_LOSS, name), getattr(own, name)):
                raise UsageError(
                    f"preset {self.preset} sets {name}={getattr(own, name)}; got {getattr(self.loss, name)} as well."
                )
        return dataclasses.replace(self.loss, **{name: getattr(own, name) for name in names})

    @property
    def correction(self) -> CorrectionConfig:
        return preset(self.preset)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return dataclasses.asdict(self) | {"model": _portable(self.model)}


@dataclass(frozen=True)
class PretrainConfig:
    """Supervised training of the warm start; the same seed and thread count give the same model."""

    run: str = "warm_start"
    """Name of the run; it is written to runs/local/<name>."""
    max_steps: int = 5000
    stop_at_accuracy: float = 0.35
    """Stop once greedy decoding answers this share of held-out additions: half-taught leaves PPO something to do."""
    eval_every: int = 100
    addition_batch: int = 48
    running_sum_batch: int = 16
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    seed: int = 0


def _portable(path: Path) -> str:
    """Paths inside the runs folder are written relative to it, so that a manifest fits every machine."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _require(fine: bool, name: str, got: object, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{name} must be {allowed}; got {got}.")
