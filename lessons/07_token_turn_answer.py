# %% [markdown]
# # 07 · Token, turn, answer: which ratio weights a token
#
# **Claim.** The product of all ratios of an answer is unbiased, and its noise grows with the length of the answer. The
# ratio of a single token has little noise and is biased, and so is that of a turn of an agent. The geometric mean has
# little noise because it corrects almost nothing. Only tokens that the policy sampled have a ratio.
#
# *90 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00, 01 and 03. All letters are in
# [Notation](NOTATION.md).
#
# At the end you can
#
# - say which errors a token's own ratio leaves, and which ones the product repairs;
# - say towards which policy the geometric mean corrects, and what dividing by the mean weight changes;
# - predict whether a bound rejects more of the long or more of the short answers;
# - say for every token of an agent's episode whether it belongs in the mask, and recognise pairs that a second
#   tokenisation or a chat template has broken.

# %% tags=["hide-input"]
import itertools
import math
from dataclasses import replace

import sympy
import torch
from curves import curves, rows
from exercises.agents import STILL_PAIRED, TURN_LOG_RATIO
from exercises.levels import PREFIX_WEIGHTS
from recorded import load
from sentences import above, below, bracketed, reveal, say
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.analysis.segments import correct_per_turn
from rlcorr.config import LossConfig
from rlcorr.figures.mismatch import by_length
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.report import compare_gradients
from rlcorr.gradients.toy import Policies, gradient_truth, kl, log_probs, probabilities, random_policy, visits, world
from rlcorr.losses.per_token import gspo
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.teaching.check import check

torch.set_num_threads(1)

generator = torch.Generator().manual_seed(6)
shuffled = torch.Generator().manual_seed(18)

# %% [markdown]
# ## Warm-up
#
# Two questions about older lessons. Choose an answer, then open it.
#
# **1. (Lesson 01) The ratio of one token has an effective sample size of 0.99. The tokens of an answer are independent.
# What is the effective sample size of the product over 100 tokens?**
#
# <details><summary>0.99: the mean of equal numbers.</summary>No. Each token multiplies it.</details>
# <details><summary>About 0.37.</summary>Yes: 0.99 to the power of 100. It falls exponentially with the
# length.</details>
# <details><summary>0: no product of 100 ratios is useful.</summary>No. A third of the sample is left. At 1,000 tokens
# nothing would be left.</details>
#
# **2. (Lesson 03) A batch of 256 answers contains no weight above the cap. What does that say about the cap?**
#
# <details><summary>It is useless: it changes nothing.</summary>It changes nothing in this batch. Among all likely
# answers there may be rare ones with huge weights.</details>
# <details><summary>Little. Answers above the cap are rare, and they make most of the noise.</summary>Yes.</details>
# <details><summary>It is too loose and should be lowered.</summary>That does not follow. The best cap depends on all
# possible answers, and on the size of the batch.</details>
#
# ## An example to compute by hand: two tokens
#
# The first token is *stop* or *go*. After *go* comes a second token, *left* or *right*. The engine samples each of them
# with probability ½. The trainer would choose *go* with ¾, and then *right* with ¾. The rewards are 2.5 for stopping, 0
# for left and 4 for right.
#
# | answer | $q$ | $p$ | product of the ratios | ratios of the tokens | reward |
# |---|---|---|---|---|---|
# | stop | ½ | ¼ | ½ | ½ | 2.5 |
# | go, left | ¼ | 3/16 | ¾ | 1½, ½ | 0 |
# | go, right | ¼ | 9/16 | 2¼ | 1½, 1½ | 4 |
#
# Should *go* become more probable? After *go* the **trainer** earns ¾ · 4 = 3, which is more than 2.5. So: yes. But the
# answers come from the engine. After *go* the **engine** earns only ½ · 4 = 2, which is less than 2.5.
#
# The ratio of the token *go* is 1½. It says how much more often the trainer would have chosen *go*. It does not say
# what the trainer would have done afterwards.
#
# With two actions, a softmax has the derivative $p\,(1 - p)$ in the logit of each. So the gradient in the logit of *go*
# is ¾ · ¼ · (value of *go* − value of *stop*). The trainer's own value gives ¾ · ¼ · (3 − 2.5) = 3/32. With the
# engine's value it is ¾ · ¼ · (2 − 2.5) = −3/32: the wrong sign.
#
# The gradient in the logit of *right* is (how often the second token is reached) · ¾ · ¼ · 4. The trainer reaches it
# with ¾, which gives 9/16. The engine reaches it with ½, which gives 3/8: two thirds of it.
#
# Does the program agree? It sums over all answers, so nothing is sampled:

# %%
two = world(2, 2)  # token 0 ends an answer (stop, left), token 1 does not (go, right)
q2 = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
p2 = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64).log()
setting = two, Policies(q2, p2, p2), torch.tensor([2.5, 0.0, 4.0], dtype=torch.float64)
PER_ANSWER = LossConfig(loss_agg_mode="token-sum")
LEVELS = {"no weights": None, "token": "token", "geometric mean": "geometric", "product": "sequence"}
UNBOUNDED = {name: CorrectionConfig(rollout_is=level, rollout_is_threshold=math.inf) for name, level in LEVELS.items()}

show("expected gradient in the logit of", "go", "right")
for name, weights in UNBOUNDED.items():
    truth = gradient_truth(*setting, weights, PER_ANSWER)
    show(name, truth.expectation[:, 1], digits=5)
show("wanted", truth.reference[:, 1], digits=5)

# %% [markdown]
# It does: 3/32 = 0.09375 and 9/16 = 0.5625 are wanted, and the product has both. So a token's own ratio leaves two
# errors: one about what comes **after** the token, and one about what came **before** it. (In this example the
# geometric mean happens to give the same numbers as the token ratio.)
#
# ## The equation
#
# The advantage $A$ belongs to the whole answer of $T$ tokens, and $s_t$ is the score of token $t$ (lesson 02).
# Importance sampling of whole answers gives
#
# $$ \mathbb{E}_p\Big[A \sum_t s_t\Big] = \mathbb{E}_q\Big[\prod_{k=1}^T r_k\; A \sum_t s_t\Big] . $$
#
# For one token $t$, split the product into three factors:
#
# $$ \prod_{k=1}^T r_k = \underbrace{\prod_{k<t} r_k}_{\text{past}} \cdot\; r_t\; \cdot
# \underbrace{\prod_{k>t} r_k}_{\text{future}} . \tag{1} $$
#
# Each factor corrects one thing. The **past** corrects how often this position of the text is reached. The **future**
# corrects what is written after it.
#
# | weight of token $t$ | the position is reached as often as by | the text goes on as written by |
# |---|---|---|
# | $r_t$, **token** | the engine | the engine |
# | $\prod_{k \le t} r_k$, **prefix** | the trainer | the engine |
# | $\prod_k r_k$, **sequence** | the trainer | the trainer |
#
# If the advantage is that of the whole answer, only the last one is unbiased. If each token has an advantage of its own
# that does not depend on what the engine wrote later, as with a critic, the prefix is enough. For answers of one token
# all three are the same. The bias of the token's own ratio can grow like $T^2$ (appendix).
#
# **The geometric mean** $\bar r = (\prod r_t)^{1/T}$ does something else. Multiply it by the engine's probability of
# the answer:
#
# $$ q(y)\, \bar r(y) = q(y) \left(\frac{p(y)}{q(y)}\right)^{1/T} = q(y)^{1 - 1/T}\, p(y)^{1/T} . \tag{2} $$
#
# Divide the right side by its sum over all answers, and it is a policy. On the logarithmic scale it is **one $T$-th of
# the way from the engine to the trainer**. For answers of hundreds of tokens this is nearly the engine itself, so
# hardly anything is corrected.
#
# ## Ratios of long answers
#
# Four runs have answers of up to hundreds of tokens. In `gpu_smol_long` a real language model, `SmolLM2-135M`, computes
# in bfloat16 on both sides, and nothing else is wrong. The other three are tiny models that sort digits: one in
# bfloat16, one with a coarse cache (the engine stores its memory of the text in 8 bits), one with older weights.
#
# To see the effect of length, we truncate every answer to its first $t$ tokens; shorter answers stay whole. In the
# picture a line is the median over the answers, and its band contains nine tenths of them. **Change the run, and look
# for** how the band of the product widens with $t$, while the geometric mean narrows.


