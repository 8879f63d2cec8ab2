"""For `pytest lessons --nbval`: nbval compares what a cell prints, character by character; its figures are compared
here, by value, because no two processors agree on the last digits."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

sys.path.insert(0, str(Path(__file__).parent))
from plotted import difference

PLOTLY = "application/vnd.plotly.v1+json"


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += (PLOTLY,)  # pyright: ignore


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield  # nbval executes the cell
    if isinstance(item, IPyNbCell) and item.options["check"]:
        stored, fresh = figures(item.cell.outputs), figures(item.test_outputs or [])
        if len(stored) != len(fresh):
            item.raise_cell_error(f"{len(stored)} figures became {len(fresh)}")
        for old, new in zip(stored, fresh, strict=True):
            if change := difference(old, new):
                item.raise_cell_error(f"A figure differs: {change}")


def figures(outputs: list[Any]) -> list[Any]:
    return [output["data"][PLOTLY] for output in outputs if PLOTLY in output.get("data", {})]
