"""Every link of the lessons: into the app it opens what it says, to a file or a heading it leads somewhere."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from app_pages import committed, one_scan, open_app  # noqa: F401 - fixtures

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
APP = "http://localhost:8501/"
VIEWS = ("mismatch", "bench", "gradient", "tokens", "compare", "training", "learn")
PLACES = {"run", "step", "preset", "token", "with", "hide", "projector", "methods", "learn", "part", "study", "presets"}
PLACES |= {"answers", "tour"}
COMPARED = {"compare", "run_b", "step_b", "preset_b"}
FIELD = re.compile(r"(b\.)?(level|mode|rules|denominator|normalise|\w+_(upper|lower))")
"""What the app reads from its address; a name that it does not know would be ignored without a word."""
LINK = re.compile(r"\]\(([^)\s]+)\)|href=\"([^\"]+)\"")


def texts() -> dict[str, str]:
    """What people read, by its file."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in LESSONS.glob("*.md")}
    for path in sorted(LESSONS.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        pages[path.name] = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return pages


TEXTS = texts()
LINKS = sorted({(page, one or two) for page, text in TEXTS.items() for one, two in LINK.findall(text)})
INTO_THE_APP = sorted({link for _, link in LINKS if link.startswith(APP)})
INSIDE = [(page, link) for page, link in LINKS if not re.match(r"https?:", link)]


def test_every_lesson_opens_the_app() -> None:
    assert {page for page, link in LINKS if link.startswith(APP)} >= {p.name for p in LESSONS.glob("*.ipynb")}


LITTLE = "The measured answers have only"
"""Of the step of `top_p`, whose engine never draws many answers that the trainer knows, each too rare for the tree."""


@pytest.mark.slow
@pytest.mark.usefixtures("committed", "one_scan")
@pytest.mark.parametrize("link", INTO_THE_APP, ids=lambda link: link.removeprefix(APP) or "start")
def test_a_deep_link_opens_what_it_says(link: str) -> None:
    address = urlsplit(link)
    path, query = address.path.strip("/"), parse_qs(address.query, strict_parsing=bool(address.query))
    assert path in ("", *VIEWS)
    at = open_app(f"views/{path or 'start'}.py", **{key: values[0] for key, values in query.items()})
    fallen_back = [warning.value for warning in at.warning if not warning.value.startswith(LITTLE)]
    assert fallen_back == []  # the app says so where it has to fall back
    assert {key for key in query if key not in PLACES | COMPARED and not FIELD.fullmatch(key)} == set()


def test_links_inside_lead_somewhere() -> None:
    for page, link in INSIDE:
        name, _, anchor = link.partition("#")
        target = LESSONS / (name or page)
        assert target.exists(), (page, link)
        if anchor:
            headings = re.findall(r"^#+ (.+)$", TEXTS[target.name], flags=re.MULTILINE)
            assert anchor in {heading.replace(" ", "-") for heading in headings}, (page, link)  # as Jupyter makes them


@pytest.mark.parametrize("link", sorted({link for _, link in LINKS if link.startswith("http")} - set(INTO_THE_APP)))
def test_a_link_to_the_web_is_well_formed(link: str) -> None:
    address = urlsplit(link)
    assert address.scheme in ("http", "https")
    assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", address.netloc)
