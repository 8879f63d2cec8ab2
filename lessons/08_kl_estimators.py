# %% [markdown]
# # 08 · KL estimators: a value is not a gradient
#
# **Claim.** On average k1 and k3 are the KL, and k2 nearly so where the policies are close. As losses they pull apart:
# on average k1 pulls nowhere, k2 along the gradient of the KL that was meant, and k3 along that of the other one.
#
# *30 minutes · intermediate · any laptop; no GPU, no network.* You need the score (lesson 01) and weights (lesson 02).
# Letters: [Notation](NOTATION.md).

# %% tags=["hide-input"]
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_08 import MEAN_K3, OFF_POLICY, STRAIGHT_THROUGH
from sentences import above, below, bracketed, say
from show import moving_picture, picture, show

from rlcorr.figures.gradients import kl_directions
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.kl_losses import kl_report
from rlcorr.losses.advantages import returns_to_go
from rlcorr.losses.kl import kl_penalty
from rlcorr.records import runs, sketch_files
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## A penalty, and what it is for
#
# Training for reward can carry a policy $\pi$ far from where it started. So one adds a penalty: stay near a
# **reference**, usually the model before training. The distance is a **Kullback–Leibler divergence**, short **KL**:
#
# $$ \mathrm{KL}(\pi\|\mathrm{ref})=\sum_a\pi(a)\,\log\frac{\pi(a)}{\mathrm{ref}(a)},\qquad
# \mathrm{KL}(\mathrm{ref}\|\pi)=\sum_a\mathrm{ref}(a)\,\log\frac{\mathrm{ref}(a)}{\pi(a)} . $$
#
# These two differ. The first averages over what $\pi$ writes: it is the penalty that is meant. Nobody
# sums over the vocabulary at every token; one has the token that was drawn, and two log-probs. Let
# $\delta=\log\pi-\log\mathrm{ref}$. Schulman's estimators, `kl_penalty(log π, log ref, name)`:
#
# | name | of one token | in verl |
# |---|---|---|
# | k1 | $\delta$ | kl |
# | k2 | $\tfrac12\delta^2$ | mse |
# | k3 | $e^{-\delta}-1+\delta$ | low_var_kl |
#
# They are those of lesson 07 with $d=-\delta$: here $\pi$ draws the token, there the engine. So $e^{-\delta}$ is
# $\mathrm{ref}/\pi$; the policy that **drew** is the denominator.
#
# ## By hand: three actions
#
# The policy writes X, Y, Z with 0.5, 0.4, 0.1, the reference with 0.4, 0.1, 0.5. So $\delta$ is 0.22, 1.39 and −1.61,
# and k3 is 0.02, 0.64 and 2.39. Weighed by $\pi$, k3 averages to 0.505, the KL. Which actions must become rarer, so
# that $\pi$ comes nearer to the reference?

# %%
pi = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
ref = torch.tensor([0.4, 0.1, 0.5], dtype=torch.float64)


def mean_and_spread(probability, value):
    """Average and standard deviation of one draw, both exact."""
    mean = (probability * value).sum(-1)
    return mean, ((probability * value.square()).sum(-1) - mean.square()).clamp(min=0).sqrt()


show("", "X", "Y", "Z", "mean", "spread")
for name in ("k1", "k2", "k3"):
    value = kl_penalty(pi.log(), ref.log(), name)
    show(name, value, *mean_and_spread(pi, value), digits=3)

