"""`make bench ARGS=import`: memory that a file of Parquet takes while it is imported, beside that of a small one."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hostile import MIB
from processes import environment

SMALL, ANSWER, STEPS, PER_GROUP = 100_000, 1000, 32, 4
CASES = ((4_000_000, False), (1 << 20, False), (1 << 20, True))
"""Tokens of a step, and whether glibc keeps the memory of freed blocks, as it does by default."""
MEASURED = """
import contextlib, sys
import rlcorr.__main__  # sets what the command line sets
from hostile import MIB, peak
from rlcorr.command import import_
from rlcorr.command.cli import main
small, large, kept = sys.argv[1:]
if kept == "True":
    import_.return_large_blocks = lambda block: None

def imported(path, run):
    with contextlib.suppress(SystemExit):
        main(["import", path, "--run", run])
    return peak() / MIB

before = imported(small, "small")
print(imported(large, "large") - before)
"""


def main() -> None:
    for tokens, kept in CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(line(tokens, Path(folder), kept=kept), flush=True)


def line(tokens: int, folder: Path, *, kept: bool) -> str:
    """Import a small and a large file, and write what the large one takes."""
    small, large = folder / "small.parquet", folder / "large.parquet"
    write(small, steps=1, tokens=SMALL)
    write(large, steps=STEPS, tokens=tokens)
    group, began = size_of_group(large), time.perf_counter()
    grown = growth(small, large, folder, kept=kept)
    size, took = large.stat().st_size / MIB, time.perf_counter() - began
    how = "freed memory kept" if kept else "freed memory returned"
    return (
        f"import, {how}: {size:.0f} MiB in row groups of {group:.0f} MiB takes {grown:.0f} MiB more than a small file, "
        f"{grown / group:.1f} row groups; {took:.0f} s"
    )


def growth(small: Path, large: Path, folder: Path, *, kept: bool = False) -> float:
    """Return by how many MiB more the large file takes than the small one. Both runs are written to the folder."""
    words = [sys.executable, "-c", MEASURED, str(small), str(large), str(kept)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment(folder))
    assert [path.name for path in sorted((folder / "local").iterdir())] == ["large", "small"], done.stderr
    return float(done.stdout.splitlines()[-1])


def size_of_group(path: Path) -> float:
    return pq.ParquetFile(path).metadata.row_group(0).total_byte_size / MIB


def write(path: Path, steps: int, tokens: int) -> None:
    offsets = pa.array(range(0, tokens + 1, ANSWER), pa.int32())
    kinds = {"step": pa.int32(), "rollout_log_probs": pa.list_(pa.float32()), "old_log_probs": pa.list_(pa.float32())}
    schema = pa.schema(kinds)
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for first in range(0, steps, PER_GROUP):
            tables = [of_step(step, tokens, offsets, schema) for step in range(first, min(first + PER_GROUP, steps))]
            group = pa.concat_tables(tables)
            file.write_table(group, row_group_size=len(group))


def of_step(step: int, tokens: int, offsets: pa.Array, schema: pa.Schema) -> pa.Table:
    values = [-torch.rand(tokens, generator=torch.Generator().manual_seed(2 * step + n)) for n in (0, 1)]
    numbers = pa.array([step] * (tokens // ANSWER), pa.int32())
    return pa.table([numbers, *(pa.ListArray.from_arrays(offsets, pa.array(x.numpy())) for x in values)], schema=schema)
