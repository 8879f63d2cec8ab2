"""The study: the outcome of every preset under a mismatch that makes training collapse."""

from dataclasses import astuple
from functools import partial
from itertools import cycle

import streamlit as st
from components.picture import picture
from controls.segments import choose_one, choose_several
from data import studies
from data.studies import StudyTable
from state import address
from streamlit.delta_generator import DeltaGenerator
from text import training as say
from text.formatting import plain, swatches, table

from rlcorr.command.gradient_table import bracketed
from rlcorr.errors import UsageError
from rlcorr.figures.study import differences, preset_colours, reward_over_progress, study_curves
from rlcorr.records.study import FOLDER, SeedRange
from rlcorr.records.study_comparisons import NO_CORRECTION


def study(beside: DeltaGenerator) -> None:
    """Show the study that is picked, with its picker in the container `beside`."""
    index = studies.all_studies()
    if not index:
        st.info(plain(say.NO_STUDIES.format(folder=FOLDER)))
        return
    with beside:
        name = choose_one(say.STUDY, list(index), next(iter(index)), "study", as_list=True, on_change=_study_changed)
    st.markdown(plain(f"{index[name].story} {index[name].look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(result)
    _outcomes(result)
    _curves(result)


def _study_changed() -> None:
    """Forget the presets that were drawn: another study has others, and would keep none of them."""
    for key in ("presets", "last_presets"):
        st.session_state.pop(key, None)


def _decisions(result: StudyTable) -> None:
    """Show which presets differ from no correction, in sentences and pictures, and whether η predicts the reward."""
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    if result.against_nothing:
        st.markdown(f"##### {_verdict(result)}")
    columns = cycle(st.columns(2))
    for against, compared in pairs.items():
        title, caption = say.AGAINST[against]
        if compared:
            with next(columns):
                picture(
                    title, differences(compared), key=f"study_{against}", source=result.source,
                    caption=caption.format(count=len(compared)),
                )  # fmt: skip
    title, caption = say.PREDICTION
    for (training_run, step), (progress, correlation) in result.predictions.items():
        text = caption.format(training_run=training_run, step=step, correlation=bracketed(*astuple(correlation)))
        figure = reward_over_progress(progress, result.outcomes)
        with next(columns):
            picture(title, figure, key="study_eta", caption=text, source=result.source)


def _verdict(result: StudyTable) -> str:
    """Return sentences: which corrections are significantly better or worse, and how many do not differ."""
    significant = [pair for pair in result.against_nothing if pair.difference.tells]
    better, worse = ([p.arm for p in significant if (p.difference.value > 0) == more] for more in (True, False))
    total, seeds = len(result.against_nothing), result.against_nothing[0].seeds
    sentences = [
        say.SIGNIFICANT.format(direction=direction, all=total, names=", ".join(f"`{name}`" for name in names))
        for direction, names in (("better", better), ("worse", worse))
        if names
    ]
    if rest := total - len(significant):
        sentences.append(say.NOT_SIGNIFICANT.format(count=rest, all=total, seeds=seeds))
    return " ".join(sentences)


@address.fragment
def _curves(result: StudyTable) -> None:
    """Show the choice of presets, and their curves."""
    colours = preset_colours(result.rows)
    draw = partial(st.pills, say.PRESETS_DRAWN, list(colours), selection_mode="multi", key="presets")
    picked = choose_several(list(colours), _few(result), "presets", "preset", draw)
    st.html(swatches({preset: colours[preset] for preset in picked}))
    for column, (metric, (title, caption)) in zip(st.columns(3), say.STUDY_CURVES.items(), strict=True):
        with column:
            figure = study_curves(result.rows, picked, metric, log=metric == "k3")
            picture(title, figure, key=f"study_{metric}", caption=caption, source=result.source)


def _few(result: StudyTable) -> list[str]:
    """Return the presets to draw first: the best three, the last, and no correction. More lines are hard to see."""
    order = [outcome.preset for outcome in result.outcomes]
    shown = {*order[:3], order[-1], *NO_CORRECTION}
    return [arm for arm in order if arm in shown]


def _outcomes(result: StudyTable) -> None:
    seeds, steps = len({row["seed"] for row in result.rows}), max(row["step"] for row in result.rows)
    rows = [
        [o.preset, _share(o.reward), _share(o.best_reward), _tiny(o.k3), _share(o.kept_fraction)]
        for o in result.outcomes
    ]
    st.html(f"{say.WHOLE_NUMBERS}<div class='rl-outcomes'>{table(say.OUTCOME_COLUMNS, rows)}</div>")
    facts = f"{seeds} seeds, {steps} steps; {result.facts.get('engine', '')}, {result.facts.get('hardware', '')}."
    st.caption(f"{say.OUTCOMES} {plain(facts)}")


def _share(seeds: SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f},\u00a0{seeds.highest:.2f}]"


def _tiny(seeds: SeedRange) -> str:
    """Format a range with one digit, and with hyphens at which no line breaks."""
    text = f"{seeds.mean:.1g} [{seeds.lowest:.1g},\u00a0{seeds.highest:.1g}]"
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")
