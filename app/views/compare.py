"""The Compare view: two configurations on one batch, or one configuration on two batches."""

from dataclasses import replace
from functools import partial

import streamlit as st
from components.live_part import LiveContent, live_part
from components.picture import picture
from controls.choosing import batch_size, buttons
from controls.configuration import StripOf, bound_sliders, resets, settings
from controls.pickers import picked_record
from controls.sharing import with_study_link
from data import corrections, sketches, study_ends
from data.bounds import useful_slider_values
from data.configuration import FIRST, SECOND
from data.names import run_labels
from data.reading import USUAL_BATCH
from data.selection import Selection
from data.sketches import Sketched
from live import compare as live_compare
from live import strips
from text import compare as say
from text import phrases
from text import study_ends as say_study
from text.formatting import plain
from text.gradient import NOISE_REFERENCE

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import MetricPair, metric_pairs
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import cells, comparison
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.comparison import GradientComparison
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study_ends import kind_of

Identities = tuple[corrections.Identity, corrections.Identity]


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
    measured = _sketched(selection, record.step)
    with third:
        size = USUAL_BATCH if isinstance(measured, str) else batch_size()
    with live:
        _live(selection, record, (a, b), measured, size)


def _sketched(selection: Selection, step: int) -> Sketched | str:
    """Return the step with its sketch, or the reason why there is none."""
    try:
        return sketches.sketched(selection.run, step)
    except UsageError as error:
        return str(error)


def _live(
    selection: Selection,
    record: StepRecord,
    pair: tuple[CorrectionConfig, CorrectionConfig],
    measured: Sketched | str,
    size: int,
) -> None:
    """Show what changes with a bound of A or B, and the comparison of the gradients below it."""
    batch, (a, b) = record.batch, pair
    identity = corrections.identity(selection.run, record.step)
    first = bound_sliders(
            a, strip=_strips(identity, batch, "A", b),
            slider_values=partial(useful_slider_values, [(identity, batch)], a),
        )  # fmt: skip
    sliders = [
        *(replace(slider, label=f"A: {slider.label}") for slider in first),
        *bound_sliders(
            b, strip=_strips(identity, batch, "B", a),
            slider_values=partial(useful_slider_values, [(identity, batch)], b), slot=SECOND,
        ),
    ]  # fmt: skip
    gradients, refused = _compared(measured, a, b, size), ""
    progress = None if isinstance(gradients, str) else gradients.progress[0]
    try:
        content = replace(live_compare.two_corrections(batch, a, b), said=_verdict(selection, a, b, progress, size))
    except UsageError as error:
        content, refused = LiveContent({}, []), str(error)
    live_part(sliders, content, source=selection.source, resets=resets(FIRST, SECOND))
    if refused:
        st.error(plain(refused))
        return
    left, right = st.columns(2, gap="medium")
    with left:
        (result_a, report_a), (result_b, report_b) = corrections.corrected(batch, a), corrections.corrected(batch, b)
        figure = comparison.weights_against(batch, result_a, result_b)
        picture(say.WEIGHTS_AGAINST, figure, key="weights_against", caption=say.WEIGHTS, source=selection.source)
        _others(metric_pairs(report_a, report_b))
    with right:
        _gradients(gradients, size, selection.source)


def _verdict(
    selection: Selection, a: CorrectionConfig, b: CorrectionConfig, progress: Interval | None, size: int
) -> str:
    """Return, in Markdown, which of the two makes more progress, and how training runs with such corrections ended."""
    sentences = [] if progress is None else [f"**{say.advice(progress, size)}**"]
    kind_a, kind_b = kind_of(a), kind_of(b)
    if kind_a and kind_b and (ended := study_ends.ends(selection.run, kind_a, kind_b)):
        sentences.append(with_study_link(say_study.of_two(ended, kind_a, kind_b, progress), ended.name))
    return " ".join(sentences)


def _strips(identity: corrections.Identity, batch: TokenBatch, name: str, fixed: CorrectionConfig) -> StripOf:
    """Return the strips of the bounds of A or of B (`name`), with the other configuration fixed."""
    return lambda now, b, slider_values: (
        strips.strip_key(("compare", name, identity, repr(fixed)), now, b, slider_values),
        partial(live_compare.two_corrections_strip, batch, now, fixed, name, b, slider_values),
    )


def _others(pairs: list[MetricPair]) -> None:
    """Show the metrics that are not headlines: those that differ, and those that are equal."""
    others = [pair for pair in pairs if pair.key not in say.HEADLINES]
    for title, wanted in ((say.DIFFERENT, False), (say.EQUAL, True)):
        listed = [pair for pair in others if (pair.a == pair.b) == wanted]
        if listed:
            with st.expander(f"{title} ({len(listed)})"):
                st.html(say.pairs_table(live_compare.HEADER, say.metric_rows(listed)))


