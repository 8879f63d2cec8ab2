"""Files of the study: which corrections differ from none, in sentences, and the rewards over the steps."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from components.live_part import LiveContent, Note, Picture
from components.markdown import inline, plain_text
from data import studies
from data.names import arm_title
from data.studies import StudyTable
from text import published
from text import study_ends as say_study
from text import training as training_text

from rlcorr import PRESETS
from rlcorr.figures.study import differences, study_curves
from rlcorr.records.study import study_path
from rlcorr.records.study_comparisons import NO_CORRECTION
from rlcorr.records.study_ends import FRESH, StudyEnds, kind_of
from rlcorr.strips.packing import Package
from static_site import parts

CONTROLS = {"stale_8": "stale_0", "decide_stale": "stale_0", "decide_cache": "stale_0", "kv_fp8_e5m2": "kv_bf16"}
"""Study → the study of the same task, options and learning rate without the mismatch."""


def study_package(name: str) -> Package:
    """Return the outcomes of a study. Raises `UsageError` if it has not been trained."""
    result, study = studies.table(name), studies.all_studies()[name]
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    compared = {
        against: Picture(
            differences(of_arms, {pair.arm: arm_title(study, pair.arm) for pair in of_arms}),
            title,
            caption.format(count=len(of_arms)),
        )
        for (against, of_arms), (title, caption) in zip(pairs.items(), training_text.AGAINST.values(), strict=True)
        if of_arms
    }
    content = LiveContent(
        numbers={}, rows=[row for row in (_curves(name, result), compared) if row],
        notes=[Note(training_text.OUTCOMES, "outcomes")],
        tables={"outcomes": _table(result, partial(arm_title, study))},
    )  # fmt: skip
    heading, sentences = training_text.study_said(study, result.rows, result.against_nothing, partial(arm_title, study))
    about = {"part": parts.part([], content, result.source, {}), "heading": inline(heading)}
    return Package({}, about | {"sentences": [f"{study.story} {study.look}", *map(plain_text, sentences)]})


def _table(result: StudyTable, title: Callable[[str], str]) -> str:
    shown = training_text.outcome_table(result.outcomes, title)
    return shown.replace("<div class='rl-table'", "<div tabindex='0' class='rl-table'", 1)  # it scrolls on phones


def _curves(name: str, result: StudyTable) -> dict[str, Picture]:
    """Return the curves of the reward with lines at the start and at the end without a mismatch, and those of k3."""
    arms = studies.few(result)
    caption, levels = published.REWARD, {"start": _start(result.rows)}
    if (fresh := _without_mismatch(name, result)) is not None:
        levels["no mismatch"] = fresh
        caption += published.FRESH
    caption += "."
    texts = training_text.STUDY_CURVES | {"reward": (training_text.STUDY_CURVES["reward"][0], caption)}
    return {
        f"study_{metric}": Picture(
            study_curves(result.rows, arms, metric, log=metric == "k3", levels=levels if metric == "reward" else None),
            *of_metric,
        )
        for metric, of_metric in texts.items()
    }


def _start(rows: list[dict[str, Any]]) -> float:
    """Return the mean reward of the first step, over all training runs: no correction has changed anything yet."""
    return fmean(row["reward"] for row in rows if row["step"] == 1)


def _without_mismatch(name: str, result: StudyTable) -> float | None:
    """Return the reward at the end without the mismatch: of the arm that has none, or of the control's study."""
    rewards = {outcome.preset: outcome.reward.mean for outcome in result.outcomes}
    fresh = [reward for arm, reward in rewards.items() if arm.startswith(FRESH)]
    if not fresh and name in CONTROLS and study_path(CONTROLS[name]).is_file():
        control = studies.table(CONTROLS[name]).outcomes
        fresh = [outcome.reward.mean for outcome in control if outcome.preset in NO_CORRECTION]
    return fresh[0] if fresh else None


def ends_package(run: Path, presets: Iterable[str]) -> Package | None:
    """Return how training runs with two kinds of corrections ended under the mismatch of this run.

    `kinds` has the kind of each preset, and `pairs` a sentence for each two kinds of a study. None without a study.
    """
    kinds = {name: kind for name in presets if (kind := kind_of(PRESETS[name].config)) is not None}
    pairs = {}
    for a, b in itertools.product(dict.fromkeys(kinds.values()), repeat=2):
        if ended := studies.ends(run, a, b):
            pairs[f"{a}|{b}"] = inline(on_site(say_study.of_two(ended, a, b, None), ended))
    return Package({}, {"kinds": kinds, "pairs": pairs}) if any(pairs.values()) else None


def on_site(sentence: str, ended: StudyEnds) -> str:
    """Return a sentence about a study with a link to it instead of the name of the app's page."""
    return sentence.replace(say_study.STUDY.format(name=ended.name), published.STUDY_LINK.format(name=ended.name))
