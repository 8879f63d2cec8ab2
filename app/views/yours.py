"""The page for a person's own data: what to set, whether the gap is normal, and what each correction would do."""

import state
import streamlit as st
from components.links import Link, links
from components.picture import Picture, picture
from controls import upload_box
from controls.configuration import export_text, pick_system
from controls.pickers import picked_record
from controls.sharing import run_and_step, verdict
from controls.widgets import folding, pick
from data import corrections, suggestions, uploads
from data.bounds import bounds_of
from data.names import BETWEEN, run_labels
from data.options import CARD, KEEPS
from data.recorded import Selection
from data.suggestions import Stamps
from text.formatting import number, percent, plain, table
from text.phrases import answers, in_words
from views.mismatch import SIZES, headline

from rlcorr.analysis.advice import Advice, Option, does
from rlcorr.analysis.budget import Kept
from rlcorr.analysis.gap_size import averages, gap_size
from rlcorr.analysis.in_words import limits
from rlcorr.analysis.symptoms import Symptom, without_outliers
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures.effects import Bar, effect_bars
from rlcorr.figures.gaps import gap_strip
from rlcorr.records import runs
from rlcorr.systems.export import can_express

STRIP = (
    "Is this gap normal?",
    "Each point is a measured gap, open if this project measured it: point at it for the model and the source. Larger "
    "points are larger models.",
)
ACTS_NOT = "Nothing is corrected."
EFFECTS_ARE = (
    "Green: kept. Orange: weight clipped. Grey: teaches nothing. Measured on step {step}. Click a row to take it."
)
KEEP_IS = (
    "The last rows are the strictest setting of each kind that still keeps this share (dotted line). A cap on weights "
    "keeps every token, so no share can choose it; published caps are 2 to 5."
)
WHICH_LEARNS = (
    "A share says what a threshold costs, not whether training gets better. For that see the study on the Training "
    "page, or the Gradient page for a run with score sketches."
)
WITHOUT = "without the token"
AVERAGES = ("", "mean", WITHOUT, "trimmed", "median")
"""Columns of the sizes of the gap; the third only if tokens are named."""
AVERAGES_ARE = {
    WITHOUT: "The mean over all tokens except those that the verdict names.",
    "trimmed": "The mean without the 1 % of the tokens with the largest |Δ|.",
}
BANDS = ("ratios within", "tokens", "answers")
BANDS_ARE = {
    "ratios within": "Distance of the ratio from 1.",
    "tokens": "Share of the tokens whose ratio is within the band.",
    "answers": "Share of the answers whose geometric mean of the token ratios is within the band.",
}
MOST = 7
"""Corrections of a system that are drawn: its default, and the mildest."""


def show(selection: Selection) -> None:
    if upload_box.is_refused():
        st.html("<style>.st-key-pickers { display: none }</style>")  # they would name another run
        verdict("Nothing was read. Drop another file.")
        return
    with st.container(key="yours"):
        if not selection.slug.startswith(uploads.PREFIX) and selection.run.parent != runs.LOCAL:
            label = run_labels([selection.slug])[selection.slug]
            example = f"As an example, the page shows the recorded run **{plain(label)}**."
            st.caption(f"You have not dropped a file yet. {example}")
        record = picked_record(selection)
        try:
            if record is not None:
                _page(selection, record)
        except UsageError as error:
            st.error(plain(str(error)))


def _page(selection: Selection, record: runs.StepRecord) -> None:
    """Show what to set, the gap among measured ones, and what to copy, unless there is a fault to mend first."""
    stamps = tuple(corrections.identity(selection.run, step) for step in selection.steps)
    advice = suggestions.advice(stamps, state.get("system"))
    symptoms = triage(record.batch)
    verdict(_said(advice.sentence))
    named = [token for symptom in symptoms for token in symptom.tokens]
    if advice.take is None or named:
        st.markdown(_said(advice.reason))
        _token_links(named, advice)
    if advice.take is None:
        pick_system()
    else:
        if advice.k3:
            picture("gaps", Picture(gap_strip(advice.k3), *STRIP), selection.source)
        _corrections(stamps, advice, selection)
    box = folding("details", "Details: steps and averages")
    if state.get("details"):
        with box:
            _details(record, symptoms, stamps)


def _said(sentence: str) -> str:
    return plain(answers(in_words(sentence)))


def _token_links(named: list[tuple[int, int]], advice: Advice) -> None:
    """Show a link to each token that the verdict of the step names, or to all tokens if none is and some differ."""
    shown = [
        Link(f"See token {column} of answer {row}", {"view": "tokens", "token": f"{row}.{column}"})
        for row, column in named
    ]
    if shown or advice.pattern != "identical":
        links(*(shown or [Link("See the tokens", {"view": "tokens"})]), key="see_tokens")


