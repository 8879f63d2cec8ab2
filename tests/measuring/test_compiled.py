"""The compiled pass gives the numbers of the two plain functions. It needs a C++ compiler."""

import sys

import pytest
import torch
from reference import VERL, batch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate, metrics, preset
from rlcorr.errors import UsageError
from rlcorr.measuring import compiled
from rlcorr.measuring.compiled import correct_and_measure

# PyTorch's own compiler still uses what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
CHAIN = CorrectionConfig(
    rollout_is="geometric",
    rollout_is_mode="mask",
    rollout_is_threshold_lower=0.9,
    rollout_is_batch_normalize=True,
    rollout_rs=(
        RejectionRule.named("token_binary_kl", upper=0.05),
        RejectionRule.named("token_prob_diff_outward", lower=-0.2, upper=0.2),
        RejectionRule.named("seq_mean_k3", upper=0.05),
    ),
)
CONFIGS = {name: preset(name) for name in ("decoupled_token_is", "decoupled_seq_is_rs", "decoupled_geo_rs_token_tis")}
CONFIGS["chain"] = CHAIN
CONFIGS["prefix"] = CorrectionConfig(rollout_is="prefix", rollout_is_batch_normalize=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_is_plain(name: str) -> None:
    rng = torch.Generator().manual_seed(1)
    rollout = -torch.rand(33, 70, generator=rng) * 3 - 0.7
    old = rollout + 0.3 * torch.randn(33, 70, generator=rng)
    mask = torch.arange(70) < torch.randint(0, 71, (33, 1), generator=rng)
    old[0, 0], rollout[1, 1] = float("-inf"), float("nan")
    given = TokenBatch(mask, rollout, old_log_probs=old.clamp(max=0), advantages=torch.randn(33, 70, generator=rng))
    result, measured = correct_and_measure(given, CONFIGS[name])
    plain = correct(given, CONFIGS[name])
    assert torch.equal(result.keep_mask, plain.keep_mask)
    assert torch.equal(result.rejected_by, plain.rejected_by)
    assert result.rejected_by.dtype == plain.rejected_by.dtype
    torch.testing.assert_close(result.log_ratio, plain.log_ratio, equal_nan=True)
    torch.testing.assert_close(result.weights, plain.weights, equal_nan=True)
    _, expected = evaluate(given, CONFIGS[name])
    assert metrics(measured) == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_as_written_it_gives_the_numbers_of_the_two(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass itself, not compiled. Any program will do for the compiler that is looked for."""
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(compiled, "_fused", lambda: compiled.one_pass)
    given = batch("moderate2_5x9")
    given = given.replace(advantages=-torch.ones_like(given.rollout_log_probs))
    plain, expected = evaluate(given, CONFIGS[name])
    result, measured = correct_and_measure(given, CONFIGS[name])
    assert torch.equal(result.keep_mask, plain.keep_mask)
    assert torch.equal(result.rejected_by, plain.rejected_by)
    torch.testing.assert_close(result.weights, plain.weights)
    assert metrics(measured) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_one_graph(name: str) -> None:
    """Raise if the compiler splits the pass, which makes it several times slower without a message."""
    torch.compiler.reset()  # a function may be compiled for eight configurations
    given = batch("moderate2_5x9")
    given = given.replace(advantages=-torch.ones_like(given.rollout_log_probs))
    *_, measured = torch.compile(compiled.one_pass, fullgraph=True, backend="eager")(given, CONFIGS[name])
    assert measured.names


def test_without_a_compiler_it_says_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler .*; correct\(\) and measure\(\) need none"):
        correct_and_measure(batch("identical"), CorrectionConfig())


@pytest.mark.slow
def test_like_verl() -> None:
    """Weights and mask of the real verl, through the compiled pass."""
    golden = VERL["pipeline"]["decoupled_geo_rs_token_tis"]["moderate2_5x9"]
    result, _ = correct_and_measure(batch("moderate2_5x9"), preset("decoupled_geo_rs_token_tis"))
    assert result.keep_mask.int().tolist() == golden["mask"]
    torch.testing.assert_close(result.weights, torch.tensor(golden["weights"]), rtol=2e-5, atol=1e-6)
