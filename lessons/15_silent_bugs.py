# %% [markdown]
# # 15 · Silent bugs: nine patients
#
# **Claim.** A wrong number in the loop rarely crashes. For each of nine common bugs a view can be derived that shows
# it; planted in every recorded step, some are found nearly always and others only where the gap is large, and the mean
# ratio, which everybody watches, misses most of them.
#
# *40 minutes · advanced · any laptop; no GPU, no network.* You need the ratio and its average (lesson 00), the noise of
# an average (lesson 02), and rejection (lesson 07). [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - derive the trace that each of nine bugs leaves, and say in which view to look for it;
# - tell a bug from a gap: a healthy engine differs from the trainer, too;
# - write alarms and judge them by hits and false alarms on steps that they were not written on;
# - say which bug no pair of log-probs can show.

# %% tags=["hide-input"]
import warnings

import sympy
import torch
from exercises.lesson_15 import DIAGNOSE, MOVED, UPSIDE_DOWN
from exercises.patients import PLANTS, TREATMENT, pairs_of, treated
from sentences import say
from show import picture, show

from rlcorr.analysis.log_prob_pairs import logits, median_slope, tokens_of
from rlcorr.analysis.triage import shift, stale_tensor, temperature, triage
from rlcorr.figures.canvas import KEPT, fade, figure
from rlcorr.figures.mismatch import by_position
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
# has a wrong shape, nothing is infinite. The reward grows a little more slowly, or the run collapses after two days.
# Here are nine such places. A **view** is one number that looks at one property, and was derived for one bug. Two of
# them look at **logits**: $x = \log\frac{q}{1-q}$ is that of the engine, and $y = \log\frac{p}{1-p} - x$ is how far
# the trainer's lies above it.
#
# | bug | what was done | view | because |
# |---|---|---|---|
# | **shift by one** | $p$ of a token over $q$ of the one before | neighbours | moving a list removes the gap |
# | **upside down** | $q/p$ is used as the ratio | direction | $\mathbb{E}_q[d] = -\mathrm{KL} \le 0$ |
# | **wrong temperature** | only the trainer knows τ | slope | $p \propto q^{1/\tau}$: $y = (1/\tau-1)(x+H)$ |
# | **padding counted** | averages run over the whole rectangle | count | more tokens than were written |
# | **bf16 subtraction** | log-probs are rounded before they are subtracted | digits | all are bfloat16 numbers |
# | **mask off by one** | the mask begins at the last token of the prompt | position | the engine never drew it |
# | **stale head** | a tensor of the engine was not updated | token | $p \propto q e^c$: $y$ constant per token id |
# | **weights twice** | the loss is weighted, and so was the advantage | weights | $(\min(r, C))^2$ reaches $C^2$ |
# | **wrong denominator** | kept tokens instead of all (lesson 07) | scale | a loss of 1 stays 1, not the kept share |
#
# $H$, an entropy of the other tokens, lies between 0 and $\ln V$ for a vocabulary of $V$ tokens; the appendix has the
# proofs.
#
# ## A list that is one too long, by hand
#
# Three actions X, Y, Z. Engine and trainer agree to the last digit: both play them with ½, ¼, ¼. All ratios are 1. Now
# the list of the engine's log-probs starts with a placeholder that nobody dropped, so each token is divided by the
# probability of the token **before** it. After X the ratios are 1, ½, ½; after Y or Z they are 2, 1, 1. What do they
# average to? After X: ½·1 + ½·½ = ¾. After Y or Z: ½·2 + ½·1 = 3/2. Together ½·¾ + ½·3/2 = 9/8, although nothing
# differs.
#
# In general, for tokens that do not depend on each other,
#
# $$ \mathbb{E}\!\left[\frac{p(a_t)}{q(a_{t-1})}\right] = \sum_b q(b)\,\frac{1}{q(b)} \cdot \sum_a q(a)\,p(a)
# = V \sum_a p(a)\, q(a) . $$
#
# For $p = q$ this is $V \sum_a q(a)^2 \ge 1$, and 1 only if all actions are equally probable. **A shift makes the
# average ratio depart from 1 even when the two programs agree.**
#
# ## The control
#
# The first patients are copies of one step of a real run: `kv_fp8_e5m2`, running sums with a coarse KV cache. Nothing
# is planted in the original. It is treated with capped token ratios, and rejects answers whose geometric mean is far
# from 1.


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
# The control is not healthy in the sense of *no gap*. That is a **mismatch**, and corrections are for it. A **bug** is
# different: the numbers are not the probabilities that they are said to be.
#
# ## Predict, then reveal
#
# Each bug is planted into a copy of the control. **Write down a guess:**
#
# 1. For how many of the nine is the mean ratio more than three errors from 1?
# 2. For how many is k3 more than twice that of the control?
# 3. The treatment rejects by the geometric mean of an answer. What does it keep of the shifted patient, whose ratios
#    are wrong on every token?

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
say(f"""
1. For {len(ringing)}: {", ".join(ringing)}.
2. For {len(large)}: {", ".join(large)}. No alarm says *what* is wrong.
3. Nearly all that it keeps of the control: {kept(patients["shift by one"]):.2f} and {kept(control):.2f} of the tokens.
   In a sum over the answer the same numbers appear as without a shift, but for one at either end. **What looks at whole
   answers is blind to a shift.** The wrong mask is the opposite: one token with $d = -16$ moves the geometric mean, and
   everything is rejected.
""")

