# %% [markdown]
# # 02 · A value is not a gradient (k1, k2, k3, k3+)
#
# **Claim.** As values, k1 and k3 average to the KL, and k2 nearly does if the policies are close. As losses they
# differ: on average, k1 has the gradient 0, k2 has the gradient of the KL that one wants to make small, and k3 has the
# gradient of the KL in the other direction. (KL says how far apart two policies are; k1, k2 and k3 estimate it.)
#
# *50 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00 and 01, and you need to know what
# a derivative is. All letters are in [Notation](NOTATION.md). Next: [lesson 03](03_cap.ipynb).
#
# At the end you can
#
# - derive the gradient from which every method of this course starts;
# - compute k1, k2 and k3 of a token, and say what each estimates;
# - explain why a good estimate of a number can have a wrong gradient;
# - say which estimator to use as a penalty in the loss.

# %% tags=["hide-input"]
import math

import sympy
import torch
from curves import curves
from exercises.kl_estimators import STRAIGHT_THROUGH
from exercises.policy_gradient import SOFTMAX_SCORE
from sentences import below, reveal, say
from show import moving_picture, picture, show

from rlcorr.figures.canvas import ACROSS, REJECTED, axis, figure, line
from rlcorr.gradients import toy
from rlcorr.gradients.kl_losses import kl_gradients, kl_report
from rlcorr.losses.advantages import returns_to_go
from rlcorr.losses.kl import kl_penalty
from rlcorr.records import runs, sketch_files
from rlcorr.teaching.check import check

torch.set_num_threads(1)

# %% [markdown]
# ## First the gradient: three actions, by hand
#
# These are the actions X, Y, Z of lesson 00. The trainer's probabilities are ¼, ¼, ½, and the rewards $R$ are 1, 0, 4.
# So the average reward is $J$ = ¼·1 + ¼·0 + ½·4 = 2.25. Training should increase $J$. In this lesson one policy, π,
# both samples and is trained.
#
# Probabilities must add up to 1, so we cannot change one of them alone. Instead, a model computes one number per
# action, the **logit** $z$, which may be any number. The **softmax** turns logits into probabilities:
#
# $$ \pi_a = \frac{e^{z_a}}{e^{z_X} + e^{z_Y} + e^{z_Z}}, \qquad J = \sum_a \pi_a\, R_a . $$
#
# The logits are what training changes here. Change one logit a little, and $J$ changes a little. The change of $J$ per
# change of the logit is a slope. The three slopes together are the **gradient** $\nabla J$. The cell measures them.

# %%
z = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
R = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
pi = z.softmax(-1)


def average_reward(z):
    return (z.softmax(-1) * R).sum()


nudges = 1e-5 * torch.eye(3, dtype=torch.float64)  # one logit at a time, a little
slopes = [float(average_reward(z + nudge) - average_reward(z - nudge)) / 2e-5 for nudge in nudges]

show("action", "X", "Y", "Z")
show("slope of the average reward", slopes)
show("probability × (reward − average)", pi * (R - average_reward(z)))

