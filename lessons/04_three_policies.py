# %% [markdown]
# # 04 · Three policies: what each ratio compares
#
# **Claim.** REINFORCE, PPO, decoupled PPO and bypass mode are one gradient, weighted and clipped; they differ in which
# two policies their ratio compares, and in what they clip.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* Lessons 01 and 02 are assumed: the policy gradient, and
# importance weights.
#
# At the end you can
#
# - name the three policies of a training step, and the ratio of each pair;
# - say for every token whether PPO's clip takes its gradient away, and why that is a bound and not a wall;
# - derive decoupled PPO from importance sampling, and say when it is the policy gradient and when it is not;
# - say what bypass mode saves, what it loses, and under which name your own framework has it.

# %%
import math
import warnings

import sympy
import torch
from exercises.lesson_04 import DECOUPLED_COEFFICIENT, PPO_COEFFICIENT, SILENT_SHARE
from show import picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.curves import curves
from rlcorr.figures.study import study_curves
from rlcorr.gradients import toy
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses import ppo_clip
from rlcorr.objective import policy_loss, score_coefficients
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch, updated_batch
from rlcorr.records.study import outcomes, read_study
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(4)

# %% [markdown]
# ## Three policies
#
# A training step has three policies, and they are three states of one model.
#
# | symbol | in pictures | who it is | when it is fixed |
# |---|---|---|---|
# | $q$ | π_rollout | the engine, when it **sampled** the tokens | at sampling |
# | $p$ | π_old | the trainer, **before** this update | when the trainer scores the batch |
# | $\pi$ | π_θ | the trainer, **being** updated | never: every optimizer step moves it |
#
# One batch is usually good for several optimizer steps (mini-batches, epochs). Before the first of them $\pi = p$. So
# there are three ratios:
#
# $$ r = \frac{p}{q} \;\text{(the mismatch)}, \qquad \rho = \frac{\pi}{p} \;\text{(the move)}, \qquad
# r\,\rho = \frac{\pi}{q} \;\text{(both)} . $$
#
# $r$ was there before we did anything. $\rho$ is our own doing. A loss that sees only $\pi/q$ cannot tell them apart.
#
# Every loss here has a gradient of one form, so a loss is one number per token, the **coefficient** $c$:
#
# $$ -\nabla L = \sum_t c_t\, \nabla \log \pi_t . $$
#
# | loss | $c$ | what is clipped |
# |---|---|---|
# | REINFORCE | $A$ | nothing |
# | PPO | $\rho A$, or 0 | $\rho = \pi/p$ |
# | decoupled PPO | $w\,\rho A$, or 0 | $\rho = \pi/p$; the weight $w = \min(p/q, C)$ has its own cap |
# | bypass, PPO | $\frac{\pi}{q} A$, or 0 | $\pi/q$ |
# | bypass, REINFORCE | $\min(\frac{\pi}{q}, C)\, A$ | only the cap |
#
# **Bypass mode** puts $q$ in the place of $p$: the trainer never scores the batch before the update.
#
# ## Three tokens
#
# The clip of PPO is 0.2 on either side, the cap is $C = 2$. Work out the row of PPO, and the one of bypass PPO, before
# you run the cell. A token has coefficient 0 if it has moved beyond 0.2 **in the direction that $A$ pushes**.

# %%
q = torch.tensor([[0.5, 0.4, 0.6]], dtype=torch.float64)
p = torch.tensor([[0.4, 0.5, 0.3]], dtype=torch.float64)
pi = torch.tensor([[0.5, 0.5, 0.3]], dtype=torch.float64)
A = torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64)
three_tokens = TokenBatch(
    response_mask=torch.ones(1, 3, dtype=torch.bool), rollout_log_probs=q.log(), old_log_probs=p.log(), advantages=A
)

METHODS = {
    "REINFORCE": CorrectionConfig(loss_type="gpg"),
    "PPO": preset("disabled"),
    "decoupled PPO": preset("decoupled_token_is"),
    "bypass, PPO": preset("bypass_ppo_clip"),
    "bypass, REINFORCE": CorrectionConfig(bypass_mode=True, loss_type="reinforce", rollout_is="token"),
}


