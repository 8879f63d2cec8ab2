# %% [markdown]
# # 03 · What a cap costs and saves
#
# **Claim.** A cap on the weights usually lowers the noise of an average, and makes it wrong by an amount with an exact
# formula. The larger the batch, the looser the best cap; in a small batch no weights at all may be better. The answers
# of one batch show little of what a cap saves, and hardly anything of what it costs.
#
# *50 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00 and 01. All letters are in
# [Notation](NOTATION.md). Next: [lesson 04](04_threshold.ipynb).
#
# At the end you can
#
# - compute the bias of a cap without sampling anything;
# - explain why some cap is usually better than none, and why the best cap depends on the size of the batch;
# - say what bias and noise of a *gradient* are, and in which unit they are measured;
# - explain why the answers of one batch underestimate what a cap does.

# %% tags=["hide-input"]
import itertools
import math
from dataclasses import astuple, replace

import sympy
import torch
from curves import curves
from exercises.truncation import SQUARED_ERROR, WEIGHTS
from recorded import load
from sentences import above, below, bracketed, reveal, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, TokenBatch, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import ACROSS, arrow, fade, figure, interval_bars, points, vertical_line
from rlcorr.gradients.report import compare_gradients
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import gradient_truth, log_probs, probabilities, small_world
from rlcorr.losses.per_token import reinforce
from rlcorr.ratios import log_ratio, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_gradients, read_sketch, updated_batch
from rlcorr.teaching.check import check

torch.set_num_threads(1)


# %% [markdown]
# ## An example to compute by hand: three actions
#
# There are three actions, X, Y and Z. The engine samples them with the probabilities $q = ½, ¼, ¼$. The trainer would
# sample them with $p = ¼, ¼, ½$. So the ratios $r = p/q$ are ½, 1 and 2.
#
# We average a quantity $f$ with the values 1, 0 and 4. The trainer's average is
# $\mathbb{E}_p[f] = ¼·1 + ¼·0 + ½·4 = 2.25$. This is the number that we want, but all samples come from the engine.
#
# Weights repair that: the average of $r f$ over the engine's samples is 2.25, too. It has noise, however. One sample in
# four is Z, and it adds $2 · 4 = 8$. All other samples add ½ or 0.
#
# **Truncation** makes such samples count less. Choose a number $C$, the **cap**. A weight above $C$ becomes $C$:
#
# $$ w = \min(r, C) . $$
#
# This is **truncated importance sampling**, TIS. With $C = 1.5$ the weights are ½, 1 and 1.5, so Z adds only 6. The
# average becomes ½·½ + ¼·0 + ¼·6 = 1.75. It is ½ too small. What do we get for that?

# %%
q, p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], dtype=torch.float64)
f = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
r = p / q


def mean_and_variance(w):
    """Mean and variance of w·f, for one sample of the engine."""
    mean = (q * w * f).sum()
    return float(mean), float((q * (w * f).square()).sum() - mean**2)


show("weights", "X", "Y", "Z", "average", "variance")
ways = {"r": r, "truncated at 1.5": r.clamp(max=1.5), "masked at 1.5": r.where(r <= 1.5, 0), "no weights": r / r}
for name, w in ways.items():
    show(name, w, *mean_and_variance(w))

# %% [markdown]
# By hand: the **bias** of the cap is 1.75 − 2.25 = −0.5. In return, the variance of one sample falls from
# 11.06 to 6.06.
#
# Now take the mean of $N$ samples. Its bias is the same, and its variance is $N$ times smaller. Its **error**, the root
# of the mean squared distance from 2.25, contains both:
#
# $$ \text{error}^2 = \text{bias}^2 + \frac{\text{variance}}{N} . $$
#
# By hand: with 5 samples, error² is 11.06/5 = 2.21 without a cap and 0.25 + 6.06/5 = 1.46 with it. The cap is better.
# With 20 samples both are 0.55. With 100 samples the cap is worse: 0.31 compared with 0.11. **Without weights** (all 1)
# error² is 1.01, 0.68 and 0.59: below both with 5 samples, above both with 100.
#
# *Masked at 1.5* is **masking** (lesson 08): a weight above the cap becomes 0 instead of $C$. It takes away the whole
# contribution of Z, so its bias is larger.
#
# **Look for** the best cap, the large dot on each line. With more samples it moves to the right.

# %% tags=["hide-input"]
caps = torch.linspace(1, 2, 41, dtype=torch.float64).tolist()
truncated = [mean_and_variance(r.clamp(max=cap)) for cap in caps]
errors = {
    f"{samples} samples": [math.sqrt((mean - 2.25) ** 2 + variance / samples) for mean, variance in truncated]
    for samples in (5, 20, 100)
}
lowest = {name: min(range(len(caps)), key=values.__getitem__) for name, values in errors.items()}
made = curves(caps, errors, x_name="cap C", y_name="error, √(bias² + variance/N)")
for name, place in lowest.items():
    made.add_scatter(x=[caps[place]], y=[errors[name][place]], mode="markers", name=f"best cap, {name}",
                     marker={"size": 11, "color": "black"}, showlegend=False)  # fmt: skip
