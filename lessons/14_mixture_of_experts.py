# %% [markdown]
# # 14 · Mixture of experts: a swap is not rounding
#
# **Claim.** A router decides, and near a tie rounding decides otherwise: such swaps are rare and as large as two
# experts differ, so the mismatch gets a heavy tail, which finer rounding thins out and router replay removes.
#
# *30 minutes · advanced · any laptop; no GPU, no network.* You need the ratio of lesson 00 and k3 as lesson 07 uses it.
# Lesson 03 shows other sources of the mismatch, lesson 13 what old weights do. Letters: [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - derive how often rounding swaps an expert, from the density of the gap at 0;
# - say why rounding the router's own numbers swaps nothing, and rounding what it reads does;
# - tell a heavy tail from a wide one, and say which numbers cannot;
# - say what router replay repairs, and four things that it leaves.

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_14 import REPLAYED_WEIGHTS, SHARE_OF_LARGEST, SWAPPED
from recorded import load
from sentences import above, below, say
from show import picture, show, text

from rlcorr import correct, preset
from rlcorr.figures.comparison import tails
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a progress bar asks for a widget that nobody needs
    from rlcorr.train.learner.policy import Policy, load_lm

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(14)

# %% [markdown]
# ## A part of the model that decides
#
# In a **mixture of experts** a layer holds several networks side by side, the **experts**, and a token goes through
# only a few of them. A small linear map, the **router**, gives each expert a logit $z_i$; the experts with the largest
# logits are taken, and their outputs are added with the weights $e^{z_i}/\sum_{\text{taken}} e^{z_j}$.
#
# Everything else in a network is smooth: a little rounding in, a little difference out. Taking the largest is not. The
# **gap** $\gamma$ is the distance between the logits of the last expert that is taken and the first that is not. If
# rounding moves the two by more than the gap, the engine takes another expert than the trainer. That is a **swap**.
#
# ## By hand: one token, two experts
#
# The router gives expert one the logit 1.00 and expert two 0.99, and takes one of them. Expert one predicts the next
# token with probabilities 0.8, 0.1, 0.1; expert two with 0.1, 0.8, 0.1. In the engine, rounding has moved both logits
# by 0.01: 0.99 and 1.00. What is the ratio of the first token? And what would it be if both experts were blended?

# %%
EXPERTS = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)


def mixture(z, taken, experts=EXPERTS):
    """Next-token probabilities: so many experts with the largest logits, blended by their weights."""
    best = z.topk(taken).indices
    return (z.gather(-1, best).softmax(-1)[..., None] * experts[best]).sum(-2)


trainer, engine = (torch.tensor(z, dtype=torch.float64) for z in ([1.00, 0.99], [0.99, 1.00]))
show("token", "first", "second", "third")
show("one expert: r = p/q", mixture(trainer, 1) / mixture(engine, 1))
show("both blended: r = p/q", mixture(trainer, 2) / mixture(engine, 2))

# %% [markdown]
# By hand: blended, rounding of 1 % moves a probability by less than 1 %. Decided, by a factor of 8. And with a rounding
# ten times finer the factor would still be 8, only less often.
#
# ## How often
#
# Let $D$ be the density of the gap over tokens, and let rounding move the difference of the two logits by a normal
# error with standard deviation $\sigma$. A token with the gap $\gamma$ swaps with probability $\Phi(-\gamma/\sigma)$,
# where $\Phi$ is the normal distribution function. Only gaps of the size of $\sigma$ matter, and there $D$ is nearly
# $D(0)$:
#
# $$ P(\text{swap}) = \int_0^\infty D(\gamma)\,\Phi(-\gamma/\sigma)\,d\gamma \approx
# D(0)\,\sigma\int_0^\infty \Phi(-u)\,du = \frac{D(0)\,\sigma}{\sqrt{2\pi}} . $$
#
# It is **proportional to the rounding**. Random logits of eight experts, of which two are taken; noise on each:

# %% tags=["hide-input"]
N = 400_000
z = torch.randn(N, 8, dtype=torch.float64, generator=generator)
ranked = z.argsort(-1, descending=True)


