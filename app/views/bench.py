"""The correction bench: one step, one preset, and its thresholds, live."""

import controls
import data
import state
import streamlit as st
import words
from views.picture import picture

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, plots
from rlcorr.errors import UsageError
from rlcorr.report import describe


@st.fragment
def bench(batch: TokenBatch) -> None:
    """Controls and pictures in one fragment: a threshold reruns this function and nothing else."""
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
    _explain(name, config)


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


def _explain(name: str, config: CorrectionConfig) -> None:
    left, right = st.columns(2, gap="medium")
    left.markdown(f"**What it does:** {words.plain(config.explain())}")
    right.markdown(f"**When it hurts:** {words.plain(PRESETS[name].hurts)}.")
    right.caption(f"Source: {words.plain(PRESETS[name].source)}.")


def show(chosen: state.Selection) -> None:
    with st.expander("What is this?"):
        st.write(words.EXPLAIN)
        st.caption(words.COLOURS)
    if chosen.step is None:
        st.info(words.NO_STEPS)
        return
    record = controls.chosen_record(chosen, chosen.step)
    if record is not None:
        bench(record.batch)


show(state.selection())
