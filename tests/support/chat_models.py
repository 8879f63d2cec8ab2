"""Byte-level tokenizers with a chat template, as Qwen2.5's instruct models have them, trained here on a few texts."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
END_OF_TEXT_ID, TURN_ID, END_OF_TURN_ID = 0, 1, 2
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('robots may not speak') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = ["What is 12 plus 3456789?", "user assistant system be brief: 4 + 5 = 9, 99*9=891 "] * 20


def byte_level(**settings: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose numbers are cut into groups of three digits, unlike Qwen2's single digits."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer: Any = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[END_OF_TEXT, TURN, END_OF_TURN], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)


def save(tokenizer: PreTrainedTokenizerFast, path: Path, **config: Any) -> Path:
    """Beside a Qwen2 config, and named as Qwen2's models name theirs."""
    tokenizer.save_pretrained(path)
    Qwen2Config(vocab_size=len(tokenizer), **config).save_pretrained(path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "Qwen2Tokenizer"}))
    return path
