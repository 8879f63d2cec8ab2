# %% [markdown]
# # 10 · Gradient bias on real runs
#
# **Claim.** Every correction is a sum of scores with one coefficient per token. So its expected gradient and its noise
# can be computed over all likely answers. The error of a gradient is small for a short step, whether or not the step is
# good. Compare the progress of steps of the best length instead.
#
# *90 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 03), budgets (lesson 04),
# rejection (lesson 08) and what a standard error is. Letters, and the words **bias**, **noise** and **error**, are in
# [Notation](NOTATION.md).
#
# At the end you can
#
# - write any correction as coefficients of scores, and compute bias and noise of its gradient;
# - say why a small error does not make a good step, and compute the progress that does;
# - read an interval of a bias, a noise and a progress, and say what it covers;
# - find the cap that makes the most progress for your batch size, and test it on data that did not choose it.
#
# In this lesson two numbers differ **significantly** if the 95 % interval of their difference excludes 0.
#
# ## Warm-up
#
# Two questions on older lessons.
#
# **1. The effective sample size of a batch is one tenth. Do you know it well (lesson 01)?**
#
# <details><summary>Yes, it is computed from all weights.</summary>From all weights of this sample. It may lack rare
# answers with large weights.</details>
# <details><summary>No: it may be too high.</summary>Yes. Rare answers with large weights lower it, and a sample may
# lack them.</details>
# <details><summary>No: it may be too low.</summary>A missing rare answer makes the estimate too high.</details>
#
# **2. A rule rejects half of the tokens; the loss divides by all tokens. Does the expected gradient become that of all
# tokens, half as long (lesson 08)?**
#
# <details><summary>Yes, because of the division.</summary>Only if the rejected tokens are like the kept ones.</details>
# <details><summary>No. It belongs to the distribution of the kept tokens.</summary>Yes. Its direction changes, not only
# its length.</details>
# <details><summary>No, it becomes longer.</summary>That would need a division by the kept tokens.</details>

# %% tags=["hide-input"]
import itertools
import math
from dataclasses import replace

import numpy
import sympy
import torch
from curves import curves
from exercises.gradient_bias import COEFFICIENTS, PROGRESS
from scipy import stats
from sentences import above, below, bracketed, reveal, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.bounds import BAND, at_threshold, tight_thresholds, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import COOL, KEPT, REJECTED, WARM, arrow, figure, interval_bars, line, points
from rlcorr.figures.gradients import exact_curves, progress_curves
from rlcorr.gradients.bootstrap import EXACT_WEIGHTS, Interval, bootstrap, interval_of, mean_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import (
    compare,
    compare_gradients,
    decompose,
    difference,
    report,
    samples_of,
    units_needed,
)
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import gradient_truth, small_world
from rlcorr.losses.objective import score_coefficients
from rlcorr.records import runs
from rlcorr.records.sketch_files import ExactSketch, last_sketch, read_gradients
from rlcorr.records.study import end_rewards, read_study
from rlcorr.records.study_comparisons import (
    against_nothing,
    progress_correlation,
    rank_correlation,
)
from rlcorr.teaching.check import check

torch.set_num_threads(1)

generator = torch.Generator().manual_seed(11)


def mean_interval(values):
    """Return the mean with its 95 % interval of Student's t."""
    x = torch.tensor(values, dtype=torch.float64)
    half = stats.t.ppf(0.975, len(x) - 1) * float(x.std()) / len(x) ** 0.5
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half)


# %% [markdown]
# ## Four tokens, by hand
#
# The engine sampled X, X, Y and Z, each an answer of one token. The engine's probabilities of X, Y and Z are ½, ¼ and
# ¼, the trainer's are ¼, ¼ and ½. So the four ratios $r=p/q$ are ½, ½, 1 and 2. The advantages $A$ of the four answers
# are 1, 1, 0 and 4.
#
# The gradient of a log-probability is called the **score**, $s=\nabla\log\pi$. Here the parameters are three logits,
# one for each of X, Y and Z, and a softmax makes them probabilities. So a score has three entries: 1 for the token that
# was sampled and 0 for the others, minus the trainer's probabilities. For X it is (1 − ¼, −¼, −½) = (¾, −¼, −½).
#
# A correction decides how much each token counts, and nothing else. So its gradient is a sum of scores,
#
# $$g=\sum_t c_t s_t,$$
#
# where the number $c_t$ is the **coefficient** of token $t$. With weights $r$ and no bound it is $c=rA/N$, with $N$ for
# the number of tokens. For our four tokens that is ⅛, ⅛, 0 and 2. With a cap of 1.5 the weight of Z is 1.5, so its
# coefficient is 1.5 · 4/4 = 1.5. A rejected token has the coefficient 0.
#
# In the table, each row is a correction. It shows the four coefficients, and then the three entries of the gradient
# $g$.