picture(made)

# %% [markdown]
# ## The equation
#
# Write $x^+$ for $\max(x, 0)$. A cap takes away the part of the ratio above it: $\min(r, C) = r - (r - C)^+$. Multiply
# this by $q f$ and add up over all actions:
#
# $$ \mathbb{E}_q[w f] = \mathbb{E}_p[f] - \mathbb{E}_q\big[(r - C)^+ f\big] . \tag{1} $$
#
# **The bias** is therefore $-\mathbb{E}_q[(r - C)^+ f]$. Only actions with a ratio above the cap contribute to it.
#
# By hand: in the example only Z is above the cap, and $-¼ · (2 - 1.5) · 4 = -½$.
#
# **The noise has an upper bound.** The variance is at most $\mathbb{E}_q[(w f)^2]$. Let $F$ be the largest $|f|$. A
# weight is at most $C$, so $w^2 \le C w$. And $w \le r$, so $\mathbb{E}_q[w] \le \mathbb{E}_q[r] = 1$. Together:
#
# $$ \mathbb{E}_q[(w f)^2] \le F^2\, \mathbb{E}_q[w^2] \le C F^2\, \mathbb{E}_q[w] \le C F^2 , \tag{2} $$
#
# for every pair of policies. Without a cap this average can be as large as $(1 + \chi^2) F^2$, and $\chi^2$, the
# variance of the ratios, has no upper limit.
#
# **Why some cap is usually better than none.** Start with a cap just at the largest ratio, and lower it a little. The
# bias is then proportional to this small change, and bias² to its square. The variance falls in proportion to the
# change itself, if the action with the largest ratio contributes more than the average. So at first the variance wins.
#
# **Why the best cap grows with the batch.** Multiply error² by $N$: the best cap minimises
# $N · \text{bias}^2 + \text{variance}$. With more samples, bias² has a larger factor. If $f \ge 0$, a higher cap has a
# smaller bias, so the best cap cannot fall. A gradient has entries of both signs; there one has to try.
#
# ## Bias and noise of a gradient
#
# From here on, we average gradients. An answer contributes its **advantage** (its reward minus an average) times its
# **score**. The score is the gradient of $\log \pi$, the push of lesson 00; lesson 02 derives it. A gradient has a
# direction, so bias and noise need a picture. Take the three actions once more. Their rewards are the values of $f$
# above, and the policy has one logit per action. The three numbers of each gradient sum to 0, so all gradients lie in
# one plane, which we can draw.
#
# The **exact gradient** $g^*$ is the average under the trainer. We turn the plane until $g^*$ points to the right, and
# choose its length as the unit. So $g^*$ is the arrow from (0, 0) to (1, 0), whatever its real length was. Then
#
# - each small dot is the gradient of one batch of eight samples: with uncapped weights, with the tight cap $C = 1$, or
#   without weights;
# - a large dot is the mean over all possible batches;
# - the **bias** is the distance from the large dot to the tip of the arrow. A bias of ½ is half of the arrow's length;
# - the **noise** is how far the small dots are from the large one: the root of their mean squared distance.
#
# "In units of the exact gradient's length" always means this picture. **Look for** the three large dots, and the
# colours that spread further.

# %%
scores = torch.eye(3, dtype=torch.float64) - p  # of a softmax: 1 at the action, minus the probabilities
advantage = f - (p * f).sum()
exact = (p * advantage) @ scores
along = exact / exact.norm()
across = torch.linalg.cross(along, torch.ones(3, dtype=torch.float64) / 3**0.5)
plane = torch.stack([along, across], 1) / exact.norm()  # (3, 2): two coordinates, in units of the exact gradient
WAYS = {"no cap": r, "cap of 1": r.clamp(max=1), "no weights": torch.ones_like(r)}
of_action, of_ways = {}, {}
for name, w in WAYS.items():
    of_action[name] = (w * advantage)[:, None] * scores @ plane  # (3, 2): what one sample of X, Y or Z contributes
    middle = (q @ of_action[name]).round(decimals=9)
    of_ways[name] = middle, math.sqrt(float(q @ (of_action[name] - middle).square().sum(-1)) / 8)  # mean, noise

# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(5)
drawn = torch.multinomial(q, 150 * 8, replacement=True, generator=generator).view(150, 8)
traces = []
for colour, (name, (middle, _)) in zip((ACROSS[1], ACROSS[3], ACROSS[2]), of_ways.items(), strict=True):
    batches, edge = of_action[name][drawn].mean(1).tolist(), {"color": "black", "width": 1}
    traces.append(points(f"{name}: one batch", batches, fade(colour, 0.4), size=5))
    traces.append(points(f"{name}: mean of all batches", [middle.tolist()], colour, size=15, line=edge))
