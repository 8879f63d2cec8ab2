"""Weights read back from an engine: what changes, in which number format, and which slice of a tensor is old."""

import pytest
import torch
from torch import Tensor

from rlcorr.train.config.rollout import WeightFormat
from rlcorr.train.rollout.read_back import fingerprint
from rlcorr.train.rollout.sync_proof import opposite
from rlcorr.train.rollout.weight_formats import rounded

Q, K = 5, 3


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def old_slices(before: Tensor, after: Tensor) -> list[int]:
    same = torch.isclose(fingerprint(before), fingerprint(after), rtol=0.01, atol=0).all(-1)
    return same.nonzero().flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("weight_format", ["none", "fp8_e4m3", "int8", "int4"])
@pytest.mark.parametrize("weight", [drawn(16, 32), 1e-3 * drawn(16, 32), torch.zeros(16, 32), torch.ones(16, 32)])
def test_every_element_changes_in_every_format(weight: Tensor, weight_format: WeightFormat, dtype: torch.dtype) -> None:
    """By the largest of them at least: a twentieth is far more than a format's step there. Zeros become ones."""
    stored, changed = (rounded("q", x, weight_format).to(dtype).float() for x in (weight, opposite(weight)))
    largest = float(weight.abs().max()) or 1.0
    assert bool(((stored - changed).abs() >= 0.95 * largest).all())
    assert float(opposite(weight).abs().max()) == largest


def test_ids_stay() -> None:
    assert torch.equal(opposite(torch.arange(3)), torch.arange(3))


@pytest.mark.parametrize("transposed", [False, True])
def test_old_rows_of_joined_tensors_show_under_one_scale(transposed: bool) -> None:
    """vLLM's fp8 has one scale for all of qkv_proj, from its largest magnitude, which stays: so old rows stay, too."""

    def in_fp8(weight: Tensor) -> Tensor:
        codes = (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn)
        return codes[None].mT if transposed else codes

    q, k = drawn(Q, 8), 3 * drawn(K, 8)
    before = in_fp8(torch.cat([opposite(q), opposite(k)]))
    assert old_slices(before, in_fp8(torch.cat([q, k]))) == []
    first = 8 if transposed else 0  # rows of the transposed matrix come before its columns
    assert old_slices(before, in_fp8(torch.cat([opposite(q), k]))) == [first + row for row in range(Q)]
    assert old_slices(before, in_fp8(torch.cat([q, opposite(k)]))) == [first + Q + row for row in range(K)]


def test_half_of_one_expert_shows() -> None:
    """Rows of experts 0, 1, 2 come first; the gate of an expert is the first half of its rows."""
    experts = drawn(3, 8, 6)
    half_old = opposite(experts).clone()
    half_old[1, :4] = experts[1, :4]
    assert old_slices(experts, half_old) == [8, 9, 10, 11]


def test_a_vector_shows_each_element() -> None:
    bias = torch.zeros(6)
    half_old = torch.cat([bias[:2], opposite(bias)[2:]])
    assert old_slices(bias, half_old) == [0, 1]
