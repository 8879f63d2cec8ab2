"""What verl loads of us by the entry point `verl.plugins`: nothing, unless RLCORR_VERL says so.

    RLCORR_VERL=helper    `rlcorr.systems.verl_helper` takes the place of verl.trainer.ppo.rollout_corr_helper

verl loads plugins at the start of `import verl`, before anybody has taken a function out of its helper, and hides what
a plugin raises: so what is wrong with RLCORR_VERL is printed. Several words are separated by commas.
"""

import importlib
import os
import sys

VARIABLE = "RLCORR_VERL"
HELPER = "verl.trainer.ppo.rollout_corr_helper"
WORDS = ("helper",)


def install(words: str) -> list[str]:
    """Do what the words say; what is wrong with them, a sentence each.

    >>> install("hepler")
    ["RLCORR_VERL='hepler' is not known; known: helper. verl runs as it is."]
    """
    wrong = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        if word == "helper":
            sys.modules[HELPER] = importlib.import_module("rlcorr.systems.verl_helper")
        else:
            wrong.append(f"{VARIABLE}={word!r} is not known; known: {', '.join(WORDS)}. verl runs as it is.")
    return wrong


for sentence in install(os.environ.get(VARIABLE, "")):
    print(f"rlcorr: {sentence}", file=sys.stderr)
