# %% [markdown]
# # 06 · Token, sequence, geometric: which ratio counts a token
#
# **Claim.** The product of all ratios is right on average and noisy beyond use for long answers, the token's own ratio
# is calm and biased, and the geometric mean is calm because it corrects almost nothing.
#
# *35 minutes · intermediate · any laptop; no GPU, no network.* You need the product and the geometric mean of lesson
# 00, the importance sampling of lesson 02, and the bias and noise of lesson 05.
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
from dataclasses import astuple

import sympy
import torch
from exercises.lesson_06 import LONGEST, PREFIX_WEIGHTS, TOLERANCE
from show import picture, show

from rlcorr import CorrectionConfig, RejectionRule, correct, preset
from rlcorr.config import LossConfig
from rlcorr.correction import log_weights
from rlcorr.figures.curves import curves
from rlcorr.figures.mismatch import by_length
from rlcorr.gradients.comparison import compare_gradients
from rlcorr.gradients.report import compare
from rlcorr.gradients.toy import Policies, gradient_truth, kl, log_probs, probabilities, random_policy, visits, world
from rlcorr.losses import gspo
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch
from rlcorr.records.study import outcomes, read_study
from rlcorr.teaching.check import check

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
expectations = {}
for level in (None, "token", "geometric", "sequence"):
    truth = gradient_truth(two, Policies(q2, p2, p2), rewards, unbounded(level), PER_ANSWER)
    expectations[level] = truth.expectation[:, 1]
    show({"sequence": "product of the answer"}.get(str(level), level or "no weights"), expectations[level], digits=5)

assert torch.allclose(expectations["sequence"], wanted[:, 1], rtol=0, atol=1e-15)
assert torch.allclose(expectations["token"], torch.tensor([-3 / 32, 3 / 8], dtype=torch.float64), rtol=0, atol=1e-15)
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
# does not depend on what the engine wrote after it: with a **critic**, a second network that tells what the trainer
# would get from each place on, or with a reward for every
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

# %% [markdown]
# ## What longer answers do
#
# Now answers of exactly $T$ tokens, $T = 1 … 7$, in small worlds where nobody ends early; each number is pooled over
# twenty random pairs of policies. First the bias of each level, in units of the gradient. **Look for** where each line
# starts and where it goes.


# %%
def of_length(length, seed, gap=0.4):
    """A world of answers of this length, a trainer, an engine with a gap to it, and what answers are worth."""
    there = world(3, length)
    trainer = random_policy(there, seed)
    trainer[:, 0] -= 50  # token 0 would end the answer
    engine = trainer + random_policy(there, seed + 1000, gap)
    worth = torch.randn(len(there.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2000))
    return there, Policies(engine, trainer, trainer), worth


lengths = list(range(1, 8))
levels = {"no weights": None, "geometric": "geometric", "token": "token", "sequence": "sequence"}


def pooled_bias(truths):
    """Over several worlds, in units of their gradients; to nine digits, so that nothing is 1e-16."""
    squares = [(truth.bias**2, float(truth.reference.square().sum())) for truth in truths]
    return round(math.sqrt(sum(x for x, _ in squares) / sum(y for _, y in squares)), 9)


biases = {name: [] for name in levels}
for length in lengths:
    worlds = [of_length(length, seed) for seed in range(20)]
    for name, level in levels.items():
        biases[name].append(pooled_bias([gradient_truth(*setting, unbounded(level), PER_ANSWER) for setting in worlds]))

picture(curves(lengths, biases, x_name="tokens of an answer, T", y_name="bias, of the gradient"))
show("T", *lengths)
for name, values in biases.items():
    show(name, values, digits=3)

assert max(biases["sequence"]) < 1e-12
assert biases["token"][0] < 1e-12
assert biases["token"][-1] > 2 * biases["token"][1]
assert biases["token"][-1] < biases["geometric"][-1] < biases["no weights"][-1]

# %% [markdown]
# A token weight is exact for one token. From two tokens on it is biased, and more so the longer the answers are: there
# is more past, and more future. The geometric mean does as well for a few tokens, and then moves towards the line
# without weights. The product has no bias at any length.
#
# **How fast?** Let Δ be the largest total variation between the two policies at one place. The past of token $t$ is
# wrong by at most $(t - 1)Δ$, its future by at most $(T - t)Δ$: together $(T - 1)Δ$ per token, and there are $T$
# tokens. So the bias is of the order $T^2 Δ$ at worst, and of first order in the gap: half the gap, half the bias. The
# next cell halves the gap, and then looks at the price of the product, $\mathbb{E}_q[\prod r^2]$. If the tokens are
# independent and alike, it is $(1 + χ^2)^T$, because an average of a product of independent factors is the product of
# averages.

