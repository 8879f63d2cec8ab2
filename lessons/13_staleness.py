# %% [markdown]
# # 13 · Staleness and asynchronous training
#
# **Claim.** A policy that is some updates old differs by whole probabilities; how far it is follows from the drift and
# the noise of its updates, and what it costs from its age and the correction, not from whether the engine ran in a
# thread.
#
# *35 minutes · advanced · any laptop; no GPU, no network.* You need lesson 00, and from lesson 03 that older weights
# leave no mark but their size. Three policies and clipping come from lesson 04; what is needed is said again.
#
# At the end you can
#
# - say how far a policy moves in $k$ updates, and when that is $k$ and when $k^2$;
# - tell the age of a batch from its recorded versions, and weigh a batch that several versions wrote;
# - explain why asynchronous and synchronous runs of the same staleness are the same numbers, and when they are not;
# - read a study with three seeds without reading too much into it.

# %%
import itertools
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor

import count_on
import mini
import sympy
import torch
from exercises.lesson_13 import MIXTURE, POWER, UPDATE, VERSION_OF, course
from scipy import stats
from show import picture, show
from torch.nn.functional import pad

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.mismatch import by_lag
from rlcorr.figures.mismatch import lags as lags_of
from rlcorr.figures.study import study_curves
from rlcorr.gradients import toy
from rlcorr.objective import score_coefficients
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import updated_batch
from rlcorr.records.study import outcomes, over_seeds, read_study
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(13)

# %% [markdown]
# ## Three tokens, one update at a time
#
# Each update of a training changes the weights, and gives a new **version** of the policy. Writing answers takes long,
# so large systems let the engine write with version 10 while the trainer is at version 14. The **lag** of an answer is
# the number of updates between the version that wrote it and the one that scores it, here 4. A system's **staleness**
# is the largest lag that it allows.
#
# Take the tokens A, B, C with probabilities ½, ¼, ¼. An update adds 0.1 to the logit of A. After $k$ updates A's logit
# is $0.1\,k$ higher. How far is the old policy from the new one, as KL(q‖p)?

# %%
logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
step_up = torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64)


def kl(old, new):
    """KL(q‖p) of the version that wrote and the one that scores, from their logits."""
    log_q, log_p = old.log_softmax(-1), new.log_softmax(-1)
    return float((log_q.exp() * k3(log_p - log_q)).sum())


lags = [1, 2, 4, 8]
steady = [kl(logits, logits + k * step_up) for k in lags]
show("lag", lags)
show("KL, the same step every time", steady)
show("over that of lag 1", [x / steady[0] for x in steady], digits=1)

# %% [markdown]
# Twice the lag is four times the divergence. Now let every update throw a coin for each logit, and add or take off 0.1.
# With three logits and $k$ updates there are $8^k$ cases; the average over all of them is exact.

# %%
coins = torch.tensor(list(itertools.product((0.1, -0.1), repeat=3)), dtype=torch.float64)  # (8, 3)
walk, sums = [], torch.zeros(1, 3, dtype=torch.float64)
for _ in range(4):
    sums = (sums[:, None] + coins).reshape(-1, 3)  # every case, one update longer
    walk.append(sum(kl(logits, logits + moved) for moved in sums) / len(sums))

show("lag", 1, 2, 3, 4)
show("KL, random steps", walk)
show("over that of lag 1", [x / walk[0] for x in walk], digits=2)

# %% [markdown]
# Twice the lag is now twice the divergence.
#
# ## How far a policy moves
#
# Let $k$ updates add $\delta_a$ to the logit of token $a$. For small $\delta$ (lesson 03, rounding, with another name
# for the error)
#
# $$ \mathrm{KL}(q\|p) = \tfrac12 \operatorname{Var}_q(\delta) + O(\delta^3) =: Q(\delta) + O(\delta^3) , $$
#
# and $Q$ is quadratic. Let each update be a **drift** $v$, always the same, plus **noise** $\xi_i$, independent from
# update to update and 0 on average. Then $\delta = k v + \sum_i \xi_i$; in the average of the square all mixed terms
# vanish, and
#
# $$ \mathbb{E}[\mathrm{KL}_k] \approx k^2\, Q(v) + k\, \mathbb{E}[Q(\xi)] . $$
#
# Drift adds up like $k^2$, noise like $k$. They are equal at the lag $k^* = \mathbb{E}[Q(\xi)] / Q(v)$: below it a
# training looks like a random walk, above it like a straight road.
#
# ### Check 1, with symbols

# %%
w = sympy.symbols("w_A w_B w_C", positive=True)
delta, t = sympy.symbols("d_A d_B d_C"), sympy.symbols("t")
q_sym = [x / sum(w) for x in w]
moved = [x * sympy.exp(t * e) for x, e in zip(w, delta, strict=True)]
p_sym = [x / sum(moved) for x in moved]


def spread(shift):
    """Q: half the variance of the shifts of the logits, under q."""
    mean = sympy.Add(*(q_a * e for q_a, e in zip(q_sym, shift, strict=True)))
    return sympy.Add(*(q_a * (e - mean) ** 2 / 2 for q_a, e in zip(q_sym, shift, strict=True)))


divergence = sympy.Add(*(q_a * sympy.log(q_a / p_a) for q_a, p_a in zip(q_sym, p_sym, strict=True)))
assert sympy.simplify(sympy.diff(divergence, t).subs(t, 0)) == 0
assert sympy.simplify(sympy.diff(divergence, t, 2).subs(t, 0) - 2 * spread(delta)) == 0

# two updates, each the drift plus one of eight coins: the average over all 64 cases
v, size = sympy.symbols("v_A v_B v_C"), sympy.symbols("s", positive=True)
tosses = list(itertools.product((size, -size), repeat=3))
one = sympy.Add(*(spread(x) for x in tosses)) / 8
pairs = itertools.product(tosses, repeat=2)
two = sympy.Add(*(spread([2 * c + a + b for a, b, c in zip(x, y, v, strict=True)]) for x, y in pairs)) / 64
assert sympy.simplify(two - (4 * spread(v) + 2 * one)) == 0
assert sympy.simplify(one - size**2 / 2 * (1 - sympy.Add(*(q_a**2 for q_a in q_sym)))) == 0

