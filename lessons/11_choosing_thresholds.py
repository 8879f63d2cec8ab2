# %% [markdown]
# # 11 · Choosing thresholds
#
# **Claim.** A threshold has no right value of its own. It follows from a budget, from the length of the answers and,
# for a cap on weights, from the size of the batch. With old weights on a real model a cap on the token weights
# recovered a part of the lost accuracy in a planned study; two smaller studies leave it open.
#
# *105 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection
# (lesson 07), and bias, noise and progress of a gradient (lesson 10). Letters: [Notation](NOTATION.md).
#
# This is lesson 04 of the five lessons, *Choosing a threshold for my run*, if you leave parts of it out.
# Read first *From the symptom to the cause* in [lesson 12](12_dashboards.ipynb). Skip *Warm-up*, *The cap that makes
# the most progress*, *Does η predict which run goes well?*, *Chosen on one half, judged on the other*, *Predict, then
# reveal*, *Exercise 1*, *Exercise 2*, *Exercise 3* and *Check yourself*.
#
# At the end you can
#
# - say when a cap helped a real model, and by which number one sees it;
# - turn a budget into a threshold, and fill in a decision card for your own run;
# - find the cap that makes the most progress for your batch size, and say how well it is known;
# - test a threshold on data by which it was not chosen, and write it for verl.
#
# In this lesson, two numbers differ **significantly** if the 95 % interval of their difference excludes 0.
#
# ## Warm-up
#
# Two questions on older lessons.
#
# **1. Your batch becomes four times as large. What happens to the best cap on the weights (lesson 05)?**
#
# <details><summary>It stays. A cap depends on the weights alone.</summary>No. The best cap balances bias against noise,
# and the noise depends on the batch.</details>
# <details><summary>It grows.</summary>Yes. More answers leave less noise. So a looser cap, which has less bias, becomes
# the better one.</details>
# <details><summary>It shrinks, because there are more large weights.</summary>No. There are more of them, but each
# counts for less in the average.</details>
#
# **2. One correction has a smaller error than another. Does its step make more progress (lesson 10)?**
#
# <details><summary>Yes, its gradient is closer to the exact one.</summary>Not necessarily. A gradient that is shrunk
# towards 0 has a small error, and makes no progress.</details>
# <details><summary>That is not known from the errors.</summary>Yes. The error depends on the length of the step.
# Progress compares both steps at their best lengths.</details>
# <details><summary>No, less.</summary>That is not known, either.</details>

# %% tags=["hide-input"]
import itertools
import math
from dataclasses import replace

import numpy
import sympy
import torch
from exercises.lesson_11 import TIGHTEST, TO_VERL, TOLERANCE
from recorded import load
from scipy import stats
from sentences import above, below, bracketed, say, untold
from show import moving_picture, picture, show
from study_ends import contrasts, planned_ends, rows_of

from rlcorr import CorrectionConfig, RejectionRule, correct, evaluate, preset
from rlcorr.analysis import budget
from rlcorr.analysis.bound_curve import bound_curve
from rlcorr.analysis.budget import ess_at_least, keep_at_least
from rlcorr.bounds import BAND, at_threshold, tight_thresholds, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import COOL, REJECTED, WARM, bars_with_errors, figure
from rlcorr.figures.gradients import exact_curves, progress_curves
from rlcorr.gradients.bootstrap import Interval, bootstrap, interval_of, mean_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import samples_of
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.ratios import over_sequence
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.records.study import Endpoint, end_rewards, last_accuracies, read_study
from rlcorr.records.study_comparisons import (
    against_control,
    against_nothing,
    comparisons,
    holm,
    progress_correlation,
    rank_correlation,
)
from rlcorr.systems.export import exports
from rlcorr.systems.verl.config import from_verl, to_verl, verl_text
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(11)


def mean_interval(values):
    """Return the mean with its 95 % interval of Student's t."""
    x = torch.tensor(values, dtype=torch.float64)
    half = stats.t.ppf(0.975, len(x) - 1) * float(x.std()) / len(x) ** 0.5
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half)


def band_that_keeps(log_ratios, tokens, share):
    """Return u of the tightest band that keeps this share of the tokens. `tokens` says how many each log-ratio has."""
    distances, order = log_ratios.double().abs().sort()
    enough = tokens[order].cumsum(0) >= share * tokens.sum()
    return float(distances[enough][0].exp())


# %% [markdown]
# ## A planned study on a real model
#
# Before we choose a threshold: does it matter which one we take? We asked this on a real language model,
# `SmolLM2-135M-Instruct`, which learns sums of two numbers with GRPO. The answers come from weights that are **six
# updates old**. The plan (`runs/study/smol_3.md`) was committed before any of these runs was made, with
# the number that decides, the comparisons and our predictions.
#
# There are four **arms**, each with the same ten seeds, which no run had used before:
#
# - `fresh`: the answers come from the weights that are trained, so there is nothing to correct;
# - `none`: old weights, no correction;
# - `token_cap`: old weights, token weights $\min(p/q, 2)$;
# - `product_cap_normalized` (`product_normalized` in the picture): old weights, one weight per answer. It is the
#   product of the answer's ratios, capped at the same value, and divided by its mean over the batch.
#
# The number that decides is the **greedy accuracy of the last weights**: after the last step, the model answers
# held-out prompts, always with its likeliest token. The **reward** is another number. It belongs to the answers that
# are trained on, and with old weights these were written by the weights of six updates before.
#
# **Look for** the two bars of `none`: which of the two numbers shows what old weights cost? Write down a guess first.

