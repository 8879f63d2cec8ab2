"""Two corrections of one batch, or one correction of two batches: what moves with a bound of either."""

from collections.abc import Sequence

from components.live_part import ANSWER, Moving, Note, Number, Picture
from data import corrections
from state.fields import Bound
from text import compare as say
from text import phrases

from live import strips
from live.strips import PictureStrip
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import Agreement, agreement, metric_pairs
from rlcorr.bounds import at_threshold
from rlcorr.figures import comparison, correction
from rlcorr.strips.agreement import agreement_strip
from rlcorr.strips.packing import Package, package_of
from rlcorr.strips.strip import strip

HEADER = ["metric", "A", "B", "B − A"]
EXPLAINED = {"A": "explained_a", "B": "explained_b"}
HEADLINES = "headlines"
Report = dict[str, float]


def two_corrections(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> Moving:
    """Raises `UsageError` where a correction does."""
    of_a, of_b = corrections.corrected(batch, a), corrections.corrected(batch, b)
    shared = comparison.mask_map(batch, of_a[0], of_b[0])
    weights = {
        f"weights_{name}": Picture(
            correction.weight_histogram(batch, of[0], config), say.EACH.format(name=name), phrases.WEIGHTS
        )
        for name, config, of in (("A", a, of_a), ("B", b, of_b))
    }
    agreeing = agreement(batch, of_a[0], of_b[0])
    explained = {EXPLAINED[name]: f"{name}. {config.explain()}" for name, config in (("A", a), ("B", b))}
    return Moving(
        numbers=_agreement(agreeing),
        rows=[{"shared": Picture(shared, "Tokens trained on", say.MASKS)}, weights],
        texts=explained | {ANSWER: say.answer(agreeing)},
        tables={HEADLINES: _headlines(of_a[1], of_b[1])},
        notes=[_METRICS],
    )


def two_corrections_strip(
    batch: TokenBatch, moving: CorrectionConfig, still: CorrectionConfig, name: str, b: Bound, places: tuple[float, ...]
) -> Package:
    """What moves in `two_corrections` with a bound of A or of B, whose name it takes, at every place."""
    made = strip(batch, moving, places, rule=b.rule, side=b.side)
    result, of_still = corrections.corrected(batch, still)
    agreeing = agreement_strip(batch, moving, result, places, moving_is_a=name == "A", rule=b.rule, side=b.side)
    of_moving = corrections.corrected(batch, moving)[1]
    reports = [of_moving | at for at in strips.numbers_at(made)]
    pairs = [(at, of_still) if name == "A" else (of_still, at) for at in reports]
    histogram = {key: array for key, array in package_of(made).arrays.items() if key.startswith("weights/")}
    texts = {
        EXPLAINED[name]: [f"{name}. {at_threshold(moving, place, b.rule, b.side).explain()}" for place in places],
        ANSWER: [say.answer(at) for at in agreeing.agreements],
    }
    return strips.package(
        histogram | agreeing.cells.arrays(),
        [_agreement(at) for at in agreeing.agreements],
        texts,
        {"shared": PictureStrip(cells=True), f"weights_{name}": strips.histogram("weights", made.weights)},
        {HEADLINES: [_headlines(*of_place) for of_place in pairs]},
    )


def two_batches(a: TokenBatch, b: TokenBatch, config: CorrectionConfig) -> Moving:
    """Raises `UsageError` where the correction does."""
    of_a, of_b = (corrections.corrected(batch, config)[1] for batch in (a, b))
    tails = {"tails": Picture(comparison.tails(a, b), "The tail", say.TAIL)}
    explained, tables = {EXPLAINED["A"]: config.explain()}, {HEADLINES: _headlines(of_a, of_b)}
    return Moving({}, [tails], texts=explained, tables=tables, notes=[_METRICS])


def two_batches_strip(
    batches: Sequence[TokenBatch], config: CorrectionConfig, b: Bound, places: tuple[float, ...]
) -> Package:
    """What moves in `two_batches`, at every place."""
    reports = []
    for batch in batches:
        made, still = strip(batch, config, places, rule=b.rule, side=b.side), corrections.corrected(batch, config)[1]
        reports.append([still | at for at in strips.numbers_at(made)])
    explained = [at_threshold(config, place, b.rule, b.side).explain() for place in places]
    tables = {HEADLINES: [_headlines(*at) for at in zip(*reports, strict=True)]}
    return strips.package({}, [{}] * len(places), {EXPLAINED["A"]: explained}, {}, tables)


def _agreement(masks: Agreement) -> dict[str, Number]:
    return {label: Number(text, say.AGREEMENT[label]) for label, text in say.agreement(masks).items()}


def _headlines(a: Report, b: Report) -> str:
    """A table of the metrics that say most, in the order of HEADLINES."""
    pairs = {pair.key: pair for pair in metric_pairs(a, b)}
    shown = [pairs[key] for key in say.HEADLINES if key in pairs]
    return say.pairs_table(HEADER, say.metric_rows(shown))


_METRICS = Note(f"**Metrics.** {say.METRICS}", HEADLINES)
