"""Which tokens two corrections train on, at a place of either slider, is what both say of the bound there."""

import numpy as np
import torch
from app_runs import last_batch
from ratio_batches import of_log_ratios

from rlcorr import PRESETS, CorrectionConfig, TokenBatch, correct, preset
from rlcorr.analysis.comparison import SHARED, agreement
from rlcorr.bounds import BoundId, Side, at_threshold
from rlcorr.figures.cells import binned
from rlcorr.strips.agreement import agreement_strip

RATIOS = tuple(np.geomspace(1.0001, 20, 60).tolist())
SIZES = tuple(np.geomspace(1e-6, 5, 60).tolist())


def places_of(config: CorrectionConfig) -> tuple[int | None, Side, tuple[float, ...]]:
    """Of the first rule, else of the weights."""
    if not config.rollout_rs:
        lower = config.rollout_is_threshold_lower
        return None, "upper" if lower is None or lower < 1 else "band", RATIOS
    is_ratio = config.rollout_rs[0].divergence in ("k1", "mult_error")
    return 0, "upper", RATIOS if is_ratio else SIZES


def codes_of(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> np.ndarray:
    """By hand: a code for each token, from the masks and the weights."""
    by_a, by_b = (r.keep_mask & (r.weights > 0) for r in (correct(batch, a), correct(batch, b)))
    codes = np.where(by_a, np.where(by_b, 1, 3), np.where(by_b, 4, 2))
    return np.where(batch.response_mask, codes, 0).astype(np.uint8)


BOUNDED = [n for n, p in PRESETS.items() if p.config.rollout_is or any(r.upper < np.inf for r in p.config.rollout_rs)]


def test_every_place_is_what_both_corrections_say() -> None:
    for name in BOUNDED:
        for varied_is_a in (True, False):
            assert_places_are_what_both_corrections_say(name, varied_is_a)


def assert_places_are_what_both_corrections_say(name: str, varied_is_a: bool) -> None:
    batch, config, other = last_batch("stale_4"), preset(name), preset("decoupled_token_icepop")
    rule, side, places = places_of(config)
    if rule is not None and not config.rollout_rs[0].upper < np.inf:
        return  # it has a lower bound alone
    lower = config.rollout_rs[0].lower if rule is not None else config.rollout_is_threshold_lower
    places = tuple(place for place in places if lower is None or place > lower)
    bound, still = BoundId(rule, side), correct(batch, other)
    made = agreement_strip(batch, config, still, places, varied_is_a=varied_is_a, bound=bound)
    for k in range(0, len(places), 6):
        moved = at_threshold(config, places[k], bound)
        a, b = (moved, other) if varied_is_a else (other, moved)
        case = (name, varied_is_a, places[k])
        assert made.agreements[k] == agreement(batch, correct(batch, a), correct(batch, b)), case
        assert np.array_equal(made.cells.at(k), binned(codes_of(batch, a, b))), case


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
