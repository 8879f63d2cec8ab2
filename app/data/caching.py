"""Results that are remembered by a key, such as the state of the files that they are made from."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import streamlit as st

P = ParamSpec("P")
R = TypeVar("R")


def cached(
    entries: int, key: Callable[..., Any], spinner: bool | str = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that remembers this many results, each by the key that `key` makes of the arguments.

    A result is the object itself, because copying a step would cost more than correcting it: callers must not change
    it.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        def result(key: Any, _compute: Callable[[], R]) -> R:
            return _compute()

        result.__module__, result.__qualname__ = function.__module__, function.__qualname__  # by these it has its cache
        remembered = st.cache_resource(max_entries=entries, show_spinner=spinner)(result)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return remembered(key(*args, **kwargs), lambda: function(*args, **kwargs))

        return call

    return decorated
