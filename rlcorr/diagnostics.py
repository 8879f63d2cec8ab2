"""What a correction did, measured: `measure` gathers moments on the device, `report.metrics` turns them into numbers.

Two stages: one pass over the tokens gives moments per sequence, and everything else is computed from those. Of ratios
and weights r − 1 is measured too: the spread of a small mismatch would drown in the rounding of 1 + r².
"""

import functools
import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import (
    bound_weights,
    decide,
    inside,
    log_bounds,
    log_weights,
    needed,
    normalise,
    passes,
    rule_statistic,
)
from rlcorr.errors import UsageError
from rlcorr.masked import moments, row_moments, shares, tally
from rlcorr.ratios import excess, k3, log_ratio, ratio
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, Measured, Moments, TokenBatch

Named = dict[str, Moments]


def measure(
    batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig, pairs: Sequence[Named] | None = None
) -> Measured:
    """Every moment that the metrics read, in float64. Nothing leaves the device. Needs old_log_probs. `pairs` is what
    `measure_pairs` found of the batch, which is half of the work, for those who try many corrections on it."""
    needed(batch, config)
    blocks = [(batch.rows(rows), result.rows(rows)) for rows in batch.blocks()]
    pairs = pairs or [pair_moments(rows, of_rows.log_ratio) for rows, of_rows in blocks]
    parts = [
        of_pairs | correction_moments(rows, of_rows, config)
        for of_pairs, (rows, of_rows) in zip(pairs, blocks, strict=True)
    ]
    return Measured.of(from_sequences(_joined(parts), config, result.norm_factor))


def measure_pairs(batch: TokenBatch) -> list[Named]:
    """What `measure` finds whatever the correction is. Needs old_log_probs."""
    blocks = [batch.rows(rows) for rows in batch.blocks()]
    old = [needed(rows, CorrectionConfig()) for rows in blocks]
    return [
        pair_moments(rows, log_ratio(each, rows.rollout_log_probs, rows.response_mask))
        for rows, each in zip(blocks, old, strict=True)
    ]


def measure_probabilities(batch: TokenBatch) -> Measured:
    """Moments of the two probabilities themselves, for verl's `training/rollout_probs_diff_*`; in float64."""
    old, rollout, mask = (
        needed(batch, CorrectionConfig()).double(),
        batch.rollout_log_probs.double(),
        batch.response_mask,
    )
    p, q = old.exp(), rollout.exp()
    each = {"probs_diff": (p - q).abs(), "p": p, "q": q, "p_plus_q": p + q}
    return Measured.of({name: moments(x, mask).pooled() for name, x in each.items()})


def correct_and_measure(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, Measured]:
    """`correct` and `measure` in one pass over the batch, fused by torch.compile.

    The numbers are those of the two functions, to rounding. The first call for a configuration compiles (seconds),
    so this is for large batches under settings that stay. Raises `UsageError` on a CPU without a C++ compiler.
    """
    needed(batch, config)
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    if batch.response_mask.device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise UsageError("the compiled pass needs a C++ compiler (g++ or clang); correct() and measure() need none.")
    d, weights, by, rows = _fused()(batch, config)
    result = CorrectionResult(d, weights, batch.response_mask & (by == 0), by)
    result = normalise(result, config)
    return result, Measured.of(from_sequences(rows, config, result.norm_factor))


def _one_pass(batch: TokenBatch, config: CorrectionConfig) -> tuple[Tensor, Tensor, Tensor, Named]:
    d, weights, by = decide(batch, config)
    result = CorrectionResult(d, weights, batch.response_mask & (by == 0), by)
    return d, weights, by.to(torch.int8), pair_moments(batch, d) | correction_moments(batch, result, config)


@functools.cache
def _fused() -> Callable[..., tuple[Tensor, Tensor, Tensor, Named]]:
    # At its own limits the compiler splits the reductions over several loops, each reading the tokens again.
    limits = (
        "realize_reads_threshold",
        "realize_opcount_threshold",
        "cpp.max_horizontal_fusion_size",
        "max_fusion_size",
    )
    return torch.compile(_one_pass, options=dict.fromkeys(limits, 100_000))


# --- first stage: tokens → moments per sequence, each of shape (B,) ---


def pair_moments(batch: TokenBatch, d: Tensor) -> Named:
    """The part of the pass over (B, T) that looks at the log-probs alone; d is their log-ratio."""
    mask = batch.response_mask
    return {
        "training_log_prob": moments(needed(batch, CorrectionConfig()).to(d.dtype), mask, "sum"),
        "rollout_log_prob": moments(batch.rollout_log_probs.to(d.dtype), mask, "sum"),
        "d": moments(d, mask),
        "abs_d": moments(d.abs(), mask),
        "k3": moments(k3(d), mask, "sum"),
        "ratio": moments(ratio(d), mask),
        "ratio_excess": moments(excess(d), mask, "sum squares"),
    }


