"""Ratio 1 on the tokens of the newest weights: the other tests of segments are those of their figures."""

import pytest
import torch

from rlcorr.analysis.segments import exact_on_policy
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import evaluate
from rlcorr.presets import preset
from rlcorr.types import TokenBatch

D = torch.tensor([[0.5, -0.2, 1.0, 0.3], [2.0, 0.1, -1.0, 9.0]]).double()
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
ROLLOUT = torch.full((2, 4), -3.0).double()
BATCH = TokenBatch(MASK, ROLLOUT, ROLLOUT + D)


@pytest.mark.parametrize("per_token", [False, True])
def test_tokens_of_the_current_version_get_ratio_1(per_token: bool) -> None:
    """prime-rl's rule, token by token: ratio 1 if the version that sampled is the current one, else what it was."""
    versions = torch.tensor([[6, 7, 9, 9], [9, 9, 9, 3]]) if per_token else torch.tensor([9, 8])
    given = BATCH.replace(policy_versions=versions)
    result, _ = evaluate(exact_on_policy(given, step=10), preset("decoupled_token_is"))
    for b, t in MASK.nonzero().tolist():
        version = int(versions[b, t] if per_token else versions[b])
        expected = 0.0 if version == 9 else float(D[b, t])
        assert float(result.log_ratio[b, t]) == pytest.approx(expected, abs=1e-12), (b, t)


def test_a_batch_of_stale_tokens_stays_as_it_is() -> None:
    given = BATCH.replace(policy_versions=torch.tensor([3, 4]))
    changed = exact_on_policy(given, step=10)
    assert torch.equal(changed.rollout_log_probs, given.rollout_log_probs)
    assert changed.rollout_log_probs.dtype == given.rollout_log_probs.dtype


def test_it_needs_versions_and_old_log_probs() -> None:
    with pytest.raises(UsageError, match="a lag needs policy_versions"):
        exact_on_policy(BATCH, 10)
    with pytest.raises(UsageError, match="needs old_log_probs"):
        exact_on_policy(BATCH.replace(policy_versions=torch.tensor([1, 2]), old_log_probs=None), 10)
