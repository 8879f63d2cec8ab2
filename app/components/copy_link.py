"""A button that copies a link to the page, and confirms that it did."""

from collections.abc import Mapping

from streamlit.components.v2 import component

from components.sources import script, style

HTML = """<button type="button"></button><span role="status"></span><input readonly hidden>"""

_mount = component("rlcorr_copy_link", html=HTML, css=style("copy_link.css"), js=script("copy_link.js"))


def copy_link(
    label: str, query: Mapping[str, str], *, words: Mapping[str, str], key: str, path: str | None = None
) -> None:
    """Show a button that copies the address of this page, with the values of `query` instead of its own.

    Args:
        label: The text on the button.
        query: Keys and values to set in the address.
        words: The texts `link`, `copied` and `press`.
        key: Streamlit's key of the component.
        path: Another page to link to; its address is shown, too.
    """
    _mount(data={"label": label, "query": dict(query), "words": dict(words), "path": path}, key=key)
