"""The Training view in a real Chromium: clicks on curves, the URL, and a training that is started and stopped."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_runs import LINE, fits_a_phone, pick, says_open, settled, study_row
from playwright.sync_api import Page, expect
from tiny import save_tiny_model

from rlcorr.records import step_files
from rlcorr.records.held_out import read_answers
from rlcorr.records.runs import read_manifest, read_step
from rlcorr.records.verify import verify

REAL = 1_800_000
"""Milliseconds for what a real model does first: it is fetched, its engine starts, and 128 answers are sampled."""


def visit(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".st-key-curve_reward .main-svg")
    settled(page)


def click(page: Page, picture: str, share: float) -> None:
    """In the middle of a picture's axes, at this share of their width."""
    axes = page.locator(f".st-key-{picture} .nsewdrag").first
    axes.scroll_into_view_if_needed()
    box = axes.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=3)
    page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_a_click_on_a_curve_opens_that_step_in_every_view(page: Page, url: str) -> None:
    """Steps 10, 20 and 30 from edge to edge: the middle is 20. It works again after the picture was redrawn."""
    visit(page, f"{url}/training?run=curves")
    expect(page.get_by_role("heading", name="Step 30")).to_be_visible()
    for share, step in ((0.02, 10), (0.5, 20), (0.98, 30), (0.02, 10), (0.98, 30)):
        click(page, "curve_reward", share)
        expect(page.get_by_role("heading", name=f"Step {step}")).to_be_visible()
    click(page, "curve_mismatch", 0.5)
    expect(page.get_by_role("heading", name="Step 20")).to_be_visible()
    page.wait_for_url(re.compile("step=20"))
    click(page, "curve_entropy", 0.02)
    expect(page.get_by_role("heading", name="Step 10")).to_be_visible()
    page.locator(".st-key-open_in").get_by_role("link", name="Mismatch").click()
    says_open(page, "curves · step 10", "3 steps recorded")
    page.wait_for_url(re.compile("step=10.*view=mismatch|view=mismatch.*step=10"))


def test_a_comparison_is_in_the_url_and_survives_reload_views_and_back(page: Page, url: str) -> None:
    visit(page, f"{url}/training?run=curves")
    pick(page, "Compare with", "beta")
    page.wait_for_url(re.compile("with=beta"))
    names = page.locator(".st-key-curve_reward .annotation-text")
    both = ["curves", "beta", "curves, beta"]  # the last one says where the picture comes from
    expect(names).to_have_text(both)
    page.reload()
    expect(names).to_have_text(both)
    page.get_by_role("link", name="Tokens", exact=True).first.click()
    page.wait_for_url(re.compile("view=tokens"))
    settled(page)
    page.get_by_role("link", name="Training", exact=True).click()
    expect(names).to_have_text(both)
    page.wait_for_url(re.compile("with=beta"))
    visit(page, f"{url}/training?run=curves&with=beta,gamma")
    expect(names).to_have_count(4)
    expect(page.get_by_text("Show", exact=True)).to_be_visible()
    fits_a_phone(page)
    page.go_back()
    expect(names).to_have_text(both)


def test_a_study_asks_for_no_run(page: Page, url: str) -> None:
    """It has runs of its own. The pickers are back with the curves. A phone scrolls only downwards in every part."""
    visit(page, f"{url}/training?run=curves")
    expect(page.locator(LINE)).to_be_visible()
    page.get_by_role("radio", name="Study").click()
    expect(page.get_by_text("There is no index of studies")).to_be_visible()
    expect(page.locator(LINE)).to_be_hidden()
    page.reload()
    expect(page.get_by_text("There is no index of studies")).to_be_visible()
    expect(page.locator(LINE)).to_be_hidden()
    settled(page)
    expect(page.get_by_text("Show", exact=True)).to_be_visible()
    fits_a_phone(page)
    page.get_by_role("radio", name="Train", exact=True).click()
    expect(page.get_by_role("button", name="Train the small model")).to_be_visible()
    settled(page)
    expect(page.get_by_text("Show", exact=True)).to_be_visible()
    fits_a_phone(page)
    page.get_by_role("radio", name="Runs").click()
    expect(page.locator(LINE)).to_be_visible()


STUDIES = """
[shared]
options = ""
sketches = ""
seeds = [0]

[first]
story = "First."
look = "Look."
arms = ["none", "product_cap"]
options = "--steps 4"

[second]
story = "Second."
look = "Look."
arms = ["fresh", "token_cap"]
options = "--steps 3"
"""


