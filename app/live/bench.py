"""The correction bench: what a correction does to one step, for the present bounds and for every slider value."""

from collections.abc import Sequence
from dataclasses import replace

from components.live_part import ANSWER, LiveContent, Note, Number, Picture, Words
from data import corrections
from data.bounds import Bound, bounds_of, is_first, m2po_rule_index
from text import phrases
from text import start as start_text
from text.formatting import number, percent, plain

from live import strips
from rlcorr import CorrectionConfig, CorrectionResult, TokenBatch
from rlcorr.adaptive import m2_at
from rlcorr.bounds import at_threshold, is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import correction, thresholds
from rlcorr.losses.score_centering import moved_probability
from rlcorr.measuring.metrics import describe
from rlcorr.presets.parts import Preset
from rlcorr.records.step_files import StepRecord
from rlcorr.records.token_texts import END, NEW_LINE, pieces
from rlcorr.strips.packing import Package, PictureStrip, arrays_of
from rlcorr.strips.strip import strip, token_cells

EXPLAINED = "explained"
START_HEIGHT = 160
"""Height of the picture on the Start page, in pixels."""
WORDS, STATISTIC = "words", "statistic"


def bench(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, preset: Preset) -> LiveContent:
    """Return the content of the bench. Raises `UsageError` if the correction does."""
    result, report = corrections.corrected(batch, config)
    pictures = pictures_of(batch, result, config)
    bounds = bounds_of(config)
    try:
        curves, refused = curves_over(identity, batch, config, bounds[0]) if bounds else {}, ""
    except UsageError as error:
        curves, refused = {}, str(error)
    moved, not_moved = _centered(batch, config, preset)
    return LiveContent(
        numbers=numbers_of(report) | _m2(batch, config, [config])[0] | moved,
        rows=[row for row in (pictures, curves) if row],
        refused=refused,
        texts={ANSWER: phrases.bench_answer(report, config.rollout_is_mode), EXPLAINED: config.explain()},
        notes=[Note("**What it does:**", EXPLAINED), Note(when_it_hurts(preset)), *not_moved],
    )


def _centered(batch: TokenBatch, config: CorrectionConfig, preset: Preset) -> tuple[dict[str, Number], list[Note]]:
    """Return the size of what the preset's score centering subtracts, or a note why it is unknown."""
    if not preset.loss.score_centering:
        return {}, []
    try:
        return {phrases.MOVED: Number(number(moved_probability(batch, config)), phrases.MOVED_IS)}, []
    except UsageError as error:
        return {}, [Note(plain(str(error)))]


def first_answers(record: StepRecord) -> list[list[str]]:
    """Return the texts of the tokens of the first answers. An end token is an empty text."""
    return [
        [text.replace(NEW_LINE, " ").replace(END, "") for text in row] for row in pieces(record)[: start_text.SHOWN]
    ]


def start_content(batch: TokenBatch, config: CorrectionConfig, texts: Sequence[Sequence[str]]) -> LiveContent:
    """Return the live part of the Start page: the first answers of a step in words, and the statistic of one rule.

    `texts` has the texts of the tokens of these answers. Raises `UsageError` if the correction does.
    """
    result, report = corrections.corrected(batch, config)
    statistic = replace(pictures_of(batch, result, config)[STATISTIC], caption="")
    statistic.figure.layout.height = START_HEIGHT
    fates = correction.token_fates(batch, result, config)
    answers, total = len(texts), len(batch.response_mask)
    words = Words(
        texts,
        [fates[row, : len(tokens)].tolist() for row, tokens in enumerate(texts)],
        start_text.WORDS.format(shown=answers, all=total),
        "",
    )
    return LiveContent({}, [{WORDS: words, STATISTIC: statistic}], texts={ANSWER: start_text.answer(report, total)})


def start_strip(batch: TokenBatch, config: CorrectionConfig, b: Bound, slider_values: tuple[float, ...]) -> Package:
    """Return what changes in `start_content`, for every value of the slider of this bound of the first rule."""
    bound_strip = strip(batch, config, slider_values, b.id)
    report, total = corrections.corrected(batch, config)[1], len(batch.response_mask)
    pictures = {WORDS: PictureStrip(cells=True)}
    if bound_strip.statistic is not None:
        pictures[STATISTIC] = strips.histogram(STATISTIC, bound_strip.statistic)
    reports = [report | changed for changed in strips.numbers_of(bound_strip)]
    texts = {ANSWER: [start_text.answer(one, total) for one in reports]}
    arrays = arrays_of(bound_strip) | token_cells(batch, config, slider_values, b.id).arrays()
    return strips.package(arrays, [{}] * len(slider_values), texts, pictures)


