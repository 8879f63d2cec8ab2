"""Settings of the rollout engine and of sampling."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from rlcorr.errors import UsageError, check

EngineName = Literal["auto", "vllm", "transformers"]
Dtype = Literal["float32", "float16", "bfloat16"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e5m2"]
Quantization = Literal["none", "fp8"]
WeightFormat = Literal["none", "fp8_e4m3", "int8", "int4"]
LogProbs = Literal["processed", "raw"]


@dataclass(frozen=True)
class Sampling:
    """The distribution that an engine samples from: the softmax of logits / temperature, cut to the likeliest tokens.
    Temperature 0 is greedy; top_p 1 and top_k 0 cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class RolloutConfig:
    """The rollout engine, which samples the answers. Its settings cause the mismatch."""

    engine: EngineName = "auto"
    """vllm, transformers, or auto (vllm if it is installed)."""
    dtype: Dtype = "bfloat16"
    """Number format of the engine's weights and activations; the trainer's is optim.precision."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Number format of the engine's KV cache (vllm); auto: the same as dtype."""
    quantization: Quantization = "none"
    """Format of the engine's weight matrices (vllm, on a GPU that supports it)."""
    weights: WeightFormat = "none"
    """Round the layers' weight matrices per output channel at each sync, on any machine: fp8_e4m3, int8 or int4. The
    weights are rounded exactly as in this format; activations stay in dtype."""
    temperature: float = 1.0
    """Temperature of sampling."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that has this probability; 1: from all tokens."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0: from all tokens."""
    log_probs: LogProbs = "processed"
    """Log-probs that the engine reports: those of the distribution that was sampled (processed), or those before
    temperature, top_p and top_k (raw)."""
    trainer_temperature: float | None = None
    """Temperature at which the trainer scores; None: the engine's. Another value makes a mismatch on purpose."""
    staleness: int = 0
    """Number of versions by which the sampling weights are older than the trained weights."""
    asynchronous: bool = False
    """Generate in a thread while the trainer works, up to `staleness` versions ahead. The results are the same."""
    top_logprobs: int = 0
    """Record this many of the sampler's likeliest tokens at every position, with their log-probs under both policies.
    Score centering and sample-support replay need them; 0: none."""
    support_replay: bool = False
    """Score each token among the tokens that the sampler could draw at its position, as top_p and top_k left them, so
    that the trainer's probabilities are those of the same cut distribution. Needs top_k, and top_logprobs of at least
    top_k."""
    in_flight: bool = False
    """Give the engine new weights while answers are being generated: each answer is continued with every version on the
    way, by the same number of tokens, and its tokens have versions of their own. Needs a staleness of at least 1."""
    max_lag: int | None = None
    """Leave tokens out of the loss that weights more than this many updates old have sampled; None: none."""
    score_sampled: bool = False
    """Score every answer also with the weights that sampled it, in the trainer's arithmetic. That splits the gap into
    the engine's part and the part of the weights' age, for one more forward pass per step and float32 copies of waiting
    weights. One process only."""
    stale_lm_head: bool = False
    """TEACHING SWITCH: leave lm_head.weight out of every sync, to reproduce a well-known bug."""
    router_replay: bool = False
    """Mixture of experts: the trainer uses the experts that the engine chose."""
    tensor_parallel_size: int = 1
    """Number of GPUs or processes of one engine (vllm). With several ranks, so many of them share an engine."""
    max_model_len: int = 512
    """Largest length of prompt and response together, in tokens (vllm)."""
    kv_cache_mib: int = 256
    """Memory for the engine's KV cache in MiB (vllm)."""

    def __post_init__(self) -> None:
        check(self.temperature > 0, "temperature", self.temperature, "> 0")
        check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        check(self.staleness >= 0, "staleness", self.staleness, "≥ 0")
        scored = self.trainer_temperature
        check(scored is None or scored > 0, "trainer_temperature", scored, "> 0")
        replays = 1 < self.top_k <= self.top_logprobs and self.log_probs == "processed"
        alone = self.staleness and not (self.asynchronous or self.score_sampled or self.router_replay)
        for wrong, sentence in (
            (
                self.weights != "none" and self.quantization != "none",
                "quantization rounds the weights itself: leave out rollout.weights, or quantization.",
            ),
            (
                self.support_replay and not replays,
                "support_replay needs every token that the sampler could draw: set top_k to at least 2, top_logprobs "
                "to at least top_k, and log_probs to processed.",
            ),
            (
                self.in_flight and not alone,
                "in_flight needs a staleness of at least 1, and no asynchronous, score_sampled or router_replay.",
            ),
            (self.asynchronous and not self.staleness, "asynchronous needs a staleness of at least 1."),
        ):
            if wrong:
                raise UsageError(sentence)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k)

    @property
    def scored_temperature(self) -> float:
        return self.temperature if self.trainer_temperature is None else self.trainer_temperature

    @property
    def exact(self) -> bool:
        """Check whether the engine can differ from a float32 trainer by nothing else than float32 rounding."""
        plain = RolloutConfig(
            engine=self.engine, dtype="float32", temperature=self.temperature, router_replay=self.router_replay,
            tensor_parallel_size=self.tensor_parallel_size, max_model_len=self.max_model_len,
            kv_cache_mib=self.kv_cache_mib, score_sampled=self.score_sampled, top_logprobs=self.top_logprobs,
        )  # fmt: skip
        raw_is_processed = self.log_probs == "raw" and self.temperature == 1
        return dataclasses.replace(self, log_probs="processed" if raw_is_processed else self.log_probs) == plain
