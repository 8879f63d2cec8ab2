# %% [markdown]
# # 10 · Gradient bias on real runs
#
# **Claim.** Every correction is a sum of scores with one coefficient per token, so a small table of projected scores
# gives the bias, the noise and the direction of all of them, with error bars that often say: one batch cannot tell.
#
# *35 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection (lesson 07) and
# what a standard error is.
#
# At the end you can
#
# - write any correction as coefficients of scores, and read its gradient off;
# - say what a random projection keeps, and how wrong it is;
# - explain why the length of a noisy difference is too large, and take the noise off;
# - read bias, noise and direction of a preset on a recorded step, and say what their intervals do not say.

# %%
import itertools
import warnings
from dataclasses import replace

import sympy
import torch
from exercises.lesson_10 import COEFFICIENTS, SKETCH, SQUARED_LENGTH
from show import picture, show

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.command.tables import gradient_table
from rlcorr.config import LossConfig
from rlcorr.figures.curves import curves
from rlcorr.figures.gradients import bias_noise_plane, parts_of_error
from rlcorr.gradients.bootstrap import bootstrap
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.contributions import contributions, mean_gradients
from rlcorr.gradients.report import compare, decompose, report
from rlcorr.gradients.sketch import Reference, Sketch
from rlcorr.gradients.toy import gradient_truth, log_probs, probabilities, small_world
from rlcorr.objective import policy_loss, score_coefficients
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
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
# length is off by a factor $1 \pm \sqrt{2/K}$. The recorded sketches have $K = 64$, so that is 18 %, and the 39 GB
# become 1 MB.
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
# ## The report against the truth
#
# The toy knows the truth, so it can judge the method. Sample 256 answers from its engine and 8,192 from its trainer,
# project on 64 directions, and ask `report`, as for a recorded run. Do it 60 times, each time with new answers and new
# directions. Everything is in units of the on-policy gradient: a bias of 1 means, as long as the gradient itself.

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
    return batch, Sketch(sketched[rows][where.mask[rows]].float(), reference)


def naive(batch, sketch, configs):
    """|g − reference| of each correction as it is, noise and all, over the length of the reference."""
    replicas = bootstrap(batch, sketch, LossConfig(), 0, 0)  # no samples: row 0 is the step itself
    gradients = [mean_gradients(parts, replicas.sequences)[0] for parts in contributions(batch, sketch, configs)]
    return [float((g - replicas.reference[0]).norm() / replicas.reference_length[0]) for g in gradients]


NAMES = ("disabled", "decoupled_token_is", "decoupled_seq_is")


def judged(count, times):
    """Per preset: exact bias, mean of the naive length, of the report's bias, and how often its interval is right."""
    steps = [sampled_step(count, directions_of(64)) for _ in range(times)]
    configs = [preset(name) for name in NAMES]
    too_long = torch.tensor([naive(*step, configs) for step in steps]).mean(0).tolist()
    biases_of_steps = [[r.relative_bias for r in compare(*step, configs).reports] for step in steps]
    for name, length, biases in zip(NAMES, too_long, zip(*biases_of_steps, strict=True), strict=True):
        exact = gradient_truth(where, policies, advantages, preset(name)).relative_bias
        right = sum(bias.low <= exact <= bias.high for bias in biases)
        yield name, exact, length, [bias.value for bias in biases], f"{right / times:.0%}"


show("256 answers, 60 times", "exact", "naive", "report", "covered")
for name, exact, too_long, biases, right in judged(256, 60):
    average = sum(biases) / len(biases)
    show(name, exact, too_long, average, right, digits=2)
    assert too_long > exact + 0.1
    assert abs(average - exact) < too_long - exact

# %% [markdown]
# The naive length is too large for all three. The report is near the truth, and its 95 % intervals hold it about as
# often as they say. For sequence weights it is still above, because a length cannot be negative: where the square
# without its noise falls below 0, the report says 0, and the average of what is left is above the truth. So **0 with an
# interval is an honest answer, and the interval is the part to read**.
#
# Now sixteen times as many answers.

# %%
show("4,096 answers, 20 times", "exact", "naive", "report", "covered")
in_steps = []
for name, exact, too_long, biases, right in judged(4096, 20):
    in_steps.append(biases)
    show(name, exact, too_long, sum(biases) / len(biases), right, digits=2)
show("steps with the three in the right order", sum(a > b > c for a, b, c in zip(*in_steps, strict=True)))

