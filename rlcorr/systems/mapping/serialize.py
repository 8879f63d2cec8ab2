"""Write settings as text to paste: YAML, TOML, flags of a command line, or arguments of a Python call."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

PLAIN = re.compile(r"[A-Za-z_][\w./-]*|-?\d[\w.+]*|\$\{[\w.]+\}")
NUMBER = re.compile(r"-?\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|0[xb][\da-fA-F_]+")
DOTTED = re.compile(r"(?<![A-Za-z\d.])-?\d+\.\d+(?:e[-+]?\d+)?(?![A-Za-z\d.])")
NOT_TEXT = {"yes", "no", "on", "off", "true", "false", "null"}
"""YAML reads plain text as text without quotes, unless it looks like a number or is one of these words."""


def as_yaml(parent: str, fields: Mapping[str, Any]) -> str:
    """Return YAML below a dotted parent key. Numbers have a dot: without it, YAML reads an exponent as text."""
    nested: Any = fields
    for name in reversed(parent.split(".") if parent else []):
        nested = {name: nested}
    return "".join(f"{line}\n" for line in _yaml_lines(nested))


def as_toml(table: str, fields: Mapping[str, Any]) -> str:
    """Return a table of TOML."""
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return "\n".join([f"[{table}]", *lines, ""])


def as_flags(prefix: str, fields: Mapping[str, Any], *, hyphens: bool = False) -> str:
    """Return flags of a command line, one per line.

    True gives the flag without a value, False and None give nothing, a tuple gives several values.
    """
    words = []
    for name, value in fields.items():
        if value is None or value is False:
            continue
        flag = prefix + (name.replace("_", "-") if hyphens else name)
        parts = () if value is True else value if isinstance(value, tuple) else (value,)
        words.append(" ".join([flag, *map(str, parts)]))
    return " \\\n".join(words) + "\n" if words else ""


def as_call(name: str, fields: Mapping[str, Any]) -> str:
    """Return a Python call with these arguments."""
    lines = [f"    {field}={_python(value)}," for field, value in fields.items()]
    return "\n".join([f"{name}(", *lines, ")", ""])


Form = Callable[[str, Mapping[str, Any]], str]
FORMS: dict[str, Form] = {
    "yaml": as_yaml,
    "toml": as_toml,
    "call": as_call,
    "flags": as_flags,
    "spelled flags": lambda prefix, fields: as_flags(prefix, {k: str(value).lower() for k, value in fields.items()}),
}
"""Form of a system's text → its writer, which takes what is above the settings: a key, a table, a name or a prefix."""


def five_digits(text: str) -> str:
    """Round every number with a dot in a text to five significant digits, except in lines that are comments.

    A number so close to 1 that this would lose it keeps three digits of its distance from 1.

    >>> five_digits("rollout_rs_threshold: 0.9523809523809523_1.0309278350515465")
    'rollout_rs_threshold: 0.95238_1.0309'
    >>> five_digits("geo_mask_high: 1.0000123456")
    'geo_mask_high: 1.0000123'
    """
    lines = text.splitlines(keepends=True)
    return "".join(line if line.startswith("#") else DOTTED.sub(_shortened, line) for line in lines)


def short_number(value: float) -> str:
    """Return a number as `five_digits` writes it, with a dot if it has an exponent."""
    rounded, distance = float(f"{value:.5g}"), abs(value - 1)
    if 0 < distance < 0.1 and abs(rounded - value) > 5e-3 * distance:
        rounded = round(value, 2 - math.floor(math.log10(distance)))
    text = repr(rounded)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _shortened(number: re.Match[str]) -> str:
    value = float(number[0])
    short = short_number(value)
    return number[0] if float(short) == value else short


def commented(text: str, comments: Iterable[str]) -> str:
    """Return the text with comment lines above it."""
    return "".join(f"# {comment}\n" for comment in comments) + text


def _yaml_lines(nested: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a block mapping, as PyYAML writes it; `import rlcorr` may need no package except torch."""
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield f"{_yaml_scalar(name)}:"
            yield from (f"  {line}" for line in _yaml_lines(value))
        elif isinstance(value, list | tuple) and value:
            yield f"{_yaml_scalar(name)}:"
            for part in value:
                lines = list(_yaml_lines(part)) if isinstance(part, Mapping) else [_yaml_scalar(part)]
                yield from (f"{'  ' if index else '- '}{line}" for index, line in enumerate(lines))
        else:
            yield f"{_yaml_scalar(name)}: {_yaml_scalar(value)}"


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = PLAIN.fullmatch(value) and not NUMBER.fullmatch(value) and value.lower() not in NOT_TEXT
        return value if is_plain else "'" + value.replace("'", "''") + "'"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    if isinstance(value, float) and "e" in repr(value):
        mantissa, exponent = repr(value).split("e")
        return f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"
    return json.dumps(value)  # None, a truth value, an ordinary number, or an empty list: as in JSON


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _python(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_python, value))})"
    if isinstance(value, float) and math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return f'"{value}"' if isinstance(value, str) else repr(value)
