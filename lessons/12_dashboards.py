# %% [markdown]
# # 12 · Reading the dashboards
#
# **Claim.** No single number says that a run is healthy: size, tail, lean and what is left to learn from need one
# metric each, every metric has a blind spot, and the first to move is not the one that says what breaks.
#
# *30 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00, 02, 05 and 07.
# [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - read the few metrics that matter, and name those that say nothing by construction;
# - go from a symptom to a cause;
# - say which metric moved first before a training broke, and which told the broken from the healthy.

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from exercises.lesson_12 import DASHBOARD, EARLY_WARNING, VERDICT
from recorded import load
from sentences import say
from show import picture, show

from rlcorr import CorrectionConfig, correct, evaluate, metrics, preset
from rlcorr.analysis.log_prob_pairs import mismatch_numbers, tokens_of
from rlcorr.analysis.triage import triage
from rlcorr.figures.comparison import tails
from rlcorr.figures.study import study_curves
from rlcorr.figures.training import PANELS, over_steps
from rlcorr.gradients import toy
from rlcorr.gradients.toy import small_world
from rlcorr.measuring.measure import measure_probabilities
from rlcorr.measuring.metric_definitions import METRICS, OBJECTIVE_METRICS, PREFIX, PROBABILITY_METRICS, RULE_METRICS
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.records.study import course as study_course
from rlcorr.records.study import outcomes, read_study
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Four tokens, by hand
#
# Four tokens have the ratios 1.2, 0.5, 1 and 2, so $d$ is 0.18, −0.69, 0 and 0.69. Every metric of a dashboard answers
# one of four questions.
#
# - **Size**: how far apart are the policies on a typical token? Mean $|d|$ is (0.18 + 0.69 + 0 + 0.69)/4 = 0.39.
# - **Tail**: do a few tokens carry most of it? The largest $|d|$ is 0.69.
# - **Lean**: is it to one side? The mean ratio is 4.7/4 = 1.175.
# - **Left**: what is there to learn from after weights and rejection? With weights $r$ the effective sample size is
#   4.7² / (4 · 6.69) = 0.83 of the batch.
#
# The KL estimate k1, the mean of $-d$, is −0.18/4 = −0.05. A divergence cannot be **negative**; its estimate can, on a
# small sample. k3 never is.

# %%
q = torch.tensor([[0.5, 0.8, 0.5, 0.4]], dtype=torch.float64)
p = torch.tensor([[0.6, 0.4, 0.5, 0.8]], dtype=torch.float64)
four = TokenBatch.from_log_probs(p.log(), q.log(), torch.ones(1, 4))


def report(batch, config=None):
    """Every metric by its name, without the prefix."""
    reported = evaluate(batch, config or CorrectionConfig())[1] | metrics(measure_probabilities(batch))
    return {key.removeprefix(PREFIX): value for key, value in reported.items()}


of_four = report(four)
for key in ("abs_log_ratio", "abs_log_ratio_max", "is_ratio_mean", "ratio_eff_sample_size", "kl", "k3_kl"):
    show(key, of_four[key])

# %% [markdown]
# ## The equation
#
# The numbers are averages of functions of the same $d$, so they are tied to each other:
#
# $$ \text{k3\_kl} = \text{kl} + (\bar r - 1), \qquad
#    \text{ESS}\cdot(1 + \chi^2) = \bar r^{\,2}, \qquad
#    1 - \text{ESS} \approx \mathrm{Var}(d) \approx 2\,\text{k3\_kl} . $$
#
# With $\chi^2$ as the mean of $r^2$, less 1, the first two hold exactly on every batch; the last holds for small
# mismatches without a lean. And for any two policies
#
# $$ \mathbb{E}_q[r] = \sum_a q(a)\,\frac{p(a)}{q(a)} = 1 . $$
#
# So the mean ratio **cannot** measure agreement. What it can do is catch a wrong $q$: if the tokens were not drawn from
# the recorded $q$, nothing holds it at 1. Here are recorded runs; "errors" is the distance of the mean ratio from 1 in
# standard errors, "max w" the largest weight that `slime_mis` leaves.

# %%
COMMITTED = ("control_fp32", "bf16", "temperature_raw", "moe_replay", "top_p", "stale_head", "moe_bf16", "kv_fp8",
             "async", "kv_fp8_e5m2", "stale_4")  # fmt: skip
