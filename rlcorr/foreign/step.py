"""Columns under our names as a recorded step: every number is looked at, because a stranger wrote it."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.answers import Answers
from rlcorr.foreign.columns import MAX_PADDED, Column, Columns, Lists, at_most
from rlcorr.foreign.names import PAIR
from rlcorr.foreign.per_row import one_per_row, per_row, some, step_of, texts, whole
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.counted import LOSSES, MASKS
from rlcorr.types import TokenBatch

_TOKENS = ("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs", "values", "advantages", "returns")
_ALIGNED = (*_TOKENS, "response_mask", "response_ids", "token_ids")


def to_record(columns: Columns, *, may_be_padded: bool) -> StepRecord:
    """A step of the real tokens, all responses starting in column 0. `may_be_padded`: lists of equal length that end in
    zeros are taken for padding where no mask says what they are. Raises `UsageError`."""
    columns, first, keep = _with_real(columns, may_be_padded)
    answers = _answers(columns, first, keep)
    fields, lengths = answers.fields, answers.lengths
    if not bool(keep.any()):
        others = " or ".join(sorted({*MASKS, LOSSES}))
        raise UsageError(
            "holds no tokens that count: no rows, empty lists, or 0 everywhere in the mask or in what is multiplied "
            f"into it ({others})."
        )
    longest = int(lengths.max())
    at_most(MAX_PADDED, len(lengths) * longest, f"places ({len(lengths)} rows as wide as the longest, {longest})")
    prompt, ids = _ids(columns, first, keep)
    batch = TokenBatch(
        response_mask=pad(keep[keep], lengths)[1],
        **{name: pad(values, lengths)[0] for name, values in (fields | ids).items()},
        **prompt,
        **per_row(columns),
    )
    batch.check_values()
    prompts, responses = (texts(name, columns, len(lengths)) for name in ("prompts", "responses"))
    return StepRecord(step_of(columns), batch, prompts, responses)


def to_answers(columns: Columns, *, may_be_padded: bool) -> Answers:
    """Only the numbers of the real tokens, for files that are read in parts; there may be none. Raises `UsageError`."""
    return _answers(*_with_real(columns, may_be_padded))


def _with_real(columns: Columns, may_be_padded: bool) -> tuple[Columns, Lists, Tensor]:
    """The columns as lists, those of the engine's log-probs, and which of their places hold a real token."""
    columns = as_lists({name: column for name, column in columns.items() if name in PAIR or not _says_nothing(column)})
    first = _lists("rollout_log_probs", columns["rollout_log_probs"])
    for name, column in columns.items():
        _same_rows(name, column, len(first.lengths))
    return columns, first, _real(columns, first, may_be_padded)


def _answers(columns: Columns, first: Lists, keep: Tensor) -> Answers:
    fields = {name: _tokens(name, columns, first, keep) for name in _TOKENS if name in columns}
    _refuse_both_infinite(fields, first, keep)
    if bool(keep.all()):
        return Answers(fields, first.lengths)
    return Answers(fields, torch.bincount(first.rows()[keep], minlength=len(first.lengths)))


# --- shapes ---


def _says_nothing(column: Column) -> bool:
    """Lists of nothing but null, as a trainer writes what it does not have."""
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
            raise UsageError(f"{name} has {len(column)} numbers for {len(flat)} tokens in {len(lengths)} rows.")
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


def _lists(name: str, column: Column) -> Lists:
    if not isinstance(column, Lists):
        got = f"texts such as {column[0]!r:.40}" if isinstance(column, list) and column else "one number per row"
        raise UsageError(f"{name} must hold a list of numbers per row; got {got}.")
    return column


def _same_rows(name: str, column: Column, rows: int) -> None:
    got = len(column.lengths) if isinstance(column, Lists) else len(column) if _has_rows(column) else rows
    if got != rows:
        raise UsageError(f"{name} has {got} rows, rollout_log_probs has {rows}.")


