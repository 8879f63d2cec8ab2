"""Correction with a rejection budget: every batch keeps the same share of its tokens. Only arms of the study use it.

The bound of a rule is solved for on each batch. For comparison, rejection at random keeps as many tokens.
"""

import math
from dataclasses import replace

import torch

from rlcorr.analysis.budget import with_budget
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.train.config.learning import BudgetConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.types import CorrectionResult, TokenBatch


def correct_within_budget(
    batch: TokenBatch, config: TrainConfig, step: int
) -> tuple[CorrectionResult, CorrectionConfig]:
    """Correct a batch by the configuration's correction and its budget; `budget.rule` must be set.

    Returns:
        The result, and the correction that was used: it has the budget's rule with this batch's bound, unless the
        budget rejects at random.
    """
    correction, budget = config.correction, config.budget
    if budget.at_random:
        rng = torch.Generator().manual_seed((config.seed << 20) + step)
        return reject_at_random(correct(batch, correction), batch, budget, rng), correction
    on_cpu = TokenBatch(**{name: tensor.cpu() for name, tensor in batch.tensors().items()})
    correction = with_budget(on_cpu, correction, budget.rule, budget.keep)
    return correct(batch, correction), correction


def reject_at_random(
    result: CorrectionResult, batch: TokenBatch, budget: BudgetConfig, rng: torch.Generator
) -> CorrectionResult:
    """Keep at random at least the share `budget.keep` of the response tokens (B, T).

    random_token rejects single tokens, random_sequence whole sequences, and random_negative the tokens with A < 0 of
    some sequences. Sequences are rejected in a random order, as long as enough tokens are kept.
    """
    mask, needed = batch.response_mask, math.ceil(budget.keep * float(batch.response_mask.sum()))
    if budget.rule == "random_token":
        keep = torch.zeros_like(mask)
        positions = mask.nonzero()
        order = torch.randperm(len(positions), generator=rng)[:needed].to(mask.device)
        keep[tuple(positions[order].T)] = True
    else:
        may_go = mask
        if budget.rule == "random_negative":
            assert batch.advantages is not None
            may_go = mask & (batch.advantages < 0)
        order = torch.randperm(len(mask), generator=rng).flip(0).to(mask.device)
        left = mask.sum() - may_go.sum(-1)[order].cumsum(0)  # tokens left after each sequence that goes
        gone = order[left >= needed]
        keep = mask.clone()
        keep[gone] &= ~may_go[gone]
    return replace(result, keep_mask=result.keep_mask & keep)