# %% [markdown]
# ## The equation
#
# **As values.** Over draws of $\pi$ the ratios $\mathrm{ref}/\pi$ average to 1 (lesson 00), so
# $\mathbb{E}_\pi[e^{-\delta}-1]=0$, and k3 has the mean of k1: both are **unbiased**. And
# $e^{-\delta}-1+\delta=\tfrac12\delta^2-\tfrac16\delta^3+\dots$, so where $\delta$ is small k2 is nearly k3.
#
# **As losses.** A program takes the mean of $k(\delta)$ over the drawn tokens and calls `backward()`. Nothing is
# differentiated through the drawing. With the score $s=\nabla\log\pi=\nabla\delta$
#
# $$ \text{the program gets}\quad\mathbb{E}_\pi[k'(\delta)\,s],\qquad\text{but}\qquad
# \nabla\,\mathbb{E}_\pi[k(\delta)]=\mathbb{E}_\pi[k'(\delta)\,s]+\mathbb{E}_\pi[k(\delta)\,s] . $$
#
# The second half, how the drawing changes, is missing. What the gradient descends is another quantity:
#
# | loss | $k'$ | $\mathbb{E}_\pi[k'\,s]$ is the gradient of |
# |---|---|---|
# | k1 | 1 | nothing: $\mathbb{E}_\pi[s]=0$ |
# | k2 | $\delta$ | $\mathrm{KL}(\pi\|\mathrm{ref})$ |
# | k3 | $1-e^{-\delta}$ | $\mathrm{KL}(\mathrm{ref}\|\pi)$ |
#
# For k3 it is $-\sum_a\mathrm{ref}(a)\,\nabla\log\pi(a)$, the gradient of imitating the reference; in the logits it is
# $\pi-\mathrm{ref}$. A loss is descended, so a positive number makes an action rarer:


# %%
def expected_gradient(estimator, counted=pi):
    """Σ counted · ∇k in the logits of π: how often each action is drawn, times its weight."""
    leaf = pi.log().requires_grad_()
    log_pi = leaf.log_softmax(-1)
    return torch.autograd.grad((counted * kl_penalty(log_pi, ref.log(), estimator)).sum(), leaf)[0]


show("as a loss, in the logits", "X", "Y", "Z")
for name in ("k1", "k2", "k3", "k3+"):
    show(name, expected_gradient(name), digits=3)

# %% [markdown]
# Look at X. The penalty that was meant makes it **more** probable, because its $\delta$ is below the average. k3 makes
# it **rarer**, because $\pi$ is above the reference there. k1 and k3 report the same mean, and the gradients of k2 and
# k3 have opposite signs. `k3+` is the repair, **straight-through**: it reports k3 and pulls like k2.
#
# ## On recorded runs
#
# A run keeps, at a few places of its last step, all next tokens with their probabilities and scores. A loss's expected
# gradient is exact there; intervals are over places. **Look for** the losses whose green bar stands at 1: they follow
# the KL that was meant ($\pi_\theta$ is $\pi$, the target is the reference). The number above is the length beside that
# KL's gradient. k1, without a direction, is not drawn.

# %% tags=["hide-input"]
SKETCHED = ("bf16", "control_fp32", "kv_fp8", "stale_4", "moe_bf16", "top_p", "async", "kv_fp8_e5m2", "moe_replay",
            "stale_head", "temperature_raw")  # fmt: skip


def places(run_name):
    run = runs.find_run(run_name)
    at_places = sketch_files.read_sketch(run, sketch_files.last_sketch(run)).next_tokens
    assert at_places is not None
    return at_places


reports = {run: {name: kl_report(places(run), name) for name in ("k2", "k3", "k3+")} for run in SKETCHED}
moving_picture("run", {run: kl_directions(reports[run]) for run in SKETCHED[:6]}, "bf16")

# %% tags=["hide-input"]
meant = {run: of["k3"].cosine for run, of in reports.items()}
longest = max(float(kl_report(places(run), "k1").length.value) for run in SKETCHED)
assert longest < 0.01
assert all(of["k2"].cosine.low > 0.999 < of["k3+"].cosine.low for of in reports.values())
assert all(of["k3"].reverse_cosine.low > 0.99 for of in reports.values())
far, quiet = reports["bf16"]["k3"], reports["bf16"]["k2"]
assert far.noise.low > 100 * quiet.noise.high
say(f"""
    In all {len(SKETCHED)} runs k1's expected gradient vanishes, k2's and k3+'s lie on that of KL(π‖ref), and k3's on
    that of KL(ref‖π). How far apart these are varies: k3's cosine with the KL that was meant lies between
    {min(i.value for i in meant.values()):.2f} and {max(i.value for i in meant.values()):.2f}. In `bf16`, trained
    longest, it is {below(meant["bf16"], 0.95)}, and k3's gradient is {above(far.length, 1)} times as long as k2's, so
    a coefficient tuned for k2 is too large for k3. One token's k3 gradient is over a hundred times noisier.
    """)

