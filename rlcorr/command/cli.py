"""The verbs of `python -m rlcorr`."""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from rlcorr.command.doctor import doctor
from rlcorr.command.play import play
from rlcorr.command.tables import gradient_table, study_table, sweep_table
from rlcorr.errors import UsageError, unknown
from rlcorr.foreign.pairs import import_file, missing
from rlcorr.records import runs, study
from rlcorr.records.recipes import find_recipe, install, read_index
from rlcorr.train.config import PretrainConfig, TrainConfig

EXIT_PROBLEMS = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
Config = TypeVar("Config", bound=TrainConfig | PretrainConfig)

# Each verb is a dataclass: its fields are the options, their docstrings the help.


@dataclass(frozen=True)
class Verify:
    """Check the files of a run: hashes, and that every step can be read."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""


@dataclass(frozen=True)
class Import:
    """Make a run of your own log-prob pairs: Parquet, JSON Lines, .npz or .safetensors, or another system's dump."""

    file: Annotated[Path, tyro.conf.Positional]
    """What it must hold: rollout_log_probs and old_log_probs, and where it is padded response_mask."""
    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: imported and the next free number."""

    def __post_init__(self) -> None:
        if Path(self.run).name != self.run or self.run == "..":
            raise UsageError(f"run must be a plain name, without folders; got {self.run!r}.")


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, what will be used, and how to mend what is missing."""


@dataclass(frozen=True)
class Play:
    """Train in the background and serve the app, until Ctrl-C. Takes the options of `train` as well."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """With --no-train, only the app."""


@dataclass(frozen=True)
class FromFile(Generic[Config]):
    """The options of a verb that can start from a file."""

    options: Annotated[Config, tyro.conf.arg(name="")]
    config: Path | None = None
    """YAML file of options to start from, like the config.yaml of every run; options given here override it."""


@dataclass(frozen=True)
class FromRun(FromFile[TrainConfig]):
    """The options of `train`, which can also go on with a run."""

    resume: str = ""
    """Name or directory of a run to go on with, from its last checkpoint, as if it had never stopped. Its own options
    hold; only steps, stop-at-accuracy, eval-every, record-every, checkpoint-every, max-bad-steps, save-model,
    tensorboard and wandb may be given anew."""


@dataclass(frozen=True)
class Record:
    """Make a committed run again, from its entry in runs/index.toml."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of the run, or all."""


@dataclass(frozen=True)
class Gradients:
    """Bias, noise and direction of every preset's gradient on a recorded step, from its score sketch."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""
    step: int | None = None
    """Which step; by default the last that has a sketch."""
    presets: tuple[str, ...] = ()
    """Which presets; by default all."""
    sweep: str = ""
    """One preset at twenty thresholds instead, and the one that should have been chosen."""
    rule: int | None = None
    """Which of that preset's rejection rules is moved, from 0; by default its weights, or without them rule 0."""


@dataclass(frozen=True)
class Study:
    """What became of every preset under a mismatch that breaks a training, as a table."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of a study in runs/study/index.toml, or all."""
    train: bool = False
    """Train it again; what an earlier, interrupted call has finished is kept."""


VERBS = {
    "play": Play, "train": TrainConfig, "pretrain": PretrainConfig, "record": Record, "gradients": Gradients,
    "study": Study, "import": Import, "verify": Verify, "doctor": Doctor,
}  # fmt: skip

NAMED = {"--config": "YAML file", "--resume": "run"}


def main(arguments: list[str] | None = None) -> None:
    """Run a verb. A `UsageError` is one line on stderr and exit code 2; Ctrl-C ends a verb tidily with 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts a verb with & leaves it ignored
    try:
        sys.exit(run_verb(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        print(f"rlcorr: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `| head` has read enough; what Python still wants to flush has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PROBLEMS)


def run_verb(arguments: list[str]) -> int:
    """The exit code of a verb and its options."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name, options = arguments[0], arguments[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    if name == "play":
        return _play(options)
    prog = f"python -m rlcorr {name}"
    if name == "train":
        return _train(train_config(options, prog), resume=_given("--resume", options) is not None)
    if name == "pretrain":
        return _pretrain(configured(PretrainConfig, options, prog))
    request = tyro.cli(VERBS[name], args=options, prog=prog)
    if isinstance(request, Record):
        return _record(request.run)
    if isinstance(request, Gradients):
        return _gradients(request)
    if isinstance(request, Study):
        return _study(request)
    if isinstance(request, Import):
        return _import(request)
    return verify(request.run) if isinstance(request, Verify) else doctor()


