# %% [markdown]
# # 02 · Importance sampling: right on average, noisy in every sample
#
# **Claim.** Counting what the engine drew by p/q is right on average, but it costs noise: what is left of a sample
# shrinks with the length of the answers, exponentially if all tokens are alike, and the sample itself need not show it.
#
# *25 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00, and score and baseline from lesson 01.
# All letters: [Notation](NOTATION.md).
#
# At the end you can
#
# - say what unbiased means, and why it is not enough;
# - compute χ² and the effective sample size by hand;
# - explain why a sample without large weights gives no warning.

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_02 import EFFECTIVE_SHARE, LONGEST_ANSWER, RATIOS, SELF_NORMALISED
from recorded import load
from sentences import above, below, bracketed, say, untold
from show import picture, show

from rlcorr import CorrectionConfig
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## All samples of four draws, by hand
#
# The engine draws the actions X, Y, Z of lesson 00 as often as ½, ¼, ¼; the trainer would as often as ¼, ¼, ½. The
# ratios ½, 1, 2 are now **weights** $w$. With the rewards $f$ = 1, 0, 4 the trainer's average is 2.25.
#
# For X, X, Y, Z the weighted average is 2.25 exactly. For Z, Z, Z, Z it is 8, twice what anything can earn. There are
# only $3^4$ samples of four draws, and we know how probable each is. The cell takes two averages of each: the **plain**
# one, $\frac1N \sum w f$, and the **self-normalised** one, $\sum w f / \sum w$.

# %%
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
w = p / q
samples = torch.cartesian_prod(*[torch.arange(3)] * 4)  # (81, 4)
chance = q[samples].prod(-1)
plain = (w * f)[samples].mean(-1)
normalised = (w * f)[samples].sum(-1) / w[samples].sum(-1)

for name, estimates in (("plain", plain), ("self-normalised", normalised)):
    error = float(chance @ (estimates - 2.25).square()) ** 0.5
    show(f"{name}: lowest, highest", float(estimates.min()), float(estimates.max()))
    show(f"{name}: average, error", float(chance @ estimates), error)

# %% [markdown]
# An estimate whose average over all samples is the truth is called **unbiased**. The plain one is. But its error, the
# root of the mean squared distance from the truth, is large: *unbiased* speaks of all samples. You have one.
#
# The self-normalised one is biased. But it never leaves the range of the rewards, and here its error is smaller. Its
# bias shrinks like $1/N$, its noise like $1/\sqrt{N}$ (appendix).
#
# ## The equation
#
# How large is the noise of weights? Their variance is the **χ² divergence** (chi-square) of $p$ from $q$:
#
# $$ \chi^2 = \mathrm{Var}_q[w] = \mathbb{E}_q[w^2] - 1 = \sum_a \frac{p_a^2}{q_a} - 1 . $$
#
# By hand: $\frac{1/16}{1/2} + \frac{1/16}{1/4} + \frac{1/4}{1/4} = \frac18 + \frac14 + 1 = 1.375$, so χ² = 0.375.
#
# A small $q$ where $p$ is large is expensive.
#
# How many draws are left? If $f$ has nothing to do with the weights and has the variance $\sigma^2$, its weighted
# average has the variance $\sigma^2 \sum w^2 / (\sum w)^2$. An average of $n$ draws that count alike has $\sigma^2/n$.
# So the sample is worth $n = (\sum w)^2 / \sum w^2$ draws. As a share of all $N$ this is the **effective sample size**:
#
# $$ \mathrm{ESS} = \frac{(\sum_i w_i)^2}{N \sum_i w_i^2} \;\approx\; \frac{1}{1 + \chi^2} \quad\text{for large } N. $$
#
# By hand, for X, X, Y, Z: the weights ½, ½, 1, 2 have the sum 4 and the squares ¼ + ¼ + 1 + 4 = 5.5. So ESS =
# 16/(4 · 5.5) = 0.727: four draws do the work of 2.9.
#
# ## A rare token, by hand
#
# Weights average to 1, so a weight of 30 comes at most once in 30 draws. Two tokens: the engine gives one of them
# 0.001, the trainer 0.03. Draw 100 times.


# %%
def effective_share(w):
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


two_q = torch.tensor([0.999, 0.001], dtype=torch.float64)
two_w = torch.tensor([0.97 / 0.999, 30], dtype=torch.float64)
show("weights: usual, rare", two_w, digits=3)
show("true average of the weights, true ESS", float(two_q @ two_w), 1 / float(two_q @ two_w.square()), digits=3)
show("chance that 100 draws miss the rare one", 0.999**100, digits=3)
without = two_w[:1].expand(100)
show("such a sample: average weight, ESS", float(without.mean()), effective_share(without), digits=3)

