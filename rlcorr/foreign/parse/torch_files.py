"""Tensors of torch.save and of .safetensors. No code in a file is run: torch.load makes only tensors and plain values.

This module imports torch, so `program` imports it for these files alone.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.arrays import array_piece
from rlcorr.foreign.parse.objects import table_piece
from rlcorr.foreign.parse.request import MAX_TOKENS, NO_TABLE, Piece, Request, Unreadable, check_limit

_UNREADABLE = (RuntimeError, ValueError, pickle.UnpicklingError, LookupError, TypeError, AttributeError, EOFError,
               OSError, OverflowError)  # fmt: skip


def safetensors_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted tensors of a .safetensors file. Raises `UsageError` if it is damaged."""
    try:
        with safe_open(request.path, framework="pt") as file:
            yield {"names": [*file.keys()]}, NO_TABLE
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                if name in request.wanted:
                    yield array_piece(name, _numbers(name, file.get_tensor(name)))
    except (SafetensorError, *_UNREADABLE) as error:
        raise UsageError(f"cannot be read as .safetensors ({first_line(error)}).") from error


def torch_pieces(request: Request) -> Iterator[Piece]:
    """Yield the wanted tensors of a dict of arrays, or of its "samples". Raises `UsageError` for anything else."""
    value = _load(request)
    if isinstance(value, dict) and any(isinstance(x, torch.Tensor) and x.dim() == 2 for x in value.values()):
        yield {"names": list(map(str, value))}, NO_TABLE
        for name, x in value.items():
            if name in request.wanted and isinstance(x, torch.Tensor):
                yield array_piece(str(name), _numbers(str(name), x))
        return
    yield table_piece([("the file", _plain("the file", value))], request)


def _load(request: Request) -> Any:
    """Return the tensors of a file, in dicts and lists. Raises `UsageError` for a file with anything else in it."""
    try:
        return torch.load(request.path, map_location="cpu", weights_only=True)
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


def _plain(name: str, value: Any) -> Any:
    """Return tensors of one dimension as arrays, and others as `Unreadable`, also in lists and dictionaries."""
    if isinstance(value, dict):
        return {str(key): _plain(str(key), x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, x) for x in value]
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() > 1:
        why = f"{name} has shape {tuple(value.shape)}; a tensor (T,) with one number per token is read."
        return Unreadable(why)
    numbers = _numbers(name, value)
    if isinstance(numbers, str):
        return Unreadable(numbers)
    return numbers.item() if value.dim() == 0 else numbers if numbers.dtype == bool else numbers.astype(np.float64)
