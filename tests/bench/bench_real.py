"""`make bench ARGS=real`: a GRPO step on SmolLM2-135M next to TRL's trainer: completions per second, and peak memory.

Both take the same prompts in the same order, 16 with 8 answers each of at most 24 tokens, and make one optimizer step
of them: float32 weights, bfloat16 arithmetic in the trainer. Ours samples with vLLM in bfloat16, scores every answer
again and records it; TRL samples with transformers, in backward passes of 16 answers, without recomputed layers. Each
is a process of its own, one after the other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench_trainer import TRL, Rows, Work
from processes import running

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.inputs import smollm2

WARM_UP, STEPS = 1, 3
WORK = Work(
    task="sum_questions", prompts=16, samples=8, minibatches=1, learning_rate=2e-5, kl_coef=0.0, steps=WARM_UP + STEPS,
    precision="bfloat16", microbatch=16,
)  # fmt: skip


def main() -> None:
    if not (TRL / "trl").is_dir():
        raise UsageError("TRL is not installed for comparison: `make bench` does that.")
    work = replace(WORK, model=str(smollm2.fetched()))
    with tempfile.TemporaryDirectory() as scratch:
        measured = {"TRL, transformers": theirs(work, Path(scratch)), "rlcorr, vLLM": ours(work, Path(scratch))}
    print("| | completions/s | seconds a step, median (smallest to largest) | peak memory, GiB | reward, last step |")
    print("|---|---|---|---|---|")
    rates = []
    for name, (rows, gib) in measured.items():
        steps = [row["step"] for row in rows[WARM_UP:]]
        rates.append(work.completions / statistics.median(steps))
        spread = f"{statistics.median(steps):.1f} ({min(steps):.1f} to {max(steps):.1f})"
        print(f"| {name} | {rates[-1]:.1f} | {spread} | {gib:.1f} | {rows[-1]['reward']:.2f} |")
    print(f"completions per second, rlcorr/TRL: {rates[1] / rates[0]:.2f}×; load average {os.getloadavg()[0]:.1f}")


def ours(work: Work, folder: Path) -> tuple[Rows, float]:
    """Return seconds and reward of each step, and GiB that were resident at most."""
    options = ["--model", "smollm2", "--train-prompts", "0", "--steps", str(work.steps), "--seed", str(work.seed)]
    few = ["--eval-every", "1000", "--eval-prompts", "1", "--checkpoint-every", "0", "--no-save-model"]
    with running("train", "--run", "r", *options, *few, runs_folder=folder, log=folder / "log") as process:
        gib = peak(process)
    if process.returncode:
        sys.exit((folder / "log").read_text(errors="replace")[-2000:])
    rows, before = [], 0.0
    for row in runs.read_metrics(folder / "local" / "r"):
        rows.append({"step": row["elapsed"] - before, "reward": row["reward"]})
        before = row["elapsed"]
    return rows, gib


def theirs(work: Work, folder: Path) -> tuple[Rows, float]:
    """Return the same of TRL."""
    rows, log = folder / "trl.json", folder / "trl.log"
    command = [sys.executable, str(Path(__file__).parent / "trl_peer.py"), json.dumps(asdict(work)), str(rows)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{TRL}:{os.environ['PYTHONPATH']}"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        gib = peak(process)
    if process.returncode:
        sys.exit(log.read_text(errors="replace")[-2000:])
    return json.loads(rows.read_text()), gib


def peak(process: "subprocess.Popen[bytes]") -> float:
    most = 0.0
    while process.poll() is None:
        most = max(most, resident(process.pid))
        time.sleep(0.2)
    return most


def resident(pid: int) -> float:
    """GiB of the process and all that it has started; pages that they share count once each."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True).stdout
    rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
    family = {pid}
    while more := {child for child, parent, _ in rows if parent in family} - family:
        family |= more
    return sum(size for number, _, size in rows if number in family) / 2**20
