"""What the strip of a dragged threshold has: the same that the page shows once it has been let go."""

import base64
import gc
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from app_pages import headlines, live_parts, one_scan, open_app, root
from app_runs import make_run, write_sketch
from starlette.requests import Request
from starlette.responses import Response
from streamlit.testing.v1 import AppTest

from rlcorr.records import runs
from rlcorr.strips.packing import unpack
from rlcorr.strips.strip import Cells

__all__ = ["one_scan", "root"]  # fixtures

VIEWS = {name: f"views/{name}.py" for name in ("bench", "gradient", "compare")}
KINDS = ("decoupled_token_icepop", "decoupled_seq_is", "decoupled_geo_rs_token_tis", "k3_rs")
ENDS = ("x0", "x1", "y0", "y1")


def slider(at: AppTest, number: int = 0) -> dict[str, Any]:
    return live_parts(at)[0]["sliders"][number]


def figures(at: AppTest) -> dict[str, str]:
    """Key → figure, of the live part."""
    return {picture["key"]: picture["figure"] for row in live_parts(at)[0]["rows"] for picture in row}


def ask(address: str, receive: Any = anyio.sleep_forever) -> Response:
    """Ask for a strip; `receive` waits for what the browser says next."""
    from components import offers

    scope = {"type": "http", "path_params": {"ticket": address.removeprefix("strips/")}}
    return anyio.run(offers.get_offered, Request(scope, receive))


async def gone() -> dict[str, str]:
    return {"type": "http.disconnect"}