# %%
p, q = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]], dtype=torch.float64)
written = torch.tensor([0, 0, 1, 2])  # X, X, Y, Z
four = TokenBatch.from_log_probs(p.log()[written][:, None], q.log()[written][:, None], torch.ones(4, 1))
four = four.replace(advantages=torch.tensor([[1.0], [1.0], [0.0], [4.0]], dtype=torch.float64))
scores = torch.eye(3, dtype=torch.float64)[written] - p  # (4, 3): one row per token
CONFIGS = {
    "no correction": CorrectionConfig(),
    "weights r, no bound": CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
    "weights r, at most 1.5": CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5),
    "reject above 1.5": CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.4, upper=1.5),)),
}
show("", "c of X", "X", "Y", "Z", "g: X", "Y", "Z")
for name, config in CONFIGS.items():
    c = score_coefficients(four.tensors()["old_log_probs"], four, correct(four, config), config, LossConfig())[:, 0]
    show(name, c, c @ scores, digits=3)

# %% [markdown]
# Z has the largest advantage. If it is rejected, the gradient makes Z **less** probable (the last column).
#
# ## The equation
#
# A batch is a sample, so $g$ is random. Let $g(y)=\sum_t c_t s_t$ be what one answer $y$ contributes, with coefficients
# that are not yet divided by the size of the batch. The gradient of a batch is the average of $g(y)$ over its answers.
# If all likely answers are known, with their probabilities in both policies, we need not sample: we can compute the
# averages. The expected gradient, the variance of one answer's contribution, and the exact gradient are
#
# $$\mathbb{E}g=\sum_y q(y)\,g(y),\qquad \sigma^2=\sum_y q(y)\,\|g(y)-\mathbb{E}g\|^2,\qquad
# g^*=\sum_y p(y)\,A(y)\sum_t s_t.$$
#
# The gradient of a batch of $B$ answers has
#
# - the **bias** $\|\mathbb{E}g-g^*\|$: how far the average lies from the exact gradient;
# - the **noise** $\sigma/\sqrt B$: how far a single batch typically lies from the average;
# - the **error**, the root of the mean squared distance of a batch from the exact gradient: bias² + noise² = error².
#
# Here $\|\cdot\|$ is the length of a vector. We measure all three in units of $\|g^*\|$, the length of the exact
# gradient. The picture shows an invented example with two parameters. **Look for** the distance between the large dots
# at the ends of the two lines: that is the bias. How far the grey points scatter around the blue dot is the noise.

# %% tags=["hide-input"]
exact_arrow, mean_arrow = (1.0, 0.0), (0.7, 0.35)
batches = torch.tensor(mean_arrow) + 0.3 * torch.randn(60, 2, generator=torch.Generator().manual_seed(10))


cloud = points("g of one batch", batches.tolist(), REJECTED, size=5)
gap = line("bias", [0.7, 1.0], [0.35, 0.0], WARM, dash="dot")
picture(
    figure(
        [cloud, arrow("exact gradient g*", exact_arrow, KEPT), arrow("expected gradient E g", mean_arrow, COOL), gap],
        height=330,
        x={"title_text": "first parameter, in units of ‖g*‖", "range": [-0.4, 1.6]},
        y={"title_text": "second parameter", "range": [-0.6, 1.2], "scaleanchor": "x"},
        legend=True,
    )
)

