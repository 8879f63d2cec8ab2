"""What torch.save writes, as columns: read with weights_only=True, after a look at its sizes and what it asks for."""

import io
import pickletools
import zipfile
from collections.abc import Iterator, Set
from pickle import UnpicklingError
from typing import Any

import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.arrays import tensor_column
from rlcorr.foreign.columns import MAX_BYTES, MAX_TOKENS, Columns, Unreadable, at_most
from rlcorr.foreign.json_rows import object_columns

_MAX_PICKLE = 32 << 20
# What a file of tensors in dicts and lists asks for. weights_only=True would let more through, a bytearray of any size
# for one.
_ASKED = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
_UNREADABLE = (RuntimeError, ValueError, UnpicklingError, LookupError, TypeError, AttributeError, EOFError, OSError)


def torch_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted tensors of a dict of arrays, or those of its "samples"; and the names of all. Raises `UsageError`."""
    value = load_tensors(content)
    if isinstance(value, dict) and any(isinstance(x, torch.Tensor) and x.dim() == 2 for x in value.values()):
        arrays = {str(name): x for name, x in value.items() if isinstance(x, torch.Tensor)}
        return {name: tensor_column(name, x) for name, x in arrays.items() if name in wanted}, list(map(str, value))
    samples = value.get("samples") if isinstance(value, dict) else value
    if not isinstance(samples, list):
        return object_columns([("the file", _sample(value, wanted))], wanted)
    beside = _sample(value, wanted) if isinstance(value, dict) else {}
    return object_columns([("the file", beside | {"samples": [_sample(x, wanted) for x in samples]})], wanted)


def load_tensors(content: bytes) -> Any:
    """Tensors in dicts and lists. Raises `UsageError` for a file with anything else in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, *_UNREADABLE) as error:
        raise UsageError(f"cannot be read as torch.save writes it ({first_line(error)}).") from error


def _check(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    at_most(MAX_BYTES, sum(info.file_size for info in members), "bytes when unpacked")
    if any(info.compress_type != zipfile.ZIP_STORED for info in members):
        raise UsageError("its archive is compressed, which torch.save never does.")
    pickled = [info for info in members if info.filename.endswith("data.pkl")]
    if len(pickled) != 1:
        raise UsageError("is no file of torch.save: its archive has no data.pkl, or several.")
    at_most(_MAX_PICKLE, pickled[0].file_size, "bytes of structure")
    for asked in _asked_for(archive.read(pickled[0])):
        if asked not in _ASKED and not (asked.startswith("torch ") and asked.endswith("Storage")):
            raise UsageError(
                f"asks for {asked.replace(' ', '.')!r:.80}, and only tensors in dicts and lists are read: to make "
                "anything else would run code. Save a dict of tensors."
            )


def _asked_for(pickled: bytes) -> Iterator[str]:
    """The classes and functions that a pickle names, as "module name"."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            yield f"pickle {opcode.name}"  # torch.save writes none of these


def _sample(sample: Any, wanted: Set[str]) -> Any:
    """Its wanted tensors as arrays; the names of the others stay."""
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
    """Tensors of one dimension as arrays, in lists and dictionaries too. Raises `UsageError` for other tensors."""
    if isinstance(value, list | tuple):
        return [_plain(name, x) for x in value]
    if isinstance(value, dict):
        return {key: _plain(name, x) for key, x in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    at_most(MAX_TOKENS, value.numel(), f"numbers in {name}")
    if value.dim() > 1 or value.is_complex() or value.is_sparse:
        raise UsageError(f"{name} has shape {tuple(value.shape)} beside others of (T,); one number per token is read.")
    if value.dim() == 0:
        return value.item()
    return value.numpy() if value.dtype == torch.bool else value.double().numpy()
