"""Where a configuration lets tokens be: the π_old that it leaves alone, for every π_rollout.

Found by asking the rules themselves, at places between ratio 1 and the ends of the axis; nothing is derived again.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import between
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.ratios import log_ratio
from rlcorr.rejection import inside, log_bounds, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

FLOOR = -18.0
"""Log-probs are looked at down to here, 1.5e-8: within the clamp of ±20 on log-ratios."""
HALVINGS = 32
"""A boundary is found to 18/2³² = 4e-9, in logarithms."""

TOKEN_METHODS: dict[str, CorrectionConfig] = {
    "TIS": preset("decoupled_token_is"),
    "IcePop": preset("decoupled_token_icepop"),
    "KPop": preset("decoupled_token_kpop"),
    "DPPO": preset("prime_rl_dppo"),
    "k3": CorrectionConfig(rollout_rs=(RejectionRule.named("token_k3", upper=0.01),)),
    "signed KL": CorrectionConfig(rollout_rs=(RejectionRule.named("token_signed_kl", lower=-0.05, upper=0.05),)),
}
"""One of each kind, with the numbers of its preset; k3 with verl's for sequences, signed KL with those of its
dppo_kl."""
SEQUENCE_METHODS: dict[str, CorrectionConfig] = {
    "product": preset("skyrl_product_mask"),
    "geometric mean": preset("decoupled_geo_rs"),
}


@dataclass(frozen=True)
class Region:
    """Bounds on log π_old at each log π_rollout, (G,); NaN where nothing between FLOOR, or 0, and ratio 1 is out."""

    log_rollout: Tensor
    lower: Tensor
    upper: Tensor


def token_rules(config: CorrectionConfig) -> list[RejectionRule]:
    return [rule for rule in config.rollout_rs if rule.level == "token"]


def bounds_weights(config: CorrectionConfig) -> bool:
    """Whether token weights have a bound."""
    bounded = math.isfinite(config.rollout_is_threshold) or config.rollout_is_threshold_lower is not None
    return config.rollout_is == "token" and bounded


def has_region(config: CorrectionConfig) -> bool:
    """Whether the configuration looks at single tokens: rules of that level, or bounds on token weights."""
    return bool(token_rules(config)) or bounds_weights(config)


def region(config: CorrectionConfig, log_rollout: Tensor) -> Region:
    """Where a token (log π_rollout (G,), log π_old) keeps its own ratio as its weight and passes every token rule.

    Rules that concern some advantages only are drawn as for those. Statistics grow away from ratio 1 on both sides, so
    one boundary on each is enough. Raises `UsageError` without anything at token level, or if ratio 1 is not inside.
    """
    if not has_region(config):
        raise UsageError("this configuration looks at no single token: it has neither a token rule nor token weights.")
    at = log_rollout.double()
    if not bool(_untouched(config, at, at).all()):
        raise UsageError("this configuration rejects ratio 1: its bounds enclose no region around it.")
    ends = torch.cat([torch.full_like(at, FLOOR), torch.zeros_like(at)])
    lower, upper = _boundary(config, at.repeat(2), ends).chunk(2)
    return Region(at, lower, upper)


def _boundary(config: CorrectionConfig, log_rollout: Tensor, end: Tensor) -> Tensor:
    """The last log π_old inside, on the way from ratio 1 to `end`; NaN where that is inside, too."""
    near, far = log_rollout, end
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        keep = _untouched(config, middle, log_rollout)
        near, far = torch.where(keep, middle, near), torch.where(keep, far, middle)
    return torch.where(_untouched(config, end, log_rollout), torch.nan, near)


def _untouched(config: CorrectionConfig, log_old: Tensor, log_rollout: Tensor) -> Tensor:
    """(G,) bool. A batch of G sequences of one token."""
    batch = TokenBatch(torch.ones(len(log_old), 1, dtype=torch.bool), log_rollout[:, None], log_old[:, None])
    d = log_ratio(log_old[:, None], log_rollout[:, None], batch.response_mask)
    keep = torch.ones_like(batch.response_mask)
    if config.rollout_is == "token":
        keep = between(d, config.rollout_is_threshold_lower, config.rollout_is_threshold)
    for rule in token_rules(config):
        keep = keep & inside(rule, rule_statistic(rule, batch, d))
    return keep[:, 0]


def sequence_bounds(config: CorrectionConfig, lengths: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Bounds on Σ log r of sequences of these lengths, (G,) each: of weights and rules on the product, which stay, and
    on the geometric mean, which grow with the length. Other rules see more of a sequence than its sum."""
    length = lengths.double()
    sides = []
    if config.rollout_is in ("sequence", "geometric"):
        lower = config.rollout_is_threshold_lower
        edges = (-math.inf if lower is None else math.log(lower), math.log(config.rollout_is_threshold))
        sides.append((edges, config.rollout_is == "geometric"))
    for rule in config.rollout_rs:
        if rule.divergence == "k1" and rule.reduce in ("sum", "mean"):
            sides.append((log_bounds(rule), rule.reduce == "mean"))
    scale = {True: length, False: torch.ones_like(length)}
    return [(low * scale[mean], high * scale[mean]) for (low, high), mean in sides]
