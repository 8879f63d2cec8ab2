import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyarrow.parquet as parquet
import pytest
from scipy import stats
from step_records import make_run

from rlcorr import CorrectionConfig, LossConfig, RejectionRule, preset
from rlcorr.command.cli import run_verb
from rlcorr.command.study import kl_lines, study_table, verdict_of
from rlcorr.command.study_workers import arm_config
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import runs, study
from rlcorr.records.study import Arm, Endpoint, SeedRange, end_rewards, gains, study_path
from rlcorr.records.study_comparisons import (
    against_control,
    compare_endpoints,
    comparisons,
    holm,
    pooled_accuracies,
    progress_correlation,
    rank_correlation,
)
from rlcorr.records.study_ends import kind_of, study_ends
from rlcorr.train.config.training import TrainConfig


def row(name: str, seed: int, step: int, reward: float, k3: float = 1.0, kept: float = 1.0) -> dict[str, object]:
    return {"preset": name, "seed": seed, "step": step, "reward": reward, "k3": k3, "kept_fraction": kept}


Configs = dict[str, list[tuple[TrainConfig, list[Arm]]]]
"""Study → its configurations, each with the arms that have it and differ only in seed and name."""


def by_options(name: str) -> dict[tuple[str, ...], list[Arm]]:
    """Group the arms of a study by their options without seed and run, which are the last four words.

    Reading a command line takes 50 ms, so it is read once for all arms that differ only in seed and run.
    """
    groups: dict[tuple[str, ...], list[Arm]] = {}
    for arm in study.find_study(name).arms:
        assert arm.options[-4:] == ("--seed", str(arm.seed), "--run", f"study_{name}_{arm.label}")
        groups.setdefault(arm.options[:-4], []).append(arm)
    return groups


@pytest.fixture(scope="module")
def configs() -> Configs:
    return {name: [(arm_config(arms[0]), arms) for arms in by_options(name).values()] for name in study.read_index()}


def title_of_penalty(loss: LossConfig) -> str:
    if loss.use_rollout_kl_loss:
        return f"Rollout KL loss {loss.rollout_kl_estimator_type}, coefficient {loss.rollout_kl_loss_coef:g}"
    return f"Penalty {loss.kl_loss_type}, coefficient {loss.kl_loss_coef:g}" if loss.use_kl_loss else "No KL penalty"


@pytest.mark.slow
def test_every_training_of_the_index_is_a_command(configs: Configs) -> None:
    """Check that each arm and seed has its own run, and that the first seed has sketches if the study has any."""
    for name, studied in study.read_index().items():
        for config, arms in configs[name]:
            arm = arms[0]
            assert (config.seed, config.run) == (arm.seed, f"study_{name}_{arm.label}")
            assert len({same.name for same in arms}) == 1, arms
            corrections = (
                "fresh", "fresh_cache", "none", "product_cap", "product_cap_normalized", "token_cap", "centered",
                "centered_cap", "replay", "float32", "float32_trainer",
            )  # fmt: skip
            named = arm.name in corrections or arm.name == f"rate_{config.optim.learning_rate:.0e}".replace("e-0", "e-")
            named = named or studied.arm_titles.get(arm.name) == title_of_penalty(config.policy_loss)
            assert config.preset == arm.name or config.budget.rule or named, arm.label
            if config.budget.rule:
                assert arm.name.endswith(f"_{config.budget.keep * 100:g}"), arm.label
            if config.sketch.every:
                assert {same.seed for same in arms} == {studied.arms[0].seed}, name
        assert len({arm.label for arm in studied.arms}) == len(studied.arms)
        for sentence in (studied.story, studied.look):
            assert sentence.endswith("."), name
            assert len(sentence.split()) > 5, name


