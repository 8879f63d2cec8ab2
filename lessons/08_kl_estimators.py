# %% [markdown]
# # 08 · KL estimators: a value is not a gradient
#
# **Claim.** Where the policies are close, k1, k2 and k3 estimate the same number, but as losses they pull apart: k1
# nowhere, k2 along the KL that was meant, k3 along the other one.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* You need the score of lesson 01 and the weights of
# lesson 02. Lesson 07 used k1, k2 and k3 to reject; here they are a penalty.
#
# At the end you can
#
# - say what k1, k2, k3 and |log r| estimate, which of them are unbiased, and when k3 is noisier than k1;
# - derive what each of them does as a loss, from one line;
# - repair a loss so that it reports k3 and pulls like k2;
# - say when a KL in the reward and a KL in the loss are the same gradient, and what stale tokens do to both.

# %%
import warnings

import sympy
import torch
from exercises.lesson_08 import MEAN_K3, OFF_POLICY, STRAIGHT_THROUGH
from show import picture, show, text

from rlcorr.advantages import returns_to_go
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import kl_directions
from rlcorr.gradients import toy
from rlcorr.gradients.kl_losses import kl_report
from rlcorr.kl import kl_penalty
from rlcorr.records import runs, sketch_files
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(8)

# %% [markdown]
# ## A penalty, and what it is for
#
# Training for reward can carry a policy far from where it started. So one adds a penalty: stay near a **reference**,
# usually the model before training. Distance is measured by the **Kullback–Leibler divergence**, short **KL**:
#
# $$ \mathrm{KL}(\pi\|\mathrm{ref}) = \sum_a \pi(a)\,\log\frac{\pi(a)}{\mathrm{ref}(a)}, \qquad
# \mathrm{KL}(\mathrm{ref}\|\pi) = \sum_a \mathrm{ref}(a)\,\log\frac{\mathrm{ref}(a)}{\pi(a)} . $$
#
# Both are 0 only where the policies agree, and they are two different numbers. The first averages over what $\pi$
# writes: it is the penalty that is meant. The second averages over what the reference writes.
#
# Nobody sums over a vocabulary of 150,000 tokens at every position. One has the token that was drawn, and its two
# log-probs. Let $\delta = \log\pi - \log\mathrm{ref}$ and $r = \mathrm{ref}/\pi = e^{-\delta}$. As always, the policy
# that **drew** the token is the denominator. Schulman's three estimators, and one more:
#
# | name | of one token | other names |
# |---|---|---|
# | k1 | $-\log r = \delta$ | kl |
# | abs | $\lvert\delta\rvert$ | |
# | k2 | $\tfrac12(\log r)^2 = \tfrac12\delta^2$ | mse |
# | k3 | $r - 1 - \log r = e^{-\delta} - 1 + \delta$ | low_var_kl |
#
# In code this is `kl_penalty(log π, log ref, name)`.

# %% [markdown]
# ## Three actions
#
# The policy writes A, B, C with 0.5, 0.4, 0.1. The reference would with 0.4, 0.1, 0.5. So $r$ is 0.8, ¼ and 5. Before
# you run the cell: which actions must become rarer, so that $\pi$ comes nearer to the reference?

# %%
pi = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
ref = torch.tensor([0.4, 0.1, 0.5], dtype=torch.float64)
NAMES = ("k1", "abs", "k2", "k3")


def mean_and_spread(probability, value):
    """Average and standard deviation of one draw, both exact."""
    mean = (probability * value).sum(-1)
    return mean, ((probability * value.square()).sum(-1) - mean.square()).clamp(min=0).sqrt()


show("", "A", "B", "C", "mean", "spread")
for name in NAMES:
    value = kl_penalty(pi.log(), ref.log(), name)
    show(name, value, *map(float, mean_and_spread(pi, value)), digits=3)

true_kl = float((pi * (pi / ref).log()).sum())
other_kl = float((ref * (ref / pi).log()).sum())
show("KL(π‖ref)", true_kl, digits=3)
show("KL(ref‖π)", other_kl, digits=3)

# %% [markdown]
# k1 and k3 have the KL as their mean: they are **unbiased**. k2 is off a little, and |δ| a lot. And k3 spreads less
# than k1: on A, where the policies nearly agree, it is nearly 0, while k1 can be negative.

# %% [markdown]
# ## As values
#
# Two lines say all of it. Ratios average to 1 (lesson 00), so adding $r-1$ changes no mean. And for small $\delta$ all
# three have the same first term:
#
# $$ \mathbb{E}_\pi[k3] = \mathbb{E}_\pi[k1] + \underbrace{\mathbb{E}_\pi[r-1]}_{0}, \qquad
# k3 = \tfrac12\delta^2 - \tfrac16\delta^3 + \dots = k2 - \tfrac16\delta^3 + \dots $$

# %%
d = sympy.Symbol("delta", real=True)
KAPPA = {"k1": d, "k2": d**2 / 2, "k3": sympy.exp(-d) - 1 + d}

