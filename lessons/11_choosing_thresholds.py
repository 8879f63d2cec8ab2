# %% [markdown]
# # 11 · Choosing thresholds
#
# **Claim.** A threshold has no right value of its own. It follows from what one can afford, from the length of the
# answers and, for a cap on weights, from the size of the batch; and it must be judged where it was not chosen.
#
# *25 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection (lesson 07), and
# bias, noise and progress of a gradient (lesson 10). [Notation](NOTATION.md).
#
# At the end you can
#
# - turn a budget into a threshold;
# - find the cap that makes the most progress for your batch size;
# - test a threshold where it was not chosen, and write it for verl.

# %% tags=["hide-input"]
import itertools
import math
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_11 import TIGHTEST, TO_VERL, TOLERANCE
from recorded import load
from scipy import stats
from sentences import above, bracketed, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, RejectionRule, correct, evaluate, preset
from rlcorr.analysis import choosing
from rlcorr.analysis.bound_curve import bound_curve
from rlcorr.analysis.budget import ess_at_least, keep_at_least
from rlcorr.bounds import BAND, at_threshold, tight_thresholds, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.gradients import exact_curves, progress_curves
from rlcorr.figures.study import reward_over_progress
from rlcorr.gradients.bootstrap import Interval, bootstrap, interval_of
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.estimates import mean_gradients
from rlcorr.gradients.report import samples_of
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.ratios import over_sequence
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.records.study import outcomes, read_study
from rlcorr.records.study_comparisons import against_nothing, progress_correlation
from rlcorr.systems.export import exports
from rlcorr.systems.verl.config import from_verl, to_verl, verl_text
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(11)

# %% [markdown]
# ## Ten tokens, by hand
#
# Ten tokens have the ratios 0.5, 0.8, 0.9, 1, 1, 1, 1.1, 1.2, 2.1 and 8. A **band** $[1/u, u]$ keeps what lies inside.
# With $u = 1.3$ it reaches from 0.77 to 1.3: 0.5, 2.1 and 8 are outside, 7 of 10 are kept. To keep 80 % we need one
# more. The next one out is 0.5, so $u = 2$. What does 90 % need?
#
# ## The equation
#
# **What can I afford?** A share of the tokens that must stay is a **budget**. The tightest band that meets it is a
# quantile of $|\log r|$.
#
# **How long are my answers?** The product of $T$ ratios lies in $[1/u, u]$ exactly when
#
# $$ \Big|\frac1T \sum_t d_t\Big| \le \frac{\log u}{T} , $$
#
# the geometric mean exactly when $\big|\frac1T \sum_t d_t\big| \le \log u$. So only a band on the product becomes
# stricter with the length.
#
# **How large is my batch?** Lesson 10 has one number for a step from $B$ answers, the progress
#
# $$ \eta(B) = \frac{\langle g, g^*\rangle^2}{\|g^*\|^2\,(\|g\|^2 + \sigma^2/B)} , $$
#
# with the average gradient $g$ of the correction and the variance $\sigma^2$ of one answer's part. A tight bound has
# more bias, a loose one more noise; only the noise depends on $B$.
#
# ## A budget asks every run for another threshold
#
# *Keep 95 % of the tokens*: what is the tightest band on single tokens, and on the geometric mean?


# %%
def band_on(name):
    """One rule, whose bounds are about to be moved."""
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, lower=0.5, upper=2.0),))


token_band, mean_band, product = band_on("token_k1"), band_on("seq_mean_k1"), preset("decoupled_seq_is")
thresholds = {}
show("last step", "token", "mean")
for name in ("control_fp32", "bf16", "moe_bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4"):
    step = load(name)
    thresholds[name] = [keep_at_least(step, rule, 0.95) for rule in (token_band, mean_band)]
    show(name, thresholds[name])

