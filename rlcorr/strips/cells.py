"""The cells of the fate mask at every slider value: what each shows, and until which index."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from rlcorr.analysis.bound_curve import MovingCorrection
from rlcorr.config import CorrectionConfig
from rlcorr.figures.cells import binned
from rlcorr.figures.fates import FATES
from rlcorr.types import TokenBatch

BELOW, ABOVE, REJECTED = (FATES.index(fate) for fate in ("below threshold", "above threshold", "rejected"))


@dataclass(frozen=True)
class Cells:
    """What each cell of a mask, (H, W), shows at every slider value, as a code: an index into the fates or colours.

    At index k of the slider a cell shows the largest of these codes: its `base`, each code whose `until` is above k,
    and each code whose `since` is at most k.
    """

    base: np.ndarray
    """uint8, the code that does not depend on the slider; in a fate mask an index into FATES."""
    until: dict[int, np.ndarray]
    """uint16, by code: the first index at which it no longer shows; 0 if it never shows."""
    since: dict[int, np.ndarray] = field(default_factory=dict)
    """uint16, by code: the first index at which it shows; the number of slider values if it never does."""

    def at(self, index: int) -> np.ndarray:
        """Return the codes that the figure draws at this index, (H, W) uint8."""
        codes = self.base
        for code, until in self.until.items():
            codes = np.where(until > index, np.maximum(codes, np.uint8(code)), codes)
        for code, since in self.since.items():
            codes = np.where(since <= index, np.maximum(codes, np.uint8(code)), codes)
        return codes

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a package."""
        until = {f"cells/until/{code}": first for code, first in self.until.items()}
        return {"cells/base": self.base, **until, **{f"cells/since/{code}": p for code, p in self.since.items()}}


def fate_cells(
    batch: TokenBatch,
    correction: CorrectionConfig,
    moved: MovingCorrection,
    merge_cells: Callable[[np.ndarray], np.ndarray] = binned,
) -> Cells:
    """Compute the cells of the fate mask, as many as the figure has.

    Args:
        merge_cells: puts neighbouring tokens into one cell and takes the largest number of each cell, so that the cell
            shows the most severe fate.
    """
    mask, entries = batch.response_mask, moved.entries
    moving = {REJECTED} if moved.bound.rule_index is not None else {ABOVE, BELOW}
    firsts = {REJECTED: entries.kept}
    if correction.rollout_is is not None:
        firsts |= {ABOVE: entries.not_above, BELOW: entries.not_below}
    base = mask.to(torch.uint8)
    for fate in sorted(firsts):
        if fate not in moving:
            base = torch.where(mask & (firsts[fate] > 0), fate, base).to(torch.uint8)
    cells = merge_cells(base.numpy())
    until = {}
    for fate in sorted(moving & set(firsts)):
        first = merge_cells(torch.where(mask, firsts[fate], 0).numpy().astype(np.uint16))
        first = np.where(cells >= fate, np.uint16(0), first)
        if first.any():
            until[fate] = first
    return Cells(cells, until)
