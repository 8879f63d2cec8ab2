"""Versions per token and turns of an agent, from files as other systems write them."""

import json
from typing import Any

import pytest
from pair_files import read_pairs

from rlcorr.records.step_files import StepRecord

OLD = [[-1.0, -1.0, -1.0, -1.0, -1.0], [-2.0, -2.0, -2.0]]
ROLLOUT = [[-1.1, -1.2, -1.1, -1.0, -1.3], [-2.0, -2.1, -2.2]]


def read(**columns: list[Any]) -> StepRecord:
    rows = {"old_log_probs": OLD, "rollout_log_probs": ROLLOUT} | columns
    lines = [json.dumps({name: values[row] for name, values in rows.items()}) for row in range(len(OLD))]
    return read_pairs("x.jsonl", "\n".join(lines).encode())


def real(record: StepRecord, name: str) -> list[list[int]]:
    mask, tensor = record.batch.response_mask, record.batch.tensors()[name]
    return [row[kept].tolist() for row, kept in zip(tensor, mask, strict=True)]


PER_TOKEN = [[4, 4, 5, 5, 6], [5, 5, 5]]


@pytest.mark.parametrize(
    ("columns", "field", "expected"),
    [
        # A response that was interrupted by a sync goes on with newer weights. AReaL calls the column `versions`.
        *(({name: PER_TOKEN}, "policy_versions", PER_TOKEN) for name in ("versions", "policy_versions")),
        # AReaL writes -1 for tokens that no policy sampled.
        (
            {"versions": [[4, 4, -1, 5, 5], [5, 5, 5]], "loss_mask": [[1, 1, 0, 1, 1], [1, 1, 1]]},
            "policy_versions", [[4, 4, 5, 5], [5, 5, 5]],
        ),
        # Turns are the runs of tokens between the answers of tools, unless the file names them.
        ({"loss_mask": [[1, 0, 0, 1, 1], [0, 1, 1]]}, "turn_ids", [[0, 1, 1], [0, 0]]),
        (
            {"loss_mask": [[1, 0, 0, 1, 1], [1, 1, 1]], "turn_ids": [[0, 0, 0, 1, 2], [3, 3, 4]]},
            "turn_ids", [[0, 1, 2], [3, 3, 4]],
        ),
    ],
)  # fmt: skip
def test_numbers_per_token(columns: dict[str, list[Any]], field: str, expected: list[list[int]]) -> None:
    record = read(**columns)
    assert real(record, field) == expected
    assert record.notes == ()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"versions": [[4] * 5, [5] * 3]}, [4, 5]),
        ({"versions": [[4] * 5, [5] * 3], "loss_mask": [[1] * 5, [0] * 3]}, [4, 5]),  # also without a token that counts
        ({"weight_version": ["9", "10"]}, [9, 10]),  # SGLang's is a text, "default" unless the trainer sets it
    ],
)
def test_one_version_per_response(columns: dict[str, list[Any]], expected: list[int]) -> None:
    assert read(**columns).batch.tensors()["policy_versions"].tolist() == expected


def test_versions_that_are_other_texts_are_left_out_because_their_order_is_unknown() -> None:
    record = read(weight_version=["default", "v2"])
    assert "policy_versions" not in record.batch.tensors()
    assert any("texts such as 'default': which of two texts is the newer version" in note for note in record.notes)


def test_one_turn_is_no_turn() -> None:
    assert "turn_ids" not in read(loss_mask=[[0, 1, 1, 1, 0], [1, 1, 1]]).batch.tensors()


@pytest.mark.parametrize(
    ("name", "lists", "why"),
    [
        (
            "versions",
            [[4, 5, 4, 5, 6], [5, 5, 5]],
            "row 0 (from 0): policy_versions falls within the response, from 5 to 4; a response is only continued with "
            "newer weights",
        ),
        ("versions", [[4, 5, 5], [5, 5, 6]], "policy_versions has"),
        (
            "turn_ids",
            [[0, 0, 1, 1, 0], [0, 1, 1]],
            "row 0 (from 0): turn_ids falls within the response, from 1 to 0; a turn ends before the next",
        ),
        ("turn_ids", [[0, 0, 0, 0, 0], [-1, 0, 1]], "row 1 (from 0): turn_ids has -1; turns are numbered from 0"),
    ],
)
def test_versions_that_run_backwards_and_turns_that_overlap_are_left_out(name: str, lists: list[Any], why: str) -> None:
    field = "policy_versions" if name == "versions" else name
    record = read(**{name: lists})
    assert field not in record.batch.tensors()
    (note,) = record.notes
    assert note.startswith(f"{field} is left out: ")
    assert why in note
