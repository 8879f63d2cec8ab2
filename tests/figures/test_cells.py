"""Against numbers counted by hand or with plain numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from figure_parts import SMALL, trace
from two_corrections import BATCH, ICEPOP, LOG_RATIO, MASK, OLD, ROWS, RULE, counted

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.analysis import comparison
from rlcorr.figures import cells
from rlcorr.figures import comparison as figures
from rlcorr.figures.comparison import mask_map
from rlcorr.types import CorrectionResult


def test_density_counts_every_token_and_knows_its_side() -> None:
    heat = trace(cells.probability_density(SMALL), "tokens")
    assert heat.customdata.sum() == 7
    row, column = np.argwhere(heat.z == np.nanmin(heat.z))[0]
    assert heat.y[row] < heat.x[column]  # cool cells lie below the diagonal
    assert trace(cells.ratio_density(SMALL), "tokens").customdata.sum() == 7


def test_a_map_says_what_its_own_codes_mean() -> None:
    """Its CSV once had the names of another map: Compare's "both" was called kept, and its "only A" above threshold."""
    codes = np.array([[0, 1, 2]], np.uint8)
    assert trace(cells.token_map("m", codes, ("left", "right"), ("red", "blue"), ()), "m").meta == {
        "z": "0 padding, 1 left, 2 right"
    }
    a, b = CorrectionConfig(), preset("decoupled_geo_rs")
    shared = trace(mask_map(SMALL, correct(SMALL, a), correct(SMALL, b), (a, b)), "shared")
    assert shared.meta == {"z": "0 padding, 1 both, 2 neither, 3 only A, 4 only B"}


# --- two corrections, or two batches ---


def results(a: CorrectionConfig, b: CorrectionConfig) -> tuple[CorrectionResult, CorrectionResult]:
    return correct(BATCH, a), correct(BATCH, b)


def test_the_map_shows_a_difference_where_tokens_share_a_cell() -> None:
    cells = trace(figures.mask_map(BATCH, *results(ICEPOP, RULE), (ICEPOP, RULE)), "shared").z
    assert {name: int((cells == code).sum()) for code, name in enumerate(comparison.SHARED)} == counted(ICEPOP, RULE)
    wide = TokenBatch.from_log_probs(torch.full((1, 600), -1.0), torch.full((1, 600), -1.0), torch.ones(1, 600))
    keep = torch.ones(1, 600, dtype=torch.bool)
    keep[0, 4] = False
    all_kept = correct(wide, CorrectionConfig())
    one_less = replace(all_kept, keep_mask=keep)
    cells = trace(figures.mask_map(wide, one_less, all_kept, (RULE, RULE)), "shared").z  # three tokens per cell
    assert np.argwhere(cells == comparison.SHARED.index("only B")).tolist() == [[0, 1]]
    assert (cells == comparison.SHARED.index("both")).sum() == 199


def test_tails_are_shares_of_each_batch() -> None:
    """Tokens without a difference have no place on a logarithmic axis, and count in the share all the same."""
    equal = BATCH.replace(old_log_probs=torch.where(torch.arange(ROWS)[:, None] < 9, BATCH.rollout_log_probs, OLD))
    figure = figures.tails(BATCH, equal)
    for name, first in (("A", 0), ("B", 9)):
        sizes = np.abs(np.where(np.arange(ROWS)[:, None] < first, 0, LOG_RATIO)[MASK])
        drawn = trace(figure, name)
        for x, y in zip(drawn.x, drawn.y, strict=True):
            assert y == pytest.approx((sizes >= x * (1 - 1e-9)).mean(), abs=1e-9)
    assert trace(figure, "A").x.max() == pytest.approx(np.abs(LOG_RATIO).max(), rel=1e-6)
