"""The study, a part of Training: the outcome of every preset under a mismatch that makes training collapse."""

from collections.abc import Sequence
from functools import partial

import streamlit as st
from components.picture import Picture, picture_row
from controls.sharing import verdict
from controls.widgets import pick_label, pick_several
from data import studies
from data.names import arm_label, arm_title, study_label
from streamlit.delta_generator import DeltaGenerator
from text import study_ends as say_study
from text.formatting import plain, swatches, table

from rlcorr.errors import UsageError
from rlcorr.figures.canvas import colours_of
from rlcorr.figures.study import differences, endpoint_dots, study_curves
from rlcorr.records.study import CONTROL, DELAYED_CONTROL, FOLDER, Outcome, SeedRange, Study, delayed_control

CURVES = {
    "reward": ("Reward", "Mean over the seeds. The band goes from the lowest seed to the highest."),
    "k3": ("k3", "Estimated KL divergence between sampler and trainer, on a logarithmic axis."),
    "kept_fraction": ("Kept tokens", "Share of the tokens that the preset did not reject."),
}
OUTCOMES = (
    "Mean over the seeds; the small line is from the lowest seed to the highest. At the end: the last quarter of the "
    "steps (median for k3). Highest on the way: the highest mean of five consecutive steps."
)
AGAINST = {
    "nothing": (
        "Reward at the end, minus reward without a correction",
        "On the same seeds and prompts. In 95 % of such studies all {count} intervals of this picture contain the true "
        "difference (Student's t, Bonferroni).",
    ),
    "chance": (
        "… minus reward with as much random rejection",
        "Does it matter which tokens are rejected, or only how many? Each arm is compared with one that rejects the "
        "same share at random. The 95 % are for all {count} intervals together.",
    ),
}


def show(beside: DeltaGenerator) -> None:
    """Show the study that is picked, with its picker in the container `beside`."""
    index = studies.all_studies()
    if not index:
        st.info(plain(f"There is no index of studies in {FOLDER}, so no study can be shown."))
        return
    with beside:
        name = pick_label("study", "Mismatch", {name: study_label(study) for name, study in index.items()})
    shown = index[name]
    st.markdown(plain(f"{shown.story} {shown.look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(shown, result)
    names = list(dict.fromkeys(row["preset"] for row in result.rows))
    picked = pick_several("presets", "Corrections", names, written=partial(arm_title, shown))
    rows = [*result.rows, *delayed_control(shown, result.rows)]  # the control of a study of old weights, drawn later
    if CONTROL in picked and any(row["preset"] == DELAYED_CONTROL for row in rows):
        picked = [*picked, DELAYED_CONTROL]
    colours = colours_of(row["preset"] for row in rows)
    st.html(swatches({arm_label(shown, arm): colours[arm] for arm in picked}))
    picture_row(curves(shown, result, picked), result.source)


def _decisions(shown: Study, result: studies.StudyTable) -> None:
    """Show which presets differ from no correction: in sentences, in pictures, and in numbers."""
    heading, lines = said(shown, result)
    verdict(heading)
    if planned := endpoint(shown, result):
        picture_row(planned, result.source)
    st.markdown("  \n".join(lines))
    if compared := against(shown, result):
        picture_row(compared, result.source, gap="medium")
    st.html(outcome_table(shown, result.outcomes))
    seeds, steps = len({row["seed"] for row in result.rows}), max(row["step"] for row in result.rows)
    facts = f"{seeds} seeds, {steps} steps; {result.facts.get('engine', '')}, {result.facts.get('hardware', '')}."
    st.caption(f"{OUTCOMES} {plain(facts)}")


def said(shown: Study, result: studies.StudyTable) -> tuple[str, list[str]]:
    """Return the heading and the lines about a study, in Markdown."""
    titled, arms = partial(arm_title, shown), len(result.outcomes)
    return say_study.study_said(shown, result.planned, result.against_nothing, titled, arms)


def endpoint(shown: Study, result: studies.StudyTable) -> dict[str, Picture]:
    """Return the picture of the endpoint that was planned before training, if there was a plan."""
    if shown.endpoint is None:
        return {}
    measure, titles = say_study.measure(shown.endpoint), {arm: arm_title(shown, arm) for arm in result.endpoint}
    caption = (
        "Mean over the seeds, with its 95 % interval (Student's t). The comparisons below are seed by seed, so they "
        "are sharper than these intervals."
    )
    return {"study_endpoint": Picture(endpoint_dots(result.endpoint, titles, measure.lower()), measure, caption)}


def against(shown: Study, result: studies.StudyTable) -> dict[str, Picture]:
    """Return the pictures of the differences from no correction, and from random rejection."""
    pictures = {}
    for key, pairs in {"nothing": result.against_nothing, "chance": result.against_chance}.items():
        if pairs:
            figure = differences(pairs, {pair.arm: arm_title(shown, pair.arm) for pair in pairs})
            title, caption = AGAINST[key]
            pictures[f"study_{key}"] = Picture(figure, title, caption.format(count=len(pairs)))
    return pictures


def curves(shown: Study, result: studies.StudyTable, arms: Sequence[str]) -> dict[str, Picture]:
    """Return the curves of these arms over the steps."""
    rows, pictures = [*result.rows, *delayed_control(shown, result.rows)], {}
    for metric, words in CURVES.items():
        drawn = [arm for arm in arms if metric == "reward" or arm != DELAYED_CONTROL]
        levels = studies.reward_levels(shown.name, result) if metric == "reward" else None
        figure = study_curves(rows, drawn, metric, log=metric == "k3", levels=levels)
        pictures[f"study_{metric}"] = Picture(figure, *words)
    return pictures


def outcome_table(shown: Study, outcomes: Sequence[Outcome]) -> str:
    """Return an HTML table of the outcomes, a row per arm."""
    rows = []
    for o in outcomes:
        title = arm_title(shown, o.preset)
        reward, best, kept = (_over_seeds(seeds, ".2f") for seeds in (o.reward, o.best_reward, o.kept_fraction))
        name = (title, "" if title == o.preset else o.preset)
        rows.append([[cell] for cell in (name, reward, best, _over_seeds(o.k3, ".1g"), kept)])
    columns = ["Correction", "Reward at the end", "Highest on the way", "k3 at the end", "Kept"]
    return f"<div class='rl-outcomes'>{table(columns, rows)}</div>"


def _over_seeds(seeds: SeedRange, digits: str) -> tuple[str, str]:
    """Return the mean over the seeds, and the line below it: from the lowest seed to the highest."""
    return f"{seeds.mean:{digits}}", f"{seeds.lowest:{digits}} to {seeds.highest:{digits}}"