# %% [markdown]
# Which correction is better? **Not the one with the smaller error.** Multiply the gradient of a batch by a number
# $\lambda$. With $\langle\cdot,\cdot\rangle$ for the inner product of two vectors, the squared error is then
#
# $$\mathbb{E}\|\lambda g-g^*\|^2=\|g^*\|^2-2\lambda\,\langle g^*,\mathbb{E}g\rangle
# +\lambda^2\big(\|\mathbb{E}g\|^2+\sigma^2/B\big).$$
#
# If $g$ is noisy, shorten it: the error falls, because the noise shrinks with the step. But nothing was gained, because
# a larger learning rate undoes the shortening. Without a step, $\lambda=0$, the error is $\|g^*\|$, which is 1 in our
# units. So an error below 1 says little. If the angle between $\mathbb{E}g$ and $g^*$ is smaller than a right angle,
# the error is below 1 as soon as the gradient is shortened enough.
#
# ### Shrinking a step, by hand
#
# In one dimension let $g^*=1$, and let $g$ be 3 or −1, each with probability ½. Its mean is 1, so there is no bias, and
# it is always 2 away from its mean, so the noise is 2. The next section explains the last column.
#
# |step|mean|bias|noise|error|progress|
# |---|---|---|---|---|---|
# |$g$|1|0|2|2|0.2|
# |$g/2$|0.5|0.5|1|1.12|0.2|
# |$g/5$|0.2|0.8|0.4|0.89|0.2|
# |none|0|1|0|1|0|
#
# ### Progress: how far a step gets
#
# What is a good step? One that raises the objective, the average reward. If the objective were linear, a step
# $\lambda g$ would raise it by $\lambda\langle g^*,g\rangle$. But it is curved. Let $\mathcal{H}$ be an upper bound of
# its curvature, that is, of its second derivative in any direction. Then the curvature takes away at most
# $\frac12\mathcal{H}\lambda^2\|g\|^2$. So on average a step gains at least
#
# $$\lambda\,\langle g^*,\mathbb{E}g\rangle-\tfrac12\,\mathcal{H}\,\lambda^2\,\mathbb{E}\|g\|^2 .$$
#
# The derivative by $\lambda$ is 0 at $\lambda=\langle g^*,\mathbb{E}g\rangle/\big(\mathcal{H}\,\mathbb{E}\|g\|^2\big)$.
# With this best length the gain is $\langle g^*,\mathbb{E}g\rangle^2/\big(2\mathcal{H}\,\mathbb{E}\|g\|^2\big)$. For
# the exact gradient, $g=g^*$, the same formula gives $\|g^*\|^2/2\mathcal{H}$. The **progress** $\eta$ is the first
# gain divided by the second. A mean square is the square of the mean plus the variance, so
# $\mathbb{E}\|g\|^2=\|\mathbb{E}g\|^2+\sigma^2/B$, and
#
# $$\eta(B)=\frac{\langle g^*,\mathbb{E}g\rangle^2}{\|g^*\|^2\,\big(\|\mathbb{E}g\|^2+\sigma^2/B\big)}.$$
#
# If the inner product is negative, $\mathbb{E}g$ points away from $g^*$; then the best step is none, and $\eta$ is 0.
# So $\eta$ lies between 0 and 1. It depends neither on $\mathcal{H}$ nor on the length of $g$. A gradient without bias
# has $\eta=1/(1+\text{noise}^2)$. And the smallest error that shrinking can reach is $\sqrt{1-\eta}$ (proof in the
# appendix).
#
# By hand: in the table above $\eta$ of $g$ is $1^2/(1\cdot(1^2+2^2))=0.2$. For $g/2$ it is
# $0.5^2/(1\cdot(0.5^2+1^2))=0.2$, too.
#
# ## The same on a recorded step
#
# This needs every likely answer and the score of every token, so we take tiny models. The run `stale_head` trains on a
# small number of sums, and its engine kept the output head of the first step. The recorder followed every likely answer
# to these sums, with the probabilities of both policies.
#
# A score has one number for each parameter, which is too many to store. But a **random projection** approximately
# preserves lengths and angles. Draw $K$ directions $v_k$ with standard normal entries, and keep the $K$ numbers
# $\langle s,v_k\rangle/\sqrt K$. This is the **sketch** of the score. Inner products of sketches are right on average,
# and a squared length is off by a factor of about $1\pm\sqrt{2/K}$. Apart from this, the gradients are exact.
#
# The picture shows the error over the length of the step, $\lambda$, for three corrections (the next section lists
# them). A circle marks the lowest point of each line. **Look for** how short the best steps are, and how little the
# error falls below 1.

# %% tags=["hide-input"]
SHOWN = (
    "disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_k3_rs",
    "decoupled_geo_rs",
)  # fmt: skip
TOKEN, GEO = "decoupled_token_is", "decoupled_geo_rs"


def load(name):
    """Read the last step of a run that has a sketch: every likely answer to some prompts, if the run has them."""
    run = runs.find_run(name)
    return read_gradients(run, last_sketch(run))


stale_head = load("stale_head")
ranking = compare(*stale_head, [preset(name) for name in SHOWN])
of_preset = dict(zip(SHOWN, ranking.reports, strict=True))


def error(r, length=1.0):
    """Return the error of a step of 256 answers that is shrunk to this length, in units of the exact gradient."""
    square = (r.length.value / r.reference_length.value) ** 2 + r.noise[0].value ** 2
    return math.sqrt(1 - 2 * length * r.scale.value + length**2 * square)


factors = [round(0.01 * n, 3) for n in range(61)]
lines = {name: [error(of_preset[name], a) for a in factors] for name in ("disabled", TOKEN, GEO)}
lowest = {name: min(range(len(factors)), key=values.__getitem__) for name, values in lines.items()}
drawn = curves(factors, lines, x_name="length of the step, λ", y_name="error, in units of ‖g*‖")
circles = [(factors[n], lines[name][n]) for name, n in lowest.items()]
drawn.add_trace(points("lowest points", circles, REJECTED, size=11, symbol="circle-open"))
picture(drawn.update_layout(yaxis_range=[0.8, 1.3]))

