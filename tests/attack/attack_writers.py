"""Two processes that write one run at the same time: one wins, and the other says so in one sentence."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import transformers.models.qwen2.modeling_qwen2  # noqa: F401 - what is forked from this process has it
from attempts import Attack, one_sentence
from forked import Forked, finished, verb
from killing import PATIENCE, STEPS, options
from pair_files import arrays, npz

import rlcorr.train.loop  # noqa: F401
from rlcorr.records import runs
from rlcorr.records.verify import verify

PAIRS = 16
"""Attempts of each kind."""


@dataclass(frozen=True)
class Commands:
    """Two commands, without the name of the run, and what makes it beforehand, if anything does."""

    first: Sequence[str]
    second: Sequence[str]
    before: Sequence[str] = ()


def commands(files: Path) -> dict[str, Commands]:
    train = ("train", *options("transformers"), "--checkpoint-every", "1")
    bring = ("import", str(files))
    more = ("train", "--steps", str(STEPS + 3))
    short = ("train", *options("transformers"))
    return {
        "train, train": Commands(train, train),
        "import, import": Commands(bring, bring),
        "import, train": Commands(bring, train),
        "resume, train": Commands(more, train, short),
        "resume, resume": Commands(more, more, short),
        "resume, import": Commands(more, bring, short),
    }


def attack(attack: Attack) -> None:
    """Start two processes under one name, one a moment after the other."""
    log = attack.folder / "log"
    files = write_files(attack.folder / "files")
    for kind, pair in commands(files).items():
        kept: Path | None = None
        for number, chance in attack.attempts(PAIRS if kind == "import, import" else PAIRS // 4):
            if pair.before and kept is None:
                kept = made_before(pair.before, attack.folder / "kept", log)
            attack.judge(number, kind, problem_of(chance, pair, f"w{number}", kept, attack.folder))


def write_files(folder: Path) -> Path:
    """Write a folder with the pairs of some steps, which take a moment to read."""
    folder.mkdir()
    for step in range(8):
        (folder / f"step_{step}.npz").write_bytes(npz(**arrays()))
    return folder


def made_before(words: Sequence[str], kept: Path, log: Path) -> Path:
    """Make a finished run, and keep it to be copied."""
    code, error = finished(*named(words, "before"), log=log)
    assert code == 0, error
    shutil.rmtree(kept, ignore_errors=True)
    (runs.LOCAL / "before").rename(kept)
    return kept


def named(words: Sequence[str], run: str) -> list[str]:
    """Return the words with the name of the run: after --resume if the number of steps is all that is said."""
    return [words[0], "--resume" if words[1] == "--steps" else "--run", run, *words[1:]]


def problem_of(chance: Random, pair: Commands, run: str, kept: Path | None, folder: Path) -> str | None:
    """Start both, and return what is wrong with their ends or with the run."""
    path = runs.LOCAL / run
    if kept is not None:
        shutil.copytree(kept, path)
    words = [named(pair.first, run), named(pair.second, run)]
    chance.shuffle(words)
    both: list[Forked] = []
    for number, command in enumerate(words):
        both.append(verb(*command, log=folder / f"log{number}"))
        time.sleep(chance.random() * chance.choice([0, 0.05, 1]))  # chooses the moment
    codes = [process.wait(PATIENCE) for process in both]
    errors = [process.error() for process in both]
    for code, error in zip(codes, errors, strict=True):
        if problem := one_sentence(code, error):
            return problem
    report = verify(path)
    steps = [row["step"] for row in runs.read_metrics(path)]
    config = runs.read_manifest(path).config
    shutil.rmtree(path)
    if sorted(code or 0 for code in codes) != [0, 2]:
        return f"the exit codes are {codes}: {errors}"
    if report.problems or report.status != "complete" or len(set(steps)) != len(steps):
        return f"{report.status}, {report.problems}, rows of the steps {steps}"
    expected = config.get("steps", len(steps))
    return None if len(steps) == expected else f"{len(steps)} rows of {expected} steps"
