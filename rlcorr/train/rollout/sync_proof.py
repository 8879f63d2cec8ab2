"""Proof that the engine takes every tensor that it is sent, by reading its weights back.

A tensor that stays old inside the engine causes a mismatch that grows with every step and looks like rounding. So
before the first step, the proof sends other weights, reads the engine's weights back, sends the true weights and reads
again: every tensor, also as a part of a larger one, must have changed. Then it compares log-probs once.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.learner.policy import Policy, engine_weights, first_names
from rlcorr.train.rollout.engine import RolloutEngine, to_batch

SYNCED_K3 = 1e-5
"""Largest k3 between an engine and a trainer that both compute in float32: only kernels and the order of sums differ.

It was 3e-13 on the warm start and 4e-11 on SmolLM2, both on CPUs. For Qwen3-8B on a GPU, a root mean square of 0.0019
is published, which is a k3 of 2e-6."""
TEXTS, CONTEXT, RESPONSE_TOKENS = 8, 4, 4
"""Number of texts of the comparison, of random tokens in each, and of tokens that the engine adds."""
PROBES = 8
"""Number of random vectors with which a matrix is multiplied: no product of a changed row stays within a hundredth of
its old value eight times."""
NOT_SENT = re.compile(r"scale(_inv)?$")
"""Parameters of the engine that no checkpoint contains. Scales of quantised tensors follow from the largest magnitude
of a tensor, which the proof of a sync keeps; scales of the KV cache are constants."""


@dataclass(frozen=True)
class SyncProof:
    """Result of the proof."""

    k3: float  # between trainer and engine after the sync, in the trainer's float32
    left_behind: list[str]  # tensors that the engine kept old


def prove_sync(engine: RolloutEngine, policy: Policy, config: RolloutConfig) -> SyncProof:
    """Check that the engine takes every tensor; at the end it has the policy's weights.

    Raises:
        UsageError: if a tensor stays old, unless the configuration asks for that; if an engine in float32 differs from
            the trainer by more than the order of sums can explain, for example because a kernel misreads its new
            weights; or if the engine's log-probs are not finite.
    """
    proof = sync_proof(engine, policy)
    if config.stale_lm_head:
        return proof
    if proof.left_behind:
        raise UsageError(
            f"the engine did not take all weights that it was sent: it keeps the old {first_names(proof.left_behind)}."
        )
    prove_step(proof.k3, config, "float32")
    return proof


def prove_step(k3_mean: float, config: RolloutConfig, precision: Precision) -> None:
    """Raise `UsageError` if engine and trainer, both in float32, differ by more than rounding on some pairs.

    Coarser formats cannot be checked in this way; for them `prove_sync` reads the weights back.
    """
    if precision == "float32" and config.exact and not k3_mean <= SYNCED_K3:
        raise UsageError(
            f"k3 between a float32 engine and the trainer is {k3_mean:.1e}, and rounding explains at most "
            f"{SYNCED_K3:.0e}: the engine did not take the weights of the last sync, or it computes in TF32. On a GPU, "
            "Triton's kernels do unless TRITON_F32_DEFAULT=ieee is set before they are compiled; it is "
            f"{os.environ.get('TRITON_F32_DEFAULT', 'not set')}."
        )


@torch.no_grad()
def sync_proof(engine: RolloutEngine, policy: Policy) -> SyncProof:
    """Sync, read back and compare as `prove_sync` does, and return the result."""
    weights = engine_weights(policy.state_dict(), policy.lm)
    engine.sync((name, opposite(tensor)) for name, tensor in weights)
    before = engine.fingerprints()
    engine.sync(weights)
    after = engine.fingerprints()
    # Kernels may add in another order, so the same weights may differ in their last digits.
    close = {name: torch.isclose(before[name], numbers, rtol=0.01, atol=0).all(-1) for name, numbers in after.items()}
    left_behind = [name for name, slices in close.items() if bool(slices.any())]
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(policy.lm.config.vocab_size, (TEXTS, CONTEXT), generator=generator).tolist()
    # At temperature 1 and without cuts: only the weights and the number format are tested.
    samples = engine.generate(texts, n=1, max_tokens=RESPONSE_TOKENS, sampling=Sampling())
    batch = to_batch(texts, samples, next(policy.parameters()).device)
    scores = policy.in_float32()(batch, 1.0, replay=batch.routed_experts is not None)
    mask, d = batch.response_mask, scores.log_probs - batch.rollout_log_probs
    if not bool(d[mask].isfinite().all()):
        raise UsageError("the engine's log-probs are not finite after a sync: its weights or its kernels are broken.")
    return SyncProof(float(masked_mean(k3(d), mask)), left_behind)


def opposite(tensor: Tensor) -> Tensor:
    """Return a tensor in which each element has the opposite sign and the largest magnitude of all elements.

    So every element changes by at least the largest of them, which no number format rounds away. The largest magnitude
    stays, and with it the scale that a quantised tensor shares with others, so that an old tensor stays the same.
    """
    if not tensor.is_floating_point():
        return tensor
    low, high = tensor.aminmax()
    largest = torch.maximum(-low, high)
    largest = torch.where(largest > 0, largest, 1)  # biases are often zeros
    return torch.copysign(largest, -tensor)


# --- reading back ---


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
    outputs = _applied(layer, size, like)
    prefix, _, last = name.rpartition(".")
    read = {}
    for part, rows in zip(
        packed.get(last, [last]), torch.arange(len(outputs)).split(layer.output_partition_sizes), strict=True
    ):
        read[f"{prefix}.{part}.weight"] = outputs[rows]
        if layer.bias is not None:
            read[f"{prefix}.{part}.bias"] = fingerprint(layer.bias[rows.to(like.device)])
    return read


def _applied(layer: nn.Module, size: int, like: Tensor) -> Tensor:
    """Return what a layer makes of the random vectors, without its bias: (rows, n)."""
    method: Any = layer.quant_method
    return method.apply(layer, probes(size, like).T.contiguous()).T.float().cpu()
