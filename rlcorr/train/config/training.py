"""All settings of one training run."""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig, LossType
from rlcorr.errors import UsageError, check, unknown
from rlcorr.losses.score_centering import check_centering
from rlcorr.presets import PRESETS, preset
from rlcorr.records.run_folders import require_run_name
from rlcorr.records.runs import ROOT
from rlcorr.train.config.learning import AdvantageConfig, BudgetConfig, OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.model_source import check_model
from rlcorr.train.inputs.reasoning_gym_task import GYM, is_gym, parse_task
from rlcorr.train.inputs.tasks import built_in

TRAINER_LOSS = LossConfig(use_kl_loss=True)
"""PPO's usual values, with a small KL term to the frozen starting model."""

_SCALED = "seq-mean-token-sum-norm"
WARM_START = ROOT / "warm_start" / "checkpoint"


@dataclass(frozen=True)
class TrainConfig:
    """PPO, GRPO, RLOO or REINFORCE++ on a small model, with the correction that a preset names."""

    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: the task and the next free number."""
    task: str = "addition"
    """addition, running_sum, countdown or sorting; for models that read English: sum_questions or explained_products;
    jsonl: your own prompts; or a dataset of the package reasoning-gym followed by its options, such as
    reasoning_gym:chain_sum,min_terms=2,max_terms=2 (| separates the items of a list)."""
    data: Path | None = None
    """jsonl: the file, one {"prompt": …, "answer": …} per line; one line in eight is held out for evaluation."""
    reward: str = ""
    """jsonl: reward function (prompt, response, answer) -> float, given as package.module:function; empty: exact match.
    If it returns None, the answer is left out of its group, the loss and the record; the metric `unscored` counts such
    answers."""
    max_response_tokens: int = 256
    """jsonl and reasoning_gym: largest length of a response, in tokens."""
    model: str = str(WARM_START)
    """Model to start from: a directory in Hugging Face format, a GGUF file (of the architectures llama, qwen2 and
    gemma3), the id of a model on the hub, or smollm2 (a real language model with 135 million weights from a Python
    package, downloaded once)."""
    reference_model: str = ""
    """Reference model of the KL term of the loss, given like `model`; empty: the weights that the run starts from."""
    preset: str = "decoupled_token_is"
    """Name of the preset that defines the correction."""
    batch_normalize: bool = False
    """Divide the preset's weights by their mean over the kept tokens of the batch, like verl's option
    rollout_is_batch_normalize."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    sketch: SketchConfig = field(default_factory=SketchConfig)
    loss_type: LossType | None = None
    """Policy loss to use instead of the preset's."""
    loss: LossConfig = TRAINER_LOSS
    """Values of the policy loss and its KL terms; a preset that has its own values sets them."""
    steps: int = 400
    """Number of training steps; the engine gets new weights at each of them."""
    stop_at_accuracy: float = 1.1
    """Stop when the greedy accuracy on held-out prompts reaches this value; above 1: never."""
    train_prompts: int = 0
    """Train only on this many different prompts, the first of the task, again and again; 0: on all its prompts."""
    prompts_per_step: int = 256
    """Prompts per training step."""
    samples_per_prompt: int = 1
    """Answers per prompt."""
    eval_every: int = 10
    """Steps between greedy evaluations on held-out prompts."""
    eval_prompts: int = 512
    """Held-out prompts per evaluation."""
    record_every: int = 1
    """Steps between recorded batches; metrics are written at every step."""
    checkpoint_every: int = 1
    """Steps between checkpoints for --resume; 0: no checkpoints."""
    save_model: bool = True
    """Write the trained weights into the run when it ends, in Hugging Face format."""
    max_bad_steps: int = 10
    """Stop after this many consecutive steps in which an update had to be skipped."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run."""
    seed: int = 0
    """Seed of everything that is drawn: prompts, answers, the order of the rows, and losses that select at random."""

    def __post_init__(self) -> None:
        _check_task(self)
        _check_preset(self)
        check_model(self.model)
        if self.reference_model:
            check_model(self.reference_model)
        if self.run:
            require_run_name(self.run)
        for name in (
            "steps", "prompts_per_step", "samples_per_prompt", "eval_every", "eval_prompts", "record_every",
            "max_response_tokens", "max_bad_steps",
        ):  # fmt: skip
            check(getattr(self, name) > 0, name, getattr(self, name), "> 0")
        _check_pairs(self)

    @property
    def longest_response(self) -> int:
        """Return the largest number of tokens of a response."""
        return built_in()[self.task].max_tokens if self.task in built_in() else self.max_response_tokens

    @property
    def run_prefix(self) -> str:
        """Return the task without its options; the names of its runs begin with it."""
        return self.task.partition(",")[0].replace(":", "_")

    @property
    def system_message(self) -> str:
        """Return the message before every prompt; empty: what the model's chat template inserts."""
        return smollm2.SYSTEM if self.model == smollm2.NAME else ""

    @property
    def policy_loss(self) -> LossConfig:
        """Return `loss` with the values that the preset sets.

        Dr. GRPO's constant is the longest response that may be generated, not the longest one of the batch, so that the
        weight of an answer does not depend on the other answers.
        """
        loss = dataclasses.replace(self.loss, **_loss_values_of(self.preset))
        if loss.loss_scale_factor is not None or _SCALED not in (loss.loss_agg_mode, loss.rollout_kl_loss_agg_mode):
            return loss
        return dataclasses.replace(loss, loss_scale_factor=float(self.longest_response))

    @property
    def correction(self) -> CorrectionConfig:
        """Return the preset's correction, with the settings `loss_type` and `batch_normalize` applied."""
        correction = preset(self.preset)
        if self.loss_type is not None:
            correction = dataclasses.replace(correction, loss_type=self.loss_type)
        return dataclasses.replace(correction, rollout_is_batch_normalize=True) if self.batch_normalize else correction

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for the manifest. Absolute paths are only in config.yaml, which `--resume` reads."""
        named = {name: getattr(self, name) for name in ("model", "reference_model")}
        named = {name: _portable(model) if model and Path(model).exists() else model for name, model in named.items()}
        data = None if self.data is None else _portable(self.data)
        return dataclasses.asdict(self) | named | {"data": data, "system_message": self.system_message}


def _check_task(config: TrainConfig) -> None:
    if is_gym(config.task):
        parse_task(config.task)  # checks only how the task is written; `gym_task` asks the package
    elif config.task not in (*built_in(), "jsonl"):
        raise unknown("task", config.task, (*built_in(), "jsonl", f"{GYM}:DATASET"))
    if (config.task == "jsonl") != (config.data is not None):
        raise UsageError(f"--task jsonl and --data FILE, your own prompts, go together; got task {config.task}.")


def _check_preset(config: TrainConfig) -> None:
    """Raise `UsageError` for an unknown preset, a loss that does not fit it, or values that contradict the preset's."""
    correction = config.correction  # raises for an unknown preset, and for batch_normalize without weights
    if config.budget.rule and (correction.bypass_mode or correction.rollout_rs):
        raise UsageError(
            f"budget.rule goes with a decoupled preset that rejects nothing by itself; got preset {config.preset}."
        )
    for name, value in _loss_values_of(config.preset).items():
        asked = getattr(config.loss, name)
        if asked not in (getattr(TRAINER_LOSS, name), value):
            raise UsageError(f"preset {config.preset} sets {name}={value}; got {asked} as well.")


