"""Options of a training run that a page can set: names from lists and numbers within limits, never free text."""

import importlib.util
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from rlcorr.errors import UsageError
from rlcorr.train.config.packaged import has_fast_bfloat16

REAL_MODEL = (
    *("--model", "smollm2", "--steps", "20", "--eval-prompts", "32"),
    *("--checkpoint-every", "0", "--no-save-model", "--no-tensorboard"),
)  # fmt: skip
"""Options of the training run of a real model that a page starts with one click. It saves no weights."""


def real_model_options() -> tuple[str, ...]:
    """Return `REAL_MODEL`, with a trainer in float32 where bfloat16 is too slow to wait for."""
    return REAL_MODEL if has_fast_bfloat16() else (*REAL_MODEL, "--optim.precision", "float32")


def _option(words: str, default: Any, limits: tuple[float, float] | None = None) -> Any:
    """Return a field that is an option of `python -m rlcorr train`, with its lowest and highest value if it has any."""
    return field(default=default, metadata={"option": words, "limits": limits})


@dataclass(frozen=True)
class TrainRequest:
    """A training run that a page can start. Raises `UsageError` for a value outside its list or limits."""

    preset: str = _option("--preset", "decoupled_token_is")
    task: str = _option("--task", "addition")
    engine: str = _option("--rollout.engine", "auto")
    dtype: str = _option("--rollout.dtype", "bfloat16")
    kv_cache_dtype: str = _option("--rollout.kv-cache-dtype", "auto")
    staleness: int = _option("--rollout.staleness", 0, (0, 64))
    temperature: float = _option("--rollout.temperature", 1.0, (0.05, 5.0))
    learning_rate: float = _option("--optim.learning-rate", 3e-4, (1e-7, 1e-1))
    prompts_per_step: int = _option("--prompts-per-step", 256, (2, 4096))
    steps: int = _option("--steps", 400, (1, 10_000))
    seed: int = _option("--seed", 0, (0, 2**31 - 1))

    def __post_init__(self) -> None:
        allowed = choices()
        for option in fields(self):
            _check(option.name, getattr(self, option.name), type(option.default), allowed)
        if self.kv_cache_dtype != "auto" and (self.engine == "transformers" or "vllm" not in allowed["engine"]):
            raise UsageError(f"kv_cache_dtype {self.kv_cache_dtype!r} needs the vllm engine; got {self.engine}.")


OPTIONS: dict[str, str] = {option.name: option.metadata["option"] for option in fields(TrainRequest)}
"""Field → option of `python -m rlcorr train`."""
LIMITS: dict[str, tuple[float, float]] = {
    option.name: option.metadata["limits"] for option in fields(TrainRequest) if option.metadata["limits"]
}
"""Field → the lowest and the highest value."""


def _check(name: str, value: Any, wanted: type, allowed: dict[str, tuple[str, ...]]) -> None:
    if type(value) is not wanted:
        raise UsageError(f"{name} must be of type {wanted.__name__}; got {value!r}.")
    if name in allowed and value not in allowed[name]:
        raise UsageError(f"{name} must be one of {', '.join(allowed[name])}; got {value!r}.")
    if name in LIMITS and not LIMITS[name][0] <= value <= LIMITS[name][1]:
        low, high = LIMITS[name]
        raise UsageError(f"{name} must be between {low:g} and {high:g}; got {value!r}.")


def choices() -> dict[str, tuple[str, ...]]:
    """Return field → the names that can be chosen on this machine."""
    from rlcorr.presets import RANKED
    from rlcorr.train.config.rollout import Dtype, EngineName, KvCacheDtype
    from rlcorr.train.inputs.tasks import TASKS

    has_vllm = importlib.util.find_spec("vllm") is not None
    return {
        "preset": tuple(RANKED),
        "task": tuple(TASKS),
        "engine": tuple(name for name in get_args(EngineName) if has_vllm or name != "vllm"),
        "dtype": get_args(Dtype),
        "kv_cache_dtype": get_args(KvCacheDtype),
    }


def options_of(request: TrainRequest) -> list[str]:
    """Return the options of `python -m rlcorr train` for a request."""
    return [word for name, option in OPTIONS.items() for word in (option, str(getattr(request, name)))]


def real_model_megabytes() -> int:
    """Return the size of the download before the real model can be trained, in MB; 0 if it is on this machine."""
    from rlcorr.train.inputs.smollm2 import megabytes_to_fetch

    return megabytes_to_fetch()
