"""What the Start page drags by itself: what one rule leaves of one step, of what the bench shows."""

from browser.live_part import Moving
from data import corrections

from moving.bench import bench
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.preset_parts import Preset

HEIGHT = 240
SHOWN = ("Kept tokens", "Sequences touched", "ESS of the kept")


def played(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, chosen: Preset) -> Moving:
    """Raises `UsageError` where the correction does."""
    whole = bench(of, batch, config, chosen)
    pictures = {key: whole.pictures[key] for key in ("statistic", "mask")}
    for picture in pictures.values():
        picture.figure.layout.height = HEIGHT
    return Moving({label: whole.numbers[label] for label in SHOWN}, [pictures])
