# %% [markdown]
# # 06 · Token, sequence, geometric: which ratio weights a token
#
# **Claim.** The product of all ratios of an answer is unbiased, and its noise grows with the length of the answer. The
# ratio of a single token has little noise and is biased. The geometric mean of the ratios has little noise because it
# corrects almost nothing.
#
# *90 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00, 02 and 05. All letters are in
# [Notation](NOTATION.md).
#
# At the end you can
#
# - say which errors a token's own ratio leaves, and which ones the product repairs;
# - say towards which policy the geometric mean corrects;
# - predict whether a bound rejects more of the long or more of the short answers;
# - read the result of a training study: with its start, its control, and everything that differs between two studies;
# - explain why AdamW still moves the weights when the gradient has almost vanished.

# %% tags=["hide-input"]
import math
from itertools import pairwise
from statistics import fmean, median

import sympy
import torch
from curves import curves
from exercises.lesson_06 import LONGEST, PREFIX_WEIGHTS, TOLERANCE
from recorded import load
from sentences import above, below, bracketed, say, untold
from show import moving_picture, picture, show
from study_ends import STUDIES, contrasts, control, end_dots, ends, planned_ends, rows_of, start

from rlcorr import CorrectionConfig, RejectionRule, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.mismatch import by_length
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.report import compare_gradients
from rlcorr.gradients.toy import Policies, gradient_truth, kl, log_probs, probabilities, random_policy, visits, world
from rlcorr.losses.per_token import gspo
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.records.study import find_study
from rlcorr.records.study_comparisons import comparisons
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(6)

# %% [markdown]
# ## Warm-up
#
# Two questions about older lessons. Choose an answer, then open it.
#
# **1. (Lesson 02) The ratio of one token has an effective sample size of 0.99. The tokens of an answer are independent.
# What is the effective sample size of the product over 100 tokens?**
#
# <details><summary>0.99: the mean of equal numbers.</summary>No. Each token multiplies it.</details>
# <details><summary>About 0.37.</summary>Yes: 0.99 to the power of 100. It falls exponentially with the
# length.</details>
# <details><summary>0: no product of 100 ratios is useful.</summary>No. A third of the sample is left. At 1,000 tokens
# nothing would be left.</details>
#
# **2. (Lesson 05) A batch of 256 answers contains no weight above the cap. What does that say about the cap?**
#
# <details><summary>It is useless: it changes nothing.</summary>It changes nothing in this batch. Among all likely
# answers there may be rare ones with huge weights.</details>
# <details><summary>Little. Answers above the cap are rare, and they make most of the noise.</summary>Yes.</details>
# <details><summary>It is too loose and should be lowered.</summary>That does not follow. The best cap depends on all
# possible answers, and on the size of the batch.</details>

# %% [markdown]
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
# The advantage $A$ belongs to the whole answer of $T$ tokens, and $s_t$ is the score of token $t$ (lesson 01).
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


run_of = {
    "SmolLM2, bfloat16": "gpu_smol_long",
    "tiny, bfloat16": "long_bf16",
    "tiny, coarse cache": "long_kv_fp8_e5m2",
    "tiny, old weights": "long_stale_4",
}
recorded = {name: Recorded(run) for name, run in run_of.items()}
SMOL, BF16, CACHE, OLD = recorded


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

