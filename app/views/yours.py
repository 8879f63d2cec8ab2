"""A person's own data: what it looks like, the bounds that it suggests with their price, and the text to take home."""

import streamlit as st
from components.picture import picture
from controls import systems
from controls.bounds import bounds_of
from controls.pickers import picked_record
from data import chosen
from data.chosen import Suggestion
from state import navigation, notices, session
from text import mismatch
from text import yours as say
from text.formatting import number, percent, plain, table

from rlcorr import PRESETS
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch as figures
from rlcorr.records.step_files import StepRecord

HEIGHT = 260


def show(shown: session.Selection) -> None:
    if not shown.slug.startswith("upload_"):
        st.caption(say.EXAMPLE.format(run=f"**{plain(shown.slug)}**"))
    record = picked_record(shown)
    if record is None:
        return
    left, right = st.columns([2, 3], gap="medium")
    try:
        with left:
            _verdict(record)
            _all_steps(shown)
        with right:
            _bounds(shown)
    except UsageError as error:
        st.error(plain(str(error)))


def _verdict(record: StepRecord) -> None:
    findings = triage(record.batch)
    st.markdown(f"##### {plain(findings[0].sentence)}")
    for finding in findings[1:]:
        st.markdown(mismatch.ALSO.format(sentence=plain(finding.sentence)))
    st.markdown(mismatch.NEXT[findings[0].pattern][0])
    with st.container(horizontal=True, key="sizes"):
        for label, (name, help) in mismatch.SIZES.items():
            if name in findings[0].numbers:
                st.metric(label, number(findings[0].numbers[name]), help=help, width=112)
    tail = figures.tail(record.batch)
    tail.layout.height = HEIGHT
    title, caption = mismatch.PICTURES["tail"]
    picture(title, tail, key="tail", caption=caption)


def _all_steps(shown: session.Selection) -> None:
    """Write what the steps of the run look like, a line per pattern, if there is more than one step."""
    if len(shown.steps) > 1:
        st.caption(say.ALL_STEPS)
        for line in chosen.looks_like(chosen.stamps(shown.run, shown.steps)):
            st.markdown(f"- {plain(line)}")


@st.fragment
def _bounds(shown: session.Selection) -> None:
    st.markdown(f"##### {say.BOUNDS}")
    picked = st.segmented_control(
        say.KEEP, say.KEEPS, default=say.KEEPS[1], key="keep", bind="query-params", required=True
    )
    of = chosen.stamps(shown.run, shown.steps)
    suggested = chosen.suggestions(of, float(picked.removesuffix(" %")) / 100)
    before, last = chosen.pairs(of)
    steps = " to ".join(str(step) for step in dict.fromkeys((before.steps[0], before.steps[-1])))
    st.caption(say.BOUNDS_OF_ONE if last is None else say.BOUNDS_ARE.format(chosen_on=steps, unseen=last.steps[0]))
    st.html(table(list(say.COLUMNS), [_row(name, one) for name, one in suggested.items()], say.MEANINGS))
    for name, refused in suggested.items():
        if isinstance(refused, str):
            st.caption(plain(f"{say.SUGGESTED[name]}: {refused}"))
    st.caption(say.WHICH_LEARNS)
    reached = {name: one for name, one in suggested.items() if isinstance(one, Suggestion)}
    if reached:
        _take(reached)


def _row(name: str, one: Suggestion | str) -> list[str]:
    if isinstance(one, str):
        return [say.SUGGESTED[name], *[say.NOT_REACHED] * (len(say.COLUMNS) - 1)]
    at_last = one.unseen or one.before
    unseen = say.NOT_REACHED if one.unseen is None else percent(one.unseen.share)
    return [
        say.SUGGESTED[name], f"{one.threshold:g}", percent(one.before.share), unseen, percent(at_last.cut),
        percent(at_last.ess),
    ]  # fmt: skip


def _take(reached: dict[str, Suggestion]) -> None:
    """The text for the person's system, and the way to the bench."""
    left, right = st.columns(2)
    with left:
        name = st.selectbox(
            say.TAKE, list(reached), format_func=lambda name: f"{say.SUGGESTED[name]} ({name})", key="take"
        )
    with right:
        system = systems.system()
    for sentence in notices.sentences(systems.KEY):
        st.warning(plain(sentence))
    one = reached[name]
    systems.text_for(system, one.config, PRESETS[name].loss)
    query = session.placed() | {"preset": name}
    query |= {b.key: f"{b.value:.12g}" for b in bounds_of(one.config)}
    st.page_link(navigation.pages()["bench"], label=say.OPEN, query_params=query, width="content")


show(session.selection())
