"""The Compare view: two configurations on one batch."""

import math
from dataclasses import replace
from functools import partial

import state
import streamlit as st
from components.live_part import LiveContent, Note, Number, live_part
from components.picture import Picture
from controls import strips
from controls.configuration import bound_sliders, resets, settings
from controls.pickers import picked_record
from controls.sharing import verdict, with_study_link
from controls.widgets import batch_size
from data import corrections, sketches, studies
from data.bounds import Bound, useful_slider_values
from data.configuration import FIRST, SECOND
from data.recorded import Selection
from text import phrases
from text import study_ends as say_study
from text.formatting import number, percent, plain, short, short_exponent, table
from views.gradient import NOISE_REFERENCE, NUMBERS

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import Agreement, agreement
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures import comparison, histograms
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientComparison
from rlcorr.measuring.metrics import describe
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.agreement import agreement_strip
from rlcorr.strips.packing import Package, PictureStrip, arrays_of
from rlcorr.strips.strip import strip

EXPLAIN = (
    "Compare two configurations, A and B, on one batch: which tokens each trains on, the weight of each token, the "
    "metrics of the correction, and the gradient. A is the configuration that the other pages show."
)
AGREEMENT = {
    "Differ on": "Share of the tokens that only one of the two trains on.",
    "Only A": "Tokens that A trains on and B does not.",
    "Only B": "Tokens that B trains on and A does not.",
}
MASKS = (
    "Rows are answers, columns are tokens. A token is trained on if no rule rejects it and its weight is above 0 "
    "(masking sets weights to 0). If several tokens share a cell, it shows a difference first."
)
SHORT_NAMES = {
    "kept_fraction": "Kept tokens", "rollout_rs_seq_masked_fraction": "Answers touched",
    "trained_eff_sample_size": "ESS of the kept", "trained_is_mean": "Mean weight",
    "rollout_is_oob_ratio": "Weights clipped",
}  # fmt: skip
"""Metric → its name on the page."""
GRADIENT = (
    "Compared with the on-policy gradient. Brackets: 95 % of the bootstrap samples. B − A is paired: A and B are "
    "measured on the same samples, so the noise that they share cancels. If the bracket of B − A contains 0, the two "
    "do not differ significantly."
)
HEADER = ["metric", "A", "B", "B − A"]
EXPLAINED = {"A": "explained_a", "B": "explained_b"}
HEADLINES = "headlines"
METRICS = Note(
    "**Metrics.** Point at a name for its definition. A dash: not measured under that configuration.", HEADLINES
)
ExplainedRow = tuple[str, str, list[str]]  # name, its meaning, cells
Gradients = GradientComparison | str
"""The comparison of two gradients, or the reason why there is none."""


def show(selection: Selection) -> None:
    """Show the live part, and below it the choices of A and B."""
    record = picked_record(selection)
    if record is None:
        return
    live = st.container()
    first, second, third = st.columns(3, gap="medium")
    with first:
        a = settings(FIRST, f"A: {phrases.CHOICES}")
    with second, st.container(key="second_choices"):
        b = settings(SECOND, f"B: {phrases.CHOICES}")
    try:
        measured = sketches.sketched(selection.run, record.step)
        with third:
            gradients = sketches.compared(measured, a, b, batch_size())
        compared = NOISE_REFERENCE if gradients.a.reference_length.value == 0 else gradients
    except UsageError as error:
        compared = str(error)
    with live:
        _live(selection, record, a, b, compared)
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(EXPLAIN)


def _live(
    selection: Selection, record: StepRecord, a: CorrectionConfig, b: CorrectionConfig, gradients: Gradients
) -> None:
    """Show what changes with a bound of A or B, and the comparison of the gradients below it."""
    batch, identity, sliders = record.batch, corrections.identity(selection.run, record.step), []
    for name, slot, varied, fixed in (("A", FIRST, a, b), ("B", SECOND, b, a)):
        of_slot = bound_sliders(
            varied,
            ("compare", name, identity, repr(fixed)),
            partial(two_corrections_strip, batch, fixed, name),
            partial(useful_slider_values, identity, batch, varied),
            slot=slot,
        )
        sliders += [replace(slider, label=f"A: {slider.label}") for slider in of_slot] if name == "A" else of_slot
    content, refused = strips.content_of(partial(two_corrections, batch, b=b), a)
    heading, said = _verdict(selection, a, b, gradients)
    verdict(heading)
    live_part(sliders, replace(content, said=said), source=selection.source, resets=resets(FIRST, SECOND))
    if refused:
        st.error(plain(refused))
        return
    _gradients(gradients)


def _verdict(selection: Selection, a: CorrectionConfig, b: CorrectionConfig, gradients: Gradients) -> tuple[str, str]:
    """Return, in Markdown, which of the two is better, and on what this rests: a study, and the step's gradient."""
    if isinstance(gradients, str):
        progress, of_step = None, "Which is better, the data of this step do not tell."
    else:
        progress = gradients.progress[0]
        of_step = advice(progress, state.get("answers"))
    kind_a, kind_b = kind_of(a), kind_of(b)
    if not (kind_a and kind_b and (ended := studies.ends(selection.run, kind_a, kind_b))):
        return of_step, ""
    a_over_b = None if progress is None else Interval(-progress.value, -progress.high, -progress.low)
    first = say_study.contradiction(ended, kind_a, kind_b, a_over_b, ("A", "B"))
    trained = with_study_link(say_study.of_two(ended, kind_a, kind_b), ended.name)
    return (first, f"{trained} {of_step}") if first else (of_step, trained)


