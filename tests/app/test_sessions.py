"""Several people at once, over Streamlit's own protocol."""

import asyncio
from pathlib import Path

import pytest
from app_runs import make_run, serve
from dragging import together

pytestmark = pytest.mark.slow


def test_a_class_opens_a_server_that_has_just_started(tmp_path: Path) -> None:
    """Every page is drawn and answers, though their threads import and fill the caches at the same time."""
    make_run(tmp_path, "alpha", steps=1)
    with serve(tmp_path) as url:
        times = asyncio.run(together(url, 6, 1.0))
    assert len(times.strips) == 6
    assert len(times.runs) == 6
