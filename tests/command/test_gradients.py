import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import rlcorr
from ratio_batches import of_ratios
from tiny import tiny_config

from rlcorr.bounds import at_threshold
from rlcorr.command.cli import run_verb
from rlcorr.command.gradients import (
    _coverage_lines,
    _difference_sentence,
    _header,
    _heading,
    gradient_document,
    gradient_table,
    sweep_table,
)
from rlcorr.errors import UsageError
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import compare, difference, report
from rlcorr.gradients.sketch import ExactSketch, Reference, SampledSketch
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
    assert lines[0].startswith(f"tiny, step 2: 32 sequences, {tokens} tokens, 64 directions; ")
    assert "the reference is their gradient with exact sequence weights" in lines[0]
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


def test_which_is_best_and_how_sure_that_is(run: Path) -> None:
    names = ["disabled", "decoupled_seq_is", "skyrl_geo_mask"]
    text = prose(gradient_table(run, 2, names))
    ranking = compare(*read_gradients(run, 2), [preset(name) for name in names])
    for choice in ranking.choices:
        best = names[choice.best]
        assert f"With {choice.batch_size} answers in a batch {best} makes the most progress" in text
        assert f"In {choice.support[choice.best]:.0%} of the bootstrap samples it is the best." in text
    alone = prose(gradient_table(run, 2, ["skyrl_geo_mask"]))
    assert "bootstrap samples it is the best" not in alone
    assert "the next" not in alone
    assert "no correction" in alone


def test_what_would_be_needed_to_tell() -> None:
    """Compare with a calculation by hand: 0.1 with an interval from −0.1 needs four times as many answers, 64."""
    batch = of_ratios([1.0] * 16)
    sketch = SampledSketch(torch.zeros(16, 1), Reference(*torch.ones(2, 1, 1), *torch.ones(2, 1)))
    sentence = _difference_sentence(Interval(0.1, -0.1, 0.3), "x", batch, sketch)
    assert sentence == (
        " Its η does not differ significantly from that of x: by 0.100 [-0.100, 0.300]. "
        "To make it significant, about 64 sampled answers are needed; here are 16."
    )
    significant = _difference_sentence(Interval(0.1, 0.05, 0.3), "x", batch, sketch)
    assert significant == " Its η differs significantly from that of x: by 0.100 [0.050, 0.300]."
    assert (
        _difference_sentence(Interval(1e-9, -1e-7, 1e-5), "x", batch, sketch)
        == " To three digits x makes the same progress."
    )
    assert "more than 1,000,000 sampled answers" in _difference_sentence(Interval(1e-6, -0.2, 0.2), "x", batch, sketch)
    unknown = _difference_sentence(Interval(math.nan, math.nan, math.nan), "x", batch, sketch)
    assert unknown.startswith(" Its η does not differ significantly from that of x")
    assert "needed" not in unknown


def test_an_exact_sketch_says_what_it_covers(exact_run: Path) -> None:
    _, sketch = read_gradients(exact_run, 2)
    assert isinstance(sketch, ExactSketch)
    lines = gradient_table(exact_run, 2, ["disabled", "decoupled_geo_rs"])
    shares = sketch.answers.coverage
    answers = len(sketch.answers.prompts)
    assert f"every likely answer to {sketch.answers.prompt_count} prompts, {answers} in all" in lines[0]
    assert f"WARNING: These answers have {shares['old']:.2%} of the probability of π_old" in prose(lines)
    assert "Below 99% too much is left out: record with a lower --sketch.smallest-probability." in lines
    assert shares["old"] < 0.99
    noise = report(sketch.answers.batch, sketch, preset("disabled")).reference_noise
    share = f"{noise.value:.2f} [{noise.low:.2f}, {noise.high:.2f}]"
    assert f"Differences between the prompts make up the share {share} of the squared length" in prose(lines)
    assert f"worth {1 - noise.value:.2f} [{1 - noise.high:.2f}, {1 - noise.low:.2f}] times B here" in prose(lines)
    whole = replace(sketch, task_prompts=sketch.answers.prompt_count)
    said = _header(exact_run, 2, sketch.answers.batch, whole, report(sketch.answers.batch, whole, preset("disabled")))
    assert said[-1] == "The run trains on exactly these prompts: only the random directions are a sample."
    paired = Interval(0.1, -0.1, 0.3)  # twice as far to 0 as is allowed
    needed = f"significant, about {4 * whole.directions} random directions are needed; here are {whole.directions}."
    assert needed in _difference_sentence(paired, "x", sketch.answers.batch, whole)
    covered = _coverage_lines(replace(sketch, tree=certain(sketch)))
    assert covered == ["These answers have 100.00% of the probability of π_old, 100.00% of the engine's."]


