"""One to three tokens that decide the verdict on the size of a gap: they are named, and the rest is diagnosed."""

import math

import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.symptoms import MEND_FIRST
from rlcorr.analysis.triage import triage

ROWS, WIDTH = 60, 50
NOISE = 0.03
"""Deviation of the log-ratios, so that k3 is about 0.03²/2 = 0.00045, as bfloat16 makes it."""


def batch(*spikes: tuple[int, int, float]) -> TokenBatch:
    """Return a batch of 3,000 tokens with noise, in which the engine's log-prob of these tokens is another."""
    g = torch.Generator().manual_seed(0)
    rollout = -0.2 - 3 * torch.rand(ROWS, WIDTH, generator=g, dtype=torch.float64)
    old = (rollout + NOISE * torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    for row, column, log_prob in spikes:
        rollout[row, column] = log_prob
    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    mask[0, 10:] = False  # so that the place in the batch is not the index among the tokens
    return TokenBatch.from_log_probs(old, rollout, mask)


def test_one_log_prob_far_below_the_others_is_named_and_is_no_chat_template() -> None:
    """The log-ratio is clamped to 20, and k3 there is e^20 − 21 = 4.85e8: its mean over 2,960 tokens is 1.6e5."""
    both = triage(batch((37, 11, -39.9)))
    outlier, rest = both
    assert (outlier.pattern, rest.pattern) == ("outlier", "precision")
    assert outlier.tokens == ((37, 11),)
    assert outlier.sentence.startswith("One token makes 100 % of k3: response 37, token 11 (log-probs −39.9 in the")
    assert round(math.expm1(20) / 2960, -4) == 160_000
    assert "With it k3 is 160,000, without it 4" in outlier.sentence
    assert rest.numbers["k3"] == pytest.approx(NOISE**2 / 2, rel=0.1)
    assert "chat template" not in outlier.sentence + rest.sentence
    assert not {symptom.pattern for symptom in both} & set(MEND_FIRST)


def test_two_and_three_are_named_together_and_of_four_the_answers() -> None:
    """Without the first of four, the other three still make k3 large. They are in three of 60 answers."""
    spikes = [(5, 0, -12.0), (5, 3, -12.5), (40, 49, -11.5), (41, 1, -12.2)]
    for count in (2, 3):
        outlier, rest = triage(batch(*spikes[:count]))
        assert outlier.sentence.startswith(f"{count} tokens make 100 % of k3: ")
        assert set(outlier.tokens) == {spike[:2] for spike in spikes[:count]}
        assert rest.pattern == "precision"
    outlier, rest = triage(batch(*spikes))
    assert (
        "% of k3 is in 3 of 60 answers (responses 5, 40, 41, counted from 0): 5.1 % of the tokens" in outlier.sentence
    )
    assert (outlier.tokens, rest.pattern) == ((), "precision")
