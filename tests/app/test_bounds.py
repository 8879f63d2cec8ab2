"""The places of the sliders of bounds: of every preset, and with numbers that somebody has typed."""

from app_pages import committed

from rlcorr import PRESETS

__all__ = ["committed"]  # a fixture


def test_every_bound_has_places_over_its_whole_range(committed: None) -> None:
    """The preset's own number is one of them, and all are allowed; lower bounds, too, open to the right."""
    from data.bounds import bounds_of, slider_values_of

    bounds = [(name, b) for name in PRESETS for b in bounds_of(PRESETS[name].config)]
    assert len({name for name, _ in bounds}) > len(PRESETS) / 2
    for name, b in bounds:
        values = slider_values_of(b, b.value)
        assert b.value in values, (name, b)
        assert all(b.low <= value <= b.high for value in values), (name, b)
        outwards = sorted(values, reverse=b.id.side == "lower")
        assert list(values) == outwards, (name, b)
        assert len(values) > 500, (name, b)


def test_a_number_from_the_address_is_a_place(committed: None) -> None:
    from data.bounds import bounds_of, slider_values_of

    (b,) = bounds_of(PRESETS["decoupled_token_is"].config)
    assert {1.2345678, 2.0} <= set(slider_values_of(b, 1.2345678))
