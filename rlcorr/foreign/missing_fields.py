"""Fields that a file does not have: what each would be used for, and what a recorded run holds instead."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.records.step_files import StepRecord
from rlcorr.types import TokenBatch

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
