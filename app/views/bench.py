"""The correction bench: one step, one preset, and its thresholds, live."""

import controls
import data
import state
import streamlit as st
import words
from views.picture import picture

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, budget, plots, sweep_plots
from rlcorr.errors import UsageError
from rlcorr.export import exports
from rlcorr.report import describe
from rlcorr.runs import StepRecord
from rlcorr.thresholds import is_ratio


@st.fragment
def bench(chosen: state.Selection, record: StepRecord) -> None:
    """Controls and pictures in one fragment: a threshold reruns this function and nothing else."""
    batch = record.batch
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = controls.preset_name()
        config = controls.thresholds(PRESETS[name].config)
    for sentence in state.notices():
        st.warning(words.plain(sentence))
    try:
        result, report = data.corrected(batch, config)
    except UsageError as error:
        st.error(words.plain(str(error)))
        return
    with right:
        _numbers(config, report)
        _pictures(batch, result, config)
    _over_the_bound(chosen, record, config)
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


def _over_the_bound(chosen: state.Selection, record: StepRecord, config: CorrectionConfig) -> None:
    """Every metric over the bound that is dragged, and the bound that a budget allows."""
    bounds = controls.bounds_of(config)
    if not bounds:
        return
    b = bounds[0]
    rule, side = controls.part_of(config, b)
    of = data.identity(chosen.run, record.step)
    try:
        sweep, thresholds = data.swept(of, record.batch, config, rule, side)
    except UsageError as error:
        st.info(words.plain(str(error)))
        return
    curves = budget.over(sweep, config, thresholds, rule, side)
    at, of_ratio = b.value, is_ratio(config, rule)
    places = st.columns([3, 3, 2], gap="medium")
    with places[0]:
        figure = sweep_plots.shares_over(sweep, thresholds, curves, of_ratio=of_ratio, at=at)
        picture("What the bound costs", figure, key="shares_over", caption=words.CURVES_OVER)
    with places[1]:
        figure = sweep_plots.mismatch_over(thresholds, curves, of_ratio=of_ratio, at=at)
        picture("What the bound leaves", figure, key="mismatch_over", caption=words.LEFT_OVER)
    with places[2], st.container(key="budget"):
        _budget(record.batch, config, rule)


def _budget(batch: TokenBatch, config: CorrectionConfig, rule: int | None) -> None:
    st.markdown("**Budget**")
    st.caption(words.BUDGET)
    kind = st.radio("Afford", list(words.BUDGETS), key="budget_of", label_visibility="collapsed")
    share = st.number_input("At least, %", 1.0, 100.0, 95.0, 1.0, key="budget_share") / 100
    solve = budget.keep_at_least if kind == next(iter(words.BUDGETS)) else budget.ess_at_least
    try:
        threshold = solve(batch, config, share, rule)
    except UsageError as error:
        st.info(words.plain(str(error)))
        return
    st.markdown(f"Threshold **{threshold:.6g}**")
    st.button("Set it", key="budget_set", on_click=controls.set_threshold, args=(config, threshold, rule))


def _use_it(config: CorrectionConfig) -> None:
    with st.expander("Use it", key="use_it"):
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
