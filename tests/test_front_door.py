"""What `import rlcorr` gives, and what it loads."""

import subprocess
import sys

import pytest
import torch

import rlcorr
from rlcorr import CorrectionConfig, TokenBatch, correct, evaluate, measure, metrics

ASKED_FOR = (
    "TokenBatch", "correct", "measure", "metrics", "preset", "evaluate", "from_verl", "to_verl", "from_skyrl",
    "to_skyrl", "LossConfig", "policy_loss", "UsageError", "export",
)  # fmt: skip


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_front_door_has(name: str) -> None:
    assert name in rlcorr.__all__
    assert callable(getattr(rlcorr, name))


@pytest.mark.slow
def test_it_loads_torch_and_nothing_else_from_outside() -> None:
    """In a process of its own, after torch, which brings packages with it."""
    code = "import sys, torch; before = set(sys.modules); import rlcorr; print(*set(sys.modules) - before)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    packages = {name.split(".")[0] for name in printed.split()}
    assert "rlcorr" in packages
    assert packages - sys.stdlib_module_names <= {"rlcorr", "torch"}


def test_evaluate_is_the_three_calls_in_one() -> None:
    old, rollout = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.5, 0.8]]).log()
    batch, config = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2)), CorrectionConfig(rollout_is="token")
    result, numbers = evaluate(batch, config)
    assert torch.equal(result.weights, correct(batch, config).weights)
    assert numbers == metrics(measure(batch, result, config))
    assert numbers["rollout_corr/rollout_is_mean"] == pytest.approx((1.2 + 0.5) / 2)  # by hand
