# %% [markdown]
# # 01 · The policy gradient: a derivative one can sample
#
# **Claim.** The derivative of an average reward is itself an average, of advantage times ∇ log π: so it can be
# estimated from a few drawn answers, and a baseline changes its noise but not its mean.
#
# *30 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00, and to know what a derivative is: how
# much one number changes when another is turned a little.
#
# At the end you can
#
# - derive the gradient that every method of this course starts from, in four lines;
# - say what a score, a baseline and an advantage are, and compute them by hand;
# - explain why the loss that is differentiated, $-A \log \pi$, is no measure of success;
# - test on recorded tokens whether they came from the policy that is being differentiated.

# %%
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_01 import ADVANTAGES, BEST_BASELINE, SOFTMAX_SCORE, TOKEN_MEAN_LOSS
from show import picture, show

from rlcorr import CorrectionConfig, correct
from rlcorr.advantages import gae, group_normalised, leave_one_out, token_rewards
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import resampled
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import report
from rlcorr.losses import reinforce
from rlcorr.masked import masked_mean, masked_sum
from rlcorr.objective import policy_loss, score_coefficients
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(1)

# %% [markdown]
# ## Three actions, three knobs
#
# Lesson 00 had a policy with three actions A, B, C. Its probabilities were ¼, ¼, ½, and the actions earned 1, 0, 4. So
# the average reward is ¼·1 + ¼·0 + ½·4 = 2.25. Training wants to raise this number.
#
# In this lesson there is one policy, π: it draws, and it is the one that is trained. The mismatch returns at the end.
#
# Nobody can turn a probability alone: all of them must add up to 1. What a model puts out is one number per action, the
# **logit** $z$, which may be anything. The **softmax** makes probabilities of them: raise $e$ to each, and divide by
# the sum.
#
# $$ \pi_a = \frac{e^{z_a}}{e^{z_A} + e^{z_B} + e^{z_C}}, \qquad J = \sum_a \pi_a\, f_a . $$
#
# The logits are the knobs; $f_a$ is the reward of an action, and $J$ is the average reward. Now turn one knob a little,
# and look how much $J$ changes. The three slopes together are the **gradient** of $J$, written $\nabla J$: the
# direction in which to turn all knobs.

# %%
z = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
pi = z.softmax(-1)


def average_reward(z):
    return (z.softmax(-1) * f).sum()


little = 1e-5
knobs = torch.eye(3, dtype=torch.float64)  # one row per knob
slopes = [(average_reward(z + little * knob) - average_reward(z - little * knob)) / (2 * little) for knob in knobs]
gradient = torch.stack(slopes)

show("action", "A", "B", "C")
show("probability", pi)
show("reward", f)
show("slope of the average reward", gradient)
show("probability × (reward − average)", pi * (f - average_reward(z)))

assert torch.allclose(gradient, pi * (f - 2.25), rtol=0, atol=1e-9)

# %% [markdown]
# Turn C up and $J$ rises; turn A or B up and it falls. The last line says why: what counts is how much better than the
# average an action is, times how often it is taken.
#
# ## Why this is not enough
#
# We used all three probabilities and all three rewards. A language model with 20 symbols can write $20^{59}$ answers of
# 59 tokens. Nobody can list them, or reward them all. All one can do is **draw** some answers, and look what they earn.
#
# An average can be estimated from draws: that is what averages are for. But a slope of an average? When a knob turns,
# the rewards stay as they are. It is the probabilities of the draws that change. So the slope is hidden in how the
# draws *would have* been different.
#
# ## The equation
#
# There is one trick. The slope of a logarithm is $\nabla \log \pi = \nabla \pi / \pi$. Turn it round:
# $\nabla \pi = \pi\, \nabla \log \pi$. Now the probability stands in front again, and a sum with probabilities in front
# is an average:
#
# $$ \nabla J = \sum_a f_a \nabla \pi_a = \sum_a f_a\, \pi_a \nabla \log \pi_a = \mathbb{E}_\pi[\,f\, s\,],
# \qquad s = \nabla \log \pi . $$
#
# $\mathbb{E}_\pi$ is the average over actions drawn from $\pi$. The vector $s$ is called the **score** of an action:
# the direction that makes this action more probable. For a softmax it is simple. The slope of $\log \pi_a$ in knob $k$
# is 1 if $k$ is the action itself, and 0 if not, minus $\pi_k$. Raise your own knob, and pay everybody's probability.
#
# ### Check 1, with symbols: the proof, line by line
#
# Each line is asserted for all logits and rewards, in all three knobs.

# %%
Z, F = (sympy.symbols(f"{name}_A {name}_B {name}_C", real=True) for name in "zf")
b = sympy.Symbol("b", real=True)
PI = [sympy.exp(z_a) / sympy.Add(*map(sympy.exp, Z)) for z_a in Z]
J = sympy.Add(*(pi_a * f_a for pi_a, f_a in zip(PI, F, strict=True)))
THREE = range(3)


