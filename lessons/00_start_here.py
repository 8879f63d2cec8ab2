# %% [markdown]
# # 00 · Start here: one ratio per token
#
# **Claim.** The tokens came from one policy and the gradient is taken for another; the ratio between them, token by
# token, is everything this project is about.
#
# *20 minutes · beginner · any laptop; no GPU, no network.* You need to know what a probability is. Python is shown, not
# required, except in the two exercises.
#
# At the end you can
#
# - say which two policies there are, and why they disagree although they hold the same weights;
# - compute the ratio of a token, and the product and the geometric mean of a whole answer, by hand;
# - explain why counting each token by its ratio repairs an average, and a gradient;
# - read the two pictures that the app opens with.

# %%
import warnings

import sympy
import torch
from exercises.lesson_00 import ANSWER_RATIO, TRAINER_REWARD
from show import picture, show

from rlcorr import CorrectionConfig, correct, evaluate, preset
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.correction import weight_histogram
from rlcorr.losses import reinforce
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)

# %% [markdown]
# ## Two programs, one model
#
# A language model writes one **token** at a time: a word, a part of a word, here a single character. For every possible
# next token it holds a probability, and it draws one. The rule that gives these probabilities is called a **policy**.
#
# Reinforcement learning repeats two steps. The model writes answers, and a program gives each answer a reward. Then the
# weights of the model move a little, along a **gradient**, so that rewarded answers become more probable.
#
# Two different programs do this. An **engine** (vLLM) writes, and is built for speed. A **trainer** (PyTorch) computes
# the gradient, and is built for exactness. Both hold the same weights. But they add numbers in a different order and
# round them to different sizes, so the same token gets slightly different probabilities.
#
# | symbol | in pictures | in the code | what it is |
# |---|---|---|---|
# | $q$ | π_rollout | `rollout_log_probs` is $\log q$ | probability of the token in the engine, which **sampled** it |
# | $p$ | π_old | `old_log_probs` is $\log p$ | probability of the same token, after the same text, in the trainer |
# | $r = p/q$ | ratio | `ratio(log_ratio(…))` | how often the trainer would write it for each time the engine did |
#
# The code keeps logarithms, because a product of sixty probabilities is too small to print. A ratio of probabilities is
# a difference of logarithms: $d = \log p - \log q$, and $r = e^d$.

# %% [markdown]
# ## Four tokens
#
# Here is one answer of four tokens. The disagreement is far too large for a real model, so that you can do the
# arithmetic in your head. Do it for the second token before you run the cell.

# %%
q = torch.tensor([[0.5, 0.8, 0.5, 0.4]], dtype=torch.float64)  # (B, T): one answer, four tokens
p = torch.tensor([[0.6, 0.4, 0.5, 0.8]], dtype=torch.float64)
mask = torch.ones(1, 4, dtype=torch.bool)  # True: a real token, not padding

d = log_ratio(p.log(), q.log(), mask)  # (B, T)
r = ratio(d)

show("token", "first", "second", "third", "fourth")
show("q, engine", q)
show("p, trainer", p)
show("r = p/q", r)

# %% [markdown]
# The second token has ratio 0.5: the engine wrote it twice as often as the trainer would have. If we count it half,
# that is repaired. The fourth has ratio 2: the engine wrote it half as often, so count it twice.
#
# An answer is its tokens, one after another, so its probability is the product of theirs. The **ratio of the answer**
# is the product of the ratios. The **geometric mean** is the fourth root of that product: the ratio of a typical token.
#
# $$ \prod_t r_t = e^{\sum_t d_t}, \qquad \Big(\prod_t r_t\Big)^{1/T} = e^{\frac{1}{T}\sum_t d_t} $$

# %%
product = ratio(over_sequence(d, mask, "sum"))  # (B,)
geometric_mean = ratio(over_sequence(d, mask, "mean"))

show("product", product)
show("geometric mean", geometric_mean)

assert torch.allclose(product, torch.tensor(1.2 * 0.5 * 1 * 2, dtype=torch.float64))
assert torch.allclose(geometric_mean**4, product)

