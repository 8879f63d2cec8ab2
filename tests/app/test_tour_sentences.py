"""The sentences of the tours: each number that they name is that of the run or study that the step opens.

The numbers are computed from the log-probs, with formulas that are written out here.
"""

import numpy as np
import pytest
import torch
from app_pages import committed, one_scan
from torch import Tensor

from rlcorr.records import runs, study
from rlcorr.records.study_comparisons import against_nothing

__all__ = ["committed", "one_scan"]  # fixtures

pytestmark = pytest.mark.usefixtures("committed")


def seen(tour: str, number: int) -> tuple[str, tuple[Tensor, Tensor, Tensor]]:
    """The sentence after step `number`, with the mask and both log-probs (B, T) of the last step of its run."""
    from text.tours import TOURS

    step = TOURS[tour].steps[number - 1]
    run = runs.ROOT / dict(step.query)["run"]
    batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
    mask = batch.response_mask
    return step.seen, (mask, batch.tensors()["old_log_probs"].double() * mask, batch.rollout_log_probs.double() * mask)


def share(mask: Tensor, flags: Tensor) -> float:
    return float((flags & mask).sum() / mask.sum())


def test_rounding_moves_the_mean_ratio_further_than_the_narrow_bounds() -> None:
    sentence, (mask, old, rollout) = seen("healthy", 1)
    mean = ((old - rollout).sum(1) / mask.sum(1)).exp()
    assert "half of the answers by 0.6 % or more" in sentence
    assert float((mean - 1).abs().median()) == pytest.approx(0.006, abs=5e-4)
    kept = [share(mask, ((mean >= 1 / 1.001) & (mean <= high))[:, None]) for high in (1.001, 1.04, 1.1)]
    assert "nine tenths" in sentence
    assert 0.85 < 1 - kept[0] < 0.95
    assert "A third of the tokens came back" in sentence
    assert all(later - kept[0] == pytest.approx(1 / 3, abs=0.05) for later in kept[1:])
    assert "Nearly all tokens" in seen("healthy", 2)[0]
    assert share(mask, ((mean >= 0.96) & (mean <= 1.04))[:, None]) > 0.95


def test_the_two_probabilities_of_a_healthy_run_are_close() -> None:
    sentence, (mask, old, rollout) = seen("healthy", 3)
    assert "For 95 % of the tokens the two probabilities differ by less than 0.05" in sentence
    assert share(mask, (old.exp() - rollout.exp()).abs() < 0.05) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("tour", "number", "one_in", "words", "means"),
    [
        ("stale", 2, 7, "one token in seven", {1.1: 0.94, 2.0: 0.98}),
        ("class", 4, 10, "one weight in ten", {1.1: 0.96, 2.0: 0.99}),
    ],
)
def test_a_cap_cuts_as_many_weights_as_it_says(
    tour: str, number: int, one_in: int, words: str, means: dict[float, float]
) -> None:
    sentence, (mask, old, rollout) = seen(tour, number)
    ratio = (old - rollout).exp()
    assert words in sentence
    assert 1 / share(mask, ratio > 1.1) == pytest.approx(one_in, abs=0.5)
    assert "less than one in a hundred" not in sentence or share(mask, ratio > 2) < 0.01
    for cap, mean in means.items():
        assert f"{mean:.2f}" in sentence
        assert float(ratio.clamp(max=cap)[mask].mean()) == pytest.approx(mean, abs=0.005)


def test_the_bounds_of_a_healthy_run_leave_little_of_stale_weights() -> None:
    sentence, (mask, old, rollout) = seen("stale", 3)
    mean = ((old - rollout).sum(1) / mask.sum(1)).exp()
    assert "It keeps 3 %" in sentence
    assert share(mask, ((mean >= 1 / 1.001) & (mean <= 1.001))[:, None]) == pytest.approx(0.03, abs=0.005)


def test_only_one_interval_of_the_study_excludes_0() -> None:
    from text.tours import TOURS

    compared = against_nothing(study.read_study("stale_8")[0])
    assert "one of the nine intervals excludes 0" in TOURS["stale"].steps[3].seen
    assert len(compared) == 9
    assert sum(c.difference.low > 0 or c.difference.high < 0 for c in compared) == 1


