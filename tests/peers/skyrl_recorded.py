"""`trainer.add_callback(record_pairs("mine"))` with SkyRL 0.4.0's own callbacks and batch: what is recorded?

    PYTHONPATH=.:tests/support python tests/peers/skyrl_recorded.py

SkyRL's trainer needs Ray and a GPU. Of its class the three methods that reach a callback are taken, as they stand.
"""

import ast
import importlib
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from real_systems import FOLDER, of_skyrl

from rlcorr.recorders.skyrl import record_pairs
from rlcorr.records import runs
from rlcorr.records.verify import verify

PACKAGE = FOLDER / "skyrl"
METHODS = ("add_callback", "_build_callback_input", "_fire")
STEP = 9


ROLLOUT, OLD = [[-0.5, -1.0, -2.0], [-0.25, -0.75]], [[-0.75, -0.5, -2.5], [-0.125, -1.5]]


def skyrl_batch(batches: Any) -> Any:
    """Responses at the end of `sequences`; the middle token of the first was what a tool answered; the third row pads
    the batch, as trainer.py:963 does. The advantages are in bfloat16, which numpy does not have."""
    batch = batches.TrainingInputBatch(
        {
            "sequences": torch.tensor([[3, 4, 6, 7, 8], [0, 0, 5, 9, 10]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
            "response_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
            "loss_mask": torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            "rollout_logprobs": torch.tensor([ROLLOUT[0], [0.0, *ROLLOUT[1]]]),
            "action_log_probs": torch.tensor([OLD[0], [0.0, *OLD[1]]]),
            "base_action_log_probs": None,
            "values": None,
            "returns": torch.tensor([[1.0] * 3, [0.0, -1.0, -1.0]]),
            "advantages": torch.tensor([[1.0] * 3, [0.0, -1.0, -1.0]], dtype=torch.bfloat16),
        }
    )
    batch.metadata = {"avg_response_length": 2.5, "response_length": 3}
    return batches.pad_training_input_batch(batch, 1)


def trainer_with(callbacks: Any) -> Any:
    """As much of RayPPOTrainer as tells callbacks what happens."""
    tree = ast.parse((PACKAGE / "skyrl/train/trainer.py").read_text())
    functions: list[ast.stmt] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in METHODS
    ]
    names: dict[str, Any] = vars(callbacks).copy()
    exec(ast.unparse(ast.Module(functions, type_ignores=[])), names)
    trainer: Any = type("RayPPOTrainer", (), {name: names[name] for name in METHODS})()
    trainer._callback_handler = callbacks.CallbackHandler()
    trainer._training_control = callbacks.TrainingControl()
    trainer.train_dataloader, trainer.total_training_steps = None, 20
    trainer.global_step, trainer._current_epoch = STEP, 0
    return trainer


def main() -> None:
    of_skyrl()  # imports it as it must be on Python 3.11
    batch = skyrl_batch(importlib.import_module("skyrl.backends.skyrl_train.training_batch"))
    callbacks = importlib.import_module("skyrl.train.utils.callbacks")
    trainer = trainer_with(callbacks)
    with tempfile.TemporaryDirectory() as folder:
        trainer.add_callback(record_pairs("mine", folder=Path(folder)))
        trainer._fire("on_train_start")
        trainer._fire("on_step_end", batch=batch, metrics=SimpleNamespace())
        trainer._fire("on_train_end")
        report = verify(Path(folder) / "mine")
        pairs = runs.read_step(Path(folder) / "mine", STEP).batch
    assert (report.status, report.problems, report.recorded_steps) == ("complete", [], 1), report
    kept = [[row[0], row[2]] for row in (ROLLOUT[0], OLD[0])]  # the middle token is a tool's
    assert pairs.old_log_probs is not None
    for log_probs, first, second in (
        (pairs.rollout_log_probs, kept[0], ROLLOUT[1]), (pairs.old_log_probs, kept[1], OLD[1])
    ):  # fmt: skip
        rows = [row[mask].tolist() for row, mask in zip(log_probs, pairs.response_mask, strict=True)]
        assert rows == [first, second, []], rows
    print("SkyRL: its own callbacks hand over its own batch, and the run has the tokens that its loss counts")


if __name__ == "__main__":
    sys.exit(main())
