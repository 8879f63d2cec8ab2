"""The Start page: one sentence of a real model and what a correction does to it, what it gained, and cards."""

from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import state
import streamlit as st
from components.hero import Tile, ends, tiles
from components.links import Link, links
from components.live_part import ANSWER, LiveContent, Note, Slider, live_part, offered
from components.picture import Picture, picture
from controls import strips
from controls.sharing import verdict
from controls.widgets import buttons
from data import corrections, lessons, recorded, studies
from data.options import CAP, FIXES, NOTHING, REJECT, START_HIGH, START_LOW, START_USUAL
from data.recorded import Selection
from text import phrases
from text.formatting import percent, plain
from text.tours import STUDY, TOURS

from rlcorr import CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.token_story import furthest_token
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures import cells, mismatch, study
from rlcorr.figures.canvas import Figure
from rlcorr.records import runs
from rlcorr.records.study import last_accuracies, study_path
from rlcorr.records.token_texts import END, NEW_LINE, pieces
from rlcorr.strips.packing import Package
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.teaching.code_address import public_address

MODEL = (
    "The same weights, two programs. The sampler, with an 8-bit cache, wrote this “{token}”; the trainer, which must "
    "learn from it, would not have."
)
PLAYED = "smol_kv_fp8_e5m2"
"""The run of the picture."""
MOST_TOKENS = 10
LABELS = {CAP: "Largest weight (looser →)", REJECT: "Largest ratio that is kept (looser →)"}
ANSWERS = {
    NOTHING: "Without a correction the model learns this “{token}” as fully as every other token.",
    CAP: "A token counts by its ratio trainer / sampler, at most {threshold:.3g}: {outside} of the tokens are cut.",
    REJECT: "Left out: tokens with a ratio outside {inverse:.4g} to {threshold:.4g}, {outside} of this step's.",
}  # fmt: skip
GAINED_IN = "smol_last_weights"
ARMS = {"none": NOTHING, "token_cap": CAP, "fresh": "no mismatch"}
"""Arm of this study → its name in the picture; those of corrections are options of the control."""
GAINED, OPEN_STUDY = "What a cap gained", "The study"
GAINED_IS = "New sums solved after training, weights six updates old. Ten runs each, planned before."
NOT_TRAINED = "Rejecting tokens was not a part of this study."


@dataclass(frozen=True)
class Story:
    """One recorded training run: a card, and the tour that its button begins."""

    title: str
    tour: str
    """Key in `tours.TOURS`."""
    run: str
    """The run of the picture."""
    on_site: str
    """What the button opens on the static site, which has no tours."""
    button: str
    sentence: str


STORIES = HEALTHY, STALE, LONG, COLLAPSING = (
    Story(
        "Healthy", "healthy", "smol_bf16_both", "view=bench&run=smol_bf16_both&preset=decoupled_geo_rs",
        "Open the healthy run",
        "The only mismatch is rounding to bfloat16. The two probabilities differ by a few percent.",
    ),
    Story(
        "Stale", "stale", "smol_stale_6", "view=mismatch&run=smol_stale_6&preset=decoupled_token_is",
        "Open the stale run",
        "Weights that are six updates old wrote each batch. The probabilities differ a lot.",
    ),
    Story(
        "Adding up", "long", "long_kv_fp8_e5m2", "view=bench&run=long_kv_fp8_e5m2&preset=decoupled_seq_is",
        "Open the long answers",
        "An 8-bit cache, and answers of four hundred tokens. Over so many tokens, small differences add up.",
    ),
    Story(
        "Collapsing", "collapsing", "smol_stale_6", f"view=study&study={STUDY}",
        "Open the training runs",
        "Weights eight steps old, a high learning rate. Without a correction the reward climbs, and then falls.",
    ),
)  # fmt: skip
"""The card of the last one is there if its study is."""
OTHERS = {
    "lab": ("Lab", "Turn a threshold, and small policies train in front of you, in your browser.", "Open the Lab"),
    "yours": (
        "Your run", "Log-probs of verl, TRL, SkyRL or another system. They stay on this machine.", "Drop your own file"
    ),
}  # fmt: skip
"""View → title, sentence and button of its card."""
DRAWN = {"lab": "<span aria-hidden='true'>▶</span>", "yours": ".jsonl · .parquet · .npz · .pt · .safetensors"}
KEY, HERO = "start_bound", "hero"
VALUES = slider_scale(START_LOW, START_HIGH, of_ratio=True, count=121, also=(START_USUAL,))
HEIGHT = 170
"""Pixels of the picture of a card."""


