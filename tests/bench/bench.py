"""`make bench`: the measured figures of the READMEs, each from processes started as a person starts them.

    make bench                  what there is
    make bench ARGS="ppo play"  only these

Every file bench_NAME.py beside this one is a part; the others are in `PARTS`.
"""

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app_runs import chromium, serve, settled, tab
from processes import ROOT, rlcorr, running, url_in, wait_for

from rlcorr.records import runs

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
TARGET = 0.9


def trained(folder: Path, run: str, *options: str) -> list[dict]:
    done = rlcorr("train", "--model", str(WARM_START), "--run", run, *options, runs_folder=folder, timeout=3600)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return runs.read_metrics(folder / "local" / run)


GROUPS = ("--prompts-per-step", "128", "--samples-per-prompt", "4", "--steps", "300")
"""GRPO and RLOO need several samples of a prompt."""


def learning(estimator: str, *algorithm: str) -> None:
    print("| algorithm | seed | greedy accuracy | steps | minutes | k3, smallest to largest | overhead of a step |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            options = ("--advantage.estimator", estimator, *algorithm, "--seed", str(seed))
            options += ("--stop-at-accuracy", str(TARGET), "--record-every", "1000")
            rows = trained(Path(folder), "r", *options)
            minutes = (time.perf_counter() - start) / 60
        k3 = [row["rollout_corr/k3_kl"] for row in rows]
        overhead = statistics.median(row["timing/overhead"] for row in rows)
        print(
            f"| {estimator} | {seed} | {rows[-1]['accuracy']:.0%} | {len(rows)} | {minutes:.1f} | "
            f"{min(k3):.0e} to {max(k3):.0e} | {overhead:.1%} |",
            flush=True,
        )


def play() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch) / "log"
        (folder / "runs").mkdir()
        for committed in (ROOT / "runs").glob("*/manifest.json"):
            (folder / "runs" / committed.parent.name).symlink_to(committed.parent)
        steps = folder / "runs" / "local" / "live"
        start = time.perf_counter()
        with running("play", "--port", "8600", "--run", "live", runs_folder=folder / "runs", log=log):
            wait_for("the address", lambda: url_in(log) is not None, log)
            with chromium() as browser, tab(browser) as page:
                page.set_default_timeout(120_000)
                while not _opens(page, str(url_in(log))):
                    time.sleep(0.1)
                page.wait_for_selector(".rl-picture .main-svg")
                print(f"warm make play: page with its pictures after {time.perf_counter() - start:.1f} s", flush=True)
            wait_for("a live step", lambda: bool(runs.list_steps(steps)), log)
            print(f"warm make play: first live step after {time.perf_counter() - start:.1f} s", flush=True)


def _opens(page, url: str) -> bool:
    from playwright.sync_api import Error

    try:
        page.goto(url)
    except Error:  # the server is not listening yet
        return False
    return True


def picture() -> None:
    with (
        serve(ROOT / "runs") as url,
        chromium() as browser,
        tab(browser, viewport={"width": 1440, "height": 860}) as page,
    ):
        page.goto(f"{url}/bench?run=kv_fp8_e5m2&preset=decoupled_token_is&is_upper=1.2")
        page.wait_for_selector("[data-picture=mask] .main-svg")
        settled(page)
        page.wait_for_timeout(1000)  # fonts
        page.screenshot(path=ROOT / "app" / "screenshot.png")
    print("wrote app/screenshot.png")


def smol_runs() -> None:
    importlib.import_module("bench_smol").smol_runs()


PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "ppo": (
        partial(learning, "gae"),
        "addition from the warm start, bfloat16 vLLM, three seeds: minutes to 90 % greedy accuracy",
    ),
    "grpo": (partial(learning, "grpo", *GROUPS), "the same with GRPO"),
    "rloo": (partial(learning, "rloo", *GROUPS), "the same with RLOO"),
    "play": (play, "a warm start of `make play`: seconds to the page, and to the first live step"),
    "smol_runs": (smol_runs, "what became of the recorded runs of SmolLM2-135M; seconds"),
    "picture": (picture, "the picture of the README"),
}
"""Name → what it runs, and what it measures."""
FILES = {path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")}


def main(names: list[str]) -> None:
    unknown = set(names) - set(PARTS) - FILES
    if unknown or not names:
        print("\n".join(f"{name:11} {text}" for name, (_, text) in PARTS.items()))
        print("\n".join(f"{name:11} {_first_line(name)}" for name in sorted(FILES)))
        sys.exit(f"unknown part {', '.join(sorted(unknown))}" if unknown else 0)
    for name in names:
        print(f"\n{name}", flush=True)
        (importlib.import_module(f"bench_{name}").main if name in FILES else PARTS[name][0])()


def _first_line(name: str) -> str:
    text = Path(__file__).with_name(f"bench_{name}.py").read_text(encoding="utf-8")
    return text.splitlines()[0].strip('"').partition("`: ")[2] or text.splitlines()[0].strip('"')


if __name__ == "__main__":
    main(sys.argv[1:])
