# %% [markdown]
# # 05 · Truncation: a little bias for much less noise
#
# **Claim.** A cap on the weights takes a known part of the average away and keeps the noise within bounds, and the best
# cap grows with the batch.
#
# *25 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00 to 02. Letters:
# [Notation](NOTATION.md).
#
# At the end you can
#
# - write down the bias of a cap without sampling anything;
# - say why some cap is nearly always better than none, and why the best one depends on the batch;
# - say what recorded answers tell about a cap, and what they leave open.

# %% tags=["hide-input"]
import itertools
import math
import warnings
from dataclasses import astuple, replace

import sympy
import torch
from curves import curves
from exercises.lesson_05 import SQUARED_ERROR, TRUNCATION_BIAS, WEIGHTS
from recorded import load
from sentences import below, bracketed, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.correction import weight_histogram
from rlcorr.figures.gradients import exact_curves
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import gradient_truth, log_probs, probabilities, small_world
from rlcorr.losses.per_token import reinforce
from rlcorr.ratios import log_ratio, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)

# %% [markdown]
# ## By hand: three actions
#
# The engine draws X, Y, Z with $q = ½, ¼, ¼$; the trainer would with $p = ¼, ¼, ½$. So $r = ½, 1, 2$. What is averaged
# is $f = 1, 0, 4$, and the trainer's average is $\mathbb{E}_p[f] = 2.25$.
#
# Weighing by $r$ gives 2.25 on average. But Z, one draw in four, counts $2 · 4 = 8$, and the others nearly nothing:
# that is noise. **Truncate** now: a weight above the **cap** $C$ becomes the cap,
#
# $$ w = \min(r, C) . $$
#
# That is **truncated importance sampling**, TIS. With $C = 1.5$ the weights are ½, 1, 1.5, so Z counts 6. The average
# is ½·½ + 0 + ¼·6 = 1.75: too little by ½. What did that buy?

# %%
q, p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], dtype=torch.float64)
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
r = p / q


def mean_and_variance(w):
    """Of w·f, for one draw from the engine."""
    mean = (q * w * f).sum()
    return float(mean), float((q * (w * f).square()).sum() - mean**2)


show("weights", "X", "Y", "Z", "average", "variance")
for name, w in {"r": r, "truncated at 1.5": r.clamp(max=1.5), "masked at 1.5": r.where(r <= 1.5, 0)}.items():
    show(name, w, *mean_and_variance(w))

# %% [markdown]
# By hand: a **bias** of −½ bought nearly half of the variance. The mean of $N$ draws has the same
# bias, and an $N$-th of the variance. Its **error** is
#
# $$ \text{error}^2 = \text{bias}^2 + \frac{\text{variance}}{N} . $$
#
# By hand: with 5 draws, error² is 11.06/5 = 2.21 without a cap and ¼ + 6.06/5 = 1.46 with it. With 20 draws they are
# equal, and with 100 the cap costs more than it gives.
#
# **Masking** sets a weight above the cap to 0. That takes all of it away, not only what sticks out, so here the bias is
# larger. Lesson 07 is about masking.
#
# **Look for** the lowest point of each line: with more draws, it lies further to the right.

# %%
caps = torch.linspace(1, 2, 41, dtype=torch.float64).tolist()
capped = [mean_and_variance(r.clamp(max=cap)) for cap in caps]
errors = {
    f"{draws} draws": [math.sqrt((mean - 2.25) ** 2 + variance / draws) for mean, variance in capped]
    for draws in (5, 20, 100)
}
picture(curves(caps, errors, x_name="cap C", y_name="error, √(bias² + variance/N)"))

