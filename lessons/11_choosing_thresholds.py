# %% [markdown]
# # 11 · Choosing thresholds
#
# **Claim.** A threshold has no right value of its own: it follows from what one can afford, from the length of the
# answers and from the size of the batch, and it must be judged on a step that it was not chosen on.
#
# *30 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection (lesson 07), and
# bias, noise and progress of a gradient (lesson 10).
#
# At the end you can
#
# - read the curve of a metric over its threshold, and turn it around: from a budget to the threshold;
# - say what a bound on an answer allows per token;
# - find the bound that makes the most progress for your batch size, and how uncertain it is;
# - test a threshold on a step that it was not chosen on, and take it to verl without turning it upside down.

# %%
import itertools
import math
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_11 import TIGHTEST, TO_VERL, TOLERANCE
from recorded import load
from show import picture, show

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate, preset
from rlcorr.analysis.budget import curve_of, ess_at_least, keep_at_least, sweep_of
from rlcorr.analysis.regions import sequence_bounds
from rlcorr.analysis.sweep import sweep_rule, sweep_weights
from rlcorr.analysis.thresholds import at_threshold, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import best_thresholds, exact_curves, progress_curves
from rlcorr.figures.thresholds import shares_over
from rlcorr.gradients.bootstrap import bootstrap, interval_of
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.estimates import mean_gradients
from rlcorr.gradients.report import samples_of
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.ratios import over_sequence
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.systems.export import exports, to_python
from rlcorr.systems.verl import from_verl, to_verl, verl_text
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(11)

# %% [markdown]
# ## Ten tokens
#
# Ten tokens have the ratios 0.5, 0.8, 0.9, 1, 1, 1, 1.1, 1.2, 2.1 and 8. A **band** $[1/t, t]$ keeps what lies inside.
# How many does $t = 1.3$ keep? The band is 0.77 to 1.3, so 0.5, 2.1 and 8 are outside: 7 of 10. To keep 80 % we need
# one more, and the next one out is 0.5: $t = 2$. Do it for 90 % before you run the cell.
#
# A **budget** is this question: what share must stay? The answer is a **quantile**: sort the tokens by their distance
# from 1, that is by $|\log r|$, and take the distance of the last one that is still paid for.
#
# Weights have a budget, too. A **cap** $C$ makes $w = \min(r, C)$. It keeps all tokens, but large weights cost
# **effective sample size** (lesson 02), $\mathrm{ESS} = (\sum w)^2 / (N \sum w^2)$.

# %%
ratios = torch.tensor([[0.5, 0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 2.1, 8.0]], dtype=torch.float64)
engine = torch.full_like(ratios, 0.1)
ten = TokenBatch.from_log_probs((engine * ratios).log(), engine.log(), torch.ones(1, 10))

band = sweep_rule(ten, RejectionRule.named("token_k1", lower=0.5, upper=2.0))  # its own bounds are not read
bounds = [1.05, 1.3, 2.05, 2.2, 9.0]
kept = [band.at(upper=t, lower=1 / t).kept_fraction for t in bounds]
show("band [1/t, t], t =", bounds, digits=2)
show("kept", kept, digits=1)

capped = sweep_weights(ten, "token")
caps = [1.0, 1.2, 2.1, 8.0]
show("cap C =", caps, digits=2)
show("ESS", [capped.at(upper=cap).rollout_is_eff_sample_size for cap in caps], digits=3)

assert kept == [0.3, 0.7, 0.8, 0.9, 1.0]
by_hand = (0.5 + 0.8 + 0.9 + 7) ** 2 / (10 * (0.5**2 + 0.8**2 + 0.9**2 + 7))  # cap 1
assert abs(capped.at(upper=1.0).rollout_is_eff_sample_size - by_hand) < 1e-12

# %% [markdown]
# ## The equation
#
# The kept share $F(t)$ is a **distribution function**: the share of tokens whose distance is at most $\log t$. It
# climbs from one token to the next. So the tightest band that keeps a share $s$ is the quantile $F^{-1}(s)$, and it
# always exists.
#
# For the cap it is not so plain that the question has one answer. Might the ESS rise and fall? It does not: **the ESS
# of truncated weights never rises with the cap.** Let $n$ weights be above $C$; the others have the sum $a$ and the sum
# of squares $b$. Then $\mathrm{ESS} = S_1^2/(N S_2)$ with $S_1 = a + nC$ and $S_2 = b + nC^2$, and
#
# $$ \frac{d}{dC}\,\frac{S_1^2}{S_2} = \frac{2 n S_1}{S_2^2}\,(b - aC) \;\le\; 0, $$
#
# because each uncapped weight is at most $C$, so $b = \sum w\cdot w \le C \sum w = aC$. So there is a loosest cap that
# keeps the ESS above a number, if any cap does.
#
# ### Check 1, with symbols

