"""The script that draws figures in a browser, as small as a file server that packs nothing can send it."""

import base64
import zlib
from pathlib import Path


def packed_script(path: Path) -> bytes:
    """A script that leaves the one at `path` in `window.packedPlotly`: base64 of its zlib stream, 45 % of its size.
    `DecompressionStream("deflate")` unpacks it."""
    packed = base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode()
    return f'window.packedPlotly = "{packed}"\n'.encode()
