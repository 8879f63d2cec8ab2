# %% [markdown]
# # 12 · Reading the dashboards
#
# **Claim.** No single number says that a run is healthy: size, tail, lean and what is left to learn from need one
# metric each, every metric has a blind spot, and the first to move is not the one that says what breaks.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* You need lesson 00; lessons 02, 05 and 07 explain the
# effective sample size, the bounds and the rules whose metrics are read here.
#
# At the end you can
#
# - read every metric of the report, and say what a healthy and a sick value look like;
# - name the metrics that say nothing by construction, and why;
# - go from a symptom to a cause, and to the next thing to look at;
# - say which metric moved first before a training broke, and which one told the broken from the healthy.

# %%
import math
import textwrap
import warnings

import sympy
import torch
from exercises.lesson_12 import DASHBOARD, EARLY_WARNING, VERDICT
from recorded import load
from show import picture, show

from rlcorr import CorrectionConfig, correct, evaluate, metrics, preset
from rlcorr.analysis.log_prob_pairs import measured, tokens_of
from rlcorr.analysis.triage import triage
from rlcorr.diagnostics import measure_probabilities
from rlcorr.figures.comparison import tails
from rlcorr.figures.study import study_curves
from rlcorr.figures.training import PANELS, over_steps
from rlcorr.gradients import toy
from rlcorr.gradients.toy import small_world
from rlcorr.metric_tables import METRICS, OBJECTIVE_METRICS, PREFIX, PROBABILITY_METRICS, RULE_METRICS
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.records.study import outcomes, read_study
from rlcorr.report import describe
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Four tokens, eight numbers
#
# The four tokens of lesson 00 have ratios 1.2, 0.5, 1 and 2. Here is what a dashboard makes of them. Do the mean ratio
# and the kl in your head: the logarithms are 0.18, −0.69, 0 and 0.69.

# %%
q = torch.tensor([[0.5, 0.8, 0.5, 0.4]], dtype=torch.float64)
p = torch.tensor([[0.6, 0.4, 0.5, 0.8]], dtype=torch.float64)
four = TokenBatch.from_log_probs(p.log(), q.log(), torch.ones(1, 4))


def report(batch, config=None):
    """Every metric by its name, without the prefix."""
    config = config or CorrectionConfig()
    reported = evaluate(batch, config)[1] | metrics(measure_probabilities(batch))
    return {key.removeprefix(PREFIX): value for key, value in reported.items()}


of_four = report(four)
show("size     abs_log_ratio, mean |d|", of_four["abs_log_ratio"])
show("size     kl, mean −d", of_four["kl"])
show("size     k2_kl, mean d²/2", of_four["k2_kl"])
show("size     k3_kl, mean r − 1 − d", of_four["k3_kl"])
show("tail     abs_log_ratio_max", of_four["abs_log_ratio_max"])
show("tail     chi2_token, mean r² − 1", of_four["chi2_token"])
show("lean     is_ratio_mean, mean r", of_four["is_ratio_mean"])
show("left     ratio_eff_sample_size", of_four["ratio_eff_sample_size"])

assert math.isclose(of_four["is_ratio_mean"], (1.2 + 0.5 + 1 + 2) / 4)
assert math.isclose(of_four["kl"], -math.log(1.2) / 4)
assert math.isclose(of_four["ratio_eff_sample_size"], 4.7**2 / (4 * (1.44 + 0.25 + 1 + 4)))

# %% [markdown]
# The kl is **negative**. A divergence cannot be; its estimate k1 can, on a small sample. k3 never is.
#
# Every metric answers one of four questions:
#
# - **size**: how far apart are the two policies on a typical token?
# - **tail**: do a few tokens carry most of it?
# - **lean**: is it to one side, more than chance allows?
# - **left**: after weights and rejection, what is there to learn from?
#
# ## How the numbers hang together
#
# They are averages of functions of the same $d$, so they are tied to each other:
#
# $$ \text{k3\_kl} = \text{kl} + (\bar r - 1), \qquad
#    \text{ESS}\cdot(1 + \chi^2) = \bar r^{\,2}, \qquad
#    1 - \text{ESS} \approx \mathrm{Var}(d) \approx 2\,\text{k3\_kl} . $$
#
# The first two hold exactly, on every batch. The last holds for small mismatches without a lean: a KL of 0.01 costs two
# percent of the sample.
#
# ### Check 1, with symbols

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

small = {d: eps * d for d in x}
variance = average([d**2 for d in x]) - average(x) ** 2
for order, wanted in ((0, 0), (1, 0), (2, variance)):
    of_order = sympy.diff((1 - ess).subs(small, simultaneous=True), eps, order).subs(eps, 0) / sympy.factorial(order)
    assert sympy.simplify(of_order - wanted) == 0
twice_k3 = sympy.diff(k3_kl.subs(small, simultaneous=True), eps, 2).subs(eps, 0)  # 2/2! of it
assert sympy.simplify(twice_k3 - average([d**2 for d in x])) == 0

