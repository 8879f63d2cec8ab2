"""Random batches and configurations through the real verl and through rlcorr: `make peers`.

    make peers                                 3000 cases
    make peers ARGS="--count 20000 --seed 7"   more, others
    make peers ARGS="--seed 4711 --count 1"    the case that a difference named

Compared: translated presets and configurations, weights, kept tokens, every metric that both report, KL penalties and
policy losses with their gradients. Where the two are known to differ, nearly always by a fault of verl's, a `Fault`
says when, and the expectation is corrected; a difference that no fault explains ends the run with exit status 1.

Decisions are compared only where they are decided: a statistic within 1e-5 of its bound, or within the rounding of the
sum that it is, is counted under "left out". Log-ratios and statistics for that are computed here, in float64.
"""

import argparse
import functools
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from reference import config as translated
from torch import Tensor
from verl_peer import verl_correction, verl_kl, verl_loss, verl_presets

from rlcorr.config import KL_ESTIMATORS, Aggregation, CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.diagnostics import measure
from rlcorr.errors import UsageError
from rlcorr.kl import kl_penalty
from rlcorr.metric_tables import PREFIX
from rlcorr.objective import policy_loss
from rlcorr.presets import PRESETS
from rlcorr.report import metrics
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl import from_verl
from rlcorr.types import Measured, TokenBatch

Options = dict[str, Any]
ValueAndGradient = tuple[Tensor, Tensor]

# Half the distance between neighbours at 1: what one operation rounds by.
ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8}
# verl adds 1e-8 to the count in every mean. In float32 that is less than rounding, in float64 it is not.
EPSILON = 1e-8
# torch sums pairwise, in blocks: each of 512 × 64 terms passes through at most 15 additions and a block of 16, so the
# sum is within 31 roundings of Σ|x|; the few operations around it fit into the thirty-second.
STEPS = 32
AT_A_BOUND = 1e-5
CLAMP = 20.0


# --- cases ---


@dataclass(frozen=True)
class Case:
    """One random batch and one random configuration, in verl's terms."""

    seed: int
    old: Tensor  # (B, T) log π_old
    rollout: Tensor  # (B, T) log π_rollout
    mask: Tensor  # (B, T) bool
    options: Options

    @property
    def config(self) -> CorrectionConfig:
        return translated(self.options)

    @property
    def d(self) -> Tensor:
        """log π_old − log π_rollout in float64, 0 on padding."""
        return torch.where(self.mask, self.old.double() - self.rollout.double(), 0)

    @property
    def rounding(self) -> float:
        """bfloat16 is raised to float32 before anything is computed."""
        return min(ROUNDING[self.old.dtype], ROUNDING[torch.float32])


ROWS = (1, 1, 2, 3, 5, 8, 17, 64)
COLUMNS = (1, 2, 3, 7, 16, 33, 128, 512)
RULES = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip


def make_case(seed: int, presets: dict[str, Options]) -> Case:
    some, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = some.choice(ROWS), some.choice(COLUMNS)
    mask = random_mask(some, noise, shape)
    rollout, old = random_pair(some, noise, shape)
    padding = some.choice([0.0] * 9 + [math.nan])
    dtype = some.choices([torch.float32, torch.float64, torch.bfloat16], [7, 2, 1])[0]
    old, rollout = (torch.where(mask, x, padding).to(dtype) for x in (old, rollout))
    case = Case(seed, old, rollout, mask, some.choice(list(presets.values())))
    return case if some.random() < 0.2 else replace(case, options=random_options(some, case.d, mask))


