"""Faults of some answers, of a part of each answer, or of one place: they are named, with the answers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from causes import TOKENS, draw, noisy, steep
from torch import Tensor

from rlcorr import TokenBatch
from rlcorr.analysis.symptoms import MEND_FIRST, Symptom, mend_first
from rlcorr.analysis.triage import triage
from rlcorr.analysis.verdicts import look

ROWS, WIDTH = 50, 40
EVERY = torch.ones(ROWS, dtype=torch.bool)
THIRD = torch.arange(ROWS) % 3 == 0
"""17 of 50 answers."""
NOISE = 0.05
"""Of the trainer's logits, so that k3 is about 5e-4 at most: `precision`."""


def pair(**engine: Any) -> tuple[Tensor, Tensor]:
    """Return log-probs of trainer and engine, (50, 40), with noise, of an engine that may sample in another way."""
    z = steep()
    drawn = draw(z, **engine)
    old = noisy(z, NOISE).log_softmax(-1).gather(-1, drawn.ids[:, None])[:, 0]
    return old.view(ROWS, WIDTH), drawn.rollout.view(ROWS, WIDTH)


def batch(old: Tensor, rollout: Tensor, mask: Tensor | None = None) -> TokenBatch:
    return TokenBatch.from_log_probs(old, rollout, torch.ones_like(old) if mask is None else mask)


def mixed(sick: tuple[Tensor, Tensor], rows: Tensor = THIRD) -> TokenBatch:
    """Return a batch in which these answers have a fault."""
    return batch(*(torch.where(rows[:, None], a, b) for a, b in zip(sick, pair(), strict=True)))


def only(symptoms: list[Symptom], pattern: str) -> Symptom:
    """Return the single symptom, which must be a fault that no correction mends."""
    (symptom,) = symptoms
    assert symptom.pattern == pattern, symptom.sentence
    assert mend_first(symptoms) is symptom
    return symptom


# --- a shift ---


def lost(start: int, by: int) -> tuple[Tensor, Tensor]:
    """Drop `by` of the engine's tokens at `start`, and as many of the trainer's at the end."""
    old, rollout = pair()
    shifted = torch.cat([rollout[:, :start], rollout[:, start + by :]], -1)
    return old[:, : WIDTH - by], shifted


ONE = torch.arange(ROWS) == 7


@pytest.mark.parametrize(
    ("start", "by", "word", "rows"),
    [(20, 1, "one", THIRD), (12, 2, "two", THIRD), (0, 3, "three", ONE)],
)
def test_a_shift_from_any_token_on_in_some_answers(start: int, by: int, word: str, rows: Tensor) -> None:
    old, shifted = lost(start, by)
    rollout = torch.where(rows[:, None], shifted, pair()[1][:, : WIDTH - by])
    symptom = only(triage(batch(old, rollout)), "shift by one")
    assert symptom.sentence.startswith(f"Looks like a shift by {word} in {int(rows.sum())} of 50 answers (response")
    named = "previous token" if by == 1 else f"token {by} before it"
    assert f"π_old of a token matches π_rollout of the {named}" in symptom.sentence
    moved = symptom.numbers["abs_log_ratio_moved"]
    assert moved < 0.1 < 0.5 < symptom.numbers["abs_log_ratio"]


# --- logarithms of another base ---


@pytest.mark.parametrize("rows", [EVERY, THIRD])
@pytest.mark.parametrize(
    ("engine", "trainer", "said"),
    [
        (10, math.e, "the engine's log-probs are in base 10: multiply them by 2.3026"),
        (2, math.e, "the engine's log-probs are in base 2, that is in bits"),
        (math.e, 10, "the trainer's log-probs are in base 10"),
        (math.e, 2, "the trainer's log-probs are in base 2"),
        (10, 2, "the engine's log-probs are in base 10 (multiply them by 2.3026), the trainer's in base 2"),
    ],
)
def test_another_base_is_named(rows: Tensor, engine: float, trainer: float, said: str) -> None:
    """p/q = ln(base of q)/ln(base of p) on every token."""
    old, rollout = pair()
    symptom = only(triage(mixed((old / math.log(trainer), rollout / math.log(engine)), rows)), "beyond rounding")
    assert said in symptom.sentence
    assert f"{math.log(engine) / math.log(trainer):.3f} times" in symptom.sentence
    assert ("in 17 of 50 answers" in symptom.sentence) == (rows is THIRD)


# --- padding ---


