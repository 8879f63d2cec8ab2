"""The Mismatch view: where the two log-probs disagree, and the likely cause."""

from pathlib import Path

import streamlit as st
from components.links import Link, links
from components.picture import picture
from controls import sharing
from controls.choosing import pick_several
from controls.pickers import picked_record
from data import recorded
from data.caching import cached
from data.corrections import identity
from data.names import run_title
from data.recorded import Selection
from text import mismatch as say
from text.formatting import number, percent, plain, table
from text.phrases import in_words

from rlcorr import CorrectionConfig, TokenBatch, correct, evaluate
from rlcorr.analysis.discarding import discarded
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.segments import age_share, answer_lags, by_lag, by_turn, token_lags
from rlcorr.analysis.symptoms import Symptom, short
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.figures.canvas import Figure
from rlcorr.foreign.to_record import missing
from rlcorr.measuring.gap_parts import part_metrics
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord

MOST_LAGS = 12
"""Ages of the weights for which discarding is shown, the youngest first."""


def show(shown: Selection) -> None:
    """Show the verdict with the sizes of the gap and the age of the weights, and below it the pictures."""
    record = picked_record(shown)
    if record is None:
        return
    batch, lags = record.batch, []
    if "policy_versions" not in missing(record):
        lags = token_lags(batch, record.step)[batch.response_mask].unique().tolist()
    try:
        symptoms = triage(batch)
    except UsageError as error:
        st.error(plain(str(error)))
        return
    _result(shown, record, symptoms)
    with st.container(horizontal=True, key="sizes"):
        for label, (name, help) in say.SIZES.items():
            if name in symptoms[0].numbers:
                st.metric(label, number(symptoms[0].numbers[name]), help=help, width=112)
    if len(lags) == 1 and lags[0] > 0:
        st.caption(say.ONE_LAG.format(age="one update" if lags[0] == 1 else f"{lags[0]} updates"))
    if batch.sampled_log_probs is not None:
        _parts(batch, shown.source)
    _pictures(record, lags, shown.source)
    _discarding(shown, lags)


def _result(shown: Selection, record: StepRecord, symptoms: list[Symptom]) -> None:
    """Show the verdict, or the cause that a committed run records, as the heading; what to do, pictures, and why."""
    part = None if "policy_versions" in missing(record) else age_share(by_lag(record.batch, record.step))
    first, *others = map(in_words, say.verdict(symptoms, part))
    heading, details = say.headline(first)
    pattern, title = symptoms[0].pattern, run_title(shown.slug)
    advice, view, label = say.next_step(symptoms[0], part)
    is_open = pattern == "undecided"
    if is_open and shown.run.parent == runs.ROOT and title != shown.slug:
        heading, details = say.RECORDED.format(cause=title, k3=short(symptoms[0].numbers["k3"])), first
        advice, is_open = say.RECORDED_IS, False
    sharing.verdict(plain(heading))
    with st.container(horizontal=True, vertical_alignment="center", key="next"):
        for check, result in say.CHECKS.items() if is_open else ():
            st.popover(check).markdown(result)
        st.markdown(advice, width="content")
        links(Link(label, {"view": view}), key="next_link")
    _regions(record.batch, shown.source)
    with st.expander(say.WHY):
        st.markdown(plain("\n\n".join([details, *others])))


def _parts(batch: TokenBatch, source: str) -> None:
    """Show how much of the gap is the engine's and how much the age of the weights."""
    st.markdown(f"## {say.PARTS}")
    left, right = st.columns(2, gap="medium")
    with left:
        title, caption = say.PICTURES["parts"]
        picture(title, mismatch.tail_of_parts(batch), key="mismatch_parts", caption=caption, source=source)
    numbers = part_metrics(batch) | evaluate(batch, CorrectionConfig())[1]
    with right:
        rows = [
            [name, *(number(numbers[f"{PREFIX}{key}{metric}"]) for metric in say.PART_COLUMNS.values())]
            for name, key in say.PART_ROWS.items()
        ]
        st.html(table(["", *say.PART_COLUMNS], rows, say.PART_MEANINGS))
        st.caption(say.CORRELATION.format(correlation=number(numbers[f"{PREFIX}parts_correlation"])))


def _regions(batch: TokenBatch, source: str) -> None:
    """Show the choice of methods and their pictures."""
    left, right = st.columns(2)
    names = pick_several("methods", say.METHODS, list(say.OFFERED))
    methods = {name: say.OFFERED[name] for name in names}
    with left:
        title, caption = say.PICTURES["acceptance"]
        picture(title, mismatch.acceptance(batch, methods), key="acceptance", caption=caption, source=source)
    with right:
        title, caption = say.PICTURES["magnified"]
        figure = mismatch.acceptance(batch, methods, magnified=True)
        picture(title, figure, key="magnified", caption=caption, source=source)
    if methods:
        with st.expander(say.EXPLAINED):
            st.html(table(["", ""], [[name, config.explain()] for name, config in methods.items()]))


def _pictures(record: StepRecord, lags: list[int], source: str) -> None:
    batch, second = record.batch, {}
    length = mismatch.by_length(batch, SEQUENCE_METHODS)
    _row(source, tail=mismatch.tail(batch), position=mismatch.by_position(batch), length=length)
    if "response_ids" in missing(record):
        st.caption(say.NO_IDS)
    else:
        labels = mismatch.token_labels(record)
        second["tokens"] = mismatch.by_token(batch, labels)
        second["tokens_mean"] = mismatch.by_token(batch, labels, mean=True)
    if len(lags) > 1:
        second["lag"] = mismatch.lag_bars(by_lag(batch, record.step))
    if batch.turn_ids is not None:
        second["turn"] = mismatch.turn_bars(by_turn(batch))
    if second:
        _row(source, **second)


def _discarding(shown: Selection, lags: list[int]) -> None:
    """Show what discarding the answers of old weights, or with large ratios, does to mean length and mean reward."""
    st.markdown(f"## {say.DISCARDING}")
    rows = _discarded_rows(shown.run, shown.step or 0, tuple(lags[:-1][:MOST_LAGS]))
    st.html(table(list(say.DISCARDED), rows, say.DISCARDED_MEANINGS))
    st.caption(say.DISCARDING_IS)


@cached(16, lambda run, step, lags: (identity(run, step), lags))
def _discarded_rows(run: Path, step: int, lags: tuple[int, ...]) -> list[list[str]]:
    """Return a row for each way of discarding. Each takes a thousand bootstrap samples."""
    record = recorded.step(run, step)
    batch = record.batch
    ways = {say.WITHIN[name]: correct(batch, config).keep_mask.any(-1) for name, config in SEQUENCE_METHODS.items()}
    for lag in lags:
        ways[say.OLDER.format(lag=lag)] = answer_lags(batch, record.step) <= lag
    rows = []
    for name, keep in ways.items():
        kept, length, reward = 0.0, number(None), number(None)
        if bool((keep & batch.response_mask.any(-1)).any()):
            left = discarded(batch, keep)
            kept, length = left.kept, say.relative(left.length)
            reward = reward if left.reward is None else say.difference(left.reward)
        rows.append([name, percent(kept), length, reward])
    return rows


def _row(source: str, **figures: Figure) -> None:
    for column, (key, figure) in zip(st.columns(len(figures)), figures.items(), strict=True):
        with column:
            title, caption = say.PICTURES[key]
            picture(title, figure, key=f"mismatch_{key}", caption=caption, source=source)
