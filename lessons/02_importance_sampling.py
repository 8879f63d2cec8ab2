# %% [markdown]
# # 02 · Importance sampling: right on average, noisy in every sample
#
# **Claim.** Counting what the engine drew by p/q is right on average, but it costs noise: what is left of a sample
# shrinks exponentially with the length of the answers, and the sample itself need not show it.
#
# *30 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00, and the words score and baseline from
# lesson 01.
#
# At the end you can
#
# - say what unbiased means, and why it is not enough;
# - compute the variance of a weighted average, and the effective sample size, by hand;
# - choose between the plain and the self-normalised average, knowing what each gets wrong;
# - explain where weights of 30 come from, and why a sample without one gives no warning;
# - predict how long answers may be before a product of ratios is useless.

# %%
import math
import warnings

import sympy
import torch
from exercises.lesson_02 import EFFECTIVE_SHARE, LONGEST_ANSWER, RATIOS, SELF_NORMALISED
from show import picture, show

from rlcorr import CorrectionConfig, evaluate
from rlcorr.figures.curves import curves
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import resampled
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import report
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)

# %% [markdown]
# ## All samples of four draws
#
# The three actions of lesson 00 again. The engine draws A, B, C as often as ½, ¼, ¼; the trainer would draw them as
# often as ¼, ¼, ½. The ratios, which are now our **weights** $w$, are ½, 1, 2. The rewards $f$ are 1, 0, 4. The
# trainer's average reward is 2.25, the engine's is 1.5.
#
# Lesson 00 took one typical sample, A, A, B, C, and the weighted average came out at 2.25 exactly. Other samples do
# not. If the engine draws A four times, the estimate is ½. If it draws C four times, it is 8, twice what anything can
# earn.
#
# There are only $3^4 = 81$ samples of four draws, and we know how probable each is. So we can look at all of them.

# %%
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
w = ratio(log_ratio(p.log(), q.log(), torch.ones(3, dtype=torch.bool)))
truth = float(p @ f)

samples = torch.cartesian_prod(*[torch.arange(3)] * 4)  # (81, 4)
chance = q[samples].prod(-1)
plain = (w * f)[samples].mean(-1)  # the weighted average of each sample


def mean_and_spread(chance, estimates):
    """Over all samples: the average, and the standard deviation."""
    mean = float(chance @ estimates)
    return mean, float(chance @ (estimates - mean).square()) ** 0.5


show("samples", len(samples))
show("lowest and highest estimate", float(plain.min()), float(plain.max()))
show("average of all estimates", mean_and_spread(chance, plain)[0])
show("what the trainer earns", truth)
show("standard deviation", mean_and_spread(chance, plain)[1])

assert abs(mean_and_spread(chance, plain)[0] - truth) < 1e-12

# %% [markdown]
# An estimate whose average over all samples is the truth is called **unbiased**. This one is: 2.25. But its
# standard deviation is 1.66: a typical sample of four misses 2.25 by that much. *Unbiased* says
# something about all samples together. You will have one.
#
# ## The equation
#
# How far off is a typical sample? Write $\mu = \mathbb{E}_p[f]$ for the truth. For one draw, the variance is the
# average square less the square of the average:
#
# $$ \mathrm{Var}_q[w f] = \mathbb{E}_q[w^2 f^2] - \mu^2 = \sum_a \frac{p_a^2}{q_a} f_a^2 - \mu^2, \qquad
# \mathrm{Var}\Big[\frac{1}{N}\sum_i w_i f_i\Big] = \frac{1}{N}\,\mathrm{Var}_q[w f] . $$
#
# Take $f = 1$, and only the weights remain. The variance of the weights has a name, the **χ² divergence** (chi-square)
# of $p$ from $q$:
#
# $$ \chi^2 = \mathrm{Var}_q[w] = \mathbb{E}_q[w^2] - 1 = \sum_a \frac{p_a^2}{q_a} - 1 . $$
#
# By hand: $\frac{1/16}{1/2} + \frac{1/16}{1/4} + \frac{1/4}{1/4} = \frac18 + \frac14 + 1 = 1.375$, so χ² = 0.375. It is
# 0 if the policies agree, and only then. And a small $q$ where $p$ is large is expensive, because $q$ is below the
# line.
#
# ### Check 1, with symbols

# %%
P, Q, F = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in "pqf")
THREE = range(3)


def average(values):
    """E_q over the three actions."""
    return sympy.Add(*(q_a * value for q_a, value in zip(Q, values, strict=True)))


def with_sums(expression):
    """Probabilities add up to 1."""
    return expression.subs({P[2]: 1 - P[0] - P[1], Q[2]: 1 - Q[0] - Q[1]})


W = [p_a / q_a for p_a, q_a in zip(P, Q, strict=True)]
MU = sympy.Add(*(p_a * f_a for p_a, f_a in zip(P, F, strict=True)))
variance = average([(W[a] * F[a] - MU) ** 2 for a in THREE])
formula = sympy.Add(*(P[a] ** 2 / Q[a] * F[a] ** 2 for a in THREE)) - MU**2
chi_square = sympy.Add(*(P[a] ** 2 / Q[a] for a in THREE)) - 1

