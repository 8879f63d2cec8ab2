# %% [markdown]
# # 08 · Rejection: which tokens are left out, and what is trained on then
#
# **Claim.** Rejection does not repair an average. It trains on another distribution: the engine's, restricted to what
# is kept. It also multiplies the gradient by the kept share, unless the loss is divided by the number of kept tokens.
#
# *80 minutes · intermediate · any laptop; no GPU, no network.* You need the ratio (lesson 00), weights (lesson 01),
# the cap (lesson 03) and the levels of lesson 07. All letters are in [Notation](NOTATION.md).
#
# At the end you can
#
# - compute the distribution on which a rejection rule trains, and its bias;
# - compare three kinds of rules for tokens: bands on ratios, KPop, and bands on probabilities;
# - say what a fixed and a kept denominator do to the length of a step;
# - predict which rule keeps long answers;
# - read what our studies show about rejection, and what they leave open.

# %% tags=["hide-input"]
import math
from itertools import pairwise

import sympy
import torch
from exercises.mini_loss import LOSS, slope
from exercises.rejection import GEOMETRIC_RULE, TRAINED_DISTRIBUTION
from recorded import load
from sentences import above, below, bracketed, reveal, say, untold
from show import moving_picture, picture, show
from study_ends import STUDIES, contrasts, control, end_dots, ends, rows_of, start

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.analysis.regions import TOKEN_METHODS, region
from rlcorr.bounds import m2po
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, fade, figure, horizontal_line, line, points, vertical_line
from rlcorr.figures.study import differences
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.toy import small_world
from rlcorr.losses.objective import lr_factor, score_coefficients
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio, over_sequence
from rlcorr.records import runs
from rlcorr.records.study import find_study
from rlcorr.records.study_comparisons import against_chance, against_nothing, comparisons
from rlcorr.rules import RejectionRule
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

torch.set_num_threads(1)


# %% [markdown]
# ## Warm-up
#
# Two questions about older lessons. Choose an answer, then open it.
#
# **1. (Lesson 03) X has the ratio ½ and Z the ratio 2. You truncate the weights at 1.5, or you mask them there. What is
# the difference?**
#
# <details><summary>None: both act on Z only.</summary>Both act on Z only, but truncation counts it 1.5 times, and
# masking not at all.</details>
# <details><summary>Truncation keeps Z with the weight 1.5. Masking drops it, so its bias is
# larger.</summary>Yes.</details>
# <details><summary>Masking is unbiased, because it has no wrong weights.</summary>No. What Z would have contributed is
# missing.</details>
#
# **2. (Lesson 07) All tokens deviate by the same factor, 1.01. An answer has 100 tokens. What are the product and the
# geometric mean of its ratios?**
#
# <details><summary>2.7 and 1.01.</summary>Yes: 1.01 to the power of 100, and its hundredth root.</details>
# <details><summary>1.01 and 1.01.</summary>No. The product multiplies all 100 factors.</details>
# <details><summary>2.7 and 2.7.</summary>No. The geometric mean is a ratio per token.</details>
#
# ## Keep or drop
#
# A weight lets a token contribute more or less to the gradient. A **rejection rule** lets it contribute fully or not at
# all. A rule has three parts. A **divergence** measures how far apart the two probabilities of a token are. A **level**
# says what the rule judges: single tokens or whole answers. The **bounds** say which values are allowed. A token or an
# answer inside the bounds is **kept**: $m = 1$. All others are **rejected**: $m = 0$. A rejected token stays in the
# text, but it contributes nothing to the gradient.
#
# ## An example to compute by hand: three actions
#
# The engine samples X, Y and Z with the probabilities $q = (½, ¼, ¼)$. The trainer would sample them with
# $p = (¼, ¼, ½)$. Their rewards are 1, 0 and 4. So the average reward is 1.5 for the engine and 2.25 for the trainer,
# and the ratios $r = p/q$ are ½, 1 and 2.
#
# A rule on the ratio with an upper bound of 1.5 rejects Z and keeps X and Y. Among the kept actions X has the
# probability ⅔ and Y has ⅓, so their average reward is ⅔ · 1 + ⅓ · 0 = 0.67. That is further from 2.25 than the 1.5
# without a rule. Nothing was wrong with Z: the trainer would choose it most often.
#
# ## The equation
#
# Write $\bar m = \mathbb{E}_q[m]$ for the **kept share**; in the example it is ¾. For any function $f$ of the action
# $a$, such as its reward,
#
# $$ \mathbb{E}_q[m f]=\sum_a q(a)\,m(a)\,f(a)=\bar m\;\mathbb{E}_{q_m}[f],\qquad q_m=\frac{q\,m}{\bar m} . $$
#
# **Rejection trains on $q_m$**, the engine's distribution restricted to what is kept. Nothing makes $q_m$ equal to $p$.
# If kept tokens also have weights (**MIS**, masked importance sampling), then
#
# $$ \mathbb{E}_q[m\,r f]=\sum_a p(a)\,m(a)\,f(a)=\mathbb{E}_p[f]-\sum_{a\;\text{rejected}}p(a)\,f(a) . $$
#
# The bias is minus what the trainer would get from the rejected actions.
#
# By hand: in the example this is −½ · 4 = −2, so rejection with weights gives 2.25 − 2 = 0.25.

# %%
q3 = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
p3 = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
pay = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
one_per_action = TokenBatch.from_log_probs(p3.log()[:, None], q3.log()[:, None], torch.ones(3, 1))
cut = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.5),))
m = correct(one_per_action, cut).keep_mask[:, 0]
kept_share = (q3 * m).sum()

show("action", "X", "Y", "Z")
show("kept", m)
show("q_m, what is trained on", q3 * m / kept_share)
show("average reward: engine, trainer", (q3 * pay).sum(), (p3 * pay).sum())
show("average reward: q_m", (q3 * m * pay).sum() / kept_share)
show("rejection and weights (MIS)", (m * p3 * pay).sum())

# %% [markdown]
# ## Which answers are kept?
#
# The engine of the run `stale_4` has weights that are four updates old. Each point of the picture is an answer of its
# last step: circles are right answers, crosses are wrong ones. To the right are answers in which the engine hesitated:
# it gave their tokens low probabilities, so their mean $-\log q$ is large. The height is the distance of the geometric
# mean of the ratios from 1. A rule with this bound keeps the answers below the line (green) and rejects those above it
# (grey). **Tighten the bound, and look for** the answers that are rejected first: right or wrong ones? Confident or
# hesitant ones?

# %%
batch = load("stale_4")
rewards = batch.tensors()["rewards"].double()
away = masked_mean(correct(batch, CorrectionConfig()).log_ratio, batch.response_mask, -1).abs().exp() - 1
surprise = -masked_mean(batch.rollout_log_probs, batch.response_mask, -1)
BOUNDS = {"0.1 %": 0.001, "0.3 %": 0.003, "1 %": 0.01, "3 %": 0.03, "10 %": 0.1, "30 %": 0.3}


