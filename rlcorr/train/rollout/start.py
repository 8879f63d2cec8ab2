"""Choose the rollout engine and start it."""

import importlib.util
from pathlib import Path

import torch

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.engine import RolloutEngine
from rlcorr.train.rollout.transformers_engine import TransformersEngine


def vllm_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def has_caches_in_8_bits() -> bool:
    """Check whether vLLM can keep its KV cache in 8 bits here: on a GPU, or on a CPU with AVX-512 or AMX."""
    cpu = torch.cpu.get_capabilities()
    return torch.cuda.is_available() or bool(cpu.get("avx512_f") or cpu.get("amx_tile"))


def resolve_engine(config: RolloutConfig) -> str:
    """Return the name of the engine; `auto` is vllm if it is installed.

    Raises `UsageError` if the engine cannot do what the configuration asks for.
    """
    name = config.engine
    if name == "auto":
        name = "vllm" if vllm_installed() else "transformers"
    if name == "vllm" and not vllm_installed():
        raise UsageError("engine vllm is not installed here; use --rollout.engine transformers.")
    for option, off in (("kv_cache_dtype", "auto"), ("quantization", "none"), ("router_replay", False)):
        if name == "transformers" and getattr(config, option) != off:
            raise UsageError(f"{option} {getattr(config, option)!r} needs the vllm engine; got transformers.")
    if config.kv_cache_dtype == "fp8_e5m2" and torch.cuda.is_available():
        raise UsageError("kv_cache_dtype 'fp8_e5m2' needs vLLM's CPU engine: FlashAttention on a GPU takes e4m3 only.")
    if config.kv_cache_dtype.startswith("fp8") and not has_caches_in_8_bits():
        raise UsageError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} needs a GPU, or a CPU with AVX-512 or AMX; here is neither."
        )
    if config.quantization == "fp8" and not torch.cuda.is_available():
        raise UsageError("quantization 'fp8' needs a GPU that computes in fp8; this machine has no visible GPU.")
    return name


def start_engine(config: RolloutConfig, model: Path, ranks: Ranks, eos_ids: list[int], log: Path) -> RolloutEngine:
    """Start the configuration's engine with the weights of `model`; a response ends with one of `eos_ids`.

    Raises `UsageError` if the number of ranks is no multiple of what one engine needs.
    """
    if ranks.size > 1 and ranks.size % config.tensor_parallel_size:
        raise UsageError(
            f"tensor_parallel_size {config.tensor_parallel_size} does not divide the {ranks.size} ranks: change "
            "--nproc-per-node."
        )
    if resolve_engine(config) == "vllm":
        # Imported here: it takes seconds, and not every platform has it.
        from rlcorr.train.rollout.vllm_engine import VllmEngine

        return VllmEngine(config, model, ranks, eos_ids, log)
    return TransformersEngine(config, load_lm(model, ranks.device), eos_ids)
