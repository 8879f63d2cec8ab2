# %% [markdown]
# # 14 · Mixture of experts: a swap is not rounding
#
# **Claim.** A router chooses experts. If two experts are nearly tied, a small rounding error makes it choose another
# one. Such swaps are rare, but the error is as large as the difference between two experts. So the mismatch gets a
# heavy tail. Finer rounding makes swaps rarer, and router replay removes them.
#
# *85 minutes · advanced · any laptop; no GPU, no network.* You need the ratio of lesson 00, and from lesson 07
# $k_3 = e^d - 1 - d$ of a token with the log-ratio $d = \log p - \log q$. Lesson 03 shows other sources of the
# mismatch, lesson 13 what old weights do. Letters: [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - derive how often rounding swaps an expert, from the density of the gap at 0;
# - say why rounding the router's own logits reverses no order, while rounding what the router reads does;
# - distinguish a heavy tail from a wide one, and say which numbers cannot do this;
# - say what router replay repairs, and four things that it does not repair.

# %% tags=["hide-input"]
import math
import warnings
from typing import Any

import sympy
import torch
from curves import curves
from exercises.lesson_14 import REPLAYED_WEIGHTS, SHARE_OF_LARGEST, SWAPPED
from recorded import load
from sentences import above, below, say
from show import picture, show, text

from rlcorr import correct, preset
from rlcorr.figures.canvas import ACROSS, REJECTED
from rlcorr.figures.comparison import tails
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a progress bar asks for a widget that nobody needs
    from rlcorr.train.learner.policy import Policy, load_lm

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(14)

# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 03) The engine computes in bfloat16, the trainer in float32. Everything else is equal, and $q$ is what
# the engine really drew with. What is the mean of the ratios, on average over all samples?**
#
# <details><summary>1.</summary>Yes. The mean of $p/q$ over tokens that were drawn from $q$ is 1, however large the
# rounding errors are.</details>
# <details><summary>A little below 1, because rounding loses digits.</summary>No. Rounding makes some ratios larger and
# some smaller. If $q$ is the policy that drew the tokens, the average over all samples is exactly 1.</details>
#
# **2. (Lesson 08) k3 of a token is $e^d - 1 - d$. A usual token has $d = 0.01$, and so a k3 of 0.00005. One token has
# $d = -3$. How many usual tokens have as much k3 together as this one?**
#
# <details><summary>300, because its d is 300 times as large.</summary>No. For small $d$, k3 is about $d^2/2$. It grows
# with the square, not in proportion.</details>
# <details><summary>About 40,000.</summary>Yes. $e^{-3} - 1 + 3 = 2.05$, divided by 0.00005. A mean of k3 can be decided
# by a single token. This lesson is about such tokens.</details>
#
# ## A part of the model that decides
#
# In a **mixture of experts** a layer contains several networks, the **experts**. A token goes through only a few of
# them. A small linear map, the **router**, gives each expert $i$ a logit $z_i$. The experts with the largest logits are
# taken. Their outputs are added with the weights $e^{z_i}/\sum_j e^{z_j}$, where the sum is over the experts that are
# taken. A model without experts is called **dense**.
#
# Everything else in a network is smooth: a small error at its input makes a small error at its output. Taking the
# largest is not smooth. The **gap** $\gamma$ is the distance between the logits of the last expert that is taken and
# the first one that is not. If rounding moves these two logits by more than the gap, the engine takes another expert
# than the trainer. This is a **swap**.
#
# ## By hand: one token, two experts
#
# The router gives expert one the logit 1.00 and expert two the logit 0.99. It takes one of them. Expert one predicts
# the next token with probabilities 0.8, 0.1, 0.1; expert two predicts it with 0.1, 0.8, 0.1. In the engine, rounding
# has moved both logits by 0.01, to 0.99 and 1.00. What is the ratio of the first token? And what would it be if the
# layer took both experts and blended them?

# %%
EXPERTS = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)


def mixture(z, taken, experts=EXPERTS):
    """Next-token probabilities: the `taken` experts with the largest logits, blended by their weights."""
    best = z.topk(taken).indices
    return (z.gather(-1, best).softmax(-1)[..., None] * experts[best]).sum(-2)


trainer, engine = (torch.tensor(z, dtype=torch.float64) for z in ([1.00, 0.99], [0.99, 1.00]))
show("token", "first", "second", "third")
show("one expert: r = p/q", mixture(trainer, 1) / mixture(engine, 1))
show("both blended: r = p/q", mixture(trainer, 2) / mixture(engine, 2))

# %% [markdown]
# By hand: if the experts are blended, an error of 0.01 moves the ratio by less than 1 %. If one of them is chosen, the
# ratio is 8. With a rounding error ten times smaller, the ratio would still be 8. It would only happen less often.
#
# ## How often does a swap happen?
#
# Let $D$ be the density of the gap over tokens. Let rounding move the difference of the two logits by a normal error
# with the standard deviation $\sigma$. A token with the gap $\gamma$ is swapped if this error is below $-\gamma$. The
# probability of this is $\Phi(-\gamma/\sigma)$, where $\Phi$ is the distribution function of the normal distribution.
# Average it over all gaps. Only gaps about as small as $\sigma$ matter, and for these $D(\gamma)$ is nearly $D(0)$.
# Then write $\gamma = \sigma u$, so that $d\gamma = \sigma\,du$; the last integral is $1/\sqrt{2\pi}$ (appendix):
#
# $$ \Pr(\text{swap}) = \int_0^\infty D(\gamma)\,\Phi(-\gamma/\sigma)\,d\gamma \approx
# D(0)\,\sigma\int_0^\infty \Phi(-u)\,du = \frac{D(0)\,\sigma}{\sqrt{2\pi}} . $$
#
# So the share of swaps is **proportional to the rounding error**. As a test, draw random logits of eight experts, of
# which two are taken. A swap is possible between the second expert, which is taken last, and the third, which is not
# taken. Add noise to each logit. The noise of a difference of two logits is $\sqrt2$ times that of one logit.

