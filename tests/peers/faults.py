"""The known differences between verl and rlcorr: which cases each affects, and the case put so that verl is right."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from cases import CLAMP, Case, log_weights, weight_bounds
from torch import Tensor
from verl_peer import verl_correction

from rlcorr.config import CorrectionConfig
from rlcorr.rules import RejectionRule


def read_as_written(config: CorrectionConfig) -> CorrectionConfig:
    """The rules with verl's k1 numbers taken for bounds on r, as its documentation does."""
    rules = tuple(
        replace(rule, lower=1 / rule.upper, upper=1 / (rule.lower or 1)) if rule.divergence == "k1" else rule
        for rule in config.rollout_rs
    )
    return replace(config, rollout_rs=rules)


@dataclass(frozen=True)
class Fault:
    """A known difference: which cases it affects, and the same case put so that verl's answer is right.

    Where no rewording of the case helps, there is no `mend`: the code that compares names the fault and corrects the
    expectation itself. `affects` is None for losses, whose code also knows which are affected.
    """

    what: str
    affects: Callable[[Case], bool] | None = None
    mend: Callable[[Case], Case] | None = None


def without_empty_rows(case: Case) -> Case:
    rows = case.mask.any(-1)
    return replace(case, old=case.old[rows], rollout=case.rollout[rows], mask=case.mask[rows])


def with_clean_padding(case: Case) -> Case:
    return replace(case, old=torch.where(case.mask, case.old, 0), rollout=torch.where(case.mask, case.rollout, 0))


def in_float32(case: Case) -> Case:
    return replace(case, old=case.old.float(), rollout=case.rollout.float())


def without_weights(case: Case) -> Case:
    return replace(case, options=case.options | {"rollout_is": None, "rollout_is_batch_normalize": False})


def every_weight_zero(case: Case) -> bool:
    config = case.config
    if config.rollout_is is None or config.rollout_is_mode == "truncate" or not case.mask.any():
        return False
    low, high = weight_bounds(config)
    log_w = log_weights(case)[0].expand_as(case.d)
    return not (case.mask & (log_w >= low) & (log_w <= high)).any()


def summed_k1(case: Case) -> list[RejectionRule]:
    return [rule for rule in case.config.rollout_rs if rule.divergence == "k1" and rule.reduce is not None]


def beyond_clamp(case: Case) -> bool:
    return bool((case.d.abs() > CLAMP).any())


def without_summed_k1(case: Case) -> Case:
    """The other rules, each with its own threshold."""
    gone = {rule.name for rule in summed_k1(case)}
    kept = [rule for rule in case.config.rollout_rs if rule.name not in gone]
    # The translation inverted k1; inverting it again gives verl's text back.
    specs = [f"{1 / r.upper}_{1 / (r.lower or 1)}" if r.divergence == "k1" else str(r.upper) for r in kept]
    names, texts = (",".join(x) or None for x in ([rule.name for rule in kept], specs))
    return replace(case, options=case.options | {"rollout_rs": names, "rollout_rs_threshold": texts})


