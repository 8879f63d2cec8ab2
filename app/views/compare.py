"""The Compare view: two configurations on one batch, or one configuration on two batches."""

from functools import partial

import streamlit as st
from components.live_part import Moving
from components.picture import picture
from controls import batch_size
from controls.bounds import places_on
from controls.configuration import StripOf, bound_sliders, bounded, preset_name, resets, settings
from controls.live import show as show_live
from controls.pickers import chosen_record, pick_second, picked_record
from data import corrections, recorded, sketches
from data.sketches import Sketched
from live import compare as moving
from live import strips
from state import fields, notices, session
from text import compare as say
from text.formatting import plain
from text.gradient import NOISE_REFERENCE

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import MetricPair, metric_pairs
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import cells, comparison
from rlcorr.gradients.comparison import GradientComparison
from rlcorr.records.step_files import StepRecord

SECOND_PRESET = "decoupled_geo_rs_token_tis"
Identities = tuple[corrections.Identity, corrections.Identity]


def show(chosen: session.Selection) -> None:
    with st.expander("What is this?", key="what_is_this"):
        st.write(say.EXPLAIN)
    modes = [say.CONFIGURATIONS, say.RUNS]
    mode = st.segmented_control(
        say.MODE, modes, default=modes[0], key="compare", bind="query-params", required=True,
        label_visibility="collapsed",
    )  # fmt: skip
    fields.show_second(mode == say.CONFIGURATIONS)
    record = picked_record(chosen)
    if record is None:
        return
    (_configurations if mode == say.CONFIGURATIONS else _runs)(chosen, record)


# --- two configurations of one batch ---


@st.fragment
def _configurations(chosen: session.Selection, record: StepRecord) -> None:
    """What is picked, and beside it what moves with a bound of either."""
    batch_size.check_url()
    above = st.container()
    left, right = st.columns([1, 3], gap="medium")
    with left:
        a = _picked("A", "preset", session.DEFAULT_PRESET, fields.FIRST)
        with st.container(key="second"):
            st.button(say.SWAP, key="swap", on_click=_swap_configurations, width="stretch")
            b = _picked("B", "preset_b", SECOND_PRESET, fields.SECOND)
        measured = _sketched(chosen, record.step)
        size = batch_size.USUAL if isinstance(measured, str) else batch_size.batch_size()
    for sentence in notices.sentences("preset_b", f"{fields.SECOND}fields", batch_size.KEY):
        above.warning(plain(sentence))
    with right:
        _live(chosen, record, (a, b), measured, size)


def _sketched(chosen: session.Selection, step: int) -> Sketched | str:
    """What was recorded of the step's gradient, or why there is none."""
    try:
        return sketches.sketched(chosen.run, step)
    except UsageError as error:
        return str(error)


def _picked(name: str, key: str, default: str, side: str) -> CorrectionConfig:
    st.markdown(say.HEADING[name])
    return settings(PRESETS[preset_name(f"Preset of {name}", key, default, side)].config, side)


@st.fragment
def _live(
    chosen: session.Selection,
    record: StepRecord,
    pair: tuple[CorrectionConfig, CorrectionConfig],
    measured: Sketched | str,
    size: int,
) -> None:
    """What moves with a bound of either."""
    batch, a, b = record.batch, bounded(pair[0]), bounded(pair[1], fields.SECOND)
    of = corrections.identity(chosen.run, record.step)
    sliders = [
        *bound_sliders(
            a, lambda at: moving.two_corrections(batch, at, b), strip=_strips(of, batch, "A", b),
            places_of=partial(places_on, [(of, batch)], a), text=moving.EXPLAINED["A"],
        ),
        *bound_sliders(
            b, lambda at: moving.two_corrections(batch, a, at), strip=_strips(of, batch, "B", a),
            places_of=partial(places_on, [(of, batch)], b), side=fields.SECOND, text=moving.EXPLAINED["B"],
        ),
    ]  # fmt: skip
    gradients, refused = _compared(measured, a, b, size), ""
    if not isinstance(gradients, str):
        st.markdown(f"##### {plain(say.advice(gradients.progress[0], size))}")
    try:
        moved = moving.two_corrections(batch, a, b)
    except UsageError as error:
        moved, refused = Moving({}, []), str(error)
    show_live(sliders, moved, key="compared", resets=resets())
    if refused:
        st.error(plain(refused))
        return
    left, right = st.columns(2, gap="medium")
    with left:
        of_a, of_b = corrections.corrected(batch, a), corrections.corrected(batch, b)
        figure = comparison.weights_against(batch, of_a[0], of_b[0])
        picture("Weights of B against A", figure, key="weights_against", caption=say.WEIGHTS)
        _others(metric_pairs(of_a[1], of_b[1]))
    with right:
        _gradients(gradients, size)


def _strips(of: corrections.Identity, batch: TokenBatch, name: str, still: CorrectionConfig) -> StripOf:
    """Of the bounds of A or of B, beside the other as it is."""
    return lambda at, bound, places: (
        strips.known_by(("compare", name, of, repr(still)), at, bound, places),
        partial(moving.two_corrections_strip, batch, at, still, name, bound, places),
    )


