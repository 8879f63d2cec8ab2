"""Router replay: the trainer's mixture of experts takes the experts that the engine took."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from rlcorr.errors import UsageError


def layers_and_k(lm: PreTrainedModel) -> tuple[int, int]:
    """How many layers have a router, and how many experts it takes per token. Raises `UsageError` without routers."""
    gates = _gates(lm)
    if not gates:
        raise UsageError(f"router replay needs a model of type qwen3_moe; got {lm.config.model_type}.")
    return len(gates), gates[0].top_k


@contextmanager
def replayed(lm: PreTrainedModel, routed: Tensor | None, attention: Tensor) -> Iterator[None]:
    """Inside, every router takes the experts `routed` (B, S, layers, k), and its own where they are −1 or padding.

    Their weights are the router's own probabilities pᵢ, or pᵢ / Σ_chosen p where the model normalises them, and so
    gradients reach the router. `attention` is (B, S) bool. With `routed` None nothing is changed; on leaving, nothing
    is left. Raises `UsageError` if the shapes do not fit the model.
    """
    with ExitStack() as hooks:
        if routed is not None:
            _check(lm, routed, attention)
            chosen = routed.masked_fill(~attention[..., None, None], -1).flatten(0, 1)  # (B · S, layers, k)
            for layer, gate in enumerate(_gates(lm)):
                handle = gate.register_forward_hook(_taking(chosen[:, layer]))
                hooks.callback(handle.remove)
        yield


def _gates(lm: PreTrainedModel) -> list[Qwen3MoeTopKRouter]:
    return [module for module in lm.modules() if isinstance(module, Qwen3MoeTopKRouter)]


def _check(lm: PreTrainedModel, routed: Tensor, attention: Tensor) -> None:
    expected = (*attention.shape, *layers_and_k(lm))
    if routed.shape != expected:
        raise UsageError(f"routed experts have shape {tuple(routed.shape)}; this model and batch need {expected}.")
    if lm.is_gradient_checkpointing and torch.is_grad_enabled():  # the backward pass routes anew, outside the block
        raise UsageError("router replay and gradient checkpointing exclude each other; switch one off.")


def _taking(chosen: Tensor) -> Any:
    """A forward hook that puts the chosen experts (N, k) and their weights in place of a router's own."""

    def hook(gate: Qwen3MoeTopKRouter, _: tuple[Tensor], routed: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        logits, _weights, own_experts = routed
        experts = torch.where((chosen >= 0).all(-1, keepdim=True), chosen, own_experts)
        weights = nn.functional.softmax(logits, -1, dtype=torch.float32).gather(-1, experts)
        if gate.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), experts

    return hook
