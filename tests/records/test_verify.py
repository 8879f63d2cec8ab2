"""Every kind of damage to a recorded run: the damaged file is named, and the other files can still be read."""

import contextlib
import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from step_records import STEPS, make_run, record, rewrite_manifest

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.held_out import HeldOutAnswer, append_answers, read_answers
from rlcorr.records.runs import DamagedFile
from rlcorr.records.verify import verify


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path / "a_run")
    return tmp_path / "a_run"


# --- steps ---


def rewrite_step(run: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    path = runs.step_path(run, 2)
    pq.write_table(change(pq.read_table(path)), path)


def without(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([name])


def column(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, [pa.array(values)])


SHORT = [[-1.0], [], [-1.0] * 6, [-1.0]]  # the first response has three tokens
STEP_DAMAGE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no log-probs": without("rollout_log_probs"),
    "no ids": without("response_ids"),
    "no prompt": without("prompt"),
    "no reward": without("reward"),
    "no group": without("group_id"),
    "numbers instead of lists": column("rollout_log_probs", [1.0, 2.0, 3.0, 4.0]),
    "lists of texts": column("rollout_log_probs", [["a"] * 3, [], ["a"] * 6, ["a"]]),
    "texts instead of rewards": column("reward", ["a", "b", "c", "d"]),
    "lists of other lengths": column("old_log_probs", SHORT),
    "rollout of other lengths": column("rollout_log_probs", SHORT),
    "whole numbers as log-probs": column("old_log_probs", [[1] * 3, [], [1] * 6, [1]]),
    "nothing instead of a list": column("rollout_log_probs", [[-1.0] * 3, None, [-1.0] * 6, [-1.0]]),
    "one list is missing": column("old_log_probs", [None, [], [-1.0] * 6, [-1.0]]),
    "nothing inside a list": column("old_log_probs", [[-1.0, None, -1.0], [], [-1.0] * 6, [-1.0]]),
}


@pytest.mark.parametrize("damage", STEP_DAMAGE)
def test_a_step_with_wrong_columns(run: Path, damage: str) -> None:
    rewrite_step(run, STEP_DAMAGE[damage])
    with pytest.raises(DamagedFile, match=r"step_000002\.parquet: cannot be read"):
        runs.read_step(run, 2)
    report = verify(run)
    assert (report.readable_steps, report.recorded_steps, report.metric_rows) == (2, 3, 3)
    assert all("step_000002.parquet" in problem for problem in report.problems)
    assert len(report.problems) == 2  # another hash, and it cannot be read


@pytest.mark.parametrize("keep", [None, 0, 1, 4, 0.5, 0.9, -1])
def test_a_step_that_is_missing_or_was_cut_off(run: Path, keep: float | None) -> None:
    path = runs.step_path(run, 2)
    content = path.read_bytes()
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(DamagedFile, match=r"step_000002\.parquet: cannot be read"):
        runs.read_step(run, 2)
    report = verify(run)
    assert report.readable_steps == 2
    if keep is None:
        assert (report.problems, report.recorded_steps) == ([f"{path}: missing."], 2)


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_no_flipped_bit_of_a_step_is_read_as_another_number(run: Path) -> None:
    """Check bits everywhere in the file, and many bits of its end, which no checksum of Parquet covers.

    The hash reveals each of them, also one that changes no number.
    """
    path, written = runs.step_path(run, 2), record(2)
    content, whole = path.read_bytes(), runs.read_step(run, 2)
    footer = 8 * (len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
    chance = random.Random(0)
    for bit in [chance.randrange(footer) for _ in range(400)] + [*range(footer, 8 * len(content), 23)]:
        path.write_bytes(flipped(content, bit))
        if bit % 8 == 0:
            report = verify(run)
            assert report.readable_steps in (2, 3)
            assert "step_000002.parquet: sha256 is" in report.problems[0]
        try:
            read = runs.read_step(run, 2)
        except DamagedFile:
            continue
        assert (read.prompts, read.responses) == (written.prompts, written.responses), bit
        for name, tensor in whole.batch.tensors().items():
            assert torch.equal(read.batch.tensors()[name], tensor), (bit, name)


def test_a_step_of_an_older_version_has_no_checksum(run: Path) -> None:
    path, whole = runs.step_path(run, 2), runs.read_step(run, 2)
    pq.write_table(pq.read_table(path), path)
    assert torch.equal(runs.read_step(run, 2).batch.rollout_log_probs, whole.batch.rollout_log_probs)


# --- the manifest ---

MANIFESTS: dict[str, str | None] = {
    "missing": None,
    "cut off": '{"slug": "a_run", "st',
    "empty": "",
    "a list": "[1, 2]",
    "a text": '"a_run"',
    "no slug": '{"story": "none"}',
    "not utf-8": "\udcff",
    "nested too deeply": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "files as a list": '{"slug": "a_run", "files": ["metrics.jsonl"]}',
    "files as a number": '{"slug": "a_run", "files": 3}',
    "a hash that is a number": '{"slug": "a_run", "files": {"metrics.jsonl": 12}}',
    "one hash of two is a number": '{"slug": "a_run", "files": {"a": "0f", "metrics.jsonl": 12}}',
    "a hash that is missing": '{"slug": "a_run", "files": {"metrics.jsonl": null}}',
    "a status that is a list": '{"slug": "a_run", "status": []}',
    "another version": '{"slug": "a_run", "schema_version": 2}',
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest(run: Path, damage: str) -> None:
    """Check that a damaged manifest is named, and that steps and metrics can still be read."""
    path, content = run / "manifest.json", MANIFESTS[damage]
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    report = verify(run)
    reason = "schema version 2; this program reads 1" if damage == "another version" else "not a readable manifest"
    (problem,) = report.problems
    assert problem.startswith(f"{path}: {reason}")
    assert (report.status, report.readable_steps, report.metric_rows) == ("unknown", 3, 3)
    with pytest.raises(DamagedFile, match=r"manifest\.json"):
        runs.read_manifest(run)


def test_a_manifest_names_its_wrong_fields(run: Path) -> None:
    """Check that wrong types are named in the order of the manifest; the other fields and the hash are right."""
    rewrite_manifest(run, seed="7", status=[], files={"metrics.jsonl": "0f"})
    with pytest.raises(DamagedFile, match=r"manifest\.json: not a readable manifest \(wrong type: status, seed\)\.$"):
        runs.read_manifest(run)
    rewrite_manifest(run, status="complete", seed=7, files={"a": "0f", "metrics.jsonl": 12})
    with pytest.raises(DamagedFile, match=r"\(wrong type: files\)\.$"):
        runs.read_manifest(run)


def test_a_wrong_hash(run: Path) -> None:
    files = runs.read_manifest(run).files
    rewrite_manifest(run, files=files | {"metrics.jsonl": "0" * 64})
    report = verify(run)
    assert len(report.problems) == 1
    assert f"{run / 'metrics.jsonl'}: sha256 is {files['metrics.jsonl'][:12]}" in report.problems[0]
    assert report.problems[0].endswith("the manifest says 000000000000….")


def test_a_sound_run_has_no_problems(run: Path) -> None:
    report = verify(run)
    assert (report.status, report.problems) == ("complete", [])
    assert (report.readable_steps, report.recorded_steps, report.metric_rows) == (3, 3, 3)


def test_a_run_that_still_goes_on_is_told(run: Path) -> None:
    rewrite_manifest(run, status="running", files={})
    report = verify(run)
    assert len(report.problems) == 1
    assert "still going or was killed" in report.problems[0]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_run_whose_name_is_no_file_name(name: str) -> None:
    with pytest.raises(UsageError, match="unknown run") as refused:
        runs.find_run(name)
    assert len(str(refused.value)) < 3000


def test_a_file_that_the_manifest_does_not_list(run: Path) -> None:
    later, sketch = runs.step_path(run, 9), run / "sketch" / "step_000009.safetensors.gz"
    runs.write_step(run, record(9))
    sketch.parent.mkdir()
    sketch.write_bytes(b"")
    (run / "train.log").write_text("a log is not listed")
    problems = verify(run).problems
    assert problems[:2] == [f"{path}: the manifest does not list it." for path in (sketch, later)]
    rewrite_manifest(run, files={})
    assert f"{run / 'metrics.jsonl'}: the manifest does not list it." in verify(run).problems


# --- metrics ---


@pytest.mark.parametrize(
    ("steps", "config", "problem"),
    [
        ((1, 1, 2, 2, 3), {"steps": 3}, "several rows for steps 1, 2."),
        ((2, 3), {}, "no row for step 1."),
        ((1, 2, 3, 5), {"steps": 5}, "no row for step 4."),
        ((1, 2, 3, 5), {}, ""),  # imported: only recorded steps have rows
        ((1, 2, 3, 10**12), {"steps": 5}, "no row for step 4."),
    ],
)
def test_every_step_has_one_row(run: Path, steps: tuple[int, ...], config: dict[str, int], problem: str) -> None:
    """Check what two training runs under one name left, and rows that were lost."""
    (run / "metrics.jsonl").unlink()
    for step in steps:
        runs.append_metrics(run, {"step": step})
    runs.finish_run(run, replace(runs.read_manifest(run), config=config))
    assert verify(run).problems == ([f"{run / 'metrics.jsonl'}: {problem}"] if problem else [])


def test_the_last_step_of_a_run_that_was_killed_may_lack_its_row(run: Path) -> None:
    runs.write_step(run, record(4))
    rewrite_manifest(run, status="running", files={})
    assert len(verify(run).problems) == 1
    runs.write_step(run, record(5))
    assert verify(run).problems[1:] == [f"{run / 'metrics.jsonl'}: no row for step 4."]


@pytest.mark.parametrize("name", ["metrics.jsonl", "answers.jsonl"])
def test_no_flipped_bit_of_a_line_is_read_as_another_number(run: Path, name: str) -> None:
    append_answers(run, [HeldOutAnswer(step, "1+1=", "2", 0.5) for step in STEPS])
    path = run / name

    def rows() -> list[dict[str, Any]]:
        return runs.read_metrics(run) if name == "metrics.jsonl" else [vars(answer) for answer in read_answers(run)]

    content, whole = path.read_bytes(), rows()
    for bit in range(8 * len(content)):
        path.write_bytes(flipped(content, bit))
        # If the key of the checksum is damaged, the row is read with this key, and with the numbers that were written.
        assert all(any(row.items() <= read.items() for row in whole) for read in rows()), bit


def test_no_flipped_bit_of_a_manifest_is_read_as_another_value(run: Path) -> None:
    path, whole = run / "manifest.json", runs.read_manifest(run)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        path.write_bytes(flipped(content, bit))
        # If the key of the checksum is damaged, the manifest is read as it was written.
        with contextlib.suppress(DamagedFile):
            assert runs.read_manifest(run) == whole, bit


def test_a_manifest_of_an_older_version_has_no_checksum(run: Path) -> None:
    whole = runs.read_manifest(run)
    rewrite_manifest(run)
    assert runs.read_manifest(run) == whole
    rewrite_manifest(run, crc32=7)
    with pytest.raises(DamagedFile, match=r"if they were changed on purpose, delete crc32\."):
        runs.read_manifest(run)


def test_a_file_that_inflates_without_end(run: Path) -> None:
    """Check 100 kB of zeros that become 100 MB."""
    (run / "metrics.jsonl").unlink()
    path = run / "metrics.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(10**8)))
    with pytest.raises(DamagedFile, match=r"more than 100 times as large as the file"):
        runs.read_metrics(run)
    assert any("more than 100 times" in problem for problem in verify(run).problems)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 4, "rew',  # cut off
        '{"step": 4, "rew\n',
        '{"step": 4}',  # without its line end it may still be incomplete
        "[4]\n",
        '"step"\n',
        '{"reward": 4}\n',
        "\udcff\udcfe\n",
        '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n",
    ],
)
def test_a_damaged_line_of_metrics(run: Path, line: str) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape"))
    assert [row["step"] for row in runs.read_metrics(run)] == [*STEPS]
    assert f"{path}: 1 line(s) cut off or damaged, {len(STEPS)} readable." in verify(run).problems


@pytest.mark.parametrize("cut", [5, 40, -1])
def test_packed_metrics_that_are_cut_off(run: Path, cut: int) -> None:
    """Check a packed file that is cut off in the header, in the rows, and before the last byte of the checksum."""
    runs.pack_metrics(run)
    path = run / "metrics.jsonl.gz"
    path.write_bytes(path.read_bytes()[:cut])
    report = verify(run)
    assert report.metric_rows == 0
    assert any(problem.startswith(f"{path}: cannot be read") for problem in report.problems)
    with pytest.raises(runs.DamagedFile, match=f"{path}: cannot be read"):
        runs.read_metrics(run)
