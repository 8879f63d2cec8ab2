# %% [markdown]
# # 05 · The policy gradient and its three policies
#
# **Claim.** A baseline changes the noise of the policy gradient but not its average. REINFORCE, PPO, decoupled PPO and
# bypass mode have this gradient, up to a weight and a clip per token. They differ in the two policies that their ratio
# compares, and in what they clip.
#
# ![three policies in time](diagrams/policies.svg)
#
# *90 minutes · intermediate · any laptop; no GPU, no network.* You need the gradient of lesson 02 and the
# weights of lesson 01. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - explain why a baseline may reduce the noise or increase it, and why the loss does not measure success;
# - say which three policies there are, and which two each ratio compares;
# - compute the coefficient of a token under six losses, and say what the second bound of verl's PPO is for;
# - say what bypass mode saves, and what it loses.
#
# ## Warm-up
#
# Two questions on older lessons.
#
# **1. What does it mean that a weighted estimate is unbiased?** (Lesson 01)
#
# <details><summary>It is close to the truth in every sample.</summary>No. In one sample it may be far off.</details>
# <details><summary>Its average over all possible samples is the truth.</summary>Yes.</details>
# <details><summary>Its weights are all 1.</summary>No. They average to 1.</details>
#
# **2. The score $s = \nabla \log \pi$ of the sampled action is multiplied by −3 in an update. What happens?** (Lesson
# 02)
#
# <details><summary>The action becomes less probable, and all others together more probable.</summary>Yes.</details>
# <details><summary>Nothing, because scores average to 0.</summary>No. They do so over all actions. Here one was
# sampled.</details>
# <details><summary>The action becomes more probable.</summary>No. The score makes it more probable, and the factor is
# negative.</details>

# %% tags=["hide-input"]
import math
from dataclasses import replace

import sympy
import torch
from count_on import END, LONGEST, START
from curves import curves
from exercises.mini_checks import CLIPPED, LOG_PROBS, SAMPLE, described, scored
from exercises.policy_gradient import ADVANTAGES, BEST_BASELINE
from exercises.three_policies import DECOUPLED_COEFFICIENT, PPO_COEFFICIENT
from sentences import above, below, bracketed, reveal, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import KEPT, REJECTED, axis, figure, vertical_line
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval, interval_of, resampled
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import compare_gradients, report
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.advantages import group_normalised, leave_one_out
from rlcorr.losses.objective import policy_loss, score_coefficients
from rlcorr.losses.per_token import ppo_clip, reinforce
from rlcorr.masked import masked_sum
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch, updated_batch
from rlcorr.records.study import read_study
from rlcorr.records.study_comparisons import comparisons
from rlcorr.teaching.check import check

torch.set_num_threads(1)


def load(name):
    """Return the last sketched step of a run, in float64: batch and sketch."""
    run = runs.find_run(name)
    step = last_sketch(run)
    batch, sketch = runs.read_step(run, step).batch, read_sketch(run, step)
    pair = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return batch.replace(**pair), replace(sketch, scores=sketch.scores.double())


generator = torch.Generator().manual_seed(4)

# %% [markdown]
# ## A baseline
#
# By hand, with the actions X, Y, Z of lesson 02: the policy takes them with the probabilities ¼, ¼, ½, and they earn
# the rewards $R$ = 1, 0, 4. The score of an action is $s = \nabla \log \pi$, one number per logit.
#
# Scores average to 0, because the probabilities always add up to 1:
#
# $$ \sum_a \pi_a\, s_a = \sum_a \nabla \pi_a = \nabla \sum_a \pi_a = \nabla 1 = 0 . $$
#
# So we may subtract a constant $b$, the **baseline**, from every reward: $(R - b)\,s$ has the same average as $R\,s$,
# because $b$ times 0 is 0. But its **variance** changes. The variance is the mean squared distance of one sample from
# the average; here it is added up over the three logits.

# %%
pi_xyz, R_xyz = torch.tensor([[0.25, 0.25, 0.5], [1, 0, 4]], dtype=torch.float64)
scores_xyz = torch.eye(3, dtype=torch.float64) - pi_xyz  # (3, 3): row a is the score of action a


def mean_and_variance(b):
    """Return mean and variance of (R − b) s for one sample; the variance is added up over the logits."""
    of_actions = (R_xyz - b)[:, None] * scores_xyz
    mean = pi_xyz @ of_actions
    return mean, float(pi_xyz @ (of_actions - mean).square().sum(-1))


for baseline in (0.0, 2.25, 10.0):
    mean, variance = mean_and_variance(baseline)
    show(f"baseline {baseline}: average", mean)
    show("… and variance", variance, digits=2)

# %% [markdown]
# The average is the same three times, and the variance is very different. As a function of $b$ the variance is a
# parabola. Its lowest point is at
#
# $$ b^* = \frac{\mathbb{E}[R\,\|s\|^2]}{\mathbb{E}[\|s\|^2]} , $$
#
# which is an average of the rewards, too, but each reward is weighted by the squared length of its score. (The appendix
# proves it.)
#
# ## Whole answers
#
# The probability of an answer is a product over its tokens. The logarithm of a product is a sum, so the score of an
# answer is a sum over its tokens: $s = \sum_t s_t$.
#
# Take any beginning of an answer. The score of the *next* token averages to 0, as for X, Y and Z. So the baseline of
# token $t$ may depend on everything that was written **before** $t$. It must not depend on token $t$ itself. Reward
# minus baseline is called the **advantage** $A$:
#
# $$ \nabla J = \mathbb{E}\Big[\sum_t A_t\, s_t\Big] . $$
#
# Where does the baseline come from? There are two usual sources:
#
# - a **critic**, a second model that predicts the reward from what was written so far;
# - the **group**, the other answers to the same prompt. Leave-one-out (RLOO) takes the mean of the *other* answers,
#   GRPO the mean of all.
#
# Optimisers make a **loss** smaller, and we want $J$ to become larger. So the loss is $-A \log \pi$, averaged over
# tokens, and $A$ is treated as a constant. Its derivative is what we want, with a minus sign. The **value** of this
# loss means nothing: another baseline gives another value, and the same average derivative.
#
# ## The same on a recorded run
#
# `control_fp32` trains a tiny model on sums: `12+35=` must become `47`. A right answer earns 1, a wrong one 0. Engine
# and trainer compute in 32 bits, so the tokens come from the policy that is differentiated, and there is no mismatch.
#
# A score has as many numbers as the model has weights. That is too many to store for every token, so the run stores a
# **sketch** of each score: $K$ random sums of these numbers. A sketch is enough to compute averages exactly, and
# lengths approximately (lesson 10).


# %%
def pushes(batch, sketch, advantages):
    """Return Σ_t A_t s_t of each answer, (B, K), for advantages (B,)."""
    whole = LossConfig(loss_agg_mode="seq-mean-token-sum")  # add up the tokens of an answer
    per_token = batch.replace(advantages=advantages[:, None].expand(batch.response_mask.shape))
    return contributions(per_token, sketch, [CorrectionConfig()], whole)[0].u


batch, sketch = load("control_fp32")
rewards = batch.tensors()["rewards"].double()
answer_scores = pushes(batch, sketch, torch.ones_like(rewards))
prompt = torch.unique(batch.tensors()["prompt_ids"], dim=0, return_inverse=True)[1]  # number of each answer's prompt

# %% tags=["hide-input"]
run = runs.find_run("control_fp32")
updated = updated_batch(run, last_sketch(run))
of_step = report(updated, read_sketch(run, last_sketch(run)), CorrectionConfig(), batch_sizes=[len(rewards)])
say(f"""
The last step has {len(rewards)} answers to {int(prompt.max()) + 1} prompts, and {rewards.mean():.0%} of them are right.
Each answer has a reward in `rewards`, a row of `answer_scores` with {sketch.directions} numbers, and the number of its
prompt in `prompt`.

How noisy is the gradient of this step? We measured the true gradient on many other answers. The distance between the
step's gradient and its average (one standard deviation) is {above(of_step.noise[0], 1, 1)} times the length of the true
gradient. (The brackets contain a 95 % interval.)
""")

# %% [markdown]
# ## Why a baseline?
#
# **The zero of a reward is arbitrary.** Give every answer ten points more. Nothing that we want to learn has changed,
# but without a baseline every score is now multiplied by a large number, and the variance grows enormously. With the
# mean subtracted, nothing changes at all. So everybody subtracts a baseline. But which zero is the best one is not
# clear beforehand, and it need not be the mean, as the next example shows.
#
# ## Predict, then reveal
#
# **Write down a guess:**
#
# 1. We subtract the mean reward from all rewards. Does the variance of $(R - b)\,s$ become smaller or larger, and how
#    much?
# 2. Instead, we subtract from each reward the mean of the *other* answers to the same prompt. And now?
# 3. We add ten to every reward, without a baseline. What happens to the average of $R\,s$?
# 4. Which scores are longer: those of right answers, or those of wrong ones?
#
# **Look for** the lowest point of the curve, and for the two dotted lines: the best baseline and the mean reward.


