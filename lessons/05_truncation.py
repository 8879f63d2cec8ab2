# %% [markdown]
# # 05 · Truncation: a little bias for much less noise
#
# **Claim.** A cap on the weights takes a known part of the average away and keeps the noise within bounds, and the best
# cap grows with the batch.
#
# *30 minutes · intermediate · any laptop; no GPU, no network.* You need the ratio of lesson 00, the importance sampling
# of lesson 02, and the gradient of lesson 01.
#
# At the end you can
#
# - write down the bias of a cap, and its sign, without sampling anything;
# - say why some cap is nearly always better than none, and why the best one depends on the batch size;
# - tell truncation from masking, and an upper bound from a lower one;
# - read a curve of bias and noise over a threshold, and say what its intervals leave open.

# %%
import itertools
import math
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_05 import SQUARED_ERROR, TRUNCATION_BIAS, WEIGHTS
from show import picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.analysis.sweep import sweep_weights
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import bias_noise_curves, exact_curves, progress_curves
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import gradient_truth, log_probs, probabilities, small_world
from rlcorr.losses import reinforce
from rlcorr.ratios import ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(5)

# %% [markdown]
# ## Three actions again
#
# Lesson 00 had three actions. The engine draws A, B, C with $q = ½, ¼, ¼$; the trainer would with $p = ¼, ¼, ½$. So
# $r = ½, 1, 2$. The rewards are $f = 1, 0, 4$, and the trainer's average is $\mathbb{E}_p[f] = 2.25$.
#
# Weighing by $r$ gives 2.25 on average. But action C, one draw in four, counts $2 \cdot 4 = 8$, and the others nearly
# nothing. Now **truncate**: a weight above the **cap** $C$ becomes the cap,
#
# $$ w = \min(r, C) . $$
#
# That is **truncated importance sampling**, TIS. With $C = 1.5$ the weights are ½, 1, 1.5, and C counts 6. On average
# we get ½·½ + 0 + ¼·6 = 1.75: too little by ½. What did that buy? Work out the variance before you run the cell, if you
# like: average of the squares, less the square of the average.
#
# `correct` is the function that the trainer calls. Here each action is an answer of one token, the cap is a
# configuration, and the averages are exact sums over the actions.

# %%
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)


def weights(p, q, upper=math.inf, lower=None, mode="truncate"):
    """What `correct` weighs each action with."""
    one_token = TokenBatch.from_log_probs(p.log()[:, None], q.log()[:, None], torch.ones(len(p), 1, dtype=torch.bool))
    bounds = {"rollout_is_threshold": upper, "rollout_is_threshold_lower": lower, "rollout_is_mode": mode}
    return correct(one_token, CorrectionConfig(rollout_is="token", **bounds)).weights[:, 0]


def mean_and_variance(w):
    """Of w·f, for one draw from the engine."""
    mean = (q * w * f).sum()
    return float(mean), float((q * (w * f).square()).sum() - mean**2)


show("", "A", "B", "C", "average", "variance")
show("weight r", weights(p, q), *mean_and_variance(weights(p, q)))
show("weight min(r, 1.5)", weights(p, q, 1.5), *mean_and_variance(weights(p, q, 1.5)))

assert mean_and_variance(weights(p, q)) == (2.25, 11.0625)
assert mean_and_variance(weights(p, q, 1.5)) == (1.75, 6.0625)

