"""What a person can set. Field docstrings become `--help`; wrong values are refused before anything starts."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rlcorr.advantages import GROUPED
from rlcorr.config import KL_ESTIMATORS, CorrectionConfig, LossConfig, LossType
from rlcorr.errors import UsageError, unknown
from rlcorr.presets import PRESETS, preset
from rlcorr.records.runs import ROOT
from rlcorr.train.inputs.model_source import check_model
from rlcorr.train.inputs.tasks import TASKS

EngineName = Literal["auto", "vllm", "transformers"]
Dtype = Literal["float32", "float16", "bfloat16"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e5m2"]
Quantization = Literal["none", "fp8"]
LogProbs = Literal["processed", "raw"]
Estimator = Literal["gae", "grpo", "rloo", "reinforce_pp"]
Critic = Literal["shared", "separate"]
Sharding = Literal["ddp", "fsdp"]
Architecture = Literal["qwen2", "qwen3_moe"]

TRAINER_LOSS = LossConfig(use_kl_loss=True)
"""PPO's numbers, with a small KL term to the frozen starting model."""

WARM_START = ROOT / "warm_start" / "checkpoint"


@dataclass(frozen=True)
class Sampling:
    """What an engine draws from: the softmax of logits / temperature, cut to the likeliest tokens. Temperature 0 is
    greedy; top_p 1 and top_k 0 cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class RolloutConfig:
    """The engine that samples. Its settings are where the mismatch comes from."""

    engine: EngineName = "auto"
    """vllm, transformers, or auto: vllm where it is installed."""
    dtype: Dtype = "bfloat16"
    """Number format of the engine's weights and activations; the trainer always computes in float32."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Number format of the engine's KV cache (vllm); auto: the same as dtype."""
    quantization: Quantization = "none"
    """Format of the engine's weight matrices (vllm on a GPU that has it)."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    log_probs: LogProbs = "processed"
    """What the engine reports: of the distribution that was sampled (processed), or before temperature, top_p and top_k
    (raw)."""
    trainer_temperature: float | None = None
    """Temperature at which the trainer scores; None: the engine's. Another one is a mismatch on purpose."""
    staleness: int = 0
    """Versions by which the sampling weights are older than the trained ones."""
    asynchronous: bool = False
    """Generate in a thread while the trainer works, up to `staleness` versions ahead. The numbers are the same."""
    stale_lm_head: bool = False
    """TEACHING SWITCH: leave lm_head.weight out of every sync, as a well-known bug does."""
    router_replay: bool = False
    """Mixture of experts: the trainer takes the experts that the engine chose."""
    tensor_parallel_size: int = 1
    """GPUs, or processes, of one engine (vllm)."""
    data_parallel_size: int = 1
    """Ranks that vLLM treats as one data-parallel group, as experts that are spread over ranks need it (vllm). Without
    it every rank, or every tensor-parallel group of ranks, already has an engine of its own."""
    max_model_len: int = 512
    """Longest prompt and response together, in tokens (vllm)."""
    kv_cache_mib: int = 256
    """Memory for the engine's KV cache (vllm)."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("engine", EngineName),
            ("dtype", Dtype),
            ("kv_cache_dtype", KvCacheDtype),
            ("quantization", Quantization),
            ("log_probs", LogProbs),
        ):
            _member(name, getattr(self, name), allowed)
        _require(self.temperature > 0, "temperature", self.temperature, "> 0")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        for name in ("top_k", "staleness"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "≥ 0")
        for name in ("tensor_parallel_size", "data_parallel_size", "max_model_len", "kv_cache_mib"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        scored = self.trainer_temperature
        _require(scored is None or scored > 0, "trainer_temperature", scored, "> 0")
        if self.asynchronous and self.staleness == 0:
            raise UsageError("asynchronous needs a staleness of at least 1: how far generation may run ahead.")

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k)

    @property
    def scored_temperature(self) -> float:
        return self.temperature if self.trainer_temperature is None else self.trainer_temperature

    @property
    def exact(self) -> bool:
        """Whether rounding in float32 is all that may lie between the engine and the trainer."""
        plain = RolloutConfig(
            engine=self.engine, dtype="float32", temperature=self.temperature, router_replay=self.router_replay,
            tensor_parallel_size=self.tensor_parallel_size, data_parallel_size=self.data_parallel_size,
            max_model_len=self.max_model_len,
            kv_cache_mib=self.kv_cache_mib,
        )  # fmt: skip
        raw_is_processed = self.log_probs == "raw" and self.temperature == 1
        return dataclasses.replace(self, log_probs="processed" if raw_is_processed else self.log_probs) == plain


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: Estimator = "gae"
    """gae (PPO, with a critic), grpo, rloo or reinforce_pp (without)."""
    critic: Critic = "shared"
    """gae: a value head on the policy's own trunk, or a separate value model that starts as a copy of it."""
    gamma: float = 1.0
    gae_lambda: float = 1.0
    value_clip: float = 0.2
    value_coef: float = 0.1
    whiten: bool = True
    """gae and reinforce_pp: zero mean and unit variance over the kept tokens of the batch."""
    norm_by_std: bool = True
    """grpo: divide by the standard deviation of the group; without: Dr. GRPO."""
    rejected_in_groups: bool = False
    """grpo and rloo: whether sequences of which nothing is kept still count in their group's mean and deviation."""
    kl_reward_coef: float = 0.0
    """Subtract this times KL(π_old‖π_ref) from each token's reward."""
    kl_reward_type: str = "k1"
    """Estimator of that penalty."""

    def __post_init__(self) -> None:
        _member("estimator", self.estimator, Estimator)
        _member("critic", self.critic, Critic)
        for name in ("gamma", "gae_lambda"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("value_coef", "kl_reward_coef"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "≥ 0")
        _require(self.value_clip > 0, "value_clip", self.value_clip, "> 0")
        if self.kl_reward_type not in KL_ESTIMATORS:
            raise unknown("kl_reward_type", self.kl_reward_type, KL_ESTIMATORS)

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
    """Most tokens, padding included, that go through the model at once; gradients add up to the mini-batch's."""
    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    """What the learning rate falls to, linearly, at the last step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    max_grad_norm: float = 1.0
    entropy_coef: float = 0.0
    """Bonus on the entropy of the kept tokens."""
    sharding: Sharding = "ddp"
    """Several ranks: every rank holds the whole model (ddp), or a part of it (fsdp)."""

    def __post_init__(self) -> None:
        for name in (
            "epochs", "minibatches", "microbatch_tokens", "learning_rate", "final_learning_rate", "max_grad_norm"
        ):  # fmt: skip
            _require(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        for name in ("warmup_steps", "entropy_coef"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "≥ 0")
        _member("sharding", self.sharding, Sharding)


@dataclass(frozen=True)
class SketchConfig:
    """Score sketches of recorded steps: what gradient bias and variance are computed from."""

    every: int = 0
    """Steps between sketches; 0: none. A step with a sketch is recorded as well."""
    directions: int = 256
    """Random directions K of the parameter space: a cosine is known to about 1/√K."""
    reference_prompts: int = 1024
    """Prompts that the trainer's own float32 weights answer, for the on-policy gradient."""
    places: int = 32
    """Response tokens for which every token of the vocabulary is sketched, for exact gradients of KL losses."""

    def __post_init__(self) -> None:
        _require(self.every >= 0, "sketch.every", self.every, "≥ 0")
        _require(self.directions >= 1, "sketch.directions", self.directions, "≥ 1")
        _require(self.places >= 1, "sketch.places", self.places, "≥ 1")
        _require(self.reference_prompts >= 64, "sketch.reference_prompts", self.reference_prompts, "≥ 64")


@dataclass(frozen=True)
class TrainConfig:
    """PPO, GRPO, RLOO or REINFORCE++ on a small model, with the correction that a preset names."""

    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: the task and the next free number."""
    task: str = "addition"
    """addition, running_sum, countdown, or jsonl: your own prompts."""
    data: Path | None = None
    """jsonl: the file, one {"prompt": …, "answer": …} per line."""
    eval_data: Path | None = None
    """jsonl: held-out prompts; without it one line in eight is held out."""
    reward: str = ""
    """jsonl: a function (prompt, response, answer) -> float as package.module:function; empty: exact match."""
    max_response_tokens: int = 256
    """jsonl: the longest response."""
    model: str = str(WARM_START)
    """Directory of the model to start from, in Hugging Face format, or the id of one on the hub."""
    preset: str = "decoupled_token_is"
    """Correction, by preset name."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    sketch: SketchConfig = field(default_factory=SketchConfig)
    loss_type: LossType | None = None
    """Policy loss in place of the preset's."""
    loss: LossConfig = TRAINER_LOSS
    """The numbers of the policy loss and of its KL terms; a preset with numbers of its own sets those."""
    steps: int = 400
    """Updates of the engine's weights."""
    stop_at_accuracy: float = 1.1
    """Stop once the held-out greedy accuracy reaches this; above 1: never."""
    prompts_per_step: int = 256
    samples_per_prompt: int = 1
    eval_every: int = 10
    """Steps between greedy evaluations on held-out prompts."""
    eval_prompts: int = 512
    record_every: int = 1
    """Steps between recorded batches; metrics are written at every step."""
    checkpoint_every: int = 1
    """Steps between checkpoints for --resume; 0: none."""
    save_model: bool = True
    """Write the trained weights into the run at its end, in Hugging Face format."""
    max_bad_steps: int = 10
    """Stop after this many steps in a row in which an update had to be skipped."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run."""
    wandb: str = ""
    """Project of Weights & Biases to report to; empty: none."""
    seed: int = 0

    def __post_init__(self) -> None:
        _check_task(self)
        self.correction  # noqa: B018 refuses unknown presets, and losses that do not fit one
        check_model(self.model)
        self.policy_loss  # noqa: B018 refuses numbers that contradict the preset's
        if Path(self.run).name != self.run or self.run in (".", ".."):
            raise UsageError(f"run must be a plain name, without folders; got {self.run!r}.")
        for name in (
            "steps", "prompts_per_step", "samples_per_prompt", "eval_every", "eval_prompts", "record_every",
            "max_response_tokens", "max_bad_steps",
        ):  # fmt: skip
            _require(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        _require(self.checkpoint_every >= 0, "checkpoint_every", self.checkpoint_every, "≥ 0")
        _require(
            self.optim.minibatches <= self.prompts_per_step * self.samples_per_prompt,
            "minibatches",
            self.optim.minibatches,
            "at most prompts_per_step · samples_per_prompt",
        )
        if self.advantage.grouped and self.samples_per_prompt < 2:
            raise UsageError(
                f"{self.advantage.estimator} compares the samples of a prompt: samples_per_prompt must be at least 2."
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
        """The preset's, with another loss where one is named. Raises `UsageError` where they contradict."""
        named = preset(self.preset)
        return named if self.loss_type is None else dataclasses.replace(named, loss_type=self.loss_type)

    @property
    def needs_reference(self) -> bool:
        return self.policy_loss.use_kl_loss or self.advantage.kl_reward_coef > 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        plain = dataclasses.asdict(self) | {"model": _portable(self.model)}
        return plain | {name: str(plain[name]) for name in ("data", "eval_data") if plain[name] is not None}


@dataclass(frozen=True)
class PretrainConfig:
    """Supervised training of the warm start; the same seed and thread count give the same model."""

    run: str = "warm_start"
    """Name of the run; it is written to runs/local/<name>."""
    architecture: Architecture = "qwen2"
    """qwen2, or qwen3_moe: a mixture of 8 experts, of which each token takes 2."""
    max_steps: int = 5000
    stop_at_accuracy: float = 0.35
    """Stop once greedy decoding answers this share of held-out additions: half-taught leaves PPO something to do."""
    eval_every: int = 100
    addition_every: int = 10
    """Steps per step on additions, which are learned far sooner than the running sums of the others; 1: additions
    alone."""
    addition_batch: int = 48
    running_sum_batch: int = 16
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        _member("architecture", self.architecture, Architecture)
        _require(self.addition_every >= 1, "addition_every", self.addition_every, "≥ 1")


def _check_task(config: TrainConfig) -> None:
    if config.task not in (*TASKS, "jsonl"):
        raise unknown("task", config.task, (*TASKS, "jsonl"))
    if config.task == "jsonl" and config.data is None:
        raise UsageError("task jsonl needs --data FILE, your own prompts.")
    for name in ("data", "eval_data", "reward"):
        if config.task != "jsonl" and getattr(config, name):
            raise UsageError(f"{name} belongs to task jsonl; got it with task {config.task}.")


def _portable(model: str) -> str:
    """Directories inside the runs folder are written relative to it, so that a manifest fits every machine."""
    path = Path(model)
    if not path.is_dir():
        return model  # of the hub
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _member(name: str, got: object, allowed: Any) -> None:
    if got not in get_args(allowed):
        raise unknown(name, str(got), get_args(allowed))


def _require(fine: bool, name: str, got: object, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{name} must be {allowed}; got {got}.")
