"""Files that the systems' own code wrote (by tests/peers/dump_files.py of commit dc1e367), and files that are none of
them. Every field that says which tokens or rewards count is used, or refused by name."""

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
# The log-probs that the script put into each file.
ROLLOUT, OLD = [[-0.5, -1.0, -2.0], [-0.25, -0.75]], [[-0.75, -0.5, -2.5], [-0.125, -1.5]]


def dumped(name: str) -> StepRecord:
    return read_pairs(name, (DUMPS / name).read_bytes())


def token(record: StepRecord, name: str) -> list[list[float]]:
    return real(record.batch.tensors()[name], record)


PRIME_RL = "prime_rl/token_exports/step_3/rank_0.jsonl"
TODAY = "prime_rl_today/shared/run_a/token_exports/step_3/rank_0.jsonl"
READ: dict[str, dict[str, Any]] = {
    # With dynamic sampling: the rewards of what it trains on; `rewards` in the file are 0, 1, 1, 0.
    "nemo_rl/train_data_step12.jsonl": {
        "rollout_log_probs": ROLLOUT, "old_log_probs": OLD, "advantages": [[1.0] * 3, [-1.0] * 2],
        "response_ids": [[6, 7, 8], [9, 10]], "prompts": [[3, 4], [5]], "rewards": [1.0, 0.5], "step": 12,
    },
    # The second response is distilled: loss_mask counts its tokens, rl_weights does not.
    PRIME_RL: {
        "rollout_log_probs": [ROLLOUT[0], []], "old_log_probs": [OLD[0], []], "advantages": [[1.0] * 3, []],
        "response_ids": [[6, 7, 8], []], "step": 3,
    },
    # loss_mask counts one token of the first response and all of the second that the RL loss does not. Both are of step
    # 3 of their run, in steps 7 and 8 of a trainer that several runs share. The reward is repeated for every token.
    TODAY: {
        "rollout_log_probs": [[-0.5, -2.0], []], "old_log_probs": [[-0.75, -2.5], []], "response_ids": [[6, 8], []],
        "rewards": [0.5, 1.5], "step": 3,
    },
    # By loss_masks; the rewards before their group is taken off.
    "slime/4.pt": {
        "rollout_log_probs": [ROLLOUT[0], ROLLOUT[1][:1]], "old_log_probs": [OLD[0], OLD[1][:1]],
        "response_ids": [[6, 7, 8], [9]], "prompts": [[3, 4], [5]], "rewards": [1.0, 0.0], "step": 4,
    },
}  # fmt: skip
"""File → what is read from it."""


@pytest.mark.parametrize("name", READ)
def test_what_a_dump_says(name: str) -> None:
    record, expected = dumped(name), dict(READ[name])
    tensors = record.batch.tensors()
    assert record.step == expected.pop("step")
    if prompts := expected.pop("prompts", None):
        ids = zip(tensors["prompt_ids"], tensors["prompt_mask"], strict=True)
        assert [row[mask].tolist() for row, mask in ids][: len(prompts)] == prompts
    for field, values in expected.items():
        got = tensors[field].tolist() if field == "rewards" else token(record, field)
        assert got == values, field


def test_prime_rl_where_nothing_is_trained_by_the_rl_loss() -> None:
    path = DUMPS / "prime_rl/token_exports/step_3/rank_1.jsonl"
    assert "holds no tokens that count" in refused(path.name, path.read_bytes())
    assert "rl_weights" in refused(path.name, path.read_bytes())


@pytest.mark.parametrize(
    ("name", "column", "values", "said"),
    [
        (TODAY, "losses", [1], "a JSON list with an object per token; got '[1, {"),
        (PRIME_RL, "trainer_logprobs", [None, None, -1.0, None], "row 0, token 3 (from 0): old_log_probs is NaN"),
    ],
)
def test_columns_of_prime_rl_that_are_damaged(name: str, column: str, values: list[Any], said: str) -> None:
    line = json.loads((DUMPS / name).read_text().splitlines()[0])
    assert said in refused("x.jsonl", jsonl([line | {column: values + line[column][len(values) :]}]))


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


def test_skyrl() -> None:
    """Read the arrays of a TrainingInputBatch. For a tool's answer and for padding only loss_mask is 0."""
    rollout, old = [[-0.5, -1.0, -2.0], [0.0, -0.25, -0.75]], [[-0.75, -0.5, -2.5], [0.0, -0.125, -1.5]]
    content = npz(
        sequences=np.array([[3, 4, 6, 7, 8], [0, 3, 4, 9, 10]]), response_mask=np.array([[1, 1, 1], [0, 1, 1]]),
        loss_mask=np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), rollout_logprobs=np.array(rollout),
        action_log_probs=np.array(old), advantages=np.array([[1.0] * 3, [-1.0] * 3]),
    )  # fmt: skip
    record = read_pairs("global_step_7.npz", content)
    assert record.step == 7
    assert token(record, "rollout_log_probs") == [[-0.5, -2.0], [-0.25, -0.75]]
    assert token(record, "old_log_probs") == [[-0.75, -2.5], [-0.125, -1.5]]
    assert token(record, "turn_ids") == [[0, 1], [0, 0]]
    assert record.notes == ()


