"""The memory of an import with large row groups, of many tokens in a small file, and of a server with large files."""

import asyncio
import contextlib

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from app_runs import make_run, serve
from attack_files import GROWTH, Program
from attempts import Attack, one_sentence
from bench_import import SMALL, growth, size_of_group, write
from hostile import MIB
from pair_files import random_npz
from visitor import visiting

TOKENS, GROUPS = 1 << 20, 8
"""Tokens of a step, of which four are in a row group; number of row groups."""
MOST = 3
"""Row groups."""
VISITORS, ANSWERS, WIDTH = 4, 1 << 12, 1 << 10
"""Visitors who drop a file of the most tokens that are read."""
PATIENCE = 900
"""Seconds of a command, and of the last visitor's file."""
OF_POSITION = 128
"""Bytes that a command may take for a position of a step, see SECURITY.md."""
MOST_OF_SERVER = 1792
"""MiB that the server and what it starts may take: 450 of its own, 1,000 for a step, and 80 for each visitor."""


def attack(attack: Attack) -> None:
    """Import a file of few tokens, and then one of many row groups, in one fresh process; then attack a server."""
    for number, _ in attack.attempts(1):
        small, large = attack.folder / "small.parquet", attack.folder / "large.parquet"
        write(small, steps=1, tokens=SMALL)
        write(large, steps=4 * GROUPS, tokens=TOKENS)
        group, grown = size_of_group(large), growth(small, large, attack.folder / "imported")
        note = f"{large.stat().st_size / MIB:.0f} MiB in {GROUPS} row groups of {group:.0f} MiB: {grown:.0f} MiB more"
        attack.notes.append(f"import: {note} than a small file, {grown / group:.1f} row groups")
        attack.judge(number, "an import", f"{note}: above {MOST}" if grown > MOST * group else None)
    for number, _ in attack.attempts(1):
        attack.judge(number, "many tokens in a small file", problem_of_tokens(attack))
    for number, _ in attack.attempts(1):
        most = asyncio.run(megabytes_of_server(attack))
        attack.notes.append(f"server: {most:.0f} MiB while {VISITORS} visitors drop {ANSWERS * WIDTH:,} tokens each")
        attack.judge(number, "a server", f"{most:.0f} MiB" if most > MOST_OF_SERVER else None)


def problem_of_tokens(attack: Attack) -> str | None:
    """Import and report one answer of the most tokens, all alike, which make a file of 1 KiB."""
    path, tokens, program = attack.folder / "alike.parquet", ANSWERS * WIDTH, Program(PATIENCE)
    alike = {"rollout_log_probs": [[-0.5] * tokens], "old_log_probs": [[-0.6] * tokens]}
    pq.write_table(pa.table(alike), path)
    try:
        for words in (("import", str(path), "--run", "alike"), ("report", str(path))):
            done = program.run(*words)
            attack.notes.append(f"{words[0]}: {done['growth'] / MIB:.0f} MiB for {tokens:,} tokens that are alike")
            if problem := one_sentence(done["code"], done["error"]) or done.get("problem"):
                return problem
            if done["growth"] > GROWTH + OF_POSITION * tokens:
                return attack.notes[-1]
    finally:
        program.end()
    return None


async def megabytes_of_server(attack: Attack) -> float:
    """Let all visitors drop their file at once, and return the most memory that the server had."""
    make_run(attack.folder, "alpha", steps=1)
    with serve(attack.folder) as url:
        (server,) = (child for child in psutil.Process().children() if url.rsplit(":", 1)[1] in child.cmdline())
        drops, most = asyncio.gather(*(drop(url, seed) for seed in range(VISITORS))), 0
        while not drops.done():
            most = max(most, memory_of(server))
            await asyncio.sleep(0.05)  # between two looks
        await drops
    return most / MIB


def memory_of(server: psutil.Process) -> int:
    """Return the bytes of a process and of those that it has started."""
    total = 0
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


async def drop(url: str, seed: int) -> None:
    """Drop a file of random pairs. Raises `AssertionError` unless it is read."""
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        visitor = await visiting(url, http)
        await visitor.drop(("a.npz", random_npz(ANSWERS, WIDTH, seed)))
        await visitor.socket.close()
    assert any(f"Read {ANSWERS} answers" in said for said in visitor.captions), visitor.said