# %% tags=["hide-input"]
coarse = load("kv_fp8_e5m2")
as_preset = choosing.kept(coarse, at_threshold(mean_band, 1.001)).share
say(f"""
Read the column *mean* downwards. The same budget asks for ±{100 * (thresholds["bf16"][1] - 1):.1f} % in `bf16`, for
±{100 * (thresholds["kv_fp8_e5m2"][1] - 1):.0f} % in `kv_fp8_e5m2` with its coarse cache, and for a factor of
{thresholds["stale_4"][1]:.1f} in `stale_4` with its old weights. verl's preset of ±0.1 % keeps
{100 * as_preset:.0f} % of the tokens of `kv_fp8_e5m2`. **A budget can be carried from run to run, a threshold cannot.**
""")

# %% [markdown]
# ## The cap that makes the most progress
#
# A budget says what one can afford, not what is best. `async`, whose engine runs up to two updates behind, has every
# likely answer to its prompts, so that bias and noise are known well. The search moves a cap on the product from nearly
# 1 to above the largest weight.
#
# Move the slider to your batch size. **Look for** the dashed line, the best cap, and the shaded stretch in which it
# lies in 95 % of the bootstrap samples: both move to the right as the batch grows.


# %% tags=["hide-input"]
BATCHES = [256, 1024, 4096, 16384, 65536]


def swept_over(run, config, sizes=BATCHES, tight=0):
    """One bound at thirty thresholds, on the run's last sketch; `tight`: at so many tighter ones, too."""
    update, sketch = read_gradients(run, last_sketch(run))
    points = tight_thresholds(update, config, BAND, tight) if tight else []
    points += usual_thresholds(update, config, count=30)
    return gradient_sweep(update, sketch, config, thresholds=points, batch_sizes=sizes)


def growth(sweep, small, large, band=False):
    """The best cap, or the width log u of the best band, at one batch size over that at another, on the same bootstrap
    samples."""
    sizes = sweep.ranking.reports[0].batch_sizes
    best_places = sweep.ranking.progress.nan_to_num(-1).argmax(0)  # (batch sizes, 1 + samples)
    logs = torch.tensor(sweep.thresholds, dtype=torch.float64).log()
    of_best = (logs.log() if band else logs)[best_places]
    factor = interval_of(of_best[sizes.index(large)] - of_best[sizes.index(small)], signed=True)
    return Interval(*map(math.exp, (factor.value, factor.low, factor.high)))


behind = runs.find_run("async")
by_cap = swept_over(behind, product)
moving_picture("answers in a batch:", {f"{size:,}": progress_curves(by_cap, size) for size in BATCHES}, "256")

# %% tags=["hide-input"]
small, large, tried = by_cap.best[0], by_cap.best[-1], by_cap.thresholds
assert all(tried[0] < best.value < tried[-1] for best in by_cap.best)
assert small.low == tried[0]
by_band = swept_over(behind, mean_band, (256, 65536), tight=8)
assert all(by_band.thresholds[0] < best.value < by_band.thresholds[-1] for best in by_band.best)
say(f"""
With {BATCHES[0]} answers a cap of {small.value:.0f} makes the most progress, and adds
{above(by_cap.ranking.choices[0].over_nothing)} to the η of no correction. With {BATCHES[-1]:,} one of
{large.value:.0f} does: {above(growth(by_cap, BATCHES[0], BATCHES[-1]), 1, 0)} times as large on the same bootstrap
samples. (The shaded stretch for {BATCHES[0]} begins at the tightest cap tried: how tight the best may be is not told.)

The best band on the geometric mean stays as it is: {untold(growth(by_band, 256, 65536, band=True), 1)} times as wide. A
cap that is wide open leaves exact weights: no bias, much noise, which more answers remove. A band that is wide open
leaves no correction, and more answers do not remove its bias.
""")

