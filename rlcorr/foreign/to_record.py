"""Checked columns as a recorded step: padded, with every response starting in column 0."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.check import TOKEN_COLUMNS
from rlcorr.foreign.columns import Column, Columns, Lists, require_lists
from rlcorr.foreign.parse.request import MAX_PADDED, MAX_TOKENS, PLACES_PER_TOKEN, check_limit
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.loss_masks import LOSSES, MASKS
from rlcorr.types import TOP, TokenBatch

_PER_TOKEN = (*TOKEN_COLUMNS, "response_ids", "policy_versions", "turn_ids")


class NoTokens(UsageError):
    """A file, or a part of it, without a token that counts."""


def to_record(columns: Columns, step: int, left_out: dict[str, str]) -> StepRecord:
    """Return the columns of `check.checked` as a step, with a note for each column of `left_out`.

    Raises `NoTokens` if no token counts, and `UsageError` if the padded batch would be too large.
    """
    rollout = require_lists("rollout_log_probs", columns["rollout_log_probs"])
    if not len(rollout.values):
        raise _no_tokens(columns.get("unpaired_tokens"))
    rows, longest = len(rollout.lengths), int(rollout.lengths.max())
    limit = min(MAX_PADDED, max(MAX_TOKENS, PLACES_PER_TOKEN * len(rollout.values)))
    check_limit(limit, rows * longest, f"places ({rows} rows as wide as the longest, {longest})")
    mask = pad(torch.ones(len(rollout.values), dtype=torch.bool), rollout.lengths)[1]
    fields: dict[str, Tensor] = {"response_mask": mask}
    texts = {"prompts": [""] * rows, "responses": [""] * rows}
    for name, column in columns.items():
        if isinstance(column, list):
            if name == "group_ids":  # texts
                group = {text: i for i, text in enumerate(dict.fromkeys(column))}
                fields[name] = torch.tensor([group[text] for text in column], dtype=torch.int32)
            else:
                texts[name] = column
        elif isinstance(column, Tensor):
            fields[name] = column
        elif isinstance(column, Lists) and name in TOP:
            fields[name] = _padded(column.values.view(len(rollout.values), -1), mask, name)
        elif isinstance(column, Lists) and name in _PER_TOKEN:
            fields[name] = pad(column.values, rollout.lengths)[0]
    if isinstance(prompt := columns.get("prompt_ids"), Lists):
        check_limit(MAX_PADDED, rows * int(prompt.lengths.max()), "places in the prompts")
        fields["prompt_ids"], fields["prompt_mask"] = pad(prompt.values, prompt.lengths, left=True)
    notes = _notes(left_out, fields.get("rewards"))
    return StepRecord(step, TokenBatch(**fields), texts["prompts"], texts["responses"], notes)


def _padded(table: Tensor, mask: Tensor, name: str) -> Tensor:
    """Return (N, K) as (B, T, K), with −1 (ids) or 0 where the mask (B, T) is false."""
    filled = torch.full((*mask.shape, table.shape[1]), -1 if name == "top_ids" else 0).to(table)
    filled[mask] = table
    return filled


def _no_tokens(unpaired: Column | None) -> NoTokens:
    if isinstance(unpaired, Tensor) and int(unpaired.sum()):
        return NoTokens(f"none of the {int(unpaired.sum())} tokens that count has a log-prob of the engine (NaN).")
    others = " or ".join(sorted({*MASKS, LOSSES}))
    return NoTokens(
        "holds no tokens that count: no rows, empty lists, or 0 everywhere in the mask or in a column that is "
        f"multiplied into it ({others})."
    )


def _notes(left_out: dict[str, str], rewards: Tensor | None) -> tuple[str, ...]:
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
