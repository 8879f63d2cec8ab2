# %% [markdown]
# # 06 · Token, sequence, geometric: which ratio counts a token
#
# **Claim.** The product of all ratios is right on average and noisy beyond use for long answers, the token's own ratio
# is calm and biased, and the geometric mean is calm because it corrects almost nothing.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* You need the product and the geometric mean of lesson 00,
# the importance sampling of lesson 02, and the bias and noise of lesson 05.
#
# At the end you can
#
# - name the two things that a token weight leaves out, and compute what each of them costs;
# - say what the geometric mean estimates, and what policy it corrects towards;
# - translate a bound on a sequence into a tolerance per token, and back;
# - tell which bounds reject long answers and which reject short ones.

# %%
import itertools
import math
import warnings

import sympy
import torch
from exercises.lesson_06 import LONGEST, PREFIX_WEIGHTS, TOLERANCE
from show import picture, show

from rlcorr import CorrectionConfig, RejectionRule, preset, runs
from rlcorr.check import check
from rlcorr.comparison import compare_gradients
from rlcorr.config import LossConfig
from rlcorr.curves import curves
from rlcorr.gradients import compare
from rlcorr.losses import gspo
from rlcorr.mismatch_plots import by_length
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.sketches import read_sketch, updated_batch
from rlcorr.toy import Policies, gradient_truth, kl, log_probs, probabilities, random_policy, visits, world

warnings.filterwarnings("error", module="(?!ipykernel)")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(6)
PER_ANSWER = LossConfig(loss_agg_mode="token-sum")


def unbounded(level):
    """Weights of this level without a bound; None: every token counts 1."""
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=math.inf)


# %% [markdown]
# ## Two tokens
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
# Should *go* become more probable? For the trainer going is worth ¾·4 = 3, more than 2.5: yes. But the engine plays the
# second token badly. In its answers going pays only ½·4 = 2, less than 2.5. Weigh the token *go* by its own ratio, 1½:
# that says how often the trainer would have gone. It says nothing about what the trainer would have done next.
#
# `toy.world(2, 2)` is this world. Token 0 ends an answer (stop, left), token 1 does not (go, right). Expected gradients
# are exact, and here are those in the logits of *go* and of *right*.

# %%
two = world(2, 2)
q2 = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
p2 = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64).log()
rewards = torch.tensor([2.5, 0.0, 4.0], dtype=torch.float64)
assert two.tokens.tolist() == [[0, 0], [1, 0], [1, 1]]

show("expected gradient", "go", "right")
wanted = gradient_truth(two, Policies(q2, p2, p2), rewards, unbounded(None), PER_ANSWER).reference
show("wanted", wanted[:, 1], digits=5)
found = {}
for level in (None, "token", "geometric", "sequence"):
    truth = gradient_truth(two, Policies(q2, p2, p2), rewards, unbounded(level), PER_ANSWER)
    found[level] = truth.expectation[:, 1]
    show({None: "no weights", "sequence": "product of the answer"}.get(level, level), found[level], digits=5)

assert torch.allclose(found["sequence"], wanted[:, 1], rtol=0, atol=1e-15)
assert torch.allclose(found["token"], torch.tensor([-3 / 32, 3 / 8], dtype=torch.float64), rtol=0, atol=1e-15)
assert torch.allclose(wanted[:, 1], torch.tensor([3 / 32, 9 / 16], dtype=torch.float64), rtol=0, atol=1e-15)

