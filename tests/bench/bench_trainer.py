"""`make bench ARGS=trainer`: a training step beside TRL's GRPO trainer, and beside the engine and the model alone.

Both trainers start from the same model and take the same prompts in the same order. Each step generates one batch,
scores it under the old and the reference policy, and makes the same number of optimizer steps of the same size, in
float32. Ours samples with vLLM and also writes every step's pairs; TRL samples with transformers, as on a laptop, and
writes nothing. Each is a process of its own; they take turns, never at the same time.

The engine and the model alone do the same work without a trainer, on the batches that our run recorded: vLLM's own
`generate`; the forward passes that score; forward, backward and AdamW. What is left of our step is the trainer's.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from processes import ROOT, rlcorr
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.inputs.tasks import get_task
from rlcorr.types import TokenBatch

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
TRL = ROOT / ".venv" / "trl"
WARM_UP = 2
ROUNDS = 2
PARTS = ("generate", "score", "update")
IMPOSSIBLE = 1.1
"""Our step holds the work of the engine and the model: if that alone took so much longer, the machine was busy."""
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Work:
    """What both trainers do. One epoch and several mini-batches, so that both need the old policy's log-probs."""

    task: str = "running_sum"
    prompts: int = 64
    samples: int = 4
    epochs: int = 1
    minibatches: int = 2
    learning_rate: float = 3e-5
    kl_coef: float = 1e-3
    steps: int = WARM_UP + 8
    seed: int = 0
    model: str = str(WARM_START)
    precision: str = "float32"
    microbatch: int = 0
    """Answers of one backward pass of TRL's; 0: a whole mini-batch."""

    @property
    def completions(self) -> int:
        return self.prompts * self.samples

    @property
    def optimizer_steps(self) -> int:
        return self.epochs * self.minibatches


def our_options(work: Work) -> list[str]:
    """The command line of our trainer. Its correction and its recorder are on, as they always are."""
    options = {
        "task": work.task,
        "model": WARM_START,
        "steps": work.steps,
        "prompts-per-step": work.prompts,
        "samples-per-prompt": work.samples,
        "advantage.estimator": "grpo",
        "optim.epochs": work.epochs,
        "optim.minibatches": work.minibatches,
        "optim.learning-rate": work.learning_rate,
        "optim.final-learning-rate": work.learning_rate,
        "loss.kl-loss-coef": work.kl_coef,
        "loss.kl-loss-type": "k3",
        "rollout.dtype": "float32",
        "seed": work.seed,
        "eval-every": work.steps + 1,
        "eval-prompts": 8,
        "checkpoint-every": 0,
    }
    return ["--no-tensorboard", *itertools.chain(*((f"--{name}", str(value)) for name, value in options.items()))]


def our_rows(work: Work, folder: Path) -> Rows:
    """Seconds of each step from one row of metrics to the next, so everything between them counts."""
    done = rlcorr("train", "--run", "r", *our_options(work), runs_folder=folder, timeout=1800)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    rows = [{"elapsed": 0.0}, *runs.read_metrics(folder / "local" / "r")]
    return [
        {part: after[f"timing/{part}"] for part in PARTS}
        | {name: after[name] for name in ("reward", "response_length")}
        | {"step": after["elapsed"] - before["elapsed"]}
        for before, after in itertools.pairwise(rows)
    ]


def their_rows(work: Work, folder: Path) -> Rows:
    if not (TRL / "trl").is_dir():
        raise UsageError("TRL is not installed for comparison: `make bench` does that.")
    return measured_by("trl_peer.py", json.dumps(asdict(work)), folder=folder, PYTHONPATH=str(TRL))


def alone_rows(work: Work, folder: Path) -> Rows:
    return measured_by("bench_trainer.py", json.dumps(asdict(work)), str(folder / "local" / "r"), folder=folder)


def measured_by(script: str, *arguments: str, folder: Path, **variables: str) -> Rows:
    """The rows that another process measures and leaves in a file."""
    rows, log = folder / f"{script}.json", folder / f"{script}.log"
    command = [sys.executable, str(Path(__file__).parent / script), *arguments, str(rows)]
    with log.open("wb") as output:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
        done = subprocess.run(command, stdout=output, stderr=output, env=environment, timeout=1800, check=False)
    if done.returncode:
        sys.exit(log.read_text(errors="replace")[-2000:])
    return json.loads(rows.read_text())


def measure_alone(work: Work, run: Path) -> Rows:
    """The engine and the model on the batches of a recorded run."""
    generate = engine_alone(run, work)
    score, update = model_alone(work)
    work_of = {"generate": generate, "score": score, "update": update}
    rows = []
    for step in runs.list_steps(run):
        batch = runs.read_step(run, step).batch
        row = {part: seconds(work_of[part], batch) for part in PARTS}
        rows.append(row | {"step": sum(row.values())})
    return rows


