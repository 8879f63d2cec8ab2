"""What is to be known of a system's dump of a batch before its columns can be read as ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dump:
    """A file with both log-probs. The system is recognised by `columns`, all of which must be there, and by one of
    `one_of`, if that names any."""

    columns: frozenset[str]
    one_of: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Column → ours, where the name alone says something else."""
    mask_over_dummy: str = ""
    """The mask over prompt and response. Nothing precedes the first token, so a dummy stands for its log-prob; the mask
    may count it."""
    row_mask: str = ""
    """A number per row: where it is 0, none of the row's tokens counts."""


@dataclass(frozen=True)
class WithoutPair:
    """A file without one of the two log-probs, recognised by its columns."""

    columns: frozenset[str]
    what: str
    """Ends the sentence "It looks like …"."""
