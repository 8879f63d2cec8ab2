"""The sampler's likeliest tokens in files from outside: arrays, flat lists, and what is said where they do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.foreign.import_run import import_file, import_files
from rlcorr.recorders import Recorder
from rlcorr.records import runs

IDS = [[[3, 5], [7, 2]], [[9, 1], [0, 0]]]
ROLLOUT = [[[-0.1, -2.5], [-0.4, -1.5]], [[-0.2, -3.0], [0.0, 0.0]]]
OLD = [[[-0.2, -2.0], [-0.5, -1.25]], [[-0.25, -2.5], [0.0, 0.0]]]
PAIR = {"rollout_log_probs": [[-0.1, -1.5], [-0.2, 0.0]], "old_log_probs": [[-0.2, -1.25], [-0.25, 0.0]]}
MASK = [[1, 1], [1, 0]]


def check(batch: TokenBatch) -> None:
    fields = batch.tensors()
    assert fields["top_ids"].tolist() == [[[3, 5], [7, 2]], [[9, 1], [-1, -1]]]
    torch.testing.assert_close(fields["rollout_top_log_probs"], torch.tensor(ROLLOUT))
    torch.testing.assert_close(fields["old_top_log_probs"], torch.tensor(OLD))


LISTS = {"top_ids": IDS, "rollout_top_log_probs": ROLLOUT, "old_top_log_probs": OLD}


def flat(tokens: list[list[float]]) -> list[float]:
    """Return K numbers for each token, one token after the other, as recorded steps have them."""
    return [number for token in tokens for number in token]


def lines(form: Callable[[list[list[float]]], Any]) -> str:
    """Return an answer per line, with the lists of its tokens in this form."""
    rows = [
        {name: x[row][:length] for name, x in PAIR.items()} | {name: form(x[row][:length]) for name, x in LISTS.items()}
        for row, length in enumerate((2, 1))
    ]
    return "\n".join(map(json.dumps, rows))


def in_one_object(reward: Any) -> str:
    return json.dumps({name: [x[0], x[1][:1]] for name, x in (PAIR | LISTS).items()} | {"rewards": reward})


def read(tmp_path: Path, text: str) -> TokenBatch:
    (tmp_path / "pairs.jsonl").write_text(text)
    return import_file(tmp_path / "pairs.jsonl", tmp_path / "mine").batch


def test_arrays_are_read(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {name: np.array(values, np.float32) for name, values in (PAIR | LISTS).items()}
    np.savez(tmp_path / "pairs.npz", **arrays | {"response_mask": MASK, "top_ids": np.array(IDS)})
    check(import_file(tmp_path / "pairs.npz", tmp_path / "mine").batch)


@pytest.mark.parametrize("text", [lines(flat), lines(list), in_one_object([1.0, 0.0])])
def test_flat_lists_and_a_list_per_token_are_read(tmp_path: Path, text: str) -> None:
    """A list of rewards makes two responses of the two lists of one object."""
    check(read(tmp_path, text))


def test_a_list_per_token_of_every_turn_is_read(tmp_path: Path) -> None:
    batch = read(tmp_path, in_one_object(1.0))
    assert batch.tensors()["top_ids"].tolist() == [IDS[0] + IDS[1][:1]]
    assert batch.tensors()["turn_ids"].tolist() == [[0, 0, 1]]


def test_the_recorder_takes_them(tmp_path: Path) -> None:
    batch = TokenBatch(
        response_mask=torch.tensor(MASK) == 1, top_ids=torch.tensor(IDS), rollout_top_log_probs=torch.tensor(ROLLOUT),
        old_top_log_probs=torch.tensor(OLD), **{name: torch.tensor(values) for name, values in PAIR.items()},
    )  # fmt: skip
    with Recorder("mine", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=batch)
    check(runs.read_step(recorder.run, 1).batch)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"top_ids": [3, 5, 7]}, "row 0 (from 0): top_ids has 3 numbers for 2 tokens"),
        (
            {"top_ids": [[3, 5], [7]]},
            "token 1 (from 0) of top_ids in line 1 has 1 numbers, token 0 has 2; every token must have the same",
        ),
        ({"top_ids": [[[3]], [[7]]]}, "top_ids in line 1 has lists within the list of a token"),
        ({"top_ids": [["x"], ["y"]]}, "top_ids in line 1 must hold a list of numbers per token"),
        ({"top_ids": None}, "top_ids, rollout_top_log_probs belong together"),
        ({"rollout_top_log_probs": [-1.0, -2.0]}, "as many log-probs as ids"),
        ({"rollout_top_log_probs": [0.5, -1.0, -1.0, -1.0]}, "natural logarithms"),
    ],
)
def test_lists_that_do_not_fit_are_left_out(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    entry = {name: values[0] for name, values in PAIR.items()}
    entry |= {"top_ids": [3, 5, 7, 2], "rollout_top_log_probs": [-0.1, -2.5, -0.4, -1.5]} | changes
    entry = {name: values for name, values in entry.items() if values is not None}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(entry))
    summary = import_files([tmp_path / "pairs.jsonl"], tmp_path / "mine")
    assert "top_ids" not in runs.read_step(tmp_path / "mine", 1).batch.tensors()
    assert why in " ".join(summary.notes)
