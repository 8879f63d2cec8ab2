"""The second stage of measuring: moments per sequence, of shape (B,), become one table of the batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from rlcorr.config import PER_TOKEN, CorrectionConfig
from rlcorr.measuring.moments import Moments, MomentTable, RuleKey, row_moments, unstacked
from rlcorr.measuring.quantities import Quantity, RuleQuantity
from rlcorr.measuring.sequence_moments import MomentsByName, RuleMoments, SequenceMoments
from rlcorr.ratios import excess, ratio
from rlcorr.rejection import log_bounds
from rlcorr.rules import RejectionRule


@dataclass(frozen=True)
class PerRow:
    """One number or condition per sequence, (B,), that counts `count` times, (B,)."""

    x: Tensor
    count: Tensor


Measured = dict[Quantity, Moments | PerRow]
MeasuredOfRule = dict[RuleQuantity, Moments | PerRow]


def batch_moments(sequences: SequenceMoments, config: CorrectionConfig) -> MomentTable:
    """Add the quantities that are counted per sequence, and merge the moments of all sequences.

    Sequences without tokens are left out everywhere. Everything is as it is before batch normalisation. The moments are
    those of `concat_moments`, in float64.

    >>> from rlcorr.measuring.sequence_moments import correction_moments, pair_moments
    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> rows = SequenceMoments(pair_moments(batch, torch.tensor([[0.0, 2.0]])), {})
    >>> corrected = correction_moments(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> measured = batch_moments(SequenceMoments(rows.quantities | corrected.quantities, {}), CorrectionConfig())
    >>> dict(measured.rows())["seq_log_ppl_diff"][1]  # −mean d
    -1.0
    """
    rows, rule_rows = sequences.quantities, sequences.rule_quantities
    count = rows["d"].count
    kept, trained = _kept_and_trained(rows, rule_rows, config)
    measured: dict[Quantity | RuleKey, Moments | PerRow] = {
        **_pair_moments(rows),
        **_kept_moments(kept, trained, count),
    }
    if config.rollout_is is not None:
        measured |= _weight_moments(rows, config)
    vetoes = [rule_rows[name]["outside"].total for name in ("seq_min_k1", "seq_max_k1") if name in rule_rows]
    if vetoes:
        measured["veto"] = PerRow(torch.stack(vetoes).amax(0) > 0, _once(count))
    for rule in config.rollout_rs:
        by_name = _rule_moments(rule, rule_rows[rule.name], count)
        measured |= {RuleKey(rule.name, name): value for name, value in by_name.items()}
    return MomentTable.pooled(_with_row_moments(measured))


Key = TypeVar("Key")


def _with_row_moments(measured: Mapping[Key, Moments | PerRow]) -> dict[Key, Moments]:
    """Compute the moments of all numbers per sequence in one table: one by one, they would take most of the time."""
    numbers = {id(entry): entry for entry in measured.values() if isinstance(entry, PerRow)}
    x, count = (torch.stack(column) for column in zip(*((n.x, n.count) for n in numbers.values()), strict=True))
    computed = dict(zip(numbers, unstacked(row_moments(x, count)), strict=True))
    return {name: computed[id(entry)] if isinstance(entry, PerRow) else entry for name, entry in measured.items()}


def _pair_moments(rows: MomentsByName) -> Measured:
    """Compute the moments that depend on the log-probs only."""
    once = _once(rows["d"].count)
    training, rollout = -_mean(rows["training_log_prob"]), -_mean(rows["rollout_log_prob"])
    gap = -_mean(rows["d"])
    return {
        "d": rows["d"],
        "abs_d": rows["abs_d"],
        "k3": rows["k3"],
        "ratio": rows["ratio"],
        "ratio_excess": rows["ratio_excess"],
        "seq_training_log_ppl": PerRow(training, once),
        "seq_rollout_log_ppl": PerRow(rollout, once),
        "seq_training_ppl": PerRow(training.exp(), once),
        "seq_rollout_ppl": PerRow(rollout.exp(), once),
        "seq_log_ppl_diff": PerRow(gap, once),
        "seq_log_ppl_abs_diff": PerRow(gap.abs(), once),
        "seq_ppl_ratio": PerRow(gap.exp(), once),
        "seq_excess": PerRow(excess(rows["d"].total), once),
    }


def _kept_moments(kept: Moments, trained: Moments, count: Tensor) -> Measured:
    rejected = replace(kept, total=count - kept.total)
    return {
        "kept": kept,
        "trained": trained,
        "rejected": rejected,
        "seq_rejected": PerRow(rejected.total > 0, _once(count)),
    }


def normalised(measured: MomentTable, factor: Tensor) -> MomentTable:
    """Return the moments as they are after batch normalisation, which divides the weights by this factor.

    >>> row = torch.tensor([2.0, 6.0, 20.0, 2.0, 4.0]).double()  # weights 2 and 4
    >>> normalised(MomentTable(("trained",), row[None]), torch.tensor(2.0).double()).table[0, :3].tolist()
    [2.0, 3.0, 5.0]
    """
    factor = factor.double()
    pooled = {name: Moments(*row) for name, row in zip(measured.names, measured.table, strict=True)}
    weights = pooled["trained"]
    pooled["trained"] = replace(weights, total=weights.total / factor, squares=weights.squares / factor.square())
    pooled["norm_factor"] = row_moments(factor, torch.ones_like(factor))
    return MomentTable.of(pooled)


def _kept_and_trained(
    rows: MomentsByName, rule_rows: dict[str, RuleMoments], config: CorrectionConfig
) -> tuple[Moments, Moments]:
    """Return per sequence the moments of the kept tokens and of their weights, both before normalisation.

    If "kept" was not measured, every rule keeps or rejects whole rows, so both follow from the rows.
    """
    if "kept" in rows:
        return rows["kept"], rows["trained"]
    count = rows["d"].count
    kept_row = torch.where(count > 0, 1.0, 0.0).double()  # 1 if all tokens of the row are kept
    for rule in config.rollout_rs:
        kept_row = kept_row * (1 - rule_rows[rule.name]["outside"].total)
    kept = replace(rows["d"], total=kept_row * count, squares=kept_row * count)
    if config.rollout_is is None:
        return kept, replace(kept, count=kept.total)
    weight = rows["weight"]
    tokens = (
        1.0 if config.rollout_is in PER_TOKEN else count
    )  # a sequence weight is the weight of all tokens of its row
    return kept, replace(kept, count=kept.total, total=_times(kept_row, weight.total * tokens),
                         squares=_times(kept_row, weight.squares * tokens))  # fmt: skip


def _weight_moments(rows: MomentsByName, config: CorrectionConfig) -> Measured:
    weight, once = rows["weight"], _once(rows["d"].count)
    pooled: Measured = {
        "seq_weight": PerRow(_mean(weight), once),
        "seq_weight_deviation": PerRow((_mean(weight) - 1).abs(), once),
        "weight_low": rows["weight_low"],
        "weight_high": rows["weight_high"],
    }
    return pooled | (_token_weight_moments if config.rollout_is in PER_TOKEN else _row_weight_moments)(rows, config)


def _token_weight_moments(rows: MomentsByName, config: CorrectionConfig) -> Measured:
    high, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
    of_raw, of_excess = rows.get("raw_weight", rows["ratio"]), rows.get("raw_weight_excess", rows["ratio_excess"])
    outside = _outside(rows["weight_low"], rows["weight_high"], config)
    raw, once = _mean(of_raw), _once(rows["d"].count)
    return {
        "weight": rows["weight"],
        "extreme_weight": rows["weight"],
        "weight_excess": rows["weight_excess"],
        "raw_weight": of_raw,
        "raw_weight_excess": of_excess,
        "seq_raw_low": PerRow(raw < (1 / high if lower is None else lower), once),
        "seq_raw_high": PerRow(raw > high, once),
        "outside": replace(rows["weight_high"], total=outside, squares=outside),
    }


def _row_weight_moments(rows: MomentsByName, config: CorrectionConfig) -> Measured:
    """Compute the moments of sequence weights. The weight of a sequence counts once for each of its tokens."""
    count, log_raw = rows["d"].count, _mean(rows["log_weight"])
    below, above = rows["weight_low"], rows["weight_high"]
    raw = PerRow(ratio(log_raw), count)
    return {
        "weight": PerRow(_mean(rows["weight"]), count),
        "weight_excess": PerRow(_mean(rows["weight_excess"]), count),
        "raw_weight": raw,
        "extreme_weight": raw,
        "raw_weight_excess": PerRow(excess(log_raw), count),
        "seq_raw_low": below,
        "seq_raw_high": above,
        "outside": PerRow(_outside(below, above, config), count),
    }


def _outside(low: Moments, high: Moments, config: CorrectionConfig) -> Tensor:
    """Count the weights that a configured bound changes: without a lower bound, only those above the upper one."""
    return high.total if config.rollout_is_threshold_lower is None else low.total + high.total


def _rule_moments(rule: RejectionRule, rows: RuleMoments, count: Tensor) -> MeasuredOfRule:
    once, per_row = _once(count), _mean(rows["statistic"])
    pooled: MeasuredOfRule = {
        "seq": PerRow(per_row, once),
        "seq_deviation": PerRow(per_row.abs(), once),
        "low": rows["low"],
        "high": rows["high"],
    }
    if rule.reduce is None:
        low, high = log_bounds(rule)
        rejected = rows["rejected"]
        pooled |= {"statistic": rows["statistic"], "clamped": rows["clamped"]}
        pooled |= {
            "seq_low": PerRow(per_row < low, once),
            "seq_high": PerRow(per_row > high, once),
        }
    else:
        rejected = rows["rejected"] if "rejected" in rows else _times_count(rows["outside"], count)
        pooled |= {
            "statistic": PerRow(per_row, count),
            "clamped": PerRow(_mean(rows["clamped"]), count),
            "seq_low": pooled["low"],
            "seq_high": pooled["high"],
        }
    pooled |= {"rejected": rejected, "seq_rejected": PerRow(rejected.total > 0, once)}
    return pooled


def _once(count: Tensor) -> Tensor:
    """Return how many times a sequence counts if each counts once: 1, or 0 without tokens."""
    return (count > 0).double()


def _times_count(flag: Moments, count: Tensor) -> Moments:
    """Count a flag of the row once for each of its tokens."""
    return replace(flag, count=count, total=flag.total * count, squares=flag.total * count)


def _times(flag: Tensor, x: Tensor) -> Tensor:
    """Return x if the flag is 1, else 0, even if x is NaN."""
    return torch.where(flag > 0, x, 0)


def _mean(m: Moments) -> Tensor:
    return m.total / m.count.clamp(min=1)
