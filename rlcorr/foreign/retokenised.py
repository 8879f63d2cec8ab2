"""Answers whose text encodes to other token ids than the file has: a text that is encoded again is another answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError, first_line, require_extra
from rlcorr.records.step_files import StepRecord


@dataclass(frozen=True)
class Reencoded:
    """Masks of the answers of a step, (B,) bool."""

    comparable: Tensor
    """Answers whose text is that of their ids, so that it can be encoded again."""
    differing: Tensor
    """Those of them whose text encodes to other ids."""


def has_ids_and_texts(record: StepRecord) -> bool:
    """Check whether an answer of the step has both token ids and a text."""
    ids = record.batch.response_ids
    return any(record.responses) and ids is not None and bool((ids[record.batch.response_mask] >= 0).any())


def load_tokenizer(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a model's folder, or of a tokenizer.json. Raises `UsageError`."""
    require_extra("train", "tokenizers")
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise UsageError(f"{file} cannot be read as a tokenizer.json ({first_line(error)}).") from error


def reencode(record: StepRecord, tokenizer: Any) -> Reencoded:
    """Compare the recorded ids of every answer with those of its text, which is encoded again.

    Special tokens, which a text may lack, are left out on both sides. An answer whose ids decode to another text than
    the recorded one is not comparable: the text may hold what a tool wrote, or be cut.

    Args:
        record: a step with ids and texts, see `has_ids_and_texts`.
        tokenizer: a `tokenizers.Tokenizer`.
    """
    ids, mask = record.batch.response_ids, record.batch.response_mask
    assert ids is not None
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    numbers = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    rows = [_compare(*pair, special, tokenizer) for pair in zip(numbers, record.responses, strict=True)]
    comparable, differing = zip(*rows, strict=True)
    return Reencoded(torch.tensor(comparable), torch.tensor(differing))


def _compare(ids: list[int], text: str, special: set[int], tokenizer: Any) -> tuple[bool, bool]:
    """Return whether an answer is comparable, and whether its text encodes to other ids."""
    if not ids or not text or min(ids) < 0:
        return False, False
    plain = [number for number in ids if number not in special]
    decode: Callable[..., str] = tokenizer.decode
    if text not in (decode(ids, skip_special_tokens=False), decode(plain)):
        return False, False
    again = tokenizer.encode(text, add_special_tokens=False).ids
    return True, [number for number in again if number not in special] != plain
