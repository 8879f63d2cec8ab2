"""The same pairs in every shape and format, and the record that is read from them."""

import math
from pathlib import Path

import pytest
import torch
from pair_files import FILES, MASK, OLD, ROLLOUT, jsonl, read_pairs, real, rows

from rlcorr import TokenBatch
from rlcorr.command.cli import main
from rlcorr.foreign.to_record import ENABLES, fill_missing, missing
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord, from_step


@pytest.mark.parametrize("name", FILES)
def test_the_same_pairs_from_every_file(name: str) -> None:
    record = read_pairs(name, FILES[name])
    batch = record.batch
    assert batch.old_log_probs is not None
    assert real(batch.rollout_log_probs, record) == ROLLOUT
    assert real(batch.old_log_probs, record) == OLD
    assert batch.response_mask.tolist() == [[bool(x) for x in row] for row in MASK]  # from column 0, without holes
    assert (batch.rollout_log_probs[~batch.response_mask] == 0).all()
    assert {x.dtype for x in (batch.rollout_log_probs, batch.old_log_probs)} == {torch.float32}
    assert (record.step, record.prompts, record.responses) == (1, [""] * 4, [""] * 4)
    assert set(batch.tensors()) - {"group_ids", "turn_ids"} == {"response_mask", "rollout_log_probs", "old_log_probs"}
    assert record.notes == ()


# --- what else there may be ---

ADVANTAGES = [[1.0, -1.0, 0.5], [2.0], [], [0.0, -0.5]]
IDS = [[5, 6, 7], [8], [], [9, 10]]
PROMPTS = [[1, 2], [3], [4, 5, 6], [1]]


def test_everything_else_that_a_file_may_hold() -> None:
    more = {
        "advantages": ADVANTAGES, "values": ROLLOUT, "ref_log_probs": OLD, "log_probs": OLD, "returns": ADVANTAGES,
        "sampled_log_probs": OLD,
        "reward": [1, 0.5, 0, -1], "group_id": [7, 7, 9, 9], "policy_version": [0, 0, 1, 1], "prompt_ids": PROMPTS,
        "response_ids": IDS, "prompt": ["a", "<b>bold</b>", "c\x00", "π"], "step": [12] * 4,
        "response": ["d", "", "e", "\n"],
    }  # fmt: skip
    record = read_pairs("x.jsonl", jsonl(rows(**more)))
    batch = record.batch.tensors()
    expected = {"advantages": ADVANTAGES, "values": ROLLOUT, "ref_log_probs": OLD, "sampled_log_probs": OLD}
    assert {name: real(batch[name], record) for name in expected} == expected
    assert real(batch["returns"], record) == ADVANTAGES
    assert real(batch["log_probs"], record) == OLD
    assert real(batch["response_ids"], record) == IDS
    assert batch["prompt_ids"].tolist() == [[0, 1, 2], [0, 0, 3], [4, 5, 6], [0, 0, 1]]
    assert batch["prompt_mask"].int().tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 1]]
    assert batch["rewards"].tolist() == [1, 0.5, 0, -1]
    assert batch["group_ids"].tolist() == [7, 7, 9, 9]
    assert batch["policy_versions"].tolist() == [0, 0, 1, 1]
    assert record.prompts == ["a", "<b>bold</b>", "c\x00", "π"]  # kept as data; the pages escape them
    assert (record.step, record.responses) == (12, ["d", "", "e", "\n"])
    assert missing(record).keys() == {"sketch"}


def test_one_number_per_response_may_come_in_other_shapes() -> None:
    """Read advantages per response, rewards (B, 1) or repeated per token, names of groups, and messages."""
    more = {
        "advantage": [1.5, -1, 0, 2], "rewards": [[1.0] * 3, [0.5], [2.0], [-1.0] * 2], "uid": ["x", "y", "x", "z"],
        "prompt": [[{"role": "user", "content": "é"}]] * 4,
    }  # fmt: skip
    record = read_pairs("x.jsonl", jsonl(rows(**more)))
    batch = record.batch.tensors()
    assert real(batch["advantages"], record) == [[1.5] * 3, [-1.0], [], [2.0] * 2]
    assert batch["rewards"].tolist() == [1, 0.5, 2, -1]
    assert batch["group_ids"].tolist() == [0, 1, 0, 2]
    assert record.prompts[0] == '[{"role": "user", "content": "é"}]'