def coefficients(log_pi, batch, config):
    """c of every token; tokens=1, so that nothing is divided by their number."""
    return score_coefficients(log_pi, batch, correct(batch, config), config, LossConfig(), tokens=1, sequences=1)


show("token", "first", "second", "third")
show("advantage A", A)
show("mismatch, r = p/q", p / q)
show("move, ρ = π/p", pi / p)
show("both, π/q", pi / q)
in_library = {name: coefficients(pi.log(), three_tokens, config) for name, config in METHODS.items()}
for name, c in in_library.items():
    show(f"c of {name}", c)

wanted = {"PPO": [0, 1, -1], "decoupled PPO": [0, 1.25, -0.5], "bypass, PPO": [1, 0, 0]}
for name, numbers in wanted.items():
    assert torch.allclose(in_library[name], torch.tensor([numbers], dtype=torch.float64)), name

# %% [markdown]
# The first token has moved by 25 %: PPO is done with it. But the move cancels the mismatch, so $\pi/q = 1$, and bypass
# PPO sees no move at all. The other two tokens have **not** moved. They start with a mismatch of 1.25 and 0.5, and
# bypass PPO has clipped both before the first step.
#
# ## The equation, rung by rung
#
# **Rung 0.** We want the gradient of $J = \sum_a \pi(a) A(a)$, and the tokens come from $q$. Lesson 02: weigh them.
#
# $$ \nabla J = \mathbb{E}_q\!\Big[\tfrac{\pi}{q}\, A\, \nabla \log \pi\Big] $$
#
# This is **bypass REINFORCE**. It is right for every $\pi$, but its weight changes with every step.
#
# **Rung 1.** If $q = p$, then $\frac{\pi}{q} \nabla \log \pi = \nabla \frac{\pi}{p} = \nabla \rho$. So $A\rho$ has the
# right gradient, whatever $\pi$ is, and $\mathbb{E}_p[A\rho]$ equals $J$. It is called the **surrogate**. PPO clips it.
#
# **Rung 2.** If $q \ne p$, the same surrogate is an average under the wrong policy. Split the ratio, and weigh it:
#
# $$ \frac{\pi}{q} = \underbrace{\frac{p}{q}}_{\text{weight, fixed}} \cdot \underbrace{\frac{\pi}{p}}_{\rho,\
# \text{moves}} \qquad\Rightarrow\qquad \nabla J = \mathbb{E}_q\!\Big[\tfrac{p}{q}\, A\, \nabla\rho\Big] . $$
#
# This is **decoupled PPO**: the weight repairs the mismatch, and the clip limits the move. Each has its own bound.
#
# **Rung 3.** Before the first step $\rho = 1$ and $\nabla \rho = \nabla \log \pi$, so PPO **is** REINFORCE there, and
# decoupled PPO is REINFORCE weighted with $p/q$.
#
# ### Check 1, with symbols: a softmax of three actions

# %%
theta = sympy.symbols("theta_A theta_B theta_C", real=True)
P, Q = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in "pq")
ADV = sympy.symbols("a_A a_B a_C", real=True)
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

rung_0 = [
    average(Q, [pi_a / q_a * a * s[k] for pi_a, q_a, a, s in zip(PI, Q, ADV, score, strict=True)]) for k in range(3)
]
rung_2 = [average(Q, [w * a * grad(x)[k] for w, a, x in zip(weight, ADV, rho, strict=True)]) for k in range(3)]
assert same(rung_0, grad(J))  # bypass REINFORCE, for every θ
assert same(rung_2, grad(J))  # decoupled PPO without its bounds, for every θ
assert same([average(P, [a * x for a, x in zip(ADV, rho, strict=True)])], [J])  # the surrogate is J
assert same(
    [w * x for w, x in zip(weight, rho, strict=True)], [pi_a / q_a for pi_a, q_a in zip(PI, Q, strict=True)]
)  # r ρ = π/q

at_the_start = dict(zip(P, PI, strict=True))  # π = p
for x, s in zip(rho, score, strict=True):
    assert same([g.subs(at_the_start) for g in grad(x)], s)  # ∇ρ = ∇ log π