def _check_pairs(config: TrainConfig) -> None:
    """Raise `UsageError` for the first two settings that exclude each other, or of which one needs the other."""
    rollout, correction, sketched = config.rollout, config.correction, bool(config.sketch.every)
    centred = config.policy_loss.score_centering
    kept = correction.bypass_mode and correction.denominator == "kept"
    if centred:
        check_centering(correction)
    for wrong, sentence in (
        (
            config.reference_model and not config.policy_loss.use_kl_loss,
            "reference_model does nothing without the KL term of the loss; give --loss.use-kl-loss.",
        ),
        (rollout.support_replay and sketched, "a sketch compares whole distributions: no rollout.support_replay."),
        (
            config.sketch.reference_answers and (config.sketch.exact_prompts or rollout.router_replay),
            "sketch.reference_answers goes without sketch.exact_prompts, which is exact, and without router_replay.",
        ),
        (rollout.in_flight and sketched, "a sketch needs the weights that sampled a step: no rollout.in_flight."),
        (centred and kept, "score centering in bypass mode needs denominator 'fixed'."),
        (centred and not rollout.top_logprobs, "score centering needs rollout.top_logprobs, such as 20."),
        (rollout.max_lag is not None and correction.bypass_mode, "max_lag rejects before the loss, bypass mode in it."),
        (
            rollout.router_replay and config.optim.gradient_checkpointing,  # would route again without replay
            "router_replay and gradient_checkpointing exclude each other; switch one off.",
        ),
        (
            config.advantage.grouped and config.samples_per_prompt < 2,
            f"{config.advantage.estimator} compares the samples of a prompt: samples_per_prompt must be at least 2.",
        ),
    ):
        if wrong:
            raise UsageError(sentence)


def _loss_values_of(name: str) -> dict[str, Any]:
    """Return the loss values that a preset sets: those that differ from the defaults of `LossConfig`."""
    loss, defaults = PRESETS[name].loss, LossConfig()
    values = {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss)}
    return {key: value for key, value in values.items() if value != getattr(defaults, key)}


def _portable(path: str | Path) -> str:
    """Return a path in the runs folder relative to that folder, and the name alone of any other path.

    A manifest is right on every machine then, and it does not name the folders of the machine that wrote it.
    """
    absolute, root = Path(os.path.abspath(path)), os.path.abspath(ROOT)
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else absolute.name
