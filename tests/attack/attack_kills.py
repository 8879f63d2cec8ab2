"""Training runs and imports that are killed at any moment, and continued or repeated."""

import os
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import transformers.models.qwen2.modeling_qwen2  # noqa: F401 - what is forked from this process has it
from attempts import Attack, one_sentence
from forked import finished, verb
from killing import options, problem_of_kills, train_whole
from pair_files import random_npz

import rlcorr.train.loop  # noqa: F401
from rlcorr.records import runs
from rlcorr.records.verify import verify

VARIANTS: dict[str, tuple[str, ...]] = {
    "in step": (),
    "ahead of its updates": ("--rollout.staleness", "2", "--rollout.asynchronous"),
    "rare checkpoints": ("--checkpoint-every", "3", "--record-every", "2"),
}
KILLED, IMPORTS = 14, 30
FILES, ROWS, WIDTH = 12, 60, 300


def attack(attack: Attack) -> None:
    """Kill training runs and imports."""
    log = attack.folder / "log"
    kills = [*attack.attempts(KILLED)]
    wholes: dict[str, Any] = {}
    for number, chance in kills:
        name = [*VARIANTS][number % len(VARIANTS)]
        words = [*options("transformers"), *VARIANTS[name]]
        if name not in wholes:
            wholes[name] = train_whole(words, f"whole {len(wholes)}", log)
        attack.judge(number, name, problem_of_kills(chance, words, f"r{number}", wholes[name], log))
    imports = [*attack.attempts(IMPORTS)]
    files = write_files(attack.folder / "files") if imports else attack.folder
    began = time.monotonic()
    if imports:
        finished("import", str(files), "--run", "sound", log=log)
    whole = time.monotonic() - began
    for number, chance in imports:
        attack.judge(number, "an import", problem_of_import(chance, files, f"i{number}", whole, log))


def write_files(folder: Path) -> Path:
    """Write the pairs of some steps, a file each."""
    folder.mkdir()
    for step in range(FILES):
        (folder / f"step_{step}.npz").write_bytes(random_npz(ROWS, WIDTH, step))
    return folder


def problem_of_import(chance: Random, files: Path, run: str, whole: float, log: Path) -> str | None:
    """Kill an import, repeat it, and return what is wrong. `whole` are the seconds of one that is not killed."""
    path = runs.LOCAL / run
    process = verb("import", str(files), "--run", run, log=log)
    time.sleep(chance.random() * 1.1 * whole)  # chooses the moment
    process.kill()
    if path.exists() and verify(path).problems:
        return f"a part of a run after the kill: {verify(path).problems}"
    for hidden in runs.LOCAL.glob(".*"):
        os.utime(hidden, (0, 0))  # the next import deletes what has been left for a minute
    # Whatever it is named, the next import deletes them; the name of one that was killed is free.
    following = f"{run}_next" if path.exists() else run
    code, error = finished("import", str(files), "--run", following, log=log)
    if code != 0:
        return one_sentence(code, error) or f"the next import is refused: {error}"
    report = verify(path)
    hidden = [other.name for other in runs.LOCAL.glob(".*")]
    for other in {run, following}:
        shutil.rmtree(path.with_name(other))
    if report.problems or report.readable_steps != FILES:
        return f"{report.readable_steps} steps, {report.problems}"
    return f"left behind: {hidden}" if hidden else None
