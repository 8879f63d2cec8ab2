"""Configuration of corrections and losses. A wrong value raises `UsageError` at construction.

Rejection rules, a part of a correction, are in `rules`. r = π_old/π_rollout and d = log r, per token. In bypass mode
π_θ takes the place of π_old.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rlcorr.errors import UsageError, booleans, check, is_number, member, number, unknown
from rlcorr.rules import RejectionRule
from rlcorr.weights import LEVELS, WeightMode, Weights

LossType = Literal[
    "ppo_clip", "dual_clip", "reinforce", "gpg", "gspo", "cispo", "sapo", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov",
    "kl_cov", "drpo", "vespo", "fipo", "cppo", "ctpo",
]  # fmt: skip
Denominator = Literal["fixed", "kept"]
KLTokens = Literal["kept", "response"]
Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

UNCLIPPED: tuple[LossType, ...] = ("reinforce", "gpg")
"""Losses that contain no ratio. In bypass mode only these may have importance weights; others would correct twice."""
KL_ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
"""verl's names of the KL estimators → ours."""
KL_ESTIMATORS = tuple(name + suffix for suffix in ("", "+") for name in ("k1", "abs", "k2", "k3", *KL_ALIASES))


@dataclass(frozen=True)
class CorrectionConfig:
    """What to do because π_old ≠ π_rollout: weight tokens, reject tokens, both, or only measure.

    Field names are verl's if verl has the field.
    """

    rollout_is: str | None = None
    """Level of the importance weights, a name in `LEVELS`: token, sequence (product of ratios), geometric mean, or
    prefix (product of the ratios up to the token). None: no weights."""
    rollout_is_threshold: float = 2.0
    """Upper bound on the weight. inf: no bound."""
    rollout_is_threshold_lower: float | None = None
    """Lower bound on the weight. None: no bound."""
    rollout_is_mode: WeightMode = "truncate"
    """truncate: a weight outside the bounds becomes the nearest bound (TIS). mask: it becomes 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the kept tokens (self-normalised importance sampling)."""
    rollout_rs: tuple[RejectionRule, ...] = field(default_factory=tuple)
    """Rejection rules. A token must pass all of them."""
    bypass_mode: bool = False
    """False: three policies, and π_old is recomputed. True: two policies, and the loss compares π_θ with π_rollout."""
    loss_type: LossType = "ppo_clip"
    """Policy loss. verl's bypass mode has only ppo_clip and reinforce."""
    denominator: Denominator = "fixed"
    """Average the loss over all response tokens (fixed) or over the kept tokens only (kept)."""

    def __post_init__(self) -> None:
        self._weights_at("token" if self.rollout_is is None else self.rollout_is)  # checks level, bounds and mode
        member("loss_type", self.loss_type, LossType)
        member("denominator", self.denominator, Denominator)
        booleans(self, "rollout_is_batch_normalize", "bypass_mode")
        if not isinstance(self.rollout_rs, tuple) or not all(isinstance(r, RejectionRule) for r in self.rollout_rs):
            raise UsageError(f"rollout_rs must be a tuple of RejectionRule; got {self.rollout_rs!r}.")
        names = [rule.name for rule in self.rollout_rs]
        if len(set(names)) < len(names):
            raise UsageError(f"each rejection rule may appear once; got {', '.join(names)}.")
        self._check_combination()

    def _check_combination(self) -> None:
        if self.rollout_is is None and self.rollout_is_batch_normalize:
            raise UsageError("rollout_is_batch_normalize has nothing to normalise: rollout_is is None.")
        if self.loss_type == "reinforce" and not self.bypass_mode:
            raise UsageError("loss_type='reinforce' needs bypass_mode=True: decoupled, gpg is the loss without a clip.")
        if self.bypass_mode and self.rollout_is is not None and self.loss_type not in UNCLIPPED:
            raise UsageError(
                f"double correction: in bypass mode {self.loss_type} already contains π_θ/π_rollout, so rollout_is "
                f"must be None; got {self.rollout_is!r}. Importance weights go with {' or '.join(UNCLIPPED)}."
            )

    def explain(self) -> str:
        """Explain in plain words what this configuration does."""
        return " ".join([_explain_weights(self), *(rule.explain() for rule in self.rollout_rs), _explain_loss(self)])

    @property
    def weights(self) -> Weights | None:
        """Return the importance weights; None if there are none."""
        return None if self.rollout_is is None else self._weights_at(self.rollout_is)

    def _weights_at(self, level: str) -> Weights:
        bounds = self.rollout_is_threshold, self.rollout_is_threshold_lower
        return Weights(level, *bounds, self.rollout_is_mode, self.rollout_is_batch_normalize)

    @property
    def needs_advantages(self) -> bool:
        """Check whether a rule reads the sign of the advantage."""
        return any(rule.applies_to != "all" for rule in self.rollout_rs)


TESTS = {
    "but no NaN": lambda x: x == x,
    "≥ 0": lambda x: x >= 0,
    "> 0": lambda x: x > 0,
    "> 1": lambda x: x > 1,
    "between 0 and 1": lambda x: 0 <= x <= 1,
}


