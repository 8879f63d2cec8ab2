"""Several people at once, over Streamlit's own protocol."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from app_runs import make_run, serve
from dragging import together
from visitor import Visitor, one_answer, problem_of_log, visiting

pytestmark = pytest.mark.slow


async def dropped_at_once(url: str, *names: str) -> list[set[bytes]]:
    """Let a session for each name drop the same bytes at the same moment, and return which runs each got to know.

    A session sends nothing about the checkbox next to the box for files, as one that has just opened the page."""
    async with httpx.AsyncClient(timeout=300) as http:
        visitors = await asyncio.gather(*(visiting(url, http) for _ in names))
        await asyncio.gather(
            *(visitor.drop((name, one_answer(5, 1))) for visitor, name in zip(visitors, names, strict=True))
        )
        await asyncio.gather(*(visitor.socket.close() for visitor in visitors))
    assert all(any("Read 1 answers with 5 tokens" in said for said in visitor.captions) for visitor in visitors)
    return [visitor.slugs for visitor in visitors]


async def cut_in_the_middle_of_a_file(url: str) -> None:
    async with httpx.AsyncClient(timeout=300) as http:
        visitor = await visiting(url, http)
        await visitor.put_half("a.jsonl")
        await visitor.cut()
        another = await visiting(url, http)
        await another.drop(("a.jsonl", one_answer(5, 1)))
        await another.socket.close()


def test_a_class_opens_a_server_that_has_just_started_and_drops_files(tmp_path: Path) -> None:
    """Every page is drawn and answers, though their threads import and fill the caches at the same time. A session that
    is cut off in the middle of a file is no error of the server, and those that drop the same file have a run each."""
    make_run(tmp_path, "alpha", steps=1)
    with serve(tmp_path) as url:
        times = asyncio.run(together(url, 6, 1.0))
        asyncio.run(cut_in_the_middle_of_a_file(url))
        slugs = asyncio.run(dropped_at_once(url, "a.jsonl", "a.jsonl", "b.jsonl"))
    assert (len(times.strips), len(times.runs)) == (6, 6)
    assert [len(of_session) for of_session in slugs] == [1, 1, 1]
    assert len(set.union(*slugs)) == 3
    assert problem_of_log(tmp_path) is None


async def one_drop(url: str, *sizes: int) -> tuple[Visitor, list[int]]:
    """Drop a file, send more of these sizes, and return what the server answered."""
    async with httpx.AsyncClient(timeout=300) as http:
        visitor = await visiting(url, http)
        await visitor.drop(("a.jsonl", one_answer(5, 1)))
        places = await visitor.file_places([f"{number}.jsonl" for number in range(len(sizes))])
        statuses = [await visitor.put(p, "x.jsonl", bytes(size)) for p, size in zip(places, sizes, strict=True)]
        await visitor.socket.close()
    return visitor, statuses


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda ending: ending.name)
def test_dropped_files_are_gone_after_any_end(
    ending: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A server that is killed cannot delete them; the next one does. It also takes as many bytes as it says, and as
    many descriptors as the system allows."""
    make_run(tmp_path, "alpha", steps=1)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what ignores it, such as nohup, hands that on to the server
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve(tmp_path) as url:
        server = next(p for p in psutil.Process().children() if f"{url.rsplit(':', 1)[1]}" in p.cmdline())
        _, statuses = asyncio.run(one_drop(url, *[63 << 20] * 3, 1 << 20, 65 << 20))
        assert statuses == [204, 204, 204, 204, 413]  # 190 of 192 MiB; the last one is too large by itself
        (left,) = tmp_path.glob("rlcorr_uploads_*")
        assert [*left.glob("upload_*/manifest.json")]
        server.send_signal(ending)
        server.wait(300)
    if ending == signal.SIGKILL:
        os.utime(left, (0, 0))
        with serve(tmp_path):
            assert not left.exists()
    assert not [*tmp_path.glob("rlcorr_uploads_*")]
