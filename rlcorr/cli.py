"""The verbs of `python -m rlcorr`. Each is a dataclass: its fields are the options, its docstring the help."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlcorr import runs
from rlcorr.errors import UsageError

EXIT_PROBLEMS = 1
EXIT_USAGE = 2


@dataclass(frozen=True)
class Verify:
    """Check the files of a run: hashes, and that every step can be read."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, what will be used, and how to mend what is missing."""


@dataclass(frozen=True)
class Play:
    """Train in the background and serve the app, until Ctrl-C."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """With --no-train, only the app."""
    train_args: tuple[str, ...] = ()
    """Options for the trainer, as for `python -m rlcorr train`."""


def main(arguments: list[str] | None = None) -> None:
    """Run a verb. A `UsageError` is one line on stderr and exit code 2; Ctrl-C is exit code 130."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(_run(given))
    except UsageError as error:
        print(f"rlcorr: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(given: list[str]) -> int:
    verb = tyro.cli(_verbs(given), args=given, prog="python -m rlcorr", description=__doc__)
    if isinstance(verb, Verify):
        return verify(verb)
    if isinstance(verb, Doctor):
        from rlcorr.doctor import doctor

        return doctor()
    if isinstance(verb, Play):
        from rlcorr.play import play

        return play(verb.port, verb.train, verb.train_args)
    return _train(verb)


def _verbs(given: list[str]) -> Any:
    """The verbs as a union. Those that train are imported only when one is asked for: transformers takes seconds."""
    from typing import Union

    verbs: list[Any] = [
        Annotated[Verify, tyro.conf.subcommand("verify")],
        Annotated[Doctor, tyro.conf.subcommand("doctor")],
        Annotated[Play, tyro.conf.subcommand("play")],
    ]
    if not given or given[0] not in ("verify", "doctor", "play"):
        from rlcorr.train.config import TrainConfig
        from rlcorr.train.pretrain import PretrainConfig

        verbs.append(Annotated[TrainConfig, tyro.conf.subcommand("train")])
        verbs.append(Annotated[PretrainConfig, tyro.conf.subcommand("pretrain")])
    return Union[tuple(verbs)]  # noqa: UP007


def _train(config: Any) -> int:
    from rlcorr.train.config import TrainConfig
    from rlcorr.train.ppo import train
    from rlcorr.train.pretrain import pretrain

    path: Path = train(config) if isinstance(config, TrainConfig) else pretrain(config)
    print(f"recorded in {path}")
    return 0


def verify(request: Verify) -> int:
    """Print what is wrong with a run and what can be read; exit code 1 if anything is wrong."""
    path = runs.find_run(request.run)
    report = runs.verify(path)
    for problem in report.problems:
        print(problem)
    print(
        f"{path.name}: {report.status}; {report.readable_steps} of {report.recorded_steps} recorded steps readable, "
        f"{report.metric_rows} rows of metrics; {len(report.problems) or 'no'} problem(s)."
    )
    return EXIT_PROBLEMS if report.problems else 0
