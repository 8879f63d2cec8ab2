"""Proof that the engine takes every tensor that it is sent, by reading its weights back.

A tensor that stays old inside the engine causes a mismatch that grows with every step and looks like rounding. So
before the first step, the proof sends other weights, reads the engine's weights back, sends the true weights and reads
again: every tensor, also as a part of a larger one, must have changed. Then it compares log-probs once.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

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
TF32 = "On a GPU, Triton's kernels do unless TRITON_F32_DEFAULT=ieee is set before they are compiled; it is {value}."
TEXTS, CONTEXT, RESPONSE_TOKENS = 8, 4, 4
"""Number of texts of the comparison, of random tokens in each, and of tokens that the engine adds."""


@dataclass(frozen=True)
class SyncProof:
    """Result of the proof."""

    tokens: int
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
    if config.exact and not proof.k3 <= SYNCED_K3:
        raise UsageError(
            f"after a sync k3 is {proof.k3:.1e}, and float32 leaves at most {SYNCED_K3:.0e}: the engine did not take "
            f"the weights that it was sent, or it computes in TF32. {_tf32()}"
        )
    return proof


@torch.no_grad()
def sync_proof(engine: RolloutEngine, policy: Policy) -> SyncProof:
    """Sync, read back and compare as `prove_sync` does, and return the result."""
    weights = engine_weights(policy.state_dict(), policy.lm)
    engine.sync((name, opposite(tensor)) for name, tensor in weights)
    before = engine.fingerprints()
    engine.sync(weights)
    after = engine.fingerprints()
    # Kernels may add in another order, so the same weights may differ in their last digits.
    close = {
        name: torch.isclose(before[name], fingerprint, rtol=0.01, atol=0).all(-1) for name, fingerprint in after.items()
    }
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
    return SyncProof(int(mask.sum()), float(masked_mean(k3(d), mask)), left_behind)


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


def _tf32() -> str:
    return TF32.format(value=os.environ.get("TRITON_F32_DEFAULT", "not set"))


def prove_step(k3_mean: float, config: RolloutConfig, precision: Precision) -> None:
    """Raise `UsageError` if engine and trainer, both in float32, differ by more than rounding on the pairs of a step.

    Coarser formats cannot be checked in this way; for them `prove_sync` reads the weights back.
    """
    if precision == "float32" and config.exact and not k3_mean <= SYNCED_K3:
        raise UsageError(
            f"k3 between a float32 engine and the trainer is {k3_mean:.1e}, and rounding explains at most "
            f"{SYNCED_K3:.0e}: the engine did not take the weights of the last step, or it computes in TF32. {_tf32()}"
        )
