"""The Lab's policy: one hidden layer of 24 units, many networks at once; and its start, right in 3 of 10 answers."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlcorr.lab.random_numbers import START, normals, stream
from rlcorr.lab.task import BASE, PROMPTS, SIDE, A, B, reward, targets

HIDDEN = 24
START_REWARD = 0.3
_START_STEPS, _START_RATE = 600, 0.02

Network = tuple[Tensor, Tensor]
"""Weights of N networks: from the prompt to the hidden layer (N, 12, 24), and to the logits (N, 24, 8·T)."""


def log_probs(network: Network) -> Tensor:
    """Return log π of every digit of every answer, (N, P, T, V). A digit does not depend on those before it."""
    inner, outer = network
    hidden = torch.tanh(inner[:, A] + inner[:, SIDE + B])  # a and b are one-hot
    return (hidden @ outer).view(len(inner), PROMPTS, -1, BASE).log_softmax(-1)


@cache
def start(seed: int, length: int) -> Network:
    """Return the network of a seed, (1, …): random weights, trained on right answers until the reward is 0.3."""
    drawn = normals(seed, stream(START), (2 * SIDE + length * BASE) * HIDDEN).split(2 * SIDE * HIDDEN)
    inner, outer = 0.7 * drawn[0].view(1, 2 * SIDE, HIDDEN), 0.2 * torch.cat(drawn[1:]).view(1, HIDDEN, -1)
    network, right = (inner.requires_grad_(), outer.requires_grad_()), targets(length)
    optimizer = torch.optim.AdamW(network, lr=_START_RATE, weight_decay=0)
    for _ in range(_START_STEPS):
        values = log_probs(network)
        if reward(values.detach(), right) > START_REWARD:
            break
        optimizer.zero_grad()
        cross_entropy(values.view(-1, BASE), right.flatten()).backward()
        optimizer.step()
    return inner.detach(), outer.detach()