axes = [{"title_text": f"{side}, in units of ‖g*‖"} for side in ("along g*", "across")]
traces.append(arrow("exact gradient g*", (1, 0), "black"))
picture(figure(traces, height=380, x=axes[0] | {"range": [-0.3, 2]}, y=axes[1] | {"scaleanchor": "x"}, legend=True))
show("", "along", "across", "bias", "noise", "η")
eta = {}
for name, (middle, spread) in of_ways.items():
    bias = float((middle - torch.tensor([1.0, 0.0], dtype=torch.float64)).norm())
    eta[name] = float(middle[0] ** 2 / (middle.square().sum() + spread**2))
    show(name, middle, bias, spread, eta[name], digits=2)
assert eta["no cap"] > eta["cap of 1"]

# %% [markdown]
# A training run can choose the length of its step, by the learning rate. So the useful question about a gradient is:
# **if we choose the best length, how much do we gain?** The **progress** $\eta$ (eta) is our gain divided by the gain
# of the exact gradient, each at its best step length. In the coordinates of the picture it is
#
# $$ \eta = \frac{\text{along}^2}{\text{along}^2 + \text{across}^2 + \text{noise}^2} , $$
#
# where "along" and "across" are the coordinates of the large dot. Lesson 10 derives this formula. $\eta$ is 1 if the
# large dot is on the arrow's line and there is no noise, and 0 if the mean gradient does not point along the arrow at
# all. If noise² is most of the denominator, halving the noise makes about four times the progress. Above, the tight cap
# **lowers** $\eta$: it reduces the mean gradient's length by a larger share than the noise.
#
# ## The best cap for a gradient
#
# `small_world` makes a random world with a few hundred possible answers. All of them can be added up, so every average
# is exact. The weight of an answer is the product of its ratios (lesson 00). Which cap makes the most progress, in
# eight random worlds, for batches of five sizes? Is that more than without weights?

# %%
sizes, caps = (16, 128, 1024, 8192, 65536), [*(2 ** (k / 8) for k in range(-16, 65)), math.inf]
no_cap = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
best_caps, eta = [], []  # η: (worlds, sizes, 3)
show("answers in a batch", *sizes)
for seed in range(8):
    toy, per_answer = small_world(1.0, seed=seed), LossConfig(loss_agg_mode="token-sum")
    setting = toy.where, toy.policies, toy.advantages
    truths = [gradient_truth(*setting, replace(no_cap, rollout_is_threshold=cap), per_answer) for cap in caps]
    progress = [[truth.progress(size) for truth in truths] for size in sizes]
    best_caps.append([caps[shares.index(max(shares))] for shares in progress])
    unweighted = [gradient_truth(*setting, CorrectionConfig(), per_answer).progress(size) for size in sizes]
    eta.append([[x, row[caps.index(2.0)], max(row)] for x, row in zip(unweighted, progress, strict=True)])
    show(f"best cap, world {seed}", best_caps[-1], digits=2)
for place, name in enumerate(("no weights", "cap of 2", "best cap of each world")):
    show(f"mean η: {name}", torch.tensor(eta).mean(0)[:, place], digits=2)

# %% tags=["hide-input"]
assert all(row == sorted(row) and row[0] < row[-1] < math.inf for row in best_caps)
without, cap_2, best = torch.tensor(eta).unbind(-1)  # (worlds, sizes)
lost = best - cap_2
wins, wins_over_all = (without > cap_2).sum(0).tolist(), (without >= best).sum(0).tolist()
assert wins == sorted(wins, reverse=True)
assert wins[0] > len(eta) / 2 > wins[-1] == 0
say(f"""
In the {len(eta)} worlds the best cap never falls as the batch grows, and some cap is always better than uncapped
weights. A cap of 2 is a common choice. In batches of {sizes[1]} answers its $\\eta$ is {lost[:, 1].min():.2f} to
{lost[:, 1].max():.2f} lower than that of the best cap, and in batches of {sizes[-1]:,} it is {lost[:, -1].min():.2f} to
{lost[:, -1].max():.2f} lower.

The rival that is often forgotten is **no weights at all**. In batches of {sizes[0]} answers its $\\eta$ is higher than
that of a cap of 2 in {wins[0]} of {len(eta)} worlds, and higher than that of every cap in {wins_over_all[0]}. In
batches of {sizes[-1]:,} it is higher in none. So a small batch may need no weights, a larger one a looser cap.

One training step is a small batch. But the noise of many steps partly cancels, while their bias adds up. In this
respect a whole training run resembles one large batch. That is a reason for a looser cap than one step asks for.
""")

