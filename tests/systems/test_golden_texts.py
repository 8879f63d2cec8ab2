"""What every preset is in every system: texts, overrides and refusals, as they were on 28 November 2026.

`python tests/systems/test_golden_texts.py` writes them again, after a text was changed on purpose, and prints the
difference.
"""

import gzip
import json
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.export import SYSTEMS, default_text, exports, refused
from rlcorr.systems.overrides import overrides

GOLDEN = Path(__file__).with_name("golden_texts.json.gz")


def texts(preset: str) -> dict[str, list[str]]:
    """Return system → the lines of its text, and of its overrides if it has a command line."""
    config, loss = PRESETS[preset].config, PRESETS[preset].loss
    lines = {}
    for system, text in exports(config, loss).items():
        try:
            line = overrides(config, system, loss) or ""
        except UsageError as error:
            line = refused(error)
        lines[system] = [*text.splitlines(), *([] if line in {"", text} else line.splitlines())]
    return lines


@cache
def golden() -> dict[str, Any]:
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))


def defaults() -> dict[str, list[str]]:
    return {system: default_text(system).splitlines() for system in SYSTEMS}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_written_as_before(preset: str) -> None:
    assert texts(preset) == golden()["presets"][preset]


def test_the_defaults_of_a_system_are_written_as_before() -> None:
    assert defaults() == golden()["defaults"]
    assert list(golden()["presets"]) == list(PRESETS)


if __name__ == "__main__":
    written = {"defaults": defaults(), "presets": {preset: texts(preset) for preset in PRESETS}}
    before, after = (json.dumps(one, indent=0, ensure_ascii=False).splitlines() for one in (golden(), written))
    print("\n".join(unified_diff(before, after, "before", "after", lineterm="")))
    GOLDEN.write_bytes(gzip.compress(json.dumps(written, ensure_ascii=False).encode(), mtime=0))
