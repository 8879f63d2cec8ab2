"""The page without installation, in a real Chromium: from a plain file server in a sub-path, and opened as a file."""

import os
import re
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
from playwright.sync_api import Page, expect
from thumbs import quiet

from rlcorr import PRESETS, evaluate
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.gradients.report import compare
from rlcorr.presets import RANKED
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients

PLOTLY = Path(sys.prefix) / "npm/node_modules/plotly.js-cartesian-dist-min/plotly-cartesian.min.js"
RUN, WITHOUT_SKETCH, STUDY = "kv_fp8_e5m2", "smol_kv_fp8_e5m2", "stale_8"
"""Few: a gradient of each preset, and each study, take seconds to write."""
CHOSEN = ("decoupled_token_is", "decoupled_seq_is", "slime_tis")
SEVERAL = "decoupled_geo_rs_token_tis"
BOUNDS = (BoundId(None, "upper"), BoundId(0, "upper"), BoundId(0, "lower"))
"""Of SEVERAL, in the order of its sliders."""
VIEWS = ("start", "yours", "bench", "mismatch", "gradient", "kl", "study")
METRICS = {"Kept tokens": "kept_fraction", "ESS of the kept": "trained_eff_sample_size"}


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("served") / "some" / "path"
    for name in (RUN, WITHOUT_SKETCH):
        shutil.copytree(runs.ROOT / name, recorded / name)
    (recorded / "study").mkdir()
    shutil.copy(runs.ROOT / "index.toml", recorded)
    for name in ("index.toml", f"{STUDY}.parquet", "smol_last_weights.parquet"):
        shutil.copy(runs.ROOT / "study" / name, recorded / "study")
    command = [sys.executable, "app/publish.py", PLOTLY, "--out", folder, "--presets", *CHOSEN, SEVERAL, "disabled"]
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
    drawn = ".rl-tiles" if part == "first" else ".main-svg"
    expect(page.locator(f"#{part} {drawn}").first).to_be_visible()


def drag(page: Page, part: str, share: float, nth: int = 0) -> None:
    """Press the mouse on the thumb's line, and pull it to this share of the width; what it shows is drawn."""
    slider = page.locator(f"#{part} .rl-slider").nth(nth)
    box = slider.locator("[type=range]").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=8)
    page.wait_for_function("(slider) => slider.isReady()", arg=slider.element_handle())
    quiet(page)


def numbers(page: Page, part: str) -> dict[str, str]:
    shown = "all => all.map((e) => [e.dataset.number, e.querySelector('b').innerText])"
    return dict(page.locator(f"#{part} .rl-number").evaluate_all(shown))


def bound(page: Page, part: str, nth: int = 0) -> float:
    return float(page.locator(f"#{part} .rl-typed").nth(nth).input_value())


def share(text: str) -> float:
    return float(text.strip("<> %")) / 100


def expect_library(page: Page, part: str, run: str, preset: str, nth: int = 0, moved: BoundId | None = None) -> None:
    """The numbers are those of the library for the value of one slider, and the preset's numbers for the others."""
    steps = runs.list_steps(runs.ROOT / run)
    batch = runs.read_step(runs.ROOT / run, steps[-1]).batch
    config = PRESETS[preset].config
    usual = BoundId(None, "upper")
    if not config.rollout_is:
        usual = BoundId(0, "upper")
    report = evaluate(batch, at_threshold(config, bound(page, part, nth), moved or usual))[1]
    shown = numbers(page, part)
    for label, name in METRICS.items():
        assert share(shown[label]) == pytest.approx(report[f"rollout_corr/{name}"], abs=1e-4)
    for label, name in (("Mean weight", "trained_is_mean"), ("k3 before", "k3_kl")):
        assert float(shown[label]) == pytest.approx(report[f"rollout_corr/{name}"], rel=1e-3)


def expect_out(page: Page) -> float:
    """Return the share of the tokens that the first page says are left out: those whose ratio is outside 1/t to t."""
    said = re.search(r", (\S+)\s% of this step", page.locator("#first .rl-answer").inner_text())
    assert said is not None
    batch = runs.read_step(runs.ROOT / WITHOUT_SKETCH, runs.list_steps(runs.ROOT / WITHOUT_SKETCH)[-1]).batch
    d = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs)[batch.response_mask]
    threshold = float(page.locator("#first .rl-slider b").inner_text())
    out = float(said[1]) / 100
    assert out == pytest.approx(float((d.abs().double().exp() > threshold).double().mean()), abs=1e-3)
    return out