def same(left, right):
    return sympy.simplify(left - right) == 0


def average(values):
    """E over the three actions."""
    return sympy.Add(*(pi_a * value for pi_a, value in zip(PI, values, strict=True)))


score = [[sympy.diff(sympy.log(PI[a]), Z[k]) for k in THREE] for a in THREE]  # of action a, in knob k
for k in THREE:
    for a in THREE:
        assert same(score[a][k], int(a == k) - PI[k])  # the score of a softmax
        assert same(sympy.diff(PI[a], Z[k]), PI[a] * score[a][k])  # the trick
    assert same(sympy.diff(J, Z[k]), average([F[a] * score[a][k] for a in THREE]))  # the slope is an average
    assert same(average([score[a][k] for a in THREE]), 0)  # scores average to 0
    assert same(sympy.diff(J, Z[k]), average([(F[a] - b) * score[a][k] for a in THREE]))  # so a baseline is free

show("score of a softmax", "1[a = k] − π_k")
show("the trick", "∂π_a = π_a × score")
show("the slope of J is E[f s]", "in all three knobs")
show("E[s]", str(sympy.simplify(average([score[a][0] for a in THREE]))))
show("E[(f − b) s] = E[f s]", "for every b")

# %% [markdown]
# The last two lines come back below. First, draw. Four typical draws are A, B, C, C:
#
# | | A | B | C | C | average |
# |---|---|---|---|---|---|
# | score, knob A | ¾ | −¼ | −¼ | −¼ | **0** |
# | score, knob B | −¼ | ¾ | −¼ | −¼ | **0** |
# | score, knob C | −½ | −½ | ½ | ½ | **0** |
# | reward | 1 | 0 | 4 | 4 | 2.25 |
# | reward × score, A | ¾ | 0 | −1 | −1 | −1.25/4 = **−0.3125** |
# | reward × score, B | −¼ | 0 | −1 | −1 | −2.25/4 = **−0.5625** |
# | reward × score, C | −½ | 0 | 2 | 2 | 3.5/4 = **0.875** |
#
# The right column is the gradient from above, and nobody had to list anything. A draw that earned much pushes its own
# probability up; so do all others, each as hard as it was rewarded.
#
# ### Check 2, with numbers
#
# First the exact average, by the loss `reinforce`, which is $-f \log \pi$, against the gradient that automatic
# differentiation takes of $J$: for a thousand random policies and rewards. Then a real sample of ten thousand draws.


# %%
def gradient_by_scores(z, f):
    """E[f s]: probabilities held fixed, only log π is differentiated."""
    leaf = z.clone().requires_grad_()
    loss = (z.softmax(-1) * reinforce(leaf.log_softmax(-1), f)).sum()
    return -torch.autograd.grad(loss, leaf)[0]


def gradient_by_autograd(z, f):
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad((leaf.softmax(-1) * f).sum(), leaf)[0]


worst = 0.0
for _ in range(1000):
    any_z, any_f = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    worst = max(worst, float((gradient_by_scores(any_z, any_f) - gradient_by_autograd(any_z, any_f)).abs().max()))
show("largest error below 1e-13", worst < 1e-13)
assert worst < 1e-13

scores = torch.eye(3, dtype=torch.float64) - pi  # (3, 3): row a is the score of action a
drawn = torch.multinomial(pi, 10_000, replacement=True, generator=generator)
weighted_scores = f[drawn, None] * scores[drawn]  # (10000, 3): what every draw says
estimate, error = weighted_scores.mean(0), weighted_scores.std(0) / len(weighted_scores) ** 0.5

show("knob", "A", "B", "C")
show("gradient", gradient)
show("from 10,000 draws", estimate)
show("standard error", error)
assert ((estimate - gradient).abs() < 3 * error).all()

# %% [markdown]
# ## A baseline
#
# Scores average to 0: nothing can become more probable on average. So a constant may be taken off every reward, and the
# average of $(f - b)\,s$ stays. This constant is called a **baseline**. What it changes is the **noise**: how far one
# draw's $(f-b)\,s$ is from the average of all. We measure noise by the **variance**: the average squared distance.
#
# Let us take off the average reward, 2.25. Then B, which earned nothing, pushes *down*, and A does as well.

# %%
J_here = float(average_reward(z))


def mean_and_variance(b):
    """Of (f − b) s for one draw; the variance is added up over the knobs."""
    weighted_scores = (f - b)[:, None] * scores
    mean = pi @ weighted_scores
    return mean, float(pi @ (weighted_scores - mean).square().sum(-1))


show("knob", "A", "B", "C")
for baseline in (0.0, J_here, 10.0):
    mean, variance = mean_and_variance(baseline)
    show(f"baseline {baseline}: average", mean)
    show("… and variance", variance, digits=2)
    assert torch.allclose(mean, gradient, rtol=0, atol=1e-9)