# %% [markdown]
# The two lines agree. So the slope for an action is: how often the action is taken, times how much more than the
# average it earns.
#
# ## The gradient that one can sample
#
# A language model has far too many answers to list. We can only **sample** some, and look at their rewards. A sample is
# enough to estimate an average. But how can a sample estimate a slope? If we change a logit, the probabilities change,
# but the rewards of the answers that we have stay the same.
#
# A logarithm solves this. The derivative of a logarithm is $\nabla \log \pi = \nabla \pi / \pi$. Multiply by $\pi$:
# $\nabla \pi = \pi\, \nabla \log \pi$. Put this into $\nabla J$. Now every term has a probability in front, so the sum
# is again an average:
#
# $$ \nabla J = \sum_a R_a \nabla \pi_a = \sum_a \pi_a\, R_a \nabla \log \pi_a = \mathbb{E}_\pi[\,R\, s\,],
# \qquad s = \nabla \log \pi . $$
#
# The vector $s$ is the **score** of an action. It is the direction that makes this action more probable. For a softmax,
# $\log \pi_a = z_a - \log \sum_j e^{z_j}$. The derivative of the sum's logarithm by $z_j$ is $\pi_j$. So the derivative
# of $\log \pi_a$ by $z_j$ is $1 - \pi_j$ for $j=a$, and $-\pi_j$ for every other $j$. (This is the push of lesson 00.)
#
# ### Four samples, by hand
#
# We take X, Y, Z and Z, as often as their probabilities say. The table shows each score's first number:
#
# | logit of X | X | Y | Z | Z | average |
# |---|---|---|---|---|---|
# | score | ¾ | −¼ | −¼ | −¼ | **0** |
# | reward | 1 | 0 | 4 | 4 | 2.25 |
# | reward × score | ¾ | 0 | −1 | −1 | **−0.3125** |
#
# The average, −0.3125, is the slope that the first cell measured. Each sample raises the probability of its own action
# in proportion to its reward, and lowers all others.
#
# ## A penalty, and its purpose
#
# Training for reward can move a policy $\pi$ far away from where it started. A penalty keeps it near a **reference**,
# usually the model before training. A **Kullback–Leibler divergence** (**KL**) measures the distance: 0 for equal
# policies, else positive. There are two:
#
# $$ \mathrm{KL}(\pi\|\mathrm{ref})=\sum_a\pi(a)\,\log\frac{\pi(a)}{\mathrm{ref}(a)},\qquad
# \mathrm{KL}(\mathrm{ref}\|\pi)=\sum_a\mathrm{ref}(a)\,\log\frac{\mathrm{ref}(a)}{\pi(a)} . $$
#
# The first one, the **reverse KL**, averages over the tokens that $\pi$ samples. It is what people mean by a KL
# penalty; this lesson calls it **the KL that is meant**. The second one, the **forward KL**, averages over the tokens
# that the reference would sample.
#
# A training program does not compute these sums over the whole vocabulary at every position. It has only the token
# that was sampled there, and its two log-probs. Let $\delta=\log\pi-\log\mathrm{ref}$ be their difference. Schulman's
# three estimators are functions of $\delta$. In the library they are `kl_penalty(log π, log ref, name)`:
#
# | name | value for one token | name in verl |
# |---|---|---|
# | k1 | $\delta$ | kl |
# | k2 | $\tfrac12\delta^2$ | mse |
# | k3 | $e^{-\delta}-1+\delta$ | low_var_kl |
#
# **Whom this concerns.** If your loss has a KL term to a reference model, it is probably k3: in verl `kl_loss_type` is
# `low_var_kl` by default, and TRL's GRPO takes k3 as soon as `beta` is not 0. [A comment on verl's pull request
# 2953](https://github.com/verl-project/verl/pull/2953) reported that k3's gradient is not the one that is meant. This
# led to the repair below (`low_var_kl+`; it works [since pull request
# 6058](https://github.com/verl-project/verl/pull/6058)).
#
# The policy that **sampled** is always in the denominator of the ratio. Here $\pi$ samples, so the ratio is
# $e^{-\delta}=\mathrm{ref}/\pi$. (In lesson 08, $d=-\delta$.)
#
# ## An example to compute by hand: three actions
#
# The policy $\pi$ samples X, Y and Z with the probabilities 0.5, 0.4 and 0.1. The reference has 0.4, 0.1 and 0.5. So
# $\delta$ is $\log(0.5/0.4) = 0.22$ for X, 1.39 for Y and −1.61 for Z. The values of k3 are 0.02, 0.64 and 2.39. Their
# average under $\pi$ is 0.5 · 0.02 + 0.4 · 0.64 + 0.1 · 2.39 = 0.505. The average of $\delta$ itself is the same, 0.5 ·
# 0.22 + 0.4 · 1.39 − 0.1 · 1.61 = 0.505, and this is $\mathrm{KL}(\pi\|\mathrm{ref})$ by definition.
#
# **Think first:** which actions must become less probable, so that $\pi$ comes closer to the reference?

# %%
pi = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
ref = torch.tensor([0.4, 0.1, 0.5], dtype=torch.float64)


