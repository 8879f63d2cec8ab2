# %% [markdown]
# # 07 · Rejection: which tokens are left out, and what is trained on then
#
# **Claim.** Rejecting does not repair an average: it trains on another distribution, the engine's restricted to what
# is kept, and a step shrinks by the share that is kept unless the denominator says otherwise.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* You need the ratio (lesson 00), weights and their
# effective sample size (lesson 02), and the levels token, sequence, geometric mean (lesson 06).
#
# At the end you can
#
# - say what k1, k2 and k3 of one token measure, which side each of them punishes, and where they agree;
# - draw the region in which IcePop, KPop, DPPO and a bound on k3 keep a token;
# - derive what rejection trains on, and the bias that it has;
# - predict which share of long answers a bound on the geometric mean or on the product keeps;
# - say what the denominator does to the length of a step, and when the optimizer undoes it.

# %%
import math
import warnings
from dataclasses import astuple

import sympy
import torch
from exercises.lesson_07 import GEOMETRIC_RULE, LOSS, MASKED_LOSS, TRAINED_DISTRIBUTION, slope
from recorded import load
from show import picture, show

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.analysis.regions import TOKEN_METHODS, region
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.mismatch import acceptance
from rlcorr.figures.study import differences
from rlcorr.gradients import toy
from rlcorr.gradients.toy import small_world
from rlcorr.masked import masked_mean
from rlcorr.objective import lr_factor, score_coefficients
from rlcorr.ratios import k1, k2, k3, log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.study import course, find_study, outcomes, read_study
from rlcorr.records.study_comparisons import against_chance, against_nothing
from rlcorr.rules import RejectionRule
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Keep or drop
#
# A weight counts a token more or less. A **rejection rule** counts it fully or not at all. It has three parts:
#
# - a **divergence**, a number that says how far the two probabilities of one token are apart;
# - a **level**: the rule judges each token by its own number, or a whole answer by the sum, mean, largest or smallest
#   number of its tokens;
# - **bounds**. What lies inside is **kept**, $m = 1$; the rest is **rejected**, $m = 0$.
#
# A rejected token stays in the text and in the batch. It only has no gradient.
#
# ## Three divergences of one token
#
# With $d = \log p - \log q$ and $r = e^d$, Schulman's three are
#
# $$ k_1 = -d, \qquad k_2 = \tfrac12 d^2, \qquad k_3 = e^d - 1 - d . $$
#
# They were made to be averaged: over tokens drawn from $q$, each estimates the divergence
# $\mathrm{KL}(q\|p) = \mathbb{E}_q[\log q - \log p]$. A rule uses them in another way: it looks at **one** token. Then
# their shapes matter.

# %%
q = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.01], dtype=torch.float64)
p = torch.tensor([0.05, 0.45, 0.5, 0.55, 0.1], dtype=torch.float64)
d5 = log_ratio(p.log(), q.log(), torch.ones(5, dtype=torch.bool))

show("q, engine", q, digits=3)
show("p, trainer", p, digits=3)
show("r", ratio(d5), digits=3)
show("k1 = −d", k1(d5))
show("k2 = d²/2", k2(d5))
show("k3 = r − 1 − d", k3(d5))

assert torch.allclose(k3(d5), ratio(d5) - 1 - d5)
assert math.isclose(float(k2(d5)[0]), float(k2(d5)[4]))
assert 4.5 < float(k3(d5)[4] / k3(d5)[0]) < 5

# %% [markdown]
# The first token is ten times rarer in the trainer, the last ten times more frequent.
#
# - **k1** has a sign, so it takes two bounds. In `rlcorr` bounds on k1 are bounds on $r$ itself.
# - **k2** cannot tell the two apart: it is the same for $r$ and $1/r$.
# - **k3** calls the last one almost five times worse. It grows like $r$ above 1, but only like $\log 1/r$ below: its
#   bound punishes tokens that the **engine** hardly ever writes.
#
# The middle three hardly differ: near $r = 1$ all that is left of k2 and k3 is $\tfrac12 d^2$. **Look for** the place
# where the lines of k2 and k3 part. Both axes are logarithmic; what is below 0.001 is drawn there.

# %%
grid = torch.linspace(math.log(0.01), math.log(100), 97, dtype=torch.float64)
ratios = [float(x) for x in ratio(grid)]
lines = {"|k1|": k1(grid).abs(), "k2": k2(grid), "k3": k3(grid)}
picture(curves(ratios, {name: y.clamp(min=1e-3).tolist() for name, y in lines.items()}, x_name="ratio r = p/q",
               y_name="divergence of one token", log="xy", marks=(1,)))  # fmt: skip

# %% [markdown]
# A token on which the engine is sure of something that the trainer finds impossible, $d = -10$, has a k3 of 9. The
# mirror image has 22,015: one such token in a thousand makes the mean k3 of a whole answer 22. The next cell asks
# which $r$ a bound on k2 or k3 allows. It searches along $d$ with the library's own functions.


# %%
def allowed(divergence, bound):
    """The interval of ratios in which a divergence stays below its bound."""
    fine = torch.linspace(-6, 6, 240_001, dtype=torch.float64)
    inside = fine[divergence(fine) <= bound]
    return [float(inside.min().exp()), float(inside.max().exp())]


show("k3 at d = −10 and d = 10", k3(torch.tensor([-10.0, 10.0], dtype=torch.float64)), digits=1)
for bound in (0.01, 0.1, 1.0):
    show(f"k2 ≤ {bound} keeps r from, to", allowed(k2, bound), digits=2)
    show(f"k3 ≤ {bound} keeps r from, to", allowed(k3, bound), digits=2)

# %% [markdown]
# ### Check 1, with symbols: the same to second order
#
# Let the trainer's logits be the engine's plus $\varepsilon h$, on a softmax of three actions. The expectations of k1
# and k3 are the KL for every $\varepsilon$. That of k2 agrees with them up to $\varepsilon^2$, and lacks the term with
# $\varepsilon^3$. (Only differences of logits matter, so the third action's $h$ is 0.)

# %%
a, b, h_a, h_b, eps = sympy.symbols("q_A q_B h_A h_B epsilon", positive=True)
Q = (a, b, 1 - a - b)
D = [eps * h - sympy.log(sum(q_i * sympy.exp(eps * g) for q_i, g in zip(Q, (h_a, h_b, 0), strict=True)))
     for h in (h_a, h_b, 0)]  # fmt: skip


def expected(of_d):
    return sympy.Add(*(q_i * of_d(d_i) for q_i, d_i in zip(Q, D, strict=True)))


def coefficient(expression, order):
    return sympy.simplify(sympy.diff(expression, eps, order).subs(eps, 0) / sympy.factorial(order))


