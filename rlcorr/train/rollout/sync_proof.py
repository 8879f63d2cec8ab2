"""Proof that the engine takes every tensor it is sent.

A tensor that stays old inside the engine shows up as a mismatch that grows with every step and looks like rounding. So
before the first step every tensor is perturbed and synced. The engine then samples, and for each group of tensors the
trainer computes what the log-probs would be if that group were still old. A regression of the real difference on these
tells which share of each group's change the engine lacks: 0 if it took the new tensors, 1 if it kept the old ones.
Rounding, whatever its size, is the noise of the regression, so no constant of a model or a number format decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from rlcorr.analysis.symptoms import listed
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.learner.policy import Policy, engine_weights
from rlcorr.train.rollout.engine import RolloutEngine, Samples, to_batch
from rlcorr.train.rollout.robust_fit import robust_fit
from rlcorr.train.rollout.tensor_groups import blocks, kinds, layers_of, one_by_one
from rlcorr.types import TokenBatch

SYNCED_K3 = 1e-5
"""Largest k3 between an engine and a trainer that both compute in float32: only kernels and the order of sums differ.

It was 3e-13 on the warm start and 4e-11 on SmolLM2, both on CPUs; for Qwen3-8B on a GPU a root mean square of 0.0019 is
published, which is a k3 of 2e-6. One tensor of the tiny models that stays old makes 1e-4 and more after the noise."""
CONTEXT = 6
"""Prompt tokens used: rounding errors pile up with length, and only the weights are on trial."""
RESPONSE_TOKENS = 16
WORK = 1.2e9
"""Responses times parameters, which bounds the time of the proof: 9 responses of SmolLM2."""
FEWEST, MOST = 8, 192
"""Responses that are sampled at least, and at most."""
NOISE = {"q_proj": 0.25, "k_proj": 0.25, "v_proj": 0.08, "down_proj": 0.06, "gate_proj": 0.12, "up_proj": 0.12}
"""Standard deviation of the noise on a tensor, relative to its root mean square, by kind. So each of the 273 tensors of
SmolLM2 moves the log-probs by about as much; see `OTHER_NOISE` for the rest."""
OTHER_NOISE = 0.1
MOVED = 0.7
"""Mean |Δ| of the log-probs that the noise shall make."""
DOUBLINGS = 5
SMALLEST_NOISE = 0.01
"""Absolute, for tensors of zeros, as many biases are."""
HALF = 0.5
"""A share above it is nearer to the old tensors than to the new ones."""
VISIBLE = 0.1
"""Largest standard error at which old and new tensors differ: 0 and 1 are then five of them away from a half."""
PART = 0.1
"""Share of a block of layers from which on its layers are looked at one by one."""
FEW_BLOCKS = 2
"""If more blocks than these are suspicious, it is no single layer that stays old."""
CLEARLY = 0.8
"""Noise of another grouping, relative to that of the kinds of tensors, below which it is the better explanation."""


@dataclass(frozen=True)
class SyncProof:
    """What the proof found. `shares` holds, for each group of tensors, the share of its change that the engine lacks,
    and its standard error."""

    tokens: int
    k3: float  # between the perturbed trainer and the engine
    shares: dict[str, tuple[float, float]]
    coarse_blocks: tuple[str, ...] = ()  # blocks of layers in which one old layer alone would not show

    @property
    def left_behind(self) -> list[str]:
        """Return the groups that the engine kept old."""
        return [name for name, (share, error) in self.shares.items() if share > HALF and error <= VISIBLE]

    @property
    def unseen(self) -> list[str]:
        """Return the groups of which the engine's number format is too coarse to tell."""
        groups = [name for name, (_, error) in self.shares.items() if not error <= VISIBLE]
        return groups + [f"one layer alone of {block}" for block in self.coarse_blocks]


def prove_sync(engine: RolloutEngine, policy: Policy, config: RolloutConfig, prompts: list[list[int]]) -> SyncProof:
    """Sync perturbed weights, look for groups that the engine keeps old, and sync the true weights again.

    Raises:
        UsageError: if a group is left behind, unless that was asked for; if an engine in float32 differs from the
            trainer by more than the order of sums, as where a kernel misreads its new weights; or if the engine's
            log-probs are not finite.
    """
    proof = sync_proof(engine, policy, prompts)
    if config.stale_lm_head:
        return proof
    if proof.left_behind:
        raise UsageError(f"the engine did not take all weights that it was sent: {listed(proof.left_behind)} stay old.")
    if config.exact and not proof.k3 <= SYNCED_K3:
        raise UsageError(
            f"the engine did not take the weights that it was sent: after a sync k3 is {proof.k3:.1e}, and float32 "
            f"leaves at most {SYNCED_K3:.0e}."
        )
    return proof


