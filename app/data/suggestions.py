"""Advice for a run, and thresholds by budget. Cached by the run's files."""

from dataclasses import replace
from pathlib import Path

import streamlit as st

from data import corrections, recorded
from rlcorr import PRESETS
from rlcorr.analysis.advice import Advice, Option, advise
from rlcorr.analysis.budget import Pairs, choose_bound, kept, pairs_of
from rlcorr.analysis.verdicts import Look, look, verdict_lines
from rlcorr.bounds import BAND
from rlcorr.errors import UsageError

SUGGESTED = {
    "decoupled_token_icepop": "band of each token's weight",
    "decoupled_geo_rs": "mean ratio of an answer",
    "decoupled_k3_rs": "mean k3 of an answer",
}
"""Preset whose bounds a budget moves, one for each kind of bound that rejects tokens or gives them weight 0 → what its
threshold limits. A product over an answer is not among them, because its threshold depends on the length."""

Stamps = tuple[corrections.Identity, ...]


@st.cache_resource(max_entries=4, show_spinner=False)
def pairs(stamps: Stamps) -> tuple[Pairs, Pairs | None]:
    """Return the pairs that bounds are chosen on and checked on, as `pairs_of` does."""
    has_advantages = all(recorded.step(Path(run), number).batch.advantages is not None for run, number, _ in stamps)
    steps = ((number, recorded.step(Path(run), number).batch) for run, number, _ in stamps)
    return pairs_of(steps, with_advantages=has_advantages)


@st.cache_resource(max_entries=4, show_spinner=False)
def _looks(stamps: Stamps) -> list[Look]:
    return [look(number, recorded.step(Path(run), number).batch) for run, number, _ in stamps]


def looks_like(stamps: Stamps) -> list[str]:
    """Return a line for each pattern that the steps of a run fit. Raises `UsageError` as `triage` does."""
    return verdict_lines(_looks(stamps))


@st.cache_resource(max_entries=32, show_spinner="Applying the system's own corrections …")
def advice(stamps: Stamps, system: str) -> Advice:
    """Return what to set for a system. The last step, which no threshold is chosen on, has the effects."""
    chosen_on, last = pairs(stamps)
    return advise(_looks(stamps), (last or chosen_on).batch, system)


@st.cache_resource(max_entries=32, show_spinner="Choosing the thresholds …")
def by_budget(stamps: Stamps, share: float) -> tuple[list[Option], dict[str, str]]:
    """Return thresholds that keep this share, and preset → reason for those that have none."""
    chosen_on, last = pairs(stamps)
    checked = last or chosen_on
    reached, refused = [], {}
    for name in SUGGESTED:
        try:
            _, config = choose_bound(chosen_on.batch, PRESETS[name].config, share, BAND)
        except UsageError as error:
            refused[name] = str(error)
            continue
        option = Option(config, PRESETS[name].loss, name, kept(checked.batch, config))
        reached.append(replace(option, promise=share, step=checked.steps[-1]))
    return reached, refused