# %%
def variance_of(advantages):
    """Return the variance for one answer, added up over all directions."""
    return float(pushes(batch, sketch, advantages).var(0).sum())


squared_lengths = answer_scores.square().sum(-1)
best = float((rewards * squared_lengths).sum() / squared_lengths.sum())
show("variance: no baseline", variance_of(rewards), digits=0)
show("minus the mean reward", variance_of(rewards - rewards.mean()), digits=0)
show("minus the others of the same prompt", variance_of(leave_one_out(rewards, prompt)), digits=0)
show("10 added", variance_of(rewards + 10), digits=0)

# %% tags=["hide-input"]
grid = [0.05 * number for number in range(-4, 21)]
line = {"variance": [variance_of(rewards - b) for b in grid]}
drawn = curves(grid, line, x_name="baseline b (a right answer earns 1)", y_name="variance of (R − b) s")
dotted = {"colour": REJECTED, "dash": "dot", "width": 2}
marks = [vertical_line(x=best, label="best", side="left", **dotted)]
marks += [vertical_line(x=float(rewards.mean()), label="mean reward", side="right", **dotted)]
picture(drawn.update_layout(shapes=marks))


def resample(batch, sketch):
    """Return four quotients with their intervals; the bootstrap draws prompts, with all answers to them.

    Variance with the mean reward subtracted, and with the others of the prompt subtracted, over that without a
    baseline; the best baseline over the mean reward; the mean ‖s‖² of wrong answers over that of right ones.
    """
    R = batch.tensors()["rewards"].double()
    number = torch.unique(batch.tensors()["prompt_ids"], dim=0, return_inverse=True)[1]
    s = pushes(batch, sketch, torch.ones_like(R))
    n, right = s.square().sum(-1), torch.eq(R, R.max()).double()
    share = resampled(int(number.max()) + 1, 1000, 1).double()[:, number]  # how often each answer is drawn
    share /= share.sum(-1, keepdim=True)

    def variance(advantages):
        """Return the variance of A s, each sample with its own advantages, (1000, B) or (B,)."""
        counted = share * advantages
        return (counted * advantages) @ n - (counted @ s).square().sum(-1)

    none = variance(R)
    quotients = (
        variance(R - (share @ R)[:, None]) / none,
        variance(leave_one_out(R, number)) / none,
        (share @ (R * n)) / (share @ n) / (share @ R),
        (share @ ((1 - right) * n)) / (share @ (1 - right)) / ((share @ (right * n)) / (share @ right)),
    )
    return [interval_of(quotient, signed=False) for quotient in quotients]


noise, of_others, lower, longer = resample(batch, sketch)
EIGHTY = "async", "kv_fp8", "stale_4", "stale_head", "temperature_raw", "top_p"  # several answers to each of 80 sums
others = [*EIGHTY, "bf16", "kv_fp8_e5m2", "moe_bf16", "moe_replay"]  # all that have a sketch
elsewhere = {name: resample(*load(name)) for name in others}
by_mean = [quotients[0] for quotients in elsewhere.values()]
by_group = [elsewhere[name][1] for name in EIGHTY]
rises, falls = sum(x.low > 1 for x in by_mean), sum(x.high < 1 for x in by_mean)
assert all(quotients[2].high < 1 for quotients in elsewhere.values())
correct_shares = [float(load(name)[0].tensors()["rewards"].mean()) for name in ("control_fp32", *EIGHTY)]
reveal(f"""
1. It became **{above(noise, 1, 0)} times** as large. In the {len(others)} other runs with sketches it is significantly
   larger in {rises} and significantly smaller in {falls}. *Significantly* means that the 95 % interval excludes 1.
2. It became {above(of_others, 1, 0)} times as large. In {len(EIGHTY)} other runs with several answers to a prompt, it
   is significantly larger in {sum(x.low > 1 for x in by_group)} and significantly smaller in
   {sum(x.high < 1 for x in by_group)}.
3. The average stays the same. The variance is on the same parabola, at $b = -10$.
4. The scores of wrong answers: their squared length is {above(longer, 1, 0)} times as large. A score is long if the
   policy was not certain of its token. Without a baseline, a wrong answer has reward 0, so its long score does not
   appear in the gradient. With a baseline it does. So the best baseline here is small: {below(lower, 1)} times the mean
   reward. It is significantly below the mean reward in all other runs, too.
""")

# %% [markdown]
# ## Why did it get worse here?
#
# A baseline may reduce the noise or add to it. Two things decide which. **The zero:** here a wrong answer earns exactly
# 0, which happens to be a good zero for these policies. With ten points more (the last printed line) it would not be.

# %% tags=["hide-input"]
say(f"""
**These policies are nearly done.** In `control_fp32` and the other runs with eighty sums, {min(correct_shares):.0%} to
{max(correct_shares):.0%} of the answers are right at this step, and the policies know their prompts by heart. The
scores of right answers are short, and those of wrong answers are long. Early in training, most answers are wrong and
the mean reward is close to 0, so the picture may be different there. We have not measured it.
""")

# %% [markdown]
# ## What a mismatch changes
#
# Now let an engine sample with $q$, while the trainer differentiates $p$. Then the scores no longer average to 0, so
# subtracting a baseline biases the gradient. If each token is weighted by its ratio, the scores average to 0 again:
# $\sum_a q_a \frac{p_a}{q_a} s_a = \sum_a p_a s_a = 0$. Lesson 01 shows what the weights cost.
#
# ## Three policies, three ratios
#
# One batch of answers is usually used for several optimizer steps. So there are three policies:
#
# 1. $q$, the engine's, which sampled the batch;
# 2. $p$, the trainer's before the update, which scored the batch;
# 3. $\pi$, the trainer's during the update. It begins as $p$, and every optimizer step moves it away from $p$.
#
# Three policies have three ratios:
#
# $$ r=\frac pq\;\text{(the mismatch)},\qquad \rho=\frac\pi p\;\text{(the move)},\qquad
# r\rho=\frac\pi q\;\text{(both)}. $$
#
# $r$ exists before the update. $\rho$ is caused by the update. A loss that contains only $\pi/q$ cannot distinguish the
# two. **Bypass mode** has such a loss: it uses $q$ in the place of $p$, so the trainer never scores the batch before
# the update.
#
# All losses here have a gradient of one form. For each token there is one number, its **coefficient** $c$, and the
# gradient is a sum of scores with these coefficients: $-\nabla L=\sum_tc_t\nabla\log\pi_t$. So a loss is described by
# its $c$:
#
# | loss | $c$ | what is clipped |
# |---|---|---|
# | REINFORCE | $A$ | nothing |
# | PPO | $\rho A$, or 0 | $\rho$ |
# | decoupled PPO | $w\rho A$, or 0 | $\rho$; the weight $w=\min(r,C)$ has its own cap $C$ |
# | bypass PPO | $r\rho A$, or 0 | $r\rho$ |
# | bypass PPO with dual clip | $r\rho A$, or 0 | $r\rho$; if $A<0$, on both sides |
# | bypass REINFORCE | $\min(r\rho,C)\,A$ | nothing; the weight has a cap |
#
# ## By hand: four tokens
#
# Let PPO's clip be 0.2 on either side, and the cap 2. The rule of the clip is: a token has the coefficient 0 if the
# clipped ratio is more than 0.2 away from 1 **in the direction in which $A$ pushes**. That is above 1.2 if $A>0$, and
# below 0.8 if $A<0$. **Dual clip** has a second bound, 3, for $A<0$ alone: above it the coefficient is 0 as well. It is
# what verl calls PPO (`clip_ratio_c`, 3.0 by default). Compute the rows of PPO and bypass PPO before you run the cell.


# %%
def coefficients(log_pi, batch, config):
    """Return c of every token; tokens=1, so that nothing is divided by their number."""
    return score_coefficients(log_pi, batch, correct(batch, config), config, LossConfig(), tokens=1, sequences=1)


METHODS = {"REINFORCE": CorrectionConfig(loss_type="gpg"), "PPO": preset("disabled")}  # gpg: c = A
METHODS |= {"decoupled PPO": preset("decoupled_token_is"), "bypass PPO": preset("bypass_ppo_clip")}
METHODS["bypass PPO, dual clip"] = CorrectionConfig(bypass_mode=True, loss_type="dual_clip")
METHODS["bypass REINFORCE"] = CorrectionConfig(bypass_mode=True, loss_type="reinforce", rollout_is="token")
q, p, pi, A = torch.tensor([[5, 4, 6, 1], [4, 5, 3, 5], [5, 5, 3, 5], [10, 10, -10, -10]]).double()[:, None] / 10
four_tokens = TokenBatch.from_log_probs(p.log(), q.log(), torch.ones_like(p)).replace(advantages=A)
for name, row in {"A": A, "mismatch, r = p/q": p / q, "move, ρ = π/p": pi / p, "both, π/q": pi / q}.items():
    show(name, row)