# %% [markdown]
# ## Predict, then reveal
#
# Now real runs. The engine of `stale_head` computes with the output layer of an older version of the model. The run
# trains on eighty prompts, and its recording contains two things: the **batch** of its last step, a few hundred answers
# that the engine sampled; and **all likely answers** to the eighty prompts, with the probability of each in both
# policies. The likely answers cover nearly all of the probability. So an average over them needs no sampling.
# **Write down:**
#
# 1. One of the likely answers has the largest weight. Does the batch contain a weight of about that size?
# 2. We estimate, from the batch alone, by how much a cap of two lowers the noise. Is our estimate too small, about
#    right, or too large?
# 3. Can the batch tell you the bias of the cap?
#
# The picture answers the first question. It sorts the likely answers by their weights. **Move the cap, and look for**
# the bars to the right of it: the engine hardly ever samples these answers, and the trainer would sample them more
# often. The corner says what the cap does to the gradient's noise and bias, in units of the exact gradient's length,
# over all likely answers.

# %% tags=["hide-input"]
stale_head = runs.find_run("stale_head")
LAST = runs.list_steps(stale_head)[-1]
likely, of_likely = read_gradients(stale_head, LAST)
assert isinstance(of_likely, ExactSketch)
in_batch = updated_batch(stale_head, LAST)
products, batch_products = (correct(one, no_cap).weights.amax(-1) for one in (likely, in_batch))
sampled, trained = (x / of_likely.answers.prompt_count for x in (of_likely.answers.sampled, of_likely.answers.trained))
edges = [2.0**k for k in range(-5, 11)]
FROM, TO = edges[0], 2 * edges[-1]


def share_in(probability, low):
    """Probability of the answers with a weight from `low` to twice that; below the first edge, all smaller ones."""
    inside = (products < 2 * low) & ((products >= low) if low > FROM else (products >= 0))
    return float(probability[inside].sum())


def weights_at(cap):
    effect = compare_gradients(likely, of_likely, no_cap, replace(no_cap, rollout_is_threshold=cap), batch_sizes=[128])
    cut = products > cap
    traces = [
        {"type": "bar", "name": name, "x": [1.41 * low for low in edges], "width": [0.45 * low for low in edges],
         "offset": [shift * low for low in edges], "y": [share_in(probability, low) or None for low in edges],
         "marker": {"color": colour}}
        for name, probability, colour, shift in (("sampled by the engine", sampled, ACROSS[0], -0.4),
                                                 ("sampled by the trainer", trained, ACROSS[2], 0.05))
    ]  # fmt: skip
    text = (
        f"above the cap: {100 * float(sampled[cut].sum()):.2f} % of the engine's answers,<br>"
        f"{100 * float(trained[cut].sum()):.2f} % of the trainer's<br>"
        f"the cap changes the noise by {effect.noise[0].value:.1f},<br>the bias by {effect.bias.value:.2f}"
    )
    corner = {"xref": "paper", "x": 0.99, "y": 0.98, "xanchor": "right", "align": "left", "text": text}
    x = {"title_text": "weight of an answer (product of its ratios)", "type": "log",
         "range": [math.log10(FROM / 1.2), math.log10(TO)]}  # fmt: skip
    y = {"title_text": "share of all answers", "type": "log", "range": [-6, 0.1], "exponentformat": "power"}
    shapes = [vertical_line(x=min(cap, TO), colour="black", dash="dash", width=2, label="cap", side="left")]
    return figure(traces, height=340, x=x, y=y, shapes=shapes, notes=[corner], legend=True)


moving_picture("cap", {f"{cap:g}": weights_at(cap) for cap in (1.1, 1.5, 2.0, 3.0, 8.0, 32.0, 128.0, math.inf)}, "2")

# %% tags=["hide-input"]
out = products > 2
reveal(f"""
**1.** No. The largest weight among the likely answers is {float(products.max()):,.0f}. The largest in the batch of
{len(batch_products)} answers is {float(batch_products.max()):.1f}. {int(out.sum())} of {len(products):,} likely answers
have a weight above 2, but only one in {1 / float(sampled[out].sum()):,.0f} of the engine's samples is among them. Under
the trainer it would be one in {1 / float(trained[out].sum()):,.0f}.
""")

# %% [markdown]
# For the other questions we measure a cap of two in six runs: on the batch and all likely answers. (In `stale_4` and
# `async` the engine's model is old; the `moe` runs have experts, lesson 15.) Brackets contain a 95 % interval; over all
# likely answers it covers other prompts, too. Something falls or grows **significantly** if its interval excludes 0.
# The first table counts the answers that the cap changes.

