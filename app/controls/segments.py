"""Choices that the address names: a row of buttons of which one is pressed, and a choice of several."""

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st
from state import address, notices
from text.formatting import plain

from rlcorr.errors import unknown


def choose_one(
    label: str,
    options: Sequence[str],
    default: str,
    key: str,
    *,
    noun: str = "",
    hide_label: bool = False,
    as_list: bool = False,
    on_change: Callable[[], None] | None = None,
) -> str:
    """Show the buttons, or a list of many options, and return what is chosen.

    A sentence names a wrong option in the address as `noun` or `key`.
    """
    named = address.one_of(options, lambda raw: f"{unknown(noun or key, raw, options)} Showing {default}.")
    address.restore(key, default, named)
    _warn(key)
    show = st.selectbox if as_list else partial(st.segmented_control, required=True)
    pressed = show(
        label, options, key=key, on_change=partial(_changed, key, on_change),
        label_visibility="collapsed" if hide_label else "visible",
    )  # fmt: skip
    address.say(key, pressed, default)
    return str(pressed)


def choose_several(
    options: Sequence[str], default: Sequence[str], key: str, noun: str, show: Callable[[], list[str]]
) -> list[str]:
    """Return what the widget of `show` with this key has chosen. Wrong names in the address are left out and named."""

    def parse(raw: str) -> list[str]:
        names = raw.split(",") if raw else []
        if wrong := [name for name in names if name not in options]:
            notices.put(key, " ".join(f"{unknown(noun, name, options)} Drawn without it." for name in wrong))
        return [name for name in names if name in options]

    address.restore(key, list(default), parse)
    _warn(key)
    chosen = show()
    is_default = set(chosen) == set(default)  # in whatever order they were picked
    address.say(key, chosen, chosen if is_default else None, ",".join)
    return chosen


def _warn(key: str) -> None:
    for sentence in notices.of(key):
        st.warning(plain(sentence))


def _changed(key: str, on_change: Callable[[], None] | None) -> None:
    notices.clear(key)
    if on_change is not None:
        on_change()