def test_a_strip_is_computed_once_and_for_nobody_who_has_gone(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Ask eight times at once, of which half have closed their pages, and once more afterwards."""
    from components import offers

    computed: list[int] = []
    monkeypatch.setattr(offers.st, "session_state", {})
    address = offers.offer("strips", "key", lambda: bytes([computed.append(1) or 7]), version="1")
    assert ask(address, gone).status_code == 499
    assert computed == []

    async def at_once() -> None:
        scope = {"type": "http", "path_params": {"ticket": address.removeprefix("strips/")}}
        async with anyio.create_task_group() as group:
            for number in range(8):
                receive: Any = gone if number % 2 else anyio.sleep_forever
                group.start_soon(offers.get_offered, Request(scope, receive))

    anyio.run(at_once)
    again = offers.offer("strips", "key", lambda: bytes([computed.append(1) or 7]), version="1")
    assert (again, bytes(ask(again).body), computed) == (address, b"\7", [1])


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


@pytest.fixture
def let_go(opened: Callable[..., AppTest]) -> Callable[..., AppTest]:
    """Open the page with a slider at one of its places, as it is once the thumb has been let go."""

    def open_at(moved: dict[str, Any], place: int, view: str, **query: str) -> AppTest:
        at = opened(view, **query, **{moved["key"].removeprefix("live_"): repr(moved["values"][place])})
        (same,) = [one for one in live_parts(at)[0]["sliders"] if one["key"] == moved["key"]]
        assert same["value"] == moved["values"][place]
        return at

    return open_at


@pytest.mark.parametrize("rules", ["token_prefix_gap_outward", "token_k2,token_k3"])
def test_a_strip_has_the_headlines_of_the_page(
    opened: Callable[..., AppTest], let_go: Callable[..., AppTest], rules: str
) -> None:
    """Of rules that look at a whole answer, too, such as CPPO's."""
    query = {"preset": "decoupled_token_is", "level": "none", "rules": rules}
    at = opened("bench", **query)
    bound = slider(at)
    told = unpack(bytes(ask(bound["strip"]).body)).about["numbers"]
    for place in (5, 150):
        shown = headlines(let_go(bound, place, "bench", **query))
        assert {label: texts[place] for label, texts in told.items()} == {k: x[0] for k, x in shown.items()}


@pytest.mark.parametrize("preset", KINDS)
def test_a_strip_of_the_bench_is_what_the_page_shows(
    opened: Callable[..., AppTest], let_go: Callable[..., AppTest], preset: str
) -> None:
    """Of the first bound: numbers, sentences, the cells of the mask, and the heights of the bars."""
    at = opened("bench", preset=preset)
    bound = slider(at)
    package = unpack(bytes(ask(bound["strip"]).body))
    about = package.about
    place = 60
    page = let_go(bound, place, "bench", preset=preset)
    assert {label: (texts[place], None) for label, texts in about["numbers"].items()} == headlines(page)
    assert {name: texts[place] for name, texts in about["texts"].items()} == live_parts(page)[0]["texts"]
    for key, moves in about["pictures"].items():
        traces = {trace.get("name"): trace for trace in json.loads(figures(page)[key])["data"]}
        for name, array in moves["bars"].items():
            assert package.arrays[array][place].tolist() == list_of(traces[name]["y"])
        if moves["cells"]:
            drawn = next(trace for trace in traces.values() if trace["type"] == "heatmap")
            assert cells_of(package.arrays).at(place).tobytes() == base64.b64decode(drawn["z"]["bdata"])


def list_of(numbers: list[float] | dict[str, str]) -> list[float]:
    """Long lists of a figure are base64 of their bytes."""
    if isinstance(numbers, list):
        return numbers
    return np.frombuffer(base64.b64decode(numbers["bdata"]), numbers["dtype"]).tolist()


@pytest.mark.parametrize(("preset", "slider_number"), [("decoupled_geo_rs_token_tis", 0), ("decoupled_token_is", -1)])
def test_a_strip_of_the_gradient_is_what_the_page_shows(
    opened: Callable[..., AppTest], let_go: Callable[..., AppTest], preset: str, slider_number: int
) -> None:
    """Of the bound and of the answers in a batch: numbers with their intervals, and what moves in every picture."""
    at = opened("gradient", preset=preset)
    moved = slider(at, slider_number)
    about = unpack(bytes(ask(moved["strip"]).body)).about
    count = len(moved["values"])
    for place in (0, count // 2, count - 1):
        page = let_go(moved, place, "gradient", preset=preset)
        looked_up = {label: (texts[place], about["beside"][label][place]) for label, texts in about["numbers"].items()}
        assert looked_up == headlines(page)
        assert {name: texts[place] for name, texts in about["texts"].items()} == live_parts(page)[0]["texts"]
        changed = {key: moves["figures"][place] for key, moves in about["pictures"].items() if moves["figures"]}
        assert changed == {key: figures(page)[key] for key in changed}
        for key, moves in about["pictures"].items():
            if moves["shapes"] is not None:
                lines = json.loads(figures(page)[key])["layout"]["shapes"]
                looked_up = about["shapes"][moves["shapes"]][place]
                assert len(looked_up) == len(lines)
                for line, expected in zip(looked_up, lines, strict=True):  # with as many digits as a pixel has
                    assert line.keys() == expected.keys()
                    assert [line[end] for end in ENDS] == pytest.approx([expected[end] for end in ENDS], rel=1e-5)
    assert set(about["pictures"]) == {"ranking", "gradient_curves"}


@pytest.mark.parametrize("preset", ["decoupled_token_icepop", "decoupled_k3_rs_token_tis"])
def test_a_strip_of_two_corrections_is_what_the_page_shows(
    opened: Callable[..., AppTest], let_go: Callable[..., AppTest], preset: str
) -> None:
    """Of every bound of A and of B: numbers, the table of metrics, sentences, and the cells of both masks."""
    query = {"preset": preset, "preset_b": "decoupled_token_icepop"}
    first = opened("compare", **query)  # its addresses answer as long as it is there
    sliders = live_parts(first)[0]["sliders"]
    assert len(sliders) >= 3
    for moved in sliders:
        package = unpack(bytes(ask(moved["strip"]).body))
        about = package.about
        place = len(moved["values"]) // 3
        page = let_go(moved, place, "compare", **query)
        shown = live_parts(page)[0]
        assert {label: (texts[place], None) for label, texts in about["numbers"].items()} == headlines(page)
        looked_up, answered = metrics(about["tables"]["headlines"][place]), metrics(shown["tables"]["headlines"])
        assert looked_up.keys() == answered.keys()
        for name, cells in answered.items():  # the last digit of a small difference may be another one
            assert looked_up[name] == pytest.approx(cells, rel=1e-3, nan_ok=True)
        assert {name: texts[place] for name, texts in about["texts"].items()}.items() <= shown["texts"].items()
        drawn = json.loads(figures(page)["shared"])["data"][0]["z"]
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
def test_every_bound_has_a_slider_with_a_strip(
    opened: Callable[..., AppTest], let_go: Callable[..., AppTest], view: str
) -> None:
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
        shown = headlines(let_go(bound, place, view, preset="decoupled_geo_rs_token_tis"))
        assert {label: texts[place] for label, texts in about["numbers"].items()} == {k: x[0] for k, x in shown.items()}


def test_an_offer_ends_with_its_session_and_another_visitor_has_another_address(opened: Callable[..., AppTest]) -> None:
    at = opened("bench")
    address = slider(at)["strip"]
    assert slider(opened("bench"))["strip"] != address
    assert ask("strips/guessed").status_code == 404
    assert ask(address).status_code == 200
    at.run()
    assert slider(at)["strip"] == address
    del at
    gc.collect()
    assert ask(address).status_code == 404