def advice(progress: Interval, size: int) -> str:
    """Return a sentence, in plain text, about which makes more progress.

    `progress` is B − A, with `size` answers in a batch.
    """
    if progress.low == progress.high == 0:
        return f"A step of A or of B on {size:,} answers makes the same progress (η)."
    if not progress.tells:
        difference = _interval(progress, sign=True)
        return (
            f"A step on {size:,} answers does not tell A from B: their progress (η) differs by {difference}, B minus A."
        )
    better, other, above = "B", "A", progress
    if progress.value < 0:
        better, other, above = "A", "B", Interval(-progress.value, -progress.high, -progress.low)
    more = f"A step of {better} on {size:,} answers makes more progress"
    return f"{more}: η is {_interval(above)} above that of {other}."


def _gradients(gradients: Gradients) -> None:
    """Show a row per number: A, B, and the paired difference, for the one batch size of `gradients`."""
    st.markdown("**Gradients**")
    if isinstance(gradients, str):
        st.info(plain(gradients))
        return
    a, b = gradients.a, gradients.b
    measured = {
        "Progress (η)": (a.progress[0], b.progress[0], gradients.progress[0]),
        "Bias": (a.relative_bias, b.relative_bias, gradients.bias),
        "Noise": (a.noise[0], b.noise[0], gradients.noise[0]),
        "Cosine": (a.cosine, b.cosine, gradients.cosine),
    }
    rows = [
        (name, NUMBERS[name], [_interval(in_a), _interval(in_b), _interval(difference, sign=True)])
        for name, (in_a, in_b, difference) in measured.items()
    ]
    st.html(_pairs_table(["", *HEADER[1:]], rows))
    st.caption(GRADIENT)


def _interval(ends: Interval, *, sign: bool = False) -> str:
    value, low, high = (
        f"+{short(x)}" if sign and not math.isnan(x) and x >= 0 else short(x) for x in (ends.value, ends.low, ends.high)
    )
    return f"{value} [{low},\u00a0{high}]".replace("-", "−")


def _pairs_table(header: list[str], rows: list[ExplainedRow]) -> str:
    """Return an HTML table of literal text, in which each name has its meaning as a tooltip."""
    meanings = {name: hint for name, hint, _ in rows}
    return f"<div class='rl-pairs'>{table(header, [[name, *cells] for name, _, cells in rows], meanings)}</div>"


def two_corrections(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> LiveContent:
    """Return the comparison of two corrections of one batch. Raises `UsageError` if a correction does."""
    (result_a, report_a), (result_b, report_b) = corrections.corrected(batch, a), corrections.corrected(batch, b)
    pictures, explained, masks = {}, {}, agreement(batch, result_a, result_b)
    for name, config, result in (("A", a, result_a), ("B", b, result_b)):
        figure = histograms.weight_histogram(batch, result, config)
        pictures[f"weights_{name}"] = Picture(figure, f"Weights in {name}", phrases.WEIGHTS)
        explained[EXPLAINED[name]] = f"{name}. {config.explain()}"
    pictures["shared"] = Picture(comparison.mask_map(batch, result_a, result_b, (a, b)), "Tokens trained on", MASKS)
    tables = {HEADLINES: _headlines(report_a, report_b)}
    notes = [*(Note("", text) for text in EXPLAINED.values()), METRICS]
    return LiveContent(_agreement(masks), [pictures], texts=explained, tables=tables, notes=notes)


def two_corrections_strip(
    batch: TokenBatch,
    fixed: CorrectionConfig,
    name: str,
    varied: CorrectionConfig,
    b: Bound,
    slider_values: strips.Values,
) -> Package:
    """Return what changes in `two_corrections`, for every value of the slider of this bound.

    `name` says which of the two is varied: A or B.
    """
    bound_strip = strip(batch, varied, slider_values, b.id)
    fixed_result, fixed_report = corrections.corrected(batch, fixed)
    masks = agreement_strip(batch, varied, fixed_result, slider_values, varied_is_a=name == "A", bound=b.id)
    reports = strips.reports(batch, varied, bound_strip)
    pairs = [(one, fixed_report) if name == "A" else (fixed_report, one) for one in reports]
    weights = {key: array for key, array in arrays_of(bound_strip).items() if key.startswith("weights/")}
    histogram = strips.histogram("weights", bound_strip.weights)
    texts = {
        EXPLAINED[name]: [f"{name}. {at_threshold(varied, value, b.id).explain()}" for value in slider_values],
    }
    pictures = {"shared": PictureStrip(cells=True), f"weights_{name}": histogram}
    numbers, tables = [_agreement(one) for one in masks.agreements], {HEADLINES: [_headlines(*pair) for pair in pairs]}
    return strips.package(weights | masks.cells.arrays(), numbers, texts, pictures, tables)


def _agreement(masks: Agreement) -> dict[str, Number]:
    shown = (percent(masks.differing), f"{masks.only_a:,}", f"{masks.only_b:,}")
    return {label: Number(text, AGREEMENT[label]) for label, text in zip(AGREEMENT, shown, strict=True)}


def _headlines(a: dict[str, float], b: dict[str, float]) -> str:
    """Return a table of the metrics that depend on the configuration, in the order of `SHORT_NAMES`."""
    rows = []
    for key, name in SHORT_NAMES.items():
        if key in a or key in b:
            of_a, of_b = a.get(key, math.nan), b.get(key, math.nan)
            values = [number(of_a), number(of_b), _signed(of_b - of_a)]
            rows.append((name, f"{describe(key)} Logged as {key}.", values))
    return _pairs_table(HEADER, rows)


def _signed(value: float) -> str:
    """Format a number with its sign; return a dash for NaN."""
    return "–" if math.isnan(value) else short_exponent(f"{value:+.4g}").replace("-", "−") if value else "0"
