"""Figures against numbers counted by hand or with plain loops."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from app_runs import make_record
from figure_parts import SMALL, batch_of, trace

from rlcorr import TokenBatch
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.segments import by_lag
from rlcorr.figures import mismatch as plots
from rlcorr.figures.canvas import COOL, WARM
from rlcorr.figures.mismatch import lag_bars


def finite(values: Any) -> list[float]:
    return [v for v in np.asarray(values, float).tolist() if math.isfinite(v)]


# --- over the two probabilities ---


def test_the_cap_is_a_dashed_ray_and_the_strip_two_solid_lines() -> None:
    figure: Any = plots.acceptance(SMALL, TOKEN_METHODS)
    tis, dppo = trace(figure, "TIS"), trace(figure, "DPPO")
    assert (tis.line.dash, dppo.line.dash) == ("dash", "solid")
    drawn = ~np.isnan(tis.y)
    assert tis.y[drawn] == pytest.approx(2 * tis.x[drawn], rel=1e-5)
    assert tis.x[drawn].max() == pytest.approx(0.5, abs=0.02)
    drawn = ~np.isnan(dppo.y)
    assert np.abs(dppo.y - dppo.x)[drawn] == pytest.approx(0.2, abs=1e-5)
    middle = len(dppo.x) // 2
    assert np.isnan(dppo.x[middle])  # a gap between the lower and the upper line
    assert (dppo.y < dppo.x)[:middle][drawn[:middle]].all()
    assert (dppo.y > dppo.x)[middle + 1 :][drawn[middle + 1 :]].all()


def test_methods_beyond_the_magnified_axis_are_named() -> None:
    """The largest |log r| is 0.02, so the axis ends at 0.022. TIS stands at log 2 = 0.69, k3 at −0.145 and 0.138, and
    DPPO comes no nearer than log 0.8 = −0.22. KPop's lines meet ratio 1 where both probabilities are 1."""
    batch = batch_of([[0.0, 0.02, -0.01]])
    methods = {name: TOKEN_METHODS[name] for name in ("TIS", "DPPO", "k3")}
    figure: Any = plots.acceptance(batch, methods, magnified=True)
    assert [note.text for note in figure.layout.annotations] == ["outside this axis: TIS, DPPO, k3"]
    wide: Any = plots.acceptance(SMALL, methods, magnified=True)
    assert not wide.layout.annotations


# --- the tail ---


def test_the_tail_counts_tokens_with_at_least_that_size() -> None:
    """SMALL: 0, 0.1, −0.2, 1, −1, 0, 0.3."""
    figure: Any = plots.tail(SMALL)
    expected = {
        "all": [(1.0, 1), (1.0, 2), (0.3, 3), (0.2, 4), (0.1, 5)],
        "r > 1": [(1.0, 1), (0.3, 2), (0.1, 3)],
        "r < 1": [(1.0, 1), (0.2, 2)],
    }
    for name, points in expected.items():
        line = trace(figure, name)
        assert list(zip(line.x.tolist(), line.y.tolist(), strict=True)) == [
            (pytest.approx(size, abs=1e-5), count) for size, count in points
        ]


# --- where ---


def test_positions_have_their_mean_and_their_quantiles() -> None:
    g = torch.Generator().manual_seed(0)
    d, mask = torch.randn(40, 7, generator=g), torch.rand(40, 7, generator=g) < 0.8
    mask[4:, 6] = False  # four tokens at most: too few to show
    rollout = torch.full_like(d, -5.0)
    batch = TokenBatch.from_log_probs(rollout + d, rollout, mask)
    figure: Any = plots.by_position(batch)
    mean, median, band = (trace(figure, name) for name in ("mean", "median", "5 to 95 %"))
    assert list(mean.x) == [1, 2, 3, 4, 5, 6]
    for t in range(6):
        column = ((rollout + d) - rollout).double().numpy()[:, t][mask[:, t].numpy()]
        assert mean.y[t] == pytest.approx(column.mean())
        assert median.y[t] == pytest.approx(np.median(column))
        assert (band.y[t], band.y[-1 - t]) == pytest.approx(tuple(np.quantile(column, (0.95, 0.05))))
        assert mean.customdata[t] == len(column)


def with_ids(log_ratios: list[list[float]], ids: list[list[int]]) -> TokenBatch:
    return batch_of([list(row) for row in log_ratios]).replace(response_ids=torch.tensor(ids))


