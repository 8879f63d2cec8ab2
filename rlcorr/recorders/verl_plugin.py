"""The plugin that verl loads by the entry point `verl.plugins`. It does nothing unless RLCORR_VERL is set.

    RLCORR_VERL=helper    `rlcorr.recorders.verl_helper` replaces verl.trainer.ppo.rollout_corr_helper
    RLCORR_VERL=record    the pairs of every step are recorded (`rlcorr.recorders.verl`)

Several words are separated by commas. verl loads plugins at the start of `import verl`, before it imports functions
from its helper. It hides the exceptions of a plugin, so mistakes in RLCORR_VERL are printed.
"""

import importlib
import os
import sys

from rlcorr.recorders import verl_helper
from rlcorr.recorders.verl_helper import HELPER

VARIABLE = "RLCORR_VERL"
WORDS = ("helper", "record")


def install(words: str) -> list[str]:
    """Install what the words name, and return one sentence per unknown word.

    >>> install("hepler")
    ["RLCORR_VERL='hepler' is not known; known: helper, record. verl runs as it is."]
    """
    problems = []
    for word in sorted(filter(None, (part.strip() for part in words.split(",")))):  # helper comes before record
        if word == "helper":
            sys.modules[HELPER] = verl_helper
        elif word == "record":
            from rlcorr.recorders import verl

            verl.wrap(importlib.import_module(HELPER))
        else:
            problems.append(f"{VARIABLE}={word!r} is not known; known: {', '.join(WORDS)}. verl runs as it is.")
    return problems


for sentence in install(os.environ.get(VARIABLE, "")):
    print(f"rlcorr: {sentence}", file=sys.stderr)
