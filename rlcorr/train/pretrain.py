"""Pretraining of the warm starts: small models, trained with supervision until they know half of their task."""

import itertools
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from rlcorr.records import runs
from rlcorr.records.run_folders import only_writer
from rlcorr.records.runs import RunManifest
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import ALPHABET, Example, examples, get_task
from rlcorr.train.inputs.tokenizer import character_tokenizer, encode, eos_id
from rlcorr.train.learner.policy import Policy
from rlcorr.train.output.provenance import git_commit, hardware, versions
from rlcorr.train.pretrain_models import NEW_MODELS
from rlcorr.train.rollout.collect import RolloutWorker, greedy, greedy_accuracy
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.types import TokenBatch


def pretrain(config: PretrainConfig) -> Path:
    """Train a new model, measure its greedy accuracy on held-out prompts, and save it in Hugging Face format.

    Return the directory of the run, which has a manifest as well.
    """
    path = runs.LOCAL / config.run
    with only_writer(path):
        runs.new_directory(path)
        return _pretrain(config, path)


def _pretrain(config: PretrainConfig, path: Path) -> Path:
    torch.manual_seed(config.seed)
    tokenizer = character_tokenizer(ALPHABET)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = Policy(NEW_MODELS[config.architecture](len(tokenizer))).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=config.warmup_steps)
    streams = {name: examples(get_task(name), config.seed) for name in _task_names(config)}
    rows = {
        "addition": config.addition_batch, "running_sum": config.running_sum_batch, "sorting": config.sorting_batch
    }  # fmt: skip
    with tqdm(range(1, config.max_steps + 1), desc="pretrain", unit="step", dynamic_ncols=True) as progress:
        for step in progress:
            name = _task_at(config, step)
            batch = _supervised(list(itertools.islice(streams[name], rows[name])), tokenizer, device)
            loss = -policy(batch, 1.0).log_probs[batch.response_mask].mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            if step % config.eval_every == 0:
                accuracy = _accuracy(policy, tokenizer, config.task, config.eval_prompts)
                progress.set_postfix({"loss": f"{loss.item():.3f}", config.task: f"{accuracy:.0%}"})
                if accuracy >= config.stop_at_accuracy:
                    break
    return _save(path, config, policy, tokenizer)


def _task_names(config: PretrainConfig) -> tuple[str, ...]:
    """Return the tasks that are trained; the first one decides when training stops."""
    return (config.task, "running_sum") if config.task == "addition" and config.addition_every > 1 else (config.task,)


def _task_at(config: PretrainConfig, step: int) -> str:
    return "running_sum" if "running_sum" in _task_names(config) and step % config.addition_every else config.task


def _supervised(rows: list[Example], tokenizer: PreTrainedTokenizerFast, device: torch.device) -> TokenBatch:
    """Return a batch of prompts and right answers. No policy sampled these, so rollout log-probs are placeholders."""
    answers = [[*encode(tokenizer, e.answer)[1:], eos_id(tokenizer)] for e in rows]  # without the <bos> of a prompt
    placeholders = [[0.0] * len(answer) for answer in answers]
    prompts = [encode(tokenizer, e.prompt) for e in rows]
    return to_batch(prompts, Samples(answers, placeholders), device)


def _save(path: Path, config: PretrainConfig, policy: Policy, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Save the model in bfloat16, and return the directory of the run.

    bfloat16 takes half the size, and engine and trainer then start from exactly the same numbers.
    """
    checkpoint = path / "checkpoint"
    policy.lm.bfloat16().save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    policy.lm.float()
    accuracy = {name: _accuracy(policy, tokenizer, name, config.eval_prompts) for name in _task_names(config)}
    print(", ".join(f"greedy accuracy on {name}: {value:.1%}" for name, value in accuracy.items()))
    manifest = RunManifest(
        slug=config.run,
        story=f"A model to start from, {config.architecture}, taught by supervision until it half knows its task.",
        status="complete",
        task=", ".join(_task_names(config)),
        seed=config.seed,
        trainer_dtype="float32",
        versions=versions(),
        hardware=hardware(policy.lm.device),
        git_commit=git_commit(),
        config=asdict(config) | {"greedy_accuracy": accuracy},
    )
    runs.finish_run(path, manifest)
    return path


def _accuracy(policy: Policy, tokenizer: PreTrainedTokenizerFast, name: str, prompts: int) -> float:
    task = get_task(name)
    eos_ids = [eos_id(tokenizer)]
    engine = TransformersEngine(RolloutConfig(dtype="float32"), policy.lm, eos_ids)
    held_out = list(itertools.islice(examples(task, 0, held_out=True), prompts))
    return greedy_accuracy(greedy(RolloutWorker(engine, tokenizer, task, eos_ids), held_out))
