"""A process in a namespace of its own, which mounts a small disk for each attempt, and fills it with a command."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from random import Random

import transformers.models.qwen2.modeling_qwen2  # noqa: F401 - what is forked from this process has it
from attempts import one_sentence
from dropped import drop_onto_disk
from forked import Forked, finished
from pair_files import random_npz
from tiny import save_tiny_model

import rlcorr.train.loop  # noqa: F401
from rlcorr.records import runs
from rlcorr.records.verify import verify

DISK, FOLDER = Path(os.environ["DISK"]), Path(sys.argv[1])
KB = 1000
TRAIN = (
    *("--rollout.engine", "transformers", "--steps", "100000", "--record-every", "1", "--prompts-per-step", "4"),
    *("--samples-per-prompt", "2", "--eval-prompts", "4", "--eval-every", "100000", "--checkpoint-every", "0"),
    *("--no-save-model", "--no-tensorboard"),
)


def mounted(size: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(DISK)], check=True)
    (DISK / "local").mkdir()


def read_only() -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(DISK)], check=True)


def fill(size: int) -> None:
    (DISK / "filling").write_bytes(bytes(max(size, 0)))


def problem_of_import(chance: Random, *, ro: bool) -> tuple[str, str | None]:
    """Import a small file, and then some files that do not fit."""
    log, files, large = FOLDER / "log", FOLDER / "small.npz", FOLDER / "large"
    size = chance.randint(60, 900) * KB
    mounted(size)
    code, error = finished("import", str(files), "--run", "earlier", log=log)
    assert code == 0, error
    if ro:
        read_only()
    code, error = finished("import", str(large), "--run", "later", log=log)
    problem = one_sentence(code, error) or ("it succeeded" if ro and code == 0 else None)
    there = {"earlier", "later"} if code == 0 else {"earlier"}
    problem = problem or problem_of_runs(there)
    if not ro and not problem:
        code, error = finished("import", str(files), "--run", "again", log=log)
        problem = one_sentence(code, error) or problem_of_runs(there | ({"again"} if code == 0 else set()))
    return f"import onto {size:,} bytes", problem


def problem_of_training(chance: Random, *, ro: bool) -> tuple[str, str | None]:
    """Train until the disk is full."""
    size, log = chance.randint(40, 400) * KB, FOLDER / "log"
    mounted(size)
    if ro:
        read_only()
    code, error = finished("train", "--model", str(FOLDER / "model"), "--run", "mine", *TRAIN, log=log)
    problem = one_sentence(code, error) or ("it ended as if it had room" if code == 0 else None)
    path = DISK / "local" / "mine"
    if problem or not (path / "manifest.json").is_file():
        return f"train on {size:,} bytes", problem
    report = verify(path)
    if report.readable_steps < report.recorded_steps or report.metric_rows < report.recorded_steps - 1:
        problem = str(report)
    if [*path.rglob("*.tmp")]:
        problem = "a temporary file is left behind"
    return f"train on {size:,} bytes", problem


def problem_of_drop(chance: Random, *, ro: bool) -> tuple[str, str | None]:
    """Drop files onto the page of a server whose folder for uploads is on the disk."""
    size = chance.randint(60, 900) * KB
    mounted(size)
    process = Forked(lambda: drop_onto_disk(FOLDER / "small.npz", FOLDER / "large", DISK, ro), FOLDER / "log")
    code = process.wait(120)
    what = f"drop onto {size:,} bytes"
    return what, None if code == 0 else f"Traceback or wrong: {process.printed()[-500:]} {process.error()[-1500:]}"


def problem_of_runs(expected: set[str]) -> str | None:
    """Return what is wrong with the runs on the disk: these must be there and sound, and nothing half-written."""
    names = {path.name for path in (DISK / "local").iterdir()}
    if names != expected:
        return f"{sorted(names)} instead of {sorted(expected)}"
    problems = [problem for name in names for problem in verify(DISK / "local" / name).problems]
    return str(problems) if problems else None


KINDS = {"import": problem_of_import, "train": problem_of_training, "drop": problem_of_drop}


def main() -> None:
    save_tiny_model(FOLDER / "model")
    (FOLDER / "small.npz").write_bytes(random_npz(2, 100))
    (FOLDER / "large").mkdir()
    for step in range(6):
        (FOLDER / "large" / f"step_{step}.npz").write_bytes(random_npz(30, 600, step))
    assert runs.LOCAL == DISK / "local"
    for line in sys.stdin:
        job = json.loads(line)
        chance, ro = Random(job["seed"]), job["kind"] == "read-only"
        kind = chance.choice([*KINDS]) if ro else job["kind"]
        what, problem = KINDS[kind](chance, ro=ro)
        subprocess.run(["umount", "--lazy", str(DISK)], check=True)
        print(
            json.dumps({"number": job["number"], "what": f"{what}{' (read-only)' * ro}", "problem": problem}),
            flush=True,
        )


if __name__ == "__main__":
    random.seed(0)
    main()
