"""The gradient view: its numbers are the library's, and what it cannot show it says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import app_pages
import pytest
import torch
from app_pages import (
    committed,
    live_parts,
    one_scan,
    open_app,
    open_view,
    root,
    said,
    shown,
    two_digits,
    widget,
)
from app_runs import make_run, write_sketch
from streamlit.testing.v1 import AppTest

from rlcorr import PRESETS, TokenBatch, preset
from rlcorr.bounds import BoundId
from rlcorr.figures.canvas import RED, WARM
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import compare, report
from rlcorr.gradients.sketch import ExactSketch, SampledUnits, Sketch
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.presets import RANKED
from rlcorr.presets.titles import title
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients

__all__ = ["committed", "one_scan", "root"]  # fixtures

GRADIENT = "views/gradient.py"
PROMPTS, DIRECTIONS = 12, 32


def exact_sketch(covered: float = 1.0) -> ExactSketch:
    """Of every prompt two answers of two tokens, which begin alike, and one of one token; `covered` is how likely they
    are together in the trainer. The trainer likes what is worth more."""
    some = torch.Generator().manual_seed(3)
    first = torch.arange(PROMPTS) * 4
    parents = torch.stack([torch.full((PROMPTS,), -1), first, first, torch.full((PROMPTS,), -1)], 1)
    rollout = torch.tensor([0.6, 0.5, 0.5, 0.4]).log().repeat(PROMPTS, 1)
    gap = 0.3 * torch.randn(PROMPTS, 4, generator=some)
    old = (rollout + gap).exp()
    old = old / torch.stack([old[:, 0] + old[:, 3], *[old[:, 1] + old[:, 2]] * 2, old[:, 0] + old[:, 3]], 1)
    old[:, [0, 3]] *= covered
    tree = AnswerTree(
        prompts=torch.arange(PROMPTS).repeat_interleave(4), parents=parents.flatten(),
        tokens=torch.tensor([5, 6, 7, 8]).repeat(PROMPTS), old_log_probs=old.log().flatten(),
        rollout_log_probs=rollout.flatten(), sampled_log_probs=rollout.flatten(),
    )  # fmt: skip
    scores = (
        torch.randn(4 * PROMPTS, DIRECTIONS, generator=some)
        + torch.tensor([1.0, 0.5, -0.5, -1]).repeat(PROMPTS)[:, None]
    )
    # Answer by answer, token by token: first and second token of two answers, then the short one.
    advantages = torch.tensor([1.5, 1.5, 0.5, 0.5, -1.0]).repeat(PROMPTS)
    return ExactSketch(tree, advantages, scores, weights_hash="weights", directions_hash="directions")


def make_exact(root: Path, covered: float = 1.0) -> tuple[TokenBatch, Sketch]:
    """A run whose step has every likely answer; what is read of it."""
    run = make_run(root, "alpha", steps=1, sequences=32, width=8)
    write_sketch(run, exact_sketch(covered))
    return read_gradients(run, 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests that ask for `exact`: what the app has computed of its run stays in its caches."""
    folder = tmp_path_factory.mktemp("runs")
    make_exact(folder)
    return folder


@pytest.fixture
def exact(root: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TokenBatch, Sketch]:
    """The app over a run whose step has every likely answer; what is read of it."""
    monkeypatch.setattr(runs, "ROOT", recorded)
    return read_gradients(recorded / "alpha", 0)


def pictures(at: AppTest) -> dict[str, Any]:
    """Title → figure."""
    return {picture["title"]: json.loads(picture["figure"]) for picture in app_pages.pictures(at)}


@pytest.mark.parametrize(("covered", "warned"), [(0.98, True), (0.995, False)])
def test_what_is_not_covered_is_said(root: Path, covered: float, warned: bool) -> None:
    make_exact(root, covered)
    at = open_app(GRADIENT)
    assert f"which cover {100 * covered:.2f} % of the probability" in said(at)
    warning = f"have only {100 * covered:.2f} % of the probability in the trainer and 100 % in the sampler"
    assert (warning in said(at)) == warned


