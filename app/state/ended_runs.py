"""Messages of a run of the page that has ended, which Streamlit throws away if the next request comes too early.

The thread of a run hands its messages to the event loop. If a request for a fragment comes after the thread has ended
and before the loop has handled them, Streamlit starts a new runner, and takes messages of the older one for those of a
run that it has stopped. On a busy machine a page then kept the text of before a choice, although the server knew the
choice.
"""

from typing import Any
from weakref import WeakSet

from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner import RerunData, ScriptRunner, ScriptRunnerEvent

_ENDED: "WeakSet[ScriptRunner]" = WeakSet()
"""Runners that ended by themselves, before a new one took their place."""


def deliver_messages() -> None:
    """Keep the messages of runners that ended by themselves, in every session."""
    create, handle = AppSession._create_scriptrunner, AppSession._handle_scriptrunner_event_on_event_loop

    def create_next(self: AppSession, initial_rerun_data: RerunData) -> None:
        if self._scriptrunner is not None:  # one that was stopped is not there any more
            _ENDED.add(self._scriptrunner)
        create(self, initial_rerun_data)

    def handle_all(
        self: AppSession, sender: ScriptRunner | None, event: ScriptRunnerEvent, *args: Any, **kwargs: Any
    ) -> None:
        current = self._scriptrunner
        if sender not in _ENDED or event is ScriptRunnerEvent.SHUTDOWN:  # which would end the current one
            handle(self, sender, event, *args, **kwargs)
            return
        self._scriptrunner = sender
        try:
            handle(self, sender, event, *args, **kwargs)
        finally:
            self._scriptrunner = current

    AppSession._create_scriptrunner = create_next
    AppSession._handle_scriptrunner_event_on_event_loop = handle_all
