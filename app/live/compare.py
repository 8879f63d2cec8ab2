"""Two corrections of one batch, or one correction of two batches, and what changes with their bounds."""

from collections.abc import Sequence

from components.live_part import ANSWER, LiveContent, Note, Number, Picture
from data import corrections
from data.bounds import Bound
from text import compare as say
from text import phrases

from live import strips
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import Agreement, agreement, metric_pairs
from rlcorr.bounds import at_threshold
from rlcorr.figures import comparison, correction
from rlcorr.strips.agreement import agreement_strip
from rlcorr.strips.packing import Package, PictureStrip, arrays_of
from rlcorr.strips.strip import strip

HEADER = ["metric", "A", "B", "B − A"]
EXPLAINED = {"A": "explained_a", "B": "explained_b"}
HEADLINES = "headlines"
Report = dict[str, float]


def two_corrections(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> LiveContent:
    """Return the comparison of two corrections of one batch. Raises `UsageError` if a correction does."""
    (result_a, report_a), (result_b, report_b) = corrections.corrected(batch, a), corrections.corrected(batch, b)
    shared = comparison.mask_map(batch, result_a, result_b, (a, b))
    weights = {
        f"weights_{name}": Picture(
            correction.weight_histogram(batch, result, config), say.WEIGHTS_IN.format(name=name), phrases.WEIGHTS
        )
        for name, config, result in (("A", a, result_a), ("B", b, result_b))
    }
    masks = agreement(batch, result_a, result_b)
    explained = {EXPLAINED[name]: f"{name}. {config.explain()}" for name, config in (("A", a), ("B", b))}
    return LiveContent(
        numbers=_agreement(masks),
        rows=[weights | {"shared": Picture(shared, say.TOKENS, say.MASKS)}],
        texts=explained | {ANSWER: say.answer(masks)},
        tables={HEADLINES: _headlines(report_a, report_b)},
        notes=[*(Note("", text) for text in EXPLAINED.values()), _METRICS],
    )


def two_corrections_strip(
    batch: TokenBatch,
    varied: CorrectionConfig,
    fixed: CorrectionConfig,
    name: str,
    b: Bound,
    slider_values: tuple[float, ...],
) -> Package:
    """Return what changes in `two_corrections`, for every value of the slider of this bound.

    Args:
        batch: The batch.
        varied: The configuration of the bound.
        fixed: The other configuration.
        name: Which of the two is varied: A or B.
        b: The bound.
        slider_values: The values of its slider.
    """
    bound_strip = strip(batch, varied, slider_values, b.id)
    fixed_result, fixed_report = corrections.corrected(batch, fixed)
    masks = agreement_strip(batch, varied, fixed_result, slider_values, varied_is_a=name == "A", bound=b.id)
    varied_report = corrections.corrected(batch, varied)[1]
    reports = [varied_report | changed for changed in strips.numbers_of(bound_strip)]
    pairs = [(one, fixed_report) if name == "A" else (fixed_report, one) for one in reports]
    histogram = {key: array for key, array in arrays_of(bound_strip).items() if key.startswith("weights/")}
    texts = {
        EXPLAINED[name]: [f"{name}. {at_threshold(varied, value, b.id).explain()}" for value in slider_values],
        ANSWER: [say.answer(one) for one in masks.agreements],
    }
    return strips.package(
        histogram | masks.cells.arrays(),
        [_agreement(one) for one in masks.agreements],
        texts,
        {"shared": PictureStrip(cells=True), f"weights_{name}": strips.histogram("weights", bound_strip.weights)},
        {HEADLINES: [_headlines(*pair) for pair in pairs]},
    )


def two_batches(a: TokenBatch, b: TokenBatch, config: CorrectionConfig) -> LiveContent:
    """Return the comparison of two batches under one correction. Raises `UsageError` if the correction does."""
    report_a, report_b = (corrections.corrected(batch, config)[1] for batch in (a, b))
    tails = {"tails": Picture(comparison.tails(a, b), say.TAIL_TITLE, say.TAIL)}
    explained, tables = {EXPLAINED["A"]: config.explain()}, {HEADLINES: _headlines(report_a, report_b)}
    return LiveContent({}, [tails], texts=explained, tables=tables, notes=[_METRICS])


def two_batches_strip(
    batches: Sequence[TokenBatch], config: CorrectionConfig, b: Bound, slider_values: tuple[float, ...]
) -> Package:
    """Return what changes in `two_batches`, for every value of the slider of this bound."""
    reports = []
    for batch in batches:
        bound_strip, report = strip(batch, config, slider_values, b.id), corrections.corrected(batch, config)[1]
        reports.append([report | changed for changed in strips.numbers_of(bound_strip)])
    explained = [at_threshold(config, value, b.id).explain() for value in slider_values]
    tables = {HEADLINES: [_headlines(*pair) for pair in zip(*reports, strict=True)]}
    return strips.package({}, [{}] * len(slider_values), {EXPLAINED["A"]: explained}, {}, tables)


def _agreement(masks: Agreement) -> dict[str, Number]:
    return {label: Number(text, say.AGREEMENT[label]) for label, text in say.agreement(masks).items()}


def _headlines(a: Report, b: Report) -> str:
    """Return a table of the most important metrics, in the order of HEADLINES."""
    pairs = {pair.key: pair for pair in metric_pairs(a, b)}
    shown = [pairs[key] for key in say.HEADLINES if key in pairs]
    return say.pairs_table(HEADER, say.metric_rows(shown))


_METRICS = Note(f"**Metrics.** {say.METRICS}", HEADLINES)
