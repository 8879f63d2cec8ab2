"""The tokens that count as a recorded step. Every number is checked, because the file comes from outside."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists, refuse_where, require_lists
from rlcorr.foreign.names import PAIR
from rlcorr.foreign.parse.limits import MAX_PADDED, check_limit
from rlcorr.foreign.values import (
    FALLS,
    PER_ROW,
    PLACES,
    LeftOut,
    padded,
    read_optional,
    rising,
    row_values,
    step_of,
    texts,
    token_fields,
    token_ids,
    top_lists,
    turns,
)
from rlcorr.foreign.which_tokens_count import TOKEN_COLUMNS, UNPAIRED, drop_empty, select_tokens
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.loss_masks import LOSSES, MASKS
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class RaggedTokens:
    """The numbers of the tokens that count, all responses one after the other."""

    fields: dict[str, Tensor]  # name → (N,)
    lengths: Tensor  # (B,) int64, with sum N


class NoTokens(UsageError):
    """A file, or a part of it, without a token that counts."""


def to_record(columns: Columns) -> StepRecord:
    """Return the tokens of `keep_counting_tokens` as a step, with every response starting in column 0.

    A column that is not in `names.NEEDED` and cannot be used is left out; the record's notes say why.

    Raises `UsageError` for a needed column that cannot be used, and `NoTokens` if no token counts.
    """
    left_out: LeftOut = {}
    columns = drop_empty(columns, PAIR)
    turn = read_optional("turn_ids", lambda: turns(columns), left_out)
    columns, unpaired = _without_unpaired(columns, turn)
    tokens = token_fields(columns, TOKEN_COLUMNS, left_out)
    if not len(tokens["rollout_log_probs"]):
        raise _no_tokens(int(unpaired.sum()))
    lengths = require_lists("rollout_log_probs", columns["rollout_log_probs"]).lengths
    rows, longest = len(lengths), int(lengths.max())
    check_limit(MAX_PADDED, rows * longest, f"places ({rows} rows as wide as the longest, {longest})")
    prompt, ids = token_ids(columns, left_out)
    tokens |= ids
    for name in FALLS:
        if isinstance(columns.get(name), Lists):
            read = read_optional(name, lambda n=name: rising(n, columns), left_out)
            tokens |= {} if read is None else {name: read}
    numbers = _row_numbers(columns, unpaired, left_out)
    mask = pad(torch.ones(int(lengths.sum()), dtype=torch.bool), lengths)[1]
    tables = read_optional("top_ids", lambda: top_lists(columns), left_out) or {}
    batch = TokenBatch(
        response_mask=mask,
        **{name: padded(table, mask, name) for name, table in tables.items()},
        **{name: pad(values, lengths)[0] for name, values in tokens.items()},
        **prompt,
        **numbers,
    )
    prompts, responses = (
        read_optional(name, lambda n=name: texts(n, columns, rows), left_out) or [""] * rows
        for name in ("prompts", "responses")
    )
    return StepRecord(step_of(columns), batch, prompts, responses, notes(left_out, batch.rewards))


def _row_numbers(columns: Columns, unpaired: Tensor, left_out: LeftOut) -> dict[str, Tensor]:
    """Return the numbers with one per row, (B,), by name."""
    numbers: dict[str, Tensor] = {}
    for name in PER_ROW:
        column = columns.get(name)
        if column is None or (name in FALLS and isinstance(column, Lists)):  # those are per token
            continue
        read = read_optional(name, lambda n=name, x=column: row_values(n, x), left_out)
        numbers |= {} if read is None else {name: read}
    if bool(unpaired.any()):
        numbers["unpaired_tokens"] = unpaired + numbers.get("unpaired_tokens", 0)
    return numbers


def _without_unpaired(columns: Columns, turn: Tensor | None) -> tuple[Columns, Tensor]:
    """Return the tokens with both log-probs, with these turns, and how many of each row lack the engine's, (B,) int32.

    The second is 0 unless `mark_unpaired` has marked tokens. Raises `UsageError` if the trainer's log-prob of a marked
    token is missing, too.
    """
    rollout, places = (require_lists(name, columns[name]) for name in ("rollout_log_probs", PLACES))
    columns = {name: column for name, column in columns.items() if name != "turn_ids"}
    if turn is not None:
        columns["turn_ids"] = Lists(turn, rollout.lengths)
    if UNPAIRED not in columns:
        return columns, torch.zeros_like(rollout.lengths, dtype=torch.int32)
    unpaired = require_lists(UNPAIRED, columns[UNPAIRED]).values
    old = require_lists("old_log_probs", columns["old_log_probs"])
    refuse_where(old, unpaired & old.values.isnan(), "old_log_probs is NaN or null", places)
    count = torch.bincount(rollout.rows()[unpaired], minlength=len(rollout.lengths))
    return select_tokens(columns, ~unpaired), count.int()


def to_ragged(columns: Columns, names: Collection[str]) -> RaggedTokens:
    """Return the numbers of the tokens alone, for files that are read in parts; there may be no tokens.

    Raises `UsageError` for any of these columns that cannot be used: here none is optional.
    """
    left_out: LeftOut = {}
    fields = token_fields(drop_empty(columns, TOKEN_COLUMNS), names, left_out)
    if left_out:
        raise UsageError(next(iter(left_out.values())))
    return RaggedTokens(fields, require_lists("rollout_log_probs", columns["rollout_log_probs"]).lengths)


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
