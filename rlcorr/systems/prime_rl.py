"""prime-rl's [trainer.loss] as ours and back, and its dump. It has two policies: π_θ, which is trained, and π_rollout.

Version "2026-09": the default is IPO with eps 0.3 (pull requests 3418, 3526, 3586, and configs/trainer.py after them).
Version "2026-08": commit 559b4477. The default was DPPO, and the loss had a squared log-ratio as an additional term.
Version "main": files of the main branch from after 17 September 2026, whose commit is not known; they were read on 27
November 2026 (configs/trainer.py, configs/inference.py and trainer/rl/loss.py). As 2026-09, but IPO has
score_centering: it subtracts E_q[w ∇log p] over the tokens that the sampler could draw, with w = 0 for those outside
eps. The sum is exact, because top-p or top-k leaves few tokens and the engine returns the log-probs of all of them.

token_exports/step_N/*.jsonl has arrays over prompt and response, with null for numbers that are not finite. Its
trainer's log-probs are those of π_θ; they are compared with the engine's log-probs, as those of π_old are here. The
files of several ranks are concatenated. They have no version of the weights. The orchestrator's traces have one span
per trace (policy.start and policy.end, the versions when it was sent and when it came back, commit 559b4477), from
which the version of a token cannot be known, so no versions are imported.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.dumps import Dump
from rlcorr.systems.mapping.keys import choice, known_keys, names_of_other_versions, number, options, switch, version_of
from rlcorr.systems.mapping.refusals import is_unbounded, no_rule, refuse_centering, refuse_normalised
from rlcorr.systems.mapping.serialize import as_toml, commented

DUMP = Dump(columns=frozenset({"inference_logprobs", "trainer_logprobs"}), mask_over_dummy="loss_mask")

VERSIONS = ("2026-09", "main", "2026-08")
CAP = 1e4
"""Default of max_importance_ratio."""
NO_EPS = 1.0
"""The smallest eps at which IPO keeps every token."""
FIELDS: dict[str, dict[str, float]] = {
    "ipo": {"eps": 0.3, "max_importance_ratio": CAP},
    "icepop": {"ratio_low": 0.2, "ratio_high": 5.0},
    "ppo": {"ratio_low": 0.8, "ratio_high": 1.2, "max_importance_ratio": CAP},
    "cispo": {"ratio_low": 0.0, "ratio_high": 5.0},
}
FIELDS_2026_08: dict[str, dict[str, float]] = {
    "default": {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "kl_tau": 1e-3},
    "ipo": {"ipo_threshold": 0.1, "kl_tau": 1e-3},
}
CENTERING = "score_centering"
NEEDS = "score_centering needs truncated sampling: orchestrator.train.sampling.top_p below 1, or its top_k, at most 512"
_TABLES = {"2026-09": FIELDS, "main": FIELDS, "2026-08": FIELDS_2026_08}
_NAMES = {version: sorted({name for kind in table.values() for name in kind}) for version, table in _TABLES.items()}
_NAMES["main"] = [*_NAMES["main"], CENTERING]
_LEGACY = (
    "ratio_type", "token_mask_low", "token_mask_high", "sequence_clip_high", "geo_mask_low", "geo_mask_high",
    "sequence_mask_low", "sequence_mask_high",
)  # fmt: skip
RETIRED = dict.fromkeys(
    _LEGACY,
    "prime-rl lost its ratio masks with pull request 1930; the preset prime_rl_legacy_masks has them, and type icepop "
    "with ratio_low and ratio_high is nearest today",
)
_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}
_RESPONSE_KL = LossConfig(kl_loss_tokens="response")
"""KL terms act on every token of loss_mask, including those that the loss's own mask drops."""