show("k3_kl − kl = mean r − 1", "yes")
show("ESS (1 + χ²) = (mean r)²", "yes")
show("1 − ESS, to second order", "Var(d)")

# %% [markdown]
# And a softmax of three actions, with any two sets of logits: the expected ratio is 1, whatever they are. Lesson 00
# proved it for probabilities; here it is again, because it makes the mean ratio blind.

# %%
logits_p, logits_q = sympy.symbols("a1:4", real=True), sympy.symbols("b1:4", real=True)
of_p, of_q = (
    [sympy.exp(z) / sympy.Add(*map(sympy.exp, logit_row)) for z in logit_row] for logit_row in (logits_p, logits_q)
)
assert sympy.simplify(sympy.Add(*[b * (a / b) for a, b in zip(of_p, of_q, strict=True)]) - 1) == 0
show("E_q[r], for all logits", 1)

# %% [markdown]
# ### Check 2, with numbers: a metric that is wrong by construction
#
# All 364 answers of a small world, and trainers that are further and further from the engine. Nothing is sampled: these
# are the numbers that an endless batch would show.

# %%
gaps = (0.0, 0.1, 0.3, 1.0, 2.0)
lines = {"KL of whole answers": [], "mean ratio": [], "ESS": [], "1/(1 + χ²)": []}
for gap in gaps:
    little = small_world(gap)
    where, policies = little.where, little.policies
    of_engine = toy.probabilities(where, policies.rollout)
    ratios = toy.probabilities(where, policies.old) / of_engine
    second = float((of_engine * ratios**2).sum())
    lines["KL of whole answers"].append(float(toy.kl(where, policies.rollout, policies.old)))
    lines["mean ratio"].append(float((of_engine * ratios).sum()))
    lines["ESS"].append(float((of_engine * ratios).sum()) ** 2 / second)
    lines["1/(1 + χ²)"].append(1 / (1 + (second - 1)))
    assert math.isclose(lines["mean ratio"][-1], 1, abs_tol=1e-12)
    assert math.isclose(lines["ESS"][-1], lines["1/(1 + χ²)"][-1], rel_tol=1e-9)

show("noise on the logits", *gaps, digits=1)
for name, values in lines.items():
    show(name, values)

# %% [markdown]
# From a perfect copy to another policy altogether, the mean ratio stands at 1.0000. It **cannot** measure agreement.
# What it can do is catch a wrong $q$: if the tokens were not drawn from the recorded $q$, nothing holds it at 1.
#
# ### Check 3, with data: eleven runs
#
# The error is the standard error of the mean, the last column the distance from 1 in errors.


# %%
COMMITTED = ("control_fp32", "bf16", "temperature_raw", "moe_replay", "top_p", "stale_head", "moe_bf16", "kv_fp8",
             "async", "kv_fp8_e5m2", "stale_4")  # fmt: skip
show("last step of each run", "k3_kl", "mean r", "± error", "errors")
by_size = []
for name in COMMITTED:
    reported = report(load(name))
    error = reported["is_ratio_std"] / reported["tokens"] ** 0.5
    away = (reported["is_ratio_mean"] - 1) / error
    by_size.append(reported["k3_kl"])
    show(name, f"{reported['k3_kl']:.1e}", reported["is_ratio_mean"], error, f"{away:.1f}")
    assert (abs(away) > 10) if name == "top_p" else (abs(away) < 3)
    assert math.isclose(reported["k3_kl"], reported["kl"] + reported["is_ratio_mean"] - 1, abs_tol=1e-12)
    assert math.isclose(
        reported["ratio_eff_sample_size"] * (1 + reported["chi2_token"]), reported["is_ratio_mean"] ** 2, rel_tol=1e-9
    )

# %% [markdown]
# Ten runs stay within three errors of 1, while their k3 spans eleven orders of magnitude. One does not: `top_p`, whose
# engine cuts the distribution and reports the probabilities of what is left. Its k3 is below 0.001: by size it would
# pass for rounding. So read the mean ratio in errors, as an alarm for a wrong $q$, and never as a size.
#
# And mark `temperature_raw`, third from the top. It was sampled at temperature 0.7, while both log-probs are those of
# temperature 1. Both sides agree, on a policy that sampled nothing. **No metric of the pair can see it**: by all of
# them it is as healthy as `bf16`.
#
# ## The whole report, on six patients
#
# A control, an ordinary engine, and four with a known illness: `control_fp32` (nothing but the order of sums), `bf16`
# (16-bit rounding), `kv_fp8_e5m2` (an 8-bit cache with two bits of mantissa, long answers),
# `stale_4` (weights four steps old), `stale_head` (a sync that forgets the output head), `moe_bf16` (a mixture of
# experts, in which rounding swaps experts). The next cells show **every** metric of the report; the correction is
# `slime_mis`, because it has weights, a token rule, vetoes and batch normalisation, so that nothing is missing.

