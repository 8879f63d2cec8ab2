"""Read how the training runs of a study ended, by kind of correction instead of by preset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.presets import PRESETS
from rlcorr.records import study
from rlcorr.records.study import Arm, Study
from rlcorr.records.study_comparisons import against_nothing, compare_endpoints, comparisons
from rlcorr.rules import RejectionRule

NOTHING, FRESH = "nothing", "fresh"
"""Kinds of arms: without a correction, and without the mismatch."""
_WEIGHTS = {
    ("token", "truncate"): "token cap",
    ("token", "mask"): "token mask",
    ("sequence", "truncate"): "product cap",
}


@dataclass(frozen=True)
class StudyEnds:
    """The end of the training runs of one study."""

    name: str
    steps: int
    seeds: int
    measure: str
    """Name of the number in `by_kind`: accuracy of the last weights, if that was planned, or reward at the end."""
    model: str
    staleness: int
    """Number of updates by which the weights are old."""
    by_kind: Mapping[str, dict[str, float]]
    """Kind → arm → mean over the seeds."""
    significant: Mapping[tuple[str, str], int]
    """(kind, other kind) → the number of pairs of their arms that differ significantly."""

    def lowest(self, kind: str) -> float:
        """Return the lowest end of the arms of a kind."""
        return min(self.by_kind[kind].values())

    def highest(self, kind: str) -> float:
        """Return the highest end of the arms of a kind."""
        return max(self.by_kind[kind].values())


def kind_of(config: CorrectionConfig) -> str | None:
    """Return the kind of a correction; None for kinds that no study has."""
    if config.bypass_mode or config.loss_type != CorrectionConfig().loss_type:
        return None
    if any(rule.level == "sequence" for rule in config.rollout_rs):
        only_bad = all(rule.applies_to == "negative" for rule in config.rollout_rs)
        return "bad answers" if only_bad else "sequences"
    if config.rollout_rs:
        return "tokens"
    if config.rollout_is is None:
        return NOTHING
    kind = _WEIGHTS.get((config.rollout_is, config.rollout_is_mode))
    return f"{kind}, normalised" if kind and config.rollout_is_batch_normalize else kind


def study_ends(name: str) -> StudyEnds:
    """Read how the training runs of a study ended. Raises `UsageError` if it has not been trained."""
    entry, (rows, _) = study.find_study(name), study.read_study(name)
    kinds = {arm.name: kind for arm in entry.arms if (kind := _kind_of_arm(arm)) is not None}
    by_accuracy = _is_by_accuracy(entry)
    by_kind: dict[str, dict[str, float]] = {}
    for arm, of_seeds in (study.last_accuracies(rows) if by_accuracy else study.end_rewards(rows)).items():
        if arm in kinds:
            by_kind.setdefault(kinds[arm], {})[arm] = fmean(of_seeds.values())
    options = entry.arms[-1].options
    return StudyEnds(
        name=name,
        steps=len({row["step"] for row in rows}),
        seeds=len({row["seed"] for row in rows}),
        measure="accuracy" if by_accuracy else "reward",
        model="SmolLM2" if "smollm2" in options else "a small model",
        staleness=int(options[options.index("--rollout.staleness") + 1]) if "--rollout.staleness" in options else 0,
        by_kind=by_kind,
        significant=_count_significant(rows, entry, by_kind),
    )


def _is_by_accuracy(entry: Study) -> bool:
    return entry.endpoint is not None and entry.endpoint.steps == 0


def _kind_of_arm(arm: Arm) -> str | None:
    """Return the kind of an arm's correction; None if it rejects at random."""
    if arm.name.startswith(FRESH):
        return FRESH
    options = dict(zip(arm.options, arm.options[1:], strict=False))
    rule = options.get("--budget.rule")
    if rule is not None and rule.startswith("random"):
        return None
    if rule is not None:
        return kind_of(CorrectionConfig(rollout_rs=(RejectionRule.named(rule, upper=2.0),)))
    config = PRESETS[options["--preset"]].config
    return kind_of(replace(config, rollout_is_batch_normalize="--batch-normalize" in arm.options))


def _count_significant(
    rows: Sequence[dict[str, Any]], entry: Study, by_kind: Mapping[str, Mapping[str, float]]
) -> dict[tuple[str, str], int]:
    """Count differences of accuracies if they were planned as the endpoint, else those of rewards.

    Differences from no correction are significant if they are among all of the study, as on the page of the study.
    """
    planned = compare_endpoints(rows, entry.endpoint) if entry.endpoint and _is_by_accuracy(entry) else None
    from_nothing = against_nothing(rows)
    counts = {}
    for kind in by_kind:
        for other in by_kind.keys() - {kind}:
            pairs = [(arm, against) for arm in by_kind[kind] for against in by_kind[other]]
            wanted = {frozenset(pair) for pair in pairs}
            of_rewards = from_nothing if NOTHING in (kind, other) else comparisons(rows, pairs)
            compared = of_rewards if planned is None else planned
            counts[kind, other] = sum(
                one.difference.tells for one in compared if frozenset((one.arm, one.against)) in wanted
            )
    return counts
