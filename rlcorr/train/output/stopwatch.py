"""The time that each part of a step takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

WORK = ("generate", "score", "update", "sketch")
"""Parts that count as work: generation, scoring, forward/backward/optimizer, and sketches. All else is overhead."""


@dataclass
class Stopwatch:
    """Seconds per named part of one step."""

    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def report(self, engine: dict[str, float], *, asynchronous: bool) -> dict[str, float]:
        """Return the metrics `timing/<part>` of trainer and engine, `timing/step` and `timing/overhead`.

        The overhead is the share of the step that is not work. If the engine runs in its own thread (`asynchronous`),
        its seconds are not part of the step; then waiting for it counts as work instead.
        """
        total = time.perf_counter() - self.started
        parts = self.seconds | engine
        work = sum(parts.get(name, 0.0) for name in (*WORK[1:], "wait" if asynchronous else "generate"))
        return {f"timing/{name}": value for name, value in parts.items()} | {
            "timing/step": total,
            "timing/overhead": 1 - work / total,
        }