class LossNumber(NamedTuple):
    """A number of one policy loss: default, allowed values and meaning.

    Names and defaults are those of the systems that have the losses; dppo_ratio_cap has the value that verl documents.
    """

    default: float
    allowed: str  # a key of `TESTS`
    meaning: str


NUMBERS = {
    "clip_ratio_c": LossNumber(3.0, "> 1", "dual_clip: if A < 0, the loss is at most c·|A| (arXiv:1912.09729)"),
    "dppo_ratio_cap": LossNumber(20.0, "> 1", "dppo_tv, dppo_kl: cap on the detached ratio that multiplies log π_θ"),
    "tau_pos": LossNumber(1.0, "> 0", "sapo: temperature of the gate if A > 0"),
    "tau_neg": LossNumber(1.05, "> 0", "sapo: temperature of the gate if A ≤ 0"),
    "clip_cov_ratio": LossNumber(2e-4, "between 0 and 1", "clip_cov: share of the tokens whose gradient is dropped"),
    "clip_cov_lb": LossNumber(1.0, "but no NaN", "clip_cov: smallest covariance that may be dropped"),
    "clip_cov_ub": LossNumber(5.0, "but no NaN", "clip_cov: largest covariance that may be dropped"),
    "kl_cov_ratio": LossNumber(2e-4, "between 0 and 1", "kl_cov: share of the tokens that get the penalty"),
    "ppo_kl_coef": LossNumber(0.1, "≥ 0", "kl_cov: weight of |log ρ|"),
    "drpo_epsilon": LossNumber(12.5, "> 0", "drpo: gap π_θ − π_old without a gradient; with 1 or more there is none"),
    "vespo_k_pos": LossNumber(2.0, "≥ 0", "vespo: exponent of the product of ratios if A ≥ 0"),
    "vespo_lambda_pos": LossNumber(3.0, "≥ 0", "vespo: decay in that product if A ≥ 0"),
    "vespo_k_neg": LossNumber(3.0, "≥ 0", "vespo: exponent of the product of ratios if A < 0"),
    "vespo_lambda_neg": LossNumber(2.0, "≥ 0", "vespo: decay in that product if A < 0"),
    "fipo_decay_rate": LossNumber(32.0, "> 0", "fipo: the weight of a later token halves every so many tokens"),
    "fipo_clip_range": LossNumber(0.2, "between 0 and 1", "fipo: upper bound of the weight, minus 1"),
    "fipo_clip_low": LossNumber(0.0, "between 0 and 1", "fipo: 1 minus the lower bound of the weight"),
    "fipo_safety_threshold": LossNumber(4.0, "> 0", "fipo: if A < 0 and the ratio is above, the weight is at most 1"),
    "cppo_delta": LossNumber(0.2, "≥ 0", "cppo: largest move of π_θ from π_old at the first token"),
    "cppo_w_min": LossNumber(0.8, "between 0 and 1", "cppo: weight of the last token's move; the first token's is 1"),
    "cppo_delta_b": LossNumber(0.02, "≥ 0", "cppo: mean move of earlier tokens above which later ones may move less"),
    "ctpo_clip_low": LossNumber(0.025, "> 0", "ctpo: lower clip of the log of the product of ratios, first token"),
    "ctpo_clip_high": LossNumber(0.05, "> 0", "ctpo: upper clip of that log at the first token"),
    "ctpo_clip_c": LossNumber(0.05, "> 0", "ctpo: if A < 0, the loss is at most |A| e^c at the first token"),
    "ctpo_power": LossNumber(0.5, "≥ 0", "ctpo: power of the position with which the three numbers above grow"),
}
"""Name of a number → its record. `LossConfig.numbers` replaces defaults, and the trainer's option
`--loss.numbers cppo_delta 0.3` sets it."""


def check_numbers(numbers: Mapping[str, float]) -> None:
    """Raise `UsageError` for an unknown name, or a number that is not allowed."""
    for name, value in numbers.items():
        if name not in NUMBERS:
            raise unknown("number of a loss", name, NUMBERS)
        allowed = NUMBERS[name].allowed
        check(is_number(value) and TESTS[allowed](value), name, value, f"a number {allowed}")
    low, high = (numbers.get(name, NUMBERS[name].default) for name in ("clip_cov_lb", "clip_cov_ub"))
    if low > high:
        raise UsageError(f"clip_cov_lb {low} is above clip_cov_ub {high}.")


