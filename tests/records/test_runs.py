"""Recorded runs: bit-exact, whole or absent after a SIGKILL, and every kind of damage is named by its file."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from step_records import KILLS, long_record, record

from rlcorr import TokenBatch
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.runs import DamagedFile, RunManifest
from rlcorr.records.step_files import StepRecord
from rlcorr.records.verify import verify

Steps = range(1, 4)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def assert_equal(got: StepRecord, want: StepRecord) -> None:
    assert (got.step, got.prompts, got.responses) == (want.step, want.prompts, want.responses)
    ours, theirs = got.batch.tensors(), want.batch.tensors()
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(bits(ours[name]), bits(theirs[name])), name


def make_run(run: Path) -> RunManifest:
    """A complete run of three steps."""
    manifest = RunManifest(slug=run.name, story="a story", task="sort", seed=7, config={"lr": 0.1})
    runs.start_run(run, manifest)
    for step in Steps:
        runs.write_step(run, record(step))
        runs.append_metrics(run, {"step": step, "reward": step / 2})
    runs.finish_run(run, replace(manifest, status="complete"))
    return manifest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path / "a_run")
    return tmp_path / "a_run"


# --- writing and reading ---


@pytest.mark.parametrize("lengths", [(3, 0, 6, 1), (6,), (0, 0)])
def test_a_step_comes_back_bit_for_bit(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, record(5, lengths))
    assert_equal(runs.read_step(tmp_path, 5), record(5, lengths))


def test_a_step_without_sequences(tmp_path: Path) -> None:
    """Nothing was sampled: no rows, and no width, because the width is that of the longest row."""
    nothing = record(1).batch.rows(torch.tensor([], dtype=torch.int64))
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, StepRecord(1, nothing, [], []))
    got = runs.read_step(tmp_path, 1)
    assert (got.prompts, got.responses) == ([], [])
    assert got.batch.response_mask.shape == (0, 0)
    assert set(got.batch.tensors()) == set(nothing.tensors())


def test_bf16_log_probs_are_recorded_as_float32(tmp_path: Path) -> None:
    step = record(1)
    half = step.batch.rollout_log_probs.bfloat16()
    ids = {name: x for name, x in step.batch.tensors().items() if not name.endswith(("log_probs", "response_mask"))}
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, replace(step, batch=TokenBatch(step.batch.response_mask, half, **ids)))
    got = runs.read_step(tmp_path, 1).batch.rollout_log_probs
    assert torch.equal(bits(got), bits(half.float()))


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    step = record(1)
    bare = step.batch.replace(old_log_probs=None, ref_log_probs=None, advantages=None, values=None)
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, replace(step, batch=bare))
    assert_equal(runs.read_step(tmp_path, 1), replace(step, batch=bare))


@pytest.mark.parametrize(
    "field", ["rewards", "group_ids", "policy_versions", "prompt_ids", "prompt_mask", "response_ids"]
)
def test_a_step_without_a_needed_field_is_refused(tmp_path: Path, field: str) -> None:
    step = record(1)
    runs.start_run(tmp_path, RunManifest(slug="x"))
    with pytest.raises(UsageError, match=f"needs {field}"):
        runs.write_step(tmp_path, replace(step, batch=step.batch.replace(**{field: None})))
    assert runs.list_steps(tmp_path) == []


def test_a_response_with_a_hole_is_refused(tmp_path: Path) -> None:
    """The lists of a step have no place for a hole: read back, the tokens behind it would have moved."""
    step = record(1)
    mask = step.batch.response_mask.clone()
    mask[2, 1] = False
    runs.start_run(tmp_path, RunManifest(slug="x"))
    with pytest.raises(UsageError, match="no holes"):
        runs.write_step(tmp_path, replace(step, batch=step.batch.replace(response_mask=mask)))


def test_the_schema_is_the_documented_one(run: Path) -> None:
    """design.md §4, read with pyarrow alone."""
    schema = pq.read_schema(runs.step_path(run, 1))
    floats, ids = pa.list_(pa.float32()), pa.list_(pa.int32())
    whole = {"step": pa.int32(), "group_id": pa.int32(), "policy_version": pa.int32(), "reward": pa.float32()}
    texts = {"prompt": pa.string(), "response": pa.string(), "prompt_ids": ids, "response_ids": ids}
    names = ("rollout_log_probs", "old_log_probs", "ref_log_probs", "advantages", "values")
    expected = whole | texts | dict.fromkeys(names, floats)
    assert set(schema.names) == set(expected)
    assert {name: schema.field(name).type for name in schema.names} == expected
    table = pq.read_table(runs.step_path(run, 1))
    assert table["step"].to_pylist() == [1, 1, 1, 1]
    assert [len(row) for row in table["rollout_log_probs"].to_pylist()] == [3, 0, 6, 1]
    assert [len(row) for row in table["prompt_ids"].to_pylist()] == [2, 1, 2, 1]


def test_the_manifest_comes_back(run: Path) -> None:
    manifest = runs.read_manifest(run)
    assert (manifest.slug, manifest.status, manifest.seed) == ("a_run", "complete", 7)
    assert manifest.config == {"lr": 0.1}
    steps = [f"steps/step_{step:06d}.parquet" for step in Steps]
    assert sorted(manifest.files) == ["metrics.jsonl", *steps]


def test_unknown_fields_of_a_newer_manifest_are_ignored(run: Path) -> None:
    rewrite_manifest(run, colour="blue")
    assert runs.read_manifest(run).slug == "a_run"


def test_metrics_come_back(run: Path) -> None:
    assert runs.read_metrics(run) == [{"step": step, "reward": step / 2} for step in Steps]


def test_no_metrics_is_no_error(tmp_path: Path) -> None:
    assert runs.read_metrics(tmp_path) == []


def test_a_run_is_not_overwritten(run: Path) -> None:
    with pytest.raises(UsageError, match="already holds a run"):
        runs.start_run(run, RunManifest(slug="other"))
    assert runs.read_manifest(run).slug == "a_run"


def test_nothing_temporary_stays(run: Path) -> None:
    assert [path for path in run.rglob("*") if path.suffix == ".tmp"] == []


# --- finding ---


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Committed and local runs: `shipped` and `both` here, `mine` and another `both` there."""
    root, local = tmp_path / "runs", tmp_path / "runs" / "local"
    monkeypatch.setattr(runs, "ROOT", root)
    monkeypatch.setattr(runs, "LOCAL", local)
    for path in (root / "shipped", root / "both", local / "mine", local / "both"):
        make_run(path)
    (root / "not_a_run").mkdir()
    return root, local


