"""Selection of what counts in a file: responses that were not aborted, and real tokens between padding."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.check_values import PLACES, TOKEN_COLUMNS
from rlcorr.foreign.columns import (
    Column,
    Columns,
    Lists,
    first_numbers,
    is_constant,
    one_per_row,
    refuse_where,
    require_lists,
    split_rows,
    whole_numbers,
)
from rlcorr.foreign.map_names import PAIR, PAIR_NAMES, fit_rows, leave_out, require_aligned
from rlcorr.foreign.parse.request import MAX_TOKENS, Unreadable, check_limit
from rlcorr.types import TOP

# --- aborted responses ---


def without_aborted(columns: Columns) -> tuple[Columns, int]:
    """Return the columns, under the names of the file, without the rows of aborted responses, and how many these are.

    One side of the pair has nothing in such a row: null, NaN alone, or an empty list while the other side has numbers.

    Raises `UsageError` if no row is left.
    """
    sides = [column for name, column in columns.items() if name in PAIR_NAMES and isinstance(column, Lists)]
    if not sides or len({len(side.lengths) for side in sides}) > 1:
        return columns, 0  # refused later
    empty = torch.stack([side.lengths == 0 for side in sides])
    aborted = torch.stack([_is_null_or_nan(side) for side in sides]).any(0) | (empty.any(0) & ~empty.all(0))
    if bool(aborted.all()):
        raise UsageError("in every row one side has no log-prob.")
    fitted = {name: fit_rows(name, column, len(aborted)) for name, column in columns.items()}
    return split_rows(fitted, ~aborted)[-1], int(aborted.sum())


def _is_null_or_nan(side: Lists) -> Tensor:
    """Return the rows that are null, or hold NaN alone, (B,); an empty list is none of them."""
    numbers = torch.bincount(side.rows()[~side.values.isnan()], minlength=len(side.lengths))
    only_nan = (numbers == 0) & (side.lengths > 0)
    return only_nan if side.null is None else only_nan | side.null


# --- only the tokens that count ---


_WITH_ENTRY_PER_TOKEN = (*TOKEN_COLUMNS, "response_mask", "response_ids", "token_ids")
_NO_START = 1 << 40  # larger than any position


def keep_counting_tokens(columns: Columns, *, may_be_padded: bool, nan_is_ratio_one: bool = False) -> Columns:
    """Return the columns with the numbers of the tokens that count alone, and their `PLACES`.

    These are the tokens of response_mask, without it those within lengths, without both all. An optional column that
    does not have an entry per token becomes unreadable.

    Args:
        columns: the columns under our names.
        may_be_padded: if no mask is given, refuse lists of equal length that end in zeros, because they may be padded.
        nan_is_ratio_one: leave out tokens without a log-prob of the engine, see `_without_unpaired`.

    Raises `UsageError` for a needed column that does not fit the log-probs, and for more than `MAX_TOKENS` tokens.
    """
    columns = _drop_empty(_as_lists(columns))
    rollout = require_lists("rollout_log_probs", columns["rollout_log_probs"])
    columns = {name: fit_rows(name, column, len(rollout.lengths)) for name, column in columns.items()}
    counts = _counting_tokens(columns, rollout, may_be_padded)
    check_limit(MAX_TOKENS, int(counts.sum()), "tokens in rollout_log_probs")
    if "token_ids" in columns:
        columns = _split_ids(columns.pop("token_ids"), rollout, counts) | columns
    if isinstance(versions := columns.get("policy_versions"), Lists) and is_constant(versions):
        columns["policy_versions"] = versions.values[versions.positions() == 0]
    if "turn_ids" not in columns and (turns := _turns(rollout, counts)) is not None:
        columns["turn_ids"] = turns
    if nan_is_ratio_one:
        columns, counts = _without_unpaired(columns, rollout, counts)
    columns[PLACES] = Lists(rollout.positions().int(), rollout.lengths)
    kept = {name: column for name, column in columns.items() if name not in ("response_mask", "lengths")}
    return _select_tokens(kept, rollout, counts)


def _drop_empty(columns: Columns) -> Columns:
    """Return the columns without optional lists in which every value is null: a trainer writes these for no data."""
    return {name: column for name, column in columns.items() if name in PAIR or not _is_all_null(column)}


def _is_all_null(column: Column) -> bool:
    if not isinstance(column, Lists) or not len(column.values):
        return False
    return column.values.is_floating_point() and bool(column.values.isnan().all())


def _as_lists(columns: Columns) -> Columns:
    """Return the columns with every array (N,) of all tokens cut into rows, by lengths (B,).

    If rollout_log_probs has lists or is two-dimensional, the columns are returned unchanged.
    """
    log_probs = columns["rollout_log_probs"]
    if not isinstance(log_probs, Tensor) or log_probs.dim() != 1:
        return columns
    lengths = _row_lengths(columns, len(log_probs))
    rest = {name: column for name, column in columns.items() if name != "lengths"}
    for name, column in rest.items():
        if name in _WITH_ENTRY_PER_TOKEN and isinstance(column, Tensor) and column.shape == log_probs.shape:
            rest[name] = Lists(column, lengths)
        elif isinstance(column, Tensor) and column.dim() and len(column) != len(lengths):
            why = f"{name} has {len(column)} numbers for {len(log_probs)} tokens in {len(lengths)} rows."
            rest[name] = leave_out(name, why)
    return rest


def _row_lengths(columns: Columns, tokens: int) -> Tensor:
    if "lengths" not in columns:
        raise UsageError(
            "rollout_log_probs has one number per row; give a list per row, an array (B, T) with a response_mask, or "
            "an array (N,) of all tokens together with lengths (B,)."
        )
    lengths = whole_numbers("lengths", one_per_row("lengths", columns["lengths"])).long()
    if not bool((lengths >= 0).all()) or int(lengths.sum()) != tokens:
        got = first_numbers(lengths)
        raise UsageError(f"lengths must be ≥ 0 and sum to the {tokens} tokens of rollout_log_probs; got {got}.")
    return lengths


def _counting_tokens(columns: Columns, rollout: Lists, may_be_padded: bool) -> Tensor:
    """Return the mask of the tokens that count, (N,)."""
    if "response_mask" in columns:
        mask = require_aligned("response_mask", columns, rollout)
        refuse_where(mask, (mask.values != 0) & (mask.values != 1), "response_mask is neither 0 nor 1")
        return mask.values == 1
    if "lengths" in columns:
        lengths = whole_numbers("lengths", one_per_row("lengths", columns["lengths"])).long()
        if len(wrong := ((lengths > rollout.lengths) | (lengths < 0)).nonzero()):
            row = int(wrong[0])
            raise UsageError(
                f"row {row} (from 0): its length must be from 0 to {int(rollout.lengths[row])}, the number of its "
                f"log-probs; got {int(lengths[row])}."
            )
        return rollout.positions() < lengths[rollout.rows()]
    if rollout.padded or (may_be_padded and _looks_padded(columns, rollout)):
        raise UsageError(
            "rows of equal length may be padded: say which tokens are real with a response_mask of 0 and 1, or with "
            "lengths (one number per row)."
        )
    return torch.ones(len(rollout.values), dtype=torch.bool)


def _looks_padded(columns: Columns, rollout: Lists) -> bool:
    """Check whether all rows have one length and one ends in two tokens whose log-probs are both 0 (or both NaN)."""
    old = require_aligned("old_log_probs", columns, rollout)
    lengths = rollout.lengths
    if len(lengths) < 2 or int(lengths.min()) != int(lengths.max()) or int(lengths[0]) < 2:
        return False
    a, b = (lists.values.view(len(lengths), -1)[:, -2:] for lists in (rollout, old))
    return bool(((a == 0) & (b == 0) | a.isnan() & b.isnan()).all(-1).any())


def _split_ids(both: Column, rollout: Lists, counts: Tensor) -> Columns:
    """Return ids of prompt and response together as prompt_ids and response_ids.

    If rows of ids and of log-probs have the same lengths, the response starts at the first token of a row that counts.
    Otherwise the log-probs belong to the last ids of each row.
    """
    try:
        tokens = require_lists("token_ids", both)
        if bool((tokens.lengths < rollout.lengths).any()):
            require_aligned("token_ids", {"token_ids": tokens}, rollout)  # raises with the first row that differs
    except UsageError as error:
        return {"token_ids": Unreadable(str(error))}
    ids, rows, positions = tokens.values, tokens.rows(), tokens.positions()
    if torch.equal(tokens.lengths, rollout.lengths):
        start = torch.full_like(rollout.lengths, _NO_START).scatter_reduce(0, rows[counts], positions[counts], "amin")
        in_prompt, response = positions < start.where(start < _NO_START, 0)[rows], ids
    else:
        in_prompt = positions < (tokens.lengths - rollout.lengths)[rows]
        response = ids[~in_prompt]
    prompt_lengths = torch.bincount(rows[in_prompt], minlength=len(tokens.lengths))
    return {"prompt_ids": Lists(ids[in_prompt], prompt_lengths), "response_ids": Lists(response, rollout.lengths)}


def _turns(rollout: Lists, counts: Tensor) -> Lists | None:
    """Return the turn of each token: the number of gaps before it, between tokens of its response that count.

    None if no response has a gap.
    """
    if bool(counts.all()):
        return None
    rows, positions = rollout.rows()[counts], rollout.positions()[counts]
    same = rows[1:] == rows[:-1]
    starts = torch.zeros(len(rows), dtype=torch.int32)
    starts[1:] = same & (positions[1:] != positions[:-1] + 1)
    if not bool(starts.any()):
        return None
    first = torch.ones(len(rows), dtype=torch.bool)
    first[1:] = ~same
    count = starts.cumsum(0)
    turn = torch.zeros(len(rollout.values), dtype=torch.int32)
    turn[counts] = (count - count[first][first.cumsum(0) - 1]).int()
    return Lists(turn, rollout.lengths)


def _without_unpaired(columns: Columns, rollout: Lists, counts: Tensor) -> tuple[Columns, Tensor]:
    """Return the columns with unpaired_tokens, (B,), and the tokens that count and have a log-prob of the engine.

    TRL (grpo_trainer.py, 1.16.0) takes a ratio of 1 for the others (NaN) and leaves them out of its metrics. A ratio of
    1 adds nothing to the log-ratio of a response, and in the metrics it would look like a perfect agreement. Raises
    `UsageError` if the trainer's log-prob of such a token is missing, too.
    """
    unpaired = counts & rollout.values.isnan()
    if not bool(unpaired.any()):
        return columns, counts
    old = require_aligned("old_log_probs", columns, rollout)
    refuse_where(old, unpaired & old.values.isnan(), "old_log_probs is NaN or null")
    before = columns.get("unpaired_tokens", torch.zeros(1, dtype=torch.int32))
    count = torch.bincount(rollout.rows()[unpaired], minlength=len(rollout.lengths)).int()
    return columns | {"unpaired_tokens": count + one_per_row("unpaired_tokens", before)}, counts & ~unpaired


def _select_tokens(columns: Columns, rollout: Lists, selected: Tensor) -> Columns:
    """Return the columns with the tokens at which `selected`, (N,), is true; those without tokens are unchanged."""
    whole = bool(selected.all())  # a copy would be as large as the columns
    lengths = rollout.lengths if whole else torch.bincount(rollout.rows()[selected], minlength=len(rollout.lengths))
    result: Columns = {}
    for name, column in columns.items():
        per_token = (*_WITH_ENTRY_PER_TOKEN, "policy_versions", "turn_ids", *TOP, PLACES)
        if not isinstance(column, Lists) or name not in per_token:
            result[name] = column
            continue
        try:
            times = _numbers_per_token(name, column, rollout)
        except UsageError as error:
            result[name] = leave_out(name, str(error))
            continue
        kept = selected.repeat_interleave(times) if times > 1 else selected
        result[name] = Lists(column.values if whole else column.values[kept], lengths * times)
    return result


def _numbers_per_token(name: str, column: Lists, rollout: Lists) -> int:
    """Return how many numbers a token has. Raises `UsageError` if tokens differ in it."""
    if name not in TOP:
        require_aligned(name, {name: column}, rollout)
        return 1
    count = len(column.values) // max(len(rollout.values), 1)
    if len(wrong := (column.lengths != count * rollout.lengths).nonzero()):
        row = int(wrong[0])
        raise UsageError(
            f"row {row} (from 0): {name} has {int(column.lengths[row])} numbers for {int(rollout.lengths[row])} "
            "tokens; every token must have the same number of them."
        )
    return count
