"""Ask the Python package index for versions of the systems that are newer than those that were read.

A part of `make peers`. It needs the network, so no ordinary test runs it. `newest.py trl skyrl` asks for these only.
"""

import re
import subprocess
import sys
from collections.abc import Iterable

from rlcorr.systems.mapping.facts import FACTS


def packages() -> dict[str, str]:
    """Return {package: version that was read} of the systems on the Python package index."""
    return {facts.package: facts.version for facts in FACTS.values() if facts.package is not None}


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare it with another one."""
    return tuple(map(int, re.findall(r"\d+", version)))


def newest_in(answer: str, package: str) -> str:
    """Return the newest version in what `pip index versions` prints: its first line is "NAME (VERSION)"."""
    match = re.search(rf"^{re.escape(package)} \(([^)]+)\)", answer, re.MULTILINE | re.IGNORECASE)
    if match is None:
        raise SystemExit(f"pip does not name the newest version of {package}: {answer!r:.200}")
    return match.group(1)


def ask(package: str) -> str:
    """Return what the index says about a package. Versions that need another Python count, too."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--ignore-requires-python"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unread(names: Iterable[str]) -> list[str]:
    """Return a line for each package of which the index has a version that was not read."""
    lines = []
    for name in names:
        was_read, newest = packages()[name], newest_in(ask(name), name)
        if numbers(newest) > numbers(was_read):
            lines.append(f"{name} {newest} was not read: read it, and write it in rlcorr/systems/systems.toml")
    return lines


if __name__ == "__main__":
    asked = sys.argv[1:] or list(packages())
    behind = unread(asked)
    print("\n".join(behind) or f"{len(asked)} packages: none is newer than what was read")
    unlisted = [title for title, facts in FACTS.items() if facts.version and facts.package is None]
    print(f"not on the index, so a newer version is not noticed here: {', '.join(unlisted)}")
    print("nor is a release on GitHub that has not reached the index")
    sys.exit(bool(behind))
