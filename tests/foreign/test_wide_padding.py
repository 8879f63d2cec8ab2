"""Padded batches with more places than tokens that are read at once: their real tokens count."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pair_files import npz, read_pairs, real, refused

from rlcorr.foreign.import_run import import_files
from rlcorr.records import runs

ROWS, WIDTH, REAL = 40, 131_072, 3
"""5,242,880 places, and 120 tokens; at most 4,194,304 tokens are read."""


def arrays(*, left: bool) -> dict[str, np.ndarray]:
    """Return arrays (B, T) whose tokens are at the beginning or at the end of each row, in float16."""
    places = slice(WIDTH - REAL, WIDTH) if left else slice(0, REAL)
    columns = {}
    for name, factor in (("rollout_log_probs", 0.25), ("old_log_probs", 0.5)):
        columns[name] = np.zeros((ROWS, WIDTH), np.float16)
        columns[name][:, places] = -factor * np.arange(1, ROWS + 1)[:, None]
    columns["response_mask"] = np.zeros((ROWS, WIDTH), bool)
    columns["response_mask"][:, places] = True
    return columns


def test_real_tokens_and_their_ids_are_read() -> None:
    """Read ids (B, 2 + T) of prompts and responses: the last T belong to the log-probs, of which the first 3 count."""
    ids = np.tile(np.arange(WIDTH + 2), (ROWS, 1))
    record = read_pairs("x.npz", npz(**arrays(left=False), input_ids=ids))
    assert real(record.batch.rollout_log_probs, record) == [[-0.25 * row] * REAL for row in range(1, ROWS + 1)]
    assert real(record.batch.tensors()["response_ids"], record) == [[2, 3, 4]] * ROWS
    assert record.batch.tensors()["prompt_ids"].tolist() == [[0, 1]] * ROWS


def test_too_many_tokens_are_refused() -> None:
    ones = arrays(left=False) | {"response_mask": np.ones((ROWS, WIDTH), bool)}
    assert "5,242,880 tokens in rollout_log_probs; at most 4,194,304" in refused("x.npz", npz(**ones))


def test_a_small_parquet_file_of_padded_rows(tmp_path: Path) -> None:
    table = {name: list(array) for name, array in arrays(left=True).items()}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", compression="zstd")
    summary = import_files([tmp_path / "x.parquet"], tmp_path / "made")
    assert (summary.responses, summary.tokens) == (ROWS, ROWS * REAL)
    record = runs.read_step(tmp_path / "made", 1)
    assert real(record.batch.rollout_log_probs, record) == [[-0.25 * row] * REAL for row in range(1, ROWS + 1)]