def random_mask(some: random.Random, noise: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Responses of random lengths; sometimes full, with holes, with empty rows, or without any token."""
    rows, columns = shape
    shortest = some.choice([0, 1, columns])
    lengths = torch.randint(shortest, columns + 1, (rows, 1), generator=noise)
    holes = torch.rand(shape, generator=noise) < some.choice([0.0, 0.0, 0.3])
    return (torch.arange(columns) < lengths) & ~holes & (some.random() > 0.02)


def random_pair(some: random.Random, noise: torch.Generator, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """log π_rollout and log π_old, in float64: from equal to unrelated, now and then with single tokens far away."""
    rollout = torch.rand(shape, generator=noise, dtype=torch.float64).log() * some.choice([0.1, 1.0, 5.0])
    rollout = rollout.clamp(min=-60)  # e⁶⁰ is a float32 perplexity, e⁹⁰ is not
    apart = some.choice([0.0, 1e-4, 0.01, 0.1, 0.5, 3.0]) * torch.randn(shape, generator=noise, dtype=torch.float64)
    old = (rollout + apart + some.choice([0.0, 0.0, -0.05, 0.05])).clamp(max=0)
    far = torch.rand(shape, generator=noise) < some.choice([0.0, 0.0, 0.01, 0.3])
    old = torch.where(far, -60 * torch.rand(shape, generator=noise, dtype=torch.float64), old)
    odd = torch.rand(shape, generator=noise) < some.choice([0.0] * 19 + [0.05])
    old = torch.where(odd, some.choice([-math.inf, math.nan]), old)
    rollout = torch.where(odd & (torch.rand(shape, generator=noise) < 0.3), -math.inf, rollout)
    return (rollout, old) if some.random() < 0.5 else (old, rollout)


def random_options(some: random.Random, d: Tensor, mask: Tensor) -> Options:
    """Weights or none, no rule to four; most thresholds lie inside the data, where they decide something."""
    level = some.choice([None, "token", "sequence"])
    rules = some.sample(RULES, some.choice([0, 1, 1, 2, 4]))
    log_w = statistic("seq_sum_k1" if level == "sequence" else "token_k1", d, mask)[0]
    one, two = Bound(some, log_w, mask).ratio(), Bound(some, log_w, mask).interval()
    options: Options = {
        "rollout_is": level,
        "rollout_is_threshold": some.choice([1.0, 2.0, some.uniform(1, 8), one, str(one), two, two]),
        "rollout_is_batch_normalize": level is not None and some.random() < 0.4,
    }
    if rules:
        bounds = [(rule, Bound(some, statistic(rule, d, mask)[0], mask)) for rule in rules]
        specs = [bound.interval(-1) if rule.endswith("k1") else str(bound.number()) for rule, bound in bounds]
        specs = [str(some.uniform(1, 3)) if some.random() < 0.1 else spec for spec in specs]
        listed = [*rules, rules[0]] if some.random() < 0.1 else rules  # verl drops what is said twice
        options["rollout_rs"] = some.choice([",", ", "]).join(listed)
        options["rollout_rs_threshold"] = ",".join(specs) if some.random() < 0.8 else some.uniform(1, 4)
    return options


@dataclass(frozen=True)
class Bound:
    """Thresholds amid two neighbours among the values, so that moving one a little changes a decision."""

    some: random.Random
    values: Tensor
    mask: Tensor

    def number(self) -> float:
        flat = self.values.expand_as(self.mask)[self.mask]
        known = flat[flat.isfinite()].unique()
        if len(known) < 2:
            return 10 ** self.some.uniform(-4, 1)
        at = self.some.randrange(len(known) - 1)
        return known[at].lerp(known[at + 1], self.some.uniform(0.3, 0.7)).item()

    def ratio(self, sign: int = 1) -> float:
        """Not beyond the clamp: verl never meets such a bound, ours does."""
        return math.exp(sign * min(max(self.number(), -15), 15))

    def interval(self, sign: int = 1) -> str:
        """verl's spelling of two bounds, about logarithms of ratios, or of their inverses."""
        low, high = sorted((self.ratio(sign), self.ratio(sign)))
        return f"{low}_{high}"


# --- statistics in float64, and where a decision is too close to call ---


def statistic(rule: str, d: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What a rule compares, (B, T) or (B, 1), and how many roundings its terms bring. verl's name, our sign of k1.

    An error of |d| in d changes k2 by d² and k3 by |eᵈ − 1||d|; eᵈ − 1 − d itself loses up to 1 + eᵈ + |d|.
    """
    c = d.clamp(-CLAMP, CLAMP)
    kind = rule[-2:]
    reduce = None if rule.startswith("token") else rule.split("_")[1]
    value = {"k1": d, "k2": c.square() / 2, "k3": torch.expm1(c) - c}[kind]
    noise = {"k1": d.abs(), "k2": c.square(), "k3": (1 + c.exp()) * (1 + c.abs())}[kind]
    return over(value, mask, reduce), over(torch.where(mask, noise, 0), mask, reduce)


def over(x: Tensor, mask: Tensor, reduce: str | None) -> Tensor:
    if reduce is None:
        return x
    if reduce == "max":
        return torch.where(mask, x, -math.inf).amax(-1, keepdim=True).where(mask.any(-1, keepdim=True), 0)
    total = torch.where(mask, x, 0).sum(-1, keepdim=True)
    return total if reduce == "sum" else total / mask.sum(-1, keepdim=True).clamp(min=1)


def bounds_of(rule: RejectionRule) -> tuple[float, float]:
    if rule.divergence != "k1":
        return -math.inf, rule.upper
    assert rule.lower is not None
    return math.log(rule.lower), math.log(rule.upper)


def near(value: Tensor, noise: Tensor, bounds: tuple[float, float], rounding: float) -> Tensor:
    """Too close to a bound to call."""
    close = torch.zeros_like(value, dtype=torch.bool)
    for bound in bounds:
        if math.isfinite(bound):
            close |= (value - bound).abs() <= AT_A_BOUND * abs(bound) + STEPS * rounding * noise
    return close


def rules_near(case: Case) -> Tensor:
    """(B, T) tokens about which some rule cannot be called."""
    close = torch.zeros_like(case.mask)
    for rule in case.config.rollout_rs:
        close = close | near(*statistic(rule.name, case.d, case.mask), bounds_of(rule), case.rounding)
    return close & case.mask


def row_means_near(case: Case) -> bool:
    """Whether a row's mean of a token rule's statistic, which verl compares for its metrics, cannot be called."""
    for rule in case.config.rollout_rs:
        value, noise = (over(x, case.mask, "mean") for x in statistic(rule.name, case.d, case.mask))
        if rule.reduce is None and near(value, noise, bounds_of(rule), case.rounding).any():
            return True
    return False


def log_weights(case: Case) -> tuple[Tensor, Tensor]:
    """Logarithm of the unbounded weights and its noise, (B, T) or (B, 1). verl compares their exponentials: 1 more."""
    if case.config.rollout_is == "token":
        return case.d, 1 + case.d.abs()
    return case.d.sum(-1, keepdim=True), 1 + case.d.abs().sum(-1, keepdim=True)


def weight_bounds(config: CorrectionConfig) -> tuple[float, float]:
    """Logarithms; without a lower bound verl counts what is below 1/upper."""
    upper = math.log(config.rollout_is_threshold)
    lower = config.rollout_is_threshold_lower
    return (-upper if lower is None else math.log(lower)), upper


def weights_near(case: Case) -> Tensor:
    """(B, T) tokens whose weight, or whose row's mean raw weight, cannot be called."""
    if case.config.rollout_is is None:
        return torch.zeros_like(case.mask)
    log_w, noise = log_weights(case)
    bounds = weight_bounds(case.config)
    close = near(log_w, noise, bounds, case.rounding)
    row = over(log_w.clamp(-CLAMP, CLAMP).exp(), case.mask, "mean").log() if log_w.shape == case.mask.shape else log_w
    return (close | near(row, over(noise, case.mask, "max"), bounds, case.rounding)) & case.mask


# --- known differences ---


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
        weights, kept, found = verl_correction(case.old, case.rollout, case.mask, **options)
    except (ValueError, ZeroDivisionError) as error:
        return type(error).__name__
    clean = weights is None or not bool(weights[~case.mask].any())
    return Outcome(None if weights is None else weights[case.mask], kept[case.mask] != 0, found, clean)


def shows(name: str, case: Case, right: Outcome) -> bool:
    """Whether this fault alone changes verl's answer."""
    with_fault = run_verl(mended(case, but=name))
    if isinstance(with_fault, str):
        return True
    if name == "k1 clamped in sums":  # its mend drops rules, and their metrics with them
        return not with_fault.kept.equal(right.kept)
    return with_fault.differs(right)


# --- counting ---


@dataclass
class Tally:
    """What was compared, kind by kind, and what differed."""

    compared: Counter[str] = field(default_factory=Counter)
    agreed: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  # too close to call, or not a number in verl
    applied: Counter[str] = field(default_factory=Counter)  # per fault: cases that it affects
    shown: Counter[str] = field(default_factory=Counter)  # and those in which verl's answer is another
    unexplained: list[str] = field(default_factory=list)

    def fault(self, name: str, shown: bool) -> None:
        self.applied[name] += 1
        self.shown[name] += shown

    def check(self, kind: str, case: Case, right: bool, difference: str) -> None:
        self.compared[kind] += 1
        self.agreed[kind] += right
        if not right:
            self.unexplained.append(f"seed {case.seed}, {kind}: {difference}; {describe(case)}")

    def close(self, kind: str, case: Case, got: Tensor, want: Tensor, allowed: Tensor | float) -> None:
        """Equal up to `allowed`; NaN equals NaN, and infinities equal themselves."""
        got, want = got.detach().double(), want.detach().double()
        same = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= allowed)
        worst = "" if same.all() else f"got {got[~same][0].item():.9g}, verl {want[~same][0].item():.9g}"
        self.check(kind, case, bool(same.all()), f"{int((~same).sum())} of {same.numel()}, first {worst}")


def describe(case: Case) -> str:
    options = {key: value for key, value in case.options.items() if value is not None and value is not False}
    return f"{tuple(case.mask.shape)} {str(case.old.dtype).removeprefix('torch.')} {options}"


# --- weights, kept tokens, metrics ---


def compare_correction(case: Case, tally: Tally) -> None:
    config = case.config
    batch = TokenBatch.from_log_probs(case.old, case.rollout, case.mask)
    result = correct(batch, config)
    faults = affected(case)
    if "no token" in faults:
        tally.fault("no token", run_verl(case) == "ValueError")
        tally.check("weights", case, not result.weights.any(), "a batch without tokens has a weight")
        tally.check("kept tokens", case, not result.keep_mask.any(), "a batch without tokens keeps one")
        return
    right_case = mended(case)
    right = run_verl(right_case)
    rule_doubt, weight_doubt = rules_near(case)[case.mask], weights_near(case)[case.mask]
    if isinstance(right, str):
        if right == "ZeroDivisionError" and weight_doubt.any():
            tally.left_out["weights"] += 1
        else:
            tally.check("weights", case, False, f"verl raised {right}")
        return
    kept = right.kept & own_k1(case)[case.mask]
    for name in sorted(faults & MENDED):
        tally.fault(name, shows(name, case, replace(right, kept=kept)))
    tally.check("weights", case, not result.weights[~case.mask].any(), "a weight on padding")
    tally.check("kept tokens", case, not (result.keep_mask & ~case.mask).any(), "padding is kept")
    same = (result.keep_mask[case.mask] == kept) | rule_doubt
    tally.check("kept tokens", case, bool(same.all()), f"{int((~same).sum())} of {same.numel()} tokens")
    tally.left_out["kept tokens"] += bool(rule_doubt.any())
    if "k1 bounds inverted" in faults:
        as_written = read_as_written(config)
        tally.fault("k1 bounds inverted", not correct(batch, as_written).keep_mask.equal(result.keep_mask))
    factor = compare_weights(case, result.weights[case.mask], right, kept, weight_doubt, rule_doubt, tally)
    if not case.d.isfinite().all():
        tally.left_out["metrics"] += 1
        return
    found = metrics(measure(batch, result, config))
    wanted = right.metrics | combined_rule_metrics(case, kept)
    wanted.pop(f"{PREFIX}rollout_is_batch_norm_factor", None)
    if factor is not None:
        wanted[f"{PREFIX}rollout_is_batch_norm_factor"] = factor
    compare_metrics(
        case, found, wanted, bool(rule_doubt.any()) or row_means_near(case), bool(weight_doubt.any()), tally
    )


MENDED = {name for name, fault in FAULTS.items() if fault.mend}


def own_k1(case: Case) -> Tensor:
    """(B, T) tokens that the summed k1 rules keep, where verl's clamp changes them; elsewhere everything."""
    keep = torch.ones_like(case.mask)
    for rule in summed_k1(case) if beyond_clamp(case) else []:
        low, high = bounds_of(rule)
        value, _ = statistic(rule.name, case.d, case.mask)
        keep = keep & (value >= low) & (value <= high)
    return keep


def read_as_written(config: CorrectionConfig) -> CorrectionConfig:
    """The rules with verl's k1 numbers taken for bounds on r, as its documentation does."""
    rules = tuple(
        replace(rule, lower=1 / rule.upper, upper=1 / (rule.lower or 1)) if rule.divergence == "k1" else rule
        for rule in config.rollout_rs
    )
    return replace(config, rollout_rs=rules)


def compare_weights(
    case: Case, got: Tensor, right: Outcome, kept: Tensor, weight_doubt: Tensor, rule_doubt: Tensor, tally: Tally
) -> float | None:
    """Compare weights; the factor of batch normalisation that is right, if there is one and it can be called."""
    config = case.config
    masks = config.rollout_is_mode == "mask"
    if right.weights is None:  # none are asked for, or every one is 0
        if masks and weight_doubt.any():
            tally.left_out["weights"] += 1
        else:
            tally.close("weights", case, got, torch.full_like(got, float(config.rollout_is is None)), 0.0)
        return None
    want, factor = right.weights.double(), None
    if config.rollout_is_batch_normalize:
        factor = right.metrics[f"{PREFIX}rollout_is_batch_norm_factor"]
        if rule_doubt.any() or (masks and weight_doubt.any()):
            tally.left_out["weights"] += 1
            return None
        if not kept.all():
            want, factor = normalised(case, kept)
            tally.fault("normalised before rejection", not torch.allclose(want, right.weights.double(), rtol=1e-3))
    doubt = weight_doubt & masks
    # Products of exponentials: one rounding each, and for sequences Σ|d| roundings in the exponent.
    noise = log_weights(case)[1].expand_as(case.d)[case.mask]
    noise = torch.full_like(noise, 2.0) if config.rollout_is == "token" else noise
    noise, unit = noise.nan_to_num(posinf=0), case.rounding
    if config.rollout_is_batch_normalize:  # the mean brings the noise of the others, and verl's 1e-8
        noise, unit = noise + noise.max(), max(unit, EPSILON)
    allowed = torch.where(doubt, math.inf, want.abs() * STEPS * unit * noise)
    tally.close("weights", case, got, want, allowed)
    tally.left_out["weights"] += bool(doubt.any())
    return factor


def normalised(case: Case, kept: Tensor) -> tuple[Tensor, float]:
    """verl's weights before normalisation, divided by their mean over kept tokens, or one vote per kept sequence."""
    options = case.options | {"rollout_is_batch_normalize": False, "rollout_rs": None, "rollout_rs_threshold": None}
    plain = run_verl(mended(replace(case, options=options)))
    assert isinstance(plain, Outcome)
    assert plain.weights is not None
    w = plain.weights.double()
    if case.config.rollout_is == "token":
        votes = w[kept].tolist()
    else:
        rows = torch.arange(len(case.mask))[:, None].expand_as(case.mask)[case.mask]
        votes = [w[kept & (rows == b)].mean().item() for b in rows[kept].unique().tolist()]
    mean = sum(votes) / len(votes) if votes else 0.0
    factor = mean if mean > EPSILON else 1.0
    return w / factor, factor


def combined_rule_metrics(case: Case, kept: Tensor) -> dict[str, float]:
    """Shares of rejected tokens and of sequences that lost one, counted from the tokens that are rightly kept."""
    rejected = torch.zeros_like(case.mask)
    rejected[case.mask] = ~kept
    return {
        f"{PREFIX}rollout_rs_masked_fraction": rejected.sum().item() / case.mask.sum().item(),
        f"{PREFIX}rollout_rs_seq_masked_fraction": rejected.any(-1).sum().item() / case.mask.any(-1).sum().item(),
    }


# --- metrics ---

MIRROR = {"max": "min", "min": "max", "seq_max": "seq_min", "seq_min": "seq_max"} | {
    f"{seq}fraction_{a}": f"{seq}fraction_{b}" for seq in ("", "seq_") for a, b in (("high", "low"), ("low", "high"))
}
"""verl's k1 statistic is −log r, ours log r: extremes and sides change places."""
DECISIONS = ("fraction_high", "fraction_low", "masked_fraction", "seq_masked_fraction")
SIGNED = ("mean", "max", "min", "seq_mean", "seq_max", "seq_min")


def ours_for(name: str, case: Case) -> tuple[str, int]:
    """Our name for verl's metric, and the sign between the two."""
    rule, suffix = rule_of(name, case)
    if rule is not None and rule.divergence == "k1":
        return f"rollout_rs_{rule.name}_{MIRROR.get(suffix, suffix)}", -1 if suffix in SIGNED else 1
    if case.config.rollout_is == "sequence" and name in ("rollout_is_max", "rollout_is_min"):
        return name.replace("_is_", "_is_raw_"), 1  # verl reports the unbounded extremes of sequence weights
    return name, 1


def rule_of(name: str, case: Case) -> tuple[RejectionRule | None, str]:
    for rule in case.config.rollout_rs:
        if name.startswith(f"rollout_rs_{rule.name}_"):
            return rule, name.removeprefix(f"rollout_rs_{rule.name}_")
    return None, name


def compare_metrics(
    case: Case, found: dict[str, float], wanted: dict[str, float], rule_doubt: bool, weight_doubt: bool, tally: Tally
) -> None:
    """Every metric of verl's; a sign, a name or a clamp apart."""
    case = without_empty_rows(case)
    wanted = dict(wanted)
    faults = affected(case)
    if "unclamped exponentials" in faults:
        tally.fault("unclamped exponentials", replaced(wanted, reclamped(case, wanted)))
    if "epsilon in sample size" in faults:
        tally.fault("epsilon in sample size", replaced(wanted, without_epsilon(wanted)))
    for key, want in wanted.items():
        name = key.removeprefix(PREFIX)
        rule, suffix = rule_of(name, case)
        counted = "fraction" in name or "oob" in name or (case.config.rollout_is_mode == "mask" and "_is_" in name)
        if counted and (rule_doubt if "_rs_" in name else weight_doubt):
            tally.left_out["metrics"] += 1
            continue
        if rule is not None and rule.divergence == "k1" and beyond_clamp(case) and suffix not in DECISIONS:
            tally.left_out["metrics"] += 1  # verl measures the clamped log-ratio
            continue
        ours, sign = ours_for(name, case)
        if PREFIX + ours not in found:
            tally.check("metrics", case, False, f"{name} is not reported")
            continue
        got, allowed = sign * found[PREFIX + ours], allowed_error(name, want, case)
        if name.endswith("_std"):  # a variance is a difference of sums: its error does not shrink with it
            got, want = got * got, want * want
        same = math.isfinite(got) and abs(got - want) <= allowed
        tally.check("metrics", case, same, f"{name} got {got:.9g}, verl {want:.9g}, allowed {allowed:.3g}")


def replaced(wanted: dict[str, float], right: dict[str, float]) -> bool:
    """Put the right numbers in place; whether any changed by more than rounding."""
    changed = any(not math.isclose(right[key], wanted[key], rel_tol=1e-4) for key in right)
    wanted |= right
    return changed


def reclamped(case: Case, wanted: dict[str, float]) -> dict[str, float]:
    """k3_kl and the extremes of sequence weights with the clamp that verl has everywhere else."""
    c = case.d[case.mask].clamp(-CLAMP, CLAMP)
    right = {f"{PREFIX}k3_kl": (torch.expm1(c) - c).mean().item()}
    for key in (f"{PREFIX}rollout_is_min", f"{PREFIX}rollout_is_max"):
        if case.config.rollout_is == "sequence" and key in wanted:
            right[key] = min(max(wanted[key], math.exp(-CLAMP)), math.exp(CLAMP))
    return right


def without_epsilon(wanted: dict[str, float]) -> dict[str, float]:
    """verl gives (m + 1e-8)²/mean(w²), m the mean weight; m²/mean(w²) is meant."""
    key, m = f"{PREFIX}rollout_is_eff_sample_size", wanted.get(f"{PREFIX}rollout_is_mean")
    return {} if m is None else {key: wanted[key] * (m / (m + EPSILON)) ** 2}


def allowed_error(name: str, want: float, case: Case) -> float:
    """What rounding allows. u is one rounding (verl's 1e-8 in float64), STEPS of them are a sum.

    A mean of positive numbers has a relative error of STEPS u. What is a difference of sums has one relative to the
    sums; what is exponentiated turns an absolute error into a relative one.
    """
    rule, suffix = rule_of(name, case)
    u = STEPS * max(case.rounding, EPSILON)
    if "fraction" in name or "oob" in name:
        return u
    if rule is not None:
        return u * rule_noise(rule, suffix, case)
    if "_is_" in name:
        return u * weight_noise(name, want, case)
    d, c = case.d, case.d.clamp(-CLAMP, CLAMP)
    sizes = over(torch.where(case.mask, case.old.abs() + case.rollout.abs(), 0).double(), case.mask, "mean")
    largest = sizes.max().item()
    if name == "k3_kl":
        return u * ((1 + c.exp()) * (1 + c.abs()))[case.mask].mean().item()
    if name == "chi2_token":
        return 2 * u * (1 + (2 * c).exp()[case.mask].mean().item())
    if name == "chi2_seq":
        squares = (2 * d.sum(-1).clamp(-CLAMP, CLAMP)).exp()
        return 2 * u * (1 + (squares * (1 + d.abs().sum(-1))).mean().item())
    return u * largest * (abs(want) if name in ("training_ppl", "rollout_ppl", "ppl_ratio") else 1) + u * abs(want)


def rule_noise(rule: RejectionRule, suffix: str, case: Case) -> float:
    """Error of a rule's metric, in STEPS u."""
    value, noise = statistic(rule.name, case.d, case.mask)
    if rule.reduce is None and suffix.startswith("seq_"):
        value, noise = over(value, case.mask, "mean"), over(noise, case.mask, "mean")
    value, noise = (x.expand_as(case.d)[case.mask] for x in (value, noise))
    if suffix == "std":
        low, high = bounds_of(rule)
        inside = value.clamp(max(low, -1e300), min(high, 1e300))
        return 2 * (inside.abs().max() * (inside.abs() + noise * (value == inside)).max()).item()
    if suffix == "seq_std":
        return 2 * (value.abs().max() * (value.abs() + noise).max()).item()
    if suffix in ("max", "min", "seq_max", "seq_min"):
        upwards = suffix.endswith("max") == (rule.divergence != "k1")
        return noise[value.argmax() if upwards else value.argmin()].item()
    return noise.max().item()


def weight_noise(name: str, want: float, case: Case) -> float:
    """Error of a metric of the weights, in STEPS u: relative, and Σ|d| more for sequence weights."""
    relative = 2.0 + (case.d.abs().sum(-1).max().item() if case.config.rollout_is == "sequence" else 0.0)
    log_w, _ = log_weights(case)
    raw = log_w.clamp(-CLAMP, CLAMP).exp().expand_as(case.d)[case.mask]
    low, high = (math.exp(bound) for bound in weight_bounds(case.config))
    w = raw.clamp(max=high) if case.config.rollout_is_mode == "truncate" else raw.where((raw >= low) & (raw <= high), 0)
    if name.endswith("_std"):  # ours squares w − 1
        return 4 * relative * (w.square() + (w - 1).square()).max().item()
    if name.endswith("deviation"):
        return relative * (1 + w.max().item())
    if name.endswith("sample_size"):
        return 2 * relative * want
    return relative * want


# --- KL penalties ---


def compare_kl(case: Case, tally: Tally) -> None:
    """Every estimator of verl's, value and gradient, on the real tokens with finite log-probs.

    A bfloat16 case is compared with verl in float32: e^-δ − 1 + δ has no digits left in bfloat16.
    """
    usable = case.mask & case.old.isfinite() & case.rollout.isfinite()
    log_probs, ref = case.old[usable], case.rollout[usable]
    wide = torch.promote_types(log_probs.dtype, torch.float32)
    c = (ref.double() - log_probs.double()).clamp(-CLAMP, CLAMP)
    cut = torch.expm1(c) - c > 9.99
    tally.fault("k3 cut off", bool(cut.any()))
    # δ is off by one rounding of |δ|, which e^-δ multiplies; then a handful of operations on numbers of these sizes.
    # Below 1/4 our k3 is a series to the eleventh power: its gradient stops there, 6e-15 short, which float64 shows.
    allowed = 8 * ROUNDING[log_probs.dtype] * (1 + c.abs()) * (1 + c.exp() + c.abs()) + 0.25**11 / math.factorial(11)
    for name in KL_ESTIMATORS:
        got = kl_with_gradient(kl_penalty, log_probs, ref, name)
        want, gradient = (x.double() for x in kl_with_gradient(verl_kl, log_probs.to(wide), ref.to(wide), name))
        if name.removesuffix("+") in ("k3", "low_var_kl"):
            want = torch.where(cut, torch.expm1(c) - c, want)
            gradient = gradient if name.endswith("+") else torch.where(cut, -torch.expm1(c), gradient)
        tally.close("KL values", case, got[0], want, allowed)
        tally.close("KL gradients", case, got[1], gradient, allowed)


def kl_with_gradient(
    penalty: Callable[..., Tensor], log_probs: Tensor, ref: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    leaf = log_probs.detach().requires_grad_()
    value = penalty(leaf, ref, name)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


# --- policy losses ---

VERL_LOSS = {
    "ppo_clip": "vanilla", "dual_clip": "vanilla", "gpg": "gpg", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo",
    "geo_mean": "geo_mean", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl", "clip_cov": "clip_cov", "kl_cov": "kl_cov",
}  # fmt: skip
MODES = get_args(Aggregation)


@dataclass(frozen=True)
class Update:
    """A case in float64 with what a loss needs besides: π_θ, advantages, the loss and its numbers."""

    case: Case
    log_probs: Tensor  # (B, T) log π_θ
    advantages: Tensor  # (B, T)
    correction: CorrectionConfig
    loss: LossConfig

    @property
    def batch(self) -> TokenBatch:
        old, rollout, mask = self.case.old, self.case.rollout, self.case.mask
        return TokenBatch(mask, rollout, old_log_probs=old, advantages=self.advantages)


def compare_losses(case: Case, tally: Tally) -> None:
    """Three losses of the decoupled kind and one of bypass mode, in float64: rounding was compared above."""
    if not case.mask.any() or not case.d.isfinite().all():
        return
    case = with_clean_padding(replace(case, old=case.old.double(), rollout=case.rollout.double()))
    some, noise = random.Random(-case.seed - 1), torch.Generator().manual_seed(case.seed)
    shape = case.mask.shape
    apart = some.choice([1e-3, 0.1, 1.0]) * torch.randn(shape, generator=noise, dtype=torch.float64)
    log_probs = torch.where(case.mask, (case.old + apart).clamp(max=0), 0)
    advantages = torch.randn(shape[0], some.choice([1, shape[1]]), generator=noise, dtype=torch.float64)
    advantages = (advantages * (torch.rand(advantages.shape, generator=noise) > 0.1)).expand(shape)
    for name in some.sample(list(VERL_LOSS), 3):
        loss, denominator = random_loss(some, name), some.choice(["fixed", "kept"])
        correction = replace(case.config, bypass_mode=False, loss_type=name, denominator=denominator)
        compare_decoupled(Update(case, log_probs, advantages, correction, loss), tally)
    options = case.options | {"bypass_mode": True, "loss_type": some.choice(["reinforce", "ppo_clip"])}
    if options["loss_type"] == "ppo_clip":  # verl computes weights for its metrics only, ours refuses them
        options |= {"rollout_is": None, "rollout_is_batch_normalize": False}
    case = replace(case, options=options)
    correction = replace(case.config, denominator="kept")
    compare_bypass(Update(case, log_probs, advantages, correction, random_loss(some, "reinforce")), tally)


def random_loss(some: random.Random, name: str) -> LossConfig:
    return LossConfig(
        clip_ratio_low=some.uniform(0.05, 0.5),
        clip_ratio_high=some.uniform(0.05, 0.5),
        clip_ratio_c=1e9 if name in ("ppo_clip", "reinforce") else some.uniform(1.2, 5),  # verl always clips twice
        dppo_ratio_cap=some.choice([1.5, 20.0]),
        tau_pos=some.uniform(0.5, 2),
        tau_neg=some.uniform(0.5, 2),
        clip_cov_ratio=1.0,  # every candidate, because verl draws them from torch's global generator
        clip_cov_lb=some.uniform(-0.5, 0.5),
        clip_cov_ub=some.uniform(0.5, 5),
        kl_cov_ratio=some.choice([2e-4, 0.05, 1.0]),
        ppo_kl_coef=some.choice([0.1, 1.0]),
        # verl's sapo takes this mode whatever is asked for, and its geo_mean is a mean over sequences.
        loss_agg_mode="seq-mean-token-mean" if name in ("sapo", "geo_mean") else some.choice(MODES),
        loss_scale_factor=some.choice([None, 64.0]),
    )


def compare_decoupled(update: Update, tally: Tally) -> None:
    """With the weights and kept tokens of our correction, which were compared above."""
    case, correction, loss = update.case, update.correction, update.loss
    name = correction.loss_type
    result = correct(update.batch, correction)
    kept = result.keep_mask
    if name == "kl_cov":
        tied = ties(update, kept)
        tally.fault("kl_cov of equal covariances", tied)
        if tied:
            return
    if loss.loss_agg_mode == "seq-mean-token-mean" and not kept.equal(case.mask):
        correction = replace(correction, denominator="kept")  # verl divides a sequence by its kept tokens only
    weights = None if correction.rollout_is is None else result.weights
    if name == "geo_mean" and weights is not None:  # verl adds 1e-10 before the logarithm, ours is at least 1e-10
        weights = weights.clamp(min=1e-10) - 1e-10
    numbers = actor_numbers(update, correction.denominator)
    verl = functools.partial(verl_loss, VERL_LOSS[name], case.old)
    given = (update.advantages, kept, weights)
    got, measured = with_gradient(update, lambda x: policy_loss(x, update.batch, result, correction, loss))
    want, found = with_gradient(update, lambda x: verl(x, *given, **numbers))
    if not kept.any() and name != "geo_mean":
        want = nothing(want, tally)
    if name == "geo_mean":
        rows = max(int(kept.any(-1).sum()), 1)
        tally.fault("geo_mean of empty rows", rows < len(kept))
        want = want[0] * len(kept) / rows, want[1] * len(kept) / rows
    compare_loss(update, kept, result.weights, got, want, tally)
    if VERL_LOSS[name] == "vanilla":
        compare_loss_metrics(update, measured, found, tally)
    if name.startswith("dppo") and loss.dppo_ratio_cap == LossConfig().dppo_ratio_cap:
        del numbers["clip_ratio_c"]
        unset, _ = with_gradient(update, lambda x: verl(x, *given, **numbers))
        tally.fault("dppo cap", not torch.allclose(unset[1], want[1]))


def nothing(want: ValueAndGradient, tally: Tally) -> ValueAndGradient:
    tally.fault("nothing kept", bool(want[0].isnan()))
    return torch.zeros_like(want[0]), torch.zeros_like(want[1])


def compare_loss_metrics(update: Update, measured: Measured, found: dict[str, float], tally: Tally) -> None:
    """Means over the kept tokens; of numbers up to the largest |log ρ|, or of flags."""
    largest = 1 + (update.log_probs - update.case.old).abs().max().item()
    for key, want in found.items():
        if key == "actor/pg_clipfrac_lower" and update.correction.loss_type != "dual_clip":
            continue  # ppo_clip has no second clip
        count, total = measured.table[measured.names.index(key)][:2].tolist()
        got = total / max(count, 1)
        same = abs(got - want) <= STEPS * EPSILON * largest
        tally.check("loss metrics", update.case, same, f"{key} got {got:.9g}, verl {want:.9g}")


def compare_bypass(update: Update, tally: Tally) -> None:
    """π_θ against π_rollout, weights and rejection within the loss."""
    case, correction, loss = update.case, update.correction, update.loss
    inner = replace(case, old=update.log_probs)  # verl corrects π_θ/π_rollout
    close = rules_near(inner).any() or weights_near(inner).any()
    normalised_early = correction.rollout_is_batch_normalize and correction.rollout_rs
    if close or normalised_early or "every weight zero" in affected(inner) or "k1 clamped in sums" in affected(inner):
        tally.left_out["loss values"] += 1
        tally.left_out["loss gradients"] += 1
        return
    result = correct(update.batch.replace(old_log_probs=update.log_probs), correction)
    got, _ = with_gradient(update, lambda x: policy_loss(x, update.batch, result, correction, loss))
    numbers = actor_numbers(update, "kept") | {"policy_loss": {"rollout_correction": case.options}}
    verl = functools.partial(verl_loss, "bypass_mode", case.rollout, **numbers)
    want, _ = with_gradient(update, lambda x: verl(x, update.advantages, case.mask))
    if not result.keep_mask.any():
        want = nothing(want, tally)
    compare_loss(update, result.keep_mask, result.weights, got, want, tally)


def with_gradient(update: Update, value: Callable[[Tensor], tuple[Tensor, Any]]) -> tuple[ValueAndGradient, Any]:
    """Value and gradient in π_θ's log-probs, and what the loss has measured besides."""
    leaf = update.log_probs.clone().requires_grad_()
    total, measured = value(leaf)
    return (total.detach(), torch.autograd.grad(total, leaf)[0]), measured


def actor_numbers(update: Update, denominator: str) -> Options:
    """Fields of verl's actor. Its denominators count the mask that it is given, unless it is told a total."""
    loss, mask = update.loss, update.case.mask
    totals: Options = {"loss_scale_factor": loss.loss_scale_factor}
    if denominator == "fixed":
        totals |= {"batch_num_tokens": mask.sum(), "global_batch_size": mask.any(-1).sum()}
    nested = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
    fields = ("clip_ratio_low", "clip_ratio_high", "tau_pos", "tau_neg", "loss_agg_mode")
    cap = loss.dppo_ratio_cap if update.correction.loss_type.startswith("dppo") else loss.clip_ratio_c
    return {key: getattr(loss, key) for key in fields} | {
        "clip_ratio_c": cap,
        "global_batch_info": totals,
        "policy_loss": {key: getattr(loss, key) for key in nested},
    }


def compare_loss(
    update: Update, kept: Tensor, weights: Tensor, got: ValueAndGradient, want: ValueAndGradient, tally: Tally
) -> None:
    """verl's 1e-8 in the counts is the largest error: relative in a gradient, relative to Σ|L| in the value."""
    loss, correction = update.loss, update.correction
    told = {"loss": correction.loss_type, "denominator": correction.denominator, "agg": loss.loss_agg_mode}
    case = replace(update.case, options=update.case.options | told)
    d = update.log_probs - (update.case.rollout if correction.bypass_mode else update.case.old)
    sizes = weights * update.advantages.abs() * (1 + d.exp()) * (1 + update.log_probs.abs()) + d.abs()
    count = int(kept.sum()) if loss.loss_agg_mode == "token-mean" else 1
    scale = torch.where(kept, sizes, 0).sum().item() / max(count, 1)
    tally.close("loss values", case, got[0], want[0], STEPS * EPSILON * (scale + want[0].abs()))
    tally.close("loss gradients", case, got[1], want[1], STEPS * EPSILON * want[1].abs() + 1e-13 * scale)


def ties(update: Update, kept: Tensor) -> bool:
    """Whether kl_cov's share ends amid equal covariances: verl then takes any of them, ours the first."""
    a, log_p = update.advantages[kept], update.log_probs[kept]
    if not len(a):
        return False
    cov = ((a - a.mean()) * (log_p - log_p.mean())).sort(descending=True).values
    last = max(int(len(cov) * update.loss.kl_cov_ratio), 1) - 1
    return last + 1 < len(cov) and bool(cov[last] - cov[last + 1] <= 1e-12 * (1 + cov.abs().max()))


# --- presets, and the run ---


def compare_presets(presets: dict[str, Options], tally: Tally) -> None:
    """Ours take the numbers of k1 bounds as they are written."""
    for name, fields in presets.items():
        case = Case(0, torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), fields)
        ours = PRESETS[name].config if name in PRESETS else None
        inverted = "k1 bounds inverted" in affected(case)
        want = read_as_written(case.config) if inverted else case.config
        tally.check("presets", case, ours is not None and rounded(ours) == rounded(want), f"{name} is {ours}")


def compare_translation(case: Case, tally: Tally) -> None:
    """The library's reader of verl's configuration against the tests' own."""
    got = from_verl(case.options)
    tally.check("translations", case, rounded(got) == rounded(case.config), f"{got}")


def rounded(config: CorrectionConfig) -> CorrectionConfig:
    """1/(1/x) is not always x."""
    rules = [
        replace(rule, upper=float(f"{rule.upper:.12g}"), lower=rule.lower and float(f"{rule.lower:.12g}"))
        for rule in config.rollout_rs
    ]
    return replace(config, rollout_rs=tuple(rules))


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    cells = [header, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def report(tally: Tally) -> str:
    kinds = [(k, tally.compared[k], tally.agreed[k], tally.left_out[k]) for k in tally.compared]
    faults = [
        (n, tally.applied[n], tally.shown[n] if tally.applied[n] else "never met", f.what) for n, f in FAULTS.items()
    ]
    return "\n\n".join(
        [
            table(("compared", "comparisons", "agree", "left out"), kinds),
            table(("known difference", "cases", "changed", "what it is: verl; ours"), faults),
            f"{len(tally.unexplained)} differences without an explanation",
            *tally.unexplained[:20],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="how many random cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the next has the next")
    options = parser.parse_args()
    try:
        presets = verl_presets()
    except UsageError as error:
        sys.exit(str(error))
    torch.set_num_threads(1)
    tally = Tally()
    compare_presets(presets, tally)
    for seed in range(options.seed, options.seed + options.count):
        case = make_case(seed, presets)
        compare_translation(case, tally)
        compare_correction(case, tally)
        compare_kl(case, tally)
        compare_losses(case, tally)
    print(report(tally))
    sys.exit(1 if tally.unexplained else 0)


if __name__ == "__main__":
    main()
