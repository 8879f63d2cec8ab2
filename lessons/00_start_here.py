# %% [markdown]
# # 00 · Start here: one ratio per token
#
# **Claim.** Tokens are drawn from one policy, and the gradient is taken for another; the ratio between the two, token
# by token, is what this project is about.
#
# *20 minutes · beginner · any laptop; no GPU, no network.* You need to know what a probability is. You write Python
# only in the exercises. All letters: [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# ![three policies in time](diagrams/policies.svg)
#
# At the end you can
#
# - say which two policies there are, and why they disagree;
# - compute the ratio of a token and of an answer, by hand;
# - explain why counting each token by its ratio repairs an average, and a gradient.

# %% tags=["hide-input"]
import warnings

import sympy
import torch
from exercises.lesson_00 import ANSWER_RATIO, TRAINER_REWARD
from sentences import above, below, bracketed, say, untold
from show import picture, show

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.correction import weight_histogram
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.losses.per_token import reinforce
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Two programs, one model
#
# A language model writes one **token** at a time; here a token is a single character. For every possible next token it
# has a probability, and it draws one. The rule that gives these probabilities is called a **policy**.
#
# Reinforcement learning repeats two steps. The model writes answers, and each gets a **reward**. Then the model's
# weights move a little along a **gradient**, so that rewarded answers become more probable.
#
# Two programs share this work: an **engine** (vLLM) writes, built for speed, and a **trainer** (PyTorch) computes the
# gradient, built for exactness. Both hold the same weights, but they add in a different order and round differently. So
# the same token has two probabilities:
#
# - $q$ in the engine, which drew it;
# - $p$ in the trainer, after the same text. (π, in the second diagram, is for lesson 04.)
#
# Their **ratio** $r = p/q$ says how often the trainer would write the token for each time that the engine does. The
# code keeps logarithms: `rollout_log_probs` is $\log q$, `old_log_probs` is $\log p$, $d = \log p - \log q$, and
# $r = e^d$.
#
# ## Four tokens, by hand
#
# One answer, with more disagreement than is usual. Work out the second ratio before you look.

# %%
q = torch.tensor([[0.5, 0.8, 0.5, 0.4]], dtype=torch.float64)  # (B, T): one answer, four tokens
p = torch.tensor([[0.6, 0.4, 0.5, 0.8]], dtype=torch.float64)
mask = torch.ones(1, 4, dtype=torch.bool)  # True: a real token, not padding
d = log_ratio(p.log(), q.log(), mask)

show("r = p/q", ratio(d))
show("product of the four", ratio(over_sequence(d, mask, "sum")))
show("their geometric mean", ratio(over_sequence(d, mask, "mean")))

# %% [markdown]
# The engine writes the second token twice as often as the trainer would, so we count it half. The fourth counts twice.
#
# The probability of an answer is the product of those of its tokens. So the **ratio of the answer** is the product of
# the ratios, and the **geometric mean**, its fourth root, is the ratio of a typical token.
#
# $$ \prod_t r_t = e^{\sum_t d_t}, \qquad \Big(\prod_t r_t\Big)^{1/T} = e^{\frac{1}{T}\sum_t d_t} $$
#
# ## The equation, and an example by hand
#
# Let $f$ be anything that we average over tokens. The trainer needs $\mathbb{E}_p[f]$, the average over tokens drawn
# from $p$, but ours were drawn from $q$. Add up over all tokens $a$ that are possible:
#
# $$ \mathbb{E}_q\!\left[\frac{p}{q}\, f\right] = \sum_a q(a)\,\frac{p(a)}{q(a)}\, f(a) = \sum_a p(a)\, f(a)
# = \mathbb{E}_p[f] . $$
#
# In words: multiply by the ratio, the token's **weight**, and the engine's average becomes the trainer's. This is
# **importance sampling**. With $f = 1$ it says that **the ratios average to 1**. It needs $q > 0$ wherever $p > 0$.
#
# Three possible tokens, or **actions**, X, Y, Z: the engine writes them as often as ½, ¼, ¼, the trainer would as often
# as ¼, ¼, ½. The ratios are ½, 1, 2, the rewards 1, 0, 4. Four typical tokens of the engine:
#
# | | X | X | Y | Z | average |
# |---|---|---|---|---|---|
# | reward | 1 | 1 | 0 | 4 | 1.5 |
# | ratio | ½ | ½ | 1 | 2 | **1** |
# | ratio × reward | ½ | ½ | 0 | 8 | **2.25** |
#
# The trainer's own average: ¼·1 + ¼·0 + ½·4 = 2.25. The plain 1.5 is the engine's.
#
# Training averages a direction: the reward, times the direction that makes the token more probable (lesson 01). With
# three actions this average is an exact sum.

