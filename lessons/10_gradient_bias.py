# %% [markdown]
# # 10 · Gradient bias on real runs
#
# **Claim.** Every correction is a sum of scores with one coefficient per token, so its expected gradient and its noise
# can be summed over all likely answers. The error of a gradient rewards a short step; what to compare is the progress
# of a step of the best length.
#
# *25 minutes · advanced · any laptop; no GPU, no network.* You know truncation (lesson 05), rejection (lesson 07) and
# what a standard error is. Letters, and the words **bias**, **noise** and **error**, are in [Notation](NOTATION.md).

# %% tags=["hide-input"]
import itertools
import math
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_10 import COEFFICIENTS, PROGRESS, SKETCH
from sentences import above, below, bracketed, say, untold
from show import picture, show

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.gradients import parts_of_bias, ranking_bars
from rlcorr.gradients.bootstrap import EXACT_WEIGHTS
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.decomposition import decompose
from rlcorr.gradients.report import compare, report
from rlcorr.gradients.toy import gradient_truth, small_world
from rlcorr.losses.objective import score_coefficients
from rlcorr.records import runs
from rlcorr.records.sketch_files import ExactSketch, last_sketch, read_gradients
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Four tokens, by hand
#
# The engine wrote X, X, Y, Z, each an answer of one token. The trainer's probabilities are ¼, ¼, ½, the ratios ½, ½, 1,
# 2, the advantages 1, 1, 0, 4.
#
# The gradient of a log-probability is called the **score**, $s=\nabla\log\pi$. For a softmax of three logits it is 1 at
# the action that was taken, minus the probabilities: X has (¾, −¼, −½).
#
# A correction decides how much each token counts, and nothing else. Its step is $g=\sum_t c_t s_t$, and $c_t$ is the
# **coefficient** of the token. With weights $r$ and no bound $c=rA/N$: ⅛, ⅛, 0 and 2. With a cap of 1.5 Z has 1.5.
# Rejected tokens have 0.

# %% tags=["hide-input"]
p, q = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]], dtype=torch.float64)
written = torch.tensor([0, 0, 1, 2])  # X, X, Y, Z
four = TokenBatch(
    response_mask=torch.ones(4, 1, dtype=torch.bool),
    rollout_log_probs=q.log()[written][:, None],
    old_log_probs=p.log()[written][:, None],
    advantages=torch.tensor([[1.0], [1.0], [0.0], [4.0]], dtype=torch.float64),
)
scores = torch.eye(3, dtype=torch.float64)[written] - p  # (4, 3): one row per token

# %%
CONFIGS = {
    "no correction": CorrectionConfig(),
    "weights r, no bound": CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
    "weights r, at most 1.5": CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5),
    "reject above 1.5": CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.4, upper=1.5),)),
}
show("", "c of X", "X", "Y", "Z", "g: X", "Y", "Z")
for name, config in CONFIGS.items():
    c = score_coefficients(four.tensors()["old_log_probs"], four, correct(four, config), config, LossConfig())[:, 0]
    show(name, c, c @ scores, digits=3)

