"""For tests of the update: a very small policy, a batch of uneven rows, and gradient steps on it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import CPU
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.presets import PRESETS, Preset
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.update import Learner, update
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.types import TokenBatch

VOCABULARY = 11
PROMPTS = (2, 4, 1, 3, 2, 3)
RESPONSES = (3, 1, 6, 2, 5, 4)
"""Tokens of each row: 21 in six responses, six columns."""

NO_CRITIC = AdvantageConfig(estimator="reinforce_pp")
ONE_STEP = OptimConfig(epochs=1, minibatches=1, max_grad_norm=1e9)
EACH_ROW = 1
"""Token budget with which every row is a micro-batch of its own."""


def small_policy(critic: bool = False, *, layers: int = 1, seed: int = 0) -> Policy:
    """Layers of width 16. Its value head, which starts at zero, is random: zeros would hide what it sends on."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True, initializer_range=0.5,
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config), critic)
    if policy.value_head is not None:
        nn.init.normal_(policy.value_head.weight)
    return policy


def sampled_batch(prompts: tuple[int, ...] = PROMPTS, responses: tuple[int, ...] = RESPONSES) -> TokenBatch:
    """Random tokens in rows of these lengths."""
    chance = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (length,), generator=chance).tolist()

    rows = [ids(length) for length in responses]
    return to_batch([ids(length) for length in prompts], Samples(rows, [[0.0] * len(row) for row in rows]), CPU)


@torch.no_grad()
def scored_batch(policy: Policy) -> TokenBatch:
    """Every field that an update reads: policies that differ by about 30 %, so that clips bind and rules reject, and
    NaN on the padding of what must not be read there."""
    batch = sampled_batch()
    chance = torch.Generator().manual_seed(2)
    log_p = policy(batch, 1.0).log_probs

    def near(x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn(x.shape, generator=chance)

    old = near(log_p)
    read = {"old_log_probs": old, "rollout_log_probs": near(old), "ref_log_probs": near(log_p)}
    read["advantages"] = near(torch.tensor([1.0, -1.0, 0.5, -2.0, -0.5, 2.0])[:, None].expand_as(log_p))
    mask = batch.response_mask
    values = torch.randn(2, *mask.shape, generator=chance)
    return batch.replace(
        **{name: torch.where(mask, x, torch.nan) for name, x in read.items()},
        values=torch.where(mask, values[0], 0),
        returns=torch.where(mask, values[1], 0),
        rewards=torch.arange(float(len(mask))),  # the number of the row
    )


def train_config(patch: pytest.MonkeyPatch, correction: CorrectionConfig, **changes: Any) -> TrainConfig:
    """A configuration with a correction that need not be a preset: one update of the whole batch, no critic."""
    patch.setitem(PRESETS, "of_the_test", Preset("test", correction, "", ""))
    rollout = RolloutConfig(engine="transformers", dtype="float32")
    base = TrainConfig(
        preset="of_the_test", rollout=rollout, advantage=NO_CRITIC, optim=ONE_STEP, loss=LossConfig(),
        samples_per_prompt=2,
    )  # fmt: skip
    return replace(base, **changes)


def learner(policy: Policy, config: TrainConfig, optimizer: torch.optim.Optimizer | None = None) -> Learner:
    """Without an optimizer of its own it moves nothing: the gradient stays to be looked at."""
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    scaler = torch.amp.GradScaler("cpu", enabled=config.optim.precision == "float16")
    return Learner(policy, optimizer or still, scaler, *generators, config=config, ranks=ALONE)


def one_update(policy: Policy, config: TrainConfig, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """The gradient and the metrics of one optimizer step on the whole batch."""
    row = update(learner(policy, config), batch, correct(batch, config.correction))
    return gradient(policy), row


def weights(module: nn.Module) -> Tensor:
    """A copy of all parameters, as one vector."""
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def gradient(module: nn.Module) -> Tensor:
    """Of all parameters, as one vector."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()])


def rows_alone(policy: Policy, batch: TokenBatch, temperature: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """For each row by itself, without padding: log π_θ of its tokens and the entropy before each, with a graph."""
    scores = []
    prompts = tokens_of(batch.prompt_ids, batch.prompt_mask)
    for prompt, response in zip(prompts, tokens_of(batch.response_ids, batch.response_mask), strict=True):
        logits = policy.lm(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
        log_p = logits.log_softmax(-1)
        scores.append((log_p[range(len(response)), response], -(log_p.exp() * log_p).sum(-1)))
    return scores


def tokens_of(x: Tensor | None, mask: Tensor | None) -> list[list[Any]]:
    """The entries of each row under the mask."""
    assert x is not None
    assert mask is not None
    return [row[real].tolist() for row, real in zip(x, mask, strict=True)]


def hand_gradient(policy: Policy, batch: TokenBatch, factors: list[list[float]], temperature: float = 1.0) -> Tensor:
    """Σ c ∇log π_θ over the tokens, c as given."""
    policy.zero_grad()
    alone = rows_alone(policy, batch, temperature)
    parts = [(torch.tensor(c) * log_p).sum() for c, (log_p, _) in zip(factors, alone, strict=True)]
    torch.stack(parts).sum().backward()
    return gradient(policy)
