"""What a file does not say: what it would be for, and what stands in its place in a recorded run."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.records.step_files import StepRecord
from rlcorr.types import TokenBatch

ENABLES = {
    "advantages": "rules for one sign of the advantage, losses, and with a score sketch what happens to the gradient",
    "rewards": "the reward beside a response",
    "prompts": "the prompt beside a response",
    "responses": "the text of a response",
    "response_ids": "which token stands where",
    "group_ids": "advantages within the group of a prompt",
    "policy_versions": "how old the weights were that sampled a response",
    "ref_log_probs": "KL terms against a reference policy",
    "values": "the critic's loss",
    "sketch": "bias and noise of the gradient; only a training with --sketch.every records it",
}
"""What could be there beside the pair, and what it is for."""

UNKNOWN = -1
"""An id, group or version that the file does not say; an unknown reward is NaN."""


def missing(record: StepRecord) -> dict[str, str]:
    """What is not there and what it would enable: a part of `ENABLES`, always with the sketch, which no step holds."""
    present = {name for name, tensor in record.batch.tensors().items() if not _is_unknown(tensor)}
    present |= {name for name in ("prompts", "responses") if any(getattr(record, name))}
    return {name: use for name, use in ENABLES.items() if name not in present}


def recordable(record: StepRecord) -> StepRecord:
    """The record with what `runs.write_step` needs and the file did not say: `UNKNOWN`, NaN, and empty prompts."""
    batch = record.batch
    rows, no_prompt = len(batch.response_mask), (len(batch.response_mask), 0)
    filled = {
        "rewards": torch.full((rows,), torch.nan),
        "group_ids": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "policy_versions": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "prompt_ids": torch.zeros(no_prompt, dtype=torch.int32),
        "prompt_mask": torch.zeros(no_prompt, dtype=torch.bool),
        "response_ids": torch.where(batch.response_mask, UNKNOWN, 0).int(),
    }
    return replace(record, batch=TokenBatch(**(filled | batch.tensors())))


def said_of_unpaired(unpaired: int, tokens: int) -> str:
    """Return a sentence about the tokens that were left out of `tokens` others.

    >>> said_of_unpaired(12, 4)
    "12 of 16 tokens have no log-prob of the engine (NaN, a ratio of 1 in TRL); they are left out of every number."
    """
    return (
        f"{unpaired:,} of {unpaired + tokens:,} tokens have no log-prob of the engine (NaN, a ratio of 1 in TRL); they "
        "are left out of every number."
    )


def _is_unknown(tensor: Tensor) -> bool:
    """All NaN, or all −1 and padding."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().all())
    return tensor.numel() > 0 and bool((tensor <= 0).all()) and bool((tensor == UNKNOWN).any())