for name, config in METHODS.items():
    show(f"c of {name}", coefficients(pi.log(), four_tokens, config))

# %% [markdown]
# By hand: the update has moved the first token by 25 %, so PPO no longer pushes it. But this move cancels its mismatch,
# $\pi/q=1$, so bypass PPO does not see a move and continues to push. The other three tokens have **not** moved at all.
# The second and the third have a mismatch of 1.25 and 0.5, so bypass PPO has clipped both before the first step. The
# fourth has $r=5$ and $A<0$. PPO's clip does not stop it, so bypass PPO pushes it down with five times the force of
# REINFORCE. Decoupled PPO has its cap of 2 against this, and dual clip has its second bound.
#
# ## The equation, loss by loss
#
# **Bypass REINFORCE.** We want the gradient of $J=\sum_a\pi(a)A(a)$, and the tokens come from $q$. So we weight them,
# as in lesson 01. The weight is $\pi/q = r\rho$:
#
# $$ \nabla J=\mathbb{E}_q\big[r\rho\,A\,\nabla\log\pi\big]. $$
#
# Without the cap this is exact for every $\pi$. But the weight changes with every optimizer step.
#
# **PPO.** If $q=p$, then $r = 1$. Use $\rho\,\nabla\log\pi = \nabla\rho$, which follows from the derivative of a
# logarithm, $\nabla\log\pi = \nabla\pi/\pi$. Then the same formula is the gradient of $\mathbb{E}_p[A\rho]$. This
# quantity is called the **surrogate**, and PPO clips it.
#
# **Decoupled PPO.** If $q\ne p$, split the ratio into two factors: a fixed weight $r$, and the move $\rho$. Then
# $\nabla J=\mathbb{E}_q[r\,A\,\nabla\rho]$. The weight repairs the mismatch, and the clip limits the move.
#
# **The first step.** Before it, $\rho=1$. So at the first step PPO **is** REINFORCE, and decoupled PPO is REINFORCE
# with the weight $r$.
#
# **What is exact?**
#
# - For answers of one token, both losses with a weight are exact, if nothing is capped or clipped.
# - For longer answers, the weight must be that of the whole answer (lesson 07). Even then decoupled PPO is exact at the
#   first step only, because its $\rho$ is that of a single token.
# - Without a weight, REINFORCE and PPO are biased in general if $q\ne p$ (appendix).
#
# **The clip** takes the smaller of $A\rho$ and its clipped value:
#
# $$ \min\big(A\rho,\;A\,\mathrm{clip}(\rho,1-\varepsilon,1+\varepsilon)\big). $$
#
# Outside the bounds, the second of the two is constant, so it has no gradient there. Whether the minimum takes it
# depends on the sign of $A$:
#
# | | $\rho<1-\varepsilon$ | inside | $\rho>1+\varepsilon$ |
# |---|---|---|---|
# | $A>0$, push up | $A\rho$ | $A\rho$ | constant, **gradient 0** |
# | $A<0$, push down | constant, **gradient 0** | $A\rho$ | $A\rho$ |
#
# So the clip does not pull a token back. It only stops pushing it further.
#
# **Dual clip** ([Ye et al.](https://arxiv.org/abs/1912.09729)) closes the last field of the table, where $A<0$ and the
# ratio is large. There nothing bounds the coefficient $A\rho$. In PPO with three policies this is rare, because $\rho$
# begins at 1. In bypass mode the ratio is $r\rho$, and a mismatch alone can make it large. So the two losses differ
# most in bypass mode. They go by one name: verl's `vanilla`, which is also the `ppo_clip` of its bypass mode, has the
# second bound; SkyRL's `regular` does not have it.
#
# ## One batch, many steps
#
# Where does each loss stop? This is a toy world with few answers. Batches come from $q$, the trainer starts at a $p$
# that differs from $q$, and it takes many steps on the same batch. The vertical axis is the divergence KL(p‖π), the
# average of $\log p - \log \pi$ over answers from $p$. It measures how far the policy has moved from $p$. Its unit is
# the nat, that of natural logarithms. The answers have several tokens, so decoupled PPO and bypass REINFORCE use the
# weight of the whole answer here. **Look for** the lines that become flat. Each line is the mean over batches, with a
# 95 % interval. The line of PPO is hidden under that of decoupled PPO.

# %% tags=["hide-input"]
where = toy.world(4, 3)
rollout = toy.random_policy(where, 1)
old = rollout + toy.random_policy(where, 2, 0.4)
toy_rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
STEPS, BATCHES, ANSWERS = 30, 16, 32
WALK = METHODS | {"decoupled PPO": preset("decoupled_seq_is"), "bypass REINFORCE": preset("bypass_pg_is")}
del WALK["bypass PPO, dual clip"]  # its line is that of bypass PPO


def walk(rows, config):
    """Return KL(p‖π) after each step on these answers, and KL(q‖π) at the end."""
    advantages = (toy_rewards[rows] - toy_rewards[rows].mean())[:, None].expand(len(rows), where.mask.shape[1])
    p, q = (toy.log_probs(where, policy)[rows] for policy in (old, rollout))
    batch = TokenBatch(response_mask=where.mask[rows], rollout_log_probs=q, old_log_probs=p, advantages=advantages)
    result, logits, moved = correct(batch, config), old.clone(), [0.0]
    for _ in range(STEPS):
        leaf = logits.detach().requires_grad_()
        loss, _ = policy_loss(toy.log_probs(where, leaf)[rows], batch, result, config, LossConfig())
        logits = logits - toy.gradient_of(loss, leaf)
        moved.append(float(toy.kl(where, old, logits)))
    return torch.tensor([*moved, float(toy.kl(where, rollout, logits))], dtype=torch.float64)


chance = toy.probabilities(where, rollout)
batches = [torch.multinomial(chance, ANSWERS, replacement=True, generator=generator) for _ in range(BATCHES)]
walks = {name: torch.stack([walk(rows, config) for rows in batches]) for name, config in WALK.items()}
redrawn = resampled(BATCHES, 1000, 0).double() / BATCHES
ends = {
    name: (redrawn @ of_batches[:, :-1])[1:].quantile(torch.tensor([0.025, 0.975]).double(), 0)
    for name, of_batches in walks.items()
}
bands = {
    name: ([round(x, 6) for x in low.tolist()], [round(x, 6) for x in high.tolist()])
    for name, (low, high) in ends.items()
}
lines = {name: [round(x, 6) for x in of_batches.mean(0)[:-1].tolist()] for name, of_batches in walks.items()}
across, up = "optimizer step on the same batch", "KL(p‖π), in nats"
picture(curves(list(range(STEPS + 1)), lines, bands=bands, x_name=across, y_name=up))


def further(name, than, column=-2):
    """Return by how much one ends further away, on the same batches: column -2 is KL(p‖π), -1 is KL(q‖π)."""
    return interval_of(redrawn @ (walks[name] - walks[than])[:, column], signed=True)


last = {name: of_batches.mean(0)[STEPS] - of_batches.mean(0)[STEPS - 10] for name, of_batches in walks.items()}
assert max(last["PPO"], last["decoupled PPO"]) < 0.1 * last["REINFORCE"]
assert further("bypass REINFORCE", "bypass PPO").low > 0
say(f"""
- PPO and decoupled PPO stop near $p$.
- Bypass PPO ends {above(further("bypass PPO", "PPO"), 0, 3)} nats further from $p$ than PPO, and nearer to $q$: the
  difference of KL(q‖π) is {below(further("bypass PPO", "PPO", -1), 0, 3)}. The reason is that its clip is centred on
  $q$.
- The two losses without a clip do not stop.

(The intervals are over {BATCHES} batches of this one world.)
""")

# %% [markdown]
# ## Predict, then reveal: tokens without a gradient
#
# Now recorded runs of a real model, SmolLM2-135M. `smol_bf16_both` has bfloat16 on both sides, the engine of
# `smol_kv_fp8` has a KV cache in 8 bits, and that of `smol_stale_6` has weights that are six updates old. Take the last
# recorded step of each, **before** its update. There $\pi=p$. **Write down a guess:**
#
# 1. What share of the tokens has no gradient in PPO with three policies?
# 2. And in bypass PPO?
#
# We count only tokens with an advantage other than 0. (If all answers to a prompt earn the same, their advantages are
# 0.)


# %%
def before_update(name, n=-1):
    """Return the n-th recorded step, with its advantages as the update sees them."""
    run = runs.find_run(name)
    return updated_batch(run, runs.list_steps(run)[n])


