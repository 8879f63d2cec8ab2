"""Small files that were damaged or made to do harm, as data: what is wrong with each, its content, and what is said."""

import functools
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
from hostile import MIB, Bomb, archive, deflated, npy_header, rezipped, saved, zeros_in_one_row
from pair_files import PAIR, arrays, npz, parquet
from safetensors.torch import save

GOLDEN = Path(__file__).resolve().parent / "golden" / "dumps"
SKYRL = (GOLDEN / "skyrl" / "global_step_7_training_input.pkl").read_bytes()
MEMORY = "takes far more memory to read than its size. Split the file, leave out the columns that are not needed"
NO_CODE = "numpy.savez('pairs.npz', rollout_log_probs=…"
PADDED = {name: torch.full((2, 3), -1.0) for name in PAIR}
MASKED = PADDED | {"response_mask": torch.ones(2, 3)}
LINE = b'{"rollout_log_probs": [-1], "old_log_probs": [-1]}\n'
Case = tuple[Callable[[Path], bytes] | bytes, str]
"""Content, which may hold code that makes a file of this name, and a part of what is said; "" if it is read."""

# --- .npz ---


def zip_bomb(name: str, declared: int, shape: int) -> bytes:
    """Return an array of 3 GiB of zeros in less than 4 MiB, of which the archive declares some bytes."""
    header = npy_header(f"({shape},)")
    return archive({f"{name}.npy": (deflated(header, 3 << 10), len(header) + declared, 0)})


def stored(header: bytes, data: bytes = b"") -> bytes:
    raw = header + data
    return archive({"rollout_log_probs.npy": (raw, len(raw), zlib.crc32(raw))}, method=0)


def objects(harm: Path) -> bytes:
    ragged = np.empty(2, object)
    ragged[:] = [Bomb(harm), [1.0]]
    return npz(rollout_log_probs=ragged, old_log_probs=ragged)


NPZ: dict[str, Case] = {
    "3 GiB of zeros": (lambda _: zip_bomb("rollout_log_probs", 3 << 30, 3 << 28), MEMORY),
    "3 GiB of zeros that nobody wants": (lambda _: zip_bomb("logits", 3 << 30, 3 << 28), "is missing"),
    "3 GiB that say 40 bytes": (lambda _: zip_bomb("rollout_log_probs", 40, 10), "cannot be read as .npz (Bad CRC-32"),
    "3 GiB that say 400 MiB": (lambda _: zip_bomb("rollout_log_probs", 400 * MIB, 100 * MIB), MEMORY),
    "10¹² numbers": (stored(npy_header("(1000000000000,)")), MEMORY),
    "a text of 400 MB": (stored(npy_header("(1,)", "'<U99999999'")), MEMORY),
    "8 bytes of 12": (stored(npy_header("(3,)"), b"\0" * 8), "expected 12 bytes got 8"),
    "complex numbers": (stored(npy_header("(3,)", "'<c8'"), b"\0" * 24), "dtype complex64"),
    "a dtype that does not exist": (stored(npy_header("(1,)", "'<f77'")), "'<f77'"),
    "objects": (stored(npy_header("(3,)", "'|O'")), "array of objects"),
    "objects with code": (objects, "Save ragged rows as one array of all tokens together with lengths"),
    "code in the header": (stored(npy_header("(3,)", "__import__('os')")), "is damaged"),
    "90 brackets": (stored(npy_header("(" * 90 + "3" + ")" * 90)), "is damaged"),
    "three dimensions": (stored(npy_header("(2, 2, 2)"), b"\0" * 32), "shape (2, 2, 2)"),
    "no array": (stored(b"hello"), "not an array in the format of numpy.savez"),
    "two of one name": (archive({"a.npy": (b"", 0, 0), "a": (b"", 0, 0)}, method=0), "the same name"),
    "cut off": (npz(**arrays())[:-40], "cannot be read as .npz"),
    "four bytes": (b"PK\x03\x04", "cannot be read as .npz"),
    "written by torch.save": (lambda harm: saved({"samples": [Bomb(harm)]}), "rename it to .pt"),
    "many rows of nothing": (npz(**dict.fromkeys(PAIR, np.zeros((3 * 10**8, 0)))), "300,000,000 rows or columns"),
    "integers that would be negative": (
        npz(**dict.fromkeys(PAIR, -np.ones((2, 3))), response_mask=np.full((2, 3), 2**64 - 5, np.uint64)),
        "response_mask has the number 18,446,744,073,709,551,611",
    ),
    # −2⁶³ has no absolute value in 64 bits, and became 0 in 32.
    "the smallest integer as a length": (
        npz(**dict.fromkeys(PAIR, -np.ones(4)), lengths=np.array([4, -(2**63)])),
        "lengths must hold whole numbers of at most 32 bits",
    ),
}

