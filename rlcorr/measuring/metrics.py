"""The metrics of a correction: `metrics` turns measured moments into numbers, `describe` explains a metric.

If verl has a metric, it has verl's name under `rollout_corr/` and verl's value. The exceptions:

- For rules of k1 verl measures −log r and we measure log r, so signs, extremes and sides are swapped. The names of
  these metrics contain `log_ratio_`.
- With a rejection rule `rollout_is_batch_norm_factor` differs, because we normalise after rejection (see `describe`).
- verl includes rows without tokens in means over sequences, clamps log-ratios to ±20 before it sums k1 but not in
  `k3_kl`, and measures bfloat16 in bfloat16.
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
from rlcorr.measuring.moments import MomentTable, RuleKey
from rlcorr.measuring.quantities import RuleQuantity
from rlcorr.measuring.statistics import HostMoments
from rlcorr.rules import RULE_NAMES

Name = TypeVar("Name", bound=str)


def metrics(measured: MomentTable) -> dict[str, float]:
    """Compute every metric whose moments were measured, by name. Waits for the device.

    A metric is 0 if its quantity has no values, for instance in a batch without tokens. `describe` gives formulas and
    ranges.

    >>> table = torch.tensor([[2.0, 3.0, 5.0, 1.0, 2.0]])  # count, Σd, Σd², min, max of d = 1 and 2
    >>> metrics(MomentTable(("d",), table))["rollout_corr/log_ratio_mean"]
    1.5
    """
    quantities: dict[str, HostMoments] = {}
    rule_quantities: dict[str, dict[RuleQuantity, HostMoments]] = {}
    for name, row in measured.rows():
        if isinstance(name, RuleKey):
            rule_quantities.setdefault(name.rule, {})[name.quantity] = HostMoments(*row)
        else:
            quantities[name] = HostMoments(*row)
    numbers = _read(PROBABILITY_METRICS, quantities, "") | _read(METRICS, quantities, PREFIX)
    for rule, moments in rule_quantities.items():
        level = RULE_NAMES[rule][0]
        extremes = moments["statistic" if level == "token" else "seq"]
        read = _read(RULE_METRICS, {**moments, "extremes": extremes}, "")
        numbers |= {f"{PREFIX}rollout_rs_{rule}_{_name(rule, key)}": value for key, value in read.items()}
    return numbers


def _name(rule: str, key: str) -> str:
    """Return the name of a rule's metric. It is not verl's name if the value is not verl's."""
    return f"log_ratio_{key}" if RULE_METRICS[key].verl and RULE_NAMES[rule][1] == "k1" else key


def means(measured: MomentTable) -> dict[str, float]:
    """Return the mean of every quantity of the batch, by name, except those without values. Waits for the device.

    >>> means(MomentTable(("lr_factor",), torch.tensor([[4.0, 2.0, 1.0, 0.5, 0.5]])))
    {'lr_factor': 0.5}
    """
    return {name: row[1] / row[0] for name, row in measured.rows() if isinstance(name, str) and row[0]}


def _read(table: Mapping[str, Metric], moments: Mapping[Name, HostMoments], prefix: str) -> dict[str, float]:
    by_name = {str(name): host_moments for name, host_moments in moments.items()}
    return {
        prefix + key: metric.read(*(by_name[name] for name in (metric.quantity, *metric.also)))
        for key, metric in table.items()
        if all(name in by_name for name in (metric.quantity, *metric.also))
    }


def describe(key: str) -> str:
    """Explain a metric: meaning, formula, range, bad values, and how verl's number of that name differs if it does.

    Raises `UsageError` for an unknown name.

    >>> print(describe("rollout_corr/log_ratio_mean"))  # doctest: +ELLIPSIS
    mean of d = log π_old − log π_rollout. Formula: mean d. Range: any real number. Bad: growing over steps: ...
    """
    metric, rule = _metric(key)
    allowed = metric.range or "that of the rule's statistic s"
    text = f"{meaning(key)}. Formula: {metric.formula}. Range: {allowed}. Bad: {metric.bad}."
    differs = metric.verl and (not rule or RULE_NAMES[rule][1] == "k1")
    return f"{text} verl's number: {metric.verl}." if differs else text


def meaning(key: str) -> str:
    """Explain a metric in a few words. Raises `UsageError` for an unknown name.

    >>> meaning("rollout_corr/is_ratio_max"), meaning("rollout_corr/rollout_rs_token_k1_masked_fraction")
    ('largest token ratio', 'token_k1: share of the tokens that the rule alone rejects')
    """
    metric, rule = _metric(key)
    return f"{rule}: {metric.meaning}" if rule else metric.meaning


def _metric(key: str) -> tuple[Metric, str]:
    """Return the metric with this name, and the name of its rule, or "" if it belongs to no rule."""
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
