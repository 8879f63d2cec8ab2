"""Columns of a file under our names.

Dumps of NeMo RL, prime-rl, slime and SkyRL are recognised by their columns, and what differs from ours is converted.
verl writes no file with both log-probs, so none is recognised; arrays that somebody saved from its batch can be read.
Every other file is read by the names of its columns (`names`).
"""

import difflib
from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.check import one_per_row
from rlcorr.foreign.columns import Columns, Lists, fit_rows, require_readable
from rlcorr.foreign.names import DUMPS, NAMES, NEEDED, OPTIONAL, PAIR, PAIR_NAMES, UNIQUE, WANTED, WITHOUT_PAIR
from rlcorr.foreign.parse.request import Unreadable
from rlcorr.foreign.which_tokens_count import apply_masks, refuse_unknown_masks
from rlcorr.systems.loss_masks import TOKEN_SCORES
from rlcorr.systems.mapping.facts import Dump


def adapt_dump(columns: Columns, names: Collection[str]) -> Columns:
    """Return the columns of a file in our layout, if a known system wrote it; `names` are all of the file's columns.

    Raises `UsageError` if a mask over rows has no number per row.
    """
    for dump in DUMPS:
        if dump.columns <= set(names) and (not dump.one_of or dump.one_of & set(names)):
            return _apply_dump(dump, columns)
    return _verl_arrays(columns)


def _apply_dump(dump: Dump, columns: Columns) -> Columns:
    columns = dict(columns)
    mask, rows = columns.get(dump.mask_over_dummy), columns.get(dump.row_mask)
    if isinstance(mask, Lists):
        mask_values = mask.values * (mask.positions() > 0)
        if rows is not None:
            numbers = one_per_row(dump.row_mask, fit_rows("response_mask", rows, len(mask.lengths)))
            mask_values = mask_values * numbers[mask.rows()]
        columns[dump.mask_over_dummy] = Lists(mask_values, mask.lengths)
    for theirs, mine in dump.renamed.items():
        if theirs in columns:
            columns[mine] = columns.pop(theirs)
    return columns


def _verl_arrays(columns: Columns) -> Columns:
    columns = dict(columns)
    if isinstance(columns.get("responses"), Lists):
        columns["response_ids"] = columns.pop("responses")
    if isinstance(columns.get("prompts"), Lists):
        del columns["prompts"]  # ids between padding, not texts
    scores = columns.get(TOKEN_SCORES)
    if isinstance(scores, Lists) and "rewards" not in columns:
        sums = torch.zeros(len(scores.lengths))
        columns["rewards"] = sums.index_add_(0, scores.rows(), scores.values.float())
    return columns


def to_our_names(columns: Columns, names: Collection[str]) -> Columns:
    """Return the columns under our names; one that is not `NEEDED` may be `Unreadable`.

    Args:
        columns: the columns that were read.
        names: the names of all columns of the file.

    Raises `UsageError` if the pair is missing or there twice, if a needed column cannot be read, and for a column that
    may be a loss mask but is unknown.
    """
    refuse_unknown_masks(names, WANTED)
    _refuse_unreadable({name: column for name, column in columns.items() if name not in OPTIONAL})
    columns = adapt_dump(columns, names)
    named: Columns = {}
    for field, spellings in NAMES.items():
        present = [name for name in spellings if name in columns]
        if len(present) > 1 and field in UNIQUE:
            named[field] = Unreadable(f"{' and '.join(present)} are two names of {field}; keep only one of them.")
        elif present:
            named[field] = columns[present[0]]
    missing = [field for field in PAIR if field not in named]
    if missing:
        raise UsageError(_missing_message(missing, names))
    _refuse_unreadable({field: column for field, column in named.items() if field in NEEDED})
    return apply_masks(named, columns)


def _refuse_unreadable(columns: Columns) -> None:
    for column in columns.values():
        require_readable(column)


def _missing_message(missing: list[str], names: Collection[str]) -> str:
    needed = " and ".join(f"{name} ({whose})" for name, whose in PAIR.items())
    recognised = {name for field, spellings in NAMES.items() if field != "log_probs" for name in spellings}
    others = sorted(name for name in set(names) - recognised if len(name) < 60)[:200]
    nearest = []
    for field in missing:
        close = difflib.get_close_matches(field, others, n=1)
        nearest.append(f"{field} is missing" + (f"; the nearest name is {close[0]!r:.60}" if close else ""))
    shown = ", ".join(f"{name!r:.60}" for name in list(names)[:20]) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    pair = PAIR_NAMES & set(names)  # a file with one of the two sides is no file of texts
    hints = [f" It looks like {file.what}." for file in WITHOUT_PAIR if pair <= file.columns <= set(names)][:1]
    return f"found the columns {shown}{more}; needed are {needed}. {'; '.join(nearest)}.{''.join(hints)}"