def test_the_answers_in_a_batch_move_numbers_and_pictures(exact: tuple[TokenBatch, Sketch]) -> None:
    """From the URL (the slider itself is dragged in tests/browser); what a batch has no part in stays."""
    batch, sketch = exact
    expected = report(batch, sketch, preset("decoupled_token_is"), batch_sizes=(16, 256, 65536))
    at = open_app(GRADIENT)
    usual, drawn = shown(at), pictures(at)
    at = open_app(GRADIENT, answers="65536")
    large = shown(at)
    assert [usual["Progress (η)"], large["Progress (η)"]] == [two_digits(eta.value) for eta in expected.progress[1:]]
    assert [usual["Noise"], large["Noise"]] == [two_digits(noise.value) for noise in expected.noise[1:]]
    assert usual["Progress (η)"] != large["Progress (η)"]
    assert (usual["Bias"], usual["Cosine"]) == (large["Bias"], large["Cosine"])
    moved = {title for title, figure in pictures(at).items() if figure != drawn[title]}
    assert moved == {"Progress of this step at each threshold", "Presets by the progress of one step"}
    at = open_app(GRADIENT, answers="16")
    assert shown(at)["Progress (η)"] == two_digits(expected.progress[0].value)
    open_view(at, "compare")
    assert widget(at.select_slider, "answers").value == 16


def test_advice_that_training_contradicts_is_never_first(committed: None) -> None:
    """Rules that reject whole answers make the best step of this run, and ended below no correction in its study."""
    run = runs.ROOT / "stale_4"
    ranking = compare(*read_gradients(run, last_sketch(run)), [preset(name) for name in RANKED])
    assert PRESETS[RANKED[ranking.choices[0].best]].config.rollout_rs[0].level == "sequence"
    at = open_app(GRADIENT, run="stale_4")
    (part,) = live_parts(at)
    assert part["said"].startswith("<strong>Rules that reject whole answers look good on this step, but ended at")
    rejecting = {name for name in RANKED if any(rule.level == "sequence" for rule in PRESETS[name].config.rollout_rs)}
    drawn = pictures(at)["Presets by the progress of one step"]
    red = [name for name, colour in zip(drawn["data"][0]["y"], drawn["data"][0]["marker"]["color"], strict=True)
           if colour == RED]  # fmt: skip
    assert red == drawn["data"][0]["y"][-len(red) :]
    assert {*red} == {*drawn["data"][0]["y"]} & rejecting - {"trl_opsm", "disabled"}
    assert len(drawn["data"][0]["y"]) == 10
    eta = {name: one.progress[0].value for name, one in zip(RANKED, ranking.reports, strict=True)}
    best = max(eta.keys() - rejecting, key=eta.__getitem__)
    assert f"Of the others, <strong>{title(PRESETS[best])} · " in part["said"]


def test_a_best_preset_or_threshold_that_the_answers_do_not_tell_is_not_named(exact: tuple[TokenBatch, Sketch]) -> None:
    batch, sketch = exact
    choice = compare(batch, sketch, [preset(name) for name in RANKED]).choices[0]
    assert not choice.over_nothing.tells
    at = open_app(GRADIENT)
    sentences = said(at)
    cannot = f"These {PROMPTS} prompts cannot tell which preset is best, or whether any is better than no correction."
    assert f"With 256 answers in a batch, {cannot[0].lower()}{cannot[1:]} That would take " in sentences
    assert "makes the most progress" not in sentences
    curve = pictures(at)["Progress of this step at each threshold"]
    assert [shape["line"].get("dash") for shape in curve["layout"]["shapes"]] == ["dot"]
    cannot = (
        f"These {PROMPTS} prompts cannot tell which threshold is best, or whether any is better than no correction."
    )
    assert live_parts(at)[0]["texts"]["answer"].startswith(f"{cannot} That would take ")
    assert "gives the best step" not in sentences


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ((0.4, 0.05, 0.64), "The next one, it, is 0.40 (0.05 to 0.64) behind."),
        ((0.1, -0.1, 0.3), "It ties with the next one, it. To separate them, record about 400 sampled answers (this "
         "step has 100)."),
        ((0.1, -0.001, 0.2), "To separate them, record a few more sampled answers (this step has 100)."),
        ((1e-4, -0.1, 0.3), "To separate them, record more than a million sampled answers (this step has 100)."),
        ((0.0, -0.1, 0.1), "It ties with the next one, it."),
    ],
)  # fmt: skip
def test_what_it_would_take_is_said(committed: None, over: tuple[float, float, float], sentence: str) -> None:
    """Intervals shrink with the root of the number: half as wide as they are takes four times as many."""
    from views.gradient import lead

    paired = Interval(*over)
    told = lead(paired, "it", SampledUnits(100, "sampled answers"))
    assert told.endswith(sentence)