of_token, of_geo = of_preset[TOKEN], of_preset[GEO]
assert abs(min(lines[TOKEN]) - math.sqrt(1 - of_token.progress[0].value)) < 0.01
assert error(of_token) > 2 > 1.01 > error(of_geo)
sketch = stale_head[1]
assert isinstance(sketch, ExactSketch)
covered = min(sketch.answers.coverage.values())
directions = sketch.scores.shape[1]
say(f"""
With {of_token.batch_sizes[0]} answers in a batch the full step of capped token weights (`{TOKEN}`) has an error of
{error(of_token):.1f}. If the step is shrunk to λ = {factors[lowest[TOKEN]]:.2f}, the error is {min(lines[TOKEN]):.2f}.
The strict geometric rule (`{GEO}`) has an error of {error(of_geo):.2f} at every length, because it rejects nearly
everything and its step is nearly 0. (The answers that were followed have at least {100 * covered:.1f} % of the
probability. With the {directions} directions of this sketch a squared length is off by about
{100 * math.sqrt(2 / directions):.0f} %.)
""")

# %% [markdown]
# ## On a real model
#
# SmolLM2-135M has too many possible answers. So the scores of a step's sampled answers were sketched, and $g^*$ is that
# of many more, which the trained weights sampled. In `smol_sketch_bf16` the engine is fresh, in `smol_sketch_kv_fp8`
# its cache has 8 bits, and in `smol_sketch_stale_6` its weights are six updates old. **Guess** whether a step's answers
# tell which correction gets further.

# %% tags=["hide-input"]
show("η(256)", "no correction", "token_is", "seq_is", "token_is − none", "from", "to", digits=2)
gained = {}
for name in ("smol_sketch_bf16", "smol_sketch_kv_fp8", "smol_sketch_stale_6"):
    three = compare(*load(name), [preset(one) for one in ("disabled", TOKEN, "decoupled_seq_is")])
    gained[name] = difference(three.progress[1, 0], three.progress[0, 0])
    ends = gained[name].value, gained[name].low, gained[name].high
    show(f"  {name}", *(r.progress[0].value for r in three.reports), *ends, digits=2)
    if name.endswith("6"):
        of_none, of_capped = (r.cosine for r in three.reports[:2])
answers = len(load("smol_sketch_stale_6")[0].response_mask)
needed = units_needed(answers, gained["smol_sketch_stale_6"])
assert of_none.low < 0 < of_capped.low
assert needed
say(f"""
No: they are {answers}. With a fresh engine the difference is {untold(gained["smol_sketch_bf16"])}, with the coarse
cache {untold(gained["smol_sketch_kv_fp8"])}, with old weights {untold(gained["smol_sketch_stale_6"])}: about {needed}
answers would tell. But there the gradient of capped token weights points along $g^*$, its cosine is
{above(of_capped, 0)}; that without a correction may point anywhere, {bracketed(of_none)}.
""")

# %% [markdown]
# ## Predict, then reveal
#
# We compare six presets from lessons 03, 07 and 08: `disabled` does nothing; `token_is` caps the token ratios, and
# `seq_is` their product; `token_icepop` sets token weights outside a band to 0; `k3_rs` rejects answers by their k3,
# and `geo_rs` by a strict band on the geometric mean. **Write down:**
#
# 1. Which one has the smallest error, and which one the most progress?
# 2. `disabled` and `geo_rs` have about the same bias. Do their steps get equally far?
# 3. Does the preset with the smallest error make the most progress in other runs, too?

# %% tags=["hide-input"]
show("stale_head, 256 answers, ‖g*‖ = 1", "bias", "noise", "error", "step", "η")
for name, r in of_preset.items():
    show(name, r.relative_bias.value, r.noise[0].value, error(r), r.scale.value, r.progress[0].value, digits=2)
etas = {name.removeprefix("decoupled_"): r.progress[0] for name, r in of_preset.items()}
picture(interval_bars({"progress": etas}, "progress η(256)", (COOL,)))

