"""The sampler's likeliest tokens in files from outside: arrays, flat lists, and what is said where they do not fit."""

import json
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
LISTS = {"top_ids": IDS, "rollout_top_log_probs": ROLLOUT, "old_top_log_probs": OLD}
MASK = [[1, 1], [1, 0]]


def check(batch: TokenBatch) -> None:
    fields = batch.tensors()
    assert fields["top_ids"].tolist() == [[[3, 5], [7, 2]], [[9, 1], [-1, -1]]]
    torch.testing.assert_close(fields["rollout_top_log_probs"], torch.tensor(ROLLOUT))
    torch.testing.assert_close(fields["old_top_log_probs"], torch.tensor(OLD))


def flat(tokens: list[list[float]]) -> list[float]:
    """Return K numbers for each token, one token after the other, as recorded steps have them."""
    return [number for token in tokens for number in token]


def test_arrays_and_the_batch_of_a_trainer_are_read(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {name: np.array(values, np.float32) for name, values in (PAIR | LISTS).items()}
    arrays |= {"response_mask": np.array(MASK), "top_ids": np.array(IDS)}
    np.savez(tmp_path / "pairs.npz", **arrays)
    check(import_file(tmp_path / "pairs.npz", tmp_path / "file").batch)
    with Recorder("mine", folder=tmp_path) as recorder:
        recorder.add(step=1, batch={name: torch.tensor(array) for name, array in arrays.items()})
    check(runs.read_step(recorder.run, 1).batch)


def test_flat_lists_of_answers_and_of_turns_are_read(tmp_path: Path) -> None:
    """Read a line per answer, and one object whose lists are two answers, or with a single reward two turns."""
    rows = [
        {name: x[row][:n] for name, x in PAIR.items()} | {name: flat(x[row][:n]) for name, x in LISTS.items()}
        for row, n in enumerate((2, 1))
    ]
    whole = {name: [row[name] for row in rows] for name in rows[0]}
    for name, text in {
        "lines": "\n".join(map(json.dumps, rows)),
        "answers": json.dumps(whole | {"rewards": [1.0, 0.0]}),
        "turns": json.dumps(whole | {"rewards": 1.0}),
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
        batch = import_file(tmp_path / f"{name}.jsonl", tmp_path / name).batch
        if name != "turns":
            check(batch)
            continue
        assert batch.tensors()["top_ids"].tolist() == [IDS[0] + IDS[1][:1]]
        assert batch.tensors()["turn_ids"].tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"top_ids": [3, 5, 7]}, "row 0 (from 0): top_ids has 3 numbers for 2 tokens"),
        ({"top_ids": [[3, 5], [7, 2]]}, "top_ids must hold a list of numbers per row; got texts such as '[[3.0, 5.0],"),
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