# %% [markdown]
# In nine samples of ten all weights are equal and the ESS is 1, yet the average is off by 3 %. **The ESS of a sample
# judges the weights that were drawn.** A bad one is a warning; a good one is no promise.
#
# ## Length
#
# The weight of an answer is the product of its ratios. If its tokens are independent, each with the same χ², the
# average of the product is the product of the averages:
#
# $$ 1 + \chi^2_T = \mathbb{E}_q\Big[\prod_{t=1}^T r_t^2\Big] = (1 + \chi^2)^T, \qquad
# \mathrm{ESS}_T \approx (1 + \chi^2)^{-T} . $$
#
# It falls **exponentially**. Real tokens are neither alike nor independent: each place brings its own factor. But none
# is below 1, so the true ESS never rises. With $w_T$ the weight of the first $T$ tokens:
#
# $$ 1 + \chi^2_{T+1} = \mathbb{E}_q\big[w_T^2\,(1 + \chi^2(\text{next token} \mid \text{before}))\big] . $$
#
# So we cut the answers of `kv_fp8_e5m2`, the run of lesson 00, to $T$ tokens and watch the ESS fall.

# %%
steps = runs.list_steps(runs.find_run("kv_fp8_e5m2"))
batches = [load("kv_fp8_e5m2", n) for n in range(len(steps))]


def log_ratios(batch):
    return log_ratio(batch.tensors()["old_log_probs"], batch.tensors()["rollout_log_probs"], batch.response_mask)


def weights_of(batch, count):
    """Of the first so many tokens of each answer."""
    mask = batch.response_mask & (batch.response_mask.cumsum(-1) <= count)
    return ratio(over_sequence(log_ratios(batch), mask, "sum"))


# %% [markdown]
# ## Predict, then reveal
#
# **Write down a guess:**
#
# 1. An exponential is a straight line on a logarithmic axis. Will there be straight lines?
# 2. One step has a good ESS almost to the end. What is left if we leave out its heaviest answer?
#
# **Look for** the cliffs.

# %%
cuts = list(range(4, 61, 4))
lines = {
    f"step {n}": [effective_share(weights_of(b, cut)) for cut in cuts] for n, b in zip(steps, batches, strict=True)
}
x_name, y_name = "first tokens of each answer", "ESS, share of the sample"
drawn = curves(cuts, lines, x_name=x_name, y_name=y_name, log="y", height=360)
picture(drawn.update_layout({"yaxis.tickvals": [0.05, 0.1, 0.2, 0.5, 1]}))


# %% tags=["hide-input"]
def share_of(w, seed):
    """ESS of a sample, and of 1000 bootstrap samples of it."""
    drawn = resampled(len(w), 1000, seed).double()
    return (drawn @ w).square() / (len(w) * (drawn @ w.square()))


whole = [weights_of(batch, 10_000) for batch in batches]
shares = [effective_share(w) for w in whole]
lighter = [effective_share(w.sort().values[:-1]) for w in whole]
cliffs = [n for n in range(len(steps)) if lighter[n] > 3 * shares[n]]
late = max(range(len(steps)), key=lambda n: effective_share(weights_of(batches[n], 48)) / shares[n])
say(f"""
1. No: stairs and cliffs. A cliff is where the weight of a **single** answer has become large: in {len(cliffs)} of
   {len(steps)} steps, the ESS of whole answers more than trebles if the heaviest one is left out.
2. Step {steps[late]} has an ESS of {effective_share(weights_of(batches[late], 48)):.2f} at 48 tokens and
   {bracketed(interval_of(share_of(whole[late], 1), signed=False))} at the end, where one answer weighs
   {whole[late].max():.0f}. Without this answer it is {lighter[late]:.2f}.

Which is true? The formula means *all* answers that the engine could write, also those with rare large weights. A
sample holds none of these and looks too good, or one and is decided by it.
""")

# %% [markdown]
# ## Hundreds of tokens
#
# Two runs with long answers: one with the coarse cache, one with an engine some updates old.


# %% tags=["hide-input"]
def of_run(name, count):
    """Over all recorded steps of a run, its answers cut to so many tokens: weights, ESS, average weight."""
    recorded = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
    w = torch.cat([weights_of(batch, count) for batch in recorded])
    average = resampled(len(w), 1000, 3).double() @ w / len(w)
    return w, interval_of(share_of(w, 3), signed=False), interval_of(average, signed=False)


