"""The correction bench: what a correction does to one step, for bounds that can be dragged."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import state
import streamlit as st
from components.live_part import ANSWER, LiveContent, Note, Number
from components.picture import Picture
from controls import strips
from controls.configuration import export_text, paste_box, pick_system, set_threshold, settings
from controls.pickers import explain, picked_record
from controls.sharing import run_and_step
from controls.widgets import folding, number, switch
from data import corrections
from data.bounds import Bound, bounds_of, is_first
from data.recorded import Selection
from text import phrases
from text.formatting import number as written
from text.formatting import percent, plain

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch
from rlcorr.analysis.in_words import statistic
from rlcorr.bounds import BoundId, at_threshold, is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import histograms, thresholds
from rlcorr.figures.fates import fate_mask, token_fates
from rlcorr.measuring.metrics import describe
from rlcorr.presets import Preset
from rlcorr.rules import RejectionRule
from rlcorr.strips.packing import Package, PictureStrip, arrays_of
from rlcorr.strips.strip import strip

CURVES_OVER = (
    "Every value of the first slider. The other sliders stay. Dotted: the present value; you can drag this line."
)
PER_TURN_EXPORT = (
    "No system corrects each turn on its own, so there is no text for one. In Python, "
    "`rlcorr.analysis.segments.correct_per_turn(batch, config)` does it."
)
PER_TURN_IS = (
    "Products, means and rules of an answer are then those of each turn between the answers of tools, and an answer "
    "on this page is a turn."
)
MASK = "Rows are answers, columns are tokens. If several tokens share a cell, it shows the most severe outcome."
STATISTIC = (
    "The number that the rule compares with its thresholds (dashed; you can drag them). Grey bars are outside the "
    "thresholds: they are rejected."
)
BUDGETS: dict[str, corrections.Budget] = {phrases.BUDGET_KEEP: "keep", phrases.BUDGET_ESS: "ess"}
USUAL_CAPS = 2, 5
"""Between these are the caps of 26 of the 28 presets with a finite one."""
EXPLAINED = "explained"


def show(shown: Selection) -> None:
    """Show the controls, and next to them the live part."""
    if (record := picked_record(shown)) is not None:
        identity, batch = corrections.identity(shown.run, record.step), record.batch
        left, right = st.columns([3, 1], gap="medium")  # on a phone the right one is below the pictures
        with right, st.container(key="side"):
            config = settings()
            paste_box()
            of_turns = batch.turn_ids is not None and switch("turns", "Correct each turn on its own", help=PER_TURN_IS)
            if of_turns:
                identity, batch = corrections.per_turn(identity, batch)
            elif batch.turn_ids is None and state.get("turns"):  # a link asks for it
                st.warning(plain("This batch has no turns (turn_ids), so an answer can only be corrected as a whole."))
                state.change(turns=False)
            with st.container(key="budget"):
                _budget(identity, batch, config)
        with left:
            _live(identity, batch, config, of_turns, shown)
    explain(phrases.EXPLAIN)


def _live(
    identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, of_turns: bool, shown: Selection
) -> None:
    """Show what changes with a bound, and the export below it."""
    make = partial(bench, identity, batch, preset=PRESETS[state.get("preset")])
    strip_of = partial(bench_strip, identity, batch)
    if not strips.show_live("bench", config, make, strip_of, identity, batch, shown.source):
        return
    box = folding("use_it", phrases.EXPORT)
    if state.get("use_it"):  # code blocks are slow to draw, and every new bound changes them
        with box:
            if of_turns:
                st.info(PER_TURN_EXPORT)
            else:
                st.caption(phrases.EXPORT_IS)
                loss = PRESETS[state.get("preset")].loss
                export_text(pick_system(), config, loss, run_and_step(shown))


def _budget(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """Show the threshold that meets a target, and a button that sets it.

    The rules are tried first, because they reject tokens. A cap on the weights keeps every token.
    """
    rule_indices = {b.id.rule_index for b in bounds_of(config)}
    bounds = [BoundId(index) for index in sorted(rule_indices, key=lambda index: (index is None, index))]
    if not bounds:
        return
    st.markdown("**Budget**")
    st.caption("Find the strictest threshold that still leaves this much.")
    kinds = list(BUDGETS)
    kind = st.radio(
        "Find the threshold for a target.", kinds, kinds.index(state.get("budget_of")), key=state.widget("budget_of"),
        label_visibility="collapsed",
    )  # fmt: skip
    share = number("budget_share", "At least, %", 1, 100, step=1.0) / 100
    tried = corrections.try_bounds(identity, batch, config, bounds, BUDGETS[kind], share)
    reached = tried[-1]
    kept, ess = percent(reached.kept), percent(reached.ess)
    if not reached.is_enough:
        sentences = [f"No threshold reaches {percent(share)}."]
        for one in tried:
            best = f"the best threshold, {one.threshold:.4g}, reaches"
            share_then = percent(one.kept if BUDGETS[kind] == "keep" else one.ess)
            said = one.refusal or f"{best} {share_then} with the whole correction."
            sentences.append(f"{_part(config, one.bound)}: {said}")
        st.info(plain(" ".join(sentences)))
        return
    st.markdown(f"{plain(_part(config, reached.bound))}: threshold **{reached.threshold:.6g}**")
    st.caption(plain(f"The whole correction then keeps {kept} of the tokens. Their effective sample size is {ess}."))
    if reached.bound.rule_index is None and reached.threshold < USUAL_CAPS[0] and config.rollout_is_mode == "truncate":
        st.caption("Most presets cap weights at {} to {}.".format(*USUAL_CAPS))
    arguments = config, reached.threshold, reached.bound
    st.button("Set it", key="budget_set", on_click=set_threshold, args=arguments)


# --- the live part ---


def bench(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, preset: Preset) -> LiveContent:
    """Return the content of the bench. Raises `UsageError` if the correction does."""
    result, report = corrections.corrected(batch, config)
    pictures, bounds = pictures_of(batch, result, config), bounds_of(config)
    try:
        curves, refused = curves_over(identity, batch, config, bounds[0]) if bounds else {}, ""
    except UsageError as error:
        curves, refused = {}, str(error)
    notes = [Note("**What it does:**", EXPLAINED), Note(when_it_hurts(preset))]
    rows = [row for row in (pictures, curves) if row]
    texts = {ANSWER: _answer(report, config.rollout_is_mode), EXPLAINED: config.explain()}
    return LiveContent(numbers_of(report), rows, refused, texts=texts, notes=notes)


def when_it_hurts(preset: Preset) -> str:
    """Return, in Markdown, when the preset fails, with its source."""
    return f"**When it hurts:** {plain(preset.fails_when)}. Source: {plain(preset.source)}."


def bench_strip(
    identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound, slider_values: strips.Values
) -> Package:
    """Return what changes in `bench`, for every value of the slider of this bound."""
    bound_strip = strip(batch, config, slider_values, b.id)
    pictures = {"weights": strips.histogram("weights", bound_strip.weights), "mask": PictureStrip(cells=True)}
    if bound_strip.statistic is not None and b.id.rule_index == 0:
        pictures["statistic"] = strips.histogram("statistic", bound_strip.statistic)
    if is_first(b, config):
        with suppress(UsageError):  # no item is off neutral; the page says so instead of showing the curves
            curve = corrections.curve(identity, batch, config, b.id)
            cursors = thresholds.cursors(curve.thresholds, slider_values, of_ratio=is_ratio(config, b.id))
            pictures |= dict.fromkeys(("shares_over", "mismatch_over"), PictureStrip(shapes=cursors))
    varied = [at_threshold(config, value, b.id) for value in slider_values]
    reports = strips.reports(batch, config, bound_strip)
    numbers = [numbers_of(one) for one in reports]
    answers = [_answer(one, config.rollout_is_mode) for one in reports]
    texts = {ANSWER: answers, EXPLAINED: [one.explain() for one in varied]}
    return strips.package(arrays_of(bound_strip), numbers, texts, pictures)


def numbers_of(report: dict[str, float]) -> dict[str, Number]:
    """Return the headline numbers that every configuration has."""
    shown = (
        ("Kept tokens", "kept_fraction", percent),
        ("Answers touched", "rollout_rs_seq_masked_fraction", percent),
        ("ESS of the kept", "trained_eff_sample_size", percent),
        ("Mean weight", "trained_is_mean", written),
        ("Weights clipped", "rollout_is_oob_ratio", percent),
        ("k3 before", "k3_kl", written),
        ("Mean |Δ| before", "abs_log_ratio", written),
    )
    return {label: Number(write(report.get(metric)), describe(metric)) for label, metric, write in shown}


def pictures_of(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Picture]:
    """Return the histograms of the weights and of the first rule's statistic, if there are any, and the mask."""
    pictures = {}
    if config.rollout_is is not None or not config.rollout_rs:
        figure = histograms.weight_histogram(batch, result, config)
        pictures["weights"] = Picture(figure, "Importance weights", phrases.WEIGHTS)
    for rule in config.rollout_rs[:1]:
        figure = histograms.statistic_histogram(batch, result, rule)
        pictures["statistic"] = Picture(figure, _rule_title(rule), STATISTIC)
    figure = fate_mask(token_fates(batch, result, config), config)
    return pictures | {"mask": Picture(figure, "Tokens", MASK)}


