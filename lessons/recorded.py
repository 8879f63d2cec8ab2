"""How the lessons read a recorded step. Lesson 00 spells it out."""

from rlcorr import TokenBatch
from rlcorr.records import runs


def load(name: str, n: int = -1) -> TokenBatch:
    """Read the n-th recorded step of a run, by default the last; in float64, so that differences are exact."""
    run = runs.find_run(name)
    batch = runs.read_step(run, runs.list_steps(run)[n]).batch
    pairs = ("old_log_probs", "rollout_log_probs", "sampled_log_probs")  # few runs have the last one
    return batch.replace(**{key: batch.tensors()[key].double() for key in pairs if key in batch.tensors()})