def certain(sketch: ExactSketch) -> AnswerTree:
    """Return the tree with equal probabilities for the answers of a prompt, which sum to 1."""
    answers = sketch.answers
    counts = answers.prompts.bincount()
    log_probs = torch.zeros(len(sketch.tree.tokens))
    for row, prompt in enumerate(answers.prompts.tolist()):
        last = answers.nodes[int(answers.batch.response_mask.sum(-1)[: row + 1].sum()) - 1]
        log_probs[last] = -math.log(int(counts[prompt]))
    return replace(sketch.tree, old_log_probs=log_probs, rollout_log_probs=log_probs, sampled_log_probs=log_probs)


def test_the_document(run: Path) -> None:
    """Compare the JSON numbers with the report and with paired differences."""
    names = ["decoupled_geo_rs", "disabled", "decoupled_seq_is"]
    document = json.loads(gradient_document(run, 2, names))
    assert [entry["preset"] for entry in document] == names
    ranking = compare(*read_gradients(run, 2), [preset(name) for name in names])
    for number, (entry, got) in enumerate(zip(document, ranking.reports, strict=True)):
        numbers = {"preset", "bias", "noise", "cosine", "eta", "eta_minus_disabled"}
        assert set(entry) == numbers | {"coverage", "prompts", "task_prompts", "reference_noise"}
        assert (entry["coverage"], entry["prompts"], entry["task_prompts"]) == (None, None, None)
        pairs = [(entry["bias"], got.relative_bias), (entry["cosine"], got.cosine)]
        for place, size in enumerate(("256", "4096")):
            gained = difference(ranking.progress[number, place], ranking.progress[1, place])
            pairs += [(entry["eta"][size], got.progress[place]), (entry["noise"][size], got.noise[place])]
            pairs += [(entry["eta_minus_disabled"][size], gained)]
        for numbers, interval in pairs:
            for number_there, number_here in zip(numbers, vars(interval).values(), strict=True):
                assert number_there == (
                    pytest.approx(number_here, rel=1e-4, abs=1e-6) if math.isfinite(number_here) else None
                )
    assert document[1]["eta_minus_disabled"] == {"256": [0, 0, 0], "4096": [0, 0, 0]}


def test_the_document_on_the_command_line(exact_run: Path) -> None:
    """Print only JSON on stdout, for all presets, with null for unknown numbers."""
    done = rlcorr("gradients", str(exact_run), "--json", runs_folder=exact_run.parent.parent, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [entry["preset"] for entry in document] == list(RANKED)
    _, sketch = read_gradients(exact_run, 2)
    assert isinstance(sketch, ExactSketch)
    for entry in document:
        assert entry["coverage"] == pytest.approx(sketch.answers.coverage)
        assert entry["prompts"] == sketch.answers.prompt_count
        assert entry["reference_noise"][1] <= entry["reference_noise"][0] <= entry["reference_noise"][2] <= 1
        assert set(entry["eta"]) == set(entry["noise"]) == set(entry["eta_minus_disabled"]) == {"256", "4096"}
    rejecting = [entry for entry in document if entry["cosine"][0] is None]
    assert all(entry["eta"]["256"][0] in (0, None) for entry in rejecting)


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


@pytest.mark.parametrize("name", ["decoupled_token_is", "m2po"])
def test_a_sweep_over_a_threshold(run: Path, name: str) -> None:
    """Check twenty ascending thresholds, the report at the loosest, and that the best one is in its own interval.

    The loosest threshold of M2PO is the mean of all d², at which nothing is dropped.
    """
    lines = sweep_table(run, name, 2)
    rows = rows_of(lines)
    thresholds = [float(line.split()[0]) for line in rows]
    assert len(thresholds) == 20
    assert thresholds == sorted(thresholds)
    batch, sketch = read_gradients(run, 2)
    if name == "m2po":
        assert batch.old_log_probs is not None
        d = (batch.old_log_probs - batch.rollout_log_probs)[batch.response_mask]
        assert thresholds[-1] == pytest.approx(d.double().square().mean().item(), rel=1e-5)
    last = preset("disabled") if name == "m2po" else at_threshold(preset(name), thresholds[-1])
    assert shown(report(batch, sketch, last).relative_bias) in rows[-1]
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
        (["--json", "--sweep", "decoupled_token_is"], "--json prints presets, not a sweep"),
    ):
        with pytest.raises(UsageError, match=message):
            run_verb(["gradients", str(run), *words])


def test_without_a_sketch_it_names_the_command(run: Path, tiny_model: Path, local_runs: Path) -> None:
    assert last_sketch(run) == 2
    with pytest.raises(UsageError, match=r"step 3 of tiny has no score sketch \(steps that have one: 2\)"):
        gradient_table(run, 3)
    bare = loop.train(tiny_config(tiny_model, run="bare"))
    with pytest.raises(UsageError, match=r"step 2 of bare has no score sketch .*--sketch.every 2"):
        gradient_table(bare)


def test_a_reference_that_is_noise_is_no_unit(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse a run without rewards, in which every advantage of GRPO is 0."""
    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda *_: 0.0))
    silent = loop.train(tiny_config(tiny_model, advantage=AdvantageConfig(estimator="grpo"), sketch=FEW))
    with pytest.raises(UsageError, match="step 2 of tiny: the on-policy gradient cannot be distinguished from"):
        gradient_table(silent)
