"""The table of systems in rlcorr/systems/README.md: every system, its functions and versions, and proofs that exist."""

import importlib
import re

import pytest

from rlcorr.presets import PRESETS
from rlcorr.records.runs import ROOT
from rlcorr.systems.export import SYSTEMS

README = (ROOT.parent / "rlcorr" / "systems" / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## From one system to another")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]


def test_every_system_has_a_row() -> None:
    assert [row[0] for row in ROWS[1:]] == [title for title in SYSTEMS if title != "Python"]


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    title, configuration, _, _, proof = row
    out, *back = re.findall(r"`(\w+)`", configuration)
    module = importlib.import_module(f"rlcorr.systems.{out.removeprefix('to_')}")
    assert all(callable(getattr(module, name)) for name in (out, *back))
    assert len(back) == (title in ("verl", "SkyRL", "TRL"))
    for path in re.findall(r"`(tests/[\w/]+\.py)`", proof):
        assert (ROOT.parent / path).is_file(), path
    if "make peers" in proof:
        assert title in (ROOT.parent / "tests" / "peers" / "real_systems.py").read_text(encoding="utf-8")
    else:
        named = [ROOT.parent / path for path in re.findall(r"`(tests/[\w/]+\.py)`", proof)]
        texts = "".join(path.read_text(encoding="utf-8") for path in named)
        assert out in texts or title in texts


def test_the_number_of_presets() -> None:
    assert f"There are {len(PRESETS)} presets" in README
    assert f"has {len(PRESETS)} presets" in (ROOT.parent / "README.md").read_text(encoding="utf-8")
