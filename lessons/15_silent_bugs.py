# %% [markdown]
# # 15 · Silent bugs: nine patients
#
# **Claim.** A wrong number in the loop rarely crashes; nine common bugs, planted in one recorded step, leave their
# traces in nine different views, and the mean ratio, the alarm that everybody watches, rings for three of them.
#
# *35 minutes · advanced · any laptop; no GPU, no network.* You need the ratio and its average (lesson 00), the noise of
# an average (lesson 02), and rejection (lesson 07).
#
# At the end you can
#
# - derive the trace that each of nine bugs leaves, and say in which view to look for it;
# - tell a bug from a gap: a healthy engine differs from the trainer, too;
# - diagnose nine copies of a recorded step from numbers and pictures alone;
# - say which bug no pair of log-probs can show.

# %%
import warnings

import sympy
import torch
from exercises.lesson_15 import DIAGNOSES, MOVED, PLANTS, TREATMENT, UPSIDE_DOWN, chart, treated, ward
from show import picture, show

from rlcorr.analysis.log_prob_pairs import logits, median_slope, tokens_of
from rlcorr.analysis.triage import shift, stale_tensor, temperature, triage
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.correction import weight_histogram
from rlcorr.figures.mismatch import by_length, by_position
from rlcorr.gradients import toy
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## What is silent
#
# A loop of reinforcement learning has many places where a wrong number is as good a number as the right one. Nothing
# has a wrong shape, nothing is infinite, the loss is a loss. The reward grows a little more slowly, or the run
# collapses after two days. Here are nine such places. Most of them are on record in public projects.
#
# | bug | what was done |
# |---|---|
# | **shift by one** | $p$ of a token is divided by $q$ of the token before it |
# | **upside down** | $q/p$ is used as the ratio |
# | **wrong temperature** | sampled and trained at temperature 0.7, but the engine reports log-probs before it |
# | **padding counted** | averages run over the whole rectangle, not over the answers |
# | **bf16 subtraction** | both log-probs are rounded to bfloat16 before they are subtracted |
# | **mask off by one** | the mask begins at the last token of the prompt |
# | **stale head** | one tensor of the engine, the output head, was not updated |
# | **weights twice** | the loss is multiplied by the importance weights, and so was the advantage |
# | **mask twice** | rejected tokens are set to 0, and then the average is taken over the kept ones only |
#
# A **view** is one number, or one picture, that looks at one property. A **fingerprint** is what a bug does to the view
# that was made for it.

# %% [markdown]
# ## The smallest example: a list that is one too long
#
# Three actions A, B, C. Engine and trainer agree to the last digit: both play them with ½, ¼, ¼. All ratios are 1. Now
# the list of the engine's log-probs starts with a placeholder that nobody dropped, so each token is divided by the
# probability of the token **before** it. What do the ratios average to, over all pairs (token before, token)?

# %%
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p = q.clone()

chance = q[:, None] * q  # (before, token): how often this pair comes
shifted = p / q[:, None]  # p of the token over q of the one before

show("ratio after A: tokens A, B, C", shifted[0])
show("ratio after B", shifted[1])
show("ratio after C", shifted[2])
show("average", float((chance * shifted).sum()))

assert torch.isclose((chance * shifted).sum(), 3 * (p * q).sum(), atol=1e-15)
assert float((chance * shifted).sum()) == 9 / 8

# %% [markdown]
# 9/8, although nothing differs. In general, with $V$ actions and tokens that do not depend on each other:
#
# $$ \mathbb{E}\!\left[\frac{p(a_t)}{q(a_{t-1})}\right] = \sum_b q(b)\,\frac{1}{q(b)} \cdot \sum_a q(a)\,p(a)
# = V \sum_a p(a)\, q(a) . $$
#
# The first sum counts the actions. For $p = q$ this is $V \sum_a q(a)^2 \ge 1$, and it is 1 only if all actions are
# equally probable. **A shift makes the average ratio depart from 1 even when the two programs agree.**

