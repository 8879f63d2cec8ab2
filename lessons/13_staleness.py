# %% [markdown]
# # 13 · Staleness and asynchronous training
#
# **Claim.** A policy that is some updates old differs by whole probabilities; what that costs depends on its age and on
# the correction, not on whether the engine ran in a thread.
#
# *45 minutes · advanced · any laptop; no GPU, no network.* You need lesson 00; from lesson 03, that older weights leave
# no mark but their size; from lesson 04, three policies and clipping. Letters: [Notation](NOTATION.md).
#
# ![three policies in time](diagrams/policies.svg)
#
# The engine draws with $q$. Here $q$ is older than $p$ by $h$ updates, the **lag**. At the end you can
#
# - say how far a policy moves in $h$ updates, and when that grows like $h$ and when like $h^2$;
# - tell the age of a batch from its recorded versions, and weigh a batch that several versions wrote;
# - explain why asynchronous and synchronous runs of the same staleness are the same numbers, and when they are not;
# - write a training step, break the training with old weights, and heal it.

# %% tags=["hide-input"]
import itertools
import math
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean, stdev

import count_on
import mini
import sympy
import torch
from curves import curves
from exercises.lesson_13 import MIXTURE, POWER, UPDATE, VERSION_OF, course
from scipy import stats
from sentences import above, below, bracketed, say, untold
from show import picture, show

from rlcorr import correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.study import differences
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.losses.objective import score_coefficients
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import updated_batch
from rlcorr.records.study import end_rewards, read_study
from rlcorr.records.study_comparisons import against_nothing
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)


