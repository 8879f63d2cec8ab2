"""The PPO trainer: sample, score, correct, update, sync, record; one step after the other."""

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcorr import runs
from rlcorr.advantages import gae, token_rewards, whiten
from rlcorr.correction import correct
from rlcorr.diagnostics import measure, merge
from rlcorr.errors import UsageError
from rlcorr.losses import clipped_value
from rlcorr.masked import masked_mean
from rlcorr.objective import policy_loss
from rlcorr.report import PREFIX, means, metrics
from rlcorr.train.collect import Collected, collect, greedy_accuracy
from rlcorr.train.config import TrainConfig
from rlcorr.train.engine import resolve_engine, start_engine
from rlcorr.train.model import Policy, load_lm
from rlcorr.train.recorder import Recorder, manifest_of
from rlcorr.train.rollout import RolloutEngine
from rlcorr.train.stopwatch import Stopwatch
from rlcorr.train.sync_proof import prove_step, prove_sync
from rlcorr.train.tasks import Example, Task, examples, get_task
from rlcorr.train.tokenizer import encode, load_tokenizer
from rlcorr.types import CorrectionResult, Measured, TokenBatch


@dataclass(frozen=True)
class Session:
    """Everything that lives as long as the training."""

    config: TrainConfig
    device: torch.device
    task: Task
    tokenizer: PreTrainedTokenizerFast
    policy: Policy
    reference: PreTrainedModel  # frozen
    engine: RolloutEngine
    optimizer: torch.optim.Optimizer
    shuffle: torch.Generator
    chance: torch.Generator  # for losses that select at random
    stream: Iterator[Example]
    held_out: list[Example]


def train(config: TrainConfig) -> Path:
    """Run PPO and return the directory of the recorded run. Wrong settings are refused before the engine starts."""
    config = replace(config, run=config.run or runs.free_name(config.task))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = runs.LOCAL / config.run
    engine = resolve_engine(config.rollout)
    if engine == "transformers" and config.rollout.engine == "auto":
        print("no vLLM on this platform: the transformers engine samples, more slowly.")
    print(f"{config.run}: {engine} on {device.type}. {config.correction.explain()}", flush=True)
    runs.new_directory(path)
    session = prepare(config, device, path)
    begin = time.perf_counter()
    with Recorder(path, manifest_of(config, session.engine.description, device)) as recorder:
        accuracy = evaluate(session)
        with tqdm(range(1, config.steps + 1), desc=config.run, unit="step", dynamic_ncols=True) as progress:
            for step in progress:
                row = one_step(session, recorder, step)
                row["elapsed"] = time.perf_counter() - begin
                if step % config.eval_every == 0 or step == config.steps:
                    row["accuracy"] = accuracy = evaluate(session)
                recorder.metrics(row)
                progress.set_postfix(_headline(row, accuracy))
                if accuracy >= config.stop_at_accuracy:
                    break
    return path


def prepare(config: TrainConfig, device: torch.device, path: Path) -> Session:
    """Load the models, start the engine, and prove that it takes new weights."""
    torch.manual_seed(config.seed)
    task, tokenizer = get_task(config.task), load_tokenizer(config.model)
    policy = Policy(load_lm(config.model, device)).to(device)
    engine = start_engine(config.rollout, config.model, device, config.seed, path / "engine.log")
    held_out = list(itertools.islice(examples(task, 0, held_out=True), config.eval_prompts))
    prove_sync(engine, policy, config.rollout, [encode(tokenizer, example.prompt) for example in held_out[:64]])
    return Session(
        config=config,
        device=device,
        task=task,
        tokenizer=tokenizer,
        policy=policy,
        reference=load_lm(config.model, device).requires_grad_(False),
        engine=engine,
        optimizer=torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0),
        shuffle=torch.Generator().manual_seed(config.seed),
        chance=torch.Generator(device).manual_seed(config.seed),
        stream=examples(task, config.seed),
        held_out=held_out,
    )


def evaluate(session: Session) -> float:
    return greedy_accuracy(session.engine, session.tokenizer, session.task, session.held_out)


def one_step(session: Session, recorder: Recorder, step: int) -> dict[str, Any]:
    """One PPO step; returns its row of metrics."""
    config, watch = session.config, Stopwatch()
    with watch.part("generate"):
        collected = sample(session, version=step - 1)
    with watch.part("score"):
        batch = score(session, collected.batch)
    with watch.part("correct"):
        result = correct(batch, config.correction)
        report = metrics(measure(batch, result, config.correction))
        prove_step(report[f"{PREFIX}k3_kl"], config.rollout)
    with watch.part("update"):
        set_learning_rate(session, step)
        report |= update(session, batch, result)
    with watch.part("sync"):
        session.engine.sync(session.policy.engine_weights())
    if step % config.record_every == 0 or step == config.steps:
        with watch.part("record"):
            recorder.step(step, collected, batch)
    return {"step": step, **_rollout_summary(batch), **report, **watch.report()}