# %% [markdown]
# A **bias** of −½ bought nearly half of the variance. Whether that is a good deal depends on how many draws we average.
# The mean over $n$ draws has the variance divided by $n$, and the same bias. Its **mean squared error** is
#
# $$ \text{error}^2 = \text{bias}^2 + \frac{\text{variance}}{n} . $$
#
# With 5 draws: 11.06/5 = 2.21 without a cap, ¼ + 6.06/5 = 1.46 with it. With 20 draws they are equal, and with 100 the
# cap costs more than it gives.
#
# ## The equation
#
# Write $x^+$ for $\max(x, 0)$. Then $\min(r, C) = r - (r - C)^+$: what a cap takes away is what sticks out above it.
# Weigh both sides by $q f$ and add up:
#
# $$ \mathbb{E}_q[w f] = \mathbb{E}_p[f] - \mathbb{E}_q\big[(r - C)^+ f\big] . \tag{1} $$
#
# So the bias is $-\mathbb{E}_q[(r - C)^+ f]$. It comes from the actions above the cap and from nothing else. How do
# bias and noise move when the cap moves? A slightly larger $C$ raises only the weights that sit on it:
#
# $$ \frac{d\,\text{bias}}{dC} = \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f\big], \qquad
#    \frac{d\,\mathbb{E}_q[(w f)^2]}{dC} = 2 C\, \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f^2\big] \ge 0 . \tag{2} $$
#
# - **The second moment** always grows with the cap.
# - **The bias** of an $f \ge 0$ always shrinks. If $f$ has both signs, as a gradient has, contributions from above the
#   cap may cancel, and the bias may grow before it falls to 0. What always shrinks is its bound,
#   $F\, \mathbb{E}_q[(r - C)^+]$ with $F = \max |f|$.
# - **The variance** is the second moment less the square of the mean. For $f = 1$ it always grows with the cap:
#   its slope is $2\, q(r > C)\, (C - \mathbb{E}_q[w])$, and no average of weights is above the cap.
#
# Two more facts say why a cap is useful at all. At $C = 1$ the mass above the cap is
# $\mathbb{E}_q[(r - 1)^+] = \sum (p - q)^+$, the **total variation** between the policies: how much probability must
# be moved to turn one into the other. So the bias at $C \ge 1$ is at most $F$ times the total variation. And since
# $w^2 \le C w$ and $\mathbb{E}_q[w] \le 1$, the second moment is at most $C F^2$, **whatever the policies are**.
# Without a cap it is $(1 + \chi^2) F^2$ at worst, and $\chi^2$, the variance of $r$, has no limit.

# %% [markdown]
# ### Check 1, with symbols: every cap, for the gradient of a softmax of three actions
#
# The engine's probabilities are $e^{θ_a}$ over their sum; `x` stands for $e^θ$, `y` for the trainer's, and 1 for that
# of the last action, since only differences of logits count. The $f$ is a real gradient: reward times
# $\partial \log p(a) / \partial θ_A$, which has both signs. A cap leaves some of the three actions above it. We try
# all eight possibilities.

# %%
C, n = sympy.symbols("C n", positive=True)
X, Y = ((*sympy.symbols(f"{name}_A {name}_B", positive=True), sympy.Integer(1)) for name in "xy")
R = sympy.symbols("R_A R_B R_C")
Q, P = ([x_a / sum(x) for x_a in x] for x in (X, Y))
score = [sympy.Integer(a == 0) - P[0] for a in range(3)]
F = [reward * s for reward, s in zip(R, score, strict=True)]
log_p_A = sympy.log(Y[0]) - sympy.log(sum(Y))
assert sympy.simplify(Y[0] * sympy.diff(log_p_A, Y[0]) - score[0]) == 0  # dθ = dy/y


def average(values, over=(0, 1, 2)):
    return sum(Q[a] * values[a] for a in over)


def vanishes(expression):
    """Whether the numerator of a fraction, multiplied out, is 0."""
    return sympy.expand(sympy.fraction(sympy.together(expression))[0]) == 0


for above in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(4)):
    w = [C if a in above else P[a] / Q[a] for a in range(3)]
    wf = [w_a * f_a for w_a, f_a in zip(w, F, strict=True)]
    bias = average(wf) - sum(p_a * f_a for p_a, f_a in zip(P, F, strict=True))
    cut = [(P[a] / Q[a] - C) * F[a] for a in range(3)]
    assert vanishes(bias + average(cut, above))  # (1)
    assert vanishes(sympy.diff(bias, C) - average(F, above))  # (2), bias
    second = average([x**2 for x in wf])
    assert vanishes(sympy.diff(second, C) - 2 * C * average([f_a**2 for f_a in F], above))  # (2), noise
    slope = sympy.diff(average([x**2 for x in w]) - average(w) ** 2, C)  # the variance for f = 1
    below = [a for a in range(3) if a not in above]
    room = sum(Q[a] * (C - P[a] / Q[a]) for a in below)  # C − E[w]: every term is ≥ 0
    assert vanishes(slope - 2 * average([1] * 3, above) * room)

show("caps tried", 2**3, "all agree")

# %% [markdown]
# ### Check 2, with numbers: a thousand random policies
#
# The same with autograd, in float64. The last two lines are the two bounds.

# %%
logits_p, logits_q = torch.randn(2, 1000, 3, dtype=torch.float64, generator=generator)
rewards = torch.randn(1000, 3, dtype=torch.float64, generator=generator)
caps = 0.5 + 2 * torch.rand(1000, 1, dtype=torch.float64, generator=generator)
p3, q3 = logits_p.softmax(-1), logits_q.softmax(-1)
r3 = weights(p3.flatten(), q3.flatten()).view(1000, 3)
w3 = torch.minimum(r3, caps)


