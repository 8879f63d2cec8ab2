"""For `pytest lessons --nbval`: numbers are compared as numbers, because no two processors agree on the last digits.

What a cell prints is compared by `printed.Printed`, its figures by `plotted.difference`, and so is the alternative
text of each figure, which has its numbers in words. A warning is an error: it is printed, and nbval compares that.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

sys.path.insert(0, str(Path(__file__).parent))
from plotted import difference
from printed import Printed

PLOTLY = "application/vnd.plotly.v1+json"


class LessonCell(IPyNbCell):
    """A cell whose stored and fresh outputs must say the same, and show the same."""

    def sanitize(self, s: Any) -> Any:
        """Return what nbval compares with `!=`: a text as `Printed`."""
        return Printed(super().sanitize(s)) if isinstance(s, str) else s

    def runtest(self) -> None:
        super().runtest()
        if not self.options["check"]:
            return
        stored, fresh = with_figures(self.cell.outputs), with_figures(self.test_outputs or [])
        if len(stored) != len(fresh):
            self.raise_cell_error(f"{len(stored)} figures became {len(fresh)}")
        for old, new in zip(stored, fresh, strict=True):
            if change := difference(figure_of(old), figure_of(new)):
                self.raise_cell_error(f"A figure differs: {change}")
            if Printed(alternative_text(old)) != alternative_text(new):
                self.raise_cell_error(f"A figure's text differs: {alternative_text(old)}\n{alternative_text(new)}")


class LessonFile(IPyNbFile):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.skip_compare += (PLOTLY,)

    def collect(self) -> Iterator[LessonCell]:
        for cell in super().collect():
            parts = {"cell_num": cell.cell_num, "cell": cell.cell, "options": cell.options}
            yield LessonCell.from_parent(self, name=cell.name, **parts)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Iterator[None]:
    collectors = yield
    return [
        LessonFile.from_parent(parent, path=file_path) if isinstance(one, IPyNbFile) else one
        for one in collectors  # pyright: ignore
    ]


def with_figures(outputs: list[Any]) -> list[Any]:
    return [output for output in outputs if PLOTLY in output.get("data", {})]


def figure_of(output: Any) -> Any:
    return output["data"][PLOTLY]


def alternative_text(output: Any) -> str:
    return output["metadata"].get("image/png", {}).get("alt", "")