def at_the_edge(logits):
    """Logits of the experts that stand second and third in z: the last one taken, the first one not."""
    return [logits.gather(-1, ranked[:, place : place + 1])[:, 0] for place in (1, 2)]


second, third = at_the_edge(z)
gap = second - third
density = float((gap < 0.05).double().mean()) / 0.05
show("noise on a logit", "swaps", "±", "D(0) σ/√2π", digits=5)
for of_logit in (0.04, 0.02, 0.01):
    moved_second, moved_third = at_the_edge(z + of_logit * torch.randn(N, 8, dtype=torch.float64, generator=generator))
    swaps = float((moved_second < moved_third).double().mean())
    predicted = density * math.sqrt(2) * of_logit / math.sqrt(2 * math.pi)  # of the difference of two logits: √2 times
    show(f"{of_logit}", swaps, math.sqrt(swaps / N), predicted, digits=5)
    exact = float(torch.special.ndtr(-gap / (math.sqrt(2) * of_logit)).mean())
    assert abs(swaps - exact) < 3 * math.sqrt(swaps / N)
    assert abs(predicted / exact - 1) < 0.06

# %% [markdown]
# Half the noise, half the swaps.
#
# ## Predict, then reveal
#
# Now no noise. The eight logits are rounded to bfloat16 as they are, and nothing else is rounded. **Write down a
# guess:** in what share of the tokens do the second and the third expert change their order? And in what share do they
# become equal?

# %% tags=["hide-input"]
rounded_second, rounded_third = (x.to(torch.bfloat16).double() for x in (second, third))
opposite, ties = int((rounded_second < rounded_third).sum()), int((rounded_second == rounded_third).sum())
spacing = 2.0 ** (torch.floor(torch.log2(second.abs())) - 7)  # from one bfloat16 number to the next
expected_ties = float((1 - gap / spacing).clamp(min=0).sum())
assert opposite == 0
assert abs(ties - expected_ties) < 4 * math.sqrt(expected_ties)
say(f"""
In opposite order: **{opposite}** of {N:,}. Equal: {ties:,}, or {ties / N:.1%}.

**Rounding is monotone**: what was larger stays larger, or becomes equal. A tie is settled by something that has nothing
to do with the token, such as the number of the expert. What swaps experts freely is the rounding that happened
**before** the router: in attention, in the KV cache, in the layers below. Its errors reach two logits differently. So a
router that computes in 32 bits cannot prevent swaps: it decides precisely on what it is given.
""")

# %% [markdown]
# ## A heavy tail is not a wide one
#
# With probability $1-P$ let $d$ be small noise, proportional to $\sigma$; with probability $P \propto \sigma$ a jump
# $J$, whose size does not depend on $\sigma$. Then, to leading order,
#
# $$ \mathbb{E}[k_3] \approx \underbrace{\tfrac12\, \mathbb{E}[\text{noise}^2]}_{\propto\, \sigma^2} +
# \underbrace{P\;\mathbb{E}[k_3(J)]}_{\propto\, \sigma}, \qquad \frac{\mathbb{E}[d^4]}{\mathbb{E}[d^2]^2} \approx
# \frac{1}{P}\,\frac{\mathbb{E}[J^4]}{\mathbb{E}[J^2]^2} . $$
#
# On the left: make rounding ten times finer, and the noise's k3 falls a hundredfold, that of the swaps only tenfold. So
# **the finer the rounding, the larger the share of the swaps**. On the right is the **kurtosis**, which measures how
# heavy a tail is, whatever its width: it grows as $1/P$.
#
# A tiny world shows it: the two experts from above with softmax outputs, noise on the router's logits and on the
# outputs, exact averages over the next token. Three ways to score: blend both experts; take one; take the one that the
# engine took, which is **router replay**. **Look for** the slopes. Two lines, one on the other, fall by two decades per
# decade of noise; the third by one, and so lies ever further above them.

# %% tags=["hide-input"]
TOKENS, NOISES = 40_000, [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
router = 2 * torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)
outputs = EXPERTS.log() + 0.3 * torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)
shaken = torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)
jitter = torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)


