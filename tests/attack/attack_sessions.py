"""Forty sessions that drag at once, and forty that are cut off: afterwards the server is as it was."""

import asyncio
import contextlib
import os
from pathlib import Path
from random import Random

import httpx
from app_runs import make_run, serve
from attempts import Attack
from bench_sessions import megabytes
from dragging import dragged
from streamlit.proto.BackMsg_pb2 import BackMsg
from visitor import BOX, connected, one_answer, problem_of_log, visiting

SESSIONS, SECONDS = 40, 10.0
GROWTH = 300.0
"""MiB that the server may keep after eighty sessions, which it remembers for a while."""


def attack(attack: Attack) -> None:
    """Attack one real server."""
    make_run(attack.folder, "alpha", steps=1, sequences=60, width=128)
    uploads = attack.folder.parent / "uploads"
    uploads.mkdir()
    os.environ["TMPDIR"] = str(uploads)
    with serve(attack.folder) as url:
        port = f"--server.port {url.rsplit(':', 1)[1]}"
        asyncio.run(once(url))
        before = megabytes(port)
        asyncio.run(at_once(attack, url))
        asyncio.run(cut_off(attack, url))
        after = megabytes(port)
        attack.notes.append(f"sessions: the server takes {before:.0f} MiB before 80 sessions, {after:.0f} MiB after")
        checks = {
            "memory": f"{after - before:.0f} MiB more" if after - before > GROWTH else None,
            "a fresh session": asyncio.run(problem_of_fresh(url, uploads)),
        }
    checks["server.log"] = problem_of_log(attack.folder)
    for (number, _), (name, problem) in zip(attack.attempts(len(checks)), checks.items(), strict=False):
        attack.judge(number, name, problem)


async def once(url: str) -> None:
    await dragged(url, 2.0, 0)


async def at_once(attack: Attack, url: str) -> None:
    """Let all sessions open the page, fetch the strip of a slider, and let its thumb go a few times."""
    numbers = [number for number, _ in attack.attempts(SESSIONS)]
    ends = await asyncio.gather(*(dragged(url, SECONDS, number) for number in numbers), return_exceptions=True)
    for number, end in zip(numbers, ends, strict=True):
        if isinstance(end, BaseException):
            problem = f"Traceback: {end!r}"
        else:
            problem = None if end.runs else "no run of the page"
        attack.judge(number, "sessions at once", problem)


async def cut_off(attack: Attack, url: str) -> None:
    """Cut all sessions off, each at a moment of its own. The server must answer somebody else meanwhile."""
    numbers = [*attack.attempts(SESSIONS)]
    ends = await asyncio.gather(*(cut_one(url, chance) for _, chance in numbers), return_exceptions=True)
    async with httpx.AsyncClient(timeout=60) as http:
        for (number, _), end in zip(numbers, ends, strict=True):
            got = await http.get(f"{url}/_stcore/health")
            problem = None if got.status_code == 200 else f"status {got.status_code}"
            attack.judge(number, "a session cut off", problem or (f"Traceback: {end!r}" if end else None))


async def cut_one(url: str, chance: Random) -> None:
    moment = chance.choice(["first run", "first run", "upload", "reading", "reading", "handshake"])
    async with httpx.AsyncClient(timeout=60) as http:
        if moment in ("handshake", "first run"):
            visitor = await connected(url, http)
            if moment == "first run":
                message = BackMsg()
                message.rerun_script.query_string = f"view={chance.choice([BOX, 'bench', 'training', 'tokens'])}"
                await visitor.ask(message)
                await asyncio.sleep(chance.random())  # chooses the moment
            await visitor.cut()
            return
        visitor = await visiting(url, http)
        if moment == "upload":
            await visitor.put_half("a.jsonl")
        else:
            await visitor.drop(("a.jsonl", one_answer(chance.randint(1, 20_000), 1)), wait=False)
            await asyncio.sleep(chance.random() / 5)
        await visitor.cut()


async def problem_of_fresh(url: str, uploads: Path) -> str | None:
    """Drop a file in a new session after all others have expired: its run is the only one that is left."""
    for run in uploads.glob("rlcorr_uploads_*/*"):
        with contextlib.suppress(FileNotFoundError):
            os.utime(run, (0, 0))
    async with httpx.AsyncClient(timeout=60) as http:
        visitor = await visiting(url, http)
        await visitor.drop(("fresh.jsonl", one_answer(5, 1)))
        await visitor.socket.close()
    left = [path.name for path in uploads.glob("rlcorr_uploads_*/*")]
    if not any("Read 1 answers with 5 tokens" in said for said in visitor.captions):
        return f"the page says {visitor.said + visitor.captions}"
    return None if {name.encode() for name in left} == visitor.slugs else f"left: {left}"
