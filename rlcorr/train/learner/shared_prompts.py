"""Several answers to one prompt in one row, so that the model computes the prompt only once.

A row is a prompt, followed by answers. A token attends to the prompt and to earlier tokens of its own answer, and has
the position that it would have directly behind the prompt. So every hidden state is that of the answer alone, up to
rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from rlcorr.types import TokenBatch

LONGEST_ROW = 512
"""Tokens of a row with more than one answer. Attention compares all tokens of a row, also those of different answers,
so that long rows cost more than the prompt that they save."""
WORTHWHILE = 0.25
"""Share of the tokens that must be left out. One thread is 1.8 and 2.0 times as fast where 56 % are left out, 1.2 and
1.3 times at 44 %, 1.1 times at 33 %, and no faster at 20 % (SmolLM2-135M and the warm start; `make bench ARGS=shared`
measures it)."""


@dataclass(frozen=True)
class SharedRows:
    """Inputs of the model for G rows of L tokens, and where B answers of T tokens are in them."""

    ids: Tensor  # (G, L)
    positions: Tensor  # (G, L)
    attends: Tensor  # (G, 1, L, L) bool: token i attends to token j
    before: Tensor  # (B, T) index into the G·L tokens: the state there predicts the token


def can_share(config: PreTrainedConfig) -> bool:
    """Return whether every layer takes `SharedRows.attends` as its mask, and has no window or mask of another kind."""
    if config._attn_implementation != "sdpa":
        return False
    whole = config.model_type in ("qwen2", "qwen3", "qwen3_moe") and config.sliding_window is None
    return whole or config.model_type == "llama"


def prompts_of(batch: TokenBatch) -> list[int]:
    """Return a number for each row, the same for equal prompts."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    return torch.where(batch.prompt_mask, batch.prompt_ids, -1).unique(dim=0, return_inverse=True)[1].tolist()


def worth_sharing(batch: TokenBatch) -> list[int] | None:
    """Return `prompts_of` the batch, or None if common prompts would leave out less than `WORTHWHILE` of its tokens."""
    assert batch.prompt_mask is not None
    prompts, tokens = prompts_of(batch), batch.prompt_mask.sum(-1).tolist()
    once = sum(dict(zip(prompts, tokens, strict=True)).values())
    saved = sum(tokens) - once
    return prompts if saved >= WORTHWHILE * (sum(tokens) + int(batch.response_mask.sum())) else None


def group_answers(
    rows: Sequence[int], prompts: Sequence[int], lengths: Sequence[tuple[int, int]], longest: int = LONGEST_ROW
) -> list[list[int]]:
    """Group neighbours with the same prompt, each group of at most `longest` tokens if it has several answers.

    Args:
        rows: rows of a batch.
        prompts: the number of each row's prompt.
        lengths: prompt and response tokens of each row.
    """
    groups: list[list[int]] = []
    tokens = 0
    for row in rows:
        prompt, response = lengths[row]
        if groups and prompts[groups[-1][-1]] == prompts[row] and tokens + response <= longest:
            groups[-1].append(row)
            tokens += response
        else:
            groups.append([row])
            tokens = prompt + response
    return groups


def shared_rows(batch: TokenBatch) -> SharedRows | None:
    """Arrange the answers of a batch in rows with a common prompt; None if no two neighbours have the same prompt."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    mask, prompt_mask = batch.response_mask, batch.prompt_mask
    prompt, response = prompt_mask.sum(-1), mask.sum(-1)
    lengths = list(zip(prompt.tolist(), response.tolist(), strict=True))
    groups = group_answers(range(len(mask)), prompts_of(batch), lengths)
    if len(groups) == len(mask):
        return None
    device = mask.device
    starts, rows, widest = _places(groups, lengths)
    start, row, first = (torch.tensor(x, device=device) for x in (starts, rows, [group[0] for group in groups]))

    ids = torch.zeros(len(groups), widest, dtype=batch.prompt_ids.dtype, device=device)
    positions = torch.zeros(len(groups), widest, dtype=torch.long, device=device)
    answer = torch.full((len(groups), widest), -1, device=device)  # 0 in a prompt, 1 + b in answer b, −1 behind them
    real = prompt_mask[first]
    of_prompt = real.nonzero()[:, 0], (real.long().cumsum(-1) - 1)[real]
    ids[of_prompt], positions[of_prompt], answer[of_prompt] = batch.prompt_ids[first][real], of_prompt[1], 0
    count = mask.long().cumsum(-1) - 1  # (B, T)
    of_answer = row[:, None].expand_as(mask)[mask], (start[:, None] + count)[mask]
    ids[of_answer] = batch.response_ids[mask]
    positions[of_answer] = (prompt[:, None] + count)[mask]
    answer[of_answer] = torch.arange(1, len(mask) + 1, device=device)[:, None].expand_as(mask)[mask]

    same = (answer[:, None, :] == answer[:, :, None]) | (answer[:, None, :] == 0)  # (G, i, j)
    before = torch.where(mask & (count > 0), start[:, None] + count - 1, prompt[:, None] - 1)
    return SharedRows(ids, positions, same.tril()[:, None], before + widest * row[:, None])


def _places(groups: list[list[int]], lengths: Sequence[tuple[int, int]]) -> tuple[list[int], list[int], int]:
    """Return the column at which each answer begins, its row, and the number of columns."""
    starts, rows, widest = [], [], 0
    for row, group in enumerate(groups):
        column = lengths[group[0]][0]
        for answer in group:
            starts.append(column)
            rows.append(row)
            column += lengths[answer][1]
        widest = max(widest, column)
    return starts, rows, widest


def states_of(trunk: nn.Module, shared: SharedRows) -> Tensor:
    """Return the hidden states that predict the tokens, (B, T, H)."""
    inputs = {"attention_mask": shared.attends, "position_ids": shared.positions, "use_cache": False}
    states = trunk(shared.ids, **inputs)[0].flatten(0, 1)
    # The backward pass of a look-up is deterministic on a CPU, that of states[shared.before] is not.
    return nn.functional.embedding(shared.before, states)