# %% [markdown]
# Three times the same average, with three very different noises. The noise of an average of $N$ draws is the variance
# divided by $N$. So with a baseline of 10 we would need 22 times as many draws as with none for the same accuracy, and
# with 2.25 less than half as many.
#
# Which baseline is best? The variance is a parabola in $b$, so it has a lowest point:
#
# $$ V(b) = \mathbb{E}\big[(f-b)^2\,\|s\|^2\big] - \|\nabla J\|^2, \qquad
# V'(b^*) = 0 \;\Rightarrow\; b^* = \frac{\mathbb{E}[f\,\|s\|^2]}{\mathbb{E}[\|s\|^2]} . $$
#
# Here $\|s\|^2$ is the squared length of the score. The best baseline is an average reward in which **every action
# counts by the squared length of its score**. It is the plain average if all scores are equally long, but they are not:
# the score of an action that is drawn almost always is almost 0, because there is little left to raise. Below, C is the
# most probable, and has the shortest score.

# %%
PROBABILITIES, LENGTHS = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in ("pi", "n"))


def weighted_sum(values):
    return sympy.Add(*(w * value for w, value in zip(PROBABILITIES, values, strict=True)))


V = weighted_sum([(f_a - b) ** 2 * n_a for f_a, n_a in zip(F, LENGTHS, strict=True)])  # less a constant
best_symbol = weighted_sum([f_a * n_a for f_a, n_a in zip(F, LENGTHS, strict=True)]) / weighted_sum(LENGTHS)
assert same(sympy.diff(V, b).subs(b, best_symbol), 0)
assert sympy.diff(V, b, 2).is_positive  # so it is the lowest point

lengths = scores.square().sum(-1)
best = float(pi @ (f * lengths) / (pi @ lengths))
show("‖s‖² of A, B, C", lengths)
show("best baseline", best)
show("its variance", mean_and_variance(best)[1])
assert mean_and_variance(best)[1] < mean_and_variance(J_here)[1]

# %% [markdown]
# **Look for** the lowest point, and for the two dotted lines: the best baseline, 1.55, and the average reward, 2.25.
# The average is not far from the best. On a real run we shall see that this is not always so.

# %%
grid = [-1.0 + 0.25 * step for step in range(23)]
picture(
    curves(
        grid,
        {"variance of (f − b) s": [mean_and_variance(x)[1] for x in grid]},
        x_name="baseline b",
        y_name="variance",
        marks=[best, J_here],
    )
)

# %% [markdown]
# ## Whole answers
#
# An answer is a row of tokens, each drawn after the ones before it. Its probability is a product, so its logarithm is a
# sum, and so is its score:
#
# $$ \log \pi(\text{answer}) = \sum_t \log \pi(\text{token}_t \mid \text{before}), \qquad s = \sum_t s_t . $$
#
# That is all. The gradient is $\mathbb{E}[f \sum_t s_t]$: every token of an answer is pushed by the reward of the whole
# answer. It sounds unfair to the tokens that were harmless, and it is noisy, but on average it is exact.
#
# Two things can be taken off again. After any beginning, the score of the *next* token averages to 0. So for token $t$
# the baseline may be any number that depends on what was written **before** $t$, and not on token $t$ itself. And what
# was earned before $t$ may be left out altogether.
#
# The smallest world with answers has 3 tokens, of which one ends the answer, and at most 3 steps. It has 15 answers, so
# every average is an exact sum. `toy.policy_gradient` differentiates $\sum \pi(\text{answer})\, f$ directly.

# %%
where = toy.world(3, 3)
theta = toy.random_policy(where, seed=1)
answer_rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
truth = toy.policy_gradient(where, theta, answer_rewards)


def gradient_of_answers(advantages):
    """E[Σ_t A_t s_t] over all answers; advantages (N, T)."""
    leaf = theta.clone().requires_grad_()
    answer_losses = masked_sum(reinforce(toy.log_probs(where, leaf), advantages), where.mask, -1)
    return -torch.autograd.grad((toy.probabilities(where, theta) * answer_losses).sum(), leaf)[0]


whole = answer_rewards[:, None].expand(where.mask.shape)
by_prefix = torch.randn(where.state_count, dtype=torch.float64, generator=generator)[where.states]
by_token = torch.randn(3, dtype=torch.float64, generator=generator)[where.tokens]


def off_by(advantages):
    return float((gradient_of_answers(advantages) - truth).norm() / truth.norm())


show("answers", len(where.tokens))
show("E[f Σ s]: error", off_by(whole))
show("baseline by what was before: error", off_by(whole - by_prefix))
show("baseline by the token itself: error", off_by(whole - by_token), digits=2)
assert off_by(whole) < 1e-12
assert off_by(whole - by_prefix) < 1e-12
assert off_by(whole - by_token) > 0.1

