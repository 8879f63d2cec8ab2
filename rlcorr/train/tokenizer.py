"""A character tokenizer in Hugging Face's fast format."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
"""Of the tokenizer made here; other models bring their own."""


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token per character, after <pad>, <bos> and <eos>. A character outside the alphabet is an error."""
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS)


def load_tokenizer(model_path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer beside a model. Not `AutoTokenizer`: beside a Qwen2 config it would make a Qwen2Tokenizer of it,
    which encodes these texts to nothing."""
    return PreTrainedTokenizerFast.from_pretrained(model_path)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """<bos> and the tokens of a prompt."""
    return [_single(tokenizer.bos_token_id), *tokenizer.encode(text, add_special_tokens=False)]


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    """Text of a response, without <eos> and whatever follows it."""
    eos = eos_id(tokenizer)
    end = ids.index(eos) if eos in ids else len(ids)
    return str(tokenizer.decode(ids[:end]))


def eos_id(tokenizer: PreTrainedTokenizerFast) -> int:
    return _single(tokenizer.eos_token_id)


def _single(token_id: object) -> int:
    assert isinstance(token_id, int)
    return token_id
