# %% [markdown]
# # 09 · The rollout KL loss: a soft trust region
#
# **Claim.** A penalty β·KL(π‖q) in the loss has as its optimum the engine's policy tilted by the exponential of the
# reward, which is also the optimum of a hard bound; but on the engine's tokens k2 and k3 only come near it, and k1
# drives away from it.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* Lessons 04 and 08 are assumed: the clip, and the
# gradients of k1, k2 and k3.
#
# At the end you can
#
# - derive the optimum of a reward with a KL penalty, and compute it by hand for three actions;
# - translate between the strength $\beta$ of a penalty and a hard bound $\kappa$ on the divergence;
# - say what k1, k2 and k3 minimise on the engine's tokens, and which of them you must never use there;
# - measure on a recorded step how strong the pull is beside the push of the policy loss.

# %%
import math
import warnings

import numpy
import sympy
import torch
from exercises.lesson_09 import PULL, STRENGTH, TILT
from show import picture, show

from rlcorr import TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import kl_directions
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.contributions import per_sequence
from rlcorr.gradients.kl_losses import kl_report
from rlcorr.kl import kl_penalty
from rlcorr.objective import policy_loss, score_coefficients
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(9)

# %% [markdown]
# ## A rubber band instead of a fence
#
# Weights and rejection **repair** a batch that the engine has sampled. The clip of lesson 04 **stops** a push. There is
# a third way: add a penalty that **pulls** the trainer towards the engine, so that there is less to repair.
#
# $$ L = L_{\text{policy}} + \beta\, K, \qquad K \approx KL(\pi\|q) = \mathbb{E}_\pi\!\Big[\log \frac{\pi}{q}\Big] . $$
#
# $K$ is an estimate from the tokens at hand, one of k1, k2, k3. It is called the **rollout KL loss**, because its
# target is $q$, π_rollout; the usual KL loss has a frozen reference as target. $\beta$ is its strength. In this lesson
#
# $$ \delta = \log \pi - \log q $$
#
# is the log-ratio with the policy that is being updated: $\delta = d + \log\rho$, the mismatch and the move together.
# Before the first step $\delta = d$.
#
# ## Three actions, by hand
#
# The engine writes A, B, C as often as ½, ¼, ¼, and they are worth 0, 1, 2. Without a penalty the best policy writes C
# and nothing else. How far should one go, if the divergence costs $\beta = 1/\ln 2 \approx 1.44$ per **nat**, the
# unit of everything that has a natural logarithm in it?
#
# The answer that we shall derive: multiply $q$ by $e^{R/\beta}$, then divide by the sum. With this $\beta$,
# $e^{R/\beta} = 2^R$, and everything is a quarter.
#
# | | A | B | C | sum |
# |---|---|---|---|---|
# | $q$ | ½ | ¼ | ¼ | 1 |
# | $R$ | 0 | 1 | 2 | |
# | $q\, 2^R$ | ½ | ½ | 1 | $Z = 2$ |
# | $\pi^*$ | **¼** | **¼** | **½** | 1 |
#
# This is called an **exponential tilting** of $q$.

# %%
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
R = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
beta = 1 / math.log(2)


def tilt(q, R, beta):
    """q · e^(R/β), divided by its sum."""
    return (q.log() + R / beta).softmax(-1)


def drawn(x):
    """What a picture shows: without the last digits, which differ from one machine to the next."""
    return [round(value, 6) for value in x.tolist()]


def divergence(pi, q):
    """KL(π‖q)."""
    return (pi * (pi / q).log()).sum(-1)


def objective(pi, q, R, beta):
    """What is maximised: reward − β · KL(π‖q)."""
    return (pi * R).sum(-1) - beta * divergence(pi, q)


best = tilt(q, R, beta)
show("π*", best)
show("", "engine", "π*", "only C")
candidates = torch.stack([q, best, torch.tensor([1e-12, 1e-12, 1 - 2e-12], dtype=torch.float64)])
show("reward", (candidates * R).sum(-1))
show("β · KL(π‖q)", beta * divergence(candidates, q))
show("reward − β · KL(π‖q)", objective(candidates, q, R, beta))

assert torch.allclose(best, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64))
assert torch.allclose(objective(best, q, R, beta), torch.tensor(1.0, dtype=torch.float64))  # β log Z = log₂ 2

# %% [markdown]
# The tilted policy earns 1.25 and pays 0.25. To write only C earns 2 and pays 2.
#
# ## The equation
#
# Let $\pi^* = \frac1Z\, q\, e^{R/\beta}$ with $Z = \sum_a q\, e^{R/\beta}$. Then $R = \beta \log\frac{\pi^*}{q} + \beta
# \log Z$. Put this into the objective:
#
# $$ J_\beta(\pi) = \mathbb{E}_\pi\Big[R - \beta \log \frac{\pi}{q}\Big]
# = \mathbb{E}_\pi\Big[\beta \log \frac{\pi^*}{q} + \beta \log Z - \beta \log \frac{\pi}{q}\Big]
# = \beta \log Z - \beta\, KL(\pi\|\pi^*) . $$
#
# A divergence is never below 0, and 0 only where the policies agree. So $\pi^*$ is **the** maximum, and what any other
# policy loses is $\beta$ times its divergence from $\pi^*$.
#
# The gradient: $\pi$ appears twice in $\mathbb{E}_\pi[R - \beta\delta]$, under the average and inside of $\delta$. The
# second part is $\mathbb{E}_\pi[\nabla \log \pi] = 0$. There remains
#
# $$ \nabla J_\beta = \mathbb{E}_\pi\big[(R - \beta\,\delta)\, \nabla \log \pi\big] : $$
#
# the policy gradient of a reward from which each token has to pay $\beta\delta$. At $\pi^*$, $R - \beta\delta = \beta
# \log Z$ for every action, so there is nothing left to gain.
#
# ### Check 1, with symbols: a softmax of three actions

