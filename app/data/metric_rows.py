"""Rows of metrics for the pages: of a long file as many as a curve needs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.caching import cached
from data.recorded import stamp
from rlcorr.records import runs

MOST = 2000
"""Between this number of rows and twice as many are kept of a longer file."""
ENDS = 32
"""The first rows and the last ones are kept in any case: their means and the pace are computed from them."""
STEP = re.compile(rb'\{"step": (\d{1,9}),')
HAS_ACCURACY = re.compile(rb'"accuracy": [^n]')
"""Matches a row that was evaluated: in the others the accuracy is null."""

Row = dict[str, Any]


def metric_rows(run: Path) -> list[Row]:
    """Return the rows of metrics that name a step, thinned if there are many. Raises `DamagedFile`."""
    return _read(run)[0]


def left_out(run: Path) -> tuple[int, int]:
    """Return the number of lines in the file of metrics, and of how many one is kept."""
    return _read(run)[1:]


@cached(64, lambda run: (run, stamp(runs.metrics_path(run))))
def _read(run: Path) -> tuple[list[Row], int, int]:
    """Return the rows, the number of lines, and of how many one is kept.

    Rows of recorded steps and those with an accuracy are kept, too. Only rows that are kept are parsed.
    """
    recorded, marked, lines = set(runs.list_steps(run)), [], 0
    for line in _whole_lines(run):
        step = STEP.match(line)
        if HAS_ACCURACY.search(line) or (step and int(step[1]) in recorded):
            marked.append(lines)
        lines += 1
    stride = 1
    while lines > 2 * MOST * stride:
        stride *= 2
    kept = {*range(0, lines, stride), *range(ENDS), *range(max(lines - ENDS, 0), lines)}
    kept |= {*marked[:: 1 + len(marked) // (2 * MOST)]}
    rows = [runs.metric_row(line) for number, line in enumerate(_whole_lines(run)) if number in kept]
    return [row for row in rows if row is not None and isinstance(row["step"], int)], lines, stride


def _whole_lines(run: Path) -> Iterator[bytes]:
    return (line for line in runs.metric_lines(run) if line.endswith(b"\n"))