def log_next(logits, out, route):
    """log-probs of the next token, (N, 3): both experts blended, or the one named by route (N,)."""
    if route is None:
        return (logits.softmax(-1)[..., None] * out.softmax(-1)).sum(-2).log()
    return out[torch.arange(len(out)), route].log_softmax(-1)


WAYS = ("blend of both", "router", "router, replayed")
toy_k3, kurtosis = {name: [] for name in WAYS}, {name: [] for name in WAYS}
for noise in NOISES:
    seen, out = router + noise * shaken, outputs + noise * jitter
    mine, theirs = router.argmax(-1), seen.argmax(-1)
    for name, (of_trainer, of_engine) in zip(WAYS, ((None, None), (mine, theirs), (theirs, theirs)), strict=True):
        log_q = log_next(seen, out, of_engine)
        d, q = log_next(router, outputs, of_trainer) - log_q, log_q.exp()
        toy_k3[name].append(float((q * k3(d)).sum(-1).mean()))
        kurtosis[name].append(float((q * d**4).sum(-1).mean() / (q * d**2).sum(-1).mean() ** 2))
picture(curves(NOISES, toy_k3, x_name="noise σ", y_name="mean k3", log="xy"))

# %% tags=["hide-input"]
slopes = {name: math.log(of_way[2] / of_way[0]) / math.log(NOISES[2] / NOISES[0]) for name, of_way in toy_k3.items()}
assert all(1.9 < slopes[name] < 2.1 for name in ("blend of both", "router, replayed"))
assert 0.7 < slopes["router"] < 1.3
say(f"""
Over the finer half the slopes are {slopes["blend of both"]:.1f} blended, {slopes["router"]:.1f} with a router, and
{slopes["router, replayed"]:.1f} with replay. The kurtosis of the router's line is {kurtosis["router"][-2]:.0f} at the
second coarsest noise and {kurtosis["router"][0]:.0f} at the finest; replayed it is
{kurtosis["router, replayed"][-2]:.0f} and {kurtosis["router, replayed"][0]:.0f}. Replay leaves noise of the usual kind.
""")

# %% [markdown]
# ## The same on recorded runs
#
# `moe_bf16` trains a small mixture of experts (three layers, eight experts, of which a token takes two) with an engine
# in bfloat16; the trainer, in 32 bits, follows its own router. `moe_replay` is the same training with router replay.
# The last recorded step of both, A with its own router and B replayed. **Look for** where the lines part: their bulk,
# to the left, is one.

# %% tags=["hide-input"]
STEPS = {"moe_bf16": -1, "moe_replay": -1, "bf16": 0, "kv_fp8_e5m2": -1}
batches = {name: load(name, n) for name, n in STEPS.items()}
every_d = {name: batch.tensors()["old_log_probs"] - batch.rollout_log_probs for name, batch in batches.items()}
flat = {name: d[batches[name].response_mask] for name, d in every_d.items()}
picture(tails(batches["moe_bf16"], batches["moe_replay"]))

# %% [markdown]
# Beside them two dense models, which have no experts: `bf16`, and `kv_fp8_e5m2` with a coarse KV cache.

# %% tags=["hide-input"]
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
largest = {name: float(d.abs().max()) for name, d in flat.items()}
of_one = {name: float(k3(d).max() / k3(d).sum()) for name, d in flat.items()}
assert largest["kv_fp8_e5m2"] > largest["moe_bf16"] > 3 * max(largest["bf16"], largest["moe_replay"])
assert of_one["moe_bf16"] > 0.9

# %% tags=["hide-input"]
say(f"""
The typical token is the same with replay and without. But in the step without, one token of {len(flat["moe_bf16"])}
holds {of_one["moe_bf16"]:.0%} of the k3.

Be careful with the other lines. In `bf16`, without experts, one token holds {of_one["bf16"]:.0%} too, and the kurtosis
is larger than with replay: rounding moves an uncertain token far more than a certain one, and this task has few
uncertain ones. So **concentration alone proves nothing**. Nor does the size: a coarse KV cache reaches
{largest["kv_fp8_e5m2"]:.1f} without any expert. What speaks for swaps is the pair of runs, which differ in nothing but
replay. (One training each.)
""")