# %% [markdown]
# ## The equation
#
# Write $x^+$ for $\max(x, 0)$. Then $\min(r, C) = r - (r - C)^+$: a cap takes away what sticks out above it. Multiply
# by $q f$ and add up:
#
# $$ \mathbb{E}_q[w f] = \mathbb{E}_p[f] - \mathbb{E}_q\big[(r - C)^+ f\big] . \tag{1} $$
#
# **The bias** is $-\mathbb{E}_q[(r - C)^+ f]$. It comes from the actions above the cap and from nothing else.
#
# **The noise** has a bound. With $F$ the largest $|f|$, and since $w^2 \le C w$ and $\mathbb{E}_q[w] \le 1$,
#
# $$ \mathbb{E}_q[(w f)^2] \le C F^2 , \tag{2} $$
#
# whatever the policies are. Without a cap it may be $(1 + \chi^2) F^2$, and $\chi^2$, the variance of $r$, has no
# limit.
#
# **Why some cap is nearly always better than none.** Just below the largest ratio the bias is tiny, and its square is
# tinier still; but the variance falls at once, if the action with this ratio counts for more than the average.
#
# **Why the best cap grows.** It makes $N · \text{bias}^2 + \text{variance}$ smallest. For $f \ge 0$ the bias shrinks as
# the cap rises. More draws count the bias more, so the best cap cannot fall. A gradient has both signs: one has to try.
#
# ## The best cap for a gradient
#
# `small_world` has so few answers that every average is an exact sum. Now $f$ is the gradient of an answer, and the
# weight is the answer's ratio, the product of lesson 00. The length of a step is ours to choose. So we ask what a step
# of the best length gains: its **progress** $\eta$ is its share of what the exact gradient would gain (lesson 10).
# Which cap makes the most progress, in eight random worlds?

# %%
sizes, caps = (16, 128, 1024, 8192, 65536), [*(2 ** (k / 8) for k in range(-16, 65)), math.inf]
no_cap = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
best_caps, lost_by_2 = [], []
show("answers in a batch", *sizes)
for seed in range(8):
    toy, per_answer = small_world(1.0, seed=seed), LossConfig(loss_agg_mode="token-sum")
    setting = toy.where, toy.policies, toy.advantages
    truths = [gradient_truth(*setting, replace(no_cap, rollout_is_threshold=cap), per_answer) for cap in caps]
    progress = [[truth.progress(size) for truth in truths] for size in sizes]
    best_caps.append([caps[shares.index(max(shares))] for shares in progress])
    lost_by_2.append([max(shares) - shares[caps.index(2.0)] for shares in progress])
    show(f"best cap, world {seed}", best_caps[-1], digits=2)

# %% tags=["hide-input"]
assert all(row == sorted(row) and row[0] < row[-1] < math.inf for row in best_caps)
lost_small, lost_large = ([row[place] for row in lost_by_2] for place in (1, -1))
say(f"""
In none of the {len(best_caps)} worlds does the best cap fall when the batch grows, and in none is no cap the best. A
cap of 2, the usual one, loses {min(lost_small):.2f} to {max(lost_small):.2f} of the progress with batches of {sizes[1]}
answers, and {min(lost_large):.2f} to {max(lost_large):.2f} with {sizes[-1]:,}. Over a training, noise cancels in part
and bias adds up, as in a larger batch: a reason for a looser cap than one step asks for.
""")

# %% [markdown]
# ## On a recorded step
#
# The engine of `kv_fp8_e5m2` keeps its cache in 8 bits. Each answer of the last step, and so each of its tokens, is
# weighed by the product of its ratios. The note says by how much a cap changes noise and bias of the gradient, compared
# with no cap (`inf`). Both are in units of the exact gradient's length, with intervals from the same bootstrap samples
# (lesson 10). **Move the cap, and look for** the weights that pile up at it.

# %%
batch, sketch = updated_batch(runs.find_run("kv_fp8_e5m2"), 48), read_sketch(runs.find_run("kv_fp8_e5m2"), 48)
products = correct(batch, no_cap).weights.amax(-1)
corner = {"xref": "paper", "yref": "paper", "x": 0.01, "y": 0.98, "yanchor": "top", "align": "left", "showarrow": False}


def weights_at(cap):
    capped = replace(no_cap, rollout_is_threshold=cap)
    effect = compare_gradients(batch, sketch, no_cap, capped, batch_sizes=[128])
    lines = f"above the cap: {int((products > cap).sum())} answers", *map(bracketed, (effect.noise[0], effect.bias))
    drawn = weight_histogram(batch, correct(batch, capped), capped)
    drawn.update_traces(showlegend=False, selector={"name": "rejected"})  # nothing is
    return drawn.update_layout(annotations=[corner | {"text": "{}<br>noise by {}<br>bias by {}".format(*lines)}])


moving_picture("cap", {f"{cap:g}": weights_at(cap) for cap in (1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf)}, "2")

