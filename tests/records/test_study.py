import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from step_records import make_run

from rlcorr.command.cli import run_verb
from rlcorr.command.study import study_table
from rlcorr.command.study_workers import arm_config
from rlcorr.errors import UsageError
from rlcorr.records import runs, study
from rlcorr.records.study import Arm, SeedRange
from rlcorr.records.study_comparisons import against_control, pooled_accuracies
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
