"""What each sequence of a recorded batch adds to the gradient of a correction, computed from score sketches.

Every loss of this project has the gradient Σ_t c_t ∇ log π_t, with one coefficient c_t per token. A sketch contains K
random projections of the score of every token: s_t[k] = ⟨∇ log π_t, d_k⟩/√K, with d_k standard normal over all
parameters. Then ⟨Σ c s, Σ c' s⟩ estimates ⟨Σ c ∇ log π, Σ c' ∇ log π⟩, so the gradient of another preset or threshold
costs one matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct, norm_factor_sums
from rlcorr.errors import UsageError
from rlcorr.gradients.mean_scores import mean_scores
from rlcorr.gradients.sketch import ExactSketch, Sketch
from rlcorr.losses.objective import score_coefficients
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.losses.score_centering import check_centering
from rlcorr.masked import masked_mean
from rlcorr.types import TokenBatch

ROWS_AT_ONCE = 64
"""Number of sequences whose scores are padded together to one length. It bounds the memory."""
ONE_BY_ONE = 16
"""Up to this many sets of coefficients, reading the scores once per set is faster than padding them once for all."""
BASE_BOUND = 10.0
"""Bound on the weights of the base correction. In a usable batch few tokens are above it, or above a usual bound."""
LARGEST_COEFFICIENT = 1000.0
"""Largest coefficient of the base correction, in units of the largest advantage.