def _usage() -> str:
    lines = [f"  {name:<10} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(["python -m rlcorr VERB [OPTIONS]; each verb explains its options with --help", "", *lines])


def _play(options: list[str]) -> int:
    prog = "python -m rlcorr play"
    request, for_training = tyro.cli(Play, args=options, prog=prog, return_unknown_args=True)
    config = train_config(for_training, prog)  # a wrong option is refused here, not in the background
    run = config.run or runs.free_name(config.task)
    return play(request.port, for_training if request.train else None, run)


def configured(config_type: type[Config], options: list[str], prog: str, own: Sequence[str] = ()) -> Config:
    """The typed options: `own`, those of a file that --config names, and the user's. The last one wins."""
    from rlcorr.train.output.config_file import arguments_of

    file = _given("--config", options)
    first = [] if file is None else arguments_of(Path(file), config_type)
    wrapper: Any = FromRun if config_type is TrainConfig else FromFile[config_type]
    return tyro.cli(wrapper, args=[*own, *first, *options], prog=prog, description=config_type.__doc__).options


def train_config(options: list[str], prog: str) -> TrainConfig:
    """`configured`; with --resume the options of that run, and of the user's own those that may change on the way."""
    run = _given("--resume", options)
    if run is None:
        return configured(TrainConfig, options, prog)
    from rlcorr.train.output.config_file import arguments_of
    from rlcorr.train.resume import check_resumed, run_to_resume

    path = run_to_resume(run)
    own = [*arguments_of(path / "config.yaml", TrainConfig), f"--run={path.name}"]  # the directory's name counts
    config = configured(TrainConfig, options, prog, own)
    check_resumed(path, before=configured(TrainConfig, own, prog), after=config)
    return config


def _given(option: str, options: list[str]) -> str | None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument(option, dest="value")
    try:
        return finder.parse_known_args(options)[0].value
    except argparse.ArgumentError as error:
        raise UsageError(f"{option} needs the name of a {NAMED[option]}.") from error


# Imported inside because transformers takes seconds, which the other verbs need not wait.


def _train(config: TrainConfig, *, resume: bool) -> int:
    from rlcorr.train.loop import train

    train(config, resume=resume)
    return 0


def _gradients(request: Gradients) -> int:
    run = runs.find_run(request.run)
    swept = sweep_table(run, request.sweep, request.step, request.rule) if request.sweep else None
    print("\n".join(swept or gradient_table(run, request.step, request.presets)))
    return 0


def _record(name: str) -> int:
    from rlcorr.train.loop import train

    for recipe in read_index().values() if name == "all" else [find_recipe(name)]:
        print(f"{recipe.name}: {recipe.story} Look at: {recipe.look}")
        config = train_config(list(recipe.options), "python -m rlcorr record")
        print(f"committed run {install(train(config), recipe)}")
    return 0


def _study(request: Study) -> int:
    for name in study.read_index() if request.name == "all" else [request.name]:
        if request.train:
            _train_study(study.find_study(name))
        print("\n".join(study_table(name)), "\n")
    return 0


def _import(request: Import) -> int:
    path = runs.LOCAL / (request.run or runs.free_name("imported"))
    record = import_file(request.file, path)
    mask = record.batch.response_mask
    print(f"{path}: {len(mask)} responses, {int(mask.sum())} tokens. Not in the file:")
    print("\n".join(f"  {name:<15} {use}" for name, use in missing(record).items()))
    return 0


def _train_study(wanted: study.Study) -> None:
    from rlcorr.train.loop import train

    rows, finished = [], []
    for arm in wanted.arms:
        config = train_config(list(arm.options), "python -m rlcorr study")
        run = runs.LOCAL / config.run
        if not study.is_finished(run):
            shutil.rmtree(run, ignore_errors=True)
            train(config)
        finished.append(run)
        rows += study.rows_of(run, arm, config.correction, config.policy_loss)
    print(f"written {study.write_study(wanted, rows, finished)}")


def _pretrain(config: PretrainConfig) -> int:
    from rlcorr.train.pretrain import pretrain

    print(f"recorded in {pretrain(config)}")
    return 0


def verify(name: str) -> int:
    """Print what is wrong with a run and what can be read; exit code 1 if anything is wrong."""
    path = runs.find_run(name)
    report = runs.verify(path)
    for problem in report.problems:
        print(problem)
    print(
        f"{path.name}: {report.status}; {report.readable_steps} of {report.recorded_steps} recorded steps readable, "
        f"{report.metric_rows} rows of metrics; {len(report.problems) or 'no'} problem(s)."
    )
    return EXIT_PROBLEMS if report.problems else 0
