"""Numbers per token, numbers and texts per row, and token ids of a file, each checked before it is used."""

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
from rlcorr.foreign.left_out import LeftOut, read_optional
from rlcorr.foreign.limits import MAX_PADDED, MAX_TEXT, check_limit
from rlcorr.foreign.rounding import ROUNDING
from rlcorr.records.step_files import pad
from rlcorr.types import ROUNDED_UP

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
    """Return the step, 1 if no column has it. `step_numbers.split_by_step` has checked that there is only one."""
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
