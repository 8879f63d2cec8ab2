"""JSON and JSON Lines of other people as columns: one object per response, or objects that hold many of them."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Set
from typing import Any

import numpy as np
import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_ROWS, MAX_TOKENS, Column, Columns, Lists, Unreadable, at_most
from rlcorr.foreign.turns import Row, arrays, meaning, nested_key, response_of_turns, responses_of, unknown_meaning
from rlcorr.systems.counted import PLACED

_MAX_VALUE = 32 << 20
"""Bytes of one JSON value, which is a line or a whole document: in Python it takes up to eight times as much memory."""
_MAX_BRACKETS = 1_000_000


def json_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted keys as columns, and the names of all keys. Raises `UsageError`.

    A row is an object with a list of numbers per token key. An object in which such a key holds lists of lists stands
    for as many rows, or for the turns of one (`turns`); one with "samples" for those. null among numbers is NaN, and so
    is the NaN that Python writes.
    """
    return object_columns(_values(content), wanted)


def object_columns(values: Iterable[tuple[str, Any]], wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The same of values that are parsed already, each with the words for where it stands. Raises `UsageError`."""
    entries: list[tuple[str, Row]] = []
    names: dict[str, None] = {}
    tokens = 0
    for place, value in values:
        for where, entry in _objects(value, place):
            names |= dict.fromkeys(entry)
            entries.append((where, arrays({name: x for name, x in entry.items() if name in wanted}, where)))
            tokens += max(map(_numbers_in, entries[-1][1].values()), default=0)
        at_most(MAX_ROWS, len(entries), "rows")
        at_most(MAX_TOKENS, tokens, "tokens")
    rows = _rows(entries)
    if not rows:
        raise UsageError("holds no rows.")
    at_most(MAX_ROWS, len(rows), "rows")
    columns = {name: column_of(name, [cell(row.get(name), name) for row in rows]) for name in names if name in wanted}
    return {name: column for name, column in columns.items() if column is not None}, list(names)


def _numbers_in(value: Any) -> int:
    if isinstance(value, list):
        return sum(len(x) for x in value if isinstance(x, list | np.ndarray))
    return len(value) if isinstance(value, np.ndarray) else 0


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


def _rows(entries: list[tuple[str, Row]]) -> list[Row]:
    """One row per response. An object that does not say what its lists are is as the others of its file are."""
    nested = {n: key for n, (_, entry) in enumerate(entries) if (key := nested_key(entry)) is not None}
    meanings = {n: meaning(entries[n][1], key, entries[n][0]) for n, key in nested.items()}
    said = {meanings[n] for n, key in nested.items() if len(entries[n][1][key]) > 1} - {None}
    rows: list[Row] = []
    for n, (where, entry) in enumerate(entries):
        key = nested.get(n)
        if key is None:
            rows.append(entry)
            continue
        at_most(MAX_ROWS, len(entry[key]), f"rows in {where}")
        if meanings[n] is None and len(said) != 1:
            raise unknown_meaning(entry, key, where)
        if (meanings[n] or next(iter(said))) == "turns":
            rows.append(response_of_turns(entry, key, where))
        else:
            rows += responses_of(entry, key, where)
    return rows


Cell = np.ndarray | float | bool | str | Unreadable | None


def cell(value: Any, name: str) -> Cell:
    """Return numbers, lists of numbers (as arrays) and texts as they are, and all else, such as messages, as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | np.ndarray | Unreadable):
        return value
    try:
        return float(value) if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False, default=_plain)
    except (OverflowError, RecursionError):
        return Unreadable(f"{name} holds a number that is too large, or lists that are too deep.")
    except (TypeError, ValueError) as error:
        return Unreadable(f"{name} holds what is neither numbers nor text ({error!s:.80}).")


def _plain(value: Any) -> Any:
    """For json.dumps."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


def column_of(name: str, cells: list[Cell]) -> Column | None:
    """Return the column of a cell per row, None if no row says anything. null is NaN among numbers, "" among texts."""
    unreadable = next((x for x in cells if isinstance(x, Unreadable)), None)
    if unreadable is not None:
        return unreadable
    kinds = [_kind(x) for x in cells]
    whole = next((kind for kind in kinds if kind not in ("nothing", "an empty list")), kinds[0])
    if set(kinds) == {"nothing"}:
        return None
    for row, kind in enumerate(kinds):
        empty = "an empty list" if whole.startswith("a list") else "nothing"
        if kind not in (whole, empty):
            return Unreadable(f"row {row} (from 0) has {kind} as {name}, another row has {whole}.")
    return _of_lists(cells) if " list" in whole else _of_values(cells)


def _of_lists(cells: list[Any]) -> Lists:
    values = np.concatenate([x for x in cells if len(x)] or cells)
    return Lists(torch.tensor(values), torch.tensor([len(x) for x in cells]))


def _of_values(cells: list[Any]) -> torch.Tensor | list[str]:
    if any(isinstance(x, str) for x in cells):
        return [x or "" for x in cells]
    if all(isinstance(x, bool) for x in cells):
        return torch.tensor(cells)
    return torch.tensor([math.nan if x is None else float(x) for x in cells], dtype=torch.float64)


def _kind(cell: Any) -> str:
    if isinstance(cell, np.ndarray):
        kind = "a list of numbers" if cell.dtype == np.float64 else "a list of true and false"
        return kind if len(cell) else "an empty list"
    return {type(None): "nothing", str: "a text", bool: "true or false", float: "a number"}[type(cell)]
