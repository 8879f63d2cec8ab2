"""Columns under our names as a recorded step: every number is looked at, because a stranger wrote it."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.aligned import aligned, lists_of, refuse_where
from rlcorr.foreign.answers import Answers
from rlcorr.foreign.columns import MAX_PADDED, Column, Columns, Lists, at_most
from rlcorr.foreign.counted import UNPAIRED
from rlcorr.foreign.left_out import LeftOut, notes, optional
from rlcorr.foreign.names import PAIR
from rlcorr.foreign.per_row import PER_ROW, one_per_row, per_row, some, step_of, texts, whole
from rlcorr.foreign.rounding import ROUNDING
from rlcorr.foreign.steps import refused, rows_of
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.counted import LOSSES, MASKS
from rlcorr.types import ROUNDED_UP, TokenBatch

_TOKENS = ("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs", "values", "advantages", "returns")
_ALIGNED = (*_TOKENS, "response_mask", "response_ids", "token_ids", UNPAIRED)


class NoTokens(UsageError):
    """What was read holds no token that counts."""


def to_record(columns: Columns, *, may_be_padded: bool) -> StepRecord:
    """Return a step of the real tokens, all responses starting in column 0.

    `may_be_padded`: lists of equal length that end in zeros are taken for padding where no mask says what they are. A
    column that is not `NEEDED` and cannot be used is left out, and the record's notes say why. Raises `UsageError`.
    """
    columns, first, real = _with_real(_saying(columns, PAIR), may_be_padded)
    keep, unpaired = _paired(columns, first, real)
    left_out: LeftOut = {}
    fields = _fields(columns, first, keep, left_out)
    lengths = _real_lengths(first, keep)
    if not bool(keep.any()):
        if bool(unpaired.any()):
            raise NoTokens(f"none of the {int(unpaired.sum())} tokens that count has a log-prob of the engine (NaN).")
        others = " or ".join(sorted({*MASKS, LOSSES}))
        raise NoTokens(
            "holds no tokens that count: no rows, empty lists, or 0 everywhere in the mask or in what is multiplied "
            f"into it ({others})."
        )
    longest = int(lengths.max())
    at_most(MAX_PADDED, len(lengths) * longest, f"places ({len(lengths)} rows as wide as the longest, {longest})")
    prompt, ids = _ids(columns, first, keep, left_out)
    numbers: dict[str, Any] = {
        name: optional(name, lambda n=name: per_row(n, columns[n]), left_out) for name in PER_ROW if name in columns
    }
    if bool(unpaired.any()):
        numbers["unpaired_tokens"] = unpaired + (0 if (before := numbers.get("unpaired_tokens")) is None else before)
    batch = TokenBatch(
        response_mask=pad(keep[keep], lengths)[1],
        **{name: pad(values, lengths)[0] for name, values in (fields | ids).items()},
        **prompt,
        **numbers,
    )
    prompts, responses = (
        optional(name, lambda n=name: texts(n, columns, len(lengths)), left_out) or [""] * len(lengths)
        for name in ("prompts", "responses")
    )
    return StepRecord(step_of(columns), batch, prompts, responses, notes(left_out, batch.rewards))


def to_answers(columns: Columns, *, may_be_padded: bool) -> Answers:
    """Return only the numbers of the real tokens, for files that are read in parts; there may be none. Every column is
    needed. Raises `UsageError`."""
    columns, first, keep = _with_real(_saying(columns, _TOKENS), may_be_padded)
    fields = {name: _tokens(name, columns, first, keep) for name in _TOKENS if name in columns}
    _refuse_both_infinite(fields, first, keep)
    return Answers(fields, _real_lengths(first, keep))


def _with_real(columns: Columns, may_be_padded: bool) -> tuple[Columns, Lists, Tensor]:
    """The columns as lists, those of the engine's log-probs, and which of their places hold a real token."""
    columns = as_lists(columns)
    first = lists_of("rollout_log_probs", columns["rollout_log_probs"])
    columns = {name: _same_rows(name, column, len(first.lengths)) for name, column in columns.items()}
    return columns, first, _real(columns, first, may_be_padded)


