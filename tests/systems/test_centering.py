"""Score centering in the texts of the systems: it is written or refused, and never lost."""

import math
import tomllib
from dataclasses import replace

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import export, exports
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.prime_rl import to_prime_rl
from rlcorr.systems.skyrl import from_skyrl, from_skyrl_with_loss
from rlcorr.systems.slime import to_slime
from rlcorr.systems.verl import from_verl, from_verl_with_loss

CENTERED = LossConfig(score_centering=True)
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
BYPASS = CorrectionConfig(bypass_mode=True)
GRADIENT = CorrectionConfig(bypass_mode=True, loss_type="reinforce")
CAPPED = CorrectionConfig(bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_threshold=2.0)
BAND = CorrectionConfig(
    bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_mode="mask", rollout_is_threshold=5.0,
    rollout_is_threshold_lower=0.5,
)  # fmt: skip


def test_a_text_has_it_or_is_refused() -> None:
    for config in (TOKEN, BYPASS, GRADIENT, CAPPED, BAND):
        for system, text in exports(config, CENTERED).items():
            assert "score_centering" in text.replace("-", "_") or "nearest: " in text, (system, config)
    texts = exports(TOKEN, CENTERED)
    assert "SkyRL centers the scores of its losses reinforce and rollout_is" in texts["SkyRL"]
    assert "pull request, 3317); nearest: verl, SkyRL, prime-rl, slime, NeMo RL, or score_centering=F" in texts["miles"]
    assert texts["Python"].endswith("\nloss = LossConfig(score_centering=True)")


def test_verl_main_reads_what_was_written_for_it() -> None:
    """Check pull request 8010; the golden texts of the presets have both places and the head of 128."""
    preset = PRESETS["bypass_pg_token_tis_sc"]
    content = yaml.safe_load(export(preset.config, "verl", preset.loss))
    assert from_verl_with_loss(content) == (preset.config, CENTERED)
    with pytest.raises(UsageError, match="belongs to the loss: read both with from_verl_with_loss"):
        from_verl(content)
    assert from_verl({"score_centering": False}) == CorrectionConfig()


REINFORCE = {"bypass_mode": True, "loss_type": "reinforce", "score_centering": True}


def test_what_verl_refuses_with_score_centering() -> None:
    """Check what tests/trainer/config of verl main refuses (commit c6236f51)."""
    for correction, message in (
        ({"bypass_mode": False, "loss_type": "ppo_clip"}, "verl centers the scores of its policy gradient only"),
        ({"loss_type": "ppo_clip"}, "verl centers the scores of its policy gradient only"),
        ({"rollout_is": "sequence"}, "goes with rollout_is None or 'token'"),
        ({"rollout_is": "token", "rollout_is_batch_normalize": True}, "without batch normalisation"),
    ):
        with pytest.raises(UsageError, match=message):
            from_verl_with_loss(REINFORCE | correction)


def test_slime_writes_reinforce_with_its_flags() -> None:
    """Check the flags and defaults of slime 0.3.2 (slime/utils/arguments.py), and what its validation accepts.

    PPO's clip, the default, weighs by π_old/π_rollout; REINFORCE by π_θ/π_rollout, which is our bypass mode.
    """
    centered = {"pg_loss_type": "reinforce", "use_score_centering": True, "score_centering_top_k": 128}
    assert to_slime(GRADIENT, CENTERED) == centered
    assert to_slime(CAPPED, CENTERED) == centered | to_slime(TOKEN)
    assert to_slime(TOKEN) == {"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 0.0}
    for config, message in (
        (TOKEN, "centers the scores of REINFORCE only; nearest: bypass_mode=True"),
        (replace(CAPPED, rollout_is_threshold=math.inf), "--tis-clip is finite; nearest"),
        (replace(CAPPED, rollout_is="sequence"), "token weights without rules"),
    ):
        with pytest.raises(UsageError, match=message):
            to_slime(config, CENTERED)


def test_nemo_rl_nightly_writes_the_key_and_what_it_needs() -> None:
    """Check the key and the requirements of the guide "Score Centering", nightly documentation of November 2026."""
    text = export(TOKEN, "NeMo RL", CENTERED)
    assert text.splitlines()[:2] == ["# NeMo RL nightly", f"# {FACTS['NeMo RL'].notes['score_centering']}"]
    assert "score_centering: true" in text
    rules = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_mult_error", upper=1.5),))
    with pytest.raises(UsageError, match="score centering uses one position"):
        export(rules, "NeMo RL", CENTERED)


def test_skyrl_writes_the_loss_that_it_centers() -> None:
    """Check the keys of pull request 2244: reinforce without weights, rollout_is with a band, and nothing else."""
    text = export(GRADIENT, "SkyRL", CENTERED)
    assert text.startswith("# SkyRL 0.5.0\n# names of pull request 2244 (commit f16f5eae)")
    assert yaml.safe_load(text) == {"trainer": {"algorithm": {
        "policy_loss_type": "reinforce",
        "off_policy_correction": {"tis_ratio_type": None},
        "score_centering": {"enabled": True, "top_k": 32, "tail_eps": 1e-6},
    }}}  # fmt: skip
    band = yaml.safe_load(export(BAND, "SkyRL", CENTERED))["trainer"]["algorithm"]
    assert (band["policy_loss_type"], band["eps_clip_low"], band["eps_clip_high"]) == ("rollout_is", 0.5, 4.0)
    for config, why in ((TOKEN, "it refuses tis_ratio_type"), (CAPPED, "outside a band around 1 to 0")):
        with pytest.raises(UsageError, match=rf"{why}; nearest: "):
            export(config, "SkyRL", CENTERED)


def test_skyrl_reads_the_switch_as_a_part_of_the_loss() -> None:
    with pytest.raises(UsageError, match="belongs to the loss: leave it out, and set LossConfig"):
        from_skyrl(yaml.safe_load(export(GRADIENT, "SkyRL", CENTERED)))
    for config in (GRADIENT, BAND):
        assert from_skyrl_with_loss(yaml.safe_load(export(config, "SkyRL", CENTERED))) == (config, CENTERED)
    for other, message in (
        ({"policy_loss_type": "regular"}, "SkyRL centers the scores of reinforce and rollout_is"),
        ({"policy_loss_type": "reinforce", "tis_ratio_type": "token"}, "refuses a weight or a mask"),
    ):
        with pytest.raises(UsageError, match=message):
            from_skyrl_with_loss({"score_centering": {"enabled": True}, **other})
    off = {"algorithm": {"score_centering": {"enabled": False, "top_k": 64}, "use_tis": False}}
    assert from_skyrl(off) == CorrectionConfig()


def test_prime_rl_main_centers_the_scores_of_ipo() -> None:
    """Check configs/trainer.py of the main branch: a switch of IPO, whose eps 1 keeps every token."""
    text = export(CAPPED, "prime-rl", CENTERED)
    assert text.splitlines()[0] == "# prime-rl main"
    assert text.splitlines()[1].startswith("# score_centering needs truncated sampling: orchestrator.train.sampling")
    table = tomllib.loads(text)["trainer"]["loss"]
    assert table == {"type": "ipo", "eps": 1.0, "max_importance_ratio": 2.0, "score_centering": True}
    rule = RejectionRule.named("token_prob_diff", lower=-0.3, upper=0.3)
    ipo = CorrectionConfig(
        bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_threshold=1e4, rollout_rs=(rule,)
    )
    assert to_prime_rl(ipo, CENTERED)["eps"] == 0.3
