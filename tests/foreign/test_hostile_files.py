"""Damaged and malicious files. Each is refused with a sentence, before it takes much memory."""

import io
import json
import pickle
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hostile import MIB, Bomb, archive, deflated, npy_header, peak, zeros_in_one_row
from pair_files import PAIR, arrays, npz, parquet, read_pairs, refused


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = peak()
    yield
    assert peak() - before < 300 * MIB


# --- pickles ---


def pickles(bomb: Bomb) -> dict[str, bytes]:
    saved, objects = io.BytesIO(), io.BytesIO()
    torch.save({"samples": [bomb]}, saved)
    ragged = np.empty(2, object)
    ragged[:] = [bomb, [1.0]]
    np.savez(objects, rollout_log_probs=ragged, old_log_probs=ragged)
    files = {f"protocol {n}.jsonl": pickle.dumps(bomb, protocol=n) for n in (2, 3, 4, 5)}
    return files | {"a.pkl": pickle.dumps(bomb, protocol=0), "a.pt": saved.getvalue(), "renamed.npz": saved.getvalue(),
                    "objects.npz": objects.getvalue()}  # fmt: skip


SAID_OF_A_BOMB = {
    "a.pt": "names '__builtin__.getattr'",
    "renamed.npz": "rename it to .pt",
    "objects.npz": "Save ragged rows",
}


@pytest.mark.parametrize("name", pickles(Bomb(Path())))
def test_a_pickle_is_never_run(name: str, tmp_path: Path) -> None:
    message = refused(name, pickles(Bomb(tmp_path / "harm"))[name])
    assert SAID_OF_A_BOMB.get(name, "numpy.savez('pairs.npz', rollout_log_probs=…") in message
    assert list(tmp_path.iterdir()) == []


# --- archives ---


def test_a_zip_bomb_that_says_what_it_is() -> None:
    header = npy_header(f"({3 << 28},)")
    bomb = deflated(header, 3 << 10)
    content = archive({"rollout_log_probs.npy": (bomb, len(header) + (3 << 30), 0)})
    assert len(content) < 4 * MIB
    assert "3,221,225,600 bytes when decompressed; at most 536,870,912" in refused("x.npz", content)


def test_a_zip_bomb_in_an_array_that_nobody_wants() -> None:
    header = npy_header(f"({3 << 28},)")
    content = archive({"logits.npy": (deflated(header, 3 << 10), len(header) + (3 << 30), 0)})
    assert "bytes when decompressed" in refused("x.npz", content)


@pytest.mark.parametrize("size", [40, 400 * MIB])
def test_a_zip_bomb_that_says_less(size: int) -> None:
    """Check that no more is decompressed than declared, and no more than the shape and the limit of tokens allow."""
    header = npy_header(f"({size // 4},)")
    content = archive({"rollout_log_probs.npy": (deflated(header, 3 << 10), len(header) + size, 0)})
    assert refused("x.npz", content).endswith(
        "cannot be read as .npz (Bad CRC-32 for file 'rollout_log_probs.npy')."
        if size == 40
        else "104,857,600 numbers in rollout_log_probs; at most 4,194,304 are read. Split the file, or leave out what "
        "is not needed."
    )


def stored(header: bytes, data: bytes = b"") -> bytes:
    raw = header + data
    return archive({"rollout_log_probs.npy": (raw, len(raw), zlib.crc32(raw))}, method=0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (stored(npy_header("(1000000000000,)")), "1,000,000,000,000 numbers in rollout_log_probs"),
        (stored(npy_header("(3,)"), b"\0" * 8), "should have 12 bytes of data; it has 8"),
        (stored(npy_header("(3,)", "'<c8'"), b"\0" * 24), "dtype complex64"),
        (stored(npy_header("(3,)", "'|O'")), "array of objects"),
        (stored(npy_header("(1,)", "'<U99999999'")), "should have 399,999,996 bytes"),
        (stored(npy_header("(1,)", "'<f77'")), "a dtype that does not exist: <f77"),
        (stored(npy_header("(3,)", "[('a', '<f4')]")), "is not a plain array"),
        (stored(npy_header("(3,)", "__import__('os')")), "is not a plain array"),
        (stored(npy_header("(" * 90 + "3" + ")" * 90)), "is not a plain array"),
        (stored(npy_header("(2, 2, 2)"), b"\0" * 32), "shape (2, 2, 2)"),
        (stored(b"\x93NUMPY\x03\x00" + b"\xff" * 12), "not an array in the format of numpy.savez"),
        (stored(b"hello"), "not an array in the format of numpy.savez"),
        (archive({"a.npy": (b"", 0, 0)}, method=12), "another method than deflate"),
        (archive({"a.npy": (b"", 0, 0), "a": (b"", 0, 0)}, method=0), "the same name"),
        (archive({f"{i}.npy": (b"", 0, 0) for i in range(1001)}, method=0), "1,001 members"),
        (npz(**arrays())[:-40], "cannot be read as .npz"),
        (b"PK\x03\x04", "cannot be read as .npz"),
    ],
)
def test_a_damaged_archive(content: bytes, said: str) -> None:
    assert said in refused("x.npz", content)