# %%
gaps = {}
for gap in (0.2, 0.1, 0.05):
    truths = [gradient_truth(*of_length(5, seed, gap), unbounded("token"), PER_ANSWER) for seed in range(10)]
    gaps[gap] = pooled_bias(truths)
    show(f"gap {gap}: bias of the token weight", gaps[gap])
assert math.isclose(gaps[0.1], gaps[0.2] / 2, rel_tol=0.05)
assert math.isclose(gaps[0.05], gaps[0.1] / 2, rel_tol=0.05)

alike = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64), torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
chi2 = float((alike[1].square() / alike[0]).sum() - 1)
any_p, any_q = sympy.symbols("p_A p_B p_C", positive=True), sympy.symbols("q_A q_B q_C", positive=True)
three_tokens = sum(  # with symbols, for three tokens of three actions
    math.prod(any_q[a] * (any_p[a] / any_q[a]) ** 2 for a in written)
    for written in itertools.product(range(3), repeat=3)
)
assert sympy.expand(three_tokens - sum(p_a**2 / q_a for p_a, q_a in zip(any_p, any_q, strict=True)) ** 3) == 0
show("χ² of one token, lesson 00's three actions", chi2)
price = []
for length in lengths:
    there = world(4, length)  # token 0 ends an answer: nobody writes it
    rows = [
        torch.cat([torch.full((1,), -50.0, dtype=torch.float64), x.log()]).expand(there.state_count, 4) for x in alike
    ]
    price.append(float((probabilities(there, rows[1]).square() / probabilities(there, rows[0])).sum()))
show("T", *lengths)
show("average squared product", price)
show("(1 + χ²) to the power T", [(1 + chi2) ** length for length in lengths])
show("effective share of the answers", [1 / x for x in price])
assert all(math.isclose(x, (1 + chi2) ** length, rel_tol=1e-9) for x, length in zip(price, lengths, strict=True))

# %% [markdown]
# With a $χ^2$ of 0.375 per token, seven tokens leave a tenth of the answers. Real gaps are smaller, and real answers
# longer: at a $χ^2$ of 0.01 the same tenth is left of $T = \log 10 / \log 1.01 ≈ 231$ tokens.
#
# ## What the geometric mean estimates
#
# Write $g = (\prod r_t)^{1/T}$ for an answer of $T$ tokens. Then
#
# $$ q(y)\, g(y) = q(y) \left(\frac{p(y)}{q(y)}\right)^{1/T} = q(y)^{1 - 1/T}\, p(y)^{1/T} . \tag{2} $$
#
# Divide by the sum $Z$ of the right-hand side over all answers, and it is a policy of its own: a mixture of the two, on
# a logarithmic scale, **one $T$-th of the way from the engine to the trainer**. That is the policy towards which the
# geometric mean corrects. At $T = 1$ it is the trainer; for long answers it is the engine.
#
# And its logarithm, $\frac{1}{T} \sum d_t$, is an average of $T$ numbers. Under the engine it has the mean
# $-\mathrm{KL}(q \| p)/T$, and its noise shrinks like $1/\sqrt{T}$. So what $g$ estimates is $e^{-k}$ with
# $k$ the **KL per token**: a number about the two policies, nearly the same for every answer. As a weight it does
# nothing that a learning rate would not do. As a measure of how far the engine has drifted it is excellent.

# %%
T, ratio_of = sympy.symbols("T r", positive=True)
q_y = sympy.Symbol("q", positive=True)
assert sympy.simplify(q_y * ratio_of ** (1 / T) - q_y ** (1 - 1 / T) * (q_y * ratio_of) ** (1 / T)) == 0