@dataclass(frozen=True)
class LossConfig:
    """Hyperparameters of the policy losses and their KL terms.

    Names and defaults are verl's and SkyRL's, except that the default of kl_loss_type is ours. The names kl_loss_tokens
    and rollout_kl_loss_agg_mode are ours, because systems differ in these points without naming them.
    """

    clip_ratio_low: float = 0.2
    """Width of the trust region below 1 (ppo_clip, gspo, cispo, geo_mean), or below 0 (dppo_tv, dppo_kl)."""
    clip_ratio_high: float = 0.2
    """Width of the trust region above 1, or above 0."""
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Numbers of single losses that replace their defaults, such as cppo_delta 0.3. `NUMBERS` has all."""
    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of the tokens become one number."""
    loss_scale_factor: float | None = None
    """seq-mean-token-sum-norm: divisor of each sequence's sum. Dr. GRPO divides by the longest response that may be
    generated, which is the trainer's default. None: the number of columns T, which is that length only if every batch
    is padded to it. If a batch is padded to its own longest answer, the weight of an answer depends on the others."""
    score_centering: bool = False
    """Subtract the score that the sampler's distribution has on average at each position, E_q[w ∇log p], from the score
    of each token: an update then follows no direction that only comes from sampling with another policy
    (arXiv:2609.20807). Needs the log-probs of the sampler's likeliest tokens."""
    use_kl_loss: bool = False
    """Add kl_loss_coef · KL to the reference model."""
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "k2"
    """Estimator of that term. k2 is the one whose gradient is the gradient of the KL."""
    kl_loss_tokens: KLTokens = "kept"
    """Tokens of that term. kept: those that no rule rejected, as in ROLL and in verl, which rewrites the response mask
    before the update. response: all, as in SkyRL, prime-rl, TRL, OpenRLHF and verl's bypass mode."""
    use_rollout_kl_loss: bool = False
    """Add rollout_kl_loss_coef · KL to π_rollout. It keeps the trainer close to the engine instead of correcting, and
    acts on every response token, rejected or not, because rejected tokens are those that drift most."""
    rollout_kl_loss_coef: float = 0.0
    rollout_kl_estimator_type: str = "k2"
    """Estimator of that term. Beware of k3: on a token that π_θ has made unlikely its gradient grows with e^(−δ), and
    no rule removes such a token from this term."""
    rollout_kl_loss_agg_mode: Aggregation = "seq-mean-token-mean"
    """Aggregation of that term, independent of loss_agg_mode and denominator. seq-mean-token-mean: as in SkyRL's pull
    request 1811, which also counts rows without a token. token-mean: as in prime-rl's kl_tau until 2026-08."""

    def __post_init__(self) -> None:
        for name in ("loss_agg_mode", "rollout_kl_loss_agg_mode"):
            member(name, getattr(self, name), Aggregation)
        member("kl_loss_tokens", self.kl_loss_tokens, KLTokens)
        booleans(self, "score_centering", "use_kl_loss", "use_rollout_kl_loss")
        for name in ("clip_ratio_low", "clip_ratio_high", "kl_loss_coef", "rollout_kl_loss_coef"):
            number(self, name, "≥ 0", lambda x: x >= 0)
        check_numbers(self.numbers)
        changed = {name: x for name, x in self.numbers.items() if x != NUMBERS[name].default}
        object.__setattr__(self, "numbers", changed)  # so that a default that is given is equal to one that is not
        if self.loss_scale_factor is not None:
            number(self, "loss_scale_factor", "> 0", lambda x: x > 0)
        for name in ("kl_loss_type", "rollout_kl_estimator_type"):
            if getattr(self, name) not in KL_ESTIMATORS:
                raise unknown(name, str(getattr(self, name)), KL_ESTIMATORS)
        if self.use_rollout_kl_loss and self.rollout_kl_loss_coef == 0:
            raise UsageError("use_rollout_kl_loss does nothing with rollout_kl_loss_coef=0; give a positive number.")

    def number(self, name: str) -> float:
        """Return a number of a single loss, a name in `NUMBERS`: the one in `numbers`, or its default."""
        return self.numbers.get(name, NUMBERS[name].default)


def _explain_weights(config: CorrectionConfig) -> str:
    if config.rollout_is is None:
        return "No importance weights: every token counts with weight 1."
    ratio = LEVELS[config.rollout_is].subject.format(ratio=_ratio(config))
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    normal = " Weights are divided by their mean over the kept tokens." if config.rollout_is_batch_normalize else ""
    if lower is None and upper == math.inf:
        return f"Each token is weighted by {ratio}, without a bound.{normal}"
    outside = f"above {upper:g}" if lower is None else f"outside [{lower:g}, {upper:g}]"
    effect = f"becomes {upper:g}" if lower is None else "becomes the nearer bound"
    effect = effect if config.rollout_is_mode == "truncate" else "becomes 0"
    return f"Each token is weighted by {ratio}; a weight {outside} {effect}.{normal}"


def _ratio(config: CorrectionConfig) -> str:
    return "π_θ/π_rollout" if config.bypass_mode else "π_old/π_rollout"


def _explain_loss(config: CorrectionConfig) -> str:
    ratio = "π_θ/π_rollout directly (bypass)" if config.bypass_mode else "π_θ/π_old"
    if config.loss_type in UNCLIPPED:
        loss = f"The policy gradient {config.loss_type} is taken without clipping"
        loss += ", with π_θ in the place of π_old (bypass)" if config.bypass_mode else ""
    elif config.loss_type == "ppo_clip":
        loss = f"PPO clips {ratio}"
    else:
        loss = f"The loss {config.loss_type} takes {ratio}"
    tokens = "all response tokens" if config.denominator == "fixed" else "the kept tokens only"
    return f"{loss}; the loss is averaged over {tokens}."