assert sympy.simplify(with_sums(variance - formula)) == 0
assert sympy.simplify(with_sums(average([(W[a] - 1) ** 2 for a in THREE]) - chi_square)) == 0
assert (
    sympy.simplify(with_sums(chi_square - average([((P[a] - Q[a]) / Q[a]) ** 2 for a in THREE]))) == 0
)  # so it is ≥ 0

two_draws = sympy.Add(*(Q[a] * Q[c] * ((W[a] * F[a] + W[c] * F[c]) / 2 - MU) ** 2 for a in THREE for c in THREE))
assert sympy.simplify(with_sums(two_draws - formula / 2)) == 0  # two draws: half the variance

show("Var_q[w f]", "Σ p² f² / q − μ²")
show("Var_q[w]", "Σ p² / q − 1 = Σ (p − q)² / q ≥ 0")
show("two draws", "half of it")

# %% [markdown]
# ### Check 2, with numbers: against all 81 samples
#
# The last line compares with a trainer that could draw from $p$ itself.

# %%
chi2 = float((p.square() / q).sum() - 1)
weighted_variance = float((p.square() / q * f.square()).sum() - truth**2)
own_variance = float(p @ f.square() - truth**2)

show("chi-square", chi2)
show("variance of w f, one draw", weighted_variance, digits=2)
show("standard deviation, four draws", (weighted_variance / 4) ** 0.5)
show("variance of f, drawn from p", own_variance, digits=2)
show("draws needed for each one from p", weighted_variance / own_variance, digits=2)

assert abs((weighted_variance / 4) ** 0.5 - mean_and_spread(chance, plain)[1]) < 1e-12
assert abs(mean_and_spread(chance, w[samples].mean(-1))[1] ** 2 - chi2 / 4) < 1e-12

# %% [markdown]
# ## How many draws are left?
#
# "Draws needed for each one from $p$" is what one wants to know. Above it was 3.5, and it depended on the rewards.
# There is an answer that needs the weights only, if we ask for an $f$ that has nothing to do with them.
#
# Let $f$ have variance $\sigma^2$, whatever the weight. Count each draw by its weight, and divide by the sum of the
# weights. Then the variance of the average is
#
# $$ \mathrm{Var}\Big[\frac{\sum_i w_i f_i}{\sum_i w_i}\Big] = \sigma^2\, \frac{\sum_i w_i^2}{(\sum_i w_i)^2} . $$
#
# An average of $n$ draws that all count the same has the variance $\sigma^2/n$. So the weighted sample is as good as $n
# = (\sum w)^2 / \sum w^2$ draws. As a share of the $N$ draws that were paid for, this is the **effective sample size**
# (**ESS**):
#
# $$ \mathrm{ESS} = \frac{(\sum_i w_i)^2}{N \sum_i w_i^2} \;\approx\; \frac{1}{1 + \chi^2} \quad\text{for large } N. $$
#
# (Divide both sums by $N$: they become the average of $w$, which is 1, and that of $w^2$, which is $1 + \chi^2$.) The
# ESS is 1 if all weights are equal, and $1/N$ if one weight is all that counts. By hand, for A, A, B, C: the weights ½,
# ½, 1, 2 have the sum 4 and the squares ¼ + ¼ + 1 + 4 = 5.5. So ESS = 16/(4 · 5.5) = 0.727: four draws do the work of
# 2.9. The library reports it for every batch.

# %%
w_1, w_2, w_3, sigma = sympy.symbols("w_1 w_2 w_3 sigma", positive=True)
parts = [w_i / (w_1 + w_2 + w_3) for w_i in (w_1, w_2, w_3)]  # what each draw counts
variance_of_average = sum(part**2 * sigma**2 for part in parts)  # independent draws: variances add up
n_effective = (w_1 + w_2 + w_3) ** 2 / (w_1**2 + w_2**2 + w_3**2)
assert sympy.simplify(variance_of_average - sigma**2 / n_effective) == 0
assert n_effective.subs({w_2: w_1, w_3: w_1}).equals(3)  # equal weights: all draws count
assert sympy.limit(n_effective, w_3, sympy.oo) == 1  # one weight is all: one draw counts


def effective_share(w):
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


drawn = torch.tensor([[0, 0, 1, 2]])  # A, A, B, C
typical = TokenBatch(
    response_mask=torch.ones(1, 4, dtype=torch.bool),
    rollout_log_probs=q[drawn].log(),
    old_log_probs=p[drawn].log(),
)
config = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
reported = evaluate(typical, config)[1]["rollout_corr/rollout_is_eff_sample_size"]

show("ESS of A, A, B, C", effective_share(w[drawn[0]]))
show("as the library reports it", reported)
show("1 / (1 + chi-square)", 1 / (1 + chi2))
assert abs(reported - effective_share(w[drawn[0]])) < 1e-6