def show(paths: dict[str, Path], shown: Selection | None) -> None:
    if shown is None:
        return
    if PLAYED in paths:
        _hero(paths[PLAYED])
    else:
        verdict("Your sampler and your trainer disagree.")
    st.markdown(f"## {phrases.WHAT_IS_THIS}\n{phrases.EXPLAIN}")
    stories = [story for story in STORIES if story != COLLAPSING or study_path(STUDY).is_file()]
    columns = cycle(st.columns(3, gap="medium"))
    for story in stories:
        with next(columns), st.container(border=True, key=f"story_{story.title}"):
            _story(story, paths)
    for view, (title, sentence, button) in OTHERS.items():
        with next(columns), st.container(border=True):
            st.html(f"<div class='rl-drop'>{DRAWN[view]}</div>")
            st.markdown(f"### {title}\n{sentence}")
            links(Link(button, {"view": view}), key=f"open_{view}")
    _more(paths)


def _more(paths: dict[str, Path]) -> None:
    """Show links to the lessons, to training and to the newest runs of this machine."""
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and recorded.has_steps(path)][:4]
    shown = [Link("Lessons", {"view": "learn"}), Link("Train a real model here", {"view": "training", "part": "Train"})]
    if (code := public_address(lessons.LESSONS.parent)) is not None:
        shown.append(Link("Code", address=code))
    links(*shown, *(Link(slug, {"view": "training", "run": slug}) for slug in local), key="start_more")


# --- one sentence, token by token ---


def _hero(run: Path) -> None:
    """Show the sentence with the largest gap of the last step, under the correction that is chosen."""
    record = _newest(run)
    title, model = said(record)
    verdict(title)
    left, right = st.columns([5, 2], gap="medium")
    with left:
        with st.container(horizontal=True, vertical_alignment="center", key="start_model"):
            st.markdown(model, width="stretch")
            fix = buttons("fix", "Correction", FIXES, hide_label=True)
        with st.container(key="start"):
            threshold = min(VALUES, key=lambda value: abs(value - state.get(KEY)))
            sliders, content = part(record, fix, threshold)
            version, make = repr((corrections.identity(run, record.step), fix)), partial(strip, record, fix)
            shown = [offered(KEY, one.label, VALUES, threshold, make, version) for one in sliders]
            live_part(shown, content, source=recorded.source(run, record.step), resets={})
    with right:
        if study_path(GAINED_IN).is_file():
            st.markdown(f"## {GAINED}")
            st.html(gained(fix))
            st.markdown(f"{GAINED_IS} {NOT_TRAINED if fix == REJECT else ''}")
            to = {"view": "training", "part": "Study", "study": GAINED_IN}
            links(Link(OPEN_STUDY, to), key="open_study")


def said(record: runs.StepRecord) -> tuple[str, str]:
    """Return the title and the sentence about the token with the largest gap, in Markdown."""
    tokens, _ = sentence(record, CorrectionConfig())
    gap = tokens[-1]
    title = f"Your sampler says {_share(gap.sampler)}. Your trainer says {_share(gap.trainer)}."
    return title, MODEL.format(token=plain(gap.text.strip()))


def sentence(record: runs.StepRecord, config: CorrectionConfig) -> tuple[list[Tile], dict[str, float]]:
    """Return the tokens up to the one with the largest gap, and the metrics of the correction on the whole step."""
    batch = record.batch
    result, report = corrections.corrected(batch, config)
    row, column = furthest_token(batch, result, range(len(batch.response_mask))) or (0, 0)
    weights = result.weights * result.keep_mask
    shown = slice(max(0, column + 1 - MOST_TOKENS), column + 1)
    columns = (batch.rollout_log_probs.exp(), old_log_probs(batch).exp(), weights)
    texts = [text.replace(NEW_LINE, " ").replace(END, "") for text in pieces(record)[row][shown]]
    of_tokens = zip(texts, *(of[row, shown].tolist() for of in columns), strict=True)
    return [Tile(*of_token) for of_token in of_tokens], report


