"""Numbers, texts and ids of a file, each checked before it is used: per token, per row, and per part of a response."""

from collections.abc import Callable, Collection
from typing import TypeVar

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import (
    ABORTED,
    Column,
    Columns,
    Lists,
    refuse_where,
    require_aligned,
    require_lists,
    require_readable,
)
from rlcorr.foreign.names import PAIR
from rlcorr.foreign.parse.limits import MAX_PADDED, MAX_TEXT, check_limit
from rlcorr.records.step_files import pad
from rlcorr.types import ROUNDED_UP, TOP, TokenBatch

LeftOut = dict[str, str]
"""Column → why it is left out."""

T = TypeVar("T")


def read_optional(name: str, read: Callable[[], T], left_out: LeftOut) -> T | None:
    """Return the result of `read`. If it raises `UsageError`, return None and add the message to `left_out`."""
    try:
        return read()
    except UsageError as error:
        left_out[name] = str(error)
        return None


ROUNDING = 0.125
"""Largest log-prob that counts as rounded up, and is clamped to 0 on request: the largest value that
AI-Hypercomputer/maxtext pull request 5231 reports for bfloat16. A larger one is not rounding."""


def clamp_columns(columns: Columns) -> Columns:
    """Return the columns with every log-prob in (0, `ROUNDING`] replaced by 0."""
    return {name: _clamp_column(column) if name.endswith("log_probs") else column for name, column in columns.items()}


def _clamp_column(column: Column) -> Column:
    if isinstance(column, Lists):
        return Lists(clamp_values(column.values), column.lengths, column.padded)
    return clamp_values(column) if isinstance(column, torch.Tensor) else column


def clamp_values(values: torch.Tensor) -> torch.Tensor:
    """Return the values with every one in (0, `ROUNDING`] replaced by 0."""
    return torch.where((values > 0) & (values <= ROUNDING), 0, values)


def clamp_batch(batch: TokenBatch) -> TokenBatch:
    """Return the batch with every log-prob in (0, `ROUNDING`] replaced by 0."""
    names = [name for name in batch.tensors() if name.endswith("log_probs")]
    return batch.replace(**{name: clamp_values(batch.tensors()[name]) for name in names})


PER_ROW = ("rewards", "group_ids", "policy_versions", "unpaired_tokens")
"""Columns with one number per row that `row_values` reads."""
_NAN_HINTS = {
    "rollout_log_probs": f"; nan_is_ratio_one (--nan-is-ratio-one) leaves out such tokens, {ABORTED}",
    "old_log_probs": f"; {ABORTED}",
}
_INT32 = 2**31 - 1
PLACES = "places"
"""Column that this program adds: the position of each token in its response in the file, for messages and turns."""


# --- per token ---


def token_values(name: str, columns: Columns) -> Tensor:
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
    _refuse(columns, values.isnan(), f"{name} is NaN or null{_NAN_HINTS.get(name, '')}")
    if log_probs:
        _refuse_above_zero(name, columns, values)
    else:
        _refuse(columns, values.isinf(), f"{name} is infinite")
    return values


def _refuse(columns: Columns, wrong: Tensor, what: str) -> None:
    """Raise `UsageError` with row and token, as the file counts them, of the first token at which `wrong` is true."""
    rollout, places = (require_lists(name, columns[name]) for name in ("rollout_log_probs", PLACES))
    refuse_where(rollout, wrong, what, places)


def _refuse_above_zero(name: str, columns: Columns, values: Tensor) -> None:
    above = values > ROUNDED_UP
    if not bool(above.any()):
        return
    highest = float(values[above].max())
    advice = "take the logarithm of probabilities, change the sign of negative log-likelihoods"
    if highest <= ROUNDING:
        advice = "if bfloat16 rounded them up, clamp_rounding (--clamp-rounding) makes them 0"
    got = f"{name} must be natural logarithms of probabilities, ≤ 0; got {float(values[above][0]):g}"
    _refuse(columns, above, f"{got}, at most {highest:g}: {advice}")


def token_fields(columns: Columns, names: Collection[str], left_out: LeftOut) -> dict[str, Tensor]:
    """Return the numbers of the tokens by name, (N,) each. Of the columns only the pair is needed."""
    fields = {name: token_values(name, columns) for name in PAIR}
    both = (fields["rollout_log_probs"] == -torch.inf) & (fields["old_log_probs"] == -torch.inf)
    _refuse(columns, both, "rollout_log_probs and old_log_probs are both −inf, so there is no ratio")
    for name in names:
        if name in columns and name not in PAIR:
            values = read_optional(name, lambda n=name: token_values(n, columns), left_out)
            fields |= {} if values is None else {name: values}
    return fields


