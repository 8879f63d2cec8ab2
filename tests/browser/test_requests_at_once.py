"""The page's timer asks the server in the same moment as a person: both requests bring what the person has done."""

import pytest
from app_runs import settled
from browser_runs import BOX, drop, pairs
from playwright.sync_api import Page, WebSocketRoute
from streamlit.proto.BackMsg_pb2 import BackMsg


@pytest.mark.parametrize("timer", ["first", "second"])
def test_a_file_is_taken_although_the_timer_asks_at_the_same_time(page: Page, url: str, timer: str) -> None:
    """The timer's request may end the other's run, or bring the run that the page has shown before."""
    asked: list[BackMsg] = []

    def relay(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def send(message: str | bytes) -> None:
            request = BackMsg.FromString(bytes(message, "utf-8") if isinstance(message, str) else message)
            if request.rerun_script.is_auto_rerun:
                asked.append(request)
            is_drop = b"mine.jsonl" in request.rerun_script.widget_states.SerializeToString()
            if not is_drop or len(asked) == 0 or request.rerun_script.is_auto_rerun:
                server.send(message)
                return
            other = BackMsg.FromString(asked[-1].SerializeToString())
            other.rerun_script.widget_states.CopyFrom(request.rerun_script.widget_states)
            both = [other.SerializeToString(), message]
            for one in both if timer == "first" else reversed(both):
                server.send(one)

        socket.on_message(send)

    page.route_web_socket("**/_stcore/stream", relay)
    page.goto(f"{url}/yours?run=beta")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    while not asked:
        page.wait_for_timeout(20)
    drop(page, "mine.jsonl", pairs())
    page.wait_for_url("**run=upload_**")
    settled(page)
    asked.clear()
    while len(asked) < 2:  # the page stays as it is
        page.wait_for_timeout(20)
    settled(page)
    assert "run=upload_" in page.url


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
