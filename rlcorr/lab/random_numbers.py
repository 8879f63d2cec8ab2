"""Random numbers that Python and JavaScript draw alike: mulberry32, whose k-th number needs none of those before it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_GAMMA = 0x6D2B79F5
Draw = Callable[[int, int, int], Tensor]
"""Seed, stream and count → numbers."""
START, SAMPLES, NOISE = 0, 1, 2
"""Streams of a seed: its first weights; and for each step its samples and its noise, see `stream`."""


def stream(kind: int, step: int = 0) -> int:
    """Return the number of a step's stream, of which no other step has one."""
    return kind + 2 * step


def uniforms(seed: int, number: int, count: int) -> Tensor:
    """Return numbers in [0, 1) of a seed's stream, (count,) float64, multiples of 2⁻³².

    >>> [round(x, 6) for x in uniforms(0, 0, 3).tolist()]
    [0.719268, 0.442656, 0.128862]
    """
    state = _mixed(_mixed(torch.tensor(seed)) + number)
    return _mixed(state + _GAMMA * torch.arange(1, count + 1)).double() / 2**32


def normals(seed: int, number: int, count: int) -> Tensor:
    """Return standard normal numbers, (count,) float64, each of two uniform ones (Box and Muller, 1958)."""
    radius, angle = uniforms(seed, number, 2 * count).view(count, 2).unbind(-1)
    return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()


def _mixed(state: Tensor) -> Tensor:
    """Return mulberry32's output for a state, both in 32 bits. Products of int64 wrap, which leaves their low bits."""
    a = state & _LOW
    t = ((a ^ (a >> 15)) * (1 | a)) & _LOW
    t ^= (t + (((t ^ (t >> 7)) * (61 | t)) & _LOW)) & _LOW
    return t ^ (t >> 14)
