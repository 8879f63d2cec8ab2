"""Padded batches with more places than tokens that are read at once: their real tokens count."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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


@pytest.mark.parametrize("left", [False, True])
def test_real_tokens_count(left: bool) -> None:
    record = read_pairs("x.npz", npz(**arrays(left=left)))
    assert real(record.batch.rollout_log_probs, record) == [[-0.25 * row] * REAL for row in range(1, ROWS + 1)]


def test_ids_of_prompts_and_responses_keep_their_places() -> None:
    ids = np.tile(np.arange(WIDTH), (ROWS, 1))
    columns = arrays(left=False) | {"input_ids": ids}
    columns["response_mask"][:, 0] = False
    record = read_pairs("x.npz", npz(**columns))
    assert real(record.batch.tensors()["response_ids"], record) == [[1, 2]] * ROWS
    assert record.batch.tensors()["prompt_ids"].tolist() == [[0]] * ROWS


def test_ids_of_prompts_before_the_response_keep_their_places() -> None:
    """Ids (B, 2 + T) of prompts and responses: the last T belong to the log-probs, of which the first 3 are real."""
    ids = np.tile(np.arange(WIDTH + 2), (ROWS, 1))
    record = read_pairs("x.npz", npz(**arrays(left=False), input_ids=ids))
    assert real(record.batch.tensors()["response_ids"], record) == [[2, 3, 4]] * ROWS
    assert record.batch.tensors()["prompt_ids"].tolist() == [[0, 1]] * ROWS


def test_without_a_mask_or_with_too_many_tokens_it_is_refused() -> None:
    columns = arrays(left=False)
    ones = columns | {"response_mask": np.ones((ROWS, WIDTH), bool)}
    assert "5,242,880 tokens in rollout_log_probs; at most 4,194,304" in refused("x.npz", npz(**ones))
    del columns["response_mask"]
    assert "rows of equal length may be padded" in refused("x.npz", npz(**columns))


def test_a_small_parquet_file_of_padded_rows(tmp_path: Path) -> None:
    table = {name: list(array) for name, array in arrays(left=False).items()}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", compression="zstd")
    summary = import_files([tmp_path / "x.parquet"], tmp_path / "made")
    assert (summary.responses, summary.tokens) == (ROWS, ROWS * REAL)
    record = runs.read_step(tmp_path / "made", 1)
    assert real(record.batch.rollout_log_probs, record) == [[-0.25 * row] * REAL for row in range(1, ROWS + 1)]