# %% [markdown]
# ## Nine fingerprints, and why
#
# $d = \log p - \log q$ as always; $y$ is the difference of the **logits**, $\log\frac{p}{1-p} - \log\frac{q}{1-q}$, and
# $x = \log\frac{q}{1-q}$.
#
# | bug | fingerprint | because |
# |---|---|---|
# | shift by one | moving one list by a token removes most of the gap | $p_t$ belongs to $q_t$ |
# | upside down | the mean of $d$ is **above** 0 | $\mathbb{E}_q[d] = -\mathrm{KL}(q\Vert p) \le 0$ |
# | wrong temperature | $y$ grows with $x$ | for $p \propto q^\beta$: $y = (\beta-1)(x+H)$, $0 \le H \le \ln V$ |
# | padding counted | more tokens than were written | a mean over $N'$ tokens is $N/N'$ of the mean over $N$ |
# | bf16 subtraction | the same $d$ again and again | bfloat16 has 128 numbers between 1 and 2 |
# | mask off by one | one position stands out | the engine never drew a token of the prompt |
# | stale head | $y$ is a constant per token id | for $p \propto q e^c$: $y_a = c_a - \bar c_{\text{others}}$ |
# | weights twice | weights above the cap | $(\min(r, C))^2$ reaches $C^2$ |
# | mask twice | a loss of 1 comes out as 1, not as the kept share | $\sum k \,/ \sum k = 1$, $\;\sum k \,/ N$ = kept |
#
# The next three sections check this in three ways.

# %% [markdown]
# ### Check 1, with symbols: three actions

# %%
P, Q, C = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in "pqc")
beta = sympy.Symbol("beta", positive=True)
actions = range(3)


def zero(expression):
    """Whether it is 0 once the third probability of each policy is 1 minus the others."""
    return sympy.simplify(expression.subs({P[2]: 1 - P[0] - P[1], Q[2]: 1 - Q[0] - Q[1]})) == 0


# shift by one: V Σ pq; and with p = q it is 1 plus squares
pairs = sum(Q[a] * Q[b] * P[a] / Q[b] for a in actions for b in actions)
assert sympy.expand(pairs - 3 * sum(P[a] * Q[a] for a in actions)) == 0
squares = (Q[0] - Q[1]) ** 2 + (Q[0] - Q[2]) ** 2 + (Q[1] - Q[2]) ** 2
assert zero(3 * sum(x**2 for x in Q) - 1 - squares)

# upside down: −E[d] = E[k3] (lesson 08), and k3 = r − 1 − log r has its only minimum, 0, at r = 1
r_ = sympy.Symbol("r", positive=True)
minus_mean_d = -sum(Q[a] * sympy.log(P[a] / Q[a]) for a in actions)
mean_k3 = sum(Q[a] * (P[a] / Q[a] - 1 - sympy.log(P[a] / Q[a])) for a in actions)
assert zero(sympy.expand(mean_k3 - minus_mean_d))
assert sympy.solve(sympy.diff(r_ - 1 - sympy.log(r_), r_), r_) == [1]
assert sympy.diff(r_ - 1 - sympy.log(r_), r_, 2) == 1 / r_**2  # > 0

# weights twice: the mean of r² is 1 + χ²; squares again
chi2 = sum((P[a] - Q[a]) ** 2 / Q[a] for a in actions)
assert zero(sum(P[a] ** 2 / Q[a] for a in actions) - 1 - chi2)

show("shift by one: E[p_t/q_(t−1)] with p = q", "1 + Σ (q_a − q_b)²")
show("upside down: −E[d]", "E[k3] ≥ 0")
show("weights twice: E[r²]", "1 + Σ (p − q)²/q")

# %% [markdown]
# A logit of $p$ is $\log p_a - \log \sum_{u \ne a} p_u$. The next cell puts $p \propto q^\beta$ (a temperature
# $1/\beta$) and $p \propto q\,e^c$ (a head of which row $a$ moved the logit by $c_a$) into it. The normaliser of $p$ is
# the same in both terms and drops out.

# %%
log_q = [sympy.log(x) for x in Q]
others = [[b for b in actions if b != a] for a in actions]


def logit_gap(log_unnormalised, a):
    """y of action a, for a p that is known up to its normaliser."""
    rest = sympy.log(sum(sympy.exp(log_unnormalised[b]) for b in others[a]))
    return log_unnormalised[a] - rest - (log_q[a] - sympy.log(sum(Q[b] for b in others[a])))


