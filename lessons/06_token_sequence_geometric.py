# %% [markdown]
# # 06 · Token, sequence, geometric: which ratio counts a token
#
# **Claim.** The product of all ratios is right on average, and the noisier the longer the answers; the token's own
# ratio is calm and biased; the geometric mean is calm because it corrects almost nothing.
#
# *25 minutes · intermediate · any laptop; no GPU, no network.* You need lessons 00, 02 and 05. Letters:
# [Notation](NOTATION.md).

# %% tags=["hide-input"]
import math
import warnings

import sympy
import torch
from curves import curves
from exercises.lesson_06 import LONGEST, PREFIX_WEIGHTS, TOLERANCE
from recorded import load
from sentences import above, below, bracketed, say, untold
from show import moving_picture, picture, show

from rlcorr import CorrectionConfig, RejectionRule, correct, preset
from rlcorr.config import LossConfig
from rlcorr.figures.mismatch import by_length
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.toy import Policies, gradient_truth, kl, log_probs, probabilities, random_policy, visits, world
from rlcorr.losses.per_token import gspo
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.records.study import read_study
from rlcorr.records.study_comparisons import comparisons
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(6)

# %% [markdown]
# ## By hand: two tokens
#
# The first token is *stop* or *go*. After *go* comes a second one, *left* or *right*. The engine draws each with ½. The
# trainer goes with ¾, and then takes *right* with ¾. Stopping pays 2.5, left pays 0, right pays 4.
#
# | answer | $q$ | $p$ | product | token ratios | reward |
# |---|---|---|---|---|---|
# | stop | ½ | ¼ | ½ | ½ | 2.5 |
# | go, left | ¼ | 3/16 | ¾ | 1½, ½ | 0 |
# | go, right | ¼ | 9/16 | 2¼ | 1½, 1½ | 4 |
#
# Should *go* become more probable? For the trainer going is worth ¾·4 = 3, more than 2.5: yes. But in the engine's
# answers going pays only ½·4 = 2, less than 2.5. The ratio of the token *go*, 1½, says how much more often the trainer
# would have gone. It says nothing about what the trainer would have done next. Exact gradients in the logits of *go*
# and *right*:

# %%
two = world(2, 2)  # token 0 ends an answer (stop, left), token 1 does not (go, right)
q2 = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
p2 = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64).log()
setting = two, Policies(q2, p2, p2), torch.tensor([2.5, 0.0, 4.0], dtype=torch.float64)
PER_ANSWER = LossConfig(loss_agg_mode="token-sum")
LEVELS = {"no weights": None, "token": "token", "geometric mean": "geometric", "product": "sequence"}
UNBOUNDED = {name: CorrectionConfig(rollout_is=level, rollout_is_threshold=math.inf) for name, level in LEVELS.items()}

show("expected gradient", "go", "right")
for name, weights in UNBOUNDED.items():
    truth = gradient_truth(*setting, weights, PER_ANSWER)
    show(name, truth.expectation[:, 1], digits=5)
show("wanted", truth.reference[:, 1], digits=5)

# %% [markdown]
# By hand: with token weights *go* gets the **wrong sign**, −3/32 in place of 3/32. And *right* gets two thirds of its
# 9/16: the engine goes half of the time, the trainer three quarters, so the second token is seen too rarely. A token
# weight leaves out two things, then: the trainer's **future** and its **past**. (That the geometric mean gives the same
# numbers here is chance.)
#
# ## The equation
#
# The advantage $A$ belongs to the whole answer of $T$ tokens, and $s_t$ is the score of token $t$. Importance sampling
# of answers gives
#
# $$ \mathbb{E}_p\Big[A \sum_t s_t\Big] = \mathbb{E}_q\Big[\prod_{k=1}^T r_k\; A \sum_t s_t\Big], \qquad
# \prod_{k=1}^T r_k = \underbrace{\prod_{k<t} r_k}_{\text{past}} \cdot r_t \cdot
# \underbrace{\prod_{k>t} r_k}_{\text{future}} . \tag{1} $$
#
# Each factor repairs one thing:
#
# | weight of token $t$ | how often its place is reached | what follows it |
# |---|---|---|
# | $r_t$, **token** | as by the engine | as by the engine |
# | $\prod_{k \le t} r_k$, **prefix** | as by the trainer | as by the engine |
# | $\prod_k r_k$, **sequence** | as by the trainer | as by the trainer |
#
# Only the last is right when the advantage is that of the answer. The prefix is enough where the advantage of a token
# does not depend on what the engine wrote after it, as with a critic. A token's own ratio is exact for answers of one
# token; its bias can grow like $T^2$ (appendix).
#
# **The geometric mean** $\bar r = (\prod r_t)^{1/T}$ does something else:
#
# $$ q(y)\, \bar r(y) = q(y) \left(\frac{p(y)}{q(y)}\right)^{1/T} = q(y)^{1 - 1/T}\, p(y)^{1/T} . \tag{2} $$
#
# Among answers of $T$ tokens, and divided by its sum, that is a policy **one $T$-th of the way from the engine to the
# trainer**. For long answers that is nearly the engine: hardly anything is corrected.
#
# ## Answers of four hundred tokens
#
# Three runs sort digits in answers of hundreds of tokens. Their engines differ: one has older weights, one a coarse
# cache (8 bits for each number of its memory of the text), one rounds to bfloat16. The first $t$ tokens of an answer
# are an answer, too; a shorter one counts whole, so that no answers are picked by their length. Lines are medians;
# bands hold nine tenths. **Change the run, and look for** the product, which spreads with $t$, while the other two lie
# on each other at 1.