def from_prime_rl(source: Any, *, version: str = "2026-09") -> tuple[CorrectionConfig, LossConfig]:
    """Return the correction and the loss's numbers of the table [trainer.loss].

    `source` is a mapping, with or without `trainer` and `loss` around it, or prime-rl's own loss config. The losses are
    −A·w·log π_θ with a constant w = π_θ/π_rollout, or PPO's clip of that ratio:

    - ipo keeps tokens with |π_θ − π_rollout| ≤ eps; two probabilities never differ by more than 1. In version "main",
      score_centering: true is a part of the loss that is returned.
    - default (DPPO) tests only tokens that the update moves further away.
    - icepop sets w to 0 outside its bounds, cispo clamps it.
    - kl_tau·(log ratio)² of every token of loss_mask is 2·kl_tau times k2.

    Raises `UsageError` for unknown keys, types and versions, and for adv_tau other than 1, which scales advantages.
    """
    recent = version_of("prime-rl", version, VERSIONS) != "2026-08"
    table = _TABLES[version]
    retired = RETIRED | names_of_other_versions("prime-rl", version, _NAMES)
    source = options("prime-rl's loss", source, ("trainer", "loss"), retired)
    source = source if isinstance(source, Mapping) else dict(vars(source))
    kind = source.get("type", "ipo" if recent else "default")
    for other in VERSIONS:
        if kind not in table and kind in _TABLES[other]:
            raise UsageError(f"type {kind!r} is a loss of prime-rl {other}: read it with version={other!r}.")
    kind = choice("type of prime-rl's loss", kind, table)
    centering = (CENTERING,) if version == "main" and kind == "ipo" else ()
    known_keys(f"prime-rl's loss {kind}", source, ("type", "adv_tau", *table[kind], *centering))
    if number("adv_tau", source.get("adv_tau", 1.0)) != 1:
        raise UsageError(f"adv_tau must be 1: it scales the advantages, not the correction; got {source['adv_tau']!r}.")
    values = {name: number(name, source.get(name, default)) for name, default in table[kind].items()}
    if not recent:
        return _read_2026_08(kind, values)
    config, loss = _read(kind, values)
    return config, replace(loss, score_centering=switch(CENTERING, source.get(CENTERING, False)))


def _read(kind: str, values: Mapping[str, float]) -> tuple[CorrectionConfig, LossConfig]:
    if kind == "ipo":
        eps, cap = values["eps"], values["max_importance_ratio"]
        rules = (RejectionRule.named("token_prob_diff", lower=-eps, upper=eps),) if eps < NO_EPS else ()
        return CorrectionConfig(rollout_is_threshold=cap, rollout_rs=rules, **_PG), _RESPONSE_KL
    low, high = values["ratio_low"], values["ratio_high"]
    if kind == "ppo":
        if values["max_importance_ratio"] != CAP:
            raise UsageError("max_importance_ratio of prime-rl's ppo has no counterpart; nearest: its default, 1e4.")
        numbers = replace(
            _RESPONSE_KL, clip_ratio_low=float(f"{1 - low:.12g}"), clip_ratio_high=float(f"{high - 1:.12g}")
        )
        return CorrectionConfig(bypass_mode=True), numbers
    mode: Any = "mask" if kind == "icepop" else "truncate"
    weights = {"rollout_is_mode": mode, "rollout_is_threshold": high, "rollout_is_threshold_lower": low or None}
    return CorrectionConfig(**weights, **_PG), _RESPONSE_KL


def _read_2026_08(kind: str, values: Mapping[str, float]) -> tuple[CorrectionConfig, LossConfig]:
    if kind == "ipo":
        rule = RejectionRule.named("token_prob_diff", lower=-values["ipo_threshold"], upper=values["ipo_threshold"])
    else:
        low, high = -values["dppo_mask_low"], values["dppo_mask_high"]
        rule = RejectionRule.named("token_prob_diff_outward", lower=low, upper=high)
    tau = values["kl_tau"]
    config = CorrectionConfig(rollout_is_threshold=math.inf, rollout_rs=(rule,), **_PG)
    return config, squared_log_ratio(tau) if tau else _RESPONSE_KL


def squared_log_ratio(tau: float) -> LossConfig:
    """Return the loss with the term τ·(log π_θ/π_rollout)², averaged over all tokens of loss_mask in the batch.

    Tokens that a mask drops from the policy loss are included. The coefficient is 2τ, because k2 is half the square.

    >>> squared_log_ratio(1e-3).rollout_kl_loss_coef
    0.002
    """
    return replace(
        _RESPONSE_KL,
        use_rollout_kl_loss=True,
        rollout_kl_loss_coef=2 * tau,
        rollout_kl_estimator_type="k2",
        rollout_kl_loss_agg_mode="token-mean",
    )