def correction_moments(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> Named:
    """The part that looks at weights and rejections; `result` before or after normalisation. Comparisons with bounds
    happen here, in the dtype in which the correction made them."""
    mask, keep, d = batch.response_mask, result.keep_mask, result.log_ratio
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    found: Named = {}
    if config.rollout_is == "token":
        found |= _of_weights(weights, d, mask, config)
    elif config.rollout_is is not None:
        log_w = log_weights(d, mask, config.rollout_is)
        found |= _of_weights(bound_weights(log_w, config), log_w, _some(mask), config)
        found["log_weight"] = moments(log_w, _some(mask), "sum")
    for rule in config.rollout_rs:
        found |= {f"rule:{rule.name}:{key}": value for key, value in _of_rule(rule, batch, d).items()}
    if not _whole_sequences(config):
        found |= {"kept": shares(keep, mask), "trained": moments(weights, keep, "sum squares")}
    return found


def _of_weights(weights: Tensor, log_raw: Tensor, real: Tensor, config: CorrectionConfig) -> Named:
    """Weights of tokens, or (B, 1) of sequences; without a lower bound verl counts what is below 1/upper."""
    high, lower = math.log(config.rollout_is_threshold), config.rollout_is_threshold_lower
    return {
        "weight": moments(weights, real),
        "weight_excess": moments(weights - 1, real, "sum squares"),
        "weight_low": shares(log_raw < (-high if lower is None else math.log(lower)), real),
        "weight_high": shares(log_raw > high, real),
    }


def _of_rule(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Named:
    statistic = rule_statistic(rule, batch, d)
    mask = batch.response_mask
    real = mask if rule.level == "token" else _some(mask)
    low, high = log_bounds(rule)
    found = {
        "statistic": moments(statistic, real),
        "clamped": moments(statistic.clamp(low, high), real, "sum squares"),
        "low": shares(statistic < low, real),
        "high": shares(statistic > high, real),
    }
    if rule.level == "sequence" and rule.applies_to == "all":
        return found | {"outside": shares(~inside(rule, statistic), real)}
    return found | {"rejected": shares(~passes(rule, statistic, batch, d), mask)}


def _some(mask: Tensor) -> Tensor:
    """(B, T) → (B, 1): whether the row has a token."""
    return tally(mask)[:, None] > 0


def _whole_sequences(config: CorrectionConfig) -> bool:
    """Whether rows are kept or rejected as a whole, so that their tokens need not be looked at."""
    return all(rule.level == "sequence" and rule.applies_to == "all" for rule in config.rollout_rs)


# --- second stage: moments per sequence → moments of the batch ---


def from_sequences(rows: Named, config: CorrectionConfig, norm_factor: Tensor | None) -> Named:
    """Pool the tokens, and add what is counted per sequence. Sequences without tokens count nowhere."""
    rows = {key: value.double() for key, value in rows.items()}
    count = rows["d"].count
    some = count > 0
    kept, trained = _kept(rows, config)
    rejected = replace(kept, total=count - kept.total)
    training, rollout = -_mean(rows["training_log_prob"]), -_mean(rows["rollout_log_prob"])
    gap = -_mean(rows["d"])
    base = ("d", "abs_d", "k3", "ratio", "ratio_excess")
    found = {key: rows[key].pooled() for key in base} | {
        "kept": kept.pooled(),
        "trained": trained.pooled(),
        "rejected": rejected.pooled(),
        "seq_rejected": shares(rejected.total > 0, some),
        "seq_training_log_ppl": moments(training, some),
        "seq_rollout_log_ppl": moments(rollout, some),
        "seq_training_ppl": moments(training.exp(), some),
        "seq_rollout_ppl": moments(rollout.exp(), some),
        "seq_log_ppl_diff": moments(gap, some),
        "seq_log_ppl_abs_diff": moments(gap.abs(), some),
        "seq_ppl_ratio": moments(gap.exp(), some),
        "seq_excess": moments(excess(rows["d"].total), some),
    }
    if config.rollout_is is not None:
        found |= _weights_per_sequence(rows, config)
    if norm_factor is not None:
        factor = norm_factor.double()
        found["norm_factor"] = moments(factor[None], torch.ones_like(factor, dtype=torch.bool)[None])
        found["trained"] = replace(
            found["trained"],
            total=found["trained"].total / factor,
            squares=found["trained"].squares / factor.square(),
        )
    vetoes = [rows[key].total for key in ("rule:seq_min_k1:outside", "rule:seq_max_k1:outside") if key in rows]
    if vetoes:
        found["veto"] = shares(torch.stack(vetoes).amax(0) > 0, some)
    for rule in config.rollout_rs:
        prefix = f"rule:{rule.name}:"
        of_rule = {key.removeprefix(prefix): value for key, value in rows.items() if key.startswith(prefix)}
        found |= {prefix + key: value for key, value in _rule_per_sequence(rule, of_rule, count).items()}
    return found


def _kept(rows: Named, config: CorrectionConfig) -> tuple[Moments, Moments]:
    """Per sequence, the kept tokens and the weights on them, both before normalisation."""
    if "kept" in rows:
        return rows["kept"], rows["trained"]
    count = rows["d"].count
    whole = torch.where(count > 0, 1.0, 0.0).double()
    for rule in config.rollout_rs:
        whole = whole * (1 - rows[f"rule:{rule.name}:outside"].total)
    kept = replace(rows["d"], total=whole * count, squares=whole * count)
    if config.rollout_is is None:
        return kept, replace(kept, count=kept.total)
    each = count if config.rollout_is != "token" else 1.0  # a sequence weight stands for all tokens of its row
    weight = rows["weight"]
    return kept, replace(kept, count=kept.total, total=_times(whole, weight.total * each),
                         squares=_times(whole, weight.squares * each))  # fmt: skip


def _weights_per_sequence(rows: Named, config: CorrectionConfig) -> Named:
    count, weight, excess_ = rows["d"].count, rows["weight"], rows["weight_excess"]
    some = count > 0
    below, above = rows["weight_low"], rows["weight_high"]
    found = {
        "seq_weight": moments(_mean(weight), some),
        "seq_weight_deviation": moments((_mean(weight) - 1).abs(), some),
    }
    if config.rollout_is == "token":
        high, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
        raw = _mean(rows["ratio"])
        return found | {
            "weight": weight.pooled(),
            "weight_excess": excess_.pooled(),
            "raw_weight": rows["ratio"].pooled(),
            "raw_weight_excess": rows["ratio_excess"].pooled(),
            "weight_low": below.pooled(),
            "weight_high": above.pooled(),
            "seq_raw_low": shares(raw < (1 / high if lower is None else lower), some),
            "seq_raw_high": shares(raw > high, some),
            "outside": _outside(below.pooled(), above.pooled(), config),
        }
    log_raw = _mean(rows["log_weight"])
    return found | {
        "weight": row_moments(_mean(weight), count),
        "weight_excess": row_moments(_mean(excess_), count),
        "raw_weight": row_moments(ratio(log_raw), count),
        "raw_weight_excess": row_moments(excess(log_raw), count),
        "weight_low": below.pooled(),
        "weight_high": above.pooled(),
        "seq_raw_low": below.pooled(),
        "seq_raw_high": above.pooled(),
        "outside": _outside(row_moments(below.total, count), row_moments(above.total, count), config),
    }


def _outside(low: Moments, high: Moments, config: CorrectionConfig) -> Moments:
    """Where a configured bound changes the weight: without a lower bound, only above."""
    total = high.total if config.rollout_is_threshold_lower is None else low.total + high.total
    return replace(high, total=total, squares=total)


def _rule_per_sequence(rule: RejectionRule, of_rule: Named, count: Tensor) -> Named:
    some, per_row = count > 0, _mean(of_rule["statistic"])
    found = {"seq": moments(per_row, some), "seq_deviation": moments(per_row.abs(), some)}
    if rule.reduce is None:
        low, high = log_bounds(rule)
        rejected = of_rule["rejected"]
        found |= {key: of_rule[key].pooled() for key in ("statistic", "clamped", "low", "high")}
        found |= {"seq_low": shares(per_row < low, some), "seq_high": shares(per_row > high, some)}
    else:
        rejected = of_rule["rejected"] if "rejected" in of_rule else _times_count(of_rule["outside"], count)
        found |= {key: row_moments(_mean(of_rule[key]), count) for key in ("statistic", "clamped")}
        found |= {key: of_rule[key].pooled() for key in ("low", "high")}
        found |= {"seq_low": found["low"], "seq_high": found["high"]}
    return found | {"rejected": rejected.pooled(), "seq_rejected": shares(rejected.total > 0, some)}


def _times_count(flag: Moments, count: Tensor) -> Moments:
    """A flag of the row, counted once for each of its tokens."""
    return replace(flag, count=count, total=flag.total * count, squares=flag.total * count)


def _times(flag: Tensor, x: Tensor) -> Tensor:
    """x where the flag is 1, else 0, also if x is NaN."""
    return torch.where(flag > 0, x, 0)


def _mean(m: Moments) -> Tensor:
    return m.total / m.count.clamp(min=1)


def _joined(parts: list[Named]) -> Named:
    def together(key: str) -> Moments:
        each = [part[key] for part in parts]
        names = ("count", "total", "squares", "low", "high")
        return Moments(*(torch.cat([getattr(m, name) for m in each]) for name in names))

    return {key: together(key) for key in parts[0]}


def merge(parts: Iterable[Measured]) -> Measured:
    """The moments of the union of several micro-batches, exactly. Raises TypeError if there are none."""
    return functools.reduce(Measured.merge, parts)
