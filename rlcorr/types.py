"""The nouns of the program. Every other module is a set of verbs over these.

B sequences, T response columns: column t of every (B, T) tensor is the t-th generated token.
Three policies appear everywhere: π_rollout sampled the tokens (the engine), π_old is the trainer's
model before the update, π_θ the model being updated.
"""

import dataclasses
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError

ROUNDED_UP = 0.01
"""The largest log-prob above 0 that may come from rounding: log-softmax in bfloat16 may round up."""
_WITHOUT_RATIO = (
    "Such a token has no ratio: set response_mask to 0 there. For a sampler's NaN in files and recorded runs there is "
    "nan_is_ratio_one."
)


@dataclass(frozen=True)
class TokenBatch:
    """One batch of sampled responses. Only the mask and the rollout log-probs are always there.

    All (B, T) tensors share one shape; log-probs are natural logarithms. Raises `UsageError`
    where a shape or a dtype does not fit.
    """

    response_mask: Tensor  # (B, T) bool, True on generated tokens
    rollout_log_probs: Tensor  # (B, T) log π_rollout, as the engine reported it
    old_log_probs: Tensor | None = None  # (B, T) log π_old, recomputed by the trainer
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
    group_ids: Tensor | None = None  # (B,) which prompt
    policy_versions: Tensor | None = None  # (B,) weights that sampled the row
    unpaired_tokens: Tensor | None = None  # (B,) tokens of the row that are left out: the engine's log-prob was NaN

    def __post_init__(self) -> None:
        if self.response_mask.dtype != torch.bool or self.response_mask.dim() != 2:
            raise UsageError(
                f"response_mask must be a bool tensor (B, T); got {self.response_mask.dtype} "
                f"of shape {tuple(self.response_mask.shape)}."
            )
        if "rollout_log_probs" not in self.tensors():
            raise UsageError("rollout_log_probs is missing: without it there is nothing to correct.")
        for name, tensor in self.tensors().items():
            self._check(name, tensor)
        ratio_of = ("rollout_log_probs", "old_log_probs", "log_probs")
        dtypes = {name: tensor.dtype for name, tensor in self.tensors().items() if name in ratio_of}
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
        elif name in ("rewards", "group_ids", "policy_versions", "unpaired_tokens"):
            if tensor.shape != expected[:1]:
                raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]},).")
        elif tensor.shape != expected:
            raise UsageError(f"{name} has shape {tuple(tensor.shape)}; response_mask has {tuple(expected)}.")
        if name.endswith("log_probs") and not tensor.is_floating_point():
            raise UsageError(f"{name} must hold floating-point numbers; got {tensor.dtype}.")

    @classmethod
    def from_log_probs(cls, old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor) -> "TokenBatch":
        """Return the least that every correction needs, for numbers from outside: their values are looked at.

        `response_mask` may have any dtype and holds 1 at real tokens and 0 elsewhere. Waits for the device. Raises
        `UsageError` for another mask, and as `check_values` does.
        """
        batch = cls(response_mask=response_mask == 1, rollout_log_probs=rollout_log_probs, old_log_probs=old_log_probs)
        odd = (response_mask != 0) & (response_mask != 1)  # NaN is neither
        if (place := _first(odd)) is not None:
            raise UsageError(
                f"response_mask is {float(response_mask[odd][0]):g} at {place}; it must be 1 at tokens that count and "
                "0 elsewhere. Weights between 0 and 1 belong into the loss."
            )
        batch.check_values()
        return batch

    def check_values(self) -> None:
        """Raise `UsageError` unless every real token has a ratio: no log-prob that is NaN, or above 0 but for rounding,
        and not −inf on both sides. −inf on one side is a ratio of e^±20."""
        for name, tensor in self.tensors().items():
            if name.endswith("log_probs"):
                highest = float(torch.where(self.response_mask, tensor, 0).max()) if tensor.numel() else 0.0
                if highest > ROUNDED_UP:
                    raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0; got up to {highest:g}.")
                if (place := _first(tensor.isnan() & self.response_mask)) is not None:
                    raise UsageError(f"{name} is NaN at {place}. {_WITHOUT_RATIO}")
        if self.old_log_probs is None:
            return
        both = (self.rollout_log_probs == -torch.inf) & (self.old_log_probs == -torch.inf) & self.response_mask
        if (place := _first(both)) is not None:
            raise UsageError(f"rollout_log_probs and old_log_probs are both −inf at {place}. {_WITHOUT_RATIO}")

    def count_unpaired(self) -> int:
        """Return how many tokens were left out because the engine's log-prob was NaN. Waits for the device."""
        return 0 if self.unpaired_tokens is None else int(self.unpaired_tokens.sum())

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: tensor for name, tensor in present.items() if tensor is not None}

    def rows(self, index: Tensor | slice) -> "TokenBatch":
        """The sub-batch of these rows, every present field included."""
        return TokenBatch(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def replace(self, **changes: Any) -> "TokenBatch":
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class CorrectionResult:
    """What a correction decided. The response mask of the batch is never changed."""

    log_ratio: Tensor  # (B, T) log π_old − log π_rollout, 0 on padding
    weights: Tensor  # (B, T) final importance weights, 1 where no weights are asked for, 0 on padding
    keep_mask: Tensor  # (B, T) bool: real tokens that no rule rejected
    rejected_by: Tensor  # (B, T) int8: 0 kept or padding, k = the k-th rule (the first that objected)
    norm_factor: Tensor | None = None  # () what batch normalisation divided the weights by
    only_by_rules: bool = True  # False where tokens are left out that no rule rejected

    def rows(self, index: Tensor | slice) -> "CorrectionResult":
        """The result of these rows."""
        return CorrectionResult(
            self.log_ratio[index],
            self.weights[index],
            self.keep_mask[index],
            self.rejected_by[index],
            self.norm_factor,
            self.only_by_rules,
        )


def _first(wrong: Tensor) -> str | None:
    """Return the first place (row, token) at which a mask (B, T) is true, and how many more there are, in words."""
    places = wrong.nonzero()
    if not len(places):
        return None
    row, token = places[0].tolist()
    return f"row {row}, token {token} (from 0)" + (f", and at {len(places) - 1} more" if len(places) > 1 else "")