# --- safetensors ---


def raw_tensors(header: Any, data: bytes = b"\0" * 12) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str = "F32", shape: tuple[int, ...] = (3,), offsets: tuple[int, int] = (0, 12)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack("<Q", 2_000_000_000) + b"{}", "header should have 2,000,000,000 bytes; the file has 10"),
        (raw_tensors(b"{" + b" " * (2 * MIB) + b"}"), "bytes of header"),
        (raw_tensors({"rollout_log_probs": one(), "old_log_probs": one()}), "cannot be read as .safetensors"),
        (raw_tensors({"rollout_log_probs": one(shape=(1 << 40,))}), "cannot be read as .safetensors"),
        (raw_tensors({"rollout_log_probs": one(offsets=(0, 1 << 62))}), "cannot be read as .safetensors"),
        (raw_tensors({"rollout_log_probs": one("X99")}), "cannot be read as .safetensors"),
        (raw_tensors({"rollout_log_probs": one("F8_E4M3", (12,))}), "dtype torch.float8_e4m3fn"),
        (raw_tensors({"rollout_log_probs": one()}, b"\0" * 8), "cannot be read as .safetensors"),  # cut off
        (raw_tensors(b"{" + b'"a":[' * 5000), "cannot be read as .safetensors"),
        (raw_tensors({"rollout_log_probs": one(shape=(1, 1, 3))}), "shape (1, 1, 3)"),
    ],
)  # fmt: skip
def test_a_damaged_safetensors_file(content: bytes, said: str) -> None:
    assert said in refused("x.safetensors", content)


# --- Parquet ---


