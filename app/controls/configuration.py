"""The controls of a configuration: a preset, choices, the sliders of its bounds, and its text for a system."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import state
import streamlit as st
from components.live_part import Slider, offered
from data import uploads
from data.bounds import Bound, bounds_of
from data.configuration import FIRST, PRESET_KEYS, SECOND, bound_values, bounds, choices, configuration, values_of
from data.corrections import key_without_bound
from data.names import preset_label
from streamlit.url_util import make_url_path
from text import phrases
from text.formatting import plain

from controls.widgets import folding, pick, pick_several
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.command.config import ignored, lines_read, python_lines
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.strips.packing import Package
from rlcorr.systems.export import SYSTEMS, beyond_defaults, refused
from rlcorr.systems.overrides import overrides
from rlcorr.systems.pasted import Pasted, read_pasted

PASTE_IS = (
    "The correction of verl, SkyRL or TRL as YAML, JSON, Python or overrides of a command line. A whole configuration "
    "may be pasted, too."
)
PASTE = "Paste your configuration"

THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
NOT_IN_LINK = ("hide", "projector")
"""Keys of a link that are about how a page looks."""


def preset_box(label: str, slot: str = FIRST) -> None:
    """Show the picker of the preset of this slot."""
    pick(PRESET_KEYS[slot][0], label, list(PRESETS), written=preset_label)


def settings(slot: str = FIRST, label: str = phrases.CHOICES) -> CorrectionConfig:
    """Show the controls of the choices, and return the configuration, or the preset's if the choices contradict."""
    fields = choices(state.values(), slot)
    with st.expander(label, expanded=any(field.key in state.values() for field in fields), key=f"{slot}choices"):
        for field in fields:
            (pick_several if field.several else pick)(field.key, field.label, field.options, help=field.help)
    try:
        return configuration(state.values(), slot)
    except UsageError as error:
        st.error(plain(f"{error} Showing the preset itself."))
        return PRESETS[state.get(PRESET_KEYS[slot][0])].config


def paste_box() -> None:
    """Show a box for a configuration of verl, SkyRL or TRL, and what was read of it."""
    box = folding("paste", PASTE)
    if not state.get("paste"):
        return
    with box:
        with st.form("paste_form", border=False):
            st.text_area(PASTE, key="pasted_text", help=PASTE_IS, label_visibility="collapsed")
            st.form_submit_button("Show it on this page", on_click=_show_pasted)
        if text := state.get("pasted"):
            try:
                pasted = read_pasted(text)
            except UsageError as error:
                st.error(plain(str(error)))
                return
            if _values_of(pasted) is None:
                st.warning("This page has no controls for this correction, so it shows another one. In Python it is:")
                st.code("\n".join(python_lines(pasted)), language=None, wrap_lines=True)
            st.caption(f"Read as {pasted.system}'s:")
            st.code("\n".join(lines_read(pasted)), language=None, wrap_lines=True)
            st.caption(plain(ignored(pasted)))


def _show_pasted() -> None:
    """Make the page show the pasted text's configuration, if it is one."""
    text = st.session_state["pasted_text"]
    values = None
    with suppress(UsageError):  # the box says what is wrong
        values = _values_of(read_pasted(text))
    state.change(pasted=text, **(values or {}))


def _values_of(pasted: Pasted) -> dict[str, Any] | None:
    return values_of(pasted.config, score_centering=pasted.loss.score_centering, system=pasted.system)


StripOf = Callable[[CorrectionConfig, Bound, tuple[float, ...]], Package]


def shown_bounds(slot: str = FIRST) -> list[Bound]:
    """Return the bounds that have sliders: none if the choices contradict each other."""
    try:
        return bounds(state.values(), slot)
    except UsageError:
        return []


