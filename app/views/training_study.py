"""The study: what became of every preset under a mismatch that breaks a training."""

from dataclasses import astuple

import streamlit as st
from components.picture import picture
from data import studies
from data.studies import StudyTable
from text import training as say
from text.formatting import plain, swatches, table

from rlcorr.command.gradient_table import bracketed
from rlcorr.errors import UsageError, unknown
from rlcorr.figures.study import differences, foretelling, preset_colours, study_curves
from rlcorr.records.study import FOLDER, SeedRange
from rlcorr.records.study_comparisons import NO_CORRECTION


def study() -> None:
    index = studies.all_studies()
    if not index:
        st.info(plain(say.NO_STUDIES.format(folder=FOLDER)))
        return
    if (got := st.query_params.get("study")) is not None and got not in index:
        st.warning(plain(f"{unknown('study', got, index)} Showing {next(iter(index))}."))
    name = st.segmented_control(
        say.STUDY, list(index), default=next(iter(index)), key="study", bind="query-params", required=True
    )
    st.markdown(plain(f"{index[name].story} {index[name].look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(result)
    _outcomes(result)
    _curves(result)


def _decisions(result: StudyTable) -> None:
    """What differs from no correction, in a sentence and in pictures, and whether η foretold it."""
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    if result.against_nothing:
        st.markdown(f"##### {_verdict(result)}")
    for place, (against, compared) in zip(st.columns(2), pairs.items(), strict=True):
        title, caption = say.AGAINST[against]
        if compared:
            with place:
                picture(
                    title, differences(compared), key=f"study_{against}", source=result.source,
                    caption=caption.format(count=len(compared)),
                )  # fmt: skip
    title, caption = say.FORETOLD
    for (training, step), (progress, agreed) in result.foretold.items():
        text = caption.format(training=training, step=step, agreed=bracketed(*astuple(agreed)))
        picture(title, foretelling(progress, result.outcomes), key="study_eta", caption=text, source=result.source)


def _verdict(result: StudyTable) -> str:
    """Which corrections are surely better, which surely worse, and how many cannot be told."""
    told = [pair for pair in result.against_nothing if pair.difference.tells]
    better, worse = ([p.arm for p in told if (p.difference.value > 0) == more] for more in (True, False))
    sentences = [
        say.TOLD.format(direction=direction, names=", ".join(f"`{name}`" for name in names))
        for direction, names in (("better", better), ("worse", worse))
        if names
    ]
    total, seeds = len(result.against_nothing), result.against_nothing[0].seeds
    if rest := total - len(told):
        sentences.append(say.NOT_TOLD.format(count=rest, all=total, seeds=seeds))
    return " ".join(sentences)


@st.fragment
def _curves(result: StudyTable) -> None:
    """The choice of presets and what it changes."""
    colours = preset_colours(result.rows)
    for got in st.query_params.get_all("presets"):
        if got and got not in colours:
            st.warning(plain(f"{unknown('preset', got, colours)} Drawn without it."))
    picked = st.pills(
        say.PRESETS_DRAWN, list(colours), default=_few(result), selection_mode="multi", key="presets",
        bind="query-params",
    )  # fmt: skip
    st.html(swatches({preset: colours[preset] for preset in picked}))
    for place, (column, (title, caption)) in zip(st.columns(3), say.STUDY_CURVES.items(), strict=True):
        with place:
            figure = study_curves(result.rows, picked, column, log=column == "k3")
            picture(title, figure, key=f"study_{column}", caption=caption, source=result.source)


def _few(result: StudyTable) -> list[str]:
    """The three that end best, the last one, and the one without a correction: more lines cannot be told apart."""
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
    """One digit; a hyphen at which no line breaks."""
    text = f"{seeds.mean:.1g} [{seeds.lowest:.1g},\u00a0{seeds.highest:.1g}]"
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")
