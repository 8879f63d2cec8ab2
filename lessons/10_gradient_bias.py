# %% [markdown]
# # 10 · Gradient bias on real runs
#
# **Claim.** Every correction is a sum of scores with one coefficient per token, so a small table of projected scores
# gives bias and noise of all of them, and one number that says which step gets further, each with an interval.
#
# *35 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection (lesson 07) and
# what a standard error is.
#
# At the end you can
#
# - write any correction as coefficients of scores, and read its gradient off;
# - say what a random projection keeps, and how wrong it is;
# - explain why the length of a noisy difference is too large, and take the noise off;
# - derive the progress η of a step from bias and noise, and say why it does not reward a short step;
# - read bias, noise and progress of a preset on a recorded step, and say what their intervals do not say.

# %%
import itertools
import math
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_10 import COEFFICIENTS, SKETCH, SQUARED_LENGTH
from show import picture, show

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import bias_noise_plane, parts_of_bias
from rlcorr.gradients.bootstrap import bootstrap, reference_lengths
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.decomposition import decompose
from rlcorr.gradients.estimates import mean_gradients
from rlcorr.gradients.progress import units_needed
from rlcorr.gradients.report import compare, report, report_of, samples_of
from rlcorr.gradients.sketch import ExactSketch, Reference, SampledSketch
from rlcorr.gradients.toy import gradient_truth, log_probs, probabilities, small_world
from rlcorr.objective import policy_loss, score_coefficients
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients, read_sketch, updated_batch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(10)

# %% [markdown]
# ## Four tokens, one sum
#
# Lesson 00 had three actions A, B, C. The engine wrote A, A, B, C; the trainer's probabilities are ¼, ¼, ½, the ratios
# ½, ½, 1, 2 and the rewards 1, 1, 0, 4. Here the rewards take the place of the advantages.
#
# The gradient of a log-probability is called the **score**, $s = \nabla \log \pi$. For a softmax of three logits it is
# one vector per action: 1 at the action that was taken, minus the probabilities. So A has (¾, −¼, −½).
#
# A correction decides how much each token counts, and nothing else. Its step is $g = \sum_t c_t\, s_t$. The number
# $c_t$ is the **coefficient** of the token. By hand, for weights $r$ without a bound, $c = rA/N$ with $N = 4$ tokens:
#
# | token | A | A | B | C |
# |---|---|---|---|---|
# | c | ½ · 1/4 = ⅛ | ⅛ | 0 | 2 · 4/4 = 2 |
#
# `score_coefficients` gives them for every configuration of the library.

# %%
p = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
written = torch.tensor([0, 0, 1, 2])  # A, A, B, C
four = TokenBatch(
    response_mask=torch.ones(4, 1, dtype=torch.bool),
    rollout_log_probs=q.log()[written][:, None],
    old_log_probs=p.log()[written][:, None],
    advantages=torch.tensor([[1.0], [1.0], [0.0], [4.0]], dtype=torch.float64),
)
scores = torch.eye(3, dtype=torch.float64)[written] - p  # (4, 3): one row per token

NARROW = (RejectionRule.named("token_k1", lower=0.4, upper=1.5),)
FOUR = {
    "no correction": CorrectionConfig(),
    "weights r, no bound": CorrectionConfig(rollout_is="token", rollout_is_threshold=float("inf")),
    "weights r, at most 1.5": CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5),
    "reject outside 0.4 … 1.5": CorrectionConfig(rollout_rs=NARROW),
    "the same, kept tokens only": CorrectionConfig(rollout_rs=NARROW, denominator="kept"),
    "PPO's clip, bypass": preset("bypass_ppo_clip"),
}


def coefficients(batch, config):
    """c of every token, for one optimizer step right after sampling."""
    return score_coefficients(batch.old_log_probs, batch, correct(batch, config), config, LossConfig())[:, 0]


show("coefficients", "A", "A", "B", "C")
for name, config in FOUR.items():
    show(name, coefficients(four, config), digits=3)
show("gradient Σ c s", "A", "B", "C")
for name, config in FOUR.items():
    show(name, coefficients(four, config) @ scores, digits=3)

exact = p * torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)  # p (f − average of f), as in lesson 00
exact -= p * exact.sum()
assert torch.allclose(coefficients(four, FOUR["weights r, no bound"]) @ scores, exact)

# %% [markdown]
# Weights $r$ give the gradient of lesson 00. A cap of 1.5 takes a quarter of C's voice. Rejection takes all of it, and
# so does PPO's clip in bypass mode (lesson 04), because the ratio of 2 has left the clip range already. C is the action
# that pays most, and these last three steps make it **less** probable.
#
# ## The equation
#
# $$ g = \sum_t c_t\, s_t, \qquad s_t = \nabla_\theta \log \pi_\theta(\text{token}_t) $$
#
# It holds for every policy loss $L$ of the library, because $L$ is a function of the log-probs alone: by the chain rule
# $-\nabla L = \sum_t \big(-\partial L/\partial \log \pi_t\big)\, s_t$, and $c_t$ is the bracket. Autograd agrees, for
# all six.

# %%
for config in FOUR.values():
    logits = p.log().requires_grad_()
    now = logits.log_softmax(-1)[written][:, None]
    loss, _ = policy_loss(now, four, correct(four, config), config, LossConfig())
    (by_autograd,) = torch.autograd.grad(-loss, logits)
    assert torch.allclose(by_autograd, coefficients(four, config) @ scores, rtol=0, atol=1e-14)

