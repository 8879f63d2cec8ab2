"""What every page shares, in a real Chromium: the link, hidden controls, the projector, saved pictures and tables."""

import csv
import hashlib
import io
import re
import struct
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from app_runs import FITS, LINE, PROJECT, pick, says_open, settled, unfold, unreadable
from playwright.sync_api import Page, ViewportSize, expect
from thumbs import another_preset

from rlcorr import PRESETS, CorrectionConfig, TokenBatch, correct
from rlcorr.figures import histograms
from rlcorr.figures.fates import token_fates
from rlcorr.records import runs

PAGES = {
    "": "Healthy", "training": "Where this run comes from", "compare": "Tokens trained on",
    "mismatch": "Along the response", "bench": "Cost of the threshold",
    "gradient": "The value of a KL estimator", "tokens": "mean ratio", "yours": "Thresholds for your budget",
}  # fmt: skip
"""Path → a text that the page ends its work with."""
LEARN = {
    "Lessons": "What do you want to understand?", "Glossary": "Also called", "Cheat sheet": "Look up a preset",
    "Teaching": "Make a link",
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


# --- the link ---


def test_without_a_secure_context_the_link_is_selected(page: Page, url: str) -> None:
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
    visit(page, f"{url}/bench?run=alpha&step=0")
    button = page.get_by_role("button", name="Copy link")
    button.focus()
    button.press("Enter")
    box = page.get_by_label("Link to this view")
    expect(box).to_have_value(f"{url}/?view=bench&run=alpha&step=0")
    selected = box.evaluate("e => e.value.slice(e.selectionStart, e.selectionEnd)")
    assert selected == f"{url}/?view=bench&run=alpha&step=0"
    expect(page.get_by_role("status").get_by_text(re.compile("Copied|Press Ctrl"))).to_be_visible()


# --- hiding ---


def test_a_link_hides_controls_on_every_view(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?hide=preset,choices,bounds,budget,use_it,upload")
    unfold(page)
    for name in ("Preset", "Largest weight"):
        expect(page.get_by_label(name, exact=True).first).to_be_hidden()
    for text in ("Budget", "Export the config", "Advanced: weights and rejection rules"):
        expect(page.get_by_text(text, exact=True)).to_be_hidden()
    expect(page.get_by_label("Run", exact=True)).to_be_visible()
    page.get_by_role("link", name="Tokens").click()
    expect(page.locator(".grid .token").first).to_be_visible()
    page.wait_for_url(re.compile("hide="))
    unfold(page)
    expect(page.get_by_label("Run", exact=True)).to_be_visible()
    expect(page.get_by_label("Preset", exact=True)).to_be_hidden()
    page.reload()
    expect(page.locator(".grid .token").first).to_be_visible()
    unfold(page)
    expect(page.get_by_label("Preset", exact=True)).to_be_hidden()


def test_hidden_controls_are_not_reached_by_the_keyboard(page: Page, url: str) -> None:
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


def test_every_name_hides_what_it_says(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is there, and is gone once it is named, whatever view is opened then."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from controls import sharing
    from text.pages import PAGES as TITLED

    elsewhere = {"yours": {"upload"}, "mismatch": {"methods"}, "compare": {"second"}, "training": {"training"}}
    places = {"bench": set(sharing.SELECTORS).difference(*elsewhere.values(), {"navigation"}), **elsewhere}
    for query in ("", f"?hide={','.join({*sharing.SELECTORS} - {'navigation'})}"):
        visit(page, f"{url}/bench{query}", PAGES["bench"])
        for path, names in places.items():
            if path != "bench":
                page.get_by_role("link", name=TITLED[path].title, exact=True).first.click()
                page.get_by_text(PAGES[path]).first.wait_for(state="attached")
                settled(page)
            if not query:
                unfold(page)
            for name in names:
                shown = page.locator(sharing.SELECTORS[name]).filter(visible=True)
                if query:
                    expect(shown).to_have_count(0)
                else:
                    expect(shown.first).to_be_visible()


def test_a_built_link_opens_what_it_says(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, f"{url}/bench?preset=decoupled_seq_is&is_upper=5&run=bf16&step=0")
    page.get_by_role("link", name="Learn").click()
    page.get_by_role("radio", name="Teaching").click()
    pick(page, "Hide", "the budget")
    page.keyboard.press("Escape")  # an open list hides the rest of the page from assistive technology
    expect(page.get_by_label("Link to this view").filter(visible=True)).to_have_value(re.compile("hide=budget"))
    page.get_by_role("button", name="Copy this link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    visit(page, link)
    expect(page.get_by_text("a weight above 5 becomes 5")).to_be_visible()
    says_open(page, "bf16 · step 0", "2 steps recorded")
    expect(page.get_by_text("Budget", exact=True)).to_be_hidden()


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
    return [size("h4"), size("[data-picture=weights] .xtick text"), picture.getBoundingClientRect().height]
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
    the_table_of_the_curves_names_the_thresholds(page, root)
    another_preset(page, "decoupled_token_icepop")
    the_table_of_the_mask_holds_every_token(page, root)
    page.get_by_role("link", name="Compare").first.click()
    page.get_by_role("radio", name="two runs").click()
    expect(page.get_by_role("heading", name="A: alpha, step 0")).to_be_visible()
    settled(page)
    the_table_of_a_density_counts_the_tokens(page, root)


def a_picture_is_saved_with_where_it_comes_from(page: Page, root: Path) -> None:
    digest = hashlib.sha256(runs.step_path(root / "alpha", 0).read_bytes()).hexdigest()
    stamp = f"alpha · step 0 · seed 0 · {digest[:12]}"
    drawn(page, "weights")
    expect(page.locator("[data-picture=weights] .annotation-text").get_by_text(stamp)).to_be_visible()
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


def the_table_of_the_curves_names_the_thresholds(page: Page, root: Path) -> None:
    """Count, for every threshold of the table, the share of the tokens beyond it."""
    drawn(page, "shares_over")
    _, content = download(page, "shares_over", "CSV")
    rows = [row for row in table(content) if row["trace"] == "weights clipped"]
    batch = batch_of(root, 0)
    d = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs)[batch.response_mask].double().numpy()
    assert len(rows) > 50
    (column,) = [name for name in rows[0] if name.startswith("x: threshold")]
    for row in rows[:: len(rows) // 20]:
        threshold = float(row[column])
        near = np.abs(d - np.log(threshold)) < 1e-5  # a threshold may be a ratio of the batch
        assert abs(float(row["y"]) - (d > np.log(threshold)).mean()) <= near.mean() + 1e-6


def the_table_of_the_mask_holds_every_token(page: Page, root: Path) -> None:
    drawn(page, "mask")
    _, content = download(page, "mask", "CSV")
    batch, config = batch_of(root, 0), PRESETS["decoupled_token_icepop"].config
    fates = token_fates(batch, correct(batch, config), config)
    column = "z: 0 padding, 1 kept, 2 below threshold, 3 above threshold, 4 rejected"
    codes = {(int(row["y: sequence"]), int(row["x: token"])): int(row[column]) for row in table(content)}
    assert codes == {place: int(code) for place, code in np.ndenumerate(fates)}


def the_table_of_a_density_counts_the_tokens(page: Page, root: Path) -> None:
    drawn(page, "density_A")
    _, content = download(page, "density_A", "CSV")
    rows = [row for row in table(content) if row["trace"] == "tokens"]
    assert sum(int(row["detail: count"]) for row in rows) == int(batch_of(root, 0).response_mask.sum())
    assert all(int(row["detail: count"]) > 0 for row in rows)


def test_a_touch_screen_shows_the_buttons(phone: Page, url: str) -> None:
    visit(phone, f"{url}/bench")
    drawn(phone, "weights")
    expect(phone.locator("[data-picture=weights] .rl-save")).not_to_have_css("opacity", "0")


# --- every page ---


DARK = """() => {
    const colours = getComputedStyle(document.querySelector('[data-testid="stApp"]')).backgroundColor.match(/\\d+/g)
    const moves = document.getAnimations().some((one) => one.effect.getComputedTiming().endTime < Infinity)
    return Math.max(...colours.slice(0, 3)) < 64 && !moves
}"""
PHONE: ViewportSize = {"width": 390, "height": 844}


def usable(page: Page) -> None:
    """Check that axe-core has no serious finding, neither in the light nor in the dark: contrast, names of controls,
    order of headings."""
    expect(page.get_by_role("button", name="Copy link")).to_be_visible()
    page.emulate_media(color_scheme="light")
    assert unreadable(page) == set(), page.url
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(DARK)
    assert unreadable(page, "color-contrast") == set(), page.url


def enlarge(page: Page) -> None:
    """Switch the projector on; the page scrolls only downwards still."""
    page.get_by_text("Projector", exact=True).click()
    page.wait_for_url(re.compile("projector=1"))
    settled(page)
    page.wait_for_function(FITS)


def hosts_of(page: Page) -> set[str | None]:
    """Return the set of hosts that the page has asked, which grows: data: and blob: addresses have none."""
    hosts: set[str | None] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    return hosts


@pytest.mark.parametrize(("path", "text"), PAGES.items(), ids=[path or "start" for path in PAGES])
def test_every_page_can_be_used_by_everyone(page: Page, url: str, path: str, text: str) -> None:
    """A phone scrolls only downwards, also with the large type of the projector. There is a link to copy. Nothing
    leaves the machine, not even for a saved picture."""
    hosts = hosts_of(page)
    visit(page, f"{url}/{path}", text)
    expect(page.get_by_text(text).first).to_be_visible()
    if path in ("", "training", "mismatch", "bench"):
        expect_named_pictures(page)
    if path == "bench":
        for kind in ("PNG", "SVG", "CSV"):
            download(page, "weights", kind)
    usable(page)
    page.set_viewport_size(PHONE)
    page.wait_for_function(FITS)  # the pictures are drawn anew after a moment
    enlarge(page)
    assert hosts <= {"127.0.0.1", None, ""}


def test_one_line_says_what_is_open_and_unfolds_the_pickers(page: Page, url: str) -> None:
    """By the keyboard. It stays unfolded while its words change, and everyone can use what it unfolds."""
    visit(page, f"{url}/bench?run=alpha&step=0")
    line = page.locator(LINE)
    expect(line).to_contain_text("alpha · step 0 · Cap each token's weight at 2")
    expect(page.get_by_label("Run", exact=True)).to_be_hidden()
    unfold(page)
    assert unreadable(page) == set()
    pick(page, "Step", "1")
    expect(line).to_contain_text("alpha · step 1 · Cap each token's weight at 2")
    pick(page, "Preset", "decoupled_geo_rs")
    expect(line).to_contain_text("alpha · step 1 · Reject responses by mean ratio")
    expect(page.get_by_label("Run", exact=True)).to_be_visible()
    page.get_by_role("link", name="Mismatch").first.click()
    expect(line).to_contain_text(re.compile("alpha · step 1$"))


def test_every_part_of_what_there_is_to_learn_can_be_used_by_everyone(page: Page, url: str) -> None:
    """As every page; one part after the other, on each screen."""
    hosts = hosts_of(page)
    visit(page, f"{url}/learn?learn=Glossary", LEARN["Glossary"])
    for part in LEARN:
        open_part(page, part)
        usable(page)
    page.set_viewport_size(PHONE)
    for part in LEARN:
        open_part(page, part)
        page.wait_for_function(FITS)
    enlarge(page)
    for part in LEARN:
        open_part(page, part)
        page.wait_for_function(FITS)
    assert hosts <= {"127.0.0.1", None, ""}


def open_part(page: Page, part: str) -> None:
    page.get_by_role("radio", name=part, exact=True).click()
    expect(page.get_by_text(LEARN[part]).filter(visible=True).first).to_be_visible()
    settled(page)


def expect_named_pictures(page: Page) -> None:
    page.wait_for_selector(".rl-picture .main-svg")
    names = page.locator(".rl-picture").evaluate_all("all => all.map((e) => e.getAttribute('aria-label') ?? '')")
    assert names
    assert all(len(name) > 20 for name in names)
    buttons = page.locator(".rl-save button").evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))")
    assert len(buttons) == 3 * len(names)
    assert all(re.search(r".+: save as (PNG|SVG|CSV)$", label or "") for label in buttons)