# --- .safetensors ---


def raw_tensors(header: Any, data: bytes = b"\0" * 12) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str = "F32", shape: tuple[int, ...] = (3,), offsets: tuple[int, int] = (0, 12)) -> bytes:
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    return raw_tensors({"rollout_log_probs": entry}, bytes(offsets[1] if offsets[1] < 100 else 12))


_DAMAGED = "cannot be read as .safetensors"
SAFETENSORS: dict[str, Case] = {
    "a header of 2 GB": (struct.pack("<Q", 2_000_000_000) + b"{}", _DAMAGED),
    "a file's header of 3 GB": (struct.pack("<Q", 3_000_000_000) + save({"a": torch.zeros(1)})[8:], _DAMAGED),
    "2 MiB of spaces": (raw_tensors(b"{" + b" " * (2 * MIB) + b"}"), _DAMAGED),
    "2⁴⁰ numbers": (one(shape=(1 << 40,)), _DAMAGED),
    "an end at 2⁶²": (one(offsets=(0, 1 << 62)), _DAMAGED),
    "an unknown type": (one("X99"), _DAMAGED),
    "8 bits": (one("F8_E4M3", (12,)), "dtype F8_E4M3"),
    "cut off": (one()[:-4], _DAMAGED),
    "deep lists": (raw_tensors(b"{" + b'"a":[' * 5000), _DAMAGED),
    "three dimensions": (one(shape=(1, 1, 3)), "shape (1, 1, 3)"),
    "many rows of nothing": (one(shape=(2**40, 0), offsets=(0, 0)), "1,099,511,627,776 rows or columns"),
}

# --- .pt and .pkl ---

# Unpickling this would call bytearray(3 * 10**9).
THREE_GB = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + (3 * 10**9).to_bytes(5, "little") + b"\x85R."


def claims(content: bytes) -> bytes:
    """Return a file of torch.save whose pickle declares 3·10⁹ numbers in an archive of six."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        said = opened.read(next(name for name in opened.namelist() if name.endswith("data.pkl")))
    declared = said.replace(b"X\x03\x00\x00\x00cpuq\x06K\x06t", b"X\x03\x00\x00\x00cpuq\x06J\x00\x2f\x68\x59t", 1)
    assert declared != said
    return rezipped(content, data_pkl=declared)


PT: dict[str, Case] = {
    "code": (lambda harm: saved({"samples": [Bomb(harm)]}), "names 'getattr', but only tensors"),
    "cut off": (saved(MASKED)[:200], "cannot be read as torch.save writes it"),
    "3 GB in the pickle": (rezipped(saved(MASKED), data_pkl=THREE_GB), MEMORY),
    "another protocol": (rezipped(saved(MASKED), data_pkl=b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "Unsupported"),
    "half a pickle": (rezipped(saved(MASKED), data_pkl=b"\x80\x02}q"), "cannot be read as torch.save writes it"),
    "compressed": (rezipped(saved(MASKED), zipfile.ZIP_DEFLATED), ""),
    "3·10⁹ numbers of six": (claims(saved(MASKED)), "record size (24 bytes) does not match expected size"),
    "expanded": (
        saved(MASKED | {"rollout_log_probs": torch.zeros(1).expand(1 << 20, 1 << 20)}), "numbers in rollout_log_probs"
    ),
    "expanded in a sample": (
        saved({"samples": [{"rollout_log_probs": torch.zeros(1).expand(1 << 40)}]}), "numbers in rollout_log_probs"
    ),
    "complex numbers": (
        saved(MASKED | {"rollout_log_probs": torch.ones(2, 3, dtype=torch.complex64)}), "has dtype torch.complex64"
    ),
    "numbers alone": (saved([1.0, 2.0]), "holds float where a dict of tensors is read"),
    "a tensor alone": (saved(torch.zeros(2, 3)), "holds Tensor where a dict of tensors is read"),
    "a sample of two dimensions": (
        saved({"samples": [{"rollout_log_probs": torch.zeros(2, 3)}]}), "has shape (2, 3); a tensor (T,)"
    ),
    "no mask": (saved(PADDED), "rows of equal length may be padded"),
    "an .npz": (npz(a=np.zeros(2)), "cannot be read as torch.save writes it"),
    "many rows of nothing": (saved(dict.fromkeys(PAIR, torch.zeros(3 * 10**8, 0))), "300,000,000 rows or columns"),
}  # fmt: skip


class Batch:
    """A batch that is pickled like SkyRL's."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return _rebuild_tensor_batch, (dict, self.state)


def _rebuild_tensor_batch(*_: Any) -> None:
    raise AssertionError("must not be called")


