"""Proof that the engine takes every tensor that it is sent.

A tensor that stays old inside the engine causes a mismatch that grows with every step and looks like rounding. So the
proof perturbs every tensor before the first step, and syncs the engine. The engine then continues random tokens, and
for each group of tensors the trainer computes what the log-probs would be if that group were still old. A regression of
the real difference on these columns estimates which share of each group's change the engine lacks: 0 if it took the new
tensors, 1 if it kept the old ones. Rounding, whatever its size, is the noise of the regression.

Rounding errors of tokens depend on each other: an 8-bit cache rounds the keys of a common prefix in the same way for
all tokens after it. So the standard errors of a single regression are too small, by a factor of 3 in bfloat16 and of up
to 20 in e5m2. The proof is therefore repeated with other noise and other tokens, and the standard errors come from the
spread of the repetitions. The decision uses no constant of a model or a number format.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from rlcorr.analysis.symptoms import listed
from rlcorr.errors import UsageError
from rlcorr.ratios import k3
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.learner.policy import Policy, engine_weights
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.robust_fit import RobustFit, robust_fit
from rlcorr.train.rollout.tensor_groups import blocks, kinds, layers_of, one_by_one
from rlcorr.train.rollout.tensor_noise import (
    CONTEXT,
    RESPONSE_TOKENS,
    add_noise,
    noise_factor,
    random_texts,
    repetitions_of,
    responses_of,
)
from rlcorr.types import TokenBatch

SYNCED_K3 = 1e-5
"""Largest k3 between an engine and a trainer that both compute in float32: only kernels and the order of sums differ.

It was 3e-13 on the warm start and 4e-11 on SmolLM2, both on CPUs. For Qwen3-8B on a GPU, a root mean square of 0.0019
is published, which is a k3 of 2e-6. One old tensor of the tiny models makes a k3 of at least 1e-4 after the noise.
Attention in TF32 makes about 4e-6 on recorded answers, and more on the random texts of the proof: 1e-4 in an emulation,
1e-3 in a run on an H100. So a float32 engine that computes in TF32 is refused, too."""
TF32 = "On a GPU, Triton's kernels do unless TRITON_F32_DEFAULT=ieee is set before they are compiled; it is {value}."
HALF = 0.5
"""If a share is larger, the engine's tensors are nearer to the old ones than to the new ones."""
SURE = 4.0
"""Distance of a share from one half that counts as certain, in standard errors.

Tried on the warm start with caches in bfloat16, fp8 and e5m2: in 60 tries without an old group, none was named. In 108
tries with an old group, 96 named it, and 12 said that it cannot be seen, nine of them in e5m2 (`make bench ARGS=proof`,
which tries SmolLM2 as well)."""
PART = 0.1
"""If the share of a block of layers is larger, its layers are examined one by one."""
FEW_BLOCKS = 2
"""If more blocks are suspicious, the cause is not a single old layer."""
CLEARLY = 0.8
"""Another grouping is the better explanation if its noise, relative to that of the kinds of tensors, is smaller."""


@dataclass(frozen=True)
class SyncProof:
    """Result of the proof. `shares` has, for each group of tensors, the share of its change that the engine lacks, and
    the standard error of this share."""

    tokens: int
    k3: float  # between the perturbed trainer and the engine
    shares: dict[str, tuple[float, float]]
    coarse_blocks: tuple[str, ...] = ()  # blocks of layers in which a single old layer would not be noticed

    @property
    def left_behind(self) -> list[str]:
        """Return the groups that the engine kept old."""
        return [name for name, (share, error) in self.shares.items() if share - HALF > SURE * error]

    @property
    def unseen(self) -> list[str]:
        """Return the groups, and the kinds of single layers, whose staleness the engine's number format would hide."""
        groups = [name for name, (share, error) in self.shares.items() if not abs(share - HALF) > SURE * error]
        return groups + [f"one layer alone of {block}" for block in self.coarse_blocks]