def test_ids_of_prompt_and_response_together() -> None:
    """Read ids of both with log-probs of the response, and with log-probs of both and a mask."""
    both = [p + r for p, r in zip(PROMPTS, IDS, strict=True)]
    behind = read_pairs("x.jsonl", jsonl(rows(tokens=both)))
    mask = [[0] * len(p) + [1] * len(r) for p, r in zip(PROMPTS, IDS, strict=True)]
    full = [
        {"rollout_log_probs": [0.0] * len(p) + a, "old_log_probs": [0.0] * len(p) + b, "input_ids": ids, "loss_mask": m}
        for p, a, b, ids, m in zip(PROMPTS, ROLLOUT, OLD, both, mask, strict=True)
    ]
    along = read_pairs("x.jsonl", jsonl(full))
    for record in (behind, along):
        batch = record.batch.tensors()
        assert real(batch["rollout_log_probs"], record) == ROLLOUT
        assert real(batch["response_ids"], record) == IDS
        prompts = [ids[m].tolist() for ids, m in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
        assert prompts == ([*PROMPTS[:2], [], PROMPTS[3]] if record is along else PROMPTS)


def test_what_is_null_everywhere_is_not_there() -> None:
    """Ignore a column of nulls: prime-rl writes such advantages for samples that it does not reinforce."""
    record = read_pairs("x.jsonl", jsonl(rows(advantages=[[None] * 3, [None], [], [None] * 2], values=[None] * 4)))
    assert {"advantages", "values"} <= missing(record).keys()


# --- what a run holds ---


def awkward_step() -> StepRecord:
    """Return a step with every column, an empty response, and numbers that a conversion would change."""
    numbers = [-1e-45, -3.4028235e38, -0.99999994, -0.0, -math.inf, 0.009]
    mask = torch.tensor([[True] * 6, [False] * 6, [True] * 2 + [False] * 4])
    rollout = torch.where(mask, torch.tensor(numbers), 0)
    steady = torch.where(mask, -torch.rand(3, 6, generator=torch.Generator().manual_seed(0)), 0)
    rewards, prompt_mask = torch.tensor([0.1, math.nan, -2.0]), torch.tensor([[False, True], [True] * 2, [False] * 2])
    batch = TokenBatch(
        response_mask=mask, rollout_log_probs=rollout, old_log_probs=steady, ref_log_probs=steady * 2,
        advantages=steady.abs(), values=steady * 3, prompt_ids=torch.tensor([[0, 3], [1, 2], [0, 0]]).int(),
        prompt_mask=prompt_mask, group_ids=torch.tensor([0, 0, 1]).int(), rewards=rewards,
        response_ids=torch.where(mask, 4, 0).int(), policy_versions=torch.tensor([3, 3, 4]).int(),
    )  # fmt: skip
    return StepRecord(8, batch, ["p", "é", ""], ["<script>", "", "x"])


def assert_equal(got: StepRecord, want: StepRecord) -> None:
    """Compare all tensors bit for bit."""
    assert (got.step, got.prompts, got.responses) == (want.step, want.prompts, want.responses)
    ours, theirs = got.batch.tensors(), want.batch.tensors()
    assert sorted(ours) == sorted(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        bits = [x.view(torch.int32) if x.is_floating_point() else x for x in (tensor, theirs[name])]
        assert torch.equal(*bits), name


def test_what_rlcorr_writes_reads_back_bit_for_bit() -> None:
    step = awkward_step()
    assert_equal(read_pairs("step_000008.parquet", from_step(step)), step)


def test_a_committed_run_reads_back_bit_for_bit() -> None:
    run = runs.ROOT / "bf16"
    last = runs.list_steps(run)[-1]
    assert_equal(read_pairs("step.parquet", runs.step_path(run, last).read_bytes()), runs.read_step(run, last))


def test_responses_of_certain_tokens_are_no_padding_in_a_file_of_rlcorr() -> None:
    """Read two responses of equal length that end in tokens of probability 1: any other file would need a mask."""
    zero = torch.zeros(2, 3)
    sure = fill_missing(StepRecord(1, TokenBatch(zero == 0, zero, old_log_probs=zero), ["", ""], ["", ""]))
    assert_equal(read_pairs("x.parquet", from_step(sure)), sure)


def test_what_is_missing_is_said_before_and_after_it_is_recorded() -> None:
    record = read_pairs("lists.jsonl", FILES["lists.jsonl"])
    assert missing(record) == ENABLES
    again = read_pairs("x.parquet", from_step(fill_missing(record)))
    assert missing(again) == ENABLES
    assert real(again.batch.rollout_log_probs, again) == ROLLOUT
    with_some = read_pairs("x.jsonl", jsonl(rows(reward=[0] * 4, advantage=[0] * 4, response=["a"] * 4)))
    assert ENABLES.keys() - missing(with_some).keys() == {"rewards", "advantages", "responses"}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_import_makes_a_run(local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine <b>.jsonl"
    file.write_bytes(jsonl(rows(reward=[1, 0, 0, 0], step=[5] * 4)))
    assert call("import", str(file), "--run", "mine") == 0
    printed = capsys.readouterr().out
    first, second, *_ = printed.splitlines()  # what was read, so that a wrong file is seen before its verdict is read
    assert first == f"Read 4 responses, 6 tokens, 1 step: the run {local_runs / 'mine'} records it"
    assert "gap" in second
    assert "advantages" in printed
    assert "rewards" not in printed
    assert call("verify", "mine") == 0
    manifest = runs.read_manifest(local_runs / "mine")
    assert (manifest.status, manifest.engine) == ("complete", "unknown")
    assert manifest.story == "Imported from mine <b>.jsonl."
    (row,) = runs.read_metrics(local_runs / "mine")
    gaps = [o - r for a, b in zip(OLD, ROLLOUT, strict=True) for o, r in zip(a, b, strict=True)]
    assert row["rollout_corr/kl"] == pytest.approx(-sum(gaps) / len(gaps))
    assert (row["step"], row["reward"]) == (5, 0.25)
    step = runs.read_step(local_runs / "mine", 5)
    assert real(step.batch.rollout_log_probs, step) == ROLLOUT


def test_import_finds_a_name_and_refuses_others(local_runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(FILES["lists.jsonl"])
    assert [call("import", str(file), *name) for name in ([], [], ["--run", "taken"])] == [0, 0, 0]
    assert {path.name for path in local_runs.iterdir()} == {"imported_1", "imported_2", "taken"}
    before = sorted(tmp_path.rglob("*"))
    for name in ("../up", "a/b", "..", "taken"):
        assert call("import", str(file), "--run", name) == 2
        assert sorted(tmp_path.rglob("*")) == before


def test_import_of_no_file(local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("import", str(tmp_path / "none.jsonl")) == 2
    assert "none.jsonl is neither a file nor a folder" in capsys.readouterr().err
    (tmp_path / "x.pt").write_bytes(b"\x80\x02")
    assert call("import", str(tmp_path / "x.pt")) == 2
    assert "runs the code in it" in capsys.readouterr().err
    assert not local_runs.exists()
