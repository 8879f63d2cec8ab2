import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_config

from rlcorr.bounds import at_threshold
from rlcorr.command import gradients
from rlcorr.command.cli import run_verb
from rlcorr.command.gradients import _heading, gradient_table, sweep_table
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import compare, report
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.presets import RANKED, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, updated_batch
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, SketchConfig
from rlcorr.train.inputs.tasks import TASKS

pytestmark = pytest.mark.slow  # complete training runs

FEW = SketchConfig(every=2, directions=64)


@pytest.fixture(scope="module")
def long_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reward long answers, because a random model never answers right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("runs") / "local")
        patch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: len(response) / 5))
        yield


@pytest.fixture(scope="module")
def run(long_answers: None, tiny_model: Path) -> Path:
    return loop.train(tiny_config(tiny_model, prompts_per_step=16, steps=3, sketch=FEW))


@pytest.fixture(scope="module")
def exact_run(long_answers: None, tiny_model: Path) -> Path:
    """Train with an exact sketch of eight prompts. Most answers of a random model are too unlikely for it."""
    exact = replace(FEW, exact_prompts=8, smallest_probability=0.003)
    return loop.train(tiny_config(tiny_model, run="exact", sketch=exact))


def rows_of(lines: list[str]) -> list[str]:
    """Return the rows of the table, without heading, separators and sentences."""
    heading = next(number for number, line in enumerate(lines) if line.endswith(_heading("")[-40:]))
    after = lines[heading + 1 :]
    return [line for line in after[: after.index("")] if line.strip("-")]


def prose(lines: list[str]) -> str:
    """Join wrapped lines."""
    return " ".join(lines)


def numbers_in(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def shown(interval: Interval) -> str:
    value = "–" if math.isnan(interval.value) else f"{interval.value:z.3f}"
    return f"{value} [{interval.low:z.3f}, {interval.high:z.3f}]"


def test_all_presets_by_their_progress(run: Path) -> None:
    """Check the order by progress at 256 answers, and the lines between groups."""
    lines = gradient_table(run)
    tokens = int(runs.read_step(run, 2).batch.response_mask.sum())
    assert lines[0].startswith(f"tiny, step 2: 32 answers, {tokens} tokens, 64 directions; ")
    rows = rows_of(lines)
    assert {row.split()[0] for row in rows} == set(RANKED)
    ranking = compare(*read_gradients(run, 2), [preset(name) for name in RANKED])
    order = [number for group in ranking.choices[0].groups for number in group]
    assert [row.split()[0] for row in rows] == [list(RANKED)[number] for number in order]
    shares = [numbers_in(row)[-6] for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(set(line) == {"-"} for line in lines) == len(ranking.choices[0].groups)


def test_the_numbers_are_the_reports(run: Path) -> None:
    (line,) = rows_of(gradient_table(run, 2, ["decoupled_token_is"]))
    got = report(*read_gradients(run, 2), preset("decoupled_token_is"))
    for interval in (got.relative_bias, got.cosine, got.scale, *got.progress):
        assert shown(interval) in line
    assert f"{got.noise[0].value:.2f} " in line
    assert f" {got.ess.value:.0%} " in line


def test_an_exact_sketch_says_what_it_covers(exact_run: Path) -> None:
    _, sketch = read_gradients(exact_run, 2)
    assert isinstance(sketch, ExactSketch)
    text = prose(gradient_table(exact_run, 2, ["disabled", "decoupled_geo_rs"]))
    shares = sketch.answers.coverage
    assert (
        f"These are the likely answers to {sketch.answers.prompt_count} prompts. They have {shares['old']:.2%}" in text
    )
    assert shares["old"] < 0.99
    assert "WARNING: too much is left out: record with a lower --sketch.smallest-probability." in text


def test_advantages_are_those_of_an_update(run: Path, tiny_model: Path, local_runs: Path) -> None:
    """Check PPO's whitening (mean 0 and variance 1 over the tokens); GRPO compares the samples of a prompt instead."""
    batch = updated_batch(run, 2)
    assert batch.advantages is not None
    seen = batch.advantages[batch.response_mask]
    assert (float(seen.mean()), float(seen.std(correction=0))) == pytest.approx((0, 1), abs=1e-3)
    grouped = loop.train(tiny_config(tiny_model, run="grpo", advantage=AdvantageConfig(estimator="grpo"), sketch=FEW))
    recorded, updated = runs.read_step(grouped, 2).batch.advantages, updated_batch(grouped, 2).advantages
    assert recorded is not None
    assert updated is not None
    assert torch.equal(recorded, updated)


def test_a_sweep_over_a_threshold(run: Path) -> None:
    """Check twenty ascending thresholds, the report at the loosest, and that the best one is in its own interval."""
    lines = sweep_table(run, "decoupled_token_is", 2)
    rows = rows_of(lines)
    thresholds = [float(line.split()[0]) for line in rows]
    assert len(thresholds) == 20
    assert thresholds == sorted(thresholds)
    last = at_threshold(preset("decoupled_token_is"), thresholds[-1])
    assert shown(report(*read_gradients(run, 2), last).relative_bias) in rows[-1]
    for size in (256, 4096):
        sentence = prose(lines).split(f"With {size} answers in a batch the most progress is made at ")[1]
        best, low, high = [float(x) for x in re.findall(r"\d+\.?\d*(?:e-\d+)?", sentence) if x != "95"][:3]
        assert any(best == pytest.approx(threshold, rel=1e-4) for threshold in thresholds)
        assert low <= high


def test_the_verb(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run_verb(["gradients", str(run), "--presets", "disabled", "decoupled_seq_is"]) == 0
    names = {line.split()[0] for line in rows_of(capsys.readouterr().out.splitlines())}
    assert names == {"disabled", "decoupled_seq_is"}
    assert run_verb(["gradients", str(run), "--sweep", "decoupled_seq_is_rs", "--rule", "0"]) == 0
    assert "decoupled_seq_is_rs at" in capsys.readouterr().out
    for words, message in (
        (["--presets", "decoupled_sequence"], "unknown preset"),
        (["--sweep", "disabled"], "neither weights nor rejection rules"),
        (["--sweep", "decoupled_seq_is_rs", "--rule", "1"], "rule must be below 1"),
    ):
        with pytest.raises(UsageError, match=message):
            run_verb(["gradients", str(run), *words])


def test_without_a_sketch_it_names_the_option(run: Path) -> None:
    assert last_sketch(run) == 2
    with pytest.raises(UsageError, match=r"step 3 of tiny .* \(steps that have one: 2\).*--sketch.every 3"):
        gradient_table(run, 3)


def test_a_reference_that_is_noise_is_no_unit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a step without rewards, in which every advantage is 0."""
    batch, sketch = read_gradients(run, 2)
    assert batch.advantages is not None
    silent = batch.replace(advantages=torch.zeros_like(batch.advantages))
    monkeypatch.setattr(gradients, "read_gradients", lambda *_: (silent, sketch))
    with pytest.raises(UsageError, match="step 2 of tiny: the on-policy gradient cannot be distinguished from"):
        gradient_table(run)