# %%
N = 400_000
z = torch.randn(N, 8, dtype=torch.float64, generator=generator)
edge = z.topk(3).indices[:, 1:]  # the second expert, which is taken last, and the third, which is not taken
second, third = z.gather(-1, edge).unbind(-1)
gap = second - third
density = float((gap < 0.05).double().mean()) / 0.05  # D(0)
counted = {}
show("noise on a logit", "swaps", "D(0) σ/√2π", digits=5)
for noise in (0.04, 0.02, 0.01):
    moved = z + noise * torch.randn(N, 8, dtype=torch.float64, generator=generator)
    moved_second, moved_third = moved.gather(-1, edge).unbind(-1)
    swaps, sigma = float((moved_second < moved_third).double().mean()), math.sqrt(2) * noise
    show(f"{noise}", swaps, density * sigma / math.sqrt(2 * math.pi), digits=5)
    counted[sigma] = swaps

# %% tags=["hide-input"]
for sigma, swaps in counted.items():
    exact = float(torch.special.ndtr(-gap / sigma).mean())
    assert abs(swaps - exact) < 3 * math.sqrt(swaps / N)
    assert abs(density * sigma / math.sqrt(2 * math.pi) / exact - 1) < 0.06
ends = list(counted.values())
say(f"""
The formula is right to a few per cent. With a quarter of the noise, {ends[-1] / ends[0]:.2f} of the swaps are left.
""")

# %% [markdown]
# ## Predict, then reveal
#
# Now there is no noise. The eight logits are rounded to bfloat16, and nothing else is rounded. **Write down a guess:**
# for what share of the tokens do the second and the third expert change their order? And for what share do they become
# equal?

# %%
rounded_second, rounded_third = (x.to(torch.bfloat16).double() for x in (second, third))
opposite, ties = int((rounded_second < rounded_third).sum()), int((rounded_second == rounded_third).sum())
show("tokens", N)
show("in the opposite order", opposite)
show("equal", ties, f"{ties / N:.1%}")

# %% tags=["hide-input"]
spacing = 2.0 ** (torch.floor(torch.log2(second.abs())) - 7)  # from one bfloat16 number to the next
expected_ties = float((1 - gap / spacing).clamp(min=0).sum())
assert opposite == 0
assert abs(ties - expected_ties) < 4 * math.sqrt(expected_ties)

# %% [markdown]
# **Rounding is monotone.** The larger of two numbers stays larger, or the two become equal. So rounding the logits
# reverses no order. It only makes a few ties, and a tie is decided by something that has nothing to do with the token,
# such as the number of the expert.
#
# Most swaps come from rounding that happened **before** the router: in attention, in the KV cache, in the layers below.
# These errors reach two logits differently, so they can reverse an order. A router that computes in 32 bits avoids the
# ties, but it cannot prevent these swaps. It decides precisely, on inputs that are not precise.
#
# ## A heavy tail is not a wide one
#
# Let $d$ be small noise, proportional to $\sigma$, for most tokens. For a share $\Pr(\text{swap})$, which is
# proportional to $\sigma$, let $d$ be a jump $d_{\text{swap}}$, whose size does not depend on $\sigma$. Then, for small
# $\sigma$,
#
# $$ \mathbb{E}[k_3] \approx \underbrace{\tfrac12\, \mathbb{E}[\text{noise}^2]}_{\propto\, \sigma^2} +
# \underbrace{\Pr(\text{swap})\;\mathbb{E}[k_3(d_{\text{swap}})]}_{\propto\, \sigma}, \qquad
# \frac{\mathbb{E}[d^4]}{\mathbb{E}[d^2]^2} \approx \frac{1}{\Pr(\text{swap})}\,
# \frac{\mathbb{E}[d_{\text{swap}}^4]}{\mathbb{E}[d_{\text{swap}}^2]^2} . $$
#
# The first formula says: if rounding becomes ten times finer, the k3 of the noise falls a hundredfold, and that of the
# swaps falls only tenfold. So **the finer the rounding, the larger the share of the swaps** in what is left.
#
# The second formula is about the **kurtosis**, the mean of $d^4$ divided by the square of the mean of $d^2$. It
# measures how heavy a tail is, whatever its width. For small $\sigma$, the noise hardly counts in either mean, because
# $d$ enters with its square or its fourth power. So the mean of $d^2$ is about $\Pr(\text{swap})$ times the mean square
# of a jump, and the mean of $d^4$ has one such factor as well. In the quotient one factor $\Pr(\text{swap})$ is left,
# in the denominator: the kurtosis **grows** as swaps become rarer.
#
# A tiny world shows it. It has the two experts from above, each with a softmax over three tokens. The engine has noise
# on the logits of the router and on the outputs of the experts; the trainer has none. The average over the next token
# is exact. Both sides compute a token in one of three ways:
#
# - each blends both experts;
# - the router of each takes one expert;
# - the engine's router takes one expert, and the trainer takes the same one. This is **router replay**.

# %%
TOKENS, NOISES = 40_000, [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
router = 2 * torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)  # logits of the two experts
outputs = EXPERTS.log() + 0.3 * torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)
router_noise = torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)
output_noise = torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)