show("KL = Q + higher terms", "proved")
show("two updates: 4 Q(v) + 2 E[Q(ξ)]", "proved")
show("coins of size s: E[Q(ξ)] = ½ s² (1 − Σ q²)", "proved")

# %% [markdown]
# ### Check 2, with numbers: a training small enough to enumerate
#
# `rlcorr.gradients.toy` knows all 121 answers of at most four tokens over four, so the divergence between two versions
# is an exact sum. We train it with the policy gradient on $B$ sampled answers per update. The drift is the exact
# gradient, the noise is what $B$ answers add to it. So both numbers can be computed **before** anything is trained.

# %%
where = toy.world(4, 4)
start = toy.random_policy(where, 13)
rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
RATE, JUDGE = 0.02, 4.0  # the learning rate, and the standard deviation of the judge's error


def update(theta, answers, rate):
    """The next version, after a policy gradient of so many sampled answers; None takes all, by their probability."""
    probability = toy.probabilities(where, theta)
    leaf = theta.clone().requires_grad_()
    log_prob, advantages = toy.log_probs(where, leaf).sum(-1), rewards - (probability * rewards).sum()
    if answers is None:
        return theta + rate * toy.gradient_of((probability * advantages * log_prob).sum(), leaf)
    rows = torch.multinomial(probability, answers, replacement=True, generator=generator)
    judged = advantages[rows] + JUDGE * torch.randn(answers, dtype=torch.float64, generator=generator)
    return theta + rate * toy.gradient_of((judged * log_prob[rows]).mean(), leaf)


def versions(answers, updates, rate=RATE):
    """Versions 0 … `updates`."""
    weights = [start]
    for _ in range(updates):
        weights.append(update(weights[-1], answers, rate))
    return weights


# the gradient that each single answer would give, (answers, states, tokens), and Q over the states that are visited
table, visited = start.softmax(-1), toy.visits(where, start)
scores = torch.zeros(len(where.tokens), *start.shape, dtype=torch.float64)
for n, (tokens, states, real) in enumerate(zip(where.tokens, where.states, where.mask, strict=True)):
    scores[n, states[real]] -= table[states[real]]
    scores[n, states[real], tokens[real]] += 1
chance = toy.probabilities(where, start)
pushes = (rewards - (chance * rewards).sum())[:, None, None] * scores


def Q(shift):
    mean = (table * shift).sum(-1, keepdim=True)
    return 0.5 * (visited * (table * (shift - mean).square()).sum(-1)).sum(-1)


drift = (chance[:, None, None] * pushes).sum(0)
assert torch.allclose(drift, toy.policy_gradient(where, start, rewards), atol=1e-14)
noise_of_one = float(
    (chance * (Q(pushes) + JUDGE**2 * Q(scores))).sum() - Q(drift)
)  # E[Q(ξ)] with one answer; B answers have 1/B of it

LAGS = [1, 2, 4, 8, 16]
ANSWERS = 8
noise = noise_of_one / ANSWERS
drift_alone = [RATE**2 * float(k**2 * Q(drift)) for k in LAGS]
predicted = [RATE**2 * float(k**2 * Q(drift) + k * noise) for k in LAGS]

exactly = versions(None, LAGS[-1])
without_noise = [float(toy.kl(where, start, exactly[k])) for k in LAGS]
trained = (versions(ANSWERS, LAGS[-1]) for _ in range(250))
measured = torch.tensor([[float(toy.kl(where, start, run[k])) for k in LAGS] for run in trained], dtype=torch.float64)
mean, error = measured.mean(0), measured.std(0) / len(measured) ** 0.5

show("lag", LAGS)
show("all answers, KL × 10⁵: predicted", [1e5 * x for x in drift_alone], digits=2)
show("trained", [1e5 * x for x in without_noise], digits=2)
show("8 answers, KL × 10⁵: predicted", [1e5 * x for x in predicted], digits=2)
show("trained, mean of 250 trainings", 1e5 * mean, digits=2)
show("standard error", 1e5 * error, digits=2)
show("k*, where noise and drift are equal", noise / float(Q(drift)), digits=1)

assert all(abs(a / b - 1) < 0.1 for a, b in zip(without_noise, drift_alone, strict=True))
for k, m, e, x in zip(LAGS, mean.tolist(), error.tolist(), predicted, strict=True):
    assert abs(m - x) < 3 * e + 0.1 * x, k  # 10 % for the higher terms, as without noise

# %% [markdown]
# **Look for** the slopes: on these axes $k$ is a line of slope 1 and $k^2$ one of slope 2. With all answers the slope
# is 2 from the start; with eight answers and an uncertain judge it bends at $k^*$, the dotted line.

# %%
picture(
    curves(
        LAGS,
        {"all answers": without_noise, "8 answers": mean.tolist(), "8 answers, predicted": predicted},
        x_name="lag, updates",
        y_name="KL(q‖p)",
        log="xy",
        marks=[noise / float(Q(drift))],
    )
)

# %% [markdown]
# ### Check 3, with data: nine steps from the same start
#
# The study `stale_8` trains with a staleness of 8. Before a training starts there is only version 0, so its first nine
# batches are all written by version 0, and scored by versions 0 to 8: lags 0 to 8. That is the experiment above, on a
# real model with a real optimiser. The metric k3 estimates KL(q‖p), here per token. Three seeds, without a correction:

# %%
rows, _ = read_study("stale_8")
SEEDS = sorted({row["seed"] for row in rows})


