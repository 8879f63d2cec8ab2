"""Sessions that drag a threshold of the app, each over a connection of its own, without a browser.

A thumb that moves looks everything up in the strip of its slider, so that a session asks the server for two things: for
a strip, whenever the page offers another one, and for a run of the page when the thumb is let go.
"""

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

from rlcorr.strips.packing import unpack

PULL = 3.0
"""Seconds that a thumb is held."""

PATIENCE = 60.0
"""Seconds: an answer that takes longer has been lost."""


ADDRESS = "view=bench&preset=decoupled_token_is"


@dataclass(frozen=True)
class Opened:
    """A page that has been drawn, and where its slider is."""

    socket: ClientConnection
    page: str
    part: str
    """Id of the component with the slider."""
    address: str
    """Address of the strip."""
    values: list[float]
    """Values of its slider."""
    generation: int


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
    await socket.send(message.SerializeToString())
    page = part = address = ""
    values: list[float] = []
    generation = 0
    async for raw in socket:
        got = received(raw)
        if got.HasField("new_session"):
            page = got.new_session.page_script_hash
        if got.HasField("delta") and got.delta.new_element.HasField("bidi_component"):
            component = got.delta.new_element.bidi_component
            if component.component_name == "rlcorr_live_part":
                part = component.id
                slider = json.loads(component.json)["sliders"][0]
                address, values, generation = slider["strip"], slider["values"], slider["generation"]
        if got.HasField("script_finished"):
            assert part, "the page has no live part"
            return Opened(socket, page, part, f"{url}/{address}", values, generation)
    raise RuntimeError("the server closed the connection")


async def strip_of(http: AsyncClient, of: Opened) -> float:
    """Return the seconds until the strip is there."""
    start = time.perf_counter()
    got = await http.get(of.address)
    got.raise_for_status()
    assert unpack(got.content).about["numbers"]
    return time.perf_counter() - start


async def let_go(of: Opened, value: float) -> float:
    """Seconds until the page has run."""
    message = BackMsg()
    rerun = message.rerun_script
    rerun.page_script_hash, rerun.query_string = of.page, ADDRESS
    at = {"value": value, "generation": of.generation, "done": True}
    rerun.widget_states.widgets.add(id=of.part, json_value=json.dumps({"moved": {"live_is_upper": at}}))
    start = time.perf_counter()
    await of.socket.send(message.SerializeToString())
    async for raw in of.socket:
        got = received(raw)
        if got.HasField("script_finished"):
            assert got.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY
            return time.perf_counter() - start
    raise RuntimeError("the server closed the connection")


@dataclass(frozen=True)
class Times:
    """Seconds until each strip was there, and of each run of the page."""

    strips: list[float]
    runs: list[float]


async def dragged(url: str, seconds: float, seed: int) -> Times:
    values, times = random.Random(seed), Times([], [])
    page = await opened(url)
    async with AsyncClient(timeout=PATIENCE) as http:
        took, places = await strip_of(http, page), page.values
    times.strips.append(took)
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        await asyncio.sleep(min(PULL, left))
        times.runs.append(await let_go(page, values.choice(places)))
    await page.socket.close()
    return times


async def together(url: str, sessions: int, seconds: float) -> Times:
    drags = await asyncio.gather(*(dragged(url, seconds, seed) for seed in range(sessions)))
    return Times([t for of in drags for t in of.strips], [t for of in drags for t in of.runs])