e1, e2, e3 = expected(lambda d: -d), expected(lambda d: d**2 / 2), expected(lambda d: sympy.exp(d) - 1 - d)
mean_h = a * h_a + b * h_b
variance_of_h = a * h_a**2 + b * h_b**2 - mean_h**2
third_moment = a * (h_a - mean_h) ** 3 + b * (h_b - mean_h) ** 3 + (1 - a - b) * (-mean_h) ** 3

assert sympy.simplify(e1 - e3) == 0  # E_q[k3] − E_q[k1] = E_q[r] − 1 = 0, exactly
for e in (e1, e2, e3):
    assert coefficient(e, 1) == 0
    assert sympy.simplify(coefficient(e, 2) - variance_of_h / 2) == 0
assert sympy.simplify(coefficient(e1, 3) - third_moment / 6) == 0
assert coefficient(e2, 3) == 0

show("order ε²: E[k1] = E[k2] = E[k3]", "Var_q(h)/2")
show("order ε³: E[k1] = E[k3]", "E_q[(h − mean h)³]/6")
show("order ε³: E[k2]", "0")

# %% [markdown]
# ### The same on recorded runs
#
# If the symbols are right, the three means agree on a run whose mismatch is small, and part on one with a heavy tail.
# The error is that of the mean of $k_2 - k_3$, token by token: most of the noise cancels in the difference.


# %%
def mean_and_error(x):
    return float(x.mean()), float(x.double().std() / len(x) ** 0.5)


show("mean over tokens, in 1/1000", "k1", "± error", "k2", "k3", "k2 − k3", "± error")
for name in ("bf16", "stale_head", "kv_fp8_e5m2", "stale_4"):
    batch = load(name)
    d = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
    gap = mean_and_error(1000 * (k2(d) - k3(d)))
    show(name, *mean_and_error(1000 * k1(d)), *[float(1000 * k(d).mean()) for k in (k2, k3)], *gap, digits=3)
    if name == "bf16":
        assert float(k2(d).mean() / k3(d).mean()) < 1.1
    else:
        assert gap[0] > 2 * gap[1]  # beyond chance: the third order is there

# %% [markdown]
# For `bf16` k2 and k3 differ by less than a tenth. For the others k2 is larger, by a fifth in `stale_head` and nearly
# three times in `stale_4`: their tails lie below 1, where k2 grows faster. k1 has the same expectation as k3, but the
# noise of $d$ itself: for `bf16` it comes out ten times as large, and that is only one of its errors away.
#
# ## Where a rule keeps a token
#
# Two bounds that sound alike can be far apart in use, so draw them. Across is $q$, up is $p$; agreement is the
# diagonal. A rule keeps a region around it. The names, with the numbers of their presets:
#
# | rule | keeps a token while | level |
# |---|---|---|
# | **MIS**, masked importance sampling | $r$ in a band, and counts it by $r$ | token or sequence |
# | **IcePop** | $0.5 \le r \le 5$, and counts it by $r$ | token |
# | **KPop** | $\max(\mathrm{KL}(P\Vert Q), \mathrm{KL}(Q\Vert P)) \le 2$ of the coins "this token or another" | token |
# | **DPPO**, total variation | $\lvert p - q\rvert \le 0.2$, where the update pushes further away | token |
# | DPPO, signed KL | $\mathrm{KL}(Q\Vert P)$ of the coins at most 0.05 | token |
# | **Geo-RS** | geometric mean of the answer's ratios in $[0.999, 1.001]$ | sequence |
# | k3 rule | mean k3 of the answer at most 0.01 | sequence |
# | **veto** | every ratio of the answer in $[10^{-4}, 100]$ | sequence |
# | **OPSM**, off-policy sequence masking | mean $d \ge -0.5$, or the advantage is not negative | sequence |
#
# The **coins** of KPop are two distributions with two outcomes, "this token" or "another": $P = (p, 1 - p)$ and
# $Q = (q, 1 - q)$. **Look for** three shapes: IcePop and k3 are wedges with their tips in the corner, a wide one and a
# narrow one, because they look at $r$ alone; DPPO is a strip of constant width; KPop is a fat leaf.

# %%
batch = load("kv_fp8_e5m2")
shown = {name: TOKEN_METHODS[name] for name in ("IcePop", "KPop", "DPPO", "k3")}
picture(acceptance(batch, shown))

# %% [markdown]
# The numbers behind the picture, from the same function (`regions.region` asks the rules themselves). "—" means that
# there is no bound on that side: nothing down to $1.5\cdot10^{-8}$, or up to 1, is out.

# %%
places = torch.tensor([0.001, 0.1, 0.5, 0.9], dtype=torch.float64)


def bound_text(x):
    return "—" if math.isnan(x) else f"{x:.4f}"


show("q", *[f"{x:g}" for x in places.tolist()])
for name, config in shown.items():
    accepted = region(config, places.log())
    show(f"{name}: smallest p", *[bound_text(x) for x in accepted.lower.exp().tolist()])
    show(f"{name}: largest p", *[bound_text(x) for x in accepted.upper.exp().tolist()])

icepop, dppo = (region(shown[name], places.log()) for name in ("IcePop", "DPPO"))
assert torch.allclose(icepop.lower.exp(), 0.5 * places, atol=1e-7)
assert torch.allclose(dppo.upper.exp()[:3], places[:3] + 0.2, atol=1e-6)
of_k3 = region(shown["k3"], places.log())
assert torch.allclose((of_k3.upper - places.log())[:3].exp(), torch.tensor(allowed(k3, 0.01)[1]).double(), atol=1e-4)

# %% [markdown]
# Read the first column, a token that the engine writes once in a thousand. IcePop allows the trainer 0.0005 to 0.005.
# DPPO allows anything up to 0.201, a ratio of 201. Bounds on ratios are strict where probabilities are small; bounds on
# probabilities are strict where they are large. Below $q = 0.2$ DPPO has no lower bound at all, and from $q = 0.2$ on
# IcePop has no upper one, since $5q \ge 1$.
#
# Which tokens does each rule hit, then? Count them on the run, by side.


# %%
def trained_on(batch, config):
    """(B, T): kept by every rule, and with a weight above 0."""
    result = correct(batch, config)
    return result.keep_mask & (result.weights > 0)


mask, d = batch.response_mask, correct(batch, CorrectionConfig()).log_ratio
show("kv_fp8_e5m2, last step", "r < 1", "r > 1", "median q")
for name, config in shown.items():
    lost = mask & ~trained_on(batch, config)
    show(f"{name} rejects", int((lost & (d < 0)).sum()), int((lost & (d > 0)).sum()),
         float(batch.rollout_log_probs[lost].exp().median()), digits=2)  # fmt: skip

