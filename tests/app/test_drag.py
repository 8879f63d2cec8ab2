"""What a dragged threshold is answered: the same that the page shows once it has been let go."""

import gc
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from app_pages import one_scan, open_app, root, shown
from app_runs import make_run, write_sketch
from starlette.requests import Request
from starlette.responses import Response
from streamlit.testing.v1 import AppTest

__all__ = ["one_scan", "root"]  # fixtures

VIEWS = {"bench": "views/bench.py", "gradient": "views/gradient.py"}
KINDS = (
    "decoupled_token_is", "decoupled_token_icepop", "decoupled_seq_is", "decoupled_geo_rs_token_tis",
    "decoupled_k3_rs_token_tis", "k3_rs",
)  # fmt: skip


def sent(at: AppTest) -> list[dict[str, Any]]:
    """What each component of the page gets."""
    return [json.loads(component.proto.json) for component in at.get("bidi_component") if component.proto.json]


def slider(at: AppTest) -> dict[str, Any]:
    return next(component for component in sent(at) if "address" in component)


def ask(address: str, query: str) -> Response:
    from controls import drag

    scope = {"type": "http", "path_params": {"ticket": address.removeprefix("moved/")}, "query_string": query.encode()}
    return anyio.run(drag.moved, Request(scope))


@pytest.fixture
def opened(root: Path) -> Callable[..., AppTest]:
    write_sketch(make_run(root, "alpha", steps=1, sequences=24, width=16))

    def open_view(view: str, **query: str) -> AppTest:
        at = open_app(VIEWS[view], **query)
        assert not at.error
        return at

    return open_view


@pytest.mark.parametrize("preset", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_an_answer_is_what_the_page_shows(opened: Callable[..., AppTest], view: str, preset: str) -> None:
    at = opened(view, preset=preset)
    bound = slider(at)
    value = round(bound["offset"] + bound["low"] ** 0.9 * bound["high"] ** 0.1, 6)
    answer = json.loads(gzip.decompress(ask(bound["address"], f"at={value}").body))
    let_go = opened(view, preset=preset, **{at.session_state["shown_bounds"][0].key: f"{value:.12g}"})
    assert slider(let_go)["value"] == value
    assert {label: number["text"] for label, number in answer["numbers"].items()} == shown(let_go) != shown(at)
    beside = {label: number["beside"] for label, number in answer["numbers"].items()}
    assert beside == {metric.label: metric.delta or None for metric in let_go.metric}
    pictures = {component["figure"] for component in sent(let_go) if "figure" in component}
    assert set(answer["figures"].values()) <= pictures
    assert len(answer["figures"]) >= 3


def test_the_sentence_about_the_correction_moves(opened: Callable[..., AppTest]) -> None:
    at = opened("bench", preset="decoupled_token_is")
    answer = json.loads(gzip.decompress(ask(slider(at)["address"], "at=1.25").body))
    sentence = answer["texts"][".st-key-explained p"]
    assert "a weight above 1.25 becomes 1.25" in sentence


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "could not convert string to float"),
        ("at=much", "could not convert string to float"),
        ("at=nan", "nan is out of range; allowed: 1.0001 to 100."),
        ("at=-1", "-1 is out of range"),
        ("at=1e999", "inf is out of range"),
    ],
)
def test_a_value_that_no_slider_has_is_refused(opened: Callable[..., AppTest], query: str, said: str) -> None:
    at = opened("bench", preset="decoupled_token_is")
    refused = ask(slider(at)["address"], query)
    assert (refused.status_code, said in bytes(refused.body).decode()) == (400, True)


def test_an_offer_ends_with_its_session(opened: Callable[..., AppTest]) -> None:
    at = opened("bench")
    address = slider(at)["address"]
    assert ask(address, "at=1.5").status_code == 200
    at.run()
    assert slider(at)["address"] == address
    del at
    gc.collect()
    assert ask(address, "at=1.5").status_code == 404


def test_two_visitors_have_two_addresses(opened: Callable[..., AppTest]) -> None:
    first, second = opened("bench"), opened("bench")
    assert slider(first)["address"] != slider(second)["address"]
    assert ask("moved/guessed", "at=1.5").status_code == 404


def test_an_answer_to_another_batch_size_is_what_the_page_shows(opened: Callable[..., AppTest]) -> None:
    at = opened("gradient", preset="decoupled_token_is")
    followed = next(component for component in sent(at) if "values" in component)
    answer = json.loads(gzip.decompress(ask(followed["address"], "at=4096").body))
    let_go = opened("gradient", preset="decoupled_token_is", answers="4096")
    assert {label: number["text"] for label, number in answer["numbers"].items()} == shown(let_go) != shown(at)
    assert set(answer["figures"].values()) <= {
        component["figure"] for component in sent(let_go) if "figure" in component
    }
    refused = ask(followed["address"], "at=300")
    assert (refused.status_code, bytes(refused.body)[:38]) == (400, b"300 answers are not offered; offered: ")
