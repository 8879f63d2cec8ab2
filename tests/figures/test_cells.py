"""Against numbers counted by hand or with plain numpy."""

import numpy as np
from figure_parts import SMALL, trace

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.figures import cells
from rlcorr.figures.comparison import mask_map


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