def code_in_a_batch(harm: Path) -> bytes:
    """Put code in place of an array, and into the metadata, which is not read."""
    return pickle.dumps(Batch({"batch_dict": {"loss_mask": Bomb(harm)}, "metadata": [Bomb(harm)]}))


UNFRAMED = SKYRL[:2] + SKYRL[11:]  # the frame says how many bytes follow
PICKLES: dict[str, Case] = {
    "code in a batch": (code_in_a_batch, "rollout_log_probs is missing"),
    "code": (lambda harm: pickle.dumps(Bomb(harm), protocol=0), NO_CODE),
    "cut off": (SKYRL[:-40], "cannot be read as a pickle of arrays"),
    "another dtype": (SKYRL.replace(b"\x8c\x07float32", b"\x8c\x07complex"), "as SkyRL writes it: dtype 'complex'"),
    "half the bytes": (SKYRL.replace(b"\x8c\x07float32", b"\x8c\x07float16"), "bytes"),
    "6·10⁹ numbers": (UNFRAMED.replace(b"K\x03K\x03\x86", b"J\x00\x94\x35\x77K\x03\x86", 1), "(2000000000, 3); it has"),
    "a memo of 2³¹": (SKYRL[:2] + b"Nr\xff\xff\xff\x7f0" + SKYRL[2:], MEMORY),
    "a state for nothing": (SKYRL[:2] + b"N}b0" + SKYRL[2:], "cannot be read as a pickle of arrays"),
    "a dictionary": (pickle.dumps({"a": 1}), NO_CODE),
    "verl's": (pickle.dumps({"a": "verl.protocol"}), "DataProto.load_from_disk(FILE).batch"),
    "ROLL's": (pickle.dumps({"a": "roll.distributed.protocol"}), "ROLL's rollout_mock has the engine's log-probs only"),
    "a batch's name alone": (pickle.dumps({"a": "_rebuild_tensor_batch"}), "there is no batch in it"),
}

# --- .parquet ---

LISTS = pa.list_(pa.float32())


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue().to_pybytes()


def renamed_bomb() -> bytes:
    """Return a bomb whose footer repeats another name per column. Arrow takes the name of the schema."""
    schema, path, rest = zeros_in_one_row(5_000_000).split(b"rollout_log_probs")
    return schema + b"rollout_log_probs" + path + b"something_unasked" + rest


def repeated_text(rows: int = 200) -> bytes:
    """Return 200 references to one text of 1 MiB."""
    lists = pa.array([[-1.0]] * rows, LISTS)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * MIB]))
    return written(pa.table({"rollout_log_probs": lists, "old_log_probs": lists, "prompt": text}))


@functools.cache
def repeated_lists() -> bytes:
    """Return 2,000 lists with references to one text of 1 MiB, which would take 2 GiB."""
    lists = pa.array([[-1.0]] * 100, LISTS)
    texts = pa.array([["x" * MIB]], pa.list_(pa.string())).take(pa.array([0] * 100))
    entry = pa.array([[{"logprob": -1.0, "token": "x" * MIB}]]).take(pa.array([0] * 100))
    table = pa.table([entry, lists, texts], ["rollout_log_probs", "old_log_probs", "prompt"])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as file:
        for _ in range(20):
            file.write_table(table)
    return sink.getvalue().to_pybytes()


def with_losses(text: str) -> bytes:
    lists = pa.array([[-1.0], [-1.0]], LISTS)
    return written(pa.table(dict.fromkeys(PAIR, lists) | {"losses": ['[{"rl": {"mask": true}}]', text]}))


_TWICE = pa.Table.from_arrays([pa.array([[-1.0]], LISTS)] * 3, ["old_log_probs", *PAIR])
PARQUET: dict[str, Case] = {
    "5 million zeros": (zeros_in_one_row(5_000_000), "old_log_probs is missing"),
    "10⁸ zeros": (lambda _: zeros_in_one_row(100_000_000), MEMORY),
    "a bomb under another name": (renamed_bomb(), "old_log_probs is missing"),
    "a column twice": (written(_TWICE), "cannot be read as Parquet"),
    "a text in many rows": (repeated_text(), ""),
    "texts in many lists": (lambda _: repeated_lists(), ""),
    "empty rows": (parquet(LISTS, 1_000_000, **dict.fromkeys(PAIR, [[]] * 300_000)), "no tokens that count"),
    "integers that would be negative": (
        parquet(**{name: [[-1.0]] for name in PAIR}, response_mask=[[np.uint64(2**64 - 5)]]),
        "response_mask has the number 18,446,744,073,709,551,611",
    ),
    "no rows": (parquet(**{name: pa.array([], LISTS) for name in PAIR}), "holds no rows"),
    "objects": (parquet(rollout_log_probs=[{"a": 1}], old_log_probs=[[-1.0]]), """got texts such as '{"a": 1}'"""),
    "lists of texts": (parquet(rollout_log_probs=[["a"]], old_log_probs=[[-1.0]]), "is a column of list<"),
    "null": (parquet(rollout_log_probs=[[-1.0], None], old_log_probs=[[-1.0]] * 2), "row 1 (from 0) has nothing"),
    "wide nulls": (parquet(pa.list_(pa.float32(), 1 << 21), **dict.fromkeys(PAIR, [None] * 3)), "is missing"),
    "a footer elsewhere": (parquet(**PAIR)[:-9] + b"PAR1", "cannot be read as Parquet"),
    "cut off": (parquet(**PAIR)[:200], "cannot be read as Parquet"),
    "a footer of 2 GB": (b"PAR1" + struct.pack("<I", 2_000_000_000) + b"PAR1", "cannot be read as Parquet"),
    "four bytes": (b"PAR1", "cannot be read as Parquet"),
    "losses that are no JSON": (with_losses("no JSON"), "losses must hold JSON"),
    "losses that are a number": (with_losses("7"), "losses must hold a list"),
    "losses that are deep": (with_losses("[" * 5000), "losses must hold JSON"),
}

