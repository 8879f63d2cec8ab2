"""A band on the log-ratio that grows with the entropy of the token's position (ESTR)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.ratios import at_least_float32
from rlcorr.types import CorrectionResult

FLOOR = 0.01
"""ESTR's ε, which keeps the band open where the entropy is 0."""


def within_entropy_band(
    result: CorrectionResult, entropies: Tensor, *, threshold: float, floor: float = FLOOR
) -> CorrectionResult:
    """Keep only the kept tokens with d²/(H + ε) ≤ τ, that is |d| ≤ √(τ (H + ε)).

    ESTR (entropy-scaled trust region, arXiv:2607.22186). To first order, E[d²] is proportional to the entropy H of the
    position, so one bound on |d| is too loose for sure positions and too tight for open ones. ESTR then takes PPO's
    clip of π_θ/π_rollout on the tokens that are left. `rejected_by` does not name the tokens that this rejects.

    It fails if H is that of a truncated distribution (top-p, top-k): the band is then narrower than the paper's. It is
    no rejection rule of a `CorrectionConfig`, because a batch has no entropies. In bypass mode `policy_loss` computes
    its own result, so this one has no effect there.

    Args:
        result: What `correct` gave, without batch normalisation, or the weights are normalised over more tokens.
        entropies: H of π_rollout at each position, (B, T), in nats, from the engine; not read on padding.
        threshold: τ > 0. The paper's number could not be read, so there is no default.
        floor: ε > 0.

    Raises:
        UsageError: For entropies of another shape or negative ones, and for a threshold or floor that is not > 0.

    >>> from rlcorr.config import CorrectionConfig
    >>> from rlcorr.correction import correct
    >>> from rlcorr.types import TokenBatch
    >>> batch = TokenBatch.from_log_probs(torch.full((1, 2), -1.0), torch.full((1, 2), -1.5), torch.ones(1, 2))
    >>> result = correct(batch, CorrectionConfig())  # d = 0.5 at both positions
    >>> within_entropy_band(result, torch.tensor([[0.01, 2.0]]), threshold=1.0).keep_mask.tolist()
    [[False, True]]
    """
    if not (threshold > 0 and 0 < floor < math.inf):
        raise UsageError(f"threshold and floor must be > 0; got {threshold} and {floor}.")
    if entropies.shape != result.keep_mask.shape:
        raise UsageError(
            f"entropies must have the shape of the batch, {tuple(result.keep_mask.shape)}; got "
            f"{tuple(entropies.shape)}."
        )
    known = torch.where(result.keep_mask, at_least_float32(entropies), 0)
    if bool((known < 0).any()):
        raise UsageError(f"an entropy is ≥ 0; got {float(known.min()):g}.")
    score = result.log_ratio.square() / (known + floor)  # NaN is outside
    return replace(result, keep_mask=result.keep_mask & (score <= threshold), only_by_rules=False)
