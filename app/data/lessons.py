"""The lessons of lessons/index.toml, and their pages if they are built."""

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


def lessons() -> list[Lesson]:
    """Return the lessons in reading order."""
    index = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
    return [
        Lesson(slug=slug, **entry | {"prerequisites": tuple(entry["prerequisites"])}) for slug, entry in index.items()
    ]


def notes_for_teachers() -> str:
    """Return lessons/TEACHING.md without its title, and with links that stay in this app."""
    text = (LESSONS / "TEACHING.md").read_text(encoding="utf-8")
    return text.partition("\n")[2].replace("](http://localhost:8501/", "](/")


def are_built() -> bool:
    """Check whether `make site` has made pages of the lessons."""
    return (BUILT / "index.html").is_file()


def number(slug: str) -> str:
    return slug.partition("_")[0]
