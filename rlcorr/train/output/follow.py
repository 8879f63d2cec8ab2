"""Progress of a run for people: a progress bar, TensorBoard, and Weights & Biases if asked for."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rlcorr.errors import UsageError, first_line
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig

Write = Callable[[dict[str, float]], object]


def check_installed(config: TrainConfig) -> None:
    """Raise `UsageError` if a package that the configuration needs is missing, or if wandb does not know the user.

    One process of a run calls this before anything slow, because wandb may ask for a key.
    """
    for package, asked, without in (
        ("tensorboard", config.tensorboard, "leave it out with --no-tensorboard"),
        ("wandb", bool(config.wandb), "leave out --wandb"),
    ):
        if asked and importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed: install it with `pip install {package}`, or {without}.")
    if config.wandb:
        _log_in()


class Follow:
    """Progress bar and writers that take one row of metrics per step, inside a `with` block.

    Only that of the main rank does anything. `done` is the number of steps that were made before the run was resumed;
    the next row is that of the step after them.
    """

    def __init__(self, path: Path, config: TrainConfig, done: int = 0, main: bool = True) -> None:
        self._path, self._config, self._done, self._main = path, config, done, main
        self._writers: list[Write] = []
        self._bar: tqdm | None = None
        self._bad = 0.0

    def __enter__(self) -> "Follow":
        with ExitStack() as opened:
            if self._main:
                if self._config.tensorboard:
                    self._writers.append(opened.enter_context(_tensorboard(self._path, self._done)))
                if self._config.wandb:
                    self._writers.append(opened.enter_context(_wandb(self._path, self._config)))
                self._bad = sum(bad_numbers(row) for row in runs.read_metrics(self._path))
                self._bar = opened.enter_context(_bar(self._done, self._config.steps))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._opened.__exit__(*ended)

    def row(self, row: dict[str, float], accuracy: float) -> None:
        """Show and log the metrics of the next step, and the newest accuracy on held-out prompts."""
        for write in self._writers:
            write(row)
        if self._bar is not None:
            self._bad += bad_numbers(row)
            self._bar.set_postfix_str(headline(row, accuracy, self._bad), refresh=False)
            self._bar.update()


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


@contextmanager
def _wandb(path: Path, config: TrainConfig) -> Iterator[Write]:
    """Log to the project `config.wandb`; a resumed run keeps its id. The files are in `<path>/wandb`."""
    import wandb
    from wandb.errors import Error

    id_file = path / "wandb" / "id"
    old_id = id_file.read_text(encoding="utf-8") if id_file.exists() else None
    try:
        run = wandb.init(
            project=config.wandb, name=config.run, dir=path, config=config.as_dict(), id=old_id, resume="allow",
            settings=wandb.Settings(console="off"),  # it would log every redrawing of the bar
        )  # fmt: skip
    except Error as error:
        raise UsageError(f"wandb cannot start: {first_line(error)}") from error
    id_file.write_text(run.id, encoding="utf-8")
    # Use our step as the x axis: with wandb's own, the rows that a resumed run repeats would be dropped.
    run.define_metric("*", step_metric="step")
    finished = False
    try:
        yield run.log
        finished = True
    finally:  # `with run` would print a traceback
        run.finish(exit_code=0 if finished else 1)


def _log_in() -> None:
    import wandb
    from wandb.errors import Error

    try:
        wandb.login()
    except Error as error:
        raise UsageError(f"wandb cannot start: {first_line(error)}") from error