# %%
NAMES = ("kv_fp8", "moe_bf16", "moe_replay", "stale_head", "stale_4", "async")
cap_of_2, in_sample, of_all, BATCH = replace(no_cap, rollout_is_threshold=2.0), {}, {}, 128
show("answers above a cap of 2", "batch", "of", "likely", "of")
for name in NAMES:
    run = runs.find_run(name)
    step = runs.list_steps(run)[-1]
    one_batch, all_likely = updated_batch(run, step), read_gradients(run, step)
    in_sample[name] = compare_gradients(one_batch, read_sketch(run, step), no_cap, cap_of_2, batch_sizes=[BATCH])
    of_all[name] = compare_gradients(*all_likely, no_cap, cap_of_2, batch_sizes=[BATCH])
    weights = [correct(answers, no_cap).weights.amax(-1) for answers in (one_batch, all_likely[0])]
    show(name, *(count for w in weights for count in (int((w > 2).sum()), len(w))))


# %% tags=["hide-input"]
def bias_text(change):
    """Spell a change of the bias. Of an interval that begins at 0, only the upper end is a result."""
    return bracketed(change) if change.low > 0 else f"at most {change.high:.2f}"


for label, spell in (
    ("noise changes by", lambda e: bracketed(e.noise[0])),
    ("bias grows by", lambda e: bias_text(e.bias)),
):
    show(label, "one batch".rjust(24), "all likely answers".rjust(24))
    for name in NAMES:
        show(f"  {name}", *(spell(effects[name]).rjust(24) for effects in (in_sample, of_all)))


def both_ways(pick, y_name):
    effects = {"one batch": in_sample, "all likely answers": of_all}
    groups = {label: {name: pick(of[name]) for name in NAMES} for label, of in effects.items()}
    return interval_bars(groups, y_name, (ACROSS[2], ACROSS[0]), height=320)


picture(both_ways(lambda e: e.noise[0], "change of the noise, in units of ‖g*‖"))

# %% tags=["hide-input"]
picture(both_ways(lambda e: e.bias, "growth of the bias, in units of ‖g*‖"))
missed = [name for name in NAMES if not in_sample[name].noise[0].low <= of_all[name].noise[0].value
          <= in_sample[name].noise[0].high]  # fmt: skip
head, lag = of_all["stale_head"], of_all["stale_4"]
assert {"stale_head", "stale_4", "async", "kv_fp8"} <= set(missed)
moe = "moe_bf16", "moe_replay"
tiny = max(abs(of_all[name].noise[0].value - in_sample[name].noise[0].value) for name in moe)
assert tiny < 0.05
assert all(effect.bias.low <= 0 for effect in in_sample.values())
helped = [name for name in NAMES if of_all[name].progress[0].low > 0]
reveal(f"""
**2.** Far too small. From the batch of `stale_head`, a cap of 2 changes the noise by
{bracketed(in_sample["stale_head"].noise[0])}. Over all likely answers it changes the noise by {below(head.noise[0])}.
In {len(missed)} of {len(NAMES)} runs the value over all likely answers is outside of the batch's 95 % interval. (In the
two `moe` runs the cap hardly changes anything, and the difference is at most {tiny:.2f}.) How can that be? The interval
comes from resampling the batch. The batch has no answers with huge weights, so no resampling finds them.

**3.** Hardly. Every interval of the bias from a batch includes 0. In `stale_4` the batch shows that the bias is at
most {in_sample["stale_4"].bias.high:.1f}, a weak upper bound. Over all likely answers the bias of the cap is known:
{above(lag.bias)} in `stale_4` and {above(head.bias)} in `stale_head`.

So is the cap worth it? In `stale_4` it costs a bias of {lag.bias.value:.2f} times the exact gradient's length. In
return, the noise of {BATCH} answers falls from {lag.a.noise[0].value:.0f} to {lag.b.noise[0].value:.1f} of these
lengths. The progress $\\eta$ grows significantly in {", ".join(f"`{name}`" for name in helped)} (in `stale_head` by
{above(head.progress[0])}). In the other runs it hardly changes, because hardly any answer is above the cap.

**Do not choose a cap by the answers of one batch.** They underestimate what it saves and do not show what it costs.
""")