def test_committed_runs_hide_local_ones_of_the_same_name(folders: tuple[Path, Path]) -> None:
    root, local = folders
    assert runs.list_runs() == {"both": root / "both", "shipped": root / "shipped", "mine": local / "mine"}


def test_find_by_name_and_by_path(folders: tuple[Path, Path], tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere")
    assert runs.find_run("mine") == folders[1] / "mine"
    assert runs.find_run(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"


@pytest.mark.usefixtures("folders")
def test_an_unknown_run_is_told_with_what_exists() -> None:
    with pytest.raises(UsageError, match=r"unknown run 'shiped'\. Did you mean 'shipped'\? Known: both, mine, shipped"):
        runs.find_run("shiped")


def test_no_runs_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path / "nowhere")
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "nowhere" / "local")
    assert runs.list_runs() == {}
    with pytest.raises(UsageError, match="Known: none"):
        runs.find_run("any")


def test_a_free_name_is_one_that_no_local_run_has(folders: tuple[Path, Path]) -> None:
    for taken in ("sort_1", "sort_2", "sort_4"):
        (folders[1] / taken).mkdir()
    assert runs.free_name("sort") == "sort_3"


# --- damage ---


def rewrite_manifest(run: Path, **changes: Any) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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


@pytest.mark.parametrize("keep", [0, 1, 4, 0.5, 0.9, -1])
def test_a_step_that_was_cut_off(run: Path, keep: float) -> None:
    path = runs.step_path(run, 2)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(DamagedFile, match=r"step_000002\.parquet: cannot be read"):
        runs.read_step(run, 2)
    assert verify(run).readable_steps == 2


def test_any_flipped_byte_is_noticed_and_never_raises(run: Path) -> None:
    """Parquet has no checksum of its own here: what still reads is given away by the hash."""
    path = runs.step_path(run, 2)
    content = path.read_bytes()
    places = random.Random(0)
    for _ in range(80):
        damaged = bytearray(content)
        damaged[places.randrange(len(content))] ^= places.randrange(1, 256)
        path.write_bytes(damaged)
        report = verify(run)
        assert report.readable_steps in (2, 3)
        assert "step_000002.parquet: sha256 is" in report.problems[0]


def test_a_missing_step(run: Path) -> None:
    runs.step_path(run, 2).unlink()
    with pytest.raises(DamagedFile, match=r"step_000002\.parquet: cannot be read"):
        runs.read_step(run, 2)
    report = verify(run)
    assert report.problems == [f"{runs.step_path(run, 2)}: missing."]
    assert (report.readable_steps, report.recorded_steps) == (2, 2)


def test_files_that_are_no_steps_are_passed_over(run: Path) -> None:
    for name in ("notes.parquet", "step_.parquet", "step_000009.parquet.tmp"):
        (run / "steps" / name).write_bytes(b"")
    assert runs.list_steps(run) == [*Steps]