# %% tags=["hide-input"]
class Recorded:
    """All steps of a run: log-ratios of the tokens (0 on padding), their mask, and which prompt each answer is to."""

    def __init__(self, name):
        steps = [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]
        pairs = [(one.tensors()["old_log_probs"], one.rollout_log_probs, one.response_mask) for one in steps]
        self.d, self.mask = torch.cat([log_ratio(*pair) for pair in pairs]), torch.cat([pair[2] for pair in pairs])
        prompts = torch.cat([one.tensors()["group_ids"] + 1000 * n for n, one in enumerate(steps)])
        self.prompt = torch.nn.functional.one_hot(prompts.unique(return_inverse=True)[1]).double()

    def interval(self, x):
        """Of the mean of x over the answers; prompts are drawn, because answers to the same one are alike."""
        drawn = resampled(self.prompt.shape[1], 1000, 0).double() @ self.prompt.T
        return interval_of(drawn @ x / drawn.sum(-1), signed=True)


def first_tokens(name, t):
    """Logarithms, of the first t tokens of every answer: each single ratio, the product, its geometric mean."""
    d, mask = recorded[name].d[:, :t], recorded[name].mask[:, :t]
    return {"single ratios": d[mask], "geometric mean": d.sum(-1) / mask.sum(-1), "product": d.sum(-1)}


run_of = {"old weights": "long_stale_4", "coarse cache": "long_kv_fp8_e5m2", "bf16": "long_bf16"}
recorded = {name: Recorded(run) for name, run in run_of.items()}


# %%
def spread(name):
    at = [first_tokens(name, t) for t in lengths]
    ends = {kind: zip(*(one[kind].quantile(NINE_TENTHS).exp().tolist() for one in at), strict=True) for kind in at[0]}
    lows, lines, highs = (dict(zip(ends, end, strict=True)) for end in zip(*ends.values(), strict=True))
    bands = {kind: (lows[kind], highs[kind]) for kind in lines}
    made = curves(lengths, lines, bands=bands, x_name="first tokens of an answer, t", y_name="ratio", log="xy")
    return made.update_layout(yaxis_range=[-5, 1])


lengths, NINE_TENTHS = [1, 2, 5, 10, 20, 50, 100, 200, 400], torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
moving_picture("run", {name: spread(name) for name in recorded}, "coarse cache")

# %% tags=["hide-input"]
of_400 = {name: first_tokens(name, lengths[-1]) for name in recorded}
nine_tenths = {
    (name, kind): " and ".join(
        f"{end:.{digits}g}" for end in of_400[name][kind].quantile(NINE_TENTHS[::2]).exp().tolist()
    )
    for name in recorded
    for kind, digits in (("product", 2), ("geometric mean", 4))
}
average = recorded["coarse cache"].interval(of_400["coarse cache"]["product"].exp())
say(f"""
At {lengths[-1]} tokens, nine products in ten lie between {nine_tenths["bf16", "product"]} after rounding in
bfloat16, between {nine_tenths["coarse cache", "product"]} with the coarse cache, and between
{nine_tenths["old weights", "product"]} with old weights. The geometric means, between
{nine_tenths["coarse cache", "geometric mean"]} with the coarse cache, are nearly all alike. Over all possible answers
the products average to 1 (lesson 02). With the coarse cache those of this sample average to {below(average, 1)}: the
few heavy answers that would make up for it were not drawn.
""")