def when_it_hurts(preset: Preset) -> str:
    """Return, in Markdown, when the preset fails, with its source."""
    return f"**When it hurts:** {plain(preset.fails_when)}. Source: {plain(preset.source)}."


def bench_strip(
    identity: corrections.Identity,
    batch: TokenBatch,
    config: CorrectionConfig,
    b: Bound,
    slider_values: tuple[float, ...],
    *,
    with_curves: bool = False,
) -> Package:
    """Return what changes in `bench`, for every value of the slider of this bound.

    The first bound moves a line in the curves; with `with_curves` another bound does, in curves over itself.
    """
    bound_strip = strip(batch, config, slider_values, b.id)
    report = corrections.corrected(batch, config)[1]
    pictures = {"weights": strips.histogram("weights", bound_strip.weights), "mask": PictureStrip(cells=True)}
    if bound_strip.statistic is not None and b.id.rule_index == 0:
        pictures["statistic"] = strips.histogram("statistic", bound_strip.statistic)
    if with_curves or is_first(b, config):
        try:
            curve = corrections.curve(identity, batch, config, b.id)
            cursors = thresholds.cursors(curve.thresholds, slider_values, of_ratio=is_ratio(config, b.id))
            pictures |= dict.fromkeys(("shares_over", "mismatch_over"), PictureStrip(shapes=cursors))
        except UsageError:  # no item is off neutral; the page says so instead of showing the curves
            pass
    arrays = arrays_of(bound_strip)
    varied = [at_threshold(config, value, b.id) for value in slider_values]
    reports = [report | changed for changed in strips.numbers_of(bound_strip)]
    numbers = [numbers_of(one) | m2 for one, m2 in zip(reports, _m2(batch, config, varied), strict=True)]
    texts = {
        ANSWER: [phrases.bench_answer(one, config.rollout_is_mode) for one in reports],
        EXPLAINED: [one.explain() for one in varied],
    }
    return strips.package(arrays, numbers, texts, pictures)


def numbers_of(report: dict[str, float]) -> dict[str, Number]:
    """Return the headline numbers that every configuration has."""
    shown = (
        ("Kept tokens", "kept_fraction", percent),
        ("Sequences touched", "rollout_rs_seq_masked_fraction", percent),
        ("ESS of the kept", "trained_eff_sample_size", percent),
        ("Mean weight", "trained_is_mean", number),
        ("Weights clipped", "rollout_is_oob_ratio", percent),
        ("k3", "k3_kl", number),
        ("Mean |Δ|", "abs_log_ratio", number),
    )
    return {label: Number(write(report.get(metric)), describe(metric)) for label, metric, write in shown}


def _m2(batch: TokenBatch, config: CorrectionConfig, varied: list[CorrectionConfig]) -> list[dict[str, Number]]:
    """Return M2PO's threshold for each of the varied configurations; nothing if `config` does not bound k2."""
    rule_index = m2po_rule_index(config)
    if rule_index is None:
        return [{} for _ in varied]
    return [
        {"M2 of the kept": Number(number(m2), phrases.M2)}
        for m2 in m2_at(batch, [one.rollout_rs[rule_index].upper for one in varied])
    ]


def pictures_of(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Picture]:
    """Return the histograms of the weights and of the first rule's statistic, if there are any, and the mask."""
    pictures = {}
    if config.rollout_is is not None or not config.rollout_rs:
        figure = correction.weight_histogram(batch, result, config)
        pictures["weights"] = Picture(figure, "Importance weights", phrases.WEIGHTS)
    for rule in config.rollout_rs[:1]:
        figure = correction.statistic_histogram(batch, result, rule)
        pictures["statistic"] = Picture(figure, phrases.rule_title(rule), phrases.STATISTIC)
    figure = correction.fate_mask(correction.token_fates(batch, result, config), config)
    return pictures | {"mask": Picture(figure, "Tokens", phrases.MASK)}


def curves_over(
    identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound
) -> dict[str, Picture]:
    """Return the metrics over a bound. Raises `UsageError` if no item is off neutral."""
    curve, of_ratio = corrections.curve(identity, batch, config, b.id), is_ratio(config, b.id)
    of_weights = b.id.rule_index is None
    shares = thresholds.shares_over(curve.thresholds, curve.numbers, of_ratio=of_ratio, at=b.value)
    left = thresholds.mismatch_over(curve, of_weights=of_weights, of_ratio=of_ratio, at=b.value)
    caption = phrases.LEFT_OF_WEIGHTS if of_weights else phrases.LEFT_OF_RULE
    if of_weights and config.rollout_rs:
        caption += f" {phrases.REJECTED_COUNT}"
    return {
        "shares_over": Picture(shares, phrases.COST, phrases.CURVES_OVER),
        "mismatch_over": Picture(left, phrases.EFFECT, caption),
    }
