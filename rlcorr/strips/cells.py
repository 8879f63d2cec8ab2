"""The cells of the fate mask at every place of a slider: what they show, and until which place."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from rlcorr.config import CorrectionConfig
from rlcorr.figures.cells import binned
from rlcorr.figures.correction import FATES
from rlcorr.strips.entries import Entries
from rlcorr.types import TokenBatch

BELOW, ABOVE, REJECTED = (FATES.index(fate) for fate in ("below bound", "above bound", "rejected"))


@dataclass(frozen=True)
class Cells:
    """(H, W): at place k a cell shows the largest of `base`, of the codes whose `until` is above k, and of those whose
    `since` is not."""

    base: np.ndarray
    """uint8, what shows whatever moves; of a fate mask an index into FATES."""
    until: dict[int, np.ndarray]
    """uint16, by code: the first place at which it no longer shows, 0 where it never does."""
    since: dict[int, np.ndarray] = field(default_factory=dict)
    """uint16, by code: the first place at which it shows, the number of places where it never does."""

    def at(self, place: int) -> np.ndarray:
        """The codes that the figure draws there, (H, W) uint8."""
        codes = self.base
        for code, until in self.until.items():
            codes = np.where(until > place, np.maximum(codes, np.uint8(code)), codes)
        for code, since in self.since.items():
            codes = np.where(since <= place, np.maximum(codes, np.uint8(code)), codes)
        return codes

    def arrays(self) -> dict[str, np.ndarray]:
        """By their names in a package."""
        until = {f"cells/until/{code}": places for code, places in self.until.items()}
        return {"cells/base": self.base, **until, **{f"cells/since/{code}": p for code, p in self.since.items()}}


def fate_cells(
    batch: TokenBatch,
    correction: CorrectionConfig,
    of: Entries,
    rule: int | None,
    shared: Callable[[np.ndarray], np.ndarray] = binned,
) -> Cells:
    """As many cells as the figure has: neighbours share one, and it shows the most severe of their fates. `shared` says
    which cells do, and takes the largest number of each."""
    mask = batch.response_mask
    moving = {REJECTED} if rule is not None else {ABOVE, BELOW}
    firsts = {REJECTED: of.kept}
    if correction.rollout_is is not None:
        firsts |= {ABOVE: of.not_above, BELOW: of.not_below}
    base = mask.to(torch.uint8)
    for fate in sorted(firsts):
        if fate not in moving:
            base = torch.where(mask & (firsts[fate] > 0), fate, base).to(torch.uint8)
    cells = shared(base.numpy())
    until = {}
    for fate in sorted(moving & set(firsts)):
        first = shared(torch.where(mask, firsts[fate], 0).numpy().astype(np.uint16))
        first = np.where(cells >= fate, np.uint16(0), first)
        if first.any():
            until[fate] = first
    return Cells(cells, until)
