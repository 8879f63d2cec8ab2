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

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct, norm_factor_sums
from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import ExactSketch, Sketch, bags
from rlcorr.losses.objective import score_coefficients
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.losses.score_centering import check_centering, score_coefficients_of
from rlcorr.masked import masked_mean
from rlcorr.types import TokenBatch


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


def contributions(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
) -> list[Contributions]:
    """Compute what each sequence adds to the gradient of the policy loss, for every correction.

    KL terms are left out. With `loss.score_centering`, the sampler's mean score is subtracted at every position, which
    needs an exact sketch. A token-sum loss counts as a mean over sequences, so that batches of different sizes compare.
    π_θ is π_old, as in the first optimizer step after sampling. Results have the dtype of the scores.

    Raises `UsageError` without old_log_probs or advantages, for losses that compare tokens of a batch (clip_cov,
    kl_cov), and if sketch and batch differ in size.
    """
    centered, loss = loss is not None and loss.score_centering, _policy_only(loss)
    for correction in corrections:
        _check(batch, sketch, correction)
    c, rows = zip(*(_coefficients(batch, correction, loss) for correction in corrections), strict=True)
    sums = per_sequence(torch.stack(c), batch.response_mask, sketch)
    if centered:
        centres = [_mean_sums(batch, sketch, correction, loss) for correction in corrections]
        sums = sums - torch.stack(centres)
    return [_contributions_of_units(u, numbers, sketch) for u, numbers in zip(sums, rows, strict=True)]


def on_policy(batch: TokenBatch, sketch: ExactSketch, loss: LossConfig) -> Contributions:
    """Compute what each prompt adds to the gradient of π_old itself.

    These are expected values under π_old, with the same divisor as the loss of the sampled answers.
    """
    c, rows = _coefficients(batch, CorrectionConfig(), _policy_only(loss))
    (u,) = per_sequence(c[None], batch.response_mask, sketch)
    sampled = _contributions_of_units(u, rows, sketch)
    return replace(sampled, u=sketch.over_units(u, sketch.answers.trained))


def _mean_sums(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    """Sum what score centering subtracts over each answer, (A, K): the mean score of the sampler at each position."""
    if not isinstance(sketch, ExactSketch):
        raise UsageError("score centering needs a step on which every likely answer was sketched; this one has none.")
    check_centering(correction)
    c, _ = _coefficients(batch, replace(correction, rollout_is=None), loss)
    table, places = mean_scores(sketch, correction)
    mask = batch.response_mask
    return bags(places, c.masked_select(mask), mask.sum(-1), table)


def mean_scores(sketch: ExactSketch, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """Compute E_q[w ∇log π_old] at every position of the tree, over the tokens that the tree has there.

    What the tree leaves out counts as the tail of `centering_terms`.

    Returns:
        A table (P + E, K), with a row for the first position of each prompt, and for the position after each node; and
        the row for each response token of the answers, (N,).
    """
    tree = sketch.tree
    prompts = int(tree.prompts.max()) + 1
    places = torch.where(tree.parents >= 0, tree.parents.long() + prompts, tree.prompts.long())
    count = prompts + len(tree.parents)
    p, q = tree.old_log_probs.double().exp(), tree.rollout_log_probs.double().exp()
    total_p, total_q = (torch.zeros(count).double().index_add_(0, places, x) for x in (p, q))
    coefficients = score_coefficients_of(p, q, total_p[places], total_q[places], config).to(sketch.scores)
    table = torch.zeros(count, sketch.directions).to(sketch.scores)
    table.index_add_(0, places.to(table.device), coefficients[:, None] * sketch.scores)
    return table, places[sketch.answers.nodes]


def _contributions_of_units(u: Tensor, rows: dict[str, Tensor], sketch: Sketch) -> Contributions:
    numbers = {name: values.to(u) for name, values in rows.items()}
    n, weight = numbers["n"], numbers["weight"]
    numbers |= {
        "u": u, "u_square": u.square(), "u_n": u * n[:, None], "n_square": n.square(),
        "weight_square": weight.square(), "probability": torch.ones_like(n),
    }  # fmt: skip
    return Contributions(**{name: sketch.over_units(values) for name, values in numbers.items()})


def _policy_only(loss: LossConfig | None) -> LossConfig:
    return replace(loss or LossConfig(), use_kl_loss=False, use_rollout_kl_loss=False, score_centering=False)


def _coefficients(
    batch: TokenBatch, correction: CorrectionConfig, loss: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the coefficient of every token, (B, T), and the fields of `Contributions` that need no scores."""
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
    return c, {"n": n, "weight": weight, "total": total, "count": count}


def per_sequence(c: Tensor, mask: Tensor, sketch: Sketch) -> Tensor:
    """Sum c_t s_t over each sequence, for C sets of coefficients: (C, B, T), (B, T) → (C, B, K)."""
    sizes = mask.sum(-1)
    return torch.stack([bags(sketch.rows, one.masked_select(mask), sizes, sketch.scores) for one in c])


def _check(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig) -> None:
    if LOSSES[correction.loss_type].whole_batch:
        raise UsageError(f"{correction.loss_type} compares the tokens of a batch: it has no gradient per token.")
    if batch.old_log_probs is None or batch.advantages is None:
        raise UsageError("a gradient needs old_log_probs and advantages; the recorded batch lacks one of them.")
    sketched, tokens = len(sketch.rows), int(batch.response_mask.sum())
    if sketched != tokens:
        raise UsageError(f"the sketch has {sketched} tokens, the batch {tokens}: it is of another step.")