# %% [markdown]
# The appendix repeats this for seven runs: in most of them the data cannot tell, and in none the best cap surely
# shrinks. So choose a cap for your own batch size.
#
# ## Did η foretell which training goes well?
#
# Two studies trained with many corrections on the same seeds, with weights that are eight updates old or with a coarse
# cache. η was measured once, at step 10 of a training without a correction, at the study's batch size. **Look for**
# points that rise to the right, here of the first study, and for the width of their bars.

# %%
studies = {}
for name in ("decide_stale", "decide_cache"):
    rows, about = read_study(name)
    eta = {arm: Interval(*numbers) for arm, numbers in about["progress"]["none_0"]["10"].items()}
    studies[name] = eta, rows, progress_correlation({arm: one.value for arm, one in eta.items()}, rows)
eta, rows, _ = studies["decide_stale"]
picture(reward_over_progress(eta, outcomes(rows)))

# %% tags=["hide-input"]
chosen = {}
for name, (eta, rows, _) in studies.items():
    arm = max(eta, key=lambda arm: eta[arm].value)
    chosen[name] = arm, next(pair.difference for pair in against_nothing(rows) if pair.arm == arm)
(stale_arm, stale_gain), (cache_arm, cache_gain) = chosen.values()
say(f"""
Over {len(eta)} corrections the rank correlation of η with the reward at the end is {above(studies["decide_stale"][2])}
with old weights, and {above(studies["decide_cache"][2])} with the coarse cache: more than chance, with wide intervals.
With old weights η picks `{stale_arm}`, which ends above no correction by {above(stale_gain)}. With the coarse cache it
picks `{cache_arm}`, which cannot be told from no correction: {untold(cache_gain)}.
""")

# %% [markdown]
# ## Chosen on one half, judged on the other
#
# By hand: two thresholds are equally good, with a true progress of 0.5. Each is measured 0.1 too high or too low, by a
# coin. The larger comes out as 0.6 in three cases of four, and 0.4 in one: 0.55 on average. We promise 0.55 and get
# 0.5. The difference is called **optimism**.
#
# Now split the prompts of a step into two halves at random, choose the threshold with the most progress on one, and
# look it up on the other.


# %% tags=["hide-input"]
MISMATCHED = ("bf16", "kv_fp8", "stale_4", "async", "stale_head", "moe_bf16", "moe_replay")
SPLITS = 12


def over_runs(values):
    """Their mean, with the 95 % interval of Student's t over the runs."""
    one = torch.tensor(values, dtype=torch.float64)
    half = stats.t.ppf(0.975, len(values) - 1) * float(one.std()) / len(values) ** 0.5
    return Interval(float(one.mean()), float(one.mean()) - half, float(one.mean()) + half)


def progress_on(half, parts, replicas):
    """η(256) of each correction on these prompts alone."""
    units = half[None]  # 1 for a prompt of the half, 0 for another
    of_half = replace(replicas, units=units, reference=mean_gradients(replicas.target, units))
    return [float(samples_of(of_one, of_half, [256]).progress[0, 0]) for of_one in parts]


