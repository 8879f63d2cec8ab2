"""Corrections and their effect on a run: what a system ships, and thresholds by budget. Cached by the run's files."""

from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st
from text.yours import SUGGESTED

from data import corrections, recorded
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.budget import Kept, Pairs, choose_bound, kept, kept_by_length, pairs_of
from rlcorr.analysis.symptoms import Symptom, mend_first
from rlcorr.analysis.verdicts import Look, look, verdict_lines, verdicts
from rlcorr.bounds import BAND
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import shipped


@dataclass(frozen=True)
class Suggestion:
    """A correction, and its effect on the last step of the run; `effect` is a text if it cannot be applied there."""

    preset: str | None
    """The preset that has these weights and rules, for a threshold by budget with other numbers; None if none has."""
    config: CorrectionConfig
    loss: LossConfig | None
    effect: Kept | str
    is_default: bool = False
    """True if the system does this if nothing is set."""
    share: float | None = None
    """The share of the tokens for which the threshold was chosen; None for published numbers."""
    threshold: float | None = None
    """The upper bound that was chosen; None for published numbers."""
    before: Kept | None = None
    """Effect on the steps on which the threshold was chosen; None if that is the only step."""
    by_length: dict[int, Kept] = field(default_factory=dict)
    """Effect on the same answers cut to fewer tokens, on the steps on which it was chosen."""

    @property
    def key(self) -> str:
        """Return a name that no other suggestion of the page has."""
        return self.preset or "" if self.share is None else f"{self.preset}@{self.share:g}"

    @property
    def acts(self) -> bool:
        """Check whether there are weights or rules."""
        return self.config.rollout_is is not None or bool(self.config.rollout_rs)

    @property
    def is_advised(self) -> bool:
        """Check whether the correction acts, and the glossary calls none of its numbers bad."""
        return self.acts and isinstance(self.effect, Kept) and not self.effect.is_bad


Stamps = tuple[corrections.Identity, ...]


def stamps_of(run: Path, steps: tuple[int, ...]) -> Stamps:
    return tuple(corrections.identity(run, step) for step in steps)


@st.cache_resource(max_entries=4, show_spinner=False)
def pairs(stamps: Stamps) -> tuple[Pairs, Pairs | None]:
    """Return the pairs that bounds are chosen on and checked on, as `pairs_of` does."""
    has_advantages = all(recorded.step(Path(run), number).batch.advantages is not None for run, number, _ in stamps)
    steps = ((number, recorded.step(Path(run), number).batch) for run, number, _ in stamps)
    return pairs_of(steps, with_advantages=has_advantages)


def measured_on(stamps: Stamps) -> Pairs:
    """Return the pairs on which effects are measured: the last step, which no threshold was chosen on."""
    chosen_on, last = pairs(stamps)
    return last or chosen_on  # with one step, that one


@st.cache_resource(max_entries=4, show_spinner=False)
def _looks(stamps: Stamps) -> list[Look]:
    return [look(number, recorded.step(Path(run), number).batch) for run, number, _ in stamps]


def looks_like(stamps: Stamps) -> list[str]:
    """Return a line for each pattern that the steps of a run fit. Raises `UsageError` as `triage` does."""
    return verdict_lines(verdicts(_looks(stamps)))


def fault(stamps: Stamps) -> tuple[int, Symptom] | None:
    """Return the last step with a fault that must be mended first, and the fault; None if no step has one."""
    for one in reversed(_looks(stamps)):
        if (found_fault := mend_first(one.symptoms)) is not None:
            return one.step, found_fault
    return None


@st.cache_resource(max_entries=32, show_spinner="Applying the system's own corrections …")
def published(stamps: Stamps, system: str) -> list[Suggestion]:
    """Return the corrections that a system ships, with their effect on the last step of the run."""
    batch, suggestions = measured_on(stamps).batch, []
    for one in shipped(system):
        try:
            effect = kept(batch, one.config)
        except UsageError as error:  # a rule may need advantages, which the file does not have
            effect = str(error)
        suggestions.append(Suggestion(one.preset, one.config, one.loss, effect, one.is_default))
    return suggestions


@st.cache_resource(max_entries=32, show_spinner="Choosing the thresholds …")
def by_budget(stamps: Stamps, share: float) -> tuple[list[Suggestion], dict[str, str]]:
    """Return thresholds that keep this share, and preset → reason for those that have none."""
    chosen_on, last = pairs(stamps)
    reached, refused = [], {}
    for name in SUGGESTED:
        try:
            threshold, config = choose_bound(chosen_on.batch, PRESETS[name].config, share, BAND)
        except UsageError as error:
            refused[name] = str(error)
            continue
        before = None if last is None else kept(chosen_on.batch, config)
        effect = kept(measured_on(stamps).batch, config)
        by_length = kept_by_length(chosen_on.batch, config)
        reached.append(Suggestion(name, config, PRESETS[name].loss, effect, False, share, threshold, before, by_length))
    return reached, refused
