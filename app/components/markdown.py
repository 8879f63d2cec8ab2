"""The Markdown of titles and captions, as the HTML that our own JavaScript shows and as plain text."""

import html
import re

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False})


def inline(text: str) -> str:
    """HTML of one paragraph, without the paragraph; HTML in it is literal text.

    >>> inline("**Rule** `k1` <b>")
    '<strong>Rule</strong> <code>k1</code> &lt;b&gt;'
    """
    return _MARKDOWN.renderInline(text)


def plain_text(text: str) -> str:
    """What a reader sees of it.

    >>> plain_text("**Rule** `k1` < 2")
    'Rule k1 < 2'
    """
    return html.unescape(re.sub(r"<[^>]*>", "", inline(text)))
