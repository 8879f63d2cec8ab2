"""Checked values: every number, id and text of a file, before it is used.

A wrong number in a needed column refuses the file, with its row and token. Any other column that cannot be used is left
out, with the reason.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import (
    Column,
    Columns,
    Lists,
    one_per_row,
    refuse_where,
    require_lists,
    require_readable,
    whole_numbers,
)
from rlcorr.foreign.map_names import ABORTED, PAIR, require_aligned
from rlcorr.foreign.parse.request import MAX_TEXT, check_limit
from rlcorr.types import ROUNDED_UP, TOP

PLACES = "places"
"""Column that this program adds: the position of each token in its response in the file, for messages and turns."""
TOKEN_COLUMNS = (
    "rollout_log_probs", "old_log_probs", "sampled_log_probs", "log_probs", "ref_log_probs", "values", "advantages",
    "returns",
)  # fmt: skip
"""Columns with a floating-point number per response token."""
ROUNDING = 0.125
"""Largest log-prob that counts as rounded up, and is clamped to 0 on request: the largest value that
AI-Hypercomputer/maxtext pull request 5231 reports for bfloat16. A larger one is not rounding."""
FALLS = {
    "policy_versions": "a response is only continued with newer weights, so a version must not be lower than the one "
    "before it",
    "turn_ids": "a turn ends before the next one begins, so two turns must not overlap",
}
"""Column whose numbers must not fall within a response → why."""
TOOL = "Tokens that a tool wrote belong to no turn: leave them out with response_mask."
_NAN_HINTS = {
    "rollout_log_probs": f"; nan_is_ratio_one (--nan-is-ratio-one) leaves out such tokens, {ABORTED}",
    "old_log_probs": f"; {ABORTED}",
}


def checked(columns: Columns) -> tuple[Columns, dict[str, str]]:
    """Return the columns with every value checked, and why others are left out, by name.

    Args:
        columns: the tokens that count, under our names, with their `PLACES`.

    Raises `UsageError` for a wrong number in the pair or in the step.
    """
    good: Columns = {name: _token_values(name, columns) for name in PAIR}
    sides = [require_lists(name, good[name]).values == -torch.inf for name in PAIR]
    refuse(columns, sides[0] & sides[1], "rollout_log_probs and old_log_probs are both −inf, so there is no ratio")
    left_out: dict[str, str] = {}
    for name in columns:
        read = _READERS.get(name)
        if read is None or name in good:
            continue
        try:
            good[name] = read(name, columns)
        except UsageError as error:
            if name == "step":
                raise
            left_out[name] = str(error)
    if any(name in columns for name in TOP):
        try:
            good |= _top_lists(columns)
        except UsageError as error:
            left_out["top_ids"] = str(error)
    return good, left_out


def clamped(column: Column) -> Column:
    """Return a column of log-probs with every one in (0, `ROUNDING`] replaced by 0."""
    if not isinstance(column, Lists | Tensor):
        return column
    values = column.values if isinstance(column, Lists) else column
    values = torch.where((values > 0) & (values <= ROUNDING), 0, values)
    return replace(column, values=values) if isinstance(column, Lists) else values


# --- per token ---


def refuse(columns: Columns, wrong: Tensor, what: str) -> None:
    """Raise `UsageError` with row and token, as the file counts them, of the first token at which `wrong` is true."""
    rollout, places = (require_lists(name, columns[name]) for name in ("rollout_log_probs", PLACES))
    refuse_where(rollout, wrong, what, places)


def _token_values(name: str, columns: Columns) -> Lists:
    """Return the values of a column, one per token, as float32.

    Raises `UsageError` for NaN, for infinite values (a log-prob may be −inf), and for a log-prob above `ROUNDED_UP`.
    """
    column, rollout = columns[name], require_lists("rollout_log_probs", columns["rollout_log_probs"])
    if name == "advantages" and isinstance(column, Tensor) and column.dim():  # one per response
        column = Lists(column[rollout.rows()], rollout.lengths)
    lists, log_probs = require_lists(name, column), name.endswith("log_probs")
    if lists.values.dtype == torch.bool or (log_probs and not lists.values.is_floating_point()):
        raise UsageError(f"{name} has dtype {lists.values.dtype}; floating-point numbers are needed.")
    values = lists.values.float()
    refuse(columns, values.isnan(), f"{name} is NaN or null{_NAN_HINTS.get(name, '')}")
    if log_probs:
        _refuse_above_zero(name, columns, values)
    else:
        refuse(columns, values.isinf(), f"{name} is infinite")
    return Lists(values, lists.lengths)


def _refuse_above_zero(name: str, columns: Columns, values: Tensor) -> None:
    above = values > ROUNDED_UP
    if not bool(above.any()):
        return
    highest = float(values[above].max())
    advice = "take the logarithm of probabilities, change the sign of negative log-likelihoods"
    if highest <= ROUNDING:
        advice = "if bfloat16 rounded them up, clamp_rounding (--clamp-rounding) makes them 0"
    got = f"{name} must be natural logarithms of probabilities, ≤ 0; got {float(values[above][0]):g}"
    refuse(columns, above, f"{got}, at most {highest:g}: {advice}")


def _ids(name: str, columns: Columns) -> Lists:
    lists = require_lists(name, columns[name])
    return Lists(whole_numbers(name, lists.values), lists.lengths)


def _prompt_ids(name: str, columns: Columns) -> Lists:
    prompt = _ids(name, columns)
    if "prompt_mask" not in columns:
        return prompt
    mask = require_aligned("prompt_mask", columns, prompt).values != 0
    return Lists(prompt.values[mask], torch.bincount(prompt.rows()[mask], minlength=len(prompt.lengths)))


def _rising(name: str, columns: Columns) -> Lists:
    """Return the whole numbers of the tokens. Raises `UsageError` if they fall within a response."""
    lists = _ids(name, columns)
    numbers, row = lists.values, lists.rows()
    falls = (numbers[1:] < numbers[:-1]) & (row[1:] == row[:-1])
    if bool(falls.any()):
        where = int(falls.nonzero()[0])
        got = f"{int(numbers[where])} to {int(numbers[where + 1])}"
        raise UsageError(
            f"row {int(row[where])} (from 0): {name} falls within the response, from {got}; {FALLS[name]}."
        )
    if name == "turn_ids" and bool((numbers < 0).any()):
        where = int((numbers < 0).nonzero()[0])
        raise UsageError(
            f"row {int(row[where])} (from 0): turn_ids has {int(numbers[where])}; turns are numbered from 0. {TOOL}"
        )
    return lists


def _top_lists(columns: Columns) -> Columns:
    """Return the sampler's likeliest tokens, K numbers per token.

    Raises `UsageError` if a file has only a part of the columns that belong together, and for log-probs that are NaN or
    above 0.
    """
    present = [name for name in TOP if name in columns]
    if present not in (list(TOP), list(TOP[:2])):
        raise UsageError(f"{', '.join(TOP[:2])} belong together; the file has {', '.join(present)}.")
    lists = {name: require_lists(name, columns[name]) for name in present}
    if len({len(one.values) for one in lists.values()}) > 1:
        sizes = ", ".join(f"{name} {len(one.values)}" for name, one in lists.items())
        raise UsageError(f"every token must have as many log-probs as ids; got {sizes}.")
    for name in present[1:]:
        if bool((lists[name].values.isnan() | (lists[name].values > ROUNDED_UP)).any()):
            raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0 and not NaN.")
    return {**lists, "top_ids": _ids("top_ids", columns)}


# --- per row ---


def _rewards(name: str, columns: Columns) -> Tensor:
    return one_per_row(name, columns[name]).float()


def _whole(name: str, columns: Columns) -> Tensor:
    return whole_numbers(name, one_per_row(name, columns[name]))


def _step(name: str, columns: Columns) -> Tensor:
    column = columns[name]
    if isinstance(column, Tensor) and not column.dim():  # one for the whole file
        numbers = whole_numbers(name, column)
    else:
        numbers = _whole(name, columns)
    if not numbers.numel() or int(numbers.min()) < 0:
        raise UsageError("step must be a number ≥ 0 per row.")
    return numbers


def _groups(name: str, columns: Columns) -> Tensor | list[str]:
    """Return numbers, or the names of groups, which become numbers when all parts of a step are known."""
    column = columns[name]
    if not isinstance(column, list):
        return _whole(name, columns)
    if "" in column:
        raise UsageError(f"row {column.index('')} (from 0): group_ids is empty or null.")
    return column


def _versions(name: str, columns: Columns) -> Column:
    """Return a version per token if a response has several. SGLang's weight_version is a text, "default" if not set."""
    column = columns[name]
    if isinstance(column, Lists):
        return _rising(name, columns)
    if not isinstance(column, list):
        return _whole(name, columns)
    other = next((text for text in column if not (text.isascii() and text.isdecimal() and len(text) < 10)), None)
    if other is not None:
        raise UsageError(
            f"policy_versions has texts such as {other!r:.40}: which of two texts is the newer version is unknown. "
            "Write whole numbers that rise with each update of the weights."
        )
    return torch.tensor([int(text) for text in column], dtype=torch.int32)


def _texts(name: str, columns: Columns) -> list[str]:
    column = require_readable(columns[name])
    if not isinstance(column, list):
        raise UsageError(f"{name} must hold a text per row.")
    check_limit(MAX_TEXT, sum(map(len, column)), f"characters in {name}")
    return column


_READERS: dict[str, Callable[[str, Columns], Column]] = {
    **dict.fromkeys(TOKEN_COLUMNS, _token_values),
    "turn_ids": _rising, "policy_versions": _versions, "rewards": _rewards, "group_ids": _groups,
    "unpaired_tokens": _whole, "prompt_ids": _prompt_ids, "response_ids": _ids, "token_ids": _ids, "prompts": _texts,
    "responses": _texts, "step": _step,
}  # fmt: skip
"""Our name → a function that returns the column, or raises `UsageError` if it cannot be used."""
