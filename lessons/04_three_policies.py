# %% [markdown]
# # 04 · Three policies: what each ratio compares
#
# **Claim.** REINFORCE, PPO, decoupled PPO and bypass mode have the same gradient, up to a weight and a clip per token.
# They differ in the two policies that their ratio compares, and in what they clip.
#
# ![three policies in time](diagrams/policies.svg)
#
# *85 minutes · intermediate · any laptop; no GPU, no network.* You need the policy gradient of lesson 01 and the
# weights of lesson 02. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - say which three policies there are, and which two each ratio compares;
# - decide by hand whether PPO's clip removes the gradient of a token;
# - compute the coefficient of a token under six losses, and say what the second bound of verl's PPO is for;
# - say what bypass mode saves, and what it loses.
#
# ## Warm-up
#
# Two questions on older lessons.
#
# **1. What does it mean that a weighted estimate is unbiased?** (Lesson 02)
#
# <details><summary>It is close to the truth in every sample.</summary>No. In one sample it may be far off.</details>
# <details><summary>Its average over all possible samples is the truth.</summary>Yes.</details>
# <details><summary>Its weights are all 1.</summary>No. They average to 1.</details>
#
# **2. The score $s = \nabla \log \pi$ of the sampled action is multiplied by −3 in an update. What happens?** (Lesson
# 01)
#
# <details><summary>The action becomes less probable, and all others together more probable.</summary>Yes.</details>
# <details><summary>Nothing, because scores average to 0.</summary>No. They do so over all actions. Here one was
# sampled.</details>
# <details><summary>The action becomes more probable.</summary>No. The score makes it more probable, and the factor is
# negative.</details>

# %% tags=["hide-input"]
import math

import sympy
import torch
from curves import curves
from exercises.lesson_04 import DECOUPLED_COEFFICIENT, PPO_COEFFICIENT, SILENT_SHARE
from exercises.mini_checks import CLIPPED
from sentences import above, below, bracketed, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import KEPT, REJECTED, fade, figure
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.report import compare_gradients
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.objective import policy_loss, score_coefficients
from rlcorr.losses.per_token import ppo_clip
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch, updated_batch
from rlcorr.records.study import read_study
from rlcorr.records.study_comparisons import comparisons
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(4)

# %% [markdown]
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
# as in lesson 02. The weight is $\pi/q = r\rho$:
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
# - For longer answers, the weight must be that of the whole answer (lesson 06). Even then decoupled PPO is exact at the
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
rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
STEPS, BATCHES, ANSWERS = 30, 16, 32
WALK = METHODS | {"decoupled PPO": preset("decoupled_seq_is"), "bypass REINFORCE": preset("bypass_pg_is")}
del WALK["bypass PPO, dual clip"]  # its line is that of bypass PPO


