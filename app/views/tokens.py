"""The Tokens view: responses coloured by their ratios, and every number of one token."""

from functools import partial

import state
import streamlit as st
from components.live_part import LiveContent, Note
from components.token_text import SHADES, TOKENS_PER_PAGE, ShownResponse, pages_of, token_text
from controls import strips
from controls.choosing import pick
from controls.configuration import settings
from controls.pickers import explain, picked_record
from controls.sharing import verdict
from data import corrections
from data.bounds import Bound
from data.recorded import Selection
from text import tokens as say
from text.formatting import number, plain, table

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, correct
from rlcorr.analysis.log_prob_pairs import largest_hundredth
from rlcorr.analysis.token_story import formulas, furthest_token, mean_ratios, ordered_rows, token_story
from rlcorr.bounds import at_threshold
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures.fates import FATES, shades, token_fates
from rlcorr.ratios import ratio
from rlcorr.records import runs
from rlcorr.records.token_texts import pieces, text_kind
from rlcorr.strips.packing import Package, PictureStrip
from rlcorr.strips.strip import token_cells

TEXT, ORDER, PAGE, EXPLAINED = "tokens_text", "tokens_order", "tokens_page", "explained"
Texts = list[list[str]]
TokenIndex = tuple[int, int]
"""Row and column of a token, both counted from 0."""


def show(shown: Selection) -> None:
    """Show the controls with the sentence about the correction, the text and the opened token."""
    if (record := picked_record(shown)) is not None:
        texts = pieces(record)
        _answer(record, texts)
        refused = st.empty()
        left, middle, right = st.columns([1, 2, 1.9], gap="medium")
        with left:
            config, identity = settings(), corrections.identity(shown.run, record.step)
            strip_of, batches = partial(fates_strip, record.batch), [(identity, record.batch)]
            strips.show_live("tokens", config, sentence, strip_of, batches, shown.source)
        try:
            result = correct(record.batch, config)
            with middle:
                opened = _text(record, texts, result, config)
                st.caption(plain(f"{say.KEYS} {say.TEXTS[text_kind(record)]}"))
            with right:
                _panel(record, texts, result, config, opened)
        except UsageError as error:
            refused.error(plain(str(error)))
    explain(say.EXPLAIN)


def sentence(config: CorrectionConfig) -> LiveContent:
    """Return the content of the live part: the sentence about the correction."""
    return LiveContent({}, [], texts={EXPLAINED: config.explain()}, notes=[Note("", EXPLAINED)])


def fates_strip(batch: TokenBatch, config: CorrectionConfig, b: Bound, slider_values: strips.Values) -> Package:
    """Return the fate of every token for every slider value."""
    cells = token_cells(batch, config, slider_values, b.id)
    texts = {EXPLAINED: [at_threshold(config, value, b.id).explain() for value in slider_values]}
    return strips.package(cells.arrays(), [{}] * len(slider_values), texts, {TEXT: PictureStrip(cells=True)})


def _text(record: runs.StepRecord, texts: Texts, result: CorrectionResult, config: CorrectionConfig) -> TokenIndex:
    """Show one page of responses, and return the token to show: the opened one, or the largest mismatch of the page."""
    pieces = _page(record, texts, result)
    opened = _opened(texts) or furthest_token(record.batch, result, [row for row, _ in pieces])
    if opened is None:
        raise UsageError(say.NO_TOKENS)
    strengths, span = shades(record.batch, result)
    fates = token_fates(record.batch, result, config)
    means, rewards, responses = mean_ratios(record.batch, result), record.batch.rewards, []
    for row, start in pieces:
        count, stop = len(texts[row]), min(start + TOKENS_PER_PAGE, len(texts[row]))
        rejected = int((fates[row] == FATES.index("rejected")).sum())
        reward = None if rewards is None else float(rewards[row])
        responses.append(
            ShownResponse(
                row=row,
                start=start,
                heading=say.heading(row, reward, means[row], rejected, count) + say.piece(start, stop, count),
                prompt=say.prompt(record.prompts[row]),
                texts=[say.token(text) for text in texts[row][start:stop]],
                ratios=[number(r) for r in ratio(result.log_ratio[row, start:stop]).tolist()],
                shades=(SHADES + strengths[row, start:stop] * SHADES).round().int().tolist(),
                fates=fates[row, start:stop].tolist(),
            )
        )
    token_text(responses, opened, span=span, words=say.LEGEND, fates=say.FATES, key=TEXT, on_open=_clicked)
    return opened


