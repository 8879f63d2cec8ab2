"""Requests of `child` to the process that parses files, and the form of its answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

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
    """Names of columns in files, by what they say about lists of lists. `names.KEYS` has those that are known."""

    log_probs: tuple[str, ...]
    masks: tuple[str, ...]
    ids: tuple[str, ...]
    """Ids of the sampled tokens."""
    prompts: frozenset[str]
    """Ids of prompts, alone or followed by those of the response."""
    top: tuple[str, ...]
    """The sampler's likeliest tokens: K numbers per token."""
    per_token: frozenset[str]
    single: frozenset[str]
    """One number per response."""
    per_response: frozenset[str]
    """A list here has an entry per response."""
    placed: Mapping[str, str]
    """List next to the samples of a document → key of a sample with its index in that list."""

    def may_be_turns(self) -> set[str]:
        """Return the keys whose lists of lists are turns or responses."""
        return {*self.log_probs, *self.masks}


@dataclass(frozen=True)
class Request:
    """A file, and the columns of it that are wanted."""

    path: Path
    ending: str
    wanted: frozenset[str]
    """Names of the columns; if there are none, only names are answered."""
    keys: Keys
    part: int
    """Numbers of a column of Parquet in one piece, about."""
    seconds: int
    """Time of the processor that it may take."""