# %% [markdown]
# Here is the token.

# %% tags=["hide-input"]
batch, d = batches["moe_bf16"], every_d["moe_bf16"]
record = runs.read_step(runs.find_run("moe_bf16"), 40)
row, place = divmod(int((d.abs() * batch.response_mask).argmax()), d.shape[1])
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
The engine gave this token a probability {1 / float(r[place]):.0f} times that of the trainer, as if another expert had
another digit in mind. (That it was a swap is a conclusion: the run did not keep the experts.) A cap never sees it,
since the ratio is below 1; but its weight is then {float(r[place]):.2f}, and that is right: the trainer hardly ever
writes it. Such tokens are drawn **because** the engine believes in them, so this side of the tail is the one that
shows. On the other side are tokens that the trainer would write and the engine does not: rarely drawn, and heavy when
they are. That side a cap must bound.
""")

# %% [markdown]
# One step may be luck. The runs keep their metrics of every step. **Look for** the spikes of one line.

# %% tags=["hide-input"]
RUNS, COUNT, BLOCK = ("moe_bf16", "moe_replay", "bf16"), 40, 5
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
resampled = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)  # steps side by side are alike: drawn by five


def interval(statistic, *series):
    """A number of these series of steps, and where it lies for the same drawn steps of each."""
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
less = interval(
    lambda a, b, x, y: of_means(a, b) / of_means(x, y),
    unreplayed["k3"],
    replayed["k3"],
    unreplayed["abs"],
    replayed["abs"],
)
spikes = unreplayed["k3"] > 5e-4
extreme = torch.maximum(k3(unreplayed["high"].log()), k3(unreplayed["low"].log())) / unreplayed["tokens"]
share = (extreme / unreplayed["k3"])[spikes].median()
engine_s = int((unreplayed["low"].log().abs() > unreplayed["high"].log())[spikes].sum())
say(f"""
In a typical spike (k3 above 5e-4) one token holds {share:.0%} of the k3, and in {engine_s} of {int(spikes.sum())} it is
one that the engine believed in and the trainer did not.

- Without replay the mean k3 over {COUNT} steps is {above(gain["k3"], 1, digits=1)} times that with it, and the largest
  1/r {float(replayed["low"].min() / unreplayed["low"].min()):.0f} times as large.
- The mean |d| is {above(gain["abs"], 1)} times as large; the factor of k3 is {above(less, 1, digits=1)} times this one.
  The **tail** is what differs.
- The median step is {above(middle, 1, digits=1)} times as large: the usual step may hold swaps too, of experts that
  nearly agree.
- The mean ratio is 1 in all runs, within its interval. A swapped expert gives another policy, but an honest one.

