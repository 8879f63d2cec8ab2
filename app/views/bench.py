"""The correction bench: one step, one preset, and its thresholds, live."""

import streamlit as st
from controls import systems
from controls.bounds import bounds_of
from controls.configuration import live_bound, preset_name, set_threshold, settings
from controls.moving import Moving, Number, Picture, moved
from controls.moving import show as show_moving
from controls.pickers import explained_record
from data import corrections
from remembered import notices, session
from words import words
from words.text import number, percent, plain

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch
from rlcorr.analysis.thresholds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import correction, thresholds
from rlcorr.records.step_files import StepRecord
from rlcorr.report import describe
from rlcorr.systems.export import exports


@st.fragment
def bench(chosen: session.Selection, record: StepRecord) -> None:
    """What is picked, and beside it what moves with the first bound."""
    of = corrections.identity(chosen.run, record.step)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = preset_name()
        config = settings(PRESETS[name].config)
        with st.container(key="budget"):
            _budget(of, record.batch, config)
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    with right:
        live(of, record.batch, name, config)


@st.fragment
def live(of: corrections.Identity, batch: TokenBatch, name: str, config: CorrectionConfig) -> None:
    """What moves with a threshold."""
    config = live_bound(config, answer=lambda at: moved(_moving(of, batch, at)))
    try:
        show_moving(_moving(of, batch, config))
    except UsageError as error:
        st.error(plain(str(error)))
        return
    _explain(name, config)
    _use_it(name, config)


def _moving(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> Moving:
    result, report = corrections.corrected(batch, config)
    pictures, texts = _pictures(batch, result, config), {".st-key-explained p": f" {config.explain()}"}
    try:
        curves, refused = _over_the_bound(of, batch, config), ""
    except UsageError as error:
        curves, refused = {}, str(error)
    return Moving(_numbers(report), [row for row in (pictures, curves) if row], refused, texts)


def _numbers(report: dict[str, float]) -> dict[str, Number]:
    shown = (
        ("Kept tokens", "kept_fraction", percent, 105),
        ("Sequences touched", "rollout_rs_seq_masked_fraction", percent, 152),
        ("ESS of the kept", "trained_eff_sample_size", percent, 130),
        ("Mean weight", "trained_is_mean", number, 112),
        ("Clipped mass", "rollout_is_oob_ratio", percent, 115),
        ("k3", "k3_kl", number, 100),
        ("Mean |Δ|", "abs_log_ratio", number, 100),
    )
    return {
        label: Number(written(report.get(metric)), describe(metric), width) for label, metric, written, width in shown
    }


def _pictures(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Picture]:
    pictures = {}
    if config.rollout_is is not None or not config.rollout_rs:
        figure = correction.weight_histogram(batch, result, config)
        pictures["weights"] = Picture(figure, "Importance weights", words.WEIGHTS)
    for rule in config.rollout_rs[:1]:
        figure = correction.statistic_histogram(batch, result, rule)
        pictures["statistic"] = Picture(figure, f"Rule `{rule.name}`", words.STATISTIC)
    figure = correction.fate_mask(correction.token_fates(batch, result, config))
    return pictures | {"mask": Picture(figure, "Tokens", words.MASK)}


def _over_the_bound(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> dict[str, Picture]:
    """Every metric over the bound that is dragged. Raises `UsageError` where no item is off."""
    bounds = bounds_of(config)
    if not bounds:
        return {}
    at = bounds[0].value
    rule, side = bounds[0].rule, bounds[0].side
    curves = corrections.curves(of, batch, config, rule, side)
    of_ratio = is_ratio(config, rule)
    shares = thresholds.shares_over(curves.sweep, curves.thresholds, curves.metrics, of_ratio=of_ratio, at=at)
    left = thresholds.mismatch_over(curves.thresholds, curves.metrics, of_ratio=of_ratio, at=at)
    return {
        "shares_over": Picture(shares, "What the bound costs", words.CURVES_OVER),
        "mismatch_over": Picture(left, "What the bound leaves", words.LEFT_OVER),
    }


def _budget(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """The bounds that a target allows: of the first rule that reaches it, or else of the weights. Rules come first
    because they leave tokens out; a cap on the weights keeps every token."""
    parts = sorted({bound.rule for bound in bounds_of(config)}, key=lambda rule: (rule is None, rule))
    if not parts:
        return
    st.markdown("**Budget**")
    st.caption(words.BUDGET)
    kind = st.radio("Afford", list(words.BUDGETS), key="budget_of", label_visibility="collapsed")
    share = st.number_input("At least, %", 1.0, 100.0, 95.0, 1.0, key="budget_share") / 100
    try:
        reached = corrections.affordable(of, batch, config, parts, words.BUDGETS[kind], share)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    st.markdown(f"{plain(words.budget_part(config, reached.rule))}: threshold **{reached.threshold:.6g}**")
    st.caption(plain(words.BUDGET_AFTER.format(kept=percent(reached.kept), ess=percent(reached.ess))))
    st.button("Set it", key="budget_set", on_click=set_threshold, args=(config, reached.threshold, reached.rule))


def _use_it(name: str, config: CorrectionConfig) -> None:
    """Drawn only where it is open: blocks of code are slow to draw, and every new bound changes them."""
    expander = st.expander("Use it", key="use_it", on_change="rerun")
    if not expander.open:
        return
    with expander:
        st.caption(words.USE_IT)
        chosen = systems.system()
        for sentence in notices.sentences(systems.KEY):
            st.warning(plain(sentence))
        texts = {title: (text, language) for title, language, text in exports(config, PRESETS[name].loss)}
        for place, title in zip(st.columns(2), dict.fromkeys((chosen, "Python")), strict=False):
            text, language = texts[title]
            place.markdown(f"**{title}**")
            place.code(text, language=language, wrap_lines=True)


def _explain(name: str, config: CorrectionConfig) -> None:
    left, right = st.columns(2, gap="medium")
    with left.container(key="explained"):
        st.markdown(f"**What it does:** {plain(config.explain())}")
    right.markdown(f"**When it hurts:** {plain(PRESETS[name].hurts)}.")
    right.caption(f"Source: {plain(PRESETS[name].source)}.")


def show(chosen: session.Selection) -> None:
    record = explained_record(chosen, words.EXPLAIN)
    if record is not None:
        bench(chosen, record)


show(session.selection())