def _corrections(stamps: Stamps, advice: Advice, selection: Selection) -> None:
    """Show the text of one correction, and next to it what each would do, with the budget below."""
    assert advice.take is not None
    system, share = state.get("system"), float(state.get("keep").removesuffix(" %")) / 100
    reached, refused = suggestions.by_budget(stamps, share)
    rows = [*[one for one in advice.options if isinstance(one.effect, Kept)][:MOST], *reached]
    able = [one for one in rows if not one.is_missed and can_express(system, one.config, one.loss)]
    free = {one.key: one for one in (advice.take, *able)}
    taken = free.get(state.get("take"), advice.take)
    left, right = st.columns([2, 3], gap="medium")
    with left:
        st.markdown("## Do this")
        pick_system()
        labels = {key: BETWEEN.join([limits(one.config), *_kind(one)]) for key, one in free.items()}
        pick("take", "Correction to copy", list(free), written=labels.__getitem__)
        _take(taken, advice, selection)
    with right:
        _effects(rows, free, taken, share, selection)
        st.select_slider("Keep at least", KEEPS, value=state.get("keep"), key=state.widget("keep"), help=KEEP_IS)
        for name, reason in refused.items():
            st.caption(plain(f"{suggestions.SUGGESTED[name]}: {reason}"))
        st.caption(WHICH_LEARNS)
        links(Link("The decision card: cause, setting, evidence", {"view": "learn", "learn": CARD}), key="open_card")


def _take(taken: Option, advice: Advice, selection: Selection) -> None:
    """Show the text of the taken correction for the person's system, one reason, and one other choice."""
    run, link = run_and_step(selection), {}
    if taken.preset is not None:  # the bench shows presets only
        thresholds = {b.key: f"{b.value:.12g}" for b in bounds_of(taken.config)}
        link = {"view": "bench", "preset": taken.preset, **thresholds}
    export_text(state.get("system"), taken.config, taken.loss, {**link, **run})
    is_advised = advice.take is not None and taken.key == advice.take.key
    effect = f"On step {selection.steps[-1]} this {does(taken)}." if taken.acts else ACTS_NOT
    st.markdown(_said(advice.reason if is_advised else effect))
    if (other := advice.instead if is_advised else advice.take) is not None:
        label = f"Or: {limits(other.config)}"
        st.button(label, key="other", on_click=state.change, kwargs={"take": other.key})
    if link:
        links(Link("Open it in the bench", {**link, **run}), key="open_taken")


def _effects(rows: list[Option], free: dict[str, Option], taken: Option, share: float, selection: Selection) -> None:
    """Draw what each correction would do. A click takes one that keeps its promise and that the system can express."""

    def clicked() -> None:
        key = st.session_state["effects"]["click"]["y"]
        if key in free:
            state.change(take=key)

    figure = effect_bars([_bar(one, is_free=one.key in free) for one in rows], taken.key, share)
    shown = Picture(figure, "What each would do to your tokens", EFFECTS_ARE.format(step=selection.steps[-1]))
    picture("effects", shown, selection.source, on_click=clicked)


def _bar(one: Option, *, is_free: bool) -> Bar:
    """Return the bar of a correction, with words that say what it does, or by how much it misses its promise."""
    effect = one.effect
    assert isinstance(effect, Kept)
    does_what = one.shortfall or (does(one) if one.acts else ACTS_NOT)
    does_what = does_what.replace(" and leaves an effective sample size of", ", ESS")  # a phone's line is short
    cannot = [] if is_free or one.is_missed else ["{system} cannot express it".format(system=state.get("system"))]
    words = BETWEEN.join([*([] if one.is_missed else _kind(one)), does_what, *cannot])
    return Bar(one.key, limits(one.config), words, effect.unchanged, effect.cut or 0.0, effect.zeroed, one.is_missed)


def _kind(one: Option) -> list[str]:
    """Return where a correction comes from: the system's default, or a budget."""
    if one.promise is not None:
        return [f"chosen to keep {100 * one.promise:g} %"]
    return ["{system}'s default".format(system=state.get("system"))] if one.is_default else []


# --- details ---


def _details(record: runs.StepRecord, symptoms: list[Symptom], stamps: Stamps) -> None:
    """Show the diagnosis of the step and of the others, and the size of the gap in averages and shares."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"**Step {record.step}**")
        for symptom in symptoms:
            st.markdown(_said(symptom.sentence))
        if len(stamps) > 1:
            st.caption("Over all recorded steps:")
            for line in suggestions.looks_like(stamps):
                st.markdown(f"- {plain(headline(answers(in_words(line)))[0])}")
    with right:
        _sizes(record, symptoms)
        size = gap_size(without_outliers(record.batch, symptoms))
        if size is not None and size.k3:
            shares = size.shares_within()
            rows = [[f"±{100 * band:g} %", percent(tokens), percent(answers)] for band, tokens, answers in shares]
            st.html(table(list(BANDS), rows, BANDS_ARE))


def _sizes(record: runs.StepRecord, symptoms: list[Symptom]) -> None:
    """Show the size of the gap in means, and in averages that few tokens cannot move."""
    named = [token for symptom in symptoms for token in symptom.tokens]
    numbers, rows = averages(record.batch, named), []
    for label, (name, _) in SIZES.items():
        one = numbers[name]
        shown = [one.mean, *([one.without] if named else []), one.trimmed, one.median]
        rows.append([label.removeprefix("Mean "), *map(number, shown)])
    columns = [column for column in AVERAGES if named or column != WITHOUT]
    meanings = {label.removeprefix("Mean "): help for label, (_, help) in SIZES.items()}
    st.html(table(columns, rows, meanings | AVERAGES_ARE))