# %% [markdown]
# ## Does a cap help a language model?
#
# That is a question for a training run, not for a batch. [Lesson 04](04_threshold.ipynb) answers it with a
# planned study of a real model whose engine is six updates behind: a cap of two on the ratio of each token recovers a
# part of the lost accuracy, and not all of it. **A cap makes old answers less harmful. It does not make them new.**
#
# ## In the app
#
# - [The step of `stale_head`, its gradient over the cap on the
#   products](http://localhost:8501/gradient?run=stale_head&step=40&preset=decoupled_seq_is), measured on all likely
#   answers;
# - [the bench with a tight
#   cap](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&is_upper=1.1): drag it, and see
#   how many tokens it changes;
# - [truncated and masked, with the same
#   bounds](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_icepop&mode=truncate&preset_b=decoupled_token_icepop).
#
# ## Pitfalls
#
# - **A cap is not a clip.** PPO's clip bounds $\pi/p$, and a token beyond it has no gradient. A truncated weight
#   multiplies the gradient of the token, by at most $C$.
# - **One bound or two.** `tis` has one bound in verl and SkyRL and two in OpenRLHF. ROLL's `pg_variant: tis` is
#   something else: it clamps $\pi/p$ to [0, 1]. (`rlcorr/systems/` has a file for each system.)
# - **The effective sample size has the same blind spot.** A batch without a heavy answer shows a large ESS (lesson 01).
#
# ## References
#
# 1. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: truncated importance sampling for the gap between
#    engine and trainer.
# 2. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://richardli.xyz/rl-collapse), 2025: bias bounded
#    by total variation, and variance by χ².
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): `rollout_is`,
#    `rollout_is_threshold`, `rollout_is_batch_normalize`, and the presets used here.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Warm-up
#
# Two questions about older lessons. Choose an answer, then open it.
#
# **1. (Lesson 01) Four answers have the weights 1, 1, 1 and 5. What is their effective sample size?**
#
# <details><summary>4: there are four answers.</summary>No. That would be true of four equal weights.</details>
# <details><summary>About 2.3.</summary>Yes: (1 + 1 + 1 + 5)² / (1 + 1 + 1 + 25) = 64/28. One answer makes most of the
# sum.</details>
# <details><summary>1: only the largest weight counts.</summary>No. The other three still make three eighths of the
# sum.</details>
#
# **2. (Lesson 01) An average over the engine's samples is weighted by r = p/q. What does the weight change?**
#
# <details><summary>The average over all possible samples becomes the trainer's, and the noise grows.</summary>Yes. The
# factor q·r is p.</details>
# <details><summary>Every single sample becomes correct.</summary>No. Only the average over all possible samples is
# correct. A single sample may be far from it.</details>
# <details><summary>Nothing, because ratios average to 1.</summary>No. They average to 1, but they differ from each
# other, so they count some samples more than others.</details>
#
# ### Exercise 1: truncated weights
#
# *4 minutes.* Return the weights of a padded batch, `(B, T)`. The weight of a token is its ratio, trainer over engine.
# A ratio outside of the bounds moves to the nearer bound. On padding the weight is 0. `lower` may be `None`: then there
# is no lower bound. Keep your function: it is piece 2 of `mini.py`, the training loop that lesson 01 began. Write it
# below the line "Lesson 03".
#
# <details><summary>Hint 1</summary>torch.clamp accepts None for a bound that does not exist.</details>
# <details><summary>Hint 2</summary>Padding may contain nan, and nan · 0 is nan. So do not multiply by the mask: use
# torch.where, as the last operation.</details>


# %%
def capped(trainer_logp, engine_logp, mask, lower, upper):
    raise NotImplementedError("exercise 1: write capped, then run this cell and the next.")


# %% tags=["check"]
check(capped, WEIGHTS)


# %% tags=["solution", "hide-input"]
def capped_solution(trainer_logp, engine_logp, mask, lower, upper):
    r = (trainer_logp - engine_logp).exp()
    return torch.where(mask, r.clamp(lower, upper), 0)


# %% tags=["solution", "hide-input"]
check(capped_solution, WEIGHTS)

# %% [markdown]
# ### Exercise 2: is the cap worth it?
#
# *5 minutes.* Return the squared error, bias² + variance/N, of the truncated average over N samples; `draws` is N. Then
# try different N: from how many samples on is a cap of 1.8 worse than no cap for the three actions?
#
# <details><summary>Hint 1</summary>Equation (1) gives the bias. The variance of one sample is
# E[(wf)²] − E[wf]².</details>
# <details><summary>Hint 2</summary>With a cap of 1.5 both are equal at 20 samples. A looser cap stays better for more
# samples.</details>


# %%
def squared_error(p, q, f, cap, draws):
    raise NotImplementedError("exercise 2: write squared_error, then run this cell and the next.")


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
# ### Check yourself
#
# **1. All rewards are ≥ 0. You raise the cap from 2 to 5. What happens to the weighted average reward?**
#
# <details><summary>Its expectation falls.</summary>No. Weights above 2 grow, all others stay the same, and no reward is
# negative.</details>
# <details><summary>Its expectation rises towards the trainer's average, and its variance usually rises,
# too.</summary>Yes.</details>
# <details><summary>Its expectation stays the same: importance sampling is unbiased.</summary>No. Only the weight
# without a cap is unbiased.</details>
#
# **2. You change from 256 to 2,048 answers per step. Should the cap change?**
#
# <details><summary>No: the mismatch is the same as before.</summary>The mismatch is, but the noise is not. With eight
# times the answers, the bias is a larger part of the error.</details>
# <details><summary>It may be tighter, since there is more data.</summary>No, the other way round. A tight cap buys
# lower noise with bias; with more data there is less noise to remove.</details>
# <details><summary>It may be looser.</summary>Yes. How much looser depends on the policies: measure it.</details>
#
# **3. From one batch, the noise of the gradient changes by −0.03 [−0.11, 0.00], and the interval of the bias is [0, 8].
# What do you know?**
#
# <details><summary>The cap saves almost no noise, and costs no bias.</summary>No. Both intervals are about the answers
# in this batch. Answers with huge weights are rare, and the batch probably contains none.</details>
# <details><summary>The bias is at most about 8 on these answers, a weak upper bound. How much noise the cap saves over
# all answers is not known: probably more.</summary>Yes. The answers that make most of the noise are rare.</details>
# <details><summary>The bias is 4, the middle.</summary>No. The middle of an interval is no estimate. Its upper end is a
# result: the bias is hardly larger.</details>

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. You do not need them to follow the lessons.

