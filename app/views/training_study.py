"""The study: the outcome of every preset under a mismatch that makes training collapse."""

from dataclasses import astuple
from functools import partial
from itertools import cycle

import streamlit as st
from components.picture import picture
from controls.segments import choose_from_list, choose_several
from data import studies
from data.names import arm_label, arm_title, study_label
from data.studies import StudyTable
from state import address
from streamlit.delta_generator import DeltaGenerator
from text import training as say
from text.formatting import plain, swatches, table

from rlcorr.command.gradient_table import bracketed
from rlcorr.errors import UsageError
from rlcorr.figures.study import differences, preset_colours, reward_over_progress, study_curves
from rlcorr.records.study import FOLDER, SeedRange, Study


def study(beside: DeltaGenerator) -> None:
    """Show the study that is picked, with its picker in the container `beside`."""
    index = studies.all_studies()
    if not index:
        st.info(plain(say.NO_STUDIES.format(folder=FOLDER)))
        return
    labels = {name: study_label(study) for name, study in index.items()}
    with beside:
        name = choose_from_list(say.STUDY, labels, next(iter(index)), "study", on_change=_study_changed)
    st.markdown(plain(f"{index[name].story} {index[name].look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(index[name], result)
    _outcomes(index[name], result)
    _curves(index[name], result)


def _study_changed() -> None:
    """Forget the presets that were drawn: another study has others, and would keep none of them."""
    for key in ("presets", "last_presets"):
        st.session_state.pop(key, None)


def _decisions(shown: Study, result: StudyTable) -> None:
    """Show which presets differ from no correction, in sentences and pictures, and whether η predicts the reward."""
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    heading, sentences = say.study_said(shown, result.rows, result.against_nothing, partial(arm_title, shown))
    st.markdown(f"##### {heading}")
    st.markdown("  \n".join(sentences))
    shown_pictures = sum(map(bool, pairs.values())) + len(result.predictions)
    columns = cycle(st.columns(min(max(shown_pictures, 1), 2)))  # a single picture has the whole width
    for against, compared in pairs.items():
        title, caption = say.AGAINST[against]
        if compared:
            titles = {pair.arm: arm_title(shown, pair.arm) for pair in compared}
            with next(columns):
                picture(
                    title, differences(compared, titles), key=f"study_{against}", source=result.source,
                    caption=caption.format(count=len(compared)),
                )  # fmt: skip
    title, caption = say.PREDICTION
    for (training_run, step), (progress, correlation) in result.predictions.items():
        text = caption.format(training_run=training_run, step=step, correlation=bracketed(*astuple(correlation)))
        figure = reward_over_progress(progress, result.outcomes)
        with next(columns):
            picture(title, figure, key="study_eta", caption=text, source=result.source)


@address.fragment
def _curves(shown: Study, result: StudyTable) -> None:
    """Show the choice of presets, and their curves."""
    colours = preset_colours(result.rows)
    draw = partial(
        st.multiselect, say.PRESETS_DRAWN, list(colours), key="presets", format_func=partial(arm_title, shown)
    )
    picked = choose_several(list(colours), studies.few(result), "presets", "preset", draw)
    st.html(swatches({arm_label(shown, arm): colours[arm] for arm in picked}))
    for column, (metric, (title, caption)) in zip(st.columns(3), say.STUDY_CURVES.items(), strict=True):
        with column:
            figure = study_curves(result.rows, picked, metric, log=metric == "k3")
            picture(title, figure, key=f"study_{metric}", caption=caption, source=result.source)


def _outcomes(shown: Study, result: StudyTable) -> None:
    seeds, steps = len({row["seed"] for row in result.rows}), max(row["step"] for row in result.rows)
    rows = [
        [
            arm_label(shown, o.preset),
            say.seeds_range(o.reward),
            say.seeds_range(o.best_reward),
            _tiny(o.k3),
            say.seeds_range(o.kept_fraction),
        ]
        for o in result.outcomes
    ]
    st.html(f"{say.WHOLE_NUMBERS}<div class='rl-outcomes'>{table(say.OUTCOME_COLUMNS, rows)}</div>")
    facts = f"{seeds} seeds, {steps} steps; {result.facts.get('engine', '')}, {result.facts.get('hardware', '')}."
    st.caption(f"{say.OUTCOMES} {plain(facts)}")


def _tiny(seeds: SeedRange) -> str:
    """Format a range with one digit, and with hyphens at which no line breaks."""
    text = f"{seeds.mean:.1g} [{seeds.lowest:.1g},\u00a0{seeds.highest:.1g}]"
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")
