"""The gradient view: its numbers are the library's, and what it cannot show it says."""

from pathlib import Path

import pytest
from app_pages import committed, one_scan, open_app, root, said, shown
from app_runs import make_run

from rlcorr import preset
from rlcorr.gradients.report import report
from rlcorr.records import recipes, runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch

__all__ = ["committed", "one_scan", "root"]  # fixtures

GRADIENT = "views/gradient.py"


@pytest.mark.parametrize("name", recipes.read_index())
def test_every_committed_run_has_its_gradients(committed: None, name: str) -> None:
    run = runs.ROOT / name
    step = last_sketch(run)
    expected = report(updated_batch(run, step), read_sketch(run, step), preset("decoupled_k3_rs"))
    at = open_app(GRADIENT, run=name, step=str(step), preset="decoupled_k3_rs")
    numbers = shown(at)
    assert numbers["Bias"] == f"{expected.relative_bias.value:.2f}"
    assert numbers["Error"] == f"{expected.error.value:.2f}"
    assert numbers["Sequence ESS"] == f"{expected.ess.value:.2f}"
    between = {m.label: m.delta for m in at.metric}["Bias"]
    assert between == f"{expected.relative_bias.low:.2f} to {expected.relative_bias.high:.2f}"


def test_a_bound_moves_the_numbers(committed: None) -> None:
    loose = shown(open_app(GRADIENT, run="kv_fp8_e5m2", preset="decoupled_seq_is", is_upper="100"))
    tight = shown(open_app(GRADIENT, run="kv_fp8_e5m2", preset="decoupled_seq_is", is_upper="1.1"))
    assert float(tight["Noise"]) < float(loose["Noise"])
    assert float(tight["Sequence ESS"]) > float(loose["Sequence ESS"])


def test_a_preset_without_a_bound(committed: None) -> None:
    assert "This configuration has no bound to move." in said(open_app(GRADIENT, run="stale_4", preset="disabled"))


def test_the_engines_distribution_is_not_always_known(committed: None) -> None:
    """Weights that are four steps old are gone when the step is sketched."""
    at = open_app(GRADIENT, run="stale_4")
    at.segmented_control(key="kl_target").set_value("the engine's policy").run()
    assert not at.exception
    assert "no distribution of the engine's policy" in said(at)


def test_a_step_without_a_sketch_offers_one_that_has(committed: None) -> None:
    at = open_app(GRADIENT, run="stale_4", step="20")
    assert "step 20 of stale_4 has no score sketch (steps that have one: 40)" in said(at)
    at.button(key="sketched_40").click().run()
    assert not at.exception
    assert "Bias" in shown(at)


def test_a_run_without_sketches_names_the_command(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    assert "--sketch.every" in said(open_app(GRADIENT))