# %% [markdown]
# A baseline that knows the token it is taken off is none: in the last line the gradient is off by a
# third of its length.
#
# ## The advantage
#
# Reward less baseline is called the **advantage** $A$: how much better than expected. From here on the gradient is
#
# $$ \nabla J = \mathbb{E}\Big[\sum_t A_t\, s_t\Big] . $$
#
# Where does the expectation come from? There are two families. A **critic** is a second model that learns to predict
# the reward from what is written so far, $V_t$. Then $A_t = f - V_t$. Or $A_t$ is how much the prediction rose by this
# token, which has less noise and trusts the critic more. Generalised advantage estimation (**GAE**) has a number λ that
# mixes both: 1 is the first, 0 the second. The other family has no critic. It draws several answers to the same prompt,
# and compares each with its **group**: GRPO subtracts the mean of the group and divides by its standard deviation;
# leave-one-out (RLOO) subtracts the mean of the *others*.

# %%
three_tokens = torch.ones(1, 3, dtype=torch.bool)
predicted = torch.tensor([[0.4, 0.6, 0.9]], dtype=torch.float64)  # V before each token; the answer will earn 1
reward_at_end = token_rewards(torch.tensor([1.0], dtype=torch.float64), three_tokens)

show("critic's prediction before each token", predicted, digits=2)
show("A = f − V", gae(reward_at_end, predicted, three_tokens, 1.0, 1.0)[0], digits=2)
show("A by GAE with λ = 0", gae(reward_at_end, predicted, three_tokens, 1.0, 0.0)[0], digits=2)

group_rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # four answers to one prompt
one_group = torch.zeros(4, dtype=torch.int64)
show("rewards of a group of four", group_rewards, digits=2)
show("less the mean of the group", group_normalised(group_rewards, one_group, by_std=False), digits=2)
show("… over the standard deviation (GRPO)", group_normalised(group_rewards, one_group), digits=2)
show("less the mean of the others (RLOO)", leave_one_out(group_rewards, one_group), digits=2)

# %% [markdown]
# Is the mean of the group a baseline? It contains the answer's own reward, so it knows the answer that it is taken off:
# strictly, no. The mean of the others is one. The difference is only a factor: with groups of $n$, the first gives the
# gradient times $1 - 1/n$. Two lines of enumeration show it, over all groups of two and three draws of A, B, C.

# %%
for n in (2, 3):
    groups = torch.cartesian_prod(*[torch.arange(3)] * n)  # (3^n, n): every group
    chance = pi[groups].prod(-1)
    number = torch.arange(len(groups)).repeat_interleave(n)
    for name, advantages in (
        ("the mean of the group", group_normalised(f[groups].flatten(), number, by_std=False)),
        ("the mean of the others", leave_one_out(f[groups].flatten(), number)),
    ):
        pushed = (advantages.view(-1, n, 1) * scores[groups]).mean(1)
        factor = (chance @ pushed) / gradient
        show(f"groups of {n}: less {name}", factor[0].item(), "× the gradient")
        expected_factor = 1 - 1 / n if "group" in name else 1.0
        assert torch.allclose(factor, torch.full((3,), expected_factor, dtype=torch.float64), rtol=0, atol=1e-8)

# %% [markdown]
# ## The loss that is differentiated
#
# Optimisers go *down* a loss, and software differentiates losses. So one writes a loss whose slope is minus what we
# want: $-A \log \pi$ for each token, averaged. The advantages are constants: no slope is taken of them.
#
# This loss is a device for its slope. Its **value** means nothing. Below, a baseline changes the value, even its sign,
# and leaves the slope as it was. So do not watch this loss to see whether training goes well; watch the reward.

# %%
show("baseline", 0.0, 1.0, J_here, digits=2)
show("expected loss E[−(f − b) log π]", [float(pi @ reinforce(pi.log(), f - x)) for x in (0.0, 1.0, J_here)])
show("minus its slope in knob C", [float(gradient_by_scores(z, f - x)[2]) for x in (0.0, 1.0, J_here)])

# %% [markdown]
# In the library `policy_loss` does this for a batch. Every loss of this course comes down to one number $c$ per token:
# minus the slope of the loss is $\sum c_t s_t$. `score_coefficients` returns these numbers. With no correction, and the
# mean over all $N$ tokens of the batch, they are $c_t = A_t/N$: padding counts for nothing.

# %%
log_pi = torch.tensor([[0.5, 0.25, 0.5], [0.25, 0.5, 0.1]], dtype=torch.float64).log()
tiny = TokenBatch(
    response_mask=torch.tensor([[True, True, True], [True, False, False]]),
    rollout_log_probs=log_pi,
    old_log_probs=log_pi,
    advantages=torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]], dtype=torch.float64),
)
plain = CorrectionConfig(loss_type="gpg")  # verl's name for this loss
c = score_coefficients(log_pi, tiny, correct(tiny, plain), plain, LossConfig())
value, _ = policy_loss(log_pi, tiny, correct(tiny, plain), plain, LossConfig())