The intervals draw blocks of {BLOCK} steps. The mean of a heavy tail is known worse than its interval says, which knows
only what was drawn: step {int(unreplayed["k3"].argmax()) + 1} alone holds
{float(unreplayed["k3"].max() / unreplayed["k3"].sum()):.0%} of the sum.
""")
for name in RUNS:
    mean_ratio = interval(lambda x: x.mean(-1), over_steps[name, "ratio"])
    assert mean_ratio.low < 1 < mean_ratio.high

# %% [markdown]
# ## What replay does, and what it does not
#
# The engine hands over which experts it took, for every token and layer. In the trainer each router computes its logits
# as always, but the experts are the engine's; the weights are the trainer's own probabilities, divided by their sum
# over the taken experts. So $p$ is a smooth function of the rounding again. The choice at a position depends only on
# the text before the next token; so $p$ is still a policy, and the ratios still average to 1. (In the appendix the
# model plays its own engine, so that every swap is known: replay brings all tokens back to what no swap ever touched.)
#
# It leaves four things:
#
# 1. **Rounding.** With replay a mixture is a model of the usual kind, with its noise.
# 2. **Old choices.** After an update, $\pi$ replays experts that its own router would no longer take; but its own
#    router is what the engine serves next.
# 3. **A wrong router is quieter.** One that was not synchronised takes the right experts, because it is told to; what
#    is left of the alarm is its weights.
# 4. **The decision has no gradient**, with or without replay: what changes which expert is taken is invisible to it.
#
# The second and the third, on the model that both runs started from, in 64 bits: all weights are moved a little, as by
# an update; or the routers alone, and one of them with its rows in the wrong order. Each is drawn anew a few times.

# %% tags=["hide-input"]
lm = load_lm(runs.ROOT / "warm_start_moe" / "checkpoint", torch.device("cpu")).double().eval()
lm.set_experts_implementation("eager")  # the only one in 64 bits
policy = Policy(lm, critic=None)
gates = [module for name, module in lm.named_modules() if name.endswith("mlp.gate")]
router_rows = [gate.get_parameter("weight") for gate in gates]  # (experts, width) each

scored = load("moe_bf16", 0)
scored = scored.replace(**{key: scored.tensors()[key].long() for key in ("prompt_ids", "response_ids")})
real = scored.response_mask
attention = torch.cat([scored.tensors()["prompt_mask"], real], -1)
before_first = scored.tensors()["prompt_ids"].shape[1] - 1  # the place that predicts the first token of a response


def forward(batch, noise=0.0, replay=False):
    """log-probs of the responses, and of every token and layer the router's logits and the experts taken."""
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
    """Mean k3 of the model that `change` has moved, beside the model as it was: by its own router, and replayed. And
    by its own router beside itself replayed; and the share of tokens with other experts."""
    before = [parameter.detach().clone() for parameter in lm.parameters()]
    with torch.no_grad():
        change()
    mine, _, mine_experts = forward(scored)
    told, _, _ = forward(scored.replace(routed_experts=experts), replay=True)
    with torch.no_grad():
        for parameter, saved in zip(lm.parameters(), before, strict=True):
            parameter.copy_(saved)
    pairs = ((mine, clean), (told, clean), (told, mine))  # log p, log q
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
show("k3 of π replayed, beside its own router", updated[:, 2].mean())
show("a wrong router: mean k3", "its own", "replayed", "other experts")
show("routers moved by a fifth", slight.mean(0)[[0, 1, 3]], digits=5)
show("rows of one in a wrong order", worst.mean(0)[[0, 1, 3]], digits=5)

# %% tags=["hide-input"]
BOUND = 1e-3  # the KL that NeMo RL's guide takes for an alarm (lesson 12); this model rounds by less: see moe_replay
rings, still = (int((slight[:, way] > BOUND).sum()) for way in (0, 1))
assert bool((slight[:, 1] < slight[:, 0]).all() & (worst[:, 1] < worst[:, 0]).all())
assert float(worst[:, 1].min()) > BOUND
assert rings > DRAWS / 2
assert still == 0
say(f"""
After the update {float(updated[:, 3].mean()):.0%} of the tokens would go to other experts in some layer, and the policy
that replays the old choices is not the one that the engine serves next: between the two k3 is
{float(updated[:, 2].mean()):.4f}.

A wrong router is quieter with replay in every draw. Rows in the wrong order still ring: their smallest k3 with replay
is {float(worst[:, 1].min()):.3f}, and an alarm at {BOUND:.3f} (NeMo RL's bound of lesson 12) would ring. Routers that
are off by a fifth exceed that bound in {rings} of {DRAWS} draws by themselves, and in none with replay. Yet
{float(slight[:, 3].mean()):.0%} of the tokens would go to other experts in some layer. So watch that share: how many
tokens the trainer would send elsewhere than it is told.
""")