# %%
logits = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log().requires_grad_()  # p is their softmax
q_of_each = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
reward = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)


def gradient(weights):
    """How training moves each action, if a token that the engine draws counts by these weights."""
    loss = (q_of_each * weights * reinforce(logits.log_softmax(-1), reward)).sum()  # reinforce: −reward · log p
    return -torch.autograd.grad(loss, logits)[0]


show("action", "X", "Y", "Z")
show("every token counts 1", gradient(torch.ones(3)))
show("every token counts r", gradient(torch.tensor([0.5, 1, 2])))

# %% [markdown]
# Look at X. Counted once, training makes it **more** probable. Counted by the ratio, **less**, which is right: X earns
# less than the trainer's average. The mismatch has turned a sign.
#
# ## A recorded run
#
# `kv_fp8_e5m2` is a training run on running sums: `3+5+9=` must become `3,8,17`. Its engine kept its memory of the
# text, the KV cache, in 8 bits, so it rounds coarsely; its trainer used 32 bits. `bf16` is a run on plain addition; its
# engine used 16 bits.


# %%
def load(name, n=-1):
    """The n-th recorded step of a run, by default the last; log-probs in float64, so that differences are exact."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[n])
    pair = {key: record.batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return record, record.batch.replace(**pair)


record, batch = load("kv_fp8_e5m2")
config = preset("decoupled_token_is")  # a common correction
result = correct(batch, config)  # what the trainer calls in every step
d, mask = result.log_ratio, batch.response_mask

# %% tags=["hide-input"]
row, column = divmod(int(d.abs().argmax()), d.shape[1])
q_there, p_there = (float(batch.tensors()[key][row, column].exp()) for key in ("rollout_log_probs", "old_log_probs"))


def size(batch, seed):
    """mean |d|: of the step itself, and of 1000 bootstrap samples of its answers."""
    d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
    drawn = resampled(len(d), 1000, seed).double()
    return (drawn @ (d.abs() * mask).sum(-1)) / (drawn @ mask.sum(-1).double())


last, first, bf16 = size(batch, 0), size(load("kv_fp8_e5m2", 0)[1], 1), size(load("bf16")[1], 2)
say(f"""
The largest disagreement of the last recorded step: to `{record.prompts[row]}` the engine wrote
`{record.responses[row]}`. Its {column + 1}th token, `{record.responses[row][column]}`, had the probability
{q_there:.2f} in the engine and {p_there:.3f} in the trainer. Most tokens are not like that: the mean $|d|$ is
{last[0]:.3f}, which is still {above(interval_of(last / bf16, signed=False), 1, 0)} times that of `bf16`. (Brackets hold
a 95 % interval.) In the first recorded step it was {above(interval_of(first / last, signed=False), 1, 1)} times that of
the last: as the model changes, so does the mismatch.
""")

# %% [markdown]
# **Look for** the tower in the middle: nearly all ratios are almost 1. (Both axes are logarithmic.) Blue are tokens
# that the engine writes too often for the trainer, orange those that it writes too rarely. The dashed line is the upper
# bound of this correction: a larger ratio (grey outline) gets the bound as its weight.

# %%
drawn = weight_histogram(batch, result, config)
picture(drawn.update_traces(showlegend=False, selector={"name": "rejected"}))  # this correction rejects nothing

# %% [markdown]
# ## Right on average, noisy in each sample
#
# The ratios must average to 1, up to chance. How far chance typically moves an average is its **standard error**: the
# standard deviation of the $N$ ratios, over $\sqrt{N}$.

# %%
steps = runs.list_steps(runs.find_run("kv_fp8_e5m2"))
batches = [load("kv_fp8_e5m2", n)[1] for n in range(len(steps))]
ratios = [ratio(correct(b, config).log_ratio)[b.response_mask] for b in batches]  # of every real token, in one row
averages = [float(r.mean()) for r in ratios]
errors = [float(r.std()) / len(r) ** 0.5 for r in ratios]

show("step", steps)
show("average ratio", averages)
show("standard error", errors)
show("largest ratio", [float(r.max()) for r in ratios], digits=1)

# %% tags=["hide-input"]
assert all(abs(average - 1) < 2 * error for average, error in zip(averages, errors, strict=True))
heaviest = max(range(len(ratios)), key=lambda n: ratios[n].max())
largest, count = float(ratios[heaviest].max()), len(ratios[heaviest])
say(f"""
All averages are 1 within two standard errors. But look at step {steps[heaviest]}. One token of {count:,} has the ratio
{largest:.0f}. Alone it adds {largest:.0f}/{count:,} = {largest / count:.4f} to the average, about as much as the
standard error, {errors[heaviest]:.4f}. A sample with such a token comes out high, one without comes out low. **Weights
that are right on average can be wrong in any one sample.** This noise is what corrections are for.
""")

# %% [markdown]
# ## Predict, then reveal
#
# The last step again, and whole answers of $T$ tokens. **Write down a guess:**
#
# 1. How large, typically, is the logarithm of the product: as large as $d$ of one token, $\sqrt{T}$ times, $T$ times?
# 2. And that of the geometric mean?
# 3. Does the average of the products come out at 1?


# %%
def typical(x):
    """The root of the mean square."""
    return float(x.square().mean().sqrt())


log_product = over_sequence(d, mask, "sum")
products = ratio(log_product)

show("T, on average", float(mask.sum(-1).double().mean()), digits=1)
show("typical |d| of one token", typical(d[mask]), digits=3)
show("typical |log product|", typical(log_product), digits=3)
show("typical |log geometric mean|", typical(over_sequence(d, mask, "mean")), digits=3)
show("average log product", float(log_product.mean()), digits=3)
show("average product", float(products.mean()), "±", float(products.std() / len(products) ** 0.5), digits=3)

# %% tags=["hide-input"]
drawn = resampled(len(d), 1000, 3).double()  # the answers, again and again
lengths, count = mask.sum(-1).double(), len(d)
of_token = ((drawn @ (d.square() * mask).sum(-1)) / (drawn @ lengths)).sqrt()
of_answer = interval_of((drawn @ log_product.square() / count).sqrt() / of_token, signed=False)
of_mean = interval_of((drawn @ (log_product / lengths).square() / count).sqrt() / of_token, signed=False)
leaning = interval_of(drawn @ log_product / count, signed=True)
say(f"""
1. {below(of_answer, float(lengths.min()), 1)} times the size of one token: far less than $T$, and near
   $\\sqrt{{T}}$ = {float(lengths.mean()) ** 0.5:.1f}, because disagreements of both signs cancel in part. But $d$ leans
   to one side: its average is below 0 for any two policies that differ. Here it adds up to {below(leaning)} per answer.