veto, vetoed, judged = preset("skyrl_outlier"), 0, 0
for run in ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "stale_head", "moe_bf16"):
    for n in range(len(runs.list_steps(runs.find_run(run)))):
        whole = load(run, n)
        judged += len(whole.response_mask)
        vetoed += int((~trained_on(whole, veto).any(-1)).sum())
show("veto: answers rejected, six runs", vetoed, "of", judged)

lost = mask & ~trained_on(batch, shown["IcePop"])
assert int((lost & (d > 0)).sum()) == 0 < int((lost & (d < 0)).sum())

# %% [markdown]
# All that IcePop rejects here has $r < 0.5$: tokens that the engine wrote and the trainer would rather not have. Its
# upper bound of 5 is never reached. That is no accident. Tokens are drawn from $q$, and those with $r > 5$ have, all
# together, less than a fifth of the probability in the engine that they have in the trainer, so at most 0.2. Those with
# $r < 0.5$ have no such limit. Bounds that look symmetric on paper are not symmetric in a sample.
#
# The veto with its documented bounds hits four answers in 4,096, on six mismatched runs. It is meant for broken tokens,
# and says nothing about ordinary mismatch.
#
# ## What is trained on
#
# Three actions, as in lesson 00. The engine writes A, B, C with $q = (½, ¼, ¼)$; the trainer has $p = (¼, ¼, ½)$; they
# pay 1, 0 and 4. The ratios are ½, 1, 2. A rule with an upper bound of 1.5 rejects C.
#
# Write $Z = \mathbb{E}_q[m]$ for the **kept share**, here ¾. Then for any $f$
#
# $$ \mathbb{E}_q[m f] = \sum_a q(a)\,m(a)\,f(a) = Z \sum_a \frac{q(a)\,m(a)}{Z}\,f(a) = Z\;\mathbb{E}_{q_m}[f],
# \qquad q_m = \frac{q\,m}{Z} . $$
#
# $q_m$ is a probability distribution: the engine's, restricted to what is kept. So **rejection trains on $q_m$**. It
# does not make $q_m$ equal to $p$. With weights on top (MIS) the sum is
#
# $$ \mathbb{E}_q[m\,r f] = \sum_a p(a)\,m(a)\,f(a) = \mathbb{E}_p[f] - \sum_{a\;\text{rejected}} p(a)\,f(a), $$
#
# so the bias is what the trainer would have earned on the rejected actions, with a minus sign. It depends on $f$: it is
# small if the rejected ones pay little, and whole if they are what pays.

# %%
q3 = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p3 = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
pay = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
one_per_action = TokenBatch.from_log_probs(
    p3.log()[:, None], q3.log()[:, None], torch.ones(3, 1)
)  # one answer per action
cut = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.5),))
m = correct(one_per_action, cut).keep_mask[:, 0]
r3 = ratio(correct(one_per_action, cut).log_ratio[:, 0])
Z = float((q3 * m).sum())

show("action", "A", "B", "C")
show("kept", m)
show("q_m, what is trained on", q3 * m / Z)
show("p, what was wanted", p3)
show("kept share Z", Z)
show("trainer's average, E_p[f]", float((p3 * pay).sum()))
show("engine's average, no correction", float((q3 * pay).sum()))
show("every token counts r", float((q3 * r3 * pay).sum()))
show("rejection, kept denominator", float((q3 * m * pay).sum() / Z))
show("rejection, fixed denominator", float((q3 * m * pay).sum()))
show("rejection and weights (MIS), fixed", float((q3 * m * r3 * pay).sum()))

assert torch.isclose((q3 * m * r3 * pay).sum() - (p3 * pay).sum(), -(p3 * pay)[~m].sum())

# %% [markdown]
# The rule threw away C, the action that the trainer likes best and that pays most. 2.25 became 0.25; doing nothing, at
# 1.5, is nearer. Nothing about C is wrong: it is rare in the engine, and informative.
#
# ### Check 1, with symbols: the bias of every rule
#
# For any subset of three actions, any $p$, $q$, $f$:

# %%
P, QQ, F = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in "pqf")
subsets = [tuple(bool(number >> place & 1) for place in range(3)) for number in range(1, 8)]
for stays in subsets:
    kept_share = sympy.Add(*(x for x, here in zip(QQ, stays, strict=True) if here))
    plain = sympy.Add(*(x * f for x, f, here in zip(QQ, F, stays, strict=True) if here))
    restricted = sympy.Add(*(x / kept_share * f for x, f, here in zip(QQ, F, stays, strict=True) if here))
    masked = sympy.Add(*(x * (y / x) * f for x, y, f, here in zip(QQ, P, F, stays, strict=True) if here))
    wanted = sympy.Add(*(y * f for y, f in zip(P, F, strict=True)))
    lost_average = sympy.Add(*(y * f for y, f, here in zip(P, F, stays, strict=True) if not here))
    assert sympy.simplify(plain - kept_share * restricted) == 0
    assert sympy.simplify(masked - wanted + lost_average) == 0

show("rules checked", len(subsets))

# %% [markdown]
# ### Check 2, with numbers: the gradient of whole answers
#
# `small_world` holds all 364 answers of at most five tokens over four, each with a random advantage, and two policies
# whose logits differ by noise. `gradient_truth` sums over all of them, so there is no chance in it. Reject by the
# geometric mean at ±5 %, and compare with $Z\,\nabla$ of the restricted distribution, spelled out with autograd.

# %%
little = small_world(0.2)
where, policies, advantages = little.where, little.policies, little.advantages
by_geometric_mean = RejectionRule.named("seq_mean_k1", lower=1 / 1.05, upper=1.05)
sums = LossConfig(loss_agg_mode="token-sum")

q_answers = toy.probabilities(where, policies.rollout)
answers = TokenBatch.from_log_probs(
    toy.log_probs(where, policies.old), toy.log_probs(where, policies.rollout), where.mask
)
stays = correct(answers, CorrectionConfig(rollout_rs=(by_geometric_mean,))).keep_mask.any(-1)
Z = float(q_answers[stays].sum())


def score_sum(weights):
    """Σ over answers of weight · A · ∇ log π_θ."""
    theta = policies.theta.detach().requires_grad_()
    return toy.gradient_of((weights * advantages * toy.log_probs(where, theta).sum(-1)).sum(), theta)


def truth(config, loss=None):
    return toy.gradient_truth(where, policies, advantages, config, loss)


rejecting = CorrectionConfig(rollout_rs=(by_geometric_mean,))
of_restricted = score_sum(q_answers * stays / Z)
assert torch.allclose(truth(rejecting, sums).expectation, Z * of_restricted, rtol=0, atol=1e-14)

p_answers = toy.probabilities(where, policies.old)
masked_weights = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf, rollout_rs=(by_geometric_mean,))
biased = truth(masked_weights, sums)
assert torch.allclose(biased.expectation - biased.reference, -score_sum(p_answers * ~stays), rtol=0, atol=1e-14)

