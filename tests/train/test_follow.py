"""What a person sees of a run: the bar, the event files that TensorBoard reads, and the file that wandb uploads."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.output.follow import Follow, check_installed, headline

CONFIG = TrainConfig(run="followed", steps=6)
QUIET = TrainConfig(run="followed", steps=6, tensorboard=False)


def row_of(step: int, reward: float, bad: int = 0) -> dict[str, float]:
    return {
        "step": step, "reward": reward, "rollout_corr/k3_kl": 0.00012, "rollout_corr/kept_fraction": 0.875,
        "bad/rewards": bad,
    }  # fmt: skip


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard shows them."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_the_headline() -> None:
    expected = "reward=0.50 accuracy=0.25 k3=1.2e-04 kept=88% bad=3"
    assert headline(row_of(1, 0.5), accuracy=0.25, bad=3.0) == expected


def test_the_headline_of_a_step_that_was_skipped() -> None:
    row = {"step": 1.0, "reward": math.nan, "bad/rewards": 2.0}
    assert headline(row, accuracy=0.25, bad=2.0) == "reward=nan accuracy=0.25 k3=nan kept=nan% bad=2"


def test_the_bar_counts_steps_and_bad_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Follow(tmp_path, QUIET) as follow:
        for step, bad in ((1, 0), (2, 3), (3, 1)):
            follow.row(row_of(step, 0.5, bad), accuracy=0.25)
    last = capsys.readouterr().err.split("\r")[-1]
    assert last.startswith("3/6|")
    assert " left, reward=0.50 accuracy=0.25 k3=1.2e-04 kept=88% bad=4" in last


def test_the_bar_of_a_resumed_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step, bad in ((1, 2), (2, 5)):
        runs.append_metrics(tmp_path, row_of(step, 0.5, bad))
    with Follow(tmp_path, QUIET, done=2) as follow:
        follow.row(row_of(3, 0.5, 1), accuracy=0.25)
    last = capsys.readouterr().err.split("\r")[-1]
    assert last.startswith("3/6|")
    assert "bad=8" in last  # 2 + 5 of the rows before, and 1


def test_tensorboard_gets_every_metric_of_every_row(tmp_path: Path) -> None:
    with Follow(tmp_path, CONFIG) as follow:
        for step in (1, 2, 3):
            follow.row(row_of(step, step / 4, bad=step), accuracy=0.0)
    assert scalars(tmp_path, "reward") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(tmp_path, "bad/rewards") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert scalars(tmp_path, "rollout_corr/kept_fraction") == [(1, 0.875), (2, 0.875), (3, 0.875)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "step")


def test_a_row_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    with Follow(tmp_path, CONFIG) as follow:
        follow.row(row_of(1, 0.25), accuracy=0.0)
        assert scalars(tmp_path, "reward") == [(1, 0.25)]


def test_a_number_that_is_not_finite_is_written_as_it_is(tmp_path: Path) -> None:
    with Follow(tmp_path, CONFIG) as follow:
        follow.row(row_of(1, math.nan), accuracy=0.0)
        follow.row(row_of(2, math.inf), accuracy=0.0)
    (_, first), (_, second) = scalars(tmp_path, "reward")
    assert math.isnan(first)
    assert second == math.inf


def interrupted_after_five_steps(run: Path) -> None:
    with Follow(run, CONFIG) as follow:
        for step in (1, 2, 3, 4, 5):
            follow.row(row_of(step, 0.25), accuracy=0.0)
        raise KeyboardInterrupt


def test_rows_after_the_checkpoint_are_hidden_by_a_resumed_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_after_five_steps(tmp_path)
    # TensorBoard orders files by the second in their names. A run is never resumed within the same second.
    (interrupted,) = (tmp_path / "tensorboard").iterdir()
    while int(time.time()) <= int(interrupted.name.split(".")[3]):
        time.sleep(0.05)
    with Follow(tmp_path, CONFIG, done=3) as follow:
        follow.row(row_of(4, 0.5), accuracy=0.0)
    assert scalars(tmp_path, "reward") == [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.5)]


def test_the_other_ranks_write_and_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Follow(tmp_path, CONFIG, main=False) as follow:
        follow.row(row_of(1, 0.25), accuracy=0.0)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_without_tensorboard_nothing_is_written(tmp_path: Path) -> None:
    with Follow(tmp_path, QUIET) as follow:
        follow.row(row_of(1, 0.25), accuracy=0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_refused_if_it_is_asked_for(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes Python answer as if it were not installed
    asked = TrainConfig(tensorboard=package == "tensorboard", wandb="project" if package == "wandb" else "")
    with pytest.raises(UsageError, match=f"{package} is not installed: .*pip install {package}.*leave.* --"):
        check_installed(asked)
    check_installed(TrainConfig(tensorboard=False))


# --- in processes of their own: wandb starts one, and hooks itself into its parent's exit ---

LOADED = """
import sys, rlcorr.train.output.follow
print([name for name in ("tensorboard", "wandb", "torch.utils.tensorboard") if name in sys.modules])
"""
FOLLOWED = """
import sys
from pathlib import Path
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.output.follow import Follow, check_installed
path, done, last, ending = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
config = TrainConfig(run="followed", steps=6, tensorboard=False, wandb="a project")
check_installed(config)
with Follow(path, config, done) as follow:
    for step in range(done + 1, last + 1):
        follow.row({"step": step, "reward": step / 4, "bad/rewards": 0}, accuracy=0.0)
    if ending == "interrupted":
        sys.exit("interrupted")
