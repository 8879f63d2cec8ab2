"""The ends of a study by kind of correction, against means and intervals computed here from its file."""

import math
from statistics import fmean, stdev

import pyarrow.parquet as parquet
import pytest
from scipy import stats

from rlcorr import CorrectionConfig, RejectionRule, preset
from rlcorr.records.study import study_path
from rlcorr.records.study_ends import kind_of, study_ends


def by_seed(name: str, arm: str) -> list[float]:
    """The mean reward of an arm over the last 15 of 60 steps, for each seed."""
    rows = [row for row in parquet.read_table(study_path(name)).to_pylist() if row["preset"] == arm]
    last = max(row["step"] for row in rows)
    seeds = sorted({row["seed"] for row in rows})
    ends = [[row["reward"] for row in rows if row["seed"] == seed and row["step"] > last - 15] for seed in seeds]
    return [fmean(reward for reward in rewards if reward is not None) for rewards in ends]


def test_rewards_at_the_end_by_kind() -> None:
    ends = study_ends("stale_8")
    assert (ends.steps, ends.seeds, ends.measure, ends.staleness, ends.model) == (60, 3, "reward", 8, "a small model")
    assert {kind: set(arms) for kind, arms in ends.by_kind.items()} == {
        "nothing": {"disabled"},
        "token cap": {"decoupled_token_is"},
        "token mask": {"decoupled_token_icepop"},
        "product cap": {"decoupled_seq_is"},
        "sequences": {"decoupled_seq_is_rs", "decoupled_k3_rs", "skyrl_geo_mask"},
        "bad answers": {"trl_opsm"},
    }
    for arms in ends.by_kind.values():
        assert arms == {arm: pytest.approx(fmean(by_seed("stale_8", arm))) for arm in arms}
    rejecting = [fmean(by_seed("stale_8", arm)) for arm in ends.by_kind["sequences"]]
    assert (ends.lowest("sequences"), ends.highest("sequences")) == pytest.approx((min(rejecting), max(rejecting)))


def test_differences_are_counted_with_the_level_of_all_of_them() -> None:
    """Three pairs: a level of 0.05/3 each, so t at 1 − 0.05/6 with two degrees of freedom."""
    cap = by_seed("stale_8", "decoupled_token_is")
    significant = 0
    for arm in ("decoupled_seq_is_rs", "decoupled_k3_rs", "skyrl_geo_mask"):
        pairs = [a - b for a, b in zip(by_seed("stale_8", arm), cap, strict=True)]
        half = stats.t.ppf(1 - 0.05 / 6, 2) * stdev(pairs) / math.sqrt(3)
        significant += abs(fmean(pairs)) > half
    counts = study_ends("stale_8").significant
    assert counts["sequences", "token cap"] == counts["token cap", "sequences"] == significant == 3


def test_a_planned_accuracy_is_that_of_the_last_weights() -> None:
    ends = study_ends("smol_last_weights")
    rows = parquet.read_table(study_path("smol_last_weights")).to_pylist()
    last = {(row["preset"], row["seed"]): row["accuracy"] for row in rows if row["step"] == 24}
    arms = {"fresh": "fresh", "nothing": "none", "token cap": "token_cap"}
    for kind, arm in arms.items():
        accuracies = [accuracy for (name, _), accuracy in last.items() if name == arm]
        assert len(accuracies) == 10
        assert ends.by_kind[kind] == {arm: pytest.approx(fmean(accuracies))}
    assert ends.by_kind.keys() == {*arms, "product cap, normalised"}
    assert (ends.measure, ends.staleness, ends.model) == ("accuracy", 6, "SmolLM2")


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (CorrectionConfig(), "nothing"),
        (CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True), "token cap, normalised"),
        (CorrectionConfig(rollout_is="geometric"), None),
        (CorrectionConfig(rollout_rs=(RejectionRule.named("token_k3", upper=0.1),)), "tokens"),
        (preset("verl_dppo_tv"), None),
    ],
)
def test_kinds(config: CorrectionConfig, kind: str | None) -> None:
    assert kind_of(config) == kind