def learning(batch):
    """Return the tokens with an advantage other than 0, (B, T)."""
    return (batch.advantages != 0) & batch.response_mask


def silenced(batch, method):
    """Return the tokens whose gradient a loss removes before the first step, (B, T)."""
    return (coefficients(batch.old_log_probs, batch, METHODS[method]) == 0) & learning(batch)


# %%
REAL = "smol_bf16_both", "smol_kv_fp8", "smol_stale_6"
show("tokens without a gradient in", "PPO", "bypass", "of")
for name in REAL:
    batch = before_update(name)
    show(name, *(int(silenced(batch, m).sum()) for m in ("PPO", "bypass PPO")), int(learning(batch).sum()))

# %% [markdown]
# With three policies $\rho=1$, so nothing is clipped. In bypass mode the mismatch alone moves some tokens out of the
# bounds. We call these tokens **silent**: they have an advantage, and no gradient.
#
# **Look for** the grey bars in the picture of `smol_stale_6`: they are the silent tokens. The upper half has the tokens
# with $A>0$; those with a ratio above $1+\varepsilon$ are silent. The lower half has the tokens with $A<0$; those with
# a ratio below $1-\varepsilon$ are silent. Green bars are tokens with a gradient. Drag the clip $\varepsilon$. (The
# vertical axes are logarithmic. The last bar has all larger ratios.)

# %% tags=["hide-input"]
batch = before_update("smol_stale_6")
assert batch.advantages is not None
counted = learning(batch)
ratios, signs = correct(batch, CorrectionConfig()).log_ratio[counted].double().exp(), batch.advantages[counted] > 0
STEP, BINS = 0.05, 61


def bars_of(tokens):
    """Return how many of these tokens are in each bin of the ratio."""
    return torch.bincount((ratios[tokens] / STEP + 1e-9).long().clamp(max=BINS - 1), minlength=BINS).tolist()


def within(clip):
    """Draw the ratios of tokens with A > 0 and with A < 0, grey if bypass PPO with this clip removes the gradient."""
    traces, left = [], [STEP * n for n in range(BINS)]
    for side, tokens, silent in (
        ("y", signs, [x >= 1 + clip - 1e-9 for x in left]),
        ("y2", ~signs, [x + STEP <= 1 - clip + 1e-9 for x in left]),
    ):
        for name, colour, shown in (("with a gradient", KEPT, False), ("silent", REJECTED, True)):
            heights = [count if mute == shown else 0 for count, mute in zip(bars_of(tokens), silent, strict=True)]
            bar = {"type": "bar", "x": [round(x + STEP / 2, 3) for x in left], "y": heights, "yaxis": side}
            traces.append(bar | {"name": name, "marker": {"color": colour}, "showlegend": side == "y"})
    low, high = {"title_text": "tokens, A > 0", "type": "log", "domain": [0.55, 1]}, {"title_text": "ratio p/q"}
    drawn = figure(traces, height=380, x=high | {"anchor": "y2"}, y=low, legend=True)
    return drawn.update_layout(yaxis2=axis({"title_text": "tokens, A < 0", "type": "log", "domain": [0, 0.45]}))


WIDTHS = 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7
moving_picture("clip ε", {f"{clip:g}": within(clip) for clip in WIDTHS}, "0.2")


def share(batch):
    """Return the tokens that bypass PPO silences, in percent of those that learn; the bootstrap draws answers."""
    drawn = resampled(len(batch.response_mask), 1000, 0).double()
    silent, tokens = silenced(batch, "bypass PPO").double().sum(-1), learning(batch).double().sum(-1)
    return interval_of(100 * (drawn @ silent) / (drawn @ tokens), signed=False)


SHARES = {
    name: [share(before_update(name, n)) for n in range(len(runs.list_steps(runs.find_run(name))))] for name in REAL
}
assert all(x.low > 0 for name in ("smol_kv_fp8", "smol_stale_6") for x in SHARES[name])
reveal(f"""
With a clip of 0.2, bypass PPO silences {above(SHARES["smol_stale_6"][-1], 0, 1)} % of the learning tokens of
`smol_stale_6` at this step, {above(SHARES["smol_kv_fp8"][-1], 0, 1)} % of those of `smol_kv_fp8`, and
{bracketed(SHARES["smol_bf16_both"][-1], 1)} % of those of `smol_bf16_both`. Over all recorded steps, the share is
{min(x.value for x in SHARES["smol_stale_6"]):.0f} to {max(x.value for x in SHARES["smol_stale_6"]):.0f} % in
`smol_stale_6`, {min(x.value for x in SHARES["smol_kv_fp8"]):.0f} to {max(x.value for x in SHARES["smol_kv_fp8"]):.0f} %
in `smol_kv_fp8`, and at most {max(x.value for x in SHARES["smol_bf16_both"]):.1f} % in `smol_bf16_both`.
""")

# %% [markdown]
# ## What bypass mode saves, and what it loses
#
# By hand: count a forward pass as 1 and a backward pass as 2. Scoring the batch before the update is one forward pass,
# so it costs 1. One epoch over the batch is a forward and a backward pass, so it costs 3. Bypass mode saves the
# scoring: $\frac{1}{1+3\,\text{epochs}}$ of the trainer's passes. That is a quarter with one epoch, and a thirteenth
# with four.
#
# It **loses** three things:
#
# - The mismatch and the move share one bound.
# - The clip keeps $\pi$ near the engine, not near the policy at which the update began.
# - $p/q$ can be measured only in the first minibatch, where $\pi=p$. (verl computes its metrics from $\pi/q$ there.)
#   Later minibatches mix the mismatch with the move.
#
# Does this matter for the reward? Two small studies (`runs/README.md`) trained a tiny model with each loss, under two
# mismatches that are strong enough to break a training run. We compare the mean reward over the last quarter of the
# steps. A difference is **significant** if its interval excludes 0.

# %% tags=["hide-input"]
AGAINST = "disabled", "decoupled_token_is"


def bypass_minus(study):
    """Return the reward of bypass PPO at the end minus that of PPO and of decoupled PPO: simultaneous intervals."""
    pairs = comparisons(read_study(study)[0], [("bypass_ppo_clip", other) for other in AGAINST])
    return [pair.difference for pair in pairs], pairs[0].seeds


(stale, seeds), (cache, _) = bypass_minus("stale_8"), bypass_minus("kv_fp8_e5m2")
say(f"""
- With weights that are eight steps old (`stale_8`), bypass PPO ends significantly above PPO without weights, by
  {above(stale[0])}. It cannot be distinguished from decoupled PPO: {untold(stale[1])}.
- With the coarse cache (`kv_fp8_e5m2`), it ends significantly below decoupled PPO, by {below(cache[1])}. It cannot be
  distinguished from PPO without weights: {untold(cache[0])}.

(We compare runs with the same seed. The intervals are over {seeds} seeds, by Student's t. The two intervals of a
mismatch are simultaneous: with a probability of 95 %, both of them contain their true differences.)

{seeds} seeds and one learning rate are little evidence, so do not generalise from these numbers. Bypass PPO was trained
without dual clip, which verl has by default, and not on the real model.
""")

# %% [markdown]
# ## Exercise 1: where PPO has no gradient
#
# *4 minutes.* Return PPO's coefficient $c$ of each token, from `rho` and `advantage`, both `(N,)`, and `epsilon`.
# (PPO's clip alone, without the second bound of dual clip.)
#
# <details><summary>Hint 1</summary>Use the table with three regions and two signs.</details>
# <details><summary>Hint 2</summary>∇ρ = ρ ∇ log π, so a token that is not clipped has A·ρ.</details>


# %%
def ppo_coefficient(rho, advantage, epsilon):
    raise NotImplementedError("exercise 1: write ppo_coefficient, then run this cell and the next.")


# %% tags=["check"]
check(ppo_coefficient, PPO_COEFFICIENT)


# %% tags=["solution", "hide-input"]
def ppo_coefficient_solution(rho, advantage, epsilon):
    too_far = ((advantage > 0) & (rho > 1 + epsilon)) | ((advantage < 0) & (rho < 1 - epsilon))
    return torch.where(too_far, 0, advantage * rho)


check(ppo_coefficient_solution, PPO_COEFFICIENT)

# %% [markdown]
# ## Exercise 2: decoupled PPO
#
# *5 minutes.* Now with three policies: `pi`, `p`, `q` are probabilities, `(N,)`. The weight is $p/q$, at most `cap`;
# the clip of width `epsilon` is on $\pi/p$. Return the coefficient. You may call your first answer.
#
# <details><summary>Hint 1</summary>It is the weight times PPO's coefficient.</details>
# <details><summary>Hint 2</summary>The cap does not depend on π, and the clip does not depend on q.</details>