def first_lags(name, seed):
    """k3 at the lags 1 … 8 of one training of the study."""
    k3_at = {row["step"]: row["k3"] for row in rows if row["preset"] == name and row["seed"] == seed}
    return [k3_at[lag + 1] for lag in range(1, 9)]


def power_between(kl, low, high):
    """The power of the lag with which the divergence grows, from one lag to another; kl starts at lag 1."""
    ratio_of_kl = torch.tensor(kl[high - 1] / kl[low - 1], dtype=torch.float64)
    return float(ratio_of_kl.log() / torch.tensor(high / low, dtype=torch.float64).log())


show("lag", 1, 2, 4, 8, "", "power, 1 to 8")
powers = {}
for name in ("disabled", "decoupled_token_is"):
    of_seeds = [first_lags(name, seed) for seed in SEEDS]
    powers[name] = [power_between(grown, 1, 8) for grown in of_seeds]
    for seed, grown in zip(SEEDS, of_seeds, strict=True):
        show(f"{name}, seed {seed}", *(grown[lag - 1] for lag in (1, 2, 4, 8)), "", powers[name][seed], digits=2)

for name, powers_of_seeds in powers.items():
    interval = over_seeds(powers_of_seeds)
    show(f"{name}: mean, lowest, highest", interval.mean, interval.lowest, interval.highest, digits=2)
assert all(1.1 < power < 1.2 for power in powers["disabled"])
assert all(power < 1 for power in powers["decoupled_token_is"])
assert all(first_lags("disabled", seed)[-1] > 1 for seed in SEEDS)

# %% [markdown]
# Without a correction the power is 1.16, with little spread: much nearer to a random walk than to a straight road. It
# looks as if most of an update were noise; eight updates are about eleven times as far as one, not sixty-four times.
#
# Three things speak against reading more into it. These lags are not small: at lag 8 k3 is above 1, where the higher
# terms count. A drift whose steps become smaller would look the same. And **with** a correction the power is below 1,
# which neither drift nor noise can give: the updates are not independent of the lag. A likely reason is that what the
# newer policy hardly writes any more gets small weights, so an old batch moves less. The law says what free updates do;
# a correction is there to interfere.
#
# Could one not compare two whole runs instead, `stale_4` and `async`, whose staleness is 4 and 2? Here is the power
# that their k3 suggests, over seven steps at a time:

# %%
rows_of = {name: runs.read_metrics(runs.find_run(name)) for name in ("stale_4", "async")}
k3_of = {
    name: torch.tensor([row["rollout_corr/k3_kl"] for row in metric_rows], dtype=torch.float64)
    for name, metric_rows in rows_of.items()
}
doublings = (k3_of["stale_4"] / k3_of["async"])[5:].log2().reshape(5, 7)
show("steps", "6–12", "13–19", "20–26", "27–33", "34–40")
show("power, from lag 2 to lag 4", doublings.mean(-1), digits=2)
show("reward, stale_4", [sum(row["reward"] for row in rows_of["stale_4"][n : n + 7]) / 7 for n in range(5, 40, 7)])
show("reward, async", [sum(row["reward"] for row in rows_of["async"][n : n + 7]) / 7 for n in range(5, 40, 7)])
assert doublings.mean(-1).max() - doublings.mean(-1).min() > 1

# %% [markdown]
# Anything from 0.8 to 2: this measures something else. The two trainings part: for most of the time `async` earns more,
# and a policy that earns more is surer and moves less. Compare lags from one start, or not at all.
#
# ## Predict, then reveal
#
# `bypass_ppo_clip` keeps two policies only: its PPO ratio is $\pi_\theta/q$, clipped to 1 ± 0.2. `decoupled_token_is`
# keeps three: the PPO ratio is $\pi_\theta/\pi_{old}$, clipped likewise, and $\pi_{old}/q$ becomes a weight (lesson
# 04). The first nine batches all come from version 0. **Write down a guess:**
#
# 1. How does k3 grow from lag 1 to lag 8 under `bypass_ppo_clip`? Like the others, slower, or not at all after a while?
# 2. Which of the two ends with the higher reward after 60 steps?

# %%
show("k3 at lag, mean of three seeds", 1, 2, 4, 8, "", "power", "lowest", "highest")
for name in ("disabled", "decoupled_token_is", "verl_dppo_tv", "bypass_ppo_clip"):
    of_seeds = [first_lags(name, seed) for seed in SEEDS]
    average = torch.tensor(of_seeds, dtype=torch.float64).mean(0)
    interval = over_seeds([power_between(k3_of_seed, 1, 8) for k3_of_seed in of_seeds])
    bounds = (interval.mean, interval.lowest, interval.highest)
    show(name, *(average[lag - 1] for lag in (1, 2, 4, 8)), "", *bounds, digits=2)

reward = {outcome.preset: outcome.reward for outcome in outcomes(rows)}
for name in ("decoupled_token_is", "bypass_ppo_clip"):
    show(f"{name}: reward at the end", reward[name].mean, reward[name].lowest, reward[name].highest, digits=2)
assert reward["bypass_ppo_clip"].lowest < reward["decoupled_token_is"].highest
assert reward["decoupled_token_is"].lowest < reward["bypass_ppo_clip"].highest

# %% [markdown]
# 1. It stops. A clip around $q$ is a fence around version 0: a token whose ratio has left the fence, on the side to
#    which its advantage pushes, gets no gradient. k3 stays near 0.25 from lag 4 on. A clip around $\pi_{old}$ moves
#    along with the trainer and fences in one update, not eight.
# 2. Neither: 0.44 and 0.44, well inside the spread of the seeds. The fence costs gradient, its absence costs distance.
#
# ## The decoupled objective
#
# That is the choice. Write $\rho = \pi_\theta/\pi_{old}$, so that $\pi_\theta/q = r\rho$. Per token, with the clip's
# minimum,
#
# $$ \text{coupled: } \min\big(r\rho\, A,\; \operatorname{clip}(r\rho)\, A\big) \qquad
# \text{decoupled: } \min(r, c)\cdot \min\big(\rho\, A,\; \operatorname{clip}(\rho)\, A\big) . $$
#
# At the start of an update $\rho = 1$. Then decoupled every token has its gradient, $r A \nabla\log\pi_\theta$ up to
# the cap $c$. Coupled, a token with $r > 1.2$ and $A > 0$, or $r < 0.8$ and $A < 0$, has none, before anything was
# learnt from it. How many are that?

