"""Score centering in the texts of the systems: it is written or refused, and never lost."""

import pytest

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import SYSTEMS, export, exports
from rlcorr.systems.nemo_rl import NEEDS, from_nemo_rl, nemo_rl_text, to_nemo_rl
from rlcorr.systems.prime_rl import to_prime_rl
from rlcorr.systems.torchtitan import to_torchtitan
from rlcorr.systems.trl import to_trl

CENTERED = LossConfig(score_centering=True)
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
BYPASS = CorrectionConfig(bypass_mode=True)


def text_or_refusal(config: CorrectionConfig, system: str, version: str | None) -> str:
    """Return the text, or the message of the error."""
    try:
        return export(config, system, CENTERED, version=version)
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("config", [TOKEN, BYPASS], ids=["decoupled", "bypass"])
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
    assert "0.5.0 centers the scores of compatible losses by default" in texts["SkyRL"]
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
