"""Models in GGUF files, whose weights are made plain once and cached in Hugging Face format."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError

ARCHITECTURES = ("llama", "qwen2", "gemma3")
"""Architectures that are read. Others may be read as well, but nobody has compared what comes out."""
FIELDS = ("general.architecture", "split.count", "gemma3.attention.key_length")
GEMMA_HEAD = 256
"""Numbers of a head of Gemma 3 up to 12 billion weights. No field says by what its attention is divided, and the root
of this is what the reader takes."""
MAGIC = b"GGUF"


def cache() -> Path:
    """Return the folder for models that are made from other files: $RLCORR_CACHE, or the user's cache folder."""
    import platformdirs  # belongs to the extra train; `python -m rlcorr import` works without it

    return Path(os.environ.get("RLCORR_CACHE") or platformdirs.user_cache_path("rlcorr"))


def require_gguf(file: Path) -> None:
    """Raise `UsageError` unless the file begins as a GGUF file does."""
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UsageError(f"{file} is no GGUF file: it does not begin with {MAGIC.decode()}.")


def from_gguf(file: Path) -> Path:
    """Return the directory of the model in a GGUF file, in Hugging Face format; make it on first use.

    Raises:
        UsageError: if the file is damaged, lacks a tensor, is one of several parts or of another architecture, or if
            the model cannot be written.
    """
    state = [(file.resolve(), file.stat().st_size, file.stat().st_mtime_ns)]  # another file gets another directory
    target = cache() / "gguf" / f"{file.stem}-{hashlib.sha256(repr(state).encode()).hexdigest()[:16]}"
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            convert(file, target)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror or error}.") from error
    return target


def convert(file: Path, target: Path) -> None:
    """Dequantise a GGUF file into the directory `target`, which is never left incomplete.

    The weights are rounded to bfloat16 like published models.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    millions = _millions(file)
    print(f"{file.name}: dequantising {millions:,.0f} million weights, once", flush=True)
    plain = GgufConfig(dequantize=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        complete = Path(folder, "model")
        read: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=plain, output_loading_info=True
        )
        model, loaded = read
        if missing := sorted(loaded["missing_keys"]):  # they would be random numbers
            raise UsageError(f"{file} lacks {len(missing)} of the model's tensors: {', '.join(missing[:3])}, ….")
        model.save_pretrained(complete)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(complete)
        try:
            complete.rename(target)
        except OSError:  # another process has made it in the meantime
            if not (target / "config.json").is_file():
                raise


def _millions(file: Path) -> float:
    """Return how many million weights a GGUF file has. Raises `UsageError` if the file cannot be used."""
    from gguf import GGUFReader

    require_gguf(file)
    try:
        read = GGUFReader(file)
    except (ValueError, IndexError) as error:  # the reader's only words about a file that was cut off
        raise UsageError(f"{file} is cut off or damaged ({error}).") from error
    fields = {name: field.contents() for name, field in read.fields.items() if name in FIELDS}
    if fields.get("split.count", 1) > 1:
        raise UsageError(
            f"{file} is one of {fields['split.count']} parts; join them with llama.cpp's llama-gguf-split --merge."
        )
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        expected = ", ".join(ARCHITECTURES)
        raise UsageError(f"{file} contains a model of architecture {architecture!r}; expected one of {expected}.")
    if fields.get("gemma3.attention.key_length", GEMMA_HEAD) != GEMMA_HEAD:
        raise UsageError(f"{file} has no heads of {GEMMA_HEAD} numbers, and does not say how its attention is scaled.")
    if not read.tensors:
        raise UsageError(f"{file} contains no weights.")
    return sum(int(tensor.n_elements) for tensor in read.tensors) / 1e6
