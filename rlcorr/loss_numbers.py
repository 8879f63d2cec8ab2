"""The numbers of single policy losses: default, allowed values and meaning of each.

`LossConfig.numbers` replaces defaults, and the trainer's option `--loss.numbers cppo_delta 0.3` sets it. Names and
defaults are those of the systems that have the losses; dppo_ratio_cap has the value that verl documents.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rlcorr.errors import UsageError, unknown
from rlcorr.validated import check, is_number

TESTS = {
    "but no NaN": lambda x: x == x,
    "≥ 0": lambda x: x >= 0,
    "> 0": lambda x: x > 0,
    "> 1": lambda x: x > 1,
    "between 0 and 1": lambda x: 0 <= x <= 1,
}


class LossNumber(NamedTuple):
    """A number of one policy loss."""

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
"""Name of a number → its record."""


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