# %%
a, b, n, C, N = sympy.symbols("a b n C N", positive=True)
first, second = a + n * C, b + n * C**2
slope = sympy.diff(first**2 / second, C)
assert sympy.simplify(slope - 2 * n * first * (b - a * C) / second**2) == 0

w = sympy.symbols("w_1:4", positive=True)  # three uncapped weights, w = C·x with 0 < x < 1
x = sympy.symbols("x_1:4", positive=True)
gap = sum(weight**2 for weight in w) - C * sum(w)
gap = sympy.factor(gap.subs({weight: C * share for weight, share in zip(w, x, strict=True)}))
assert sympy.expand(gap - C**2 * sum(share * (share - 1) for share in x)) == 0  # each term is below 0
show("b − aC =", str(gap))

# %% [markdown]
# ### Check 2, with numbers
#
# A curve over thresholds needs no new pass over the tokens. `sweep` sorts them once, and every point is a binary
# search. It must agree with `evaluate`, which looks at every token again. Here on a recorded step, in
# float64, for forty thresholds of a band on the geometric mean and of a cap on the product.


# %%
geometric, product = preset("decoupled_geo_rs"), preset("decoupled_seq_is")
batch = load("kv_fp8_e5m2")
worst = {}
for config, ours, theirs in (
    (geometric, "kept_fraction", "rollout_corr/kept_fraction"),
    (product, "rollout_is_eff_sample_size", "rollout_corr/rollout_is_eff_sample_size"),
):
    points = usual_thresholds(batch, config, count=40)
    fast = getattr(curve_of(sweep_of(batch, config), config, points), ours).tolist()
    moved = [at_threshold(config, t) for t in points]
    slow = [evaluate(batch, moved_config)[1][theirs] for moved_config in moved]
    worst[ours] = max(abs(one - other) for one, other in zip(fast, slow, strict=True))
    show(f"{ours}, at 40 points", fast[0], "to", fast[-1], digits=3)
    assert worst[ours] < 1e-6

falls = 0.0
for _ in range(200):
    weights = torch.randn(50, dtype=torch.float64, generator=generator).exp()
    under = torch.minimum(weights, torch.linspace(0.01, 10, 500, dtype=torch.float64)[:, None])
    ess = under.sum(1).square() / (50 * under.square().sum(1))
    falls = max(falls, float(ess.diff().max()))
show("ESS ever rises with the cap", falls > 1e-12)
assert falls <= 1e-12

# %% [markdown]
# ## The curve of a recorded step
#
# `kv_fp8_e5m2`, last step: 128 answers of 59 tokens, an engine with a coarse cache. The rule keeps an answer while the
# geometric mean of its ratios lies in $[1/t, t]$. The dotted line is verl's preset, $t = 1.001$. **Look for** the place
# where the curve is steep: to its left a bound rejects nearly everything, to its right nearly nothing.

# %%
points = usual_thresholds(batch, geometric)
swept = curve_of(sweep_of(batch, geometric), geometric, points)
picture(shares_over(sweep_of(batch, geometric), points, swept, of_ratio=True, at=1.001))
three = [1.001, 1.01, 1.05]
at = curve_of(sweep_of(batch, geometric), geometric, three)
show("t", three, digits=3)
show("kept tokens", at.kept_fraction, digits=2)
show("k3 of the kept tokens", at.kept_k3_kl, digits=5)
show("χ² of their ratios", at.kept_chi2, digits=5)
assert at.kept_fraction[0] < 0.1 < 0.9 < at.kept_fraction[2]

# %% [markdown]
# ## The budget
#
# Now turn the curve around. *Keep 95 % of the tokens*: what is the tightest band, on single tokens and on the geometric
# mean? *Keep an ESS of 0.8*: what is the loosest cap on the product?


# %%
def rule(name):
    """One band, whose bounds are about to be moved."""
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, lower=0.5, upper=2.0),))


token_band, mean_band = rule("token_k1"), rule("seq_mean_k1")


def or_none(find, *arguments):
    try:
        return f"{find(*arguments):.4f}"
    except UsageError:
        return "none"


RUNS = ("control_fp32", "bf16", "moe_bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4")
show("last step", "token", "mean", "cap")
for name in RUNS:
    step = load(name)
    answers = (or_none(keep_at_least, step, token_band, 0.95), or_none(keep_at_least, step, mean_band, 0.95))
    show(name, *answers, or_none(ess_at_least, step, product, 0.8))

for name in ("bf16", "kv_fp8_e5m2"):
    step = load(name)
    t = keep_at_least(step, mean_band, 0.95)
    chosen = at_threshold(mean_band, t)
    assert float(correct(step, chosen).keep_mask[step.response_mask].double().mean()) >= 0.95

