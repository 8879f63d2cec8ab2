"""Recorded runs: a fixed order, bit-exact steps, and atomic files after a SIGKILL. Damage is in test_verify.py."""

import gzip
import os
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from step_records import KILLS, STEPS, long_record, make_run, record, rewrite_manifest

from rlcorr import TokenBatch
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord
from rlcorr.records.verify import verify


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def assert_equal(got: StepRecord, want: StepRecord) -> None:
    assert (got.step, got.prompts, got.responses) == (want.step, want.prompts, want.responses)
    ours, theirs = got.batch.tensors(), want.batch.tensors()
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(bits(ours[name]), bits(theirs[name])), name


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
    """Check a step without answers: it has no rows and no width, because the width is that of the longest row."""
    nothing = record(1).batch.rows(torch.tensor([], dtype=torch.int64))
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, StepRecord(1, nothing, [], []))
    got = runs.read_step(tmp_path, 1)
    assert (got.prompts, got.responses) == ([], [])
    assert got.batch.response_mask.shape == (0, 0)
    assert set(got.batch.tensors()) == set(nothing.tensors())


def test_turns_and_the_versions_of_tokens_are_recorded(tmp_path: Path) -> None:
    """The row's version is that of its first token. Other programs read both as lists of whole numbers."""
    step = record(1)
    mask = step.batch.response_mask
    counted = mask.int().cumsum(-1)
    batch = step.batch.replace(
        policy_versions=torch.where(mask, 7 + counted // 2, 0), turn_ids=torch.where(mask, counted // 3, 0)
    )
    runs.start_run(tmp_path, RunManifest(slug="x"))
    runs.write_step(tmp_path, replace(step, batch=batch))
    got = runs.read_step(tmp_path, 1).batch
    for name in ("policy_versions", "turn_ids"):
        assert torch.equal(got.tensors()[name][mask].int(), batch.tensors()[name][mask].int()), name
    table = pq.read_table(runs.step_path(tmp_path, 1))
    assert table["policy_version"].to_pylist() == [7, 0, 7, 7]
    assert table["token_policy_versions"].to_pylist() == [[7, 8, 8], [], [7, 8, 8, 9, 9, 10], [7]]
    assert table["turn_ids"].to_pylist() == [[0, 0, 1], [], [0, 0, 1, 1, 1, 2], [0]]
    assert table.schema.field("turn_ids").type == pa.list_(pa.int32())


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
    """Check that a mask with a hole is refused: the file has lists, so the tokens after the hole would move."""
    step = record(1)
    mask = step.batch.response_mask.clone()
    mask[2, 1] = False
    runs.start_run(tmp_path, RunManifest(slug="x"))
    with pytest.raises(UsageError, match="no holes"):
        runs.write_step(tmp_path, replace(step, batch=step.batch.replace(response_mask=mask)))


def test_the_schema_is_the_documented_one(run: Path) -> None:
    """Check the columns of design.md §4, read only with pyarrow."""
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


def test_the_bytes_of_floats_stand_apart(run: Path) -> None:
    """Check byte streams of floats, which make files a quarter smaller; texts and integers have dictionaries."""
    columns = pq.read_metadata(runs.step_path(run, 1)).row_group(0)
    for column in (columns.column(number) for number in range(columns.num_columns)):
        floats = column.physical_type == "FLOAT"
        assert ("BYTE_STREAM_SPLIT" in column.encodings) == floats, column.path_in_schema
        assert ("RLE_DICTIONARY" in column.encodings) != floats, column.path_in_schema


def test_the_manifest_comes_back(run: Path) -> None:
    manifest = runs.read_manifest(run)
    assert (manifest.slug, manifest.status, manifest.seed) == ("a_run", "complete", 7)
    assert manifest.config == {"lr": 0.1}
    steps = [f"steps/step_{step:06d}.parquet" for step in STEPS]
    assert sorted(manifest.files) == ["metrics.jsonl", *steps]


def test_a_manifest_is_written_a_field_per_line(tmp_path: Path) -> None:
    """Check the format of a manifest, which is compared by line: two spaces, and a line end at the end."""
    runs.start_run(tmp_path / "a_run", RunManifest(slug="a_run", seed=7))
    text = (tmp_path / "a_run" / "manifest.json").read_text()
    assert text.startswith('{\n  "slug": "a_run",\n  "story": "",\n  "status": "running",\n')
    assert re.fullmatch(r'  "schema_version": 1,\n  "crc32": \d+\n}\n', text[text.index('  "schema_version"') :])
    assert '\n  "seed": 7,\n' in text


def test_what_a_manifest_does_not_say_is_empty(tmp_path: Path) -> None:
    """Check the manifest of another program, which may have nothing but the name."""
    (tmp_path / "manifest.json").write_text('{"slug": "foreign"}')
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.slug, manifest.story, manifest.status, manifest.seed) == ("foreign", "", "running", 0)
    assert (manifest.config, manifest.files) == ({}, {})