# %% tags=["hide-input"]
capped = replace(no_cap, rollout_is_threshold=2.0)
at_2 = compare_gradients(batch, sketch, no_cap, capped, batch_sizes=[128])
say(f"""
A cap of 2 cuts {int((products > 2).sum())} of {len(products)} answers and surely lowers the noise: without a cap the
noise is {at_2.a.noise[0].value:.1f}, and it changes by {below(at_2.noise[0])}. What the cap costs in bias is not known:
{untold(at_2.bias)}. **A sample shows what a cap saves; what it costs lies in what is rarely drawn.**
""")

# %% [markdown]
# ## Predict, then reveal
#
# Now the last steps of eleven runs, from an engine in float32 to one with old weights. Each answer is weighed by its
# product, under the same cap. "Surely" means that the interval leaves out 0. **Write down:**
#
# 1. In how many of the runs does the cap touch any answer?
# 2. Where it does, does the noise surely fall?
# 3. Is the bias that it costs known anywhere?

# %%
names = ("control_fp32", "bf16", "kv_fp8", "temperature_raw", "top_p", "moe_bf16", "moe_replay")
names += ("stale_head", "kv_fp8_e5m2", "async", "stale_4")
effects, touched = {}, {}
show("", "answers", "of", "noise changes by".rjust(24), "bias changes by".rjust(22))
for name in names:
    run = runs.find_run(name)
    step = runs.list_steps(run)[-1]
    recorded = updated_batch(run, step)
    touched[name] = int((correct(recorded, no_cap).weights.amax(-1) > 2).sum())
    effect = compare_gradients(recorded, read_sketch(run, step), no_cap, capped, batch_sizes=[128])
    effects[name] = effect.noise[0], effect.bias
    intervals = bracketed(effect.noise[0]).rjust(24), bracketed(effect.bias).rjust(22)
    show(name, touched[name], len(recorded.response_mask), *intervals)

# %% tags=["hide-input"]
cut = [name for name in names if touched[name]]
calmer = [name for name in cut if effects[name][0].high < 0]
assert all(not bias.tells for _, bias in effects.values())
assert all(effects[name] == (Interval(0, 0, 0),) * 2 for name in names if name not in cut)
say(f"""
In {len(names) - len(cut)} of {len(names)} runs no answer of this step is above 2, and the cap does nothing. Where it
cuts, the noise surely falls in {len(calmer)} of {len(cut)} runs; in {" and ".join(sorted({*cut} - {*calmer}))} the
interval reaches 0. The bias is known in none of them: every interval holds 0, and the widest reaches
{max(bias.high for _, bias in effects.values()):.0f} times the exact gradient's length. **One step does not choose a
cap.** Lesson 11 says what does.
""")

# %% [markdown]
# ## Exercise 1: truncated weights
#
# *4 minutes.* Return the weights of a padded batch, `(B, T)`: the token's ratio, moved to the nearer bound where it is
# outside, and 0 on padding. `lower` may be `None`. Keep it: in `mini.py`, the loop that lesson 01 began, it is the
# third piece, `truncated`.
#
# <details><summary>Hint 1</summary>torch.clamp takes None for a bound that is not there.</details>
# <details><summary>Hint 2</summary>Padding may hold nan. torch.where chooses, multiplication does not: nan · 0 is
# nan.</details>


# %%
def truncated_weights(old_log_probs, rollout_log_probs, mask, lower, upper):
    raise NotImplementedError("exercise 1: write truncated_weights, then run this cell and the next.")


# %% tags=["check"]
check(truncated_weights, WEIGHTS)


# %% tags=["solution", "hide-input"]
def truncated_weights_solution(old_log_probs, rollout_log_probs, mask, lower, upper):
    r = (old_log_probs - rollout_log_probs).exp()
    return torch.where(mask, r.clamp(lower, upper), 0)


check(truncated_weights_solution, WEIGHTS)

# %% [markdown]
# ## Exercise 2: the bias of a cap
#
# *4 minutes.* Given the probabilities of all actions, `p` and `q`, and the values `f`, three vectors, return
# $\mathbb{E}_q[\min(r, C) f] - \mathbb{E}_p[f]$: one number.
#
# <details><summary>Hint 1</summary>Equation (1): only what sticks out above the cap matters.</details>
# <details><summary>Hint 2</summary>q · min(p/q, C) is the smaller of p and C·q.</details>


# %%
def truncation_bias(p, q, f, cap):
    raise NotImplementedError("exercise 2: write truncation_bias, then run this cell and the next.")