# %%
show("tokens without gradient at the start", "coupled", "error", "decoupled")
for name, step in (("bf16", 400), ("async", 20), ("async", 40), ("stale_4", 20), ("stale_4", 40)):
    batch = updated_batch(runs.find_run(name), step)
    real = batch.response_mask & (batch.advantages != 0)
    lost = {}
    for chosen in ("bypass_ppo_clip", "decoupled_token_is"):
        config = preset(chosen)
        c = score_coefficients(batch.tensors()["old_log_probs"], batch, correct(batch, config), config, LossConfig())
        lost[chosen] = float((c[real] == 0).double().mean())
    coupled = lost["bypass_ppo_clip"]
    error = (coupled * (1 - coupled) / int(real.sum())) ** 0.5
    show(f"{name}, step {step}", coupled, error, lost["decoupled_token_is"])
    assert lost["decoupled_token_is"] == 0
    assert (coupled > 0.1) == ((name, step) == ("stale_4", 20))

# %% [markdown]
# With fresh weights none; at lag 4, early in the training, one in eight. What does it do to the gradient? In the toy
# everything is exact: the bias is the length of the difference between the expected gradient and the policy gradient,
# over the length of the latter. We average over ten trainings at a high learning rate, 64 answers per update.

# %%
METHODS = ("disabled", "decoupled_token_is", "decoupled_seq_is", "bypass_ppo_clip")
show("lag", "KL", "none", "token", "sequence", "clip at q")
trainings = [versions(64, 16, rate=1.0) for _ in range(10)]
for lag in (0, 1, 2, 4, 8):
    numbers = []
    for run in trainings:
        advantages = rewards - (toy.probabilities(where, run[16]) * rewards).sum()
        policies = toy.Policies(rollout=run[16 - lag], old=run[16], theta=run[16])
        truths = [toy.gradient_truth(where, policies, advantages, preset(name)) for name in METHODS]
        numbers.append([float(toy.kl(where, run[16 - lag], run[16])), *(truth.relative_bias for truth in truths)])
    averages = torch.tensor(numbers, dtype=torch.float64).mean(0)
    show(f"{lag}: relative bias, mean of 10", averages, digits=3)
    if lag == 0:
        assert averages.max() < 1e-12
assert averages[2] < averages[1]  # at lag 8 the weights take most of the bias away
assert averages[3] < averages[2] < averages[4]

# %% [markdown]
# A relative bias of 1 is what a gradient of 0 would have. Without weights it is worse than that at lag 8. Token weights
# leave a tenth of it: they correct each token, but not how often the text before it is written. Weights on the product
# leave nothing, in answers of four tokens; in long ones they are noisy, or cut by their cap (lessons 05, 06).
#
# The clip around $q$ is no less biased here than doing nothing, although the policies are close: the tokens that it
# fences off are those that the last updates moved, so just the ones that the gradient is about.
#
# ## Several versions in one batch
#
# A system that takes answers as they are finished trains on batches that several versions wrote. Each recorded row
# holds its version, and `lags_of` turns versions into lags. In our recorded runs each batch has one
# version. So let us put three batches together, all scored at step 20: one of `control_fp32` (lag 0, and an engine
# that does not round), one of `async` (lag 2), one of `stale_4` (lag 4).


# %%
def columns(name, step):
    recorded = runs.read_step(runs.find_run(name), step).batch.tensors()
    return {key: recorded[key] for key in ("response_mask", "rollout_log_probs", "old_log_probs", "policy_versions")}


def together(parts):
    """One batch of the rows of several, padded to the same width."""
    widest = max(part["response_mask"].shape[1] for part in parts)
    wide = [{key: pad(x, (0, widest - x.shape[1])) if x.ndim == 2 else x for key, x in p.items()} for p in parts]
    return TokenBatch(**{key: torch.cat([part[key] for part in wide]) for key in wide[0]})


mixed = together([columns(name, 20) for name in ("control_fp32", "async", "stale_4")])
lag_of_row = lags_of(mixed, 20)
show("versions", mixed.tensors()["policy_versions"].unique())
show("lags", lag_of_row.unique())

# %% [markdown]
# **Look for** the growth from lag 2 to lag 4, and for what lag 0 leaves: nothing. With a bfloat16 engine it would
# be a few thousandths, rounding (lesson 03).

# %%
picture(by_lag(mixed, 20))

d = correct(mixed, CorrectionConfig()).log_ratio.double()
for lag in (*lag_of_row.unique().tolist(), "any"):
    rows_with = torch.ones_like(lag_of_row, dtype=torch.bool) if lag == "any" else lag_of_row == lag
    r = ratio(d[rows_with][mixed.response_mask[rows_with]])
    error = float(r.std() / len(r) ** 0.5)
    show(f"lag {lag}: mean ratio, error", r.mean(), error)
    assert abs(float(r.mean()) - 1) < 3 * error

# %% [markdown]
# Each row was divided by the log-probs of **its own** version, so the mean ratio is 1 at every lag, up to chance, and
# in the mixture. Nothing else is needed for a right average. But it is not the only choice. Let a share $\alpha_j$ of
# the answers come from version $q_j$. For a whole answer, with $p$ and $q$ its probabilities, one may also divide by
# the mixture, as if the batch came from one policy that first throws a die:
#
# $$ w_{\text{own}} = \frac{p}{q_j}, \qquad w_{\text{mix}} = \frac{p}{\sum_i \alpha_i q_i} . $$
#
# Both are right on average, and the mixture is never noisier. That is for whole answers (or for answers of one token,
# as in the proof below). Token by token the mixture is **not** right: once the first tokens are written, they tell
# something about the version, and its share among such answers is no longer $\alpha_j$. Nor is it right to divide all
# answers by the newest version.

