"""A visitor of the app without a browser, who opens a page and drops files onto it, as a browser does."""

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from httpx import AsyncClient
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

XSRF = "_streamlit_xsrf"
SLUG = re.compile(rb"upload_[0-9a-f]{24}")
BOX = "yours"
"""The page with the box for files."""


def received(raw: str | bytes) -> ForwardMsg:
    """Raises RuntimeError for what the page would show as an exception."""
    assert isinstance(raw, bytes)
    got = ForwardMsg.FromString(raw)
    if got.HasField("delta") and got.delta.new_element.HasField("exception"):
        raise RuntimeError(got.delta.new_element.exception.message)
    return got


@dataclass
class Visitor:
    """An open page, and everything that the server has sent to it."""

    url: str
    http: AsyncClient
    socket: ClientConnection
    session: str = ""
    page: str = ""
    box: str = ""
    """Id of the box for files."""
    live: str = ""
    """Id of the part of the page that moves with a slider."""
    slider: dict[str, Any] = field(default_factory=dict)
    """Its first slider: values, generation, and the address of its strip."""
    said: list[str] = field(default_factory=list)
    """What the last run of the page says in its notes and errors."""
    captions: list[str] = field(default_factory=list)
    """Its other texts: the box says in a caption what it has read."""
    slugs: set[bytes] = field(default_factory=set)
    """The uploads that the server has named to this visitor."""
    query: str = ""

    async def ask(self, message: BackMsg) -> None:
        await self.socket.send(message.SerializeToString())

    async def run_ended(self) -> None:
        """Take what comes until a run of the page has ended, and none replaces it. Raises `RuntimeError` for an
        exception on the page."""
        async for raw in self.socket:
            got = received(raw)
            self.slugs.update(SLUG.findall(got.SerializeToString()))
            self._take(got)
            if got.HasField("script_finished") and got.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                return
        raise RuntimeError("the server closed the connection")

    def _take(self, got: ForwardMsg) -> None:
        if got.HasField("new_session"):
            self.session, self.said, self.captions = got.new_session.initialize.session_id, [], []
            self.page = got.new_session.page_script_hash
        if got.HasField("page_info_changed"):
            self.query = got.page_info_changed.query_string
        if got.HasField("delta"):
            element = got.delta.new_element
            if element.HasField("file_uploader"):
                self.box = element.file_uploader.id
            if element.HasField("alert"):
                self.said.append(element.alert.body)
            if element.HasField("markdown"):
                self.captions.append(element.markdown.body)
            if element.HasField("bidi_component") and element.bidi_component.component_name == "rlcorr_live_part":
                self.live = element.bidi_component.id
                self.slider = next(iter(json.loads(element.bidi_component.json)["sliders"]), {})

    async def file_places(self, names: list[str]) -> list[Any]:
        """Return where files of these names may be put, and their ids."""
        message = BackMsg()
        message.file_urls_request.request_id = "files"
        message.file_urls_request.file_names.extend(names)
        message.file_urls_request.session_id = self.session
        await self.ask(message)
        async for raw in self.socket:
            got = received(raw)
            if got.HasField("file_urls_response"):
                return [*got.file_urls_response.file_urls]
        raise RuntimeError("the server closed the connection")

    async def put(self, place: Any, name: str, content: bytes) -> int:
        """Send a file, and return the status of the answer."""
        token = str(self.http.cookies.get(XSRF))
        got = await self.http.put(
            f"{self.url}{place.upload_url}", files={"file": (name, content)}, headers={"X-Xsrftoken": token}
        )
        return got.status_code

    async def put_half(self, name: str) -> None:
        """Send the first half of a file, and close the connection in the middle of it."""
        (place,) = await self.file_places([name])
        host, port = self.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        token = str(self.http.cookies.get(XSRF))
        head = f"PUT {place.upload_url} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 100000\r\n"
        head += f"X-Xsrftoken: {token}\r\nCookie: {XSRF}={token}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        head += f'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        writer.write(head.encode() + b"x" * 50_000)
        await writer.drain()
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def drop(self, *files: tuple[str, bytes], wait: bool = True) -> None:
        """Drop files onto the box, and wait for the run of the page that reads them."""
        places = await self.file_places([name for name, _ in files])
        message = BackMsg()
        message.rerun_script.page_script_hash, message.rerun_script.query_string = self.page, self.query
        box = message.rerun_script.widget_states.widgets.add(id=self.box).file_uploader_state_value
        for place, (name, content) in zip(places, files, strict=True):
            if (status := await self.put(place, name, content)) >= 300:
                raise RuntimeError(f"the file is refused with {status}")
            box.uploaded_file_info.add(name=name, size=len(content), file_id=place.file_id, file_urls=place)
        await self.ask(message)
        if wait:
            await self.run_ended()

    async def cut(self) -> None:
        """End the connection at once, without a farewell."""
        self.socket.transport.abort()
        await self.socket.wait_closed()


async def connected(url: str, http: AsyncClient) -> Visitor:
    """Open the connection of a page."""
    await http.get(f"{url}/_stcore/health")
    await http.get(f"{url}/_stcore/host-config")
    address = f"{url.replace('http', 'ws')}/_stcore/stream"
    socket = await connect(address, subprotocols=[Subprotocol("streamlit")], max_size=None, open_timeout=300)
    return Visitor(url, http, socket)


async def visiting(url: str, http: AsyncClient, page: str = BOX, query: str = "") -> Visitor:
    """Open a view, and wait until it is drawn."""
    visitor = await connected(url, http)
    visitor.query = f"view={page}" + (f"&{query}" if query else "")
    message = BackMsg()
    message.rerun_script.query_string = visitor.query
    await visitor.ask(message)
    await visitor.run_ended()
    return visitor


def one_answer(tokens: int, seed: int) -> bytes:
    """Return a file of one response, whose number of tokens and first log-prob say which file it is."""
    pair = {"rollout_log_probs": [-1.0] * tokens, "old_log_probs": [-1.0 - seed / 1024] * tokens}
    return json.dumps(pair | {"step": 1}).encode()


def problem_of_log(runs: Path) -> str | None:
    """Return the end of the server's log if it has logged an exception. `runs` is the folder that it serves."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", (runs / "server.log").read_text(errors="replace"))
    wrong = re.search(r"\w+(Error|Exception|Disconnect)\b:?.*", log) or re.search("Traceback", log)
    return f"{wrong[0]} {log[max(wrong.start() - 1200, 0) : wrong.start()]}" if wrong else None
