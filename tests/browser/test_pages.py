"""The app in a real Chromium: what only a browser can show."""

import re
from pathlib import Path

import nbformat
from app_runs import FITS, PROJECT, add_step, make_record, make_run, says_open, visit
from playwright.sync_api import Page, Response, WebSocketRoute, expect


def test_a_link_of_the_navigation_has_an_outline_while_the_keyboard_is_on_it(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?run=alpha")
    link = page.get_by_role("link", name="Your data", exact=True)
    expect(link).to_have_css("outline-style", "none")
    page.get_by_role("link", name="Start", exact=True).focus()
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    expect(link).to_have_css("outline-style", "solid")


def test_every_script_and_style_of_the_server_is_compressed(page: Page, url: str) -> None:
    """Those of at least 500 bytes: below, the header would be longer than what is saved."""
    sent: list[Response] = []
    page.on("response", lambda answer: sent.append(answer))
    visit(page, f"{url}/bench?run=alpha")
    files = [answer for answer in sent if re.search(r"/static/.*\.(js|css)$", answer.url)]
    plain = [answer for answer in files if answer.headers.get("content-encoding") != "gzip"]
    assert len(plain) < len(files)
    assert [answer.url for answer in plain if int(answer.headers["content-length"]) >= 500] == []


def test_every_equation_of_a_lesson_is_drawn(page: Page, url: str) -> None:
    """With its number, which only an equation on lines of its own can have. The text fits on a phone."""
    cells = nbformat.read(PROJECT / "lessons" / "03_cap.ipynb", as_version=4).cells
    equations = sum(cell.source.count("$$") // 2 for cell in cells if cell.cell_type == "markdown")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/?view=learn&lesson=03_cap")
    expect(page.locator(".katex-display")).to_have_count(equations)
    expect(page.locator(".katex-display .tag").first).to_be_attached()
    expect(page.locator(".katex-error")).to_have_count(0)
    page.wait_for_function(FITS)


def test_a_run_grows_while_one_watches_and_a_new_one_is_offered(page: Page, url: str, local: Path) -> None:
    """Its line does so by itself, and offers the step, which changes the page only if somebody asks for it. The text of
    a run is shown literally."""
    run = make_run(local, "mine", steps=2, status="running")
    visit(page, f"{url}/training?run=mine")
    says_open(page, "mine · step 1", "2 steps recorded · running")
    add_step(run, make_record(2))
    says_open(page, "mine · step 1", "3 steps recorded · running")
    page.get_by_role("button", name="Show step 2").click()
    says_open(page, "mine · step 2", "3 steps recorded · running")
    points = page.locator(".st-key-curve_reward .trace").first.locator(".points path")  # rings have their own
    expect(points).to_have_count(3)
    visit(page, f"{url}/training?run=alpha")
    assert page.title() == "Training · rlcorr"
    assert page.locator("a[href^='javascript']").count() == 0
    assert page.locator(".rl-table .katex, .rl-table code").count() == 0
    make_run(local, "other", steps=1, status="running")
    page.get_by_role("link", name="Mismatch", exact=True).first.click()
    expect(page.get_by_text("A new run has appeared: other.")).to_be_visible()
    says_open(page, "alpha · step 1", "2 steps recorded")
    page.get_by_role("button", name="Show it").click()
    says_open(page, "other · step 0", "1 step recorded · running")
    page.wait_for_url(re.compile("run=other"))


def test_a_page_without_a_websocket_says_so(page: Page, url: str) -> None:
    """Ten seconds after it was drawn; and no longer when there is one."""
    refused = [True]

    def relay(socket: WebSocketRoute) -> None:
        if refused:
            socket.close()
        else:
            socket.connect_to_server()

    page.route_web_socket("**/_stcore/stream", relay)
    page.goto(f"{url}/?view=bench")
    said = page.get_by_role("alert").filter(has_text="cannot open a websocket")
    expect(said).to_contain_text('make app ARGS="--host 127.0.0.1"')
    refused.clear()
    expect(said).to_have_count(0)
    expect(page.get_by_text("What does this threshold cost")).to_be_visible()
