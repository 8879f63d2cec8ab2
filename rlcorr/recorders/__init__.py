"""What records the pairs of somebody's training while it runs: `Recorder`, and hooks on it for TRL, verl and SkyRL."""

from rlcorr.recorders.recorder import Recorder

__all__ = ["Recorder"]
