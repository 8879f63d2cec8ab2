"""SIS's weights against a loop over the tokens, and what its rejection test promises about their distribution."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcorr.analysis.selective_weights import acceptance, selective_weights
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss
from rlcorr.types import TokenBatch

Floats = NDArray[np.float64]
VOCABULARY = 7


def distributions(positions: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """log π_old and log π_rollout of the whole vocabulary at each position, (1, T, V), in float64."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, positions, VOCABULARY, generator=random, dtype=torch.float64)
    noise = torch.randn(1, positions, VOCABULARY, generator=random, dtype=torch.float64)
    return (logits + 0.7 * noise).log_softmax(-1), logits.log_softmax(-1)


def batch_of(old: Tensor, rollout: Tensor, tokens: Tensor, k: int = VOCABULARY, **changes: Any) -> TokenBatch:
    """These sampled tokens, (1, T), with the sampler's k likeliest tokens."""
    top, ids = rollout.topk(k, -1)
    of_old, of_rollout = (x.gather(-1, tokens[..., None])[..., 0] for x in (old, rollout))
    made = TokenBatch.from_log_probs(of_old, of_rollout, torch.ones(tokens.shape))
    lists = {"top_ids": ids, "rollout_top_log_probs": top, "old_top_log_probs": old.gather(-1, ids)}
    return made.replace(response_ids=tokens, **(lists | changes))


def loop(old: Floats, rollout: Floats, tokens: list[int], k: int, draws: Floats | None = None) -> list[float]:
    """The paper's algorithm, position by position. Without draws, the mean over them."""
    weights = []
    for t, token in enumerate(tokens):
        r = float(np.exp(old[t, token] - rollout[t, token]))
        top = np.argsort(-rollout[t])[:k]
        accept = min(1.0, r / max(np.exp(old[t, v] - rollout[t, v]) for v in top)) if token in top else 0.0
        if draws is None:
            weights.append(accept + (1 - accept) * r)
        else:
            weights.append(1.0 if draws[t] < accept else r)
    return weights


@pytest.mark.parametrize("k", [1, 3, VOCABULARY])
def test_the_weights_are_those_of_a_loop(k: int) -> None:
    old, rollout = distributions(40)
    tokens = torch.arange(40)[None] % VOCABULARY
    given = batch_of(old, rollout, tokens, k)
    columns = (old[0].numpy(), rollout[0].numpy(), tokens[0].tolist(), k)
    assert selective_weights(given)[0].tolist() == pytest.approx(loop(*columns), rel=1e-12)
    draws = torch.rand(1, 40, generator=torch.Generator().manual_seed(5))[0].double().numpy()
    drawn = selective_weights(given, torch.Generator().manual_seed(5))
    assert drawn[0].tolist() == pytest.approx(loop(*columns, draws), rel=1e-12)


def test_accepted_tokens_are_distributed_as_the_trainer() -> None:
    """With the whole vocabulary: q(v) a(v) = p(v)/M at every position, so one in M tokens is accepted."""
    old, rollout = (x.expand(1, VOCABULARY, VOCABULARY) for x in distributions(1))
    given = batch_of(old, rollout, torch.arange(VOCABULARY)[None])  # every token of one position, one after the other
    p, q = given.old_log_probs, given.rollout_log_probs
    assert p is not None
    p, q = p.exp(), q.exp()
    accepted, largest = q * acceptance(given), (p / q).max()
    torch.testing.assert_close(accepted, p / largest, rtol=1e-12, atol=0)
    chi2 = (p.square() / q).sum() - 1
    mean = (q * selective_weights(given)).sum()
    torch.testing.assert_close(mean, 1 - chi2 / largest, rtol=1e-12, atol=0)  # SIS's bias


def test_weights_are_1_where_the_policies_agree_and_0_on_padding() -> None:
    _, rollout = distributions(3)
    mask = torch.tensor([[True, True, False]])
    given = batch_of(rollout, rollout, torch.tensor([[0, 1, 2]])).replace(response_mask=mask)
    assert selective_weights(given).tolist() == [[1.0, 1.0, 0.0]]
    assert acceptance(given).tolist() == [[1.0, 1.0, 0.0]]


def test_empty_places_of_a_list_and_cut_tokens_are_no_candidates() -> None:
    old, rollout = distributions(1)
    given = batch_of(old, rollout, rollout.argmax(-1), k=2)
    assert given.top_ids is not None
    assert given.rollout_top_log_probs is not None
    ids, top = given.top_ids.clone(), given.rollout_top_log_probs.clone()
    ids[..., 1], top[..., 1] = -1, -torch.inf
    changed = given.replace(top_ids=ids, rollout_top_log_probs=top)
    assert acceptance(changed).tolist() == [[1.0]]  # the token is the only candidate, and has r = M


def test_the_weights_go_into_a_loss() -> None:
    old, rollout = distributions(4)
    given = batch_of(old, rollout, torch.tensor([[0, 1, 2, 3]])).replace(advantages=torch.ones(1, 4).double())
    assert given.old_log_probs is not None
    result = replace(correct(given, CorrectionConfig()), weights=selective_weights(given))
    leaf = given.old_log_probs.clone().requires_grad_()
    policy_loss(leaf, given, result, CorrectionConfig(), LossConfig())[0].backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, -selective_weights(given) / 4)  # ρ = 1


def test_it_needs_the_lists() -> None:
    given = TokenBatch.from_log_probs(torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1, 3))
    with pytest.raises(UsageError, match="needs response_ids, top_ids, rollout_top_log_probs and old_top_log_probs"):
        selective_weights(given)