# %% [markdown]
# ## The equation
#
# Let $f$ be anything that we want to average over tokens: a reward, or a direction to move the weights. The trainer
# needs the average under $p$. The tokens were drawn from $q$. Then
#
# $$ \mathbb{E}_q\!\left[\frac{p}{q}\, f\right] = \sum_a q(a)\,\frac{p(a)}{q(a)}\, f(a) = \sum_a p(a)\, f(a)
# = \mathbb{E}_p[f] . $$
#
# In words: weigh each token that the engine wrote by its ratio, and the average is the one of the trainer. This is
# called **importance sampling**. With $f = 1$ it says that **the ratios average to 1**. It needs $q(a) > 0$ wherever
# $p(a) > 0$: what the engine never writes, no weight can bring back.
#
# By hand, with three actions A, B, C. The engine writes them as often as ½, ¼, ¼; the trainer would have ¼, ¼, ½. So
# the ratios are ½, 1, 2. The rewards are 1, 0, 4. Four tokens from the engine are, typically, A, A, B, C:
#
# | | A | A | B | C | average |
# |---|---|---|---|---|---|
# | reward | 1 | 1 | 0 | 4 | 6/4 = 1.5 |
# | ratio | ½ | ½ | 1 | 2 | 4/4 = **1** |
# | ratio × reward | ½ | ½ | 0 | 8 | 9/4 = **2.25** |
#
# The trainer's own average is ¼·1 + ¼·0 + ½·4 = 2.25. The plain average, 1.5, belongs to another policy.
#
# The next three cells check the equation in three ways. Each ends in an assertion; if one failed, the lesson would
# stop.

# %% [markdown]
# ### Check 1, with symbols: for every p, q and f

# %%
P, Q, F = (sympy.symbols(f"{name}_A {name}_B {name}_C", positive=True) for name in "pqf")

weighted_average = sympy.Add(*(q_a * (p_a / q_a) * f_a for p_a, q_a, f_a in zip(P, Q, F, strict=True)))
trainer_average = sympy.Add(*(p_a * f_a for p_a, f_a in zip(P, F, strict=True)))
average_ratio = sympy.Add(*(q_a * (p_a / q_a) for p_a, q_a in zip(P, Q, strict=True)))

assert sympy.simplify(weighted_average - trainer_average) == 0
assert sympy.simplify(average_ratio.subs(P[2], 1 - P[0] - P[1]) - 1) == 0  # probabilities add up to 1

show("E_q[(p/q) f] =", str(weighted_average))
show("E_q[p/q] =", str(average_ratio), "= 1")

# %% [markdown]
# ### Check 2, with numbers: the gradient of three actions
#
# Now $f$ is what training really averages: the reward times $\nabla \log p$, the direction that makes the token more
# probable. The sign $\nabla$ stands for slopes: how much a number changes when each knob of the policy is turned a
# little. The knobs are called logits here, and there is one per action; lesson 01 explains them and derives the rest.
# (`reinforce` is the loss $-f \log p$.) We know all three probabilities, so every average is an exact sum.

# %%
logits = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log().requires_grad_()
q3 = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
reward = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
three = torch.ones(3, dtype=torch.bool)


def gradient(weights, logits):
    """−∇ of the expected loss, tokens drawn from the engine and counted by their weights."""
    loss = (q3 * weights * reinforce(logits.log_softmax(-1), reward)).sum()
    return -torch.autograd.grad(loss, logits)[0]


def true_gradient(logits):
    """∇ Σ p f, without any sampling."""
    return torch.autograd.grad((logits.softmax(-1) * reward).sum(), logits)[0]


r3 = ratio(log_ratio(logits.detach().log_softmax(-1), q3.log(), three))

show("action", "A", "B", "C")
show("ratio", r3)
show("gradient wanted", true_gradient(logits))
show("gradient, every token counts 1", gradient(torch.ones(3), logits))
show("gradient, every token counts r", gradient(r3, logits))

assert torch.allclose(gradient(r3, logits), true_gradient(logits), rtol=0, atol=1e-14)

# %% [markdown]
# Look at A. Without the ratio, training makes A **more** probable. The right gradient makes it **less** probable: A
# pays 1, and the trainer's policy already earns 2.25 on average. The mismatch turned the sign.
#
# One example may be luck, so here are a thousand random trainers.

# %%
generator = torch.Generator().manual_seed(0)
worst = 0.0
for _ in range(1000):
    random_logits = torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_()
    random_r = ratio(log_ratio(random_logits.detach().log_softmax(-1), q3.log(), three))
    worst = max(worst, float((gradient(random_r, random_logits) - true_gradient(random_logits)).abs().max()))

show("largest error below 1e-13", worst < 1e-13)
assert worst < 1e-13

