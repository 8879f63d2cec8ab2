"""What is left out and counted on request: answers without log-probs on one side, and tokens whose engine log-prob is
NaN (TRL gives them a ratio of 1). Each refusal says how to ask."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pair_files import jsonl, npz, parquet, read_pairs, refused

from rlcorr.analysis.triage import triage
from rlcorr.command.cli import run_verb
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import import_files
from rlcorr.measuring.measure import evaluate
from rlcorr.records import runs

OLD = [-0.5, -0.4, -0.3, -0.2]
WITH = {"rollout_log_probs": OLD, "old_log_probs": [-0.5, -0.41, -0.3, -0.2]}


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- answers ---

ABORTED = [
    {"rollout_log_probs": None, "old_log_probs": OLD},
    {"rollout_log_probs": [], "old_log_probs": OLD},
    {"old_log_probs": OLD},
    {"rollout_log_probs": None, "old_log_probs": None},
    {"rollout_log_probs": [None] * 4, "old_log_probs": OLD},
    {"rollout_log_probs": OLD, "old_log_probs": None},
]
PAIRS = {json.dumps(row): [WITH | {"reward": 1.0}, row | {"reward": 0.0}] for row in ABORTED}
FILES = {
    **{f"{row}.jsonl": jsonl(rows) for row, rows in PAIRS.items()},
    **{
        f"{row}.parquet": parquet(pa.list_(pa.float32()), **{name: [row.get(name) for row in rows] for name in rows[0]})
        for row, rows in PAIRS.items()
    },
    "names of others.jsonl": jsonl(
        [{"sglang_logprobs": OLD, "trainer_logprobs": OLD, "reward": 1.0}, {"trainer_logprobs": OLD, "reward": 0.0}]
    ),
    "arrays, one step for the file.npz": npz(
        rollout_log_probs=np.array([OLD, [np.nan] * 4]), old_log_probs=np.array([OLD, OLD]),
        response_mask=np.ones((2, 4), bool), reward=np.array([1.0, 0.0]), step=np.array(7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_row_without_log_probs_is_left_out_and_counted_on_request(name: str) -> None:
    said = refused(name, FILES[name])
    assert "row 1" in said
    assert "--leave-out-aborted leaves out the rows" in said
    record = read_pairs(name, FILES[name], leave_out_aborted=True)
    assert record.aborted == 1
    assert record.batch.response_mask.tolist() == [[True] * 4]
    assert record.batch.tensors()["rewards"].tolist() == [1.0]


def test_import_says_how_many_rows_were_aborted(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer without a token on both sides is no fault, and stays."""
    empty = {"rollout_log_probs": [], "old_log_probs": []}
    steps = [row | {"step": 1 + index // 4} for index, row in enumerate([WITH, empty, *ABORTED, WITH])]
    (local / "b.jsonl").write_bytes(jsonl(steps))
    assert run_verb(["import", "b.jsonl", "--run", "mine", "--leave-out-aborted"]) == 0
    said = "6 of 9 responses have no log-prob on one side, as after an abort, and are left out."
    assert said in " ".join(capsys.readouterr().out.split())
    assert runs.read_manifest(runs.LOCAL / "mine").story.endswith(said)
    with pytest.raises(UsageError, match=r"b\.jsonl.: in every row one side has no log-prob"):
        read_pairs("b.jsonl", jsonl(ABORTED), leave_out_aborted=True)


# --- tokens ---

WITHOUT = {"rollout_log_probs": [None] * 4, "old_log_probs": OLD}
ROWS = [WITHOUT] * 3 + [WITH]
"""12 of 16 tokens have no log-prob of the engine; of the other four one differs, by 0.01: mean |d| is 0.01/4."""
SAID = "12 of 16 tokens have no log-prob of the engine"


def arrays(shape: tuple[int, ...], **more: np.ndarray) -> bytes:
    old = np.array([OLD] * 3 + [WITH["old_log_probs"]], np.float32)
    return npz(rollout_log_probs=ROLLOUT.reshape(shape), old_log_probs=old.reshape(shape), **more)


ROLLOUT = np.full((4, 4), np.nan, np.float32)
ROLLOUT[3] = OLD
FORMS = {
    "a.jsonl": jsonl(ROWS),
    "a.npz": arrays((4, 4), response_mask=np.ones((4, 4), bool)),
    "flat.npz": arrays((16,), lengths=np.full(4, 4)),
}


def test_numbers_are_over_the_tokens_that_have_both() -> None:
    for name, content in FORMS.items():
        batch = read_pairs(name, content, nan_is_ratio_one=True).batch
        numbers = evaluate(batch, CorrectionConfig())[1]
        assert numbers["rollout_corr/abs_log_ratio"] == pytest.approx(0.0025, rel=1e-5), name
        assert numbers["rollout_corr/tokens"] == 4, name
        assert batch.tensors()["unpaired_tokens"].tolist() == [4, 4, 4, 0], name
        with pytest.raises(UsageError, match="rollout_log_probs is NaN or null"):
            read_pairs(name, content)


def test_masked_places_and_whole_files_are_not_counted() -> None:
    """Ignore a NaN outside the mask, and record no count for a file without NaN."""
    masked = WITH | {"rollout_log_probs": [-0.5, None, None, -0.2], "response_mask": [1, 1, 0, 1]}
    batch = read_pairs("a.jsonl", jsonl([masked]), nan_is_ratio_one=True).batch
    assert batch.tensors()["unpaired_tokens"].tolist() == [1]
    assert batch.response_mask.tolist() == [[True, True]]
    assert read_pairs("a.jsonl", jsonl([WITH]), nan_is_ratio_one=True).batch.unpaired_tokens is None


def test_what_the_trainer_lacks_is_refused() -> None:
    lacking = WITHOUT | {"old_log_probs": [-0.5, None, -0.3, -0.2]}
    with pytest.raises(UsageError, match=r"row 1, token 1 \(from 0\): old_log_probs is NaN or null"):
        read_pairs("a.jsonl", jsonl([WITH, lacking]), nan_is_ratio_one=True)
    with pytest.raises(UsageError, match="none of the 8 tokens that count has a log-prob of the engine"):
        read_pairs("a.jsonl", jsonl([WITHOUT, WITHOUT]), nan_is_ratio_one=True)


def test_the_verdict_is_not_that_of_the_few_that_are_left() -> None:
    batch = read_pairs("a.jsonl", jsonl(ROWS), nan_is_ratio_one=True).batch
    (symptom,) = triage(batch)
    assert (symptom.pattern, symptom.strength) == ("not finite", 0.75)
    assert SAID in symptom.sentence
    few = batch.replace(unpaired_tokens=torch.tensor([0, 0, 0, 1]))
    assert [one.pattern for one in triage(few)] == ["precision", "not finite"]


def test_import_report_and_threshold_say_how_many(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (local / "a.jsonl").write_bytes(jsonl(ROWS))
    for code, words in (
        (0, ["import", "a.jsonl", "--run", "mine", "--nan-is-ratio-one"]),
        (0, ["report", "mine"]),
        (1, ["threshold", "mine", "--preset", "decoupled_token_is"]),  # most of the batch is not there
    ):
        assert run_verb(words) == code
        printed = " ".join(capsys.readouterr().out.split())
        assert SAID in printed, words
        assert "Not finite: " in printed, words
        assert "precision" not in printed, words
    run = local / "local" / "mine"
    assert SAID in runs.read_manifest(run).story
    (row,) = runs.read_metrics(run)
    assert row["unpaired_tokens"] == 12
    assert row["rollout_corr/abs_log_ratio"] == pytest.approx(0.0025, rel=1e-5)


def test_the_count_is_in_the_step_and_outlives_another_import(local: Path) -> None:
    (local / "a.jsonl").write_bytes(jsonl(ROWS))
    made = import_files([local / "a.jsonl"], local / "first", nan_is_ratio_one=True)
    assert (made.tokens, made.unpaired) == (4, 12)
    (file,) = (local / "first" / "steps").iterdir()
    assert pq.read_table(file)["unpaired_tokens"].to_pylist() == [4, 4, 4, 0]
    assert import_files([file], local / "second").unpaired == 12
    (local / "b.jsonl").write_bytes(jsonl([WITH]))
    import_files([local / "b.jsonl"], local / "third", nan_is_ratio_one=True)
    (file,) = (local / "third" / "steps").iterdir()
    assert (
        "unpaired_tokens" not in pq.read_table(file).column_names
    )  # as before: the format of a whole step is the same
