"""Rejection that looks at nothing: what a rule that keeps as many tokens has to be compared with."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.train.config.budget import BudgetConfig
from rlcorr.types import CorrectionResult, TokenBatch


def reject_at_random(
    result: CorrectionResult, batch: TokenBatch, budget: BudgetConfig, chance: torch.Generator
) -> CorrectionResult:
    """Keep a random `budget.keep` of the response tokens (B, T), at least: single tokens, whole sequences, or all but
    the tokens with A < 0 of some sequences. Sequences go in a random order, as long as enough is kept."""
    mask, needed = batch.response_mask, math.ceil(budget.keep * float(batch.response_mask.sum()))
    if budget.rule == "random_token":
        keep = torch.zeros_like(mask)
        places = mask.nonzero()
        order = torch.randperm(len(places), generator=chance)[:needed].to(mask.device)
        keep[tuple(places[order].T)] = True
    else:
        may_go = mask & _negative(batch) if budget.rule == "random_negative" else mask
        order = torch.randperm(len(mask), generator=chance).flip(0).to(mask.device)
        left = mask.sum() - may_go.sum(-1)[order].cumsum(0)
        gone = order[left >= needed]
        keep = mask.clone()
        keep[gone] &= ~may_go[gone]
    return replace(result, keep_mask=result.keep_mask & keep, only_by_rules=False)


def _negative(batch: TokenBatch) -> Tensor:
    if batch.advantages is None:
        raise UsageError("random_negative asks for the sign of the advantage; the batch has no advantages.")
    return batch.advantages < 0
