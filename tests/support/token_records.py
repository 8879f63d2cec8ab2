"""Recorded steps of character models, and text that must stay text."""

from dataclasses import replace

import torch
from app_runs import make_record

from rlcorr.records.step_files import StepRecord

HOSTILE = "<img src=x onerror=alert(1)> [link](javascript:alert(1)) $x^2$ `code` **b**"


def characters(texts: list[str], prompts: list[str] | None = None) -> StepRecord:
    """A step of our character models: a token per character, and an end token."""
    made = make_record(0, sequences=len(texts), width=max(map(len, texts)) + 1)
    lengths = torch.tensor([len(text) + 1 for text in texts])
    mask = torch.arange(made.batch.response_mask.shape[1]) < lengths[:, None]
    alphabet = sorted(set("".join(texts)))
    ids = torch.zeros(mask.shape, dtype=torch.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor([3 + alphabet.index(c) for c in text], dtype=torch.int32)
        ids[row, len(text)] = 2
    batch = made.batch.replace(response_mask=mask, response_ids=ids)
    return replace(made, batch=batch, responses=texts, prompts=prompts or made.prompts)