# %% tags=["check"]
check(truncation_bias, TRUNCATION_BIAS)


# %% tags=["solution", "hide-input"]
def truncation_bias_solution(p, q, f, cap):
    return -(q * (p / q - cap).clamp(min=0) * f).sum()


check(truncation_bias_solution, TRUNCATION_BIAS)

# %% [markdown]
# ## Exercise 3: is the cap worth it?
#
# *5 minutes.* Return the squared error, bias² + variance/N, of the truncated average over N `draws`. Then find, by
# trying, from how many draws on a cap of 1.8 is worse than none for the three actions.
#
# <details><summary>Hint 1</summary>Exercise 2 is the bias. The variance of one draw is E[(wf)²] − E[wf]².</details>
# <details><summary>Hint 2</summary>With a cap of 1.5 both are equal at 20 draws. A looser cap stays better for
# longer.</details>


# %%
def squared_error(p, q, f, cap, draws):
    raise NotImplementedError("exercise 3: write squared_error, then run this cell and the next.")


# %% tags=["check"]
check(squared_error, SQUARED_ERROR)


# %% tags=["solution", "hide-input"]
def squared_error_solution(p, q, f, cap, draws):
    wf = (p / q).clamp(max=cap) * f
    mean = (q * wf).sum()
    variance = (q * wf.square()).sum() - mean.square()
    return (mean - (p * f).sum()).square() + variance / draws


check(squared_error_solution, SQUARED_ERROR)
with_cap, without = ([squared_error_solution(p, q, f, cap, k) for k in range(1, 1000)] for cap in (1.8, math.inf))
show("a cap of 1.8 is worse from N =", 1 + next(k for k in range(999) if with_cap[k] > without[k]))

# %% [markdown]
# ## Check yourself
#
# **1. All rewards are ≥ 0. You raise the cap from 2 to 5. What happens to the weighted average reward?**
#
# <details><summary>Its expectation falls.</summary>No. Weights above 2 grow, all others stay, and no reward is
# negative.</details>
# <details><summary>Its expectation rises towards the trainer's, and the average of the squares rises
# too.</summary>Yes.</details>
# <details><summary>Its expectation stays: importance sampling is unbiased.</summary>No. Only the weight without a cap
# is.</details>
#
# **2. You change from 256 to 2,048 answers per step. Should the cap move?**
#
# <details><summary>No: the mismatch is what it was.</summary>But the noise is not. With eight times the answers the
# bias is a larger part of the error.</details>
# <details><summary>It may be tighter, since there is more data.</summary>The other way round. A tight cap trades bias
# for less noise, and less of it is left.</details>
# <details><summary>It may be looser.</summary>Yes. How much looser depends on the policies: try it.</details>
#
# **3. On your run, the noise of the gradient surely falls with the cap, and the interval of the bias is [0, 8]. What
# do you know?**
#
# <details><summary>The cap has no bias, since 0 is in the interval.</summary>No. So is 7. An interval that holds
# everything says nothing.</details>
# <details><summary>The cap lowers the noise; what it costs is not known from this step.</summary>Yes. A better estimate
# needs more answers or more steps.</details>
# <details><summary>The bias is 4, the middle.</summary>No. The middle of an interval is no estimate.</details>

# %% [markdown]
# ## In the app
#
# - [This step, its gradient over the cap on the
#   products](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=48&preset=decoupled_seq_is);
# - [the bench with a tight
#   cap](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&is_upper=1.1): drag it, and see
#   how many tokens it touches;
# - [truncated beside masked, the same
#   bounds](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_icepop&mode=truncate&preset_b=decoupled_token_icepop).
#
# ## Pitfalls
#
# - **A cap is not a clip.** PPO's clip bounds $\pi/p$ and stops the gradient of a token beyond it. A truncated weight
#   only multiplies the token's gradient, by $C$.
# - **One bound, or two.** `tis` is one-sided in verl and SkyRL and two-sided in OpenRLHF. ROLL's `pg_variant: tis` is
#   another thing: it clamps $\pi/p$ to [0, 1].
# - **Averages of weights.** After truncation they are below 1. Dividing by the mean brings the average back, but does
#   not undo the bias.
#
# ## References
#
# 1. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: truncated importance sampling for the gap between
#    engine and trainer.
# 2. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://richardli.xyz/rl-collapse), 2025: bias set
#    against total variation, and variance against χ².
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): `rollout_is`,
#    `rollout_is_threshold`, and the presets used here.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; nothing above needs them.
#
# ### The equation and its slopes, with symbols
#
# For three actions, any policies and any $f$. A slightly larger $C$ raises only the weights that sit on it, so
#
# $$ \frac{d\,\text{bias}}{dC} = \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f\big], \qquad
#    \frac{d\,\mathbb{E}_q[(w f)^2]}{dC} = 2 C\, \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f^2\big] \ge 0 . \tag{3} $$
#
# The second moment always grows with the cap. The bias of an $f \ge 0$ always shrinks. If $f$ has both signs,
# contributions from above the cap may cancel, and the bias may grow before it falls to 0.
#
# A cap leaves some of the three actions above it. The cell tries all eight possibilities.

