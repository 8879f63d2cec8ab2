"""How we write: docstrings of functions begin with a verb, and the worst words do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from app_runs import PROJECT

VERBS = set((PROJECT / "tests" / "support" / "verbs.txt").read_text(encoding="utf-8").split())
"""First words of a function's docstring, in base form. Add the verb that is missing."""

BANNED = re.compile(
    r"\b(told from|surely|foretold|foretells?|trainings|nought|but for|save for|"
    r"a training(?! (run|step|set|job|script|loop|data)))\b",
    re.IGNORECASE,
)
CODE = sorted(path for room in ("rlcorr", "app") for path in (PROJECT / room).rglob("*.py"))
INDEXES = [PROJECT / name for name in ("runs/index.toml", "runs/study/index.toml", "app/text/tours.toml")]
READMES = [
    path
    for path in sorted(PROJECT.glob("**/README.md"))
    if not any(part.startswith(".") or part == "build" for part in path.parts)
]


def label(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of every function that has one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            yield node.name, text


def texts(path: Path) -> list[str]:
    """Return docstrings, comments and strings of a module, and other files as they are."""
    if path.suffix in (".md", ".toml"):
        return [path.read_text(encoding="utf-8")]
    source = path.read_text(encoding="utf-8")
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [*(text for text in strings if isinstance(text, str)), *re.findall(r"#.*", source)]


def test_a_docstring_of_a_function_begins_with_a_verb() -> None:
    wrong = [
        f"{label(path)} {name}: {text.splitlines()[0]}"
        for path in CODE
        for name, text in docstrings(path)
        if text.split()[0].strip("`.,:") not in VERBS
    ]
    assert wrong == []


def test_the_worst_words_do_not_come_back() -> None:
    banned = {
        f"{label(path)}: {match.group()}"
        for path in (*CODE, *READMES, *INDEXES)
        for text in texts(path)
        if " " in text.strip()  # a single word is a name
        for match in BANNED.finditer(" ".join(text.split()))
    }
    assert banned == set()
