"""What a trainer holds, tensors, arrays and lists, as columns: rows of a batch, and never the turns of one response."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcorr.foreign.arrays import tensor_column
from rlcorr.foreign.columns import Column, Columns, Lists, Unreadable
from rlcorr.foreign.json_rows import cell, column_of
from rlcorr.foreign.names import WANTED
from rlcorr.foreign.turns import IDS, arrays


def copied(batch: Mapping[str, Any]) -> Columns:
    """Return copies of the columns that are read. Nothing else of the batch is touched; None stands for nothing."""
    present = {str(name): x for name, x in batch.items() if str(name) in WANTED and x is not None}
    lists = {name: _listed(x) for name, x in present.items() if isinstance(x, list | tuple) or _of_objects(x)}
    ids = {
        name: x.tolist() for name in IDS if isinstance(x := present.get(name), Tensor | np.ndarray) and not _ragged(x)
    }
    plain = arrays(ids | lists, "the batch")
    columns = {
        name: _of_list(name, plain[name]) if name in lists else _of_array(name, x) for name, x in present.items()
    }
    return {name: column for name, column in columns.items() if column is not None}


def _of_objects(value: Any) -> bool:
    """Arrays of texts or of lists, as verl's non_tensor_batch has them."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OU" and value.ndim == 1


def _ragged(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_nested


def _listed(value: Any) -> Any:
    """Lists and tuples of tensors, arrays and scalars of these as lists; everything else as it is."""
    if isinstance(value, list | tuple):
        return [_listed(x) for x in value]
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    return _listed(value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


def _of_list(name: str, values: Any) -> Column | None:
    """A list with an entry per row."""
    if isinstance(values, Unreadable):
        return values
    rows: Sequence[Any] = values if isinstance(values, list) else values.tolist()
    return column_of(name, [cell(x, name) for x in rows])


def _of_array(name: str, value: Any) -> Column:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return Unreadable(f"{name} is an array of {value.dtype}; numbers are read.")
        wide = value.astype("int64") if value.dtype.kind in "iu" else value.astype(value.dtype.newbyteorder("="))
        return tensor_column(name, torch.tensor(wide))
    if not isinstance(value, Tensor):
        return Unreadable(f"{name} is a {type(value).__name__}; tensors, arrays and lists are read.")
    if value.is_nested:
        rows = [row.detach().to("cpu", copy=True) for row in value.unbind()]
        if any(row.dim() != 1 for row in rows):
            return Unreadable(f"{name} has rows of {rows[0].dim()} dimensions; one number per token is read.")
        return Lists(torch.cat(rows) if rows else torch.zeros(0), torch.tensor([len(row) for row in rows]))
    return tensor_column(name, value.detach().to("cpu", copy=True))