def stretched(old: Tensor, rollout: Tensor, widths: list[int], value: float, *, left: bool) -> TokenBatch:
    """Return answers of 40 − (row mod 20) tokens, filled up to these widths with a constant, all of which count."""
    filled = torch.full((2, ROWS, max(widths)), value, dtype=torch.float64)
    mask = torch.zeros(ROWS, max(widths))
    for row, width in enumerate(widths):
        text = WIDTH - row % 20
        start = width - text if left else 0
        filled[:, row, start : start + text] = torch.stack([old[row, :text], rollout[row, :text]])
        mask[row, :width] = 1
    return batch(filled[0], filled[1], mask)


@pytest.mark.parametrize(
    ("value", "left", "widths"),
    [
        (0.0, False, [WIDTH] * ROWS),
        (-1.25, True, [WIDTH + 9] * ROWS),
        (0.0, True, [WIDTH - (r - r % 5) % 20 for r in range(ROWS)]),
    ],
)
def test_a_constant_on_both_sides_that_fills_answers_up(value: float, left: bool, widths: list[int]) -> None:
    """To the longest answer of the batch or of a micro-batch of five, or to a fixed length."""
    padded = stretched(*pair(), widths, value, left=left)
    symptom = only(triage(padded), "padding")
    count = sum(width - (WIDTH - row % 20) for row, width in enumerate(widths))
    assert symptom.numbers["tokens"] == pytest.approx(count, rel=0.1)  # one token of padding alone is no run
    assert f"both log-probs are exactly {value:g} on".replace(" -", " −") in symptom.sentence
    assert "with a response_mask, or with lengths" in symptom.sentence
    gap = look(1, padded).gap
    assert gap is not None
    assert gap.tokens == pytest.approx(sum(WIDTH - row % 20 for row in range(ROWS)), rel=0.02)


def test_answers_that_end_in_certain_tokens_are_no_padding() -> None:
    """Two closing tokens of probability 1 in answers of all lengths, and long certain ends of some that were cut."""
    old, rollout = pair()
    mask = torch.ones(ROWS, WIDTH)
    for row in range(ROWS):
        text = WIDTH - row % 20 if row % 2 else WIDTH  # half of the answers reach the limit
        mask[row, text:] = 0
        certain = 2 if row % 2 else (12 if row % 10 == 0 else 0)
        old[row, text - certain : text] = rollout[row, text - certain : text] = 0
    assert [symptom.pattern for symptom in triage(batch(old, rollout, mask))] == ["precision"]


@pytest.mark.parametrize("rows", [EVERY, THIRD])
@pytest.mark.parametrize(("side", "cut", "more"), [("engine", "both", 6), ("trainer", "one", 6), ("engine", "both", 2)])
def test_padding_on_opposite_sides(rows: Tensor, side: str, cut: str, more: int) -> None:
    """One side is padded on the left, with no mask or with one that fits the other side; the other answers are not.
    Two or three zeros alone, as the longest answers may have, look like a shift."""
    old, rollout = pair()
    left, right, mask = (torch.zeros(ROWS, WIDTH + more) for _ in range(3))
    for row in range(ROWS):
        text = WIDTH - row % 10
        start = -text if rows[row] else 0
        left[row, start : start + text or None], right[row, :text] = rollout[row, :text], old[row, :text]
        mask[row, : WIDTH + more if cut == "both" and rows[row] else text] = 1
    pairs = (right, left) if side == "engine" else (left, right)
    symptom = only(triage(batch(*pairs, mask)), "padding")
    padded = [f"the {side}'s log-probs are padded with zeros on the left"]
    if cut == "both":
        padded += [f"the {'engine' if side == 'trainer' else 'trainer'}'s log-probs are padded with zeros on the right"]
    assert any(f"Looks like padding on opposite sides: {said}" in symptom.sentence for said in padded)
    assert f"In {int(rows.sum())} of 50 answers" in symptom.sentence
    assert "Pad both on one side" in symptom.sentence


# --- groups of answers ---


def exchanged() -> tuple[Tensor, Tensor]:
    """The engine's log-probs of a third of the answers are those of another one of them."""
    old, rollout = pair()
    rollout[THIRD] = rollout[THIRD].roll(1, 0)
    return old, rollout


