"""A button that copies a link to a page, and confirms that it did."""

from collections.abc import Mapping

from streamlit.components.v2 import component

from components.sources import script, style

HTML = """<button type="button"></button><span role="status"></span><input readonly hidden>"""

_mount = component("rlcorr_copy_link", html=HTML, css=style("copy_link.css"), js=script("copy_link.js"))


def copy_link(label: str, address: str, *, words: Mapping[str, str], key: str, is_shown: bool = False) -> None:
    """Show a button that copies an address.

    Args:
        label: The text on the button.
        address: The address, relative to the app.
        words: The texts `link`, `copied` and `press`.
        key: Streamlit's key of the component.
        is_shown: Whether the address is shown before the button is pressed.
    """
    _mount(data={"label": label, "address": address, "words": dict(words), "shown": is_shown}, key=key)
