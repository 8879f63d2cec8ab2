"""The same few pairs in every format that people have them in."""

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save

from rlcorr.errors import UsageError
from rlcorr.foreign.read_file import read_parts
from rlcorr.foreign.steps import merge_parts, name_in_errors
from rlcorr.records.step_files import StepRecord

# Exact in bfloat16, so that no format changes them.
ROLLOUT = [[-0.5, -1.25, -2.0], [-0.125], [], [-3.0, -0.75]]
OLD = [[-0.25, -1.5, -2.5], [-0.0625], [], [-1.0, -0.5]]
MASK = [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
NOISE = math.nan  # on padding: it must be gone


def padded(rows: list[list[float]], mask: Sequence[Sequence[int]] = MASK) -> np.ndarray:
    """The numbers of each row where its mask is 1, in order, and NaN elsewhere."""
    array = np.full(np.shape(mask), NOISE)
    for row, numbers in enumerate(rows):
        places = [place for place, real in enumerate(mask[row]) if real]
        for place, number in zip(places, numbers, strict=True):
            array[row, place] = number
    return array


LEFT = [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]]
HOLES = [[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
FLAT = {"rollout_log_probs": np.concatenate(ROLLOUT), "old_log_probs": np.concatenate(OLD)}


def arrays(mask: list[list[int]] = MASK, dtype: str = "<f4") -> dict[str, np.ndarray]:
    pair = {"rollout_log_probs": padded(ROLLOUT, mask).astype(dtype), "old_log_probs": padded(OLD, mask).astype(dtype)}
    return {**pair, "response_mask": np.array(mask)}


def rows(**more: list[Any]) -> list[dict[str, Any]]:
    """One dictionary per response; `more` are further columns."""
    columns = {"rollout_log_probs": ROLLOUT, "old_log_probs": OLD, **more}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(ROLLOUT))]


def jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def npz(**members: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **members)
    return file.getvalue()


def random_npz(rows: int, width: int, seed: int = 0) -> bytes:
    """Random pairs, which cannot be compressed."""
    numbers = -np.random.default_rng(seed).random((2, rows, width), np.float32)
    return npz(rollout_log_probs=numbers[0], old_log_probs=numbers[1], response_mask=np.ones((rows, width), bool))


def compressed(**members: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **members)
    return file.getvalue()


def tensors(dtype: Any = torch.float32, **members: Any) -> bytes:
    tensors = {name: torch.tensor(value) for name, value in members.items()}
    return save({name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()})


def parquet(kind: Any = None, group_size: Any = 3, **columns: Any) -> bytes:
    """Columns of lists in several row groups; `kind` is the type of the two log-probs."""
    typed = {name: pa.array(x, kind if name.endswith("log_probs") else None) for name, x in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(typed), sink, row_group_size=group_size)
    return sink.getvalue().to_pybytes()


def real(values: torch.Tensor, record: StepRecord) -> list[list[float]]:
    """The real tokens of each row."""
    return [row[mask].tolist() for row, mask in zip(values, record.batch.response_mask, strict=True)]


PAIR = {"rollout_log_probs": ROLLOUT, "old_log_probs": OLD}
EACH = {"group_ids": [0, 0, 1, 1]}  # one per list: so the lists are responses, and not turns of one
AS_LISTS = {name: padded(x).tolist() for name, x in PAIR.items()} | {"response_mask": MASK}


def saved(**members: Any) -> bytes:
    """A dictionary of tensors as torch.save writes it."""
    file = io.BytesIO()
    torch.save(members, file)
    return file.getvalue()


def not_detached() -> bytes:
    """Arrays of a forward pass whose log-probs still require a gradient."""
    tensors = {name: torch.tensor(x).float() for name, x in arrays().items()}
    return saved(**{name: x.requires_grad_(name != "response_mask") for name, x in tensors.items()})


FILES = {
    "lists.jsonl": jsonl(rows()),
    "blank lines, a byte order mark.jsonl": b"\xef\xbb\xbf\n" + jsonl(rows()).replace(b"\n", b"\r\n\r\n"),
    "list.json": json.dumps(rows(), indent=1).encode(),
    "samples.json": json.dumps({"samples": rows(), "step": 1}).encode(),
    "columns.json": json.dumps(PAIR | EACH).encode(),
    "micro-batches.jsonl": jsonl([{k: x[rows] for k, x in (PAIR | EACH).items()} for rows in (slice(3), slice(3, 4))]),
    "padded lists.jsonl": jsonl([{k: x[row] for k, x in AS_LISTS.items()} for row in range(4)]),
    "padded columns.json": json.dumps(AS_LISTS | EACH | {"response_mask": np.array(MASK, bool).tolist()}).encode(),
    "nulls on padding.json": json.dumps(AS_LISTS | EACH).replace("NaN", "null").encode(),
    "lists.parquet": parquet(pa.list_(pa.float32()), **PAIR),
    "half lists.parquet": parquet(pa.list_(pa.float16()), **{k: [np.float16(r) for r in x] for k, x in PAIR.items()}),
    "padded lists.parquet": parquet(**AS_LISTS),
    "fixed lists.parquet": parquet(pa.list_(pa.float32(), 3), **AS_LISTS),
    "padded.npz": npz(**arrays()),
    "compressed.npz": compressed(**arrays()),
    "half.npz": npz(**arrays(dtype="<f2")),
    "big-endian.npz": npz(**arrays(dtype=">f4")),
    "columns first.npz": npz(**{name: np.asfortranarray(x) for name, x in arrays().items()}),
    "left-padded.npz": npz(**arrays(LEFT)),
    "holes.npz": npz(**arrays(HOLES)),
    "bool mask.npz": npz(**(arrays() | {"response_mask": np.array(MASK, bool)})),
    "lengths beside arrays.npz": npz(**{k: arrays()[k] for k in PAIR}, lengths=np.array([3, 1, 0, 2])),
    "lengths.npz": npz(**FLAT, lengths=np.array([3, 1, 0, 2])),
    "other arrays.npz": npz(**arrays(), logits=np.zeros((2, 3, 4)), step=np.array(1)),
    "padded.safetensors": tensors(**arrays()),
    "bfloat16.safetensors": tensors(torch.bfloat16, **arrays()),
    "not detached.pt": not_detached(),
    "rows not detached.pt": saved(
        samples=[{k: torch.tensor(x, requires_grad=True) for k, x in row.items()} for row in rows()]
    ),
    "lengths.safetensors": tensors(**FLAT, lengths=[3, 1, 0, 2]),
}  # fmt: skip


def read_pairs(name: str, content: bytes, **options: bool) -> StepRecord:
    """Return the single step of a file, as `python -m rlcorr import` reads it. Raises `UsageError`."""
    parts = list(read_parts(name, content, **options))
    with name_in_errors(name):
        assert len({part.step for part in parts}) == 1
        return merge_parts(parts)


def refused(name: str, content: bytes) -> str:
    """Return the message with which a file is refused."""
    with pytest.raises(UsageError) as error:
        read_pairs(name, content)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 900
    return message