def log_next(logits, out, expert):
    """Log-probs of the next token, (N, 3): of both experts blended, or of one expert per token, (N,)."""
    if expert is None:
        return (logits.softmax(-1)[..., None] * out.softmax(-1)).sum(-2).log()
    return out[torch.arange(len(out)), expert].log_softmax(-1)


# %% [markdown]
# **Look for** the slopes on the logarithmic axes. The lines of *blend* and of *replay* coincide. If the noise becomes
# ten times smaller, they fall a hundredfold, as the dotted line of slope two does. The line of the router falls only
# tenfold, so it is further and further above them.

# %% tags=["hide-input"]
WAYS = ("blend of both", "router", "router, replayed")
toy_k3, kurtosis = {name: [] for name in WAYS}, {name: [] for name in WAYS}
for noise in NOISES:
    seen, out = router + noise * router_noise, outputs + noise * output_noise
    mine, theirs = router.argmax(-1), seen.argmax(-1)
    for name, (of_trainer, of_engine) in zip(WAYS, ((None, None), (mine, theirs), (theirs, theirs)), strict=True):
        log_q = log_next(seen, out, of_engine)
        d, q = log_next(router, outputs, of_trainer) - log_q, log_q.exp()
        toy_k3[name].append(float((q * k3(d)).sum(-1).mean()))
        kurtosis[name].append(float((q * d**4).sum(-1).mean() / (q * d**2).sum(-1).mean() ** 2))
by_noise = curves(NOISES, toy_k3, x_name="noise σ on a logit", y_name="mean k3", log="xy")
for slope, name in ((1, "router"), (2, "blend of both")):
    dotted = {"x": NOISES, "y": [toy_k3[name][0] * (noise / NOISES[0]) ** slope for noise in NOISES]}
    by_noise.add_scatter(**dotted, mode="lines", name=f"slope {slope}", line={"color": REJECTED, "dash": "dot"})
picture(by_noise)

# %% tags=["hide-input"]
slopes = {name: math.log(of_way[2] / of_way[0]) / math.log(NOISES[2] / NOISES[0]) for name, of_way in toy_k3.items()}
assert all(1.9 < slopes[name] < 2.1 for name in ("blend of both", "router, replayed"))
assert 0.7 < slopes["router"] < 1.3
say(f"""
Over the finer half of the noise, the slopes are {slopes["blend of both"]:.1f} (blended), {slopes["router"]:.1f}
(router) and {slopes["router, replayed"]:.1f} (router, replayed).

| kurtosis of d | at σ = {NOISES[-2]} | at σ = {NOISES[0]} |
|---|---|---|
| router | {kurtosis["router"][-2]:.0f} | {kurtosis["router"][0]:.0f} |
| router, replayed | {kurtosis["router, replayed"][-2]:.0f} | {kurtosis["router, replayed"][0]:.0f} |

A normal distribution has the kurtosis 3. With finer rounding the tail of the router becomes heavier. With replay the
kurtosis does not depend on the rounding: only the usual noise is left.
""")

# %% [markdown]
# ## The same on recorded runs
#
# `moe_bf16` trains a small mixture of experts: three layers with eight experts each, of which a token takes two. Its
# engine computes in bfloat16. Its trainer computes in 32 bits and follows its own router. `moe_replay` is the same
# training run with router replay. The picture has the last recorded step of both. A point shows which share of the
# tokens has at least this $|d|$. To the left, where most tokens are, the two lines coincide. **Look for** the $|d|$ at
# which they separate.

# %% tags=["hide-input"]
RUNS = ("moe_bf16", "moe_replay", "bf16")
STEPS = {"moe_bf16": -1, "moe_replay": -1, "bf16": 0, "kv_fp8_e5m2": -1}
batches = {name: load(name, n) for name, n in STEPS.items()}
every_d = {name: batch.tensors()["old_log_probs"] - batch.rollout_log_probs for name, batch in batches.items()}
flat = {name: d[batches[name].response_mask] for name, d in every_d.items()}
both_tails = tails(batches["moe_bf16"], batches["moe_replay"])
traces: Any = both_tails.data
for trace, name in zip(traces, ("moe_bf16", "moe_replay"), strict=True):
    trace.update(name=name, hovertemplate=f"%{{y:.2g}} of the tokens: |d| ≥ %{{x:.2g}}<extra>{name}</extra>")
    trace.line.color = ACROSS[RUNS.index(name)]
picture(
    both_tails.update_layout({"xaxis.title.text": "|d|", "yaxis.title.text": "share of tokens with at least this |d|"})
)

# %% [markdown]
# The table compares them with two runs of dense models: `bf16`, and `kv_fp8_e5m2` with a coarse KV cache.

# %%
show("", *(name.rjust(12) for name in flat))


def compare(label, measure, digits):
    show(label, *(text(float(measure(d)), digits).rjust(12) for d in flat.values()))


compare("tokens", len, 0)
compare("median |d|", lambda d: d.abs().median(), 5)
compare("largest |d|", lambda d: d.abs().max(), 2)
compare("mean k3", lambda d: k3(d).mean(), 5)
compare("  without the largest token", lambda d: k3(d).sort().values[:-1].mean(), 5)
compare("  share of the largest token", lambda d: k3(d).max() / k3(d).sum(), 2)
compare("kurtosis of d", lambda d: (d**4).mean() / (d**2).mean() ** 2, 0)

