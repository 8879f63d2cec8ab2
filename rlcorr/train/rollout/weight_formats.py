"""Weights that are rounded to 8 or 4 bits at each sync, as engines with quantised weights hold them.

Only the weights are rounded, which is exact: the engine computes with the rounded values in its own dtype. An engine
that quantises activations as well has a larger gap.

Weights come in the engine's dtype, as other trainers send them (SkyRL and prime-rl publish bfloat16: SkyRL issue 1903,
prime-rl pull request 3386), and are rounded a second time here. If they were
rounded from float32 at once, an int8 engine would follow small updates better than a trainer in bfloat16, which sees no
update of a bfloat16 checkpoint that is smaller than half a step of bfloat16.
"""

import torch
from torch import Tensor

from rlcorr.train.config.rollout import WeightFormat

LARGEST = {"fp8_e4m3": 448.0, "int8": 127.0, "int4": 7.0}
"""The largest number of each format, to which the largest weight of an output channel is scaled."""
OUTSIDE_THE_LAYERS = ("embed_tokens", "lm_head")
"""What engines usually leave in their own dtype, and so it is here."""


def rounded(name: str, tensor: Tensor, weight_format: WeightFormat) -> Tensor:
    """Return a tensor as the engine holds it: matrices of the layers are rounded, everything else stays.

    Per output channel, w → s·round(w/s) with s = max|w| / largest number of the format; weight-only, symmetric.

    Args:
        tensor: (..., out, in) for a matrix or a stack of experts, in the engine's dtype.
    """
    if weight_format == "none" or tensor.dim() < 2 or any(part in name for part in OUTSIDE_THE_LAYERS):
        return tensor
    largest = LARGEST[weight_format]
    scale = tensor.float().abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / largest
    steps = tensor.float() / scale
    if weight_format == "fp8_e4m3":
        return (steps.to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype)
    return (steps.round() * scale).to(tensor.dtype)