# %% tags=["hide-input"]
class Recorded:
    """All steps of a run: log-ratios of the tokens (0 on padding), their mask, and the prompt of each answer."""

    def __init__(self, name):
        steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
        widest = max(one.response_mask.shape[1] for one in steps)
        pairs = []
        for one in steps:
            mask = one.response_mask
            d = log_ratio(one.tensors()["old_log_probs"], one.rollout_log_probs, mask)
            pairs.append([torch.nn.functional.pad(x, (0, widest - x.shape[1])) for x in (d, mask)])
        self.d, self.mask = (torch.cat(column) for column in zip(*pairs, strict=True))
        prompts = torch.cat([one.tensors()["group_ids"] + 1000 * n for n, one in enumerate(steps)])
        self.prompt = torch.nn.functional.one_hot(prompts.unique(return_inverse=True)[1]).double()

    def interval(self, x):
        """Return the interval of the mean of x. Prompts are resampled: answers to one prompt are not independent."""
        samples = resampled(self.prompt.shape[1], 1000, 0).double() @ self.prompt.T
        return interval_of(samples @ x / samples.sum(-1), signed=True)


def first_tokens(name, t):
    """Logarithms for the first t tokens of every answer: each single ratio, the product, its geometric mean."""
    d, mask = recorded[name].d[:, :t], recorded[name].mask[:, :t]
    return {"single ratios": d[mask], "geometric mean": d.sum(-1) / mask.sum(-1), "product": d.sum(-1)}


# %%
run_of = {
    "SmolLM2, bfloat16": "gpu_smol_long",
    "tiny, bfloat16": "long_bf16",
    "tiny, coarse cache": "long_kv_fp8_e5m2",
    "tiny, old weights": "long_stale_4",
}
recorded = {name: Recorded(run) for name, run in run_of.items()}
SMOL, BF16, CACHE, OLD = recorded
bounds = {"product": ("product", 2.0), "loose": ("geometric mean", 1.05), "tight": ("geometric mean", 1.001)}


# %% tags=["hide-input"]
def spread(name):
    at = [first_tokens(name, t) for t in lengths]
    parts = {kind: zip(*(one[kind].quantile(NINE_TENTHS).exp().tolist() for one in at), strict=True) for kind in at[0]}
    lows, lines, highs = (dict(zip(parts, end, strict=True)) for end in zip(*parts.values(), strict=True))
    bands = {kind: (lows[kind], highs[kind]) for kind in lines}
    made = curves(lengths, lines, bands=bands, x_name="first tokens of an answer, t", y_name="ratio", log="xy")
    return made.update_layout({"yaxis.range": [-5, 1], "margin.r": 60})


lengths, NINE_TENTHS = [1, 2, 5, 10, 20, 50, 100, 200, 400], torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
moving_picture("run", {name: spread(name) for name in recorded}, CACHE)

# %% tags=["hide-input"]
all_tokens = {name: first_tokens(name, recorded[name].mask.shape[1]) for name in recorded}
nine_tenths = {
    (name, kind): " and ".join(
        f"{end:.{digits}g}" for end in all_tokens[name][kind].quantile(NINE_TENTHS[::2]).exp().tolist()
    )
    for name in recorded
    for kind, digits in (("product", 2), ("geometric mean", 4))
}
average = recorded[CACHE].interval(all_tokens[CACHE]["product"].exp())
say(f"""
Over whole answers, nine products in ten are between

- {nine_tenths[SMOL, "product"]} with SmolLM2 in bfloat16 (answers of up to {recorded[SMOL].mask.shape[1]} tokens);
- {nine_tenths[BF16, "product"]} with the tiny model in bfloat16 (up to {recorded[BF16].mask.shape[1]} tokens);
- {nine_tenths[CACHE, "product"]} with its coarse cache;
- {nine_tenths[OLD, "product"]} with its old weights.

The geometric means of the same answers hardly differ from each other: nine in ten are between
{nine_tenths[CACHE, "geometric mean"]} with the coarse cache.

Over all possible answers, products average to 1 (lesson 01). With the coarse cache those of this sample average to
{below(average, 1)}, which is significantly below 1 (the 95 % interval excludes 1). The few answers with large products
that belong to the average are probably not in the sample, as in lesson 03.
""")

# %% [markdown]
# ## Bounds and lengths, by hand
#
# A bound $u$ on the product means $\sum d_t \le \log u$. If all tokens deviate equally, each may have a ratio of at
# most $u^{1/T}$. Call this the **tolerance** per token. With a bound of 2 and 400 tokens it is 1.0017.
#
# A bound on the geometric mean is a tolerance per token already. It lets the product reach $u^{\,T}$: with a bound of
# 1.01 and 400 tokens, 54.
#
# Let the $d$ of the tokens be independent, with standard deviation $σ$. Then $\sum d_t$ has the standard deviation
# $σ\sqrt{T}$. The bound on the product, $\log u$, does not grow with $T$. So it rejects more of the long answers. The
# bound on the geometric mean allows $T \log u$, which grows faster than $\sqrt{T}$. So it rejects more of the short
# answers. Both change the distribution of lengths, a **length bias**: the rule on the product removes long answers, and
# that on the mean short ones.
#
# ## Predict, then reveal

# %% tags=["hide-input"]
loose, tight = (f"±{100 * (bounds[rule][1] - 1):.2g} %" for rule in ("loose", "tight"))
say(f"""
Take the first 1, 10, 100 or {lengths[-1]} tokens of the same answers, and reject an answer if it is outside of a bound.
**Write down** whether the rejected share grows or falls with the length:

1. The product must be between ½ and {bounds["product"][1]:.0f}.
2. The geometric mean may deviate from 1 by {loose}.
3. The geometric mean may deviate from 1 by {tight}. (The argument above assumes that all tokens have gaps of similar
   size.)
""")


# %%
def outside(name, rule, t):
    """For each answer: 1 if its first t tokens are outside of the bounds, else 0."""
    kind, bound = bounds[rule]
    return (first_tokens(name, t)[kind].abs() > math.log(bound)).double()


show("share rejected of the first tokens", *(picked := (1, 10, 100, 400)))
for name in recorded:
    for rule, (kind, bound) in bounds.items():
        shares = [float(outside(name, rule, t).mean()) for t in picked]
        show(f"{name}: {kind}, {bound}", shares, digits=2)

# %% tags=["hide-input"]
change = {
    (name, rule): recorded[name].interval(outside(name, rule, picked[-1]) - outside(name, rule, picked[0]))
    for name in recorded
    for rule in bounds
}
assert not any(outside(BF16, "product", t).any() for t in picked)
reveal(f"""
How does the rejected share change from 1 to {picked[-1]} tokens?

1. With the bound on the product it grows: by {above(change[SMOL, "product"])} with SmolLM2 in bfloat16, by
   {above(change[CACHE, "product"])} with the coarse cache, and by {above(change[OLD, "product"])} with old weights. The
   tiny model in bfloat16 has no product outside of the bound at any of these lengths.
2. With the loose bound on the geometric mean it falls: {below(change[SMOL, "loose"])}, {below(change[CACHE, "loose"])}
   and {below(change[OLD, "loose"])} in the same order.
3. With the tight bound it depends. It **grows** with the coarse cache, by {above(change[CACHE, "tight"])}, and with old
   weights, by {above(change[OLD, "tight"])}. There, most tokens agree almost exactly and a few differ by much. One such
   token pushes the mean past a tight bound, but not past a loose one. With SmolLM2 and with the tiny
   model in bfloat16 the share falls: {below(change[SMOL, "tight"])} and {below(change[BF16, "tight"])}.
""")

