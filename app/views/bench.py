"""The correction bench: one step, one preset, and its bounds, which can be dragged."""

from collections.abc import Mapping
from functools import partial

import state
import streamlit as st
from components.live_part import LiveContent, live_part
from controls import systems
from controls.choosing import folding, number, switch
from controls.configuration import bound_sliders, resets, set_threshold, settings
from controls.pickers import explain, picked_record
from controls.sharing import run_and_step
from data import corrections
from data.bounds import bounds_of, m2po_rule_index, useful_slider_values
from data.configuration import FIRST
from data.selection import Selection
from live import bench as live_bench
from live import strips
from text import phrases
from text.formatting import percent, plain

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.adaptive import m2po
from rlcorr.bounds import BoundId
from rlcorr.errors import UsageError
from rlcorr.records.step_files import StepRecord

BUDGETS: dict[str, corrections.Budget] = {phrases.BUDGET_KEEP: "keep", phrases.BUDGET_ESS: "ess"}


def bench(shown: Selection, record: StepRecord) -> None:
    """Show the controls, and next to them the live part."""
    identity, batch = corrections.identity(shown.run, record.step), record.batch
    left, right = st.columns([3, 1], gap="medium")  # on a phone the right one is below the pictures
    with right, st.container(key="side"):
        config = settings()
        if of_turns := _per_turn(batch):
            identity, batch = corrections.per_turn(identity, batch)
        with st.container(key="budget"):
            _budget(identity, batch, config)
            if (rule_index := m2po_rule_index(config)) is not None:
                _m2po(batch, config, BoundId(rule_index))
    with left:
        live(identity, batch, config, of_turns, shown)


def live(
    identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, of_turns: bool, shown: Selection
) -> None:
    """Show what changes with a bound, and the export below it."""
    preset = PRESETS[state.get("preset")]
    sliders = bound_sliders(
        config,
        strip=lambda now, b, slider_values: (
            strips.strip_key(identity, now, b, slider_values),
            partial(live_bench.bench_strip, identity, batch, now, b, slider_values),
        ),
        slider_values=partial(useful_slider_values, [(identity, batch)], config),
    )
    refused = ""
    try:
        content = live_bench.bench(identity, batch, config, preset)
    except UsageError as error:
        content, refused = LiveContent({}, []), str(error)
    live_part(sliders, content, source=shown.source, resets=resets(FIRST))
    if refused:
        st.error(plain(refused))
    else:
        _export(config, of_turns, run_and_step(shown))


def _per_turn(batch: TokenBatch) -> bool:
    """Show the switch for turns, and return whether each turn is corrected on its own.

    Most batches have no turns. Then there is no switch, and a link that asks for it gets a sentence.
    """
    if batch.turn_ids is None:
        if state.get("turns"):
            st.warning(plain(phrases.NO_TURNS))
            state.change(turns=False)
        return False
    return switch("turns", phrases.PER_TURN, help=phrases.PER_TURN_IS)


def _budget(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """Show the threshold that meets a target, and a button that sets it.

    The rules are tried first, because they reject tokens. A cap on the weights keeps every token.
    """
    rule_indices = {b.id.rule_index for b in bounds_of(config)}
    bounds = [BoundId(index) for index in sorted(rule_indices, key=lambda index: (index is None, index))]
    if not bounds:
        return
    st.markdown(f"**{phrases.BUDGET_TITLE}**")
    st.caption(phrases.BUDGET)
    kinds = list(BUDGETS)
    kind = st.radio(
        phrases.BUDGET, kinds, kinds.index(state.get("budget_of")), key=state.widget("budget_of"),
        label_visibility="collapsed",
    )  # fmt: skip
    share = number("budget_share", phrases.BUDGET_SHARE, 1, 100, step=1.0) / 100
    reached = corrections.affordable(identity, batch, config, bounds, BUDGETS[kind], share)
    if not isinstance(reached, corrections.Affordable):
        st.info(plain(_missed(config, share, reached)))
        return
    part = plain(phrases.budget_part(config, reached.bound))
    st.markdown(phrases.BUDGET_REACHED.format(part=part, threshold=reached.threshold))
    st.caption(plain(phrases.BUDGET_AFTER.format(kept=percent(reached.kept), ess=percent(reached.ess))))
    arguments = config, reached.threshold, reached.bound
    st.button(phrases.BUDGET_SET, key="budget_set", on_click=set_threshold, args=arguments)


def _missed(config: CorrectionConfig, share: float, missed: list[corrections.Missed]) -> str:
    """Return sentences about what each bound reaches of a budget that none meets."""
    sentences = [phrases.BUDGET_NONE.format(share=percent(share))]
    for one in missed:
        part = phrases.budget_part(config, one.bound)
        if one.refusal:
            sentences.append(phrases.BUDGET_REFUSED.format(part=part, refusal=one.refusal))
        else:
            reached = percent(one.reached)
            sentences.append(phrases.BUDGET_MISSED.format(part=part, threshold=one.threshold, reached=reached))
    return " ".join(sentences)


def _m2po(batch: TokenBatch, config: CorrectionConfig, bound: BoundId) -> None:
    threshold = number("budget_m2", phrases.M2_BUDGET, 1e-9, 1e3, format="%g")
    upper = m2po(batch, threshold).upper
    st.button(phrases.BUDGET_SET, key="budget_m2_set", on_click=set_threshold, args=(config, upper, bound))


def _export(config: CorrectionConfig, of_turns: bool, link: Mapping[str, str]) -> None:
    """Show the text to export if its box is open. Code blocks are slow to draw, and every new bound changes them."""
    box = folding("use_it", phrases.EXPORT)
    if not state.get("use_it"):
        return
    with box:
        if of_turns:
            st.info(phrases.PER_TURN_EXPORT)
            return
        st.caption(phrases.EXPORT_IS)
        systems.text_for(systems.system(), config, PRESETS[state.get("preset")].loss, link)


def show(shown: Selection) -> None:
    record = picked_record(shown)
    if record is not None:
        bench(shown, record)
    explain(phrases.EXPLAIN)
