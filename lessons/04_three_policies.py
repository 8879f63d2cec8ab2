# %% [markdown]
# # 04 · Three policies: what each ratio compares
#
# **Claim.** REINFORCE, PPO, decoupled PPO and bypass mode are one gradient, weighted and clipped; they differ in which
# two policies their ratio compares, and in what they clip.
#
# ![three policies in time](diagrams/policies.svg)
#
# *25 minutes · intermediate · any laptop; no GPU, no network.* Lessons 01 and 02 are assumed: the policy gradient, and
# importance weights. Letters: [Notation](NOTATION.md).
#
# At the end you can say whether PPO's clip takes a token's gradient, and what bypass mode saves and loses.

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_04 import DECOUPLED_COEFFICIENT, PPO_COEFFICIENT, SILENT_SHARE
from sentences import above, below, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.objective import policy_loss, score_coefficients
from rlcorr.losses.per_token import ppo_clip
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch, updated_batch
from rlcorr.records.study import read_study
from rlcorr.records.study_comparisons import comparisons
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(4)

# %% [markdown]
# ## Three policies, three ratios
#
# One batch is usually good for several optimizer steps. The engine drew it with $q$, the trainer scored it with $p$,
# and every step moves $\pi$ away from $p$. So there are three ratios:
#
# $$ r=\frac pq\;\text{(the mismatch)},\qquad \rho=\frac\pi p\;\text{(the move)},\qquad
# r\rho=\frac\pi q\;\text{(both)}. $$
#
# $r$ was there before we did anything. $\rho$ is our own doing. A loss that sees only $\pi/q$ cannot tell them apart.
# **Bypass mode** is such a loss: it puts $q$ in the place of $p$, and the trainer never scores the batch.
#
# Every loss here has a gradient of one form, so a loss is one number per token, its coefficient $c$:
# $-\nabla L=\sum_tc_t\nabla\log\pi_t$.
#
# | loss | $c$ | what is clipped |
# |---|---|---|
# | REINFORCE | $A$ | nothing |
# | PPO | $\rho A$, or 0 | $\rho$ |
# | decoupled PPO | $w\rho A$, or 0 | $\rho$; the weight $w=\min(r,C)$ has its own cap |
# | bypass PPO | $r\rho A$, or 0 | $r\rho$ |
# | bypass REINFORCE | $\min(r\rho,C)\,A$ | only the cap |
#
# ## By hand: three tokens
#
# PPO's clip is 0.2 on either side, the cap is 2. A token has coefficient 0 if the ratio that is clipped lies more than
# 0.2 from 1 **in the direction that $A$ pushes**. Work out the rows of PPO and bypass PPO before you run the cell.


# %%
def coefficients(log_pi, batch, config):
    """c of every token; tokens=1, so that nothing is divided by their number."""
    return score_coefficients(log_pi, batch, correct(batch, config), config, LossConfig(), tokens=1, sequences=1)


METHODS = {"REINFORCE": CorrectionConfig(loss_type="gpg"), "PPO": preset("disabled")}  # gpg: c = A
METHODS |= {"decoupled PPO": preset("decoupled_token_is"), "bypass PPO": preset("bypass_ppo_clip")}
METHODS["bypass REINFORCE"] = CorrectionConfig(bypass_mode=True, loss_type="reinforce", rollout_is="token")
q, p, pi, A = torch.tensor([[0.5, 0.4, 0.6], [0.4, 0.5, 0.3], [0.5, 0.5, 0.3], [1.0, 1.0, -1.0]]).double()[:, None]
three_tokens = TokenBatch.from_log_probs(p.log(), q.log(), torch.ones_like(p)).replace(advantages=A)
for name, row in {"A": A, "mismatch, r = p/q": p / q, "move, ρ = π/p": pi / p, "both, π/q": pi / q}.items():
    show(name, row)
for name, config in METHODS.items():
    show(f"c of {name}", coefficients(pi.log(), three_tokens, config))

