# %% [markdown]
# # 01 · Importance weights
#
# **Claim.** Weighting what the engine sampled by p/q gives the right average, at the cost of noise. The effective
# sample size shrinks with the length of the answers, exponentially if tokens are independent and have the same
# mismatch, and a sample may not show it.
#
# *45 minutes · beginner · any laptop; no GPU, no network.* You need [lesson 00](00_start.ipynb). All letters
# are listed in [Notation](NOTATION.md). Next: [lesson 02](02_value_and_gradient.ipynb).
#
# At the end you can
#
# - say what unbiased means, and why it is not enough;
# - compute χ² and the effective sample size by hand;
# - predict how the effective sample size falls with the length of answers;
# - explain why a sample without large weights gives no warning.

# %% tags=["hide-input"]
import math

import sympy
import torch
from curves import curves
from exercises.importance_weights import EFFECTIVE_SHARE, LONGEST_ANSWER, RATIOS
from recorded import load
from sentences import above, below, bracketed, reveal, say, untold
from show import picture, show

from rlcorr import CorrectionConfig
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import compare_gradients
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check

torch.set_num_threads(1)


# %% [markdown]
# ## All samples of size four, by hand
#
# The engine samples the actions X, Y, Z of lesson 00 with the probabilities ½, ¼, ¼. The trainer would sample them with
# ¼, ¼, ½. The ratios are ½, 1, 2. From now on we call them **weights** $w$ (not those of the model). Let $f$ be the
# reward: 1, 0, 4. Then the trainer's average of $f$ is 2.25.
#
# Take a sample of four actions from the engine. If it is X, X, Y, Z, the weighted average is exactly 2.25. If it is Z,
# Z, Z, Z, the weighted average is 8, twice as much as any action can earn. There are only $3^4$ = 81 samples of size
# four, and we know how probable each of them is. For each sample the cell computes two averages:
#
# - the **plain** one, $\frac1N \sum w f$, which divides by the number $N$ of actions in the sample;
# - the **self-normalised** one, $\sum w f / \sum w$, which divides by the sum of the weights.

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
# An estimate is called **unbiased** if its average over all possible samples is the truth. The plain estimate is
# unbiased: its average is 2.25. But its error is large. (The error is the root of the mean squared distance from the
# truth.) *Unbiased* is a statement about all samples together. You have one sample.
#
# The self-normalised estimate is biased. But it never leaves the range of the rewards, and here its error is smaller.
# As the sample becomes larger, its bias falls like $1/N$, and its noise like $1/\sqrt{N}$. So in large samples the bias
# matters little. (The appendix shows both.)
#
# ## The equation
#
# How noisy are the weights? Their variance is called the **χ² divergence** (chi-square) of $p$ from $q$:
#
# $$ \chi^2 = \mathrm{Var}_q[w] = \mathbb{E}_q[w^2] - 1 = \sum_a \frac{p_a^2}{q_a} - 1 . $$
#
# The second form holds because the weights average to 1.
#
# By hand: $\frac{1/16}{1/2} + \frac{1/16}{1/4} + \frac{1/4}{1/4} = \frac18 + \frac14 + 1 = 1.375$, so χ² = 0.375. Look
# at a single term, $p_a^2/q_a$: it is large for an action with a large $p$ and a small $q$.
#
# How many samples of weight 1 are $N$ weighted samples worth? Suppose that $f$ is independent of the weights and has
# the variance $\sigma^2$.
#
# 1. Each $w f$ has the variance $w^2\sigma^2$, and $\sum w f / \sum w$ has the variance
#    $\sum w^2\sigma^2 / (\sum w)^2$.
# 2. A plain average of $N_1$ samples, all with weight 1, has the variance $\sigma^2/N_1$.
# 3. Both are equal if $N_1 = (\sum w)^2 / \sum w^2$. So the weighted samples are worth $N_1$ samples of weight 1.
#
# Divide $N_1$ by $N$. The result is the **effective sample size**, as a share of $N$:
#
# $$ \mathrm{ESS} = \frac{(\sum_i w_i)^2}{N \sum_i w_i^2} \;\approx\; \frac{N^2}{N\cdot N(1+\chi^2)}
# = \frac{1}{1 + \chi^2} \quad\text{for large } N. $$
#
# By hand, for X, X, Y, Z: the weights are ½, ½, 1, 2. Their sum is 4, and the sum of their squares is ¼ + ¼ + 1 + 4 =
# 5.5. So ESS = 16/(4 · 5.5) = 0.727: four samples are worth 2.9.
#
# ## A rare token, by hand
#
# Weights average to 1 and are never negative. So a weight of 30 occurs at most once in 30 samples, on average. Here are
# two tokens. The engine gives the second one the probability 0.001, and the trainer 0.03, so its weight is 30. Take a
# sample of 100 tokens.


