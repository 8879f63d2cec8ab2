"""Suggested bounds that keep a share of a run's tokens, cached by the state of its files."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from data import corrections, recorded
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.by_length import AtLength, kept_by_length
from rlcorr.analysis.choosing import Kept, Pairs, choose_bound, kept, pairs_of
from rlcorr.analysis.verdicts import look, verdict_lines, verdicts
from rlcorr.bounds import BAND
from rlcorr.errors import UsageError

PRESETS_TO_SUGGEST = (
    "decoupled_token_is", "decoupled_token_icepop", "decoupled_geo_rs", "decoupled_k3_rs", "skyrl_product_mask",
)  # fmt: skip
"""Presets whose bounds are moved: one for each kind of bound."""


@dataclass(frozen=True)
class Suggestion:
    """A preset at the tightest threshold that keeps the share."""

    threshold: float
    config: CorrectionConfig
    before: Kept
    """Shares that it keeps on the steps on which the threshold was chosen."""
    unseen: Kept | None
    """Shares that it keeps on the last step, which was not used for the choice; None if the run has one step."""
    by_length: tuple[AtLength, ...]
    """Shares that it keeps of the same answers cut to fewer tokens, on the steps on which it was chosen."""


Stamps = tuple[corrections.Identity, ...]


def stamps_of(run: Path, steps: tuple[int, ...]) -> Stamps:
    return tuple(corrections.identity(run, step) for step in steps)


@st.cache_resource(max_entries=4, show_spinner=False)
def pairs(stamps: Stamps) -> tuple[Pairs, Pairs | None]:
    """Return the pairs that bounds are chosen on and checked on, as `pairs_of` does."""
    return pairs_of((number, recorded.step(Path(run), number).batch) for run, number, _ in stamps)


@st.cache_resource(max_entries=4, show_spinner=False)
def looks_like(stamps: Stamps) -> list[str]:
    """Return a line for each pattern that the steps of a run fit. Raises `UsageError` as `triage` does."""
    return verdict_lines(verdicts(look(number, recorded.step(Path(run), number).batch) for run, number, _ in stamps))


@st.cache_resource(max_entries=32, show_spinner="Choosing the bounds …")
def suggestions(stamps: Stamps, share: float) -> dict[str, Suggestion | str]:
    """Return preset → its suggested bounds, or the reason if no bounds keep the share."""
    chosen_on, last = pairs(stamps)
    suggested: dict[str, Suggestion | str] = {}
    for name in PRESETS_TO_SUGGEST:
        try:
            threshold, config = choose_bound(chosen_on.batch, PRESETS[name].config, share, BAND)
        except UsageError as error:
            suggested[name] = str(error)
            continue
        unseen = None if last is None else kept(last.batch, config)
        by_length = kept_by_length(chosen_on.batch, config)
        suggested[name] = Suggestion(threshold, config, kept(chosen_on.batch, config), unseen, by_length)
    return suggested
