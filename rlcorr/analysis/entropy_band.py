"""A band on the log-ratio that grows with the entropy of the token's position.

ESTR (entropy-scaled trust region, arXiv:2607.22186) keeps a token if d²/(H + ε) ≤ τ, that is |d| ≤ √(τ (H + ε)). To
first order E[d²] is proportional to H, so one bound on |d| is too loose where the next token is nearly certain, and too
tight where many tokens are likely. ESTR then takes PPO's clip of π_θ/π_rollout on the tokens that are left.

It fails if H is that of a truncated distribution (top-p, top-k): the band is then narrower than the paper's. It is no
rejection rule of a `CorrectionConfig`, because a batch has no entropies.
"""

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
    """Leave out the tokens with d²/(H + ε) > τ as well. `rejected_by` does not name them.

    In bypass mode this has no effect on the loss, because `policy_loss` then computes a result of its own.

    Args:
        result: From `correct`, without batch normalisation, which would have divided by the mean over more tokens.
        entropies: H of π_rollout at each position, (B, T), in nats, from the engine; not read on padding.
        threshold: τ > 0. The paper's number could not be read, so there is no default.
        floor: ε > 0.

    Raises `UsageError` for entropies of another shape or below 0, and for other thresholds and floors. Waits for the
    device.

    >>> d = torch.tensor([[0.5, 0.5]])
    >>> result = CorrectionResult(d, torch.ones(1, 2), torch.ones(1, 2).bool(), torch.zeros(1, 2))
    >>> within_entropy_band(result, torch.tensor([[0.01, 2.0]]), threshold=1.0).keep_mask.tolist()
    [[False, True]]
    """
    if not (threshold > 0 and 0 < floor < math.inf):
        raise UsageError(f"threshold and floor must be > 0; got {threshold} and {floor}.")
    score = result.log_ratio.square() / (_entropies_of_kept(result, entropies) + floor)  # NaN is outside
    return replace(result, keep_mask=result.keep_mask & (score <= threshold), only_by_rules=False)


def _entropies_of_kept(result: CorrectionResult, entropies: Tensor) -> Tensor:
    """Return the entropies of the kept tokens, 0 elsewhere. Raises `UsageError` for a wrong shape or sign."""
    shape = tuple(result.keep_mask.shape)
    if entropies.shape != shape:
        raise UsageError(f"entropies must have the shape of the batch, {shape}; got {tuple(entropies.shape)}.")
    kept = torch.where(result.keep_mask, at_least_float32(entropies), 0)
    if bool((kept < 0).any()):
        raise UsageError(f"an entropy is ≥ 0; got {float(kept.min()):g}.")
    return kept
