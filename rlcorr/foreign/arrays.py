"""The .npz and .safetensors files of other people as columns.

No code in them is run, and sizes are checked before data is read.
"""

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Set

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.columns import (
    MAX_BYTES,
    MAX_NUMBERS,
    MAX_TOKENS,
    Column,
    Columns,
    check_limit,
    from_array,
    signed,
    try_read,
)

_MAX_MEMBERS = 1000
_MAX_HEADER = 1 << 20
# The header that numpy.save writes for a plain array. It does not match structured types or other Python expressions.
_NPY = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z]\d{0,9})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n"
)

# --- npz ---


def npz_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """Return the wanted arrays of an .npz file, and the names of all. Raises `UsageError` for a damaged file."""
    check_limit(_MAX_MEMBERS, content.count(b"PK\x01\x02"), "members of the archive")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            _check_archive(archive.infolist(), len(members))
            columns = {
                name: try_read(lambda name=name: _read_npy(archive, members[name], name))
                for name in members
                if name in wanted
            }
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, struct.error) as error:
        raise UsageError(f"cannot be read as .npz ({first_line(error)}).") from error
    return columns, list(members)


def _check_archive(members: list[zipfile.ZipInfo], names: int) -> None:
    if any(info.filename.endswith(".pkl") for info in members):  # torch.save writes a zip archive, too
        raise UsageError("this file was written by torch.save: rename it to .pt.")
    if names < len(members):
        raise UsageError("two members of the archive have the same name.")
    check_limit(MAX_BYTES, sum(info.file_size for info in members), "bytes when decompressed")
    for info in members:
        # numpy uses no other method, and the decompressed size of bzip2 and LZMA cannot be limited in advance.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise UsageError(f"{info.filename!r:.80} is encrypted or compressed by another method than deflate.")


def _read_npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Column:
    """Return one array. Its header is checked before the data; zipfile decompresses at most the declared size."""
    with archive.open(info) as stream:
        magic = stream.read(10)
        if magic[:8] != b"\x93NUMPY\x01\x00" or len(magic) < 10:
            raise UsageError(f"{name} is not an array in the format of numpy.savez.")
        length = int.from_bytes(magic[8:], "little")
        dtype, fortran, shape = _npy_header(name, stream.read(length))
        size = math.prod(shape) * dtype.itemsize
        check_limit(_most(len(shape)), max(math.prod(shape), *shape, 0), f"numbers in {name}")
        if info.file_size != 10 + length + size:
            raise UsageError(f"{name} should have {size:,} bytes of data; it has {info.file_size - 10 - length:,}.")
        array = np.frombuffer(stream.read(size), dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "U":
        return _text_column(name, array)
    if dtype.kind == "b":  # any byte except 0 is true
        return from_array(name, torch.tensor(array.view(np.uint8) != 0))
    return from_array(
        name, torch.tensor(signed(name, array) if dtype.kind in "iu" else array.astype(f"=f{dtype.itemsize}"))
    )


def _most(dimensions: int) -> int:
    """Return how many numbers an array may have. One of two dimensions or more may consist of padding mostly."""
    return MAX_NUMBERS if dimensions > 1 else MAX_TOKENS


def _npy_header(name: str, header: bytes) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Return dtype, Fortran order and shape. Raises `UsageError` unless it is a plain array of numbers or texts."""
    match = _NPY.fullmatch(header)
    if match is None:
        raise UsageError(f"{name} is not a plain array: its header is {header.strip()!r:.120}.")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError as error:
        raise UsageError(f"{name} has a dtype that does not exist: {match[1].decode()}.") from error
    if dtype.kind == "O":
        raise UsageError(
            f"{name} is an array of objects. numpy pickles these, and reading a pickle runs code. Save ragged rows as "
            "one array of all tokens together with lengths, or padded to (B, T) together with a response_mask."
        )
    if dtype.kind not in "biufU" or (dtype.itemsize > 8 and dtype.kind != "U"):
        raise UsageError(f"{name} has dtype {dtype}; bool, integers, floats of 16, 32 or 64 bits and texts are read.")
    return dtype, match[2] == b"True", tuple(int(n) for n in match[3].replace(b" ", b"").split(b",") if n)


def _text_column(name: str, array: np.ndarray) -> list[str]:
    if array.ndim != 1:
        raise UsageError(f"{name} holds texts in shape {array.shape}; one per row is read.")
    return array.tolist()


# --- safetensors ---


def safetensors_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """Return the wanted tensors of a .safetensors file, and the names of all. Raises `UsageError` if damaged."""
    header = int.from_bytes(content[:8], "little")
    if header > len(content) - 8:
        raise UsageError(f"its header should have {header:,} bytes; the file has {len(content):,} in all.")
    check_limit(_MAX_HEADER, header, "bytes of header")
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"cannot be read as .safetensors ({first_line(error)}).") from error
    return {name: tensor_column(name, tensor) for name, tensor in tensors.items() if name in wanted}, list(tensors)


def tensor_column(name: str, tensor: torch.Tensor) -> Column:
    """Return a tensor as a column: `Unreadable` if its shape or dtype is not supported, or it is too large."""
    return try_read(lambda: _column(name, tensor.detach()))


def _column(name: str, tensor: torch.Tensor) -> Column:
    check_limit(_most(tensor.dim()), tensor.numel(), f"numbers in {name}")
    if tensor.is_complex() or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
        raise UsageError(f"{name} has dtype {tensor.dtype}; bool, integers and floats of 16, 32 or 64 bits are read.")
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8) != 0
    elif not tensor.is_floating_point():
        tensor = torch.from_numpy(signed(name, tensor.numpy()))
    return from_array(name, tensor)