# %% [markdown]
# So the scores do not depend on the correction. Record them once, and the gradient of every preset, at every threshold,
# is one multiplication away.
#
# They are many numbers: the recorded model has 1.3 million parameters, and a step has up to 7,533 tokens. That would be
# 39 GB. But to compare gradients we need only lengths and angles, and these survive a **random projection**. Draw $K$
# directions $d_k$ with independent standard normal entries, and keep of each score the $K$ numbers
#
# $$ \tilde s[k] = \frac{\langle s, d_k\rangle}{\sqrt K} . $$
#
# This is a **sketch**. For any two gradients $a$ and $b$,
#
# $$ \mathbb{E}\,\langle \tilde a, \tilde b\rangle = \langle a, b\rangle, \qquad
# \mathrm{Var}\,\langle \tilde a, \tilde b\rangle = \frac{\|a\|^2\|b\|^2 + \langle a, b\rangle^2}{K} . $$
#
# A projection is linear: the sketch of $\sum c\,s$ is $\sum c\,\tilde s$. With $a = b$ the formula says that a squared
# length is off by a factor $1 \pm \sqrt{2/K}$. With $K = 64$ that is 18 %, and the 39 GB become 1 MB; with the
# $K = 96$ of the runs on few prompts it is 14 %.
#
# ### Check 1, with symbols
#
# First the score of a softmax. Then the two formulas, for any $a$ and $b$ in three dimensions: multiply out, and put in
# the averages of a standard normal number, $\mathbb{E}\,d^2 = 1$, $\mathbb{E}\,d^4 = 3$, odd powers 0.

# %%
Z = sympy.symbols("z_A z_B z_C", real=True)
total = sympy.Add(*(sympy.exp(z) for z in Z))
PI = [sympy.exp(z) / total for z in Z]
for taken, other in itertools.product(range(3), repeat=2):
    score = sympy.diff(sympy.log(PI[taken]), Z[other])
    assert sympy.simplify(score - (int(taken == other) - PI[other])) == 0

a, b, d = (sympy.symbols(f"{name}_1:4", real=True) for name in "abd")
NORMAL = {0: 1, 1: 0, 2: 1, 3: 0, 4: 3}  # averages of the powers


def over_directions(expression):
    """The average over d, monomial by monomial."""
    return sympy.Add(
        *(c * sympy.Mul(*(NORMAL[n] for n in powers)) for powers, c in sympy.Poly(sympy.expand(expression), *d).terms())
    )


def inner(x, y):
    return sympy.Add(*(i * j for i, j in zip(x, y, strict=True)))


one_direction = inner(a, d) * inner(b, d)
mean = over_directions(one_direction)
variance = over_directions(one_direction**2) - mean**2

show("average", str(sympy.expand(mean)))
assert sympy.expand(mean - inner(a, b)) == 0
assert sympy.expand(variance - (inner(a, a) * inner(b, b) + inner(a, b) ** 2)) == 0

# %% [markdown]
# One direction gives $X_k = \langle a, d_k\rangle\langle b, d_k\rangle$. The sketch averages $K$ independent ones,
# which divides the variance by $K$.
#
# ### Check 2, with numbers: a world that can be enumerated
#
# The **toy** is a language of 364 possible answers, of at most five tokens. Its policies are tables with 484 numbers,
# so scores, gradients and averages over all answers are exact. Engine and trainer differ by noise on the logits.

# %%
toy = small_world(0.5)
where, policies, advantages = toy.where, toy.policies, toy.advantages
table = policies.theta.softmax(-1)  # (states, actions)
one = torch.eye(table.numel(), dtype=torch.float64).view(*table.shape, -1)
score_of = one - (table[..., None] * one).sum(1, keepdim=True)  # 1 at the action taken, minus the probabilities
toy_scores = score_of[where.states, where.tokens] * where.mask[..., None]  # (answers, tokens, parameters)

c = torch.randn(where.mask.shape, dtype=torch.float64, generator=generator) * where.mask
theta = policies.theta.clone().requires_grad_()
(by_autograd,) = torch.autograd.grad((c * log_probs(where, theta)).sum(), theta)
assert torch.allclose(by_autograd.flatten(), torch.einsum("nt,ntp->p", c, toy_scores), rtol=0, atol=1e-12)

truth = gradient_truth(where, policies, advantages, preset("decoupled_token_is"))
x, y = (gradient.flatten() / truth.reference.norm() for gradient in (truth.expectation, truth.reference))
directions = torch.randn(20_000, len(x), dtype=torch.float64, generator=generator)
products = (directions @ x) * (directions @ y)
predicted = x.square().sum() * y.square().sum() + (x @ y).square()

show("answers, parameters", len(where.tokens), len(x))
show("⟨a, b⟩, in units of ‖b‖²", float(x @ y))
show("average over 20,000 directions", float(products.mean()), "±", float(products.std() / len(products) ** 0.5))
show("variance, formula", float(predicted))
show("variance, found", float(products.var()))

assert abs(products.mean() - x @ y) < 3 * products.std() / len(products) ** 0.5
assert abs(products.var() / predicted - 1) < 0.1

# %% [markdown]
# ## A noisy difference is too long
#
# To measure a bias we need the right gradient. The recorder sampled 8,192 more answers, from the trainer's own weights,
# and kept the sketch of their gradient: the **on-policy reference**. The **bias** of a correction is the length of (its
# expected gradient − the on-policy one).
#
# We see neither expectation, only averages over some answers. And **noise never shortens**. Three answers have the
# gradients (3, 0), (0, 3) and (0, 0). Their mean is (1, 1), of squared length 2. Is that signal? No two of them agree
# on anything: all inner products between different ones are 0.
#
# In general let $x_1 \dots x_B$ be independent, each with mean $\mu$, and $\bar x$ their average. Then
#
# $$ \mathbb{E}\,\|\bar x\|^2 = \|\mu\|^2 + \frac1B \sum_k \mathrm{Var}(x[k]), \qquad
# \|\bar x\|^2 - \frac1B \sum_k \widehat{\mathrm{Var}}(x[k])
# = \frac{1}{B(B-1)} \sum_{i \ne j} \langle x_i, x_j\rangle . $$
#
# The second equation says what taking the noise off means: **keep the pairs of different answers**. The average of each
# such pair is exactly $\langle \mu, \mu\rangle$, because the two are independent.

# %%
rows = [sympy.symbols(f"x{i}_1:3", real=True) for i in range(3)]
mean = [sympy.Add(*column) / 3 for column in zip(*rows, strict=True)]
spread = sympy.Add(*((row[k] - mean[k]) ** 2 for row in rows for k in range(2))) / 2  # B − 1 = 2
without_noise = inner(mean, mean) - spread / 3
pairs = sympy.Add(*(inner(i, j) for i, j in itertools.permutations(rows, 2))) / 6
assert sympy.expand(without_noise - pairs) == 0

three = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
by_pairs = sum(float(i @ j) for i, j in itertools.permutations(three, 2)) / 6
show("squared length of the mean", float(three.mean(0).square().sum()), digits=2)
show("the noise in it", float(three.var(0).sum() / 3), digits=2)
show("mean over pairs of different ones", by_pairs, digits=2)
assert abs(float(three.mean(0).square().sum() - three.var(0).sum() / 3) - by_pairs) < 1e-12

# %% [markdown]
# For intervals the report draws **bootstrap** samples: as many answers as there are, with replacement, 200 times. Such
# a sample has the noise of the batch that it was drawn from, and as much of its own. So the noise must come off
# **twice**. All 27 samples of our three answers show it: the average squared length grows by the variance once more (by
# $\frac{B-1}{B}$ of it, as always with a sample's own variance).

# %%
drawn = torch.tensor(list(itertools.product(range(3), repeat=3)))
lengths = three[drawn].mean(1).square().sum(-1)
show("average over 27 bootstrap samples", float(lengths.mean()), digits=3)
once_more = three.mean(0).square().sum() + (2 / 3) * three.var(0).sum() / 3
show("squared length + (2/3) · its noise", float(once_more), digits=3)
assert abs(lengths.mean() - once_more) < 1e-12

# %% [markdown]
# Some of the noise need not be there at all: **compare on the same answers**. One correction has the right gradient on
# average, unbounded sequence weights (lesson 02). So of sampled answers the report takes the bias as the difference
# between a correction and these weights, on the same answers. An answer to which both give the same weight cancels,
# however long its score is.
#
# ## One number for a step
#
# One correction has less bias, another less noise. Which step is better? One could add the two up,
# $\sqrt{\text{bias}^2 + \text{noise}^2}$: the typical distance of one batch's gradient from the right one. But halve a
# noisy gradient. Its noise is halved, the distance falls, and nothing is gained, because a learning rate twice as large
# undoes it.
#
# So ask how far a step gets. Let $g^*$ be the on-policy gradient and $g$ that of a batch. A step along $g$ of length
# factor $a$ raises the objective $J$ by $a\,\langle g^*, g\rangle$ at first order, and the curvature takes at most
# $\frac L2 a^2 \|g\|^2$ away, if it is at most $L$ in every direction. On average over batches
#
# $$ \mathbb{E}\,\big[J(\theta + a g) - J(\theta)\big] \;\ge\; a\,\langle g^*, \mathbb{E} g\rangle
# - \frac L2 a^2\, \mathbb{E}\|g\|^2, \qquad \mathbb{E}\|g\|^2 = \|\mathbb{E} g\|^2 + \frac VB , $$
#
# with $V$ the variance of what one answer adds, and $B$ answers in the batch. The best $a$ makes this
# $\langle g^*, \mathbb{E} g\rangle^2 / (2L\, \mathbb{E}\|g\|^2)$. The exact gradient, without noise, reaches
# $\|g^*\|^2/(2L)$. The first over the second is the **progress**
#
# $$ \eta(B) = \frac{\langle g^*, \mathbb{E} g\rangle^2}{\|g^*\|^2\, \big(\|\mathbb{E} g\|^2 + V/B\big)} . $$
#
# It lies between 0 and 1; where $g$ points away from $g^*$, the best step is none and η is 0. The curvature has
# cancelled, and the length of $g$ too. Two special cases to remember:
#
# - without bias, $\eta = 1/(1 + \text{noise}^2)$: with a noise of 1 half of the progress is left, with 3 a tenth;
# - with endless answers, $\eta$ is the squared cosine between $\mathbb{E} g$ and $g^*$: only the direction counts.
#
# Between them stands $B$: **the same two corrections can change places with the size of the batch.**

# %%
a_step, L, along, squared, exact2, k = sympy.symbols("a L along squared exact2 k", positive=True)
raised = a_step * along - L / 2 * a_step**2 * squared
(best_step,) = sympy.solve(sympy.diff(raised, a_step), a_step)
reached = raised.subs(a_step, best_step)
eta = sympy.simplify(reached / reached.subs({along: exact2, squared: exact2}))
show("best step", str(best_step))
show("progress", str(eta))
assert sympy.simplify(eta - along**2 / (exact2 * squared)) == 0
assert sympy.simplify(eta.subs({along: k * along, squared: k**2 * squared}, simultaneous=True) - eta) == 0
noise2 = sympy.symbols("noise2", positive=True)
assert sympy.simplify(eta.subs({along: exact2, squared: exact2 * (1 + noise2)}) - 1 / (1 + noise2)) == 0

halved = replace(truth, expectation=truth.expectation / 2, variance=truth.variance / 4)
show("token weights in the toy, 16 answers", "bias", "noise", "distance", "progress")
for name, one_truth in (("as they are", truth), ("the step halved", halved)):
    noise = (one_truth.variance / 16) ** 0.5 / float(truth.reference.norm())
    show(name, one_truth.relative_bias, noise, math.hypot(one_truth.relative_bias, noise), one_truth.progress(16))
assert abs(halved.progress(16) - truth.progress(16)) < 1e-12

# %% [markdown]
# Half the step has a smaller distance and the same progress. That is why this project does not rank corrections by a
# distance.
#
# η leaves things out. It is about **one** step of the best length. Adam divides each parameter's gradient by its usual
# size, and trainers clip long gradients; neither is in it. And over many steps noise averages out while bias adds up,
# so for a whole training read it at a larger $B$ than that of a single step.
#
# ## The report against the truth
#
# The toy knows the truth, so it can judge the method. Sample 256 answers from its engine and 8,192 from its trainer,
# project on 64 directions, and ask `report`, as for a recorded run. Do it 60 times, each time with new answers and new
# directions. Bias is in units of the on-policy gradient: 1 means, as long as the gradient itself. η is that of a batch
# of 256 answers. "Covered" counts how often the 95 % interval holds the truth.

