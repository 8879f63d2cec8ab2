"""Sessions that drag a threshold of the app, each over a connection of its own, without a browser."""

import asyncio
import json
import random
import time
from dataclasses import dataclass

from httpx import AsyncClient
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

GAP, BUSY, PULL = 0.04, 0.2, 3.0


PATIENCE = 60.0
"""Seconds: an answer that takes longer has been lost."""


ADDRESS = "preset=decoupled_token_is"


@dataclass(frozen=True)
class Opened:
    """A page that has been drawn, and where its slider is."""

    socket: ClientConnection
    page: str
    fragment: str
    slider: str
    address: str


def received(raw: str | bytes) -> ForwardMsg:
    """Raises RuntimeError for what the page would show as an exception."""
    assert isinstance(raw, bytes)
    got = ForwardMsg.FromString(raw)
    if got.HasField("delta") and got.delta.new_element.HasField("exception"):
        raise RuntimeError(got.delta.new_element.exception.message)
    return got


async def opened(url: str) -> Opened:
    socket = await connect(
        f"{url.replace('http', 'ws')}/_stcore/stream", subprotocols=[Subprotocol("streamlit")], max_size=None
    )
    message = BackMsg()
    message.rerun_script.query_string = ADDRESS
    message.rerun_script.page_name = "bench"
    await socket.send(message.SerializeToString())
    page = fragment = slider = address = ""
    async for raw in socket:
        got = received(raw)
        if got.HasField("new_session"):
            page = got.new_session.page_script_hash
        if got.HasField("delta") and got.delta.new_element.HasField("bidi_component"):
            component = got.delta.new_element.bidi_component.id
            if component.endswith("-live_is_upper"):
                fragment, slider = got.delta.fragment_id, component
                address = json.loads(got.delta.new_element.bidi_component.json)["address"]
        if got.HasField("script_finished"):
            assert slider, "the page has no live slider"
            return Opened(socket, page, fragment, slider, f"{url}/{address}")
    raise RuntimeError("the server closed the connection")


async def asked(http: AsyncClient, of: Opened, value: float) -> float:
    """Seconds until a new value has been answered."""
    start = time.perf_counter()
    got = await http.get(of.address, params={"at": value})
    assert got.json()["figures"]
    return time.perf_counter() - start


async def let_go(of: Opened, value: float) -> float:
    """Seconds until the page has run."""
    message = BackMsg()
    rerun = message.rerun_script
    rerun.page_script_hash, rerun.fragment_id = of.page, of.fragment
    rerun.widget_states.widgets.add(
        id=of.slider, json_value=json.dumps({"at": {"value": value, "generation": 0, "done": True}})
    )
    start = time.perf_counter()
    await of.socket.send(message.SerializeToString())
    async for raw in of.socket:
        got = received(raw)
        if got.HasField("script_finished"):
            assert got.script_finished == ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
            return time.perf_counter() - start
    raise RuntimeError("the server closed the connection")


@dataclass(frozen=True)
class Times:
    """Seconds of each answer, and of each run of the page."""

    answers: list[float]
    runs: list[float]


async def dragged(url: str, seconds: float, seed: int) -> Times:
    values, times = random.Random(seed), Times([], [])
    page = await opened(url)
    end = time.perf_counter() + seconds
    async with AsyncClient(timeout=PATIENCE) as http:
        while (start := time.perf_counter()) < end:
            value = 2.0
            while time.perf_counter() < min(start + PULL, end):
                value = round(1.001 + values.random() ** 3 * 5, 3)
                times.answers.append(await asked(http, page, value))
                took = times.answers[-1]
                await asyncio.sleep(max(0.0, GAP - took) if took < BUSY else took)
            times.runs.append(await let_go(page, value))
    await page.socket.close()
    return times


async def together(url: str, sessions: int, seconds: float) -> Times:
    drags = await asyncio.gather(*(dragged(url, seconds, seed) for seed in range(sessions)))
    return Times([t for of in drags for t in of.answers], [t for of in drags for t in of.runs])
