"""A configuration that was pasted on the bench: the page shows it, or says why it cannot."""

import pytest
from app_pages import committed, one_scan, open_app, said
from app_runs import PROJECT
from streamlit.testing.v1 import AppTest

from rlcorr import PRESETS, CorrectionConfig

__all__ = ["committed", "one_scan"]  # fixtures
BENCH = "views/bench.py"
BLOCK = "algorithm:\n  rollout_correction:\n    "
MASKED = f"{BLOCK}rollout_is: token\n    rollout_is_threshold: 0.5_4.0\ntrainer: {{lr: 1.0e-6}}"


def paste(at: AppTest, text: str) -> AppTest:
    at.text_area("pasted_text").set_value(text)
    return next(button for button in at.button if button.label == "Show it on this page").click().run()


@pytest.fixture
def bench(committed: None) -> AppTest:
    at = open_app(BENCH, run="kv_fp8_e5m2")
    at.session_state["paste"] = True
    return at.run()


def test_the_page_shows_what_was_pasted_and_says_what_was_read(bench: AppTest) -> None:
    at = paste(bench, MASKED)
    assert (at.query_params["preset"], at.query_params["is_upper"]) == ("decoupled_token_icepop", "4")
    assert "is_lower" not in at.query_params  # the preset's own number
    assert "rollout_is_threshold = 0.5_4.0: bound on the weights" in said(at) + "".join(code.value for code in at.code)
    assert "Ignored: 1 key is not about the correction: trainer.lr." in said(at)


def test_a_wrong_text_gets_one_sentence_and_changes_nothing(bench: AppTest) -> None:
    at = paste(paste(bench, MASKED), f"{BLOCK}rollout_iss: token")
    assert "Did you mean 'rollout_is'?" in said(at)
    assert at.query_params["is_upper"] == "4"


def test_a_correction_without_controls_is_given_as_python(bench: AppTest) -> None:
    """Token weights without an upper bound but with a lower one: no preset has them, so no slider does."""
    mode = "vllm_importance_sampling"
    at = paste(bench, f"GRPOConfig({mode}_mode='token_mask', {mode}_clip_max=None, {mode}_clip_min=0.5)")
    assert "preset" not in at.query_params
    assert at.warning
    assert "rollout_is_threshold=math.inf" in "".join(code.value for code in at.code)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "app")
    from data.configuration import FIRST, configuration, values_of

    preset = PRESETS[name]
    values = values_of(preset.config, score_centering=preset.loss.score_centering, system=preset.system)
    assert values is not None
    assert configuration(values, FIRST) == preset.config
    assert PRESETS[values["preset"]].loss.score_centering == preset.loss.score_centering


def test_changed_numbers_keep_the_preset_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "app")
    from data.configuration import values_of

    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.5)
    for system, preset in {"verl": "decoupled_token_is", "SkyRL": "skyrl_token_tis"}.items():
        assert values_of(config, score_centering=False, system=system) == {"preset": preset, "is_upper": 2.5}