# %% tags=["hide-input"]
LAST = "smol_last_weights"
last_rows = rows_of(LAST)
accuracy = {arm: list(seeds.values()) for arm, seeds in planned_ends(LAST).items()}
rewards = {arm: list(seeds.values()) for arm, seeds in end_rewards(last_rows).items()}  # of the last quarter: six steps
start = mean_interval([row["reward"] for row in last_rows if row["step"] == 1 and row["preset"] == "fresh"]).value
SHORT = {"product_cap_normalized": "product_normalized"}
pairs_of_bars = [
    bars_with_errors(name, {SHORT.get(arm, arm): mean_interval(x) for arm, x in values.items()}, colour)
    for name, values, colour in (
        ("mean reward of the last six steps", rewards, REJECTED),
        ("greedy accuracy of the last weights", accuracy, COOL),
    )
]
start_line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": start, "y1": start}
start_line |= {"line": {"color": WARM, "dash": "dot", "width": 2}}
note = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "y", "y": start + 0.06, "text": "reward of the first step"}
picture(
    figure(
        pairs_of_bars,
        height=320,
        x={"type": "category"},
        y={"title_text": "reward, accuracy (0 to 1)", "range": [0, 0.72]},
        shapes=[start_line],
        notes=[note],
        legend=True,
    ).update_layout(barmode="group", bargap=0.3)
)

against = {arms: pair.difference for arms, pair in contrasts(LAST).items()}
of_reward = {pair: comparisons(last_rows, [pair])[0].difference for pair in against}
NONE, CAP, PRODUCT, FRESH = "none", "token_cap", "product_cap_normalized", "fresh"
PREDICTED = {  # from the plan: from, to, and whether the interval was expected to exclude 0
    (NONE, FRESH): (-0.55, -0.20, True),
    (CAP, NONE): (0.05, 0.40, True),
    (PRODUCT, CAP): (-0.05, 0.20, False),
    (CAP, FRESH): (-0.25, -0.05, True),
}
for pair, (low, high, excludes) in PREDICTED.items():
    assert low <= against[pair].value <= high
    assert against[pair].tells == excludes
lines = [
    "| difference | predicted | accuracy of the last weights | reward of the last six steps |",
    "|---|---|---|---|",
]
lines += [
    f"| `{SHORT.get(one, one)}` − `{SHORT.get(other, other)}` | {low:.2f} to {high:.2f}"
    f"{'' if excludes else ', interval includes 0'} | {bracketed(against[one, other])} | "
    f"{bracketed(of_reward[one, other])} |"
    for (one, other), (low, high, excludes) in PREDICTED.items()
]
say("\n".join(lines))

# %% tags=["hide-input"]
adjusted = holm([pair.p_value for pair in contrasts(LAST).values()][:3])
hurt, helped, left = against[NONE, FRESH], against[CAP, NONE], against[CAP, FRESH]
assert all(len(values) == 10 for values in accuracy.values())
ACCURACY = Endpoint(steps=0, margin=0.05)
delayed = {pair.arm: pair.difference for pair in against_control(last_rows, 6, earlier=6)}
third = contrasts("smol_stale_6_third", ACCURACY)[CAP, NONE].difference
old_lines = ["| study, weights six updates old | seeds | accuracy, cap − none |", "|---|---|---|"]
old_lines += [f"| `{study}` | {pair.seeds} | {bracketed(pair.difference)} |"
              for study in (LAST, "smol_stale_6", "smol_centering_stale")
              for pair in [contrasts(study, ACCURACY)[CAP, NONE]]]  # fmt: skip
table_of_old = "\n".join(old_lines)
same_seeds = [mean_interval(list(last_accuracies(rows_of(study))[CAP].values())).value
              for study in ("smol_stale_6", "smol_centering_stale")]  # fmt: skip
band = contrasts("smol_stale_6", ACCURACY)["geometric_95", FRESH].difference
ROUNDING = {"smol_e5m2": "a KV cache in e5m2", "smol_centering_fp8": "an engine in 8 bits",
            "smol_support": "sampling by top-p among the 20 likeliest tokens"}  # fmt: skip
gap_lines = ["| study | mismatch | gain of `none` | gain, cap − none | accuracy, cap − none |", "|---|---|---|---|---|"]
for study, mismatch in ROUNDING.items():
    both = [contrasts(study, endpoint)[CAP, NONE].difference for endpoint in (None, ACCURACY)]
    without = mean_interval(list(planned_ends(study)[NONE].values()))
    gap_lines.append(f"| `{study}` | {mismatch} | {above(without)} | {untold(both[0])} | {untold(both[1])} |")
