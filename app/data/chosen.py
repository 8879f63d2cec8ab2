"""Bounds that keep a share of a run, cached by the state of its files."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from text.yours import SUGGESTED

from data import corrections, recorded
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.choosing import Kept, Pairs, chosen, kept, pairs_of
from rlcorr.analysis.verdicts import look, verdict_lines, verdicts
from rlcorr.errors import UsageError


@dataclass(frozen=True)
class Suggestion:
    """A preset at the tightest threshold that keeps so much."""

    threshold: float
    config: CorrectionConfig
    before: Kept
    """On the steps that it was chosen on."""
    unseen: Kept | None
    """On the last step, where there is another."""


Stamps = tuple[corrections.Identity, ...]


def stamps(run: Path, steps: tuple[int, ...]) -> Stamps:
    return tuple(corrections.identity(run, step) for step in steps)


@st.cache_resource(max_entries=4, show_spinner=False)
def pairs(of: Stamps) -> tuple[Pairs, Pairs | None]:
    """As `pairs_of`, of a run with a step."""
    return pairs_of((number, recorded.step(Path(run), number).batch) for run, number, _ in of)


@st.cache_resource(max_entries=4, show_spinner=False)
def looks_like(of: Stamps) -> list[str]:
    """Return a line for each pattern that the steps of a run fit. Raises `UsageError` as `triage` does."""
    return verdict_lines(verdicts(look(number, recorded.step(Path(run), number).batch) for run, number, _ in of))


@st.cache_resource(max_entries=32, show_spinner="Choosing the bounds …")
def suggestions(of: Stamps, share: float) -> dict[str, Suggestion | str]:
    """Preset → its bounds, or why none keeps so much."""
    chosen_on, last = pairs(of)
    suggested: dict[str, Suggestion | str] = {}
    for name in SUGGESTED:
        try:
            threshold, config = chosen(chosen_on.batch, PRESETS[name].config, share, None)
        except UsageError as error:
            suggested[name] = str(error)
            continue
        unseen = None if last is None else kept(last.batch, config)
        suggested[name] = Suggestion(threshold, config, kept(chosen_on.batch, config), unseen)
    return suggested