# %%
def effective_share(w):
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


two_q = torch.tensor([0.999, 0.001], dtype=torch.float64)
two_w = torch.tensor([0.97 / 0.999, 30], dtype=torch.float64)
show("weights: usual, rare", two_w, digits=3)
show("true average of the weights, true ESS", float(two_q @ two_w), 1 / float(two_q @ two_w.square()), digits=3)
show("probability that 100 miss the rare one", 0.999**100, digits=3)
without = two_w[:1].expand(100)
show("such a sample: average weight, ESS", float(without.mean()), effective_share(without), digits=3)

# %% [markdown]
# In nine samples of ten, the rare token is missing. All weights are then equal, and the ESS of the sample is 1. Yet the
# average weight is 3 % too low, because the missing token has 3 % of the trainer's probability. **The ESS of a sample
# is about the weights that were sampled.** A low ESS is a warning. A high ESS does not prove that all is well.
#
# For the same reason, an average weight below 1 does not prove that something is wrong with the recorded $q$. Here $q$
# is right, and the average is below 1 in most samples. Lesson 06 comes back to this.
#
# ## Length
#
# The weight of an answer is the product of the ratios of its tokens. Suppose that the ratios are independent, and that
# each has the same χ². Then the average of the product is the product of the averages:
#
# $$ 1 + \chi^2_T = \mathbb{E}_q\Big[\prod_{t=1}^T r_t^2\Big] = (1 + \chi^2)^T, \qquad
# \mathrm{ESS}_T \approx (1 + \chi^2)^{-T} . $$
#
# So the ESS falls **exponentially** with the number of tokens $T$. Real tokens have different χ², and they depend on
# each other. But one thing remains true. Let $w_T$ be the weight of the first $T$ tokens. One more token multiplies the
# squared weight by a factor that is at least 1 on average, whatever came before it:
#
# $$ 1 + \chi^2_{T+1} = \mathbb{E}_q\big[w_T^2\,(1 + \chi^2(\text{next token} \mid \text{before}))\big] . $$
#
# Here $\chi^2(\text{next token} \mid \text{before})$ is the variance of the next token's ratio, given the text before
# it. A variance is never negative. So the true ESS, $1/(1+\chi^2_T)$, never rises with $T$.
#
# We now measure it. `kv_fp8_e5m2` is a run of a tiny model with a coarse KV cache, as in lesson 00. It learns running
# sums: `3+5+9=` must become `3,8,17`. Its answers have up to sixty tokens. We cut every answer to its first $T$ tokens;
# shorter answers are kept whole.

# %%
steps = runs.list_steps(runs.find_run("kv_fp8_e5m2"))
batches = [load("kv_fp8_e5m2", n) for n in range(len(steps))]


def log_ratios(batch):
    return log_ratio(batch.tensors()["old_log_probs"], batch.tensors()["rollout_log_probs"], batch.response_mask)


def weights_of(batch, count):
    """Return the weight of the first `count` tokens of each answer, (B,)."""
    mask = batch.response_mask & (batch.response_mask.cumsum(-1) <= count)
    return ratio(over_sequence(log_ratios(batch), mask, "sum"))


