"""Write settings as text to paste: YAML, TOML, flags of a command line, or arguments of a Python call."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PLAIN = re.compile(r"[A-Za-z_][\w./-]*|-?\d[\w.+]*")
NUMBER = re.compile(r"-?\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|0[xb][\da-fA-F_]+")
NOT_TEXT = {"yes", "no", "on", "off", "true", "false", "null"}
"""YAML reads plain text as text without quotes, unless it looks like a number or is one of these words."""


def as_yaml(parent: str, fields: Mapping[str, Any]) -> str:
    """Return YAML below a dotted parent key. Numbers have a dot: without it, YAML reads an exponent as text.

    >>> print(as_yaml("actor.rejection", {"upper": 5e-06, "lower": None}), end="")
    actor:
      rejection:
        upper: 5.0e-06
        lower: null
    """
    nested: Any = fields
    for name in reversed(parent.split(".") if parent else []):
        nested = {name: nested}
    return "".join(f"{line}\n" for line in _yaml_lines(nested))


def as_toml(table: str, fields: Mapping[str, Any]) -> str:
    """Return a table of TOML.

    >>> print(as_toml("trainer.loss", {"type": "ipo", "eps": 0.3}), end="")
    [trainer.loss]
    type = "ipo"
    eps = 0.3
    """
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return "\n".join([f"[{table}]", *lines, ""])


def as_flags(fields: Mapping[str, Any], prefix: str = "--", *, hyphens: bool = False) -> str:
    """Return flags of a command line, one per line.

    True gives the flag without a value, False and None give nothing, a tuple gives several values.

    >>> print(as_flags({"use_tis": True, "tis_clip": 2.0, "off": None, "pair": (0.5, 5.0)}, hyphens=True), end="")
    --use-tis \\
    --tis-clip 2.0 \\
    --pair 0.5 5.0
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
    """Return a Python call with these arguments.

    >>> print(as_call("GRPOConfig", {"use_vllm": True, "clip_max": math.inf}), end="")
    GRPOConfig(
        use_vllm=True,
        clip_max=float("inf"),
    )
    """
    lines = [f"    {field}={_python(value)}," for field, value in fields.items()]
    return "\n".join([f"{name}(", *lines, ")", ""])


def commented(text: str, comments: Iterable[str]) -> str:
    """Return the text with comment lines above it.

    >>> print(commented("a: 1\\n", ["TRL 1.16"]), end="")
    # TRL 1.16
    a: 1
    """
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
