"""Models in GGUF files, whose weights are dequantised once and cached in Hugging Face format."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError

ARCHITECTURES = ("llama", "qwen2", "gemma3")
"""Architectures that are read. Others may be read as well, but nobody has compared what comes out."""
GEMMA_HEAD = 256
"""Numbers of a head of Gemma 3 up to 12 billion weights. No field says by what its attention is divided, and the root
of this is what the reader takes."""


def cache() -> Path:
    """Return the folder for models that are made from other files: $RLCORR_CACHE, or the user's cache folder."""
    import platformdirs  # belongs to the extra train; `python -m rlcorr import` works without it

    return Path(os.environ.get("RLCORR_CACHE") or platformdirs.user_cache_path("rlcorr"))


def require_gguf(file: Path) -> None:
    """Raise `UsageError` unless the file begins as a GGUF file does."""
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise UsageError(f"{file} is no GGUF file: it does not begin with GGUF.")


def from_gguf(file: Path) -> Path:
    """Return the directory of the model in a GGUF file, in Hugging Face format; make it on first use.

    Raises:
        UsageError: if the file is damaged, lacks a tensor, or is of another architecture.
    """
    state = (file.resolve(), file.stat().st_size, file.stat().st_mtime_ns)  # another file gets another directory
    target = cache() / "gguf" / f"{file.stem}-{hashlib.sha256(repr(state).encode()).hexdigest()[:16]}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        convert(file, target)
    return target


def convert(file: Path, target: Path) -> None:
    """Dequantise a GGUF file into the directory `target`, which is never left incomplete.

    The weights are rounded to bfloat16 like published models.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _require_known(file)
    print(f"{file.name}: dequantising its weights, once", flush=True)
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


def _require_known(file: Path) -> None:
    """Raise `UsageError` unless the file is whole and its model is one that the reader gets right."""
    from gguf import GGUFReader

    require_gguf(file)
    try:
        fields = GGUFReader(file).fields
    except (ValueError, IndexError) as error:  # the reader's only words about a file that was cut off
        raise UsageError(f"{file} is cut off or damaged ({error}).") from error
    architecture, head = (
        fields[name].contents() if name in fields else None
        for name in ("general.architecture", "gemma3.attention.key_length")
    )
    if architecture not in ARCHITECTURES:
        expected = ", ".join(ARCHITECTURES)
        raise UsageError(f"{file} contains a model of architecture {architecture!r}; expected one of {expected}.")
    if head not in (None, GEMMA_HEAD):
        raise UsageError(f"{file} has no heads of {GEMMA_HEAD} numbers, and does not say how its attention is scaled.")