# %% [markdown]
# Read a column downwards. The same budget asks for a band of ±0.3 % on the geometric mean in `bf16`, of ±6 % with the
# coarse cache, of a factor of two with weights that are four steps old. **There is no threshold that is right for two
# runs.** What can be carried from one run to another is the budget.
#
# And a budget can be out of reach. On `kv_fp8_e5m2` an ESS of 0.8 for the product takes a cap within a hundredth of 1,
# and 0.85 cannot be had. The library says so:

# %%
try:
    ess_at_least(batch, product, 0.85)
except UsageError as error:
    show(str(error))
show("loosest cap for an ESS of 0.8 and of 0.7", [ess_at_least(batch, product, share) for share in (0.8, 0.7)])

below_one = [1.0, 0.5, 0.1, 0.01]
weights = sweep_weights(batch, "sequence")
show("caps from 1 downwards", below_one, digits=2)
show("ESS", [weights.at(upper=cap).rollout_is_eff_sample_size for cap in below_one], digits=3)
assert 0.8 < weights.at(upper=1.0).rollout_is_eff_sample_size < 0.81

# %% [markdown]
# A cap of 1 gives hardly more than 0.8, and then no weight is large any more. What costs sample size are the small
# ones: answers that the trainer would hardly write. A cap far below 1 does raise the ESS, but only because at last all
# weights are the same. That is no correction. A cap works on one side, and so does its budget.
#
# ## What a bound allows per token
#
# A bound on an answer hides how strict it is. Write it per token. The product of $T$ ratios lies in $[1/u, u]$ exactly
# when
#
# $$ \Big|\frac1T \sum_t d_t\Big| \le \frac{\log u}{T} , $$
#
# and the geometric mean when the same average is at most $\log u$. So **a band on the product becomes stricter with the
# length, a band on the geometric mean does not**. Meanwhile the average itself becomes smaller: for independent noise
# it shrinks like $1/\sqrt T$, more slowly than the product's tolerance does. (If $d$ leans to one side, it does not
# shrink at all.)

# %%
lengths = [10, 60, 500, 2000]
product_band = preset("decoupled_seq_is_rs")  # rejects outside 0.5 … 2
by_length = torch.tensor(lengths, dtype=torch.float64)
_, of_product = sequence_bounds(product_band, by_length)[-1]
_, of_mean = sequence_bounds(geometric, by_length)[-1]
show("tokens of the answer", lengths)
show("product up to 2: mean d up to", of_product / by_length, digits=5)
show("geometric mean up to 1/0.999", of_mean / by_length, digits=5)
assert torch.allclose(of_product.double(), torch.full_like(by_length, math.log(2)))
assert torch.allclose(of_mean.double() / by_length, torch.full_like(by_length, -math.log(0.999)), rtol=1e-5)

show("recorded, last step", "tokens", "|d|", "|mean d|", "|d|/√2000")
for name in ("bf16", "kv_fp8", "kv_fp8_e5m2"):
    step = load(name)
    d = correct(step, CorrectionConfig()).log_ratio
    rows = step.response_mask.any(-1)
    means = over_sequence(d, step.response_mask, "mean")[rows]
    average_length = float(step.response_mask.sum(-1)[rows].double().mean())
    typical = float(d[step.response_mask].square().mean().sqrt())
    show(name, round(average_length), typical, float(means.square().mean().sqrt()), typical / 2000**0.5, digits=5)

# %% [markdown]
# A product up to 2 sounds generous. Over 2,000 tokens it allows 0.00035 per token, on average. The last column says
# what the average would be if 2,000 such tokens were independent: half of that for `bf16`, nearly three times as much
# with the 8-bit cache of `kv_fp8`, eleven times with the coarser one. So the same rule that lets nearly everything pass
# on short answers can reject whole batches of long ones. (And the average of `kv_fp8_e5m2` is larger than independent
# noise leaves: $0.169/\sqrt{59} = 0.022$. Its tokens are not independent, or they lean to one side.)
#
# ## The bound that makes the most progress
#
# A budget says what one can afford, not what is best. Lesson 10 has one number for a step, the progress $\eta(B)$: the
# share of the exact gradient's progress that is left with $B$ answers in a batch, at the best length of the step. A
# tight bound has more bias, a loose one more noise, so somewhere between lies the most progress. Where? First in the
# toy of lesson 10, for a cap on the product, where everything is known exactly.

# %%
toy = small_world(0.5)
caps = [1 + 0.02 * 1.3**n for n in range(24)]
exact = {size: toy_sweep(toy, product, caps, size) for size in (16, 256, 4096, 65536)}
best = {size: caps[max(range(len(caps)), key=curve.progress.__getitem__)] for size, curve in exact.items()}
picture(exact_curves(exact[256], of_ratio=True))
show("answers in the batch", list(best))
show("best cap", list(best.values()), digits=2)
show("its progress", [max(curve.progress) for curve in exact.values()], digits=3)
assert sorted(best.values()) == list(best.values())
assert all(curve.bias == exact[16].bias for curve in exact.values())