(_, half, _), (w_coarse, coarse, average), (w_old, old, _) = (
    of_run(name, count) for name, count in (("long_kv_fp8_e5m2", 200), ("long_kv_fp8_e5m2", 400), ("long_stale_4", 400))
)
assert coarse.value > half.value
say(f"""
With the coarse cache, the ESS of {len(w_coarse)} answers is {bracketed(half)} at 200 tokens and {bracketed(coarse)} at
400: in this sample it rises, which the true one cannot. And the average weight is {below(average, 1)}, where it must be
1: heavy answers are missing. With the old engine one was
drawn: it weighs {w_old.max():,.0f}, and the ESS is {old.value:.2f}. **At hundreds of tokens a sample does not know its
own ESS.**
""")

# %% [markdown]
# ## Exercise 1: effective sample size
#
# *3 minutes.* Return the ESS of weights `(N,)`, as a share between 0 and 1.
#
# <details><summary>Hint 1</summary>The square of the sum, over N times the sum of the squares.</details>
# <details><summary>Hint 2</summary>Check with ½, ½, 1, 2: it must be 0.727.</details>


# %%
def ess(w):
    raise NotImplementedError("exercise 1: write ess, then run this cell and the next.")


# %% tags=["check"]
check(ess, EFFECTIVE_SHARE)


# %% tags=["solution", "hide-input"]
def ess_solution(w):
    return w.sum() ** 2 / (len(w) * w.square().sum())


check(ess_solution, EFFECTIVE_SHARE)

# %% [markdown]
# ## Exercise 2: self-normalised, from logarithms
#
# *4 minutes.* Given rewards and the **logarithms** of the weights, both `(N,)`, return $\sum w f/\sum w$. A weight may
# be too large for a float.
#
# <details><summary>Hint 1</summary>Only the quotients of weights matter: make the largest 1.</details>
# <details><summary>Hint 2</summary>Lesson 01 used a function for logits that does it.</details>


# %%
def self_normalised(reward, log_w):
    raise NotImplementedError("exercise 2: write self_normalised, then run this cell and the next.")


# %% tags=["check"]
check(self_normalised, SELF_NORMALISED)


# %% tags=["solution", "hide-input"]
def self_normalised_solution(reward, log_w):
    return log_w.softmax(-1) @ reward


check(self_normalised_solution, SELF_NORMALISED)

# %% [markdown]
# ## mini.py, piece 2: the ratio
#
# *3 minutes.* `trainer` and `engine` hold log-probs, `(B, T)`; padding may hold anything. Return $p/q$ of every real
# token, and 0 at padding.
#
# <details><summary>Hint 1</summary>log(p/q) = log p − log q.</details>
# <details><summary>Hint 2</summary><code>x.where(mask, value)</code> puts <code>value</code> where the mask is
# False.</details>


# %%
def ratios(trainer, engine, mask):
    raise NotImplementedError("mini.py: write ratios, then run this cell and the next.")


# %% tags=["check"]
check(ratios, RATIOS)


# %% tags=["solution", "hide-input"]
def ratios_solution(trainer, engine, mask):
    return (trainer - engine).where(mask, -math.inf).exp()


check(ratios_solution, RATIOS)

# %% [markdown]
# ## Exercise 3: how long may answers be?
#
# *4 minutes.* Tokens are independent and each has the same χ². Return the largest whole number of tokens for which the
# ESS is still at least `share`.
#
# <details><summary>Hint 1</summary>Solve $(1 + \chi^2)^{-T}$ = share for $T$, and round.</details>
# <details><summary>Hint 2</summary>Logarithms turn the power into a product.</details>


# %%
def longest_answer(chi2, share):
    raise NotImplementedError("exercise 3: write longest_answer, then run this cell and the next.")


# %% tags=["check"]
check(longest_answer, LONGEST_ANSWER)


# %% tags=["solution", "hide-input"]
def longest_answer_solution(chi2, share):
    return math.floor(math.log(1 / share) / math.log(1 + chi2))


check(longest_answer_solution, LONGEST_ANSWER)


# %% tags=["hide-input"]
def together(name, of_batch):
    """What a function gives for each recorded step of a run, (B, T), in one tensor: a row per answer."""
    of_steps = [of_batch(load(name, n)) for n in range(len(runs.list_steps(runs.find_run(name))))]
    longest = max(x.shape[1] for x in of_steps)
    return torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in of_steps])