# %% [markdown]
# Z pays most. Rejecting it makes it **less** probable.
#
# ## The equation
#
# Let $u(y)=\sum_t c_t s_t$ be the gradient of one answer $y$; that of a batch is their average. Where all likely
# answers are known, with their probabilities in both policies, nothing need be sampled:
#
# $$\mathbb{E}g=\sum_y q(y)\,u(y),\qquad V=\sum_y q(y)\,\|u(y)-\mathbb{E}g\|^2,\qquad g^*=\sum_y p(y)\,A(y)\sum_t s_t.$$
#
# The gradient of $B$ answers has the **bias** $\|\mathbb{E}g-g^*\|$, the **noise** $\sqrt{V/B}$ and, from both, the
# **error**. Which correction is better? **Not the one with the smaller error.** The squared error of $a$ times the
# gradient is
#
# $$\mathbb{E}\|ag-g^*\|^2=\|g^*\|^2-2a\,\langle g^*,\mathbb{E}g\rangle+a^2\big(\|\mathbb{E}g\|^2+V/B\big).$$
#
# Shorten a noisy step, and the error falls, because the noise shrinks with it. Nothing was gained: a larger learning
# rate undoes it. Without a step, $a=0$, the error is $\|g^*\|$. So an error below 1, in units of $\|g^*\|$, says
# little: every gradient that points towards $g^*$ has one if it is shrunk enough.
#
# ### Shrinking a step, by hand
#
# In one dimension let $g^*=1$, and let $g$ be 3 or −1, each with probability ½.
#
# |step|mean|bias|noise|error|progress|
# |---|---|---|---|---|---|
# |$g$|1|0|2|2|0.2|
# |$g/2$|0.5|0.5|1|1.12|0.2|
# |$g/5$|0.2|0.8|0.4|0.89|0.2|
# |none|0|1|0|1|0|
#
# ### Progress: how far a step gets
#
# Along $g$ the objective rises by $a\langle g^*,g\rangle$, and a curvature of at most $L$ takes at most
# $\frac L2a^2\|g\|^2$ away. With the $a$ that is best on average there remains
# $\langle g^*,\mathbb{E}g\rangle^2/\big(2L\,\mathbb{E}\|g\|^2\big)$; for the exact gradient it is $\|g^*\|^2/2L$. The
# first over the second is the **progress**
#
# $$\eta(B)=\frac{\langle g^*,\mathbb{E}g\rangle^2}{\|g^*\|^2\,\big(\|\mathbb{E}g\|^2+V/B\big)},$$
#
# and 0 where $g$ points away from $g^*$. It lies between 0 and 1, without $L$ and without the length of $g$. An
# unbiased gradient has $\eta=1/(1+\text{noise}^2)$, in units of $\|g^*\|$. The smallest error that shrinking can
# reach is $\sqrt{1-\eta}$.
#
# ## The same on a recorded step
#
# `stale_head` trains on few sums, and its engine kept the output head of the first step. The recorder followed every
# likely answer to them, with both policies' probabilities and the score of each token. A score has one number for each
# parameter, too many to keep. But lengths and angles survive a **random projection**: draw $K$ directions $d_k$ with
# standard normal entries, and keep $\langle s,d_k\rangle/\sqrt K$. This **sketch** is right on average, and a squared
# length is off by a factor $1\pm\sqrt{2/K}$. So the gradients are exact but for the projection.
#
# **Look for** the lowest point of each line: it lies at a short step, because a long one is mostly noise. All begin at
# 1, with no step.

# %% tags=["hide-input"]
SHOWN = (
    "disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_k3_rs",
    "decoupled_geo_rs",
)  # fmt: skip
TOKEN, GEO = "decoupled_token_is", "decoupled_geo_rs"


def load(name):
    """The last step of a run that has a sketch: every likely answer to some prompts, where the run has them."""
    run = runs.find_run(name)
    return read_gradients(run, last_sketch(run))


stale_head = load("stale_head")
ranking = compare(*stale_head, [preset(name) for name in SHOWN])
of_preset = dict(zip(SHOWN, ranking.reports, strict=True))


def error(r, a=1.0):
    """Of a step of a times the gradient of 256 answers, in units of the exact gradient."""
    square = (r.length.value / r.reference_length.value) ** 2 + r.noise[0].value ** 2
    return math.sqrt(1 - 2 * a * r.scale.value + a**2 * square)


factors = [round(0.025 * n, 3) for n in range(41)]
lines = {name: [error(of_preset[name], a) for a in factors] for name in ("disabled", TOKEN, GEO)}
picture(curves(factors, lines, x_name="length of the step, a", y_name="error, in units of ‖g*‖"))

# %% tags=["hide-input"]
of_token, of_geo = of_preset[TOKEN], of_preset[GEO]
assert abs(min(lines[TOKEN]) - math.sqrt(1 - of_token.progress[0].value)) < 0.01
assert error(of_token) > 2 > 1.01 > error(of_geo)
sketch = stale_head[1]
assert isinstance(sketch, ExactSketch)
covered = min(sketch.answers.coverage.values())
say(f"""
With {of_token.batch_sizes[0]} answers in a batch capped token weights (`{TOKEN}`) have an error of
{error(of_token):.1f}, and {min(lines[TOKEN]):.2f} once their step is shrunk. The strict geometric rule (`{GEO}`) has
{error(of_geo):.2f} at any length: it rejects nearly everything and does not move. The followed
answers hold at least {100 * covered:.1f} % of the probability.
""")