def geometric(bound):
    """Keep answers whose geometric mean deviates from 1 by at most this share, to either side."""
    rule = RejectionRule.named("seq_mean_k1", lower=1 / (1 + bound), upper=1 + bound)
    return CorrectionConfig(rollout_rs=(rule,))


# %% tags=["hide-input"]
def answers_at(bound):
    keeps, right = correct(batch, geometric(bound)).keep_mask.any(-1), rewards > 0.5
    groups_of = {("kept", "circle"): keeps & right, ("kept", "x"): keeps & ~right,
                 ("rejected", "circle"): ~keeps & right, ("rejected", "x"): ~keeps & ~right}  # fmt: skip
    traces = []
    for (name, symbol), those in groups_of.items():
        places = torch.stack([surprise[those], 100 * away[those]], 1).tolist()
        drawn = points(name, places, KEPT if name == "kept" else REJECTED, symbol=symbol)
        traces.append(drawn | {"showlegend": symbol == "circle"})
    x = {"title_text": "mean −log q of the answer's tokens, nats", "type": "log"}
    y = {"title_text": "geometric mean of the ratios: deviation from 1, %", "type": "log"}
    return figure(traces, height=360, x=x, y=y, shapes=[horizontal_line(y=100 * bound)], legend=True)


moving_picture("bound ±", {label: answers_at(bound) for label, bound in BOUNDS.items()}, "1 %")

# %% tags=["hide-input"]
MISMATCHED = ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "stale_head", "moe_bf16", "long_kv_fp8_e5m2", "long_stale_4")


def resampled_prompts(prompts):
    """Return (401, B), how often each answer counts: row 0 is the sample itself, the others resample prompts."""
    _, index = prompts.unique(dim=0, return_inverse=True)
    return resampled(int(index.max()) + 1, 400, 0).double()[:, index]


def lead(batch, values, keeps):
    """Return the mean over the kept answers minus that over the rejected ones, with its interval."""
    counts = resampled_prompts(batch.tensors()["prompt_ids"])
    kept_mean, rejected_mean = ((counts * values * side).sum(-1) / (counts * side).sum(-1) for side in (keeps, ~keeps))
    return interval_of(kept_mean - rejected_mean, signed=True)


keeps = correct(batch, geometric(0.01)).keep_mask.any(-1)
of_reward, of_surprise = (lead(batch, values, keeps) for values in (rewards, surprise))
verdicts = []
for name in MISMATCHED:
    for n in range(len(runs.list_steps(runs.find_run(name)))):
        one = load(name, n)
        stays = correct(one, geometric(0.01)).keep_mask.any(-1)
        if min(stays.sum(), (~stays).sum()) >= 10:
            unsure = -masked_mean(one.rollout_log_probs, one.response_mask, -1)
            earned = lead(one, one.tensors()["rewards"].double(), stays)
            verdicts.append((earned.low > 0, lead(one, unsure, stays).high < 0))
richer, surer = (sum(column) for column in zip(*verdicts, strict=True))
say(f"""
    At ±1 % the rule keeps {100 * float(keeps.double().mean()):.0f} % of the answers. The kept answers have a reward
    that is higher by {above(of_reward)}. The engine was also more confident about them: their mean $-\\log q$ minus
    that of the rejected answers is {below(of_surprise)} nats per token.

    Is this true of other runs, too? A difference is **significant** if its 95 % interval excludes 0. In
    {len(MISMATCHED)} runs with a mismatch there are {len(verdicts)} recorded steps on which this rule keeps at least
    ten answers and rejects at least ten. On {richer} of these steps the kept answers have a significantly higher reward
    than the rejected ones. On {surer} of them the engine was significantly more confident about the kept answers.
    """)

# %% [markdown]
# Why? A token with a probability near 1 in both policies has hardly any mismatch. So such a rule tends to keep what the
# model **can do already**, and to reject answers that contain uncertain tokens.
#
# ## Divergences of a token
#
# By hand: one token has the probability 0.5 in the engine and 0.05 in the trainer. Another one has 0.01 in the engine
# and 0.1 in the trainer. So $d = \log p - \log q$ is −2.3 for the first and 2.3 for the second. Three divergences are
# computed from $d$ alone:
# - $k_1 = -d$ is 2.3 and −2.3. It has a sign.
# - $k_2 = \tfrac12 d^2$ is 2.65 for both.
# - $k_3 = e^d - 1 - d$ is 1.40 and 6.70. For the same factor between the policies, it is larger if the trainer's
#   probability is the higher one.
#
# For ratios near 1, k2 and k3 are nearly equal.
#
# By hand: if the engine gives a token 0.001 and the trainer 0.01, the ratio is 10, although only 0.009 of all
# probability has moved. A ratio does not show how probable a token is. **KPop** therefore compares the policies on two
# outcomes, "this token" and "another token". Their probabilities are $q$ and $1-q$ in the engine, $p$ and $1-p$ in the
# trainer:
#
# $$ \mathrm{KL}_2(q\|p) = q \log\frac{q}{p} + (1 - q) \log\frac{1 - q}{1 - p} . $$
#
# KPop keeps a token if both $\mathrm{KL}_2(q\|p)$ and $\mathrm{KL}_2(p\|q)$ are at most a bound $u$. Implementations
# take different bounds: 2 in AReaL and in [verl's pull request 6800](https://github.com/verl-project/verl/pull/6800),
# 0.1 in [prime-rl's pull request 3283](https://github.com/PrimeIntellect-ai/prime-rl/pull/3283). The next cell compares
# KPop with **IcePop**, which keeps a token if $0.5 \le r \le 5$ ([Ring-1T](https://arxiv.org/abs/2510.18855)).


# %%
def two_outcome_kl(q, p):
    return q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()


q4, p4 = torch.tensor([[0.001, 0.9, 0.99, 0.5], [0.01, 0.5, 0.5, 0.01]], dtype=torch.float64)
four = TokenBatch.from_log_probs(p4.log()[:, None], q4.log()[:, None], torch.ones(4, 1))
kpop = {u: CorrectionConfig(rollout_rs=(RejectionRule.named("token_binary_kl", upper=u),)) for u in (2.0, 0.1)}
RULES_4 = {"IcePop": TOKEN_METHODS["IcePop"], "KPop, 2": kpop[2.0], "KPop, 0.1": kpop[0.1]}
show("q", q4, digits=3)
show("p", p4, digits=3)
show("ratio r", p4 / q4, digits=3)
show("larger KL of two outcomes", torch.maximum(two_outcome_kl(q4, p4), two_outcome_kl(p4, q4)), digits=3)
for name, config in RULES_4.items():
    result = correct(four, config)
    show(f"kept by {name}", (result.keep_mask & (result.weights > 0))[:, 0])