P = sympy.symbols("pi_A pi_B pi_C", positive=True)
F = sympy.symbols("ref_A ref_B ref_C", positive=True)
terms = (p * (KAPPA["k3"] - KAPPA["k1"]).subs(d, sympy.log(p / f)) for p, f in zip(P, F, strict=True))
left = sympy.simplify(sympy.Add(*terms))
assert sympy.simplify(left - (sum(F) - sum(P))) == 0  # Σ ref − Σ π, and both sums are 1
assert sympy.series(KAPPA["k3"], d, 0, 4).removeO() == d**2 / 2 - d**3 / 6

show("E[k3] − E[k1] =", str(left))
show("k3 =", str(sympy.series(KAPPA["k3"], d, 0, 5)))

# %% [markdown]
# How noisy is one draw? Now training carries $\pi$ away from the reference, from nearly equal to far. The next picture
# divides the spread of each estimator by the KL itself, so 1 means: one token tells the KL to ±100 %. **Look for** the
# side on which k3 wins, and where it loses.

# %%
logits = torch.randn(20, dtype=torch.float64, generator=generator)  # twenty actions
move = torch.randn(20, dtype=torch.float64, generator=generator)
sizes = torch.logspace(-2, 0.9, 25, dtype=torch.float64)

exact_kl, k2_share, noise = [], [], {name: [] for name in ("k1", "k2", "k3")}
for size in sizes:
    log_ref, log_pi = logits.log_softmax(-1), (logits + size * move).log_softmax(-1)
    exact_kl.append(float((log_pi.exp() * (log_pi - log_ref)).sum()))
    for name in noise:
        mean, spread = mean_and_spread(log_pi.exp(), kl_penalty(log_pi, log_ref, name))
        noise[name].append(float(spread) / exact_kl[-1])
        if name == "k2":
            k2_share.append(float(mean) / exact_kl[-1])

picture(curves(exact_kl, noise, x_name="KL(π‖ref)", y_name="spread of one token / KL", log="xy"))
show("mean of k2 over the KL, near and far", k2_share[0], k2_share[-1], digits=3)

near, far = 0, len(sizes) - 1
assert noise["k3"][near] < noise["k1"][near] / 10
assert noise["k3"][far] > noise["k1"][far] * 10

# %% [markdown]
# Near the reference k3 is the better thermometer by far. Far from it, it is the worst: $e^{-\delta}$ grows without
# limit on a token that $\pi$ has nearly given up and the reference would still write. k2 is quiet on both sides, but
# biased. There is no best one: there is a range.

# %% [markdown]
# ## As losses
#
# A program computes the mean of $\kappa(\delta)$ over the drawn tokens and calls `backward()`. The tokens are data:
# nothing is differentiated through the drawing. With the score $s = \nabla\log\pi$ and $\nabla\delta = s$,
#
# $$ \text{the program gets}\quad \mathbb{E}_\pi[\kappa'(\delta)\, s], \qquad\text{but}\qquad
# \nabla\,\mathbb{E}_\pi[\kappa(\delta)] = \mathbb{E}_\pi[\kappa'(\delta)\,s] + \mathbb{E}_\pi[\kappa(\delta)\,s] . $$
#
# The second half is how the drawing itself changes. It is missing. So the mean of a loss is one thing, and what its
# gradient descends is another:
#
# | loss | $\kappa'$ | $\mathbb{E}_\pi[\kappa' s]$ is the gradient of |
# |---|---|---|
# | k1 | 1 | nothing: $\mathbb{E}_\pi[s] = 0$ |
# | abs | sign δ | $\sum_a\lvert\pi-\mathrm{ref}\rvert$, twice the **total variation** |
# | k2 | $\delta$ | $\mathrm{KL}(\pi\|\mathrm{ref})$ |
# | k3 | $1-r$ | $\mathrm{KL}(\mathrm{ref}\|\pi)$ |
#
# For k3: $\mathbb{E}_\pi[(1-r)\,s] = -\sum_a \mathrm{ref}(a)\,\nabla\log\pi(a)$, and that is $\nabla\mathrm{KL}
# (\mathrm{ref}\|\pi)$, because only $\log\pi$ in it moves.

# %% [markdown]
# ### Check 1, with symbols: a softmax of three actions
#
# $\pi_a = X_a/\sum X$ with $X = e^{\text{logit}}$, so that a derivative by a logit is $X\,\partial/\partial X$.

# %%
X = sympy.symbols("X_A X_B X_C", positive=True)
actions = range(3)
pi_of = [x / sum(X) for x in X]
reference = [*F[:2], 1 - F[0] - F[1]]  # adds up to 1
log_pi_of = [sympy.log(x) - sympy.log(sum(X)) for x in X]
delta_of = [log_pi_of[a] - sympy.log(reference[a]) for a in actions]


def by_logit(f, j):
    return X[j] * sympy.diff(f, X[j])


