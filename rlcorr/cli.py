"""The verbs of `python -m rlcorr`."""

import signal
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from rlcorr import runs
from rlcorr.doctor import doctor
from rlcorr.errors import UsageError, unknown
from rlcorr.play import play
from rlcorr.train.config import PretrainConfig, TrainConfig

EXIT_PROBLEMS = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# Each verb is a dataclass: its fields are the options, their docstrings the help.


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
    """Train in the background and serve the app, until Ctrl-C. Takes the options of `train` as well."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """With --no-train, only the app."""


VERBS = {"play": Play, "train": TrainConfig, "pretrain": PretrainConfig, "verify": Verify, "doctor": Doctor}


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
    request = tyro.cli(VERBS[name], args=options, prog=f"python -m rlcorr {name}")
    if isinstance(request, Verify):
        return verify(request.run)
    return doctor() if isinstance(request, Doctor) else _train(request)


def _usage() -> str:
    lines = [f"  {name:<10} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(["python -m rlcorr VERB [OPTIONS]; each verb explains its options with --help", "", *lines])


def _play(options: list[str]) -> int:
    prog = "python -m rlcorr play"
    request, for_training = tyro.cli(Play, args=options, prog=prog, return_unknown_args=True)
    tyro.cli(TrainConfig, args=for_training, prog=prog)  # a wrong option is refused here, not in the background
    return play(request.port, for_training if request.train else None)


def _train(config: TrainConfig | PretrainConfig) -> int:
    # Imported here because transformers takes seconds, which the other verbs need not wait.
    from rlcorr.train.ppo import train
    from rlcorr.train.pretrain import pretrain

    path = train(config) if isinstance(config, TrainConfig) else pretrain(config)
    print(f"recorded in {path}")
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