# %% [markdown]
# The first token is ten times as probable in the trainer as in the engine, and rare in both. IcePop rejects it, and
# KPop keeps it with both bounds. The second and the third have lost about half of a large probability. IcePop keeps
# them, and KPop with the tight bound rejects them. Which rule is right? That depends on what you want to bound. The
# ratio is the weight of the token in the average, and large weights make noise (lesson 03). $\mathrm{KL}_2$ measures
# how far the policies differ at this position.
#
# The picture shows this for all probabilities: a rule keeps a token if its point ($q$, $p$) is in the green region. The
# dotted line is $p = q$. Two more rules are on the slider. **DPPO** bounds the difference $|p - q|$, and the rule
# **k3** bounds the token's $k_3$ (their numbers are in the appendix). **Change the rule, and look at** the corner at
# the lower left, where rare tokens are, and at the corner at the upper right, where nearly certain tokens are.

# %% tags=["hide-input"]
shown = {"IcePop": TOKEN_METHODS["IcePop"], "KPop, 2": kpop[2.0], "KPop, 0.1": kpop[0.1],
         "DPPO": TOKEN_METHODS["DPPO"], "k3": TOKEN_METHODS["k3"]}  # fmt: skip
grid = torch.cat(
    [torch.linspace(0.001, 0.05, 8), torch.linspace(0.07, 0.93, 30), torch.linspace(0.95, 0.999, 8)]
).double()


def kept_region(config):
    edges = region(config, grid.log())
    low, high = edges.lower.exp().nan_to_num(0.0).clamp(min=0).tolist(), edges.upper.exp().nan_to_num(1.0).tolist()
    q = grid.tolist()
    around = [*q, *reversed(q)], [*low, *reversed(high)]
    green = line("kept", *around, KEPT, fill="toself", fillcolor=fade(KEPT, 0.35))
    same = line("p = q", [0, 1], [0, 1], REJECTED, dash="dot")
    axes = [{"title_text": f"probability in the {side}", "range": [0, 1]} for side in ("engine, q", "trainer, p")]
    return figure([green, same], height=400, x=axes[0], y=axes[1], legend=True)


moving_picture("rule", {name: kept_region(config) for name, config in shown.items()}, "IcePop")

# %% tags=["hide-input"]
TOKEN_RUNS = {
    "gpu_smol_long": "SmolLM2, bfloat16",
    "gpu_smol_fp8": "SmolLM2, weights in 8 bits",
    "gpu_smol_kv_fp8": "SmolLM2, cache in 8 bits",
    "smol_stale_6": "SmolLM2, weights six updates old",
    "moe_bf16": "tiny mixture of experts, bfloat16",
}
per_thousand = {}
show("tokens rejected, ‰, last step", *shown)
for name, label in TOKEN_RUNS.items():
    one = load(name)
    for rule, config in shown.items():
        result = correct(one, config)
        lost_tokens = one.response_mask & ~(result.keep_mask & (result.weights > 0))
        per_thousand[name, rule] = 1000 * float(lost_tokens.sum() / one.response_mask.sum())
    show(label, [per_thousand[name, rule] for rule in shown], digits=1)
say(f"""
The first row is the healthy run of the real model. There every rule except the one on k3 keeps nearly everything. The
bound on k3 is strict: it rejects {per_thousand["gpu_smol_long", "k3"]:.0f} ‰ (per thousand) of the healthy tokens. With
weights six updates old, KPop at 2 rejects {per_thousand["smol_stale_6", "KPop, 2"]:.0f} ‰, KPop at 0.1
{per_thousand["smol_stale_6", "KPop, 0.1"]:.0f} ‰ and IcePop {per_thousand["smol_stale_6", "IcePop"]:.0f} ‰. So the
bound of KPop matters more than the choice between KPop and IcePop. The appendix lists more rules.
""")

# %% [markdown]
# ## The length of a step
#
# The loss is a sum over the kept tokens. It is divided either by all $N$ real tokens (**fixed** denominator) or by the
# $\bar m N$ kept ones (**kept** denominator). With the score $s$ and the advantage $A$ (lesson 02):
#
# $$ g_{\text{fixed}}=\frac{1}{N}\sum_{\text{kept}}A\,s=\bar m\;g_{\text{kept}} . $$
#
# Here $g_{\text{kept}}$ is the same sum, divided by $\bar m N$. Both gradients have the same direction, so the choice
# of the denominator does not repair the bias. It changes the length. With plain gradient descent, the step with the
# fixed denominator is shorter by the factor $\bar m$. Adam divides a gradient by a running root mean square of its past
# sizes, so a **constant** factor cancels. If the kept share changes from step to step, the change does not cancel at
# once (the appendix of lesson 12 shows how slowly AdamW follows).
#
# ## What our studies found
#
# Four studies with tiny models compare whole training runs: with old weights or with a coarse cache, and with short
# answers or with long ones. An **arm** of a study is one correction, with which several runs were trained, one for each
# seed. All arms have the same seeds. `none` has no correction. `token_cap` and `product_cap` are weights with a cap,
# for comparison. The other arms reject:
#
# - `geometric_negative_50` rejects answers with a **negative advantage**, those with the lowest geometric mean first,
#   until half of the tokens remain;
# - the arms that end in `_80` keep four fifths of the tokens. They reject whole answers whose geometric mean
#   (`geometric_80`) or product (`product_band_80`) is furthest from 1, or single tokens whose ratio is furthest from 1
#   (`token_band_80`).
#
# Each point is the mean reward at the end of an arm's runs, and its bar reaches from the lowest to the highest run. The
# dashed lines are the reward at the **start** of training, and the reward at the end of runs **without a mismatch**,
# the control. For long answers no control was made. **Guess first:** which arm helps in all four studies? Then **change
# the study, and look for** the arms to the right of the start.

# %% tags=["hide-input"]
NEGATIVE = "geometric_negative_50"
ARMS = ("none", "token_cap", "product_cap", NEGATIVE, "geometric_80", "product_band_80", "token_band_80")
moving_picture("study", {label: end_dots(name, ARMS) for name, label in STUDIES.items()}, next(iter(STUDIES.values())))

# %% tags=["hide-input"]
minus_none = {name: {p.arm: p.difference for p in against_nothing(rows_of(name))} for name in STUDIES}
minus_chance = {
    name: {p.arm: p.difference for p in against_chance(rows_of(name), find_study(name).by_chance)} for name in STUDIES
}
show("reward at the end, minus that of none", *(name.rjust(20) for name in STUDIES))
for arm in ARMS[1:]:
    show(arm, *(bracketed(minus_none[name][arm]).rjust(20) for name in STUDIES))

short_old, short_cache, long_old, long_cache = minus_none.values()
by_chance = [minus_chance[name][NEGATIVE] for name in STUDIES]
for study in (long_old, long_cache):
    assert {arm for arm, difference in study.items() if difference.tells} == {"token_cap"}