def is_zero(f):
    return sympy.cancel(f) == 0


score = [[sympy.cancel(by_logit(log_pi_of[a], j)) for j in actions] for a in actions]


def program(c, j):
    """E_π[c s], component j."""
    return sum(pi_of[a] * c[a] * score[a][j] for a in actions)


kl_of = sum(pi_of[a] * delta_of[a] for a in actions)
other_of = sum(reference[a] * -delta_of[a] for a in actions)
r_of = [reference[a] / pi_of[a] for a in actions]
values_of = {"k1": delta_of, "k2": [x**2 / 2 for x in delta_of], "k3": [r_of[a] - 1 + delta_of[a] for a in actions]}
slopes_of = {"k1": [1, 1, 1], "k2": delta_of, "k3": [1 - x for x in r_of]}

for name, kappa in KAPPA.items():  # κ′ is what the table says
    assert sympy.simplify(sympy.diff(kappa, d) - {"k1": 1, "k2": d, "k3": 1 - sympy.exp(-d)}[name]) == 0
for j in actions:
    for name, kappa in values_of.items():  # the gradient of the mean has two halves
        whole = by_logit(sum(pi_of[a] * kappa[a] for a in actions), j)
        assert is_zero(whole - program(slopes_of[name], j) - program(kappa, j))
    assert is_zero(program(slopes_of["k1"], j))
    assert is_zero(program(slopes_of["k2"], j) - by_logit(kl_of, j))
    assert is_zero(program(slopes_of["k3"], j) - by_logit(other_of, j))
    assert is_zero(program(slopes_of["k3"], j) - (pi_of[j] - reference[j]))

show("k1 as a loss, in the logit of A", str(sympy.cancel(program(slopes_of["k1"], 0))))
show("k3 as a loss, in the logit of A", "pi_A - ref_A")

# %% [markdown]
# The last assertion is worth keeping: **as a loss, k3 is $\pi - \mathrm{ref}$ in the logits**, the gradient of
# imitation. It is a fine loss. It is not the one that its value names.
#
# ### Check 2, with numbers
#
# The three actions again, by autograd. A loss is descended, so a positive number makes the action rarer.


# %%
def expected_gradient(estimator, counted=pi):
    """Σ counted · ∇κ in the logits of π: how often each action is drawn, times the weight of one."""
    leaf = pi.log().requires_grad_()
    log_pi = leaf.log_softmax(-1)
    return torch.autograd.grad((counted * kl_penalty(log_pi, ref.log(), estimator)).sum(), leaf)[0]


def gradient_of_kl(p_first):
    """∇KL(π‖ref), or ∇KL(ref‖π), in the logits of π."""
    leaf = pi.log().requires_grad_()
    p = leaf.softmax(-1)
    return torch.autograd.grad((p * (p / ref).log()).sum() if p_first else (ref * (ref / p).log()).sum(), leaf)[0]


def gradient_of_variation():
    """∇ Σ |π − ref|, twice the total variation."""
    leaf = pi.log().requires_grad_()
    return torch.autograd.grad((leaf.softmax(-1) - ref).abs().sum(), leaf)[0]


gradient_of_loss = {name: expected_gradient(name) for name in (*NAMES, "k3+")}

show("", "A", "B", "C")
for name, gradient in gradient_of_loss.items():
    show(f"{name} as a loss", gradient, digits=3)
show("∇KL(π‖ref)", gradient_of_kl(True), digits=3)
show("∇KL(ref‖π)", gradient_of_kl(False), digits=3)

assert gradient_of_loss["k1"].abs().max() < 1e-15
assert torch.allclose(gradient_of_loss["k2"], gradient_of_kl(True), rtol=0, atol=1e-14)
assert torch.allclose(gradient_of_loss["k3"], gradient_of_kl(False), rtol=0, atol=1e-14)
assert torch.allclose(gradient_of_loss["k3"], pi - ref, rtol=0, atol=1e-14)
assert torch.allclose(gradient_of_loss["abs"], gradient_of_variation(), rtol=0, atol=1e-14)
assert torch.equal(gradient_of_loss["k3+"], gradient_of_loss["k2"])
assert gradient_of_loss["k2"][0] < 0 < gradient_of_loss["k3"][0]

# %% [markdown]
# Look at A. The penalty that was meant makes A **more** probable: to leave B is what counts, and A is a good place to
# go. k3 makes A **less** probable, because 0.5 is above 0.4. The same three tokens, the same reported number 0.505, and
# opposite signs.
#
# `k3+` is the repair, called **straight-through**: it reports k3 and pulls like k2. One line does it, and exercise 2
# asks for it.
#
# Now answers of several tokens, all of them enumerated: a random policy and a random reference over 4 tokens and up to
# 3 steps. `toy.kl_gradient` is what a program gets on average, `toy.token_kl_gradient` the truth for the next token.

