import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_config

from rlcorr.command.cli import run_verb
from rlcorr.command.study import study_table
from rlcorr.command.study_workers import arm_config
from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs, study
from rlcorr.records.sketch_files import read_gradients
from rlcorr.records.study import Arm, SeedRange, TrainedArm
from rlcorr.records.study_comparisons import (
    against_control,
    pooled_accuracies,
)
from rlcorr.train import loop
from rlcorr.train.config.learning import SketchConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS


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


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="stale_8"):
        study.find_study("stale_9")


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


def test_over_seeds_at_a_step() -> None:
    rows = [row("a", 0, 1, 0.0), row("a", 0, 2, 1.0), row("a", 1, 1, 0.5), row("a", 1, 2, 2.0), row("b", 0, 1, 9.0)]
    assert study.course(rows, "a", "reward") == ([1, 2], [SeedRange(0.25, 0, 0.5), SeedRange(1.5, 1, 2)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """Train a random model, which never answers right. So this task rewards long answers."""
    with pytest.MonkeyPatch.context() as patch:
        rewarded = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
        patch.setitem(TASKS, "addition", rewarded)
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("runs") / "local")
        sketch = SketchConfig(every=2, directions=64)
        yield loop.train(tiny_config(tiny_model, preset="decoupled_seq_is", prompts_per_step=16, sketch=sketch))


@pytest.mark.slow
def test_rows_of_a_training(trained: Path) -> None:
    """Check that rows have the numbers of metrics.jsonl and, if there is a sketch, the preset's gradient report."""
    arm = study.Arm("decoupled_seq_is", 0, ())
    loss = PRESETS["decoupled_seq_is"].loss
    rows = study.run_rows(trained, arm, preset("decoupled_seq_is"), loss)
    recorded = runs.read_metrics(trained)
    assert [row["step"] for row in rows] == [metrics["step"] for metrics in recorded]
    assert [row["k3"] for row in rows] == [metrics["rollout_corr/k3_kl"] for metrics in recorded]
    assert rows[0]["relative_bias_value"] is None
    expected = report(*read_gradients(trained, 2), preset("decoupled_seq_is"), loss)
    assert rows[1]["scale_low"] == expected.scale.low
    assert rows[1]["relative_bias_value"] == expected.relative_bias.value
    assert rows[1]["cosine_high"] == expected.cosine.high


@pytest.mark.slow
def test_a_study_is_written_and_read(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check numbers in float32, provenance from the manifests, and that a damaged file is named."""
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    (tmp_path / "index.toml").write_text(
        '[shared]\nseeds = [0]\narms = ["disabled", "half"]\noptions = ""\nsketches = ""\n'
        '[shared.arm]\nhalf = "--preset disabled --budget.rule token_k1 --budget.keep 0.5"\n'
        '[small]\nstory = "A story."\nlook = "Nothing."\noptions = "--steps 2"\n'
    )
    with pytest.raises(UsageError, match="python -m rlcorr study small --train makes it"):
        study.read_study("small")
    small = study.find_study("small")
    arm, half = small.arms
    assert (arm.name, half.name, half.options[-7:-3]) == (
        "disabled",
        "half",
        ("token_k1", "--budget.keep", "0.5", "--seed"),
    )
    manifest = runs.read_manifest(trained)
    rows = study.run_rows(trained, arm, preset("disabled"), PRESETS["disabled"].loss)
    about = {key: getattr(manifest, key) for key in study.ORIGIN}
    study.write_trained(small, arm, TrainedArm(rows, about | {"progress": {}}))
    assert study.missing(small) == [half]
    path = study.gather(small)
    study.arm_path(small, arm).unlink()
    assert study.missing(small) == [half]
    got, provenance = study.read_study("small")
    assert [row["step"] for row in got] == [row["step"] for row in rows]
    assert got[1]["reward"] == pytest.approx(rows[1]["reward"], rel=1e-6)
    assert got[0]["relative_bias_value"] is None
    assert (provenance["engine"], provenance["git_commits"]) == (manifest.engine, [manifest.git_commit])
    assert provenance["origins"] == {arm.label: about}
    assert manifest.weights_sha256.keys() == {"model.safetensors"}
    assert manifest.started <= manifest.ended
    assert "1 seeds, 2 steps" in study_table("small")[2]
    changed = replace(small, arms=(replace(arm, options=(*arm.options, "--steps", "3")), half))
    with pytest.raises(UsageError, match=r"small.parquet: disabled_0 was trained with other options"):
        study.missing(changed)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(runs.DamagedFile, match=re.escape(str(path))):
        study.read_study("small")


# --- the committed study ---


CHANGED = "63efe7912154+"
"""Commit of the long studies: 63efe79 with the change of cc9aa97, without which one run stopped (runs/README.md)."""


def test_every_study_is_trained_unless_it_says_so() -> None:
    untrained = {name for name, studied in study.read_index().items() if study.missing(studied)}
    assert untrained == study.read_index().keys() - study.finished_studies().keys()


@pytest.mark.slow
def test_the_committed_study_is_whole(configs: Configs) -> None:
    """Check that the tables have the arms of the index, all steps and no others, and gradients at sketched steps."""
    for name in study.finished_studies():
        rows, provenance = study.read_study(name)
        by_arm: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows:
            by_arm.setdefault((row["preset"], row["seed"]), []).append(row)
        for config, arms in configs[name]:
            every, last = config.sketch.every, config.sketch.until or config.steps
            sketched_steps = [step for step in range(1, last + 1) if step % every == 0] if every else []
            for arm in arms:
                trained = by_arm.pop((arm.name, arm.seed))
                assert [row["step"] for row in trained] == list(range(1, config.steps + 1)), (name, arm.label)
                assert all(math.isfinite(row["reward"]) and math.isfinite(row["k3"]) for row in trained)
                with_gradient = [row["step"] for row in trained if row["relative_bias_value"] is not None]
                assert with_gradient == sketched_steps, (name, arm.label)
        assert by_arm == {}, name
        assert provenance["engine"].startswith("vllm")
        commits = set(provenance["git_commits"]) - {CHANGED}
        assert all(commit and not commit.endswith("+") for commit in commits), name


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["study", "stale_8"]) == 0
    assert "decoupled_seq_is" in capsys.readouterr().out


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
