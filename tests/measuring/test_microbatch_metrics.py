"""Metrics of micro-batches merge to those of the batch: each part counts with its share of the tokens or sequences."""

import pytest
import torch

from rlcorr.config import Aggregation, CorrectionConfig, Denominator, LossConfig
from rlcorr.correction import correct
from rlcorr.losses.objective import policy_loss
from rlcorr.measuring.measure import merge
from rlcorr.measuring.metrics import means
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

# Three answers of 3, 1 and 2 tokens; the last token of the first and the only one of the second have r = e, and go.
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
D = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
ADVANTAGES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0], [-1.0, -3.0, 0.0]])
BATCH = TokenBatch(MASK, torch.full((3, 3), -2.0), old_log_probs=D - 2, advantages=ADVANTAGES)

# On the policy, ppo_clip's loss of a token is −A. Kept are −1, −2 | nothing | 1, 3.
# By tokens: their sum, 1, over 6 tokens or over the 4 kept; 4 of 6 tokens are kept, or all that count.
# By sequences, fixed: (−3/3 + 0/1 + 4/2) / 3 = 1/3, and of ones (2/3 + 0 + 1) / 3 = 5/9.
# By sequences, kept: (−3/2 + 4/2) / 2 = 1/4, and of ones 1.
EXPECTED: dict[tuple[Aggregation, Denominator], tuple[float, float]] = {
    ("token-mean", "fixed"): (1 / 6, 4 / 6),
    ("token-mean", "kept"): (1 / 4, 1.0),
    ("seq-mean-token-mean", "fixed"): (1 / 3, 5 / 9),
    ("seq-mean-token-mean", "kept"): (1 / 4, 1.0),
}


def test_the_metrics_of_parts_are_those_of_the_whole() -> None:
    for (mode, denominator), (loss, factor) in EXPECTED.items():
        rule = RejectionRule.named("token_k1", upper=2.0)
        config = CorrectionConfig(rollout_rs=(rule,), denominator=denominator)
        result = correct(BATCH, config)
        counted = MASK if denominator == "fixed" else result.keep_mask
        tokens, sequences = float(counted.sum()), float(counted.any(-1).sum())
        measured = [
            policy_loss(
                BATCH.rows(rows).tensors()["old_log_probs"], BATCH.rows(rows), result.rows(rows), config,
                LossConfig(loss_agg_mode=mode), tokens=tokens, sequences=sequences,
            )[1]
            for rows in (slice(0, 1), slice(1, 2), slice(2, 3))
        ]  # fmt: skip
        merged = means(merge(measured))
        assert merged["actor/pg_loss"] == pytest.approx(loss, abs=1e-6), (mode, denominator)
        assert merged["lr_factor"] == pytest.approx(factor, abs=1e-6), (mode, denominator)