# %% [markdown]
# ## Predict, then reveal
#
# Below is one line per recorded step. **Write down a guess:**
#
# 1. On a logarithmic axis, an exponential is a straight line. Will the lines be straight?
# 2. In one step the ESS falls only near the end. What is the ESS there without the heaviest answer (largest
#    weight)?
#
# **Look for** the points at which a line falls suddenly.

# %%
cuts = list(range(4, 61, 4))
lines = {
    f"step {n}": [effective_share(weights_of(b, cut)) for cut in cuts] for n, b in zip(steps, batches, strict=True)
}
whole = [weights_of(batch, 10_000) for batch in batches]
shares = [effective_share(w) for w in whole]
lighter = [effective_share(w.sort().values[:-1]) for w in whole]  # without the heaviest answer
x_name, y_name = "T, the first tokens of each answer", "ESS, share of the sample"
drawn = curves(cuts, lines, x_name=x_name, y_name=y_name, log="y", height=360)
picture(drawn.update_layout({"yaxis.tickvals": [0.05, 0.1, 0.2, 0.5, 1]}))


# %% tags=["hide-input"]
def share_of(w, seed):
    """Return the ESS of a sample, and of 1000 bootstrap samples of it."""
    drawn = resampled(len(w), 1000, seed).double()
    return (drawn @ w).square() / (len(w) * (drawn @ w.square()))


cliffs = [n for n in range(len(steps)) if lighter[n] > 3 * shares[n]]
late = max(range(len(steps)), key=lambda n: effective_share(weights_of(batches[n], 48)) / shares[n])
reveal(f"""
1. No. The lines fall suddenly, in a few places: where the weight of a **single** answer has become large.
   In {len(cliffs)} of the {len(steps)} recorded steps, the ESS of whole answers becomes more than three times as
   large if the heaviest answer is left out.
2. Step {steps[late]} has an ESS of {effective_share(weights_of(batches[late], 48)):.2f} at 48 tokens, and of
   {bracketed(interval_of(share_of(whole[late], 1), signed=False))} at the end. There, one answer has the weight
   {whole[late].max():.0f}. Without this answer the ESS is {lighter[late]:.2f}.

Is the true ESS the one with this answer, or without it? Perhaps neither. The true ESS is about *all* answers that the
engine could write, including those with rare large weights. A sample without such an answer looks too good. In a
sample with one, that answer decides the result.
""")

# %% [markdown]
# ## A real model
#
# Now a real model: SmolLM2-135M explains products, in long answers. `gpu_smol_long` has an engine and a
# trainer in bfloat16; we take its first recorded step. In `smol_long` the engine stores its KV cache in 8 bits (e4m3);
# we take its four recorded steps together, because they have as many answers as that one step. **Look for** the
# distance between the two lines: the model and the task are the same, but `smol_long` rounds more coarsely. The shaded
# areas are 95 % intervals. To the right the lines become flatter because many answers have ended.

# %% tags=["hide-input"]
LENGTHS, REAL = (8, 16, 32, 50, 75, 100, 150, 200), "gpu_smol_long"


def recorded(name):
    """Return the recorded steps of a run, of gpu_smol_long only the first."""
    return [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))][: 1 if name == REAL else None]


def over_steps(name, count):
    """Return the weights of the recorded answers of a run, cut to `count` tokens, with the ESS and its interval."""
    w = torch.cat([weights_of(batch, count) for batch in recorded(name)])
    return w, interval_of(share_of(w, 3), signed=False)


def average_weight(w):
    return interval_of(resampled(len(w), 1000, 3).double() @ w / len(w), signed=False)


of_real = {name: [over_steps(name, count)[1] for count in LENGTHS] for name in (REAL, "smol_long")}
drawn = curves(
    list(LENGTHS),
    {name: [x.value for x in shares_] for name, shares_ in of_real.items()},
    x_name=x_name,
    y_name=y_name,
    log="y",
    bands={name: ([x.low for x in shares_], [x.high for x in shares_]) for name, shares_ in of_real.items()},
)
picture(drawn.update_layout({"yaxis.tickvals": [0.05, 0.1, 0.2, 0.5, 1]}))
real_w, real_share = over_steps("smol_long", 200)
say(f"""
Whole answers have an ESS of {below(of_real[REAL][-1], 1)} in bfloat16, and of
{below(of_real["smol_long"][-1], of_real[REAL][-1].low)} with the cache in 8 bits. Even this number is probably
too high. In `smol_long` the average weight of {len(real_w)} answers is {below(average_weight(real_w), 1)}, but the true
average is 1. So heavy answers are probably missing, and the true ESS is lower.
""")