# %% [markdown]
# ## Divide by what?
#
# The **plain** estimate divides by the number of draws, $\frac1N\sum w f$. The **self-normalised** one divides by the
# sum of the weights, $\sum w f / \sum w$. The weights average to 1, so for large $N$ both are the same. For small $N$
# they are not: in a sample without C the weights are all small, the plain estimate is too low whatever was earned, and
# dividing by the sum repairs that.
#
# The price: a quotient of two averages is not the average of the quotient. The self-normalised estimate is biased.
# Let the numerator be off by $u$ and the denominator by $v$, both small, and use that $1/(1 + v)$ is $1 - v$, and a
# little $v^2$:
#
# $$ \frac{\mu + u}{1 + v} = \mu + (u - \mu v) - v\,(u - \mu v) + \dots \qquad\Rightarrow\qquad
# \text{bias} \approx -\frac{1}{N}\,\mathbb{E}_q\big[w^2 (f - \mu)\big] . $$
#
# The first bracket averages to 0, the second is the bias, and it shrinks like $1/N$. The noise shrinks like
# $1/\sqrt{N}$, so for many draws the bias is the smaller of the two. We list the samples of $N$ draws by how often each
# action occurs, so that 64 draws can be done exactly. The *typical error* is the root of the average squared distance
# from the truth.

# %%
mu, u, v, t = sympy.symbols("mu u v t", real=True)
expanded = sympy.series((mu + t * u) / (1 + t * v), t, 0, 3).removeO()
assert sympy.expand(expanded - (mu + t * (u - mu * v) - t**2 * v * (u - mu * v))) == 0
first = average([(W[k] * F[k] - MU) - MU * (W[k] - 1) for k in THREE])  # E[u − μ v] for one draw
second = average([(W[k] - 1) * (W[k] * F[k] - MU * W[k]) for k in THREE])  # E[v (u − μ v)]
assert sympy.simplify(with_sums(first)) == 0
assert sympy.simplify(with_sums(second - average([W[k] ** 2 * (F[k] - MU) for k in THREE]))) == 0
limit = -float(q @ (w.square() * (f - truth)))


def all_samples(count):
    """How often each action is drawn in `count` draws, and how probable that is."""
    often = torch.tensor([(i, j, count - i - j) for i in range(count + 1) for j in range(count + 1 - i)]).double()
    log_chance = math.lgamma(count + 1) - torch.lgamma(often + 1).sum(-1) + often @ q.log()
    return often, log_chance.exp()


def both(count, f):
    """Plain and self-normalised estimate of every sample, and the chance of the sample."""
    often, chance = all_samples(count)
    return chance, often @ (w * f) / count, often @ (w * f) / (often @ w)


def typical_error(chance, estimates, truth):
    return float(chance @ (estimates - truth).square()) ** 0.5


show("draws", 1, 4, 16, 64)
by_count = [both(count, f) for count in (1, 4, 16, 64)]
show("plain: average", [float(chance @ plain) for chance, plain, _ in by_count])
show("self-normalised: average", [float(chance @ normalised) for chance, _, normalised in by_count])
show(
    "its bias × draws",
    [n * float(c @ normalised - truth) for n, (c, _, normalised) in zip((1, 4, 16, 64), by_count, strict=True)],
)
show("what the formula says", limit, digits=3)
show("plain: typical error", [typical_error(chance, plain, truth) for chance, plain, _ in by_count])
show("self-normalised: typical error", [typical_error(chance, normalised, truth) for chance, _, normalised in by_count])

assert all(abs(float(chance @ plain) - truth) < 1e-9 for chance, plain, _ in by_count)
assert abs(64 * float(by_count[-1][0] @ by_count[-1][2] - truth) - limit) < 0.05
for chance, plain, normalised in by_count:
    assert typical_error(chance, normalised, truth) < typical_error(chance, plain, truth)

# %% [markdown]
# One draw alone: the self-normalised estimate is just its reward, $w f / w$, so on average it is the engine's 1.5. With
# more draws it walks towards 2.25. It is biased, and still its error is smaller at every size here.
#
# And it has a property that the plain estimate lacks. Pay everybody 10 more. The self-normalised estimate rises by
# exactly 10, because it is an average. The plain one multiplies 10 by noisy weights. This is the baseline of lesson 01
# in another dress.

# %%
chance, plain, normalised = both(16, f + 10)
show("16 draws, 10 added: plain, typical error", typical_error(chance, plain, truth + 10))
show("self-normalised, typical error", typical_error(chance, normalised, truth + 10))
assert abs(typical_error(chance, normalised, truth + 10) - typical_error(by_count[2][0], by_count[2][2], truth)) < 1e-9

# %% [markdown]
# ## Where weights of 30 come from, and why nobody is warned
#
# Weights average to 1. So a weight of 30 cannot be frequent: at most one draw in 30 can have it, or the average would
# be above 1. There are two ways to one.
#
# *One rare token.* The engine gives a token 0.001, the trainer 0.03. *Many small steps.* An answer of 59 tokens, each
# found 6 % more probable by the trainer: $1.06^{59} = 31$.
#
# Take the first, in a world of two tokens: $q = 0.001$ and $p = 0.03$ for the rare one. Draw 100 times.

# %%
q_rare, p_rare, draws = 0.001, 0.03, 100
two_weights = torch.tensor([(1 - p_rare) / (1 - q_rare), p_rare / q_rare], dtype=torch.float64)
two_q = torch.tensor([1 - q_rare, q_rare], dtype=torch.float64)
true_chi2 = float(two_q @ two_weights.square() - 1)
nothing_seen = torch.full((draws,), float(two_weights[0]), dtype=torch.float64)

