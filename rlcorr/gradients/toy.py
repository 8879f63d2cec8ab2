"""A world small enough to enumerate: exact gradients of every loss instead of estimates.

A policy is a table of logits with one row per state; a state is everything generated so far. A response ends with token
0 or after T tokens. Expected values are sums over all N responses, so nothing is sampled. Use float64.
"""

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct, norm_factor_sums
from rlcorr.errors import UsageError
from rlcorr.losses.aggregation import aggregate
from rlcorr.losses.kl import kl_penalty
from rlcorr.losses.objective import score_coefficients
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.masked import masked_sum
from rlcorr.types import CorrectionResult, TokenBatch


@dataclass(frozen=True)
class World:
    """All N responses of at most T tokens over a vocabulary of V, in which token 0 ends a response."""

    vocabulary: int
    tokens: Tensor  # (N, T) int64
    mask: Tensor  # (N, T) bool
    states: Tensor  # (N, T) int64: the row of the table that each token is drawn from

    @property
    def state_count(self) -> int:
        """Return S, the number of rows of a policy's table."""
        return int(self.states.max()) + 1


def world(vocabulary: int, length: int) -> World:
    """Enumerate all responses of a small vocabulary and length. Their number grows as (V − 1)^T."""
    continues = range(1, vocabulary)
    prefixes = [p for depth in range(length) for p in itertools.product(continues, repeat=depth)]
    state_of = {prefix: state for state, prefix in enumerate(prefixes)}
    tokens = torch.zeros(response_count(vocabulary, length), length, dtype=torch.int64)
    mask, states = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)
    ends = ((p, end) for p in prefixes for end in (range(vocabulary) if len(p) == length - 1 else [0]))
    for row, (prefix, end) in enumerate(ends):
        used = len(prefix) + 1
        mask[row, :used] = True
        tokens[row, :used] = torch.tensor([*prefix, end])
        states[row, :used] = torch.tensor([state_of[prefix[:depth]] for depth in range(used)])
    return World(vocabulary, tokens, mask, states)


def response_count(vocabulary: int, length: int) -> int:
    """Return the number of responses: V·(V − 1)^(T−1) of T tokens, and (V − 1)^(t−1) that end after t < T tokens."""
    branches = vocabulary - 1
    return sum(branches**depth for depth in range(length - 1)) + vocabulary * branches ** (length - 1)


@dataclass(frozen=True)
class Policies:
    """Tables of logits, (S, V): the policy that samples, the one that scores before the update, and the one that is
    updated."""

    rollout: Tensor
    old: Tensor
    theta: Tensor


@dataclass(frozen=True)
class Toy:
    """Policies that differ by a known amount, and an advantage for each response."""

    where: World
    policies: Policies
    advantages: Tensor  # (N,)


@dataclass(frozen=True)
class GradientTruth:
    """Ascent direction of one estimator in the logits of π_θ, exact over all responses, so it has no error bars."""

    expectation: Tensor  # (S, V) E[g] under π_rollout
    reference: Tensor  # (S, V) the policy gradient of π_θ, with the same aggregation
    variance: float
    """V = E‖u − n E[g]‖²/(E n)², with u the contribution of one response. A batch of B responses has V/B, by the delta
    method."""

    @property
    def bias(self) -> float:
        """Return ‖E[g] − reference‖."""
        return float((self.expectation - self.reference).norm())

    @property
    def relative_bias(self) -> float:
        """Return ‖E[g] − reference‖/‖reference‖."""
        return self.bias / float(self.reference.norm())

    @property
    def cosine(self) -> float:
        """Return the cosine of E[g] and the reference; 0 if one of them is 0."""
        return float(torch.cosine_similarity(self.expectation.flatten(), self.reference.flatten(), 0))

    @property
    def scale(self) -> float:
        """Return ⟨E[g], reference⟩/‖reference‖², the factor on the step along the reference."""
        return float((self.expectation * self.reference).sum() / self.reference.square().sum())

    def progress(self, batch_size: float) -> float:
        """Return η(B) = ⟨E[g], reference⟩²/(‖reference‖² (‖E[g]‖² + V/B)), or 0 if g points away: see `report.py`."""
        inner = max(float((self.expectation * self.reference).sum()), 0.0)
        length2 = float(self.expectation.square().sum()) + self.variance / batch_size
        return inner**2 / (float(self.reference.square().sum()) * length2) if length2 > 0 else 0.0


