"""The Parquet files of recorded runs, of the study and of other people: from tensors to columns and back."""

import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_BYTES, MAX_ROWS, MAX_TOKENS, Column, Columns, Lists, at_most, pad
from rlcorr.foreign.parquet_sizes import sizes
from rlcorr.types import TokenBatch

_TOKEN_COLUMNS = ("rollout_log_probs", "old_log_probs", "ref_log_probs", "advantages", "values")
_ROW_COLUMNS = {"group_id": "group_ids", "policy_version": "policy_versions"}
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError, AttributeError, UsageError)
"""What reading a damaged or foreign file may raise."""


@dataclass(frozen=True)
class StepRecord:
    """One recorded step: the pairs, and the texts they belong to."""

    step: int
    batch: TokenBatch
    prompts: list[str]
    responses: list[str]


# --- the pairs of a step ---


def to_step(path: Path, step: int) -> StepRecord:
    """Raises one of `UNREADABLE` if the file is missing, cut off or lacks a column."""
    table = pq.read_table(path)
    return StepRecord(step, _batch(table), table["prompt"].to_pylist(), table["response"].to_pylist())


def _batch(table: pa.Table) -> TokenBatch:
    response_ids, mask = _padded(table["response_ids"], pa.int32())
    prompt_ids, prompt_mask = _padded(table["prompt_ids"], pa.int32(), left=True)
    columns: dict[str, Any] = {}
    for name in _TOKEN_COLUMNS:
        if name in table.column_names:
            columns[name], filled = _padded(table[name], pa.float32())
            if not torch.equal(filled, mask):
                raise UsageError(f"{name} and response_ids have lists of different lengths")
    columns |= {ours: torch.tensor(table[theirs].to_numpy().copy()) for theirs, ours in _ROW_COLUMNS.items()}
    return TokenBatch(
        response_mask=mask,
        response_ids=response_ids,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        rewards=torch.tensor(table["reward"].to_numpy().copy()),
        **columns,
    )


def _padded(column: pa.ChunkedArray, kind: pa.DataType, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """A list column as (values (B, T) padded with 0, mask (B, T)). Raises `UsageError` for another type or a null."""
    lists = column.combine_chunks()
    if lists.type != pa.list_(kind) or lists.null_count or lists.flatten().null_count:
        raise UsageError(f"a column of {lists.type} where list<{kind}> without nulls belongs")
    lengths = torch.tensor(lists.value_lengths().to_numpy(zero_copy_only=False).copy(), dtype=torch.int64)
    return pad(torch.tensor(lists.flatten().to_numpy(zero_copy_only=False).copy()), lengths, left=left)


def from_step(record: StepRecord) -> bytes:
    """One row per sequence, log-probs bit-exact. Raises `UsageError` where the batch lacks a column."""
    batch = record.batch
    if bool((batch.response_mask[:, 1:] & ~batch.response_mask[:, :-1]).any()):
        raise UsageError("a recorded response starts at its first column and has no holes; this response_mask has.")
    rows = range(len(record.prompts))
    columns: dict[str, Any] = {"step": pa.array([record.step] * len(rows), pa.int32())}
    for theirs, ours in _ROW_COLUMNS.items():
        columns[theirs] = pa.array(_present(batch, ours).tolist(), pa.int32())
    columns["reward"] = pa.array(_present(batch, "rewards").tolist(), pa.float32())
    columns["prompt"] = pa.array(record.prompts, pa.string())
    columns["response"] = pa.array(record.responses, pa.string())
    columns["prompt_ids"] = _ragged(_present(batch, "prompt_ids"), _present(batch, "prompt_mask"), pa.int32())
    columns["response_ids"] = _ragged(_present(batch, "response_ids"), batch.response_mask, pa.int32())
    for name in _TOKEN_COLUMNS:
        if name in batch.tensors():
            columns[name] = _ragged(_present(batch, name).float(), batch.response_mask, pa.float32())
    return _bytes(pa.table(columns))


def _present(batch: TokenBatch, name: str) -> Tensor:
    tensor = batch.tensors().get(name)
    if tensor is None:
        raise UsageError(f"a recorded step needs {name}; the batch has {', '.join(batch.tensors())}.")
    return tensor


def _ragged(values: Tensor, mask: Tensor, kind: pa.DataType) -> pa.Array:
    """(B, T) and its mask as a column of lists without padding."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(-1).cpu().cumsum(0)]).to(torch.int32)
    flat = values[mask].cpu().numpy()
    return pa.ListArray.from_arrays(pa.array(offsets.numpy()), pa.array(flat, type=kind))


# --- files of other people, which may be damaged, or made to do harm ---


def to_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted columns, and the names of all. What the pages unpack to is counted first. Raises `UsageError`."""
    found = sizes(content, wanted)
    if not found.rows:
        raise UsageError("holds no rows.")
    at_most(MAX_ROWS, found.rows, "rows")
    at_most(MAX_BYTES, found.unpacked, "bytes when unpacked")
    for name, numbers in found.numbers.items():
        at_most(MAX_TOKENS, numbers, f"numbers in {name}")
    try:
        schema = pq.ParquetFile(pa.BufferReader(content)).schema_arrow
        types = {name: schema.field(name).type for name in schema.names if name in wanted}
        texts = [name for name, kind in types.items() if _is_text(name, kind, found.rows)]
        # As a dictionary a text is there once, however often it stands in the column.
        table = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts).read(list(types), use_threads=False)
        columns = {name: _column(name, table[name]) for name in types if table[name].null_count < len(table)}
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError) as error:
        first = str(error).split("\n")[0] or type(error).__name__
        raise UsageError(f"cannot be read as Parquet ({first:.200}).") from error
    return columns, schema.names


