"""How much memory a piece of work needs."""

from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import profile


def peak(work: Callable[[], object]) -> int:
    """Bytes alive at the worst moment, over what was alive before, as the allocator saw them."""
    recorded: Any = profile(profile_memory=True, use_kineto=True)
    with recorded:
        kept = work()
    assert kept is not None
    results: Any = recorded.kineto_results
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    alive = worst = 0
    for _, change in changes:
        alive += change
        worst = max(worst, alive)
    return worst
