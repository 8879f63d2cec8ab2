"""Record the log-prob pairs of any training run while it runs: `Recorder`, and hooks for TRL, verl and SkyRL."""

import os
import sys

from rlcorr.errors import MissingExtra

try:
    from rlcorr.recorders.recorder import Recorder
except MissingExtra as error:
    if os.environ.get("RLCORR_VERL"):  # verl hides the exceptions of a plugin
        print(f"rlcorr: nothing is recorded: {error} verl runs as it is.", file=sys.stderr)
    raise

__all__ = ["Recorder"]