def mean_and_spread(probability, value):
    """Mean and standard deviation of the value of one sample, both exact."""
    mean = (probability * value).sum(-1)
    return mean, ((probability * value.square()).sum(-1) - mean.square()).clamp(min=0).sqrt()


show("", "X", "Y", "Z", "mean", "st. dev.")
for name in ("k1", "k2", "k3"):
    value = kl_penalty(pi.log(), ref.log(), name)
    show(name, value, *mean_and_spread(pi, value), digits=3)

# %% [markdown]
# ## The equation: as values
#
# Over tokens that $\pi$ samples, the ratios $\mathrm{ref}/\pi = e^{-\delta}$ average to 1 (lesson 00). So
# $\mathbb{E}_\pi[e^{-\delta}-1]=0$, and k3 has the same mean as k1. The mean of k1 is the KL by definition. Both are
# **unbiased**.
#
# If $\delta$ is small, $e^{-\delta}-1+\delta=\tfrac12\delta^2-\tfrac16\delta^3+\dots$, so k2 is nearly equal to k3.
#
# ## The equation: as losses
#
# A program takes the mean of $k(\delta)$ over the sampled tokens and calls `backward()`; here $k$ is one of the three
# functions. Autograd differentiates $k(\delta)$ of each token. It does not differentiate the sampling: for autograd the
# tokens are given. Since $\nabla\delta=\nabla\log\pi=s$, the score, the program computes
# $\mathbb{E}_\pi[k'(\delta)\,s]$.
#
# The true gradient of the mean has a second part, because a change of $\pi$ also changes which tokens are sampled
# (this part is $\nabla J = \mathbb{E}_\pi[R\,s]$ with $k$ in place of $R$):
#
# $$ \nabla\,\mathbb{E}_\pi[k(\delta)]=\mathbb{E}_\pi[k'(\delta)\,s]+\mathbb{E}_\pi[k(\delta)\,s] . $$
#
# The program leaves out the second part. So it computes the gradient of something other than the mean of $k$:
#
# | loss | $k'$ | $\mathbb{E}_\pi[k'\,s]$ is the gradient of |
# |---|---|---|
# | k1 | 1 | nothing: $\mathbb{E}_\pi[s]=0$ |
# | k2 | $\delta$ | $\mathrm{KL}(\pi\|\mathrm{ref})$ |
# | k3 | $1-e^{-\delta}$ | $\mathrm{KL}(\mathrm{ref}\|\pi)$ |
#
# Why the second row? The gradient of $\mathrm{KL}(\pi\|\mathrm{ref})=\mathbb{E}_\pi[\delta]$ has the two parts of the
# equation above, with $k=\delta$. The first is $\mathbb{E}_\pi[s]=\sum_a\nabla\pi(a)=\nabla 1=0$, so only
# $\mathbb{E}_\pi[\delta\,s]$ is left. Why the last row? Because $\mathbb{E}_\pi[s] = 0$, only the second term of $k'$
# is left: $-\mathbb{E}_\pi[e^{-\delta} s] = -\sum_a\mathrm{ref}(a)\,\nabla\log\pi(a)$. The mean of $-\log\pi$ over
# tokens of the reference has this gradient, and so has $\mathrm{KL}(\mathrm{ref}\|\pi)$: they differ only by a
# constant. In the logits this gradient is $\pi-\mathrm{ref}$.
#
# The next cell computes these gradients in the logits. A training step moves against the gradient of a loss, so a
# positive number makes an action less probable.


# %%
def expected_gradient(estimator, counted=pi):
    """Σ counted · ∇k in the logits of π: how often each action is sampled, times its weight."""
    leaf = pi.log().requires_grad_()
    log_pi = leaf.log_softmax(-1)
    return torch.autograd.grad((counted * kl_penalty(log_pi, ref.log(), estimator)).sum(), leaf)[0]


show("as a loss, in the logits", "X", "Y", "Z")
for name in ("k1", "k2", "k3", "k3+"):
    show(name, expected_gradient(name), digits=3)