# %% [markdown]
# ### The equation and its slopes, with symbols
#
# Take three actions, any policies and any $f$. If $C$ grows a little, only the weights that equal $C$ grow with it. So
#
# $$ \frac{d\,\text{bias}}{dC} = \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f\big], \qquad
#    \frac{d\,\mathbb{E}_q[(w f)^2]}{dC} = 2 C\, \mathbb{E}_q\big[\mathbf{1}_{r > C}\, f^2\big] \ge 0 . \tag{3} $$
#
# The second moment always grows with the cap. If $f \ge 0$, the size of the bias always shrinks. If $f$ has both signs,
# contributions from above the cap may cancel, and the bias may grow before it falls to 0.
#
# Any subset of the three actions may be above the cap. The cell tries all eight.

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
# ### Why some cap is usually better than none
#
# Let $a$ be the action with the largest ratio, and the only one above the cap. The slope of the variance at $C = r_a$
# is
#
# $$ 2\, q_a f_a \,\big(r_a f_a - \mathbb{E}_p[f]\big) , $$
#
# while the slope of bias² is 0 there. If the slope of the variance is above 0, then a slightly lower cap makes the
# error smaller, for every $N$. That is so if $r_a f_a$, the contribution of $a$, is larger than the average. For
# gradients it usually is, because one answer with a large weight contributes more than the mean of all. If the action
# with the largest ratio had a small $f$, a cap would make the error larger.
#
# By hand: of the three actions Z contributes 8, and the average is 2.25. The best cap is $(8N + 1)/(4N + 12)$, which
# grows towards the largest ratio, 2.

# %%
wf = [R[0] * F[0], R[1] * F[1], C * F[2]]  # the weight of the last action equals the cap
slope = sympy.diff(average([x**2 for x in wf]) - average(wf) ** 2, C).subs(C, R[2])
trainer = sympy.Add(*(p_a * f_a for p_a, f_a in zip(P, F, strict=True)))
assert vanishes(slope - 2 * Q[2] * F[2] * (R[2] * F[2] - trainer))

of_three = dict(zip((*Q, *P, *F), [value for x in (q, p, f) for value in map(sympy.Rational, x.tolist())], strict=True))
mean, square = (average(values).subs(of_three) for values in (wf, [x**2 for x in wf]))
squared = (mean - trainer.subs(of_three)) ** 2 + (square - mean**2) / N
(best,) = sympy.solve(sympy.diff(squared, C), C)
assert sympy.simplify(best - (8 * N + 1) / (4 * N + 12)) == 0
show("samples", 5, 20, 100, 1000)
show("best cap", [float(best.subs(N, draws)) for draws in (5, 20, 100, 1000)])

# %% [markdown]
# ### A rule that needs no example
#
# $(r - 2C)^2 \ge 0$ means that $r - C \le r^2/(4C)$. So $|\text{bias}| \le F (1 + \chi^2)/(4C)$. With the bound of the
# variance,
#
# $$ \text{error}^2 \le F^2 \left( \Big(\frac{1 + \chi^2}{4C}\Big)^2 + \frac{C}{N} \right), \qquad
#    \text{smallest at } C = \left(\frac{(1 + \chi^2)^2\, N}{8}\right)^{1/3} . $$
#
# With eight times the batch, this cap doubles. It comes from a bound for the worst possible $f$, so the number itself
# is rough.
#
# At $C = 1$, the cap takes away the probability $\mathbb{E}_q[(r - 1)^+] = \sum (p - q)^+$. This is the **total
# variation** between the policies: how much probability must be moved to turn one policy into the other. So the bias of
# a cap of 1 or more is at most $F$ times the total variation.

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
# This cell checks equation (1) with autograd, for the gradient of a softmax, in float64. The last two lines check the
# two bounds.