# %%
P, F = sympy.symbols("p_A p_B p_C", positive=True), sympy.symbols("f_A f_B f_C")
OLD, NEW = sympy.symbols("a_A a_B a_C", positive=True), sympy.symbols("b_A b_B b_C", positive=True)
alpha = sympy.symbols("alpha", positive=True)
target = sympy.Add(*(p * f for p, f in zip(P, F, strict=True)))
tokens = list(zip(P, F, OLD, NEW, strict=True))

by_version = sympy.Add(*(alpha * a * (p / a) * f + (1 - alpha) * b * (p / b) * f for p, f, a, b in tokens))
mixture = sympy.Add(*((alpha * a + (1 - alpha) * b) * p / (alpha * a + (1 - alpha) * b) * f for p, f, a, b in tokens))
newest = sympy.Add(*((alpha * a + (1 - alpha) * b) * (p / b) * f for p, f, a, b in tokens))
assert sympy.simplify(by_version - target) == 0
assert sympy.simplify(mixture - target) == 0
assert sympy.simplify(newest - target) != 0

# the mean square of the weights, action by action: own less mixture, over p², is a square over positive numbers
_, _, a, b = tokens[0]
less = alpha / a + (1 - alpha) / b - 1 / (alpha * a + (1 - alpha) * b)
square = alpha * (1 - alpha) * (a - b) ** 2 / (a * b * (alpha * a + (1 - alpha) * b))
assert sympy.simplify(less - square) == 0

# %% [markdown]
# In numbers, on the toy: half of the answers from lag 8, half from lag 1, of one of the trainings above. The weight of
# an answer is a product of ratios; all sums run over all 121 answers.

# %%
log_p, log_old, log_new = (toy.log_probs(where, trainings[0][n]).sum(-1) for n in (16, 8, 15))
p, old, new = (x.exp() for x in (log_p, log_old, log_new))
half = (old + new) / 2

show("weights", "mean", "variance")
for name, by_old, by_new in (("own", old, new), ("mixture", half, half), ("newest for all", new, new)):
    first = float((old * p / by_old + new * p / by_new).sum() / 2)
    second = float((old * (p / by_old).square() + new * (p / by_new).square()).sum() / 2)
    show(name, first, second - first**2)
    assert (abs(first - 1) < 1e-12) == (name != "newest for all")

# %% [markdown]
# The mixture needs every answer scored by every version in the batch; own weights cost nothing.
#
# Some systems change the weights **within** an answer, so that the engine need not wait: the first tokens come from one
# version, the rest from the next. That is no problem for the ratios as long as each token's own log-prob is recorded.
# The answer was then drawn from a policy that is the product of both. Let the first two tokens be old, the rest new:

# %%
first_two = torch.arange(where.mask.shape[1]) < 2
log_switch = torch.where(
    first_two, toy.log_probs(where, trainings[0][8]), toy.log_probs(where, trainings[0][15])
)  # (answers, tokens)
switch = log_switch.sum(-1).exp()

show("probabilities of all answers add up to", switch.sum())
show("mean ratio, each token by its own version", (switch * (log_p - log_switch.sum(-1)).exp()).sum())
show("mean ratio, all by the newer version", (switch * (log_p - log_new).exp()).sum())
assert abs(float(switch.sum()) - 1) < 1e-12
assert abs(float((switch * (log_p - log_switch.sum(-1)).exp()).sum()) - 1) < 1e-12

# %% [markdown]
# ## Asynchronous training
#
# **Synchronous**, the engine and the trainer take turns. **Asynchronous**, the engine writes in a thread of its own (or
# on machines of its own) while the trainer trains. It is tempting to think that asynchronous training is another
# algorithm. It need not be. The numbers of a training depend on two things: which version writes which batch, and the
# random numbers. Here both belong to the **step**, not to the clock: with staleness $n$, step $s$ is written by version
# $\max(s - 1 - n, 0)$, with the seed of step $s$. Then it does not matter who is faster.


# %%
def sampled(theta, step, slow):
    """The answers of a step: their randomness belongs to the step. `slow` only wastes time."""
    time.sleep(slow)
    random_of_step = torch.Generator().manual_seed(step)
    return torch.multinomial(toy.probabilities(where, theta), 32, replacement=True, generator=random_of_step)


def at_once(work, *arguments):
    future = Future()
    future.set_result(work(*arguments))
    return future


def train(staleness, steps, *, threaded, slow=0.0):
    """The logits at the end. Every batch is ordered as soon as the version that must write it exists."""
    theta, waiting = start, []
    with ThreadPoolExecutor(1) as engine:
        for step in range(1, steps + 1):
            ahead = range(step + len(waiting), min(step + staleness, steps) + 1)
            for wanted in ahead:
                job = (sampled, theta, wanted, slow)
                waiting.append(engine.submit(*job) if threaded else at_once(*job))
            batch = waiting.pop(0).result()
            leaf = theta.clone().requires_grad_()
            log_prob = toy.log_probs(where, leaf).sum(-1)[batch]
            theta = theta + 0.5 * toy.gradient_of((rewards[batch] * log_prob).mean(), leaf)
    return theta


turns = train(3, 12, threaded=False)
thread = train(3, 12, threaded=True)
late = train(3, 12, threaded=True, slow=0.01)
show("a thread: the same to the last bit", torch.equal(turns, thread))
show("a slow thread: the same to the last bit", torch.equal(turns, late))
show("staleness 2: the same", torch.equal(turns, train(2, 12, threaded=False)))
assert torch.equal(turns, thread)
assert torch.equal(turns, late)
assert not torch.equal(turns, train(2, 12, threaded=False))

