"""Damaged and malicious files: refused in one sentence or read, below 300 MiB and a minute; nothing in them is run."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hostile import MIB, peak
from hostile_files import HOSTILE, MEMORY, content_of
from pair_files import FILES, read_pairs, refused

import rlcorr
from rlcorr.errors import UsageError
from rlcorr.foreign import child
from rlcorr.foreign.map_names import WANTED
from rlcorr.foreign.read_file import read_columns

SLOW = {"10⁸ zeros", "4,200,001 tokens", "1.5 million lists", "3 GiB of zeros"}
CASES = [
    pytest.param(ending, what, marks=[pytest.mark.slow] if what in SLOW else [])
    for ending, cases in HOSTILE.items()
    for what in cases
]


@pytest.mark.parametrize(("ending", "what"), CASES)
def test_refused_in_one_sentence_or_read(ending: str, what: str, tmp_path: Path) -> None:
    case = HOSTILE[ending][what]
    content = content_of(case, tmp_path / "harm")
    before, began = peak(), time.monotonic()
    if case[1]:
        assert case[1] in refused(f"x{ending}", content)
    else:
        read_pairs(f"x{ending}", content)
    assert peak() - before < 300 * MIB
    assert time.monotonic() - began < 60  # a process that hangs is ended after four minutes
    assert list(tmp_path.iterdir()) == []


def test_texts_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    record = read_pairs("x.parquet", content_of(HOSTILE[".parquet"]["a text in many rows"], tmp_path))
    assert record.prompts == [""] * 200
    assert "209,715,200 characters in prompts" in record.notes[0]


@pytest.mark.parametrize("name", ["lists.jsonl", "lists.parquet", "compressed.npz", "padded.safetensors"])
def test_any_damage_is_refused_with_a_sentence(name: str) -> None:
    """Cut files off anywhere or change one byte: reading gives a step or a `UsageError`, never anything else."""
    whole, chance = FILES[name], random.Random(0)
    for number in range(100):
        at = chance.randrange(len(whole))
        if number < 30:
            refused(name, whole[:at])
        else:
            with suppress(UsageError):
                read_pairs(name, whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :])


# --- the process that parses ---


@pytest.fixture
def fresh() -> Iterator[None]:
    """Start another process for the next file, and not leave it to other tests."""
    child.end_idle()
    yield
    child.end_idle()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import time; time.sleep(60)", "takes more than 1 s to read. Split the file"),
        ("import os; os.kill(os.getpid(), 11)", "ends the process that reads it (status -11)"),
        ("raise KeyError('a fault of ours')", "ends the process that reads it (KeyError: 'a fault of ours')"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_a_process_that_hangs_or_ends_is_one_refusal(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START", code)
    if "more than 1 s" in said:
        monkeypatch.setattr(child, "SECONDS", 1)
    assert said in refused("x.jsonl", FILES["lists.jsonl"])


@pytest.mark.usefixtures("fresh")
def test_the_next_file_is_read_by_the_same_process_or_after_a_crash_by_another(tmp_path: Path) -> None:
    read_pairs("x.jsonl", FILES["lists.jsonl"])
    (first,) = child._idle
    assert "not JSON" in refused("x.jsonl", b"{")
    assert child._idle == [first]
    assert MEMORY in refused("x.npz", content_of(HOSTILE[".npz"]["10¹² numbers"], tmp_path))
    path = tmp_path / "x.parquet"
    path.write_bytes(FILES["lists.parquet"])
    pieces = read_columns(path, ".parquet", WANTED, in_parts=True)
    next(pieces)
    del pieces  # a reader that stops early leaves no process
    assert child._idle == []
    assert first.returncode is not None


def test_only_files_of_torch_need_torch() -> None:
    """Check what the process imports: torch takes longer than everything else."""
    code = f"{child.START.replace('main()', '')}\nprint('torch' in sys.modules)"
    words = [sys.executable, "-P", "-c", code, str(Path(rlcorr.__file__).parent)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
