# %% [markdown]
# # 07 · Rejection: which tokens are left out, and what is trained on then
#
# **Claim.** Rejecting does not repair an average: it trains on another distribution, the engine's restricted to what
# is kept, and it multiplies the gradient by the kept share, unless the denominator counts only what is kept.
#
# *30 minutes · intermediate · any laptop; no GPU, no network.* You need the ratio (lesson 00), weights (lesson 02) and
# the levels of lesson 06. Letters: [Notation](NOTATION.md).

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from exercises.lesson_07 import GEOMETRIC_RULE, LOSS, MASKED_LOSS, TRAINED_DISTRIBUTION, slope
from recorded import load
from sentences import above, below, bracketed, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.adaptive import m2po
from rlcorr.analysis.regions import TOKEN_METHODS, region
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, figure
from rlcorr.figures.study import differences
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.toy import small_world
from rlcorr.losses.objective import lr_factor, score_coefficients
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio, over_sequence
from rlcorr.records import runs
from rlcorr.records.study import find_study, read_study
from rlcorr.records.study_comparisons import against_chance, against_nothing
from rlcorr.rules import RejectionRule
from rlcorr.teaching.check import check
from rlcorr.types import TokenBatch

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Keep or drop
#
# A weight counts a token more or less; a **rejection rule** counts it fully or not at all. A rule has a **divergence**,
# which says how far two probabilities are apart; a **level**, a token or an answer; and **bounds**. What lies
# inside is **kept**, $m=1$; the rest is **rejected**, $m=0$: it stays in the text, without a gradient.
#
# ## By hand: three actions
#
# The engine writes X, Y, Z with $q=(½,¼,¼)$, the trainer with $p=(¼,¼,½)$; they pay 1, 0, 4. So the average pay is 1.5
# in the engine, 2.25 in the trainer, and $r=p/q$ is ½, 1, 2. A rule with an upper bound of 1.5 rejects Z. Of the rest X
# has ⅔ and Y ⅓, which pay 0.67: further from 2.25 than without a rule. Nothing was wrong with Z; the trainer likes it
# best.
#
# ## The equation
#
# Write $\bar m=\mathbb{E}_q[m]$ for the **kept share**, here ¾. For any $f$
#
# $$ \mathbb{E}_q[m f]=\sum_a q(a)\,m(a)\,f(a)=\bar m\;\mathbb{E}_{q_m}[f],\qquad q_m=\frac{q\,m}{\bar m} . $$
#
# **Rejection trains on $q_m$**, the engine's distribution restricted to what is kept; nothing makes it equal to $p$.
# With weights on top (**MIS**, masked importance sampling)
#
# $$ \mathbb{E}_q[m\,r f]=\sum_a p(a)\,m(a)\,f(a)=\mathbb{E}_p[f]-\sum_{a\;\text{rejected}}p(a)\,f(a) . $$
#
# The bias is minus what the trainer would earn on the rejected actions.

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
show("average pay: engine, trainer", (q3 * pay).sum(), (p3 * pay).sum())
show("average pay: q_m", (q3 * m * pay).sum() / kept_share)
show("rejection and weights (MIS)", (m * p3 * pay).sum())

# %% [markdown]
# ## Who is left?
#
# Each point is an answer in `stale_4`, whose engine has old weights; crosses are wrong answers. A rule on the geometric
# mean of the ratios keeps what lies below the line. **Look for** the side from which a tighter bound takes answers.

# %% tags=["hide-input"]
batch = load("stale_4")
rewards = batch.tensors()["rewards"].double()
away = masked_mean(correct(batch, CorrectionConfig()).log_ratio, batch.response_mask, -1).abs().exp() - 1
surprise = -masked_mean(batch.rollout_log_probs, batch.response_mask, -1)
BOUNDS = {"0.1 %": 0.001, "0.3 %": 0.003, "1 %": 0.01, "3 %": 0.03, "10 %": 0.1, "30 %": 0.3}


def geometric(bound):
    """Keep answers whose geometric mean is off by no more than this share, to either side."""
    rule = RejectionRule.named("seq_mean_k1", lower=1 / (1 + bound), upper=1 + bound)
    return CorrectionConfig(rollout_rs=(rule,))