table_of_gaps = "\n".join(gap_lines)
say(f"""
**The accuracy shows the cost, and the cap recovers a part of it.** The lines on the bars and the brackets are 95 %
intervals over ten seeds; differences are paired by seed. The first three rows were planned as the main ones. With
Holm's adjustment, which allows for three comparisons at once, their p-values are
{", ".join(f"{value:.3f}" for value in adjusted)}. All four differences of the accuracy are in the predicted ranges.

- The accuracy of `none` minus that of `fresh` is {below(hurt)}: old weights without a correction cost more than half of
  the accuracy.
- `token_cap` minus `none` is {above(helped)}. So in this study the cap recovers a part of it, but not all: `token_cap`
  minus `fresh` is {below(left)}.
- The cap on the product, divided by its mean, cannot be distinguished from the cap on the tokens:
  {untold(against[PRODUCT, CAP])}.
- **The rewards of the same runs differ little.** `none` minus `fresh` is {untold(of_reward[NONE, FRESH])}, and
  `token_cap` minus `none` is {untold(of_reward[CAP, NONE])}. Neither is significant.

Why do the rewards not show it? One reason: the answers of the last step were written by weights that are six updates
older. What the last six updates did to the model is not in any reward yet. Even the little that the rewards lose is the
delay: `none` minus what `fresh` had six steps earlier is {untold(delayed[NONE])}. The greedy accuracy belongs to the
weights that you keep.

**How sure is the gain of the cap?** It was measured three times with the same mismatch:

{table_of_old}

All three are positive, and only the planned one is significant. The two others have the same five seeds and nearly the
same options (one splits its batches for the optimizer by tokens). Yet `token_cap` ends at {same_seeds[0]:.2f} in one
and at {same_seeds[1]:.2f} in the other. So runs with equal seeds differ by chance as much as the cap may gain.

**With other mismatches, no such difference is shown.** Three studies of the same model, five seeds each, have fresh
weights and another mismatch. The **gain** of a run is its mean reward of the last six steps minus that of the first
six. The last two columns are `token_cap` minus `none`, for the gain and for the accuracy of the last weights.

{table_of_gaps}

The gains of `none` are significant: these runs learn without a cap. Every interval of a difference includes 0, and is
wide: most of them include an improvement of 0.05. So the table does not show that a cap is useless there.

**The advice so far.** If the answers come from old weights and the learning rate is high, cap the token weights: the
best evidence says that it helps, and none says that it harms. At a third of this rate two seeds show no gain: the
accuracy of `token_cap` minus that of `none` is {untold(third)}. And a band that keeps 95 % of the tokens does not
replace the cap: on five other seeds `geometric_95` minus `fresh` is {below(band)}. Judge by the accuracy of the last
weights, not by the rewards. If the gap comes from rounding or from the sampler, the cap has shown no difference on this
model, in either direction. The rest of this lesson is about the number: how tight should a cap or a band be?
""")

# %% [markdown]
# ## Ten tokens, by hand
#
# Ten tokens have the ratios 0.5, 0.8, 0.9, 1, 1, 1, 1.1, 1.2, 2.1 and 8. A **band** $[1/u, u]$ keeps the tokens whose
# ratio lies inside it. With $u = 1.3$ it reaches from 0.77 to 1.3. The ratios 0.5, 2.1 and 8 lie outside, so 7 of 10
# tokens are kept.
#
# Now we want to keep 80 %, which is one token more. Which one is the closest of those outside? The ratio 0.5 needs
# $u = 2$, the ratio 2.1 needs $u = 2.1$. So $u = 2$. To keep 90 % we also need the ratio 2.1, so $u = 2.1$.
#
# ## The equation
#
# Three questions decide a threshold.
#
# **What can I afford?** A share of the tokens that must be kept is a **budget**. A token is inside the band if
# $|\log r| \le \log u$. So the tightest band that meets the budget has $\log u$ at the quantile of $|\log r|$ that
# belongs to the budget. Where does a budget of 95 % come from? From no theory: it is a price that you set. Rejected
# tokens shorten the step by their share (lesson 07), and no study of ours has shown a gain of a band on a real model.
# So keep nearly all tokens, and let a band cut off only what you would not believe.
#
# **How long are my answers?** The logarithm of the product of $T$ ratios is the sum of their log-ratios $d_t=\log r_t$,
# that is, $T$ times their mean. So the product lies in $[1/u, u]$ exactly when
#
# $$ \Big|\frac1T \sum_t d_t\Big| \le \frac{\log u}{T} , $$
#
# and the geometric mean, whose logarithm is the mean of $d_t$, exactly when $\big|\frac1T \sum_t d_t\big| \le \log u$.
# Only the first bound contains the length. A band on the product becomes stricter as answers become longer; a band on
# the geometric mean does not.
#
# **How large is my batch?** Lesson 10 has one number for a step from $B$ answers, the progress
#
# $$ \eta(B) = \frac{\langle \mathbb{E}g, g^*\rangle^2}{\|g^*\|^2\,(\|\mathbb{E}g\|^2 + \sigma^2/B)} . $$
#
# Here $\mathbb{E}g$ is the expected gradient with the correction, $\sigma^2$ the variance of what one answer
# contributes, and $g^*$ the exact gradient. A tight bound has more bias, a loose one more noise. Only the noise,
# $\sigma^2/B$, depends on the batch.
#
# ## A budget asks every run for another threshold
#
# *Keep 95 % of the tokens.* What is the tightest band on single tokens (column "token"), and on the geometric mean of
# an answer (column "mean")? Each row is the last recorded step of a run. The first three runs are of the real model:
# with bfloat16 on both sides, with a coarse KV cache, and with weights six updates old. The others are tiny models.


# %%
def band_on(name):
    """Return one rule, whose bounds are moved below."""
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, lower=0.5, upper=2.0),))


token_band, mean_band, product = band_on("token_k1"), band_on("seq_mean_k1"), preset("decoupled_seq_is")
RUNS = ("smol_bf16_both", "smol_kv_fp8_e5m2", "smol_stale_6", "control_fp32", "bf16", "kv_fp8", "kv_fp8_e5m2")
thresholds = {}
show("last step: u of the tightest band on", "token", "mean")
for name in RUNS:
    step = load(name)
    d, mask = correct(step, CorrectionConfig()).log_ratio, step.response_mask
    of_answers = over_sequence(d, mask, "mean"), mask.sum(-1)
    thresholds[name] = [band_that_keeps(d[mask], mask[mask], 0.95), band_that_keeps(*of_answers, 0.95)]
    show(name, thresholds[name])