show("weights: usual, rare", two_weights, digits=3)
show("true average of the weights", float(two_q @ two_weights), digits=3)
show("true ESS", 1 / (1 + true_chi2), digits=3)
show("chance that 100 draws miss the rare one", (1 - q_rare) ** draws, digits=3)
show("such a sample: average weight", float(nothing_seen.mean()), "±", float(nothing_seen.std()), digits=3)
show("such a sample: ESS", effective_share(nothing_seen), digits=3)

assert abs(float(two_q @ two_weights) - 1) < 1e-12

# %% [markdown]
# In nine samples of ten, all weights are equal, the ESS is 1, and the standard error is 0. Everything looks perfect,
# and the average is off by 3 %, all of what the rare token would have added. In the tenth sample one weight of 30
# arrives, and the ESS falls. **The ESS of a sample judges the weights that were drawn.** It cannot know of those that
# were not. A bad ESS is a warning; a good one is no promise.
#
# Now the recorded run `kv_fp8_e5m2` of lesson 00. It has six recorded steps of 128 answers. The weight of an answer is
# the product of its ratios.


# %%
def load(name, step):
    """log-ratios (B, T), mask (B, T) and rewards (B,) of a recorded step, in float64."""
    record = runs.read_step(runs.find_run(name), step)
    tensors, mask = record.batch.tensors(), record.batch.response_mask
    d = log_ratio(tensors["old_log_probs"].double(), tensors["rollout_log_probs"].double(), mask)
    return d, mask, tensors["rewards"].double(), tensors


steps = runs.list_steps(runs.find_run("kv_fp8_e5m2"))
recorded = {step: load("kv_fp8_e5m2", step) for step in steps}
weights = {step: ratio(over_sequence(d, mask, "sum")) for step, (d, mask, _, _) in recorded.items()}
all_weights = torch.cat(list(weights.values()))


def at_largest(step):
    """Of the largest token ratio of a step: q, p and the ratio."""
    d, mask, _, tensors = recorded[step]
    row, column = divmod(int(d.where(mask, -torch.inf).argmax()), d.shape[1])
    return [float(tensors[key][row, column].exp()) for key in ("rollout_log_probs", "old_log_probs")] + [
        float(ratio(d[row, column]))
    ]


show("step", steps)
show("largest token ratio: q", [at_largest(step)[0] for step in steps], digits=3)
show("… p", [at_largest(step)[1] for step in steps], digits=3)
show("… ratio", [at_largest(step)[2] for step in steps], digits=1)
show("largest weight of an answer", [float(weights[step].max()) for step in steps], digits=1)
most = {step: recorded[step][0][weights[step].argmax()] for step in steps}  # the tokens of that answer
show("… its largest token ratio", [float(ratio(most[step].max())) for step in steps], digits=1)
show("answers with a weight of 30 or more", int((all_weights >= 30).sum()), "of", len(all_weights))

assert (all_weights >= 30).sum() <= len(all_weights) / 30

# %% [markdown]
# Both ways occur. In step 40 a single token has the ratio 32: the engine gave it 0.017, the trainer 0.555. In step 24
# the answer with the weight 31 has no token above 4.3; it is a product of several.
#
# The weights also estimate what the trainer's policy would have earned, as in lesson 00. The error of the
# self-normalised estimate is $\sqrt{\sum w^2 (f - \hat\mu)^2} / \sum w$, from the expansion above.


# %%
def estimates(w, f):
    """Plain and self-normalised, each with its standard error."""
    normalised = float(w @ f / w.sum())
    return (
        (float((w * f).mean()), float((w * f).std() / len(f) ** 0.5)),
        (normalised, float((w * (f - normalised)).norm() / w.sum())),
    )


pairs = [estimates(weights[step], recorded[step][2]) for step in steps]
show("step", steps)
show("engine's average reward", [float(recorded[step][2].mean()) for step in steps], digits=2)
show("plain: trainer's", [one[0] for one, _ in pairs], digits=2)
show("  ±", [one[1] for one, _ in pairs], digits=2)
show("self-normalised: trainer's", [two[0] for _, two in pairs], digits=2)
show("  ±", [two[1] for _, two in pairs], digits=2)
show("share of the heaviest answer", [float(weights[step].max() / weights[step].sum()) for step in steps], digits=2)
assert all(two[1] < one[1] for one, two in pairs)

# %% [markdown]
# The self-normalised error is smaller in every step. But look at the last line. In steps 32 and 40 a single answer of
# 128 holds more than a third of all weight: a third of the estimate is its reward. And the standard error is
# computed from the same few weights.
#
# ## Length
#
# Why are these weights so uneven? The engine and the trainer differ by little on each token: lesson 00 found a mean
# $|d|$ of a few hundredths. But the weight of an answer is a product. Let the tokens be independent of each other, each
# with the same χ². The average of a product of independent factors is the product of the averages, so
#
# $$ 1 + \chi^2_T = \mathbb{E}_q\Big[\prod_{t=1}^T r_t^2\Big] = (1 + \chi^2)^T, \qquad
# \mathrm{ESS}_T \approx (1 + \chi^2)^{-T} . $$
#
# It decays **exponentially** with the length. For our three actions 0.727 is left after one token, 0.529
# after two, and 0.280 after four.
#
# Real tokens do depend on each other. Then the sum must be taken token by token, each time with the χ² of the place
# that was reached; that place counts by the squared weight of the way to it:
#
# $$ 1 + \chi^2_{T+1} = \mathbb{E}_q\big[w_T^2\,(1 + \chi^2(\text{next token} \mid \text{before}))\big] . $$