def answers_at(bound):
    keeps, right = correct(batch, geometric(bound)).keep_mask.any(-1), rewards > 0.5
    groups_of = {"kept, right": keeps & right, "kept, wrong": keeps & ~right,
                 "rejected, right": ~keeps & right, "rejected, wrong": ~keeps & ~right}  # fmt: skip
    traces = []
    for name, those in groups_of.items():
        marker = {"color": KEPT if "kept" in name else REJECTED, "size": 6}
        marker["symbol"] = "circle" if "right" in name else "x"
        points = {"x": surprise[those].tolist(), "y": (100 * away[those]).tolist()}
        traces.append({"type": "scatter", "mode": "markers", "name": name, **points, "marker": marker})
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100 * bound, "y1": 100 * bound}
    x = {"title_text": "mean −log q in nats: how unsure the engine was", "type": "log"}
    y = {"title_text": "geometric mean of the ratios: away from 1, %", "type": "log"}
    return figure(traces, height=360, x=x, y=y, shapes=[line | {"line": {"color": REJECTED}}], legend=True)


moving_picture("bound ±", {label: answers_at(bound) for label, bound in BOUNDS.items()}, "1 %")

# %% tags=["hide-input"]
MISMATCHED = ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "stale_head", "moe_bf16", "long_kv_fp8_e5m2", "long_stale_4")


def drawn_prompts(prompts):
    """(401, B): how often each answer counts. Row 0 is the sample itself, the others draw prompts: bootstrap."""
    _, place = prompts.unique(dim=0, return_inverse=True)
    return resampled(int(place.max()) + 1, 400, 0).double()[:, place]