# %% tags=["hide-input"]
coarse = load("kv_fp8_e5m2")
strict = at_threshold(mean_band, 1.001)
as_preset = {name: 100 * budget.kept(load(name), strict).share for name in ("smol_bf16_both", "kv_fp8_e5m2")}
assert thresholds["bf16"][1] < thresholds["smol_bf16_both"][1] < thresholds["smol_stale_6"][1]
say(f"""
Read the column *mean* downwards. The same budget needs ±{100 * (thresholds["smol_bf16_both"][1] - 1):.1f} % in
`smol_bf16_both`, whose engine and trainer both compute in bfloat16, and a factor of
{thresholds["smol_stale_6"][1]:.1f} in `smol_stale_6` with its old weights. The tiny model in bfloat16 (`bf16`) needs
only ±{100 * (thresholds["bf16"][1] - 1):.1f} %.

verl's preset for the geometric mean has a band of ±0.1 %. In `smol_bf16_both`, where nothing is wrong, it keeps
{as_preset["smol_bf16_both"]:.0f} % of the tokens; in `kv_fp8_e5m2` it keeps {as_preset["kv_fp8_e5m2"]:.0f} %.
**A budget can be carried from one run to another. A threshold cannot.**
""")

# %% [markdown]
# ## The cap that makes the most progress
#
# A budget says what you can afford, not what is best. To find the best threshold we need bias and noise. These are
# known precisely only if every likely answer can be enumerated. So this part is about a tiny model. `async` has an
# engine that runs up to two updates behind the trainer. We move a cap on the product from nearly 1 to above the largest
# weight, and compute the progress $\eta$ at each of them.
#
# Move the slider to your batch size. **Look for**
#
# - the green line, $\eta$, with its 95 % interval as a green band; the grey line is $\eta$ without a correction;
# - the dashed line, at the cap with the largest $\eta$;
# - the grey area: in 95 % of the bootstrap samples the best cap is inside it.
#
# The horizontal axis is logarithmic twice: equal distances multiply $\log C$ by the same factor. So caps close to 1 are
# far apart, and large caps are close together. If the green line rises and falls by less than the height of its band,
# the best cap is hardly known.


# %% tags=["hide-input"]
BATCHES = [256, 1024, 4096, 16384, 65536]
CAP_AXIS = "cap C on the product of the ratios (the axis is logarithmic in log C)"


def swept_over(run, config, sizes=BATCHES, tight=0):
    """Move one bound over thirty thresholds, on the run's last sketch; `tight`: add so many tighter ones."""
    update, sketch = read_gradients(run, last_sketch(run))
    points = tight_thresholds(update, config, BAND, tight) if tight else []
    points += usual_thresholds(update, config, count=30)
    return gradient_sweep(update, sketch, config, thresholds=points, batch_sizes=sizes)


def growth(sweep, small, large, band=False):
    """Divide the best cap at one batch size by that at another, on the same bootstrap samples. For a band: the best
    width, log u. If the progress of several differs by less than a ten-thousandth, the tightest counts as the best."""
    sizes = sweep.ranking.reports[0].batch_sizes
    progress = sweep.ranking.progress.nan_to_num(-1)  # (thresholds, batch sizes, 1 + samples)
    best_places = (progress >= (1 - 1e-4) * progress.max(0).values).int().argmax(0)  # the first of them
    logs = torch.tensor(sweep.thresholds, dtype=torch.float64).log()
    of_best = (logs.log() if band else logs)[best_places]
    factor = interval_of(of_best[sizes.index(large)] - of_best[sizes.index(small)], signed=True)
    return Interval(*map(math.exp, (factor.value, factor.low, factor.high)))


behind = runs.find_run("async")
by_cap = swept_over(behind, product)
drawn_at = {
    f"{size:,}": progress_curves(by_cap, size).update_layout(
        xaxis_title_text=CAP_AXIS, yaxis_title_text="progress η(B)"
    )
    for size in BATCHES
}
moving_picture("answers in a batch, B:", drawn_at, "256")

small, large, tried = by_cap.best[0], by_cap.best[-1], by_cap.thresholds
assert all(tried[0] < best.value < tried[-1] for best in by_cap.best)
assert small.low == tried[0]
by_band = swept_over(behind, mean_band, (256, 65536), tight=8)
same_band = growth(by_band, 256, 65536, band=True)
assert same_band.low == same_band.high == 1
say(f"""
With {BATCHES[0]} answers a cap of {small.value:.0f} has the most progress, and adds
{above(by_cap.ranking.choices[0].over_nothing)} to the η of no correction. How well is this best cap known? The grey
area begins at the tightest cap that was tried, and ends at {small.high:.0f}. So at this batch size **a cap is better
than none, but which cap is best is hardly known.** We have no lower limit for it.

With {BATCHES[-1]:,} answers a cap of {large.value:.0f} is best: {above(growth(by_cap, BATCHES[0], BATCHES[-1]), 1, 0)}
times as large, with an interval from the same bootstrap samples. A loose cap leaves nearly exact weights: they have
little bias, and more answers remove their noise.

A band on the geometric mean behaves differently here. Of the bands that were tried, the same one was best with
{BATCHES[0]} and with 65,536 answers, in all bootstrap samples. Only few bands were tried, so a small shift would not be
seen. A band that is wide open is the same as no correction, and more answers do not remove the bias of no correction.
The appendix repeats both searches for seven runs. In some of them the best cap or band grows significantly with the
batch, in none it shrinks significantly, and in most it is not known.
""")

# %% [markdown]
# So choose a cap for your own batch size.
#
# ## Does η predict which run goes well?
#
# Two studies of a tiny model trained with fifteen corrections each, on six seeds: one with weights that are eight
# updates old, one with a coarse KV cache. $\eta$ was measured **once**: at step 10 of a run without a correction, for
# the batch size of the study.
#
# A predictor must be compared with simple ones. Here are four that need no gradient:
#
# - the **budget** in the arm's name: `geometric_80` was made to keep that percentage of the tokens; an arm without a
#   rule keeps all;
# - the **kept share** and the **effective sample size** of the first ten steps;
# - "**a cap, always**": 1 for the two arms with a cap, 0 for the others.
#
# Each predictor orders the fifteen arms. The **rank correlation** compares this order with that of the rewards at the
# end. It is 1 if both orders are the same, −1 if one is the reverse of the other, and 0 if they are unrelated. **Look
# for** a predictor that does well in both studies.


