"""The Tokens view: responses coloured by their ratios, and every number of one token."""

from functools import partial

import streamlit as st
from components.token_text import SHADES, ShownResponse, pages_of, token_text
from controls.bounds import useful_slider_values
from controls.configuration import bound_sliders, bounded, preset_name, resets, settings
from controls.drag import show_live
from controls.pickers import explain, picked_record
from data import corrections
from live import tokens as live_tokens
from state import address, notices, opened_token, session
from text import tokens as say
from text.formatting import number, plain, table
from torch import Tensor

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, correct
from rlcorr.analysis.log_prob_pairs import largest_hundredth
from rlcorr.analysis.token_formulas import formulas
from rlcorr.analysis.token_story import furthest_token, mean_ratios, ordered_rows, token_story
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures import correction
from rlcorr.figures.cells import shades
from rlcorr.presets.parts import Preset
from rlcorr.ratios import ratio
from rlcorr.records import runs
from rlcorr.records.token_texts import pieces, text_kind

TEXT, ORDER, PAGE = "tokens_text", "tokens_order", "tokens_page"
# On a phone an opened token is at the lower edge of the screen, over the text; without one, nothing is there.
PANEL = """<style>
.st-key-tokens_formulas code { font-size: 0.8rem }
@media (max-width: 640px) {
  [data-testid="stColumn"]:has(.st-key-tokens_formulas):not(:has(.st-key-tokens_close button:enabled)) { display: none }
  [data-testid="stColumn"]:has(.st-key-tokens_formulas) {
    position: sticky; bottom: 0; z-index: 6; max-height: 42dvh; overflow-y: auto; padding: 0.5rem 0;
    background: var(--st-background-color, Canvas); border-top: 2px solid #8b8f97;
  }
}
</style>"""
Texts = list[list[str]]


@address.fragment
def microscope(identity: corrections.Identity, record: runs.StepRecord, texts: Texts, note: str) -> None:
    """Show the controls, the text and the opened token. A click reruns only this fragment."""
    # Empty these here. Streamlit does not remove old elements of a fragment if another fragment runs right after it.
    above, refused = st.empty(), st.empty()
    left, middle, right = st.columns([1, 2, 1.9], gap="medium")
    with left:
        preset = PRESETS[preset_name()]
        config = _live(identity, record.batch, settings(preset.config))
    opened_token.sync([len(row) for row in texts])
    if sentences := [*notices.sentences(), *filter(None, [opened_token.notice()])]:
        with above.container():
            for sentence in sentences:
                st.warning(plain(sentence))
    try:
        result = correct(record.batch, config)
        with middle:
            opened = _text(record, texts, result, config)
            st.caption(plain(note))
        with right:
            _panel(record, texts, result, config, preset, opened)
    except UsageError as error:
        refused.error(plain(str(error)))