def test_verl() -> None:
    """Read a DataProto's tensors: ids instead of texts, and the score at the last token."""
    mask = np.array([[1, 1], [1, 0]])
    content = npz(
        prompts=np.array([[0, 3, 4], [0, 0, 5]]), responses=np.array([[6, 7], [8, 0]]), response_mask=mask,
        old_log_probs=np.array([[-0.75, -0.5], [-0.125, 0]]),
        rollout_log_probs=np.array([[-0.5, -1], [-0.25, 0]]), token_level_scores=np.array([[0, 1.0], [-1.0, 0]]),
        ref_log_prob=np.array([[-0.75, -0.5], [-0.125, 0]]), advantages=np.array([[2.0, 1.0], [3.0, 0]]),
    )  # fmt: skip
    record = read_pairs("batch.npz", content)
    batch = record.batch.tensors()
    assert token(record, "rollout_log_probs") == [[-0.5, -1.0], [-0.25]]
    assert token(record, "response_ids") == [[6, 7], [8]]
    assert batch["rewards"].tolist() == [1, -1]
    assert token(record, "ref_log_probs") == token(record, "old_log_probs") == [[-0.75, -0.5], [-0.125]]
    assert record.responses == ["", ""]


def test_verl_after_its_own_correction() -> None:
    """Refuse verl's corrected batch: response_mask has lost its rejected tokens (0.9.1, rollout_corr_helper.py)."""
    arrays = {name: np.full((1, 2), -1.0) for name in ("rollout_log_probs", "old_log_probs", "rollout_is_weights")}
    said = refused("batch.npz", npz(**arrays, response_mask=np.ones((1, 2))))
    assert "has a column rollout_is_weights: verl's correction has acted on this batch" in said


# --- files without a pair ---

PAIR = {"rollout_log_probs": [-1.0, -2.0], "old_log_probs": [-1.0, -2.0]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "found the columns none; needed are rollout_log_probs (the engine's) and old_log_probs (the trainer's"),
        ({"rollout_log_probs": [-1], "old_logpbs": [-1]}, "is missing; the nearest name is 'old_logpbs'."),
        ({f"key {i}": 1 for i in range(5000)}, " and 4980 more; needed are rollout_log_probs"),
        ({**PAIR, "prev_logprobs": [-1]}, "old_log_probs and prev_logprobs are two names of old_log_probs"),
        ({"tokens": [1], "response_length": 1, "rollout_log_probs": [-1]}, "--save-debug-train-data writes both"),
        ({"response_tokens": [1], "logprobs": [-1]}, "open-instruct's rollouts, which have only vLLM's log-probs"),
        ({"input": "a", "output": "b", "gts": "c", "score": 1, "step": 1}, "verl's rollout_data_dir"),
        ({"input": "a", "output": "b", "score": 1, "rollout_log_probs": [-1]}, "old_log_probs is missing."),
        ({"prompt": "a", "completion": "b", "head_version": 1}, "AReaL's rollouts"),
        ({"columns": ["old_log_probs"], "data": [[[-1.0]]]}, "a table, whose names are a list of its own; write one"),
    ],
)  # fmt: skip
def test_without_a_pair(row: dict[str, Any], said: str) -> None:
    message = refused("x.jsonl", jsonl([row]))
    assert said in message
    assert ("texts" in message) == ("only texts" in said or "rollout_data_dir" in said or "AReaL" in said)
    assert message.startswith("'x.jsonl': ")


def test_trl_completions() -> None:
    content = parquet(step=[1], prompt=["a"], completion=["b"], advantage=[0.5])
    assert "TRL's completions, which have only texts" in refused("completions_00001.parquet", content)


# --- columns of no particular system ---


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
        ({"tool_mask": [0]}, "tool_mask has 1 values"),
        ({"tool_mask": [0], "response_mask": [1, 1]}, "tool_mask must have the shape of response_mask"),
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


class DataProto:
    """The part of verl's DataProto that the line uses; `make peers` runs the real one."""

    batch = {name: torch.tensor([row]) for name, row in PAIR.items()} | {"response_mask": torch.ones(1, 2)}

    @staticmethod
    def load_from_disk(_: Path) -> "DataProto":
        return DataProto()


@pytest.mark.parametrize("mark", [b"skyrl_train.training_batch", b"verl.protocol DataProto"])
def test_the_line_that_makes_arrays(mark: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the line as a user would, on a plain dict of tensors instead of SkyRL's, and read its file."""
    line = refused("batch.pickle", b"\x80\x04\x95" + mark).split("`")[1]
    monkeypatch.chdir(tmp_path)
    torch.save(DataProto.batch | {"values": None}, "batch.pkl")
    line = line.replace("pickle.load(open(FILE, 'rb'))", "torch.load(FILE)")
    exec(line, {"numpy": np, "torch": torch, "DataProto": DataProto, "FILE": "batch.pkl"})
    record = read_pairs("pairs.npz", (tmp_path / "pairs.npz").read_bytes())
    assert token(record, "rollout_log_probs") == [PAIR["rollout_log_probs"]]
