import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_config

from rlcorr.analysis.thresholds import at_threshold
from rlcorr.command.cli import run_verb
from rlcorr.command.tables import HEADING, gradient_table, sweep_table
from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, SketchConfig
from rlcorr.train.inputs.tasks import TASKS

pytestmark = pytest.mark.slow  # whole trainings with large references

FEW = SketchConfig(every=2, directions=10, reference_prompts=256)
SMALL = replace(FEW, reference_prompts=64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """A random model never answers right; long answers are good here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("runs") / "local")
        rewarding = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
        patch.setitem(TASKS, "addition", rewarding)
        yield loop.train(tiny_config(tiny_model, prompts_per_step=16, steps=3, sketch=FEW))


def rows_of(lines: list[str]) -> list[str]:
    """The lines between the heading and the units."""
    heading = next(number for number, line in enumerate(lines) if line.endswith(HEADING.format("")[-40:]))
    after = lines[heading + 1 :]
    return after[: after.index("")]


def test_all_presets_by_their_error(run: Path) -> None:
    lines = gradient_table(run)
    tokens = int(runs.read_step(run, 2).batch.response_mask.sum())
    assert lines[0].startswith(f"tiny, step 2: 32 sequences, {tokens} tokens, 10 directions; ")
    assert "of 512 on-policy responses" in lines[0]
    rows = [line.split() for line in rows_of(lines)]
    assert {row[0] for row in rows} == set(PRESETS)
    errors = [float(re.findall(r"\] +\d+\.\d+ +(\d+\.\d+) ", line)[0]) for line in rows_of(lines)]
    assert errors == sorted(errors)
    assert sum(int(row[-1].rstrip("%")) for row in rows) == pytest.approx(100, abs=10)  # rounded


def test_the_numbers_are_the_reports(run: Path) -> None:
    (line,) = rows_of(gradient_table(run, 2, ["decoupled_token_is"]))
    got = report(updated_batch(run, 2), read_sketch(run, 2), preset("decoupled_token_is"))
    assert f"{got.relative_bias.value:.2f} [{got.relative_bias.low:.2f}, {got.relative_bias.high:.2f}]" in line
    assert f"{got.cosine.value:.2f} [{got.cosine.low:.2f}, {got.cosine.high:.2f}]" in line


def test_advantages_are_those_of_an_update(run: Path, tiny_model: Path, local_runs: Path) -> None:
    """PPO whitens: mean 0 and variance 1 over the tokens. GRPO compares the samples of a prompt instead."""
    batch = updated_batch(run, 2)
    assert batch.advantages is not None
    seen = batch.advantages[batch.response_mask]
    assert (float(seen.mean()), float(seen.std(correction=0))) == pytest.approx((0, 1), abs=1e-3)
    grouped = loop.train(tiny_config(tiny_model, run="grpo", advantage=AdvantageConfig(estimator="grpo"), sketch=SMALL))
    recorded, updated = runs.read_step(grouped, 2).batch.advantages, updated_batch(grouped, 2).advantages
    assert recorded is not None
    assert updated is not None
    assert torch.equal(recorded, updated)


def test_one_preset_over_its_threshold(run: Path) -> None:
    """Twenty thresholds, ascending, with the report at each; the best one is among them and in its own interval."""
    lines = sweep_table(run, "decoupled_token_is", 2)
    rows = rows_of(lines)
    thresholds = [float(line.split()[0]) for line in rows]
    assert len(thresholds) == 20
    assert thresholds == sorted(thresholds)
    last = at_threshold(preset("decoupled_token_is"), thresholds[-1])
    got = report(updated_batch(run, 2), read_sketch(run, 2), last)
    assert f"{got.relative_bias.value:.2f} [{got.relative_bias.low:.2f}, {got.relative_bias.high:.2f}]" in rows[-1]
    (sentence,) = [line for line in lines if line.startswith("The smallest error is at ")]
    best, low, high = (
        float(number.rstrip(".")) for number in re.findall(r"\d+\.?\d*(?:e-\d+)?", sentence) if number != "95"
    )
    assert any(best == pytest.approx(threshold, rel=1e-4) for threshold in thresholds)
    assert low <= high


def test_the_verb_over_a_threshold(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run_verb(["gradients", str(run), "--sweep", "decoupled_seq_is_rs", "--rule", "0"]) == 0
    assert "decoupled_seq_is_rs at" in capsys.readouterr().out
    with pytest.raises(UsageError, match="neither weights nor rejection rules"):
        run_verb(["gradients", str(run), "--sweep", "disabled"])
    with pytest.raises(UsageError, match="rule must be below 1"):
        run_verb(["gradients", str(run), "--sweep", "decoupled_seq_is_rs", "--rule", "1"])


def test_the_verb(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run_verb(["gradients", str(run), "--presets", "disabled", "decoupled_seq_is"]) == 0
    assert {line.split()[0] for line in rows_of(capsys.readouterr().out.splitlines())} == {
        "disabled",
        "decoupled_seq_is",
    }
    with pytest.raises(UsageError, match="unknown preset"):
        run_verb(["gradients", str(run), "--presets", "decoupled_sequence"])


def test_without_a_sketch_it_names_the_command(run: Path, tiny_model: Path, local_runs: Path) -> None:
    assert last_sketch(run) == 2
    with pytest.raises(UsageError, match=r"step 3 of tiny has no score sketch \(steps that have one: 2\)"):
        gradient_table(run, 3)
    bare = loop.train(tiny_config(tiny_model, run="bare"))
    with pytest.raises(UsageError, match=r"step 2 of bare has no score sketch .*--sketch.every 2"):
        gradient_table(bare)


def test_a_reference_that_is_noise_is_no_unit(tiny_model: Path, local_runs: Path) -> None:
    """Nothing is rewarded: every advantage of GRPO is 0."""
    silent = loop.train(tiny_config(tiny_model, advantage=AdvantageConfig(estimator="grpo"), sketch=SMALL))
    with pytest.raises(UsageError, match="step 2 of tiny: the on-policy gradient cannot be told from its noise"):
        gradient_table(silent)
