"""verl: RLCORR_VERL=record writes the pairs of every step to a run, from before verl's correction.

RLCORR_VERL=helper puts `rlcorr.recorders.verl_helper` in the place of verl's helper, and helper,record does both. verl
loads this module by the entry point `verl.plugins`, before it imports functions from its helper. The module does
nothing unless RLCORR_VERL is set. To record, it wraps compute_rollout_correction_and_add_to_batch, which still does the
same. The name of the run is $RLCORR_RUN, or verl_1, verl_2, …. If there is such a run, record,continue adds to it, and
record alone takes the next free name.
Source: verl 0.9.1, trainer/ppo/rollout_corr_helper.py.
"""

import atexit
import functools
import importlib
import os
import sys
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.recorders import verl_helper
from rlcorr.recorders.recorder import LEFT_OUT, Recorder
from rlcorr.recorders.verl_helper import HELPER
from rlcorr.records import runs

VARIABLE = "RLCORR_VERL"
FUNCTION = "compute_rollout_correction_and_add_to_batch"
COLUMNS = (
    "prompts", "responses", "attention_mask", "response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob",
    "token_level_scores", "advantages",
)  # fmt: skip


def wrap(helper: Any, recording: Recorder) -> None:
    """Record every batch that `helper` corrects. If a run with this name exists, a warning says so."""
    correct = getattr(helper, FUNCTION)
    calls = 0

    def take(batch: Any) -> None:
        nonlocal calls
        if not calls:  # every process of verl imports the helper, but only one of them corrects
            recording.start()
            atexit.register(recording.close)
        calls += 1
        names = set(batch.batch.keys())
        tensors = {name: batch.batch[name] for name in COLUMNS if name in names}
        recording.add(step=batch.meta_info.get("global_steps", calls), batch=tensors)

    @functools.wraps(correct)
    def recorded(batch: Any, *arguments: Any, **options: Any) -> Any:
        recording.attempt(lambda: take(batch), LEFT_OUT)
        return correct(batch, *arguments, **options)

    setattr(helper, FUNCTION, recorded)


def install(words: set[str]) -> None:
    """Do what the words say. Raises `UsageError` for a word or a name that cannot be used."""
    if unknown := words - {"helper", "record", "continue"}:
        raise UsageError(f"{VARIABLE}={min(unknown)!r} is not known; known: helper, record, continue")
    if "helper" in words:
        sys.modules[HELPER] = verl_helper
    if "record" in words:
        name = os.environ.get("RLCORR_RUN", "").replace("/", "_") or runs.free_name("verl")  # often project/experiment
        wrap(importlib.import_module(HELPER), Recorder(name, continued="continue" in words))


try:
    install(set(filter(None, os.environ.get(VARIABLE, "").split(","))))
except Exception as error:  # verl hides the exceptions of a plugin, and runs without it; so any of them is printed
    print(f"rlcorr: nothing is recorded: {str(error).rstrip('.')}. verl runs as it is.", file=sys.stderr)