show("c of the first answer", c[0])
show("c of the second, with two of padding", c[1])
assert torch.allclose(c, tiny.tensors()["advantages"] / 4, rtol=0, atol=1e-15)
assert torch.allclose(
    value, masked_mean(reinforce(log_pi, tiny.tensors()["advantages"]), tiny.response_mask), rtol=0, atol=1e-15
)

# %% [markdown]
# ## The same on a recorded run
#
# `control_fp32` is a run whose engine computes in 32 bits, as the trainer does: all its ratios are within 0.0001 of 1,
# so the tokens really come from the policy that is differentiated. It trains on eighty sums: `12+35=` must become
# `47`. An answer earns 1 if it is right, and 0 if not.
#
# This model has 1.3 million knobs, so the score of one token is a list of 1.3 million slopes. A run cannot store that
# for every token. It stores a **sketch**: 96 numbers per token, each the sum of all slopes times random numbers. The
# same random numbers are used for all tokens. Sums and averages of scores can be taken on their sketches, and lengths
# come out right on average.


# %%
def load(name):
    """The last sketched step of a run, in float64: batch, sketch."""
    run = runs.find_run(name)
    step = last_sketch(run)
    batch, sketch = runs.read_step(run, step).batch, read_sketch(run, step)
    pair = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return batch.replace(**pair), replace(sketch, scores=sketch.scores.double())


SUM = LossConfig(loss_agg_mode="seq-mean-token-sum")  # add up the tokens of an answer, then average over answers


def pushes(batch, sketch, advantages):
    """Σ_t A_t s_t of each answer, (B, K); advantages (B,) or (B, T)."""
    per_token = advantages.double().view(len(advantages), -1).expand(batch.response_mask.shape)
    return contributions(batch.replace(advantages=per_token), sketch, [CorrectionConfig()], SUM)[0].u


batch, sketch = load("control_fp32")
rewards = batch.tensors()["rewards"].double()
answer_scores = pushes(batch, sketch, torch.ones(len(rewards)))

assert correct(batch, CorrectionConfig()).log_ratio.abs().max() < 1e-4

show("answers", len(rewards))
show("tokens", int(batch.response_mask.sum()))
show("right answers", float(rewards.mean()))
show("numbers per sketched score", sketch.directions)

# %% [markdown]
# ### Check 3, with data: do the scores average to zero?
#
# We derived that they must, and everything about baselines hangs on it. There are two ways to look.
#
# *Exactly.* At 16 places of this step the run recorded the probability and the score of **every** token that could have
# come next. So the average over the next token is a sum.
#
# *From draws.* The average score of the 256 answers has 96 numbers. Each has a standard error; chance alone should
# leave about 92 of 96 within two of them. And chance alone gives the average a certain length, which we can compute.

# %%
places = sketch.next_tokens
assert places is not None
p_next, s_next = places.log_probs.double().exp(), places.scores.double()  # (P, V) and (P, V, K)


def length_of_average(probabilities):
    """‖Σ_a probability · s_a‖ at every place, over a typical ‖s‖ there."""
    typical = (p_next * s_next.square().sum(-1)).sum(-1).sqrt()
    return (probabilities[..., None] * s_next).sum(1).norm(dim=-1) / typical


show("tokens that could come next, at", *p_next.shape[::-1], "places")
show("‖E[s]‖ below 0.001 of a typical ‖s‖", bool((length_of_average(p_next) < 1e-3).all()))
assert (length_of_average(p_next) < 1e-3).all()


def against_chance(gradients):
    """Of the average of (B, K): its length, what chance alone gives it, numbers within 2 errors, the quotient."""
    average, covariance = gradients.mean(0), gradients.T.cov() / len(gradients)
    within = int((average.abs() < 2 * covariance.diag().sqrt()).sum())
    share = average.square().sum() / covariance.trace()
    spread = (2 * covariance.square().sum()).sqrt() / covariance.trace()  # of that share, by chance
    return float(average.norm()), float(covariance.trace().sqrt()), within, float(share), float(spread)


length, by_chance, within, share, spread = against_chance(answer_scores)
show("length of the average score", length, digits=2)
show("length that chance alone gives", by_chance, digits=2)
show("(one over the other)²", share, "1 ±", spread, digits=2)
show("numbers within two standard errors", within, "of", len(answer_scores.T))
assert abs(share - 1) < 2 * spread

# %% [markdown]
# Both agree: the average score is zero, and what is left over of it in the sample is what chance gives.
#
# And the gradient itself? `report` compares the batch with 8,192 other answers, drawn at the same weights for this
# purpose only. Read the number: one standard deviation of the noise in this step, over the length of the true gradient.

# %%
run = runs.find_run("control_fp32")
step = last_sketch(run)
updated = updated_batch(run, step)
of_step = report(updated, read_sketch(run, step), CorrectionConfig(), batch_sizes=[len(updated.response_mask)])
(noise,) = of_step.noise
show("noise of a step / gradient", noise.value, f"[{noise.low:.1f}, {noise.high:.1f}]", digits=1)
assert noise.low > 2

