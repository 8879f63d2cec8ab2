"""The page without installation, in a real Chromium: from a plain file server in a sub-path, and opened as a file."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from app_runs import PROJECT, unreadable
from playwright.sync_api import Page, Route, expect

from rlcorr import PRESETS, evaluate
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.gradients.report import compare
from rlcorr.presets import RANKED
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients

PLOTLY = Path(sys.prefix) / "npm/node_modules/plotly.js-cartesian-dist-min/plotly-cartesian.min.js"
RUN, WITHOUT_SKETCH, STUDY = "kv_fp8_e5m2", "smol_kv_fp8_e5m2", "stale_8"
"""Few: a gradient of each preset, and each study, take seconds to write."""
CHOSEN = ("decoupled_token_is", "decoupled_geo_rs", "decoupled_seq_is", "slime_tis")
VIEWS = ("start", "bench", "mismatch", "gradient", "study")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("served") / "some" / "path"
    for name in (RUN, WITHOUT_SKETCH):
        shutil.copytree(runs.ROOT / name, recorded / name)
    (recorded / "study").mkdir()
    for name in ("index.toml", f"{STUDY}.parquet"):
        shutil.copy(runs.ROOT / "study" / name, recorded / "study")
    command = [sys.executable, "app/publish.py", PLOTLY, "--out", folder, "--presets", *CHOSEN]
    environment = {**os.environ, "RLCORR_RUNS": str(recorded)}
    subprocess.run([str(part) for part in command], cwd=PROJECT, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder.parent.parent))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/some/path/"
    server.shutdown()
    thread.join()
    server.server_close()


def visit(page: Page, address: str, part: str = "first") -> None:
    """Where a page is open already, its address alone changes, and what it shows is drawn anew."""
    page.goto(address)
    expect(page.locator(f"#{part} .rl-live")).to_be_visible()
    if part != "study":
        expect(page.locator(f"#{part} .main-svg").first).to_be_visible()


def drag(page: Page, part: str, share: float) -> None:
    """Press the mouse on the thumb's line, and pull it to this share of the width; what it shows is drawn."""
    box = page.locator(f"#{part} .rl-slider [type=range]").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=8)
    page.locator(f"#{part} .rl-slider").evaluate("""async (slider) => {
      const frame = () => new Promise(requestAnimationFrame)
      do await frame()
      while (!slider.isReady() || !slider.isQuiet())
      await frame()
    }""")


def numbers(page: Page, part: str) -> dict[str, str]:
    shown = "all => all.map((e) => [e.dataset.number, e.querySelector('b').innerText])"
    return dict(page.locator(f"#{part} .rl-number").evaluate_all(shown))


def bound(page: Page, part: str) -> float:
    return float(page.locator(f"#{part} .rl-slider b").inner_text())


def share(text: str) -> float:
    return float(text.strip("<> %")) / 100


def expect_library(page: Page, part: str, run: str, preset: str) -> None:
    """The numbers are those of the library for the bound that the slider shows."""
    steps = runs.list_steps(runs.ROOT / run)
    batch = runs.read_step(runs.ROOT / run, steps[-1]).batch
    config = PRESETS[preset].config
    moved = BoundId(None, "upper" if config.rollout_is else "band")
    report = evaluate(batch, at_threshold(config, bound(page, part), moved))[1]
    shown = numbers(page, part)
    for label, name in (("Kept tokens", "kept_fraction"), ("ESS of the kept", "trained_eff_sample_size")):
        assert share(shown[label]) == pytest.approx(report[f"rollout_corr/{name}"], abs=1e-4)
    for label, name in (("Mean weight", "trained_is_mean"), ("k3", "k3_kl")):
        assert float(shown[label]) == pytest.approx(report[f"rollout_corr/{name}"], rel=1e-3)


def test_the_first_story_is_small_dragged_says_what_the_library_says_and_answers_a_dropped_file(
    page: Page, url: str
) -> None:
    """At most 1.5 MB come before the first drag, as a plain file server sends it."""
    sizes = []
    page.on("response", lambda got: sizes.append(len(got.body())) if got.url.startswith(url) else None)
    visit(page, url)
    assert 0 < sum(sizes) < 1.5e6
    before = numbers(page, "first")
    drag(page, "first", 0.4)
    assert numbers(page, "first") != before
    expect_library(page, "first", WITHOUT_SKETCH, "decoupled_token_is")
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    expect_library(page, "first", WITHOUT_SKETCH, "decoupled_token_is")
    page.evaluate("""() => {
      const dataTransfer = new DataTransfer()
      dataTransfer.items.add(new File(["{}"], "pairs.jsonl"))
      dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }))
    }""")
    expect(page.get_by_text("cannot read files. To see your own data, install rlcorr")).to_be_visible()


def test_the_first_story_needs_no_server(page: Page, folder: Path) -> None:
    visit(page, (folder / "index.html").as_uri())
    drag(page, "first", 0.4)
    expect_library(page, "first", WITHOUT_SKETCH, "decoupled_token_is")
    page.mouse.up()
    page.get_by_role("link", name="Mismatch").click()
    expect(page.get_by_text("this page was opened as a file")).to_be_visible()


