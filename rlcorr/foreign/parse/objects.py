"""Objects of a file (of JSON, of torch.save, of a trainer's batch) as a table with one row per response."""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.engine_log_probs import plain_log_probs
from rlcorr.foreign.parse.request import MAX_ROWS, Keys, Piece, Request, Unreadable, check_limit

Row = dict[str, Any]
TURN_IDS = "turn_ids"


def table_piece(objects: Iterable[tuple[str, Any]], request: Request) -> Piece:
    """Return the rows of objects, each of which comes with its place in the file, for messages.

    A row is an object with a list of numbers per token key. If such a key holds lists of lists, the object is as many
    rows, or the turns of one row. An object with "samples" is one row per sample. null among numbers becomes
    NaN. Raises `UsageError` for anything but objects.
    """
    wanted, keys = request.wanted, request.keys
    rows: list[Row] = []
    names: dict[str, None] = {}
    for place, value in objects:
        for where, entry in _samples(value, place, keys):
            names |= dict.fromkeys(entry)
            rows += _rows(to_arrays({name: x for name, x in entry.items() if name in wanted}, where, keys), where, keys)
    if not rows:
        raise UsageError("holds no rows.")
    if any(TURN_IDS in row for row in rows):
        rows = [_with_turn(row, keys) for row in rows]
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
    places = [(f"item {i} of {place}", x) for i, x in enumerate(value)] if isinstance(value, list) else [(place, value)]
    for where, entry in places:
        if not isinstance(entry, dict):
            raise UsageError(f"{where} is not an object, a name with a value per column.")
        yield where, shared | _placed_values(whole, entry, keys) | entry


def _placed_values(whole: Row, entry: Row, keys: Keys) -> Row:
    """Return this sample's entries of the lists next to "samples", if the sample has its index in them."""
    numbers: Row = {}
    for key, place in keys.placed.items():
        values, index = whole.get(key), entry.get(place)
        if isinstance(values, list) and isinstance(index, int) and 0 <= index < len(values):
            numbers[key] = values[index]
    return numbers


# --- objects → rows ---


def to_arrays(entry: Row, where: str, keys: Keys) -> Row:
    """Return the entry with lists of numbers as arrays, and with the engines' log-probs as one number per token."""
    ids = next((entry[name] for name in keys.ids if entry.get(name) is not None), None)
    converted: Row = {}
    for name, value in entry.items():
        place = f"{name} in {where}"
        try:
            numbers = plain_log_probs(value, ids, place) if name in keys.log_probs else value
            converted[name] = _to_array(numbers, nested=True)
        except UsageError as error:
            converted[name] = Unreadable(str(error))
        except (OverflowError, RecursionError):
            converted[name] = Unreadable(f"{place} holds a number that is too large, or lists that are too deep.")
    return converted


def _to_array(value: Any, *, nested: bool) -> Any:
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if kinds <= {int, float, type(None)}:
        return np.array(value, np.float64)
    if kinds == {bool}:
        return np.array(value, np.bool_)
    return [_to_array(x, nested=False) for x in value] if nested and isinstance(value[0], list) else value


def _rows(entry: Row, where: str, keys: Keys) -> list[Row]:
    """Return one row per response of an object whose log-probs or masks may be lists of lists.

    ms-swift keeps rollout_logprobs as a list per turn (pull request 6803); NeMo RL writes a micro-batch as one object.
    They look the same, so other keys decide: a list of rewards means responses, a single reward turns. If no key
    decides, the file is refused, because a wrong guess would make every number per sequence wrong.
    """
    key = next((name for name in (*keys.log_probs, *keys.masks) if _is_nested(entry.get(name))), None)
    if key is None:
        return [entry]
    count = len(entry[key])
    is_turns = any(isinstance(entry.get(name), int | float) for name in keys.single)
    is_responses = any(isinstance(x := entry.get(name), np.ndarray) and len(x) == count for name in keys.per_response)
    if is_responses > is_turns or (count == 1 and not is_turns):
        return [{name: _of_response(value, i, key, name, count) for name, value in entry.items()} for i in range(count)]
    if is_turns > is_responses:
        return [_joined(entry, key, where, keys)]
    raise UsageError(
        f"{where} holds {count} lists of {key}, which may be as many responses or the turns of one. Add one reward (a "
        "number) for turns, or a list of rewards, lengths or group_ids (one per list) for responses; or write one "
        "object per response."
    )


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list | np.ndarray)


def _of_response(value: Any, index: int, key: str, name: str, count: int) -> Any:
    """Return the entry of one response; a value that is not a list belongs to all of them."""
    if not isinstance(value, list | np.ndarray):
        return value
    if len(value) == count:
        return value[index]
    return Unreadable(f"an object with {count} lists of {key} holds {count} rows, but {name} {len(value)}.")


def _joined(entry: Row, key: str, where: str, keys: Keys) -> Row:
    """Return one row, in which the lists per token of all turns are joined."""
    lengths = [np.size(x) for x in entry[key]]
    row: Row = {TURN_IDS: np.repeat(np.arange(len(lengths), dtype=np.float64), lengths)}
    for name, value in entry.items():
        row[name] = value
        if (
            _is_nested(value)
            and name in keys.per_token | set(keys.top)
            and all(isinstance(x, np.ndarray) for x in value)
        ):
            row[name] = np.concatenate(value)
            got = [len(x) for x in value]
            if got != lengths and name not in keys.top:
                said = f"in {where}, the turns of {key} have {lengths!s:.60} tokens, those of {name} {got!s:.60}."
                row[name] = Unreadable(said)
    return row


def _with_turn(row: Row, keys: Keys) -> Row:
    """Return a plain row of a file in which other rows have turns: all of its tokens are in turn 0."""
    log_probs = next((row[name] for name in keys.log_probs if isinstance(row.get(name), np.ndarray)), None)
    return row if log_probs is None or TURN_IDS in row else row | {TURN_IDS: np.zeros(len(log_probs))}


# --- rows → columns ---


def column_of(name: str, values: Iterable[Any]) -> pa.Array | Unreadable:
    """Return the column of these values, one per row: arrays are lists, numbers floats, and messages texts of JSON.

    Values of different kinds make it `Unreadable`.
    """
    cells = list(values)
    unreadable = next((x for x in cells if isinstance(x, Unreadable)), None)
    if unreadable is not None:
        return unreadable
    lists = [x for x in cells if isinstance(x, np.ndarray)]
    try:
        if lists and len(lists) == sum(x is not None for x in cells):
            return _list_array(cells, lists)
        return pa.array([_cell(x) for x in cells])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # those of Arrow are among them
        return Unreadable(f"{name} must hold the same kind of value in all rows ({first_line(error):.120}).")


def _list_array(cells: list[Any], lists: list[np.ndarray]) -> pa.Array:
    """Return the lists, some of which may be null, without the copies that a builder of Arrow makes."""
    ends = np.cumsum([0, *(0 if x is None else len(x) for x in cells)]).tolist()
    starts = [None if x is None else start for x, start in zip(cells, ends, strict=False)]
    return pa.ListArray.from_arrays(pa.array([*starts, ends[-1]], pa.int32()), pa.array(np.concatenate(lists)))


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
