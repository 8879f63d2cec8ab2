"""JSON and JSON Lines: one object per response, or objects that hold many of them."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.foreign.parse.limits import MAX_ROWS, check_limit
from rlcorr.foreign.parse.request import Piece, Request
from rlcorr.foreign.parse.rows import table_piece


def json_pieces(request: Request) -> Iterator[Piece]:
    """Yield the rows of a file. Raises `UsageError` if it is damaged."""
    yield table_piece(_values(request.path.read_bytes()), request)


def _values(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield every JSON value of the file with its place. If the first line is {…}, each line is a value."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    first = content.lstrip().partition(b"\n")[0].strip()
    if not (first.startswith(b"{") and first.endswith(b"}")):
        yield "the document", _parse(content, "the document")
        return
    check_limit(MAX_ROWS, content.count(b"\n"), "lines")
    for number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            yield f"line {number}", _parse(line, f"line {number}")


def _parse(text: bytes, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise UsageError(f"{place} is nested too deeply.") from error
    except ValueError as error:  # wrong JSON or UTF-8, or a number with thousands of digits
        raise UsageError(f"{place} is not JSON: {error!s:.120}.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `ValueError` for a repeated key: programs differ in which value they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {repeated!r:.80} is given twice")
    return values
