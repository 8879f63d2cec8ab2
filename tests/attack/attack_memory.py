"""The memory of an import: a Parquet file with row groups of 32 MiB must take at most three of them."""

from attempts import Attack
from bench_import import SMALL, growth, size_of_group, write
from hostile import MIB

TOKENS, GROUPS = 1 << 20, 8
"""Tokens of a step, of which four are in a row group; number of row groups."""
MOST = 3
"""Row groups."""


def attack(attack: Attack) -> None:
    """Import a file of few tokens, and then one of many row groups, in one fresh process."""
    for number, _ in attack.attempts(1):
        small, large = attack.folder / "small.parquet", attack.folder / "large.parquet"
        write(small, steps=1, tokens=SMALL)
        write(large, steps=4 * GROUPS, tokens=TOKENS)
        group, grown = size_of_group(large), growth(small, large, attack.folder / "imported")
        note = f"{large.stat().st_size / MIB:.0f} MiB in {GROUPS} row groups of {group:.0f} MiB: {grown:.0f} MiB more"
        attack.notes.append(f"import: {note} than a small file, {grown / group:.1f} row groups")
        attack.judge(number, "an import", f"{note}: above {MOST}" if grown > MOST * group else None)
