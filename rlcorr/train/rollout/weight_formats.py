"""Rounding of weights to 8 or 4 bits at each sync, as engines with quantised weights store them.

Only the weights are rounded. They are exactly those of such an engine, but it computes with them in its own dtype here.
An engine that quantises activations as well has a larger gap.

Weights come in the engine's dtype, as other trainers send them (SkyRL and prime-rl publish bfloat16: SkyRL issue 1903,
prime-rl pull request 3386), and are rounded a second time here. If they were rounded from float32 at once, an int8
engine would follow small updates better than anything that reads a bfloat16 checkpoint, where an update smaller than
half a step of bfloat16 is lost.
"""

import torch
from torch import Tensor

from rlcorr.train.config.rollout import WeightFormat

LARGEST = {"fp8_e4m3": 448.0, "int8": 127.0, "int4": 7.0}
"""The largest number of each format, to which the largest weight of an output channel is scaled."""
OUTSIDE_THE_LAYERS = ("embed_tokens", "lm_head")
"""Tensors that engines usually leave in their own dtype; they are not rounded here either."""


def rounded(name: str, tensor: Tensor, weight_format: WeightFormat) -> Tensor:
    """Return a tensor as the engine stores it: matrices of the layers are rounded, all other tensors are unchanged.

    The rounding is symmetric and per output channel: w → s·round(w/s) with s = max|w| / largest number of the format.

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
