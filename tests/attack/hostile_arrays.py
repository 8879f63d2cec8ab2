"""Files of arrays that lie about their shape, type or size, or hold code: .npz, .safetensors, .pt, .pkl and Parquet."""

import functools
import io
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hostile import Bomb, archive, deflated, npy_header, rezipped, saved, zeros_in_one_row

PAIR = ("rollout_log_probs", "old_log_probs")
COLUMNS = (*PAIR, "response_mask", "lengths", "offsets", "step", "advantages", "group_ids", "policy_versions")
SIZES = (0, 0, 1, 2, 3, 3, 7, 65536, 2**31 - 1, 2**31, 3 * 10**8, 2**40, 2**62, 2**63 - 1, 2**64)
NUMBERS = (-1.0, -1e-30, 0.0, 0.01, 5.0, -1e38, -1e308, np.nan, np.inf, -np.inf)
INTEGERS = (0, 1, 2, -1, 2**31, -(2**31), 2**53 + 1, -(2**63), 2**63 - 1)
BOMBS = 600
"""MiB of zeros in a bomb: more than is read."""


def shape(chance: Random) -> tuple[int, ...]:
    return tuple(chance.choice(SIZES) for _ in range(chance.choice([0, 1, 1, 2, 2, 2, 3, 5])))


def some_columns(chance: Random) -> list[str]:
    """Return the pair, and often more."""
    return [*PAIR, *chance.sample(COLUMNS[2:], chance.randint(0, 4))]


def small_array(chance: Random, name: str) -> np.ndarray:
    """Return an array that exists, with extreme numbers in a common type."""
    size = chance.choice([(2, 3), (2, 3), (2, 3), (6,), (2,), (), (0, 3), (3, 0), (2, 1, 3)])
    if name in PAIR or chance.random() < 0.4:
        values = np.array([chance.choice(NUMBERS) for _ in range(int(np.prod(size)))]).reshape(size)
        with np.errstate(over="ignore"):
            return values.astype(chance.choice(["<f4", "<f8", "<f2", ">f4"]))
    values = np.array([chance.choice(INTEGERS) for _ in range(int(np.prod(size)))], dtype=np.int64).reshape(size)
    return values.astype(chance.choice(["<i8", "<u8", "<i4", "<u2", "|b1", "<c8", "<M8[s]"]))


# --- npz ---


@functools.cache
def bomb(mebibytes: int) -> tuple[bytes, int]:
    """Return a compressed array of zeros, and its size."""
    header = npy_header(f"({mebibytes << 18},)")
    return deflated(header, mebibytes), len(header) + (mebibytes << 20)


def npz(chance: Random, harm: Path) -> tuple[bytes, str]:
    kind = chance.choice(["shapes", "headers", "bomb", "objects", "names", "numbers"])
    members: dict[str, tuple[bytes, int, int]] = {}
    for name in some_columns(chance):
        raw = npy_header(str(shape(chance)), chance.choice(["'<f4'", "'<i8'", "'|b1'", "'|O'", "'<U99999'", "'<f16'"]))
        if kind == "headers":
            raw = chance.choice([raw[:9], raw + b"\0" * 24, raw.replace(b"<", b"(" * 30), b"\x93NUMPY\x02\0" + raw[8:]])
        if kind == "names":
            name = chance.choice([name + "\0", "x" * 300 + name, f"../../{name}", "/" + name, name])
        members[f"{name}.npy"] = (raw, len(raw), zlib.crc32(raw))
    if kind == "bomb":
        packed, size = bomb(BOMBS)
        wanted = chance.choice(["logits", *PAIR])
        members = {f"{wanted}.npy": (packed, chance.choice([size, 40, 2**20, 2**32 - 1]), chance.choice([0, 1]))}
    if kind in ("objects", "numbers"):
        columns: dict[str, Any] = {name: small_array(chance, name) for name in some_columns(chance)}
        if kind == "objects":
            ragged = np.empty(2, object)
            ragged[:] = [Bomb(harm), [1.0]]
            columns[chance.choice([*columns])] = ragged
        file = io.BytesIO()
        np.savez(file, **columns)
        return file.getvalue(), kind
    return archive(members, method=8 if kind == "bomb" else 0), kind


# --- safetensors ---


