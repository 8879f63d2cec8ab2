"""`python -m rlcorr VERB`: the choice of the verb, and its exit code."""

import errno
import os
import signal
import sys

from rlcorr.command.verbs import EXIT_PROBLEMS, VERBS
from rlcorr.errors import UsageError, unknown

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk that is full, read-only or of another user, in files that other packages write."""


def main(arguments: list[str] | None = None) -> None:
    """Run a verb and exit. A `UsageError` is printed as one line on stderr with exit code 2, and so is an
    error of the disk; Ctrl-C exits with 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT for a verb started with &
    try:
        sys.exit(run_verb(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        print(f"rlcorr: {_one_line(str(error))}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `| head` has closed the pipe: Python must not flush the rest into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PROBLEMS)
    except OSError as error:
        if error.errno not in DISK:
            raise
        name = _one_line(str(error.filename or "a file"))
        print(f"rlcorr: {name} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _one_line(text: str) -> str:
    """Return the text with line ends and other unprintable characters of foreign names escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def run_verb(arguments: list[str]) -> int:
    """Run the verb that the first argument names, and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name, words = arguments[0], arguments[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    _, run = VERBS[name]
    return run(words, f"python -m rlcorr {name}")


def _usage() -> str:
    lines = [f"  {name:<10} {(options.__doc__ or '').splitlines()[0]}" for name, (options, _) in VERBS.items()]
    return "\n".join(["python -m rlcorr VERB [OPTIONS]; --help after a verb explains its options", "", *lines])
