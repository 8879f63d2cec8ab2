"""Which tokens two corrections train on, at a place of either slider, is what both say of the bound there."""

import numpy as np
import pytest
import torch
from app_runs import last_batch
from ratio_batches import of_log_ratios

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.analysis.comparison import SHARED, agreement
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.figures.cells import binned
from rlcorr.strips.agreement import agreement_strip


def codes_of(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> np.ndarray:
    """By hand: a code for each token, from the masks and the weights."""
    by_a, by_b = (r.keep_mask & (r.weights > 0) for r in (correct(batch, a), correct(batch, b)))
    codes = np.where(by_a, np.where(by_b, 1, 3), np.where(by_b, 4, 2))
    return np.where(batch.response_mask, codes, 0).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "bound", "ends"),
    [
        ("decoupled_token_is", BoundId(None, "upper"), (1.0001, 20)),
        ("decoupled_token_icepop", BoundId(None, "band"), (1.0001, 20)),
        ("decoupled_seq_is_rs", BoundId(0, "upper"), (1.0001, 20)),
        ("decoupled_k3_rs_token_tis", BoundId(0, "upper"), (1e-6, 5)),
    ],
)
def test_every_place_is_what_both_corrections_say(name: str, bound: BoundId, ends: tuple[float, float]) -> None:
    batch, config, other = last_batch("stale_4"), preset(name), preset("decoupled_geo_rs")
    places, still = tuple(np.geomspace(*ends, 30).tolist()), correct(batch, other)
    for varied_is_a in (True, False):
        made = agreement_strip(batch, config, still, places, varied_is_a=varied_is_a, bound=bound)
        for k in range(0, len(places), 6):
            moved = at_threshold(config, places[k], bound)
            a, b = (moved, other) if varied_is_a else (other, moved)
            assert made.agreements[k] == agreement(batch, correct(batch, a), correct(batch, b)), places[k]
            assert np.array_equal(made.cells.at(k), binned(codes_of(batch, a, b))), places[k]


def test_a_cell_of_several_tokens_shows_the_difference() -> None:
    """Ratios 2, 1.2 and 9 among those of 1 in one answer of 300 tokens, of which always two share a cell."""
    ratios = torch.ones(1, 300)
    ratios[0, 1], ratios[0, 2], ratios[0, 299] = 2.0, 1.2, 9.0
    batch = of_log_ratios(ratios.log())
    config = preset("decoupled_token_icepop")
    still = correct(batch, at_threshold(config, 1.5, BoundId(None, "upper")))
    made = agreement_strip(batch, config, still, (1.1, 1.3, 3.0), varied_is_a=True, bound=BoundId(None, "upper"))
    both, neither, only_a, only_b = range(1, len(SHARED))
    # (1, 2), (1.2, 1), …, (1, 9)
    first, second, last = ([made.cells.at(k)[0, cell] for k in range(3)] for cell in (0, 1, 149))
    assert first == [neither, neither, only_a]
    assert second == [only_b, both, both]
    assert last == [neither] * 3