# %%
C, N = sympy.symbols("C N", positive=True)
Q, P, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=name != "f") for name in "qpf")
R = [p_a / q_a for p_a, q_a in zip(P, Q, strict=True)]


def average(values, over=(0, 1, 2)):
    return sympy.Add(*(Q[a] * values[a] for a in over))


def vanishes(expression):
    return sympy.expand(sympy.together(expression)) == 0


for cut in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(4)):
    wf = [(C if a in cut else R[a]) * F[a] for a in range(3)]
    bias = average(wf) - sum(p_a * f_a for p_a, f_a in zip(P, F, strict=True))
    assert vanishes(bias + average([(R[a] - C) * F[a] for a in range(3)], cut))  # (1)
    assert vanishes(sympy.diff(bias, C) - average(F, cut))  # (3), bias
    squares = average([x**2 for x in wf])
    assert vanishes(sympy.diff(squares, C) - 2 * C * average([f_a**2 for f_a in F], cut))  # (3), noise
show("caps tried", 2**3, "all agree")

# %% [markdown]
# ### Why some cap is nearly always better than none
#
# Let $a$ be the action with the largest ratio, alone above the cap. The slope of the variance at $C = r_a$ is
#
# $$ 2\, q_a f_a \,\big(r_a f_a - \mathbb{E}_p[f]\big) , $$
#
# while that of bias² is 0. So a slightly lower cap makes the error smaller, for every $N$, wherever this slope is above
# 0: if $a$, counted $r_a f_a$, lies further out than the average. That is usual for gradients, where one answer counts
# for more than the mean of all. If the most underrated action were worth little, a cap would make things worse.
#
# By hand: of the three actions Z counts 8, and the average is 2.25. The best cap is $(8N + 1)/(4N + 12)$, which grows
# towards the largest ratio, 2.

# %%
wf = [R[0] * F[0], R[1] * F[1], C * F[2]]  # only the last action on the cap
slope = sympy.diff(average([x**2 for x in wf]) - average(wf) ** 2, C).subs(C, R[2])
trainer = sympy.Add(*(p_a * f_a for p_a, f_a in zip(P, F, strict=True)))
assert vanishes(slope - 2 * Q[2] * F[2] * (R[2] * F[2] - trainer))

of_three = dict(zip((*Q, *P, *F), [value for x in (q, p, f) for value in map(sympy.Rational, x.tolist())], strict=True))
mean, square = (average(values).subs(of_three) for values in (wf, [x**2 for x in wf]))
squared = (mean - trainer.subs(of_three)) ** 2 + (square - mean**2) / N
(best,) = sympy.solve(sympy.diff(squared, C), C)
assert sympy.simplify(best - (8 * N + 1) / (4 * N + 12)) == 0
show("draws", 5, 20, 100, 1000)
show("best cap", [float(best.subs(N, draws)) for draws in (5, 20, 100, 1000)])

# %% [markdown]
# ### A rule that needs no example
#
# $(r - 2C)^2 \ge 0$ says $r - C \le r^2/(4C)$, so $|\text{bias}| \le F (1 + \chi^2)/(4C)$. With the bound of the noise,
#
# $$ \text{error}^2 \le F^2 \left( \Big(\frac{1 + \chi^2}{4C}\Big)^2 + \frac{C}{N} \right), \qquad
#    \text{smallest at } C = \left(\frac{(1 + \chi^2)^2\, N}{8}\right)^{1/3} . $$
#
# Eight times the batch, twice the cap. It is a bound for the worst $f$ there is, so the number itself is rough.
#
# And at $C = 1$ the mass above the cap is $\mathbb{E}_q[(r - 1)^+] = \sum (p - q)^+$, the **total variation** between
# the policies: how much probability must be moved to turn one into the other. So the bias of a cap of 1 or more is at
# most $F$ times the total variation.

