"""What a correction may cost beside its arithmetic: temporaries as large as the batch, and waiting for the device."""

from typing import Any

import pytest
import torch
from allocations import peak
from torch.utils._python_dispatch import TorchDispatchMode

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, measure, metrics, preset

CONFIGS = {name: preset(name) for name in ("decoupled_token_is", "decoupled_seq_is_rs", "decoupled_geo_rs_token_tis")}
CONFIGS["chain"] = CorrectionConfig(
    rollout_is="token",
    rollout_rs=(
        RejectionRule.named("token_binary_kl", upper=2.0),
        RejectionRule.named("token_prob_diff_outward", lower=-0.2, upper=0.2),
        RejectionRule.named("seq_mean_k3", upper=0.01),
    ),
)
TOKENS = 1024 * 1024


@pytest.fixture(scope="module")
def batch() -> TokenBatch:
    rng = torch.Generator().manual_seed(0)
    rollout = -torch.rand(1024, 1024, generator=rng) * 3 - 0.2
    old = rollout + 0.02 * torch.randn(1024, 1024, generator=rng)
    mask = torch.arange(1024) < torch.randint(1, 1025, (1024, 1), generator=rng)
    return TokenBatch(mask, rollout, old_log_probs=old, advantages=torch.randn(1024, 1024, generator=rng))


def test_the_allocator_is_seen() -> None:
    """Two tensors of a million floats alive at once, then one."""
    assert peak(lambda: torch.ones(1_000_000) + torch.ones(1_000_000)) == pytest.approx(12_000_000, rel=0.01)


@pytest.mark.parametrize("name", CONFIGS)
def test_at_most_four_temporaries_of_full_size(batch: TokenBatch, name: str) -> None:
    """The result itself takes 10 bytes per token: log-ratio, weight, keep mask, rejecting rule."""
    config = CONFIGS[name]
    assert peak(lambda: correct(batch, config)) <= (10 + 4 * 4) * TOKENS
    result = correct(batch, config)
    assert peak(lambda: measure(batch, result, config)) <= 4 * 4 * TOKENS


class NoWaiting(TorchDispatchMode):
    """Fails on every operation whose result the host needs before it can go on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        waits = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "item", "equal")
        assert name not in waits, f"{name} waits for the device"
        if name in ("index", "index_put"):
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), (
                "a bool index waits for the device"
            )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_waits_for_the_device_before_the_metrics(batch: TokenBatch, name: str) -> None:
    with NoWaiting():
        measured = measure(batch, correct(batch, CONFIGS[name]), CONFIGS[name])
        with pytest.raises(AssertionError, match="waits for the device"):
            bool(measured.table[0, 0] > 0)
    assert metrics(measured)["rollout_corr/tokens"] == batch.response_mask.sum()