for a in actions:
    mass = sum(Q[b] for b in others[a])  # 1 − q_a
    x = log_q[a] - sympy.log(mass)
    entropy = sympy.log(sum((Q[b] / mass) ** beta for b in others[a])) / (1 - beta)  # Rényi's, of the others
    hot = logit_gap([beta * log_prob for log_prob in log_q], a) - (beta - 1) * (x + entropy)
    assert sympy.simplify(sympy.expand_log(sympy.simplify(hot), force=True)) == 0

    mean_of_others = sympy.log(sum(Q[b] * sympy.exp(C[b]) for b in others[a]) / mass)
    stale = logit_gap([log_q[b] + C[b] for b in actions], a) - (C[a] - mean_of_others)
    assert sympy.simplify(sympy.expand_log(sympy.simplify(stale), force=True)) == 0

show("wrong temperature: y", "(β − 1)(x + H)")
show("stale head: y of a", "c_a − log mean of e^c of the others")

# mask twice: a mask of zeros and ones is its own square, so masking twice is harmless; dividing twice is not
k = sympy.Symbol("k")
assert sympy.rem(k**2 - k, k * (k - 1), k) == 0

# %% [markdown]
# ### Check 2, with numbers: every answer of a small world
#
# `toy.world(4, 4)` holds all answers of at most four tokens over four. Random policies play in it. Every expectation is
# a sum, in float64.

# %%
where = toy.world(4, 4)
mask = where.mask
worst_kl = worst_square = 0.0
smallest_entropy, largest_entropy, T = 9.0, -9.0, 0.7

for seed in range(20):
    engine, trainer = toy.random_policy(where, seed), toy.random_policy(where, 100 + seed)
    chance = toy.probabilities(where, engine)[:, None] * mask  # (N, T): how often this token, after this text
    log_q_toy, log_p_toy = toy.log_probs(where, engine), toy.log_probs(where, trainer)
    d_toy = log_p_toy - log_q_toy
    worst_kl = max(worst_kl, abs(float((chance * d_toy).sum() + toy.kl(where, engine, trainer))))
    surplus = chance * (ratio(2 * d_toy) - 1 - (ratio(d_toy) - 1).square())  # E[r²] = 1 + E[(r − 1)²]
    worst_square = max(worst_square, abs(float(surplus.sum())))

    log_p_toy = toy.log_probs(where, engine / T)  # the same logits, divided by a temperature
    x, gap = (a[mask] for a in (torch.logit(log_q_toy.exp()), torch.logit(log_p_toy.exp())))
    entropy = (gap - x) / (1 / T - 1) - x
    smallest_entropy = min(smallest_entropy, float(entropy.min()))
    largest_entropy = max(largest_entropy, float(entropy.max()))

show("answers", len(mask))
show("−E[d] is the KL, E[r²] is 1 + χ²", worst_kl < 1e-13, worst_square < 1e-12)
show("H of a temperature, least and most", smallest_entropy, largest_entropy, digits=3)

assert worst_kl < 1e-13
assert worst_square < 1e-12
assert -1e-9 <= smallest_entropy < largest_entropy <= torch.tensor(3.0).log() + 1e-9  # three other tokens

# bfloat16: all its numbers from 1 to 8
steps = torch.arange(0x3F80, 0x4100, dtype=torch.int16).view(torch.bfloat16).double()
half_step = (steps[1:] - steps[:-1]) / 2 / steps[:-1]
show("bfloat16 numbers from 1 to 2, 2 to 4, 4 to 8", [int(((steps >= n) & (steps < 2 * n)).sum()) for n in (1, 2, 4)])
assert float(half_step.max()) == 2**-8  # rounding moves a number by at most 1/256 of itself

# %% [markdown]
# $H$ is an entropy of the *other* tokens, so it lies between 0 and $\ln 3 \approx 1.099$ here. `triage.temperature`
# turns that into a test: is there one $\beta$ for which nearly every token has such an $H$? Noise fails it, because it
# has either sign.

# %% [markdown]
# ## The control
#
# All patients are copies of one step of a real run: `kv_fp8_e5m2`, step 48, the running sums of lesson 00, with the
# coarse KV cache. Nothing is planted in the original. It is treated with token ratios capped at 2, and rejects answers
# whose geometric mean leaves 0.98 … 1.02.

# %%
run = runs.find_run("kv_fp8_e5m2")
record = runs.read_step(run, 48)
control = treated(record.batch)

show("levels and bounds", TREATMENT.rollout_is, TREATMENT.rollout_is_threshold, TREATMENT.rollout_rs[0].name)


