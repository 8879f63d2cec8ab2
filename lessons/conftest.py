"""For `pytest lessons --nbval`: numbers are compared as numbers, because no two processors agree on the last digits.

What a cell prints is compared by `printed.Printed`, its figures by `plotted.difference`.
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
        stored, fresh = figures(self.cell.outputs), figures(self.test_outputs or [])
        if len(stored) != len(fresh):
            self.raise_cell_error(f"{len(stored)} figures became {len(fresh)}")
        for old, new in zip(stored, fresh, strict=True):
            if change := difference(old, new):
                self.raise_cell_error(f"A figure differs: {change}")


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


def figures(outputs: list[Any]) -> list[Any]:
    return [output["data"][PLOTLY] for output in outputs if PLOTLY in output.get("data", {})]