def prove_sync(engine: RolloutEngine, policy: Policy, config: RolloutConfig) -> SyncProof:
    """Sync perturbed weights, look for groups that the engine keeps old, and sync the true weights again.

    Raises:
        UsageError: if a group stays old, unless the configuration asks for that; if an engine in float32 differs from
            the trainer by more than the order of sums can explain, for example because a kernel misreads its new
            weights; or if the engine's log-probs are not finite.
    """
    proof = sync_proof(engine, policy)
    if config.stale_lm_head:
        return proof
    if proof.left_behind:
        raise UsageError(f"the engine did not take all weights that it was sent: {listed(proof.left_behind)} stay old.")
    if config.exact and not proof.k3 <= SYNCED_K3:
        raise UsageError(
            f"after a sync k3 is {proof.k3:.1e}, and float32 leaves at most {SYNCED_K3:.0e}: the engine did not take "
            f"the weights that it was sent, or it computes in TF32. {_tf32()}"
        )
    return proof


@dataclass(frozen=True)
class Repetition:
    """Data of one draw of the noise, for N sampled tokens."""

    seed: int
    batch: TokenBatch
    mask: Tensor
    new: Tensor  # (N,) the trainer's log-probs
    difference: Tensor  # (N,) the engine's log-probs minus the trainer's
    columns: dict[str, Tensor]  # group → (N,) the difference if the engine had kept the group's old tensors


@dataclass(frozen=True)
class Shares:
    """Estimates from all repetitions, for groups into which the tensors are divided."""

    scale: float  # of the noise, which the groups do not explain
    by_group: dict[str, tuple[float, float]]  # the share of its change that the engine lacks, and its standard error


@torch.no_grad()
def sync_proof(engine: RolloutEngine, policy: Policy, seed: int = 0) -> SyncProof:
    """Perturb, sync and compare as `prove_sync` does, and return the result; each seed gives other noise and texts."""
    original = {name: tensor.clone() for name, tensor in policy.lm.state_dict().items()}
    by_kind, by_block = kinds(original), blocks(original)
    try:
        factor = noise_factor(policy, original)
        repeated: list[Repetition] = []
        count = repetitions_of(policy)
        for number in range(count * seed, count * (seed + 1)):
            add_noise(policy, original, factor, number)
            engine.sync(engine_weights(policy.state_dict(), policy.lm))
            repeated.append(_repetition(engine, policy, number))
            _add_columns(policy, repeated[-1], original, by_kind | by_block)
        best, layers = shares(repeated, by_kind), shares(repeated, by_block)
        suspects = _suspects(layers)
        finer = one_by_one(by_block, suspects) if len(suspects) <= FEW_BLOCKS else {"all": list(original)}
        others = [layers]
        if suspects:
            for repetition in repeated:
                add_noise(policy, original, factor, repetition.seed)
                _add_columns(policy, repetition, original, finer)
            others.append(shares(repeated, finer))
    finally:
        policy.lm.load_state_dict(original)
        engine.sync(engine_weights(policy.state_dict(), policy.lm))
    for other in others:
        best = other if other.scale < CLEARLY * best.scale else best
    sizes = {label: len(layers_of(names)) for label, names in by_block.items()}
    # If one of five layers is old, the share of their block is about a fifth.
    coarse = [
        label
        for label, (_, error) in layers.by_group.items()
        if sizes[label] > 1 and SURE * error * sizes[label] > HALF
    ]
    differences = torch.cat([repetition.difference for repetition in repeated])
    return SyncProof(len(differences), float(k3(-differences).mean()), best.by_group, tuple(coarse))


def _suspects(layers: Shares) -> list[str]:
    """Return the blocks of layers of which a part may be old."""
    return [name for name, (share, error) in layers.by_group.items() if share > max(PART, 2 * error)]


def _repetition(engine: RolloutEngine, policy: Policy, seed: int) -> Repetition:
    """Sample at temperature 1 and without cuts, so that only weights and number format are tested."""
    starts = random_texts(policy, responses_of(policy), CONTEXT, seed)
    samples = engine.generate(starts, n=1, max_tokens=RESPONSE_TOKENS, sampling=Sampling(), seed=seed)
    batch = to_batch(starts, samples, next(policy.parameters()).device)
    mask = first_seen(batch)
    new = _log_probs(policy, batch, mask, {})
    difference = batch.rollout_log_probs[mask].double() - new
    if not bool(difference.isfinite().all()):
        raise UsageError("the engine's log-probs are not finite after a sync: its weights or its kernels are broken.")
    return Repetition(seed, batch, mask, new, difference, {})


