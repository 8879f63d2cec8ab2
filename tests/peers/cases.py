"""Random batches and configurations in verl's terms, and where a decision about one is too close to call."""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from reference import config as translated
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.rules import RejectionRule

Options = dict[str, Any]

# Half the distance between neighbours at 1: what one operation rounds by.
ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8}
# verl adds 1e-8 to the count in every mean. In float32 that is less than rounding, in float64 it is not.
EPSILON = 1e-8
# torch sums pairwise, in blocks: each of 512 × 64 terms passes through at most 15 additions and a block of 16, so the
# sum is within 31 roundings of Σ|x|; the few operations around it fit into the thirty-second.
STEPS = 32
AT_A_BOUND = 1e-5
CLAMP = 20.0


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
    threshold = some.choice([1.0, 2.0, some.uniform(1, 8), one, str(one), two, two])
    options: Options = {
        "rollout_is": level,
        "rollout_is_threshold": 2.0 if level is None else threshold,  # verl ignores another one, and ours refuses it
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
        values = flat[flat.isfinite()].unique()
        if len(values) < 2:
            return 10 ** self.some.uniform(-4, 1)
        at = self.some.randrange(len(values) - 1)
        return values[at].lerp(values[at + 1], self.some.uniform(0.3, 0.7)).item()

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
