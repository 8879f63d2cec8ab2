"""Descriptions of the dumps of other systems, which are needed to read their columns as ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dump:
    """A file with both log-probs.

    A system is recognised if all of `columns` are there and, if `one_of` is not empty, one of its names.
    """

    columns: frozenset[str]
    one_of: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Column → our name, for columns whose name would be misunderstood."""
    mask_over_dummy: str = ""
    """The mask over prompt and response. The first token has no log-prob, because nothing precedes it: a dummy takes
    its place, and the mask may include the dummy."""
    row_mask: str = ""
    """A column with a number per row. If it is 0, no token of the row counts."""


@dataclass(frozen=True)
class WithoutPair:
    """A file without one of the two log-probs, recognised by its columns."""

    columns: frozenset[str]
    what: str
    """A description of the file. It ends the sentence "It looks like …"."""