# %%
where = toy.world(4, 3)
theta, far_ref = toy.random_policy(where, 80), toy.random_policy(where, 81)
forward_kl = toy.token_kl_gradient(where, theta, far_ref, reverse=False)
backward_kl = toy.token_kl_gradient(where, theta, far_ref, reverse=True)


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


show("responses", len(where.tokens))
show("as a loss", "length", "∇KL(π‖ref)", "∇KL(ref‖π)")
for name in ("k1", "abs", "k2", "k3", "k3+"):
    g = toy.kl_gradient(where, theta, far_ref, name)
    if float(g.norm()) < 1e-12:
        show(name, 0.0, "-", "-", digits=3)
    else:
        show(name, float(g.norm()), cosine(g, forward_kl), cosine(g, backward_kl), digits=3)

assert toy.kl_gradient(where, theta, far_ref, "k1").norm() < 1e-12
for name, truth in (("k2", forward_kl), ("k3+", forward_kl), ("k3", backward_kl)):
    assert torch.allclose(toy.kl_gradient(where, theta, far_ref, name), truth, rtol=0, atol=1e-13)

# %% [markdown]
# ### Check 3, with data
#
# A recorded run keeps, at sixteen places of its last step, all 21 next tokens: their probabilities in the policy and in
# the reference, and their scores in 64 or 96 random directions. So the expectation over the next token is exact, and
# only the places are a sample. First the values, in `control_fp32`: there the engine computes as exactly as the
# trainer, so that the drawn tokens are really the policy's own.

# %%
PLACES = {}
for run_name in ("control_fp32", "bf16", "top_p", "moe_bf16"):
    run = runs.find_run(run_name)
    PLACES[run_name] = sketch_files.read_sketch(run, sketch_files.last_sketch(run)).next_tokens


def exact_values(run_name):
    log_pi, log_ref = PLACES[run_name].log_probs.double(), PLACES[run_name].ref_log_probs.double()
    means_and_spreads = {}
    for name in NAMES:
        mean, spread = mean_and_spread(log_pi.exp(), kl_penalty(log_pi, log_ref, name))
        means_and_spreads[name] = (float(mean.mean()), float(spread.square().mean().sqrt()))
    return means_and_spreads


def drawn_tokens(run_name):
    """log π and log ref of the tokens that were drawn, (N,), and their scores, (N, K)."""
    run = runs.find_run(run_name)
    step = sketch_files.last_sketch(run)
    batch = runs.read_step(run, step).batch
    pair = (batch.tensors()[key][batch.response_mask].double() for key in ("old_log_probs", "ref_log_probs"))
    return *pair, sketch_files.read_sketch(run, step).scores.double()


def sampled_values(run_name):
    log_pi, log_ref, _ = drawn_tokens(run_name)
    return {
        name: (float(v.mean()), float(v.std() / len(v) ** 0.5))
        for name in NAMES
        for v in [kl_penalty(log_pi, log_ref, name)]
    }


control, drawn, other = exact_values("control_fp32"), sampled_values("control_fp32"), sampled_values("moe_bf16")
show("control_fp32", *NAMES)
show("16 places, exact mean", *(control[name][0] for name in NAMES), digits=3)
show("16 places, spread of one draw", *(control[name][1] for name in NAMES), digits=3)
show("913 drawn tokens, mean", *(drawn[name][0] for name in NAMES), digits=3)
show("913 drawn tokens, standard error", *(drawn[name][1] for name in NAMES), digits=3)

show("moe_bf16, 888 drawn tokens, mean", *(other[name][0] for name in NAMES), digits=3)
show("moe_bf16, standard error", *(other[name][1] for name in NAMES), digits=3)

log_pi, log_ref = (vars(PLACES["control_fp32"])[key].double() for key in ("log_probs", "ref_log_probs"))
square = log_pi.exp() * kl_penalty(log_pi, log_ref, "k3").square()
share = float(square[log_pi.exp() < 1e-4].sum() / square.sum())
show("of k3's mean square, from π < 0.0001", share, digits=3)

moe_pi, moe_ref, _ = drawn_tokens("moe_bf16")
assert 219 < float(kl_penalty(moe_pi, moe_ref, "k3").max()) < 222
assert share > 0.85
assert abs(control["k1"][0] - control["k3"][0]) < 1e-4  # unbiased, both
assert control["k3"][1] > 50 * control["k1"][1]  # but not equally quiet
assert 0.6 < drawn["k3"][0] / drawn["k1"][0] < 0.7
assert drawn["k1"][0] - drawn["k3"][0] > 3 * (drawn["k1"][1] ** 2 + drawn["k3"][1] ** 2) ** 0.5

