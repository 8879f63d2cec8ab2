"""Which tokens two corrections train on, at every place of a slider of one of them; the other stands still."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.comparison import SHARED, Agreement, agreement_of, trained_on
from rlcorr.bounds import Side, moved_rule
from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs, require
from rlcorr.figures.cells import binned
from rlcorr.ratios import log_ratio
from rlcorr.strips.cells import Cells
from rlcorr.strips.entries import Entries, entries, opening
from rlcorr.strips.numbers import running, token_weights
from rlcorr.types import CorrectionResult, TokenBatch

BOTH, NEITHER = SHARED.index("both"), SHARED.index("neither")


@dataclass(frozen=True)
class AgreementStrip:
    """Place k of each part is what `agreement` and `figures.comparison.mask_map` give for the bound there."""

    agreements: tuple[Agreement, ...]
    cells: Cells


def agreement_strip(
    batch: TokenBatch,
    moving: CorrectionConfig,
    still: CorrectionResult,
    places: Sequence[float],
    *,
    moving_is_a: bool,
    rule: int | None = None,
    side: Side = "band",
) -> AgreementStrip:
    """Of the bounds of the weights of the moving correction, or of its rule with this index, as in `strip`. Raises
    `UsageError` where `strip` does."""
    require(batch, moving)
    rule = moved_rule(moving, rule)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    of = entries(batch, d, moving, opening(moving, places, rule, side), rule)
    first = _trained_from(token_weights(batch, d, moving, rule), of, moving, len(places))
    by_still = batch.response_mask & trained_on(still)
    only_still = batch.response_mask & ~by_still
    both = running(first[by_still], len(places)).long()
    only_moving = running(first[only_still], len(places)).long()
    one, other = only_moving, int(by_still.sum()) - both
    only_a, only_b = (one, other) if moving_is_a else (other, one)
    neither = int(only_still.sum()) - only_moving
    counts = torch.stack([both, neither, only_a, only_b], 1).tolist()
    cells = _cells(batch.response_mask, by_still, first, len(places), moving_is_a=moving_is_a)
    return AgreementStrip(tuple(agreement_of(*at) for at in counts), cells)


def _trained_from(weights: Tensor, of: Entries, moving: CorrectionConfig, never: int) -> Tensor:
    """(B, T): the first place at which each token is kept and has a weight above 0. `weights` are not yet bounded where
    their own bounds move."""
    is_masked = moving.rollout_is is not None and moving.rollout_is_mode == "mask"
    first = torch.maximum(of.kept, of.inside) if is_masked else of.kept
    return torch.where(weights > 0, first, never)


def _cells(mask: Tensor, by_still: Tensor, first: Tensor, never: int, *, moving_is_a: bool) -> Cells:
    """A token that the correction which stands still trains on is its own until the other takes it too; any other
    token is nobody's until then, and the moving one's from then on."""
    only_moving, only_still = (SHARED.index(f"only {name}") for name in ("AB" if moving_is_a else "BA"))
    others = mask & ~by_still

    def latest(of: Tensor, values: Tensor) -> np.ndarray:
        return binned(torch.where(of, values, 0).numpy().astype(np.uint16))

    until = {only_still: latest(by_still, first), NEITHER: latest(others, first)}
    since = {only_moving: never - latest(others, never - first)}
    return Cells(binned(torch.where(mask, BOTH, 0).numpy().astype(np.uint8)), until, since)
