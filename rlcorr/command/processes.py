"""Trainings of a study side by side on this machine, a process each."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from rlcorr.command.study_training import train_arm
from rlcorr.errors import UsageError
from rlcorr.records.study import Arm, Study
from rlcorr.records.trained_arms import file_of, write_trained

TRIES = 3
"""Of a training whose process is killed."""
SPAWN = multiprocessing.get_context("spawn")


def in_processes(study: Study, arms: Sequence[Arm], workers: int) -> Iterator[Arm]:
    """Train all of them, `workers` at once, and give each as soon as its file is there. Raises `UsageError` where one
    ends by itself without a file, or is killed `TRIES` times; whatever ends this ends the trainings too."""
    waiting, tries, running = list(reversed(arms)), dict.fromkeys(arms, 0), dict[int, tuple[BaseProcess, Arm]]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                arm = waiting.pop()
                process = SPAWN.Process(target=_train_into_file, args=(study, arm))
                process.start()
                running[process.sentinel] = process, arm
            for sentinel in wait(list(running)):
                process, arm = running.pop(int(sentinel))  # pyright: ignore[reportArgumentType]
                process.join()
                if process.exitcode == 0:
                    yield arm
                    continue
                tries[arm] += 1
                if (process.exitcode or 0) > 0 or tries[arm] == TRIES:
                    raise UsageError(f"{arm.label} ended with code {process.exitcode}; see {_log(study, arm)}.")
                waiting.append(arm)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _train_into_file(study: Study, arm: Arm) -> None:
    path = _log(study, arm)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    write_trained(study, arm, train_arm(study, arm))


def _log(study: Study, arm: Arm) -> str:
    return str(file_of(study, arm).with_suffix(".log"))
