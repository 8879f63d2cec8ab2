"""The correction bench: one step, one preset, and its thresholds, live."""

from functools import partial

import streamlit as st
from components.live_part import Moving
from controls import systems
from controls.bounds import bounds_of, places_on
from controls.configuration import bound_sliders, bounded, preset_name, resets, set_threshold, settings
from controls.live import show as show_live
from controls.pickers import explained_record
from data import corrections
from live import bench as moving
from live import strips
from state import notices, session
from text import phrases
from text.formatting import percent, plain

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.adaptive import m2po
from rlcorr.errors import UsageError
from rlcorr.records.step_files import StepRecord

# On a phone the columns stand below one another: the budget below the pictures, so that the bound is near the top.
BUDGET_LAST = """<style>
@media (max-width: 640px) {
  [data-testid="stHorizontalBlock"]:has(> * > * > * > .st-key-budget) {
    > [data-testid="stColumn"]:first-child, > [data-testid="stColumn"]:first-child > [data-testid="stVerticalBlock"] {
      display: contents;
      > * { flex: 1 1 100% }
    }
    [data-testid="stLayoutWrapper"]:has(> .st-key-budget) { order: 1 }
  }
}
</style>"""


@st.fragment
def bench(chosen: session.Selection, record: StepRecord) -> None:
    """What is picked, and beside it what moves with the first bound."""
    of = corrections.identity(chosen.run, record.step)
    st.html(BUDGET_LAST)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = preset_name()
        config = settings(PRESETS[name].config)
        with st.container(key="budget"):
            _budget(of, record.batch, config)
            if (rule := phrases.m2_rule(config)) is not None:
                _m2po(record.batch, config, rule)
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    with right:
        live(of, record.batch, name, config)


@st.fragment
def live(of: corrections.Identity, batch: TokenBatch, name: str, config: CorrectionConfig) -> None:
    """What moves with a threshold."""
    config, chosen = bounded(config), PRESETS[name]
    sliders = bound_sliders(
        config,
        lambda at: moving.bench(of, batch, at, chosen),
        strip=lambda at, b, places: (
            strips.known_by(of, at, b, places),
            partial(moving.bench_strip, of, batch, at, b, places),
        ),
        places_of=partial(places_on, [(of, batch)], config),
    )
    refused = ""
    try:
        moved = moving.bench(of, batch, config, chosen)
    except UsageError as error:
        moved, refused = Moving({}, []), str(error)
    show_live(sliders, moved, key="bench", resets=resets())
    if refused:
        st.error(plain(refused))
    else:
        _use_it(name, config)


def _budget(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> None:
    """The bounds that a target allows: of the first rule that reaches it, or else of the weights. Rules come first
    because they leave tokens out; a cap on the weights keeps every token."""
    parts = sorted({bound.rule for bound in bounds_of(config)}, key=lambda rule: (rule is None, rule))
    if not parts:
        return
    st.markdown("**Budget**")
    st.caption(phrases.BUDGET)
    kind = st.radio("Afford", list(phrases.BUDGETS), key="budget_of", label_visibility="collapsed")
    share = st.number_input("At least, %", 1.0, 100.0, 95.0, 1.0, key="budget_share") / 100
    try:
        reached = corrections.affordable(of, batch, config, parts, phrases.BUDGETS[kind], share)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    st.markdown(f"{plain(phrases.budget_part(config, reached.rule))}: threshold **{reached.threshold:.6g}**")
    st.caption(plain(phrases.BUDGET_AFTER.format(kept=percent(reached.kept), ess=percent(reached.ess))))
    st.button("Set it", key="budget_set", on_click=set_threshold, args=(config, reached.threshold, reached.rule))


def _m2po(batch: TokenBatch, config: CorrectionConfig, rule: int) -> None:
    threshold = st.number_input(phrases.M2_BUDGET, 1e-9, 1e3, 0.04, key="budget_m2", format="%g")
    upper = m2po(batch, threshold).upper
    st.button("Set it", key="budget_m2_set", on_click=set_threshold, args=(config, upper, rule))


def _use_it(name: str, config: CorrectionConfig) -> None:
    """Drawn only where it is open: blocks of code are slow to draw, and every new bound changes them."""
    expander = st.expander("Use it", key="use_it", on_change="rerun")
    if not expander.open:
        return
    with expander:
        st.caption(phrases.USE_IT)
        chosen = systems.system()
        for sentence in notices.sentences(systems.KEY):
            st.warning(plain(sentence))
        systems.text_for(chosen, config, PRESETS[name].loss)


def show(chosen: session.Selection) -> None:
    record = explained_record(chosen, phrases.EXPLAIN)
    if record is not None:
        bench(chosen, record)


show(session.selection())
