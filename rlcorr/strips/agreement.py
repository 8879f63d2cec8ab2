"""Which tokens two corrections train on, at every slider value of a bound of one of them; the other stays fixed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.bound_curve import MovingCorrection, moving_correction, running
from rlcorr.analysis.comparison import SHARED, Agreement, trained_on
from rlcorr.bounds import BAND, BoundId
from rlcorr.config import CorrectionConfig
from rlcorr.figures.cells import binned
from rlcorr.strips.strip import Cells
from rlcorr.types import CorrectionResult, TokenBatch

BOTH, NEITHER = SHARED.index("both"), SHARED.index("neither")


@dataclass(frozen=True)
class AgreementStrip:
    """Entry k of each part is what `agreement` and `figures.comparison.mask_map` give for the bound there."""

    agreements: tuple[Agreement, ...]
    cells: Cells


def agreement_strip(
    batch: TokenBatch,
    varied: CorrectionConfig,
    fixed: CorrectionResult,
    slider_values: Sequence[float],
    *,
    varied_is_a: bool,
    bound: BoundId = BAND,
) -> AgreementStrip:
    """Compute which tokens both, one, or neither correction trains on, while one bound of `varied` moves.

    Raises `UsageError` if `strip` does.
    """
    moved, count = moving_correction(batch, varied, slider_values, bound), len(slider_values)
    first = _trained_from(varied, moved, count)
    by_fixed = batch.response_mask & trained_on(fixed)
    not_by_fixed = batch.response_mask & ~by_fixed
    both = running(first[by_fixed], count).long()
    only_varied = running(first[not_by_fixed], count).long()
    only_fixed = int(by_fixed.sum()) - both
    only_a, only_b = (only_varied, only_fixed) if varied_is_a else (only_fixed, only_varied)
    neither = int(not_by_fixed.sum()) - only_varied
    counts = torch.stack([both, neither, only_a, only_b], 1).tolist()
    cells = _cells(batch.response_mask, by_fixed, first, count, varied_is_a=varied_is_a)
    return AgreementStrip(tuple(Agreement(*row) for row in counts), cells)


def _trained_from(varied: CorrectionConfig, moved: MovingCorrection, never: int) -> Tensor:
    """Return the first index at which each token is kept and has a weight above 0, (B, T)."""
    is_masked = varied.rollout_is is not None and varied.rollout_is_mode == "mask"
    first = torch.maximum(moved.entries.kept, moved.entries.inside) if is_masked else moved.entries.kept
    return torch.where(moved.weights > 0, first, never)


def _cells(mask: Tensor, by_fixed: Tensor, first: Tensor, never: int, *, varied_is_a: bool) -> Cells:
    """Return the cells of the shared mask.

    A token of the fixed correction belongs to it alone until the varied one trains on it too. Any other token belongs
    to neither until then, and to the varied one alone from then on.
    """
    only_varied, only_fixed = (SHARED.index(f"only {name}") for name in ("AB" if varied_is_a else "BA"))
    others = mask & ~by_fixed

    def latest(tokens: Tensor, values: Tensor) -> np.ndarray:
        return binned(torch.where(tokens, values, 0).numpy().astype(np.uint16))

    until = {only_fixed: latest(by_fixed, first), NEITHER: latest(others, first)}
    since = {only_varied: never - latest(others, never - first)}
    return Cells(binned(torch.where(mask, BOTH, 0).numpy().astype(np.uint8)), until, since)