# %% [markdown]
# A step of this training is mostly noise: about five times as long as the gradient that it estimates. It works
# nevertheless, because the gradients of many steps add up and their noises cancel. That is why this course
# cares about variance as much as about bias.

# %% [markdown]
# ## Predict, then reveal
#
# In this step 84 % of the answers are right. **Write down a guess:**
#
# 1. We take the mean reward, 0.84, off all rewards. Does the noise of the gradient fall or rise, and by how much?
# 2. Instead we add 10 to every reward: a right answer earns 11, a wrong one 10. What happens to the average gradient,
#    and to its noise?
# 3. Whose scores are longer: those of right answers, or those of wrong ones?
#
# Then run the cell.


# %%
def variance_of(advantages):
    """Added up over all knobs, for one answer."""
    return float(pushes(batch, sketch, advantages).var(0).sum())


squared_lengths = answer_scores.square().sum(-1)
best_on_run = float((rewards * squared_lengths).sum() / squared_lengths.sum())

show("no baseline: variance", variance_of(rewards), digits=0)
show("mean reward taken off", variance_of(rewards - rewards.mean()), digits=0)
show("critic's prediction taken off", variance_of(batch.advantages), digits=0)
show("best baseline taken off", variance_of(rewards - best_on_run), digits=0)
show("10 added", variance_of(rewards + 10), digits=0)
show("best baseline", best_on_run, digits=2)
show("average ‖s‖² of right answers", float(squared_lengths[rewards == 1].mean()), digits=0)
show("average ‖s‖² of wrong answers", float(squared_lengths[rewards == 0].mean()), digits=0)

# %% [markdown]
# If you guessed that the noise falls, you are in good company: that is what baselines are for. Here taking off the mean
# made it **thirty times as large**. Is that chance? The bootstrap tells: draw 256 answers from these 256, with
# repetition, compute the quotient again, and do so a thousand times.