def test_a_chosen_preset_is_fetched_and_dragged(page: Page, url: str) -> None:
    """Two that have the same numbers share a file."""
    visit(page, f"{url}#view=bench&run={WITHOUT_SKETCH}", "bench")
    for preset in CHOSEN:
        page.locator("#pick-preset").select_option(preset)
        page.wait_for_url(f"**preset={preset}**")
        page.wait_for_function("!document.querySelector('[data-shown=bench]').inert")
        expect(page.locator("#bench .rl-slider")).to_have_count(1)
        page.wait_for_function("document.querySelector('#bench .rl-note')?.innerText.length > 20")
        page.wait_for_function("""() => [...document.querySelectorAll("#bench .rl-picture")]
          .every((box) => box.querySelector(".main-svg")?.clientWidth === box.clientWidth)""")
        drag(page, "bench", 0.5)
        expect_library(page, "bench", WITHOUT_SKETCH, preset)
        page.mouse.up()


def test_the_slider_of_before_cannot_be_moved_while_another_preset_is_fetched(page: Page, url: str) -> None:
    """Its value would be written into the address of the preset that has been chosen."""
    visit(page, f"{url}#view=bench&run={WITHOUT_SKETCH}", "bench")
    held: list[Route] = []
    page.route("**/*.bin", lambda route: held.append(route))
    page.locator("#pick-preset").select_option(CHOSEN[1])
    bench = page.locator("[data-shown=bench]")
    expect(bench).to_have_attribute("inert", "")
    page.wait_for_url(f"**preset={CHOSEN[1]}**")
    while not held:
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    page.unroute("**/*.bin")
    expect(bench).not_to_have_attribute("inert", "")
    drag(page, "bench", 0.5)
    expect_library(page, "bench", WITHOUT_SKETCH, CHOSEN[1])
    page.mouse.up()


def test_the_address_holds_what_is_chosen(page: Page, url: str) -> None:
    """Back takes a choice back; a bound that was dragged is there after a reload."""
    visit(page, f"{url}#view=bench&run={RUN}&preset=decoupled_seq_is", "bench")
    drag(page, "bench", 0.3)
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    value, shown = bound(page, "bench"), numbers(page, "bench")
    page.reload()
    expect(page.locator("#bench .main-svg").first).to_be_visible()
    assert (bound(page, "bench"), numbers(page, "bench")) == (value, shown)
    page.get_by_label("Run").select_option(WITHOUT_SKETCH)
    page.wait_for_url(f"**run={WITHOUT_SKETCH}**")
    page.go_back()
    page.wait_for_url(f"**run={RUN}**")
    expect(page.locator("[data-number='k3'] b").locator("visible=true")).to_have_text(shown["k3"])
    page.locator("#bench").get_by_role("button", name="Reset to the preset's numbers").click()
    page.wait_for_url(lambda address: "is_upper" not in address)
    assert bound(page, "bench") == 2


def test_the_ranking_follows_the_batch_size(page: Page, url: str) -> None:
    """Its sentence and its bars; the address keeps the size."""
    visit(page, f"{url}#view=gradient&run={RUN}&preset=decoupled_token_is", "ranking")
    run = runs.ROOT / RUN
    batch, sketch = read_gradients(run, last_sketch(run))
    slider = page.locator("#ranking .rl-slider [type=range]")
    for size in (256, 65536):
        if size != 256:
            slider.focus()
            slider.press("End")
            page.wait_for_url(f"**answers={size}**")
        (choice,) = compare(batch, sketch, [PRESETS[name].config for name in RANKED], batch_sizes=[size]).choices
        best = RANKED[choice.best]
        said = page.locator("#ranking .rl-slider .rl-text")
        expect(said).to_contain_text(f"With {size:,} answers in a batch, ")
        sentence = (
            f"{best} makes the most progress" if choice.over_nothing.tells else "cannot tell which preset is best"
        )
        expect(said).to_contain_text(sentence)
        page.wait_for_function(f"document.querySelector('#ranking .rl-picture').data[0].y[0] === '{best}'")
    page.reload()
    expect(page.locator("#ranking .rl-slider .rl-text")).to_contain_text("With 65,536 answers")


def test_the_configuration_to_copy_follows_the_bound_and_an_unknown_run_is_named(page: Page, url: str) -> None:
    visit(page, f"{url}#view=bench&run={RUN}&preset=decoupled_token_is", "bench")
    page.get_by_text("Export the config", exact=True).click()
    expect(page.locator("#exported")).to_contain_text("rollout_is_threshold: 2.0")
    slider = page.locator("#bench .rl-slider [type=range]")
    slider.focus()
    slider.press("Home")
    expect(page.locator("#exported")).not_to_contain_text("rollout_is_threshold: 2.0")
    page.get_by_label("Your system").select_option("TRL")
    expect(page.locator("#exported")).not_to_contain_text("rollout_is_threshold")
    visit(page, f"{url}#view=bench&run=nowhere", "bench")
    expect(page.get_by_text("The address names run=nowhere, which this page does not have")).to_be_visible()


def test_every_view_fits_asks_no_other_host_and_can_be_used_by_everyone(page: Page, url: str) -> None:
    """No serious finding of axe-core on a large screen and on a phone, in the light and in the dark; no error in the
    console, nothing wider than the screen."""
    hosts, wrong = set(), []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for view in VIEWS:
        page.set_viewport_size({"width": 1440, "height": 900})
        visit(page, f"{url}#view={view}", "first" if view == "start" else view)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
            page.emulate_media(color_scheme="light")
            assert unreadable(page) == set(), (view, width)
            page.emulate_media(color_scheme="dark")
            assert unreadable(page, "color-contrast") == set(), (view, width)
        assert wrong == [], view
        assert hosts <= {"127.0.0.1", None}, view
