# %% [markdown]
# # 13 · Silent bugs: fourteen patients
#
# **Claim.** A wrong number in the training loop rarely causes a crash. For each of fourteen bugs we can derive a view
# that shows it. Planted in every recorded step, some bugs are found nearly always, and others only if the gap is of the
# right size. The mean ratio, which everybody watches, misses most of them.
#
# *75 minutes · advanced · any laptop; no GPU, no network.* You need the ratio and its average (lesson 00), the noise
# of an average (lesson 01), and rejection (lesson 08). [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - derive the trace that each of fourteen bugs leaves, and say in which view to look for it;
# - distinguish a bug from a gap: a healthy engine differs from the trainer, too;
# - write alarms, and judge them by hits and false alarms on steps that had no part in their choice;
# - say which bug no pair of log-probs can show, and which number on the dashboard shows it.

# %% tags=["hide-input"]

import sympy
import torch
from exercises.bugs import DIAGNOSE, MOVED, UPSIDE_DOWN, diagnosed_at_once
from exercises.patients import (
    GROUP,
    LOOP_PLANTS,
    MICROBATCHES,
    PLANTS,
    TREATMENT,
    pairs_of,
    treated,
)
from sentences import below, reveal, say
from show import picture, show

from rlcorr import TokenBatch
from rlcorr.analysis.log_prob_pairs import logits, median_slope, tokens_of
from rlcorr.analysis.pair_faults import shift
from rlcorr.analysis.triage import stale_tensor, temperature, triage
from rlcorr.correction import old_log_probs
from rlcorr.figures.canvas import KEPT, fade, figure
from rlcorr.figures.mismatch import by_position
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

torch.set_num_threads(1)


# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 08) A loss is averaged over tokens, and half of the tokens are rejected. When does rejection make the
# gradient smaller?**
#
# <details><summary>If the sum is divided by the number of all tokens.</summary>Yes. The rejected tokens add 0 to the
# sum and still count in the denominator. So the gradient is multiplied by the kept share.</details>
# <details><summary>If the sum is divided by the number of kept tokens.</summary>No. Then the average is over the kept
# tokens, whatever their number.</details>
#
# **2. (Lesson 01) The mean ratio of a step is 0.97, and its standard error is 0.005. Is $q$ wrong?**
#
# <details><summary>Yes: 0.97 is six standard errors below 1.</summary>Not necessarily. If rare tokens have large
# ratios, a sample often contains none of them. Then its mean is too low, and its standard error does not know
# it.</details>
# <details><summary>It may be. Rare tokens with large ratios may also be missing from the sample.</summary>Yes. An
# interval knows only what was sampled. Look whether any ratio is above 1. After a cut nearly none is.</details>
#
# ## What is silent
#
# A loop of reinforcement learning has many places at which a wrong number looks as good as the right one. No shape is
# wrong, and nothing is infinite. The reward grows a little more slowly, or the run collapses after two days. Here are
# fourteen such bugs. A **view** is one number that measures one property of a batch. Each view was derived for one bug.
#
# Some views look at **log-odds**. For a token with the probability $q$, let $x = \log\frac{q}{1-q}$ be the log-odds of
# the engine, and let $o = \log\frac{p}{1-p} - x$ be the gap between the trainer's log-odds and these. The table uses
# four more letters:
#
# - $\tau$, the temperature at which the engine samples;
# - $H'$, an entropy of all tokens except the drawn one, which is between 0 and the logarithm of their number;
# - $\Delta$, by how much the output head of the trainer has moved the logit of this token since the engine's head was
#   copied;
# - $C$, the cap of the weights.
#
# The appendix has the proofs.
#
# | bug | what was done | view | because |
# |---|---|---|---|
# | **shift by one** | $p$ is divided by $q$ of the token before | neighbours | moving a list back ends the gap |
# | **upside down** | $q/p$ is used as the ratio | direction | $\mathbb{E}_q[d] = -\mathrm{KL}(q\Vert p) \le 0$ |
# | **wrong temperature** | $\log q$ is computed without $\tau$ | slope | $o = (1/\tau-1)(x+H')$: nearly a line |
# | **padding counted** | averages include the padding | count | more tokens than were written |
# | **bf16 subtraction** | log-probs are rounded before they are subtracted | digits | all are bfloat16 numbers |
# | **mask off by one** | the mask begins at the last token of the prompt | position | the engine did not draw it |
# | **stale head** | the engine's head was not updated | token | $p \propto q\, e^{\Delta}$: $o$ depends on the id |
# | **weights twice** | the loss is weighted, and so was the advantage | weights | $(\min(r, C))^2$ reaches $C^2$ |
# | **wrong denominator** | kept tokens in place of all (lesson 08) | scale | a loss of 1 must become the kept share |
# | **dropped field** | one micro-batch lacks $q$ and is not corrected | unweighted | the weight is 1 only if $r = 1$ |
# | **stale experts** | one micro-batch is scored with experts of another | micro-batch | the others have no such gap |
# | **zeros filled in** | missing $\log q$ became 0 | zeros | $\log q = 0$ says that the engine was certain |
# | **ones filled in** | missing ratios became 1 | equal | two programs rarely agree to the last bit |
# | **whole advantages** | integer rewards made integer advantages | zero sum | advantages of a group sum to 0 |
#
# The last five come from public reports and from this project. We retell them here and plant them in our own data:
#
# - **Dropped field and stale experts.** A system cuts each step into micro-batches. If the ranks have different numbers
#   of them, padding micro-batches are added. In [SkyRL's pull request
#   1811](https://github.com/NovaSky-AI/SkyRL/pull/1811) these lacked the new field with the engine's log-probs. And
#   they had no list of experts, so the router still had the list of the micro-batch before. There both faults stopped
#   one process (rank) with an error, and the other ranks waited for it. The patients here are the quiet forms of the
#   same faults: code that goes on without a correction if the field is missing, and an old list of experts that happens
#   to have the right shape.
# - **Zeros filled in.** The engine's log-probs of some turns were missing, and 0 took their place ([rLLM's issue
#   816](https://github.com/rllm-org/rllm/issues/816)).
# - **Ones filled in.** If the engine's logits are invalid, a whole row has no log-probs. Taken as a ratio of 1, such a
#   row looks like perfect agreement ([TRL's pull request 6693](https://github.com/huggingface/trl/pull/6693)).
# - **Whole advantages.** Rewards of 0 and 1 are integers ([NeMo RL's issue
#   1518](https://github.com/NVIDIA-NeMo/RL/issues/1518) shows some). An early version of this library kept their type
#   when it normalised them, and so it cut the fractions off.
#
# ## By hand: two of them
#
# **A list that is one too long.** There are three actions X, Y, Z. Engine and trainer agree to the last digit: both
# draw them with ½, ¼, ¼. All ratios are 1. Now the engine's list of log-probs begins with a placeholder that nobody
# removed. So each token is divided by the probability of the token **before** it. After X the ratios of X, Y, Z are 1,
# ½, ½; after Y or Z they are 2, 1, 1. The next token is X with probability ½, and Y or Z with ½ together. So the
# averages are ½·1 + ½·½ = ¾ after X, and ½·2 + ½·1 = 3/2 after Y or Z. The token before is X in half of the cases. So
# the mean ratio is ½·¾ + ½·3/2 = 9/8, although the two programs agree. In general, if tokens do not depend on each
# other, and $V$ is the number of tokens in the vocabulary,
#
# $$ \mathbb{E}\!\left[\frac{p(a_t)}{q(a_{t-1})}\right] = \sum_b q(b)\,\frac{1}{q(b)} \cdot \sum_a q(a)\,p(a)
# = V \sum_a p(a)\, q(a) . $$
#
# For $p = q$ this is $V \sum_a q(a)^2 \ge 1$. It is 1 only if all actions are equally probable.
#
# **Advantages as whole numbers.** A group has the rewards 1, 0, 0, 0. Their mean is ¼ and their standard deviation ½.
# So the advantages are 1.5, −0.5, −0.5, −0.5, and their sum is 0. As integers they are 1, 0, 0, 0. The three wrong
# answers now teach nothing, and the sum is 1.
#
# ## The control
#
# The patients are copies of one step of a real run: `kv_fp8_e5m2`, running sums with a coarse KV cache. Nothing is
# planted in the original, the **control**. All are treated in the same way. Each token gets the weight $\min(r, C)$,
# and answers are rejected if the geometric mean of their ratios is far from 1. A step has four micro-batches.


