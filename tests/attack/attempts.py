"""The attempts of one kind of attack: their random numbers, their number, and what went wrong."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Attack:
    """One kind of attack. Every attempt has a number, which together with the seed makes it again."""

    kind: str
    seed: int
    folder: Path
    """A folder for whatever the attempts need. It is empty at first."""
    only: int | None = None
    """The number of the only attempt to make; None: all."""
    tried: int = 0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Measured numbers, to be printed below the table."""
    next_number: int = 0

    def attempts(self, count: int) -> Iterator[tuple[int, random.Random]]:
        """Yield the numbers of the next attempts, and random numbers that depend on seed and number alone."""
        first = self.next_number
        self.next_number += count
        for number in range(first, first + count):
            if self.only in (None, number):
                yield number, random.Random(f"{self.kind} {self.seed} {number}")

    def judge(self, number: int, name: str, problem: str | None) -> None:
        """Count an attempt. It went wrong if there is a problem; this is printed with the command that repeats it."""
        self.tried += 1
        if problem:
            again = f'make attack ARGS="{self.kind} --seed {self.seed} --only {number}"'
            self.wrong.append(f"{self.kind} {number}, {name}: {problem[:1500]}\n  again: {again}")
            print(f"WRONG {self.wrong[-1]}", file=sys.stderr, flush=True)


def one_sentence(code: int | None, error: str) -> str | None:
    """Return what is wrong with the end of a command, unless it succeeded or refused with one sentence.

    Args:
        code: Its exit code; None if it did not end in time.
        error: What it printed on stderr, without its progress.
    """
    lines = error.splitlines()
    if "Traceback" in error:
        return f"a traceback: {error[-1200:]}"
    if code is None:
        return "it did not end in time"
    if code == 0:
        return None
    if code != 2:
        return f"exit code {code}: {error[-600:]}"
    sentences = [line for line in lines if line.startswith("rlcorr: ")]
    if len(sentences) != 1 or lines[-1] != sentences[0]:
        return f"not one sentence at the end: {error[-600:]!r}"
    return "a sentence of more than 3,000 characters" if len(sentences[0]) > 3000 else None
