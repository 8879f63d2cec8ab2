"""A run that was interrupted, or killed, goes on as if nothing had happened: the same metrics, pairs and weights."""

import gc
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from processes import rlcorr, running, wait_for
from tiny import CPU, tiny_config

from rlcorr.command.cli import main
from rlcorr.command.train import train_config
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, Preset
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import WARM_START, TrainConfig
from rlcorr.train.output.config_file import write_config
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
    written = example_checkpoint()
    write_checkpoint(tmp_path, written)
    assert same(read_checkpoint(tmp_path, CPU), written)
    assert not same(read_checkpoint(tmp_path, CPU), example_checkpoint())  # other random weights: `same` can tell


def test_a_file_that_was_cut_off_is_ignored(tmp_path: Path) -> None:
    written = example_checkpoint()
    write_checkpoint(tmp_path, written)
    cut = tmp_path / f"{FILE}.tmp"
    cut.write_bytes((tmp_path / FILE).read_bytes()[:1000])
    assert same(read_checkpoint(tmp_path, CPU), written)
    write_checkpoint(tmp_path, replace(written, step=8))
    assert read_checkpoint(tmp_path, CPU).step == 8
    assert not cut.exists()


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


def test_a_checkpoint_of_another_version_is_a_usage_error(tmp_path: Path) -> None:
    """Its fields had other names then; a KeyError would say nothing to the user."""
    write_checkpoint(tmp_path, example_checkpoint())
    content = torch.load(tmp_path / FILE, weights_only=True)
    torch.save({("orders" if key == "requests" else key): value for key, value in content.items()}, tmp_path / FILE)
    with pytest.raises(UsageError, match="was written by another version of the trainer"):
        read_checkpoint(tmp_path, CPU)


def test_no_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no checkpoint to resume from"):
        read_checkpoint(tmp_path, CPU)


# --- interrupted in this process ---


RANDOM = Preset("test", CorrectionConfig(loss_type="clip_cov"), "", "")
CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "rare checkpoints": {"checkpoint_every": 2},
    "random losses": {"preset": "random", "loss": LossConfig(numbers={"clip_cov_ratio": 0.5, "clip_cov_lb": -5.0})},
    "stale": {"rollout": RolloutConfig(engine="transformers", dtype="bfloat16", staleness=2)},
    "ahead": {"rollout": RolloutConfig(engine="transformers", dtype="bfloat16", staleness=2, asynchronous=True)},
}


@pytest.mark.usefixtures("rewarding")
@pytest.mark.parametrize(
    "changes",
    [pytest.param(c, id=name, marks=() if name == "ppo" else pytest.mark.slow) for name, c in CHANGES.items()],
)
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


@pytest.fixture
def finished(tiny_model: Path, local_runs: Path) -> TrainConfig:
    """The configuration of a run of two steps that is there."""
    config = tiny_config(tiny_model, run="done", tensorboard=False)
    loop.train(config)
    return config