def test_unknown_fields_of_a_newer_manifest_are_ignored(run: Path) -> None:
    rewrite_manifest(run, colour="blue")
    assert runs.read_manifest(run).slug == "a_run"


def test_a_large_step_is_written_in_parts(run: Path) -> None:
    """Check 140,000 positions, of which at most 65,536, or one response, are compressed at a time."""
    large = record(9, (70_000, 5))
    runs.write_step(run, large)
    assert pq.ParquetFile(runs.step_path(run, 9)).num_row_groups == 2
    assert torch.equal(runs.read_step(run, 9).batch.rollout_log_probs, large.batch.rollout_log_probs)


def test_metrics_come_back(run: Path) -> None:
    assert runs.read_metrics(run) == [{"step": step, "reward": step / 2} for step in STEPS]


def test_a_row_of_metrics_is_one_line_with_seven_digits(tmp_path: Path) -> None:
    """Check that 1/3 and 12345678.9 are rounded to the digits of a float32; integers, texts and flags stay the same."""
    runs.append_metrics(tmp_path, {"step": 16777217, "kl": 1 / 3, "tokens_per_second": 12345678.9})
    runs.append_metrics(tmp_path, {"step": 16777218, "phase": "warm", "skipped": True})
    rows = ['{"step": 16777217, "kl": 0.3333333, "tokens_per_second": 12345680.0}',
            '{"step": 16777218, "phase": "warm", "skipped": true}']  # fmt: skip
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(with_checksum(row) for row in rows)


def with_checksum(row: str) -> str:
    """A line as the file has it: the checksum of the line without it comes last."""
    return row.removesuffix("}") + f', "crc32": {zlib.crc32(row.encode())}}}\n'


def test_no_metrics_is_no_error(tmp_path: Path) -> None:
    assert runs.read_metrics(tmp_path) == []


def test_a_run_is_not_overwritten(run: Path) -> None:
    with pytest.raises(UsageError, match="already contains a run"):
        runs.start_run(run, RunManifest(slug="other"))
    assert runs.read_manifest(run).slug == "a_run"


def test_a_run_starts_in_a_folder_that_is_new_or_holds_no_run(tmp_path: Path) -> None:
    """Check that a folder with a log, but without a manifest, can become a run: the log may come first."""
    run = tmp_path / "runs" / "local" / "sort_1"
    runs.start_run(run, RunManifest(slug="sort_1"))
    assert runs.read_manifest(run).slug == "sort_1"
    (tmp_path / "sort_2").mkdir()
    (tmp_path / "sort_2" / "train.log").write_text("loading the model\n")
    runs.start_run(tmp_path / "sort_2", RunManifest(slug="sort_2"))
    assert runs.read_manifest(tmp_path / "sort_2").slug == "sort_2"
    assert (tmp_path / "sort_2" / "train.log").read_text() == "loading the model\n"