# %%
def early(rows, arm, column):
    """Return the mean of a column over the first ten steps and all seeds."""
    values = [row[column] for row in rows if row["preset"] == arm and row["step"] <= 10 and row[column] is not None]
    return sum(values) / len(values)


def predictors(rows, eta):
    return {
        "η": {arm: one.value for arm, one in eta.items()},
        "budget": {arm: float(end) if (end := arm.rsplit("_")[-1]).isdigit() else 100.0 for arm in eta},
        "kept share": {arm: early(rows, arm, "kept_fraction") for arm in eta},
        "ESS": {arm: early(rows, arm, "ess") for arm in eta},
        "a cap, always": {arm: float(arm.endswith("_cap")) for arm in eta},
    }


# %% tags=["hide-input"]
def correlation_gap(one, other, rows):
    """Return how much better one predictor orders the arms than another, on the same resampled arms and seeds."""
    ends, random = end_rewards(rows), numpy.random.default_rng(0)
    reward = numpy.array([list(ends[arm].values()) for arm in one])  # (arms, seeds)
    first, second = (numpy.array([predictor[arm] for arm in one]) for predictor in (one, other))
    samples = [(numpy.arange(len(first)), numpy.arange(reward.shape[1]))]
    samples += [tuple(random.integers(n, size=n) for n in reward.shape) for _ in range(2000)]
    gaps = []
    for arms, seeds in samples:
        mean = reward[arms][:, seeds].mean(1)
        gaps.append(rank_correlation(first[arms], mean) - rank_correlation(second[arms], mean))
    return Interval(gaps[0], *map(float, numpy.quantile(gaps[1:], [0.025, 0.975])))


correlations, picked, gaps = {}, {}, {}
for name, label in (("decide_stale", "old weights"), ("decide_cache", "coarse cache")):
    rows, about = read_study(name)
    eta = {arm: Interval(*numbers) for arm, numbers in about["progress"]["none_0"]["10"].items()}
    by_name = predictors(rows, eta)
    correlations[label] = {key: progress_correlation(one, rows) for key, one in by_name.items()}
    gaps[label] = correlation_gap(by_name["budget"], by_name["η"], rows)
    first = max(eta, key=lambda arm: eta[arm].value)
    picked[label] = first, next(pair.difference for pair in against_nothing(rows) if pair.arm == first)
both_studies = [
    bars_with_errors(label, one, colour)
    for (label, one), colour in zip(correlations.items(), (WARM, COOL), strict=True)
]
y = {"title_text": "rank correlation with the reward", "range": [-1, 1]}
picture(
    figure(both_studies, height=300, x={"type": "category"}, y=y, legend=True).update_layout(
        barmode="group", bargap=0.3
    )
)

old, cache = correlations["old weights"], correlations["coarse cache"]
(stale_arm, stale_gain), (cache_arm, cache_gain) = picked.values()
assert all(old[key].low < 0 < old[key].high for key in ("budget", "kept share", "ESS"))
half_of_bad = next(one.difference for one in against_nothing(rows) if one.arm == "geometric_negative_50")
assert eta["geometric_negative_50"].value > eta["none"].value  # of the study that was read last, that of the cache
say(f"""
(The lines on the bars are 95 % intervals, from resampled corrections and seeds.)

- **With old weights** η has a rank correlation of {above(old["η"])}, "a cap, always" one of
  {above(old["a cap, always"])}. For the budget, the kept share and the ESS it is not significantly different from 0.
- **With the coarse cache** the budget in the arm's name has {above(cache["budget"])}, and η {above(cache["η"])}. On the
  same resampled arms and seeds, the correlation of the budget minus that of η is {above(gaps["coarse cache"])}. The
  interval just excludes 0, so the budget orders the arms better: the more tokens an arm keeps, the higher its reward
  tends to be. And η ranks `geometric_negative_50` above no correction, although the reward of that arm minus that of no
  correction is {below(half_of_bad)}.
- **The arm with the largest η**: with old weights it is `{stale_arm}`; its reward minus that of no correction is
  {above(stale_gain)}. With the coarse cache it is `{cache_arm}`, which cannot be distinguished from no correction:
  {untold(cache_gain)}.

So η orders fifteen arms better than chance in both studies. But in one of them a rule that costs nothing, "keep more
tokens", orders them better, and "a cap, always" is better than chance in both, too. **On long answers η is not known**:
from 64 sampled answers its interval reaches from about 0 to 0.9 for every arm (`runs/README.md`). Nor was it measured
on the real model, whose recorded steps have no sketch of the scores. So read η together with the kept share and the
ESS, never alone.
""")

# %% [markdown]
# ## Chosen on one half, judged on the other
#
# By hand: two thresholds are equally good, with a true progress of 0.5. Each measurement is off by +0.1 or −0.1, with
# equal probability. The larger of the two measurements is 0.6 three times out of four and 0.4 once, so on average it is
# 0.55. We promise 0.55 and get 0.5. The difference is called **optimism**.
#
# How large is it in the recorded runs? We split the prompts of a step at random into two halves. On one half we choose
# the threshold with the most progress. Then we look at the progress of this threshold on the other half. This is done
# for seven runs, and twelve splits of each.


# %% tags=["hide-input"]
MISMATCHED = ("bf16", "kv_fp8", "stale_4", "async", "stale_head", "moe_bf16", "moe_replay")
SPLITS = 12


