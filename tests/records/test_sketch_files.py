"""Sketch files: reading them, whole or with a missing part."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from app_runs import DIRECTIONS, make_run, write_sketch
from torch import Tensor
from toy_sketches import directions_of, exact_sketch

from rlcorr.gradients import toy
from rlcorr.gradients.sketch import ExactSketch, SampledSketch
from rlcorr.records import runs, sketch_files
from rlcorr.records.sketch_files import read_gradients, read_sketch, read_tensors, write_tensors


def test_answers_without_their_units_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    world = toy.small_world(0.3, vocabulary=3, length=3)
    write_sketch(run, exact_sketch([world], directions_of(world, DIRECTIONS, seed=0)))
    batch, _ = read_gradients(run, 0)
    assert len(batch.response_mask) == len(world.where.tokens)
    path = rewritten(run, lambda tensors: tensors.pop("exact_units"))
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read .*exact_units"):
        read_gradients(run, 0)
    assert torch.isfinite(read_sketch(run, 0).scores).all()


def rewritten(run: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Write the first step's sketch again, with changed tensors."""
    path = runs.sketch_path(run, 0)
    content, metadata = read_tensors(path)
    change(content)
    write_tensors(path, content, metadata)
    return path


def test_a_sketch_without_a_reference_comes_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    scores = torch.tensor([[15.0, -3.0], [0.0, 0.0]])
    sketch_files.write_sketch(run, 0, SampledSketch(scores, weights_hash="w", directions_hash="d"))
    read = read_sketch(run, 0)
    assert read.reference is None
    torch.testing.assert_close(read.scores, scores, rtol=2e-3, atol=0)


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


def test_every_likely_answer_comes_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    world = toy.small_world(0.3, vocabulary=3, length=3)
    written = exact_sketch([world], directions_of(world, DIRECTIONS, seed=0))
    write_sketch(run, written)
    _, read = read_gradients(run, 0)
    assert isinstance(read, ExactSketch)
    for name, values in vars(written.tree).items():
        torch.testing.assert_close(getattr(read.tree, name), values, check_dtype=False)
