"""What files made to do harm are checked with."""

import io
import resource
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

MIB = 1 << 20


def peak() -> int:
    """The most memory that this process ever had, in bytes. Elsewhere than on a Mac ru_maxrss begins with the size of
    the process that started this one."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def archive(members: dict[str, tuple[bytes, int, int]], method: int = 8) -> bytes:
    """Return a hand-made zip archive of name → (compressed bytes, declared size, CRC)."""
    body, directory = b"", b""
    for name, (data, size, crc) in members.items():
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0, crc, len(data), size, len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fields
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + data
    count = len(members)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(body), 0)
    return body + directory + end


def npy_header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def deflated(start: bytes, zeros: int) -> bytes:
    """Return `start` and this many MiB of zeros, compressed. After a full flush the same block can be repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * zeros + b"\x03\x00"


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def rezipped(content: bytes, method: int = zipfile.ZIP_STORED, **replaced: bytes) -> bytes:
    """Return a file of torch.save with replaced members: `replaced` has ends of their names, with _ for a dot."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", method) as new:
        for info in old.infolist():
            ending = info.filename.rpartition("/")[2].replace(".", "_")
            new.writestr(info.filename, replaced.get(ending, old.read(info)))
    return out.getvalue()


def zeros_in_one_row(count: int) -> bytes:
    """Return a file of some hundred bytes: one zero in a dictionary, and a run of `count` references to it."""
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count, np.float32)))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"rollout_log_probs": lists}), sink, compression="zstd", write_statistics=False)
    return sink.getvalue().to_pybytes()