def gradient(counted):
    """∇ of each trainer's objective with its actions counted so often; no trainer knows of the others."""
    leaf = logits_p.clone().requires_grad_()
    return -torch.autograd.grad((counted * reinforce(leaf.log_softmax(-1), rewards)).sum(), leaf)[0]


error_of_1 = gradient(q3 * w3) - gradient(p3) + gradient(q3 * (r3 - caps).clamp(min=0))
variation = (p3 - q3).clamp(min=0).sum(-1)
cut_off = (q3 * (r3 - caps.clamp(min=1)).clamp(min=0)).sum(-1)
second_over_cap = (q3 * w3.square()).sum(-1) / caps[:, 0]

show("largest error of (1) below 1e-13", float(error_of_1.abs().max()) < 1e-13)
show("cut above a cap ≥ 1, over TV, at most", float((cut_off / variation).max()))
show("second moment of w, over the cap, at most", float(second_over_cap.max()))
assert error_of_1.abs().max() < 1e-13
assert torch.all(cut_off <= variation + 1e-15)
assert torch.all(second_over_cap <= 1)

# %% [markdown]
# ## The best cap
#
# Back to three actions. For a cap between 1 and 2 the bias is $C - 2$, and the variance, with $f = 1, 0, 4$, is
# $3C^2 - C/2 + 1/16$. The next cell lets SymPy derive that, and find where the error is smallest.

# %%
w = [sympy.Rational(1, 2), sympy.Integer(1), C]
wf = [w_a * f_a for w_a, f_a in zip(w, map(sympy.Integer, (1, 0, 4)), strict=True)]
mean = wf[0] / 2 + wf[1] / 4 + wf[2] / 4
variance = sympy.expand(wf[0] ** 2 / 2 + wf[1] ** 2 / 4 + wf[2] ** 2 / 4 - mean**2)
squared = (mean - sympy.Rational(9, 4)) ** 2 + variance / n
(best,) = sympy.solve(sympy.diff(squared, C), C)

show("bias =", str(mean - sympy.Rational(9, 4)))
show("variance =", str(variance))
show("best cap =", str(sympy.factor(best)))
show("slope of the error at C = 2", str(sympy.simplify(sympy.diff(squared, C).subs(C, 2))))
draws = (5, 20, 100, 1000)
show("draws", *draws)
show("best cap", [float(best.subs(n, k)) for k in draws])
show("its error", [float(sympy.sqrt(squared.subs(C, best).subs(n, k))) for k in draws])
show("error without a cap", [float(sympy.sqrt(squared.subs(C, 2).subs(n, k))) for k in draws])

assert sympy.simplify(best - (8 * n + 1) / (4 * n + 12)) == 0
assert sympy.limit(best, n, sympy.oo) == 2  # with endless data, no cap

w = [P[0] / Q[0], P[1] / Q[1], C]  # any policies and any f, only the last action on the cap
wf = [w_a * f_a for w_a, f_a in zip(w, R, strict=True)]
slope = sympy.diff(average([x**2 for x in wf]) - average(wf) ** 2, C).subs(C, P[2] / Q[2])
trainer = sum(p_a * f_a for p_a, f_a in zip(P, R, strict=True))
assert vanishes(slope - 2 * Q[2] * R[2] * (P[2] / Q[2] * R[2] - trainer))

# %% [markdown]
# Look at the slope at $C = 2$, the largest ratio: it is above 0 for every $n$. So a cap slightly below the largest
# ratio is better than none, however much data there is. Just below the largest ratio the bias is tiny, and its square
# is tinier still; but the variance falls at once.
#
# Is that always so? Let $a$ be the action with the largest ratio. The slope of the variance there is
#
# $$ 2\, q_a f_a \,\big(r_a f_a - \mathbb{E}_p[f]\big) , $$
#
# and it is above 0 if $a$, counted $r_a f_a$, lies further out than the average: here 8 against 2.25. That is the usual
# case, and certainly that of gradients, where one answer counts for much more than the mean of all. But if the most
# underrated action were worth little, a cap would make things worse: it would move what counts little further away
# from the average.
#
# The best cap moves to the right with $n$: noise averages out, bias does not.
#
# **Look for** where each curve has its lowest point.

# %%
caps = [1 + k / 40 for k in range(41)]
picture(
    curves(
        caps,
        {f"{k} draws": [float(sympy.sqrt(squared.subs(C, c).subs(n, k))) for c in caps] for k in draws[:3]},
        x_name="cap C",
        y_name="error, √(bias² + variance/n)",
    )
)