# %% [markdown]
# ## Hundreds of tokens
#
# Two runs of another tiny model have answers of hundreds of tokens. `long_kv_fp8_e5m2` has the coarse cache. In
# `long_stale_4` the engine's weights are four updates old.

# %% tags=["hide-input"]
(_, half), (w_coarse, coarse), (w_old, old) = (
    over_steps(name, count)
    for name, count in (("long_kv_fp8_e5m2", 200), ("long_kv_fp8_e5m2", 400), ("long_stale_4", 400))
)
assert coarse.value > half.value
say(f"""
- With the coarse cache, the ESS of {len(w_coarse)} answers is {bracketed(half)} at 200 tokens and {bracketed(coarse)}
  at 400. The estimate rises, although the true ESS cannot. And the average weight is
  {below(average_weight(w_coarse), 1)}, although the true average is 1. So heavy answers are probably missing.
- With old weights, the sample did contain a heavy answer. Its weight is {w_old.max():,.0f}, and the ESS is
  {old.value:.2f}.

**At hundreds of tokens, a sample cannot show the true ESS.**
""")

# %% [markdown]
# ## Exercise 1: effective sample size
#
# *3 minutes.* Return the ESS of the weights `(N,)`, as a share between 0 and 1.
#
# <details><summary>Hint 1</summary>It is the square of the sum, divided by N times the sum of the squares.</details>
# <details><summary>Hint 2</summary>Check it with ½, ½, 1, 2: the result must be 0.727.</details>


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
# ## Check yourself
#
# **1. A weighted estimate is unbiased. What may you conclude from one sample?**
#
# <details><summary>The estimate is close to the truth.</summary>No. A few weights may decide it.</details>
# <details><summary>The average over many such samples is the truth; this one may be far off.</summary>Yes.</details>
# <details><summary>It is as likely to be too high as too low.</summary>Not if there are rare large weights. Most
# samples miss them and give an estimate that is too low; a few give one that is far too high.</details>
#
# **2. The ESS of a step is 0.98. Are the weights harmless?**
#
# <details><summary>Yes: 98 % of the sample are left.</summary>No. Only the weights that were sampled are nearly
# equal.</details>
# <details><summary>The sample cannot say whether rare large weights exist.</summary>Yes. Look at many steps, and at the
# average weight.</details>
# <details><summary>No: a good ESS is above 1.</summary>No. It is a share, so it is at most 1.</details>
#
# **3. Each token has χ² = 0.02, independently. What is the ESS of answers of 59 tokens, and of 590 tokens?**
#
# <details><summary>31 %, and 3 %.</summary>No. Ten times as many tokens give the tenth power.</details>
# <details><summary>31 %, and about one in 120,000.</summary>Yes. It is 0.31 to the tenth power.</details>
# <details><summary>98 % in both cases.</summary>No. That is the ESS of single token weights.</details>
#
# ## In the app
#
# After `make app`:
#
# - [a step whose ESS falls suddenly, weights of whole
#   answers](http://localhost:8501/bench?run=kv_fp8_e5m2&step=40&preset=decoupled_seq_is): raise the upper bound;
#   [another one](http://localhost:8501/bench?run=kv_fp8_e5m2&step=32&preset=decoupled_seq_is);
# - [the ratios of the real model with a cache in
#   8 bits](http://localhost:8501/bench?run=smol_long&step=latest&preset=decoupled_seq_is);
# - [the tail of the ratios](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=40).
#
# ## Pitfalls
#
# - **An ESS without its level.** Say whether it is the ESS of token weights or of whole answers.
# - **An error bar from the same weights.** It misses what the sample missed.
# - **Self-normalising without a look at the average weight.** Dividing by the sum hides an average that is not 1.
# - **The ESS as a prediction of noise.** It is about an $f$ that is independent of the weights. A gradient is not
#   (appendix).
#
# ## References
#
# 1. Art B. Owen, [Monte Carlo theory, methods and examples](https://artowen.su.domains/mc/), chapter 9: importance
#    sampling, self-normalised and not, and the effective sample size.
# 2. Luke Huang et al., [Stable Asynchrony: Variance-Controlled Off-Policy RL for
#    LLMs](https://arxiv.org/abs/2602.17616), 2026: in training runs that collapse, the ESS falls first.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics of this
#    lesson, under verl's names.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: how long may answers be?
#
# *4 minutes.* Assume that tokens are independent and that each has the same χ². Return the largest whole number of
# tokens for which the ESS is still at least `share`.
#
# <details><summary>Hint 1</summary>Solve $(1 + \chi^2)^{-T}$ = share for $T$, and round down.</details>
# <details><summary>Hint 2</summary>Logarithms turn the power into a product.</details>


