"""The metrics of a correction: `metrics` turns measured moments into numbers, `describe` explains a metric.

If verl has a metric, it has verl's name under `rollout_corr/` and verl's value. The exceptions:

- For rules of k1 verl measures −log r and we measure log r, so signs, extremes and sides are swapped. The names of
  these metrics contain `log_ratio_`.
- With a rejection rule `rollout_is_batch_norm_factor` differs, because we normalise after rejection (see `describe`).
- verl includes rows without tokens in means over sequences, clamps log-ratios to ±20 before it sums k1 but not in
  `k3_kl`, and measures bfloat16 in bfloat16.
"""

from collections.abc import Mapping

from rlcorr.errors import unknown
from rlcorr.measuring.metric_definitions import (
    METRICS,
    OBJECTIVE_METRICS,
    PREFIX,
    PROBABILITY_METRICS,
    RULE_METRICS,
    HostMoments,
    Metric,
)
from rlcorr.measuring.moments import MomentTable, RuleKey
from rlcorr.rules import RULE_NAMES

OF_K1 = {"mean": "mean", "max": "min", "min": "max", "fraction_high": "fraction_low", "fraction_low": "fraction_high"}
OF_K1 |= {f"seq_{key}": f"seq_{ours}" for key, ours in OF_K1.items()}
"""Metrics of rules of k1 that verl measures of −log r → the metric of log r that corresponds to each."""


def metrics(measured: MomentTable) -> dict[str, float]:
    """Compute every metric whose moments were measured, by name. Waits for the device.

    A metric is 0 if its quantity has no values, for instance in a batch without tokens. `describe` gives formulas and
    ranges.

    >>> table = torch.tensor([[2.0, 3.0, 5.0, 1.0, 2.0]])  # count, Σd, Σd², min, max of d = 1 and 2
    >>> metrics(MomentTable(("d",), table))["rollout_corr/log_ratio_mean"]
    1.5
    """
    quantities: dict[str, HostMoments] = {}
    of_rules: dict[str, dict[str, HostMoments]] = {}
    for name, row in measured.rows():
        if isinstance(name, RuleKey):
            of_rules.setdefault(name.rule, {})[name.quantity] = HostMoments(*row)
        else:
            quantities[name] = HostMoments(*row)
    numbers = _read(PROBABILITY_METRICS, quantities, "") | _read(METRICS, quantities, PREFIX)
    for rule, moments in of_rules.items():
        read = _read(RULE_METRICS, moments, "")
        numbers |= {f"{PREFIX}rollout_rs_{rule}_{_name(rule, key)}": value for key, value in read.items()}
    return numbers


def _name(rule: str, key: str) -> str:
    """Return the name of a rule's metric. It is not verl's name if the value is not verl's."""
    return f"log_ratio_{key}" if RULE_NAMES[rule][1] == "k1" and key in OF_K1 else key


def means(measured: MomentTable) -> dict[str, float]:
    """Return the mean of every quantity of the batch, by name, except those without values. Waits for the device."""
    return {name: row[1] / row[0] for name, row in measured.rows() if isinstance(name, str) and row[0]}


def _read(table: Mapping[str, Metric], moments: Mapping[str, HostMoments], prefix: str) -> dict[str, float]:
    return {
        prefix + key: metric.read(*(moments[name] for name in (metric.quantity, *metric.also)))
        for key, metric in table.items()
        if all(name in moments for name in (metric.quantity, *metric.also))
    }


def describe(key: str) -> str:
    """Explain a metric: meaning, formula, range, bad values, and how verl's number of that name differs if it does.

    Raises `UsageError` for an unknown name.

    >>> print(describe("rollout_corr/log_ratio_mean"))  # doctest: +ELLIPSIS
    mean of d = log π_old − log π_rollout. Formula: mean d. Range: any real number. Bad: growing over steps: ...
    """
    metric, rule = _metric(key)
    allowed, verl = metric.range or "that of the rule's statistic s", metric.verl
    name = key.rpartition("log_ratio_")[2]
    if rule and _name(rule, name) != name:
        ours = "ours" if name == OF_K1[name] else f"our {OF_K1[name]}"
        verl = f"{'' if 'fraction' in name else 'minus '}{ours}, because its statistic of k1 is −log r"
    text = f"{meaning(key)}. Formula: {metric.formula}. Range: {allowed}. Bad: {metric.bad}."
    return f"{text} verl's number: {verl}." if verl else text


def meaning(key: str) -> str:
    """Explain a metric in a few words, such as "largest token ratio". Raises `UsageError` for an unknown name."""
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