assert {arm for arm, difference in short_old.items() if difference.tells} == {"token_cap", "product_cap", NEGATIVE}
assert not any(difference.low > 0 for difference in short_cache.values())
above_start = {name: [arm for arm, end in ends(name).items() if end.value > start(name)] for name in STUDIES}
on_smol = {arms: pair.difference for arms, pair in contrasts("smol_stale_6").items()}
say(f"""
    No arm is significantly better than no correction in all four. (The intervals of a study are joint: in 95 % of such
    studies all of them contain the true differences.)

    - **Which rejection helps depends on the mismatch.** With short answers and old weights `{NEGATIVE}` is
      significantly better than no correction. It is also better, by {above(by_chance[0])}, than rejecting as many
      answers with a negative advantage by chance. With the coarse cache it is significantly worse than both:
      {below(short_cache[NEGATIVE])} and {below(by_chance[1])}. There the runs without a correction end at
      {ends("decide_cache")["none"].value:.2f}, near the control's {control("decide_cache"):.2f}, so there is little to
      repair.
    - **With long answers only the token cap is significantly better than no correction**, by
      {above(long_old["token_cap"])} and {above(long_cache["token_cap"])}. With old weights "better" means that training
      destroys less: the runs start at {start("decide_long_stale"):.2f}, and
      {len(above_start["decide_long_stale"]) or "no"} arm ends above that. With the coarse cache
      {len(above_start["decide_long_cache"])} of {len(ends("decide_long_cache"))} arms ends above the start.
    - **No rejection rule can be distinguished from no correction on long answers.** Some intervals are wide, so they
      may still help or harm.

    We also made a study with the real model, SmolLM2, on weights that are six updates old. Only one arm of this study,
    `smol_stale_6`, rejects: a band on the geometric mean that keeps 95 % of the tokens. It cannot be distinguished from
    no correction. The measure that was planned before the study is the gain: the mean reward of the last six steps
    minus that of the first six. The gain of this arm minus that of no correction is
    {untold(on_smol["geometric_95", "none"])}.
    """)

# %% tags=["hide-input"]
gain = {name: comparisons(rows_of(name), [("product_cap", "token_cap")])[0].difference for name in STUDIES}
long_start, long_end = start("decide_long_stale"), ends("decide_long_stale")
assert all(arm.value < long_start for arm in long_end.values())
defaults = runs.read_manifest(runs.find_run("stale_4")).config  # it has the trainer's defaults for all but the steps


def sizes_of(study):
    """Return the answers per step, the Adam steps per batch and the training steps of a study."""
    value = {
        "--prompts-per-step": defaults["prompts_per_step"],
        "--samples-per-prompt": defaults["samples_per_prompt"],
        "--optim.epochs": defaults["optim"]["epochs"],
        **dict(pairwise(find_study(study).arms[0].options)),
    }
    prompts, answers = int(value["--prompts-per-step"]), int(value["--samples-per-prompt"])
    return prompts * answers, int(value["--optim.epochs"]) * defaults["optim"]["minibatches"], int(value["--steps"])


(answers_short, adam_short, steps_short), (answers_long, adam_long, steps_long) = (
    sizes_of(study) for study in ("decide_stale", "decide_long_stale")
)
say(f"""
**A cap on the product, or on the ratio of each token?** It differs between the studies.

- **Short answers.** With old weights, the cap on the product ends {above(gain["decide_stale"])} higher than the cap on
  tokens. Both end above the start, and below the control. With the coarse cache the two caps cannot be distinguished
  ({untold(gain["decide_cache"])}); both end near the control.
- **Long answers, old weights.** All {len(long_end)} arms of this study lose reward. They start at {long_start:.2f}.
  With the token cap {long_end["token_cap"].value:.2f} is left, with the product cap
  {long_end["product_cap"].value:.2f}. So here "better" means that less is destroyed. The difference of product cap and
  token cap is {below(gain["decide_long_stale"])}.
- **Long answers, coarse cache.** The token cap ends above the start, the product cap far below it. The difference is
  {below(gain["decide_long_cache"])}.

**Is length the reason?** These studies cannot show it: two tasks, one learning rate and two small models. Between the
two short and the two long studies, all of this changed together (`runs/study/index.toml`, `runs/README.md`):

| | short answers | long answers |
|---|---|---|
| task | sums of two numbers | sorting digits, every exchange written out |
| tokens per answer | about 4 | 200 to 500 |
| algorithm | PPO with a critic | GRPO |
| answers per step | {answers_short} | {answers_long} |
| Adam steps per batch | {adam_short} | {adam_long} |
| KL loss | yes | no |
| parameters of the model | 1.3 million | 0.64 million |
| training steps | {steps_short} | {steps_long} |
""")

# %% [markdown]
# Lesson 03 alone predicts that a smaller batch is worse for noisy weights. And without a control, the learning rate may
# be what takes the reward away in the long studies. So we may say: *in our studies the product cap ended higher with
# short answers and lower with long ones*. We may not say: *because they are long*. The appendix of lesson 12
# looks inside of the long runs: with the product cap their gradient nearly vanishes, and AdamW moves the policy all the
# same.
#
# ## Predict, then reveal
#
# The run `moe_bf16` is a mixture of experts. On nearly all of its tokens engine and trainer agree. On a few tokens they
# chose different experts, and there the probabilities differ by much. **Write down a guess** for its last step:
#
# 1. Which share of the answers does a narrow bound on the geometric mean keep (`decoupled_geo_rs`), and which a wide
#    one (`skyrl_geo_mask`)?
# 2. How many **tokens** does IcePop, a band on each ratio, reject?
# 3. How large is the mean k3 of the tokens that IcePop keeps, compared with that of all tokens: a half, a fifth, less
#    than a tenth?

# %%
batch = load("moe_bf16")
d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
keeps = {}
for name in ("decoupled_geo_rs", "skyrl_geo_mask", "decoupled_token_icepop"):
    result = correct(batch, preset(name))
    keeps[name] = result.keep_mask & (result.weights > 0)  # IcePop rejects by a weight of 0
    show(f"{name}: answers kept", float(keeps[name].any(-1).double().mean()), digits=2)
    show("  tokens rejected, mean k3 left, ‰", int((mask & ~keeps[name]).sum()), 1000 * k3(d[keeps[name]]).mean())

# %% tags=["hide-input"]
icepop = keeps["decoupled_token_icepop"]
narrow, wide = (keeps[name].any(-1) for name in ("decoupled_geo_rs", "skyrl_geo_mask"))
kept_by_wide = 100 * float(wide[~narrow].double().mean())
lost, left = int((mask & ~icepop).sum()), float(k3(d[icepop]).mean() / k3(d[mask]).mean())
assert lost == 1
reveal(f"""
    IcePop rejects **one** of {int(mask.sum())} tokens, and the mean k3 of the others is {100 * left:.0f} % of that of
    all tokens. The narrow bound rejects {100 * (1 - float(narrow.double().mean())):.0f} % of the answers, and the wide
    bound keeps {kept_by_wide:.0f} % of those. So if a few tokens differ by much, reject single tokens, with bounds so
    wide that ordinary rounding does not reach them.
    """)