def squares_of(name):
    """(r − 1)² of every token, 0 at padding, and the mask. Its mean is χ², because ratios average to 1."""
    mask, d = together(name, lambda batch: batch.response_mask), together(name, log_ratios)
    return (ratio(d) - 1).square().where(mask, 0), mask


def half_after(squares, mask, unit):
    """Tokens, in this unit, after which half of the sample is left, if all are alike."""
    drawn = resampled(len(mask), 1000, 4).double()
    chi2 = (drawn @ squares.sum(-1)) / (drawn @ mask.sum(-1).double())
    return interval_of(math.log(2) / chi2.log1p() / unit, signed=False)


squares, tokens = squares_of("kv_fp8_e5m2")
fine, gross = half_after(*squares_of("bf16"), 1000), half_after(squares, tokens, 1)
heaviest = float(squares.max() / squares.sum())
long_squares, long_tokens = squares_of("long_kv_fp8_e5m2")
foretold = (1 + float(long_squares[long_tokens].mean())) ** -50
say(f"""
With the χ² of our runs, half of the sample is left after {bracketed(fine, 1)} thousand tokens in `bf16`, and after
{bracketed(gross, 0)} tokens in `kv_fp8_e5m2`, where one of {int(tokens.sum()):,} tokens makes {heaviest:.0%} of χ². But
the rule takes all tokens to be alike: for 50 tokens of the long run with the coarse cache it foretells an ESS of
{foretold:.2f}, and the sample has {above(of_run("long_kv_fp8_e5m2", 50)[1], foretold)}.
""")

# %% [markdown]
# And these models are tiny and sure of nearly every token. For Qwen2.5-1.5B-Instruct with a trainer in bfloat16, a
# [pull request to TRL](https://github.com/huggingface/trl/pull/7269) reports 5.9 % of the ratios outside of 0.9 to 1.1.
# Each adds at least $0.1^2$, so χ² is at least 0.00059, and by the same rule half is left after
# $\ln 2 / 0.00059 \approx 1{,}200$ tokens or fewer. Reasoning models write more.
#
# ## Check yourself
#
# **1. A weighted estimate is unbiased. What may you conclude from one sample?**
#
# <details><summary>The estimate is close to the truth.</summary>No. A few weights may decide.</details>
# <details><summary>Its average over many such samples is the truth; this one may be far off.</summary>Yes.</details>
# <details><summary>It is as likely too high as too low.</summary>No. Most samples miss the rare large weights and come
# out low; a few come out far too high.</details>
#
# **2. The ESS of a step is 0.98. Are the weights harmless?**
#
# <details><summary>Yes: 98 % of the sample are left.</summary>No. The weights that were drawn are even.</details>
# <details><summary>Whether rare large ones exist, the sample cannot say.</summary>Yes. Look at many steps, and at the
# average weight.</details>
# <details><summary>No: a good ESS needs to be above 1.</summary>No. It is a share, at most 1.</details>
#
# **3. Each token has χ² = 0.02, independently. What is left with answers of 59 tokens, and of 590?**
#
# <details><summary>31 %, and 3 %.</summary>No. Ten times the tokens is the tenth power.</details>
# <details><summary>31 %, and about one in 120,000.</summary>Yes. 0.31 to the tenth power.</details>
# <details><summary>98 % in both cases.</summary>No. That is the ESS of token weights.</details>
#
# ## In the app
#
# After `make app`:
#
# - [a step with a cliff, weights of whole
#   answers](http://localhost:8501/bench?run=kv_fp8_e5m2&step=40&preset=decoupled_seq_is): raise the upper bound;
#   [another](http://localhost:8501/bench?run=kv_fp8_e5m2&step=32&preset=decoupled_seq_is);
# - [the tail of the ratios](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=40).
#
# ## Pitfalls
#
# - **An ESS without its level.** Say whether it is of token weights or of whole answers.
# - **An error bar from the same weights.** It misses what the sample missed.
# - **Normalising and forgetting.** Dividing by the sum hides an average weight that is not 1.
# - **The ESS as a forecast.** It is about an $f$ that has nothing to do with the weights. A gradient has (appendix).
#
# ## References
#
# 1. Art B. Owen, [Monte Carlo theory, methods and examples](https://artowen.su.domains/mc/), chapter 9: importance
#    sampling, self-normalised and not, and the effective sample size.
# 2. Luke Huang et al., [Stable Asynchrony: Variance-Controlled Off-Policy RL for
#    LLMs](https://arxiv.org/abs/2602.17616), 2026: a falling ESS comes before the collapse of a training.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics of this
#    lesson, under their names there.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; nothing above needs them.