def _swap_configurations() -> None:
    presets = st.session_state["preset"], st.session_state["preset_b"]
    st.session_state["preset_b"], st.session_state["preset"] = presets
    fields.swap()


def _others(pairs: list[MetricPair]) -> None:
    """The metrics that are no headlines: those that differ, and those that do not."""
    others = [pair for pair in pairs if pair.key not in say.HEADLINES]
    for title, wanted in ((say.DIFFERENT, False), (say.EQUAL, True)):
        listed = [pair for pair in others if (pair.a == pair.b) == wanted]
        if listed:
            with st.expander(f"{title} ({len(listed)})"):
                st.html(say.pairs_table(moving.HEADER, say.metric_rows(listed)))


def _compared(
    measured: Sketched | str, a: CorrectionConfig, b: CorrectionConfig, size: int
) -> GradientComparison | str:
    """The two gradients, or why there are none."""
    if isinstance(measured, str):
        return measured
    try:
        gradients = sketches.compared(measured, a, b, size)
    except UsageError as error:
        return str(error)
    return NOISE_REFERENCE if gradients.a.reference_length.value == 0 else gradients


def _gradients(gradients: GradientComparison | str, size: int) -> None:
    st.markdown("**Gradients**")
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
        picture("Progress, bias, noise", bars, key="bars", caption=say.GRADIENT_BARS)
    with right:
        figure = comparison.differences(gradients, size)
        picture("B − A", figure, key="differences", caption=say.GRADIENT_DIFFERENCES)


# --- one configuration on two batches ---


def _runs(chosen: session.Selection, record: StepRecord) -> None:
    place = st.container(key="second")
    with place:
        second = pick_second(recorded.all_runs(), chosen)
    for sentence in notices.sentences("run_b", "step_b"):
        st.warning(plain(sentence))
    if second.step is None:
        st.info(say.NO_STEP_B)
        return
    other = chosen_record(second, second.step)
    if other is None:
        return
    names = {"A": say.batch_name(chosen.slug, record.step), "B": say.batch_name(second.slug, other.step)}
    place.button(say.SWAP, key="swap_runs", on_click=_swap_runs, args=(chosen, second))
    st.caption(say.SAME_STEP if names["A"] == names["B"] else say.RUNS_INTRO)
    sources = recorded.source(chosen.run, record.step), recorded.source(second.run, other.step)
    try:
        _densities(names, record.batch, other.batch, sources)
        identities = corrections.identity(chosen.run, record.step), corrections.identity(second.run, other.step)
        _same_configuration(identities, (record.batch, other.batch), "\n".join(sources))
    except UsageError as error:
        st.error(plain(str(error)))


def _swap_runs(a: session.Selection, b: session.Selection) -> None:
    for (run, step), of in ((("run", "step"), b), (("run_b", "step_b"), a)):
        st.session_state[run] = of.slug
        st.session_state[step] = session.LATEST if of.step is None else str(of.step)
        notices.clear(run)
        notices.clear(step)


def _densities(names: dict[str, str], a: TokenBatch, b: TokenBatch, sources: tuple[str, str]) -> None:
    magnified = comparison.ratio_densities(a, b)
    for place, (name, title), batch, figure, source in zip(
        st.columns(2, gap="medium"), names.items(), (a, b), (magnified.a, magnified.b), sources, strict=True
    ):
        with place:
            st.markdown(f"##### {name}: {title}\n\n{plain(triage(batch)[0].sentence)}")
            both = cells.probability_density(batch)
            picture("Both probabilities", both, key=f"density_{name}", caption=say.DENSITY, source=source)
            picture("The difference", figure, key=f"magnified_{name}", caption=say.MAGNIFIED, source=source)


@st.fragment
def _same_configuration(of: Identities, batches: tuple[TokenBatch, TokenBatch], source: str) -> None:
    left, right = st.columns([1, 3], gap="medium")
    with left:
        config = settings(PRESETS[preset_name()].config)
        for sentence in notices.sentences():
            st.warning(plain(sentence))
    with right:
        _live_same(of, batches, config, source)


@st.fragment
def _live_same(of: Identities, batches: tuple[TokenBatch, TokenBatch], config: CorrectionConfig, source: str) -> None:
    """What moves with a bound of both."""
    config, (a, b) = bounded(config), batches
    sliders = bound_sliders(
        config,
        lambda at: moving.two_batches(a, b, at),
        strip=lambda at, bound, places: (
            strips.known_by(("compare", of), at, bound, places),
            partial(moving.two_batches_strip, batches, at, bound, places),
        ),
        places_of=partial(places_on, [*zip(of, batches, strict=True)], config),
        text=moving.EXPLAINED["A"],
    )
    refused = ""
    try:
        moved = moving.two_batches(a, b, config)
    except UsageError as error:
        moved, refused = Moving({}, []), str(error)
    show_live(sliders, moved, key="same", resets=resets(), source=source)
    if refused:
        st.error(plain(refused))
    else:
        _others(metric_pairs(corrections.corrected(a, config)[1], corrections.corrected(b, config)[1]))


show(session.selection())
