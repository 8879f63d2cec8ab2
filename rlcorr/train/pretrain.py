"""Pretraining of the warm starts: small models, trained with supervision until they know half of their task."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlcorr.records import runs
from rlcorr.records.run_folders import only_writer
from rlcorr.records.runs import RunManifest
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import ALPHABET, Example, examples, get_task
from rlcorr.train.inputs.tokenizer import BOS_ID, EOS_ID, PAD_ID, character_tokenizer, encode, eos_id
from rlcorr.train.learner.policy import Policy
from rlcorr.train.output.provenance import git_commit, hardware, versions
from rlcorr.train.rollout.collect import RolloutWorker, greedy, greedy_accuracy
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.types import TokenBatch

ROWS = {"addition": 48, "running_sum": 16, "sorting": 8}
"""Prompts per step on each task."""
LEARNING_RATE, WARMUP_STEPS = 1e-3, 100
"""The learning rate rises linearly to its value over these steps."""


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
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=WARMUP_STEPS)
    streams = {name: examples(get_task(name), config.seed) for name in _task_names(config)}
    with tqdm(range(1, config.max_steps + 1), desc="pretrain", unit="step", dynamic_ncols=True) as progress:
        for step in progress:
            name = _task_at(config, step)
            batch = _supervised(list(itertools.islice(streams[name], ROWS[name])), tokenizer, device)
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


# --- new models with random weights ---

_SHARED: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
}  # fmt: skip
_FOUR_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}


def new_lm(vocab_size: int) -> Qwen2ForCausalLM:
    """Return a small Qwen2: 3 layers of width 192, tied embeddings, 1.3 M parameters."""
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab_size, hidden_size=192, intermediate_size=512, **_SHARED))


def new_narrow_lm(vocab_size: int) -> Qwen2ForCausalLM:
    """Return a narrower Qwen2: 3 layers of width 128 with 4 heads, tied embeddings, 0.64 M parameters."""
    config = Qwen2Config(vocab_size=vocab_size, hidden_size=128, intermediate_size=384, **_SHARED | _FOUR_HEADS)
    return Qwen2ForCausalLM(config)


def new_moe_lm(vocab_size: int) -> Qwen3MoeForCausalLM:
    """Return a small Qwen3-MoE: 3 layers of width 96, 8 experts of which a token uses 2, 0.6 M parameters."""
    config = Qwen3MoeConfig(
        vocab_size=vocab_size,
        hidden_size=96,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        output_router_logits=False,  # no auxiliary loss
        **_SHARED,
    )
    return Qwen3MoeForCausalLM(config)


NEW_MODELS = {"qwen2": new_lm, "qwen2_narrow": new_narrow_lm, "qwen3_moe": new_moe_lm}
"""Architecture → function that makes a new model of it, given the size of the vocabulary."""
