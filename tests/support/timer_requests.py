"""The page's timer asks the server in the same moment as a person does: always, not one time in a hundred."""

from collections.abc import Callable

from playwright.sync_api import Page, WebSocketRoute
from streamlit.proto.BackMsg_pb2 import BackMsg

ORDERS = ("first", "second")
"""Whether the timer's request comes before the person's, or after it."""


def ask_at_once(page: Page, order: str, concerns: Callable[[BackMsg], bool] = lambda _: True) -> list[BackMsg]:
    """Send a request of the timer with each of a person's requests for which `concerns` is true.

    Both bring the same widget values, but a click on a button is only in the person's request. Call this before the
    page is opened. Returns the requests that the timer has sent by itself, in a list that grows, and is emptied when
    the page changes. While it is empty, nothing is added to a person's request.
    """
    asked: list[BackMsg] = []

    def relay(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        asked.clear()

        def send(message: str | bytes) -> None:
            request = read(message)
            if request.rerun_script.is_auto_rerun:
                asked.append(request)
            elif request.WhichOneof("type") == "rerun_script" and asked and concerns(request):
                both = [_of_timer(asked[-1], request), message]
                if asked[-1].rerun_script.page_script_hash != request.rerun_script.page_script_hash:
                    asked.clear()
                for one in both if order == "first" else reversed(both):
                    server.send(one)
                return
            server.send(message)

        socket.on_message(send)

    page.route_web_socket("**/_stcore/stream", relay)
    return asked


def ask_now(page: Page) -> tuple[list[BackMsg], Callable[[], None]]:
    """Return the timer's own requests, as `ask_at_once` does, and a function that asks once more as the timer does.

    Call this before the page is opened.
    """
    asked: list[BackMsg] = []
    newest: list[BackMsg] = []
    servers: list[WebSocketRoute] = []

    def relay(socket: WebSocketRoute) -> None:
        servers[:] = [socket.connect_to_server()]

        def send(message: str | bytes) -> None:
            request = read(message)
            if request.WhichOneof("type") == "rerun_script":
                newest[:] = [request]
                asked.extend(newest if request.rerun_script.is_auto_rerun else [])
            servers[0].send(message)

        socket.on_message(send)

    page.route_web_socket("**/_stcore/stream", relay)
    return asked, lambda: servers[0].send(_of_timer(asked[-1], newest[0]))


def read(message: str | bytes) -> BackMsg:
    """Return what the browser has sent, for a relay of its web socket."""
    return BackMsg.FromString(message.encode() if isinstance(message, str) else message)


def _of_timer(last: BackMsg, request: BackMsg) -> bytes:
    """Return the timer's last request as it would be now."""
    now = BackMsg.FromString(last.SerializeToString())
    values = [state for state in request.rerun_script.widget_states.widgets if not state.trigger_value]
    del now.rerun_script.widget_states.widgets[:]
    now.rerun_script.widget_states.widgets.extend(values)
    del now.rerun_script.cached_message_hashes[:]
    now.rerun_script.cached_message_hashes.extend(request.rerun_script.cached_message_hashes)
    return now.SerializeToString()
