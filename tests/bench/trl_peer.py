"""TRL's GRPO trainer at the work of tests/bench/bench_trainer.py, in a process of its own.

    PYTHONPATH=.venv/trl python tests/bench/trl_peer.py '{"prompts": 64, ...}' rows.json

It runs on the torch and transformers of .venv; `make bench` puts TRL and accelerate into .venv/trl, which has to be on
the path before transformers is imported. TRL has its best settings for a CPU: `generate` of transformers on the whole
batch at once with its default cache (continuous batching took ten times as long, a static cache about the same), sdpa
attention, no gradient checkpointing (a third more in the training part), no logging, no saving.
"""

import importlib
import itertools
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_trainer import WARM_START, Work
from transformers import TrainerCallback

from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tasks import Example, Task, examples, get_task
from rlcorr.train.inputs.tokenizer import BOS, load_tokenizer


class Clock(TrainerCallback):
    """One row of seconds per batch, from the end of its predecessor's last optimizer step to the end of its own."""

    def __init__(self, optimizer_steps: int) -> None:
        self.rows: list[dict[str, float]] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.noted: dict[str, float] = {}
        self._optimizer_steps = optimizer_steps
        self._began = self._optimizer_began = 0.0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds[name] += time.perf_counter() - start
            return result

        return run

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_began = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.seconds["optimizer"] += time.perf_counter() - self._optimizer_began

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._optimizer_steps:
            return
        now, part = time.perf_counter(), self.seconds
        self.rows.append(
            {
                "step": now - self._began,
                "generate": part["generate"],
                "score": part["score"],
                # TRL prepares a batch inside of the training step that first needs it.
                "update": part["training_step"] - part["prepare"] + part["clip"] + part["optimizer"],
                **self.noted,
            }
        )
        self._began = now
        part.clear()


def watch(trainer: Any, clock: Clock) -> None:
    """Time the methods of this trainer. Another version of TRL that lacks one fails here."""
    trainer._generate_single_turn = clock.timed("generate", trainer._generate_single_turn)
    trainer._prepare_inputs = clock.timed("prepare", trainer._prepare_inputs)
    trainer.training_step = clock.timed("training_step", trainer.training_step)
    trainer._clip_grad_norm = clock.timed("clip", trainer._clip_grad_norm)
    plain = trainer._get_per_token_logps_and_entropies
    scoring = clock.timed("score", plain)

    def forward(*arguments: Any, **options: Any) -> Any:
        return (plain if torch.is_grad_enabled() else scoring)(*arguments, **options)

    trainer._get_per_token_logps_and_entropies = forward


def reward_of(task: Task, drawn: list[Example], clock: Clock) -> Callable[..., list[float]]:
    """The task's reward in TRL's form, which also notes what was sampled."""
    example_of = {example.prompt: example for example in drawn}

    def reward(asked: list[str], completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        judged = [task.reward(example_of[one], text) for one, text in zip(asked, texts, strict=True)]
        rewards = [reward for reward in judged if reward is not None]  # all: this task judges any answer
        lengths = [len(ids) for ids in completion_ids]
        clock.noted = {"reward": sum(rewards) / len(rewards), "response_length": sum(lengths) / len(lengths)}
        return rewards

    return reward


def prompt_of(example: Example, work: Work) -> str | list[dict[str, str]]:
    """TRL tokenizes a text as it is, so <bos> is written out; the tokenizer reads it as the one token. A chat model
    gets the messages that ours sends."""
    if work.model == str(WARM_START):
        return f"{BOS}{example.prompt}"
    return [{"role": "system", "content": smollm2.SYSTEM}, {"role": "user", "content": str(example.prompt)}]


def settings(work: Work, max_tokens: int) -> dict[str, Any]:
    """The batch is generated at once, then split into as many optimizer steps as ours makes of it."""
    accumulated = work.completions // work.minibatches // work.microbatch if work.microbatch else 1
    return {
        "num_generations": work.samples,
        "per_device_train_batch_size": work.microbatch or work.completions // work.minibatches,
        "steps_per_generation": work.minibatches * accumulated,
        "gradient_accumulation_steps": accumulated,
        "num_iterations": work.epochs,
        "max_steps": work.steps * work.optimizer_steps,
        "max_completion_length": max_tokens,
        "temperature": 1.0,
        "beta": work.kl_coef,
        "use_bias_correction_kl": False,
        "loss_type": "dapo" if work.microbatch else "bnpo",  # the mean over a mini-batch's tokens
        "learning_rate": work.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": work.seed,
        "shuffle_dataset": False,
        "use_cpu": True,
        "bf16": work.precision == "bfloat16",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": "float32", "local_files_only": True},
    }


def train(work: Work, output: str) -> list[dict[str, float]]:
    """Seconds, mean reward and mean length of every step."""
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    task, clock = get_task(work.task), Clock(work.optimizer_steps)
    drawn = list(itertools.islice(examples(task, work.seed), work.prompts * work.steps))
    trainer = trl.GRPOTrainer(
        model=work.model,
        processing_class=load_tokenizer(Path(work.model)),
        reward_funcs=reward_of(task, drawn, clock),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": prompt_of(example, work), "asked": example.prompt} for example in drawn]
        ),
        args=trl.GRPOConfig(output_dir=output, **settings(work, task.max_tokens)),
        callbacks=[clock],
    )
    watch(trainer, clock)
    trainer.train()
    return clock.rows


def main(work: str, rows: str) -> None:
    sys.modules["vllm"] = None  # pyright: ignore[reportArgumentType]  TRL imports vLLM wherever it finds it
    with tempfile.TemporaryDirectory() as output:
        rows_of_steps = train(Work(**json.loads(work)), output)
    Path(rows).write_text(json.dumps(rows_of_steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