# %%
PATIENTS = {"fp32": "control_fp32", "bf16": "bf16", "e5m2": "kv_fp8_e5m2", "stale_4": "stale_4", "head": "stale_head",
            "moe": "moe_bf16"}  # fmt: skip
CONFIG = preset("slime_mis")
patients = {short: report(load(name), CONFIG) for short, name in PATIENTS.items()}
seen = set()


def brief(x):
    """Three digits, in nine characters."""
    return "0" if x == 0 else f"{x:.3g}" if 1e-3 <= abs(x) < 1e5 else f"{x:.1e}"


def rows(*keys):
    show("", *PATIENTS)
    for key in keys:
        assert key not in seen
        assert describe(key)  # `describe` says what it means; it refuses names that do not exist
        seen.add(key)
        show(key, *[brief(numbers[key]) for numbers in patients.values()])


def show_text(text):
    """A long text in lines."""
    for line in textwrap.wrap(text, 110):
        show(f"  {line}")


show("what describe says of k3_kl:")
show_text(describe("k3_kl"))

# %% [markdown]
# ### Size
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `abs_log_ratio` | mean \|d\|, the typical token | fp32: 1e-7; bf16: below 0.01 | above 0.03 |
# | `k3_kl` | KL per token, never negative | bf16: 1e-5 to 1e-3 | above 1e-3 in 16 bits, 1e-2 anywhere |
# | `k2_kl` | the same, blind to the side | near k3 | far above k3: the tail is at r < 1 |
# | `kl`, `log_ratio_mean` | the same unbiased (with either sign), noisy | near k3 | read k3 instead |
# | `log_ppl_diff`, `log_ppl_abs_diff` | `kl` with one vote per answer, and its size | near `kl` | growing |
# | `ppl_ratio` | perplexity, trainer over engine | 1.00 | above 1.05 |
# | `training_ppl`, `rollout_ppl`, and logarithms | how sure they are | falls while learning | 1, at a poor reward |
# | `…probs_diff_mean`, `…pearson_corr` | in probabilities, not logarithms | below 0.01; above 0.99 | the other way |
#
# The last row is verl's. It is kind to rare tokens: from 0.001 to 0.0001 is 0.0009.

# %%
rows("abs_log_ratio", "k3_kl", "k2_kl", "kl", "log_ratio_mean", "log_ppl_diff", "log_ppl_abs_diff", "ppl_ratio")
rows("training_ppl", "rollout_ppl", "training_log_ppl", "rollout_log_ppl")
rows("training/rollout_probs_diff_mean", "training/rollout_actor_probs_pearson_corr")

# %% [markdown]
# `head` and `e5m2` have much the same mean |d|, 0.035 and 0.026. One is a forgotten tensor, the other rounding: the
# size alone does not say. Also `rollout_ppl` of bf16: 1.05, the answers are nearly certain. That is the last of 400
# steps, and certain tokens have no mismatch, so its mean |d| of 0.0008 flatters the engine. Compare runs at the same
# perplexity.
#
# ### Tail
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `abs_log_ratio_max` | the worst token | below 0.5 in 16 bits | above 3: a ratio beyond 20 |
# | `abs_log_ratio_min` | the best token | near 0 | well above 0: a constant offset |
# | `log_ratio_std`, `abs_log_ratio_std` | spread | a few to eleven times mean \|d\| | little: a few tokens make it |
# | `is_ratio_max`, `is_ratio_min` | the same, by side | near 1 | 0.01: "impossible" tokens were written |
# | `is_ratio_std`, `chi2_token` | the noise that unbounded weights would have | near 0 | above 1 |
# | `chi2_seq` | the same of whole answers | near 0 | above 1: sequence weights are noise |
# | `log_ppl_diff_max`, `…_min` | the most surprising answers | small | read their text |
# | `…probs_diff_max`, `…_std`, `…_valid` | tail in probabilities; whether there was a token | below 0.1 | above 0.5 |

# %%
rows("abs_log_ratio_max", "abs_log_ratio_min", "log_ratio_std", "abs_log_ratio_std", "is_ratio_max", "is_ratio_min")
rows("is_ratio_std", "chi2_token", "chi2_seq", "log_ppl_diff_max", "log_ppl_diff_min")
rows("training/rollout_probs_diff_max", "training/rollout_probs_diff_std", "training/rollout_probs_diff_valid")

assert 1 < patients["head"]["abs_log_ratio"] / patients["e5m2"]["abs_log_ratio"] < 1.4
assert all(10 < patients[n]["log_ratio_std"] / patients[n]["abs_log_ratio"] < 11.5 for n in ("bf16", "moe"))
assert patients["e5m2"]["abs_log_ratio_max"] > 3 * patients["head"]["abs_log_ratio_max"]

