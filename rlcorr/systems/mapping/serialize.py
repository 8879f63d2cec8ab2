"""Settings as the text that a person pastes: YAML, TOML, flags of a command line, or arguments of a Python call."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


def as_yaml(place: str, fields: Mapping[str, Any]) -> str:
    """YAML under a dotted place. Every number has a dot, without which YAML takes an exponent for text.

    >>> print(as_yaml("actor.rejection", {"upper": 5e-06, "lower": None}), end="")
    actor:
      rejection:
        upper: 5.0e-06
        lower: null
    """
    import yaml  # `import rlcorr` needs torch alone

    nested: Any = _plain(fields)
    for name in reversed(place.split(".") if place else []):
        nested = {name: nested}
    return yaml.safe_dump(nested, sort_keys=False)


def as_toml(table: str, fields: Mapping[str, Any]) -> str:
    """A table of TOML.

    >>> print(as_toml("trainer.loss", {"type": "ipo", "eps": 0.3}), end="")
    [trainer.loss]
    type = "ipo"
    eps = 0.3
    """
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return "\n".join([f"[{table}]", *lines, ""])


def as_flags(fields: Mapping[str, Any], prefix: str = "--", *, hyphens: bool = False) -> str:
    """Flags of a command line, one a line: True is the flag alone, False and None are left out, a tuple is its words.

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
    """Arguments of a Python call.

    >>> print(as_call("GRPOConfig", {"use_vllm": True, "clip_max": math.inf}), end="")
    GRPOConfig(
        use_vllm=True,
        clip_max=float("inf"),
    )
    """
    lines = [f"    {field}={_python(value)}," for field, value in fields.items()]
    return "\n".join([f"{name}(", *lines, ")", ""])


def commented(text: str, comments: Iterable[str]) -> str:
    """The text under comments.

    >>> print(commented("a: 1\\n", ["TRL 1.16"]), end="")
    # TRL 1.16
    a: 1
    """
    return "".join(f"# {comment}\n" for comment in comments) + text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


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
