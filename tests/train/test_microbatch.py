"""Micro-batches: every row once, within the budget, as many on every rank, and nothing of a row is lost."""

import dataclasses
import random

import oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcorr import TokenBatch
from rlcorr.train.learner.microbatch import lengths_of, pack_rows, plan_microbatches, slice_rows
from rlcorr.types import TOP

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=20)
BUDGET = st.sampled_from([1, 15, 40, 100, 10_000])
LAYERS, K = 2, 3
LISTED = 4
"""Likeliest tokens per position."""


# --- the plan ---


@oracle.examples(150)
@given(LENGTHS, BUDGET, st.integers(1, 5))
def test_the_plan_of_any_batch(lengths: list[tuple[int, int]], budget: int, size: int) -> None:
    rows = range(len(lengths))
    shares = plan_microbatches(lengths, budget, size)
    assert len(shares) == size
    assert len({len(groups) for groups in shares}) == 1
    groups = [group for share in shares for group in share]
    assert sorted(row for group in groups for row in group) == list(rows)
    for group in groups:
        if len(group) > 1:
            width = max(lengths[row][0] for row in group) + max(lengths[row][1] for row in group)
            assert len(group) * width <= budget
    assert any(all(share[i] for i in range(len(share))) for share in shares)  # one rank at least needs no padding
    assert plan_microbatches(lengths, budget, size) == shares


def test_some_rows_only() -> None:
    """Rows 1, 3 and 4 of a batch, by hand: the longest first, 2 · (3 + 4) = 14 tokens, and one row more would be 21."""
    lengths = [(9, 9), (3, 4), (9, 9), (2, 4), (3, 1)]
    assert pack_rows([4, 3, 1], lengths, 14) == [[1, 3], [4]]
    assert pack_rows([4, 3, 1], lengths, 13) == [[1], [3], [4]]
    assert pack_rows([4, 3, 1], lengths, 21) == [[1, 3, 4]]
    assert pack_rows([], lengths, 14) == []


def test_a_rank_with_less_to_do_gets_padding() -> None:
    """Rank 0 has the long row, rank 1 the two others, each too long to go together."""
    assert plan_microbatches([(1, 9), (1, 4), (1, 4)], 9, 2) == [[[0], []], [[1], [2]]]


# --- what is in a micro-batch ---

ALWAYS = ("response_mask", "rollout_log_probs", "prompt_ids", "prompt_mask")
NAMES = [f.name for f in dataclasses.fields(TokenBatch)]
OPTIONAL = [name for name in NAMES if name not in ALWAYS]
DTYPES = {"group_ids": torch.int64, "policy_versions": torch.int32, "response_ids": torch.int64}


def filled(lengths: list[tuple[int, int]], names: list[str], *, wider: int = 0, seed: int = 0) -> TokenBatch:
    """Random numbers in these fields, padding included; `wider` columns on both sides are padding in every row."""
    chance = torch.Generator().manual_seed(seed)
    rows = len(lengths)
    prompt, response = (max(max(numbers), 1) + wider for numbers in zip(*lengths, strict=True))
    shapes = dict.fromkeys(NAMES, (rows, response))
    shapes |= {"prompt_ids": (rows, prompt), "routed_experts": (rows, prompt + response, LAYERS, K)}
    shapes |= dict.fromkeys(TOP, (rows, response, LISTED))
    shapes |= dict.fromkeys(("rewards", "group_ids", "policy_versions", "unpaired_tokens"), (rows,))

    def numbers(name: str) -> Tensor:
        if name.endswith("_ids") or name in ("routed_experts", "policy_versions"):
            return torch.randint(0, 99, shapes[name], generator=chance, dtype=DTYPES.get(name, torch.int16))
        return torch.randn(shapes[name], generator=chance, dtype=torch.float64)

    p, r = torch.tensor(lengths).T[..., None]
    masks = {
        "prompt_mask": torch.arange(prompt) >= prompt - p,
        "response_mask": torch.arange(response) < r,
    }
    return TokenBatch(**masks, **{name: numbers(name) for name in (*ALWAYS[1:3], *names)})


def contents(batch: TokenBatch) -> list[dict[str, list]]:
    """Of each row what its real tokens hold, in every field."""
    assert batch.prompt_mask is not None
    attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)

    def held(name: str, x: Tensor, row: int) -> list:
        if x.dim() == 1:
            return [x[row].item()]
        mask = attention if name == "routed_experts" else batch.response_mask
        mask = batch.prompt_mask if name in ("prompt_ids", "prompt_mask") else mask
        assert mask is not None
        return x[row][mask[row]].tolist()

    rows = range(len(batch.response_mask))
    return [{name: held(name, x, row) for name, x in batch.tensors().items()} for row in rows]


@oracle.examples(80)
@given(LENGTHS, st.sets(st.sampled_from(OPTIONAL)), st.integers(0, 3), st.integers(0, 2**32))
def test_rows_keep_every_real_token_of_every_field(
    lengths: list[tuple[int, int]], names: set[str], wider: int, seed: int
) -> None:
    batch = filled(lengths, sorted(names), wider=wider, seed=seed)
    chosen = random.Random(seed).sample(range(len(lengths)), k=random.Random(seed).randint(1, len(lengths)))
    part = slice_rows(batch, chosen)
    every = contents(batch)
    assert contents(part) == [every[row] for row in chosen]
    assert dtypes(part) == dtypes(batch)
    prompt, response = (max(numbers) for numbers in zip(*(lengths[row] for row in chosen), strict=True))
    assert part.prompt_mask is not None
    assert (part.prompt_mask.shape[1], part.response_mask.shape[1]) == (prompt, max(response, 1))
    assert lengths_of(part) == [lengths[row] for row in chosen]


def dtypes(batch: TokenBatch) -> dict[str, torch.dtype]:
    return {name: x.dtype for name, x in batch.tensors().items()}


# --- padding micro-batches ---


def test_a_padding_micro_batch_has_every_field_of_the_batch() -> None:
    """It goes through the model as the batch does, and adds nothing to the loss."""
    batch = filled([(3, 2), (5, 4)], OPTIONAL, wider=1)
    padding = slice_rows(batch, [])
    assert list(padding.tensors()) == list(batch.tensors())
    assert dtypes(padding) == dtypes(batch)
    assert {name: x.dim() for name, x in padding.tensors().items()} == {n: x.dim() for n, x in batch.tensors().items()}
    assert not padding.response_mask.any()
    assert len(padding.response_mask) == 1
    assert batch.response_mask.any()  # the batch itself is as it was
