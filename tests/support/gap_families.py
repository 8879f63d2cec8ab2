"""The kinds of causes that the sentence about a k3 leaves open, as the benches of the diagnosis count them."""

from typing import Literal

from rlcorr.analysis.published import SPREAD, rounding
from rlcorr.analysis.triage import verdict_on

Family = Literal["16 bits", "fewer bits", "old weights", "hidden updates", "unmeasured"]
"""Kinds of causes on a model that was not measured. `fewer bits`: a number format of 8 or 4 bits; `unmeasured`: a bug,
other texts on the two sides, or a format that nobody has measured."""


def families_of(gap: float) -> tuple[Family, ...]:
    """Return the kinds that a gap of this size may have, on a model that no row of `published.toml` has.

    An 8-bit cache has made a k3 of 0.0008 on one model and of 0.038 on another. So only the border of 16 bits is used,
    which has been measured on many models, and a batch may exceed by a factor of `SPREAD`.
    """
    pattern, _ = verdict_on(gap)
    if pattern == "clean":
        return ()
    if pattern == "precision":
        return ("16 bits", "fewer bits") if gap > rounding("float16")[1] else ("16 bits",)
    if pattern == "beyond rounding":
        return "fewer bits", "old weights", "hidden updates", "unmeasured"
    near: tuple[Family, ...] = ("16 bits",) if gap <= SPREAD * rounding("bfloat16")[1] else ()
    return *near, "fewer bits", "old weights", "hidden updates"