def walk(rows, config):
    """Return KL(p‖π) after each step on these answers, and KL(q‖π) at the end."""
    advantages = (rewards[rows] - rewards[rows].mean())[:, None].expand(len(rows), where.mask.shape[1])
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
drawn = resampled(BATCHES, 1000, 0).double() / BATCHES
ends = {
    name: (drawn @ of_batches[:, :-1])[1:].quantile(torch.tensor([0.025, 0.975]).double(), 0)
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
    return interval_of(drawn @ (walks[name] - walks[than])[:, column], signed=True)


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
# ## Predict, then reveal
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
    for axis, tokens, silent in (
        ("y", signs, [x >= 1 + clip - 1e-9 for x in left]),
        ("y2", ~signs, [x + STEP <= 1 - clip + 1e-9 for x in left]),
    ):
        for name, colour, shown in (("with a gradient", KEPT, False), ("silent", REJECTED, True)):
            heights = [count if mute == shown else 0 for count, mute in zip(bars_of(tokens), silent, strict=True)]
            bar = {"type": "bar", "x": [round(x + STEP / 2, 3) for x in left], "y": heights, "yaxis": axis}
            traces.append(bar | {"name": name, "marker": {"color": colour}, "showlegend": axis == "y"})
    low, high = {"title_text": "tokens, A > 0", "type": "log", "domain": [0.55, 1]}, {"title_text": "ratio p/q"}
    drawn = figure(traces, height=380, x=high | {"anchor": "y2"}, y=low, legend=True)
    below_ = {
        "title": {"text": "tokens, A < 0", "font": {"size": 12}},
        "type": "log",
        "domain": [0, 0.45],
        "gridcolor": fade(REJECTED, 0.25),
    }
    return drawn.update_layout(yaxis2=below_)


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
say(f"""
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
# ## Exercise 3: silent before the first step
#
# *5 minutes.* Take bypass PPO before its first step, without dual clip. Of the real tokens with an advantage other than
# 0, return the share that has no gradient because of the clip. All tensors are `(B, T)`; padding may contain anything.
#
# <details><summary>Hint 1</summary>Before the first step π = p, so the ratio of bypass mode is p/q.</details>
# <details><summary>Hint 2</summary>A comparison with nan is False, but the nan still counts as an element.</details>


# %%
def silent_share(p, q, advantage, mask, epsilon):
    raise NotImplementedError("exercise 3: write silent_share, then run this cell and the next.")


# %% tags=["check"]
check(silent_share, SILENT_SHARE)


# %% tags=["solution", "hide-input"]
def silent_share_solution(p, q, advantage, mask, epsilon):
    counted = mask & (advantage != 0)
    ratio, a = (p / q)[counted], advantage[counted]
    return (((a > 0) & (ratio > 1 + epsilon)) | ((a < 0) & (ratio < 1 - epsilon))).double().mean()


check(silent_share_solution, SILENT_SHARE)

# %% [markdown]
# ## mini.py, piece 5: PPO's clip
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

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.
#
# ### The losses, with symbols

# %%
theta = sympy.symbols("theta_X theta_Y theta_Z", real=True)
P, Q = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pq")
ADV = sympy.symbols("A_X A_Y A_Z", real=True)
exps = [sympy.exp(x) for x in theta]
PI = [x / sympy.Add(*exps) for x in exps]


def grad(x):
    return [sympy.diff(x, parameter) for parameter in theta]


def average(weights, terms):
    return sympy.Add(*(w * x for w, x in zip(weights, terms, strict=True)))


def same(left, right):
    return all(sympy.simplify(a - b) == 0 for a, b in zip(left, right, strict=True))


J = average(PI, ADV)
rho = [pi_a / p_a for pi_a, p_a in zip(PI, P, strict=True)]
weight = [p_a / q_a for p_a, q_a in zip(P, Q, strict=True)]
score = [grad(sympy.log(pi_a)) for pi_a in PI]  # s of each action

bypass_reinforce = [
    average(Q, [pi_a / q_a * a * s[k] for pi_a, q_a, a, s in zip(PI, Q, ADV, score, strict=True)]) for k in range(3)
]
decoupled = [average(Q, [w * a * grad(x)[k] for w, a, x in zip(weight, ADV, rho, strict=True)]) for k in range(3)]
assert same(bypass_reinforce, grad(J))  # bypass REINFORCE, for every θ
assert same(decoupled, grad(J))  # decoupled PPO without its bounds, for every θ
assert same([average(P, [a * x for a, x in zip(ADV, rho, strict=True)])], [J])  # the surrogate is J
assert same(
    [w * x for w, x in zip(weight, rho, strict=True)], [pi_a / q_a for pi_a, q_a in zip(PI, Q, strict=True)]
)  # r ρ = π/q

at_the_start = dict(zip(P, PI, strict=True))  # π = p
for x, s in zip(rho, score, strict=True):
    assert same([g.subs(at_the_start) for g in grad(x)], s)  # ∇ρ = ∇ log π

show("bypass REINFORCE: E_q[rρ A s] = ∇J", "for every θ")
show("decoupled PPO: E_q[r A ∇ρ] = ∇J", "for every θ")
show("first step: ∇ρ = ∇ log π", "where π = p")

# %% [markdown]
# What does PPO do **without** the weight, if the tokens come from $q$? At the first step its gradient is
# $\mathbb{E}_q[A \nabla \log \pi] = \mathbb{E}_p\big[\tfrac{A}{r} \nabla \log \pi\big]$. This is the right gradient for
# other advantages, $A/r$. So a token to which the trainer gives a higher probability than the engine ($r > 1$) counts
# too little.

# %%
unweighted = [average(Q, [a * s[k] for a, s in zip(ADV, score, strict=True)]).subs(at_the_start) for k in range(3)]
divided = [sympy.Symbol(f"b_{k}", real=True) for k in range(3)]  # A/r, held constant
other_J = grad(average(PI, divided))
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
#   neither how often the engine reaches the text before it, nor what the engine writes after it (lesson 06). In this
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
mask, advantages = batch.response_mask, batch.advantages.where(batch.response_mask, 0)
r = correct(batch, CorrectionConfig()).log_ratio.where(mask, 0).exp()
verl = ("disabled", "decoupled_seq_is", "bypass_pg_is", "bypass_ppo_clip")
c = {name: coefficients(batch.old_log_probs, batch, preset(name)) for name in verl}
weights = correct(batch, preset("decoupled_seq_is")).weights

assert torch.allclose(c["disabled"], advantages)  # PPO is REINFORCE at the first step
assert torch.allclose(c["decoupled_seq_is"], weights * c["disabled"])  # decoupled: the weight in front
assert torch.allclose(c["bypass_pg_is"], c["decoupled_seq_is"])  # bypass REINFORCE takes the same first step
inside = (torch.sign(advantages) * (r - 1) <= 0.2) & mask
assert torch.allclose(c["bypass_ppo_clip"], torch.where(inside, r * advantages, 0))
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
