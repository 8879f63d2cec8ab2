"""The two data types of the library: a batch of sampled responses, and the result of a correction.

B sequences, T response columns: column t of every (B, T) tensor is the t-th generated token. Three policies appear
everywhere. π_rollout, the engine's, sampled the tokens. π_old is the trainer's model before the update, and π_θ is the
model being updated.
"""

import dataclasses
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError

ROUNDED_UP = 0.01
"""Largest log-prob above 0 that is accepted as rounding: log-softmax in bfloat16 may round up."""
TOP = ("top_ids", "rollout_top_log_probs", "old_top_log_probs")
"""Fields with the sampler's likeliest tokens at each position."""
_WITHOUT_RATIO = (
    "Such a token has no ratio: set response_mask to 0 there. For NaN of a sampler in files and recorded runs, use "
    "nan_is_ratio_one."
)


@dataclass(frozen=True)
class TokenBatch:
    """One batch of sampled responses. Only the mask and the rollout log-probs are required.

    All (B, T) tensors have the same shape; log-probs are natural logarithms. A wrong shape or dtype raises
    `UsageError`.
    """

    response_mask: Tensor  # (B, T) bool, True on generated tokens
    rollout_log_probs: Tensor  # (B, T) log π_rollout, as the engine reported it
    old_log_probs: Tensor | None = None  # (B, T) log π_old, recomputed by the trainer
    sampled_log_probs: Tensor | None = None  # (B, T) of the weights that sampled, computed by the trainer
    log_probs: Tensor | None = None  # (B, T) log π_θ
    ref_log_probs: Tensor | None = None  # (B, T) log π_ref, the frozen reference
    values: Tensor | None = None  # (B, T) the critic before the update
    advantages: Tensor | None = None  # (B, T)
    returns: Tensor | None = None  # (B, T)
    prompt_ids: Tensor | None = None  # (B, P) left-padded
    prompt_mask: Tensor | None = None  # (B, P) bool
    response_ids: Tensor | None = None  # (B, T) right-padded
    routed_experts: Tensor | None = None  # (B, P + T, layers, k) the engine's experts per input token, −1 unknown
    rewards: Tensor | None = None  # (B,)
    group_ids: Tensor | None = None  # (B,) index of the prompt
    policy_versions: Tensor | None = None  # (B,) or (B, T) version of the weights that sampled the row, or the token
    turn_ids: Tensor | None = None  # (B, T) turn of the token, if a tool or another speaker answers in between
    top_ids: Tensor | None = None  # (B, T, K) the sampler's likeliest tokens at each position, −1 where it has fewer
    rollout_top_log_probs: Tensor | None = None  # (B, T, K) log π_rollout of these tokens, −∞ where sampling cuts them
    old_top_log_probs: Tensor | None = None  # (B, T, K) log π_old of these tokens
    unpaired_tokens: Tensor | None = None  # (B,) tokens of the row left out because the engine's log-prob was NaN

    def __post_init__(self) -> None:
        tensors = {"response_mask": self.response_mask, "rollout_log_probs": self.rollout_log_probs} | self.tensors()
        for name, tensor in tensors.items():  # first the mask, whose device the others are compared with
            _require_plain_tensor(name, tensor)
            if tensor.device != self.response_mask.device:
                raise UsageError(f"{name} is on {tensor.device}, response_mask on {self.response_mask.device}.")
        if self.response_mask.dtype != torch.bool or self.response_mask.dim() != 2:
            raise UsageError(
                f"response_mask must be a bool tensor (B, T); got {self.response_mask.dtype} "
                f"of shape {tuple(self.response_mask.shape)}."
            )
        for name, tensor in tensors.items():
            self._check(name, tensor)
        compared = ("rollout_log_probs", "old_log_probs", "sampled_log_probs", "log_probs")
        dtypes = {name: tensor.dtype for name, tensor in tensors.items() if name in compared}
        if len(set(dtypes.values())) > 1:
            got = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
            raise UsageError(f"log-probs whose ratio is taken must share one dtype; got {got}.")

    def _check(self, name: str, tensor: Tensor) -> None:
        expected = self.response_mask.shape
        if name in ("prompt_ids", "prompt_mask"):
            if tensor.dim() != 2 or tensor.shape[0] != expected[0]:
                raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]}, P).")
        elif name == "routed_experts":
            width = expected[1] + (0 if self.prompt_ids is None else self.prompt_ids.shape[1])
            if tensor.dim() != 4 or tensor.shape[:2] != (expected[0], width):
                raise UsageError(
                    f"routed_experts has shape {tuple(tensor.shape)}; it must be ({expected[0]}, {width}, layers, k)."
                )
        elif name == "policy_versions":
            if tensor.shape not in (expected, expected[:1]):
                raise UsageError(
                    f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]},) or {tuple(expected)}."
                )
        elif name in TOP:
            widths = {lists.shape[2:] for lists in (getattr(self, top) for top in TOP) if lists is not None}
            if tensor.dim() != 3 or tensor.shape[:2] != expected or len(widths) > 1:
                raise UsageError(
                    f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]}, {expected[1]}, K), with the "
                    "same K for all lists of likeliest tokens."
                )
        elif name in ("rewards", "group_ids", "unpaired_tokens"):
            if tensor.shape != expected[:1]:
                raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]},).")
        elif tensor.shape != expected:
            raise UsageError(f"{name} has shape {tuple(tensor.shape)}; response_mask has {tuple(expected)}.")
        if name.endswith("log_probs") and not tensor.is_floating_point():
            raise UsageError(f"{name} must be floating-point numbers; got {tensor.dtype}.")

    @classmethod
    def from_log_probs(cls, old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor) -> "TokenBatch":
        """Return a batch with the fields that every correction needs, and check their values.

        For numbers from outside the library. `response_mask` may have any dtype; it is 1 at real tokens and 0
        elsewhere. Waits for the device. Raises `UsageError` for other values of the mask, and as `check_values` does.
        """
        for name, tensor in {"old_log_probs": old_log_probs, "response_mask": response_mask}.items():
            _require_plain_tensor(name, tensor)
        batch = cls(response_mask=response_mask == 1, rollout_log_probs=rollout_log_probs, old_log_probs=old_log_probs)
        wrong = (response_mask != 0) & (response_mask != 1)  # NaN is neither
        if (position := _first(wrong)) is not None:
            raise UsageError(
                f"response_mask is {float(response_mask[wrong][0]):g} at {position}; it must be 1 at tokens that count "
                "and 0 elsewhere. Weights between 0 and 1 belong in the loss."
            )
        batch.check_values()
        return batch

    def check_values(self) -> None:
        """Raise `UsageError` unless every real token has a ratio.

        A token has none if a log-prob is NaN or above 0 by more than rounding, or if both log-probs are −inf. If only
        one is −inf, the ratio is e^±20. Raises it as well if versions or turns fall within a response, because it is
        continued with newer weights only, and turns follow each other. Waits for the device.
        """
        for name, tensor in self.tensors().items():
            if name.endswith("log_probs"):
                mask = self.response_mask if tensor.dim() == 2 else self.response_mask[..., None]
                highest = float(torch.where(mask, tensor, 0).max()) if tensor.numel() else 0.0
                if highest > ROUNDED_UP:
                    raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0; got up to {highest:g}.")
                if (position := _first(tensor.isnan() & mask)) is not None:
                    raise UsageError(f"{name} is NaN at {position}. {_WITHOUT_RATIO}")
        for name in ("policy_versions", "turn_ids"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.dim() == 2:
                reached = (
                    torch.where(self.response_mask, tensor, tensor.min() if tensor.numel() else 0).cummax(-1).values
                )
                if (position := _first((tensor < reached) & self.response_mask)) is not None:
                    raise UsageError(f"{name} falls from one token to the next at {position}.")
        if self.old_log_probs is None:
            return
        both = (self.rollout_log_probs == -torch.inf) & (self.old_log_probs == -torch.inf) & self.response_mask
        if (position := _first(both)) is not None:
            raise UsageError(f"rollout_log_probs and old_log_probs are both −inf at {position}. {_WITHOUT_RATIO}")

    def count_unpaired(self) -> int:
        """Return how many tokens were left out because the engine's log-prob was NaN. Waits for the device."""
        return 0 if self.unpaired_tokens is None else int(self.unpaired_tokens.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are not None, by name."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: tensor for name, tensor in present.items() if tensor is not None}

    def rows(self, index: Tensor | slice) -> "TokenBatch":
        """Return a batch of these rows only, with every field that is present."""
        return TokenBatch(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def replace(self, **changes: Any) -> "TokenBatch":
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class CorrectionResult:
    """The result of a correction. The response mask of the batch is never changed."""

    log_ratio: Tensor  # (B, T) log π_old − log π_rollout, 0 on padding
    weights: Tensor  # (B, T) final importance weights; all 1 if none were asked for; 0 on padding
    keep_mask: Tensor  # (B, T) bool: real tokens that no rule rejected
    rejected_by: Tensor  # (B, T) int8: 0 if kept or padding, k if the k-th rule was the first to reject it
    norm_factor: Tensor | None = None  # () divisor of batch normalisation

    def rows(self, index: Tensor | slice) -> "CorrectionResult":
        """Return the result of these rows only."""
        return CorrectionResult(
            self.log_ratio[index],
            self.weights[index],
            self.keep_mask[index],
            self.rejected_by[index],
            self.norm_factor,
        )


def _require_plain_tensor(name: str, value: object) -> None:
    """Raise `UsageError` for anything but a dense tensor, and for formats of 8 bits, which torch cannot compute in."""
    if value is None:
        raise UsageError(f"{name} is missing: without it there is nothing to correct.")
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} must be a tensor; got {type(value).__name__}. torch.as_tensor converts lists and arrays."
        )
    if value.layout != torch.strided:
        raise UsageError(f"{name} must be a dense tensor; got the layout {str(value.layout).removeprefix('torch.')}.")
    if value.is_floating_point() and value.dtype.itemsize == 1:
        raise UsageError(f"{name} has dtype {value.dtype}; convert it to float32 or bfloat16.")


def _first(wrong: Tensor) -> str | None:
    """Describe the first (row, token) at which a mask (B, T) is True, and count the others; None if there is none."""
    positions = wrong.nonzero()
    if not len(positions):
        return None
    row, token = positions[0].tolist()
    return f"row {row}, token {token} (from 0)" + (f", and at {len(positions) - 1} more" if len(positions) > 1 else "")