# %% [markdown]
# ## What a bound keeps of a healthy language model
#
# In `gpu_smol_long` nothing is wrong: both sides compute in bfloat16, and the difference is rounding. A rule that
# rejects its answers rejects good data. The picture shows which share of the answers three rules keep, over the
# number of tokens that we look at. Bands are 95 % intervals over prompts. **Look for** the rule that keeps almost
# nothing at any length, and for the two lines that move in opposite directions.

# %% tags=["hide-input"]
KEPT_BY = {"geometric mean, ±0.1 %": ("geometric mean", 1.001), "geometric mean, ±1 %": ("geometric mean", 1.01),
           "product in [½, 2]": ("product", 2.0)}  # fmt: skip
up_to = [t for t in lengths if t <= recorded[SMOL].mask.shape[1]]
kept = {
    rule: [recorded[SMOL].interval((first_tokens(SMOL, t)[kind].abs() <= math.log(bound)).double()) for t in up_to]
    for rule, (kind, bound) in KEPT_BY.items()
}
lines = {rule: [x.value for x in at] for rule, at in kept.items()}
bands = {rule: ([x.low for x in at], [x.high for x in at]) for rule, at in kept.items()}
picture(curves(up_to, lines, bands=bands, x_name="first tokens of an answer, t", y_name="share of the answers kept",
               log="x"))  # fmt: skip
own_length = recorded[SMOL].mask.sum(-1)
longest_ones = own_length == own_length.max()
of_longest = {
    rule: float((first_tokens(SMOL, 400)[kind][longest_ones].abs() <= math.log(bound)).double().mean())
    for rule, (kind, bound) in KEPT_BY.items()
}
tight_rule, wide_rule, product_rule_ = KEPT_BY
say(f"""
Over whole answers, ±0.1 % on the geometric mean keeps {bracketed(kept[tight_rule][-1])} of them. The presets
of verl with a geometric mean, such as `decoupled_geo_rs`, have bounds of this width. Here they reject most of a healthy
run, at every length. ±1 % keeps
{bracketed(kept[wide_rule][0])} after one token and {bracketed(kept[wide_rule][-1])} over whole answers. The bounds on
the product go the other way, from {bracketed(kept[product_rule_][0])} to {bracketed(kept[product_rule_][-1])}. Of the
{int(longest_ones.sum())} answers that reach the limit of {int(own_length.max())} tokens, ±1 % keeps
{100 * of_longest[wide_rule]:.0f} % and the product rule {100 * of_longest[product_rule_]:.0f} %.
""")

# %% [markdown]
# ## Dividing the weights by their mean
#
# After truncation the weights average to less than 1, so the whole step becomes shorter. verl can divide the weights of
# a batch by their mean: `rollout_is_batch_normalize` ([pull request
# 4070](https://github.com/verl-project/verl/pull/4070)). Statisticians call it **self-normalised** importance sampling.
#
# By hand, with the three actions of lesson 03 and their cap of 1.5: the mean weight is ½·½ + ¼·1 + ¼·1.5 = 0.875.
# Dividing by it turns the average of 1.75 into 2. The bias is now −0.25 in place of −0.5. **But the cap is no longer
# 1.5:** the largest weight is the cap divided by the mean weight, here 1.5/0.875 = 1.71. If the mean weight is 0.1, as
# with products over long answers, a weight "capped at 2" may be 20.
#
# What does it do to a gradient? All answers of a batch are divided by the same number. So **the direction of the
# batch's gradient stays, and only its length changes.** In the picture of lesson 03, a small dot moves along the line
# from (0, 0) through itself. The bias across the arrow is not repaired.
#
# This matters if most weights are close to 0: then the truncated gradient nearly vanishes, and dividing by the mean
# weight restores its length. That happens to the products over long answers above.
#
# The table has the mean weight before and after the division, and the cosine between the two gradients; a cosine of 1
# is the same direction. The library divides by the mean over the answers, and the table has the mean over the tokens.
# So after the division it is only close to 1.

# %% tags=["hide-input"]
cap_of_2 = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=2.0)
normalized = replace(cap_of_2, rollout_is_batch_normalize=True)
show("cap of 2, last step, one batch", "mean of w", "divided", "cosine")
for name in ("stale_head", "stale_4", "async"):
    run = runs.find_run(name)
    step = runs.list_steps(run)[-1]
    one_batch = updated_batch(run, step)
    mean_weights = [float(correct(one_batch, way).weights[one_batch.response_mask].double().mean())
                    for way in (cap_of_2, normalized)]  # fmt: skip
    pair = compare_gradients(one_batch, read_sketch(run, step), cap_of_2, normalized, batch_sizes=[128])
    show(name, *mean_weights, pair.between.value, digits=3)
    assert abs(pair.between.low - 1) < 1e-6

# %% [markdown]
# ## An episode of an agent, by hand
#
# An **agent** is a policy that acts several times before it is rewarded. It writes a **turn**, for example the call of
# a tool. The tool answers, and the policy writes its next turn. All turns together are an **episode**.
#
# By hand: the agent is asked for 17 · 23. It calls a calculator, and then it answers. These are the tokens after the
# prompt, with the probabilities that engine and trainer give to them:
#
# | token | who wrote it | turn | $q$ | $p$ |
# |---|---|---|---|---|
# | `mul(17,23)` | the policy | 0 | 0.5 | 0.6 |
# | `<end>` | the policy | 0 | 0.8 | 0.8 |
# | `tool:` | the template | – | – | 0.01 |
# | `391` | the tool | – | – | 0.02 |
# | `The answer is 391` | the policy | 1 | 0.4 | 0.3 |
# | `<end>` | the policy | 1 | 0.9 | 0.9 |
#
# The engine **read** the two tokens in the middle; it did not sample them, so it has no probability for them. Many
# programs put a 0 where a log-prob is missing, and a log-prob of 0 means a probability of 1. If these tokens are in the
# mask, they have the ratios 0.01 and 0.02.

# %%
p = torch.tensor([[0.6, 0.8, 0.01, 0.02, 0.3, 0.9]], dtype=torch.float64)
q = torch.tensor([[0.5, 0.8, 1.00, 1.00, 0.4, 0.9]], dtype=torch.float64)  # 1 where nothing was sampled
sampled = torch.tensor([[True, True, False, False, True, True]])
for name, mask in (("the policy's tokens", sampled), ("all tokens", torch.ones_like(sampled))):
    d = log_ratio(p.log(), q.log(), mask)
    show(name, "product", float(ratio(over_sequence(d, mask, "sum"))), "tokens", int(mask.sum()))

