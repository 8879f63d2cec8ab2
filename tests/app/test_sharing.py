"""What the page's files share comes back where it was, and is written once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_runs import PROJECT

from rlcorr.strips.packing import Package, pack, unpack

SHARED, FILES = "~shared", 5
DEFINITION = "share of the response tokens that no rule rejected, with every digit that there is"


def whole(node: Any, parts: list[Any]) -> Any:
    """As the page's script reads it."""
    if isinstance(node, list):
        return [whole(part, parts) for part in node]
    if not isinstance(node, dict):
        return node
    if SHARED in node:
        return parts[node[SHARED]]
    return {key: whole(part, parts) for key, part in node.items()}


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Path], Path], None]:
    monkeypatch.syspath_prepend(PROJECT / "app")
    from static_site.parts import share

    return share


def test_every_file_is_what_it_was(share: Callable[[list[Path], Path], None], tmp_path: Path) -> None:
    axis = {"title": {"text": "a long title of an axis that all of them have"}, "range": [0, 1]}
    told = [
        {
            "part": [{"help": DEFINITION, "text": str(number)}],
            "axis": axis,
            "own": f"{number} {DEFINITION}",
            "at": [{"help": DEFINITION, "place": place + number} for place in range(41)],
        }
        for number in range(FILES)
    ]
    files = [tmp_path / f"{number}.bin" for number in range(FILES)]
    for path, about in zip(files, told, strict=True):
        path.write_bytes(pack(Package({}, about)))
    share(files, tmp_path / "shared.bin")
    parts = unpack((tmp_path / "shared.bin").read_bytes()).about["parts"]
    assert parts == [DEFINITION, axis]
    for path, about in zip(files, told, strict=True):
        referring = unpack(path.read_bytes()).about
        assert referring["axis"] == {SHARED: 1}
        assert referring["own"] == about["own"]
        assert referring["at"] == about["at"]
        assert whole(referring, parts) == about


def test_what_few_files_say_stays_in_them(share: Callable[[list[Path], Path], None], tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(FILES - 1)]
    for path in files:
        path.write_bytes(pack(Package({}, {"help": DEFINITION})))
    share(files, tmp_path / "shared.bin")
    assert unpack(files[0].read_bytes()).about == {"help": DEFINITION}