FAULTS = {
    "no token": Fault(
        "a batch without a token raises ValueError; ours gives zeros",
        lambda case: not case.mask.any(),
    ),
    "nan in padding": Fault(
        "NaN log-probs on padding become NaN weights there; ours are 0 (exp before the mask; PR 6349)",
        lambda case: bool((~case.mask & (case.old.isnan() | case.rollout.isnan())).any()),
        with_clean_padding,
    ),
    "half precision": Fault(
        "bfloat16 log-ratios, sums and thresholds are rounded to bfloat16; ours are raised to float32 first",
        lambda case: case.old.dtype == torch.bfloat16,
        in_float32,
    ),
    "empty rows": Fault(
        "means over sequences count rows without tokens as perplexity 1 and weight 0 (issue 7771)",
        lambda case: bool(case.mask.any()) and not bool(case.mask.any(-1).all()),
        without_empty_rows,
    ),
    "every weight zero": Fault(
        "IcePop that zeroes every weight ends in ZeroDivisionError; our effective sample size is 0 (PR 7559)",
        every_weight_zero,
        without_weights,
    ),
    "k1 clamped in sums": Fault(
        "log-ratios are clamped to ±20 before seq_sum_k1 and seq_mean_k1 add them, so two that cancel no longer do",
        lambda case: bool(summed_k1(case)) and beyond_clamp(case),
        without_summed_k1,
    ),
    "k1 bounds inverted": Fault(
        "k1 bounds act on 1/r; read as bounds on r they keep other tokens (PR 6377)",
        lambda case: read_as_written(case.config) != case.config,
    ),
    "normalised before rejection": Fault(
        "batch normalisation divides by the mean over rejected tokens too; ours over the kept ones",
        lambda case: case.config.rollout_is_batch_normalize,
    ),
    "unclamped exponentials": Fault(
        "k3_kl and the extremes of sequence weights exponentiate log-ratios beyond ±20; ours stop there",
        lambda case: beyond_clamp(case) or bool((case.d.sum(-1).abs() > CLAMP).any()),
    ),
    "epsilon in sample size": Fault(
        "1e-8 beside the mean weight lifts the effective sample size of tiny weights above 1; ours is a share",
        lambda case: case.config.rollout_is is not None,
    ),
    "k3 cut off": Fault(
        "the k3 penalty is cut at 10 and its gradient is then 0, where the drift is worst; ours keeps both (issue 891)",
    ),
    "nothing kept": Fault(
        "a loss over no token at all is NaN; ours is 0 with a gradient of 0",
    ),
    "geo_mean of empty rows": Fault(
        "geo_mean divides by all rows; ours by those that keep a token",
    ),
    "kl_cov of equal covariances": Fault(
        "among equal covariances at the end of the share verl takes any, ours the first",
    ),
    "dppo cap": Fault(
        "DPPO's cap on the ratio is documented as 20, but unset it is clip_ratio_c's 3; ours is 20",
    ),
}  # fmt: skip


def affected(case: Case) -> set[str]:
    return {name for name, fault in FAULTS.items() if fault.affects is not None and fault.affects(case)}


def mended(case: Case, *, but: str | None = None) -> Case:
    """Every fault mended that affects the case; with `but`, this one left in."""
    faults = affected(case) - {but}
    for name, fault in FAULTS.items():
        if name in faults and fault.mend is not None:
            case = fault.mend(case)
    return case


@dataclass(frozen=True)
class Outcome:
    """What verl gave, on the real tokens."""

    weights: Tensor | None
    kept: Tensor
    metrics: dict[str, float]
    clean: bool  # weights on padding are 0

    def differs(self, other: "Outcome") -> bool:
        if self.clean != other.clean or self.metrics.keys() != other.metrics.keys() or not self.kept.equal(other.kept):
            return True
        numbers = [self.metrics.values(), other.metrics.values()]
        if self.weights is not None and other.weights is not None:
            numbers = [[*n, *w.tolist()] for n, w in zip(numbers, (self.weights, other.weights), strict=True)]
        a, b = (torch.tensor(list(n), dtype=torch.float64) for n in numbers)
        return not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def run_verl(case: Case) -> Outcome | str:
    """verl's outcome, or the name of its exception."""
    fields = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")
    options = {name: case.options[name] for name in fields if name in case.options}
    try:
        weights, kept, numbers = verl_correction(case.old, case.rollout, case.mask, **options)
    except (ValueError, ZeroDivisionError) as error:
        return type(error).__name__
    clean = weights is None or not bool(weights[~case.mask].any())
    return Outcome(None if weights is None else weights[case.mask], kept[case.mask] != 0, numbers, clean)


def shows(name: str, case: Case, right: Outcome) -> bool:
    """Whether this fault alone changes verl's answer."""
    with_fault = run_verl(mended(case, but=name))
    if isinstance(with_fault, str):
        return True
    if name == "k1 clamped in sums":  # its mend drops rules, and their metrics with them
        return not with_fault.kept.equal(right.kept)
    return with_fault.differs(right)


MENDED = {name for name, fault in FAULTS.items() if fault.mend}
