"""Selective importance sampling (SIS): weight 1 for the tokens that pass a rejection test, the ratio for the others."""

import torch
from torch import Tensor

from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.ratios import at_least_float32, log_ratio, ratio
from rlcorr.types import TokenBatch


def selective_weights(batch: TokenBatch, generator: torch.Generator | None = None) -> Tensor:
    """Return SIS's weights, (B, T): 1 with the probability of `acceptance`, else r = π_old/π_rollout; 0 on padding.

    Without a generator this is the mean over the random test, a + (1 − a) r, which is deterministic; with one, each
    token is tested once, as in the paper. Use the weights with `dataclasses.replace(result, weights=...)` on the result
    of a correction without weights. They have no bound, and no gradient.

    SIS is biased: with lists of the whole vocabulary, the mean weight under π_rollout is 1 − χ²/M with
    χ² = E_{π_rollout}[r²] − 1, not 1. It fails if the policies differ much: then M is large, almost no token is
    accepted, and the weights are unbounded ratios.

    Source: Li et al., arXiv:2607.04728, Algorithm 1 with the K likeliest tokens, K = 100 in the authors' recipes
    (github.com/liyu199809/sis, actor.topk_k). Not reproduced: the test of π_θ against π_old at every update, which the
    paper puts in the place of PPO's ratio, and the KL term use_sis_kl. Here the test is of π_old against π_rollout.

    Raises:
        UsageError: As `acceptance` does.

    >>> p, q = torch.tensor([[[0.8, 0.2]]]).log(), torch.tensor([[[0.5, 0.5]]]).log()
    >>> batch = TokenBatch(torch.ones(1, 1, dtype=torch.bool), q[..., 1], p[..., 1], response_ids=torch.tensor([[7]]))
    >>> lists = {"top_ids": torch.tensor([[[3, 7]]]), "rollout_top_log_probs": q, "old_top_log_probs": p}
    >>> round(selective_weights(batch.replace(**lists)).item(), 2)  # r = 0.4 and M = 1.6: accepted in one of four cases
    0.55
    """
    accepted = acceptance(batch)
    if generator is not None:
        accepted = (torch.rand(accepted.shape, generator=generator, device=accepted.device) < accepted).to(accepted)
    r = ratio(_log_ratio(batch))
    return torch.where(batch.response_mask, accepted + (1 - accepted) * r, 0)


def acceptance(batch: TokenBatch) -> Tensor:
    """Return the probability that SIS's test accepts each token, (B, T): min(1, r/M), and 0 on padding.

    M is the largest π_old/π_rollout among the sampler's likeliest tokens at the position. A token that is not among
    them is never accepted. If the lists are the whole vocabulary, accepted tokens are distributed as π_old, because
    π_rollout · r/M = π_old/M.

    Raises:
        UsageError: Without old_log_probs, response_ids, or the sampler's likeliest tokens with both log-probs.

    >>> p, q = torch.tensor([[[0.8, 0.2]]]).log(), torch.tensor([[[0.5, 0.5]]]).log()
    >>> batch = TokenBatch(torch.ones(1, 1, dtype=torch.bool), q[..., 0], p[..., 0], response_ids=torch.tensor([[3]]))
    >>> lists = {"top_ids": torch.tensor([[[3, 7]]]), "rollout_top_log_probs": q, "old_top_log_probs": p}
    >>> acceptance(batch.replace(**lists)).item()  # the token with r = M
    1.0
    """
    old, rollout, ids, sampled = batch.old_top_log_probs, batch.rollout_top_log_probs, batch.top_ids, batch.response_ids
    if old is None or rollout is None or ids is None or sampled is None:
        raise UsageError(
            "selective importance sampling needs response_ids, top_ids, rollout_top_log_probs and old_top_log_probs: "
            "record the sampler's likeliest tokens, and score them with the trainer."
        )
    real = (ids >= 0) & (rollout > -torch.inf)
    log_ratios = torch.where(real, at_least_float32(old) - at_least_float32(rollout), -torch.inf)
    listed = (real & (ids == sampled[..., None])).any(-1) & batch.response_mask
    highest = torch.where(listed, log_ratios.amax(-1), 0).detach()
    return torch.where(listed, ratio(_log_ratio(batch) - highest).clamp(max=1), 0)


def _log_ratio(batch: TokenBatch) -> Tensor:
    return log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
