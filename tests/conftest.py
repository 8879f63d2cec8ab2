import os
import sys

# Before torch is imported. One thread: the models of the tests are too small to share out.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from rlcorr.records import runs

settings.register_profile("quick")  # fewer examples: `make test-fast`


def pytest_configure(config: pytest.Config) -> None:
    """Print a failure when it happens, not only at the end: a suite that is stopped before it has told why."""

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:  # a worker of xdist has none
            reporter.write_line("")
            reporter.section(report.nodeid)
            reporter.write_line(report.longreprtext)
            for title, text in report.sections:
                reporter.write_line(f"{title}:\n{text}")

    plugin = ModuleType("print_failures")
    vars(plugin)["pytest_runtest_logreport"] = pytest_runtest_logreport
    config.pluginmanager.register(plugin)


IN_A_BROWSER = sorted((Path(__file__).parent / "browser").glob("test_*.py"))
ENGINES = ("test_vllm.py", "test_vllm_router.py", "test_grid.py", "test_mini_vllm.py")
LONG = ("test_study_training.py", "test_every_view.py", "test_resume.py")


def group(path: Path) -> str:
    """Return which tests run in one process: those of a file, those that start one vLLM engine after the other, which
    takes longer to import than to start, and those in a browser in two halves, each with one Chromium and one server.
    """
    if path in IN_A_BROWSER:
        return f"browser_{IN_A_BROWSER.index(path) % 2}"
    return "engines" if path.name in ENGINES else str(path)


class GroupScheduling(LoadFileScheduling):
    """Send the tests of a group to one worker: xdist 3.8 ignores the groups of `--dist loadgroup` under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return group(self.config.rootpath / nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)  # make mutate runs without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return GroupScheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a page or a browser. The longest groups come first, so that none is left alone at the end."""
    for item in items:
        if item.path.parent.name == "app":
            item.add_marker("page")
        if item.path in IN_A_BROWSER:
            item.add_marker("browser")
            item.add_marker("slow")
    items.sort(key=lambda item: item.path not in IN_A_BROWSER and item.path.name not in (*ENGINES, *LONG))


@pytest.fixture
def local_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs made by a test go to a folder of its own."""
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    return tmp_path / "local"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture
def rewarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never answers right, and without rewards nothing would move: long answers are good here."""
    from rlcorr.train.inputs.tasks import TASKS

    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: len(response) / 5))


@pytest.fixture(autouse=True)
def every_figure_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library leaves out plotly's check of every property, which costs six times the rest of a figure, and which
    also takes names such as title_text apart: what is left out must have nothing to do."""
    drawing = sys.modules.get("rlcorr.figures.canvas")
    if drawing is None:
        return
    make = drawing.Figure.__init__

    def checked(figure, *given, **parts) -> None:
        make(figure, *given, **parts)
        if parts.get("_validate") is False:
            unchecked = figure.to_dict()
            make(figure, *given, **parts | {"_validate": True})
            validated = figure.to_dict()
            assert [set(trace) for trace in validated["data"]] == [set(trace) for trace in unchecked["data"]]
            for name in ("xaxis", "yaxis", "legend", "margin"):
                assert set(validated["layout"][name]) == set(unchecked["layout"][name])

    monkeypatch.setattr(drawing.Figure, "__init__", checked)
