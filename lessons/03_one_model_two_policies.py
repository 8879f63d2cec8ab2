# %% [markdown]
# # 03 · One model, two policies
#
# **Claim.** Rounding, a sampler's setting and weights that came too late each turn one model into two policies, and
# most of them leave a mark in the pairs of log-probs that can be derived, and then recognised.
#
# *35 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00: what $q$, $p$, $r$ and $d$ are, and why
# the ratios average to 1.
#
# At the end you can
#
# - name six causes of a mismatch, and say for each what $d$ looks like and why;
# - read a batch's pairs as a doctor reads a chart, with `rlcorr.analysis.triage`;
# - say which cause the pairs cannot show, and find it all the same;
# - check a tutorial, or your own code, for the commonest one.

# %%
import warnings

import sympy
import torch
from exercises.lesson_03 import SAME_TOKENS, SURPRISE, TEMPERATURE_BETWEEN
from show import picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct
from rlcorr.analysis.log_prob_pairs import logits as logits_of
from rlcorr.analysis.log_prob_pairs import tokens_of
from rlcorr.analysis.triage import triage
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.comparison import tails
from rlcorr.figures.curves import bars, curves
from rlcorr.figures.mismatch import token_labels
from rlcorr.losses import reinforce
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)

# %% [markdown]
# ## One place, three tokens, five ways to disagree
#
# The trainer gives the tokens A, B, C the probabilities ½, ¼, ¼. The engine holds the same model. Five things may have
# happened to it:
#
# - **temperature ½**: it squares the probabilities and divides them by their sum, as people do for safer answers;
# - **top-p ¾**: it keeps the most probable tokens until they hold ¾ of the probability, and drops C;
# - **rounding**: each logit (the number before the softmax) is off a little;
# - **older weights**: it did not get the last updates, in which the trainer moved B's probability to A;
# - **a stale row**: it got the update but for one row of its last matrix, so the logit of B alone is too low, by log 2.
#
# Compute $q$ and $r = p/q$ for the first two by hand, then run the cell.

# %%
p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
engines = {
    "temperature 1/2": p.square() / p.square().sum(),
    "top-p 3/4": torch.tensor([2 / 3, 1 / 3, 0], dtype=torch.float64),
    "rounding": (p.log() + torch.tensor([0.02, 0.0, -0.02], dtype=torch.float64)).softmax(-1),
    "older weights": torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64),
    "stale row of B": (p.log() - torch.tensor([0.0, 0.6931471805599453, 0.0], dtype=torch.float64)).softmax(-1),
}


def exact(p, q):
    """Ratios where the engine can draw (nan elsewhere), their mean and that of k3 over tokens drawn from the engine."""
    drawn = q > 0
    d = log_ratio(p.log(), q.log(), drawn)
    r = ratio(d)
    return torch.where(drawn, r, torch.nan), float((q * r)[drawn].sum()), float((q * k3(d))[drawn].sum())


show("r = p/q of", "A", "B", "C", "mean r", "mean k3")
for name, q in engines.items():
    r, mean_r, mean_k3 = exact(p, q)
    show(name, r, mean_r, mean_k3)
    assert abs(mean_r - (0.75 if name == "top-p 3/4" else 1.0)) < 1e-12

# %% [markdown]
# Every engine passes the test of lesson 00, a mean ratio of 1, except one: top-p. It never draws C, so a quarter of the
# trainer's probability is missing, and the mean ratio is the ¾ that is left.
#
# The last column is the mean of **k3** $= r - 1 - \log r$. It is 0 where the policies agree and positive elsewhere, and
# its mean over tokens from the engine is the Kullback–Leibler divergence KL(q‖p) wherever the mean ratio is 1. It is
# the usual measure of the size of a mismatch; lesson 08 is about it.
#
# Now the causes one by one: what $d = \log p - \log q$ looks like, and why.

# %% [markdown]
# ## 1. Temperature
#
# A **temperature** divides the logits: below 1 the sampler plays safe, above 1 it is bold. If the two sides use
# different temperatures, they have the same logits up to a factor. Let the trainer's temperature be $T$ times the
# engine's. Then $p$ is $q$ to the power $\beta = 1/T$, divided by the sum of these powers:
#
# $$ d_a = \log p_a - \log q_a = (\beta - 1) \log q_a - \log \sum_b q_b^\beta . $$
#
# At one place, $d$ is a straight line in $\log q$, with the slope $\beta - 1 = 1/T - 1$. The second term, the
# **normaliser**, is the same for all tokens of the place. It differs from place to place.

# %%
w = sympy.symbols("w_A w_B w_C", positive=True)  # e to the power of the engine's logits
beta = sympy.symbols("beta", positive=True)
q_sym = [x / sum(w) for x in w]
p_sym = [x**beta / sum(y**beta for y in w) for x in w]

for q_a, p_a in zip(q_sym, p_sym, strict=True):
    line = q_a ** (beta - 1) / sum(q_b**beta for q_b in q_sym)  # e to the power of the right-hand side
    assert sympy.simplify(sympy.powsimp(sympy.expand_power_base(p_a / q_a / line), force=True)) == 1