# %% [markdown]
# Read this table slowly, because it goes against the textbook. Summed over all next tokens, k1 and k3 are equal, as
# they must be. On the 913 tokens that were drawn, k3 comes out a third below k1, by far more than the standard errors
# allow. It is chance all the same, and the standard errors are wrong: the spread of one k3 is over fifty, and nine
# tenths of its square sit on tokens that the policy writes less than once in ten thousand times, and the reference far
# more often. Hardly any was drawn, so neither the mean nor its error knows of them. It is lesson 00's rare token again.
# In `moe_bf16` one was drawn, with a k3 of 220, and k3 comes out at twice k1 with an error that is half of itself.
# After some training **k3 underestimates quietly, and now and then jumps**; k1's error can be believed.
#
# Now the gradients, from the same places. `kl_report` compares the expected gradient of each loss with both truths; the
# intervals are over places. The run is `bf16` after 400 steps, far from its reference. **Look for** the loss whose
# bars are at 1 with the penalty that was meant; above the bars stands the length.

# %%
LOSSES = ("k2", "k3", "k3+", "abs")
reports = {name: kl_report(PLACES["bf16"], name) for name in LOSSES}
picture(kl_directions(reports))


# %%
def row(label, report):
    parts = (report.cosine, report.reverse_cosine, report.length)
    show(label, *(f"{text(i.value, 2)} [{text(i.low, 2)}, {text(i.high, 2)}]".rjust(20) for i in parts))


def heading(label):
    show(label, *(name.rjust(20) for name in ("with ∇KL(π‖ref)", "with ∇KL(ref‖π)", "length")))


heading("cosine [95 %]")
for run_name in ("control_fp32", "bf16"):
    for name in ("k2", "k3"):
        row(f"{run_name}, {name}", kl_report(PLACES[run_name], name))
show("noise of one token, k2", *(kl_report(PLACES[n], "k2").noise.value for n in ("control_fp32", "bf16")), digits=0)
show("noise of one token, k3", *(kl_report(PLACES[n], "k3").noise.value for n in ("control_fp32", "bf16")), digits=0)

for run_name in ("control_fp32", "bf16"):
    k1, k2, k3 = (kl_report(PLACES[run_name], name) for name in ("k1", "k2", "k3"))
    assert k1.length.high < 0.01  # no gradient at all
    assert k2.cosine.low > 0.999  # the KL that was meant
    assert k3.reverse_cosine.low > 0.99  # the other one
    assert k3.cosine.high < 0.96  # and the two differ, beyond the interval
    assert k3.noise.value > 100 * k2.noise.value
assert abs(k3.cosine.value - 0.35) < 0.005  # of bf16

# %% [markdown]
# k2 and k3+ lie on the penalty that was meant (in this run abs comes close); k3 lies on the other one, and the interval
# between the two directions excludes 1 in both runs. k3 is also longer, so a coefficient tuned for k2 is too large for
# k3. And one token's k3 gradient is noisier by orders of magnitude, for the reason of the table above. k1 has no bar:
# its length is 0, and so it has no direction.
#
# Sixteen places are few: the truth here is the truth of these places, and k3's length has a wide interval. The
# direction of k2 has none, because it holds place by place.
#
# Last, from drawn tokens alone: is there any signal in $\mathbb{E}[\kappa' s]$? In each of the $K$ directions, divide
# the mean over all tokens by its standard error, square, and add. Without a signal the sum is about $K$, give or take
# $2\sqrt{2K}$: 64 ± 23 in the mixture, and 96 ± 28 in the other two runs.


# %%
def signal(run_name, estimator):
    """Σ over directions of (mean / standard error)² of one loss's gradient, from the drawn tokens."""
    log_pi, log_ref, scores = drawn_tokens(run_name)
    leaf = log_pi.requires_grad_()
    g = torch.autograd.grad(kl_penalty(leaf, log_ref, estimator).sum(), leaf)[0][:, None] * scores
    return float((g.mean(0) / (g.std(0) / len(g) ** 0.5)).square().sum())


show("", "k1", "k2", "k3")
signals = {n: {e: signal(n, e) for e in ("k1", "k2", "k3")} for n in ("control_fp32", "top_p", "moe_bf16")}
for run_name, by_estimator in signals.items():
    show(run_name, *by_estimator.values(), digits=0)

DIRECTIONS = {"control_fp32": 96, "top_p": 96, "moe_bf16": 64}
spreads = {n: {e: (v - k) / (2 * k) ** 0.5 for e, v in signals[n].items()} for n, k in DIRECTIONS.items()}
assert all(abs(by_estimator[name]) < 2 for by_estimator in spreads.values() for name in ("k1", "k3"))
assert min(spreads[run_name]["k2"] for run_name in ("control_fp32", "moe_bf16")) > 6 > 2 > spreads["top_p"]["k2"]

# %% [markdown]
# k1 shows nothing in any run. k2 shows a clear signal in `moe_bf16` and `control_fp32`, and none in `top_p`: nine
# hundred tokens are not many for a penalty. k3, from the same tokens, shows none anywhere: whatever it has drowns in
# its noise.

