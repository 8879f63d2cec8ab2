# %% [markdown]
# # 12 · Staleness and asynchronous training
#
# **Claim.** Weights that are some updates old change the probabilities of single tokens by large factors, not by
# rounding errors. What this costs depends on the correction. It does not depend on whether the engine runs in a thread
# of its own.
#
# *80 minutes · advanced · any laptop; no GPU, no network.* You need the ratio of lesson 00; from lesson 06, that older
# weights make the gap larger and leave no other mark; from lesson 05, the three policies and PPO's clip. Letters:
# [Notation](NOTATION.md).
#
# ![three policies in time](diagrams/policies.svg)
#
# At the end you can
#
# - say how far a policy moves in $h$ updates, and when this grows like $h$ and when like $h^2$;
# - read the age of a batch from its recorded versions, and weight a batch that several versions wrote;
# - explain why asynchronous and synchronous runs with the same staleness have the same numbers, and when they differ;
# - say where to look for the cost of old weights: in the last weights, not in the rewards of the last steps;
# - if you write `mini.py`: break a training run with old weights, and repair it with a cap.

# %% tags=["hide-input"]
import copy
import itertools
import math
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean, median, stdev

import mini_curve
import sympy
import torch
from count_on import PROMPTS, reward
from curves import curves
from exercises.mini_update import TRAIN, course, update_exercise, versions_used
from exercises.staleness import POWER, VERSION_OF
from mini_pieces import load_mini
from scipy import stats
from sentences import above, below, bracketed, reveal, say, untold
from show import picture, show
from study_ends import contrasts, planned_ends, rows_of

from rlcorr import TokenBatch, correct, preset
from rlcorr.analysis.segments import by_lag, by_turn, without_older
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import REJECTED
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.lab import Experiment
from rlcorr.lab import run as run_lab
from rlcorr.lab.outcome import ending
from rlcorr.losses.objective import score_coefficients
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import updated_batch
from rlcorr.records.study import read_study
from rlcorr.teaching.check import check

torch.set_num_threads(1)