def to_prime_rl(
    config: CorrectionConfig, loss: LossConfig | None = None, *, version: str = "2026-09"
) -> dict[str, Any]:
    """Return the table [trainer.loss]. From `loss` come the clip of ppo and, for version 2026-08, the rollout KL loss.

    Version "main" also has score centering, for ipo. Its expectation is over the tokens that ipo's rule keeps, which
    our own trainer does not compute: it has score centering without rules.

    Raises `UsageError` for what prime-rl cannot do.
    """
    version_of("prime-rl", version, VERSIONS)
    loss = loss or LossConfig()
    if version != "main":
        refuse_centering("prime-rl", loss)
    refuse_normalised("prime-rl", config)
    if not config.bypass_mode:
        raise UsageError("prime-rl compares π_θ with π_rollout; nearest: bypass_mode=True with loss_type='reinforce'.")
    if config.denominator == "kept":
        raise UsageError("prime-rl divides by all response tokens; nearest: denominator='fixed'.")
    if config.loss_type not in ("reinforce", "ppo_clip", "gpg"):
        raise UsageError(
            f"prime-rl has no loss {config.loss_type}; nearest: reinforce (ipo, icepop, cispo) or ppo_clip."
        )
    if loss.use_kl_loss:
        raise UsageError("prime-rl's [trainer.loss] has no KL to a reference; nearest: use_kl_loss=False.")
    if version == "2026-08":
        return _table_2026_08(config, loss)
    if loss.use_rollout_kl_loss:
        raise UsageError("prime-rl has no KL term since pull request 3586; nearest: version='2026-08', kl_tau.")
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
    low, high = (float(f"{1 + x:.12g}") for x in (-loss.clip_ratio_low, loss.clip_ratio_high))
    if not 0 < low <= 1 <= high:
        raise UsageError(f"prime-rl's ppo clips to 0 < low ≤ 1 ≤ high; got {low:g} to {high:g}; nearest: 0.8 to 1.2.")
    return {"type": "ppo", "ratio_low": low, "ratio_high": high}


def _table_2026_08(config: CorrectionConfig, loss: LossConfig) -> dict[str, Any]:
    if not is_unbounded(config) or config.loss_type == "ppo_clip" or len(config.rollout_rs) != 1:
        raise UsageError("prime-rl of 2026-08 has raw token ratios and one rule on π_θ − π_rollout; nearest: its ipo.")
    rule = config.rollout_rs[0]
    if loss.use_rollout_kl_loss and loss.rollout_kl_estimator_type not in ("k2", "mse"):
        raise UsageError("prime-rl's KL term is the squared log-ratio; nearest: rollout_kl_estimator_type='k2'.")
    if loss.use_rollout_kl_loss and loss.rollout_kl_loss_agg_mode != "token-mean":
        raise UsageError(
            f"prime-rl divides its KL term by the tokens of the batch; nearest: rollout_kl_loss_agg_mode='token-mean'; "
            f"got {loss.rollout_kl_loss_agg_mode!r}."
        )
    tau = loss.rollout_kl_loss_coef / 2 if loss.use_rollout_kl_loss else 0.0
    if rule.name == "token_prob_diff_outward" and rule.lower is not None and rule.lower <= 0 <= rule.upper <= 1:
        return {"type": "default", "dppo_mask_low": -rule.lower, "dppo_mask_high": float(rule.upper), "kl_tau": tau}
    return {"type": "ipo", "ipo_threshold": float(_symmetric(config).upper), "kl_tau": tau}


def prime_rl_text(config: CorrectionConfig, loss: LossConfig | None = None, *, version: str = "2026-09") -> str:
    """Return the table as TOML. Raises `UsageError` as `to_prime_rl` does."""
    table = to_prime_rl(config, loss, version=version)
    return commented(as_toml("trainer.loss", table), [f"prime-rl {version}", *[NEEDS] * (CENTERING in table)])
