"""verl: its configuration both ways."""

from rlcorr.systems.verl.config import from_verl, from_verl_with_loss, to_verl

__all__ = ["from_verl", "from_verl_with_loss", "to_verl"]