# %% [markdown]
# ## By hand: bounds and lengths
#
# A bound $u$ on the product says $\sum d_t \le \log u$. Spread evenly, that is a **tolerance** of $u^{1/T}$ per token:
# a bound of 2 leaves each of 400 tokens 1.0017. A bound on the geometric mean is a tolerance per token already, and
# lets the product reach $u^{\,T}$: with 1.01 and 400 tokens, 54.
#
# If the tokens' $d$ were independent with standard deviation $σ$, then $\sum d_t$ would have the standard deviation
# $σ\sqrt{T}$. A bound on this sum that does not grow with $T$, as $\log u$, rejects more of the long answers; one that
# grows like $T$, as $T \log u$, more of the short ones: a **length bias**.
#
# ## Predict, then reveal

# %% tags=["hide-input"]
bounds = {"product": ("product", 2.0), "loose": ("geometric mean", 1.05), "tight": ("geometric mean", 1.001)}
loose, tight = (f"±{100 * (bounds[rule][1] - 1):.2g} %" for rule in ("loose", "tight"))
say(f"""
Take the first 1, 10, 100 or {lengths[-1]} tokens of the same answers, and reject. **Write down** whether the share
that is rejected grows or falls with the length:

1. the product must lie between ½ and {bounds["product"][1]:.0f};
2. the geometric mean may be off by {loose};
3. the geometric mean may be off by {tight}.
4. You train with capped weights. Which ends with the higher reward: a cap on the product, or on each token's ratio?
""")


# %%
def outside(name, rule, t):
    """For each answer 1 if its first t tokens lie outside of the bounds, else 0."""
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
assert not any(outside("bf16", "product", t).any() for t in picked)
say(f"""
How the rejected share changes from 1 to {picked[-1]} tokens, with the coarse cache and with old weights:

1. With the product it grows, by {above(change["coarse cache", "product"])} and
   {above(change["old weights", "product"])}. With bfloat16 none is rejected at any of these lengths.
2. With the loose bound on the geometric mean it falls: {below(change["coarse cache", "loose"])} and
   {below(change["old weights", "loose"])}.
3. With the tight one it **grows**, by {above(change["coarse cache", "tight"])} and
   {above(change["old weights", "tight"])}. Most tokens agree, and a few are off by much. One of those moves the mean of
   many out of a tight bound, and hardly out of a loose one. With bfloat16, which has no such tail, the share falls:
   {below(change["bf16", "tight"])}.
""")

# %%
tasks = {
    "decide_stale": "short answers, old weights",
    "decide_cache": "short answers, coarse cache",
    "decide_long_stale": "long answers, old weights",
    "decide_long_cache": "long answers, coarse cache",
}
gain = {}
show("reward at the end: product − token cap", "seeds", "difference [95 %]".rjust(24))
for name, task in tasks.items():
    (pair,) = comparisons(read_study(name)[0], [("product_cap", "token_cap")])
    gain[name] = pair.difference
    show(task, pair.seeds, bracketed(pair.difference).rjust(24))

# %% tags=["hide-input"]
say(f"""
**4.** It depends on the length. With answers of a few tokens and old weights the cap on the product ends with a reward
higher by {above(gain["decide_stale"])}; with the coarse cache the two cannot be told apart,
{untold(gain["decide_cache"])}. With hundreds of tokens it ends lower, {below(gain["decide_long_stale"])} and
{below(gain["decide_long_cache"])}. A likely reason: most products are then far from 1, and a few answers make nearly
the whole gradient. (The tasks and models differ, too.)
""")