show("answers kept", int(stays.sum()), "of", len(stays))
show("their probability Z", Z)
show("gradient = Z · that of q_m", "yes")
show("bias of MIS = − the rejected part of p", "yes")

# %% [markdown]
# Now move the bound. **Cosine** is the angle to the gradient that is wanted, **scale** its length along it: (1, 1) is
# perfect, and a step of length 0 has an error of 1.

# %%
rows = []
for t in (1.02, 1.05, 1.1, 1.2, 1e6):
    rule = RejectionRule.named("seq_mean_k1", lower=1 / t, upper=t)
    stays_at = correct(answers, CorrectionConfig(rollout_rs=(rule,))).keep_mask.any(-1)
    fixed, kept = (
        truth(CorrectionConfig(rollout_rs=(rule,), denominator=denominator)) for denominator in ("fixed", "kept")
    )
    rows.append((f"{100 * (t - 1):.0f} %" if t < 2 else "none", float(q_answers[stays_at].sum()), fixed.cosine,
                 fixed.scale, fixed.relative_bias, kept.scale, kept.relative_bias))  # fmt: skip
    assert math.isclose(fixed.cosine, kept.cosine, abs_tol=1e-12)

show("bound on the geometric mean, ±", [row[0] for row in rows])
names = ("kept share Z", "cosine, both denominators", "scale, fixed", "error, fixed", "scale, kept", "error, kept")
for place, name in enumerate(names, 1):
    show(name, [row[place] for row in rows], digits=3)

# %% [markdown]
# Three things to see.
#
# - The denominator never changes the direction, only the length: the cosines are the same.
# - Tight bounds do not make the gradient on-policy. They turn it away: at ±5 % it is at a right angle to the wanted
#   one. The kept answers are an odd lot, not a fair sample.
# - With the fixed denominator an ever tighter rule ends at an error of 1, a step of length 0. With the kept one the
#   same wrong direction is taken at full length, and the error goes to 2 and beyond.
#
# In this world the answers have random advantages. Is it like that on a run?
#
# ### Check 3, with data: who is left?
#
# If rejection were a fair sample of the engine's answers, the kept ones would have the same average reward as the
# rejected ones, up to chance. The error below is that of the difference of two averages.

# %%
RULES = {
    "Geo-RS, ±0.1 %": preset("decoupled_geo_rs"),
    "Geo-RS, ±1 %": preset("skyrl_geo_mask"),
    "mean k3 ≤ 0.01": preset("decoupled_k3_rs"),
    "product in [0.5, 2]": preset("skyrl_product_mask"),
}


def kept_and_rejected(batch, config):
    """Share of the answers kept, mean reward of both groups, its difference and error, mean log q per token of both."""
    rows = trained_on(batch, config).any(-1)
    rewards = batch.tensors()["rewards"].double()
    sure = masked_mean(batch.rollout_log_probs, batch.response_mask, -1)
    (first, first_error), (second, second_error) = mean_and_error(rewards[rows]), mean_and_error(rewards[~rows])
    share = float(rows.double().mean())
    return share, first, second, first - second, math.hypot(first_error, second_error), sure[rows], sure[~rows]


for name in ("kv_fp8_e5m2", "stale_4"):
    show(name, "share", "kept", "rejected", "lead", "± error")
    for label, config in RULES.items():
        *numbers, sure_kept, sure_rejected = kept_and_rejected(load(name), config)
        show(f"  {label}: reward", *numbers, digits=3)
        if label == "Geo-RS, ±1 %":
            assert numbers[3] > 4 * numbers[4]
            show("    log q per token", "", float(sure_kept.mean()), float(sure_rejected.mean()), digits=3)

# %% [markdown]
# The kept answers earn far more than the rejected ones, at every rule, and for Geo-RS at ±1 % by many standard errors.
# The two lines "log q per token" say why: the kept ones are those that the engine was surer of. A token with
# probability near 1 in both policies has hardly any mismatch, whatever the engine rounds. So a rule on the mismatch of
# an answer keeps what the model **already knows**, and drops the answers in which it hesitated. Those are the ones to
# learn from.
#
# ## The length of a step
#
# The loss of a batch is a sum over the kept tokens, divided by a number. **Fixed**: by all $N$ response tokens.
# **Kept**: by the $K$ kept ones. The sums are the same, so
#
# $$ g_{\text{fixed}} = \frac{1}{N}\sum_{\text{kept}} A\,s = \frac{K}{N}\cdot\frac{1}{K}\sum_{\text{kept}} A\,s
# = \frac{K}{N}\; g_{\text{kept}} . $$
#
# Masking multiplies the step by the kept share, as if the learning rate had been changed, unless the denominator counts
# the kept tokens. `lr_factor` is this number. Below, both gradients of the recorded step, from the loss that the
# trainer differentiates (`score_coefficients`: what each token's score $s$ is multiplied by).

# %%
batch = load("stale_4")
theta = batch.tensors()["old_log_probs"]  # before the first update
batch = batch.replace(advantages=batch.tensors()["advantages"].double())


def step(config, loss):
    result = correct(batch, config)
    return score_coefficients(theta, batch, result, config, loss), result.keep_mask


show("aggregation, stale_4, Geo-RS ±1 %", "fixed", "kept", "alike?")
for mode in ("token-mean", "seq-mean-token-mean"):
    loss = LossConfig(loss_agg_mode=mode)
    configs = [CorrectionConfig(rollout_rs=preset("skyrl_geo_mask").rollout_rs, denominator=denominator)
               for denominator in ("fixed", "kept")]  # fmt: skip
    (of_fixed, keep), (of_kept, _) = (step(config, loss) for config in configs)
    factors = [float(lr_factor(keep, batch.response_mask, config, loss)) for config in configs]
    assert torch.allclose(of_fixed, factors[0] * of_kept, rtol=0, atol=1e-9)
    show(f"lr_factor, {mode}", *factors, "yes")

share = float(keep.sum() / batch.response_mask.sum())
show("share of tokens, of answers kept", share, float(keep.any(-1).double().mean()))

# %% [markdown]
# Which of them is right? Neither corrects the bias. The fixed one takes short steps when much is rejected: careful, and
# the usual choice of public systems. The kept one takes steps of full length from few answers. verl has had both, by
# code path; the same rule with the same number then trains at another speed.
#
# There is a second pair of hands at the wheel: the optimizer. Adam divides each gradient by its own running size, so a
# **constant** factor cancels. Plain gradient descent keeps it.