# %%
second_p = [sympy.symbols(f"p_{a}A p_{a}B p_{a}C", positive=True) for a in "ABC"]  # the second token after A, B, C
second_q = [sympy.symbols(f"q_{a}A q_{a}B q_{a}C", positive=True) for a in "ABC"]
whole = sympy.Add(
    *(Q[k] * second_q[k][j] * (W[k] * second_p[k][j] / second_q[k][j]) ** 2 for k in THREE for j in THREE)
)
step_by_step = average([W[k] ** 2 * sympy.Add(*(second_p[k][j] ** 2 / second_q[k][j] for j in THREE)) for k in THREE])
assert sympy.simplify(whole - step_by_step) == 0
alike = {
    **dict(zip(sympy.flatten(second_p), P * 3, strict=True)),
    **dict(zip(sympy.flatten(second_q), Q * 3, strict=True)),
}
assert sympy.simplify(with_sums(whole.subs(alike) - (chi_square + 1) ** 2)) == 0  # the same policy at each token

show("tokens", 1, 2, 4, 8, 16, 32, 64)
show("ESS, chi-square 0.375 per token", [(1 + chi2) ** -n for n in (1, 2, 4, 8, 16, 32, 64)], digits=3)
show("ESS, chi-square 0.02 per token", [1.02**-n for n in (1, 2, 4, 8, 16, 32, 64)], digits=3)
show("ESS, chi-square 0.0001 per token", [1.0001**-n for n in (1, 2, 4, 8, 16, 32, 64)], digits=3)

# %% [markdown]
# And in a small world that can be listed: four tokens, of which one ends the answer but rarely, and up to seven steps,
# in which the policies differ from place to place. All averages are exact sums. Besides the ESS the cell computes the
# gradient of lesson 01, exactly: its **bias**, the distance of its average from the truth, and its variance.

# %%
mostly_going_on = torch.tensor([-4.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # added to the logits: few answers end early
by_weight = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
depths = list(range(1, 8))
exact_share, bias_with, bias_without, noise_with, noise_without = [], [], [], [], []
for depth in depths:
    where = toy.world(4, depth)
    old = toy.random_policy(where, seed=2) + mostly_going_on
    rollout = old + toy.random_policy(where, seed=3, spread=0.5)
    squares = float((toy.probabilities(where, old).square() / toy.probabilities(where, rollout)).sum())
    exact_share.append(1 / squares)
    advantages = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
    policies = toy.Policies(rollout, old, old)
    for correction, biases, noises in (
        (by_weight, bias_with, noise_with),
        (CorrectionConfig(), bias_without, noise_without),
    ):
        exact = toy.gradient_truth(where, policies, advantages, correction)
        biases.append(exact.relative_bias)
        noises.append((exact.variance / 128) ** 0.5 / float(exact.reference.norm()))

show("tokens", depths)
show("ESS", exact_share, digits=3)
show("bias with weights, over the gradient", bias_with, digits=3)
show("bias without", bias_without, digits=3)
show(
    "variance with weights / without", [(x / y) ** 2 for x, y in zip(noise_with, noise_without, strict=True)], digits=2
)
assert max(bias_with) < 1e-12
assert min(bias_without) > 0.3
assert all(x > y for x, y in zip(noise_with, noise_without, strict=True))
assert exact_share == sorted(exact_share, reverse=True)

# %% [markdown]
# With the weights the gradient is unbiased at every length, as lesson 00 promised. Without them it is off by a third of
# the true gradient at best, and by more than all of it at worst. The weights pay for that with noise, between 1.7 and
# 3.2 times the variance, and after the second token the ESS falls by a factor of about 0.9 per token. This is the
# bargain that the rest of the course is about.

# %% [markdown]
# ## Predict, then reveal
#
# Back to `kv_fp8_e5m2`. The first $T$ tokens of an answer are an answer too, with a weight of their own. So we can cut
# the recorded answers to $T$ tokens, and watch the ESS fall. Step 32 starts well: cut to 48 tokens, its 128 answers
# have an ESS of 0.72. The whole answers have 59 tokens on average. **Write down a guess:**
#
# 1. What is the ESS of step 32 with whole answers?
# 2. What is it if we leave out the one heaviest answer?
# 3. A picture shows the ESS of all six steps against the length, on a logarithmic axis. An exponential is a straight
#    line there. Will you see straight lines?
#
# Then run the cell. **Look for** the cliffs.


# %%
def share_after(step, count):
    """ESS of the answers of a step, cut to so many tokens."""
    d, mask, _, _ = recorded[step]
    return effective_share(ratio(over_sequence(d, mask & (mask.cumsum(-1) <= count), "sum")))


cuts = list(range(4, 61, 4))
picture(
    curves(
        cuts,
        {f"step {step}": [share_after(step, count) for count in cuts] for step in steps},
        x_name="first tokens of each answer",
        y_name="ESS",
        log="y",
        height=360,
    )
)
show("step", steps)
show("ESS after 16 tokens", [share_after(step, 16) for step in steps], digits=2)
show("ESS after 32", [share_after(step, 32) for step in steps], digits=2)
show("ESS after 48", [share_after(step, 48) for step in steps], digits=2)
show("ESS of whole answers", [effective_share(weights[step]) for step in steps], digits=2)
lighter = [effective_share(weights[step].sort().values[:-1]) for step in steps]
show("ESS without the heaviest answer", lighter, digits=2)
show("ESS of single tokens", [effective_share(ratio(d)[mask]) for d, mask, _, _ in recorded.values()], digits=2)
assert share_after(32, 48) > 0.7
for step, without in zip(steps, lighter, strict=True):
    assert (without > 3 * effective_share(weights[step])) == (step in (24, 32, 40))

# %% [markdown]
# Not straight lines: stairs, and cliffs. The cliffs are **single** answers whose weight has become large. Until the
# token in which that happened, step 32 looked as healthy as the others: 0.72, and then 0.06. Leave that one answer out
# and it looks healthy again: 0.68. The same goes for steps 24 and 40. Which of the two is the truth? The formula speaks
# of the average of $w^2$ over *all* answers that the engine could have written, and this average consists of rare large
# weights. A sample of 128 holds none of them, or one, and so it reports too good a value, or one that a single answer
# made. There is no third possibility with so few.
#
# ### Check 3, with data: all 768 answers, with intervals
#
# Put the six steps together. Two things can be tested. First, the weights of the first $T$ tokens must average to 1, at
# every $T$. Second, if the exponential law holds, the ESS should be the product of what the single positions give:
# $\prod_t 1/\mathbb{E}[r_t^2]$. Both come from the same answers, so what is tested is their quotient. The intervals are
# bootstraps over answers, as in lesson 01.

# %%
width = max(d.shape[1] for d, _, _, _ in recorded.values())


def padded(x):
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))


