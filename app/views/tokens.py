"""The Tokens view: responses coloured by their ratios, and every number of one token."""

import math
from functools import partial

import state
import streamlit as st
from components.links import Link, links
from components.live_part import LiveContent, Note
from components.token_text import SHADES, TOKENS_PER_PAGE, pages_of, token_text
from controls import strips
from controls.configuration import settings
from controls.pickers import explain, picked_record
from controls.sharing import verdict
from controls.widgets import pick
from data import corrections
from data.bounds import Bound
from data.options import ORDERS
from data.recorded import Selection
from text.formatting import number, percent, plain, probability, table

from rlcorr import PRESETS, CorrectionConfig, CorrectionResult, TokenBatch, correct
from rlcorr.analysis.log_prob_pairs import largest_hundredth
from rlcorr.analysis.token_story import (
    TokenStory,
    digits,
    formulas,
    furthest_token,
    mean_ratios,
    ordered_rows,
    token_story,
)
from rlcorr.bounds import at_threshold
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures.fates import FATES, shades, token_fates
from rlcorr.ratios import ratio
from rlcorr.records import runs
from rlcorr.records.token_texts import END, NEW_LINE, NO_TEXT, TextKind, pieces, text_kind
from rlcorr.strips.packing import Package, PictureStrip
from rlcorr.strips.strip import token_cells
from rlcorr.teaching.glossary import define

EXPLAIN = (
    "Every coloured piece of text is one token that the sampler wrote. Orange: the trainer gives it a "
    "higher probability than the sampler did. Blue: a lower one. Open a token to see both probabilities, its weight, "
    "what each rule compares, and the formulas with its numbers."
)
TEXTS: dict[TextKind, str] = {
    "texts": f"{END} is the end token, {NEW_LINE} a line break.",
    "characters": f"One token is one character here, because all lengths of this step agree. {END} is the end token.",
    "ids": "Tokens are shown by their ids, because this run has no texts of tokens, and a token is not one character.",
    "unknown": f"Every token is shown as {NO_TEXT}, because this step has neither texts nor ids of tokens.",
}
KEYS = "Click a token. Or use the arrow keys, and open a token with Enter."
FATE_NAMES = ("", "", "weight below its threshold", "weight above its threshold", "rejected")
"""What the text says about a token, in the order of `FATES`."""
LEGEND = {
    "ratio": "Ratio π_old/π_rollout",
    "rejected": "rejected",
    "bounded": "weight clipped",
    "grid": f"Answers, token by token. {KEYS}",
}


