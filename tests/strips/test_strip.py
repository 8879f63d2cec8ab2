"""A strip at a place is what the trainer's own functions, and the figures, give for the bound there."""

import itertools
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from app_runs import last_batch
from ratio_batches import of_log_ratios

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, evaluate
from rlcorr.bounds import BoundId, Side, at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures.cells import binned
from rlcorr.figures.fates import token_fates
from rlcorr.figures.histograms import BINS, statistic_histogram, weight_histogram
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.strips.strip import strip, token_cells

TRIED = 4
"""Places of a slider; at every second of them the figures, which take ten times as long, are compared too."""


def bounds(config: CorrectionConfig) -> Iterator[tuple[int | None, Side, tuple[float, ...]]]:
    """Whose bound, which side of it, and the places of its slider, which reach from next to nothing to nearly all."""
    if config.rollout_is is not None:
        yield None, "upper", slider_scale(1 + 1e-5, 21.0, of_ratio=True)
        if config.rollout_is_threshold_lower is not None:
            yield None, "lower", slider_scale(1 - 1e-5, 0.05, of_ratio=True)
    for number, rule in enumerate(config.rollout_rs):
        of_ratio = rule.divergence in ("k1", "mult_error")
        ends = (1 + 1e-5, 21.0) if of_ratio else (1e-6, 5.0)
        if rule.upper != float("inf"):
            yield number, "upper", slider_scale(*ends, of_ratio=of_ratio)
        if rule.lower is not None:
            below = (1 - 1e-5, 1 / 21) if of_ratio else (-1e-6, -5.0)
            yield number, "lower", slider_scale(*below, of_ratio=of_ratio)


def allowed_from(config: CorrectionConfig, rule: int | None, side: Side, places: tuple[float, ...]) -> tuple:
    """The places that the configuration allows: an upper bound below the lower one is refused."""

    def refused(place: float) -> bool:
        try:
            at_threshold(config, place, BoundId(rule, side))
        except UsageError:
            return True
        return False

    return tuple(place for place in places if not refused(place))


def presets_with_every_kind_of_bound() -> list[str]:
    """Return presets that together have every bound that any preset has: of each weighting and rule, on each side."""
    names, seen = [], set()
    for name, entry in PRESETS.items():
        config = entry.config
        weighting = (config.rollout_is, config.rollout_is_mode, config.rollout_is_batch_normalize)
        kinds = {(weighting if n is None else config.rollout_rs[n].name, side) for n, side, _ in bounds(config)}
        if kinds - seen:
            names.append(name)
            seen |= kinds
    return names


def test_every_place_is_what_the_trainer_computes() -> None:
    """On answers of up to four tokens, and of up to 73, in turn."""
    batches = itertools.cycle(last_batch(run).rows(slice(0, 40)) for run in ("stale_4", "kv_fp8_e5m2"))
    for name in presets_with_every_kind_of_bound():
        for rule, side, places in bounds(PRESETS[name].config):
            check(next(batches), PRESETS[name].config, rule, side, places, name)


def check(
    batch: TokenBatch, config: CorrectionConfig, rule: int | None, side: Side, places: tuple[float, ...], name: str
) -> None:
    places = allowed_from(config, rule, side, places)
    made = strip(batch, config, places, BoundId(rule, side))
    of_tokens = token_cells(batch, config, places, BoundId(rule, side))
    for tried, k in enumerate(np.linspace(0, len(places) - 1, TRIED).round().astype(int).tolist()):
        case = (name, rule, side, places[k])
        moved = at_threshold(config, places[k], BoundId(rule, side))
        result, metrics = evaluate(batch, moved)
        for key, values in made.numbers.items():
            want = pytest.approx(metrics[PREFIX + key], rel=1e-6, abs=1e-6, nan_ok=True)
            assert float(values[k]) == want, (case, key)
        fates = token_fates(batch, result, moved)
        assert np.array_equal(made.cells.at(k), binned(fates)), case
        assert np.array_equal(of_tokens.at(k), fates), case
        if tried % 2:
            continue
        weights = weight_histogram(batch, result, moved)
        same_bars(made.weights.counts["kept"][k], trace(weights, "kept"), case)
        same_bars(made.weights.counts["rejected"][k], trace(weights, "rejected"), case)
        assert made.weights.marks[k] == shapes(weights), case
        assert 1.02 * made.weights.high == pytest.approx(weights.to_dict()["layout"]["xaxis"]["range"][1]), case
        if made.statistic is not None:
            assert rule is not None
            bars = statistic_histogram(batch, result, moved.rollout_rs[rule])
            same_bars(made.statistic.counts["inside"][k], trace(bars, "inside"), case)
            same_bars(made.statistic.counts["outside"][k], trace(bars, "outside"), case)
            assert made.statistic.marks[k] == shapes(bars), case