def part(record: runs.StepRecord, fix: str, threshold: float) -> tuple[list[Slider], LiveContent]:
    """Return the sliders of a correction, without their strip, and the content for this threshold."""
    sliders = [Slider(KEY, LABELS[fix], VALUES, threshold, generation=0)] if fix in LABELS else []
    tokens, report = sentence(record, config_of(fix, threshold))
    gap = tokens[-1]
    names = f"sampler {_share(gap.sampler)}", f"trainer {_share(gap.trainer)}"
    shown = tiles(tokens, len(tokens) - 1, names, [_counted(token.weight) for token in tokens])
    outside = percent(report.get("rollout_is_oob_ratio", 0.0))
    said = ANSWERS[fix].format(token=gap.text.strip(), threshold=threshold, inverse=1 / threshold, outside=outside)
    return sliders, LiveContent({}, [], texts={ANSWER: said}, tables={HERO: shown}, notes=[Note("", HERO)])


def _counted(weight: float) -> str:
    """Return how much a token counts."""
    return f"× {np.format_float_positional(weight, 1, fractional=False, trim='-')}" if weight else "out"


def strip(record: runs.StepRecord, fix: str) -> Package:
    """Return what the slider of a correction changes."""
    return strips.package_contents([part(record, fix, threshold)[1] for threshold in VALUES])


def config_of(fix: str, threshold: float) -> CorrectionConfig:
    """Return the correction: the ratio as weight, with a cap, or without the tokens outside a band."""
    if fix == NOTHING:
        return CorrectionConfig()
    lower, mode = (None, "truncate") if fix == CAP else (1 / threshold, "mask")
    return CorrectionConfig(
        rollout_is="token", rollout_is_threshold=threshold, rollout_is_threshold_lower=lower, rollout_is_mode=mode
    )


def gained(fix: str) -> str:
    """Return how the runs of the planned study ended, as HTML."""
    accuracies = last_accuracies(studies.table(GAINED_IN).rows)
    arms = {name: [*accuracies[arm].values()] for arm, name in ARMS.items()}
    return ends(arms, fix, max(max(shares) for shares in arms.values()))


def _share(share: float) -> str:
    """Return a probability for a title: two digits, and two decimals if it is small."""
    return f"{100 * share:.0f} %" if share >= 0.01 else percent(share)


# --- cards ---


def _story(story: Story, paths: dict[str, Path]) -> None:
    if story.run in paths:
        try:
            _picture(story, paths[story.run])
        except UsageError as error:
            st.error(plain(str(error)))
    else:
        st.info(plain(f"The recorded run {story.run} is not here, so this story has no picture."))
    st.markdown(f"### {story.title}\n{story.sentence}")
    if story.run in paths:
        first = TOURS[story.tour].steps[0]
        to = {**dict(first.query), "view": first.view, "tour": story.tour}
        links(Link(story.button, to), key=f"open_{story.tour}")


def _picture(story: Story, run: Path) -> None:
    if story == COLLAPSING:
        table, names = studies.table(STUDY), {"disabled": "no correction", "decoupled_token_is": "capped at 2"}
        rows = [row | {"preset": names.get(row["preset"], row["preset"])} for row in table.rows]
        figure, source = study.study_curves(rows, list(names.values()), "reward"), table.source
        title = "Reward, without and with a correction"
        caption = "Mean over the seeds, per step. The two training runs differ only in the cap on each token's weight."
    else:
        record = _newest(run)
        source = recorded.source(run, record.step)
        title, caption = "Both probabilities of every token", "On the diagonal the sampler and the trainer agree."
        figure = cells.probability_density(record.batch)
        if story == LONG:
            figure, title = (
                mismatch.by_length(record.batch, SEQUENCE_METHODS),
                "Ratio of each whole answer against its length",
            )
            caption = "One point per answer. Independent noise of this size would stay inside the dotted cone."
    picture(f"picture_{story.title}", Picture(_bare(figure), title, caption), source, is_named=False)


def _bare(figure: Figure) -> Figure:
    """Return the figure as the picture of a card: without axes and legend."""
    margin = dict.fromkeys("lrtb", 4)
    figure.update_layout(showlegend=False, height=HEIGHT, margin=margin, xaxis_visible=False, yaxis_visible=False)
    return figure.update_layout(yaxis_scaleanchor=None)  # a square would leave half of the card empty


def _newest(run: Path) -> runs.StepRecord:
    step, problems = recorded.latest(run, runs.list_steps(run))
    if step is None:
        raise runs.DamagedFile(" ".join([*problems, phrases.NO_STEPS]))
    return recorded.step(run, step)