# %% [markdown]
# ## Exercise 1: a rule on the geometric mean
#
# *6 minutes.* Return the mask of kept tokens, `(B, T)`, False on padding. An answer is kept if the geometric mean of
# its ratios, trainer over engine, is in [`lower`, `upper`]; both ends belong to the interval. Keep your function: it is
# piece 7 of `mini.py`. Write it below the line "Lesson 08".
#
# <details><summary>Hint 1</summary>The mean of d is the logarithm of the geometric mean.</details>
# <details><summary>Hint 2</summary><code>over_sequence(log_ratio(…), mask, "mean")[:, None]</code> has the shape (B,
# 1).</details>


# %%
def kept(trainer_logp, engine_logp, mask, lower, upper):
    raise NotImplementedError("exercise 1: write kept, then run this cell and the next.")


# %% tags=["check"]
check(kept, GEOMETRIC_RULE)


# %% tags=["solution", "hide-input"]
def kept_solution(trainer_logp, engine_logp, mask, lower, upper):
    mean = over_sequence(log_ratio(trainer_logp, engine_logp, mask), mask, "mean")[:, None]
    return mask & (mean >= math.log(lower)) & (mean <= math.log(upper))


# %% tags=["solution", "hide-input"]
check(kept_solution, GEOMETRIC_RULE)

# %% [markdown]
# ## Exercise 2: the distribution that is trained on
#
# *3 minutes.* `q` has the engine's probability of each action, and `keep` is True for each action that is kept. Return
# $q_m$. If no action is kept, return zeros.
#
# <details><summary>Hint 1</summary>Set the rejected ones to 0, then make the sum 1.</details>


# %%
def trained_distribution(q, keep):
    raise NotImplementedError("exercise 2: write trained_distribution, then run this cell and the next.")


# %% tags=["check"]
check(trained_distribution, TRAINED_DISTRIBUTION)


# %% tags=["solution", "hide-input"]
def trained_distribution_solution(q, keep):
    kept_q = q.where(keep, 0)
    total = kept_q.sum()
    return kept_q / total if total > 0 else kept_q


check(trained_distribution_solution, TRAINED_DISTRIBUTION)

# %% [markdown]
# ## Check yourself
#
# **1. A rule keeps a token if k3 ≤ 1. One token has q = 0.9 and p = 0.01, another q = 0.01 and p = 0.9. Which is
# kept?**
#
# <details><summary>Neither: both differ by a factor of 90.</summary>Right: their values of k3 are 3.5 and
# 84.5.</details>
# <details><summary>The first: k3 only reacts to ratios above 1.</summary>No. As the ratio falls below 1, k3 grows, too,
# about like −d.</details>
# <details><summary>The second: the trainer gives it the higher probability.</summary>No. For such tokens k3 is
# largest.</details>
#
# **2. A rule rejects 30 % of the tokens at every step. The denominator is fixed, the optimizer is Adam. What happens to
# the step?**
#
# <details><summary>It is 30 % shorter.</summary>In plain gradient descent. In Adam a constant factor
# cancels.</details>
# <details><summary>Nothing: the rejected tokens were wrong anyway.</summary>No. The kept tokens have another
# distribution than all tokens, so the direction changes.</details>
# <details><summary>The gradient is multiplied by the kept share, and its direction changes. Adam cancels the scale
# factor but not the change of direction.</summary>Yes, as long as the share stays the same.</details>
#
# **3. A bound of ±0.1 % on the geometric mean keeps 90 % of answers of 4 tokens. How many would it keep if all answers
# were extremely long?**
#
# <details><summary>90 %: the geometric mean does not depend on the length.</summary>No. Its spread does.</details>
# <details><summary>None: long answers leave every band.</summary>That is true of the product.</details>
# <details><summary>All if the KL per token is well below 0.001, none if it is well above.</summary>Yes, in the limit:
# then every answer has nearly the same geometric mean, and the rule tests the engine, not the answer. Our answers are
# not long enough to show the limit. In the table above, the runs whose KL is above the bound keep about the same share
# of their answers from 50 tokens on.</details>
#
# ## In the app
#
# Start it with `make app`, then open
#
# - [the bench](http://localhost:8501/bench?run=gpu_smol_long&step=latest&preset=decoupled_geo_rs) on the real model:
#   drag both bounds;
# - [the Mismatch view](http://localhost:8501/mismatch?run=long_kv_fp8_e5m2&step=latest), with the regions of rules;
# - [weights without and with
#   rejection](http://localhost:8501/compare?run=stale_4&step=latest&preset=decoupled_seq_is&preset_b=decoupled_seq_is_rs);
# - [a study](http://localhost:8501/training?part=Study&study=decide_stale).
#
# ## Pitfalls
#
# - **A study without a start line.** "Better than no correction" may mean "destroys less". Ask where the arms began,
#   and where they end without a mismatch.
# - **Direction.** verl puts bounds on $-\log r$, and `rlcorr` on $r$ itself: its bounds are the reciprocals of verl's.
# - **Empty batches.** If everything is rejected, the loss must be 0. The mean over nothing is nan, and one nan makes
#   every parameter nan.
# - **Few tokens may matter most.** Of the tokens that the engine samples, at most one in $u$ has $r>u$ (Markov's
#   inequality). So an upper bound rejects few tokens. But these few have the largest weights, and they make most of the
#   noise (lessons 01 and 03).
# - **Metrics after the rule.** Kept tokens always look healthy, because the rule has removed all others. Measure the
#   mismatch before the rule is applied.
# - **Better than what?** Compare a rule with rejecting as many tokens by chance, with the reward at the start of
#   training, and with a control without a mismatch.
#
# ## References
#
# 1. [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: the report on Ring-1T, with IcePop and its bounds.
# 2. Qi et al., [Rethinking the Trust Region in LLM RL](https://arxiv.org/abs/2602.04879), 2026: DPPO, bounds on
#    probabilities instead of ratios.
# 3. Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: rules on whole
#    answers by k2 and k3.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### mini.py, piece 8: the loss
#
# *6 minutes.* Write the loss of the training loop: one number, whose derivative with respect to the log-prob of each
# real token, `new_logp`, is $-wA/N$. Here $w$ is the token's entry of `weights`, `(B, T)`: the ratios after cap and
# rejection, so a rejected token has the weight 0. The weights were computed from log-probs of the same policy, and must
# not be differentiated. $A$ is the answer's entry of `advantage`, `(B,)`. $N$ is the number of real tokens, rejected
# ones included: a fixed denominator. Write your function into `mini.py`, below its line "Lesson 08".
#
# <details><summary>Hint 1</summary>An optimizer makes the loss smaller.</details>
# <details><summary>Hint 2</summary><code>weights.detach()</code> is a constant for autograd;
# <code>advantage[:, None]</code> has the shape (B, 1), so every token of an answer gets its advantage.</details>