# --- per row ---


def row_values(name: str, column: Column) -> Tensor:
    """Return a column of `PER_ROW`, (B,). A null reward is NaN. Raises `UsageError` for a null group or version."""
    if name == "rewards":
        return one_per_row(name, column).float()
    if name == "policy_versions":
        column = _numbers_of_texts(column)
    if name == "group_ids" and isinstance(column, list):
        if "" in column:
            raise UsageError(f"row {column.index('')} (from 0): group_ids is empty or null.")
        group = {text: i for i, text in enumerate(dict.fromkeys(column))}
        column = torch.tensor([group[text] for text in column])
    return whole_numbers(name, one_per_row(name, column))


def one_per_row(name: str, column: Column) -> Tensor:
    """Return one number per row, (B,).

    A column of lists is accepted if all numbers in a row are equal: an array (B, 1), or a number repeated per token.
    """
    column = require_readable(column)
    if isinstance(column, Tensor) and column.dim() == 1:
        return column
    if isinstance(column, Lists) and is_constant(column):
        return column.values[column.positions() == 0]
    got = f"; got texts such as {column[0]!r:.40}" if isinstance(column, list) and column else ""
    raise UsageError(f"{name} must hold one number per row{got}.")


def is_constant(column: Lists) -> bool:
    """Check whether every row has a number, and one number alone. NaN counts as equal."""
    if not bool((column.lengths > 0).all()):
        return False
    first_values = column.values[column.positions() == 0]
    return bool(((column.values == first_values[column.rows()]) | column.values.isnan()).all())


def whole_numbers(name: str, column: Column) -> Tensor:
    """Return the column as int32. Raises `UsageError` unless it holds whole numbers of at most 32 bits."""
    column = require_readable(column)
    if not isinstance(column, Tensor) or column.dtype == torch.bool:
        raise UsageError(f"{name} must hold whole numbers.")
    numbers = column.double() if column.is_floating_point() else column
    if not bool(((numbers >= -_INT32) & (numbers <= _INT32) & (numbers == numbers.round())).all()):
        raise UsageError(f"{name} must hold whole numbers of at most 32 bits; got {first_numbers(numbers)}.")
    return numbers.to(torch.int32)


def first_numbers(numbers: Tensor) -> str:
    """Return the first five numbers as text, for messages."""
    shown = ", ".join(f"{x:g}" for x in numbers.flatten()[:5].tolist())
    return shown + (", …" if numbers.numel() > 5 else "")


def texts(name: str, columns: Columns, rows: int) -> list[str]:
    """Return a text per row, all empty if the column is missing. Raises `UsageError` for anything but texts."""
    column = require_readable(columns.get(name, [""] * rows))
    if not isinstance(column, list) or len(column) != rows:
        raise UsageError(f"{name} must hold a text per row.")
    check_limit(MAX_TEXT, sum(map(len, column)), f"characters in {name}")
    try:
        for text in column:
            text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} holds half a surrogate pair, which is no text: {error.object[:40]!r}.") from error
    return column


def step_of(columns: Columns) -> int:
    """Return the step, 1 if no column has it. `steps.split_by_step` has checked that there is only one."""
    if "step" not in columns:
        return 1
    return int(whole_numbers("step", columns["step"]).flatten()[0])


# --- token ids ---