# %%
second, ratio_ = sympy.symbols("second r", positive=True)
assert sympy.expand(ratio_**2 / (4 * C) - (ratio_ - C) - (ratio_ - 2 * C) ** 2 / (4 * C)) == 0
bound = second**2 / (16 * C**2) + C / N
(rule,) = (root for root in sympy.solve(sympy.diff(bound, C), C) if root.is_positive)
assert sympy.simplify(rule - (second**2 * N / 8) ** sympy.Rational(1, 3)) == 0
show("eight times the data: cap ×", str(sympy.simplify(rule.subs(N, 8 * N) / rule)))

# %% [markdown]
# ### The same for gradients: a thousand random policies
#
# Equation (1) with autograd, for the gradient of a softmax, in float64. The last two lines are the two bounds.

# %%
generator = torch.Generator().manual_seed(5)
logits_p, logits_q = torch.randn(2, 1000, 3, dtype=torch.float64, generator=generator)
rewards = torch.randn(1000, 3, dtype=torch.float64, generator=generator)
cap_of = 0.5 + 2 * torch.rand(1000, 1, dtype=torch.float64, generator=generator)
p3, q3 = logits_p.softmax(-1), logits_q.softmax(-1)
r3 = p3 / q3


def gradient(counted):
    """∇ of each trainer's objective with its actions counted so often; no trainer knows of the others."""
    leaf = logits_p.clone().requires_grad_()
    return -torch.autograd.grad((counted * reinforce(leaf.log_softmax(-1), rewards)).sum(), leaf)[0]


one_token = TokenBatch.from_log_probs(p3.log().view(-1, 1), q3.log().view(-1, 1), torch.ones(3000, 1, dtype=torch.bool))
capped_at_2 = correct(one_token, CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)).weights
assert torch.allclose(capped_at_2.view(1000, 3), r3.clamp(max=2), rtol=1e-12)
w3 = torch.minimum(r3, cap_of)
error_of_1 = gradient(q3 * w3) - gradient(p3) + gradient(q3 * (r3 - cap_of).clamp(min=0))
cut_over_variation = (q3 * (r3 - cap_of.clamp(min=1)).clamp(min=0)).sum(-1) / (p3 - q3).clamp(min=0).sum(-1)
second_over_cap = (q3 * w3.square()).sum(-1) / cap_of[:, 0]
show("largest error of (1) below 1e-13", float(error_of_1.abs().max()) < 1e-13)
show("cut above a cap ≥ 1, over TV, at most", float(cut_over_variation.max()))
show("second moment of w, over the cap, at most", float(second_over_cap.max()))
assert error_of_1.abs().max() < 1e-13
assert cut_over_variation.max() <= 1 + 1e-12
assert second_over_cap.max() <= 1

# %% [markdown]
# ### The curve of one world
#
# First, equation (1) for the gradient of a world's answers. Then progress, bias and noise over the cap, exact, for the
# middle one of the batches above; bias and noise in units of the gradient. **Look for** the dashed line, the cap with
# the most progress; the dotted line is the usual cap.

# %%
toy = small_world(1.0, seed=2)
setting = toy.where, toy.policies, toy.advantages
q_all, p_all = probabilities(toy.where, toy.policies.rollout), probabilities(toy.where, toy.policies.old)
leaf = toy.policies.theta.clone().requires_grad_()
sticks_out = q_all * (p_all / q_all - 2).clamp(min=0)
taken = torch.autograd.grad((sticks_out * toy.advantages * log_probs(toy.where, leaf).sum(-1)).sum(), leaf)[0]
exact, at_cap = (
    gradient_truth(*setting, replace(no_cap, rollout_is_threshold=cap), per_answer) for cap in (math.inf, 2.0)
)
show("answers", len(q_all), "of which r > 2:", int((p_all / q_all > 2).sum()))
show("χ² of the answers", float((p_all.square() / q_all).sum() - 1), digits=2)
show("bias with C = 2, of the gradient", at_cap.relative_bias)
show("variance, C = 2 over no cap", at_cap.variance / exact.variance)
assert exact.relative_bias < 1e-12
assert torch.allclose(at_cap.expectation - exact.expectation, -taken, rtol=0, atol=1e-12)

