"""The Parquet files of recorded runs and of the study: tensors to columns and back."""

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records.disk import LARGEST, content_of
from rlcorr.types import TokenBatch

_TOKEN_COLUMNS = (
    "rollout_log_probs", "old_log_probs", "sampled_log_probs", "ref_log_probs", "advantages", "values"
)  # fmt: skip
_TOP_COLUMNS = {"top_ids": pa.int32(), "rollout_top_log_probs": pa.float32(), "old_top_log_probs": pa.float32()}
"""Columns with K numbers per token, one token after the other, which only steps with the likeliest tokens have."""
_TOKEN_TEXTS = "response_token_texts"
_TURNS, _VERSIONS = "turn_ids", "token_policy_versions"
"""Columns with a whole number per token, which only steps with turns, or with several versions in a response, have."""
_ROW_COLUMNS = {"group_id": "group_ids", "policy_version": "policy_versions"}
UNPAIRED = "unpaired_tokens"
"""Column with the number of tokens in each row that were left out, because the engine's log-prob was NaN. Only steps
with such tokens have it."""
ZSTD_LEVEL = 15
"""5 % smaller than the default; a step of 8,000 tokens is written in 40 ms."""
LARGE_STEP, FAST_LEVEL = 1 << 18, 3
"""Positions of a step above which this level is used: five times faster, and 2 % larger with random digits."""
ROW_GROUP_POSITIONS = 1 << 16
"""Positions, including padding, in one row group of a file. Writing a group takes about 300 bytes for each."""
MAX_ROWS, MAX_VALUES, MAX_PADDED = 1 << 18, 1 << 22, 1 << 24
"""Rows, numbers or texts in one column, and rows × longest response of a step that is read: those of an import."""
MAX_TOP_VALUES = 1 << 26
"""Numbers in a column with K numbers per token."""
UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError, AttributeError, UsageError)
"""Exceptions that a damaged or foreign file may cause."""


@dataclass(frozen=True)
class StepRecord:
    """One recorded step: the pairs of log-probs and their texts."""

    step: int
    batch: TokenBatch
    prompts: list[str]
    responses: list[str]
    notes: tuple[str, ...] = ()  # what an import left out or changed; not recorded
    aborted: int = 0  # rows that an import left out, because one side has no log-prob for them; not recorded
    tokens: list[list[str]] | None = None  # the text of each response token, unless every token is a character


# --- the pairs of a step ---


def to_step(path: Path, step: int, sha256: str = "") -> StepRecord:
    """Read a step. Raises one of `UNREADABLE` if the file is missing, cut off, too large or lacks a column.

    Raises `UsageError`, too, if its hash is not `sha256`: Parquet's checksums do not cover all of a file.
    """
    content = content_of(path)
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError("its sha256 is not that of the manifest")
    table = _read(content, sound=bool(sha256))
    batch, prompts, responses = _batch(table), _texts(table["prompt"]), _texts(table["response"])
    tokens = None
    if _TOKEN_TEXTS in table.column_names:
        words, ends = _texts(table[_TOKEN_TEXTS]), batch.response_mask.sum(-1).cumsum(0).tolist()
        tokens = [words[start:end] for start, end in itertools.pairwise([0, *ends])]
        lengths = table[_TOKEN_TEXTS].combine_chunks().value_lengths().to_pylist()
        if lengths != batch.response_mask.sum(-1).tolist():
            raise UsageError(f"{_TOKEN_TEXTS} and response_ids have lists of different lengths")
    return StepRecord(step, batch, prompts, responses, tokens=tokens)


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Return the texts of a column, or of its lists; a text that the file repeats is in memory once."""
    texts: list[str] = []
    for chunk in column.chunks:
        values = chunk if pa.types.is_dictionary(chunk.type) else chunk.flatten()
        words = values.dictionary.to_pylist()
        texts += [words[index] for index in values.indices.to_pylist()]
    return texts


def _batch(table: pa.Table) -> TokenBatch:
    response_ids, mask = _padded(table["response_ids"], pa.int32())
    prompt_ids, prompt_mask = _padded(table["prompt_ids"], pa.int32(), left=True)
    columns: dict[str, Any] = {}
    per_token = {name: (name, pa.float32()) for name in _TOKEN_COLUMNS}
    per_token |= {_TURNS: ("turn_ids", pa.int32()), _VERSIONS: ("policy_versions", pa.int32())}
    for name, (field, kind) in per_token.items():
        if name in table.column_names:
            columns[field], filled = _padded(table[name], kind)
            if not torch.equal(filled, mask):
                raise UsageError(f"{name} and response_ids have lists of different lengths")
    columns |= {name: _top(table[name], mask, name) for name in _TOP_COLUMNS if name in table.column_names}
    row_columns = _ROW_COLUMNS | ({UNPAIRED: UNPAIRED} if UNPAIRED in table.column_names else {})
    for column, field in row_columns.items():
        columns.setdefault(field, torch.tensor(table[column].to_numpy().copy()))
    return TokenBatch(
        response_mask=mask,
        response_ids=response_ids,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        rewards=torch.tensor(table["reward"].to_numpy().copy()),
        **columns,
    )


def _top(column: pa.ChunkedArray, mask: Tensor, name: str) -> Tensor:
    """Return a column with K numbers per token as (B, T, K), −1 (ids) or 0 on padding."""
    values, filled = _padded(column, _TOP_COLUMNS[name])
    count = values.shape[1] // max(mask.shape[1], 1)
    if not torch.equal(filled, mask.repeat_interleave(count, -1)):
        raise UsageError(f"{name} has not the same number of tokens at every position")
    lists = values.view(*mask.shape, count)
    return torch.where(mask[..., None], lists, -1 if name == "top_ids" else 0)


def _padded(column: pa.ChunkedArray, kind: pa.DataType, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return a list column as (values (B, T) padded with 0, mask (B, T)). Raises `UsageError` for another type."""
    lists = column.combine_chunks()
    if lists.type != pa.list_(kind) or lists.null_count or lists.flatten().null_count:
        raise UsageError(f"a column must be list<{kind}> without nulls; got {lists.type}")
    lengths = torch.tensor(lists.value_lengths().to_numpy(zero_copy_only=False).copy(), dtype=torch.int64)
    _require_at_most(MAX_PADDED, len(lengths) * int(lengths.max() if len(lengths) else 0), "places in a column")
    return pad(torch.tensor(lists.flatten().to_numpy(zero_copy_only=False).copy()), lengths, left=left)


