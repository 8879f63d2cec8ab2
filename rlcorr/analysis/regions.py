"""The region of a configuration: for every π_rollout, the π_old at which it leaves a token unchanged.

It is computed by evaluating the rules between ratio 1 and the ends of the axis. No formula is derived a second time.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.bound_curve import weight_bounds
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.ratios import log_ratio
from rlcorr.rules import RejectionRule, inside, log_bounds, rule_statistic
from rlcorr.types import TokenBatch

FLOOR = -18.0
"""Smallest log-prob of the region, 1.5e-8: log-ratios stay within their clamp of ±20."""
HALVINGS = 32
"""Bisection steps. They locate a boundary to 18/2³² = 4e-9, in logarithms."""

TOKEN_METHODS: dict[str, CorrectionConfig] = {
    "TIS": preset("decoupled_token_is"),
    "IcePop": preset("decoupled_token_icepop"),
    "KPop": preset("decoupled_token_kpop"),
    "DPPO": preset("prime_rl_dppo"),
    "k3": CorrectionConfig(rollout_rs=(RejectionRule.named("token_k3", upper=0.01),)),
    "signed KL": CorrectionConfig(rollout_rs=(RejectionRule.named("token_signed_kl", lower=-0.05, upper=0.05),)),
}
"""One method of each kind, with the numbers of its preset. k3 has verl's threshold for sequences, signed KL that of
verl's dppo_kl."""
SEQUENCE_METHODS: dict[str, CorrectionConfig] = {
    "product": preset("skyrl_product_mask"),
    "geometric mean": preset("decoupled_geo_rs"),
}


@dataclass(frozen=True)
class Region:
    """Bounds on log π_old at each log π_rollout, (G,).

    A bound is NaN if everything on its side is inside: down to FLOOR, or up to 0.
    """

    log_rollout: Tensor
    lower: Tensor
    upper: Tensor


def token_rules(config: CorrectionConfig) -> list[RejectionRule]:
    return [rule for rule in config.rollout_rs if rule.level == "token"]


def bounds_weights(config: CorrectionConfig) -> bool:
    """Check whether token weights have a bound."""
    bounded = math.isfinite(config.rollout_is_threshold) or config.rollout_is_threshold_lower is not None
    return config.rollout_is == "token" and bounded


def has_region(config: CorrectionConfig) -> bool:
    """Check whether the configuration depends on single tokens: it has token rules, or bounds on token weights."""
    return bool(token_rules(config)) or bounds_weights(config)


def region(config: CorrectionConfig, log_rollout: Tensor) -> Region:
    """Compute the region in which a token keeps its own ratio as its weight and passes every token rule.

    A token is a point (log π_rollout, log π_old). Rules that apply only to some advantages are treated as applying to
    all. Statistics grow away from ratio 1 on both sides, so there is one boundary on each.

    Args:
        log_rollout: the x positions, (G,).

    Raises `UsageError` if nothing acts at token level, or if ratio 1 is not inside.
    """
    if not has_region(config):
        raise UsageError(
            "this configuration has no region of tokens: it has neither a token rule nor bounded token weights."
        )
    x = log_rollout.double()
    if not bool(_inside_region(config, x, x).all()):
        raise UsageError("this configuration rejects ratio 1, so there is no region around it.")
    ends = torch.cat([torch.full_like(x, FLOOR), torch.zeros_like(x)])
    lower, upper = _boundary(config, x.repeat(2), ends).chunk(2)
    return Region(x, lower, upper)


def _boundary(config: CorrectionConfig, log_rollout: Tensor, end: Tensor) -> Tensor:
    """Return the last log π_old inside, on the way from ratio 1 to `end`; NaN if `end` is inside, too."""
    near, far = log_rollout, end  # inside and outside; bisection
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        keep = _inside_region(config, middle, log_rollout)
        near, far = torch.where(keep, middle, near), torch.where(keep, far, middle)
    return torch.where(_inside_region(config, end, log_rollout), torch.nan, near)


def _inside_region(config: CorrectionConfig, log_old: Tensor, log_rollout: Tensor) -> Tensor:
    """Check which points are inside, (G,) bool. They form a batch of G sequences with one token each."""
    batch = TokenBatch(torch.ones(len(log_old), 1, dtype=torch.bool), log_rollout[:, None], log_old[:, None])
    d = log_ratio(log_old[:, None], log_rollout[:, None], batch.response_mask)
    keep = torch.ones_like(batch.response_mask)
    if config.weights is not None and config.weights.level == "token":
        below, above = config.weights.outside(d)
        keep = ~(below | above)
    for rule in token_rules(config):
        keep = keep & inside(rule, rule_statistic(rule, batch, d))
    return keep[:, 0]


def sequence_bounds(config: CorrectionConfig, lengths: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return bounds on Σ log r of sequences of these lengths, (G,) each.

    Bounds on the product are constant; bounds on the geometric mean grow with the length. Other rules depend on more
    than the sum and are left out.
    """
    length = lengths.double()
    sides = []
    if config.rollout_is in ("sequence", "geometric"):
        sides.append((weight_bounds(config.weights), config.rollout_is == "geometric"))
    for rule in config.rollout_rs:
        if rule.divergence == "k1" and rule.reduce in ("sum", "mean"):
            sides.append((log_bounds(rule), rule.reduce == "mean"))
    scale = {True: length, False: torch.ones_like(length)}
    return [(low * scale[mean], high * scale[mean]) for (low, high), mean in sides]
