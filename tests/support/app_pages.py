"""The app's script, run without a browser: what the tests of its views share."""

import functools
import json
from pathlib import Path

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
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app over the committed runs."""
    monkeypatch.syspath_prepend(PROJECT / "app")


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


def said(at: AppTest) -> str:
    """Everything the page says, without the escapes that keep Markdown out."""
    parts = [*at.warning, *at.error, *at.info, *at.caption, *at.markdown]
    return "\n".join(part.value for part in parts).replace("\\", "")


def sources(at: AppTest) -> list[tuple[str, str]]:
    """Title of each picture, and the line in it that says where it comes from."""
    sent = [json.loads(element.proto.json) for element in at.get("bidi_component") if element.proto.json]
    return [(picture["title"], picture["stamp"]) for picture in sent if "stamp" in picture]


def shown(at: AppTest) -> dict[str, str]:
    return {m.label: m.value for m in at.metric}


def kinds() -> list[str]:
    """One preset of each kind of configuration: what is weighted, how it is bounded, which rules there are."""
    presets: dict[tuple, str] = {}
    for name, entry in PRESETS.items():
        config = entry.config
        kind = (config.rollout_is, config.rollout_is_mode, config.bypass_mode, *(r.name for r in config.rollout_rs))
        presets.setdefault(kind, name)
    return list(presets.values())
