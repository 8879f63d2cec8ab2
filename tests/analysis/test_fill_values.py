"""Zeros that were never filled in, and marks such as −9999, are named, and hide nothing else."""

import math
from collections.abc import Callable

import pytest
import torch
from causes import TOKENS, batch_of, draw, moved, noisy, patterns, rounded, scored, small, steep, unfilled
from torch import Tensor

from rlcorr import TokenBatch
from rlcorr.analysis.triage import triage

OLD, ROLLOUT = "old_log_probs", "rollout_log_probs"
LOWEST = torch.finfo(torch.float32).min


def filled(batch: TokenBatch, columns: range, value: float = 0.0, side: str = ROLLOUT) -> TokenBatch:
    """Each column of ten is a tenth of the tokens."""
    return batch.replace(**{side: batch.tensors()[side].clone().index_fill(1, torch.tensor(list(columns)), value)})


def test_padding_is_named_with_its_side_and_count() -> None:
    drawn = draw(small())
    engine = unfilled(drawn)
    trainer = engine.replace(old_log_probs=engine.rollout_log_probs, rollout_log_probs=engine.tensors()[OLD])
    for batch, side in ((engine, "engine"), (trainer, "trainer")):
        (symptom,) = triage(batch)
        assert symptom.pattern == "padding"
        assert symptom.numbers["tokens"] == int((scored(drawn).tensors()[OLD][:, 3] < math.log(0.5)).sum())
        assert f"the {side}'s log-prob is exactly 0" in symptom.sentence


def shifted_and_marked(z: Tensor) -> TokenBatch:
    return filled(moved(draw(z), rounded(z)), range(1), -9999)


def copied_and_marked(z: Tensor) -> TokenBatch:
    marked = filled(scored(draw(z), rounded(z)), range(8, 10), -100)
    return marked.replace(old_log_probs=marked.rollout_log_probs)


BESIDE: dict[str, tuple[Callable[[Tensor], TokenBatch], set[str]]] = {
    "rounding": (lambda z: unfilled(draw(z), rounded(z)), {"padding"}),
    "a temperature": (lambda z: unfilled(draw(z, temperature=0.7)), {"temperature", "padding"}),
    "old weights": (lambda z: unfilled(draw(z), noisy(z, 0.5)), {"padding", "undecided"}),
    "a mark and a temperature": (
        lambda z: filled(scored(draw(z, temperature=0.7)), range(3, 4), -9999), {"temperature", "padding"}
    ),
    "a mark and a shift": (shifted_and_marked, {"shift by one", "padding"}),
    "a mark on both sides of a copy, which would look well": (copied_and_marked, {"padding"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_padding_hides_nothing_else(name: str) -> None:
    planted, expected = BESIDE[name]
    assert set(patterns(planted(small()))) == expected


@pytest.mark.parametrize("make", [small, steep])
def test_a_turn_of_zeros_is_padding_and_no_cut(make) -> None:
    """Half of the tokens and fewer, with noise of several sizes; and a cut beside them is named as well."""
    z = make()
    for noise, columns in ((0.0, 1), (0.1, 3), (0.5, 5)):
        batch = scored(draw(z), noisy(z, noise) if noise else rounded(z))
        got = patterns(filled(batch, range(columns)))
        assert "padding" in got, (noise, columns, got)
        assert "top-p mass" not in got, (noise, columns, got)
    assert set(patterns(filled(scored(draw(z, top_p=0.8)), range(3)))) == {"padding", "top-p mass"}


@pytest.mark.parametrize("make", [small, steep])
def test_zeros_that_a_cut_makes_are_no_padding(make) -> None:
    """Also those to which noise gives less than one half on the other side."""
    z = make()
    for top_p, noise in ((0.3, 0.0), (0.5, 0.5), (0.7, 1.0), (0.9, 0.1), (0.99, 0.5)):
        got = patterns(scored(draw(z, top_p=top_p), noisy(z, noise) if noise else z))
        assert "padding" not in got, (top_p, noise, got)


@pytest.mark.parametrize(
    ("side", "whose", "mark", "said"),
    [
        (ROLLOUT, "engine", -9999.0, "−9999"),
        (OLD, "trainer", -1e30, "−1e+30"),
        (OLD, "trainer", LOWEST, "−3.40282e+38"),
    ],
)
def test_marks_are_named_with_their_value_and_side(side: str, whose: str, mark: float, said: str) -> None:
    """The other tokens are rounded, so nothing else is worth a word."""
    (symptom,) = triage(filled(scored(draw(small()), rounded(small())), range(3, 4), mark, side))
    assert symptom.pattern == "padding"
    assert f"the {whose}'s log-prob is exactly {said} on 200 tokens (10 %)" in symptom.sentence


def test_marks_on_both_sides_are_the_masks_fault() -> None:
    batch = scored(draw(small()), rounded(small()))
    (symptom,) = triage(filled(filled(batch, range(8, 10), -100), range(8, 10), -100, OLD))
    assert (symptom.pattern, symptom.strength) == ("padding", 0.2)
    assert "both log-probs are exactly −100 on 400 tokens (20 %)" in symptom.sentence
    assert "The response_mask includes positions without a token." in symptom.sentence


def test_log_probs_that_are_far_apart_are_no_marks() -> None:
    """In steps of 0.5, as bfloat16 has them there: many values repeat, and none is most of them."""
    steps = -60 - 0.5 * (torch.arange(TOKENS) % 40).double()
    assert "padding" not in patterns(batch_of(steps, torch.linspace(-3, -0.5, TOKENS).double()))
    assert "padding" not in patterns(batch_of(torch.tensor([-9999.0, -9999.0] + [-1.0] * 18), torch.full((20,), -1.1)))