slope = sympy.log(p_sym[0] / q_sym[0]) - sympy.log(p_sym[1] / q_sym[1])
assert sympy.simplify(sympy.expand_log(slope - (beta - 1) * sympy.log(w[0] / w[1]), force=True)) == 0

show("d_A − d_B = (β − 1)(log q_A − log q_B)", "proved")

# %% [markdown]
# In numbers, on places of a real run. Recorded steps hold, at a few places, the trainer's log-probs of all 21 tokens
# that could follow. We cool an engine to 0.7 there and fit the slope at each place.

# %%
RUNS = "control_fp32", "bf16", "kv_fp8", "stale_4", "async", "top_p", "temperature_raw", "stale_head"


def places(name):
    """The trainer's log-probs of every next token at the recorded places of a run's last step, (P, V)."""
    run = runs.find_run(name)
    next_tokens = read_sketch(run, runs.list_sketches(run)[-1]).next_tokens
    assert next_tokens is not None
    return next_tokens.log_probs.double()


log_p = torch.cat([places(name) for name in RUNS]).log_softmax(-1)  # (P, V)
log_q = (log_p / 0.7).log_softmax(-1)
centred = [x - x.mean(-1, keepdim=True) for x in (log_p - log_q, log_q)]
slopes = (centred[0] * centred[1]).sum(-1) / centred[1].square().sum(-1)

show("places, tokens", list(log_p.shape))
show("slope of d over log q, least and most", slopes.min(), slopes.max())
show("1/T − 1 with T = 1/0.7", 0.7 - 1)
assert torch.allclose(slopes, torch.full_like(slopes, -0.3), atol=1e-12)

# %% [markdown]
# A batch holds one token per place, so the normalisers blur the line. `rlcorr.analysis.triage` looks for it all the
# same, in batches of pairs alone. Here it gets 20 batches that we draw from the cooled engine at these places.


# %%
def drawn_batch(log_p, log_q, generator, times=12):
    """A batch of one-token answers: at each place `times` tokens drawn from q, with their pairs of log-probs."""
    token = torch.multinomial(log_q.exp(), times, replacement=True, generator=generator).flatten()[:, None]  # (N, 1)
    old, rollout = (x.repeat_interleave(times, 0).gather(-1, token) for x in (log_p, log_q))
    return TokenBatch.from_log_probs(old, rollout, torch.ones_like(token)).replace(response_ids=token)


drawn = [triage(drawn_batch(log_p, log_q, generator))[0] for _ in range(20)]
guesses = torch.tensor([finding.numbers["temperature"] for finding in drawn], dtype=torch.float64)

show("called a temperature", sum(finding.pattern == "temperature" for finding in drawn), "of 20")
show("T found: mean, standard deviation", guesses.mean(), guesses.std())
show("T true", 1 / 0.7)
show(drawn[0].sentence)

# %% [markdown]
# It names the cause every time, and the temperature within 2 %. Not nearer: the normalisers lean a little with $q$, so
# the error of the mean is many times its spread.
#
# ## 2. Top-p and top-k
#
# **Top-k** keeps the $k$ most probable tokens, **top-p** as many as are needed to reach a probability of $p$ together.
# Both divide what is kept by its sum $S$, the **kept mass**. So $q = p/S$ on what is kept, and
#
# $$ d = \log S \le 0, \qquad \mathbb{E}_q\!\left[\frac{p}{q}\, f\right] = \sum_{\text{kept}} p_a f_a , $$
#
# the same $d$ for every token of a place, never above 0, and on average a ratio of $S$. What was cut is missing from
# every average, and no weight can bring it back.

# %%
P, F = sympy.symbols("p_A p_B p_C", positive=True), sympy.symbols("f_A f_B f_C")
S = P[0] + P[1]  # C is cut
kept = [(P[a], P[a] / S, F[a]) for a in (0, 1)]

assert all(sympy.simplify(p_a / q_a - S) == 0 for p_a, q_a, _ in kept)
assert sympy.simplify(sum(q_a * p_a / q_a * f_a for p_a, q_a, f_a in kept) - (P[0] * F[0] + P[1] * F[1])) == 0


def cut(log_p, top_p):
    """What a top-p sampler keeps of each place: the most probable tokens, up to the one that reaches top_p."""
    ordered, order = log_p.exp().sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # the mass of the more probable tokens
    return torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, order, before < top_p)


kept = cut(log_p, 0.9)
mass = torch.where(kept, log_p.exp(), 0).sum(-1)
assert bool((mass >= 0.9).all())

show("kept mass at the recorded places: least", mass.min())
show("mean", mass.mean())

# %% [markdown]
# The run `top_p` was sampled with top-p 0.9, so $S$ is between 0.9 and 1, and $d$ between $\log 0.9 = -0.105$ and 0.
# The engine also rounds, so we allow 0.02 on either side. **Look for** the band: all tokens lie in a strip below the
# line $r = 1$, but for a few. Compare it with the cloud of lesson 00, which has two sides.


