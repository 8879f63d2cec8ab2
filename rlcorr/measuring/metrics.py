"""The metrics of a correction: `metrics` turns measured moments into numbers, `describe` says what a number means.

Names are verl's under `rollout_corr/` where verl has the metric, and then the number is verl's. Of rules of k1 verl
measures −log r and we log r, which turns signs, extremes and sides around: ours say `log_ratio_` there. Beside a rule,
`rollout_is_batch_norm_factor` differs, because we normalise after rejection; `describe` says so. Besides, verl
counts rows without tokens in means over sequences, clamps log-ratios to ±20 before it sums k1 but not in `k3_kl`, and
measures bfloat16 in bfloat16.
"""

from collections.abc import Mapping
from typing import TypeVar

from rlcorr.errors import unknown
from rlcorr.measuring.metric_definitions import (
    METRICS,
    OBJECTIVE_METRICS,
    PREFIX,
    PROBABILITY_METRICS,
    RULE_METRICS,
    Metric,
)
from rlcorr.measuring.moments import Measured, RuleMoment
from rlcorr.measuring.quantities import RuleQuantity
from rlcorr.measuring.statistics import Numbers
from rlcorr.rules import RULE_NAMES

Name = TypeVar("Name", bound=str)


def metrics(measured: Measured) -> dict[str, float]:
    """Every metric whose moments were measured, by name. This is where the device is waited for.

    0 where nothing was measured of a quantity, a batch without tokens for instance. Formulas and ranges: `describe`.

    >>> table = torch.tensor([[2.0, 3.0, 5.0, 1.0, 2.0]])  # count, Σd, Σd², min, max of d = 1 and 2
    >>> metrics(Measured(("d",), table))["rollout_corr/log_ratio_mean"]
    1.5
    """
    of_batch: dict[str, Numbers] = {}
    of_rules: dict[str, dict[RuleQuantity, Numbers]] = {}
    for name, row in measured.rows():
        if isinstance(name, RuleMoment):
            of_rules.setdefault(name.rule, {})[name.quantity] = Numbers(*row)
        else:
            of_batch[name] = Numbers(*row)
    report = _read(PROBABILITY_METRICS, of_batch, "") | _read(METRICS, of_batch, PREFIX)
    for rule, of_rule in of_rules.items():
        level = RULE_NAMES[rule][0]
        extremes = of_rule["statistic" if level == "token" else "seq"]
        read = _read(RULE_METRICS, {**of_rule, "extremes": extremes}, "")
        report |= {f"{PREFIX}rollout_rs_{rule}_{_name(rule, key)}": value for key, value in read.items()}
    return report


def _name(rule: str, key: str) -> str:
    """A rule's key, which is not verl's where its number is not."""
    return f"log_ratio_{key}" if RULE_METRICS[key].verl and RULE_NAMES[rule][1] == "k1" else key


def means(measured: Measured) -> dict[str, float]:
    """The mean of everything measured of the batch, by its own name; what was never there is left out. Waits for the
    device.

    >>> means(Measured(("lr_factor",), torch.tensor([[4.0, 2.0, 1.0, 0.5, 0.5]])))
    {'lr_factor': 0.5}
    """
    return {name: row[1] / row[0] for name, row in measured.rows() if isinstance(name, str) and row[0]}


def _read(table: Mapping[str, Metric], moments: Mapping[Name, Numbers], prefix: str) -> dict[str, float]:
    by_name = {str(name): numbers for name, numbers in moments.items()}
    return {
        prefix + key: metric.read(*(by_name[name] for name in (metric.of, *metric.also)))
        for key, metric in table.items()
        if all(name in by_name for name in (metric.of, *metric.also))
    }


def describe(key: str) -> str:
    """What a metric means, its formula, its range, what a bad value tells, and in what verl's number of that name
    differs. Raises `UsageError` for unknown keys.

    >>> print(describe("rollout_corr/log_ratio_mean"))  # doctest: +ELLIPSIS
    mean of d = log π_old − log π_rollout. Formula: mean d. Range: any real number. Bad: growing over steps: ...
    """
    metric, rule = _metric(key)
    allowed = metric.range or "that of the rule's statistic s"
    told = f"{meaning(key)}. Formula: {metric.formula}. Range: {allowed}. Bad: {metric.bad}."
    differs = metric.verl and (not rule or RULE_NAMES[rule][1] == "k1")
    return f"{told} verl's number: {metric.verl}." if differs else told


def meaning(key: str) -> str:
    """What a metric means, in a few words. Raises `UsageError` for unknown keys.

    >>> meaning("rollout_corr/is_ratio_max"), meaning("rollout_corr/rollout_rs_token_k1_masked_fraction")
    ('largest token ratio', 'token_k1: share of the tokens that the rule alone rejects')
    """
    metric, rule = _metric(key)
    return f"{rule}: {metric.meaning}" if rule else metric.meaning


def _metric(key: str) -> tuple[Metric, str]:
    """The metric, and the rule that it is of, or an empty text."""
    name = key.removeprefix(PREFIX)
    table = METRICS | PROBABILITY_METRICS | OBJECTIVE_METRICS
    if name in table:
        return table[name], ""
    for rule in RULE_NAMES:
        suffix = name.removeprefix(f"rollout_rs_{rule}_")
        for key in RULE_METRICS if suffix != name else ():
            if suffix == _name(rule, key):
                return RULE_METRICS[key], rule
    raise unknown("metric", name, METRICS)