# %%
def moved(optimizer, factor, steps=20):
    """How far a weight goes under gradients of 1, all multiplied by a factor."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    by = optimizer([x], lr=0.01)
    for _ in range(steps):
        x.grad = torch.full_like(x, -factor)
        by.step()
    return float(x.detach()[0])


show("moved by 20 steps", "SGD", "AdamW")
for factor in (1.0, 0.52, 0.04):
    show(f"factor {factor}", *[moved(by, factor) for by in (torch.optim.SGD, torch.optim.AdamW)])

assert math.isclose(moved(torch.optim.SGD, 0.52), 0.52 * moved(torch.optim.SGD, 1.0), rel_tol=1e-9)
assert math.isclose(moved(torch.optim.AdamW, 0.04), moved(torch.optim.AdamW, 1.0), rel_tol=1e-3)

# %% [markdown]
# So with Adam a fixed denominator does not slow a training down if the kept share stays the same: 4 % of the tokens
# then decide a step of the usual length. (The trainer here uses AdamW, and clips gradients longer than 1, which a short
# one escapes.) What Adam cannot undo are changes of the share from step to step, and the noise of few tokens.
#
# ## Long answers
#
# Two facts about the sum of $d$ over $T$ tokens, from lesson 06. Its mean is $-\kappa T$, where $\kappa > 0$ is the KL
# per token; its spread is $\sigma\sqrt{T}$. Take the sum for normal. A rule on the **geometric mean** keeps an answer
# while $|\sum d| \le bT$, with $b = \log 1.001$; a rule on the **product** while $|\sum d| \le L$, with $L = \log 2$:
#
# $$ \text{kept}(T) = \Phi\!\Big(\frac{c + \kappa T}{\sigma\sqrt{T}}\Big) -
#    \Phi\!\Big(\frac{-c + \kappa T}{\sigma\sqrt{T}}\Big), \qquad c = bT \ \text{or}\ L . $$
#
# What happens as $T$ grows? For the product $c$ stays and everything else grows: nothing is kept in the end. For the
# geometric mean it depends on which is larger, $\kappa$ or $b$.

# %%
T, kappa, sigma, c0, more = sympy.symbols("T kappa sigma c more", positive=True)


def kept_in_the_end(c, kl):
    """Φ(first) − Φ(second), where the limits of both for T → ∞ are infinite."""
    ends = [sympy.limit(sympy.expand((sign * c + kl * T) / (sigma * sympy.sqrt(T))), T, sympy.oo) for sign in (1, -1)]
    assert all(end in (sympy.oo, -sympy.oo) for end in ends)
    return sum(sign * int(end == sympy.oo) for sign, end in zip((1, -1), ends, strict=True))


assert kept_in_the_end(c0, kappa) == 0
assert kept_in_the_end(c0 * T, c0 + more) == 0
assert kept_in_the_end((kappa + more) * T, kappa) == 1

show("product, any mismatch: kept", 0)
show("geometric mean, κ above b: kept", 0)
show("geometric mean, κ below b: kept", 1)

# %% [markdown]
# So a bound of ±0.1 % on the geometric mean asks of a long answer one question: is the KL per token below 0.001?
#
# Three runs have long answers: a small model sorts twelve digits and writes out every exchange of two neighbours, in
# 200 to 500 tokens (`long_bf16`, `long_kv_fp8_e5m2`, `long_stale_4`; 256 answers of each are recorded). The first $T$
# tokens of an answer are an answer too, and one that ends before $T$ stays as it is. Ask the library's rules what they
# keep, and compare with the law. Its two numbers, $\kappa$ and $\sigma$, come from the same answers, so this tests
# whether the sum is normal, not how well $\kappa$ is known. For that, its standard error is printed, and what the law
# says of the product if $\kappa$ is two errors smaller (at least 0) or larger.


# %%
def first_tokens(batch, count):
    mask = batch.response_mask & (batch.response_mask.cumsum(-1) <= count)
    return TokenBatch.from_log_probs(batch.tensors()["old_log_probs"], batch.rollout_log_probs, mask)


def law(kappa, sigma, tokens, c):
    """On average over answers of so many tokens."""
    z = [(sign * c + kappa * tokens) / (sigma * tokens.sqrt()) for sign in (1, -1)]
    high, low = (torch.special.ndtr(x) for x in z)
    return float((high - low).mean())


LIMITS = {"Geo-RS, ±0.1 %": lambda n: n * math.log(1.001), "Geo-RS, ±1 %": lambda n: n * math.log(1.01),
          "product in [0.5, 2]": lambda n: math.log(2)}  # fmt: skip
cuts = (25, 50, 100, 200, 494)
observed = {}
for name in ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4"):
    steps = [load(name, 0), load(name, 1)]
    sums_of_d = torch.cat(
        [over_sequence(correct(b, CorrectionConfig()).log_ratio, b.response_mask, "sum") for b in steps]
    )
    tokens = torch.cat([b.response_mask.sum(-1) for b in steps]).double()
    kl_per_token = -float(sums_of_d.sum() / tokens.sum())
    spread = float(((sums_of_d + kl_per_token * tokens).square().sum() / tokens.sum()).sqrt())
    error = spread / float(tokens.sum()) ** 0.5
    show(f"{name}: κ, its error, σ", kl_per_token, error, spread)
    counts = [tokens.clamp(max=cut) for cut in cuts]
    show("  tokens of an answer", [round(float(n.mean())) for n in counts])
    for label, limit in LIMITS.items():
        keeps_all = ([correct(first_tokens(b, cut), RULES[label]).keep_mask.any(-1) for b in steps] for cut in cuts)
        observed[name, label] = [float(torch.cat(flags).double().mean()) for flags in keeps_all]
        show(f"  {label}: kept", observed[name, label], digits=2)
        show("    the law says", [law(kl_per_token, spread, n, limit(n)) for n in counts], digits=2)
    for change, kl in (("smaller", max(kl_per_token - 2 * error, 0.0)), ("larger", kl_per_token + 2 * error)):
        show(f"    κ two errors {change}", [law(kl, spread, n, math.log(2)) for n in counts], digits=2)

assert observed["long_bf16", "Geo-RS, ±0.1 %"][-1] > 0.98
for name in ("long_kv_fp8_e5m2", "long_stale_4"):
    assert max(observed[name, "Geo-RS, ±0.1 %"][2:]) < 0.21
    shares = observed[name, "product in [0.5, 2]"]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.35

# %% [markdown]
# Read the columns. In `long_bf16` κ cannot be told from 0, and both rules keep nearly everything; Geo-RS keeps more of
# the long answers than of the short ones. With the coarse cache and with old weights κ is 0.009 and 0.005, far above
# 0.001, and from 100 tokens on Geo-RS keeps 12 to 20 %. So one preset can be far too tight for one team and without any
# effect for another. The share of the product falls with every doubling, to a quarter and a third.
#
# The law has the direction, not the numbers: at every length the product keeps two to four times as many as it says. It
# takes the sum for normal, and that it is not. The next lines say why: half of the tokens agree to 0.01 %, one in a
# hundred is off by a factor of 1.5, and one long answer in five has no token that is off by a factor of two. Those stay
# near 1, and the others are far outside. Where so few tokens decide, 400 are not yet many.

# %%
steps = [load("long_kv_fp8_e5m2", 0), load("long_kv_fp8_e5m2", 1)]
d_long = [correct(b, CorrectionConfig()).log_ratio for b in steps]
sizes = torch.cat([d[b.response_mask].abs() for d, b in zip(d_long, steps, strict=True)])
quantiles = sizes.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64))
show("|d|: half, nine in ten, 99 in 100 below", quantiles)
even = [(d.abs().amax(-1) <= math.log(2))[b.response_mask.sum(-1) >= 350] for d, b in zip(d_long, steps, strict=True)]
show("answers of 350 tokens or more without a token off by two", float(torch.cat(even).double().mean()), digits=2)
assert quantiles[0] < 1e-4
assert math.log(1.45) < quantiles[2] < math.log(1.55)
assert 0.15 < torch.cat(even).double().mean() < 0.25

# %% [markdown]
# Measure the KL of your engine on enough tokens first, and put the bound well outside it.
#
# ## The study: rejecting answers while weights grow old
#
# In the study `stale_8` every batch is sampled by weights that are eight steps old, at a learning rate that breaks the
# training if nothing is done (`runs/README.md`). Ten corrections, three seeds each.

# %%
rows, _ = read_study("stale_8")
table = {outcome.preset: outcome for outcome in outcomes(rows)}
show("stale_8: means of three seeds", "reward", "lowest", "highest", "kept")
for name, outcome in table.items():
    show(name, outcome.reward.mean, outcome.reward.lowest, outcome.reward.highest, outcome.kept_fraction.mean, digits=2)

whole = ("decoupled_seq_is_rs", "decoupled_k3_rs", "skyrl_geo_mask")
assert all(table[name].reward.mean < table["disabled"].reward.mean for name in whole)
assert all(table[name].kept_fraction.mean < 0.22 for name in whole)

# %% [markdown]
# Where whole answers are rejected by their mismatch, rejection is **no better than nothing** here. `decoupled_seq_is`
# and `decoupled_seq_is_rs` have the same weights; the second also rejects, and that is the difference between 0.60 and
# 0.06. `trl_opsm` rejects only failures, keeps 71 %, and ends at 0.51. The intervals of the three rejectors and of no
# correction overlap, so three seeds do not show that they are worse than nothing. That they are worse than weights is
# beyond the seeds.
#
# It is not a law of nature. Under the 8-bit cache of the study `kv_fp8_e5m2` the k3 rule keeps 40 % and ends where no
# correction ends, at 0.39; the geometric mean keeps 19 % and ends at 0.21. Rejection is meant for a few broken tokens
# in a healthy batch. Here the batch is what is broken.

# %%
steps, kept_course = course(rows, "skyrl_geo_mask", "kept_fraction")
reward_steps, reward_course = course(rows, "skyrl_geo_mask", "reward")
show("skyrl_geo_mask: step", [steps[n] for n in (0, 1, 2, 9, 19, 59)])
show("kept share", [kept_course[n].mean for n in (0, 1, 2, 9, 19, 59)], digits=3)
show("reward", [reward_course[n].mean for n in (0, 1, 2, 9, 19, 59)], digits=3)

# %% [markdown]
# One stale step is enough: the share falls from 93 % to 6 %. A few dozen tokens, the surest ones, then decide every
# step. The reward follows much later: it is measured on answers of weights that are eight steps old.

# %% [markdown]
# ### The rule, its threshold, or merely how much is left out?
#
# Those rules differ in three things at once: what they measure, where their bound lies, and how many tokens they
# leave. The study `decide_stale` separates them, under the same eight steps of age. A **budget** sets the bound of
# every batch: the rule keeps 50, 80 or 95 % of the tokens. Beside it, as many are left out **by chance**: tokens, whole
# answers, or bad answers. Six seeds each, on the same prompts. The intervals are of differences on the same seed and
# hold **together**: of all 23, or 12, none is wrong in 95 % of such studies. **Guess first:** which rules are surely
# better than no correction, and which surely better than chance?

# %%
decided, _ = read_study("decide_stale")
nothing, chance = against_nothing(decided), against_chance(decided, find_study("decide_stale").by_chance)
picture(differences(nothing))

# %%
picture(differences(chance))

# %%
show("difference to no correction", "mean", "from", "to")
for pair in nothing:
    if pair.difference.tells:
        show(pair.arm, *astuple(pair.difference), digits=2)
show("to as much by chance", "mean", "from", "to")
for pair in chance:
    if pair.difference.tells:
        show(pair.arm, *astuple(pair.difference), digits=2)
show("cannot be told", sum(not p.difference.tells for p in nothing), sum(not p.difference.tells for p in chance))

better = {p.arm for p in nothing if p.difference.tells}
assert better == {"product_cap", "token_cap", "geometric_negative_50"}
assert all(p.difference.low > 0 for p in nothing if p.arm in better)
by_choice = {p.arm for p in chance if p.difference.tells}
assert by_choice == {"geometric_50", "geometric_negative_50", "geometric_negative_80"}

# %% [markdown]
# A rule that looks at answers of both signs of the advantage cannot be told from no correction at any budget: not the
# band on tokens, not the geometric mean, not the product. One of the nine is surely better than chance, the geometric
# mean at 50 %: which half it leaves out matters, but leaving it out does not visibly help. What does help is a
# **weight**, or leaving out only answers with a **negative advantage**, those first to which the trainer gives the
# least of the engine's probability. It matters which bad answers go: as many of them by chance is surely worse.
#
# Now the same corrections on the same prompts, with the weights that are trained and a KV cache in e5m2. Without a
# correction that training climbs. **Guess first:** is the rule that helped above better than nothing here as well?

# %%
cached, _ = read_study("decide_cache")
nothing, chance = against_nothing(cached), against_chance(cached, find_study("decide_cache").by_chance)
picture(differences(nothing))

# %%
show("to as much by chance", "mean", "from", "to")
for pair in chance:
    if pair.difference.tells:
        show(pair.arm, *astuple(pair.difference), digits=2)

worse = {p.arm for p in nothing if p.difference.high < 0}
assert not any(p.difference.low > 0 for p in nothing)
assert "geometric_negative_50" in worse
assert len([arm for arm in worse if arm.endswith("_50")]) == 6
assert {p.arm for p in chance if p.difference.high < 0} == {"token_band_50", "token_band_80", "geometric_negative_50"}
assert not any(p.difference.low > 0 for p in chance)

# %% [markdown]
# It is surely worse, than nothing and than chance. So is every way but one to leave out half, and the band on tokens is
# surely worse than chance: where a cache rounds, the tokens far from 1 were worth more than others. **Which rule helps
# depends on the mismatch.** Both studies are about one task of four tokens, one learning rate and sixty steps.
#
# And on the length? `decide_long_stale` asks ten of these arms once more, with weights as old, about answers of 200 to
# 500 tokens. **Guess first:** which of the three that were surely better still are?

# %%
long, _ = read_study("decide_long_stale")
nothing = against_nothing(long)
picture(differences(nothing))

# %%
ends = {outcome.preset: outcome.reward.mean for outcome in outcomes(long)}
show("difference to no correction", "mean", "from", "to", "reward")
for pair in nothing:
    if pair.arm in better:
        show(pair.arm, *astuple(pair.difference), ends[pair.arm], digits=2)

long_caps = {p.arm: p.difference for p in nothing if p.arm.endswith("_cap")}
assert {p.arm for p in nothing if p.difference.tells} == {"token_cap"}
assert long_caps["token_cap"].low > long_caps["product_cap"].high > 0
assert not any(p.difference.tells for p in against_chance(long, find_study("decide_long_stale").by_chance))

# %% [markdown]
# One of them, the cap on each token's ratio. The cap on the product was surely better with four tokens; with four
# hundred it cannot be told from no correction, and its interval lies wholly below that of the token cap. No rule is
# told from no correction, or from chance. A product over hundreds of tokens is far from 1 for nearly every answer
# (lesson 06), so a bound on it hardly says which answer counts. That would explain it, and was not tested here.
#
# A finding like this needs a check on data that it was not found on. `decide_long_cache` is one: the same arms, answers
# and seeds under the coarse cache, trained after the sentences above were written. **Guess first:** which of them hold?

# %%
checked, _ = read_study("decide_long_cache")
nothing = against_nothing(checked)
ends = {outcome.preset: outcome.reward for outcome in outcomes(checked)}
show("difference to no correction", "mean", "from", "to", "reward")
for pair in nothing:
    if pair.arm in better:
        show(pair.arm, *astuple(pair.difference), ends[pair.arm].mean, digits=2)

checked_caps = {p.arm: p.difference for p in nothing if p.arm.endswith("_cap")}
assert {p.arm for p in nothing if p.difference.tells} == {"token_cap"}
assert checked_caps["token_cap"].low > checked_caps["product_cap"].high > 0
assert ends["token_cap"].lowest > ends["none"].highest
assert not any(p.difference.tells for p in against_chance(checked, find_study("decide_long_cache").by_chance))

# %% [markdown]
# Both do: the token cap alone is surely better, and its interval lies wholly above that of the product's. With short
# answers the same cache took nothing away; with long ones the reward is lost without a correction. That no rule is told
# from nothing says little here: their intervals are wide. All of this is one task, one learning rate, one small model.

# %% [markdown]
# ## Predict, then reveal
#
# `moe_bf16` is a mixture of experts in bfloat16: nearly all tokens agree as in `bf16`, and a few, in which another
# expert was chosen, are far apart. Its KL is 0.004 per token. **Write down a guess** for its last step, of 256 answers:
#
# 1. Which share of the answers does Geo-RS at ±0.1 % keep? And at ±1 %?
# 2. How many **tokens** does IcePop reject, of about 900?
# 3. After IcePop, is the mean k3 of the kept tokens half of what it was, a fifth, or less than a tenth?
#
# Then run the cell.

# %%
batch = load("moe_bf16")
keeps = {name: trained_on(batch, config) for name, config in (RULES | {"IcePop": shown["IcePop"]}).items()}
d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
show("Geo-RS, ±0.1 %: answers kept", float(keeps["Geo-RS, ±0.1 %"].any(-1).double().mean()), digits=2)
show("Geo-RS, ±1 %: answers kept", float(keeps["Geo-RS, ±1 %"].any(-1).double().mean()), digits=2)
show("IcePop: tokens rejected", int((mask & ~keeps["IcePop"]).sum()), "of", int(mask.sum()))
show("mean k3, all tokens, in 1/1000", float(1000 * k3(d[mask]).mean()), digits=3)
show("mean k3, kept by IcePop", float(1000 * k3(d[keeps["IcePop"]]).mean()), digits=3)
show("mean k3, kept by Geo-RS ±1 %", float(1000 * k3(d[keeps["Geo-RS, ±1 %"]]).mean()), digits=3)

# %% [markdown]
# IcePop drops **one** token, and nearly all of the mismatch is gone. Geo-RS at ±0.1 % drops three quarters of the
# answers, nearly all of them for ordinary rounding. A tail wants a rule that looks at single tokens and is wide in the
# middle. (One step holds one such token, so the number of rejected tokens is 1 give or take 1.)

# %% [markdown]
# ## Exercise 1: Geo-RS
#
# *6 minutes.* Return the mask of kept tokens, `(B, T)` of truths. All tokens of an answer stay while the geometric mean
# of its ratios, trainer over engine, lies in [`lower`, `upper`]; bounds belong to the inside. Padding is False. Keep
# it: in `mini.py`, the loop that lesson 01 began, it is the fourth piece, `kept`.
#
# <details><summary>Hint 1</summary>The mean of d over the real tokens of a row is the logarithm of the geometric
# mean.</details>
# <details><summary>Hint 2</summary><code>over_sequence(log_ratio(…), mask, "mean")</code> has shape (B,). Add a
# dimension with [:, None], compare with the logarithms of the bounds, and combine with the mask by &amp;.</details>


# %%
def geometric_rule(old_log_probs, rollout_log_probs, mask, lower, upper):
    raise NotImplementedError("exercise 1: write geometric_rule, then run this cell and the next.")


# %% tags=["check"]
check(geometric_rule, GEOMETRIC_RULE)


# %% tags=["solution", "hide-input"]
def geometric_rule_solution(old_log_probs, rollout_log_probs, mask, lower, upper):
    mean = over_sequence(log_ratio(old_log_probs, rollout_log_probs, mask), mask, "mean")[:, None]
    return mask & (mean >= math.log(lower)) & (mean <= math.log(upper))


check(geometric_rule_solution, GEOMETRIC_RULE)

# %% [markdown]
# ## Exercise 2: the distribution that is trained on
#
# *3 minutes.* Given the engine's probabilities `q` and which actions are kept, `(A,)` each, return $q_m$. If nothing is
# kept, return zeros.
#
# <details><summary>Hint 1</summary>Set the rejected ones to 0, then make it add up to 1.</details>
# <details><summary>Hint 2</summary>Z is a probability, not a number of actions.</details>


# %%
def trained_distribution(q, keep):
    raise NotImplementedError("exercise 2: write trained_distribution, then run this cell and the next.")


# %% tags=["check"]
check(trained_distribution, TRAINED_DISTRIBUTION)


# %% tags=["solution", "hide-input"]
def trained_distribution_solution(q, keep):
    kept = q.where(keep, 0)
    total = kept.sum()
    return kept / total if total > 0 else kept


check(trained_distribution_solution, TRAINED_DISTRIBUTION)

# %% [markdown]
# ## Exercise 3: two denominators
#
# *4 minutes.* Return the loss of a batch: the sum of `loss` over the kept tokens, divided by the number of real tokens
# (`denominator` is "fixed") or of kept ones ("kept"). `loss` is nan on padding. If there is nothing to divide by,
# return 0.
#
# <details><summary>Hint 1</summary><code>loss[keep]</code> holds the losses of the kept tokens only, so no nan comes
# along.</details>
# <details><summary>Hint 2</summary><code>.clamp(min=1)</code> on the count.</details>


# %%
def masked_loss(loss, mask, keep, denominator):
    raise NotImplementedError("exercise 3: write masked_loss, then run this cell and the next.")


# %% tags=["check"]
check(masked_loss, MASKED_LOSS)


# %% tags=["solution", "hide-input"]
def masked_loss_solution(loss, mask, keep, denominator):
    counted = mask if denominator == "fixed" else keep
    return loss[keep].sum() / counted.sum().clamp(min=1)


check(masked_loss_solution, MASKED_LOSS)

# %% [markdown]
# ## mini.py, piece 5: `loss`
#
# *6 minutes.* Return a number whose slope along every real log-prob is $-w A / N$: `trainer` holds the trainer's
# log-probs, `weights` what a cap or a rule left of the ratios, both `(B, T)`, `advantage` is `(B,)`, and $N$ counts the
# mask. The check looks at the slope, not at the number. Its weights are made of the same log-probs, as in a training.
#
# <details><summary>Hint 1</summary>An optimiser goes down.</details>
# <details><summary>Hint 2</summary><code>weights.detach()</code> is a number to autograd, and
# <code>advantage[:, None]</code> stands beside every token of its answer.</details>


# %%
def weighted_loss(trainer, weights, mask, advantage):
    raise NotImplementedError("mini.py: write weighted_loss, then run this cell and the next.")


# %% tags=["check"]
check(slope(weighted_loss), LOSS)


# %% tags=["solution", "hide-input"]
def weighted_loss_solution(trainer, weights, mask, advantage):
    return -(weights.detach() * advantage[:, None] * trainer.where(mask, 0)).sum() / mask.sum()


check(slope(weighted_loss_solution), LOSS)

# %% [markdown]
# ## Check yourself
#
# **1. A rule keeps a token while k3 ≤ 1. The engine was nearly sure of a token, $q = 0.9$, and the trainer gives it
# 0.01. Another has $q = 0.01$ and $p = 0.9$. Which of them is kept?**
#
# <details><summary>Neither: both are off by a factor of 90.</summary>Right, but for two reasons: their k3 are 3.5 and
# 84.5. A bound of 5 would keep the first and reject the second. k2, which only sees the factor, treats them
# alike.</details>
# <details><summary>The first: k3 only looks at ratios above 1.</summary>No. k3 is never negative and grows on both
# sides; below 1 it grows slowly, like −d. At a ratio of 1/90 it is 3.5, which is above 1.</details>
# <details><summary>The second, because the trainer likes it.</summary>No. k3 is 84.5 there. What the trainer likes and
# the engine hardly writes is what k3 punishes most.</details>
#
# **2. A rule rejects 30 % of the tokens. The denominator is fixed, the optimizer is Adam. What happens to the step?**
#
# <details><summary>It is 30 % shorter, for good.</summary>With plain gradient descent, yes. Adam divides by the size of
# recent gradients, so a constant factor cancels after some steps.</details>
# <details><summary>Nothing: the rejected tokens were wrong anyway.</summary>No. The direction changes as well: what is
# trained on is q restricted to the kept tokens, and that is neither q nor p.</details>
# <details><summary>The gradient is multiplied by 0.7 and turned; Adam undoes the 0.7, not the turn.</summary>Yes. And
# if the share changes from step to step, Adam follows late.</details>
#
# **3. Geo-RS at ±0.1 % keeps 90 % of your answers of 4 tokens. What will it keep of answers of 4,000?**
#
# <details><summary>About 90 %: the geometric mean does not depend on the length.</summary>No. Its bound does not, but
# its spread does: σ/√T. A long answer's mean is close to −κ.</details>
# <details><summary>Nothing: long answers leave every band.</summary>That holds for the product. The geometric mean of
# long answers settles at e^−κ; whether that is inside depends on κ.</details>
# <details><summary>All of them if the KL per token is well below 0.001, none if it is well above.</summary>Yes. At this
# length the rule has become a test of the engine, not of the answer.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the bench with Geo-RS on this
#   run](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_geo_rs): drag both bounds outwards and
#   watch the kept share;
# - [the Mismatch view](http://localhost:8501/mismatch?run=long_kv_fp8_e5m2&step=latest), with the regions
#   of this lesson over the tokens, and the sum of $d$ over lengths of 200 to 500 tokens;
# - [weights against weights with
#   rejection](http://localhost:8501/compare?run=stale_4&step=latest&preset=decoupled_seq_is&compare=preset&preset_b=decoupled_seq_is_rs):
#   which tokens only one of them trains on;
# - [the study](http://localhost:8501/training?part=Study&study=stale_8).
#
# ## Pitfalls
#
# - **Direction.** In verl the statistic of k1 is $-\log r$, compared with the logarithms of the bounds. So "0.6_1.4"
#   keeps $r$ from 0.71 to 1.67, the reciprocals. Here bounds are on $r$; exports turn them round.
# - **Empty batches.** A rule can reject everything, on one rank only. A mean over nothing must be 0 with a graph, not
#   nan: one nan in the loss is a nan in every weight.
# - **Groups.** A rejected answer usually still counts in the mean of its GRPO group. It has no gradient, but it moves
#   the advantages of its siblings.
# - **Two-sided is not symmetric.** Tokens are drawn from $q$, so large ratios are rare in the sample and large in the
#   average. A rule that drops "outliers" mostly drops $r < 1$.
# - **Metrics after the rule.** Measured on what is kept, every mismatch looks healthy. Measure before.
# - **Confident tokens.** A divergence of two coins is computed from $1 - p$. In float32 that is 0 for $p$ near 1, and a
#   careless rule rejects just the tokens on which everybody agrees.
#
# ## References
#
# 1. [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: the report on Ring-1T, with IcePop and its bounds.
# 2. Qi et al., [Rethinking the Trust Region in LLM RL](https://arxiv.org/abs/2602.04879), 2026: DPPO, bounds on
#    probabilities instead of ratios.
# 3. Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: rules on whole
#    answers by k2 and k3.