def random_policy(where: World, seed: int, spread: float = 1.0) -> Tensor:
    """Draw logits, (S, V), float64, from a normal distribution with standard deviation `spread`."""
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(where.state_count, where.vocabulary, generator=generator, dtype=torch.float64)


def small_world(gap: float, *, vocabulary: int = 4, length: int = 5, seed: int = 0) -> Toy:
    """Build a toy of all 364 responses of at most five tokens over four tokens.

    π_rollout has the logits of π_old plus normal noise with standard deviation `gap`. Every response has a standard
    normal advantage. π_θ starts at π_old.
    """
    where = world(vocabulary, length)
    old = random_policy(where, seed)
    rollout = old + random_policy(where, seed + 1, gap)
    generator = torch.Generator().manual_seed(seed + 2)
    advantages = torch.randn(len(where.tokens), generator=generator, dtype=torch.float64)
    return Toy(where, Policies(rollout, old, old), advantages)


def log_probs(where: World, logits: Tensor) -> Tensor:
    """Return log π(token | state), (N, T); 0 on padding."""
    table = logits.log_softmax(-1)
    return torch.where(where.mask, table[where.states, where.tokens], 0)


def probabilities(where: World, logits: Tensor) -> Tensor:
    """Return π(response), (N,)."""
    return log_probs(where, logits).sum(-1).exp()


