"""A batch that verl's own DataProto saved: refused as a pickle with a line, which is typed; then it is imported.

PYTHONPATH=.:tests/support python tests/peers/verl_dump.py
"""

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from pair_files import read_pairs, refused
from verl_peer import load

OLD, ROLLOUT = [[-1.0, -1.0, 0.0], [-0.5, -2.0, -1.5]], [[-1.0, -3.0, 0.0], [-0.5, -1.0, -1.25]]
MASK, RESPONSES = [[1, 1, 0], [1, 1, 1]], [[6, 7, 0], [8, 9, 6]]


def saved(proto: Any, correct: Callable[[Any], Any]) -> bytes:
    """The arrays of a batch that verl saved, by the line that the refusal of its pickle prints."""
    tensors = {
        "old_log_probs": torch.tensor(OLD), "rollout_log_probs": torch.tensor(ROLLOUT),
        "response_mask": torch.tensor(MASK), "responses": torch.tensor(RESPONSES),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        file = Path("batch.pkl")
        correct(proto.from_dict(tensors=tensors, meta_info={"global_steps": 4})).save_to_disk(file)
        exec(refused(file.name, file.read_bytes()).split("`")[1], {"numpy": numpy, "DataProto": proto, "FILE": file})
        return Path("pairs.npz").read_bytes()


def main() -> None:
    verl = load()
    proto = importlib.import_module("verl.protocol").DataProto
    batch = read_pairs("pairs.npz", saved(proto, lambda batch: batch)).batch
    for ours, theirs in (
        (batch.old_log_probs, OLD),
        (batch.rollout_log_probs, ROLLOUT),
        (batch.response_ids, RESPONSES),
    ):
        assert ours is not None
        assert ours[batch.response_mask].tolist() == torch.tensor(theirs)[torch.tensor(MASK) == 1].tolist(), ours
    config = verl.algorithm.RolloutCorrectionConfig(
        rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.5_2"
    )
    corrected = saved(proto, lambda batch: verl.helper.compute_rollout_correction_and_add_to_batch(batch, config)[0])
    assert "has a column rollout_is_weights: verl's correction has acted" in refused("pairs.npz", corrected)
    print(
        "verl: what its DataProto saved is refused as a pickle, and imported by the line that the refusal prints; "
        "after its own correction the arrays are refused by name"
    )


if __name__ == "__main__":
    main()
