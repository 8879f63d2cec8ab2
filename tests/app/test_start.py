"""The Start page: three stories that open the right view in the right state, local runs, and old links."""

import shutil
import tomllib
from pathlib import Path

import pytest
from app_pages import (
    committed,
    follow,
    line_and_state,
    links,
    live_parts,
    one_scan,
    open_app,
    root,
    said,
    widget,
    words,
)
from app_runs import add_step, make_record, make_run

from rlcorr import preset
from rlcorr.records import runs

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/start.py"


@pytest.fixture
def stories(root: Path) -> Path:
    for slug in ("alpha", "smol_bf16_both", "long_kv_fp8_e5m2", "smol_stale_6"):
        make_run(root, slug, steps=2)
    return root


TWO_DIGITS = {"smol_bf16_both": "0.0013", "smol_stale_6": "0.093"}
"""k3 of the stories as the page writes it."""


@pytest.mark.usefixtures("committed")
def test_the_committed_stories_have_pictures_and_numbers() -> None:
    at = open_app(VIEW)
    assert not at.error
    assert not at.info
    for slug in ("smol_bf16_both", "smol_stale_6"):
        run = runs.ROOT / slug
        batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
        d = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs)[batch.response_mask].double()
        assert f"k3 **{TWO_DIGITS[slug]}**" in said(at)
        assert float(TWO_DIGITS[slug]) == pytest.approx(float((d.exp() - 1 - d).mean()), rel=0.05)


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
    assert text.count("k3 **") == 1


@pytest.mark.usefixtures("committed")
def test_the_page_says_its_name_and_links_to_lessons_and_papers() -> None:
    """And to the code only if pyproject.toml says where it is."""
    at = open_app(VIEW)
    assert "rlcorr · Your sampler and your trainer disagree" in said(at)
    by_label = {link["label"]: link for link in links(at)}
    assert by_label["Lessons"]["to"] == {"view": "learn"}
    assert "learn=Cheat" in by_label["Papers"]["href"]
    project = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert ("Code" in by_label) == ("Repository" in project["project"].get("urls", {}))


@pytest.mark.usefixtures("committed")
def test_answers_above_the_threshold_are_grey() -> None:
    """Grey is an answer whose mean of e^d - 1 - d is above 0.02; the sentence counts all of them."""
    from text.start import PLAYED

    run = runs.ROOT / PLAYED
    record = runs.read_step(run, runs.list_steps(run)[-1])
    mask = record.batch.response_mask
    d = (record.batch.tensors()["old_log_probs"] - record.batch.rollout_log_probs).double() * mask
    above = (d.exp() - 1 - d).sum(1) / mask.sum(1) > 0.02
    at = open_app(VIEW, start_bound="0.02")
    (shown,) = words(at)
    fates = shown["fates"]
    assert len(fates) == len(shown["words"]) >= 12
    for row, answer in enumerate(fates):
        assert {fate == 4 for fate in answer} == {bool(above[row])}, row
        assert "".join(shown["words"][row]).split() == record.responses[row].split()
    assert f"{int(above.sum())} of {len(above)} answers are thrown away." in live_parts(at)[0]["texts"]["answer"]


def test_own_runs_are_found_and_open(stories: Path) -> None:
    run = make_run(stories / "local", "mine", steps=0, status="running")
    assert "mine" not in [link["label"] for link in links(open_app(VIEW))]  # nothing to show yet
    add_step(run, make_record(0))
    at = open_app(VIEW)
    at = follow(at, "mine")
    assert line_and_state(at).startswith("mine · step 0 | 1 step recorded · running")
    assert "Open step 0 in" in said(at)