# %%
def real(patient):
    """p, q and d of the real tokens, in float64."""
    tokens = tokens_of(patient.batch)
    return tokens.old, tokens.rollout, tokens.old - tokens.rollout


def error(x):
    return float(x.std()) / len(x) ** 0.5


def kept(patient):
    return float(patient.result.keep_mask.sum()) / float(patient.batch.response_mask.sum())


_, _, d = real(control)
r = ratio(d)

show("answers, tokens", len(record.responses), len(d))
show("mean ratio", float(r.mean()), "±", error(r))
show("k3", float(k3(d).mean()))
show("share kept", kept(control))
show("triage", triage(control.batch)[0].pattern)

assert abs(float(r.mean()) - 1) < 2 * error(r)

# %% [markdown]
# The control is not healthy in the sense of *no gap*: an engine that keeps its memory in eight bits disagrees with the
# trainer. That is a **mismatch**, and corrections are for it. A **bug** is different: the numbers are not the
# probabilities that they are said to be. The mean ratio of the control is 1, as it must be.

# %% [markdown]
# ### Check 3, on the recorded step
#
# Now each bug is planted into a copy, and its fingerprint is compared with what the derivation says, within the error
# of the step.

# %%
sick = {bug: plant(record.batch) for bug, plant in PLANTS.items()}

d_of = {bug: real(patient)[2] for bug, patient in sick.items()}
shift_mean = float(ratio(d_of["shift by one"]).mean() - 1) / error(ratio(d_of["shift by one"]))
direction = float(d_of["upside down"].mean()) / error(d_of["upside down"])
show("shift by one: mean ratio − 1, in errors", shift_mean, digits=1)
show("upside down: mean d, in errors", direction, digits=1)
assert shift_mean > 3
assert direction > 3

dilution = float(k3(d_of["padding counted"]).mean() / k3(d).mean())
show("padding counted: k3 over that before", dilution, "N/N'", len(d) / len(d_of["padding counted"]))
assert abs(dilution - len(d) / len(d_of["padding counted"])) < 1e-12

p_all, q_all, _ = real(control)
rounding = (d_of["bf16 subtraction"] - d).abs() / (p_all.abs() + q_all.abs())
show("bf16: largest error / (|log p| + |log q|)", float(rounding.max()), "≤", 2**-8)
assert float(rounding.max()) <= 2**-8

r_mask = ratio(d_of["mask off by one"])
lost = len(record.responses) / len(d)  # one token in each answer has a ratio of about e⁻¹⁶
show("mask off by one: 1 − mean ratio", 1 - float(r_mask.mean()), "±", error(r_mask), "expected", lost)
assert abs(1 - float(r_mask.mean()) - lost) < 2 * error(r_mask)

squared = ratio(2 * d)
show("weights twice: mean r²", float(squared.mean()), "1 + χ²", float(1 + (r - 1).square().mean()))
show("                in errors from 1", float(squared.mean() - 1) / error(squared), digits=1)
assert abs(float(squared.mean() - 1 - (r - 1).square().mean()) - 2 * float(r.mean() - 1)) < 1e-12
assert float(squared.mean() - 1) > 3 * error(squared)

show("mask twice: a loss of 1 becomes", sick["mask twice"].loss_of_ones, "not", control.loss_of_ones)
assert abs(control.loss_of_ones - kept(control)) < 1e-6

# %% [markdown]
# Two of them need a word. The shift is 3.6 errors away and not more, because single ratios become huge and the error
# with them. And the mean of $r^2$ lies 3.1 errors above 1, so that the mean of squared weights just finds the bug here,
# before any cap; with a gap a third as wide it would not. The cap finds it always: a squared 2 is a 4.
#
# The two bugs of the logits come with an interval from resampled answers (a bootstrap, as in lesson 10). The slope of
# a temperature of 0.7 should be $1/0.7 - 1 = 0.43$, but the control has a slope $s$ of its own, because a gap of either
# sign bends towards the mean; together they give $(1+s)/0.7 - 1$.


# %%
def slope(batch):
    x, y, _ = logits(tokens_of(batch))
    return median_slope(x, y)


generator = torch.Generator().manual_seed(15)
rows = [torch.randint(len(record.responses), (len(record.responses),), generator=generator) for _ in range(40)]
hot = torch.tensor([slope(sick["wrong temperature"].batch.rows(index)) for index in rows])
control_slope = slope(control.batch)
low, high = (float(end) for end in hot.quantile(torch.tensor([0.025, 0.975])))

