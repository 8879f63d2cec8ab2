"""Arrays of .npz, one after the other, so that only one is in memory; `torch_files` makes the same pieces."""

import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.request import NO_TABLE, Piece, Request

_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, LookupError, ValueError, TypeError, RuntimeError)
_OBJECTS = (
    "{} is an array of objects. numpy pickles these, and reading a pickle runs code. Save ragged rows as one array of "
    "all tokens together with lengths, or padded to (B, T) together with a response_mask."
)


def npz_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted arrays of an .npz file. Raises `UsageError` if it is damaged."""
    if not zipfile.is_zipfile(request.path):
        raise UsageError("cannot be read as .npz (it is no zip archive).")
    try:
        with np.load(request.path, allow_pickle=False) as archive:
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
    except (ValueError, SyntaxError) as error:
        return _OBJECTS.format(name) if "allow_pickle" in str(error) else f"{name} is damaged ({first_line(error)})."
    return array if isinstance(array, np.ndarray) else f"{name} is not an array in the format of numpy.savez."


def array_piece(name: str, array: np.ndarray | str) -> Piece:
    """Return an array of numbers as a column with its shape, and texts, one per row, as a table.

    An array of another type is unreadable, and so is a text in place of an array, which says why.
    """
    if isinstance(array, str):
        return {"unreadable": {name: array}}, NO_TABLE
    kind = array.dtype.kind
    if kind == "U" and array.ndim == 1:
        return {"name": name}, pa.table({name: pa.array(array.tolist(), pa.string())})
    if kind not in "biuf" or array.dtype.itemsize > 8:
        got = f"{name} has dtype {array.dtype} and shape {array.shape}"
        why = f"{got}; numbers of at most 64 bits, or a text per row, are read."
        return {"unreadable": {name: why}}, NO_TABLE
    if kind == "b":
        plain = array.view(np.uint8) != 0  # any byte except 0 is true
    else:
        plain = array.astype(array.dtype.newbyteorder("="), copy=False)
    return {"name": name, "shape": plain.shape}, pa.table({name: pa.array(plain.ravel())})
