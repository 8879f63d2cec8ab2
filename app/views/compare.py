"""The Compare view: two configurations on one batch, or one configuration on two batches."""

from dataclasses import replace
from functools import partial

import state
import streamlit as st
from components.live_part import LiveContent, Note, Number, Picture, live_part
from components.picture import picture
from controls import strips
from controls.choosing import batch_size, buttons
from controls.configuration import bound_sliders, resets, settings
from controls.pickers import picked_record
from controls.sharing import verdict, with_study_link
from data import corrections, sketches, studies
from data.bounds import Bound, useful_slider_values
from data.configuration import FIRST, SECOND
from data.names import run_labels
from data.recorded import Selection
from text import compare as say
from text import phrases
from text import study_ends as say_study
from text.formatting import plain
from text.gradient import NOISE_REFERENCE

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import Agreement, agreement
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures import cells, comparison, histograms
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientComparison
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.agreement import agreement_strip
from rlcorr.strips.packing import Package, PictureStrip, arrays_of
from rlcorr.strips.strip import strip

HEADER = ["metric", "A", "B", "B − A"]
EXPLAINED = {"A": "explained_a", "B": "explained_b"}
HEADLINES = "headlines"
METRICS = Note(f"**Metrics.** {say.METRICS}", HEADLINES)
Pair = tuple[TokenBatch, TokenBatch]
Gradients = GradientComparison | str
"""The comparison of two gradients, or the reason why there is none."""


def show(first: Selection, second: Selection | None) -> None:
    """Show two configurations on the first run, or one on both runs."""
    buttons("compare", say.MODE, say.MODES, hide_label=True)
    record = picked_record(first)
    if record is None:
        return
    if second is None:
        _configurations(first, record)
    else:
        _runs(first, record, second)
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(say.EXPLAIN)


# --- two configurations of one batch ---


def _configurations(selection: Selection, record: StepRecord) -> None:
    """Show the live part, and below it the choices of A and B."""
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