def _has_rows(column: Tensor | list[str]) -> bool:
    return isinstance(column, list) or column.dim() > 0


def _aligned(name: str, columns: Columns, first: Lists) -> Lists:
    """The lists of a column, as long as those of rollout_log_probs."""
    lists = _lists(name, columns[name])
    if len(wrong := (lists.lengths != first.lengths).nonzero()):
        row = int(wrong[0])
        raise UsageError(
            f"row {row} (from 0): {name} has {int(lists.lengths[row])} values, rollout_log_probs "
            f"{int(first.lengths[row])}."
        )
    return lists


# --- which tokens are real ---


def _real(columns: Columns, first: Lists, may_be_padded: bool) -> Tensor:
    """(N,) bool: by the mask; without one by lengths; without both every token."""
    if "response_mask" in columns:
        mask = _aligned("response_mask", columns, first)
        _refuse_where(mask, (mask.values != 0) & (mask.values != 1), "response_mask is neither 0 nor 1")
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
    old = _aligned("old_log_probs", columns, first)
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
    lists = _aligned(name, columns | {name: column}, first)
    log_probs = name.endswith("log_probs")
    if lists.values.dtype == torch.bool or (log_probs and not lists.values.is_floating_point()):
        raise UsageError(f"{name} has dtype {lists.values.dtype}; floating-point numbers are needed.")
    values = lists.values.float()
    _refuse_where(lists, values.isnan() & keep, f"{name} is NaN or null")
    if not log_probs:
        _refuse_where(lists, values.isinf() & keep, f"{name} is infinite")
    return values if bool(keep.all()) else values[keep]  # to choose takes ten times as long as to look


def _refuse_both_infinite(fields: dict[str, Tensor], first: Lists, keep: Tensor) -> None:
    both = (fields["rollout_log_probs"] == -torch.inf) & (fields["old_log_probs"] == -torch.inf)
    if bool(both.any()):
        wrong = torch.zeros_like(keep).masked_scatter(keep, both)
        _refuse_where(first, wrong, "rollout_log_probs and old_log_probs are −inf, without a ratio")


def _refuse_where(lists: Lists, wrong: Tensor, what: str) -> None:
    if len(places := wrong.nonzero()):
        at = int(places[0])
        more = f", and at {len(places) - 1} more" if len(places) > 1 else ""
        raise UsageError(f"row {int(lists.rows()[at])}, token {int(lists.places()[at])} (from 0){more}: {what}.")


# --- ids ---


def _ids(columns: Columns, first: Lists, keep: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """prompt_ids and prompt_mask (B, P), and response_ids of the real tokens, as far as they are there."""
    response: dict[str, Tensor] = {}
    prompt = None
    if "token_ids" in columns:
        prompt, response["response_ids"] = _split(_lists("token_ids", columns["token_ids"]), first, keep)
    if "response_ids" in columns:
        response["response_ids"] = whole("response_ids", _aligned("response_ids", columns, first).values)[keep]
    if "prompt_ids" in columns:
        prompt = _lists("prompt_ids", columns["prompt_ids"])
        if "prompt_mask" in columns:
            mask = _aligned("prompt_mask", columns, prompt).values != 0
            prompt = Lists(prompt.values[mask], torch.bincount(prompt.rows()[mask], minlength=len(prompt.lengths)))
    if prompt is None:
        return {}, response
    at_most(MAX_PADDED, len(prompt.lengths) * int(prompt.lengths.max()), "places in the prompts")
    ids, mask = pad(whole("prompt_ids", prompt.values), prompt.lengths, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}, response


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
            _aligned("token_ids", {"token_ids": tokens}, first)
        in_prompt = places < (tokens.lengths - first.lengths)[rows]
        tail = ~in_prompt
    prompt = Lists(tokens.values[in_prompt], torch.bincount(rows[in_prompt], minlength=len(tokens.lengths)))
    return prompt, whole("token_ids", tokens.values[tail])[keep]
