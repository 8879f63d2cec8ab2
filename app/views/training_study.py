"""The study: what became of every preset under a mismatch that breaks a training."""

import streamlit as st
from browser.picture import picture
from data import study as training_data
from data.study import StudyTable
from words import training as say
from words import words

from rlcorr.errors import UsageError, unknown
from rlcorr.figures import study as study_plots
from rlcorr.figures.canvas import Figure
from rlcorr.records import study as studies
from rlcorr.records.study import SeedRange


def study() -> None:
    known = training_data.studies()
    if not known:
        st.info(words.plain(say.NO_STUDIES.format(folder=studies.FOLDER)))
        return
    if (got := st.query_params.get("study")) is not None and got not in known:
        st.warning(words.plain(f"{unknown('study', got, known)} Showing {next(iter(known))}."))
    name = st.segmented_control(
        say.STUDY, list(known), default=next(iter(known)), key="study", bind="query-params", required=True
    )
    st.markdown(words.plain(f"{known[name].story} {known[name].look}"))
    try:
        table = training_data.table(name)
    except UsageError as error:
        st.info(f"{words.plain(str(error))} {say.MAKE_STUDY.format(name=name)}")
        return
    _curves(table)
    _outcomes(table)


@st.fragment
def _curves(table: StudyTable) -> None:
    """The choice of presets and what it changes."""
    colours = study_plots.preset_colours(table.rows)
    for got in st.query_params.get_all("presets"):
        if got and got not in colours:
            st.warning(words.plain(f"{unknown('preset', got, colours)} Drawn without it."))
    picked = st.pills(
        say.PRESETS_DRAWN, list(colours), default=list(colours), selection_mode="multi", key="presets",
        bind="query-params",
    )  # fmt: skip
    st.html(words.swatches({preset: colours[preset] for preset in picked}))
    left, right = st.columns(2)
    figures: dict[str, Figure | None] = {
        column: study_plots.study_curves(table.rows, picked, column, log=column == "k3")
        for column in ("reward", "k3", "kept_fraction")
    }
    figures["relative_bias"] = study_plots.study_bias(table.rows, picked)
    for place, (column, figure) in zip((left, right, left, right), figures.items(), strict=True):
        title, caption = say.STUDY_CURVES[column]
        with place:
            if figure is None:
                st.info(say.NO_BIAS)
            else:
                picture(title, figure, key=f"study_{column}", caption=caption, source=table.source)


def _outcomes(table: StudyTable) -> None:
    seeds, steps = len({row["seed"] for row in table.rows}), max(row["step"] for row in table.rows)
    rows = [
        [o.preset, _share(o.reward), _share(o.best_reward), _tiny(o.k3), _share(o.kept_fraction)]
        for o in table.outcomes
    ]
    st.html(f"{say.WHOLE_NUMBERS}<div class='rl-outcomes'>{words.table(say.OUTCOME_COLUMNS, rows)}</div>")
    facts = f"{seeds} seeds, {steps} steps; {table.known.get('engine', '')}, {table.known.get('hardware', '')}."
    st.caption(f"{say.OUTCOMES} {words.plain(facts)}")


def _share(seeds: SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f},\u00a0{seeds.highest:.2f}]"


def _tiny(seeds: SeedRange) -> str:
    """One digit; a hyphen at which no line breaks."""
    text = f"{seeds.mean:.1g} [{seeds.lowest:.1g},\u00a0{seeds.highest:.1g}]"
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")
