"""Rows of metrics for the pages: of a long file as many as a curve needs. A file that has grown is read on."""

import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from data.caching import cached
from data.recorded import Stamp, stamp
from rlcorr.records import runs

MOST = 2000
"""Between this number of rows and twice as many are kept of a longer file."""
ENDS = 32
"""The first rows and the last ones are kept in any case: their means and the pace are computed from them."""
STEP = re.compile(rb'\{"step": (\d{1,9}),')
HAS_ACCURACY = re.compile(rb'"accuracy": [^n]')
"""Matches a row that was evaluated: in the others the accuracy is null."""

Row = dict[str, Any]


@dataclass
class Reading:
    """Holds what was read of a file until now, and the rows that are kept, by the number of their line."""

    stamp: Stamp | None = None
    lines: int = 0
    end: int = 0
    """Bytes of the whole lines."""
    stride: int = 1
    every: dict[int, Row] = field(default_factory=dict)
    """Every `stride`-th row."""
    marked: dict[int, Row] = field(default_factory=dict)
    """The first rows, those of recorded steps, and those with an accuracy."""
    last: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=ENDS))

    def add(self, line: bytes, recorded: set[int]) -> None:
        number, step = self.lines, STEP.match(line)
        is_marked = number < ENDS or HAS_ACCURACY.search(line) or (step and int(step[1]) in recorded)
        if (is_marked or number % self.stride == 0) and (row := runs.metric_row(line)):
            (self.marked if is_marked else self.every)[number] = row
        if len(self.every) > 2 * MOST:
            self.stride *= 2
            self.every = {number: row for number, row in self.every.items() if number % self.stride == 0}
        if len(self.marked) > 2 * MOST:
            self.marked = dict([*self.marked.items()][::2])
        self.last.append((number, line))
        self.lines, self.end = number + 1, self.end + len(line)

    def rows(self) -> list[Row]:
        last = {number: row for number, line in self.last if (row := runs.metric_row(line))}
        rows = self.every | self.marked | last
        return [rows[number] for number in sorted(rows) if isinstance(rows[number]["step"], int)]


@dataclass
class Kept:
    """The reading of a file, which one thread continues at a time."""

    turn: Lock = field(default_factory=Lock)
    reading: Reading = field(default_factory=Reading)


@cached(64, lambda path: path)
def _kept(path: Path) -> Kept:
    return Kept()


def metric_rows(run: Path) -> list[Row]:
    """Return the rows of metrics that name a step, thinned if there are many. Raises `DamagedFile`."""
    path = runs.metrics_path(run)
    kept = _kept(path)
    with kept.turn:
        if kept.reading.stamp != (now := stamp(path)):
            kept.reading = _read_on(run, kept.reading)
            kept.reading.stamp = now
        return kept.reading.rows()


def left_out(run: Path) -> tuple[int, int]:
    """Return the number of lines in the file of metrics, and of how many one is kept."""
    reading = _kept(runs.metrics_path(run)).reading
    return reading.lines, reading.stride


def _read_on(run: Path, reading: Reading) -> Reading:
    """Add the lines that are new; of a file that does not go on where it ended, all."""
    newest = reading.last[-1][1] if reading.last else b""
    lines, recorded = runs.metric_lines(run, reading.end - len(newest)), set(runs.list_steps(run))
    if newest and next(lines, b"") != newest:
        return _read_on(run, Reading())
    for line in lines:
        if line.endswith(b"\n"):
            reading.add(line, recorded)
    return reading