# %% [markdown]
# The report stays right on average. But its intervals are too narrow now: they are about answers, and the third source
# of error, the 64 directions, is in none of them. While answers are few it does not matter; once they are many, it
# does. The report says so in a number of its own, `projection_error`, $\sqrt{2/64} = 18\,\%$ of a squared length. It is
# the same for all presets, because all share the directions: in all 20 steps their order came out right.
#
# ## The same on a recorded run
#
# `kv_fp8_e5m2`, step 48: 128 answers of 59 tokens, and a reference of 8,192 answers. Here is the bias of no correction,
# first as it is, then without the noise.


# %%
def load(name):
    """The last step of a run that has a sketch, with its advantages as the update saw them."""
    run = runs.find_run(name)
    step = last_sketch(run)
    return updated_batch(run, step), read_sketch(run, step)


def with_interval(interval, digits=2):
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


batch, sketch = load("kv_fp8_e5m2")
plain = CorrectionConfig()
(as_it_is,) = naive(batch, sketch, [plain])
measured_once = report(batch, sketch, plain)

show("answers, tokens, directions", len(batch.response_mask), *sketch.scores.shape)
show("length of the reference", with_interval(measured_once.reference_length, 3))
show("|g − reference|, as it is", as_it_is, digits=1)
show("noise", float(measured_once.noise.value), digits=1)
show("bias, without the noise", with_interval(measured_once.relative_bias, 1))
assert as_it_is < measured_once.noise.value

# %% [markdown]
# The difference is 13 times as long as the gradient, and noise explains all of it: 128 answers scatter by as much. What
# is known about the bias is that it lies below 24. The recorded batch cannot say more.
#
# ### Check 3, with data: where the truth is known
#
# `control_fp32` has an engine in 32 bits, so all ratios are 1 and every correction does nothing. The true bias is 0, of
# every preset. And in each run whose recorded $q$ is what the tokens were drawn with, **unbounded sequence weights have
# no bias**, whatever the mismatch (lesson 02). Both can be tested. Beside the bias stands the **step length**,
# $\langle g, \text{ref}\rangle/\|\text{ref}\|^2$: what the step along the right direction is multiplied by. Without a
# bias it is 1 on average. It needs no noise taken off, because the noise of $g$ and of the reference are independent.

# %%
exact_weights = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=float("inf"))
control, control_sketch = load("control_fp32")
reports = compare(control, control_sketch, [entry.config for entry in PRESETS.values()]).reports
lowest, highest = (pick(r.relative_bias.high for r in reports) for pick in (min, max))
show("control: |g − reference|, as it is", naive(control, control_sketch, [plain])[0], digits=1)
show("control: bias of no correction", with_interval(reports[0].relative_bias, 1))
show("control: upper ends of all presets", lowest, highest, digits=1)
assert all(r.relative_bias.low == 0 for r in reports)
assert highest - lowest < 0.01