# %% [markdown]
# ### The formulas with symbols
#
# The variance of a weighted draw, χ², the law of length, and the bias of the self-normalised estimate. With the
# numerator off by $x$ and the denominator by $v$, both small,
# $\frac{\mu + x}{1 + v} = \mu + (x - \mu v) - v\,(x - \mu v) + \dots$: the first bracket averages to 0, the second is
# the bias, $-\frac{1}{N}\,\mathbb{E}_q[w^2 (f - \mu)]$.

# %%
P, Q, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqf")
THREE = range(3)


def average_q(values):
    """E_q over the three actions."""
    return sympy.Add(*(q_a * value for q_a, value in zip(Q, values, strict=True)))


def same(left, right):
    """Given that probabilities add up to 1."""
    return sympy.simplify((left - right).subs({P[2]: 1 - P[0] - P[1], Q[2]: 1 - Q[0] - Q[1]})) == 0


W = [p_a / q_a for p_a, q_a in zip(P, Q, strict=True)]
MU = sympy.Add(*(p_a * f_a for p_a, f_a in zip(P, F, strict=True)))
of_one = sympy.Add(*(P[a] ** 2 / Q[a] * F[a] ** 2 for a in THREE)) - MU**2
assert same(average_q([(W[a] * F[a] - MU) ** 2 for a in THREE]), of_one)
chi_square = sympy.Add(*(P[a] ** 2 / Q[a] for a in THREE)) - 1
assert same(average_q([(W[a] - 1) ** 2 for a in THREE]), chi_square)
of_two = sympy.Add(*(Q[a] * Q[c] * ((W[a] * F[a] + W[c] * F[c]) / 2 - MU) ** 2 for a in THREE for c in THREE))
assert same(of_two, of_one / 2)  # two draws: half the variance

second_p = [sympy.symbols(f"p_{a}X p_{a}Y p_{a}Z", positive=True) for a in "XYZ"]  # the second token after X, Y, Z
second_q = [sympy.symbols(f"q_{a}X q_{a}Y q_{a}Z", positive=True) for a in "XYZ"]
both = [Q[k] * second_q[k][j] * (W[k] * second_p[k][j] / second_q[k][j]) ** 2 for k in THREE for j in THREE]
one_by_one = [W[k] ** 2 * sympy.Add(*(second_p[k][j] ** 2 / second_q[k][j] for j in THREE)) for k in THREE]
assert sympy.simplify(sympy.Add(*both) - average_q(one_by_one)) == 0

mu, x, v, t = sympy.symbols("mu x v t", real=True)
expanded = sympy.series((mu + t * x) / (1 + t * v), t, 0, 3).removeO()
assert sympy.expand(expanded - (mu + t * (x - mu * v) - t**2 * v * (x - mu * v))) == 0
assert same(average_q([(W[k] * F[k] - MU) - MU * (W[k] - 1) for k in THREE]), 0)
bias = average_q([(W[k] - 1) * (W[k] * F[k] - MU * W[k]) for k in THREE])
assert same(bias, average_q([W[k] ** 2 * (F[k] - MU) for k in THREE]))

show("Var_q[w f]", "Σ p² f² / q − μ²")
show("Var_q[w]", "Σ p² / q − 1")

# %% [markdown]
# ### Plain against self-normalised, as samples grow
#
# Samples of $N$ draws are listed by how often each action occurs. Adding ten to all rewards changes nothing for the
# self-normalised estimate but the ten; the plain one multiplies them by noisy weights.


# %%
def errors_of(count, f):
    """Over all samples of `count` draws: N times the bias of the self-normalised estimate, the errors of both."""
    often = torch.tensor([(i, j, count - i - j) for i in range(count + 1) for j in range(count + 1 - i)]).double()
    chance = (math.lgamma(count + 1) - torch.lgamma(often + 1).sum(-1) + often @ q.log()).exp()
    plain, normalised, truth = often @ (w * f) / count, often @ (w * f) / (often @ w), float(p @ f)
    errors = [float(chance @ (estimates - truth).square()) ** 0.5 for estimates in (normalised, plain)]
    return count * float(chance @ normalised - truth), *errors


counts = (1, 4, 16, 64)
show("draws", counts)
by_count = torch.tensor([errors_of(count, f) for count in counts]).T
for label, row in zip(("N × bias", "its error", "error of the plain one"), by_count, strict=True):
    show(label, row)