Subtracting a coefficient from a sum leaves its rounding error in the sum: 6e-5 of an advantage in float32, for a
coefficient that is 1000 times as large.
"""


@dataclass(frozen=True)
class Contributions:
    """What each of U units adds to the gradient Σ u / Σ n.

    With batch normalisation the gradient is also divided by Σ W / Σ m. A unit is a sampled answer or a prompt. For a
    prompt each number is an expected value over its answers, under the distribution that the engine samples from.
    """

    u: Tensor  # (U, K)
    n: Tensor  # (U,)
    weight: Tensor  # (U,) mean weight of the kept tokens
    total: Tensor  # (U,) W, sum of the weights that batch normalisation averages
    count: Tensor  # (U,) m, their number
    u_square: Tensor  # (U, K) squares and products of single answers, for the variance
    u_n: Tensor  # (U, K)
    n_square: Tensor  # (U,)
    weight_square: Tensor  # (U,)
    probability: Tensor  # (U,) of all answers of the unit: 1 for a sampled answer, the coverage for a prompt


@dataclass(frozen=True)
class _AnswerNumbers:
    """What each answer adds, except for its sums over scores."""

    n: Tensor  # (B,)
    weight: Tensor
    total: Tensor
    count: Tensor


@dataclass(frozen=True)
class BaseContributions:
    """The coefficients c of a correction without rules and with a loose bound, and their sums u over the scores.

    Another bound or rule changes the coefficients of few tokens, so only the scores of these tokens must be read.
    """

    c: Tensor  # (B, T)
    u: Tensor  # (B, K)


def contributions(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
    *,
    base: BaseContributions | None = None,
) -> list[Contributions]:
    """Compute what each sequence adds to the gradient of the policy loss, for every correction.

    KL terms are left out. With `loss.score_centering`, the sampler's mean score is subtracted at every position, which
    needs an exact sketch. A token-sum loss counts as a mean over sequences, so that batches of different sizes compare.
    π_θ is π_old, as in the first optimizer step after sampling. Results have the dtype of the scores.

    Args:
        base: `base_contributions` of the same batch, sketch and loss. With it, only the scores of tokens whose
            coefficient differs from the base are read.

    Raises `UsageError` without old_log_probs or advantages, for losses that compare tokens of a batch (clip_cov,
    kl_cov), and if sketch and batch differ in size.
    """
    centered, loss = loss is not None and loss.score_centering, _policy_only(loss)
    for correction in corrections:
        _check(batch, sketch, correction)
    c, rows = zip(*(_coefficients(batch, correction, loss) for correction in corrections), strict=True)
    if base is None:
        sums = per_sequence(torch.stack(c), batch.response_mask, sketch)
    else:
        sums = [base.u + _sparse_sums(one - base.c, batch.response_mask, sketch) for one in c]
    if centered:
        sums = [one - _mean_sums(batch, sketch, of, loss) for one, of in zip(sums, corrections, strict=True)]
    return [_contributions_of_units(u, numbers, sketch) for u, numbers in zip(sums, rows, strict=True)]


def on_policy(batch: TokenBatch, sketch: ExactSketch, loss: LossConfig) -> Contributions:
    """Compute what each prompt adds to the gradient of π_old itself.

    These are expected values under π_old, with the same divisor as the loss of the sampled answers.
    """
    c, rows = _coefficients(batch, CorrectionConfig(), _policy_only(loss))
    (u,) = per_sequence(c[None], batch.response_mask, sketch)
    sampled = _contributions_of_units(u, rows, sketch)
    return replace(sampled, u=_expected(u, sketch.answers.trained, sketch))


def _mean_sums(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    """Sum what score centering subtracts over each answer, (A, K): the mean score of the sampler at each position."""
    if not isinstance(sketch, ExactSketch):
        raise UsageError("score centering needs a step on which every likely answer was sketched; this one has none.")
    check_centering(correction)
    c, _ = _coefficients(batch, replace(correction, rollout_is=None), loss)
    table, places = mean_scores(sketch, correction)
    mask = batch.response_mask
    return _bags(places, c.masked_select(mask), mask.sum(-1), table)


def _contributions_of_units(u: Tensor, rows: _AnswerNumbers, sketch: Sketch) -> Contributions:
    numbers = {name: values.to(u) for name, values in vars(rows).items()}
    n, weight = numbers["n"], numbers["weight"]
    numbers |= {
        "u": u, "u_square": u.square(), "u_n": u * n[:, None], "n_square": n.square(),
        "weight_square": weight.square(), "probability": torch.ones_like(n),
    }  # fmt: skip
    if isinstance(sketch, ExactSketch):
        numbers = {name: _expected(values, sketch.answers.sampled, sketch) for name, values in numbers.items()}
    return Contributions(**numbers)


def _expected(values: Tensor, probability: Tensor, sketch: ExactSketch) -> Tensor:
    """Sum the numbers of the answers to each prompt, weighted by probability: (A,) or (A, K) → (P,) or (P, K)."""
    answers = torch.arange(len(probability), device=probability.device)
    columns = values if values.dim() == 2 else values[:, None]
    return _bags(answers, probability, sketch.answers.per_prompt, columns).view(-1, *values.shape[1:])


def base_contributions(
    batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig, loss: LossConfig | None = None
) -> BaseContributions | None:
    """Return the base of this correction, which is the same for all its bounds.

    Return None if a coefficient is above `LARGEST_COEFFICIENT`: subtracting it would leave too large a rounding error.
    """
    loss = _policy_only(loss)
    _check(batch, sketch, correction)
    c, _ = _coefficients(batch, base_correction(correction), loss)
    assert batch.advantages is not None
    size, unit = (x.masked_select(batch.response_mask).abs().amax() for x in (c, batch.advantages))
    if not size <= LARGEST_COEFFICIENT * unit:
        return None
    return BaseContributions(c, per_sequence(c[None], batch.response_mask, sketch)[0])


def without_rules(correction: CorrectionConfig) -> CorrectionConfig:
    """Return the correction with its bounded weights only, and all response tokens in the denominator."""
    return replace(correction, rollout_rs=(), denominator="fixed", rollout_is_batch_normalize=False)


def _policy_only(loss: LossConfig | None) -> LossConfig:
    return replace(loss or LossConfig(), use_kl_loss=False, use_rollout_kl_loss=False, score_centering=False)


def base_correction(correction: CorrectionConfig) -> CorrectionConfig:
    """Return the correction without its rules and with its weights capped at 10.

    Corrections that differ only in bounds and rules have the same base correction.
    """
    without = without_rules(correction)
    if correction.rollout_is is None:
        return without
    return replace(
        without, rollout_is_threshold=BASE_BOUND, rollout_is_threshold_lower=None, rollout_is_mode="truncate"
    )


def _coefficients(batch: TokenBatch, correction: CorrectionConfig, loss: LossConfig) -> tuple[Tensor, _AnswerNumbers]:
    """Compute the coefficient of every token, (B, T), and everything else that needs no scores."""
    assert batch.old_log_probs is not None
    once = replace(correction, rollout_is_batch_normalize=False)
    result = correct(batch, once)
    c = score_coefficients(batch.old_log_probs, batch, result, once, loss, tokens=1, sequences=1)
    keep = result.keep_mask
    counted = batch.response_mask if correction.denominator == "fixed" else keep
    n = counted.sum(-1) if loss.loss_agg_mode == "token-mean" else counted.any(-1)
    weight = masked_mean(result.weights, keep, -1)
    total = count = torch.ones_like(weight)
    if correction.weights is not None and correction.weights.normalise:
        total, count = norm_factor_sums(result.weights, keep, per_token=correction.weights.per_token)
    return c, _AnswerNumbers(n=n, weight=weight, total=total, count=count)


def per_sequence(c: Tensor, mask: Tensor, sketch: Sketch) -> Tensor:
    """Sum c_t s_t over each sequence, for C sets of coefficients: (C, B, T), (B, T) → (C, B, K)."""
    scores = sketch.scores
    if len(c) <= ONE_BY_ONE or isinstance(sketch, ExactSketch):
        numbers = rows_of_scores(sketch)
        return torch.stack([_bags(numbers, one.masked_select(mask), mask.sum(-1), scores) for one in c])
    sums, rest = [], scores
    for rows, c_of_rows in zip(mask.split(ROWS_AT_ONCE), c.split(ROWS_AT_ONCE, 1), strict=True):
        used = rows.any(0)  # columns with at least one token
        real = rows[:, used]
        padded = scores.new_zeros(*real.shape, scores.shape[1])
        padded[real], rest = rest[: real.sum()], rest[real.sum() :]
        sums.append(torch.where(real, c_of_rows[:, :, used], 0).to(scores).transpose(0, 1) @ padded)
    return torch.cat(sums).transpose(0, 1)


def rows_of_scores(sketch: Sketch) -> Tensor:
    """Return the row in `sketch.scores` of each response token, (N,), in row order.

    In an exact sketch the answers to one prompt share the scores of their tree.
    """
    if isinstance(sketch, ExactSketch):
        return sketch.answers.nodes
    return torch.arange(len(sketch.scores), device=sketch.scores.device)


def _sparse_sums(c: Tensor, mask: Tensor, sketch: Sketch) -> Tensor:
    """Sum c_t s_t over each sequence, (B, T) → (B, K), reading only the scores of tokens with c ≠ 0."""
    coefficients = c.masked_select(mask)
    positions = coefficients.nonzero()[:, 0]
    sizes = (mask & (c != 0)).sum(-1)
    return _bags(rows_of_scores(sketch)[positions], coefficients[positions], sizes, sketch.scores)


def _bags(numbers: Tensor, c: Tensor, sizes: Tensor, scores: Tensor) -> Tensor:
    """Sum c s over bags of scores: M row numbers and coefficients in B consecutive bags of these sizes → (B, K)."""
    starts = sizes.cumsum(0) - sizes
    return embedding_bag(numbers, scores, starts, mode="sum", per_sample_weights=c.to(scores))


def _check(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig) -> None:
    if LOSSES[correction.loss_type].whole_batch:
        raise UsageError(f"{correction.loss_type} compares the tokens of a batch: it has no gradient per token.")
    if batch.old_log_probs is None or batch.advantages is None:
        raise UsageError("a gradient needs old_log_probs and advantages; the recorded batch lacks one of them.")
    sketched, tokens = len(rows_of_scores(sketch)), int(batch.response_mask.sum())
    if sketched != tokens:
        raise UsageError(f"the sketch has {sketched} tokens, the batch {tokens}: it is of another step.")