# %%
def longest_answer(chi2, share):
    raise NotImplementedError("exercise 2: write longest_answer, then run this cell and the next.")


# %% tags=["check"]
check(longest_answer, LONGEST_ANSWER)


# %% tags=["solution", "hide-input"]
def longest_answer_solution(chi2, share):
    return math.floor(math.log(1 / share) / math.log(1 + chi2))


check(longest_answer_solution, LONGEST_ANSWER)


# %% tags=["hide-input"]
def together(name, of_batch):
    """Return what a function gives for each recorded step of a run, (B, T), in one tensor: a row per answer."""
    of_steps = [of_batch(batch) for batch in recorded(name)]
    longest = max(x.shape[1] for x in of_steps)
    return torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in of_steps])


def squares_of(name):
    """Return (r − 1)² of every token, 0 at padding, and the mask. Its mean is χ², because ratios average to 1."""
    mask, d = together(name, lambda batch: batch.response_mask), together(name, log_ratios)
    return (ratio(d) - 1).square().where(mask, 0), mask


def half_after(squares, mask):
    """Return the number of tokens after which half of the sample is left by the rule, with its interval."""
    drawn = resampled(len(mask), 1000, 4).double()
    chi2 = (drawn @ squares.sum(-1)) / (drawn @ mask.sum(-1).double())
    return interval_of(math.log(2) / chi2.log1p(), signed=False)


def predicted(squares, mask, count):
    """Return the ESS that the rule predicts for the first `count` tokens, from the mean χ² of all tokens."""
    lengths = mask.sum(-1).clamp(max=count)
    return 1 / float(((1 + squares[mask].mean().double()) ** lengths).mean())


real, coarse_squares = squares_of(REAL), squares_of("smol_long")
long_squares, long_tokens = squares_of("long_kv_fp8_e5m2")
heaviest = float(long_squares.max() / long_squares.sum())
say(f"""
The formula of exercise 2 is a simple rule: the ESS follows from χ² and the number of tokens. With the χ² of our runs of
the real model, it says that the ESS falls to one half after {bracketed(half_after(*real), 0)} tokens in
`gpu_smol_long`, and after {bracketed(half_after(*coarse_squares), 0)} tokens in `smol_long`. Reasoning models write
thousands of tokens.

How good is this rule? It assumes that all tokens have the same χ². From the χ² and the lengths of the answers of
`gpu_smol_long`, it predicts an ESS of {predicted(*real, 200):.2f} for whole answers, and the sample has
{bracketed(of_real[REAL][-1])}. In `long_kv_fp8_e5m2`, one token of {int(long_tokens.sum()):,} makes {heaviest:.0%} of
χ². There the rule predicts {predicted(long_squares, long_tokens, 50):.2f} for the first 50 tokens, and the sample has
{above(over_steps("long_kv_fp8_e5m2", 50)[1], predicted(long_squares, long_tokens, 50))}.
""")

