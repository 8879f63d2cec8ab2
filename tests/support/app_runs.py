"""What the tests of the app stand on: synthetic runs, and the app over them in the system's Chromium."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Page, TimeoutError, expect, sync_playwright

from rlcorr import CorrectionConfig, TokenBatch, evaluate
from rlcorr.gradients.sketch import ExactSketch, Reference, SampledSketch
from rlcorr.records import runs, sketch_files
from rlcorr.records.runs import RunManifest, append_metrics, finish_run, start_run, write_step
from rlcorr.records.step_files import StepRecord

PROJECT = Path(__file__).resolve().parent.parent.parent


@cache
def last_batch(name: str) -> TokenBatch:
    """Return the last recorded step of a run of the project."""
    run = PROJECT / "runs" / name
    return runs.read_step(run, runs.list_steps(run)[-1]).batch


CHROMIUM = shutil.which("chromium")  # None: the one that playwright installed
AXE = Path(sys.prefix) / "npm/node_modules/axe-core/axe.min.js"  # the Makefile puts it there
PATIENCE = 300_000
"""Milliseconds that a page waits: a first one takes a minute where the server is cold and the machine busy, and on a
machine that does much else, several."""
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]


def make_record(
    step: int, *, sequences: int = 24, width: int = 16, noise: float = 0.1, texts: list[str] | None = None
) -> StepRecord:
    """Responses of random length; the trainer's log-probs differ from the engine's by heavy-tailed noise."""
    g = torch.Generator().manual_seed(1000 + step)
    lengths = torch.randint(width // 4, width + 1, (sequences,), generator=g)
    mask = torch.arange(width) < lengths[:, None]
    rollout = -torch.rand(sequences, width, generator=g).pow(3) * 4 - 1e-3
    tail = torch.where(torch.rand(sequences, width, generator=g) < 0.01, 8.0, 1.0)
    old = (rollout + noise * tail * torch.randn(sequences, width, generator=g)).clamp(max=-1e-6)
    batch = TokenBatch(
        response_mask=mask,
        rollout_log_probs=torch.where(mask, rollout, 0),
        old_log_probs=torch.where(mask, old, 0),
        advantages=torch.randn(mask.shape, generator=torch.Generator().manual_seed(2000 + step)),
        rewards=(torch.rand(sequences, generator=g) < 0.3 + 0.02 * step).float(),
        group_ids=torch.arange(sequences) // 4,
        policy_versions=torch.full((sequences,), step),
        prompt_ids=torch.ones(sequences, 3, dtype=torch.int32),
        prompt_mask=torch.ones(sequences, 3, dtype=torch.bool),
        response_ids=torch.where(mask, torch.arange(width)[None], 0).to(torch.int32),
    )
    responses = texts or [f"The answer is {i}." for i in range(sequences)]
    prompts = [f"What is {i} + {step}?" for i in range(sequences)]
    return StepRecord(step, batch, prompts, (responses * sequences)[:sequences])


def add_step(run: Path, record: StepRecord) -> None:
    """One step as the trainer writes it: the pairs, then its row of metrics."""
    write_step(run, record)
    config = CorrectionConfig(rollout_is="token")
    report = evaluate(record.batch, config)[1]
    reward = float(record.batch.tensors()["rewards"].mean())
    row = {"step": record.step, "reward": reward, "seconds": 0.6, "timing/generate": 0.2, "loss": 0.01, "entropy": 1.0}
    append_metrics(run, row | report)


def make_run(
    root: Path, slug: str, *, steps: int = 3, status: str = "complete", story: str = "A synthetic run.", **record
) -> Path:
    """A run with steps 0, 1, …; finished with hashes unless its status is running."""
    run = root / slug
    manifest = RunManifest(slug=slug, story=story, task="addition", model="tiny", engine="synthetic", hardware="none")
    start_run(run, manifest)
    (run / "steps").mkdir(exist_ok=True)  # as it looks just before the first step is written
    for step in range(steps):
        add_step(run, make_record(step, **record))
    if status != "running":
        finish_run(run, replace(manifest, status=status))
    return run


def study_row(preset: str, seed: int, step: int, reward: float) -> dict[str, Any]:
    """One step of one training of a study."""
    row: dict[str, Any] = {"preset": preset, "seed": seed, "step": step, "reward": reward, "k3": 0.01 * step}
    return row | {
        "kept_fraction": 0.9, "accuracy": None, "ess": 1.0, "lr_factor": 1.0, "entropy": 1.0, "grad_norm": 1.0
    }  # fmt: skip


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(
    runs: Path, project: Path = PROJECT, *, port: int | None = None, streamlit: tuple[str, ...] = ("-m", "streamlit")
) -> Iterator[str]:
    """The app of this project over these runs, at a free port unless one is given; its address.

    `streamlit`: what Python runs, if it is another program than Streamlit itself.
    """
    port = port or free_port()
    command = [sys.executable, *streamlit, "run", "app/server.py"]
    options = ["--server.port", str(port), "--server.address", "127.0.0.1", "--server.fileWatcherType", "none"]
    with (runs / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command + options,
            cwd=project,
            env={"RLCORR_NO_TRAINING": "0", **os.environ, "RLCORR_RUNS": str(runs)},  # a host must allow it
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/_stcore/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=PATIENCE / 1000)


def wait_until_healthy(url: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the app did not start; exit status {server.poll()}.")


@contextmanager
def chromium(*switches: str) -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    args = ["--no-sandbox", *QUIET, *switches]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=args) as launched:
        yield launched


@contextmanager
def tab(browser: Browser, **context: Any) -> Iterator[Page]:
    """A page that knows nothing of others, and waits patiently; options are those of Playwright's new_context."""
    with browser.new_context(**context) as fresh:
        page = fresh.new_page()
        page.set_default_timeout(PATIENCE)
        yield page


