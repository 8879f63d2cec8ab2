"""Numbers, texts and ids of a file, each checked before it is used: per token, per row, and per part of a response."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import (
    ABORTED,
    Column,
    Columns,
    Lists,
    real_lengths,
    refuse_where,
    require_aligned,
    require_lists,
    require_readable,
)
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
    """Return the values with every one in (0, `ROUNDING`] replaced by 0.

    >>> clamp_values(torch.tensor([-1.0, 0.03125, 0.125, 0.25])).tolist()
    [-1.0, 0.0, 0.0, 0.25]
    """
    return torch.where((values > 0) & (values <= ROUNDING), 0, values)


def clamp_batch(batch: TokenBatch) -> TokenBatch:
    """Return the batch with every log-prob in (0, `ROUNDING`] replaced by 0."""
    names = [name for name in batch.tensors() if name.endswith("log_probs")]
    return batch.replace(**{name: clamp_values(batch.tensors()[name]) for name in names})


PER_ROW = ("rewards", "group_ids", "unpaired_tokens")
"""Columns with one number per row that `row_values` reads."""
_NAN_HINTS = {
    "rollout_log_probs": f"; nan_is_ratio_one (--nan-is-ratio-one) leaves out such tokens, {ABORTED}",
    "old_log_probs": f"; {ABORTED}",
}
_INT32 = 2**31 - 1
_NO_START = 1 << 40  # larger than any position


# --- per token ---


def token_values(name: str, columns: Columns, rollout: Lists, real: Tensor) -> Tensor:
    """Return the values of a column at the real tokens, as float32.

    Args:
        rollout: the engine's log-probs, whose row lengths the column must have.
        real: (N,) bool, true for the real tokens.

    Raises `UsageError` for NaN, for infinite values (a log-prob may be −inf), and for a log-prob above `ROUNDED_UP`.
    """
    column = columns[name]
    if name == "advantages" and isinstance(column, Tensor):  # one per response
        column = Lists(column[rollout.rows()], rollout.lengths) if column.dim() else column
    lists = require_aligned(name, columns | {name: column}, rollout)
    log_probs = name.endswith("log_probs")
    if lists.values.dtype == torch.bool or (log_probs and not lists.values.is_floating_point()):
        raise UsageError(f"{name} has dtype {lists.values.dtype}; floating-point numbers are needed.")
    values = lists.values.float()
    refuse_where(lists, values.isnan() & real, f"{name} is NaN or null{_NAN_HINTS.get(name, '')}")
    if log_probs:
        _refuse_above_zero(name, lists, values, real)
    else:
        refuse_where(lists, values.isinf() & real, f"{name} is infinite")
    return values if bool(real.all()) else values[real]  # indexing takes ten times as long as the check


def _refuse_above_zero(name: str, lists: Lists, values: Tensor, real: Tensor) -> None:
    above = (values > ROUNDED_UP) & real
    if not bool(above.any()):
        return
    highest = float(values[above].max())
    advice = "take the logarithm of probabilities, change the sign of negative log-likelihoods"
    if highest <= ROUNDING:
        advice = "if bfloat16 rounded them up, clamp_rounding (--clamp-rounding) makes them 0"
    got = f"{name} must be natural logarithms of probabilities, ≤ 0; got {float(values[above][0]):g}"
    refuse_where(lists, above, f"{got}, at most {highest:g}: {advice}")


def refuse_both_infinite(fields: dict[str, Tensor], rollout: Lists, real: Tensor) -> None:
    """Raise `UsageError` if both log-probs of a real token are −inf, because it has no ratio."""
    both = (fields["rollout_log_probs"] == -torch.inf) & (fields["old_log_probs"] == -torch.inf)
    if bool(both.any()):
        wrong = torch.zeros_like(real).masked_scatter(real, both)
        refuse_where(rollout, wrong, "rollout_log_probs and old_log_probs are both −inf, so there is no ratio")


# --- per row ---


def row_values(name: str, column: Column) -> Tensor:
    """Return a column of `PER_ROW`, (B,). A null reward is NaN. Raises `UsageError` for a null group or version."""
    if name == "rewards":
        return one_per_row(name, column).float()
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
    if isinstance(column, Lists) and bool((column.lengths > 0).all()) and not varies(column):
        return column.values[column.positions() == 0]
    got = f"; got texts such as {column[0]!r:.40}" if isinstance(column, list) and column else ""
    raise UsageError(f"{name} must hold one number per row{got}.")


def varies(column: Lists) -> bool:
    """Return whether a row has different numbers. Rows must not be empty; NaN counts as equal."""
    first_values = column.values[column.positions() == 0]
    return not bool(((column.values == first_values[column.rows()]) | column.values.isnan()).all())


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


def token_ids(
    columns: Columns, rollout: Lists, real: Tensor, left_out: LeftOut
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the ids that the file has: prompt_ids and prompt_mask (B, P), and response_ids of the real tokens.

    Ids that cannot be used are added to `left_out`.
    """
    prompt = ids = None
    if "token_ids" in columns:
        both = read_optional("token_ids", lambda: _split_ids(columns, rollout, real), left_out)
        prompt, ids = both or (None, None)
    if "response_ids" in columns:
        ids = read_optional("response_ids", lambda: _response_ids(columns, rollout, real), left_out)
    if "prompt_ids" in columns:
        prompt = read_optional("prompt_ids", lambda: _prompt_ids(columns), left_out)
    padded = None if prompt is None else read_optional("prompt_ids", lambda: _pad_prompts(prompt), left_out)
    return padded or {}, {} if ids is None else {"response_ids": ids}


