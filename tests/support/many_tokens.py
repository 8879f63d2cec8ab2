"""Parquet files of any number of tokens, of which every sum is known: a few random pieces, each written many times."""

import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LONGEST = 1000
_CHILD = """
import json, resource, sys, time, torch
from pathlib import Path
from rlcorr.command.report import diagnosis_lines, measured_files
from rlcorr.foreign.stream import pair_files
from rlcorr.presets import preset
torch.set_num_threads(1)
start = time.perf_counter()
place, correction = sys.argv[1:]
files = pair_files(place)
numbers = measured_files(files, preset(correction))
list(diagnosis_lines(files, 0))
print(json.dumps(numbers))
seconds, cpu_seconds = time.perf_counter() - start, time.process_time()
if sys.platform == "darwin":
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
else:  # ru_maxrss begins with the size of the process that started this one
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(seconds, cpu_seconds, peak, file=sys.stderr)
"""


@dataclass(frozen=True)
class Piece:
    """Some answers, one after the other."""

    lengths: np.ndarray
    rollout: np.ndarray
    old: np.ndarray

    @cached_property
    def batch(self) -> pa.RecordBatch:
        offsets = pa.array(np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32))
        columns = {"rollout_log_probs": self.rollout, "old_log_probs": self.old}
        return pa.RecordBatch.from_arrays(
            [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in columns.values()], list(columns)
        )

    @cached_property
    def log_ratio(self) -> np.ndarray:
        return self.old.astype(np.float64) - self.rollout.astype(np.float64)


def piece(seed: int, tokens: int, *, levels: int | None = 400) -> Piece:
    """Answers of 1 to 1,000 tokens. Of few levels files are small and quickly written; None: of all float32 numbers."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LONGEST + 1, 4 * tokens // LONGEST)
    lengths = lengths[np.cumsum(lengths) <= tokens]
    count = int(lengths.sum())
    rollout, noise = -4 * rng.random(count) - 0.5, 0.05 * rng.standard_normal(count)
    if levels is not None:
        rollout, noise = np.round(rollout * levels / 4) * 4 / levels, np.round(noise * 100) / 100
    return Piece(lengths, rollout.astype(np.float32), np.minimum(rollout + noise, 0).astype(np.float32))


def write(path: Path, pieces: list[Piece], *, one_row_group: bool = False) -> None:
    """The pieces, each a row group, or all in one."""
    table = pa.Table.from_batches([given.batch for given in pieces])
    if one_row_group:
        pq.write_table(table, path, row_group_size=table.num_rows)
        return
    with pq.ParquetWriter(path, table.schema) as writer:
        for given in pieces:
            writer.write_batch(given.batch)


@dataclass(frozen=True)
class Reported:
    """The numbers of `report` as JSON, computed on one thread, and what it took."""

    document: str
    seconds: float
    cpu_seconds: float  # with the start of Python and the imports
    mebibytes: float  # the largest that was resident


def reported(place: str, correction: str = "disabled") -> Reported:
    """In a process of its own, so that memory is what this took."""
    command = [sys.executable, "-c", _CHILD, place, correction]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, cpu_seconds, size = map(float, done.stderr.split()[-3:])
    return Reported(done.stdout, seconds, cpu_seconds, size / 1024)