# %% [markdown]
# In `bf16` and `moe` the spread is eleven times mean |d|: few tokens carry the mismatch, healthy or not. In `moe` they
# are broken, with
# |d| up to 3.4; in `bf16` they are merely those that are not certain. The largest |d| tells the two apart.
#
# `chi2_token` is negative for two of them. χ² cannot be; on a sample that lacks the rare large ratios it is. Now
# `head` (A) and `e5m2` (B) differ: the worst token is 1.3 against 4.9. **Look for** the place where the two lines
# cross, near |d| = 0.6. Up to there the forgotten head is the worse one; beyond it the cache has the longer tail.

# %%
picture(tails(load("stale_head"), load("kv_fp8_e5m2")))


def share_beyond(name, size):
    batch = load(name)
    d = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
    return float((d.abs() >= size).double().mean())


assert share_beyond("stale_head", 0.5) > share_beyond("kv_fp8_e5m2", 0.5)
assert share_beyond("stale_head", 0.7) < share_beyond("kv_fp8_e5m2", 0.7)

# %% [markdown]
# ### Lean
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `is_ratio_mean` | mean ratio | within 3 errors of 1 | further: q is not what sampled |
# | `rollout_is_raw_mean` | the same at the level of the weights | near 1; low for long answers | as above |
# | `rollout_is_mean` | after the bounds | just below 1 | far below: the bounds bias |
# | `rollout_is_batch_norm_factor` | what the weights were divided by | near 1 | the step would have changed by it |
#
# ### Weights
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `rollout_is_eff_sample_size` | ESS with bounds, as a share | above 0.9 | below 0.5 |
# | `rollout_is_raw_eff_sample_size` | ESS without them | near the line above | far below: bounds work hard |
# | `ratio_eff_sample_size` | the same for token ratios, used or not | above 0.9 | below 0.5 |
# | `rollout_is_bounded_max`, `…bounded_min` | **after** the bounds | | says nothing at the bound |
# | `rollout_is_max`, `rollout_is_min` | verl's: of tokens after the bounds, of sequences before | | as its line |
# | `rollout_is_raw_max`, `…raw_min`, `…std`, `…raw_std` | before, and spreads | as `is_ratio_…` | |
# | `…ratio_fraction_high`, `…_low`, `…oob_ratio` | share beyond a bound | below 0.01 | above 0.05 |
# | `…seq_mean`, `…_std`, `…_max`, `…_min`, `…_max_deviation` | mean weight per answer | near 1 | 2: it counts twice |
# | `…seq_fraction_high`, `…_low`, `…seq_eff_sample_size` | the same as shares of answers | 0, 0, 1 | |

# %%
rows("is_ratio_mean", "rollout_is_raw_mean", "rollout_is_mean", "rollout_is_batch_norm_factor")
rows("rollout_is_eff_sample_size", "rollout_is_raw_eff_sample_size", "ratio_eff_sample_size")
rows("rollout_is_max", "rollout_is_min", "rollout_is_bounded_max", "rollout_is_bounded_min", "rollout_is_raw_max",
     "rollout_is_raw_min", "rollout_is_std", "rollout_is_raw_std")  # fmt: skip
rows("rollout_is_ratio_fraction_high", "rollout_is_ratio_fraction_low", "rollout_is_oob_ratio")
rows("rollout_is_seq_mean", "rollout_is_seq_std", "rollout_is_seq_max", "rollout_is_seq_min",
     "rollout_is_seq_max_deviation")  # fmt: skip
rows("rollout_is_seq_fraction_high", "rollout_is_seq_fraction_low", "rollout_is_seq_eff_sample_size")

assert all(math.isclose(patients[short]["rollout_is_max"], 2) for short in ("e5m2", "stale_4"))

# %% [markdown]
# `rollout_is_max` is 2.00 for three patients. It is the bound itself: a system that logs ratios after truncation always
# shows a healthy maximum. Of the same kind are all metrics of a kept set, measured after the rule.
#
# ### Left
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `kept_fraction` | share of tokens that no rule rejects | above 0.95 | below 0.5 (lesson 07) |
# | `rollout_rs_masked_fraction` | 1 minus it | | |
# | `rollout_rs_seq_masked_fraction` | answers that lost a token | small | near 1 |
# | `rollout_rs_veto_seq_masked_fraction` | answers that a veto rejects | 0 | above 0.01 |
# | `trained_is_mean` | mean weight of the kept ones | near 1 | the step differs by it |
# | `trained_eff_sample_size` | ESS after weights **and** rejection | above 0.9 | below 0.5 |
# | `tokens`, `sequences` | what was measured | steady | 0, or jumping |

# %%
rows("kept_fraction", "rollout_rs_masked_fraction", "rollout_rs_seq_masked_fraction")
rows("rollout_rs_veto_seq_masked_fraction", "trained_is_mean", "trained_eff_sample_size", "tokens", "sequences")

assert seen == set(METRICS) | set(PROBABILITY_METRICS)  # every metric of the report was shown
show("metrics shown", len(seen))

