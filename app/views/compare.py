"""The Compare view: two configurations on one batch, or one configuration on two batches."""

from dataclasses import replace
from functools import partial

import streamlit as st
from components.live_part import LiveContent
from components.picture import picture
from controls import batch_size
from controls.bounds import useful_slider_values
from controls.configuration import StripOf, bound_sliders, bounded, preset_name, resets, settings
from controls.drag import show_live
from controls.pickers import picked_record, record_of
from controls.segments import choose_one
from controls.sharing import with_study_link
from data import corrections, recorded, sketches, study_ends
from data.names import run_labels
from data.sketches import Sketched
from live import compare as live_compare
from live import strips
from state import address, fields, notices, session
from text import compare as say
from text import phrases
from text import study_ends as say_study
from text.formatting import plain
from text.gradient import NOISE_REFERENCE

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import MetricPair, metric_pairs
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import cells, comparison
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.comparison import GradientComparison
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study_ends import kind_of

Identities = tuple[corrections.Identity, corrections.Identity]


def show(selection: session.Selection) -> None:
    modes = [say.CONFIGURATIONS, say.RUNS]
    mode = choose_one(say.MODE, modes, modes[0], "compare", hide_label=True)
    fields.show_second(mode == say.CONFIGURATIONS)
    record = picked_record(selection)
    if record is None:
        return
    if mode == say.CONFIGURATIONS:
        _configurations(selection, record)
    else:
        _runs(selection, record)
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(say.EXPLAIN)


# --- two configurations of one batch ---


def _configurations(selection: session.Selection, record: StepRecord) -> None:
    """Show what is wrong in the URL, the live part, and below it the choices of A and B."""
    batch_size.take()
    above, live = st.container(), st.container()
    first, second, third = st.columns(3, gap="medium")
    with first:
        a = _configuration("A", fields.FIRST)
    with second, st.container(key="second_choices"):
        b = _configuration("B", fields.SECOND)
    measured = _sketched(selection, record.step)
    with third:
        size = batch_size.USUAL if isinstance(measured, str) else batch_size.batch_size()
    for sentence in notices.sentences("preset_b", f"{fields.SECOND}fields", batch_size.KEY):
        above.warning(plain(sentence))
    with live:
        _live(selection, record, (a, b), measured, size)


def _sketched(selection: session.Selection, step: int) -> Sketched | str:
    """Return the step with its sketch, or the reason why there is none."""
    try:
        return sketches.sketched(selection.run, step)
    except UsageError as error:
        return str(error)


def _configuration(name: str, slot: str) -> CorrectionConfig:
    return settings(PRESETS[preset_name(slot)].config, slot, f"{name}: {phrases.CHOICES}")


@address.fragment
def _live(
    selection: session.Selection,
    record: StepRecord,
    pair: tuple[CorrectionConfig, CorrectionConfig],
    measured: Sketched | str,
    size: int,
) -> None:
    """Show what changes with a bound of A or B, and the comparison of the gradients below it."""
    batch, a, b = record.batch, bounded(pair[0]), bounded(pair[1], fields.SECOND)
    identity = corrections.identity(selection.run, record.step)
    first = bound_sliders(
            a, lambda varied: live_compare.two_corrections(batch, varied, b), strip=_strips(identity, batch, "A", b),
            slider_values=partial(useful_slider_values, [(identity, batch)], a),
        )  # fmt: skip
    sliders = [
        *(replace(one, slider=replace(one.slider, label=f"A: {one.slider.label}")) for one in first),
        *bound_sliders(
            b, lambda varied: live_compare.two_corrections(batch, a, varied), strip=_strips(identity, batch, "B", a),
            slider_values=partial(useful_slider_values, [(identity, batch)], b), slot=fields.SECOND,
        ),
    ]  # fmt: skip
    gradients, refused = _compared(measured, a, b, size), ""
    progress = None if isinstance(gradients, str) else gradients.progress[0]
    try:
        content = replace(live_compare.two_corrections(batch, a, b), said=_verdict(selection, a, b, progress, size))
    except UsageError as error:
        content, refused = LiveContent({}, []), str(error)
    show_live(sliders, content, key="compared", resets=resets())
    if refused:
        st.error(plain(refused))
        return
    left, right = st.columns(2, gap="medium")
    with left:
        (result_a, report_a), (result_b, report_b) = corrections.corrected(batch, a), corrections.corrected(batch, b)
        figure = comparison.weights_against(batch, result_a, result_b)
        picture(say.WEIGHTS_AGAINST, figure, key="weights_against", caption=say.WEIGHTS)
        _others(metric_pairs(report_a, report_b))
    with right:
        _gradients(gradients, size)


def _verdict(
    selection: session.Selection, a: CorrectionConfig, b: CorrectionConfig, progress: Interval | None, size: int
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


def _gradients(gradients: GradientComparison | str, size: int) -> None:
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
        picture(say.GRADIENT_BARS_TITLE, bars, key="bars", caption=say.GRADIENT_BARS)
    with right:
        figure = comparison.differences(gradients, size)
        picture(say.GRADIENT_DIFFERENCES_TITLE, figure, key="differences", caption=say.GRADIENT_DIFFERENCES)


# --- one configuration on two batches ---


def _runs(selection: session.Selection, record: StepRecord) -> None:
    second = session.second_selection()
    for sentence in notices.sentences("run_b", "step_b"):
        st.warning(plain(sentence))
    if second.step is None:
        st.info(say.NO_STEP_B)
        return
    other = record_of(second, second.step)
    if other is None:
        return
    labels = run_labels([selection.slug, second.slug])
    names = {
        "A": say.batch_name(labels[selection.slug], record.step),
        "B": say.batch_name(labels[second.slug], other.step),
    }
    st.caption(say.SAME_STEP if names["A"] == names["B"] else say.RUNS_INTRO)
    sources = recorded.source(selection.run, record.step), recorded.source(second.run, other.step)
    try:
        _densities(names, record.batch, other.batch, sources)
        identities = corrections.identity(selection.run, record.step), corrections.identity(second.run, other.step)
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


@address.fragment
def _same_configuration(identities: Identities, batches: tuple[TokenBatch, TokenBatch], source: str) -> None:
    live = st.container()
    config = settings(PRESETS[preset_name()].config)
    with live:
        for sentence in notices.sentences():
            st.warning(plain(sentence))
        _live_same(identities, batches, config, source)


@address.fragment
def _live_same(
    identities: Identities, batches: tuple[TokenBatch, TokenBatch], config: CorrectionConfig, source: str
) -> None:
    """Show what changes with a bound of the configuration that both batches have."""
    config, (a, b) = bounded(config), batches
    sliders = bound_sliders(
        config,
        lambda varied: live_compare.two_batches(a, b, varied),
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
    show_live(sliders, content, key="same", resets=resets(), source=source)
    if refused:
        st.error(plain(refused))
    else:
        _others(metric_pairs(corrections.corrected(a, config)[1], corrections.corrected(b, config)[1]))


show(session.selection())
