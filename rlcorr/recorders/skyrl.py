"""SkyRL: `trainer.add_callback(record_pairs("my_run"))` records the batch of every step.

Source of the hooks: SkyRL 0.3.0, train/utils/callbacks.py.
"""

import importlib
from typing import Any

from rlcorr.recorders.recorder import LEFT_OUT, Recorder

COLUMNS = (
    "sequences", "attention_mask", "response_mask", "loss_mask", "rollout_logprobs", "action_log_probs", "advantages",
    "base_action_log_probs", "values",
)  # fmt: skip


def record_pairs(name: str, **options: Any) -> Any:
    """Return a TrainingCallback that writes a run. SkyRL is imported only when this function is called."""
    base: Any = importlib.import_module("skyrl.train.utils.callbacks").TrainingCallback

    class RecordPairs(base):
        def __init__(self) -> None:
            self.recorder = Recorder(name, **options)

        def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
            self.recorder.start()

        def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
            self.recorder.attempt(lambda: self._take(callback_input), LEFT_OUT)

        def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
            self.recorder.close()

        def _take(self, callback_input: Any) -> None:
            batch = callback_input.batch
            tensors = {name: batch[name] for name in COLUMNS if batch.get(name) is not None}
            self.recorder.add(step=callback_input.global_step, batch=tensors)

    return RecordPairs()