# %%
def d_of(patient):
    """d of the real tokens, in float64."""
    tokens = tokens_of(patient.batch)
    return tokens.old - tokens.rollout


def in_errors(x):
    """The mean in its standard errors."""
    return float(x.mean()) / max(float(x.std()) / len(x) ** 0.5, 1e-300)


def kept(patient):
    return float(patient.result.keep_mask.sum()) / float(patient.batch.response_mask.sum())


# %%
record = runs.read_step(runs.find_run("kv_fp8_e5m2"), 48)
control = treated(record.batch)
d = d_of(control)
show("answers, tokens", len(record.responses), len(d))
show("mean ratio", float(ratio(d).mean()), "in errors from 1", in_errors(ratio(d) - 1), digits=3)
show("k3, share kept", float(k3(d).mean()), kept(control))
assert abs(in_errors(ratio(d) - 1)) < 2

# %% [markdown]
# The control is not healthy in the sense of *no gap*. It has a **mismatch**, and corrections are made for that. A
# **bug** is something else: the numbers are not the probabilities that they are said to be.
#
# ## Predict, then reveal
#
# Each bug is planted into a copy of the control. **Write down a guess:**
#
# 1. For how many of the fourteen is the mean ratio more than three standard errors from 1?
# 2. For how many is k3 more than twice that of the control?
# 3. The treatment rejects answers by their geometric mean. In the shifted patient the ratio of every token is wrong.
#    What share of the tokens does the treatment keep?
#
# The columns of the table: the distance of the mean ratio from 1, in standard errors; k3; the share of the tokens that
# the treatment keeps.

# %%
patients = {bug: plant(record.batch) for bug, plant in PLANTS.items()}
far, size = {}, {}
show("patient", "in errors", "k3", "kept")
for bug, patient in {"nothing": control, **patients}.items():
    far[bug], size[bug] = in_errors(ratio(d_of(patient)) - 1), float(k3(d_of(patient)).mean())
    show(bug, f"{far[bug]:+.1f}", f"{size[bug]:.4f}", f"{kept(patient):.2f}")

