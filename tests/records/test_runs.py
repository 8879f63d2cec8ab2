"""Recorded runs: a fixed order, bit-exact steps, and atomic files after a SIGKILL. Damage is in test_verify.py."""

import gzip
import os
import re
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
from rlcorr.records.held_out import FILE, HeldOutAnswer, append_answers, read_answers, rewind_answers
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord


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


def written(run: Path, step: StepRecord) -> StepRecord:
    """Write a step and read it again."""
    runs.write_step(run, step)
    return runs.read_step(run, step.step)


# --- steps ---


BARE = dict.fromkeys(("old_log_probs", "ref_log_probs", "advantages", "values"))


@pytest.mark.parametrize(
    "step",
    [
        *(record(5, lengths) for lengths in ((3, 0, 6, 1), (6,), (0, 0))),
        replace(record(1), batch=record(1).batch.replace(**BARE)),
    ],
)
def test_a_step_comes_back_bit_for_bit(tmp_path: Path, step: StepRecord) -> None:
    assert_equal(written(tmp_path, step), step)


def test_turns_and_the_versions_of_tokens_are_recorded(tmp_path: Path) -> None:
    """The row's version is that of its first token. Other programs read both as lists of whole numbers."""
    step = record(1)
    mask = step.batch.response_mask
    counted = mask.int().cumsum(-1)
    batch = step.batch.replace(
        policy_versions=torch.where(mask, 7 + counted // 2, 0), turn_ids=torch.where(mask, counted // 3, 0)
    )
    got = written(tmp_path, replace(step, batch=batch)).batch
    for name in ("policy_versions", "turn_ids"):
        assert torch.equal(got.tensors()[name][mask].int(), batch.tensors()[name][mask].int()), name
    table = pq.read_table(runs.step_path(tmp_path, 1))
    assert table["policy_version"].to_pylist() == [7, 0, 7, 7]
    assert table["token_policy_versions"].to_pylist() == [[7, 8, 8], [], [7, 8, 8, 9, 9, 10], [7]]
    assert table["turn_ids"].to_pylist() == [[0, 0, 1], [], [0, 0, 1, 1, 1, 2], [0]]
    assert table.schema.field("turn_ids").type == pa.list_(pa.int32())


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Check needed fields, and a mask with a hole: the file has lists, so the tokens after the hole would move."""
    step = record(1)
    holed = step.batch.response_mask.clone()
    holed[2, 1] = False
    fields = ("rewards", "group_ids", "policy_versions", "prompt_ids", "prompt_mask", "response_ids")
    refused: list[tuple[dict[str, Any], str]] = [({field: None}, f"needs {field}") for field in fields]
    for change, message in [*refused, ({"response_mask": holed}, "no holes")]:
        with pytest.raises(UsageError, match=message):
            runs.write_step(tmp_path, replace(step, batch=step.batch.replace(**change)))
    assert runs.list_steps(tmp_path) == []


def test_the_schema_is_the_documented_one(run: Path) -> None:
    """Check the columns, read only with pyarrow. Byte streams of floats make files a quarter smaller."""
    schema = pq.read_schema(runs.step_path(run, 1))
    floats, ids = pa.list_(pa.float32()), pa.list_(pa.int32())
    whole = {"step": pa.int32(), "group_id": pa.int32(), "policy_version": pa.int32(), "reward": pa.float32()}
    texts = {"prompt": pa.string(), "response": pa.string(), "prompt_ids": ids, "response_ids": ids}
    names = ("rollout_log_probs", "old_log_probs", "ref_log_probs", "advantages", "values")
    assert {name: schema.field(name).type for name in schema.names} == whole | texts | dict.fromkeys(names, floats)
    table = pq.read_table(runs.step_path(run, 1))
    assert table["step"].to_pylist() == [1, 1, 1, 1]
    assert [len(row) for row in table["rollout_log_probs"].to_pylist()] == [3, 0, 6, 1]
    assert [len(row) for row in table["prompt_ids"].to_pylist()] == [2, 1, 2, 1]
    columns = pq.read_metadata(runs.step_path(run, 1)).row_group(0)
    for column in (columns.column(number) for number in range(columns.num_columns)):
        is_float = column.physical_type == "FLOAT"
        assert ("BYTE_STREAM_SPLIT" in column.encodings) == is_float, column.path_in_schema
        assert ("RLE_DICTIONARY" in column.encodings) != is_float, column.path_in_schema


# --- manifests and metrics ---


def test_a_manifest_comes_back_and_is_written_a_field_per_line(run: Path) -> None:
    """Check the format, which is compared by line: two spaces, and a line end at the end."""
    manifest = runs.read_manifest(run)
    assert (manifest.slug, manifest.status, manifest.seed, manifest.config) == ("a_run", "complete", 7, {"lr": 0.1})
    steps = [f"steps/step_{step:06d}.parquet" for step in STEPS]
    assert sorted(manifest.files) == ["metrics.jsonl", *steps]
    text = (run / "manifest.json").read_text()
    assert text.startswith('{\n  "slug": "a_run",\n  "story": "a story",\n  "status": "complete",\n')
    assert re.fullmatch(r'  "schema_version": 2,\n  "crc32": \d+\n}\n', text[text.index('  "schema_version"') :])
    assert '\n  "seed": 7,\n' in text


def test_a_manifest_of_another_program_and_of_a_newer_version(run: Path, tmp_path: Path) -> None:
    """Check one with nothing but the name, and one with a field that is not known."""
    (tmp_path / "manifest.json").write_text('{"slug": "foreign"}')
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.slug, manifest.story, manifest.status, manifest.seed) == ("foreign", "", "running", 0)
    assert (manifest.config, manifest.files) == ({}, {})
    rewrite_manifest(run, colour="blue")
    assert runs.read_manifest(run).slug == "a_run"


def test_metrics_come_back(run: Path, tmp_path: Path) -> None:
    assert runs.read_metrics(run) == [{"step": step, "reward": step / 2} for step in STEPS]
    assert runs.read_metrics(tmp_path) == []


def test_a_row_of_metrics_is_one_line_with_seven_digits(tmp_path: Path) -> None:
    """Check that 1/3 and 12345678.9 are rounded to the digits of a float32; integers, texts and flags stay the same."""
    runs.append_metrics(tmp_path, {"step": 16777217, "kl": 1 / 3, "tokens_per_second": 12345678.9})
    runs.append_metrics(tmp_path, {"step": 16777218, "phase": "warm", "skipped": True})
    rows = ['{"step": 16777217, "kl": 0.3333333, "tokens_per_second": 12345680.0}',
            '{"step": 16777218, "phase": "warm", "skipped": true}']  # fmt: skip
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(f"{row}\n" for row in rows)


def test_a_run_starts_in_a_folder_that_is_new_or_holds_no_run(tmp_path: Path, run: Path) -> None:
    """Check that a folder with a log, but without a manifest, can become a run: the log may come first."""
    (tmp_path / "logged").mkdir()
    (tmp_path / "logged" / "train.log").write_text("loading the model\n")
    for path in (tmp_path / "runs" / "local" / "sort_1", tmp_path / "logged"):
        runs.start_run(path, RunManifest(slug=path.name))
        assert runs.read_manifest(path).slug == path.name
    assert (tmp_path / "logged" / "train.log").read_text() == "loading the model\n"
    with pytest.raises(UsageError, match="already contains a run"):
        runs.start_run(run, RunManifest(slug="other"))
    assert runs.read_manifest(run).slug == "a_run"
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"] == []


def test_a_finished_run_has_the_hash_of_every_file_that_stays_as_it_is(tmp_path: Path) -> None:
    """Check sha256 of "abc" and of nothing, which are in FIPS 180. Logs, unfinished files, and the folders of monitors
    have no hash, because they change later."""
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    hashed: dict[str, str] = dict.fromkeys(("checkpoint/tokenizer/vocab.txt", "metrics.jsonl", "wandb_note.txt"), abc)
    hashed["steps/step_000001.parquet"] = nothing
    changing = ("train.log", "steps/step_000002.parquet.tmp", "tensorboard/events", "wandb/run-1/output.txt")
    for name in (*hashed, *changing):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"" if hashed.get(name) == nothing else b"abc")
    runs.write_manifest(tmp_path, RunManifest(slug="x"))
    runs.finish_run(tmp_path, RunManifest(slug="x", status="complete"))
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.status, manifest.files) == ("complete", hashed)


# --- finding ---


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the folder of committed runs and that of local ones, both empty."""
    root, local = tmp_path / "runs", tmp_path / "runs" / "local"
    monkeypatch.setattr(runs, "ROOT", root)
    monkeypatch.setattr(runs, "LOCAL", local)
    return root, local


def test_runs_lie_beside_the_package() -> None:
    repository = Path(__file__).parent.parent.parent
    assert (repository / "runs", repository / "runs" / "local") == (runs.ROOT, runs.LOCAL)


def test_committed_runs_by_name_then_local_ones_the_newest_first(folders: tuple[Path, Path]) -> None:
    """Check that the age of a run is that of its last step, not of its folder, which changes with every new file."""
    root, local = folders
    times = {root / "b": 3, root / "a": 1, root / "c": 2, local / "k": 200, local / "n": 100, local / "m": 300}
    for run, time in times.items():
        (run / "steps").mkdir(parents=True)
        os.utime(run / "steps", (time, time))
        os.utime(run, (1000 - time, 1000 - time))
    assert list(runs.list_runs()) == ["a", "b", "c", "m", "k", "n"]


def test_find_by_name_and_by_path(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A committed run hides a local one of its name. A folder without a manifest is no run."""
    root, local = folders
    assert runs.list_runs() == {}
    with pytest.raises(UsageError, match="Known: none"):
        runs.find_run("any")
    for path in (root / "shipped", root / "both", local / "mine", local / "both", tmp_path / "elsewhere"):
        make_run(path)
    (root / "not_a_run").mkdir()
    assert runs.list_runs() == {"both": root / "both", "shipped": root / "shipped", "mine": local / "mine"}
    assert runs.find_run("mine") == local / "mine"
    assert runs.find_run(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    for name, message in (
        ("shiped", r"unknown run 'shiped'\. Did you mean 'shipped'\? Known: both, mine, shipped"),
        (str(root / "not_a_run"), "unknown run"),
    ):
        with pytest.raises(UsageError, match=message):
            runs.find_run(name)


def test_a_free_name_is_one_that_no_local_run_has(folders: tuple[Path, Path]) -> None:
    assert runs.free_name("sort") == "sort_1"
    for taken in ("sort_1", "sort_2", "sort_4", "resort_3"):
        (folders[1] / taken).mkdir(parents=True)
    assert runs.free_name("sort") == "sort_3"


def test_steps_and_sketches_are_listed_by_number(tmp_path: Path) -> None:
    """Check that steps are ordered as numbers: by name, step_1000000 would come before step_999999. Other files are
    passed over."""
    assert runs.step_path(tmp_path, 12) == tmp_path / "steps" / "step_000012.parquet"
    assert runs.sketch_path(tmp_path, 12) == tmp_path / "sketch" / "step_000012.safetensors.gz"
    (tmp_path / "steps").mkdir()
    (tmp_path / "sketch").mkdir()
    for step in (1000000, 12, 999999):
        runs.step_path(tmp_path, step).touch()
        runs.sketch_path(tmp_path, step + 1).touch()
    for name in ("notes.parquet", "step_.parquet", "step_000009.parquet.tmp"):
        (tmp_path / "steps" / name).touch()
    assert runs.list_steps(tmp_path) == [12, 999999, 1000000]
    assert runs.list_sketches(tmp_path) == [13, 1000000, 1000001]


# --- going on ---


@pytest.mark.parametrize(
    ("content", "half", "steps"),
    [(True, '{"step": 4, "rew', [1, 2, 3, 4]), (True, "{", [1, 2, 3, 4]), (False, "{", [4])],
)
def test_metrics_go_on_after_a_line_that_was_cut_off(run: Path, content: bool, half: str, steps: list[int]) -> None:
    """Check that a resumed run does not lose its first new line because of the unfinished line before it."""
    path = run / "metrics.jsonl"
    path.write_text((path.read_text() if content else "") + half)
    runs.append_metrics(run, {"step": 4})
    assert [row["step"] for row in runs.read_metrics(run)] == steps


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
    assert (run / "metrics.jsonl").read_text() == "".join(f"{row}\n" for row in rows)
    assert (runs.list_steps(run), runs.list_sketches(run)) == ([1, 2], [2])
    assert runs.step_path(run, 2).read_bytes() == second
    (run / "metrics.jsonl").unlink()
    runs.rewind(run, 0)  # it was killed before its first row
    assert (runs.read_metrics(run), runs.list_steps(run)) == ([], [])


def test_packed_metrics_are_those_that_were_packed_and_go_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that packed metrics contain no time, because their hash is in the manifest."""
    lines, rows = (run / "metrics.jsonl").read_bytes(), runs.read_metrics(run)
    packed = []
    for now in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        (run / "metrics.jsonl").write_bytes(lines)
        runs.pack_metrics(run)
        packed.append((run / "metrics.jsonl.gz").read_bytes())
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == lines
    assert not (run / "metrics.jsonl").exists()
    assert (runs.read_metrics(run), len(rows)) == (rows, len(STEPS))
    runs.rewind(run, 2)
    runs.append_metrics(run, {"step": 3})
    assert [row["step"] for row in runs.read_metrics(run)] == [1, 2, 3]


# --- killed in the middle ---


def test_a_file_is_the_old_one_until_the_new_one_is_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a process that dies at the worst moment: everything is written, and nothing is on the disk yet."""

    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)
    for write in (lambda: runs.write_step(run, record(4)), lambda: runs.write_manifest(run, RunManifest(slug="new"))):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert runs.list_steps(run) == [*STEPS]
    assert runs.read_manifest(run).slug == "a_run"
    monkeypatch.undo()
    assert_equal(written(run, record(4)), record(4))


# --- greedy answers ---


FIRST, LATER = (
    HeldOutAnswer(0, "Wie viel ist 3 + 4?", "é 8\nno", 0.0),
    HeldOutAnswer(5, "Wie viel ist 3 + 4?", "7", None),
)


def test_answers_are_read_as_written_without_unfinished_lines(tmp_path: Path) -> None:
    assert read_answers(tmp_path) == []
    append_answers(tmp_path, [FIRST])
    path = tmp_path / FILE
    path.write_text(path.read_text() + '{"step": 5, "prompt": "Wie')
    assert read_answers(tmp_path) == [FIRST]
    append_answers(tmp_path, [LATER])  # ends the unfinished line first
    assert read_answers(tmp_path) == [FIRST, LATER]


def test_a_run_that_goes_on_forgets_what_came_after(tmp_path: Path) -> None:
    append_answers(tmp_path, [FIRST, LATER])
    rewind_answers(tmp_path, 4)
    assert read_answers(tmp_path) == [FIRST]
    rewind_answers(tmp_path, -1)
    assert not (tmp_path / FILE).exists()