# %% [markdown]
# ## Predict, then reveal
#
# Six presets from lessons 05 to 07: nothing; a cap on token ratios, or on their product; a mask (IcePop); rejection of
# answers by k3, and by a strict bound on the geometric mean. **Write down:**
#
# 1. Which has the smallest error, and which the most progress?
# 2. Nothing and the geometric rule have about the same bias. Do their steps get equally far?
# 3. Does the preset with the smallest error make the most progress in other runs?

# %% tags=["hide-input"]
show("stale_head, 256 answers, ‖g*‖ = 1", "bias", "noise", "error", "step", "η")
for name, r in of_preset.items():
    show(name, r.relative_bias.value, r.noise[0].value, error(r), r.scale.value, r.progress[0].value, digits=2)
picture(ranking_bars(SHOWN, ranking, 256, marked=GEO))

# %% tags=["hide-input"]
RUNS = ("stale_head", "bf16", "kv_fp8", "stale_4", "async")
everywhere = {name: compare(*load(name), [preset(one) for one in SHOWN]).reports for name in RUNS}
first = {name: SHOWN[min(range(len(SHOWN)), key=lambda i: error(rs[i]))] for name, rs in everywhere.items()}
furthest = {
    name: SHOWN[max(range(len(SHOWN)), key=lambda i: rs[i].progress[0].value)] for name, rs in everywhere.items()
}
agree = [name for name in RUNS if first[name] == furthest[name]]
head = compare_gradients(*stale_head, preset(GEO), preset(TOKEN)).progress[0]
lag = compare_gradients(*load("stale_4"), preset(TOKEN), preset(GEO)).progress[0]
geo_lag = everywhere["stale_4"][SHOWN.index(GEO)]
against = {name: compare_gradients(*stale_head, preset("disabled"), preset(name)).progress[0] for name in SHOWN[1:]}
assert first["stale_head"] == GEO
assert furthest["stale_head"] in (TOKEN, "decoupled_token_icepop")
say(f"""
1. Going by values without their intervals, the geometric rule has the smallest error, {error(of_geo):.2f}, and
   `{furthest["stale_head"]}` makes the most progress. The geometric rule's is {bracketed(of_geo.progress[0])}.
   Bars of one shade cannot be told from the longest of them.
2. No. The geometric rule gets less far; the paired difference of η is {below(against[GEO])}. The column "step",
   $\\langle g^*,\\mathbb{{E}}g\\rangle/\\|g^*\\|^2$, shows why: it takes almost no step.
3. Again without intervals, in {len(agree)} of {len(RUNS)} runs ({", ".join(f"`{name}`" for name in agree)}). In
   {sum(one == GEO for one in first.values())} of them the geometric rule has the smallest error.

**A short step is no fault either.** In `stale_4` the geometric rule makes {geo_lag.scale.value:.2f} of the exact step,
and its error is {error(geo_lag):.2f}, much as in `stale_head`. But there it gets further than capped token weights:
its η is higher by {above(lag)}. In `stale_head` its η is lower by {above(head)}. The error cannot tell these cases
apart.
""")

# %% tags=["hide-input"]
say(f"""
Where intervals overlap, the sign of a **paired** difference may still be known: most of what makes them wide is common.
The two caps and the mask get further than no correction, by {above(against[TOKEN])},
{above(against["decoupled_seq_is"])} and {above(against["decoupled_token_icepop"])}. Rejection by k3 cannot be told from
it: {untold(against["decoupled_k3_rs"])}.
""")

# %% [markdown]
# ## The size of the batch
#
# More answers lower the noise, never the bias. **Look for** the right ends of the lines: the squared cosine between
# $\mathbb{E}g$ and $g^*$ is all that is left.

# %% tags=["hide-input"]
sizes = [2**n for n in range(4, 21, 2)]
over_sizes = compare(*stale_head, [preset(name) for name in SHOWN], batch_sizes=sizes, replicates=0).reports
lines = {name: [share.value for share in r.progress] for name, r in zip(SHOWN, over_sizes, strict=True)}
for name, r in zip(SHOWN, over_sizes, strict=True):
    assert abs(lines[name][-1] - max(r.cosine.value, 0.0) ** 2) < 0.01
picture(curves(sizes, lines, x_name="answers in a batch, B", y_name="progress η(B)", log="x", marks=[256]))