# %% [markdown]
# ### A rule that needs no example
#
# From the two bounds we get one for the error. $(r - 2C)^2 \ge 0$ says $r - C \le r^2/(4C)$, so
# $|\text{bias}| \le F\, M/(4C)$ with $M = \mathbb{E}_q[r^2] = 1 + \chi^2$. Together with $\text{variance} \le C F^2$:
#
# $$ \text{error}^2 \le F^2 \left( \frac{M^2}{16\, C^2} + \frac{C}{n} \right), \qquad
#    \text{smallest at } C = \left(\frac{M^2\, n}{8}\right)^{1/3} . $$
#
# Eight times the batch, twice the cap. It is a bound for the worst $f$ there is, so the number itself is rough. The
# growth is what to remember: the more data, the looser the best cap. In the toy below it grows even faster.

# %%
M, r_ = sympy.symbols("M r", positive=True)
assert sympy.expand(r_**2 / (4 * C) - (r_ - C) - (r_ - 2 * C) ** 2 / (4 * C)) == 0
bound = M**2 / (16 * C**2) + C / n
(rule,) = (root for root in sympy.solve(sympy.diff(bound, C), C) if root.is_positive)
assert sympy.simplify(rule - (M**2 * n / 8) ** sympy.Rational(1, 3)) == 0
show("eight times the data: cap ×", str(sympy.simplify(rule.subs(n, 8 * n) / rule)))

# %% [markdown]
# ## The same in a world small enough to enumerate
#
# `small_world` has all 364 answers of at most five tokens out of four, so that averages and variances are sums again.
# What is averaged now is the gradient of a whole answer, and the weight is the answer's own ratio, the product of
# lesson 00. (Lesson 06 says what happens with other weights.) First, equation (1) for the gradient of this world.

# %%
toy = small_world(1.0, seed=2)
capped = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=2.0)
unbounded = replace(capped, rollout_is_threshold=math.inf)
per_answer = LossConfig(loss_agg_mode="token-sum")

p_answer, q_answer = probabilities(toy.where, toy.policies.old), probabilities(toy.where, toy.policies.rollout)
r_answer = p_answer / q_answer


def weighted_scores(c):
    """Σ over the answers of c · A · ∇ log p."""
    leaf = toy.policies.theta.clone().requires_grad_()
    objective = (c * toy.advantages * log_probs(toy.where, leaf).sum(-1)).sum()
    return torch.autograd.grad(objective, leaf)[0]


truth = gradient_truth(toy.where, toy.policies, toy.advantages, capped, per_answer)
exact = gradient_truth(toy.where, toy.policies, toy.advantages, unbounded, per_answer)
taken = weighted_scores(q_answer * (r_answer - 2).clamp(min=0))

show("answers", len(r_answer), "of which r > 2:", int((r_answer > 2).sum()))
show("largest ratio", float(r_answer.max()), digits=1)
show("χ² of the answers", float((q_answer * r_answer.square()).sum() - 1), digits=2)
show("bias without a cap below 1e-12", exact.relative_bias < 1e-12)
show("bias with C = 2, of the gradient", truth.relative_bias)
show("variance, C = 2 over no cap", truth.variance / exact.variance)

assert exact.relative_bias < 1e-12
assert 0.2 < truth.relative_bias < 0.3
assert 1 / 7 < truth.variance / exact.variance < 1 / 5
assert torch.allclose(truth.expectation - exact.expectation, -taken, rtol=0, atol=1e-12)

# %% [markdown]
# A cap of 2 leaves a bias of a quarter of the gradient, and a sixth of the variance. Which cap is the best? For an
# average we asked for the smallest error. A gradient is a direction to go in, and its length is up to us: a learning
# rate can halve it. So for gradients we ask how far a step gets, if its length is the best one: the **progress** $\eta$
# is this distance as a share of what the exact gradient reaches, between 0 and 1. Lesson 10 derives it from bias and
# noise.
#
# Next, all three over the cap, for a batch of 1,024 answers; bias and noise in units of the gradient. The axis shows a
# cap by its distance from 1. **Look for** the dashed line, where the progress is largest. The dotted line is the usual
# cap, 2.

# %%
caps = [2 ** (k / 4) for k in range(1, 32)]
picture(exact_curves(toy_sweep(toy, unbounded, caps, 1024), of_ratio=True, at=2.0))

# %% [markdown]
# And the best cap, for batches of different size:

# %%
fine = [*(2 ** (k / 16) for k in range(-32, 130)), math.inf]  # the last is no cap
sizes = (16, 128, 1024, 8192, 65536)
truths = [
    gradient_truth(toy.where, toy.policies, toy.advantages, replace(unbounded, rollout_is_threshold=cap))
    for cap in fine
]
progress = [[one.progress(size) for one in truths] for size in sizes]
best_caps = [fine[shares.index(max(shares))] for shares in progress]

show("answers in a batch", *sizes)
show("best cap", best_caps, digits=2)
show("its progress", [max(shares) for shares in progress], digits=3)
show("progress with C = 2", [shares[fine.index(2.0)] for shares in progress], digits=3)
show("progress without a cap", [shares[-1] for shares in progress], digits=3)
growth = math.log(best_caps[-1] / best_caps[1]) / math.log(sizes[-1] / sizes[1])
show("best cap grows like n to the power", growth, digits=2)

assert best_caps == sorted(best_caps)
assert best_caps[-1] < float(r_answer.max())
lost = [max(shares) - shares[fine.index(2.0)] for shares in progress]  # by taking 2 instead
assert all(loss < 0.015 for loss in lost[1:3])
assert lost[0] > 0.15
assert all(loss > 0.04 for loss in lost[3:])
assert all(max(shares) > shares[-1] for shares in progress)

# %% [markdown]
# The best cap grows with the batch, here nearly like its square root. A cap of 2 costs next to nothing for 128 and for
# 1,024 answers. For 65,536 it is too tight: 5 % of the progress are lost, where the best cap loses 0.2 %. At 16 answers
# the best cap is below 1. Such a cap lies on most weights, so that nearly all answers count alike: when a single step
# is mostly noise, even that large bias is worth paying.
#
# ## Lower bounds, and truncation against masking
#
# A **lower bound** $c$ raises the weights below it. By the same steps its bias is $+\mathbb{E}_q[(c - r)^+ f]$. Small
# weights make little noise, so there is little to win; some systems have it all the same (OpenRLHF's `tis` bounds
# weights to [0.5, 5]).
#
# **Masking** sets a weight above the cap to 0. That takes away the whole token, not only what sticks out: the bias is
# $-\mathbb{E}_q[\mathbf{1}_{r > C}\, r f] = -\mathbb{E}_p[\mathbf{1}_{r > C}\, f]$. With $f \ge 0$ this is always more
# than truncation takes; the noise is always less in the second moment. Lesson 07 is about masking; here are the three
# actions.

# %%
ways = {
    "no bound": weights(p, q),
    "truncated at 1.5": weights(p, q, 1.5),
    "masked at 1.5": weights(p, q, 1.5, mode="mask"),
    "truncated to [0.75, 1.5]": weights(p, q, 1.5, lower=0.75),
}
show("", "E[w]", "bias", "variance", "error, n=1", "n=2", "n=5", "n=20", "n=100")
for name, w in ways.items():
    mean, variance = mean_and_variance(w)
    errors = [((mean - 2.25) ** 2 + variance / k) ** 0.5 for k in (1, 2, 5, 20, 100)]
    show(name, float((q * w).sum()), mean - 2.25, variance, errors)

masked = mean_and_variance(ways["masked at 1.5"])
assert masked[0] - 2.25 == -float((p * (weights(p, q) > 1.5) * f).sum()) == -2
lifted = mean_and_variance(ways["truncated to [0.75, 1.5]"])[0] - mean_and_variance(ways["truncated at 1.5"])[0]
assert lifted == float((q * (0.75 - weights(p, q)).clamp(min=0) * f).sum()) == 0.125

# %% [markdown]
# Masking has the smallest error for a single draw, and from two draws on it loses to truncation, because its bias of
# −2 stays. The two-sided bound gives back in A what it takes from C: its weights average to exactly 1 here. That is no
# rule; it depends on the bounds.
#
# Masking has another use. If a huge ratio is no honest ratio but a broken token, then $r f$ is garbage, equation (1)
# has no meaning for it, and dropping it is right.
#
# ## The same on a recorded run
#
# `kv_fp8_e5m2` once more: running sums, with a cache in 8 bits. First the plain average of equation (1), with $f = 1$.
# At $C = 1$ it says that $\mathbb{E}_q[(r - 1)^+]$ is the total variation. So is $\mathbb{E}_q[(1 - r)^+]$, because the
# ratios average to 1: what is missing on one side sticks out on the other.
#
# ### Check 3, with data: two estimates of one number
#
# All recorded steps of three runs, with standard errors.


# %%
def all_ratios(name):
    """The token ratios of all recorded steps."""
    run = runs.find_run(name)
    by_step = []
    for step in runs.list_steps(run):
        batch = runs.read_step(run, step).batch
        pair = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
        by_step.append(ratio(correct(batch.replace(**pair), CorrectionConfig()).log_ratio)[batch.response_mask])
    return torch.cat(by_step)


