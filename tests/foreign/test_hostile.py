"""Damaged and malicious files: refused in one sentence or read, below 300 MiB and 20 s, and nothing in them is run."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import MIB, peak
from hostile_files import HOSTILE, MEMORY, content_of
from pair_files import FILES, read_pairs, refused

import rlcorr
from rlcorr.foreign import child
from rlcorr.foreign.names import WANTED
from rlcorr.foreign.read_file import read_columns


@pytest.mark.parametrize(("ending", "what"), [(ending, what) for ending, cases in HOSTILE.items() for what in cases])
def test_refused_in_one_sentence_or_read(ending: str, what: str, tmp_path: Path) -> None:
    case = HOSTILE[ending][what]
    content = content_of(case, tmp_path / "harm")
    before, began = peak(), time.monotonic()
    if case[1]:
        assert case[1] in refused(f"x{ending}", content)
    else:
        read_pairs(f"x{ending}", content)
    assert peak() - before < 300 * MIB
    assert time.monotonic() - began < 20
    assert list(tmp_path.iterdir()) == []


def test_texts_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    record = read_pairs("x.parquet", content_of(HOSTILE[".parquet"]["a text in many rows"], tmp_path))
    assert record.prompts == [""] * 200
    assert "209,715,200 characters in prompts" in record.notes[0]
    record = read_pairs("x.parquet", content_of(HOSTILE[".parquet"]["texts in many lists"], tmp_path))
    assert record.batch.rollout_log_probs.shape == (2000, 1)
    assert "prompt is a column of list<" in record.notes[0]


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
        ("while True: pass", "takes more than 1 s to read"),
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
    read_pairs("x.parquet", FILES["lists.parquet"])
    assert child._idle == [first]
    assert MEMORY in refused("x.npz", content_of(HOSTILE[".npz"]["10¹² numbers"], tmp_path))
    read_pairs("x.parquet", FILES["lists.parquet"])
    (second,) = child._idle
    assert first.returncode is not None
    assert first.pid != second.pid


@pytest.mark.usefixtures("fresh")
def test_a_reader_that_stops_early_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(FILES["lists.parquet"])
    pieces = read_columns(path, ".parquet", WANTED, in_parts=True)
    next(pieces)
    del pieces
    assert child._idle == []


def test_only_files_of_torch_need_torch() -> None:
    """Check what the process imports: torch takes longer than everything else."""
    code = f"{child.START.replace('main()', '')}\nprint('torch' in sys.modules)"
    words = [sys.executable, "-P", "-c", code, str(Path(rlcorr.__file__).parent)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