# %%
def interval(samples):
    """Where 95 % of the resamples lie; the first is the sample itself."""
    return torch.quantile(samples[1:], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()


def resample(batch, sketch):
    """Variance with the mean reward taken off over that with none, and the best baseline: (1001,) each."""
    f = batch.tensors()["rewards"].double()
    s = pushes(batch, sketch, torch.ones(len(f)))
    n = s.square().sum(-1)
    share = resampled(len(f), 1000, 1).double() / len(f)  # (1001, B): how often each answer is drawn, over B

    def variance(baseline):
        """Of (f − b) s, each resample with its own b."""
        squares = share @ (f.square() * n) - 2 * baseline * (share @ (f * n)) + baseline.square() * (share @ n)
        return squares - (share @ (f[:, None] * s) - baseline[:, None] * (share @ s)).square().sum(-1)

    return variance(share @ f) / variance(torch.zeros(len(share)).double()), (share @ (f * n)) / (share @ n)


for name in ("control_fp32", "bf16"):
    quotient, best_baselines = resample(*load(name))
    low, high = interval(quotient)
    show(f"{name}: with the mean / without", float(quotient[0]), f"[{low:.1f}, {high:.1f}]", digits=2)
    show("best baseline", float(best_baselines[0]), "[{:.2f}, {:.2f}]".format(*interval(best_baselines)), digits=2)
    assert interval(best_baselines)[1] < float(load(name)[0].tensors()["rewards"].mean())
    assert name == "bf16" or low > 1
# %% [markdown]
# It is no chance: the whole interval lies above 1. (In `bf16`, where 95 % of the answers are right, it more than
# doubled; but twelve wrong answers decide it, and the interval says that they are too few to be sure.)
#
# The formula for $b^*$ says why. A score is long where the policy was not sure
# of what it drew. This model is sure of its right answers
# and unsure of its wrong ones, whose $\|s\|^2$ is two hundred times as large. Without a baseline a wrong answer
# counts 0, and its long score drops out. With the mean it counts −0.84, and brings its noise along. The best baseline
# counts rewards by $\|s\|^2$, that is, mostly those of wrong answers, so it is small.
#
# **Look for** the same parabola as before. Left dotted line: the best baseline. Right: the mean reward. Adding 10 to
# all rewards is the same picture 10 to the left: the noise becomes over four thousand times as large, and the
# average stays.

# %%
run_grid = [0.05 * number for number in range(-4, 21)]
picture(
    curves(
        run_grid,
        {"variance of (f − b) s": [variance_of(rewards - x) for x in run_grid]},
        x_name="baseline b",
        y_name="variance",
        marks=[best_on_run, float(rewards.mean())],
    )
)

# %% [markdown]
# So why does everybody subtract the mean? Because the zero of a reward is arbitrary. Somebody may pay 11 and 10 for
# the same answers. Taking off the mean makes both the same. It is insurance, not the optimum: here it costs a factor of
# thirty, and saves one of over a hundred where 10 was added. Here the zero was well chosen by luck: wrong answers earn
# exactly 0, close to the best baseline.
#
# ## Where the mismatch comes in
#
# Now the run `kv_fp8_e5m2` of lesson 00: the engine draws from $q$, and the trainer differentiates $p$. Then scores
# need not average to zero any more: $\sum_a q_a s_a \ne 0$. But counted by the ratio they do,
# $\sum_a q_a \frac{p_a}{q_a} s_a = \sum_a p_a s_a = 0$. At the 16 recorded places of this run we know both $p$ and $q$
# of all next tokens.
#
# **Look for** the gap between the two lines; the axis is logarithmic. The lower line is an exact 0, but for the 16
# bits in which scores are stored.

# %%
gap_batch, gap_sketch = load("kv_fp8_e5m2")
places = gap_sketch.next_tokens
assert places is not None
assert places.rollout_log_probs is not None
p_next, q_next = places.log_probs.double().exp(), places.rollout_log_probs.double().exp()
s_next = places.scores.double()
counted_once, counted_by_ratio = length_of_average(q_next), length_of_average(q_next * (p_next / q_next))

picture(
    curves(
        list(range(1, 17)),
        {"counted once": counted_once.tolist(), "counted by p/q": counted_by_ratio.tolist()},
        x_name="place",
        y_name="‖average score‖ / typical ‖s‖",
        log="y",
    )
)
show("largest, counted once", float(counted_once.max()), digits=3)
show("places above 0.01, counted once", int((counted_once > 0.01).sum()), "of", len(counted_once))
show("all below 0.001, counted by p/q", bool((counted_by_ratio < 1e-3).all()))
assert (counted_by_ratio < 1e-3).all()

# %% [markdown]
# This is the mismatch, seen by the gradient. If the engine's tokens are counted once, every baseline $b$ adds
# $-b\, \mathbb{E}_q[s]$ to the gradient, a push that has nothing to do with rewards. And it can hide: here is the
# average score of the 128 sampled answers.

# %%
gap_scores = pushes(gap_batch, gap_sketch, torch.ones(len(gap_batch.response_mask)))
length, by_chance, within, share, spread = against_chance(gap_scores)
show("length of the average score", length, digits=1)
show("length that chance alone gives", by_chance, digits=1)
show("(one over the other)²", share, "1 ±", spread, digits=2)

# %% [markdown]
# It cannot be told from chance. The push is there, as the exact sums show, but 128 answers are too few to see it. What
# the ratio repairs, and what it costs, is the subject of lesson 02.

# %% [markdown]
# ## Exercise 1: the score of a softmax
#
# *4 minutes.* For each row of logits and the action that was drawn, return the score in every knob:
# `(B, V)` and `(B,)` → `(B, V)`.
#
# <details><summary>Hint 1</summary>The score is in the second line of the equation's explanation: 1 at the drawn
# action, and the probabilities taken off everywhere.</details>
# <details><summary>Hint 2</summary><code>torch.nn.functional.one_hot(action, V)</code> gives the ones.</details>


# %%
def softmax_score(logits, action):
    raise NotImplementedError("exercise 1: write softmax_score, then run this cell and the next.")


# %% tags=["check"]
check(softmax_score, SOFTMAX_SCORE)


# %% tags=["solution", "hide-input"]
def softmax_score_solution(logits, action):
    return torch.nn.functional.one_hot(action, logits.shape[-1]) - logits.softmax(-1)


check(softmax_score_solution, SOFTMAX_SCORE)

# %% [markdown]
# ## Exercise 2: the baseline of least noise
#
# *4 minutes.* Rewards `(B,)` and scores `(B, K)` of $B$ drawn answers are given. Return the estimate of $b^*$, a
# number.
#
# <details><summary>Hint 1</summary>An average of rewards in which each counts by the squared length of its
# score.</details>
# <details><summary>Hint 2</summary>Both averages in the formula have the same number of answers, so sums will
# do.</details>


# %%
def best_baseline(reward, scores):
    raise NotImplementedError("exercise 2: write best_baseline, then run this cell and the next.")


# %% tags=["check"]
check(best_baseline, BEST_BASELINE)


# %% tags=["solution", "hide-input"]
def best_baseline_solution(reward, scores):
    lengths = scores.square().sum(-1)
    return (reward * lengths).sum() / lengths.sum()


check(best_baseline_solution, BEST_BASELINE)
assert abs(best_baseline_solution(rewards, answer_scores) - best_on_run) < 1e-12

# %% [markdown]
# ## Exercise 3: the loss of a batch
#
# *4 minutes.* Write the loss whose slope is the policy gradient: the mean of $-A \log \pi$ over all **real** tokens.
# All three arguments are `(B, T)`; padding may hold anything.
#
# <details><summary>Hint 1</summary>Select before you multiply: a nan on padding makes everything nan.</details>
# <details><summary>Hint 2</summary><code>x[mask]</code> is a flat list of the real tokens.</details>


# %%
def token_mean_loss(log_probs, advantages, mask):
    raise NotImplementedError("exercise 3: write token_mean_loss, then run this cell and the next.")


# %% tags=["check"]
check(token_mean_loss, TOKEN_MEAN_LOSS)


# %% tags=["solution", "hide-input"]
def token_mean_loss_solution(log_probs, advantages, mask):
    return reinforce(log_probs[mask], advantages[mask]).mean()


check(token_mean_loss_solution, TOKEN_MEAN_LOSS)

# %% [markdown]
# ## mini.py, piece 1: the advantage
#
# *5 minutes.* In five lessons you write a corrected training loop of some sixty lines, `mini.py`, and train a small
# network with it in lesson 13. The task is in `count_on.py`: 8 prompts, answers of 12 tokens. Keep what you write.
#
# The first piece is called `advantages` there: `rewards` holds `n` answers to each of `P` prompts, `(P, n)`. Return
# each reward less the mean of the **others** of its prompt. It is a baseline that does not know the answer, so it costs
# no bias.
#
# <details><summary>Hint 1</summary>The sum of the others is the sum of the row less the reward itself.</details>
# <details><summary>Hint 2</summary><code>rewards.sum(1, keepdim=True)</code>.</details>


# %%
def advantages_of(rewards):
    raise NotImplementedError("mini.py: write advantages_of, then run this cell and the next.")


# %% tags=["check"]
check(advantages_of, ADVANTAGES)


# %% tags=["solution", "hide-input"]
def advantages_of_solution(rewards):
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return rewards - others


check(advantages_of_solution, ADVANTAGES)

# %% [markdown]
# ## Check yourself
#
# **1. Action A has probability ¼, was drawn, and earned 4. Without a baseline, what does this draw do to knob B, whose
# action also has probability ¼?**
#
# <details><summary>Nothing: B was not drawn.</summary>No. Probabilities add up to 1: making A more probable takes from
# all others. The score of A in knob B is 0 − ¼.</details>
# <details><summary>It pushes B down by 1.</summary>Yes. Reward 4 times the score −¼.</details>
# <details><summary>It pushes B up by 1.</summary>No. The sign: the score is 1 minus the probability on the drawn
# action, and minus the probability on every other.</details>
#
# **2. The loss fell from 0.3 to −0.2 during a step of training. What do you know?**
#
# <details><summary>The policy got better.</summary>No. The value of −A log π moves with the advantages and with which
# tokens were drawn. A baseline alone can turn its sign.</details>
# <details><summary>The policy got worse, because a loss must not be negative.</summary>No. Advantages have both signs,
# so the loss has too.</details>
# <details><summary>Nothing about the reward.</summary>Yes. Only its slope, at the weights that drew the tokens, means
# something.</details>
#
# **3. Which of these may be taken off the reward of an answer when token 5 is pushed?**
#
# <details><summary>A critic's prediction from the first 5 tokens.</summary>No. It has seen token 5. Then its average
# with the score of token 5 is not 0, as in the world of 15 answers.</details>
# <details><summary>A critic's prediction from the first 4 tokens.</summary>Yes. Given these, the score of token 5
# averages to 0, and the prediction is a constant.</details>
# <details><summary>The answer's own reward.</summary>No. Then nothing is left: the advantage is always 0.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open the same step:
#
# - [the gradient of control_fp32](http://localhost:8501/gradient?run=control_fp32&step=latest&preset=disabled): its
#   noise beside its bias, which here is none;
# - [the gradient of kv_fp8_e5m2](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=latest&preset=disabled), for
#   contrast;
# - [the course of control_fp32](http://localhost:8501/training?run=control_fp32): the reward rises although each single
#   step is mostly noise.
#
# ## Pitfalls
#
# - **A slope through the advantage.** Advantages are constants. If a critic or a normalisation inside the graph is
#   differentiated along, the gradient is another one.
# - **A baseline that has seen the token** is no baseline. The mean of the group has, a little: it shrinks the gradient
#   by $1 - 1/n$.
# - **Dividing by the standard deviation of the group** is more than a baseline. Prompts whose answers hardly differ get
#   a louder voice, and the average is another one.
# - **Reading the loss.** Watch the reward.
# - **Tokens from somewhere else.** $\mathbb{E}_\pi$ means drawn from $\pi$, the policy that is differentiated. With the
#   tokens of an engine that differs, neither the mean nor the freedom of the baseline holds.
#
# ## References
#
# 1. OpenAI Spinning Up, [Intro to Policy
#    Optimization](https://spinningup.openai.com/en/latest/spinningup/rl_intro3.html): the same derivation with states
#    and actions of any kind.
# 2. Arash Ahmadian et al., [Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
#    LLMs](https://arxiv.org/abs/2402.14740), 2024: leave-one-out for language models.
# 3. [Stable Asynchrony: variance-controlled off-policy RL for LLMs](https://arxiv.org/abs/2602.17616), 2026: the
#    baseline of least variance, put to use.
