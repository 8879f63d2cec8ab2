"""Files of torch.save as columns: read with weights_only=True, after sizes and the globals they name are checked."""

import io
import pickletools
import zipfile
from collections.abc import Iterator, Set
from pickle import UnpicklingError
from typing import Any

import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.arrays import tensor_column
from rlcorr.foreign.columns import MAX_BYTES, MAX_TOKENS, Columns, Unreadable, check_limit
from rlcorr.foreign.json_rows import object_columns

_MAX_PICKLE = 32 << 20
# The globals that a file of tensors in dicts and lists names. weights_only=True would allow more, for example a
# bytearray of any size.
_ALLOWED_GLOBALS = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
_UNREADABLE = (RuntimeError, ValueError, UnpicklingError, LookupError, TypeError, AttributeError, EOFError, OSError)


def torch_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """Return the wanted tensors of a dict of arrays, or of its "samples", and the names of all.

    Raises `UsageError` for a file that is damaged or holds anything else.
    """
    value = load_tensors(content)
    if isinstance(value, dict) and any(isinstance(x, torch.Tensor) and x.dim() == 2 for x in value.values()):
        arrays = {str(name): x for name, x in value.items() if isinstance(x, torch.Tensor)}
        return {name: tensor_column(name, x) for name, x in arrays.items() if name in wanted}, list(map(str, value))
    samples = value.get("samples") if isinstance(value, dict) else value
    if not isinstance(samples, list):
        return object_columns([("the file", _plain_sample(value, wanted))], wanted)
    shared = _plain_sample(value, wanted) if isinstance(value, dict) else {}
    return object_columns([("the file", shared | {"samples": [_plain_sample(x, wanted) for x in samples]})], wanted)


def load_tensors(content: bytes) -> Any:
    """Return the tensors of a file, in dicts and lists. Raises `UsageError` for a file with anything else in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_archive(archive)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, *_UNREADABLE) as error:
        raise UsageError(f"cannot be read as torch.save writes it ({first_line(error)}).") from error


def _check_archive(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    check_limit(MAX_BYTES, sum(info.file_size for info in members), "bytes when decompressed")
    if any(info.compress_type != zipfile.ZIP_STORED for info in members):
        raise UsageError("its archive is compressed, which torch.save never does.")
    pickled = [info for info in members if info.filename.endswith("data.pkl")]
    if len(pickled) != 1:
        raise UsageError("is not a file of torch.save: its archive has no data.pkl, or several.")
    check_limit(_MAX_PICKLE, pickled[0].file_size, "bytes of structure")
    for name in _named_globals(archive.read(pickled[0])):
        if name not in _ALLOWED_GLOBALS and not (name.startswith("torch ") and name.endswith("Storage")):
            raise UsageError(
                f"names {name.replace(' ', '.')!r:.80}, but only tensors in dicts and lists are read: to make anything "
                "else would run code. Save a dict of tensors."
            )


def _named_globals(pickled: bytes) -> Iterator[str]:
    """Yield the classes and functions that a pickle names, as "module name"."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            yield f"pickle {opcode.name}"  # torch.save writes none of these


def _plain_sample(sample: Any, wanted: Set[str]) -> Any:
    """Return a sample with its wanted tensors as arrays; other keys are kept with the value None."""
    if not isinstance(sample, dict):
        raise UsageError(f"holds {type(sample).__name__} where a dict of tensors is read.")
    plain: dict[str, Any] = {}
    for name, value in sample.items():
        try:
            plain[str(name)] = _to_plain(str(name), value) if name in wanted else None
        except UsageError as error:
            plain[str(name)] = Unreadable(str(error))
    return plain


def _to_plain(name: str, value: Any) -> Any:
    """Return tensors of one dimension as arrays, also in lists and dictionaries. Raises `UsageError` for others."""
    if isinstance(value, list | tuple):
        return [_to_plain(name, x) for x in value]
    if isinstance(value, dict):
        return {key: _to_plain(name, x) for key, x in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()  # a tensor of a forward pass that was saved with its flag requires_grad
    check_limit(MAX_TOKENS, value.numel(), f"numbers in {name}")
    if value.dim() > 1 or value.is_complex() or value.is_sparse:
        raise UsageError(f"{name} has shape {tuple(value.shape)}; a tensor (T,) with one number per token is read.")
    if value.dim() == 0:
        return value.item()
    return value.numpy() if value.dtype == torch.bool else value.double().numpy()