toy = small_world(0.5)  # of 364 answers, so that everything is exact
truths = [gradient_truth(toy.where, toy.policies, toy.advantages, preset(name)) for name in (TOKEN, "decoupled_seq_is")]
SMALL, LARGE = 16, 4096
few, many = ([truth.progress(size) for truth in truths] for size in (SMALL, LARGE))
assert few[0] > few[1] + 0.01
assert many[0] < many[1] - 0.01
say(f"""
**Two corrections can change places.** In a toy whose gradients are exact, capped token weights have an η of
{few[0]:.2f} and the capped product {few[1]:.2f} with {SMALL} answers; with {LARGE:,} they have {many[0]:.2f} and
{many[1]:.2f}.
""")

# %% [markdown]
# $\eta$ is about **one** step of the best length, without Adam and without the clipping of long gradients. Over many
# steps noise averages out and bias adds up: for a whole training read it at a larger $B$.
#
# **What an interval covers.** In `stale_head` all prompts and nearly all answers are known; only the directions were
# drawn. In `bf16` prompts were drawn as well. Long answers must be sampled, and a sample may say next to nothing:

# %% tags=["hide-input"]
long = load("kv_fp8_e5m2")
of_sample = report(*long, CorrectionConfig(), batch_sizes=[LARGE])
assert of_sample.progress[0].low < 0.01
assert of_sample.progress[0].high > 0.9
say(f"""
In `kv_fp8_e5m2` {len(long[0].response_mask):,} answers put the bias of no correction between
{of_sample.relative_bias.low:.0f} and {of_sample.relative_bias.high:.0f} times the length of $g^*$, and η({LARGE})
between {of_sample.progress[0].low:.2f} and {of_sample.progress[0].high:.2f}.
""")

# %% [markdown]
# ## Exercise 1: the coefficients
#
# *5 minutes.* Token weights with a cap, some tokens rejected. Return $c$ of every token, `(N,)`. The loss is an
# average: over all tokens, or with `kept_only` over the kept ones.
#
# <details><summary>Hint 1</summary>Weight times advantage, over the number of tokens that count.</details>
# <details><summary>Hint 2</summary>A rejected token has the coefficient 0.</details>


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
# ## Exercise 3: progress
#
# *6 minutes.* `q` `(A,)` are the engine's probabilities of all answers, `u` `(A, D)` what each adds to the gradient,
# `exact` `(D,)` is $g^*$. Return $\eta$ for batches of `B` answers.
#
# <details><summary>Hint 1</summary>First 𝔼g, the average of u under q; then V.</details>
# <details><summary>Hint 2</summary>The inner product of a gradient that points away counts as 0.</details>


# %%
def progress_of(q, u, exact, B):
    raise NotImplementedError("exercise 3: write progress_of, then run this cell and the next.")


# %% tags=["check"]
check(progress_of, PROGRESS)


# %% tags=["solution", "hide-input"]
def progress_of_solution(q, u, exact, B):
    mean = q @ u
    variance = q @ (u - mean).square().sum(-1)
    return (mean @ exact).clamp(min=0) ** 2 / (exact.square().sum() * (mean.square().sum() + variance / B))


check(progress_of_solution, PROGRESS)

# %% [markdown]
# ## Check yourself
#
# **1. Preset P has bias 0.98 and noise 0.03, preset S has no bias and a noise of 1.6. Which step gets further?**
#
# <details><summary>P: its gradient is nearer to the exact one.</summary>So is a gradient of 0, with bias 1.</details>
# <details><summary>S has η = 1/(1 + 1.6²) = 0.28. For P these numbers do not say it.</summary>Yes. P may point right
# and be too short, or point mostly elsewhere.</details>
# <details><summary>It depends on the learning rate.</summary>η takes the best one for each.</details>
#
# **2. You multiply a correction's weights by ⅓. What happens to its error and to η?**
#
# <details><summary>Both stay.</summary>η does. The error changes with the length of the step.</details>
# <details><summary>The error falls if noise is most of it, and η stays.</summary>Yes.</details>
# <details><summary>η falls by a factor of 9.</summary>Its numerator does, and its denominator too.</details>
#
# **3. A report on sampled answers says: bias 0.00 [0.00, 4.5]. What do you know?**
#
# <details><summary>The correction has no bias.</summary>No. A bias of 4 may look the same.</details>
# <details><summary>The bias is below about 4.5 gradients.</summary>Yes. Read the upper end.</details>
# <details><summary>The measurement failed.</summary>No. An upper bound is a result.</details>

