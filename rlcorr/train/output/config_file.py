"""A configuration as a YAML file, which is written into every run and can be read before command-line options."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from rlcorr.config import NUMBERS
from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs
from rlcorr.records.disk import write_whole

RUNS = "$RLCORR_RUNS/"
"""Placeholder of the runs folder, so that a file is right on every machine."""
RETIRED = {
    "eval_data": "null", "system_message": "null", "addition_batch": "48", "running_sum_batch": "16",
    "sorting_batch": "8", "learning_rate": "0.001", "warmup_steps": "100",
    "mask_truncated": "false", "wandb": "", "rollout.data_parallel_size": "1", "advantage.critic": "shared",
    "advantage.gamma": "1.0", "advantage.value_coef": "0.1", "advantage.value_clip": "0.2", "advantage.whiten": "true",
    "advantage.rejected_in_groups": "false", "advantage.kl_reward_coef": "0.0", "advantage.kl_reward_type": None,
    "optim.warmup_steps": "0", "optim.entropy_coef": "0.0", "optim.share_prompts": None, "sketch.tree_mib": None,
    "sketch.reference_prompts": None, "sketch.answers": None, "sketch.answer_directions": None,
    "loss.fipo_clip_high_only": "true",
}  # fmt: skip
"""Option of earlier versions → the value with which a file can still be read: that is what is computed now. None: no
value changes the numbers."""
WORDS = {".inf": "inf", "-.inf": "-inf", "null": "None", "": "None"}
"""Text in a file → word of the command line, except in options that are texts."""


def write_config(path: Path, config: Any) -> None:
    """Write every value of a (nested) dataclass as YAML; `arguments_of` reads the file."""
    write_whole(path, yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True).encode())


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, str | Path):
        root = f"{runs.ROOT}/"
        return RUNS + str(value).removeprefix(root) if str(value).startswith(root) else str(value)
    return value


def arguments_of(path: Path, config_type: type) -> list[str]:
    """Return the options of a YAML file as words of the command line. Put them before the user's: the last one wins.

    The result is no configuration, because a configuration raises for values that do not fit together, and the file may
    need what the user adds. Raises `UsageError` if the file is no YAML, or has a key that is no option.
    """
    try:
        # Without YAML's types, values are texts, as on a command line: 007 stays 007, and 3e-4 is a number.
        return list(_words(yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader), config_type, ""))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from error


def _words(content: Any, config_type: type, prefix: str) -> Iterator[str]:
    if not isinstance(content, dict):
        name = prefix.removesuffix(".") or "the file"
        raise UsageError(f"{name} must be a mapping of options to values; got {content!r}.")
    types = get_type_hints(config_type)
    kinds = {prefix + field.name: types[field.name] for field in dataclasses.fields(config_type)}
    for name, text in (_with_numbers(content) if prefix == "loss." else content).items():
        key = f"{prefix}{name}"
        if key in RETIRED:
            if RETIRED[key] not in (None, text):
                raise UsageError(f"{key} is no option since version 0.2; got {text!r}.")
        elif key not in kinds:
            raise unknown("key", key, kinds)
        elif dataclasses.is_dataclass(kinds[key]):
            yield from _words(text, kinds[key], f"{key}.")
        elif isinstance(text, dict):
            yield from (f"--{key}", *(_word(word, float) for pair in text.items() for word in pair))
        elif kinds[key] is bool:
            if text not in ("true", "false"):
                raise UsageError(f"{key} must be true or false; got {text!r}.")
            yield f"--{key}" if text == "true" else f"--{prefix}no-{name}"
        else:
            yield f"--{key}={_word(text, kinds[key])}"


def _with_numbers(loss: dict[str, Any]) -> dict[str, Any]:
    """Return the section `loss` with the numbers of single losses in `numbers`; earlier files have them beside it."""
    flat = {name: value for name, value in loss.items() if name in NUMBERS}
    rest = {name: value for name, value in loss.items() if name not in NUMBERS}
    return rest | {"numbers": flat | rest.get("numbers", {})} if flat else loss


def _word(text: str, kind: Any) -> str:
    if text.startswith(RUNS):
        return f"{runs.ROOT}/{text.removeprefix(RUNS)}"
    return text if kind is str else WORDS.get(text, text)


def current_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without options that change nothing any more: recorded studies have them."""
    current, value_follows = [], False
    for word in words:
        key = word.removeprefix("--").partition("=")[0].replace("-", "_")
        retired = word.startswith("--") and RETIRED.get(key, "") is None
        if not retired and (word.startswith("--") or not value_follows):
            current.append(word)
        value_follows = retired and "=" not in word
    return current