# %% [markdown]
# ## The same on a recorded run
#
# `kv_fp8_e5m2` is a real training run. The task is a running sum: `3+5+9=` must become `3,8,17`. The engine kept its
# memory of the text (the KV cache) in 8 bits, with two bits for the digits of each number, so it rounds coarsely. The
# trainer computed in 32 bits. `bf16` is another run, on plain addition, where the engine computed in 16 bits.
#
# A run holds, for every token, the two log-probs from before anything was corrected.


# %%
def load(name, n=-1):
    """The n-th recorded step of a run, by default the last; log-probs in float64, so that differences are exact."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[n])
    pair = {key: record.batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return record, record.batch.replace(**pair)


record, batch = load("kv_fp8_e5m2")

# %% [markdown]
# `correct` is the function that the trainer calls in every step. Its `log_ratio` is our $d$. Let us look at the token
# where the two programs disagree most, and at its neighbours.

# %%
result = correct(batch, CorrectionConfig())
row, worst_column = divmod(int(result.log_ratio.abs().argmax()), result.log_ratio.shape[1])
length = int(batch.response_mask[row].sum())
written = [*record.responses[row], "<eos>"][:length]  # one token per character, then the end of the answer
assert len(written) == length
shown = range(max(0, worst_column - 4), min(length, worst_column + 3))

show("prompt", record.prompts[row])
show("answer", record.responses[row])
show("token", [written[t] for t in shown])
show("q, engine", [float(batch.rollout_log_probs[row, t].exp()) for t in shown], digits=5)
show("p, trainer", [float(batch.tensors()["old_log_probs"][row, t].exp()) for t in shown], digits=5)
show("r = p/q", [float(ratio(result.log_ratio[row, t])) for t in shown], digits=5)

# %% [markdown]
# The next picture counts all tokens of this step: across, the probability in the engine; up, the ratio. Warm is above
# 1, cool is below, strong colour means many tokens. **Look for** the shape. Above, the cloud narrows to the right: $p$
# is at most 1, so the ratio is at most $1/q$. Below there is no such limit: the engine can be sure of a token that the
# trainer would hardly ever write.

# %%
picture(ratio_density(batch))

# %% [markdown]
# How far apart are the two programs on a typical token? `evaluate` reports it. Compare the first and the last recorded
# step of `kv_fp8_e5m2`, and the last one of `bf16`.

# %%
_, early = load("kv_fp8_e5m2", 0)
_, quiet = load("bf16")


def report(batch):
    config = CorrectionConfig()
    return evaluate(batch, config)[1]


reports = [report(early), report(batch), report(quiet)]
show("", "first", "last", "bf16")
show("tokens", [int(numbers["rollout_corr/tokens"]) for numbers in reports])
show("mean |d|", [numbers["rollout_corr/abs_log_ratio"] for numbers in reports])
show("largest |d|", [numbers["rollout_corr/abs_log_ratio_max"] for numbers in reports], digits=3)
show("average reward", [float(b.tensors()["rewards"].mean()) for b in (early, batch, quiet)], digits=3)

# %% [markdown]
# The 8-bit cache disagrees far more than the 16-bit engine, and the mismatch is not constant: the model changes, and
# the rounding falls on other numbers. So it must be watched in every step.

# %% [markdown]
# ### Check 3, with data: do the ratios average to 1?
#
# The engine drew these tokens from $q$, so the equation with $f = 1$ says that the average of $r$ is 1, up to chance.
# The standard error, which is the standard deviation of $r$ divided by $\sqrt{N}$, says how much chance to expect.
# Tokens of one answer depend on each other; but each ratio averages to 1 whatever came before it, and that is enough.


# %%
def ratios_of(batch):
    """The ratio of every real token, in one row."""
    return ratio(correct(batch, CorrectionConfig()).log_ratio)[batch.response_mask]


def average_and_error(r):
    return float(r.mean()), float(r.std() / len(r) ** 0.5)


for name in ("bf16", "kv_fp8_e5m2"):
    by_step = [ratios_of(load(name, n)[1]) for n in range(len(runs.list_steps(runs.find_run(name))))]
    average, error = average_and_error(torch.cat(by_step))
    show(f"{name}: average ratio, all steps", average, "±", error)
    assert abs(average - 1) < 3 * error

# %% [markdown]
# Both runs agree with the equation. Now look at the recorded steps of `kv_fp8_e5m2` one by one.

# %%
show("step", runs.list_steps(runs.find_run("kv_fp8_e5m2")))
show("average ratio", [average_and_error(r)[0] for r in by_step])
show("standard error", [average_and_error(r)[1] for r in by_step])
show("largest ratio", [float(r.max()) for r in by_step], digits=1)
show("average without it", [float((r.sum() - r.max()) / len(r)) for r in by_step])

averages = [average_and_error(r) for r in by_step]
assert all(abs(average - 1) < 2 * error for average, error in averages)
largest = max(range(len(by_step)), key=lambda n: by_step[n].max())
assert largest == max(range(len(by_step)), key=lambda n: averages[n][1])

# %% [markdown]
# No step is further from 1 than its standard error explains. But look at the step that holds a ratio of 32. That one
# token, of some 7,500, adds $32/7500 = 0.004$ to the average: as much as the standard error of the whole step, which is
# the largest of all. Rare tokens, which the engine almost never writes and the trainer would write often, carry a part
# of the average. A step that draws one comes out high; a step that draws none comes out low, and its standard error,
# computed from what was drawn, cannot know. **Weights that are right on average can be wrong in any one sample.** The
# average needs no repair; the noise does. That is what corrections are for.

# %% [markdown]
# ## Predict, then reveal
#
# The last step of `kv_fp8_e5m2` has answers of 59 tokens on average. **Write down a guess:**
#
# 1. How large, typically, is $\log \prod_t r_t$ of a whole answer? As large as $d$ of one token, $\sqrt{59} \approx 8$
#    times that, or 59 times?
# 2. Is the logarithm of the geometric mean larger or smaller than $d$ of one token?
# 3. The equation holds for whole answers too. Does the average of the products come out at 1?
#
# Then run the cell.

# %%
rows = batch.response_mask.any(-1)
log_product = over_sequence(result.log_ratio, batch.response_mask, "sum")[rows]
log_geometric_mean = over_sequence(result.log_ratio, batch.response_mask, "mean")[rows]
all_d = result.log_ratio[batch.response_mask]
products = ratio(log_product)


def typical(x):
    """The root of the mean square."""
    return float(x.square().mean().sqrt())


show("tokens per answer, on average", float(batch.response_mask.sum(-1)[rows].double().mean()), digits=1)
show("typical |d| of one token", typical(all_d), digits=3)
show("typical |log product|", typical(log_product), digits=3)
show("typical |log geometric mean|", typical(log_geometric_mean), digits=3)
show("average d of one token", float(all_d.mean()), digits=3)
show("average log product", float(log_product.mean()), digits=3)
show("answers with a product below 0.1", int((products < 0.1).sum()), "of", len(products))
show("average product", float(products.mean()), "±", float(products.std() / len(products) ** 0.5), digits=3)

# %% [markdown]
# Two things add up in the product. Disagreements of both signs cancel in part, and what is left of them grows like
# $\sqrt{T}$. But $d$ also leans to one side: its average is below 0 whenever the policies differ, and this part grows
# like $T$. Together: nine times the size of one token. The geometric mean divides by $T$, and stays near 1.
#
# The average of the products comes out at 1, within its standard error: the equation holds for whole answers, too. But
# that error is 0.09. For the token ratios of this step it was 0.0012, so the products leave the average over seventy
# times less certain.
#
# That is why nobody multiplies the ratios of a long answer and leaves it at that. Corrections bound the weights, reject
# tokens or answers, or use the token's ratio or the geometric mean in place of the product. Each choice pays with some
# error for less noise. The choice is what this project lets you see.
#
# Here are the token ratios of this step again, as the app shows them: counted over a logarithmic axis, with the upper
# bound 2 of the most common correction. Weights above the bound become the bound.

# %%
config = preset("decoupled_token_is")
picture(weight_histogram(batch, correct(batch, config), config))

# %% [markdown]
# ## Exercise 1: the ratio of an answer
#
# *3 minutes.* Answers have different lengths, so a batch is padded: `mask` is True on real tokens, and padding may hold
# anything. Return the product of the ratios for each row, `(B, T)` → `(B,)`.
#
# <details><summary>Hint 1</summary>Add logarithms instead of multiplying ratios.</details>
# <details><summary>Hint 2</summary>The cell under "Four tokens" did it: three functions of <code>rlcorr.ratios</code>,
# one inside the other.</details>


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
# *5 minutes.* The engine's answers have rewards. Estimate the average reward that the trainer's policy **would** have
# earned, from the same answers and their ratios. Nothing new may be sampled. `reward` and `r` are both `(B,)`.
#
# <details><summary>Hint 1</summary>It is the equation, with f the reward.</details>
# <details><summary>Hint 2</summary>The last row of the table with A, A, B, C.</details>


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
# The same on the run: what the engine's answers earned, and what the trainer's policy would have earned. The estimate
# costs no new answers, but look at its error: more than twice that of the plain average.

# %%
rewards = batch.tensors()["rewards"].double()[rows]
weighted = products * rewards

show("engine's average reward", float(rewards.mean()), "±", float(rewards.std() / len(rewards) ** 0.5), digits=3)
show("trainer's, estimated", float(weighted.mean()), "±", float(weighted.std() / len(weighted) ** 0.5), digits=3)

# %% [markdown]
# ## Check yourself
#
# **1. A token has $q = 0.2$ and $p = 0.3$. What does its ratio say?**
#
# <details><summary>The trainer would have written it less often.</summary>No. The ratio is p/q = 1.5, above 1: the
# trainer finds it more probable than the engine did.</details>
# <details><summary>The engine wrote it too rarely for the trainer; count it 1.5 times.</summary>Yes. The trainer would
# have written it 1.5 times as often.</details>
# <details><summary>It was the best token.</summary>No. The ratio compares two policies on the token that was drawn. It
# says nothing about rewards, nor about the other tokens.</details>
#
# **2. The ratios of a step average to 1.000. Do the two policies agree?**
#
# <details><summary>Yes: an average of 1 means no mismatch.</summary>No. They average to 1 for every pair of policies;
# check 1 proved it. A half and a two can hide in there.</details>
# <details><summary>It says nothing about agreement. Look at the spread: mean |d|, or the picture.</summary>Yes. But an
# average far from 1 in a large sample is an alarm: is the recorded q the one that the token was drawn with?</details>
# <details><summary>Only if the average of d is 0 as well.</summary>Close. The average of d is 0 only when the policies
# agree, and otherwise below 0. But on a sample it is noisy, and it may come out above 0 (Schulman calls −d
# k1).</details>
#
# **3. Every token of an answer has ratio 1.1, and there are 64 of them. What are product and geometric mean?**
#
# <details><summary>Both about 1.1.</summary>No. Only the geometric mean is the ratio of a typical token.</details>
# <details><summary>Product about 446, geometric mean 1.1.</summary>Yes. 1.1 to the 64th is about 446. A lean to one
# side does not cancel, and the product gives this one answer the voice of hundreds.</details>
# <details><summary>Product 70.4, geometric mean 1.1.</summary>No. 64 · 1.1 = 70.4 is the sum of the ratios; the
# probability of an answer is a product.</details>

# %% [markdown]
# ## In the app
#
# Start it with `make app`, then open the same step:
#
# - [the bench, with this preset](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_token_is):
#   drag the upper bound towards 1 and watch how many tokens it touches;
# - [the same with the bound at 1.1](http://localhost:8501/bench?run=kv_fp8_e5m2&step=latest&preset=decoupled_token_is&is_upper=1.1);
# - [the run over its steps](http://localhost:8501/?run=kv_fp8_e5m2) and, for contrast,
#   [the bf16 run](http://localhost:8501/?run=bf16).
#
# ## Pitfalls
#
# - **Direction.** Here $r$ is always trainer over engine. Some systems divide the other way; their bounds are then
#   reciprocals.
# - **Which probability.** $q$ must be the probability that the token was really drawn with, temperature included.
#   Otherwise the ratios do not average to 1, and no weight is right.
# - **Padding.** Sums run over the mask. One padded position that slips in changes the product of its answer.
# - **Precision.** Subtract in at least 32 bits. In bfloat16 there is no number between 1 and 1.0078, so a mismatch of
#   0.1 % cannot be seen, let alone bounded.
# - **Never written.** If the engine is cut to its most probable tokens (top-k, top-p), $q = 0$ elsewhere, and the ratio
#   cannot repair what was never drawn.
#
# ## References
#
# 1. John Schulman, [Approximating KL Divergence](http://joschu.net/blog/kl-approx.html), 2020: averages of functions of
#    $r$, and their noise.
# 2. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the engine and the trainer disagree, and what it costs.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the options, with the
#    names used here.
