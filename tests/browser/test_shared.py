"""What every page shares, in a real Chromium: the link, hidden controls, the projector, saved pictures and tables."""

import csv
import hashlib
import io
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from app_runs import FITS, PROJECT, settled, unfold, unreadable
from page_measures import SHIFTS
from playwright.sync_api import Page, ViewportSize, expect

from rlcorr import CorrectionConfig, TokenBatch, correct
from rlcorr.figures import histograms
from rlcorr.records import runs

PAGES = {
    "start": "Healthy", "training": "Where this run comes from", "compare": "Tokens trained on",
    "mismatch": "Along the response", "bench": "Cost of the threshold",
    "gradient": "Presets by the progress of one step", "kl": "Whom this concerns", "tokens": "mean ratio",
    "yours": "What each would do to your tokens",
}  # fmt: skip
"""Path → a text that the page ends its work with."""
LEARN = {
    "Lessons": "What do you want to understand?", "Glossary": "Also called", "Teaching": "In hide=",
}  # fmt: skip
"""The parts of the page that is left, and such a text of each."""


def visit(page: Page, address: str, text: str | None = None) -> None:
    page.goto(address)
    page.get_by_text(text or "Cost of the threshold").first.wait_for(state="attached")
    settled(page)


def of(key: str) -> str:
    """A picture, whether it moves with a slider or stands by itself."""
    return f":is([data-picture='{key}'], .st-key-{key})"


def drawn(page: Page, key: str) -> None:
    page.wait_for_selector(f"{of(key)} .main-svg")


# --- hiding ---


