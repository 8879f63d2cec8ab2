"""Write what several requirement files have in common once: `python share.py split`; `join` makes them whole again.

shared.txt has the packages of cpu.txt, cuda.txt and engineless.txt, engine.txt those that only the first two have. Each
entry is a version with the hashes of its files, so a package counts as common if these agree.
"""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PARTS = {"shared": ("cpu", "cuda", "engineless"), "engine": ("cpu", "cuda")}


def entries(name: str) -> list[str]:
    """Return the entries of a file and of those that it names."""
    path = FOLDER / f"{name}.txt"
    whole = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").strip()) if path.exists() else []
    return [one for entry in whole for one in (entries(entry[3:-4]) if entry.startswith("-r ") else [entry])]


def place(entry: str) -> tuple[str, str]:
    """Return what uv sorts by: the name of the package, then its version."""
    return entry.split("==")[0], entry


def write(name: str, kept: list[str]) -> None:
    (FOLDER / f"{name}.txt").write_text("\n".join(kept) + "\n", encoding="utf-8")


def main(verb: str) -> None:
    """Raise `KeyError` for another verb than join and split."""
    files = {name: sorted(entries(name), key=place) for name in PARTS["shared"]}
    parts = {"join": {}, "split": PARTS}[verb]
    for name in PARTS:
        (FOLDER / f"{name}.txt").unlink(missing_ok=True)
    for part, users in parts.items():
        common = sorted(set.intersection(*(set(files[user]) for user in users)), key=place)
        write(part, common)
        for user in users:
            files[user] = [f"-r {part}.txt", *(one for one in files[user] if one not in set(common))]
    for name, kept in files.items():
        write(name, kept)


if __name__ == "__main__":
    main(sys.argv[1])
