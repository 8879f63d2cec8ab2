"""What the Start page drags by itself: what one rule leaves of one step, of what the bench shows."""

from components.live_part import Moving
from data import corrections

from live.bench import numbers_of, pictures_of
from rlcorr import CorrectionConfig, TokenBatch

HEIGHT = 240
SHOWN = ("Kept tokens", "Sequences touched", "ESS of the kept")


def played(batch: TokenBatch, config: CorrectionConfig) -> Moving:
    """Raises `UsageError` where the correction does."""
    result, report = corrections.corrected(batch, config)
    drawn, numbers = pictures_of(batch, result, config), numbers_of(report)
    pictures = {key: drawn[key] for key in ("statistic", "mask")}
    for picture in pictures.values():
        picture.figure.layout.height = HEIGHT
    return Moving({label: numbers[label] for label in SHOWN}, [pictures])