# %% tags=["hide-input"]
largest = {name: float(d.abs().max()) for name, d in flat.items()}
of_one = {name: float(k3(d).max() / k3(d).sum()) for name, d in flat.items()}
assert largest["kv_fp8_e5m2"] > largest["moe_bf16"] > 3 * max(largest["bf16"], largest["moe_replay"])
assert of_one["moe_bf16"] > 0.9
say(f"""
The typical token is the same with replay and without it. But in the step without replay, one token of
{len(flat["moe_bf16"])} has {of_one["moe_bf16"]:.0%} of the k3.

Be careful with the other lines. In `bf16`, which has no experts, one token has {of_one["bf16"]:.0%} of the k3, and the
kurtosis is larger than with replay. A likely reason: rounding moves the probability of an uncertain token far more than
that of a certain one, and this task has few uncertain tokens. So if a few tokens have most of the k3, this **alone
proves nothing**. A large $|d|$ proves nothing, either: a coarse KV cache reaches {largest["kv_fp8_e5m2"]:.1f} without
any expert. The evidence for swaps is the pair of runs, whose settings differ in nothing except replay. (After the first
step their weights differ as well. And there is one training run of each.)
""")

# %% [markdown]
# Here is the answer with that token, in columns of one token each.

# %% tags=["hide-input"]
batch, d = batches["moe_bf16"], every_d["moe_bf16"]
record = runs.read_step(runs.find_run("moe_bf16"), 40)
row, position = divmod(int((d.abs() * batch.response_mask).argmax()), d.shape[1])
written = [*record.responses[row], "<eos>"][: int(batch.response_mask[row].sum())]
cells = slice(0, len(written))
r = ratio(d[row, cells])
show("prompt", record.prompts[row])
show("token", written)
show("q, engine", batch.rollout_log_probs[row, cells].exp())
show("p, trainer", batch.tensors()["old_log_probs"][row, cells].exp())
show("r = p/q", r)
show("weight, cap at 2", correct(batch, preset("decoupled_token_is")).weights[row, cells])
say(f"""
The engine gave the token of column {position + 1} a probability {1 / float(r[position]):.0f} times as large as the
trainer does. It looks as if another expert preferred another digit. (The run did not record the experts, so we can only
suppose that this was a swap.)

A cap has no effect here, because the ratio is below 1. The weight is {float(r[position]):.2f}, and this is right: the
trainer hardly ever writes this token. Such a token is drawn **because** the engine gives it a high probability. So a
sample shows this side of the tail. The other side has tokens that the trainer would write and the engine would not.
They are rarely drawn, but if they are, they have a large weight. This is the side that needs a cap.
""")

# %% [markdown]
# A single step may be chance. The runs keep the metrics of every step. **Look for** the spikes of one line.

# %% tags=["hide-input"]
COUNT, BLOCK = 40, 5
METRIC = {"k3": "rollout_corr/k3_kl", "high": "rollout_corr/is_ratio_max", "low": "rollout_corr/is_ratio_min"}
METRIC |= {"ratio": "rollout_corr/is_ratio_mean", "abs": "rollout_corr/abs_log_ratio", "tokens": "rollout_corr/tokens"}
rows_of = {name: runs.read_metrics(runs.find_run(name))[:COUNT] for name in RUNS}
over_steps = {
    (name, key): torch.tensor([line[METRIC[key]] for line in rows_of[name]], dtype=torch.float64)
    for name in RUNS
    for key in METRIC
}
lines = {name: over_steps[name, "k3"].tolist() for name in RUNS}
picture(curves(list(range(1, COUNT + 1)), lines, x_name="step", y_name="mean k3 of a step", log="y"))

# %% tags=["hide-input"]
blocks = torch.randint(COUNT // BLOCK, (4000, COUNT // BLOCK), generator=generator)
resampled = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)  # steps next to each other are similar


def interval(statistic, *series):
    """A number of these series of steps with its bootstrap interval, from the same drawn steps of each."""
    samples = statistic(*(x[resampled] for x in series))
    low, high = torch.quantile(samples, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(statistic(*series)), low, high)


def of_means(a, b):
    return a.mean(-1) / b.mean(-1)


# %% tags=["hide-input"]
unreplayed, replayed = ({key: over_steps[name, key] for key in METRIC} for name in ("moe_bf16", "moe_replay"))
gain = {key: interval(of_means, unreplayed[key], replayed[key]) for key in ("k3", "abs")}
middle = interval(lambda a, b: a.median(-1).values / b.median(-1).values if a.ndim > 1 else a.median() / b.median(),
                  unreplayed["k3"], replayed["k3"])  # fmt: skip

spikes = unreplayed["k3"] > 5e-4
extreme = torch.maximum(k3(unreplayed["high"].log()), k3(unreplayed["low"].log())) / unreplayed["tokens"]
share = (extreme / unreplayed["k3"])[spikes].median()
engine_s = int((unreplayed["low"].log().abs() > unreplayed["high"].log())[spikes].sum())
say(f"""
Let a spike be a step with a k3 above 5e-4. `moe_bf16` has {int(spikes.sum())} of them. In the median spike one token
has {share:.0%} of the k3. In {engine_s} of the spikes it is a token to which the engine gave a high probability and the
trainer did not.

- Without replay, the mean k3 over {COUNT} steps is {above(gain["k3"], 1, digits=1)} times that with replay. The largest
  1/r is {float(replayed["low"].min() / unreplayed["low"].min()):.0f} times as large.
- The mean |d| is {above(gain["abs"], 1)} times as large. If every |d| had grown by this factor, k3 would have grown by
  its square, {gain["abs"].value ** 2:.1f}. It has grown much more. So it is the **tail** that differs.
- k3 of the median step is {above(middle, 1, digits=1)} times as large. Perhaps usual steps contain swaps, too, between
  experts that nearly agree.
- The mean ratio of every run cannot be distinguished from 1. A swapped expert yields a different policy, but $q$ is
  still the policy that drew the tokens, so the ratios average to 1.

All factors with an interval differ significantly from 1: the interval excludes 1. The intervals are bootstrap intervals
that draw blocks of {BLOCK} steps, because neighbouring steps are similar. For a mean over a heavy tail such an interval
is too narrow, because it knows only the steps that were recorded. Step {int(unreplayed["k3"].argmax()) + 1} alone has
{float(unreplayed["k3"].max() / unreplayed["k3"].sum()):.0%} of the sum.
""")
assert gain["k3"].low > gain["abs"].high ** 2
for name in RUNS:
    mean_ratio = interval(lambda x: x.mean(-1), over_steps[name, "ratio"])
    assert mean_ratio.low < 1 < mean_ratio.high