show("slope of the control", control_slope, digits=3)
show("wrong temperature: slope in", low, high, "expected", (1 + control_slope) / 0.7 - 1, digits=3)
assert low - 0.01 < (1 + control_slope) / 0.7 - 1 < high + 0.01
assert low > 0

names = ("stale_head", "bf16", "stale_4", "top_p")
for name in names:
    real_run = runs.find_run(name)
    stale_finding = stale_tensor(tokens_of(runs.read_step(real_run, runs.list_steps(real_run)[-1]).batch))
    show(f"variance by token id, run {name}", stale_finding.strength if stale_finding else "below 0.35", digits=2)
    assert (stale_finding is not None) == (name == "stale_head")

# %% [markdown]
# The last four lines are real runs. In `stale_head` the sync really forgot the head, while it trained, and the test
# finds it; in the others it keeps quiet.

# %% [markdown]
# ## Predict, then reveal
#
# Nine patients wait, A to I, each a copy of the control with one bug. **Write down a guess** before you run the cell:
#
# 1. The mean ratio is the alarm that most people watch. For how many of the nine is it more than three errors from 1?
# 2. For how many is k3 more than twice that of the control?
# 3. The treatment rejects by the geometric mean of an answer. What does it keep of the shifted patient, whose ratios
#    are wrong on every token?

# %%
patients = ward(record.batch)
rings = {}
show("patient", "mean r", "±", "in errors", "k3", "kept")
for letter, patient in [("control", control), *patients.items()]:
    d_patient = real(patient)[2]
    r_patient = ratio(d_patient)
    far = (float(r_patient.mean()) - 1) / error(r_patient)
    size = float(k3(d_patient).mean())
    rings[letter] = (abs(far) > 3, size > 2 * float(k3(d).mean()))
    numbers = [float(r_patient.mean()), error(r_patient), far, size, kept(patient)]
    show(letter, *(f"{number:.4f}" if n != 2 else f"{number:+.1f}" for n, number in enumerate(numbers)))

show("mean ratio rings for", sum(mean for mean, _ in rings.values()), "of", len(patients))
show("k3 rings for", sum(size for _, size in rings.values()), "of", len(patients))
assert sum(mean for mean, _ in rings.values()) == 3
assert sum(size for _, size in rings.values()) == 3
assert kept(sick["shift by one"]) > 0.98 * kept(control)
assert kept(sick["mask off by one"]) == 0

# %% [markdown]
# Three ring, six do not, and no alarm says *what* is wrong. k3 rings for three as well, but not for the same three.
#
# The shifted patient loses next to nothing to the rule. In a sum over the answer, $\sum_t (\log p_t - \log q_{t-1})$,
# the same numbers appear as without a shift, but for one at either end. **What looks at whole answers is blind to a
# shift**, and trains happily on token ratios that are nonsense. The opposite happens to the patient with the wrong
# mask: one token with $d = -16$ moves the geometric mean of 59 by a quarter, and everything is rejected.

# %% [markdown]
# ## Nine views
#
# Each view is a number, and a bound above which it speaks. Read what each one looks at, then run the cell.
#
# 1. **neighbours**: the share of $\sum|d|$ that goes away when one list is moved by a token. Speaks from 0.5.
# 2. **direction**: the mean of $d$, in its errors. Speaks above 3.
# 3. **slope**: the share of tokens that one temperature explains. Speaks from 0.8.
# 4. **count**: tokens under the mask, minus the characters and ends of answers that were written. Speaks unless 0.
# 5. **digits**: the share of tokens whose $d$ another token has, too. Speaks from 0.5. (Not 0 in health: where both
#    programs are sure, float32 has few numbers left.)
# 6. **position**: the largest median of $|d|$ at a position, over the second largest. Speaks from 20.
# 7. **token**: the share of the variance of $y$ between token ids. Speaks from 0.35.
# 8. **weights**: the largest weight, over the cap. Speaks above 1.
# 9. **scale**: what the average makes of a loss of 1, minus the share kept. Speaks unless 0.


# %%
def strength(finding):
    return finding.strength if finding else 0.0