# %%
theta = sympy.symbols("theta_A theta_B theta_C", real=True)
Qs = sympy.symbols("q_A q_B q_C", positive=True)
Rs = sympy.symbols("R_A R_B R_C", real=True)
b = sympy.symbols("beta", positive=True)
PI = [sympy.exp(x) / sympy.Add(*map(sympy.exp, theta)) for x in theta]
log_pi = [x - sympy.log(sympy.Add(*map(sympy.exp, theta))) for x in theta]
DELTA = [lp - sympy.log(q_a) for lp, q_a in zip(log_pi, Qs, strict=True)]
SCORE = [[sympy.diff(lp, x) for x in theta] for lp in log_pi]


def average(weights, terms):
    return sympy.Add(*(w * x for w, x in zip(weights, terms, strict=True)))


def grad(x):
    return [sympy.diff(x, parameter) for parameter in theta]


def zero(x):
    return sympy.simplify(sympy.expand_log(sympy.expand(x), force=True)) == 0


Z = average(Qs, [sympy.exp(r / b) for r in Rs])
log_star = [sympy.log(q_a) + r / b - sympy.log(Z) for q_a, r in zip(Qs, Rs, strict=True)]  # log π*
J = average(PI, [r - b * delta for r, delta in zip(Rs, DELTA, strict=True)])
lost = average(PI, [lp - star for lp, star in zip(log_pi, log_star, strict=True)])  # KL(π‖π*)

assert zero(J - (b * sympy.log(Z) - b * lost))
for k in range(3):
    paying = [(r - b * delta) * s[k] for r, delta, s in zip(Rs, DELTA, SCORE, strict=True)]
    assert zero(grad(J)[k] - average(PI, paying))
left = [r - b * (star - sympy.log(q_a)) for r, star, q_a in zip(Rs, log_star, Qs, strict=True)]  # R − βδ at π*
assert all(zero(x - b * sympy.log(Z)) for x in left)

show("J_β(π) = β log Z − β KL(π‖π*)", "for every π, q, R, β")
show("∇J_β = E_π[(R − βδ) s]", "for every θ")
show("R − βδ at π*", str(b * sympy.log(sympy.Symbol("Z"))), "for every action")

# %% [markdown]
# ### Check 2, with numbers: all answers of a small world
#
# Nothing above needs three actions. Let the actions be whole answers: the toy world has 40 of them, of up to three
# tokens. A thousand random policies, and none may beat the tilted one; each must lose exactly $\beta\,KL(\pi\|\pi^*)$.

# %%
where = toy.world(4, 3)
engine = toy.random_policy(where, 1)
answers_q = toy.probabilities(where, engine)
answers_R = torch.randn(len(where.tokens), generator=generator, dtype=torch.float64)
answers_best = tilt(answers_q, answers_R, 0.5)
highest = objective(answers_best, answers_q, answers_R, 0.5)

worst, smallest_loss = 0.0, math.inf
for seed in range(1000):
    answers_pi = toy.probabilities(where, engine + toy.random_policy(where, seed, 0.01 * 1.005**seed))
    loss = highest - objective(answers_pi, answers_q, answers_R, 0.5)
    worst = max(worst, float((loss - 0.5 * divergence(answers_pi, answers_best)).abs()))
    smallest_loss = min(smallest_loss, float(loss))

show("answers", len(answers_R))
show("J_β of the engine", float(objective(answers_q, answers_q, answers_R, 0.5)))
show("J_β of the tilted policy", float(highest))
show("smallest loss of a random policy", smallest_loss)
show("loss is β · KL(π‖π*), error below 1e-12", worst < 1e-12)
assert smallest_loss > 0
assert worst < 1e-12

# %% [markdown]
# ## A price and a fence are one
#
# A **hard bound** asks: maximise the reward, subject to $KL(\pi\|q) \le \kappa$. Lagrange turns this into the penalty:
# the best policy inside the fence is again a tilting, and its $\beta$ is the **price** of the fence, the reward that
# one more nat would bring.
#
# To see it, write $t = 1/\beta$ and $\Lambda(t) = \log \mathbb{E}_q[e^{tR}] = \log Z$. Then for the tilted policy
#
# $$ \mathbb{E}_{\pi^*}[R] = \Lambda'(t), \qquad KL(\pi^*\|q) = t\,\Lambda'(t) - \Lambda(t) . $$
#
# Both grow with $t$, since $\Lambda'' = \mathrm{Var}_{\pi^*}[R] > 0$: their slopes are $\Lambda''$ and $t\,\Lambda''$.
# The quotient of the slopes is the price: $\frac{d\,\mathbb{E}[R]}{d\,KL} = \frac1t = \beta$. And for a small $t$,
# $KL \approx \frac{t^2}{2} \mathrm{Var}_q[R]$, so
#
# $$ \beta \approx \sqrt{\frac{\mathrm{Var}_q[R]}{2\kappa}} . $$

