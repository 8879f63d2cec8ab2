"""Intervals from sampled sketches contain what an exact sketch gives, on a transformer whose answers can be listed."""

import pytest
import torch
from sketch_coverage import contains, intervals, matrix_of, task

from rlcorr.train.sketches.sampled import next_log_probs
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of

pytestmark = pytest.mark.slow  # a hundred reports


def test_95_percent_intervals_contain_the_truth_in_93_percent_of_cases() -> None:
    """Four presets, six numbers each, 100 draws of 1,024 answers and of 512 directions: 2,400 intervals. Those of one
    draw share their answers, so the share is off by about √(0.95 · 0.05/100 · 6) = 5 % at worst; the seeds are fixed,
    and `make bench ARGS=scores` counts twice as many."""
    tiny = task(0.03)
    assert all(share == pytest.approx(1, abs=1e-4) for share in tiny.exact.answers.coverage.values())
    held = [contains(interval, truth) for seed in range(100) for _, interval, truth in intervals(tiny, seed, 1024, 512)]
    assert len(held) == 2400
    assert sum(held) / len(held) >= 0.93


def test_the_matrix_of_directions_gives_the_scores_of_a_backward_pass() -> None:
    tiny = task()
    directions, scored = draw_directions(tiny.lm, 5, 8), scored_copy(tiny.lm)
    _, scores = scores_of(scored, directions, lambda: next_log_probs(scored, [[1, 4, 3]], 1.0)[0])
    first = (tiny.exact.tree.prompts == 0) & (tiny.exact.tree.parents < 0)
    tokens = tiny.exact.tree.tokens[first]
    torch.testing.assert_close(
        scores[tokens], tiny.exact.scores[first] @ matrix_of(directions, tiny.lm), rtol=1e-3, atol=1e-4
    )