# %% [markdown]
# The mismatch is the same in all four columns, and so is the bias at each cap. Only the noise depends on the batch,
# like $1/\sqrt B$. So **the best cap grows with the batch**: 1.8 for 16 and for 256 answers, 7.4 for 65,536. A number
# from a paper with another batch size answers another question.
#
# ### On a recorded step
#
# Does it hold outside the toy? `async`, whose engine runs up to two updates behind, has every likely answer to all 80
# prompts that it trains on, so bias and noise of each cap are known well. The sweep moves the cap on the product from
# nearly 1 to the largest weight, for batches from 16 answers to 262,144. **Look for** the shaded stretch: it is where
# the best cap lies in 95 % of the bootstrap samples. Then, in the second figure, how it moves with the batch.

# %%
BATCHES = [4**n for n in range(2, 10)]


def swept_over(run, config, sizes=BATCHES):
    """One bound of the configuration at thirty thresholds, on the run's last step that has a sketch."""
    update, sketch = read_gradients(run, last_sketch(run))
    points = usual_thresholds(update, config, count=30)
    return gradient_sweep(update, sketch, config, thresholds=points, batch_sizes=sizes)


def ends(interval):
    return interval.value, interval.low, interval.high


def show_best(label, sweep, sizes):
    """For some batch sizes the best threshold and its progress, with their intervals."""
    show(label, "best", "from", "to", "η", "from", "to")
    for size in sizes:
        place = BATCHES.index(size)
        choice = sweep.ranking.choices[place]
        progress = sweep.ranking.reports[choice.best].progress[place]
        show(f"  B = {size:,}", *ends(sweep.best[place]), *ends(progress), digits=3)


behind = runs.find_run("async")
by_cap = swept_over(behind, product)
picture(progress_curves(by_cap, 256))
picture(best_thresholds(by_cap, batch_size=256))
show_best("cap on the product", by_cap, (256, 4096, 65536))
loosest = by_cap.ranking.reports[-1].progress
show("largest weight as the cap: η", *(loosest[BATCHES.index(size)].value for size in (256, 4096, 65536)), digits=2)

# %% [markdown]
# The best cap climbs with the batch over the whole range. With 256 answers it is known to a factor of ten or so, but
# bootstrap samples that want a loose cap for 4,096 answers want a looser one for 256 as well. So take the **paired**
# growth: in each bootstrap sample, the best threshold for the large batch over that for the small one. And compare the
# cap with a rejection rule, the band on the geometric mean. **Write down a guess:** does its best width grow, too?


# %%
MISMATCHED = ("bf16", "kv_fp8", "stale_4", "async", "stale_head", "moe_bf16", "moe_replay")


def growth(sweep, small, large):
    """The best threshold at one batch size over that at another, on the same bootstrap samples."""
    sizes = sweep.ranking.reports[0].batch_sizes
    best_places = sweep.ranking.progress.nan_to_num(-1).argmax(0)  # (batch sizes, 1 + samples)
    logs = torch.tensor(sweep.thresholds).log()[best_places]
    factor = interval_of(logs[sizes.index(large)] - logs[sizes.index(small)], signed=True)
    return [math.exp(end) for end in ends(factor)]


by_band = swept_over(behind, geometric)
picture(best_thresholds(by_band, batch_size=256))
show_best("band on the geometric mean", by_band, (256, 4096, 65536))
show("async: 4,096 over 256, cap", growth(by_cap, 256, 4096), digits=2)

grown = {"cap": [], "band": []}
show("best for 65,536 answers over 256", "cap", "from", "to", "band", "from", "to")
for name in MISMATCHED:
    both = [
        growth(swept_over(runs.find_run(name), rule_or_cap, (256, 65536)), 256, 65536)
        for rule_or_cap in (product, geometric)
    ]
    show("  " + name, *both, digits=2)
    for label, (_, low, _) in zip(grown, both, strict=True):
        grown[label].append(low > 1)
show("runs in which it surely grows", *(f"{label}: {sum(told)}" for label, told in grown.items()))
assert growth(by_cap, 256, 4096)[1] > 1
assert sum(grown["cap"]) >= 2
assert sum(grown["band"]) == 0
assert len({by_band.best[BATCHES.index(size)].value for size in (256, 4096, 65536)}) == 1

# %% [markdown]
# For the cap the answer is sure in two runs: 65,536 answers want a cap 66 times as large as 256 do in `async`, and
# three times as large in `stale_head`. In the others it cannot be told, and in none does the best guess shrink. So
# "small batches want tighter bounds, large ones looser" can be seen on real steps as in the toy, where the mismatch is
# large.
#
# **For the band it cannot be seen.** In no run is its growth sure, and in `async` the best guess is ±1.6 % at every
# size. Why should the two differ? Think of the loose end. A cap that is wide open leaves the exact weights: no bias,
# much noise. So with more answers it pays to open it. A rejection rule that is wide open leaves **no correction**, and
# its bias, which in `async` is nearly five times as long as the gradient. More answers do not take that away, so they
# are no reason to open the band. Choose the cap of a weight for your batch; the bounds of a rule depend on it much
# less.
#
# And `kv_fp8_e5m2`, whose answers are too long to write down all of them? There 1,024 sampled answers must do:

# %%
long_run = runs.find_run("kv_fp8_e5m2")
of_sample = swept_over(long_run, geometric)
show_best("kv_fp8_e5m2, band", of_sample, (256, 4096))
tried = of_sample.thresholds
show("tried", "", tried[0], tried[-1], digits=3)
for place in (BATCHES.index(256), BATCHES.index(4096)):
    of_size = of_sample.best[place]
    assert of_size.low == tried[0]
    assert of_size.high > tried[-3]
    assert not of_sample.ranking.choices[place].over_nothing.tells

# %% [markdown]
# The best guess is a band of ±3.5 %, its interval reaches from one end of what was tried to the other, and whether any
# of it is better than no correction cannot be told. **A search always returns a number. Its interval says whether it
# found something.**

# %% [markdown]
# ## Choosing on one step, testing on another
#
# Whoever picks the best of many looks better than they are. Two thresholds are equally good, with a true progress of
# 0.5. Each is measured 0.1 too high or too low, by a coin. The larger of the two comes out as 0.6 in three cases of
# four, and 0.4 in one: 0.55 on average. We promise 0.55 and get 0.5. The difference is called **optimism**.
#
# In general, for any measured $X_1, X_2$,
#
# $$ \max(X_1, X_2) = \tfrac12 (X_1 + X_2) + \tfrac12 |X_1 - X_2| \quad\Rightarrow\quad
# \mathbb{E} \max(X_1, X_2) \ge \max(\mathbb{E} X_1, \mathbb{E} X_2) , $$
#
# with a gap that grows with the noise. The same threshold measured on **other** data has no such gap.

# %%
coins = [sympy.Rational(1, 2) + sympy.Rational(sign, 10) for sign in (1, -1)]
two = [max(pair) for pair in itertools.product(coins, repeat=2)]
assert sympy.Add(*two) / 4 == sympy.Rational(55, 100)

u, v = sympy.symbols("u v", real=True)
assert sympy.simplify((u + v) / 2 + sympy.Abs(u - v) / 2 - sympy.Max(u, v).rewrite(sympy.Abs)) == 0

tau, z = sympy.symbols("tau z", positive=True)  # equal means, difference normal with standard deviation tau
density = sympy.exp(-(z**2) / (2 * tau**2)) / (tau * sympy.sqrt(2 * sympy.pi))
optimism = sympy.integrate(z * density, (z, 0, sympy.oo))  # half of the average of |difference|
show("optimism of the better of two", str(sympy.simplify(optimism)))
assert sympy.simplify(optimism - tau / sympy.sqrt(2 * sympy.pi)) == 0

measured = 0.5 + 0.1 * torch.randn(200_000, 2, dtype=torch.float64, generator=generator)
picked = measured.argmax(1, keepdim=True)
again = 0.5 + 0.1 * torch.randn(200_000, 2, dtype=torch.float64, generator=generator)
promised, got = float(measured.gather(1, picked).mean()), float(again.gather(1, picked).mean())
show("promised, and got on other data", promised, got, digits=3)
assert abs(promised - 0.5 - 0.1 * 2**0.5 / (2 * math.pi) ** 0.5) < 0.001
assert abs(got - 0.5) < 0.001

# %% [markdown]
# ### Check 3, with data: the promise and the other half
#
# Split the prompts of a step into two halves at random: choose the threshold with the most progress on one half,
# and look it up on the other. Both halves come from the same policies, so what differs is chance alone. Each run gets
# twelve splits, both ways, and the runs are independent: the interval is over runs. Once for the band on the geometric
# mean, and once for the cap on the product; a batch has 256 answers.


# %%
def progress_on(half, parts, replicas):
    """η(256) of each correction on these prompts alone."""
    units = half[None]  # 1 for a prompt of the half, 0 for another
    of_half = replace(replicas, units=units, reference=mean_gradients(replicas.target, units))
    return [float(samples_of(of_one, of_half, [256]).progress[0, 0]) for of_one in parts]


