"""Progress of a run for people: a progress bar, and event files for TensorBoard."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig

Write = Callable[[dict[str, float]], object]
Show = Callable[[dict[str, float], float], None]
"""Takes the row of metrics of a step, and the newest accuracy on held-out prompts."""


@contextmanager
def following(path: Path, config: TrainConfig, done: int = 0, main: bool = True) -> Iterator[Show]:
    """Yield a function that shows and logs the metrics of the next step. Only that of the main rank does anything.

    `done` is the number of steps that were made before the run was resumed; the next row follows them.
    """
    if not main:
        yield lambda row, accuracy: None
        return
    bad = sum(bad_numbers(row) for row in runs.read_metrics(path))
    with ExitStack() as opened:
        write = opened.enter_context(_tensorboard(path, done)) if config.tensorboard else None
        bar = opened.enter_context(_bar(done, config.steps))

        def show(row: dict[str, float], accuracy: float) -> None:
            nonlocal bad
            if write is not None:
                write(row)
            bad += bad_numbers(row)
            bar.set_postfix_str(headline(row, accuracy, bad), refresh=False)
            bar.update()

        yield show


def bad_numbers(row: dict[str, float]) -> float:
    """Return the number of bad numbers and skipped updates of a step, all kinds together."""
    return sum(value for name, value in row.items() if name.startswith("bad/"))


def headline(row: dict[str, float], accuracy: float, bad: float) -> str:
    """Return the text of the bar: the step's reward, k3 and kept share (nan for a skipped step), and `bad` so far."""
    k3, kept = (row.get(PREFIX + name, float("nan")) for name in ("k3_kl", "kept_fraction"))
    return f"reward={row['reward']:.2f} accuracy={accuracy:.2f} k3={k3:.1e} kept={kept:.0%} bad={bad:.0f}"


def _bar(done: int, steps: int) -> "tqdm[Any]":
    # Without name and rate the line fits into 80 columns.
    layout = "{n_fmt}/{total_fmt}|{bar}|{remaining} left{postfix}"
    return tqdm(initial=done, total=steps, bar_format=layout, dynamic_ncols=True)


@contextmanager
def _tensorboard(path: Path, done: int) -> Iterator[Write]:
    """Write event files in `<path>/tensorboard`. Rows after step `done`, of a run that was killed, are hidden."""
    from torch.utils.tensorboard import SummaryWriter

    def write(row: dict[str, float]) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, int(row["step"]))
        writer.flush()  # so that an open page of TensorBoard shows this step

    with SummaryWriter(str(path / "tensorboard"), purge_step=done + 1) as writer:
        yield write
