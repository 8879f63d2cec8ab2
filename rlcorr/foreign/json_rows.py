"""JSON and JSON Lines of other people as columns: one object per response, or objects that hold many of them."""

import io
import json
from collections.abc import Iterable, Iterator, Set
from typing import Any

import numpy as np
import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_ROWS, MAX_TOKENS, Column, Columns, Lists, at_most
from rlcorr.systems.counted import PLACED

_MAX_VALUE = 32 << 20
"""Bytes of one JSON value, which is a line or a whole document: in Python it takes up to eight times as much memory."""
_MAX_BRACKETS = 1_000_000

Row = dict[str, Any]


def json_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted keys as columns, and the names of all keys. Raises `UsageError`.

    A row is an object with a list of numbers per token key. An object in which such a key holds lists of lists stands
    for as many rows, one with "samples" for those. null among numbers is NaN, and so is the NaN that Python writes.
    """
    return object_columns(_values(content), wanted)


def object_columns(values: Iterable[tuple[str, Any]], wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The same of values that are parsed already, each with the words for where it stands. Raises `UsageError`."""
    rows: list[Row] = []
    names: dict[str, None] = {}
    tokens = 0
    for place, value in values:
        for where, entry in _objects(value, place):
            names |= dict.fromkeys(entry)
            for row in _rows(entry, wanted, where):
                rows.append({name: _cell(cell, f"{name} in {where}") for name, cell in row.items()})
                tokens += max((len(cell) for cell in rows[-1].values() if isinstance(cell, np.ndarray)), default=0)
        at_most(MAX_ROWS, len(rows), "rows")
        at_most(MAX_TOKENS, tokens, "tokens")
    if not rows:
        raise UsageError("holds no rows.")
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names if name in wanted}
    return {name: column for name, column in columns.items() if column is not None}, list(names)


# --- text → objects ---


def _values(content: bytes) -> Iterator[tuple[str, Any]]:
    """Every JSON value of the file, and where it stands. Where the first line is {…}, each line is a value."""
    text = content.lstrip(b"\xef\xbb\xbf \t\r\n")
    first = text.partition(b"\n")[0].strip()
    if not (first.startswith(b"{") and first.endswith(b"}")):
        yield "the document", _parsed(text, "the document")
        return
    at_most(MAX_ROWS, content.count(b"\n"), "lines")
    for number, line in enumerate(io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")), 1):
        if line.strip():
            yield f"line {number}", _parsed(line, f"line {number}")


def _parsed(text: bytes, place: str) -> Any:
    at_most(_MAX_VALUE, len(text), f"bytes in {place}; one object per line, and per response, takes less memory")
    at_most(_MAX_BRACKETS, text.count(b"[") + text.count(b"{"), f"brackets in {place}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UsageError(f"{place} is nested too deeply.") from error
    except ValueError as error:  # of JSON, of UTF-8, or a number of thousands of digits
        raise UsageError(f"{place} is not JSON: {error!s:.120}.") from error


def _objects(value: Any, place: str) -> Iterator[tuple[str, Row]]:
    """The objects of a value, and where they stand. What surrounds "samples" holds for each of them."""
    shared: Row = {}
    whole: Row = value if isinstance(value, dict) else {}
    if isinstance(whole.get("samples"), list):
        shared = {key: x for key, x in whole.items() if isinstance(x, int | str)}
        value = whole["samples"]
    places = [(f"item {i} of {place}", x) for i, x in enumerate(value)] if isinstance(value, list) else [(place, value)]
    for where, entry in places:
        if not isinstance(entry, dict):
            raise UsageError(f"{where} is no JSON object.")
        yield where, shared | _of_its_place(whole, entry) | entry


def _of_its_place(whole: Row, entry: Row) -> Row:
    """What a list beside "samples" says of this one, where the sample says its place in the list."""
    numbers: Row = {}
    for key, place in PLACED.items():
        values, at = whole.get(key), entry.get(place)
        if isinstance(values, list) and isinstance(at, int) and 0 <= at < len(values):
            numbers[key] = values[at]
    return numbers


# --- objects → rows ---


def _rows(entry: Row, wanted: Set[str], place: str) -> list[Row]:
    """The wanted keys. Where one holds lists of lists, the object stands for several rows, and lists are cut up."""
    entry = {name: value for name, value in entry.items() if name in wanted}
    lists = {name: value for name, value in entry.items() if isinstance(value, list) and value}
    nested = [name for name, value in lists.items() if isinstance(value[0], list | np.ndarray)]
    if not nested:
        return [entry]
    count = len(entry[nested[0]])
    at_most(MAX_ROWS, count, f"rows in {place}")
    for name, value in entry.items():
        if isinstance(value, list) and len(value) != count:
            raise UsageError(f"in {place}, {nested[0]} holds {count} rows, but {name} {len(value)}.")
    return [{name: x[i] if isinstance(x, list) else x for name, x in entry.items()} for i in range(count)]


def _cell(value: Any, where: str) -> np.ndarray | float | bool | str | None:
    """A list of numbers as an array. What is neither that nor a number stays JSON text: messages, for example."""
    if value is None or isinstance(value, str | bool | np.ndarray):
        return value
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    try:
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, list) and kinds <= {int, float, type(None)}:
            return np.array(value, np.float64)
        if kinds == {bool}:
            return np.array(value, np.bool_)
        return json.dumps(value, ensure_ascii=False)
    except (OverflowError, RecursionError) as error:
        raise UsageError(f"{where} holds a number that is too large, or lists that are too deep.") from error


def _column(name: str, cells: list[Any]) -> Column | None:
    """None if no row says anything. Raises `UsageError` where rows say different things."""
    kinds = [_kind(cell) for cell in cells]
    whole = next((kind for kind in kinds if kind not in ("nothing", "an empty list")), kinds[0])
    if set(kinds) == {"nothing"}:
        return None
    for row, kind in enumerate(kinds):
        if kind != whole and not (kind == "an empty list" and whole.startswith("a list")):
            raise UsageError(f"row {row} (from 0) has {kind} as {name}, another row has {whole}.")
    if not isinstance(cells[0], np.ndarray):
        return cells if isinstance(cells[0], str) else torch.tensor(cells)
    values = np.concatenate([cell for cell in cells if len(cell)] or cells)
    return Lists(torch.tensor(values), torch.tensor([len(cell) for cell in cells]))


def _kind(cell: Any) -> str:
    if isinstance(cell, np.ndarray):
        kind = "a list of numbers" if cell.dtype == np.float64 else "a list of true and false"
        return kind if len(cell) else "an empty list"
    return {type(None): "nothing", str: "a text", bool: "true or false", float: "a number"}[type(cell)]
