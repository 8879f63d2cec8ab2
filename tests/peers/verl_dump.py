"""A batch that verl's own DataProto saved: refused as a pickle with a line, which is typed; then it is imported.

PYTHONPATH=.:tests/support python tests/peers/verl_dump.py
"""

import importlib
import os
import tempfile
from pathlib import Path

import numpy
import torch
from pair_files import refused
from verl_peer import load

from rlcorr.foreign.pairs import read_pairs

OLD, ROLLOUT = [[-1.0, -1.0, 0.0], [-0.5, -2.0, -1.5]], [[-1.0, -3.0, 0.0], [-0.5, -1.0, -1.25]]
MASK, RESPONSES = [[1, 1, 0], [1, 1, 1]], [[6, 7, 0], [8, 9, 6]]


def main() -> None:
    load()
    proto = importlib.import_module("verl.protocol").DataProto
    tensors = {
        "old_log_probs": torch.tensor(OLD), "rollout_log_probs": torch.tensor(ROLLOUT),
        "response_mask": torch.tensor(MASK), "responses": torch.tensor(RESPONSES),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        file = Path("batch.pkl")
        proto.from_dict(tensors=tensors, meta_info={"global_steps": 4}).save_to_disk(file)
        line = refused(file.name, file.read_bytes()).split("`")[1]
        exec(line, {"numpy": numpy, "DataProto": proto, "FILE": file})
        batch = read_pairs("pairs.npz", Path("pairs.npz").read_bytes()).batch
    for ours, theirs in (
        (batch.old_log_probs, OLD),
        (batch.rollout_log_probs, ROLLOUT),
        (batch.response_ids, RESPONSES),
    ):
        assert ours is not None
        assert ours[batch.response_mask].tolist() == torch.tensor(theirs)[torch.tensor(MASK) == 1].tolist(), ours
    print("verl: what its DataProto saved is refused as a pickle, and imported by the line that the refusal prints")


if __name__ == "__main__":
    main()
