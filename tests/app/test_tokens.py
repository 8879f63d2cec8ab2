"""The Tokens view's script: every kind of preset, tokens that do not exist, texts that want to be markup."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_pages import html_of, kinds, notices_of, one_scan, open_app, root, said, widget
from app_runs import add_step, make_record, make_run
from streamlit.testing.v1 import AppTest
from token_records import HOSTILE, characters

from rlcorr import PRESETS, TokenBatch, correct
from rlcorr.analysis.token_story import formulas, token_story
from rlcorr.records import runs

TOKENS = "views/tokens.py"

__all__ = ["one_scan", "root"]  # fixtures


def drawn(at: AppTest) -> dict[str, Any]:
    """What the text component was given."""
    (component,) = [c for c in at.get("bidi_component") if c.proto.component_name == "rlcorr_token_text"]
    return json.loads(component.proto.json)


def opened(at: AppTest) -> str:
    """Which token is open, as in the URL."""
    place = drawn(at)["opened"]
    return f"{place['row']}.{place['column']}"


def read(run: Path, step: int = 0) -> TokenBatch:
    return runs.read_step(run, step).batch


def make_characters(root: Path, texts: list[str], prompts: list[str] | None = None) -> Path:
    run = make_run(root, "alpha", steps=0, status="running")
    add_step(run, characters(texts, prompts))
    return run


def test_the_story_of_a_token_under_every_kind_of_preset(root: Path) -> None:
    batch = read(make_run(root, "alpha", steps=1))
    assert batch.old_log_probs is not None
    at = open_app(TOKENS, token="3.2")
    for name in kinds():
        chosen, result = PRESETS[name], correct(batch, PRESETS[name].config)
        widget(at.selectbox, "preset").set_value(name).run()
        story = token_story(batch, result, chosen.config, 3, 2, chosen.loss)
        assert at.code[0].value == "\n".join(formulas(story, chosen.config)), name
        texts = re.findall("<td>(.*?)</td>", html_of(at))
        cells = [re.sub("<[^>]*>", "", cell) for cell in texts]
        assert cells[cells.index("rejected by") + 2] == (story.rejected_by or "no rule"), name
        fates = {row["row"]: row["fates"] for row in drawn(at)["responses"]}
        assert all((fate == 4) == (not result.keep_mask[row, t]) for row in fates for t, fate in enumerate(fates[row]))
    assert "**Token 2 of answer 3: “#2”**" in said(at)
    assert "Tokens are shown by their ids" in said(at)
    for label, log_probs in (
        ("π_old, the trainer", batch.old_log_probs),
        ("π_rollout, the sampler", batch.rollout_log_probs),
    ):
        where, log_prob = cells.index(label), float(log_probs[3, 2])
        shown_log, shown = (float(cell.replace("−", "-")) for cell in cells[where + 1 : where + 3])
        assert (shown_log, shown) == pytest.approx((log_prob, math.exp(log_prob)), rel=5e-4)


def test_the_text_is_drawn_token_by_token(root: Path) -> None:
    make_characters(root, ["12", "345", "6 7\n"], ["9+3=", "x" * 70, "two\nlines"])
    at = open_app(TOKENS, token="0.0")
    rows = {row["row"]: row for row in drawn(at)["responses"]}
    assert [rows[i]["texts"] for i in range(3)] == [["1", "2", "⏎"], ["3", "4", "5", "⏎"], ["6", "␣", "7", "\\n", "⏎"]]
    assert [rows[i]["prompt"] for i in range(3)] == ["9+3=", "…" + "x" * 60, "two\\nlines"]
    assert "One token is one character here" in said(at)
    assert all(
        len(row["shades"]) == len(row["ratios"]) == len(row["fates"]) == len(row["texts"]) for row in rows.values()
    )


def test_tokens_of_a_file_that_does_not_say(root: Path) -> None:
    record = make_record(0, sequences=2)
    unknown = torch.full_like(record.batch.rewards, math.nan) if record.batch.rewards is not None else None
    batch = record.batch.replace(response_ids=torch.where(record.batch.response_mask, -1, 0), rewards=unknown)
    add_step(make_run(root, "alpha", steps=0, status="running"), replace(record, batch=batch, responses=["", ""]))
    at = open_app(TOKENS)
    assert "Every token is shown as ·" in said(at)
    assert {text for row in drawn(at)["responses"] for text in row["texts"]} == {"·"}
    assert not any("reward" in row["heading"] for row in drawn(at)["responses"])


def test_colours_and_ratios(root: Path) -> None:
    """Warm above ratio 1 and cool below, against numpy."""
    batch = read(make_run(root, "alpha", steps=1))
    assert batch.old_log_probs is not None
    d = (batch.old_log_probs - batch.rollout_log_probs).numpy().astype(float)
    at = open_app(TOKENS)
    for row in drawn(at)["responses"]:
        for t, (shade, shown) in enumerate(zip(row["shades"], row["ratios"], strict=True)):
            assert np.sign(shade - 20) in (0, np.sign(d[row["row"], t]))
            assert float(shown) == pytest.approx(math.exp(d[row["row"], t]), rel=1e-3)
    colours = drawn(at)["legend"]["palette"]
    assert (colours[0], colours[20], colours[40]) == (
        "rgba(47,127,193,0.7)",
        "rgba(217,105,42,0.0)",
        "rgba(217,105,42,0.7)",
    )


WRONG = {
    "9.99": "token=9.99 is not in this step: it has 24 responses; response 9 has {nine} tokens, all counted from 0.",
    "24.0": "token=24.0 is not in this step: it has 24 responses, all counted from 0.",
    "banana": "token=banana is not a token: it must be ROW.COLUMN, such as 3.0.",
    "-1.0": "token=-1.0 is not a token",
    "1.2.3": "token=1.2.3 is not a token",
    "٣.١": "token=٣.١ is not a token",
    "99999999999999999999.0": "is not a token",
    "<b>[x](javascript:y)": "token=<b>[x](javascript:y) is not a token",
}


def test_a_wrong_token_in_the_url_is_named_and_the_furthest_is_open(root: Path) -> None:
    batch = read(make_run(root, "alpha", steps=1))
    assert batch.old_log_probs is not None
    d = np.where(batch.response_mask, batch.old_log_probs - batch.rollout_log_probs, 0)
    row, column = np.unravel_index(np.abs(d).argmax(), d.shape)
    for token, expected in WRONG.items():
        (notice,) = notices_of({"view": ["tokens"], "token": [token]})
        assert expected.format(nine=int(batch.response_mask[9].sum())) in notice, token
        assert "Showing the one whose ratio is furthest from 1." in notice, token
    at = open_app(TOKENS, token="<b>[x](javascript:y)")
    assert "token=<b>[x](javascript:y) is not a token" in said(at)
    assert opened(at) == f"{row}.{column}"
    at.button(key="tokens_next" if not at.button(key="tokens_next").disabled else "tokens_previous").click().run()
    assert "Showing the one whose ratio" not in said(at)


def test_the_neighbours_of_a_token_and_another_step(root: Path) -> None:
    run = make_characters(root, ["12", "345"])
    at = open_app(TOKENS, token="1.0")
    assert at.button(key="tokens_previous").disabled
    for column in (1, 2, 3):
        at.button(key="tokens_next").click().run()
        assert opened(at) == f"1.{column}"
    assert at.query_params["token"] == "1.3"
    assert at.button(key="tokens_next").disabled
    at.button(key="tokens_previous").click().run()
    assert opened(at) == "1.2"
    add_step(run, make_record(1))
    at.run()
    widget(at.selectbox, "step").set_value("1").run()
    assert "token" not in at.query_params
    assert not at.warning


def test_the_page_of_a_token_and_the_orders(root: Path) -> None:
    """45 responses are three pages. The orders against numpy."""
    batch = read(make_run(root, "alpha", steps=1, sequences=45))
    assert batch.old_log_probs is not None
    assert batch.rewards is not None
    lengths = batch.response_mask.sum(-1).numpy()
    d = np.where(batch.response_mask, batch.old_log_probs - batch.rollout_log_probs, 0).astype(float)
    off = np.argsort(-np.abs(d.sum(1) / lengths), kind="stable")
    at = open_app(TOKENS, token=f"{off[41]}.0")
    assert [row["row"] for row in drawn(at)["responses"]] == off[40:].tolist()
    widget(at.number_input, "tokens_page").set_value(1).run()
    assert [row["row"] for row in drawn(at)["responses"]] == off[:20].tolist()
    assert opened(at) == f"{off[41]}.0"  # it stays open
    widget(at.number_input, "tokens_page").set_value(2).run()
    widget(at.selectbox, "tokens_order").set_value("lowest").run()
    lowest = np.argsort(batch.rewards.numpy(), kind="stable")
    assert [row["row"] for row in drawn(at)["responses"]] == lowest[:20].tolist()
    widget(at.selectbox, "tokens_order").set_value("recorded").run()
    assert [row["row"] for row in drawn(at)["responses"]] == list(range(20))


def test_an_answer_of_131_072_tokens_has_pages_of_its_own() -> None:
    from components.token_text import pages_of

    *whole, last = pages_of([1, 0], [0, 131_072])
    assert whole == [[(1, start)] for start in range(0, 128_000, 4000)]  # the last 3,072 tokens leave room
    assert last == [(1, 128_000), (0, 0)]


def test_text_of_a_run_is_never_markup(root: Path) -> None:
    make_characters(root, [HOSTILE, "</span><script>"], [HOSTILE, "‮gnorw\0"])
    at = open_app(TOKENS, token=f"0.{HOSTILE.index('`')}")
    markdown = "".join(m.value for m in at.markdown)
    assert "“\\`”" in markdown
    assert "<img" not in html_of(at)
    rows = {row["row"]: row for row in drawn(at)["responses"]}
    assert rows[0]["texts"] == [*HOSTILE.replace(" ", "␣"), "⏎"]
    assert rows[1]["prompt"] == "\\u202egnorw\\x00"


def test_a_token_that_the_trainer_rules_out(root: Path) -> None:
    record = make_record(0)
    assert record.batch.old_log_probs is not None
    old = record.batch.old_log_probs.clone()
    old[2, 1] = -math.inf
    add_step(
        make_run(root, "alpha", steps=0, status="running"),
        replace(record, batch=record.batch.replace(old_log_probs=old)),
    )
    at = open_app(TOKENS, preset="decoupled_k3_rs_token_tis")
    assert opened(at) == "2.1"
    assert " = exp(−20) = 2.061e−9" in at.code[0].value