def standing_out(patient):
    d, mask = patient.result.log_ratio.double(), patient.batch.response_mask
    columns = [d[:, t][mask[:, t]] for t in range(d.shape[1]) if int(mask[:, t].sum()) >= 5]
    first, second, *_ = sorted((abs(float(column.median())) for column in columns), reverse=True)
    return first / second


lengths = control.batch.response_mask.sum(-1)
assert (int(lengths.min()), int(lengths.max())) == (55, 73)
written = sum(len(text) + 1 for text in record.responses)  # one token per character, and the end
VIEWS = {
    "neighbours": (lambda it: strength(shift(it.batch)), lambda n: n >= 0.5),
    "direction": (lambda it: float(real(it)[2].mean()) / error(real(it)[2]), lambda n: n > 3),
    "slope": (lambda it: strength(temperature(tokens_of(it.batch))), lambda n: n >= 0.8),
    "count": (lambda it: int(it.batch.response_mask.sum()) - written, lambda n: n != 0),
    "digits": (lambda it: 1 - len(real(it)[2].unique()) / len(real(it)[2]), lambda n: n >= 0.5),
    "position": (standing_out, lambda n: n >= 20),
    "token": (lambda it: strength(stale_tensor(tokens_of(it.batch))), lambda n: n >= 0.35),
    "weights": (lambda it: float(it.result.weights.max()) / TREATMENT.rollout_is_threshold, lambda n: n > 1),
    "scale": (lambda it: it.loss_of_ones - kept(it), lambda n: abs(n) > 1e-6),
}

show("view", "control", *patients)
for name, (look, _) in VIEWS.items():
    show(name, *(look(patient) for patient in (control, *patients.values())), digits=2)

assert not any(speaks(look(control)) for look, speaks in VIEWS.values())

# %% [markdown]
# Four of the views as pictures. **Look for** the first point of patient D, which stands for positions 1 and 2: its
# median and its mean are far below, and every other median lies on the line.

# %%
picture(by_position(patients["D"].batch))

# %% [markdown]
# The sum of $d$ over an answer against its length, patient A. **Look for** the lengths. The answers of this step have
# 55 to 73 tokens.

# %%
picture(by_length(patients["A"].batch, {}))

# %% [markdown]
# The weights of patient E, with the token ratios as an outline and the cap as a dashed line. **Look for** bars where no
# weight may be: beyond the dashed line, up to 4.

# %%
picture(weight_histogram(patients["E"].batch, patients["E"].result, TREATMENT))

# %% [markdown]
# Tokens over $q$ and the ratio, patient H. **Look for** the tilt. In the control the cloud lies along 1; here the ratio
# is below 1 on the left, where $q$ is small, and above 1 on the right.

# %%
picture(ratio_density(patients["H"].batch))

# %% [markdown]
# ## Exercise 1: the sign that cannot be
#
# *5 minutes.* $d$ of a batch, `(N,)`, comes from a loop that you do not trust. Return `True` if the ratio is upside
# down: if the mean of $d$ lies more than three of its standard errors above 0.
#
# <details><summary>Hint 1</summary>The standard error of a mean is the standard deviation over √N.</details>
# <details><summary>Hint 2</summary>Far below 0 is healthy. <code>d.std()</code> divides by N − 1, as it
# should.</details>


# %%
def upside_down(d):
    raise NotImplementedError("exercise 1: write upside_down, then run this cell and the next.")


# %% tags=["check"]
check(upside_down, UPSIDE_DOWN)


# %% tags=["solution", "hide-input"]
def upside_down_solution(d):
    return bool(d.mean() > 3 * d.std() / len(d) ** 0.5)


check(upside_down_solution, UPSIDE_DOWN)

# %% [markdown]
# ## Exercise 2: moved by one
#
# *7 minutes.* Return the share of $\sum|d|$ that goes away when $p$ of a token is compared with $q$ of the token
# **after** it. Count the tokens that have a next one, before the move and after it. All three are `(B, T)`; answers
# start in column 0, and padding holds nan.
#
# <details><summary>Hint 1</summary>Column t of p beside column t + 1 of q: <code>old[:, :-1]</code> and
# <code>rollout[:, 1:]</code>.</details>
# <details><summary>Hint 2</summary>A token has a next one where <code>mask[:, 1:]</code> is True. Share: 1 − after /
# before.</details>


# %%
def moved(old_log_probs, rollout_log_probs, mask):
    raise NotImplementedError("exercise 2: write moved, then run this cell and the next.")