def engine_alone(run: Path, work: Work) -> Callable[[TokenBatch], object]:
    """vLLM with the settings of the run, asked for as many samples of the same prompts, and for their log-probs."""
    import rlcorr.train.rollout.vllm_engine  # noqa: F401  it sets what vLLM reads from the environment
    from rlcorr.train.inputs.tokenizer import EOS_ID

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm import LLM, SamplingParams

    made = runs.read_manifest(run).engine_settings
    options = {name: value for name, value in made.items() if name not in ("name", "version")}
    llm = LLM(str(WARM_START), seed=work.seed, skip_tokenizer_init=True, disable_log_stats=True, **options)
    params = SamplingParams(
        n=work.samples, temperature=1.0, max_tokens=get_task(work.task).max_tokens, logprobs=0, detokenize=False,
        stop_token_ids=[EOS_ID],
    )  # fmt: skip

    def generate(batch: TokenBatch) -> object:
        assert batch.prompt_ids is not None
        assert batch.prompt_mask is not None
        rows = zip(batch.prompt_ids[:: work.samples], batch.prompt_mask[:: work.samples], strict=True)
        requests: Any = [{"prompt_token_ids": ids[mask].tolist()} for ids, mask in rows]
        return llm.generate(requests, params, use_tqdm=False)

    return generate


def model_alone(work: Work) -> tuple[Callable[[TokenBatch], object], Callable[[TokenBatch], object]]:
    """Scoring (two models' forward passes), and forward, backward and AdamW once per mini-batch."""
    from transformers import AutoModelForCausalLM

    lm, reference = (
        AutoModelForCausalLM.from_pretrained(WARM_START, dtype=torch.float32, local_files_only=True) for _ in range(2)
    )
    optimizer = torch.optim.AdamW(lm.parameters(), lr=work.learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def score(batch: TokenBatch) -> None:
        for ids, attention, _ in parts(batch, work.minibatches):
            for model in (lm, reference):
                model(ids, attention_mask=attention, use_cache=False)

    def update(batch: TokenBatch) -> None:
        for _ in range(work.epochs):
            for ids, attention, labels in parts(batch, work.minibatches):
                optimizer.zero_grad()
                lm(ids, attention_mask=attention, labels=labels, use_cache=False).loss.backward()
                optimizer.step()

    return score, update


def parts(batch: TokenBatch, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ids, attention and labels (the responses) of each mini-batch."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    ids = torch.cat([batch.prompt_ids, batch.response_ids], -1).long()
    attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)
    answered = torch.cat([torch.zeros_like(batch.prompt_mask), batch.response_mask], -1)
    labels = ids.masked_fill(~answered, -100)
    return zip(ids.chunk(count), attention.long().chunk(count), labels.chunk(count), strict=True)


def seconds(run: Callable[[TokenBatch], object], batch: TokenBatch) -> float:
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start


def one_round(work: Work) -> tuple[Rows, Rows, Rows]:
    """TRL, ours, alone: the steps after the warm-up."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        theirs, ours, alone = (measured(work, folder)[WARM_UP:] for measured in (their_rows, our_rows, alone_rows))
        return theirs, ours, alone


def report(work: Work, theirs: Rows, ours: Rows, alone: Rows) -> None:
    print(f"seconds per step, medians of {len(ours)} steps in {ROUNDS} rounds")
    print("| | completions/s | step (smallest to largest) | generation | scoring | training | rest |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in (("TRL, transformers", theirs), ("rlcorr, vLLM", ours), ("engine and model alone", alone)):
        print(f"| {name} | {work.completions / middle(rows, 'step'):.1f} | " + " | ".join(columns(rows)) + " |")
    step, floor = middle(ours, "step"), middle(alone, "step")
    if floor > IMPOSSIBLE * step:
        sys.exit("not valid: the engine and the model alone took longer than our step, so the machine was busy.")
    print(f"completions per second, rlcorr/TRL: {middle(theirs, 'step') / step:.2f}×")
    print(f"of our step, neither the engine nor the model: {1 - floor / step:.0%}")
    print(f"with nothing but the engine and the model: {middle(theirs, 'step') / floor:.2f}× of TRL")
    for name in ("reward", "response_length"):
        print(agreement(name, theirs, ours))


def middle(rows: Rows, name: str) -> float:
    return statistics.median(row[name] for row in rows)


def columns(rows: Rows) -> list[str]:
    rest = statistics.median(row["step"] - sum(row[part] for part in PARTS) for row in rows)
    steps = [row["step"] for row in rows]
    step = f"{statistics.median(steps):.2f} ({min(steps):.2f} to {max(steps):.2f})"
    return [step, *(f"{middle(rows, part):.2f}" for part in PARTS), f"{rest:.2f}"]


def agreement(name: str, theirs: Rows, ours: Rows) -> str:
    """Step by step both saw the same prompts, so the differences of a step's means are paired."""
    differences = [our[name] - their[name] for our, their in zip(ours, theirs, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    means = f"TRL {statistics.fmean(row[name] for row in theirs):.3f}"
    return f"mean {name}: {means}, rlcorr {statistics.fmean(differences):+.3f} ± {error:.3f}"


def main() -> None:
    work = Work()
    print(
        f"{work.task}: {work.prompts} prompts × {work.samples} samples, {work.optimizer_steps} optimizer steps; "
        f"float32, {torch.get_num_threads()} threads; load average before: {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    theirs, ours, alone = (
        list(itertools.chain(*rows))
        for rows in zip(*(one_round(replace(work, seed=seed)) for seed in range(ROUNDS)), strict=True)
    )
    report(work, theirs, ours, alone)


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(measure_alone(Work(**json.loads(sys.argv[1])), Path(sys.argv[2]))))
