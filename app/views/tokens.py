"""The Tokens view, a microscope: responses coloured by their ratios, and every number of one token."""

from functools import partial

import streamlit as st
from components.token_text import SHADES, ShownResponse, pages_of, token_text
from controls.bounds import places_on
from controls.configuration import bound_sliders, bounded, preset_name, resets, settings
from controls.live import show as show_live
from controls.pickers import explained_record
from data import corrections
from live import tokens as moving
from state import notices, opened_token, session
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
from rlcorr.figures.tokens import shades
from rlcorr.presets.parts import Preset
from rlcorr.ratios import ratio
from rlcorr.records import runs
from rlcorr.records.token_texts import pieces, text_kind

TEXT, ORDER, PAGE = "tokens_text", "tokens_order", "tokens_page"
# On a phone the opened token lies at the lower edge of the screen, over the text that it was tapped in.
PANEL = """<style>
.st-key-tokens_formulas code { font-size: 0.8rem }
@media (max-width: 640px) {
  [data-testid="stColumn"]:has(.st-key-tokens_formulas) {
    position: sticky; bottom: 0; z-index: 6; max-height: 42dvh; overflow-y: auto; padding: 0.5rem 0;
    background: var(--st-background-color, Canvas); border-top: 2px solid #8b8f97;
  }
}
</style>"""
Texts = list[list[str]]


@st.fragment
def microscope(of: corrections.Identity, record: runs.StepRecord, texts: Texts, note: str) -> None:
    """Controls, text and the opened token in one fragment: a click reruns this function and nothing else."""
    # Emptied here: Streamlit removes what a fragment no longer shows, but not if the next fragment follows at once.
    above, refused = st.empty(), st.empty()
    left, middle, right = st.columns([1, 2, 1.9], gap="medium")
    with left:
        chosen = PRESETS[preset_name()]
        config = _live(of, record.batch, settings(chosen.config))
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
            _panel(record, texts, result, config, chosen, opened)
    except UsageError as error:
        refused.error(plain(str(error)))


def _live(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> CorrectionConfig:
    """The slider of the first bound, and the sentence that moves with it; the text follows by itself."""
    config = bounded(config)
    sliders = bound_sliders(
        config,
        moving.sentence,
        strip=lambda at, b, places: (
            moving.known_by(of, at, b, places),
            partial(moving.fates, batch, at, b, places, TEXT),
        ),
        places_of=partial(places_on, [(of, batch)], config),
    )
    show_live(sliders, moving.sentence(config), key="tokens_live", resets=resets())
    return config


def _text(
    record: runs.StepRecord, texts: Texts, result: CorrectionResult, config: CorrectionConfig
) -> opened_token.Place:
    """One page of responses; the token to show beside it: the opened one, or the furthest of the page."""
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
    """The pickers of order and page, and the responses that they choose."""
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
    place = st.session_state[TEXT]["open"]
    opened_token.open_token((place["row"], place["column"]))


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
    chosen: Preset,
    opened: opened_token.Place,
) -> None:
    """The opened token's numbers, the formulas with these numbers, and the way to its neighbours."""
    row, column = opened
    story = token_story(record.batch, result, config, row, column, chosen.loss)
    st.markdown(say.title(story, texts[row][column]))
    with st.container(horizontal=True):
        _step("‹ Previous token", "tokens_previous", (row, column - 1), column > 0)
        _step("Next token ›", "tokens_next", (row, column + 1), column + 1 < story.tokens)
    rows = say.numbers(story, config.rollout_is is not None)
    st.html(table(say.NUMBERS, rows, say.MEANINGS) + PANEL)
    with st.container(key="tokens_formulas"):
        st.code("\n".join(formulas(story, config)), language=None, wrap_lines=True)
    st.caption(say.DIGITS + (f" {say.BYPASS}" if config.bypass_mode else ""))


def _answer(record: runs.StepRecord, texts: Texts) -> None:
    """How few tokens carry the mismatch, and the largest of them, before any correction."""
    batch = record.batch
    try:
        result, share = correct(batch, CorrectionConfig()), largest_hundredth(batch)
        furthest = furthest_token(batch, result, range(len(batch.response_mask)))
    except UsageError:  # the text below says what is missing
        return
    if furthest is None:
        return
    row, column = furthest
    q, p = (float(x[row, column].exp()) for x in (batch.rollout_log_probs, old_log_probs(batch)))
    st.markdown(f"##### {say.answer(share, texts[row][column], row, column, q, p)}")


def _step(label: str, key: str, place: opened_token.Place, possible: bool) -> None:
    st.button(label, key=key, disabled=not possible, on_click=opened_token.open_token, args=(place,))


def show(chosen: session.Selection) -> None:
    record = explained_record(chosen, say.EXPLAIN)
    if record is not None:
        texts = pieces(record)
        _answer(record, texts)
        microscope(
            corrections.identity(chosen.run, record.step),
            record,
            texts,
            f"{say.KEYS} {say.TEXTS[text_kind(record)]}",
        )


show(session.selection())
