"""Every link of the lessons: into the app it opens what it says, to a file or a heading it leads somewhere."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
from app_pages import committed, notices_of

__all__ = ["committed"]  # a fixture

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
APP = "http://localhost:8501/"
LINK = re.compile(r"\]\(([^)\s]+)\)|href=\"([^\"]+)\"")


def texts() -> dict[str, str]:
    """Return what people read, by its file."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in LESSONS.glob("*.md")}
    for path in sorted(LESSONS.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        pages[path.name] = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return pages


TEXTS = texts()
LINKS = sorted({(page, one or two) for page, text in TEXTS.items() for one, two in LINK.findall(text)})


def test_every_lesson_opens_the_app() -> None:
    assert {page for page, link in LINKS if link.startswith(APP)} >= {p.name for p in LESSONS.glob("*.ipynb")}


def test_a_deep_link_opens_what_it_says(committed: None) -> None:
    """The app finds nothing wrong with its view, runs, steps, presets and bounds, and knows every name in it."""
    links = sorted({link for _, link in LINKS if link.startswith(APP)})
    assert len(links) > 50
    for link in links:
        address = urlsplit(link)
        query = {"view": [address.path.strip("/") or "start"]}
        assert notices_of(query | parse_qs(address.query, strict_parsing=bool(address.query))) == [], link


def test_links_inside_lead_somewhere() -> None:
    for page, link in LINKS:
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = LESSONS / (name or page)
        assert target.exists(), (page, link)
        if anchor:
            headings = re.findall(r"^#+ (.+)$", TEXTS[target.name], flags=re.MULTILINE)
            assert anchor in {heading.replace(" ", "-") for heading in headings}, (page, link)  # as Jupyter makes them


def test_a_link_to_the_web_is_well_formed() -> None:
    for _, link in LINKS:
        if link.startswith("http") and not link.startswith(APP):
            assert re.fullmatch(r"https?://[a-z0-9.-]+\.[a-z]{2,}([/?#].*)?", link), link