# %% [markdown]
# By hand: the first token has moved by 25 %, so PPO no longer pushes it. But its move cancels its mismatch, $\pi/q=1$,
# and bypass PPO sees no move at all. The other two have **not** moved. They start with a mismatch of 1.25 and 0.5, and
# bypass PPO has clipped both before the first step.
#
# ## The equation, loss by loss
#
# **Bypass REINFORCE.** We want the gradient of $J=\sum_a\pi(a)A(a)$, and the tokens come from $q$. Weigh them:
#
# $$ \nabla J=\mathbb{E}_q\big[r\rho\,A\,\nabla\log\pi\big]. $$
#
# Without its cap this is exact for every $\pi$, but the weight changes with every step.
#
# **PPO.** If $q=p$, this is the gradient of $\mathbb{E}_p[A\rho]$, the **surrogate**, since
# $\nabla\rho=\rho\,\nabla\log\pi$. PPO clips it.
#
# **Decoupled PPO.** If $q\ne p$, split the ratio into a fixed weight and the move:
# $\nabla J=\mathbb{E}_q[r\,A\,\nabla\rho]$. The weight repairs the mismatch, the clip limits the move.
#
# **The first step.** Before it $\rho=1$: PPO **is** REINFORCE there, and decoupled PPO is REINFORCE weighted with $r$.
#
# What is exact? For answers of one token, both losses with a weight, if nothing is bounded. For longer answers the
# weight must be that of the whole answer (lesson 06), and decoupled PPO, whose $\rho$ is a single token's, is then
# exact at the first step only. Without a weight, REINFORCE and PPO are in general biased where $q\ne p$ (appendix).
#
# **The clip** replaces $A\rho$ by a lower bound, so that the surrogate is never overrated:
#
# $$ \min\big(A\rho,\;A\,\mathrm{clip}(\rho,1-\varepsilon,1+\varepsilon)\big). $$
#
# The second of the two is constant beyond the bounds, and has no gradient there:
#
# | | $\rho<1-\varepsilon$ | inside | $\rho>1+\varepsilon$ |
# |---|---|---|---|
# | $A>0$, push up | $A\rho$ | $A\rho$ | constant, **gradient 0** |
# | $A<0$, push down | constant, **gradient 0** | $A\rho$ | $A\rho$ |
#
# So the clip is no wall. It pulls no token back, it only stops pushing.
#
# ## One batch, many steps
#
# Where does each loss stop? In a toy world batches come from $q$; the trainer starts at $p$, which is not $q$, and
# takes many steps on the same batch. **Look for** the lines that flatten. (PPO's lies under that of decoupled PPO.)

# %% tags=["hide-input"]
where = toy.world(4, 3)
rollout = toy.random_policy(where, 1)
old = rollout + toy.random_policy(where, 2, 0.4)
rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
STEPS, BATCHES, ANSWERS = 30, 16, 32
WALK = METHODS | {"decoupled PPO": preset("decoupled_seq_is"), "bypass REINFORCE": preset("bypass_pg_is")}


def walk(rows, config):
    """KL(p‖π) after each step on these answers, and KL(q‖π) at the end."""
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
lines = {name: [round(x, 6) for x in of_batches.mean(0)[:-1].tolist()] for name, of_batches in walks.items()}
picture(curves(list(range(STEPS + 1)), lines, x_name="optimizer step on the same batch", y_name="KL(p‖π), nats"))


# %% tags=["hide-input"]
def further(name, than, place=-2):
    """By how much one ends further away, on the same batches: place -2 is KL(p‖π), -1 is KL(q‖π)."""
    drawn = resampled(BATCHES, 1000, 0).double() / BATCHES
    return interval_of(drawn @ (walks[name] - walks[than])[:, place], signed=True)


last = {name: of_batches.mean(0)[STEPS] - of_batches.mean(0)[STEPS - 10] for name, of_batches in walks.items()}
assert max(last["PPO"], last["decoupled PPO"]) < 0.1 * last["REINFORCE"]
assert further("bypass REINFORCE", "bypass PPO").low > 0
say(f"""
PPO and decoupled PPO stop near $p$. Bypass PPO ends {above(further("bypass PPO", "PPO"), 0, 3)} nats further
from $p$ than PPO, and nearer to $q$ (difference {below(further("bypass PPO", "PPO", -1), 0, 3)}): its clip is centred
on $q$. The two losses without a clip do not stop. (Intervals over {BATCHES} batches of this one world.)
""")

# %% [markdown]
# ## Predict, then reveal
#
# Now recorded runs. `bf16` has an engine in bfloat16, `kv_fp8_e5m2` one with a coarse cache, in `stale_4` it has older
# weights. Take the last recorded step of each, **before** its update, so $\pi=p$. **Write down a guess:**
#
# 1. Which share of the tokens has no gradient in PPO with three policies?
# 2. And in bypass PPO?


# %%
def before_update(name, n=-1):
    """The n-th recorded step, with its advantages as the update sees them."""
    run = runs.find_run(name)
    return updated_batch(run, runs.list_steps(run)[n])


def silenced(batch, method):
    """(B, T): the tokens whose gradient a loss takes away before the first step."""
    c = coefficients(batch.old_log_probs, batch, METHODS[method])
    return (c == 0) & (batch.advantages != 0) & batch.response_mask