def average_and_error(x):
    return float(x.mean()), float(x.std() / len(x) ** 0.5)


apart = {}
show("", "E(r−1)⁺", "±", "E(1−r)⁺", "±", "apart by", "largest r")
for name in ("bf16", "kv_fp8_e5m2", "stale_4"):
    r = all_ratios(name)
    above, below = average_and_error((r - 1).clamp(min=0)), average_and_error((1 - r).clamp(min=0))
    apart[name] = (above[0] - below[0]) / average_and_error(r)[1]
    show(name, *above, *below, apart[name], float(r.max()))
    assert abs(apart[name]) < 2
    assert name == "bf16" or above[1] > 2 * below[1]

# %% [markdown]
# Both sides agree within two standard errors in each run (the fifth number). But in `kv_fp8_e5m2` and `stale_4` they
# are not known equally well: the standard error above 1 is more than twice that below. Lesson 00 met the reason. A
# token that the engine hardly ever draws, and the trainer would draw often, has a huge ratio; if no such token is in
# the sample, its part of the average is missing, and the standard error does not know.
#
# That is worth a pause, because it is exactly these tokens that a cap cuts. **What a cap costs sits in the tokens that
# are rarely drawn, so data tell less about its bias than about its gain.** The side below 1 has no such tail, and can
# be trusted more. It says that in this run one token in twelve would have to be moved.
#
# ### The gradient: what is gained can be seen
#
# The last step of `kv_fp8_e5m2` has a sketch, which gives the gradient of every cap together with its noise, and a
# reference from 8,192 answers of the trainer itself (lesson 10 explains how). Compare caps on the same bootstrap
# samples: the differences are paired, so that noise which both share cancels. First guess.
#
# ## Predict, then reveal
#
# The step has 128 answers with 7,533 tokens. The cap is 2. **Write down:**
#
# 1. How many of the 7,533 tokens are cut, if each is weighed by its own ratio? And how many of the 128 answers, if each
#    is weighed by its product?
# 2. By how much does the cap lower the noise of the gradient, token by token: 1 %, 10 % or half? And with products?
# 3. How well is the bias known that this costs?

# %%
run = runs.find_run("kv_fp8_e5m2")
batch, sketch = updated_batch(run, 48), read_sketch(run, 48)
assert int(sketch.reference.sequences.sum()) == 8192


def ends(interval):
    return interval.value, interval.low, interval.high


show("", "value", "from", "to")
cap_effects = {}
levels = {"token": preset("decoupled_token_is"), "sequence": preset("decoupled_seq_is")}  # both have a cap of 2
for level, capped in levels.items():
    without_cap = replace(capped, rollout_is_threshold=math.inf)
    cap_effects[level] = compare_gradients(batch, sketch, without_cap, capped, batch_sizes=[128])
    show(
        f"{level}: share of items above 2",
        sweep_weights(batch, capped.rollout_is or "token").at(2.0).fraction_high,
        digits=3,
    )
    show(f"{level}: noise without a cap", *ends(cap_effects[level].a.noise[0]), digits=2)
    show(f"{level}: the cap adds to the noise", *ends(cap_effects[level].noise[0]), digits=2)
    show(f"{level}: the cap adds to the bias", *ends(cap_effects[level].bias), digits=2)
    show(f"{level}: the cap adds to the progress", *ends(cap_effects[level].progress[0]), digits=2)

for comparison in cap_effects.values():
    assert comparison.noise[0].high < 0  # the gain is certain
    assert comparison.bias.low <= 0 < comparison.bias.high  # the cost is not known
    assert not comparison.progress[0].tells  # nor what is left of both
assert cap_effects["token"].bias.high < 0.4 < 10 < cap_effects["sequence"].bias.high
on_the_cap = {level: correct(batch, capped).weights == 2 for level, capped in levels.items()}
assert int(on_the_cap["token"].sum()) == 13
assert int(on_the_cap["sequence"].any(-1).sum()) == 9

# %% [markdown]
# Token weights: 13 tokens in 7,533 are cut, one in 600, and the noise falls by 1.5 %. Products: 9 answers in 128 are
# cut, one in 14, and the noise falls by nearly half. Both intervals of the gain leave 0 out.
#
# What it costs in bias is not known. Token by token it is little: at most a third of the gradient, because a cap that
# touches 13 tokens moves the gradient by little. With products it may be anything up to 11 gradients: the answers that
# are cut are the loudest of the batch, and 128 answers cannot tell what their average is. So of the progress, which
# puts both together, we cannot say whether the cap adds or takes. What we know about the bias of products we know from
# equation (1) and from the toy, not from this batch.
#
# The whole curve over the cap, for products: first bias and noise, then the progress. **Look for** the bands, not the
# lines: the noise rises with the cap, while the band of the bias starts at 0 everywhere. The shaded caps are those that
# may be the best.

