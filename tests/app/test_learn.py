"""The Learn page: lessons as their index says, one vocabulary, every preset on the map, links that hide controls."""

import html
import tomllib
from html import unescape
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qsl, urljoin

import nbformat
import pytest
from app_pages import committed, components, html_of, links, one_scan, open_app, open_view, root, said, widget
from app_runs import PROJECT, make_run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlcorr import PRESETS
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe
from rlcorr.teaching.glossary import GLOSSARY, define

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/learn.py"


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lessons' pages would lie; there are none yet, whatever `make site` has made here."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from data import lessons

    monkeypatch.setattr(lessons, "BUILT", tmp_path / "site" / "lessons")
    return tmp_path / "site" / "lessons"


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
    assert not at.get("iframe")
    slugs = [dict(link["to"]).get("lesson") for link in links(at) if link["label"] == "Open the lesson"]
    assert slugs == list(index)
    at = open_app(VIEW, learn="Decision card")
    assert "| **Old weights:** the engine is some updates behind |" in said(at)
    assert "<!--" not in said(at)


@pytest.mark.parametrize("slug", ["00_start", "16_capstone"])
def test_a_lesson_opens_from_its_notebook(root: Path, slug: str) -> None:
    """Without `make site`: its texts, what its code printed, its pictures, and links that stay in the app."""
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


def test_lessons_that_are_pages_open_in_the_page(root: Path, built: Path) -> None:
    """Without any run. An unknown lesson is no part of an address, whatever it holds."""
    built.mkdir(parents=True)
    (built / "index.html").write_text("", encoding="utf-8")
    for lesson, name in {"": "index", "03_cap": "03_cap", "../../secret": "index"}.items():
        at = open_app(VIEW, lesson=lesson)
        assert [frame.proto.src for frame in at.get("iframe")] == [f"/site/lessons/{name}.html"]
        assert "make site" not in said(at)


def test_a_link_of_a_lesson_opens_its_view(root: Path) -> None:
    """The pages link to the page beside them; in the app that is a view."""
    from controls import lesson_pages

    client = TestClient(Starlette(routes=lesson_pages.ROUTES), follow_redirects=False)
    for asked in ("view=bench&run=bf16", "run=bf16", "view=//evil.example", "learn=Cheat%20sheet"):
        answer = client.get(f"/site/index.html?{asked}")
        assert answer.status_code == 307
        assert urljoin("/site/index.html", answer.headers["location"]) == f"/?{asked}"


def test_the_pages_and_the_files_of_their_live_pictures_are_served_and_nothing_beside_them(
    root: Path, built: Path
) -> None:
    """The address of a script and of a strip is relative to the page, in the folder above it."""
    from controls import lesson_pages

    built.mkdir(parents=True)
    (built / "index.html").write_text("a page", encoding="utf-8")
    (built.parent / "lesson.js").write_text("a script", encoding="utf-8")
    (built.parent.parent / "secret").write_text("none", encoding="utf-8")
    client = TestClient(Starlette(routes=lesson_pages.ROUTES))
    assert client.get("/site/lessons/index.html").text == "a page"
    assert client.get(urljoin("/site/lessons/index.html", "../lesson.js")).text == "a script"
    for outside in ("/site/%2e%2e/secret", "/site/lessons/%2e%2e/%2e%2e/secret"):
        assert client.get(outside).status_code == 404


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


def test_every_preset_is_on_the_map_once(root: Path) -> None:
    at = open_app(VIEW, learn="Cheat sheet")
    (sheet,) = [e.proto.body for e in at.get("html") if "weights \\ rules" in e.proto.body]
    names = [name for part in sheet.split("<small>")[1:] for name in part.partition("</small>")[0].split("\n")]
    assert sorted(names) == sorted(PRESETS)
    row = next(row for row in sheet.split("<tr>") if row.startswith("<td>geometric</td>"))
    assert "areal_sequence_mask" in row
    # Presets that do the same share a title, in the order of the presets.
    same = "decoupled_token_is\nskyrl_token_tis\nslime_tis\nnemo_rl_tis\nopen_instruct_tis"
    assert f"<div>Cap each token&#x27;s weight at 2<small>{same}</small></div>" in sheet
    entry = PRESETS["trl_opsm"]  # the list below the map says what a preset does, when it hurts, and its source
    assert all(html.escape(text) in html_of(at) for text in (entry.config.explain(), entry.fails_when, entry.source))


def test_a_link_for_a_class_holds_the_state_and_what_it_hides(root: Path) -> None:
    from data.options import HIDEABLE

    make_run(root, "alpha", steps=2)
    at = open_app("views/bench.py", preset="decoupled_seq_is", is_upper="3", step="0")
    open_view(at, VIEW, learn="Teaching")
    assert all(f"<td>{name}</td>" in html_of(at) for name in HIDEABLE)
    widget(at.selectbox, "link_view").set_value("Tokens").run()
    widget(at.multiselect, "link_hide").set_value(["preset", "choices"]).run()
    widget(at.toggle, "link_projector").set_value(True).run()
    (copied,) = [part["address"] for part in components(at) if "address" in part and part.get("shown")]
    assert dict(parse_qsl(copied.removeprefix("?"))) == {
        "view": "tokens", "preset": "decoupled_seq_is", "is_upper": "3", "hide": "preset,choices", "projector": "1",
        "run": "alpha", "step": "0",
    }  # fmt: skip
