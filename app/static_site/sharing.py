"""Write parts that many files of the site have, such as a definition or the look of an axis, once, to one file."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from rlcorr.strips.packing import SMALLEST, Package, pack, unpack

FILES = 5
"""A part is shared if at least this many files have it."""
CHARACTERS = 48
"""A part is shared if its JSON has at least this many characters. A shorter part is not worth the reference."""
LONG = 40
"""A list with at least this many parts has one part per slider value."""
SHARED = "~shared"


def share(files: list[Path], shared: Path) -> None:
    """Rewrite the files. Each shared part becomes {"~shared": index}, an index of the list in the file `shared`."""
    files_with: Counter[str] = Counter()
    for path in files:
        files_with.update(set(_parts(unpack(path.read_bytes()).about)))
    numbers: dict[str, int] = {}
    for path in files:
        package = unpack(path.read_bytes())
        path.write_bytes(pack(Package(package.arrays, _referring(package.about, files_with, numbers)), SMALLEST))
    shared.write_bytes(pack(Package({}, {"parts": [json.loads(part) for part in numbers]}), SMALLEST))


def _parts(node: Any) -> Iterator[str]:
    """Return every text, list and object of some size, as JSON.

    A long list is shared as a whole or not at all, because packing folds its similar parts.
    """
    if (written := _written(node)) is not None:
        yield written
    for part in node.values() if isinstance(node, dict) else node if _is_short(node) else ():
        yield from _parts(part)


def _referring(node: Any, files_with: Counter[str], numbers: dict[str, int]) -> Any:
    written = _written(node)
    if written is not None and files_with[written] >= FILES:
        return {SHARED: numbers.setdefault(written, len(numbers))}
    if isinstance(node, dict):
        return {key: _referring(part, files_with, numbers) for key, part in node.items()}
    return [_referring(part, files_with, numbers) for part in node] if _is_short(node) else node


def _is_short(node: Any) -> TypeGuard[list[Any]]:
    return isinstance(node, list) and len(node) < LONG


def _written(node: Any) -> str | None:
    if not isinstance(node, str | list | dict):
        return None
    written = json.dumps(node)
    return written if len(written) >= CHARACTERS else None
