"""The page for a person's own data: its likely cause, what the system ships, thresholds by budget, and the text."""

from collections.abc import Mapping
from functools import partial

import streamlit as st
from components.links import Link, links
from components.picture import picture
from controls import upload_box
from controls.choosing import buttons, pick
from controls.configuration import export_text, pick_system
from controls.pickers import picked_record
from controls.sharing import run_and_step
from data import suggestions, uploads
from data.bounds import bounds_of
from data.corrections import Identity
from data.names import BETWEEN, run_labels
from data.recorded import Selection
from data.suggestions import Stamps, Suggestion
from text import mismatch as mismatch_text
from text import yours as yours_text
from text.formatting import Graded, GradedCell, graded_table, number, percent, plain, table
from text.phrases import in_words
from views.mismatch import verdict

from rlcorr.analysis.gap_size import averages, gap_size
from rlcorr.analysis.published import causes, place
from rlcorr.analysis.symptoms import Symptom, without_outliers
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.figures.canvas import Figure
from rlcorr.figures.gaps import gap_strip
from rlcorr.records import runs
from rlcorr.systems.export import can_express

HEIGHT = 260
# The pickers would name another run.
NOTHING_ELSE = "<style>.st-key-pickers { display: none }</style>"


def show(selection: Selection) -> None:
    if upload_box.is_refused():
        st.html(NOTHING_ELSE)
        st.info(yours_text.REFUSED)
        return
    with st.container(key="yours"):
        if not selection.slug.startswith(uploads.PREFIX) and selection.run.parent != runs.LOCAL:
            label = run_labels([selection.slug])[selection.slug]
            st.caption(yours_text.EXAMPLE.format(run=f"**{plain(label)}**"))
        record = picked_record(selection)
        try:
            if record is not None:
                _page(selection, record)
        except UsageError as error:
            st.error(plain(str(error)))


def _page(selection: Selection, record: runs.StepRecord) -> None:
    """Show the verdict, and below it what to choose from, unless there is a fault to mend first."""
    stamps = suggestions.stamps_of(selection.run, selection.steps)
    symptoms, fault = triage(record.batch), suggestions.fault(stamps)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        token_links = partial(_token_links, symptoms[0])
        verdict(record, symptoms, token_links, lambda sentence: yours_text.unbroken(in_words(sentence)))
    if fault is None:
        with right:
            _sizes(record, symptoms)
        _corrections(record, stamps, selection)
        _is_it_normal(record, symptoms, selection.source)
        return
    step, symptom = fault
    with left:
        if step != record.step:
            st.markdown(yours_text.OTHER_STEP.format(step=step, sentence=plain(in_words(symptom.sentence))))
        st.markdown(yours_text.NO_TABLE)
    with right:
        if symptoms[0].pattern != "identical":  # no token differs
            _tail(record, stamps, selection.source)
    _all_steps(stamps)


def _token_links(symptom: Symptom, view: str, label: str) -> None:
    """Show a link to each token that the symptom names, or to all tokens if it names none, if they are what helps."""
    if view == "tokens":
        named = [
            Link(yours_text.SEE_TOKEN.format(column=column, row=row), {"view": "tokens", "token": f"{row}.{column}"})
            for row, column in symptom.tokens
        ]
        links(*(named or [Link(label, {"view": "tokens"})]), key="see_tokens")


def _sizes(record: runs.StepRecord, symptoms: list[Symptom]) -> None:
    """Show the size of the gap in means, and in averages that few tokens cannot move."""
    named = [token for symptom in symptoms for token in symptom.tokens]
    numbers, rows = averages(record.batch, named), []
    for label, (name, _) in mismatch_text.SIZES.items():
        one = numbers[name]
        shown = [one.mean, *([one.without] if named else []), one.trimmed, one.median]
        rows.append([yours_text.size_name(label), *map(number, shown)])
    columns = [column for column in yours_text.AVERAGES if named or column != yours_text.WITHOUT]
    meanings = {yours_text.size_name(label): help for label, (_, help) in mismatch_text.SIZES.items()}
    st.html(table(columns, rows, meanings | yours_text.AVERAGES_ARE))


