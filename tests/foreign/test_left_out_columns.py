"""A bad optional column never makes a valid pair unreadable: it is left out with a sentence, in every format. A bad
column that says which tokens count is refused."""

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pair_files import jsonl, npz, parquet, read_pairs, real, refused
from safetensors.torch import save

from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import import_file, import_files
from rlcorr.foreign.read_file import find_files
from rlcorr.records import runs

PAIR = {"rollout_log_probs": [[-1.0, -2.0], [-0.5, -0.25]], "old_log_probs": [[-1.5, -2.5], [-0.5, -0.125]]}
MASK = {"response_mask": [[1, 1], [1, 1]]}


def written(columns: dict[str, list[Any]]) -> dict[str, bytes]:
    """Return the table in every format that can hold it: texts and nulls are not tensors, ragged rows not arrays."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    files = {"x.jsonl": jsonl(rows)}
    with contextlib.suppress(pa.ArrowException):  # a Parquet column has one type
        files["x.parquet"] = parquet(**columns)
    shaped = {name: shape(values) for name, values in columns.items()}
    if all(array is not None for array in shaped.values()):
        files["x.npz"] = npz(**shaped)
        if all(array.dtype.kind != "U" for array in shaped.values()):
            tensors = {name: torch.tensor(array) for name, array in shaped.items()}
            stream = io.BytesIO()
            torch.save(tensors, stream)
            files |= {"x.safetensors": save(tensors), "x.pt": stream.getvalue()}
    return files


def shape(values: list[Any]) -> Any:
    """Return the values as an array with NaN for null; None if it would be neither of numbers nor of texts."""
    try:
        array = np.array([math.nan if x is None else x for x in values])
    except ValueError:
        return None
    mixed = array.dtype.kind == "U" and not all(isinstance(x, str) for x in values)
    return None if mixed or array.dtype.kind == "O" else array


LEFT_OUT: dict[str, tuple[str, list[Any], str]] = {
    "a text for a version": ("weight_version", ["v12-main", "v12-main"], "policy_versions is left out"),
    "a version that is null": ("weight_version", [3, None], "policy_versions is left out"),
    "a group that is null": ("uid", ["a", None], "group_ids is left out"),
    "texts for rewards": ("reward", ["good", "bad"], "rewards is left out"),
    "rewards that differ within a row": ("reward", [[1.0, 0.0], [1.0, 1.0]], "rewards is left out"),
    "short advantages": ("advantages", [[1.0], [1.0]], "row 0 (from 0): advantages has 1 values"),
    "NaN among advantages": ("advantages", [[1.0, 1.0], [1.0, math.nan]], "row 1, token 1 (from 0): advantages is NaN"),
    "infinite values": ("values", [[1.0, math.inf], [0.0, 0.0]], "row 0, token 1 (from 0): values is infinite"),
    "probabilities for a reference": ("ref_log_probs", [[0.5, 0.5], [0.5, 0.5]], "ref_log_probs must be natural"),
    "long ids": ("response_ids", [[1, 2, 3], [4, 5, 6]], "response_ids has 3 values"),
    "half an id": ("response_ids", [[1, 1.5], [2, 3]], "response_ids must hold whole numbers of at most 32 bits"),
    "short ids of both": ("tokens", [[1], [2]], "row 0 (from 0): token_ids has 1 values"),
    "numbers for a prompt": ("prompt", [1.0, 2.0], "prompts is left out: prompts must hold a text per row"),
    "texts for prompt ids": ("prompt_ids", ["a", "b"], "prompt_ids must hold a list of numbers per row"),
    "lists and nulls": ("advantages", [[1.0, 1.0], None], "advantages is left out"),
}  # fmt: skip


def test_the_pair_is_read_and_the_column_is_named() -> None:
    seen = set()
    for case, (name, values, said) in LEFT_OUT.items():
        for file, content in written(PAIR | MASK | {name: values}).items():
            record = read_pairs(file, content)
            assert real(record.batch.rollout_log_probs, record) == PAIR["rollout_log_probs"], (case, file)
            assert real(record.batch.tensors()["old_log_probs"], record) == PAIR["old_log_probs"], (case, file)
            assert said in " ".join(record.notes), (case, file, record.notes)
            assert set(record.batch.tensors()) == {*PAIR, "response_mask"}, (case, file)
            assert record.prompts == ["", ""], (case, file)
            seen.add((Path(file).suffix, case))
    assert {suffix for suffix, _ in seen} == {".jsonl", ".parquet", ".npz", ".safetensors", ".pt"}


def test_a_null_reward_is_unknown_and_the_others_are_kept(tmp_path: Path) -> None:
    """Keep NaN in its row and record no mean: the mean of the rest, 1, would be for other responses."""
    for reward in ([1.0, None], [True, None]):
        for file, content in written(PAIR | MASK | {"reward": reward}).items():
            record = read_pairs(file, content)
            rewards = record.batch.tensors()["rewards"].tolist()
            assert rewards[0] == 1, file
            assert math.isnan(rewards[1]), file
            assert record.notes[0].startswith("rewards is null or NaN in 1 of 2 rows"), file
    for file, content in written(PAIR | MASK | {"reward": [None, None]}).items():
        assert read_pairs(file, content).notes == (), file  # if no row has a reward, the field is missing, not unknown
    (tmp_path / "x.jsonl").write_bytes(written(PAIR | {"reward": [1.0, None]})["x.jsonl"])
    import_file(tmp_path / "x.jsonl", tmp_path / "run")
    assert "reward" not in runs.read_metrics(tmp_path / "run")[0]


def test_what_says_which_tokens_count_is_refused() -> None:
    needed: dict[str, tuple[list[Any], str]] = {
        "response_mask": ([[1], [1]], "response_mask has 1 values"),
        "tool_mask": (["a", "b"], "tool_mask must hold a list of numbers per row"),
        "rl_weights": ([[1, 0.5], [1, 1]], "rl_weights must hold 0 and 1"),
        "step": (["last", "last"], "step must hold one number per row"),
        "old_log_probs": ([[-1.0, math.nan], [-1.0, -1.0]], "row 0, token 1 (from 0): old_log_probs is NaN or null"),
        "sample_mask": ([1, 0], "'sample_mask' may say which tokens count"),
    }
    for name, (values, said) in needed.items():
        for file, content in written(PAIR | MASK | {name: values}).items():
            assert said in refused(file, content), (name, file)


def test_arrays_of_three_dimensions_and_of_another_size() -> None:
    arrays = {name: np.array(x) for name, x in (PAIR | MASK).items()}
    for more, said in (
        ({"response_ids": np.zeros((2, 2, 4), int)}, "response_ids has shape (2, 2, 4)"),
        ({"rewards": np.zeros(3)}, "rewards has 3 rows, rollout_log_probs has 2"),
        ({"rewards": np.array(1.5)}, "rewards must hold one number per row"),
        ({"prompts": np.array([["a"]] * 2)}, "prompts has dtype <U1 and shape (2, 1)"),
        ({"uid": np.array(["a", "b"], dtype=object)}, "array of objects"),
    ):
        record = read_pairs("x.npz", npz(**arrays, **more))
        assert said in " ".join(record.notes), more


def test_ranks_of_which_one_lacks_a_column(tmp_path: Path) -> None:
    """Merge a rank 1 that has no advantages and only null rewards."""
    pairs = {name: x[:1] for name, x in PAIR.items()}
    ranks = [pairs | {"advantages": [[1.0, 1.0]], "reward": [1.0]}, pairs | {"reward": [None]}]
    for rank, columns in enumerate(ranks):
        (tmp_path / f"step_3_rank_{rank}.jsonl").write_bytes(written(columns)["x.jsonl"])
    made = import_files(find_files([str(tmp_path)]), tmp_path / "run")
    assert made.notes == (
        "step 3: advantages is left out: advantages is not in part 1 (from 0) of the 2 parts of a step.",
        "step 3: rewards is null or NaN in 1 of 2 rows; these rewards are unknown, so no mean reward is recorded.",
    )
    assert {"advantages"} <= made.missing.keys()


def test_types_of_parquet_that_are_not_read() -> None:
    days = pa.array([0, 1], pa.date32())
    chat = pa.array([[{"role": "user", "content": "a"}]] * 2)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({**{name: pa.array(x) for name, x in PAIR.items()}, "reward": days, "prompt": chat}), sink)
    record = read_pairs("x.parquet", sink.getvalue().to_pybytes())
    assert record.notes[0].startswith("rewards is left out: reward is a column of date32")
    assert record.notes[1].startswith("prompts is left out: prompt is a column of list<")


def test_a_refused_row_is_named_with_its_file_and_step(tmp_path: Path) -> None:
    """Count rows from 0 within the file of a rank."""
    lines = [{name: x[row] for name, x in PAIR.items()} for row in (0, 1)]
    bad = lines[1] | {"old_log_probs": [-1.0, 2.0]}
    for rank, rows in enumerate([lines, [lines[0], bad]]):
        (tmp_path / f"step_3_rank_{rank}.jsonl").write_bytes(jsonl(rows))
    with pytest.raises(UsageError, match=r"'step_3_rank_1\.jsonl': row 1, token 1 \(from 0\): old_log_probs must be"):
        import_files(find_files([str(tmp_path)]), tmp_path / "run")
