"""Forty sessions that drag at once, and forty that are cut off: afterwards the server is as it was."""

import asyncio
import contextlib
import itertools
import os
import time
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
PATIENCE = 60.0
"""Seconds that the server may take to end what it does for those who were cut off."""
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
    """Drop files in a new session after all others have expired: soon its runs are the only ones that are left.

    The server may still be writing a run for somebody who was cut off, so this is tried again for a while.
    """
    deadline = time.monotonic() + PATIENCE
    async with httpx.AsyncClient(timeout=60) as http:
        visitor = await visiting(url, http)
        left = {b""}
        for tokens in itertools.count(5):
            for manifest in uploads.glob("rlcorr_uploads_*/*/manifest.json"):
                if manifest.parent.name.encode() not in visitor.slugs:
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(manifest, (0, 0))
            await visitor.drop(("fresh.jsonl", one_answer(tokens, 1)))
            if not any(f"Read 1 answers with {tokens} tokens" in said for said in visitor.captions):
                return f"the page says {visitor.said + visitor.captions}"
            left = {path.name.encode() for path in uploads.glob("rlcorr_uploads_*/*")}
            if left <= visitor.slugs or time.monotonic() > deadline:
                break
        await visitor.socket.close()
    return None if left <= visitor.slugs and len(left) else f"left: {left - visitor.slugs}"
