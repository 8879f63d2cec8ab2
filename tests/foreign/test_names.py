"""Dumps in the formats of other systems, and messages for files that are none of them."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from pair_files import jsonl, npz, parquet, read_pairs, real

from rlcorr.errors import UsageError
from rlcorr.foreign.missing_fields import missing
from rlcorr.records.step_files import StepRecord

ROLLOUT, OLD = [[-0.5, -1.0], [-0.25]], [[-0.75, -0.5], [-0.125]]


def pairs_of(record: StepRecord) -> tuple[list[list[float]], list[list[float]]]:
    return real(record.batch.rollout_log_probs, record), real(record.batch.tensors()["old_log_probs"], record)


def nemo_rl_line(row: int, tokens: list[int], prompt: int, sample: float = 1.0) -> dict[str, Any]:
    """Return one sample as a micro-batch, padded on the right to 6; position 0 holds a dummy."""
    response = len(tokens) - prompt
    place = {"before": [0.0] * prompt, "after": [0.0] * (6 - len(tokens))}
    return {
        "content": [f"question {row} answer"],
        "rewards": [row / 2],
        "input_lengths": [len(tokens)],
        "token_ids": [tokens + [0] * (6 - len(tokens))],
        "token_loss_mask": [[1] + [0] * (prompt - 1) + [1] * response + [0] * (6 - len(tokens))],  # counts the dummy
        "sample_loss_mask": [sample],
        "advantages": [place["before"] + [row - 0.5] * response + place["after"]],
        "generation_logprobs": [place["before"] + ROLLOUT[row] + place["after"]],
        "prev_logprobs": [place["before"] + OLD[row] + place["after"]],
        "idx": row,
    }


def test_nemo_rl() -> None:
    lines = [nemo_rl_line(0, [4, 5, 6, 7], 2), nemo_rl_line(1, [4, 9], 1), nemo_rl_line(1, [4, 9], 1, sample=0.0)]
    record = read_pairs("train_data_step12.jsonl", jsonl(lines))
    assert pairs_of(record) == ([*ROLLOUT, []], [*OLD, []])  # the third sample is masked out completely
    batch = record.batch.tensors()
    assert real(batch["advantages"], record) == [[-0.5, -0.5], [0.5], []]
    assert real(batch["response_ids"], record) == [[6, 7], [9], []]
    assert batch["prompt_ids"].tolist() == [[4, 5], [0, 4], [0, 0]]
    assert batch["rewards"].tolist() == [0, 0.5, 0.5]
    assert record.responses[0] == "question 0 answer"
    assert "rewards" not in missing(record)


def prime_rl_line(row: int) -> dict[str, Any]:
    rollout, old = ROLLOUT[row], OLD[row]
    return {
        "schema_version": 1, "step": 3, "rank": 0, "micro_step": 0, "export_sequence_idx": row, "env_name": "math",
        "token_ids": [7, 8, *range(len(old))], "position_ids": [0, 1], "loss_mask": [False, False] + [True] * len(old),
        "advantages": [0.0, 0.0] + [1.0] * len(old), "rewards": [0.5] * (2 + len(old)),
        "inference_logprobs": [0.0, None, *rollout], "trainer_logprobs": [None, -9.0, *old],
        "is_masked": [None] * (2 + len(old)), "entropy": [0.1] * (2 + len(old)),
    }  # fmt: skip


def test_prime_rl() -> None:
    record = read_pairs("rank_0.jsonl", jsonl([prime_rl_line(0), prime_rl_line(1)]))
    assert pairs_of(record) == (ROLLOUT, OLD)
    batch = record.batch.tensors()
    assert record.step == 3
    assert batch["rewards"].tolist() == [0.5, 0.5]
    assert batch["prompt_ids"].tolist() == [[7, 8], [7, 8]]
    assert real(batch["response_ids"], record) == [[0, 1], [0]]


def test_prime_rl_null_on_a_trained_token() -> None:
    line = prime_rl_line(0) | {"trainer_logprobs": [None, None, None, -1.0]}
    with pytest.raises(UsageError, match=r"row 0, token 2 \(from 0\): old_log_probs is NaN or null"):
        read_pairs("rank_0.jsonl", jsonl([line]))


def slime_samples() -> list[dict[str, Any]]:
    """Return samples as torch.load does: tensors over the response, and the tokens of prompt and response."""
    samples = []
    for row, (rollout, old) in enumerate(zip(ROLLOUT, OLD, strict=True)):
        per_token = {
            "rollout_log_probs": rollout,
            "log_probs": old,
            "ref_log_probs": old,
            "advantages": [1.0] * len(old),
        }
        about = {"sample_index": row, "rewards": float(row), "response_lengths": len(old), "loss_masks": [1] * len(old)}
        tokens = {"tokens": torch.tensor([3] * (row + 1) + list(range(len(old))))}
        samples.append(about | tokens | {name: torch.tensor(values) for name, values in per_token.items()})
    return samples


def test_slime_converted_as_the_refusal_says() -> None:
    """Read slime's log_probs as old_log_probs: the trainer computed them before the update."""
    lines = [json.dumps(s, default=lambda x: x.tolist()) for s in slime_samples()]
    whole = json.dumps({"format_version": 2, "rollout_id": 4, "samples": [json.loads(line) for line in lines]})
    for name, content, step in (("x.jsonl", "\n".join(lines), 1), ("x.json", whole, 4)):
        record = read_pairs(name, content.encode())
        batch = record.batch.tensors()
        assert pairs_of(record) == (ROLLOUT, OLD)
        assert "log_probs" not in batch
        assert batch["prompt_ids"].tolist() == [[0, 3], [3, 3]]
        assert real(batch["response_ids"], record) == [[0, 1], [0]]
        assert record.step == step


