"""The colour of a token, from its log-ratio."""

import numpy as np
import torch
from torch import Tensor

from rlcorr.figures.axes import span_of
from rlcorr.types import CorrectionResult, TokenBatch


def shades(batch: TokenBatch, result: CorrectionResult) -> tuple[Tensor, float]:
    """(B, T) in −1 … 1, the sign of log r with a strength of √(|log r|/span), and the span: the |log r| of full colour.

    The root, because most ratios are so near 1 that a proportional colour would not be seen. NaN has full colour.
    """
    d = result.log_ratio
    span = span_of(d[batch.response_mask].double().cpu().numpy().astype(np.float64))
    share = (d.nan_to_num(torch.inf) / span).clamp(-1, 1)
    return share.sign() * share.abs().sqrt(), span
