# %% [markdown]
# # 14 · Mixture of experts: a swap is not rounding
#
# **Claim.** A router decides, and near a tie rounding decides otherwise: such swaps are rare and as large as two
# experts differ, so the mismatch gets a heavy tail, which finer rounding thins out and router replay removes.
#
# *35 minutes · advanced · any laptop; no GPU, no network.* You need the ratio of lesson 00 and k3 as lesson 07 uses it.
# Lesson 03 shows other sources of the mismatch, and lesson 13 what a policy several updates old does.
#
# At the end you can
#
# - derive how often rounding swaps an expert, from the density of the gap at 0;
# - say why rounding the router's own numbers swaps nothing, and rounding what it reads does;
# - tell a heavy tail from a wide one, and say which numbers cannot;
# - say what router replay repairs, and four things that it leaves.

# %%
import math
import warnings

import sympy
import torch
from exercises.lesson_14 import REPLAYED_WEIGHTS, SHARE_OF_LARGEST, SWAPPED
from show import picture, show, text

from rlcorr import correct, preset
from rlcorr.analysis.triage import triage
from rlcorr.figures.comparison import tails
from rlcorr.figures.curves import curves
from rlcorr.ratios import k3, log_ratio, ratio
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
# only a few of them. A small linear map, the **router**, gives each expert a logit $z_i$; the $k$ experts with the
# largest logits are taken, and their outputs are added with the weights $e^{z_i}/\sum_{\text{taken}} e^{z_j}$.
#
# Everything else in a network is smooth: a little rounding in, a little difference out. Taking the $k$ largest is not.
# The **gap** $g = z_{(k)} - z_{(k+1)}$ is the distance between the last expert that is taken and the first that is not.
# If rounding moves the two by more than the gap, the engine takes another expert than the trainer. That is a **swap**.
#
# ## One token, two experts
#
# The router gives expert A the logit 1.00 and expert B 0.99, and takes one. A predicts the next token with
# probabilities 0.8, 0.1, 0.1; B with 0.1, 0.8, 0.1. In the engine, rounding has moved both logits by 0.01: 0.99 and
# 1.00. What is the ratio of the first token? And what would it be if both experts were blended?

# %%
EXPERTS = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)


def mixture(z, k, experts=EXPERTS):
    """Next-token probabilities: the k experts with the largest logits, blended by their weights."""
    taken = z.topk(k).indices
    return (z.gather(-1, taken).softmax(-1)[..., None] * experts[taken]).sum(-2)


trainer, engine = (torch.tensor(z, dtype=torch.float64) for z in ([1.00, 0.99], [0.99, 1.00]))

show("token", "first", "second", "third")
show("one expert: r = p/q", mixture(trainer, 1) / mixture(engine, 1))
show("both blended: r = p/q", mixture(trainer, 2) / mixture(engine, 2))

assert torch.allclose(mixture(trainer, 1) / mixture(engine, 1), torch.tensor([8, 1 / 8, 1], dtype=torch.float64))

# %% [markdown]
# The same rounding of 1 %: blended, it moves a probability by less than 1 %. Decided, by a factor of 8. And with a
# rounding ten times finer the factor would still be 8, only less often.

# %% [markdown]
# ## How often
#
# Let $f$ be the density of the gap over tokens, and let rounding move the difference of the two logits by a normal
# error with standard deviation $s$. A token of gap $g$ swaps with probability $\Phi(-g/s)$, where $\Phi$ is the normal
# distribution function. Only gaps of the size of $s$ matter, and there $f$ is nearly $f(0)$:
#
# $$ P(\text{swap}) = \int_0^\infty f(g)\,\Phi(-g/s)\,dg \approx f(0)\,s\int_0^\infty \Phi(-u)\,du
# = \frac{f(0)\,s}{\sqrt{2\pi}} . $$
#
# It is **proportional to the rounding**. If each logit has its own error $\sigma$, then $s = \sqrt2\,\sigma$.
#
# ### Check 1, with symbols

# %%
u, g, s, gate = sympy.symbols("u g s z", positive=True)
tail = sympy.erfc(u / sympy.sqrt(2)) / 2  # Φ(−u)
assert sympy.simplify(sympy.integrate(tail, (u, 0, sympy.oo)) - 1 / sympy.sqrt(2 * sympy.pi)) == 0
show("∫ Φ(−u) du =", str(sympy.simplify(sympy.integrate(tail, (u, 0, sympy.oo)))))