show("rung 0: E_q[(π/q) A s] = ∇J", "for every θ")
show("rung 2: E_q[(p/q) A ∇ρ] = ∇J", "for every θ")
show("rung 3: ∇ρ = ∇ log π", "where π = p")

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
# ### Check 2, with numbers: all answers of a small world
#
# `toy` enumerates every answer, so expectations are exact. The number is the **relative bias**: the length of the error
# of the expected gradient, over the length of the right gradient. In the first world an answer is one token of four;
# in the second it has up to three. "Later" means that $\pi$ has moved a little away from $p$, not far enough to clip.

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

assert biases["PPO"][0] == biases["REINFORCE"][0]  # rung 3
assert max(biases["decoupled PPO, token weights"][:2]) < 1e-12  # rung 2, one token
assert biases["decoupled PPO, answer weights"][2] < 1e-12  # rung 2, the first step
assert 0.01 < biases["decoupled PPO, answer weights"][3] < 0.1
assert max(biases["bypass REINFORCE, answer weights"]) < 1e-12  # rung 0, always
for where in worlds:  # rung 3: the same first step, answer by answer
    first = [exact(where, LADDER[name], 0.0).expectation for name in list(LADDER)[3:]]
    assert torch.allclose(*first, rtol=0, atol=1e-14)

# %% [markdown]
# Read the columns from left to right.
#
# - With **one token** per answer every weight is exact, as the symbols said. The first two rows have none, and a bias.
# - With **several tokens**, only a weight of the whole answer is exact, and token weights are not: they repair the
#   choice of a token, but not how the engine got there. Lesson 06 is about that.
# - **Later**, decoupled PPO has a small bias even with the weight of the answer. Its $\rho$ is that of one token, where
#   the exact ratio is the product over the answer. PPO accepts this everywhere; the clip keeps it small.
#
# ## Clipping is a pessimistic bound
#
# PPO does not use $A\rho$ but
#
# $$ L^{\text{clip}} = \min\big(A\rho,\; A\,\mathrm{clip}(\rho, 1-\varepsilon, 1+\varepsilon)\big) \le A\rho . $$
#
# A minimum of two things is a **lower bound** on each. So the surrogate is never overrated: that is the pessimism.
# Where the clipped branch is smaller, it is constant, and the gradient is 0. There are three regions and two signs:
#
# | | $\rho < 1-\varepsilon$ | inside | $\rho > 1+\varepsilon$ |
# |---|---|---|---|
# | $A > 0$, push up | $A\rho$ | $A\rho$ | $A(1+\varepsilon)$, **gradient 0** |
# | $A < 0$, push down | $A(1-\varepsilon)$, **gradient 0** | $A\rho$ | $A\rho$ |
#
# The gradient is 0 only beyond the bound towards which $A$ pushes. A token that other tokens have dragged the wrong way
# keeps its gradient, however far away it is. Symbols first: $t > 0$ is how far $\rho$ is beyond the bound.

# %%
epsilon, t, size = sympy.symbols("epsilon t a", positive=True)  # size = |A|
above, below = 1 + epsilon + t, 1 - epsilon - t
bound_above, bound_below = 1 + epsilon, 1 - epsilon

assert size * sympy.Min(above, bound_above) == size * bound_above  # A > 0: constant in t, so gradient 0
assert size * sympy.Min(below, bound_below) == size * below  # A > 0: Aρ
assert sympy.simplify(-size * sympy.Max(below, bound_below) + size * bound_below) == 0  # A < 0: constant
assert sympy.simplify(-size * sympy.Max(above, bound_above) + size * above) == 0  # A < 0: Aρ
show("A > 0, slope above / below", str(sympy.diff(size * bound_above, t)), str(sympy.diff(size * below, t)))
show("A < 0, slope above / below", str(sympy.diff(-size * above, t)), str(sympy.diff(-size * bound_below, t)))

# %% [markdown]
# The same with autograd. **Look for** the two flat pieces, one per sign, and for the two that are not flat although
# they lie outside the dotted bounds.

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
# So the clip is not a wall. It does not pull a token back; it only stops pushing. The next tokens of the batch move the
# same weights, and can carry this one further out.
#
# ## One batch, thirty steps
#
# Here is what the clip holds, and where. 32 answers come from $q$; the trainer starts at $p$, which is not $q$; then it
# takes thirty steps on the same batch. We measure the divergence of the policies, exactly, over all answers of the toy
# world: $KL(p\|\pi)$ is the distance from where the update began, $KL(q\|\pi)$ the distance from the engine. The
# numbers are means over four batches.