# %%
def loss(new_logp, weights, mask, advantage):
    raise NotImplementedError("mini.py: write loss, then run this cell and the next.")


# %% tags=["check"]
check(slope(loss), LOSS)


# %% tags=["solution", "hide-input"]
def loss_solution(new_logp, weights, mask, advantage):
    return -(weights.detach() * advantage[:, None] * new_logp.where(mask, 0)).sum() / mask.sum()


# %% tags=["solution", "hide-input"]
check(slope(loss_solution), LOSS)

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. You do not need them to follow the lessons.

# %% [markdown]
# ### The rules by name
#
# With the numbers of their presets:
#
# | rule | keeps a token if | level |
# |---|---|---|
# | MIS, masked importance sampling | $r$ is in a band; the token has the weight $r$ | token or sequence |
# | [IcePop](https://arxiv.org/abs/2510.18855) | $0.5 \le r \le 5$; the token has the weight $r$ | token |
# | [KPop](https://ringtech.notion.site/kpop) | $\max(\mathrm{KL}_2(p\Vert q), \mathrm{KL}_2(q\Vert p)) \le 2$ | token |
# | [DPPO](https://arxiv.org/abs/2602.04879), TV | $\lvert p - q\rvert \le 0.2$, or the update reduces it | token |
# | DPPO, signed KL | $\mathrm{KL}_2(q\Vert p)$ is at most 0.05 | token |
# | Geo-RS (`decoupled_geo_rs`) | the geometric mean of the answer's ratios is in $[0.999, 1.001]$ | sequence |
# | k3 rule (`decoupled_k3_rs`) | the mean k3 of the answer is at most 0.01 | sequence |
# | veto (`skyrl_outlier`) | every ratio of the answer is in $[10^{-4}, 100]$ | sequence |
# | [OPSM](https://arxiv.org/abs/2512.02556) | mean $d \ge -0.5$, or the advantage is not negative | sequence |
#
# ### The edges of the regions, as numbers
#
# For four probabilities of the engine, the table has the smallest and the largest $p$ that a rule keeps. "—" means that
# the rule has no bound on that side. The last two columns have the number of tokens of the last step of `kv_fp8_e5m2`
# that the rule rejects: those whose ratio is below 1, and those whose ratio is above 1. Bounds on ratios are strict for
# small probabilities, bounds on $|p-q|$ are strict for large ones.

# %% tags=["hide-input"]
at_q = torch.tensor([0.001, 0.1, 0.5, 0.9], dtype=torch.float64)
batch = load("kv_fp8_e5m2")
d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
show("q", *[f"{x:g}" for x in at_q.tolist()], "", "r < 1", "r > 1")
edges_of, sides = {}, {}
for name, config in shown.items():
    accepted, result = region(config, at_q.log()), correct(batch, config)
    lost = mask & ~(result.keep_mask & (result.weights > 0))
    edges_of[name] = accepted.lower.exp(), accepted.upper.exp()
    sides[name] = int((lost & (d < 0)).sum()), int((lost & (d > 0)).sum())
    low, high = ([f"{x:.4f}" if x == x else "—" for x in end.tolist()] for end in edges_of[name])
    show(f"{name}: smallest p; rejected", *low, "", *sides[name])
    show(f"{name}: largest p", *high)
assert sides["IcePop"][1] == 0 < sides["IcePop"][0]
say(f"""
    If the engine samples a token once in a thousand times, IcePop keeps it up to a $p$ of
    {float(edges_of["IcePop"][1][0]):.3f}, a ratio of {float(edges_of["IcePop"][1][0] / at_q[0]):.0f}. DPPO keeps it up
    to {float(edges_of["DPPO"][1][0]):.3f}, a ratio of {float(edges_of["DPPO"][1][0] / at_q[0]):.0f}. All
    {sides["IcePop"][0]} tokens that IcePop rejects here have $r < 1$: no ratio reaches its upper bound. """)

# %% [markdown]
# ### Bounds that follow the batch, or an answer
#
# [M2PO](https://arxiv.org/abs/2510.01161) rejects the tokens with the largest $d^2$ until the mean $d^2$ of the rest is
# below 0.04. This is the rule `token_k2`, with a bound that `rlcorr.bounds.m2po` computes for each batch.
# [FlashREINFORCE](https://github.com/OpenRLHF/OpenRLHF/pull/1339) keeps an answer if the **mean** of
# $\mathrm{KL}_2(q\|p)$ over its tokens is at most 0.005. **Look for** runs on whose last step M2PO rejects no token and
# FlashREINFORCE rejects nearly half of the answers.

# %%
show("last step", "M2PO: |d| ≤", "rejects", "of tokens", "FlashREINFORCE: answers kept")
for name in MISMATCHED:
    one = load(name)
    rule = m2po(one)
    dropped = one.response_mask & ~correct(one, CorrectionConfig(rollout_rs=(rule,))).keep_mask
    by_answer = correct(one, preset("openrlhf_flash_reinforce")).keep_mask.any(-1)
    counts = int(dropped.sum()), int(one.response_mask.sum())
    show(name, math.sqrt(2 * rule.upper), *counts, float(by_answer.double().mean()), digits=2)

# %% [markdown]
# ### The bias of every rule on three actions

# Both equations of the lesson, with symbols, for every non-empty set of kept actions.

# %%
P, Q, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqf")


def sum_over(actions, *factors):
    return sympy.Add(*(sympy.Mul(*(factor[a] for factor in factors)) for a in actions))


for subset in range(1, 8):  # every subset that is not empty
    stays = [a for a in range(3) if subset >> a & 1]
    r, share = [y / x for x, y in zip(Q, P, strict=True)], sum_over(stays, Q)
    assert sympy.simplify(sum_over(stays, Q, F) - share * sum_over(stays, [x / share for x in Q], F)) == 0
    lost = sum_over([a for a in range(3) if a not in stays], P, F)
    assert sympy.simplify(sum_over(stays, Q, r, F) - sum_over(range(3), P, F) + lost) == 0

# %% [markdown]
# ### The gradient of whole answers
#
# `small_world` contains all answers of a few tokens, with random advantages, and two policies whose logits differ by
# random numbers. `gradient_truth` sums over all answers, so nothing is sampled. The first cell checks the two equations
# of the lesson with autograd.

