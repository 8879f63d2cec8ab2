"""Files that the systems' own code wrote (by tests/peers/dump_files.py). Every field that says which tokens or rewards
count is used, or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pair_files import jsonl, npz, parquet, read_pairs, real, refused

from rlcorr.foreign.stream import pair_batches
from rlcorr.records.step_files import StepRecord

DUMPS = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"
# The log-probs that tests/peers/dump_files.py put into each file.
ROLLOUT, OLD = [[-0.5, -1.0, -2.0], [-0.25, -0.75]], [[-0.75, -0.5, -2.5], [-0.125, -1.5]]


def dumped(name: str) -> StepRecord:
    return read_pairs(name, (DUMPS / name).read_bytes())


def token(record: StepRecord, name: str) -> list[list[float]]:
    return real(record.batch.tensors()[name], record)


def test_nemo_rl_with_dynamic_sampling_has_the_rewards_of_what_it_trains_on() -> None:
    record = dumped("nemo_rl/train_data_step12.jsonl")
    assert (token(record, "rollout_log_probs"), token(record, "old_log_probs")) == (ROLLOUT, OLD)
    assert record.batch.tensors()["rewards"].tolist() == [1.0, 0.5]  # `rewards` in the file: 0, 1, 1, 0


def test_prime_rl_leaves_out_what_its_rl_loss_leaves_out() -> None:
    """Check a distilled response, the second of rank 0: loss_mask counts its tokens, rl_weights does not."""
    record = dumped("prime_rl/token_exports/step_3/rank_0.jsonl")
    assert token(record, "rollout_log_probs") == [ROLLOUT[0], []]
    assert token(record, "advantages") == [[1.0] * 3, []]


def test_prime_rl_where_nothing_is_trained_by_the_rl_loss() -> None:
    path = DUMPS / "prime_rl/token_exports/step_3/rank_1.jsonl"
    assert "holds no tokens that count" in refused(path.name, path.read_bytes())
    assert "rl_weights" in refused(path.name, path.read_bytes())


TODAY = "prime_rl_today/shared/run_a/token_exports/step_3/rank_0.jsonl"


def test_prime_rl_of_today_says_it_in_losses() -> None:
    """Check tokens that loss_mask counts and the RL loss does not: one of the first response, all of the second.

    Both are of step 3 of their run, in steps 7 and 8 of a trainer that several runs share. The reward is repeated for
    every token."""
    record = dumped(TODAY)
    assert token(record, "rollout_log_probs") == [[-0.5, -2.0], []]
    assert token(record, "old_log_probs") == [[-0.75, -2.5], []]
    assert token(record, "response_ids") == [[6, 8], []]
    assert record.batch.tensors()["rewards"].tolist() == [0.5, 1.5]
    assert record.step == 3


def test_losses_of_prime_rl_that_are_no_losses() -> None:
    line = json.loads((DUMPS / TODAY).read_text().splitlines()[0])
    odd = line | {"losses": [1, *line["losses"][1:]]}
    assert "object of losses per token; got 1" in refused("x.jsonl", jsonl([odd]))


def test_slime_has_the_rewards_before_their_group_is_taken_off() -> None:
    record = dumped("slime/4.pt")
    assert token(record, "rollout_log_probs") == [ROLLOUT[0], ROLLOUT[1][:1]]  # by loss_masks
    assert token(record, "old_log_probs") == [OLD[0], OLD[1][:1]]
    assert record.batch.tensors()["rewards"].tolist() == [1.0, 0.0]
    assert token(record, "response_ids") == [[6, 7, 8], [9]]
    assert record.batch.tensors()["prompt_ids"].tolist() == [[3, 4], [0, 5]]
    assert record.step == 4


def test_skyrl_counts_what_its_loss_counts() -> None:
    """Check a tool's answer (the middle token) and padding (the third row): only loss_mask is 0 for both."""
    record = dumped("skyrl/global_step_7_training_input.pkl")
    assert token(record, "rollout_log_probs") == [[-0.5, -2.0], [-0.25, -0.75], []]
    assert token(record, "old_log_probs") == [[-0.75, -2.5], [-0.125, -1.5], []]
    assert token(record, "advantages") == [[1.0, 1.0], [-1.0, -1.0], []]
    assert token(record, "response_ids") == [[6, 8], [9, 10], []]
    tensors = record.batch.tensors()
    prompts = [ids[mask].tolist() for ids, mask in zip(tensors["prompt_ids"], tensors["prompt_mask"], strict=True)]
    assert prompts[:2] == [[3, 4], [5]]


