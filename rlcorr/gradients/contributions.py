"""From score sketches to gradients: what each sequence of a recorded batch adds to a preset's gradient.

Every loss of this project has the gradient Σ_t c_t ∇ log π_t, with one coefficient per token. A sketch holds, for every
token, K random projections of its score: s_t[k] = ⟨∇ log π_t, d_k⟩/√K, d_k standard normal over all parameters. Then
⟨Σ c s, Σ c' s⟩ estimates ⟨Σ c ∇ log π, Σ c' ∇ log π⟩, so another preset or threshold is one matrix product away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct, weight_votes
from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import ExactSketch, Sketch
from rlcorr.losses.objective import score_coefficients
from rlcorr.masked import masked_mean
from rlcorr.types import TokenBatch

ROWS_AT_ONCE = 64
"""Sequences whose scores are padded to one length together, which bounds the memory."""
ONE_BY_ONE = 16
"""Sets of coefficients up to which reading the scores for each is quicker than padding them once for all."""
NEIGHBOUR_BOUND = 10.0
"""The bound on the weights of a neighbour: few tokens of a usable batch are above it, or above a usual bound."""
LARGEST_COEFFICIENT = 1000.0
"""Of a neighbour, in units of the largest advantage. Taking a coefficient off a sum again leaves its rounding there: in
float32, for one that is 1000 times as large, 6e-5 of an advantage."""


@dataclass(frozen=True)
class Contributions:
    """What each of U units adds to the gradient Σ u / Σ n, divided by the mean of W over m where normalised.

    A unit is a sampled answer, or a prompt: then each number is an expectation over its answers, under what the engine
    draws from.
    """

    u: Tensor  # (U, K)
    n: Tensor  # (U,)
    weight: Tensor  # (U,) the mean weight on kept tokens
    total: Tensor  # (U,) W and m: what batch normalisation takes the mean of
    count: Tensor  # (U,)
    u_square: Tensor  # (U, K) of an answer: for the variance
    u_n: Tensor  # (U, K)
    n_square: Tensor  # (U,)
    weight_square: Tensor  # (U,)
    probability: Tensor  # (U,) of the unit's answers together: 1, or for a prompt how much of it they cover


@dataclass(frozen=True)
class _Rows:
    """What each answer adds, but for its scores."""

    n: Tensor  # (B,)
    weight: Tensor
    total: Tensor
    count: Tensor


@dataclass(frozen=True)
class Neighbour:
    """A correction without rules and with a loose bound, and its sums over the scores. Another bound or another rule
    changes the coefficients of few tokens, and only their scores must be read."""

    c: Tensor  # (B, T)
    u: Tensor  # (B, K)


def contributions(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
    *,
    neighbour: Neighbour | None = None,
) -> list[Contributions]:
    """What each sequence adds to the gradient of the policy loss without its KL terms, one per correction.

    A token-sum counts as a mean over sequences, so that batches of different sizes compare. π_θ is π_old, as in the
    first optimizer step after sampling. With a `neighbour` (`neighbour_of` the same batch, sketch and loss) only the
    scores of those tokens are read that have another coefficient than in it. All is in the dtype of the scores.
    Raises `UsageError` without old_log_probs or advantages, for losses that compare a batch (clip_cov, kl_cov), and
    where sketch and batch differ in size.
    """
    loss = _policy_only(loss)
    for correction in corrections:
        _check(batch, sketch, correction)
    c, rows = zip(*(_before_the_scores(batch, correction, loss) for correction in corrections), strict=True)
    if neighbour is None:
        sums = per_sequence(torch.stack(c), batch.response_mask, sketch)
    else:
        sums = [neighbour.u + _differing(of_one - neighbour.c, batch.response_mask, sketch) for of_one in c]
    return [_of_units(u, of_rows, sketch) for u, of_rows in zip(sums, rows, strict=True)]


def on_policy(batch: TokenBatch, sketch: ExactSketch, loss: LossConfig) -> Contributions:
    """What each prompt adds to the gradient of π_old itself: expectations under π_old, divided by what the loss of the
    sampled answers is divided by."""
    c, rows = _before_the_scores(batch, CorrectionConfig(), _policy_only(loss))
    (u,) = per_sequence(c[None], batch.response_mask, sketch)
    sampled = _of_units(u, rows, sketch)
    return replace(sampled, u=_expected(u, sketch.answers.trained, sketch))


def _of_units(u: Tensor, rows: _Rows, sketch: Sketch) -> Contributions:
    numbers = {name: values.to(u) for name, values in vars(rows).items()}
    n, weight = numbers["n"], numbers["weight"]
    numbers |= {
        "u": u, "u_square": u.square(), "u_n": u * n[:, None], "n_square": n.square(),
        "weight_square": weight.square(), "probability": torch.ones_like(n),
    }  # fmt: skip
    if isinstance(sketch, ExactSketch):
        numbers = {name: _expected(values, sketch.answers.sampled, sketch) for name, values in numbers.items()}
    return Contributions(**numbers)


def _expected(of_answers: Tensor, probability: Tensor, sketch: ExactSketch) -> Tensor:
    """Of each prompt: (A,) or (A, K) → (P,) or (P, K)."""
    answers = torch.arange(len(probability), device=probability.device)
    columns = of_answers if of_answers.dim() == 2 else of_answers[:, None]
    return _bags(answers, probability, sketch.answers.per_prompt, columns).view(-1, *of_answers.shape[1:])


def neighbour_of(
    batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig, loss: LossConfig | None = None
) -> Neighbour | None:
    """The neighbour of this correction, which is the same wherever its bounds are. None where one of its coefficients
    is so large that taking it off again would leave too much rounding."""
    loss = _policy_only(loss)
    _check(batch, sketch, correction)
    c, _ = _before_the_scores(batch, loosened(correction), loss)
    assert batch.advantages is not None
    size, unit = (x.masked_select(batch.response_mask).abs().amax() for x in (c, batch.advantages))
    if not size <= LARGEST_COEFFICIENT * unit:
        return None
    return Neighbour(c, per_sequence(c[None], batch.response_mask, sketch)[0])


def without_rules(correction: CorrectionConfig) -> CorrectionConfig:
    """Its bounded weights alone, with all response tokens in the denominator."""
    return replace(correction, rollout_rs=(), denominator="fixed", rollout_is_batch_normalize=False)


def _policy_only(loss: LossConfig | None) -> LossConfig:
    return replace(loss or LossConfig(), use_kl_loss=False, use_rollout_kl_loss=False)


def loosened(correction: CorrectionConfig) -> CorrectionConfig:
    """Without its rules, its weights capped at 10: corrections that differ in bounds and rules alone give the same."""
    without = without_rules(correction)
    if correction.rollout_is is None:
        return without
    return replace(
        without, rollout_is_threshold=NEIGHBOUR_BOUND, rollout_is_threshold_lower=None, rollout_is_mode="truncate"
    )


def _before_the_scores(batch: TokenBatch, correction: CorrectionConfig, loss: LossConfig) -> tuple[Tensor, _Rows]:
    """The coefficient of every token, (B, T), and all but the sums over them."""
    assert batch.old_log_probs is not None
    once = replace(correction, rollout_is_batch_normalize=False)
    result = correct(batch, once)
    c = score_coefficients(batch.old_log_probs, batch, result, once, loss, tokens=1, sequences=1)
    keep = result.keep_mask
    counted = batch.response_mask if correction.denominator == "fixed" else keep
    n = counted.sum(-1) if loss.loss_agg_mode == "token-mean" else counted.any(-1)
    weight = masked_mean(result.weights, keep, -1)
    total = count = torch.ones_like(weight)
    if correction.rollout_is is not None and correction.rollout_is_batch_normalize:
        total, count = weight_votes(result.weights, keep, correction.rollout_is)
    return c, _Rows(n=n, weight=weight, total=total, count=count)


def per_sequence(c: Tensor, mask: Tensor, sketch: Sketch) -> Tensor:
    """Σ_t c_t s_t of each sequence, for C sets of coefficients: (C, B, T), (B, T) → (C, B, K)."""
    scores = sketch.scores
    if len(c) <= ONE_BY_ONE or isinstance(sketch, ExactSketch):
        numbers = rows_of_scores(sketch)
        return torch.stack([_bags(numbers, of_one.masked_select(mask), mask.sum(-1), scores) for of_one in c])
    sums, rest = [], scores
    for rows, of_rows in zip(mask.split(ROWS_AT_ONCE), c.split(ROWS_AT_ONCE, 1), strict=True):
        used = rows.any(0)
        real = rows[:, used]
        padded = scores.new_zeros(*real.shape, scores.shape[1])
        padded[real], rest = rest[: real.sum()], rest[real.sum() :]
        sums.append(torch.where(real, of_rows[:, :, used], 0).to(scores).transpose(0, 1) @ padded)
    return torch.cat(sums).transpose(0, 1)


def rows_of_scores(sketch: Sketch) -> Tensor:
    """(N,) where the score of each response token is, row by row: answers to one prompt share those of their tree."""
    if isinstance(sketch, ExactSketch):
        return sketch.answers.nodes
    return torch.arange(len(sketch.scores), device=sketch.scores.device)


def _differing(c: Tensor, mask: Tensor, sketch: Sketch) -> Tensor:
    """Σ_t c_t s_t of each sequence, (B, T) → (B, K), where most c are 0."""
    of_tokens = c.masked_select(mask)
    places = of_tokens.nonzero()[:, 0]
    return _bags(rows_of_scores(sketch)[places], of_tokens[places], (mask & (c != 0)).sum(-1), sketch.scores)


def _bags(numbers: Tensor, c: Tensor, sizes: Tensor, scores: Tensor) -> Tensor:
    """Σ c s of the scores with these numbers, (M,), in bags of these sizes, (B,), one after another: (B, K)."""
    starts = sizes.cumsum(0) - sizes
    return embedding_bag(numbers, scores, starts, mode="sum", per_sample_weights=c.to(scores))


def _check(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig) -> None:
    if correction.loss_type in ("clip_cov", "kl_cov"):
        raise UsageError(f"{correction.loss_type} selects tokens by comparing a batch: it has no gradient per token.")
    if batch.old_log_probs is None or batch.advantages is None:
        raise UsageError("a gradient needs old_log_probs and advantages; the recorded batch lacks one of them.")
    sketched = len(rows_of_scores(sketch))
    if sketched != int(batch.response_mask.sum()):
        raise UsageError(
            f"the sketch has {sketched} tokens, the batch {int(batch.response_mask.sum())}: it is of another step."
        )