def progress_on(half, parts, replicas):
    """Return η(256) of each correction on these prompts alone."""
    units = half[None]  # 1 for a prompt of the half, 0 for another
    of_half = replace(replicas, units=units, reference=mean_gradients(replicas.target, units))
    return [float(samples_of(of_one, of_half, [256]).progress[0, 0]) for of_one in parts]


def promises(name, config):
    """Return (promised, got) of the best threshold, averaged over the splits and both ways."""
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


optimism = {}
for label, config in (("band on the geometric mean", mean_band), ("cap on the product", product)):
    both = [promises(name, config) for name in MISMATCHED]
    show(f"{label}: promised, got", *torch.tensor(both, dtype=torch.float64).mean(0).tolist(), digits=2)
    optimism[label] = [promised - got for promised, got in both]
of_band, of_cap = optimism.values()
less = mean_interval([one - other for one, other in zip(of_band, of_cap, strict=True)])
say(f"""
On average over {len(MISMATCHED)} runs, η of the best band is higher on the half that chose it than on the other half,
by {above(mean_interval(of_band))}. For the best cap this optimism is {above(mean_interval(of_cap), digits=3)}, so that
of the band is larger by {above(less)}. **A search always returns a number. Measure it again on data that the search has
not seen.**
""")

# %% [markdown]
# ## Predict, then reveal
#
# A band on the geometric mean is chosen so that it keeps 95 % of the tokens of one step. Then training goes on. **Write
# down a guess:**
#
# 1. In the tiny model `bf16`, the band is chosen at the last recorded step. Does it keep more or less than 95 % of the
#    first recorded step?
# 2. The real model `smol_bf16_both` computes in the same format. Is the answer the same there?
# 3. In `kv_fp8_e5m2`, one band is chosen at each recorded step. How many of them keep 95 % of the tokens of the next
#    recorded step: all, about half, or none?


# %%
def transferred(name, share=0.95):
    """Return the share kept on each step (columns) by the band that was chosen on each step (rows)."""
    steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
    chosen = [keep_at_least(step, mean_band, share) for step in steps]
    shares = [[budget.kept(step, at_threshold(mean_band, t)).share for step in steps] for t in chosen]
    return torch.tensor(shares, dtype=torch.float64)


TRANSFERRED = {name: transferred(name) for name in ("bf16", "smol_bf16_both", "kv_fp8_e5m2")}
for name in ("bf16", "smol_bf16_both"):
    numbers = runs.list_steps(runs.find_run(name))
    show(f"{name}: share kept of step", *numbers)
    for at, shares in zip(numbers, TRANSFERRED[name], strict=True):
        show(f"  by the band chosen at step {at}", shares, digits=3)

# %% tags=["hide-input"]
tiny, real, of_coarse = TRANSFERRED.values()
following = of_coarse.diagonal(1)
assert tiny[-1, 0] < 0.95 < tiny[0, -1]
assert real[0, -1] < 0.95 < real[-1, 0]
lengths = [row["response_length"] for row in runs.read_metrics(runs.find_run("smol_bf16_both"))]
say(f"""
1. Less: it keeps {100 * tiny[-1, 0]:.0f} % of the first step, and the band of the first step keeps
   {100 * tiny[0, -1]:.0f} % of the last. The tiny model becomes more certain of its answers, and rounding hardly moves
   a probability near 1. So the band of the last step is tight.
2. No, it is the opposite: the band of the last step keeps {100 * real[-1, 0]:.0f} % of the first, and the band of the
   first keeps {100 * real[0, -1]:.0f} % of the last. The answers of this model become shorter, from {lengths[0]:.0f} to
   {lengths[-1]:.0f} tokens on average, and a mean over fewer log-ratios varies more. That fits; we have not tested it.
3. {int((following >= 0.95).sum())} of {len(following)}. A band that keeps just enough of one sample keeps slightly too
   little of the next, on average (appendix).

**Give a budget a margin, and choose the threshold anew as training goes on.** In which direction the threshold moves
depends on the run.
""")

# %% [markdown]
# ## Taking it to verl
#
# You have a band and want to use it in verl. verl's k1 is $-\log r$. verl compares it with the logarithms of the two
# numbers that you configure, so "a_b" keeps a token if
#
# $$ \log a \le -\log r \le \log b \quad\Longleftrightarrow\quad \frac1b \le r \le \frac1a . $$
#
# **The bounds act on $1/r$**, although the
# [documentation](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html) calls them ratio bounds. For "0.5_2.0",
# whose bounds are each other's inverse, this makes no difference.
#
# ## The decision card
#
# *10 minutes.* A threshold is the last thing to decide. First find the cause of the gap, because most causes are
# repaired and not weighted. Take a file with the log-probs of your own run; if you have none, take the recorded run
# `kv_fp8_e5m2`, and leave out `import`. Three commands measure it:
#
# ```sh
# rlcorr import log_probs/ --run mine              # its faults, its pattern, its k3
# rlcorr gaps K3 --format fp8_kv                   # is this k3 usual for this number format?
# rlcorr threshold mine --keep 95 --system verl    # a band for your budget, checked on the last step
# ```
#
# Then write your numbers into the last column of the one row that is about your cause. The same card, to print, is
# [DECISION_CARD.md](DECISION_CARD.md).

# %% tags=["hide-input", "decision-card"]
cap_on = {name: pair.difference for name in ROUNDING for pair in [contrasts(name, ACCURACY)[CAP, NONE]]}
stale = [contrasts(name, ACCURACY)[CAP, NONE].difference for name in ("smol_stale_6", "smol_centering_stale")]
exact_formats = contrasts("smol_precision", ACCURACY)["float32", NONE].difference
replayed = contrasts("smol_support", ACCURACY)["replay", NONE].difference
wide_band = contrasts("smol_stale_6", ACCURACY)["geometric_95", NONE].difference
of_tiny = {(study, pair.arm): pair.difference for study in ("decide_cache", "decide_long_cache")
           for pair in against_nothing(rows_of(study))}  # fmt: skip