picture(exact_curves(toy_sweep(toy, no_cap, [2 ** (k / 4) for k in range(1, 32)], sizes[2]), of_ratio=True, at=2.0))

# %% [markdown]
# ### Lower bounds
#
# A **lower bound** $\ell$ raises the weights below it. By the same steps its bias is $+\mathbb{E}_q[(\ell - r)^+ f]$.
# Small weights make little noise, so there is little to win. For the three actions:

# %%
ways = {
    "no bound": r,
    "truncated at 1.5": r.clamp(max=1.5),
    "masked at 1.5": r.where(r <= 1.5, 0),
    "truncated to [0.75, 1.5]": r.clamp(0.75, 1.5),
}
show("", "E[w]", "bias", "variance", "error, N=1", "N=2", "N=5", "N=20", "N=100")
for name, w in ways.items():
    mean, variance = mean_and_variance(w)
    errors = [((mean - 2.25) ** 2 + variance / draws) ** 0.5 for draws in (1, 2, 5, 20, 100)]
    show(name, float((q * w).sum()), mean - 2.25, variance, errors)
lifted = mean_and_variance(ways["truncated to [0.75, 1.5]"])[0] - mean_and_variance(ways["truncated at 1.5"])[0]
assert lifted == float((q * (0.75 - r).clamp(min=0) * f).sum())

# %% [markdown]
# Masking has the smallest error for a single draw, and from two draws on it loses to truncation, because its bias
# stays. It has another use: if a huge ratio is no honest ratio but a broken token, equation (1) has no meaning for it,
# and dropping it is right.
#
# ### Two estimates of one number
#
# $\mathbb{E}_q[(r - 1)^+]$ is the total variation, and so is $\mathbb{E}_q[(1 - r)^+]$, because ratios average to 1.
# All recorded steps of three runs, token by token, with standard errors.

# %%
apart, quotient = {}, {}
show("", "E(r−1)⁺", "±", "E(1−r)⁺", "±", "apart by", "largest r")
for name in ("bf16", "kv_fp8_e5m2", "stale_4"):
    steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
    d = [log_ratio(one.tensors()["old_log_probs"], one.rollout_log_probs, one.response_mask) for one in steps]
    tokens = torch.cat([ratio(of_step[one.response_mask]) for of_step, one in zip(d, steps, strict=True)])
    sides = torch.stack([(tokens - 1).clamp(min=0), (1 - tokens).clamp(min=0), tokens])
    means, errors = sides.mean(-1).tolist(), (sides.std(-1) / len(tokens) ** 0.5).tolist()
    apart[name], quotient[name] = (means[0] - means[1]) / errors[2], errors[0] / errors[1]
    show(name, means[0], errors[0], means[1], errors[1], apart[name], float(tokens.max()))

# %% tags=["hide-input"]
assert all(abs(distance) < 2 for distance in apart.values())
assert min(quotient["kv_fp8_e5m2"], quotient["stale_4"]) > 2
say(f"""
Both sides agree within two standard errors in each run. But in `kv_fp8_e5m2` and `stale_4` the standard error above 1
is {quotient["kv_fp8_e5m2"]:.1f} and {quotient["stale_4"]:.1f} times that below. A token that the engine hardly ever
draws and the trainer would draw often has a huge ratio; if none is in the sample, its part is missing, and the
standard error does not know. A cap cuts exactly these tokens. The side below 1 has no such tail.
""")

# %% [markdown]
# ### Which cap is the best on this step?

# %%
tried = [2 ** (k / 4) for k in range(1, 19)]
swept = gradient_sweep(batch, sketch, preset("decoupled_seq_is"), thresholds=tried, batch_sizes=[128])
(best_cap,), (choice,) = swept.best, swept.ranking.choices
progress_there = swept.ranking.reports[choice.best].progress[0]
show("", "value", "from", "to")
show("best of the caps that were tried", *astuple(best_cap), digits=2)
show("its progress", *astuple(progress_there), digits=2)
show("more than without weights by", *astuple(choice.over_nothing), digits=2)

# %% tags=["hide-input"]
say(f"""
The best guess is {bracketed(best_cap)}; the tightest cap that was tried is {tried[0]:.2f}. Whether it is better than no
weights at all cannot be told: {untold(choice.over_nothing)}.
""")