show("T", "E[g]", "exp −KL/T", "sd of g", "1 − √to go", "1/T", "bias left")
for length in (1, 3, 5, 7):
    there, policies, worth = of_length(length, 0)
    p_y, q_all = probabilities(there, policies.old), probabilities(there, policies.rollout)
    mixture = q_all ** (1 - 1 / length) * p_y ** (1 / length)
    g = (p_y / q_all) ** (1 / length)
    Z = mixture.sum()

    leaf = policies.theta.clone().requires_grad_()
    scores = (mixture * worth * log_probs(there, leaf).sum(-1)).sum()
    truth = gradient_truth(there, policies, worth, unbounded("geometric"), PER_ANSWER)
    assert torch.allclose(truth.expectation, torch.autograd.grad(scores, leaf)[0], rtol=0, atol=1e-12)

    divergence = float(kl(there, policies.rollout, policies.old))
    assert math.isclose(float((q_all * g.log()).sum()), -divergence / length, rel_tol=1e-9)
    spread = float((q_all * g.square()).sum() - (q_all * g).sum().square()) ** 0.5
    to_go = float((mixture / Z * (mixture / Z / p_y).log()).sum()) / divergence  # KL(mixture‖p)/KL(q‖p)
    left = truth.relative_bias / gradient_truth(there, policies, worth, unbounded(None), PER_ANSWER).relative_bias
    show(
        f"{length}",
        float(Z),
        math.exp(-divergence / length),
        spread,
        1 - max(to_go, 0) ** 0.5,
        1 / length,
        left,
        digits=3,
    )
assert left > 0.7

# %% [markdown]
# The fourth number of each line is how far the mixture has come from the engine to the trainer (a KL grows like a
# squared distance, hence the root); it is $1/T$ but for the curvature. The last one is the bias of the geometric weight
# over that of no weight at all. It heads for 1.
#
# Presets rarely weigh with the geometric mean, though ms-swift's `sequence_truncate` does. They use it to **reject**,
# and there its calm is the point.
#
# ## Bounds and lengths
#
# A bound $C$ on the product says $\sum d_t \le \log C$. Spread evenly over $T$ tokens, that is $d \le \log C / T$: an
# **implied tolerance** of $C^{1/T}$ per token. A bound $c$ on the geometric mean is a tolerance per token already, and
# allows the product to reach $c^{\,T}$.

# %%
counts = (1, 10, 60, 1000, 10000)
show("tokens", *counts)
show("product ≤ 2: tolerance per token", [2 ** (1 / k) for k in counts], digits=5)
show("geometric mean ≤ 1.001: product", [1.001**k for k in counts], digits=3)
show("geometric mean ≤ 1.01: product", [1.01**k for k in counts[:4]], digits=2)

# %% [markdown]
# A product bound of 2 gives a token of a long answer next to no room; a geometric bound gives the answer all the room
# in the world. Which one fits? If the tokens' $d$ were independent with standard deviation σ, then $\sum d_t$ would
# have $σ\sqrt{T}$. So the natural bound on the sum grows like $\sqrt{T}$: a **cone**. A constant bound leaves the cone
# at long answers and rejects them. A bound that grows like $T$ starts inside the cone and rejects short answers. Either
# way, length decides, and not only the mismatch. This is a **length bias**.
#
# The last recorded step of `kv_fp8_e5m2` has answers of some 59 tokens. **Look for** the dotted cone, the two
# horizontal lines of the product bound (½ to 2), and the two that spread like $T$ (geometric mean 0.99 to 1.01). At
# this length the two bounds happen to meet. And the cloud hangs below 1: the average of $d$ is minus the KL, and that
# adds up like $T$.


# %%
def steps_of(name):
    run = runs.find_run(name)
    return [runs.read_step(run, step).batch for step in runs.list_steps(run)]


recorded = steps_of("kv_fp8_e5m2")
product_rule = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.5, upper=2.0),))
picture(by_length(recorded[-1], {"product": product_rule, "geometric mean": preset("skyrl_geo_mask")}))

# %% [markdown]
# ### Check 3, with data: prefixes of recorded answers
#
# The first $t$ tokens of an answer are an answer of length $t$. The engine drew them from $q$, so by (1) their products
# average to 1, for every $t$. (We must not pick long answers for that: whether an answer goes on is part of what the
# engine drew. Here all 768 have 48 tokens or more, so nothing is picked.) And we can ask how the noise of $\sum d$
# grows. The intervals of that part are from a bootstrap over answers.

# %%
short = 48
everyone = [batch.response_mask[:, :short].all(-1) for batch in recorded]
pairs = [(batch.tensors()["old_log_probs"].double(), batch.rollout_log_probs.double()) for batch in recorded]
d_run = torch.cat(
    [
        log_ratio(old, rollout, batch.response_mask)[rows, :short]
        for batch, rows, (old, rollout) in zip(recorded, everyone, pairs, strict=True)
    ]
)
sums = d_run.cumsum(-1)
drawn = torch.randint(len(d_run), (200, len(d_run)), generator=generator)