def _add_columns(
    policy: Policy, repetition: Repetition, original: dict[str, Tensor], groups: Mapping[str, list[str]]
) -> None:
    """Add the missing columns of the regression, one for each group of tensors.

    The column of a group is the change of the log-probs if its tensors, and no others, were old.
    """
    for group in groups.keys() - repetition.columns.keys():
        old = {f"lm.{name}": original[name] for name in groups[group]}
        repetition.columns[group] = _log_probs(policy, repetition.batch, repetition.mask, old) - repetition.new


def _log_probs(policy: Policy, batch: TokenBatch, mask: Tensor, old: dict[str, Tensor]) -> Tensor:
    """Return the trainer's log-probs in float32, with some tensors replaced."""
    options = {"replay": batch.routed_experts is not None}
    scores = functional_call(policy.in_float32(), old, (batch, 1.0), options, tie_weights=False)
    return scores.log_probs[mask].double()


def shares(repeated: list[Repetition], groups: Iterable[str]) -> Shares:
    """Estimate the share of its change that the engine lacks, for each group, from all repetitions.

    Each repetition's difference is regressed on the columns of the groups. A group's share is the mean over the R
    repetitions. Its standard error is s/√R. s is the larger of the spread of the repetitions and of the regression's
    own error, because a few repetitions may agree by chance. The regression's error is first multiplied by the median,
    over all groups, of spread / error, if that is above 1.
    """
    names = list(groups)
    fits: list[RobustFit] = [
        robust_fit(torch.stack([repetition.columns[name] for name in names], -1), repetition.difference)
        for repetition in repeated
    ]
    estimates = torch.stack([fit.coefficients for fit in fits])
    stated = torch.stack([fit.errors for fit in fits]).square().mean(0).sqrt()
    spread = estimates.std(0)
    too_small_by = (spread / stated)[stated.isfinite() & (stated > 0)]
    inflation = max(1.0, float(too_small_by.median())) if len(too_small_by) else 1.0
    errors = torch.maximum(spread, inflation * stated) / len(repeated) ** 0.5
    scale = float(torch.tensor([max(fit.scale, 1e-300) for fit in fits]).log().mean().exp())
    pairs = zip(estimates.mean(0).tolist(), errors.tolist(), strict=True)
    return Shares(scale, dict(zip(names, pairs, strict=True)))


def first_seen(batch: TokenBatch) -> Tensor:
    """Mark each distinct text of prompt and response once, (B, T).

    Rounding is the same after the same text, so a second copy would be no further evidence.
    """
    ids = torch.cat([batch.tensors()["prompt_ids"], batch.tensors()["response_ids"]], -1).tolist()
    start = len(ids[0]) - batch.response_mask.shape[1]
    texts, first = set(), torch.zeros_like(batch.response_mask)
    for row, column in batch.response_mask.nonzero().tolist():
        text = tuple(ids[row][: start + column + 1])
        first[row, column] = text not in texts
        texts.add(text)
    return first


def _tf32() -> str:
    return TF32.format(value=os.environ.get("TRITON_F32_DEFAULT", "not set"))


def prove_step(k3_mean: float, config: RolloutConfig, precision: Precision) -> None:
    """Raise `UsageError` if engine and trainer, both in float32, differ by more than rounding on the pairs of a step.

    Coarser formats cannot be checked in this way; for them `prove_sync` perturbs the weights.
    """
    if precision == "float32" and config.exact and not k3_mean <= SYNCED_K3:
        raise UsageError(
            f"k3 between a float32 engine and the trainer is {k3_mean:.1e}, and rounding explains at most "
            f"{SYNCED_K3:.0e}: the engine did not take the weights of the last step, or it computes in TF32. {_tf32()}"
        )
