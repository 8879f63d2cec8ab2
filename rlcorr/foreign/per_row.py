"""What a file says once per row: rewards, groups, versions, texts, and the step."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_TEXT, Column, Columns, Lists, at_most, the_readable

_INT32 = 2**31 - 1


PER_ROW = ("rewards", "group_ids", "policy_versions", "unpaired_tokens")


def per_row(name: str, column: Column) -> Tensor:
    """Return one of `PER_ROW`, (B,). A null reward is NaN; a group or a version must be there in every row. Raises
    `UsageError`."""
    if name == "rewards":
        return one_per_row(name, column).float()
    if name == "group_ids" and isinstance(column, list):
        if "" in column:
            raise UsageError(f"row {column.index('')} (from 0): group_ids is empty or null.")
        group = {text: i for i, text in enumerate(dict.fromkeys(column))}
        column = torch.tensor([group[text] for text in column])
    return whole(name, one_per_row(name, column))


def one_per_row(name: str, column: Column) -> Tensor:
    """One number per row, or lists of it: arrays (B, 1), or a number repeated for every token."""
    column = the_readable(column)
    if isinstance(column, Tensor) and column.dim() == 1:
        return column
    if isinstance(column, Lists) and bool((column.lengths > 0).all()):
        heads = column.values[column.places() == 0]
        same = (column.values == heads[column.rows()]) | column.values.isnan()
        if bool(same.all()):
            return heads
    got = f"; got texts such as {column[0]!r:.40}" if isinstance(column, list) and column else ""
    raise UsageError(f"{name} must hold one number per row{got}.")


def whole(name: str, column: Column) -> Tensor:
    """Whole numbers as int32."""
    column = the_readable(column)
    if not isinstance(column, Tensor) or column.dtype == torch.bool:
        raise UsageError(f"{name} must hold whole numbers.")
    numbers = column.double() if column.is_floating_point() else column
    if not bool(((numbers.abs() <= _INT32) & (numbers == numbers.round())).all()):
        raise UsageError(f"{name} must hold whole numbers of at most 32 bits; got {some(numbers)}.")
    return numbers.to(torch.int32)


def some(numbers: Tensor) -> str:
    shown = ", ".join(f"{x:g}" for x in numbers.flatten()[:5].tolist())
    return shown + (", …" if numbers.numel() > 5 else "")


def texts(name: str, columns: Columns, rows: int) -> list[str]:
    column = the_readable(columns.get(name, [""] * rows))
    if not isinstance(column, list) or len(column) != rows:
        raise UsageError(f"{name} must hold a text per row.")
    at_most(MAX_TEXT, sum(map(len, column)), f"characters in {name}")
    try:
        for text in column:
            text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} holds half a surrogate pair, which is no text: {error.object[:40]!r}.") from error
    return column


def step_of(columns: Columns) -> int:
    """`steps.by_step` has seen to it that there is one."""
    if "step" not in columns:
        return 1
    return int(whole("step", columns["step"]).flatten()[0])