# %% [markdown]
# ### mini.py, piece 1: the ratio
#
# From here to lesson 12 you can write a corrected training loop of your own, from an empty file: `lessons/mini.py`. It
# has ten pieces, and each is checked in its lesson. When a check says "Right.", copy the function into the file, below
# the line of its lesson. The imports are there already. `python lessons/mini.py` says which pieces are yours, and
# trains with them; missing ones come from the solutions.
#
# *3 minutes.* `trainer_logp` and `engine_logp` are log-probs, `(B, T)`; padding may contain anything. Return $p/q$ of
# every real token, and 0 at padding.
#
# <details><summary>Hint 1</summary>log(p/q) = log p − log q.</details>
# <details><summary>Hint 2</summary><code>x.where(mask, value)</code> puts <code>value</code> where the mask is
# False.</details>


# %%
def ratios(trainer_logp, engine_logp, mask):
    raise NotImplementedError("mini.py: write ratios, then run this cell and the next.")


# %% tags=["check"]
check(ratios, RATIOS)


# %% tags=["solution", "hide-input"]
def ratios_solution(trainer_logp, engine_logp, mask):
    return (trainer_logp - engine_logp).where(mask, -math.inf).exp()


# %% tags=["solution", "hide-input"]
check(ratios_solution, RATIOS)

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.

# %% [markdown]
# ### The formulas with symbols
#
# The cell proves four formulas: the variance of one weighted sample, χ², the law of length, and the bias of the
# self-normalised estimate. The last one works like this. Let $\mu$ be the truth. Let the numerator $\frac1N \sum w f$
# be off by $x_1$, and the denominator $\frac1N \sum w$ by $x_2$, both small. Then
#
# $$ \frac{\mu + x_1}{1 + x_2} = \mu + (x_1 - \mu x_2) - x_2\,(x_1 - \mu x_2) + \dots $$
#
# The first bracket averages to 0. The average of the next term is the bias,
# $-\frac{1}{N}\,\mathbb{E}_q[w^2 (f - \mu)]$.

# %%
P, Q, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqf")
THREE = range(3)


def average_q(values):
    """Return the average over the three actions, with the probabilities q."""
    return sympy.Add(*(q_a * value for q_a, value in zip(Q, values, strict=True)))


def same(left, right):
    """Compare, given that probabilities add up to 1."""
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

mu, x1, x2, t = sympy.symbols("mu x_1 x_2 t", real=True)
expanded = sympy.series((mu + t * x1) / (1 + t * x2), t, 0, 3).removeO()
assert sympy.expand(expanded - (mu + t * (x1 - mu * x2) - t**2 * x2 * (x1 - mu * x2))) == 0
assert same(average_q([(W[k] * F[k] - MU) - MU * (W[k] - 1) for k in THREE]), 0)
bias = average_q([(W[k] - 1) * (W[k] * F[k] - MU * W[k]) for k in THREE])
assert same(bias, average_q([W[k] ** 2 * (F[k] - MU) for k in THREE]))

show("Var_q[w f]", "Σ p² f² / q − μ²")
show("Var_q[w]", "Σ p² / q − 1")

# %% [markdown]
# ### Plain against self-normalised, as samples grow
#
# All samples of $N$ actions can be listed by how often each action occurs. Look at the last line, too: we add ten to
# all rewards. The self-normalised estimate then is exactly ten larger, and its error stays the same. The plain estimate
# multiplies the ten by noisy weights, so its error grows.


# %%
def errors_of(count, f):
    """Return N times the bias of the self-normalised estimate and the errors of both, over all samples of size N."""
    often = torch.tensor([(i, j, count - i - j) for i in range(count + 1) for j in range(count + 1 - i)]).double()
    chance = (math.lgamma(count + 1) - torch.lgamma(often + 1).sum(-1) + often @ q.log()).exp()
    plain, normalised, truth = often @ (w * f) / count, often @ (w * f) / (often @ w), float(p @ f)
    errors = [float(chance @ (estimates - truth).square()) ** 0.5 for estimates in (normalised, plain)]
    return count * float(chance @ normalised - truth), *errors