def test_every_name_hides_what_it_says(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is there, and is gone once it is named, whatever view is opened then, and for the keyboard, too."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from data.options import HIDEABLE
    from text.pages import PAGES as TITLED

    elsewhere = {"yours": {"upload"}, "mismatch": {"methods"}, "compare": {"second"}, "training": {"training"}}
    places = {"bench": set(HIDEABLE).difference(*elsewhere.values(), {"navigation"}), **elsewhere}
    for query in ("", f"?hide={','.join({*HIDEABLE} - {'navigation'})}"):
        visit(page, f"{url}/bench{query}", PAGES["bench"])
        for path, names in places.items():
            if path != "bench":
                page.get_by_role("link", name=TITLED[path].title, exact=True).first.click()
                page.get_by_text(PAGES[path]).first.wait_for(state="attached")
                settled(page)
            if not query:
                unfold(page)
            for name in names:
                shown = page.locator(HIDEABLE[name][1]).filter(visible=True)
                if query:
                    expect(shown).to_have_count(0)
                else:
                    expect(shown.first).to_be_visible()
    visit(page, f"{url}/bench?hide=run_picker,upload,links,navigation")
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    unfold(page)
    expect(page.get_by_label("Preset").first).to_be_visible()
    reached = set()
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''"))
    assert any("Preset" in label for label in reached)
    assert not any(label.startswith(("Run", "Step")) for label in reached)


# --- the projector ---


def the_link_is_copied_with_run_and_step(page: Page) -> None:
    """Read it back from the clipboard itself. The run was not picked: it is the example, which a fresh clone opens."""
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status").get_by_text("Copied")).to_be_visible()
    copied = urlsplit(page.evaluate("navigator.clipboard.readText()"))
    assert parse_qs(copied.query) == {
        "view": ["bench"], "run": ["smol_kv_fp8_e5m2"], "step": ["1"], "preset": ["decoupled_seq_is"],
        "is_upper": ["3"],
    }  # fmt: skip


SIZES = """() => {
    const size = (css) => parseFloat(getComputedStyle(document.querySelector(css)).fontSize)
    const picture = document.querySelector("[data-picture=weights] .main-svg")
    return [size("h1"), size("[data-picture=weights] .xtick text"), picture.getBoundingClientRect().height]
}"""


def test_a_link_is_copied_and_the_projector_enlarges_is_kept_and_taken_back(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, f"{url}/bench?preset=decoupled_seq_is&is_upper=3")
    the_link_is_copied_with_run_and_step(page)
    drawn(page, "weights")
    usual = page.evaluate(SIZES)
    page.get_by_text("Projector").click()
    page.wait_for_url(re.compile("projector=1"))
    page.reload()
    drawn(page, "weights")
    settled(page)
    for small, large, least in zip(usual, page.evaluate(SIZES), (1.25, 1.25, 1.1), strict=True):
        assert large > least * small
    expect(page.get_by_text("Bars: final weights")).to_be_hidden()
    expect(page.locator("[data-picture=weights] .rl-picture")).to_have_attribute(
        "aria-label", re.compile("Bars: final weights")
    )
    page.get_by_role("link", name="Mismatch").click()
    expect(page.get_by_text("Along the response", exact=True)).to_be_visible()
    page.wait_for_url(re.compile("projector=1"))
    expect(page.get_by_text("How many tokens differ by at least this much")).to_be_hidden()
    settled(page)  # a switch that is clicked while the view is still being made may be set back
    page.get_by_text("Projector").click()
    page.wait_for_url(lambda address: "projector" not in address)
    expect(page.get_by_text("How many tokens differ by at least this much")).to_be_visible()


# --- saving ---


def download(page: Page, key: str, kind: str) -> tuple[str, bytes]:
    """By keyboard, as somebody without a mouse would."""
    button = page.locator(f"{of(key)} .rl-save").get_by_role("button", name=f"save as {kind}")
    button.focus()
    expect(page.locator(f"{of(key)} .rl-save")).to_have_css("opacity", "1")
    with page.expect_download() as saved:
        button.press("Enter")
    return saved.value.suggested_filename, Path(saved.value.path()).read_bytes()


def batch_of(root: Path, step: int) -> TokenBatch:
    return runs.read_step(root / "alpha", step).batch


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_a_picture_is_saved_with_where_it_comes_from_and_tables_with_the_librarys_numbers(
    page: Page, url: str, root: Path
) -> None:
    visit(page, f"{url}/bench?run=alpha&step=0&preset=decoupled_token_is&is_upper=1.1")
    a_picture_is_saved_with_where_it_comes_from(page, root)
    the_table_of_weights_holds_the_librarys_numbers(page, root)


def a_picture_is_saved_with_where_it_comes_from(page: Page, root: Path) -> None:
    digest = hashlib.sha256(runs.step_path(root / "alpha", 0).read_bytes()).hexdigest()
    stamp = f"alpha · step 0 · seed 0 · {digest[:12]}"
    drawn(page, "weights")
    expect(page.locator(".rl-stamp", has_text=stamp).filter(visible=True)).to_have_count(1)  # once on the page
    box = page.locator("[data-picture=weights] .rl-picture").bounding_box()
    assert box is not None
    name, png = download(page, "weights", "PNG")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width == 2 * int(box["width"])  # twice as sharp
    assert height >= 2 * (int(box["height"]) + 26)  # with the title, and with the legend if there is one
    assert name == f"Importance_weights_alpha_step_0_seed_0_{digest[:12]}.png"
    name, svg = download(page, "weights", "SVG")
    assert svg.startswith(b"<svg ")
    assert stamp in svg.decode()
    assert "Importance weights" in svg.decode()
    assert name.endswith(".svg")


def the_table_of_weights_holds_the_librarys_numbers(page: Page, root: Path) -> None:
    """Find the counts of the kept weights, at the middles of the bars of the library's histogram."""
    drawn(page, "weights")
    _, content = download(page, "weights", "CSV")
    rows = [row for row in table(content) if row["trace"] == "kept"]
    batch, config = batch_of(root, 0), CorrectionConfig(rollout_is="token", rollout_is_threshold=1.1)
    result = correct(batch, config)
    kept: Any = histograms.weight_histogram(batch, result, config).data[0]
    x = np.array([float(row["x: importance weight"]) for row in rows])
    assert x == pytest.approx(np.exp(np.asarray(kept.x, float)), rel=1e-12)
    assert [int(row["y: tokens"]) for row in rows] == np.asarray(kept.y).tolist()
    assert sum(int(row["y: tokens"]) for row in rows) == int(result.keep_mask.sum())
    assert x.min() < 1 < x.max()


# --- every page ---


SHOWN = """(scheme) => {
    const colours = getComputedStyle(document.querySelector('[data-testid="stApp"]')).backgroundColor.match(/\\d+/g)
    const moves = document.getAnimations().some((one) => one.effect.getComputedTiming().endTime < Infinity)
    return Math.max(...colours.slice(0, 3)) < 64 === (scheme === "dark") && !moves
}"""
PHONE: ViewportSize = {"width": 390, "height": 844}


def in_colours(page: Page, scheme: Literal["light", "dark"]) -> None:
    """Ask for the light or the dark page, and wait until no colour moves: half-way, nothing has enough contrast."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(SHOWN, arg=scheme)


HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((e) => e.checkVisibility())
    .map((e) => Number(e.tagName[1]))"""


def usable(page: Page, path: str = "learn") -> None:
    """Check that axe-core has no serious finding, neither in the light nor in the dark: contrast, names of controls.
    There is a link to copy, except on Start, a title of the tab, and one h1, below which no level is left out."""
    expect(page.get_by_role("button", name="Copy link")).to_have_count(int(path != "start"))
    expect(page).to_have_title(re.compile(r"^\w.* · rlcorr$"))
    levels = page.evaluate(HEADINGS)
    assert levels[0] == 1, levels
    assert levels.count(1) == 1, levels
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), levels
    in_colours(page, "light")
    assert unreadable(page) == set(), page.url
    in_colours(page, "dark")
    assert unreadable(page, "color-contrast") == set(), page.url