# %% [markdown]
# k2 and k3 agree about Y and Z: Y must become less probable and Z more probable. Look at X. The row of k2 is the
# gradient of the KL that is meant. For the logit of action $a$ it is $\pi(a)\,(\delta_a-\mathrm{KL})$: the
# first section's formula with $\delta$ as reward.
#
# By hand: for X, $\delta = 0.22$ is below the KL, 0.505, so the penalty makes X **more** probable. k3 makes X **less**
# probable, because $\pi-\mathrm{ref}$ is 0.1 for it.
#
# So as values k1 and k3 have the same mean; as losses k2 and k3 differ, for X even in the sign.
#
# `k3+` is the repair, called **straight-through**: its value is k3, and its gradient is that of k2. (As part of
# the reward k1 is right, because there it multiplies the score: lesson 09.)
#
# ## Predict, then reveal
#
# Nine actions are arranged in a row. The probabilities of the reference have two hills, a larger one on the left and a
# smaller one on the right. The policy has one hill of fixed width, and only its position can change. It starts near the
# smaller hill of the reference. The penalty is the whole loss: there is no reward. We follow its gradient with exact
# averages. **Write down a guess:**
#
# 1. With each of the losses k1, k2, k3 and k3+: does the policy move to the top of the near hill, move away from it, or
#    stay where it is?
# 2. While the policy follows the gradient of k3: does the value of k3 fall?
#
# Then **move the slider** over the steps. On the right are the values of both losses, as on a dashboard. **Look for**
# the hill to which each policy moves, and for the direction of the two lines.

# %%
place = torch.arange(-4, 5, dtype=torch.float64)
two_hills = (0.6 * (-((place + 2) ** 2) / 2).softmax(-1) + 0.4 * (-((place - 2) ** 2) / 2).softmax(-1)).log()
policies, values_of = {}, {}
for name in ("k1", "k2", "k3", "k3+"):
    middle = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    policies[name], values_of[name] = [], []
    for _ in range(300):
        log_pi = (-((place - middle) ** 2) / 2).log_softmax(-1)
        loss = (log_pi.detach().exp() * kl_penalty(log_pi, two_hills, name)).sum()
        (slope,) = torch.autograd.grad(loss, middle)
        middle = (middle - 0.01 * slope).detach().requires_grad_()
        policies[name].append(log_pi.detach().exp())
        values_of[name].append(float(loss.detach()))
    show(f"{name}: position, loss before, after", float(middle.detach()), values_of[name][0], values_of[name][-1])

# %% tags=["hide-input"]
COLOURS = {"reference": REJECTED, "k2": ACROSS[0], "k3": ACROSS[1]}
RIGHT = {"xaxis": "x2", "yaxis": "y2"}
AXES_ON_THE_RIGHT = {
    "xaxis2": axis({"title_text": "step", "anchor": "y2", "range": [0, 300], "domain": [0.66, 1]}),
    "yaxis2": axis({"title_text": "value of the loss", "anchor": "x2", "range": [0, 1.1]}),
}


def after(step):
    """Draw reference and policies after this step, and next to them the value of each loss up to it."""
    shapes = {"reference": two_hills.exp()} | {name: policies[name][step - 1] for name in ("k2", "k3")}
    steps = list(range(1, step + 1))
    traces = [line(name, place.tolist(), y.tolist(), COLOURS[name], width=2.5) for name, y in shapes.items()]
    traces += [
        line(f"value of {name}", steps, values_of[name][:step], COLOURS[name], width=2.5, dash="dot", **RIGHT)
        for name in ("k2", "k3")
    ]
    x, y = {"title_text": "action", "domain": [0, 0.52]}, {"title_text": "probability", "range": [0, 0.45]}
    return figure(traces, height=340, x=x, y=y, legend=True).update_layout(AXES_ON_THE_RIGHT)


