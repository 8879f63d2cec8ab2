"""verl: its configuration both ways, its dumps, and a drop-in for its helper."""

from rlcorr.systems.verl.config import from_verl, from_verl_with_loss, to_verl

__all__ = ["from_verl", "from_verl_with_loss", "to_verl"]