@torch.no_grad()
def sync_proof(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> SyncProof:
    """Return what `prove_sync` judges."""
    original = {name: tensor.clone() for name, tensor in policy.lm.state_dict().items()}
    try:
        perturb(policy, original, prompts)
        engine.sync(engine_weights(policy.state_dict(), policy.lm))
        batch = sampled(engine, policy, prompts)
        return _compared(policy.in_float32(), batch, original)
    finally:
        policy.lm.load_state_dict(original)
        engine.sync(engine_weights(policy.state_dict(), policy.lm))


def perturb(policy: Policy, original: dict[str, Tensor], prompts: list[list[int]]) -> None:
    """Add as much noise to every tensor as moves the log-probs of the prompts by `MOVED`: a shallow model needs more of
    it than a deep one, in which it would be chaos."""
    batch = as_response(prompts, next(policy.parameters()).device)

    def log_probs() -> Tensor:
        return policy.in_float32()(batch, 1.0).log_probs[batch.response_mask]

    before = log_probs()
    for doubling in range(DOUBLINGS):
        add_noise(policy, original, 2.0**doubling)
        if float((log_probs() - before).abs().mean()) >= MOVED:
            return


def add_noise(policy: Policy, original: dict[str, Tensor], factor: float) -> None:
    """Replace every tensor by its original and noise, a tied one once."""
    generator, seen = torch.Generator().manual_seed(0), set()
    for name, tensor in policy.lm.state_dict().items():
        if tensor.data_ptr() in seen or not tensor.is_floating_point():
            continue
        seen.add(tensor.data_ptr())
        relative = factor * next((noise for kind, noise in NOISE.items() if kind in name), OTHER_NOISE)
        scale = max(relative * float(original[name].square().mean().sqrt()), SMALLEST_NOISE)
        noise = scale * torch.randn(tensor.shape, generator=generator)
        tensor.copy_(original[name] + noise.to(tensor.device))


def as_response(prompts: list[list[int]], device: torch.device) -> TokenBatch:
    """Return the prompts' first tokens as responses to their very first."""
    texts = [prompt[:RESPONSE_TOKENS] for prompt in prompts[:FEWEST]]
    responses = [text[1:] or text for text in texts]
    zeros = [[0.0] * len(response) for response in responses]
    return to_batch([text[:1] for text in texts], Samples(responses, zeros), device)


def sampled(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> TokenBatch:
    """Return what the engine samples, at temperature 1 and without cuts: only weights and format are on trial."""
    parameters = sum(tensor.numel() for tensor in policy.lm.parameters())
    count = int(min(max(WORK / parameters, FEWEST), MOST))
    starts = [prompt[:CONTEXT] for prompt in prompts[:count]]
    starts = (starts * -(-count // len(starts)))[:count]
    samples = engine.generate(starts, n=1, max_tokens=RESPONSE_TOKENS, sampling=Sampling())
    return to_batch(starts, samples, next(policy.parameters()).device)


def _compared(policy: Policy, batch: TokenBatch, original: dict[str, Tensor]) -> SyncProof:
    """Return the shares of the kinds of tensors or, where these explain the difference less well, of the layers."""
    mask = first_seen(batch)

    def log_probs(old: Iterable[str]) -> Tensor:
        tensors = {f"lm.{name}": original[name] for name in old}
        given = {"replay": batch.routed_experts is not None}
        return functional_call(policy, tensors, (batch, 1.0), given, tie_weights=False).log_probs[mask].double()

    new = log_probs([])
    difference = batch.rollout_log_probs[mask].double() - new
    if not bool(difference.isfinite().all()):
        raise UsageError("the engine's log-probs are not finite after a sync: its weights or its kernels are broken.")
    size = float(k3(-difference).mean())

    def shares(groups: dict[str, list[str]]) -> tuple[float, dict[str, tuple[float, float]]]:
        fit = robust_fit(torch.stack([log_probs(names) - new for names in groups.values()], -1), difference)
        pairs = zip(fit.coefficients.tolist(), fit.errors.tolist(), strict=True)
        return fit.scale, dict(zip(groups, pairs, strict=True))

    best, layers = shares(kinds(original)), shares(blocks(original))
    suspects = [name for name, (share, error) in layers[1].items() if share > max(PART, 2 * error)]
    others = [layers, shares({"all": list(original)})]
    if 0 < len(suspects) <= FEW_BLOCKS:
        others.append(shares(one_by_one(blocks(original), suspects)))
    for other in others:
        best = other if other[0] < CLEARLY * best[0] else best
    sizes = {label: len(layers_of(names)) for label, names in blocks(original).items()}
    # One old layer of five is a share of a fifth, and shows if that is five errors, as for `VISIBLE`.
    coarse = [
        label for label, (_, error) in layers[1].items() if sizes[label] > 1 and error * sizes[label] > 2 * VISIBLE
    ]
    return SyncProof(int(mask.sum()), size, best[1], tuple(coarse))


def first_seen(batch: TokenBatch) -> Tensor:
    """Mark each text of prompt and response once: rounding is the same after the same text, so a second copy would only
    look like more evidence."""
    ids = torch.cat([batch.tensors()["prompt_ids"], batch.tensors()["response_ids"]], -1).tolist()
    start = len(ids[0]) - batch.response_mask.shape[1]
    texts, first = set(), torch.zeros_like(batch.response_mask)
    for row, column in batch.response_mask.nonzero().tolist():
        text = tuple(ids[row][: start + column + 1])
        first[row, column] = text not in texts
        texts.add(text)
    return first


def prove_step(k3_mean: float, config: RolloutConfig, precision: Precision) -> None:
    """Check a sync by the pairs of its step: a float32 engine next to a float32 trainer has a k3 of rounding only.

    Coarser formats cannot be checked so, which is why `prove_sync` perturbs. Raises `UsageError`.
    """
    if precision == "float32" and config.exact and not k3_mean <= SYNCED_K3:
        raise UsageError(
            f"k3 between a float32 engine and the trainer is {k3_mean:.1e}, and rounding explains at most "
            f"{SYNCED_K3:.0e}: the engine did not take the weights of the last step."
        )


@torch.no_grad()
def mismatch(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> float:
    """Mean k3 between the engine's log-probs of its own samples and the trainer's. At temperature 1, without cuts, and
    with the engine's experts where it reports them, so that only the weights and the number format are on trial."""
    batch = sampled(engine, policy, prompts)
    scores = policy(batch, 1.0, replay=batch.routed_experts is not None)
    d = log_ratio(scores.log_probs, batch.rollout_log_probs, batch.response_mask)
    return float(masked_mean(k3(d), batch.response_mask))