# %%
where = worlds[1]
rollout = toy.random_policy(where, 1)
old = rollout + toy.random_policy(where, 2, 0.4)
rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
STEPS, BATCHES, ANSWERS, RATE = 30, 4, 32, 1.0
WALK = METHODS | {"decoupled PPO": preset("decoupled_seq_is"), "bypass, REINFORCE": preset("bypass_pg_is")}


def walk(rows, config):
    """The logits of π after each step on these answers."""
    advantages = rewards[rows] - rewards[rows].mean()
    batch = TokenBatch(
        response_mask=where.mask[rows],
        rollout_log_probs=toy.log_probs(where, rollout)[rows],
        old_log_probs=toy.log_probs(where, old)[rows],
        advantages=advantages[:, None].expand(len(rows), where.mask.shape[1]),
    )
    result, logits = correct(batch, config), old.clone()
    yield logits
    for _ in range(STEPS):
        leaf = logits.detach().requires_grad_()
        loss, _ = policy_loss(toy.log_probs(where, leaf)[rows], batch, result, config, LossConfig())
        logits = logits - RATE * toy.gradient_of(loss, leaf)
        yield logits


batches = [
    torch.multinomial(toy.probabilities(where, rollout), ANSWERS, replacement=True, generator=generator)
    for _ in range(BATCHES)
]
moved, from_engine, earned = {}, {}, {}
for name, config in WALK.items():
    paths = [list(walk(rows, config)) for rows in batches]
    moved[name] = torch.tensor([[toy.kl(where, old, logits) for logits in path] for path in paths]).mean(0).tolist()
    ends = [path[-1] for path in paths]
    from_engine[name] = float(torch.stack([toy.kl(where, rollout, end) for end in ends]).mean())
    earned[name] = float(torch.stack([(toy.probabilities(where, end) * rewards).sum() for end in ends]).mean())

show("", "KL(p‖π)", "KL(q‖π)", "reward")
show(
    "before the update", 0.0, float(toy.kl(where, rollout, old)), float((toy.probabilities(where, old) * rewards).sum())
)
for name in WALK:
    show(name, moved[name][-1], from_engine[name], earned[name])

# %% [markdown]
# **Look for** the lines that flatten. Both PPOs with three policies stop close to $p$. Bypass PPO stops further away
# from $p$, because its bound is drawn around $q$. Without a clip nothing stops.

# %%
shown = {name: [round(x, 6) for x in distances] for name, distances in moved.items()}
picture(curves(list(range(STEPS + 1)), shown, x_name="optimizer step on the same batch", y_name="KL(p‖π)"))

# %%
held = ("PPO", "decoupled PPO")
assert max(moved[name][-1] for name in held) < moved["bypass, PPO"][-1] < moved["REINFORCE"][-1]
assert from_engine["bypass, PPO"] == min(from_engine.values())

# %% [markdown]
# In this toy the longest walk earns the most: it has a table of logits, where one answer cannot spoil another, and
# rewards without noise. A network has neither. The toy shows **where** each method stops, not how far one should go.
#
# ## Predict, then reveal
#
# Now recorded runs. `bf16` has an engine in 16 bits, `kv_fp8_e5m2` one with a coarse 8-bit cache, and in `stale_4` the
# engine's weights are four steps old. Take the last recorded step of each, **before** its update, so $\pi = p$.
# **Write down a guess:**
#
# 1. Which share of the tokens has no gradient in bypass PPO, before the first step was taken?
# 2. And in PPO with three policies?
# 3. Which of the two has the noisier gradient on `stale_head`, whose engine kept an old output head?
#
# Then run the cell. The interval is a **bootstrap**: the answers are drawn again from the batch, with replacement, 400
# times, and 95 % of the shares lie inside.


# %%
def load(name):
    """The last step of a run that has a score sketch, in float64, with its advantages as the update sees them."""
    run = runs.find_run(name)
    batch = updated_batch(run, last_sketch(run))
    double = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs", "advantages")}
    return batch.replace(**double)