# %% tags=["hide-input"]
ringing = [bug for bug in PLANTS if abs(far[bug]) > 3]
large = [bug for bug in PLANTS if size[bug] > 2 * size["nothing"]]
assert kept(patients["shift by one"]) > 0.98 * kept(control)
assert kept(patients["mask off by one"]) == 0
reveal(f"""
1. For {len(ringing)}: {", ".join(ringing)}.
2. For {len(large)}: {", ".join(large)}. But neither alarm says *what* is wrong.
3. It keeps {kept(patients["shift by one"]):.2f} of the tokens, nearly the same as of the control,
   {kept(control):.2f}. The shift moves every $q$ to the next token. So the sum of $\\log p - \\log q$ over an answer
   contains the same numbers as before, except for one $\\log q$ at either end. **Rules for whole answers do not see a
   shift.** The wrong mask is the opposite case: one token with $d = -16$ moves the geometric mean of the whole answer
   so far that every answer is rejected.
""")

# %% [markdown]
# ## Fourteen views
#
# Each view is a number with a bound. At or above the bound the alarm rings.
#
# - **neighbours**: the share of $\sum|d|$ that disappears if one list is moved by a token;
# - **direction**: the mean of $d$, in its standard errors;
# - **slope**: the share of the tokens that one temperature explains;
# - **count**: the tokens under the mask, minus the characters and the ends of answers that were written;
# - **digits**: the share of the uncertain tokens whose log-probs are both bfloat16 numbers;
# - **position**: take the median of $d$ at every position; the largest of their absolute values;
# - **token**: the share of the variance of $o$ that the token id explains;
# - **weights**: the largest weight, divided by the cap;
# - **scale**: what the loss makes of a loss of 1 per token, minus the kept share;
# - **unweighted**: the share of tokens with a gap whose weight is exactly 1;
# - **micro-batch**: take the median of $|o|$ in each of the four micro-batches; the largest one, divided by the median
#   of the other three;
# - **zeros**: the share of tokens with $\log q = 0$ to which the trainer gives less than one half;
# - **equal**: the share of the uncertain tokens whose two log-probs are equal to the last bit;
# - **zero sum**: the largest mean of the advantages in a group.


# %% tags=["hide-input"]
def strength(finding):
    return finding.strength if finding else 0.0


def share_of(which, among):
    """The share of the tokens among these for which something is true; 0 if there are none."""
    return float(which[among].double().mean()) if bool(among.any()) else 0.0


def digits(it, _):
    tokens = tokens_of(it.batch)
    on_grid = [log_probs == log_probs.bfloat16().double() for log_probs in (tokens.old, tokens.rollout)]
    return share_of(on_grid[0] & on_grid[1], (tokens.old != 0) & (tokens.rollout != 0))


def position(it, _):
    d, mask = it.result.log_ratio.double(), it.batch.response_mask
    columns = [d[:, t][mask[:, t]] for t in range(d.shape[1]) if int(mask[:, t].sum()) >= 5]
    return max(abs(float(column.median())) for column in columns)


def unweighted(it, _):
    mask = it.batch.response_mask
    return share_of(it.result.weights[mask] == 1, it.result.log_ratio[mask].abs() > 1e-3)


def microbatch(it, _):
    sizes = []
    for rows in torch.arange(len(it.batch.response_mask)).tensor_split(MICROBATCHES):
        _, o, _ = logits(tokens_of(it.batch.rows(rows)))
        sizes.append(float(o.abs().median()) if len(o) else 0.0)
    return max(sizes) / max(sorted(sizes)[1], 1e-12)  # the median of the other three


def zeros(it, _):
    tokens = tokens_of(it.batch)
    return float(((tokens.rollout == 0) & (tokens.old.exp() < 0.5)).double().mean())


def equal(it, _):
    tokens = tokens_of(it.batch)
    return share_of(tokens.old == tokens.rollout, tokens.old < -0.01)


