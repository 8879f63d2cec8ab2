"""Compare two printed texts: words exactly, decimals up to one unit of their last printed digit.

Two processors add floats in different orders, so a printed digit may lie on a rounding edge: 0.069 on one is 0.06901 on
the other. No choice of digits prevents that, so the text is compared as what it says.
"""

import re
from decimal import Decimal

NUMBER = re.compile(
    r"""
    (?<![\w.\#])                                 # not inside a name (e5m2), a colour (#1f77b4) or a version (0.11.2)
    [+\-−]?
    (?: \d{1,3}(?:,\d{3})++(?!\d) | \d++ )       # 12,345 or 12345
    (?:\.\d++)?+
    (?:[eE][+\-]?\d++)?+
    (?! \w | \.\d )
    """,
    re.VERBOSE | re.ASCII,
)


class Printed(str):
    """A printed text that equals another one if they say the same.

    Text outside numbers must be equal, and so must integers. Two numbers of which at least one has decimals or an
    exponent may differ by one unit of the last digit of the longer one.

    >>> Printed("mean=0.069 of 12") == "mean=0.06901 of 12"
    True
    >>> Printed("mean=0.069 of 12") == "mean=0.06902 of 12", Printed("12 tokens") == "13 tokens"
    (False, False)
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        mine, theirs = NUMBER.findall(self), NUMBER.findall(other)
        if NUMBER.split(self) != NUMBER.split(other):
            return False
        return all(map(_agree, mine, theirs))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # equality is not transitive


def _agree(one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = _decimal(one), _decimal(other)
    return not (_is_integer(one) and _is_integer(other)) and abs(a - b) <= min(_unit(a), _unit(b))


def _is_integer(text: str) -> bool:
    return text.lstrip("+-−").replace(",", "").isdigit()


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))


def _unit(number: Decimal) -> Decimal:
    """The value of one step of the last printed digit: 0.01 of 1.25, 1e-6 of 1.2e-05."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # no printed NaN or infinity is a number
    return Decimal(1).scaleb(exponent)
