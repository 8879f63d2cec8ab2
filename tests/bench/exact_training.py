"""A training that is watched at its exact sketch: while the engine still has the weights that sampled."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rlcorr.command.train import train_config
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.records import runs
from rlcorr.train import loop
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.session.session import Session

Seen = TypeVar("Seen")


def trained(options: Sequence[str], look: Callable[[Session], Seen]) -> tuple[ExactSketch, Seen]:
    """Train with these options into a folder that is deleted; the first exact sketch, and what `look` sees then."""
    seen: list[tuple[ExactSketch, Seen]] = []
    local, exact_sketch = runs.LOCAL, loop.exact_sketch

    def sketch_and_look(session: Session, weights: Weights) -> ExactSketch:
        sketch = exact_sketch(session, weights)
        seen.append((sketch, look(session)))
        return sketch

    with tempfile.TemporaryDirectory() as folder:
        runs.LOCAL, loop.exact_sketch = Path(folder), sketch_and_look
        try:
            loop.train(train_config(options, "make bench"))
        finally:
            runs.LOCAL, loop.exact_sketch = local, exact_sketch
    return seen[0]