def bootstrap(per_answer, tokens, replicates=400):
    """A share of tokens, and where it lies in 95 % of the resampled batches; each answer stays whole."""
    drawn = torch.randint(len(tokens), (replicates, len(tokens)), generator=generator)
    shares = per_answer[drawn].sum(-1) / tokens[drawn].sum(-1)
    low, high = shares.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(per_answer.sum() / tokens.sum()), low, high


data = {name: load(name) for name in ("bf16", "kv_fp8_e5m2", "stale_4")}
silent = {}
show("without a gradient at the first step", "share", "from", "to")
for name, batch in data.items():
    tokens = batch.response_mask.sum(-1).double()
    for method in ("PPO", "bypass, PPO"):
        c = coefficients(batch.old_log_probs, batch, METHODS[method])
        without = ((c == 0) & (batch.advantages != 0) & batch.response_mask).sum(-1).double()
        silent[name, method] = bootstrap(without, tokens)
        show(f"{name}: {method}", silent[name, method])

assert silent["bf16", "bypass, PPO"][0] == 0
assert all(silent[name, "PPO"][0] == 0 for name in data)
assert silent["stale_4", "bypass, PPO"][1] > 0.05  # the whole interval
ratios = correct(data["bf16"], CorrectionConfig()).log_ratio.exp()
assert 0.8 < ratios.min() <= ratios.max() < 1.2

# %% [markdown]
# With three policies nothing is clipped before the first step: $\rho = 1$. In bypass mode the mismatch has used up the
# trust region of a tenth of the tokens of `stale_4` before the update begins. In `bf16` the two are the same in
# practice: no ratio lies outside the clip, the smallest only just.
#
# And the gradient? A **score sketch** (lesson 10) lets us compare the gradients of two losses on the same data. The
# unit is the length of the gradient that the trainer's own answers would give. `stale_head` trains on 80 sums, and its
# engine kept the output head of the first step. First on the 256 recorded answers of the step. Then on **every likely
# answer** to all 80 sums, each counted as often as the engine would write it, so that nothing is a sample.

# %%
run = runs.find_run("stale_head")
recorded, sketch = updated_batch(run, last_sketch(run)), read_sketch(run, last_sketch(run))
complete, all_answers = read_gradients(run, last_sketch(run))
bypass, compared = preset("bypass_ppo_clip"), {}
for place, data_and_sketch in (("256 answers", (recorded, sketch)), ("all likely answers", (complete, all_answers))):
    show(f"stale_head, {place}", "value", "from", "to")
    for label, config in (("PPO", preset("disabled")), ("decoupled PPO", preset("decoupled_token_is"))):
        compared[place, label] = compare_gradients(*data_and_sketch, config, bypass, batch_sizes=[256])
        difference = compared[place, label]
        for what, interval in (("noise", difference.noise[0]), ("bias", difference.bias)):
            show(f"  bypass − {label}, {what}", interval.value, interval.low, interval.high, digits=2)

sampled, exact = (compared[place, "decoupled PPO"] for place in ("256 answers", "all likely answers"))
assert sampled.noise[0].high < 0 < exact.noise[0].low
assert sampled.bias.low < 0 < sampled.bias.high
assert exact.bias.low > 0
against_plain = compared["all likely answers", "PPO"]
assert against_plain.noise[0].low > 0 > against_plain.bias.high


def loud(batch):
    """Answers with a token that has r > 2 and A < 0: PPO's clip lets it pass, and in bypass mode nothing caps it."""
    r = correct(batch, CorrectionConfig()).log_ratio.exp()
    return ((r > 2) & (batch.advantages < 0) & batch.response_mask).any(-1)


assert isinstance(all_answers, ExactSketch)
often = all_answers.answers.sampled  # the probability of each answer under the engine
show("r > 2 and A < 0: of 256 answers", int(loud(recorded).sum()))
show("of all answers, a share of", float(often[loud(complete)].sum() / often.sum()), digits=3)
assert int(loud(recorded).sum()) <= 1
assert 0.002 < often[loud(complete)].sum() / often.sum() < 0.005

