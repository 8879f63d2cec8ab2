"""The Tokens view: the outcome of each token while a bound is dragged, and the sentence about the correction."""

from components.live_part import LiveContent, Note
from data import corrections
from data.bounds import Bound

from live import strips
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.bounds import at_threshold
from rlcorr.strips.packing import Package, PictureStrip
from rlcorr.strips.strip import token_cells

EXPLAINED = "explained"


def sentence(config: CorrectionConfig) -> LiveContent:
    """Return the content of the live part: the sentence about the correction."""
    return LiveContent({}, [], texts={EXPLAINED: config.explain()}, notes=[Note("", EXPLAINED)])


def fates_strip(
    batch: TokenBatch, config: CorrectionConfig, b: Bound, slider_values: tuple[float, ...], key: str
) -> Package:
    """Return the fate of every token for every slider value, for the token text with this key."""
    cells = token_cells(batch, config, slider_values, b.id)
    texts = {EXPLAINED: [at_threshold(config, value, b.id).explain() for value in slider_values]}
    return strips.package(cells.arrays(), [{}] * len(slider_values), texts, {key: PictureStrip(cells=True)})


def strip_key(
    identity: corrections.Identity, config: CorrectionConfig, b: Bound, slider_values: tuple[float, ...]
) -> str:
    """Return a key of the strip, different from the key of the bench's strip."""
    return f"tokens {strips.strip_key(identity, config, b, slider_values)}"
