"""Objects with lists of lists per token key: many responses, or the turns of one (a multi-turn trajectory).

ms-swift keeps rollout_logprobs as a list per turn (pull request 6803); NeMo RL writes a micro-batch as one object. They
look the same, so other keys decide: a single reward means turns, a list of rewards means responses. If no key decides,
the file is refused, because a wrong guess would make every number per sequence wrong.
"""

from typing import Any, Literal

import numpy as np

from rlcorr.errors import UsageError
from rlcorr.foreign.parse.engine_log_probs import plain_log_probs
from rlcorr.foreign.parse.request import Keys, Unreadable

Row = dict[str, Any]
Meaning = Literal["turns", "responses"]
TURN_IDS = "turn_ids"


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
    return [_to_array(x, nested=False) for x in value] if nested and _is_list(value[0]) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, list | np.ndarray)


# --- turns or responses ---


def nested_key(entry: Row, keys: Keys) -> str | None:
    """Return the first key of a log-prob or a mask that holds lists of lists, None if there is none."""
    names = (name for name in (*keys.log_probs, *keys.masks) if isinstance(entry.get(name), list) and entry[name])
    return next((name for name in names if _is_list(entry[name][0])), None)


def meaning(entry: Row, key: str, where: str, keys: Keys) -> Meaning | None:
    """Return what the other keys of the entry say about the lists of `key`; None if they say nothing.

    Raises `UsageError` if they contradict each other.
    """
    count, total = len(entry[key]), sum(len(x) for x in entry[key] if _is_list(x))
    flat = {name: x for name, x in entry.items() if _is_list(x) and not (len(x) and _is_list(x[0]))}
    single = [name for name in entry if name in keys.single and isinstance(entry[name], int | float)]
    whole = [name for name, x in flat.items() if name in keys.per_token and len(x) == total != count]
    per_list = [name for name, x in flat.items() if name in keys.per_response and len(x) == count]
    turns, responses = (single or whole)[:1], per_list[:1]
    if turns and responses and count > 1:
        raise UsageError(
            f"in {where}, {turns[0]} says that the {count} lists of {key} are turns of one response, {responses[0]} "
            "that they are responses; write one object per response, with one list of all its tokens."
        )
    if responses or (count == 1 and not turns):
        return "responses"
    return "turns" if turns else None


def unknown_meaning(entry: Row, key: str, where: str) -> UsageError:
    """Return the error for lists that may be turns or responses."""
    return UsageError(
        f"{where} holds {len(entry[key])} lists of {key}, which may be as many responses or the turns of one. Add one "
        "reward (a number) for turns, or a list of rewards, lengths or group_ids (one per list) for responses; or "
        "write one object per response."
    )


# --- objects → rows ---


def split_responses(entry: Row, key: str, where: str) -> list[Row]:
    """Return one row per list of `key`. A value that is not a list goes into all of them."""
    count = len(entry[key])
    rows: list[Row] = [{} for _ in range(count)]
    for name, value in entry.items():
        per_row = _is_list(value) and len(value) == count
        whole = (
            Unreadable(f"in {where}, {key} holds {count} rows, but {name} {len(value)}.") if _is_list(value) else value
        )
        for i, row in enumerate(rows):
            row[name] = value[i] if per_row else whole
    return rows


def join_turns(entry: Row, key: str, where: str, keys: Keys) -> Row:
    """Return one row, in which the lists per token of all turns are joined."""
    lengths = [len(x) if _is_list(x) else 1 for x in entry[key]]
    turn_ids = {} if TURN_IDS in entry else {TURN_IDS: np.repeat(np.arange(len(lengths), dtype=np.float64), lengths)}
    return turn_ids | {name: _join_values(name, value, lengths, key, where, keys) for name, value in entry.items()}


def one_turn(entry: Row, keys: Keys) -> Row:
    """Return a plain row of a file in which other rows have turns: all of its tokens are in turn 0."""
    log_probs = next((entry[name] for name in keys.log_probs if isinstance(entry.get(name), np.ndarray)), None)
    return entry if log_probs is None or TURN_IDS in entry else entry | {TURN_IDS: np.zeros(len(log_probs))}


def _join_values(name: str, value: Any, lengths: list[int], key: str, where: str, keys: Keys) -> Any:
    if not isinstance(value, list) or not value or not any(map(_is_list, value)):
        return value
    if name in keys.prompts:
        return Unreadable(f"in {where}, {name} is a list per turn, so it is unknown which ids belong to the response.")
    if name in keys.top and all(isinstance(x, np.ndarray) for x in value):
        return np.concatenate(value)
    if name not in keys.per_token:
        return value
    got = [len(x) if _is_list(x) else 1 for x in value]
    if got != lengths:
        return Unreadable(f"in {where}, the turns of {key} have {lengths!s:.60} tokens, those of {name} {got!s:.60}.")
    if all(isinstance(x, np.ndarray) for x in value):
        return np.concatenate(value)
    if all(isinstance(x, list) for x in value):
        return [part for x in value for part in x]
    return Unreadable(f"in {where}, {name} is a list in some turns, but not in others.")