def promises(name, config):
    """(promised, got) of the best threshold, averaged over the splits and both ways."""
    run = runs.find_run(name)
    update, sketch = read_gradients(run, last_sketch(run))
    assert isinstance(sketch, ExactSketch)
    moved = [at_threshold(config, t) for t in usual_thresholds(update, config, count=15)]
    parts, replicas = contributions(update, sketch, moved), bootstrap(update, sketch, LossConfig(), 0, 0)
    prompts, pairs = sketch.answers.prompt_count, []
    for _ in range(SPLITS):
        half = (torch.randperm(prompts, generator=generator) < prompts // 2).float()
        shares = [progress_on(rows, parts, replicas) for rows in (half, 1 - half)]
        for one, other in (shares, shares[::-1]):
            place = max(range(len(one)), key=one.__getitem__)
            pairs.append((one[place], other[place]))
    return torch.tensor(pairs, dtype=torch.float64).mean(0).tolist()


# %% tags=["hide-input"]
optimism = {}
for label, config in (("band on the geometric mean", mean_band), ("cap on the product", product)):
    both = [promises(name, config) for name in MISMATCHED]
    show(f"{label}: promised, got", *torch.tensor(both, dtype=torch.float64).mean(0).tolist(), digits=2)
    optimism[label] = [promised - got for promised, got in both]
of_band, of_cap = optimism.values()
less = over_runs([one - other for one, other in zip(of_band, of_cap, strict=True)])
say(f"""
On average over {len(MISMATCHED)} runs the best band on one half promises {above(over_runs(of_band))} more η than it
gets on the other, the best cap {above(over_runs(of_cap), digits=3)} more; the band is the worse by {above(less)}. **A
search always returns a number. Look it up on data that it has not seen.**
""")

# %% [markdown]
# ## Predict, then reveal
#
# A budget is met on the step that it was chosen on. Then training goes on. **Write down a guess:**
#
# 1. The band on the geometric mean is chosen at the last recorded step of `bf16`. Does it keep more or less of the
#    first?
# 2. And chosen at the first, of the last?
# 3. In `kv_fp8_e5m2`, how many of the bands still keep 95 % on the next recorded step: all, about half, or none?


# %%
def transferred(name, share=0.95):
    """Chosen on each step (rows), the share kept on each step (columns)."""
    steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
    chosen = [keep_at_least(step, mean_band, share) for step in steps]
    shares = [[choosing.kept(step, at_threshold(mean_band, t)).share for step in steps] for t in chosen]
    return torch.tensor(shares, dtype=torch.float64)


of_bf16, of_coarse = (transferred(name) for name in ("bf16", "kv_fp8_e5m2"))
show("bf16, tested at step", numbers := runs.list_steps(runs.find_run("bf16")))
for number, kept in zip(numbers, of_bf16, strict=True):
    show(f"  chosen at {number}", kept, digits=2)

# %% tags=["hide-input"]
following = of_coarse.diagonal(1)
assert of_bf16[-1, 0] < 0.95 < of_bf16[0, -1]
say(f"""
1. Less: {100 * of_bf16[-1, 0]:.0f} % of the first step.
2. More: {100 * of_bf16[0, -1]:.0f} % of the last. The model becomes surer of its answers, and rounding hardly moves a
   probability near 1.
3. {int((following >= 0.95).sum())} of {len(following)}. A band that keeps just enough of one sample keeps slightly too
   little of the next, on average (appendix). **Give a budget a margin, and renew it.**
""")

# %% [markdown]
# ## Taking it to verl
#
# verl's k1 is $-\log r$, and it compares that with the logarithms of the configured numbers, so "a_b" keeps
#
# $$ \log a \le -\log r \le \log b \quad\Longleftrightarrow\quad \frac1b \le r \le \frac1a . $$
#
# **The bounds act on $1/r$**, although the
# [documentation](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html) calls them ratio bounds. For "0.5_2.0",
# its own inverse, it makes no difference.
#
# ## Exercise 1: the tightest band
#
# *6 minutes.* `r` is `(N,)`. Return the smallest $u \ge 1$ for which $[1/u, u]$ keeps at least this share of the
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
# <details><summary>Yes: it was tuned with great care.</summary>For another engine.</details>
# <details><summary>I take its budget, and find the number for my run.</summary>Yes.</details>
# <details><summary>I widen it until nothing is rejected.</summary>Then the rule does nothing.</details>
#
# **2. Of sixty bands, the best makes a progress of 0.43 on this step. What do you expect on the next one?**
#
# <details><summary>0.43, up or down alike.</summary>No. It was picked because its noise went the good way.</details>
# <details><summary>Less, even if nothing else changes.</summary>Yes. That is optimism.</details>
# <details><summary>More than 0.43, since training improves.</summary>It changes the mismatch, in either
# direction.</details>
#
# **3. You want r between 0.98 and 1.05, and write `rollout_rs_threshold: "0.98_1.05"` into verl. What happens?**
#
# <details><summary>r between 0.98 and 1.05 is kept.</summary>No. The bounds act on 1/r.</details>
# <details><summary>r between 0.952 and 1.020 is kept.</summary>Yes: 1/1.05 to 1/0.98.</details>
# <details><summary>verl refuses it.</summary>No. It is a valid band, only another one.</details>

# %% [markdown]
# ## In the app
#
# After `make app`, open
#
# - [the bench with the strict band](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_geo_rs), and
#   [the same rule, wide
#   enough](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_geo_rs&seq_mean_k1_lower=0.94&seq_mean_k1_upper=1.064);
# - [the progress over a cap](http://localhost:8501/gradient?run=async&step=40&preset=decoupled_seq_is), and [for a
#   larger batch](http://localhost:8501/gradient?run=async&step=40&preset=decoupled_seq_is&answers=4096);
# - [an early step of bf16](http://localhost:8501/bench?run=bf16&step=80&preset=decoupled_geo_rs) and [a late
#   one](http://localhost:8501/bench?run=bf16&step=400&preset=decoupled_geo_rs).
#
# ## Pitfalls
#
# - **One step for a training.** Over many steps noise averages out and bias does not: a training may want a looser cap.
# - **The edge of the search.** If the best is the tightest or loosest that was tried, or its interval reaches from end
#   to end, nothing was found.
#
# ## References
#
# 1. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the options and
#    thresholds that are exported here.
# 2. Yingru Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: bounds on
#    answers, and their length.
# 3. Ring-1T, [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: a band on token ratios, 0.5 to 5, at scale.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; nothing above depends on them.

# %% [markdown]
# ### A budget for the effective sample size
#
# A cap keeps all tokens, so its budget is an ESS, $(\sum w)^2 / (N \sum w^2)$. The ESS of capped weights never rises
# with the cap, so there is a loosest cap that keeps it above a number, if any cap does. Let $n$ weights be above $C$;
# the others have the sum $S$ and the sum of squares $Q$. Then $\mathrm{ESS} = (S + nC)^2 / (N (Q + nC^2))$ and
#
# $$ \frac{d}{dC}\,\frac{(S + nC)^2}{Q + nC^2} = \frac{2 n (S + nC)}{(Q + nC^2)^2}\,(Q - SC) \;\le\; 0, $$
#
# because each uncapped weight is at most $C$, so $Q = \sum w\cdot w \le C \sum w = SC$.

# %%
S, Q, n, C = sympy.symbols("S Q n C", positive=True)
first, second = S + n * C, Q + n * C**2
assert sympy.simplify(sympy.diff(first**2 / second, C) - 2 * n * first * (Q - S * C) / second**2) == 0

falls = 0.0
for _ in range(200):
    weights = torch.randn(50, dtype=torch.float64, generator=generator).exp()
    under = torch.minimum(weights, torch.linspace(0.01, 10, 500, dtype=torch.float64)[:, None])
    ess = under.sum(1).square() / (50 * under.square().sum(1))
    falls = max(falls, float(ess.diff().max()))
show("ESS ever rises with the cap", falls > 1e-12)

for name in ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4"):
    show(f"{name}: loosest cap for an ESS of 0.8", ess_at_least(load(name), product, 0.8))
try:
    ess_at_least(coarse, product, 0.85)
except UsageError as error:
    show(str(error))

below_one = [1.0, 0.5, 0.1, 0.01]
ess = bound_curve(coarse, product, below_one[::-1]).numbers["trained_eff_sample_size"]
show("kv_fp8_e5m2, caps from 1 downwards", below_one, digits=2)
show("ESS", ess.flip(0).tolist(), digits=3)

# %% [markdown]
# The last two lines say why a budget for the ESS can be out of reach. At a cap of 1 no weight is large any more, and
# what costs sample size are the small ones. A cap far below 1 does raise the ESS, but only because at last all weights
# are the same. That is no correction.
#
# ### A curve without a new pass
#
# `bound_curve` looks up, once for each token, the first threshold at which the token comes inside. Every point of the
# curve is then a running sum. It must agree with `evaluate`, which looks at every token again.

# %%
geometric = preset("decoupled_geo_rs")
for config, ours, theirs in (
    (geometric, "kept_fraction", "rollout_corr/kept_fraction"),
    (product, "trained_eff_sample_size", "rollout_corr/rollout_is_eff_sample_size"),
):
    points = usual_thresholds(coarse, config, count=40)
    fast = bound_curve(coarse, config, points).numbers[ours].tolist()
    slow = [evaluate(coarse, at_threshold(config, t))[1][theirs] for t in points]
    assert max(abs(one - other) for one, other in zip(fast, slow, strict=True)) < 1e-6
    show(f"{theirs.removeprefix('rollout_corr/')}, at 40 points", fast[0], "to", fast[-1], digits=3)

# %% [markdown]
# ### What a bound on the product allows per token
#
# "apart" is what the average of $d$ would be over the longest of these answers if they were independent: its root mean
# square over the root of the length.

# %%
allowed = {length: math.log(2) / length for length in (10, 60, 500, 2000)}
show("product up to 2: tokens", list(allowed))
show("mean d up to", list(allowed.values()), digits=5)

show("recorded, last step", "tokens", "d", "mean d", "apart")
per_token = {}
for name in ("bf16", "kv_fp8", "kv_fp8_e5m2"):
    step = load(name)
    d = correct(step, CorrectionConfig()).log_ratio
    rows = step.response_mask.any(-1)
    means = over_sequence(d, step.response_mask, "mean")[rows]
    typical = float(d[step.response_mask].square().mean().sqrt())
    per_token[name] = typical / 2000**0.5
    average_length = float(step.response_mask.sum(-1)[rows].double().mean())
    show(name, round(average_length), typical, float(means.square().mean().sqrt()), per_token[name], digits=5)

# %% tags=["hide-input"]
shares = {name: apart / allowed[2000] for name, apart in per_token.items()}
say(f"""
A product up to 2 sounds generous. Over {max(allowed):,} tokens it allows {allowed[2000]:.5f} per token. Independent
tokens like those of `bf16` would average to {shares["bf16"]:.1f} times that, those of `kv_fp8` to
{shares["kv_fp8"]:.1f} times, those of `kv_fp8_e5m2` to {shares["kv_fp8_e5m2"]:.0f} times. So a rule that lets nearly
everything pass on short answers can reject whole batches of long ones. What recorded answers of 200 to 500 tokens do is
in `runs/README.md`.
""")

# %% [markdown]
# ### In the toy, where everything is known
#
# The small world of lesson 10, for a cap on the product. Only the noise depends on the batch. **Look for** the dashed
# line, the best cap at this batch size, between falling bias and rising noise.

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
assert all(caps[0] < cap < caps[-1] for cap in best.values())

# %% [markdown]
# ### Seven recorded runs
#
# For the band the factor is that of its width, $\log u$: the best bands can be narrow.

# %%
grown = {"cap": [], "band": []}
show("best for 65,536 answers over 256", "cap", "from", "to", "band", "from", "to")
for name in MISMATCHED:
    run = runs.find_run(name)
    swept = swept_over(run, product, (256, 65536)), swept_over(run, mean_band, (256, 65536), tight=8)
    both = growth(swept[0], 256, 65536), growth(swept[1], 256, 65536, band=True)
    show("  " + name, *[f"{end:.2g}" for one in both for end in (one.value, one.low, one.high)])
    for label, one in zip(grown, both, strict=True):
        grown[label].append(one.low > 1)
    assert all(one.high >= 1 for one in both)
assert 0 < sum(grown["cap"]) < len(MISMATCHED) / 2

long_band = swept_over(runs.find_run("kv_fp8_e5m2"), mean_band, (256, 4096))
tried, of_long = long_band.thresholds, long_band.best[0]

# %% tags=["hide-input"]
assert of_long.low == tried[0]
assert of_long.high > tried[-3]
say(f"""
The interval of the growth lies above 1 in {sum(grown["cap"])} of {len(MISMATCHED)} runs for the cap, and in
{sum(grown["band"])} for the band. In the others it cannot be told.

`kv_fp8_e5m2` has answers that are too long to write down all of them, and only a sample in its sketch. Its best band is
{bracketed(of_long)} at 256 answers, where bands from {tried[0]:.3f} to {tried[-1]:.2f} were tried: the interval reaches
from one end of the search to the other. What the best adds to no correction cannot be told:
{untold(long_band.ranking.choices[0].over_nothing)}.
""")

# %% [markdown]
# ### Optimism
#
# For any measured $X_1, X_2$,
#
# $$ \max(X_1, X_2) = \tfrac12 (X_1 + X_2) + \tfrac12 |X_1 - X_2| \quad\Rightarrow\quad
# \mathbb{E} \max(X_1, X_2) \ge \max(\mathbb{E} X_1, \mathbb{E} X_2) , $$
#
# with a gap that grows with the noise. And of a sample of $n$, the $k$-th smallest distance keeps $k/n$ by
# construction, but of new data from the same policies $k/(n+1)$ on average.

# %%
coins = [sympy.Rational(1, 2) + sympy.Rational(sign, 10) for sign in (1, -1)]
two = [max(pair) for pair in itertools.product(coins, repeat=2)]
assert sympy.Add(*two) / 4 == sympy.Rational(55, 100)

u, v = sympy.symbols("u v", real=True)
assert sympy.simplify((u + v) / 2 + sympy.Abs(u - v) / 2 - sympy.Max(u, v).rewrite(sympy.Abs)) == 0

level = sympy.symbols("level", positive=True)
for n_items in range(1, 6):
    for k in range(1, n_items + 1):
        ways = sympy.factorial(n_items) / (sympy.factorial(k - 1) * sympy.factorial(n_items - k))
        density = ways * level ** (k - 1) * (1 - level) ** (n_items - k)  # where the k-th smallest of n lies
        assert sympy.integrate(level * density, (level, 0, 1)) == sympy.Rational(k, n_items + 1)

elsewhere = of_coarse[~torch.eye(len(of_coarse), dtype=torch.bool)]
show("kv_fp8_e5m2: k/n and k/(n + 1) of 128", 122 / 128, 122 / 129, digits=3)
show("kept on the own step, on other steps", float(of_coarse.diagonal().mean()), float(elsewhere.mean()), digits=3)

# %% [markdown]
# ### Bounds on the wrong side, and what verl has no word for

# %%
wanted = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.98, upper=1.05),))
assert from_verl(to_verl(wanted)) == wanted
for line in verl_text(wanted).splitlines():
    if "rollout_rs" in line:
        show(line)

# %%
typed = from_verl({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.4"})
meant = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.6, upper=1.4),))
show("typed 0.6_1.4, r from", typed.rollout_rs[0].lower, "to", typed.rollout_rs[0].upper, digits=3)
step = load("stale_4")
kept = [correct(step, config).keep_mask for config in (typed, meant)]
show("stale_4: kept by one of the two only", int((kept[0] ^ kept[1]).sum()), "of", int(step.response_mask.sum()))

for name in ("openrlhf_tis", "areal_sequence_mask", "trl_opsm", "skyrl_outlier"):
    show(f"{name}:")
    show(f"  verl: {exports(preset(name))['verl'].strip().removeprefix('# ')}")

# %% [markdown]
# A configuration that cannot be expressed is better refused than rounded: the nearest one is another estimator.
