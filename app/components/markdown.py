"""Convert the Markdown of titles and captions to HTML for our own JavaScript, and to plain text."""

import html
import re

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False})


def inline(text: str) -> str:
    """Return the HTML of one paragraph without its `<p>`; HTML in the text is shown as literal text.

    >>> inline("**Rule** `k1` <b>")
    '<strong>Rule</strong> <code>k1</code> &lt;b&gt;'
    """
    return _MARKDOWN.renderInline(text)


def plain_text(text: str) -> str:
    """Return the text that a reader sees.

    >>> plain_text("**Rule** `k1` < 2")
    'Rule k1 < 2'
    """
    return html.unescape(re.sub(r"<[^>]*>", "", inline(text)))