def promises(name, config, splits=12):
    """(promised, got) of the best threshold, for each split and both ways."""
    run = runs.find_run(name)
    update, sketch = read_gradients(run, last_sketch(run))
    assert isinstance(sketch, ExactSketch)
    moved = [at_threshold(config, t) for t in usual_thresholds(update, config, count=15)]
    parts, replicas = contributions(update, sketch, moved), bootstrap(update, sketch, LossConfig(), 0, 0)
    prompts = sketch.answers.prompt_count
    promised_and_got = []
    for _ in range(splits):
        half = (torch.randperm(prompts, generator=generator) < prompts // 2).float()
        shares = [progress_on(rows, parts, replicas) for rows in (half, 1 - half)]
        for one, other in (shares, shares[::-1]):
            chosen = max(range(len(one)), key=one.__getitem__)
            promised_and_got.append((one[chosen], other[chosen]))
    return torch.tensor(promised_and_got, dtype=torch.float64)


lost = {}
for label, config in (("band on the geometric mean", geometric), ("cap on the product", product)):
    show(label, "promised", "got", "optimism")
    gaps = []
    for name in MISMATCHED:
        pairs = promises(name, config)
        gaps.append(float((pairs[:, 0] - pairs[:, 1]).mean()))
        show("  " + name, *pairs.mean(0).tolist(), gaps[-1], digits=3)
    gap = torch.tensor(gaps)
    lost[label] = float(gap.mean()), float(gap.std() / len(gaps) ** 0.5)
    show("  average over runs", lost[label][0], "±", lost[label][1], digits=3)
    assert lost[label][0] > 2 * lost[label][1]
    assert min(gaps) > 0
assert lost["band on the geometric mean"][0] > 4 * lost["cap on the product"][0]

# %% [markdown]
# The half that chose a band promises more than the other half gives, in every run, on average by 0.09. For a cap it is
# eight times less. The curve over a cap is flat around its best, so that a wrong choice costs little. A band takes
# whole answers in and out, its curve jumps, and the highest jump is partly chance.
#
# These halves are of one step. A next step has other weights as well, and the committed runs hold no second sketch that
# would show how its gradient takes the same band. For budgets, which need no sketch, they hold many steps.

# %% [markdown]
# ## Predict, then reveal
#
# A budget is chosen on a step, too: "keep 95 %" holds there by construction. Training goes on, and the mismatch
# changes. `bf16` has five recorded steps of one training, from 80 to 400; `kv_fp8_e5m2` has six, from 8 to 48. **Write
# down a guess:**
#
# 1. Chosen at step 400 of `bf16`, what share does the band on the geometric mean keep at step 80? 95 %, 77 %, or 99 %?
# 2. And chosen at step 80, at step 400?
# 3. For `kv_fp8_e5m2`: of five bands that keep 95 % on their own step, how many do so on the next one?


# %%
def transferred(name, share=0.95):
    """Chosen on each step (rows), the share kept on each step (columns)."""
    steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
    chosen = [keep_at_least(step, mean_band, share) for step in steps]
    return torch.stack(
        [torch.cat([curve_of(sweep_of(s, mean_band), mean_band, [t]).kept_fraction for s in steps]) for t in chosen]
    )


tables = {name: transferred(name) for name in ("bf16", "kv_fp8_e5m2")}
for name, kept_shares in tables.items():
    numbers = runs.list_steps(runs.find_run(name))
    show(f"{name}, tested at step", numbers)
    for number, kept in zip(numbers, kept_shares, strict=True):
        show(f"  chosen at {number}", kept, digits=3)
    following = kept_shares.diagonal(1)
    show("  still 95 % on the next step", int((following >= 0.95).sum()), "of", len(following))
    assert bool((kept_shares.diagonal() >= 0.95).all())

numbers = runs.list_steps(runs.find_run("bf16"))
surely = [load("bf16", n) for n in range(len(numbers))]
surely = [
    float((recorded_step.rollout_log_probs[recorded_step.response_mask] > math.log(0.99)).double().mean())
    for recorded_step in surely
]
show("bf16: tokens with q above 0.99", surely, digits=2)
lines = {f"chosen at {n}": kept.tolist() for n, kept in zip(numbers, tables["bf16"], strict=True)}
picture(curves(numbers, lines, x_name="tested at step", y_name="kept tokens"))

# %% [markdown]
# 1. 77 %: nearly a quarter of the early tokens would be lost.
# 2. 99 %: the early band does nearly nothing later. On this run the mismatch shrinks, because the model becomes surer
#    of its answers, and rounding hardly moves a probability near 1 (the last line). So a band chosen now usually keeps
#    **more** on the next step, in three cases of four. Drift can flatter a choice, too.
# 3. Two of five. Here the mismatch has no trend, and chance decides.
#
# How much of 3 is optimism? The tightest band that keeps 95 % of 128 answers is the distance of the 122nd. By
# construction it keeps $122/128 = 0.953$ of these. Of new answers from the same policies the $k$-th smallest of $n$
# keeps $k/(n+1)$ on average, $122/129 = 0.946$: slightly too few.

# %%
level = sympy.symbols("level", positive=True)
for n_items in range(1, 6):
    for k in range(1, n_items + 1):
        ways = sympy.factorial(n_items) / (sympy.factorial(k - 1) * sympy.factorial(n_items - k))
        density = ways * level ** (k - 1) * (1 - level) ** (n_items - k)  # where the k-th smallest of n lies
        assert sympy.integrate(level * density, (level, 0, 1)) == sympy.Rational(k, n_items + 1)

kept_shares = tables["kv_fp8_e5m2"]
elsewhere = kept_shares[~torch.eye(len(kept_shares), dtype=torch.bool)]
show("own step, mean", float(kept_shares.diagonal().mean()), digits=3)
show("other steps, mean of 30 pairs", float(elsewhere.mean()), digits=3)
show("pairs that still keep 95 %", int((elsewhere >= 0.95).sum()), "of", len(elsewhere))
assert abs(float(elsewhere.mean()) - 122 / 129) < 0.01

# %% [markdown]
# So the optimism of a budget is small, about $1/n$, and drift is the larger danger. A rejection rule that was chosen by
# a noisy curve is the other way round: there optimism is what costs. **Give a budget a margin, give a maximum another
# step.**

# %% [markdown]
# ## Taking it to verl
#
# The last step of a choice is to write it into another program's configuration. Suppose the choice is a band on the
# geometric mean from 0.98 to 1.05. In Python, and as verl's YAML:

# %%
chosen = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.98, upper=1.05),))
for line in [*to_python(chosen).splitlines(), "", *verl_text(chosen).splitlines()]:
    show(line)