# %% [markdown]
# ## What replay does, and what it does not do
#
# With replay, the engine reports which experts it took, for every token and every layer. The router of the trainer
# computes its logits as always. But the experts are those of the engine:
#
# ```python
# experts = logits.topk(2).indices  # without replay: the trainer's own choice
# experts = engine_experts          # with replay
# ```
#
# The weights of the experts are the trainer's own probabilities of these experts, divided by their sum. So $p$ is a
# smooth function of the rounding errors again. The choice at a position depends only on the text up to this position.
# So $p$ is still a policy, and the ratios still average to 1. (In the appendix the model is its own engine, so that
# every swap is known. There, with replay, all tokens have the small k3 of those tokens that no swap has reached.)
#
# Replay leaves four things:
#
# 1. **Rounding.** With replay, a mixture is a model of the usual kind, with the usual noise.
# 2. **Old choices.** Let $\pi$ be the policy after an update. With replay it uses experts that its own router would no
#    longer take. But in the next step the engine will use this new router.
# 3. **A wrong router is harder to see.** Suppose that a router was not synchronised. With replay it takes the right
#    experts all the same, because they are prescribed. Only its weights are wrong.
# 4. **The choice has no gradient**, with replay or without. The gradient does not see which change of the logits would
#    choose another expert.
#
# We test the second and the third on the model from which both runs started, in 64 bits. First all weights are moved a
# little, as by an update. Then only the routers are moved, by random numbers with a fifth of the size of their weights.
# At last one router gets its rows in a wrong order. Each of the three changes is drawn several times, and the table has
# the means.

# %% tags=["hide-input"]
lm = load_lm(runs.ROOT / "warm_start_moe" / "checkpoint", torch.device("cpu")).double().eval()
lm.set_experts_implementation("eager")  # the only one in 64 bits
policy = Policy(lm, critic=False)
gates = [module for name, module in lm.named_modules() if name.endswith("mlp.gate")]
router_rows = [gate.get_parameter("weight") for gate in gates]  # (experts, width) each

scored = load("moe_bf16", 0)
scored = scored.replace(**{key: scored.tensors()[key].long() for key in ("prompt_ids", "response_ids")})
real = scored.response_mask
attention = torch.cat([scored.tensors()["prompt_mask"], real], -1)
before_first = scored.tensors()["prompt_ids"].shape[1] - 1  # the position that predicts the first response token


def forward(batch, noise=0.0, replay=False):
    """Log-probs of the responses; the router's logits and the experts taken, for every token and layer."""
    seen, hooks = [], []

    def shake(_, given):
        return (given[0] + noise * torch.randn(given[0].shape, dtype=torch.float64, generator=generator),)

    for gate_module in gates:
        if noise:
            hooks.append(gate_module.register_forward_pre_hook(shake))
        hooks.append(gate_module.register_forward_hook(lambda _, __, out: seen.append((out[0], out[2]))))
    with torch.no_grad():
        log_probs = policy(batch, 1.0, replay=replay).log_probs.double()
    for hook in hooks:
        hook.remove()
    by_layer = (torch.stack(x, 1).view(*attention.shape, len(gates), -1) for x in zip(*seen, strict=True))
    return log_probs, *by_layer


def differ(some, others):
    return (some.sort(-1).values != others.sort(-1).values).any(-1)  # (B, P + T, layers)


clean, logits, experts = forward(scored)

# %% tags=["hide-input"]
DRAWS = 8


def k3_after(change):
    """Mean k3 of the model that `change` has moved against the model before, by its own router and replayed; of its own
    router against itself replayed; and the share of tokens with other experts."""
    before = [parameter.detach().clone() for parameter in lm.parameters()]
    with torch.no_grad():
        change()
    mine, _, mine_experts = forward(scored)
    prescribed, _, _ = forward(scored.replace(routed_experts=experts), replay=True)
    with torch.no_grad():
        for parameter, saved in zip(lm.parameters(), before, strict=True):
            parameter.copy_(saved)
    pairs = ((mine, clean), (prescribed, clean), (prescribed, mine))  # log p, log q
    other = float(differ(experts, mine_experts).any(-1)[attention].double().mean())
    return [*(float(k3((x - y)[real]).mean()) for x, y in pairs), other]


def moved_by(size, parameters):
    for parameter in parameters:
        step = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        parameter.add_(size * parameter.square().mean().sqrt() * step)


def wrong_order():
    rows = router_rows[int(torch.randint(len(gates), (), generator=generator))]
    rows.copy_(rows[torch.randperm(len(rows), generator=generator)])


def drawn(change):
    return torch.tensor([k3_after(change) for _ in range(DRAWS)], dtype=torch.float64)