# %% [markdown]
# ## Predict, then reveal
#
# A policy that cannot match its reference shows where each loss really goes. Nine actions stand in a row. The
# reference has two hills, at −2 (60 %) and at +2 (40 %). The policy is one hill of fixed width; only its place $\mu$
# can move. It starts at +1.5. We descend the penalty alone, exactly, with four losses. **Write down a guess:**
#
# 1. Which losses climb the near hill, which move away from it, and which stand still?
# 2. k3's mean **is** the KL. While its gradient is descended, does the reported loss fall?
#
# Then run the cells.

# %%
place = torch.arange(-4, 5, dtype=torch.float64)


def hill(mu):
    return (-((place - mu) ** 2) / 2).log_softmax(-1)


two_hills = (0.6 * hill(-2.0).exp() + 0.4 * hill(2.0).exp()).log()
start = 1.5
ends = {}
show("loss", "starts", "ends", "loss was", "loss is", "KL(π‖ref)", "KL(ref‖π)")
for name in ("k1", "k2", "k3", "k3+"):
    mu, losses = torch.tensor(start, dtype=torch.float64), []
    for _ in range(300):
        leaf = mu.clone().requires_grad_()
        log_pi = hill(leaf)
        loss = (log_pi.detach().exp() * kl_penalty(log_pi, two_hills, name)).sum()
        losses.append(float(loss.detach()))
        mu = mu - 0.3 * torch.autograd.grad(loss, leaf)[0]
    ends[name] = log_pi = hill(mu)
    to_ref = float((log_pi.exp() * (log_pi - two_hills)).sum())
    from_ref = float((two_hills.exp() * (two_hills - log_pi)).sum())
    show(name, start, float(mu), losses[0], losses[-1], to_ref, from_ref, digits=3)
    if name == "k1":
        assert abs(float(mu) - start) < 1e-12
    elif name == "k3":
        assert float(mu) < 0
        assert losses[-1] > losses[0]  # the reported loss rises while its gradient is descended
    else:
        assert float(mu) > start
        assert losses[-1] < losses[0]

# %% [markdown]
# k1 stands still. k2 and k3+ climb the near hill and stay on it: KL(π‖ref) asks only that $\pi$ writes nothing that the
# reference would not (**mode seeking**). k3 walks off, to between the hills: KL(ref‖π) asks that $\pi$ can write
# everything that the reference would (**mass covering**). On its way **its own reported loss rises**. Nothing is
# broken: the number and the gradient belong to two different quantities. **Look for** the valley that k3 fills.

# %%
shapes = {"reference": two_hills, "k2, k3+": ends["k2"], "k3": ends["k3"], "k1, start": ends["k1"]}
lines = {name: log_pi.exp().tolist() for name, log_pi in shapes.items()}
picture(curves(place.tolist(), lines, x_name="action", y_name="probability"))

# %% [markdown]
# ## In the reward, or in the loss?
#
# The other place for a penalty is the reward: every token pays $\beta\,\delta$, and the policy gradient of lesson 01
# does the rest. There k1 is right, because the reward is not differentiated: the score comes from the drawing, the
# half that a loss misses. The reward of later tokens belongs to earlier choices too, so a token's score is multiplied
# by all penalties **from it on**:
#
# $$ \nabla\,\mathrm{KL}\big(\pi(\text{answer})\|\mathrm{ref}(\text{answer})\big) = \mathbb{E}_\pi\Big[\sum_t
# \Big(\sum_{u\ge t}\delta_u\Big) s_t\Big], \qquad\text{k2 in the loss:}\quad \mathbb{E}_\pi\Big[\sum_t
# \delta_t\, s_t\Big] . $$
#
# So they are the same gradient if answers have one token, or if the return is discounted with $\gamma = 0$. Otherwise
# the loss leaves out that a token now leads to a place where the KL is large later.


# %%
def in_the_reward(where, theta, ref, gamma):
    """E_π[Σ_t (Σ_{u ≥ t} γ^(u−t) δ_u) s_t], over all responses."""
    delta = kl_penalty(toy.log_probs(where, theta), toy.log_probs(where, ref), "k1")
    pays = returns_to_go(torch.where(where.mask, delta, 0), where.mask, gamma)
    leaf = theta.clone().requires_grad_()
    mean = toy.probabilities(where, theta)[:, None] * pays * toy.log_probs(where, leaf)
    return toy.gradient_of(mean.sum(), leaf)


def whole_kl_gradient(where, theta, ref):
    leaf = theta.clone().requires_grad_()
    return toy.gradient_of(toy.kl(where, leaf, ref), leaf)


whole = whole_kl_gradient(where, theta, far_ref)
loss_k2 = toy.kl_gradient(where, theta, far_ref, "k2")

show("cosine with ∇KL of whole answers", "length", "cosine")
for label, g in (
    ("k1 in the reward", in_the_reward(where, theta, far_ref, 1.0)),
    ("k1 in the reward, discount 0", in_the_reward(where, theta, far_ref, 0.0)),
    ("k2 in the loss", loss_k2),
):
    show(label, float(g.norm() / whole.norm()), cosine(g, whole), digits=3)

