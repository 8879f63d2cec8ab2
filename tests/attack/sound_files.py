"""Sound files of every format that is read."""

from pathlib import Path

import torch
from hostile import saved
from pair_files import FILES

GOLDEN = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"


def sound_files() -> dict[str, bytes]:
    """Return name → content. Each is imported without any option."""
    files = dict(FILES)
    masked = {name: torch.full((2, 3), -1.0) for name in ("rollout_log_probs", "old_log_probs")}
    masked["response_mask"] = torch.ones(2, 3)
    files["masked.pt"] = files["masked.pth"] = saved(masked)
    files["global_step_7.pkl"] = (GOLDEN / "skyrl" / "global_step_7_training_input.pkl").read_bytes()
    files["global_step_7.pickle"] = files["global_step_7.pkl"]
    return files
