"""A configuration as a YAML file, which is written into every run and can be read before command-line options."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.records import runs
from rlcorr.records.disk import write_whole

RUNS = "$RLCORR_RUNS/"
"""Placeholder of the runs folder, so that a file is right on every machine."""

RETIRED: dict[str, Any] = {
    "mask_truncated": False,
    "rollout.data_parallel_size": 1,
    "advantage.value_clip": 0.2,
    "advantage.rejected_in_groups": False,
    "advantage.kl_reward_coef": 0.0,
    "advantage.kl_reward_type": "k1",
    "optim.warmup_steps": 0,
}
"""Options of earlier versions → the value that is computed now. With this value, their files can still be read."""


def write_config(path: Path, config: Any) -> None:
    """Write every value of a (nested) dataclass as YAML; `arguments_of` reads the file."""
    write_whole(path, yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True).encode())


def arguments_of(path: Path, config_type: type) -> list[str]:
    """Return the options of a YAML file as words of the command line. Put them before the user's: the last one wins.

    The result is no configuration, because a configuration raises for values that do not fit together, and the file may
    need what the user adds. tyro's rule for its type checks each value. Raises `UsageError` with file and key.
    """
    try:
        return list(_words(_read(path), config_type, ""))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, str | Path):
        root = f"{runs.ROOT}/"
        return RUNS + str(value).removeprefix(root) if str(value).startswith(root) else str(value)
    return value


def _read(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}).") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"is not YAML ({error.problem}{line}).") from error
    except (yaml.YAMLError, ValueError) as error:  # bytes that are not text, or a date that does not exist
        raise UsageError(f"is not YAML ({first_line(error)}).") from error
    return _mapping("the file", content)


def _mapping(name: str, content: Any) -> dict[Any, Any]:
    if not isinstance(content, dict):
        raise UsageError(f"{name} must be a mapping of options to values; got {content!r}.")
    return content


def _words(content: dict[Any, Any], config_type: type, prefix: str) -> Iterator[str]:
    types = get_type_hints(config_type, include_extras=True)
    kinds = {prefix + field.name: types[field.name] for field in dataclasses.fields(config_type)}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in RETIRED and value == RETIRED[key]:
            continue
        if key in RETIRED:
            raise UsageError(f"{key} is always {RETIRED[key]} since version 0.2; got {value!r}.")
        if key not in kinds:
            raise unknown("key", key, kinds)
        if dataclasses.is_dataclass(kinds[key]):
            yield from _words(_mapping(key, value), kinds[key], f"{key}.")
        elif kinds[key] is bool:
            yield from _flag(prefix, str(name), value)
        else:
            yield from _option(key, value, kinds[key])


def _flag(prefix: str, name: str, value: Any) -> list[str]:
    if not isinstance(value, bool):
        raise UsageError(f"{prefix}{name} must be true or false; got {value!r}.")
    return [f"--{prefix}{name}" if value else f"--{prefix}no-{name}"]


def _option(key: str, value: Any, kind: Any) -> list[str]:
    """Return the words of one option, after a check by tyro's rule.

    3e-4 is a number here, although YAML 1.1 reads it as a text.
    """
    rule = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, set()))
    if not isinstance(rule, PrimitiveConstructorSpec):
        raise TypeError(f"{key}: no rule for the type {kind}.")
    words = [_word(item) for item in (value if isinstance(value, list) else [value])]
    if not _fits(words, rule):
        raise UsageError(f"{key} must be {rule.metavar}; got {value!r}.")
    if isinstance(rule.instance_from_str(words), str) and not isinstance(value, str):
        raise UsageError(f"{key} must be a text; got {value!r}: put it in quotes.")  # 007 would become 7
    return [f"--{key}={words[0]}"] if len(words) == 1 else [f"--{key}", *words]


def _word(value: Any) -> str:
    text = str(value)
    return f"{runs.ROOT}/{text.removeprefix(RUNS)}" if text.startswith(RUNS) else text


def _fits(words: list[str], rule: PrimitiveConstructorSpec[Any]) -> bool:
    counts = (rule.nargs,) if isinstance(rule.nargs, int) else rule.nargs
    if counts != "*" and len(words) not in counts:
        return False
    try:
        rule.instance_from_str(words)
    except ValueError:
        return False
    return True
