"""Find the pieces of mini.py: yours where you have written them, those of the solution where you have not yet."""

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

PIECES = (
    "sample", "log_probs", "advantages", "ratios", "clipped", "capped", "kept", "loss", "update", "train",
)  # fmt: skip
"""In the order in which the lessons ask for them."""
SOLUTION = "exercises.mini_solution"


def load_mini() -> SimpleNamespace:
    """Return the ten pieces as attributes, and print whose they are.

    The workshop edition has no solution: there a missing piece raises `NotImplementedError` when it is called.
    """
    yours = vars(importlib.import_module("mini"))
    solution = vars(importlib.import_module(SOLUTION)) if importlib.util.find_spec(SOLUTION) else {}
    written, lent = [name for name in PIECES if name in yours], [name for name in PIECES if name not in yours]
    print(f"Yours, in mini.py: {', '.join(written) or 'none yet'}.")
    if lent:
        print(f"{'From the solution' if solution else 'Still to be written'}: {', '.join(lent)}.")
    return SimpleNamespace(**{name: yours.get(name) or solution.get(name) or _missing(name) for name in PIECES})


def _missing(name: str) -> Any:
    def not_written(*_: object) -> None:
        raise NotImplementedError(f"write {name} in mini.py.")

    return not_written