# %% tags=["check"]
check(moved, MOVED)


# %% tags=["solution", "hide-input"]
def moved_solution(old_log_probs, rollout_log_probs, mask):
    both = mask[:, 1:]
    before = (old_log_probs[:, :-1] - rollout_log_probs[:, :-1]).abs()[both].sum()
    after = (old_log_probs[:, :-1] - rollout_log_probs[:, 1:]).abs()[both].sum()
    return 1 - after / before


check(moved_solution, MOVED)

# %% [markdown]
# ## Exercise 3: the diagnoses
#
# *10 minutes.* Name the bug of each patient, from the table of views and the pictures. The names are those of the first
# table: `"shift by one"`, `"upside down"`, `"wrong temperature"`, `"padding counted"`, `"bf16 subtraction"`,
# `"mask off by one"`, `"stale head"`, `"weights twice"`, `"mask twice"`. Return a dict, letter → name. The check says
# which letter is wrong, not what it has.
#
# <details><summary>Hint 1</summary>Start with the views that speak for one letter only.</details>
# <details><summary>Hint 2</summary>The table of fingerprints has the views in the same order.</details>


# %%
def diagnoses():
    raise NotImplementedError("exercise 3: return {'A': …, …, 'I': …}, then run this cell and the next.")


# %% tags=["check"]
check(diagnoses, DIAGNOSES)


# %% tags=["solution", "hide-input"]
def diagnoses_solution():
    bug_of = {}
    for letter, patient in patients.items():
        (speaking,) = [n for n, (look, speaks) in enumerate(VIEWS.values()) if speaks(look(patient))]
        bug_of[letter] = list(PLANTS)[speaking]
    return bug_of


check(diagnoses_solution, DIAGNOSES)

# %% [markdown]
# The solution does not know the patients. It asks the nine views, and takes the bug whose view speaks. This is the
# matrix of bugs and views.

# %%
by_bug = {bug: patients[letter] for letter, bug in chart().items()}
matrix = [[speaks(look(by_bug[bug])) for look, speaks in VIEWS.values()] for bug in PLANTS]

show("bug", *(name[:9] for name in VIEWS))
for bug, row in zip(PLANTS, matrix, strict=True):
    show(bug, *("seen" if seen else "·" for seen in row))

assert matrix == torch.eye(9, dtype=torch.bool).tolist()
alarms = [bug for letter, bug in chart().items() if rings[letter][0]]
sizes = [bug for letter, bug in chart().items() if rings[letter][1]]
named = [finding.pattern for bug in PLANTS if (finding := triage(by_bug[bug].batch)[0]).pattern != "beyond rounding"]
show("the mean ratio rings for", ", ".join(sorted(alarms)))
show("k3 rings for", ", ".join(sorted(sizes)))
show("triage names", ", ".join(named))

# %% [markdown]
# One view per bug, one bug per view, in this step. `triage` runs several of these tests by itself and names four bugs;
# one of them it calls padding, which is what a log-prob of exactly 0 is. It looks at pairs of log-probs and nothing
# else, so it cannot know about weights, averages or texts.
#
# But the bounds were chosen with this step in sight, and each patient has one bug. So plant the same bugs in other
# steps of the same run, and ask the same views with the same bounds.

# %%
for step in (24, 32, 40, 48):
    other = runs.read_step(run, step)
    written = sum(len(text) + 1 for text in other.responses)
    spoke = {
        bug: [speaks(look(plant(other.batch))) for look, speaks in VIEWS.values()] for bug, plant in PLANTS.items()
    }
    alone = sum(row == [name == bug for name in PLANTS] for bug, row in spoke.items())
    healthy = [name for name, (look, speaks) in VIEWS.items() if speaks(look(treated(other.batch)))]
    show(f"step {step}: bugs in their own view alone", alone, "control:", ", ".join(healthy) or "quiet")

# %% [markdown]
# Steps 40 and 48 have the clean diagonal. Steps 24 and 32 do not, and at step 32 a view speaks where nothing was
# planted. **A view is a hint where to look, not a verdict**, and its bound must be set on healthy steps of your own
# run. With a smaller gap the direction disappears in the noise first: KL grows like $d^2$, its error like $|d|$.

# %% [markdown]
# ## The bug that no view shows
#
# `temperature_raw` is a real run with the classic mistake: it samples at temperature 0.7, and **both** programs score
# at temperature 1. The two log-probs agree beautifully, on a policy that sampled nothing.

