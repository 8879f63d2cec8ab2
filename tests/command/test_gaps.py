"""`python -m rlcorr gaps`, and its lines in the reports: the drawing is read back, and refusals are one sentence."""

from pathlib import Path

import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.published import gaps, rows
from rlcorr.command.cli import run_verb
from rlcorr.command.gaps import strip_lines
from rlcorr.errors import UsageError
from rlcorr.recorders import Recorder
from rlcorr.records import runs


def test_the_drawing_has_the_size_where_its_axis_says() -> None:
    """The cursor of 1e-2 stands below the label that begins with 1e-2, in every row."""
    axis, *drawn = strip_lines(1e-2, "k3")
    assert len(drawn) == len(rows())
    assert {line.index("|") for line in drawn} == {axis.index("1e-2")}
    widths = {len(line) for line in strip_lines(None, "k3")}
    assert max(widths) <= 118


def test_zero_has_no_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["gaps", "0"]) == 0
    told = capsys.readouterr().out
    assert "k3 is 0: both sides give the same log-probs" in told
    assert "cause" not in told
    assert "|" not in told


def test_without_a_size_every_gap_is_listed_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["gaps", "--measure", "abs"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for gap in gaps():
        if gap.abs and gap.abs[0] > 0:
            assert f"({gap.source})" in told, gap


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-1"], "must be at least 0"),
        (["nan"], "must be at least 0"),
        (["0.1", "--experts"], "--experts needs --format"),
        (["--format", "fp8_kv"], "--format needs a size"),
        (["0.1", "--format", "w8a8"], "no k3 with a known cause was measured for 8 bits on both sides"),
        (["0.1", "--format", "fp8"], "fp8 of what: fp8_weights, fp8_kv"),
        (["0.9", "--measure", "token_mult_prob_error"], r"at least 1 and finite; got 0\.9: it is a mean of e\^\|d\|"),
        (["0.999", "--measure", "ppl_ratio"], "use k3, which has less noise"),
        (["0", "--measure", "mean_ratio"], "mean_ratio must be above 0"),
        (["0.9", "--measure", "mean_ratio", "--format", "bf16"], "--format does not go with mean_ratio"),
        (["--measure", "ppl_ratio"], "needs a size: gaps are listed by k3 or by abs"),
        (["0.1", "--format", "nvfp8"], r"unknown number format 'nvfp8'\. Did you mean 'nvfp4'"),
    ],
)
def test_what_cannot_be_placed_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_verb(["gaps", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "0.04 --format fp8_weights --experts",
            "That is within the range measured with weights fp8, experts (0.0024 to 0.06).",
        ),
        ("0.04", "Measured causes of gaps of this size: a KV cache in fp8 (8e-4 to 0.038), weights in fp8"),
        ("0.001 --format bf16", "range measured with bfloat16 ("),
        # log 1.05 = 0.04879 and log 1.0121 = 0.01203, by hand; NeMo RL's issue 1801 has both
        (
            "1.05 --measure token_mult_prob_error",
            "1.05, not above the 1.05 from which NeMo RL's guide suspects a bug. Mean |d| is at most its logarithm, "
            "0.049; a few tokens with a large d make it much smaller. mean |d| is 0.049. It is larger than ",
        ),
        ("1.0121 --measure token_mult_prob_error --format bf16", "within the range measured with bfloat16 (0.004 to "),
        ("38565 --measure token_mult_prob_error", "38565, above the 1.05"),
        # verl#7242 prints both: ppl_ratio 1.00451 and k3_kl 0.00519
        ("1.00451 --measure ppl_ratio", "is a mean log-ratio of 0.0045. It estimates the same KL divergence as k3"),
        ("1.00451 --measure ppl_ratio", "k3 is 0.0045. It is larger than "),
        ("0.896 --measure mean_ratio", "gives 10.4 % of its probability to tokens that the engine cannot draw"),
        ("1.003 --measure mean_ratio", "1.003 says nothing about the size of the gap"),
        ("1.3 --measure mean_ratio", "1.3 is above 1, which is impossible on average"),
    ],
)
def test_measures_and_formats_are_placed(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["gaps", *words.split()]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    return tmp_path


def record(name: str, d: torch.Tensor) -> None:
    with Recorder(name) as recorder:
        rollout = torch.full(d.shape, -3.0)
        for step in range(2):
            recorder.add(step=step, batch=TokenBatch.from_log_probs(rollout + d, rollout, rollout < 0))


def test_the_reports_place_a_run_and_carry_its_threshold_over_lengths(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """d is ±0.2: k3 is (cosh 0.2) − 1 = 0.020067, and no ratio is within 5 %; every answer's mean is 0."""
    record("two", torch.tensor([[0.2, -0.2] * 15] * 3))
    run_verb(["report", str(local / "two")])
    reported = capsys.readouterr().out
    run_verb(["threshold", "two", "--preset", "decoupled_token_is", "--details"])
    chosen = capsys.readouterr().out
    run_verb(["import", str(local / "two" / "steps"), "--run", "again", "--details"])
    imported = capsys.readouterr().out
    for told in (reported, chosen, imported):
        assert "k3 is 0.02. It is larger than " in told
        assert [line.split() for line in told.splitlines() if line.startswith("±")] == [
            ["±0.1", "%", "0", "%", "100", "%"], ["±1", "%", "0", "%", "100", "%"], ["±5", "%", "0", "%", "100", "%"],
        ]  # fmt: skip
    assert "  first 10 tokens          100.00% kept" in chosen
    assert "  whole, up to 30          100.00% kept" in chosen


def test_equal_sides_are_not_placed(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("equal", torch.zeros(2, 8))
    run_verb(["report", str(local / "equal")])
    assert "measured gaps" not in capsys.readouterr().out