def safetensors(chance: Random, _: Path) -> tuple[bytes, str]:
    header: Any = {}
    for name in some_columns(chance):
        size, first = shape(chance), chance.choice([0, 0, 12, 2**40, -1])
        kind = chance.choice(["F32", "F32", "I64", "BOOL", "F8_E4M3", "X99", 7, None])
        last = first + chance.choice([0, 12, 24, 2**62, -1])
        header[name] = {"dtype": kind, "shape": list(size), "data_offsets": [first, last]}
    how = chance.choice(["shapes", "deep", "long names", "length", "twice"])
    if how == "deep":
        header["__metadata__"] = {"a": functools.reduce(lambda inner, _: [inner], range(900), 1)}
    if how == "long names":
        header |= {f"{'n' * 300}\0{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50)}
    text = json.dumps(header).encode()
    if how == "twice":
        text = text[:-1] + b"," + text[1:]
    length = chance.choice([2**31, 2**62, 2**64 - 1, 0, 5]) if how == "length" else len(text)
    return struct.pack("<Q", length) + text + bytes(chance.choice([0, 12, 24, 48])), how


# --- torch.save and pickles ---

ALLOCATES = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + (3 * 10**9).to_bytes(5, "little") + b"\x85R."
"""Unpickling this would call bytearray(3 * 10**9)."""


def torch_value(chance: Random, harm: Path, depth: int = 3) -> Any:
    """Return something that nobody expects in a batch."""
    leaf: list[Callable[[], Any]] = [
        lambda: torch.zeros(1).expand(chance.choice([1 << 20, 1 << 40]), *(() if depth % 2 else (1 << 10,))),
        lambda: torch.zeros(chance.choice([(3 * 10**8, 0), (0, 2**40), (2**40, 0, 5), (2, 2, 2)])),
        lambda: torch.ones(2, 3, dtype=chance.choice([torch.complex64, torch.float8_e4m3fn, torch.bfloat16])),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.tensor([chance.choice(INTEGERS) for _ in range(3)]),
        lambda: torch.from_numpy(small_array(chance, PAIR[0]).astype("<f8")),
        lambda: Bomb(harm),
        lambda: chance.choice([None, "text", -1.5, {1, 2}, b"bytes", float("nan"), 10**400]),
    ]
    if depth and chance.random() < 0.3:
        inner = [torch_value(chance, harm, depth - 1) for _ in range(2)]
        return inner if chance.random() < 0.5 else dict(zip(PAIR, inner, strict=True))
    return chance.choice(leaf)()


def torch_file(chance: Random, harm: Path) -> tuple[bytes, str]:
    whole: Any = {name: torch.full((2, 3), -1.0) for name in (*PAIR, "response_mask")}
    how = chance.choice(["values", "values", "values", "samples", "code"])
    if how == "code":
        code = [
            ALLOCATES,
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            pickle.dumps(Bomb(harm), 2),
            b"\x80\x02}q",
            b"(" * 10**6,
        ]
        return rezipped(saved(whole), data_pkl=chance.choice(code)), how
    for name in chance.sample([*whole, "step", "advantages"], 2):
        whole[name] = torch_value(chance, harm)
    if how == "samples":
        whole = {"samples": [whole] * chance.choice([1, 3]), "step": chance.choice(INTEGERS)}
    return saved(whole), how


def pickled(chance: Random, harm: Path) -> tuple[bytes, str]:
    protocol = chance.randrange(6)
    value = chance.choice([Bomb(harm), {"batch_dict": Bomb(harm)}, [Bomb(harm)] * 3, {"verl.protocol": Bomb(harm)}])
    content = pickle.dumps(value, protocol=protocol)
    return content + b"_rebuild_tensor_batch" * chance.randrange(2), f"code in protocol {protocol}"


# --- Parquet ---

TYPES: tuple[Callable[[Random], Any], ...] = (
    lambda chance: pa.array([[chance.choice(NUMBERS) for _ in range(n)] for n in (3, 1)], pa.list_(pa.float64())),
    lambda chance: pa.array([[chance.choice(INTEGERS)], [1]], pa.list_(pa.int64())),
    lambda _: pa.array([[2**64 - 5], [1]], pa.list_(pa.uint64())),
    lambda chance: pa.array([chance.choice(INTEGERS), 1], pa.int64()),
    lambda _: pa.array([None, None], pa.list_(pa.float32(), 1 << 21)),
    lambda _: pa.array([[None, -1.0], None], pa.list_(pa.float32())),
    lambda _: pa.array([[[-1.0]], [[]]], pa.list_(pa.list_(pa.float32()))),
    lambda _: pa.array([{"a": -1.0}, None]),
    lambda _: pa.array([[("a", 1.0)], []], pa.map_(pa.string(), pa.float64())),
    lambda _: pa.array(["text", None]),
    lambda _: pa.array([b"\xff\xfe", b""]),
    lambda _: pa.array([True, None]),
    lambda _: pa.array([1, 2], pa.timestamp("ns")),
    lambda _: pa.array([1, 2], pa.decimal128(38, 10)),
    lambda _: pa.array([[-1.0], [-1.0, -2.0]], pa.list_(pa.float16())),
    lambda _: pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["x" * (1 << 20)])),
    lambda _: pa.nulls(2),
)


def parquet(chance: Random, _: Path) -> tuple[bytes, str]:
    if chance.random() < 0.2:
        content = zeros_in_one_row(5_000_000)
        return chance.choice([content, content.replace(b"rollout_log_probs", b"something_unasked", 1)]), "a bomb"
    names = [*some_columns(chance), chance.choice(["", "x" * 300, "a\0b", "losses", "a.b", PAIR[0], "prompt"])]
    plain = [chance.random() < 0.6 for _ in names]
    pair = pa.array([[-1.0, -2.0], [-3.0]], pa.list_(pa.float32()))
    arrays = [
        pair if name in PAIR and sound else chance.choice(TYPES)(chance)
        for name, sound in zip(names, plain, strict=True)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, names), sink, compression=chance.choice(["zstd", "none", "gzip"]))
    return sink.getvalue().to_pybytes(), f"columns {names}"


KINDS = {".npz": npz, ".safetensors": safetensors, ".pt": torch_file, ".pkl": pickled, ".parquet": parquet}


def hostile_array(chance: Random, harm: Path) -> tuple[str, bytes, str]:
    """Return a name, a content, and what is hostile in it. Code in it would make the file `harm`."""
    ending = chance.choice([*KINDS])
    content, how = KINDS[ending](chance, harm)
    return f"x{ending}", content, how
