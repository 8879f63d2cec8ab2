"""The study: the outcome of every preset under a mismatch that makes training collapse."""

from collections.abc import Iterator
from dataclasses import astuple
from functools import partial
from itertools import cycle

import streamlit as st
from components.picture import picture
from controls.choosing import pick_label, pick_several
from data import studies
from data.names import arm_label, arm_title, study_label
from data.studies import StudyTable
from streamlit.delta_generator import DeltaGenerator
from text import training as say
from text.formatting import plain, swatches

from rlcorr.command.gradient_table import bracketed
from rlcorr.errors import UsageError
from rlcorr.figures.study import differences, preset_colours, reward_over_progress, study_curves
from rlcorr.records.study import FOLDER, Study
from rlcorr.records.study_comparisons import Comparison


def study(beside: DeltaGenerator) -> None:
    """Show the study that is picked, with its picker in the container `beside`."""
    index = studies.all_studies()
    if not index:
        st.info(plain(say.NO_STUDIES.format(folder=FOLDER)))
        return
    labels = {name: study_label(study) for name, study in index.items()}
    with beside:
        name = pick_label("study", say.STUDY, labels)
    st.markdown(plain(f"{index[name].story} {index[name].look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(index[name], result)
    _curves(index[name], result)


def _decisions(shown: Study, result: StudyTable) -> None:
    """Show which presets differ from no correction: in sentences, in pictures, and in numbers.

    The numbers are next to the picture if it is the only one.
    """
    heading, sentences = say.study_said(shown, result.rows, result.against_nothing, partial(arm_title, shown))
    st.markdown(f"##### {heading}")
    if sentences:
        st.markdown("  \n".join(sentences))
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    columns = cycle(st.columns([2, 3] if _has_one_picture(result) else 2, gap="medium"))
    for against, compared in pairs.items():
        if compared:
            with next(columns):
                _differences(shown, against, compared, result.source)
    _predictions(shown, result, columns)
    with next(columns) if _has_one_picture(result) else st.container():
        _outcomes(shown, result)


def _has_one_picture(result: StudyTable) -> bool:
    """Check whether there is room for the numbers next to the only picture."""
    return bool(result.against_nothing) and not result.against_chance and not result.predictions


def _differences(shown: Study, against: str, compared: list[Comparison], source: str) -> None:
    title, caption = say.AGAINST[against]
    figure = differences(compared, {pair.arm: arm_title(shown, pair.arm) for pair in compared})
    picture(title, figure, key=f"study_{against}", caption=caption.format(count=len(compared)), source=source)


def _predictions(shown: Study, result: StudyTable, columns: Iterator[DeltaGenerator]) -> None:
    """Show whether η predicts the reward, a picture for each training run and step that it was measured on."""
    title, caption = say.PREDICTION
    titles = {outcome.preset: arm_title(shown, outcome.preset) for outcome in result.outcomes}
    for (training_run, step), (progress, correlation) in result.predictions.items():
        text = caption.format(training_run=training_run, step=step, correlation=bracketed(*astuple(correlation)))
        figure = reward_over_progress(progress, result.outcomes, titles)
        with next(columns):
            picture(title, figure, key="study_eta", caption=text, source=result.source)


def _curves(shown: Study, result: StudyTable) -> None:
    """Show the choice of presets, and their curves."""
    colours = preset_colours(result.rows)
    picked = pick_several("presets", say.PRESETS_DRAWN, list(colours), written=partial(arm_title, shown))
    st.html(swatches({arm_label(shown, arm): colours[arm] for arm in picked}))
    for column, (metric, (title, caption)) in zip(st.columns(3), say.STUDY_CURVES.items(), strict=True):
        with column:
            figure = study_curves(result.rows, picked, metric, log=metric == "k3")
            picture(title, figure, key=f"study_{metric}", caption=caption, source=result.source)


def _outcomes(shown: Study, result: StudyTable) -> None:
    seeds, steps = len({row["seed"] for row in result.rows}), max(row["step"] for row in result.rows)
    st.html(say.outcome_table(result.outcomes, partial(arm_title, shown)))
    facts = f"{seeds} seeds, {steps} steps; {result.facts.get('engine', '')}, {result.facts.get('hardware', '')}."
    st.caption(f"{say.OUTCOMES} {plain(facts)}")