def _compared(
    measured: Sketched | str, a: CorrectionConfig, b: CorrectionConfig, size: int
) -> GradientComparison | str:
    """Return the comparison of the two gradients, or the reason why there is none."""
    if isinstance(measured, str):
        return measured
    try:
        gradients = sketches.compared(measured, a, b, size)
    except UsageError as error:
        return str(error)
    return NOISE_REFERENCE if gradients.a.reference_length.value == 0 else gradients


def _gradients(gradients: GradientComparison | str, size: int, source: str) -> None:
    st.markdown(f"**{say.GRADIENT_TITLE}**")
    if isinstance(gradients, str):
        st.info(plain(gradients))
        return
    with st.container(horizontal=True, key="gradient_numbers"):
        for label, text in say.between(gradients).items():
            st.metric(label, text, help=plain(say.BETWEEN[label]), width="content")
    st.html(say.pairs_table(["", "A", "B", "B − A"], say.gradient_rows(gradients)))
    st.caption(say.GRADIENT)
    left, right = st.columns(2)
    with left:
        bars = comparison.gradient_bars(gradients, size)
        picture(say.GRADIENT_BARS_TITLE, bars, key="bars", caption=say.GRADIENT_BARS, source=source)
    with right:
        figure = comparison.differences(gradients, size)
        title, caption = say.GRADIENT_DIFFERENCES_TITLE, say.GRADIENT_DIFFERENCES
        picture(title, figure, key="differences", caption=caption, source=source)


# --- one configuration on two batches ---


def _runs(first: Selection, record: StepRecord, second: Selection) -> None:
    if second.step is None:
        st.info(say.NO_STEP_B)
        return
    other = picked_record(second)
    if other is None:
        return
    labels = run_labels([first.slug, second.slug])
    names = {
        "A": say.batch_name(labels[first.slug], record.step),
        "B": say.batch_name(labels[second.slug], other.step),
    }
    st.caption(say.SAME_STEP if names["A"] == names["B"] else say.RUNS_INTRO)
    sources = first.source, second.source
    try:
        _densities(names, record.batch, other.batch, sources)
        identities = corrections.identity(first.run, record.step), corrections.identity(second.run, other.step)
        _same_configuration(identities, (record.batch, other.batch), "\n".join(sources))
    except UsageError as error:
        st.error(plain(str(error)))


def _densities(names: dict[str, str], a: TokenBatch, b: TokenBatch, sources: tuple[str, str]) -> None:
    magnified = comparison.ratio_densities(a, b)
    for column, (name, title), batch, figure, source in zip(
        st.columns(2, gap="medium"), names.items(), (a, b), (magnified.a, magnified.b), sources, strict=True
    ):
        with column:
            st.markdown(f"##### {name}: {title}\n\n{plain(phrases.in_words(triage(batch)[0].sentence))}")
            both = cells.probability_density(batch)
            picture(say.DENSITY_TITLE, both, key=f"density_{name}", caption=say.DENSITY, source=source)
            picture(say.MAGNIFIED_TITLE, figure, key=f"magnified_{name}", caption=say.MAGNIFIED, source=source)


def _same_configuration(identities: Identities, batches: tuple[TokenBatch, TokenBatch], source: str) -> None:
    live = st.container()
    config = settings()
    with live:
        _live_same(identities, batches, config, source)


def _live_same(
    identities: Identities, batches: tuple[TokenBatch, TokenBatch], config: CorrectionConfig, source: str
) -> None:
    """Show what changes with a bound of the configuration that both batches have."""
    a, b = batches
    sliders = bound_sliders(
        config,
        strip=lambda now, bound, slider_values: (
            strips.strip_key(("compare", identities), now, bound, slider_values),
            partial(live_compare.two_batches_strip, batches, now, bound, slider_values),
        ),
        slider_values=partial(useful_slider_values, [*zip(identities, batches, strict=True)], config),
        text=live_compare.EXPLAINED["A"],
    )
    refused = ""
    try:
        content = live_compare.two_batches(a, b, config)
    except UsageError as error:
        content, refused = LiveContent({}, []), str(error)
    live_part(sliders, content, source=source, resets=resets(FIRST))
    if refused:
        st.error(plain(refused))
    else:
        _others(metric_pairs(corrections.corrected(a, config)[1], corrections.corrected(b, config)[1]))
