"""What a person adds is one record: a divergence, a level of the weights, a loss, a preset, a system.

Each test puts a record into a copy of a table, and everything else follows from it.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr import CorrectionConfig, LossConfig, RejectionRule, TokenBatch, correct, evaluate, policy_loss, rules
from rlcorr.divergences import DIVERGENCES, Divergence
from rlcorr.losses.policy_losses import LOSSES, Loss
from rlcorr.presets import Preset, read_presets, titles
from rlcorr.weights import LEVELS, Level


@pytest.fixture
def batch() -> TokenBatch:
    """One answer with d = 0, 1 and −2."""
    old, rollout = torch.tensor([[-1.0, -1.0, -3.0]]), torch.tensor([[-1.0, -2.0, -1.0]])
    return TokenBatch.from_log_probs(old, rollout, torch.ones(1, 3)).replace(advantages=torch.ones(1, 3))


def test_a_divergence_is_one_record(batch: TokenBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """|d| ≤ 1 rejects the third token; its largest value of the answer is 2."""
    monkeypatch.setitem(DIVERGENCES, "abs_d", Divergence("|d|", "|log r|", "distance", lambda d: d.abs()))
    for name, parts in rules.rule_names().items():
        monkeypatch.setitem(rules.RULE_NAMES, name, parts)
    token = RejectionRule.named("token_abs_d", upper=1.0)
    result, metrics = evaluate(batch, CorrectionConfig(rollout_rs=(token,)))
    assert result.keep_mask.tolist() == [[True, True, False]]
    assert metrics["rollout_corr/rollout_rs_token_abs_d_max"] == 2.0
    assert "keeps a token while |log r| ≤ 1" in token.explain()
    answer = RejectionRule.named("seq_max_abs_d", upper=1.0)
    assert not correct(batch, CorrectionConfig(rollout_rs=(answer,))).keep_mask.any()


def test_a_level_of_the_weights_is_one_record(batch: TokenBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The square root of the ratio: e^0, e^0.5, e^−1."""
    level = Level("√r", "the root of its ratio {ratio}", "the root of each token's weight", lambda d, _: d / 2, True)
    monkeypatch.setitem(LEVELS, "root", level)
    config = CorrectionConfig(rollout_is="root", rollout_is_threshold=5.0)
    result, metrics = evaluate(batch, config)
    assert result.weights[0].log().tolist() == pytest.approx([0.0, 0.5, -1.0], abs=1e-6)
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(torch.tensor(0.5).exp().item())
    assert config.explain().startswith("Each token is weighted by the root of its ratio π_old/π_rollout")
    assert titles.title(Preset("Mine", config, "", "")) == "Cap the root of each token's weight at 5"


def test_a_loss_is_one_record(batch: TokenBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """−A ρ² at ρ = 1 is −1 for each token. The name of a real one is borrowed: names are in `config.LossType`."""

    def squared(x: Any, loss: LossConfig, _: torch.Generator | None) -> Tensor:
        return -x.advantages * (2 * (x.log_probs - x.old)).exp()

    monkeypatch.setitem(LOSSES, "sapo", Loss(squared, "squares", cut=lambda x, loss: x.log_ratio() > -1))
    config = CorrectionConfig(loss_type="sapo")
    assert batch.old_log_probs is not None
    leaf = batch.old_log_probs.clone().requires_grad_()
    value, measured = policy_loss(leaf, batch, correct(batch, config), config, LossConfig())
    value.backward()
    assert value.item() == -1
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == pytest.approx([-2 / 3] * 3)
    assert dict(measured.rows())["actor/pg_clipfrac"][1] == 3
    assert titles.title(Preset("Mine", config, "", "")) == "Squares"


def test_a_preset_is_one_table(batch: TokenBatch) -> None:
    table = 'system = "Mine"\nrollout_is = "token"\nrollout_is_threshold = 1.5\nsource = "a note"\nfails_when = "never"'
    preset = read_presets(f"fails_when.never = 'it never fails'\n[preset.mine]\n{table}")["mine"]
    assert evaluate(batch, preset.config)[0].weights.max() == 1.5
    assert titles.title(preset) == "Cap each token's weight at 1.5"
    assert (preset.system, preset.fails_when) == ("Mine", "it never fails")
