import math

import pytest
import torch
from causes import draw, scored, small

from rlcorr.analysis.log_prob_pairs import logits, median_slope, tokens_of, worst_share


def test_temperatures_obey_the_formula_of_the_docstring() -> None:
    """Token by token: H from the Rényi entropy of order β of the other tokens, renormalised."""
    beta, z = 0.7, small()[:50]
    drawn = draw(z, temperature=beta)
    x, y, _ = logits(tokens_of(scored(drawn)))
    expected = []
    for row, token, q in zip((z / beta).softmax(-1).tolist(), drawn.ids.tolist(), drawn.rollout.tolist(), strict=True):
        if q < -1e-3:
            others = [p / (1 - row[token]) for i, p in enumerate(row) if i != token]
            entropy = math.log(sum(p**beta for p in others)) / (1 - beta)
            expected.append((beta - 1) * (math.log(row[token] / (1 - row[token])) + entropy))
    assert len(expected) == len(x) > 30
    assert y.tolist() == pytest.approx(expected, abs=1e-3)


def test_the_slope_is_of_tokens_half_a_batch_apart() -> None:
    """Sorted by x: (0, 4), (1, 5), (2, 6) with the third pair's y spoilt; 3 stands in the middle and has no partner."""
    x, y = torch.tensor([6.0, 0, 1, 2, 3, 4, 5]).double(), torch.tensor([900.0, 0, 2, 4, 6, 8, 10]).double()
    assert median_slope(x, y) == 2


@pytest.mark.parametrize(
    ("values", "share"), [([1.0] * 200, 0.01), ([0.0] * 5, 0), ([3.0, 1.0], 0.75), ([0.0] * 150 + [1.0] * 4, 0.5)]
)
def test_worst_share(values: list[float], share: float) -> None:
    assert worst_share(torch.tensor(values).double()) == pytest.approx(share)
