"""What a dragged threshold is answered: the same that the page shows once it has been let go."""

import base64
import gc
import gzip
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from app_pages import headlines, live_parts, one_scan, open_app, pictures, root
from app_runs import make_run, write_sketch
from starlette.requests import Request
from starlette.responses import Response
from streamlit.testing.v1 import AppTest

from rlcorr.records import runs
from rlcorr.strips.cells import Cells
from rlcorr.strips.packing import unpack

__all__ = ["one_scan", "root"]  # fixtures

VIEWS = {name: f"views/{name}.py" for name in ("bench", "gradient", "compare")}
KINDS = (
    "decoupled_token_is", "decoupled_token_icepop", "decoupled_seq_is", "decoupled_geo_rs_token_tis",
    "decoupled_k3_rs_token_tis", "k3_rs",
)  # fmt: skip
ENDS = ("x0", "x1", "y0", "y1")


def slider(at: AppTest, number: int = 0) -> dict[str, Any]:
    return live_parts(at)[0]["sliders"][number]


def numbers(answer: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {label: (number["text"], number["beside"]) for label, number in answer["numbers"].items()}


def ask(address: str, query: str = "") -> Response:
    from controls import drag

    kind, ticket = address.split("/")
    scope = {"type": "http", "path_params": {"ticket": ticket}, "query_string": query.encode()}
    return anyio.run({"moved": drag.get_changes, "strips": drag.get_strip}[kind], Request(scope))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of runs for all tests of this file: what the app has computed of them stays in its caches."""
    folder = tmp_path_factory.mktemp("runs")
    write_sketch(make_run(folder, "alpha", steps=1, sequences=24, width=16))
    return folder


@pytest.fixture
def opened(root: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    monkeypatch.setattr(runs, "ROOT", recorded)

    def open_view(view: str, **query: str) -> AppTest:
        at = open_app(VIEWS[view], **query)
        assert not at.error
        return at

    return open_view


@pytest.mark.parametrize("rules", ["token_k2", "token_prefix_gap_outward", "token_k2,token_k3"])
def test_a_strip_has_the_headlines_of_an_answer(opened: Callable[..., AppTest], rules: str) -> None:
    """Of rules that look at a whole batch or answer, too: M2PO's threshold, and CPPO's."""
    at = opened("bench", preset="decoupled_token_is", level="none", rules=rules)
    bound = slider(at)
    told = unpack(bytes(ask(bound["strip"]).body)).about["numbers"]
    assert ("M2 of the kept" in told) == ("token_k2" in rules)
    for place in (5, 60, 150):
        answer = json.loads(gzip.decompress(ask(bound["address"], f"at={bound['values'][place]}").body))
        assert {label: texts[place] for label, texts in told.items()} == {k: x[0] for k, x in numbers(answer).items()}


@pytest.mark.parametrize(("preset", "slider_number"), [*((kind, 0) for kind in KINDS), ("decoupled_token_is", -1)])
def test_a_strip_of_the_gradient_is_what_the_server_answers(
    opened: Callable[..., AppTest], preset: str, slider_number: int
) -> None:
    """Of the bound and of the answers in a batch: numbers with their intervals, and what moves in every picture."""
    page = opened("gradient", preset=preset)
    moved = slider(page, slider_number)
    about = unpack(bytes(ask(moved["strip"]).body)).about
    count = len(moved["values"])
    for place in (0, 7, count // 2, count - 1):
        answer = json.loads(gzip.decompress(ask(moved["address"], f"at={moved['values'][place]}").body))
        looked_up = {label: (texts[place], about["beside"][label][place]) for label, texts in about["numbers"].items()}
        assert looked_up == numbers(answer)
        changed = {key: moves["figures"][place] for key, moves in about["pictures"].items() if moves["figures"]}
        assert changed == {key: answer["figures"][key] for key in changed}
        for key, moves in about["pictures"].items():
            if moves["shapes"] is not None:
                lines = json.loads(answer["figures"][key])["layout"]["shapes"]
                looked_up = about["shapes"][moves["shapes"]][place]
                assert len(looked_up) == len(lines)
                for line, expected in zip(looked_up, lines, strict=True):  # with as many digits as a pixel has
                    assert line.keys() == expected.keys()
                    assert [line[end] for end in ENDS] == pytest.approx([expected[end] for end in ENDS], rel=1e-5)
    drawn = {"ranking", "plane", "gradient_curves"} | (set() if slider_number else {"parts"})
    assert set(about["pictures"]) == drawn  # without the best threshold, which these data do not show


@pytest.mark.parametrize("preset", KINDS)
@pytest.mark.parametrize("query", [{"preset_b": "decoupled_token_icepop"}, {"compare": "two runs"}])
def test_a_strip_of_two_corrections_is_what_the_server_answers(
    opened: Callable[..., AppTest], preset: str, query: dict[str, str]
) -> None:
    """Of every bound of A and of B: numbers, the table of metrics, sentences, and the cells of both masks."""
    page = opened("compare", preset=preset, **query)
    sliders = live_parts(page)[0]["sliders"]
    assert len(sliders) >= (1 if "compare" in query else 3)
    for moved in sliders:
        package = unpack(bytes(ask(moved["strip"]).body))
        about = package.about
        for place in (3, len(moved["values"]) // 2):
            answer = json.loads(gzip.decompress(ask(moved["address"], f"at={moved['values'][place]}").body))
            assert {label: texts[place] for label, texts in about["numbers"].items()} == {
                label: text for label, (text, _) in numbers(answer).items()
            }
            looked_up, answered = metrics(about["tables"]["headlines"][place]), metrics(answer["tables"]["headlines"])
            assert looked_up.keys() == answered.keys()
            for name, cells in answered.items():  # the last digit of a small difference may be another one
                assert looked_up[name] == pytest.approx(cells, rel=1e-3, nan_ok=True)
            assert {name: texts[place] for name, texts in about["texts"].items()}.items() <= answer["texts"].items()
            if "shared" in answer["figures"]:
                drawn = json.loads(answer["figures"]["shared"])["data"][0]["z"]
                assert cells_of(package.arrays).at(place).tobytes() == base64.b64decode(drawn["bdata"])


def metrics(table: str) -> dict[str, list[float]]:
    """Name → A, B, B − A."""
    rows = re.findall(r">(\w+)</abbr></td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", table)
    return {name: [math.nan if cell == "–" else float(cell) for cell in cells] for name, *cells in rows}


def cells_of(arrays: Mapping[str, np.ndarray]) -> Cells:
    places: dict[str, dict[int, np.ndarray]] = {when: {} for when in ("until", "since")}
    for name, array in arrays.items():
        of, when, *code = name.split("/")
        if of == "cells" and code:
            places[when][int(code[0])] = array
    return Cells(arrays["cells/base"], **places)


@pytest.mark.parametrize("view", ["bench", "gradient"])
def test_every_bound_has_a_slider_with_a_strip(opened: Callable[..., AppTest], view: str) -> None:
    """The curves are over the first bound, so of another one they do not move."""
    at = opened(view, preset="decoupled_geo_rs_token_tis")
    curves = {"bench": {"shares_over", "mismatch_over"}, "gradient": {"gradient_curves"}}[view]
    sliders = {moved["key"]: moved for moved in live_parts(at)[0]["sliders"] if moved["key"] != "answers"}
    assert [*sliders] == ["live_is_upper", "live_seq_mean_k1_upper", "live_seq_mean_k1_lower"]
    for number, bound in enumerate(sliders.values()):
        about = unpack(bytes(ask(bound["strip"]).body)).about
        assert (curves <= set(about["pictures"])) == (number == 0)
        assert curves.isdisjoint(about["pictures"]) == (number > 0)
        place = len(bound["values"]) // 3
        answer = json.loads(gzip.decompress(ask(bound["address"], f"at={bound['values'][place]}").body))
        assert {label: texts[place] for label, texts in about["numbers"].items()} == {
            label: text for label, (text, _) in numbers(answer).items()
        }


@pytest.mark.parametrize("preset", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_an_answer_is_what_the_page_shows(opened: Callable[..., AppTest], view: str, preset: str) -> None:
    at = opened(view, preset=preset)
    bound = slider(at)
    value = bound["values"][60]
    answer = json.loads(gzip.decompress(ask(bound["address"], f"at={value}").body))
    let_go = opened(view, preset=preset, **{bound["key"].removeprefix("live_"): f"{value:.12g}"})
    assert slider(let_go)["value"] == value
    assert numbers(answer) == headlines(let_go)
    for moving in ("texts", "tables"):
        assert answer[moving] == live_parts(let_go)[0][moving]
    assert set(answer["figures"].values()) <= {picture["figure"] for picture in pictures(let_go)}
    assert len(answer["figures"]) >= 2
    assert any(figure not in {picture["figure"] for picture in pictures(at)} for figure in answer["figures"].values())


def test_the_sentence_about_the_correction_moves(opened: Callable[..., AppTest]) -> None:
    at = opened("bench", preset="decoupled_token_is")
    answer = json.loads(gzip.decompress(ask(slider(at)["address"], "at=1.25").body))
    assert "a weight above 1.25 becomes 1.25" in answer["texts"]["explained"]


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
    followed = slider(at, -1)
    answer = json.loads(gzip.decompress(ask(followed["address"], "at=4096").body))
    let_go = opened("gradient", preset="decoupled_token_is", answers="4096")
    assert numbers(answer) == headlines(let_go) != headlines(at)
    assert set(answer["figures"].values()) <= {picture["figure"] for picture in pictures(let_go)}
    refused = ask(followed["address"], "at=300")
    assert (refused.status_code, bytes(refused.body)[:38]) == (400, b"300 answers are not offered; offered: ")
