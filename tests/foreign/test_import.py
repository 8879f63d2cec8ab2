"""Several files as one run: steps from a column or the name, merged ranks, and refused files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hostile import MIB, in_another_process
from pair_files import jsonl, npz, read_pairs, real
from pair_files import refused as refused_file

from rlcorr.errors import UsageError
from rlcorr.foreign import read_file
from rlcorr.foreign.import_run import import_files
from rlcorr.foreign.read_file import find_files
from rlcorr.records import runs
from rlcorr.records.verify import verify

GOLDEN = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"


def row(value: float, **more: Any) -> dict[str, Any]:
    return {"rollout_log_probs": [value, value], "old_log_probs": [-1.0, -2.0], **more}


def write(folder: Path, **lines: list[dict[str, Any]]) -> Path:
    """Write a file per name, in which __ means /."""
    for name, rows in lines.items():
        file = folder / f"{name.replace('__', '/')}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jsonl(rows))
    return folder


def made(tmp_path: Path, *places: Path, **options: Any) -> dict[int, list[list[float]]]:
    """Import these paths, and return step → the engine's log-probs."""
    run = tmp_path / "made"
    import_files(find_files([str(place) for place in places]), run, **options)
    report = verify(run)
    assert (report.problems, report.status) == ([], "complete")
    records = [runs.read_step(run, step) for step in runs.list_steps(run)]
    return {record.step: real(record.batch.rollout_log_probs, record) for record in records}


def refused(tmp_path: Path, *places: Path) -> str:
    with pytest.raises(UsageError) as caught:
        made(tmp_path, *places)
    assert not (tmp_path / "made").exists()  # an incomplete run would look complete
    return str(caught.value)


def test_steps_by_name_are_one_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", train_data_step2=[row(-2)], train_data_step10=[row(-10)])
    assert made(tmp_path, folder) == {2: [[-2, -2]], 10: [[-10, -10]]}
    assert [line["step"] for line in runs.read_metrics(tmp_path / "made")] == [2, 10]


def test_steps_by_column_in_one_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", all=[row(-2, step=5), row(-1, step=4), row(-3, step=5)])
    assert made(tmp_path, folder / "all.jsonl") == {4: [[-1, -1]], 5: [[-2, -2], [-3, -3]]}


def test_ranks_are_put_together(tmp_path: Path) -> None:
    """Merge files per step and rank, which a glob matches, and files per rank with all steps."""
    files = {f"step_{s}__rank_{r}": [row(-s - r / 2)] for s in (1, 2) for r in (0, 1)}
    folder = write(tmp_path / "in", **files)
    want = {1: [[-1, -1], [-1.5, -1.5]], 2: [[-2, -2], [-2.5, -2.5]]}
    assert made(tmp_path, folder / "step_*" / "*.jsonl") == want
    rows = {f"rank{r}": [row(-s - r / 2, step=s) for s in (1, 2)] for r in (0, 1)}
    (tmp_path / "more").mkdir()
    assert made(tmp_path / "more", write(tmp_path / "by_rank", **rows)) == want


def test_files_with_rows_of_one_step_are_joined_on_request(tmp_path: Path) -> None:
    """Join shards that were cut at any row, of which step 3 is in two, and one file per micro-batch."""
    shards = {"part-0-of-2": [row(-1, step=2), row(-2, step=3)], "part-1-of-2": [row(-3, step=3), row(-4, step=4)]}
    folder = write(tmp_path / "in", **shards)
    assert "--join merges them" in refused(tmp_path, folder)
    assert made(tmp_path, folder, join=True) == {2: [[-1, -1]], 3: [[-2, -2], [-3, -3]], 4: [[-4, -4]]}
    micro = write(tmp_path / "micro", step_1_mb_0=[row(-1)], step_1_mb_1=[row(-2)], step_2_mb_0=[row(-3)])
    summary = import_files(find_files([str(micro)]), tmp_path / "joined", join=True)
    assert (summary.steps, summary.responses) == (2, 3)
    (said,) = summary.notes
    assert said.startswith("step 1: rows of 2 files are joined, from ")
    assert said.endswith("step_1_mb_1.jsonl.")