# %%
s = sympy.symbols("t", positive=True)
Lambda = sympy.log(average(Qs, [sympy.exp(s * r) for r in Rs]))
star = [q_a * sympy.exp(s * r - Lambda) for q_a, r in zip(Qs, Rs, strict=True)]
reward_star = average(star, Rs)
kl_star = average(star, [s * r - Lambda for r in Rs])

assert sympy.simplify(reward_star - sympy.diff(Lambda, s)) == 0
assert sympy.simplify(kl_star - (s * sympy.diff(Lambda, s) - Lambda)) == 0
variance = average(star, [(r - reward_star) ** 2 for r in Rs])
assert sympy.simplify(sympy.diff(Lambda, s, 2) - variance) == 0
assert sympy.simplify(sympy.diff(kl_star, s) - s * sympy.diff(reward_star, s)) == 0  # the price is 1/t = β

ours = dict(zip((*Qs, *Rs), map(sympy.Rational, ("1/2", "1/4", "1/4", 0, 1, 2)), strict=True))
small = sympy.series(kl_star.subs(ours), s, 0, 4).removeO()
show("KL(π*‖q) for a small t", str(small), "+ …")
half_variance = (variance / 2).subs(ours).subs(s, 0)  # at t = 0 the tilting is q
show("Var_q[R]/2", str(half_variance))
assert small.coeff(s, 2) == half_variance

# %% [markdown]
# **Look for** the two concave lines. The upper one is the best that a fence allows: the first nat buys most. The lower
# one goes from the engine straight to C, by mixing the two policies: it buys less for the same divergence.

# %%
strengths = torch.logspace(1.3, -0.7, 40, dtype=torch.float64)
tilted = torch.stack([tilt(q, R, float(strength)) for strength in strengths])
bounds, earned = divergence(tilted, q), (tilted * R).sum(-1)
share = torch.linspace(0, 0.9999, 2000, dtype=torch.float64)[:, None]
mixed = (1 - share) * q + share * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
of_mixture = numpy.interp(bounds.numpy(), divergence(mixed.clamp(min=1e-300), q).numpy(), (mixed * R).sum(-1).numpy())
assert (earned.numpy() >= of_mixture).all()

lines = {"tilted": drawn(earned), "mixed with C": drawn(of_mixture)}
picture(curves(drawn(bounds), lines, x_name="hard bound κ, in nats", y_name="reward"))

spread = float((q * (R - (q * R).sum()).square()).sum())
rule = float((q * R).sum()) + (2 * spread * bounds).sqrt()
show("κ", bounds[::13], digits=3)
show("best reward", earned[::13], digits=3)
show("mean of q + √(2κ Var)", rule[::13], digits=3)

prices = (earned[1:] - earned[:-1]) / (bounds[1:] - bounds[:-1])  # the slope between two neighbours
assert (prices < strengths[:-1]).all()
assert (prices > strengths[1:]).all()  # lies between their two β

