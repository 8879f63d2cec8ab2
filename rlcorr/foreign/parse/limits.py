"""Limits on how much of a file is read, and columns that cannot be read. Nothing here needs torch."""

from dataclasses import dataclass

from rlcorr.errors import UsageError

MAX_BYTES = 512 << 20
"""Bytes of a file that is read as a whole."""
MAX_TOKENS = 1 << 22
"""Numbers in one column, without padding that a mask shows."""
MAX_NUMBERS = 1 << 25
"""Numbers in one array (B, T), padding included: 256 rows of 131,072 columns."""
MAX_ROWS = 1 << 18
MAX_PADDED = 1 << 24
"""Number of rows times the longest row: the size of a batch made of a ragged file."""
MAX_TEXT = 1 << 26
"""Characters in one column of texts."""


@dataclass(frozen=True)
class Unreadable:
    """A column that is in the file and cannot be read.

    The parsers do not know which columns are needed; `find_columns.to_our_names` and `to_record` do. They refuse the
    file if the pair or a column about masks is unreadable, and leave out every other unreadable column.
    """

    why: str  # a sentence


def check_limit(limit: int, count: int, what: str) -> None:
    """Raise `UsageError` if `count` is above the limit; `what` names what is counted."""
    if count > limit:
        raise UsageError(
            f"{count:,} {what}; at most {limit:,} are read. Split the file, or leave out what is not needed."
        )