RUNS = ("stale_head", "bf16", "kv_fp8", "stale_4", "async")
everywhere = {name: compare(*load(name), [preset(one) for one in SHOWN]).reports for name in RUNS}
first = {name: SHOWN[min(range(len(SHOWN)), key=lambda i: error(rs[i]))] for name, rs in everywhere.items()}
furthest = {
    name: SHOWN[max(range(len(SHOWN)), key=lambda i: rs[i].progress[0].value)] for name, rs in everywhere.items()
}
agree = [name for name in RUNS if first[name] == furthest[name]]
head = compare_gradients(*stale_head, preset(GEO), preset(TOKEN)).progress[0]
lag = compare_gradients(*load("stale_4"), preset(TOKEN), preset(GEO)).progress[0]
geo_lag = everywhere["stale_4"][SHOWN.index(GEO)]
against = {name: compare_gradients(*stale_head, preset("disabled"), preset(name)).progress[0] for name in SHOWN[1:]}
assert first["stale_head"] == GEO
assert furthest["stale_head"] in (TOKEN, "decoupled_token_icepop")
reveal(f"""
(The lines on the bars are 95 % intervals over the random directions. The column "step" is
$\\langle g^*,\\mathbb{{E}}g\\rangle/\\|g^*\\|^2$: what the expected gradient has in the direction of $g^*$, as a share
of $g^*$.)

1. If we look at the values only, and not at their intervals, the geometric rule has the smallest error,
   {error(of_geo):.2f}, and `{furthest["stale_head"]}` has the most progress. The progress of the geometric rule is
   {bracketed(of_geo.progress[0])}.
2. No. η of the geometric rule minus η of `disabled` is {below(against[GEO])}. The column "step" shows why: the rule
   takes almost no step.
3. Mostly not. Again by values, the same preset is first in both in {len(agree)} of {len(RUNS)} runs
   ({", ".join(f"`{name}`" for name in agree)}; the others are
   {", ".join(f"`{name}`" for name in RUNS if name not in agree)}). In {sum(one == GEO for one in first.values())} of
   the {len(RUNS)} runs the geometric rule has the smallest error.

**A short step is no fault either.** In `stale_4`, too, the step of the geometric rule is short,
{geo_lag.scale.value:.2f}, and its error is near 1, {error(geo_lag):.2f}. But there its η is higher than that of capped
token weights, by {above(lag)}. In `stale_head` it is lower, by {above(head)}. The error does not distinguish these two
cases.

**Paired differences.** The intervals of two presets may overlap although one is significantly better: most of what
makes them wide is common to both. So we compute the difference on the same resampled directions, where the common part
cancels. η minus that of no correction is
{above(against[TOKEN])} for `token_is`, {above(against["decoupled_seq_is"])} for `seq_is` and
{above(against["decoupled_token_icepop"])} for `token_icepop`. Rejection by k3 cannot be distinguished from no
correction: {untold(against["decoupled_k3_rs"])}.
""")

# %% [markdown]
# ## The size of the batch
#
# More answers lower the noise, but never the bias. For an infinite batch $\sigma^2/B$ is 0, and $\eta$ becomes the
# squared cosine of the angle between $\mathbb{E}g$ and $g^*$. **Look for** the right ends of the lines, where $\eta$
# has nearly reached this value. The dotted line marks the batch size of the earlier tables.

# %% tags=["hide-input"]
sizes = [2**n for n in range(4, 21, 2)]
over_sizes = compare(*stale_head, [preset(name) for name in SHOWN], batch_sizes=sizes, replicates=0).reports
lines = {
    name.removeprefix("decoupled_"): [share.value for share in r.progress]
    for name, r in zip(SHOWN, over_sizes, strict=True)
}
for ends, r in zip(lines.values(), over_sizes, strict=True):
    assert abs(ends[-1] - max(r.cosine.value, 0.0) ** 2) < 0.01
picture(curves(sizes, lines, x_name="answers in a batch, B", y_name="progress η(B)", log="x", marks=[256]))

toy = small_world(0.5)  # of 364 answers, so that everything is exact
truths = [gradient_truth(toy.where, toy.policies, toy.advantages, preset(name)) for name in (TOKEN, "decoupled_seq_is")]
SMALL, LARGE = 16, 4096
few, many = ([truth.progress(size) for truth in truths] for size in (SMALL, LARGE))
assert few[0] > few[1] + 0.01
assert many[0] < many[1] - 0.01
long = load("kv_fp8_e5m2")
of_sample = report(*long, CorrectionConfig(), batch_sizes=[LARGE])
assert of_sample.relative_bias.low == 0
assert of_sample.progress[0].low < 0.01
assert of_sample.progress[0].high > 0.8
say(f"""
**Two corrections can change places.** The project has an invented small world, with so few answers that its gradients
are exact. There, with {SMALL} answers in a batch, η of capped token weights is {few[0]:.2f} and that of the capped
product {few[1]:.2f}. With {LARGE:,} answers they are {many[0]:.2f} and {many[1]:.2f}.

**η is about one step** of the best length, without Adam and without the clipping of long gradients. Over many steps the
noise averages out and the bias adds up. So to judge a whole run, evaluate η at a larger B. And η is no promise about
the reward: a section below compares both.

**What an interval covers.** In `stale_head` all prompts and nearly all answers are known; only the directions are
random. In `bf16` the prompts are a random sample as well. Long answers must be sampled, and then a sample may tell next
to nothing. In `kv_fp8_e5m2`, from the {len(long[0].response_mask)} answers of one step, the bias of no correction is at
most {of_sample.relative_bias.high:.0f} times the length of $g^*$, and η({LARGE:,}) is between
{of_sample.progress[0].low:.2f} and {of_sample.progress[0].high:.2f}: nearly anything is possible. (The lower end of
such a bias is 0: its square is estimated, and where the estimate is negative the report has 0. So read the upper end.)
""")