random_pi = torch.randn(20000, 3, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
inside = divergence(random_pi, q) <= float(divergence(best, q))
show("random policies inside κ = 0.173", int(inside.sum()))
show("highest reward among them", float((random_pi[inside] * R).sum(-1).max()))
show("reward of the tilted policy", float((best * R).sum()))
assert (random_pi[inside] * R).sum(-1).max() <= (best * R).sum()

# %% [markdown]
# So a penalty **is** a trust region, with one difference. With a fixed $\kappa$ the price adapts; with a fixed $\beta$
# the region does. Double all rewards, and the policy goes further:

# %%
show("rewards multiplied by", [1, 2, 4])
show("KL(π*‖q) with β = 1.44", [float(divergence(tilt(q, scale * R, beta), q)) for scale in (1, 2, 4)])
assert torch.allclose(tilt(q, 2 * R, beta), tilt(q, R, beta / 2))  # only R/β counts

# %% [markdown]
# That is why the size of the advantages belongs to $\beta$. **Whitened** advantages have mean 0 and
# variance 1, and then $\beta \approx 1/\sqrt{2\kappa}$: to stay within $\kappa = 0.02$ nats per decision, $\beta$ must
# be about 5. The coefficients in use are thousands of times smaller. We come back to this.
#
# ## What the loss minimises: whose tokens are they?
#
# The penalty must be estimated from tokens. Lesson 08 did it for tokens of $\pi$ itself, and found that the gradient of
# the average is not the average of the gradient. Here the tokens come from **the engine**. That changes everything:
# $q$ does not depend on $\theta$, so the expected loss is an ordinary function, and its gradient is the gradient of its
# value. (k1 is $\delta$, k2 is $\frac12\delta^2$, k3 is $e^{-\delta} - 1 + \delta$, as in `kl_penalty`.)
#
# | loss | on tokens of $\pi$, its gradient is that of | on tokens of $q$, it minimises |
# |---|---|---|
# | k1 | a constant: 0 | −KL(q‖π): **away** from the engine |
# | k2 | KL(π‖q) | the mean of ½δ² |
# | k3 | KL(q‖π) | χ²(q‖π) − KL(q‖π) |
# | k2, weighted with π/q | | its gradient is that of KL(π‖q) |
#
# The third line, for example: $\mathbb{E}_q[e^{-\delta} - 1 + \delta] = \sum \frac{q^2}{\pi} - 1 - KL(q\|\pi)$, and
# $\chi^2(q\|\pi) = \sum \frac{q^2}{\pi} - 1$.

# %%
K2 = average(Qs, [x**2 / 2 for x in DELTA])
KL_own = average(PI, DELTA)  # KL(π‖q)
KL_engine = -average(Qs, DELTA)  # KL(q‖π)
CHI2 = average(Qs, [q_a / pi_a for q_a, pi_a in zip(Qs, PI, strict=True)]) - 1
SLOPE = {
    "k1": [sympy.Integer(1)] * 3,
    "k2": DELTA,
    "k3": [1 - q_a / pi_a for q_a, pi_a in zip(Qs, PI, strict=True)],
}
one = {Qs[2]: 1 - Qs[0] - Qs[1]}


def step(sampler, name):
    """The expected gradient of a loss, by θ_A, which stands for all: actions can be renamed."""
    return average(sampler, [c * s_a[0] for c, s_a in zip(SLOPE[name], SCORE, strict=True)])


def same(left, right):
    return sympy.simplify((left - right).subs(one)) == 0


assert same(step(PI, "k1"), 0)
assert same(step(PI, "k2"), grad(KL_own)[0])
assert same(step(PI, "k3"), grad(KL_engine)[0])
assert same(step(Qs, "k1"), grad(-KL_engine)[0])
assert same(step(Qs, "k2"), grad(K2)[0])
assert same(step(Qs, "k3"), grad(CHI2 - KL_engine)[0])
weighted = [pi_a / q_a * delta * s_a[0] for pi_a, q_a, delta, s_a in zip(PI, Qs, DELTA, SCORE, strict=True)]
assert same(average(Qs, weighted), grad(KL_own)[0])
show("seven gradients", "as in the table")

# %% [markdown]
# Near the engine all that counts is the curvature at $\pi = q$. There $KL(\pi\|q)$, k2 and k3 have the same one; k1 has
# its negative. So for a small gap k2 and k3 do their job on the engine's tokens as well.

# %%


def curvature(x):
    """Second derivatives by θ_A and θ_B where π = q."""
    here = sympy.hessian(x, theta[:2]).subs({y: sympy.log(q_a) for y, q_a in zip(theta, Qs, strict=True)})
    return here.subs(one).applyfunc(lambda entry: sympy.expand(sympy.simplify(entry)))


wanted = curvature(KL_own)
assert curvature(K2) == wanted
assert curvature(CHI2 - KL_engine) == wanted
assert curvature(-KL_engine) == -wanted
show("curvature of the KL, by θ_A twice", str(sympy.factor(wanted[0, 0])))

# %% [markdown]
# And far from it? Here are the ends of a long training with the exact expected gradients, on the three actions with
# $\beta = 3$. One of the ends can be computed by hand: k3 on own tokens maximises $\mathbb{E}_\pi[R] - \beta
# KL(q\|\pi)$, so $R + \beta\frac{q}{\pi}$ must be a constant $\lambda$, that is $\pi = \frac{\beta q}{\lambda - R}$.
# With $\lambda = 4$ this is $\frac{3/2}{4}, \frac{3/4}{3}, \frac{3/4}{2}$, or ⅜, ¼, ⅜.

# %%
line = toy.world(3, 1)
logits_q, STRENGTH_TOY = q.log()[None], 3.0
CASES = {
    "k2, own tokens": ("k2", False),
    "k3, own tokens": ("k3", False),
    "k2, engine's tokens": ("k2", True),
    "k3, engine's tokens": ("k3", True),
    "k1, engine's tokens": ("k1", True),
}


def train(estimator, on_engine, steps=120, rate=0.15):
    """The logits on the way up, with exact gradients."""
    logits = logits_q.clone()
    for _ in range(steps):
        yield logits
        pull = toy.kl_gradient(line, logits, logits_q, estimator, logits_q if on_engine else None)
        logits = logits + rate * (toy.policy_gradient(line, logits, R) - STRENGTH_TOY * pull)


paths = {name: torch.cat(list(train(*case))) for name, case in CASES.items()}
show("tilted, the optimum", tilt(q, R, STRENGTH_TOY), float(divergence(tilt(q, R, STRENGTH_TOY), q)))
show("end of", "A", "B", "C", "KL(π‖q)")
for name, path in paths.items():
    end = path[-1].softmax(-1)
    show(name, end, float(divergence(end, q)))

assert torch.allclose(paths["k2, own tokens"][-1].softmax(-1), tilt(q, R, STRENGTH_TOY), rtol=0, atol=1e-5)
by_hand = torch.tensor([0.375, 0.25, 0.375], dtype=torch.float64)
assert torch.allclose(paths["k3, own tokens"][-1].softmax(-1), by_hand, rtol=0, atol=1e-5)

# %% [markdown]
# **Look for** the line that leaves: k1 on the engine's tokens. It does not fail to hold the trainer, it pushes. The
# others level off, within a third of the divergence that the optimum has.

# %%
shown = {name: drawn(divergence(path[1:60].softmax(-1), q)) for name, path in paths.items()}
picture(curves(list(range(1, 60)), shown, x_name="step", y_name="KL(π‖q)", log="y"))
optimum = float(divergence(tilt(q, R, STRENGTH_TOY), q))
assert all(optimum - 1e-4 < shown[name][-1] < 4 / 3 * optimum for name in list(shown)[:4])

# %% [markdown]
# ## The pull on one token
#
# The gradient of a loss is a coefficient times $\nabla \log \pi$ (lesson 04). Of the penalty it is
#
# $$ c_{k1} = -\beta, \qquad c_{k2} = -\beta\,\delta, \qquad c_{k3} = -\beta\,(1 - e^{-\delta}) . $$
#
# **Look for** three things. k1 pulls every token down, wherever it is. k2 is a spring. k3 is a spring near 0, but its
# pull never exceeds $\beta$ on a token that the trainer likes too much ($\delta > 0$), and it explodes on one that the
# trainer has given up ($\delta < 0$): at $\delta = -2.5$ it is 11, where k2 has 2.5.

# %%
delta = torch.linspace(-2.5, 2.0, 46, dtype=torch.float64)
pulls = {}
for name in ("k1", "k2", "k3"):
    leaf = delta.clone().requires_grad_()
    pulls[name] = -torch.autograd.grad(kl_penalty(leaf, torch.zeros_like(leaf), name).sum(), leaf)[0]
assert (pulls["k1"] == -1).all()
assert torch.allclose(pulls["k2"], -delta)
assert torch.allclose(pulls["k3"], (-delta).exp() - 1)
picture(
    curves(drawn(delta), {name: drawn(pull) for name, pull in pulls.items()}, x_name="δ = log π/q", y_name="pull / β")
)

# %% [markdown]
# Compare it with the clip. Beyond its bound PPO's push is 0, and 0 is all it does: a token that was beyond it before
# the update, or was carried there by others, stays. A penalty brings it back. Let us take 32 answers of the engine and
# thirty steps on them, as in lesson 04, starting from a $p$ that is not $q$. The numbers are means over four batches.

# %%
rollout = toy.random_policy(where, 1)
old = rollout + toy.random_policy(where, 2, 0.4)
rewards = torch.randn(len(where.tokens), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
CLIPPED = preset("decoupled_seq_is")


def with_pull(strength, estimator="k2"):
    if strength == 0:
        return LossConfig()
    return LossConfig(use_rollout_kl_loss=True, rollout_kl_loss_coef=strength, rollout_kl_estimator_type=estimator)


def walk(rows, loss_config):
    """The logits of π after thirty steps on these answers."""
    advantages = rewards[rows] - rewards[rows].mean()
    batch = TokenBatch(
        response_mask=where.mask[rows],
        rollout_log_probs=toy.log_probs(where, rollout)[rows],
        old_log_probs=toy.log_probs(where, old)[rows],
        advantages=advantages[:, None].expand(len(rows), where.mask.shape[1]),
    )
    result, logits = correct(batch, CLIPPED), old
    for _ in range(30):
        leaf = logits.detach().requires_grad_()
        value, _ = policy_loss(toy.log_probs(where, leaf)[rows], batch, result, CLIPPED, loss_config)
        logits = logits - toy.gradient_of(value, leaf)
    return logits


batches = [torch.multinomial(answers_q, 32, replacement=True, generator=generator) for _ in range(4)]
ends = {}
show("decoupled PPO", "KL(π‖q)", "reward")
show("before the update", float(toy.kl(where, old, rollout)), float((toy.probabilities(where, old) * rewards).sum()))
for estimator, strength in (("k2", 0.0), ("k2", 0.1), ("k2", 1.0), ("k2", 3.0), ("k1", 1.0)):
    finals = [walk(rows, with_pull(strength, estimator)) for rows in batches]
    far = torch.stack([toy.kl(where, final, rollout) for final in finals]).mean()
    reward = torch.stack([(toy.probabilities(where, final) * rewards).sum() for final in finals]).mean()
    ends[estimator, strength] = float(far), float(reward)
    show(f"clip, β = {strength} with {estimator}" if strength else "clip alone", *ends[estimator, strength])

assert ends["k2", 0.0][0] > float(toy.kl(where, old, rollout)) > ends["k2", 1.0][0] > ends["k2", 3.0][0]
assert 12 < ends["k1", 1.0][0] / ends["k2", 0.0][0] < 13
assert ends["k1", 1.0][1] < float((toy.probabilities(where, old) * rewards).sum()) < ends["k2", 1.0][1]

# %% [markdown]
# The clip alone ends further from the engine than it began: it holds $\pi$ near $p$, and $p$ was off. With $\beta = 1$
# the trainer learns **and** comes closer. With k1 it ends below where it began, twelve times as far from the engine as
# with the clip alone: that loss falls when sampled tokens become rarer.
#
# ## Predict, then reveal
#
# Recorded runs now, at the last step, before the update. The **push** is the gradient of the policy loss
# (`decoupled_token_is`) of this batch, the **pull** that of the rollout KL loss with $\beta = 1$. A score sketch
# (lesson 10) gives the lengths of both. prime-rl ships $\beta = 0.002$, in our units. **Write down a guess:**
#
# 1. In `stale_4`, with $\beta = 0.002$: is the pull a thousandth, a hundredth or a tenth of the push?
# 2. Which pulls harder in `stale_4`, k2 or k3, and how many times?
# 3. And in `bf16`?
#
# Then run the cell. Both lengths include the noise of this one batch, for that is what the optimizer gets. Intervals
# are a bootstrap over answers.


# %%
def coefficient_sums(batch, sketch, losses):
    """Σ c s of each answer, for each loss: (L, B, K)."""
    config = preset("decoupled_token_is")
    result = correct(batch, config)
    coefficients = [score_coefficients(batch.old_log_probs, batch, result, config, loss) for loss in losses]
    pulled = [coefficients[0], *(c - coefficients[0] for c in coefficients[1:])]  # the push, then the pulls alone
    return per_sequence(torch.stack(pulled), batch.response_mask, sketch)


def pull_over_push(name):
    """The length of the pull of k2 and of k3 over that of the push, and of k3 over k2."""
    run = runs.find_run(name)
    step = last_sketch(run)
    batch = updated_batch(run, step)
    sums = coefficient_sums(batch, read_sketch(run, step), (LossConfig(), with_pull(1.0, "k2"), with_pull(1.0, "k3")))
    counts = resampled(len(batch.response_mask), 200, 0).double()
    push, k2, k3 = torch.einsum("rb,lbk->lrk", counts, sums.double()).norm(dim=-1)
    return [interval_of(x.float(), signed=False) for x in (k2 / push, k3 / push, k3 / k2)]


strength_of = {name: pull_over_push(name) for name in ("bf16", "kv_fp8_e5m2", "stale_4")}
for label, place in (("k2's pull over the push, β = 1", 0), ("k3's", 1), ("k3's over k2's", 2)):
    show(label, "value", "from", "to")
    for name, intervals in strength_of.items():
        show("  " + name, intervals[place].value, intervals[place].low, intervals[place].high, digits=2)
show("β = 0.002, as a share of the push")
for name, intervals in strength_of.items():
    show("  " + name, *(0.002 * x for x in (intervals[0].value, intervals[0].low, intervals[0].high)), digits=5)

assert min(strength_of[name][0].low for name in ("stale_4", "kv_fp8_e5m2")) > 1 > strength_of["bf16"][0].high
assert max(0.002 * intervals[0].high for intervals in strength_of.values()) < 0.05
assert strength_of["stale_4"][2].low > 1 > strength_of["bf16"][2].low
assert PRESETS["prime_rl_dppo"].loss.rollout_kl_loss_coef == 0.002

# %% [markdown]
# With $\beta = 1$ the pull would outweigh the push in `stale_4` and `kv_fp8_e5m2`, and be a small correction in `bf16`.
# With 0.002 it is one or two hundredths of the push in those two, and a ten-thousandth in `bf16`. So as a trust region
# it is far too weak; the section on prices said the same, $\beta \approx 5$ for 0.02 nats. It can still matter where
# nothing pushes: on tokens with $A = 0$, or beyond a clip, step after step.
#
# In `bf16` k2 and k3 are nearly one, as the curvature says. In `kv_fp8_e5m2`, and far more so in `stale_4`, k3
# pulls many times harder. Which tokens do that?

# %%
for name in strength_of:
    run = runs.find_run(name)
    recorded = updated_batch(run, last_sketch(run))
    d = correct(recorded, preset("disabled")).log_ratio[recorded.response_mask].double()
    squares = ((-d).exp() - 1).square().sort(descending=True).values
    show(name)
    show("  pull of k3, share of ten tokens", float(squares[:10].sum() / squares.sum()), digits=2)
    show("  smallest δ, k2's pull, k3's pull", float(d.min()), float(-d.min()), float((-d.min()).exp() - 1), digits=2)
    assert squares[:10].sum() > 0.9 * squares.sum()

# %% [markdown]
# Ten tokens hold more than nine tenths of k3's squared coefficients, in every run. In `bf16` that is harmless: even the
# token that the trainer has given up most has $\delta = -0.22$, where the two pulls are alike. With a wide gap such a
# token has a pull of 135, or of nearly 200,000.
#
# ## The same on recorded runs: value, gradient, target
#
# ### Check 3, with data
#
# At sixteen places of a recorded step we know the probabilities of **all** next tokens, in the trainer and in the
# engine, and their scores. So the expected gradient of each loss is exact there, and only the places are a sample.
# `kl_report` compares it with $\nabla KL(\pi\|q)$: by the table, k1 on the engine's tokens must point the opposite way.

# %%
reports = {}
for name in ("bf16", "kv_fp8_e5m2"):
    run = runs.find_run(name)
    places = read_sketch(run, last_sketch(run)).next_tokens
    assert places is not None
    for estimator in ("k1", "k2", "k3"):
        for whose, on_policy in (("own", True), ("engine's", False)):
            reports[name, estimator, whose] = kl_report(places, estimator, "rollout", on_policy=on_policy)

for name in ("bf16", "kv_fp8_e5m2"):
    show(f"{name}: cosine with ∇KL(π‖q)", "value", "from", "to", "length")
    for estimator in ("k1", "k2", "k3"):
        for whose in ("own", "engine's"):
            pull_report = reports[name, estimator, whose]
            numbers = (
                pull_report.cosine.value,
                pull_report.cosine.low,
                pull_report.cosine.high,
                pull_report.length.value,
            )
            show(f"  {estimator}, {whose} tokens", *numbers, digits=2)

for name in ("bf16", "kv_fp8_e5m2"):
    away = reports[name, "k1", "engine's"]
    assert away.cosine.high < -0.9
    assert away.reverse_cosine.value < -0.999  # −∇KL(q‖π), as derived
    assert reports[name, "k2", "own"].cosine.low > 0.999
    assert reports[name, "k2", "engine's"].cosine.value > 0.99

# %% [markdown]
# **Look for** the bars that point down.

# %%
picture(kl_directions({k: reports["kv_fp8_e5m2", k, "engine's"] for k in ("k1", "k2", "k3")}))

# %% [markdown]
# On the data, too: k1 points away from the engine, in both runs and over the whole interval. On own tokens
# it has no length, so its direction there means nothing. k2 on own tokens **is** the gradient. On the engine's tokens
# k2 and k3 have nearly its direction; the lengths differ, and where the gap is coarse they are too short. How short,
# sixteen places cannot say well: look at the lower ends of the cosines in `kv_fp8_e5m2`.
#
# ## Who has it
#
# | system | the term | on which tokens |
# |---|---|---|
# | prime-rl | `kl_tau` · δ², 0.001 by default: twice k2, so $\beta = 0.002$ | all, also those that its mask drops |
# | SkyRL | `use_rollout_kl_loss`, `rollout_kl_loss_coef`, `rollout_kl_estimator_type`; not merged | those of the loss |
# | here | the same three names, in `LossConfig` | the kept tokens |
#
# The report on Kimi K2.5 has a term of this form. verl, TRL, slime, OpenRLHF and NeMo RL have KL losses to the
# **reference**, and none to the engine.
#
# ## Exercise 1: tilt
#
# *3 minutes.* Return $\pi^*$ for the probabilities `q`, the rewards `reward`, both `(V,)`, and `beta`.
#
# <details><summary>Hint 1</summary>The table with the quarters: multiply, then divide by the sum.</details>
# <details><summary>Hint 2</summary>A softmax of log q plus something does both.</details>


# %%
def tilted_policy(q, reward, beta):
    raise NotImplementedError("exercise 1: write tilted_policy, then run this cell and the next.")


# %% tags=["check"]
check(tilted_policy, TILT)


# %% tags=["solution", "hide-input"]
def tilted_policy_solution(q, reward, beta):
    return (q.log() + reward / beta).softmax(-1)


check(tilted_policy_solution, TILT)

# %% [markdown]
# ## Exercise 2: the pull of k2
#
# *6 minutes.* The rollout KL loss is $\beta$ times the mean over the answers of the mean over their tokens of
# $\frac12\delta^2$. Return its coefficients, `(B, T)`: what stands before $\nabla \log \pi$ in $-\nabla L$. Padding may
# hold anything, and must come out as 0; an answer without tokens counts nowhere.
#
# <details><summary>Hint 1</summary>The derivative of ½δ² is δ; the minus comes from −∇L.</details>
# <details><summary>Hint 2</summary>Divide by the tokens of the answer and by the number of answers that have
# any.</details>


# %%
def pull(log_pi, log_q, mask, beta):
    raise NotImplementedError("exercise 2: write pull, then run this cell and the next.")


# %% tags=["check"]
check(pull, PULL)


# %% tags=["solution", "hide-input"]
def pull_solution(log_pi, log_q, mask, beta):
    delta = torch.where(mask, log_pi - log_q, 0)
    return -beta * delta / mask.sum(-1, keepdim=True).clamp(min=1) / mask.any(-1).sum()


check(pull_solution, PULL)

# %% [markdown]
# And it is what the library does, on the 999 tokens of `stale_4`:

# %%
run = runs.find_run("stale_4")
batch = updated_batch(run, last_sketch(run))
log_p, log_q = (batch.tensors()[key] for key in ("old_log_probs", "rollout_log_probs"))
config = preset("decoupled_token_is")
result = correct(batch, config)
both, push = (score_coefficients(log_p, batch, result, config, with_pull(strength)) for strength in (1.0, 0.0))
mine = PULL.expected(log_p, log_q, batch.response_mask, 1.0)
show("tokens", int(batch.response_mask.sum()))
show("largest difference below 1e-7", bool((both - push - mine).abs().max() < 1e-7))
assert (both - push - mine).abs().max() < 1e-7

# %% [markdown]
# ## Exercise 3: the price of a fence
#
# *8 minutes.* Given `q`, `reward` and a hard bound `kappa`, return the $\beta$ whose tilted policy has $KL(\pi^*\|q) =
# \kappa$. You may call your first answer.
#
# <details><summary>Hint 1</summary>The divergence falls as β grows, so halve an interval of log β again and
# again.</details>
# <details><summary>Hint 2</summary>From log β = −4 to 12, sixty halvings are plenty.</details>


# %%
def price(q, reward, kappa):
    raise NotImplementedError("exercise 3: write price, then run this cell and the next.")


# %% tags=["check"]
check(price, STRENGTH)


# %% tags=["solution", "hide-input"]
def price_solution(q, reward, kappa):
    low, high = -4.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        too_far = divergence(tilted_policy_solution(q, reward, math.exp(middle)), q) > kappa
        low, high = (middle, high) if too_far else (low, middle)
    return math.exp(high)


check(price_solution, STRENGTH)

# %% [markdown]
# With rewards of variance 1 on our three actions, the price of some fences, and the rule for small $\kappa$:

# %%
standard = R / spread**0.5
fences = [0.001, 0.02, 0.1, 0.3]
show("κ", fences, digits=3)
show("β", [STRENGTH.expected(q, standard, kappa) for kappa in fences], digits=2)
show("1/√(2κ)", [(2 * kappa) ** -0.5 for kappa in fences], digits=2)

# %% [markdown]
# ## Check yourself
#
# **1. Your run has a rollout KL loss with k1, on tokens of the engine. The logged value falls nicely below 0. What is
# happening?**
#
# <details><summary>The policies come closer: the loss falls.</summary>No. A KL below 0 cannot be a KL. The average of
# log π − log q over tokens of q is −KL(q‖π).</details>
# <details><summary>They drift apart: −KL(q‖π) is being minimised.</summary>Yes. The lower it falls, the larger the
# divergence. Use k2.</details>
# <details><summary>Only noise: the gradient of k1 is 0 on average.</summary>On tokens of π it is. On tokens of q it is
# −∇KL(q‖π), which is not 0.</details>
#
# **2. You halve $\beta$ and halve all advantages. Where is the optimum now?**
#
# <details><summary>Further from the engine, because β is smaller.</summary>No. Only R/β counts.</details>
# <details><summary>Where it was.</summary>Yes. The tilting e^(R/β) has not changed. (Whitened advantages would undo
# your second change, and then it has.)</details>
# <details><summary>Nearer, because the rewards are smaller.</summary>Half of the story: β is smaller as well, and only
# their quotient counts.</details>
#
# **3. The mismatch comes from rounding in the engine, as in `bf16`. What does a strong rollout KL loss do?**
#
# <details><summary>It removes the rounding.</summary>No. The engine rounds whatever the weights are; its errors cannot
# be trained away by moving towards them.</details>
# <details><summary>It pulls the trainer after the rounding errors of the batch, and slows learning.</summary>Yes. The
# pull is small there because δ is, but its target is noise. Against stale weights, whose gap is no noise, the brake has
# a purpose.</details>
# <details><summary>Nothing at all, whatever β is.</summary>With β = 1 the pull was already several hundredths of the
# push. With β = 100 it would rule.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [k2 against k3 on recorded places](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=latest&preset=prime_rl_dppo):
#   at the end of the page, choose "the engine's policy" as the target;
# - [the same on `bf16`](http://localhost:8501/gradient?run=bf16&step=latest&preset=prime_rl_dppo);
# - [what prime-rl's mask does on `stale_4`](http://localhost:8501/bench?run=stale_4&step=latest&preset=prime_rl_dppo),
#   the other half of its method.
#
# ## Pitfalls
#
# - **k1 as a loss on the engine's tokens** pushes the trainer away. As a **reward** it is right: it is subtracted from
#   the advantage and carries no gradient of its own (lesson 08).
# - **Half or whole.** δ² is twice k2. A coefficient copied from one system to another is off by 2.
# - **The mean.** This term is averaged per answer and then over answers, the policy loss often over all tokens. With
#   long and short answers the ratio of the two is not what the coefficients say.
# - **Tokens never written.** The pull acts on sampled tokens. An action that the engine never writes is held back only
#   through the others, from which it takes its probability.
# - **Masked tokens.** If the penalty runs only over kept tokens, those that need it most have none.
# - **Two KL losses.** The one to the reference and the one to the engine add up, and pull in different directions.
#
# ## References
#
# 1. John Schulman et al., [Proximal Policy Optimization Algorithms](https://arxiv.org/abs/1707.06347), 2017: section 4
#    is the penalty with a β that adapts to a target.
# 2. Liu et al., [Rethinking KL Regularization in RLHF](https://arxiv.org/abs/2510.01555), 2025: k2 as a loss has the
#    gradient of the KL on own tokens.
# 3. Kimi Team, [Kimi K2.5](https://arxiv.org/abs/2602.02276), 2026: the squared log-ratio to the engine, in use.
