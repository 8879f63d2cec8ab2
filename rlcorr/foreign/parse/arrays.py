"""Arrays of .npz and .safetensors, one after the other, so that only one is in memory."""

import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError, deserialize

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.request import NO_TABLE, Piece, Request

_TENSOR_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip
"""Type of safetensors → that of numpy, which has no bfloat16: those are the upper halves of float32."""
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, SafetensorError, OSError, EOFError, LookupError, ValueError, TypeError,
    RuntimeError, SyntaxError, NotImplementedError, OverflowError,
)  # fmt: skip
_OBJECTS = (
    "{} is an array of objects. numpy pickles these, and reading a pickle runs code. Save ragged rows as one array of "
    "all tokens together with lengths, or padded to (B, T) together with a response_mask."
)


def npz_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted arrays of an .npz file. Raises `UsageError` if it is damaged."""
    try:
        with np.load(request.path, allow_pickle=False) as archive:
            if any(name.endswith(".pkl") for name in archive.files):  # torch.save writes a zip archive, too
                raise UsageError("this file was written by torch.save: rename it to .pt.")
            if len(set(archive.files)) < len(archive.files):
                raise UsageError("two members of the archive have the same name.")
            yield {"names": archive.files}, NO_TABLE
            for name in archive.files:
                if name in request.wanted:
                    yield array_piece(name, _npy(archive, name))
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as .npz ({first_line(error)}).") from error


def _npy(archive: Any, name: str) -> np.ndarray | str:
    """Return an array, or why it cannot be read."""
    try:
        array = archive[name]
    except ValueError as error:
        return _OBJECTS.format(name) if "allow_pickle" in str(error) else f"{name} is damaged ({first_line(error)})."
    return array if isinstance(array, np.ndarray) else f"{name} is not an array in the format of numpy.savez."


def safetensors_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted tensors of a .safetensors file. Raises `UsageError` if it is damaged."""
    try:
        tensors: dict[str, Any] = dict(deserialize(request.path.read_bytes()))
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as .safetensors ({first_line(error)}).") from error
    yield {"names": [*tensors]}, NO_TABLE
    for name, tensor in tensors.items():
        if name in request.wanted:
            yield array_piece(name, _tensor(name, tensor))


def _tensor(name: str, tensor: dict[str, Any]) -> np.ndarray | str:
    """Return a tensor, or why it cannot be read."""
    kind = tensor["dtype"]
    if kind not in _TENSOR_TYPES:
        return f"{name} has dtype {kind}; bool, integers and floats of 16, 32 or 64 bits are read."
    array = np.frombuffer(tensor["data"], _TENSOR_TYPES[kind]).reshape(tensor["shape"])
    return (array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array


def array_piece(name: str, array: np.ndarray | str) -> Piece:
    """Return an array of numbers as a column with its shape, and texts, one per row, as a table.

    An array of another type is unreadable, and so is a text in place of an array, which says why.
    """
    if isinstance(array, str):
        return {"unreadable": {name: array}}, NO_TABLE
    kind = array.dtype.kind
    if kind == "U" and array.ndim == 1:
        return {"name": name}, pa.table({name: pa.array(array.tolist(), pa.string())})
    why = ""
    if kind == "U":
        why = f"{name} holds texts in shape {array.shape}; one per row is read."
    elif kind not in "biuf" or array.dtype.itemsize > 8:
        why = f"{name} has dtype {array.dtype}; bool, integers, floats of 16, 32 or 64 bits and texts are read."
    if why:
        return {"unreadable": {name: why}}, NO_TABLE
    if kind == "b":
        plain = array.view(np.uint8) != 0  # any byte except 0 is true
    else:
        plain = array.astype(array.dtype.newbyteorder("="), copy=False)
    return {"name": name, "shape": plain.shape}, pa.table({name: pa.array(plain.ravel())})
