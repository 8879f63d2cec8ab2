"""The places of the sliders of bounds: of every preset, and with numbers that somebody has typed."""

from app_pages import committed

from rlcorr import PRESETS

__all__ = ["committed"]  # a fixture


def test_every_bound_has_places_over_its_whole_range(committed: None) -> None:
    """The preset's own number is one of them, and all are allowed; lower bounds, too, open to the right."""
    from controls.bounds import bounds_of, places_of

    bounds = [(name, b) for name in PRESETS for b in bounds_of(PRESETS[name].config)]
    assert len({name for name, _ in bounds}) > len(PRESETS) / 2
    for name, b in bounds:
        places = places_of(b, b.value)
        assert b.value in places, (name, b)
        assert all(b.low <= place <= b.high for place in places), (name, b)
        outwards = sorted(places, reverse=b.side == "lower")
        assert list(places) == outwards, (name, b)
        assert len(places) > 500, (name, b)


def test_a_number_from_the_address_is_a_place(committed: None) -> None:
    from controls.bounds import bounds_of, places_of

    (b,) = bounds_of(PRESETS["decoupled_token_is"].config)
    assert {1.2345678, 2.0} <= set(places_of(b, 1.2345678))