def from_step(record: StepRecord) -> bytes:
    """Return a Parquet file with one row per sequence and bit-exact log-probs.

    Raises `UsageError` if the batch lacks a column, or if a response has holes.
    """
    batch = record.batch
    if bool((batch.response_mask[:, 1:] & ~batch.response_mask[:, :-1]).any()):
        raise UsageError("a recorded response starts at its first column and has no holes; this response_mask has.")
    rows, width = batch.response_mask.shape
    size = max(ROW_GROUP_POSITIONS // max(width, 1), 1)
    groups = (_table(_rows(record, slice(start, start + size))) for start in range(0, max(rows, 1), size))
    return _bytes(groups, FAST_LEVEL if rows * width > LARGE_STEP else ZSTD_LEVEL)


def _rows(record: StepRecord, rows: slice) -> StepRecord:
    tokens = None if record.tokens is None else record.tokens[rows]
    return StepRecord(record.step, record.batch.rows(rows), record.prompts[rows], record.responses[rows], tokens=tokens)


def _table(record: StepRecord) -> pa.Table:
    batch = record.batch
    columns: dict[str, Any] = {"step": pa.array([record.step] * len(record.prompts), pa.int32())}
    versions = _require(batch, "policy_versions")
    columns["group_id"] = pa.array(_require(batch, "group_ids").tolist(), pa.int32())
    of_rows = versions if versions.dim() == 1 else versions[:, :1].sum(-1)  # that of the first token
    columns["policy_version"] = pa.array(of_rows.tolist(), pa.int32())
    if UNPAIRED in batch.tensors():
        columns[UNPAIRED] = pa.array(_require(batch, UNPAIRED).tolist(), pa.int32())
    columns["reward"] = pa.array(_require(batch, "rewards").tolist(), pa.float32())
    columns["prompt"] = pa.array(record.prompts, pa.string())
    columns["response"] = pa.array(record.responses, pa.string())
    columns["prompt_ids"] = _ragged(_require(batch, "prompt_ids"), _require(batch, "prompt_mask"), pa.int32())
    columns["response_ids"] = _ragged(_require(batch, "response_ids"), batch.response_mask, pa.int32())
    if record.tokens is not None:
        columns[_TOKEN_TEXTS] = pa.array(record.tokens, pa.list_(pa.string()))
    if batch.turn_ids is not None:
        columns[_TURNS] = _ragged(batch.turn_ids.int(), batch.response_mask, pa.int32())
    if versions.dim() == 2:
        columns[_VERSIONS] = _ragged(versions.int(), batch.response_mask, pa.int32())
    for name in _TOKEN_COLUMNS:
        if name in batch.tensors():
            columns[name] = _ragged(_require(batch, name).float(), batch.response_mask, pa.float32())
    for name, kind in _TOP_COLUMNS.items():
        if name in batch.tensors():
            lists = _require(batch, name)
            mask = batch.response_mask.repeat_interleave(lists.shape[-1], -1)
            columns[name] = _ragged(lists.flatten(1), mask, kind)
    return pa.table(columns)


def _require(batch: TokenBatch, name: str) -> Tensor:
    tensor = batch.tensors().get(name)
    if tensor is None:
        raise UsageError(f"a recorded step needs {name}; the batch has {', '.join(batch.tensors())}.")
    return tensor


def _ragged(values: Tensor, mask: Tensor, kind: pa.DataType) -> pa.Array:
    """Return values (B, T) as a column of lists without padding."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(-1).cpu().cumsum(0)]).to(torch.int32)
    flat = values[mask].cpu().numpy()
    return pa.ListArray.from_arrays(pa.array(offsets.numpy()), pa.array(flat, type=kind))


# --- tables of numbers ---


def from_rows(rows: list[dict[str, Any]], about: dict[str, Any]) -> bytes:
    """Return a Parquet file of the rows, with floats as float32 and `about`, their origin, as JSON in its metadata."""
    table = pa.Table.from_pylist(rows)
    narrow = [
        field.with_type(pa.float32()) if pa.types.is_floating(field.type) or pa.types.is_null(field.type) else field
        for field in table.schema
    ]
    return _bytes([table.cast(pa.schema(narrow, {"rlcorr": json.dumps(about)}))])


def to_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read the rows and their origin. Raises one of `UNREADABLE` if the file is missing or is not such a table."""
    table = _read(content_of(path))
    return table.to_pylist(), json.loads((table.schema.metadata or {})[b"rlcorr"])


def _bytes(tables: Iterable[pa.Table], level: int = ZSTD_LEVEL) -> bytes:
    """Return a Parquet file with one row group per table.

    Floats are split into byte streams (all first bytes, then all second bytes, …). Their exponents are similar, so the
    file becomes a quarter smaller.
    """
    sink, groups = pa.BufferOutputStream(), iter(tables)
    first = next(groups)
    leaves = dict(_leaf(field) for field in first.schema)
    split = [path for path, kind in leaves.items() if pa.types.is_floating(kind)]
    columns: dict[str, Any] = {
        "use_byte_stream_split": split,
        "use_dictionary": [path for path in leaves if path not in split],
    }
    with pq.ParquetWriter(
        sink, first.schema, compression="zstd", compression_level=level, write_page_checksum=True, **columns
    ) as file:
        for table in itertools.chain([first], groups):
            file.write_table(table)
    return sink.getvalue().to_pybytes()


def _read(content: bytes, *, sound: bool = False) -> pa.Table:
    """Read a table. `sound`: the bytes are those that were written, so that the footer may be asked for more."""
    source = pa.BufferReader(content)
    metadata = pq.read_metadata(source)
    _require_at_most(MAX_ROWS, metadata.num_rows, "rows")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    _require_at_most(LARGEST, sum(group.total_byte_size for group in groups), "bytes when unpacked")
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    for i, path in enumerate(paths if sound else ()):  # pyarrow aborts the process if a flipped bit is in these numbers
        most = MAX_TOP_VALUES if path.partition(".")[0] in _TOP_COLUMNS else MAX_VALUES
        _require_at_most(most, sum(group.column(i).num_values for group in groups), f"values in {path}")
    texts = [path for path in paths if path.partition(".")[0] in ("prompt", "response", _TOKEN_TEXTS)]
    with pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=texts) as file:
        return file.read()


def _require_at_most(most: int, count: int, what: str) -> None:
    if count > most:
        raise UsageError(f"{count:,} {what}; at most {most:,} are read")


def _leaf(field: pa.Field) -> tuple[str, pa.DataType]:
    """Return the Parquet path of the numbers of a column, and their type."""
    if pa.types.is_list(field.type):
        return f"{field.name}.list.element", field.type.value_type
    return field.name, field.type


def pad(values: Tensor, lengths: Tensor, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return lists as (values (B, T) padded with 0, mask (B, T)). `values` has all lists, one after the other."""
    width = int(lengths.max()) if len(lengths) else 0
    position = torch.arange(width, dtype=torch.int32)
    mask = position >= width - lengths[:, None] if left else position < lengths[:, None]
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, values), mask