def test_the_first_page_is_small_leaves_out_what_the_library_does_and_a_dropped_file_is_answered(
    page: Page, url: str
) -> None:
    """At most 1.5 MB come before the first drag, as a plain file server sends it."""
    sizes = []
    page.on("response", lambda got: sizes.append(len(got.body())) if got.url.startswith(url) else None)
    page.goto(url)
    expect(page.get_by_role("heading", level=1).filter(visible=True)).to_have_text(re.compile("Your sampler says"))
    page.get_by_role("link", name="reject", exact=True).click()
    expect(page.locator("#first .rl-slider")).to_be_visible()
    assert 0 < sum(sizes) < 1.5e6
    out = []
    for to in (0.01, 0.4, 0.99):
        drag(page, "first", to)
        expect_out(page)
        page.mouse.up()
        page.wait_for_url("**start_bound=**")
        out.append(expect_out(page))
    assert out[0] > 0.4 > out[1] > 0.1 > 0.02 > out[2]
    page.get_by_role("link", name="cap", exact=True).click()
    expect(page.locator(".rl-chosen").filter(visible=True)).to_have_text("cap45 %")
    page.evaluate("""() => {
      const dataTransfer = new DataTransfer()
      dataTransfer.items.add(new File(["{}"], "pairs.jsonl"))
      dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }))
    }""")
    expect(page.get_by_text("This page cannot read pairs.jsonl.")).to_be_visible()
    expect(page.locator("#own-command")).to_have_text('make app ARGS="--file my_log_probs.jsonl"')


def test_the_first_page_needs_no_server(page: Page, folder: Path) -> None:
    page.goto((folder / "index.html").as_uri() + "#fix=reject")
    drag(page, "first", 0.4)
    expect_out(page)
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


def test_every_bound_moves_to_the_librarys_numbers_and_brings_the_others_back(page: Page, url: str) -> None:
    """One at a time: while one bound moves, the others have the preset's numbers, in the address, too."""
    visit(page, f"{url}#view=bench&run={WITHOUT_SKETCH}&preset={SEVERAL}", "bench")
    usual = [bound(page, "bench", nth) for nth in range(3)]
    for nth, to in ((1, 0.9), (0, 0.3), (2, 0.1)):
        drag(page, "bench", to, nth)
        expect_library(page, "bench", WITHOUT_SKETCH, SEVERAL, nth, BOUNDS[nth])
        page.mouse.up()
        name = ("is_upper", "seq_mean_k1_upper", "seq_mean_k1_lower")[nth]
        page.wait_for_url(lambda address, name=name: f"{name}=" in address and address.count("_upper=") <= 1)
        expect_library(page, "bench", WITHOUT_SKETCH, SEVERAL, nth, BOUNDS[nth])
        others = [other for other in range(3) if other != nth]
        assert [bound(page, "bench", other) for other in others] == [usual[other] for other in others]
    expect(page.get_by_text("the others have the preset's numbers: the site has a file for each")).to_be_visible()
    page.locator("#bench").get_by_role("button", name="Reset to the preset's numbers").click()
    assert [bound(page, "bench", nth) for nth in range(3)] == usual
    a_typed_number_goes_to_the_nearest_that_is_stored(page)


def a_typed_number_goes_to_the_nearest_that_is_stored(page: Page) -> None:
    typed = page.locator("#bench .rl-typed").nth(2)
    typed.fill("0.9")
    typed.press("Enter")
    expect(page.get_by_text("0.9 is not a value that this site has. Showing the nearest one, ")).to_be_visible()
    assert bound(page, "bench", 2) == pytest.approx(0.9, rel=0.02)
    expect_library(page, "bench", WITHOUT_SKETCH, SEVERAL, 2, BOUNDS[2])


def test_what_the_site_lacks_of_an_address_is_said(page: Page, url: str) -> None:
    bench = f"{url}#view=bench&run={WITHOUT_SKETCH}&preset={SEVERAL}"
    visit(page, f"{bench}&seq_mean_k1_upper=1.1&is_upper=3&step=5", "bench")
    told = page.locator("#told")
    expect(told).to_contain_text("The address names step 5. This site has only the last recorded step of this run")
    expect(told).to_contain_text("seq_mean_k1_upper is shown at the preset's number.")
    expect(told).to_contain_text("is_upper=3 is not a value that this site has. Showing the nearest one")
    visit(page, f"{url}#view=bench&run=nowhere", "bench")
    expect(page.get_by_text("The address names run=nowhere, which this page does not have")).to_be_visible()