VALID = ("control_fp32", "bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "async", "stale_head", "moe_bf16", "moe_replay")
show("unbounded sequence weights", f"{'bias':>20}{'step length':>22}")
inside = 0
for name in VALID:
    of_run = report(*load(name), exact_weights)
    show(name, f"{with_interval(of_run.relative_bias):>20}{with_interval(of_run.scale):>22}")
    assert of_run.relative_bias.low == 0
    inside += of_run.scale.low <= 1 <= of_run.scale.high
show("step length of 1 inside", inside, "of", len(VALID))

# %% [markdown]
# On the control, where there is no bias at all, the naive length is 3.2 gradients: noise, every bit of it. And no
# interval of the report contradicts a bias of 0. The step length of 1 is inside in eight of nine; `stale_4` just misses
# it. One miss in nine is more than 5 % and no scandal: on few answers with a few large weights the bootstrap is too
# sure, because it cannot draw the rare answers that the sample does not hold.
#
# Look at what else the table says. The intervals are **wide**: on `kv_fp8_e5m2` a bias of 10 gradients would not be
# noticed. "Compatible with 0" is not "0".

# %% [markdown]
# ## Predict, then reveal
#
# Back to `kv_fp8_e5m2`. Some presets, from lesson 05, 06 and 07: nothing; a cap of 2 on token ratios or on their
# product over the answer; a mask (IcePop); rejection of answers by k3, and by a geometric mean outside ±0.1 %. **Write
# down:**
#
# 1. Which has the least noise, and which the most?
# 2. For which can the recorded step show that there is a bias?
# 3. A preset that rejected everything would have bias 1 and noise 0, so an error of 1. How many of the library's
#    presets have less?
#
# **Look for** the corner. Noise is to the right, bias upwards, and the error is the distance from the corner. On the
# dashed arc it is 1. Then look at the vertical bars.

# %%
SHOWN = (
    "disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_k3_rs",
    "decoupled_geo_rs",
)  # fmt: skip
choice = compare(batch, sketch, [entry.config for entry in PRESETS.values()])
all_reports = dict(zip(PRESETS, choice.reports, strict=True))
picture(bias_noise_plane({name: all_reports[name] for name in SHOWN}, marked="decoupled_geo_rs"))

show("", f"{'bias':>20}{'noise':>20}{'step length':>22}")
for name in SHOWN:
    r = all_reports[name]
    show(name, f"{with_interval(r.relative_bias):>20}{with_interval(r.noise):>20}{with_interval(r.scale):>22}")

biased = [name for name, r in all_reports.items() if r.relative_bias.low > 0]
better = [name for name, r in all_reports.items() if r.error.value < 1]
surely = [name for name, r in all_reports.items() if r.error.high < 1]
show("presets", len(all_reports))
show("bias shown", len(biased))
show("error below 1", len(better))
show("error surely below 1", len(surely))
assert all_reports["disabled"].noise.low > all_reports["decoupled_geo_rs"].noise.high
assert all(all_reports[name].relative_bias.low < 1 < all_reports[name].relative_bias.high for name in biased)
for name in biased:
    assert any(rule.name == "seq_mean_k1" and rule.upper <= 1.002 for rule in PRESETS[name].config.rollout_rs), name
assert not surely

# %% [markdown]
# 1. Without a correction the noise is 13, with the strict geometric rule 0.4: factors of thirty, and the intervals do
#    not overlap. **Noise is where presets differ**, and one batch is enough to see it.
# 2. A bias is shown only for presets with a band of ±0.1 or 0.2 % on the geometric mean. It is about 1, and 1 is inside
#    all their intervals. That is no surprise: they reject nearly everything, and a step of length 0 has bias 1.
# 3. By their best guess eight; surely none. This does not say which steps are worth taking. The error is that of the
#    gradient as it stands, so it rewards whatever makes it short. But a step is the gradient times a learning rate:
#    what it wins at first order grows with that rate and with the step length, what its noise costs with the square of
#    the rate. With a small enough rate any step of positive length helps on average, whatever its error.
#
# Does "no overlap" need to be that crude? The presets share the batch, so much of their noise is common, and a paired
# difference is sharper: `compare_gradients` takes both on the same bootstrap samples.

# %%
show("minus no correction", f"{'noise':>24}{'bias':>24}")
for name in SHOWN[1:]:
    paired = compare_gradients(batch, sketch, plain, preset(name))
    show(name, f"{with_interval(paired.noise):>24}{with_interval(paired.bias):>24}")
    assert paired.noise.high < 0
    assert paired.bias.low < 0 < paired.bias.high

# %% [markdown]
# Every one has less noise than no correction, surely. For the bias, no difference can be shown. **This is what one
# recorded step says, and a table that ranked these presets by bias would be made of chance.**
#
# ## Direction, signal and sample size
#
# Two more numbers of the report. The **cosine** between the expected gradient and the reference has the noise taken off
# both lengths; where noise explains a length whole there is no direction, and the table shows a dash. The
# **signal-to-noise ratio** is $\|\mathbb{E}\,g\|^2$ over the variance: below 1, a step is mostly chance. Here is
# `bf16`, where the reference is three times longer than in the control, as `python -m rlcorr gradients` prints it.

# %%
SOME = ("disabled", "decoupled_token_is", "decoupled_geo_rs", "skyrl_geo_mask")
for line in gradient_table(runs.find_run("bf16"), names=SOME):
    show(line)

bf16 = compare(*load("bf16"), [preset(name) for name in SOME]).reports
for name, r in zip(SOME, bf16, strict=True):
    show(f"{name}: signal-to-noise", with_interval(r.snr))
assert bf16[0].scale.low > 0
assert bf16[2].scale.high < 0.1
assert all_reports["decoupled_token_is"].ess.value > 0.99 > 0.1 > all_reports["decoupled_geo_rs"].ess.value

# %% [markdown]
# On `bf16` the direction is known: without a correction the step length is surely above 0, so the step goes up. The
# strict geometric rule goes at most 0.04 as far as the reference. The signal-to-noise ratio is between 0.1 and 0.3 by
# its best guess; whether it is below 1, 256 answers cannot say.
#
# The ESS column is about the weights alone. On `kv_fp8_e5m2` the token cap has an ESS of 100 % and a noise of 5, the
# geometric rule an ESS of 7 % and a noise of 0.4. **ESS is not noise**: what an answer adds to the gradient matters as
# well as its weight, and what a rule rejects adds no noise at all.
#
# ## Where an error comes from
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
unbounded = replace(mixed, rollout_is_threshold=float("inf"), rollout_rs=(), denominator="fixed")
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
# Now the recorded step, with a cap of 2 on the token ratios. **Look for** the two bars that matter, and for the one
# that everybody argues about.

# %%
parts = decompose(batch, sketch, preset("decoupled_token_is"))
measured = {name: getattr(parts, name) for name in (*PARTS, "noise")}
picture(parts_of_error(measured))
for name, value in measured.items():
    show(name, with_interval(value))
assert parts.truncation.high < 1 < parts.noise.low

# %% [markdown]
# Truncation changes the expected gradient by at most half of its length: this interval does say something, because the
# two gradients differ in a handful of tokens only. What the level costs, per token in place of per sequence, lies
# anywhere between 0 and 14: the product's own noise hides it. The noise of the batch is 5. The cap is not the problem
# of this step.
#
# How many answers would it take to see a bias of half a gradient? Noise falls like $1/\sqrt B$.

# %%
sizes = [128 * 4**n for n in range(6)]
noise = {name: [all_reports[name].noise.value * (128 / size) ** 0.5 for size in sizes] for name in SHOWN[:3]}
picture(
    curves(sizes, noise, x_name="answers in the batch", y_name="noise, in units of the gradient", log="xy", marks=[128])
)
needed = {name: round(128 * (all_reports[name].noise.value / 0.5) ** 2) for name in SHOWN[:3]}
for name, count in needed.items():
    show(f"{name}: answers for noise ½", f"about {round(count, -3):,}")

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
# **1. A report says: bias 0.00 [0.00, 4.5]. What do you know?**
#
# <details><summary>The correction has no bias.</summary>No. 0 is the best guess, and 4 gradients would look the
# same.</details>
# <details><summary>The bias is below about 4.5 gradients; the data cannot say more.</summary>Yes. Read the upper end:
# it is what was excluded.</details>
# <details><summary>The measurement failed.</summary>No. An upper bound is a result. Here it is a weak one, because 256
# answers scatter by 3.7 gradients.</details>
#
# **2. One preset has bias 0.98 [0.74, 1.20] and noise 0.03. Is it good, because its error is below 1?**
#
# <details><summary>Yes: an error below 1 is better than no step.</summary>No. 1 is the error of a gradient of 0, and
# 0.98 with that interval cannot be told from it. Whether a step helps depends on its direction, its noise and the
# learning rate; a gradient with an error of 5 can teach, in small steps.</details>
# <details><summary>It hardly steps: it rejects nearly all, and a zero gradient has bias 1 and noise 0.</summary>Yes.
# Its step length, near 0, says it directly.</details>
# <details><summary>No: the bias of 0.98 points the wrong way.</summary>Not that either. The bias is the difference to
# the gradient, and here it is the gradient that is missing.</details>
#
# **3. You record 16 times as many answers and the same 64 directions. What gets better?**
#
# <details><summary>The intervals become four times narrower and stay honest.</summary>They become narrower. But they
# are about answers only, and the error of the projection, 18 % of a squared length, stays.</details>
# <details><summary>Nothing: the projection limits everything.</summary>No. With few answers their noise is much larger
# than the projection's.</details>
# <details><summary>The noise falls by four, the projection error stays, so sooner or later more directions are
# needed.</summary>Yes. In the toy the intervals were honest with 256 answers and too narrow with 4,096.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [the gradient view of this step, a cap on token
#   ratios](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is): the plane with all
#   presets, and the parts of the error;
# - [the strict geometric rule](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_geo_rs), whose
#   bias is about 1;
# - [the control](http://localhost:8501/gradient?run=control_fp32&step=40&preset=disabled), where all presets are one
#   point;
# - [two presets beside each
#   other](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=disabled&preset_b=decoupled_seq_is), with paired
#   differences.
#
# The same as text: `python -m rlcorr gradients kv_fp8_e5m2`.
#
# ## Pitfalls
#
# - **Naive lengths.** A difference of two noisy gradients is long whatever the bias is. Take the noise off, or multiply
#   two independent halves.
# - **Ranking by the best guess.** Order presets by bias and the first place is drawn by lot. Look at paired
#   differences.
# - **Rare answers.** A bootstrap redraws what is there. If one answer in a thousand carries the weight and none was
#   drawn, noise and interval are both too small.
# - **Units.** Where the reference itself cannot be told from noise, there is no unit, and the report's ratios mean
#   nothing. Look at its length and interval first.
# - **The first step only.** The scores are those of the weights that sampled the reference. After some updates on the
#   same batch, $\rho$ is no longer 1 and clips act; the recorded sketch does not know that.
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
