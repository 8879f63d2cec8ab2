"""A task that a small network learns in seconds, for mini.py: count on by the number of the prompt until 0, then stop.

Prompt n, from 0 to 7, asks for n, 2n, 3n, … modulo 8 up to the first 0, and then for END: 3 6 1 4 7 2 5 0 END, but
4 0 END. So answers have several lengths, and a batch of them has padding.
"""

import torch
from torch import Tensor, nn

PROMPTS, NUMBERS, LONGEST = 8, 8, 12
END, START, VOCABULARY = 8, 9, 9
"""The token that ends an answer, what is put before its first token, and the number of tokens: 0 to 7, and END."""
LENGTHS = torch.tensor([2, 9, 5, 9, 3, 9, 5, 9])
"""Tokens of the right answer to each prompt, END included."""


class Policy(nn.Module):
    """A network that gives the logits of the next token, (…, VOCABULARY), from prompt, token before and place."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, width)
        self.before = nn.Embedding(VOCABULARY + 1, width)  # one more, for START
        self.place = nn.Embedding(LONGEST, width)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, VOCABULARY))

    def forward(self, prompts: Tensor, before: Tensor, places: Tensor) -> Tensor:
        return self.head(self.prompt(prompts) + self.before(before) + self.place(places))


def reward(prompts: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the share of right tokens, (B,), of the answer's tokens or of those of the right answer, if it has more.

    A token is right if it is the one before plus the prompt's number, modulo 8, or END after a 0.
    """
    before = tokens[:, :-1]
    after = torch.where(before == 0, END, (before + prompts[:, None]) % NUMBERS)
    right = (tokens == torch.cat([prompts[:, None], after], 1)) & mask
    return right.sum(1).double() / torch.maximum(mask.sum(1), LENGTHS[prompts])
