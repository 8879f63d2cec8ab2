"""The address: what comes back with its view, and what is said about a wrong one."""

from pathlib import Path
from urllib.parse import parse_qs

import pytest
from app_pages import (
    committed,
    line_and_state,
    live_parts,
    notices_of,
    one_scan,
    open_app,
    open_view,
    root,
    said,
    widget,
)
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
    assert "Token 2 of answer 1" in said(at)


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


@pytest.mark.parametrize("query", [{"methods": ""}, {"methods": "TIS,IcePop"}, {"preset": "decoupled_geo_rs"}])
def test_what_the_page_writes_is_what_it_reads(query: dict[str, str], committed: None) -> None:
    at = open_app("mismatch", **query)
    first = dict(at.session_state["visit"].values)
    assert set(query) <= set(first)
    assert at.run().session_state["visit"].values == first
    again = open_app("mismatch", **{key: text for key, text in in_url(at).items() if key != "view"})
    assert again.session_state["visit"].values == first


WRONG = [
    ("run=alhpa", "unknown run 'alhpa'. Did you mean 'alpha'? Known: alpha, beta. Showing alpha."),
    ("step=99", "This run has no step '99' (2 recorded, 0 to 1). Showing the latest."),
    ("preset=icepop", "unknown preset 'icepop'."),
    ("level=word", "level='word' is not known; using 'token'. Known: none, token, sequence, geometric, prefix."),
    ("rules=token_k1,k4", "rules='token_k1,k4' is not known; using ''."),
    ("is_upper=banana", "is_upper='banana' is not a number; using 2."),
    ("is_upper=nan", "is_upper=nan is out of range; using 2. Allowed: 1.0001 to 100."),
    ("is_upper=0.2", "is_upper=0.2 is out of range; using 2."),
    ("run=alpha&run=beta", "run= is twice in the address; using the last: beta."),
    ("study=stale_8", "study= in the address changes nothing here: it belongs to Training."),
    ("b.is_upper=3", "b.is_upper= in the address changes nothing here: it belongs to Compare."),
    ("nonsense=1&more=2", "The address has nonsense=, more= which means nothing here."),
    ("token_k3_upper=3", "token_k3_upper=3 changes nothing: the preset has no such bound."),
    ("budget_share=50", "The address has budget_share= which means nothing here."),
    ("system=trlx", "system='trlx' is not known. Known: verl, SkyRL"),
    ("hide=pre-set,budget", "unknown control in hide= 'pre-set'. Did you mean 'preset'?"),
    ("projector=yes", "projector='yes' is not known; using 0. Known: 0, 1."),
    ("tour=helthy", "unknown tour 'helthy'. Did you mean 'healthy'?"),
    ("tour=stale&tour_step=9", "tour_step=9 is not a step of this tour"),
    ("view=gradient&answers=300", "answers='300' is not offered; using 256. Offered: 16, 32, 64,"),
    ("view=learn&learn=Cheat sheet", "unknown part 'Cheat sheet'."),
    ("view=learn&lesson=../../secret", "unknown lesson '../../secret'"),
    ("view=mismatch&methods=TIS,IcePopp", "unknown method 'IcePopp'. Did you mean 'IcePop'?"),
    ("view=training&part=Studdy", "unknown part 'Studdy'. Did you mean 'Study'? Known: Runs, Study,"),
    ("view=training&with=beta,<b>nobody</b>", "unknown run '<b>nobody</b>'. Known: beta. Drawn without it."),
    (f"view=training&with={'x' * 5000}", "with= in the address is longer than 4000 characters, so it is left out."),
]  # fmt: skip


def test_what_is_wrong_with_an_address_is_said(root: Path) -> None:
    for slug in ("alpha", "beta"):
        make_run(root, slug, steps=2)
    for query, sentence in WRONG:
        said_of = notices_of({"view": ["bench"], "run": ["alpha"]} | parse_qs(query))
        assert len(said_of) == 1, (query, said_of)
        assert sentence in said_of[0], query


def test_what_is_wrong_is_shown_once_until_the_next_choice_and_the_rest_of_the_address_holds(root: Path) -> None:
    for slug in ("alpha", "beta"):
        make_run(root, slug, steps=2)
    at = open_app("bench", run="beta", step="0", preset="icepop")
    assert said(at).count("unknown preset 'icepop'.") == 1
    assert line_and_state(at).startswith("beta · step 0")
    at = widget(at.selectbox, "step").set_value("1").run()
    assert "icepop" not in said(at)
    assert line_and_state(at).startswith("beta · step 1")
    assert set(in_url(at)) <= {"view", "run", "step"}
    without = open_app("training", part="", run="beta")  # presses no button: the first part is shown
    assert "There are too few steps yet to see a trend." in said(without)
