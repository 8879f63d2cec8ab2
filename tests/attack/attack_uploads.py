"""Files that several sessions drop at once: each session sees its own run, whole, and no other."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import httpx
from app_runs import make_run, serve
from attempts import Attack
from damage import damaged
from sound_files import sound_files
from visitor import Visitor, one_answer, problem_of_log, visiting

from rlcorr.foreign.read_file import ENDINGS
from rlcorr.records import runs
from rlcorr.records.verify import verify

PAIRS, DAMAGED, LARGE, QUOTA = 28, 24, 4, 1
MIB = 1 << 20


def attack(attack: Attack) -> None:
    """Drop files onto the pages of a real server, which keeps them in a folder that can be looked at."""
    make_run(attack.folder, "alpha", steps=1)
    uploads = attack.folder.parent / "uploads"
    uploads.mkdir()
    os.environ["TMPDIR"] = str(uploads)
    with serve(attack.folder) as url:
        asyncio.run(attack_server(attack, url, uploads))
    for number, _ in attack.attempts(1):
        attack.judge(number, "server.log", problem_of_log(attack.folder))


async def attack_server(attack: Attack, url: str, uploads: Path) -> None:
    for kind, count in (("same file", PAIRS // 2), ("same name", PAIRS // 4), ("same bytes", PAIRS // 4)):
        for number, chance in attack.attempts(count):
            problem = await guarded(lambda c=chance, k=kind: problem_of_pair(url, uploads, c, k))
            attack.judge(number, f"two sessions, {kind}", problem)
    for make, count in ((problem_of_damaged, DAMAGED), (problem_of_large, LARGE), (problem_of_quota, QUOTA)):
        for number, chance in attack.attempts(count):
            problem = await guarded(lambda c=chance, m=make: m(url, uploads, c))
            attack.judge(number, make.__name__.removeprefix("problem_of_"), problem)


async def guarded(problem: Callable[[], Awaitable[str | None]]) -> str | None:
    try:
        return await asyncio.wait_for(problem(), 120)
    except Exception as error:
        return f"Traceback: {error!r}"


def recorded(uploads: Path) -> dict[str, Path]:
    """Return the runs of all sessions, and everything else in their folder."""
    return {path.name: path for path in uploads.glob("rlcorr_uploads_*/*")}


async def problem_of_pair(url: str, uploads: Path, chance: Random, kind: str) -> str | None:
    """Let two sessions drop a file at the same moment."""
    tokens, seeds = [chance.randint(1, 3000) for _ in range(2)], [chance.randint(1, 900) for _ in range(2)]
    names = ["a.jsonl", "a.jsonl"] if kind != "same bytes" else ["a.jsonl", "b.jsonl"]
    if kind != "same name":
        tokens[1], seeds[1] = tokens[0], seeds[0]
    async with httpx.AsyncClient(timeout=60) as one, httpx.AsyncClient(timeout=60) as two:
        visitors = await asyncio.gather(visiting(url, one), visiting(url, two))
        files = [(name, one_answer(n, seed)) for name, n, seed in zip(names, tokens, seeds, strict=True)]
        await asyncio.gather(*(visitor.drop(file) for visitor, file in zip(visitors, files, strict=True)))
        await asyncio.gather(*(visitor.socket.close() for visitor in visitors))
    for visitor, n, seed in zip(visitors, tokens, seeds, strict=True):
        if problem := problem_of_dropped(visitor, uploads, n, seed):
            return problem
    return "one session sees the run of the other" if visitors[0].slugs & visitors[1].slugs else None


def problem_of_dropped(visitor: Visitor, uploads: Path, tokens: int, seed: int) -> str | None:
    """Return what is wrong with what a session sees and with the run that it has made."""
    if not any(f"Read 1 answers with {tokens:,} tokens" in said for said in visitor.captions):
        return f"the page says {visitor.said + visitor.captions}"
    if len(visitor.slugs) != 1:
        return f"the session knows the runs {visitor.slugs}"
    (slug,) = visitor.slugs
    run = recorded(uploads)[slug.decode()]
    batch = runs.read_step(run, 1).batch
    assert batch.old_log_probs is not None
    if verify(run).problems or float(batch.old_log_probs[0, 0]) != -1 - seed / 1024:
        return f"the run holds something else: {verify(run).problems}"
    return None


async def problem_of_damaged(url: str, uploads: Path, chance: Random) -> str | None:
    """Drop a damaged file: the page says one thing about it, and nothing half-written is left."""
    name, content, _ = damaged(chance, sound_files())
    if not name.endswith(ENDINGS):  # a browser does not offer it
        name += ".jsonl"
    before = set(recorded(uploads))
    async with httpx.AsyncClient(timeout=60) as http:
        visitor = await visiting(url, http)
        await visitor.drop((name, content))
        await visitor.socket.close()
    made = set(recorded(uploads)) - before
    if not visitor.said and not made:
        return "the page says nothing"
    if any(verify(recorded(uploads)[slug]).problems for slug in made) or len(made) > 1:
        return f"half-written: {made}"
    return None if bool(made) == bool(visitor.slugs) else f"{made} was made, and {visitor.slugs} is named"


async def problem_of_large(url: str, uploads: Path, chance: Random) -> str | None:
    """Send more than the server takes: it refuses, and the page goes on."""
    size = chance.choice([65, 400]) * MIB
    before = set(recorded(uploads))
    async with httpx.AsyncClient(timeout=60) as http:
        visitor = await visiting(url, http)
        (place,) = await visitor.file_places(["a.jsonl"])
        status = await visitor.put(place, "a.jsonl", bytes(size))
        await visitor.drop(("a.jsonl", one_answer(7, 1)))
        await visitor.socket.close()
    if status != 413 or len(set(recorded(uploads)) - before) != 1:
        return f"{size // MIB} MiB are answered with {status}, {set(recorded(uploads)) - before}"
    return problem_of_dropped(visitor, uploads, 7, 1)


async def problem_of_quota(url: str, uploads: Path, chance: Random) -> str | None:
    """Drop one file after the other: the oldest runs make room for the last twelve."""
    before = set(recorded(uploads))
    async with httpx.AsyncClient(timeout=60) as http:
        visitor = await visiting(url, http)
        for number in range(15):
            await visitor.drop((f"a_{number}.jsonl", one_answer(number + 1, chance.randint(1, 900))))
        await visitor.socket.close()
    left = set(recorded(uploads)) - before
    return None if len(left) == 12 else f"{len(left)} runs of a session are left"
