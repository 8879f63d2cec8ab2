"""The nouns of the program. Every other module is a set of verbs over these.

B sequences, T response columns: column t of every (B, T) tensor is the t-th generated token.
Three policies appear everywhere: π_rollout sampled the tokens (the engine), π_old is the trainer's
model before the update, π_θ the model being updated.
"""

import dataclasses
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rlcorr.errors import UsageError, unknown

Level = Literal["token", "sequence"]
Reduce = Literal["sum", "mean", "max"]
Divergence = Literal["k1", "k2", "k3", "binary_kl"]
WeightLevel = Literal["token", "sequence", "geometric"]
WeightMode = Literal["truncate", "mask"]
LossType = Literal["ppo_clip", "reinforce"]
Denominator = Literal["fixed", "kept"]


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
    rewards: Tensor | None = None  # (B,)
    group_ids: Tensor | None = None  # (B,) which prompt
    policy_versions: Tensor | None = None  # (B,) weights that sampled the row

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

    def _check(self, name: str, tensor: Tensor) -> None:
        expected = self.response_mask.shape
        if name in ("prompt_ids", "prompt_mask"):
            if tensor.dim() != 2 or tensor.shape[0] != expected[0]:
                raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]}, P).")
        elif name in ("rewards", "group_ids", "policy_versions"):
            if tensor.shape != expected[:1]:
                raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be ({expected[0]},).")
        elif tensor.shape != expected:
            raise UsageError(f"{name} has shape {tuple(tensor.shape)}; response_mask has {tuple(expected)}.")
        if name.endswith("log_probs") and not tensor.is_floating_point():
            raise UsageError(f"{name} must hold floating-point numbers; got {tensor.dtype}.")

    @classmethod
    def from_log_probs(cls, old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor) -> "TokenBatch":
        """The least that every correction needs. Any mask dtype: non-zero means a real token."""
        return cls(response_mask=response_mask != 0, rollout_log_probs=rollout_log_probs, old_log_probs=old_log_probs)

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: tensor for name, tensor in present.items() if tensor is not None}

    def rows(self, index: Tensor) -> "TokenBatch":
        """The sub-batch of these rows, every present field included."""
        return TokenBatch(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def replace(self, **changes: Any) -> "TokenBatch":
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class RejectionRule:
    """Keep a token, or a whole sequence, only while a divergence stays inside its bounds.

    `k1` bounds are on the ratio r = π_old/π_rollout itself (for `sum` and `mean` on the product and the
    geometric mean of the ratios); `k2`, `k3` and `binary_kl` have only an upper bound, on the divergence.
    """

    level: Level
    divergence: Divergence
    upper: float
    lower: float | None = None
    reduce: Reduce | None = None

    def __post_init__(self) -> None:
        _member("level", self.level, Level)
        _member("divergence", self.divergence, Divergence)
        if self.level == "sequence":
            _member("reduce", self.reduce or "none", Reduce)
        elif self.reduce is not None:
            raise UsageError(f"a token rule reduces nothing: reduce must be None, got {self.reduce!r}.")
        _bounds(self.name, self.lower, self.upper)
        if self.divergence == "k1" and self.reduce != "max" and self.lower is None:
            raise UsageError(f"{self.name} needs lower and upper bounds on the ratio; lower is missing.")
        if self.divergence != "k1" and self.lower is not None:
            raise UsageError(f"{self.name} is a divergence ≥ 0 and takes only an upper bound; got lower={self.lower}.")

    @property
    def name(self) -> str:
        """verl's spelling: token_k1, seq_mean_k3, …"""
        return f"token_{self.divergence}" if self.level == "token" else f"seq_{self.reduce}_{self.divergence}"

    @classmethod
    def named(cls, name: str, *, upper: float, lower: float | None = None) -> "RejectionRule":
        """`RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001)`."""
        if name not in RULE_NAMES:
            raise unknown("rejection rule", name, RULE_NAMES)
        level, divergence, reduce = RULE_NAMES[name]
        return cls(level=level, divergence=divergence, reduce=reduce, lower=lower, upper=upper)


_REDUCES: tuple[Reduce | None, ...] = (None, *get_args(Reduce))

RULE_NAMES: dict[str, tuple[Level, Divergence, Reduce | None]] = {
    f"seq_{reduce}_{divergence}" if reduce else f"token_{divergence}": (
        "sequence" if reduce else "token",
        divergence,
        reduce,
    )
    for reduce in _REDUCES
    for divergence in get_args(Divergence)
}


@dataclass(frozen=True)
class CorrectionConfig:
    """What to do about π_old ≠ π_rollout: weight tokens, reject tokens, both, or only look.

    Field names are verl's where verl has the field. Every wrong value is refused here, at construction.
    """

    rollout_is: WeightLevel | None = None
    """Importance weights per token, per sequence (product of ratios) or geometric mean; None: no weights."""
    rollout_is_threshold: float = 2.0
    """Upper bound on the weight."""
    rollout_is_threshold_lower: float | None = None
    """Lower bound on the weight; None: no lower bound."""
    rollout_is_mode: WeightMode = "truncate"
    """truncate: weights beyond a bound become the bound (TIS); mask: they become 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the kept tokens (self-normalised importance sampling)."""
    rollout_rs: tuple[RejectionRule, ...] = field(default_factory=tuple)
    """Rejection rules; a token must pass all of them."""
    bypass_mode: bool = False
    """False: three policies, π_old is recomputed. True: the PPO ratio is π_θ/π_rollout directly."""
    loss_type: LossType = "ppo_clip"
    """In bypass mode, PPO-clip or the weighted policy gradient; decoupled mode is always ppo_clip."""
    denominator: Denominator = "fixed"
    """Average the loss over all response tokens (fixed) or over the kept ones (kept)."""

    def __post_init__(self) -> None:
        if self.rollout_is is not None:
            _member("rollout_is", self.rollout_is, WeightLevel)
        _member("rollout_is_mode", self.rollout_is_mode, WeightMode)
        _member("loss_type", self.loss_type, LossType)
        _member("denominator", self.denominator, Denominator)
        for name in ("rollout_is_batch_normalize", "bypass_mode"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False; got {getattr(self, name)!r}.")
        _bounds("rollout_is_threshold", self.rollout_is_threshold_lower, self.rollout_is_threshold)
        if not isinstance(self.rollout_rs, tuple) or not all(isinstance(r, RejectionRule) for r in self.rollout_rs):
            raise UsageError(f"rollout_rs must be a tuple of RejectionRule; got {self.rollout_rs!r}.")
        names = [rule.name for rule in self.rollout_rs]
        if len(set(names)) < len(names):
            raise UsageError(f"each rejection rule may appear once; got {', '.join(names)}.")
        if self.loss_type == "reinforce" and not self.bypass_mode:
            raise UsageError("loss_type='reinforce' needs bypass_mode=True: decoupled PPO clips π_θ/π_old.")
        if self.rollout_is_batch_normalize and self.rollout_is is None:
            raise UsageError("rollout_is_batch_normalize has nothing to normalise: rollout_is is None.")

    def explain(self) -> str:
        """In plain words, what this configuration will do."""
        return " ".join([_explain_weights(self), *map(_explain_rule, self.rollout_rs), _explain_loss(self)])


@dataclass(frozen=True)
class CorrectionResult:
    """What a correction decided. The response mask of the batch is never changed."""

    log_ratio: Tensor  # (B, T) log π_old − log π_rollout, 0 on padding
    weights: Tensor  # (B, T) final importance weights, 1 where no weights are asked for, 0 on padding
    keep_mask: Tensor  # (B, T) bool: real tokens that no rule rejected
    rejected_by: Tensor  # (B, T) int8: 0 kept or padding, k = the k-th rule (the first that objected)


@dataclass(frozen=True)
class Moments:
    """Count, sum, sum of squares, minimum, maximum: what merges exactly across micro-batches and ranks."""

    count: Tensor
    total: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    def merge(self, other: "Moments") -> "Moments":
        return Moments(
            count=self.count + other.count,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            low=torch.minimum(self.low, other.low),
            high=torch.maximum(self.high, other.high),
        )


def _member(name: str, got: str, allowed: Any) -> None:
    if got not in get_args(allowed):
        raise unknown(name, str(got), get_args(allowed))


def _bounds(name: str, lower: float | None, upper: float) -> None:
    for side, bound in (("lower", lower), ("upper", upper)):
        if bound is None and side == "lower":
            continue
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise UsageError(f"{name}: the {side} bound must be a number; got {bound!r}.")
        if not bound > 0 or math.isnan(bound):
            raise UsageError(f"{name}: the {side} bound must be > 0; got {bound}.")
    if lower is not None and lower > upper:
        raise UsageError(f"{name}: lower bound {lower} is above upper bound {upper}.")


def _explain_weights(config: CorrectionConfig) -> str:
    if config.rollout_is is None:
        return "No importance weights: every token counts with weight 1."
    ratio = {
        "token": "its own ratio π_old/π_rollout",
        "sequence": "the product of its sequence's ratios",
        "geometric": "the geometric mean of its sequence's ratios",
    }[config.rollout_is]
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    outside = f"above {upper:g}" if lower is None else f"outside [{lower:g}, {upper:g}]"
    fate = f"becomes {upper:g}" if lower is None else "becomes the nearer bound"
    fate = fate if config.rollout_is_mode == "truncate" else "becomes 0"
    normal = " Weights are divided by their mean over the kept tokens." if config.rollout_is_batch_normalize else ""
    only_metrics = config.bypass_mode and config.loss_type == "ppo_clip"
    verb = "gets, in the metrics only, the weight" if only_metrics else "is weighted by"
    return f"Each token {verb} {ratio}; a weight {outside} {fate}.{normal}"


def _explain_rule(rule: RejectionRule) -> str:
    what = {None: "", "sum": "sum over the sequence of ", "mean": "mean over the sequence of ", "max": "largest "}
    if rule.divergence == "k1":
        subject = {
            None: "ratio",
            "sum": "product of the sequence's ratios",
            "mean": "geometric mean of the sequence's ratios",
            "max": "largest ratio of the sequence",
        }[rule.reduce]
        lower = f"{rule.lower:g} ≤ " if rule.lower is not None else ""
        test = f"{lower}{subject} ≤ {rule.upper:g}"
    else:
        test = f"{what[rule.reduce]}{rule.divergence} ≤ {rule.upper:g}"
    return f"Rule {rule.name} keeps a {rule.level} while {test}."


def _explain_loss(config: CorrectionConfig) -> str:
    policies = {
        (False, "ppo_clip"): "PPO clips π_θ/π_old",
        (True, "ppo_clip"): "PPO clips π_θ/π_rollout directly and applies no weights (bypass)",
        (True, "reinforce"): "The policy gradient is taken without clipping, with π_θ in the place of π_old (bypass)",
    }[config.bypass_mode, config.loss_type]
    over = "all response tokens" if config.denominator == "fixed" else "the kept tokens only"
    return f"{policies}; the loss is averaged over {over}."
