"""The verb `config`: what it prints, and one sentence for what it cannot read."""

import io
import sys
from pathlib import Path

import pytest

from rlcorr.command.cli import main, run_verb


def test_a_file_becomes_the_correction_and_says_what_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "trainer: {lr: 1}\nalgorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 3.5}}\n"
    )
    assert run_verb(["config", str(file)]) == 0
    assert capsys.readouterr().out == (
        "# verl\nfrom rlcorr import CorrectionConfig\n\nconfig = CorrectionConfig(\n    rollout_is='token',\n"
        "    rollout_is_threshold=3.5,\n)\n\nRead:\n"
        "  algorithm.rollout_correction.rollout_is = token: level of the weights\n"
        "  algorithm.rollout_correction.rollout_is_threshold = 3.5: bound on the weights; a pair sets weights outside "
        "it to 0\nIgnored: 1 key is not about the correction: trainer.lr.\n"
    )


def test_a_preset_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "--vllm_importance_sampling_mode sequence_mask --a 1 --b 2 --c 3 --d 4 --e 5 --f 6"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run_verb(["config", "-", "--system", "trl"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# TRL; equal to the preset trl_sequence_mask\nfrom rlcorr import preset\n")
    assert out.endswith("Ignored: 6 keys are not about the correction: a, b, c, d, e, ….\n")


def test_a_loss_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text("bypass_mode: true\nloss_type: reinforce\nscore_centering: true\n")
    assert run_verb(["config", str(file)]) == 0
    out = capsys.readouterr().out
    assert 'preset("bypass_pg_sc")\nloss = LossConfig(score_centering=True)\n' in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"rollout_is: tokens", "unknown rollout_is of verl"), (b"\xff\xfe", "is not text in UTF-8"), (None, "No such")],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    file = tmp_path / "wrong"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main(["config", str(file)])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
