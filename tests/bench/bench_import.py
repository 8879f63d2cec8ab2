"""`make bench ARGS=import`: memory that a file of Parquet takes while it is imported, beside that of a small one."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from processes import environment

TOKENS, ANSWER, STEPS, PER_GROUP = 4_000_000, 1000, 32, 4
MEASURED = """
import contextlib, sys
import rlcorr.__main__  # sets what the command line sets
from hostile import MIB, peak
from rlcorr.command.cli import main
small, large = sys.argv[1:]

def imported(path, run):
    with contextlib.suppress(SystemExit):
        main(["import", path, "--run", run])
    return peak() / MIB

before = imported(small, "small")
print(imported(large, "large") - before)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.parquet", Path(folder) / "large.parquet"
        write(small, steps=1, tokens=100_000)
        write(large, steps=STEPS, tokens=TOKENS)
        group = pq.ParquetFile(large).metadata.row_group(0).total_byte_size / 2**20
        began = time.perf_counter()
        grown = growth(small, large, Path(folder))
        size, took = large.stat().st_size / 2**20, time.perf_counter() - began
        print(
            f"import: {size:.0f} MiB in row groups of {group:.0f} MiB takes {grown:.0f} MiB more than a small file, "
            f"{grown / group:.1f} row groups; {took:.0f} s"
        )


def growth(small: Path, large: Path, folder: Path) -> float:
    """Return by how many MiB more the large file takes than the small one. Both runs are written to the folder."""
    words = [sys.executable, "-c", MEASURED, str(small), str(large)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment(folder))
    assert [path.name for path in sorted((folder / "local").iterdir())] == ["large", "small"], done.stderr
    return float(done.stdout.splitlines()[-1])


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
