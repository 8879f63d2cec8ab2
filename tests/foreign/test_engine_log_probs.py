"""Log-probs in the formats of the engines, and log-probs that bfloat16 rounded above 0."""

import math
from pathlib import Path
from typing import Any

import pytest
from pair_files import jsonl, parquet, read_pairs, real, refused

from rlcorr.command.cli import main
from rlcorr.command.report import measured_files
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.records import runs

SAMPLED, OLD, IDS = [[-0.5, -1.25], [-0.125]], [[-0.25, -1.5], [-0.0625]], [[12, 7], [3]]
BEST = {"logprob": -0.0625, "rank": 1, "decoded_token": "the"}  # of token 99, which was not sampled


def logprob(x: float) -> dict[str, Any]:
    return {"logprob": x, "rank": 2, "decoded_token": "a"}


def per_token(make: Any) -> list[list[Any]]:
    return [[make(x, i) for x, i in zip(row, ids, strict=True)] for row, ids in zip(SAMPLED, IDS, strict=True)]


FORMATS: dict[str, list[Any]] = {
    "vLLM, the sampled token alone": per_token(lambda x, i: {str(i): logprob(x)}),
    "vLLM, the best beside it": per_token(lambda x, i: {"99": BEST, str(i): logprob(x)}),
    "vLLM, plain numbers": per_token(lambda x, i: {"99": -0.0625, str(i): x}),
    "SGLang": per_token(lambda x, i: [x, i, None]),
    "SGLang with texts": per_token(lambda x, i: [x, i, "a"]),
    "OpenAI": [{"content": [{"token": "a", "logprob": x, "top_logprobs": []} for x in row]} for row in SAMPLED],
    "OpenAI's completions": [
        {"token_logprobs": row, "tokens": ["a"] * len(row), "text_offset": [0]} for row in SAMPLED
    ],
    "OpenAI's list": per_token(lambda x, i: {"token": "a", "logprob": x}),
}