def _tail(record: runs.StepRecord, stamps: Stamps, source: str) -> None:
    title, caption = mismatch_text.PICTURES["tail"]
    (identity,) = [stamp for stamp in stamps if stamp[1] == record.step]
    picture(title, _tail_figure(identity, record), key="tail", caption=caption, source=source)


@st.cache_resource(max_entries=4, show_spinner=False)
def _tail_figure(identity: Identity, _record: runs.StepRecord) -> Figure:
    figure = mismatch.tail(_record.batch)
    figure.layout.height = HEIGHT
    return figure


def _all_steps(stamps: Stamps) -> None:
    """Write what the steps of the run look like, a line per pattern, if there is more than one step."""
    if len(stamps) > 1:
        st.caption(yours_text.ALL_STEPS)
        for line in suggestions.looks_like(stamps):
            st.markdown(f"- {plain(mismatch_text.headline(in_words(line))[0])}")


def _is_it_normal(record: runs.StepRecord, symptoms: list[Symptom], source: str) -> None:
    """Show the gap of the step among measured gaps, and how many of its ratios are near 1."""
    size = gap_size(without_outliers(record.batch, symptoms))
    if size is None or size.k3 == 0:
        return
    st.markdown(f"##### {yours_text.NORMAL}")
    left, right = st.columns([3, 2], gap="medium")
    with right:
        measure = yours_text.MEASURES[buttons("measure", yours_text.MEASURE, tuple(yours_text.MEASURES))]
        value = size.k3 if measure == "k3" else size.abs
        for sentence in place(value, measure):
            st.markdown(plain(sentence))
        if measure == "abs":  # the headline of the page names the causes by k3
            st.markdown(plain(causes(value, measure)))
        shares = size.shares_within()
        rows = [[f"±{100 * band:g} %", percent(tokens), percent(answers)] for band, tokens, answers in shares]
        st.html(table(list(yours_text.BANDS), rows, yours_text.BANDS_ARE))
    with left:
        title, caption = yours_text.STRIP
        picture(title, gap_strip(value, measure), key="gaps", caption=caption, source=source)


def _corrections(record: runs.StepRecord, stamps: Stamps, selection: Selection) -> None:
    """Show what the system ships, thresholds by budget, the text of the one that is taken, and the tail."""
    left, right = st.columns([2, 3], gap="medium")
    with left:
        system = pick_system()
    shipped = suggestions.published(stamps, system)
    with right:
        title = yours_text.SHIPPED_PYTHON if system == "Python" else yours_text.SHIPPED.format(system=system)
        st.markdown(f"##### {title}")
        st.caption(yours_text.SHIPPED_ARE.format(step=suggestions.measured_on(stamps).steps[-1]))
        rows = []
        for one in shipped:
            below = filter(None, (yours_text.DEFAULT if one.is_default else None, one.preset))
            rows.append((yours_text.limits(one.config), BETWEEN.join(below), _cells(one)))
        st.html(graded_table(yours_text.COLUMNS, rows, yours_text.MEANINGS))
        for one in shipped:
            if isinstance(one.effect, str):
                st.caption(plain(yours_text.UNMEASURED.format(name=one.preset, reason=one.effect)))
        st.markdown(f"##### {yours_text.BUDGET}")
        picked = buttons("keep", yours_text.KEEP, yours_text.KEEPS)
        reached, refused = suggestions.by_budget(stamps, float(picked.removesuffix(" %")) / 100)
        offered = [one for one in reached if can_express(system, one.config, one.loss)]
        no_text = yours_text.NO_TEXT.format(system=system)
        _by_budget(stamps, reached, refused, {one.preset: no_text for one in reached if one not in offered})
    with left:
        _take(system, [one for one in (*shipped, *offered) if one.is_advised], run_and_step(selection))
        _tail(record, stamps, selection.source)
        _all_steps(stamps)


