"""Objects of a file (of JSON, of nested Parquet columns, of torch.save) as a table with one row per response."""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.request import MAX_ROWS, Keys, Piece, Request, Unreadable, check_limit
from rlcorr.foreign.parse.turns import (
    TURN_IDS,
    Row,
    join_turns,
    meaning,
    nested_key,
    one_turn,
    split_responses,
    to_arrays,
    unknown_meaning,
)


def table_piece(objects: Iterable[tuple[str, Any]], request: Request) -> Piece:
    """Return the rows of objects, each of which comes with its place in the file, for messages.

    A row is an object with a list of numbers per token key. If such a key holds lists of lists, the object is as many
    rows, or the turns of one row (`turns`). An object with "samples" is one row per sample, and a table with "columns"
    and "data" (Weights & Biases, pandas with orient="split") one row per list of its data. null among numbers becomes
    NaN. Raises `UsageError` for anything but objects.
    """
    wanted, keys = request.wanted, request.keys
    entries: list[tuple[str, Row]] = []
    names: dict[str, None] = {}
    for place, value in objects:
        for where, entry in _samples(value, place, keys):
            names |= dict.fromkeys(entry)
            entries.append((where, to_arrays({name: x for name, x in entry.items() if name in wanted}, where, keys)))
    rows = _rows(entries, keys)
    if not rows:
        raise UsageError("holds no rows.")
    columns = {
        name: column_of(name, [row.get(name) for row in rows])
        for name in names | dict.fromkeys(name for row in rows for name in row)
        if name in wanted
    }
    unreadable = {name: column.why for name, column in columns.items() if isinstance(column, Unreadable)}
    table = pa.table({name: column for name, column in columns.items() if isinstance(column, pa.Array)})
    return {"names": list(names), "unreadable": unreadable}, table


# --- JSON → values ---


def json_pieces(request: Request) -> Iterator[Piece]:
    """Yield the rows of JSON or JSON Lines. Raises `UsageError` if the file is damaged."""
    yield table_piece(_json_values(request.path.read_bytes()), request)


def _json_values(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield every JSON value of the file with its place. If the first line is {…}, each line is a value."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    first = content.lstrip().partition(b"\n")[0].strip()
    if not (first.startswith(b"{") and first.endswith(b"}")):
        yield "the document", _parse(content, "the document")
        return
    check_limit(MAX_ROWS, content.count(b"\n"), "lines")
    for number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            yield f"line {number}", _parse(line, f"line {number}")


def _parse(text: bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UsageError(f"{place} is nested too deeply.") from error
    except ValueError as error:  # wrong JSON or UTF-8, or a number with thousands of digits
        raise UsageError(f"{place} is not JSON: {error!s:.120}.") from error


# --- values → objects ---


def _samples(value: Any, place: str, keys: Keys) -> Iterable[tuple[str, Row]]:
    """Yield the objects of a value with their places. Numbers and texts next to "samples" apply to every sample."""
    shared: Row = {}
    whole: Row = value if isinstance(value, dict) else {}
    if isinstance(whole.get("samples"), list):
        shared = {key: x for key, x in whole.items() if isinstance(x, int | str)}
        value = whole["samples"]
    elif _is_table(whole):
        value = [
            _table_row(whole["columns"], cells, f"row {row} of {place}") for row, cells in enumerate(whole["data"])
        ]
    places = [(f"item {i} of {place}", x) for i, x in enumerate(value)] if isinstance(value, list) else [(place, value)]
    for where, entry in places:
        if not isinstance(entry, dict):
            raise UsageError(f"{where} is not a JSON object.")
        yield where, shared | _placed_values(whole, entry, keys) | entry


def _is_table(whole: Row) -> bool:
    columns, data = whole.get("columns"), whole.get("data")
    return isinstance(data, list) and isinstance(columns, list) and all(isinstance(name, str) for name in columns)


def _table_row(columns: list[str], cells: Any, where: str) -> Row:
    """Return one row of a table as an object. Raises `UsageError` if it has not one cell per column."""
    if not isinstance(cells, list) or len(cells) != len(columns) or len(set(columns)) < len(columns):
        raise UsageError(f"{where} must be a list with one cell for each of {len(columns)} different columns.")
    return dict(zip(columns, cells, strict=True))


def _placed_values(whole: Row, entry: Row, keys: Keys) -> Row:
    """Return this sample's entries of the lists next to "samples", if the sample has its index in them."""
    numbers: Row = {}
    for key, place in keys.placed.items():
        values, index = whole.get(key), entry.get(place)
        if isinstance(values, list) and isinstance(index, int) and 0 <= index < len(values):
            numbers[key] = values[index]
    return numbers


# --- objects → rows ---


def _rows(entries: list[tuple[str, Row]], keys: Keys) -> list[Row]:
    """Return one row per response.

    The lists of an object may be turns or responses. If it does not say which, the other objects of the file decide.
    """
    nested = {n: key for n, (_, entry) in enumerate(entries) if (key := nested_key(entry, keys)) is not None}
    meanings = {n: meaning(entries[n][1], key, entries[n][0], keys) for n, key in nested.items()}
    stated = {meanings[n] for n, key in nested.items() if len(entries[n][1][key]) > 1} - {None}
    rows: list[Row] = []
    for n, (where, entry) in enumerate(entries):
        key = nested.get(n)
        if key is None:
            rows.append(entry)
            continue
        if meanings[n] is None and len(stated) != 1:
            raise unknown_meaning(entry, key, where)
        if (meanings[n] or next(iter(stated))) == "turns":
            rows.append(join_turns(entry, key, where, keys))
        else:
            rows += split_responses(entry, key, where)
    return [one_turn(row, keys) for row in rows] if any(TURN_IDS in row for row in rows) else rows


# --- rows → columns ---


def column_of(name: str, values: Iterable[Any]) -> pa.Array | Unreadable:
    """Return the column of these values, one per row: arrays are lists, numbers floats, and messages texts of JSON.

    Values of different kinds make it `Unreadable`.
    """
    cells = list(values)
    unreadable = next((x for x in cells if isinstance(x, Unreadable)), None)
    if unreadable is not None:
        return unreadable
    try:
        return pa.array([_cell(x) for x in cells])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # those of Arrow are among them
        return Unreadable(f"{name} must hold the same kind of value in all rows ({first_line(error):.120}).")


def _cell(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | np.ndarray):
        return value
    if isinstance(value, int | float):
        return float(value)
    return json.dumps(value, ensure_ascii=False, default=_json_default)


def _json_default(value: Any) -> Any:
    """Return an array as a list, for json.dumps."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
