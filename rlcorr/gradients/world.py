"""Every response of at most T tokens over a small vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError

LIMIT = 10**6


@dataclass(frozen=True)
class World:
    """All N responses of at most T tokens over a vocabulary of V, in which token 0 ends a response."""

    vocabulary: int
    tokens: Tensor  # (N, T) int64
    mask: Tensor  # (N, T) bool
    states: Tensor  # (N, T) int64: the row of the table that each token is drawn from

    @property
    def state_count(self) -> int:
        """Return S, the number of rows of a policy's table."""
        return int(self.states.max()) + 1


def world(vocabulary: int, length: int) -> World:
    """Enumerate all responses. Raises `UsageError` if there are more than a million of them, with the arithmetic."""
    if vocabulary < 2 or length < 1:
        raise UsageError(f"a toy world needs a vocabulary ≥ 2 and a length ≥ 1; got {vocabulary} and {length}.")
    count = response_count(vocabulary, length)
    if count > LIMIT:
        raise UsageError(
            f"{vocabulary} tokens and {length} steps make {count:,} responses; at most {LIMIT:,} can be enumerated "
            f"(after every step all {vocabulary - 1} tokens except the end token continue): use a smaller vocabulary "
            "or length."
        )
    branches = vocabulary - 1  # tokens that continue a response
    rows = []
    for depth in range(length):  # prefixes of `depth` tokens, none of them 0; prefix i is i in base V − 1
        last = depth == length - 1
        prefixes = torch.arange(branches**depth)
        ends = torch.arange(vocabulary if last else 1)
        prefix = prefixes.repeat_interleave(len(ends))
        rows.append(_padded(_digits(prefix, depth, branches), ends.repeat(len(prefixes)), length))
    tokens, mask = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return World(vocabulary, tokens, mask, _states(tokens, mask, branches))


def response_count(vocabulary: int, length: int) -> int:
    """Return the number of responses: V·(V − 1)^(T−1) of T tokens, and (V − 1)^(t−1) that end after t < T tokens."""
    branches = vocabulary - 1
    return sum(branches**depth for depth in range(length - 1)) + vocabulary * branches ** (length - 1)


def _digits(number: Tensor, count: int, base: int) -> Tensor:
    """Write numbers in this base, (n,) → (n, count): the highest digit first, each plus 1."""
    powers = torch.tensor([base**power for power in range(count - 1, -1, -1)], dtype=torch.int64)
    return number[:, None] // powers % base + 1


def _padded(prefix: Tensor, last: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Combine prefixes with their last tokens → (tokens, mask), both (n, length)."""
    used = prefix.shape[1] + 1
    tokens = torch.zeros(len(last), length, dtype=torch.int64)
    tokens[:, : used - 1], tokens[:, used - 1] = prefix, last
    return tokens, torch.arange(length).expand(len(last), length) < used


def _states(tokens: Tensor, mask: Tensor, branches: int) -> Tensor:
    """Return the index of the prefix before each token.

    Shorter prefixes come first. Among those of one length, the tokens are the digits of a number in base `branches`.
    """
    states = torch.zeros_like(tokens)
    first, number = 0, torch.zeros(len(tokens), dtype=torch.int64)
    for column in range(tokens.shape[1]):
        states[:, column] = torch.where(mask[:, column], first + number, 0)
        first += branches**column
        number = number * branches + tokens[:, column] - 1
    return states
