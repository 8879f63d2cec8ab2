"""Conversion of prompts to ids and of ids to text, by our character tokenizer or by the tokenizer of a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import PreTrainedTokenizerFast

from rlcorr.errors import UsageError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
"""Special ids of `character_tokenizer`; other tokenizers have their own."""


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per character, after <pad>, <bos> and <eos>.

    It raises an error for a character outside the alphabet.
    """
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS)


def load_tokenizer(model_path: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model from its tokenizer.json. Raises `UsageError` if it is missing.

    `AutoTokenizer` would be wrong: it takes only the vocabulary from that file, and the splitting rules from the class
    of the model. With a Qwen2 config, every tokenizer would become Qwen2's.
    """
    if not (model_path / "tokenizer.json").is_file():
        raise UsageError(f"no tokenizer at {model_path}: it must hold tokenizer.json, in Hugging Face's fast format.")
    return PreTrainedTokenizerFast.from_pretrained(model_path, local_files_only=True)


def encode(
    tokenizer: PreTrainedTokenizerFast,
    prompt: str | list[dict[str, str]],
    instruction: str = "",
    system_message: str = "",
) -> list[int]:
    """Return the ids of a prompt.

    With a chat template, a text becomes one user message that begins with the instruction, if there is one. The system
    message, if there is one, is put before messages that have none of their own. The assistant's turn is opened.
    Without a template, the ids are <bos>, if the tokenizer has one, and the text.

    Raises:
        UsageError: if messages come without a template, or if the template refuses them.
    """
    if tokenizer.chat_template is not None:
        messages = prompt
        if isinstance(messages, str):
            messages = [{"role": "user", "content": f"{instruction}\n{prompt}" if instruction else messages}]
        if system_message and messages[0]["role"] != "system":  # no empty one: some templates refuse system messages
            messages = [{"role": "system", "content": system_message}, *messages]
        try:
            ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        except TemplateError as error:  # some templates refuse roles, or their order
            raise UsageError(f"the chat template of {_name(tokenizer)} refuses {messages!r:.80}: {error}.") from error
        return list(ids)
    if not isinstance(prompt, str):
        raise UsageError(
            f"prompts made of messages need a chat template; {_name(tokenizer)} has none: use plain texts."
        )
    bos = [] if tokenizer.bos_token_id is None else [_single(tokenizer.bos_token_id)]
    try:
        return [*bos, *tokenizer.encode(prompt, add_special_tokens=False)]
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise UsageError(f"{_name(tokenizer)} cannot encode {prompt!r:.60}: {error}.") from error


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], eos_ids: Sequence[int] | None = None) -> str:
    """Return the text of a response before the first ending id, which is one of `eos_ids` (None: the tokenizer's)."""
    eos_ids = [eos_id(tokenizer)] if eos_ids is None else eos_ids
    end = next((t for t, token in enumerate(ids) if token in eos_ids), len(ids))
    return str(tokenizer.decode(list(ids[:end])))


def eos_ids(model_path: Path, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return every id that ends a response, from generation_config.json, config.json and the tokenizer.

    Chat models often have two: the end of a turn and the end of a text. Raises `UsageError` if there is none.
    """
    ids = set() if tokenizer.eos_token_id is None else {eos_id(tokenizer)}
    for file in ("generation_config.json", "config.json"):
        if (model_path / file).is_file():
            named = json.loads((model_path / file).read_text(encoding="utf-8")).get("eos_token_id")
            ids |= set(named if isinstance(named, list) else [] if named is None else [named])
    if not ids:
        raise UsageError(f"model {model_path} names no eos_token_id, so its responses could never end.")
    return sorted(map(_single, ids))


def eos_id(tokenizer: PreTrainedTokenizerFast) -> int:
    return _single(tokenizer.eos_token_id)


def _name(tokenizer: PreTrainedTokenizerFast) -> str:
    return f"the tokenizer at {tokenizer.name_or_path}"


def _single(token_id: object) -> int:
    assert isinstance(token_id, int)
    return token_id
