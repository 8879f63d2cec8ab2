"""`make bench ARGS=half_billion`: memory and time of a GRPO step with a model of Qwen2.5-0.5B's shape.

The model is made here, with random weights and one token per character of a vocabulary as large; nothing is downloaded.
"""

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from processes import running

from rlcorr.records import runs
from rlcorr.train.inputs.tasks import ALPHABET
from rlcorr.train.inputs.tokenizer import character_tokenizer
from rlcorr.train.pretrain_models import new_half_billion_lm

VOCABULARY, MARKS, SURROGATES = 151_936, 3, range(0xD800, 0xE000)
STEPS = 2
OPTIONS = (
    f"--task jsonl --advantage.estimator grpo --prompts-per-step 4 --samples-per-prompt 4 --steps {STEPS} "
    "--max-response-tokens 128 --optim.microbatch-tokens 1152 --rollout.max-model-len 256 --rollout.kv-cache-mib 64 "
    "--optim.precision bfloat16 --optim.gradient-checkpointing --loss.no-use-kl-loss "
    "--eval-prompts 1 --eval-every 1000 --checkpoint-every 0 --no-save-model --no-tensorboard --run half_billion"
)


def bench_half_billion() -> None:
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(4 * 2**20))  # else glibc keeps freed blocks: 0.4 GiB and more
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        (folder / "sums.jsonl").write_text("".join(lines()), encoding="utf-8")
        given = ["--model", str(folder / "model"), "--data", str(folder / "sums.jsonl"), *OPTIONS.split()]
        most, rows = peak_of(folder, given)
    for row in rows:
        parts = {key: round(value, 1) for key, value in row.items() if key.startswith("timing/")}
        print(f"step {row['step']}: {parts}", flush=True)
    print(
        f"16 answers of 128 tokens, bfloat16: {rows[-1]['timing/step']:.0f} s a step, at most {most:.1f} GiB resident"
    )


def save_model(path: Path) -> None:
    torch.manual_seed(0)
    new_half_billion_lm(VOCABULARY).bfloat16().save_pretrained(path)
    others = (chr(code) for code in itertools.count(0x100) if code not in SURROGATES)
    rest = itertools.islice(others, VOCABULARY - MARKS - len(ALPHABET))
    character_tokenizer(ALPHABET + "".join(rest)).save_pretrained(path)


def lines() -> Iterator[str]:
    """Additions, one per line of a file."""
    for a, b in itertools.product(range(10, 26), repeat=2):
        yield json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n"


def peak_of(folder: Path, given: list[str]) -> tuple[float, list[dict]]:
    """GiB that trainer and engine have resident together at most, and the metrics of the steps."""
    most = 0.0
    with running("train", *given, runs_folder=folder, log=folder / "log") as process:
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.2)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-3000:]
    return most, runs.read_metrics(folder / "local" / "half_billion")


def resident(pid: int) -> float:
    """GiB of the process and all that it has started; pages that they share count once each."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True).stdout
    rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
    family = {pid}
    while more := {child for child, parent, _ in rows if parent in family} - family:
        family |= more
    return sum(size for number, _, size in rows if number in family) / 2**20