# %% [markdown]
# With the right mask the episode has the weight 1.2 · 1 · 0.75 · 1 = 0.9. With the tool's tokens in the mask the weight
# is near 0, and the loss has another denominator. Nothing crashes, but this episode hardly counts any more.
#
# ## The mask is exact
#
# Is it allowed to leave the tool's tokens out, or is that an approximation? Under the trainer an episode
# $y$ has the probability
#
# $$ p(y) = \prod_{\text{turns}} \Big[ \prod_{t \,\in\, \text{turn}} p_t \Big] \cdot \Pr(\text{answer of the tool} \mid
# \text{everything before}) , $$
#
# and under the engine the same with $q_t$. The tool's factor does not depend on the policy. It is the same in both, so
# it cancels:
#
# $$ \frac{p(y)}{q(y)} = \prod_{t \,:\, \text{sampled}} \frac{p_t}{q_t} . $$
#
# So the mask is exact. It must contain **all** tokens that the policy sampled and no other. The `<end>` of a turn was
# sampled: it belongs into the mask. The line break and the header that the template puts after it were not.
#
# ## By hand: a ratio per turn
#
# The product over an episode is right on average, and noisy (lesson 01). A product per turn is shorter. What does it
# give up?
#
# By hand: in its first turn the agent searches or it does not. The engine searches with probability 0.5, the trainer
# with 0.9. In the second turn it answers. If it has searched, the answer is right with probability 0.8, else with 0.2,
# and here engine and trainer agree. The reward is 1 for a right answer.
#
# - The trainer's average reward is 0.9 · 0.8 + 0.1 · 0.2 = 0.74. The engine's is 0.5 · 0.8 + 0.5 · 0.2 = 0.5.
# - Draw episodes from the engine, and weight each by the product of its ratios over the **episode**. The average reward
#   is 0.5 · (0.9/0.5) · 0.8 + 0.5 · (0.1/0.5) · 0.2 = 0.74. This is right.
# - Weight each by the ratio of its **second turn** alone, which is 1. The average is 0.5, as for the engine. This is
#   wrong: what happens in the second turn is corrected, but how often the agent has searched before is not.
#
# A ratio per turn corrects what the policy does in a turn. It does not correct how often it gets into this situation.
# It is a compromise, as the ratio per token is: less noise for a bias.
#
# ## Predict, then reveal: turns
#
# We have no recorded episodes. So we make some from recorded answers of a real model. We take the answers of
# `smol_bf16_both`, whose only fault is rounding, in a random order. Then we put neighbours together as the turns of one
# episode. The gap of every token is real, the conversation is not. The first rule keeps an episode if the product of
# its ratios is between one half and two. The second rule has the same bounds, but it looks at each turn alone, and
# keeps or rejects only this turn.
#
# **Write down a guess:** with one turn the rule keeps nearly everything. What share of the tokens is left of episodes
# with sixteen turns, if the rule is about the episode? And if it is about the turn?
#
# **Look for** the line that falls, and for the number of turns at which it is below four fifths.


# %% tags=["hide-input"]
def recorded_answers(name):
    """Return both log-probs of every recorded answer of a run, in a random order."""
    answers = []
    for n in range(len(runs.list_steps(runs.find_run(name)))):
        batch = load(name, n)
        pairs = zip(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask, strict=True)
        answers += [(old[mask], rollout[mask]) for old, rollout, mask in pairs]
    return [answers[k] for k in torch.randperm(len(answers), generator=shuffled)]


def episodes(answers, turns):
    """Glue neighbours together: one row per episode, with the turn of every token."""
    rows = [answers[k : k + turns] for k in range(0, len(answers) - turns + 1, turns)]
    longest = max(sum(len(old) for old, _ in row) for row in rows)
    old, rollout = torch.zeros(2, len(rows), longest, dtype=torch.float64)
    turn_ids, mask = torch.zeros(len(rows), longest, dtype=torch.int32), torch.zeros(len(rows), longest)
    for k, row in enumerate(rows):
        size = sum(len(one) for one, _ in row)
        old[k, :size], rollout[k, :size] = (torch.cat(parts) for parts in zip(*row, strict=True))
        turn_ids[k, :size] = torch.cat([torch.full_like(one, turn) for turn, (one, _) in enumerate(row)]).int()
        mask[k, :size] = 1
    return TokenBatch.from_log_probs(old, rollout, mask).replace(turn_ids=turn_ids)


# %%
answers = recorded_answers("smol_bf16_both")
turn_counts = [1, 2, 4, 8, 16]
rule = RejectionRule("sequence", "k1", reduce="sum", lower=0.5, upper=2.0)
config = CorrectionConfig(rollout_rs=(rule,))
kept = {"rule on the episode": [], "rule on each turn": []}
for count in turn_counts:
    batch = episodes(answers, count)
    for name, result in zip(kept, (correct(batch, config), correct_per_turn(batch, config)), strict=True):
        kept[name].append(float(result.keep_mask.sum() / batch.response_mask.sum()))
picture(curves(turn_counts, kept, x_name="turns of an episode", y_name="share of the tokens that is kept", log="x"))


# %% tags=["hide-input"]
def effective_share(w):
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


long = episodes(answers, 16)
d = log_ratio(long.tensors()["old_log_probs"], long.rollout_log_probs, long.response_mask)
whole = effective_share(ratio(over_sequence(d, long.response_mask, "sum")))
one_turn = episodes(answers, 1)
d_of_turns = log_ratio(one_turn.tensors()["old_log_probs"], one_turn.rollout_log_probs, one_turn.response_mask)
single = effective_share(ratio(over_sequence(d_of_turns, one_turn.response_mask, "sum")))
show("effective sample size", "of 16 turns", whole, "of one turn", single, digits=2)
reveal(f"""
The rule on the episode keeps {kept["rule on the episode"][0]:.2f} of the tokens if an episode has one turn, and
{kept["rule on the episode"][-1]:.2f} if it has 16. The rule on each turn always keeps the same share, because its turns
are always the same answers. Nothing has become worse from turn to turn: **the same rounding is multiplied more often.**
(We drew one random order of the answers. It gives only {len(long.response_mask)} episodes of 16 turns, so the last
point is rough.)

Which of the two do you want? The bound on the episode limits how far the *whole* episode may be from the policy that is
trained. The bound on a turn limits this for one turn. It keeps more, and it leaves the bias that the search agent above
shows.
""")

# %% [markdown]
# In the library, `correct_per_turn` takes a batch with `turn_ids`, and `threshold --per-turn` chooses a bound for
# turns. `by_turn` measures the gap of each turn. Look at this before you choose a bound. If the gap is large only in
# the later turns, the cause is probably in the text before them: engine and trainer may have read different texts.
#
# ## The same text, other tokens
#
# Frameworks for agents pass on **text**: the engine decodes its tokens, the framework keeps a list of messages, and the
# trainer encodes the text again. A tokenizer has many ways to write a text, and encoding chooses one of them. The
# policy may have sampled another.
#
# By hand: a tokenizer has the tokens `3`, `9`, `1`, `39` and `391`. When it encodes a text, it always takes the longest
# token that fits. But the policy has written 391 as `39` and `1`.


# %%
def encode(text, vocabulary=("391", "39", "3", "9", "1")):
    """Return the tokens of a text: the longest that fits, from left to right."""
    tokens = []
    while text:
        tokens.append(next(token for token in vocabulary if text.startswith(token)))
        text = text[len(tokens[-1]) :]
    return tokens


sampled_tokens = ["39", "1"]
show("sampled", *sampled_tokens)
show("encoded again", *encode("".join(sampled_tokens)))

# %% [markdown]
# The engine has two log-probs, and the trainer has one token. The program now has no good choice. It can cut the longer
# list. Then all later pairs belong to different tokens (the shift of lesson 13). Or it can leave the answer out, and
# lose what it could teach.
#
# Is that rare? It happens if the policy writes two tokens that the tokenizer would join. Every recorded step of the
# real model has the texts of its tokens. So we can look for **suspects**: two neighbours whose texts together are the
# text of another token of the same run. Not every suspect changes. Whether a tokenizer joins two tokens depends on its
# rules. So we also asked the model's own tokenizer which answers become other tokens (`make bench ARGS=retokenised`,
# which needs the model). These are the bars of the picture. The two runs with `long` in their names have longer
# answers. **Look for** the difference that the length makes.


# %%
def suspects(name):
    """Return the number of answers with two neighbours that are one token elsewhere, and of all answers."""
    recorded = [runs.read_step(runs.find_run(name), step) for step in runs.list_steps(runs.find_run(name))]
    rows = [row for record in recorded for row in record.tokens or ()]
    texts = {text for row in rows for text in row}
    return sum(any(a + b in texts for a, b in itertools.pairwise(row)) for row in rows), len(rows)


# %% tags=["hide-input"]
CHECKED = {"smol_bf16_both": 12, "gpu_smol_bf16": 25, "smol_long": 114, "gpu_smol_long": 355}  # as the bench prints
changed = {}
for name, exactly in CHECKED.items():
    suspected, count = suspects(name)
    changed[name] = 100 * exactly / count
    show(name, f"{suspected} suspects", f"{exactly} changed", f"of {count:,}")