# %%
engine, trainer = (probabilities(where, logits) for logits in (policies.rollout, policies.old))
toy_logs = {f"{name}_log_probs": log_probs(where, getattr(policies, name)).float() for name in ("rollout", "old")}
toy_lengths = where.mask.sum(-1).double()


def directions_of(count):
    return torch.randn(len(x), count, dtype=torch.float64, generator=generator) / count**0.5


def sampled_step(count, d, references=8192, blocks=32):
    """A step of the toy as a run would record it: a batch, and its sketch in the directions d."""
    rows = torch.multinomial(engine, count, replacement=True, generator=generator)
    batch = TokenBatch(
        response_mask=where.mask[rows],
        advantages=advantages[rows][:, None].expand(count, where.mask.shape[1]).float(),
        **{name: values[rows] for name, values in toy_logs.items()},
    )
    sketched = (toy_scores.flatten(0, 1) @ d).view(*where.mask.shape, -1)
    on_policy = torch.multinomial(trainer, references, replacement=True, generator=generator)
    sums = (sketched.sum(1) * advantages[:, None])[on_policy].view(blocks, -1, d.shape[1]).sum(1)
    tokens = toy_lengths[on_policy].view(blocks, -1).sum(1)
    reference = Reference(sums.float(), sums.float(), tokens.float(), torch.full((blocks,), references / blocks))
    return batch, SampledSketch(sketched[rows][where.mask[rows]].float(), reference)


def naive(batch, sketch, configs):
    """|g − reference| of each correction as it is, noise and all, over the length of the reference."""
    replicas = bootstrap(batch, sketch, LossConfig(), 0, 0)  # no samples: row 0 is the step itself
    gradients = [mean_gradients(parts, replicas.units)[0] for parts in contributions(batch, sketch, configs)]
    return [float((g - replicas.reference[0]).norm() / reference_lengths(replicas)[0]) for g in gradients]


NAMES = ("disabled", "decoupled_token_is", "decoupled_seq_is")


CONFIGS = [preset(name) for name in NAMES]
TRUTHS = [gradient_truth(where, policies, advantages, config) for config in CONFIGS]


def without_directions(batch, sketch):
    """The reports, but with bootstrap samples of the answers alone."""
    replicas = bootstrap(batch, sketch, LossConfig(), 200, 0)
    replicas = replace(replicas, directions=torch.ones_like(replicas.directions))
    return [report_of(samples_of(parts, replicas, [256])) for parts in contributions(batch, sketch, CONFIGS)]


def covered(intervals, exact_value):
    right = sum(interval.low <= exact_value <= interval.high for interval in intervals)
    return right / len(intervals)


def mean_of(intervals):
    return sum(interval.value for interval in intervals) / len(intervals)


def judge(reports_of_steps):
    """Per preset: exact bias, mean of the report's and how often its interval is right, and the same of η(256)."""
    for one_truth, of_preset in zip(TRUTHS, zip(*reports_of_steps, strict=True), strict=True):
        biases, shares = [r.relative_bias for r in of_preset], [r.progress[0] for r in of_preset]
        exact_bias, exact_share = one_truth.relative_bias, one_truth.progress(256)
        yield exact_bias, mean_of(biases), covered(biases, exact_bias)
        yield exact_share, mean_of(shares), covered(shares, exact_share)


def show_judged(label, rows):
    """One line per preset: bias and η, each exact, as the report has it, and covered."""
    show(label, "bias", "report", "covered", "η", "report", "covered")
    for name, of_bias, of_share in zip(NAMES, rows[::2], rows[1::2], strict=True):
        cells = [x for exact_one, mean, right in (of_bias, of_share) for x in (exact_one, mean, f"{right:.0%}")]
        show(name, *cells, digits=2)


few = [sampled_step(256, directions_of(64)) for _ in range(60)]
rows = list(judge([compare(*step, CONFIGS, batch_sizes=[256]).reports for step in few]))
show_judged("256 answers, 60 times", rows)
too_long = torch.tensor([naive(*step, CONFIGS) for step in few]).mean(0).tolist()
show("naive |g − reference|", too_long, digits=2)
for length, (exact_bias, average, _) in zip(too_long, rows[::2], strict=True):
    assert length > exact_bias + 0.1
    assert abs(average - exact_bias) < length - exact_bias
assert all(right >= 0.85 for _, _, right in rows)
assert all(abs(average - exact_share) < 0.03 for exact_share, average, _ in rows[1::2])

# %% [markdown]
# The naive length is too large for all three. The report is near the truth in both numbers, and its 95 % intervals hold
# it about as often as they say. A length cannot be negative: where the square without its noise falls below 0, the
# report says 0. So **0 with an interval is an honest answer, and the interval is the part to read**.
#
# Now sixteen times as many answers, first as the report does it, then with bootstrap samples that draw the answers
# only.

# %%
many = [sampled_step(4096, directions_of(64)) for _ in range(20)]
both_drawn = list(judge([compare(*step, CONFIGS, batch_sizes=[256]).reports for step in many]))
show_judged("4,096 answers, 20 times", both_drawn)
answers_drawn = list(judge([without_directions(*step) for step in many]))
show_judged("the same, directions not drawn", answers_drawn)
held, held_without = (sum(right for _, _, right in rows) / len(rows) for rows in (both_drawn, answers_drawn))
show("covered on average, with and without", held, held_without, digits=2)
assert held >= 0.9
assert held_without < held - 0.2

# %% [markdown]
# With many answers the largest error left is not that of the answers. It is that of the 64 directions, $\sqrt{2/64} =
# 18\,\%$ of a squared length. An interval over answers alone does not know about it and is too narrow. So the report
# draws the directions again as well: another $K$ of the $K$, with replacement, and its intervals hold both errors.
#
# ## The same on a recorded run, from a sample
#
# `kv_fp8_e5m2`, step 48: 128 answers of 59 tokens, and a reference of 8,192 answers. Here is the bias of no correction,
# first as it is, then without the noise.


# %%
def load_sampled(name):
    """The last step of a run that has a sketch: its own answers, with their advantages as the update saw them."""
    run = runs.find_run(name)
    step = last_sketch(run)
    return updated_batch(run, step), read_sketch(run, step)