def test_trl_leaves_out_what_a_tool_answered() -> None:
    """Check the batch that TRL 1.16 made of a generation with env_mask (by trl_recorded.py).

    tool_mask is 1 on padding. The loss (grpo_trainer.py:3027) runs over completion_mask × tool_mask."""
    record, theirs = dumped("trl/inputs.npz"), np.load(DUMPS / "trl/inputs.npz")
    counts = theirs["completion_mask"] * theirs["tool_mask"] == 1
    assert 0 < counts.sum() < theirs["completion_mask"].sum()
    for ours, name in (
        ("rollout_log_probs", "sampling_per_token_logps"),
        ("old_log_probs", "old_per_token_logps"),
        ("response_ids", "completion_ids"),
    ):
        rows = [row[mask].tolist() for row, mask in zip(theirs[name], counts, strict=True)]
        assert token(record, ours) == rows
    advantages = [[float(x)] * int(n) for x, n in zip(theirs["advantages"], counts.sum(-1), strict=True)]
    assert token(record, "advantages") == advantages


def test_verl_after_its_own_correction() -> None:
    """Refuse verl's corrected batch: response_mask has lost its rejected tokens (0.9.1, rollout_corr_helper.py)."""
    arrays = {name: np.full((1, 2), -1.0) for name in ("rollout_log_probs", "old_log_probs", "rollout_is_weights")}
    said = refused("batch.npz", npz(**arrays, response_mask=np.ones((1, 2))))
    assert "has a column rollout_is_weights: verl's correction has acted on this batch" in said


# --- columns of no particular system ---

PAIR = {"rollout_log_probs": [-1.0, -2.0], "old_log_probs": [-1.0, -2.0]}


@pytest.mark.parametrize("name", ["sample_mask", "loss_weights", "mask", "my_masks", "importance_weight"])
def test_what_may_count_and_is_not_understood_is_refused_by_name(name: str) -> None:
    assert f"{name!r} may say which tokens count" in refused("x.jsonl", jsonl([PAIR | {name: [1, 0]}]))


@pytest.mark.parametrize(
    "name", ["attention_mask", "pixel_attention_mask", "ce_weights", "is_masked", "weight_version"]
)
def test_what_is_about_other_things_is_not(name: str) -> None:
    assert read_pairs("x.jsonl", jsonl([PAIR | {name: [1, 1] if name != "weight_version" else 1}]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rl_weights": [0.5, 1]}, "rl_weights must hold 0 and 1, which say whether a token counts; got 0.5"),
        ({"tool_mask": [0]}, "tool_mask has 1 values"),
        ({"tool_mask": [0], "response_mask": [1, 1]}, "tool_mask must have the shape of response_mask"),
        ({"tool_mask": 1}, "tool_mask must hold a list of numbers per row"),
        ({"tool_mask": [0, 0]}, "holds no tokens that count"),
    ],
)
def test_a_mask_that_is_none(more: dict[str, Any], said: str) -> None:
    assert said.replace("tool_mask has", "response_mask has") in refused("x.jsonl", jsonl([PAIR | more]))


def test_a_file_that_is_only_measured_counts_the_same_tokens(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(parquet(**{name: [row] for name, row in PAIR.items()}, tool_mask=[[0, 1]]))
    (batch,) = pair_batches([file], advantages=False)
    assert batch.rollout_log_probs[batch.response_mask].tolist() == [-2.0]


# --- the lines that a refusal prints ---


def line_of(said: str) -> str:
    """Return the text between backquotes."""
    return said.split("`")[1]


def test_the_line_for_arrays_of_skyrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the line that needs SkyRL's classes on a plain dict of tensors instead."""
    said = refused("batch.pickle", b"\x80\x04\x95 skyrl_train.training_batch")
    file, masks = tmp_path / "batch.pkl", {"loss_mask": torch.tensor([[1.0, 1.0]])}
    torch.save({name: torch.tensor([row]) for name, row in PAIR.items()} | masks | {"values": None}, file)
    run(line_of(said).replace("pickle.load(open(FILE, 'rb'))", "torch.load(FILE)"), file, tmp_path, monkeypatch)


def test_the_line_for_arrays_of_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = refused("batch.pkl", b"\x80\x04\x95 verl.protocol DataProto")
    run(line_of(said), tmp_path / "batch.pkl", tmp_path, monkeypatch)


class DataProto:
    """The part of verl's DataProto that the line uses; `make peers` runs the real one."""

    batch = {name: torch.tensor([row]) for name, row in PAIR.items()} | {"response_mask": torch.ones(1, 2)}

    @staticmethod
    def load_from_disk(_: Path) -> "DataProto":
        return DataProto()


def run(line: str, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the line as a user would, and read its file."""
    monkeypatch.chdir(folder)
    exec(line, {"numpy": np, "torch": torch, "json": json, "DataProto": DataProto, "FILE": file})
    record = read_pairs("pairs.npz", (folder / "pairs.npz").read_bytes())
    assert token(record, "rollout_log_probs") == [PAIR["rollout_log_probs"]]