def test_a_short_ranking_is_in_the_librarys_order(exact: tuple[TokenBatch, Sketch]) -> None:
    """The preset's own bar is warm; a line over them all is at the progress of what is shown."""
    batch, sketch = exact
    ranking = compare(batch, sketch, [preset(name) for name in RANKED], batch_sizes=[1024])
    order = [list(RANKED)[number] for group in ranking.choices[0].groups for number in group]
    drawn = pictures(open_app(GRADIENT, answers="1024"))["Presets by the progress of one step"]
    bars = drawn["data"][0]
    assert bars["y"] == [name for name in order if name in bars["y"]]
    assert {"decoupled_token_is", "disabled", "trl_sequence_mask", "skyrl_token_tis", order[0]} <= {*bars["y"]}
    titles = dict(zip(drawn["layout"]["yaxis"]["tickvals"], drawn["layout"]["yaxis"]["ticktext"], strict=True))
    assert len(set(titles.values())) == 10  # with the system, or with the name if a system has two that agree
    assert titles["decoupled_token_is"] == "Cap each token's weight at 2 · verl"
    of_preset = bars["x"][bars["y"].index("decoupled_token_is")]
    colours = zip(bars["y"], bars["marker"]["color"], strict=True)
    assert [name for name, colour in colours if colour == WARM] == ["decoupled_token_is"]
    assert drawn["layout"]["shapes"][-1]["x0"] == of_preset
    changed = pictures(open_app(GRADIENT, answers="1024", is_upper="1.05"))["Presets by the progress of one step"]
    assert changed["data"] == drawn["data"]
    tighter = replace(preset("decoupled_token_is"), rollout_is_threshold=1.05)
    eta = report(batch, sketch, tighter, batch_sizes=[1024]).progress[0].value
    assert changed["layout"]["shapes"][-1]["x0"] == pytest.approx(eta) != of_preset


def test_the_best_bound_is_said(committed: None) -> None:
    """With two digits, because the interval of this run has no more."""
    run = runs.ROOT / "stale_4"
    measured = read_gradients(run, last_sketch(run))
    sweep = gradient_sweep(*measured, preset("decoupled_token_is"), BoundId(None, "upper"))
    at = open_app(GRADIENT, run="stale_4")
    curve = pictures(at)["Progress of this step at each threshold"]
    best = next(shape for shape in curve["layout"]["shapes"] if shape["line"].get("dash") == "dash")
    line = next(trace for trace in curve["data"] if trace["name"] == "progress")
    assert best["x0"] == max(zip(line["y"], line["x"], strict=True))[1]
    (ends,) = re.findall(r"A cap between ([\d.]+) and ([\d.]+) gives the best step, and still only 3 % of", said(at))
    low, high = ends
    assert float(low) == pytest.approx(sweep.best[0].low, rel=0.3)
    assert float(high) == pytest.approx(sweep.best[0].high, rel=0.3)
    assert max(len(end.replace(".", "").lstrip("0")) for end in (low, high)) <= 3


def test_a_step_without_a_sketch_offers_one_that_has(committed: None) -> None:
    at = open_app(GRADIENT, run="stale_4", step="20")
    assert "step 20 of stale_4 has no score sketch (steps that have one: 40)" in said(at)
    at.button(key="sketched_40").click().run()
    assert not at.exception
    assert "Bias" in shown(at)
    widget(at.selectbox, "preset").set_value("disabled").run()
    assert "This configuration has no threshold to move." in said(at)