# what a swap does: log-prob of the first token as the difference of the logits goes through 0
x = sympy.Symbol("x", real=True)
a, b = sympy.Rational(8, 10), sympy.Rational(1, 10)
blend = sympy.log(a / (1 + sympy.exp(-x)) + b / (1 + sympy.exp(x)))
decided = sympy.log(a) * sympy.Heaviside(x) + sympy.log(b) * sympy.Heaviside(-x)
jump = sympy.limit(decided, x, 0, "+") - sympy.limit(decided, x, 0, "-")
assert sympy.limit(blend, x, 0, "+") == sympy.limit(blend, x, 0, "-")
assert sympy.simplify(sympy.exp(jump)) == 8
show("blended, jump at the tie", str(sympy.limit(blend, x, 0, "+") - sympy.limit(blend, x, 0, "-")))
show("decided, jump at the tie", f"log {sympy.simplify(sympy.exp(jump))}")

# two of three experts, with weights: the output jumps by (weight of the last one taken) · (difference of experts)
A, B, C = sympy.symbols("E_A E_B E_C")  # what each expert gives
top, tie = sympy.symbols("z_top z_tie", real=True)
weight_top, weight_tie = (sympy.exp(z) / (sympy.exp(top) + sympy.exp(tie)) for z in (top, tie))
takes_b, takes_c = weight_top * A + weight_tie * B, weight_top * A + weight_tie * C
assert sympy.simplify(takes_b - takes_c - weight_tie * (B - C)) == 0
show("top 2 of 3, jump at the tie", "w (E_B − E_C)")

# %% [markdown]
# ### Check 2, with numbers
#
# Eight random logits, of which two are taken, 400,000 times; noise on each logit; count how often the two experts at
# the edge, second and third, change places. (Others may swap as well, but that takes two small gaps at once.)

# %%
N = 400_000
z = torch.randn(N, 8, dtype=torch.float64, generator=generator)
ranked = z.argsort(-1, descending=True)
edges = ranked[:, 1:2], ranked[:, 2:3]


def at_the_edge(logits):
    """Logits of the experts that stand second and third in z: the last one taken, the first one not."""
    return [logits.gather(-1, place)[:, 0] for place in edges]


second, third = at_the_edge(z)
gap = second - third
density = float((gap < 0.05).double().mean()) / 0.05  # f(0)


show("density of the gap at 0", density, digits=3)
show("noise σ", "counted", "±", "Φ(−g/s)", "f(0) s/√2π", digits=5)
for sigma in (0.04, 0.02, 0.01):
    noisy = z + sigma * torch.randn(N, 8, dtype=torch.float64, generator=generator)
    moved_second, moved_third = at_the_edge(noisy)
    counted = float((moved_second < moved_third).double().mean())
    spread = math.sqrt(2) * sigma
    error = math.sqrt(counted / N)
    exact = float(torch.special.ndtr(-gap / spread).mean())
    show(f"{sigma}", counted, error, exact, density * spread / math.sqrt(2 * math.pi), digits=5)
    assert abs(counted - exact) < 3 * error
    assert abs(density * spread / math.sqrt(2 * math.pi) / exact - 1) < 0.06

# %% [markdown]
# Half the noise, half the swaps. The formula from $f(0)$ alone is within a few per cent.

# %% [markdown]
# ## Predict, then reveal
#
# Now no noise. The eight logits are rounded to bfloat16 as they are, and nothing else is rounded. Between 1 and 2
# bfloat16 has steps of 1/128, so an error is up to 1/256. **Write down a guess:**
#
# 1. How many of the 400,000 tokens swap, so that the rounded logits stand in the opposite order?
# 2. How many become an exact tie?
#
# Then run the cell.

# %%
rounded_second, rounded_third = (x.to(torch.bfloat16).double() for x in (second, third))
step = 2.0 ** (torch.floor(torch.log2(second.abs())) - 7)  # from one bfloat16 number to the next
expected_ties = float((1 - gap / step).clamp(min=0).sum())
ties = int((rounded_second == rounded_third).sum())