# %% [markdown]
# ## In the app
#
# After `make app`, open
#
# - [this step, a cap on token
#   ratios](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_token_is): move the number of
#   answers;
# - [the strict geometric rule](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_geo_rs);
# - [a step with sampled
#   answers](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is);
# - [two presets beside each
#   other](http://localhost:8501/compare?run=stale_head&step=40&preset=disabled&preset_b=decoupled_seq_is), paired.
#
# ## Pitfalls
#
# - **Ranking without intervals.** Among presets that cannot be told apart, the first place is drawn by lot.
# - **ESS is not noise.** Rejected tokens lower it, and add no noise.
# - **Rare answers.** A sample that lacks them shows too little noise, and too short an interval.
#
# ## References
#
# 1. Yingru Li, Jiacai Liu et al., [When Speed Kills
#    Stability](https://yingru.notion.site/271211a558b7808d8b12d403fd15edda), 2025: bias against variance of token and
#    sequence corrections.
# 2. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the gradient that training takes, and the one that it
#    should.
# 3. [Stable Asynchrony](https://arxiv.org/abs/2602.17616), 2026: the effective sample size as a warning, and the
#    variance of off-policy gradients.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; the lesson is complete without them.

# %% [markdown]
# ### The formulas, with symbols
#
# The sketch: for any $a$ and $b$, $\mathbb{E}\langle\tilde a,\tilde b\rangle=\langle a,b\rangle$ and
# $\mathrm{Var}\langle\tilde a,\tilde b\rangle=\big(\|a\|^2\|b\|^2+\langle a,b\rangle^2\big)/K$. One direction gives
# $\langle a,d\rangle\langle b,d\rangle$; multiply out and put in the averages of a standard normal number,
# $\mathbb{E}d^2=1$, $\mathbb{E}d^4=3$, odd powers 0. Then the best length of a step, $\eta$, and the smallest error.

# %% tags=["hide-input"]
a, b, d = (sympy.symbols(f"{name}_1:4", real=True) for name in "abd")
NORMAL = {0: 1, 1: 0, 2: 1, 3: 0, 4: 3}  # averages of the powers


def over_directions(expression):
    """The average over d, monomial by monomial."""
    terms = sympy.Poly(sympy.expand(expression), *d).terms()
    return sympy.Add(*(c * sympy.Mul(*(NORMAL[n] for n in powers)) for powers, c in terms))


def inner(x, y):
    return sympy.Add(*(i * j for i, j in zip(x, y, strict=True)))


one_direction = inner(a, d) * inner(b, d)
mean = over_directions(one_direction)
assert sympy.expand(mean - inner(a, b)) == 0
variance = over_directions(one_direction**2) - mean**2
assert sympy.expand(variance - (inner(a, a) * inner(b, b) + inner(a, b) ** 2)) == 0

length, L, along, squared, exact2 = sympy.symbols("a L along squared exact2", positive=True)
raised = length * along - L / 2 * length**2 * squared
(best,) = sympy.solve(sympy.diff(raised, length), length)
reached = raised.subs(length, best)
eta = sympy.simplify(reached / reached.subs({along: exact2, squared: exact2}))
assert sympy.simplify(eta - along**2 / (exact2 * squared)) == 0
error2 = exact2 - 2 * length * along + length**2 * squared
(shortest,) = sympy.solve(sympy.diff(error2, length), length)
assert sympy.simplify(error2.subs(length, shortest) / exact2 - (1 - eta)) == 0
say("All of them hold for every $a$, $b$ and $g$.")

# %% [markdown]
# ### Where answers must be sampled: noise makes a mean longer
#
# By hand: three answers have the gradients (3, 0), (0, 3) and (0, 0). Their mean is (1, 1), of squared length 2. No two
# of them agree on anything: all inner products between different ones are 0. In general, for independent
# $x_1\dots x_B$ with mean $\mu$ and average $\bar x$,
#
# $$\mathbb{E}\|\bar x\|^2=\|\mu\|^2+\frac1B\sum_k\mathrm{Var}(x[k]),\qquad
# \|\bar x\|^2-\frac1B\sum_k\widehat{\mathrm{Var}}(x[k])=\frac1{B(B-1)}\sum_{i\ne j}\langle x_i,x_j\rangle.$$
#
# So taking the noise off means to **keep the pairs of different answers**. A bootstrap sample has the noise of the
# batch once more, and there it comes off twice. Where the square without its noise falls below 0, the report says 0.
# The bias of sampled answers is measured against unbounded sequence weights on the same answers, where an answer to
# which both give the same weight cancels. `tests/gradients/test_coverage.py` holds the intervals against exact toys.

