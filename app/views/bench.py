"""The correction bench: one step, one preset, and its thresholds, live."""

import controls
import data
import state
import streamlit as st
import words
from views.picture import picture

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, plots, sweep_plots
from rlcorr.errors import UsageError
from rlcorr.export import exports
from rlcorr.report import describe
from rlcorr.runs import StepRecord
from rlcorr.thresholds import is_ratio


@st.fragment
def bench(chosen: state.Selection, record: StepRecord) -> None:
    """What is picked, and beside it what moves with the first bound."""
    of = data.identity(chosen.run, record.step)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = controls.preset_name()
        config = controls.settings(PRESETS[name].config)
        with st.container(key="budget"):
            _budget(of, record.batch, config)
    for sentence in state.notices():
        st.warning(words.plain(sentence))
    with right:
        live(of, record.batch, name, config)


@st.fragment
def live(of: data.Identity, batch: TokenBatch, name: str, config: CorrectionConfig) -> None:
    """A threshold that is dragged reruns this function and nothing else."""
    config = controls.live_bound(config)
    try:
        result, report = data.corrected(batch, config)
    except UsageError as error:
        st.error(words.plain(str(error)))
        return
    _numbers(config, report)
    _pictures(batch, result, config)
    _over_the_bound(of, batch, config)
    _explain(name, config)
    _use_it(config)


def _numbers(config: CorrectionConfig, report: dict[str, float]) -> None:
    clipped = report.get("rollout_is_oob_ratio")
    shown = (
        ("Kept tokens", "kept_fraction", None, 105),
        ("Sequences touched", "rollout_rs_seq_masked_fraction", None, 152),
        ("ESS", "trained_eff_sample_size", None, 95),
        ("Mean weight", "trained_is_mean", words.number(report["trained_is_mean"]), 112),
        ("Clipped mass", "rollout_is_oob_ratio", words.percent(clipped), 115),
        ("k3", "k3_kl", words.number(report["k3_kl"]), 100),
        ("Mean |Δ|", "abs_log_ratio", words.number(report["abs_log_ratio"]), 100),
    )
    with st.container(horizontal=True, key="numbers"):
        for label, metric, text, width in shown:
            value = words.percent(report[metric]) if text is None else text
            st.metric(label, value, help=words.plain(describe(metric)), width=width)


def _pictures(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> None:
    places = iter(st.columns(2) if not config.rollout_rs or config.rollout_is is None else st.columns(3))
    if config.rollout_is is not None or not config.rollout_rs:
        with next(places):
            figure = plots.weight_histogram(batch, result, config)
            picture("Importance weights", figure, key="weights", caption=words.WEIGHTS)
    for rule in config.rollout_rs[:1]:
        with next(places):
            figure = plots.statistic_histogram(batch, result, rule)
            picture(f"Rule `{rule.name}`", figure, key="statistic", caption=words.STATISTIC)
    with next(places):
        figure = plots.fate_mask(plots.token_fates(batch, result, config))
        picture("Tokens", figure, key="mask", caption=words.MASK)


def _over_the_bound(of: data.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """Every metric over the bound that is dragged."""
    bounds = controls.bounds_of(config)
    if not bounds:
        return
    at = bounds[0].value
    rule, side = controls.part_of(config, bounds[0])
    try:
        curves = data.curves(of, batch, config, rule, side)
    except UsageError as error:
        st.info(words.plain(str(error)))
        return
    of_ratio = is_ratio(config, rule)
    places = st.columns(2, gap="medium")
    with places[0]:
        figure = sweep_plots.shares_over(curves.sweep, curves.thresholds, curves.found, of_ratio=of_ratio, at=at)
        picture("What the bound costs", figure, key="shares_over", caption=words.CURVES_OVER)
    with places[1]:
        figure = sweep_plots.mismatch_over(curves.thresholds, curves.found, of_ratio=of_ratio, at=at)
        picture("What the bound leaves", figure, key="mismatch_over", caption=words.LEFT_OVER)


def _budget(of: data.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """The bound that can be dragged, from what one can afford."""
    bounds = controls.bounds_of(config)
    if not bounds:
        return
    rule, _ = controls.part_of(config, bounds[0])
    st.markdown("**Budget**")
    st.caption(words.BUDGET)
    kind = st.radio("Afford", list(words.BUDGETS), key="budget_of", label_visibility="collapsed")
    share = st.number_input("At least, %", 1.0, 100.0, 95.0, 1.0, key="budget_share") / 100
    try:
        threshold = data.affordable(of, batch, config, rule, words.BUDGETS[kind], share)
    except UsageError as error:
        st.info(words.plain(str(error)))
        return
    st.markdown(f"Threshold **{threshold:.6g}**")
    st.button("Set it", key="budget_set", on_click=controls.set_threshold, args=(config, threshold, rule))


def _use_it(config: CorrectionConfig) -> None:
    """Drawn only where it is open, because code is dear to draw and a bound that is dragged changes it."""
    expander = st.expander("Use it", key="use_it", on_change="rerun")
    if not expander.open:
        return
    with expander:
        st.caption(words.USE_IT)
        for place, (title, language, text) in zip(st.columns(3), exports(config), strict=True):
            place.markdown(f"**{title}**")
            place.code(text, language=language)


def _explain(name: str, config: CorrectionConfig) -> None:
    left, right = st.columns(2, gap="medium")
    left.markdown(f"**What it does:** {words.plain(config.explain())}")
    right.markdown(f"**When it hurts:** {words.plain(PRESETS[name].hurts)}.")
    right.caption(f"Source: {words.plain(PRESETS[name].source)}.")


def show(chosen: state.Selection) -> None:
    record = controls.explained_record(chosen, words.EXPLAIN)
    if record is not None:
        bench(chosen, record)


show(state.selection())
