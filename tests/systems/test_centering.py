"""Score centering in the texts of the systems: it is written or refused, and never lost."""

import math
import tomllib

import pytest
import torch
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.losses.score_centering import centering_terms
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import SYSTEMS, export, exports
from rlcorr.systems.nemo_rl import NEEDS, from_nemo_rl, nemo_rl_text, to_nemo_rl
from rlcorr.systems.prime_rl import from_prime_rl, to_prime_rl
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
from rlcorr.systems.torchtitan import to_torchtitan
from rlcorr.systems.trl import to_trl

CENTERED = LossConfig(score_centering=True)
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
BYPASS = CorrectionConfig(bypass_mode=True)
GRADIENT = CorrectionConfig(bypass_mode=True, loss_type="reinforce")
CAPPED = CorrectionConfig(bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_threshold=2.0)
BAND = CorrectionConfig(
    bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_mode="mask", rollout_is_threshold=5.0,
    rollout_is_threshold_lower=0.5,
)  # fmt: skip


def text_or_refusal(config: CorrectionConfig, system: str, version: str | None) -> str:
    """Return the text, or the message of the error."""
    try:
        return export(config, system, CENTERED, version=version)
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("config", [TOKEN, BYPASS, GRADIENT, CAPPED, BAND], ids=["decoupled", *"BGCM"])
def test_a_text_has_it_or_is_refused(system: str, config: CorrectionConfig) -> None:
    """Check every version of every system: a text without the name must not be written."""
    for version in SYSTEMS[system].versions or (None,):
        text = text_or_refusal(config, system, version)
        assert "score_centering" in text or "nearest: " in text, (system, version)


def test_the_functions_that_take_a_loss_refuse_it_too() -> None:
    for translate, config in ((to_trl, TOKEN), (to_prime_rl, BYPASS), (to_torchtitan, BYPASS), (to_nemo_rl, TOKEN)):
        with pytest.raises(
            UsageError, match=r"cannot contain score centering.*nearest: NeMo RL with version='nightly'"
        ):
            translate(config, CENTERED)


def test_what_is_known_about_a_system_is_said() -> None:
    texts = exports(TOKEN, CENTERED)
    assert "SkyRL centers the scores of its losses reinforce and rollout_is" in texts["SkyRL"]
    assert "version='main' has trainer.loss.score_centering" in texts["prime-rl"]
    assert texts["NeMo RL"].startswith("# NeMo RL nightly\n")
    assert texts["Python"].endswith("\nloss = LossConfig(score_centering=True)")


def test_nemo_rl_nightly_writes_the_key_and_what_it_needs() -> None:
    """Check the key and the requirements of the guide "Score Centering", nightly documentation of November 2026."""
    text = nemo_rl_text(TOKEN, CENTERED, version="nightly")
    assert text.splitlines()[:2] == ["# NeMo RL nightly", f"# {NEEDS}"]
    assert to_nemo_rl(TOKEN, CENTERED, version="nightly")["loss_fn"]["score_centering"] is True
    assert "score_centering" not in to_nemo_rl(TOKEN, version="nightly")["loss_fn"]
    rules = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_mult_error", upper=1.5),))
    with pytest.raises(UsageError, match="score centering uses one position"):
        to_nemo_rl(rules, CENTERED, version="nightly")


def test_nemo_rl_reads_the_key_as_a_part_of_the_loss() -> None:
    with pytest.raises(UsageError, match="it is of NeMo RL nightly: read it with version='nightly'"):
        from_nemo_rl({"loss_fn": {"score_centering": False}})
    assert from_nemo_rl({"loss_fn": {"score_centering": False}}, version="nightly") == CorrectionConfig()
    with pytest.raises(UsageError, match="belongs to the loss: leave it out, and set LossConfig"):
        from_nemo_rl({"score_centering": True}, version="nightly")


