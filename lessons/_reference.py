"""Write the reference pages beside the lessons: functions, presets and metrics, from the library's own docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rlcorr import PRESETS, describe
from rlcorr.measuring.metric_definitions import METRICS, OBJECTIVE_METRICS, PROBABILITY_METRICS, RULE_METRICS

ROOMS = ("rlcorr", "rlcorr.measuring", "rlcorr.losses")
"""Packages whose public classes and functions have an entry."""
PACKAGE = Path(inspect.getfile(importlib.import_module("rlcorr"))).parent
PAGES = {"reference": "Functions", "presets": "Presets", "metrics": "Metrics"}
WIDTH = 72
"""Longest signature on one line."""
SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)


def write(folder: Path) -> None:
    """Write one Markdown page for each entry of PAGES."""
    pages = {"reference": functions(), "presets": presets(), "metrics": metrics()}
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join([f"# {PAGES[name]}", "", *lines, ""]), encoding="utf-8")


def functions() -> Iterator[str]:
    """Yield the public classes and functions of every module in ROOMS, with signature and docstring."""
    for module in modules():
        yield from (f"## `{module.__name__}`", "", *paragraphs(module.__doc__ or ""), "")
        for name, member in vars(module).items():
            public = not name.startswith("_") and getattr(member, "__module__", "") == module.__name__
            if public and (inspect.isfunction(member) or inspect.isclass(member)) and member.__doc__:
                yield from (f"### `{name}`", "", "```python", signature(name, member), "```", "")
                yield from (*paragraphs(inspect.getdoc(member) or ""), "")


def modules() -> list[ModuleType]:
    """Return the modules of ROOMS, room by room."""
    names = []
    for room in ROOMS:
        folder = PACKAGE.joinpath(*room.split(".")[1:])
        names += [f"{room}.{path.stem}" for path in sorted(folder.glob("*.py")) if not path.stem.startswith("__")]
    return [importlib.import_module(name) for name in names]


def signature(name: str, member: object) -> str:
    """Return `name(parameters) -> result` with the annotations as they are written, without the package's path."""
    assert callable(member)
    if isinstance(member, type) and issubclass(member, Exception):
        return name
    whole = inspect.signature(member)
    text = f"{name}{whole}"
    if len(text) > WIDTH:
        parameters = "".join(f"    {parameter},\n" for parameter in whole.parameters.values())
        text = f"{name}(\n{parameters})" + str(whole).rpartition(")")[2]
    return re.sub(r"\b(?:rlcorr|torch|collections|typing|pathlib)(?:\.\w+)*\.(?=[A-Z])", "", text)


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield a docstring as Markdown: examples and aligned lines as code, sections as a bold word and a list."""
    for block in docstring.strip().split("\n\n"):
        lines = block.splitlines()
        if block.lstrip().startswith(">>>"):
            yield from ("```pycon", *lines, "```", "")
        elif SECTION.match(lines[0]):
            entries = re.sub(r"\n {8,}", " ", "\n".join(lines[1:]))
            yield from (f"**{lines[0]}**", "", *(f"- {escaped(line.strip())}" for line in entries.splitlines()), "")
        elif any(line.startswith("  ") or "   " in line for line in lines):
            yield from ("```text", *lines, "```", "")
        else:
            yield from (escaped(" ".join(lines)), "")


def escaped(text: str) -> str:
    """Return text in which Markdown finds no formula, no emphasis and no HTML, except inside backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_$<>\[\]|^~])", r"\\\1", part) for part in parts)


def presets() -> Iterator[str]:
    """Yield every preset: what it does, where it comes from, and when it fails."""
    for name, preset in PRESETS.items():
        yield from (f"## `{name}`", "", escaped(preset.config.explain()), "")
        yield from (f"**Source:** {escaped(preset.source)}.", "", f"**Fails when:** {escaped(preset.fails_when)}.", "")


def metrics() -> Iterator[str]:
    """Yield every metric with its meaning, formula, range and sign of trouble."""
    for name in (*METRICS, *PROBABILITY_METRICS, *OBJECTIVE_METRICS):
        yield from (f"## `{name}`", "", escaped(describe(name)), "")
    yield from ("## Metrics of a rejection rule", "", "Their names begin with `rollout_rs_RULE_`.", "")
    for name, metric in RULE_METRICS.items():
        yield from (
            f"### `{name}`",
            "",
            escaped(f"{metric.meaning}. Formula: {metric.formula}. Bad: {metric.bad}."),
            "",
        )
