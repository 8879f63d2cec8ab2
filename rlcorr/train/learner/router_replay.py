"""Router replay: the trainer's mixture of experts uses the experts that the engine chose."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from rlcorr.errors import UsageError


@contextmanager
def replayed(lm: PreTrainedModel, routed: Tensor | None, attention: Tensor) -> Iterator[None]:
    """Make every router use the experts `routed` inside the `with` block; at −1 and on padding it uses its own choice.

    The weights of the experts are the router's own probabilities pᵢ, or pᵢ / Σ_chosen p if the model normalises them,
    so gradients reach the router. The end of the block removes everything that was installed.

    Args:
        routed: (B, S, layers, k), or None to change nothing.
        attention: (B, S) bool, False on padding.
    """
    with ExitStack() as hooks:
        if routed is not None:
            experts = routed.masked_fill(~attention[..., None, None], -1).flatten(0, 1)  # (B · S, layers, k)
            gates = [module for module in lm.modules() if isinstance(module, Qwen3MoeTopKRouter)]
            if not gates:
                raise UsageError(f"router replay needs a model of type qwen3_moe; got {lm.config.model_type}.")
            for layer, gate in enumerate(gates):
                handle = gate.register_forward_hook(_replay_hook(experts[:, layer]))
                hooks.callback(handle.remove)
        yield


def _replay_hook(replayed_experts: Tensor) -> Any:
    """Return a forward hook that replaces a router's experts and their weights by these experts (N, k)."""

    def hook(gate: Qwen3MoeTopKRouter, _: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        logits, _weights, own_experts = output
        experts = torch.where((replayed_experts >= 0).all(-1, keepdim=True), replayed_experts, own_experts)
        weights = nn.functional.softmax(logits, -1, dtype=torch.float32).gather(-1, experts)
        if gate.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), experts

    return hook
