"""Two corrections of one random batch, written out as loops over tokens and sequences, in float64."""

import math

import numpy as np
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.analysis import comparison
from rlcorr.gradients.sketch import Reference, SampledSketch

ROWS, COLUMNS, DIRECTIONS, BLOCKS = 40, 7, 5, 8
TIS = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.05, rollout_is_threshold_lower=0.6, rollout_is_mode="mask"
)
RULE = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.7, upper=1.4),))


def random_batch() -> TokenBatch:
    """Uneven rows, one of them empty, and NaN on the padding."""
    g = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, COLUMNS + 1, (ROWS,), generator=g)
    lengths[3] = 0
    mask = torch.arange(COLUMNS) < lengths[:, None]
    rollout = -torch.rand(mask.shape, generator=g) - 1.0
    old = rollout + 0.3 * torch.randn(mask.shape, generator=g)
    return TokenBatch(
        response_mask=mask,
        rollout_log_probs=torch.where(mask, rollout, torch.nan),
        old_log_probs=torch.where(mask, old, torch.nan),
        advantages=torch.randn(mask.shape, generator=g),
    )


BATCH = random_batch()
MASK = BATCH.response_mask.numpy()
OLD = BATCH.tensors()["old_log_probs"]
LOG_RATIO = np.where(MASK, OLD.double() - BATCH.rollout_log_probs.double(), 0)


def by_loops(config: CorrectionConfig) -> list[list[float | None]]:
    """The weight that each token is trained with: 0 where it is not, None on padding."""
    of_rows: list[list[float | None]] = []
    for row, real in zip(LOG_RATIO, MASK, strict=True):
        product, weights = math.exp(sum(row)), []
        for d, is_real in zip(row, real, strict=True):
            r = math.exp(d)
            if not is_real:
                weights.append(None)
            elif config is TIS:
                weights.append(min(r, 1.2))
            elif config is ICEPOP:
                weights.append(r if 0.6 <= r <= 1.05 else 0.0)
            else:
                weights.append(1.0 if 0.7 <= product <= 1.4 else 0.0)
        of_rows.append(weights)
    return of_rows


PAIRS = [(TIS, RULE), (ICEPOP, RULE), (RULE, ICEPOP), (TIS, ICEPOP), (RULE, RULE)]


def counted(a: CorrectionConfig, b: CorrectionConfig) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(comparison.SHARED, 0)
    for row_a, row_b in zip(by_loops(a), by_loops(b), strict=True):
        for of_a, of_b in zip(row_a, row_b, strict=True):
            if of_a is None or of_b is None:
                counts["padding"] += 1
            else:
                names = {(True, True): "both", (True, False): "only A", (False, True): "only B"}
                counts[names.get((of_a > 0, of_b > 0), "neither")] += 1
    return counts


def sketched() -> SampledSketch:
    """Tokens that the trainer likes more have other scores than the rest, so that masking turns the gradient."""
    g = torch.Generator().manual_seed(6)
    up, down = torch.tensor([2.0, -1, 0.5, 0, 0]), torch.tensor([0, 1, 0.5, 2.0, 0])
    of_token = torch.where(torch.from_numpy(LOG_RATIO[MASK] > 0)[:, None], up, down)
    scores = of_token + torch.randn(of_token.shape, generator=g)
    by_token = 60 * torch.tensor([0.5, -0.2, 0.2, 0.1, 0.0]) + torch.randn(BLOCKS, DIRECTIONS, generator=g)
    return SampledSketch(
        scores, Reference(by_token, by_token, torch.full((BLOCKS,), 60.0), torch.full((BLOCKS,), 15.0))
    )


SKETCH = sketched()
POSITIVE = BATCH.replace(advantages=BATCH.tensors()["advantages"].abs())
"""With advantages of one sign the gradient stands well above its noise."""