def token_ids(columns: Columns, left_out: LeftOut) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the ids that the file has: prompt_ids and prompt_mask (B, P), and response_ids (N,).

    Ids that cannot be used are added to `left_out`.
    """
    if "token_ids" in columns:  # otherwise they have become prompt_ids and response_ids
        read_optional("token_ids", lambda: require_lists("token_ids", columns["token_ids"]), left_out)
    ids = prompt = None
    if "response_ids" in columns:
        ids = read_optional("response_ids", lambda: _whole_lists("response_ids", columns), left_out)
    if "prompt_ids" in columns:
        prompt = read_optional("prompt_ids", lambda: _prompt_ids(columns), left_out)
    return prompt or {}, {} if ids is None else {"response_ids": ids}


def _whole_lists(name: str, columns: Columns) -> Tensor:
    return whole_numbers(name, require_lists(name, columns[name]).values)


def _prompt_ids(columns: Columns) -> dict[str, Tensor]:
    prompt = require_lists("prompt_ids", columns["prompt_ids"])
    if "prompt_mask" in columns:
        mask = require_aligned("prompt_mask", columns, prompt).values != 0
        prompt = Lists(prompt.values[mask], torch.bincount(prompt.rows()[mask], minlength=len(prompt.lengths)))
    check_limit(MAX_PADDED, len(prompt.lengths) * int(prompt.lengths.max()), "places in the prompts")
    ids, mask = pad(whole_numbers("prompt_ids", prompt.values), prompt.lengths, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


# --- the likeliest tokens ---


def top_lists(columns: Columns) -> dict[str, Tensor]:
    """Return the lists of the tokens by name, (N, K) each; none if the file has none.

    Raises `UsageError` if a file has only a part of the columns that belong together, and for log-probs that are NaN or
    above 0.
    """
    present = [name for name in TOP if name in columns]
    if not present:
        return {}
    if present != list(TOP) and present != list(TOP[:2]):
        raise UsageError(f"{', '.join(TOP[:2])} belong together; the file has {', '.join(present)}.")
    tokens = int(require_lists("rollout_log_probs", columns["rollout_log_probs"]).lengths.sum())
    tables = {name: require_lists(name, columns[name]).values.view(tokens, -1) for name in present}
    if len({table.shape for table in tables.values()}) > 1:
        sizes = ", ".join(f"{name} {table.shape[1]}" for name, table in tables.items())
        raise UsageError(f"every token must have as many log-probs as ids; got {sizes} per token.")
    for name in present[1:]:
        if bool((tables[name].isnan() | (tables[name] > ROUNDED_UP)).any()):
            raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0 and not NaN.")
    return tables | {"top_ids": whole_numbers("top_ids", tables["top_ids"])}


def padded(table: Tensor, mask: Tensor, name: str) -> Tensor:
    """Return (N, K) as (B, T, K), with −1 (ids) or 0 where the mask (B, T) is false."""
    filled = torch.full((*mask.shape, table.shape[1]), -1 if name == "top_ids" else 0).to(table)
    filled[mask] = table
    return filled


# --- versions and turns ---


FALLS = {
    "policy_versions": "a response is only continued with newer weights, so a version must not be lower than the one "
    "before it",
    "turn_ids": "a turn ends before the next one begins, so two turns must not overlap",
}
"""Column whose numbers must not fall within a response → why."""
TOOL = "Tokens that a tool wrote belong to no turn: leave them out with response_mask."


def _numbers_of_texts(column: Column) -> Column:
    """Return SGLang's weight_version, a text, as a number if it is one: the order of other texts is unknown."""
    if not isinstance(column, list):
        return column
    other = next((text for text in column if not (text.isascii() and text.isdecimal() and len(text) < 10)), None)
    if other is not None:
        raise UsageError(
            f"policy_versions has texts such as {other!r:.40}: which of two texts is the newer version is unknown. "
            "Write whole numbers that rise with each update of the weights."
        )
    return torch.tensor([int(text) for text in column])


def turns(columns: Columns) -> Tensor | None:
    """Return the turn of each token, (N,): the file's, or the runs of tokens without a gap in `PLACES`.

    None if no response has more than one turn. Raises `UsageError` if the turns of a response fall or are negative.
    """
    rollout, places = (require_lists(name, columns[name]) for name in ("rollout_log_probs", PLACES))
    if "turn_ids" in columns:
        numbers = rising("turn_ids", columns)
        if bool((numbers < 0).any()):
            row, lowest = int(rollout.rows()[numbers < 0][0]), int(numbers.min())
            raise UsageError(f"row {row} (from 0): turn_ids has {lowest}; turns are numbered from 0. {TOOL}")
        return numbers
    first = rollout.positions() == 0
    starts = ~first
    starts[1:] &= places.values[1:] != places.values[:-1] + 1
    if not bool(starts.any()):
        return None
    count = starts.int().cumsum(0)
    return (count - count[first][torch.repeat_interleave(rollout.lengths[rollout.lengths > 0])]).int()


def rising(name: str, columns: Columns) -> Tensor:
    """Return the whole numbers of the tokens. Raises `UsageError` if they fall within a response."""
    lists = require_lists(name, columns[name])
    numbers, row = whole_numbers(name, lists.values), lists.rows()
    falls = (numbers[1:] < numbers[:-1]) & (row[1:] == row[:-1])
    if bool(falls.any()):
        where = int(falls.nonzero()[0])
        got = f"{int(numbers[where])} to {int(numbers[where + 1])}"
        raise UsageError(
            f"row {int(row[where])} (from 0): {name} falls within the response, from {got}; {FALLS[name]}."
        )
    return numbers