picture(rows(changed, x_name="% of the answers that become other tokens"))

# %% tags=["hide-input"]
token_rows = [row for step in runs.list_steps(runs.find_run("gpu_smol_long"))
              for row in runs.read_step(runs.find_run("gpu_smol_long"), step).tokens or ()]  # fmt: skip
texts = {text for row in token_rows for text in row}
pairs = [a + b for row in token_rows for a, b in itertools.pairwise(row) if a + b in texts]
breaks, tokens_each = pairs.count("\n\n"), sum(map(len, token_rows)) / len(token_rows)
say(f"""
**If their text is encoded again, {changed["gpu_smol_long"]:.0f} % of the answers of `gpu_smol_long` become other
tokens**. They have {tokens_each:.0f} tokens on average. Of the short answers of `smol_bf16_both`,
{changed["smol_bf16_both"]:.0f} % do. {100 * breaks / len(pairs):.0f} % of the suspect pairs of `gpu_smol_long` are two
line breaks that the policy wrote one by one.
""")

# %% [markdown]
# The remedy is called **token in, token out**: the token ids that were sampled are kept and passed on, and text is only
# for people. vLLM returns them if one asks for it
# ([`return_token_ids`](https://blog.vllm.ai/2025/10/22/agent-lightning.html), October 2025).
#
# ## Chat templates
#
# A **chat template** is a small program that writes a list of messages as one text, with marks for who is speaking:
#
# ```
# <|im_start|>user
# What is 17 · 23?<|im_end|>
# <|im_start|>assistant
# mul(17,23)<|im_end|>
# ```
#
# The policy samples `mul(17,23)` and `<|im_end|>`. The template adds the rest. Three faults are common:
#
# - **Another template.** Engine and trainer render the messages differently: a default system message on one side, or a
#   missing line break after `<|im_end|>` ([verl, issue 6501](https://github.com/verl-project/verl/issues/6501)). Then
#   the two score the same tokens after different texts. The gap is far larger than rounding, and largest at the
#   beginning of a turn.
# - **A template that forgets.** Templates of thinking models remove the reasoning of earlier turns when they render the
#   history ([verl, issue 6854](https://github.com/verl-project/verl/issues/6854)). Then the prompt of the second turn
#   does **not** contain the first turn as it was written. If the trainer has one row per episode, it scores the second
#   turn after a text that the engine has not seen. The right form is one row per turn, each with the prompt that the
#   engine had.
# - **The end of a turn.** If the mask leaves `<|im_end|>` out, nothing teaches the policy to stop.
#
# ## Exercise 1: the prefix weights
#
# *5 minutes.* Return the prefix weights of a padded batch, `(B, T)`: at token $t$ the product of the ratios up to and
# including $t$, and 0 on padding. Padding may contain nan.
#
# <details><summary>Hint 1</summary>A product of ratios is a sum of logarithms, and torch has a running sum.</details>
# <details><summary>Hint 2</summary>Use torch.where twice: put 0 into the logarithms on padding before you add up, and 0
# into the result afterwards.</details>


# %%
def prefix_weights(old_log_probs, rollout_log_probs, mask):
    raise NotImplementedError("exercise 1: write prefix_weights, then run this cell and the next.")


# %% tags=["check"]
check(prefix_weights, PREFIX_WEIGHTS)


# %% tags=["solution", "hide-input"]
def prefix_weights_solution(old_log_probs, rollout_log_probs, mask):
    d = log_ratio(old_log_probs, rollout_log_probs, mask)
    return torch.where(mask, ratio(d.cumsum(-1)), 0)


check(prefix_weights_solution, PREFIX_WEIGHTS)

# %% [markdown]
# ## Check yourself
#
# **1. Token weights, answers of one token each. Is the gradient biased?**
#
# <details><summary>Yes: token weights are always biased.</summary>No. With one token there is neither past nor
# future.</details>
# <details><summary>No.</summary>Yes, you are right: the token's ratio is the whole product.</details>
# <details><summary>Only if the engine is greedy.</summary>A greedy engine never writes most tokens, and then no weight
# helps, whatever the level.</details>
#
# **2. You replace the product by the geometric mean, without a bound. What do you gain?**
#
# <details><summary>An unbiased weight with less noise.</summary>No. It corrects towards a policy one T-th of the way to
# the trainer.</details>
# <details><summary>Little noise, because the weight is nearly the same for all answers; and nearly no correction, for
# the same reason.</summary>Yes.</details>
# <details><summary>A weight that does not depend on the length.</summary>Its mean hardly does, but its variance falls
# with length.</details>
#
# **3. You reject answers whose product is outside of [½, 2], and the mean length of the trained answers falls. Why?**
#
# <details><summary>Long answers have worse tokens.</summary>They may, but this is not needed to explain it.</details>
# <details><summary>The product of many ratios spreads further, so more of the long answers are outside of a fixed
# bound.</summary>Yes. The model then learns from the short ones, whatever their rewards.</details>
# <details><summary>The engine cuts long answers off.</summary>Then the recorded answers would be short, too.</details>
#
# ## In the app
#
# - [The real model over its lengths, with the bounds of both
#   kinds](http://localhost:8501/mismatch?run=gpu_smol_long&step=20&preset=decoupled_seq_is_rs);
# - [the bench with rejection by the geometric
#   mean](http://localhost:8501/bench?run=gpu_smol_long&step=20&preset=skyrl_geo_mask);
# - [product and token weights, token by
#   token](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&preset_b=decoupled_seq_is).
#
# ## Pitfalls
#
# - **One word, two meanings.** "Sequence" is the product in verl and TRL, and the geometric mean in ms-swift.
# - **GSPO is no mismatch correction.** It clips the geometric mean of $\pi/p$: it bounds the update (appendix).
# - **Normalised weights depend on the batch.** If a batch has few answers, their mean weight is noisy, and so is the
#   length of the step. In a distributed trainer the mean must be taken over all ranks.
# - **A log-prob of 0 for tokens that nobody sampled.** It says "probability 1". Use the mask, and nan where possible:
#   nan is noticed.
# - **The denominator.** If the loss divides by all tokens of an episode, an agent whose tools talk much learns slowly.
# - **One advantage for all turns.** Every turn gets the advantage of its whole episode, also a turn that did not help.
#   This adds noise to the gradient. It is no mismatch.
# - **A cap on the episode's product.** It limits long episodes more than short ones, so it prefers few turns.
# - **Text as the interface.** If a framework formats JSON anew, removes a blank or changes a quotation mark, other
#   tokens are the result, too.
#
# ## References
#
# 1. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://richardli.xyz/rl-collapse), 2025: the bias of
#    token weights, of the order T² times the total variation, and the variance of sequence weights, (1 + χ²)^T.
# 2. Chujie Zheng et al., [Group Sequence Policy Optimization](https://arxiv.org/abs/2507.18071), 2025: clipping the
#    geometric mean.
# 3. Qwen team, [Stabilizing Reinforcement Learning with LLMs: Formulation and
#    Practices](https://arxiv.org/abs/2512.01374), 2025: the token objective as a first-order approximation of the
#    sequence objective.
# 4. The Agent Lightning and vLLM teams, [No More Retokenization
#    Drift](https://blog.vllm.ai/2025/10/22/agent-lightning.html), 2025: why token ids must be passed on.
# 5. verl, [issue 6719](https://github.com/verl-project/verl/issues/6719), 2026: how the tokens of several turns are put
#    together, and four pitfalls.
# 6. ms-swift, [pull request 6803](https://github.com/modelscope/ms-swift/pull/6803): log-probs of every turn of an
#    episode.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: the log-ratio of a turn
#
# *6 minutes.* `d` has the log-ratio of every token, `turns` the number of its turn, and `mask` is True on the tokens
# that the policy sampled; all are `(B, T)`. Return for every sampled token the sum of `d` over the sampled tokens of
# its turn, and 0 elsewhere.
#
# <details><summary>Hint 1</summary><code>turns[:, :, None] == turns[:, None, :]</code> is True where two tokens of a
# row are of the same turn.</details>
# <details><summary>Hint 2</summary>Set <code>d</code> to 0 outside of the mask before you add, and the result
# after.</details>


