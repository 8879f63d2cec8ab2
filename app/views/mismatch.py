"""The Mismatch view: where the two log-probs disagree, and the likely cause."""

import streamlit as st
from components.links import Link, links
from components.picture import picture
from controls.choosing import pick_several
from controls.pickers import picked_record
from data.recorded import Selection
from text import mismatch as say
from text.formatting import number, percent, plain, table
from text.phrases import in_words

from rlcorr import CorrectionConfig, TokenBatch, correct, evaluate
from rlcorr.analysis.discarding import discarded
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.segments import AgeShare, age_share, answer_lags, by_lag, by_turn, token_lags
from rlcorr.analysis.symptoms import Symptom
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.figures.canvas import Figure
from rlcorr.figures.segments import lag_bars, turn_bars
from rlcorr.foreign.missing_fields import missing
from rlcorr.measuring.gap_parts import part_metrics
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records.step_files import StepRecord


def show(shown: Selection) -> None:
    record = picked_record(shown)
    if record is None:
        return
    try:
        _verdict(record, triage(record.batch))
    except UsageError as error:
        st.error(plain(str(error)))
        return
    if record.batch.sampled_log_probs is not None:
        _parts(record.batch, shown.source)
    _pictures(record, shown.source)
    _discarding(record)
    _regions(record.batch, shown.source)


def _verdict(record: StepRecord, symptoms: list[Symptom]) -> None:
    """Show the strongest symptom as the headline, the others below it, the sizes, and the age of the weights."""
    part = age_share(by_lag(record.batch, record.step)) if _lags(record) else None
    heading, *others = [in_words(said) for said in say.verdict(symptoms, part)]
    heading, details = say.headline(heading)
    st.markdown(f"##### {plain(heading)}\n{plain(details)}".strip())
    for sentence in others:
        st.markdown(plain(sentence))
    _next(symptoms[0], part)
    numbers = symptoms[0].numbers
    with st.container(horizontal=True, key="sizes"):
        for label, (name, help) in say.SIZES.items():
            if name in numbers:
                st.metric(label, number(numbers[name]), help=help, width=112)
    lags = _lags(record)
    if len(lags) == 1 and lags[0] > 0:
        st.caption(say.one_lag(lags[0]))


def _parts(batch: TokenBatch, source: str) -> None:
    """Show how much of the gap is the engine's and how much the age of the weights."""
    st.markdown(f"##### {say.PARTS}")
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


def _next(symptom: Symptom, part: AgeShare | None) -> None:
    """Show what to do about a symptom, and a link to the view that helps, with the same run and preset."""
    advice, view, label = say.next_step(symptom, part)
    with st.container(horizontal=True, vertical_alignment="center", key="next"):
        st.markdown(advice, width="content")
        links(Link(label, {"view": view}), key="next_link")


def _regions(batch: TokenBatch, source: str) -> None:
    """Show the choice of methods and their pictures."""
    names = pick_several("methods", say.METHODS, list(say.OFFERED))
    methods = {name: say.OFFERED[name] for name in names}
    left, right = st.columns(2)
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


def _pictures(record: StepRecord, source: str) -> None:
    batch, missing_fields = record.batch, missing(record)
    _row(
        source,
        tail=mismatch.tail(batch),
        position=mismatch.by_position(batch),
        length=mismatch.by_length(batch, SEQUENCE_METHODS),
    )
    second = {}
    if "response_ids" in missing_fields:
        st.caption(say.NO_IDS)
    else:
        labels = mismatch.token_labels(record)
        second["tokens"] = mismatch.by_token(batch, labels)
        second["tokens_mean"] = mismatch.by_token(batch, labels, mean=True)
    if len(_lags(record)) > 1:
        second["lag"] = lag_bars(by_lag(batch, record.step))
    if batch.turn_ids is not None:
        second["turn"] = turn_bars(by_turn(batch))
    if second:
        _row(source, **second)


def _discarding(record: StepRecord) -> None:
    """Show what discarding the answers of old weights, or with large ratios, does to mean length and mean reward."""
    batch = record.batch
    ways = {say.WITHIN[name]: correct(batch, config).keep_mask.any(-1) for name, config in SEQUENCE_METHODS.items()}
    for lag in _lags(record)[:-1]:
        ways[say.OLDER.format(lag=lag)] = answer_lags(batch, record.step) <= lag
    rows = []
    for name, keep in ways.items():
        if bool((keep & batch.response_mask.any(-1)).any()):
            left = discarded(batch, keep)
            reward = number(None) if left.reward is None else say.difference(left.reward)
            rows.append([name, percent(left.kept), say.relative(left.length), reward])
        else:
            rows.append([name, percent(0.0), number(None), number(None)])
    st.markdown(f"##### {say.DISCARDING}")
    st.html(table(list(say.DISCARDED), rows, say.DISCARDED_MEANINGS))
    st.caption(say.DISCARDING_IS)


def _lags(record: StepRecord) -> list[int]:
    """Return the ages of the weights in this step; none if the step has no policy versions."""
    if "policy_versions" in missing(record):
        return []
    return token_lags(record.batch, record.step)[record.batch.response_mask].unique().tolist()


def _row(source: str, **figures: Figure) -> None:
    for column, (key, figure) in zip(st.columns(len(figures)), figures.items(), strict=True):
        with column:
            title, caption = say.PICTURES[key]
            picture(title, figure, key=f"mismatch_{key}", caption=caption, source=source)