# %% [markdown]
# The two halves of the table disagree. On the recorded answers bypass PPO has **less** noise than decoupled PPO, and
# the interval leaves 0 out. On all answers it has **more**, and the interval leaves 0 out as well. The last lines say
# why. PPO's clip stops a token with a large $r$ only where $A > 0$. Where $A < 0$ the token keeps its coefficient
# $r A$, and in bypass mode nothing caps $r$. Such answers are few, and loud. The recorded batch holds one of them, so
# its bootstrap, which can only draw again what is there, does not know about the rest.
#
# With all answers the bias can be told as well: that of bypass PPO is larger than that of decoupled PPO by half a
# gradient. Beside plain PPO it has less bias and more noise. **An interval from one batch
# is about the answers that the batch holds.** Keep this in mind when somebody calls one loss better after one run.
#
# ## The same on recorded runs: the ladder
#
# On the 999 tokens of `stale_4`, the identities of the rungs hold token by token.

# %%
batch = data["stale_4"]
mask = batch.response_mask
log_p, log_q = (batch.tensors()[key] for key in ("old_log_probs", "rollout_log_probs"))
d = correct(batch, CorrectionConfig()).log_ratio

c = {name: coefficients(log_p, batch, preset(name)) for name in PRESETS if PRESETS[name].system == "verl"}
advantages = batch.tensors()["advantages"].where(mask, 0)
weights = correct(batch, preset("decoupled_seq_is")).weights

assert torch.allclose(c["disabled"], advantages)  # rung 3: PPO is REINFORCE at the first step
assert torch.allclose(c["decoupled_seq_is"], weights * c["disabled"])  # decoupled: the weight in front
assert torch.allclose(c["bypass_pg_is"], c["decoupled_seq_is"])  # bypass REINFORCE takes the same first step
inside = (torch.sign(advantages) * (d.exp() - 1) <= 0.2) & mask
assert torch.allclose(c["bypass_ppo_clip"], torch.where(inside, d.exp() * advantages, 0))
show("tokens", int(mask.sum()))
show("PPO is REINFORCE", True)
show("bypass REINFORCE is decoupled PPO", True)

# %% [markdown]
# One step later they part, whatever the level of the weights: bypass REINFORCE caps $\pi/q$, decoupled PPO caps $p/q$
# and clips $\pi/p$. To see it, let every token move by up to 30 % either way, at random, and take token weights.

# %%
pushed = 0.3 * (2 * torch.rand(log_p.shape, generator=generator, dtype=torch.float64) - 1)
log_pi = torch.where(mask, (log_p + pushed).clamp(max=0), 0)
decoupled, bypass = (coefficients(log_pi, batch, METHODS[name]) for name in ("decoupled PPO", "bypass, REINFORCE"))
apart = ((decoupled - bypass).abs() > 1e-9) & mask
clipped, capped = apart & (decoupled == 0), apart & (decoupled != 0)
show("tokens with another coefficient", int(apart.sum()), "of", int(mask.sum()))
show("clipped by decoupled PPO alone", int(clipped.sum()))
show("capped in another place", int(capped.sum()))
assert (d[capped].exp() > 2).logical_or((log_pi - log_q)[capped].exp() > 2).all()

# %% [markdown]
# ### Check 3, with data: what the weights of the presets come to
#
# Without a bound the weights must average to 1 (lesson 00): that is what makes them repair a **policy**, and not just
# change the loss. A cap takes weight away and gives nothing back. ESS is the effective sample size, as a share.


# %%
SHOWN = {
    "token weights, no cap": CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
    "answer weights, no cap": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
    "decoupled_token_is": preset("decoupled_token_is"),
    "decoupled_seq_is": preset("decoupled_seq_is"),
    "decoupled_token_icepop": preset("decoupled_token_icepop"),
    "trl_sequence_mask": preset("trl_sequence_mask"),
}


def weight_table(batch):
    """Of each preset: the mean weight of tokens or answers, its standard error, the largest, the ESS."""
    table = {}
    for name, config in SHOWN.items():
        w = correct(batch, config).weights
        w = w[batch.response_mask] if config.rollout_is == "token" else w[batch.response_mask.any(-1), 0]
        ess = float(w.sum() ** 2 / (len(w) * w.square().sum()))
        table[name] = [float(w.mean()), float(w.std() / len(w) ** 0.5), float(w.max()), ess]
    return table


