"""The numbers of a figure: which of them are drawn, and whether two figures show the same.

Processors round differently in the last bits of a sum: a value that is 0 on one is 6e-08 on another. Such a value is
drawn as 0, and figures are compared by value, with a tolerance that no eye can see.
"""

import base64
import hashlib
import json
from collections import defaultdict
from typing import Any, TypeGuard

import numpy as np
from printed import Printed

NOTHING = 1e-6
"""A value below this share of the largest one on its axis is drawn as 0."""
STEP = 1e-3
"""By this share of itself a value may differ: one step in the fourth digit, as 1.000 and 1.001 after rounding."""
UNSEEN = 1e-5
"""By this share of the largest value on its axis a value may differ, too: less than a hundredth of a pixel, and more
than `NOTHING`, so that it may be drawn as 0 on one processor and not on the other."""


def rounded(figure: dict[str, Any]) -> dict[str, Any]:
    """The figure with four significant digits, and with 0 for what is nothing on its axis."""
    largest = _largest(figure)

    def of_trace(trace: dict[str, Any]) -> dict[str, Any]:
        return {key: _rounded(part, _scale(largest, trace, key)) for key, part in trace.items()}

    return _rounded(figure, 0.0) | {"data": [of_trace(trace) for trace in figure["data"]]}


def difference(stored: dict[str, Any], fresh: dict[str, Any]) -> str | None:
    """Where two figures first differ, and how; None where they show the same. Texts are compared as `printed`
    says, colours exactly."""
    if len(stored["data"]) != len(fresh["data"]):
        return f"{len(stored['data'])} traces became {len(fresh['data'])}"
    largest = _largest(stored)
    for number, (old, new) in enumerate(zip(stored["data"], fresh["data"], strict=True)):
        for key in {**old, **new}:
            where = f"data[{number}].{key}"
            if change := _change(old.get(key), new.get(key), _scale(largest, old, key), where):
                return change
    return _change({**stored, "data": None}, {**fresh, "data": None}, 0.0, "figure")


def fingerprint(figure: dict[str, Any]) -> str:
    """Twelve characters that change with the figure. A stored picture carries those of the figure it was drawn from."""
    return hashlib.sha256(json.dumps(figure, sort_keys=True).encode()).hexdigest()[:12]


def _largest(figure: dict[str, Any]) -> dict[str, float]:
    """Axis → the largest magnitude drawn on it; 0 for a logarithmic axis, where no value is too small to be seen."""
    largest = defaultdict[str, float](float)
    for trace in figure["data"]:
        for letter in "xyz":
            axis = trace.get(f"{letter}axis", letter)
            largest[axis] = max(largest[axis], _magnitude(trace.get(letter)))
    names = {f"{axis[0]}axis{axis[1:]}": axis for axis in largest}
    logarithmic = {names[name] for name in names if figure["layout"].get(name, {}).get("type") == "log"}
    return {axis: 0.0 if axis in logarithmic else magnitude for axis, magnitude in largest.items()}


def _scale(largest: dict[str, float], trace: dict[str, Any], key: str) -> float:
    """What the trace's values under this key are small against: 0, so nothing, where they lie on no axis."""
    if key in ("error_x", "error_y"):
        return _magnitude(trace.get(key[-1]))
    return largest[trace.get(f"{key}axis", key)] if key in ("x", "y", "z") else 0.0


def _magnitude(values: Any) -> float:
    """The largest finite magnitude in an array of a figure; 0 if it holds names."""
    numbers = _unpacked(values)["values"] if _is_packed(values) else [x for x in values or () if _is_number(x)]
    return max((abs(x) for x in numbers if np.isfinite(x)), default=0.0)


def _rounded(part: Any, scale: float) -> Any:
    if _is_packed(part):
        numbers = _unpacked(part)["values"]
        if np.dtype(part["dtype"]).kind != "f":
            return part
        short = np.array([_four_digits(x, scale) for x in numbers], np.float32)
        return part | {"dtype": "f4", "bdata": base64.b64encode(short.tobytes()).decode()}
    if isinstance(part, dict):
        return {key: _rounded(value, scale) for key, value in part.items()}
    if isinstance(part, list):
        return [_rounded(value, scale) for value in part]
    return _four_digits(part, scale) if isinstance(part, float) else part


def _four_digits(number: float, scale: float) -> float:
    return 0.0 if abs(number) < NOTHING * scale else float(f"{number:.4g}")


def _change(old: Any, new: Any, scale: float, where: str) -> str | None:
    """As `difference`, of two parts of two figures."""
    old, new = (_unpacked(part) if _is_packed(part) else part for part in (old, new))
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(old[key], new[key], f"{where}.{key}") for key in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(a, b, f"{where}[{number}]") for number, (a, b) in enumerate(zip(old, new, strict=True))]
    elif _is_number(old) and _is_number(new):
        return None if _is_close(old, new, scale) else f"{where}: {old:.6g} became {new:.6g}"
    else:
        same = Printed(old) == new if isinstance(old, str) else old == new
        return None if same else f"{where}: {str(old)[:60]!r} became {str(new)[:60]!r}"
    return next(filter(None, (_change(a, b, scale, place) for a, b, place in pairs)), None)


def _is_close(old: float, new: float, scale: float) -> bool:
    if not (np.isfinite(old) and np.isfinite(new)):
        return str(float(old)) == str(float(new))  # so that nan equals nan
    return abs(old - new) <= STEP * max(abs(old), abs(new)) + UNSEEN * scale


def _is_packed(part: Any) -> bool:
    return isinstance(part, dict) and "bdata" in part


def _unpacked(part: dict[str, Any]) -> dict[str, Any]:
    """An array as plotly packs it, as a list of numbers."""
    values = np.frombuffer(base64.b64decode(part["bdata"]), part["dtype"]).tolist()
    return {"values": values, "shape": part.get("shape")}


def _is_number(part: Any) -> TypeGuard[float]:
    return isinstance(part, int | float) and not isinstance(part, bool)
