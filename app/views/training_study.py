"""The study: what became of every preset under a mismatch that breaks a training."""

import streamlit as st
from browser.picture import picture
from data import studies
from data.studies import StudyTable
from words import training as say
from words.text import plain, swatches, table

from rlcorr.errors import UsageError, unknown
from rlcorr.figures.canvas import Figure
from rlcorr.figures.study import preset_colours, study_bias, study_curves
from rlcorr.records.study import FOLDER, SeedRange


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
    _curves(result)
    _outcomes(result)


@st.fragment
def _curves(result: StudyTable) -> None:
    """The choice of presets and what it changes."""
    colours = preset_colours(result.rows)
    for got in st.query_params.get_all("presets"):
        if got and got not in colours:
            st.warning(plain(f"{unknown('preset', got, colours)} Drawn without it."))
    picked = st.pills(
        say.PRESETS_DRAWN, list(colours), default=list(colours), selection_mode="multi", key="presets",
        bind="query-params",
    )  # fmt: skip
    st.html(swatches({preset: colours[preset] for preset in picked}))
    left, right = st.columns(2)
    figures: dict[str, Figure | None] = {
        column: study_curves(result.rows, picked, column, log=column == "k3")
        for column in ("reward", "k3", "kept_fraction")
    }
    figures["relative_bias"] = study_bias(result.rows, picked)
    for place, (column, figure) in zip((left, right, left, right), figures.items(), strict=True):
        title, caption = say.STUDY_CURVES[column]
        with place:
            if figure is None:
                st.info(say.NO_BIAS)
            else:
                picture(title, figure, key=f"study_{column}", caption=caption, source=result.source)


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
