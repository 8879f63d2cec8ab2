"""Record the log-prob pairs of any training run while it runs: `Recorder`, and hooks for TRL, verl and SkyRL."""

from rlcorr.recorders.recorder import Recorder

__all__ = ["Recorder"]