# %% [markdown]
# ## Exercise 1: what token t needs
#
# *5 minutes.* Return the prefix weights of a padded batch, `(B, T)`: at token $t$ the product of the ratios up to and
# including $t$, and 0 on padding. Padding may hold nan.
#
# <details><summary>Hint 1</summary>A product of ratios is a sum of logarithms, and torch has a running sum.</details>
# <details><summary>Hint 2</summary>torch.where twice: 0 into the logarithms on padding before you add up, 0 into the
# result after.</details>


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
# ## Exercise 2: the implied tolerance
#
# *3 minutes.* A bound `upper` on the product, answers of different `lengths` (a tensor of integers). By what ratio may
# every token be off, if all are off alike?
#
# <details><summary>Hint 1</summary>T equal factors whose product is the bound.</details>


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
# *4 minutes.* The tokens' $d$ are independent with standard deviation `sigma` and mean 0, and the product is bounded by
# `upper`. Up to which length does $2σ\sqrt{T}$ stay inside? Return a whole number.
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
# <details><summary>No.</summary>Yes: the token's ratio is the whole product.</details>
# <details><summary>Only if the engine is greedy.</summary>Then it never writes most tokens, and no weight
# helps.</details>
#
# **2. You replace the product by the geometric mean, without a bound. What have you gained?**
#
# <details><summary>An unbiased weight with less noise.</summary>No. It corrects towards a policy one T-th of the way to
# the trainer.</details>
# <details><summary>Little noise, because the weight is nearly the same for all answers; and nearly no correction, for
# the same reason.</summary>Yes.</details>
# <details><summary>A weight that does not depend on the length.</summary>Not quite: its noise does.</details>
#
# **3. You reject answers whose product is outside of [½, 2], and the mean length of what is trained on falls. Why?**
#
# <details><summary>Long answers have worse tokens.</summary>They may, but it is not needed.</details>
# <details><summary>The product of many ratios spreads further, so long answers leave any fixed bound
# first.</summary>Yes. The model learns from the short ones, whatever their rewards.</details>
# <details><summary>The engine cuts long answers off.</summary>Then the recorded answers would be short too.</details>

# %% [markdown]
# ## In the app
#
# - [This step over its lengths, with the bounds of both
#   kinds](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=48&preset=decoupled_seq_is_rs);
# - [the bench with rejection by the geometric
#   mean](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=skyrl_geo_mask);
# - [product beside token weights, token by
#   token](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&preset_b=decoupled_seq_is).
#
# ## Pitfalls
#
# - **One word, two meanings.** "Sequence" is the product in verl and TRL, and the geometric mean in ms-swift.
# - **GSPO is no mismatch correction.** It clips the geometric mean of $\pi/p$: it bounds the update.
#
# ## References
#
# 1. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://richardli.xyz/rl-collapse), 2025: the bias of
#    token weights, O(T²Δ), and the variance of sequence weights, (1 + χ²)^T.
# 2. Chujie Zheng et al., [Group Sequence Policy Optimization](https://arxiv.org/abs/2507.18071), 2025: clipping the
#    geometric mean.
# 3. Qwen team, [Stabilizing Reinforcement Learning with LLMs: Formulation and
#    Practices](https://arxiv.org/abs/2512.01374), 2025: the token objective as a first-order approximation of the
#    sequence objective.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; nothing above needs them.
#
# ### Past and future, with symbols
#
# Let $x$ be a place: everything written so far. Call $v_q(x)$ how often the engine gets there, and
# $A_q(x, a) = \mathbb{E}_q[A \mid x, a]$ what writing $a$ there leads to if the engine goes on. Then the expected
# gradients are
#
# | weight of token $t$ | expected gradient |
# |---|---|
# | $r_t$, token | $\sum_x v_q(x) \sum_a p(a \mid x)\, A_q(x, a)\, s$ |
# | $\prod_{k \le t} r_k$, prefix | $\sum_x v_p(x) \sum_a p(a \mid x)\, A_q(x, a)\, s$ |
# | $\prod_{k \ge t} r_k$, suffix | $\sum_x v_q(x) \sum_a p(a \mid x)\, A_p(x, a)\, s$ |
# | $\prod_k r_k$, sequence | $\sum_x v_p(x) \sum_a p(a \mid x)\, A_p(x, a)\, s$ |
#
# Checked with symbols for three first tokens, X, Y, Z, and three more after X: all probabilities and the five
# advantages are symbols. The gradient is that in one logit of the first token and one of the second.


# %%
def policy(name):
    """Two rows of three probabilities: of the first token, and of the second after X."""
    rows = [sympy.symbols(f"{name}{row}_X {name}{row}_Y", positive=True) for row in (1, 2)]
    return [[*row, 1 - sum(row)] for row in rows]


P, Q = policy("p"), policy("q")
answers = [(0, 0), (0, 1), (0, 2), (1,), (2,)]
worth = dict(zip(answers, sympy.symbols("A_XX A_XY A_XZ A_Y A_Z"), strict=True))


def score(row, action):
    """Of a softmax: ∂ log p(action) / ∂ logit of X."""
    return int(action == 0) - P[row][0]


def expected(weight):
    """E_q of weight(answer, t) · A · score of token t, for the first token and for the second."""
    sums = [sympy.Integer(0), sympy.Integer(0)]
    for y in answers:
        chance = math.prod(Q[t][a] for t, a in enumerate(y))
        for t, a in enumerate(y):
            sums[t] += chance * weight(y, t) * worth[y] * score(t, a)
    return sums