def bound_sliders(
    config: CorrectionConfig, identity: Hashable, strip: StripOf,
    slider_values: Callable[[Bound, float], tuple[float, ...]], *, slot: str = FIRST,
) -> list[Slider]:  # fmt: skip
    """Return a slider for each bound.

    Args:
        config: The configuration, with the present values of its bounds.
        identity: What the strips depend on besides the configuration and the slider's values.
        strip: Makes the strip of a bound.
        slider_values: The values of a bound's slider, from the bound and its present value.
        slot: The slot of the configuration.
    """
    sliders = []
    for b in shown_bounds(slot):
        value = bound_values(state.values(), slot)[b.key]
        values = slider_values(b, value)
        version = repr((identity, key_without_bound(config, b.id), values))  # whatever the bound's present value is
        key, make = f"{state.LIVE}_{b.key}", partial(strip, config, b, values)
        sliders.append(offered(key, b.label, values, value, make, version, exact=(b.low, b.high), help=b.help))
    return sliders


def resets(*slots: str) -> dict[str, str]:
    """Return slot → label of its reset button, for those of these slots in which something is changed."""
    labels = {FIRST: phrases.RESET, SECOND: phrases.RESET_B}
    return {slot: labels[slot] for slot in slots if state.is_changed(slot)}


def set_threshold(config: CorrectionConfig, threshold: float, bound: BoundId) -> None:
    """Set the bounds of the weights, or of a rule, to this threshold, within the ranges of their controls."""
    values = {b.id: b.value for b in bounds_of(at_threshold(config, threshold, bound))}
    shown = [b for b in shown_bounds() if b.id.rule_index == bound.rule_index and b.id in values]
    state.change(**{b.key: b.within(values[b.id]) for b in shown})


def pick_system() -> str:
    """Show the picker, which begins with the last choice, and return the name of the system."""
    last = state.get("system")
    return str(pick("system", phrases.SYSTEM, [last, *(name for name in SYSTEMS if name != last)]))


def export_text(system: str, config: CorrectionConfig, loss: LossConfig | None, link: Mapping[str, str]) -> None:
    """Show the text to copy, its overrides for a command line, and which lines differ from the system's own defaults.

    Args:
        system: The system.
        config: The correction.
        loss: The loss, if the preset names one.
        link: What a link to a page changes so that it shows this configuration again.
    """
    try:
        text, lines = beyond_defaults(config, system, loss)
    except UsageError as error:
        st.code(refused(error), language=None, wrap_lines=True)
        return
    address = _address(link)
    comment = f"# made with rlcorr; this state of the playground: {address}" if address else "# made with rlcorr"
    st.code(f"{text.rstrip()}\n{comment}\n", language=None, wrap_lines=True)  # the colours of a language are too pale
    if system != "Python":
        changed = "; ".join(f"`{line}`" for line in lines if not line.startswith("#"))
        st.caption(f"Not {system}'s own defaults: {changed}." if changed else f"These are {system}'s own defaults.")
    if line := overrides(config, system, loss):
        st.expander("Or on the command line, without a change of the file").code(line, language=None, wrap_lines=True)


def _address(link: Mapping[str, str]) -> str:
    query = {key: text for key, text in state.query_of(link).items() if key not in NOT_IN_LINK}
    return public_address(st.context.url or "", st.get_option("server.baseUrlPath"), query)


def public_address(page: str, base: str, query: Mapping[str, str]) -> str:
    """Return the address of a view on the server of a page; nothing if nobody else can open it.

    Files that a visitor dropped are deleted within a day, so the address does not name them.

    >>> public_address("http://class.example/play/", "play", {"view": "bench", "run": "upload_1", "step": "3"})
    'http://class.example/play/?view=bench'
    >>> public_address("http://localhost:8501/", "", {"view": "bench", "run": "bf16"})
    ''
    """
    parts = urlsplit(page)
    if parts.hostname in (None, *THIS_MACHINE):
        return ""
    if query.get("run", "").startswith(uploads.PREFIX):
        query = {key: text for key, text in query.items() if key not in ("run", "step")}
    return f"{parts.scheme}://{parts.netloc}{make_url_path(base, '')}?{urlencode(query)}"
