"""The guided tours of tours.toml: what to do on which page, which control is meant, and what can be seen afterwards."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STUDY = "stale_8"
"""The study of the tour `collapsing`."""


@dataclass(frozen=True)
class Step:
    """One step of a tour, on one page. tours.toml says what its fields are."""

    view: str
    do: str
    seen: str
    control: str
    query: Mapping[str, str]
    done: Mapping[str, str | Mapping[str, float]]

    def is_done(self, address: Mapping[str, str]) -> bool:
        """Check whether the address has what the step asks for. A key whose value is the default is missing in it."""
        return all(key in address and _is(address[key], wanted) for key, wanted in self.done.items())


@dataclass(frozen=True)
class Tour:
    """A tour: `tour=NAME` in the address, where NAME is its key in `TOURS`."""

    title: str
    steps: tuple[Step, ...]


def _is(text: str, wanted: str | Mapping[str, float]) -> bool:
    if isinstance(wanted, str):
        return wanted in ("", text)
    try:
        return wanted.get("least", -math.inf) <= float(text) <= wanted.get("most", math.inf)
    except ValueError:
        return False


def _read() -> dict[str, Tour]:
    read = tomllib.loads(Path(__file__).with_name("tours.toml").read_text(encoding="utf-8"))
    return {
        name: Tour(tour["title"], tuple(Step(**{"query": tour["query"], "done": {}, **step}) for step in tour["steps"]))
        for name, tour in read.items()
    }


TOURS = _read()
