"""The address: what comes back with its view, and what is said about a wrong one."""

from pathlib import Path

import pytest
from app_pages import committed, line_and_state, live_parts, one_scan, open_app, open_view, root, said, widget
from app_runs import add_step, make_run, write_sketch
from streamlit.testing.v1 import AppTest
from token_records import characters

__all__ = ["committed", "one_scan", "root"]  # fixtures


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


VIEWS = [
    ("start", {}), ("yours", {}), ("mismatch", {}), ("bench", {}), ("gradient", {"toy": "true"}), ("tokens", {}),
    ("compare", {}), ("compare", {"compare": "two runs"}), ("training", {}), ("training", {"part": "Study"}),
    ("training", {"part": "Train"}), ("learn", {}), ("learn", {"learn": "Glossary"}),
    ("learn", {"learn": "Cheat sheet"}), ("learn", {"learn": "Teaching"}),
]  # fmt: skip


@pytest.mark.parametrize(("view", "query"), VIEWS)
def test_no_widget_shows_another_value_than_its_field(view: str, query: dict[str, str], committed: None) -> None:
    """Else each request would look like a choice, and Back would do nothing."""
    at = open_app(f"views/{view}.py", **query)
    before = dict(at.session_state["visit"].values)
    at.run()
    assert at.session_state["visit"].values == before
    assert not at.session_state["visit"].notices


@pytest.mark.parametrize("query", [{"methods": ""}, {"methods": "TIS,IcePop"}, {"preset": "decoupled_geo_rs"}])
def test_what_the_page_writes_is_what_it_reads(query: dict[str, str], committed: None) -> None:
    at = open_app("views/mismatch.py", **query)
    first = dict(at.session_state["visit"].values)
    assert set(query) <= set(first)
    assert at.run().session_state["visit"].values == first
    again = open_app("views/mismatch.py", **{key: text for key, text in in_url(at).items() if key != "view"})
    assert again.session_state["visit"].values == first


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"preset": "icepop"}, "unknown preset 'icepop'."),
        ({"with": "x" * 5000}, "with= in the address is longer than 4000 characters, so it is left out."),
        ({"run": ["alpha", "beta"]}, "run= is twice in the address; using the last: beta."),
        ({"study": "stale_8"}, "study= in the address changes nothing here: it belongs to Training."),
        ({"b.is_upper": "3"}, "b.is_upper= in the address changes nothing here: it belongs to Compare."),
        ({"nonsense": "1", "more": "2"}, "The address has nonsense=, more= which means nothing here."),
        ({"token_k3_upper": "3"}, "token_k3_upper=3 changes nothing: the preset has no such bound."),
        ({"budget_share": "50"}, "The address has budget_share= which means nothing here."),
    ],
)
def test_what_is_wrong_with_an_address_is_said_once_and_the_rest_holds(
    root: Path, query: dict[str, str | list[str]], sentence: str
) -> None:
    """Until the next choice, which writes an address without it."""
    for slug in ("alpha", "beta"):
        make_run(root, slug, steps=2)
    view = "training" if "with" in query else "bench"
    at = open_app(f"views/{view}.py", **({"run": "beta", "step": "0"} | query))
    assert said(at).count(sentence) == 1
    assert line_and_state(at).startswith("beta · step 0")
    at = widget(at.selectbox, "step").set_value("1").run()
    assert sentence not in said(at)
    assert line_and_state(at).startswith("beta · step 1")
    assert set(in_url(at)) <= {"view", "run", "step"}