def _by_budget(
    stamps: Stamps, reached: list[Suggestion], refused: dict[str, str], remarks: dict[str | None, str]
) -> None:
    """Show the thresholds, why there are none, and what they keep of the same answers cut to fewer tokens.

    `remarks` are shown below the names of some, by their presets.
    """
    before, last = suggestions.pairs(stamps)
    rows, columns = [], list(yours_text.BUDGET_COLUMNS)
    if last is None:
        st.caption(yours_text.BUDGET_OF_ONE)
        columns.remove(yours_text.WHERE_CHOSEN)
    else:
        steps = " to ".join(str(step) for step in dict.fromkeys((before.steps[0], before.steps[-1])))
        st.caption(yours_text.BUDGET_ARE.format(chosen_on=steps, unseen=last.steps[0]))
    for one in reached:
        first = [yours_text.threshold(one.threshold)] + ([] if one.before is None else [percent(one.before.share)])
        rows.append((_what(one), remarks.get(one.preset, ""), [*first, *_cells(one)]))
    if rows:
        st.html(graded_table(columns, rows, yours_text.MEANINGS))
    for name, reason in refused.items():
        st.caption(plain(f"{yours_text.SUGGESTED[name]}: {reason}"))
    st.caption(f"{yours_text.NO_CAP} {yours_text.WHICH_LEARNS}")
    if reached and len(reached[0].by_length) > 1:
        *cuts, whole = reached[0].by_length
        st.markdown(f"**{yours_text.BY_LENGTH}**")
        lengths = [yours_text.FIRST.format(length=cut) for cut in cuts]
        columns = [yours_text.BUDGET_COLUMNS[0], *lengths, yours_text.WHOLE.format(length=whole)]
        lines = [[_what(one), *(percent(cut.share) for cut in one.by_length.values())] for one in reached]
        st.html(table(columns, lines))
        st.caption(yours_text.BY_LENGTH_IS)


def _cells(one: Suggestion) -> list[GradedCell]:
    """Return the cells of an effect. What the glossary has a limit for is graded: the clipped mass, and the ESS."""
    effect = one.effect
    if isinstance(effect, str):
        return [yours_text.NOT_REACHED] * len(yours_text.COLUMNS[1:])
    clipped: GradedCell = yours_text.NOT_REACHED
    zeroed: GradedCell = percent(effect.zeroed)
    if effect.cut is not None:
        clipped = Graded(percent(effect.cut), not effect.has_high_clipped)
    elif one.config.rollout_is is not None:
        zeroed = Graded(percent(effect.zeroed), not effect.has_high_clipped)
    # Without a correction every weight is 1, so the effective sample size says nothing about the batch.
    ess = Graded(percent(effect.ess), not effect.has_low_ess) if one.acts else percent(effect.ess)
    return [percent(effect.share), clipped, zeroed, ess]


def _what(one: Suggestion) -> str:
    return yours_text.SUGGESTED[str(one.preset)]


def _label(one: Suggestion) -> str:
    if one.share is None:
        return f"{yours_text.limits(one.config)} ({one.preset or yours_text.DEFAULT})"
    return f"{yours_text.BY_BUDGET.format(what=_what(one), share=f'{100 * one.share:g} %')} ({one.preset})"


def _take(system: str, advised: list[Suggestion], run: Mapping[str, str]) -> None:
    """Show the text for the person's system, and a link to the bench."""
    if not advised:
        st.info(yours_text.NOTHING_TO_TAKE)
        return
    by_key = {one.key: one for one in advised}
    one = by_key[pick("take", yours_text.TAKE, list(by_key), written=lambda key: _label(by_key[key]))]
    if one.preset is None:  # the bench shows presets only
        export_text(system, one.config, one.loss, run)
        return
    to = {"view": "bench", "preset": one.preset} | {b.key: f"{b.value:.12g}" for b in bounds_of(one.config)}
    export_text(system, one.config, one.loss, {**to, **run})
    links(Link(yours_text.OPEN, to), key="open_taken")