# %% [markdown]
# On recorded runs: `stale_4` took turns, `async` had an engine in a thread and a staleness of 2. Their lags at steps 1,
# 2 and 3 are 0, 1 and 2 in both. At step 4 they part: 3 and 2.

# %%
for place in range(5):
    a, b = (rows_of[name][place] for name in ("stale_4", "async"))
    measured = [key for key in a if not key.startswith(("timing/", "elapsed"))]
    equal = sum(a[key] == b[key] for key in measured)
    show(f"step {place + 1}: equal numbers", equal, "of", len(measured))
    assert (equal == len(measured)) == (place < 3)

# %% [markdown]
# All 70 numbers of a step, rewards, gradient norms and divergences, to the last digit that is stored: thread or not.
#
# Systems that let the engine use **whatever version is newest** when it starts a batch give this up. Then the lag
# depends on the speeds, and the same program gives other numbers on another machine, or tomorrow. Here is a clock
# without randomness: what each batch's lag is, when writing takes 3 s, and one batch in four 9 s.


# %%
def clock(writing, training, staleness, *, newest):
    """The lag of each batch, and the seconds at the end. An engine may be at most `staleness` updates ahead."""
    ready, written, lags = [0.0], 0.0, []  # ready[v]: when version v is there
    for step, seconds in enumerate(writing, 1):
        due = max(step - 1 - staleness, 0)
        begin = max(written, ready[due])
        version = max(v for v in range(step) if ready[v] <= begin) if newest else due
        written = begin + seconds
        lags.append(step - 1 - version)
        ready.append(max(written, ready[-1]) + training)
    return lags, ready[-1]


writing = [3.0, 3.0, 3.0, 9.0] * 3
for staleness, training in ((0, 2.0), (2, 2.0), (2, 4.0)):
    for newest in (False, True):
        versions_used, seconds = clock(writing, training, staleness, newest=newest)
        rule = "newest" if newest else "by step"
        show(f"staleness {staleness}, {training:.0f} s, {rule}", "".join(map(str, versions_used)), f"{seconds:.0f} s")
assert [clock(writing, *case, newest=False)[1] for case in ((2.0, 0), (2.0, 2), (4.0, 2))] == [78, 56, 58]
assert clock(writing, 2.0, 0, newest=False) == clock(writing, 2.0, 0, newest=True)
assert clock(writing, 4.0, 2, newest=True)[0] != clock(writing, 2.0, 2, newest=True)[0]
assert clock(writing, 4.0, 2, newest=False)[0] == clock(writing, 2.0, 2, newest=False)[0]

# %% [markdown]
# What buys time is the staleness: 56 or 58 seconds instead of 78. By step, the lags are the same whatever the trainer
# takes. By the newest version they are smaller, and depend on it. Neither is wrong, as long as every token's log-prob
# is that of the version that drew it. But only the first can be repeated.
#
# What systems allow, unless told otherwise:
#
# | system | largest lag by default | counted in |
# |---|---|---|
# | AReaL, `max_head_offpolicyness` | 0 | versions |
# | torchtitan, `max_offpolicy_steps` | 3 | steps |
# | TRL's asynchronous GRPO, `max_staleness` | 4 | batches |
# | SkyRL, `max_staleness_steps` | 4 | steps |
# | prime-rl, `max_off_policy_steps` | 8 | steps |
# | open-instruct, `async_steps` | 8 | batches |
#
# ## What a staleness of eight does: the study
#
# `stale_8` trains ten corrections on three seeds for 60 steps, at a learning rate that breaks nothing by itself:
# `stale_0` is the same training with fresh weights, on the same three seeds, without a correction. The reward at the
# end is the mean over the last quarter of the steps.

# %%
fresh, _ = read_study("stale_0")


def ends(table, name):
    """The reward at the end, one number per seed."""
    rows_of_seed = ([row for row in table if row["preset"] == name and row["seed"] == seed] for seed in SEEDS)
    return torch.tensor([outcomes(seed_rows)[0].reward.mean for seed_rows in rows_of_seed], dtype=torch.float64)


best, worst = ends(fresh, "disabled"), ends(rows, "disabled")
gap = best - worst
half_width = 4.303 * float(gap.std()) / len(gap) ** 0.5  # Student's t with two degrees of freedom, 95 %
show("seed", SEEDS)
show("fresh weights", best)
show("eight updates old, no correction", worst)
show("gap: mean, 95 % interval", gap.mean(), gap.mean() - half_width, gap.mean() + half_width, digits=2)
assert 0.37 < float(gap.mean()) - half_width < 0.39

# %% [markdown]
# The gap is 0.60, and its interval starts at 0.38: the old weights break this training, and the learning rate does not.
# Three seeds are enough to say that. **Look for** bands that do not overlap, each from the lowest seed to the highest.

# %%
DRAWN = ("disabled", "decoupled_token_is", "decoupled_seq_is", "verl_dppo_tv", "skyrl_geo_mask")
picture(study_curves(rows, DRAWN, "reward"))

# %% [markdown]
# How much of the gap does each correction win back? On each seed, (its reward − none) / (fresh − none). With three
# seeds we print the mean, the lowest and the highest, and no narrower interval.

# %%
show("share of the gap won back", "mean", "lowest", "highest", "kept")
won = {}
for outcome in outcomes(rows):
    won[outcome.preset] = over_seeds(((ends(rows, outcome.preset) - worst) / gap).tolist())
    share_won = won[outcome.preset]
    show(outcome.preset, share_won.mean, share_won.lowest, share_won.highest, outcome.kept_fraction.mean, digits=2)

assert max(won, key=lambda name: won[name].mean) == "decoupled_seq_is"
assert all(share_won.highest < 1 for share_won in won.values())
assert [name for name in won if won[name].highest >= won["decoupled_seq_is"].lowest] == ["decoupled_seq_is", "trl_opsm"]
assert all((won[outcome.preset].mean < 0) == (outcome.kept_fraction.mean < 0.25) for outcome in outcomes(rows))

