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

from rlcorr import CorrectionConfig, TokenBatch, preset
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.segments import by_lag
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch as plots
from rlcorr.figures.canvas import COOL, WARM
from rlcorr.figures.mismatch import lag_bars


def names(figure: Any) -> list[str]:
    return [t.name for t in figure.data]


def finite(values: Any) -> list[float]:
    return [v for v in np.asarray(values, float).tolist() if math.isfinite(v)]


# --- over the two probabilities ---


def test_the_tokens_and_a_trace_per_method() -> None:
    figure: Any = plots.acceptance(SMALL, TOKEN_METHODS)
    assert names(figure) == ["tokens", "ratio 1", *TOKEN_METHODS]
    assert trace(figure, "tokens").customdata.sum() == 7
    shown = [t.name for t in figure.data if t.type == "scatter" and t.showlegend is not False]
    assert shown == list(TOKEN_METHODS)


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


def test_a_cap_with_a_rule_is_solid_and_names_are_text() -> None:
    figure: Any = plots.acceptance(SMALL, {"both": preset("xtuner_token_both"), "<b>x</b>": preset("trl_token_mask")})
    assert [line.line.dash for line in figure.data[2:]] == ["solid", "solid"]
    assert names(figure)[2:] == ["both", "&lt;b&gt;x&lt;/b&gt;"]


def test_magnified_the_rays_are_level() -> None:
    figure: Any = plots.acceptance(SMALL, {"IcePop": TOKEN_METHODS["IcePop"]}, magnified=True)
    drawn = finite(trace(figure, "IcePop").y)
    assert sorted({round(v, 5) for v in drawn}) == [round(math.log(0.5), 5), round(math.log(5), 5)]


def test_methods_beyond_the_magnified_axis_are_named() -> None:
    """The largest |log r| is 0.02, so the axis ends at 0.022. TIS stands at log 2 = 0.69, k3 at −0.145 and 0.138, and
    DPPO comes no nearer than log 0.8 = −0.22. KPop's lines meet ratio 1 where both probabilities are 1."""
    batch = batch_of([[0.0, 0.02, -0.01]])
    methods = {name: TOKEN_METHODS[name] for name in ("TIS", "DPPO", "k3")}
    figure: Any = plots.acceptance(batch, methods, magnified=True)
    assert [note.text for note in figure.layout.annotations] == ["outside this axis: TIS, DPPO, k3"]
    wide: Any = plots.acceptance(SMALL, methods, magnified=True)
    assert not wide.layout.annotations


def test_without_methods_it_is_the_picture_of_the_run() -> None:
    figure: Any = plots.acceptance(SMALL, {})
    assert names(figure) == ["tokens", "ratio 1"]
    assert figure.layout.showlegend is False


def test_a_method_over_sequences_is_refused() -> None:
    with pytest.raises(UsageError, match="has no region of tokens"):
        plots.acceptance(SMALL, {"x": preset("decoupled_geo_rs")})


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


def test_a_long_tail_has_few_points_and_all_are_exact() -> None:
    d = torch.linspace(-3, 2, 50_000)
    rollout = torch.full_like(d, -4.0)
    figure: Any = plots.tail(TokenBatch.from_log_probs((rollout + d)[None], rollout[None], torch.ones(1, len(d))))
    line, sizes = trace(figure, "all"), np.abs(((rollout + d) - rollout).numpy())
    assert len(line.x) <= 120
    assert line.y[-1] == (sizes > 0).sum()
    for size, count in list(zip(line.x, line.y, strict=True))[::10]:
        assert (sizes >= size).sum() == count


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


def test_many_positions_share_bins() -> None:
    """250 columns in bins of five: the first stands at the middle of positions 1 to 5."""
    d = torch.arange(250.0).expand(3, 250) / 1000
    rollout = torch.full_like(d, -5.0)
    figure: Any = plots.by_position(TokenBatch.from_log_probs(rollout + d, rollout, torch.ones(3, 250)))
    mean = trace(figure, "mean")
    assert len(mean.x) == 50
    assert (mean.x[0], mean.x[-1]) == (3, 248)
    assert mean.y[1] == pytest.approx(0.007, abs=1e-6)


def with_ids(log_ratios: list[list[float]], ids: list[list[int]]) -> TokenBatch:
    return batch_of([list(row) for row in log_ratios]).replace(response_ids=torch.tensor(ids))


