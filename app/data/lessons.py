"""The lessons of lessons/index.toml, and what is in their notebooks."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BESIDE = Path(__file__).resolve().parent.parent.parent
_PACKAGED = _BESIDE / "rlcorr_lessons"  # where a wheel puts their index
LESSONS = _PACKAGED if _PACKAGED.is_dir() else _BESIDE / "lessons"


@dataclass(frozen=True)
class Lesson:
    """One lesson; its slug begins with its number."""

    slug: str
    title: str
    claim: str
    minutes: int
    level: str
    prerequisites: tuple[str, ...]
    hardware: str
    decides: str = ""


def lessons() -> list[Lesson]:
    """Return the lessons in reading order."""
    index = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
    return [
        Lesson(slug=slug, **entry | {"prerequisites": tuple(entry["prerequisites"])}) for slug, entry in index.items()
    ]


def five_lessons() -> list[Lesson]:
    """Return the path of five lessons: after each one can decide something about a run of one's own."""
    return [lesson for lesson in lessons() if lesson.decides]


def text_of(name: str) -> str:
    """Return a text that lies beside the lessons without title and comments, and with links that stay in this app."""
    text = (LESSONS / name).read_text(encoding="utf-8").partition("\n")[2]
    return inside(re.sub(r"^<!-- .* -->\n", "", text, flags=re.MULTILINE))


def inside(text: str) -> str:
    """Return a text of the lessons with links that stay in this app, wherever its address begins.

    An equation gets lines of its own, because Streamlit reads $$ within a line as mathematics of the line.
    """
    text = re.sub(r"\$\$(.+?)\$\$", r"$$\n\1\n$$", text, flags=re.DOTALL)
    text = text.replace("](http://localhost:8501/", "](./")
    text = re.sub(r"\]\((\d\d_\w+)\.ipynb[^)]*\)", r"](./learn?lesson=\1)", text)
    text = text.replace("](README.md)", "](./learn)").replace("](DECISION_CARD.md)", "](./learn?learn=Decision%20card)")
    return text.replace("](NOTATION.md)", "](./learn?learn=Glossary)")


def cells(slug: str) -> list[dict[str, Any]]:
    """Return the cells of a lesson's committed notebook, which has been executed. Empty where no notebooks are."""
    path = LESSONS / f"{slug}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"] if path.is_file() else []


def number(slug: str) -> str:
    return slug.partition("_")[0]
