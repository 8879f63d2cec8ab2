"""A batch whose figures can be counted by hand, and a look at one trace of a figure."""

import math
from typing import Any

import torch

from rlcorr import TokenBatch


def batch_of(log_ratios: list[list[float | None]]) -> TokenBatch:
    """A batch with these log-ratios; None is padding. π_rollout is 0.1 for every token."""
    mask = torch.tensor([[d is not None for d in row] for row in log_ratios])
    d = torch.tensor([[d or 0.0 for d in row] for row in log_ratios])
    rollout = torch.full(d.shape, math.log(0.1))
    return TokenBatch.from_log_probs(rollout + d, rollout, mask)


def trace(figure: Any, name: str) -> Any:
    return next(t for t in figure.data if t.name == name)


SMALL = batch_of([[0.0, 0.1, -0.2, None], [1.0, -1.0, 0.0, 0.3]])
