"""The second stage of measuring: moments per sequence, of shape (B,), become moments of the batch, of shape ()."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.config import PER_TOKEN, CorrectionConfig
from rlcorr.measuring.moments import Moments, MomentTable, RuleKey, flag_moments, moments, row_moments
from rlcorr.measuring.quantities import Quantity
from rlcorr.measuring.sequence_moments import MomentsByName, RuleMoments, SequenceMoments
from rlcorr.ratios import excess, ratio
from rlcorr.rejection import log_bounds
from rlcorr.rules import RejectionRule


def batch_moments(
    sequences: SequenceMoments, config: CorrectionConfig, norm_factor: Tensor | None
) -> dict[Quantity | RuleKey, Moments]:
    """Pool the moments over tokens, and add the quantities that are counted per sequence.

    Sequences without tokens are left out everywhere.

    >>> from rlcorr.measuring.sequence_moments import correction_moments, pair_moments
    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> rows = SequenceMoments(pair_moments(batch, torch.tensor([[0.0, 2.0]])), {})
    >>> corrected = correction_moments(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> pooled = batch_moments(SequenceMoments(rows.quantities | corrected.quantities, {}), CorrectionConfig(), None)
    >>> pooled["seq_log_ppl_diff"].total.item()  # −mean d
    -1.0
    """
    rows: MomentsByName = {name: value.double() for name, value in sequences.quantities.items()}
    rule_rows: dict[str, RuleMoments] = {
        rule: {name: value.double() for name, value in by_name.items()}
        for rule, by_name in sequences.rule_quantities.items()
    }
    count = rows["d"].count
    kept, trained = _kept_and_trained(rows, rule_rows, config)
    pooled: dict[Quantity | RuleKey, Moments] = {
        **_pair_moments(rows),
        **_kept_moments(kept, trained.pooled(), count),
    }
    if config.rollout_is is not None:
        pooled |= _weight_moments(rows, config)
    if norm_factor is not None:
        pooled |= _normalised_moments(pooled["trained"], norm_factor.double())
    vetoes = [rule_rows[name]["outside"].total for name in ("seq_min_k1", "seq_max_k1") if name in rule_rows]
    if vetoes:
        pooled["veto"] = flag_moments(torch.stack(vetoes).amax(0) > 0, count > 0)
    for rule in config.rollout_rs:
        by_name = _rule_moments(rule, rule_rows[rule.name], count)
        pooled |= {RuleKey(rule.name, name): value for name, value in by_name.items()}
    return pooled


def _pair_moments(rows: MomentsByName) -> MomentsByName:
    """Compute the moments that depend on the log-probs only."""
    has_tokens = rows["d"].count > 0
    training, rollout = -_mean(rows["training_log_prob"]), -_mean(rows["rollout_log_prob"])
    gap = -_mean(rows["d"])
    return {
        "d": rows["d"].pooled(),
        "abs_d": rows["abs_d"].pooled(),
        "k3": rows["k3"].pooled(),
        "ratio": rows["ratio"].pooled(),
        "ratio_excess": rows["ratio_excess"].pooled(),
        "seq_training_log_ppl": moments(training, has_tokens),
        "seq_rollout_log_ppl": moments(rollout, has_tokens),
        "seq_training_ppl": moments(training.exp(), has_tokens),
        "seq_rollout_ppl": moments(rollout.exp(), has_tokens),
        "seq_log_ppl_diff": moments(gap, has_tokens),
        "seq_log_ppl_abs_diff": moments(gap.abs(), has_tokens),
        "seq_ppl_ratio": moments(gap.exp(), has_tokens),
        "seq_excess": moments(excess(rows["d"].total), has_tokens),
    }


def _kept_moments(kept: Moments, trained: Moments, count: Tensor) -> MomentsByName:
    rejected = replace(kept, total=count - kept.total)
    return {
        "kept": kept.pooled(),
        "trained": trained,
        "rejected": rejected.pooled(),
        "seq_rejected": flag_moments(rejected.total > 0, count > 0),
    }


def normalised(measured: MomentTable, factor: Tensor) -> MomentTable:
    """Return the moments as they would be with batch normalisation by this factor.

    For streams: the factor is known only after all batches have been measured without it.

    >>> row = torch.tensor([2.0, 6.0, 20.0, 2.0, 4.0]).double()  # weights 2 and 4
    >>> normalised(MomentTable(("trained",), row[None]), torch.tensor(2.0).double()).table[0, :3].tolist()
    [2.0, 3.0, 5.0]
    """
    pooled = {name: Moments(*row) for name, row in zip(measured.names, measured.table, strict=True)}
    return MomentTable.of(pooled | _normalised_moments(pooled["trained"], factor))


def _normalised_moments(weights: Moments, factor: Tensor) -> dict[Quantity | RuleKey, Moments]:
    """Compute the moments of the kept tokens' weights after batch normalisation, and of the factor."""
    return {
        "trained": replace(weights, total=weights.total / factor, squares=weights.squares / factor.square()),
        "norm_factor": moments(factor[None], torch.ones_like(factor, dtype=torch.bool)[None]),
    }


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


def _weight_moments(rows: MomentsByName, config: CorrectionConfig) -> MomentsByName:
    weight, has_tokens = rows["weight"], rows["d"].count > 0
    pooled: MomentsByName = {
        "seq_weight": moments(_mean(weight), has_tokens),
        "seq_weight_deviation": moments((_mean(weight) - 1).abs(), has_tokens),
        "weight_low": rows["weight_low"].pooled(),
        "weight_high": rows["weight_high"].pooled(),
    }
    return pooled | (_token_weight_moments if config.rollout_is in PER_TOKEN else _row_weight_moments)(rows, config)


def _token_weight_moments(rows: MomentsByName, config: CorrectionConfig) -> MomentsByName:
    high, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
    of_raw, of_excess = rows.get("raw_weight", rows["ratio"]), rows.get("raw_weight_excess", rows["ratio_excess"])
    raw, has_tokens = _mean(of_raw), rows["d"].count > 0
    return {
        "weight": rows["weight"].pooled(),
        "extreme_weight": rows["weight"].pooled(),
        "weight_excess": rows["weight_excess"].pooled(),
        "raw_weight": of_raw.pooled(),
        "raw_weight_excess": of_excess.pooled(),
        "seq_raw_low": flag_moments(raw < (1 / high if lower is None else lower), has_tokens),
        "seq_raw_high": flag_moments(raw > high, has_tokens),
        "outside": _outside(rows["weight_low"].pooled(), rows["weight_high"].pooled(), config),
    }


def _row_weight_moments(rows: MomentsByName, config: CorrectionConfig) -> MomentsByName:
    """Compute the moments of sequence weights. The weight of a sequence counts once for each of its tokens."""
    count, log_raw = rows["d"].count, _mean(rows["log_weight"])
    below, above = rows["weight_low"], rows["weight_high"]
    return {
        "weight": row_moments(_mean(rows["weight"]), count),
        "weight_excess": row_moments(_mean(rows["weight_excess"]), count),
        "raw_weight": row_moments(ratio(log_raw), count),
        "extreme_weight": row_moments(ratio(log_raw), count),
        "raw_weight_excess": row_moments(excess(log_raw), count),
        "seq_raw_low": below.pooled(),
        "seq_raw_high": above.pooled(),
        "outside": _outside(row_moments(below.total, count), row_moments(above.total, count), config),
    }


def _outside(low: Moments, high: Moments, config: CorrectionConfig) -> Moments:
    """Count the weights that a configured bound changes: without a lower bound, only those above the upper one."""
    total = high.total if config.rollout_is_threshold_lower is None else low.total + high.total
    return replace(high, total=total, squares=total)


def _rule_moments(rule: RejectionRule, rows: RuleMoments, count: Tensor) -> RuleMoments:
    has_tokens, per_row = count > 0, _mean(rows["statistic"])
    pooled: RuleMoments = {
        "seq": moments(per_row, has_tokens),
        "seq_deviation": moments(per_row.abs(), has_tokens),
        "low": rows["low"].pooled(),
        "high": rows["high"].pooled(),
    }
    if rule.reduce is None:
        low, high = log_bounds(rule)
        rejected = rows["rejected"]
        pooled |= {"statistic": rows["statistic"].pooled(), "clamped": rows["clamped"].pooled()}
        pooled |= {
            "seq_low": flag_moments(per_row < low, has_tokens),
            "seq_high": flag_moments(per_row > high, has_tokens),
        }
    else:
        rejected = rows["rejected"] if "rejected" in rows else _times_count(rows["outside"], count)
        pooled |= {
            "statistic": row_moments(per_row, count),
            "clamped": row_moments(_mean(rows["clamped"]), count),
            "seq_low": pooled["low"],
            "seq_high": pooled["high"],
        }
    pooled |= {"rejected": rejected.pooled(), "seq_rejected": flag_moments(rejected.total > 0, has_tokens)}
    return pooled


def _times_count(flag: Moments, count: Tensor) -> Moments:
    """Count a flag of the row once for each of its tokens."""
    return replace(flag, count=count, total=flag.total * count, squares=flag.total * count)


def _times(flag: Tensor, x: Tensor) -> Tensor:
    """Return x if the flag is 1, else 0, even if x is NaN."""
    return torch.where(flag > 0, x, 0)


def _mean(m: Moments) -> Tensor:
    return m.total / m.count.clamp(min=1)