def with_interval(interval, digits=2):
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


batch, sketch = load_sampled("kv_fp8_e5m2")
plain = CorrectionConfig()
(as_it_is,) = naive(batch, sketch, [plain])
measured_once = report(batch, sketch, plain, batch_sizes=[128, 4096])

show("answers, tokens, directions", len(batch.response_mask), *sketch.scores.shape)
show("length of the reference", with_interval(measured_once.reference_length, 3))
show("|g − reference|, as it is", as_it_is, digits=1)
show("noise of 128 answers", with_interval(measured_once.noise[0], 1))
show("bias, without the noise", with_interval(measured_once.relative_bias, 1))
show("progress with 128 and 4,096 answers", *(with_interval(share) for share in measured_once.progress))
assert as_it_is < measured_once.noise[0].value
assert measured_once.progress[1].low == 0 < 0.9 < measured_once.progress[1].high

# %% [markdown]
# The difference is 13 times as long as the gradient, and noise explains all of it: 128 answers scatter by as much. What
# is known about the bias is that it lies below 26, and about the progress with 4,096 answers that it lies between 0 and
# 0.95. That is next to nothing. This recorded batch cannot say more, and the report does not pretend.
#
# ## The same with every answer
#
# The answers of most recorded runs are short, four tokens. Then nothing need be sampled. At a sketched step the
# recorder takes some prompts and follows **every likely answer** to them, token by token, as a tree. It keeps what
# trainer and engine give each token, and its score. The expected gradient of a correction is then a sum over answers,
# each as often as the engine would write it, and the on-policy gradient is the same sum with the trainer's
# probabilities. Where a run trains on 80 sums alone and all of them are sketched, the prompts are no sample either:
# this is the exact gradient of its training, and the report's intervals are over the directions alone. Where a run
# draws its prompts from thousands, they are over those that were sketched as well.
#
# `stale_head` is a run on 80 sums whose engine kept the output head of the first step, as after a sync that forgets it.
# First what its own 256 answers say, then all answers.


# %%
def load(name):
    """The last step of a run that has a sketch: every likely answer to some prompts, where the run has them."""
    run = runs.find_run(name)
    return read_gradients(run, last_sketch(run))


stale, stale_sketch = load("stale_head")
assert isinstance(stale_sketch, ExactSketch)
covered_by = stale_sketch.answers.coverage
show("answers, prompts", len(stale.response_mask), stale_sketch.answers.prompt_count)
show("their probability, trainer and engine", covered_by["old"], covered_by["rollout"])
SHOWN = (
    "disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_k3_rs",
    "decoupled_geo_rs",
)  # fmt: skip
of_sample = compare(*load_sampled("stale_head"), [preset(name) for name in SHOWN]).reports
of_all = compare(stale, stale_sketch, [preset(name) for name in SHOWN]).reports
show("bias", f"{'256 sampled answers':>22}{'every answer':>22}")
for name, sampled, complete in zip(SHOWN, of_sample, of_all, strict=True):
    show(name, f"{with_interval(sampled.relative_bias):>22}{with_interval(complete.relative_bias):>22}")
assert min(covered_by.values()) > 0.99
assert all(r.relative_bias.low == 0 for r in of_sample[:3])
assert all(r.relative_bias.low > 0.1 for r in of_all)

# %% [markdown]
# The sample left open whether doing nothing has a bias at all. With every answer, each of the six biases is known, and
# none is 0.
#
# ### Check 3, with data: where the truth is known
#
# Unbounded sequence weights must have no bias, whatever the mismatch, in each run whose recorded $q$ is what the tokens
# were drawn with. Of all answers this can be tested: one sum has the engine's probabilities and the weights, the other
# the trainer's probabilities. And in two runs the recorded $q$ is not what sampled: `top_p` draws from the most likely
# tokens only, and `temperature_raw` records $q$ before its temperature (lesson 03). There it must fail. Last,
# `control_fp32` has an engine in 32 bits, where every correction does nothing.

# %%
exact_weights = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
VALID = ("control_fp32", "bf16", "kv_fp8", "stale_4", "async", "stale_head", "moe_bf16", "moe_replay")
WRONG = ("top_p", "temperature_raw")
show("unbounded sequence weights", f"{'bias':>22}", "covered")
for name in (*VALID, *WRONG):
    batch, sketch = load(name)
    assert isinstance(sketch, ExactSketch)
    bias = report(batch, sketch, exact_weights).relative_bias
    show(name, f"{with_interval(bias, 3):>22}", min(sketch.answers.coverage.values()))
    assert bias.high < 0.01 if name in VALID else bias.low > 0.1

on_control = compare(*load("control_fp32"), [entry.config for entry in PRESETS.values()]).reports
show("control: largest bias of any preset", max(r.relative_bias.high for r in on_control), digits=3)
assert all(r.relative_bias.high < 0.01 for r in on_control)

# %% [markdown]
# ## Predict, then reveal
#
# `stale_head`, a batch of 256 answers, and six presets from lessons 05, 06 and 07: nothing; a cap of 2 on token ratios
# or on their product over the answer; a mask (IcePop); rejection of answers by k3, and by a geometric mean outside ±0.1
# %. **Write down:**
#
# 1. Which has the least noise, and which the most?
# 2. "Nothing" and the geometric rule both have a bias of 1. Do their steps get equally far?
# 3. Which has the smallest distance from the exact gradient, $\sqrt{\text{bias}^2 + \text{noise}^2}$, and which the
#    most progress?
#
# **Look for** the two presets at the same height. Noise is to the right, bias upwards.

# %%
choice = compare(stale, stale_sketch, [entry.config for entry in PRESETS.values()])
all_reports = dict(zip(PRESETS, choice.reports, strict=True))
picture(bias_noise_plane({name: all_reports[name] for name in SHOWN}, 256, marked="decoupled_geo_rs"))

