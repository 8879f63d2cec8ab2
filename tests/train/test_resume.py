"""A run that was interrupted, or killed, goes on as if nothing had happened: the same metrics, pairs and weights."""

import io
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from processes import running, wait_for
from tiny import CPU, tiny_config

from rlcorr.command.cli import main
from rlcorr.command.train import train_config
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, Preset
from rlcorr.records import runs
from rlcorr.records.run_folders import only_writer
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import WARM_START
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.session.checkpoint import FILE, Checkpoint, read_checkpoint, write_checkpoint

pytestmark = pytest.mark.slow  # a real engine, and trainings

# --- the file ---


def example_checkpoint() -> Checkpoint:
    weight = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.AdamW([weight])
    weight.square().sum().backward()
    optimizer.step()
    return Checkpoint(
        step=7, accuracy=0.25, bad_steps=2, policy={"lm.w": weight.detach()}, optimizer=optimizer.state_dict(),
        scaler={"scale": 2.0**12, "_growth_tracker": 5},
        shuffle=torch.Generator().manual_seed(3).get_state(), chance=torch.Generator().manual_seed(4).get_state(),
        requests=[BatchRequest(8, 5, [("w", torch.randn(2))]), BatchRequest(9, 6, [("w", torch.randn(2))])],
    )  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Checkpoint | BatchRequest):
        return type(a) is type(b) and same(vars(a), vars(b))
    return a == b


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    """Also after another one was cut off while it was written."""
    written = example_checkpoint()
    write_checkpoint(tmp_path, written)
    cut = tmp_path / f"{FILE}.tmp"
    cut.write_bytes((tmp_path / FILE).read_bytes()[:1000])
    assert same(read_checkpoint(tmp_path, CPU), written)
    assert not same(read_checkpoint(tmp_path, CPU), example_checkpoint())  # other random weights: `same` can tell
    write_checkpoint(tmp_path, replace(written, step=8))
    assert read_checkpoint(tmp_path, CPU).step == 8
    assert not cut.exists()


def test_torch_never_writes_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside torch's writer of files ends the process with another error, once in some ten interrupts."""
    true_save = torch.save

    def save(content: Any, target: Any) -> None:
        assert isinstance(target, io.BytesIO)
        true_save(content, target)

    monkeypatch.setattr(torch, "save", save)
    write_checkpoint(tmp_path, example_checkpoint())
    assert (tmp_path / FILE).is_file()


def test_no_flipped_bit_of_a_checkpoint_is_read_as_another_number(tmp_path: Path) -> None:
    """torch writes a checksum for each part of the file, and does not compare it when it reads."""
    write_checkpoint(tmp_path, example_checkpoint())
    path, whole = tmp_path / FILE, read_checkpoint(tmp_path, CPU)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 997):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            read = read_checkpoint(tmp_path, CPU)
        except UsageError:
            continue
        assert same(read, whole), bit


def test_what_is_no_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    """None at all, and one of another version, whose fields had other names: a KeyError would say nothing."""
    with pytest.raises(UsageError, match=r"cannot be resumed .*No such file"):
        read_checkpoint(tmp_path, CPU)
    write_checkpoint(tmp_path, example_checkpoint())
    content = torch.load(tmp_path / FILE, weights_only=True)
    torch.save({("orders" if key == "requests" else key): value for key, value in content.items()}, tmp_path / FILE)
    with pytest.raises(UsageError, match="was written by another version of the trainer"):
        read_checkpoint(tmp_path, CPU)


# --- interrupted in this process ---


RANDOM = Preset("test", CorrectionConfig(loss_type="clip_cov"), "", "")
CHANGES: dict[str, dict[str, Any]] = {
    "in step": {
        "preset": "random", "loss": LossConfig(numbers={"clip_cov_ratio": 0.5, "clip_cov_lb": -5.0}),
        "checkpoint_every": 2,
    },
    "ahead": {"rollout": RolloutConfig(engine="transformers", dtype="bfloat16", staleness=2, asynchronous=True)},
}  # fmt: skip
"""A loss that draws tokens by chance, and rare checkpoints; batches that were requested ahead."""


