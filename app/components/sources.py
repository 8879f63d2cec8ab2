"""The scripts and styles of our components, read from the folder js.

Streamlit takes a component's script as one text. Ours are written as modules that import from one another, so that the
linter can check every name; here an imported file is put, once, before the file that imports it.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)"\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=const )", re.MULTILINE)


def style(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """The file and what it imports as one text, in which only the component's own function is exported."""
    texts = [EXPORT.sub("", (FOLDER / file).read_text(encoding="utf-8")) for file in files_of(name)]
    return "\n".join(IMPORT.sub("", text) for text in texts)


def files_of(name: str) -> list[str]:
    """The file after everything that it imports, each file once."""
    files: list[str] = []
    for imported in IMPORT.findall((FOLDER / name).read_text(encoding="utf-8")):
        files += [file for file in files_of(imported) if file not in files]
    return [*files, name]
