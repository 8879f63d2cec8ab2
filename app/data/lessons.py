"""The lessons of lessons/index.toml, and their pages if they are built."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

_BESIDE = Path(__file__).resolve().parent.parent.parent
_PACKAGED = _BESIDE / "rlcorr_lessons"  # where a wheel puts their index
LESSONS = _PACKAGED if _PACKAGED.is_dir() else _BESIDE / "lessons"
BUILT = LESSONS.parent / "build" / "site" / "lessons"


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
    text = re.sub(r"^<!-- .* -->\n", "", text, flags=re.MULTILINE).replace("](http://localhost:8501/", "](/")
    text = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](/learn?lesson=\1)", text)
    return text.replace("](README.md)", "](/learn)").replace("](DECISION_CARD.md)", "](/learn?learn=Decision%20card)")


def are_built() -> bool:
    """Check whether `make site` has made pages of the lessons."""
    return (BUILT / "index.html").is_file()


def number(slug: str) -> str:
    return slug.partition("_")[0]