@pytest.mark.usefixtures("rewarding")
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_an_interrupted_run_goes_on(
    changes: dict[str, Any], tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "random", RANDOM)
    base = tiny_config(tiny_model, steps=5, optim=OptimConfig(learning_rate=1e-2), eval_every=2, tensorboard=False)
    config = replace(base, **changes)
    expected = outcome(loop.train(replace(config, run="whole")))
    true_save = loop.save

    def interrupted(session: Any, path: Path, step: int, *rest: Any) -> None:
        if step == 4:  # its metrics are written already, and must be made again
            raise KeyboardInterrupt
        true_save(session, path, step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.train(config)
    assert len(runs.read_metrics(local_runs / "tiny")) == 4
    run = loop.train(config, resume=True)
    assert outcome(run) == expected
    assert expected[0][-1]["grad_norm"] > 0
    assert (verify(run).status, verify(run).problems) == ("complete", [])


# --- the command line ---


@pytest.fixture(scope="module")
def done(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that is there; tests copy it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("finished"))
        return loop.train(tiny_config(tiny_model, run="done", tensorboard=False))


@pytest.fixture
def finished(done: Path, local_runs: Path) -> Path:
    return shutil.copytree(done, local_runs / "done")


def call(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of `train` with these options."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def check_refused(arguments: Sequence[str], parts: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, error = call(["--resume", *arguments], capsys)
    assert (code, error.count("\n")) == (2, 1), error
    assert all(part in error for part in parts), error


def test_what_resume_refuses_is_one_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = tmp_path / "seed.yaml"
    seed.write_text("seed: 3\n")
    for arguments, parts in (
        (["don"], ("unknown run 'don'", "Did you mean 'done'?", "Known: done.")),
        ([str(tmp_path / "done")], ("unknown run", "Known: done.")),
        (["done"], ("run done is finished", "made 2 steps", "--steps")),
        (["done", "--steps", "4", "--seed", "3"], ("--seed cannot change", "--steps")),
        (["done", "--steps", "4", "--config", str(seed)], ("--seed cannot change",)),
        (["done", "--rollout.dtype", "float16"], ("--rollout.dtype cannot change",)),
        (
            ["done", "--steps", "4", "--stop-at-accuracy", "-1"],
            ("run done is finished", "its accuracy is 0.00", "--stop-at-accuracy"),
        ),
        (["done", "--steps", "0"], ("steps must be > 0",)),
        ([], ("--resume needs the name of a run.",)),
    ):
        check_refused(arguments, parts, capsys)
    with only_writer(finished):
        check_refused(["done", "--steps", "4"], ("done is being written by another process",), capsys)
    path, content = finished / FILE, (finished / FILE).read_bytes()
    for damaged in (content[:-2000], b"", content[::-1]):
        path.write_bytes(damaged)
        check_refused(["done", "--steps", "4"], (f"{path} is damaged, so the run cannot be resumed",), capsys)
    path.unlink()
    lacks = "has no checkpoint/trainer.pt: it was made with --checkpoint-every 0"
    check_refused(["done", "--steps", "4"], (lacks,), capsys)
    (finished / "config.yaml").unlink()
    check_refused(["done", "--steps", "4"], ("has no config.yaml",), capsys)
    assert len(runs.read_metrics(finished)) == 2


def test_a_finished_run_takes_more_steps(finished: Path, local_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given by its directory, which was renamed; an option that changes nothing is no change."""
    renamed = finished.rename(local_runs / "renamed")
    options = ("--steps", "3", "--eval-every", "1", "--max-bad-steps", "5", "--seed", "0")
    assert call(["--resume", str(renamed), *options], capsys)[0] == 0
    assert [row["step"] for row in runs.read_metrics(renamed)] == [1, 2, 3]
    assert verify(renamed).problems == []
    assert list(local_runs.iterdir()) == [renamed]


@pytest.mark.parametrize("steps", [2, 9], ids=["last step", "accuracy"])
def test_a_run_that_was_killed_before_its_model_was_written_is_completed(
    steps: int, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had made its steps, or reached its accuracy."""
    expected = outcome(finished)
    (finished / "checkpoint" / "model.safetensors").unlink()
    runs.write_manifest(finished, replace(runs.read_manifest(finished), status="running", files={}))
    goal = () if steps == 2 else ("--steps", "9", "--stop-at-accuracy", "0")
    assert call(["--resume", "done", *goal], capsys)[0] == 0
    assert outcome(finished) == expected
    assert (verify(finished).status, verify(finished).problems) == ("complete", [])


# --- killed, as processes ---


ENDLESS = 100_000
"""More steps than will be made before the kill: how many are enough is said when the run is resumed."""


def options(steps: int, *more: str) -> tuple[str, ...]:
    """A small training of the warm start, whose answers are sometimes right. Its learning rate does not fall, because
    it would fall with the number of steps."""
    return (
        *("--model", str(WARM_START), "--run", "r", "--rollout.engine", "transformers", "--steps", str(steps)),
        *("--prompts-per-step", "8", "--samples-per-prompt", "2", "--eval-prompts", "8", "--eval-every", "4"),
        *("--optim.learning-rate", "3e-4", "--optim.final-learning-rate", "3e-4", "--no-tensorboard", *more),
    )


def kill_during(arguments: Sequence[str], folder: Path, log: Path, rows: int, delay: float) -> None:
    """Start, wait for that many rows of metrics, and kill -9 a moment later, in the middle of the run."""
    run = folder / "r"
    with running("train", *arguments, runs_folder=folder.parent, log=log) as trainer:
        wait_for(f"step {rows}", lambda: len(runs.read_metrics(run)) >= rows or trainer.poll() is not None, log)
        time.sleep(delay)  # nothing is waited for: this chooses the moment within a step
        assert trainer.poll() is None, f"the training ended before it was killed:\n{log.read_text()[-2000:]}"
        trainer.kill()
        trainer.wait()


def check_that_little_was_lost(run: Path) -> None:
    """The checkpoint of a step is written right after its metrics, and these right after its pairs."""
    rows = runs.read_metrics(run)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert read_checkpoint(run, CPU).step >= len(rows) - 1
    report = verify(run)
    assert report.status == "running"
    assert report.readable_steps == report.recorded_steps > 0
    assert report.metric_rows >= report.recorded_steps - 1
    assert [problem for problem in report.problems if "was killed" not in problem] == []
    assert len(report.problems) == 1


def check_resumed_like_uninterrupted(
    arguments: Sequence[str], killed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in this process, to two steps after the last kill; `arguments` are those of the uninterrupted training."""
    steps = ("--steps", str(len(runs.read_metrics(killed)) + 2))
    code, error = call(["--resume", "r", *steps], capsys)
    assert code == 0, error
    monkeypatch.setattr(runs, "LOCAL", killed.parent.parent / "whole")
    whole = loop.train(train_config([*arguments, *steps], "rlcorr"))
    assert outcome(killed) == outcome(whole)
    report = verify(killed)
    assert (report.status, report.problems, report.readable_steps) == ("complete", [], report.metric_rows)


def test_a_kill_changes_nothing(
    local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run ahead of its updates gives what one in step with them gives. `make attack` kills more often, and runs
    with vLLM too."""
    run, stale = local_runs / "r", ("--rollout.staleness", "2")
    arguments = options(ENDLESS, *stale, "--rollout.asynchronous")
    kill_during(arguments, local_runs, tmp_path / "log", 3, delay=random.Random(0).random() / 3)
    check_that_little_was_lost(run)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 1
    assert "was killed" in capsys.readouterr().out
    check_resumed_like_uninterrupted(options(ENDLESS, *stale), run, capsys, monkeypatch)
