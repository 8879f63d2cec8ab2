"""The versions that were read: each system has one, and a newer one on the index is noticed. No test asks the index."""

import importlib.util
from typing import Any

import pytest

from rlcorr.records.runs import ROOT
from rlcorr.systems.export import SYSTEMS
from rlcorr.systems.mapping.facts import FACTS


def newest() -> Any:
    """Load tests/peers/newest.py, whose folder is not on the path of the tests."""
    spec = importlib.util.spec_from_file_location("newest", ROOT.parent / "tests" / "peers" / "newest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_system_has_a_version() -> None:
    """Check the table against the one of the writers; Agent Lightning has the text of verl."""
    assert [*FACTS] == [*SYSTEMS, "Agent Lightning"]
    assert [title for title, facts in FACTS.items() if not facts.version] == ["Python"]
    assert all(facts.version in facts.comment for title, facts in FACTS.items() if title in WRITTEN_AS_READ)


WRITTEN_AS_READ = ("verl", "SkyRL", "OpenRLHF", "prime-rl", "AReaL", "slime", "xtuner", "Unsloth", "axolotl", "Tinker")


def test_the_pinned_packages_were_read() -> None:
    """Compare with the packages that `make peers` installs: it must run the version that the table names."""
    pins = ROOT.parent / "requirements" / "peers"
    for package, version in newest().packages().items():
        path = pins / f"{package.replace('-', '_')}.txt"
        if path.is_file():
            pinned = path.read_text(encoding="utf-8").split(f"{package}==")[1].split()[0]
            assert newest().numbers(pinned) == newest().numbers(version), package


def test_a_newer_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check answers of `pip index versions`: the one that was read, a newer one, and an older one."""
    module = newest()
    answers = {"trl": "trl (1.16.0)\nAvailable versions: 1.16.0", "skyrl": "skyrl (0.5.0)", "verl": "verl (0.9.0)"}
    monkeypatch.setattr(module, "ask", answers.__getitem__)
    assert module.unread(answers) == ["skyrl 0.5.0 was not read: read it, and write it in rlcorr/systems/systems.toml"]
    assert module.numbers("2026.10.10") > module.numbers("2026.10.9")
    with pytest.raises(SystemExit, match="does not name the newest version of trl"):
        module.newest_in("ERROR: no such package", "trl")
