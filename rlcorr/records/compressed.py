"""Compressed files of a run, whose content takes memory in proportion to the file."""

import gzip
from pathlib import Path

from rlcorr.errors import UsageError

LARGEST_RATIO = 100
"""Largest ratio of content to file. Recorded metrics and sketches have ratios of 1.3 to 9.8 (`runs/`)."""
ALWAYS_READ = 1 << 24
"""Bytes that are read at any ratio: small files may repeat themselves."""


def read_gzip(path: Path) -> bytes:
    """Return the content. Raises `UsageError` if it is larger than `LARGEST_RATIO` times the file."""
    limit = max(ALWAYS_READ, LARGEST_RATIO * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UsageError(f"its content is more than {LARGEST_RATIO} times as large as the file")
    return content
