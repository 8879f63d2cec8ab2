"""What a file says once per row: rewards, groups, versions, texts, and the step."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_TEXT, Column, Columns, Lists, at_most

_INT32 = 2**31 - 1


def per_row(columns: Columns) -> dict[str, Tensor]:
    numbers: dict[str, Tensor] = {}
    if "rewards" in columns:
        numbers["rewards"] = one_per_row("rewards", columns["rewards"]).float()
    for name in ("group_ids", "policy_versions"):
        column = columns.get(name)
        if name == "group_ids" and isinstance(column, list):
            group = {text: i for i, text in enumerate(dict.fromkeys(column))}
            column = torch.tensor([group[text] for text in column])
        if column is not None:
            numbers[name] = whole(name, one_per_row(name, column))
    return numbers


def one_per_row(name: str, column: Column) -> Tensor:
    """One number per row, or lists of it: arrays (B, 1), or a number repeated for every token."""
    if isinstance(column, Tensor) and column.dim() == 1:
        return column
    if isinstance(column, Lists) and bool((column.lengths > 0).all()):
        heads = column.values[column.places() == 0]
        same = (column.values == heads[column.rows()]) | column.values.isnan()
        if bool(same.all()):
            return heads
    raise UsageError(f"{name} must hold one number per row.")


def whole(name: str, column: Column) -> Tensor:
    """Whole numbers as int32."""
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
    column = columns.get(name, [""] * rows)
    if not isinstance(column, list):
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