# %% tags=["hide-input"]
three = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
by_pairs = sum(float(i @ j) for i, j in itertools.permutations(three, 2)) / 6
without_noise = float(three.mean(0).square().sum() - three.var(0).sum() / 3)
assert abs(without_noise - by_pairs) < 1e-12
drawn = torch.tensor(list(itertools.product(range(3), repeat=3)))  # all 27 bootstrap samples
once_more = three.mean(0).square().sum() + (2 / 3) * three.var(0).sum() / 3
assert abs(three[drawn].mean(1).square().sum(-1).mean() - once_more) < 1e-12
show("squared length of the mean", float(three.mean(0).square().sum()), digits=2)
show("mean over pairs of different ones", by_pairs, digits=2)

# %% [markdown]
# ### Where the truth is known
#
# Unbounded sequence weights must have no bias, whatever the mismatch, where the recorded $q$ is what the tokens were
# drawn with. In two runs it is not: `top_p` draws from the most likely tokens only, and `temperature_raw` records $q$
# before its temperature (lesson 03). There it must fail.

# %% tags=["hide-input"]
VALID = (*RUNS, "control_fp32", "moe_bf16", "moe_replay")
biases = {name: report(*load(name), EXACT_WEIGHTS).relative_bias for name in (*VALID, "top_p", "temperature_raw")}
assert all(biases[name].high < 0.01 for name in VALID)
say(f"""
In {len(VALID)} runs the bias of unbounded sequence weights is below a hundredth of the gradient. In `top_p` it is
{above(biases["top_p"], 0.1)}, in `temperature_raw` {above(biases["temperature_raw"], 0.1)}.
""")

# %% [markdown]
# ### Whose gradient?
#
# `stale_head` trains on few prompts, and all of them are in its sketch. `bf16` and the mixtures of experts draw theirs
# from thousands. The mean of $P$ gradients drawn at random is too long:
#
# $$\mathbb{E}\|\bar g\|^2=\|\mathbb{E}g\|^2+\tfrac1P\,\mathbb{E}\|g-\mathbb{E}g\|^2.$$
#
# Let $\phi$ be the share of the second term. Over many more prompts the squared length is $1-\phi$ of what it is here,
# and $B$ answers do there what $(1-\phi)B$ do here.

# %% tags=["hide-input"]
shares = {name: report(*load(name), CorrectionConfig()).reference_noise for name in ("bf16", "moe_bf16", "moe_replay")}
assert all(report(*load(name), CorrectionConfig()).reference_noise.high == 0 for name in ("stale_head", "stale_4"))
say(f"""
This share is {above(shares["bf16"], 0.05)} in `bf16`, {above(shares["moe_bf16"], 0.05)} in `moe_bf16` and
{above(shares["moe_replay"], 0.05)} in `moe_replay`. So η says there how corrections rank, and not how far the training
gets.
""")

# %% [markdown]
# And does a training agree? `make bench ARGS=progress` measures $\eta$ of ten presets on one step of the study
# `stale_8`. Then each makes its own step, with the length that was best on other batches, and the expected reward is
# computed exactly on other prompts. The two orders agree better than by chance and not perfectly: the rank correlation,
# with its interval, is in the README's table of measurements.

# %% [markdown]
# ### Where a bias comes from
#
# A correction leaves unbounded sequence weights in four steps, each measured as a difference on the same answers:
# **level** (weights per token, or none), **truncation** (bounds on the weights), **rejection**, and **denominator**
# (dividing by the kept tokens only). Take a cap on token ratios and rejection of answers by k3, in `stale_head`.
# **Look for** the largest part, rejection.

# %% tags=["hide-input"]
parts = decompose(*stale_head, preset("decoupled_k3_rs_token_tis"))
measured = {name: getattr(parts, name) for name in ("level", "truncation", "rejection", "denominator")}
picture(parts_of_bias(measured))
assert parts.denominator.high < 0.01
say(f"""
The rule costs most, {above(parts.rejection, max(parts.level.high, parts.truncation.high))} of the gradient's length.
The cap costs {above(parts.truncation, parts.level.high)}, weights per token in place of the product
{above(parts.level)}. The preset divides by all tokens, so the last part is 0.
""")