show("", "bias", "noise", "distance", "step", f"{'η(256)':>20}{'η(4096)':>20}")
distance = {}
for name in SHOWN:
    r = all_reports[name]
    distance[name] = math.hypot(r.relative_bias.value, r.noise[0].value)
    cells = (r.relative_bias.value, r.noise[0].value, distance[name], r.scale.value)
    show(name, *cells, "".join(f"{with_interval(share):>20}" for share in r.progress), digits=2)

eta_of = {name: all_reports[name].progress[0] for name in SHOWN}
strict = all_reports["decoupled_geo_rs"]
assert all_reports["disabled"].noise[0].low > strict.noise[0].high
assert min(distance, key=lambda name: distance[name]) == "decoupled_geo_rs"
assert max(eta_of, key=lambda name: eta_of[name].value) == "decoupled_token_is"
assert strict.scale.low < 0 < strict.scale.high
assert strict.progress[0].high < eta_of["decoupled_token_is"].low
assert strict.ess.value < 0.2 < 0.5 < all_reports["decoupled_token_is"].ess.value

# %% [markdown]
# 1. The geometric rule has the least noise, 0.05, and nothing the most, 2.7.
# 2. No. Without a correction more than half of the step goes along $g^*$, and about as far again in wrong directions.
#    The geometric rule rejects nearly everything: a step of length 0 has a bias of 1, too, and gets nowhere. The column
#    "step" tells them apart. It is $\langle \mathbb{E} g, g^*\rangle/\|g^*\|^2$, what the step along the right
#    direction is multiplied by.
# 3. The rule that hardly steps has the smallest distance and the least progress. The most, by the best guess, has the
#    cap on token ratios. **A distance would have chosen the preset that hardly moves.**
#
# The geometric rule also has the smallest effective sample size and the least noise. **ESS is not noise**: what is
# rejected adds none.
#
# The intervals of η overlap. Does that mean that nothing can be said? The presets share answers and directions, so much
# of what makes the intervals wide is common to all. A **paired** difference is sharper: `compare_gradients` takes both
# on the same bootstrap samples.

# %%
show("minus no correction", f"{'bias':>24}{'η(256)':>24}{'η(4096)':>24}")
paired = {name: compare_gradients(stale, stale_sketch, plain, preset(name)) for name in SHOWN[1:]}
for name, against in paired.items():
    show(name, "".join(f"{with_interval(difference):>24}" for difference in (against.bias, *against.progress)))

of_product = paired["decoupled_seq_is"]
assert of_product.bias.high < 0
assert all(share.low > 0 for name in SHOWN[1:4] for share in paired[name].progress)
assert not any(share.tells for share in paired["decoupled_k3_rs"].progress)
assert all(share.high < 0 for share in paired["decoupled_geo_rs"].progress)

groups = [one_choice.groups for one_choice in choice.choices]
show("presets", len(all_reports))
for one_choice in choice.choices:
    sizes_of_groups = [len(group) for group in one_choice.groups]
    show(f"B = {one_choice.batch_size:,}: groups that can be told apart", sizes_of_groups)
needed = units_needed(stale_sketch.directions, paired["decoupled_k3_rs"].progress[0])
show("directions to tell k3 at 256", needed)

# %% [markdown]
# Both caps and the mask get surely further than no correction, with 256 answers in a batch and with 4,096. The
# geometric rule is surely worse at both sizes, and rejection by k3 cannot be told from no correction at either. Next,
# all presets are put into groups: those of a group cannot be told from its first. **Within a group, a rank is made of
# chance.** To tell k3 from nothing at 256 answers, some 500 directions would be needed, if the difference stayed what
# it is; here are 96.
#
# ### Whose gradient?
#
# `stale_head` trains on 80 prompts, and $g^*$ is the mean of their 80 gradients: nothing is left out. `bf16` and the
# two mixtures of experts draw their prompts from thousands, and their sketches hold 128 or 48 of them. What changes?
# Drawing $P$ prompts with gradients $g_1, \dots, g_P$ at random gives
#
# $$ \mathbb{E}\, \|\bar g\|^2 = \|\mathbb{E}\, g\|^2 + \tfrac{1}{P}\, \mathbb{E}\, \|g - \mathbb{E}\, g\|^2 . $$
#
# So the mean of few gradients is too long: even if they have no direction in common, something is left of each. The
# second term can be estimated from the prompts themselves; let $s$ be its share of $\|\bar g\|^2$. Over many more
# prompts the squared length is $1 - s$ of what it is here. An unbiased gradient has
# $\eta(B) = 1/(1 + V/(B \|g^*\|^2))$, and there $B$ answers do what $(1 - s) B$ do here.

# %%
V, B, squared, s_ = sympy.symbols("V B g2 s", positive=True)
of_unbiased = 1 / (1 + V / (B * squared))
assert sympy.simplify(of_unbiased.subs(squared, (1 - s_) * squared) - of_unbiased.subs(B, (1 - s_) * B)) == 0

chance = torch.Generator().manual_seed(4)
draws = torch.randn(20_000, 4, 3, dtype=torch.float64, generator=chance) + 0.5  # four prompts of three parameters
mean_of_four = draws.mean(1).square().sum(-1).mean()
show("‖mean of four‖²: measured, 3 · 0.5² + 3/4", float(mean_of_four), 3 * 0.5**2 + 3 / 4)
assert abs(float(mean_of_four) - 1.5) < 0.02

shares = {}
show("", f"{'share s':>20}", "4,096 answers count as")
for name in VALID:
    shares[name] = report(*load(name), plain, replicates=200).reference_noise
    show(name, f"{with_interval(shares[name]):>20}", (1 - shares[name].value) * 4096, digits=0)
drawn_prompts = ("bf16", "moe_bf16", "moe_replay")
assert all(shares[name].low > 0.05 and shares[name].value > 0.5 for name in drawn_prompts)
assert all(shares[name].high == 0 for name in VALID if name not in drawn_prompts)