card = [
    ["Cause", "Measure first", "Setting", "What it keeps", "How to check", "Evidence, with 95 % intervals", "My run"],
    ["---"] * 7,
    [
        "**Old weights:** the engine is some updates behind",
        "greedy accuracy of the last weights, not the rewards; k3 by the age of the weights",
        "cap token weights at 2 (`decoupled_token_is`); less lag",
        "every token; read the effective sample size",
        "accuracy of the last weights with and without the cap, on several seeds",
        f"accuracy, cap − none: {above(helped)} (planned, ten seeds); {untold(stale[0])} and {untold(stale[1])} (five "
        f"seeds each)",
    ],
    [
        "**Coarse numbers:** cache or weights in 8 bits",
        "`gaps`: is k3 usual for the format?",
        "nothing; a cap at 2 is an insurance for long answers",
        "every token",
        "as above; k3 does not climb",
        f"accuracy, cap − none: {untold(cap_on['smol_e5m2'])} (cache), {untold(cap_on['smol_centering_fp8'])} (engine)"
        f"; long answers of a tiny model, reward: {above(of_tiny['decide_long_cache', 'token_cap'])}",
    ],
    [
        "**Rounding:** 16 bits on both sides",
        "`gaps`: is k3 usual for bf16?",
        "nothing",
        "every token",
        "k3 stays where it is in a healthy run",
        f"accuracy, float32 on both sides − bfloat16: {untold(exact_formats)}",
    ],
    [
        "**The sampler:** top-p, top-k, a temperature",
        "mean ratio far below 1; mean −log q below the entropy",
        "repair it: log-probs over the same tokens, at the same temperature",
        "every token",
        "the mean ratio is 1 again, within its error",
        f"accuracy at top-p 0.9, replay − none: {untold(replayed)}; cap − none: {untold(cap_on['smol_support'])}",
    ],
    [
        "**A bug:** shifted lists, padding, a forgotten tensor",
        "`import` names it; lesson 15 has fourteen",
        "repair it; no threshold",
        "nothing to choose",
        "the symptom is gone on the next step",
        "none needed: no weight repairs a wrong pair",
    ],
    [
        "**None of these,** or somebody proposes a band",
        "`attribute`: which setting makes how much of the gap?",
        "a budget in place of a number: `threshold --keep 95`",
        f"95 %; ±0.1 % on the geometric mean would keep {as_preset['smol_bf16_both']:.0f} % of a healthy run",
        "the last step, which was not used for the choice, keeps as many",
        f"band of 95 % − none, accuracy: {untold(wide_band)}; a tiny model, reward with a token band of 80 %: "
        f"{below(of_tiny['decide_cache', 'token_band_80'])}",
    ],
]
say("\n".join("| " + " | ".join(row + ["____________"] * (7 - len(row))) + " |" for row in card))

# %% [markdown]
# (The model is SmolLM2-135M unless a tiny one is named. In the first and the last row its weights are six updates old.
# The intervals of the tiny models allow for all comparisons of their study at once.) Only the first row has a setting
# that was shown to help a real model, and only with a high learning rate. So the most useful column is *Measure first*.
#
# ## Exercise 1: the tightest band
#
# *6 minutes.* `r` is `(N,)`. Return the smallest $u \ge 1$ for which $[1/u, u]$ keeps at least this share of the
# tokens.
#
# <details><summary>Hint 1</summary>How far a token is from 1 is the larger of r and 1/r.</details>
# <details><summary>Hint 2</summary>Sort these distances. Of ten tokens, 85 % means nine.</details>


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
# *4 minutes.* A band from `lower` to `upper` bounds one of three things, by `level`: the ratio of a `"token"`, the
# `"geometric"` mean of the ratios of an answer, or their `"product"`. The answer has `length` tokens. Return the two
# bounds as bounds on $d$: on the $d$ of the token, or on the mean $d$ of the answer.
#
# <details><summary>Hint 1</summary>The logarithm of a product is T times the mean of d.</details>
# <details><summary>Hint 2</summary>Two of the three levels do not depend on the length.</details>


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
# <details><summary>Yes: it was tuned with great care.</summary>It was tuned for another engine, and for answers of
# another length.</details>
# <details><summary>I take its budget, and compute the number for my run.</summary>Yes. A budget can be carried from one
# run to another.</details>
# <details><summary>I widen it until nothing is rejected.</summary>Then the rule does nothing.</details>
#
# **2. Of sixty bands, the best makes a progress of 0.43 on this step. What do you expect on the next one?**
#
# <details><summary>0.43, perhaps more and perhaps less.</summary>No. It was picked because its noise was in its
# favour.</details>
# <details><summary>Less, even if nothing else changes.</summary>Yes. That is optimism.</details>
# <details><summary>More than 0.43, since training improves.</summary>Training changes the mismatch, in either
# direction.</details>
#
# **3. You want r between 0.98 and 1.05, and write `rollout_rs_threshold: "0.98_1.05"` into verl. What happens?**
#
# <details><summary>r between 0.98 and 1.05 is kept.</summary>No. The bounds act on 1/r.</details>
# <details><summary>r between 0.952 and 1.020 is kept.</summary>Yes: 1/1.05 to 1/0.98.</details>
# <details><summary>verl refuses it.</summary>No. It is a valid band, only another one.</details>
#
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
#   one](http://localhost:8501/bench?run=bf16&step=400&preset=decoupled_geo_rs);
# - [the best cap of a tiny policy](http://localhost:8501/lab?lag=16&threshold=1) in the Lab, and [where none
#   helps](http://localhost:8501/lab?lag=32&learning_rate=0.1&steps=200).
#
# ## Pitfalls
#
# - **Judging by the rewards.** With old weights the last rewards belong to older weights. Look at the accuracy of the
#   last weights.
# - **One step for a whole run.** η is about one step. Over many steps noise averages out and bias does not, so a whole
#   run may need a looser cap.
# - **The edge of the search.** If the best threshold is the tightest or the loosest that was tried, or if its interval
#   reaches from one end to the other, the search has not located it.
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
# Proofs and further checks. Nothing above depends on them.

