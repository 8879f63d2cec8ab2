"""Small files that were damaged or made to do harm, as data: what is wrong with each, its content, and what is said."""

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hostile import MIB
from pair_files import PAIR, arrays, npz, parquet
from safetensors.torch import save

MEMORY = "takes far more memory to read than its size. Split the file, leave out the columns that are not needed"
PADDED = {name: torch.full((2, 3), -1.0) for name in PAIR}
MASKED = PADDED | {"response_mask": torch.ones(2, 3)}
LINE = b'{"rollout_log_probs": [-1], "old_log_probs": [-1]}\n'
Case = tuple[Callable[[Path], bytes] | bytes, str]
"""Content, which may hold code that makes a file of this name, and a part of what is said; "" if it is read."""


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


# --- .npz ---


def archive(data: bytes, size: int, crc: int = 0, method: int = 8, name: str = "rollout_log_probs.npy") -> bytes:
    """Return a hand-made zip archive of one member, with the declared size."""
    fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0, crc, len(data), size, len(name), 0)
    body = b"PK\x03\x04" + fields + name.encode() + data
    directory = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name.encode()
    return body + directory + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), len(body), 0)


def npy_header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zip_bomb(name: str, declared: int, shape: int) -> bytes:
    """Return 3 GiB of zeros in less than 4 MiB: after a full flush the same block can be repeated."""
    header, packer = npy_header(f"({shape},)"), zlib.compressobj(9, wbits=-15)
    head = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return archive(head + block * (3 << 10) + b"\x03\x00", len(header) + declared, name=f"{name}.npy")


def stored(header: bytes, data: bytes = b"") -> bytes:
    raw = header + data
    return archive(raw, len(raw), zlib.crc32(raw), method=0)


def objects(harm: Path) -> bytes:
    ragged = np.empty(2, object)
    ragged[:] = [Bomb(harm), [1.0]]
    return npz(rollout_log_probs=ragged, old_log_probs=ragged)


TOO_LARGE = "response_mask has the number 18,446,744,073,709,551,611"
NPZ: dict[str, Case] = {
    "3 GiB of zeros": (lambda _: zip_bomb("rollout_log_probs", 3 << 30, 3 << 28), MEMORY),
    "3 GiB of zeros that nobody wants": (lambda _: zip_bomb("logits", 3 << 30, 3 << 28), "is missing"),
    "3 GiB that say 40 bytes": (lambda _: zip_bomb("rollout_log_probs", 40, 10), "cannot be read as .npz (Bad CRC-32"),
    "10¹² numbers": (stored(npy_header("(1000000000000,)")), MEMORY),
    "8 bytes of 12": (stored(npy_header("(3,)"), b"\0" * 8), "expected 12 bytes got 8"),
    "complex numbers": (stored(npy_header("(3,)", "'<c8'"), b"\0" * 24), "dtype complex64"),
    "objects with code": (objects, "Save ragged rows as one array of all tokens together with lengths"),
    "code in the header": (stored(npy_header("(3,)", "__import__('os')")), "is damaged"),
    "three dimensions": (stored(npy_header("(2, 2, 2)"), b"\0" * 32), "shape (2, 2, 2)"),
    "cut off": (npz(**arrays())[:-40], "cannot be read as .npz"),
    "JSON": (LINE, "cannot be read as .npz (it is no zip archive)"),
    "many rows of nothing": (npz(**dict.fromkeys(PAIR, np.zeros((3 * 10**8, 0)))), "300,000,000 rows or columns"),
    "integers that would be negative": (
        npz(**dict.fromkeys(PAIR, -np.ones((2, 3))), response_mask=np.full((2, 3), 2**64 - 5, np.uint64)), TOO_LARGE
    ),
    # −2⁶³ has no absolute value in 64 bits, and became 0 in 32.
    "the smallest integer as a length": (
        npz(**dict.fromkeys(PAIR, -np.ones(4)), lengths=np.array([4, -(2**63)])),
        "lengths must hold whole numbers of at most 32 bits",
    ),
}  # fmt: skip

# --- .safetensors ---


def raw_tensors(header: Any, data: bytes = b"\0" * 12) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str = "F32", shape: tuple[int, ...] = (3,), end: int = 12) -> bytes:
    return raw_tensors({"rollout_log_probs": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, end]}})