# %%
generator = torch.Generator().manual_seed(5)
logits_p, logits_q = torch.randn(2, 1000, 3, dtype=torch.float64, generator=generator)
rewards = torch.randn(1000, 3, dtype=torch.float64, generator=generator)
cap_of = 0.5 + 2 * torch.rand(1000, 1, dtype=torch.float64, generator=generator)
p3, q3 = logits_p.softmax(-1), logits_q.softmax(-1)
r3 = p3 / q3


def gradient(counted):
    """Gradient of each trainer's objective, with its actions counted so often; the trainers are independent."""
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
# First, equation (1) for the gradient of a world's answers. Then progress, bias and noise over the cap, all exact, for
# the middle one of the batch sizes above. Bias and noise are in units of the exact gradient's length. **Look for** the
# maximum of the progress. The dotted line is the common cap, two.

# %%
toy = small_world(1.0, seed=2)
setting = toy.where, toy.policies, toy.advantages
q_all, p_all = probabilities(toy.where, toy.policies.rollout), probabilities(toy.where, toy.policies.old)
leaf = toy.policies.theta.clone().requires_grad_()
above_cap = q_all * (p_all / q_all - 2).clamp(min=0)
taken = torch.autograd.grad((above_cap * toy.advantages * log_probs(toy.where, leaf).sum(-1)).sum(), leaf)[0]
exact, at_cap = (
    gradient_truth(*setting, replace(no_cap, rollout_is_threshold=cap), per_answer) for cap in (math.inf, 2.0)
)
show("answers", len(q_all), "with r > 2:", int((p_all / q_all > 2).sum()))
show("χ² of the answers", float((p_all.square() / q_all).sum() - 1), digits=2)
show("bias with C = 2, of the gradient", at_cap.relative_bias)
show("variance, C = 2 over no cap", at_cap.variance / exact.variance)
assert exact.relative_bias < 1e-12
assert torch.allclose(at_cap.expectation - exact.expectation, -taken, rtol=0, atol=1e-12)

in_one_world = toy_sweep(toy, no_cap, [2 ** (k / 4) for k in range(1, 32)], sizes[2])
lines = {"progress η": in_one_world.progress, "bias": in_one_world.bias, "noise": in_one_world.noise}
picture(curves(in_one_world.thresholds, lines, x_name="cap C", y_name="η; bias and noise in units of ‖g*‖", log="x",
               marks=[2.0]))  # fmt: skip

# %% [markdown]
# ### Lower bounds
#
# A **lower bound** $\ell$ raises the weights below it. By the same steps its bias is $+\mathbb{E}_q[(\ell - r)^+ f]$.
# Small weights make little noise, so a lower bound saves little. For the three actions:

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
# Masking has the smallest error for a single sample. From two samples on its error is larger than that of truncation,
# because its bias stays. Masking has another use: a huge ratio may be the result of a defect, a broken token. Equation
# (1) then has no meaning for it, and dropping the token is right.
#
# ### Two estimates of one number
#
# $\mathbb{E}_q[(r - 1)^+]$ is the total variation, and so is $\mathbb{E}_q[(1 - r)^+]$, because ratios average to 1.
# The table has both for all recorded tokens of three runs, with standard errors (the unit of *apart by*).

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
The two estimates agree within two standard errors in each run. But in `kv_fp8_e5m2` and `stale_4` the standard error of
the first is {quotient["kv_fp8_e5m2"]:.1f} and {quotient["stale_4"]:.1f} times that of the second. If the engine hardly
ever samples a token that the trainer would often sample, its ratio is huge. If no such token is in the sample, its part
of the average is missing, and the standard error does not show that. A cap acts on exactly these tokens. Ratios below 1
have no such tail.
""")

# %% [markdown]
# ### A run whose answers had to be sampled
#
# `kv_fp8_e5m2` has too many possible answers to list them. Its cap can only be measured on the batch of a step, which
# is a sample. So the numbers have the blind spot of this lesson: they do not contain what rare answers would add.

# %%
run = runs.find_run("kv_fp8_e5m2")
batch, sketch = updated_batch(run, 48), read_sketch(run, 48)
effect = compare_gradients(batch, sketch, no_cap, cap_of_2, batch_sizes=[128])
heavy = int((correct(batch, no_cap).weights.amax(-1) > 2).sum())
show("a cap of 2", "answers", "above 2", "noise changes by".rjust(22), "bias grows by".rjust(20))
show("batch", len(batch.response_mask), heavy, bracketed(effect.noise[0]).rjust(22), bias_text(effect.bias).rjust(20))

# %% [markdown]
# For the bias only an upper limit is known. The report estimates the square of the bias, minus the part of it that is
# noise. If the result is below 0, it takes 0. So the interval begins at 0, and only its upper end is a result.
#
# Which cap is the best on this step?

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
The best cap is {bracketed(best_cap)}; the tightest cap that was tried is {tried[0]:.2f}. The best one cannot be
distinguished from no weights at all: the difference of the progress is {untold(choice.over_nothing)}.
""")