assert from_verl(to_verl(chosen)) == chosen

# %% [markdown]
# The numbers have changed. verl's k1 is $-\log r$, and it compares that with the logarithms of the configured numbers.
# So with "a_b" it keeps
#
# $$ \log a \le -\log r \le \log b \quad\Longleftrightarrow\quad \frac1b \le r \le \frac1a . $$
#
# **The bounds act on $1/r$**, the engine over the trainer, although the documentation calls them ratio bounds. Whoever
# writes "0.6_1.4" and thinks of $r$ keeps other tokens. For bands like "0.5_2.0" it makes no difference. The weights'
# threshold, which acts on $r$ itself, has the other direction.

# %%
A, B, R = sympy.symbols("a b r", positive=True)
assert sympy.expand_log(sympy.log(1 / R)) == -sympy.log(R)  # k1 is the logarithm of 1/r
typed = from_verl({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.4"})
(typed_rule,) = typed.rollout_rs
meant = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.6, upper=1.4),))
show("typed 0.6_1.4, r from", typed_rule.lower, "to", typed_rule.upper, digits=3)
step = load("stale_4")
kept = [correct(step, config).keep_mask for config in (typed, meant)]
show("stale_4: tokens kept as typed, as meant", *(int(mask.sum()) for mask in kept))
show("kept by one of the two only", int((kept[0] ^ kept[1]).sum()), "of", int(step.response_mask.sum()))
symmetric = from_verl({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}).rollout_rs[0]
assert (symmetric.lower, symmetric.upper) == (0.5, 2.0)

# %% [markdown]
# Not everything has a word in verl. `exports` says why, and what comes nearest. A configuration that cannot be
# expressed is better refused than rounded: the nearest one is another estimator.

# %%
for name in ("openrlhf_tis", "areal_sequence_mask", "trl_opsm", "skyrl_outlier"):
    show(f"{name}:")
    text = exports(preset(name))["verl"]
    show(f"  verl: {text.strip().removeprefix('# ')}")
    assert text.startswith("# cannot be expressed")

# %% [markdown]
# ## Exercise 1: the tightest band
#
# *6 minutes.* `r` is `(N,)`. Return the smallest $t \ge 1$ for which $[1/t, t]$ keeps at least this share of the
# tokens.
#
# <details><summary>Hint 1</summary>The distance of a token from 1 is the larger of r and 1/r.</details>
# <details><summary>Hint 2</summary>Sort the distances. Of ten tokens, 85 % means nine.</details>


# %%
def tightest_band(r, share):
    raise NotImplementedError("exercise 1: write tightest_band, then run this cell and the next.")


# %% tags=["check"]
check(tightest_band, TIGHTEST)


# %% tags=["solution", "hide-input"]
def tightest_band_solution(r, share):
    distances = torch.maximum(r, 1 / r).sort().values
    return distances[math.ceil(share * len(r)) - 1]


check(tightest_band_solution, TIGHTEST)

# %% [markdown]
# ## Exercise 2: per token
#
# *4 minutes.* A band from `lower` to `upper` bounds the ratio of a `"token"`, or of an answer of `length` tokens its
# `"geometric"` mean or its `"product"`. Return the two bounds on $d$: of the token, or of the mean $d$ of the answer.
#
# <details><summary>Hint 1</summary>The logarithm of a product is T times the mean of d.</details>
# <details><summary>Hint 2</summary>Two of the three levels do not look at the length.</details>