# %% [markdown]
# Where prompts are drawn, by the best guess more than half of the squared length comes from their differences, and the
# intervals leave room for all of it. **So η says there how corrections rank, and not how far the training gets.** Does
# at least the rank hold? That was tried on two runs, `kv_fp8` and `stale_head`, recorded on all sums, with 1,024 of
# them in the sketch (`make bench ARGS=prompts`):
#
# - η(256) of token weights falls from 0.28 with 128 prompts to 0.17 and 0.14 with 1,024, as the formula says.
# - Of the pairs of presets that 128 prompts tell apart, about 99 % have the same order on all 1,024, which hold these
#   128, and 95 to 98 % on another 128.
# - Over eight draws of 128 prompts, the bias and η of a preset scatter about as widely as their intervals say.
#   Only on `kv_fp8`, where few prompts have large ratios, the intervals of η are a third too narrow: a bootstrap cannot
#   draw prompts that the sample lacks.
# - The interval of a relative bias hardly gets narrower with more prompts, because the length that it is divided by
#   shrinks as well.
#
# And does a training agree? `make bench ARGS=progress` takes one step of the study `stale_8`, whose batches are eight
# steps old. η(256) of ten presets is measured on 512 prompts. Then each preset makes its own step, along its gradient
# of the same 16 batches of 256 answers, with the length that was best on 16 others, and the expected reward is
# computed exactly on 512 held-out prompts. The order by η and the order by what was gained have a rank correlation of
# 0.67 [0.25, 0.95]. The same preset is first in both, `trl_opsm`; `decoupled_k3_rs` is second by η and gains next to
# nothing, which its interval of η, 0.04 to 0.39, had left open.

# %% [markdown]
# How η grows with the batch, for the same presets:

# %%
sizes = [2**n for n in range(4, 21, 2)]
over_sizes = compare(stale, stale_sketch, [preset(name) for name in SHOWN], batch_sizes=sizes, replicates=0).reports
lines = {name: [share.value for share in r.progress] for name, r in zip(SHOWN, over_sizes, strict=True)}
picture(curves(sizes, lines, x_name="answers in the batch", y_name="progress η", log="x", marks=[256]))
show("η with endless answers: cosine²")
for name, r in zip(SHOWN, over_sizes, strict=True):
    show("  " + name, max(r.cosine.value, 0.0) ** 2, digits=2)
    assert abs(lines[name][-1] - max(r.cosine.value, 0.0) ** 2) < 0.01

show("toy: token weights, product", "16", "256", "4,096")
for name, one_truth in zip(NAMES[1:], TRUTHS[1:], strict=True):
    show("  " + name, [one_truth.progress(size) for size in (16, 256, 4096)], digits=3)
assert TRUTHS[1].progress(16) > TRUTHS[2].progress(16)
assert TRUTHS[1].progress(4096) < TRUTHS[2].progress(4096)

# %% [markdown]
# Every curve climbs to the squared cosine of its correction and stays there. More answers buy off noise, never bias. In
# the toy, token weights win with 16 answers and the product wins with 4,096: the size of the batch decides. Lesson 11
# asks the same about thresholds.
#
# ## Where a bias comes from
#
# A correction leaves the exact one, unbounded sequence weights, in four steps. Each can be measured as a difference on
# the same answers, where most of the noise cancels: **level** (weights per token, or none, in place of the product),
# **truncation** (bounds on the weights), **rejection**, and **denominator** (dividing by the kept tokens only).
#
# In the toy the steps are exact. First these, then `decompose` on six sampled steps of 4,096 answers, with a direction
# for each of the 484 parameters, so that nothing is lost in a projection.

# %%
mixed = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.5, denominator="kept",
    rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.8, upper=1.25),),
)  # fmt: skip
unbounded = replace(mixed, rollout_is_threshold=math.inf, rollout_rs=(), denominator="fixed")
stages = (
    exact_weights,
    unbounded,
    replace(unbounded, rollout_is_threshold=1.5),
    replace(mixed, denominator="fixed"),
    mixed,
)
steps = [gradient_truth(where, policies, advantages, stage).expectation for stage in stages]
exact_parts = [float((after - before).norm() / truth.reference.norm()) for before, after in itertools.pairwise(steps)]
every_parameter = torch.eye(len(x), dtype=torch.float64)
measured = [decompose(*sampled_step(4096, every_parameter, references=2**15), mixed) for _ in range(6)]

PARTS = ("level", "truncation", "rejection", "denominator")
show("", "exact", "mean of 6", "covered")
for name, value in zip(PARTS, exact_parts, strict=True):
    estimates = [getattr(parts, name) for parts in measured]
    average = sum(part.value for part in estimates) / 6
    show(name, value, average, f"{sum(part.low < value < part.high for part in estimates)} of 6", digits=2)
    assert abs(average / value - 1) < 0.1

# %% [markdown]
# Now the recorded step, with a cap of 2 on token ratios and rejection of answers by k3. **Look for** the bar that
# matters.

# %%
parts = decompose(stale, stale_sketch, preset("decoupled_k3_rs_token_tis"))
measured = {name: getattr(parts, name) for name in PARTS}
picture(parts_of_bias(measured))
for name, value in measured.items():
    show(name, with_interval(value))
assert parts.rejection.low > max(parts.level.high, parts.truncation.high)
assert parts.level.low > 0

# %% [markdown]
# The rule costs most: with the rejected answers goes a piece of the gradient that is 0.77 times as long as all of it.
# Weights per token in place of the product cost 0.05, and the cap 0.18. The preset divides by all tokens, so the last
# part is 0.

# %% [markdown]
# ## Exercise 1: the coefficients
#
# *5 minutes.* Token weights with a cap, some tokens rejected. Return $c$ of every token, `(N,)`. The loss is an
# average: over all tokens, or with `kept_only` over the kept ones.
#
# <details><summary>Hint 1</summary>Weight times advantage, over the number of tokens that count.</details>
# <details><summary>Hint 2</summary>A rejected token has the coefficient 0. Its ratio and advantage may be
# anything.</details>


# %%
def token_coefficients(r, advantages, keep, cap, kept_only):
    raise NotImplementedError("exercise 1: write token_coefficients, then run this cell and the next.")


# %% tags=["check"]
check(token_coefficients, COEFFICIENTS)


# %% tags=["solution", "hide-input"]
def token_coefficients_solution(r, advantages, keep, cap, kept_only):
    counted = keep.sum() if kept_only else len(r)
    return r.clamp(max=cap) * advantages * keep / counted