# %% [markdown]
# ## Nine views
#
# Each is a number, and a bound at which it rings.
#
# - **neighbours**: the share of $\sum|d|$ that goes away when one list is moved by a token;
# - **direction**: the mean of $d$, in its errors;
# - **slope**: the share of tokens that one temperature explains;
# - **count**: tokens under the mask, less the characters and ends of answers that were written;
# - **digits**: the share of tokens, of which neither side is sure, whose log-probs are both bfloat16 numbers;
# - **position**: the largest median of $|d|$ at one position;
# - **token**: the share of the variance of $y$ between token ids;
# - **weights**: the largest weight over the cap;
# - **scale**: what the average makes of a loss of 1, less the share kept.


# %% tags=["hide-input"]
def strength(finding):
    return finding.strength if finding else 0.0


def digits(it, _):
    tokens = tokens_of(it.batch)
    unsure = (tokens.old != 0) & (tokens.rollout != 0)
    on_grid = [log_probs == log_probs.bfloat16().double() for log_probs in (tokens.old, tokens.rollout)]
    return float((on_grid[0] & on_grid[1])[unsure].double().mean())


def position(it, _):
    d, mask = it.result.log_ratio.double(), it.batch.response_mask
    columns = [d[:, t][mask[:, t]] for t in range(d.shape[1]) if int(mask[:, t].sum()) >= 5]
    return max(abs(float(column.median())) for column in columns)


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
    "token": (lambda it, _: strength(stale_tensor(tokens_of(it.batch))), 0.35),
    "weights": (lambda it, _: float(it.result.weights.max()) / TREATMENT.rollout_is_threshold, 1.001),
    "scale": (lambda it, _: it.loss_of_ones - kept(it), 1e-6),
}

written = tokens_written(record)
show("rings from", *(str(bound) for _, bound in VIEWS.values()))
show("view", *(name[:9] for name in VIEWS))
for bug, patient in {"nothing": control, **patients}.items():
    show(bug, *(float(look(patient, written)) for look, _ in VIEWS.values()), digits=2)

# %% [markdown]
# As a picture, the wrong mask. **Look for** the first point, which stands for the first positions: its median and its
# mean are far below, and every other median lies on the line.

# %%
picture(by_position(patients["mask off by one"].batch))

# %% [markdown]
# ## On every recorded step
#
# One step proves little: bounds can be fitted to it. So plant each bug in **every** step of **every** committed run,
# and ask all nine views with the same bounds. The last two rows are steps with nothing planted: of runs without a known
# bug, and of the three that are sick themselves (`top_p`, `temperature_raw`, `stale_head`). **Look for** the diagonal,
# which are the hits, and for colour in the last row but one, which would be false alarms.

# %% tags=["hide-input"]
SICK = ("top_p", "temperature_raw", "stale_head")
HEALTHY, ILL = "nothing, healthy", "nothing, sick run"
TINY = [run for run in runs.ROOT.iterdir() if (run / "steps").is_dir() and "smol_" not in run.name]
RUNS = sorted(run.name for run in TINY)  # the bugs are planted where a token is a character
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
heat = {"type": "heatmap", "name": "share of the steps", "z": rates.tolist(), "x": list(VIEWS), "y": list(rings)}
heat |= {"text": [[f"{100 * share:.0f} %" for share in row] for row in rates.tolist()], "texttemplate": "%{text}"}
heat |= {"zmin": 0, "zmax": 1, "colorscale": [[0, fade(KEPT, 0.0)], [1, KEPT]], "showscale": False}
drawn = figure([heat], height=400, x={"title_text": "view that rings", "side": "top"}, y={"autorange": "reversed"})
picture(drawn.update_layout({"margin.l": 130, "margin.t": 60}))

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

**Found on nine steps of ten or more**: {", ".join(often)}. **Found less often**: {", ".join(seldom)}. Direction and
weights need a large gap: KL grows like $d^2$, its error like $|d|$, and a squared weight is above the cap only if some
ratio is. A wrong denominator shows only where something is rejected.