"""


def python(program: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env=clean | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_imported() -> None:
    assert python(LOADED).stdout == "[]\n"


@pytest.mark.slow
def test_wandb_without_a_key_is_refused_in_one_sentence(tmp_path: Path) -> None:
    ended = python(FOLLOWED, str(tmp_path), "0", "1", "whole", HOME=str(tmp_path), NETRC=str(tmp_path / "netrc"))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("rlcorr.errors.UsageError: wandb cannot start: No API key")
    assert not (tmp_path / "wandb").exists()


@pytest.mark.slow
def test_wandb_records_the_rows_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    offline = {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    first = python(FOLLOWED, str(tmp_path), "0", "3", "interrupted", **offline)
    second = python(FOLLOWED, str(tmp_path), "2", "4", "whole", **offline)
    assert (first.returncode, second.returncode) == (1, 0), first.stderr + second.stderr
    one, two = (wandb_file(path) for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")))
    assert one["rows"] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert two["rows"] == [(3, 0.75), (4, 1.0)]
    assert one["id"] == two["id"] == (tmp_path / "wandb" / "id").read_text()
    assert one["project"] == two["project"] == "a project"
    assert one["name"] == two["name"] == "followed"
    assert (one["exit"], two["exit"]) == (1, 0)
    assert one["config"]["rollout"]["temperature"] == 1.0
    assert one["config"]["steps"] == 6
    assert one["x_axis"] == two["x_axis"] == {"step"}


def wandb_file(path: Path) -> dict[str, Any]:
    """What an offline run would upload, read from its file without wandb's own reader."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    reported: dict[str, Any] = {"rows": [], "config": {}, "x_axis": set()}
    for content in leveldb_records(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            reported["rows"].append((row["step"], row["reward"]))
        elif kind == "run":
            reported |= {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
            reported["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "exit":
            reported["exit"] = record.exit.exit_code
        elif kind == "metric" and record.metric.glob_name == "*":
            reported["x_axis"].add(record.metric.step_metric)
    return reported


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB, parts of checksum(4), length(2), kind(1) and bytes.

    A record is one part of kind 1, or parts of the kinds 2, 3, …, 4. wandb's file has a header of 7 bytes.
    """
    block, position, parts = 32768, 7, b""
    while position + 7 <= len(content):
        if block - position % block < 7:  # too small for a part: padding
            position += block - position % block
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        if kind == 0:
            break
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
