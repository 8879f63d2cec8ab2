"""An object with lists of lists per token key: many responses, or the turns of one (a multi-turn trajectory).

ms-swift keeps rollout_logprobs as a list per turn (pull request 6803); NeMo RL writes a micro-batch as one object. They
look the same, so what else the object says decides: one reward for all lists, or a list of rewards. Where nothing says
it the file is refused, because every number per sequence would be of something else.
"""

from typing import Any, Literal

import numpy as np

from rlcorr.errors import UsageError
from rlcorr.foreign.adapted import DUMPS
from rlcorr.foreign.columns import Unreadable
from rlcorr.foreign.engine_log_probs import plain_log_probs
from rlcorr.foreign.names import NAMES
from rlcorr.systems.counted import LOSSES, MASKS, REWARDS

Row = dict[str, Any]
Meaning = Literal["turns", "responses"]

LOG_PROBS = tuple(name for field, names in NAMES.items() if field.endswith("log_probs") for name in names)
IDS = (*NAMES["response_ids"], *NAMES["token_ids"])
_MASKS = (*NAMES["response_mask"], *MASKS, LOSSES, *(dump.mask_over_dummy for dump in DUMPS if dump.mask_over_dummy))
_PER_TOKEN = frozenset({
    *LOG_PROBS, *_MASKS, *NAMES["response_ids"], *NAMES["values"], *NAMES["advantages"], *NAMES["returns"],
})  # fmt: skip
"""Keys with a number per token of the response."""
_ONCE = frozenset({*NAMES["rewards"], *REWARDS, *NAMES["lengths"]})
"""Keys with one number per response."""
PER_RESPONSE = _ONCE | {*NAMES["group_ids"], *(dump.row_mask for dump in DUMPS if dump.row_mask)}
"""Keys of which a list says that there are as many responses. A prompt's id may be one for many responses."""
BY_ROW = frozenset({*LOG_PROBS, *_MASKS})
"""Keys that decide what the lists of an object are."""
_OF_PROMPTS = frozenset({*NAMES["prompt_ids"], *NAMES["token_ids"]})


def arrays(entry: Row, where: str) -> Row:
    """Return the entry with lists of numbers, and lists of these, as arrays, and engines' log-probs as numbers."""
    ids = next((entry[name] for name in IDS if entry.get(name) is not None), None)
    made: Row = {}
    for name, value in entry.items():
        place = f"{name} in {where}"
        try:
            numbers = plain_log_probs(value, ids, place) if name in LOG_PROBS else value
            made[name] = _arrays(numbers, nested=True)
        except UsageError as error:
            made[name] = Unreadable(str(error))
        except (OverflowError, RecursionError):
            made[name] = Unreadable(f"{place} holds a number that is too large, or lists that are too deep.")
    return made


def _arrays(value: Any, *, nested: bool) -> Any:
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if kinds <= {int, float, type(None)}:
        return np.array(value, np.float64)
    if kinds == {bool}:
        return np.array(value, np.bool_)
    return [_arrays(x, nested=False) for x in value] if nested and _is_list(value[0]) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, list | np.ndarray)


# --- what the lists are ---


def nested_key(entry: Row) -> str | None:
    """The first key of a pair or a mask that holds lists of lists, None if there is none."""
    names = (name for name in (*LOG_PROBS, *_MASKS) if isinstance(entry.get(name), list) and entry[name])
    return next((name for name in names if _is_list(entry[name][0])), None)


def meaning(entry: Row, key: str, where: str) -> Meaning | None:
    """What the lists of `key` are by what else the entry says, None if it says nothing. Raises `UsageError` if it says
    both."""
    count, total = len(entry[key]), sum(len(x) for x in entry[key] if _is_list(x))
    flat = {name: x for name, x in entry.items() if _is_list(x) and not (len(x) and _is_list(x[0]))}
    once = [name for name in entry if name in _ONCE and isinstance(entry[name], int | float)]
    whole = [name for name, x in flat.items() if name in _PER_TOKEN and len(x) == total != count]
    per_list = [name for name, x in flat.items() if name in PER_RESPONSE and len(x) == count]
    turns, responses = (once or whole)[:1], per_list[:1]
    if turns and responses and count > 1:
        raise UsageError(
            f"in {where}, {turns[0]} says that the {count} lists of {key} are turns of one response, {responses[0]} "
            "that they are responses; write one object per response, with one list of all its tokens."
        )
    if responses or (count == 1 and not turns):
        return "responses"
    return "turns" if turns else None


def unknown_meaning(entry: Row, key: str, where: str) -> UsageError:
    return UsageError(
        f"{where} holds {len(entry[key])} lists of {key}, which may be as many responses or the turns of one. Say it: "
        "for turns by one reward (a number), for responses by a list of rewards, lengths or group_ids (one per list); "
        "or write one object per response."
    )


# --- objects → rows ---


def responses_of(entry: Row, key: str, where: str) -> list[Row]:
    """One row per list of `key`. What is no list holds for all of them."""
    count = len(entry[key])
    rows: list[Row] = [{} for _ in range(count)]
    for name, value in entry.items():
        cut = _is_list(value) and len(value) == count
        whole = (
            Unreadable(f"in {where}, {key} holds {count} rows, but {name} {len(value)}.") if _is_list(value) else value
        )
        for i, row in enumerate(rows):
            row[name] = value[i] if cut else whole
    return rows


def response_of_turns(entry: Row, key: str, where: str) -> Row:
    """One row: the lists per token of all turns, one after the other."""
    lengths = [len(x) if _is_list(x) else 1 for x in entry[key]]
    return {name: _joined(name, value, lengths, key, where) for name, value in entry.items()}


def _joined(name: str, value: Any, lengths: list[int], key: str, where: str) -> Any:
    if not isinstance(value, list) or not value or not any(map(_is_list, value)):
        return value
    if name in _OF_PROMPTS:
        return Unreadable(f"in {where}, {name} is a list per turn, and which of its ids are the response's is unknown.")
    if name not in _PER_TOKEN:
        return value
    got = [len(x) if _is_list(x) else 1 for x in value]
    if got != lengths:
        return Unreadable(f"in {where}, the turns of {key} have {lengths!s:.60} tokens, those of {name} {got!s:.60}.")
    if all(isinstance(x, np.ndarray) for x in value):
        return np.concatenate(value)
    if all(isinstance(x, list) for x in value):
        return [part for x in value for part in x]
    return Unreadable(f"in {where}, {name} is a list in some turns, and none in others.")