def excess_noise(x, total):
    """The standard deviation of Σ d over that of independent tokens, with the same spread at each position."""
    return total.std(-1) / x.var(-2).sum(-1).sqrt()


show("answers that are long enough", len(d_run), "of", sum(len(batch.response_mask) for batch in recorded))
assert len(d_run) == sum(len(batch.response_mask) for batch in recorded) == 768
show("t", "product", "±", "sd of Σd", "sd/√t", "to indep.", "from", "to")
for t in (1, 6, 12, 24, 48):
    prefix = ratio(sums[:, t - 1])
    off = float(prefix.mean()), float(prefix.std() / len(prefix) ** 0.5)
    spread = float(sums[:, t - 1].std())
    relative = float(excess_noise(d_run[:, :t], sums[:, t - 1]))
    again = torch.stack([excess_noise(d_run[rows, :t], sums[rows, t - 1]) for rows in drawn])
    low, high = again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    show(f"{t}", *off, spread, spread / t**0.5, relative, low, high, digits=3)
    assert abs(off[0] - 1) < 2 * off[1]

# %% [markdown]
# The products average to 1 within their errors at every length. Their noise is another matter. Up to $t = 24$ the
# tokens' disagreements add up like independent ones (the column of ratios to independence is close to 1, and its
# interval holds 1 or nearly so). At 48 they do not: 15 % more than independent, and the interval leaves 1 out. And the
# noise does not grow like $\sqrt{t}$ from the start, because later tokens, which carry larger sums, disagree more.
#
# ## Predict, then reveal
#
# To see length alone, we regroup. Take the first 48 tokens of all 768 answers and cut them into windows of 1, 4, 16 or
# 48 tokens. The tokens are the same in every grouping. Of each window take the product and the geometric mean. **Write
# down a guess:**
#
# 1. A product outside of [½, 2]: does the share of such windows grow or fall with their length? How fast?
# 2. A geometric mean outside of [1/1.2, 1.2]: grow or fall?
# 3. A geometric mean outside of [0.99, 1.01]: grow or fall?

# %%
windows = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
grouped = [d_run.unflatten(1, (-1, length)).sum(-1).flatten() for length in windows]


def share_outside(values, bound):
    return float((values.abs() > math.log(bound)).double().mean())


outside = {
    "product, 2": [share_outside(total, 2.0) for total in grouped],
    "geometric mean, 1.2": [share_outside(total / k, 1.2) for total, k in zip(grouped, windows, strict=True)],
    "geometric mean, 1.01": [share_outside(total / k, 1.01) for total, k in zip(grouped, windows, strict=True)],
    "geometric mean, 1.001": [share_outside(total / k, 1.001) for total, k in zip(grouped, windows, strict=True)],
}
picture(curves(windows, outside, x_name="tokens in a window", y_name="share outside the bounds", log="xy"))
picked = (1, 4, 16, 48)
show("tokens in a window", *picked)
for name, values in outside.items():
    show(name, [values[windows.index(k)] for k in picked], digits=3)
size = d_run.abs().flatten().quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64))
show("|d|: half, nine in ten, 99 in 100 below", size)
odd = d_run.abs() > 48 * math.log(1.01)  # one such token is enough to move 48 out of 0.99 to 1.01
rejected = d_run.sum(-1).abs() > 48 * math.log(1.01)
show("windows of 48 with such an odd token", float(odd.any(-1).double().mean()), digits=3)
show("rejected windows with one", float(odd.any(-1)[rejected].double().mean()), digits=3)

assert outside["product, 2"] == sorted(outside["product, 2"])
assert outside["geometric mean, 1.2"][-1] < outside["geometric mean, 1.2"][0]
assert outside["geometric mean, 1.01"][-1] > 3 * outside["geometric mean, 1.01"][0]
assert size[0] < 2e-4 * 1.1
assert math.log(1.01) * 48 < size[2] < math.log(1.8)
assert float(odd.any(-1)[rejected].double().mean()) > 0.85

