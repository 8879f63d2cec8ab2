"""How the lessons read a recorded step. Lesson 00 spells it out."""

from rlcorr import TokenBatch
from rlcorr.records import runs


def load(name: str, n: int = -1) -> TokenBatch:
    """The n-th recorded step of a run, by default the last; log-probs in float64, so that differences are exact."""
    run = runs.find_run(name)
    batch = runs.read_step(run, runs.list_steps(run)[n]).batch
    return batch.replace(**{key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")})