# %%
def turn_log_ratio(d, turns, mask):
    raise NotImplementedError("exercise 2: write turn_log_ratio, then run this cell and the next.")


# %% tags=["check"]
check(turn_log_ratio, TURN_LOG_RATIO)


# %% tags=["solution", "hide-input"]
def turn_log_ratio_solution(d, turns, mask):
    same_turn = (turns[:, :, None] == turns[:, None, :]).to(d)
    return (same_turn @ d.where(mask, 0)[..., None])[..., 0].where(mask, 0)


check(turn_log_ratio_solution, TURN_LOG_RATIO)

# %% [markdown]
# ### Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 01) The ratios of an answer's tokens are independent, and each has the same $\chi^2$. What happens to the
# effective sample size if the answers become twice as long?**
#
# <details><summary>It is halved.</summary>No. That would be a sum. Factors multiply.</details>
# <details><summary>It is squared: a share of 0.5 becomes 0.25.</summary>Yes. $(1 + \chi^2)^{-2T}$ is the square of
# $(1 + \chi^2)^{-T}$.</details>
#
# **2. (Lesson 12) A batch has answers of versions 3 and 5. By which probability do you divide that of the trainer?**
#
# <details><summary>For every token, by that of the version which sampled it.</summary>Yes. Then every ratio averages
# to 1.</details>
# <details><summary>By that of version 5, which is closest to the trainer.</summary>No. The tokens of version 3 were not
# drawn from it.</details>
#
# ### Exercise 3: which pairs survive?
#
# *6 minutes.* `sampled` and `encoded` are lists of token texts of the same text. Return a list that has True for every
# sampled token that is also a token of `encoded`: one that begins and ends at the same characters.
#
# <details><summary>Hint 1</summary>Compute for every token where it starts and where it ends.</details>
# <details><summary>Hint 2</summary>A set of pairs (start, end) answers "is this one in there?".</details>


# %%
def still_paired(sampled, encoded):
    raise NotImplementedError("exercise 3: write still_paired, then run this cell and the next.")


# %% tags=["check"]
check(still_paired, STILL_PAIRED)


# %% tags=["solution", "hide-input"]
def still_paired_solution(sampled, encoded):
    def spans(texts):
        ends = torch.tensor([0, *map(len, texts)]).cumsum(0).tolist()
        return list(itertools.pairwise(ends))

    other = set(spans(encoded))
    return [span in other for span in spans(sampled)]


check(still_paired_solution, STILL_PAIRED)

# %% [markdown]
# ### Check yourself: agents
#
# **1. The answer of a search engine has 2,000 tokens, the agent's turns have 300. Which tokens does the trainer
# compute, and which are in the mask?**
#
# <details><summary>It computes 300 and has 300 in the mask.</summary>No. The trainer must read the answer of the search
# engine, or it scores the next turn after another text than the engine did.</details>
# <details><summary>It computes all 2,300 and has 300 in the mask.</summary>Yes. The policy reads the other 2,000, and
# only its own tokens have a ratio and a gradient.</details>
# <details><summary>It computes all 2,300 and has all of them in the mask.</summary>No. That trains the policy to
# imitate a search engine, with ratios that mean nothing.</details>
#
# **2. Your run has healthy ratios in turn 0 and a mean |d| that is thirty times larger in turn 1. What do you check
# first?**
#
# <details><summary>The text before turn 1: the template, and the tokens between the turns.</summary>Yes. If engine and
# trainer had different texts there, all tokens after it differ, and those before do not.</details>
# <details><summary>The weights: the sync must have failed.</summary>No. Then turn 0 would differ as well.</details>
# <details><summary>Nothing: errors add up with length.</summary>No. The log of the product over tokens grows with the
# length. The mean |d| of a token hardly does.</details>
#
# **3. You weight every turn by the product of its own ratios. What is left uncorrected?**
#
# <details><summary>Nothing: each turn's product averages to 1.</summary>No. It does so, given the text before it. But
# this text was written by the engine, and the trainer would write it more or less often.</details>
# <details><summary>How often each situation is reached.</summary>Yes. The earlier turns decide that, and their ratios
# are not in the weight.</details>
# <details><summary>The tool's answers.</summary>No. They need no correction: the tool answers both policies in the same
# way.</details>

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. You do not need them to follow the lessons.

# %% [markdown]
# ### Past and future, with symbols
#
# Let $x$ be a prefix: everything written before a position. Let $\Pr_q(x)$ be the probability that the engine reaches
# $x$. Let $A_q(x, a) = \mathbb{E}_q[A \mid x, a]$ be the mean advantage after writing $a$ at $x$, if the engine goes
# on. $\Pr_p$ and $A_p$ are the same for the trainer. Then the expected gradients are
#
# | weight of token $t$ | expected gradient |
# |---|---|
# | $r_t$, token | $\sum_x \Pr_q(x) \sum_a p(a \mid x)\, A_q(x, a)\, s$ |
# | $\prod_{k \le t} r_k$, prefix | $\sum_x \Pr_p(x) \sum_a p(a \mid x)\, A_q(x, a)\, s$ |
# | $\prod_{k \ge t} r_k$, suffix | $\sum_x \Pr_q(x) \sum_a p(a \mid x)\, A_p(x, a)\, s$ |
# | $\prod_k r_k$, sequence | $\sum_x \Pr_p(x) \sum_a p(a \mid x)\, A_p(x, a)\, s$ |
#
# The cell checks this with symbols. There are three first tokens, X, Y, Z, and three second tokens after X. All
# probabilities and the five advantages are symbols. It compares the gradients in one logit of the first token and one
# of the second.


# %%
def policy(name):
    """Return two rows of three probabilities: for the first token, and for the second after X."""
    rows = [sympy.symbols(f"{name}{row}_X {name}{row}_Y", positive=True) for row in (1, 2)]
    return [[*row, 1 - sum(row)] for row in rows]


P, Q = policy("p"), policy("q")
answers = [(0, 0), (0, 1), (0, 2), (1,), (2,)]
worth = dict(zip(answers, sympy.symbols("A_XX A_XY A_XZ A_Y A_Z"), strict=True))


def score(row, action):
    """Return ∂ log p(action) / ∂ logit of X, for a softmax."""
    return int(action == 0) - P[row][0]


def expected(weight):
    """Return E_q of weight(answer, t) · A · score of token t, for the first token and for the second."""
    sums = [sympy.Integer(0), sympy.Integer(0)]
    for y in answers:
        chance = math.prod(Q[t][a] for t, a in enumerate(y))
        for t, a in enumerate(y):
            sums[t] += chance * weight(y, t) * worth[y] * score(t, a)
    return sums


def product_of(y, tokens):
    return math.prod((P[k][y[k]] / Q[k][y[k]] for k in tokens), start=sympy.Integer(1))


def by_places(visiting, continuing):
    """Return the formula of the table: by whom the second token is reached, and by whom it is written."""
    go_on = sum(continuing[1][b] * worth[0, b] for b in range(3))  # what X leads to
    first = P[0][0] * go_on * score(0, 0) + sum(P[0][a] * worth[(a,)] * score(0, a) for a in (1, 2))
    return [first, visiting[0][0] * sum(P[1][b] * worth[0, b] * score(1, b) for b in range(3))]


def same(mine, theirs):
    return all(sympy.expand(sympy.cancel(x - y)) == 0 for x, y in zip(mine, theirs, strict=True))


assert same(expected(lambda y, t: product_of(y, [t])), by_places(Q, Q))
assert same(expected(lambda y, t: product_of(y, range(t + 1))), by_places(P, Q))
assert same(expected(lambda y, t: product_of(y, range(t, len(y)))), by_places(Q, P))
assert same(expected(lambda y, t: product_of(y, range(len(y)))), by_places(P, P))
bias = expected(lambda y, t: product_of(y, [t]))[1] - by_places(P, P)[1]
show("token weight, second token: bias over gradient", str(sympy.factor(sympy.cancel(bias / by_places(P, P)[1]))))

