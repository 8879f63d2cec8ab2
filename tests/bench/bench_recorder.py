"""What recording a step costs the training's thread: the time that `Recorder.add` takes; a thread writes meanwhile."""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from rlcorr.recorders import Recorder


def main() -> None:
    rows, tokens = 256, 1024
    x = -torch.rand(rows, tokens, generator=torch.Generator().manual_seed(0))
    batch = {"rollout_log_probs": x, "old_log_probs": 0.9 * x, "response_mask": torch.ones(rows, tokens)}
    with tempfile.TemporaryDirectory() as folder:
        added, written = [], []
        for number in range(4):
            with Recorder(f"run_{number}", folder=Path(folder)) as recorder:
                began = time.perf_counter()
                recorder.add(step=1, batch=batch)
                added.append(time.perf_counter() - began)
            written.append(time.perf_counter() - began)
    print(f"recorder: {rows} × {tokens}, add {1e3 * statistics.median(added):.2f} ms, written after "
          f"{statistics.median(written):.2f} s; below 1 % of steps longer than {100 * statistics.median(added):.2f} s "
          "where a core is free")  # fmt: skip


if __name__ == "__main__":
    main()