def product_of(y, tokens):
    return math.prod((P[k][y[k]] / Q[k][y[k]] for k in tokens), start=sympy.Integer(1))


def by_places(visiting, continuing):
    """The formula of the table: who comes to the second token, and who writes it after the first."""
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
# The share by which the second token's gradient is wrong is $q/p - 1$ of the first token: by hand, a third too little
# at $q = ½$ and $p = ¾$.
#
# ### Past and future, with numbers
#
# The same weights in a random world of all answers of at most five tokens out of four, beside the table by enumeration.
# The last two lines give every token the trainer's own $A_p(x, a)$ in place of $A$, as a perfect critic would: then the
# prefix is exact, and the token weight has only the fault of the past left.

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
    """A(x, a) of the table: the mean worth of the answers that write a at x."""
    sums = torch.zeros(2, where.state_count * where.vocabulary, dtype=torch.float64)
    for total, values in zip(sums, (chance[who] * worth_of, chance[who]), strict=True):
        total.index_add_(0, place[where.mask], values[:, None].expand(where.mask.shape)[where.mask])
    return (sums[0] / sums[1]).view(where.state_count, where.vocabulary)


def slope_of(objective):
    leaf = p_logits.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


def sampled(log_w, worth):
    """The expected gradient of answers of the engine with these weights."""
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
# Answers of exactly $T$ tokens in small worlds where nobody ends early, pooled over twenty random pairs of policies.
# **Look for** the token weight: without bias at one token, and rising with their number.
#
# Let Δ be the largest total variation between the two policies at one place. The past of token $t$ is wrong by at most
# $(t - 1)Δ$, its future by at most $(T - t)Δ$: together $(T - 1)Δ$ per token, and there are $T$ tokens. So the bias of
# a token weight is of the order $T^2 Δ$ at worst, and half the gap halves it.


# %%
def of_length(length, seed, gap=0.4):
    """A world of answers of this length, policies with a gap between them, and what answers are worth."""
    there, trainer = world(3, length), random_policy(world(3, length), seed)
    trainer[:, 0] -= 50  # token 0 would end the answer
    engine = trainer + random_policy(there, seed + 1000, gap)
    worth = torch.randn(len(there.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2000))
    return there, Policies(engine, trainer, trainer), worth


def pooled_bias(worlds, weights):
    """In units of the gradient, over several worlds; to nine digits, so that nothing is 1e-16."""
    truths = [gradient_truth(there, policies, worth, weights, PER_ANSWER) for there, policies, worth in worlds]
    squares = [(truth.bias**2, float(truth.reference.square().sum())) for truth in truths]
    return round(math.sqrt(sum(x for x, _ in squares) / sum(y for _, y in squares)), 9)


by_length_of = {length: [of_length(length, seed) for seed in range(20)] for length in range(1, 8)}
biases = {
    name: [pooled_bias(worlds, weights) for worlds in by_length_of.values()] for name, weights in UNBOUNDED.items()
}
picture(curves(list(by_length_of), biases, x_name="tokens of an answer, T", y_name="bias, of the gradient's length"))
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
# A token weight is exact for one token, and the more biased the longer the answers are. The geometric mean moves
# towards the line without weights. The product has no bias, and its price is $\mathbb{E}_q[\prod r^2]$: for tokens that
# are independent and alike $(1 + χ^2)^T$, an average of a product of independent factors (lesson 02).
#
# ### What the geometric mean corrects towards
#
# Its expected gradient is that of the mixture named above. The columns: how far this mixture has come from the
# engine to the trainer (a KL grows like a squared distance, hence the root), beside $1/T$; and the bias of the
# geometric weight over that of no weight at all, which heads for 1.
#
# And its logarithm, $\frac{1}{T} \sum d_t$, has the mean $-\mathrm{KL}(q \| p)/T$: the KL per token, a number about the
# two policies and nearly the same for every answer.

# %%
show("T", "1 − √to go", "1/T", "bias left")
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
# The last step of `long_kv_fp8_e5m2`. **Look for** the dotted cone, $±2σ\sqrt{T}$; the two flat lines of a bound on the
# product; and the two of a bound on the geometric mean, which spread like $T$. Most answers are blue, which is below 1
# (orange is above), because the average of $d$ is minus the KL, and that adds up like $T$.