# %% [markdown]
# ## Values on drawn tokens
#
# Unbiased does not mean reliable. In `control_fp32` the engine computes like the trainer, so the drawn tokens are the
# policy's own, and k1 and k3 have the same expectation.


# %% tags=["hide-input"]
def drawn_tokens(run_name):
    """The last step's log π and log ref, (B, T), its mask, and how often each answer counts: row 0 is the sample
    itself, the others draw prompts."""
    run = runs.find_run(run_name)
    batch = runs.read_step(run, sketch_files.last_sketch(run)).batch
    log_pi, log_ref, prompts = (batch.tensors()[key] for key in ("old_log_probs", "ref_log_probs", "prompt_ids"))
    _, place = prompts.unique(dim=0, return_inverse=True)
    counts = resampled(int(place.max()) + 1, 400, 0).double()[:, place]
    return log_pi.double(), log_ref.double(), batch.response_mask, counts


def mean_over_tokens(value, mask, counts):
    sums = (counts * value.where(mask, 0).sum(-1)).sum(-1) / (counts * mask.sum(-1)).sum(-1)
    return interval_of(sums, signed=True)


log_pi, log_ref, mask, counts = drawn_tokens("control_fp32")
k1, k3 = (kl_penalty(log_pi.where(mask, 0), log_ref.where(mask, 0), name) for name in ("k1", "k3"))
exact = places("control_fp32")
assert exact.ref_log_probs is not None
square = exact.log_probs.exp() * kl_penalty(exact.log_probs, exact.ref_log_probs, "k3").square()
rare = float(square[exact.log_probs.exp() < 1e-4].sum() / square.sum())
say(f"""
    On its {int(mask.sum())} drawn tokens k1 averages to {bracketed(mean_over_tokens(k1, mask, counts))}, and k1 less k3
    to {above(mean_over_tokens(k1 - k3, mask, counts))}: an interval that excludes the true difference, 0. At the places
    where all next tokens are known, {100 * rare:.0f} % of k3's mean square sit on tokens to which π gives less than 1
    in 10,000, and the reference far more. Hardly any was drawn, so neither mean nor interval knows of them. Far
    from the reference k3 **underestimates quietly**, until such a token is drawn and it jumps.
    """)

# %% [markdown]
# ## Predict, then reveal
#
# Nine actions stand in a row. The reference has two hills, a larger and a smaller one. The policy is one hill; only its
# place can move. It starts near the smaller one. We descend the penalty alone, with exact averages.
# **Write down a guess:**
#
# 1. With which losses does it climb the near hill, move away from it, or stand still?
# 2. While k3's gradient is descended, does the reported k3 fall?
#
# **Look for** the hill on which each ends.

# %%
place = torch.arange(-4, 5, dtype=torch.float64)
two_hills = (0.6 * (-((place + 2) ** 2) / 2).softmax(-1) + 0.4 * (-((place - 2) ** 2) / 2).softmax(-1)).log()
ends, reported = {}, {}
for name in ("k1", "k2", "k3", "k3+"):
    middle, reported[name] = torch.tensor(1.5, dtype=torch.float64, requires_grad=True), []
    for _ in range(300):
        log_pi = (-((place - middle) ** 2) / 2).log_softmax(-1)
        loss = (log_pi.detach().exp() * kl_penalty(log_pi, two_hills, name)).sum()
        (slope,) = torch.autograd.grad(loss, middle)
        middle = (middle - 0.3 * slope).detach().requires_grad_()
        reported[name].append(float(loss.detach()))
    ends[name] = log_pi.detach().exp()
    show(
        f"{name}: ends at, loss before, after", float(middle.detach()), reported[name][0], reported[name][-1], digits=3
    )

# %% tags=["hide-input"]
shapes = {"reference": two_hills.exp(), "k2, k3+": ends["k2"], "k3": ends["k3"], "k1, start": ends["k1"]}
lines = {name: shape.tolist() for name, shape in shapes.items()}
picture(curves(place.tolist(), lines, x_name="action", y_name="probability"))
assert reported["k3"][-1] > reported["k3"][0]
assert reported["k2"][-1] < reported["k2"][0]
assert torch.allclose(ends["k2"], ends["k3+"], rtol=0, atol=1e-6)
say("""
    k1 stands still. k2 and k3+ climb the near hill: KL(π‖ref) only asks that π writes nothing that the reference would
    not (**mode seeking**). k3 walks off, to between the hills: KL(ref‖π) asks that π can write all that the reference
    would (**mass covering**). On its way **its own reported loss rises**: the number and the gradient belong to two
    quantities.
    """)