def curves_over(
    identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound
) -> dict[str, Picture]:
    """Return the metrics over a bound. Raises `UsageError` if no item is off neutral."""
    curve, of_ratio = corrections.curve(identity, batch, config, b.id), is_ratio(config, b.id)
    of_weights = b.id.rule_index is None
    shares = thresholds.shares_over(curve.thresholds, curve.numbers, of_ratio=of_ratio, at=b.value)
    left = thresholds.mismatch_over(curve, of_weights=of_weights, of_ratio=of_ratio, at=b.value)
    caption = (
        "A tighter threshold has less noise (χ² of the weights) and more bias (1 − mean weight)."
        if of_weights
        else "On the tokens that this rule keeps: the distance of the two policies, and the spread of the ratios."
    )
    if of_weights and config.rollout_rs:
        caption += " A rejected token has weight 0 here."
    return {
        "shares_over": Picture(shares, "Cost of the threshold", CURVES_OVER),
        "mismatch_over": Picture(left, "Effect of the threshold", caption),
    }


def _answer(report: Mapping[str, float], mode: str) -> str:
    """Return a sentence about what the correction keeps, and what it does to weights outside the thresholds."""
    outside, clipped = report.get("rollout_is_oob_ratio", 0.0), ""
    if outside:
        clipped = " and clips the weights of " if mode == "truncate" else " and sets the weights of "
        clipped += percent(outside) + ("" if mode == "truncate" else " to 0")
    kept, ess = percent(report["kept_fraction"]), percent(report["trained_eff_sample_size"])
    said = f"This keeps {kept} of the tokens{clipped}."
    return said if ess == kept else f"{said} The effective sample size is {ess}."  # without weights they are the same


def _part(config: CorrectionConfig, bound: BoundId) -> str:
    """Return the name of the rule, or of the weights, whose thresholds a budget moves."""
    index = bound.rule_index
    return "Weights" if index is None else _rule_title(config.rollout_rs[index])


def _rule_title(rule: RejectionRule) -> str:
    """Return the name of what a rule compares, and the slug of the rule.

    >>> _rule_title(RejectionRule.named("seq_mean_k3", upper=0.01))
    'Mean k3 (seq_mean_k3)'
    """
    text = statistic(rule)
    return f"{text[0].upper()}{text[1:]} ({rule.name})"