def call(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of `train` with these options."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_what_resume_refuses_is_one_line(
    finished: TrainConfig, local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = tmp_path / "seed.yaml"
    seed.write_text("seed: 3\n")
    for arguments, parts in (
        (["don"], ("unknown run 'don'", "Did you mean 'done'?", "Known: done.")),
        ([str(tmp_path / "done")], ("unknown run", "Known: done.")),
        (["done"], ("run done is finished", "2 steps", "--steps")),
        (["done", "--steps", "2"], ("run done is finished",)),
        (["done", "--steps", "4", "--seed", "3"], ("--seed cannot change", "--steps")),
        (["done", "--steps", "4", "--config", str(seed)], ("--seed cannot change",)),
        (["done", "--rollout.dtype", "float16"], ("--rollout.dtype cannot change",)),
        (["done", "--steps", "4", "--run", "other"], ("--run cannot change",)),
        (["done", "--steps", "4", "--stop-at-accuracy", "-1"], ("its accuracy has reached -1", "--stop-at-accuracy")),
        (["done", "--steps", "0"], ("steps must be > 0",)),
        ([], ("--resume needs the name of a run.",)),
    ):
        code, error = call(["--resume", *arguments], capsys)
        assert (code, error.count("\n")) == (2, 1), error
        assert all(part in error for part in parts), error
    assert len(runs.read_metrics(local_runs / "done")) == 2


@pytest.mark.parametrize(
    ("file", "reason"), [(FILE, "has no checkpoint/trainer.pt: it was made with --checkpoint-every 0"),
                         (Path("config.yaml"), "has no config.yaml")],
)  # fmt: skip
@pytest.mark.usefixtures("finished")
def test_a_run_that_lacks_a_file_is_one_line(
    file: Path, reason: str, local_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (local_runs / "done" / file).unlink()
    code, error = call(["--resume", "done", "--steps", "4"], capsys)
    assert (code, error.count("\n")) == (2, 1)
    assert reason in error


@pytest.mark.usefixtures("finished")
def test_a_finished_run_takes_more_steps(local_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given by its directory, which was renamed; an option that changes nothing is no change."""
    renamed = (local_runs / "done").rename(local_runs / "renamed")
    options = ("--steps", "3", "--eval-every", "1", "--max-bad-steps", "5", "--seed", "0")
    assert call(["--resume", str(renamed), *options], capsys)[0] == 0
    rows = runs.read_metrics(renamed)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert verify(renamed).problems == []
    assert list(local_runs.iterdir()) == [renamed]


@pytest.mark.parametrize("goal", [{}, {"steps": 9, "stop_at_accuracy": 0.0}], ids=["last step", "accuracy"])
def test_a_run_that_was_killed_before_its_model_was_written_is_completed(
    goal: dict[str, Any], tiny_model: Path, local_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = loop.train(tiny_config(tiny_model, run="done", tensorboard=False, **goal))
    expected = outcome(run)
    (run / "checkpoint" / "model.safetensors").unlink()
    runs.write_manifest(run, replace(runs.read_manifest(run), status="running", files={}))
    assert call(["--resume", "done"], capsys)[0] == 0
    assert outcome(run) == expected
    assert (verify(run).status, verify(run).problems) == ("complete", [])


def test_a_configuration_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resuming writes it anew: a kill in the middle must leave the old one."""
    write_config(tmp_path / "config.yaml", OptimConfig(epochs=3))
    before = (tmp_path / "config.yaml").read_text()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_config(tmp_path / "config.yaml", OptimConfig(epochs=4))
    assert (tmp_path / "config.yaml").read_text() == before


def test_play_checks_the_run_as_well(local_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["play", "--resume", "nothing"])
    assert ended.value.code == 2
    assert "unknown run 'nothing'. Known: none." in capsys.readouterr().err


def test_the_help_says_what_resume_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--resume" in printed
    for option in ("steps", "stop-at-accuracy", "eval-every", "record-every", "checkpoint-every", "max-bad-steps"):
        assert option in printed.split("--resume", 1)[1].split("--run ", 1)[0]


# --- killed, as processes ---


ENDLESS = 100_000
"""More steps than will be made before the kill: how many are enough is said when the run is resumed."""


def options(steps: int, *more: str, engine: str = "transformers") -> tuple[str, ...]:
    """A small training of the warm start, whose answers are sometimes right. Its learning rate does not fall, because
    it would fall with the number of steps."""
    return (
        *("--model", str(WARM_START), "--run", "r", "--rollout.engine", engine, "--steps", str(steps)),
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
    gc.collect()  # an engine that is collected later would take along what the next one needs
    monkeypatch.setattr(runs, "LOCAL", killed.parent.parent / "whole")
    whole = loop.train(train_config([*arguments, *steps], "rlcorr"))
    gc.collect()
    assert outcome(killed) == outcome(whole)
    report = verify(killed)
    assert (report.status, report.problems, report.readable_steps) == ("complete", [], report.metric_rows)


def test_kills_at_any_moment_change_nothing(
    local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run may be killed again, and a run ahead of its updates gives what one in step with them gives."""
    rng = random.Random(0)
    run, stale = local_runs / "r", ("--rollout.staleness", "2")
    arguments: Sequence[str] = options(ENDLESS, *stale, "--rollout.asynchronous")
    for attempt in range(2):
        kept = runs.read_metrics(run)[:-1]
        kill_during(arguments, local_runs, tmp_path / f"log{attempt}", len(kept) + 3, delay=rng.random() / 3)
        check_that_little_was_lost(run)
        assert runs.read_metrics(run)[: len(kept)] == kept
        arguments = ("--resume", "r")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 1
    assert "was killed" in capsys.readouterr().out
    check_resumed_like_uninterrupted(options(ENDLESS, *stale), run, capsys, monkeypatch)


def test_a_run_that_is_deleted_while_it_is_written_ends_in_a_sentence(local_runs: Path, tmp_path: Path) -> None:
    run, log = local_runs / "r", tmp_path / "log"
    with running("train", *options(ENDLESS), runs_folder=local_runs.parent, log=log) as trainer:
        wait_for("step 2", lambda: len(runs.read_metrics(run)) >= 2 or trainer.poll() is not None, log)
        while run.exists():  # a file may be added while the folder is emptied
            shutil.rmtree(run, ignore_errors=True)
        assert trainer.wait(120) == 2
    assert log.read_text().splitlines()[-1].endswith("cannot be written: No such file or directory.")
    assert "Traceback" not in log.read_text()
    assert not run.exists()


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-2000], lambda content: b"", lambda content: content[::-1]]
)
def test_a_damaged_checkpoint_is_a_sentence(
    tiny_model: Path, local_runs: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    run = loop.train(tiny_config(tiny_model, steps=1))
    path = run / FILE
    path.write_bytes(damage(path.read_bytes()))
    code, error = call(["--resume", run.name, "--steps", "2"], capsys)
    assert code == 2
    assert error.startswith(f"rlcorr: {path} is damaged, so the run cannot be resumed")
    assert error.count("\n") == 1


def test_a_run_has_one_writer(local_runs: Path, tmp_path: Path) -> None:
    """Check a second training run under the same name, before the first has loaded its model and later, and a resume of
    a run that is still trained."""
    run, log, folder = local_runs / "r", tmp_path / "log", local_runs.parent
    with running("train", *options(ENDLESS), runs_folder=folder, log=log) as trainer:
        wait_for("the folder", lambda: (run / "config.yaml").is_file() or trainer.poll() is not None, log)
        second = rlcorr("train", *options(4), runs_folder=folder)
        wait_for("step 2", lambda: len(runs.read_metrics(run)) >= 2 or trainer.poll() is not None, log)
        third, resumed = (
            rlcorr("train", *options(4), runs_folder=folder),
            rlcorr("train", "--resume", "r", runs_folder=folder),
        )
    for refused in (second, third, resumed):
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"{run} is being written by another process" in refused.stderr
    report = verify(run)
    assert (report.status, report.problems) == ("interrupted", [])


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")
def test_a_run_with_vllm_survives_a_kill(
    local_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine is not in the checkpoint: it must draw what it would have drawn."""
    arguments = options(ENDLESS, engine="vllm")
    kill_during(arguments, local_runs, tmp_path / "log", rows=3, delay=0.1)
    check_that_little_was_lost(local_runs / "r")
    check_resumed_like_uninterrupted(arguments, local_runs / "r", capsys, monkeypatch)


# --- Ctrl-C in the middle of a checkpoint is Ctrl-C, and the checkpoint before it stays ---


# torch.save into an open file ends such a process with "unexpected pos" or an abort, once in some ten interrupts.
INTERRUPTED = """
import random, signal, sys
from pathlib import Path
import torch
from rlcorr.train.session.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

folder, weights = Path(sys.argv[1]), {f"w{n}": torch.ones(100_000) for n in range(12)}
checkpoint = Checkpoint(1, 0.5, 0, weights, {}, {}, torch.zeros(1), torch.zeros(1), [])
write_checkpoint(folder, checkpoint)

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(0)
for _ in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.01 * chance.random())
        write_checkpoint(folder, checkpoint)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("written")
    except KeyboardInterrupt:
        print("interrupted")
    assert read_checkpoint(folder, torch.device("cpu")).policy.keys() == weights.keys()
"""


def test_an_interrupt_while_a_checkpoint_is_written_stays_an_interrupt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = Counter(done.stdout.split())
    assert sum(counts.values()) == 50
    assert counts["interrupted"] > 10