# %%
product_rule = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.5, upper=2.0),))
picture(by_length(load("long_kv_fp8_e5m2"), {"product": product_rule, "geometric mean": preset("skyrl_geo_mask")}))

# %% [markdown]
# ### The gradient on a recorded step
#
# Each weight, without bounds, beside no weights, on the last step of five runs with short answers: the paired
# difference of the noise, in units of the gradient's length, and the cosine between the two gradients of the batch.

# %%
between, calmer = {}, {}
show("beside no weights", "noise [95 %]".rjust(24), "cosine [95 %]".rjust(24))
for name in ("bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "async"):
    run = runs.find_run(name)
    step = runs.list_steps(run)[-1]
    answers_of, sketch = updated_batch(run, step), read_sketch(run, step)
    for kind in ("token", "geometric mean", "product"):
        pair = compare_gradients(answers_of, sketch, UNBOUNDED["no weights"], UNBOUNDED[kind], batch_sizes=[128])
        between[name, kind], calmer[name, kind] = pair.between, pair.noise[0]
        show(f"{name}: {kind}", bracketed(pair.noise[0]).rjust(24), bracketed(pair.between, 3).rjust(24))

# %% tags=["hide-input"]
say(f"""
Of `kv_fp8_e5m2` the gradients with geometric means and without weights point the same way, with a cosine of
{above(between["kv_fp8_e5m2", "geometric mean"], 0.99, 3)}. Of `stale_4`, whose answers have a few tokens, the cosine is
{below(between["stale_4", "geometric mean"], 0.99)}: one $T$-th of the way is not nothing there.

Weights can lower the noise, too: token weights change it by {below(calmer["kv_fp8_e5m2", "token"])} lengths of the
gradient on the step of `kv_fp8_e5m2`. The score of a token that the trainer finds nearly impossible is huge. Nearly
only the engine writes such tokens, so their ratio is close to 0, and as a weight it takes them out.
""")

# %%
run = runs.find_run("kv_fp8_e5m2")
batch, sketch = updated_batch(run, 48), read_sketch(run, 48)
log_r = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
squares = sketch.scores.double().square().sum(-1) * batch.tensors()["advantages"][batch.response_mask].double().square()
weighed = squares * ratio(log_r).double().square()
rare = log_r < math.log(0.1)
held, left_over = (float(size[rare].sum() / size.sum()) for size in (squares, weighed))

# %% tags=["hide-input"]
assert held > 0.4 > 0.01 > left_over
say(f"""
On this step {int(rare.sum())} of {len(rare):,} tokens have a ratio below a tenth. They hold {100 * held:.0f} % of all
squared contributions without weights, and {100 * left_over:.1f} % with token weights.
""")

# %% [markdown]
# ### GSPO: a geometric mean for another purpose
#
# GSPO clips $s_y = \big(\prod_t π/p\big)^{1/T}$, the geometric mean of **PPO's** ratios. It does not repair a mismatch;
# it decides when an answer has been pushed far enough. For that, calm and a scale that does not depend on the length
# are what one wants. Every token gets the same factor:
#
# $$ \nabla s_y = s_y \cdot \frac{1}{T} \sum_t \nabla \log π(a_t) . \tag{3} $$

# %%
theta, old = sympy.symbols("theta_X theta_Y theta_Z"), sympy.symbols("old_X old_Y old_Z")


def log_softmax(logits, action):
    return logits[action] - sympy.log(sum(sympy.exp(t) for t in logits))


written = (0, 2, 2, 1)
s_y = sympy.exp(sum(log_softmax(theta, a) - log_softmax(old, a) for a in written) / len(written))
for logit in theta:
    scores = sum(sympy.diff(log_softmax(theta, a), logit) for a in written)
    assert sympy.simplify(sympy.diff(s_y, logit) - s_y * scores / len(written)) == 0

log_old = torch.randn(3, 5, dtype=torch.float64, generator=generator) - 2
log_pi = (log_old + 0.02 * torch.randn(3, 5, dtype=torch.float64, generator=generator)).requires_grad_()
keep = torch.ones(3, 5, dtype=torch.bool)
loss = gspo(log_pi, log_old, torch.ones(3, 5, dtype=torch.float64), keep, low=0.2, high=0.2)
ours = torch.autograd.grad(loss.mean(-1).sum(), log_pi)[0]
factor = ratio(over_sequence((log_pi - log_old).detach(), keep, "mean"))[:, None]
show("the library's loss has this gradient", torch.allclose(ours, -(factor / 5).expand(3, 5), rtol=0, atol=1e-15))