# %%
def decoupled_coefficient(pi, p, q, advantage, cap, epsilon):
    raise NotImplementedError("exercise 2: write decoupled_coefficient, then run this cell and the next.")


# %% tags=["check"]
check(decoupled_coefficient, DECOUPLED_COEFFICIENT)


# %% tags=["solution", "hide-input"]
def decoupled_coefficient_solution(pi, p, q, advantage, cap, epsilon):
    return (p / q).clamp(max=cap) * ppo_coefficient_solution(pi / p, advantage, epsilon)


check(decoupled_coefficient_solution, DECOUPLED_COEFFICIENT)

# %% [markdown]
# ## Check yourself
#
# **1. A token has $A > 0$ and $\rho = 0.5$, with a clip of 0.2. What does PPO do?**
#
# <details><summary>It is outside the band, so its gradient is 0.</summary>No. Only the side in the direction of A
# matters.</details>
# <details><summary>It pushes the token up, with coefficient 0.5 · A.</summary>Yes. The minimum takes Aρ, the smaller of
# the two.</details>
# <details><summary>It pulls the token back to 0.8.</summary>No. The clip never pulls, it only stops a push.</details>
#
# **2. The engine is exact, so $q=p$. How do decoupled PPO and bypass PPO differ?**
#
# <details><summary>Decoupled PPO still has less bias.</summary>No. Its weight is 1 for every token.</details>
# <details><summary>They do not: both are PPO. Bypass mode saves one pass over the batch.</summary>Yes. They differ only
# if there is a mismatch.</details>
# <details><summary>Bypass PPO clips more tokens.</summary>Only if p ≠ q. With q = p its ratio is ρ.</details>
#
# **3. In bypass REINFORCE, the weight is $\min(\pi/q,2)$. Does this keep $\pi$ near $q$?**
#
# <details><summary>Yes: no weight exceeds 2, so π cannot move far.</summary>No. At the cap the coefficient is 2A, not
# 0. In the toy world, this line did not become flat.</details>
# <details><summary>No. A cap limits a weight. Only a clip or a penalty ends a push.</summary>Yes. Penalties are the
# subject of lesson 09.</details>
# <details><summary>Only for tokens with A < 0.</summary>No. There the push becomes weaker because the ratio falls, not
# because of the cap.</details>
#
# ## In the app
#
# After `make app`:
#
# - [the gradient of control_fp32](http://localhost:8501/gradient?run=control_fp32&step=latest&preset=disabled), without
#   a mismatch;
# - [decoupled and bypass PPO on `smol_stale_6`, side by
#   side](http://localhost:8501/compare?run=smol_stale_6&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip):
#   where do they differ?
# - [the same two on
#   `smol_bf16_both`](http://localhost:8501/compare?run=smol_bf16_both&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip);
# - [the gradient of bypass PPO among
#   all](http://localhost:8501/gradient?run=stale_4&step=latest&preset=bypass_ppo_clip), on a tiny model.
#
# ## Pitfalls
#
# - **A derivative through the advantage.** In the loss, the advantage is a constant, also if a critic computed it.
# - **A baseline that has seen the token** changes the average gradient. The mean of the group does so a little: it
#   multiplies the gradient by $1 - 1/n$ (appendix).
# - **Dividing by the group's standard deviation**, as GRPO does, is more than a baseline: prompts whose rewards hardly
#   differ get more weight.
# - **"On-policy" means two things**: $\rho=1$, no step was taken since the batch was scored; and $r=1$, the engine
#   agrees with the trainer.
# - **Metrics in bypass mode.** There `ppo_kl` compares $\pi$ with $q$. So it is not 0 before the first step, and that
#   is right.
# - **A switch without effect.** In a version of verl, bypass mode left the workers with the other loss ([issue
#   4272](https://github.com/volcengine/verl/issues/4272)).
# - **One name, two losses.** "PPO clip" is dual clip in verl and PPO's clip alone in others. Before you compare runs of
#   two systems, look for the second bound.
# - **Correcting twice.** In bypass mode the ratio already contains $1/q$. A further weight $p/q$ counts the mismatch
#   twice. In SkyRL 0.4.0, for example, the loss `dppo` compares $\pi$ with $q$, and `tis_ratio_type` multiplies it by
#   $p/q$. Since [0.5.0](https://github.com/NovaSky-AI/SkyRL/releases/tag/skyrl-v0.5.0), `dppo` is the default loss
#   there.
#
# ## References
#
# 1. John Schulman et al., [Proximal Policy Optimization Algorithms](https://arxiv.org/abs/1707.06347), 2017: the clip.
# 2. Jacob Hilton, Karl Cobbe and John Schulman, [Batch size-invariance for policy
#    optimization](https://arxiv.org/abs/2110.00641), 2021: the proximal and the behaviour policy are two.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): decoupled and bypass
#    mode, with the names used here.
# 4. OpenAI Spinning Up, [Intro to Policy
#    Optimization](https://spinningup.openai.com/en/latest/spinningup/rl_intro3.html): the same derivation with states
#    and actions of any kind.
# 5. Arash Ahmadian et al., [Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
#    LLMs](https://arxiv.org/abs/2402.14740), 2024: leave-one-out for language models.
# 6. [Stable Asynchrony: variance-controlled off-policy RL for LLMs](https://arxiv.org/abs/2602.17616), 2026: the
#    baseline with the least variance, used in training.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 3: the baseline with the least noise
#
# *4 minutes.* Estimate $b^*$, a number, from the rewards `(B,)` and the scores `(B, K)` of sampled answers.
#
# <details><summary>Hint 1</summary>Weight each reward by the squared length of its score.</details>
# <details><summary>Hint 2</summary>Both averages divide by the same number of answers, so you can use
# sums.</details>


# %%
def best_baseline(reward, scores):
    raise NotImplementedError("exercise 3: write best_baseline, then run this cell and the next.")


# %% tags=["check"]
check(best_baseline, BEST_BASELINE)


# %% tags=["solution", "hide-input"]
def best_baseline_solution(reward, scores):
    lengths = scores.square().sum(-1)
    return (reward * lengths).sum() / lengths.sum()


check(best_baseline_solution, BEST_BASELINE)
assert abs(best_baseline_solution(rewards, answer_scores) - best) < 1e-12

# %% [markdown]
# ### Check yourself: baselines
#
# **1. X and Y have probability ¼. X was sampled and earned 4. Without a baseline, what does that do to the logit of
# Y?**
#
# <details><summary>Nothing: Y was not sampled.</summary>No. Making X more probable takes probability from all
# others.</details>
# <details><summary>It lowers it by 1, times the step length.</summary>Yes. It is the reward 4 times the score −¼.
# </details>
# <details><summary>It raises it by 1, times the step length.</summary>No. Only the sampled action has a positive
# score.</details>
#
# **2. The loss fell from 0.3 to −0.2 during a step of training. What do you know?**
#
# <details><summary>The policy became better.</summary>No. Another baseline alone can change the sign of the
# loss.</details>
# <details><summary>The policy became worse: a loss must not be negative.</summary>No. Advantages are positive and
# negative, so the loss is, too.</details>
# <details><summary>Nothing about the reward.</summary>Yes. Only the derivative of this loss has a meaning.</details>
#
# **3. Which of these may be the baseline of token 5?**
#
# <details><summary>A critic's prediction from the first 5 tokens.</summary>No. It has seen token 5.</details>
# <details><summary>A critic's prediction from the first 4 tokens.</summary>Yes. It does not depend on token 5.
# </details>
# <details><summary>The answer's own reward.</summary>No. Reward minus itself is 0, so nothing would be learned.
# </details>

# %% [markdown]
# ### mini.py, pieces 3 to 5: draw, score, compare
#
# A reminder of lesson 00: the answers of a batch have different lengths, so they are rows of one table of $T$ columns.
# What follows the end of a short answer is **padding**, and the **mask** is True on real tokens only.
#
# The task is in `count_on.py`: prompt 3 asks to count in steps of 3, modulo 8, until 0 comes: 3, 6, 1, 4, 7, 2, 5, 0,
# and then the token END. So answers have several lengths. The network is given: `policy(prompts, before, places)`
# returns the logits of the next token from the prompt, the token before it and its place; all three are tensors of
# integers, of one shape.
#
# *10 minutes.* **`sample`**: draw one answer to every prompt, `(B,)`. At the first place, the token before it is
# `START`. Draw at every one of the `LONGEST` places, from the softmax of the logits in float64. Return the tokens,
# their log-probs, and a mask that is True up to and including END; all are `(B, LONGEST)`.
#
# <details><summary>Hint 1</summary><code>logp.exp().multinomial(1, generator=generator)</code> draws one token per row,
# and <code>logp.gather(-1, tokens)</code> picks its log-prob.</details>
# <details><summary>Hint 2</summary>Keep a vector that says which answers have not ended, and set it after the mask of
# this place is stored.</details>