def test_outcomes() -> None:
    """Check eight steps, of which the last two are the end.

    "a" has rewards 0 … 0.7 and 0 … 1.4, so ends of 0.65 and 1.3, and best five steps of 0.5 and 1. k3 is the median of
    7 and 8; kept is 1 and ½. "b" ends higher, at 2.
    """
    rows = [row("a", 0, s, 0.1 * (s - 1), k3=s) for s in range(1, 9)]
    rows += [row("a", 1, s, 0.2 * (s - 1), k3=s, kept=0.5) for s in range(1, 9)]
    rows += [row("b", seed, s, 2.0) for seed in (0, 1) for s in range(1, 9)]
    b, a = study.outcomes(rows)
    assert (a.preset, b.preset) == ("a", "b")
    assert (a.reward.mean, a.reward.lowest, a.reward.highest) == pytest.approx((0.975, 0.65, 1.3))
    assert (a.best_reward.mean, a.best_reward.lowest, a.best_reward.highest) == pytest.approx((0.75, 0.5, 1.0))
    assert a.k3 == SeedRange(7.5, 7.5, 7.5)
    assert a.kept_fraction == SeedRange(0.75, 0.5, 1.0)
    assert b.reward == SeedRange(2, 2, 2)

    # A skipped last step: k3 is from the other step of the end, kept_fraction from the other seven steps.
    rows = [row("a", 0, s, 0.5, k3=s) for s in range(1, 9)]
    rows[7] |= {"k3": None, "kept_fraction": None}
    (a,) = study.outcomes(rows)
    assert (a.k3.mean, a.kept_fraction.mean) == (7, 1)
    (b,) = study.outcomes([row | {"k3": None} for row in rows])
    assert math.isnan(b.k3.mean)


def test_a_table_without_commits_of_each_training_run_says_so() -> None:
    words = "; commit 8f1ddb42dfb0 and ab0c7df4dc41, which training run had which is not recorded"
    assert study_table("smol_precision")[2].endswith(words)