2. {below(of_mean, 1)} times the size of one token. The geometric mean is near 1.
3. Yes, within its interval: {untold(interval_of(drawn @ products / count, signed=False), 1)}. But that is wide: the
   token ratios of this step average to {averages[-1]:.4f}, with a standard error of {errors[-1]:.4f}.
""")

# %% [markdown]
# The longer the answers, the noisier is the product. So corrections bound weights, reject tokens or answers, or use the
# token's ratio or the geometric mean instead. Each accepts some **bias**, an average that is off, for less noise.

# %% [markdown]
# ## Exercise 1: the ratio of an answer
#
# *3 minutes.* `mask` is True on real tokens; the rest is padding, which may hold anything. Return the product of the
# ratios for each row, `(B, T)` → `(B,)`.
#
# <details><summary>Hint 1</summary>Add logarithms instead of multiplying ratios.</details>
# <details><summary>Hint 2</summary>The cell under "Four tokens" did it.</details>


# %%
def answer_ratio(old_log_probs, rollout_log_probs, mask):
    raise NotImplementedError("exercise 1: write answer_ratio, then run this cell and the next.")


# %% tags=["check"]
check(answer_ratio, ANSWER_RATIO)


# %% tags=["solution", "hide-input"]
def answer_ratio_solution(old_log_probs, rollout_log_probs, mask):
    return ratio(over_sequence(log_ratio(old_log_probs, rollout_log_probs, mask), mask, "sum"))


check(answer_ratio_solution, ANSWER_RATIO)

# %% [markdown]
# ## Exercise 2: what would the trainer have earned?
#
# *5 minutes.* From the rewards of the engine's answers and their ratios, both `(B,)`, estimate the average reward that
# the trainer's policy **would** have earned.
#
# <details><summary>Hint 1</summary>It is the equation, with f the reward.</details>
# <details><summary>Hint 2</summary>The last row of the table with X, X, Y, Z.</details>


# %%
def trainer_reward(reward, r):
    raise NotImplementedError("exercise 2: write trainer_reward, then run this cell and the next.")


# %% tags=["check"]
check(trainer_reward, TRAINER_REWARD)


# %% tags=["solution", "hide-input"]
def trainer_reward_solution(reward, r):
    return (r * reward).mean()


check(trainer_reward_solution, TRAINER_REWARD)

# %% [markdown]
# ## Check yourself
#
# **1. A token has $q = 0.2$ and $p = 0.3$. What does its ratio say?**
#
# <details><summary>The trainer would write it less often.</summary>No: p/q = 1.5 is above 1.</details>
# <details><summary>The engine writes it too rarely for the trainer; count it 1.5 times.</summary>Yes.</details>
# <details><summary>It was the best token.</summary>No. The ratio says nothing about rewards.</details>
#
# **2. The ratios of a step average to 1.000. Do the two policies agree?**
#
# <details><summary>Yes: an average of 1 means no mismatch.</summary>No. They average to 1 for every pair of policies. A
# half and a two can hide in there.</details>
# <details><summary>That cannot be told. Look at the spread: mean |d|, or the picture.</summary>Yes. But an average far
# from 1 is an alarm: is the recorded q the one that the token was drawn with?</details>
# <details><summary>Only if the average of d is 0 as well.</summary>Close: over all tokens, yes. But in a sample it is
# noisy.</details>
#
# **3. Each of 64 tokens of an answer has ratio 1.1. What are product and geometric mean?**
#
# <details><summary>Both about 1.1.</summary>No. Only the geometric mean is the ratio of a typical token.</details>
# <details><summary>Product about 446, geometric mean 1.1.</summary>Yes. What leans to one side does not
# cancel.</details>
# <details><summary>Product 70.4, geometric mean 1.1.</summary>No. 64 · 1.1 = 70.4 is the sum of the ratios.</details>
#
# ## In the app
#
# After `make app`, open the same step:
#
# - [the bench](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_token_is): drag the upper bound
#   towards 1; [here](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_token_is&is_upper=1.1) it
#   is almost there;
# - [the run over its steps](http://localhost:8501/?run=kv_fp8_e5m2) and [the bf16 run](http://localhost:8501/?run=bf16).
#
# ## Pitfalls
#
# - **Direction.** Here $r$ is always trainer over engine. Some systems divide the other way.
# - **Which probability.** $q$ must be the one that the token was drawn with, temperature included.
# - **Never written.** Where an engine has $q = 0$ (top-k, top-p), no weight can bring back what it never writes.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: averages of functions of
#    $r$, and their noise.
# 2. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the engine and the trainer disagree, and what it costs.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the options, with the
#    names used here.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks; nothing above needs them.

# %% [markdown]
# ### The equation with symbols, for every p, q and f

# %%
P, Q, F = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in "pqf")
weighted_average = sympy.Add(*(q_a * (p_a / q_a) * f_a for p_a, q_a, f_a in zip(P, Q, F, strict=True)))
average_ratio = sympy.Add(*(q_a * (p_a / q_a) for p_a, q_a in zip(P, Q, strict=True)))
assert sympy.simplify(average_ratio.subs(P[2], 1 - P[0] - P[1]) - 1) == 0  # probabilities add up to 1

show("E_q[(p/q) f] =", str(weighted_average))
show("E_q[p/q] =", str(average_ratio), "= 1")

# %% [markdown]
# ### The cloud of tokens
#
# The second picture of the app: across, the probability in the engine; up, the ratio. **Look for** the shape. Above,
# the cloud narrows to the right, because $p \le 1$ and so $r \le 1/q$. Below there is no such limit: the engine can be
# sure of a token that the trainer would hardly ever write.

# %%
picture(ratio_density(batch))

# %% [markdown]
# ### Why the standard error may count tokens
#
# The tokens of one answer depend on each other. But each ratio averages to 1 whatever came before it, so what two
# ratios differ from 1 by is uncorrelated, and their variances add up. Drawing whole answers again and again agrees.

# %% tags=["hide-input"]
excess = (drawn @ (ratio(d) * mask).sum(-1)) / (drawn @ lengths)
say(f"""
The last step: {averages[-1]:.4f}, standard error {errors[-1]:.4f} from the tokens, and an interval of
{bracketed(interval_of(excess, signed=False), 4)} from drawing answers.
""")
