"""TRL: `GRPOTrainer(…, callbacks=[RecordPairs("my_run")])` records the trainer's columns of every generation.

Source of the names: TRL 1.16.0, trainer/grpo_trainer.py. It has the sampler's log-probs if use_vllm=True. With several
processes the rows of the first one are recorded.
"""

import functools
import importlib
from typing import Any
from weakref import WeakSet

from rlcorr.recorders.recorder import LEFT_OUT, Recorder

COLUMNS = (
    "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages", "old_per_token_logps",
    "sampling_per_token_logps", "ref_per_token_logps",
)  # fmt: skip
GENERATES = "_generate_and_score_completions"
"""The method of the trainer that makes a generation."""

# importlib, because neither transformers nor TRL is a dependency of rlcorr.recorders.
_BASE: Any = importlib.import_module("transformers").TrainerCallback


class RecordPairs(_BASE):
    """A run whose steps are the trainer's generations, from 1. A NaN of the sampler means a ratio of 1, as in TRL."""

    def __init__(self, name: str, **options: Any) -> None:
        self._recorder = Recorder(name, nan_is_ratio_one=True, **options)
        self._steps = 0
        CALLBACKS.add(self)
        wrap(importlib.import_module("trl").GRPOTrainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._recorder.start()
            self._steps = self._recorder.last_step  # the generations of a continued run are counted on

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._recorder.close()

    def take(self, trainer: Any, generated: dict[str, Any]) -> None:
        """Record the columns of one generation, if this is one of the trainer's callbacks."""
        self._recorder.attempt(lambda: self._take(trainer, generated), LEFT_OUT)

    def _take(self, trainer: Any, generated: dict[str, Any]) -> None:
        if self not in trainer.callback_handler.callbacks:
            return
        if trainer.model.training and trainer.accelerator.is_main_process:
            self._steps += 1
            columns = {name: generated[name] for name in COLUMNS if name in generated}
            self._recorder.add(step=self._steps, batch=columns)


CALLBACKS: WeakSet[RecordPairs] = WeakSet()


def wrap(trainer: Any) -> None:
    """Wrap the trainer's method that makes generations, once, so that it passes them to the callbacks of this kind.

    This is necessary because TRL does not pass its batches to callbacks.
    """
    generate = getattr(trainer, GENERATES)
    if getattr(generate, "records_pairs", False):
        return

    @functools.wraps(generate)
    def recorded(self: Any, *arguments: Any, **options: Any) -> Any:
        generated = generate(self, *arguments, **options)
        for callback in list(CALLBACKS):
            callback.take(self, generated)
        return generated

    recorded.records_pairs = True  # pyright: ignore[reportAttributeAccessIssue]
    setattr(trainer, GENERATES, recorded)