STEPS = (1, 25, 50, 75, 100, 125, 150, 175, 200, 250, 300)
moving_picture("step", {str(step): after(step) for step in STEPS}, "300")
assert values_of["k3"][-1] > values_of["k3"][0]
assert values_of["k2"][-1] < values_of["k2"][0]
assert torch.allclose(policies["k2"][-1], policies["k3+"][-1], rtol=0, atol=1e-6)
reveal("""
    **1.** With k1 the policy stays where it is. With k2 and k3+ it moves to the near hill. The reverse KL,
    $\\mathrm{KL}(\\pi\\|\\mathrm{ref})$, only asks that $\\pi$ samples nothing that the reference would not sample.
    This is called **mode seeking**. With k3 it moves away, to a position between the hills. The forward KL,
    $\\mathrm{KL}(\\mathrm{ref}\\|\\pi)$, asks that $\\pi$ can sample everything that the reference would sample.
    This is called **mass covering**.
    """)
reveal(f"""
    **2.** No: the value of k3 **rises** while the program minimises it, from {values_of["k3"][0]:.2f} to
    {max(values_of["k3"]):.2f}, and it ends at {values_of["k3"][-1]:.2f}. The value estimates the reverse KL, and the
    gradient makes the forward KL smaller. So a KL term that grows on the dashboard need not mean that its coefficient
    is too small.
    """)

# %% [markdown]
# ## On a real model
#
# SmolLM2-135M learns sums; the reference is the model before training. At some positions we average exactly over all
# next tokens. The picture has the angle between k3's gradient and the one that is meant, at each position, sorted. (For
# k2 the angle is 0.) **Look for** the positions at which k3 points far aside.


# %% tags=["hide-input"]
def positions(run_name):
    """Return what is recorded at the positions whose next tokens are all known."""
    run = runs.find_run(run_name)
    sketch = sketch_files.read_sketch(run, sketch_files.last_sketch(run))
    recorded = sketch.next_tokens or sketch.kl_gradients
    assert recorded is not None
    return recorded


angles, pulls = {}, {}
for updates, name in ((13, "smol_sketch_bf16"), (19, "smol_sketch_stale_6")):
    meant, _, of_k3 = kl_gradients(positions(name), "k3")
    units = [torch.nn.functional.normalize(gradient.double(), dim=-1) for gradient in (of_k3, meant)]
    asides = 2 * torch.asin((units[0] - units[1]).norm(dim=-1) / 2)  # arccos of nearly 1 loses digits
    angles[f"after {updates} updates"] = sorted(torch.rad2deg(asides).tolist())
    one, right = kl_report(positions(name), "k3"), kl_report(positions(name), "k2")
    pulls[updates] = [math.degrees(math.acos(x)) for x in (one.cosine.value, one.cosine.high, one.cosine.low)]
    assert one.cosine.high < 0.99 < right.cosine.low
assert pulls[19][1] > pulls[13][2]
places = list(range(1, len(asides) + 1))
picture(curves(places, angles, x_name="recorded position, sorted", y_name="angle, degrees"))
say(f"""
    The mean gradient over all positions points further aside in the run with more updates: k3 by
    {pulls[13][0]:.0f}° [{pulls[13][1]:.0f}°, {pulls[13][2]:.0f}°] after 13 updates,
    {pulls[19][0]:.0f}° [{pulls[19][1]:.0f}°, {pulls[19][2]:.0f}°] after 19.
    """)

# %% [markdown]
# ## Exercise 1: the value of k3, the gradient of k2
#
# *7 minutes.* Return one penalty per token, whose **value** is that of k3 and whose **gradient** is that of k2.
# `log_probs` requires a gradient; `x.detach()` has the value of x and no gradient. The check compares the value and the
# gradient.
#
# <details><summary>Hint 1</summary>x − x.detach() has the value 0 and the gradient of x.</details>
# <details><summary>Hint 2</summary>Add to it something that has the right value and no gradient.</details>


# %%
def straight_through(log_probs, ref_log_probs):
    raise NotImplementedError("exercise 1: write straight_through, then run this cell and the next.")


# %% tags=["check"]
check(straight_through, STRAIGHT_THROUGH)


# %% tags=["solution", "hide-input"]
def straight_through_solution(log_probs, ref_log_probs):
    delta = log_probs - ref_log_probs
    k2, k3 = delta**2 / 2, torch.exp(-delta) - 1 + delta
    return k2 - k2.detach() + k3.detach()


check(straight_through_solution, STRAIGHT_THROUGH)

