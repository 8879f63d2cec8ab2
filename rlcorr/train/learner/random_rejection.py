"""Rejection that looks at nothing: what a rule that keeps as many tokens has to be compared with."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.train.config.budget import BudgetConfig
from rlcorr.types import CorrectionResult


def reject_at_random(
    result: CorrectionResult, mask: Tensor, budget: BudgetConfig, chance: torch.Generator
) -> CorrectionResult:
    """Keep a random `budget.keep` of the tokens of `mask` (B, T), at least: single tokens, or whole sequences until
    they have so many tokens."""
    needed = budget.keep * float(mask.sum())
    if budget.rule == "random_token":
        keep = torch.zeros_like(mask)
        places = mask.nonzero()
        order = torch.randperm(len(places), generator=chance)[: math.ceil(needed)].to(mask.device)
        keep[tuple(places[order].T)] = True
    else:
        order = torch.randperm(len(mask), generator=chance).to(mask.device)
        lengths = mask.sum(-1)[order]
        before = lengths.cumsum(0) - lengths
        keep = torch.zeros_like(mask)
        keep[order[before < needed]] = mask[order[before < needed]]
    return replace(result, keep_mask=result.keep_mask & keep, only_by_rules=False)