def test_a_pickle_of_verl_is_refused_with_the_way_to_arrays() -> None:
    """Refuse the bytes with which a pickle of DataProto.save_to_disk (protocol 4) starts."""
    with pytest.raises(UsageError, match=r"DataProto\.load_from_disk\(FILE\)\.batch"):
        read_pairs("batch.pkl", b"\x80\x04\x95 verl.protocol DataProto")


def test_log_probs_of_the_policy_being_updated_are_not_taken_for_the_old_ones() -> None:
    line = {"tokens": [1, 2], "rollout_log_probs": [-1, -1], "log_probs": [-1, -1]}
    with pytest.raises(UsageError, match="old_log_probs is missing; the nearest name is 'log_probs'"):
        read_pairs("x.jsonl", jsonl([line]))


def test_verl() -> None:
    """Read a DataProto's tensors: prompts padded on the left, ids instead of texts, the score at the last token."""
    mask = np.array([[1, 1], [1, 0]])
    content = npz(
        prompts=np.array([[0, 3, 4], [0, 0, 5]]), responses=np.array([[6, 7], [8, 0]]), response_mask=mask,
        attention_mask=np.array([[0, 1, 1, 1, 1], [0, 0, 1, 1, 0]]),
        old_log_probs=np.array([[-0.75, -0.5], [-0.125, 0]]),
        rollout_log_probs=np.array([[-0.5, -1], [-0.25, 0]]), token_level_scores=np.array([[0, 1.0], [-1.0, 0]]),
        ref_log_prob=np.array([[-0.75, -0.5], [-0.125, 0]]), advantages=np.array([[2.0, 1.0], [3.0, 0]]),
    )  # fmt: skip
    record = read_pairs("batch.npz", content)
    batch = record.batch.tensors()
    assert pairs_of(record) == (ROLLOUT, OLD)
    assert real(batch["response_ids"], record) == [[6, 7], [8]]
    assert batch["prompt_ids"].tolist() == [[3, 4], [0, 5]]
    assert batch["rewards"].tolist() == [1, -1]
    assert real(batch["ref_log_probs"], record) == OLD
    assert record.responses == ["", ""]


# --- further columns ---

PAIR = {"rollout_log_probs": [-1.0], "old_log_probs": [-1.0]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "found the columns none; needed are rollout_log_probs (the engine's) and old_log_probs (the trainer's"),
        ({"rollout_log_probs": [-1], "old_logpbs": [-1]}, "is missing; the nearest name is 'old_logpbs'."),
        ({"a": 1, "b": 2}, "found the columns 'a', 'b'; needed are rollout_log_probs"),
        ({**PAIR, "prev_logprobs": [-1]}, "old_log_probs and prev_logprobs are two names of old_log_probs"),
        ({**PAIR, "response_mask": [1], "loss_mask": [1]}, "response_mask and loss_mask are two names"),
        ({"tokens": [1], "response_length": 1, "rollout_log_probs": [-1]}, "--save-debug-train-data writes both"),
        ({"response_tokens": [1], "logprobs": [-1]}, "open-instruct's rollouts, which have only vLLM's log-probs"),
        ({"input": "a", "output": "b", "gts": "c", "score": 1, "step": 1}, "verl's rollout_data_dir"),
        ({"prompt": "a", "completion": "b", "head_version": 1}, "AReaL's rollouts"),
    ],
)  # fmt: skip
def test_without_a_pair(row: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_pairs("x.jsonl", jsonl([row]))
    assert said in str(refused.value)
    assert str(refused.value).startswith("'x.jsonl': ")


def test_trl_completions() -> None:
    content = parquet(step=[1], prompt=["a"], completion=["b"], advantage=[0.5])
    with pytest.raises(UsageError, match="TRL's completions, which have only texts"):
        read_pairs("completions_00001.parquet", content)


def test_many_strange_names_are_not_all_shown() -> None:
    row = {"<b>" + "x" * 10_000: 1} | {f"key {i}": 1 for i in range(5000)}
    with pytest.raises(UsageError) as refused:
        read_pairs("x.jsonl", jsonl([row]))
    assert "and 4981 more" in str(refused.value)
    assert len(str(refused.value)) < 2000
