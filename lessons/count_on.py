"""A task that a small network learns in seconds, for `mini.py`: count on, modulo 8, by the number of the prompt."""

import torch
from torch import Tensor, nn

PROMPTS, LENGTH, VOCABULARY = 8, 12, 8


class Policy(nn.Module):
    """Log-probs of the next token from the prompt, the token before and the place, (…, VOCABULARY)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.prompt = nn.Embedding(PROMPTS, width)
        self.before = nn.Embedding(VOCABULARY + 1, width)  # the last one stands before the first token
        self.place = nn.Embedding(LENGTH, width)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, VOCABULARY))

    def forward(self, prompts: Tensor, before: Tensor, places: Tensor) -> Tensor:
        return self.head(self.prompt(prompts) + self.before(before) + self.place(places)).log_softmax(-1)


def log_probs(policy: Policy, prompts: Tensor, tokens: Tensor) -> Tensor:
    """Of every token of the answers, (B, LENGTH)."""
    start = torch.full_like(tokens[:, :1], VOCABULARY)
    before, places = torch.cat([start, tokens[:, :-1]], 1), torch.arange(LENGTH).expand_as(tokens)
    return policy(prompts[:, None].expand_as(tokens), before, places).gather(-1, tokens[..., None])[..., 0]


@torch.no_grad()
def sample(engine: Policy, prompts: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """One answer to each prompt, and its log-probs under the policy that drew it, both (B, LENGTH)."""
    tokens, chosen = [torch.full_like(prompts, VOCABULARY)], []
    for place in range(LENGTH):
        next_log_probs = engine(prompts, tokens[-1], torch.full_like(prompts, place))
        tokens.append(next_log_probs.exp().multinomial(1, generator=chance)[:, 0])
        chosen.append(next_log_probs.gather(-1, tokens[-1][:, None])[:, 0])
    return torch.stack(tokens[1:], 1), torch.stack(chosen, 1)


def reward(prompts: Tensor, tokens: Tensor) -> Tensor:
    """The share of tokens that are the one before plus the prompt's number, modulo 8; before the first is a 0. (B,)"""
    before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
    return (tokens == (before + prompts[:, None]) % VOCABULARY).double().mean(-1)
