"""Tables of READMEs that a bench prints are what it printed: tests/bench/results has the raw output of each.

`make bench ARGS=diagnosis > tests/bench/results/diagnosis.txt` makes one again.
"""

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
RESULTS = sorted((PROJECT / "tests" / "bench" / "results").glob("*.txt"))


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_table_has_the_rows_that_its_bench_printed(path: Path) -> None:
    """A README names the bench, and has its last table whole, with nothing added below its heading."""
    folder = "rlcorr/train" if path.stem == "proof" else "runs"
    readme = (PROJECT / folder / "README.md").read_text(encoding="utf-8")
    last = path.read_text(encoding="utf-8").strip().split("\n\n")[-1]
    assert f"`make bench ARGS={path.stem}`" in readme
    first, *others = rows(last)
    tables = [table for table in readme.split("\n\n") if table.startswith("| ") and rows(table)[1:] == others]
    assert len(tables) == 1, first