# %% [markdown]
# ## Exercise 1: was it swapped?
#
# *5 minutes.* You get the logits of the trainer's and of the engine's router, `(N, E)`, and how many experts are taken.
# Return for each token whether the engine took other experts, `(N,)` truths.
#
# <details><summary>Hint 1</summary><code>z.topk(k).indices</code> gives the places, the largest first.</details>
# <details><summary>Hint 2</summary>The order among the taken experts does not matter. Sort the places.</details>


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
# *5 minutes.* You get the trainer's logits `(N, E)` and the experts that the engine took `(N, k)`. Return the weights
# with which the trainer adds their outputs, `(N, k)`, in the order of the experts.
#
# <details><summary>Hint 1</summary>The trainer's own logits, of other experts than it would take.</details>
# <details><summary>Hint 2</summary><code>logits.gather(-1, experts)</code>, and then make them add up to 1.</details>


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
# *5 minutes.* Return the share of the summed k3 that the `count` tokens with the largest k3 hold; `d` is `(N,)`. If it
# is large, the mean is the story of these few tokens, and reading them tells more than any average.
#
# <details><summary>Hint 1</summary>k3 of d is e^d − 1 − d: it is large for very negative d, too.</details>
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
# **1. You move the engine from bfloat16 to a format with errors ten times smaller. What becomes of the swaps?**
#
# <details><summary>They become ten times rarer, and as large as before.</summary>Yes. How often is proportional to the
# error; how large is the difference of two experts.</details>
# <details><summary>They become ten times smaller, as all of the mismatch.</summary>No. Where no swap happens it does.
# A swap is another expert, whatever made the router take it.</details>
# <details><summary>They stop: the router now computes precisely enough.</summary>No. There is always a gap smaller than
# the error, on some token.</details>
#
# **2. k3 of a step jumps from 0.0003 to 0.003, and the mean |d| hardly moves. What do you look at first?**
#
# <details><summary>The temperature of the engine.</summary>No. A wrong temperature moves all tokens, and so the
# mean |d|.</details>
# <details><summary>The share of the largest tokens.</summary>Yes. If a few hold nearly all, read these tokens, and ask
# what in the model decides.</details>
# <details><summary>The learning rate.</summary>Not yet. A policy that is too far from the engine's shows in many
# tokens, not in one.</details>
#
# **3. With replay on, the mismatch is small. Is the router in order?**
#
# <details><summary>Yes: replay compares both routers.</summary>No. It compares nothing. It overrules the trainer's.
# </details>
# <details><summary>A large fault would show; a small one need not. Score one batch without replay.</summary>Yes. The
# share of tokens where the trainer would take other experts is the number to watch.</details>
# <details><summary>Yes: a wrong router would show in the weights of the experts.</summary>A very wrong one does. One
# that is a little wrong is not told from rounding there.</details>
#
# ## In the app
#
# Start it with `make app`, then open
#
# - [the mismatch of moe_bf16 at step 40](http://localhost:8501/mismatch?run=moe_bf16&step=40): the tail, and both signs
#   of it;
# - [the same of moe_replay](http://localhost:8501/mismatch?run=moe_replay&step=40);
# - [the tokens of moe_bf16](http://localhost:8501/tokens?run=moe_bf16&step=40&preset=decoupled_token_is): the one from
#   above;
# - [both trainings over their steps](http://localhost:8501/training?run=moe_bf16&with=moe_replay).
#
# ## Pitfalls
#
# - **Averages.** A mean over a heavy tail is decided by one token. Give the median step and the largest token with it.
# - **Concentration.** Few tokens hold most of the k3 in every run of a confident model. It is no proof of swaps.
# - **Padding and prompts.** Replay needs the experts of every position that the trainer computes, prompts included;
#   where they are missing the trainer must fall back to its own choice, and say so.
# - **Recomputation.** If the forward pass is repeated for the backward pass, it must be replayed again, or the
#   gradient belongs to other experts.
# - **Old choices.** With stale or asynchronous sampling (lesson 13) the replayed choices are as old as the tokens.
# - **Small models.** Two of eight experts in three layers is little. Of a large model it was reported that a tenth of
#   the routers differ, and 94 % of the tokens in at least one layer
#   ([Rollout routing replay](https://arxiv.org/abs/2510.11370)): then there is no untouched bulk to compare with.
#
# ## References
#
# 1. [Stabilizing MoE RL by Aligning Training and Inference Routers](https://arxiv.org/abs/2510.11370), 2025: router
#    replay, and how often routers differ in a large model.
# 2. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: when replay is
#    needed beside weights and clipping.
# 3. [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556), 2025: a system that keeps the routing of its samples.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; with symbols, for two experts and for a jump of one size.
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

