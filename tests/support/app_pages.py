"""The app's script, run without a browser: what the tests of its views share."""

import functools
import html
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
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
    """Each AppTest looks for components in the metadata of every installed package: longer than the page takes. And it
    leaves the app's script as `__main__`, which a process that a later test spawns would run.
    """
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    components = _components()
    monkeypatch.setattr(manifest_scanner, "scan_component_manifests", lambda: components)


@functools.cache
def _components() -> list:
    return manifest_scanner.scan_component_manifests()


def open_app(view: str | None = None, **query: str | list[str]) -> AppTest:
    return _open(AppTest.from_file(MAIN, default_timeout=300), {"view": _name(view or RUN), **query})


def _name(view: str) -> str:
    """bench for views/bench.py, which is how tests name a view."""
    return Path(view).stem


def _open(at: AppTest, query: dict[str, Any]) -> AppTest:
    at.query_params.clear()
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


class Address(dict[str, list[str]]):
    """What Streamlit's `query_params` is to app/state.py."""

    def get_all(self, key: str) -> list[str]:
        return self[key]

    from_dict = dict.update


def notices_of(query: dict[str, list[str]]) -> list[str]:
    """Return what the app finds wrong with an address, without drawing the page."""
    import state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "st", SimpleNamespace(session_state={}, query_params=Address(query)))
        state.begin()
        return state.notices()


def open_view(at: AppTest, view: str, **query: str) -> AppTest:
    """Open another view in the same session as a link does: what the query does not name stays as it is."""
    (link,) = [link for link in _rows_of_links(at)[0] if link["to"]["view"] == _name(view)]
    return _open(at, _query(link) | query)


def widget(shown: Any, key: str) -> Any:
    """The widget of these that shows a field. Its key has a space for each time that code has changed the field."""
    for one in shown:
        if one.key is not None and one.key.rstrip() == key:
            return one
    raise KeyError(key)


def chosen(at: AppTest, key: str) -> Any:
    """The value of a field in this session; None for a bound that is not changed."""
    import state

    usual = state.FIELDS[key].default if key in state.FIELDS else None
    return at.session_state["visit"].values.get(key, usual)


def follow(at: AppTest, label: str) -> AppTest:
    """Follow a link of this page, in the same session."""
    (link,) = [link for link in links(at) if link["label"] == label]
    return _open(at, _query(link))


def _query(link: dict[str, Any]) -> dict[str, Any]:
    return dict(parse_qsl(link["href"].removeprefix("?"), keep_blank_values=True))


def links(at: AppTest) -> list[dict[str, Any]]:
    """The links of the page after those of the navigation: what they say, where they lead, and what they change."""
    return [link for row in _rows_of_links(at)[1:] for link in row]


def _rows_of_links(at: AppTest) -> list[list[dict[str, Any]]]:
    return [component for component in components(at) if isinstance(component, list)]


def said(at: AppTest) -> str:
    """Everything the page says, without the escapes that keep Markdown out."""
    parts = [part.value for part in (*at.warning, *at.error, *at.info, *at.caption, *at.markdown)]
    for part in watched_parts(at):
        parts += [_text(part["html"]), *part["buttons"].values(), _text(part["below"])]
    for part in live_parts(at):
        parts += [part["refused"], _text(part["said"]), *part["texts"].values(), *part["tables"].values()]
        parts += [_text(note["lead"]) for note in part["notes"]]
        parts += [_text(shown[of]) for row in part["rows"] for shown in row for of in ("above", "heading", "caption")]
    return "\n".join(parts).replace("\\", "").replace("\u00a0", " ")


def four_digits(value: float) -> str:
    """As a page writes a number: 5.376e-6, where Python has 5.376e-06."""
    return f"{value:.4g}".replace("e-0", "e-")


def two_digits(value: float) -> str:
    """Two digits after the point, or two that are not 0, as a page writes a number with an interval."""
    if math.isnan(value):
        return "–"
    return f"{value:.2f}" if abs(value) >= 0.1 or abs(value) < 5e-5 else f"{value:.2g}"


def html_of(at: AppTest) -> str:
    """The HTML of the page: its tables and styles."""
    return "".join(element.proto.body for element in at.get("html"))


def line_and_state(at: AppTest) -> str:
    """What the line above the pickers says is open, and next to it the state of the run."""
    (line,) = [box for box in at.expander if any((picker.key or "").rstrip() == "run" for picker in box.selectbox)]
    said = [_text(part["html"]) for part in watched_parts(at)] + [caption.value for caption in at.caption]
    state = next(text for text in said if " recorded" in text)
    return f"{line.label} | {state}".replace("\\", "").replace("\u00a0", " ")


def _text(markup: str) -> str:
    """What a reader sees of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def components(at: AppTest) -> list[dict[str, Any]]:
    """What each of our components gets."""
    return [json.loads(element.proto.json) for element in at.get("bidi_component") if element.proto.json]


def live_parts(at: AppTest) -> list[dict[str, Any]]:
    """Those that move with a slider."""
    return [component for component in components(at) if "rows" in component]


def watched_parts(at: AppTest) -> list[dict[str, Any]]:
    """What the parts show that something goes on in, which ask the server by themselves."""
    return [component["content"] for component in components(at) if "content" in component]


def pictures(at: AppTest) -> list[dict[str, Any]]:
    """Every picture of the page, with its title, figure, text alternative and source."""
    moving = [shown for part in live_parts(at) for row in part["rows"] for shown in row if "figure" in shown]
    watched = [picture for part in watched_parts(at) for picture in part["pictures"]]
    return [*moving, *watched, *(component for component in components(at) if "figure" in component)]


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
