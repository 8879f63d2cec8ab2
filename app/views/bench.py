"""The correction bench: one step, one preset, and its bounds, which can be dragged."""

from functools import partial

import streamlit as st
from components.live_part import LiveContent
from controls import systems
from controls.bounds import bounds_of, m2po_rule_index, useful_slider_values
from controls.configuration import bound_sliders, bounded, preset_name, resets, set_threshold, settings
from controls.drag import show_live
from controls.pickers import explain, picked_record
from data import corrections
from live import bench as live_bench
from live import strips
from state import address, notices, session
from text import phrases
from text.formatting import percent, plain

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.adaptive import m2po
from rlcorr.bounds import BoundId
from rlcorr.errors import UsageError
from rlcorr.records.step_files import StepRecord

BUDGETS: dict[str, corrections.Budget] = {phrases.BUDGET_KEEP: "keep", phrases.BUDGET_ESS: "ess"}


@address.fragment
def bench(selection: session.Selection, record: StepRecord) -> None:
    """Show the controls, and next to them the live part."""
    identity, batch = corrections.identity(selection.run, record.step), record.batch
    above = st.container()
    left, right = st.columns([3, 1], gap="medium")  # on a phone the right one is below the pictures
    with right, st.container(key="side"):
        name = preset_name()
        config = settings(PRESETS[name].config)
        if of_turns := _per_turn(batch):
            identity, batch = corrections.per_turn(identity, batch)
        with st.container(key="budget"):
            _budget(identity, batch, config)
            if (rule_index := m2po_rule_index(config)) is not None:
                _m2po(batch, config, BoundId(rule_index))
    for sentence in notices.sentences():
        above.warning(plain(sentence))
    with left:
        live(identity, batch, name, config, of_turns)


@address.fragment
def live(
    identity: corrections.Identity, batch: TokenBatch, name: str, config: CorrectionConfig, of_turns: bool
) -> None:
    """Show what changes with a bound, and the export below it."""
    config, preset = bounded(config), PRESETS[name]
    sliders = bound_sliders(
        config,
        lambda varied: live_bench.bench(identity, batch, varied, preset),
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
    show_live(sliders, content, key="bench", resets=resets())
    if refused:
        st.error(plain(refused))
    else:
        _export(name, config, of_turns)


def _per_turn(batch: TokenBatch) -> bool:
    """Show the switch for turns, and return whether each turn is corrected on its own.

    Most batches have no turns. Then there is no switch, and a link that asks for it gets a sentence.
    """
    if batch.turn_ids is None:
        if address.text("turns") is not None:
            st.warning(plain(phrases.NO_TURNS))
        address.write({"turns": None})
        return False
    address.restore("turns", False, lambda raw: raw == "true")
    chosen = st.toggle(phrases.PER_TURN, key="turns", help=phrases.PER_TURN_IS)
    address.say("turns", chosen, False, lambda _: "true")
    return chosen


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
    kind = st.radio(phrases.BUDGET, list(BUDGETS), key="budget_of", label_visibility="collapsed")
    share = st.number_input(phrases.BUDGET_SHARE, 1.0, 100.0, 95.0, 1.0, key="budget_share") / 100
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
    threshold = st.number_input(phrases.M2_BUDGET, 1e-9, 1e3, 0.04, key="budget_m2", format="%g")
    upper = m2po(batch, threshold).upper
    st.button(phrases.BUDGET_SET, key="budget_m2_set", on_click=set_threshold, args=(config, upper, bound))


def _export(name: str, config: CorrectionConfig, of_turns: bool) -> None:
    """Show the text to export if its box is open. Code blocks are slow to draw, and every new bound changes them."""
    expander = st.expander(phrases.EXPORT, key="use_it", on_change="rerun")
    if not expander.open:
        return
    with expander:
        if of_turns:
            st.info(phrases.PER_TURN_EXPORT)
            return
        st.caption(phrases.EXPORT_IS)
        system = systems.system()
        for sentence in notices.sentences(systems.KEY):
            st.warning(plain(sentence))
        systems.text_for(system, config, PRESETS[name].loss)


def show(selection: session.Selection) -> None:
    record = picked_record(selection)
    if record is not None:
        bench(selection, record)
    explain(phrases.EXPLAIN)


show(session.selection())