def reward(arm: str) -> np.ndarray:
    """The reward of an arm of stale_8, averaged over seeds and five steps."""
    rows = [row for row in study.read_study("stale_8")[0] if row["preset"] == arm]
    steps = sorted({row["step"] for row in rows})
    mean = [np.mean([row["reward"] for row in rows if row["step"] == step]) for step in steps]
    return np.convolve(mean, np.ones(5) / 5, "valid")


def test_six_presets_keep_the_reward_rising_and_three_do_not() -> None:
    from text.tours import TOURS

    arms = {row["preset"] for row in study.read_study("stale_8")[0]}
    curves = {arm: reward(arm) for arm in arms}
    rising = {arm for arm, curve in curves.items() if curve.argmax() >= len(curve) - 3}  # the peak is at the end

    def half(curve: np.ndarray) -> int:
        """The first step after the peak with less than half of its reward."""
        return int(next(i for i in range(int(curve.argmax()), len(curve)) if curve[i] < curve.max() / 2))

    sentence = TOURS["collapsing"].steps[0].seen
    assert "With six of the nine presets the reward still rises" in sentence
    assert len(rising - {"disabled"}) == 6
    falling = arms - rising - {"disabled"}
    assert "With the other three it falls as without a correction, and a little earlier" in sentence
    assert len(falling) == 3
    assert all(half(curves[arm]) < half(curves["disabled"]) for arm in falling)


def test_fresh_weights_do_not_collapse() -> None:
    from text.tours import TOURS

    rows = study.read_study("stale_0")[0]
    assert {row["preset"] for row in rows} == {"disabled"}
    assert "the reward rises to 0.7" in TOURS["collapsing"].steps[1].seen
    last = max(row["step"] for row in rows)
    ends = [row["reward"] for row in rows if row["step"] > last - 5]
    assert float(np.mean(ends)) == pytest.approx(0.7, abs=0.05)
    assert max(row["k3"] for row in rows) < 1e-3


def test_products_of_long_answers_are_far_from_1() -> None:
    sentence, (mask, old, rollout) = seen("long", 1)
    d = old - rollout
    product = d.sum(1).exp()
    assert "half of the answers have one below 0.1" in sentence
    assert float((product < 0.1).double().mean()) == pytest.approx(0.5, abs=0.03)
    assert "four hundred" in sentence
    assert float(mask.sum(1).double().mean()) == pytest.approx(400, abs=20)
    sentence = seen("long", 2)[0]
    assert "99 % now" in sentence
    assert "it is 31 %" in sentence
    weights = product.clamp(max=2)[:, None].expand_as(d)[mask]
    assert float(weights.sum() ** 2 / weights.square().sum() / mask.sum()) == pytest.approx(0.31, abs=0.005)
    ratio = d.exp()[mask]
    icepop = torch.where((ratio >= 0.5) & (ratio <= 5), ratio, 0)
    assert float(icepop.sum() ** 2 / icepop.square().sum() / mask.sum()) == pytest.approx(0.99, abs=0.005)
    sentence = seen("long", 3)[0]
    assert "differ by 2 % on average" in sentence
    assert float(d.abs()[mask].mean()) == pytest.approx(0.02, abs=0.005)
    assert "more than ten" in sentence
    assert float((d.sum(1).abs().exp() > 10).double().mean()) >= 0.5


def test_the_class_rejects_the_token_and_others_with_it() -> None:
    sentence, (mask, old, rollout) = seen("class", 1)
    sizes = (old - rollout)[mask].abs().exp()
    out = [f"{float((sizes > threshold).double().mean()):.0%}".replace("%", " %") for threshold in (2, 1.05)]
    assert (
        f"At 2, {out[0]} of this step's tokens are left out, and the “0” is one of them; at 1.05, {out[1]}." in sentence
    )


def test_the_coarse_cache_changes_every_probability() -> None:
    sentence, (mask, old, rollout) = seen("class", 2)
    assert "changes every probability, most of them by less than 0.01" in sentence
    assert share(mask, old == rollout) == 0
    assert share(mask, (old.exp() - rollout.exp()).abs() < 0.01) > 0.5
    manifest = runs.read_manifest(runs.ROOT / "smol_kv_fp8_e5m2")
    assert "e5m2" in str(manifest.engine_settings)