# %% [markdown]
# - **No correction wins all of it back.** The best, a cap on the product of the ratios, wins back 0.82 on
#   average and 0.74 on its worst seed. Only `trl_opsm` reaches that on any.
# - **Five methods win back a little more than half**, and their intervals overlap: caps, bands, the fence around $q$,
#   DPPO. Three seeds do not rank them.
# - **Rejecting most of the tokens wins nothing back.** Rules on whole answers keep 4 to 21 % here. Their means are
#   below 0, but three seeds do not show that they are worse than no correction.
#
# It is one task, one learning rate and 60 steps, and some curves still climb at the end. But the first line is the one
# to take home: no correction here is as good as a lag avoided.
#
# ## Exercise 1: who wrote this batch?
#
# *4 minutes.* Versions are counted from 0, before the first update; step $s$ is scored by version $s - 1$. Return the
# version that writes the batch of `step`, under this `staleness`, if the engine is always as far ahead as it may be.
#
# <details><summary>Hint 1</summary>Write down the versions of steps 1 to 5 for a staleness of 2.</details>
# <details><summary>Hint 2</summary>They are 0, 0, 0, 1, 2.</details>


# %%
def version_of(step, staleness):
    raise NotImplementedError("exercise 1: write version_of, then run this cell and the next.")


# %% tags=["check"]
check(version_of, VERSION_OF)


# %% tags=["solution", "hide-input"]
def version_of_solution(step, staleness):
    return max(step - 1 - staleness, 0)


check(version_of_solution, VERSION_OF)

# %% [markdown]
# ## Exercise 2: the power of the lag
#
# *6 minutes.* Given lags and the divergence at each, both `(K,)`, return the power with which it grows: the slope of
# the straight line through the logarithms, by least squares.
#
# <details><summary>Hint 1</summary>If KL = c·kᵃ, then log KL = log c + a log k.</details>
# <details><summary>Hint 2</summary>The slope of y over x is Σ(x − x̄)(y − ȳ) / Σ(x − x̄)².</details>


# %%
def power(lags, kl):
    raise NotImplementedError("exercise 2: write power, then run this cell and the next.")


# %% tags=["check"]
check(power, POWER)


# %% tags=["solution", "hide-input"]
def power_solution(lags, kl):
    x, y = lags.log() - lags.log().mean(), kl.log() - kl.log().mean()
    return (x * y).sum() / x.square().sum()


check(power_solution, POWER)

# %% [markdown]
# With all eight lags instead of two:

# %%
for name in ("disabled", "decoupled_token_is", "verl_dppo_tv", "bypass_ppo_clip"):
    k3_of_seeds = [first_lags(name, seed) for seed in SEEDS]
    lags = torch.arange(1, 9, dtype=torch.float64)
    interval = over_seeds([float(POWER.expected(lags, torch.tensor(x, dtype=torch.float64))) for x in k3_of_seeds])
    show(f"{name}: mean, lowest, highest", interval.mean, interval.lowest, interval.highest, digits=2)

# %% [markdown]
# ## Exercise 3: weights against the mixture
#
# *6 minutes.* A batch was written by several versions. For each whole answer you know its probability in the trainer,
# `p` `(N,)`, in **every** version, `q` `(versions, N)`, and which share of the answers each version wrote, `shares`
# `(versions,)`. Return the weights against the mixture, `(N,)`.
#
# <details><summary>Hint 1</summary>What is the probability of an answer if a die picks the version first?</details>
# <details><summary>Hint 2</summary><code>shares @ q</code> is that probability.</details>


# %%
def mixture_weights(p, q, shares):
    raise NotImplementedError("exercise 3: write mixture_weights, then run this cell and the next.")


# %% tags=["check"]
check(mixture_weights, MIXTURE)


# %% tags=["solution", "hide-input"]
def mixture_weights_solution(p, q, shares):
    return p / (shares @ q)


check(mixture_weights_solution, MIXTURE)

# %% [markdown]
# ## mini.py, piece 6: the loop
#
# *10 minutes.* The last piece puts the others together: `advantages` (lesson 01), `ratios` (02), `truncated` (05),
# `kept` and `loss` (07). Put them into `mini.py`; `count_on.py` has `sample`, `log_probs` and `reward`. Write one step:
# draw one answer to every prompt from the **engine**, score it under the **policy**, weigh its tokens by
# `weigh(trainer, engine_log_probs, mask)`, and let the optimizer go one step down the loss. Return the mean reward. All
# answers have twelve tokens, so the mask is True everywhere; the answers to one of the eight prompts lie in a row.
#
# <details><summary>Hint 1</summary>Seven lines: sample, reward, log_probs, weigh, advantages, loss and its slope, step.
# </details>
# <details><summary>Hint 2</summary><code>mini.advantages(rewards.view(8, -1)).flatten()</code>; and
# <code>optimizer.zero_grad()</code> before <code>.backward()</code>.</details>


# %%
def one_step(policy, engine, optimizer, prompts, chance, weigh):
    raise NotImplementedError("mini.py: write one_step, then run this cell and the next.")


# %% tags=["check"]
check(course(one_step), UPDATE)


# %% tags=["solution", "hide-input"]
def one_step_solution(policy, engine, optimizer, prompts, chance, weigh):
    tokens, engine_log_probs = count_on.sample(engine, prompts, chance)
    rewards, mask = count_on.reward(prompts, tokens), torch.ones_like(tokens, dtype=torch.bool)
    trainer = count_on.log_probs(policy, prompts, tokens)
    weights = weigh(trainer, engine_log_probs, mask)
    optimizer.zero_grad()
    mini.loss(trainer, weights, mask, mini.advantages(rewards.view(8, -1)).flatten()).backward()
    optimizer.step()
    return float(rewards.mean())