def test_a_view_that_only_the_app_has_is_one_address_to_copy(page: Page, url: str) -> None:
    for query, address in (
        (f"view=tokens&run={RUN}&token=3.1", f"http://localhost:8501/tokens?run={RUN}&token=3.1"),
        (f"view=training&run={RUN}", f"http://localhost:8501/training?run={RUN}"),
        (f"view=compare&run={RUN}&preset_b={SEVERAL}", f"http://localhost:8501/compare?run={RUN}&preset_b={SEVERAL}"),
        (f"view=compare&preset={SEVERAL}&mode=mask", f"http://localhost:8501/compare?preset={SEVERAL}&mode=mask"),
        (f"view=training&run={RUN}&with=my+run", f"http://localhost:8501/training?run={RUN}&with=my+run"),
    ):
        page.goto(f"{url}?{query}")
        expect(page.locator("#app-address")).to_have_text(address)
        expect(page.locator("#told")).to_be_hidden()
    page.goto(f"{url}?view=bench&run={RUN}&preset={SEVERAL}&mode=mask")
    page.get_by_role("link", name="Correction bench").click()  # leaves behind what only the app has
    page.wait_for_url(lambda address: "mode" not in address)
    expect(page.locator("#bench .main-svg").first).to_be_visible()
    page.goto(f"{url}?view=training&part=Study&study={STUDY}")
    expect(page.locator("#study .main-svg").first).to_be_visible()
    heading = "Only one of nine is proven better than no correction"
    expect(page.locator("#study-heading")).to_contain_text(heading)


def test_the_address_holds_what_is_chosen(page: Page, url: str) -> None:
    """Back takes a choice back; a bound that was dragged is there after a reload, and in the configuration to copy."""
    visit(page, f"{url}#view=bench&run={RUN}&preset=decoupled_seq_is", "bench")
    drag(page, "bench", 0.3)
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    value, shown = bound(page, "bench"), numbers(page, "bench")
    page.get_by_text("Export the config", exact=True).click()
    expect(page.locator("#exported")).to_contain_text("rollout_is: sequence")
    expect(page.locator("#exported")).not_to_contain_text("rollout_is_threshold: 2.0")
    page.get_by_label("Your system").select_option("TRL")
    expect(page.locator("#exported")).not_to_contain_text("rollout_is_threshold")
    page.reload()
    expect(page.locator("#bench .main-svg").first).to_be_visible()
    assert (bound(page, "bench"), numbers(page, "bench")) == (value, shown)
    page.locator("#pick-run").select_option(WITHOUT_SKETCH)
    page.wait_for_url(f"**run={WITHOUT_SKETCH}**")
    page.go_back()
    page.wait_for_url(f"**run={RUN}**")
    expect(page.locator("[data-number='k3 before'] b").locator("visible=true")).to_have_text(shown["k3 before"])
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
        ranking = compare(batch, sketch, [PRESETS[name].config for name in RANKED], batch_sizes=[size])
        said = page.locator("#ranking .rl-slider .rl-text")
        is_told = ranking.choices[0].over_nothing.tells
        expect(said).to_contain_text("makes the most progress" if is_told else "cannot tell which preset is best")
        best = page.evaluate("document.querySelector('#ranking .rl-picture').data[0].y[0]")
        eta = ranking.reports[list(RANKED).index(best)].progress[0].value
        shown = page.evaluate("document.querySelector('#ranking .rl-picture').data[0].x[0]")
        assert shown == pytest.approx(eta, rel=1e-3)
    page.reload()
    expect(page.locator("#ranking .rl-slider > b")).to_have_text("65536")


def test_kl_losses_turn_by_a_link_and_part_by_a_slider(page: Page, url: str) -> None:
    visit(page, f"{url}#view=kl", "kl")
    said = page.locator("#kl .rl-answer")
    expect(said).to_contain_text("As a loss, k3 pulls")
    page.locator("[data-loss=k2]").click()
    expect(said).to_contain_text("As a loss, k2 has the true gradient. As a value it is too large: 3.10 in the example")
    slider = page.locator("#kl .rl-slider [type=range]").first
    slider.press("Home")
    page.wait_for_url("**kl_distance=0.05**")
    expect(said).to_contain_text("As a value it is too large: 0.00056 in the example, where the KL is 0.00056.")


def test_every_view_fits_asks_no_other_host_and_can_be_used_by_everyone(page: Page, url: str) -> None:
    """No serious finding of axe-core, in the light and in the dark; no error in the console, and nothing wider than the
    screen of a phone."""
    hosts, wrong = set(), []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for view in VIEWS:
        page.set_viewport_size({"width": 1440, "height": 900})
        if view == "yours":
            page.goto(f"{url}#view=yours")
            expect(page.locator("#own-command")).to_be_visible()
        else:
            visit(page, f"{url}#view={view}", "first" if view == "start" else view)
        page.emulate_media(color_scheme="light")
        assert unreadable(page) == set(), view
        page.emulate_media(color_scheme="dark")
        assert unreadable(page, "color-contrast") == set(), view
        page.set_viewport_size({"width": 390, "height": 900})
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        assert wrong == [], view
        assert hosts <= {"127.0.0.1", None}, view