def lines(log_probs: list[Any], **more: list[Any]) -> bytes:
    columns = {"rollout_log_probs": log_probs, "old_log_probs": OLD, **more}
    return jsonl([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def test_every_format_is_read() -> None:
    for case, log_probs in FORMATS.items():
        record = read_pairs("x.jsonl", lines(log_probs, response_ids=IDS))
        assert real(record.batch.rollout_log_probs, record) == SAMPLED, case
        assert real(record.batch.tensors()["response_ids"], record) == IDS, case
        if "beside" not in case and "plain" not in case:
            alone = read_pairs("x.jsonl", lines(log_probs))
            assert real(alone.batch.rollout_log_probs, alone) == SAMPLED, case


def test_every_format_in_turns_and_in_batches() -> None:
    """Read an object with two lists, as two responses and as two turns of one response."""
    for case, log_probs in FORMATS.items():
        row = {"rollout_log_probs": log_probs, "old_log_probs": OLD, "response_ids": IDS}
        batch = read_pairs("x.jsonl", jsonl([row | {"reward": [1.0, 0.0]}]))
        assert real(batch.batch.rollout_log_probs, batch) == SAMPLED, case
        turns = read_pairs("x.jsonl", jsonl([row | {"reward": 1.0}]))
        assert real(turns.batch.rollout_log_probs, turns) == [SAMPLED[0] + SAMPLED[1]], case


def test_what_does_not_say_which_token_was_sampled_is_refused() -> None:
    best = FORMATS["vLLM, the best beside it"]
    triples = FORMATS["SGLang"]
    for content, said in (
        (lines(best), "token 0 (from 0) of rollout_log_probs in line 1 holds 2 candidates (99, 12)"),
        (lines(best), "give response_ids"),
        (lines(best, response_ids=[[12], [3]]), "give response_ids, one per token"),
        (lines(best, response_ids=[[12, 8], [3]]), "token 1 (from 0) of rollout_log_probs in line 1 has no entry"),
        (lines(FORMATS["vLLM, the sampled token alone"], response_ids=[[12, 8], [3]]), "for the sampled token 8"),
        (lines(triples, response_ids=[[12, 8], [3]]), "is for token 7, but response_ids has 8 there"),
        (lines([[{"12": {"rank": 1}}, {"7": -1.0}], [{"3": -1.0}]]), "must be a log-prob; got"),
        (lines([[[None, 12, None], [-1.0, 7, None]], [[-1.0, 3, None]]]), "token 0 (from 0): rollout_log_probs is NaN"),
    ):  # fmt: skip
        assert said in refused("x.jsonl", content), said


def test_triples_and_lists_of_three_are_distinguished() -> None:
    """Refuse [x, 0, null]: it may be a triple of token 0, or two log-probs and a missing one."""
    row = {"rollout_log_probs": [[-0.5, 0, None], [-0.25, 0, None]], "old_log_probs": [-0.5, -0.25]}
    assert "may hold SGLang's triples [log-prob, token id, text], or lists" in refused("x.jsonl", jsonl([row]))
    lists = [[-0.5, -0.25, -1.0], [-0.25, 0, -0.125]]
    record = read_pairs("x.jsonl", jsonl([{"rollout_log_probs": lists, "old_log_probs": lists, "reward": [0.0, 1.0]}]))
    assert real(record.batch.rollout_log_probs, record) == lists


# --- a little above 0 ---

ABOVE = [[-0.5, 0.03125], [0.125]]
PARQUET = parquet(rollout_log_probs=ABOVE, old_log_probs=OLD)


def test_rounding_above_zero_becomes_zero_if_asked_for() -> None:
    for file, content in (("x.jsonl", lines(ABOVE)), ("x.parquet", PARQUET)):
        said = refused(file, content)
        assert said.startswith(f"{file!r}: row 0, token 1 (from 0), and at 1 more: rollout_log_probs must be")
        assert "got 0.03125, at most 0.125: if bfloat16 rounded them up, clamp_rounding (--clamp-rounding)" in said
        record = read_pairs(file, content, clamp_rounding=True)
        assert real(record.batch.rollout_log_probs, record) == [[-0.5, 0.0], [0.0]], file
    assert "got 0.25, at most 0.25: take the log" in refused("x.jsonl", lines([[-0.5, 0.25], [-0.5]]))
    with pytest.raises(UsageError, match=r"row 0, token 1 .* got 0\.25"):
        read_pairs("x.jsonl", lines([[-0.5, 0.25], [-0.5]]), clamp_rounding=True)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_option_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    (tmp_path / "x.parquet").write_bytes(PARQUET)
    assert call("report", str(tmp_path / "x.parquet")) == 2
    assert "x.parquet: row 0, token 1 (from 0)" in capsys.readouterr().err
    metrics = measured_files([tmp_path / "x.parquet"], preset("disabled"), clamp_rounding=True)
    gaps = [o - min(r, 0.0) for a, b in zip(OLD, ABOVE, strict=True) for o, r in zip(a, b, strict=True)]
    assert metrics["rollout_corr/kl"] == pytest.approx(-math.fsum(gaps) / len(gaps))


def test_threshold_of_a_run_with_a_log_prob_above_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Put the Parquet file of a trainer that does not check its log-probs into an imported run."""
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    (tmp_path / "x.parquet").write_bytes(PARQUET)
    assert call("import", str(tmp_path / "x.parquet"), "--run", "mine", "--clamp-rounding") == 0
    step = runs.read_step(tmp_path / "local" / "mine", 1)
    above = step.batch.replace(
        rollout_log_probs=step.batch.rollout_log_probs.masked_fill(step.batch.response_mask, 0.03125)
    )
    monkeypatch.setattr(
        runs, "read_step", lambda run, number: runs.StepRecord(number, above, step.prompts, step.responses)
    )
    capsys.readouterr()
    assert call("threshold", "mine") == 2
    assert "rollout_log_probs must be" in capsys.readouterr().err