tables = {name: weight_table(data[name]) for name in ("bf16", "stale_4")}
for name, table in tables.items():
    show(name, "mean", "±", "largest", "ESS")
    for label, numbers in table.items():
        show("  " + label, numbers)

for table in tables.values():
    for label in ("token weights, no cap", "answer weights, no cap"):
        average_weight, error, *_ = table[label]
        assert abs(average_weight - 1) < 2.5 * error
assert tables["stale_4"]["decoupled_seq_is"][0] < tables["stale_4"]["answer weights, no cap"][0]

# %% [markdown]
# In `bf16` all presets are one: nothing reaches a bound. In `stale_4` a choice is made. The unbounded weights average
# to 1 within their standard error, or just beyond it. The caps make the weights smaller, and give less noise: a larger
# ESS.
#
# ## What bypass mode saves, and what it loses
#
# It **saves** one pass. Count a forward pass as 1 and a backward pass as 2. To score the batch before the update costs
# 1; an epoch over the batch costs 3. With $E$ epochs bypass mode saves $\frac{1}{1 + 3E}$ of the trainer's passes: a
# quarter for one epoch, a seventh for two. (A reference model or a critic costs its own.)
#
# It **loses** three things.
#
# - **The mismatch and the move share one bound.** You have seen it on three tokens and on `stale_4`.
# - **The clip holds $\pi$ near the engine**, not near where the update began. With stale or coarsely rounded engines
#   that is another place.
# - **Measurements.** Without $p$ there is no $p/q$: a metric of $\pi/q$ mixes mismatch and learning.
#
# The study trained every preset under two mismatches that break a training, with three seeds each (`runs/README.md`).
# The number is the reward over the last quarter of the steps: the mean over the seeds, the lowest and the highest.

# %%
COMPARED = ("disabled", "decoupled_token_is", "bypass_ppo_clip")
ends = {}
for study in ("stale_8", "kv_fp8_e5m2"):
    show(study, "mean", "lowest", "highest")
    for outcome in outcomes(read_study(study)[0]):
        if outcome.preset in COMPARED:
            ends[study, outcome.preset] = outcome.reward
            show("  " + outcome.preset, outcome.reward.mean, outcome.reward.lowest, outcome.reward.highest, digits=2)

assert ends["stale_8", "bypass_ppo_clip"].lowest > ends["stale_8", "disabled"].highest
assert ends["kv_fp8_e5m2", "bypass_ppo_clip"].highest < ends["kv_fp8_e5m2", "disabled"].lowest

# %% [markdown]
# With weights that are eight steps old, bypass PPO does as well as decoupled PPO, and both far better than PPO without
# weights. With the coarse cache, bypass PPO is the worst of the three on every seed. **Look for** the step at which it
# falls behind.

# %%
picture(study_curves(read_study("kv_fp8_e5m2")[0], COMPARED, "reward"))

# %% [markdown]
# ## What each framework calls them
#
# As of summer 2026; the exact commits stand in the sources of the presets.
#
# | system | $\log q$ | policies | how to leave out $p$ | how to weigh with $p/q$ |
# |---|---|---|---|---|
# | verl | `rollout_log_probs` | 3 | `rollout_correction.bypass_mode` | `rollout_correction.rollout_is` |
# | SkyRL | `rollout_logprobs` | 3 | loss `rollout_is` or `dppo` | `off_policy_correction.tis_ratio_type` |
# | TRL | `sampling_per_token_logps` | 3, async 2 | – | `vllm_importance_sampling_correction` (on) |
# | slime | `rollout_log_probs` | 3 | `--use-rollout-logprobs` | `--use-tis` |
# | OpenRLHF | from vLLM | 3, GSPO 2 | – | `--algo.advantage.is_correction_enable` |
# | NeMo RL | `generation_logprobs` | 3 | – | `use_importance_sampling_correction` |
# | AReaL | behaviour | 3, if asked | `use_decoupled_loss: false` (default) | `rejection_sampling`, action `clamp` |
# | ROLL | `infer_logprobs` | 3 | – | `train_infer_correction.is_weight` |
# | open-instruct | `logprobs` | 3 | `--use_vllm_logprobs` | `--use_rho_correction` (on) |
# | prime-rl | `inference_logprobs` | 2 | always | the ratio is $\pi/q$ |
# | torchtitan, Tinker, PipelineRL | sampler's | 2 | always | the ratio is $\pi/q$ |
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
# On `stale_4`, with other widths of the clip:

