"""A session: the objects of one training run, made from its configuration."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from rlcorr.errors import UsageError, first_line
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.jsonl_task import jsonl_task
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.inputs.reasoning_gym_task import gym_task, is_gym
from rlcorr.train.inputs.tasks import Example, Task, examples, get_task, with_prompts
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import Ranks, gather, wrap
from rlcorr.train.learner.update import Learner
from rlcorr.train.rollout.batch_queue import BatchQueue, InFlightQueue, sampler
from rlcorr.train.rollout.collect import RolloutWorker, encode_example
from rlcorr.train.rollout.probe import Probe, probe
from rlcorr.train.rollout.start import resolve_engine, start_engine
from rlcorr.train.rollout.sync_proof import prove_sync

PROBED = 64
"""Number of held-out prompts of the probe."""


@dataclass(frozen=True)
class Session:
    """The objects of one training run."""

    config: TrainConfig
    ranks: Ranks
    model: Path  # from which the run starts
    policy: Policy
    reference: Policy | None  # frozen
    learner: Learner
    worker: RolloutWorker
    queue: BatchQueue | InFlightQueue
    held_out: list[Example]
    probe: Probe


def prepare(config: TrainConfig, ranks: Ranks, path: Path, first_step: int) -> Session:
    """Load the models, start the engine, prove that it takes new weights, and probe its mismatch."""
    torch.manual_seed(config.seed)
    model = _model(config.model, ranks)
    task, (tokenizer, ending_ids) = task_of(config), tokenizer_of(model)
    held_out = list(itertools.islice(examples(task, 0, held_out=True), config.eval_prompts))
    prompts = [encode_example(tokenizer, task, example) for example in held_out[:PROBED]]
    if not all(prompts):
        raise UsageError(f"the tokenizer in {model}, or its chat template, makes no token of a prompt.")
    precision = config.optim.precision
    policy = Policy(load_lm(model, ranks.device), config.advantage.estimator == "gae", precision).to(ranks.device)
    refuse_long_prompts(config, task, tokenizer, policy.lm.config.to_dict().get("max_position_embeddings"))
    if config.optim.gradient_checkpointing:
        policy.checkpoint_layers()
    log = path / ("engine.log" if ranks.main else f"engine_{ranks.rank}.log")
    engine = start_engine(config.rollout, model, ranks, ending_ids, log)
    proof = prove_sync(engine, policy, config.rollout)
    measured = probe(engine, policy, config.rollout, tokenizer, prompts, max_tokens=task.max_tokens, proof=proof)
    reference = None
    if config.policy_loss.use_kl_loss:
        start = _model(config.reference_model, ranks) if config.reference_model else model
        reference = Policy(load_lm(start, ranks.device), False, precision).requires_grad_(False)
        if (theirs := reference.lm.config.vocab_size) != (ours := policy.lm.config.vocab_size):
            raise UsageError(f"the reference model has {theirs:,} tokens in its vocabulary, the policy {ours:,}.")
    worker = RolloutWorker(engine, tokenizer, task, ending_ids)
    return Session(
        config=config,
        ranks=ranks,
        model=model,
        policy=policy,
        reference=reference,
        learner=learner_of(config, ranks, policy),
        worker=worker,
        queue=queue_of(config, ranks, worker, first_step),
        held_out=held_out,
        probe=measured,
    )


def _model(name: str, ranks: Ranks) -> Path:
    """Return the directory of a model, which one rank downloads."""
    return Path(gather(ranks, str(resolve_model(name)) if ranks.main else "")[0])


def queue_of(config: TrainConfig, ranks: Ranks, worker: RolloutWorker, first_step: int) -> BatchQueue | InFlightQueue:
    """Return the queue of the run's batches, the first of which is that of `first_step`."""
    if config.rollout.in_flight:
        return InFlightQueue(config, ranks, worker, first_step)
    return BatchQueue(sampler(config, ranks, worker, first_step), asynchronous=config.rollout.asynchronous)


def learner_of(config: TrainConfig, ranks: Ranks, policy: Policy) -> Learner:
    module = wrap(policy, ranks, config.optim.sharding)  # before the optimizer: sharding replaces parameters
    return Learner(
        module=module,
        optimizer=torch.optim.AdamW(policy.parameters(), lr=config.optim.learning_rate, weight_decay=0.0),
        scaler=torch.amp.GradScaler(ranks.device.type, enabled=config.optim.precision == "float16"),
        shuffle_rng=torch.Generator().manual_seed(config.seed),
        loss_rng=torch.Generator(ranks.device).manual_seed(config.seed),
        config=config,
        ranks=ranks,
    )


def tokenizer_of(model: Path) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Return the tokenizer of a model, and the ids that end a response. Raises `UsageError` if a file is damaged."""
    try:
        tokenizer = load_tokenizer(model)
        return tokenizer, eos_ids(model, tokenizer)
    except UsageError:
        raise
    except Exception as error:  # the library of tokenizers raises this class itself
        raise UsageError(f"the tokenizer in {model} cannot be read: {first_line(error).rstrip('.')}.") from error


def refuse_long_prompts(
    config: TrainConfig, task: Task, tokenizer: PreTrainedTokenizerFast, positions: int | None
) -> None:
    """Raise `UsageError` if a prompt of the file and its response may have more tokens than the model or engine takes.

    Prompts without a file are short. `positions` is what the model takes, if it says so.
    """
    if config.data is None or task.prompts is None or task.held_out is None:
        return
    limits = {} if positions is None else {"the model": positions}
    if resolve_engine(config.rollout) == "vllm":
        limits["the engine (--rollout.max-model-len)"] = config.rollout.max_model_len
    for example in (*itertools.islice(examples(task, 0), task.prompts), *examples(task, 0, held_out=True)):
        length = len(encode_example(tokenizer, task, example)) + task.max_tokens
        for name, most in limits.items():
            if length > most:
                raise UsageError(
                    f"{config.data}: the prompt {example.prompt!r:.60} and its response may take {length:,} tokens, "
                    f"but {name} takes at most {most:,}: shorten the prompt, or lower --max-response-tokens."
                )


def task_of(config: TrainConfig) -> Task:
    """Return the task of a configuration. Raises `UsageError` if it has fewer prompts than the configuration needs."""
    if is_gym(config.task):
        task = gym_task(config.task, max_tokens=config.max_response_tokens)
    elif config.data is None:
        task = get_task(config.task)
    else:
        task = jsonl_task(config.data, reward=config.reward, max_tokens=config.max_response_tokens)
    task = replace(task, system_message=config.system_message)
    if config.train_prompts:
        task = with_prompts(task, config.train_prompts, config.seed)
    if task.prompts is not None and config.sketch.exact_prompts > task.prompts:
        raise UsageError(
            f"sketch.exact_prompts is {config.sketch.exact_prompts}, but the task has only {task.prompts} prompts."
        )
    return task