GROUPS: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], str, str]] = {
    "a cold engine": (lambda: pair(temperature=0.7), "temperature", "Looks like temperature"),
    "copies": (lambda: (pair()[0], pair()[0]), "identical", "Identical"),
    "exchanged answers": (exchanged, "beyond rounding", "Beyond rounding"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_fault_in_a_third_of_the_answers(name: str) -> None:
    sick, pattern, said = GROUPS[name]
    symptom = only(triage(mixed(sick())), pattern)
    assert symptom.sentence.startswith(f"In 17 of 50 answers (responses 0, 3, 6, …, counted from 0): {said}")


# --- few answers, and one place ---

PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the last tokens of the answers": lambda mask, turn: mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True)),
    "the first tokens of the answers": lambda mask, turn: mask & (mask.cumsum(-1) == 1),
    "the first tokens of the later turns": lambda mask, turn: mask & (turn.diff(prepend=turn[:, :1]) > 0),
    "the last tokens before the later turns": lambda mask, turn: mask & (turn.diff(append=turn[:, -1:]) > 0),
}


@pytest.mark.parametrize("place", PLACES)
def test_one_place_of_every_answer(place: str) -> None:
    """There the trainer has scored another token: d is about −8, so k3 is 7; on the others it is that of the noise."""
    old, rollout = pair()
    turn = (torch.arange(WIDTH) // 13).expand(ROWS, WIDTH)
    at = PLACES[place](torch.ones(ROWS, WIDTH, dtype=torch.bool), turn)
    moved = old.masked_fill(at, -8 + math.log(0.5))
    sick = batch(moved, rollout).replace(turn_ids=turn.clone())
    first, second = triage(sick)
    assert (first.pattern, second.pattern) == ("outlier", "precision")
    d = (moved - rollout).float().double()
    k3 = d.exp() - 1 - d
    assert f"{100 * float(k3[at].sum() / k3.sum()):.3g} % of k3 is in {place}: " in first.sentence
    assert first.numbers["k3"] == pytest.approx(float(k3.mean()), rel=1e-4)
    assert first.numbers["k3_without"] == second.numbers["k3"] == pytest.approx(float(k3[~at].mean()), rel=1e-4)
    assert mend_first([first, second]) is first


def test_one_answer_of_fifty() -> None:
    old, rollout = pair()
    old[17] = old[18]
    first, second = triage(batch(old, rollout))
    assert (
        "% of k3 is in 1 of 50 answers (response 17, counted from 0): 2 % of the tokens. With them k3 is"
        in first.sentence
    )
    assert (first.pattern, second.pattern, mend_first([first, second])) == ("outlier", "precision", first)
    summary = look(1, batch(old, rollout))
    assert summary.gap is not None
    assert summary.gap.tokens == TOKENS - WIDTH


# --- one to three tokens that decide the verdict: they are named, and the rest is diagnosed ---


def spiked(*spikes: tuple[int, int, float]) -> TokenBatch:
    """Return a batch of 60 answers of 50 tokens, in which the engine's log-prob of these tokens is another.

    The log-ratios have a deviation of 0.03, so that k3 is about 0.03²/2 = 0.00045, as bfloat16 makes it.
    """
    g = torch.Generator().manual_seed(0)
    rollout = -0.2 - 3 * torch.rand(60, 50, generator=g, dtype=torch.float64)
    old = (rollout + 0.03 * torch.randn(60, 50, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    for row, column, log_prob in spikes:
        rollout[row, column] = log_prob
    mask = torch.ones(60, 50, dtype=torch.bool)
    mask[0, 10:] = False  # so that the place in the batch is not the index among the tokens
    return TokenBatch.from_log_probs(old, rollout, mask)


def test_one_log_prob_far_below_the_others_is_named_and_is_no_chat_template() -> None:
    """The log-ratio is clamped to 20, and k3 there is e^20 − 21 = 4.85e8: its mean over 2,960 tokens is 1.6e5."""
    both = triage(spiked((37, 11, -39.9)))
    outlier, rest = both
    assert (outlier.pattern, rest.pattern) == ("outlier", "precision")
    assert outlier.tokens == ((37, 11),)
    assert outlier.sentence.startswith("One token makes 100 % of k3: response 37, token 11 (log-probs −39.9 in the")
    assert round(math.expm1(20) / 2960, -4) == 160_000
    assert "With it k3 is 160,000, without it 4" in outlier.sentence
    assert rest.numbers["k3"] == pytest.approx(0.03**2 / 2, rel=0.1)
    assert "chat template" not in outlier.sentence + rest.sentence
    assert not {symptom.pattern for symptom in both} & set(MEND_FIRST)


def test_two_and_three_are_named_together_and_of_four_the_answers() -> None:
    """Without the first of four, the other three still make k3 large. They are in three of 60 answers."""
    spikes = [(5, 0, -12.0), (5, 3, -12.5), (40, 49, -11.5), (41, 1, -12.2)]
    for count in (2, 3):
        outlier, rest = triage(spiked(*spikes[:count]))
        assert outlier.sentence.startswith(f"{count} tokens make 100 % of k3: ")
        assert set(outlier.tokens) == {spike[:2] for spike in spikes[:count]}
        assert rest.pattern == "precision"
    outlier, rest = triage(spiked(*spikes))
    assert (
        "% of k3 is in 3 of 60 answers (responses 5, 40, 41, counted from 0): 5.1 % of the tokens" in outlier.sentence
    )
    assert (outlier.tokens, rest.pattern) == ((), "precision")