assert torch.allclose(in_the_reward(where, theta, far_ref, 1.0), whole, rtol=0, atol=1e-13)
assert torch.allclose(in_the_reward(where, theta, far_ref, 0.0), loss_k2, rtol=0, atol=1e-13)
one = toy.world(4, 1)
short, short_ref = toy.random_policy(one, 80), toy.random_policy(one, 81)
for g in (in_the_reward(one, short, short_ref, 1.0), toy.kl_gradient(one, short, short_ref, "k2")):
    assert torch.allclose(g, whole_kl_gradient(one, short, short_ref), rtol=0, atol=1e-13)

# %% [markdown]
# Two more things separate them in a trainer. A penalty in the reward goes through everything that is done to
# advantages: it is divided by the group's standard deviation, whitened, clipped with the ratio. A penalty in the loss
# is added behind all that. So one coefficient β means two different strengths.

# %% [markdown]
# ## Stale tokens: none of it holds
#
# All proofs used that the tokens come from $\pi$. The engine's come from $q$ (and from the second update of a batch on,
# from an older $\pi$). Then $\mathbb{E}_q[s] \ne 0$, and k1 as a loss wakes up: $\mathbb{E}_q[s] =
# -\nabla\mathrm{KL}(q\|\pi)$. It does not know the reference at all; it drives $\pi$ **away from the engine**. Weights
# repair each line, as in lesson 02: count every token by $\pi/q$.

# %%
Q = sympy.symbols("q_A q_B", positive=True)
engine_of = [*Q, 1 - Q[0] - Q[1]]
from_engine = sum(engine_of[a] * sympy.log(engine_of[a]) - engine_of[a] * log_pi_of[a] for a in actions)
for j in actions:
    off_k1 = sum(engine_of[a] * score[a][j] for a in actions)
    assert is_zero(off_k1 + by_logit(from_engine, j))  # −∇KL(q‖π)
    for slope in slopes_of.values():  # weights π/q give back what π's own tokens would
        weighted = sum(engine_of[a] * (pi_of[a] / engine_of[a]) * slope[a] * score[a][j] for a in actions)
        assert is_zero(weighted - program(slope, j))

q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
weight = pi / q
show("tokens from q, in the logits", "A", "B", "C")
for name in ("k1", "k2", "k3"):
    show(f"{name} as a loss", expected_gradient(name, q), digits=3)
    show(f"{name}, counted by π/q", expected_gradient(name, q * weight), digits=3)
    assert torch.allclose(expected_gradient(name, q * weight), gradient_of_loss[name], rtol=0, atol=1e-14)
assert gradient_of_kl(True)[0] < 0 < expected_gradient("k2", q)[0]  # A: the sign is lost

# %% [markdown]
# A should become more frequent, and on stale tokens k2 makes it **rarer**. With the weights, all three are what they
# were. How fast does it go wrong? In the toy world, with an engine that moves away from the policy:

# %%
show("engine's distance from π", "KL(q‖π)", "k2", "k3")
for size in (0.0, 0.1, 0.3, 1.0):
    engine = theta + size * toy.random_policy(where, 82)
    k2_off = toy.kl_gradient(where, theta, far_ref, "k2", sampled_from=engine)
    k3_off = toy.kl_gradient(where, theta, far_ref, "k3", sampled_from=engine)
    gap = float(toy.kl(where, engine, theta))
    show(f"{size}", gap, cosine(k2_off, forward_kl), cosine(k3_off, backward_kl), digits=3)

# %% [markdown]
# On the recorded run `top_p`, the engine never writes a token outside the most probable 90 %. Each loss, on the
# policy's own tokens and on the engine's:

# %%
heading("top_p")
for name in ("k2", "k3"):
    row(f"{name}, tokens of π", kl_report(PLACES["top_p"], name))
    row(f"{name}, tokens of the engine", kl_report(PLACES["top_p"], name, on_policy=False))

stale = kl_report(PLACES["top_p"], "k2", on_policy=False)
assert stale.cosine.high < 0.995
off_k3 = kl_report(PLACES["top_p"], "k3", on_policy=False)
assert off_k3.reverse_cosine.high < 0.97

towards = kl_report(PLACES["moe_bf16"], "k1", "rollout", on_policy=False)
show("k1 on the engine's tokens, moe_bf16", "cosine", "from", "to")
parts = towards.reverse_cosine
show("  with ∇KL(engine‖π)", parts.value, parts.low, parts.high, digits=3)
assert parts.high < -0.999

# %% [markdown]
# k2's direction is now off by more than its interval, and k3 belongs to neither KL any more. And k1, which was nothing,
# points straight away from the engine, as derived. (Of `top_p` no weight can repair this whole: what the engine never
# writes cannot be counted.)
#
# ## One rare token
#
# What does a single drawn token do? Let the policy have given it up: $\log\pi = -15$, $\log\mathrm{ref} = -5$. And the
# other way round.

