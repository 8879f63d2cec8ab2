"""A pasted configuration of verl, SkyRL or TRL → our correction, with what was read and what was not.

The text is YAML, JSON, a Python dictionary or call (`GRPOConfig(…)`), lines `key=value`, or a command line. It may be a
whole configuration: keys about other things are counted, not read.
"""

import ast
import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, require_extra, unknown
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.keys import Keys, last_names, refuse_retired, sort_keys, wrong_key
from rlcorr.systems.skyrl import from_skyrl_with_loss
from rlcorr.systems.trl import from_trl_with_loss
from rlcorr.systems.verl.config import from_verl_with_loss

READERS = {"verl": from_verl_with_loss, "SkyRL": from_skyrl_with_loss, "TRL": from_trl_with_loss}
CLOSE = 0.88
"""How similar an unknown key must be to one that is read, so that it is taken for a mistyped one."""
NOT_LITERAL = object()
"""The value of a Python expression that is not a literal."""
_YAML_LINE = re.compile(r"^\s*(?:- )?[\"']?\+{0,2}[\w./-]+[\"']?\s*:(?:\s|$)", re.MULTILINE)
_CALL = re.compile(r"^(?:[\w.]+ *= *)?(?!float\()[A-Za-z_][\w.]*\(", re.MULTILINE)
_SPACED = re.compile(r"^([ \t]*[\w.]+) *= *", re.MULTILINE)
LONGEST = 200_000
"""Characters of the longest text that is read: verl's whole configuration has a tenth of it."""


@dataclass(frozen=True)
class Pasted:
    """The correction that a pasted text describes."""

    system: str
    config: CorrectionConfig
    loss: LossConfig
    read: Mapping[str, Any]
    """Full key → value, of every key that was read."""
    ignored: tuple[str, ...]
    """The keys that are about other things."""


def read_pasted(text: str, system: str | None = None) -> Pasted:
    """Read a pasted configuration.

    Args:
        text: the text as it was copied; it may contain comments and the command before the overrides.
        system: verl, SkyRL or TRL. None: the one to which most keys belong.

    Raises:
        UsageError: for a text that cannot be parsed or has no key of a correction, for keys that belong to two systems,
            for a key that looks mistyped, with the nearest one, for a key of an older version, with its successor, and
            for settings that the system itself would refuse, ignore or misread.

    >>> pasted = read_pasted("rollout_correction: {rollout_is: token}\\nadv_estimator: grpo")
    >>> pasted.system, pasted.config.rollout_is, pasted.ignored
    ('verl', 'token', ('algorithm.adv_estimator',))
    """
    if system is not None:
        system = {name.lower(): name for name in READERS}.get(system.lower(), system)
        if system not in READERS:
            raise unknown("system to read", system, READERS)
    source = parse(text)
    try:
        sorted_by = {name: sort_keys(name, source) for name in ([system] if system else READERS)}
    except RecursionError as error:
        raise UsageError("the text is nested too deeply for a configuration.") from error
    system = system or _recognised(sorted_by)
    keys = sorted_by[system]
    refuse_retired(system, keys.others)
    _refuse_mistyped(system, keys)
    if not keys.read:
        raise UsageError(
            f"no key of {system}'s correction is in the text; its keys are in "
            f"{FACTS[system].block or FACTS[system].under}."
        )
    for name, value in keys.read.items():
        if value is NOT_LITERAL:
            raise UsageError(f"{name} is an expression, whose value is not in the text: write the number or the text.")
    config, loss = READERS[system](keys.read)
    return Pasted(system, config, loss, keys.read, tuple(keys.others))


def _recognised(sorted_by: Mapping[str, Keys]) -> str:
    """Return the system with the most keys that are read. Raises `UsageError` if there is none, or several."""
    counts = {
        name: (len(keys.read), sum(_part_in(FACTS[name].retired, key) for key in keys.others))
        for name, keys in sorted_by.items()
    }
    best = [name for name in counts if counts[name] == max(counts.values())]
    if max(counts.values()) > (0, 0):
        if len(best) > 1:
            shared = ", ".join(sorted({key.rpartition(".")[2] for name in best for key in sorted_by[name].read}))
            raise UsageError(f"{shared} can be of {' or '.join(best)}: name the system.")
        return best[0]
    for system, keys in sorted_by.items():
        _refuse_mistyped(system, keys)
    blocks = ", ".join(f"{name}'s {FACTS[name].block or FACTS[name].under}" for name in sorted_by)
    raise UsageError(f"no key of a correction is in the text; read are {blocks}.")


def _part_in(names: Iterable[str], key: str) -> bool:
    return any(part in names for part in key.split("."))