of_run = {name: report(load(name)) for name in COMMITTED}
errors = {}
show("last step", "|d|", "k3", "worst |d|", "mean r", "errors", "ESS", "max w")
for name, one in of_run.items():
    errors[name] = (one["is_ratio_mean"] - 1) / (one["is_ratio_std"] / one["tokens"] ** 0.5)
    weighted = report(load(name), preset("slime_mis"))
    cells = [f"{one[key]:.1e}" for key in ("abs_log_ratio", "k3_kl", "abs_log_ratio_max")]
    cells += [f"{one['is_ratio_mean']:.3f}", f"{errors[name]:.1f}", f"{one['ratio_eff_sample_size']:.3f}"]
    show(name, *cells, weighted["rollout_is_max"], digits=2)

# %% tags=["hide-input"]
sizes = [one["k3_kl"] for one in of_run.values()]
near = [name for name in COMMITTED if abs(errors[name]) < 3]
assert set(COMMITTED) - set(near) == {"top_p"}
head, coarse = of_run["stale_head"], of_run["kv_fp8_e5m2"]
assert 1 < head["abs_log_ratio"] / coarse["abs_log_ratio"] < 1.4
assert coarse["abs_log_ratio_max"] > 3 * head["abs_log_ratio_max"]
assert all(one["k3_kl"] < 1e-3 for one in (of_run["top_p"], of_run["temperature_raw"]))
say(f"""
- **Lean.** {len(near)} of {len(COMMITTED)} runs stay within three errors of 1, while their k3 spans
  {math.log10(max(sizes) / min(sizes)):.0f} orders of magnitude. `top_p`, whose engine cuts the distribution and reports
  log-probs of what is left, is {abs(errors["top_p"]):.0f} errors away, although its k3 would pass for rounding.
- **Size and tail.** `stale_head`, a forgotten tensor, and `kv_fp8_e5m2`, a coarse cache, have much the same mean $|d|$:
  {head["abs_log_ratio"]:.3f} and {coarse["abs_log_ratio"]:.3f}. Their worst tokens differ:
  {head["abs_log_ratio_max"]:.1f} and {coarse["abs_log_ratio_max"]:.1f}.
- **Blind by construction.** The largest weight after a cap of 2 is the cap. Log the ratios before it.
- **No metric sees it.** `temperature_raw` was sampled at another temperature than both log-probs have. They agree, on a
  policy that sampled nothing.
""")

# %% [markdown]
# ## What counts as sick?
#
# The limits in this course and in the library rest on a tiny model. Read them beside published ones:
#
# - [NeMo RL](https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/grpo.md#metrics): a KL per token below 1e-3 is
#   acceptable; if mean $e^{|d|}$ rises past 1 to 2 %, look at the update of the weights;
# - [Tinker](https://github.com/thinking-machines-lab/tinker-cookbook/blob/e251cd5/docs/rl/rl-hyperparams.mdx): training
#   was stable with a KL below 0.01;
# - [miles](https://github.com/radixark/miles/blob/main/docs/developer/debug.md): its CI asks for trainer and engine
#   log-probs within 0.03 at the first step.
#
# **Take the steps of a run that you know to be healthy as your band**, at the same perplexity: where the
# model is certain, the mismatch is small.
#
# ## From the symptom to the cause
#
# | symptom | likely cause | look next |
# |---|---|---|
# | mean ratio off 1 by many errors | top-p, top-k or a temperature on one side | processed log-probs, no cut |
# | k3 large at step 1 already | coarse numbers: a cache in 8 bits, a head in 16 bits | score in float32 |
# | k3 jumps in the first steps and stays | a tensor that the sync forgets | a checksum per tensor |
# | k3 climbs for as many steps as the lag | old weights | less lag (lesson 13) |
# | single tokens hold nearly all of k3 | swapped experts | router replay (lesson 14) |
# | many log-probs of exactly 0 on both sides | padding inside the mask | repair the mask |
# | all healthy, reward falls | a sampler setting that neither side knows | compare frequencies |
# | `kept_fraction` or the ESS falls, k3 does not | longer answers | lessons 06 and 07 |
#
# `triage` runs one test per known cause on a batch.

