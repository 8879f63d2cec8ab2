"""Complete the pieces of mini.py: yours where you have written them, those of the solution where you have not yet."""

import json
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PIECES = (
    "ratios", "capped", "sample", "log_probs", "advantages", "clipped", "kept", "loss", "update", "train",
)  # fmt: skip
"""In the order in which the lessons ask for them."""
LESSONS = Path(__file__).parent
MINI = LESSONS / "mini.py"
MISSING = "def {name}_solution(*_):\n    raise NotImplementedError('write {name} in mini.py.')"


def load_mini() -> SimpleNamespace:
    """Read mini.py as it is saved now. Return what `complete` returns."""
    return complete(runpy.run_path(str(MINI)))


def complete(yours: Mapping[str, Any]) -> SimpleNamespace:
    """Return the ten pieces as attributes, and print whose they are. A solution cell's `loss_solution` is `loss`.

    The workshop edition has no solution: there a missing piece raises `NotImplementedError` when it is called.
    """
    written = {name: yours.get(name) or yours.get(f"{name}_solution") for name in PIECES}
    lent = [name for name in PIECES if not written[name]]
    cells = solution_cells() if lent else {}
    print(f"Yours, in mini.py: {', '.join(name for name in PIECES if written[name]) or 'none yet'}.")
    if lent:
        print(f"{'From the solution' if cells else 'Still to be written'}: {', '.join(lent)}.")
    return SimpleNamespace(**{name: written[name] or _lent(name, cells, yours) for name in PIECES})


def solution_cells() -> dict[str, str]:
    """Return piece → the folded cell with its solution in the notebook of its lesson."""
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(LESSONS.glob("[0-9]*.ipynb"))]
    sources = [
        "".join(cell["source"])
        for notebook in notebooks
        for cell in notebook["cells"]
        if "solution" in cell["metadata"].get("tags", [])
    ]
    matches = [(re.search(rf"^def ({'|'.join(PIECES)})_solution\(", source, re.M), source) for source in sources]
    return {match[1]: source for match, source in matches if match}


def _lent(name: str, cells: Mapping[str, str], names: Mapping[str, Any]) -> Any:
    """Return a piece of the solution, which uses the imports of mini.py."""
    space = dict(names)
    exec(cells.get(name, MISSING.format(name=name)), space)  # a cell of this repository
    return space[f"{name}_solution"]