def _live(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> CorrectionConfig:
    """Show the sliders and the sentence about the correction, and return the configuration."""
    config = bounded(config)
    sliders = bound_sliders(
        config,
        live_tokens.sentence,
        strip=lambda now, b, slider_values: (
            live_tokens.strip_key(identity, now, b, slider_values),
            partial(live_tokens.fates_strip, batch, now, b, slider_values, TEXT),
        ),
        slider_values=partial(useful_slider_values, [(identity, batch)], config),
    )
    show_live(sliders, live_tokens.sentence(config), key="tokens_live", resets=resets())
    return config


def _text(
    record: runs.StepRecord, texts: Texts, result: CorrectionResult, config: CorrectionConfig
) -> opened_token.TokenIndex:
    """Show one page of responses, and return the token to show: the opened one, or the largest mismatch of the page."""
    rows = _page(record, texts, result)
    opened = opened_token.opened() or furthest_token(record.batch, result, rows)
    if opened is None:
        raise UsageError(say.NO_TOKENS)
    strengths, span = shades(record.batch, result)
    token_text(
        _shown(record, texts, result, config, strengths, rows),
        opened,
        span=span,
        words=say.LEGEND,
        fates=say.FATES,
        key=TEXT,
        on_open=_clicked,
    )
    return opened


def _page(record: runs.StepRecord, texts: Texts, result: CorrectionResult) -> list[int]:
    """Show the pickers of order and page, and return the rows of the selected page."""
    left, right = st.columns([2, 1], vertical_alignment="bottom")
    order = left.selectbox(
        "Order", list(say.ORDERS), format_func=say.ORDERS.__getitem__, key=ORDER,
        persist_state="session", on_change=_turn, args=(1,),
    )  # fmt: skip
    pages = pages_of(ordered_rows(record.batch, result, order), [len(row) for row in texts])
    opened = opened_token.opened()
    if PAGE not in st.session_state or (opened is not None and st.session_state.get("tokens_turned_for") != opened):
        _turn(next((n for n, rows in enumerate(pages, 1) if opened is not None and opened[0] in rows), 1))
    st.session_state["tokens_turned_for"] = opened
    _turn(min(st.session_state[PAGE], max(len(pages), 1)))
    number = right.number_input(f"Page (of {len(pages)})", 1, max(len(pages), 1), key=PAGE, disabled=len(pages) < 2)
    return pages[number - 1] if pages else []


def _turn(page: int) -> None:
    st.session_state[PAGE] = page


def _clicked() -> None:
    index = st.session_state[TEXT]["open"]
    opened_token.open_token((index["row"], index["column"]))


def _shown(
    record: runs.StepRecord,
    texts: Texts,
    result: CorrectionResult,
    config: CorrectionConfig,
    strengths: Tensor,
    rows: list[int],
) -> list[ShownResponse]:
    fates = correction.token_fates(record.batch, result, config)
    means, rewards = mean_ratios(record.batch, result), record.batch.rewards
    shown = []
    for row in rows:
        count = len(texts[row])
        rejected = int((fates[row] == correction.FATES.index("rejected")).sum())
        reward = None if rewards is None else float(rewards[row])
        shown.append(
            ShownResponse(
                row=row,
                heading=say.heading(row, reward, means[row], rejected, count),
                prompt=say.prompt(record.prompts[row]),
                texts=[say.token(text) for text in texts[row]],
                ratios=[number(r) for r in ratio(result.log_ratio[row, :count]).tolist()],
                shades=(SHADES + strengths[row, :count] * SHADES).round().int().tolist(),
                fates=fates[row, :count].tolist(),
            )
        )
    return shown


def _panel(
    record: runs.StepRecord,
    texts: Texts,
    result: CorrectionResult,
    config: CorrectionConfig,
    preset: Preset,
    opened: opened_token.TokenIndex,
) -> None:
    """Show the numbers of the opened token, the formulas with these numbers, and buttons for its neighbours."""
    row, column = opened
    story = token_story(record.batch, result, config, row, column, preset.loss)
    st.markdown(say.title(story, texts[row][column]))
    with st.container(horizontal=True):
        _step("‹ Previous token", "tokens_previous", (row, column - 1), column > 0)
        _step("Next token ›", "tokens_next", (row, column + 1), column + 1 < story.tokens)
        is_open = opened_token.opened() is not None
        st.button(say.CLOSE, key="tokens_close", disabled=not is_open, on_click=opened_token.open_token, args=(None,))
    rows = say.numbers(story, config.rollout_is is not None)
    st.html(table(say.NUMBERS, rows, say.MEANINGS) + PANEL)
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
    st.markdown(f"##### {say.answer(share, texts[row][column], row, column, q, p)}")


def _step(label: str, key: str, token: opened_token.TokenIndex, possible: bool) -> None:
    st.button(label, key=key, disabled=not possible, on_click=opened_token.open_token, args=(token,))


def show(selection: session.Selection) -> None:
    record = picked_record(selection)
    if record is not None:
        texts = pieces(record)
        _answer(record, texts)
        microscope(
            corrections.identity(selection.run, record.step),
            record,
            texts,
            f"{say.KEYS} {say.TEXTS[text_kind(record)]}",
        )
    explain(say.EXPLAIN)


show(session.selection())
