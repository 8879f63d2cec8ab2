"""The Learn page: lessons as their index says, one vocabulary, every preset, and what a link can hide."""

import tomllib
from html import unescape
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from app_pages import committed, html_of, links, one_scan, open_app, root, said, widget
from app_runs import PROJECT, make_run

from rlcorr import PRESETS
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe
from rlcorr.teaching.glossary import GLOSSARY, define

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/learn.py"


def test_the_lessons_are_those_of_the_index(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(VIEW)
    index = tomllib.loads((PROJECT / "lessons" / "index.toml").read_text(encoding="utf-8"))
    assert index
    for slug, lesson in index.items():
        assert f"## {slug[:2]} · {lesson['title']}\n{lesson['claim']}" in said(at)
        assert f"{lesson['minutes']} minutes · {lesson['level']}" in said(at)
        assert (PROJECT / "lessons" / f"{slug}.ipynb").is_file()
    for slug, lesson in list(index.items())[:5]:
        row = f"<td>{slug[:2]} · {lesson['title']}</td><td>{lesson['decides']}</td><td>{lesson['minutes']}</td>"
        assert row in unescape(html_of(at))
    slugs = [dict(link["to"]).get("lesson") for link in links(at) if link["label"] == "Open the lesson"]
    assert slugs == list(index)
    at = open_app(VIEW, learn="Decision card")
    assert "| **Old weights:** the engine is some updates behind |" in said(at)
    assert "<!--" not in said(at)


@pytest.mark.parametrize("slug", ["00_start", "16_capstone"])
def test_a_lesson_opens_from_its_notebook(root: Path, slug: str) -> None:
    """Its texts, what its code printed, its pictures, and links that stay in the app."""
    at = open_app(VIEW, lesson=slug)
    page, drawn = "\n".join(part.value for part in at.markdown), html_of(at).count("<img")
    printed = [part.value for part in at.code]
    for cell in nbformat.read(PROJECT / "lessons" / f"{slug}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown":
            last = cell.source.splitlines()[-1]
            assert "](" in last or last in page
            drawn -= cell.source.count("![")
        else:
            assert cell.source.strip() in printed
        for output in cell.get("outputs", []):
            assert "text" not in output or dedent(output["text"]).strip() in printed
            drawn -= "image/png" in output.get("data", {})
    assert drawn == 0
    folded = [part for part in at.markdown if "<details" in part.value]  # hints, and answers to predictions
    assert folded
    assert all(part.allow_html for part in folded)
    assert "localhost:8501" not in page
    assert ".ipynb" not in page


def test_the_glossary_says_what_the_library_says(root: Path) -> None:
    at = open_app(VIEW, learn="Glossary")
    page = unescape(html_of(at))
    for word in GLOSSARY:
        assert f"<td>{word}</td>" in page
        assert define(word) in page
    for metric in METRICS:
        assert describe(metric) in page
    widget(at.text_input, "search").set_value("icepop").run()
    assert "<td>masking</td>" in html_of(at)
    assert "<td>staleness</td>" not in html_of(at)
    widget(at.text_input, "search").set_value("<img>").run()
    assert "No word and no metric contains <img>." in said(at)


def test_the_glossary_has_every_preset_and_the_letters(root: Path) -> None:
    at = open_app(VIEW, learn="Glossary")
    page = unescape(html_of(at))
    for name, entry in PRESETS.items():
        texts = (f"<small>{name}</small>", entry.config.explain(), entry.fails_when, entry.source)
        assert all(text in page for text in texts), name
    assert r"| $r = p/q = e^d$ | ratio of a token" in said(at)


def test_the_notes_for_teachers_name_what_a_link_can_hide(root: Path) -> None:
    from data.options import HIDEABLE

    at = open_app(VIEW, learn="Teaching")
    assert all(f"<td>{name}</td>" in html_of(at) for name in HIDEABLE)
    assert "# Notes for teachers" not in said(at)
    assert "## Links for a class" in said(at)
