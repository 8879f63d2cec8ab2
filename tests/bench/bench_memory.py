"""`make bench ARGS=memory`: does a long run grow, and what does a step cost beside its work?"""

import statistics
import tempfile
import time
from pathlib import Path

from processes import ROOT, rlcorr, running

from rlcorr.records import runs

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
SETTLED = 20
"""Steps after which nothing should grow any more."""
LONG = ("--steps", "500", "--prompts-per-step", "16", "--eval-prompts", "64", "--record-every", "1")
USUAL = ("--steps", "12", "--eval-every", "12")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sizes = sizes_of_a_long_run(Path(folder))
    settled = [sizes[step] for step in sorted(sizes) if step >= SETTLED]
    first, last = statistics.median(settled[:100]), statistics.median(settled[-100:])  # a sample may hold a whole batch
    print(
        f"running_sum, bfloat16 vLLM, {max(sizes)} steps of 16 prompts, MiB, median of 100 steps: {first:.0f} after "
        f"step {SETTLED}, {last:.0f} at the end ({last - first:+.0f}); of all samples at most {max(settled):.0f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        done = rlcorr("train", *_options(*USUAL), runs_folder=Path(folder), timeout=3600)
        assert done.returncode == 0, done.stderr[-2000:]
        rows = runs.read_metrics(Path(folder) / "local" / "r")[2:]
    overhead = [row["timing/overhead"] for row in rows]
    seconds = statistics.median(row["timing/step"] for row in rows)
    print(
        f"running_sum, bfloat16 vLLM, a step of 256 prompts: {seconds:.1f} s, of which outside generation, forward, "
        f"backward and optimizer {statistics.median(overhead):.1%} (median), {max(overhead):.1%} (most)"
    )


def sizes_of_a_long_run(folder: Path) -> dict[int, float]:
    """MiB of memory of its own when each step's metrics appear."""
    sizes: dict[int, float] = {}
    with running("train", *_options(*LONG), runs_folder=folder, log=folder / "log") as process:
        while process.poll() is None:
            rows = runs.read_metrics(folder / "local" / "r")
            if rows and rows[-1]["step"] not in sizes:
                sizes[rows[-1]["step"]] = _own_memory(process.pid)
            time.sleep(0.05)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-2000:]
    return sizes


def _options(*more: str) -> list[str]:
    return ["--model", str(WARM_START), "--task", "running_sum", "--run", "r", *more]


def _own_memory(pid: int) -> float:
    """What the process has allocated, in memory or swapped out: the kernel may take idle pages of files at any time."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap")) / 1024  # kB