# %% [markdown]
# Each rule adds its own, under its name. s is the number that the rule compares: for `token_k1` it is $d$, and the
# bounds are the logarithms of 0.5 and 2. Where verl's number of the name is of −log r, ours says `log_ratio_`. A
# `fraction_low` far above `fraction_high` says that the losses lie on one side.

# %%
rule = "rollout_rs_token_k1_"
of_rule = [key for key in patients["e5m2"] if key.startswith(rule)]
rows(*of_rule)
assert len(of_rule) == len(RULE_METRICS)

# %% [markdown]
# The last group is measured by the trainer while it updates. `runs` keeps it for every step; here is the last one.
#
# | metric | what it is | healthy | sick |
# |---|---|---|---|
# | `grad_norm` | length of the gradient before clipping | steady | ten times up, or towards 0 |
# | `entropy` | of the policy, per token | falls slowly | 0, or rising while the reward falls |
# | `actor/ppo_kl`, `actor/pg_clipfrac` | how far this update moved; share clipped | below 0.1; below 0.3 | above |
# | `actor/pg_loss`, `actor/kl_loss` | policy loss; KL to the reference | around 0; growing slowly | without end |
# | `lr_factor` | what rejection multiplies the loss by; Adam undoes what stays the same | 1 | far below 1 |
# | `actor/pg_clipfrac_lower`, `rollout_kl` | only with dual clip; only with the rollout KL loss | | |

# %%
last = {short: runs.read_metrics(runs.find_run(name))[-1] for short, name in PATIENTS.items()}
show("", *PATIENTS)
for key in ("reward", "grad_norm", "entropy", "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_loss", "actor/kl_loss",
            "lr_factor"):  # fmt: skip
    show(key, *[brief(row[key]) for row in last.values()])
shown_here = {key for key in OBJECTIVE_METRICS if key in last["bf16"]}
show("not in these runs", *sorted(set(OBJECTIVE_METRICS) - shown_here))

# %% [markdown]
# ## Over the steps
#
# One step is a photograph. **Look for** four shapes of k3 (dotted): `stale_head` jumps in the first steps and stays;
# `stale_4` climbs for four steps, while the weights that sample grow older, and then sinks slowly, while the learning
# rate falls to a tenth; `moe_bf16` spikes, one swapped expert at a time; `moe_replay`, the same with the engine's
# experts in the trainer, is quiet.

# %%
training = {
    name: runs.read_metrics(runs.find_run(name)) for name in ("stale_head", "stale_4", "moe_bf16", "moe_replay")
}
picture(over_steps(PANELS["mismatch"], training))

key = f"{PREFIX}k3_kl"
show("k3 at step", 1, 2, 3, 5, 10, 20, 40)
for name, courses in training.items():
    show(name, *[brief(courses[step - 1][key]) for step in (1, 2, 3, 5, 10, 20, 40)])

assert training["stale_head"][0][key] == training["stale_4"][0][key]

# %% [markdown]
# At step 1 `stale_head` and `stale_4` have the same k3, that of rounding: nothing is stale yet. A smoke test of one
# step would pass both.
#
# ## From the symptom to the cause
#
# `triage` runs one test per known cause on a batch of pairs, and says what it found.

# %%
for name in COMMITTED:
    first = triage(load(name))[0]
    show(name, first.pattern.rjust(18), first.strength, digits=2)

# %% [markdown]
# What the patients and `runs/` teach, as symptom, cause, and what to do next:
#
# - **The mean ratio is off 1 by many errors, d on one side.** Top-p, top-k or a temperature that one side lacks. Ask
#   the engine for processed log-probs; sample without a cut, or record its mask.
# - **k3 is above 0.001 at step 1 already.** Coarse numbers: an 8-bit cache, a 16-bit output head. Score the same tokens
#   with a 32-bit engine, and raise the precision of the head first.
# - **k3 jumps after the first updates and stays; a constant per token id.** A tensor that the sync forgets. Compare one
#   checksum per tensor after a sync.
# - **k3 climbs for as many steps as the lag, then stays, or sinks with the learning rate.** Old weights. Less lag, or
#   weights on the product (lesson 13).
# - **Mean |d| like rounding, single tokens beyond 3, one percent of the tokens holds nearly all of k3.** Swapped
#   experts. Router replay (lesson 14).
# - **k3 of 0.5 and more.** Another prompt, another chat template, a shift by one token. Score one prompt by hand, token
#   by token.
# - **Log-probs of exactly 0.** Padding or tool tokens inside the mask. Repair the mask.
# - **Everything is healthy, and the reward falls.** A setting of the sampler that neither log-prob knows, or the reward
#   itself. Sample one prompt many times with both programs, and compare frequencies.
# - **`kept_fraction` falls, k3 does not.** Answers became longer, or the bound lies near the KL (lesson 07).
# - **The ESS falls, k3 does not.** Sequence weights on longer answers (lesson 06).
# - **`grad_norm` spikes, and nothing is bounded.** The tail. A cap on the weights (lesson 05).
# - **`grad_norm` goes towards 0, and `kept_fraction` too.** The rule rejects what could be learnt. Loosen it, or weigh
#   instead.
#
# "Beyond rounding" is honest: old weights and an 8-bit cache look alike in the pairs of one step. Their course over the
# steps tells them apart: the cache is there at step 1, the age is not.
#
# ## What moves first before a collapse?
#
# The study `stale_8` has thirty trainings on weights that are eight steps old: ten corrections, three seeds. Twelve of
# them end below their start, a reward of about 0.2. `stale_0` is the same training on fresh weights, with no
# correction: its smallest and largest value of each metric are our **healthy band**. A metric gives **alarm** at the
# first of three steps in a row outside its band. (Exercise 2 asks you to write this function.) The reward has its own
# past for a band: the mean of five steps must not fall below the lowest such mean of the first nine steps.

