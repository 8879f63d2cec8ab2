"""The batch that a trainer holds (tensors, arrays and lists) as columns.

Lists of lists are always rows of the batch here, never the turns of one response.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, from_array, from_arrow, try_read
from rlcorr.foreign.map_names import KEYS, WANTED
from rlcorr.foreign.parse.objects import column_of, to_arrays
from rlcorr.foreign.parse.request import Unreadable


def copy_columns(batch: Mapping[str, Any]) -> Columns:
    """Return copies of the columns that are read; those that are None are left out, and others are not touched."""
    present = {str(name): x for name, x in batch.items() if str(name) in WANTED and not _is_missing(x)}
    lists = {name: _to_lists(x) for name, x in present.items() if isinstance(x, list | tuple) or _is_object_array(x)}
    ids = {
        name: x.tolist()
        for name in KEYS.ids
        if isinstance(x := present.get(name), Tensor | np.ndarray) and not _is_nested(x)
    }
    converted = to_arrays(ids | lists, "the batch", KEYS)
    return {
        name: try_read(lambda n=name, x=x: _list_column(n, converted[n]) if n in lists else _array_column(n, x))
        for name, x in present.items()
    }


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(x is None for x in value))


def _is_object_array(value: Any) -> bool:
    """Check for an array of texts or of lists, as verl's non_tensor_batch has them."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OU" and value.ndim == 1


def _is_nested(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_nested


def _to_lists(value: Any) -> Any:
    """Return tensors and arrays, alone or in lists and tuples, as lists of numbers, and everything else unchanged."""
    if isinstance(value, list | tuple):
        return [_to_lists(x) for x in value]
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    return _to_lists(value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


def _list_column(name: str, values: Any) -> Column:
    """Return the column of a list with an entry per row."""
    array = values if isinstance(values, Unreadable) else column_of(name, values)
    return array if isinstance(array, Unreadable) else from_arrow(name, pa.chunked_array([array]))


def _array_column(name: str, value: Any) -> Column:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        # torch supports few unsigned types, and only the byte order of the machine
        native = value.astype("int64") if value.dtype.kind in "iu" else value.astype(value.dtype.newbyteorder("="))
        return from_array(name, torch.tensor(native))
    if not isinstance(value, Tensor):
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise UsageError(f"{name} is a {kind}; tensors, arrays of numbers, and lists are read.")
    if value.is_nested:
        rows = [row.detach().to("cpu", copy=True) for row in value.unbind()]
        if any(row.dim() != 1 for row in rows):
            raise UsageError(f"{name} has rows of {rows[0].dim()} dimensions; one number per token is read.")
        return Lists(torch.cat(rows) if rows else torch.zeros(0), torch.tensor([len(row) for row in rows]))
    return from_array(name, value.detach().to("cpu", copy=True))