# %% tags=["hide-input"]
updated = drawn(lambda: moved_by(0.03, lm.parameters()))
slight, worst = drawn(lambda: moved_by(0.2, router_rows)), drawn(wrong_order)
show("all weights moved by 3 %: other experts", updated[:, 3].mean())
show("k3 between π replayed and its own router", updated[:, 2].mean())
show("a wrong router: mean k3", "its own", "replayed", "other experts")
show("routers moved by a fifth", slight.mean(0)[[0, 1, 3]], digits=5)
show("rows of one router in a wrong order", worst.mean(0)[[0, 1, 3]], digits=5)

# %% tags=["hide-input"]
BOUND = 1e-3  # alarm of NeMo RL's guide on the KL (lesson 12); rounding of this model is smaller: see moe_replay
rings, still = (int((slight[:, way] > BOUND).sum()) for way in (0, 1))
assert bool((slight[:, 1] < slight[:, 0]).all() & (worst[:, 1] < worst[:, 0]).all())
assert float(worst[:, 1].min()) > BOUND
assert rings > DRAWS / 2
assert still == 0
say(f"""
- **Old choices.** After the update {float(updated[:, 3].mean()):.0%} of the tokens would go to other experts in some
  layer. The policy that replays the old choices is not the policy that the engine serves next: k3 between the two is
  {float(updated[:, 2].mean()):.4f}.
- **A wrong router.** With replay, k3 is smaller in every draw. Rows in a wrong order are still found: their smallest k3
  with replay is {float(worst[:, 1].min()):.3f}, above the bound of {BOUND:.3f} that NeMo RL's guide uses (lesson 12).
  Routers that are off by a fifth exceed this bound in {rings} of {DRAWS} draws without replay, and in none with replay.
  Yet {float(slight[:, 3].mean()):.0%} of the tokens would go to other experts in some layer.

So with replay, watch the share of tokens that the trainer's own router would send to other experts.
""")

# %% [markdown]
# Replay can also go wrong itself. Suppose that a step is cut into four micro-batches, and that the last one is replayed
# with the experts of the one before it, because an old list was not replaced. All shapes are right, and no error is
# raised.

# %% tags=["hide-input"]
quarter = len(clean) // 4
of_another = experts.clone()
of_another[-quarter:] = experts[-2 * quarter : -quarter]
stale, _, _ = forward(scored.replace(routed_experts=of_another), replay=True)
hit, spared = (float(k3((stale - clean)[rows][real[rows]]).mean()) for rows in (slice(-quarter, None), slice(-quarter)))
assert spared < 1e-12
say(f"""
The mean k3 of the last micro-batch is {hit:.2f}, and that of the others is 0. For comparison, rounding alone makes
{float(k3(flat["moe_replay"]).mean()):.5f} in `moe_replay`. So compare the gaps of the micro-batches of a step. (Lesson
15 plants this bug.)
""")

# %% [markdown]
# ## Exercise 1: was it swapped?
#
# *5 minutes.* You get the logits of the trainer's and of the engine's router, both with one row per token and one
# column per expert, and how many experts are taken, `k`. Return for each token whether the engine took other experts:
# `(N,)`, True or False.
#
# <details><summary>Hint 1</summary><code>z.topk(k).indices</code> gives the numbers of the experts, the largest logit
# first.</details>
# <details><summary>Hint 2</summary>The order among the taken experts does not matter. Sort their numbers.</details>


# %%
def swapped(trainer_logits, engine_logits, k):
    raise NotImplementedError("exercise 1: write swapped, then run this cell and the next.")


# %% tags=["check"]
check(swapped, SWAPPED)


# %% tags=["solution", "hide-input"]
def swapped_solution(trainer_logits, engine_logits, k):
    own_set = trainer_logits.topk(k).indices.sort(-1).values
    engine_set = engine_logits.topk(k).indices.sort(-1).values
    return (own_set != engine_set).any(-1)


check(swapped_solution, SWAPPED)

# %% [markdown]
# ## Exercise 2: the weights under replay
#
# *5 minutes.* You get the trainer's logits, with one row per token and one column per expert, and the experts that the
# engine took, `(N, k)`. Return the weights with which the trainer adds the outputs of these experts, `(N, k)`, in the
# order of `experts`.
#
# <details><summary>Hint 1</summary>Use the trainer's own logits, but those of the engine's experts.</details>
# <details><summary>Hint 2</summary><code>logits.gather(-1, experts)</code> are the logits. Turn them into weights that
# add up to 1.</details>


# %%
def replayed_weights(logits, experts):
    raise NotImplementedError("exercise 2: write replayed_weights, then run this cell and the next.")


# %% tags=["check"]
check(replayed_weights, REPLAYED_WEIGHTS)


# %% tags=["solution", "hide-input"]
def replayed_weights_solution(logits, experts):
    return logits.gather(-1, experts).softmax(-1)


check(replayed_weights_solution, REPLAYED_WEIGHTS)

# %% [markdown]
# ## Exercise 3: is it a tail?
#
# *5 minutes.* `d` is `(N,)`. Add up k3 over all tokens. Return the share of this sum that belongs to the `count` tokens
# with the largest k3. If the share is large, a few tokens decide the mean. Then it is better to read these tokens than
# to look at averages.
#
# <details><summary>Hint 1</summary>k3 of d is e^d − 1 − d. It is large for very negative d, too.</details>
# <details><summary>Hint 2</summary><code>x.topk(count).values</code> are the largest.</details>


# %%
def share_of_largest(d, count):
    raise NotImplementedError("exercise 3: write share_of_largest, then run this cell and the next.")


# %% tags=["check"]
check(share_of_largest, SHARE_OF_LARGEST)


# %% tags=["solution", "hide-input"]
def share_of_largest_solution(d, count):
    return k3(d).topk(count).values.sum() / k3(d).sum()


check(share_of_largest_solution, SHARE_OF_LARGEST)

