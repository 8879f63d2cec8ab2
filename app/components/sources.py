"""The scripts and styles of our components, read from the folder js.

Streamlit takes a component's script as one text. Ours are modules that import from one another, so that the linter can
check every name. This module joins them: it puts each imported file, once, before the file that imports it.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)"\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=const )", re.MULTILINE)


def style(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """Return the file and its imports as one text that exports only the component's own function."""
    texts = [EXPORT.sub("", (FOLDER / file).read_text(encoding="utf-8")) for file in files_of(name)]
    return "\n".join(IMPORT.sub("", text) for text in texts)


def files_of(name: str) -> list[str]:
    """Return the file and all files that it imports, each once, and each after its own imports."""
    files: list[str] = []
    for imported in IMPORT.findall((FOLDER / name).read_text(encoding="utf-8")):
        files += [file for file in files_of(imported) if file not in files]
    return [*files, name]