# %% [markdown]
# ## In the app
#
# After `make app`, open
#
# - [the KL losses of the real model](http://localhost:8501/kl?run=smol_sketch_stale_6&step=7), position by position;
# - [training with k2 and k3](http://localhost:8501/lab?lag=0&penalty=k2&penalty_coef=1) in the Lab.
#
# ## Pitfalls
#
# - **Names.** verl's `low_var_kl` in the loss is k3; its `low_var_kl+` is k3+.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: k1, k2, k3 as values.
# 2. [Rethinking KL Regularization in RLHF](https://arxiv.org/abs/2510.01555), 2025: k1 in the reward, k2 and k3 as
#    losses.
# 3. Shah et al., [A Comedy of Estimators](https://arxiv.org/abs/2512.21852), 2025: these estimators in training.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: the score of a softmax
#
# *4 minutes.* You get a row of logits per sample, `(B, V)`, and the index of the sampled action, `(B,)`. There
# are $B$ samples and $V$ possible actions. Return the score, one number per logit, `(B, V)`.
#
# <details><summary>Hint 1</summary>It is 1 at the sampled action and 0 elsewhere, minus the probabilities
# everywhere.</details>
# <details><summary>Hint 2</summary><code>torch.nn.functional.one_hot(action, V)</code> gives the ones.</details>


# %%
def softmax_score(logits, action):
    raise NotImplementedError("exercise 2: write softmax_score, then run this cell and the next.")


# %% tags=["check"]
check(softmax_score, SOFTMAX_SCORE)


# %% tags=["solution", "hide-input"]
def softmax_score_solution(logits, action):
    return torch.nn.functional.one_hot(action, logits.shape[-1]) - logits.softmax(-1)


check(softmax_score_solution, SOFTMAX_SCORE)

# %% [markdown]
# ### Check yourself
#
# **1. A trainer adds `0.001 * k1.mean()` to its loss, on tokens that its own policy has just sampled. What does the
# penalty do?**
#
# <details><summary>It holds the policy near the reference: k1 is unbiased.</summary>No. Its value is unbiased. Its
# gradient is the mean score, which is 0 on average.</details>
# <details><summary>On average nothing. In the reward it would have worked.</summary>Yes. There it multiplies the score,
# the product that a loss leaves out.</details>
# <details><summary>It pushes away from the reference, because k1 can be negative.</summary>No. The derivative of k1 is
# 1 on every token, and the reference does not occur in it.</details>
#
# **2. You change the loss from k2 to k3 and keep the coefficient. The logged KL hardly changes. Is it the same training
# run?**
#
# <details><summary>Yes: near the reference k2 and k3 agree.</summary>Near the reference they do, in the gradient too.
# But a policy that learns does not stay there.</details>
# <details><summary>No. Its gradient is now that of KL(ref‖π), and the logged value cannot show it.</summary>Yes. Value
# and gradient are two things.</details>
# <details><summary>No: k3 is biased.</summary>The value of k3 is unbiased. That of k2 is not.</details>
#
# **3. Each batch is used for four updates. The penalty is k2 in the loss. What is true of the fourth update?**
#
# <details><summary>k2 still has the gradient of KL(π‖ref): only log π and log ref occur in it.</summary>No. The average
# is over the tokens, and an older policy has sampled them.</details>
# <details><summary>It needs a weight: π divided by the policy that sampled.</summary>Yes: lesson 09.</details>
# <details><summary>k1 would be better there.</summary>No, it is the worst choice: off-policy it drives the policy away
# from the one that sampled the tokens.</details>

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. You do not need them to follow the lessons.

# %% [markdown]
# ### The noise of one token, from near to far
#
# Training moves $\pi$ away from the reference, here on twenty actions. The picture shows the standard deviation of each
# estimator for one token, divided by the KL itself. At a height of 1 the noise of one token is as large as the KL.
# **Look for** the KL above which k3 has more noise than k1.

# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(8)
logits, move = (torch.randn(20, dtype=torch.float64, generator=generator) for _ in range(2))
exact_kl, k2_share, noise = [], [], {name: [] for name in ("k1", "k2", "k3")}
for size in torch.logspace(-2, 0.9, 25, dtype=torch.float64):
    log_ref, log_pi = logits.log_softmax(-1), (logits + size * move).log_softmax(-1)
    exact_kl.append(float((log_pi.exp() * (log_pi - log_ref)).sum()))
    for name in noise:
        mean, spread = mean_and_spread(log_pi.exp(), kl_penalty(log_pi, log_ref, name))
        noise[name].append(float(spread) / exact_kl[-1])
        if name == "k2":
            k2_share.append(float(mean) / exact_kl[-1])
picture(curves(exact_kl, noise, x_name="KL(π‖ref), nats", y_name="standard deviation of one token / KL", log="xy"))
assert max(noise["k2"][0], noise["k3"][0]) < noise["k1"][0] / 10
assert noise["k3"][-1] > noise["k1"][-1] * 10
say(f"""
    Near the reference k2 and k3 have far less noise than k1. Far from it k3 has the most: $e^{{-\\delta}}$ grows
    without limit on a token that π has nearly given up. k2 has little noise on both sides, but it is biased. Its mean
    is {k2_share[0]:.2f} of the KL at the left end and {k2_share[-1]:.2f} at the right. """)

# %% [markdown]
# ### The table of losses, with symbols
#
# The cells prove the table of losses for three actions. Write $\pi_a=x_a/\sum x$ with $x=e^{\text{logit}}$. Then the
# derivative by a logit is $x\,\partial/\partial x$.

# %%
X = sympy.symbols("x_X x_Y x_Z", positive=True)
actions = range(3)
first, second = sympy.symbols("ref_X ref_Y", positive=True)
reference, pi_of = [first, second, 1 - first - second], [x / sum(X) for x in X]
log_pi_of = [sympy.log(x) - sympy.log(sum(X)) for x in X]
delta_of = [log_pi_of[a] - sympy.log(reference[a]) for a in actions]


def by_logit(f, j):
    return X[j] * sympy.diff(f, X[j])


def is_zero(f):
    return sympy.cancel(f) == 0


# %%
score = [[sympy.cancel(by_logit(log_pi_of[a], j)) for j in actions] for a in actions]
ratio_of = [reference[a] / pi_of[a] for a in actions]
values = {
    "k1": delta_of,
    "k2": [x**2 / 2 for x in delta_of],
    "k3": [y - 1 + x for x, y in zip(delta_of, ratio_of, strict=True)],
}
slopes = {"k1": [1, 1, 1], "k2": delta_of, "k3": [1 - x for x in ratio_of]}
goals = {
    "k1": sympy.Integer(0),
    "k2": sum(pi_of[a] * delta_of[a] for a in actions),
    "k3": sum(reference[a] * -delta_of[a] for a in actions),
}


# %%
def program(c, j, probability=pi_of):
    """Return E[c s], component j."""
    return sum(probability[a] * c[a] * score[a][j] for a in actions)


Q = sympy.symbols("q_X q_Y", positive=True)
engine = [*Q, 1 - sum(Q)]
for j in actions:
    for name, k in values.items():  # the gradient of the mean has two halves; the program gets the first
        whole = by_logit(sum(pi_of[a] * k[a] for a in actions), j)
        assert is_zero(whole - program(slopes[name], j) - program(k, j))
        assert is_zero(program(slopes[name], j) - by_logit(goals[name], j))
    assert is_zero(program(slopes["k3"], j) - (pi_of[j] - reference[j]))
    away = sum(engine[a] * -log_pi_of[a] for a in actions)  # KL(q‖π), without the part that does not depend on π
    assert is_zero(program([1, 1, 1], j, engine) + by_logit(away, j))

# %% [markdown]
# ### Answers of several tokens
#
# Here the policy and the reference are random, and all answers are enumerated. The cell compares the expected gradient
# of each loss with the gradients of both KLs of the next token. It also compares k1 in the reward with the gradient of
# the KL of whole answers. The last line compares the gradient of k2 in the loss with that of the KL of
# whole answers: the quotient of lengths, and the cosine.