def over_seeds(values, level=0.05):
    """The mean over the seeds with its interval, by Student's t."""
    half = float(stats.t.ppf(1 - level / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 05) Before the first step of an update, which of the ratios $r = p/q$ and $\rho = \pi/p$ is 1 for every
# token?**
#
# <details><summary>Both: nothing has been updated yet.</summary>Only $\rho$. The engine and the trainer may differ
# before any update, so $r$ need not be 1.</details>
# <details><summary>ρ.</summary>Yes. Before its first step $\pi$ is $p$. The ratio $r$ compares the trainer with the
# engine, and this difference is there from the start.</details>
# <details><summary>r.</summary>No. $r$ is 1 only if the engine computes the same probabilities as the trainer. It is
# $\rho$ that begins at 1.</details>
#
# **2. (Lesson 03) You put a cap on the weights of the tokens. What happens to the bias and to the noise of the
# gradient?**
#
# <details><summary>Both fall.</summary>No. The weights without a cap have no bias. A cap adds one, in exchange for less
# noise.</details>
# <details><summary>The noise falls, and a bias appears.</summary>Yes. The cap takes a part of the average away, and it
# limits what a single token can do.</details>
# <details><summary>The bias falls, and the noise grows.</summary>No. That is what you get if you raise the
# cap.</details>
#
# ## By hand: one update after the other
#
# Every update makes a new **version** of the policy. Writing answers takes long. So large systems let the engine write
# with version 10 while the trainer is already at version 14. The engine samples with $q$, and here $q$ is older than
# $p$ by $h$ updates. We call $h$ the **lag**; in the example it is 4. The **staleness** of a system is the largest lag
# that it allows.
#
# Take the tokens X, Y, Z with probabilities ½, ¼, ¼. Suppose that each update adds 0.1 to the logit of X. After $h$
# updates this logit is $0.1\,h$ higher. How far apart are the old and the new policy, measured by $\mathrm{KL}(q\|p)$?
# (The cell uses $k_3 = e^d - 1 - d$ with the log-ratio $d = \log p - \log q$. Over tokens sampled from $q$, its average
# is exactly this KL: the average of $e^d = p/q$ is 1, so only that of $-d$ is left.)

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
show("divided by that of lag 1", [x / steady[0] for x in steady], digits=1)

# %% [markdown]
# By hand: twice the lag gives nearly four times the divergence. All steps point the same way, so the distance doubles,
# and the KL grows with the square of the distance.
#
# Now suppose that each update tosses a coin for each logit, and adds or subtracts 0.1. With three logits and $h$
# updates there are $8^h$ cases. The average over all of them is exact.

# %%
coins = torch.tensor(list(itertools.product((0.1, -0.1), repeat=3)), dtype=torch.float64)  # (8, 3)
walk, sums = [], torch.zeros(1, 3, dtype=torch.float64)
for _ in range(4):
    sums = (sums[:, None] + coins).reshape(-1, 3)  # every case, one update longer
    walk.append(sum(kl(logits, logits + moved) for moved in sums) / len(sums))

show("lag", 1, 2, 3, 4)
show("KL, random steps", walk)
show("divided by that of lag 1", [x / walk[0] for x in walk], digits=2)

# %% [markdown]
# By hand: twice the lag now gives twice the divergence. Random steps cancel each other in part.
#
# ## How far a policy moves
#
# Let $\Delta_a$ be what $h$ updates add to the logit of token $a$. For small $\Delta$
#
# $$ \mathrm{KL}(q\|p) = \tfrac12 \operatorname{Var}_q(\Delta) + O(\Delta^3) , $$
#
# where $\operatorname{Var}_q$ is the variance over tokens sampled from $q$. It is a variance because adding the same
# number to all logits changes no probability: only differences from the mean of $\Delta$ count. ($O(\Delta^3)$ stands
# for terms of the size of $\Delta^3$, which are small compared with the first one.)
#
# Split each update into two parts. The **drift** $\mu$ is the same in every update. The **noise** $\xi_i$ of update $i$
# is 0 on average, and independent from update to update. Then $\Delta = h \mu + \sum_i \xi_i$. The variance is an
# average of squares, so we square this sum. It has $h$ terms $\mu$, which give $h^2 \mu^2$, and $h$ squares $\xi_i^2$.
# Every other product is that of the drift and a noise, or of two different noises. Its average over many training runs
# is 0. So
#
# $$ \mathbb{E}[\mathrm{KL}] \approx h^2 \cdot \tfrac12 \operatorname{Var}_q(\mu) + h \cdot \tfrac12\, \mathbb{E}
# [\operatorname{Var}_q(\xi)] , $$
#
# where $\mathbb{E}$ is this average over training runs. The part of the drift grows like $h^2$, the part of the noise
# like $h$. So the divergence grows with a **power** of $h$ between one and two, as long as the updates themselves do
# not depend on the lag. (The appendix proves this. It also trains a toy, whose line bends from one power to the other.)
#
# ## Predict, then reveal
#
# The study `stale_8` trains a small language model with a staleness of eight. Before the first update there is only
# version 0, so the first nine batches are all written by version 0. The first batch is scored by version 0 itself, the
# second by version 1, and so on. So every lag from zero to eight occurs once. The mean of k3 over the tokens of a batch
# estimates KL(q‖p) per token. There are three corrections:
#
# - `disabled`: no weights, that is, no correction;
# - `decoupled_token_is`: the ratio $p/q$ of the token, up to a cap, is its weight; PPO clips $\pi/p$;
# - `bypass_ppo_clip`: only two policies; PPO clips $\pi/q$ itself.
#
# **Write down a guess:** with which power of the lag does k3 grow without a correction? And does a clip around $q$
# change this? **Look for** the slopes. Both axes are logarithmic, so a power is the slope of a straight line. The
# dotted lines have slope one (noise) and slope two (drift). The bands reach from the lowest to the highest seed.

# %%
rows, _ = read_study("stale_8")
SEEDS = sorted({row["seed"] for row in rows})
LAGS = range(1, 9)


def first_lags(name, seed):
    """k3 at the lags 1 … 8 of one training run of the study."""
    at = {row["step"]: row["k3"] for row in rows if row["preset"] == name and row["seed"] == seed}
    return [at[lag + 1] for lag in LAGS]


NAMES = ("disabled", "decoupled_token_is", "bypass_ppo_clip")
first = {name: [first_lags(name, seed) for seed in SEEDS] for name in NAMES}
means = {name: [fmean(of_lag) for of_lag in zip(*grown, strict=True)] for name, grown in first.items()}
bands = {name: ([*map(min, *grown)], [*map(max, *grown)]) for name, grown in first.items()}

# %% tags=["hide-input"]
drawn = curves(list(LAGS), means, x_name="lag h, updates", y_name="k3 per token", log="xy", bands=bands)
for slope, cause in ((1, "noise"), (2, "drift")):
    dotted = {"x": list(LAGS)[:4], "y": [means["disabled"][0] * lag**slope for lag in LAGS][:4]}
    drawn.add_scatter(**dotted, mode="lines", name=f"slope {slope}: {cause}", line={"color": REJECTED, "dash": "dot"})
picture(drawn)

# %% [markdown]
# The law above assumes small updates of equal size whose noises are independent of each other. The updates of this
# study are not like that. Adam makes four steps per update on the same answers, it averages the gradients of successive
# steps, and its learning rate falls. So we simulate this optimizer, once on gradients that are pure noise, and then on
# gradients whose mean (the drift) is a share of their standard deviation (the noise). Which power would k3 have?


# %% tags=["hide-input"]
def power_of_lag(grown):
    """Return the slope of the straight line through the logarithms, by least squares, as in exercise 2."""
    return float(POWER.expected(torch.tensor(list(LAGS)).double(), torch.tensor(grown).double()))


def power_under_adam(drift, seed, parameters=20_000, updates=8):
    """The power with which the mean square of the moves grows: two passes over a batch, in two halves each."""
    random = torch.Generator().manual_seed(seed)
    mean, square, moved = (torch.zeros(parameters) for _ in range(3))
    squares, steps = [], 0
    for update in range(updates):
        rate = 5e-4 + (3e-5 - 5e-4) * update / 59  # as in the study; 60 steps
        a, b, c, d = torch.randn(4, parameters, generator=random) / 2**0.5  # quarters of the batch
        for noise in (a + b, c + d, a + c, b + d):
            steps += 1
            mean, square = 0.9 * mean + 0.1 * (drift + noise), 0.999 * square + 0.001 * (drift + noise) ** 2
            corrected = mean / (1 - 0.9**steps), square / (1 - 0.999**steps)
            moved = moved - rate * corrected[0] / corrected[1].sqrt()
        squares.append(float(moved.square().mean()))
    return power_of_lag(squares)


simulated = {drift: fmean(power_under_adam(drift, seed) for seed in range(3)) for drift in (0.0, 0.1, 0.3, 1.0)}
show("drift, in units of the noise", *simulated, digits=1)
show("power of the lag", *simulated.values(), digits=2)

# %% tags=["hide-input"]
power_of = {name: over_seeds([power_of_lag(grown) for grown in of_seeds]) for name, of_seeds in first.items()}
fenced = over_seeds([math.log(a[7] / b[7]) for a, b in zip(first["bypass_ppo_clip"], first["disabled"], strict=True)])
shrunk = Interval(*(math.exp(x) for x in (fenced.value, fenced.low, fenced.high)))
above(power_of["disabled"], simulated[0.0])
reveal(f"""
There are {len(SEEDS)} seeds. In this lesson, *significantly* means that the 95 % interval, in brackets, excludes 0 (or
another number that we name).

1. Without a correction the power is {below(power_of["disabled"], simulated[0.3])}. Pure noise under this Adam would
   give {simulated[0.0]:.2f}, and a drift of three tenths of the noise {simulated[0.3]:.2f}. So the updates look like
   mostly noise, with some drift. At lag 8, k3 is {means["disabled"][7] / means["disabled"][0]:.0f} times as large as at
   lag 1; with drift alone it would be 64 times as large. (This is an interpretation, not a proof. After one update k3
   is already {means["disabled"][0]:.2f} nats, so the updates are not small. And a drift whose steps become smaller
   would give a lower power, too.)
2. A clip around $q$ keeps the policy near version 0. A token whose ratio has already left the clip range in the
   direction of its advantage gets no gradient. At lag 8, k3 is {below(shrunk, 1)} times that without a
   correction. Its power is {untold(power_of["bypass_ppo_clip"], 0)}: with three seeds we do not know whether k3 still
   grows.
3. With token weights the power is {untold(power_of["decoupled_token_is"], 1)}. It does not differ significantly from 1.
""")

# %% [markdown]
# ## Two ratios or one
#
# Let $\pi$ be the policy that the update changes, and write $\rho = \pi/p$ for how far it has moved a token. With
# $r = p/q$ we have $\pi/q = r\rho$. PPO multiplies the advantage $A$ of a token once by the ratio, and once by the
# clipped ratio, $\operatorname{clip}(\cdot)$, which is moved into the range from $1 - \varepsilon$ to $1 + \varepsilon$
# if it is outside. Then it takes the smaller one of the two products. **Coupled** methods clip $\pi/q$. **Decoupled**
# methods clip $\pi/p$, and multiply by a weight with the cap $C$:
#
# $$ \text{coupled: } \min\big(r\rho\, A,\; \operatorname{clip}(r\rho)\, A\big) \qquad
# \text{decoupled: } \min(r, C)\cdot \min\big(\rho\, A,\; \operatorname{clip}(\rho)\, A\big) . $$
#
# At the start of an update $\rho = 1$. In the decoupled form every token then has a gradient. In the coupled form a
# token with $r > 1 + \varepsilon$ and $A > 0$ has none, and neither has one with $r < 1 - \varepsilon$ and $A < 0$.
# They lose their gradient before anything was learned from them. How many tokens are these, on recorded steps? (The
# column ± is the standard error of the share before it.)


# %% tags=["hide-input"]
def share_of(x, mask):
    """The share of true tokens, and its standard error by answers, whose tokens are not independent."""
    tokens, totals = mask.sum(-1), (x & mask).sum(-1)
    share, n = float(totals.sum() / tokens.sum()), len(tokens)
    return share, float((totals - share * tokens).double().square().sum().sqrt() / tokens.sum()) * (n / (n - 1)) ** 0.5


show("share without a gradient at the start", "coupled", "±", "decoupled")
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
`bf16` has weights of the same step, `async` weights two updates old, `stale_4` weights four updates old. With a clip
around $q$ hardly any token loses its gradient if the weights are of the same step. With weights four updates old
{most:.0%} of the tokens lose it in the middle of the run, and significantly fewer at its end: {later:.0%}. So a clip
around $q$ costs gradient. Without it, the policy may move far from the one that wrote the answers. (Each number is one
step of one training run.)
""")

# %% [markdown]
# ## Several versions in one batch
#
# Some systems take answers as soon as they are finished. Their batches contain answers of several versions. So each
# recorded row holds its version, and each token is divided by the probability that **its own** version gave it. Here
# are three recorded steps with different lags, and all three put together:

# %% tags=["hide-input"]
show("batch", "lag", "mean |d|", "mean r", "±")
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
# At every lag the mean ratio is 1 within three of its standard errors (the column ±), and so it is in the mixture.
#
# There is another way for **whole answers**. Treat the batch as if one policy had written it, a policy that first rolls
# a die to choose a version. Let a share $\alpha_j$ of the answers come from version $q_j$. Let $p$ and $q$ now be
# probabilities of an answer. Then there are two possible weights:
#
# $$ w_{\text{own}} = \frac{p}{q_j}, \qquad w_{\text{mix}} = \frac{p}{\sum_i \alpha_i q_i} . $$
#
# Both are right on average, and the noise of the mixture is never larger (appendix). But the mixture needs every answer
# scored by every version. And if it is used **token by token, it is wrong**:
#
# ### By hand: two versions, two tokens
#
# Each of two versions writes half of the answers. Version one begins with X in 9 of 10 answers, and goes on with Y in 8
# of 10, otherwise with Z. Version two begins with X in 1 of 10, and goes on with Y in 2 of 10. The trainer goes on with
# Y in 8 of 10, so after X its $p$ is 0.8 for Y and 0.2 for Z.
#
# Which answers begin with X? Half of 9/10 of all answers are by version one and begin with X, and half of 1/10 are by
# version two and begin with X. So of the answers that begin with X, 9 of 10 are by version one. Among them Y comes next
# in 0.9 · 0.8 + 0.1 · 0.2 = 0.74 of the cases, and Z in 0.26.
#
# | after X, divided by a mixture with | ratio of Y | ratio of Z | mean ratio |
# |---|---|---|---|
# | shares ½ and ½: $q$ = ½ · 0.8 + ½ · 0.2 = 0.5 | 0.8/0.5 = 1.6 | 0.2/0.5 = 0.4 | 0.74 · 1.6 + 0.26 · 0.4 = 1.29 |
# | shares 0.9 and 0.1: $q$ = 0.74 and 0.26 | 0.8/0.74 = 1.08 | 0.2/0.26 = 0.77 | 0.8 + 0.2 = 1 |
#
# With the shares of the whole batch the mean ratio is not 1, so these weights are wrong. The reason: the text so far is
# evidence about the version. After X, the share of version one is 0.9 and no longer ½. (The newest version is no
# better; see the appendix.)
#
# ## Several versions in one episode
#
# Episodes of agents (lesson 07) are long, and engines do not wait. In systems that update weights **in flight** the
# engine gets new weights while it writes (`--rollout.in-flight` in this library). Then one row has several versions:
# `policy_versions` is `(B, T)`.
#
# By hand: step 8 is scored by version 7. An episode of six tokens was written by the versions 4, 4, 5, 5, 7, 7. The
# lags of its tokens are 3, 3, 2, 2, 0, 0. If tokens more than 2 updates old are left out, four of six are kept.

# %%
versions, turns = torch.tensor([[4, 4, 5, 5, 7, 7]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
old = torch.tensor([[0.9, 0.2, 0.6, 0.5, 0.7, 0.4]]).log()
rollout = torch.tensor([[0.5, 0.4, 0.5, 0.4, 0.7, 0.4]]).log()
episode = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 6)).replace(policy_versions=versions, turn_ids=turns)
for segment in by_turn(episode):
    show(f"turn {segment.number}: tokens, mean |d|", segment.tokens, segment.abs_log_ratio)
show("kept if at most 2 updates old", [int(x) for x in without_older(episode, step=8, max_lag=2).response_mask[0]])

# the recorded run `in_flight`
for segment in by_lag(runs.read_step(runs.find_run("in_flight"), 6).batch, step=6):
    show(f"in_flight, lag {segment.number}: tokens, k3", segment.tokens, segment.k3)

# %% [markdown]
# In `in_flight` k3 grows with the age. But the oldest tokens are also the first ones of each answer.
#
# The product of all six ratios is still right on average, because every token was divided by the probability with which
# it was drawn (appendix). To leave old tokens out is a rejection like any other (lesson 08): it changes the
# distribution on which the policy is trained. And if whole old **answers** are left out, short answers are preferred,
# because a long answer has more time to become old.
#
# ## Asynchronous training
#
# **Synchronous** means that the engine and the trainer take turns. **Asynchronous** means that the engine writes in a
# thread, or on machines, of its own while the trainer trains. This alone does not make another algorithm. The numbers
# of a training run depend on two things: which version writes which batch, and the random numbers. In this project both
# depend on the **step** and not on the clock. The version that writes a step is the number of the step, minus 1, minus
# the staleness, and at least 0. The random numbers have the seed of the step.
#
# The run `stale_4` took turns, with a staleness of four. The run `async` had an engine in a thread, and a staleness of
# two. In the first three steps of both runs the lag is one less than the step. From step 4 on the lags differ.

# %% tags=["hide-input"]
metrics_of = {name: runs.read_metrics(runs.find_run(name)) for name in ("stale_4", "async")}
equal = []
for turns, thread in itertools.islice(zip(*metrics_of.values(), strict=True), 5):
    measured = [key for key in turns if not key.startswith(("timing/", "elapsed"))]
    equal.append(sum(turns[key] == thread[key] for key in measured))
    show(f"step {len(equal)}: equal numbers", equal[-1], "of", len(measured))
assert equal[:3] == [len(measured)] * 3
assert max(equal[3:]) < len(measured)
say(f"""
As long as the lags are equal, all {len(measured)} numbers of a step are equal to the last stored digit: rewards,
gradient norms and divergences. The thread changes nothing.
""")

# %% [markdown]
# Other systems write with **whatever version is newest**. Then the lag depends on speeds. This is not wrong, as long as
# the recorded log-prob of every token is that of the version that sampled it. But such a run cannot be repeated. The
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
# ### Age times learning rate
#
# The Lab's toy with weights sixteen updates old. **Look for** the learning rate at which the cap changes nothing.

# %%
for rate in (0.005, 0.05):
    reward_of = run_lab(Experiment(lag=16, learning_rate=rate, steps=60, seeds=4), thresholds=(None, 1.0)).reward
    show(f"rate {rate}: no correction, cap of 1", ending(reward_of).mean(-1), digits=2)

# %% [markdown]
# ## What old weights cost
#
# Lesson 08 has the study of a small model whose weights are eight updates old: without a correction it ends below its
# start, and a cap recovers a part of what a fresh control reaches.
#
# [Lesson 04](04_threshold.ipynb) has the planned study of SmolLM2-135M with weights that are six updates old. There the
# accuracy of the last weights shows what old weights cost, and a cap wins back a part of it. The rewards hide it. One
# reason is the lag: the last answers were written by weights that are six updates older, so no reward of that run shows
# what the last updates did to the weights. So evaluate the **last** weights of a stale run.
#
# ## Two parts of one gap
#
# Is a gap made by the engine or by the age of the weights? The trainer can find out. It must keep the weights that
# wrote the answers, and score the answers once more with these weights. Write $p_{\text{sampled}}$ for this third
# probability. It has the weights of the engine and the arithmetic of the trainer. Then
#
# $$ d = \log p - \log q = \underbrace{\log p_{\text{sampled}} - \log q}_{\text{engine's part}}
# + \underbrace{\log p - \log p_{\text{sampled}}}_{\text{part of the age}} . $$
#
# The run `gpu_smol_stale_6` did this (`--rollout.score-sampled`), with the same model and six updates of lag. At step 1
# the weights are not old, and the second part is 0. A logarithmic axis has no place for 0, so the picture begins with
# the next step. **Look for** the line that grows.

# %% tags=["hide-input"]
parted = runs.read_metrics(runs.find_run("gpu_smol_stale_6"))[1:]
parts = {"engine's part": "rollout_corr/engine_k3_kl", "part of the age": "rollout_corr/age_k3_kl"}
lines = {name: [row[key] for row in parted] for name, key in parts.items()}
picture(curves([row["step"] for row in parted], lines, x_name="step", y_name="k3 per token", log="y"))
engine_k3, age_k3 = (of_part[-1] for of_part in lines.values())
say(f"""
The engine's part, which comes from rounding to bfloat16, stays between {min(lines["engine's part"]):.4f} and
{max(lines["engine's part"]):.4f}. At step 24 it is {engine_k3:.4f}. The part of the age has grown to {age_k3:.3f} by
then, about {age_k3 / engine_k3:.0f} times as much. (One training run.) So a finer number format would leave nearly all
of this gap. Fresher weights make it smaller.
""")

# %% [markdown]
# ## Exercise 1: who wrote this batch?
#
# *4 minutes.* Versions are counted from 0, which is the policy before the first update. Step 1 is scored by version 0,
# step 2 by version 1, and so on. The engine always writes a batch as early as the `staleness` allows. Return the
# version that writes the batch of `step`.
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
# *6 minutes.* You get lags and the divergence at each lag, both `(N,)`. Return the power with which the divergence
# grows. It is the slope of the straight line through the logarithms of both, by least squares.
#
# <details><summary>Hint 1</summary>If the divergence is a constant times a power of h, then its logarithm is a straight
# line in log h, and the slope of the line is the power.</details>
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
# ## Check yourself
#
# **1. You double the staleness. By how much does KL(q‖p) grow?**
#
# <details><summary>It doubles.</summary>It does if noise dominates the updates. If they all point the same way, it
# grows to four times its size.</details>
# <details><summary>To between two and four times its size, if the updates themselves stay the same.</summary>Yes. They
# do not stay quite the same: an older batch teaches less, or moves the policy less.</details>
# <details><summary>It stays the same: the rounding of the engine dominates.</summary>No. In the real model of this
# lesson the part of the age was many times as large as the engine's part, after a few updates.</details>
#
# **2. An asynchronous run with staleness 2 has a lower reward than a synchronous run with staleness 0. What is the
# cause?**
#
# <details><summary>The thread: race conditions make the run unstable.</summary>No. If the lags are fixed by the step, a
# thread changes nothing, to the last bit.</details>
# <details><summary>We do not know yet. Compare with a synchronous run of staleness 2, on several seeds.</summary>Yes.
# Then only one thing differs, and the seeds give an interval.</details>
# <details><summary>The staleness.</summary>Perhaps. But two things differ, and two single runs may differ by
# chance.</details>
#
# **3. A batch contains answers of several versions. By what do you divide the trainer's probability of a token?**
#
# <details><summary>By that of the newest version; it is closest to the trainer.</summary>No. This weight has the least
# noise, but the wrong average: the mean ratio is no longer 1.</details>
# <details><summary>By the probability that it was sampled with, in its own version.</summary>Yes. For a whole answer
# the mixture of all versions is right, too. Token by token the mixture is wrong.</details>
# <details><summary>By the mixture of all versions, with their shares of the batch.</summary>No. The text before the
# token tells something about its version, and so the shares are no longer those of the batch.</details>
#
# ## In the app
#
# Start it with `make app`:
#
# - [the study of the last weights](http://localhost:8501/training?part=Study&study=smol_last_weights) and
#   [that of a staleness of eight](http://localhost:8501/training?part=Study&study=stale_8): verdicts and curves;
# - [the two parts of the gap](http://localhost:8501/mismatch?run=gpu_smol_stale_6&step=24) of the real model;
# - [age and learning rate](http://localhost:8501/lab?lag=16) in the Lab's map;
# - [stale_4](http://localhost:8501/mismatch?run=stale_4&step=20) and
#   [async](http://localhost:8501/mismatch?run=async&step=20), whose pages name the lag;
# - [the clip around q on stale_4](http://localhost:8501/bench?run=stale_4&step=20&preset=bypass_ppo_clip).
#
# ## Pitfalls
#
# - **Rewards of the last steps.** They belong to weights that are as old as the lag. Evaluate the last weights.
# - **No control.** A correction that is better than none may still end below the start. Draw the start, and train a
#   fresh control.
# - **Units.** A staleness of four means four updates in one system and four batches in another. With several optimizer
#   steps per batch these differ.
# - **Which log-prob.** Suppose that a newer version of the engine computes the log-probs of old answers again. Then the
#   recorded $q$ is not that of the policy that wrote them, and the ratio no longer shows the lag.
# - **The first steps.** The first steps of a stale run have fresher weights than the rest. A trial of five steps does
#   not show what a staleness of eight does.
# - **A k3 that falls.** k3 of a stale run falls when its policy becomes certain. This does not prove that the run is
#   healthy. So do not compare two runs by k3 if one policy is much more certain than the other.
# - **A small gradient norm is not a small step.** With Adam, look at how far the policy moves, for example at the k3
#   between two versions of the weights (appendix).
#
# ## References
#
# 1. Jacob Hilton, Karl Cobbe, John Schulman, [Batch size-invariance for policy
#    optimization](https://arxiv.org/abs/2110.00641), 2021: decoupled PPO, with one policy that wrote and another one
#    that the clip refers to.
# 2. [Stable Asynchrony: VCPO](https://arxiv.org/abs/2602.17616), 2026: training 128 steps off-policy; the
#    effective sample size warns of a collapse.
# 3. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: fresh data
#    need weights, and old data need clipping as well.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### mini.py, pieces 9 and 10: the loop
#
# The last two pieces put the others together. The next cell reads your `mini.py` as it is saved now. It takes the
# other eight pieces from there, and those that you have not written from the solution.

# %%
mini = load_mini()

# %% [markdown]
# *15 minutes.* Write `update`, one step of training. Its first argument, `pieces`, has the other pieces: call
# `pieces.sample`, not `sample`. So the same function works here, in `mini.py`, and with anybody's pieces.
#
# 1. Sample one answer to every prompt from the **engine**. `pieces.sample` returns tokens, their log-probs and the
#    mask.
# 2. Compute the rewards, `reward(prompts, tokens, mask)`, and subtract from each the mean of the other answers to the
#    same prompt. The answers to one prompt are in neighbouring rows, and there are `PROMPTS` prompts.
# 3. Let the **policy** score the tokens before the update. Compute the weights
#    `weight_fn(trainer_logp, engine_logp, mask)` once.
# 4. Twice (two epochs): score the tokens again, and let the optimizer make one step along the gradient of
#    `pieces.loss`, with the weights times `pieces.clipped(new_logp, trainer_logp, advantage)`.
# 5. Return the mean reward.
#
# <details><summary>Hint 1</summary>The log-probs of step 3 are numbers, not functions of the weights: use
# <code>.detach()</code>.</details>
# <details><summary>Hint 2</summary><code>pieces.advantages(rewards.view(PROMPTS, -1)).flatten()</code> is the
# advantage of every answer. And call <code>optimizer.zero_grad()</code> before <code>.backward()</code>.</details>


# %%
def update(pieces, policy, engine, optimizer, prompts, generator, weight_fn):
    raise NotImplementedError("mini.py: write update, then run this cell and the next.")


# %% tags=["check"]
check(course(update, mini), update_exercise(mini.sample))


# %% tags=["solution", "hide-input"]
def update_solution(pieces, policy, engine, optimizer, prompts, generator, weight_fn):
    tokens, engine_logp, mask = pieces.sample(engine, prompts, generator)
    rewards = reward(prompts, tokens, mask)
    advantage = pieces.advantages(rewards.view(PROMPTS, -1)).flatten()
    trainer_logp = pieces.log_probs(policy, prompts, tokens).detach()
    weights = weight_fn(trainer_logp, engine_logp, mask)
    for _ in range(2):
        new_logp = pieces.log_probs(policy, prompts, tokens)
        optimizer.zero_grad()
        factors = weights * pieces.clipped(new_logp, trainer_logp, advantage)
        pieces.loss(new_logp, factors, mask, advantage).backward()
        optimizer.step()
    return float(rewards.mean())


# %% tags=["solution", "hide-input"]
check(course(update_solution, mini), update_exercise(mini.sample))

# %% [markdown]
# *7 minutes.* Write `train`, the queue of old weights. It calls `step(engine)` in every step, with an engine that is
# `lag` updates older than the policy, or as old as possible in the first steps. `step` trains the policy itself, and
# returns the mean reward. Return the list of all rewards.
#
# <details><summary>Hint 1</summary><code>deque(maxlen=lag + 1)</code> forgets the oldest version by itself.</details>
# <details><summary>Hint 2</summary>Put a <code>copy.deepcopy(policy)</code> into the queue: the policy itself
# changes.</details>


# %%
def train(policy, lag, steps, step):
    raise NotImplementedError("mini.py: write train, then run this cell and the next.")


# %% tags=["check"]
check(versions_used(train), TRAIN)


# %% tags=["solution", "hide-input"]
def train_solution(policy, lag, steps, step):
    versions, history = deque([copy.deepcopy(policy)], maxlen=lag + 1), []
    for _ in range(steps):
        history.append(step(versions[0]))
        versions.append(copy.deepcopy(policy))
    return history


# %% tags=["solution", "hide-input"]
check(versions_used(train_solution), TRAIN)

# %% [markdown]
# Put both into `mini.py` and save it. The next cell reads the file again. Then break the training run, and repair it.
# In `mini_curve.run` the engine is `lag` updates old, here sixteen. Learning rate and lag were chosen on seeds 0 to 4;
# the next cells use ten others. **Guess first:** what is left of the reward without weights, with ratios without a cap,
# and with ratios with a cap of two?

# %%
mini = load_mini()
LAG, STEPS, NEW_SEEDS = 16, 100, range(10, 20)


def trained(way, lag):
    """The rewards of every step, (seeds, steps)."""
    return torch.tensor([mini_curve.run(mini, way, lag, STEPS, seed) for seed in NEW_SEEDS], dtype=torch.float64)


curves_of = {"fresh engine": trained("none", 0), "no weights": trained("none", LAG)}

# %% [markdown]
# **Look for** the fresh engine, which has learned before the others begin to climb. Then compare the three lines with
# old answers: one of them rises above the other two. The bands are 95 % intervals over the ten seeds. The dotted line
# is the start, the reward of the untrained policy.

# %%
curves_of |= {"ratios": trained("ratios", LAG), "capped ratios": trained("capped", LAG)}
middle = list(range(3, STEPS - 1, 5))  # of five steps
fives = {name: of_seeds.view(len(NEW_SEEDS), -1, 5).mean(2) for name, of_seeds in curves_of.items()}
around = {name: [over_seeds(column) for column in x.T.tolist()] for name, x in fives.items()}
lines = {name: [x.value for x in of_blocks] for name, of_blocks in around.items()}
bands = {name: ([x.low for x in of_blocks], [x.high for x in of_blocks]) for name, of_blocks in around.items()}
drawn = curves(middle, lines, x_name="step", y_name="reward", bands=bands)
start_of_mini = float(torch.stack([x[:, 0].mean() for x in curves_of.values()]).mean())
line = {"color": REJECTED, "dash": "dot"}
drawn.add_scatter(x=[middle[0], middle[-1]], y=[start_of_mini] * 2, mode="lines", name="start", line=line)
picture(drawn)

# %% tags=["hide-input"]
ends = {name: of_seeds[:, -25:].mean(1) for name, of_seeds in curves_of.items()}  # the last quarter of the steps
PAIRS = [("fresh engine", "no weights"), ("capped ratios", "no weights"), ("ratios", "no weights"),
         ("fresh engine", "capped ratios")]  # fmt: skip
gaps = {pair: over_seeds((ends[pair[0]] - ends[pair[1]]).tolist(), level=0.05 / len(PAIRS)) for pair in PAIRS}
say(f"""
These are rewards of the last quarter of the steps, from a start of {start_of_mini:.2f}. Differences are taken on the
same seeds, and their intervals are simultaneous.

- A fresh engine ends at {ends["fresh engine"].mean():.2f}, old answers without weights at
  {ends["no weights"].mean():.2f}. So the lag costs {above(gaps["fresh engine", "no weights"])}.
- Ratios with a cap of {mini_curve.CAP:g} end {above(gaps["capped ratios", "no weights"])} higher than no weights. The
  fresh engine ends {above(gaps["fresh engine", "capped ratios"])} higher than they do.
- Ratios without a cap cannot be distinguished from no weights: {untold(gaps["ratios", "no weights"])}.
""")

# %% [markdown]
# The same as text, with your pieces, in a terminal: `python lessons/mini.py --lag 16 --weights capped --seeds 5`. Try
# `--weights kept` as well, and a lag of 4. In lesson 14 the same functions train a language model on answers of vLLM.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks: the law of drift and noise, the bias of a clip around $q$, mixtures of versions, and a
# thread. They use a toy whose averages are exact sums.

# %% [markdown]
# ### The law, proved with symbols

# %% tags=["hide-input"]
w = sympy.symbols("w_X w_Y w_Z", positive=True)
delta, t = sympy.symbols("d_X d_Y d_Z"), sympy.symbols("t")
q_sym = [x / sum(w) for x in w]
moved = [x * sympy.exp(t * e) for x, e in zip(w, delta, strict=True)]
p_sym = [x / sum(moved) for x in moved]


def half_variance(shift):
    """Half the variance of the shifts of the logits, under q."""
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

show("KL = ½ Var(Δ) + higher terms", "proved")
show("two updates: 4 of the drift, 2 of the noise", "proved")

# %% [markdown]
# ### A training run small enough to enumerate
#
# `rlcorr.gradients.toy` has all answers of at most four tokens from a vocabulary of four. So the divergence between two
# versions is an exact sum. The toy is trained with the policy gradient on a few sampled answers per update. A judge
# rewards them, with a random error. The drift is a step along the exact gradient. The noise is the difference that the
# sampled answers and the judge make. So both can be computed **before** anything is trained. From them follows the lag
# $h^*$ at which the part of the drift and the part of the noise in the KL are equal.

# %% tags=["hide-input"]
where, start = toy.world(4, 4), toy.random_policy(toy.world(4, 4), 13)
generator = torch.Generator().manual_seed(13)
rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
JUDGE = 4.0  # the standard deviation of the judge's error


def toy_update(theta, answers, rate):
    """The next version, after a policy gradient on sampled answers; None takes all answers, by their probability."""
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
    """Half the variance of the shifts, averaged over the states that are visited."""
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
show("trained, mean of all training runs", 1e5 * mean, digits=2)
show("standard error", 1e5 * error, digits=2)

# %% [markdown]
# **Look for** the slopes. With all answers the line has the slope of $h^2$ from the start. With eight answers and an
# uncertain judge it bends near the dotted line $h^*$, where drift and noise are equal.

# %% tags=["hide-input"]
lines = {"all answers": without_noise, "eight answers": mean.tolist(), "eight answers, predicted": predicted}
picture(curves(TOY_LAGS, lines, x_name="lag h, updates", y_name="KL(q‖p)", log="xy", marks=[noise / drift]))

# %% [markdown]
# ### What the clip around q does to the gradient
#
# The **relative bias** is the length of the difference between the expected gradient and the policy gradient, divided
# by the length of the policy gradient. A gradient of 0 would have a relative bias of 1. Here it is in the same toy,
# over ten training runs at a high learning rate.

# %% tags=["hide-input"]
METHODS = ("disabled", "decoupled_token_is", "decoupled_seq_is", "bypass_ppo_clip")
toy_runs, biases = [versions_of(64, 16, 1.0) for _ in range(10)], {}
show("lag", "none", "token", "sequence", "clip at q")
for lag in (0, 1, 2, 4, 8):
    for run in toy_runs:
        policies = toy.Policies(rollout=run[16 - lag], old=run[16], theta=run[16])
        judged = rewards - (toy.probabilities(where, run[16]) * rewards).sum()
        of_run = [toy.gradient_truth(where, policies, judged, preset(name)).relative_bias for name in METHODS]
        biases.setdefault(lag, []).append(of_run)
    show(f"{lag}: relative bias, mean of ten runs", torch.tensor(biases[lag]).mean(0), digits=3)
assert max(map(max, biases[0])) < 1e-12
none, token, sequence, clip = (list(column) for column in zip(*biases[8], strict=True))
healed = over_seeds([a - b for a, b in zip(none, token, strict=True)])
of_clip = over_seeds([a - b for a, b in zip(clip, none, strict=True)])
say(f"""
At lag 8 the relative bias with token weights is {above(healed)} smaller than without weights. Token weights correct
each token, but not how often the text before it is written. Weights on the product leave
{bracketed(over_seeds(sequence))} with answers of four tokens. With long answers they are noisy, or limited by their
cap. The clip around $q$ cannot be distinguished from no weights: {untold(of_clip)}. It takes the gradient from the
tokens that the last updates moved, and these are the tokens that the gradient is about.
""")

# %% [markdown]
# ### Mixtures of versions
#
# The symbols are probabilities of whole answers (or of answers of one token). It is right on average to divide by the
# version that wrote the answer, and to divide by the mixture. To divide by the newest version is wrong. And the weights
# of the mixture never have more noise than those of the own version.

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

# mean square of the weights, per action: (own − mixture)/p² is a square divided by positive numbers
_, _, a, b = actions[0]
less = alpha / a + (1 - alpha) / b - 1 / (alpha * a + (1 - alpha) * b)
assert sympy.simplify(less - alpha * (1 - alpha) * (a - b) ** 2 / (a * b * (alpha * a + (1 - alpha) * b))) == 0

# %% [markdown]
# In the toy, half of the answers come from the version at the start, and half from the last version but one. The cell
# prints three things: the weights of whole answers; the mean ratio of single tokens, by their position; and the weights
# of answers whose first two tokens are old, because the engine took new weights **within** the answer. The last case is
# no problem either, as long as the recorded log-prob of each token is that of the version that sampled it.

# %% tags=["hide-input"]
run, mask = toy_runs[0], where.mask
trainer, older, newer = (toy.log_probs(where, run[n]) for n in (16, 0, 15))  # (answers, tokens)
p, q_old, q_new = (x.sum(-1).exp() for x in (trainer, older, newer))
half = (q_old + q_new) / 2
show("whole answers", "mean", "variance")
for name, by_old, by_new in (("own version", q_old, q_new), ("mixture", half, half), ("newest for all", q_new, q_new)):
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
# The toy is trained three times: in turns, with an engine in a thread, and with a slow engine in a thread.


# %% tags=["hide-input"]
def sampled(theta, step, slow):
    """The answers of a step. The random numbers depend on the step alone; `slow` only wastes time."""
    time.sleep(slow)
    random_of_step = torch.Generator().manual_seed(step)
    return torch.multinomial(toy.probabilities(where, theta), 32, replacement=True, generator=random_of_step)


def at_once(work, *arguments):
    future = Future()
    future.set_result(work(*arguments))
    return future


def train_async(staleness, steps, *, threaded, slow=0.0):
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


turns = train_async(3, 12, threaded=False)
same = [torch.equal(turns, train_async(3, 12, threaded=True, slow=slow)) for slow in (0.0, 0.01)]
fresher = torch.equal(turns, train_async(2, 12, threaded=False))
show("a thread, a slow thread: the same bits", *same)
show("one update fresher: the same bits", fresher)
assert all(same)
assert not fresher

# %% [markdown]
# By hand: a simulated clock, without randomness. Writing a batch takes 3 s, but every fourth batch takes 9 s. The table
# has the lag of each batch, one digit per batch, and the seconds at the end. Compare the lags of fast and of slow
# training steps, of 2 s and of 4 s. If the step decides which version writes, the lags are the same. If the newest
# version writes, they differ.


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

# %% [markdown]
# ### A gradient that vanishes, and AdamW
#
# Lesson 08 compares a cap on the product of an answer's ratios with a cap on the ratio of each token. With long answers
# and old weights the product cap lost more. Something can be seen inside of these runs. The next two pictures show the
# median over the six seeds of `long answers, old weights`, with and without a correction. **Look for** the gradient
# norm with the product cap, and then for its k3 in the first ten steps. (k3 measures the mismatch between engine and
# trainer. It is the mean of $r - 1 - \log r$ over the tokens, see lesson 06. A norm that was exactly 0 is drawn at the
# lower edge.)


# %% tags=["hide-input"]
def medians(arm, column, floor):
    """Median over the seeds at every step; a step whose gradient was exactly 0 counts as the floor."""
    steps = {}
    for row in rows_of("decide_long_stale"):
        if row["preset"] == arm:
            steps.setdefault(row["step"], []).append(max(row[column] or 0.0, floor))
    return [median(values) for values in steps.values()]


ARMS, SMALLEST = ("none", "token_cap", "product_cap"), 1e-9
norms = {arm: medians(arm, "grad_norm", SMALLEST) for arm in ARMS}
training_steps = list(range(1, len(norms["none"]) + 1))
picture(curves(training_steps, norms, x_name="training step", y_name="norm of the gradient", log="y"))

# %% tags=["hide-input"]
gaps = {arm: medians(arm, "k3", SMALLEST) for arm in ARMS}
picture(curves(training_steps, gaps, x_name="training step", y_name="k3 between engine and trainer", log="y"))
EARLY, LATER = 7, slice(6, 30)
typical = {arm: median(norms[arm][LATER]) for arm in ARMS}
say(f"""
At the first step the gradient norm is {norms["product_cap"][0]:.2f} with the product cap and
{norms["token_cap"][0]:.2f} with the token cap. From step {LATER.start + 1} to {LATER.stop} its median is
{typical["token_cap"]:.2f} with the token cap and {typical["product_cap"]:.0e} with the product cap. A likely reason:
with old weights, most products of hundreds of ratios are close to 0 (the first picture). Then nearly every answer has a
weight close to 0, and a cap changes only large weights.

One might expect that a policy without a gradient stays where it is. It does not: at step {EARLY} k3 is
{gaps["product_cap"][EARLY - 1]:.2f} with the product cap and {gaps["token_cap"][EARLY - 1]:.2f} with the token cap.
""")

# %% [markdown]
# How can the policy move? The optimizer is AdamW. It does not step along the gradient. It divides a running mean of the
# gradients (its momentum) by the root of a running mean of their squares. If all gradients are a thousand times
# smaller, both shrink by the same factor, and **the step stays the same**. If they become smaller during training, the
# step shrinks with a delay. The next cell gives AdamW gradients of random directions, with exactly the norms recorded
# in the two arms, and measures how far each batch moves the weights: the typical move of one weight, in units of the
# learning rate.


# %%
def adam_steps(norms_of_run, seed, size=500):
    """Lengths of AdamW's moves, given gradients of these norms and random directions, in learning rates per weight."""
    random = torch.Generator().manual_seed(seed)
    weights, lengths_of_moves = torch.zeros(size, requires_grad=True), []
    optimizer = torch.optim.AdamW([weights], lr=1.0, weight_decay=0.0)
    for norm in norms_of_run:
        before = weights.detach().clone()
        for _ in range(2):  # two Adam steps for every batch, as in these studies
            direction = torch.randn(size, generator=random)
            weights.grad = norm * direction / direction.norm()
            optimizer.step()
        lengths_of_moves.append(float((weights.detach() - before).norm()) / size**0.5)
    return lengths_of_moves


# %% tags=["hide-input"]
moves = {}
for arm in ("token_cap", "product_cap"):
    per_seed = []
    for seed in range(6):
        rows = [row for row in rows_of("decide_long_stale") if (row["preset"], row["seed"]) == (arm, seed)]
        per_seed.append(adam_steps([row["grad_norm"] or 0.0 for row in rows], seed))
    moves[arm] = [median(at) for at in zip(*per_seed, strict=True)]
show("median over the seeds, step", *(shown := (1, 3, 5, 7, 10, 15, 20, 30)))
for arm in moves:
    show(f"norm of the gradient, {arm}", *(f"{norms[arm][n - 1]:.0e}" for n in shown))
for arm in moves:
    show(f"length of AdamW's move, {arm}", [moves[arm][n - 1] for n in shown], digits=2)
share = median(a / b for a, b in zip(moves["product_cap"][LATER], moves["token_cap"][LATER], strict=True))
assert 0.1 < share < 0.6
say(f"""
The recorded gradients of the product cap are thousands of times smaller. AdamW's moves are not: from step
{LATER.start + 1} to {LATER.stop} they are still {100 * share:.0f} % as long as with the token cap. So the policy keeps
moving, in directions that a few answers decide: those few that still have a weight.

This shows that AdamW *can* move a policy on a vanishing gradient. That it explains the failure of the product cap is
not shown. We tried to test it: the same training run with plain SGD, with steps of the same length. But SGD puts such a
step into few weights, where it is far too long, and lost the model (part D in `runs/README.md`). So it was no fair
test.
""")

# %% [markdown]
# ### The product cap on a real model
#
# If vanishing weights are the trouble, dividing them by their mean should help (lesson 07): then the gradient keeps its
# length. The planned study `smol_last_weights` has such an arm. `SmolLM2-135M` learns sums in words from weights that
# are six updates old, in answers of up to two dozen tokens. `product_cap_normalized` caps the product at two and
# divides the weights by their mean. (So a weight is at most two divided by this mean, which can be far more than two:
# lesson 07.) [Lesson 04](04_threshold.ipynb) has a picture of all its arms. Does this one fail, too?

# %% tags=["hide-input"]
smol_rows, accuracy = rows_of("smol_last_weights"), planned_ends("smol_last_weights")
pairs = {arms: pair.difference for arms, pair in contrasts("smol_last_weights").items()}
means = {arm: fmean(by_seed.values()) for arm, by_seed in accuracy.items()}
NORMALIZED = "product_cap_normalized"
both = pairs[NORMALIZED, "token_cap"]
normalized_norms = [
    median(row["grad_norm"] or 0.0 for row in smol_rows if (row["preset"], row["step"]) == (NORMALIZED, step))
    for step in sorted({row["step"] for row in smol_rows})
]
say(f"""
The mean greedy accuracy is {means["fresh"]:.2f} with fresh weights, {means["none"]:.2f} with old weights
and no correction, {means["token_cap"]:.2f} with the token cap, and {means[NORMALIZED]:.2f} with the
normalised product cap. Both caps are significantly better than no correction: {above(pairs["token_cap", "none"])} and
{above(pairs[NORMALIZED, "none"])}. They cannot be distinguished from each other: the difference is {untold(both)}. Both
end significantly below the control: the differences to `fresh` are {below(pairs["token_cap", "fresh"])} and
{below(pairs[NORMALIZED, "fresh"])}.

So on this model a cap recovers part of what old weights cost, and **the normalised product cap does not fail**. Its
gradient does not vanish, either: the median norm over the seeds is at least {min(normalized_norms):.1f} at every step.
But the answers are also much shorter than in the long studies, and the task, the algorithm's settings and the model
differ. So we do not know what makes the difference.
""")
