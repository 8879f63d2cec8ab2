"""Differences of two corrections against loops over tokens and sequences in numpy, in float64."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis import comparison
from rlcorr.errors import UsageError
from rlcorr.figures import comparison as comparison_plots
from rlcorr.gradients import comparison as gradient_comparison
from rlcorr.gradients.bootstrap import resampled
from rlcorr.gradients.sketch import Reference, Sketch
from rlcorr.types import CorrectionResult

ROWS, COLUMNS, DIRECTIONS, BLOCKS = 40, 7, 5, 8
TIS = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.05, rollout_is_threshold_lower=0.6, rollout_is_mode="mask"
)
RULE = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.7, upper=1.4),))


def random_batch() -> TokenBatch:
    """Uneven rows, one of them empty, and NaN on the padding."""
    g = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, COLUMNS + 1, (ROWS,), generator=g)
    lengths[3] = 0
    mask = torch.arange(COLUMNS) < lengths[:, None]
    rollout = -torch.rand(mask.shape, generator=g) - 1.0
    old = rollout + 0.3 * torch.randn(mask.shape, generator=g)
    return TokenBatch(
        response_mask=mask,
        rollout_log_probs=torch.where(mask, rollout, torch.nan),
        old_log_probs=torch.where(mask, old, torch.nan),
        advantages=torch.randn(mask.shape, generator=g),
    )


BATCH = random_batch()
MASK = BATCH.response_mask.numpy()
OLD = BATCH.tensors()["old_log_probs"]
LOG_RATIO = np.where(MASK, OLD.double() - BATCH.rollout_log_probs.double(), 0)


def by_loops(config: CorrectionConfig) -> list[list[float | None]]:
    """The weight that each token is trained with: 0 where it is not, None on padding."""
    found: list[list[float | None]] = []
    for row, real in zip(LOG_RATIO, MASK, strict=True):
        product, weights = math.exp(sum(row)), []
        for d, is_real in zip(row, real, strict=True):
            r = math.exp(d)
            if not is_real:
                weights.append(None)
            elif config is TIS:
                weights.append(min(r, 1.2))
            elif config is ICEPOP:
                weights.append(r if 0.6 <= r <= 1.05 else 0.0)
            else:
                weights.append(1.0 if 0.7 <= product <= 1.4 else 0.0)
        found.append(weights)
    return found


PAIRS = [(TIS, RULE), (ICEPOP, RULE), (RULE, ICEPOP), (TIS, ICEPOP), (RULE, RULE)]


def counted(a: CorrectionConfig, b: CorrectionConfig) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(comparison.SHARED, 0)
    for row_a, row_b in zip(by_loops(a), by_loops(b), strict=True):
        for of_a, of_b in zip(row_a, row_b, strict=True):
            if of_a is None or of_b is None:
                counts["padding"] += 1
            else:
                names = {(True, True): "both", (True, False): "only A", (False, True): "only B"}
                counts[names.get((of_a > 0, of_b > 0), "neither")] += 1
    return counts


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_token_is_counted_where_it_belongs(a: CorrectionConfig, b: CorrectionConfig) -> None:
    expected = counted(a, b)
    codes = comparison.shared(BATCH, correct(BATCH, a), correct(BATCH, b))
    assert {name: int((codes == code).sum()) for code, name in enumerate(comparison.SHARED)} == expected
    found = comparison.agreement(BATCH, correct(BATCH, a), correct(BATCH, b))
    assert vars(found) == {
        "both": expected["both"], "only_a": expected["only A"], "only_b": expected["only B"],
        "neither": expected["neither"],
        "jaccard": expected["both"] / (expected["both"] + expected["only A"] + expected["only B"]),
        "differing": (expected["only A"] + expected["only B"]) / MASK.sum(),
    }  # fmt: skip


def test_the_cases_differ() -> None:
    """The oracle would say little if it always counted the same."""
    found = [counted(a, b) for a, b in PAIRS]
    assert all(found[0][name] > 0 for name in ("both", "only A"))
    assert all(found[1][name] > 0 for name in ("both", "neither", "only A", "only B"))
    assert found[4]["only A"] == found[4]["only B"] == 0 < found[4]["neither"]


def test_two_that_train_on_nothing_agree() -> None:
    nothing = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_max_k2", upper=1e-12),))
    result = correct(BATCH, nothing)
    found = comparison.agreement(BATCH, result, result)
    assert (found.jaccard, found.differing, found.neither) == (1, 0, MASK.sum())
    empty = BATCH.rows(slice(3, 4))
    found = comparison.agreement(empty, correct(empty, TIS), correct(empty, RULE))
    assert (found.jaccard, found.differing, found.neither) == (1, 0, 0)


def test_results_of_another_batch_are_refused() -> None:
    other = correct(BATCH.rows(slice(0, 9)), TIS)
    with pytest.raises(UsageError, match=r"one batch only: it is \(40, 7\), a result is \(9, 7\)"):
        comparison.shared(BATCH, correct(BATCH, TIS), other)


def test_metrics_of_both_in_one_row() -> None:
    found = comparison.metric_pairs({"k3_kl": 2.0, "tokens": 7.0}, {"tokens": 4.0, "new": 1.0})
    assert [(pair.key, pair.a, pair.b, pair.difference) for pair in found[1:2]] == [("tokens", 7, 4, -3)]
    assert [pair.key for pair in found] == ["k3_kl", "tokens", "new"]
    assert [math.isnan(x) for pair in (found[0], found[2]) for x in (pair.a, pair.b, pair.difference)] == [
        False, True, True, True, False, True,
    ]  # fmt: skip


# --- gradients ---


def sketched() -> Sketch:
    """Tokens that the trainer likes more have other scores than the rest, so that masking turns the gradient."""
    g = torch.Generator().manual_seed(6)
    up, down = torch.tensor([2.0, -1, 0.5, 0, 0]), torch.tensor([0, 1, 0.5, 2.0, 0])
    of_token = torch.where(torch.from_numpy(LOG_RATIO[MASK] > 0)[:, None], up, down)
    scores = of_token + torch.randn(of_token.shape, generator=g)
    by_token = 60 * torch.tensor([0.5, -0.2, 0.2, 0.1, 0.0]) + torch.randn(BLOCKS, DIRECTIONS, generator=g)
    return Sketch(scores, Reference(by_token, by_token, torch.full((BLOCKS,), 60.0), torch.full((BLOCKS,), 15.0)))


SKETCH = sketched()
POSITIVE = BATCH.replace(advantages=BATCH.tensors()["advantages"].abs())
"""With advantages of one sign the gradient stands well above its noise."""


def sums_of(config: CorrectionConfig) -> np.ndarray:
    """Σ weight · advantage · score of each sequence: the policy gradient at π_θ = π_old, before the division."""
    sums, token = np.zeros((ROWS, DIRECTIONS)), 0
    advantages, scores = POSITIVE.tensors()["advantages"].double().numpy(), SKETCH.scores.double().numpy()
    for row, weights in enumerate(by_loops(config)):
        for column, weight in enumerate(weights):
            if weight is not None:
                sums[row] += weight * advantages[row, column] * scores[token]
                token += 1
    return sums


def cosine_of(inner: float, lengths: float) -> float:
    """Unknown where one of the lengths is that of noise."""
    return min(max(inner / lengths, -1.0), 1.0) if lengths > 0 else math.nan


def numbers_by_loops(a: CorrectionConfig, b: CorrectionConfig, replicates: int) -> dict[str, list[float]]:
    """What a report says of each bootstrap sample, written down once more: the mean gradient Σu/Σn, its variance by the
    delta method, and squares of which their own noise is taken, twice in a sample of the sample."""
    lengths = MASK.sum(1).astype(float)
    draws = resampled(ROWS, replicates, 0).double().numpy()
    of_blocks = resampled(BLOCKS, replicates, 1).double().numpy()
    blocks, per_block = SKETCH.reference.by_token.double().numpy(), 15 * lengths.mean()
    mean_r = blocks.mean(0) / per_block
    noise_r = sum(((u / per_block - mean_r) ** 2).sum() for u in blocks) / (BLOCKS - 1) / BLOCKS
    unit = math.sqrt((mean_r**2).sum() - noise_r)
    sums = {"a": sums_of(a), "b": sums_of(b)}
    moved = {name: u - lengths[:, None] * u.sum(0) / lengths.sum() for name, u in sums.items()}
    share = ROWS / (ROWS - 1)
    noise = {name: share * (m**2).sum() / lengths.sum() ** 2 for name, m in moved.items()}
    common = share * (moved["a"] * moved["b"]).sum() / lengths.sum() ** 2
    found: dict[str, list[float]] = {}
    for number, (drawn, of_block) in enumerate(zip(draws, of_blocks, strict=True)):
        times, r = (1 if number == 0 else 2), of_block @ blocks / of_block.sum() / per_block
        g = {name: drawn @ u / (drawn @ lengths) for name, u in sums.items()}
        each: dict[str, float] = {}
        for name in ("a", "b"):
            squares = share * (moved[name] ** 2).sum(1)
            variance = drawn @ squares / (drawn @ lengths) ** 2
            bias2 = max(((g[name] - r) ** 2).sum() - times * (noise[name] + noise_r), 0)
            length = math.sqrt(max((g[name] ** 2).sum() - times * noise[name], 0))
            length_r = math.sqrt(max((r**2).sum() - times * noise_r, 0))
            each |= {
                f"bias {name}": math.sqrt(bias2) / unit, f"noise {name}": math.sqrt(variance) / unit,
                f"error {name}": math.sqrt(bias2 + variance) / unit, f"length {name}": length,
                f"cosine {name}": cosine_of(g[name] @ r, length * length_r),
            }  # fmt: skip
        inner = g["a"] @ g["b"]
        each["between"] = inner / math.sqrt((g["a"] ** 2).sum() * (g["b"] ** 2).sum())
        each["expected"] = cosine_of(inner - times * common, each["length a"] * each["length b"])
        for name in ("bias", "noise", "error", "cosine"):
            each[name] = each[f"{name} b"] - each[f"{name} a"]
        for name, value in each.items():
            found.setdefault(name, []).append(float(value))
    return found


@pytest.mark.parametrize(("a", "b"), [(TIS, RULE), (ICEPOP, TIS), (RULE, ICEPOP)])
def test_paired_differences_against_loops(a: CorrectionConfig, b: CorrectionConfig) -> None:
    expected = numbers_by_loops(a, b, 60)
    found = gradient_comparison.compare_gradients(POSITIVE, SKETCH, a, b, replicates=60)
    for name in ("bias", "noise", "error", "cosine", "between", "expected"):
        interval = getattr(found, name)
        assert interval.value == pytest.approx(expected[name][0], rel=2e-3, abs=2e-4), name
        ends = np.nanquantile(expected[name][1:], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=2e-3, abs=2e-4), name
    better = np.mean(np.array(expected["error b"][1:]) < np.array(expected["error a"][1:]))
    assert found.b_is_better == pytest.approx(better)
    assert found.a.error.value == pytest.approx(expected["error a"][0], rel=1e-3)
    assert found.b.noise.value == pytest.approx(expected["noise b"][0], rel=1e-3)


def test_one_against_itself_is_no_difference() -> None:
    found = gradient_comparison.compare_gradients(POSITIVE, SKETCH, ICEPOP, ICEPOP)
    for each in (found.bias, found.noise, found.error, found.cosine):
        assert (each.value, each.low, each.high) == (0, 0, 0)
    assert found.between.low == pytest.approx(1, abs=1e-6)
    assert found.expected.low == pytest.approx(1, abs=1e-5)
    assert found.b_is_better == 0.5


def test_pairing_takes_out_the_noise_that_both_share() -> None:
    """Two caps that few tokens reach: both errors are known to 10 % or worse, their difference 100 times better."""
    near = replace(TIS, rollout_is_threshold=2.4), replace(TIS, rollout_is_threshold=2.6)
    found = gradient_comparison.compare_gradients(POSITIVE, SKETCH, *near)
    alone, paired = found.a.error.high - found.a.error.low, found.error.high - found.error.low
    assert alone > 0.1 * found.a.error.value
    assert paired < alone / 100


def test_twice_the_weight_is_twice_the_noise() -> None:
    """All ratios are 2: weights without a bound make the same gradient twice as long, and nothing else."""
    rollout = torch.where(BATCH.response_mask, BATCH.rollout_log_probs, -2.0)
    doubled = POSITIVE.replace(rollout_log_probs=rollout, old_log_probs=rollout + math.log(2))
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    found = gradient_comparison.compare_gradients(doubled, SKETCH, CorrectionConfig(), raw)
    assert found.noise.value == pytest.approx(found.a.noise.value, rel=1e-4)
    assert found.between.low == pytest.approx(1, abs=1e-5)
    assert found.cosine.value == pytest.approx(0, abs=1e-5)


def test_where_noise_explains_a_gradient_its_direction_is_unknown() -> None:
    """Scores of random sign: what is left after the noise has length 0."""
    signs = torch.where(torch.arange(len(SKETCH.scores)) % 2 == 0, 1.0, -1.0)[:, None]
    noise = replace(SKETCH, scores=signs * torch.ones(DIRECTIONS))
    found = gradient_comparison.compare_gradients(POSITIVE, noise, TIS, RULE)
    assert found.a.length.value == 0
    assert math.isnan(found.expected.value)
    assert math.isnan(found.a.cosine.value)
    assert math.isfinite(found.between.value)


# --- pictures ---


def trace(figure: Any, name: str) -> Any:
    return next(t for t in figure.data if t.name == name)


def results(a: CorrectionConfig, b: CorrectionConfig) -> tuple[CorrectionResult, CorrectionResult]:
    return correct(BATCH, a), correct(BATCH, b)


def test_the_map_shows_a_difference_where_tokens_share_a_cell() -> None:
    cells = trace(comparison_plots.mask_map(BATCH, *results(ICEPOP, RULE)), "shared").z
    assert {name: int((cells == code).sum()) for code, name in enumerate(comparison.SHARED)} == counted(ICEPOP, RULE)
    wide = TokenBatch.from_log_probs(torch.full((1, 600), -1.0), torch.full((1, 600), -1.0), torch.ones(1, 600))
    keep = torch.ones(1, 600, dtype=torch.bool)
    keep[0, 4] = False
    all_kept = correct(wide, CorrectionConfig())
    one_less = replace(all_kept, keep_mask=keep)
    cells = trace(comparison_plots.mask_map(wide, one_less, all_kept), "shared").z  # three tokens per cell
    assert np.argwhere(cells == comparison.SHARED.index("only B")).tolist() == [[0, 1]]
    assert (cells == comparison.SHARED.index("both")).sum() == 199


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_weights_against_counts_the_tokens_of_both(a: CorrectionConfig, b: CorrectionConfig) -> None:
    figure: Any = comparison_plots.weights_against(BATCH, *results(a, b))
    weights = [
        (of_a, of_b)
        for row_a, row_b in zip(by_loops(a), by_loops(b), strict=True)
        for of_a, of_b in zip(row_a, row_b, strict=True)
        if of_a and of_b
    ]
    cells = trace(figure, "tokens")
    assert cells.customdata.sum() == len(weights)
    above = cells.customdata[np.indices(cells.customdata.shape)[0] > np.indices(cells.customdata.shape)[1]].sum()
    width = 2 * cells.y[-1] / (len(cells.y) - 1)
    surely, maybe = (sum(math.log(y / x) > margin for x, y in weights) for margin in (width, 1e-6))
    assert surely <= above <= maybe
    notes = [note.text for note in figure.layout.annotations]
    left_out = int(MASK.sum()) - len(weights)
    assert notes == ([f"{left_out:,} tokens not in both"] if left_out else [])


def test_tails_are_shares_of_each_batch() -> None:
    """Tokens without a difference have no place on a logarithmic axis, and count in the share all the same."""
    equal = BATCH.replace(old_log_probs=torch.where(torch.arange(ROWS)[:, None] < 9, BATCH.rollout_log_probs, OLD))
    figure = comparison_plots.tails(BATCH, equal)
    for name, first in (("A", 0), ("B", 9)):
        sizes = np.abs(np.where(np.arange(ROWS)[:, None] < first, 0, LOG_RATIO)[MASK])
        drawn = trace(figure, name)
        for x, y in zip(drawn.x, drawn.y, strict=True):
            assert y == pytest.approx((sizes >= x * (1 - 1e-9)).mean(), abs=1e-9)
    assert trace(figure, "A").x.max() == pytest.approx(np.abs(LOG_RATIO).max(), rel=1e-6)


def test_both_densities_have_the_wider_axis() -> None:
    calm = BATCH.replace(old_log_probs=BATCH.rollout_log_probs + 1e-4)
    alone: Any = comparison_plots.ratio_densities(calm, calm)
    found: Any = comparison_plots.ratio_densities(calm, BATCH)
    assert found.a.layout.yaxis.range == found.b.layout.yaxis.range
    assert found.a.layout.yaxis.range[1] > 100 * alone.a.layout.yaxis.range[1]
    assert trace(found.a, "tokens").customdata.sum() == trace(found.b, "tokens").customdata.sum() == MASK.sum()


def test_bars_and_differences_show_the_numbers() -> None:
    found = gradient_comparison.compare_gradients(POSITIVE, SKETCH, TIS, RULE, replicates=40)
    bars = trace(comparison_plots.gradient_bars(found), "B")
    expected = [found.b.relative_bias.value, found.b.noise.value, found.b.error.value]
    assert list(bars.y) == expected
    points = trace(comparison_plots.differences(found), "B − A")
    shown = dict(zip(points.y, points.x, strict=True))
    assert shown == {"bias": found.bias.value, "noise": found.noise.value, "error": found.error.value}
    ends = dict(zip(points.y, np.array(points.x) + np.array(points.error_x.array), strict=True))
    assert ends["error"] == pytest.approx(max(found.error.high, found.error.value))


def test_pictures_of_nothing() -> None:
    empty = BATCH.rows(slice(3, 4))
    a, b = correct(empty, TIS), correct(empty, RULE)
    densities = comparison_plots.ratio_densities(empty, empty)
    for figure in (
        comparison_plots.mask_map(empty, a, b),
        comparison_plots.weights_against(empty, a, b),
        comparison_plots.tails(empty, empty),
        densities.a,
    ):
        assert figure.to_json()