def sample(session: Session, version: int) -> Collected:
    config = session.config
    return collect(
        session.engine,
        session.tokenizer,
        session.task,
        session.stream,
        prompts=config.prompts_per_step,
        samples=config.samples_per_prompt,
        temperature=config.rollout.temperature,
        version=version,
        device=session.device,
    )


@torch.no_grad()
def score(session: Session, batch: TokenBatch) -> TokenBatch:
    """Add π_old, the critic's values, π_ref, advantages and returns. π_old is recomputed in every mode: a run
    records pairs."""
    config = session.config
    scores = session.policy(batch, config.rollout.temperature)
    advantages, returns = gae(
        token_rewards(_rewards(batch), batch.response_mask),
        scores.values,
        batch.response_mask,
        config.gamma,
        config.gae_lambda,
    )
    return batch.replace(
        old_log_probs=scores.log_probs,
        values=scores.values,
        ref_log_probs=reference_log_probs(session.reference, batch, config.rollout.temperature),
        advantages=advantages,
        returns=returns,
    )


def set_learning_rate(session: Session, step: int) -> None:
    """Linear from the first step's value to the last one's."""
    config = session.config
    done = (step - 1) / max(config.steps - 1, 1)
    for group in session.optimizer.param_groups:
        group["lr"] = config.learning_rate + done * (config.final_learning_rate - config.learning_rate)


def update(session: Session, batch: TokenBatch, result: CorrectionResult) -> dict[str, float]:
    """Epochs × mini-batches of the policy and value loss. Advantages are whitened over the kept tokens."""
    config = session.config
    assert batch.advantages is not None
    batch = batch.replace(advantages=whiten(batch.advantages, result.keep_mask))
    steps = []
    for _ in range(config.epochs):
        order = torch.randperm(len(batch.response_mask), generator=session.shuffle).to(session.device)
        for rows in order.chunk(config.minibatches):
            steps.append(_optimizer_step(session, batch.rows(rows), result.rows(rows)))
    values: list[float] = torch.stack([values for values, _ in steps]).mean(0).tolist()
    report: dict[str, float] = dict(zip(STEP_METRICS, values, strict=True))
    if not math.isfinite(report["grad_norm"]):
        raise UsageError("the gradient is not finite; training stops here. A smaller learning rate may help.")
    return report | means(merge(measured for _, measured in steps))


STEP_METRICS: tuple[str, ...] = ("loss", "value_loss", "entropy", "grad_norm")


def _optimizer_step(session: Session, batch: TokenBatch, result: CorrectionResult) -> tuple[Tensor, Measured]:
    """One gradient step; returns the values of STEP_METRICS and the moments of the policy loss, on the device."""
    config, policy = session.config, session.policy
    mask = batch.response_mask
    scores = policy(batch, config.rollout.temperature)
    policy_part, measured = policy_loss(
        scores.log_probs, batch, result, config.correction, config.policy_loss, generator=session.chance
    )
    value_part = masked_mean(
        clipped_value(scores.values, _of(batch.values), _of(batch.returns), clip=config.value_clip), mask
    )
    session.optimizer.zero_grad()
    (policy_part + config.value_coef * value_part).backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
    if bool(grad_norm.isfinite()):
        session.optimizer.step()
    entropy = masked_mean(scores.entropy.detach(), mask)
    return torch.stack([policy_part.detach(), value_part.detach(), entropy, grad_norm]), measured


def reference_log_probs(reference: PreTrainedModel, batch: TokenBatch, temperature: float) -> Tensor:
    return Policy(reference).to(reference.device)(batch, temperature).log_probs


def _rollout_summary(batch: TokenBatch) -> dict[str, float]:
    lengths = batch.response_mask.sum(-1).float()
    return {"reward": float(_rewards(batch).mean()), "response_length": float(lengths.mean())}


def _headline(row: dict[str, Any], accuracy: float) -> dict[str, str]:
    return {
        "reward": f"{row['reward']:.2f}",
        "accuracy": f"{accuracy:.2f}",
        "k3": f"{row[PREFIX + 'k3_kl']:.1e}",
        "kept": f"{row[PREFIX + 'kept_fraction']:.0%}",
    }


def _rewards(batch: TokenBatch) -> Tensor:
    return _of(batch.rewards)


def _of(tensor: Tensor | None) -> Tensor:
    """A field that `score` has filled in."""
    assert tensor is not None
    return tensor