def _response_ids(columns: Columns, rollout: Lists, real: Tensor) -> Tensor:
    return whole_numbers("response_ids", require_aligned("response_ids", columns, rollout).values)[real]


def _prompt_ids(columns: Columns) -> Lists:
    prompt = require_lists("prompt_ids", columns["prompt_ids"])
    if "prompt_mask" not in columns:
        return prompt
    mask = require_aligned("prompt_mask", columns, prompt).values != 0
    return Lists(prompt.values[mask], torch.bincount(prompt.rows()[mask], minlength=len(prompt.lengths)))


def _pad_prompts(prompt: Lists) -> dict[str, Tensor]:
    check_limit(MAX_PADDED, len(prompt.lengths) * int(prompt.lengths.max()), "places in the prompts")
    ids, mask = pad(whole_numbers("prompt_ids", prompt.values), prompt.lengths, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def _split_ids(columns: Columns, rollout: Lists, real: Tensor) -> tuple[Lists, Tensor]:
    """Split ids of prompt and response: return those of the prompts, and those of the real tokens.

    If rows of ids and of log-probs have the same lengths, the response starts at the first real token of a row.
    Otherwise the log-probs belong to the last ids of each row.
    """
    tokens = require_lists("token_ids", columns["token_ids"])
    rows, positions = tokens.rows(), tokens.positions()
    if torch.equal(tokens.lengths, rollout.lengths):
        start = torch.full_like(rollout.lengths, _NO_START).scatter_reduce(0, rows[real], positions[real], "amin")
        start[start == _NO_START] = 0  # a row without a real token
        has_log_prob = torch.ones_like(real)
        in_prompt = positions < start[rows]
    else:
        if bool((tokens.lengths < rollout.lengths).any()):
            require_aligned("token_ids", columns, rollout)  # raises with the first row whose length differs
        in_prompt = positions < (tokens.lengths - rollout.lengths)[rows]
        has_log_prob = ~in_prompt
    prompt = Lists(tokens.values[in_prompt], torch.bincount(rows[in_prompt], minlength=len(tokens.lengths)))
    return prompt, whole_numbers("token_ids", tokens.values[has_log_prob])[real]


# --- the likeliest tokens ---


def top_lists(columns: Columns, rollout: Lists, paired: Tensor) -> dict[str, Tensor]:
    """Return the lists of the paired tokens by name, (N, K) each; none if the file has none.

    Raises `UsageError` if a token has more or fewer numbers than the others, if a file has only a part of the columns
    that belong together, and for log-probs that are NaN or above 0.
    """
    present = [name for name in TOP if name in columns]
    if not present:
        return {}
    if present != list(TOP) and present != list(TOP[:2]):
        raise UsageError(f"{', '.join(TOP[:2])} belong together; the file has {', '.join(present)}.")
    tables = {name: _table(name, columns, rollout)[paired] for name in present}
    if len({table.shape for table in tables.values()}) > 1:
        sizes = ", ".join(f"{name} {table.shape[1]}" for name, table in tables.items())
        raise UsageError(f"every token must have as many log-probs as ids; got {sizes} per token.")
    for name in present[1:]:
        if bool((tables[name].isnan() | (tables[name] > ROUNDED_UP)).any()):
            raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0 and not NaN.")
    return tables | {"top_ids": whole_numbers("top_ids", tables["top_ids"])}


def _table(name: str, columns: Columns, rollout: Lists) -> Tensor:
    lists = require_lists(name, columns[name])
    tokens = max(int(rollout.lengths.sum()), 1)
    count = len(lists.values) // tokens
    if len(wrong := (lists.lengths != count * rollout.lengths).nonzero()):
        row = int(wrong[0])
        raise UsageError(
            f"row {row} (from 0): {name} has {int(lists.lengths[row])} numbers for {int(rollout.lengths[row])} tokens; "
            "every token must have the same number of them."
        )
    return lists.values.view(-1, count)


def padded(table: Tensor, mask: Tensor, name: str) -> Tensor:
    """Return (N, K) as (B, T, K), with −1 (ids) or 0 where the mask (B, T) is false.

    >>> padded(torch.tensor([[5, 7]]), torch.tensor([[True, False]]), "top_ids").tolist()
    [[[5, 7], [-1, -1]]]
    """
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


def versions(columns: Columns, rollout: Lists, real: Tensor) -> tuple[Tensor, bool]:
    """Return one version per real token, (N,), and True if a row has several; otherwise one per row, (B,), and False.

    SGLang's weight_version is a text; a text of digits is such a number. Raises `UsageError` for anything but whole
    numbers, because the order of other texts is unknown, and if the versions of a response fall: a response is only
    ever continued with newer weights.
    """
    column = _numbers_of_texts(require_readable(columns["policy_versions"]))
    if not isinstance(column, Lists) or not varies(column):
        return whole_numbers("policy_versions", one_per_row("policy_versions", column)), False
    return _rising("policy_versions", columns, rollout, real), True


def _numbers_of_texts(column: Lists | Tensor | list[str]) -> Lists | Tensor:
    if not isinstance(column, list):
        return column
    other = next((text for text in column if not (text.isascii() and text.isdecimal() and len(text) < 10)), None)
    if other is not None:
        raise UsageError(
            f"policy_versions has texts such as {other!r:.40}: which of two texts is the newer version is unknown. "
            "Write whole numbers that rise with each update of the weights."
        )
    return torch.tensor([int(text) for text in column])


def turns(columns: Columns, rollout: Lists, real: Tensor, paired: Tensor) -> Tensor | None:
    """Return the turn of each paired token, (N,): the file's, or the runs of real tokens between others.

    None if no response has more than one turn. Raises `UsageError` if the turns of a response fall or are negative.
    """
    if "turn_ids" in columns:
        numbers = _rising("turn_ids", columns, rollout, paired)
        if bool((numbers < 0).any()):
            row, lowest = int(rollout.rows()[paired][numbers < 0][0]), int(numbers.min())
            raise UsageError(f"row {row} (from 0): turn_ids has {lowest}; turns are numbered from 0. {TOOL}")
        return numbers
    before = torch.zeros_like(real)
    before[1:] = real[:-1]
    starts = real & ~(before & (rollout.positions() > 0))
    if int(starts.sum()) == int((real_lengths(rollout, real) > 0).sum()):
        return None
    count = starts.long().cumsum(0)
    first = torch.zeros(len(rollout.lengths), dtype=torch.int64).scatter_reduce_(
        0, rollout.rows(), count - starts.long(), "amin", include_self=False
    )
    return (count - first[rollout.rows()] - 1)[paired].int()


def _rising(name: str, columns: Columns, rollout: Lists, real: Tensor) -> Tensor:
    """Return the whole numbers of the real tokens. Raises `UsageError` if they fall within a response."""
    numbers, row = whole_numbers(name, require_aligned(name, columns, rollout).values)[real], rollout.rows()[real]
    falls = (numbers[1:] < numbers[:-1]) & (row[1:] == row[:-1])
    if bool(falls.any()):
        where = int(falls.nonzero()[0])
        got = f"{int(numbers[where])} to {int(numbers[where + 1])}"
        raise UsageError(
            f"row {int(row[where])} (from 0): {name} falls within the response, from {got}; {FALLS[name]}."
        )
    return numbers