d_all = torch.cat([padded(d) for d, _, _, _ in recorded.values()])
mask_all = torch.cat([padded(mask) for _, mask, _, _ in recorded.values()])
share_drawn = resampled(len(d_all), 1000, 2).double() / len(d_all)
lengths = (8, 16, 24, 32, 40, 48, 56)


def interval(resamples):
    """The sample itself, and where 95 % of its resamples lie."""
    ends = torch.quantile(resamples[1:], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(resamples[0]), *ends


position_squares = (share_drawn @ (ratio(2 * d_all) * mask_all)) / (share_drawn @ mask_all.double()).clamp(min=1e-9)
rows = []
for count in lengths:
    w_cut = ratio(over_sequence(d_all, mask_all & (mask_all.cumsum(-1) <= count), "sum"))
    shares = (share_drawn @ w_cut).square() / (share_drawn @ w_cut.square())
    laws = 1 / position_squares[:, :count].prod(-1)
    mean_weight = float(w_cut.mean()), float(w_cut.std() / len(w_cut) ** 0.5)
    rows.append((*mean_weight, *interval(shares), float(laws[0]), *interval(shares / laws)))

means, errors, effective, lows, highs, laws, quotients, least, greatest = (list(c) for c in zip(*rows, strict=True))
show("first tokens", lengths)
show("average weight", means, digits=3)
show("  ±", errors, digits=3)
show("ESS", effective, digits=2)
show("  from", lows, digits=2)
show("  to", highs, digits=2)
show("if positions were independent", laws, digits=2)
show("ESS found / if independent", quotients, digits=2)
show("  from", least, digits=2)
show("  to", greatest, digits=2)

assert all(abs(mean - 1) < 2 * error for mean, error in zip(means, errors, strict=True))
assert all(low < 1 < high for low, high in zip(least, greatest, strict=True))

# %% [markdown]
# The weights average to 1 within two standard errors at every length, and the quotient of both is 1 within its
# interval. So nothing speaks against the exponential law; but at 56 tokens the interval leaves room for a factor of
# three.
#
# **Look for** how the band opens: at 16 tokens the ESS is known well, at 56 it may be 0.06 or 0.5. A few answers
# decide, and 768 hold only a few of those that do.

# %%
picture(
    curves(
        list(lengths),
        {"ESS of 768 answers": effective, "independent positions": laws},
        x_name="first tokens of each answer",
        y_name="ESS",
        log="y",
        bands={"ESS of 768 answers": (lows, highs)},
    )
)

# %% [markdown]
# ## The rule of thumb has a limit
#
# An ESS of 0.5 says: as noisy as half the answers, *for an $f$ that has nothing to do with the weights*. A gradient is
# another $f$. Lesson 01 found that its noise comes from long scores, those of tokens of which the trainer was not sure.
# Such a token the engine may have written by accident: $q$ larger than $p$, a weight below 1. Then weights *take noise
# away*. The last recorded step of the run has a sketch, so we can see: the noise of the gradient, over the length of
# the true one.

# %%
run = runs.find_run("kv_fp8_e5m2")
step = last_sketch(run)
updated, sketch = updated_batch(run, step), read_sketch(run, step)
sizes = [len(updated.response_mask)]  # the noise of batches like this one
noises = [report(updated, sketch, config, batch_sizes=sizes).noise[0] for config in (CorrectionConfig(), by_weight)]
show("", "value", "low", "high")
for name, noise in zip(("every answer counts 1", "counted by its weight"), noises, strict=True):
    show(f"noise / gradient: {name}", noise.value, noise.low, noise.high, digits=1)
share = effective_share(weights[step])
show("ESS of this step", share, digits=2)
show("noise that the rule of thumb predicts", noises[0].value / share**0.5, digits=1)
(paired,) = compare_gradients(updated, sketch, CorrectionConfig(), by_weight, batch_sizes=sizes).noise
show("noise: weights minus none, paired", paired.value, paired.low, paired.high, digits=1)
assert paired.low < 0 < paired.high

pushed = contributions(updated, sketch, [CorrectionConfig()])[0].u.double()  # (128, 64): what each answer adds
squared, w_step = pushed.square().sum(-1), weights[step]
show("weight of an answer", "< 0.1", "0.1–0.5", "0.5–2", "> 2")
bands = [(w_step >= low) & (w_step < high) for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 2), (2, math.inf))]
show("answers", [int(band.sum()) for band in bands])
show("share of Σ ‖push‖², counted once", [float(squared[band].sum() / squared.sum()) for band in bands], digits=2)
assert squared[bands[0]].sum() > 0.9 * squared.sum()