@pytest.fixture
def studies(root: Path) -> Iterator[None]:
    folder = root / "study"
    folder.mkdir()
    (folder / "index.toml").write_text(STUDIES)
    for name, arms, steps in (("first", ("none", "product_cap"), 4), ("second", ("fresh", "token_cap"), 3)):
        rows = [study_row(arm, 0, step, 0.5) for arm in arms for step in range(1, steps + 1)]
        about = {"engine": "vllm", "hardware": "", "engine_settings": {}, "versions": {}, "git_commits": ["c"]}
        (folder / f"{name}.parquet").write_bytes(step_files.from_rows(rows, about))
    yield
    shutil.rmtree(folder)


@pytest.mark.usefixtures("studies")
def test_every_study_of_a_session_is_drawn(page: Page, url: str) -> None:
    """The arms that are drawn of one study are not among those of the next."""
    page.goto(f"{url}/training?part=Study")
    names = page.locator(".st-key-study_reward .annotation-text")
    for study, drawn in (("first", ["none", "product_cap"]), ("second", ["fresh", "token_cap"]), ("first", ["none"])):
        pick(page, "Mismatch", study)
        expect(page.get_by_text(f"{study.title()}. Look.")).to_be_visible()
        for name in drawn:
            expect(names.filter(has_text=name)).to_be_visible()


def test_a_training_is_started_followed_by_another_session_and_stopped(
    page: Page, another_page: Page, url: str, root: Path, local: Path
) -> None:
    save_tiny_model(root / "warm_start" / "checkpoint")
    page.goto(f"{url}/training?run=beta&part=Train")
    prompts = page.get_by_role("spinbutton", name="Prompts per step")
    prompts.fill("4")
    prompts.press("Enter")
    pick(page, "Sampler", "transformers")
    expect(page.get_by_text(re.compile("--rollout.engine transformers.*--prompts-per-step 4"))).to_be_visible()
    page.get_by_role("button", name="Train the small model").click()
    expect(page.get_by_text("addition_1 is in progress.")).to_be_visible()
    expect(page.get_by_text("A training run is in progress. You can start another one")).to_be_visible()
    another_page.set_viewport_size({"width": 390, "height": 844})
    another_page.goto(f"{url}/training?run=beta")
    expect(another_page.get_by_text(re.compile(r"Step \d+ of 400 · .* left at this pace"))).to_be_visible()
    another_page.get_by_role("button", name="Show its last batch").click()
    another_page.wait_for_url(re.compile("run=addition_1"))
    assert another_page.get_by_test_id("stMain").evaluate("e => e.scrollWidth <= e.clientWidth")
    another_page.get_by_role("button", name="Stop").click()
    expect(another_page.get_by_text("addition_1 was stopped. Its finished steps can be read.")).to_be_visible()
    expect(page.get_by_text("addition_1 was stopped.")).to_be_visible()
    page.get_by_role("button", name="Hide this").click()
    expect(page.get_by_role("button", name="Train the small model")).to_be_visible()
    report = verify(local / "addition_1")
    assert (report.status, report.problems) == ("interrupted", [])


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")
def test_a_real_model_is_trained_with_one_press(page: Page, url: str, local: Path) -> None:
    """From the press to curves and answers that appear by themselves. The probe of its recorded run calls rounding what
    is rounding: the engine is in bfloat16, and no tensor stays old."""
    page.goto(f"{url}/training?run=beta&part=Train")
    page.get_by_role("button", name="Train the real model").click()
    expect(page.get_by_text("smollm2_1 is in progress.")).to_be_visible()
    expect(page.get_by_role("columnheader", name=re.compile("^Compute ")).first).to_be_visible(timeout=REAL)
    page.locator("[data-picture=watched_reward] .main-svg").first.wait_for(timeout=REAL)
    fits_a_phone(page)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("smollm2_1 was stopped.")).to_be_visible()
    manifest, answers = read_manifest(local / "smollm2_1"), read_answers(local / "smollm2_1")
    assert manifest.probe["pattern"] == "precision", manifest.probe
    assert manifest.probe["left_behind"] == []
    assert manifest.config["system_message"] == "You are a helpful assistant."
    assert [answer.step for answer in answers[:3]] == [0, 0, 0]
    record = read_step(local / "smollm2_1", 1)
    assert len(record.responses) == 128
    assert all(prompt.startswith("Compute ") and prompt.endswith("number only.") for prompt in record.prompts)
    assert any(character.isalnum() for text in record.responses for character in text)