# %% [markdown]
# ### A budget for the effective sample size
#
# A cap keeps all tokens, so its budget is an effective sample size (ESS), $(\sum w)^2 / (N \sum w^2)$. The ESS of
# capped weights never rises as the cap rises. So if any cap keeps the ESS above a number, there is a loosest one that
# does. Proof: let $n$ of the $N$ weights be above $C$. The others have the sum $S$ and the sum of squares $Q$. Then
# $\mathrm{ESS} = (S + nC)^2 / (N (Q + nC^2))$ and
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
# The last two lines show why a budget for the ESS can be out of reach. At a cap of 1 no weight is large any more; the
# small ones lower the ESS. A cap far below 1 does raise the ESS, but only because it makes all weights equal. That is
# no correction.
#
# ### A curve without a new pass
#
# `bound_curve` computes, once for each token, the first threshold at which the token is inside. Every point of the
# curve is then a running sum over the sorted tokens. It must agree with `evaluate`, which looks at every token again.

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
# A band on the product bounds the mean $d$ of an answer by $\log u$ divided by the length. The first two lines
# show this bound for four lengths. The table below compares it with recorded steps. "d" is the root mean square of $d$
# over tokens, and "mean d" that of the means of the answers. "apart" is the root mean square of $d$, divided by the
# root of the longest of the four lengths. That is how large a mean over so many tokens would typically be, if all $d$
# were independent.

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
A product up to 2 seems a loose bound. Over {max(allowed):,} tokens it allows a mean $d$ of {allowed[2000]:.5f}. If
tokens were independent and had the $d$ of `bf16`, their mean would typically be {shares["bf16"]:.1f} times that; with
the $d$ of `kv_fp8` {shares["kv_fp8"]:.1f} times, with that of `kv_fp8_e5m2` {shares["kv_fp8_e5m2"]:.0f} times. So a
rule that rejects almost nothing on short answers can reject whole batches of long ones. For recorded answers of 200 to
500 tokens see `runs/README.md`.
""")

# %% [markdown]
# ### In the toy, where everything is known
#
# This is the small world of lesson 10, with a cap on the product, and with the smallest batch of the slider above. Bias
# and noise are in units of the exact gradient's length; the axis is logarithmic in $\log C$, as above. **Look for** the
# dashed line, the cap with the most progress at this batch size: to its right the bias still falls, but the noise
# rises. The lines below the picture have the best cap for four batch sizes.

# %%
toy = small_world(0.5)
caps = [1 + 0.02 * 1.3**n for n in range(24)]
exact = {size: toy_sweep(toy, product, caps, size) for size in (16, 256, 4096, 65536)}
best = {size: caps[max(range(len(caps)), key=curve.progress.__getitem__)] for size, curve in exact.items()}
y_name = "η; bias, noise (units of ‖g*‖)"
picture(exact_curves(exact[256], of_ratio=True).update_layout(xaxis_title_text=CAP_AXIS, yaxis_title_text=y_name))
show("answers in the batch", list(best))
show("best cap", list(best.values()), digits=2)
show("its progress", [max(curve.progress) for curve in exact.values()], digits=3)
assert sorted(best.values()) == list(best.values())
assert all(caps[0] < cap < caps[-1] for cap in best.values())

# %% [markdown]
# ### Seven recorded runs
#
# How many times as large is the best cap with many answers as with few? For the band, the factor is that of its width,
# $\log u$. A factor of 1 with the interval [1, 1] means that the same point of the grid was best in all bootstrap
# samples; it does not mean that the best value is known so exactly. If several points are equally good to a
# ten-thousandth, we take the tightest.

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
The best cap grows significantly in {sum(grown["cap"])} of {len(MISMATCHED)} runs, and the best band in
{sum(grown["band"])}. In the other runs the interval includes 1, so it is not known whether they grow.

`kv_fp8_e5m2` has answers that are too long to write down all of them, so its sketch contains a sample only. Its best
band at 256 answers is {bracketed(of_long)}, where bands from {tried[0]:.3f} to {tried[-1]:.2f} were tried. The interval
reaches from one end of the search to the other: the best band is not known. Nor is it known whether it is better than
no correction: the difference in η is {untold(long_band.ranking.choices[0].over_nothing)}.
""")

# %% [markdown]
# ### Optimism
#
# For any measured $X_1, X_2$,
#
# $$ \max(X_1, X_2) = \tfrac12 (X_1 + X_2) + \tfrac12 |X_1 - X_2| \quad\Rightarrow\quad
# \mathbb{E} \max(X_1, X_2) \ge \max(\mathbb{E} X_1, \mathbb{E} X_2) , $$
#
# with a gap that grows with the noise. The same holds for a band. If it ends at the $k$-th smallest distance of $n$
# tokens, it keeps $k/n$ of these tokens by construction. Of new tokens from the same policies it keeps $k/(n+1)$ on
# average.

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
# ### Bounds on the wrong side, and what verl cannot express
#
# First, a band on $r$ as the export writes it for verl. Then somebody types bounds of $r$ into verl:
# which band is it, and for how many tokens does the difference matter? Last, four presets that verl cannot express.

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
# If a system cannot express a configuration, the export refuses it. The nearest expressible one would be another
# estimator.
