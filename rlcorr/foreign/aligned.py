"""Lists of one number per token, and where in them something is wrong."""

from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, the_readable


def lists_of(name: str, column: Column) -> Lists:
    """Return a column that holds a list of numbers per row. Raises `UsageError` for another."""
    column = the_readable(column)
    if not isinstance(column, Lists):
        got = f"texts such as {column[0]!r:.40}" if isinstance(column, list) and column else "one number per row"
        raise UsageError(f"{name} must hold a list of numbers per row; got {got}.")
    return column


def aligned(name: str, columns: Columns, first: Lists) -> Lists:
    """Return the lists of a column, as long as those of rollout_log_probs. Raises `UsageError` for others."""
    lists = lists_of(name, columns[name])
    if len(wrong := (lists.lengths != first.lengths).nonzero()):
        row = int(wrong[0])
        raise UsageError(
            f"row {row} (from 0): {name} has {int(lists.lengths[row])} values, rollout_log_probs "
            f"{int(first.lengths[row])}."
        )
    return lists


def refuse_where(lists: Lists, wrong: Tensor, what: str) -> None:
    """Raise `UsageError` with the first place of a mask (N,) over the tokens of these lists, if there is one."""
    if len(places := wrong.nonzero()):
        at = int(places[0])
        more = f", and at {len(places) - 1} more" if len(places) > 1 else ""
        raise UsageError(f"row {int(lists.rows()[at])}, token {int(lists.places()[at])} (from 0){more}: {what}.")