# %%
first_alarm = EARLY_WARNING.expected


def courses_of(study):
    """(preset, seed) → rows."""
    by_training = {}
    for row in read_study(study)[0]:
        by_training.setdefault((row["preset"], row["seed"]), []).append(row)
    return by_training


def bands_of(study, keys):
    rows = read_study(study)[0]
    values = {key: [row[key] for row in rows if row[key] is not None] for key in keys}
    return {key: (min(values_of_key), max(values_of_key)) for key, values_of_key in values.items()}


def start_of(course, first):
    return sum(row["reward"] for row in course[:first]) / first


def ends_low(course, first):
    """Whether the last quarter earned less than the first steps."""
    end = [row["reward"] for row in course[-(len(course) // 4) :]]
    return sum(end) / len(end) < start_of(course, first)


WATCHED = ("k3", "grad_norm", "entropy")


def reward_alarm(course, first):
    """The same for the mean of five rewards, from the first step on whose answers an update can have touched. The
    lowest mean before that is the bound."""
    rewards = [row["reward"] for row in course]
    means = [sum(rewards[n - 4 : n + 1]) / 5 for n in range(4, len(rewards))]
    alarm = first_alarm(means[first - 4 :], min(means[: first - 4]), math.inf, 3)
    return alarm + first if alarm else 0


def alarms(study, control, first):
    """Bands from the control; of every training the steps of its alarms, and whether it ends below its first steps."""
    bands = bands_of(control, WATCHED)
    first_steps = {}
    for arm, course in courses_of(study).items():
        steps = [first_alarm([row[key] for row in course], *bands[key], 3) for key in WATCHED]
        first_steps[arm] = dict(zip(WATCHED, steps, strict=True)) | {"low": ends_low(course, first)}
    return bands, first_steps


bands, stale = alarms("stale_8", "stale_0", 9)
for key in WATCHED:
    show(f"healthy band of {key}", *[brief(x) for x in bands[key]])
for arm, course in courses_of("stale_8").items():
    stale[arm]["reward"] = reward_alarm(course, 9)
show("alarm at step, three seeds", "k3", "", "grad_norm", "", "", "reward", "", "low")
for name in dict.fromkeys(preset_name for preset_name, _ in stale):
    trainings = [stale[name, seed] for seed in (0, 1, 2)]
    cells = [one[key] or "—" for key in ("grad_norm", "reward") for one in trainings]
    show(name, trainings[0]["k3"], *cells, sum(one["low"] for one in trainings))

assert {one["k3"] for one in stale.values()} == {2}

# %% [markdown]
# **k3 moves first, at step 2, in all thirty.** It has to: it measures the illness that all of them were given. The
# trainings with a cap on the weights live with a k3 of 0.2 and more, thousands of times the healthy value, and do not
# end low. k3 says that there is a mismatch. It does not say whether the correction copes.
#
# `grad_norm` does, here. Count it.


# %%
def table_of(first_steps, key):
    """Of the trainings that end low, and of the others: how many gave alarm."""
    groups = [[one[key] > 0 for one in first_steps.values() if one["low"] is low] for low in (True, False)]
    return [sum(groups[0]), len(groups[0]), sum(groups[1]), len(groups[1])]


show("stale_8: alarm among", "low", "of", "others", "of")
for key in WATCHED:
    show(key, *table_of(stale, key))

assert table_of(stale, "k3") == [12, 12, 18, 18]
assert table_of(stale, "grad_norm")[0] == 12
assert table_of(stale, "grad_norm")[2] <= 1
rejecting = ("decoupled_seq_is_rs", "skyrl_geo_mask", "decoupled_k3_rs")
assert max(stale[name, seed]["grad_norm"] for name in rejecting for seed in (0, 1, 2)) <= 5
assert min(stale["disabled", seed]["grad_norm"] for seed in (0, 1, 2)) >= 8
lead = [one["reward"] - one["grad_norm"] for one in stale.values() if one["low"]]
assert not any(one["reward"] for one in stale.values() if not one["low"])
show("reward alarm minus grad_norm alarm", "from", min(lead), "to", max(lead), "steps")

# %% [markdown]
# All twelve that end low give alarm by `grad_norm` within twelve steps, nine steps or more before the reward does. Of
# the eighteen others one does, at step 35, and does not end low. They leave the band on two sides: without a correction
# upwards, because single tokens with huge ratios decide; with rejected answers downwards, because next to nothing is
# left.
#
# (Three seeds of one correction are not three independent cases. These are ten corrections, not thirty.)
#
# Why is the reward so late? Look at seed 0 of all ten.

# %%
of_seed = {
    name: [row["reward"] for row in course] for (name, seed), course in courses_of("stale_8").items() if seed == 0
}
show("reward at step", 1, 5, 9, 10, 15, 20, 30, 60)
for name in ("disabled", "skyrl_geo_mask", "decoupled_seq_is"):
    show(name, *[of_seed[name][step - 1] for step in (1, 5, 9, 10, 15, 20, 30, 60)], digits=2)

assert len({tuple(rewards[:9]) for rewards in of_seed.values()}) == 1
assert len({tuple(rewards[:11]) for rewards in of_seed.values()}) > 1

# %% [markdown]
# For nine steps the ten rewards are **equal to the last digit**. These answers were all written by the weights from
# before the first update. With a lag of eight, the reward shows nothing that happened in the last eight steps; neither
# does anything else that is measured on the answers alone. The gradient is of today. **Look for** the band between 0.6
# and 3: one line leaves it upwards, one downwards, one stays inside.

# %%
study_rows = [row for row in read_study("stale_8")[0] if row["step"] <= 40]
three = ["disabled", "skyrl_geo_mask", "decoupled_seq_is"]
picture(study_curves(study_rows, three, "grad_norm", log=True))

# %% [markdown]
# One more number of this study, as a warning. The effective sample size of `disabled`:

# %%
ess_of = [row["ess"] for (name, _), course in courses_of("stale_8").items() if name == "disabled" for row in course]
show("disabled: smallest, largest ESS", min(ess_of), max(ess_of))
assert min(ess_of) == max(ess_of) == 1

# %% [markdown]
# One, at every step of a training that falls apart. Without weights all weights are 1 and their ESS is 1, by
# construction. `ratio_eff_sample_size` is the one to watch: it is that of the ratios, used or not.
#
# ### Does it hold for another illness?
#
# We chose `grad_norm` after looking at `stale_8`. So ask a study that we have not used: `kv_fp8_e5m2`, an 8-bit cache,
# with `kv_bf16` as the healthy control. It is shorter, sixteen steps, and the start is the mean of the first two.

# %%
_, cache = alarms("kv_fp8_e5m2", "kv_bf16", 2)
show("kv_fp8_e5m2: alarm among", "low", "of", "others", "of")
for key in WATCHED:
    show(key, *table_of(cache, key))
best = outcomes(read_study("kv_fp8_e5m2")[0])[0].preset
show("best preset", best, *[cache[best, seed]["grad_norm"] or "—" for seed in (0, 1, 2)])

assert best == "decoupled_seq_is"
assert all(cache[best, seed]["grad_norm"] for seed in (0, 1, 2))
assert not all(one["grad_norm"] for one in cache.values() if one["low"])
assert table_of(cache, "k3") == [19, 19, 11, 11]
assert table_of(cache, "grad_norm")[:2] == [16, 19]
assert table_of(cache, "entropy") == [19, 19, 5, 11]

# %% [markdown]
# It does **not**. `grad_norm` gives alarm on the best correction of all, on every seed: its gradients are shorter than
# the healthy ones, presumably because most products are below 1 (lesson 00). And it is silent on three that end low.
# Here `entropy`, which said nothing about stale weights, is better: it gives alarm in all nineteen that end low, and in
# five of the eleven others. k3 gives alarm in every one, again.
#
# So: in both studies k3 is first, and it says that something is wrong. Which second metric says what becomes of it
# depends on the illness. A band that was found on one incident is a hypothesis about the next.

# %% [markdown]
# ## Predict, then reveal
#
# Four runs that were not among the six patients, without their names. **Write down which is which:**
#
# 1. sampled with top-p 0.9;
# 2. sampled at temperature 0.7, both log-probs at temperature 1;
# 3. a mixture of experts in bfloat16, with router replay;
# 4. generation runs ahead of training by up to two versions.
#
# "worst 1 %" is the share of k3 that a hundredth of the tokens holds.

# %%
UNNAMED = {"A": "moe_replay", "B": "async", "C": "temperature_raw", "D": "top_p"}
unnamed = {letter: report(load(name)) for letter, name in UNNAMED.items()}
show("", *UNNAMED)
for key in ("abs_log_ratio", "k3_kl", "abs_log_ratio_max", "is_ratio_min", "is_ratio_mean", "rollout_ppl"):
    show(key, *[brief(numbers[key]) for numbers in unnamed.values()])
first_rows = [runs.read_metrics(runs.find_run(name))[0] for name in UNNAMED.values()]
show("rollout_ppl at step 1", *[brief(row[f"{PREFIX}rollout_ppl"]) for row in first_rows])
show("worst 1 %", *[measured(tokens_of(load(name)))["worst_share"] for name in UNNAMED.values()], digits=2)

# %%
for letter, name in UNNAMED.items():
    show(f"{letter} is {name}")
    show_text(triage(load(name))[0].sentence)

# %% [markdown]
# D has the lean, B the size. A and C are both rounding by every number of the pair; A is the mixture, a less certain
# model. C is the run that is wrong, and `triage` calls it precision. One line gives it away: B, C and D start from the
# same model, and at step 1 its answers have a perplexity of 2.00 at temperature 1. C begins at 1.73: what was sampled
# is too certain. (So does D, for the same reason: a cut distribution.) One must know the model to notice, so write down
# the perplexity of a healthy start.

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
# The same four lines on all runs. They are cruder than `triage`, which can also name the stale head; but they would sit
# on one line of a log.

# %%
for name in COMMITTED:
    numbers = measured(tokens_of(load(name)))
    four_of = [numbers[key] for key in ("k3", "mean_ratio", "mean_ratio_error", "worst_share")]
    show(name, VERDICT.expected(*four_of).rjust(18), triage(load(name))[0].pattern.rjust(18))

# %% [markdown]
# ## Check yourself
#
# **1. A colleague reports: "mean importance ratio 0.9998, so engine and trainer agree." What do you ask for?**
#
# <details><summary>Nothing, 0.9998 is excellent.</summary>No. It is 1 for every pair of policies, on average. It would
# be 1 for a trainer that learnt another language.</details>
# <details><summary>k3 or mean |d|, the largest |d|, and the error of that mean.</summary>Yes: a size, a tail, and
# whether 0.9998 is near 1 in units of its own noise.</details>
# <details><summary>The mean ratio after truncation.</summary>No. The bounds only hide the tail; a mean after them says
# how much was cut, if one knows the mean before.</details>
#
# **2. k3 rose from 5e-5 to 3e-3 within five steps and stays there. Every sync reported success. What do you suspect?**
#
# <details><summary>Rounding in bfloat16.</summary>No. Rounding is there at step 1; and 3e-3 is above what it
# leaves.</details>
# <details><summary>The lag of an asynchronous trainer.</summary>Possible: age climbs for as many steps as the lag, too.
# Look at the logits per token id; age moves all of them, a forgotten head leaves a constant per token.</details>
# <details><summary>A tensor that the sync does not carry.</summary>Yes, this is the course of stale_head. It is equal
# at first, because nothing has been trained, and drifts as the trainer moves away.</details>
#
# **3. `rollout_is_max` has been 2.0 for hundreds of steps. Good news?**
#
# <details><summary>Yes, the ratios never exceed 2.</summary>No. It is measured after the bound, which is 2: it cannot
# be larger.</details>
# <details><summary>No news: look at rollout_is_raw_max and at the share beyond the bound.</summary>Yes. Exactly 2.0
# only says that at least one token was cut.</details>
# <details><summary>Bad news, the bound should be raised.</summary>Not by this number. How many tokens are beyond the
# bound, and what that costs, is lesson 11.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open
#
# - [four trainings over each other](http://localhost:8501/training?run=stale_head&with=stale_4,moe_bf16,moe_replay):
#   all panels, step by step;
# - [what the pairs of the stale head look like](http://localhost:8501/mismatch?run=stale_head&step=latest): the finding
#   of `triage` stands on top;
# - [the same report, with every metric
#   explained](http://localhost:8501/bench?run=moe_bf16&step=latest&preset=slime_mis);
# - [the study](http://localhost:8501/training?part=Study&study=stale_8).
#
# ## Pitfalls
#
# - **Before or after.** Ask of every ratio metric whether it was measured before or after bounds and rejection. After,
#   it looks fine.
# - **Means over rows.** Empty rows (padding) that count as perplexity 1 make a batch look healthier the more of them
#   there are. Here rows without tokens count nowhere.
# - **Maxima over micro-batches.** A mean of maxima is not a maximum. Merge counts, sums and extremes, then divide.
# - **Confidence.** Certain tokens have no mismatch. As a model learns, mean |d| falls while nothing was repaired.
# - **One step.** At step 1 every sync is fresh. Watch the first ten.
# - **A quiet dashboard.** A sampler setting that neither log-prob knows of is invisible in every number of the pair.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: what k1, k2 and k3
#    estimate, and their noise.
# 2. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the metrics under the
#    names used here.
# 3. Liu, Li et al., [When Speed Kills Stability](https://yingru.notion.site), 2025: trainings that collapsed, and what
#    their dashboards showed.
