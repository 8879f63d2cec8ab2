"""Checked columns as a recorded step: padded, with every response starting in column 0, and what it lacks."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.check_values import TOKEN_COLUMNS
from rlcorr.foreign.columns import Column, Columns, Lists, require_lists
from rlcorr.foreign.parse.request import MAX_PADDED, MAX_TOKENS, PLACES_PER_TOKEN, check_limit
from rlcorr.records.step_files import StepRecord, pad
from rlcorr.systems.loss_masks import LOSSES, MASKS
from rlcorr.types import TOP, TokenBatch

_PER_TOKEN = (*TOKEN_COLUMNS, "response_ids", "policy_versions", "turn_ids")


class NoTokens(UsageError):
    """A file, or a part of it, without a token that counts."""


def to_record(columns: Columns, step: int, left_out: dict[str, str]) -> StepRecord:
    """Return the columns of `check_values.checked` as a step, with a note for each column of `left_out`.

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


# --- fields that a file does not have ---


ENABLES = {
    "advantages": "rules for one sign of the advantage, losses, and with a score sketch the effect on the gradient",
    "rewards": "the reward next to a response",
    "prompts": "the prompt next to a response",
    "responses": "the text of a response",
    "response_ids": "the token at each position",
    "group_ids": "advantages within the group of a prompt",
    "policy_versions": "the age of the weights that sampled a response",
    "sampled_log_probs": "how much of the gap is the engine's, and how much the age of the weights",
    "ref_log_probs": "KL terms against a reference policy",
    "values": "the critic's loss",
    "sketch": "bias and noise of the gradient; only a training run with --sketch.every records it",
}
"""Field that a file could have in addition to the pair → its use."""
UNKNOWN = -1
"""An id, group or version that the file does not have. An unknown reward is NaN."""


def missing(record: StepRecord) -> dict[str, str]:
    """Return the entries of `ENABLES` that the record lacks; the sketch is always one, because no step holds it."""
    present = {name for name, tensor in record.batch.tensors().items() if not _is_unknown(tensor)}
    present |= {name for name in ("prompts", "responses") if any(getattr(record, name))}
    return {name: use for name, use in ENABLES.items() if name not in present}


def fill_missing(record: StepRecord) -> StepRecord:
    """Return the record with all fields that `runs.write_step` needs.

    Missing ones become `UNKNOWN`, rewards NaN, and prompts empty.
    """
    batch = record.batch
    rows, no_prompt = len(batch.response_mask), (len(batch.response_mask), 0)
    defaults = {
        "rewards": torch.full((rows,), torch.nan),
        "group_ids": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "policy_versions": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "prompt_ids": torch.zeros(no_prompt, dtype=torch.int32),
        "prompt_mask": torch.zeros(no_prompt, dtype=torch.bool),
        "response_ids": batch.response_mask.int() * UNKNOWN,
    }
    return replace(record, batch=TokenBatch(**(defaults | batch.tensors())))


def unpaired_sentence(unpaired: int, tokens: int) -> str:
    """Return a sentence about the tokens that were left out, with the number of the `tokens` that were not."""
    return (
        f"{unpaired:,} of {unpaired + tokens:,} tokens have no log-prob of the engine (NaN, a ratio of 1 in TRL); they "
        "are left out of every number."
    )


def _is_unknown(tensor: Tensor) -> bool:
    """Check whether all numbers are NaN, or all are −1 or padding."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().all())
    return tensor.numel() > 0 and bool((tensor <= 0).all()) and bool((tensor == UNKNOWN).any())