# %%
def sample(policy, prompts, generator):
    raise NotImplementedError("mini.py: write sample, then run this cell and the next.")


# %% tags=["check"]
check(described(sample), SAMPLE)


# %% tags=["solution", "hide-input"]
@torch.no_grad()
def sample_solution(policy, prompts, generator):
    before, going = torch.full_like(prompts, START), torch.ones_like(prompts, dtype=torch.bool)
    columns = []
    for place in range(LONGEST):
        logp = policy(prompts, before, torch.full_like(prompts, place)).double().log_softmax(-1)
        before = logp.exp().multinomial(1, generator=generator)[:, 0]
        columns.append((before, logp.gather(-1, before[:, None])[:, 0], going))
        going = going & (before != END)
    tokens, logp, mask = (torch.stack(column, 1) for column in zip(*columns, strict=True))
    return tokens, logp, mask


# %% tags=["solution", "hide-input"]
check(described(sample_solution), SAMPLE)

# %% [markdown]
# *6 minutes.* **`log_probs`**: the tokens of the answers are known now. Return the log-prob of every one of them under
# a policy, `(B, T)`, with **one** call of the policy. The token before token $t$ is token $t - 1$; before the first one
# it is START. What the function returns on padding does not matter.
#
# <details><summary>Hint 1</summary>Shift the tokens by one place to the right.</details>
# <details><summary>Hint 2</summary><code>prompts[:, None].expand_as(tokens)</code> and
# <code>torch.arange(T).expand_as(tokens)</code> have the shape of the tokens.</details>


# %%
def log_probs(policy, prompts, tokens):
    raise NotImplementedError("mini.py: write log_probs, then run this cell and the next.")


# %% tags=["check"]
check(scored(log_probs), LOG_PROBS)


# %% tags=["solution", "hide-input"]
def log_probs_solution(policy, prompts, tokens):
    before = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], 1)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = policy(prompts[:, None].expand_as(tokens), before, places)
    return logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


# %% tags=["solution", "hide-input"]
check(scored(log_probs_solution), LOG_PROBS)

# %% [markdown]
# *5 minutes.* **`advantages`**: you get the rewards of `n` answers to each of several prompts, `(prompts, n)`. Subtract
# from each reward the mean reward of the **other** answers to the same prompt.
#
# <details><summary>Hint 1</summary>The sum of the others is the sum of the row minus the reward itself.</details>
# <details><summary>Hint 2</summary><code>rewards.sum(1, keepdim=True)</code>.</details>


# %%
def advantages(rewards):
    raise NotImplementedError("mini.py: write advantages, then run this cell and the next.")


# %% tags=["check"]
check(advantages, ADVANTAGES)


# %% tags=["solution", "hide-input"]
def advantages_solution(rewards):
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return rewards - others


# %% tags=["solution", "hide-input"]
check(advantages_solution, ADVANTAGES)

# %% [markdown]
# ### mini.py, piece 6: PPO's clip
#
# *6 minutes.* With the clip, PPO multiplies the score of a token with $\rho A$, or with 0 where the update has moved
# it out of $1 \pm \varepsilon$ in the direction of its advantage. In `mini.py` the loss multiplies by $A$ later. So
# return the rest, the coefficient $\rho$ or 0, `(B, T)`, for $\varepsilon$ = 0.2. `new_logp` is $\log \pi$,
# `trainer_logp` is $\log p$, both `(B, T)`; `advantage` is `(B,)`. (The second bound of dual clip is not needed here:
# the ratios stay small, because the loop makes two steps on a batch.)
#
# <details><summary>Hint 1</summary>There are two cases: $A > 0$ and $\rho > 1.2$; $A < 0$ and $\rho < 0.8$.</details>
# <details><summary>Hint 2</summary><code>advantage[:, None] > 0</code> has a row per answer;
# <code>torch.where</code> picks the condition for its sign.</details>


# %%
def clipped(new_logp, trainer_logp, advantage):
    raise NotImplementedError("mini.py: write clipped, then run this cell and the next.")


# %% tags=["check"]
check(clipped, CLIPPED)


# %% tags=["solution", "hide-input"]
def clipped_solution(new_logp, trainer_logp, advantage):
    rho, up = (new_logp - trainer_logp).exp(), advantage[:, None] > 0
    too_far = torch.where(up, rho > 1.2, rho < 0.8)
    return rho.where(~too_far, 0)


# %% tags=["solution", "hide-input"]
check(clipped_solution, CLIPPED)

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.

# %% [markdown]
# ### The proof with symbols, for all logits and rewards

# %%
Z, REWARDS = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", real=True) for name in "zR")
b = sympy.Symbol("b", real=True)
PI = [sympy.exp(z_a) / sympy.Add(*map(sympy.exp, Z)) for z_a in Z]
THREE = range(3)


def same(left, right):
    return sympy.simplify(left - right) == 0


def average(values):
    """Return the average over the three actions, with the probabilities of the softmax."""
    return sympy.Add(*(pi_a * value for pi_a, value in zip(PI, values, strict=True)))


J = average(REWARDS)
score = [[sympy.diff(sympy.log(PI[a]), Z[k]) for k in THREE] for a in THREE]  # of action a, by logit k
for k in THREE:
    assert all(same(score[a][k], int(a == k) - PI[k]) for a in THREE)  # the score of a softmax
    assert all(same(sympy.diff(PI[a], Z[k]), PI[a] * score[a][k]) for a in THREE)  # the trick
    assert same(sympy.diff(J, Z[k]), average([REWARDS[a] * score[a][k] for a in THREE]))  # the slope is an average
    assert same(average([score[a][k] for a in THREE]), 0)  # scores average to 0
    assert same(sympy.diff(J, Z[k]), average([(REWARDS[a] - b) * score[a][k] for a in THREE]))  # a baseline is free

PROBABILITIES, LENGTHS = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in ("pi", "n"))
VARIANCE = sum(PROBABILITIES[a] * (REWARDS[a] - b) ** 2 * LENGTHS[a] for a in THREE)  # the variance, up to a constant
lowest = sum(PROBABILITIES[a] * REWARDS[a] * LENGTHS[a] for a in THREE)
lowest /= sum(PROBABILITIES[a] * LENGTHS[a] for a in THREE)
assert same(sympy.diff(VARIANCE, b).subs(b, lowest), 0)
assert sympy.diff(VARIANCE, b, 2).is_positive  # so it is the lowest point

lengths = scores_xyz.square().sum(-1)
show("best baseline of X, Y, Z", float(pi_xyz @ (R_xyz * lengths) / (pi_xyz @ lengths)))

# %% [markdown]
# ### Which baselines are free: a world of all answers
#
# This world has only three tokens and answers of at most three tokens. All answers can be listed, so every average is
# an exact sum. The number is how far the average is from the right gradient, relative to its length.

# %%
generator = torch.Generator().manual_seed(1)
where = toy.world(3, 3)
theta = toy.random_policy(where, seed=1)
answer_rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
truth = toy.policy_gradient(where, theta, answer_rewards)


def off_by(advantages):
    """Return the distance of E[Σ_t A_t s_t] over all answers from ∇J, over the length of ∇J; advantages (N, T)."""
    leaf = theta.clone().requires_grad_()
    answer_losses = masked_sum(reinforce(toy.log_probs(where, leaf), advantages), where.mask, -1)
    gradient = -torch.autograd.grad((toy.probabilities(where, theta) * answer_losses).sum(), leaf)[0]
    return float((gradient - truth).norm() / truth.norm())


whole = answer_rewards[:, None].expand(where.mask.shape)
by_prefix = torch.randn(where.state_count, dtype=torch.float64, generator=generator)[where.states]
by_token = torch.randn(3, dtype=torch.float64, generator=generator)[where.tokens]
show("answers", len(where.tokens))
show("no baseline: off by", off_by(whole))
show("baseline from the tokens before: off by", off_by(whole - by_prefix))
show("baseline from the token itself: off by", off_by(whole - by_token), digits=2)

# %% [markdown]
# ### The mean of the group is nearly a baseline
#
# The mean of all answers of a group contains the answer's own reward. It multiplies the gradient by $1 - 1/n$. The cell
# computes this exactly, over all groups of two and of three samples of X, Y, Z.