show("tokens without a gradient in", "PPO", "bypass", "of")
for batch, name in ((before_update(name), name) for name in ("bf16", "kv_fp8_e5m2", "stale_4")):
    show(name, *(int(silenced(batch, m).sum()) for m in ("PPO", "bypass PPO")), int(batch.response_mask.sum()))

# %% [markdown]
# With three policies $\rho=1$, and nothing is clipped. In bypass mode the mismatch alone takes some tokens out of
# bounds: they are **silent**. **Look for** where the dotted bounds meet the lines, in `stale_4`: the heights of the
# first line at the upper bound and of the second at the lower one add up to the silent share. Drag the clip.

# %% tags=["hide-input"]
batch = before_update("stale_4")
assert batch.advantages is not None
mask, across = batch.response_mask, [round(0.3 + 0.05 * n, 2) for n in range(45)]
ratios = correct(batch, CorrectionConfig()).log_ratio[mask].double().exp()
up, down = batch.advantages[mask] > 0, batch.advantages[mask] < 0
lines = {
    "A > 0, ratio above": [float((up & (ratios > x)).double().mean()) for x in across],
    "A < 0, ratio below": [float((down & (ratios < x)).double().mean()) for x in across],
}


def within(clip):
    return curves(across, lines, x_name="ratio p/q", y_name="share of all tokens", marks=(1 - clip, 1 + clip))


WIDTHS = 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7
moving_picture("clip", {f"{clip:g}": within(clip) for clip in WIDTHS}, "0.2")


def share(batch):
    """Of the tokens that bypass PPO silences, in percent; the bootstrap draws whole answers."""
    drawn = resampled(len(batch.response_mask), 1000, 0).double()
    silent, tokens = silenced(batch, "bypass PPO").double().sum(-1), batch.response_mask.double().sum(-1)
    return interval_of(100 * (drawn @ silent) / (drawn @ tokens), signed=False)


SHARES = {
    name: [share(before_update(name, n)) for n in range(len(runs.list_steps(runs.find_run(name))))]
    for name in ("bf16", "kv_fp8_e5m2", "stale_4")
}
assert all(x.high == 0 for x in SHARES["bf16"])
assert all(x.low > 0 for name in ("kv_fp8_e5m2", "stale_4") for x in SHARES[name])
say(f"""
At this step bypass PPO silences {above(SHARES["stale_4"][-1], 0, 1)} % of the tokens of `stale_4` and
{above(SHARES["kv_fp8_e5m2"][-1], 0, 1)} % of those of `kv_fp8_e5m2`; at every other recorded step of these runs the
interval is above 0, too. In `bf16` no token of any recorded step is touched.
""")

# %% [markdown]
# ## What bypass mode saves, and what it loses
#
# By hand: count a forward pass as 1 and a backward pass as 2. To score the batch before the update costs 1, an epoch
# over it costs 3. With $E$ epochs bypass mode saves $\frac1{1+3E}$ of the trainer's passes: a quarter for one epoch.
#
# It **loses** three things. The mismatch and the move share one bound. The clip holds $\pi$ near the engine, not near
# where the update began. And without $p$ there is no $p/q$ to measure.
#
# Does it matter for the reward? A study (`runs/README.md`) trained with each loss under two mismatches that break a
# training. These are differences of the mean reward over the last quarter of the steps:

# %% tags=["hide-input"]
AGAINST = "disabled", "decoupled_token_is"


def bypass_less(study):
    """The reward of bypass PPO at the end, less that of PPO and of decoupled PPO: intervals that hold together."""
    pairs = comparisons(read_study(study)[0], [("bypass_ppo_clip", other) for other in AGAINST])
    return [pair.difference for pair in pairs], pairs[0].seeds


(stale, seeds), (cache, _) = bypass_less("stale_8"), bypass_less("kv_fp8_e5m2")
say(f"""
- Under weights that are many steps old (`stale_8`), bypass PPO ends {above(stale[0])} above PPO without weights. From
  decoupled PPO it cannot be told: {untold(stale[1])}.
- Under the coarse cache (`kv_fp8_e5m2`), it ends below decoupled PPO, {below(cache[1])}. From PPO without weights it
  cannot be told: {untold(cache[0])}.

(Paired over {seeds} seeds, with Student's t; the two intervals of a mismatch hold together.)
""")