# %%
raw = runs.find_run("temperature_raw")
raw_record = runs.read_step(raw, runs.list_steps(raw)[-1])
finding = triage(raw_record.batch)[0]
settings = runs.read_manifest(raw).config["rollout"]

show("triage says", finding.pattern)
show("mean ratio", finding.numbers["mean_ratio"], "±", finding.numbers["mean_ratio_error"])
for key in ("temperature", "log_probs", "trainer_temperature"):
    show(f"manifest: {key}", str(settings[key]))

assert finding.pattern == "precision"
assert settings["temperature"] != settings["trainer_temperature"]

# %% [markdown]
# No test on pairs can find it, because the pair is a perfectly good pair of another policy. Only the manifest knows.
# That is why a recording must say how it was sampled (lesson 16), and why the trainer refuses to guess.

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a step is 1.0004 ± 0.0003. Which bugs does that exclude?**
#
# <details><summary>All nine: the average is where it must be.</summary>No. Six of the nine patients leave it within
# three errors of 1. Padding adds ratios of 1, rounding has no direction, and weights and averages come after
# it.</details>
# <details><summary>A large shift, a wrong temperature, a wrong mask; not the others.</summary>Yes. And even those only
# if the gap is large enough for its noise.</details>
# <details><summary>None: it is always 1.</summary>No. It is 1 on average if q is the probability that the token was
# drawn with. That is what three of the bugs break.</details>
#
# **2. `mean(loss * keep)` and `(loss * keep).sum() / keep.sum()`: which of them applies the mask twice?**
#
# <details><summary>The second, and so its scale does not shrink with what is rejected.</summary>Yes. A loss of 1 comes
# out as 1 whatever is kept. That may be what you want; silent is that it changes with the code path.</details>
# <details><summary>Neither: a mask of zeros and ones is its own square.</summary>The multiplication, yes. The
# denominator is the second use, and it is no product.</details>
# <details><summary>The first.</summary>No. It masks once, and divides by all tokens; with padding in the rectangle it
# has another bug of the table.</details>
#
# **3. A stale head and a wrong temperature both bend the logits. What tells them apart?**
#
# <details><summary>The size of k3.</summary>No. Either can be small or large.</details>
# <details><summary>What y depends on: on how sure the engine was, or on which token it is.</summary>Yes. The slope over
# x against the constants per token id. Both are exact for one of the two causes.</details>
# <details><summary>The mean ratio.</summary>Here, yes, by luck: a stale head is a policy like any other, so its ratios
# average to 1. But a temperature that the trainer alone applies leaves the average at 1, too.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`. The view Mismatch runs triage and draws the pictures of this lesson.
#
# - [the control](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=48): by position, by length, by token;
# - [a real stale head](http://localhost:8501/mismatch?run=stale_head&step=latest): the sentence, then *by token*;
# - [a real cut, top-p](http://localhost:8501/mismatch?run=top_p&step=latest): ratios of at most 1;
# - [the mistake that agrees with itself](http://localhost:8501/mismatch?run=temperature_raw&step=latest);
# - [the control beside the stale
#   head](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&run_b=stale_head&step_b=latest&compare=two%20runs).
#
# ## Pitfalls
#
# - **A gap is not a bug.** The control has a k3 of 9e-3 and nothing is wrong with its numbers. Ask whether the mean
#   ratio is 1, then whether $y$ has structure, then how large the gap is.
# - **The planted copies simplify.** Only the drawn token's log-prob is recorded, so the temperature was planted as if
#   all other tokens were one, and the stale head with one common normaliser.
# - **Metrics after the cap look fine.** Look at ratios before bounds, and at weights after them; one of the two hides
#   each bug.
# - **The order of tests matters.** A shift makes everything else look broken. Fix it first, then look again.
# - **Three errors, nine views.** One view in about forty speaks by chance at two errors; with many runs ask for more.
#
# ## References
#
# 1. Hugging Face TRL, [issue 4159](https://github.com/huggingface/trl/issues/4159): ratios of 2 at temperature 0.6,
#    because raw log-probs came back.
# 2. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics that a run
#    reports; its [issue 7771](https://github.com/volcengine/verl/issues/7771) is padding that was counted.
# 3. vLLM, [engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, which decides
#    what is reported.
