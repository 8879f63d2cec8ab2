"""Sketch files: reading them, whole or with a missing part."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from app_runs import DIRECTIONS, make_run, write_sketch
from safetensors.torch import load
from torch import Tensor
from toy_sketches import directions_of, exact_sketch

from rlcorr.gradients import toy
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.sketch import DrawnAnswers, ExactSketch
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_exact, read_gradients, read_sketch, read_tensors, write_tensors
from rlcorr.types import TokenBatch


def test_answers_without_their_units_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    world = toy.small_world(0.3, vocabulary=3, length=3)
    write_sketch(run, exact_sketch([world], directions_of(world, DIRECTIONS, seed=0)))
    batch, _ = read_gradients(run, 0)
    assert len(batch.response_mask) == len(world.where.tokens)
    path = rewritten(run, lambda tensors: tensors.pop("exact_units"))
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read .*exact_units"):
        read_exact(run, 0)
    assert torch.isfinite(read_sketch(run, 0).scores).all()


def rewritten(run: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Write the first step's sketch again, with changed tensors."""
    path = runs.sketch_path(run, 0)
    content, metadata = read_tensors(path)
    change(content)
    write_tensors(path, content, metadata)
    return path


@pytest.mark.parametrize("name", ["drawn_units", "drawn_lengths", "drawn_advantages"])
def test_drawn_answers_without_a_part_are_damaged(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    write_sketch(run, drawn())
    path = rewritten(run, lambda tensors: tensors.pop(name))
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read .*{name}"):
        read_gradients(run, 0)
    assert torch.isfinite(read_sketch(run, 0).scores).all()


def test_drawn_answers_whose_lengths_do_not_fit_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    write_sketch(run, drawn())
    path = rewritten(run, lambda tensors: tensors.update(drawn_lengths=torch.tensor([3, 1], dtype=torch.int8)))
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read"):
        read_gradients(run, 0)


def test_drawn_answers_come_back(tmp_path: Path) -> None:
    """Check two answers with one and two tokens.

    The unit is 1/15 of the largest score of a row, rounded to bfloat16. So a score that is an integer times the unit
    has a relative error of at most 1/512.
    """
    run = make_run(tmp_path, "alpha", steps=1)
    write_sketch(run, drawn())
    batch, sketch = read_gradients(run, 0)
    assert batch.response_mask.tolist() == [[True, False], [True, True]]
    assert batch.rollout_log_probs.tolist() == [[-0.125, 0.0], [-0.5, -0.25]]
    assert batch.old_log_probs is not None
    assert batch.old_log_probs.tolist() == [[-0.25, 0.0], [-0.5, -1.0]]
    assert batch.advantages is not None
    assert batch.advantages.tolist() == [[1.0, 0.0], [-0.5, -1.5]]
    torch.testing.assert_close(sketch.scores, drawn().scores, rtol=2e-3, atol=0)


def drawn() -> DrawnAnswers:
    """Return two sampled answers, with scores along the first two directions."""
    batch = TokenBatch(
        response_mask=torch.tensor([[True, False], [True, True]]),
        rollout_log_probs=torch.tensor([[-0.125, 0.0], [-0.5, -0.25]]),
        old_log_probs=torch.tensor([[-0.25, 0.0], [-0.5, -1.0]]),
        advantages=torch.tensor([[1.0, 0.0], [-0.5, -1.5]]),
    )
    return DrawnAnswers(batch, torch.tensor([[15.0, -3.0], [0.0, 0.0], [0.9, -1.5]]))


NO_SKETCHES = {
    "empty": b"",
    "plain": b"no gzip",
    "no tensors": gzip.compress(b"no tensors"),
    "cut off": gzip.compress(b"x" * 99)[:-5],
}


@pytest.mark.parametrize("content", NO_SKETCHES.values(), ids=NO_SKETCHES)
def test_a_file_that_is_no_sketch_is_damaged(content: bytes, tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    write_sketch(run)
    path = runs.sketch_path(run, 0)
    path.write_bytes(content)
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read"):
        read_sketch(run, 0)


def test_integers_without_units_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    write_sketch(run)
    path = rewritten(run, lambda tensors: tensors.pop("units"))
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read .*units"):
        read_sketch(run, 0)


@pytest.mark.parametrize(
    ("largest", "kind"),
    [(127, torch.int8), (128, torch.int16), (32767, torch.int16), (32768, torch.int32), (2**31, torch.int64)],
)
def test_a_tree_has_the_narrowest_integers(tmp_path: Path, largest: int, kind: torch.dtype) -> None:
    """Check two nodes with one answer each; the id of one token is large."""
    run = make_run(tmp_path, "alpha", steps=1)
    log_probs = torch.full((2,), -0.5)
    tree = AnswerTree(
        prompts=torch.tensor([0, 1]), parents=torch.tensor([-1, -1]), tokens=torch.tensor([3, largest]),
        old_log_probs=log_probs, rollout_log_probs=log_probs.clone(), sampled_log_probs=log_probs.clone(),
    )  # fmt: skip
    write_sketch(run, ExactSketch(tree, torch.ones(2), torch.ones(2, DIRECTIONS)))
    content = load(gzip.decompress(runs.sketch_path(run, 0).read_bytes()))
    assert content["tree_tokens"].dtype == kind
    assert content["tree_parents"].dtype == torch.int8
    read = read_exact(run, 0)
    assert read is not None
    assert read.tree.tokens.tolist() == [3, largest]