# %% [markdown]
# ## Exercise 1: where PPO has no gradient
#
# *4 minutes.* Return PPO's coefficient $c$ of each token, from `rho` and `advantage`, both `(N,)`, and `epsilon`.
#
# <details><summary>Hint 1</summary>The table with the three regions and two signs.</details>
# <details><summary>Hint 2</summary>∇ρ = ρ ∇ log π, so what is not clipped has A·ρ.</details>


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
# <details><summary>Hint 1</summary>Weight times PPO's coefficient.</details>
# <details><summary>Hint 2</summary>The cap never sees π, and the clip never sees q.</details>


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
# ## Exercise 3: silent before the start
#
# *5 minutes.* Bypass PPO, before its first step. Return the share of the real tokens that have no gradient because of
# the clip. All tensors are `(B, T)`; padding may hold anything.
#
# <details><summary>Hint 1</summary>Before the first step π = p, so the ratio of bypass mode is p/q.</details>
# <details><summary>Hint 2</summary>Comparisons with nan are False, but nan still counts as an element.</details>


# %%
def silent_share(p, q, advantage, mask, epsilon):
    raise NotImplementedError("exercise 3: write silent_share, then run this cell and the next.")


# %% tags=["check"]
check(silent_share, SILENT_SHARE)


# %% tags=["solution", "hide-input"]
def silent_share_solution(p, q, advantage, mask, epsilon):
    ratio, a = (p / q)[mask], advantage[mask]
    return (((a > 0) & (ratio > 1 + epsilon)) | ((a < 0) & (ratio < 1 - epsilon))).double().mean()


check(silent_share_solution, SILENT_SHARE)

# %% [markdown]
# ## Check yourself
#
# **1. A token has $A > 0$ and $\rho = 0.5$, with a clip of 0.2. What does PPO do?**
#
# <details><summary>It is outside the band, so its gradient is 0.</summary>No. The band matters only on the side to
# which A pushes.</details>
# <details><summary>It pushes it up, with coefficient 0.5 · A.</summary>Yes. The minimum takes Aρ, the smaller of the
# two.</details>
# <details><summary>It pulls it back to 0.8.</summary>No. The clip never pulls; it can only stop a push.</details>
#
# **2. The engine is exact, $q=p$. What do decoupled PPO and bypass PPO do differently?**
#
# <details><summary>Decoupled PPO still has less bias.</summary>No. Its weight is 1 everywhere.</details>
# <details><summary>Nothing: both are PPO. Bypass mode saves a pass over the batch.</summary>Yes. They differ only by
# the mismatch.</details>
# <details><summary>Bypass PPO clips more tokens.</summary>Only where p ≠ q. With q = p its ratio is ρ.</details>
#
# **3. In bypass REINFORCE, the weight is $\min(\pi/q,2)$. Is it a trust region?**
#
# <details><summary>Yes: no weight exceeds 2, so π cannot go far.</summary>No. At the cap the coefficient is 2A,
# not 0. In the toy this line did not flatten.</details>
# <details><summary>No. A cap limits a weight; only a clip or a penalty ends a push.</summary>Yes: lesson 09.</details>
# <details><summary>Only with A < 0.</summary>No. There the push weakens with the ratio, not by the cap.</details>
#
# ## In the app
#
# After `make app`:
#
# - [decoupled and bypass on `stale_4`, side by
#   side](http://localhost:8501/compare?run=stale_4&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip):
#   where do they differ?
# - [the same two on
#   `bf16`](http://localhost:8501/compare?run=bf16&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip);
# - [the gradient of bypass PPO among
#   all](http://localhost:8501/gradient?run=stale_4&step=latest&preset=bypass_ppo_clip).
#
# ## Pitfalls
#
# - **"On-policy" means two things**: $\rho=1$, no step was taken since scoring; $r=1$, the engine agrees.
# - **Metrics in the wrong mode.** In bypass mode `ppo_kl` compares $\pi$ with $q$. It is rightly not 0 before the first
#   step.
# - **A switch that does nothing.** In verl, bypass mode left the workers with the other loss ([issue
#   4272](https://github.com/volcengine/verl/issues/4272)).
# - **Correcting twice.** In bypass mode the ratio already holds $1/q$. A further weight $p/q$ squares the repair.
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
# Proofs and further checks; no step of the lesson needs them.
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
# What does PPO do **without** the weight, when the tokens come from $q$? At the first step its gradient is
# $\mathbb{E}_q[A \nabla \log \pi] = \mathbb{E}_p\big[\tfrac{A}{r} \nabla \log \pi\big]$: the gradient for advantages
# that somebody divided by $r$. What the trainer likes more than the engine ($r > 1$) counts too little.

