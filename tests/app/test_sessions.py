"""Several people at once, over Streamlit's own protocol."""

import asyncio
from pathlib import Path

import httpx
import pytest
from app_runs import make_run, serve
from dragging import together
from visitor import one_answer, problem_of_log, visiting

pytestmark = pytest.mark.slow


async def dropped_at_once(url: str, *names: str) -> list[set[bytes]]:
    """Let a session for each name drop the same bytes at the same moment, and return which runs each got to know.

    A session sends nothing about the checkbox next to the box for files, as one that has just opened the page."""
    async with httpx.AsyncClient(timeout=60) as http:
        visitors = await asyncio.gather(*(visiting(url, http) for _ in names))
        await asyncio.gather(
            *(visitor.drop((name, one_answer(5, 1))) for visitor, name in zip(visitors, names, strict=True))
        )
        await asyncio.gather(*(visitor.socket.close() for visitor in visitors))
    assert all(any("Read 1 answers with 5 tokens" in said for said in visitor.captions) for visitor in visitors)
    return [visitor.slugs for visitor in visitors]


async def cut_in_the_middle_of_a_file(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
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