_DAMAGED = "cannot be read as .safetensors"
SAFETENSORS: dict[str, Case] = {
    "a header of 2 GB": (struct.pack("<Q", 2_000_000_000) + b"{}", _DAMAGED),
    "2⁴⁰ numbers": (one(shape=(1 << 40,)), _DAMAGED),
    "8 bits": (one("F8_E4M3", (12,)), "dtype torch.float8_e4m3fn"),
    "cut off": (save(MASKED)[:-4], _DAMAGED),
    "deep lists": (raw_tensors(b"{" + b'"a":[' * 5000), _DAMAGED),
    "three dimensions": (one(shape=(1, 1, 3)), "shape (1, 1, 3)"),
}

# --- .pt, and pickles ---

# Unpickling this would call bytearray(3 * 10**9).
THREE_GB = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + (3 * 10**9).to_bytes(5, "little") + b"\x85R."


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def with_pickle(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a file of torch.save with another pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            member = old.read(info)
            new.writestr(info.filename, change(member) if info.filename.endswith("data.pkl") else member)
    return out.getvalue()


def claims(said: bytes) -> bytes:
    """Return a pickle that declares 3·10⁹ numbers instead of six."""
    return said.replace(b"X\x03\x00\x00\x00cpuq\x06K\x06t", b"X\x03\x00\x00\x00cpuq\x06J\x00\x2f\x68\x59t", 1)


EXPANDED = torch.zeros(1).expand(1 << 20, 1 << 20)
PT: dict[str, Case] = {
    "code": (lambda harm: saved({"samples": [Bomb(harm)]}), "names 'getattr', but only tensors"),
    "cut off": (saved(MASKED)[:200], "cannot be read as torch.save writes it"),
    "3 GB in the pickle": (with_pickle(saved(MASKED), lambda _: THREE_GB), MEMORY),
    "3·10⁹ numbers of six": (with_pickle(saved(MASKED), claims), "does not match expected size"),
    "expanded": (saved(MASKED | {"rollout_log_probs": EXPANDED}), "numbers in rollout_log_probs"),
    "expanded in a sample": (saved({"samples": [{"rollout_log_probs": EXPANDED[0]}]}), "is missing"),
    "complex numbers": (
        saved(MASKED | {"rollout_log_probs": torch.ones(2, 3, dtype=torch.complex64)}), "has dtype torch.complex64"
    ),
    "numbers alone": (saved([1.0, 2.0]), "item 0 of the file is not an object"),
    "a sample of two dimensions": (
        saved({"samples": [{"rollout_log_probs": torch.zeros(2, 3)}]}), "has shape (2, 3); a tensor (T,)"
    ),
    "no mask": (saved(PADDED), "rows of equal length may be padded"),
    "a pickle": (lambda harm: pickle.dumps(Bomb(harm)), "Reading a pickle runs the code in it"),
}  # fmt: skip
PICKLES: dict[str, Case] = {
    "code": (lambda harm: pickle.dumps(Bomb(harm), protocol=0), "numpy.savez('pairs.npz', rollout_log_probs=…"),
    "SkyRL's": (pickle.dumps({"a": "skyrl.backends"}), "a TrainingInputBatch of SkyRL becomes arrays by"),
    "verl's": (pickle.dumps({"a": "verl.protocol"}), "DataProto.load_from_disk(FILE).batch"),
    "ROLL's": (pickle.dumps({"a": "roll.distributed.protocol"}), "ROLL's rollout_mock has the engine's log-probs only"),
}

# --- .parquet ---

LISTS = pa.list_(pa.float32())


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue().to_pybytes()


def zeros_in_one_row(count: int) -> bytes:
    """Return a file of some hundred bytes: one zero in a dictionary, and a run of `count` references to it."""
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count, np.float32)))
    return written(pa.table({"rollout_log_probs": lists}), write_statistics=False)


def repeated_text(rows: int = 200) -> bytes:
    """Return 200 references to one text of 1 MiB."""
    lists = pa.array([[-1.0]] * rows, LISTS)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * MIB]))
    return written(pa.table({"rollout_log_probs": lists, "old_log_probs": lists, "prompt": text}))


def with_losses(text: str) -> bytes:
    lists = pa.array([[-1.0], [-1.0]], LISTS)
    return written(pa.table(dict.fromkeys(PAIR, lists) | {"losses": ['[{"rl": {"mask": true}}]', text]}))