def _page(record: runs.StepRecord, texts: Texts, result: CorrectionResult) -> list[tuple[int, int]]:
    """Show the pickers of order and page, and return the selected page, see `pages_of`."""
    left, right = st.columns([2, 1], vertical_alignment="bottom")
    with left:
        order = pick(ORDER, "Order", list(say.ORDERS), written=say.ORDERS.__getitem__)
    pages = pages_of(ordered_rows(record.batch, result, order), [len(row) for row in texts])
    opened = _opened(texts)
    if opened is not None and st.session_state.get("tokens_turned_for") != opened:
        piece = opened[0], opened[1] // TOKENS_PER_PAGE * TOKENS_PER_PAGE
        state.change(**{PAGE: next((n for n, pieces in enumerate(pages, 1) if piece in pieces), 1)})
    st.session_state["tokens_turned_for"] = opened
    last = max(len(pages), 1)
    if state.get(PAGE) > last:
        state.change(**{PAGE: last})
    label, number = f"Page (of {len(pages)})", state.get(PAGE)
    right.number_input(label, 1, last, number, key=state.widget(PAGE), disabled=len(pages) < 2)
    return pages[number - 1] if pages else []


def _opened(texts: Texts) -> TokenIndex | None:
    """Return the opened token; None if no token is open, or the step has no such token."""
    token: TokenIndex | None = state.get("token")
    exists = token is not None and token[0] < len(texts) and token[1] < len(texts[token[0]])
    return token if exists else None


def _clicked() -> None:
    index = st.session_state[TEXT]["open"]
    state.change(token=(int(index["row"]), int(index["column"])))


def _panel(
    record: runs.StepRecord, texts: Texts, result: CorrectionResult, config: CorrectionConfig, opened: TokenIndex
) -> None:
    """Show the numbers of the opened token, the formulas with these numbers, and buttons for its neighbours."""
    row, column = opened
    story = token_story(record.batch, result, config, row, column, PRESETS[state.get("preset")].loss)
    st.markdown(say.title(story, texts[row][column]))
    with st.container(horizontal=True):
        for label, key, token, possible in (
            ("‹ Previous token", "tokens_previous", (row, column - 1), column > 0),
            ("Next token ›", "tokens_next", (row, column + 1), column + 1 < story.tokens),
            (say.CLOSE, "tokens_close", None, _opened(texts) is not None),
        ):
            st.button(label, key=key, disabled=not possible, on_click=state.change, kwargs={"token": token})
    rows = say.numbers(story, config.rollout_is is not None)
    st.html(table(say.NUMBERS, rows, say.MEANINGS))
    with st.container(key="tokens_formulas"):
        st.code("\n".join(formulas(story, config)), language=None, wrap_lines=True)
    if config.bypass_mode:
        st.caption(say.BYPASS)


def _answer(record: runs.StepRecord, texts: Texts) -> None:
    """Show how much of the mismatch 1 % of the tokens make, and the largest gap, before any correction.

    Of equal gaps it is the one of the response that the text below shows first.
    """
    batch = record.batch
    try:
        result, share = correct(batch, CorrectionConfig()), largest_hundredth(batch)
        furthest = furthest_token(batch, result, ordered_rows(batch, result, next(iter(say.ORDERS))))
    except UsageError:  # the text below says what is missing
        return
    if furthest is None:
        return
    row, column = furthest
    q, p = (float(x[row, column].exp()) for x in (batch.rollout_log_probs, old_log_probs(batch)))
    verdict(say.answer(share, texts[row][column], row, column, q, p))