# %% [markdown]
# With token weights the gradient of *go* has the **wrong sign**: −3/32 in place of 3/32. And *right* gets ⅜ in place of
# 9/16, which is two thirds: the engine goes half of the time, the trainer three quarters, so the second token is seen
# too rarely. Two errors, then: the **future** is the engine's, and so is the **past**. (The geometric mean agrees with
# the token weights here by chance: both ratios of the last answer are 1½.)
#
# ## The equation
#
# The advantage $A(y)$ belongs to the whole answer $y = (a_1, …, a_T)$, and the gradient wanted is
# $\mathbb{E}_p[A \sum_t s_t]$ with the score $s_t = \nabla \log \pi(a_t)$. Importance sampling of whole answers gives
#
# $$ \mathbb{E}_p\Big[A \sum_t s_t\Big] = \mathbb{E}_q\Big[\prod_{k=1}^T r_k\; A \sum_t s_t\Big], \qquad
# \prod_{k=1}^T r_k = \underbrace{\prod_{k<t} r_k}_{\text{past}} \cdot r_t \cdot
# \underbrace{\prod_{k>t} r_k}_{\text{future}} . \tag{1} $$
#
# Let $h$ be a place: everything written so far. Call $v_q(h)$ how often the engine gets there, and
# $Q_q(h, a) = \mathbb{E}_q[A \mid h, a]$ what writing $a$ there leads to if the engine goes on. Each factor repairs one
# thing:
#
# | weight of token $t$ | expected gradient | past | future |
# |---|---|---|---|
# | $r_t$, **token** | $\sum_h v_q(h) \sum_a p(a \mid h)\, Q_q(h, a)\, s$ | engine | engine |
# | $\prod_{k \le t} r_k$, **prefix** | $\sum_h v_p(h) \sum_a p(a \mid h)\, Q_q(h, a)\, s$ | trainer | engine |
# | $\prod_{k \ge t} r_k$, suffix | $\sum_h v_q(h) \sum_a p(a \mid h)\, Q_p(h, a)\, s$ | engine | trainer |
# | $\prod_k r_k$, **sequence** | $\sum_h v_p(h) \sum_a p(a \mid h)\, Q_p(h, a)\, s$ | trainer | trainer |
#
# Only the last one is right when the advantage is that of the answer. The prefix is enough if the advantage of a token
# does not depend on what the engine wrote after it: with a critic that knows $A_p(h, a)$, or with a reward for every
# token, which is weighed by the product up to itself. So the product up to $t$ is the least that token $t$ needs, and
# its own ratio alone is exact for answers of one token.

# %% [markdown]
# ### Check 1, with symbols: three actions, then three more
#
# The first token is A, B or C. After A comes a second one of three. All probabilities and the five advantages are
# symbols. The score of a softmax is $\partial \log p_a / \partial θ_b = \mathbf{1}_{a = b} - p_b$, which is checked
# first. We look at the gradient in one logit of the first token and one of the second.

# %%
logits = sympy.symbols("t_A t_B t_C")
total = sum(sympy.exp(t) for t in logits)
for a, b in itertools.product(range(3), repeat=2):
    slope = sympy.diff(logits[a] - sympy.log(total), logits[b])
    assert sympy.simplify(slope - (int(a == b) - sympy.exp(logits[b]) / total)) == 0


def policy(name):
    """Two rows of three probabilities: of the first token, and of the second after A."""
    rows = [sympy.symbols(f"{name}{row}_A {name}{row}_B", positive=True) for row in (1, 2)]
    return [[*row, 1 - sum(row)] for row in rows]


P, Q = policy("p"), policy("q")
answers = [(0, 0), (0, 1), (0, 2), (1,), (2,)]
worth = dict(zip(answers, sympy.symbols("W_AA W_AB W_AC W_B W_C"), strict=True))


def score(row, action):
    return int(action == 0) - P[row][0]


def expected(weight):
    """E_q of weight(answer, t) · A · score of token t, for the first token and for the second."""
    sums = [sympy.Integer(0), sympy.Integer(0)]
    for y in answers:
        chance = math.prod(Q[t][a] for t, a in enumerate(y))
        for t, a in enumerate(y):
            sums[t] += chance * weight(y, t) * worth[y] * score(t, a)
    return sums


def product(y, tokens):
    return math.prod((P[k][y[k]] / Q[k][y[k]] for k in tokens), start=sympy.Integer(1))


def by_places(visiting, continuing):
    """The formula of the table: who comes to the second token, and who writes it after the first."""
    go_on = sum(continuing[1][b] * worth[0, b] for b in range(3))  # what A leads to
    first = P[0][0] * go_on * score(0, 0) + sum(P[0][a] * worth[(a,)] * score(0, a) for a in (1, 2))
    second = visiting[0][0] * sum(P[1][b] * worth[0, b] * score(1, b) for b in range(3))
    return [first, second]