def _refuse_mistyped(system: str, keys: Keys) -> None:
    """Raise `UsageError` for an unknown key in the block of the correction, or with nearly the name of another key."""
    names = last_names(system)
    for name in keys.others:
        parent, _, last = name.rpartition(".")
        is_close = last not in names and difflib.get_close_matches(last, names, 1, CLOSE)
        if is_close or (parent and parent == FACTS[system].block):
            raise wrong_key(system, name)


# --- the text ---


def parse(text: str) -> dict[str, Any]:
    """Return the mapping that a text of any of the forms contains. Raises `UsageError` if it contains none.

    >>> parse("python -m verl.trainer.main_ppo algorithm.gamma=1.0 +a.b=null")
    {'algorithm.gamma': 1.0, 'a.b': None}
    >>> parse("--use_vllm True --learning_rate 1e-6")
    {'use_vllm': True, 'learning_rate': 1e-06}
    """
    text = re.sub(r"\A```\w*\n|\n```\Z", "", text.removeprefix("\ufeff").replace("\r\n", "\n").strip())
    if not text or len(text) > LONGEST:
        raise UsageError(
            f"paste a configuration of verl, SkyRL or TRL: the text has {len(text):,} characters, at most {LONGEST:,} "
            f"are read."
        )
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if first.lstrip().startswith("{"):
        parsed = _braces(text)
    elif _CALL.search(text) and not _YAML_LINE.match(first):
        return _call(text)
    elif _YAML_LINE.search(text) and not first.lstrip().startswith("--"):
        parsed = _yaml(text, "the text")
    else:
        return _command_line(text)
    if not isinstance(parsed, dict):
        raise UsageError(f"the text must be a mapping of names to values; it is {type(parsed).__name__}.")
    return parsed


def _braces(text: str) -> Any:
    """Parse JSON, or a Python dictionary, or YAML in braces."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return _yaml(text, "the text in braces is neither JSON nor a Python dictionary, and as YAML it")


def _yaml(text: str, what: str) -> Any:
    """Parse YAML in which 1e-4 is a number, as for OmegaConf. Raises `UsageError` with the line of the mistake."""
    require_extra("data", "yaml")
    import yaml

    class Loader(yaml.SafeLoader):
        """The loader of this call only: resolvers belong to a class."""

    exponent = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader)):
            raise UsageError("the text has YAML aliases (*name): write what they stand for.")
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(f"{what} cannot be parsed{place}: {problem}.") from error


def _call(text: str) -> dict[str, Any]:
    """Return the keyword arguments of a Python call, of the one with the most, if there are several."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"the Python call cannot be parsed{f' in line {line}' if line else ''}.") from error
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    best = max(calls, key=lambda call: len(call.keywords))
    if not best.keywords:
        raise UsageError("the Python call has no keyword arguments: write name=value.")
    return {word.arg: _literal(word.value) for word in best.keywords if word.arg is not None}


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf")]) | ast.Attribute(attr="inf"):
            return float("inf")
        case ast.Call(keywords=keywords) if keywords:
            return {word.arg: _literal(word.value) for word in keywords if word.arg is not None}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return NOT_LITERAL


def _command_line(text: str) -> dict[str, Any]:
    """Return the overrides key=value and the flags of a command line; other words are the command itself."""
    joined = _SPACED.sub(r"\1=", text.replace("\\\n", " "))
    try:
        words = shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError(f"the command line cannot be parsed: {error}.") from error
    settings: dict[str, Any] = {}
    flag = ""
    for word in words:
        name, equals, value = word.rstrip(",").partition("=")
        if equals and re.fullmatch(r"(?:--|\+{0,2})[\w./@-]+", name):
            settings[name.lstrip("+-")], flag = _value(value), ""  # the last one counts, as for Hydra and argparse
        elif word.startswith("--"):
            flag = word.lstrip("-")
            settings[flag] = True
        elif flag:
            settings[flag], flag = _value(word), ""
    if not settings:
        raise UsageError(
            "the text is no configuration: it has neither YAML nor JSON, nor key=value, nor flags; paste what the "
            "system itself reads."
        )
    return settings


def _value(word: str) -> Any:
    """Return a value of a command line: null, true, a number, a quoted text, a list, or the text as it is."""
    if word in ("None", "inf", "-inf"):
        return {"None": None, "inf": float("inf"), "-inf": -float("inf")}[word]
    if re.fullmatch(r"float\(inf\)", word):
        return float("inf")
    try:
        return _yaml(word, f"the value {word!r}") if word else None
    except UsageError:
        return word
