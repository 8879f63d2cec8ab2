"""prime-rl's [trainer.loss] from ours, and its dump. It has two policies: π_θ, which is trained, and π_rollout.

Source: configs/trainer.py of 2026-09, after the pull requests 3418, 3526 and 3586. The loss is −A·w·log π_θ with a
constant w = π_θ/π_rollout, or PPO's clip of that ratio: ipo keeps tokens with |π_θ − π_rollout| ≤ eps, icepop sets w to
0 outside its bounds, cispo clamps it. In the main branch, read on 27 November 2026 (configs/trainer.py,
configs/inference.py and trainer/rl/loss.py), IPO also has score_centering: it subtracts E_q[w ∇log p] over the tokens
that the sampler could draw, with w = 0 for those outside eps. The sum is exact, because top-p or top-k leaves few
tokens and the engine returns the log-probs of all of them.

token_exports/step_N/*.jsonl has arrays over prompt and response, with null for numbers that are not finite. Its
trainer's log-probs are those of π_θ; they are compared with the engine's log-probs, as those of π_old are here. The
files of several ranks are concatenated. They have no version of the weights. The orchestrator's traces have one span
per trace (policy.start and policy.end, the versions when it was sent and when it came back, commit 559b4477), from
which the version of a token cannot be known, so no versions are imported.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.refusals import no_rule, plain, refuse

CAP = 1e4
"""Default of max_importance_ratio, ipo's cap."""
NO_EPS = 1.0
"""The smallest eps at which IPO keeps every token."""
CENTERING = "score_centering"


def to_prime_rl(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the table [trainer.loss]. From `loss` come the clip of ppo and score centering, which only ipo has.

    The expectation of score centering is over the tokens that ipo's rule keeps, which our own trainer does not compute:
    it has score centering without rules. Raises `UsageError` for what prime-rl cannot do.
    """
    loss = loss or LossConfig()
    refuse("prime-rl", config)
    if config.loss_type not in ("reinforce", "ppo_clip", "gpg"):
        raise UsageError(
            f"prime-rl has no loss {config.loss_type}; nearest: reinforce (ipo, icepop, cispo) or ppo_clip."
        )
    table = _ppo_table(config, loss) if config.loss_type == "ppo_clip" else _table(config)
    return _centered(config, table) if loss.score_centering else table


def _centered(config: CorrectionConfig, table: dict[str, Any]) -> dict[str, Any]:
    """Return IPO's table with score centering. Without a rule, IPO with `NO_EPS` has the same weights as cispo."""
    lower, cap = config.rollout_is_threshold_lower, float(config.rollout_is_threshold)
    if table["type"] == "cispo" and lower is None:
        table = {"type": "ipo", "eps": NO_EPS, "max_importance_ratio": cap}
    if table["type"] != "ipo":
        raise UsageError(
            f"prime-rl centers the scores of its ipo, not of {table['type']}; nearest: rollout_is_mode='truncate' "
            f"without rollout_is_threshold_lower."
        )
    return table | {CENTERING: True}


def _table(config: CorrectionConfig) -> dict[str, Any]:
    lower, upper = config.rollout_is_threshold_lower, float(config.rollout_is_threshold)
    if config.rollout_is != "token":
        raise UsageError(
            f"prime-rl's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}."
        )
    if config.rollout_rs:
        rule = _symmetric(config)
        if config.rollout_is_mode == "mask" or lower is not None or not 1 <= upper < math.inf:
            raise UsageError(
                f"prime-rl's ipo has one cap on its weights, ≥ 1 and finite; nearest: {CAP:g}, its default."
            )
        return {"type": "ipo", "eps": float(rule.upper), "max_importance_ratio": upper}
    if config.rollout_is_mode == "mask":
        if lower is None or upper == math.inf:
            raise UsageError("prime-rl's icepop has two finite bounds > 0; nearest: 1e-9 and 1e9 where there is none.")
        return {"type": "icepop", "ratio_low": float(lower), "ratio_high": upper}
    if (lower or 0.0) > 1 or not 1 <= upper < math.inf:
        raise UsageError(
            f"prime-rl's cispo clamps to 0 ≤ low ≤ 1 ≤ high < inf; got {lower} to {upper:g}; nearest: 1e9."
        )
    return {"type": "cispo", "ratio_low": float(lower or 0.0), "ratio_high": upper}


def _symmetric(config: CorrectionConfig) -> RejectionRule:
    """Return the only rule, which must have bounds −eps and eps. Raises `UsageError` for others."""
    rule, *more_rules = config.rollout_rs
    if more_rules or rule.name != "token_prob_diff" or rule.lower is None or rule.lower != -rule.upper:
        refused = more_rules[0] if more_rules and rule.name == "token_prob_diff" else rule
        raise no_rule(
            "prime-rl", refused, "token_prob_diff from −eps to eps alone (ipo), or rollout_is_mode='mask' (icepop)"
        )
    return rule


def _ppo_table(config: CorrectionConfig, loss: LossConfig) -> dict[str, Any]:
    if config.rollout_rs:
        raise no_rule("prime-rl's ppo", config.rollout_rs[0], "loss_type='reinforce' with token_prob_diff, its ipo")
    low, high = (plain(1 + x) for x in (-loss.clip_ratio_low, loss.clip_ratio_high))
    if not 0 < low <= 1 <= high:
        raise UsageError(f"prime-rl's ppo clips to 0 < low ≤ 1 ≤ high; got {low:g} to {high:g}; nearest: 0.8 to 1.2.")
    return {"type": "ppo", "ratio_low": low, "ratio_high": high}
