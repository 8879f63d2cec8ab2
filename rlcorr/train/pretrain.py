"""The warm start: a small model that half knows both tasks, trained by supervision."""

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from rlcorr import runs
from rlcorr.runs import RunManifest
from rlcorr.train.collect import greedy_accuracy
from rlcorr.train.config import RolloutConfig
from rlcorr.train.model import Policy, new_lm
from rlcorr.train.recorder import git_commit, hardware, versions
from rlcorr.train.rollout import Samples, TransformersEngine, to_batch
from rlcorr.train.tasks import ALPHABET, Example, examples, get_task
from rlcorr.train.tokenizer import character_tokenizer, encode, eos_id
from rlcorr.types import TokenBatch

TASK_NAMES = ("addition", "running_sum")
HELD_OUT_PROMPTS = 512


@dataclass(frozen=True)
class PretrainConfig:
    """Supervised training of the warm start; the same seed and thread count give the same model."""

    run: str = "warm_start"
    """Name of the run; it is written to runs/local/<name>."""
    steps: int = 600
    batch_size: int = 256
    learning_rate: float = 1e-3
    seed: int = 0


def pretrain(config: PretrainConfig) -> Path:
    """Train, measure greedy accuracy on held-out prompts, save in Hugging Face format with a manifest."""
    path = runs.LOCAL / config.run
    runs.new_directory(path)
    torch.manual_seed(config.seed)
    tokenizer = character_tokenizer(ALPHABET)
    policy = Policy(new_lm(len(tokenizer)))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.1
    )
    streams = {name: examples(get_task(name), config.seed) for name in TASK_NAMES}
    with tqdm(range(config.steps), desc="pretrain", unit="step", dynamic_ncols=True) as progress:
        for step in progress:
            # Addition twice as often in rows; running sums have ten times its tokens.
            name, rows = ("running_sum", config.batch_size // 8) if step % 2 else ("addition", config.batch_size)
            batch = _supervised(list(itertools.islice(streams[name], rows)), tokenizer)
            loss = -policy(batch, 1.0).log_probs[batch.response_mask].mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress.set_postfix(task=name, loss=f"{float(loss):.3f}")
    return _save(path, config, policy, tokenizer)


def _supervised(drawn: list[Example], tokenizer: PreTrainedTokenizerFast) -> TokenBatch:
    """Prompts and their right answers. Nothing sampled these, so the rollout log-probs are placeholders."""
    answers = [[*encode(tokenizer, e.answer)[1:], eos_id(tokenizer)] for e in drawn]
    placeholders = [[0.0] * len(answer) for answer in answers]
    prompts = [encode(tokenizer, e.prompt) for e in drawn]
    return to_batch(prompts, Samples(answers, placeholders), torch.device("cpu"))


def _save(path: Path, config: PretrainConfig, policy: Policy, tokenizer: PreTrainedTokenizerFast) -> Path:
    """bfloat16 on disk: half the size, and the engine and the trainer start from the very same numbers."""
    checkpoint = path / "checkpoint"
    policy.lm.bfloat16().save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    policy.lm.float()
    accuracy = {name: _accuracy(policy, tokenizer, name) for name in TASK_NAMES}
    print(", ".join(f"greedy accuracy on {name}: {value:.1%}" for name, value in accuracy.items()))
    manifest = RunManifest(
        slug=config.run,
        story="The model that every PPO run starts from, trained by supervision until it half knows the tasks.",
        status="complete",
        task=", ".join(TASK_NAMES),
        seed=config.seed,
        trainer_dtype="float32",
        versions=versions(),
        hardware=hardware(torch.device("cpu")),
        git_commit=git_commit(),
        config=asdict(config) | {"greedy_accuracy": accuracy},
    )
    runs.finish_run(path, manifest)
    return path


def _accuracy(policy: Policy, tokenizer: PreTrainedTokenizerFast, name: str) -> float:
    task = get_task(name)
    engine = TransformersEngine(RolloutConfig(dtype="float32"), policy.lm, seed=0)
    held_out = list(itertools.islice(examples(task, 0, held_out=True), HELD_OUT_PROMPTS))
    return greedy_accuracy(engine, tokenizer, task, held_out)
