"""What a person sees of a run: the bar, and the event files that TensorBoard reads."""

import math
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.output.follow import following, headline

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


def test_the_headline_of_a_step_that_was_skipped() -> None:
    row = {"step": 1.0, "reward": math.nan, "bad/rewards": 2.0}
    assert headline(row, accuracy=0.25, bad=2.0) == "reward=nan accuracy=0.25 k3=nan kept=nan% bad=2"


def test_the_bar_counts_steps_and_bad_numbers_also_of_a_resumed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, bad in ((1, 2), (2, 5)):
        runs.append_metrics(tmp_path, row_of(step, 0.5, bad))
    with following(tmp_path, QUIET, done=2) as show:
        show(row_of(3, 0.5, 1), 0.25)
    last = capsys.readouterr().err.split("\r")[-1]
    assert last.startswith("3/6|")
    assert " left, reward=0.50 accuracy=0.25 k3=1.2e-04 kept=88% bad=8" in last  # 2 + 5 of the rows before, and 1
    assert list(tmp_path.iterdir()) == [tmp_path / "metrics.jsonl"]  # without TensorBoard nothing is written


def test_tensorboard_gets_every_metric_of_every_row_while_the_run_goes_on(tmp_path: Path) -> None:
    with following(tmp_path, CONFIG) as show:
        for step, reward in ((1, 0.25), (2, math.inf), (3, 0.75)):
            show(row_of(step, reward, bad=step), 0.0)
            assert scalars(tmp_path, "reward")[-1] == (step, reward)
    assert scalars(tmp_path, "bad/rewards") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert scalars(tmp_path, "rollout_corr/kept_fraction") == [(1, 0.875), (2, 0.875), (3, 0.875)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "step")


def interrupted_after_five_steps(run: Path) -> None:
    with following(run, CONFIG) as show:
        for step in (1, 2, 3, 4, 5):
            show(row_of(step, 0.25), 0.0)
        raise KeyboardInterrupt


def test_rows_after_the_checkpoint_are_hidden_by_a_resumed_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_after_five_steps(tmp_path)
    # TensorBoard orders files by the second in their names. A run is never resumed within the same second.
    (interrupted,) = (tmp_path / "tensorboard").iterdir()
    while int(time.time()) <= int(interrupted.name.split(".")[3]):
        time.sleep(0.05)
    with following(tmp_path, CONFIG, done=3) as show:
        show(row_of(4, 0.5), 0.0)
    assert scalars(tmp_path, "reward") == [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.5)]


def test_the_other_ranks_write_and_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with following(tmp_path, CONFIG, main=False) as show:
        show(row_of(1, 0.25), 0.0)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