# %%
def tolerance(lower, upper, length, level):
    raise NotImplementedError("exercise 2: write tolerance, then run this cell and the next.")


# %% tags=["check"]
check(tolerance, TOLERANCE)


# %% tags=["solution", "hide-input"]
def tolerance_solution(lower, upper, length, level):
    terms = length if level == "product" else 1
    return math.log(lower) / terms, math.log(upper) / terms


check(tolerance_solution, TOLERANCE)

# %% [markdown]
# ## Exercise 3: verl's bounds
#
# *3 minutes.* You want a k1 rule to keep `lower` ≤ r ≤ `upper`. Return the two numbers `(a, b)` to write as "a_b" in
# verl.
#
# <details><summary>Hint 1</summary>verl keeps a ≤ 1/r ≤ b.</details>
# <details><summary>Hint 2</summary>1/r is smallest where r is largest.</details>


# %%
def verl_bounds(lower, upper):
    raise NotImplementedError("exercise 3: write verl_bounds, then run this cell and the next.")


# %% tags=["check"]
check(verl_bounds, TO_VERL)


# %% tags=["solution", "hide-input"]
def verl_bounds_solution(lower, upper):
    return 1 / upper, 1 / lower


check(verl_bounds_solution, TO_VERL)

# %% [markdown]
# ## Check yourself
#
# **1. A paper uses ±0.1 % on the geometric mean. Your run has a coarse KV cache. Do you take the number?**
#
# <details><summary>Yes: it was tuned with great care.</summary>For another engine. On `kv_fp8_e5m2` it keeps 7 % of the
# tokens.</details>
# <details><summary>I take the budget that it stood for, say 95 % of the tokens, and find the number for my
# run.</summary>Yes. And I look again after some hundred steps, because the mismatch moves.</details>
# <details><summary>I widen it until nothing is rejected.</summary>Then the rule does nothing. What is the
# budget?</details>
#
# **2. Of sixty bands, the best makes a progress of 0.43 on this step. What do you expect on the next one?**
#
# <details><summary>0.43, up or down alike.</summary>No. It was picked because its noise went the good way; on other
# data it will not, on average.</details>
# <details><summary>Something below 0.43, even if nothing else changes.</summary>Yes. That is optimism, and on top of it
# comes whatever does change.</details>
# <details><summary>More than 0.43, since training improves.</summary>Training changes the mismatch, in either
# direction. It does not improve a number that was the largest of sixty.</details>
#
# **3. You want r between 0.98 and 1.05, and write `rollout_rs_threshold: "0.98_1.05"` into verl. What happens?**
#
# <details><summary>r between 0.98 and 1.05 is kept.</summary>No. The bounds act on 1/r.</details>
# <details><summary>r between 0.952 and 1.020 is kept.</summary>Yes: 1/1.05 to 1/0.98. Write "0.9523…_1.0204…" instead,
# as the export does.</details>
# <details><summary>verl refuses it.</summary>No. It is a valid band, only another one, and no metric says so.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the bench with the strict band](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_geo_rs): the
#   curves over its bounds, the budget, and the export;
# - [the same rule wide enough for 95
#   %](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_geo_rs&seq_mean_k1_lower=0.94&seq_mean_k1_upper=1.064);
# - [the progress over a cap on the product](http://localhost:8501/gradient?run=async&step=40&preset=decoupled_seq_is),
#   with the number of answers beside it, and [the same for 4,096
#   answers](http://localhost:8501/gradient?run=async&step=40&preset=decoupled_seq_is&answers=4096);
# - [an early step of bf16](http://localhost:8501/bench?run=bf16&step=80&preset=decoupled_geo_rs) and [a late
#   one](http://localhost:8501/bench?run=bf16&step=400&preset=decoupled_geo_rs) under the same rule.
#
# The same as text: `python -m rlcorr gradients async --sweep decoupled_seq_is`.
#
# ## Pitfalls
#
# - **Numbers without their run.** A threshold belongs to an engine, a length and a batch size.
# - **One step for a training.** η(256) is about one step of 256 answers. Over many steps noise averages out and bias
#   adds up, so a training wants a looser cap than its single step.
# - **The edge of the search.** If the best threshold is the tightest one that was tried, nothing was found.
# - **One side.** A cap bounds large weights; small ones still cost sample size.
# - **Kept is not used.** A band on weights counts what it leaves alone; a rule counts what it keeps. Both are called a
#   budget.
# - **YAML.** An unquoted `1_2` is the number 12 to a YAML reader, and `0.5_2` is 0.52. The export writes dots on both
#   sides.
# - **Denominators.** After rejection, what is the loss divided by (lesson 07)? verl has no key for it.
#
# ## References
#
# 1. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the options and
#    thresholds that are exported here.
# 2. Yingru Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: bounds on
#    answers, and their length.
# 3. Ring-1T, [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: a band on token ratios, 0.5 to 5, at scale.