# %% tags=["hide-input"]
where = toy.world(4, 3)
theta, far_ref = toy.random_policy(where, 80), toy.random_policy(where, 81)
forward, backward = (toy.token_kl_gradient(where, theta, far_ref, reverse=reverse) for reverse in (False, True))


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


def in_the_reward(where, theta, ref, gamma):
    """Return E_π[Σ_t (Σ_{t' ≥ t} γ^(t'−t) δ_t') s_t], over all answers."""
    delta = kl_penalty(toy.log_probs(where, theta), toy.log_probs(where, ref), "k1")
    pays = returns_to_go(torch.where(where.mask, delta, 0), where.mask, gamma)
    leaf = theta.clone().requires_grad_()
    return toy.gradient_of((toy.probabilities(where, theta)[:, None] * pays * toy.log_probs(where, leaf)).sum(), leaf)


for name, truth in (("k2", forward), ("k3+", forward), ("k3", backward)):
    assert torch.allclose(toy.kl_gradient(where, theta, far_ref, name), truth, rtol=0, atol=1e-13)
assert toy.kl_gradient(where, theta, far_ref, "k1").norm() < 1e-12
leaf = theta.clone().requires_grad_()
whole = toy.gradient_of(toy.kl(where, leaf, far_ref), leaf)
of_k2 = toy.kl_gradient(where, theta, far_ref, "k2")
assert torch.allclose(in_the_reward(where, theta, far_ref, 1.0), whole, rtol=0, atol=1e-13)
assert torch.allclose(in_the_reward(where, theta, far_ref, 0.0), of_k2, rtol=0, atol=1e-13)
show("answers", len(where.tokens))
show(
    "k2 in the loss, against ∇KL of answers",
    "length",
    float(of_k2.norm() / whole.norm()),
    "cosine",
    cosine(of_k2, whole),
)

# %% [markdown]
# ### Tokens of an older policy, in a toy and on a run
#
# First the logits of an engine move away from the policy's: how well do the gradients of k2 and k3 keep their
# directions? Then we look at the run `top_p`, whose engine never samples a token outside the most probable ones. (No
# weight can repair that: a token that is never sampled cannot be weighted.)

# %% tags=["hide-input"]
show("KL(q‖π), cosine of k2, of k3", digits=3)
for size in (0.0, 0.1, 0.3, 1.0):
    moved = theta + size * toy.random_policy(where, 82)
    off = {name: toy.kl_gradient(where, theta, far_ref, name, sampled_from=moved) for name in ("k2", "k3")}
    show(f"  engine moved by {size}", float(toy.kl(where, moved, theta)), cosine(off["k2"], forward),
         cosine(off["k3"], backward), digits=3)  # fmt: skip


stale = {name: kl_report(positions("top_p"), name, on_policy=False) for name in ("k2", "k3")}
from_engine = kl_report(positions("moe_bf16"), "k1", "rollout", on_policy=False).reverse_cosine
assert from_engine.high < -0.999
say(f"""
    On the engine's tokens of `top_p`, the cosine of k2 with the KL that is meant is
    {below(stale["k2"].cosine, 0.995)}; on the policy's own tokens it was 1. The cosine of k3 with the other KL is
    {below(stale["k3"].reverse_cosine, 0.97)}. In `moe_bf16`, k1 on the engine's tokens points straight away from the
    engine: its cosine with ∇KL(q‖π) is {from_engine.value:.2f}.
    """)

# %% [markdown]
# ### One rare token
#
# By hand: π has nearly given up a token, $\delta=-10$. Its k3 is 22,015 and the slope of k3 is −22,025. Its k2 is 50
# with a slope of −10. Some systems clamp the **value** of k3 at 10. A clamped value has no gradient. So such a loss
# does nothing for tokens whose $\delta$ is below the number that the cell prints. k3+ needs no clamp: its slope is
# $\delta$.

# %%
edge = -sympy.LambertW(-sympy.exp(-11), -1) - 11  # where e^x − x − 1 is 10
assert sympy.simplify(sympy.exp(edge) - edge - 1 - 10).evalf(chop=True) == 0
show("k3 is 10 at δ =", str((-edge).evalf(4)))