# %%
caps = [2 ** (k / 4) for k in range(1, 19)]
swept = gradient_sweep(batch, sketch, preset("decoupled_seq_is"), thresholds=caps, batch_sizes=[128])
picture(bias_noise_curves(swept, 128, at=2.0))
picture(progress_curves(swept, 128, at=2.0))
(best,), (choice,) = swept.best, swept.ranking.choices
show("best cap on this step", *ends(best), digits=2)
show("its progress", *ends(swept.ranking.reports[choice.best].progress[0]), digits=2)
show("more than without weights by", *ends(choice.over_nothing), digits=2)

noise = [report.noise[0].value for report in swept.ranking.reports]
assert noise == sorted(noise)
assert all(report.relative_bias.low == 0 for report in swept.ranking.reports)
assert best.value == swept.thresholds[0]
assert not choice.over_nothing.tells

# %% [markdown]
# The best guess is the tightest cap that we tried, anything up to 8 may be better, and whether any of them is better
# than no weights at all cannot be told. Above 8 there is nothing to choose: no answer of this step has a larger weight.
# **128 answers do not choose a cap.** Lesson 11 has runs that do.
#
# And even a sure answer would be about **one** step. A training makes hundreds of them, and their noises cancel in
# part, while their biases add up. What counts is an $n$ somewhere between the answers of a step and those of the whole
# training, so **the best cap for a training is looser than the best cap for a step**. In the toy, 64 steps of 128
# answers are 8,192 answers, and you saw how far the two caps are apart.

# %%
one_step, many_steps = best_caps[sizes.index(128)], best_caps[sizes.index(8192)]
show("toy: best cap for one step of 128", one_step, digits=2)
show("toy: for the mean of 64 such steps", many_steps, digits=2)
assert many_steps > 5 * one_step

# %% [markdown]
# ## Exercise 1: truncated weights
#
# *4 minutes.* Return the weights of a padded batch, `(B, T)`: the token's ratio, moved to the nearer bound where it is
# outside, and 0 on padding. `lower` may be `None`. Keep it: in `mini.py`, the loop that lesson 01 began, it is the
# third piece, `truncated`.
#
# <details><summary>Hint 1</summary>torch.clamp takes None for a bound that is not there.</details>
# <details><summary>Hint 2</summary>Padding may hold nan. torch.where chooses, multiplication does not: nan · 0 is
# nan.</details>


# %%
def truncated_weights(old_log_probs, rollout_log_probs, mask, lower, upper):
    raise NotImplementedError("exercise 1: write truncated_weights, then run this cell and the next.")


# %% tags=["check"]
check(truncated_weights, WEIGHTS)


# %% tags=["solution", "hide-input"]
def truncated_weights_solution(old_log_probs, rollout_log_probs, mask, lower, upper):
    r = (old_log_probs - rollout_log_probs).exp()
    return torch.where(mask, r.clamp(lower, upper), 0)


check(truncated_weights_solution, WEIGHTS)

# %% [markdown]
# ## Exercise 2: the bias of a cap
#
# *4 minutes.* Given the probabilities of all actions, `p` and `q`, and the values `f`, each `(A,)`, return
# $\mathbb{E}_q[\min(r, C) f] - \mathbb{E}_p[f]$: one number.
#
# <details><summary>Hint 1</summary>Equation (1): only what sticks out above the cap matters.</details>
# <details><summary>Hint 2</summary>q · min(p/q, C) is the smaller of p and C·q.</details>


# %%
def truncation_bias(p, q, f, cap):
    raise NotImplementedError("exercise 2: write truncation_bias, then run this cell and the next.")


# %% tags=["check"]
check(truncation_bias, TRUNCATION_BIAS)


# %% tags=["solution", "hide-input"]
def truncation_bias_solution(p, q, f, cap):
    return -(q * (p / q - cap).clamp(min=0) * f).sum()


check(truncation_bias_solution, TRUNCATION_BIAS)

