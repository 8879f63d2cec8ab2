"""Weights that were saved from inside a wrapper (DDP, PEFT, torch.compile), whose names begin with the wrapper's."""

import json
import re
import shutil
import tempfile
from pathlib import Path

from rlcorr.errors import UsageError
from rlcorr.train.inputs.model_cache import cache, key_of

WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|base_model\.model\.)+|(?<=\.)_orig_mod\.")
"""Names that DDP (module), torch.compile (_orig_mod, also of single layers) and PEFT (base_model.model) insert."""
INDEX = "model.safetensors.index.json"


def without_wrappers(model: Path) -> Path:
    """Return `model`, or a copy of it in the cache if its weights have the names of a wrapper, and say so in one line.

    The engine and the trainer both read files, so a copy serves both. Raises `UsageError` if a file cannot be read or
    the copy cannot be written.
    """
    files = sorted(model.glob("*.safetensors"))
    names = [name for file in files for name in _names(file)]
    inserted = sorted({match[0] for name in names for match in WRAPPERS.finditer(name)})
    if not inserted or len({WRAPPERS.sub("", name) for name in names}) < len(names):  # the same name with and without
        return model
    target = cache() / "without_wrappers" / key_of(files)
    print(f"{model}: names of weights begin with {', '.join(inserted)}; a copy without it is in {target}", flush=True)
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(model, files, target)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror or error}.") from error
    return target


def _names(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error


def _copy(model: Path, files: list[Path], target: Path) -> None:
    """Write the model with the names of its own weights into the directory `target`, which is never left incomplete."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        complete = Path(folder, "model")
        complete.mkdir()
        for file in files:
            weights = {WRAPPERS.sub("", name): tensor for name, tensor in load_file(file).items()}
            save_file(weights, complete / file.name, metadata={"format": "pt"})
        for file in (*model.glob("*.json"), *model.glob("*.jinja")):
            shutil.copy(file, complete)
        if (index := complete / INDEX).is_file():
            table = json.loads(index.read_text(encoding="utf-8"))
            table["weight_map"] = {WRAPPERS.sub("", name): shard for name, shard in table["weight_map"].items()}
            index.write_text(json.dumps(table), encoding="utf-8")
        complete.rename(target)
