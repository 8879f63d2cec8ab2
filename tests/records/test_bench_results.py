"""Tables of READMEs that a bench prints are what it printed: tests/bench/results has the raw output of each.

`make bench ARGS=diagnosis > tests/bench/results/diagnosis.txt` makes one again.
"""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
READMES = [
    (PROJECT / folder / "README.md").read_text(encoding="utf-8")
    for folder in (".", "app", "runs", "rlcorr/train", "rlcorr/gradients", "tests")
]
RESULTS = sorted((PROJECT / "tests" / "bench" / "results").glob("*.txt"))


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_table_has_the_rows_that_its_bench_printed(path: Path) -> None:
    """One README names the bench, and has its last table whole, with nothing added below its heading. Of a bench that
    prints sentences, each share of a count in the README is in them, and the ends of a range of standard errors are."""
    text = "\n\n".join(text for text in READMES if f"`make bench ARGS={path.stem}`" in text)
    printed = path.read_text(encoding="utf-8").strip()
    first, *others = rows(printed.split("\n\n")[-1]) or [""]
    if others:
        tables = [table for table in text.split("\n\n") if table.startswith("| ") and rows(table)[1:] == others]
        assert len(tables) == 1, first
    apart = rf"([\d.]+) to ([\d.]+) standard errors apart \| `make bench ARGS={path.stem}`"
    ranges = re.findall(apart, text)
    errors = sorted(re.findall(r"^  \w+ +(\d\.\d\d) ", printed, re.MULTILINE), key=float)
    assert all(ends == (errors[0], errors[-1]) for ends in ranges)
    shares = re.findall(r"\| ([\d.]+) % of ([\d,]+) \|", text) if not others and not ranges else []
    assert all(f"{float(share) / 100:.3f} of {count}" in printed for share, count in shares)
    assert others or shares or ranges, "nothing was compared"