# %% [markdown]
# The rule of thumb predicts 1.4 times the noise. The best guess is half of it. But the last line, taken on the same
# resamples for both, reaches from far less noise to somewhat more: this one step cannot say whether it fell. The table
# says how it can: twelve answers that the trainer would hardly ever have written make 92 % of the noise, and their
# weights are below 0.1. So the ESS is an alarm, and no forecast for a gradient. What a weight does to a gradient is
# measured in lesson 10. What to do about weights of 30 begins in lesson 05.

# %% [markdown]
# ## Exercise 1: effective sample size
#
# *3 minutes.* Return the ESS of weights `(N,)`, as a share between 0 and 1.
#
# <details><summary>Hint 1</summary>The square of the sum, over the sum of the squares; then as a share.</details>
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
# *4 minutes.* Given rewards `(N,)` and the **logarithms** of the weights `(N,)`, return $\sum w f/\sum w$. A product
# over a long answer can be too large for a float; the estimate need not be.
#
# <details><summary>Hint 1</summary>The estimate does not change if all weights are multiplied by the same number.
# Choose the number so that the largest weight becomes 1.</details>
# <details><summary>Hint 2</summary>There is a function that raises $e$ to each and divides by the sum, safely. Lesson
# 01 used it for logits.</details>


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
# *3 minutes.* The next piece of the loop that lesson 01 began. `trainer` and `engine` hold log-probs, `(B, T)`, and
# padding may hold anything. Return $p/q$ of every real token, and 0 at padding.
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
# <details><summary>Hint 1</summary>After $T$ tokens $(1 + \chi^2)^{-T}$ is left. Solve for $T$, and round.</details>
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

# %% [markdown]
# What does that mean for real tokens? Ratios average to 1, so χ² of a token is the mean of $(r - 1)^2$. Say that half
# of the sample is to be left.

# %%
show("run", "kv_fp8_e5m2", "bf16")
token_chi2 = []
for name in ("kv_fp8_e5m2", "bf16"):
    steps_of_run = (load(name, number) for number in runs.list_steps(runs.find_run(name)))
    token_chi2.append(float(torch.cat([(ratio(d) - 1).square()[mask] for d, mask, _, _ in steps_of_run]).mean()))
show("chi-square of a token", token_chi2, digits=5)
show("tokens until half is left", [LONGEST_ANSWER.expected(x, 0.5) for x in token_chi2])

# %% [markdown]
# With tokens like those of `bf16`, answers may have some seven thousand tokens. But this is a tiny model that is sure
# of nearly every token. For a model of 1.5 B parameters, also in bfloat16, TRL's developers
# [report](https://github.com/huggingface/trl/pull/7269) 5.9 % of the ratios outside of 0.9 to 1.1. Each of these adds
# at least $0.1^2$ to χ², together 0.00059 per token, so half is left at $\ln 2 / 0.00059 \approx 1{,}200$ tokens or
# before. Reasoning models write more. The coarse cache allows some twenty. (The picture above crosses one half later,
# near 30 tokens: the first tokens of a running sum are easy, and both programs are sure of them.)

# %% [markdown]
# ### Check 4, with data: answers of hundreds of tokens
#
# That was extrapolated from the average over single tokens. Three runs have long answers: a small model sorts twelve
# digits and writes out every exchange of two neighbours, in 200 to 500 tokens; 256 answers of each are recorded. Cut
# them to $T$ tokens, as before. **Guess first:** what is left of the run with the coarse cache after 400 tokens, more
# or less than the formula says?


# %%
def joined_steps(name):
    """log-ratios and mask of all recorded steps of a run."""
    parts = [load(name, number)[:2] for number in runs.list_steps(runs.find_run(name))]
    longest = max(d.shape[1] for d, _ in parts)
    columns = zip(*parts, strict=True)
    return [torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in column]) for column in columns]


