"""Requests of `child` to the process that parses files, the form of its answers, and how much of a file is read.

Nothing here needs torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlcorr.errors import UsageError

MAX_TOKENS = 1 << 22
"""Numbers in one column, without padding that a mask shows."""
MAX_NUMBERS = 1 << 25
"""Numbers in one array (B, T), padding included: 256 rows of 131,072 columns."""
MAX_ROWS = 1 << 18
MAX_PADDED, PLACES_PER_TOKEN = 1 << 24, 64
"""Number of rows times the longest row: the size of a batch made of a ragged file. Above `MAX_TOKENS` it may have so
many places for each token: a file of a kilobyte with one long answer among thousands of short ones takes minutes."""
MAX_TEXT = 1 << 26
"""Characters in one column of texts."""

Piece = tuple[dict[str, Any], pa.Table]
"""An answer: facts and a table. Facts may be the `names` of all columns, why some are `unreadable`, the number of
`rows` in the file, and for an array its `name` and `shape`; a table without `name` has one row per response. The last
piece is the `end`, or why the file is `refused`."""
NO_TABLE = pa.table({})
FACTS = b"rlcorr"
"""Key of the facts in the metadata of a table, as JSON."""
OUT_OF_MEMORY = 3
"""Exit code."""


@dataclass(frozen=True)
class Keys:
    """Names of columns in files, by what they say about lists of lists. `map_names.KEYS` has the known ones."""

    log_probs: tuple[str, ...]
    masks: tuple[str, ...]
    ids: tuple[str, ...]
    """Ids of the sampled tokens."""
    top: tuple[str, ...]
    """The sampler's likeliest tokens: K numbers per token."""
    per_token: frozenset[str]
    single: frozenset[str]
    """One number per response."""
    per_response: frozenset[str]
    """A list here has an entry per response."""
    placed: Mapping[str, str]
    """List next to the samples of a document → key of a sample with its index in that list."""


@dataclass(frozen=True)
class Request:
    """A file, and the columns of it that are wanted."""

    path: Path
    ending: str
    wanted: frozenset[str]
    keys: Keys
    part: int
    """Numbers of a column of Parquet in one piece, about."""
    seconds: int
    """Time of the processor that it may take."""


@dataclass(frozen=True)
class Unreadable:
    """A column that is in the file and cannot be read.

    The parsers do not know which columns are needed. `map_names` and `check_values` do: they refuse the file if the
    pair or a column about masks is unreadable, and leave out every other unreadable column.
    """

    why: str  # a sentence


def check_limit(limit: int, count: int, what: str) -> None:
    """Raise `UsageError` if `count` is above the limit; `what` names what is counted."""
    if count > limit:
        raise UsageError(
            f"{count:,} {what}; at most {limit:,} are read. Split the file, or leave out what is not needed."
        )
