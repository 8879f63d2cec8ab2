"""Streamlit on a machine so busy that it handles the messages of a run only a while after they were sent."""

from collections.abc import Callable

from streamlit.runtime.app_session import AppSession
from streamlit.web.cli import main

LATE = 0.3
"""Seconds."""


def call_late(self: AppSession, callback: Callable[[], None]) -> None:
    self._event_loop.call_soon_threadsafe(self._event_loop.call_later, LATE, callback)


if __name__ == "__main__":
    AppSession._call_soon_on_event_loop = call_late
    main()