check(course(one_step_solution), UPDATE)

# %% [markdown]
# That is `update`, the last function of `mini.py`. Now break the training, and heal it: `mini.train` calls `update`
# with an engine that is `lag` updates old. Learning rate and lag were chosen on seeds 0 to 4; these are five others.
# **Guess first:** at a lag of 16, what is left of the reward without weights, with the ratios as they are, and with
# ratios up to 2?

# %%
WAYS = {
    "no weights": lambda trainer, engine, mask: mask.double(),
    "ratios": mini.ratios,
    "ratios up to 2": lambda trainer, engine, mask: mini.truncated(trainer, engine, mask, None, 2.0),
}


def end_of(name, lag):
    """The mean reward of the last 25 steps, one number per seed."""
    courses = [mini.train(WAYS[name], lag, 100, seed) for seed in range(10, 15)]
    return torch.tensor(courses, dtype=torch.float64)[:, -25:].mean(1)


show("reward at the end, five seeds", "mean", "lowest", "highest")
ended = {"fresh": end_of("no weights", 0), "no weights": end_of("no weights", 16)}
for name, end in ended.items():
    show(name, end.mean(), end.min(), end.max(), digits=2)

# %%
for name in ("ratios", "ratios up to 2"):
    end = ended[name] = end_of(name, 16)
    show(name, end.mean(), end.min(), end.max(), digits=2)

# %% [markdown]
# Seed by seed, with Student's t and a level of 0.05/3, so that the three intervals hold together.

# %%
t = stats.t.ppf(1 - 0.05 / 3 / 2, 4)
show("difference on the same seed", "mean", "from", "to")
tells = {}
for first, second in (("no weights", "fresh"), ("ratios up to 2", "no weights"), ("ratios", "no weights")):
    d_end = ended[first] - ended[second]
    half = t * float(d_end.std()) / 5**0.5
    tells[first, second] = float(d_end.mean()) - half > 0 or float(d_end.mean()) + half < 0
    show(f"{first}, less {second}", d_end.mean(), d_end.mean() - half, d_end.mean() + half, digits=2)

assert list(tells.values()) == [True, True, False]

# %% [markdown]
# Old answers without weights lose more than half of the reward. Ratios up to 2 surely win some of that back, though not
# all; the ratios as they are cannot be told from no weights. Try `mini.kept` as well, and a lag of 4. Lesson
# 16 does the same with a language model and a real engine, by the library's trainer.

# %% [markdown]
# ## Check yourself
#
# **1. You double the staleness. By how much does KL(q‖p) grow?**
#
# <details><summary>It doubles.</summary>If noise dominates the updates, yes. If they all point the same way, it is four
# times.</details>
# <details><summary>Between two and four times, if the training itself stays the same.</summary>Yes. And it does not
# quite stay the same: an older batch teaches less, or moves the policy less.</details>
# <details><summary>It stays: the engine's rounding dominates.</summary>No. Rounding left 5e-5 in these runs, one update
# 0.1.</details>
#
# **2. A run is asynchronous, with staleness 2, and its reward is lower than that of a synchronous run with staleness 0.
# What was it?**
#
# <details><summary>The thread: races make training unstable.</summary>No. With lags fixed by the step, a thread changes
# nothing, to the last bit.</details>
# <details><summary>The staleness. Compare it with a synchronous run of staleness 2.</summary>Yes. Only then does one
# thing differ.</details>
# <details><summary>Chance: one run each.</summary>It may be that as well. Ask for seeds before you ask for
# reasons.</details>
#
# **3. In a batch of several versions, what do you divide an answer's probability by?**
#
# <details><summary>By that of the newest version; it is closest to the trainer.</summary>No. It is the quietest weight,
# and the wrong average: the mean ratio leaves 1.</details>
# <details><summary>By the probability that it was drawn with, in its own version.</summary>Yes. Or, as it is a whole
# answer, by the mixture of all versions, which is never noisier, but needs a score from each. Token by token only the
# own version is right.</details>
# <details><summary>By the average of the log-probs of all versions.</summary>No. A batch of several versions is a
# mixture of probabilities, not of logarithms.</details>
#
# ## In the app
#
# Start it with `make app`:
#
# - [the study](http://localhost:8501/training?part=Study&study=stale_8): its verdict, and the curves of a
#   few corrections;
# - [stale_4](http://localhost:8501/mismatch?run=stale_4&step=20) and
#   [async](http://localhost:8501/mismatch?run=async&step=20), whose views name the lag;
# - [the clip around q on stale_4](http://localhost:8501/bench?run=stale_4&step=20&preset=bypass_ppo_clip) and, beside
#   it, [three policies](http://localhost:8501/bench?run=stale_4&step=20&preset=decoupled_token_is).
#
# ## Pitfalls
#
# - **Units.** A staleness of 4 is four updates in one system, four batches in another; with several optimiser steps per
#   batch these differ.
# - **Which log-prob.** If the engine's log-probs are thrown away and recomputed by a newer version, the recorded $q$ is
#   not the one that wrote, and the ratio hides the lag.
# - **The start.** The first steps of a stale run are fresher than the rest. A trial of five steps does not show what a
#   staleness of eight does.
# - **Steps are not updates.** Two epochs over a batch in four minibatches are eight optimiser steps. The law is about
#   what they add up to.
# - **Old and surer.** A stale run's k3 falls when its policy becomes sure. That is no proof that it is well.
#
# ## References
#
# 1. Jacob Hilton, Karl Cobbe, John Schulman, [Batch size-invariance for policy
#    optimization](https://arxiv.org/abs/2110.00641), 2021: one policy that wrote, one that fences; decoupled PPO.
# 2. [Stable Asynchrony: VCPO](https://arxiv.org/abs/2602.17616), 2026: training 128 steps off-policy; the
#    effective sample size tells a collapse in advance.
# 3. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: fresh data
#    need weights, old data need clipping as well.
