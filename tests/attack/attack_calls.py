"""System calls that fail, once or always: an import refuses in one sentence, a recorder never stops its training."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from attempts import Attack, one_sentence

TRIED = 120
CALLS = {
    "fsync": (errno.EIO, errno.ENOSPC), "flock": (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT), "rename": (errno.EXDEV, errno.EACCES, errno.EIO),
    "mkdir": (errno.EROFS, errno.EDQUOT), "open": (errno.EMFILE, errno.EACCES, errno.ESTALE, errno.ENOSPC),
}  # fmt: skip
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
static long count;
static int fails(const char *call, const char *path) {
  const char *wanted = getenv("FAIL_CALL"), *below = getenv("FAIL_BELOW");
  if (!wanted || !below || strcmp(wanted, call) || strncmp(path, below, strlen(below))) return 0;
  long at = atol(getenv("FAIL_AT"));
  if (at && ++count != at) return 0;
  errno = atoi(getenv("FAIL_ERRNO"));
  return 1;
}
static int fails_at(const char *call, int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(call, path);
}
#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
int fsync(int file) { REAL(fsync); return fails_at("fsync", file) ? -1 : real(file); }
int flock(int file, int how) { REAL(flock); return fails_at("flock", file) ? -1 : real(file, how); }
ssize_t write(int file, const void *from, size_t size) {
  REAL(write);
  return fails_at("write", file) ? -1 : real(file, from, size);
}
int rename(const char *old, const char *new) { REAL(rename); return fails("rename", new) ? -1 : real(old, new); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return fails("mkdir", path) ? -1 : real(path, mode); }
int open64(const char *path, int how, ...) {
  va_list rest;
  va_start(rest, how);
  int mode = va_arg(rest, int);
  va_end(rest);
  REAL(open64);
  return how & (O_WRONLY | O_RDWR | O_DIRECTORY) && fails("open", path) ? -1 : real(path, how, mode);
}
"""


def attack(attack: Attack) -> None:
    """Make all attempts in one process, into which the calls that fail are loaded."""
    if sys.platform != "linux":
        attack.notes.append("Calls fail on Linux alone.")
        return
    jobs = []
    for number, chance in attack.attempts(TRIED):
        call = chance.choice([*CALLS])
        settings = {
            "FAIL_CALL": call,
            "FAIL_ERRNO": chance.choice(CALLS[call]),
            "FAIL_AT": chance.choice([0, *range(1, 9)]),
        }
        jobs.append({"number": number, "program": ("import", "recorder")[number % 2], "settings": settings})
    library = attack.folder.parent / "shim.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(library), "-ldl"], input=SHIM, text=True, check=True
    )
    variables = os.environ | {"LD_PRELOAD": str(library)}
    process = subprocess.run(
        [sys.executable, __file__], input="\n".join(map(json.dumps, jobs)), env=variables, stdout=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    outcomes = {row["number"]: row["problem"] for row in map(json.loads, process.stdout.splitlines())}
    for job in jobs:
        problem = outcomes.get(job["number"], f"Traceback: it ended with {process.returncode}")
        attack.judge(job["number"], f"{job['program']}, {job['settings']}", problem)


def problem_of(job: dict[str, Any], files: Path) -> str | None:
    """Start a program whose calls fail below the folder of runs, and return what is wrong with its end."""
    from forked import Forked

    from rlcorr.command.cli import main
    from rlcorr.records import runs
    from rlcorr.records.verify import verify

    def program() -> None:
        os.environ.update({name: str(value) for name, value in job["settings"].items()})
        os.environ["FAIL_BELOW"] = str(runs.LOCAL)
        main(["import", str(files), "--run", "r"]) if job["program"] == "import" else record()

    runs.LOCAL.mkdir(parents=True, exist_ok=True)
    process = Forked(program, runs.ROOT / "log")
    code = process.wait(60)
    process.end()
    problem = one_sentence(code, process.error())
    left = {path.name for path in runs.LOCAL.iterdir()}
    if job["program"] == "recorder" and (code != 0 or "trained" not in process.printed()):
        problem = problem or f"the training ended with {code}: {process.error()[-600:]}"
    if job["program"] == "import" and left != ({"r"} if code == 0 else set()):
        problem = problem or f"exit code {code}, left behind: {left}"
    for name in left & {"r"}:
        report = verify(runs.LOCAL / name)
        sound = report.status != "complete" or not report.problems
        problem = problem or (None if sound else f"complete, but {report.problems}")
    shutil.rmtree(runs.LOCAL)
    return problem


def record() -> None:
    """Train for four steps that are recorded."""
    import torch

    from rlcorr.recorders import Recorder

    pair = {name: -torch.ones(2, 3) for name in ("rollout_log_probs", "old_log_probs")}
    with Recorder("r") as recorder:
        for step in range(4):
            recorder.add(step=step, batch=pair)
    print("trained")


def main() -> None:
    from pair_files import FILES

    from rlcorr.records import runs

    files = runs.ROOT / "lists.jsonl"
    files.write_bytes(FILES["lists.jsonl"])
    import rlcorr.recorders  # noqa: F401 - what is forked from this process has it

    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({"number": job["number"], "problem": problem_of(job, files)}), flush=True)


if __name__ == "__main__":
    main()
