"""The places of a slider: in order, with few digits, on one side of neutral."""

import pytest

from rlcorr.errors import UsageError
from rlcorr.strips.slider_scale import COUNT, slider_scale


@pytest.mark.parametrize(
    ("tightest", "loosest", "of_ratio"),
    [(1 + 99e-6, 100.0, True), (1 / 1.0001, 1 / 100, True), (1e-7, 100.0, False), (-1e-7, -20.0, False)],
)
def test_places_go_from_tight_to_loose_in_readable_numbers(tightest: float, loosest: float, of_ratio: bool) -> None:
    places = slider_scale(tightest, loosest, of_ratio=of_ratio)
    outwards = [abs(place - (1 if of_ratio else 0)) for place in places]
    assert outwards == sorted(outwards)
    assert 0.9 * COUNT <= len(places) <= COUNT  # near 1 neighbours may round to the same number
    assert (places[0], places[-1]) == pytest.approx((tightest, loosest), rel=1e-5)
    assert max(len(f"{place:.12g}") for place in places) <= 12


def test_a_number_between_two_places_becomes_one() -> None:
    """The preset's own, which is shown until the slider is moved. One that is a place already is not there twice, nor
    one with the digits of an address next to the value that it stands for: 1 + √(0.01004 · 10) is the middle."""
    assert slider_scale(1.001, 11.0, of_ratio=True, count=3, also=[2.0, 11.0]) == (1.001, 1.1, 2.0, 11.0)
    end = 1.0100410667384112
    read = float(f"{end:.12g}")
    assert slider_scale(end, 11.0, of_ratio=True, count=3, also=[read]) == (read, 1.317, 11.0)


@pytest.mark.parametrize("ends", [(2.0, 1.1), (0.9, 1.1), (1.0, 2.0), (1.5, 1.5)])
def test_ends_that_do_not_open_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="from a tight bound to a loose one on the same side of 1"):
        slider_scale(*ends, of_ratio=True)