# %% [markdown]
# The relative error of the second token's gradient is $q/p - 1$ of the first token. By hand: with $q = ½$ and $p = ¾$
# this is −⅓, so a third is missing.
#
# ### Past and future, with numbers
#
# The same weights in a random world: all answers of at most five tokens out of a vocabulary of four. The cell compares
# the expected gradient with the formula of the table, by enumeration. In the last two lines every token has the
# trainer's own $A_p(x, a)$ as its advantage, as from a perfect critic. Then the prefix is unbiased, and the token
# weight keeps only the error of the past.

# %%
where = world(4, 5)
p_logits = random_policy(where, 60)
q_logits = p_logits + random_policy(where, 61, 0.5)
worth_of = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
d = log_ratio(log_probs(where, p_logits), log_probs(where, q_logits), where.mask)
chance_by = {"engine": probabilities(where, q_logits), "trainer": probabilities(where, p_logits)}
comes = {"engine": visits(where, q_logits), "trainer": visits(where, p_logits)}
logs = {
    ("engine", "engine"): d,
    ("trainer", "engine"): d.cumsum(-1),
    ("engine", "trainer"): d.flip(-1).cumsum(-1).flip(-1),
    ("trainer", "trainer"): over_sequence(d, where.mask, "sum")[:, None].expand_as(d),
}
place = where.states * where.vocabulary + where.tokens  # the number of (x, a)


def leads_to(who):
    """Return A(x, a) of the table: the mean advantage of the answers that write a at x."""
    sums = torch.zeros(2, where.state_count * where.vocabulary, dtype=torch.float64)
    for total, values in zip(sums, (chance_by[who] * worth_of, chance_by[who]), strict=True):
        total.index_add_(0, place[where.mask], values[:, None].expand(where.mask.shape)[where.mask])
    return (sums[0] / sums[1]).view(where.state_count, where.vocabulary)


def slope_of(objective):
    leaf = p_logits.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


def of_engine(log_w, worth):
    """Return the expected gradient of answers of the engine with these weights."""
    counted = chance_by["engine"][:, None] * ratio(log_w) * worth * where.mask
    return slope_of(lambda leaf: (counted * log_probs(where, leaf)).sum())


def tabled(past, future):
    formula = comes[past][:, None] * p_logits.softmax(-1) * leads_to(future)
    return slope_of(lambda leaf: (formula * leaf.log_softmax(-1)).sum())


wanted = slope_of(lambda leaf: (probabilities(where, leaf) * worth_of).sum())


def bias_of(gradient):
    return float((gradient - wanted).norm() / wanted.norm())


show("weight", "past", "future", "bias")
for (past, future), name in zip(logs, ("token", "prefix", "suffix", "sequence"), strict=True):
    gradient = of_engine(logs[past, future], worth_of[:, None])
    assert torch.allclose(gradient, tabled(past, future), rtol=0, atol=1e-13)
    show(name, past, future, bias_of(gradient))
critic = leads_to("trainer")[where.states, where.tokens]
for name, log_w in (("token", d), ("prefix", d.cumsum(-1))):
    show(f"{name}, with a critic", "", "", bias_of(of_engine(log_w, critic)))

# %% [markdown]
# ### How the bias grows with the length
#
# The next picture has answers of exactly $T$ tokens, in small worlds where no answer ends early, pooled over twenty
# random pairs of policies. Bias is in units of the exact gradient's length (lesson 03). **Look for** the token weight:
# it has no bias at one token, and more with every further token.
#
# Let $\mathrm{TV}$ be the largest total variation between the two policies at one position. The past of token $t$ is
# wrong by at most $(t - 1)\,\mathrm{TV}$, and its future by at most $(T - t)\,\mathrm{TV}$. Together this is
# $(T - 1)\,\mathrm{TV}$ per token, and there are $T$ tokens. So the bias of a token weight is at most of the order
# $T^2\,\mathrm{TV}$. A gap of half the size has half the bias, as the last lines below the picture show.


# %%
def of_length(length, seed, gap=0.4):
    """Return a world of answers of this length, policies with a gap between them, and the answers' advantages."""
    there, trainer = world(3, length), random_policy(world(3, length), seed)
    trainer[:, 0] -= 50  # token 0 would end the answer
    engine = trainer + random_policy(there, seed + 1000, gap)
    worth = torch.randn(len(there.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2000))
    return there, Policies(engine, trainer, trainer), worth


def pooled_bias(worlds, weights):
    """Return the bias in units of the gradient, over several worlds, rounded to nine digits."""
    truths = [gradient_truth(there, policies, worth, weights, PER_ANSWER) for there, policies, worth in worlds]
    squares = [(truth.bias**2, float(truth.reference.square().sum())) for truth in truths]
    return round(math.sqrt(sum(x for x, _ in squares) / sum(y for _, y in squares)), 9)


by_length_of = {length: [of_length(length, seed) for seed in range(20)] for length in range(1, 8)}
biases = {
    name: [pooled_bias(worlds, weights) for worlds in by_length_of.values()] for name, weights in UNBOUNDED.items()
}
picture(curves(list(by_length_of), biases, x_name="tokens of an answer, T", y_name="bias, in units of ‖g*‖"))
show("T", *by_length_of)
for name, values in biases.items():
    show(name, values, digits=3)
for gap in (0.2, 0.1, 0.05):
    worlds = [of_length(5, seed, gap) for seed in range(10)]
    show(f"gap {gap}, T = 5: bias of the token weight", pooled_bias(worlds, UNBOUNDED["token"]))
assert max(biases["product"]) < 1e-12
assert biases["token"][0] < 1e-12
assert biases["token"][-1] > 2 * biases["token"][1]
assert biases["token"][-1] < biases["geometric mean"][-1] < biases["no weights"][-1]

# %% [markdown]
# A token weight is unbiased for one token, and its bias grows with the length of the answers. The geometric mean
# approaches the line without weights. The product has no bias. Its price is $\mathbb{E}_q[\prod r^2]$. For $T$
# independent tokens with the same variance of the ratio this is $(1 + χ^2)^T$, because the mean of a product of
# independent factors is the product of their means (lesson 01).
#
# ### What the geometric mean corrects towards
#
# The expected gradient with the geometric mean is the gradient of the mixture in the second equation. The first column
# of the next table is how far this mixture has come from the engine to the trainer: one minus the root of the remaining
# KL, because a KL grows like a squared distance. The second is $1/T$, for comparison. The third is the bias with the
# geometric mean, divided by the bias without weights. It approaches 1.
#
# The logarithm of the geometric mean, $\frac{1}{T} \sum d_t$, has the mean $-\mathrm{KL}(q \| p)/T$, the KL per token.
# This is a property of the two policies, nearly the same for every long answer.

# %%
show("T", "way gone", "1/T", "bias left")
for length in (1, 3, 5, 7):
    there, policies, worth = setting = of_length(length, 0)
    p_y, q_y = probabilities(there, policies.old), probabilities(there, policies.rollout)
    mixture = q_y ** (1 - 1 / length) * p_y ** (1 / length)
    leaf = policies.theta.clone().requires_grad_()
    (towards,) = torch.autograd.grad((mixture * worth * log_probs(there, leaf).sum(-1)).sum(), leaf)
    truth = gradient_truth(*setting, UNBOUNDED["geometric mean"], PER_ANSWER)
    assert torch.allclose(truth.expectation, towards, rtol=0, atol=1e-12)

    divergence, shares = float(kl(there, policies.rollout, policies.old)), mixture / mixture.sum()
    assert math.isclose(float((q_y * (p_y / q_y).log()).sum()), -divergence, rel_tol=1e-9)
    to_go = float((shares * (shares / p_y).log()).sum()) / divergence
    left = truth.relative_bias / gradient_truth(*setting, UNBOUNDED["no weights"], PER_ANSWER).relative_bias
    show(str(length), 1 - max(to_go, 0) ** 0.5, 1 / length, left, digits=3)

