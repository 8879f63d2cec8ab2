"""The Tokens view: what becomes of each token while a bound is dragged, and the sentence about the correction."""

from components.live_part import Moving, Note
from data import corrections
from state.fields import Bound

from live import strips
from live.strips import PictureStrip
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.bounds import at_threshold
from rlcorr.strips.packing import Package
from rlcorr.strips.strip import token_cells

EXPLAINED = "explained"


def sentence(config: CorrectionConfig) -> Moving:
    """What moves in the live part itself."""
    return Moving({}, [], texts={EXPLAINED: config.explain()}, notes=[Note("", EXPLAINED)])


def fates(batch: TokenBatch, config: CorrectionConfig, b: Bound, places: tuple[float, ...], text: str) -> Package:
    """The fate of every token at every place, for the text with this key."""
    cells = token_cells(batch, config, places, rule=b.rule, side=b.side)
    said = {EXPLAINED: [at_threshold(config, place, b.rule, b.side).explain() for place in places]}
    return strips.package(cells.arrays(), [{}] * len(places), said, {text: PictureStrip(cells=True)})


def known_by(of: corrections.Identity, config: CorrectionConfig, b: Bound, places: tuple[float, ...]) -> str:
    """As `strips.known_by`, but not of the bench."""
    return f"tokens {strips.known_by(of, config, b, places)}"