_TWICE = pa.Table.from_arrays([pa.array([[-1.0]], LISTS)] * 3, ["old_log_probs", *PAIR])
PARQUET: dict[str, Case] = {
    "5 million zeros": (zeros_in_one_row(5_000_000), "old_log_probs is missing"),
    "10⁸ zeros": (lambda _: zeros_in_one_row(100_000_000), MEMORY),
    "a column twice": (written(_TWICE), "cannot be read as Parquet"),
    "a text in many rows": (repeated_text(), ""),
    "empty rows": (parquet(LISTS, 1_000_000, **dict.fromkeys(PAIR, [[]] * 300_000)), "no tokens that count"),
    "integers that would be negative": (
        parquet(**{name: [[-1.0]] for name in PAIR}, response_mask=[[np.uint64(2**64 - 5)]]), TOO_LARGE
    ),
    "no rows": (parquet(**{name: pa.array([], LISTS) for name in PAIR}), "holds no rows"),
    "objects": (parquet(rollout_log_probs=[{"a": 1}], old_log_probs=[[-1.0]]), "is a column of struct<"),
    "lists of texts": (parquet(rollout_log_probs=[["a"]], old_log_probs=[[-1.0]]), "is a column of list<"),
    "null": (parquet(rollout_log_probs=[[-1.0], None], old_log_probs=[[-1.0]] * 2), "row 1 (from 0) has nothing"),
    "cut off": (parquet(**PAIR)[:200], "cannot be read as Parquet"),
    "a footer of 2 GB": (b"PAR1" + struct.pack("<I", 2_000_000_000) + b"PAR1", "cannot be read as Parquet"),
    "losses that are no JSON": (with_losses("no JSON"), "losses must hold a JSON list"),
    "losses that are deep": (with_losses("[" * 5000), "losses must hold a JSON list"),
}  # fmt: skip

# --- JSON ---

JSON: dict[str, Case] = {
    "deep lists": (b"[" * 100_000, "is nested too deeply"),
    "deep objects": (LINE + b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 2 is nested too deeply"),
    "1.5 million lists": (lambda _: b"[" + b"[]," * 1_500_000 + b"[]]", "item 0 of the document is not an object"),
    "33 MiB of text": (lambda _: LINE + b'{"a": "' + b"x" * (33 * MIB) + b'"}', "row 1 (from 0) has nothing"),
    "300,000 lines": (b"{}\n" * 300_000, "300,000 lines"),
    "300,001 rows": (lambda _: b'{"old_log_probs": [' + b"[]," * 300_000 + b"[]]}", "300001 lists of old"),
    "4,200,001 tokens": (lambda _: b'{"old_log_probs": [' + b"-1," * 4_200_000 + b"-1]}", "is missing"),
    "very many keys": (json.dumps({f"{n}": 1 for n in range(80_000)}).encode(), "needed are rollout_log_probs"),
    "half a line": (LINE + LINE[:20], "line 2 is not JSON"),
    "5,000 digits": (LINE.replace(b"-1", b"-1" + b"0" * 5000), "line 1 is not JSON: Exceeds the limit"),
    "400 digits": (LINE.replace(b"-1", b"-1" + b"0" * 400), "rollout_log_probs in line 1 holds a number that is too"),
    "no text": (b'{"prompt": "\xff", \n}', "the document is not JSON: 'utf-8'"),
    "half a surrogate pair": (LINE.replace(b"}", b', "prompt": "\\ud800"}'), ""),
    "numbers": (b"[1, 2]", "item 0 of the document is not an object"),
    "lists as samples": (b'{"samples": [[]]}', "item 0 of line 1 is not an object"),
    "nothing": (b"[]", "holds no rows"),
    "two rows and one": (
        b'{"rollout_log_probs": [[-1], [-1]], "old_log_probs": [[-1]], "reward": [1, 0]}',
        "holds 2 rows, but old_log_probs 1",
    ),
    "a pickle": (lambda harm: pickle.dumps(Bomb(harm)), "Reading a pickle runs the code in it"),
}

HOSTILE: dict[str, dict[str, Case]] = {
    ".npz": NPZ, ".safetensors": SAFETENSORS, ".pt": PT, ".pkl": PICKLES, ".parquet": PARQUET, ".jsonl": JSON,
}  # fmt: skip
"""Ending → what is wrong → case."""


def content_of(case: Case, harm: Path) -> bytes:
    """Return the content; code in it would make the file `harm`."""
    return case[0] if isinstance(case[0], bytes) else case[0](harm)