def test_skyrl_writes_the_loss_that_it_centers() -> None:
    """Check the keys of pull request 2244: reinforce without weights, rollout_is with a band, and nothing else."""
    text = skyrl_text(GRADIENT, CENTERED)
    assert text.startswith("# SkyRL 0.5.0\n# names of pull request 2244 (commit f16f5eae)")
    assert yaml.safe_load(text) == {"trainer": {"algorithm": {
        "policy_loss_type": "reinforce",
        "off_policy_correction": {"tis_ratio_type": None},
        "score_centering": {"enabled": True, "top_k": 32, "tail_eps": 1e-6},
    }}}  # fmt: skip
    band = yaml.safe_load(skyrl_text(BAND, CENTERED))["trainer"]["algorithm"]
    assert (band["policy_loss_type"], band["eps_clip_low"], band["eps_clip_high"]) == ("rollout_is", 0.5, 4.0)
    for config, why in ((TOKEN, "it refuses tis_ratio_type"), (CAPPED, "outside a band around 1 to 0")):
        with pytest.raises(UsageError, match=rf"{why}; nearest: "):
            skyrl_text(config, CENTERED)
    assert "score_centering" not in skyrl_text(TOKEN, LossConfig())


def test_skyrl_reads_the_switch_as_a_part_of_the_loss() -> None:
    with pytest.raises(UsageError, match="belongs to the loss: leave it out, and set LossConfig"):
        from_skyrl(yaml.safe_load(skyrl_text(GRADIENT, CENTERED)))
    off = {"algorithm": {"score_centering": {"enabled": False, "top_k": 64}, "use_tis": False}}
    assert from_skyrl(off) == CorrectionConfig()
    with pytest.raises(UsageError, match="unknown key of SkyRL's score_centering 'k'"):
        from_skyrl({"algorithm": {"score_centering": {"enabled": True, "k": 64}}})


def test_prime_rl_main_centers_the_scores_of_ipo() -> None:
    """Check configs/trainer.py of the main branch: a switch of IPO, whose eps 1 keeps every token."""
    text = export(CAPPED, "prime-rl", CENTERED, version="main")
    assert text.splitlines()[0] == "# prime-rl main"
    assert text.splitlines()[1].startswith("# score_centering needs truncated sampling: orchestrator.train.sampling")
    table = tomllib.loads(text)["trainer"]["loss"]
    assert table == {"type": "ipo", "eps": 1.0, "max_importance_ratio": 2.0, "score_centering": True}
    config, loss = from_prime_rl(table, version="main")
    assert (config, loss.score_centering) == (CAPPED, True)
    rule = RejectionRule.named("token_prob_diff", lower=-0.3, upper=0.3)
    ipo = CorrectionConfig(
        bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_threshold=1e4, rollout_rs=(rule,)
    )
    assert to_prime_rl(ipo, CENTERED, version="main")["eps"] == 0.3
    assert exports(CAPPED, CENTERED)["prime-rl"] == text
    with pytest.raises(
        UsageError, match="centers the scores of its ipo, not of icepop; nearest: rollout_is_mode='trun"
    ):
        to_prime_rl(BAND, CENTERED, version="main")
    with pytest.raises(UsageError, match="it is of prime-rl main: read it with version='main'"):
        from_prime_rl(table)


def test_our_term_is_prime_rls_if_the_head_is_all_that_can_be_drawn() -> None:
    """prime-rl sums q · min(p/q, cap) · log p over the kept set. Its gradient in the logits must be ours.

    Both distributions are over the kept set, as replay makes them.
    """
    torch.manual_seed(0)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    log_q = torch.randn(3, 4, dtype=torch.float64).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    p, q = log_p.detach().exp().tolist(), log_q.exp().tolist()
    weights = [[b * min(a / b, 2.0) for a, b in zip(*rows, strict=True)] for rows in zip(p, q, strict=True)]
    (theirs,) = torch.autograd.grad((torch.tensor(weights) * log_p).sum(), logits, retain_graph=True)
    (ours,) = torch.autograd.grad(centering_terms(log_p, log_q, CAPPED).sum(), logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert math.isfinite(float(ours.sum()))
    assert float(ours.abs().max()) > 1e-3
