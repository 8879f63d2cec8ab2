"""A recorded training run is like any other run, can be read while it grows, and is never stopped by the recorder."""

import contextlib
import errno
import importlib
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pair_files import real

from rlcorr.errors import UsageError
from rlcorr.recorders import Recorder, skyrl, trl, verl
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
        assert process.communicate(timeout=300)[1] == ""
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


# --- Anything that a trainer passes is recorded or causes one warning; the training run always continues ---


class Vague:
    """An object of an unknown class that raises for every attribute."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


class Untouchable(torch.Tensor):
    """A tensor that must not be read: every operation on it raises."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def untouchable(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape).as_subclass(Untouchable)


def jagged(layout: torch.layout) -> dict[str, Any]:
    rows = {"rollout_log_probs": [-1.0, -2.0, -1.0, -3.0], "old_log_probs": [-1.0, -1.0, -1.0, -1.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: nested tensors are a prototype
        return {
            name: torch.nested.nested_tensor([torch.tensor(x[:3]), torch.tensor(x[3:])], layout=layout)
            for name, x in rows.items()
        }


ROWS: dict[str, Any] = {"rollout_log_probs": [[-1.0, -2.0, -1.0], [-3.0]], "old_log_probs": [[-1.0] * 3, [-1.0]]}
RECORDED: dict[str, dict[str, Any]] = {
    "jagged": jagged(torch.jagged),
    "strided": jagged(torch.strided),
    "lists": ROWS,
    "lists of tensors": {name: [torch.tensor(row) for row in x] for name, x in ROWS.items()},
    "an array of arrays": {name: np.array([np.array(row) for row in x], dtype=object) for name, x in ROWS.items()},
    "arrays": {
        "rollout_log_probs": np.array([[-1.0, -2.0, -1.0], [-3.0, 0.0, 0.0]], np.float32),
        "old_log_probs": np.full((2, 3), -1.0),
        "response_mask": np.array([[True] * 3, [True, False, False]]),
    },
    "Logprob objects": {
        "rollout_log_probs": [[{7: SimpleNamespace(logprob=x), 8: SimpleNamespace(logprob=-9.0)} for x in row]
                              for row in ROWS["rollout_log_probs"]],
        "old_log_probs": ROWS["old_log_probs"],
        "response_ids": [[7, 7, 7], [7]],
    },
    "triples": {
        "rollout_log_probs": [[(x, 7, None) for x in row] for row in ROWS["rollout_log_probs"]],
        "old_log_probs": ROWS["old_log_probs"],
    },
    "None": ROWS | {"ref_log_probs": None, "values": None},
    "fields nobody reads": ROWS | {
        "position_ids": untouchable(2, 4, 3), "routed_experts": untouchable(2, 3, 4, 2), "multi_modal": Vague()
    },
}  # fmt: skip


def test_whatever_a_trainer_holds_is_recorded_without_a_warning(tmp_path: Path) -> None:
    for case, batch in RECORDED.items():
        with Recorder("mine", folder=tmp_path / case) as recorder:
            recorder.add(step=np.int64(1), batch=batch)  # pyright: ignore[reportArgumentType]
        record = runs.read_step(tmp_path / case / "mine", 1)
        assert real(record.batch.rollout_log_probs, record) == ROWS["rollout_log_probs"], case
        assert [row["step"] for row in runs.read_metrics(tmp_path / case / "mine")] == [1], case


LEFT_OUT: dict[str, tuple[Any, str]] = {
    "a 0-d tensor": ({"rewards": torch.tensor(1.0)}, "rewards must hold one number per row"),
    "three dimensions": ({"advantages": torch.zeros(2, 3, 1)}, "advantages has shape (2, 3, 1)"),
    "a generator": ({"rewards": (x for x in (1.0, 0.0))}, "rewards is a generator"),
    "another object": ({"values": Vague()}, "values is a Vague"),
    "texts": ({"weight_version": ["v1", "v1"]}, "policy_versions has texts such as 'v1'"),
    "a null reward": ({"rewards": [1.0, None]}, "rewards is null or NaN in 1 of 2 rows"),
    "complex numbers": ({"values": torch.zeros(2, 3, dtype=torch.complex64)}, "values has dtype torch.complex64"),
}


def test_a_bad_column_is_left_out_and_named_once(tmp_path: Path) -> None:
    for case, (more, message) in LEFT_OUT.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Recorder("mine", folder=tmp_path / case) as recorder:
                for step in (1, 2):
                    recorder.add(step=step, batch=ROWS | more)
        texts = [str(warning.message) for warning in caught]
        assert [message in text for text in texts] == [True], (case, texts)
        assert runs.list_steps(tmp_path / case / "mine") == [1, 2], case


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
STEPS_LEFT_OUT: dict[str, tuple[Any, Any, str]] = {
    "a device that fails": (2, ROWS | {"rollout_log_probs": untouchable(2, 3)}, "RuntimeError: CUDA error"),
    "no memory behind it": (2, ROWS | {"rollout_log_probs": torch.zeros(2, 3, device="meta")}, "NotImplementedError"),
    "an object": (2, Vague(), "ZeroDivisionError"),
    "lists in themselves": (2, ROWS | {"rollout_log_probs": ENDLESS}, "RecursionError"),
    "no pair": (2, {"rollout_log_probs": torch.zeros(2, 3)}, "old_log_probs is missing"),
    "half a step": (2.5, ROWS, "TypeError"),
    "a step that is there": (1, ROWS, "step 1 is recorded already"),
    "a negative step": (-1, ROWS, "a step is a number ≥ 0; got -1"),
    "turns that are cut otherwise": (
        2,
        ROWS | {"old_log_probs": [[-1.0], [-1.0] * 3]},
        "row 0 (from 0): old_log_probs",
    ),
}


def test_a_step_that_cannot_be_recorded_is_one_warning_and_the_training_goes_on(tmp_path: Path) -> None:
    for case, (step, batch, message) in STEPS_LEFT_OUT.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Recorder("mine", folder=tmp_path / case) as recorder:
                recorder.add(step=1, batch=ROWS)
                for _ in range(2):
                    recorder.add(step=step, batch=batch)
                recorder.add(step=3, batch=ROWS)
        texts = [str(warning.message) for warning in caught]
        assert [message in text and text.endswith("The training run continues.") for text in texts] == [True], (
            case,
            texts,
        )
        assert runs.list_steps(tmp_path / case / "mine") == [1, 3], case
        assert verify(tmp_path / case / "mine").problems == [], case


def test_after_a_run(tmp_path: Path) -> None:
    with Recorder("yours", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=ROWS)
    recorder.close()
    with pytest.warns(UserWarning, match="step 2 came after the run was closed"):
        recorder.add(step=2, batch=ROWS)
    assert runs.list_steps(tmp_path / "yours") == [1]
    assert verify(tmp_path / "yours").status == "complete"


def test_warnings_that_are_errors_end_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder("mine", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=None)  # pyright: ignore[reportArgumentType]
        recorder.add(step=2, batch=ROWS)
    assert "a step is left out: AttributeError" in capsys.readouterr().err
    assert runs.list_steps(tmp_path / "mine") == [2]


def test_the_keyboard_still_ends_a_training(tmp_path: Path) -> None:
    class Interrupts(dict[str, Any]):
        def items(self) -> Any:
            raise KeyboardInterrupt

    def trains() -> None:
        with Recorder("mine", folder=tmp_path) as recorder:
            recorder.add(step=1, batch=Interrupts())

    with pytest.raises(KeyboardInterrupt):
        trains()
    assert verify(tmp_path / "mine").status == "interrupted"


def test_rounding_is_clamped_if_asked_for(tmp_path: Path) -> None:
    above = ROWS | {"rollout_log_probs": [[0.125, -2.0, -1.0], [-3.0]]}
    with pytest.warns(UserWarning, match="clamp_rounding"), Recorder("as it is", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=above)
    with Recorder("clamped", folder=tmp_path, clamp_rounding=True) as recorder:
        recorder.add(step=1, batch=above)
    record = runs.read_step(tmp_path / "clamped", 1)
    assert real(record.batch.rollout_log_probs, record) == [[0.0, -2.0, -1.0], [-3.0]]


def test_hooks_end_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each hook still calls the wrapped function if the run exists already or the batch cannot be read."""
    with Recorder("mine", folder=tmp_path):
        pass
    helper, vague = SimpleNamespace(**{verl.FUNCTION: lambda batch: batch}), Vague()
    for name, batch, message in (
        ("mine", SimpleNamespace(batch=ROWS, meta_info={}), "nothing is changed: .*so this is the run mine_2"),
        ("other", vague, "a step is left out: ZeroDivisionError"),
    ):
        monkeypatch.setattr(helper, verl.FUNCTION, lambda batch: batch)
        verl.wrap(helper, Recorder(name, folder=tmp_path))
        with pytest.warns(UserWarning, match=message):
            assert getattr(helper, verl.FUNCTION)(batch) is batch
    monkeypatch.setitem(sys.modules, "skyrl.train.utils.callbacks", SimpleNamespace(TrainingCallback=object))  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning, match="this is the run mine_3"):
        skyrl.record_pairs("mine", folder=tmp_path).on_train_start(None, None, None)
    callback = skyrl.record_pairs("third", folder=tmp_path)
    callback.on_train_start(None, None, None)
    with pytest.warns(UserWarning, match="a step is left out: ZeroDivisionError"):
        callback.on_step_end(None, vague, None)
    callback.on_train_end(None, None, None)


def test_the_hook_of_trl_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a trainer with all that the hook uses, and one of another version that lacks an attribute."""

    class Trainer:
        model, accelerator = SimpleNamespace(training=True), SimpleNamespace(is_main_process=True)

        def __init__(self, *callbacks: Any) -> None:
            self.callback_handler = SimpleNamespace(callbacks=list(callbacks))

        def _generate_and_score_completions(self, generated: Any) -> Any:
            return generated

    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=Trainer))  # pyright: ignore[reportArgumentType]
    state = SimpleNamespace(is_world_process_zero=True)
    generated = {
        "sampling_per_token_logps": -torch.ones(2, 3), "old_per_token_logps": -torch.ones(2, 3),
        "completion_mask": torch.ones(2, 3),
    }  # fmt: skip
    callback = trl.RecordPairs("mine", folder=tmp_path)
    trainer, another = Trainer(callback), Trainer()
    callback.on_train_begin(None, state, None)
    for whose in (trainer, another):
        assert whose._generate_and_score_completions(generated) is generated
    callback.on_train_end(None, state, None)
    assert runs.list_steps(tmp_path / "mine") == [1]
    callback = trl.RecordPairs("mine", folder=tmp_path)
    with pytest.warns(UserWarning, match="this is the run mine_2"):
        callback.on_train_begin(None, state, None)
    newer = trl.RecordPairs("newer", folder=tmp_path)
    newer.on_train_begin(None, state, None)
    trainer = Trainer(newer)
    del trainer.callback_handler
    with pytest.warns(UserWarning, match="a step is left out: AttributeError"):
        assert trainer._generate_and_score_completions(generated) is generated
    newer.on_train_end(None, state, None)