# %% [markdown]
# ## Exercise 3: is the cap worth it?
#
# *5 minutes.* Return the mean squared error, bias² + variance/n, of the truncated average over `n` draws. Then find, by
# trying, from how many draws on a cap of 1.8 is worse than none for the three actions.
#
# <details><summary>Hint 1</summary>Exercise 2 is the bias. The variance of one draw is E[(wf)²] − E[wf]².</details>
# <details><summary>Hint 2</summary>With a cap of 1.5 both are equal at n = 20. A looser cap has a smaller bias, so it
# stays better for longer.</details>


# %%
def squared_error(p, q, f, cap, n):
    raise NotImplementedError("exercise 3: write squared_error, then run this cell and the next.")


# %% tags=["check"]
check(squared_error, SQUARED_ERROR)


# %% tags=["solution", "hide-input"]
def squared_error_solution(p, q, f, cap, n):
    wf = (p / q).clamp(max=cap) * f
    mean = (q * wf).sum()
    variance = (q * wf.square()).sum() - mean.square()
    return (mean - (p * f).sum()).square() + variance / n


check(squared_error_solution, SQUARED_ERROR)
worse_from = next(
    k for k in range(1, 1000) if squared_error_solution(p, q, f, 1.8, k) > squared_error_solution(p, q, f, math.inf, k)
)
show("a cap of 1.8 is worse from n =", worse_from)

# %% [markdown]
# ## Check yourself
#
# **1. All rewards are ≥ 0. You raise the cap from 2 to 5. What happens to the weighted average reward?**
#
# <details><summary>Its expectation falls.</summary>No. Weights above 2 grow, all others stay, and no reward is
# negative.</details>
# <details><summary>Its expectation rises towards the trainer's, and the average of the squares rises too.</summary>Yes,
# by (2). What a single batch shows may differ: that is the noise.</details>
# <details><summary>Its expectation stays: importance sampling is unbiased.</summary>No. Unbiased is only the weight
# without a cap. Each cap has its own expectation.</details>
#
# **2. You change from 256 to 2,048 answers per step. Should the cap move?**
#
# <details><summary>No: the mismatch is what it was.</summary>The ratios are, but the noise is not. With eight times the
# answers the bias is a larger part of the error.</details>
# <details><summary>It may be tighter, since there is more data.</summary>The other way round. A tight cap trades bias
# for less noise, and there is less noise now.</details>
# <details><summary>It may be looser, by a factor of two or three.</summary>Yes. Eight times the data is twice the cap
# if the growth is like the third root of n, and nearly three times if it is like the square root.</details>
#
# **3. On your run, the noise of the gradient falls clearly with the cap, and the interval of the bias is [0, 8]. What
# do you know?**
#
# <details><summary>The cap has no bias, since 0 is in the interval.</summary>No. So is 7. An interval that holds
# everything says nothing.</details>
# <details><summary>The cap lowers the noise; what it costs is not known from this step.</summary>Yes. The cost has a
# bound by (1), and a better estimate needs more answers or more steps.</details>
# <details><summary>The bias is 4, the middle.</summary>No. The middle of an interval is no estimate. And the bias
# cannot come out below 0, so the interval is lopsided from the start.</details>

# %% [markdown]
# ## In the app
#
# - [This step, its gradient over the cap on the
#   products](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_seq_is);
# - [the same for token weights](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is);
# - [the bench with the cap at
#   1.1](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&is_upper=1.1): drag it, and see
#   how many tokens it touches;
# - [truncated beside masked, the same
#   bounds](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_icepop&mode=truncate&preset_b=decoupled_token_icepop).
#
# ## Pitfalls
#
# - **A cap is not a clip.** PPO's clip bounds $\rho = \pi_θ/\pi_{old}$ and stops the gradient of a token beyond it. A
#   truncated weight is a constant in front of the loss: the token keeps its gradient, times $C$.
# - **One number, or two.** `tis` is one-sided in verl and SkyRL. In OpenRLHF it bounds on both sides, and ROLL's
#   `pg_variant: tis` is another thing altogether: it clamps $\pi_θ/\pi_{old}$ to [0, 1].
# - **Averages of weights.** After truncation the weights average below 1. Dividing by their mean (self-normalising)
#   brings the average back, not the bias.
# - **Some dashboards average after the cap.** TRL reports its ratios after truncation, so the largest is never above
#   the cap, however bad things are.
# - **A cap does not cure.** It bounds what mismatch does to the noise. The mismatch goes on to grow.
#
# ## References
#
# 1. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: truncated importance sampling for the gap between
#    engine and trainer.
# 2. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://yingru.notion.site), 2025: its first part sets
#    bias against total variation, and variance against χ².
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): `rollout_is`,
#    `rollout_is_threshold`, and the presets used here.
