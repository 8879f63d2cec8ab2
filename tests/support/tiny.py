"""A very small random model for tests of the trainer: two layers of width 64, or smaller, and its configuration."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import ALPHABET
from rlcorr.train.inputs.tokenizer import BOS_ID, EOS_ID, PAD_ID, character_tokenizer

CPU = torch.device("cpu")


def save_tiny_model(path: Path, *, layers: int = 2, width: int = 64) -> Path:
    tokenizer = character_tokenizer(ALPHABET)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
        tie_word_embeddings=True, initializer_range=0.2, pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save_random(path: Path, new: Callable[[int], PreTrainedModel], *, tied: bool) -> Path:
    """A model of this kind with weights of 0.1, so that a head left behind would show."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer(ALPHABET)
    lm = new(len(tokenizer))
    lm.config.tie_word_embeddings, lm.config.initializer_range = tied, 0.1
    type(lm)(lm.config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tiny_config(model: Path, **changes: Any) -> TrainConfig:
    rollout = RolloutConfig(engine="transformers", dtype="float32")
    base = TrainConfig(
        run="tiny", model=str(model), rollout=rollout, steps=2, prompts_per_step=4, samples_per_prompt=2, eval_prompts=4
    )
    return replace(base, **changes)
