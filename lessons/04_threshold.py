# %% [markdown]
# # 04 · Choosing a threshold for my run
#
# **Claim.** A threshold has no right value of its own. It follows from a budget, from the length of the answers and,
# for a cap on weights, from the size of the batch. With old weights on a real model a cap on the token weights
# recovered a part of the lost accuracy in a planned study; two smaller studies leave it open.
#
# *50 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00, 01 and 03. Letters:
# [Notation](NOTATION.md). This is the last of the five lessons.
#
# At the end you can
#
# - go from a symptom on the dashboard to its likely cause;
# - say when a cap helped a real model, and which number shows it;
# - turn a budget into a threshold, and write it for verl;
# - fill in a decision card for your own run.
#
# In this lesson, two numbers differ **significantly** if the 95 % interval of their difference excludes 0.

# %% tags=["hide-input"]
import itertools
import math

import sympy
import torch
from exercises.thresholds import TIGHTEST, TO_VERL
from recorded import load
from scipy import stats
from sentences import above, below, bracketed, reveal, say, untold
from show import picture, show
from study_ends import contrasts, planned_ends, rows_of

from rlcorr import CorrectionConfig, RejectionRule, correct, evaluate, preset
from rlcorr.analysis import budget
from rlcorr.analysis.bound_curve import bound_curve
from rlcorr.analysis.budget import ess_at_least, keep_at_least
from rlcorr.bounds import at_threshold, usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import COOL, REJECTED, WARM, horizontal_line, interval_bars
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import over_sequence
from rlcorr.records import runs
from rlcorr.records.study import Endpoint, end_rewards, last_accuracies
from rlcorr.records.study_comparisons import (
    against_control,
    against_nothing,
    comparisons,
    holm,
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
# ## From the symptom to the cause
#
# A threshold is the last thing to decide. First find the cause of the gap, because most causes need a repair, not a
# weight. These are the symptoms that a dashboard shows. The **mean ratio** and the effective sample size (ESS) are
# those of lessons 00 and 01, over the engine's tokens. **k3**, the mean of $r - 1 - \log r$, is the size of the gap
# (lesson 02). Lesson 11 explains the mean of $-\log q$ and the entropy.
#
# | symptom | likely cause | look next |
# |---|---|---|
# | mean ratio far below 1 | top-p, top-k, or tokens that are hardly ever drawn | sampler settings; the largest ratios |
# | mean ratio far above 1 | tokens not sampled with the recorded $q$ | which log-probs the engine reports |
# | mean $-\log q$ below the entropy, mean ratio near 1 | a temperature that only sampling used | sampler settings |
# | k3 large at step 1 already | coarse numbers: a cache in 8 bits, a head in 16 bits | compute in float32 |
# | k3 jumps in the first steps and stays | a tensor not copied to the engine | a checksum per tensor |
# | k3 climbs, and the engine's weights are old | the **lag**: by how many updates they are old | less lag (lesson 12) |
# | k3 climbs, and there is no lag | updates that the engine's number format rounds away | lesson 11 |
# | a few tokens have nearly all of k3 | swapped experts | router replay (lesson 15) |
# | many log-probs of exactly 0 on both sides | padding inside the mask | repair the mask |
# | `kept_fraction` or the ESS falls, k3 does not | longer answers | lessons 07 and 08 |
#
# The library's function `triage` runs one test per known cause on a batch. Several causes may leave the same pattern.
# Then it says what to measure next.
#
# ## A planned study on a real model
#
# Before we choose a threshold: does a cap help at all? We asked this on a real language model,
# `SmolLM2-135M-Instruct`, which learns sums of two numbers. The method is GRPO: the advantage of an answer compares its
# reward with those of the other answers to the same prompt. The answers come from weights that are **six updates
# old**. The plan (`runs/study/smol_3.md`) was committed before any of these runs. It names the number that
# decides, the comparisons and our predictions.
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
# are trained on; with old weights, the model of six updates before wrote these answers.
#
# **Look for** the two bars of `none`: which of the two numbers shows what old weights cost? Write down a guess first.

# %%
LAST = "smol_last_weights"
last_rows = rows_of(LAST)
accuracy = {arm: list(seeds.values()) for arm, seeds in planned_ends(LAST).items()}
rewards = {arm: list(seeds.values()) for arm, seeds in end_rewards(last_rows).items()}  # of the last quarter: six steps
against = {arms: pair.difference for arms, pair in contrasts(LAST).items()}  # of the accuracy, paired by seed
of_reward = {pair: comparisons(last_rows, [pair])[0].difference for pair in against}

# %% tags=["hide-input"]
start = mean_interval([row["reward"] for row in last_rows if row["step"] == 1 and row["preset"] == "fresh"]).value
SHORT = {"product_cap_normalized": "product_normalized"}
ends = {"mean reward of the last six steps": rewards, "greedy accuracy of the last weights": accuracy}
groups = {end: {SHORT.get(arm, arm): mean_interval(x) for arm, x in of.items()} for end, of in ends.items()}
start_line = horizontal_line(y=start, label="reward of the first step", colour=WARM)
picture(interval_bars(groups, "reward, accuracy (0 to 1)", (REJECTED, COOL), height=320, shapes=[start_line]))

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
intervals over ten seeds; differences are paired by seed. The first three rows were planned as the main ones. A
**p-value** is the probability of so large a difference if only chance made it. Three comparisons have three chances to
give a small p-value. Holm's adjustment for this gives
{", ".join(f"{value:.3f}" for value in adjusted)}. All four differences of the accuracy are in the predicted ranges.

- The accuracy of `none` minus that of `fresh` is {below(hurt)}: old weights without a correction cost more than half of
  the accuracy.
- `token_cap` minus `none` is {above(helped)}. So in this study the cap recovers a part of the loss, not all:
  `token_cap` minus `fresh` is {below(left)}.
- The cap on the product, divided by its mean, cannot be distinguished from the cap on the tokens:
  {untold(against[PRODUCT, CAP])}.
- **The rewards of the same runs differ little.** `none` minus `fresh` is {untold(of_reward[NONE, FRESH])}, and
  `token_cap` minus `none` is {untold(of_reward[CAP, NONE])}. Neither is significant.

Why do the rewards not show it? One reason: the answers of the last step were written by weights that are six updates
older. What the last six updates did to the model is not in any reward yet. Even the small loss of reward may be only
this delay: `none` minus `fresh` of six steps earlier is {untold(delayed[NONE])}. The greedy accuracy belongs to the
weights that you keep.

**How certain is the benefit of the cap?** It was measured three times with the same mismatch:

{table_of_old}

All three are positive, and only the planned one is significant. The two others have the same five seeds and nearly the
same options (one splits its batches for the optimizer by tokens). Yet the accuracy of `token_cap` is
{same_seeds[0]:.2f} in one and {same_seeds[1]:.2f} in the other. So runs with equal seeds differ by chance as much as
the cap may gain.

**With other mismatches, no such difference is shown.** Three studies of the same model, five seeds each, have fresh
weights and another mismatch. The **gain** of a run is its mean reward of the last six steps minus that of the first
six. The last two columns are `token_cap` minus `none`, for the gain and for the accuracy of the last weights.

{table_of_gaps}

The gains of `none` are significant: these runs learn without a cap. Every interval of a difference includes 0, and is
wide: most of them include an improvement of 0.05. So the table does not show that a cap is useless there.

**The advice so far.** If the answers come from old weights and the learning rate is as high as here, cap the token
weights: the best evidence shows a benefit, and no evidence shows harm. At a third of this rate two seeds show no
benefit: the accuracy of `token_cap` minus that of `none` is {untold(third)}. A rule that keeps 95 % of the tokens does
not undo the loss either: on five other seeds the accuracy of `geometric_95` minus `fresh` is {below(band)}. Judge by
the accuracy of the last weights, not by the rewards. If the gap comes from rounding or from the sampler, the cap has
shown no difference on this model, in either direction. The rest of this lesson is about the number: how tight should a
cap or a band be?
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
# tokens shorten the step by their share (lesson 08), and no study of ours has shown a gain of a band on a real model.
# So keep nearly all tokens, and let a band reject only ratios that you do not believe.
#
# **How long are my answers?** The logarithm of the product of $T$ ratios is the sum of their log-ratios $d_t=\log r_t$,
# that is, $T$ times their mean. So the product lies in $[1/u, u]$ exactly when
#
# $$ \Big|\frac1T \sum_t d_t\Big| \le \frac{\log u}{T} , $$
#
# and the geometric mean, whose logarithm is the mean of $d_t$, lies there exactly when
# $\big|\frac1T \sum_t d_t\big| \le \log u$. Only the first bound contains the length. A band on the product becomes
# stricter as answers become longer; a band on the geometric mean does not.
#
# **How large is my batch?** For gradients not in units of $\|g^*\|$, the progress of lesson 03 with $B$ answers is
#
# $$ \eta(B) = \frac{\langle \mathbb{E}g, g^*\rangle^2}{\|g^*\|^2\,(\|\mathbb{E}g\|^2 + \sigma^2/B)} . $$
#
# Here $\mathbb{E}g$ is the expected gradient with the correction, $\sigma^2$ the variance of what one answer
# contributes, and $g^*$ the exact gradient. A tight bound has more bias, a loose one more noise. Only the noise,
# $\sigma^2/B$, depends on the batch, so a larger batch allows a looser cap.
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
# *10 minutes.* Take a file with the log-probs of your own run. Three commands measure it:
#
# ```sh
# rlcorr import log_probs/ --run mine              # its faults, its pattern; it prints "k3 is 0.04."
# rlcorr gaps 0.04 --format fp8_kv                 # your k3 in place of 0.04: is it usual for this number format?
# rlcorr threshold mine --keep 95 --system verl    # a band for your budget, checked on the last step; k3, too
# ```
#
# Without a file, leave out `import` and write `kv_fp8_e5m2` in place of `mine`. verl logs the same k3 as
# `rollout_corr/k3_kl`. Then find the one row of the card that is about your cause, and write into its last column what
# you measured and what you will set. The same card, to print, is [DECISION_CARD.md](DECISION_CARD.md).

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
        "the same accuracy; k3 does not climb from step to step",
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
        "`import` names it; lesson 13 has fourteen",
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
#
# ## References
#
# 1. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the options and
#    thresholds that are exported here.
# 2. Yingru Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: bounds on
#    answers, and their length.
# 3. Ring-1T, [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: a band on token ratios, 0.5 to 5, at scale.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Predict, then reveal
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
reveal(f"""
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
# ### Exercise 1: the tightest band
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
# ### Exercise 2: verl's bounds
#
# *3 minutes.* You want a k1 rule to keep `lower` ≤ r ≤ `upper`. Return the two numbers `(a, b)` to write as "a_b" in
# verl.
#
# <details><summary>Hint 1</summary>verl keeps a ≤ 1/r ≤ b.</details>
# <details><summary>Hint 2</summary>1/r is smallest where r is largest.</details>


# %%
def verl_bounds(lower, upper):
    raise NotImplementedError("exercise 2: write verl_bounds, then run this cell and the next.")


# %% tags=["check"]
check(verl_bounds, TO_VERL)


# %% tags=["solution", "hide-input"]
def verl_bounds_solution(lower, upper):
    return 1 / upper, 1 / lower


check(verl_bounds_solution, TO_VERL)

# %% [markdown]
# ### Check yourself
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
# <details><summary>Less, even if nothing else changes.</summary>Yes. That is optimism (appendix).</details>
# <details><summary>More than 0.43, since training improves.</summary>Training changes the mismatch, in either
# direction.</details>
#
# **3. You want r between 0.98 and 1.05, and write `rollout_rs_threshold: "0.98_1.05"` into verl. What happens?**
#
# <details><summary>r between 0.98 and 1.05 is kept.</summary>No. The bounds act on 1/r.</details>
# <details><summary>r between 0.952 and 1.020 is kept.</summary>Yes: 1/1.05 to 1/0.98.</details>
# <details><summary>verl refuses it.</summary>No. It is a valid band, only another one.</details>

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
# over tokens, and "mean d" that of the mean $d$ over answers. "apart" is "d" divided by the root of the longest of the
# four lengths. That is how large a mean over so many tokens would typically be, if all $d$ were independent.

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
tokens were independent and had the $d$ of `bf16`, their mean would typically be {shares["bf16"]:.1f} times this
limit; with the $d$ of `kv_fp8` {shares["kv_fp8"]:.1f} times, and of `kv_fp8_e5m2` {shares["kv_fp8_e5m2"]:.0f} times.
So a rule that rejects almost nothing on short answers can reject whole batches of long ones. For recorded answers of
200 to 500 tokens see `runs/README.md`.
""")

# %% [markdown]
# ### Optimism
#
# A threshold that a search has chosen looks better on the data of the search than on other data. Lesson 10 measures
# this **optimism**. For any measured $X_1, X_2$,
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
# First, a band on $r$ as the export writes it for verl. Then somebody types bounds of $r$ into verl: which band is it,
# and for how many tokens does the difference matter? Last, four presets that verl cannot express.

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
