"""Addresses that nobody's link has, over sound and damaged runs: no page shows an exception, no route answers 500."""

import asyncio
import re
from pathlib import Path
from random import Random
from urllib.parse import quote

from app_runs import PROJECT, make_run, serve, write_sketch
from attempts import Attack
from damage import KINDS as DAMAGE
from httpx import AsyncClient
from in_process import open_app
from visitor import problem_of_log

from rlcorr import PRESETS

PAGES, FETCHED = 320, 400
VIEWS = re.findall(r'"(\w+)": PageWords', (PROJECT / "app" / "text" / "pages.py").read_text(encoding="utf-8"))
KEYS = (
    "run", "step", "preset", "preset_b", "is_upper", "is_lower", "rs_upper", "rs_lower", "rs0_upper", "b.is_upper",
    "token", "with", "answers", "keep", "take", "system", "part", "study", "presets", "methods", "learn", "lesson",
    "hide", "projector", "b.run", "b.step", "at", "k", "", "embed", "loss", "rollout_is", "rollout_rs",
)  # fmt: skip
VALUES = (
    "", " ", "0", "-1", "1", "1e400", "-1e400", "nan", "inf", "9" * 400, "1.2.3", "999999999999.1", "-1.-1", "1,2",
    ",", "../../etc/passwd", "/", "a\0b", "\0", "x" * 300, "x" * 5000, "upload_", "upload_" + "0" * 24, "<b>x</b>",
    "[a](javascript:b)", "\u202eabc", "\ud7ff\uffff", "%00", "%", "None", "example", "latest", "true", "token",
    "sequence", "decoupled_token_is", "rules", "1_000", "٣", "1e-320", "𝟙", "{}", "[]", "'\"", "a study",
    "upload_../../a",
)  # fmt: skip
PATHS = (
    "strip",
    "value",
    "drag",
    "site/lessons/",
    "site/lessons/01.html",
    "_stcore/health",
    "component/",
    "media/",
    "app",
)


def attack(attack: Attack) -> None:
    """Open pages in this process, and fetch addresses from a server."""
    names = make_runs(attack.folder, Random(f"runs {attack.seed}"))
    for number, chance in attack.attempts(PAGES):
        view, query = f"views/{chance.choice(VIEWS)}.py", random_query(chance, names)
        attack.judge(number, f"{view} {query!r:.300}", problem_of_page(view, query))
    fetched = [*attack.attempts(FETCHED)]
    if fetched:
        with serve(attack.folder) as url:
            asyncio.run(fetch_all(attack, url, fetched, names))
    for number, _ in attack.attempts(1):
        attack.judge(number, "server.log", problem_of_log(attack.folder) if fetched else None)


def make_runs(root: Path, chance: Random) -> list[str]:
    """Make sound runs and damaged ones, and return their names."""
    write_sketch(make_run(root, "alpha", steps=1))
    make_run(root, "beta", steps=2, texts=["<b>x</b>", "", "a\0b", "é" * 50])
    (root / "x").mkdir()
    names = ["alpha", "beta", "x", "n" * 100]
    make_run(root, "n" * 100, steps=1)
    for number in range(16):
        run = write_all(root, f"damaged_{number}")
        path = chance.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
        kind = chance.choice(sorted(DAMAGE))
        path.write_bytes(DAMAGE[kind](chance, path.read_bytes()))
        names.append(run.name)
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    for number, text in enumerate([deep, "[]", "{}", '{"slug": "s", "config": {"advantage": 7}}', "\0", ""]):
        run = write_all(root, f"manifest_{number}")
        (run / "manifest.json").write_text(text)
        names.append(run.name)
    return names


def write_all(root: Path, name: str) -> Path:
    run = make_run(root, name, steps=1)
    write_sketch(run)
    return run


def random_query(chance: Random, names: list[str]) -> dict[str, str]:
    """Return some parameters of an address, of which a few are right."""
    query = {key: chance.choice(VALUES) for key in chance.sample(KEYS, chance.randint(1, 5))}
    if chance.random() < 0.7:
        query["run"] = chance.choice(names)
    if chance.random() < 0.4:
        query["preset"] = chance.choice(sorted(PRESETS))
    return query


def problem_of_page(view: str, query: dict[str, str]) -> str | None:
    """Open a page, run it twice as a timer does, and return the exception that it shows."""
    try:
        at = open_app(view, **query)
        at.run()
        shown = [f"{element.message}" for element in at.exception]
    except Exception as error:
        return f"Traceback: {error!r}"
    if shown:
        return f"the page shows {shown}"
    return None if at.main.children else "the page is empty"


async def fetch_all(attack: Attack, url: str, fetched: list[tuple[int, Random]], names: list[str]) -> None:
    """Fetch hostile addresses of the server's routes; it must answer each with less than 500, and go on."""
    parts = re.findall(r'"(/[\w/{}:.]+)"', (PROJECT / "app" / "components" / "offers.py").read_text(encoding="utf-8"))
    async with AsyncClient(timeout=60) as http:
        for number, chance in fetched:
            path = "/" + chance.choice([*PATHS, *(part.lstrip("/") for part in parts)])
            path = re.sub(r"\{[^}]*\}", lambda _, c=chance: quote(c.choice([*VALUES, *names]), safe=""), path)
            query = "&".join(f"{quote(k)}={quote(v)}" for k, v in random_query(chance, names).items())
            try:
                got = await http.get(f"{url}{path}?{query}"[:60_000])
                problem = f"status {got.status_code}: {got.text[:300]}" if got.status_code >= 500 else None
            except Exception as error:
                problem = f"no answer: {error!r}"
            attack.judge(number, f"{path}?{query}"[:300], problem)
