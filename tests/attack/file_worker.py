"""A process that runs commands in itself, one a line of JSON, and measures by how much each makes it grow."""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hostile import peak

from rlcorr.command.cli import main
from rlcorr.records import runs
from rlcorr.records.verify import verify


def run(words: list[str]) -> dict[str, Any]:
    """Run a command, and return its exit code, what it printed, and the bytes by which its memory grew."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, code = peak(), None
    output, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as raised:  # KeyboardInterrupt and the like are wrong, too
            return {"code": 1, "error": f"Traceback: {raised!r}", "growth": peak() - before}
    result = {"code": code, "error": error.getvalue(), "growth": peak() - before}
    if code == 0:
        result["problem"] = problem_of_import() if words[0] == "import" else not_a_number(output)
    return result


def problem_of_import() -> str | None:
    """Return what is wrong with the imported runs, and delete them."""
    try:
        for run in runs.LOCAL.iterdir():
            report = verify(run)
            if report.problems or not report.readable_steps:
                return f"{run.name!r}: {report.problems or 'no step'}"
            for step in runs.list_steps(run):
                batch = runs.read_step(run, step).batch
                if bool(batch.rollout_log_probs.isnan().any()) or bool((batch.rollout_log_probs > 0.2).any()):
                    return "a log-prob is NaN or above 0"
        return None
    finally:
        shutil.rmtree(runs.LOCAL)


def not_a_number(output: io.TextIOWrapper) -> str | None:
    """Return what is wrong with a report. A perplexity may be infinite, and nothing may be NaN."""
    output.seek(0)
    table = output.read()
    return f"a number of the report is NaN: {table}" if " nan" in table else None


answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), file=answers, flush=True)
