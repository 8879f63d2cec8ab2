"""The .npz and .safetensors files of other people as columns. Nothing in them is run; sizes come before data."""

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
from rlcorr.foreign.columns import MAX_BYTES, MAX_TOKENS, Column, Columns, at_most, from_array, readable

_MAX_MEMBERS = 1000
_MAX_HEADER = 1 << 20
# What numpy.save writes for a plain array. Structured types, and whatever else Python could evaluate, do not fit.
_NPY = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z]\d{0,9})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n"
)

# --- npz ---


def npz_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted arrays of an .npz, and the names of all. Raises `UsageError`."""
    at_most(_MAX_MEMBERS, content.count(b"PK\x01\x02"), "members of the archive")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            _check_archive(archive.infolist(), len(members))
            columns = {
                name: readable(lambda name=name: _npy(archive, members[name], name))
                for name in members
                if name in wanted
            }
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, struct.error) as error:
        raise UsageError(f"cannot be read as .npz ({first_line(error)}).") from error
    return columns, list(members)


def _check_archive(members: list[zipfile.ZipInfo], different: int) -> None:
    if any(info.filename.endswith(".pkl") for info in members):  # what torch.save writes is a zip, too
        raise UsageError("this is what torch.save writes: call it .pt, and it is read.")
    if different < len(members):
        raise UsageError("two members of the archive have the same name.")
    at_most(MAX_BYTES, sum(info.file_size for info in members), "bytes when inflated")
    for info in members:
        # numpy writes no others, and what bzip2 and LZMA inflate to cannot be bounded beforehand.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise UsageError(f"{info.filename!r:.80} is encrypted or compressed by another method than deflate.")


def _npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Column:
    """One array. The header is read and checked before the data; zipfile inflates no more than the declared size."""
    with archive.open(info) as stream:
        magic = stream.read(10)
        if magic[:8] != b"\x93NUMPY\x01\x00" or len(magic) < 10:
            raise UsageError(f"{name} is no array as numpy.savez writes it.")
        length = int.from_bytes(magic[8:], "little")
        dtype, fortran, shape = _npy_header(name, stream.read(length))
        size = math.prod(shape) * dtype.itemsize
        at_most(MAX_TOKENS, math.prod(shape), f"numbers in {name}")
        if info.file_size != 10 + length + size:
            raise UsageError(f"{name} should have {size:,} bytes of data; it has {info.file_size - 10 - length:,}.")
        array = np.frombuffer(stream.read(size), dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "U":
        return _texts(name, array)
    if dtype.kind == "b":  # any byte but 0 is true
        return from_array(name, torch.tensor(array.view(np.uint8) != 0))
    return from_array(name, torch.tensor(array.astype("int64" if dtype.kind in "iu" else f"=f{dtype.itemsize}")))


def _npy_header(name: str, header: bytes) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Raises `UsageError` unless it describes a plain array of numbers or texts."""
    match = _NPY.fullmatch(header)
    if match is None:
        raise UsageError(f"{name} is no plain array: its header is {header.strip()!r:.120}.")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError as error:
        raise UsageError(f"{name} has a dtype that does not exist: {match[1].decode()}.") from error
    if dtype.kind == "O":
        raise UsageError(
            f"{name} is an array of objects, which numpy pickles, and reading a pickle runs code. Save ragged rows as "
            "one array of all tokens beside their lengths, or padded, (B, T), beside a response_mask."
        )
    if dtype.kind not in "biufU" or (dtype.itemsize > 8 and dtype.kind != "U"):
        raise UsageError(f"{name} has dtype {dtype}; bool, integers, floats of 16, 32 or 64 bits and texts are read.")
    return dtype, match[2] == b"True", tuple(int(n) for n in match[3].replace(b" ", b"").split(b",") if n)


def _texts(name: str, array: np.ndarray) -> list[str]:
    if array.ndim != 1:
        raise UsageError(f"{name} holds texts in shape {array.shape}; one per row is read.")
    return array.tolist()


# --- safetensors ---


def safetensors_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted tensors of a .safetensors file, and the names of all. Raises `UsageError`."""
    header = int.from_bytes(content[:8], "little")
    if header > len(content) - 8:
        raise UsageError(f"its header should have {header:,} bytes; the file has {len(content):,} in all.")
    at_most(_MAX_HEADER, header, "bytes of header")
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"cannot be read as .safetensors ({first_line(error)}).") from error
    return {name: tensor_column(name, tensor) for name, tensor in tensors.items() if name in wanted}, list(tensors)


def tensor_column(name: str, tensor: torch.Tensor) -> Column:
    """Return a tensor as a column, `Unreadable` for a shape or dtype that is not read, or too many numbers."""
    return readable(lambda: _column(name, tensor))


def _column(name: str, tensor: torch.Tensor) -> Column:
    at_most(MAX_TOKENS, tensor.numel(), f"numbers in {name}")
    if tensor.is_complex() or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
        raise UsageError(f"{name} has dtype {tensor.dtype}; bool, integers and floats of 16, 32 or 64 bits are read.")
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8) != 0
    elif not tensor.is_floating_point():
        tensor = tensor.to(torch.int64)
    return from_array(name, tensor)
