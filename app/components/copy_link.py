"""A button that copies a link to what is shown, and says so."""

from collections.abc import Mapping

from streamlit.components.v2 import component

from components.sources import script, style

HTML = """<button type="button"></button><span role="status"></span><input readonly hidden>"""

_mount = component("rlcorr_copy_link", html=HTML, css=style("copy_link.css"), js=script("copy_link.js"))


def copy_link(
    label: str, query: Mapping[str, str], *, words: Mapping[str, str], key: str, path: str | None = None
) -> None:
    """A button for the address of this page, completed with what of `query` it does not have; or of another page, whose
    address is shown as well. `words` has link, copied and press."""
    _mount(data={"label": label, "query": dict(query), "words": dict(words), "path": path}, key=key)
