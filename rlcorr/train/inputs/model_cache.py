"""The folder for models that are downloaded or made from other files."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path


def cache() -> Path:
    """Return the folder: $RLCORR_CACHE, or the user's cache folder."""
    import platformdirs  # belongs to the extra train; `python -m rlcorr import` works without it

    return Path(os.environ.get("RLCORR_CACHE") or platformdirs.user_cache_path("rlcorr"))


def key_of(files: Sequence[Path]) -> str:
    """Return a key that changes when one of the files does, from their paths, sizes and times."""
    states = [(file.resolve(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]
