"""`python -m rlcorr config FILE`: a configuration of verl, SkyRL or TRL as our correction, with what was read."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from rlcorr.command.printing import wrap_each
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.export import to_python
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.serialize import five_digits
from rlcorr.systems.pasted import Pasted, read_pasted

SHOWN = 5
"""Number of ignored keys that are named."""


@dataclass(frozen=True)
class Config:
    """Read a configuration of verl, SkyRL or TRL, and print the correction in it, what was read, and what was not.

    YAML, JSON, a Python dictionary or call, lines key=value, and the overrides of a command line are read. A whole
    configuration may be given; keys about other things are counted.
    """

    file: Annotated[str, tyro.conf.Positional]
    """The file, or - for the standard input."""
    system: str | None = None
    """verl, SkyRL or TRL; by default the one to which most keys belong."""


def run_config(request: Config) -> int:
    """Print the correction in a file, and return the exit code."""
    pasted = read_pasted(_text_of(request.file), request.system)
    read = (f"  {line}" for line in lines_read(pasted))
    print("\n".join([*python_lines(pasted), "", "Read:", *read, *wrap_each([ignored(pasted)])]))
    return 0


def _text_of(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not text in UTF-8.") from error


def python_lines(pasted: Pasted) -> Iterator[str]:
    """Yield the correction as Python."""
    text, loss = five_digits(to_python(pasted.config)), pasted.loss
    equal = [
        name
        for name, one in PRESETS.items()
        if text == five_digits(to_python(one.config)) and one.loss.score_centering == loss.score_centering
    ]
    equal.sort(key=lambda name: PRESETS[name].system != pasted.system)
    if equal:
        yield f"# {pasted.system}; equal to the preset {equal[0]}"
        yield from ("from rlcorr import preset", "", f'config = preset("{equal[0]}")')
    else:
        yield from (f"# {pasted.system}", *text.splitlines())
    if loss != LossConfig():
        numbers = {f.name: getattr(loss, f.name) for f in fields(loss)}
        changed = ", ".join(f"{name}={x!r}" for name, x in numbers.items() if x != getattr(LossConfig(), name))
        yield f"loss = LossConfig({changed})"


def lines_read(pasted: Pasted) -> list[str]:
    """Return each key that was read, with its value and its meaning."""
    return [f"{name} = {value}: {FACTS[pasted.system].keys[name].meaning}" for name, value in pasted.read.items()]


def ignored(pasted: Pasted) -> str:
    """Return a sentence that names keys which were not read; "" if there are none."""
    if not pasted.ignored:
        return ""
    names = ", ".join(pasted.ignored[:SHOWN]) + ", …" * (len(pasted.ignored) > SHOWN)
    count = "1 key is" if len(pasted.ignored) == 1 else f"{len(pasted.ignored)} keys are"
    return f"Ignored: {count} not about the correction: {names}."