check(token_coefficients_solution, COEFFICIENTS)

# %% [markdown]
# ## Exercise 2: a sketch
#
# *3 minutes.* `scores` is `(N, D)`, `directions` is `(K, D)` with standard normal entries. Return the sketch `(N, K)`,
# such that inner products of its rows estimate those of the scores.
#
# <details><summary>Hint 1</summary>An inner product of two sketches is a sum of K terms, and should be their
# average.</details>
# <details><summary>Hint 2</summary>The factor stands in both sketches, so each takes its root.</details>


# %%
def sketch_of(scores, directions):
    raise NotImplementedError("exercise 2: write sketch_of, then run this cell and the next.")


# %% tags=["check"]
check(sketch_of, SKETCH)


# %% tags=["solution", "hide-input"]
def sketch_of_solution(scores, directions):
    return scores @ directions.T / len(directions) ** 0.5


check(sketch_of_solution, SKETCH)

# %% [markdown]
# ## Exercise 3: a squared length without its noise
#
# *6 minutes.* `x` is `(B, K)`, one gradient per answer. Return an estimate of $\|\mu\|^2$ that is right on average.
#
# <details><summary>Hint 1</summary>The example with (3, 0), (0, 3), (0, 0) must give 0.</details>
# <details><summary>Hint 2</summary>Squared length of the mean, minus the variance of the mean, summed over the
# columns.</details>
# <details><summary>Hint 3</summary><code>x.var(0)</code> divides by B − 1 and is the variance of one answer; that of
# the mean is B times smaller.</details>


# %%
def squared_length(x):
    raise NotImplementedError("exercise 3: write squared_length, then run this cell and the next.")


# %% tags=["check"]
check(squared_length, SQUARED_LENGTH)


# %% tags=["solution", "hide-input"]
def squared_length_solution(x):
    return x.mean(0).square().sum() - x.var(0).sum() / len(x)


check(squared_length_solution, SQUARED_LENGTH)

# %% [markdown]
# ## Check yourself
#
# **1. A report on sampled answers says: bias 0.00 [0.00, 4.5]. What do you know?**
#
# <details><summary>The correction has no bias.</summary>No. 0 is the best guess, and 4 gradients would look the
# same.</details>
# <details><summary>The bias is below about 4.5 gradients; the data cannot say more.</summary>Yes. Read the upper end:
# it is what was excluded.</details>
# <details><summary>The measurement failed.</summary>No. An upper bound is a result, if a weak one. More answers, or all
# of them, say more.</details>
#
# **2. Preset A has bias 0.98 and noise 0.03, preset B has no bias and a noise of 1.6. Which step gets further?**
#
# <details><summary>A: its gradient is nearer to the exact one.</summary>It is, and so is a gradient of 0, with bias 1
# and noise 0. Nearness rewards a short step.</details>
# <details><summary>B: it makes 1/(1 + 1.6²) = 28 % of the exact progress. A hardly steps, and what is left of it may
# point anywhere.</summary>Yes. Bias and noise alone do not even say where A goes; its step length and η do.</details>
# <details><summary>It depends on the learning rate.</summary>How far a given step gets does. η compares both at the
# rate that is best for each, so that the comparison does not depend on it.</details>
#
# **3. You record 16 times as many answers and the same 64 directions. What becomes of the intervals?**
#
# <details><summary>They become four times narrower.</summary>Only while the noise of the answers is most of their
# width. They hold the error of the projection as well, 18 % of a squared length, and that stays.</details>
# <details><summary>Nothing: the projection limits everything.</summary>No. With few answers their noise is much larger
# than the projection's.</details>
# <details><summary>They shrink until the directions are most of what is left in them; then more directions are
# needed.</summary>Yes. Without drawing the directions they would go on shrinking, and be wrong: you saw it with 4,096
# answers.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the gradient view of this step, a cap on token
#   ratios](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_token_is): all presets by their
#   progress, and bias and noise as its parts. Move the number of answers;
# - [the strict geometric rule](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_geo_rs), whose
#   bias is 1 and whose progress is 0;
# - [a step with 1,024 sampled
#   answers](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is), which tells little;
# - [the control](http://localhost:8501/gradient?run=control_fp32&step=40&preset=disabled), where all presets are one
#   point;
# - [two presets beside each
#   other](http://localhost:8501/compare?run=stale_head&step=40&preset=disabled&preset_b=decoupled_seq_is), with paired
#   differences.
#
# The same as text: `python -m rlcorr gradients stale_head`.
#
# ## Pitfalls
#
# - **Naive lengths.** A difference of two noisy gradients is long whatever the bias is. Take the noise off, or multiply
#   two independent halves.
# - **Ranking by the best guess.** Among presets that cannot be told apart, the first place is drawn by lot. Look at
#   paired differences.
# - **Ranking by distance, or by bias alone.** Both prefer a short step to a noisy one, whatever it learns.
# - **Answers that were left out.** "Every likely answer" leaves out the unlikely ones. Look at the share of the
#   probability that is covered: below 99 % something may be missing. On `moe_bf16` it is 98 %.
# - **Rare answers.** A bootstrap redraws what is there. If one answer in a thousand carries the weight and none was
#   drawn, noise and interval are both too small.
# - **Units.** Where the reference itself cannot be told from noise, there is no unit, and the report's ratios mean
#   nothing. Look at its length and interval first.
# - **The first step only.** The scores are those of the weights before the update. After some updates on the same
#   batch, $\rho$ is no longer 1 and clips act; the recorded sketch does not know that.
# - **A small bias per step is not a small effect.** Noise averages out over steps, a bias does not.
#
# ## References
#
# 1. Yingru Li, Jiacai Liu et al., [When Speed Kills Stability](https://yingru.notion.site), 2025: bias against variance
#    of token and sequence corrections.
# 2. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the gradient that training takes, and the one that it
#    should.
# 3. [Stable Asynchrony](https://arxiv.org/abs/2602.17616), 2026: the effective sample size as a warning, and the
#    variance of off-policy gradients.
