"""What is read of a sketch whose file lacks a part."""

from pathlib import Path

import pytest
import torch
from app_runs import DIRECTIONS, make_run, write_sketch
from safetensors import safe_open
from safetensors.torch import save_file
from toy_sketches import directions_of, exact_sketch

from rlcorr.gradients import toy
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_exact, read_gradients, read_sketch


def test_answers_without_their_units_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alpha", steps=1)
    world = toy.small_world(0.3, vocabulary=3, length=3)
    write_sketch(run, exact_sketch([world], directions_of(world, DIRECTIONS, seed=0)))
    batch, _ = read_gradients(run, 0)
    assert len(batch.response_mask) == len(world.where.tokens)
    path = runs.sketch_path(run, 0)
    with safe_open(path, "pt") as file:
        content = {name: file.get_tensor(name) for name in file.keys() if name != "exact_units"}  # noqa: SIM118
        metadata = file.metadata()
    save_file(content, path, metadata)
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read .*exact_units"):
        read_exact(run, 0)
    assert torch.isfinite(read_sketch(run, 0).scores).all()