Over all possible answers, products average to 1 (lesson 02). With the coarse cache those of this sample average to
{below(average, 1)}, which is significantly below 1 (the 95 % interval excludes 1). The few answers with large products
that belong to the average are probably not in the sample, as in lesson 05.
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
bounds = {"product": ("product", 2.0), "loose": ("geometric mean", 1.05), "tight": ("geometric mean", 1.001)}
loose, tight = (f"±{100 * (bounds[rule][1] - 1):.2g} %" for rule in ("loose", "tight"))
say(f"""
Take the first 1, 10, 100 or {lengths[-1]} tokens of the same answers, and reject an answer if it is outside of a bound.
**Write down** whether the rejected share grows or falls with the length:

1. The product must be between ½ and {bounds["product"][1]:.0f}.
2. The geometric mean may deviate from 1 by {loose}.
3. The geometric mean may deviate from 1 by {tight}. (The argument above assumes that all tokens have gaps of similar
   size.)
4. You train with capped weights. Which of two caps of the same size ends with the higher reward: one on the product, or
   one on each token's ratio?
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
say(f"""
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
# ## Question 4: caps in training
#
# Four studies trained tiny models with a cap of two on the product, a cap of two on each token's ratio, and without a
# correction. Two have answers of a few tokens, two have answers of hundreds. The mismatch is either weights that are
# eight updates old, or a coarse cache. Every arm was trained with six seeds.
#
# A reward at the end means little by itself. So the picture has two lines: the reward at the **start**, and the reward
# at the end of training runs of the same task and learning rate **without a mismatch**, the control. For the long
# answers no such control was made. A dot is the mean over the six seeds, and the bar next to it reaches from the lowest
# to the highest of them. **Change the study, and look for** the arms that end above the start.

# %% tags=["hide-input"]
ARMS = ("none", "token_cap", "product_cap")
moving_picture("study", {label: end_dots(name, ARMS) for name, label in STUDIES.items()}, next(iter(STUDIES.values())))

# %%
gain = {}
show("", "start", "none", "token", "product", "control", "product − token [95 %]".rjust(24))
for name, label in STUDIES.items():
    (pair,) = comparisons(rows_of(name), [("product_cap", "token_cap")])
    gain[name], at_end, end = pair.difference, ends(name), control(name)
    rewards = [start(name), *(at_end[arm].value for arm in ARMS), "no run" if end is None else end]
    show(label, *rewards, bracketed(gain[name]).rjust(24), digits=2)

# %% tags=["hide-input"]
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
**4.** It differs between the studies.

- **Short answers.** With old weights, the cap on the product ends {above(gain["decide_stale"])} higher than the cap on
  tokens. Both end above the start, and below the control. With the coarse cache the two caps cannot be distinguished
  ({untold(gain["decide_cache"])}); both end near the control.
- **Long answers, old weights.** All {len(long_end)} arms of this study lose reward. They start at {long_start:.2f}.
  With the token cap {long_end["token_cap"].value:.2f} is left, with the product cap
  {long_end["product_cap"].value:.2f}. So here "better" means that less is destroyed. The difference of product cap and
  token cap is {below(gain["decide_long_stale"])}.
- **Long answers, coarse cache.** The token cap ends above the start, the product cap far below it. The difference is
  {below(gain["decide_long_cache"])}.

**Is length the reason?** These studies cannot show it. Between the two short and the two long studies, all of this
changed together (`runs/study/index.toml`, `runs/README.md`):

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
# Lesson 05 alone predicts that a smaller batch is worse for noisy weights. And without a control, the learning rate may
# be what takes the reward away in the long studies. So we may say: *in our studies the product cap ended higher with
# short answers and lower with long ones*. We may not say: *because they are long*.
#
# ## A gradient that vanishes, and AdamW
#
# Something can be seen inside of the long runs. The next two pictures show the median over the six seeds of `long
# answers, old weights`, with and without a correction. **Look for** the gradient norm with the product cap, and then
# for its k3 in the first ten steps. (k3 measures the mismatch between engine and trainer. It is the mean of
# $r - 1 - \log r$ over the tokens, see lesson 03. A norm that was exactly 0 is drawn at the lower edge.)


# %% tags=["hide-input"]
def medians(arm, column, floor):
    """Median over the seeds at every step; a step whose gradient was exactly 0 counts as the floor."""
    steps = {}
    for row in rows_of("decide_long_stale"):
        if row["preset"] == arm:
            steps.setdefault(row["step"], []).append(max(row[column] or 0.0, floor))
    return [median(values) for values in steps.values()]


SMALLEST = 1e-9
norms = {arm: medians(arm, "grad_norm", SMALLEST) for arm in ARMS}
training_steps = list(range(1, len(norms["none"]) + 1))
picture(curves(training_steps, norms, x_name="training step", y_name="norm of the gradient", log="y"))

# %% tags=["hide-input"]
gaps = {arm: medians(arm, "k3", SMALLEST) for arm in ARMS}
picture(curves(training_steps, gaps, x_name="training step", y_name="k3 between engine and trainer", log="y"))
EARLY, LATER = 7, slice(6, 30)
typical = {arm: median(norms[arm][LATER]) for arm in ARMS}
say(f"""
At the first step the gradient norm is {norms["product_cap"][0]:.2f} with the product cap and
{norms["token_cap"][0]:.2f} with the token cap. From step {LATER.start + 1} to {LATER.stop} its median is
{typical["token_cap"]:.2f} with the token cap and {typical["product_cap"]:.0e} with the product cap. A likely reason:
with old weights, most products of hundreds of ratios are close to 0 (the first picture). Then nearly every answer has a
weight close to 0, and a cap changes only large weights.

One might expect that a policy without a gradient stays where it is. It does not: at step {EARLY} k3 is
{gaps["product_cap"][EARLY - 1]:.2f} with the product cap and {gaps["token_cap"][EARLY - 1]:.2f} with the token cap.
""")

# %% [markdown]
# How can the policy move? The optimizer is AdamW. It does not step along the gradient. It divides a running mean of the
# gradients (its momentum) by the root of a running mean of their squares. If all gradients are a thousand times
# smaller, both shrink by the same factor, and **the step stays the same**. If they become smaller during training, the
# step shrinks with a delay. The next cell gives AdamW gradients of random directions, with exactly the norms recorded
# in the two arms, and measures how far each batch moves the weights: the typical move of one weight, in units of the
# learning rate.


# %%
def adam_steps(norms_of_run, seed, size=500):
    """Lengths of AdamW's moves, given gradients of these norms and random directions, in learning rates per weight."""
    random = torch.Generator().manual_seed(seed)
    weights, lengths_of_moves = torch.zeros(size, requires_grad=True), []
    optimizer = torch.optim.AdamW([weights], lr=1.0, weight_decay=0.0)
    for norm in norms_of_run:
        before = weights.detach().clone()
        for _ in range(2):  # two Adam steps for every batch, as in these studies
            direction = torch.randn(size, generator=random)
            weights.grad = norm * direction / direction.norm()
            optimizer.step()
        lengths_of_moves.append(float((weights.detach() - before).norm()) / size**0.5)
    return lengths_of_moves


# %% tags=["hide-input"]
moves = {}
for arm in ("token_cap", "product_cap"):
    per_seed = []
    for seed in range(6):
        rows = [row for row in rows_of("decide_long_stale") if (row["preset"], row["seed"]) == (arm, seed)]
        per_seed.append(adam_steps([row["grad_norm"] or 0.0 for row in rows], seed))
    moves[arm] = [median(at) for at in zip(*per_seed, strict=True)]
show("median over the seeds, step", *(shown := (1, 3, 5, 7, 10, 15, 20, 30)))
for arm in moves:
    show(f"norm of the gradient, {arm}", *(f"{norms[arm][n - 1]:.0e}" for n in shown))
for arm in moves:
    show(f"length of AdamW's move, {arm}", [moves[arm][n - 1] for n in shown], digits=2)
share = median(a / b for a, b in zip(moves["product_cap"][LATER], moves["token_cap"][LATER], strict=True))
assert 0.1 < share < 0.6
say(f"""
The recorded gradients of the product cap are thousands of times smaller. AdamW's moves are not: from step
{LATER.start + 1} to {LATER.stop} they are still {100 * share:.0f} % as long as with the token cap. So the policy keeps
moving, in directions that a few answers decide: those few that still have a weight.

This shows that AdamW *can* move a policy on a vanishing gradient. That it explains the failure of the product cap is
not shown. We tried to test it: the same training run with plain SGD, with steps of the same length. But SGD puts such a
step into few weights, where it is far too long, and lost the model (part D in `runs/README.md`). So it was no fair
test.
""")

# %% [markdown]
# ## The same question on a real model
#
# If vanishing weights are the trouble, dividing them by their mean should help (lesson 05): then the gradient keeps its
# length. The planned study `smol_last_weights` has such an arm. `SmolLM2-135M` learns sums in words from weights that
# are six updates old, in answers of up to two dozen tokens. `product_cap_normalized` caps the product at two and
# divides the weights by their mean. (So a weight is at most two divided by this mean, which can be far more than two:
# lesson 05.) [Lesson 11](11_choosing_thresholds.ipynb) has a picture of all its arms. Does this one fail, too?

# %% tags=["hide-input"]
smol_rows, accuracy = rows_of("smol_last_weights"), planned_ends("smol_last_weights")
pairs = {arms: pair.difference for arms, pair in contrasts("smol_last_weights").items()}
means = {arm: fmean(by_seed.values()) for arm, by_seed in accuracy.items()}
NORMALIZED = "product_cap_normalized"
both = pairs[NORMALIZED, "token_cap"]
normalized_norms = [
    median(row["grad_norm"] or 0.0 for row in smol_rows if (row["preset"], row["step"]) == (NORMALIZED, step))
    for step in sorted({row["step"] for row in smol_rows})
]
say(f"""
The mean greedy accuracy is {means["fresh"]:.2f} with fresh weights, {means["none"]:.2f} with old weights
and no correction, {means["token_cap"]:.2f} with the token cap, and {means[NORMALIZED]:.2f} with the
normalised product cap. Both caps are significantly better than no correction: {above(pairs["token_cap", "none"])} and
{above(pairs[NORMALIZED, "none"])}. They cannot be distinguished from each other: the difference is {untold(both)}. Both
end significantly below the control: the differences to `fresh` are {below(pairs["token_cap", "fresh"])} and
{below(pairs[NORMALIZED, "fresh"])}.

So on this model a cap recovers part of what old weights cost, and **the normalised product cap does not fail**. Its
gradient does not vanish, either: the median norm over the seeds is at least {min(normalized_norms):.1f} at every step.
But the answers are also much shorter than in the long studies, and the task, the algorithm's settings and the model
differ. So we do not know what makes the difference.
""")

# %% [markdown]
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
# ## Exercise 2: the tolerance per token
#
# *3 minutes.* The product has the bound `upper`, and the answers have different `lengths` (a tensor of integers). All
# tokens of an answer deviate equally. What is the largest ratio that each may have? Return one number per length.
#
# <details><summary>Hint 1</summary>T equal factors have the bound as their product.</details>


# %%
def tolerance(upper, lengths):
    raise NotImplementedError("exercise 2: write tolerance, then run this cell and the next.")


# %% tags=["check"]
check(tolerance, TOLERANCE)


# %% tags=["solution", "hide-input"]
def tolerance_solution(upper, lengths):
    return upper ** (1 / lengths.double())


check(tolerance_solution, TOLERANCE)

# %% [markdown]
# ## Exercise 3: how long may an answer be?
#
# *4 minutes.* The $d$ of the tokens are independent, with standard deviation `sigma` and mean 0. The product has the
# bound `upper`. Up to which length is $2σ\sqrt{T}$ at most the logarithm of the bound? Return a whole number.
#
# <details><summary>Hint 1</summary>The bound on the sum of d is log upper.</details>
# <details><summary>Hint 2</summary>Solve 2 · sigma · √T = log upper for T, and round down.</details>


# %%
def longest(sigma, upper):
    raise NotImplementedError("exercise 3: write longest, then run this cell and the next.")


# %% tags=["check"]
check(longest, LONGEST)


# %% tags=["solution", "hide-input"]
def longest_solution(sigma, upper):
    return math.floor((math.log(upper) / (2 * sigma)) ** 2)


check(longest_solution, LONGEST)
show("0.02 per token, bound 2: longest", longest_solution(0.02, 2.0))

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

# %% [markdown]
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
# - **A study without a start line.** "Better than no correction" may mean "destroys less". Ask where the arms began,
#   and where they end without a mismatch.
# - **A small gradient norm is not a small step.** With Adam, look at how far the policy moves, for example at the k3
#   between two versions of the weights.
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

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. You do not need them to follow the lessons.
#
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
chance = {"engine": probabilities(where, q_logits), "trainer": probabilities(where, p_logits)}
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
    for total, values in zip(sums, (chance[who] * worth_of, chance[who]), strict=True):
        total.index_add_(0, place[where.mask], values[:, None].expand(where.mask.shape)[where.mask])
    return (sums[0] / sums[1]).view(where.state_count, where.vocabulary)


def slope_of(objective):
    leaf = p_logits.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


def sampled(log_w, worth):
    """Return the expected gradient of answers of the engine with these weights."""
    counted = chance["engine"][:, None] * ratio(log_w) * worth * where.mask
    return slope_of(lambda leaf: (counted * log_probs(where, leaf)).sum())


def tabled(past, future):
    formula = comes[past][:, None] * p_logits.softmax(-1) * leads_to(future)
    return slope_of(lambda leaf: (formula * leaf.log_softmax(-1)).sum())


wanted = slope_of(lambda leaf: (probabilities(where, leaf) * worth_of).sum())


def bias_of(gradient):
    return float((gradient - wanted).norm() / wanted.norm())


show("weight", "past", "future", "bias")
for (past, future), name in zip(logs, ("token", "prefix", "suffix", "sequence"), strict=True):
    gradient = sampled(logs[past, future], worth_of[:, None])
    assert torch.allclose(gradient, tabled(past, future), rtol=0, atol=1e-13)
    show(name, past, future, bias_of(gradient))
critic = leads_to("trainer")[where.states, where.tokens]
for name, log_w in (("token", d), ("prefix", d.cumsum(-1))):
    show(f"{name}, with a critic", "", "", bias_of(sampled(log_w, critic)))

# %% [markdown]
# ### How the bias grows with the length
#
# The next picture has answers of exactly $T$ tokens, in small worlds where no answer ends early, pooled over twenty
# random pairs of policies. Bias is in units of the exact gradient's length (lesson 05). **Look for** the token weight:
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
# independent factors is the product of their means (lesson 02).
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
# the batch. These numbers come from one batch, so the noise of the product is underestimated (lesson 05).

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
