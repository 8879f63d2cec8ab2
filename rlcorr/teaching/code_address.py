"""The published address of the code, for links from the lessons and from the app."""

import tomllib
from pathlib import Path


def public_address(folder: Path) -> str | None:
    """Return where the code is published, as the pyproject.toml of this folder says; None if it does not say.

    The folder of an installed wheel has no pyproject.toml.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("urls", {}).get("Repository")