def kl(where: World, p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p‖q) over responses."""
    log_p, log_q = log_probs(where, p).sum(-1), log_probs(where, q).sum(-1)
    return (log_p.exp() * (log_p - log_q)).sum()


def gradient_of(value: Tensor, logits: Tensor) -> Tensor:
    """Return dvalue/dlogits."""
    return torch.autograd.grad(value, logits)[0]


def policy_gradient(where: World, theta: Tensor, rewards: Tensor) -> Tensor:
    """Return ∇ E_{π_θ}[reward], (S, V)."""
    leaf = theta.detach().requires_grad_()
    return gradient_of((probabilities(where, leaf) * rewards).sum(), leaf)


def gradient_truth(
    where: World, policies: Policies, advantages: Tensor, correction: CorrectionConfig, loss: LossConfig | None = None
) -> GradientTruth:
    """Return the expected value and the variance of the gradient of this correction and loss.

    Denominators and batch normalisation take their expected values, as in a very large batch. The advantages are one
    per response, (N,).

    Raises `UsageError` for a loss that selects tokens by statistics of the batch (clip_cov, kl_cov).
    """
    loss = loss or LossConfig()
    if LOSSES[correction.loss_type].whole_batch:
        raise UsageError(f"{correction.loss_type} compares the tokens of a batch: it has no gradient per response.")
    on_rollout = probabilities(where, policies.rollout)
    rollout, old, theta = (log_probs(where, logits).detach() for logits in vars(policies).values())
    batch = TokenBatch(
        where.mask, rollout, old, log_probs=theta, advantages=advantages[:, None].expand(where.mask.shape)
    )
    once = replace(correction, rollout_is_batch_normalize=False)  # `_mean_weight` below takes its expected value
    result = correct(batch.replace(old_log_probs=theta) if correction.bypass_mode else batch, once)
    counts = _counts(where.mask if correction.denominator == "fixed" else result.keep_mask, loss)
    divisor = _expected(on_rollout, counts) or 1.0
    c = score_coefficients(theta, batch, result, once, loss, tokens=1, sequences=1)
    c = c / divisor / _mean_weight(on_rollout, result, correction)
    expectation = _weighted_scores(where, policies.theta, on_rollout[:, None] * c)
    squared = (c.square() * score_norms(where, policies.theta)).sum(-1)
    share = counts.to(on_rollout) / divisor
    u_n = _weighted_scores(where, policies.theta, (on_rollout * share)[:, None] * c)
    n_square = _expected(on_rollout, share.square())
    variance = _expected(on_rollout, squared) - 2 * (u_n * expectation).sum() + n_square * expectation.square().sum()
    return GradientTruth(expectation, _reference(where, policies, advantages, loss), float(variance))


def kl_gradient(where: World, theta: Tensor, ref: Tensor, estimator: str, sampled_from: Tensor | None = None) -> Tensor:
    """Return E[∇ Σ_t kl_penalty(log π_θ, log π_ref)] over responses of `sampled_from`, or of π_θ itself, (S, V)."""
    leaf = theta.detach().requires_grad_()
    penalty = kl_penalty(log_probs(where, leaf), log_probs(where, ref), estimator)
    per_response = masked_sum(penalty, where.mask, -1)
    sampled = probabilities(where, theta if sampled_from is None else sampled_from).detach()
    return gradient_of((sampled * per_response).sum(), leaf)


def token_kl_gradient(
    where: World, theta: Tensor, ref: Tensor, *, reverse: bool, sampled_from: Tensor | None = None
) -> Tensor:
    """Return Σ_states visits · ∇KL(π_θ‖π_ref) of the next token, or of KL(π_ref‖π_θ) if `reverse`.

    The visits are constants: they get no gradient.
    """
    leaf = theta.detach().requires_grad_()
    log_p, log_q = leaf.log_softmax(-1), ref.log_softmax(-1)
    per_state = (log_q.exp() * (log_q - log_p)).sum(-1) if reverse else (log_p.exp() * (log_p - log_q)).sum(-1)
    frequencies = visits(where, theta if sampled_from is None else sampled_from).detach()
    return gradient_of((frequencies * per_state).sum(), leaf)


def visits(where: World, logits: Tensor) -> Tensor:
    """Return how often a response passes each state, on average, (S,)."""
    sampled = probabilities(where, logits)[:, None] * where.mask
    return torch.zeros(where.state_count, dtype=sampled.dtype).index_add(0, where.states.flatten(), sampled.flatten())


def score_norms(where: World, theta: Tensor) -> Tensor:
    """Return ‖∇ log π_θ(token | state)‖² in the logits, (N, T): 1 − 2 π(token) + Σ π².

    The tokens of one response belong to different rows of the table, so their scores are orthogonal.
    """
    table = theta.softmax(-1)
    return 1 - 2 * table[where.states, where.tokens] + table.square().sum(-1)[where.states]


def _reference(where: World, policies: Policies, advantages: Tensor, loss: LossConfig) -> Tensor:
    """Return ∇ E_{π_θ}[advantage · aggregated score] with the same divisor as the loss of the sampled responses."""
    sampled, on_policy = (probabilities(where, logits) for logits in (policies.rollout, policies.theta))
    leaf = torch.ones(where.mask.shape, dtype=on_policy.dtype).requires_grad_()
    value = aggregate(leaf, where.mask, where.mask, loss.loss_agg_mode, "fixed", 1, 1, loss.loss_scale_factor)
    shares = gradient_of(value, leaf) / (_expected(sampled, _counts(where.mask, loss)) or 1.0)
    return _weighted_scores(where, policies.theta, on_policy[:, None] * advantages[:, None] * shares)


def _weighted_scores(where: World, theta: Tensor, c: Tensor) -> Tensor:
    """Sum c ∇ log π_θ over all tokens of all responses, (S, V)."""
    leaf = theta.detach().requires_grad_()
    return gradient_of((c.detach() * log_probs(where, leaf)).sum(), leaf)


def _counts(counted: Tensor, loss: LossConfig) -> Tensor:
    """Return each response's part of the divisor of the loss, (N,): its tokens, whether it has any, or 1 for a sum."""
    if loss.loss_agg_mode == "token-sum":
        return torch.ones_like(counted[:, 0])
    return counted.sum(-1) if loss.loss_agg_mode == "token-mean" else counted.any(-1)


def _mean_weight(sampled: Tensor, result: CorrectionResult, correction: CorrectionConfig) -> float:
    """Return the divisor of batch normalisation: the mean weight of the kept tokens or sequences."""
    if correction.weights is None or not correction.weights.normalise:
        return 1.0
    total, count = norm_factor_sums(result.weights, result.keep_mask, per_token=correction.weights.per_token)
    mean = _expected(sampled, total) / _expected(sampled, count)
    return mean if mean > 1e-8 else 1.0


def _expected(sampled: Tensor, values: Tensor) -> float:
    return float((sampled * values).sum())
