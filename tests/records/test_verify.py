"""Every kind of damage to a recorded run: the damaged file is named, and the other files can still be read."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from step_records import STEPS, make_run, record, rewrite_manifest

from rlcorr.records import runs
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
    "texts instead of rewards": column("reward", ["a", "b", "c", "d"]),
    "lists of other lengths": column("old_log_probs", SHORT),
    "whole numbers as log-probs": column("old_log_probs", [[1] * 3, [], [1] * 6, [1]]),
    "nothing instead of a list": column("rollout_log_probs", [[-1.0] * 3, None, [-1.0] * 6, [-1.0]]),
    "nothing inside a list": column("old_log_probs", [[-1.0, None, -1.0], [], [-1.0] * 6, [-1.0]]),
}


def test_a_step_with_wrong_columns(run: Path) -> None:
    whole = runs.step_path(run, 2).read_bytes()
    for damage, change in STEP_DAMAGE.items():
        runs.step_path(run, 2).write_bytes(whole)
        rewrite_step(run, change)
        with pytest.raises(DamagedFile, match=r"step_000002\.parquet: cannot be read"):
            runs.read_step(run, 2)
        report = verify(run)
        assert (report.readable_steps, report.recorded_steps, report.metric_rows) == (2, 3, 3), damage
        assert all("step_000002.parquet" in problem for problem in report.problems), damage
        assert len(report.problems) == 2, damage  # another hash, and it cannot be read


@pytest.mark.parametrize("keep", [None, 0, 0.5, -1])
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


def test_a_flipped_bit_is_noticed(run: Path) -> None:
    """The hash reveals each, also one that changes no number. Parquet's checksums cover the numbers, not the footer."""
    path, chance = runs.step_path(run, 2), random.Random(0)
    content = path.read_bytes()
    footer = 8 * (len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
    for bit in [chance.randrange(8 * len(content)) for _ in range(40)]:
        path.write_bytes(flipped(content, bit))
        assert "step_000002.parquet: sha256 is" in verify(run).problems[0], bit
    for bit in [chance.randrange(footer) for _ in range(200)]:
        path.write_bytes(flipped(content, bit))
        with contextlib.suppress(DamagedFile):
            assert torch.equal(runs.read_step(run, 2).batch.rollout_log_probs, record(2).batch.rollout_log_probs), bit


# --- the manifest ---

MANIFESTS: dict[str, str | None] = {
    "missing": None,
    "cut off": '{"slug": "a_run", "st',
    "empty": "",
    "a list": "[1, 2]",
    "no slug": '{"story": "none"}',
    "not utf-8": "\udcff",
    "another version": '{"slug": "a_run", "schema_version": 3}',
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest(run: Path, damage: str) -> None:
    """Check that a damaged manifest is named, and that steps and metrics can still be read."""
    path, content = run / "manifest.json", MANIFESTS[damage]
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    report = verify(run)
    reason = "schema version 3; this program reads 2" if damage == "another version" else "not a readable manifest"
    (problem,) = report.problems
    assert problem.startswith(f"{path}: {reason}")
    assert (report.status, report.readable_steps, report.metric_rows) == ("unknown", 3, 3)
    with pytest.raises(DamagedFile, match=r"manifest\.json"):
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


def test_no_flipped_bit_of_a_manifest_is_read_as_another_value(run: Path) -> None:
    path, whole = run / "manifest.json", runs.read_manifest(run)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 7):
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


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 4, "rew',  # cut off
        '{"step": 4}',  # without its line end it may still be incomplete
        "[4]\n",
        '{"reward": 4}\n',
        "\udcff\udcfe\n",
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