# %% [markdown]
# ## In the reward, or in the loss?
#
# The other place for a penalty is the reward: every token pays $\beta\,\delta$. There k1 is right, because a reward
# multiplies the score: that is the half $\mathbb{E}_\pi[k\,s]$ that a loss misses. A token's score is then multiplied
# by all penalties **from it on**, since it also decides where the answer goes. k2 in the loss counts its own alone:
#
# $$ \nabla\,\mathrm{KL}\big(\text{answers}\big)=\mathbb{E}_\pi\Big[\sum_t\Big(\sum_{t'\ge t}\delta_{t'}\Big)s_t\Big],
# \qquad\text{k2 in the loss:}\quad\mathbb{E}_\pi\Big[\sum_t\delta_t\,s_t\Big] . $$
#
# In GRPO a penalty in the reward is also divided by the group's deviation, so
# the same $\beta$ is another strength.
#
# ## Stale tokens: none of it holds
#
# All of this used that the tokens come from $\pi$. The engine's come from $q$. Then $\mathbb{E}_q[s]=
# -\nabla\mathrm{KL}(q\|\pi)$ is not 0, and k1 as a loss drives $\pi$ **away from the engine**, wherever the reference
# is. Weights repair every line (lesson 02): count each token by $\pi/q$. Look at X again: on the
# engine's tokens even k2 makes it rarer.

# %%
q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
show("as a loss, in the logits", "X", "Y", "Z")
for name in ("k1", "k2", "k3"):
    show(f"{name}, tokens of q", expected_gradient(name, q), digits=3)
    show(f"{name}, counted by π/q", expected_gradient(name, q * pi / q), digits=3)

# %% [markdown]
# ## Exercise 1: k3 of a batch
#
# *5 minutes.* From the log-probs of the drawn tokens in the policy and in the reference, `(B, T)`, and the mask, return
# the mean k3 over the real tokens.
#
# <details><summary>Hint 1</summary>The policy that drew the tokens is the denominator.</details>
# <details><summary>Hint 2</summary>Take the differences where the mask is True, and only then exponentials.</details>


# %%
def mean_k3(log_probs, ref_log_probs, mask):
    raise NotImplementedError("exercise 1: write mean_k3, then run this cell and the next.")


# %% tags=["check"]
check(mean_k3, MEAN_K3)


# %% tags=["solution", "hide-input"]
def mean_k3_solution(log_probs, ref_log_probs, mask):
    delta = (log_probs - ref_log_probs)[mask]
    return (torch.exp(-delta) - 1 + delta).mean()


check(mean_k3_solution, MEAN_K3)

# %% [markdown]
# ## Exercise 2: the value of k3, the gradient of k2
#
# *7 minutes.* Return a penalty per token that **is** k3 when it is read and k2 when it is differentiated. `log_probs`
# requires a gradient; `x.detach()` is x without one. The check looks at both.
#
# <details><summary>Hint 1</summary>x − x.detach() is 0 and has the gradient of x.</details>
# <details><summary>Hint 2</summary>Add to that something that has the right value and no gradient.</details>


# %%
def straight_through(log_probs, ref_log_probs):
    raise NotImplementedError("exercise 2: write straight_through, then run this cell and the next.")


# %% tags=["check"]
check(straight_through, STRAIGHT_THROUGH)


# %% tags=["solution", "hide-input"]
def straight_through_solution(log_probs, ref_log_probs):
    delta = log_probs - ref_log_probs
    k2, k3 = delta**2 / 2, torch.exp(-delta) - 1 + delta
    return k2 - k2.detach() + k3.detach()


check(straight_through_solution, STRAIGHT_THROUGH)

# %% [markdown]
# ## Exercise 3: stale tokens
#
# *5 minutes.* The tokens were drawn by the engine, $q$. What must multiply each token's score, so that the average is
# $\nabla\mathrm{KL}(\pi\|\mathrm{ref})$? You get three log-probs per token; return one number per token.
#
# <details><summary>Hint 1</summary>For tokens of π it is δ.</details>
# <details><summary>Hint 2</summary>Lesson 02: count each token by the wanted policy over the one that drew.</details>