show("in opposite order", int((rounded_second < rounded_third).sum()))
show("exact ties", ties)
show("ties expected, Σ max(0, 1 − g/step)", expected_ties, digits=0)

assert int((rounded_second < rounded_third).sum()) == 0
assert abs(ties - expected_ties) < 4 * math.sqrt(expected_ties)

# %% [markdown]
# None. **Rounding is monotone**: what was larger stays larger, or becomes equal. It can make ties, and a tie is settled
# by something that has nothing to do with the token, such as the number of the expert; some of these are then settled
# wrongly. What swaps experts freely is the rounding that happened **before** the router: in attention, in the KV cache,
# in the layers below. Their errors reach two logits differently. So a router computed in 32 bits cannot prevent swaps:
# it decides precisely on what it is given.

# %% [markdown]
# ## A heavy tail is not a wide one
#
# Write $d$ of a token as a mixture: with probability $1-P$ it is small noise, proportional to $s$; with probability
# $P \propto s$ it is a jump $J$ whose size does not depend on $s$. Then, to leading order,
#
# $$ \mathbb{E}[k3] \approx \underbrace{\tfrac12 c^2 s^2}_{\text{noise}} + \underbrace{P\;\mathbb{E}[k3(J)]}_{\propto\,
# s}, \qquad \frac{\mathbb{E}[d^4]}{\mathbb{E}[d^2]^2} \approx
# \frac{1}{P}\,\frac{\mathbb{E}[J^4]}{\mathbb{E}[J^2]^2} . $$
#
# On the left: make rounding ten times finer, and the noise's k3 falls a hundredfold, that of the swaps only tenfold. So
# **the finer the rounding, the larger the share of the swaps**. On the right is the **kurtosis**, which measures how
# heavy a tail is (3 for normal noise, of any width): it grows as $1/P$. The tail gets thinner and, against the bulk,
# heavier.
#
# The steps, with a jump of one size $J$:

# %%
f0, c, J = sympy.symbols("f_0 c J", positive=True)
P = f0 * s / sympy.sqrt(2 * sympy.pi)
k3_of_jump = sympy.exp(J) - 1 - J
k3_of_noise = sympy.series(sympy.exp(u) - 1 - u, u, 0, 3).removeO().coeff(u, 2) * (c * s) ** 2  # E[u²] = c² s²
fourth, second_power = (1 - P) * 3 * (c * s) ** 4 + P * J**4, (1 - P) * (c * s) ** 2 + P * J**2

assert k3_of_noise == c**2 * s**2 / 2
mean_k3 = (1 - P) * k3_of_noise + P * k3_of_jump
assert sympy.simplify(sympy.limit(mean_k3 / s, s, 0) - k3_of_jump * f0 / sympy.sqrt(2 * sympy.pi)) == 0  # linear in s
assert sympy.limit((1 - P) * k3_of_noise / mean_k3, s, 0) == 0  # in the end nothing but swaps
assert sympy.limit(P * fourth / second_power**2, s, 0) == 1  # kurtosis · P → 1 for one size of jump

# %% [markdown]
# A tiny world shows it: two experts with softmax outputs over three tokens, the router as above, noise on the router's
# logits and on the experts' outputs. Over the next token every k3 is exact. Three ways to score: blend both experts;
# take one; take the one that the engine took, which is **router replay**.

# %%
TOKENS = 40_000
router = 2 * torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)
outputs = EXPERTS.log() + 0.3 * torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)
shaken = torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator)
jitter = torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=generator)


def log_next(z, out, route):
    """log-probs of the next token, (N, 3): both experts blended, or the one named by route (N,)."""
    if route is None:
        return (z.softmax(-1)[..., None] * out.softmax(-1)).sum(-2).log()
    return out[torch.arange(len(out)), route].log_softmax(-1)


