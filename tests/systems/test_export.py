from typing import Any

import pytest
import yaml

import rlcorr
from rlcorr.config import CorrectionConfig
from rlcorr.presets import PRESETS, preset
from rlcorr.systems.export import exports, to_python
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
from rlcorr.systems.verl import from_verl, verl_text


@pytest.mark.parametrize("name", PRESETS)
def test_python_builds_the_same_configuration(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(to_python(preset(name)), scope)
    assert scope["config"] == preset(name)


def test_python_says_only_what_differs() -> None:
    config = rlcorr.preset("decoupled_k3_rs_token_tis")
    assert to_python(config) == (
        "from rlcorr import CorrectionConfig, RejectionRule\n"
        "\n"
        "config = CorrectionConfig(\n"
        "    rollout_is='token',\n"
        '    rollout_rs=(RejectionRule.named("seq_mean_k3", upper=0.01),),\n'
        ")"
    )
    assert to_python(CorrectionConfig()).endswith("config = CorrectionConfig()")


def test_yaml_is_read_back() -> None:
    config = preset("decoupled_seq_is_rs")
    content = yaml.safe_load(verl_text(config))
    assert from_verl(content["algorithm"]["rollout_correction"]) == config
    config = preset("skyrl_geo_mask")
    content = yaml.safe_load(skyrl_text(config))
    assert from_skyrl(content["trainer"]["algorithm"]["off_policy_correction"]) == config


def test_what_a_system_cannot_do_is_said() -> None:
    texts = {title: text for title, _, text in exports(preset("ms_swift_sequence_truncate"))}
    assert texts["verl"].startswith("# cannot be expressed: verl has no geometric weights")
    assert "geometric" in texts["Python"]
