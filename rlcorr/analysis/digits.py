"""Numbers as text, with only the digits that their operands reproduce, and equations made of them."""

import math
import re
from collections.abc import Callable

_FEW = 3
"""Significant digits. If fewer are shown, the equation adds the exact number."""


def digits(x: float) -> str:
    """Return x with four significant digits, or as it is if it is a whole number below 10 000."""
    x += 0.0  # −0 is 0
    return f"{x:.0f}".replace("-", "−") if x % 1 == 0 and abs(x) < 1e4 else _rounded(x, _unit(x))


def agreed(value: float, again: float) -> str:
    """Return `value` with as many digits as `again` reproduces, at most four."""
    if not (math.isfinite(value) and math.isfinite(again)) or digits(value) == digits(again):
        return digits(value)
    unit = _unit(value or again)
    while _rounded(value, unit) != _rounded(again, unit):
        unit += 1
    return _rounded(value, unit)


def _unit(x: float) -> int:
    """Return the power of ten of the fourth significant digit."""
    return int(f"{x:.3e}".split("e")[1]) - 3 if math.isfinite(x) else 0


def _rounded(x: float, unit: int) -> str:
    """Return x rounded to a multiple of 10^unit, with all digits down to it."""
    if not math.isfinite(x):
        return f"{x}".replace("inf", "∞").replace("-", "−")
    x = round(x, -unit)
    if x == 0:
        return f"{0:.{max(-unit, 0)}f}"
    size = math.floor(math.log10(abs(x) * (1 + 1e-12)))
    text = f"{x:.{max(-unit, 0)}f}" if unit <= 0 and size >= -4 else f"{x:.{size - unit}e}"
    return text.replace("-", "−")


def bound_text(x: float) -> str:
    return f"{x:g}".replace("-", "−")


def read(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def equation(
    name: str,
    template: str,
    operands: tuple[float, ...],
    function: Callable[..., float],
    value: float,
    note: str = "",
) -> str:
    """Return the template filled with the operands, followed by the digits of the value that they reproduce."""
    texts = [digits(x) for x in operands]
    result = agreed(value, function(*map(read, texts)))
    line = f"{name} = {without_needless_brackets(template.format(*map(bracketed, texts)))} = {result}"
    return with_notes(line, note, more_exactly(result, value))


def more_exactly(shown: str, value: float) -> str:
    """Return a note with the number itself if few of its digits are shown, otherwise ""."""
    mantissa = re.sub(r"[−.]|e.*", "", shown).lstrip("0")
    return "" if shown == digits(value) or len(mantissa) >= _FEW else f"more exactly {digits(value)}"


def with_notes(text: str, *notes: str) -> str:
    words = "; ".join(note for note in notes if note)
    return f"{text}   ({words})" if words else text


def bracketed(text: str) -> str:
    return f"({text})" if text.startswith("−") else text


def without_needless_brackets(expression: str) -> str:
    """Remove the brackets around negative numbers that follow no other term."""
    return re.sub(r"(^|[(|]|, )\((−[^()]+)\)(?=[)|, ·/]|$)", r"\1\2", expression)
