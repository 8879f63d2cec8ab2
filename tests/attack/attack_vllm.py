"""Training runs with the vLLM engine, killed at any moment and resumed. The engine is not in the checkpoint."""

import importlib.util

from attempts import Attack
from killing import options, problem_of_kills, train_whole

import rlcorr.train.loop  # noqa: F401 - what is forked from this process has it

KILLED = 4


def attack(attack: Attack) -> None:
    """Kill training runs, resume them, and compare them with one that was not killed."""
    if importlib.util.find_spec("vllm") is None:
        attack.notes.append("vLLM is not installed, so no run with it was killed.")
        return
    words, log = [*options("vllm"), "--rollout.dtype", "float32"], attack.folder / "log"
    whole = train_whole(words, "whole", log)
    for number, chance in attack.attempts(KILLED):
        attack.judge(number, "vllm", problem_of_kills(chance, words, f"r{number}", whole, log))
