"""Fingerprints of the weights with which an engine computes: they show whether a sync has changed every tensor."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from rlcorr.errors import UsageError

PROBES = 8
"""Number of random vectors with which a matrix is multiplied: no product of a changed row stays within a hundredth of
its old value eight times."""
NOT_SENT = re.compile(r"scale(_inv)?$")
"""Parameters of the engine that no checkpoint contains. Scales of quantised tensors follow from the largest magnitude
of a tensor, which the proof of a sync keeps; scales of the KV cache are constants."""


def fingerprint(weight: Tensor) -> Tensor:
    """Return a few numbers for each slice of a tensor, (slices, n), float32.

    The slices of a vector are its elements, and those of a matrix its rows, so that tensors which an engine has joined
    have slices of their own. Experts, (E, out, in), also have their columns, because a kernel may want them transposed.
    """
    weight = weight.detach().float()
    if weight.dim() < 2:
        return weight.reshape(-1, 1).to("cpu", copy=True)  # the next sync writes into the weight
    slices = [weight @ probes(weight.shape[-1], weight)]
    if weight.dim() > 2:
        slices.append(weight.mT @ probes(weight.shape[-2], weight))
    return torch.cat([numbers.flatten(0, -2) for numbers in slices]).cpu()


def probes(size: int, like: Tensor) -> Tensor:
    """Return the random vectors, (size, n), always the same, with the device and the number format of a tensor."""
    return torch.randn(size, PROBES, generator=torch.Generator().manual_seed(0)).to(like)


@torch.no_grad()
def vllm_fingerprints(worker: Any) -> dict[str, Tensor]:
    """Return the fingerprint of every weight that a worker of vLLM has. Raises `UsageError` if one cannot be read.

    A linear layer is read by applying it, because kernels keep packed copies of its matrix, or nothing else of it.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    model, read = worker.model_runner.get_model(), {}
    like = torch.empty(0, dtype=worker.model_config.dtype, device=worker.device)
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            read |= _linear(name, module, model.packed_modules_mapping, like)
            continue
        if isinstance(module, VocabParallelEmbedding):  # as a table and as an output head
            rows, table = slice(module.shard_indices.num_org_elements), module.get_parameter("weight")
            outputs = _applied(module, module.embedding_dim, like)[rows]  # without the rows that pad the vocabulary
            read[f"{name}.weight"] = torch.cat([fingerprint(table[rows]), outputs])
            continue
        for weight, tensor in module.named_parameters(prefix=name, recurse=False):
            if not tensor.numel():
                raise UsageError(f"the engine's {weight} cannot be read back: vLLM has moved it elsewhere.")
            if tensor.is_floating_point() and not NOT_SENT.search(weight):
                read[weight] = fingerprint(tensor)
    return read


def _linear(name: str, layer: Any, packed: dict[str, list[str]], like: Tensor) -> dict[str, Tensor]:
    """Return the fingerprints of a linear layer, for each of the tensors that vLLM has joined in it."""
    from vllm.model_executor.layers.linear import RowParallelLinear

    size = layer.input_size_per_partition if isinstance(layer, RowParallelLinear) else layer.input_size
    outputs, sizes = _applied(layer, size, like), layer.output_partition_sizes
    prefix, _, last = name.rpartition(".")
    parts = packed.get(last, [last])
    read = {}
    for part, rows in zip(parts, torch.arange(len(outputs)).split(sizes), strict=True):
        read[f"{prefix}.{part}.weight"] = outputs[rows]
        if layer.bias is not None:
            read[f"{prefix}.{part}.bias"] = fingerprint(layer.bias[rows.to(like.device)])
    return read


def _applied(layer: nn.Module, size: int, like: Tensor) -> Tensor:
    """Return what a layer makes of the random vectors, without its bias: (rows, n)."""
    method: Any = layer.quant_method
    return method.apply(layer, probes(size, like).T.contiguous()).T.float().cpu()