def varint(number: int, width: int = 0) -> bytes:
    """Return Thrift's encoding of a number, in more bytes than necessary if a width is given."""
    parts = [number >> shift & 127 for shift in range(0, 7 * max(width, -(-number.bit_length() // 7), 1), 7)]
    return bytes([part | 128 for part in parts[:-1]] + parts[-1:])


def test_a_parquet_bomb_that_says_what_it_is() -> None:
    content = zeros_in_one_row(5_000_000)
    assert len(content) < 1000
    assert "numbers in rollout_log_probs; at most 4,194,304" in refused("x.parquet", content)


def test_a_parquet_bomb_whose_footer_says_three() -> None:
    content = zeros_in_one_row(5_000_000)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    true = varint(2 * 5_000_000)
    lying = content[:footer] + content[footer:].replace(true, varint(2 * 3, len(true)))
    chunk = pq.ParquetFile(pa.BufferReader(lying)).metadata.row_group(0).column(0)
    assert chunk.num_values == 3
    assert chunk.total_uncompressed_size < 200
    assert "5,000,000 numbers in rollout_log_probs; at most 4,194,304" in refused("x.parquet", lying)


def test_a_parquet_bomb_under_another_name() -> None:
    """Check that the order of the schema counts, as in Arrow, and not the name that the footer repeats per column."""
    content = zeros_in_one_row(5_000_000)
    assert content.count(b"rollout_log_probs") == 2
    schema, path, rest = content.split(b"rollout_log_probs")
    renamed = schema + b"rollout_log_probs" + path + b"something_unasked" + rest
    assert pq.ParquetFile(pa.BufferReader(renamed)).schema_arrow.names == ["rollout_log_probs"]
    assert "5,000,000 numbers in rollout_log_probs" in refused("x.parquet", renamed)


def test_a_parquet_column_twice() -> None:
    column = pa.array([[-1.0]], pa.list_(pa.float32()))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([column] * 3, ["old_log_probs", *PAIR]), sink)
    assert "cannot be read as Parquet" in refused("x.parquet", sink.getvalue().to_pybytes())


def test_a_text_that_stands_in_many_rows() -> None:
    """Read 200 references to one text of 1 MiB without making 200 MiB of them."""
    lists = pa.array([[-1.0]] * 200, pa.list_(pa.float32()))
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["x" * MIB]))
    sink = pa.BufferOutputStream()
    table = {"rollout_log_probs": lists, "old_log_probs": lists, "prompt": text}
    pq.write_table(pa.table(table), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    assert len(content) < 10_000
    record = read_pairs("x.parquet", content)
    assert record.prompts == [""] * 200
    assert "209,715,200 characters in prompts" in record.notes[0]


def test_texts_in_lists_are_not_read() -> None:
    """Skip 2,000 lists with references to one text of 1 MiB, which would take 2 GiB."""
    lists = pa.array([[-1.0]] * 100, pa.list_(pa.float32()))
    texts = pa.array([["x" * MIB]], pa.list_(pa.string())).take(pa.array([0] * 100))
    entry = pa.array([[{"logprob": -1.0, "token": "x" * MIB}]]).take(pa.array([0] * 100))
    table = pa.table([entry, lists, texts], ["rollout_log_probs", "old_log_probs", "prompt"])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as file:
        for _ in range(20):
            file.write_table(table)
    content = sink.getvalue().to_pybytes()
    assert len(content) < MIB
    record = read_pairs("x.parquet", content)
    assert record.batch.rollout_log_probs.shape == (2000, 1)
    assert "prompt is a column of list<" in record.notes[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (parquet(pa.list_(pa.float32()), 1_000_000, **dict.fromkeys(PAIR, [[]] * 300_000)), "300,000 rows"),
        (parquet(**{name: pa.array([], pa.list_(pa.float32())) for name in PAIR}), "holds no rows"),
        (parquet(rollout_log_probs=[{"a": 1}], old_log_probs=[[-1.0]]), """got texts such as '{"a": 1}'"""),
        (parquet(rollout_log_probs=[["a"]], old_log_probs=[[-1.0]]), "rollout_log_probs is a column of list<"),
        (parquet(rollout_log_probs=[[-1.0], None], old_log_probs=[[-1.0]] * 2), "row 1 (from 0) has nothing"),
        (parquet(pa.list_(pa.float32(), 1 << 21), **dict.fromkeys(PAIR, [None] * 3)), "6,291,456 numbers in"),
        (parquet(**PAIR)[:-9] + b"PAR1", "is cut off"),
        (parquet(**PAIR)[:200], "is cut off"),
        (b"PAR1" + struct.pack("<I", 2_000_000_000) + b"PAR1", "2,000,000,000 bytes of footer"),
        (b"PAR1", "is cut off"),
    ],
)
def test_a_damaged_parquet_file(content: bytes, said: str) -> None:
    assert said in refused("x.parquet", content)


# --- JSON ---

LINE = b'{"rollout_log_probs": [-1], "old_log_probs": [-1]}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "is nested too deeply"),
        (LINE + b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 2 is nested too deeply"),
        (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}\n" + LINE, "row 0 (from 0) has nothing"),
        (b"[" + b"[]," * 1_500_000 + b"[]]", "1,500,002 brackets in the document"),
        (b"[" + b" " * (33 * MIB) + b"]", "bytes in the document; one object per line"),
        (LINE + b'{"a": "' + b"x" * (33 * MIB) + b'"}', "bytes in line 2"),
        (b"{}\n" * 300_000, "300,000 lines"),
        (b'{"old_log_probs": [' + b"[]," * 300_000 + b"[]]}", "300,001 rows"),
        (b'{"old_log_probs": [' + b"-1," * 4_200_000 + b"-1]}", "4,200,001 tokens"),
        (LINE.replace(b"-1", b"") + b'{"old_log_probs": [-1]}', "row 1 (from 0) has nothing as rollout_log_probs"),
        (LINE[:40], "the document is not JSON"),
        (LINE + LINE[:20], "line 2 is not JSON"),
        (LINE.replace(b"-1", b"1e"), "line 1 is not JSON"),
        (LINE.replace(b"-1", b"-1" + b"0" * 5000), "line 1 is not JSON: Exceeds the limit"),
        (LINE.replace(b"-1", b"-1" + b"0" * 400), "rollout_log_probs in line 1 holds a number that is too large"),
        (b'{"prompt": "\xff", \n}', "the document is not JSON: 'utf-8'"),
        (b"[1, 2]", "item 0 of the document is not a JSON object"),
        (b'{"samples": [[]]}', "item 0 of line 1 is not a JSON object"),
        (b"[]", "holds no rows"),
        (
            b'{"rollout_log_probs": [[-1], [-1]], "old_log_probs": [[-1]], "reward": [1, 0]}',
            "holds 2 rows, but old_log_probs 1",
        ),
    ],
)
def test_damaged_json(content: bytes, said: str) -> None:
    assert said in refused("x.jsonl", content)
