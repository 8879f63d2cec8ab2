"""What two runs must have in common to be the same one, bit for bit."""

from pathlib import Path
from typing import Any

from rlcorr.records import runs
from rlcorr.records.held_out import FILE


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, bytes], bytes]:
    """Return the metrics without times, the recorded pairs and answers to held-out prompts, the trained weights."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith(("timing/", "elapsed"))}
        for row in runs.read_metrics(run)
    ]
    pairs = {path.name: path.read_bytes() for path in sorted((run / "steps").glob("*.parquet"))}
    pairs[FILE] = (run / FILE).read_bytes()
    return rows, pairs, (run / "checkpoint" / "model.safetensors").read_bytes()