# %%
def off_policy_coefficient(log_probs, ref_log_probs, rollout_log_probs):
    raise NotImplementedError("exercise 3: write off_policy_coefficient, then run this cell and the next.")


# %% tags=["check"]
check(off_policy_coefficient, OFF_POLICY)


# %% tags=["solution", "hide-input"]
def off_policy_coefficient_solution(log_probs, ref_log_probs, rollout_log_probs):
    return torch.exp(log_probs - rollout_log_probs) * (log_probs - ref_log_probs)


check(off_policy_coefficient_solution, OFF_POLICY)

# %% [markdown]
# ## Check yourself
#
# **1. A trainer adds `0.001 * k1.mean()` to its loss, on its own fresh tokens. What does the penalty do?**
#
# <details><summary>It holds the policy near the reference: k1 is unbiased.</summary>No. Its value is. Its gradient is
# the mean score, 0 on average.</details>
# <details><summary>On average nothing; in the reward it would have worked.</summary>Yes. There it multiplies the
# score, the half that a loss misses.</details>
# <details><summary>It pushes away from the reference, because k1 can be negative.</summary>No. Its slope is 1 on every
# token, and the reference drops out.</details>
#
# **2. You change the loss from k2 to k3 and keep the coefficient. The logged KL hardly changes. Is it the same
# training?**
#
# <details><summary>Yes: near the reference k2 and k3 agree.</summary>There they do, in gradient too. But a policy that
# learns does not stay near.</details>
# <details><summary>No. It follows KL(ref‖π) now, and the logged number cannot show it.</summary>Yes. They are two
# things.</details>
# <details><summary>No: k3 is biased.</summary>The value of k3 is unbiased, that of k2 is not.</details>
#
# **3. Each batch is used for four updates. The penalty is k2 in the loss. What is true of the fourth?**
#
# <details><summary>k2 is still ∇KL(π‖ref): only log π and log ref occur in it.</summary>No. Who drew the tokens occurs
# in the average.</details>
# <details><summary>It needs the weight of π over the policy that drew.</summary>Yes: exercise 3.</details>
# <details><summary>Better take k1 then.</summary>Worst: off-policy it drives the policy away from what drew the
# tokens.</details>
#
# ## In the app
#
# After `make app`, open
#
# - [the gradient view of bf16](http://localhost:8501/gradient?run=bf16&step=400);
# - [that of control_fp32](http://localhost:8501/gradient?run=control_fp32&step=40), with an exact engine;
# - [top_p](http://localhost:8501/gradient?run=top_p&step=40), whose tokens are not the policy's own.
#
# ## Pitfalls
#
# - **Names.** verl's `low_var_kl` in the loss is k3; its `k3+` is the repair.
# - **Clamps.** A clamp on the value of k3 switches it off where $\pi$ has drifted most. Use k3+.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: k1, k2, k3 as values.
# 2. [Rethinking KL Regularization in RLHF](https://arxiv.org/abs/2510.01555), 2025: k1 in the reward, k2 as a loss,
#    and what k3 as a loss is.
# 3. Shah et al., [A Comedy of Estimators](https://arxiv.org/abs/2512.21852), 2025: the configurations of estimators
#    compared in training.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; the path does not need them.
#
# ### How noisy one token is, from near to far
#
# Training carries $\pi$ away from the reference, on twenty actions. The picture divides the spread of each estimator by
# the KL itself; at 1 one token tells the KL to within its own size. **Look for** the side on which k3 wins.

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
picture(curves(exact_kl, noise, x_name="KL(π‖ref), nats", y_name="spread of one token / KL", log="xy"))
assert max(noise["k2"][0], noise["k3"][0]) < noise["k1"][0] / 10
assert noise["k3"][-1] > noise["k1"][-1] * 10
say(f"""
    Near the reference k2 and k3 are far quieter than k1. Far from it k3 is the noisiest: $e^{{-\\delta}}$ grows without
    limit on a token that π has nearly given up. k2 is quiet on both sides, but biased: its mean is
    {k2_share[0]:.2f} of the KL at the left end and {k2_share[-1]:.2f} at the right.
    """)

