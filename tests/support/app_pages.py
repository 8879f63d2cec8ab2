"""The app's script, run without a browser: what the tests of its views share."""

import functools
import html
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from app_runs import PROJECT
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from rlcorr import PRESETS
from rlcorr.records import runs, study

MAIN = str(PROJECT / "app" / "main.py")
RUN = "views/training.py"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(PROJECT / "app")
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    monkeypatch.setattr(study, "FOLDER", tmp_path / "study")
    return tmp_path


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The app over the committed runs, without those that somebody has trained here."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "none")


@pytest.fixture(autouse=True)
def one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each AppTest looks for components in the metadata of every installed package: longer than the page takes."""
    components = _components()
    monkeypatch.setattr(manifest_scanner, "scan_component_manifests", lambda: components)


@functools.cache
def _components() -> list:
    return manifest_scanner.scan_component_manifests()


def open_app(view: str | None = None, **query: str | list[str]) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=120)
    for key, value in query.items():
        at.query_params[key] = value
    at.switch_page(view or RUN)
    at.run()
    assert not at.exception
    return at


def open_view(at: AppTest, view: str, **query: str) -> AppTest:
    """Open another view in the same session. Without a query this is what the navigation's links do in a browser."""
    at.switch_page(view)
    at.query_params.clear()
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def follow(at: AppTest, label: str) -> AppTest:
    """Follow a link of this page, in the same session."""
    (link,) = [element.proto for element in at.get("page_link") if element.proto.label.replace("\\", "") == label]
    return open_view(at, f"views/{link.page}.py", **dict(parse_qsl(link.query_string)))


def said(at: AppTest) -> str:
    """Everything the page says, without the escapes that keep Markdown out."""
    parts = [part.value for part in (*at.warning, *at.error, *at.info, *at.caption, *at.markdown)]
    for part in live_parts(at):
        parts += [part["refused"], _text(part["said"]), *part["texts"].values(), *part["tables"].values()]
        parts += [_text(note["lead"]) for note in part["notes"]]
        parts += [_text(shown[of]) for row in part["rows"] for shown in row for of in ("above", "heading", "caption")]
    return "\n".join(parts).replace("\\", "").replace("\u00a0", " ")


def four_digits(value: float) -> str:
    """As a page writes a number: 5.376e-6, where Python has 5.376e-06."""
    return f"{value:.4g}".replace("e-0", "e-")


def line_and_state(at: AppTest) -> str:
    """What the line above the pickers says is open, and next to it the state of the run."""
    (line,) = [box for box in at.expander if any(picker.key == "run" for picker in box.selectbox)]
    state = next(caption.value for caption in at.caption if "recorded" in caption.value)
    return f"{line.label} | {state}".replace("\\", "").replace("\u00a0", " ")


def _text(markup: str) -> str:
    """What a reader sees of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def components(at: AppTest) -> list[dict[str, Any]]:
    """What each of our components gets."""
    return [json.loads(element.proto.json) for element in at.get("bidi_component") if element.proto.json]


def words(at: AppTest) -> list[dict[str, Any]]:
    """Answers in running text that move with a slider."""
    return [shown for part in live_parts(at) for row in part["rows"] for shown in row if "words" in shown]


def live_parts(at: AppTest) -> list[dict[str, Any]]:
    """Those that move with a slider."""
    return [component for component in components(at) if "sliders" in component]


def pictures(at: AppTest) -> list[dict[str, Any]]:
    """Every picture of the page, with its title, figure, text alternative and source."""
    moving = [shown for part in live_parts(at) for row in part["rows"] for shown in row if "figure" in shown]
    return [*moving, *(component for component in components(at) if "figure" in component)]


def sources(at: AppTest) -> list[tuple[str, str]]:
    """Title of each picture, and the line in it that says where it comes from."""
    return [(picture["title"], picture["stamp"]) for picture in pictures(at)]


def headlines(at: AppTest) -> dict[str, tuple[str, str | None]]:
    """Label of each number that moves → what it shows, and what stands below it."""
    return {n["label"]: (n["text"], n["beside"]) for part in live_parts(at) for n in part["numbers"]}


def shown(at: AppTest) -> dict[str, str]:
    """Label of each number of the page → what it shows."""
    return {m.label: m.value for m in at.metric} | {label: text for label, (text, _) in headlines(at).items()}


def kinds() -> list[str]:
    """One preset of each kind of configuration: what is weighted, how it is bounded, which rules there are."""
    presets: dict[tuple, str] = {}
    for name, entry in PRESETS.items():
        config = entry.config
        kind = (config.rollout_is, config.rollout_is_mode, config.bypass_mode, *(r.name for r in config.rollout_rs))
        presets.setdefault(kind, name)
    return list(presets.values())