# %%
widths = [0.1, 0.2, 0.4, 0.8]
shares = [float(SILENT_SHARE.expected(log_p.exp(), log_q.exp(), advantages, mask, width)) for width in widths]
show("clip", widths, digits=1)
show("silent share", shares)
assert abs(shares[1] - silent["stale_4", "bypass, PPO"][0]) < 1e-12

# %% [markdown]
# ## Check yourself
#
# **1. A token has $A > 0$ and $\rho = 0.5$, with a clip of 0.2. What does PPO do?**
#
# <details><summary>It is outside the band, so its gradient is 0.</summary>No. The band matters only on the side to
# which A pushes. This token lies on the other side.</details>
# <details><summary>It pushes it up, with coefficient 0.5 · A.</summary>Yes. The minimum takes Aρ, the smaller of the
# two, and its gradient is alive.</details>
# <details><summary>It pulls it back to 0.8.</summary>No. The clip never pulls; it can only stop a push. Here the push
# itself goes in that direction.</details>
#
# **2. The engine is exact, $q = p$. What do decoupled PPO and bypass PPO do differently?**
#
# <details><summary>Decoupled PPO still has less bias.</summary>No. Its weight is 1 everywhere, so there is nothing to
# repair.</details>
# <details><summary>Nothing: both are PPO. Bypass mode saves a pass over the batch.</summary>Yes. The two differ only by
# the mismatch.</details>
# <details><summary>Bypass PPO clips more tokens.</summary>Only where p ≠ q. With q = p its ratio is ρ.</details>
#
# **3. In bypass REINFORCE, the weight is $\min(\pi/q, 2)$. Is it a trust region?**
#
# <details><summary>Yes: no weight exceeds 2, so π cannot go far.</summary>No. At the cap the coefficient is 2A, not 0:
# it pushes on as hard as ever. In the toy this line did not flatten.</details>
# <details><summary>No. A cap limits a weight; only a clip, or a penalty, ends a push.</summary>Yes. Lesson 09 is about
# the penalty.</details>
# <details><summary>Only with A < 0.</summary>No. With A < 0 the ratio falls towards 0, and the push weakens with it:
# that is the ratio, not the cap.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [decoupled and bypass on `stale_4`, side by
#   side](http://localhost:8501/compare?run=stale_4&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip):
#   where do their weights and their gradients differ?
# - [the same two on
#   `bf16`](http://localhost:8501/compare?run=bf16&step=latest&preset=decoupled_token_is&preset_b=bypass_ppo_clip):
#   nowhere;
# - [the gradient of bypass PPO among all
#   presets](http://localhost:8501/gradient?run=stale_4&step=latest&preset=bypass_ppo_clip).
#
# ## Pitfalls
#
# - **"On-policy" means two things.** $\rho = 1$ says that no step was taken since scoring. $r = 1$ says that the engine
#   agrees. The first does not imply the second.
# - **Metrics in the wrong mode.** In bypass mode a metric called `ppo_kl` compares $\pi$ with $q$. It is not 0 before
#   the first step, and that is no bug.
# - **A switch that does nothing.** In verl, bypass mode in one place of the configuration left the workers with the
#   other loss (issue 4272). Look at the first step: with three policies nothing can be clipped there.
# - **Correcting twice.** With two policies the ratio already holds $1/q$. A further weight $p/q$ squares the repair.
# - **Scoring late.** $p$ must come from the weights that the update starts from. If it is computed after the first
#   optimizer step, $\rho$ starts below or above 1 and the clip is off centre.
#
# ## References
#
# 1. John Schulman et al., [Proximal Policy Optimization Algorithms](https://arxiv.org/abs/1707.06347), 2017: the clip.
# 2. Jacob Hilton, Karl Cobbe and John Schulman, [Batch size-invariance for policy
#    optimization](https://arxiv.org/abs/2110.00641), 2021: the proximal and the behaviour policy are two.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): decoupled and bypass
#    mode, with the names used here.
