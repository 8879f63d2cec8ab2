"""The page for a person's own data: its likely cause, suggested thresholds with their cost, and the text to export."""

import streamlit as st
from components.picture import picture
from controls import systems
from controls.bounds import bounds_of
from controls.pickers import picked_record
from controls.segments import choose_one
from data import suggestions
from data.suggestions import Suggestion
from state import address, navigation, notices, session
from text import mismatch as mismatch_text
from text import yours as yours_text
from text.formatting import number, percent, plain, table

from rlcorr import PRESETS
from rlcorr.analysis.gap_size import gap_size
from rlcorr.analysis.placement import causes, place
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.figures.gaps import gap_strip
from rlcorr.records.step_files import StepRecord

HEIGHT = 260


def show(selection: session.Selection) -> None:
    if not selection.slug.startswith("upload_"):
        st.caption(yours_text.EXAMPLE.format(run=f"**{plain(selection.slug)}**"))
    record = picked_record(selection)
    if record is None:
        return
    left, right = st.columns([2, 3], gap="medium")
    try:
        with left:
            _verdict(record)
            _all_steps(selection)
        with right:
            _thresholds(selection)
        _is_it_normal(record)
    except UsageError as error:
        st.error(plain(str(error)))


@address.fragment
def _is_it_normal(record: StepRecord) -> None:
    """Show the gap of the step among measured gaps, and how many of its ratios are near 1."""
    size = gap_size(record.batch)
    if size is None or size.k3 == 0:
        return
    st.markdown(f"##### {yours_text.NORMAL}")
    left, right = st.columns([3, 2], gap="medium")
    with right:
        measure = yours_text.MEASURES[choose_one(yours_text.MEASURE, tuple(yours_text.MEASURES), "k3", "measure")]
        value = size.k3 if measure == "k3" else size.abs
        for sentence in place(value, measure):
            st.markdown(plain(sentence))
        if measure == "abs":  # the headline of the page names the causes by k3
            st.markdown(plain(causes(value, measure)))
        rows = [
            [f"±{100 * band:g} %", percent(tokens), percent(answers)] for band, tokens, answers in size.shares_within()
        ]
        st.html(table(list(yours_text.BANDS), rows, yours_text.BANDS_ARE))
    with left:
        title, caption = yours_text.STRIP
        picture(title, gap_strip(value, measure), key="gaps", caption=caption)


def _verdict(record: StepRecord) -> None:
    symptoms = triage(record.batch)
    st.markdown(f"##### {plain(symptoms[0].sentence)}")
    for symptom in symptoms[1:]:
        st.markdown(mismatch_text.ALSO.format(sentence=plain(symptom.sentence)))
    st.markdown(mismatch_text.NEXT[symptoms[0].pattern][0])
    with st.container(horizontal=True, key="sizes"):
        for label, (name, help) in mismatch_text.SIZES.items():
            if name in symptoms[0].numbers:
                st.metric(label, number(symptoms[0].numbers[name]), help=help, width=112)
    tail = mismatch.tail(record.batch)
    tail.layout.height = HEIGHT
    title, caption = mismatch_text.PICTURES["tail"]
    picture(title, tail, key="tail", caption=caption)


def _all_steps(selection: session.Selection) -> None:
    """Write what the steps of the run look like, a line per pattern, if there is more than one step."""
    if len(selection.steps) > 1:
        st.caption(yours_text.ALL_STEPS)
        for line in suggestions.looks_like(suggestions.stamps_of(selection.run, selection.steps)):
            st.markdown(f"- {plain(line)}")


@address.fragment
def _thresholds(selection: session.Selection) -> None:
    st.markdown(f"##### {yours_text.THRESHOLDS}")
    picked = choose_one(yours_text.KEEP, yours_text.KEEPS, yours_text.KEEPS[1], "keep")
    stamps = suggestions.stamps_of(selection.run, selection.steps)
    suggested = suggestions.suggestions(stamps, float(picked.removesuffix(" %")) / 100)
    before, last = suggestions.pairs(stamps)
    steps = " to ".join(str(step) for step in dict.fromkeys((before.steps[0], before.steps[-1])))
    st.caption(
        yours_text.THRESHOLDS_OF_ONE
        if last is None
        else yours_text.THRESHOLDS_ARE.format(chosen_on=steps, unseen=last.steps[0])
    )
    st.html(table(list(yours_text.COLUMNS), [_row(name, one) for name, one in suggested.items()], yours_text.MEANINGS))
    for name, refused in suggested.items():
        if isinstance(refused, str):
            st.caption(plain(f"{yours_text.SUGGESTED[name]}: {refused}"))
    st.caption(yours_text.WHICH_LEARNS)
    reached = {name: one for name, one in suggested.items() if isinstance(one, Suggestion)}
    if reached:
        _take(reached)
        _by_length(reached)


def _by_length(reached: dict[str, Suggestion]) -> None:
    """Show what the suggested thresholds keep of the same answers cut to fewer tokens."""
    by_name = {name: one.by_length for name, one in reached.items()}
    *cuts, whole = next(iter(by_name.values()))
    if not cuts:
        return
    st.markdown(f"**{yours_text.BY_LENGTH}**")
    lengths = [yours_text.CUT.format(length=cut.length) for cut in cuts]
    columns = [yours_text.COLUMNS[0], *lengths, yours_text.WHOLE.format(length=whole.length)]
    rows = [[yours_text.SUGGESTED[name], *(percent(at.kept.share) for at in ats)] for name, ats in by_name.items()]
    st.html(table(columns, rows))
    st.caption(yours_text.BY_LENGTH_IS)


def _row(name: str, one: Suggestion | str) -> list[str]:
    if isinstance(one, str):
        return [yours_text.SUGGESTED[name], *[yours_text.NOT_REACHED] * (len(yours_text.COLUMNS) - 1)]
    at_last = one.unseen or one.before
    unseen = yours_text.NOT_REACHED if one.unseen is None else percent(one.unseen.share)
    return [
        yours_text.SUGGESTED[name], f"{one.threshold:g}", percent(one.before.share), unseen, percent(at_last.cut),
        percent(at_last.ess),
    ]  # fmt: skip


def _take(reached: dict[str, Suggestion]) -> None:
    """Show the text for the person's system, and a link to the bench."""
    left, right = st.columns(2)
    with left:
        name = st.selectbox(
            yours_text.TAKE,
            list(reached),
            format_func=lambda name: f"{yours_text.SUGGESTED[name]} ({name})",
            key="take",
        )
    with right:
        system = systems.system()
    for sentence in notices.sentences(systems.KEY):
        st.warning(plain(sentence))
    one = reached[name]
    systems.text_for(system, one.config, PRESETS[name].loss)
    query = {"preset": name} | {b.key: f"{b.value:.12g}" for b in bounds_of(one.config)}
    navigation.link_to("bench", query, yours_text.OPEN, width="content")


show(session.selection())
