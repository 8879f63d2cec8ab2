"""Guided tours: each can be walked to its end by doing what it says, in one session, and left at any time."""

import pytest
from app_pages import committed, follow, one_scan, open_app, open_view, said
from streamlit.testing.v1 import AppTest

__all__ = ["committed", "one_scan"]  # fixtures

pytestmark = pytest.mark.usefixtures("committed")

CARDS = {
    "healthy": "Open the healthy run", "stale": "Open the stale run", "collapsing": "Open the training runs",
    "long": "", "class": "",
}  # fmt: skip
# What each step says, as keys of the address: nothing where it is enough to be there.
DO: dict[str, list[dict[str, str]]] = {
    "healthy": [{"seq_mean_k1_upper": "1.04"}, {"seq_mean_k1_lower": "0.96"}, {}, {"token": "0.0"}],
    "stale": [{"methods": "TIS"}, {"is_upper": "1.1"}, {"preset": "decoupled_geo_rs"}, {}],
    "collapsing": [{"presets": "disabled"}, {"study": "stale_0"}, {"is_upper": "1.1"}],
    "long": [{"is_upper": "1.5"}, {"preset": "decoupled_token_icepop"}, {}],
    "class": [{"fix": "reject", "start_bound": "1.05"}, {}, {"token": "0.0"}, {"is_upper": "1.1"}, {}],
}


def address(at: AppTest) -> dict[str, str]:
    return {key: value if isinstance(value, str) else value[0] for key, value in at.query_params.items()}


def strip(at: AppTest) -> str:
    """The strip of the tour; an empty text without one."""
    return "".join(e.proto.body for e in at.get("html") if "class='rl-tour'" in e.proto.body)


def lit(at: AppTest) -> str:
    return "".join(e.proto.body for e in at.get("html") if "outline: 3px" in e.proto.body)


def go_on(at: AppTest, index: int) -> AppTest:
    """Press Next, which is a link if the next step is on another page."""
    if any(button.key == f"tour_to_{index}" for button in at.button):
        at.button(key=f"tour_to_{index}").click().run()
        assert not at.exception
        return at
    return follow(at, "Next")


@pytest.mark.parametrize("name", CARDS)
def test_a_tour_can_be_walked_to_its_end(name: str) -> None:
    from text.tours import TOURS

    steps = TOURS[name].steps
    assert 3 <= len(steps) <= 5
    at = open_app("views/start.py") if CARDS[name] else open_view_of(name)
    if CARDS[name]:
        at = follow(at, CARDS[name])
    for index, (step, do) in enumerate(zip(steps, DO[name], strict=True)):
        assert f"step {index + 1} of {len(steps)}" in strip(at)
        if do:
            assert strip(at).count("✓") == index, step
            assert step.do in said(at)
            assert step.control in lit(at)
            at = open_view(at, f"views/{step.view}.py", **do)
            assert step.control not in lit(at)
        assert strip(at).count("✓") == index + 1, step
        assert step.seen not in said(at)  # a class is asked first
        at.button(key="tour_reveal").click().run()
        assert step.seen in said(at)
        assert address(at)["tour"] == name
        if index + 1 < len(steps):
            at = go_on(at, index + 1)
    assert at.button(key="tour_leave").label == "Finish"
    at.button(key="tour_leave").click().run()
    assert not strip(at)
    assert not {"tour", "tour_step"} & address(at).keys()


def open_view_of(name: str) -> AppTest:
    """Open the link of a tour that no card begins."""
    from text.tours import TOURS

    first = TOURS[name].steps[0]
    return open_app(f"views/{first.view}.py", tour=name, **dict(first.query))


def test_it_goes_along_and_can_be_left() -> None:
    """By the navigation, too, which names nothing; there the strip has a link back to its step."""
    at = open_app("views/bench.py", run="smol_bf16_both", preset="decoupled_geo_rs", tour="healthy", tour_step="2")
    at = open_view(at, "views/mismatch.py")
    assert "step 2 of 4" in strip(at)
    assert (address(at)["tour"], address(at)["tour_step"]) == ("healthy", "2")
    assert not lit(at)
    at = follow(at, "Go to this step")
    assert "seq_mean_k1_lower" in lit(at)
    at.button(key="tour_leave").click().run()
    assert not strip(at)
    assert not lit(at)
    assert not {"tour", "tour_step"} & address(at).keys()


@pytest.mark.parametrize(
    ("query", "sentence", "shown"),
    [
        ({"tour": "helthy"}, "unknown tour 'helthy'. Did you mean 'healthy'?", ""),
        ({"tour": "stale", "tour_step": "9"}, "tour_step=9 is not a step of this tour", "step 1 of 4"),
        ({"tour": "stale", "tour_step": "x"}, "tour_step=x is not a step of this tour", "step 1 of 4"),
    ],
)
def test_a_wrong_name_or_step_is_named(query: dict[str, str], sentence: str, shown: str) -> None:
    at = open_app("views/learn.py", **query)
    assert sentence in said(at)
    assert shown in strip(at)
    assert bool(strip(at)) == bool(shown)
