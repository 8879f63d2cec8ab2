"""verl: RLCORR_VERL=record writes the pairs of every step to a run, from before verl's correction.

RLCORR_VERL=helper puts `rlcorr.recorders.verl_helper` in the place of verl's helper, and helper,record does both. verl
loads this module by the entry point `verl.plugins`, before it imports functions from its helper. The module does
nothing unless RLCORR_VERL is set. To record, it wraps compute_rollout_correction_and_add_to_batch, which still does the
same. The name of the run is $RLCORR_RUN, or verl_1, verl_2, ….
Source: verl 0.9.1, trainer/ppo/rollout_corr_helper.py.
"""

import atexit
import functools
import importlib
import os
import sys
from typing import Any

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


def wrap(helper: Any, recorder: Recorder | None = None) -> None:
    """Record every batch that `helper` corrects. If a run with this name exists, a warning says so."""
    correct = getattr(helper, FUNCTION)
    recording = recorder or Recorder(os.environ.get("RLCORR_RUN") or runs.free_name("verl"))
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


for word in sorted(filter(None, os.environ.get(VARIABLE, "").split(","))):  # helper comes before record, which wraps it
    if word == "helper":
        sys.modules[HELPER] = verl_helper
    elif word == "record":
        wrap(importlib.import_module(HELPER))
    else:  # verl hides the exceptions of a plugin, so this is printed
        print(f"rlcorr: {VARIABLE}={word!r} is not known; known: helper, record. verl runs as it is.", file=sys.stderr)