def _paired(columns: Columns, first: Lists, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return which real tokens (N,) have both log-probs, and how many of each row (B,) lack the engine's, see
    `counted.with_unpaired`. Raises `UsageError` where the trainer's is not there either."""
    if UNPAIRED not in columns:
        return real, torch.zeros_like(first.lengths)
    lacking = aligned(UNPAIRED, columns, first).values & real
    old = aligned("old_log_probs", columns, first)
    refuse_where(old, lacking & old.values.isnan(), "old_log_probs is NaN or null")
    return real & ~lacking, torch.bincount(first.rows()[lacking], minlength=len(first.lengths)).int()


def _fields(columns: Columns, first: Lists, keep: Tensor, left_out: LeftOut) -> dict[str, Tensor]:
    """The numbers of the real tokens, by name."""
    fields = {name: _tokens(name, columns, first, keep) for name in PAIR}
    _refuse_both_infinite(fields, first, keep)
    for name in _TOKENS:
        if name in columns and name not in PAIR:
            values = optional(name, lambda n=name: _tokens(n, columns, first, keep), left_out)
            fields |= {} if values is None else {name: values}
    return fields


def _real_lengths(first: Lists, keep: Tensor) -> Tensor:
    return first.lengths if bool(keep.all()) else torch.bincount(first.rows()[keep], minlength=len(first.lengths))


# --- shapes ---


def _saying(columns: Columns, needed: Collection[str]) -> Columns:
    """Without lists of nothing but null, as a trainer writes what it does not have."""
    return {name: column for name, column in columns.items() if name in needed or not _says_nothing(column)}


def _says_nothing(column: Column) -> bool:
    if not isinstance(column, Lists) or not len(column.values):
        return False
    return column.values.is_floating_point() and bool(column.values.isnan().all())


def as_lists(columns: Columns) -> Columns:
    """All tokens in one array (N,) are cut into rows by lengths (B,) or offsets (B + 1,)."""
    flat = columns["rollout_log_probs"]
    if not isinstance(flat, Tensor) or flat.dim() != 1:
        return columns
    lengths = _row_lengths(columns, len(flat))
    kept = {name: column for name, column in columns.items() if name not in ("lengths", "offsets")}
    for name, column in kept.items():
        if name in _ALIGNED and isinstance(column, Tensor) and column.shape == flat.shape:
            kept[name] = Lists(column, lengths)
        elif isinstance(column, Tensor) and column.dim() and len(column) != len(lengths):
            why = f"{name} has {len(column)} numbers for {len(flat)} tokens in {len(lengths)} rows."
            kept[name] = refused(name, why)
    return kept


def _row_lengths(columns: Columns, tokens: int) -> Tensor:
    if "lengths" not in columns and "offsets" not in columns:
        raise UsageError(
            "rollout_log_probs has one number per row; give a list per row, an array (B, T) with a response_mask, or "
            "beside an array (N,) of all tokens lengths (B,) or offsets (B + 1,)."
        )
    name = "lengths" if "lengths" in columns else "offsets"
    numbers = whole(name, one_per_row(name, columns[name])).long()
    lengths = numbers if name == "lengths" else numbers.diff()
    if not bool((lengths >= 0).all()) or int(lengths.sum()) != tokens or (name == "offsets" and int(numbers[:1].sum())):
        rule = "be ≥ 0 and sum to" if name == "lengths" else "rise from 0 to"
        raise UsageError(f"{name} must {rule} the {tokens} tokens of rollout_log_probs; got {some(numbers)}.")
    return lengths


def _same_rows(name: str, column: Column, rows: int) -> Column:
    got = rows_of(column, rows)
    return column if got == rows else refused(name, f"{name} has {got} rows, rollout_log_probs has {rows}.")


# --- which tokens are real ---


def _real(columns: Columns, first: Lists, may_be_padded: bool) -> Tensor:
    """(N,) bool: by the mask; without one by lengths; without both every token."""
    if "response_mask" in columns:
        mask = aligned("response_mask", columns, first)
        refuse_where(mask, (mask.values != 0) & (mask.values != 1), "response_mask is neither 0 nor 1")
        return mask.values == 1
    if "lengths" in columns:
        lengths = whole("lengths", one_per_row("lengths", columns["lengths"])).long()
        if len(wrong := ((lengths > first.lengths) | (lengths < 0)).nonzero()):
            row = int(wrong[0])
            raise UsageError(f"row {row} (from 0): length {int(lengths[row])} of {int(first.lengths[row])} values.")
        return first.places() < lengths[first.rows()]
    if first.padded or (may_be_padded and _looks_padded(columns, first)):
        raise UsageError(
            "rows of equal length may be padded: say which tokens are real with a response_mask of 0 and 1, or with "
            "lengths (one number per row)."
        )
    return torch.ones(len(first.values), dtype=torch.bool)


def _looks_padded(columns: Columns, first: Lists) -> bool:
    """Rows of one length, one of which ends in two tokens whose log-probs are exactly 0 (or NaN) on both sides."""
    old = aligned("old_log_probs", columns, first)
    if len(first.lengths) < 2 or int(first.lengths.min()) != int(first.lengths.max()) or int(first.lengths[0]) < 2:
        return False
    a, b = (lists.values.view(len(first.lengths), -1)[:, -2:] for lists in (first, old))
    return bool(((a == 0) & (b == 0) | a.isnan() & b.isnan()).all(-1).any())


# --- numbers per token ---


def _tokens(name: str, columns: Columns, first: Lists, keep: Tensor) -> Tensor:
    """The values at real tokens, float32."""
    column = columns[name]
    if name == "advantages" and isinstance(column, Tensor):  # one per response
        column = Lists(column[first.rows()], first.lengths) if column.dim() else column
    lists = aligned(name, columns | {name: column}, first)
    log_probs = name.endswith("log_probs")
    if lists.values.dtype == torch.bool or (log_probs and not lists.values.is_floating_point()):
        raise UsageError(f"{name} has dtype {lists.values.dtype}; floating-point numbers are needed.")
    values = lists.values.float()
    refuse_where(lists, values.isnan() & keep, f"{name} is NaN or null")
    if log_probs:
        _refuse_above_zero(name, lists, values, keep)
    else:
        refuse_where(lists, values.isinf() & keep, f"{name} is infinite")
    return values if bool(keep.all()) else values[keep]  # to choose takes ten times as long as to look


def _refuse_above_zero(name: str, lists: Lists, values: Tensor, keep: Tensor) -> None:
    above = (values > ROUNDED_UP) & keep
    if not bool(above.any()):
        return
    highest = float(values[above].max())
    what_to_do = "take the logarithm of probabilities, change the sign of negative log-likelihoods"
    if highest <= ROUNDING:
        what_to_do = "if bfloat16 rounded them up, clamp_rounding (--clamp-rounding) makes them 0"
    said = f"{name} must be natural logarithms of probabilities, ≤ 0; got {float(values[above][0]):g}"
    refuse_where(lists, above, f"{said}, at most {highest:g}: {what_to_do}")


def _refuse_both_infinite(fields: dict[str, Tensor], first: Lists, keep: Tensor) -> None:
    both = (fields["rollout_log_probs"] == -torch.inf) & (fields["old_log_probs"] == -torch.inf)
    if bool(both.any()):
        wrong = torch.zeros_like(keep).masked_scatter(keep, both)
        refuse_where(first, wrong, "rollout_log_probs and old_log_probs are −inf, without a ratio")


# --- ids ---


def _ids(
    columns: Columns, first: Lists, keep: Tensor, left_out: LeftOut
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """prompt_ids and prompt_mask (B, P), and response_ids of the real tokens, as far as they are there."""
    prompt = ids = None
    if "token_ids" in columns:
        both = optional("token_ids", lambda: _split(lists_of("token_ids", columns["token_ids"]), first, keep), left_out)
        prompt, ids = both or (None, None)
    if "response_ids" in columns:
        ids = optional("response_ids", lambda: _response_ids(columns, first, keep), left_out)
    if "prompt_ids" in columns:
        prompt = optional("prompt_ids", lambda: _prompt(columns), left_out)
    padded = None if prompt is None else optional("prompt_ids", lambda: _padded(prompt), left_out)
    return padded or {}, {} if ids is None else {"response_ids": ids}


def _response_ids(columns: Columns, first: Lists, keep: Tensor) -> Tensor:
    return whole("response_ids", aligned("response_ids", columns, first).values)[keep]


def _prompt(columns: Columns) -> Lists:
    prompt = lists_of("prompt_ids", columns["prompt_ids"])
    if "prompt_mask" not in columns:
        return prompt
    mask = aligned("prompt_mask", columns, prompt).values != 0
    return Lists(prompt.values[mask], torch.bincount(prompt.rows()[mask], minlength=len(prompt.lengths)))


def _padded(prompt: Lists) -> dict[str, Tensor]:
    at_most(MAX_PADDED, len(prompt.lengths) * int(prompt.lengths.max()), "places in the prompts")
    ids, mask = pad(whole("prompt_ids", prompt.values), prompt.lengths, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def _split(tokens: Lists, first: Lists, keep: Tensor) -> tuple[Lists, Tensor]:
    """Ids of prompt and response together: the log-probs belong to all of them, or to the last of each row."""
    rows, places = tokens.rows(), tokens.places()
    if torch.equal(tokens.lengths, first.lengths):
        start = torch.full_like(first.lengths, 1 << 40).scatter_reduce(0, rows[keep], places[keep], "amin")
        start[start == 1 << 40] = 0  # a row without a real token
        tail = torch.ones_like(keep)
        in_prompt = places < start[rows]
    else:
        if bool((tokens.lengths < first.lengths).any()):
            aligned("token_ids", {"token_ids": tokens}, first)
        in_prompt = places < (tokens.lengths - first.lengths)[rows]
        tail = ~in_prompt
    prompt = Lists(tokens.values[in_prompt], torch.bincount(rows[in_prompt], minlength=len(tokens.lengths)))
    return prompt, whole("token_ids", tokens.values[tail])[keep]