def _live(
    selection: Selection, record: StepRecord, a: CorrectionConfig, b: CorrectionConfig, gradients: Gradients
) -> None:
    """Show what changes with a bound of A or B, and the comparison of the gradients below it."""
    batch, identity, sliders = record.batch, corrections.identity(selection.run, record.step), []
    for name, slot, varied, fixed in (("A", FIRST, a, b), ("B", SECOND, b, a)):
        of_slot = bound_sliders(
            varied,
            strip=strips.of_bounds(
                ("compare", name, identity, repr(fixed)), partial(two_corrections_strip, batch, fixed, name)
            ),
            slider_values=partial(useful_slider_values, [(identity, batch)], varied),
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
    progress = None if isinstance(gradients, str) else gradients.progress[0]
    advice = say.UNKNOWN if progress is None else say.advice(progress, state.get("answers"))
    kind_a, kind_b = kind_of(a), kind_of(b)
    if not (kind_a and kind_b and (ended := studies.ends(selection.run, kind_a, kind_b))):
        return advice, ""
    a_over_b = None if progress is None else Interval(-progress.value, -progress.high, -progress.low)
    first = say_study.contradiction(ended, kind_a, kind_b, a_over_b, ("A", "B"))
    trained = with_study_link(say_study.of_two(ended, kind_a, kind_b), ended.name)
    return (first, f"{trained} {advice}") if first else (advice, trained)


def _gradients(gradients: Gradients) -> None:
    st.markdown(f"**{say.GRADIENT_TITLE}**")
    if isinstance(gradients, str):
        st.info(plain(gradients))
        return
    st.html(say.pairs_table(["", "A", "B", "B − A"], say.gradient_rows(gradients)))
    st.caption(say.GRADIENT)


def two_corrections(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> LiveContent:
    """Return the comparison of two corrections of one batch. Raises `UsageError` if a correction does."""
    (result_a, report_a), (result_b, report_b) = corrections.corrected(batch, a), corrections.corrected(batch, b)
    pictures, explained, masks = {}, {}, agreement(batch, result_a, result_b)
    for name, config, result in (("A", a, result_a), ("B", b, result_b)):
        figure = histograms.weight_histogram(batch, result, config)
        pictures[f"weights_{name}"] = Picture(figure, say.WEIGHTS_IN.format(name=name), phrases.WEIGHTS)
        explained[EXPLAINED[name]] = f"{name}. {config.explain()}"
    pictures["shared"] = Picture(comparison.mask_map(batch, result_a, result_b, (a, b)), say.TOKENS, say.MASKS)
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
    return {label: Number(text, say.AGREEMENT[label]) for label, text in say.agreement(masks).items()}


def _headlines(a: dict[str, float], b: dict[str, float]) -> str:
    """Return a table of the most important metrics, in the order of HEADLINES."""
    return say.pairs_table(HEADER, say.metric_rows(a, b))


# --- one configuration on two batches ---


def _runs(first: Selection, record: StepRecord, second: Selection) -> None:
    """Show both batches, what changes with a bound of the configuration that both have, and below it the choices."""
    if second.step is None:
        st.info(say.NO_STEP_B)
        return
    other = picked_record(second)
    if other is None:
        return
    labels = run_labels([first.slug, second.slug])
    titles = [plain(f"{labels[slug]}, step {of.step}") for slug, of in ((first.slug, record), (second.slug, other))]
    verdict(say.TWO_GAPS)
    st.caption(say.SAME_STEP if titles[0] == titles[1] else say.RUNS_INTRO)
    batches = a, b = record.batch, other.batch
    try:
        of_a, of_b = comparison.ratio_densities(a, b)
        both = ("A", titles[0], a, of_a, first.source), ("B", titles[1], b, of_b, second.source)
        for column, (name, title, batch, figure, source) in zip(st.columns(2, gap="medium"), both, strict=True):
            with column:
                st.markdown(f"## {name}: {title}\n\n{plain(phrases.in_words(triage(batch)[0].sentence))}")
                density = cells.probability_density(batch)
                picture(say.DENSITY_TITLE, density, key=f"density_{name}", caption=say.DENSITY, source=source)
                picture(say.MAGNIFIED_TITLE, figure, key=f"magnified_{name}", caption=say.MAGNIFIED, source=source)
        identities = corrections.identity(first.run, record.step), corrections.identity(second.run, other.step)
        with_identities, source = [*zip(identities, batches, strict=True)], f"{first.source}\n{second.source}"
        live = st.container()
        config, make, strip_of = settings(), partial(two_batches, batches), partial(two_batches_strip, batches)
        with live:
            strips.show_live("compare", config, make, strip_of, with_identities, source, EXPLAINED["A"])
    except UsageError as error:
        st.error(plain(str(error)))


def two_batches(batches: Pair, config: CorrectionConfig) -> LiveContent:
    """Return the comparison of two batches under one correction. Raises `UsageError` if the correction does."""
    tails = {"tails": Picture(comparison.tails(*batches), say.TAIL_TITLE, say.TAIL)}
    headlines = _headlines(*(corrections.corrected(batch, config)[1] for batch in batches))
    texts = {EXPLAINED["A"]: config.explain()}
    return LiveContent({}, [tails], texts=texts, tables={HEADLINES: headlines}, notes=[METRICS])


def two_batches_strip(batches: Pair, config: CorrectionConfig, b: Bound, slider_values: strips.Values) -> Package:
    """Return what changes in `two_batches`, for every value of the slider of this bound."""
    of_batches = [strips.reports(batch, config, strip(batch, config, slider_values, b.id)) for batch in batches]
    explained = [at_threshold(config, value, b.id).explain() for value in slider_values]
    tables = {HEADLINES: [_headlines(*pair) for pair in zip(*of_batches, strict=True)]}
    return strips.package({}, [{}] * len(slider_values), {EXPLAINED["A"]: explained}, {}, tables)
