"""Answers without log-probs on one side are left out and counted on request; the refusal says how to ask."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pair_files import jsonl, npz, parquet, read_pairs, refused

from rlcorr.command.cli import run_verb
from rlcorr.errors import UsageError
from rlcorr.records import runs

OLD = [-0.5, -0.4, -0.3, -0.2]
WHOLE = {"rollout_log_probs": OLD, "old_log_probs": [-0.5, -0.41, -0.3, -0.2]}
ABORTED = [
    {"rollout_log_probs": None, "old_log_probs": OLD},
    {"rollout_log_probs": [], "old_log_probs": OLD},
    {"old_log_probs": OLD},
    {"rollout_log_probs": None, "old_log_probs": None},
    {"rollout_log_probs": [None] * 4, "old_log_probs": OLD},
    {"rollout_log_probs": OLD, "old_log_probs": None},
]
ROWS = {json.dumps(row): [WHOLE | {"reward": 1.0}, row | {"reward": 0.0}] for row in ABORTED}
FILES = {
    **{f"{row}.jsonl": jsonl(rows) for row, rows in ROWS.items()},
    **{
        f"{row}.parquet": parquet(pa.list_(pa.float32()), **{name: [row.get(name) for row in rows] for name in rows[0]})
        for row, rows in ROWS.items()
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


def test_import_says_how_many_rows_were_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer without a token on both sides is no fault, and stays."""
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    empty = {"rollout_log_probs": [], "old_log_probs": []}
    steps = [row | {"step": 1 + index // 4} for index, row in enumerate([WHOLE, empty, *ABORTED, WHOLE])]
    (tmp_path / "b.jsonl").write_bytes(jsonl(steps))
    assert run_verb(["import", str(tmp_path / "b.jsonl"), "--run", "mine", "--leave-out-aborted"]) == 0
    said = "6 of 9 responses have no log-prob on one side, as after an abort, and are left out."
    assert said in " ".join(capsys.readouterr().out.split())
    assert runs.read_manifest(tmp_path / "mine").story.endswith(said)
    with pytest.raises(UsageError, match=r"b\.jsonl.: in every row one side has no log-prob"):
        read_pairs("b.jsonl", jsonl(ABORTED), leave_out_aborted=True)
