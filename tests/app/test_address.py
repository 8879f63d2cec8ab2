"""Values of the URL that a change of view empties: they come back when their view does."""

from pathlib import Path

import pytest
from app_pages import live_parts, one_scan, open_app, open_view, root, said, widget
from app_runs import add_step, make_run, write_sketch
from streamlit.testing.v1 import AppTest
from token_records import characters

__all__ = ["one_scan", "root"]  # fixtures


def leave_and_return(at: AppTest, view: str) -> AppTest:
    """Open another view with the navigation, and return."""
    open_view(at, "views/learn.py")
    return open_view(at, view)


def in_url(at: AppTest) -> dict[str, str]:
    return {key: value if isinstance(value, str) else value[0] for key, value in at.query_params.items()}


def test_the_opened_token_comes_back(root: Path) -> None:
    add_step(make_run(root, "alpha", steps=0, status="running"), characters(["12", "345"], None))
    at = leave_and_return(open_app("views/tokens.py", token="1.2"), "views/tokens.py")
    assert in_url(at)["token"] == "1.2"
    assert "Token 2 of response 1" in said(at)


def test_the_compared_runs_come_back(root: Path) -> None:
    """A wrong name is left out, and named as long as the URL has it."""
    for slug in ("alpha", "beta", "gamma"):
        make_run(root, slug, steps=1)
    at = open_app("views/training.py", run="alpha", **{"with": "beta,nobody"})
    assert "unknown run 'nobody'" in said(at.run())
    at = leave_and_return(at, "views/training.py")
    assert widget(at.multiselect, "with").value == ["beta"]
    assert in_url(at)["with"] == "beta"


def test_bounds_and_the_batch_size_come_back(root: Path) -> None:
    write_sketch(make_run(root, "alpha", steps=1, sequences=24, width=16))
    at = open_app("views/gradient.py", answers="1024", preset="decoupled_token_is", is_upper="3")
    at = leave_and_return(at, "views/gradient.py")
    bound, answers = live_parts(at)[0]["sliders"]
    assert (bound["value"], answers["value"]) == (3, 1024)
    assert {"is_upper": "3", "answers": "1024"}.items() <= in_url(at).items()


@pytest.mark.parametrize(
    ("view", "key"), [("learn", "learn"), ("yours", "keep"), ("training", "part"), ("compare", "compare")]
)
def test_an_address_that_presses_no_button_shows_the_first(root: Path, view: str, key: str) -> None:
    make_run(root, "alpha", steps=1)
    first, without = (set(said(open_app(f"views/{view}.py", **query)).split("\n")) for query in ({}, {key: ""}))
    assert first <= without  # there may be a warning, too
