"""A configuration as a YAML file, which is written into every run and can be read before command-line options."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlcorr.config import LossConfig
from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.loss_numbers import NUMBERS
from rlcorr.records import runs
from rlcorr.records.disk import write_whole

RUNS = "$RLCORR_RUNS/"
"""Placeholder of the runs folder, so that a file is right on every machine."""


class Retired(NamedTuple):
    """An option of an earlier version."""

    value: Any
    """The value with which files can still be read: it is computed now. `ANY`: no value changes the numbers."""
    instead: str
    """What to do instead."""


ANY = object()
_EXACT = Retired(ANY, "sketch.exact_prompts gives exact gradients")
RETIRED = {
    "eval_data": Retired(None, "one line in eight of --data is held out"),
    "system_message": Retired(None, "write it into the messages of your prompts"),
    "addition_batch": Retired(48, "a step has 48 additions"),
    "running_sum_batch": Retired(16, "a step has 16 running sums"),
    "sorting_batch": Retired(8, "a step has 8 lists to sort"),
    "learning_rate": Retired(1e-3, "pretraining has the rate 1e-3, and the trainer optim.learning_rate"),
    "warmup_steps": Retired(100, "pretraining warms up for 100 steps"),
    "mask_truncated": Retired(False, "a reward function returns None for an answer that must not count"),
    "wandb": Retired("", "TensorBoard shows the run's event files"),
    "rollout.data_parallel_size": Retired(1, "start several ranks with torchrun"),
    "advantage.critic": Retired("shared", "the critic is a value head on the policy's own trunk"),
    "advantage.gamma": Retired(1.0, "the reward can be smaller for longer answers"),
    "advantage.value_coef": Retired(0.1, "the scale of the rewards is that of the value loss"),
    "advantage.value_clip": Retired(0.2, "values are clipped as in PPO"),
    "advantage.whiten": Retired(True, "rloo has advantages in units of the reward"),
    "advantage.rejected_in_groups": Retired(False, "rejected answers are left out of the statistics of their group"),
    "advantage.kl_reward_coef": Retired(0.0, "use loss.use_kl_loss"),
    "advantage.kl_reward_type": Retired(ANY, "use loss.kl_loss_type"),
    "optim.warmup_steps": Retired(0, "begin with a smaller learning rate"),
    "optim.entropy_coef": Retired(0.0, "sample at a higher temperature"),
    "optim.share_prompts": Retired(ANY, "each answer is computed with its own prompt"),
    "sketch.tree_mib": Retired(ANY, "ask for fewer prompts if their answers do not fit"),
    "sketch.reference_prompts": _EXACT,
    "sketch.answers": _EXACT,
    "sketch.answer_directions": _EXACT,
    "loss.fipo_clip_high_only": Retired(True, "set --loss.numbers fipo_clip_low 0.2"),
}


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
    content = _with_numbers(content) if config_type is LossConfig else content
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in RETIRED:
            if RETIRED[key].value not in (ANY, value):
                raise _retired(key, value)
        elif key not in kinds:
            raise unknown("key", key, kinds)
        elif dataclasses.is_dataclass(kinds[key]):
            yield from _words(_mapping(key, value), kinds[key], f"{key}.")
        elif kinds[key] is bool:
            yield from _flag(prefix, str(name), value)
        else:
            yield from _option(key, value, kinds[key])


def _with_numbers(loss: dict[Any, Any]) -> dict[Any, Any]:
    """Return the section `loss` with the numbers of single losses in `numbers`; earlier files have them beside it."""
    flat = {name: value for name, value in loss.items() if name in NUMBERS}
    rest = {name: value for name, value in loss.items() if name not in NUMBERS}
    return rest | {"numbers": flat | _mapping("loss.numbers", rest.get("numbers", {}))} if flat else loss


def current_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without options of earlier versions that change nothing any more.

    Raises `UsageError` for other options of earlier versions, with what to do instead.
    """
    current, value_follows = [], False
    for word in words:
        key = word.removeprefix("--").partition("=")[0].replace("-", "_").replace(".no_", ".")
        retired = RETIRED.get(key) if word.startswith("--") else None
        if retired is not None and retired.value is not ANY:
            raise _retired(key)
        if key.startswith("loss.") and (name := key.removeprefix("loss.")) in NUMBERS:
            raise UsageError(f"{key} is no option since version 0.2: write --loss.numbers {name} and its value.")
        if retired is None and (word.startswith("--") or not value_follows):
            current.append(word)
        value_follows = retired is not None and "=" not in word
    return current


def _retired(key: str, *got: Any) -> UsageError:
    value = f"; got {got[0]!r}" if got else ""
    return UsageError(f"{key} is no option since version 0.2{value}: {RETIRED[key].instead}.")


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
    items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else value
    words = [_word(item) for item in (items if isinstance(items, list) else [items])]
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
