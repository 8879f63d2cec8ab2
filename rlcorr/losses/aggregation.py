"""Aggregation of the losses of the tokens to one number: sums, means, and their divisors.

Beware of `aggregate` with mode seq-mean-token-sum-norm and without a scale. Dr. GRPO (arXiv:2503.20783) divides by the
longest response that may be generated. The number of columns is that length only if the batch is padded to it. If a
batch is padded to its own longest answer, the weight of an answer depends on the other answers. The trainer therefore
passes the limit of its configuration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import Aggregation, CorrectionConfig, Denominator, LossConfig
from rlcorr.errors import UsageError
from rlcorr.masked import count_true, masked_sum


@dataclass(frozen=True)
class Totals:
    """Counts of a whole batch, by which the losses of its parts are divided. None: the part is the whole batch."""

    tokens: float | None = None  # tokens and sequences that `Denominator` counts
    sequences: float | None = None
    response_tokens: float | None = None  # all, kept or rejected
    response_sequences: float | None = None

    def of_responses(self, denominator: Denominator) -> tuple[Denominator, float | None, float | None]:
        """Return the divisors of a term on every response token, as arguments `denominator`, `tokens` and `sequences`
        of `aggregate`.

        Raises `UsageError` if only the totals of the kept tokens are known.
        """
        if denominator == "fixed":
            return "fixed", self.tokens, self.sequences
        pairs = ((self.tokens, self.response_tokens), (self.sequences, self.response_sequences))
        if any(kept is not None and whole is None for kept, whole in pairs):
            raise UsageError(
                "a KL term acts on every response token, and with denominator='kept' tokens and sequences count the "
                "kept ones only; pass response_tokens and response_sequences as well."
            )
        return "fixed", self.response_tokens, self.response_sequences


def aggregate(
    loss: Tensor,
    keep: Tensor,
    mask: Tensor,
    mode: Aggregation = "token-mean",
    denominator: Denominator = "fixed",
    tokens: float | None = None,
    sequences: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Sum the loss over the kept tokens, and divide as verl's `agg_loss` does.

    token-mean               Σ_bt L / N              N tokens
    token-sum                Σ_bt L
    seq-mean-token-sum       Σ_b (Σ_t L) / S         S sequences
    seq-mean-token-mean      Σ_b (Σ_t L / n_b) / S   n_b tokens of the sequence
    seq-mean-token-sum-norm  Σ_b (Σ_t L) / S / scale (None: the number of columns; see above)

    N, S and n_b count all response tokens (fixed) or the kept ones (kept). If this is a part of a larger batch, pass
    its totals N and S as `tokens` and `sequences`; then the results of the parts sum to the result of the batch. S
    includes sequences without a counted token only if `sequences` does, as in SkyRL. 0, with a graph, if none is kept.

    >>> loss, mask = torch.tensor([[3.0, 1.0], [2.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)
    >>> keep = torch.tensor([[True, False], [True, False]])
    >>> aggregate(loss, keep, mask).item(), aggregate(loss, keep, mask, denominator="kept").item()  # 5/4 and 5/2
    (1.25, 2.5)
    """
    counted = mask if denominator == "fixed" else keep
    if mode in ("token-mean", "token-sum"):
        total = masked_sum(loss, keep)
        return total if mode == "token-sum" else total / _at_least_one(counted.sum() if tokens is None else tokens)
    rows = masked_sum(loss, keep, -1)
    if mode == "seq-mean-token-mean":
        rows = rows / count_true(counted).clamp(min=1)
    if mode == "seq-mean-token-sum-norm":
        rows = rows / (max(loss.shape[-1], 1) if scale is None else scale)
    return rows.sum() / _at_least_one(counted.any(-1).sum() if sequences is None else sequences)


def _at_least_one(count: Tensor | float) -> Tensor | float:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def lr_factor(keep: Tensor, mask: Tensor, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    """Return the factor by which rejection changes the learning rate: aggregate(1 over kept) / aggregate(1 over all).

    For token modes it is kept tokens / all tokens with denominator fixed, and 1 with denominator kept, or 0 if no token
    is kept.
    """
    ones = torch.ones(keep.shape, device=keep.device)
    mode, scale = loss.loss_agg_mode, loss.loss_scale_factor
    whole = aggregate(ones, mask, mask, mode, scale=scale)
    part = aggregate(ones, keep, mask, mode, correction.denominator, scale=scale)
    return torch.where(whole > 0, part / whole, 0.0)
