"""Columns under our names as a recorded step. Every number is checked, because the file comes from outside."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists, real_lengths
from rlcorr.foreign.names import PAIR
from rlcorr.foreign.parse.limits import MAX_PADDED, check_limit
from rlcorr.foreign.values import (
    PER_ROW,
    LeftOut,
    padded,
    read_optional,
    refuse_both_infinite,
    row_values,
    step_of,
    texts,
    token_ids,
    token_values,
    top_lists,
    turns,
    versions,
)
from rlcorr.foreign.which_tokens_count import TOKEN_COLUMNS, drop_empty, find_real_tokens, split_unpaired
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.loss_masks import LOSSES, MASKS
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class RaggedTokens:
    """The numbers of real tokens, all responses one after the other."""

    fields: dict[str, Tensor]  # name → (N,)
    lengths: Tensor  # (B,) int64, with sum N


class NoTokens(UsageError):
    """A file, or a part of it, without a token that counts."""


def to_record(columns: Columns, *, may_be_padded: bool) -> StepRecord:
    """Return a step of the real tokens, with every response starting in column 0.

    A column that is not in `names.NEEDED` and cannot be used is left out; the record's notes say why.

    Args:
        may_be_padded: if no mask is given, refuse lists of equal length that end in zeros, because they may be padded.

    Raises `UsageError` for a needed column that cannot be used, and `NoTokens` if no token counts.
    """
    columns, rollout, real = find_real_tokens(drop_empty(columns, PAIR), may_be_padded)
    paired, unpaired = split_unpaired(columns, rollout, real)
    left_out: LeftOut = {}
    fields = _token_fields(columns, rollout, paired, left_out)
    if not bool(paired.any()):
        raise _no_tokens(int(unpaired.sum()))
    lengths = real_lengths(rollout, paired)
    rows, longest = len(lengths), int(lengths.max())
    check_limit(MAX_PADDED, rows * longest, f"places ({rows} rows as wide as the longest, {longest})")
    prompt, ids = token_ids(columns, rollout, paired, left_out)
    segments, numbers = _segments(columns, rollout, real, paired, left_out)
    for name in PER_ROW:
        if name in columns:
            numbers[name] = read_optional(name, lambda n=name: row_values(n, columns[n]), left_out)
    mask = pad(paired[paired], lengths)[1]
    tables = read_optional("top_ids", lambda: top_lists(columns, rollout, paired), left_out) or {}
    if bool(unpaired.any()):
        numbers["unpaired_tokens"] = unpaired + (0 if (before := numbers.get("unpaired_tokens")) is None else before)
    batch = TokenBatch(
        response_mask=mask,
        **{name: padded(table, mask, name) for name, table in tables.items()},
        **{name: pad(values, lengths)[0] for name, values in (fields | ids | segments).items()},
        **prompt,
        **numbers,
    )
    prompts, responses = (
        read_optional(name, lambda n=name: texts(n, columns, rows), left_out) or [""] * rows
        for name in ("prompts", "responses")
    )
    return StepRecord(step_of(columns), batch, prompts, responses, notes(left_out, batch.rewards))


def to_ragged(columns: Columns, *, may_be_padded: bool) -> RaggedTokens:
    """Return the numbers of the real tokens alone, for files that are read in parts; there may be no tokens.

    Raises `UsageError` for any column that cannot be used: here none is optional.
    """
    columns, rollout, real = find_real_tokens(drop_empty(columns, TOKEN_COLUMNS), may_be_padded)
    fields = {name: token_values(name, columns, rollout, real) for name in TOKEN_COLUMNS if name in columns}
    refuse_both_infinite(fields, rollout, real)
    return RaggedTokens(fields, real_lengths(rollout, real))


def _token_fields(columns: Columns, rollout: Lists, real: Tensor, left_out: LeftOut) -> dict[str, Tensor]:
    """Return the numbers of the real tokens by name; only the pair is needed."""
    fields = {name: token_values(name, columns, rollout, real) for name in PAIR}
    refuse_both_infinite(fields, rollout, real)
    for name in TOKEN_COLUMNS:
        if name in columns and name not in PAIR:
            values = read_optional(name, lambda n=name: token_values(n, columns, rollout, real), left_out)
            fields |= {} if values is None else {name: values}
    return fields


def _segments(
    columns: Columns, rollout: Lists, real: Tensor, paired: Tensor, left_out: LeftOut
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return turns and versions of the paired tokens, and the versions that are one number per row, by name."""
    per_token: dict[str, Tensor] = {}
    per_row: dict[str, Any] = {}
    if "policy_versions" in columns:
        read = read_optional("policy_versions", lambda: versions(columns, rollout, paired), left_out)
        if read is not None:
            numbers, several = read
            (per_token if several else per_row)["policy_versions"] = numbers
    if (turn := read_optional("turn_ids", lambda: turns(columns, rollout, real, paired), left_out)) is not None:
        per_token["turn_ids"] = turn
    return per_token, per_row


def _no_tokens(unpaired: int) -> NoTokens:
    if unpaired:
        return NoTokens(f"none of the {unpaired} tokens that count has a log-prob of the engine (NaN).")
    others = " or ".join(sorted({*MASKS, LOSSES}))
    return NoTokens(
        "holds no tokens that count: no rows, empty lists, or 0 everywhere in the mask or in a column that is "
        f"multiplied into it ({others})."
    )


def notes(left_out: LeftOut, rewards: Tensor | None) -> tuple[str, ...]:
    """Return a sentence per column that is left out, and one if some rewards are unknown.

    A null reward becomes NaN in its row, and the other rows keep their rewards. The mean reward is then NaN and is not
    recorded: a mean over the known rewards alone would mislead.
    """
    sentences = [f"{name} is left out: {why}" for name, why in left_out.items()]
    unknown = 0 if rewards is None else int(rewards.isnan().sum())
    if rewards is not None and 0 < unknown < len(rewards):
        sentences.append(
            f"rewards is null or NaN in {unknown} of {len(rewards)} rows; these rewards are unknown, so no mean "
            "reward is recorded."
        )
    return tuple(sentences)
