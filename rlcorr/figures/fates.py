"""What a correction does to each token: its fate, and the strength of its colour."""

import math

import numpy as np
import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.figures.axes import span_of
from rlcorr.figures.canvas import COOL, KEPT, REJECTED, WARM, Figure
from rlcorr.figures.cells import token_map
from rlcorr.types import CorrectionResult, TokenBatch

FATES = ("padding", "kept", "below threshold", "above threshold", "rejected")
"""Ordered by severity. If several tokens share a cell, it shows the most severe one."""


def token_fates(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> np.ndarray:
    """Return what happens to each token, (B, T) uint8: an index into FATES."""
    mask = batch.response_mask
    fates = mask.to(torch.uint8)
    if config.weights is not None:
        below, above = config.weights.outside(config.weights.raw(result.log_ratio, mask))
        fates = fates.masked_fill(mask & below, 2).masked_fill(mask & above, 3)
    return fates.masked_fill(mask & ~result.keep_mask, 4).cpu().numpy()


def fate_mask(fates: np.ndarray, config: CorrectionConfig) -> Figure:
    """Draw the fate of every token: rows are sequences, columns are tokens, padding is blank.

    In large batches a cell shows the most severe fate of its tokens. The legend has the fates that are possible under
    `config`.
    """
    weights = config.weights
    is_possible = (
        True,
        weights is not None and weights.lower is not None,
        weights is not None and math.isfinite(weights.upper),
        bool(config.rollout_rs),
    )
    possible = [fate for fate, may_be in zip(FATES[1:], is_possible, strict=True) if may_be]
    return token_map("fate", fates, FATES[1:], (KEPT, COOL, WARM, REJECTED), possible)


def shades(batch: TokenBatch, result: CorrectionResult) -> tuple[Tensor, float]:
    """Return the colour strength of each token, (B, T) in −1 … 1, and the span: the |log r| that has full colour.

    A strength has the sign of log r and the size √(|log r|/span). The root makes ratios near 1 visible, and most ratios
    are near 1. NaN has full colour.
    """
    d = result.log_ratio
    span = span_of(d[batch.response_mask].double().cpu().numpy().astype(np.float64))
    share = (d.nan_to_num(torch.inf) / span).clamp(-1, 1)
    return share.sign() * share.abs().sqrt(), span