The mean ratio stays quiet on most steps for {len(missed)} of the nine. Of the sick runs, the views ring for
{sum(any(step) for step in rings[ILL])} of {len(rings[ILL])} steps without any planting: `stale_head` by *token*,
rightly, and `top_p` by *slope*, which is a wrong name for a cut.
""")

# %% [markdown]
# Two things make these rates look better than they are. Steps of one run are alike. And *count*, *digits* and
# *position* replaced first versions that had rung on healthy steps of these very runs: "unless 0" took answers that
# were cut off for a bug, "the same $d$ again" and "over the second largest median" took tokens of which both sides are
# sure. They were derived anew, but with these steps in sight. **A view is a hint where to look. Set its bound on
# healthy steps of your own run, and count its false alarms on others.**

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
# ## Exercise 3: which alarm rings?
#
# *12 minutes.* Write `diagnose(old_log_probs, rollout_log_probs, mask)`, all `(B, T)`, padding nan. Return the first
# that holds:
#
# - `"shift by one"`: comparing $p$ with $q$ of the next token removes half of $\sum|d|$ or more;
# - `"bf16 subtraction"`: of the tokens with $p$'s and $q$'s log-prob unequal to 0, half or more have both log-probs in
#   bfloat16;
# - `"mask off by one"`: at some position with at least five tokens, $|$median of $d|$ is above 3;
# - `"upside down"`: the mean of $d$ is more than three errors above 0;
# - `"nothing"` else.
#
# Try it on the control and its copies, `pairs_of(patients["upside down"].batch)`. It is judged on twelve patients of
# other runs, healthy ones among them.
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
# The twelve were chosen so that they can be told. How good is the solution where it was not?

# %% tags=["hide-input"]
# the solution with tensors, from the exercise: a participant has no solution cell
named = {bug: [] for bug in (None, "shift by one", "bf16 subtraction", "mask off by one", "upside down")}
for name in RUNS:
    run = runs.find_run(name)
    for batch in (runs.read_step(run, step).batch for step in runs.list_steps(run)):
        for bug, answers in named.items():
            patient = PLANTS[bug](batch).batch if bug else batch
            answers.append(DIAGNOSE.equivalents[0](*pairs_of(patient)) == (bug or "nothing"))
named_of = ", ".join(f"{sum(answers)} with *{bug}*" for bug, answers in named.items() if bug)
say(f"""
Of {steps_of} steps with nothing planted it calls {sum(named[None])} "nothing"; those of the sick runs are among them,
since it has no test for their bugs. Of the {steps_of} steps with a bug it names {named_of}. What it misses is called
"nothing" or something else: **silence is no proof of health.**
""")

# %% [markdown]
# ## The bug that no view shows
#
# `temperature_raw` is a real run with the classic mistake: it samples at one temperature, and **both** programs score
# at another. The two log-probs agree beautifully, on a policy that sampled nothing.

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
# No test on pairs can find it, because the pair is a perfectly good pair of another policy. Only the manifest knows.
# That is why a recording must say how it was sampled (lesson 16).

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a step is 1.0004 ± 0.0003. Which bugs does that exclude?**
#
# <details><summary>All nine: the average is where it must be.</summary>No. Padding adds ratios of 1, rounding has no
# direction, and weights and averages come after it.</details>
# <details><summary>A large shift, a wrong temperature, a wrong mask; not the others.</summary>Yes. And even those only
# if the gap is large enough for its noise.</details>
# <details><summary>None: it is always 1.</summary>No. It is 1 on average if q is the probability that the token was
# drawn with. That is what three of the bugs break.</details>
#
# **2. `(loss * keep).sum() / n`: which n makes the scale of the loss depend on how much is rejected?**
#
# <details><summary>All tokens: then a loss of 1 comes out as the kept share.</summary>Yes. Both choices can be meant;
# silent is that one is taken for the other.</details>
# <details><summary>The kept tokens.</summary>No. A loss of 1 comes out as 1 whatever is kept.</details>
# <details><summary>Neither: the mask is applied once.</summary>The mask is. The denominator is a choice of its
# own.</details>
#
# **3. A stale head and a wrong temperature both bend the logits. What tells them apart?**
#
# <details><summary>The size of k3.</summary>No. Either can be small or large.</details>
# <details><summary>What y depends on: on how sure the engine was, or on which token it is.</summary>Yes. The slope over
# x against the constants per token id.</details>
# <details><summary>The mean ratio.</summary>A stale head is a policy like any other, so its ratios average to 1. But a
# temperature that the trainer alone applies leaves the average at 1, too.</details>

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
# - **A gap is not a bug.** Ask whether the mean ratio is 1, then whether $y$ has structure, then how large the gap is.
# - **The planted copies simplify.** Only the drawn token's log-prob is recorded, so the temperature was planted as if
#   all other tokens were one, and the stale head with one common normaliser. Each patient has one bug.
# - **The order of tests matters.** A shift makes everything else look broken. Fix it first, then look again.
# - **Many views, many runs.** At two errors about one number in twenty rings by chance. With many, ask for more.
#
# ## References
#
# 1. Hugging Face TRL, [issue 4159](https://github.com/huggingface/trl/issues/4159): ratios of 2 at temperature 0.6,
#    because raw log-probs came back.
# 2. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics that a run
#    reports; its [issue 7771](https://github.com/volcengine/verl/issues/7771) is padding that was counted.
# 3. vLLM, [engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, which decides
#    what is reported.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks of the views: with symbols, in a small world, and on the control.

# %% [markdown]
# ### With symbols: three actions

# %%
P, Q, C = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqc")
tau = sympy.Symbol("tau", positive=True)
actions = range(3)


def zero(expression):
    """Whether it is 0 once the third probability of each policy is 1 minus the others."""
    return sympy.simplify(expression.subs({P[2]: 1 - P[0] - P[1], Q[2]: 1 - Q[0] - Q[1]})) == 0


# %%
pairs = sum(Q[a] * Q[b] * P[a] / Q[b] for a in actions for b in actions)  # shift by one
assert sympy.expand(pairs - 3 * sum(P[a] * Q[a] for a in actions)) == 0
squares = (Q[0] - Q[1]) ** 2 + (Q[0] - Q[2]) ** 2 + (Q[1] - Q[2]) ** 2
assert zero(3 * sum(x**2 for x in Q) - 1 - squares)

minus_mean_d = -sum(
    Q[a] * sympy.log(P[a] / Q[a]) for a in actions
)  # upside down: it is E[k3], never below 0 (lesson 08)
mean_k3 = sum(Q[a] * (P[a] / Q[a] - 1 - sympy.log(P[a] / Q[a])) for a in actions)
assert zero(sympy.expand(mean_k3 - minus_mean_d))

chi2 = sum((P[a] - Q[a]) ** 2 / Q[a] for a in actions)  # weights twice: E[r²] is 1 + χ²
assert zero(sum(P[a] ** 2 / Q[a] for a in actions) - 1 - chi2)

# %% [markdown]
# A logit of $p$ is $\log p_a - \log \sum_{u \ne a} p_u$. Put $p \propto q^{1/\tau}$ (a temperature) and
# $p \propto q\,e^c$ (a head of which row $a$ moved the logit by $c_a$) into it. The normaliser drops out.

# %%
beta = 1 / tau
log_q = [sympy.log(x) for x in Q]
others_of = [[b for b in actions if b != a] for a in actions]


def logit_gap(log_unnormalised, a):
    """y of action a, for a p that is known up to its normaliser."""
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
show("wrong temperature: y", "(1/τ − 1)(x + H)")
show("stale head: y of a", "c_a − log mean of e^c of the others")

# %% [markdown]
# ### In a small world
#
# All answers of at most four tokens over four, and random policies. Every expectation is a sum, in float64.

# %%
where, T = toy.world(4, 4), 0.7
worst, entropies = 0.0, []
for seed in range(20):
    engine, trainer = toy.random_policy(where, seed), toy.random_policy(where, 100 + seed)
    chance = toy.probabilities(where, engine)[:, None] * where.mask  # (N, T): how often this token, after this text
    log_q_toy = toy.log_probs(where, engine)
    d_toy = toy.log_probs(where, trainer) - log_q_toy
    worst = max(worst, abs(float((chance * d_toy).sum() + toy.kl(where, engine, trainer))))
    hot = toy.log_probs(where, engine / T)  # the same logits, divided by a temperature
    x, gap = (torch.logit(log_probs.exp())[where.mask] for log_probs in (log_q_toy, hot))
    entropies.append((gap - x) / (1 / T - 1) - x)
least, most = float(torch.cat(entropies).min()), float(torch.cat(entropies).max())
show("−E[d] is the KL", worst < 1e-13)
show("H of a temperature, least and most", least, most, digits=3)
assert -1e-9 <= least < most <= torch.tensor(3.0).log() + 1e-9  # three other tokens

# %% [markdown]
# ### On the control
#
# Each patient against what the derivation says, within the error of the step.

# %%
show("shift by one: mean ratio − 1, in errors", far["shift by one"], digits=1)
show("upside down: mean d, in errors", in_errors(d_of(patients["upside down"])), digits=1)
padded = d_of(patients["padding counted"])
show("padding: k3 over that before, N/N'", float(k3(padded).mean() / k3(d).mean()), len(d) / len(padded))
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
