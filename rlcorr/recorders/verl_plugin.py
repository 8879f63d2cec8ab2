"""What verl loads of us by the entry point `verl.plugins`: nothing, unless RLCORR_VERL says so.

    RLCORR_VERL=helper    `rlcorr.systems.verl.helper` takes the place of verl.trainer.ppo.rollout_corr_helper
    RLCORR_VERL=record    the pairs of every step are recorded (`rlcorr.recorders.verl`)

verl loads plugins at the start of `import verl`, before anybody has taken a function out of its helper, and hides what
a plugin raises: so what is wrong with RLCORR_VERL is printed. Several words are separated by commas.
"""

import importlib
import os
import sys

VARIABLE = "RLCORR_VERL"
HELPER = "verl.trainer.ppo.rollout_corr_helper"
WORDS = ("helper", "record")


def install(words: str) -> list[str]:
    """Do what the words say; what is wrong with them, a sentence each.

    >>> install("hepler")
    ["RLCORR_VERL='hepler' is not known; known: helper, record. verl runs as it is."]
    """
    wrong = []
    for word in sorted(filter(None, (part.strip() for part in words.split(",")))):  # helper comes before record
        if word == "helper":
            from rlcorr.systems.verl import helper

            sys.modules[HELPER] = helper
        elif word == "record":
            from rlcorr.recorders import verl

            verl.wrap(importlib.import_module(HELPER))
        else:
            wrong.append(f"{VARIABLE}={word!r} is not known; known: {', '.join(WORDS)}. verl runs as it is.")
    return wrong


for sentence in install(os.environ.get(VARIABLE, "")):
    print(f"rlcorr: {sentence}", file=sys.stderr)