TOKENS = with_ids(
    [[0.1, 0.1, 0.1, 0.1, 0.1, 2.0], [-0.3, -0.3, 0.1, -0.3, -0.3, -0.3]], [[7, 7, 7, 7, 7, 9], [5, 5, 5, 5, 5, 8]]
)


def test_tokens_by_their_mean_need_five_of_a_kind() -> None:
    """Ids 8 and 9 occur once. Mean |d| of id 7: 0.5/5; of id 5: 1.3/5, and its mean d −1.1/5. Labels are text."""
    figure: Any = plots.by_token(TOKENS, {7: "<i>"})
    bars = trace(figure, "tokens")
    assert bars.x.tolist() == pytest.approx([0.1, 0.26], rel=1e-4)
    assert list(bars.marker.color) == [WARM, COOL]
    assert bars.customdata[1] == pytest.approx([5, 5, 0.26, -0.22], abs=1e-5)
    assert list(figure.layout.yaxis.ticktext) == ["&lt;i&gt;", "id 5"]


def test_characters_are_known_where_every_response_agrees() -> None:
    record = make_record(0, sequences=3)
    ids = [[4, 5, 4, 2], [5, 5, 2], [4, 9]]
    mask = torch.tensor([[t < len(row) for t in range(4)] for row in ids])
    padded = torch.tensor([row + [0] * (4 - len(row)) for row in ids])
    batch = TokenBatch.from_log_probs(torch.zeros(3, 4) - 1, torch.zeros(3, 4) - 1, mask).replace(response_ids=padded)
    labelled = replace(record, batch=batch, responses=["aba", "bb", "a\n"])
    assert plots.token_labels(labelled) == {4: "'a'", 5: "'b'", 9: "'\\n'", 2: "⏎"}
    assert plots.token_labels(replace(labelled, responses=["aba", "bb", "bx"])) == {}  # id 4 would be two characters
    assert plots.token_labels(replace(labelled, responses=["aba", "b", "a\n"])) == {}  # two tokens without text
    assert plots.token_labels(replace(labelled, batch=batch.replace(response_ids=None))) == {}


# --- by sequence ---


def test_sequences_over_their_length() -> None:
    """SMALL: two rows, of 3 tokens with Σ −0.1 and of 4 with Σ 0.3. σ is that of its seven tokens."""
    figure: Any = plots.by_length(SMALL, SEQUENCE_METHODS)
    points = trace(figure, "sequences")
    assert points.x.tolist() == [3, 4]
    assert points.y.tolist() == pytest.approx([-0.1, 0.3], abs=1e-5)
    cone = trace(figure, "noise, 2σ√T")
    sigma = np.std([0, 0.1, -0.2, 1, -1, 0, 0.3])
    assert cone.x.tolist()[:4] == [1, 2, 3, 4]
    assert cone.y.tolist()[:4] == pytest.approx([-2 * sigma * math.sqrt(t) for t in (1, 2, 3, 4)], rel=1e-4)
    assert cone.y.tolist()[5:] == pytest.approx([2 * sigma * math.sqrt(t) for t in (1, 2, 3, 4)], rel=1e-4)
    product, geometric = trace(figure, "product"), trace(figure, "geometric mean")
    assert finite(product.y) == pytest.approx([math.log(0.5)] * 4 + [math.log(2)] * 4)
    assert finite(geometric.y)[4:] == pytest.approx([-t * math.log(0.999) for t in (1, 2, 3, 4)], rel=1e-4)


# --- all of them ---


def all_figures(batch: TokenBatch) -> list[Any]:
    return [
        plots.acceptance(batch, TOKEN_METHODS),
        plots.acceptance(batch, TOKEN_METHODS, magnified=True),
        plots.tail(batch),
        plots.by_position(batch),
        plots.by_token(batch, {}),
        plots.by_length(batch, SEQUENCE_METHODS),
        lag_bars(by_lag(batch, 3)),
    ]


@pytest.mark.parametrize(("rows", "width"), [(0, 0), (2, 0), (3, 5)])
@pytest.mark.parametrize("fill", [0.0, math.nan, -math.inf])
def test_empty_and_broken_batches_still_draw(rows: int, width: int, fill: float) -> None:
    zeros = torch.zeros(rows, width)
    batch = TokenBatch(zeros == 0, zeros, zeros + fill)  # not from_log_probs, which refuses NaN
    batch = batch.replace(response_ids=torch.zeros(rows, width, dtype=torch.int64), policy_versions=torch.zeros(rows))
    for figure in all_figures(batch):
        assert json.loads(figure.to_json())["data"]
