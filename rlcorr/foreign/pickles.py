"""SkyRL's dump of a batch, a pickle, as columns. Arrays are read from their bytes; no code in the pickle is executed.

Every class and function that the pickle names is replaced by an object that does nothing when it is called. The arrays
are plain bytes with a dtype and a shape. Other pickles are refused with a command that converts them.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Set
from typing import Any

import numpy as np
import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.arrays import tensor_column
from rlcorr.foreign.columns import MAX_TOKENS, Columns, check_limit, try_read
from rlcorr.foreign.torch_files import load_tensors
from rlcorr.systems import skyrl, slime
from rlcorr.systems.verl import dumps as verl_dumps

_RUNS_CODE = "Reading a pickle runs the code in it, so it is not read here. Convert it where you trust it"
_CONVERSIONS = {
    b"skyrl": skyrl.FROM_PICKLE,
    b"verl": verl_dumps.FROM_PICKLE,
    b"slime": slime.FROM_PICKLE,
    b"roll.distributed": "ROLL's rollout_mock has the engine's log-probs only, so it has no pair",
}
_ANY_ARRAYS = (
    "arrays (B, T) go into `numpy.savez('pairs.npz', rollout_log_probs=…, old_log_probs=…, response_mask=…)`, or with "
    "torch.save into a .pt"
)
_DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
_UNREADABLE = (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError, OverflowError)


def refusal(content: bytes) -> UsageError:
    """Return the error for a pickle, with the conversion for the system that seems to have written it, or any."""
    conversions = [text for mark, text in _CONVERSIONS.items() if mark in content]
    return UsageError(f"{_RUNS_CODE}: {conversions[0] if conversions else _ANY_ARRAYS}.")


def pickle_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """Return the wanted arrays of SkyRL's batch, and the names of all. Raises `UsageError` for any other pickle."""
    if skyrl.PICKLE_MARK not in content:
        raise refusal(content)
    batch = _unpickle(content)
    arrays = batch.state.get("batch_dict") if isinstance(batch, _CallResult) and isinstance(batch.state, dict) else None
    if not isinstance(arrays, dict):
        raise refusal(content)
    columns = {}
    for name, stored in arrays.items():
        if name in wanted and isinstance(stored, dict) and stored.get("format") != "tensor_list":
            columns[name] = try_read(lambda name=name, stored=stored: tensor_column(name, _read_tensor(name, stored)))
    return columns, [str(name) for name in arrays]


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


def _unpickle(content: bytes) -> Any:
    """Return the content of a pickle. Raises `UsageError` for opcodes that would run code.

    The indices of the memo are checked first: Python would allocate gigabytes for a very large one.
    """
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if opcode.name in ("LONG_BINPUT", "PUT") and isinstance(argument, int) and argument > number:
                raise UsageError(f"is not a pickle that Python wrote: it has the memo index {argument:,}.")
            if opcode.name in ("BUILD", "INST", "OBJ", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"):
                raise refusal(content)
        return _Reader(io.BytesIO(content)).load()
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as a pickle of arrays ({first_line(error)}).") from error


def _read_tensor(name: str, stored: dict[str, Any]) -> torch.Tensor:
    data, shape, dtype = stored.get("data"), stored.get("shape"), stored.get("dtype")
    if stored.get("format") == "torch" and isinstance(data, bytes):
        tensor = load_tensors(data)
        if isinstance(tensor, torch.Tensor):
            return tensor
    sizes = [n for n in shape if isinstance(n, int) and n >= 0] if isinstance(shape, tuple) else []
    if not isinstance(data, bytes) or not sizes or shape != tuple(sizes) or dtype not in _DTYPES:
        raise UsageError(f"{name} is not an array as SkyRL writes it: dtype {dtype!r:.40}, shape {shape!r:.40}.")
    check_limit(MAX_TOKENS, math.prod(sizes), f"numbers in {name}")
    size = math.prod(sizes) * np.dtype(dtype).itemsize
    if size != len(data):
        raise UsageError(f"{name} should have {size:,} bytes; it has {len(data):,}.")
    return torch.from_numpy(np.frombuffer(data, dtype).reshape(sizes).copy())