# %% tags=["hide-input"]
little = small_world(0.2)
where, policies, advantages = little.where, little.policies, little.advantages
q_answers, p_answers = (toy.probabilities(where, policy) for policy in (policies.rollout, policies.old))
answers = TokenBatch.from_log_probs(
    toy.log_probs(where, policies.old), toy.log_probs(where, policies.rollout), where.mask
)
summed = LossConfig(loss_agg_mode="token-sum")


def score_sum(weights):
    """Return Σ over answers of weight · A · ∇ log π."""
    theta = policies.theta.detach().requires_grad_()
    return toy.gradient_of((weights * advantages * toy.log_probs(where, theta).sum(-1)).sum(), theta)


def truth(config, loss=None):
    return toy.gradient_truth(where, policies, advantages, config, loss)


rejecting = geometric(0.05)
stays = correct(answers, rejecting).keep_mask.any(-1)
share = float(q_answers[stays].sum())
assert torch.allclose(
    truth(rejecting, summed).expectation, share * score_sum(q_answers * stays / share), rtol=0, atol=1e-14
)
weighted = truth(
    CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf, rollout_rs=rejecting.rollout_rs), summed
)
assert torch.allclose(weighted.expectation - weighted.reference, -score_sum(p_answers * ~stays), rtol=0, atol=1e-14)
show("answers kept, their probability", int(stays.sum()), "of", len(stays), share)

# %% [markdown]
# Now we change the bound. **Cosine** is the cosine of the angle between the expected gradient and the exact gradient
# $g^*$. **Scale** is the component of the expected gradient along $g^*$. **Bias** is its distance from $g^*$. Scale and
# bias are in units of $\|g^*\|$, the length of the exact gradient (lesson 03). So a gradient of length 0 has a bias of
# 1.

# %% tags=["hide-input"]
rows = []
for bound in (0.02, 0.05, 0.1, 0.2, 1e6):
    rule = geometric(bound).rollout_rs
    stays = correct(answers, CorrectionConfig(rollout_rs=rule)).keep_mask.any(-1)
    fixed, by_kept = (truth(CorrectionConfig(rollout_rs=rule, denominator=by)) for by in ("fixed", "kept"))
    label = f"{100 * bound:.0f} %" if bound < 1 else "none"
    rows.append((label, float(q_answers[stays].sum()), fixed.cosine, fixed.scale, fixed.relative_bias,
                 by_kept.scale, by_kept.relative_bias))  # fmt: skip
    assert math.isclose(fixed.cosine, by_kept.cosine, abs_tol=1e-12)
names = ("bound on the geometric mean, ±", "kept share", "cosine, both denominators", "scale, fixed", "bias, fixed",
         "scale, kept", "bias, kept")  # fmt: skip
for name, row in zip(names, zip(*rows, strict=True), strict=True):
    show(name, row, digits=3)
assert rows[0][6] > 2 > 1.2 > rows[0][4] > 1
say(f"""
    Tight bounds do not make the gradient that of the trainer's policy. They change its direction: the cosine is
    {rows[1][2]:.2f} at ±5 % and {rows[0][2]:.2f} at ±2 %. The kept denominator does not shorten this wrong step. At
    ±2 % its bias is {rows[0][6]:.1f} times the length of the exact gradient; with the fixed denominator it is
    {rows[0][4]:.1f} times.
    """)

# %% [markdown]
# ### The factor, and the optimizer
#
# `lr_factor` is the factor by which a fixed denominator shortens the gradient. The first lines show it on the last step
# of `stale_4`, for two ways of averaging the loss. The other lines show how far a weight moves in twenty steps, if the
# gradient of every step is the same factor.

# %% tags=["hide-input"]
batch = load("stale_4")
batch = batch.replace(advantages=batch.tensors()["advantages"].double())
for mode in ("token-mean", "seq-mean-token-mean"):
    settings, pairs = LossConfig(loss_agg_mode=mode), []
    for denominator in ("fixed", "kept"):
        config = CorrectionConfig(rollout_rs=preset("skyrl_geo_mask").rollout_rs, denominator=denominator)
        result = correct(batch, config)
        factor = float(lr_factor(result.keep_mask, batch.response_mask, config, settings))
        pairs.append((factor, score_coefficients(batch.tensors()["old_log_probs"], batch, result, config, settings)))
    (factor, of_fixed), (one, of_kept) = pairs
    assert torch.allclose(of_fixed, factor * of_kept, rtol=0, atol=1e-9)
    show(f"lr_factor, {mode}: fixed, kept", factor, one)


def moved(optimizer, factor, steps=20):
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    by = optimizer([x], lr=0.01)
    for _ in range(steps):
        x.grad = torch.full_like(x, -factor)
        by.step()
    return float(x.detach()[0])


for factor in (1.0, 0.5, 0.05):
    show(f"moved at factor {factor}: SGD, AdamW", *[moved(by, factor) for by in (torch.optim.SGD, torch.optim.AdamW)])

# %% [markdown]
# ### Two rules on long answers
#
# The mean of $d$ over a long answer approaches −KL per token (lesson 07). The geometric mean is the exponential of this
# mean. So on long answers, a bound on the **geometric mean** tests whether the KL per token is below the logarithm of
# the bound.
#
# By hand: the bound of ±0.1 % is $\log 1.001 = 0.001$ nats per token, which is 1 ‰ of a nat.
#
# The **product** of the ratios drifts further with every token, so in the end it leaves every fixed band. The table
# shows the share of the answers that two rules keep, if they look only at the first tokens of every answer, as many as
# the column says, or at all of them. It has one real model and three tiny ones.

# %% tags=["hide-input"]
LONG = {
    "gpu_smol_long": "SmolLM2, bfloat16",
    "long_bf16": "tiny, bfloat16",
    "long_kv_fp8_e5m2": "tiny, coarse cache",
    "long_stale_4": "tiny, old weights",
}
CUTS = (10, 50, 100, 500)
RULES = {"±0.1 %": geometric(0.001), "product": preset("skyrl_product_mask")}


def first_tokens(batch, count):
    mask = batch.response_mask & (batch.response_mask.cumsum(-1) <= count)
    return TokenBatch.from_log_probs(batch.tensors()["old_log_probs"], batch.rollout_log_probs, mask)


def steps_of(name):
    return [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]


def kept_answers(name, config, count):
    """Return 1 for each kept answer of all recorded steps, else 0."""
    return torch.cat([correct(first_tokens(b, count), config).keep_mask.any(-1) for b in recorded[name]]).double()


def mean_over(prompts, values, counts):
    """Return the mean of values (B,) that count so often; the bootstrap resamples prompts."""
    weights = resampled_prompts(prompts) * counts
    return interval_of((weights * values).sum(-1) / weights.sum(-1), signed=True)