def _visible(text: str) -> str:
    """Return the text with line breaks and other invisible characters written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _token(text: str) -> str:
    """Return the text of one token with spaces made visible, too."""
    return _visible(text).replace(" ", "␣")


MEANINGS = {
    "π_rollout, the sampler": define("π_rollout"),
    "π_old, the trainer": define("π_old"),
    "r = π_old/π_rollout": define("ratio"),
    "w before thresholds": define("importance weight"),
    "w after thresholds": f"{define('truncation')} {define('masking')}",
    "w normalised": "The weight, divided by the mean weight of the kept tokens.",
    "rejected by": define("rejection"),
    "A, the advantage": define("advantage"),
    "c, in the gradient Σ c ∇ log π": "The factor of this token's ∇ log π in the gradient.",
}
LONGEST = 60
"""Characters of a prompt that are shown, from its end."""
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
            strip_of = partial(fates_strip, record.batch)
            strips.show_live("tokens", config, sentence, strip_of, identity, record.batch, shown.source)
        try:
            result = correct(record.batch, config)
            with middle:
                opened = _text(record, texts, result, config)
                st.caption(plain(f"{KEYS} {TEXTS[text_kind(record)]}"))
            with right:
                _panel(record, texts, result, config, opened)
        except UsageError as error:
            refused.error(plain(str(error)))
    explain(EXPLAIN)


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
        raise UsageError("The answers of this step have no tokens.")
    strengths, span = shades(record.batch, result)
    fates = token_fates(record.batch, result, config)
    means, rewards, responses = mean_ratios(record.batch, result), record.batch.rewards, []
    for row, start in pieces:
        count, stop = len(texts[row]), min(start + TOKENS_PER_PAGE, len(texts[row]))
        rejected = int((fates[row] == FATES.index("rejected")).sum())
        heading = [f"answer {row}", f"mean ratio {number(means[row])}"]
        if rewards is not None and not math.isnan(rewards[row]):
            heading.append(f"reward {number(float(rewards[row]))}")
        if rejected:
            heading.append(f"{rejected} of {count} rejected")
        if stop - start < count:
            heading.append(f"tokens {start:,} to {stop - 1:,} of {count:,}")
        prompt = record.prompts[row]
        responses.append(
            {
                "row": row, "start": start, "heading": " · ".join(heading),
                "prompt": _visible(prompt if len(prompt) <= LONGEST else f"…{prompt[-LONGEST:]}"),
                "texts": [_token(text) for text in texts[row][start:stop]],
                "ratios": [number(r) for r in ratio(result.log_ratio[row, start:stop]).tolist()],
                "shades": (SHADES + strengths[row, start:stop] * SHADES).round().int().tolist(),
                "fates": fates[row, start:stop].tolist(),
            }
        )  # fmt: skip
    token_text(responses, opened, span=span, words=LEGEND, fates=FATE_NAMES, key=TEXT, on_open=_clicked)
    return opened


def _page(record: runs.StepRecord, texts: Texts, result: CorrectionResult) -> list[tuple[int, int]]:
    """Show the pickers of order and page, and return the selected page, see `pages_of`."""
    left, right = st.columns([2, 1], vertical_alignment="bottom")
    with left:
        order = pick(ORDER, "Order", list(ORDERS), written=ORDERS.__getitem__)
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
    st.markdown(f"**Token {column} of answer {row}: “{plain(_token(texts[row][column]))}”**")
    with st.container(horizontal=True):
        for label, key, token, possible in (
            ("‹ Previous token", "tokens_previous", (row, column - 1), column > 0),
            ("Next token ›", "tokens_next", (row, column + 1), column + 1 < story.tokens),
            ("Close", "tokens_close", None, _opened(texts) is not None),
        ):
            st.button(label, key=key, disabled=not possible, on_click=state.change, kwargs={"token": token})
    st.html(table(["", "logarithm", "value"], _numbers(story, config), MEANINGS))
    with st.container(key="tokens_formulas"):
        st.code("\n".join(formulas(story, config)), language=None, wrap_lines=True)
    if config.bypass_mode:
        st.caption("In bypass mode π_θ takes the place of π_old. Before the first update the two are the same.")


def _numbers(story: TokenStory, config: CorrectionConfig) -> list[list[str]]:
    """Return rows: the policies, their ratio, and the outcome of the token."""
    rows = [
        ["π_rollout, the sampler", digits(story.rollout_log_prob), digits(math.exp(story.rollout_log_prob))],
        ["π_old, the trainer", digits(story.old_log_prob), digits(math.exp(story.old_log_prob))],
        ["r = π_old/π_rollout", digits(story.log_ratio), digits(story.ratio)],
    ]
    if config.rollout_is is not None:
        rows.append(["w before thresholds", digits(story.log_weight), digits(story.raw_weight)])
        rows.append(["w after thresholds", "", digits(story.bounded_weight)])
    if story.norm_factor is not None:
        rows.append(["w normalised", "", digits(story.weight)])
    rows.append(["rejected by", "", story.rejected_by or "no rule"])
    if story.advantage is not None:
        rows.append(["A, the advantage", "", digits(story.advantage)])
    if story.contribution is not None:
        rows.append(["c, in the gradient Σ c ∇ log π", "", digits(story.contribution)])
    return rows


def _answer(record: runs.StepRecord, texts: Texts) -> None:
    """Show the largest gap, and how much of the mismatch 1 % of the tokens make, before any correction.

    Of equal gaps it is the one of the response that the text below shows first.
    """
    batch = record.batch
    try:
        result, share = correct(batch, CorrectionConfig()), largest_hundredth(batch)
        furthest = furthest_token(batch, result, ordered_rows(batch, result, next(iter(ORDERS))))
    except UsageError:  # the text below says what is missing
        return
    if furthest is None:
        return
    if not share:
        verdict("No token does: both programs give every token the same probability.")
        return
    row, column = furthest
    both = [float(x[row, column].exp()) for x in (batch.rollout_log_probs, old_log_probs(batch))]
    q, p = map(probability, both)
    q, p = map(number, both) if q == p else (q, p)  # a gap in a later digit
    verdict(plain(f"“{_token(texts[row][column])}” has {q} in the sampler and {p} in the trainer."))
    largest = f"This is the largest gap, token {column} of answer {row}."
    with st.container(horizontal=True, vertical_alignment="center", key="largest_gap"):
        said = plain(f"{largest} 1 % of the tokens make {percent(share)} of the mismatch (k3).")
        st.markdown(said, width="content")
        links(Link("Show it in the text", {"token": f"{row}.{column}"}), key="show_largest")