MANIFESTS: dict[str, str] = {
    "cut off": '{"slug": "a_run", "st',
    "empty": "",
    "a list": "[1, 2]",
    "a text": '"a_run"',
    "no slug": '{"story": "none"}',
    "not utf-8": "\udcff",
    "files as a list": '{"slug": "a_run", "files": ["metrics.jsonl"]}',
    "files as a number": '{"slug": "a_run", "files": 3}',
    "a hash that is a number": '{"slug": "a_run", "files": {"metrics.jsonl": 12}}',
    "a hash that is missing": '{"slug": "a_run", "files": {"metrics.jsonl": null}}',
    "a status that is a list": '{"slug": "a_run", "status": []}',
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest(run: Path, damage: str) -> None:
    """It is named, and the steps and metrics beside it still read."""
    (run / "manifest.json").write_bytes(MANIFESTS[damage].encode(errors="surrogateescape"))
    report = verify(run)
    assert len(report.problems) == 1
    assert str(run / "manifest.json") in report.problems[0]
    assert (report.readable_steps, report.metric_rows) == (3, 3)
    with pytest.raises(DamagedFile, match=r"manifest\.json"):
        runs.read_manifest(run)


def test_a_missing_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()
    report = verify(run)
    assert report.status == "unknown"
    assert "manifest.json: not a readable manifest" in report.problems[0]
    assert report.readable_steps == 3


def test_another_schema_version(run: Path) -> None:
    rewrite_manifest(run, schema_version=2)
    with pytest.raises(DamagedFile, match=r"manifest\.json: schema version 2; this program reads 1"):
        runs.read_manifest(run)
    assert len(verify(run).problems) == 1


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


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ('{"step": 4, "rew', 3),  # cut off
        ('{"step": 4, "rew\n', 3),
        ('{"step": 4}', 3),  # without its line end it may still be being written
        ("[4]\n", 3),
        ('"step"\n', 3),
        ('{"reward": 4}\n', 3),
        ("\udcff\udcfe\n", 3),
    ],
)
def test_a_damaged_line_of_metrics(run: Path, line: str, rows: int) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape"))
    assert [row["step"] for row in runs.read_metrics(run)] == [*Steps][:rows]
    problems = verify(run).problems
    assert f"{path}: 1 line(s) cut off or damaged, {rows} readable." in problems


def test_metrics_go_on_after_a_line_that_was_cut_off(run: Path) -> None:
    """A resumed run must not lose its first new line to the half one before it."""
    path = run / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "rew')
    runs.append_metrics(run, {"step": 4})
    assert [row["step"] for row in runs.read_metrics(run)] == [1, 2, 3, 4]


# --- killed in the middle ---


def test_a_step_is_not_there_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst moment to die: everything is written, nothing is on the disk yet."""
    runs.start_run(tmp_path, RunManifest(slug="x"))

    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)
    with pytest.raises(KeyboardInterrupt):
        runs.write_step(tmp_path, record(1))
    assert runs.list_steps(tmp_path) == []
    monkeypatch.undo()
    runs.write_step(tmp_path, record(1))
    assert_equal(runs.read_step(tmp_path, 1), record(1))


def test_an_old_manifest_stays_until_the_new_one_is_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)
    with pytest.raises(KeyboardInterrupt):
        runs.write_manifest(run, RunManifest(slug="new"))
    assert runs.read_manifest(run).slug == "a_run"


# One process imports torch, which takes seconds, and forks writers that it kills at random moments. A writer
# announces a step on stdout once the step and its metrics are written.
WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from step_records import KILLS, long_record
from rlcorr.records import runs

run = Path({run!r})

def write_on(first):
    for step in range(first, first + 1000):
        runs.write_step(run, long_record(step))
        runs.append_metrics(run, {{"step": step}})
        os.write(1, f"{{step}}\\n".encode())

torch.set_num_threads(1)
runs.write_step(run, long_record(0))  # the first step takes ten times as long as the others
wait = random.Random(0)
for number in range(KILLS):
    writer = os.fork()
    if writer == 0:
        write_on(1000 * number + 1)
    time.sleep(wait.uniform(0.05, 0.15))
    os.kill(writer, signal.SIGKILL)
    assert os.waitpid(writer, 0)[1] == signal.SIGKILL
"""


@pytest.mark.slow
def test_sigkill_leaves_every_finished_step_and_no_half_one(tmp_path: Path) -> None:
    runs.start_run(tmp_path, RunManifest(slug="x"))
    code = WRITERS.format(tests=str(Path(__file__).parent.parent / "support"), run=str(tmp_path))
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    finished = [int(line) for line in told.split()]
    assert len(finished) > 1
    report = verify(tmp_path)
    assert report.readable_steps == report.recorded_steps
    assert report.metric_rows >= len(finished)
    for step in finished:
        assert_equal(runs.read_step(tmp_path, step), long_record(step))
    # A writer may die between finishing a step and announcing it, never the other way round.
    assert 1 <= report.recorded_steps - len(finished) <= 1 + KILLS  # step 0 is not announced