# %% [markdown]
# ### The table of losses, with symbols
#
# $\pi_a=x_a/\sum x$ with $x=e^{\text{logit}}$, so that a derivative by a logit is $x\,\partial/\partial x$.

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
    """E[c s], component j."""
    return sum(probability[a] * c[a] * score[a][j] for a in actions)


Q = sympy.symbols("q_X q_Y", positive=True)
engine = [*Q, 1 - sum(Q)]
for j in actions:
    for name, k in values.items():  # the gradient of the mean has two halves; the program gets the first
        whole = by_logit(sum(pi_of[a] * k[a] for a in actions), j)
        assert is_zero(whole - program(slopes[name], j) - program(k, j))
        assert is_zero(program(slopes[name], j) - by_logit(goals[name], j))
    assert is_zero(program(slopes["k3"], j) - (pi_of[j] - reference[j]))
    away = sum(engine[a] * -log_pi_of[a] for a in actions)  # KL(q‖π), but for what does not move
    assert is_zero(program([1, 1, 1], j, engine) + by_logit(away, j))

# %% [markdown]
# ### Answers of several tokens
#
# A random policy and reference, all answers enumerated. Each loss beside the gradients of the KL of the next token;
# then k1 in the reward beside that of the KL of whole answers.

# %% tags=["hide-input"]
where = toy.world(4, 3)
theta, far_ref = toy.random_policy(where, 80), toy.random_policy(where, 81)
forward, backward = (toy.token_kl_gradient(where, theta, far_ref, reverse=reverse) for reverse in (False, True))


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


def in_the_reward(where, theta, ref, gamma):
    """E_π[Σ_t (Σ_{t' ≥ t} γ^(t'−t) δ_t') s_t], over all answers."""
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
    "k2 in the loss, beside ∇KL of answers",
    "length",
    float(of_k2.norm() / whole.norm()),
    "cosine",
    cosine(of_k2, whole),
)

# %% [markdown]
# ### Stale tokens, in a toy and on a run
#
# First an engine that moves away from the policy: what is left of k2's and k3's direction. Then `top_p`, whose engine
# never writes a token outside the most probable ones. (No weight can repair that: what is never written cannot be
# counted.)

# %% tags=["hide-input"]
show("KL(q‖π), cosine of k2, of k3", digits=3)
for size in (0.0, 0.1, 0.3, 1.0):
    moved = theta + size * toy.random_policy(where, 82)
    off = {name: toy.kl_gradient(where, theta, far_ref, name, sampled_from=moved) for name in ("k2", "k3")}
    show(f"  engine moved by {size}", float(toy.kl(where, moved, theta)), cosine(off["k2"], forward),
         cosine(off["k3"], backward), digits=3)  # fmt: skip

stale = {name: kl_report(places("top_p"), name, on_policy=False) for name in ("k2", "k3")}
from_engine = kl_report(places("moe_bf16"), "k1", "rollout", on_policy=False).reverse_cosine
assert from_engine.high < -0.999
say(f"""
    On the engine's tokens of `top_p` k2 has a cosine of {below(stale["k2"].cosine, 0.995)} with the KL that was meant,
    where it had 1, and k3 one of {below(stale["k3"].reverse_cosine, 0.97)} with the other KL. In `moe_bf16` k1 on the
    engine's tokens points straight away from the engine: a cosine of {from_engine.value:.2f} with ∇KL(q‖π).
    """)

# %% [markdown]
# ### One rare token
#
# By hand: π has given a token up, $\delta=-10$. Its k3 is 22,015, with a slope of −22,025; k2 has 50 and −10. Some
# systems cut the **value** of k3 at 10. A value that is cut has no gradient, so from the $\delta$ on at which k3 is 10
# such a loss does nothing. k3+ needs no cut: its slope is $\delta$.

# %%
edge = -sympy.LambertW(-sympy.exp(-11), -1) - 11  # where e^x − x − 1 is 10
assert sympy.simplify(sympy.exp(edge) - edge - 1 - 10).evalf(chop=True) == 0
show("k3 is 10 at δ =", str((-edge).evalf(4)))
