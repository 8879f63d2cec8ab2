"""A recorded training run is like any other run, can be read while it grows, and is never stopped by the recorder."""

import contextlib
import errno
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pair_files import real

from rlcorr.errors import UsageError
from rlcorr.recorders import Recorder, skyrl, verl
from rlcorr.records import runs
from rlcorr.records.verify import verify


def pairs(value: float) -> dict[str, torch.Tensor]:
    return {
        "rollout_log_probs": torch.full((2, 3), value),
        "old_log_probs": torch.full((2, 3), -1.0),
        "response_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }


def test_steps_become_one_run_that_can_be_read_while_it_grows(tmp_path: Path) -> None:
    with Recorder("mine", folder=tmp_path) as recorder:
        for step in (3, 4):
            batch = pairs(-float(step))
            recorder.add(step=step, batch=batch)
            assert set(range(3, step)) <= set(runs.list_steps(tmp_path / "mine"))  # `add` waits for the step before
            batch["rollout_log_probs"].zero_()  # a trainer may reuse the memory
    report = verify(tmp_path / "mine")
    assert (report.problems, report.status, report.metric_rows) == ([], "complete", 2)
    for step in (3, 4):
        record = runs.read_step(tmp_path / "mine", step)
        assert real(record.batch.rollout_log_probs, record) == [[-step] * 3, [-step]]


def test_a_training_that_fails_leaves_an_interrupted_run(tmp_path: Path) -> None:
    def trains() -> None:
        with Recorder("mine", folder=tmp_path) as recorder:
            recorder.add(step=1, batch=pairs(-1.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trains()
    assert verify(tmp_path / "mine").status == "interrupted"
    with pytest.raises(UsageError, match="already contains a run"), Recorder("mine", folder=tmp_path):
        pass


def test_a_full_disk_becomes_one_warning(tmp_path: Path) -> None:
    """Check a full disk, simulated by a separate process in which no file may be larger than 64 KiB."""
    code = FULL.format(folder=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["trained", "5"]
    assert run.stderr.count("nothing more is written: ") == 1
    assert "step_000002.parquet cannot be written: File too large. The training run continues." in run.stderr
    assert runs.list_steps(tmp_path / "mine") == [1]
    assert not list((tmp_path / "mine").rglob("*.tmp"))


FULL = """
import resource, signal, torch
from pathlib import Path
from rlcorr.recorders import Recorder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
def pairs(tokens):
    x = -torch.rand(4, tokens, generator=torch.Generator().manual_seed(0))
    return {{"rollout_log_probs": x, "old_log_probs": x * 0.9, "response_mask": torch.ones(4, tokens)}}
trained = 0
with Recorder("mine", folder=Path({folder!r})) as recorder:
    for step, tokens in ((1, 10), (2, 50000), (3, 10), (4, 10), (5, 10)):
        recorder.add(step=step, batch=pairs(tokens))
        trained = step
print("trained", trained)
"""


def test_the_hook_of_verl_records_what_its_correction_is_given(tmp_path: Path) -> None:
    """Check that the run has the response_mask from before verl's function replaces it by its own mask."""

    def corrects(batch: Any, config: str) -> tuple[Any, str]:
        batch.batch["response_mask"] = torch.zeros(2, 3)
        return batch, config

    helper, recorder = SimpleNamespace(**{verl.FUNCTION: corrects}), Recorder("mine", folder=tmp_path)
    verl.wrap(helper, recorder)
    batch = SimpleNamespace(batch=pairs(-2.0), meta_info={"global_steps": 7})
    assert getattr(helper, verl.FUNCTION)(batch, "config") == (batch, "config")
    recorder.close()
    record = runs.read_step(tmp_path / "mine", 7)
    assert real(record.batch.rollout_log_probs, record) == [[-2, -2, -2], [-2]]


class _Batch(dict[str, Any]):
    """The part of SkyRL's TensorBatch that the hook uses."""


def test_the_hook_of_skyrl_records_the_batch_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the columns and shapes of the golden dump of SkyRL 0.3.0; the base class of the hook does nothing."""
    monkeypatch.setitem(sys.modules, "skyrl.train.utils.callbacks", SimpleNamespace(TrainingCallback=object))  # pyright: ignore[reportArgumentType]
    callback = skyrl.record_pairs("mine", folder=tmp_path)
    batch = _Batch(
        sequences=torch.tensor([[3, 4, 6, 7, 8]]),
        attention_mask=torch.ones(1, 5),
        response_mask=torch.ones(1, 3),
        loss_mask=torch.tensor([[1.0, 0.0, 1.0]]),
        rollout_logprobs=torch.tensor([[-0.5, -1.0, -2.0]]),
        action_log_probs=torch.tensor([[-0.75, -0.5, -2.5]]),
        values=None,
    )
    callback.on_train_start(None, None, None)
    callback.on_step_end(None, SimpleNamespace(batch=batch, global_step=9), None)
    callback.on_train_end(None, None, None)
    record = runs.read_step(tmp_path / "mine", 9)
    assert real(record.batch.rollout_log_probs, record) == [[-0.5, -2.0]]


def test_the_ten_lines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Path(__file__).resolve().parent.parent.parent / "rlcorr" / "foreign"
    readme = (foreign / "README.md").read_text(encoding="utf-8")
    lines = next(code for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "with Recorder" in code)
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    scored = SimpleNamespace(sampler_log_probs=-torch.ones(2, 3), log_probs=-torch.ones(2, 3), mask=torch.ones(2, 3))
    exec(lines, {"steps": 2, "generate_and_score": lambda: scored})
    assert runs.list_steps(tmp_path / "my_run") == [0, 1]


def test_the_plugin_of_verl_does_nothing_until_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check words and names: a name with folders is usual for an experiment, and verl hides what a plugin raises."""
    helper = SimpleNamespace(**{verl.FUNCTION: print})
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    monkeypatch.setitem(sys.modules, verl.HELPER, helper)  # pyright: ignore[reportArgumentType]
    for words, name, is_wrapped, message in (
        ("", "", False, ""),
        ("recrod", "", False, "known: helper, record, continue. verl runs as it is."),
        ("record", ".hidden", False, "nothing is recorded: the name of a run must be plain"),
        ("record", "my_project/run_1", True, ""),
    ):
        monkeypatch.setenv(verl.VARIABLE, words)
        monkeypatch.setenv("RLCORR_RUN", name)
        importlib.reload(verl)
        assert (getattr(helper, verl.FUNCTION) is not print) == is_wrapped
        assert message in capsys.readouterr().err
    getattr(helper, verl.FUNCTION)(SimpleNamespace(batch=pairs(-1.0), meta_info={}))
    assert [path.name for path in tmp_path.iterdir()] == ["my_project_run_1"]


def test_a_preempted_run_is_continued(tmp_path: Path) -> None:
    """Check a run that was killed after step 3, whose job goes on from its checkpoint after step 1."""
    code = f"""
import os, torch
from pathlib import Path
from rlcorr.recorders import Recorder
pair = {{"rollout_log_probs": -torch.ones(1, 1), "old_log_probs": -torch.ones(1, 1), "response_mask": torch.ones(1, 1)}}
recorder = Recorder("mine", folder=Path({str(tmp_path)!r})).__enter__()
for step in (1, 2, 3, 4):
    recorder.add(step=step, batch=pair)
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    run = tmp_path / "mine"
    assert runs.list_steps(run)[:3] == [1, 2, 3]
    with Recorder("mine", folder=tmp_path, continued=True) as recorder:
        assert recorder.last_step >= 3
        recorder.add(step=2, batch=pairs(-2.0))
        recorder.add(step=3, batch=pairs(-2.0))
    assert (verify(run).problems, verify(run).status) == ([], "complete")
    assert [row["step"] for row in runs.read_metrics(run)] == runs.list_steps(run) == [1, 2, 3]
    assert runs.read_step(run, 3).batch.rollout_log_probs[0, 0] == -2.0
    with Recorder("another", folder=tmp_path, continued=True) as recorder:  # a run that is not there begins
        recorder.add(step=1, batch=pairs(-1.0))
    assert runs.list_steps(tmp_path / "another") == [1]


ODD_ENDS = {
    "a fork": """
recorder = Recorder("mine", folder=Path("here")).__enter__()
recorder.add(step=1, batch=pair)
if os.fork() == 0:
    recorder.add(step=2, batch=pair)
    recorder.close()
    sys.exit()
os.wait()
recorder.add(step=3, batch=pair)
recorder.close()
""",
    "threads, and another working directory": """
recorder = Recorder("mine", folder=Path("here")).__enter__()
os.mkdir("elsewhere")
os.chdir("elsewhere")
threads = [threading.Thread(target=recorder.add, kwargs=dict(step=step, batch=pair)) for step in (1, 3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
recorder.close()
""",
    "no end": """
recorder = Recorder("mine", folder=Path("here")).__enter__()
recorder.add(step=1, batch=pair)
recorder.add(step=3, batch=pair)
""",
    "a child that lives on": """
recorder = Recorder("mine", folder=Path("here")).__enter__()
recorder.add(step=1, batch=pair)
if os.fork() == 0:
    os.close(1), os.close(2)
    time.sleep(600)
recorder.add(step=3, batch=pair)
recorder.close()
""",
}  # fmt: skip


@pytest.mark.parametrize("end", ODD_ENDS)
def test_a_recorder_neither_hangs_nor_keeps_a_lock(tmp_path: Path, end: str) -> None:
    code = f"""
import os, sys, threading, time, torch
from pathlib import Path
from rlcorr.recorders import Recorder
pair = {{"rollout_log_probs": -torch.ones(1, 1), "old_log_probs": -torch.ones(1, 1), "response_mask": torch.ones(1, 1)}}
{ODD_ENDS[end]}
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.communicate(timeout=60)[1] == ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    report = verify(tmp_path / "here" / "mine")
    assert (report.problems, report.status) == ([], "interrupted" if end == "no end" else "complete")
    assert runs.list_steps(tmp_path / "here" / "mine") == [1, 3]


def test_a_disk_that_fails_at_the_start_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    said = r"manifest\.json cannot be written: Input/output error"
    with pytest.warns(UserWarning, match=said), Recorder("mine", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=pairs(-1.0))
    assert [*tmp_path.iterdir()] == []