def zero_sum(it, _):
    groups = it.advantages[: len(it.advantages) // GROUP * GROUP].double().view(-1, GROUP)
    return float(groups.mean(1).abs().max())


def tokens_written(record):
    """One token per character, and the end; an answer that was cut off has no end."""
    return sum(len(text) + 1 for text in record.responses)


VIEWS = {  # name: (a number of a patient and of how much was written, from which value on it rings)
    "neighbours": (lambda it, _: strength(shift(it.batch)), 0.5),
    "direction": (lambda it, _: in_errors(d_of(it)), 3),
    "slope": (lambda it, _: strength(temperature(tokens_of(it.batch))), 0.8),
    "count": (lambda it, written: int(it.batch.response_mask.sum()) - written, 1),
    "digits": (digits, 0.5),
    "position": (position, 3),
    "token": (lambda it, _: strength(stale_tensor(tokens_of(it.batch))), 0.4),
    "weights": (lambda it, _: float(it.result.weights.max()) / TREATMENT.rollout_is_threshold, 1.001),
    "scale": (lambda it, _: it.loss_of_ones - kept(it), 1e-6),
    "unweighted": (unweighted, 0.05),
    "micro-batch": (microbatch, 2),
    "zeros": (zeros, 0.001),
    "equal": (equal, 0.15),
    "zero sum": (zero_sum, 1e-3),
}


def heatmap(shares, texts, rows, name):
    """One cell per row and view: the deeper the green, the larger the share."""
    heat = {"type": "heatmap", "name": name, "z": shares, "x": list(VIEWS), "y": rows, "text": texts}
    heat |= {"texttemplate": "%{text}", "textfont": {"size": 9}, "zmin": 0, "zmax": 1, "showscale": False}
    heat |= {"colorscale": [[0, fade(KEPT, 0.0)], [1, KEPT]]}
    x, y = {"title_text": "view", "side": "top", "tickangle": -45}, {"autorange": "reversed", "dtick": 1}
    drawn = figure([heat], height=150 + 22 * len(rows), x=x, y=y)
    return drawn.update_layout({"margin.l": 130, "margin.t": 110, "margin.r": 40})


# %% [markdown]
# The picture has the control and its fourteen copies in rows, and the values of all views in columns. In a green cell
# the alarm rings.

# %% tags=["hide-input"]
written = tokens_written(record)
seen = {
    bug: {name: float(look(patient, written)) for name, (look, _) in VIEWS.items()}
    for bug, patient in {"nothing": control, **patients}.items()
}
rung = [[float(values[name] >= bound) for name, (_, bound) in VIEWS.items()] for values in seen.values()]
texts = [["0" if abs(x) < 5e-4 else f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}" for x in values.values()]
         for values in seen.values()]  # fmt: skip
picture(heatmap(rung, texts, list(seen), "rings"))

# %% [markdown]
# The next picture has the first ten positions of the patient with the wrong mask. The lines are the median and the mean
# of the ratios at each position. The grey band contains nine tenths of the ratios: it leaves out the lowest and the
# highest twentieth. **Look for** the first position. Its median and its mean are far below 1, and every other median is
# at 1.

# %%
begin = patients["mask off by one"].batch
parts = (old_log_probs(begin), begin.rollout_log_probs, begin.response_mask)
first_ten = TokenBatch.from_log_probs(*(part[:, :10] for part in parts))
picture(by_position(first_ten).update_layout({"yaxis.title.text": "ratio p/q"}))

# %% [markdown]
# ## On every recorded step
#
# One step proves little, because bounds can be fitted to it. So plant each bug in **every** step of **every** committed
# run of a tiny model, and compute all fourteen views with the same bounds. The last two rows are steps without a
# planted bug: those of healthy runs, and those of the three runs that have a bug of their own (`top_p`,
# `temperature_raw`, `stale_head`). The number in a cell is the share of the steps, in per cent, on which a view rings;
# the deeper the green, the larger the share. **Look for** the diagonal, which has the hits. Then look for colour in the
# last row but one, which has the false alarms.

# %% tags=["hide-input"]
SICK = ("top_p", "temperature_raw", "stale_head")
HEALTHY, ILL = "nothing, healthy", "nothing, sick run"
ALL = sorted(run.name for run in runs.ROOT.iterdir() if (run / "steps").is_dir())
RUNS = [name for name in ALL if "smol_" not in name]  # some bugs are planted where a token is a character
rings = {row: [] for row in (*PLANTS, HEALTHY, ILL)}  # one list of truths per step
mean_rings = {row: [] for row in rings}
for name in RUNS:
    run = runs.find_run(name)
    for step in runs.list_steps(run):
        one = runs.read_step(run, step)
        here = {bug: plant(one.batch) for bug, plant in PLANTS.items()}
        here[ILL if name in SICK else HEALTHY] = treated(one.batch)
        for row, patient in here.items():
            rings[row].append([look(patient, tokens_written(one)) >= bound for look, bound in VIEWS.values()])
            mean_rings[row].append(abs(in_errors(ratio(d_of(patient)) - 1)) > 3)
rates = torch.stack([torch.tensor(steps, dtype=torch.float64).mean(0) for steps in rings.values()])
picture(
    heatmap(rates.tolist(), [[f"{100 * x:.0f}" for x in row] for row in rates.tolist()], list(rings), "share of steps")
)

# %% tags=["hide-input"]
of_view = {bug: [step[place] for step in rings[bug]] for place, bug in enumerate(PLANTS)}
hits = {bug: sum(truths) for bug, truths in of_view.items()}
steps_of = len(rings["upside down"])
false = [sum(step[place] for step in rings[HEALTHY]) for place in range(len(VIEWS))]
others = [sum(step[place] for row in PLANTS for step in rings[row]) - hits[bug] for place, bug in enumerate(PLANTS)]
often = [bug for bug in PLANTS if hits[bug] >= 0.9 * steps_of]
seldom = [bug for bug in PLANTS if hits[bug] < 0.9 * steps_of]
by_mean = {row: sum(truths) for row, truths in mean_rings.items()}
missed = [bug for bug in PLANTS if by_mean[bug] < steps_of / 2]
assert len(missed) > len(PLANTS) / 2
by_view = dict(zip(VIEWS, map(sum, zip(*rings[ILL], strict=True)), strict=True))
assert {view for view, count in by_view.items() if count} == {"token", "slope"}
assert {view for view, count in zip(VIEWS, false, strict=True) if count} <= {"equal"}
lines = "\n".join(
    f"| {bug} | {view} | {hits[bug]} of {steps_of} | {false[place]} of {len(rings[HEALTHY])} | "
    f"{others[place]} of {steps_of * (len(PLANTS) - 1)} | "
    f"{by_mean[bug]} of {steps_of} |"
    for place, (bug, view) in enumerate(zip(PLANTS, VIEWS, strict=True))
)
say(f"""
{len(RUNS)} runs, {steps_of} steps:

| bug | its view | hits | false alarms on healthy steps | rings for other bugs | mean ratio rings |
|---|---|---|---|---|---|
{lines}

**Found on nine steps of ten, or more**: {", ".join(often)}.

**Found less often**: {", ".join(seldom)}.

- *Direction* and *weights* need a large gap. The mean of $d$ is minus the KL, which grows like the square of the gap.
  Its standard error grows like the gap itself. So with a small gap the mean is lost in its error. And a squared weight
  can be above the cap only if some ratio is above the square root of the cap.
- *Scale* needs rejected tokens, and *unweighted* needs a gap.
- *Micro-batch* needs a small gap: if all micro-batches have a large gap already, the one with wrong experts is hardly
  different from the others.
- *Equal* rings on the healthy steps of `control_fp32`. Both of its programs compute in float32, and their log-probs are
  often equal. So this view needs two different number formats.

For {len(missed)} of the fourteen bugs, the mean ratio rings on fewer than half of the steps.

The sick runs have {len(rings[ILL])} steps, and some view rings on {sum(any(step) for step in rings[ILL])} of them: on
those of `stale_head` it is *token*, which is right; on those of `top_p` it is *slope*, which is a wrong name for a cut.
On the steps of `temperature_raw` no view rings. A later section is about this run.
""")

# %% [markdown]
# ## On steps that had no part in the choice
#
# These rates look better than they are. Steps of one run are similar, so they are not so many independent tests. And
# all bounds were set by people who had seen these steps. *Count*, *digits* and *position* even replaced first versions
# that had rung on healthy steps of these runs. So here is a fairer test: the recorded steps of a real language model,
# `SmolLM2-135M`. None of them was used to set a bound, with one exception: the bound of *token* was raised after the
# four steps of `smol_stale_6` had exceeded it. Only five of the bugs can be planted there. The others need a model
# whose tokens are single characters.

# %% tags=["hide-input"]
place_of = {bug: place for place, bug in enumerate(PLANTS)}
real_hits, real_false, real_steps, sick_steps = dict.fromkeys(LOOP_PLANTS, 0), dict.fromkeys(VIEWS, 0), 0, 0
for name in (name for name in ALL if "smol_" in name):
    run = runs.find_run(name)
    for batch in (runs.read_step(run, step).batch for step in runs.list_steps(run)):
        if name == "smol_top_p":  # its engine cuts, and its trainer does not
            sick_steps += 1
            continue
        real_steps += 1
        healthy = treated(batch)
        for view, (look, bound) in VIEWS.items():
            real_false[view] += view != "count" and look(healthy, 0) >= bound
        for bug in LOOP_PLANTS:
            look, bound = list(VIEWS.values())[place_of[bug]]
            real_hits[bug] += look(PLANTS[bug](batch), 0) >= bound
views = list(VIEWS)
lines = "\n".join(f"| {bug} | {views[place_of[bug]]} | {real_hits[bug]} of {real_steps} |" for bug in LOOP_PLANTS)
alarms = ", ".join(f"{view} on {count}" for view, count in real_false.items() if count) or "none"
say(f"""
| bug | its view | hits on the real model |
|---|---|---|
{lines}

False alarms of all views except *count* on these {real_steps} steps without a planted bug: {alarms}. (The {sick_steps}
steps of `smol_top_p` are left out, because its engine really cuts.)
""")

# %% [markdown]
# **A view is a hint where to look.** Set its bound on healthy steps of your own run, and count its false alarms on
# other steps.
#
# The patient *stale experts* was planted as random shifts of the logits. Lesson 15 gives a real router the experts of
# another micro-batch. There, too, the gap of this micro-batch becomes large, and all others keep theirs.
#
# ## Exercise 1: the sign that cannot be
#
# *5 minutes.* You get $d$ of the tokens of a batch, `(N,)`, from a loop that you do not trust. Return `True` if the
# ratio is upside down: if the mean of $d$ is more than three of its standard errors above 0.
#
# <details><summary>Hint 1</summary>The standard error of a mean is the standard deviation divided by √N.</details>
# <details><summary>Hint 2</summary>A mean far below 0 is healthy. <code>d.std()</code> divides by N − 1, and this is
# right.</details>


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
# ## The bug that no pair shows
#
# `temperature_raw` is a real run with a classic mistake. It samples at one temperature, and **both** programs compute
# their log-probs at another. The two log-probs agree very well, but they are those of a policy that sampled nothing.

# %%
raw = runs.find_run("temperature_raw")
finding = triage(runs.read_step(raw, runs.list_steps(raw)[-1]).batch)[0]
settings = runs.read_manifest(raw).config["rollout"]
show("triage says", finding.pattern)
show("mean ratio", finding.numbers["mean_ratio"], "±", finding.numbers["mean_ratio_error"])
for key in ("temperature", "log_probs", "trainer_temperature"):
    show(f"manifest: {key}", str(settings[key]))
assert finding.pattern == "precision"
assert settings["temperature"] != settings["trainer_temperature"]

# %% [markdown]
# **No function of the pairs** can find it, because they are perfectly good pairs of another policy. But every dashboard
# has a number that is no function of the pairs: the **entropy** $H$, which the trainer computes from all probabilities
# at a position. It is the average of $-\log p$ over tokens sampled from $p$. If the engine samples from $q$, and $q$ is
# nearly $p$, then the mean of $-\log q$ over the sampled tokens must be near $H$ (lesson 06). If the tokens were
# sampled at a lower temperature, likely tokens are sampled too often. Then the mean of $-\log q$ is below $H$.
#
# The table has the mean of $-\log q$ minus $H$ for the last recorded step of some runs, with its 95 % interval. The
# interval takes each answer as one sample.


# %% tags=["hide-input"]
def surprise_minus_entropy(name, step):
    """Mean of −log q over the drawn tokens minus the trainer's entropy, with its interval by answers."""
    run = runs.find_run(name)
    batch, mask = (one := runs.read_step(run, step).batch), one.response_mask
    tokens, totals = mask.sum(-1), torch.where(mask, -batch.rollout_log_probs.double(), 0).sum(-1)
    mean, n = float(totals.sum() / tokens.sum()), len(tokens)
    error = float((totals - mean * tokens).square().sum().sqrt() / tokens.sum()) * (n / (n - 1)) ** 0.5
    value = mean - runs.read_metrics(run)[step - 1]["entropy"]
    return Interval(value, value - 1.96 * error, value + 1.96 * error)


show("−log q minus entropy, last step of", "value", "from", "to")
for name in ("temperature_raw", "top_p", "bf16", "stale_4", "kv_fp8_e5m2", "smol_bf16_both"):
    gap = surprise_minus_entropy(name, runs.list_steps(runs.find_run(name))[-1])
    show(name, gap.value, gap.low, gap.high, digits=3)
of_raw = [surprise_minus_entropy("temperature_raw", step) for step in runs.list_steps(raw)]
assert all(below(gap) for gap in of_raw)
low = [f"`{name}` at step {step}" for name in RUNS if name not in ("temperature_raw", "top_p")
       for step in runs.list_steps(runs.find_run(name)) if surprise_minus_entropy(name, step).high < 0]  # fmt: skip
others = sum(len(runs.list_steps(runs.find_run(name))) for name in RUNS if name not in ("temperature_raw", "top_p"))
say(f"""
In `temperature_raw` the mean of $-\\log q$ is significantly below the entropy (its 95 % interval excludes 0) at all
{len(of_raw)} recorded steps. In `top_p` it is below as well, because a cut also draws likely tokens too often. Among
the {others} steps of the other tiny runs it is significantly below at {len(low) or "none"}. So put the entropy and the
mean of $-\\log q$ into one plot. And let a recording state how it was sampled (lesson 14).
""")

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a step is 1.0004 ± 0.0003. Which bugs does that exclude?**
#
# <details><summary>All fourteen: the average is what it must be.</summary>No. Padding adds ratios of 1, rounding has no
# direction, and the bugs in weights, averages and advantages come after the ratio.</details>
# <details><summary>A large shift, a wrong mask, zeros filled in, or log-probs from before the temperature; not the
# others.</summary>Yes. Those would move the mean by far more than 0.0003. But the standard error knows only the tokens
# that were drawn. It says nothing about tokens that the engine hardly ever samples, and so a mean near 1 does not prove
# that $q$ is right.</details>
# <details><summary>None: the mean ratio is always 1.</summary>No. It is 1 on average if q is the probability with which
# the token was drawn, and some of the bugs break exactly this.</details>
#
# **2. `(loss * keep).sum() / n`: with which `n` does the scale of the loss depend on how much is rejected?**
#
# <details><summary>With the number of all tokens: then a loss of 1 becomes the kept share.</summary>Yes. Both choices
# may be intended. The silent bug is to use one and to believe that it is the other.</details>
# <details><summary>With the number of kept tokens.</summary>No. A loss of 1 stays 1, whatever is kept.</details>
# <details><summary>With neither: the mask is applied only once.</summary>The mask is. The denominator is a separate
# choice.</details>
#
# **3. A stale head and a wrong temperature both move the log-odds. How do you distinguish them?**
#
# <details><summary>By the size of k3.</summary>No. Either can be small or large.</details>
# <details><summary>By what the gap $o$ depends on: on how certain the engine was, or on the token id.</summary>Yes. A
# temperature gives a slope over the engine's log-odds. A stale head gives a similar value to all tokens with the same
# id.</details>
# <details><summary>By the mean ratio.</summary>No. A stale head is a policy like any other, so its ratios average to 1.
# If the trainer alone uses another temperature, they average to 1 as well.</details>
#
# ## In the app
#
# Start it with `make app`. The page Mismatch runs triage and draws the pictures of this lesson.
#
# - [the control](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=48): by position, by length, by token;
# - [a real stale head](http://localhost:8501/mismatch?run=stale_head&step=latest): first the diagnosis, then *by
#   token*;
# - [a real cut, top-p](http://localhost:8501/mismatch?run=top_p&step=latest): ratios of at most 1;
# - [the mistake that agrees with itself](http://localhost:8501/mismatch?run=temperature_raw&step=latest);
# - [the control and the stale head in the same
#   axes](http://localhost:8501/training?run=kv_fp8_e5m2&step=48&with=stale_head), over the whole training run.
#
# ## Pitfalls
#
# - **A gap is not a bug.** Ask first whether the mean ratio is 1. Then ask whether $o$ depends on the log-odds of the
#   engine or on the token id. Last ask how large the gap is.
# - **The planted copies simplify.** Only the log-prob of the drawn token is recorded. So the temperature was planted as
#   if all other tokens were a single one, and the stale head and the stale experts with one normaliser for all
#   positions. And each patient has only one bug.
# - **The order of tests matters.** A shift makes everything else look broken. Repair it first, then look again.
# - **Many views, many runs.** If an alarm rings from two standard errors on, about one healthy number in twenty makes
#   it ring by chance. With many numbers, ask for more than two.
#
# ## References
#
# 1. Hugging Face TRL, [issue 4159](https://github.com/huggingface/trl/issues/4159): ratios of 2 at temperature 0.6,
#    because raw log-probs came back.
# 2. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics that a run
#    reports. Its [issue 7771](https://github.com/volcengine/verl/issues/7771) is padding that was counted.
# 3. vLLM, [engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, which decides
#    what is reported.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: moved by one
#
# *7 minutes.* Compare $p$ of a token with $q$ of the token **after** it, in place of its own $q$. Return the share of
# $\sum|d|$ that disappears. Use only tokens that have a next one, for the sum before the move and for the sum after it.
# All three inputs are `(B, T)`. Answers begin in column 0, and padding is nan.
#
# <details><summary>Hint 1</summary>Compare column t of p with column t + 1 of q:
# <code>old_log_probs[:, :-1]</code> and <code>rollout_log_probs[:, 1:]</code>.</details>
# <details><summary>Hint 2</summary>A token has a next one if <code>mask[:, 1:]</code> is True. The share is 1 − after /
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
# ### Exercise 3: which alarm rings?
#
# *12 minutes.* Write `diagnose(old_log_probs, rollout_log_probs, mask)`. All inputs are `(B, T)`, and padding is nan.
# Return the first of these names whose condition is true:
#
# - `"shift by one"`: comparing $p$ with $q$ of the next token removes half of $\sum|d|$ or more;
# - `"bf16 subtraction"`: take the tokens for which neither log-prob is 0; half of them or more have two log-probs that
#   are bfloat16 numbers;
# - `"mask off by one"`: at some position with at least five tokens, $|$median of $d|$ is above 3;
# - `"upside down"`: the mean of $d$ is more than three standard errors above 0;
# - `"nothing"`: none of these.
#
# Try it on the control and its copies, `pairs_of(patients["upside down"].batch)`. It is judged on twelve patients of
# other runs. Some of them are healthy.
#
# <details><summary>Hint 1</summary>Exercises 1 and 2 are two of the four tests.</details>
# <details><summary>Hint 2</summary>x is a bfloat16 number if <code>x == x.bfloat16()</code>. A column:
# <code>d[:, t][mask[:, t]]</code>.</details>


# %%
def diagnose(old_log_probs, rollout_log_probs, mask):
    raise NotImplementedError("exercise 3: write diagnose, then run this cell and the next.")


# %% tags=["check"]
check(diagnose, DIAGNOSE)


# %% tags=["solution", "hide-input"]
def diagnose_solution(old_log_probs, rollout_log_probs, mask):
    d, p, q = (old_log_probs - rollout_log_probs).double(), old_log_probs[mask], rollout_log_probs[mask]
    if moved_solution(old_log_probs, rollout_log_probs, mask) > 0.5:
        return "shift by one"
    on_grid = (p == p.bfloat16()) & (q == q.bfloat16())
    if on_grid[(p != 0) & (q != 0)].double().mean() >= 0.5:
        return "bf16 subtraction"
    columns = [d[:, t][mask[:, t]] for t in range(d.shape[1]) if mask[:, t].sum() >= 5]
    if any(column.median().abs() > 3 for column in columns):
        return "mask off by one"
    return "upside down" if upside_down_solution(d[mask]) else "nothing"


check(diagnose_solution, DIAGNOSE)

# %% [markdown]
# The twelve patients were chosen so that their bugs can be found. How good is the solution on all other steps?

# %% tags=["hide-input"]
# the solution with tensors, from the exercise: a participant has no solution cell
named = {bug: [] for bug in (None, "shift by one", "bf16 subtraction", "mask off by one", "upside down")}
for name in RUNS:
    run = runs.find_run(name)
    for batch in (runs.read_step(run, step).batch for step in runs.list_steps(run)):
        for bug, answers in named.items():
            patient = PLANTS[bug](batch).batch if bug else batch
            answers.append(diagnosed_at_once(*pairs_of(patient)) == (bug or "nothing"))
named_of = ", ".join(f"{sum(answers)} with *{bug}*" for bug, answers in named.items() if bug)
say(f"""
Of {steps_of} steps without a planted bug it calls {sum(named[None])} "nothing". The steps of the sick runs are among
them, because the solution has no test for their bugs. Of the {steps_of} steps with a planted bug it names {named_of}.
It calls the others "nothing", or gives them another name. **Silence does not prove health.**
""")

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks of the views: with symbols, in a toy, and on the control.

# %% [markdown]
# ### With symbols: three actions

# %%
P, Q, C = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqc")
tau = sympy.Symbol("tau", positive=True)
actions = range(3)


def zero(expression):
    """True if it is 0, with 1 minus the others as the third probability of each policy."""
    return sympy.simplify(expression.subs({P[2]: 1 - P[0] - P[1], Q[2]: 1 - Q[0] - Q[1]})) == 0


# %%
pairs = sum(Q[a] * Q[b] * P[a] / Q[b] for a in actions for b in actions)  # shift by one
assert sympy.expand(pairs - 3 * sum(P[a] * Q[a] for a in actions)) == 0
squares = (Q[0] - Q[1]) ** 2 + (Q[0] - Q[2]) ** 2 + (Q[1] - Q[2]) ** 2
assert zero(3 * sum(x**2 for x in Q) - 1 - squares)

minus_mean_d = -sum(
    Q[a] * sympy.log(P[a] / Q[a]) for a in actions
)  # upside down: it is E[k3], never below 0 (lesson 02)
mean_k3 = sum(Q[a] * (P[a] / Q[a] - 1 - sympy.log(P[a] / Q[a])) for a in actions)
assert zero(sympy.expand(mean_k3 - minus_mean_d))

chi2 = sum((P[a] - Q[a]) ** 2 / Q[a] for a in actions)  # weights twice: E[r²] is 1 + χ²
assert zero(sum(P[a] ** 2 / Q[a] for a in actions) - 1 - chi2)

# %% [markdown]
# The log-odds of $p$ are $\log p_a - \log \sum_{b \ne a} p_b$. Put $p \propto q^{1/\tau}$ (a temperature) and
# $p \propto q\,e^{\Delta}$ (a head whose row $a$ moved the logit by $\Delta_a$) into it. The normaliser cancels.

# %%
beta = 1 / tau
log_q = [sympy.log(x) for x in Q]
others_of = [[b for b in actions if b != a] for a in actions]


def logit_gap(log_unnormalised, a):
    """The distance o of action a, for a p that is known up to its normaliser."""
    rest = sympy.log(sum(sympy.exp(log_unnormalised[b]) for b in others_of[a]))
    return log_unnormalised[a] - rest - (log_q[a] - sympy.log(sum(Q[b] for b in others_of[a])))


def vanishes(expression):
    return sympy.simplify(sympy.expand_log(sympy.simplify(expression), force=True)) == 0


# %%
for a in actions:
    mass = sum(Q[b] for b in others_of[a])  # 1 − q_a
    x = log_q[a] - sympy.log(mass)
    entropy = sympy.log(sum((Q[b] / mass) ** beta for b in others_of[a])) / (1 - beta)  # Rényi's, of the others
    assert vanishes(logit_gap([beta * log_prob for log_prob in log_q], a) - (beta - 1) * (x + entropy))

    mean_of_others = sympy.log(sum(Q[b] * sympy.exp(C[b]) for b in others_of[a]) / mass)
    assert vanishes(logit_gap([log_q[b] + C[b] for b in actions], a) - (C[a] - mean_of_others))
show("wrong temperature: o", "(1/τ − 1)(x + H′)")
show("stale head: o of a", "Δ_a − log mean of e^Δ of the others")

# %% [markdown]
# ### In a toy
#
# The toy has all answers of at most four tokens from a vocabulary of four, and random policies. Every expectation is a
# sum, in float64.

# %%
where, T = toy.world(4, 4), 0.7
worst, entropies = 0.0, []
for seed in range(20):
    engine, trainer = toy.random_policy(where, seed), toy.random_policy(where, 100 + seed)
    chance = (
        toy.probabilities(where, engine)[:, None] * where.mask
    )  # (N, T): the probability of this token, after this text
    log_q_toy = toy.log_probs(where, engine)
    d_toy = toy.log_probs(where, trainer) - log_q_toy
    worst = max(worst, abs(float((chance * d_toy).sum() + toy.kl(where, engine, trainer))))
    hot = toy.log_probs(where, engine / T)  # the same logits, divided by a temperature
    x, gap = (torch.logit(log_probs.exp())[where.mask] for log_probs in (log_q_toy, hot))
    entropies.append((gap - x) / (1 / T - 1) - x)
least, most = float(torch.cat(entropies).min()), float(torch.cat(entropies).max())
show("−E[d] is the KL", worst < 1e-13)
show("H′ of a temperature, least and most", least, most, digits=3)
assert -1e-9 <= least < most <= torch.tensor(3.0).log() + 1e-9  # three other tokens

# %% [markdown]
# ### On the control
#
# Each patient is compared with what the derivation says, within the standard error of the step.

# %%
show("shift by one: mean ratio − 1, in errors", far["shift by one"], digits=1)
show("upside down: mean d, in errors", in_errors(d_of(patients["upside down"])), digits=1)
padded = d_of(patients["padding counted"])
show("padding: k3 / k3 before; N/N'", float(k3(padded).mean() / k3(d).mean()), len(d) / len(padded))
assert abs(float(k3(padded).mean() / k3(d).mean()) - len(d) / len(padded)) < 1e-12

tokens = tokens_of(control.batch)
rounding = (d_of(patients["bf16 subtraction"]) - d).abs() / (tokens.old.abs() + tokens.rollout.abs())
show("bf16: largest error / (|log p| + |log q|)", float(rounding.max()), "≤", 2**-8)
assert float(rounding.max()) <= 2**-8

lost = len(record.responses) / len(d)  # one token in each answer has a ratio of about e⁻¹⁶
show("mask: 1 − mean ratio, expected", 1 - float(ratio(d_of(patients["mask off by one"])).mean()), lost)
show("denominator: a loss of 1 becomes", patients["wrong denominator"].loss_of_ones, "not", control.loss_of_ones)
assert abs(control.loss_of_ones - kept(control)) < 1e-6


# %%
def slope(batch):
    x, y, _ = logits(tokens_of(batch))
    return median_slope(x, y)


generator = torch.Generator().manual_seed(15)
rows = [torch.randint(len(record.responses), (len(record.responses),), generator=generator) for _ in range(40)]
hot = torch.tensor([slope(patients["wrong temperature"].batch.rows(index)) for index in rows])
low, high = (float(end) for end in hot.quantile(torch.tensor([0.025, 0.975])))
expected = (1 + slope(control.batch)) / 0.7 - 1  # the control has a slope of its own
show("wrong temperature: slope in, expected", low, high, expected, digits=2)
assert low - 0.01 < expected < high + 0.01
