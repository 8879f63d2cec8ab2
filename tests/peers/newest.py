"""Ask the Python package index for versions of the systems that are newer than those that were read.

A part of `make peers`. It needs the network, so no ordinary test runs it. `newest.py trl skyrl` asks for these only.
"""

import re
import subprocess
import sys

from rlcorr.systems.mapping.facts import FACTS


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare it with another one."""
    return tuple(map(int, re.findall(r"\d+", version)))


def newest(package: str) -> str:
    """Return the newest version, which `pip index versions` prints in its first line as "NAME (VERSION)"."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--ignore-requires-python"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(rf"^{re.escape(package)} \(([^)]+)\)", answer, re.MULTILINE | re.IGNORECASE)
    if match is None:
        raise SystemExit(f"pip does not name the newest version of {package}: {answer!r:.200}")
    return match.group(1)


if __name__ == "__main__":
    packages = {facts.package: facts.version for facts in FACTS.values() if facts.package is not None}
    asked = sys.argv[1:] or list(packages)
    behind = [
        f"{name} {latest} was not read: read it, and write it in rlcorr/systems/systems.toml"
        for name, latest in ((name, newest(name)) for name in asked)
        if numbers(latest) > numbers(packages[name])
    ]
    print("\n".join(behind) or f"{len(asked)} packages: none is newer than what was read")
    unlisted = [title for title, facts in FACTS.items() if facts.version and facts.package is None]
    print(f"not on the index, so a newer version is not noticed here: {', '.join(unlisted)}")
    print("nor is a release on GitHub that has not reached the index")
    sys.exit(bool(behind))
