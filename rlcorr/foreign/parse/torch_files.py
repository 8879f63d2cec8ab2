"""Files of torch.save, and SkyRL's dump of a batch, which is a pickle. No code in them is run.

torch.load makes only tensors and plain values (weights_only). Of SkyRL's pickle, every class and function that it names
is replaced by an object that does nothing when it is called; its arrays are bytes with a dtype and a shape.
"""

import io
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.arrays import array_piece
from rlcorr.foreign.parse.limits import MAX_TOKENS, Unreadable, check_limit
from rlcorr.foreign.parse.request import NO_TABLE, Piece, Request
from rlcorr.foreign.parse.rows import table_piece

_UNREADABLE = (RuntimeError, ValueError, pickle.UnpicklingError, LookupError, TypeError, AttributeError, EOFError,
               OSError, OverflowError)  # fmt: skip
_DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}


def torch_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted tensors of a dict of arrays, or of its "samples". Raises `UsageError` for anything else."""
    value = load_tensors(request.path)
    if isinstance(value, dict) and any(isinstance(x, torch.Tensor) and x.dim() == 2 for x in value.values()):
        yield {"names": list(map(str, value))}, NO_TABLE
        for name, x in value.items():
            if name in request.wanted and isinstance(x, torch.Tensor):
                yield array_piece(str(name), _numbers(str(name), x))
        return
    samples = value.get("samples") if isinstance(value, dict) else value
    if isinstance(samples, list):
        shared = _plain_sample(value, request.wanted) if isinstance(value, dict) else {}
        whole = shared | {"samples": [_plain_sample(x, request.wanted) for x in samples]}
    else:
        whole = _plain_sample(value, request.wanted)
    yield table_piece([("the file", whole)], request)


def load_tensors(file: Any) -> Any:
    """Return the tensors of a file, in dicts and lists. Raises `UsageError` for a file with anything else in it."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        if "allocate" in str(error):
            raise MemoryError from error
        why = str(error).partition("WeightsUnpickler error: ")[2].strip() or str(error)
        if name := why.partition("GLOBAL ")[2].split(" ")[0]:
            raise UsageError(
                f"names {name!r:.80}, but only tensors in dicts and lists are read: to make anything else would run "
                "code. Save a dict of tensors."
            ) from error
        raise UsageError(f"cannot be read as torch.save writes it ({first_line(ValueError(why))}).") from error


def _numbers(name: str, tensor: torch.Tensor) -> np.ndarray | str:
    """Return the numbers of a tensor, or why it has none. numpy has no bfloat16."""
    if tensor.is_complex() or tensor.is_sparse or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
        return f"{name} has dtype {tensor.dtype}; bool, integers and floats of 16, 32 or 64 bits are read."
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.dtype.itemsize:  # one number, expanded
        check_limit(MAX_TOKENS, tensor.numel(), f"numbers in {name}")
    tensor = tensor.detach()  # a tensor of a forward pass that was saved with its flag requires_grad
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _plain_sample(sample: Any, wanted: frozenset[str]) -> Any:
    """Return a sample with its wanted tensors as arrays; other keys are kept with the value None."""
    if not isinstance(sample, dict):
        raise UsageError(f"holds {type(sample).__name__} where a dict of tensors is read.")
    plain: dict[str, Any] = {}
    for name, value in sample.items():
        try:
            plain[str(name)] = _plain(str(name), value) if name in wanted else None
        except UsageError as error:
            plain[str(name)] = Unreadable(str(error))
    return plain


def _plain(name: str, value: Any) -> Any:
    """Return tensors of one dimension as arrays, also in lists and dictionaries. Raises `UsageError` for others."""
    if isinstance(value, list | tuple):
        return [_plain(name, x) for x in value]
    if isinstance(value, dict):
        return {key: _plain(name, x) for key, x in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() > 1:
        raise UsageError(f"{name} has shape {tuple(value.shape)}; a tensor (T,) with one number per token is read.")
    numbers = _numbers(name, value)
    if isinstance(numbers, str):
        raise UsageError(numbers)
    return numbers.item() if value.dim() == 0 else numbers if numbers.dtype == bool else numbers.astype(np.float64)


# --- SkyRL's pickle ---


def pickle_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted arrays of SkyRL's batch. Raises `UsageError` for any other pickle."""
    try:
        with request.path.open("rb") as file:
            batch = _Reader(file).load()
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as a pickle of arrays ({first_line(error)}).") from error
    state = batch.state if isinstance(batch, _CallResult) else None
    arrays = state.get("batch_dict") if isinstance(state, dict) else None
    if not isinstance(arrays, dict):
        raise UsageError("cannot be read as a pickle of arrays (there is no batch in it).")
    yield {"names": list(map(str, arrays))}, NO_TABLE
    for name, stored in arrays.items():
        if name in request.wanted and isinstance(stored, dict) and stored.get("format") != "tensor_list":
            yield array_piece(name, _stored_array(name, stored))


class _CallResult:
    """Result of calling an inert object. It keeps the last argument, which for SkyRL's batch is its state."""

    def __init__(self, state: Any) -> None:
        self.state = state


class _Inert:
    """Replacement for a class or a function that a pickle names; calling it does nothing."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> _CallResult:
        return _CallResult(arguments[-1] if arguments else None)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        return _Inert()


def _stored_array(name: str, stored: dict[str, Any]) -> np.ndarray | str:
    """Return an array, or why it cannot be read."""
    data, shape, dtype = stored.get("data"), stored.get("shape"), stored.get("dtype")
    if stored.get("format") == "torch" and isinstance(data, bytes):
        tensor = load_tensors(io.BytesIO(data))
        if isinstance(tensor, torch.Tensor):
            return _numbers(name, tensor)
    if not isinstance(data, bytes) or not isinstance(shape, tuple) or dtype not in _DTYPES:
        return f"{name} is not an array as SkyRL writes it: dtype {dtype!r:.40}, shape {shape!r:.40}."
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        return f"{name} should have dtype {dtype} and shape {shape!r:.40}; it has {len(data):,} bytes."