# %%
gradient = pi_xyz * (R_xyz - pi_xyz @ R_xyz)  # the slopes of lesson 02
for n in (2, 3):
    groups = torch.cartesian_prod(*[torch.arange(3)] * n)  # (3^n, n): every group
    chance, number = pi_xyz[groups].prod(-1), torch.arange(len(groups)).repeat_interleave(n)
    drawn = R_xyz[groups].flatten()
    for name, of_answers, expected in (
        ("mean of the group", group_normalised(drawn, number, by_std=False), 1 - 1 / n),
        ("mean of the others", leave_one_out(drawn, number), 1.0),
    ):
        factor = chance @ (of_answers.view(-1, n, 1) * scores_xyz[groups]).mean(1) / gradient
        show(f"groups of {n}, minus {name}", float(factor[0]), "× the gradient")
        assert torch.allclose(factor, torch.full_like(factor, expected), rtol=0, atol=1e-8)

# %% [markdown]
# ### The mismatch, seen in the scores
#
# `kv_fp8_e5m2` is a run of a tiny model on running sums: `3+5+9=` must become `3,8,17`. Its engine has a KV cache in
# 8 bits, as in lesson 00. It samples with $q$, and the trainer differentiates $p$. At some positions the run recorded
# **all** possible next tokens, so the average score there is an exact sum. **Look for** the distance between the two
# lines. The height of a point is the length of the average score, as a share of the length of a typical score. Weighted
# by $p/q$, the average score is 0, up to the 16 bits in which scores are stored.

# %%
gap_batch, gap_sketch = load("kv_fp8_e5m2")
places = gap_sketch.next_tokens
assert places is not None
assert places.rollout_log_probs is not None
p_next, q_next = places.log_probs.double().exp(), places.rollout_log_probs.double().exp()
s_next = places.scores.double()  # (places, tokens, K)
typical = (p_next * s_next.square().sum(-1)).sum(-1).sqrt()
once, by_ratio = (
    (counts[..., None] * s_next).sum(1).norm(dim=-1) / typical for counts in (q_next, q_next * (p_next / q_next))
)

lines = {"weight 1": once.tolist(), "weight p/q": by_ratio.tolist()}
y_name = "‖average score‖ / typical ‖s‖"
picture(curves(list(range(1, len(once) + 1)), lines, x_name="recorded position", y_name=y_name, log="y"))


# %% tags=["hide-input"]
def against_chance(scores):
    """Return (length of the average over the length that chance alone gives)², ± two standard deviations of that."""
    average, covariance = scores.mean(0), scores.T.cov() / len(scores)
    share = float(average.square().sum() / covariance.trace())
    spread = float((2 * covariance.square().sum()).sqrt() / covariance.trace())
    return Interval(share, share - 2 * spread, share + 2 * spread)


assert (by_ratio < 1e-3).all()
gap_scores = pushes(gap_batch, gap_sketch, torch.ones(len(gap_batch.response_mask), dtype=torch.float64))
say(f"""
With weight 1, the average score reaches {once.max():.2f} of a typical score. Then every baseline adds
$-b\\, \\mathbb{{E}}_q[s]$ to the gradient, which has nothing to do with rewards. A sample may not show this: over the
{len(gap_scores)} sampled answers, the squared length of the average score is
{untold(against_chance(gap_scores), 1, 1)} times what chance alone gives, and this interval contains 1.
""")

# %% [markdown]
# ### Do the scores of control_fp32 average to 0?
#
# They should, because there is no mismatch. We check the exact averages at the positions whose next tokens are all
# recorded, and then the sampled answers, compared with chance.

# %% tags=["hide-input"]
places = sketch.next_tokens
assert places is not None
p_next, s_next = places.log_probs.double().exp(), places.scores.double()
typical = (p_next * s_next.square().sum(-1)).sum(-1).sqrt()
assert ((p_next[..., None] * s_next).sum(1).norm(dim=-1) < 1e-3 * typical).all()
say(f"""
At all {len(p_next)} positions the average over the next token is below a thousandth of a typical score. Over the
{len(answer_scores)} sampled answers, the squared length of the average score is
{untold(against_chance(answer_scores), 1)} times what chance alone gives, and this interval contains 1.
""")

# %% [markdown]
# ### The losses, with symbols

# %%
theta = sympy.symbols("theta_X theta_Y theta_Z", real=True)
P, Q = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pq")
ADV = sympy.symbols("A_X A_Y A_Z", real=True)
exps = [sympy.exp(x) for x in theta]
PI = [x / sympy.Add(*exps) for x in exps]


def grad(x):
    return [sympy.diff(x, parameter) for parameter in theta]


def average_over(weights, terms):
    return sympy.Add(*(w * x for w, x in zip(weights, terms, strict=True)))


def all_same(left, right):
    return all(sympy.simplify(a - b) == 0 for a, b in zip(left, right, strict=True))


J = average_over(PI, ADV)
rho = [pi_a / p_a for pi_a, p_a in zip(PI, P, strict=True)]
weight = [p_a / q_a for p_a, q_a in zip(P, Q, strict=True)]
score = [grad(sympy.log(pi_a)) for pi_a in PI]  # s of each action

bypass_reinforce = [
    average_over(Q, [pi_a / q_a * a * s[k] for pi_a, q_a, a, s in zip(PI, Q, ADV, score, strict=True)])
    for k in range(3)
]
decoupled = [average_over(Q, [w * a * grad(x)[k] for w, a, x in zip(weight, ADV, rho, strict=True)]) for k in range(3)]
assert all_same(bypass_reinforce, grad(J))  # bypass REINFORCE, for every θ
assert all_same(decoupled, grad(J))  # decoupled PPO without its bounds, for every θ
assert all_same([average_over(P, [a * x for a, x in zip(ADV, rho, strict=True)])], [J])  # the surrogate is J
assert all_same(
    [w * x for w, x in zip(weight, rho, strict=True)], [pi_a / q_a for pi_a, q_a in zip(PI, Q, strict=True)]
)  # r ρ = π/q

at_the_start = dict(zip(P, PI, strict=True))  # π = p
for x, s in zip(rho, score, strict=True):
    assert all_same([g.subs(at_the_start) for g in grad(x)], s)  # ∇ρ = ∇ log π

show("bypass REINFORCE: E_q[rρ A s] = ∇J", "for every θ")
show("decoupled PPO: E_q[r A ∇ρ] = ∇J", "for every θ")
show("first step: ∇ρ = ∇ log π", "where π = p")

# %% [markdown]
# What does PPO do **without** the weight, if the tokens come from $q$? At the first step its gradient is
# $\mathbb{E}_q[A \nabla \log \pi] = \mathbb{E}_p\big[\tfrac{A}{r} \nabla \log \pi\big]$. This is the right gradient for
# other advantages, $A/r$. So a token to which the trainer gives a higher probability than the engine ($r > 1$) counts
# too little.

# %%
unweighted = [average_over(Q, [a * s[k] for a, s in zip(ADV, score, strict=True)]).subs(at_the_start) for k in range(3)]
divided = [sympy.Symbol(f"b_{k}", real=True) for k in range(3)]  # A/r, held constant
other_J = grad(average_over(PI, divided))
for k in range(3):
    swapped = other_J[k].subs({b: a * q_a / pi_a for b, a, q_a, pi_a in zip(divided, ADV, Q, PI, strict=True)})
    assert sympy.simplify(unweighted[k] - swapped) == 0
show("without weights, the first step uses", "A/r")

# %% [markdown]
# ### The losses in a small world
#
# `toy` lists every answer, so averages are exact sums. The number is the **relative bias**: the distance of the average
# gradient from the right one, divided by the length of the right one. In the first world an answer is one token; in the
# second it has up to three. "Later" means that $\pi$ has moved a little away from $p$, not far enough to be clipped.

# %%
LADDER = {
    "REINFORCE": CorrectionConfig(loss_type="gpg"),
    "PPO": preset("disabled"),
    "decoupled PPO, token weights": CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
    "decoupled PPO, answer weights": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
    "bypass REINFORCE, answer weights": CorrectionConfig(
        rollout_is="sequence", rollout_is_threshold=math.inf, bypass_mode=True, loss_type="reinforce"
    ),
}
SUM = LossConfig(loss_agg_mode="token-sum")


def exact(where, config, moved):
    rollout = toy.random_policy(where, 1)
    old = rollout + toy.random_policy(where, 2, 0.5)
    now = old + toy.random_policy(where, 3, moved)
    rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return toy.gradient_truth(where, toy.Policies(rollout, old, now), rewards, config, SUM)


worlds = (toy.world(4, 1), toy.world(4, 3))
show("answers", [len(where.tokens) for where in worlds for _ in range(2)])
show("", "first", "later", "first", "later")
biases = {}
for name, config in LADDER.items():
    biases[name] = [exact(where, config, moved).relative_bias for where in worlds for moved in (0.0, 0.05)]
    show(name, biases[name])

