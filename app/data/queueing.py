"""Turns of visitors with a large step: reading, measuring and drawing one takes up to a gigabyte for a while."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import streamlit as st

from rlcorr.records.step_files import StepRecord

LARGE = 1 << 20
"""Positions (answers times the longest one) of a step. A larger one has to wait for its turn."""
SECONDS = 10
"""Time after which somebody who waits is told so again."""
_one = threading.Lock()


@contextmanager
def turn(positions: int) -> Iterator[None]:
    """Begin a `with` block that works on a step of this size when no other large one is worked on."""
    if positions <= LARGE:
        yield
        return
    seconds = 0
    while not _one.acquire(timeout=seconds):
        st.toast(
            "The server is working on another visitor's large file. Yours is next.", duration=SECONDS
        )  # ends this run of the page if the visitor has gone or clicks on
        seconds = SECONDS
    try:
        yield
    finally:
        _one.release()


def one_at_a_time(records: Iterable[StepRecord]) -> Iterator[StepRecord]:
    """Yield each step when it is its turn, which lasts until the next step is asked for."""
    for record in records:
        with turn(record.batch.response_mask.numel()):
            yield record
            del record