def test_a_finished_run_has_the_hash_of_every_file_that_stays_as_it_is(tmp_path: Path) -> None:
    """Check sha256 of "abc" and of nothing, which are in FIPS 180. Logs, unfinished files, and the folders of monitors
    have no hash, because they change later."""
    for name in ("metrics.jsonl", "checkpoint/tokenizer/vocab.txt", "wandb_note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "step_000001.parquet").write_bytes(b"")
    for name in ("train.log", "steps/step_000002.parquet.tmp", "tensorboard/events", "wandb/run-1/output.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"changing")
    runs.write_manifest(tmp_path, RunManifest(slug="x"))
    runs.finish_run(tmp_path, RunManifest(slug="x", status="complete"))
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    manifest = runs.read_manifest(tmp_path)
    assert manifest.status == "complete"
    assert manifest.files == {
        "checkpoint/tokenizer/vocab.txt": abc,
        "metrics.jsonl": abc,
        "steps/step_000001.parquet": nothing,
        "wandb_note.txt": abc,
    }


def test_nothing_temporary_stays(run: Path) -> None:
    assert [path for path in run.rglob("*") if path.suffix == ".tmp"] == []


# --- finding ---


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Make committed runs `shipped` and `both`, and local runs `mine` and another `both`."""
    root, local = tmp_path / "runs", tmp_path / "runs" / "local"
    monkeypatch.setattr(runs, "ROOT", root)
    monkeypatch.setattr(runs, "LOCAL", local)
    for path in (root / "shipped", root / "both", local / "mine", local / "both"):
        make_run(path)
    (root / "not_a_run").mkdir()
    return root, local


def test_runs_lie_beside_the_package() -> None:
    repository = Path(__file__).parent.parent.parent
    assert repository / "runs" == runs.ROOT
    assert repository / "runs" / "local" == runs.LOCAL


def test_committed_runs_by_name_then_local_ones_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the age of a run is that of its last step, not of its folder, which changes with every new file."""
    root, local = tmp_path / "runs", tmp_path / "runs" / "local"
    monkeypatch.setattr(runs, "ROOT", root)
    monkeypatch.setattr(runs, "LOCAL", local)
    times = {root / "b": 3, root / "a": 1, root / "c": 2, local / "k": 200, local / "n": 100, local / "m": 300}
    for run, time in times.items():
        (run / "steps").mkdir(parents=True)
        os.utime(run / "steps", (time, time))
        os.utime(run, (1000 - time, 1000 - time))
    assert list(runs.list_runs()) == ["a", "b", "c", "m", "k", "n"]


def test_committed_runs_hide_local_ones_of_the_same_name(folders: tuple[Path, Path]) -> None:
    root, local = folders
    assert runs.list_runs() == {"both": root / "both", "shipped": root / "shipped", "mine": local / "mine"}


def test_find_by_name_and_by_path(folders: tuple[Path, Path], tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere")
    assert runs.find_run("mine") == folders[1] / "mine"
    assert runs.find_run(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"


def test_a_folder_without_a_manifest_is_no_run(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="unknown run"):
        runs.find_run(str(folders[0] / "not_a_run"))


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
    assert runs.free_name("sort") == "sort_1"
    for taken in ("sort_1", "sort_2", "sort_4", "resort_3"):
        (folders[1] / taken).mkdir()
    assert runs.free_name("sort") == "sort_3"


def test_the_first_local_run_needs_no_folder_of_runs(local_runs: Path) -> None:
    assert not local_runs.exists()
    assert runs.free_name("sort") == "sort_1"


def test_files_that_are_no_steps_are_passed_over(run: Path) -> None:
    for name in ("notes.parquet", "step_.parquet", "step_000009.parquet.tmp"):
        (run / "steps" / name).write_bytes(b"")
    assert runs.list_steps(run) == [*STEPS]


def test_steps_and_sketches_lie_where_the_readme_says(tmp_path: Path) -> None:
    assert runs.step_path(tmp_path, 12) == tmp_path / "steps" / "step_000012.parquet"
    assert runs.sketch_path(tmp_path, 12) == tmp_path / "sketch" / "step_000012.safetensors.gz"


def test_steps_are_listed_by_number(tmp_path: Path) -> None:
    """Check that steps are ordered as numbers: by name, step_1000000 would come before step_999999."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "sketch").mkdir()
    for step in (1000000, 12, 999999):
        (tmp_path / "steps" / f"step_{step:06d}.parquet").touch()
        (tmp_path / "sketch" / f"step_{step + 1:06d}.safetensors.gz").touch()
    assert runs.list_steps(tmp_path) == [12, 999999, 1000000]
    assert runs.list_sketches(tmp_path) == [13, 1000000, 1000001]


# --- going on ---


@pytest.mark.parametrize("half", ['{"step": 4, "rew', "{"])
def test_metrics_go_on_after_a_line_that_was_cut_off(run: Path, half: str) -> None:
    """Check that a resumed run does not lose its first new line because of the unfinished line before it."""
    path = run / "metrics.jsonl"
    path.write_text(path.read_text() + half)
    runs.append_metrics(run, {"step": 4})
    assert [row["step"] for row in runs.read_metrics(run)] == [1, 2, 3, 4]


def test_metrics_begin_after_a_first_line_of_one_byte(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{")
    runs.append_metrics(tmp_path, {"step": 1})
    assert runs.read_metrics(tmp_path) == [{"step": 1}]


def test_a_run_that_goes_on_forgets_what_came_later(run: Path) -> None:
    """Check a run that continues from step 2: step 3 with its row and sketch is deleted, and the half row of step 4."""
    (run / "sketch").mkdir()
    for step in (2, 3):
        runs.sketch_path(run, step).touch()
    second = runs.step_path(run, 2).read_bytes()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    runs.rewind(run, 2)
    rows = ['{"step": 1, "reward": 0.5}', '{"step": 2, "reward": 1.0}']
    assert (run / "metrics.jsonl").read_text() == "".join(with_checksum(row) for row in rows)
    assert (runs.list_steps(run), runs.list_sketches(run)) == ([1, 2], [2])
    assert runs.step_path(run, 2).read_bytes() == second


def test_packed_metrics_are_those_that_were_packed(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes()
    rows = runs.read_metrics(run)
    runs.pack_metrics(run)
    assert not (run / "metrics.jsonl").exists()
    with gzip.open(run / "metrics.jsonl.gz") as packed:
        assert packed.read() == lines
    assert runs.read_metrics(run) == rows
    assert len(rows) == len(STEPS)


def test_packed_metrics_have_the_same_bytes_at_any_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that packed metrics contain no time, because their hash is in the manifest."""
    lines = (run / "metrics.jsonl").read_bytes()
    packed = []
    for now in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        (run / "metrics.jsonl").write_bytes(lines)
        runs.pack_metrics(run)
        packed.append((run / "metrics.jsonl.gz").read_bytes())
    assert packed[0] == packed[1]


def test_a_run_with_packed_metrics_goes_on(run: Path) -> None:
    runs.pack_metrics(run)
    runs.rewind(run, 2)
    runs.append_metrics(run, {"step": 3})
    assert [row["step"] for row in runs.read_metrics(run)] == [1, 2, 3]


# --- killed in the middle ---


def test_a_step_is_not_there_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a process that dies at the worst moment: everything is written, and nothing is on the disk yet."""
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


# One process imports torch, which takes seconds, and forks writers. It kills them at random moments, after 0, 1 or 2
# finished steps. A writer announces a step after the step and its metrics are written.
WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from step_records import KILLS, long_record
from rlcorr.records import runs

run = Path({run!r})

def write_on(first, announced):
    for step in range(first, first + 1000):
        runs.write_step(run, long_record(step))
        runs.append_metrics(run, {{"step": step}})
        os.write(announced, f"{{step}}\\n".encode())

torch.set_num_threads(1)
runs.write_step(run, long_record(0))
wait = random.Random(0)
for number in range(KILLS):
    heard, announced = os.pipe()
    writer = os.fork()
    if writer == 0:
        write_on(1000 * number + 1, announced)
    os.close(announced)
    with os.fdopen(heard) as lines:
        for _ in range(number % 3):
            print(lines.readline(), end="")
        time.sleep(wait.uniform(0, 0.05))
        os.kill(writer, signal.SIGKILL)
        assert os.waitpid(writer, 0)[1] == signal.SIGKILL
        print(lines.read(), end="")
"""


@pytest.mark.slow
def test_sigkill_leaves_every_finished_step_and_no_half_one(tmp_path: Path) -> None:
    runs.start_run(tmp_path, RunManifest(slug="x"))
    code = WRITERS.format(tests=str(Path(__file__).parent.parent / "support"), run=str(tmp_path))
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    finished = [int(line) for line in told.split()]
    assert len(finished) >= KILLS  # Σ number % 3 over twelve numbers
    report = verify(tmp_path)
    assert report.readable_steps == report.recorded_steps
    assert report.metric_rows >= len(finished)
    for step in finished:
        assert_equal(runs.read_step(tmp_path, step), long_record(step))
    # A writer may die between finishing a step and announcing it, never the other way round.
    assert 1 <= report.recorded_steps - len(finished) <= 1 + KILLS  # step 0 is not announced