def test_nothing_jumps_while_a_page_loads(page: Page, url: str) -> None:
    """Less than 0.1, which web.dev calls good, until the last picture is drawn."""
    page.add_init_script(f"({SHIFTS})()")
    for path in ("start", "mismatch", "bench", "gradient", "kl", "lab", "compare", "training", "yours"):
        page.goto(f"{url}/?view={path}")
        page.wait_for_selector(".rl-picture .main-svg")
        settled(page)
        assert page.evaluate("shifts.reduce((sum, one) => sum + one, 0)") < 0.1, path


def test_every_page_can_be_used_by_everyone(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One view after the other in one session, on each screen. A phone scrolls only downwards, with large type as well.
    There is a link to copy. Nothing leaves the machine, not even for a saved picture."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from text.pages import PAGES as TITLED

    hosts: set[str | None] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    visit(page, url, PAGES["start"])
    for path, text in PAGES.items():
        opened(page, TITLED[path].title, text)
        if path in ("start", "training", "mismatch", "bench"):
            expect_named_pictures(page)
        if path == "bench":
            for kind in ("PNG", "SVG", "CSV"):
                download(page, "weights", kind)
        usable(page, path)
    opened(page, TITLED["learn"].title, LEARN["Lessons"])
    for part in LEARN:
        opened(page, part, LEARN[part])
        usable(page)
    page.set_viewport_size(PHONE)
    page.get_by_text("Projector", exact=True).click()
    page.wait_for_url(re.compile("projector=1"))
    for path, text in PAGES.items():
        opened(page, TITLED[path].title, text)
        page.wait_for_function(FITS)  # the pictures are drawn anew after a moment
    assert hosts <= {"127.0.0.1", None, ""}


def opened(page: Page, title: str, text: str) -> None:
    """Open a view by the navigation, or a part of Learn by its button."""
    part = page.get_by_role("radio", name=title, exact=True)
    (part if title in LEARN else page.get_by_role("link", name=title, exact=True).first).click()
    page.get_by_text(text).first.wait_for(state="attached")
    settled(page)


def expect_named_pictures(page: Page) -> None:
    page.wait_for_selector(".rl-picture .main-svg")
    names = page.locator(".rl-picture").evaluate_all("all => all.map((e) => e.getAttribute('aria-label') ?? '')")
    assert names
    assert all(len(name) > 20 for name in names)
    buttons = page.locator(".rl-save button").evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))")
    assert len(buttons) == 3 * len(names)
    assert all(re.search(r".+: save as (PNG|SVG|CSV)$", label or "") for label in buttons)
