"""Small files that declare or unpack to much: refused in one sentence, with memory in proportion to the file.

The memory is measured: each file is read in a process that may take no more than 700 MiB above what it has."""

import json
import platform
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rlcorr.errors import UsageError
from rlcorr.foreign import parquet
from rlcorr.foreign.read_file import merge_parts, read_parquet_parts, read_parts

LIMITED = """
import resource, sys
from pathlib import Path
from typing import Any
from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import import_files
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (700 << 20),) * 2)
try:
    import_files([Path(sys.argv[1])], Path(sys.argv[2]))
except UsageError as error:
    print(error)
"""
NAMES = ("rollout_log_probs", "old_log_probs", "response_mask")


def safetensors(shape: tuple[int, ...]) -> bytes:
    entry = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]}
    header = json.dumps(dict.fromkeys(NAMES, entry)).encode()
    return struct.pack("<Q", len(header)) + header


def write_npz(path: Path, shape: tuple[int, ...]) -> None:
    np.savez(path, **dict.fromkeys(NAMES, np.zeros(shape, np.float32)))


def write_pt(path: Path, shape: tuple[int, ...]) -> None:
    torch.save({name: torch.zeros(shape) for name in NAMES}, path)


def refused(path: Path) -> str:
    command = [sys.executable, "-c", LIMITED, str(path), str(path.with_name("run"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (sentence,) = done.stdout.splitlines()
    return sentence


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
@pytest.mark.parametrize("ending", ["safetensors", "npz", "pt"])
@pytest.mark.parametrize("shape", [(3 * 10**8, 0), (0, 3 * 10**8), (2**40, 0), (2**40, 0, 5)])
def test_an_array_of_no_numbers_with_many_rows(tmp_path: Path, ending: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "safetensors":
        path.write_bytes(safetensors(shape))
    else:
        (write_npz if ending == "npz" else write_pt)(path, shape)
    assert path.stat().st_size < 3000
    assert "x." in refused(path)


FREED = """
import sys, torch
from rlcorr.foreign.heap import return_large_blocks

def resident():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024

return_large_blocks() if sys.argv[1] == "returned" else None
large = torch.zeros(30 << 18)
del large
before = resident()
blocks = [torch.ones(1 << 18) for _ in range(100)]
del blocks[:-1]
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory of glibc")
def test_freed_blocks_are_returned() -> None:
    """Check 100 blocks of 1 MiB, of which only the last is kept, after a large block has been freed."""
    command = [sys.executable, "-c", FREED]
    kept, returned = (
        float(subprocess.run([*command, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "returned")
    )
    assert returned < 10 < 80 < kept


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_json_with_very_many_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("w") as file:
        for line in range(40):
            file.write(json.dumps({f"key{line}_{number}": 1 for number in range(50_000)}) + "\n")
    assert "different keys; at most 65,536 are read" in refused(path)


def test_a_page_that_unpacks_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a file that is read in parts, with one page of 8 MB of zeros, and a limit of 4 MB."""
    path = tmp_path / "x.parquet"
    rows = pa.array([[0.0] * 1000] * 1000, pa.list_(pa.float64()))
    table = pa.table(dict.fromkeys(NAMES, rows))
    pq.write_table(table, path, compression="zstd", data_page_size=1 << 30, use_dictionary=False)
    monkeypatch.setattr(parquet, "_MAX_PAGE", 4 << 20)
    with pytest.raises(UsageError, match="bytes in a page when unpacked; at most 4,194,304 are read"):
        next(read_parquet_parts(path))
    monkeypatch.setattr(parquet, "_MAX_PAGE", 64 << 20)
    assert next(read_parquet_parts(path)).step is None


def read(path: Path) -> None:
    for part in read_parts(path.name, path.read_bytes()):
        merge_parts([part])


def test_the_smallest_integer_is_no_length(tmp_path: Path) -> None:
    """−2⁶³ has no absolute value in 64 bits, and became 0 in 32."""
    pairs = dict.fromkeys(NAMES[:2], -np.ones(4))
    np.savez(tmp_path / "x.npz", **pairs, lengths=np.array([4, -(2**63)]))
    with pytest.raises(UsageError, match="lengths must hold whole numbers of at most 32 bits"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_integers_that_would_become_negative(tmp_path: Path, ending: str) -> None:
    path, mask = tmp_path / f"x.{ending}", np.full((2, 3), 2**64 - 5, np.uint64)
    arrays: dict[str, Any] = dict.fromkeys(NAMES[:2], -np.ones((2, 3))) | {"response_mask": mask}
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        pq.write_table(pa.table({name: list(array) for name, array in arrays.items()}), path)
    with pytest.raises(UsageError, match=r"response_mask has the number 18,446,744,073,709,551,611"):
        read(path)


@pytest.mark.parametrize("text", ["no JSON", "7", "[" * 5000])
def test_losses_that_are_no_json(tmp_path: Path, text: str) -> None:
    """Check prime-rl's column of texts, of which one is damaged."""
    lists = pa.array([[-1.0], [-1.0]], pa.list_(pa.float32()))
    table = pa.table(dict.fromkeys(NAMES[:2], lists) | {"losses": ['[{"rl": {"mask": true}}]', text]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UsageError, match="losses must hold"):
        read(tmp_path / "x.parquet")


def test_a_key_that_is_given_twice(tmp_path: Path) -> None:
    row = '{"rollout_log_probs": [-1.0], "old_log_probs": [-1.0], "rollout_log_probs": [-2.0]}\n'
    (tmp_path / "x.jsonl").write_text(row)
    with pytest.raises(UsageError, match="line 1 is not JSON: the key 'rollout_log_probs' is given twice"):
        read(tmp_path / "x.jsonl")