def trace(figure, name: str) -> np.ndarray:
    (y,) = [trace.y for trace in figure.data if trace.name == name]
    return np.asarray(y)


def shapes(figure) -> list[dict]:
    return figure.to_dict()["layout"].get("shapes", [])


def same_bars(moving: np.ndarray, drawn: np.ndarray, case: object) -> None:
    """Both count all items; one that lies within rounding of an edge may be on its other side."""
    assert len(moving) == len(drawn) == BINS, case
    assert moving.sum() == drawn.sum(), case
    assert np.abs(np.cumsum(moving - drawn.astype(np.int64))).max() <= 2, case


def rule_of(name: str, **given: float) -> RejectionRule:
    return RejectionRule.named(name, **given)


TRIED_BOTH = {
    "truncated": CorrectionConfig(rollout_is="token", rollout_is_threshold_lower=0.5),
    "masked": CorrectionConfig(rollout_is="token", rollout_is_threshold_lower=0.5, rollout_is_mode="mask"),
    "sequences": CorrectionConfig(rollout_is="sequence", rollout_is_threshold_lower=0.5),
    "prefix": CorrectionConfig(rollout_is="prefix", rollout_is_threshold_lower=0.5),
    "normalised": CorrectionConfig(
        rollout_is="token", rollout_is_batch_normalize=True, rollout_rs=(rule_of("token_k1", upper=1.5),)
    ),
    "normalised sequences": CorrectionConfig(
        rollout_is="sequence", rollout_is_batch_normalize=True, rollout_rs=(rule_of("seq_mean_k1", upper=1.5),)
    ),
    "normalised and masked": CorrectionConfig(
        rollout_is="geometric", rollout_is_mode="mask", rollout_is_batch_normalize=True,
        rollout_rs=(rule_of("seq_max_k1", upper=1.5),),
    ),
    "rule beside a rule": CorrectionConfig(
        rollout_rs=(rule_of("seq_mean_k1", lower=0.9, upper=1.1), rule_of("token_k1_negative", lower=0.8))
    ),
}  # fmt: skip


def test_other_kinds_of_corrections_and_both_sides_at_once() -> None:
    """Weights and every rule, on a side that they have."""
    batch, places = last_batch("stale_4").rows(slice(0, 40)), slider_scale(1 + 1e-4, 21.0, of_ratio=True, count=60)
    for (name, config), side in itertools.product(TRIED_BOTH.items(), get_args(Side)):
        for rule in ([None] if config.rollout_is else []) + list(range(len(config.rollout_rs))):
            lower = config.rollout_is_threshold_lower if rule is None else config.rollout_rs[rule].lower
            if side != "lower" or lower is not None:
                check(batch, config, rule, side, tuple(1 / p for p in places) if side == "lower" else places, name)


def test_a_bound_belongs_to_the_inside_and_nan_does_not() -> None:
    """By hand: ratios 1.5, 2 and NaN under a rule with upper bounds 1.2, 1.5, 2 and 3."""
    batch = nan_batch()
    config = CorrectionConfig(rollout_rs=(rule_of("token_k1", upper=2.0),))
    made = strip(batch, config, (1.2, 1.5, 2.0, 3.0), BoundId(None, "upper"))
    assert made.numbers["kept_fraction"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3])
    assert [made.cells.at(k).tolist() for k in range(4)] == [[[4, 4, 4]], [[1, 4, 4]], [[1, 1, 4]], [[1, 1, 4]]]
    assert made.statistic is not None
    assert made.statistic.counts["outside"].sum(1).tolist() == [3, 2, 1, 1]


def test_a_nan_weight_is_on_no_side_and_masked() -> None:
    """The same ratios as masked weights: 0, 1.5, then 1.5 + 2, over three kept tokens."""
    config = CorrectionConfig(rollout_is="token", rollout_is_mode="mask")
    made = strip(nan_batch(), config, (1.2, 1.5, 2.0), BoundId(None, "upper"))
    assert made.numbers["trained_is_mean"].tolist() == pytest.approx([0, 0.5, 3.5 / 3])
    assert made.numbers["rollout_is_oob_ratio"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert made.cells.at(0).tolist() == [[3, 3, 1]]
    notes = [marks[-1]["label"]["text"] for marks in made.weights.marks]
    assert notes == [f"{count} tokens have weight 0" for count in (3, 2, 1)]


def nan_batch() -> TokenBatch:
    """One sequence; float64, so that a ratio lies exactly on the bound of its own value."""
    return of_log_ratios(torch.tensor([[1.5, 2.0, torch.nan]], dtype=torch.float64).log())