def test_groups_named_by_texts_stay_apart_across_ranks(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", step1_rank0=[row(-1, uid="a")], step1_rank1=[row(-1, uid="b"), row(-1, uid="a")])
    made(tmp_path, folder)
    assert runs.read_step(tmp_path / "made", 1).batch.tensors()["group_ids"].tolist() == [0, 1, 0]


def test_dumps_of_prime_rl_and_skyrl_by_folder(tmp_path: Path) -> None:
    """Import a golden dump, whose rank 1 has no token of the RL loss, and a folder with a pickle."""
    assert made(tmp_path, GOLDEN / "prime_rl") == {3: [[-0.5, -1.0, -2.0], [], [], []]}
    (tmp_path / "more").mkdir()
    (tmp_path / "dumped_data").mkdir()
    (tmp_path / "dumped_data" / "global_step_7_training_input.pkl").write_bytes(b"\x80\x04 skyrl.backends")
    assert "a TrainingInputBatch of SkyRL becomes arrays by" in refused(tmp_path / "more", tmp_path / "dumped_data")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"step_1__rank_0": 1, "step_1__rank_1": 1, "step_2__rank_0": 2}, "step 2 has rank 0, but step 1 has rank 0"),
        ({"rank0": [1, 2], "rank1": [1]}, "rank 0, but step 1 has rank 0, 1: every rank must have every step"),
        ({"a_step1": 1, "b_step1": 1}, "is of step 1, and so is another file, but their names do not differ by a rank"),
        ({"a": None, "b": None}, "names its step neither in a column nor in its file name"),
        ({"step_3": 4}, "its name has step 3, but its column step has 4"),
        ({"a": -1}, "step must be a number ≥ 0 per row"),
    ],
)
def test_what_makes_no_run(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    def rows(steps: Any) -> list[dict[str, Any]]:
        return [row(-1) if s is None else row(-1, step=s) for s in (steps if isinstance(steps, list) else [steps])]

    assert said in refused(tmp_path, write(tmp_path / "in", **{name: rows(steps) for name, steps in files.items()}))


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "is neither a file nor a folder, and as a glob it matches nothing" in refused(tmp_path, tmp_path / "x*")
    (tmp_path / "empty").mkdir()
    assert "holds no file that ends in .parquet, .jsonl" in refused(tmp_path, tmp_path / "empty")
    folder = write(tmp_path / "in", a=[row(-1)])
    assert "is named twice" in refused(tmp_path, folder, folder / "a.jsonl")


# --- a file that is read in parts ---


def large(path: Path, steps: int, tokens: int) -> None:
    """Write a row group per step, with responses of 1,000 tokens."""
    offsets = pa.array(range(0, tokens + 1, 1000), pa.int32())
    kinds = {"step": pa.int32(), "rollout_log_probs": pa.list_(pa.float32()), "old_log_probs": pa.list_(pa.float32())}
    with pq.ParquetWriter(path, pa.schema(kinds), compression="none", use_dictionary=False) as file:
        for step in range(steps):
            values = [-torch.rand(tokens, generator=torch.Generator().manual_seed(2 * step + n)) for n in (0, 1)]
            columns = [pa.ListArray.from_arrays(offsets, pa.array(x.numpy())) for x in values]
            numbers = pa.array([step] * (tokens // 1000), pa.int32())
            file.write_table(pa.table([numbers, *columns], schema=pa.schema(kinds)), row_group_size=tokens // 1000)


def test_parts_are_the_steps_that_the_whole_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large(tmp_path / "x.parquet", steps=3, tokens=270_000)
    whole = made(tmp_path, tmp_path / "x.parquet")
    monkeypatch.setattr(read_file, "LARGE", 0)
    (tmp_path / "more").mkdir()
    assert made(tmp_path / "more", tmp_path / "x.parquet") == whole
    assert list(whole) == [0, 1, 2]


def test_a_step_that_is_too_large_and_steps_that_are_not_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "LARGE", 0)
    large(tmp_path / "x.parquet", steps=1, tokens=5_000_000)
    assert "tokens in one step; at most 4,194,304 are read" in refused(tmp_path, tmp_path / "x.parquet")
    table = pa.table({name: [row(-1.0)[name]] * 300_000 for name in row(-1)} | {"step": [2] * 299_999 + [1]})
    pq.write_table(table, tmp_path / "y.parquet")
    assert "comes after step 2; sort the rows by step" in refused(tmp_path, tmp_path / "y.parquet")


MEASURES = """
import sys
from pathlib import Path
from hostile import peak
from rlcorr.foreign.import_run import import_files
from rlcorr.foreign.read_file import find_files
import_files(find_files([sys.argv[1]]), Path(sys.argv[3]))
before = peak()
import_files(find_files([sys.argv[2]]), Path(sys.argv[4]))
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Check that ten times as many steps with the same row groups take little more memory."""
    for name, steps in (("small", 2), ("big", 20)):
        large(tmp_path / f"{name}.parquet", steps, tokens=1_000_000)
    words = [tmp_path / "small.parquet", tmp_path / "big.parquet", tmp_path / "a", tmp_path / "b"]
    grown = int(in_another_process(MEASURES, *words))
    assert grown < 80 * MIB  # half of the file


# --- padded batches with more places than tokens that are read at once: their real tokens count ---

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
    assert "5,242,880 tokens in rollout_log_probs; at most 4,194,304" in refused_file("x.npz", npz(**ones))


def test_a_small_parquet_file_of_padded_rows(tmp_path: Path) -> None:
    table = {name: list(array) for name, array in arrays(left=True).items()}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", compression="zstd")
    summary = import_files([tmp_path / "x.parquet"], tmp_path / "made")
    assert (summary.responses, summary.tokens) == (ROWS, ROWS * REAL)
    record = runs.read_step(tmp_path / "made", 1)
    assert real(record.batch.rollout_log_probs, record) == [[-0.25 * row] * REAL for row in range(1, ROWS + 1)]
