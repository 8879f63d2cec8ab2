"""A button that brings an element of the page into view. It is hidden while the element is visible."""

from streamlit.components.v2 import component

from components.sources import script, style

HTML = """<button type="button" class="rl-show-me" hidden></button>"""

# In the page's own tree: the strip hides the element that a hidden button is in, and its gap.
_mount = component("rlcorr_show_me", html=HTML, css=style("show_me.css"), js=script("show_me.js"), isolate_styles=False)


def show_me(label: str, selector: str, *, key: str) -> None:
    """Show a button that scrolls to the first element of this CSS selector.

    Args:
        label: The text on the button.
        selector: The CSS selector. The element may be drawn later than the button.
        key: Streamlit's key of the component.
    """
    _mount(data={"label": label, "selector": selector}, key=key, width="content")