# %% [markdown]
# ## Check yourself
#
# **1. You change the engine from bfloat16 to a format with errors that are ten times smaller. What happens to the
# swaps?**
#
# <details><summary>They become ten times rarer, and are as large as before.</summary>Yes. The rate is proportional to
# the rounding error. The size is the difference between two experts.</details>
# <details><summary>They become ten times smaller, like all of the mismatch.</summary>No. This is true for tokens
# without a swap. A swap gives another expert, whatever the reason was.</details>
# <details><summary>They stop: the router now computes precisely enough.</summary>No. On some token the gap is always
# smaller than the error.</details>
#
# **2. k3 of a step jumps from 0.0003 to 0.003, and the mean |d| hardly changes. What do you look at first?**
#
# <details><summary>The temperature of the engine.</summary>No. A wrong temperature moves all tokens, and so the mean
# |d|.</details>
# <details><summary>The share of the tokens with the largest k3.</summary>Yes. If a few tokens have nearly all of it,
# read these tokens, and ask which part of the model makes choices.</details>
# <details><summary>The learning rate.</summary>Not yet. If the policy is too far from the engine's, many tokens show it
# and not only one.</details>
#
# **3. With replay the mismatch is small. Is the router right?**
#
# <details><summary>Yes: replay compares both routers.</summary>No. It compares nothing. It replaces the choice of the
# trainer's router.</details>
# <details><summary>We do not know: a large fault would show, a small one need not. Score one batch without
# replay.</summary>Yes. Watch the share of tokens for which the trainer would take other experts.</details>
# <details><summary>Yes: a wrong router would show in the weights of the experts.</summary>A very wrong router does. The
# weights of a router that is a little wrong cannot be distinguished from rounding.</details>
#
# ## In the app
#
# Start it with `make app`, then open
#
# - [the mismatch of moe_bf16 at step 40](http://localhost:8501/mismatch?run=moe_bf16&step=40): the tail on both sides
#   of ratio 1;
# - [the same of moe_replay](http://localhost:8501/mismatch?run=moe_replay&step=40);
# - [the tokens of moe_bf16](http://localhost:8501/tokens?run=moe_bf16&step=40&preset=decoupled_token_is): the one from
#   above;
# - [both runs over their steps](http://localhost:8501/training?run=moe_bf16&with=moe_replay).
#
# ## Pitfalls
#
# - **Averages.** One token can decide a mean over a heavy tail. Report the median step and the largest token with it.
# - **Concentration.** If a model is certain of most tokens, a few tokens have much of the k3 even without experts. This
#   does not prove swaps.
# - **Padding and prompts.** Replay needs the experts of every position that the trainer computes, also those of the
#   prompt. If they are missing, the trainer must use its own choice, and report it.
# - **Recomputation.** If the forward pass is repeated for the backward pass, it must be replayed again. Otherwise the
#   gradient belongs to other experts.
# - **Experts of another batch.** If the list of experts is left over from the micro-batch before, the trainer computes
#   nonsense without an error. Lesson 15 has this patient.
# - **Old choices.** With stale or asynchronous sampling (lesson 13) the replayed choices are as old as the tokens.
# - **Small models.** Our model has only three layers with experts. For a large model it was reported that a tenth of
#   the routers differ, and that 94 % of the tokens differ in at least one layer ([Rollout routing
#   replay](https://arxiv.org/abs/2510.11370)). Then hardly any token is without a swap, and the swaps are not a tail
#   but the whole gap.
#
# ## References
#
# 1. [Stabilizing MoE RL by Aligning Training and Inference Routers](https://arxiv.org/abs/2510.11370), 2025: router
#    replay, and how often routers differ in a large model.
# 2. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: when replay is
#    needed in addition to weights and clipping.
# 3. [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556), 2025: a system that keeps the routing of its samples.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The proofs are for two experts, and for jumps of one size.
#
# ### The integral, the jump and the gradient

# %% tags=["hide-input"]
u, s, x = sympy.symbols("u", positive=True), sympy.symbols("s", positive=True), sympy.Symbol("x", real=True)
tail = sympy.erfc(u / sympy.sqrt(2)) / 2  # Φ(−u)
assert sympy.simplify(sympy.integrate(tail, (u, 0, sympy.oo)) - 1 / sympy.sqrt(2 * sympy.pi)) == 0

# log-prob of the first token as the difference of the logits goes through 0
high, low = sympy.Rational(8, 10), sympy.Rational(1, 10)
blend = sympy.log(high / (1 + sympy.exp(-x)) + low / (1 + sympy.exp(x)))
decided = sympy.log(high) * sympy.Heaviside(x) + sympy.log(low) * sympy.Heaviside(-x)
assert sympy.limit(blend, x, 0, "+") == sympy.limit(blend, x, 0, "-")
assert sympy.simplify(sympy.exp(sympy.limit(decided, x, 0, "+") - sympy.limit(decided, x, 0, "-"))) == 8

# two of three experts: the output jumps by (weight of the last one taken) · (difference of experts)
E1, E2, E3 = sympy.symbols("E_1 E_2 E_3")  # what each expert gives
top, tie = sympy.symbols("z_top z_tie", real=True)
weight_top, weight_tie = (sympy.exp(z) / (sympy.exp(top) + sympy.exp(tie)) for z in (top, tie))
jump = weight_top * E1 + weight_tie * E2 - (weight_top * E1 + weight_tie * E3)
assert sympy.simplify(jump - weight_tie * (E2 - E3)) == 0