WAYS = {
    "blend of both": (lambda z, seen: (None, None)),
    "router": (lambda z, seen: (z.argmax(-1), seen.argmax(-1))),
    "router, replayed": (lambda z, seen: (seen.argmax(-1), seen.argmax(-1))),
}
noises = [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
expected_k3, kurtosis = {name: [] for name in WAYS}, {name: [] for name in WAYS}
for sigma in noises:
    seen, out = router + sigma * shaken, outputs + sigma * jitter
    for name, routes in WAYS.items():
        mine, theirs = routes(router, seen)
        log_p, log_q = log_next(router, outputs, mine), log_next(seen, out, theirs)
        q, d = log_q.exp(), log_p - log_q
        expected_k3[name].append(float((q * k3(d)).sum(-1).mean()))
        kurtosis[name].append(float((q * d**4).sum(-1).mean() / (q * d**2).sum(-1).mean() ** 2))

# %% [markdown]
# **Look for** the slopes. Two lines, one on top of the other, fall by two decades per decade of noise; the third by a
# single decade, and so lies ever further above them.

# %%
picture(curves(noises, expected_k3, x_name="noise σ", y_name="mean k3", log="xy"))


def slope(values):
    """Decades of k3 per decade of noise, over the finer half."""
    return math.log(values[2] / values[0]) / math.log(noises[2] / noises[0])


show("", *(f"{sigma}" for sigma in noises[::2]), "slope")
for name in WAYS:
    show(f"kurtosis, {name}", *kurtosis[name][::2], slope(expected_k3[name]), digits=2)

assert 1.9 < slope(expected_k3["blend of both"]) < 2.1
assert 1.9 < slope(expected_k3["router, replayed"]) < 2.1
assert 0.7 < slope(expected_k3["router"]) < 1.3
assert kurtosis["router"][0] > 4 * kurtosis["router"][4]
assert max(kurtosis["router, replayed"]) < 11

# %% [markdown]
# With replay the trainer and the engine differ by noise again, and the tail is gone: same slope, same shape as the
# blend.

# %% [markdown]
# ## The same on recorded runs
#
# `moe_bf16` trains a small mixture of experts (3 layers, 8 experts, of which a token takes 2) with an engine in
# bfloat16; the trainer, in 32 bits, follows its own router. `moe_replay` is the same training with router replay. And
# `bf16` is a model of the usual kind, without experts.
#
# First the last recorded step of both. **Look for** where the two lines part: their bulk, to the left, is one.


# %%
def load(name, n=-1):
    """The n-th recorded step of a run, by default the last, and d of its real tokens in float64."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[n])
    batch = record.batch
    pair = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    batch = batch.replace(**pair)
    d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)
    return record, batch, d


record, routed, routed_d = load("moe_bf16")
_, dense, dense_d = load("bf16", 0)
_, replayed_batch, replayed_d = load("moe_replay")
picture(tails(routed, replayed_batch))  # A: own router, B: replayed

# %%
flat = {"moe_bf16": routed_d[routed.response_mask], "moe_replay": replayed_d[replayed_batch.response_mask]}
flat["bf16"] = dense_d[dense.response_mask]
show("", *(name.rjust(10) for name in flat))
show("step", *(f"{step}".rjust(10) for step in (40, 40, 80)))


def compare(label, measure, digits):
    show(label, *(text(float(measure(d)), digits).rjust(10) for d in flat.values()))


compare("tokens", len, 0)
compare("median |d|", lambda d: d.abs().median(), 5)
compare("largest |d|", lambda d: d.abs().max(), 2)
compare("mean k3", lambda d: k3(d).mean(), 5)
compare("  without the largest token", lambda d: k3(d).sort().values[:-1].mean(), 5)
compare("  share of the largest token", lambda d: k3(d).max() / k3(d).sum(), 2)
compare("kurtosis of d", lambda d: (d**4).mean() / (d**2).mean() ** 2, 0)
for name, batch_of_run in (("moe_bf16", routed), ("moe_replay", replayed_batch), ("bf16", dense)):
    show(f"triage, {name}", triage(batch_of_run)[0].pattern)

assert 0.9 < float(flat["moe_bf16"].abs().median() / flat["moe_replay"].abs().median()) < 1.1
assert float(k3(flat["moe_bf16"]).max() / k3(flat["moe_bf16"]).sum()) > 0.9
assert 0.38 < float(k3(flat["bf16"]).max() / k3(flat["bf16"]).sum()) < 0.48

# %% [markdown]
# The typical token is the same with replay and without: half of all differ by less than 0.0006. But in the step without
# replay, one token of 888 holds more than nine tenths of the k3.
#
# Be careful with the last lines. In `bf16`, which has no experts, one token holds two fifths of the k3 too, and the
# kurtosis is larger than with replay: rounding moves an uncertain token far more than a certain one, and this task has
# few uncertain ones. So **concentration alone proves nothing**. The size says more: the largest |d| is 3.37 here, and
# 0.28 in `bf16`. It does not prove experts either: a coarse KV cache reaches 4.9 without any (lesson 12). Here is the
# token.

# %%
line, column = divmod(int(routed_d.abs().argmax()), routed_d.shape[1])
written = [*record.responses[line], "<eos>"][: int(routed.response_mask[line].sum())]
real = range(len(written))

show("prompt", record.prompts[line])
show("token", written)
show("q, engine", [float(routed.rollout_log_probs[line, t].exp()) for t in real])
show("p, trainer", [float(routed.tensors()["old_log_probs"][line, t].exp()) for t in real])
show("r = p/q", ratio(routed_d[line])[: len(written)])
weights = correct(routed, preset("decoupled_token_is")).weights[line]
show("weight, cap at 2", weights[: len(written)])
assert float(ratio(routed_d[line, column])) < 1 / 28

# %% [markdown]
# The engine gave the token a probability 29 times that of the trainer: as if another expert had another digit in mind.
# (That it was a swap is a conclusion: the run did not keep the experts. With replay, nothing like it happens.) A cap at
# 2 never sees it, since the ratio is below 1; but its weight is then 1/29, and that is right: the trainer hardly ever
# writes it. Such tokens are drawn **because** the engine believes in them, so this side of the tail
# is the one that shows. On the other side are the tokens that the trainer would write and the engine does not: rarely
# drawn, and heavy when they are. That side a cap must bound.
#
# One step may be luck. The runs keep their metrics of all 40 steps. **Look for** the spikes of one line, and how much
# of each is a single token: the largest or the smallest ratio of that step.

# %%
METRIC = {"k3": "rollout_corr/k3_kl", "high": "rollout_corr/is_ratio_max", "low": "rollout_corr/is_ratio_min"}
METRIC |= {"ratio": "rollout_corr/is_ratio_mean", "abs": "rollout_corr/abs_log_ratio"}
METRIC["tokens"] = "rollout_corr/tokens"
RUNS = ("moe_bf16", "moe_replay", "bf16")


def over_steps(name, key, count=40):
    rows = runs.read_metrics(runs.find_run(name))[:count]
    return torch.tensor([row[METRIC[key]] for row in rows], dtype=torch.float64)


by_run = {name: over_steps(name, "k3") for name in RUNS}
steps = list(range(1, 41))
lines = {name: values.tolist() for name, values in by_run.items()}
picture(curves(steps, lines, x_name="step", y_name="k3", log="y"))

routed_steps = {key: over_steps("moe_bf16", key) for key in METRIC}
extreme = torch.maximum(k3(routed_steps["high"].log()), k3(routed_steps["low"].log())) / routed_steps["tokens"]
spikes = routed_steps["k3"] > 5e-4
shares = (extreme / routed_steps["k3"])[spikes]
assert 0.65 < shares.median() < 0.75
below = int((routed_steps["low"].log().abs() > routed_steps["high"].log())[spikes].sum())
show("steps of moe_bf16 with k3 above 5e-4", len(shares))
show("  whose furthest token has r < 1", below)
assert (len(shares), below) == (14, 11)
show("  share of one token: least, median, most", *(float(f(shares)) for f in (min, torch.median, max)), digits=2)

# %% [markdown]
# In a typical spike one token holds seven tenths of the k3, and in eleven of fourteen it is one that the engine
# believed in and the trainer did not.
#
# ### Check 3, with intervals
#
# The mean over the steps, with a **bootstrap** interval: draw 40 steps out of the 40, with repetition, 4,000 times, and
# keep the middle 95 % of the means.

# %%
drawn = torch.randint(40, (4000, 40), generator=generator)


def interval(samples):
    return torch.quantile(samples, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()


def cell(value, samples, digits=2):
    low, high = interval(samples)
    return f"{text(float(value), digits)} [{text(low, digits)}, {text(high, digits)}]".rjust(24)


show("over 40 steps", *(name.rjust(24) for name in RUNS))
show("mean k3 · 10⁴", *(cell(1e4 * v.mean(), 1e4 * v[drawn].mean(-1)) for v in by_run.values()))
medians = {name: v[drawn].median(-1).values for name, v in by_run.items()}
show("median step's k3 · 10⁴", *(cell(1e4 * v.median(), 1e4 * medians[n]) for n, v in by_run.items()))
ratios = {name: over_steps(name, "ratio") for name in RUNS}
show("average ratio", *(cell(v.mean(), v[drawn].mean(-1), 4) for v in ratios.values()))
show("largest r", *(text(float(over_steps(name, "high").max()), 1).rjust(24) for name in RUNS))
show("largest 1/r", *(text(float((1 / over_steps(name, "low")).max()), 1).rjust(24) for name in RUNS))
show("mean |d|", *(text(float(over_steps(name, "abs").mean())).rjust(24) for name in RUNS))

mean_gain = by_run["moe_bf16"][drawn].mean(-1) / by_run["moe_replay"][drawn].mean(-1)
median_gain = medians["moe_bf16"] / medians["moe_replay"]
bulk_gain = over_steps("moe_bf16", "abs")[drawn].mean(-1) / over_steps("moe_replay", "abs")[drawn].mean(-1)
means, middles = (
    by_run["moe_bf16"].mean() / by_run["moe_replay"].mean(),
    by_run["moe_bf16"].median() / by_run["moe_replay"].median(),
)
bulk = over_steps("moe_bf16", "abs").mean() / over_steps("moe_replay", "abs").mean()
show("own router over replay, mean k3", cell(means, mean_gain, 1))
show("own router over replay, median step", cell(middles, median_gain, 1))
show("own router over replay, mean |d|", cell(bulk, bulk_gain, 2))

assert interval(mean_gain)[0] > 2
assert 14 < float(over_steps("moe_replay", "low").min() / over_steps("moe_bf16", "low").min()) < 16
assert over_steps("moe_bf16", "high").max() > 2 > over_steps("moe_replay", "high").max()
assert interval(mean_gain)[0] > interval(bulk_gain)[1]
for name in RUNS:
    low, high = interval(ratios[name][drawn].mean(-1))
    assert low < 1 < high

# %% [markdown]
# Replay divides the mean k3 by five, with an interval from about three to eight, and the largest ratio by fifteen. The
# mean |d| falls by a fifth only: the tail is what differs. In all three runs the ratios average to 1, as lesson 00
# derived: a swapped expert gives another policy, but an honest one.
#
# Three cautions. The steps of a training are not independent. The mean of a heavy tail is known worse than its interval
# says, because the interval knows only what was drawn: step 30 alone is a fifth of the sum. And the median step gains
# too, by a factor of two: even the usual step holds swaps, of experts that nearly agree.

# %%
heaviest = by_run["moe_bf16"].max() / by_run["moe_bf16"].sum()
show("heaviest step", int(by_run["moe_bf16"].argmax()) + 1, "share", float(heaviest), digits=2)
assert int(by_run["moe_bf16"].argmax()) + 1 == 30
assert 0.19 < heaviest < 0.23

# %% [markdown]
# ## A real router
#
# A run records what the engine said, not which experts it took. So let us take the model that both runs started from,
# with its weights in 64 bits, and play the engine ourselves: normal noise on what each router **reads**, and nowhere
# else. Then every swap is known.

# %%
lm = load_lm(runs.ROOT / "warm_start_moe" / "checkpoint", torch.device("cpu")).double().eval()
lm.set_experts_implementation("eager")  # the only one in 64 bits
policy = Policy(lm, critic=None)
gates = [module for name, module in lm.named_modules() if name.endswith("mlp.gate")]

_, scored, _ = load("moe_bf16", 0)
scored = scored.replace(**{key: scored.tensors()[key].long() for key in ("prompt_ids", "response_ids")})
real = scored.response_mask
attention = torch.cat([scored.tensors()["prompt_mask"], real], -1)
first = scored.tensors()["prompt_ids"].shape[1] - 1  # the place that predicts the first token of a response
router_rows = [gate.get_parameter("weight") for gate in gates]  # (experts, width) each
show("layers, experts", len(gates), len(router_rows[0]))


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
    logits, experts = (
        torch.stack(by_layer, 1).view(*attention.shape, len(gates), -1) for by_layer in zip(*seen, strict=True)
    )
    return log_probs, logits, experts


clean, logits, experts = forward(scored)
order = logits[..., 0, :].sort(-1, descending=True)
gap = order.values[..., 1] - order.values[..., 2]  # of the first layer, whose input nothing has shaken yet
rows = router_rows[0].detach()
apart = (rows[order.indices[..., 1]] - rows[order.indices[..., 2]]).norm(dim=-1)
density = float((gap[attention] < 0.1).double().mean()) / 0.1
show("tokens, prompts included", int(attention.sum()))
show("density of the first layer's gap at 0", density, digits=1)

# %% [markdown]
# Noise $\sigma$ on each number that the router reads moves the difference of two logits by $s = \sigma\,\lVert w_i -
# w_j\rVert$, the distance of their two rows. So the swaps of the first layer can be predicted, token by token, from
# $\Phi(-g/s)$. Four times each, over three sizes of noise:

# %%
REPEATS = 4
show("noise", "swaps", "predicted", "k3 · 10⁶", "no swap", "replayed", "largest", "replayed")
everything = {}
for sigma in (0.02, 0.01, 0.005):
    swaps, parts = 0, {"all": [], "calm": [], "replayed": []}
    for _ in range(REPEATS):
        noisy, _, other = forward(scored, sigma)
        moved = (other.sort(-1).values != experts.sort(-1).values).any(-1)  # (B, S, layers)
        swaps += int(moved[..., 0][attention].sum())
        reached = moved.any(-1).cumsum(1)[:, first:-1] > 0  # at this token or before
        parts["all"].append((clean - noisy)[real])
        parts["calm"].append((clean - noisy)[real & ~reached])
        again, _, _ = forward(scored.replace(routed_experts=other), replay=True)
        parts["replayed"].append((again - noisy)[real])
    predicted = REPEATS * float(torch.special.ndtr(-gap / (sigma * apart))[attention].sum())
    all_d, calm, again = everything[sigma] = [torch.cat(part) for part in parts.values()]
    means = [1e6 * float(k3(d).mean()) for d in (all_d, calm, again)]
    largest = [float(d.abs().max()) for d in (all_d, again)]
    show(f"{sigma}", swaps, text(predicted, 1), *(text(x, 1) for x in means), *(text(x, 2) for x in largest))
    assert abs(swaps - predicted) < 3 * math.sqrt(predicted)
    assert abs(means[2] / means[1] - 1) < 0.2  # replay leaves what no swap ever touched
    assert largest[1] < largest[0] / 3

# %% [markdown]
# The counts agree with the prediction, and fall with the noise. Where no swap has happened, at this token or before, k3
# falls by four when the noise is halved. Over all tokens it falls far less, and the largest difference hardly falls:
# swaps become rarer, and no smaller. **Replay brings all tokens back to what no swap ever touched.** Nothing else in
# the trainer was changed.
#
# ## What replay does
#
# The engine hands over which experts it took, for every token and layer. In the trainer, each router computes its
# logits as always, but the experts are the engine's; the weights are the trainer's own probabilities, divided by their
# sum over the taken experts. So $p$ is a smooth function of the rounding again. The choice at a position depends only
# on the text before the next token; so $p$ is still a policy, and the ratios still average to 1, as seen above.
#
# What it does **not** do:
#
# 1. **Rounding stays.** With replay a mixture is a model of the usual kind, with its noise.
# 2. **An update makes the choices old.** The next cell moves all weights a little, as an update does. Replayed, $\pi$
#    takes experts that its own router would no longer take; but its own router is what the engine serves next.
# 3. **It hides a wrong router.** A router that was not synchronised takes the right experts, because it is told to.
# 4. **The decision has no gradient**, with or without replay: what changes which expert is taken is invisible to it.


# %%
def differing(experts, other):
    return float((experts.sort(-1).values != other.sort(-1).values).any(-1)[attention].double().mean())


before = [parameter.detach().clone() for parameter in lm.parameters()]
show("weights moved by", "other experts", "k3, own against replayed", digits=4)
for size in (0.01, 0.03):
    with torch.no_grad():
        for parameter, start in zip(lm.parameters(), before, strict=True):
            change = torch.randn(start.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(start + size * start.square().mean().sqrt() * change)
    mine, _, mine_experts = forward(scored)
    theirs, _, _ = forward(scored.replace(routed_experts=experts), replay=True)
    distance = float(k3((theirs - mine)[real]).mean())
    show(f"{size:.0%}", differing(experts, mine_experts), distance)
    assert distance > 1e-4
with torch.no_grad():
    for parameter, start in zip(lm.parameters(), before, strict=True):
        parameter.copy_(start)

# %%
# a router whose rows are in the wrong order: what is left of the alarm when the experts are told
with torch.no_grad():
    router_rows[1].copy_(router_rows[1].roll(1, 0))
broken, _, _ = forward(scored)
told, _, _ = forward(scored.replace(routed_experts=experts), replay=True)
with torch.no_grad():
    router_rows[1].copy_(router_rows[1].roll(-1, 0))
alarm, quiet = (float(k3((x - clean)[real]).mean()) for x in (broken, told))
show("k3, wrong router, its own experts", alarm)
show("k3, wrong router, replayed", quiet)
assert alarm > 3 * quiet

# the weights of two taken experts have a gradient, that of one has none
z_i, z_j = sympy.symbols("z_i z_j", real=True)
one_taken, two_taken = sympy.exp(z_i) / sympy.exp(z_i), sympy.exp(z_i) / (sympy.exp(z_i) + sympy.exp(z_j))
assert sympy.diff(one_taken, z_i) == 0
assert sympy.simplify(sympy.diff(two_taken, z_i) - two_taken * (1 - two_taken)) == 0

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
# On the three runs, the largest hundredth:

# %%
for name, d in flat.items():
    share = float(k3(d).topk(len(d) // 100).values.sum() / k3(d).sum())
    show(f"{name}, share of the largest 1 %", share, "largest |d|", float(d.abs().max()), digits=2)

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
# <details><summary>It cannot be said: replay hides it. Score one batch without.</summary>Yes. The share of tokens where
# the trainer would take other experts is the number to watch.</details>
# <details><summary>Yes: a wrong router would show in the weights of the experts.</summary>It shows there, and faintly.
# The alarm above was several times louder without replay.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the mismatch of moe_bf16 at step 40](http://localhost:8501/mismatch?run=moe_bf16&step=40): the tail, and both signs
#   of it;
# - [the same of moe_replay](http://localhost:8501/mismatch?run=moe_replay&step=40);
# - [the tokens of moe_bf16](http://localhost:8501/tokens?run=moe_bf16&step=40&preset=decoupled_token_is): the one with
#   ratio 1/29;
# - [both trainings over their steps](http://localhost:8501/training?run=moe_bf16&with=moe_replay).
#
# ## Pitfalls
#
# - **Averages.** A mean over a heavy tail is decided by one token. Give the median step and the largest token with it.
# - **Concentration.** Few tokens hold most of the k3 in every run of a confident model. Swaps show in how far the
#   largest go, and in that replay removes them.
# - **Precise routers.** Computing the router in 32 bits settles ties well. It does not undo what was rounded below.
# - **Padding and prompts.** Replay needs the experts of every position that the trainer computes, prompts included;
#   where they are missing the trainer must fall back to its own choice, and say so.
# - **Recomputation.** If the forward pass is repeated for the backward pass, it must be replayed again, or the
#   gradient belongs to other experts.
# - **Old choices.** With stale or asynchronous sampling (lesson 13) the replayed choices are as old as the tokens.
# - **Small models.** Two of eight experts in three layers is little. Of a large model it was reported that a tenth of
#   the routers differ, and 94 % of the tokens in at least one layer (the first reference): then there is no untouched
#   bulk to compare with.
#
# ## References
#
# 1. [Stabilizing MoE RL by Aligning Training and Inference Routers](https://arxiv.org/abs/2510.11370), 2025: router
#    replay, and how often routers differ in a large model.
# 2. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: when replay is
#    needed beside weights and clipping.
# 3. [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556), 2025: a system that keeps the routing of its samples.
