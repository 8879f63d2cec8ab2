"""The second stage of measuring: moments per sequence, of shape (B,), give the moments of the batch, of shape ()."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.measuring.moments import Measured, Moments, RuleMoment, moments, row_moments, shares
from rlcorr.measuring.quantities import Quantity
from rlcorr.measuring.sequence_moments import Named, NamedOfRule, SequenceMoments
from rlcorr.ratios import excess, ratio
from rlcorr.rejection import log_bounds
from rlcorr.rules import RejectionRule


def batch_moments(
    sequences: SequenceMoments, config: CorrectionConfig, norm_factor: Tensor | None
) -> dict[Quantity | RuleMoment, Moments]:
    """Pool the tokens, and add what is counted per sequence. Sequences without tokens count nowhere.

    >>> from rlcorr.measuring.sequence_moments import correction_moments, pair_moments
    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> rows = SequenceMoments(pair_moments(batch, torch.tensor([[0.0, 2.0]])), {})
    >>> corrected = correction_moments(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> pooled = batch_moments(SequenceMoments(rows.of_batch | corrected.of_batch, {}), CorrectionConfig(), None)
    >>> pooled["seq_log_ppl_diff"].total.item()  # −mean d
    -1.0
    """
    rows: Named = {name: value.double() for name, value in sequences.of_batch.items()}
    of_rules: dict[str, NamedOfRule] = {
        rule: {name: value.double() for name, value in of_rule.items()} for rule, of_rule in sequences.of_rules.items()
    }
    count = rows["d"].count
    kept, trained = _kept(rows, of_rules, config)
    pooled: dict[Quantity | RuleMoment, Moments] = {
        **_of_pairs(rows),
        **_of_kept(kept, trained.pooled(), count),
    }
    if config.rollout_is is not None:
        pooled |= _of_weights(rows, config)
    if norm_factor is not None:
        pooled |= _of_normalised(pooled["trained"], norm_factor.double())
    vetoes = [of_rules[name]["outside"].total for name in ("seq_min_k1", "seq_max_k1") if name in of_rules]
    if vetoes:
        pooled["veto"] = shares(torch.stack(vetoes).amax(0) > 0, count > 0)
    for rule in config.rollout_rs:
        of_rule = _of_rule(rule, of_rules[rule.name], count)
        pooled |= {RuleMoment(rule.name, name): value for name, value in of_rule.items()}
    return pooled


def _of_pairs(rows: Named) -> Named:
    """What the log-probs alone tell."""
    some = rows["d"].count > 0
    training, rollout = -_mean(rows["training_log_prob"]), -_mean(rows["rollout_log_prob"])
    gap = -_mean(rows["d"])
    return {
        "d": rows["d"].pooled(),
        "abs_d": rows["abs_d"].pooled(),
        "k3": rows["k3"].pooled(),
        "ratio": rows["ratio"].pooled(),
        "ratio_excess": rows["ratio_excess"].pooled(),
        "seq_training_log_ppl": moments(training, some),
        "seq_rollout_log_ppl": moments(rollout, some),
        "seq_training_ppl": moments(training.exp(), some),
        "seq_rollout_ppl": moments(rollout.exp(), some),
        "seq_log_ppl_diff": moments(gap, some),
        "seq_log_ppl_abs_diff": moments(gap.abs(), some),
        "seq_ppl_ratio": moments(gap.exp(), some),
        "seq_excess": moments(excess(rows["d"].total), some),
    }


def _of_kept(kept: Moments, trained: Moments, count: Tensor) -> Named:
    rejected = replace(kept, total=count - kept.total)
    return {
        "kept": kept.pooled(),
        "trained": trained,
        "rejected": rejected.pooled(),
        "seq_rejected": shares(rejected.total > 0, count > 0),
    }


def normalised(measured: Measured, factor: Tensor) -> Measured:
    """What was measured without batch normalisation, as it would be with this factor, which only all batches give.

    >>> row = torch.tensor([2.0, 6.0, 20.0, 2.0, 4.0]).double()  # weights 2 and 4
    >>> normalised(Measured(("trained",), row[None]), torch.tensor(2.0).double()).table[0, :3].tolist()
    [2.0, 3.0, 5.0]
    """
    pooled = {name: Moments(*row) for name, row in zip(measured.names, measured.table, strict=True)}
    return Measured.of(pooled | _of_normalised(pooled["trained"], factor))


def _of_normalised(weights: Moments, factor: Tensor) -> dict[Quantity | RuleMoment, Moments]:
    """The weights on kept tokens after batch normalisation, and what they were divided by."""
    return {
        "trained": replace(weights, total=weights.total / factor, squares=weights.squares / factor.square()),
        "norm_factor": moments(factor[None], torch.ones_like(factor, dtype=torch.bool)[None]),
    }


def _kept(rows: Named, of_rules: dict[str, NamedOfRule], config: CorrectionConfig) -> tuple[Moments, Moments]:
    """Per sequence, the kept tokens and the weights on them, both before normalisation."""
    if "kept" in rows:
        return rows["kept"], rows["trained"]
    count = rows["d"].count
    whole = torch.where(count > 0, 1.0, 0.0).double()
    for rule in config.rollout_rs:
        whole = whole * (1 - of_rules[rule.name]["outside"].total)
    kept = replace(rows["d"], total=whole * count, squares=whole * count)
    if config.rollout_is is None:
        return kept, replace(kept, count=kept.total)
    weight = rows["weight"]
    tokens = 1.0 if config.rollout_is == "token" else count  # a sequence weight stands for all tokens of its row
    return kept, replace(kept, count=kept.total, total=_times(whole, weight.total * tokens),
                         squares=_times(whole, weight.squares * tokens))  # fmt: skip


def _of_weights(rows: Named, config: CorrectionConfig) -> Named:
    weight, some = rows["weight"], rows["d"].count > 0
    of_weights: Named = {
        "seq_weight": moments(_mean(weight), some),
        "seq_weight_deviation": moments((_mean(weight) - 1).abs(), some),
        "weight_low": rows["weight_low"].pooled(),
        "weight_high": rows["weight_high"].pooled(),
    }
    return of_weights | (_of_token_weights if config.rollout_is == "token" else _of_row_weights)(rows, config)


def _of_token_weights(rows: Named, config: CorrectionConfig) -> Named:
    high, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
    raw, some = _mean(rows["ratio"]), rows["d"].count > 0
    return {
        "weight": rows["weight"].pooled(),
        "extreme_weight": rows["weight"].pooled(),
        "weight_excess": rows["weight_excess"].pooled(),
        "raw_weight": rows["ratio"].pooled(),
        "raw_weight_excess": rows["ratio_excess"].pooled(),
        "seq_raw_low": shares(raw < (1 / high if lower is None else lower), some),
        "seq_raw_high": shares(raw > high, some),
        "outside": _outside(rows["weight_low"].pooled(), rows["weight_high"].pooled(), config),
    }


def _of_row_weights(rows: Named, config: CorrectionConfig) -> Named:
    """A sequence has one weight, which counts once for each of its tokens."""
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
    """Where a configured bound changes the weight: without a lower bound, only above."""
    total = high.total if config.rollout_is_threshold_lower is None else low.total + high.total
    return replace(high, total=total, squares=total)


def _of_rule(rule: RejectionRule, rows: NamedOfRule, count: Tensor) -> NamedOfRule:
    some, per_row = count > 0, _mean(rows["statistic"])
    pooled: NamedOfRule = {
        "seq": moments(per_row, some),
        "seq_deviation": moments(per_row.abs(), some),
        "low": rows["low"].pooled(),
        "high": rows["high"].pooled(),
    }
    if rule.reduce is None:
        low, high = log_bounds(rule)
        rejected = rows["rejected"]
        pooled |= {"statistic": rows["statistic"].pooled(), "clamped": rows["clamped"].pooled()}
        pooled |= {"seq_low": shares(per_row < low, some), "seq_high": shares(per_row > high, some)}
    else:
        rejected = rows["rejected"] if "rejected" in rows else _times_count(rows["outside"], count)
        pooled |= {
            "statistic": row_moments(per_row, count),
            "clamped": row_moments(_mean(rows["clamped"]), count),
            "seq_low": pooled["low"],
            "seq_high": pooled["high"],
        }
    pooled |= {"rejected": rejected.pooled(), "seq_rejected": shares(rejected.total > 0, some)}
    return pooled


def _times_count(flag: Moments, count: Tensor) -> Moments:
    """A flag of the row, counted once for each of its tokens."""
    return replace(flag, count=count, total=flag.total * count, squares=flag.total * count)


def _times(flag: Tensor, x: Tensor) -> Tensor:
    """x where the flag is 1, else 0, also if x is NaN."""
    return torch.where(flag > 0, x, 0)


def _mean(m: Moments) -> Tensor:
    return m.total / m.count.clamp(min=1)