# %% [markdown]
# ### The cone
#
# Each point is an answer of the last step of `long_kv_fp8_e5m2`: its length, and the product of its ratios on a
# logarithmic scale. **Look for** three shapes: the dotted cone, $±2σ\sqrt{T}$, of independent noise; the two flat lines
# of a bound on the product; and the two lines of a bound on the geometric mean, which open like $T$. Blue answers have
# a product below 1, orange ones above 1. Most are blue, because the mean of $d$ is minus the KL, and over $T$ tokens
# this adds up to $T$ times as much.

# %%
product_rule = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.5, upper=2.0),))
picture(by_length(load("long_kv_fp8_e5m2"), {"product": product_rule, "geometric mean": preset("skyrl_geo_mask")}))

# %% [markdown]
# ### The gradient on a recorded step
#
# The table compares each weight, without bounds, with no weights, on the last step of five runs with short answers. It
# has the difference of the noise, in units of the exact gradient's length, and the cosine between the two gradients of
# the batch. These numbers come from one batch, so the noise of the product is underestimated (lesson 03).

# %%
between, noise_of = {}, {}
show("compared with no weights", "noise [95 %]".rjust(24), "cosine [95 %]".rjust(24))
for name in ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "async"):
    run = runs.find_run(name)
    step = runs.list_steps(run)[-1]
    answers_of, sketch = updated_batch(run, step), read_sketch(run, step)
    for kind in ("token", "geometric mean", "product"):
        pair = compare_gradients(answers_of, sketch, UNBOUNDED["no weights"], UNBOUNDED[kind], batch_sizes=[128])
        between[name, kind], noise_of[name, kind] = pair.between, pair.noise[0]
        show(f"{name}: {kind}", bracketed(pair.noise[0]).rjust(24), bracketed(pair.between, 3).rjust(24))

# %% tags=["hide-input"]
say(f"""
In `kv_fp8_e5m2` the gradients with geometric means and without weights have the same direction: their cosine is
{above(between["kv_fp8_e5m2", "geometric mean"], 0.99, 3)}. In `stale_4`, whose answers have a few tokens, it is
{below(between["stale_4", "geometric mean"], 0.99)}: there, one $T$-th of the way is a real correction.

Weights can lower the noise, too. On the step of `kv_fp8_e5m2` token weights change it by
{below(noise_of["kv_fp8_e5m2", "token"])}. The score of a token that the trainer finds nearly impossible is huge. Nearly
only the engine writes such tokens, so their ratio is close to 0, and with this weight they hardly contribute.
""")

# %%
run = runs.find_run("kv_fp8_e5m2")
batch, sketch = updated_batch(run, 48), read_sketch(run, 48)
log_r = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
squares = sketch.scores.double().square().sum(-1) * batch.tensors()["advantages"][batch.response_mask].double().square()
weighted = squares * ratio(log_r).double().square()
rare = log_r < math.log(0.1)
held, left_over = (float(size[rare].sum() / size.sum()) for size in (squares, weighted))

# %% tags=["hide-input"]
assert held > 0.4 > 0.01 > left_over
say(f"""
On this step {int(rare.sum())} of {len(rare):,} tokens have a ratio below a tenth. Without weights, they make
{100 * held:.0f} % of the sum of all squared contributions; with token weights {100 * left_over:.1f} %.
""")

# %% [markdown]
# ### GSPO: a geometric mean for another purpose
#
# GSPO clips $\bar ρ = \big(\prod_t ρ_t\big)^{1/T}$ with $ρ_t = π/p$ of token $t$, the geometric mean of the ratios **of
# PPO**. It does not repair a mismatch. It decides when an update has moved an answer far enough. For this purpose low
# variance and a scale that does not depend on the length are useful. Every token of the answer gets the same factor:
#
# $$ \nabla \bar ρ = \bar ρ \cdot \frac{1}{T} \sum_t \nabla \log π(a_t) . \tag{3} $$

# %%
theta, old = sympy.symbols("theta_X theta_Y theta_Z"), sympy.symbols("old_X old_Y old_Z")


def log_softmax(logits, action):
    return logits[action] - sympy.log(sum(sympy.exp(t) for t in logits))


written = (0, 2, 2, 1)
mean_rho = sympy.exp(sum(log_softmax(theta, a) - log_softmax(old, a) for a in written) / len(written))
for logit in theta:
    scores = sum(sympy.diff(log_softmax(theta, a), logit) for a in written)
    assert sympy.simplify(sympy.diff(mean_rho, logit) - mean_rho * scores / len(written)) == 0

log_old = torch.randn(3, 5, dtype=torch.float64, generator=generator) - 2
log_pi = (log_old + 0.02 * torch.randn(3, 5, dtype=torch.float64, generator=generator)).requires_grad_()
keep = torch.ones(3, 5, dtype=torch.bool)
loss = gspo(log_pi, log_old, torch.ones(3, 5, dtype=torch.float64), keep, low=0.2, high=0.2)
ours = torch.autograd.grad(loss.mean(-1).sum(), log_pi)[0]
factor = ratio(over_sequence((log_pi - log_old).detach(), keep, "mean"))[:, None]
show("the library's loss has this gradient", torch.allclose(ours, -(factor / 5).expand(3, 5), rtol=0, atol=1e-15))

# %% [markdown]
# ### The search agent, enumerated
#
# The cell averages over all four episodes of the agent above: it searches or not, and the answer is right or wrong. It
# compares three weights for the second turn: none, the ratio of this turn, and the product of the episode. (Here the
# second turn is a single token, so its ratio is also the ratio of the token.)

# %%
search, right = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])
first_q = torch.where(search == 1, 0.5, 0.5).double()
first_p = torch.where(search == 1, 0.9, 0.1).double()
answers_right = torch.where(search == 1, 0.8, 0.2).double()
second = torch.where(right == 1, answers_right, 1 - answers_right)  # the same for both policies
chance, reward = first_q * second, right.double()
truth = float((first_p * second * reward).sum())
for name, weight in (("no weight", torch.ones(4).double()), ("second turn", second / second),
                     ("episode", first_p / first_q)):  # fmt: skip
    mean = float((chance * weight * reward).sum())
    noise = float((chance * (weight * reward - mean).square()).sum()) ** 0.5
    show(name, "mean", mean, "noise of one draw", noise)
show("trainer's average", truth)
assert abs(float((chance * first_p / first_q * reward).sum()) - truth) < 1e-12

# %% [markdown]
# ### A turn's product averages to 1, whatever came before it
#
# We take three turns of one token each, from random policies over four tokens, and add up over all cases. Given the
# turns before, the mean ratio of each turn is 1. And if the turns do not depend on each other, $1 + \chi^2$ of the
# episode is the product of the factors $1 + \chi^2$ of its turns.

# %%
logits = torch.randn(3, 2, 4, dtype=torch.float64, generator=shuffled)  # turns, policies, tokens
policies = logits.softmax(-1)
factors = []
for turn, (trainer, rollout_policy) in enumerate(policies):
    r = trainer / rollout_policy
    factors.append(float((rollout_policy * r.square()).sum()))
    show(f"turn {turn}: mean ratio, 1 + χ²", float((rollout_policy * r).sum()), factors[-1])
    assert abs(float((rollout_policy * r).sum()) - 1) < 1e-12
triples = torch.cartesian_prod(*[torch.arange(4)] * 3)
chances = policies[torch.arange(3), 1, triples].prod(-1)
products = (policies[torch.arange(3), 0, triples] / policies[torch.arange(3), 1, triples]).prod(-1)
of_episode = float((chances * products.square()).sum())
show("episode: 1 + χ², product of the turns", of_episode, torch.tensor(factors).prod().item())
assert abs(of_episode - factors[0] * factors[1] * factors[2]) < 1e-9