# %% [markdown]
# ## The cap that makes the most progress
#
# Lesson 04 chose thresholds by a budget. A budget says what you can afford, not what is best. To find the best
# threshold we need bias and noise. These are known precisely only if every likely answer can be enumerated. So this
# part is about a tiny model. `async` has an engine that runs up to two updates behind the trainer. We move a cap on the
# product from nearly 1 to above the largest weight, and compute the progress $\eta$ at each of them.
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
product = preset("decoupled_seq_is")
mean_band = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.5, upper=2.0),))
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
picture(interval_bars(correlations, "rank correlation with the reward", (WARM, COOL), range=[-1, 1]))

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
from 64 sampled answers its interval reaches from about 0 to 0.9 for every arm (`runs/README.md`). So read η together
with the kept share and the ESS, never alone.
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
# ## Exercise 1: the coefficients
#
# *5 minutes.* The correction has token weights with a cap, and some tokens are rejected. Return the coefficient $c$ of
# every token, `(N,)`. The loss is an average: over all tokens, or with `kept_only` over the kept ones.
#
# <details><summary>Hint 1</summary>Weight times advantage, divided by the number of tokens that the average is
# over.</details>
# <details><summary>Hint 2</summary>A rejected token has the coefficient 0.</details>


# %%
def token_coefficients(r, advantages, keep, cap, kept_only):
    raise NotImplementedError("exercise 1: write token_coefficients, then run this cell and the next.")


# %% tags=["check"]
check(token_coefficients, COEFFICIENTS)


# %% tags=["solution", "hide-input"]
def token_coefficients_solution(r, advantages, keep, cap, kept_only):
    counted = keep.sum() if kept_only else len(r)
    return r.clamp(max=cap) * advantages * keep / counted


check(token_coefficients_solution, COEFFICIENTS)

# %% [markdown]
# ## Exercise 2: progress
#
# *6 minutes.* Every answer is known. `q` has the engine's probability of each of them, `parts` has one row for each:
# its contribution $g(y)$ to the gradient. `exact` is $g^*$. Return $\eta$ for batches of `B` answers.
#
# <details><summary>Hint 1</summary>First compute 𝔼g, the average of the parts with the weights q. Then σ², with the
# same weights.</details>
# <details><summary>Hint 2</summary>If 𝔼g points away from g*, the inner product is negative and counts as 0.</details>


# %%
def progress_of(q, parts, exact, B):
    raise NotImplementedError("exercise 2: write progress_of, then run this cell and the next.")


# %% tags=["check"]
check(progress_of, PROGRESS)


# %% tags=["solution", "hide-input"]
def progress_of_solution(q, parts, exact, B):
    mean = q @ parts
    variance = q @ (parts - mean).square().sum(-1)
    return (mean @ exact).clamp(min=0) ** 2 / (exact.square().sum() * (mean.square().sum() + variance / B))


check(progress_of_solution, PROGRESS)

# %% [markdown]
# ## Check yourself
#
# **1. One preset has bias 0.98 and noise 0.03, another one no bias and a noise of 1.6. Which step gets further?**
#
# <details><summary>That of the first: its gradient is closer to the exact one.</summary>No. A gradient of 0 has the
# bias 1, and gets nowhere.</details>
# <details><summary>The second has η = 1/(1 + 1.6²) = 0.28. For the first, η is not known from these
# numbers.</summary>Yes. It may point in the right direction and be too short, or it may point elsewhere.</details>
# <details><summary>It depends on the learning rate.</summary>No. η takes the best step length for each.</details>
#
# **2. You multiply a correction's weights by ⅓. What happens to its error and to η?**
#
# <details><summary>Neither changes.</summary>η does not. The error changes with the length of the step.</details>
# <details><summary>The error falls if most of it is noise, and η does not change.</summary>Yes.</details>
# <details><summary>η falls by a factor of 9.</summary>Its numerator does, and so does its denominator.</details>
#
# **3. A report on sampled answers says: the bias is 0 [0, 4.5]. What do you know?**
#
# <details><summary>The correction has no bias.</summary>No. A bias of 4 may look the same.</details>
# <details><summary>The bias is at most about 4.5 times the length of the exact gradient.</summary>Yes. Read the upper
# end: an upper bound is a result. It is a weak one if it is as large as this.</details>
# <details><summary>The measurement failed.</summary>No. It excludes larger biases.</details>
#
# ## In the app
#
# After `make app`, open
#
# - [this step, a cap on token
#   ratios](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_token_is): move the number of
#   answers;
# - [the strict geometric rule](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_geo_rs);
# - [a step with sampled
#   answers](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is);
# - [two presets
#   compared](http://localhost:8501/compare?run=stale_head&step=40&preset=disabled&preset_b=decoupled_seq_is), paired.
#
# ## Pitfalls
#
# - **Ranking without intervals.** If several presets cannot be distinguished, it is chance which one comes first.
# - **ESS is not noise.** With a fixed denominator, rejected tokens lower the effective sample size and add no noise.
# - **Rare answers.** A sample that lacks them shows too little noise, and too short an interval.
# - **The edge of the search.** If the best threshold is the tightest or the loosest that was tried, or if its interval
#   reaches from one end to the other, the search has not located it.
# - **One step.** η compares single steps. It does not predict the reward at the end of a run.
#
# ## References
#
# 1. Yingru Li, Jiacai Liu et al., [When Speed Kills
#    Stability](https://yingru.notion.site/271211a558b7808d8b12d403fd15edda), 2025: bias against variance of token and
#    sequence corrections.
# 2. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the gradient that training takes, and the one that it
#    should.
# 3. [Stable Asynchrony](https://arxiv.org/abs/2602.17616), 2026: the effective sample size as a warning, and the
#    variance of off-policy gradients.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson is complete without them.