recorded = {name: steps_of(name) for name in LONG}
show("share of the answers kept, first tokens", *CUTS[:-1], "all", "KL per token, ‰".rjust(20))
falls, kl = {}, {}
for name, label in LONG.items():
    prompts = torch.cat([b.tensors()["group_ids"] + 1000 * n for n, b in enumerate(recorded[name])])
    mean_d = [masked_mean(correct(b, CorrectionConfig()).log_ratio, b.response_mask, -1) for b in recorded[name]]
    tokens = torch.cat([b.response_mask.sum(-1) for b in recorded[name]])
    kl[name] = mean_over(prompts, -1000 * torch.cat(mean_d), tokens)
    for rule, config in RULES.items():
        kept_at = [kept_answers(name, config, count) for count in CUTS]
        show(f"{label}: {rule}", [float(x.mean()) for x in kept_at], bracketed(kl[name]).rjust(20), digits=2)
        falls[name, rule] = mean_over(prompts, kept_at[0] - kept_at[-1], torch.ones(len(prompts)))
SMOL, TINY, CACHE, OLD = LONG
say(f"""
    The tiny model in bfloat16 has a KL per token far below the bound of 1 ‰, and both rules keep nearly every whole
    answer. With the coarse cache and with old weights the KL per token is above the bound, {above(kl[CACHE], 1)} ‰ and
    {above(kl[OLD], 1)} ‰, and the rule ±0.1 % keeps few answers at any length. The real model in bfloat16 is healthy.
    But its KL is so near the bound that the two cannot be distinguished, {untold(kl[SMOL], 1)} ‰, and the rule ±0.1 %
    keeps few of its answers, too.

    The product rule keeps fewer answers if it looks at the whole answer than if it looks at the first {CUTS[0]} tokens.
    Its kept share falls by {above(falls[SMOL, "product"])} with the real model, {above(falls[CACHE, "product"])} with
    the coarse cache and {above(falls[OLD, "product"])} with old weights.
    """)

# %% [markdown]
# ### A law for long answers, and why it is only roughly right
#
# Let $d$ have the mean $\mu < 0$ and the standard deviation $\sigma$ per token. Assume that its sum over $T$ tokens is
# normal. A rule that bounds the sum by $\pm\omega$ then keeps the share
#
# $$ \Phi\!\Big(\frac{\omega - \mu T}{\sigma\sqrt{T}}\Big) - \Phi\!\Big(\frac{-\omega - \mu T}{\sigma\sqrt{T}}\Big), $$
#
# where $\Phi$ is the distribution function of the normal distribution, with $\omega = T\log u$ for the geometric mean
# and $\omega = \log u$ for the product. As $T$ grows, the second share tends to 0. The first tends to 1 if
# $-\mu < \log u$, and else to 0.

# %% tags=["hide-input"]
LIMITS = {"±0.1 %": lambda n: n * math.log(1.001), "product": lambda n: math.log(2)}
gaps = {}
for name in (CACHE, OLD):
    both = recorded[name]
    d = torch.cat([correct(b, CorrectionConfig()).log_ratio[b.response_mask] for b in both])
    lengths = torch.cat([b.response_mask.sum(-1) for b in both]).double()
    sums = torch.cat([over_sequence(correct(b, CorrectionConfig()).log_ratio, b.response_mask, "sum") for b in both])
    mean = float(d.mean())
    spread = float(((sums - mean * lengths).square().sum() / lengths.sum()).sqrt())
    for label, limit in LIMITS.items():
        predicted = []
        for n in (lengths.clamp(max=cut) for cut in CUTS):
            high, low = (torch.special.ndtr((sign * limit(n) - mean * n) / (spread * n.sqrt())) for sign in (1, -1))
            predicted.append(float((high - low).mean()))
        shares = [float(kept_answers(name, RULES[label], cut).mean()) for cut in CUTS]
        show(f"{name}, {label}: law", predicted, "kept", shares, digits=2)
        gaps[name, label] = [a / b for a, b in zip(shares, predicted, strict=True)]
sizes = d.abs().quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).exp()
of_product = [gap for (_, label), of_run in gaps.items() if label == "product" for gap in of_run]
say(f"""
    For the product, the law predicts the direction of the change and not the numbers: the kept share is
    {min(of_product):.1f} to {max(of_product):.1f} times the predicted one. For the geometric mean it predicts that the
    kept share grows with the length, which the data do not show. The sum is not normal: in `{OLD}` half of the tokens
    agree to {100 * (float(sizes[0]) - 1):.2f} %, and one in a hundred differs by a factor of {float(sizes[1]):.1f} or
    more.
    """)

# %% [markdown]
# ### The two studies with short answers, arm by arm
#
# A **budget** sets the bound anew for every batch, such that a rule keeps a given percentage of the tokens. This
# percentage is the number in an arm's name. For comparison, the `random_` arms reject as many tokens or answers by
# chance. The pictures show the reward at the end minus that without a correction. Green is significantly better, orange
# significantly worse, grey not significant. The dashed lines show the reward at the start and that of the control, on
# the same scale: an arm to the left of "start" has lost reward in training, whatever its colour. First old weights:


# %%
def with_lines(study):
    """Draw the differences to no correction, with lines at the start and at the control."""
    made, none = differences(against_nothing(rows_of(study))), ends(study)["none"].value
    for label, reward, colour in (("start", start(study), REJECTED), ("control", control(study), ACROSS[2])):
        assert reward is not None  # the studies with short answers have a control
        made.add_shape(vertical_line(x=reward - none, colour=colour, dash="dash", width=2, label=label, side="left"))
    return made


picture(with_lines("decide_stale"))

# %% [markdown]
# Then the coarse cache:

# %%
picture(with_lines("decide_cache"))

# %% tags=["hide-input"]
for name, pairs in minus_chance.items():
    for arm, difference in pairs.items():
        if difference.tells:
            show(f"{name}: {arm}, minus chance", bracketed(difference).rjust(20))
halves = [arm for arm in short_cache if arm.endswith("_50")]
worse = [arm for arm in halves if short_cache[arm].high < 0]
tight = {"token_band_50", "token_band_80"}
assert tight == {arm for arm, x in minus_chance["decide_cache"].items() if x.high < 0} - {NEGATIVE}
assert minus_chance["decide_stale"]["geometric_50"].low > 0
both_signs = [arm for arm in short_old if arm.startswith(("token_band", "geometric_", "product_band"))]
assert not any(short_old[arm].tells for arm in both_signs if "negative" not in arm)
say(f"""
    With the coarse cache {len(worse)} of {len(halves)} ways to reject half of the tokens are significantly worse than
    no correction. A band on tokens is there significantly worse than chance at two budgets. With old weights no rule
    that rejects good and bad answers alike can be distinguished from no correction, at any budget. Yet `geometric_50`
    is significantly better than rejecting half of the answers by chance. With old weights
    {len(above_start["decide_stale"])} of {len(ends("decide_stale"))} arms end above the start, with the coarse cache
    {len(above_start["decide_cache"])} of {len(ends("decide_cache"))}. """)
