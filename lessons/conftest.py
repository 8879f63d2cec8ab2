"""For `pytest lessons --nbval`: pictures are not compared, the numbers printed under them are."""

import pytest


def pytest_collectstart(collector: pytest.Collector) -> None:
    if collector.path.suffix == ".ipynb":
        collector.skip_compare += ("application/vnd.plotly.v1+json", "text/html")  # pyright: ignore