def lead(batch, values, keeps):
    """Mean over the kept answers less that over the rejected ones."""
    drawn = drawn_prompts(batch.tensors()["prompt_ids"])
    kept, rejected = ((drawn * values * side).sum(-1) / (drawn * side).sum(-1) for side in (keeps, ~keeps))
    return interval_of(kept - rejected, signed=True)


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
    At ±1 % the rule keeps {100 * float(keeps.double().mean()):.0f} % of the answers. They earn {above(of_reward)} more
    reward than the others, and the engine was surer of them: mean $-\\log q$ differs by {below(of_surprise)} nats per
    token. **Surely** will mean: the 95 % interval excludes 0. Of {len(verdicts)} recorded steps of {len(MISMATCHED)}
    runs that keep and reject at least ten answers, the kept ones surely earn more in {richer}, and the engine was
    surely surer of them in {surer}.
    """)

# %% [markdown]
# A token whose probability is near 1 in both policies has hardly any mismatch. So such a rule tends to keep what the
# model **already knows**, and to drop answers in which it hesitated.
#
# ## Which tokens are far apart
#
# By hand: to one token the engine gave 0.5 and the trainer 0.05; to another 0.01 and 0.1. So $d$ is −2.3 and 2.3. Three
# divergences need only $d$: $k_1=-d$ has a sign; $k_2=\tfrac12d^2$ is 2.65 for both; $k_3=e^d-1-d$ is 1.40 and 6.70,
# stricter towards tokens that the trainer likes better than the engine does. Near $r=1$, k2 and k3 agree. The appendix
# lists and draws the known rules.
#
# ## The length of a step
#
# The loss is a sum over the kept tokens, divided by all $N$ real tokens (**fixed**) or by the $\bar m N$ kept ones
# (**kept**):
#
# $$ g_{\text{fixed}}=\frac{1}{N}\sum_{\text{kept}}A\,s=\bar m\;g_{\text{kept}} . $$
#
# The direction is the same, so neither repairs the bias. Adam divides a gradient by its running size: a **constant**
# kept share $\bar m$ cancels; its changes from step to step do not.
#
# ## Long answers
#
# The mean of $d$ over a long answer nears −KL per token (lesson 06). So a bound on the **geometric mean** asks
# whether that KL is below the bound. The **product** leaves every fixed band in the end. Three runs, with the first
# tokens of their answers:

# %% tags=["hide-input"]
LONG = ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4")
CUTS = (50, 100, 200, 494)
RULES = {"±0.1 %": geometric(0.001), "product": preset("skyrl_product_mask")}


def first_tokens(batch, count):
    mask = batch.response_mask & (batch.response_mask.cumsum(-1) <= count)
    return TokenBatch.from_log_probs(batch.tensors()["old_log_probs"], batch.rollout_log_probs, mask)


def kept_answers(name, config, count):
    """Of both recorded steps, one answer after the other: 1 where it is kept."""
    return torch.cat([correct(first_tokens(load(name, n), count), config).keep_mask.any(-1) for n in (0, 1)]).double()


def mean_over(prompts, values, counts):
    """Of values (B,) that count so often; the bootstrap draws prompts."""
    drawn = drawn_prompts(prompts) * counts
    return interval_of((drawn * values).sum(-1) / drawn.sum(-1), signed=True)


show("share of the answers kept, first tokens", *CUTS[:-1], "all", "KL per token, ‰".rjust(20))
falls, kl = {}, {}
for name in LONG:
    both = [load(name, n) for n in (0, 1)]
    prompts = torch.cat([b.tensors()["prompt_ids"] for b in both])
    mean_d = [masked_mean(correct(b, CorrectionConfig()).log_ratio, b.response_mask, -1) for b in both]
    kl[name] = mean_over(prompts, -1000 * torch.cat(mean_d), torch.cat([b.response_mask.sum(-1) for b in both]))
    for label, config in RULES.items():
        kept = [kept_answers(name, config, cut) for cut in CUTS]
        show(f"{name}, {label}", [float(x.mean()) for x in kept], bracketed(kl[name]).rjust(20), digits=2)
        falls[name, label] = mean_over(prompts, kept[0] - kept[-1], torch.ones(len(prompts)))
coarse, stale = (falls[name, "product"] for name in LONG[1:])
say(f"""
    With the bfloat16 engine both rules keep nearly every answer. With the coarse cache and with old weights the KL is
    above the bound of 1 ‰, {above(kl[LONG[1]], 1)} and {above(kl[LONG[2]], 1)}, and ±0.1 % keeps few answers at any
    length. The share that the product keeps falls, from {CUTS[0]} tokens to all, by {above(coarse)} and {above(stale)}.
    """)

# %% [markdown]
# ## What our studies found
#
# Four studies compare whole trainings on the same seeds: stale weights or a coarse KV cache, short answers or long
# ones. `token_cap` and `product_cap` are weights with a cap. `geometric_negative_50` leaves out answers with a
# **negative advantage**, the smallest geometric mean first, until half of the tokens are left; the others leave out the
# fifth that is furthest from 1. **Guess first:** which helps in all four?

# %% tags=["hide-input"]
STUDIES = {name: read_study(name)[0] for name in ("decide_stale", "decide_cache", "decide_long_stale",
                                                  "decide_long_cache")}  # fmt: skip
less_nothing = {name: {p.arm: p.difference for p in against_nothing(rows)} for name, rows in STUDIES.items()}
less_chance = {
    name: {p.arm: p.difference for p in against_chance(rows, find_study(name).by_chance)}
    for name, rows in STUDIES.items()
}
ARMS = ("token_cap", "product_cap", "geometric_negative_50", "geometric_80", "product_band_80", "token_band_80")
show("reward at the end, less no correction", *(name.rjust(20) for name in STUDIES))
for arm in ARMS:
    show(arm, *(bracketed(less_nothing[name][arm]).rjust(20) for name in STUDIES))

short_stale, short_cache, long_stale, long_cache = less_nothing.values()
NEGATIVE = "geometric_negative_50"
by_chance = [less_chance[name][NEGATIVE] for name in STUDIES]
for study in (long_stale, long_cache):
    assert {arm for arm, difference in study.items() if difference.tells} == {"token_cap"}
assert {arm for arm, difference in short_stale.items() if difference.tells} == {"token_cap", "product_cap", NEGATIVE}
assert not any(difference.low > 0 for difference in short_cache.values())
assert all(study["product_cap"].high < study["token_cap"].low for study in (long_stale, long_cache))
say(f"""
    None surely helps in all four. (In 95 % of such studies all intervals hold at once.)

    - **Which rejection helps depends on the mismatch.** With short answers and stale weights `{NEGATIVE}` is
      surely better than nothing, and than as many bad answers left out by chance, {above(by_chance[0])}. With the
      coarse cache it is surely worse than both: {below(short_cache[NEGATIVE])} and {below(by_chance[1])}.
    - **With long answers the token cap alone is surely better than nothing**, {above(long_stale["token_cap"])} and
      {above(long_cache["token_cap"])}. The product cap cannot be told from nothing, {untold(long_stale["product_cap"])}
      and {untold(long_cache["product_cap"])}; nor can any rejection, some with wide intervals.

    All of this is two tasks, one learning rate, two small models.
    """)

# %% [markdown]
# ## Predict, then reveal
#
# `moe_bf16` is a mixture of experts: nearly all tokens agree, and a few, for which another expert was chosen, are far
# apart. **Write down a guess** for its last step:
#
# 1. Which share of the answers do a narrow bound on the geometric mean (`decoupled_geo_rs`) and a wide one
#    (`skyrl_geo_mask`) keep?
# 2. How many **tokens** does IcePop, a band on each ratio, reject?
# 3. How much of the mean k3 is then left: a half, a fifth, less than a tenth?

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
say(f"""
    IcePop drops **one** of {int(mask.sum())} tokens, and {100 * left:.0f} % of the mean k3 is left. The narrow bound
    drops {100 * (1 - float(narrow.double().mean())):.0f} % of the answers; of these the wide one keeps
    {kept_by_wide:.0f} %. Against a few tokens that are far off, reject single tokens, with bounds that
    rounding does not reach.
    """)

# %% [markdown]
# ## Exercise 1: a rule on the geometric mean
#
# *6 minutes.* Return the mask of kept tokens, `(B, T)`, False on padding. An answer stays while the geometric mean of
# its ratios, trainer over engine, lies in [`lower`, `upper`]. It is the fourth piece of `mini.py`, `kept`.
#
# <details><summary>Hint 1</summary>The mean of d is the logarithm of the geometric mean.</details>
# <details><summary>Hint 2</summary><code>over_sequence(log_ratio(…), mask, "mean")[:, None]</code> has shape (B,
# 1).</details>


# %%
def geometric_rule(old_log_probs, rollout_log_probs, mask, lower, upper):
    raise NotImplementedError("exercise 1: write geometric_rule, then run this cell and the next.")


# %% tags=["check"]
check(geometric_rule, GEOMETRIC_RULE)


# %% tags=["solution", "hide-input"]
def geometric_rule_solution(old_log_probs, rollout_log_probs, mask, lower, upper):
    mean = over_sequence(log_ratio(old_log_probs, rollout_log_probs, mask), mask, "mean")[:, None]
    return mask & (mean >= math.log(lower)) & (mean <= math.log(upper))


check(geometric_rule_solution, GEOMETRIC_RULE)

# %% [markdown]
# ## Exercise 2: the distribution that is trained on
#
# *3 minutes.* Given the engine's probability `q` of each action and which actions are kept, return $q_m$; zeros if none
# is.
#
# <details><summary>Hint 1</summary>Set the rejected ones to 0, then make it add up to 1.</details>


# %%
def trained_distribution(q, keep):
    raise NotImplementedError("exercise 2: write trained_distribution, then run this cell and the next.")


# %% tags=["check"]
check(trained_distribution, TRAINED_DISTRIBUTION)


# %% tags=["solution", "hide-input"]
def trained_distribution_solution(q, keep):
    kept = q.where(keep, 0)
    total = kept.sum()
    return kept / total if total > 0 else kept


check(trained_distribution_solution, TRAINED_DISTRIBUTION)

# %% [markdown]
# ## Exercise 3: two denominators
#
# *4 minutes.* Return the sum of `loss` over the kept tokens, divided by the number of real tokens (`denominator` is
# "fixed") or of kept ones ("kept"); 0 where that is 0. `loss` is nan on padding.
#
# <details><summary>Hint 1</summary><code>loss[keep]</code> holds no nan; <code>.clamp(min=1)</code> the
# count.</details>


# %%
def masked_loss(loss, mask, keep, denominator):
    raise NotImplementedError("exercise 3: write masked_loss, then run this cell and the next.")


# %% tags=["check"]
check(masked_loss, MASKED_LOSS)


# %% tags=["solution", "hide-input"]
def masked_loss_solution(loss, mask, keep, denominator):
    counted = mask if denominator == "fixed" else keep
    return loss[keep].sum() / counted.sum().clamp(min=1)


check(masked_loss_solution, MASKED_LOSS)

# %% [markdown]
# ## mini.py, piece 5: `loss`
#
# *6 minutes.* Return a number whose slope along every real log-prob of the `trainer` is $-wA/N$. `weights`, `(B, T)`,
# are the ratios after cap and rejection, computed from the same log-probs; `advantage` is `(B,)`; $N$ counts the mask.
#
# <details><summary>Hint 1</summary>An optimizer goes down.</details>
# <details><summary>Hint 2</summary><code>weights.detach()</code> is a number to autograd;
# <code>advantage[:, None]</code> stands beside every token.</details>


# %%
def weighted_loss(trainer, weights, mask, advantage):
    raise NotImplementedError("mini.py: write weighted_loss, then run this cell and the next.")


# %% tags=["check"]
check(slope(weighted_loss), LOSS)


# %% tags=["solution", "hide-input"]
def weighted_loss_solution(trainer, weights, mask, advantage):
    return -(weights.detach() * advantage[:, None] * trainer.where(mask, 0)).sum() / mask.sum()


check(slope(weighted_loss_solution), LOSS)

# %% [markdown]
# ## Check yourself
#
# **1. A rule keeps a token while k3 ≤ 1. Of one token $q=0.9$, $p=0.01$, of another the reverse. Which is kept?**
#
# <details><summary>Neither: both are off by a factor of 90.</summary>Right: their k3 are 3.5 and 84.5.</details>
# <details><summary>The first: k3 only looks at ratios above 1.</summary>No. Below 1 it grows too, like −d.</details>
# <details><summary>The second: the trainer likes it.</summary>No. That is what k3 punishes most.</details>
#
# **2. A rule rejects 30 % of the tokens. The denominator is fixed, the optimizer is Adam. What happens to the step?**
#
# <details><summary>It is 30 % shorter.</summary>In plain gradient descent. In Adam a constant factor
# cancels.</details>
# <details><summary>Nothing: the rejected tokens were wrong anyway.</summary>No. $q_m$ is another distribution, with
# another direction.</details>
# <details><summary>The gradient is multiplied by the kept share and turned; Adam undoes the factor, not the
# turn.</summary>Yes, while the share stays the same.</details>
#
# **3. A bound of ±0.1 % on the geometric mean keeps 90 % of answers of 4 tokens. And of 4,000?**
#
# <details><summary>90 %: the geometric mean does not depend on the length.</summary>No. Its spread does.</details>
# <details><summary>None: long answers leave every band.</summary>That holds for the product.</details>
# <details><summary>All if the KL per token is well below 0.001, none if well above.</summary>Yes: the rule then tests
# the engine.</details>
#
# ## In the app
#
# Start it with `make app`, then open
#
# - [the bench](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_geo_rs): drag both bounds;
# - [the Mismatch view](http://localhost:8501/mismatch?run=long_kv_fp8_e5m2&step=latest), with the regions of rules;
# - [weights without and with
#   rejection](http://localhost:8501/compare?run=stale_4&step=latest&preset=decoupled_seq_is&compare=preset&preset_b=decoupled_seq_is_rs);
# - [a study](http://localhost:8501/training?part=Study&study=decide_stale).
#
# ## Pitfalls
#
# - **Direction.** verl bounds $-\log r$, `rlcorr` $r$ itself: its bounds are the reciprocals of verl's.
# - **Empty batches.** If all is rejected, the mean over nothing must be 0: one nan spoils every parameter.
# - **Two-sided is not symmetric.** Of tokens drawn from $q$ at most one in $u$ has $r>u$ (Markov's inequality),
#   so the upper bound does little.
# - **Metrics after the rule.** What is kept looks healthy. Measure before the rule.
#
# ## References
#
# 1. [Every Step Evolves](https://arxiv.org/abs/2510.18855), 2025: the report on Ring-1T, with IcePop and its bounds.
# 2. Qi et al., [Rethinking the Trust Region in LLM RL](https://arxiv.org/abs/2602.04879), 2026: DPPO, bounds on
#    probabilities instead of ratios.
# 3. Li et al., [Trust Region Masking for Long-Horizon LLM RL](https://arxiv.org/abs/2512.23075), 2025: rules on whole
#    answers by k2 and k3.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; the path does not need them.
#
# ### The rules by name
#
# With the numbers of their presets:
#
# | rule | keeps a token while | level |
# |---|---|---|
# | MIS, masked importance sampling | $r$ in a band, and counts it by $r$ | token or sequence |
# | [IcePop](https://arxiv.org/abs/2510.18855) | $0.5 \le r \le 5$, and counts it by $r$ | token |
# | [KPop](https://ringtech.notion.site/kpop) | $\max(\mathrm{KL}(P\Vert Q), \mathrm{KL}(Q\Vert P)) \le 2$ | token |
# | [DPPO](https://arxiv.org/abs/2602.04879), TV | $\lvert p - q\rvert \le 0.2$, or the update moves it back | token |
# | DPPO, signed KL | $\mathrm{KL}(Q\Vert P)$ at most 0.05 | token |
# | Geo-RS (`decoupled_geo_rs`) | geometric mean of the answer's ratios in $[0.999, 1.001]$ | sequence |
# | k3 rule (`decoupled_k3_rs`) | mean k3 of the answer at most 0.01 | sequence |
# | veto (`skyrl_outlier`) | every ratio of the answer in $[10^{-4}, 100]$ | sequence |
# | [OPSM](https://arxiv.org/abs/2512.02556) | mean $d \ge -0.5$, or the advantage is not negative | sequence |
#
# $P = (p, 1 - p)$ and $Q = (q, 1 - q)$ are the two probabilities of "this token or another".
#
# ### Where a token rule keeps a token
#
# Across is $q$, up is $p$; a rule keeps what lies between its two lines. **Look for** three shapes: IcePop and k3 are
# wedges with their tips in the corner, because they look at $r$ alone; DPPO is a strip of constant width; KPop is a fat
# leaf.

# %% tags=["hide-input"]
shown = {name: TOKEN_METHODS[name] for name in ("IcePop", "KPop", "DPPO", "k3")}
grid = torch.cat(
    [torch.linspace(0.001, 0.05, 8), torch.linspace(0.07, 0.93, 30), torch.linspace(0.95, 0.999, 8)]
).double()
traces = []
for colour, (name, config) in zip(ACROSS, shown.items(), strict=False):
    edges = region(config, grid.log())
    y = [None if x != x else x for edge in (edges.lower, edges.upper) for x in [*edge.exp().tolist(), math.nan]]
    x = [*grid.tolist(), None] * 2
    traces.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": {"color": colour}})
axes = [{"title_text": f"probability in the {side}", "range": [0, 1]} for side in ("engine, q", "trainer, p")]
picture(figure(traces, height=400, x=axes[0], y=axes[1], legend=True))

# %% [markdown]
# The same as numbers, and how many tokens of the last step of `kv_fp8_e5m2` each rule rejects on either side; "—" means
# that no probability is out on that side. Bounds on ratios are strict where probabilities are small, bounds on $|p-q|$
# where they are large.

# %% tags=["hide-input"]
places = torch.tensor([0.001, 0.1, 0.5, 0.9], dtype=torch.float64)
batch = load("kv_fp8_e5m2")
d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
show("q", *[f"{x:g}" for x in places.tolist()], "", "r < 1", "r > 1")
ends, sides = {}, {}
for name, config in shown.items():
    accepted, result = region(config, places.log()), correct(batch, config)
    lost = mask & ~(result.keep_mask & (result.weights > 0))
    ends[name] = accepted.lower.exp(), accepted.upper.exp()
    sides[name] = int((lost & (d < 0)).sum()), int((lost & (d > 0)).sum())
    low, high = ([f"{x:.4f}" if x == x else "—" for x in end.tolist()] for end in ends[name])
    show(f"{name}: smallest p; rejected", *low, "", *sides[name])
    show(f"{name}: largest p", *high)
assert sides["IcePop"][1] == 0 < sides["IcePop"][0]
say(f"""
    Of a token that the engine writes once in a thousand, IcePop lets $p$ go up to {float(ends["IcePop"][1][0]):.3f}, a
    ratio of {float(ends["IcePop"][1][0] / places[0]):.0f}, and DPPO up to {float(ends["DPPO"][1][0]):.3f}, a ratio of
    {float(ends["DPPO"][1][0] / places[0]):.0f}. All {sides["IcePop"][0]} tokens that IcePop rejects here have $r < 1$:
    its upper bound is never reached.
    """)

# %% [markdown]
# ### Bounds that follow the batch, or an answer
#
# [M2PO](https://arxiv.org/abs/2510.01161) drops the tokens with the largest $d^2$ until the mean $d^2$ of the rest is
# below 0.04: the rule `token_k2`, with a bound that `rlcorr.adaptive.m2po` finds for each batch.
# [FlashREINFORCE](https://github.com/OpenRLHF/OpenRLHF/pull/1339) keeps an answer while the **mean** of its tokens'
# $\mathrm{KL}(Q\|P)$ is at most 0.005; $Q$ and $P$ are engine's and trainer's probabilities of "this token or
# another". **Look for** steps on which M2PO drops no token and FlashREINFORCE nearly half of the
# answers.

# %%
show("last step", "M2PO: |d| ≤", "drops", "of tokens", "FlashREINFORCE: answers kept")
for name in MISMATCHED:
    one = load(name)
    rule = m2po(one)
    dropped = one.response_mask & ~correct(one, CorrectionConfig(rollout_rs=(rule,))).keep_mask
    by_answer = correct(one, preset("openrlhf_flash_reinforce")).keep_mask.any(-1)
    counts = int(dropped.sum()), int(one.response_mask.sum())
    show(name, math.sqrt(2 * rule.upper), *counts, float(by_answer.double().mean()), digits=2)

# %% [markdown]
# ### The bias of every rule on three actions

# %%
P, Q, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqf")


def sum_over(actions, *factors):
    return sympy.Add(*(sympy.Mul(*(factor[a] for factor in factors)) for a in actions))


for number in range(1, 8):  # every subset that is not empty
    stays = [a for a in range(3) if number >> a & 1]
    r, share = [y / x for x, y in zip(Q, P, strict=True)], sum_over(stays, Q)
    assert sympy.simplify(sum_over(stays, Q, F) - share * sum_over(stays, [x / share for x in Q], F)) == 0
    lost = sum_over([a for a in range(3) if a not in stays], P, F)
    assert sympy.simplify(sum_over(stays, Q, r, F) - sum_over(range(3), P, F) + lost) == 0

# %% [markdown]
# ### The gradient of whole answers
#
# `small_world` holds all answers of a few tokens, with random advantages, and two policies whose logits differ by
# noise; `gradient_truth` sums over all of them, so there is no chance in it. First the two equations, spelled out with
# autograd.

# %% tags=["hide-input"]
little = small_world(0.2)
where, policies, advantages = little.where, little.policies, little.advantages
q_answers, p_answers = (toy.probabilities(where, policy) for policy in (policies.rollout, policies.old))
answers = TokenBatch.from_log_probs(
    toy.log_probs(where, policies.old), toy.log_probs(where, policies.rollout), where.mask
)
summed = LossConfig(loss_agg_mode="token-sum")


def score_sum(weights):
    """Σ over answers of weight · A · ∇ log π."""
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
# Now move the bound. **Cosine** is that with the gradient that is wanted, **scale** the length along it; a step of
# length 0 has a relative bias of 1.

# %% tags=["hide-input"]
rows = []
for bound in (0.02, 0.05, 0.1, 0.2, 1e6):
    rule = geometric(bound).rollout_rs
    stays = correct(answers, CorrectionConfig(rollout_rs=rule)).keep_mask.any(-1)
    fixed, kept = (truth(CorrectionConfig(rollout_rs=rule, denominator=by)) for by in ("fixed", "kept"))
    label = f"{100 * bound:.0f} %" if bound < 1 else "none"
    rows.append((label, float(q_answers[stays].sum()), fixed.cosine, fixed.scale, fixed.relative_bias,
                 kept.scale, kept.relative_bias))  # fmt: skip
    assert math.isclose(fixed.cosine, kept.cosine, abs_tol=1e-12)
names = ("bound on the geometric mean, ±", "kept share", "cosine, both denominators", "scale, fixed", "bias, fixed",
         "scale, kept", "bias, kept")  # fmt: skip
for name, row in zip(names, zip(*rows, strict=True), strict=True):
    show(name, row, digits=3)
assert rows[0][6] > 2 > 1.2 > rows[0][4] > 1
say(f"""
    Tight bounds do not make the gradient on-policy: they turn it away, to a cosine of {rows[1][2]:.2f} at ±5 % and
    {rows[0][2]:.2f} at ±2 %. The kept denominator takes the wrong direction at full length, and at ±2 % its bias is
    {rows[0][6]:.1f} times the gradient that is wanted, with the fixed one {rows[0][4]:.1f} times.
    """)

# %% [markdown]
# ### The factor, and the optimizer
#
# `lr_factor` on the last step of `stale_4`, in two ways of aggregating the loss; then how far a weight goes in twenty
# steps under gradients of 1 that are all multiplied by a factor.

# %% tags=["hide-input"]
batch = load("stale_4")
batch = batch.replace(advantages=batch.tensors()["advantages"].double())
for mode in ("token-mean", "seq-mean-token-mean"):
    loss, pairs = LossConfig(loss_agg_mode=mode), []
    for denominator in ("fixed", "kept"):
        config = CorrectionConfig(rollout_rs=preset("skyrl_geo_mask").rollout_rs, denominator=denominator)
        result = correct(batch, config)
        factor = float(lr_factor(result.keep_mask, batch.response_mask, config, loss))
        pairs.append((factor, score_coefficients(batch.tensors()["old_log_probs"], batch, result, config, loss)))
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
# ### A law for long answers, and why it is only roughly right
#
# Let $d$ have the mean $\mu < 0$ and the standard deviation $\sigma$ per token, and take its sum over $T$ tokens for
# normal. A rule that bounds the sum by $\pm L$ keeps the share
#
# $$ \Phi\!\Big(\frac{L - \mu T}{\sigma\sqrt{T}}\Big) - \Phi\!\Big(\frac{-L - \mu T}{\sigma\sqrt{T}}\Big), $$
#
# with $L = T\log u$ for the geometric mean and $L = \log u$ for the product. As $T$ grows, the second tends to 0, and
# the first to 1 if $-\mu < \log u$, else to 0.

# %% tags=["hide-input"]
LIMITS = {"±0.1 %": lambda n: n * math.log(1.001), "product": lambda n: math.log(2)}
gaps = {}
for name in LONG[1:]:
    both = [load(name, n) for n in (0, 1)]
    d = torch.cat([correct(b, CorrectionConfig()).log_ratio[b.response_mask] for b in both])
    lengths = torch.cat([b.response_mask.sum(-1) for b in both]).double()
    sums = torch.cat([over_sequence(correct(b, CorrectionConfig()).log_ratio, b.response_mask, "sum") for b in both])
    mean = float(d.mean())
    spread = float(((sums - mean * lengths).square().sum() / lengths.sum()).sqrt())
    for label, limit in LIMITS.items():
        foretold = []
        for n in (lengths.clamp(max=cut) for cut in CUTS):
            high, low = (torch.special.ndtr((sign * limit(n) - mean * n) / (spread * n.sqrt())) for sign in (1, -1))
            foretold.append(float((high - low).mean()))
        shares = [float(kept_answers(name, RULES[label], cut).mean()) for cut in CUTS]
        show(f"{name}, {label}: law", foretold, "kept", shares, digits=2)
        gaps[name, label] = [a / b for a, b in zip(shares, foretold, strict=True)]
sizes = d.abs().quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).exp()
of_product = [gap for (_, label), of_run in gaps.items() if label == "product" for gap in of_run]
say(f"""
    The law has the direction, not the numbers: with the bound on the product the data keep {min(of_product):.1f} to
    {max(of_product):.1f} times as many answers. The sum is not normal: in `{LONG[2]}` half of the tokens agree to
    {100 * (float(sizes[0]) - 1):.2f} %, and one in a hundred is off by a factor of {float(sizes[1]):.1f} or more.
    """)

# %% [markdown]
# ### The two studies with short answers, arm by arm
#
# A **budget** sets the bound of every batch so that a rule keeps a given percentage of the tokens, the number in an
# arm's name. Beside it, as many are left out by chance. Green is surely better than no correction, orange surely worse,
# grey not to be told. First stale weights:

# %%
picture(differences(against_nothing(STUDIES["decide_stale"])))

# %% [markdown]
# Then the coarse cache:

# %%
picture(differences(against_nothing(STUDIES["decide_cache"])))

# %% tags=["hide-input"]
for name, pairs in less_chance.items():
    for arm, difference in pairs.items():
        if difference.tells:
            show(f"{name}: {arm}, less chance", bracketed(difference).rjust(20))
halves = [arm for arm in short_cache if arm.endswith("_50")]
worse = [arm for arm in halves if short_cache[arm].high < 0]
tight = {"token_band_50", "token_band_80"}
assert tight == {arm for arm, x in less_chance["decide_cache"].items() if x.high < 0} - {NEGATIVE}
assert less_chance["decide_stale"]["geometric_50"].low > 0
both_signs = [arm for arm in short_stale if arm.startswith(("token_band", "geometric_", "product_band"))]
assert not any(short_stale[arm].tells for arm in both_signs if "negative" not in arm)
say(f"""
    With the coarse cache {len(worse)} of {len(halves)} ways to leave out half are surely worse than no correction, and
    a band on tokens is surely worse than chance at two budgets. With stale weights no rule for both signs of the
    advantage can be told from no correction, at any budget; the geometric mean at half is surely better than chance
    all the same.
    """)