# %% [markdown]
# The product behaves as foretold: from 1 % of the single tokens to a third of the windows of 48. The loose geometric
# bound too: fewer long windows than short ones are outside. But the tight ones do the **opposite** of what independent,
# bell-shaped noise says: 1.01 rejects 12 % of the single tokens and 40 % of the windows of 48.
#
# The last lines say why. Half of all tokens agree to 0.02 %, and one in a hundred is off by a factor of 1.8. One such
# token is enough to move 48 tokens out: $0.58/48 = 0.012$, and $\log 1.01$ is 0.010. Two windows in five hold one, and
# nine in ten of those that are rejected. Averaging shrinks noise like $1/\sqrt{T}$ only when there are enough odd
# tokens to average. So which way a geometric bound leans depends on the tail, and must be looked at; **that it leans is
# certain**.
#
# ### Check 4, with data: answers of hundreds of tokens
#
# Three runs sort twelve digits and write out every exchange of two neighbours, in 200 to 500 tokens; 256 answers of
# each are recorded. Take those of 350 tokens or more. **Look for** the cone again: the two bounds that met at 59 tokens
# are far apart here.

# %%
long_runs = {name: steps_of(name) for name in ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4")}
picture(
    by_length(long_runs["long_kv_fp8_e5m2"][-1], {"product": product_rule, "geometric mean": preset("skyrl_geo_mask")})
)


def long_weights(name, level):
    """Logarithms of the weights of the long answers; of tokens all in a row."""
    parts = []
    for batch in long_runs[name]:
        long = batch.rows(batch.response_mask.sum(-1) >= 350)
        old, rollout = long.tensors()["old_log_probs"].double(), long.rollout_log_probs.double()
        d = log_ratio(old, rollout, long.response_mask)
        logs = log_weights(d, long.response_mask, level)
        parts.append(logs[long.response_mask] if level == "token" else logs[:, 0])
    return torch.cat(parts)


for name in long_runs:
    show(name, "ESS", "outside of [½, 2]", "[0.99, 1.01]", "[0.999, 1.001]")
    for level in ("token", "sequence", "geometric"):
        logs = long_weights(name, level)
        left = float(ratio(logs).mean().square() / ratio(logs).square().mean())
        show(f"  {level}", left, *(share_outside(logs, bound) for bound in (2.0, 1.01, 1.001)), digits=3)
assert share_outside(long_weights("long_bf16", "sequence"), 2.0) == 0
for name in ("long_kv_fp8_e5m2", "long_stale_4"):
    assert share_outside(long_weights(name, "token"), 2.0) < 0.01
    assert share_outside(long_weights(name, "sequence"), 2.0) > 0.7
    assert share_outside(long_weights(name, "geometric"), 2.0) == 0
    assert share_outside(long_weights(name, "geometric"), 1.001) > 0.8

# %% [markdown]
# Rounding in bfloat16 does nothing to any of the three. With the coarse cache and with old weights, one token in two
# hundred is off by more than a factor of two, which is enough for three quarters of the products, and for no geometric
# mean at all. So at hundreds of tokens the level decides what a bound of 2 does: next to nothing to tokens, nothing to
# the geometric mean, and to the product it leaves a quarter of the answers. And ±0.1 % on the geometric mean leaves one
# in five or eight. A single token, with a ratio of 199, makes the
# low ESS of the run with old weights.
#
# ## The gradient on the recorded step
#
# The same three levels, without bounds, on the step with a sketch. Noise and bias are in units of the trainer's own
# gradient.

# %%
run = runs.find_run("kv_fp8_e5m2")
batch, sketch = updated_batch(run, 48), read_sketch(run, 48)


def ends(interval):
    return interval.value, interval.low, interval.high


sizes = [len(batch.response_mask)]  # the noise of batches like this one
choice = compare(batch, sketch, [unbounded(level) for level in levels.values()], batch_sizes=sizes)
show("", "noise", "from", "to", "bias", "from", "to")
for name, report in zip(levels, choice.reports, strict=True):
    show(name, *ends(report.noise[0]), *ends(report.relative_bias), digits=2)
    assert report.relative_bias.low == 0
show("effective share of answers, product", *ends(choice.reports[-1].ess), digits=2)
nothing = compare_gradients(batch, sketch, unbounded(None), unbounded("geometric"), batch_sizes=sizes)
show("geometric and no weights: cosine", *ends(nothing.between), digits=3)
tokens = compare_gradients(batch, sketch, unbounded(None), unbounded("token"), batch_sizes=sizes)
show("token less no weights: noise", *ends(tokens.noise[0]), digits=2)
assert nothing.between.low > 0.99
assert tokens.noise[0].high < 0
assert tokens.a.noise[0].value > 2 * tokens.b.noise[0].value

# %% [markdown]
# Four things to read here.
#
# - **The product pays as foretold.** Its weights leave half of the answers (lesson 02's effective sample size).
# - **The biases are unknown.** The product's is 0, because the bias of the others is measured against it, on the same
#   answers. Their intervals start at 0 and end far above 1. The derivation and the toy say that token weights are
#   biased; this step cannot.
# - **The geometric mean does nothing**, as (2) said: its gradient and the one without weights point the same way, with
#   a cosine of 0.999 and an interval that is as narrow.
# - **Weights lower the noise here.** Without any, it is more than twice as large as with token weights, and the paired
#   interval leaves 0 out. Lesson 05 has only seen weights that add noise. But $f$ is a score here, and the score of a
#   token that the trainer finds nearly impossible is huge: $\nabla \log p$ with a tiny $p$. Nearly only the engine
#   writes such tokens, so their ratio is close to 0, and as a weight it takes them out. The next cell counts them.

# %%
log_r = correct(batch, CorrectionConfig()).log_ratio[batch.response_mask]
squares = sketch.scores.double().square().sum(-1) * batch.tensors()["advantages"][batch.response_mask].double().square()
rare = log_r < math.log(0.1)
show("tokens with a ratio below 0.1", int(rare.sum()), "of", len(rare))
show("their share of Σ A² |score|²", float(squares[rare].sum() / squares.sum()), digits=3)
weighed = squares * ratio(log_r).double().square()
show("the same, weighed by their ratio", float(weighed[rare].sum() / weighed.sum()), digits=3)
assert int(rare.sum()) == 9
assert squares[rare].sum() > 0.45 * squares.sum()
assert weighed[rare].sum() < 0.01 * weighed.sum()

# %% [markdown]
# Nine tokens of 7,533 hold half of it, and with weights next to nothing.
#
#
# And in a training? The study of this project has three seeds of each preset under two strong mismatches; the reward is
# that of the last quarter, with the lowest and the highest seed.

# %%
for name in ("stale_8", "kv_fp8_e5m2"):
    table = {outcome.preset: outcome for outcome in outcomes(read_study(name)[0])}
    reward_of = {method: outcome.reward for method, outcome in table.items()}
    show(name, "reward", "from", "to")
    for method in ("decoupled_seq_is", "decoupled_token_is", "skyrl_geo_mask", "disabled"):
        show(f"  {method}", *astuple(reward_of[method]), digits=2)
    show("  tokens that skyrl_geo_mask keeps", *astuple(table["skyrl_geo_mask"].kept_fraction), digits=2)
    assert reward_of["decoupled_seq_is"].mean == max(reward.mean for reward in reward_of.values())
    assert reward_of["skyrl_geo_mask"].mean < reward_of["disabled"].mean

# %% [markdown]
# A cap of 2 on the product comes out first under both. That is the product with most of its noise cut off: lesson 05's
# trade. Rejecting whole answers by the geometric mean ends no higher than no correction at all: it rejects most of
# them, and keeps 4 % of the tokens of one study, and 19 % of the other. These are small models and short answers;
# nobody should take them for a law.
#
# ## GSPO: a geometric mean for another purpose
#
# GSPO clips $s = \big(\prod_t ρ_t\big)^{1/T}$, the geometric mean of **PPO's** ratios $ρ = \pi_θ/\pi_{old}$. It does
# not repair a mismatch; it decides when an answer has been pushed far enough. For that, calm and a scale that does not
# depend on the length are what one wants. Its gradient is
#
# $$ \nabla s = s \cdot \frac{1}{T} \sum_t \nabla \log \pi_θ(a_t) . \tag{3} $$
#
# Every token gets the same factor. Its clip is about 3·10⁻⁴ below 1 and 4·10⁻⁴ above in verl's example. Small? As a
# tolerance per token yes, as one of the product no.

# %%
theta, old = sympy.symbols("theta_A theta_B theta_C"), sympy.symbols("old_A old_B old_C")


def log_softmax(logits, action):
    return logits[action] - sympy.log(sum(sympy.exp(t) for t in logits))


written = (0, 2, 2, 1)
s = sympy.exp(sum(log_softmax(theta, a) - log_softmax(old, a) for a in written) / len(written))
for logit in theta:
    scores = sum(sympy.diff(log_softmax(theta, a), logit) for a in written)
    assert sympy.simplify(sympy.diff(s, logit) - s * scores / len(written)) == 0

log_old = torch.randn(3, 5, dtype=torch.float64, generator=generator) - 2
log_theta = (log_old + 0.02 * torch.randn(3, 5, dtype=torch.float64, generator=generator)).requires_grad_()
keep = torch.ones(3, 5, dtype=torch.bool)
loss = gspo(log_theta, log_old, torch.ones(3, 5, dtype=torch.float64), keep, low=0.2, high=0.2)
ours = torch.autograd.grad(loss.mean(-1).sum(), log_theta)[0]
factor = ratio(over_sequence((log_theta - log_old).detach(), keep, "mean"))[:, None]
assert torch.allclose(ours, -(factor / 5).expand(3, 5), rtol=0, atol=1e-15)  # A = 1: the same for all its tokens

show("tokens", 60, 1000, 10000)
show("1.0004 per token: product", [1.0004**k for k in (60, 1000, 10000)], digits=2)

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
# future, and the token's ratio is the whole product.</details>
# <details><summary>No.</summary>Yes, that is right: the bias begins with the second token.</details>
# <details><summary>Only if the engine is greedy.</summary>A greedy engine never writes most tokens, and then no weight
# helps, at any level. But that is another matter.</details>
#
# **2. You replace the product by the geometric mean, without a bound. What have you gained?**
#
# <details><summary>An unbiased weight with less noise.</summary>No. It corrects towards a policy one T-th of the way to
# the trainer. For long answers that is the engine.</details>
# <details><summary>Little noise, because the weight is nearly the same for all answers; and nearly no correction, for
# the same reason.</summary>Yes. As a statistic to reject by, or to watch, it is useful.</details>
# <details><summary>A weight that does not depend on the length.</summary>Not quite. Its mean hardly does; its noise
# does, like 1/√T or in odder ways.</details>
#
# **3. You reject answers whose product is outside of [½, 2], and the mean length of what is trained on falls. Why?**
#
# <details><summary>Long answers have worse tokens.</summary>They may, but it is not needed. With the same tokens the
# bound rejects more long answers.</details>
# <details><summary>The product of many ratios spreads further, so long answers leave any fixed bound
# first.</summary>Yes. The model learns from the short ones, whatever their rewards.</details>
# <details><summary>The engine cuts long answers off.</summary>Then the recorded answers would be short too, not only
# those that are kept.</details>

# %% [markdown]
# ## In the app
#
# - [This step over its lengths, with the bounds of both
#   kinds](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=48&preset=decoupled_seq_is_rs);
# - [the bench with rejection by the geometric
#   mean](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=skyrl_geo_mask);
# - [product beside token weights, token by
#   token](http://localhost:8501/compare?run=kv_fp8_e5m2&step=48&preset=decoupled_token_is&preset_b=decoupled_seq_is);
# - [the same, with the geometric mean as the
#   weight](http://localhost:8501/bench?run=kv_fp8_e5m2&step=48&preset=decoupled_seq_is&level=geometric).
#
# ## Pitfalls
#
# - **One word, three meanings.** "Sequence" is the product in verl and TRL, and the geometric mean in ms-swift, with
#   the same mode names. AReaL's `agg: sum` tests the product and then weighs with the geometric mean.
# - **Bounds do not carry over.** 0.5 to 5 suits single tokens. On a geometric mean it rejects nothing, on a product of
#   a thousand tokens it rejects at random.
# - **GSPO is not a mismatch correction.** It bounds the update. With an engine that differs it needs one on top.
# - **Divide by the tokens of the answer**, not by the width of the padded batch, or short answers look better than they
#   are.
# - **A low average product is no proof of a bug.** The tail holds a part of it, and a small sample has no tail (lesson
#   00).
#
# ## References
#
# 1. Jiacai Liu, Yingru Li et al., [When Speed Kills Stability](https://yingru.notion.site), 2025: the bias of token
#    weights, O(T²Δ), and the variance of sequence weights, (1 + χ²)^T.
# 2. Chujie Zheng et al., [Group Sequence Policy Optimization](https://arxiv.org/abs/2507.18071), 2025: clipping the
#    geometric mean.
# 3. Qwen team, [Stabilizing Reinforcement Learning with LLMs: Formulation and
#    Practices](https://arxiv.org/abs/2512.01374), 2025: the token objective as a first-order approximation of the
#    sequence objective.
