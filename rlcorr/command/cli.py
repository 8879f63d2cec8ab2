"""`python -m rlcorr VERB`: the choice of the verb, and its exit code.

Every verb has a file of its name: a dataclass of its options, whose docstring is the help, and the function that runs
it. The trainer is imported inside functions: it needs transformers, which takes seconds to import, and the other verbs
should start at once.
"""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import tyro

from rlcorr.command.attribute import Attribute, run_attribute
from rlcorr.command.config import Config, run_config
from rlcorr.command.doctor import Doctor, run_doctor
from rlcorr.command.gaps import Gaps, run_gaps
from rlcorr.command.gradients import Gradients, run_gradients
from rlcorr.command.import_ import Import, run_import
from rlcorr.command.lab import Lab, run_lab
from rlcorr.command.model import Model, run_model
from rlcorr.command.play import Play, run_play
from rlcorr.command.pretrain import run_pretrain
from rlcorr.command.record import Record, run_record
from rlcorr.command.report import Report, run_report
from rlcorr.command.study import Study, run_study
from rlcorr.command.threshold import Threshold, run_threshold
from rlcorr.command.train import run_train
from rlcorr.command.verify import Verify, run_verify
from rlcorr.errors import UsageError, unknown
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.training import TrainConfig

VERBS: dict[str, tuple[type, Callable[[Any], int]]] = {
    "play": (Play, run_play),
    "train": (TrainConfig, run_train),
    "pretrain": (PretrainConfig, run_pretrain),
    "model": (Model, run_model),
    "record": (Record, run_record),
    "gradients": (Gradients, run_gradients),
    "study": (Study, run_study),
    "report": (Report, run_report),
    "threshold": (Threshold, run_threshold),
    "config": (Config, run_config),
    "gaps": (Gaps, run_gaps),
    "attribute": (Attribute, run_attribute),
    "import": (Import, run_import),
    "lab": (Lab, run_lab),
    "verify": (Verify, run_verify),
    "doctor": (Doctor, run_doctor),
}
"""Verb → its options, and the function that runs it with them and returns the exit code."""
READ_WORDS = ("play", "train", "pretrain")
"""Verbs whose functions read the words themselves, because options of a file or of a run come before them."""
EXIT_PROBLEMS = 1

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a disk that is full or read-only, in files that other packages write."""


def main(arguments: list[str] | None = None) -> None:
    """Run a verb and exit. A `UsageError` is printed as one line on stderr with exit code 2, and so is an
    error of a file; Ctrl-C exits with 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT for a verb started with &
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every terminal has all characters; a closed stream is None
            stream.reconfigure(errors="replace")
    try:
        sys.exit(run_verb(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        print(f"rlcorr: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `| head` has closed the pipe: Python must not flush the rest into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PROBLEMS)
    except OSError as error:
        if error.errno not in FULL and error.filename is None:
            raise
        what = "written" if error.errno in FULL else "used"
        print(f"rlcorr: {error.filename or 'a file'} cannot be {what}: {error.strerror}.", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def run_verb(arguments: list[str]) -> int:
    """Run the verb that the first argument names, and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name, words = arguments[0], arguments[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    options, run = VERBS[name]
    return run(words) if name in READ_WORDS else run(tyro.cli(options, args=words, prog=f"python -m rlcorr {name}"))


def _usage() -> str:
    lines = [f"  {name:<10} {(options.__doc__ or '').splitlines()[0]}" for name, (options, _) in VERBS.items()]
    return "\n".join(["python -m rlcorr VERB [OPTIONS]; --help after a verb explains its options", "", *lines])