# --- JSON ---

JSON: dict[str, Case] = {
    "deep lists": (b"[" * 100_000, "is nested too deeply"),
    "deep objects": (LINE + b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 2 is nested too deeply"),
    "a deep text": (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}\n" + LINE, "row 0 (from 0) has nothing"),
    "1.5 million lists": (lambda _: b"[" + b"[]," * 1_500_000 + b"[]]", "item 0 of the document is not a JSON object"),
    "33 MiB of spaces": (lambda _: b"[" + b" " * (33 * MIB) + b"]", "holds no rows"),
    "33 MiB of text": (lambda _: LINE + b'{"a": "' + b"x" * (33 * MIB) + b'"}', "row 1 (from 0) has nothing"),
    "300,000 lines": (b"{}\n" * 300_000, "300,000 lines"),
    "300,001 rows": (lambda _: b'{"old_log_probs": [' + b"[]," * 300_000 + b"[]]}", "300001 lists of old"),
    "4,200,001 tokens": (lambda _: b'{"old_log_probs": [' + b"-1," * 4_200_000 + b"-1]}", "is missing"),
    "very many keys": (
        lambda _: b"\n".join(json.dumps({f"{n}_{m}": 1 for m in range(9000)}).encode() for n in range(9)),
        "needed are rollout_log_probs",
    ),
    "an empty list": (LINE.replace(b"-1", b"") + b'{"old_log_probs": [-1]}', "row 1 (from 0) has nothing as rollout"),
    "half a document": (LINE[:40], "the document is not JSON"),
    "half a line": (LINE + LINE[:20], "line 2 is not JSON"),
    "half a number": (LINE.replace(b"-1", b"1e"), "line 1 is not JSON"),
    "5,000 digits": (LINE.replace(b"-1", b"-1" + b"0" * 5000), "line 1 is not JSON: Exceeds the limit"),
    "400 digits": (LINE.replace(b"-1", b"-1" + b"0" * 400), "rollout_log_probs in line 1 holds a number that is too"),
    "no text": (b'{"prompt": "\xff", \n}', "the document is not JSON: 'utf-8'"),
    "numbers": (b"[1, 2]", "item 0 of the document is not a JSON object"),
    "lists as samples": (b'{"samples": [[]]}', "item 0 of line 1 is not a JSON object"),
    "nothing": (b"[]", "holds no rows"),
    "two rows and one": (
        b'{"rollout_log_probs": [[-1], [-1]], "old_log_probs": [[-1]], "reward": [1, 0]}',
        "holds 2 rows, but old_log_probs 1",
    ),
    "a key twice": (
        b'{"rollout_log_probs": [-1], "old_log_probs": [-1], "rollout_log_probs": [-2]}\n',
        "line 1 is not JSON: the key 'rollout_log_probs' is given twice",
    ),
    "a pickle": (lambda harm: pickle.dumps(Bomb(harm), protocol=2), NO_CODE),
    "a newer pickle": (lambda harm: pickle.dumps(Bomb(harm), protocol=5), NO_CODE),
}

HOSTILE: dict[str, dict[str, Case]] = {
    ".npz": NPZ, ".safetensors": SAFETENSORS, ".pt": PT, ".pkl": PICKLES, ".parquet": PARQUET, ".jsonl": JSON,
}  # fmt: skip
"""Ending → what is wrong → case."""


def content_of(case: Case, harm: Path) -> bytes:
    """Return the content; code in it would make the file `harm`."""
    return case[0] if isinstance(case[0], bytes) else case[0](harm)