# %% [markdown]
# ### The formulas, with symbols
#
# First the sketch. For any vectors $g_1$ and $g_2$, with the sketches $\tilde g_1$ and $\tilde g_2$,
# $\mathbb{E}\langle\tilde g_1,\tilde g_2\rangle=\langle g_1,g_2\rangle$ and
# $\mathrm{Var}\langle\tilde g_1,\tilde g_2\rangle=\big(\|g_1\|^2\|g_2\|^2+\langle g_1,g_2\rangle^2\big)/K$. Proof: one
# direction contributes $\langle g_1,v\rangle\langle g_2,v\rangle$. Multiply out, and insert the averages of a standard
# normal number: $\mathbb{E}v^2=1$, $\mathbb{E}v^4=3$, and 0 for odd powers. Then the best length of a step, $\eta$, and
# the smallest error.

# %% tags=["hide-input"]
first_vector, second_vector, v = (sympy.symbols(f"{name}_1:4", real=True) for name in ("x", "y", "v"))
NORMAL = {0: 1, 1: 0, 2: 1, 3: 0, 4: 3}  # averages of the powers


def over_directions(expression):
    """Return the average over v, monomial by monomial."""
    terms = sympy.Poly(sympy.expand(expression), *v).terms()
    return sympy.Add(*(c * sympy.Mul(*(NORMAL[n] for n in powers)) for powers, c in terms))


def inner(x, y):
    return sympy.Add(*(i * j for i, j in zip(x, y, strict=True)))


a, b = first_vector, second_vector
one_direction = inner(a, v) * inner(b, v)
mean = over_directions(one_direction)
assert sympy.expand(mean - inner(a, b)) == 0
variance = over_directions(one_direction**2) - mean**2
assert sympy.expand(variance - (inner(a, a) * inner(b, b) + inner(a, b) ** 2)) == 0

length, curvature, along, squared, exact2 = sympy.symbols("lambda H along squared exact2", positive=True)
raised = length * along - curvature / 2 * length**2 * squared
(best,) = sympy.solve(sympy.diff(raised, length), length)
reached = raised.subs(length, best)
eta = sympy.simplify(reached / reached.subs({along: exact2, squared: exact2}))
assert sympy.simplify(eta - along**2 / (exact2 * squared)) == 0
error2 = exact2 - 2 * length * along + length**2 * squared
(shortest,) = sympy.solve(sympy.diff(error2, length), length)
assert sympy.simplify(error2.subs(length, shortest) / exact2 - (1 - eta)) == 0
say("All of them hold for all vectors.")

# %% [markdown]
# ### Where answers must be sampled: noise makes a mean longer
#
# By hand: three answers have the gradients (3, 0), (0, 3) and (0, 0). Their mean is (1, 1), with the squared length 2.
# But no two of them point in a common direction: all inner products of different ones are 0. So the length of the mean
# is noise. In general, for independent $x_1\dots x_B$ with mean $\mu$ and average $\bar x$,
#
# $$\mathbb{E}\|\bar x\|^2=\|\mu\|^2+\frac1B\sum_k\mathrm{Var}(x[k]),\qquad
# \|\bar x\|^2-\frac1B\sum_k\widehat{\mathrm{Var}}(x[k])=\frac1{B(B-1)}\sum_{i\ne j}\langle x_i,x_j\rangle.$$
#
# Here $x[k]$ is the $k$-th entry of a vector, and $\widehat{\mathrm{Var}}$ is the variance within the sample. So
# subtracting the noise means to **average over pairs of different answers**. A bootstrap sample is a sample of a
# sample: it adds the noise of the batch once more, so there it is subtracted twice. If a square minus its noise is
# negative, the report has 0. The bias of sampled answers is measured as a difference from unbounded sequence weights on
# the same answers. So an answer to which both give the same weight adds nothing to it.
# `tests/gradients/test_coverage.py` tests the intervals on small worlds that are exact.