# %% [markdown]
# ## Predict, then reveal
#
# What moves first before a collapse? The study `stale_8` has ten corrections and three seeds on weights that are eight
# updates old. Some end below their start. `stale_0` is the same training on fresh weights: its smallest and largest
# value of each metric are our **healthy band**. A metric gives **alarm** at the first of three steps in a row outside.
# **Write down a guess:**
#
# 1. Which of k3, `grad_norm` and entropy gives alarm first?
# 2. Which one tells the trainings that end low from the others?
# 3. Does it do so under another mismatch, too?
#
# **Look for** the lines that part from the middle one, up and down.


# %% tags=["hide-input"]
first_alarm = EARLY_WARNING.expected
WATCHED = ("k3", "grad_norm", "entropy")


def courses_of(study):
    """(preset, seed) → rows."""
    by_training = {}
    for row in read_study(study)[0]:
        by_training.setdefault((row["preset"], row["seed"]), []).append(row)
    return by_training


def bands_of(study):
    """The smallest and the largest value of each watched metric."""
    rows = read_study(study)[0]
    values = {key: [row[key] for row in rows if row[key] is not None] for key in WATCHED}
    return {key: (min(of_key), max(of_key)) for key, of_key in values.items()}


def ends_low(course, first):
    """Whether the last quarter earned less than the first steps."""
    end = [row["reward"] for row in course[-(len(course) // 4) :]]
    return sum(end) / len(end) < sum(row["reward"] for row in course[:first]) / first


def alarms(study, control, first):
    """Of every training the step of each alarm, 0 for none, and whether it ends below its first steps."""
    bands = bands_of(control)
    return {
        arm: {key: first_alarm([row[key] for row in course], *bands[key], 3) for key in WATCHED}
        | {"low": ends_low(course, first)}
        for arm, course in courses_of(study).items()
    }


def table_of(first_steps, key):
    """Of the trainings that end low, and of the others: how many gave alarm."""
    groups = [[one[key] > 0 for one in first_steps.values() if one["low"] is low] for low in (True, False)]
    return [sum(groups[0]), len(groups[0]), sum(groups[1]), len(groups[1])]


# %%
stale, cache = alarms("stale_8", "stale_0", 9), alarms("kv_fp8_e5m2", "kv_bf16", 2)
for study, first_steps in (("stale_8", stale), ("kv_fp8_e5m2", cache)):
    show(f"{study}: alarm among", "low", "of", "others", "of")
    for key in WATCHED:
        show(f"  {key}", *table_of(first_steps, key))
rows = [row for row in read_study("stale_8")[0] if row["step"] <= 40]
picture(
    study_curves(rows, ["disabled", "skyrl_geo_mask", "decoupled_seq_is"], "grad_norm", log=True).update_layout(
        yaxis_title_text="grad_norm"
    )
)

# %% tags=["hide-input"]
low, band = [one for one in stale.values() if one["low"]], bands_of("stale_0")["grad_norm"]
assert {one["k3"] for one in stale.values()} == {2}
assert min(one["grad_norm"] for one in low) > 0
assert table_of(stale, "grad_norm")[2] <= 1
assert table_of(cache, "k3")[0::2] == table_of(cache, "k3")[1::2]
best = outcomes(read_study("kv_fp8_e5m2")[0])[0].preset
assert all(cache[best, seed]["grad_norm"] for seed in (0, 1, 2))
of_cache = {key: table_of(cache, key) for key in WATCHED}
drawn = [row for row in rows if row["grad_norm"] is not None]  # a step that rejects everything has none
norms = {name: study_course(drawn, name, "grad_norm")[1] for name in ("disabled", "skyrl_geo_mask", "decoupled_seq_is")}
assert max(norm.mean for norm in norms["disabled"]) > band[1]
assert min(norm.mean for norm in norms["skyrl_geo_mask"]) < band[0]
assert all(band[0] < norm.mean < band[1] for norm in norms["decoupled_seq_is"])
say(f"""
1. **k3, at step {stale["disabled", 0]["k3"]}, in all {len(stale)}.** It measures the illness, not whether the
   correction copes.
2. **`grad_norm`, here**: all {len(low)} that end low give alarm within {max(one["grad_norm"] for one in low)} steps,
   and of the {len(stale) - len(low)} others {table_of(stale, "grad_norm")[2]}. In the picture, the band is
   {band[0]:.1f} to {band[1]:.1f}: one line leaves it upwards, one downwards, one stays inside.
3. **No.** In the study of a coarse cache it gives alarm in {of_cache["grad_norm"][2]} of
   {of_cache["grad_norm"][3]} that do not end low, on each seed of the best correction. There entropy is better:
   {of_cache["entropy"][0]} of {of_cache["entropy"][1]} that end low, {of_cache["entropy"][2]} of
   {of_cache["entropy"][3]} others. k3 is in alarm in every one.

Seeds of one correction are alike: these are {len({arm for arm, _ in stale})} corrections, not {len(stale)} cases. **A
band that was found on one incident is a hypothesis about the next.**
""")

# %% [markdown]
# ## Exercise 1: a dashboard
#
# *5 minutes.* Return a dict of four numbers over all real tokens: "kl" (k1), "k3", "mean ratio", and "ess", the
# effective sample size as a share. Padding may hold anything.
#
# <details><summary>Hint 1</summary><code>(old_log_probs - rollout_log_probs)[mask]</code> is d of the real tokens, in
# one row.</details>
# <details><summary>Hint 2</summary>ess is (mean r)² divided by the mean of r².</details>


# %%
def dashboard(old_log_probs, rollout_log_probs, mask):
    raise NotImplementedError("exercise 1: write dashboard, then run this cell and the next.")


# %% tags=["check"]
check(dashboard, DASHBOARD)


# %% tags=["solution", "hide-input"]
def dashboard_solution(old_log_probs, rollout_log_probs, mask):
    d = (old_log_probs - rollout_log_probs)[mask]
    r = ratio(d)
    return {"kl": -d.mean(), "k3": k3(d).mean(), "mean ratio": r.mean(), "ess": r.mean() ** 2 / r.square().mean()}


check(dashboard_solution, DASHBOARD)

# %% [markdown]
# ## Exercise 2: an alarm with patience
#
# *6 minutes.* Given the values of a metric at steps 1, 2, 3, …, return the first step from which on `patience` values
# in a row lie outside [`low`, `high`], or 0. The bounds belong to the inside. A step that measured nothing is None, and
# counts as outside.
#
# <details><summary>Hint 1</summary>Count the values outside in a row; set the count to 0 at a healthy one.</details>
# <details><summary>Hint 2</summary>When the count reaches patience at step n, it began at n − patience + 1.</details>


# %%
def early_warning(values, low, high, patience):
    raise NotImplementedError("exercise 2: write early_warning, then run this cell and the next.")


# %% tags=["check"]
check(early_warning, EARLY_WARNING)


# %% tags=["solution", "hide-input"]
def early_warning_solution(values, low, high, patience):
    outside = 0
    for step, value in enumerate(values, 1):
        healthy = value is not None and low <= value <= high
        outside = 0 if healthy else outside + 1
        if outside == patience:
            return step - patience + 1
    return 0


check(early_warning_solution, EARLY_WARNING)

# %% [markdown]
# ## Exercise 3: a verdict
#
# *5 minutes.* Four numbers of a batch: k3, the mean ratio, its standard error, and the share of k3 that the worst 1 %
# of the tokens hold. Return one text: "wrong q" if the mean ratio is more than 5 errors from 1; else "rounding" if k3
# is at most 0.001; else "tail" if the worst 1 % hold more than 0.9; else "drift". Before you start: why in this order?
#
# <details><summary>Hint 1</summary>Four ifs, each with a return, the most alarming first.</details>
# <details><summary>Hint 2</summary>top_p has a k3 of 0.00099 and a mean ratio of 0.968 ± 0.001.</details>


# %%
def verdict(k3, mean_ratio, error, worst_share):
    raise NotImplementedError("exercise 3: write verdict, then run this cell and the next.")


# %% tags=["check"]
check(verdict, VERDICT)


# %% tags=["solution", "hide-input"]
def verdict_solution(k3, mean_ratio, error, worst_share):
    if abs(mean_ratio - 1) > 5 * error:
        return "wrong q"
    if k3 <= 1e-3:
        return "rounding"
    return "tail" if worst_share > 0.9 else "drift"


check(verdict_solution, VERDICT)

# %% [markdown]
# ## Check yourself
#
# **1. A colleague reports: "mean importance ratio 0.9998, so engine and trainer agree." What do you ask for?**
#
# <details><summary>Nothing, 0.9998 is excellent.</summary>No. It is 1 for every pair of policies, on average.</details>
# <details><summary>k3 or mean |d|, the largest |d|, and the error of that mean.</summary>Yes: a size, a tail, and
# whether 0.9998 is near 1 in units of its own noise.</details>
# <details><summary>The mean ratio after truncation.</summary>No. It says how much was cut, if one knows the mean
# before.</details>
#
# **2. k3 rose from 5e-5 to 3e-3 within five steps and stays there. Every sync reported success. What do you suspect?**
#
# <details><summary>Rounding in bfloat16.</summary>No. Rounding is there at step 1.</details>
# <details><summary>The lag of an asynchronous trainer.</summary>Possible: age climbs for as many steps as the lag, too.
# Look at the logits per token id: a forgotten head leaves a constant per token.</details>
# <details><summary>A tensor that the sync does not carry.</summary>Yes, this is the course of stale_head.</details>
#
# **3. `rollout_is_max` has been 2.0 for hundreds of steps. Good news?**
#
# <details><summary>Yes, the ratios never exceed 2.</summary>No. It is measured after the bound, which is 2.</details>
# <details><summary>No news: look at rollout_is_raw_max.</summary>Yes.</details>
# <details><summary>Bad news, the bound should be raised.</summary>Not by this number. See lesson 11.</details>

# %% [markdown]
# ## In the app
#
# After `make app`, open
#
# - [four trainings over each other](http://localhost:8501/training?run=stale_head&with=stale_4,moe_bf16,moe_replay);
# - [the pairs of the stale head](http://localhost:8501/mismatch?run=stale_head&step=latest), with what `triage` says;
# - [the report, with every metric explained](http://localhost:8501/bench?run=moe_bf16&step=latest&preset=slime_mis);
# - [the study](http://localhost:8501/training?part=Study&study=stale_8).
#
# ## Pitfalls
#
# - **Before or after.** Ask of every ratio metric whether it was measured before or after bounds and rejection.
# - **One step.** At step 1 every sync is fresh. Watch ten.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: what k1, k2 and k3
#    estimate, and their noise.
# 2. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics under the
#    names used here.
# 3. Liu, Li et al., [When Speed Kills
#    Stability](https://yingru.notion.site/When-Speed-Kills-Stability-Demystifying-RL-Collapse-from-the-Training-Inference-Mismatch-271211a558b7808d8b12d403fd15edda),
#    2025: trainings that collapsed, and what their dashboards showed.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; the whole report on six runs, and more of the study.

# %% [markdown]
# ### How the numbers hang together, with symbols

# %%
N = 4
x = sympy.symbols(f"d1:{N + 1}", real=True)
eps = sympy.symbols("epsilon", positive=True)


def average(values):
    return sympy.Add(*values) / N


r = [sympy.exp(d) for d in x]
kl, k3_kl, mean_r = average([-d for d in x]), average([sympy.exp(d) - 1 - d for d in x]), average(r)
chi2, ess = average([y**2 for y in r]) - 1, sympy.Add(*r) ** 2 / (N * sympy.Add(*[y**2 for y in r]))
assert sympy.simplify(k3_kl - kl - (mean_r - 1)) == 0
assert sympy.simplify(ess * (1 + chi2) - mean_r**2) == 0

# %%
small = {d: eps * d for d in x}
variance = average([d**2 for d in x]) - average(x) ** 2
for order, wanted in ((0, 0), (1, 0), (2, variance)):
    of_order = sympy.diff((1 - ess).subs(small, simultaneous=True), eps, order).subs(eps, 0) / sympy.factorial(order)
    assert sympy.simplify(of_order - wanted) == 0
twice_k3 = sympy.diff(k3_kl.subs(small, simultaneous=True), eps, 2).subs(eps, 0)  # 2/2! of it
assert sympy.simplify(twice_k3 - average([d**2 for d in x])) == 0
for one in of_run.values():
    assert math.isclose(one["k3_kl"], one["kl"] + one["is_ratio_mean"] - 1, abs_tol=1e-12)
    assert math.isclose(one["ratio_eff_sample_size"] * (1 + one["chi2_token"]), one["is_ratio_mean"] ** 2, rel_tol=1e-9)
show("1 − ESS, to second order", "Var(d)")

# %% [markdown]
# ### The mean ratio in a small world
#
# All answers of a small world, and trainers that are further and further from the engine. Nothing is sampled: these
# are the numbers that an endless batch would show.

# %%
lines = {"KL of whole answers": [], "mean ratio": [], "ESS": []}
gaps = (0.0, 0.1, 0.3, 1.0, 2.0)
for gap in gaps:
    little = small_world(gap)
    where, policies = little.where, little.policies
    of_engine = toy.probabilities(where, policies.rollout)
    ratios = toy.probabilities(where, policies.old) / of_engine
    mean_ratio = float((of_engine * ratios).sum())
    values = float(toy.kl(where, policies.rollout, policies.old)), mean_ratio
    for line, value in zip(
        lines.values(), (*values, mean_ratio**2 / float((of_engine * ratios**2).sum())), strict=True
    ):
        line.append(value)
show("noise on the logits", *gaps, digits=1)
for name, values in lines.items():
    show(name, values)
assert all(math.isclose(value, 1, abs_tol=1e-12) for value in lines["mean ratio"])

# %% [markdown]
# ### The whole report, on six runs
#
# `control_fp32` (nothing but the order of sums), `bf16` (rounding), `kv_fp8_e5m2` (a cache with two bits of mantissa,
# long answers), `stale_4` (old weights), `stale_head` (a sync that forgets the output head), `moe_bf16` (a mixture of
# experts, in which rounding swaps experts). The correction is `slime_mis`, because it has weights, a token rule, vetoes
# and batch normalisation. "Look closer" is what the library says of a bad value; its limits were set with tiny models
# and with the published figures above, and are no verdict.

# %% tags=["hide-input"]
PATIENTS = {"fp32": "control_fp32", "bf16": "bf16", "e5m2": "kv_fp8_e5m2", "stale_4": "stale_4", "head": "stale_head",
            "moe": "moe_bf16"}  # fmt: skip
patients = {short: report(load(name), preset("slime_mis")) for short, name in PATIENTS.items()}
RULE = "rollout_rs_token_k1_"
OF_RULE = {key: value for key, value in patients["e5m2"].items() if key.startswith(RULE)}


def brief(number):
    """Two digits."""
    return "0" if number == 0 else f"{number:.2g}" if 1e-3 <= abs(number) < 1e5 else f"{number:.0e}"


def said_of(key):
    """Meaning and bad value, from the library's tables."""
    named = METRICS | PROBABILITY_METRICS | OBJECTIVE_METRICS
    metric = named.get(key) or RULE_METRICS[key.removeprefix(RULE).removeprefix("log_ratio_")]
    return metric.meaning, metric.bad


def table(keys, of_patients):
    """One line per metric."""
    lines = [["metric", "what it is", "look closer", *PATIENTS], ["---"] * (3 + len(PATIENTS))]
    lines += [[f"`{key}`", *said_of(key), *(brief(one[key]) for one in of_patients.values())] for key in keys]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


assert len(OF_RULE) == len(RULE_METRICS)
say(table([*METRICS, *PROBABILITY_METRICS], patients))

# %% [markdown]
# Each rule adds its own metrics under its name; here those of `token_k1`. The statistic is $d$. Then those that the
# trainer measures while it updates, at the last step. (`lr_factor` is what rejection multiplies a plain gradient step
# by; Adam undoes a constant factor.)

# %% tags=["hide-input"]
say(table(OF_RULE, patients))
last = {short: runs.read_metrics(runs.find_run(name))[-1] for short, name in PATIENTS.items()}
say(table([key for key in OBJECTIVE_METRICS if key in last["bf16"]], last))

# %% tags=["hide-input"]
spread = [patients[name]["log_ratio_std"] / patients[name]["abs_log_ratio"] for name in ("bf16", "moe")]
assert patients["moe"]["abs_log_ratio_max"] > 10 * patients["bf16"]["abs_log_ratio_max"]
assert min(patients[name]["chi2_token"] for name in ("bf16", "moe")) < 0
say(f"""
Three things to see. In `bf16` and `moe` the spread of $d$ is {spread[0]:.0f} and {spread[1]:.0f} times mean $|d|$: a
few tokens carry the mismatch, healthy or not, so no limit on that ratio tells them apart; the largest $|d|$ does. The
perplexity of `bf16` is {patients["bf16"]["rollout_ppl"]:.2f}: its answers are nearly certain, which flatters the
engine. And `chi2_token` is negative for two runs. χ² cannot be; on a sample that lacks the rare large ratios its
estimate is.
""")

# %% [markdown]
# ### Two tails
#
# `stale_head` is A and `kv_fp8_e5m2` is B. **Look for** the place where the lines cross: up to there the forgotten head
# is the worse one, beyond it the cache has the longer tail.

# %%
picture(tails(load("stale_head"), load("kv_fp8_e5m2")))


def share_beyond(name, size):
    batch = load(name)
    d = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
    return float((d.abs() >= size).double().mean())


assert share_beyond("stale_head", 0.5) > share_beyond("kv_fp8_e5m2", 0.5)
assert share_beyond("stale_head", 0.7) < share_beyond("kv_fp8_e5m2", 0.7)

# %% [markdown]
# ### Over the steps
#
# **Look for** four shapes of k3 (dotted): `stale_head` jumps in the first steps and stays; `stale_4` climbs while the
# weights that sample grow older, and then sinks with the learning rate; `moe_bf16` spikes, one swapped expert at a
# time; `moe_replay`, the same with the engine's experts in the trainer, is quiet.

# %%
training = {
    name: runs.read_metrics(runs.find_run(name)) for name in ("stale_head", "stale_4", "moe_bf16", "moe_replay")
}
picture(over_steps(PANELS["mismatch"], training))
key = f"{PREFIX}k3_kl"
show("k3 at step", 1, 2, 3, 5, 10, 20, 40)
for name, course in training.items():
    show(name, *[brief(course[step - 1][key]) for step in (1, 2, 3, 5, 10, 20, 40)])
assert training["stale_head"][0][key] == training["stale_4"][0][key]

# %% [markdown]
# At step 1 `stale_head` and `stale_4` have the same k3, that of rounding: nothing is stale yet. A smoke test of one
# step would pass both.
#
# ### More of `stale_8`
#
# The reward has its own past for a band: the mean of five steps must not fall below the lowest such mean of the first
# nine steps.


# %%
def reward_alarm(course, first):
    """The step of its alarm, from the first step on whose answers an update can have touched."""
    rewards = [row["reward"] for row in course]
    means = [sum(rewards[n - 4 : n + 1]) / 5 for n in range(4, len(rewards))]
    alarm = first_alarm(means[first - 4 :], min(means[: first - 4]), math.inf, 3)
    return alarm + first if alarm else 0


stale_courses = courses_of("stale_8")
late = {arm: reward_alarm(course, 9) for arm, course in stale_courses.items()}
show("alarm at step, three seeds", "grad_norm", "", "", "reward", "", "", "low")
for name in dict.fromkeys(preset_name for preset_name, _ in stale):
    arms = [(name, seed) for seed in (0, 1, 2)]
    cells = [stale[arm]["grad_norm"] or "—" for arm in arms] + [late[arm] or "—" for arm in arms]
    show(name, *cells, sum(stale[arm]["low"] for arm in arms))

# %% tags=["hide-input"]
lead = [late[arm] - one["grad_norm"] for arm, one in stale.items() if one["low"]]
first_rewards = {tuple(row["reward"] for row in course[:9]) for (_, seed), course in stale_courses.items() if seed == 0}
unweighted = [row["ess"] for (name, _), course in stale_courses.items() if name == "disabled" for row in course]
assert len(first_rewards) == 1
assert set(unweighted) == {1.0}
say(f"""
In those that end low the reward gives alarm {min(lead)} to {max(lead)} steps after `grad_norm`. Why so late? For nine
steps the rewards of all ten corrections are equal to the last digit: these answers were all written by the weights from
before the first update. With a lag of eight the reward shows nothing that happened in the last eight steps.

And the effective sample size of `disabled` is {max(unweighted):.0f} at every step of a training that falls apart.
Without weights all weights are 1. `ratio_eff_sample_size` is the one to watch: it is that of the ratios, used or not.
""")

# %% [markdown]
# ### The verdict of exercise 3 on all runs
#
# It is cruder than `triage`, which can also name the stale head; but it would sit on one line of a log.

# %%
for name in COMMITTED:
    numbers = mismatch_numbers(tokens_of(load(name)))
    four_of = [numbers[key] for key in ("k3", "mean_ratio", "mean_ratio_error", "worst_share")]
    show(name, VERDICT.expected(*four_of).rjust(18), triage(load(name))[0].pattern.rjust(18))

starts = {
    name: runs.read_metrics(runs.find_run(name))[0][f"{PREFIX}rollout_ppl"] for name in ("async", "temperature_raw")
}
for name, perplexity in starts.items():
    show(f"{name}: perplexity at step 1", perplexity, digits=2)

# %% [markdown]
# `temperature_raw` passes for rounding. One line gives it away: both runs start from the same model, and its first
# answers are more certain than those of `async`. So write down the perplexity of a healthy start.
