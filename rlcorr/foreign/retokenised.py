"""Answers whose text encodes to other token ids than the file has: a text that is encoded again is another answer."""

from typing import Any

import torch
from torch import Tensor

from rlcorr.records.step_files import StepRecord


def has_ids_and_texts(record: StepRecord) -> bool:
    """Check whether an answer of the step has both token ids and a text."""
    ids = record.batch.response_ids
    return any(record.responses) and ids is not None and bool((ids[record.batch.response_mask] >= 0).any())


def reencode(record: StepRecord, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Compare the recorded ids of every answer with those of its text, which is encoded again.

    Special tokens, which a text may lack, are left out on both sides. An answer whose ids decode to another text than
    the recorded one cannot be compared: the text may hold what a tool wrote, or be cut.

    Args:
        record: a step with ids and texts, see `has_ids_and_texts`.
        tokenizer: a `tokenizers.Tokenizer`.

    Returns:
        Two masks of the answers, (B,): those that can be compared, and of these those whose text encodes to other ids.
    """
    ids, mask = record.batch.response_ids, record.batch.response_mask
    assert ids is not None
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    comparable, differing = torch.zeros(2, len(mask), dtype=torch.bool)
    for row, text in enumerate(record.responses):
        numbers = ids[row][mask[row]].tolist()
        if not numbers or not text or min(numbers) < 0:
            continue
        plain = [number for number in numbers if number not in special]
        texts = tokenizer.decode(numbers, skip_special_tokens=False), tokenizer.decode(plain)
        again = [number for number in tokenizer.encode(text, add_special_tokens=False).ids if number not in special]
        comparable[row], differing[row] = text in texts, text in texts and again != plain
    return comparable, differing