def settled(page: Page) -> None:
    """Wait until the script has run and nothing is pending."""
    page.wait_for_selector('[data-testid="stApp"][data-test-connection-state="CONNECTED"]')
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def visit(page: Page, address: str) -> None:
    """Open a view, and wait until its first picture is drawn and its script has run."""
    page.goto(address)
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)


LINE = ".st-key-open summary"
"""The line that says what is open and unfolds the pickers of run, step and preset."""


def says_open(page: Page, line: str, state: str) -> None:
    """Wait until the line says what is open, and next to it the state of the run."""
    expect(page.locator(LINE)).to_contain_text(line)
    expect(page.locator(".st-key-run_state")).to_contain_text(state)


def unfold(page: Page) -> None:
    """Unfold the pickers by the keyboard, if they are folded. A list that is opened while they unfold must stay."""
    if page.locator(".st-key-open details").get_attribute("open") is None:
        page.locator(LINE).press("Enter")
    expect(page.locator(".st-key-open [data-testid=stExpanderDetails]")).not_to_have_attribute("inert", "")


def fold(page: Page) -> None:
    """Fold them again, and wait until that has ended: what is below them moves."""
    page.locator(LINE).press("Enter")
    expect(page.locator(".st-key-open details")).not_to_have_attribute("open", "")


def pick_folded(page: Page, label: str, option: str) -> None:
    """Unfold the pickers, pick an option of one of them, and fold them."""
    unfold(page)
    pick(page, label, option)
    fold(page)


REOPEN = 15_000
"""Milliseconds after which a person would open a list again that has closed."""
NEXT_FRAME = "() => new Promise((after) => requestAnimationFrame(() => requestAnimationFrame(after)))"
"""A picker that gets the focus may scroll into sight. That is told in the next frame, and closes an open list."""


def pick(page: Page, label: str, option: str) -> None:
    """From a list, by its keys: Streamlit's list may lose a click that comes in the first tenth of a second after it
    has opened, as it does on a busy machine."""
    picker = page.get_by_label(label, exact=True)
    wanted = page.get_by_role("option", name=re.compile(rf"(?:^| · ){re.escape(option)}$")).first
    picker.scroll_into_view_if_needed()
    for _ in range(PATIENCE // REOPEN):
        picker.focus()
        page.evaluate(NEXT_FRAME)
        picker.press_sequentially(option)
        try:
            wanted.wait_for(timeout=REOPEN)
            break
        except TimeoutError:  # the page scrolled once more, as it does while its pictures come, and the list is closed
            picker.press("Escape")
    page.keyboard.press("Enter")


FITS = """() => {
    const main = document.querySelector('[data-testid="stMain"]')
    return main.scrollWidth <= main.clientWidth && document.documentElement.scrollWidth <= innerWidth
}"""


def fits_a_phone(page: Page) -> None:
    """Wait until the page scrolls only downwards on a phone, where pictures are drawn anew after a moment; the screen
    is then as large as before."""
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(FITS)
    page.set_viewport_size(before)


DIRECTIONS = 256


def write_sketch(run: Path, exact: ExactSketch | None = None) -> None:
    """A score sketch of random numbers for the run's only step, and every likely answer to some prompts, if given."""
    some = torch.Generator().manual_seed(0)
    batch = runs.read_step(run, 0).batch
    by_token, by_sequence = torch.randn(2, 32, DIRECTIONS, generator=some)
    reference = Reference(by_token, by_sequence, torch.full((32,), 4096.0), torch.full((32,), 32.0))
    scores = torch.randn(int(batch.response_mask.sum()), DIRECTIONS, generator=some)
    sketch = SampledSketch(scores, reference, None, "weights", "directions")
    sketch_files.write_sketch(run, 0, sketch, exact)
    runs.finish_run(run, runs.read_manifest(run))


def unreadable(page: Page, *rules: str) -> set[tuple[str, str]]:
    """Return what axe-core finds that keeps somebody from reading or using the page: its name, and where it is. Of all
    rules of axe-core, or of these."""
    if page.evaluate("!window.axe"):
        page.add_script_tag(path=AXE)
    options = {"resultTypes": ["violations"]} | ({"runOnly": [*rules]} if rules else {})
    violations = page.evaluate("options => axe.run(document, options)", options)["violations"]
    return {
        (violation["id"], node["html"][:200])
        for violation in violations
        for node in violation["nodes"]
        if violation["impact"] in ("serious", "critical")
    }