def over_seeds(values, level=0.05):
    """The mean over the seeds with its interval, by Student's t."""
    half = float(stats.t.ppf(1 - level / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


# %% [markdown]
# ## By hand: one update after the other
#
# Every update gives a new **version** of the policy. To write answers takes long, so large systems let the engine write
# with version 10 while the trainer is at version 14: the lag is 4. A system's **staleness** is the largest lag that it
# allows.
#
# Take the tokens X, Y, Z with probabilities ½, ¼, ¼. An update adds 0.1 to the logit of X. After $h$ updates that logit
# is $0.1\,h$ higher. How far is the old policy from the new one, as KL(q‖p)?

# %%
logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
step_up = torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64)


def kl(old, new):
    """KL(q‖p) of the version that wrote and the one that scores, from their logits."""
    log_q, log_p = old.log_softmax(-1), new.log_softmax(-1)
    return float((log_q.exp() * k3(log_p - log_q)).sum())


steady = [kl(logits, logits + lag * step_up) for lag in (1, 2, 4, 8)]
show("lag", 1, 2, 4, 8)
show("KL, the same step every time", steady)
show("over that of lag 1", [x / steady[0] for x in steady], digits=1)

# %% [markdown]
# By hand: twice the lag is nearly four times the divergence. Now every update throws a coin for each logit, and adds or
# takes off 0.1. With three logits and $h$ updates there are $8^h$ cases, and the average over all of them is exact.

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
# By hand: twice the lag is now twice the divergence.
#
# ## How far a policy moves
#
# Let $h$ updates add $\delta_a$ to the logit of token $a$. For small $\delta$
#
# $$ \mathrm{KL}(q\|p) = \tfrac12 \operatorname{Var}_q(\delta) + O(\delta^3) . $$
#
# Let each update be a **drift** $v$, always the same, plus **noise** $\xi_i$, independent from update to update and 0
# on average. Then $\delta = h v + \sum_i \xi_i$. In the average of the square all mixed terms vanish, and
#
# $$ \mathbb{E}[\mathrm{KL}] \approx h^2 \cdot \tfrac12 \operatorname{Var}_q(v) + h \cdot \tfrac12\, \mathbb{E}
# [\operatorname{Var}_q(\xi)] . $$
#
# Drift adds up like $h^2$, noise like $h$, and the **power** of $h$ with which the divergence grows lies between the
# two, as long as the updates do not depend on the lag. (The appendix proves it, and trains a toy until the line bends.)
#
# ## Predict, then reveal
#
# The study `stale_8` trains a language model with a staleness of eight. Before a training starts there is only version
# 0, so its first nine batches are all written by version 0, and each is scored by a version one update newer: every lag
# from nought to eight occurs once. The metric k3 estimates KL(q‖p) per token. Three corrections:
#
# - `disabled`: no weights;
# - `decoupled_token_is`: $p/q$ of the token, capped, is a weight; PPO clips $\pi/p$;
# - `bypass_ppo_clip`: two policies only; PPO clips $\pi/q$ itself.
#
# **Write down a guess:** with which power of the lag does k3 grow without a correction? And does a clip around $q$
# change that? **Look for** the slopes of the lines.

# %% tags=["hide-input"]
rows, _ = read_study("stale_8")
SEEDS = sorted({row["seed"] for row in rows})
LAGS = range(1, 9)


def first_lags(name, seed):
    """k3 at the lags 1 … 8 of one training of the study."""
    at = {row["step"]: row["k3"] for row in rows if row["preset"] == name and row["seed"] == seed}
    return [at[lag + 1] for lag in LAGS]


NAMES = ("disabled", "decoupled_token_is", "bypass_ppo_clip")
first = {name: [first_lags(name, seed) for seed in SEEDS] for name in NAMES}
means = {name: [fmean(of_lag) for of_lag in zip(*grown, strict=True)] for name, grown in first.items()}
bands = {name: ([*map(min, *grown)], [*map(max, *grown)]) for name, grown in first.items()}
picture(curves(list(LAGS), means, x_name="lag, updates", y_name="k3 of a token", log="xy", bands=bands))

# %% tags=["hide-input"]
power_of = {
    name: over_seeds([math.log(grown[7] / grown[0]) / math.log(8) for grown in of_seeds])
    for name, of_seeds in first.items()
}
fenced = over_seeds([math.log(a[7] / b[7]) for a, b in zip(first["bypass_ppo_clip"], first["disabled"], strict=True)])
shrunk = Interval(*(math.exp(x) for x in (fenced.value, fenced.low, fenced.high)))
above(power_of["disabled"], 1)
say(f"""
The bands reach from the lowest to the highest of {len(SEEDS)} seeds; on these axes $h$ is a line of slope 1 and $h^2$
one of slope 2.

1. Without a correction the power is {below(power_of["disabled"], 2)}: nearer to that of noise, 1, than to that
   of drift, 2. At lag 8 k3 is {means["disabled"][7] / means["disabled"][0]:.0f} times what it is at lag 1, not 64
   times. It looks as if most of an update were noise. (Not more than that: a drift whose steps become smaller looks
   the same.)
2. A clip around $q$ is a fence around version 0. A token whose ratio has left the fence, on the side to which its
   advantage pushes, gets no gradient. At lag 8 k3 is {below(shrunk, 1)} times that without a correction, and three
   seeds do not tell whether it still grows: its power is {untold(power_of["bypass_ppo_clip"], 0)}.

Token weights change the power little, if at all: {untold(power_of["decoupled_token_is"], 1)}.
""")

# %% [markdown]
# ## Two ratios or one
#
# Write $\rho = \pi/p$ for the ratio of the update, so that $\pi/q = r\rho$. Per token, with the clip's minimum,
#
# $$ \text{coupled: } \min\big(r\rho\, A,\; \operatorname{clip}(r\rho)\, A\big) \qquad
# \text{decoupled: } \min(r, C)\cdot \min\big(\rho\, A,\; \operatorname{clip}(\rho)\, A\big) . $$
#
# At the start of an update $\rho = 1$. Decoupled, every token has a gradient. Coupled, a token with $r > 1 +
# \varepsilon$ and $A > 0$, or $r < 1 - \varepsilon$ and $A < 0$, has none, before anything was learnt from it. How many
# tokens is that, on recorded steps?


# %% tags=["hide-input"]
def share_of(x, mask):
    """The share of true tokens, and its error by answers, whose tokens are not independent."""
    tokens, totals = mask.sum(-1), (x & mask).sum(-1)
    share, n = float(totals.sum() / tokens.sum()), len(tokens)
    return share, float((totals - share * tokens).double().square().sum().sqrt() / tokens.sum()) * (n / (n - 1)) ** 0.5


show("tokens without a gradient at the start", "coupled", "error", "decoupled")
shares = {}
for name, step in (("bf16", 400), ("async", 20), ("async", 40), ("stale_4", 20), ("stale_4", 40)):
    batch, of_both = updated_batch(runs.find_run(name), step), []
    for chosen in (preset("bypass_ppo_clip"), preset("decoupled_token_is")):
        result = correct(batch, chosen)
        c = score_coefficients(batch.tensors()["old_log_probs"], batch, result, chosen, LossConfig())
        of_both.append(share_of(c == 0, batch.response_mask & (batch.advantages != 0)))
    shares[name, step] = of_both[0]
    show(f"{name}, step {step}", *of_both[0], of_both[1][0])
    assert of_both[1][0] == 0

# %% tags=["hide-input"]
(most, of_most), (later, of_later) = shares["stale_4", 20], shares["stale_4", 40]
half = 1.96 * (of_most**2 + of_later**2) ** 0.5
above(Interval(most - later, most - later - half, most - later + half))
say(f"""
With a fence around $q$ next to no token loses its gradient where the weights are of the same step. Where they are
four updates old, {most:.0%} of the tokens do in the middle of the training, and fewer at its end: {later:.0%}. So a
fence costs gradient, and without one the policy may run away from what it was sampled with. (Each number is one step
of one training.)
""")

# %% [markdown]
# ## Several versions in one batch
#
# A system that takes answers as they are finished trains on batches that several versions wrote. Each recorded row
# holds its version. Every token is divided by the log-prob of **its own** version. Three recorded steps of different
# lag, put together:

# %% tags=["hide-input"]
show("batch", "lag", "mean |d|", "mean r", "error")
together = []
for name in ("control_fp32", "async", "stale_4"):
    batch = runs.read_step(runs.find_run(name), 20).batch
    pair = batch.tensors()
    d = (pair["old_log_probs"].double() - pair["rollout_log_probs"].double())[batch.response_mask]
    lag = 19 - int(pair["policy_versions"].unique())
    together.append((name, lag, d))
together.append(("all three", "0, 2, 4", torch.cat([d for _, _, d in together])))
for name, lag, d in together:
    r = ratio(d)
    error = float(r.std()) / len(r) ** 0.5
    show(name, lag, d.abs().mean(), r.mean(), error)
    assert abs(float(r.mean()) - 1) < 3 * error

# %% [markdown]
# At every lag the mean ratio is 1, up to chance, and so it is in the mixture. One may also divide a **whole answer** by
# the mixture, as if the batch came from one policy that first throws a die. Let a share $\alpha_j$ of the answers come
# from version $q_j$; with $p$ and $q$ the probabilities of an answer,
#
# $$ w_{\text{own}} = \frac{p}{q_j}, \qquad w_{\text{mix}} = \frac{p}{\sum_i \alpha_i q_i} . $$
#
# Both are right on average, and the mixture is never noisier (appendix). But it needs every answer scored by every
# version, and **token by token the same formula is wrong**:
#
# ### By hand: two versions, two tokens
#
# Two versions write half of the answers each. The first begins with X in 9 of 10 answers, and goes on with Y
# in 8 of 10; the second begins with X in 1 of 10, and goes on with Y in 2 of 10. The trainer goes on with Y in 8 of 10.
#
# | after X | Y | Z | mean ratio |
# |---|---|---|---|
# | the batch, 9 of whose 10 answers are by version one | 0.9 · 0.8 + 0.1 · 0.2 = 0.74 | 0.26 | |
# | ratio with shares ½ and ½, $q$ = ½ · 0.8 + ½ · 0.2 = 0.5 | 0.8/0.5 = 1.6 | 0.2/0.5 = 0.4 | 1.29 |
# | ratio with shares 0.9 and 0.1 | 0.8/0.74 = 1.08 | 0.2/0.26 = 0.77 | 1 |
#
# What is written already tells something about its version: after X its share is 0.9, no longer $\alpha_j$. Nor is it
# right to divide all answers by the newest version.
#
# ## Asynchronous training
#
# **Synchronous**, the engine and the trainer take turns. **Asynchronous**, the engine writes in a thread of its own, or
# on machines of its own, while the trainer trains. That is not another algorithm by itself. The numbers of a training
# depend on which version writes which batch, and on the random numbers. Here both belong to the **step**, not to the
# clock: with a staleness of $n$, step $s$ is written by version $\max(s - 1 - n, 0)$, with the seed of step $s$.
#
# `stale_4` took turns, with a staleness of four; `async` had an engine in a thread, and a staleness of two. In the
# first three steps of both the lag is one less than the step; then they part.

# %% tags=["hide-input"]
rows_of = {name: runs.read_metrics(runs.find_run(name)) for name in ("stale_4", "async")}
equal = []
for turns, thread in itertools.islice(zip(*rows_of.values(), strict=True), 5):
    measured = [key for key in turns if not key.startswith(("timing/", "elapsed"))]
    equal.append(sum(turns[key] == thread[key] for key in measured))
    show(f"step {len(equal)}: equal numbers", equal[-1], "of", len(measured))
assert equal[:3] == [len(measured)] * 3
assert max(equal[3:]) < len(measured)
say(f"""
All {len(measured)} numbers of a step are equal, rewards, gradient norms and divergences, to the last digit that is
stored, as long as the lags are. The thread changes nothing.
""")

# %% [markdown]
# With **whatever version is newest** the lag depends on speeds, and the same program gives other numbers tomorrow. That
# is not wrong, as long as every token's log-prob is that of the version that drew it, but it cannot be repeated. The
# largest lag that systems allow by default:
#
# | system | largest lag | counted in |
# |---|---|---|
# | [AReaL](https://github.com/areal-project/AReaL), `max_head_offpolicyness` | 0 | versions |
# | [torchtitan](https://github.com/pytorch/torchtitan), `max_offpolicy_steps` | 3 | steps |
# | [TRL](https://github.com/huggingface/trl)'s asynchronous GRPO, `max_staleness` | 4 | batches |
# | [SkyRL](https://github.com/NovaSky-AI/SkyRL), `max_staleness_steps` | 4 | steps |
# | [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl), `max_off_policy_steps` | 8 | steps |
# | [open-instruct](https://github.com/allenai/open-instruct), `async_steps` | 8 | batches |
#
# ## What a staleness of eight costs
#
# `decide_stale` trains on six seeds with weights that are eight updates old: with a cap on the weights; with rules
# whose bounds follow every batch so that they keep the share of the tokens in their name; and leaving as many out by
# chance (`random`). The reward is the mean over the last quarter of the steps. **Look for** green: surely more reward
# than without a correction. The intervals are simultaneous: with a chance of 95 % all of the study hold at once.

# %% tags=["hide-input"]
decided = against_nothing(read_study("decide_stale")[0])
SHOWN = ("product_cap", "token_cap", "geometric_negative_50", "random_negative_50", "geometric_80", "product_band_80")
SHOWN += ("token_band_80", "random_token_80", "random_sequence_80")
picture(differences([pair for pair in decided if pair.arm in SHOWN]))

# %% tags=["hide-input"]
more = {pair.arm: pair.difference for pair in decided}
assert {arm for arm, difference in more.items() if difference.low > 0} == {
    "product_cap", "token_cap", "geometric_negative_50"}  # fmt: skip
assert not [arm for arm, difference in more.items() if difference.high < 0]
both_sides = [arm for arm in more if arm.rstrip("0589").rstrip("_") in ("geometric", "product_band", "token_band")]
assert len([untold(more[arm]) for arm in both_sides]) == 9
fresh, old, six = (end_rewards(read_study(name)[0]) for name in ("stale_0", "stale_8", "decide_stale"))
on_fresh = fresh["disabled"]
lost = over_seeds([on_fresh[seed] - old["disabled"][seed] for seed in SEEDS])
short = over_seeds([on_fresh[seed] - six["product_cap"][seed] for seed in SEEDS])
say(f"""
- **Old weights break this training.** On {len(SEEDS)} seeds the same training with weights of its own step earns
  {above(lost)} more.
- **Caps heal most of it**: on the product of the ratios {above(more["product_cap"])} more than without a correction, on
  those of the tokens {above(more["token_cap"])}. The better one still earns {above(short)} less than a training whose
  weights are not old, on the {len(SEEDS)} seeds that both have.
- **Rules that reject on both sides are not told from no correction**, at any share that was tried. The rule that leaves
  out only answers with a negative advantage is: {above(more["geometric_negative_50"])}.

It is one task, one learning rate, and sixty steps.
""")

# %% [markdown]
# ## Exercise 1: who wrote this batch?
#
# *4 minutes.* Versions are counted from 0, before the first update; step $s$ is scored by version $s - 1$. Return the
# version that writes the batch of `step`, under this `staleness`, if the engine always writes as early as it may.
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
# <details><summary>Hint 1</summary>If KL = c·hᵃ, then log KL = log c + a log h.</details>
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
# ## Exercise 3: whole answers against the mixture
#
# *6 minutes.* A batch was written by several versions. For each **whole answer** you know its probability in the
# trainer, `p` `(N,)`, in every version, `q` `(versions, N)`, and which share of the answers each version wrote,
# `shares` `(versions,)`. Return the weights against the mixture, `(N,)`.
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
# with an engine that is `lag` updates old, here sixteen. Learning rate and lag were chosen on seeds 0 to 4; the next
# cells use five others. **Guess first:** what is left of the reward without weights, with the ratios as they are, and
# with ratios up to a cap?

# %%
CAP, LAG, STEPS, NEW_SEEDS = 2.0, 16, 100, range(10, 15)
WAYS = {
    "no weights": lambda trainer, engine, mask: mask.double(),
    "ratios": mini.ratios,
    "capped ratios": lambda trainer, engine, mask: mini.truncated(trainer, engine, mask, None, CAP),
}


def trained(name, lag):
    """The rewards of every step, (seeds, steps)."""
    return torch.tensor([mini.train(WAYS[name], lag, STEPS, seed) for seed in NEW_SEEDS], dtype=torch.float64)


trainings = {"fresh engine": trained("no weights", 0), "no weights": trained("no weights", LAG)}

# %% [markdown]
# **Look for** the fresh engine, which has learnt before the others begin to climb, and for the one line that leaves the
# other two.

# %%
trainings |= {name: trained(name, LAG) for name in ("ratios", "capped ratios")}
middle = list(range(3, STEPS - 1, 5))  # of five steps
lines = {name: of_seeds.mean(0).view(-1, 5).mean(1).tolist() for name, of_seeds in trainings.items()}
picture(curves(middle, lines, x_name="step", y_name="reward, mean of five seeds"))

# %% tags=["hide-input"]
ends = {name: of_seeds[:, -25:].mean(1) for name, of_seeds in trainings.items()}  # the last quarter of the steps
PAIRS = [("fresh engine", "no weights"), ("capped ratios", "no weights"), ("ratios", "no weights"),
         ("fresh engine", "capped ratios")]  # fmt: skip
gaps = {pair: over_seeds((ends[pair[0]] - ends[pair[1]]).tolist(), level=0.05 / len(PAIRS)) for pair in PAIRS}
say(f"""
The reward of the last quarter, and differences on the same seeds, whose intervals hold together:

- a fresh engine ends at {ends["fresh engine"].mean():.2f}, old answers without weights at
  {ends["no weights"].mean():.2f}: the lag costs {above(gaps["fresh engine", "no weights"])};
- ratios up to {CAP:g} win back {above(gaps["capped ratios", "no weights"])}, and still miss
  {above(gaps["fresh engine", "capped ratios"])};
- ratios as they are cannot be told from no weights: {untold(gaps["ratios", "no weights"])}.
""")

# %% [markdown]
# Try `mini.kept` as well, and a lag of 4. In lesson 16 the same functions train a language model, on what vLLM draws.
#
# ## Check yourself
#
# **1. You double the staleness. By how much does KL(q‖p) grow?**
#
# <details><summary>It doubles.</summary>If noise dominates the updates, yes. If they all point the same way, it is four
# times.</details>
# <details><summary>Between two and four times, if the training itself stays the same.</summary>Yes. And it does not
# quite stay the same: an older batch teaches less, or moves the policy less.</details>
# <details><summary>It stays: the engine's rounding dominates.</summary>No. Rounding left a k3 below 0.001 in these
# runs, one update about 0.1.</details>
#
# **2. A run is asynchronous, with staleness 2, and its reward is lower than that of a synchronous run with staleness 0.
# What was it?**
#
# <details><summary>The thread: races make training unstable.</summary>No. With lags fixed by the step, a thread changes
# nothing, to the last bit.</details>
# <details><summary>It cannot be said yet. Compare with a synchronous run of staleness 2, on several seeds.</summary>
# Yes. Then one thing differs, and chance has an interval.</details>
# <details><summary>The staleness.</summary>Perhaps. Two things differ, and one run each may differ by chance.</details>
#
# **3. In a batch of several versions, what do you divide a token's probability by?**
#
# <details><summary>By that of the newest version; it is closest to the trainer.</summary>No. It is the quietest weight,
# and the wrong average: the mean ratio leaves 1.</details>
# <details><summary>By the probability that it was drawn with, in its own version.</summary>Yes. For a whole answer the
# mixture of all versions would do as well; token by token it would not.</details>
# <details><summary>By the mixture of all versions, with their shares of the batch.</summary>No. What stands before the
# token tells something about its version, and the shares change with it.</details>
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
# - **Units.** A staleness of four is four updates in one system, four batches in another; with several optimiser steps
#   per batch these differ.
# - **Which log-prob.** If the engine's log-probs are thrown away and recomputed by a newer version, the recorded $q$ is
#   not the one that wrote, and the ratio hides the lag.
# - **The start.** The first steps of a stale run are fresher than the rest. A trial of five steps does not show what a
#   staleness of eight does.
# - **Old and surer.** A stale run's k3 falls when its policy becomes sure. That is no proof that it is well, and two
#   runs whose rewards differ must not be compared by it.
#
# ## References
#
# 1. Jacob Hilton, Karl Cobbe, John Schulman, [Batch size-invariance for policy
#    optimization](https://arxiv.org/abs/2110.00641), 2021: one policy that wrote, one that fences; decoupled PPO.
# 2. [Stable Asynchrony: VCPO](https://arxiv.org/abs/2602.17616), 2026: training 128 steps off-policy; the
#    effective sample size tells a collapse in advance.
# 3. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: fresh data
#    need weights, old data need clipping as well.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks: the law of drift and noise, the bias of a clip around $q$, mixtures of versions, and a
# thread in a world whose averages are exact sums.
#
# ### The law, with symbols

# %% tags=["hide-input"]
w = sympy.symbols("w_X w_Y w_Z", positive=True)
delta, t = sympy.symbols("d_X d_Y d_Z"), sympy.symbols("t")
q_sym = [x / sum(w) for x in w]
moved = [x * sympy.exp(t * e) for x, e in zip(w, delta, strict=True)]
p_sym = [x / sum(moved) for x in moved]


def half_variance(shift):
    """Of the shifts of the logits, under q."""
    mean = sympy.Add(*(q_a * e for q_a, e in zip(q_sym, shift, strict=True)))
    return sympy.Add(*(q_a * (e - mean) ** 2 / 2 for q_a, e in zip(q_sym, shift, strict=True)))


divergence = sympy.Add(*(q_a * sympy.log(q_a / p_a) for q_a, p_a in zip(q_sym, p_sym, strict=True)))
assert sympy.simplify(sympy.diff(divergence, t).subs(t, 0)) == 0
assert sympy.simplify(sympy.diff(divergence, t, 2).subs(t, 0) - 2 * half_variance(delta)) == 0

# two updates, each the drift plus one of eight coins: the average over all 64 cases
v, size = sympy.symbols("v_X v_Y v_Z"), sympy.symbols("s", positive=True)
tosses = list(itertools.product((size, -size), repeat=3))
one = sympy.Add(*(half_variance(x) for x in tosses)) / 8
pairs = itertools.product(tosses, repeat=2)
two = sympy.Add(*(half_variance([2 * c + a + b for a, b, c in zip(x, y, v, strict=True)]) for x, y in pairs)) / 64
assert sympy.simplify(two - (4 * half_variance(v) + 2 * one)) == 0

show("KL = ½ Var(δ) + higher terms", "proved")
show("two updates: 4 of the drift, 2 of the noise", "proved")

# %% [markdown]
# ### A training small enough to enumerate
#
# `rlcorr.gradients.toy` knows all answers of at most four tokens over four, so the divergence between two versions is
# an exact sum. It is trained with the policy gradient on a few sampled answers per update, whose rewards a judge gives
# with a random error. The
# drift is the exact gradient, the noise is what sampling adds to it. So both can be computed **before** anything is
# trained, and with them the lag $h^*$ at which they are equal.

# %% tags=["hide-input"]
where, start = toy.world(4, 4), toy.random_policy(toy.world(4, 4), 13)
generator = torch.Generator().manual_seed(13)
rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
JUDGE = 4.0  # the standard deviation of the judge's error


def toy_update(theta, answers, rate):
    """The next version, after a policy gradient of so many sampled answers; None takes all, by their probability."""
    probability, leaf = toy.probabilities(where, theta), theta.clone().requires_grad_()
    log_prob, advantages = toy.log_probs(where, leaf).sum(-1), rewards - (probability * rewards).sum()
    if answers is None:
        return theta + rate * toy.gradient_of((probability * advantages * log_prob).sum(), leaf)
    drawn = torch.multinomial(probability, answers, replacement=True, generator=generator)
    judged = advantages[drawn] + JUDGE * torch.randn(answers, dtype=torch.float64, generator=generator)
    return theta + rate * toy.gradient_of((judged * log_prob[drawn]).mean(), leaf)


def versions_of(answers, updates, rate):
    """Versions 0 … `updates`."""
    weights = [start]
    for _ in range(updates):
        weights.append(toy_update(weights[-1], answers, rate))
    return weights


# %% tags=["hide-input"]
# the gradient that each single answer would give, (answers, states, tokens)
table, visited, chance = start.softmax(-1), toy.visits(where, start), toy.probabilities(where, start)
scores = torch.zeros(len(where.tokens), *start.shape, dtype=torch.float64)
for n, (tokens, states, real) in enumerate(zip(where.tokens, where.states, where.mask, strict=True)):
    scores[n, states[real]] -= table[states[real]]
    scores[n, states[real], tokens[real]] += 1
pushes = (rewards - (chance * rewards).sum())[:, None, None] * scores


def half_variance_of(shift):
    """Over the states that are visited."""
    mean = (table * shift).sum(-1, keepdim=True)
    return 0.5 * (visited * (table * (shift - mean).square()).sum(-1)).sum(-1)


RATE, TOY_LAGS, ANSWERS, TRAININGS = 0.02, [1, 2, 4, 8, 16], 8, 250
drift = float(half_variance_of((chance[:, None, None] * pushes).sum(0)))
noise = float((chance * (half_variance_of(pushes) + JUDGE**2 * half_variance_of(scores))).sum() - drift) / ANSWERS
straight = [RATE**2 * lag**2 * drift for lag in TOY_LAGS]
predicted = [RATE**2 * (lag**2 * drift + lag * noise) for lag in TOY_LAGS]

exactly = versions_of(None, TOY_LAGS[-1], RATE)
without_noise = [float(toy.kl(where, start, exactly[lag])) for lag in TOY_LAGS]
all_runs = (versions_of(ANSWERS, TOY_LAGS[-1], RATE) for _ in range(TRAININGS))
kl_of = torch.tensor([[float(toy.kl(where, start, run[lag])) for lag in TOY_LAGS] for run in all_runs]).double()
mean, error = kl_of.mean(0), kl_of.std(0) / TRAININGS**0.5
for a, b in zip(without_noise, straight, strict=True):
    assert abs(a / b - 1) < 0.1
for m, e, x in zip(mean.tolist(), error.tolist(), predicted, strict=True):
    assert abs(m - x) < 3 * e + 0.1 * x  # 10 % for the higher terms, as without noise
show("KL · 10⁵, all answers: predicted", [1e5 * x for x in straight], digits=2)
show("trained", [1e5 * x for x in without_noise], digits=2)
show("KL · 10⁵, eight answers: predicted", [1e5 * x for x in predicted], digits=2)
show("trained, mean of all trainings", 1e5 * mean, digits=2)
show("standard error", 1e5 * error, digits=2)

# %% [markdown]
# **Look for** the slopes: with all answers that of $h^2$ from the start; with eight answers and an uncertain judge the
# line bends at $h^*$, which is dotted.

# %% tags=["hide-input"]
lines = {"all answers": without_noise, "eight answers": mean.tolist(), "eight answers, predicted": predicted}
picture(curves(TOY_LAGS, lines, x_name="lag, updates", y_name="KL(q‖p)", log="xy", marks=[noise / drift]))

# %% [markdown]
# ### What the clip around q does to the gradient
#
# In the same toy, the length of the difference between the expected gradient and the policy gradient, over the length
# of the latter: a relative bias of 1 is what a gradient of 0 would have. Ten trainings at a high learning rate.

# %% tags=["hide-input"]
METHODS = ("disabled", "decoupled_token_is", "decoupled_seq_is", "bypass_ppo_clip")
toy_trainings, biases = [versions_of(64, 16, 1.0) for _ in range(10)], {}
show("lag", "none", "token", "sequence", "clip at q")
for lag in (0, 1, 2, 4, 8):
    for run in toy_trainings:
        policies = toy.Policies(rollout=run[16 - lag], old=run[16], theta=run[16])
        judged = rewards - (toy.probabilities(where, run[16]) * rewards).sum()
        of_run = [toy.gradient_truth(where, policies, judged, preset(name)).relative_bias for name in METHODS]
        biases.setdefault(lag, []).append(of_run)
    show(f"{lag}: relative bias, mean of all trainings", torch.tensor(biases[lag]).mean(0), digits=3)
assert max(map(max, biases[0])) < 1e-12
none, token, sequence, clip = (list(column) for column in zip(*biases[8], strict=True))
healed = over_seeds([a - b for a, b in zip(none, token, strict=True)])
of_clip = over_seeds([a - b for a, b in zip(clip, none, strict=True)])
say(f"""
At lag 8 token weights take away {above(healed)} of the bias of no weights. They correct each token, but not how often
the text before it is written. Weights on the product leave {bracketed(over_seeds(sequence))}, in answers of four
tokens; in long ones they are noisy, or cut by their cap. The clip around $q$ is not told from no weights:
{untold(of_clip)}. It fences off the tokens that the last updates moved, which are those that the gradient is about.
""")

# %% [markdown]
# ### Mixtures of versions
#
# For an answer of one token, or for whole answers as symbols: the own version and the mixture are right on average, the
# newest version is not, and the mixture is never noisier.

# %% tags=["hide-input"]
P, F = sympy.symbols("p_X p_Y p_Z", positive=True), sympy.symbols("f_X f_Y f_Z")
OLD, NEW = sympy.symbols("a_X a_Y a_Z", positive=True), sympy.symbols("b_X b_Y b_Z", positive=True)
alpha = sympy.symbols("alpha", positive=True)
target = sympy.Add(*(p * f for p, f in zip(P, F, strict=True)))
actions = list(zip(P, F, OLD, NEW, strict=True))
by_version = sympy.Add(*(alpha * a * (p / a) * f + (1 - alpha) * b * (p / b) * f for p, f, a, b in actions))
mixed = sympy.Add(*((alpha * a + (1 - alpha) * b) * p / (alpha * a + (1 - alpha) * b) * f for p, f, a, b in actions))
newest = sympy.Add(*((alpha * a + (1 - alpha) * b) * (p / b) * f for p, f, a, b in actions))
assert sympy.simplify(by_version - target) == 0
assert sympy.simplify(mixed - target) == 0
assert sympy.simplify(newest - target) != 0

# the mean square of the weights, action by action: own less mixture, over p², is a square over positive numbers
_, _, a, b = actions[0]
less = alpha / a + (1 - alpha) / b - 1 / (alpha * a + (1 - alpha) * b)
assert sympy.simplify(less - alpha * (1 - alpha) * (a - b) ** 2 / (a * b * (alpha * a + (1 - alpha) * b))) == 0

# %% [markdown]
# In the toy, half of the answers from the version at the start and half from the last but one. First whole answers;
# then the mean ratio token by token, place by place; and last an answer whose first two tokens are old, because the
# engine took new weights **within** it. That is no problem either, as long as each token's own log-prob is recorded.

# %% tags=["hide-input"]
run, mask = toy_trainings[0], where.mask
trainer, older, newer = (toy.log_probs(where, run[n]) for n in (16, 0, 15))  # (answers, tokens)
p, q_old, q_new = (x.sum(-1).exp() for x in (trainer, older, newer))
half = (q_old + q_new) / 2
show("whole answers", "mean", "variance")
for name, by_old, by_new in (("own", q_old, q_new), ("mixture", half, half), ("newest for all", q_new, q_new)):
    first_moment = float((q_old * p / by_old + q_new * p / by_new).sum() / 2)
    second = float((q_old * (p / by_old).square() + q_new * (p / by_new).square()).sum() / 2)
    show(name, first_moment, second - first_moment**2)
    assert (abs(first_moment - 1) < 1e-12) == (name != "newest for all")

before = [(x.cumsum(-1) - x).exp() for x in (older, newer)]  # of the text before a token
share = before[0] / sum(before)
by_batch, by_text = (older.exp() + newer.exp()) / 2, share * older.exp() + (1 - share) * newer.exp()
at_place = (half[:, None] * mask).sum(0)
show("token by token, at place", 1, 2, 3, 4)
for name, divisor in (("shares of the batch", by_batch), ("shares of the text before", by_text)):
    mean_ratio = (half[:, None] * mask * trainer.exp() / divisor).sum(0) / at_place
    show(f"mean ratio, {name}", mean_ratio, digits=3)
    assert (float((mean_ratio - 1).abs().max()) < 1e-12) == (name != "shares of the batch")

switch = torch.where(torch.arange(mask.shape[1]) < 2, older, newer).sum(-1)
show("new weights within: all answers add up to", switch.exp().sum())
show("mean ratio, each token by its own version", (switch.exp() * p / switch.exp()).sum())
show("mean ratio, all by the newer version", (switch.exp() * p / q_new).sum())
assert abs(float(switch.exp().sum()) - 1) < 1e-12

# %% [markdown]
# ### A thread, and a clock
#
# The toy trained in turns, with an engine in a thread, and with a slow one.


# %% tags=["hide-input"]
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
            for wanted in range(step + len(waiting), min(step + staleness, steps) + 1):
                job = (sampled, theta, wanted, slow)
                waiting.append(engine.submit(*job) if threaded else at_once(*job))
            batch, leaf = waiting.pop(0).result(), theta.clone().requires_grad_()
            log_prob = toy.log_probs(where, leaf).sum(-1)[batch]
            theta = theta + 0.5 * toy.gradient_of((rewards[batch] * log_prob).mean(), leaf)
    return theta


turns = train(3, 12, threaded=False)
same = [torch.equal(turns, train(3, 12, threaded=True, slow=slow)) for slow in (0.0, 0.01)]
fresher = torch.equal(turns, train(2, 12, threaded=False))
show("a thread, a slow thread: the same bits", *same)
show("one update fresher: the same bits", fresher)
assert all(same)
assert not fresher

# %% [markdown]
# By hand one can follow a clock without randomness: the lag of each batch and the seconds at the end, when writing
# takes 3 s, and one batch in four 9 s. By step the lags are the same whatever the trainer takes; by the newest version
# they are not.


# %% tags=["hide-input"]
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
show("staleness, seconds of a training step", "lags", "", "seconds")
for staleness, training in ((0, 2.0), (2, 2.0), (2, 4.0)):
    for rule in ("by step", "newest"):
        of_batches, seconds = clock(writing, training, staleness, newest=rule == "newest")
        show(f"{staleness}, {training:.0f} s, {rule}", "".join(map(str, of_batches)), f"{seconds:.0f}")
by_step, newest = ([clock(writing, s, 2, newest=n)[0] for s in (2.0, 4.0)] for n in (False, True))
assert by_step[0] == by_step[1]
assert newest[0] != newest[1]