counts = (1, 4, 16, 64)
show("size of the sample, N", counts)
by_count = torch.tensor([errors_of(count, f) for count in counts]).T
for label, row in zip(("N × bias, self-normalised", "its error", "error of the plain estimate"), by_count, strict=True):
    show(label, row)
show("N × bias by the formula", -float(q @ (w.square() * (f - p @ f))))
show("ten added, N = 16: both errors", list(errors_of(16, f + 10)[1:]))

# %% [markdown]
# ### Bias and variance of the gradient in a world of all answers
#
# This world has four tokens; a rare one ends the answer. All averages are exact sums. Each row is
# a world with a larger limit for the number of tokens. The columns are the true ESS of whole answers; the bias of the
# gradient with weights and without them, relative to the length of the right gradient; and the variance with weights,
# divided by the variance without them.

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
# If tokens were independent, the ESS of answers would be the product of the ESS of their positions, $\prod_t
# \mathbb{E}[r_t]^2 / \mathbb{E}[r_t^2]$. We compute both on the same answers; if tokens were independent, both would
# be equal. **Look for** how the shaded interval becomes wider: at the end a few answers decide.

# %%
lengths = (8, 16, 24, 32, 40, 48, 56)
masks = together("kv_fp8_e5m2", lambda batch: batch.response_mask)
log_r = together("kv_fp8_e5m2", log_ratios)
drawn = resampled(len(masks), 1000, 2).double()
first, second = (drawn @ (ratio(power * log_r) * masks) for power in (1, 2))  # Σ r and Σ r² at each position
of_place = torch.where(second > 0, first.square() / (second * (drawn @ masks.double())), 1)
measured = [share_of(torch.cat([weights_of(batch, count) for batch in batches]), 2) for count in lengths]
laws = [of_place[:, :count].prod(-1) for count in lengths]
effective, quotients = (
    [interval_of(share, signed=False) for share in measured],
    [interval_of(share / law, signed=False) for share, law in zip(measured, laws, strict=True)],
)
band = {"ESS": ([one.low for one in effective], [one.high for one in effective])}
lines = {"ESS": [one.value for one in effective], "if positions were independent": [float(law[0]) for law in laws]}
drawn = curves(list(lengths), lines, x_name=x_name, y_name=y_name, log="y", bands=band)
picture(drawn.update_layout({"yaxis.tickvals": [0.1, 0.2, 0.5, 1]}))

# %% tags=["hide-input"]
assert all(quotient.low > 0.8 and quotient.high < 1.25 for quotient in quotients[:3])
say(f"""
Up to {lengths[2]} tokens, the ESS differs by less than a quarter from that of independent positions; at {lengths[1]}
tokens it is {bracketed(quotients[1])} times as large. At {lengths[-1]} tokens it is {untold(quotients[-1], 1)} times as
large. This interval contains 1 and is wide, so these answers are too few to decide.
""")

# %% [markdown]
# ### The ESS does not predict the noise of a gradient
#
# An ESS of one half means the noise of half as many answers, for an $f$ that is independent of the weights. A gradient
# is not independent of them. Its noise comes from long scores, the scores of tokens that the trainer was unsure of. If
# the engine wrote such a token although the trainer finds it improbable, its weight is small, and its long score counts
# little.

# %% tags=["hide-input"]
run = runs.find_run("kv_fp8_e5m2")
updated, sketch = updated_batch(run, last_sketch(run)), read_sketch(run, last_sketch(run))
compared = compare_gradients(updated, sketch, CorrectionConfig(), by_weight, batch_sizes=[len(updated.response_mask)])
squared = contributions(updated, sketch, [CorrectionConfig()])[0].u.double().square().sum(-1)
light = whole[-1] < 0.1
say(f"""
The last step has an ESS of {shares[-1]:.2f}. Weights change the noise of the gradient by
{untold(compared.noise[0], 0, 1)}, in units of the true gradient's length. The interval contains 0, so this step cannot
show whether the noise rose or fell. It could fall, because the {int(light.sum())} answers with weights below 0.1
contribute the longest vectors: without weights, they make {float(squared[light].sum() / squared.sum()):.0%} of the
sum of the squared lengths.
""")