# %%
unweighted = [average(Q, [a * s[k] for a, s in zip(ADV, score, strict=True)]).subs(at_the_start) for k in range(3)]
divided = [sympy.Symbol(f"b_{k}", real=True) for k in range(3)]  # A/r, held constant
other_J = grad(average(PI, divided))
for k in range(3):
    swapped = other_J[k].subs({b: a * q_a / pi_a for b, a, q_a, pi_a in zip(divided, ADV, Q, PI, strict=True)})
    assert sympy.simplify(unweighted[k] - swapped) == 0
show("without weights, the first step is that of", "A/r")

# %% [markdown]
# ### The losses in a small world
#
# `toy` enumerates every answer, so expectations are exact. The number is the **relative bias**: the distance of the
# expected gradient from the right one, over the length of the right one. In the first world an answer is one token; in
# the second it has up to three. "Later" means that $\pi$ has moved a little away from $p$, not far enough to clip.

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
# - With **one token** per answer every weight is exact, as the symbols said.
# - With **several tokens**, only a weight of the whole answer is exact. Token weights repair the choice of a token, but
#   not how the engine got there. In this world their bias is even larger than without a weight.
# - **Later**, decoupled PPO has a small bias even with the weight of the answer. Its $\rho$ is that of one token, where
#   the exact ratio is the product over the answer. PPO accepts this everywhere; the clip keeps it small.
#
# ### The clip, with autograd
#
# **Look for** the two flat pieces, one per sign, and for the two that are not flat although they lie outside the dotted
# bounds.

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
# On the tokens of `stale_4`, the identities hold token by token.

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
show("the identities, of so many tokens", int(mask.sum()))

# %% [markdown]
# ### An interval from one batch
#
# A **score sketch** (lesson 10) lets us compare the gradients of two losses on the same data. The unit is the length of
# the gradient that the trainer's own answers would give. First on the recorded answers of a step of `stale_head`, then
# on **every likely answer** to all its prompts, each counted as often as the engine would write it.

# %%
run = runs.find_run("stale_head")
recorded, sketch = updated_batch(run, last_sketch(run)), read_sketch(run, last_sketch(run))
complete, all_answers = read_gradients(run, last_sketch(run))
bypass, compared = preset("bypass_ppo_clip"), {}
for place, data in (("recorded answers", (recorded, sketch)), ("all likely answers", (complete, all_answers))):
    show(f"stale_head, {place}", "value", "from", "to")
    for label, config in (("PPO", preset("disabled")), ("decoupled PPO", preset("decoupled_token_is"))):
        compared[place, label] = difference = compare_gradients(
            *data, config, bypass, batch_sizes=[len(recorded.response_mask)]
        )
        for what, interval in (("noise", difference.noise[0]), ("bias", difference.bias)):
            show(f"  bypass − {label}, {what}", interval.value, interval.low, interval.high, digits=2)


# %% tags=["hide-input"]
def loud(batch):
    """Answers with a token that has r > 2 and A < 0: PPO's clip lets it pass, and in bypass mode nothing caps it."""
    r = correct(batch, CorrectionConfig()).log_ratio.exp()
    return ((r > 2) & (batch.advantages < 0) & batch.response_mask).any(-1)


sampled, exact = (compared[place, "decoupled PPO"] for place in ("recorded answers", "all likely answers"))
assert isinstance(all_answers, ExactSketch)
often = all_answers.answers.sampled  # the probability of each answer under the engine
loud_share = float(often[loud(complete)].sum() / often.sum())
say(f"""
Noise of bypass PPO less that of decoupled PPO: on the recorded answers {below(sampled.noise[0])}, **less**; on all
answers {above(exact.noise[0])}, **more**. PPO's clip stops a token with a large $r$ only where $A>0$. Where $A<0$ the
token keeps its coefficient $rA$, and in bypass mode nothing caps $r$. Such answers are few, and loud: a share of
{loud_share:.3f} of all answers have a token with $r>2$ and $A<0$, and {int(loud(recorded).sum())} of the
{len(recorded.response_mask)} recorded ones. A bootstrap can only draw again what is there. **An interval from one batch
is about the answers that the batch holds.**

With all answers the bias can be told as well: {above(exact.bias)} more than that of decoupled PPO, on the recorded
ones {untold(sampled.bias)}.
""")

# %% [markdown]
# ### What each framework calls them
#
# The exact commits that this was read at stand in the sources of the presets.
#
# | system | $\log q$ | policies | how to leave out $p$ | how to weigh with $p/q$ |
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
# Two policies and an importance weight on top would correct **twice**, and the library refuses it:

# %%
try:
    CorrectionConfig(bypass_mode=True, loss_type="ppo_clip", rollout_is="token")
except UsageError as refused:
    show(str(refused).split(";")[0])