# %% tags=["hide-input"]
three = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
by_pairs = sum(float(i @ j) for i, j in itertools.permutations(three, 2)) / 6
without_noise = float(three.mean(0).square().sum() - three.var(0).sum() / 3)
assert abs(without_noise - by_pairs) < 1e-12
drawn = torch.tensor(list(itertools.product(range(3), repeat=3)))  # all 27 bootstrap samples
once_more = three.mean(0).square().sum() + (2 / 3) * three.var(0).sum() / 3
assert abs(three[drawn].mean(1).square().sum(-1).mean() - once_more) < 1e-12
show("squared length of the mean", float(three.mean(0).square().sum()), digits=2)
show("mean inner product of different ones", by_pairs, digits=2)

# %% [markdown]
# ### Where the truth is known
#
# Unbounded sequence weights have no bias, whatever the mismatch is, if the tokens were drawn with the recorded $q$. In
# two runs they were not: `top_p` draws from the likeliest tokens only, and `temperature_raw` records $q$ before its
# temperature (lesson 06). There the weights must have a bias.

# %% tags=["hide-input"]
VALID = (*RUNS, "control_fp32", "moe_bf16", "moe_replay")
biases = {name: report(*load(name), EXACT_WEIGHTS).relative_bias for name in (*VALID, "top_p", "temperature_raw")}
assert all(biases[name].high < 0.01 for name in VALID)
say(f"""
In {len(VALID)} runs the bias of unbounded sequence weights is below a hundredth of the gradient. In `top_p` it is
{above(biases["top_p"], 0.1)}, in `temperature_raw` {above(biases["temperature_raw"], 0.1)}.
""")

# %% [markdown]
# ### Whose gradient?
#
# `stale_head` trains on few prompts, and all of them are in its sketch. `bf16` and the mixtures of experts draw theirs
# from thousands. The mean of $P$ gradients drawn at random is too long:
#
# $$\mathbb{E}\|\bar g\|^2=\|\mathbb{E}g\|^2+\tfrac1P\,\mathbb{E}\|g-\mathbb{E}g\|^2.$$
#
# Let $\varphi$ be the share of the second term in the sum. With many more prompts, the squared length would be
# $1-\varphi$ times what it is here, and the noise would be the same. So a batch of $B$ answers would make the progress
# that $(1-\varphi)B$ answers make here.

# %% tags=["hide-input"]
shares = {name: report(*load(name), CorrectionConfig()).reference_noise for name in ("bf16", "moe_bf16", "moe_replay")}
assert all(report(*load(name), CorrectionConfig()).reference_noise.high == 0 for name in ("stale_head", "stale_4"))
say(f"""
This share is {above(shares["bf16"], 0.05)} in `bf16`, {above(shares["moe_bf16"], 0.05)} in `moe_bf16` and
{above(shares["moe_replay"], 0.05)} in `moe_replay`. There η ranks the corrections, but its size is not that of a whole
run.
""")

# %% [markdown]
# Do training steps agree with η? `make bench ARGS=progress` measures $\eta$ of ten presets on one step of the study
# `stale_8`. Then each preset makes its own step, with the length that was best on other batches, and the expected
# reward is computed exactly on other prompts. The two orders agree better than by chance, but not perfectly. The rank
# correlation and its interval are among the measurements of the project's README files. The lesson compares η with the
# rewards of whole runs.
#
# ### Where a bias comes from
#
# Unbounded weights on the product have no bias. A correction may differ from them in four ways. We switch on one after
# the other, and measure on the same answers by how much the gradient moves:
#
# - **level**: one weight per token, or none, in place of the product;
# - **truncation**: the weights get bounds;
# - **rejection**: a rule leaves out tokens or answers;
# - **denominator**: the sum is divided by the kept tokens only.
#
# The example has a cap on token ratios and rejects answers by k3, in `stale_head`. **Look for** the largest part. The
# lines on the bars are 95 % intervals.

# %% tags=["hide-input"]
parts = decompose(*stale_head, preset("decoupled_k3_rs_token_tis"))
measured = {name: getattr(parts, name) for name in ("level", "truncation", "rejection", "denominator")}
picture(interval_bars({"parts": measured}, "part of the bias, in units of ‖g*‖"))
assert parts.denominator.high < 0.01
say(f"""
Rejection causes the largest part, {above(parts.rejection, max(parts.level.high, parts.truncation.high))} of the length
of $g^*$. The cap causes {above(parts.truncation, parts.level.high)}, and weights per token in place of the product
{above(parts.level)}. The preset divides by all tokens, so the last part is 0.
""")

# %% [markdown]
# ### In the toy, where everything is known
#
# This is the small world from above, with a cap on the product, and with the smallest batch of the slider above. Bias
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

`kv_fp8_e5m2` has answers that are too long to write down all of them, so its sketch has those of one batch only. Its
best band at 256 answers is {bracketed(of_long, 3)}, where bands from {tried[0]:.3f} to {tried[-1]:.3f} were tried. The
interval reaches from one end of the search to the other: the best band is not known. Nor is it known whether it is
better than no correction: the difference in η is {untold(long_band.ranking.choices[0].over_nothing)}.
""")