# %%
rare = torch.tensor([-15.0, -5.0], dtype=torch.float64)
kept = torch.tensor([-5.0, -15.0], dtype=torch.float64)
show("", "value", "pull", "value", "pull", digits=1)
show("δ", -10, "", 10)
for name in ("k1", "k2", "k3", "k3+"):
    leaf = rare.clone().requires_grad_()
    value = kl_penalty(leaf, kept, name)
    pull = torch.autograd.grad(value.sum(), leaf)[0]
    show(name, *(float(x) for pair in zip(value.detach(), pull, strict=True) for x in pair), digits=1)

edge = -sympy.LambertW(-sympy.exp(-11), -1) - 11  # where e^x − x − 1 is 10
assert sympy.simplify(sympy.exp(edge) - edge - 1 - 10).evalf(chop=True) == 0
show("e^x − x − 1 = 10 at x =", str(edge.evalf(4)))

# %% [markdown]
# One token with $\delta = -10$ reports 22,015 in k3, and pulls two thousand times as hard as in k2. Some systems
# therefore cut the **value** of k3 at 10. A value that is cut has no gradient: from $\delta < -2.611$ on, such a loss
# does nothing, where the policy has drifted most. `kl_penalty` never does that; and k3+ needs no cut, because its pull
# is $\delta$.

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
# <details><summary>Hint 2</summary>Lesson 02: each token counts by the ratio of the policy that you want over the
# policy that drew it.</details>


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
# <details><summary>It holds the policy near the reference, without bias, since k1 is unbiased.</summary>No. Its value
# is unbiased. Its gradient is the mean score, which is 0 on average: only noise is added.</details>
# <details><summary>On average nothing; in the reward it would have worked.</summary>Yes. In the reward k1 is multiplied
# by the score of the token that was drawn, which is the half that a loss misses.</details>
# <details><summary>It pushes away from the reference, because k1 can be negative.</summary>No. Its pull is 1 on every
# token, whatever its sign, and the reference drops out altogether.</details>
#
# **2. You change the loss from k2 to k3 and keep the coefficient. The logged KL hardly changes. Is it the same
# training?**
#
# <details><summary>Yes: near the reference k2 and k3 agree.</summary>Close. There they do, in value and in gradient.
# But a policy that learns does not stay near: after 400 steps of bf16 the directions have a cosine of
# 0.35.</details>
# <details><summary>No. It follows KL(ref‖π) now, with another length, and the logged number cannot show it.</summary>
# Yes. The number that is logged and the quantity that is descended are two things.</details>
# <details><summary>No: k3 is biased.</summary>The other way round. The value of k3 is unbiased, that of k2 is not. It
# is the gradient that changed.</details>
#
# **3. Each batch is used for four updates. The penalty is k2 in the loss. What is true of the fourth?**
#
# <details><summary>k2 is still ∇KL(π‖ref): only log π and log ref occur in it.</summary>No. Who drew the tokens occurs
# in the average. Now it is E_q[δ s], another direction.</details>
# <details><summary>It needs the weight π/q of the policy that drew, like everything else.</summary>Yes. Exercise 3 is
# that line.</details>
# <details><summary>Better take k1 then.</summary>Worst of all: off-policy, k1 as a loss drives the policy away from
# what drew the tokens, and does not look at the reference.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the gradient view of bf16 at step 400](http://localhost:8501/gradient?run=bf16&step=400): the picture of check 3,
#   for the reference and for the engine;
# - [the same of control_fp32](http://localhost:8501/gradient?run=control_fp32&step=40), nearer to its reference;
# - [top_p](http://localhost:8501/gradient?run=top_p&step=40), whose tokens are not the policy's own.
#
# ## Pitfalls
#
# - **Value and gradient.** "Unbiased" and "low variance" are said of values. Ask of a loss what its slope $\kappa'$ is.
# - **Names.** verl's default `low_var_kl` in the loss is k3; its `k3+` is the repair. `kl` is k1, `mse` is k2.
# - **Direction.** k3 of $\delta$ and k3 of $-\delta$ estimate different things. The policy that drew is the
#   denominator.
# - **Clamps.** A clamp on the value of a penalty switches it off where it is needed most. Clamp what goes into the
#   exponential, or use k3+.
# - **A falling loss.** The reported k3 may rise while training does what its gradient says, and fall when it does not.
# - **Zero KL, zero error.** A k3 on drawn tokens cannot see what was never drawn; compare it with k1.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: k1, k2, k3 as values.
# 2. [Rethinking KL Regularization in RLHF](https://arxiv.org/abs/2510.01555), 2025: k1 in the reward, k2 as a loss,
#    and what k3 as a loss is.
# 3. Shah et al., [A Comedy of Estimators](https://arxiv.org/abs/2512.21852), 2025: the configurations of estimators
#    compared in training.