def _is_text(name: str, kind: pa.DataType, rows: int) -> bool:
    """Raises `UsageError` for a type that is neither numbers, nor a list of numbers, nor text."""
    value = kind.value_type if isinstance(kind, _LISTS) or pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(value) or pa.types.is_large_string(value)
    number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)
    if not (number or pa.types.is_null(value) or (text and not isinstance(kind, _LISTS))):
        raise UsageError(f"{name} is a column of {kind!s:.80}; lists of numbers, numbers and texts are read.")
    if isinstance(kind, pa.FixedSizeListType):  # in which a null takes as much as a list
        at_most(MAX_TOKENS, kind.list_size * rows, f"numbers in {name}")
    return text


def _column(name: str, column: pa.ChunkedArray) -> Column:
    if pa.types.is_dictionary(column.type):
        return _texts(column)
    lists = isinstance(column.type, _LISTS)
    whole = column.combine_chunks()
    if lists and whole.null_count:
        raise UsageError(f"{name} is null in row {whole.is_null().to_pylist().index(True)}, a list in others.")
    values = whole.flatten() if lists else whole
    if pa.types.is_boolean(values.type) and values.null_count:
        raise UsageError(f"{name} holds nulls beside true and false.")
    array = values.to_numpy(zero_copy_only=False)  # a null among numbers becomes NaN
    tensor = torch.tensor(array.astype("int64") if array.dtype.kind == "u" else array)
    if not lists:
        return tensor
    return Lists(tensor, torch.tensor(pc.call_function("list_value_length", [whole]).to_numpy().astype("int64")))


def _texts(column: pa.ChunkedArray) -> list[str]:
    """A null is an empty text."""
    found: list[str] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        found += ["" if at is None else words[at] for at in chunk.indices.to_pylist()]
    return found


# --- tables of numbers ---


def from_rows(rows: list[dict[str, Any]], about: dict[str, Any]) -> bytes:
    """Numbers that are not whole as float32; with the rows, as JSON, where they come from."""
    table = pa.Table.from_pylist(rows)
    narrow = [
        field.with_type(pa.float32()) if pa.types.is_floating(field.type) or pa.types.is_null(field.type) else field
        for field in table.schema
    ]
    return _bytes(table.cast(pa.schema(narrow, {"rlcorr": json.dumps(about)})))


def to_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, and where they come from. Raises one of `UNREADABLE` if the file is missing or no such table."""
    table = pq.read_table(path)
    return table.to_pylist(), json.loads((table.schema.metadata or {})[b"rlcorr"])


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()