show("what the formula says for N × bias", -float(q @ (w.square() * (f - p @ f))))
show("with ten added, 16 draws: both errors", list(errors_of(16, f + 10)[1:]))

# %% [markdown]
# ### Bias and variance of the gradient in a world of all answers
#
# Four tokens, one of which ends the answer but rarely. All averages are exact sums.

# %%
mostly_going_on = torch.tensor([-4.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # added to the logits: few answers end early
by_weight = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
generator = torch.Generator().manual_seed(2)
show("tokens", "ESS", "bias with", "without", "variance with / without")
for depth in range(1, 8):
    where = toy.world(4, depth)
    old = toy.random_policy(where, seed=2) + mostly_going_on
    rollout = old + toy.random_policy(where, seed=3, spread=0.5)
    squared = float((toy.probabilities(where, old).square() / toy.probabilities(where, rollout)).sum())
    advantages = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
    policies = toy.Policies(rollout, old, old)
    using, none = (
        toy.gradient_truth(where, policies, advantages, correction) for correction in (by_weight, CorrectionConfig())
    )
    show(str(depth), 1 / squared, using.relative_bias, none.relative_bias, using.variance / none.variance, digits=3)
    assert using.relative_bias < 1e-12 < none.relative_bias
    assert using.variance > none.variance

# %% [markdown]
# ### All answers of the six steps, with intervals
#
# If tokens are independent, the ESS is the product of what the single places have, $\prod_t \mathbb{E}[r_t]^2 /
# \mathbb{E}[r_t^2]$. Both come from the same answers, so the quotient is what can be tested. **Look for** how the band
# opens: at the end a few answers decide.

# %%
lengths = (8, 16, 24, 32, 40, 48, 56)
masks = together("kv_fp8_e5m2", lambda batch: batch.response_mask)
log_r = together("kv_fp8_e5m2", log_ratios)
drawn = resampled(len(masks), 1000, 2).double()
first, second = (drawn @ (ratio(power * log_r) * masks) for power in (1, 2))  # Σ r and Σ r² at each place
of_place = torch.where(second > 0, first.square() / (second * (drawn @ masks.double())), 1)
measured = [share_of(torch.cat([weights_of(batch, count) for batch in batches]), 2) for count in lengths]
laws = [of_place[:, :count].prod(-1) for count in lengths]
effective, quotients = (
    [interval_of(share, signed=False) for share in measured],
    [interval_of(share / law, signed=False) for share, law in zip(measured, laws, strict=True)],
)
band = {"ESS": ([one.low for one in effective], [one.high for one in effective])}
lines = {"ESS": [one.value for one in effective], "if places were independent": [float(law[0]) for law in laws]}
drawn = curves(list(lengths), lines, x_name=x_name, y_name=y_name, log="y", bands=band)
picture(drawn.update_layout({"yaxis.tickvals": [0.1, 0.2, 0.5, 1]}))

# %% tags=["hide-input"]
assert all(quotient.low > 0.8 and quotient.high < 1.25 for quotient in quotients[:3])
say(f"""
Up to {lengths[2]} tokens the ESS is within a quarter of what independent places would leave; at {lengths[1]} tokens it
is {bracketed(quotients[1])} times that. At {lengths[-1]} tokens it is {untold(quotients[-1], 1)} times that: too few
answers to say.
""")

# %% [markdown]
# ### The ESS is no forecast for a gradient
#
# An ESS of one half promises the noise of half the answers, for an $f$ that has nothing to do with the weights. A
# gradient has: its noise comes from long scores, those of tokens of which the trainer was not sure. Such a token the
# engine may have written by accident, and then its weight is small.

# %% tags=["hide-input"]
run = runs.find_run("kv_fp8_e5m2")
updated, sketch = updated_batch(run, last_sketch(run)), read_sketch(run, last_sketch(run))
compared = compare_gradients(updated, sketch, CorrectionConfig(), by_weight, batch_sizes=[len(updated.response_mask)])
squared = contributions(updated, sketch, [CorrectionConfig()])[0].u.double().square().sum(-1)
light = whole[-1] < 0.1
say(f"""
In the last step, whose ESS is {shares[-1]:.2f}, weights change the noise, over the length of the gradient, by
{untold(compared.noise[0], 0, 1)}: one step cannot say whether it rose or fell. It could fall because the
{int(light.sum())} answers with weights below 0.1 make {float(squared[light].sum() / squared.sum()):.0%} of the squared
lengths.
""")