# the weights of two taken experts have a gradient, that of one has none
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
assert sympy.limit((1 - P) * k3_of_noise / mean_k3, s, 0) == 0  # in the end nothing but swaps
assert sympy.limit(P * fourth / square**2, s, 0) == 1  # kurtosis · P → 1 for one size of jump
show("k3 is linear in the noise, as it goes to 0", "proved")
show("kurtosis · P → 1", "proved")

# %% [markdown]
# ### A real router
#
# A run records what the engine said, not which experts it took. So the model that both runs started from plays the
# engine: normal noise on what each router **reads**, and nowhere else. Then every swap is known. Noise $\epsilon$ on
# each number moves the difference of two logits by $\sigma = \epsilon\,\lVert w_i - w_j\rVert$, the distance of their
# two rows in the router, so the swaps of the first layer can be predicted, token by token, from $\Phi(-\gamma/\sigma)$.

# %% tags=["hide-input"]
order = logits[..., 0, :].sort(-1, descending=True)  # of the first layer, whose input nothing has shaken yet
gap = order.values[..., 1] - order.values[..., 2]
rows = router_rows[0].detach()
apart = (rows[order.indices[..., 1]] - rows[order.indices[..., 2]]).norm(dim=-1)
REPEATS, SIZES, measured = 8, (0.02, 0.01, 0.005), {}
show("noise", "swaps", "predicted", "k3 · 10⁶", "no swap", "replayed", "largest", "replayed")
for noise in SIZES:
    swaps, parts = 0, {"all": [], "calm": [], "replayed": []}
    for _ in range(REPEATS):
        noisy, _, other = forward(scored, noise)
        moved = differ(experts, other)
        swaps += int(moved[..., 0][attention].sum())
        reached = moved.any(-1).cumsum(1)[:, before_first:-1] > 0  # at this token or before
        again, _, _ = forward(scored.replace(routed_experts=other), replay=True)
        for part, x in (("all", clean[real] - noisy[real]), ("calm", (clean - noisy)[real & ~reached]),
                        ("replayed", (again - noisy)[real])):  # fmt: skip
            parts[part].append(x)
    predicted = REPEATS * float(torch.special.ndtr(-gap / (noise * apart))[attention].sum())
    joined = {name: torch.cat(part) for name, part in parts.items()}
    means = {name: 1e6 * float(k3(x).mean()) for name, x in joined.items()}
    tops = [float(joined[name].abs().max()) for name in ("all", "replayed")]
    show(f"{noise}", swaps, text(predicted, 1), *(text(x, 1) for x in means.values()), *(text(x, 2) for x in tops))
    measured[noise] = means | {"top": tops[0], "steps": torch.stack([k3(x).mean() for x in parts["all"]])}
    assert abs(swaps - predicted) < 3 * math.sqrt(predicted)
    assert abs(means["replayed"] / means["calm"] - 1) < 0.2
    assert tops[1] < tops[0] / 3

# %% tags=["hide-input"]
coarse, fine = measured[SIZES[0]], measured[SIZES[-1]]
redrawn = torch.randint(REPEATS, (2, 4000, REPEATS), generator=generator)
falls = coarse["steps"][redrawn[0]].mean(-1) / fine["steps"][redrawn[1]].mean(-1)
low, high = torch.quantile(falls, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
fall = Interval(coarse["all"] / fine["all"], low, high)
assert 14 < coarse["calm"] / fine["calm"] < 18
say(f"""
The counts agree with the prediction. From the coarsest noise to the finest, a quarter of it, k3 falls
{coarse["calm"] / fine["calm"]:.0f} times where no swap has happened, at this token or before; over all tokens
{below(fall, 14, digits=1)} times, and the largest difference is {coarse["top"]:.2f} at one and {fine["top"]:.2f} at the
other. Swaps become rarer, but not smaller in proportion. **Replay brings all tokens back to what no swap ever
touched.**
""")