TOKENS = with_ids(
    [[0.1, 0.1, 0.1, 0.1, 0.1, 2.0], [-0.3, -0.3, 0.1, -0.3, -0.3, -0.3]], [[7, 7, 7, 7, 7, 9], [5, 5, 5, 5, 5, 8]]
)


def test_tokens_by_their_share() -> None:
    """Sums: id 9 2.0, id 5 1.3, id 7 0.5, id 8 0.3; all together 4.1. Labels are text."""
    figure: Any = plots.by_token(TOKENS, {7: "'a'", 9: "<i>"})
    bars = trace(figure, "tokens")
    assert bars.x.tolist() == pytest.approx([100 * s / 4.1 for s in (0.3, 0.5, 1.3, 2.0)], rel=1e-4)
    assert list(bars.marker.color) == [COOL, WARM, COOL, WARM]
    assert bars.customdata[2] == pytest.approx([5, 5, 0.26, -0.22], abs=1e-5)
    assert list(figure.layout.yaxis.ticktext) == ["id 8", "&#x27;a&#x27;", "id 5", "&lt;i&gt;"]


def test_tokens_by_their_mean_need_five_of_a_kind() -> None:
    figure: Any = plots.by_token(TOKENS, {}, mean=True)
    bars = trace(figure, "tokens")
    assert bars.x.tolist() == pytest.approx([0.1, 0.26], rel=1e-4)
    assert list(figure.layout.yaxis.ticktext) == ["id 7", "id 5"]


def test_at_most_twenty_tokens() -> None:
    ids = torch.arange(60).view(6, 10)
    batch = batch_of([[0.01 * (i + 1) for i in range(10 * r, 10 * r + 10)] for r in range(6)]).replace(response_ids=ids)
    bars = trace(plots.by_token(batch, {}), "tokens")
    assert bars.customdata[:, 0].tolist() == list(range(40, 60))
    with pytest.raises(UsageError, match="response_ids"):
        plots.by_token(SMALL, {})


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


def test_an_infinite_bound_is_not_drawn() -> None:
    figure: Any = plots.by_length(SMALL, {"cap": preset("decoupled_seq_is")})
    assert finite(trace(figure, "cap").y) == pytest.approx([math.log(2)] * 4)


def test_many_sequences_are_counted_in_cells() -> None:
    d = 0.1 * torch.randn(2500, 3, generator=torch.Generator().manual_seed(0))
    rollout = torch.full_like(d, -5.0)
    figure: Any = plots.by_length(TokenBatch.from_log_probs(rollout + d, rollout, torch.ones(2500, 3)), {})
    cells = trace(figure, "sequences")
    assert cells.type == "heatmap"
    assert cells.customdata.sum() == 2500


# --- all of them ---


def all_figures(batch: TokenBatch) -> list[Any]:
    return [
        plots.acceptance(batch, TOKEN_METHODS),
        plots.acceptance(batch, TOKEN_METHODS, magnified=True),
        plots.tail(batch),
        plots.by_position(batch),
        plots.by_token(batch, {}),
        plots.by_token(batch, {}, mean=True),
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


def test_broken_tokens_are_left_out() -> None:
    broken = SMALL.tensors()["old_log_probs"].clone()
    broken[1, :2] = torch.tensor([math.nan, -math.inf])
    figure: Any = plots.tail(SMALL.replace(old_log_probs=broken))
    assert trace(figure, "all").y[-1] == 3  # 0.1, 0.2 and 0.3
    points = trace(plots.by_length(SMALL.replace(old_log_probs=broken), {}), "sequences")
    assert points.x.tolist() == [3, 2]


def test_a_hundred_thousand_tokens_stay_small() -> None:
    """In characters of JSON: what a browser has to fetch and to read for each picture."""
    batch = make_record(0, sequences=250, width=640).batch
    assert int(batch.response_mask.sum()) > 90_000
    sizes = [len(figure.to_json()) for figure in all_figures(batch)]
    assert max(sizes) < 150_000
    assert max(sizes[2:]) < 30_000


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match="old_log_probs"):
        plots.tail(SMALL.replace(old_log_probs=None))
    with pytest.raises(UsageError, match="old_log_probs"):
        plots.acceptance(SMALL.replace(old_log_probs=None), {"x": CorrectionConfig(rollout_is="token")})
