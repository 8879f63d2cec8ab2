"""Proof that the engine takes every tensor it is sent.

A tensor that stays old inside the engine shows up as a mismatch that grows with every step and looks like
rounding. So before the first step every tensor is perturbed, synced, and the engine's log-probs are held
against the trainer's: only rounding may be left. Then the true weights go back.
"""

import torch

from rlcorr.analysis.triage import ROUNDING_K3
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.learner.policy import Policy, engine_weights
from rlcorr.train.rollout.engine import RolloutEngine, to_batch

MATRIX_NOISE = 0.5
"""Standard deviation of the noise on a matrix, relative to its mean absolute entry."""
VECTOR_NOISE = 0.3
"""The same for biases and norms, absolute: many biases are zero. Any one tensor left behind then shows."""

CONTEXT = 6
"""Prompt tokens used: rounding errors pile up with length, and only the weights are on trial."""


def rounding_bound(config: RolloutConfig, precision: Precision) -> float:
    """The k3 that rounding alone may reach, in the coarsest format of the engine and of a trainer in `precision`. With
    an fp8 KV cache the proof sees only faults that are coarser still, such as a sync that did nothing (3e-1)."""
    coarse = [ROUNDING_K3["fp8"]] if config.quantization == "fp8" else []
    formats = (ROUNDING_K3[config.dtype], ROUNDING_K3[precision], ROUNDING_K3.get(config.kv_cache_dtype, 0.0))
    return max(*formats, *coarse)


@torch.no_grad()
def sync_k3(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> float:
    """k3 between engine and trainer after a sync of perturbed weights; then the true weights go back."""
    original = {name: tensor.clone() for name, tensor in policy.lm.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for tensor in {t.data_ptr(): t for t in policy.lm.state_dict().values()}.values():  # a tied tensor once
        scale = VECTOR_NOISE if tensor.dim() == 1 else MATRIX_NOISE * tensor.abs().mean()
        tensor.add_(scale * torch.randn(tensor.shape, generator=generator).to(tensor.device))
    engine.sync(engine_weights(policy.state_dict(), policy.lm))
    after_sync = mismatch(engine, policy, prompts)
    policy.lm.load_state_dict(original)
    engine.sync(engine_weights(policy.state_dict(), policy.lm))
    return after_sync


def prove_sync(engine: RolloutEngine, policy: Policy, config: RolloutConfig, prompts: list[list[int]]) -> float:
    """`sync_k3`. Raises `UsageError` if it is more than rounding, unless that is what was asked for."""
    after_sync, bound = sync_k3(engine, policy, prompts), rounding_bound(config, policy.precision)
    if not after_sync <= bound and not config.stale_lm_head:
        raise UsageError(
            f"the engine did not take the weights it was sent: after a sync k3 is {after_sync:.1e}, rounding explains "
            f"at most {bound:.0e}. A tensor is left behind."
        )
    return after_sync


def prove_step(k3_mean: float, config: RolloutConfig, precision: Precision) -> None:
    """A float32 engine beside a float32 trainer proves every sync by the pairs of its step: k3 above 1e-7 is a stale
    tensor. Coarser formats cannot, which is why `prove_sync` perturbs. Raises `UsageError`."""
    if precision == "float32" and config.exact and not k3_mean <= ROUNDING_K3["float32"]:
        raise UsageError(
            f"k3 between a float32 engine and the trainer is {k3_mean:.1e}, and rounding explains at most "
            f"{ROUNDING_K3['float32']:.0e}: the engine did not take the weights of the last step."
        )


@torch.no_grad()
def mismatch(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> float:
    """Mean k3 between the engine's log-probs of its own samples and the trainer's. At temperature 1, without cuts, and
    with the engine's experts where it reports them, so that only the weights and the number format are on trial."""
    prompts = [prompt[:CONTEXT] for prompt in prompts]
    sampled = engine.generate(prompts, n=1, max_tokens=16, sampling=Sampling())
    batch = to_batch(prompts, sampled, next(policy.parameters()).device)
    scores = policy(batch, 1.0, replay=batch.routed_experts is not None)
    d = log_ratio(scores.log_probs, batch.rollout_log_probs, batch.response_mask)
    return float(masked_mean(k3(d), batch.response_mask))
