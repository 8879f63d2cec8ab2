"""`make attack`: the real program, attacked in generated ways. Nothing may be lost, invented or left half-written.

    make attack                                    every kind, ten minutes on two cores, twenty at most
    make attack ARGS="files bits --seed 7"         these kinds, with other random numbers
    make attack ARGS="files --seed 7 --only 12"    one attempt again

An attempt survives if the program gives a right result, or refuses with one sentence. It is wrong if there is a
traceback, a crash or a hang, if data is wrong or lost, if memory is out of proportion to the file, or if something
half-written is left. Two kinds run at a time, each in a process of its own. The exit status is 1 if anything is wrong.
"""

import argparse
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attempts import Attack

KINDS = {
    "kills": "training runs and imports, killed at any moment",
    "memory": "memory: row groups, a small file of many tokens, a server with large files",
    "writers": "two writers under one name",
    "disks": "full and read-only disks",
    "calls": "system calls that fail, in imports and recorders",
    "strangers": "runs and folders of strangers, and files that change while they are read",
    "vllm": "training runs with the vLLM engine, killed at any moment",
    "addresses": "addresses of pages and routes, over damaged runs",
    "uploads": "files that several sessions drop at once",
    "files": "damaged and hostile files, through `import` and `report`",
    "sessions": "forty sessions at once, and forty cut off",
    "numbers": "extreme batches, every preset and loss",
    "bits": "flipped bits in a recorded run",
}
"""Name, which is also that of the module attack_NAME.py → row of the table. The longest come first."""
LIMIT = 1800
"""Seconds of one kind on a machine that does much else. Every attempt has a limit of its own, which says what hangs."""


def attack_alone(kind: str, seed: int, only: int | None, results: Path) -> None:
    """Make the attempts of one kind in this process, and write what became of them."""
    attack = Attack(kind, seed, Path(os.environ["ATTACK_FOLDER"]), only)
    importlib.import_module(f"attack_{kind}").attack(attack)
    cpu = sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    results.write_text(json.dumps({"tried": attack.tried, "wrong": attack.wrong, "notes": attack.notes, "cpu": cpu}))


def attack_apart(kind: str, seed: int, only: int | None) -> dict[str, Any]:
    """Make the attempts of one kind in a process of its own, and return what became of them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack_", ignore_cleanup_errors=True) as scratch:
        folder, results = Path(scratch, "runs"), Path(scratch, "results")
        folder.mkdir()
        words = [sys.executable, __file__, kind, "--seed", str(seed), "--results", str(results)]
        words += [] if only is None else ["--only", str(only)]
        variables = os.environ | {"ATTACK_FOLDER": str(folder), "RLCORR_RUNS": str(folder), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words, env=variables, start_new_session=True)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        outcome = {"tried": 1, "wrong": [f"{kind}: the attack ended with {process.returncode}"], "notes": [], "cpu": 0}
        if results.is_file():
            outcome = json.loads(results.read_text())
    took = f"{time.monotonic() - began:.0f} s, {outcome['cpu']:.0f} s of the processor"
    print(f"{kind}: {outcome['tried']} tried, {len(outcome['wrong'])} wrong, {took}", flush=True)
    return outcome


def table(kinds: list[str], outcomes: list[dict[str, Any]]) -> str:
    rows = ["| attack | tried | survived | wrong |", "|---|---|---|---|"]
    for kind, outcome in zip(kinds, outcomes, strict=True):
        tried, wrong = outcome["tried"], len(outcome["wrong"])
        rows.append(f"| {KINDS[kind]} | {tried:,} | {tried - wrong:,} | {wrong} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack the program, and count what goes wrong.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"all by default: {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of the only attempt to make")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}. Known: {', '.join(KINDS)}.")
    if options.results:
        attack_alone(options.kinds[0], options.seed, options.only, options.results)
        return 0
    kinds, began = options.kinds or [*KINDS], time.monotonic()
    print(f"seed {options.seed}", flush=True)
    with ThreadPoolExecutor(2) as pool:
        outcomes = [*pool.map(lambda kind: attack_apart(kind, options.seed, options.only), kinds)]
    print(f"\n{table(kinds, outcomes)}\n\n{(time.monotonic() - began) / 60:.1f} minutes")
    wrong = [line for outcome in outcomes for line in outcome["wrong"]]
    print("\n".join([note for outcome in outcomes for note in outcome["notes"]] + wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