cut_lengths = (50, 100, 200, 400)
measured = {}
show("first tokens", cut_lengths)
for name in ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4"):
    d_long, mask_long = joined_steps(name)
    chi2 = float((ratio(d_long) - 1).square()[mask_long].mean())
    show(name, "chi-square of a token", chi2, digits=5)
    drawn_rows = resampled(len(d_long), 1000, 3).double() / len(d_long)
    averages, errors, left, foretold = [], [], [], []
    for count in cut_lengths:
        prefix = mask_long & (mask_long.cumsum(-1) <= count)
        w_cut = ratio(over_sequence(d_long, prefix, "sum"))
        left.append(interval((drawn_rows @ w_cut).square() / (drawn_rows @ w_cut.square())))
        foretold.append((1 + chi2) ** -float(prefix.sum(-1).double().mean()))
        averages.append(float(w_cut.mean()))
        errors.append(float(w_cut.std() / len(w_cut) ** 0.5))
    show("  average weight", averages, digits=3)
    show("    ±", errors, digits=3)
    for label, column in zip(("  ESS", "    from", "    to"), zip(*left, strict=True), strict=True):
        show(label, list(column), digits=2)
    show("  if tokens were alike and independent", foretold, digits=2)
    measured[name] = averages, errors, left, foretold

for name in ("long_kv_fp8_e5m2", "long_stale_4"):
    assert measured[name][3][-1] < measured[name][2][-1][1]  # foretold below the interval
averages, errors, left, _ = measured["long_kv_fp8_e5m2"]
assert averages[-1] < 1 - 3 * errors[-1]
assert left[-1][0] > left[-2][0]

# %% [markdown]
# Rounding in bfloat16 leaves 99 % of 256 answers at 400 tokens, as foretold. With a large gap the formula and the
# sample part, with the coarse cache by more than a hundredfold at 400 tokens. The formula takes all tokens for alike,
# and they are not: most agree, and the average χ² is made by very few. In the first 50 tokens, where the weights still
# average to 1, it foretells 0.42, and 0.72 [0.61, 0.82] is left.
#
# But do not believe the 0.26 that is measured at 400 either. It is no smaller than at 200 tokens, and look at the
# average weight: 0.73, three and a half standard errors below the 1 that it must be. The heavy answers that are missing
# were not drawn, and their absence makes the sample look even. With old weights one was drawn: its weight is 3,646, and
# the ESS is 0.01. **At hundreds of tokens a sample of 256 does not know its own ESS.** The average of the weights says
# so where the ESS does not.

# %% [markdown]
# ## Check yourself
#
# **1. A weighted estimate is unbiased. What may you conclude from one sample of 128 answers?**
#
# <details><summary>The estimate is close to the truth.</summary>No. Unbiased speaks of the average over all samples. In
# one, a few weights may decide.</details>
# <details><summary>Its average over many such samples is the truth; this one may be far off.</summary>Yes. How far, its
# variance says, and that is about p²/q.</details>
# <details><summary>It is as likely too high as too low.</summary>No. Weights are skewed: most samples miss the rare
# large ones and come out low, a few come out far too high.</details>
#
# **2. The ESS of a step is 0.98. Are the weights harmless?**
#
# <details><summary>Yes: 98 % of the sample are left.</summary>No. That is true of the weights that were drawn. In the
# world of two tokens nine samples of ten had an ESS of 1, and the true one was 0.54.</details>
# <details><summary>The drawn ones are even. Whether rare large ones exist, the sample cannot say.</summary>Yes. So look
# at many steps, and at the average of the weights: too low an average hints at what is missing.</details>
# <details><summary>No: a good ESS needs to be above 1.</summary>No. It is a share, at most 1.</details>
#
# **3. Each token has χ² = 0.02. What is left of the sample with answers of 59 tokens, and of 590?**
#
# <details><summary>31 %, and 3 %.</summary>No. The first is right; but 590 tokens are ten times 59, and the shares
# multiply.</details>
# <details><summary>31 %, and about one in 120,000.</summary>Yes. 1.02 to the −59 is 0.31; to the tenth power, 0.000008.
# Long answers need something else than the plain product.</details>
# <details><summary>98 % in both cases: the ESS is a mean over tokens.</summary>No. That is the ESS of token weights.
# The weight of an answer is the product.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open the same steps:
#
# - [step 40, weights of whole answers](http://localhost:8501/bench?run=kv_fp8_e5m2&step=40&preset=decoupled_seq_is):
#   raise the upper bound and watch what is left of the sample;
# - [step 32, the same](http://localhost:8501/bench?run=kv_fp8_e5m2&step=32&preset=decoupled_seq_is);
# - [the tail of the ratios, and the sums by length](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=40).
#
# ## Pitfalls
#
# - **An ESS without its level.** Of token weights it was 0.88 in step 40, of answers 0.04. Say which.
# - **An error bar from the same weights.** It misses what the sample missed. Compare several steps.
# - **A bootstrap of a heavy tail.** It can only draw again what was drawn. Its interval ends too early: for the
#   variance at the top, for the ESS at the bottom.
# - **Normalising and forgetting.** Dividing by the sum hides an average weight of 0.5, which would have told you that
#   something is wrong.
# - **χ² has a direction.** $\sum p^2/q$ is not $\sum q^2/p$. What hurts is a small $q$.
#
# ## References
#
# 1. Art B. Owen, [Monte Carlo theory, methods and examples](https://artowen.su.domains/mc/), chapter 9: importance
#    sampling, self-normalised and not, and the effective sample size.
# 2. Luke Huang et al., [Stable Asynchrony: Variance-Controlled Off-Policy RL for
#    LLMs](https://arxiv.org/abs/2602.17616), 2026: a falling ESS comes before the collapse of a training.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics of this
#    lesson, under their names there.
