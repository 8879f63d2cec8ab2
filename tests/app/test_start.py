"""The Start page: one sentence under a correction, cards that open the right view in the right state, local runs."""

import math
import re
import shutil
from pathlib import Path

import pytest
from app_pages import committed, follow, line_and_state, links, live_parts, one_scan, open_app, root, said, widget
from app_runs import add_step, make_record, make_run

from rlcorr import preset
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/start.py"


@pytest.fixture
def stories(root: Path) -> Path:
    for slug in ("alpha", "smol_bf16_both", "long_kv_fp8_e5m2", "smol_stale_6"):
        make_run(root, slug, steps=2)
    return root


def the_gap() -> tuple[StepRecord, int, int]:
    """The last step of the page's run, and row and column of the largest gap."""
    from views.start import PLAYED

    run = runs.ROOT / PLAYED
    record = runs.read_step(run, runs.list_steps(run)[-1])
    sizes = (
        record.batch.tensors()["old_log_probs"] - record.batch.rollout_log_probs
    ).abs() * record.batch.response_mask
    row, column = divmod(int(sizes.argmax()), sizes.shape[1])
    return record, row, column


@pytest.mark.usefixtures("committed")
def test_the_title_has_both_probabilities_of_the_token_with_the_largest_gap() -> None:
    at = open_app(VIEW)
    assert not at.error
    assert not at.info
    record, row, column = the_gap()
    sampler = 100 * math.exp(record.batch.rollout_log_probs[row, column])
    trainer = 100 * math.exp(record.batch.tensors()["old_log_probs"][row, column])
    assert f"# Your sampler says {sampler:.0f} %. Your trainer says {trainer:.2f} %." in said(at)
    assert record.responses[row].startswith("60 + 2 = 60")
    assert [len(heading) for heading in re.findall("^#+ ", said(at), re.MULTILINE)][:1] == [2]


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(("fix", "threshold"), [("nothing", 2.0), ("cap", 2.0), ("reject", 2.0), ("reject", 1.002)])
def test_a_token_counts_what_the_correction_says(fix: str, threshold: float) -> None:
    """Nothing: 1. Cap: min(r, t). Reject: r where 1/t ≤ r ≤ t, else it is struck out."""
    record, row, column = the_gap()
    d = (record.batch.tensors()["old_log_probs"] - record.batch.rollout_log_probs)[row, : column + 1].double()
    ratios = d.exp().tolist()
    at = open_app(VIEW, fix=fix, **({} if fix == "nothing" else {"start_bound": str(threshold)}))
    shown = live_parts(at)[0]["tables"]["hero"]
    counts = [float(weight) for weight in re.findall("--weight:([0-9.]+)", shown)]
    is_out = [not 1 / threshold <= ratio <= threshold and fix == "reject" for ratio in ratios]
    expected = [1.0 if fix == "nothing" else 0.0 if out else min(r, 1) for r, out in zip(ratios, is_out, strict=True)]
    assert counts == pytest.approx(expected, abs=0.001)
    assert shown.count("</s>") == sum(is_out)
    assert is_out[-1] == (fix == "reject")


@pytest.mark.usefixtures("committed")
def test_the_study_is_shown_as_it_was_planned() -> None:
    """The three means of runs/study/smol_3.md, and the arm of the correction is marked."""
    for fix in ("nothing", "cap"):
        (shown,) = [e.proto.body for e in open_app(VIEW, fix=fix).get("html") if "rl-ends" in e.proto.body]
        assert re.findall(r">(\d+ %)<", shown) == ["23 %", "45 %", "56 %"]
        assert shown.count("<i ") == 30
        assert re.findall("class='rl-chosen'>(.*?)<", shown) == [fix]


STORIES = {
    "Open the healthy run": ("smol_bf16_both", "decoupled_geo_rs", "Cost of the threshold"),
    "Open the stale run": ("smol_stale_6", None, "The difference, magnified"),
    "Open the long answers": ("long_kv_fp8_e5m2", "decoupled_seq_is", "Cost of the threshold"),
}
"""Link → its run, its preset if the view has one, and a heading of the view."""


def test_a_story_opens_its_view_run_and_preset(stories: Path) -> None:
    for link, (run, name, expected) in STORIES.items():
        at = follow(open_app(VIEW, run="alpha", step="0"), link)
        assert expected in said(at)
        assert line_and_state(at).startswith(f"{run} · step 1")
        if name is not None:
            assert widget(at.selectbox, "preset").value == name
            assert preset(name).explain() in said(at)


def test_a_story_without_its_run_or_with_a_damaged_one_says_so(stories: Path) -> None:
    for step in (0, 1):
        path = runs.step_path(stories / "smol_bf16_both", step)
        path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(stories / "smol_stale_6")
    text = said(open_app(VIEW))
    assert "cannot be read" in text
    assert "The recorded run smol_stale_6 is not here" in text


def test_own_runs_are_found_and_open(stories: Path) -> None:
    run = make_run(stories / "local", "mine", steps=0, status="running")
    assert "mine" not in [link["label"] for link in links(open_app(VIEW))]  # nothing to show yet
    add_step(run, make_record(0))
    at = open_app(VIEW)
    at = follow(at, "mine")
    assert line_and_state(at).startswith("mine · step 0 | 1 step recorded · running")