# the weights of two taken experts have a gradient; the weight of a single one has none
z_i, z_j = sympy.symbols("z_i z_j", real=True)
two_taken = sympy.exp(z_i) / (sympy.exp(z_i) + sympy.exp(z_j))
assert sympy.diff(sympy.exp(z_i) / sympy.exp(z_i), z_i) == 0
assert sympy.simplify(sympy.diff(two_taken, z_i) - two_taken * (1 - two_taken)) == 0
show("∫ Φ(−u) du = 1/√2π", "proved")
show("the jump at a tie; blended there is none", "proved")

# %% [markdown]
# ### k3 and kurtosis of noise and jumps

# %% tags=["hide-input"]
density_0, c, J = sympy.symbols("D_0 c J", positive=True)
P = density_0 * s / sympy.sqrt(2 * sympy.pi)
k3_of_jump = sympy.exp(J) - 1 - J
k3_of_noise = sympy.series(sympy.exp(u) - 1 - u, u, 0, 3).removeO().coeff(u, 2) * (c * s) ** 2  # E[u²] = c² s²
fourth, square = (1 - P) * 3 * (c * s) ** 4 + P * J**4, (1 - P) * (c * s) ** 2 + P * J**2
mean_k3 = (1 - P) * k3_of_noise + P * k3_of_jump
assert k3_of_noise == c**2 * s**2 / 2
assert sympy.simplify(sympy.limit(mean_k3 / s, s, 0) - k3_of_jump * density_0 / sympy.sqrt(2 * sympy.pi)) == 0
assert sympy.limit((1 - P) * k3_of_noise / mean_k3, s, 0) == 0  # in the limit there are only swaps
assert sympy.limit(P * fourth / square**2, s, 0) == 1  # kurtosis · Pr(swap) → 1 for jumps of one size
show("k3 is linear in the noise, as it goes to 0", "proved")
show("kurtosis · Pr(swap) → 1", "proved")

# %% [markdown]
# ### A real router
#
# A run records the engine's log-probs, and not which experts it took. So here the model from which both runs started is
# its own engine. It gets normal noise on the inputs of its routers, and nowhere else. Then every swap is known. If the
# noise on each input has the standard deviation $\epsilon$, then the noise of the difference of two logits has
# $\sigma = \epsilon\,\lVert \mathrm{row}_i - \mathrm{row}_j\rVert$, where $\mathrm{row}_i$ is the row of expert $i$ in
# the router. So the swaps of the first layer can be predicted, token by token, by $\Phi(-\gamma/\sigma)$. The columns
# of the table: swaps in the first layer, their predicted number, k3 of all tokens, of those that no swap has reached,
# and of all tokens with replay, and the largest $|d|$ without and with replay.

# %% tags=["hide-input"]
order = logits[..., 0, :].sort(-1, descending=True)  # first layer: no earlier layer has got noise
gap = order.values[..., 1] - order.values[..., 2]
rows = router_rows[0].detach()
apart = (rows[order.indices[..., 1]] - rows[order.indices[..., 2]]).norm(dim=-1)
REPEATS, SIZES, measured = 8, (0.02, 0.01, 0.005), {}
show("noise", "swaps", "predicted", "k3 · 10⁶", "no swap", "replayed", "max |d|", "replayed")
for noise in SIZES:
    swaps, parts = 0, {"all": [], "no swap": [], "replayed": []}
    for _ in range(REPEATS):
        noisy, _, other = forward(scored, noise)
        moved = differ(experts, other)
        swaps += int(moved[..., 0][attention].sum())
        reached = moved.any(-1).cumsum(1)[:, before_first:-1] > 0  # at this token or before
        again, _, _ = forward(scored.replace(routed_experts=other), replay=True)
        for part, x in (("all", clean[real] - noisy[real]), ("no swap", (clean - noisy)[real & ~reached]),
                        ("replayed", (again - noisy)[real])):  # fmt: skip
            parts[part].append(x)
    predicted = REPEATS * float(torch.special.ndtr(-gap / (noise * apart))[attention].sum())
    joined = {name: torch.cat(part) for name, part in parts.items()}
    means = {name: 1e6 * float(k3(x).mean()) for name, x in joined.items()}
    tops = [float(joined[name].abs().max()) for name in ("all", "replayed")]
    show(f"{noise}", swaps, text(predicted, 1), *(text(x, 1) for x in means.values()), *(text(x, 2) for x in tops))
    measured[noise] = means | {"top": tops[0], "steps": torch.stack([k3(x).mean() for x in parts["all"]])}
    assert abs(swaps - predicted) < 3 * math.sqrt(predicted)
    assert abs(means["replayed"] / means["no swap"] - 1) < 0.2
    assert tops[1] < tops[0] / 3

# %% tags=["hide-input"]
coarse, fine = measured[SIZES[0]], measured[SIZES[-1]]
redrawn = torch.randint(REPEATS, (2, 4000, REPEATS), generator=generator)
falls = coarse["steps"][redrawn[0]].mean(-1) / fine["steps"][redrawn[1]].mean(-1)
low, high = torch.quantile(falls, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
fall = Interval(coarse["all"] / fine["all"], low, high)
assert 14 < coarse["no swap"] / fine["no swap"] < 18
say(f"""
The counts agree with the prediction. The finest noise is a quarter of the coarsest. For tokens without a swap, at this
token or before it, k3 falls {coarse["no swap"] / fine["no swap"]:.0f} times. Over all tokens it falls
{below(fall, 14, digits=1)} times. The largest |d| is {coarse["top"]:.2f} with the coarsest noise and {fine["top"]:.2f}
with the finest. So swaps become rarer, but their size does not fall in proportion. **Replay brings all tokens back to
the k3 of tokens that no swap has reached.**
""")