# %%
def steps(name):
    """The recorded steps of a run; log-probs in float64, so that differences are exact."""
    run = runs.find_run(name)
    for step in runs.list_steps(run):
        batch = runs.read_step(run, step).batch
        yield batch.replace(**{key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")})


def differences(name):
    """d of all tokens of all recorded steps."""
    return torch.cat([correct(batch, CorrectionConfig()).log_ratio[batch.response_mask] for batch in steps(name)])


picture(ratio_density(list(steps("top_p"))[-1]))

# %%
d = differences("top_p")
in_strip = (d > torch.tensor(0.9).log() - 0.02) & (d < 0.02)
r = ratio(d)

show("share of the tokens in the strip", in_strip.double().mean())
show("mean ratio", r.mean(), "±", r.std() / len(r) ** 0.5)
assert float(in_strip.double().mean()) > 0.97

# %% [markdown]
# ## 3. Rounding
#
# A number format keeps a fixed count of binary digits. bfloat16 keeps 8, so near 256 it can hold only every second
# integer. Watch what that does to a sum.

# %%
big, one = (torch.tensor(x, dtype=torch.bfloat16) for x in (256.0, 1.0))
show("(256 + 1) + 1 in bfloat16", float((big + one) + one), digits=0)
show("256 + (1 + 1) in bfloat16", float(big + (one + one)), digits=0)

# %% [markdown]
# The same numbers, in another order, give another sum. That is why an engine, which adds in another order, disagrees
# with the trainer even if both use the same format. With fewer digits it disagrees more.
#
# With $b$ binary digits the relative error of a number is at most $2^{-b}$, and about half of that on average: $2^{-9}$
# for bfloat16. What do errors $\varepsilon_a$ of the logits do to the log-probs? The softmax passes on the error of the
# token's own logit, less the average of all:
#
# $$ d_a = -\Big(\varepsilon_a - \sum_b p_b\, \varepsilon_b\Big) + O(\varepsilon^2), \qquad
# \mathrm{KL}(q\|p) = \tfrac12 \operatorname{Var}_p(\varepsilon) + O(\varepsilon^3). $$
#
# So $d$ has either sign, a token that is nearly certain gets almost none of it, and one digit less doubles $d$ and
# quadruples the divergence.

# %%
z, eps, t = sympy.symbols("z_A z_B z_C"), sympy.symbols("e_A e_B e_C"), sympy.symbols("t")
p_sym = [sympy.exp(x) / sum(sympy.exp(y) for y in z) for x in z]
moved = [sympy.exp(x + t * e) for x, e in zip(z, eps, strict=True)]
q_sym = [x / sum(moved) for x in moved]
average = sympy.Add(*(p_a * e for p_a, e in zip(p_sym, eps, strict=True)))
variance = sympy.Add(*(p_a * (e - average) ** 2 for p_a, e in zip(p_sym, eps, strict=True)))

for p_a, q_a, e in zip(p_sym, q_sym, eps, strict=True):
    d_a = sympy.log(p_a) - sympy.log(q_a)
    assert sympy.simplify(sympy.diff(d_a, t).subs(t, 0) + (e - average)) == 0

divergence = sympy.Add(*(q_a * (sympy.log(q_a) - sympy.log(p_a)) for p_a, q_a in zip(p_sym, q_sym, strict=True)))
assert sympy.simplify(sympy.diff(divergence, t).subs(t, 0)) == 0
assert sympy.simplify(sympy.diff(divergence, t, 2).subs(t, 0) - variance) == 0  # ½ t² times the variance

# %% [markdown]
# In numbers: at 500 random places of 21 tokens we round the logits to $b$ digits, for all $b$ from 3 to 24, and take
# exact averages over tokens drawn from the rounded policy.


# %%
def rounded(x, digits):
    """x to so many binary digits, to nearest, ties to even."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**digits).round(), exponent - digits)


logits = 4 * torch.randn(500, 21, dtype=torch.float64, generator=generator)
for digits, dtype in ((8, torch.bfloat16), (11, torch.float16), (24, torch.float32)):
    assert torch.equal(rounded(logits, digits), logits.to(dtype).double())

log_p0 = logits.log_softmax(-1)
formats = list(range(3, 25))
typical, exact_kl, predicted_kl = [], [], []
for digits in formats:
    error = rounded(logits, digits) - logits
    log_q0 = (logits + error).log_softmax(-1)
    d, q = log_p0 - log_q0, log_q0.exp()
    typical.append(float((q * d.square()).sum(-1).mean().sqrt()))
    exact_kl.append(float((q * k3(d)).sum(-1).mean()))
    mean_error = (log_p0.exp() * error).sum(-1, keepdim=True)
    predicted_kl.append(float((log_p0.exp() * (error - mean_error).square()).sum(-1).mean() / 2))

show("digits", 3, 4, 8, 11, 24)
show("format", "e5m2", "e4m3", "bfloat16", "float16", "float32")
picked = [formats.index(b) for b in (3, 4, 8, 11, 24)]
show("typical |d|", [f"{typical[n]:.1e}" for n in picked])
show("KL(q‖p)", [f"{exact_kl[n]:.1e}" for n in picked])
show("half the variance of the errors", [f"{predicted_kl[n]:.1e}" for n in picked])

halvings = torch.tensor(typical).log2().diff()
show("log₂ |d| falls per digit by", -halvings.mean())
assert abs(halvings.mean() + 1) < 0.02
assert abs(exact_kl[formats.index(8)] / predicted_kl[formats.index(8)] - 1) < 0.05

# %% [markdown]
# **Look for** a straight line: on a logarithmic axis, one digit less doubles $d$. Rounding only the last logits is the
# least that can happen. A real engine rounds in every layer, and so lies above this line.

# %%
rule = [typical[0] * 2.0 ** (3 - b) for b in formats]
picture(
    curves(
        formats,
        {"rounded logits": typical, "half per digit": rule},
        x_name="binary digits",
        y_name="typical |d|",
        log="y",
    )
)

# %% [markdown]
# Before its first step a recorded run scores the answers of its engine by the trainer, with the same weights: its
# **probe**, which stands in the manifest. In `kv_fp8` and `kv_fp8_e5m2` only the **KV cache** is rounded so coarsely,
# the engine's memory of the text so far; the weights are in bfloat16.

# %%
show("the probe of each run", "tokens", "mean |d|")
probed = {}
for name, digits in (("control_fp32", 24), ("bf16", 8), ("kv_fp8", 4), ("kv_fp8_e5m2", 3)):
    probe = runs.read_manifest(runs.find_run(name)).probe
    assert probe is not None
    probed[name] = probe["abs_log_ratio"]
    show(f"{name}, {digits} digits", probe["tokens"], f"{probed[name]:.1e}")

assert 1e4 < probed["bf16"] / probed["control_fp32"] < 2e4
assert 3.9 < probed["kv_fp8"] / probed["bf16"] < 4.2
assert 1.8 < probed["kv_fp8_e5m2"] / probed["kv_fp8"] < 2

# %% [markdown]
# From 24 digits to 8 mean |d| grows by $1.3 \cdot 10^4$. The digits alone would make it $2^{16} \approx 6.6 \cdot
# 10^4$; but in 32 bits, too, the two programs add in another order, and lose more than the last digit. A cache with
# four digits has four times the mean |d| of bfloat16, and one digit less about doubles it again, in longer answers. No
# setting is wrong in these runs, and no code has a bug. **A mismatch of this size is normal.**
#
# ## 4. Older weights, and a stale tensor
#
# An update adds some $\delta_a$ to the logit of each token. An engine that did not get it has $q$; the trainer has
# $p \propto q\, e^{\delta}$. Written in odds, $\operatorname{logit} p = \log \frac{p}{1-p}$,
#
# $$ y_a := \operatorname{logit} p_a - \operatorname{logit} q_a
# = \delta_a - \log \sum_{b \ne a} \frac{q_b}{1 - q_a}\, e^{\delta_b} . $$
#
# If all weights are old, $\delta$ can be anything at any place, and so can $d$. The only mark is the size: whole
# probabilities moved, not digits. Lesson 13 says how fast.
#
# If **one tensor** is old, $\delta$ has a shape. The last matrix of the model, the **output head**, has a row $w_a$ for
# each token; the logit is $w_a \cdot h$, with $h$ what the model thinks of the text. With old rows,
# $\delta_a = \Delta w_a \cdot h$. The $h$ of different texts have a large part in common, so $\delta_a$ is nearly **a
# constant per token**.

# %%
g = sympy.symbols("g_A g_B g_C", positive=True)  # e to the power of delta
q_sym = [x / sum(w) for x in w]
p_sym = [x * f / sum(y * e for y, e in zip(w, g, strict=True)) for x, f in zip(w, g, strict=True)]

for a in range(3):
    odds = p_sym[a] / (1 - p_sym[a]) / (q_sym[a] / (1 - q_sym[a]))  # e to the power of y
    others = sum(q_sym[b] / (1 - q_sym[a]) * g[b] for b in range(3) if b != a)
    assert sympy.simplify(odds - g[a] / others) == 0

# %% [markdown]
# In numbers: 300 texts whose $h$ have a common part, and two engines that each miss an update of the same size. One
# misses the head's, the other what makes $h$. What share of the variance of $y$ lies **between** tokens?

# %%
width, vocabulary = 16, 21
common = torch.randn(width, dtype=torch.float64, generator=generator)
h = common + 0.5 * torch.randn(300, width, dtype=torch.float64, generator=generator)
head = 0.5 * torch.randn(vocabulary, width, dtype=torch.float64, generator=generator)
old_head = head - 0.05 * torch.randn(vocabulary, width, dtype=torch.float64, generator=generator)
old_h = h - 0.1 * torch.randn(300, width, dtype=torch.float64, generator=generator)


def share_between_tokens(log_p, log_q):
    """Var of the mean of y per token over Var of y, all tokens and texts alike."""
    y = torch.special.logit(log_p.exp()) - torch.special.logit(log_q.exp())  # (texts, tokens)
    return float(y.mean(0).var(correction=0) / y.var(correction=0))


scored = (h @ head.T).log_softmax(-1)
only_head = share_between_tokens(scored, (h @ old_head.T).log_softmax(-1))
only_rest = share_between_tokens(scored, (old_h @ head.T).log_softmax(-1))

show("share of a constant per token: old head", only_head)
show("share of a constant per token: old rest", only_rest)
show("triage: old head", triage(drawn_batch(scored, (h @ old_head.T).log_softmax(-1), generator))[0].pattern)
show("triage: old rest", triage(drawn_batch(scored, (old_h @ head.T).log_softmax(-1), generator))[0].pattern)
assert only_head > 0.5 > 10 * only_rest

# %% [markdown]
# This happens. Models whose head is tied to the embedding often have no head in their checkpoint. One build of vLLM
# keeps a copy of its own, which a sync without that tensor leaves as it was; every sync reports success. The run
# `stale_head` has this fault. Its tokens are single characters. **Look for** bars that are long beside their error.
# Each is the mean of $y$ over the places where the engine wrote this token, ± two standard errors. Noise would leave
# bars as short as their errors.


# %%
def constants(name):
    """Of the last step: the mean of y per token that occurs at least ten times, and its standard error."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[-1])
    _, y, ids = logits_of(tokens_of(record.batch))
    assert ids is not None
    labels = token_labels(record)
    groups = {labels[token]: y[ids == token] for token in ids.unique().tolist()}
    large = {label: group for label, group in groups.items() if len(group) >= 10}
    return {label: (float(y.mean()), float(y.std() / len(y) ** 0.5)) for label, y in large.items()}


stale = constants("stale_head")
means, errors = ({label: pair[n] for label, pair in stale.items()} for n in (0, 1))
picture(bars(means, errors={label: 2 * error for label, error in errors.items()}, y_name="mean of y"))

for name in ("stale_head", "bf16", "kv_fp8", "stale_4"):
    means_and_errors = constants(name).values()
    beyond = sum(abs(mean) > 4 * error for mean, error in means_and_errors)
    show(f"{name}: tokens beyond 4 errors", beyond, "of", len(means_and_errors))
    assert (beyond > 5) == (name == "stale_head")

# %% [markdown]
# (In `stale_4` the head is old too, among all else.) Triage asks how much of the variance of $y$ such constants
# explain, and wants at least 35 %. Here is its answer with an interval.


# %%
def resampled(batch, generator):
    """As many rows of the batch, drawn with replacement: what another batch of this run might have been."""
    count = len(batch.response_mask)
    rows = torch.randint(count, (count,), generator=generator)
    names = ("response_mask", "rollout_log_probs", "old_log_probs", "response_ids")
    return TokenBatch(**{name: batch.tensors()[name][rows] for name in names})


record = runs.read_step(runs.find_run("stale_head"), runs.list_steps(runs.find_run("stale_head"))[-1])
shares = []
for _ in range(200):
    finding = triage(resampled(record.batch, generator))[0]
    shares.append(finding.numbers.get("share_per_token", 0.0))
low, high = torch.tensor(shares, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))

show("share of a constant per token", triage(record.batch)[0].numbers["share_per_token"])
show("95 % of 200 resampled batches", low, high)
assert float(low) > 0.25  # what triage asks for

# %% [markdown]
# ## 5. A swapped expert
#
# A **mixture of experts** sends each token through a few of its parts, chosen by a score. If two scores are 0.501 and
# 0.499, rounding can swap them, and then a whole part of the model is another one. So most tokens show plain rounding,
# and a few show anything. **Look for** the ends of both lines: A is the mixture, B a plain model, both in bfloat16.

# %%
mixture, dense = (list(steps(name)) for name in ("moe_bf16", "bf16"))
picture(tails(mixture[-1], dense[-1]))

# %%
for name in ("bf16", "moe_bf16", "moe_replay"):
    of_steps = [triage(batch)[0].numbers["worst_share"] for batch in steps(name)]
    worst = torch.tensor(of_steps, dtype=torch.float64)
    show(f"{name}: k3 held by 1 % of the tokens", worst.min(), worst.max())
    show(f"{name}: largest ratio either way", float(ratio(differences(name).abs().max())), digits=1)

# %% [markdown]
# (The share alone proves nothing: in `bf16` nearly all tokens are certain, so the few that are not hold all of k3. The
# size of the largest ratio does.) In `moe_replay` the trainer takes the experts that the engine chose; lesson 14.
#
# ## The chart
#
# Nine recorded runs, their last step, and what triage makes of the pairs alone: no settings, no names. Predict the
# findings of two or three before you run it.

# %%
NINE = (
    "bf16",
    "kv_fp8",
    "kv_fp8_e5m2",
    "stale_4",
    "async",
    "top_p",
    "temperature_raw",
    "stale_head",
    "moe_bf16",
)
show("last step of", "k3", "mean r", "error", "r > 1", "", "finding")
for name in NINE:
    finding = triage(list(steps(name))[-1])[0]
    n = finding.numbers
    numbers = [f"{n['k3']:.1e}", n["mean_ratio"], n["mean_ratio_error"], n["share_above_one"]]
    show(name, *numbers, "", finding.pattern)

# %% [markdown]
# - `bf16` is **precision**: small, of either sign. So is `kv_fp8` at its last step: most tokens are sure by then, and
#   sure tokens hide a coarse cache.
# - `top_p` is recognised at once: the mean ratio is 0.968, thirty errors below 1, and hardly a ratio is above 1.
# - `stale_head` is recognised by its constants.
# - `kv_fp8_e5m2`, `stale_4`, `async` and `moe_bf16` are **beyond rounding**, and triage says no more. That is
#   honest: one lies on bad digits, another on old weights, and the pairs look alike. What tells them apart is not in
#   the pairs: the versions of the weights, the settings, the experts.
#
# All runs together: does each pass the test of the mean ratio? All but one cause keep $E_q[r] = 1$.

# %%
show("all recorded steps", "mean r", "error", "errors from 1")
for name in NINE:
    r = ratio(differences(name))
    error = float(r.std() / len(r) ** 0.5)
    away = (float(r.mean()) - 1) / error
    show(name, r.mean(), error, f"{away:.1f}")
    assert abs(away) < 3 or (name == "top_p" and away < -20)

# %% [markdown]
# ## Predict, then reveal
#
# In `temperature_raw` the engine samples at temperature 0.7, and reports its log-probs at temperature 1 (**raw**
# log-probs, vLLM's default). The trainer scores at temperature 1 as well. The chart calls it precision. **Write down a
# guess:**
#
# 1. Would any cap or rejection rule change this batch?
# 2. Is the gradient right, the mean ratio being 1?
# 3. Is there any number in a training that would look wrong?
#
# The answers: no, since every ratio is near 1. And no: the tokens came from the cooled policy, and no number in the
# pairs knows it. "The ratios average to 1" was derived for tokens **drawn from q**; here $q$ is the wrong name.
#
# The third answer is yes, with one more number. The **surprise** of a token is $-\log q$. The **entropy** of a
# policy is its average surprise over its own tokens. If the tokens were drawn from $q$, the surprise averages to the
# entropy, up to chance. A cooled sampler avoids surprises. How much it avoids them is a theorem: with
# $p_\beta \propto p^\beta$, and the surprise measured by $p$,
#
# $$ \frac{d}{d\beta}\, \mathbb{E}_{p_\beta}[-\log p] = -\operatorname{Var}_{p_\beta}(\log p) \le 0 . $$

# %%
P = sympy.symbols("p_A p_B p_C", positive=True)
powers = [x**beta for x in P]
cooled = [x / sum(powers) for x in powers]
surprise = sum(-c * sympy.log(x) for c, x in zip(cooled, P, strict=True))
variance = sum(c * sympy.log(x) ** 2 for c, x in zip(cooled, P, strict=True)) - surprise**2
assert sympy.simplify(sympy.diff(surprise, beta) + variance) == 0

# In numbers, exactly, at the recorded places: the surprise at temperatures 1 and 0.7, and the entropy
entropy = -(log_p.exp() * log_p).sum(-1).mean()
cooled_surprise = -((log_p / 0.7).softmax(-1) * log_p).sum(-1).mean()
show("recorded places: entropy", entropy)
show("surprise, drawn at 0.7, measured at 1", cooled_surprise)
assert cooled_surprise < 0.9 * entropy

# %% [markdown]
# The trainer writes the mean entropy of every step to its metrics. So on the last step of each run, with standard
# errors:

# %%
show("last step of", "entropy", "surprise", "error", "errors away")
for name in NINE:
    entropy = runs.read_metrics(runs.find_run(name))[-1]["entropy"]
    batch = list(steps(name))[-1]
    x = -batch.rollout_log_probs[batch.response_mask]
    error = float(x.std() / len(x) ** 0.5)
    away = (float(x.mean()) - entropy) / error
    show(name, entropy, x.mean(), error, f"{away:.1f}")
    assert (away < -3) == (name in ("temperature_raw", "top_p"))
    assert away < 3

# %% [markdown]
# In `temperature_raw` the tokens surprise five errors less than they should. In `top_p` too: a cut sampler also plays
# safe. Elsewhere none is low. One is high by two errors, and that may have a reason: the entropy is measured during the
# update, which makes the policy surer, so it is a little too small.
#
# Once more: no correction helps here, because both log-probs are of a policy that sampled nothing. The engine has to
# report **processed** log-probs, those of the distribution that it drew from. Then the pairs know, and the ratio
# repairs it.
#
# ## Four tutorials
#
# The commonest form of this mistake needs no engine at all. A program samples with one setting, and trains with
# `log_softmax(logits)`, as if it had sampled with none. Four teaching repositories that many people learn from do it,
# read here at the commits 92d63d4, f79c9cd, a66b0bf and 6cd0306:
#
# | repository | samples with | trains on | said? |
# |---|---|---|---|
# | nanochat, `chat_rl.py` | T = 1, top-k 50 | full softmax | no: "we are on policy" |
# | reasoning-from-scratch, `ch06.py` | T = 0.8, top-p 0.9 | full softmax, T = 1 | no |
# | rlhf-book, `policy_gradients` | T = 0.6, top-p 0.95, top-k 20 | full softmax, T = 1 | docstring: the opposite |
# | nano-aha-moment | top-p 0.999; T is handled | full softmax | yes, with its reason |
#
# They are good tutorials. The point is how easy it is to miss: nothing fails, the reward climbs, and no ratio is ever
# computed. What does it cost? Let us build 200 places of 2,000 tokens, with made-up logits (normal, with a standard
# deviation of 3), and give every token a random advantage. All averages are exact.

# %%
logits = 3 * torch.randn(200, 2000, dtype=torch.float64, generator=generator)
advantage = torch.randn(200, 2000, dtype=torch.float64, generator=generator)


def sampler(logits, temperature, top_k, top_p):
    """log-probs of what is drawn; −∞ on what is cut. Temperature first, then top-k, then top-p, as vLLM does."""
    log_q = (logits / temperature).log_softmax(-1)
    if top_k:
        least = log_q.topk(top_k, -1).values[:, -1:]
        log_q = torch.where(log_q >= least, log_q, -torch.inf).log_softmax(-1)
    return torch.where(cut(log_q, top_p), log_q, -torch.inf).log_softmax(-1)


def trained(q):
    """−∇ of the mean loss −A log p over tokens drawn from q, with the mean advantage as the baseline."""
    leaf = logits.clone().requires_grad_()
    baseline = (q * advantage).sum(-1, keepdim=True)
    loss = (q * reinforce(leaf.log_softmax(-1), advantage - baseline)).sum()
    return -torch.autograd.grad(loss, leaf)[0]


log_p = logits.log_softmax(-1)
wanted = trained(log_p.exp())
show("sampled with (T, top-k, top-p)", "KL(q‖p)", "mean r", "cosine", "length")
for setting in ((1.0, 0, 1.0), (1.0, 50, 1.0), (0.8, 0, 0.9), (0.6, 20, 0.95), (1.0, 0, 0.999)):
    q = sampler(logits, *setting).exp()
    drawn = q > 0
    d = log_ratio(log_p, sampler(logits, *setting), drawn)
    kl, mean_r = -(q * d).sum(-1).mean(), (q * ratio(d)).where(drawn, 0).sum(-1).mean()
    got = trained(q)
    cosine, length = torch.cosine_similarity(got.flatten(), wanted.flatten(), 0), got.norm() / wanted.norm()
    show(str(setting), kl, mean_r, cosine, length, digits=3)
    assert (kl > 1e-6) == (setting != (1.0, 0, 1.0))
    assert cosine > 0.7

# %% [markdown]
# The last two columns compare the gradient that is used with the one that is meant: its direction (the cosine between
# the two; 1 is the same) and its length. Playing safe turns the gradient by 7, 16 and 32
# degrees, and makes it up to 1.4 times as long, because likely tokens are drawn, and moved, more often than the policy
# says. A cut at 0.999 costs next to nothing. How much it is for a real model depends on how sure the model is. But the
# mean ratio would have told it in the first step, at the price of one more forward pass.

# %% [markdown]
# ## Exercise 1: which temperature?
#
# *5 minutes.* You have the trainer's and the engine's log-probs of **all** tokens at one place, `log_p` and `log_q`,
# both `(V,)`. They differ by a temperature. Return $T$: how many times the engine's is the trainer's?
#
# <details><summary>Hint 1</summary>The normaliser is the same for all tokens of the place. What removes it?</details>
# <details><summary>Hint 2</summary>For two tokens, log p_a − log p_b = (log q_a − log q_b)/T.</details>


# %%
def temperature_between(log_p, log_q):
    raise NotImplementedError("exercise 1: write temperature_between, then run this cell and the next.")


# %% tags=["check"]
check(temperature_between, TEMPERATURE_BETWEEN)


# %% tags=["solution", "hide-input"]
def temperature_between_solution(log_p, log_q):
    return (log_q.max() - log_q.min()) / (log_p.max() - log_p.min())


check(temperature_between_solution, TEMPERATURE_BETWEEN)

# %% [markdown]
# ## Exercise 2: undo the cut
#
# *7 minutes.* The engine sampled with top-p, and recorded **which** tokens it had kept (vLLM can return this mask). Let
# the trainer do the same: for each place, return the log-prob of the drawn token among the kept ones. `log_p` and
# `kept` are `(N, V)`, `token` is `(N,)`.
#
# <details><summary>Hint 1</summary>Divide by the kept mass. In logarithms, subtract.</details>
# <details><summary>Hint 2</summary><code>torch.where(kept, log_p, -torch.inf).logsumexp(-1)</code> is log S.</details>


# %%
def log_prob_among_kept(log_p, kept, token):
    raise NotImplementedError("exercise 2: write log_prob_among_kept, then run this cell and the next.")


# %% tags=["check"]
check(log_prob_among_kept, SAME_TOKENS)


# %% tags=["solution", "hide-input"]
def log_prob_among_kept_solution(log_p, kept, token):
    among = torch.where(kept, log_p, -torch.inf).log_softmax(-1)
    return among.gather(-1, token[:, None])[:, 0]


check(log_prob_among_kept_solution, SAME_TOKENS)

# %% [markdown]
# With it $d$ is 0 again wherever the logits agree, and both sides are the same policy: the cut one. TRL reports a mean
# ratio of 0.896 before this repair and 1.001 after it. (What was cut still is not learnt from; but now the gradient is
# right for the policy that samples.)
#
# ## Exercise 3: is the sampler as bold as it says?
#
# *5 minutes.* Given the log-probs of the drawn tokens, `log_q` `(N,)`, and the policy's mean entropy, return how many
# standard errors the mean surprise lies above the entropy.
#
# <details><summary>Hint 1</summary>The surprise of a token is −log q.</details>
# <details><summary>Hint 2</summary>The standard error of a mean of N numbers is their standard deviation over
# √N.</details>


# %%
def errors_above_entropy(log_q, entropy):
    raise NotImplementedError("exercise 3: write errors_above_entropy, then run this cell and the next.")


# %% tags=["check"]
check(errors_above_entropy, SURPRISE)


# %% tags=["solution", "hide-input"]
def errors_above_entropy_solution(log_q, entropy):
    return (-log_q.mean() - entropy) / (log_q.std() / len(log_q) ** 0.5)


check(errors_above_entropy_solution, SURPRISE)

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a batch is 0.968, with a standard error of 0.0009. What is it?**
#
# <details><summary>Chance: 0.968 is nearly 1.</summary>No. It is more than thirty errors below 1. What counts is the
# distance in errors.</details>
# <details><summary>A cut: top-p or top-k, with 0.968 of the probability kept on average.</summary>Yes. It is the run
# <code>top_p</code>. Every other cause keeps the mean at 1.</details>
# <details><summary>Old weights: the run <code>stale_4</code> has a mean of 0.99.</summary>It has, with an error of
# 0.01: one error, and large ratios on both sides. A batch that lacks the rarest tokens comes out low.
# Never read a mean without its error.</details>
#
# **2. You switch the engine from bfloat16 to float16, with three digits more. What happens to k3?**
#
# <details><summary>It falls to an eighth.</summary>No, that is d. k3 is about ½d², a square.</details>
# <details><summary>It falls to about 1/64.</summary>Yes: each digit halves d and quarters k3. (In the table,
# 2.3e-5 became 3.7e-7.)</details>
# <details><summary>Nothing: both have 16 bits.</summary>No. bfloat16 spends 8 of its bits on the exponent and keeps 8
# digits, float16 spends 5 and keeps 11.</details>
#
# **3. Triage says "beyond rounding". What now?**
#
# <details><summary>The weights are old.</summary>Maybe; an 8-bit cache and swapped experts look the same in the
# pairs.</details>
# <details><summary>Look at what the pairs do not hold: the versions of the weights, the engine's settings, and the same
# tokens scored in float32.</summary>Yes. The recorded runs have a version per answer for that reason.</details>
# <details><summary>Add a tighter cap.</summary>Not first. A cap hides a bug as well as it bounds a mismatch.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`. The Mismatch view shows the finding as its headline, and where the gap is:
#
# - [a cut](http://localhost:8501/mismatch?run=top_p&step=latest): the strip below the line;
# - [a stale output head](http://localhost:8501/mismatch?run=stale_head&step=latest): the bars per token;
# - [coarse rounding](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=latest) and
#   [old weights](http://localhost:8501/mismatch?run=stale_4&step=latest): find a picture that tells them apart;
# - [the one that hides](http://localhost:8501/mismatch?run=temperature_raw&step=latest).
#
# ## Pitfalls
#
# - **Raw log-probs.** vLLM reports them before temperature and cuts unless told otherwise
#   (`logprobs_mode="processed_logprobs"`). Then $d$ looks perfect.
# - **Temperature on both sides.** In TRL the trainer divided by the temperature, 0.6, and vLLM's raw log-probs did not:
#   ratios of about 2. Both sides need the temperature, or the ratio is of nothing.
# - **Penalties and masks** act like cuts: whatever the sampler changes, the trainer must change as well.
# - **A small k3 proves no sync.** A stale head starts small and grows. Compare with a float32 engine after a sync: k3
#   must be below 1e-7.
# - **Placeholders.** A missing log-prob recorded as 0 is a probability of 1, and its ratio is pure noise. Mask it.
#
# ## References
#
# 1. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the gap between engine and trainer, named and measured.
# 2. Qi et al., [Defeating the Training-Inference Mismatch via FP16](https://arxiv.org/abs/2510.26788), 2025: three more
#    digits, and what they are worth.
# 3. vLLM, [Engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, raw and
#    processed.