assert biases["PPO"][0] == biases["REINFORCE"][0]  # the first step
assert max(biases["decoupled PPO, token weights"][:2]) < 1e-12  # one token
assert biases["decoupled PPO, answer weights"][2] < 1e-12  # the first step
assert 0.01 < biases["decoupled PPO, answer weights"][3] < 0.1
assert biases["decoupled PPO, token weights"][2] > biases["PPO"][2]
assert max(biases["bypass REINFORCE, answer weights"]) < 1e-12  # always
for where in worlds:  # the same first step, answer by answer
    first = [exact(where, LADDER[name], 0.0).expectation for name in list(LADDER)[3:]]
    assert torch.allclose(*first, rtol=0, atol=1e-14)

# %% [markdown]
# - The first two rows have no weight, and a bias in every column.
# - With **one token** per answer every weight is exact, as the symbols showed.
# - With **several tokens**, only a weight of the whole answer is exact. Token weights repair the choice of a token, but
#   neither how often the engine reaches the text before it, nor what the engine writes after it (lesson 07). In this
#   world their bias is even larger than without a weight.
# - **Later**, decoupled PPO has a small bias even with the weight of the answer. Its $\rho$ is that of one token, and
#   the exact ratio would be the product over the answer. PPO accepts this in general; the clip keeps it small.
#
# ### The clip, with autograd
#
# **Look for** the two flat pieces, one for each sign of $A$. The other two pieces outside the dotted bounds are not
# flat.

# %%
grid = torch.linspace(0.4, 1.6, 49, dtype=torch.float64)
lines = {}
for sign in (1.0, -1.0):
    log_pi = grid.log().requires_grad_()
    objective = -ppo_clip(log_pi, torch.zeros_like(grid), torch.full_like(grid, sign), low=0.2, high=0.2)
    slope = torch.autograd.grad(objective.sum(), log_pi)[0]
    assert (objective <= sign * grid + 1e-15).all()  # pessimistic
    flat = grid > 1.2 + 1e-9 if sign > 0 else grid < 0.8 - 1e-9
    assert (slope[flat] == 0).all()
    assert torch.allclose(slope[~flat], sign * grid[~flat])  # c = A ρ
    lines[f"A = {sign:+.0f}"] = [round(x, 6) for x in objective.tolist()]
picture(
    curves([round(x, 6) for x in grid.tolist()], lines, x_name="ρ = π/p", y_name="clipped objective", marks=(0.8, 1.2))
)

# %% [markdown]
# ### The losses on recorded tokens
#
# The identities are true for each token, here for those of `stale_4`, a run of a tiny model.

# %%
batch = before_update("stale_4")
assert batch.advantages is not None
mask, credit = batch.response_mask, batch.advantages.where(batch.response_mask, 0)
r = correct(batch, CorrectionConfig()).log_ratio.where(mask, 0).exp()
verl = ("disabled", "decoupled_seq_is", "bypass_pg_is", "bypass_ppo_clip")
c = {name: coefficients(batch.old_log_probs, batch, preset(name)) for name in verl}
weights = correct(batch, preset("decoupled_seq_is")).weights

assert torch.allclose(c["disabled"], credit)  # PPO is REINFORCE at the first step
assert torch.allclose(c["decoupled_seq_is"], weights * c["disabled"])  # decoupled: the weight in front
assert torch.allclose(c["bypass_pg_is"], c["decoupled_seq_is"])  # bypass REINFORCE takes the same first step
inside = (torch.sign(credit) * (r - 1) <= 0.2) & mask
assert torch.allclose(c["bypass_ppo_clip"], torch.where(inside, r * credit, 0))
show("tokens with these identities", int(mask.sum()))

# %% [markdown]
# ### An interval from one batch
#
# A **score sketch** (lesson 10) lets us compare the gradients of two losses on the same data. Noise and bias are
# lengths of vectors; their unit is the length of the exact gradient, the one that the trainer's own answers would give
# on average. A bias of 1 means: the average gradient is as far from the exact one as no gradient at all. We compare
# first on the recorded answers of a step of `stale_head`, a tiny model, and then on **every likely answer** to all its
# prompts, with the engine's probabilities as weights.

# %%
run = runs.find_run("stale_head")
recorded, sketch = updated_batch(run, last_sketch(run)), read_sketch(run, last_sketch(run))
complete, all_answers = read_gradients(run, last_sketch(run))
compared, size = {}, [len(recorded.response_mask)]
for answers, data in (("recorded answers", (recorded, sketch)), ("all likely answers", (complete, all_answers))):
    show(f"stale_head, {answers}: minus decoupled PPO", "value", "from", "to")
    for label in ("bypass PPO", "bypass PPO, dual clip"):
        difference = compare_gradients(*data, METHODS["decoupled PPO"], METHODS[label], batch_sizes=size)
        compared[answers, label] = difference
        for what, interval in (("noise", difference.noise[0]), ("bias", difference.bias)):
            show(f"  {label}, {what}", interval.value, interval.low, interval.high, digits=2)


# %% tags=["hide-input"]
def loud(batch):
    """Return the answers with a token that has r > 3 and A < 0: only dual clip removes it."""
    r = correct(batch, CorrectionConfig()).log_ratio.exp()
    return ((r > 3) & (batch.advantages < 0) & batch.response_mask).any(-1)


sampled, exact = (compared[answers, "bypass PPO"] for answers in ("recorded answers", "all likely answers"))
damped = compared["all likely answers", "bypass PPO, dual clip"]
assert compared["recorded answers", "bypass PPO, dual clip"].noise[0] == sampled.noise[0]
assert not loud(recorded).any()
assert isinstance(all_answers, ExactSketch)
often = all_answers.answers.sampled  # the probability of each answer under the engine
loud_share = float(often[loud(complete)].sum() / often.sum())
say(f"""
On all answers, the noise of **bypass PPO** minus that of decoupled PPO is {above(exact.noise[0])}, so it is **larger**.
With **dual clip** the difference is {below(damped.noise[0])}, so it is **smaller**. One bound turns the sign. PPO's
clip stops a token with a large $r$ only if $A>0$; if $A<0$, the token keeps its coefficient $rA$, and in bypass mode
nothing but dual clip limits it. Such answers are rare and have a large effect: a share of {loud_share:.4f} of all
answers has a token above the second bound with $A<0$.

None of the {len(recorded.response_mask)} recorded answers has such a token. So on them the two losses are the same, and
the difference is {below(sampled.noise[0])}. A bootstrap can only repeat what is in the sample. **An interval from one
batch is about the answers that are in this batch.**

With all answers the bias is known as well. It is {above(exact.bias)} larger than that of decoupled PPO, and
{above(damped.bias)} with dual clip. So dual clip lowers the noise and hardly changes the bias. On the recorded answers
the difference of the bias is {untold(sampled.bias)}, which includes 0.
""")

# %% [markdown]
# ### What each framework calls them
#
# The sources of the presets name the exact commits at which we read this.
#
# | system | $\log q$ | policies | how to leave out $p$ | how to weight with $p/q$ |
# |---|---|---|---|---|
# | verl | `rollout_log_probs` | three | `rollout_correction.bypass_mode` | `rollout_correction.rollout_is` |
# | SkyRL | `rollout_logprobs` | three | loss `rollout_is` or `dppo` | `off_policy_correction.tis_ratio_type` |
# | TRL | `sampling_per_token_logps` | three, async two | – | `vllm_importance_sampling_correction` (on) |
# | slime | `rollout_log_probs` | three | `--use-rollout-logprobs` | `--use-tis` |
# | OpenRLHF | from vLLM | three, GSPO two | – | `--algo.advantage.is_correction_enable` |
# | NeMo RL | `generation_logprobs` | three | – | `use_importance_sampling_correction` |
# | AReaL | behaviour | three, if asked | `use_decoupled_loss: false` (default) | `rejection_sampling`, action `clamp` |
# | ROLL | `infer_logprobs` | three | – | `train_infer_correction.is_weight` |
# | open-instruct | `logprobs` | three | `--use_vllm_logprobs` | `--use_rho_correction` (on) |
# | prime-rl | `inference_logprobs` | two | always | the ratio is $\pi/q$ |
# | torchtitan, Tinker, PipelineRL | sampler's | two | always | the ratio is $\pi/q$ |
#
# $p$ is `old_log_probs` (verl, SkyRL), `prev_logprobs` (NeMo RL), the **proximal** policy (AReaL, and the paper that
# invented it); $q$ is then the **behaviour** policy. The presets of this project say which of them leave $p$ out:

# %%
bypassing = {}
for entry in PRESETS.values():
    bypassing.setdefault(entry.system, []).append(entry.config.bypass_mode)
show("system", "presets", "bypass")
for system, flags in bypassing.items():
    if any(flags):
        show(system, len(flags), sum(flags))

# %% [markdown]
# Bypass mode together with a weight $p/q$ would correct **twice**. The library refuses it:

# %%
try:
    CorrectionConfig(bypass_mode=True, loss_type="ppo_clip", rollout_is="token")
except UsageError as refused:
    show(str(refused).split(";")[0])