def same(mine, theirs):
    return all(sympy.expand(sympy.cancel(x - y)) == 0 for x, y in zip(mine, theirs, strict=True))


assert same(expected(lambda y, t: product(y, [t])), by_places(Q, Q))
assert same(expected(lambda y, t: product(y, range(t + 1))), by_places(P, Q))
assert same(expected(lambda y, t: product(y, range(t, len(y)))), by_places(Q, P))
assert same(expected(lambda y, t: product(y, range(len(y)))), by_places(P, P))
bias = expected(lambda y, t: product(y, [t]))[1] - by_places(P, P)[1]
show("bias of the second token's weight, over", str(sympy.factor(sympy.cancel(bias / by_places(P, P)[1]))))

# %% [markdown]
# The last line says: by what share the second token's gradient is wrong with its own ratio as the weight. It is
# $q/p - 1$ for the first token: at $q = ½$ and $p = ¾$ a third too little, as you saw.
#
# ### Check 2, with numbers: 364 answers
#
# The same four weights in a random world of answers of at most five tokens, every expectation an exact sum. Then the
# right-hand sides of the table, by enumeration.

# %%
where = world(4, 5)
p_logits = random_policy(where, 60)
q_logits = p_logits + random_policy(where, 61, 0.5)
worth_of = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
d = log_ratio(log_probs(where, p_logits), log_probs(where, q_logits), where.mask)
chance = {"engine": probabilities(where, q_logits), "trainer": probabilities(where, p_logits)}
comes = {"engine": visits(where, q_logits), "trainer": visits(where, p_logits)}

up_to = d.cumsum(-1)
from_here = d.flip(-1).cumsum(-1).flip(-1)
logs = {
    ("engine", "engine"): d,
    ("trainer", "engine"): up_to,
    ("engine", "trainer"): from_here,
    ("trainer", "trainer"): over_sequence(d, where.mask, "sum")[:, None].expand_as(d),
}
place = where.states * where.vocabulary + where.tokens  # the number of (h, a)


def leads_to(who):
    """Q(h, a) of the table, (S, V): the mean worth of the answers that write a at h."""
    sums = torch.zeros(2, where.state_count * where.vocabulary, dtype=torch.float64)
    for total, values in zip(sums, (chance[who] * worth_of, chance[who]), strict=True):
        total.index_add_(0, place[where.mask], values[:, None].expand(where.mask.shape)[where.mask])
    return (sums[0] / sums[1]).view(where.state_count, where.vocabulary)


def slope_of(objective):
    leaf = p_logits.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


exact = slope_of(lambda leaf: (probabilities(where, leaf) * worth_of).sum())
show("weight", "past", "future", "bias", "cosine")
for (past, future), name in zip(logs, ("token", "prefix", "suffix", "sequence"), strict=True):
    counted = chance["engine"][:, None] * ratio(logs[past, future]) * worth_of[:, None] * where.mask
    sampled = slope_of(lambda leaf, counted=counted: (counted * log_probs(where, leaf)).sum())
    p_rows = p_logits.softmax(-1)
    formula = comes[past][:, None] * p_rows * leads_to(future)
    tabled = slope_of(lambda leaf, formula=formula: (formula * leaf.log_softmax(-1)).sum())
    assert torch.allclose(sampled, tabled, rtol=0, atol=1e-13)
    bias = float((sampled - exact).norm() / exact.norm())
    show(name, past, future, bias, float(torch.cosine_similarity(sampled.flatten(), exact.flatten(), 0)))
assert bias < 1e-12  # the last one is the sequence

# %% [markdown]
# And with the trainer's own advantage function, $Q_p(h, a)$, given to every token in place of $A(y)$, the prefix is
# exact, and the token weight has only the error of the past left.

# %%
critic = leads_to("trainer")[where.states, where.tokens]
for name, log_w in (("token", d), ("prefix", up_to)):
    counted = chance["engine"][:, None] * ratio(log_w) * critic * where.mask
    sampled = slope_of(lambda leaf, counted=counted: (counted * log_probs(where, leaf)).sum())
    bias = float((sampled - exact).norm() / exact.norm())
    show(f"{name}, with a critic: bias", bias)
assert bias < 1e-12
