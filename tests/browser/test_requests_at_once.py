"""What a person does counts although the page's timer asks at the same time, or Streamlit writes two things at once."""

from pathlib import Path

import late_streamlit
import pytest
from app_runs import make_run, pick, serve, settled, unfold
from browser_runs import BOX, drop, pairs
from playwright.sync_api import Page, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from timer_requests import ORDERS, ask_at_once, ask_now


@pytest.mark.parametrize("timer", ORDERS)
def test_a_file_is_taken_although_the_timer_asks_at_the_same_time(page: Page, url: str, timer: str) -> None:
    """The timer's request may end the other's run, or bring the run that the page has shown before."""
    asked = ask_at_once(page, timer, lambda request: b"mine.jsonl" in request.SerializeToString())
    page.goto(f"{url}/yours?run=beta")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    _wait_for(page, asked)
    drop(page, "mine.jsonl", pairs())
    page.wait_for_url("**run=upload_**")
    settled(page)
    asked.clear()
    _wait_for(page, asked)
    settled(page)
    assert "run=upload_" in page.url


@pytest.mark.parametrize("timer", ORDERS)
def test_two_configurations_keep_their_bounds_when_they_are_swapped(page: Page, url: str, timer: str) -> None:
    """The timer may bring the presets of before, whose own bounds then take the place of those in the address."""
    asked = ask_at_once(page, timer, lambda request: _clicks(request, "swap"))
    page.goto(
        f"{url}/compare?run=alpha&preset=decoupled_token_icepop&is_upper=3&preset_b=decoupled_seq_is&b.is_upper=7"
    )
    page.wait_for_selector(".rl-picture .main-svg")
    unfold(page)
    settled(page)
    _wait_for(page, asked)
    page.get_by_role("button", name="Swap A and B").click()
    page.wait_for_url(lambda address: "b.is_upper=3" in address)
    asked.clear()
    _wait_for(page, asked)
    settled(page)
    assert "preset=decoupled_seq_is&" in page.url
    assert "&is_upper=7" in page.url
    assert "b.is_upper=3" in page.url


def test_a_text_is_renewed_although_the_timer_asks_before_it_was_delivered(page: Page, tmp_path: Path) -> None:
    """On a busy machine the timer's request may come when a run has ended whose messages were not handled yet."""
    make_run(tmp_path, "beta", steps=1)
    with serve(tmp_path, streamlit=(late_streamlit.__file__,)) as url:
        asked, ask = ask_now(page)
        page.goto(f"{url}/training?run=beta&part=Train")
        page.get_by_text("--rollout.engine auto").wait_for()
        _wait_for(page, asked)
        pick(page, "Sampler", "transformers")
        for _ in range(20):  # for a second: the messages are handled 0.3 s after they were sent
            page.wait_for_timeout(50)
            ask()
        expect(page.get_by_text("--rollout.engine transformers")).to_be_visible()


def _clicks(request: BackMsg, key: str) -> bool:
    return any(
        state.trigger_value and state.id.endswith(f"-{key}") for state in request.rerun_script.widget_states.widgets
    )


def _wait_for(page: Page, asked: list) -> None:
    """Wait until the timer has asked twice."""
    while len(asked) < 2:
        page.wait_for_timeout(20)


def test_an_address_without_a_run_is_one_entry_in_the_history(page: Page, url: str) -> None:
    """The page completed it once: Back then led to the same page again."""
    page.goto("about:blank")
    page.goto(f"{url}/training?part=Study")
    settled(page)
    assert page.url == f"{url}/training?run=newest&part=Study"
    page.go_back()
    assert page.url == "about:blank"


def test_a_query_that_is_written_before_its_path_makes_no_entry_in_the_history(page: Page, url: str) -> None:
    """Streamlit writes both with pushState, and on a quick page the query comes first."""
    page.goto(f"{url}/bench?run=beta&preset=trl_opsm")
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    entries = page.evaluate("""() => {
      const before = history.length, link = document.querySelector("a[href$='/learn']")
      link.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation() }, { once: true })
      link.click()
      history.pushState({}, "", "/bench?run=beta")
      history.pushState({}, "", "/learn?run=beta")
      return history.length - before
    }""")
    assert entries == 1
    page.evaluate("history.back()")
    page.wait_for_url("**/bench?run=beta&preset=trl_opsm")