def test_a_study_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check numbers in float32, provenance from the manifests, and that a damaged file is named."""
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    (tmp_path / "index.toml").write_text(
        '[shared]\nseeds = [0]\narms = ["disabled", "half"]\noptions = ""\nsketches = ""\n'
        '[shared.arm]\nhalf = "--preset disabled --budget.rule token_k1 --budget.keep 0.5"\n'
        '[small]\nstory = "A story."\nlook = "Nothing."\noptions = "--steps 3"\n'
    )
    with pytest.raises(UsageError, match="python -m rlcorr study small --train makes it"):
        study.read_study("small")
    small = study.find_study("small")
    arm, half = small.arms
    assert half.options[-7:-3] == ("token_k1", "--budget.keep", "0.5", "--seed")
    run = tmp_path / "run"
    make_run(run)
    rows, manifest = study.run_rows(run, arm), runs.read_manifest(run)
    assert [(row["step"], row["reward"], row["k3"]) for row in rows] == [(1, 0.5, None), (2, 1.0, None), (3, 1.5, None)]
    about = {key: getattr(manifest, key) for key in study.ORIGIN}
    study.write_trained(small, arm, (rows, about | {"progress": {}}))
    assert study.missing(small) == [half]
    path = study.gather(small)
    study.arm_path(small, arm).unlink()
    assert study.missing(small) == [half]
    got, provenance = study.read_study("small")
    assert [(row["step"], row["reward"]) for row in got] == [(row["step"], row["reward"]) for row in rows]
    assert (provenance["engine"], provenance["git_commits"]) == (manifest.engine, [manifest.git_commit])
    assert provenance["origins"] == {arm.label: about}
    assert study_table("small")[2].startswith("1 seeds, 3 steps")
    assert study_table("small")[2].endswith(f"commit {manifest.git_commit}")
    changed = replace(small, arms=(replace(arm, options=(*arm.options, "--steps", "4")), half))
    with pytest.raises(UsageError, match=r"small.parquet: disabled_0 was trained with other options"):
        study.missing(changed)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(runs.DamagedFile, match=re.escape(str(path))):
        study.read_study("small")


# --- the committed study ---


def test_every_study_is_trained_unless_it_says_so() -> None:
    untrained = {name for name, studied in study.read_index().items() if study.missing(studied)}
    assert untrained == study.read_index().keys() - study.finished_studies().keys()


def course_of(arm: str, seed: int, rewards: list[float], accuracy: float = 0.0) -> list[dict[str, Any]]:
    """Return the rows of a training run with these rewards."""
    steps = range(1, len(rewards) + 1)
    return [
        {"preset": arm, "seed": seed, "step": step, "reward": reward, "accuracy": accuracy}
        for step, reward in zip(steps, rewards, strict=True)
    ]


def test_a_delay_alone_is_nothing_beside_the_control_of_as_old_weights() -> None:
    """The arm repeats the control two steps later: its last two steps have 0.1 and 0.2, those of the control 0.3 and
    0.4, and 0.1 and 0.2 two steps before."""
    rows = [row for seed in (0, 1) for row in course_of("fresh", seed, [0.1, 0.2, 0.3, 0.4])]
    rows += [row for seed in (0, 1) for row in course_of("none", seed, [0.0, 0.0, 0.1, 0.2])]
    same_step, same_weights = (against_control(rows, 2, earlier=earlier)[0].difference for earlier in (0, 2))
    assert (same_step.value, same_weights.value) == (pytest.approx(-0.2), pytest.approx(0.0))
    delayed = study.delayed_control(replace(study.find_study("smol_stale_6"), delay=2), rows)
    assert [(row["step"], row["reward"]) for row in delayed] == [(3, 0.1), (4, 0.2)] * 2


def test_a_repeated_seed_counts_once() -> None:
    """By hand: seed 0 has (0.2 + 0.4) / 2 = 0.3 without, 0.6 with the cap; seed 1 has 0.1 and 0.2: means 0.2 and 0.4,
    differences 0.3 and 0.1, and 0.2 ± 12.706 · 0.1."""
    first = [*course_of("none", 0, [0.0], 0.2), *course_of("cap", 0, [0.0], 0.6)]
    second = [*course_of("none", 0, [0.0], 0.4), *course_of("cap", 0, [0.0], 0.6)]
    second += [*course_of("none", 1, [0.0], 0.1), *course_of("cap", 1, [0.0], 0.2), *course_of("other", 1, [0.0])]
    means, (pair,) = pooled_accuracies([first, second])
    assert means == {"none": pytest.approx(0.2), "cap": pytest.approx(0.4)}
    assert (pair.arm, pair.against, pair.seeds) == ("cap", "none", 2)
    assert pair.difference.value == pytest.approx(0.2)
    assert pair.difference.high == pytest.approx(0.2 + 12.706 * 0.1, rel=1e-3)


def test_the_verb_pools_the_studies_that_repeat_arms(capsys: pytest.CaptureFixture[str]) -> None:
    """The readme of the runs prints 0.40 against 0.20 over 15 seeds, and 0.201 [0.129, 0.274]."""
    assert run_verb(["study", "smol_last_weights"]) == 0
    shown = capsys.readouterr().out.partition("together with smol_stale_6 and smol_centering_stale")[2]
    assert re.search(r"none 0\.20\d, token_cap 0\.40\d", shown)
    assert re.search(r"token_cap - none +0\.201 \[0\.129, 0\.274\]", shown)


def test_the_kls_of_the_last_weights_are_compared_like_the_endpoint() -> None:
    """By hand: KLs of 0.6 and 0.8 without a penalty, 0.3 and 0.5 with k2, 0.2 and 0.4 with k3. The differences have no
    spread, and the loss without a penalty logs no KL."""
    kls = {"kl_none": (0.6, 0.8), "kl_k2": (0.3, 0.5), "kl_k3": (0.2, 0.4)}
    rows = [
        {**course_of(arm, seed, [0.0])[0], "kl": kl, "reverse_kl": 2 * kl, "kl_loss": None if arm == "kl_none" else kl}
        for arm, pair in kls.items()
        for seed, kl in enumerate(pair)
    ]
    lines = kl_lines(rows, Endpoint(0, 0.05, (("kl_k3", "kl_k2"),)))
    shown = [" ".join(line.split()) for line in lines]
    first, second = shown[1:].index(""), len(shown) - 2
    assert shown[2 : first + 1] == [
        "kl_none 0.700 [0.600, 0.800]", "kl_k2 0.400 [0.300, 0.500]", "kl_k3 0.300 [0.200, 0.400]",
        "kl_k3 - kl_k2 -0.100 [-0.100, -0.100]", "kl_k2 - kl_none -0.300 [-0.300, -0.300]",
        "kl_k3 - kl_none -0.400 [-0.400, -0.400]",
    ]  # fmt: skip
    assert shown[second - 1] == "kl_k3 - kl_none -0.800 [-0.800, -0.800]"
    assert shown[-1] == "What the loss logged of it at the last step: kl_k2 0.4, kl_k3 0.3"


# --- Differences between the arms of a study, and whether η predicted them ---


def trained(arm: str, seed: int, reward: float) -> list[dict]:
    """Return rows of four steps, so the last quarter is one step."""
    return [{"preset": arm, "seed": seed, "step": step, "reward": reward if step == 4 else 9.0} for step in range(1, 5)]


ROWS = [
    *trained("none", 0, 0.1), *trained("none", 1, 0.2), *trained("none", 2, 0.3),
    *trained("a", 0, 1.1), *trained("a", 1, 2.2), *trained("a", 2, 3.3),
    *trained("b", 0, 0.0), *trained("b", 1, 0.1),
]  # fmt: skip


def test_paired_differences() -> None:
    """Check one pair: a − none is 1, 2, 3, so mean 2, deviation 1, n = 3. t(0.975; 2) = 4.3027, half 4.3027/√3.

    t = 2√3, and for 2 degrees of freedom p = 1 − t/√(t² + 2) = 1 − √(12/14). One seed has no interval.
    """
    assert end_rewards(ROWS)["a"] == {0: 1.1, 1: 2.2, 2: 3.3}
    (a,) = comparisons(ROWS, [("a", "none")])
    assert (a.arm, a.against, a.seeds) == ("a", "none", 3)
    assert a.difference.value == pytest.approx(2)
    assert a.difference.high - 2 == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert a.difference.low == pytest.approx(4 - a.difference.high)
    assert not a.difference.tells
    assert a.p_value == pytest.approx(1 - math.sqrt(12 / 14))
    (only,) = comparisons([row for row in ROWS if row["seed"] == 0], [("a", "none")])
    assert (only.difference.value, only.difference.low, only.difference.high) == (
        pytest.approx(1), -math.inf, math.inf,
    )  # fmt: skip


def test_gains() -> None:
    """Check the last two steps less the first two: (5 + 9)/2 − (1 + 2)/2 = 5.5. A skipped step counts in neither."""
    rows = [{"preset": "a", "seed": 0, "step": step, "reward": reward} for step, reward in enumerate([1, 2, 7, 5, 9])]
    assert gains(rows, 2) == {"a": {0: 5.5}}
    assert gains([*rows, {"preset": "a", "seed": 0, "step": 5, "reward": None}], 2) == {"a": {0: 9 - 1.5}}


def test_planned_pairs_come_first_and_no_pair_twice() -> None:
    endpoint = Endpoint(1, 0.03, (("none", "b"),))
    compared = compare_endpoints(ROWS, endpoint)
    assert [(pair.arm, pair.against) for pair in compared] == [("none", "b"), ("a", "none"), ("b", "a")]
    # The first step has a reward of 9, so the gains of a are 1.1 − 9, …: the same differences as of the last steps,
    # here with an interval of 95 % each.
    assert compared[1].difference.high - 2 == pytest.approx(4.30265 / 3**0.5, rel=1e-5)


def test_holm() -> None:
    """Check Holm (1979): 0.01·3, 0.02·2 and 0.6; and that 0.03·1 is raised to 0.02·2 and nothing exceeds 1."""
    assert holm([0.6, 0.01, 0.02]) == pytest.approx([0.6, 0.03, 0.04])
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.2, "better"), (-0.2, -0.01, "worse"), (-0.03, 0.02, "as good"), (-0.031, 0.02, "not known")],
)
def test_what_an_interval_says(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high), 0.03) == verdict


def test_more_comparisons_have_wider_intervals() -> None:
    """Check two pairs: t(0.9875; 2) = 6.2053. b has only seeds 0 and 1, and is 0.1 lower in both: no spread."""
    a, b = comparisons(ROWS, [("a", "none"), ("b", "none")])
    assert a.difference.high - 2 == pytest.approx(6.20535 / 3**0.5, rel=1e-5)
    assert b.seeds == 2
    assert (b.difference.low, b.difference.high) == pytest.approx((-0.1, -0.1))


def test_rank_correlation() -> None:
    """Check 1 − 6·Σd²/(n(n² − 1)) without ties: ranks 1 2 3 4 and 2 1 4 3, Σd² = 4, so 0.6. A tie shares its rank."""
    assert rank_correlation([1, 2, 3, 4], [20, 10, 40, 30]) == pytest.approx(0.6)
    assert rank_correlation([1, 1, 2], [1, 1, 5]) == pytest.approx(1)


def test_whether_eta_predicted_the_order() -> None:
    """Check the same order, and the opposite order; an arm that was not trained does not count."""
    rows = [
        row
        for arm, reward in enumerate((0.1, 0.2, 0.3, 0.4))
        for seed in (0, 1)
        for row in trained(str(arm), seed, reward)
    ]
    eta = {"0": 0.1, "1": 0.3, "2": 0.5, "3": 0.9, "other": 0.0}
    assert (progress_correlation(eta, rows).value, progress_correlation(eta, rows).low) == pytest.approx((1, 1))
    turned = {arm: -value for arm, value in eta.items()}
    assert progress_correlation(turned, rows).value == pytest.approx(-1)


# --- The ends of a study by kind of correction, against means and intervals computed here from its file ---


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
