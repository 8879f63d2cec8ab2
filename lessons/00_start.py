# %% [markdown]
# # 00 · Start
#
# **Claim.** Answers are sampled with one policy, and the gradient is computed for another. The ratio of their two
# probabilities, token by token, is the subject of this project.
#
# *50 minutes · beginner · any laptop; no GPU, no network.* You need to know what a probability is. You write Python
# only in the exercises. All letters are listed in [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# ![three policies in time](diagrams/policies.svg)
#
# The first picture is the loop of training. The second one has three policies in order of time, with their other names
# below. This lesson is about $q$ and $p$; lesson 05 explains π.
#
# This is the first of five lessons that lead to a decision about your own run. Next: [lesson
# 01](01_importance_weights.ipynb).
#
# At the end you can
#
# - say which two policies there are, and why their probabilities differ;
# - compute the ratio of a token and of an answer by hand;
# - explain why multiplying by the ratio repairs an average, and a gradient.

# %% tags=["hide-input"]

import sympy
import torch
from exercises.start import ANSWER_RATIO, TRAINER_REWARD
from sentences import above, below, bracketed, reveal, say, untold
from show import picture, show

from rlcorr import CorrectionConfig, correct, preset
from rlcorr.analysis.published import gaps
from rlcorr.figures.canvas import COOL, WARM, figure
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.histograms import weight_histogram
from rlcorr.gradients.bootstrap import interval_of, resampled
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

torch.set_num_threads(1)


# %% [markdown]
# ## First, in the app: break a training run, and heal it
#
# *10 minutes.* Start the app with `make app`. Its page *Lab* trains a network of fifteen hundred parameters in your
# browser, in front of you. The network samples answers, and its training makes right ones more probable. In one respect
# it is like a large system: the answers are sampled with **older weights** than those that are trained. The Lab does
# every run twice, without a correction and with one, on several seeds.
#
# 1. Open the [healthy run](http://localhost:8501/lab?lag=0) and press ▶. Here the sampler has the newest weights.
#    Both curves climb.
# 2. **Write down a guess:** what happens to the curve without a correction if the sampler is sixteen updates behind?
#    Then open [that run](http://localhost:8501/lab?lag=16&ratio=token&bound=cap&threshold=1) and press ▶.
# 3. Drag the threshold. How much does its value matter?
# 4. Lower the learning rate to a tenth, still sixteen updates behind. Does the run still need a correction?
#
# You have now broken a training run and healed it. The threshold limits a number per token, the ratio of two
# probabilities. This lesson explains where these probabilities come from. (The Lab is a toy. Lesson 04 has the same
# question on a real language model.)
#
# ## Two programs, one model
#
# A language model writes one **token** at a time: a word, a part of a word, or a single character. For every possible
# next token it computes a probability, and then one token is sampled with these probabilities. The rule that gives the
# probabilities is called a **policy**.
#
# Reinforcement learning repeats two steps:
#
# 1. The model writes answers, and each answer gets a number, its **reward**.
# 2. The weights of the model move a little along a direction, the **gradient**, so that answers with a high reward
#    become more probable.
#
# Two programs share this work. An **engine**, for example vLLM, writes the answers; it is built for speed. A
# **trainer**, for example PyTorch, computes the gradient; it is built for exactness. Even with the
# same weights, they add the same numbers in a different order and round differently. So the same token, after the same
# text, has two probabilities:
#
# - $q$ is its probability in the engine, which sampled it;
# - $p$ is its probability in the trainer.
#
# ## A sentence of a real model
#
# `smol_bf16_both` is a recorded training run of SmolLM2-135M, a real language model. It learns sums in words. Engine
# and trainer both computed in bfloat16, a format with 16 bits, as most people do. Here is one of its answers, with both
# probabilities of every token. (The run had just begun, so the result in the answer is wrong.)


# %%
def load(name, n=-1):
    """Read the n-th recorded step of a run, by default the last; in float64, so that differences are exact."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[n])
    pair = {key: record.batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return record, record.batch.replace(**pair)


record, batch, row = *load("smol_bf16_both", 0), 3
assert record.tokens is not None
words = record.tokens[row][: int(batch.response_mask[row].sum())]
pairs = (batch.tensors()[key] for key in ("rollout_log_probs", "old_log_probs"))
q_of_word, p_of_word = (log_probs[row, : len(words)].exp() for log_probs in pairs)
show("question", record.prompts[row])
show("answer", record.responses[row])

# %% [markdown]
# **Look for** the two bars of each token: blue is the engine's probability $q$, orange the trainer's $p$. They are
# nearly equal, and hardly ever exactly equal.

# %% tags=["hide-input"]
sides = {"q, engine": (COOL, q_of_word), "p, trainer": (WARM, p_of_word)}
traces = [
    {"type": "bar", "name": name, "y": [round(float(x), 3) for x in values], "marker": {"color": colour}}
    for name, (colour, values) in sides.items()
]
labels = {"tickvals": list(range(len(words))), "ticktext": [word.replace(" ", "␣") for word in words], "tickangle": -60}
drawn = figure(traces, height=330, x=labels, y={"title_text": "probability", "range": [0, 1]}, legend=True)
picture(drawn.update_layout({"barmode": "group", "bargap": 0.3, "margin.b": 80}))
rarest, largest = int(q_of_word.argmin()), int((p_of_word / q_of_word).log().abs().argmax())
say(f"""
␣ is a space. Sampling often picks a token that is not likely: the engine wrote `{words[rarest].strip()}` although its
probability was only {q_of_word[rarest]:.3f}. The largest disagreement in this sentence, relative to the size of the
probability, is at the token `{words[largest].strip()}`: the engine gave it {q_of_word[largest]:.3f}, and the trainer
{p_of_word[largest]:.3f}.
""")

# %% [markdown]
# ## The ratio
#
# The **ratio** of a token is $r = p/q$: the trainer would sample this token $r$ times as often as the engine. Programs
# store logarithms of probabilities, **log-probs**, because probabilities of long texts are too small for a float. Here
# `rollout_log_probs` is $\log q$; `old_log_probs` is $\log p$, computed before the update. Their difference is the
# **log-ratio** $d = \log p - \log q$, and $r = e^d$.
#
# ## Four tokens, by hand
#
# Here is an answer of four tokens, with more disagreement than is usual. Compute the second ratio before you look.

# %%
q = torch.tensor([[0.5, 0.8, 0.5, 0.4]], dtype=torch.float64)  # one row per answer, one column per token
p = torch.tensor([[0.6, 0.4, 0.5, 0.8]], dtype=torch.float64)
mask = torch.ones(1, 4, dtype=torch.bool)  # True: a real token, not padding
d = log_ratio(p.log(), q.log(), mask)

show("r = p/q", ratio(d))
show("product of the four", ratio(over_sequence(d, mask, "sum")))
show("their geometric mean", ratio(over_sequence(d, mask, "mean")))

# %% [markdown]
# The engine writes the second token twice as often as the trainer would. So each time that we see it, we count it as
# half a token. The engine writes the fourth token half as often as the trainer would, so we count it twice.
#
# The probability of a whole answer is the product of the probabilities of its tokens. So the **ratio of the answer** is
# the product of the ratios of its tokens. The **geometric mean** is the $T$-th root of this product, where $T$ is the
# number of tokens. It is the ratio of a typical token of this answer. With logarithms, a product becomes a sum, and the
# root becomes a mean:
#
# $$ \prod_t r_t = e^{\sum_t d_t}, \qquad \Big(\prod_t r_t\Big)^{1/T} = e^{\frac{1}{T}\sum_t d_t} $$
#
# ## The equation
#
# Let $f$ be anything that we average over tokens, for example the reward. The trainer's policy is the one that
# we train. So we need $\mathbb{E}_p[f]$, the average over tokens that are sampled with $p$. But our tokens were sampled
# with $q$. So we multiply $f$ by the ratio. Write the average as a sum over all possible tokens $a$:
#
# $$ \mathbb{E}_q\!\left[\frac{p}{q}\, f\right] = \sum_a q(a)\,\frac{p(a)}{q(a)}\, f(a) = \sum_a p(a)\, f(a)
# = \mathbb{E}_p[f] . $$
#
# In words: multiply each token by its ratio, and the engine's average becomes the trainer's average. How much a
# token counts is its **weight** (not a weight of the model). This method is called **importance sampling**. Two
# consequences:
#
# - With $f = 1$ the equation says that **the ratios average to 1**.
# - The equation needs $q > 0$ wherever $p > 0$: a token that the engine never writes cannot be weighted.
#
# ## What this does to training
#
# By hand: take three possible tokens, or **actions**, X, Y and Z. The engine writes them with the probabilities ½, ¼,
# ¼, the trainer would write them with ¼, ¼, ½, and the rewards are 1, 0, 4. So the ratios are ½, 1, 2. The engine earns
# 1.5 on average, the trainer 2.25. (*More practice* has the table that turns the first number into the second.)
#
# The gradient is an average over sampled actions, too. So a **mismatch** of $q$ and $p$ changes it as well. The model
# has one number for each action; the larger the number, the more probable is the action. Training changes these
# numbers. Lesson 02 derives the rule; here we only use it. If action $a$ is sampled, its own number goes up by
# $1 - p(a)$, and the number of every other action $b$ goes down by $p(b)$. Each of these pushes is multiplied by
# the reward.

# %%
p_of_actions = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
q_of_actions = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
reward = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
pushes = torch.eye(3, dtype=torch.float64) - p_of_actions  # row a: how action a, once sampled, pushes X, Y and Z


def average_push(weights):
    """Return how training moves X, Y and Z on average, if the engine's tokens have these weights."""
    return (q_of_actions * weights * reward) @ pushes


show("action", "X", "Y", "Z")
show("every token has weight 1", average_push(torch.ones(3)))
show("every token has weight r", average_push(torch.tensor([0.5, 1, 2])))

# %% [markdown]
# Look at X. If every token has weight 1, training makes X **more** probable. With the ratio as weight, it makes X
# **less** probable, and that is right, because X earns less than the trainer's average. So a mismatch can make training
# move in the wrong direction, and the ratio repairs it.
#
# ## A recorded run with coarse rounding
#
# `smol_kv_fp8_e5m2` trains the same model on the same sums. Its engine stored its memory of the text, the **KV cache**,
# in 8 bits. So it rounds more coarsely than in `smol_bf16_both`. The function `correct` computes the ratios and the
# weights of a batch, exactly as the trainer does in every step.

# %%
record, batch = load("smol_kv_fp8_e5m2")
config = preset("decoupled_token_is")  # a common correction
result = correct(batch, config)
d, mask = result.log_ratio, batch.response_mask


def size(batch, seed):
    """Return the mean |d| of a step, and of 1000 bootstrap samples of its answers."""
    d, mask = correct(batch, CorrectionConfig()).log_ratio, batch.response_mask
    drawn = resampled(len(d), 1000, seed).double()
    return (drawn @ (d.abs() * mask).sum(-1)) / (drawn @ mask.sum(-1).double())


last, fine = size(batch, 0), size(load("smol_bf16_both")[1], 2)

# %% tags=["hide-input"]
assert record.tokens is not None
row, column = (d.abs() == d.abs().max()).nonzero()[0].tolist()  # the first of equal ones
q_there, p_there = (float(batch.tensors()[key][row, column].exp()) for key in ("rollout_log_probs", "old_log_probs"))
rounded = [gap for gap in gaps() if (gap.format, gap.cause, gap.ours, gap.experts) == ("bfloat16", "rounding", 0, 0)]
published = [(gap.billions, *gap.abs) for gap in rounded if gap.abs and gap.billions]
billions, lows, highs = zip(*published, strict=True)
assert min(lows) < fine[0] < max(highs)
say(f"""
The largest disagreement of the last recorded step: the question was `{record.prompts[row]}`, and the engine wrote
`{record.responses[row]}`. Its {column + 1}th token, `{record.tokens[row][column]}`, had the probability {q_there:.2f}
in the engine and {p_there:.5f} in the trainer. Most tokens are not like that.

- The mean $|d|$ of the step is {last[0]:.3f}. That is {above(interval_of(last / fine, signed=False), 1, 1)} times as
  much as in `smol_bf16_both`. The brackets contain a 95 % interval: with very many answers of the same kind, the
  number would probably be in this range.
- In `smol_bf16_both`, $|d|$ averages {fine[0]:.3f}. That is normal: for models with {min(billions):g} to
  {max(billions):g} billion parameters in bfloat16, others published
  {min(lows):.3f} to {max(highs):.3f} (`rlcorr/analysis/published.toml`).
""")

# %% [markdown]
# **Look for** the high bars in the middle of the next picture: most ratios are close to 1. Both axes are logarithmic.
# Blue bars are tokens with a ratio below 1: the engine writes them more often than the trainer would. Orange bars are
# tokens with a ratio above 1. The green bar in the middle has the tokens with a ratio of nearly 1. The dashed line is
# the upper bound of this correction. Tokens with a larger ratio get the bound as their weight; the grey outline shows
# where they were before.

# %% tags=["hide-input"]
drawn = weight_histogram(batch, result, config)
picture(drawn.update_traces(showlegend=False, selector={"name": "rejected"}))  # this correction rejects nothing

# %% [markdown]
# ## Predict, then reveal
#
# Take the last step again, and now whole answers of $T$ tokens. **Write down a guess:**
#
# 1. How large is the logarithm of the product, typically: as large as $d$ of one token, $\sqrt{T}$ times as large, or
#    $T$ times as large?
# 2. How large is the logarithm of the geometric mean, typically?
# 3. Do the products average to 1?


# %%
def typical(x):
    """Return the root of the mean square."""
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
drawn = resampled(len(d), 1000, 3).double()  # samples of the answers, with replacement
lengths, count = mask.sum(-1).double(), len(d)
root = float(lengths.mean()) ** 0.5
of_token = ((drawn @ (d.square() * mask).sum(-1)) / (drawn @ lengths)).sqrt()
of_answer = interval_of((drawn @ log_product.square() / count).sqrt() / of_token, signed=False)
of_mean = interval_of((drawn @ (log_product / lengths).square() / count).sqrt() / of_token, signed=False)
mean_log = interval_of(drawn @ log_product / count, signed=True)
of_products = interval_of(drawn @ products / count, signed=False)
of_tokens = ratio(d)[mask]  # of every real token, in one row
reveal(f"""
1. It is {untold(of_answer, root, 1)} times as large as $d$ of one token. That is close to $\\sqrt{{T}}$ = {root:.1f},
   and less than $T$, because positive and negative $d$ partly cancel. But if two policies differ, $d$ is negative
   on average: the ratios ½ and 1½ average to 1, but their logarithms to less than 0. (The average is −KL(q‖p):
   lesson 02.) Here $d$ adds up to {below(mean_log)} per answer. In longer answers this part grows like $T$.
2. It is {below(of_mean, 1)} times as large as $d$ of one token. So the geometric mean is close to 1.
3. Yes, as far as this sample can show: their average is {untold(of_products, 1)}, and this interval contains 1. But it
   is wide. The token ratios of the same step average to {of_tokens.mean():.4f}, with a standard error of
   {of_tokens.std() / len(of_tokens) ** 0.5:.4f} (their standard deviation, divided by the root of their number).
""")

# %% [markdown]
# The longer the answers are, the noisier is the product. So corrections bound the weights, or reject tokens or whole
# answers. Instead of the product, some use the token's ratio or the geometric mean. Each of these accepts some
# **bias**, an average that is not quite right, for less noise.
#
# ## Exercise 1: the ratio of an answer
#
# *3 minutes.* All arguments are `(B, T)`: a row for each of $B$ answers, a column for each of $T$ tokens. Shorter
# answers end with **padding**, which may contain anything; there `mask` is False. Return the product of the ratios of
# each row, `(B,)`.
#
# <details><summary>Hint 1</summary>Add logarithms instead of multiplying ratios.</details>
# <details><summary>Hint 2</summary>The cell under "Four tokens, by hand" does this for one answer.</details>


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
# ## In the app
#
# After `make app`, open the same step:
#
# - [the bench](http://localhost:8501/bench?run=smol_kv_fp8_e5m2&step=latest&preset=decoupled_token_is): drag the upper
#   bound towards 1.
#   [Here](http://localhost:8501/bench?run=smol_kv_fp8_e5m2&step=latest&preset=decoupled_token_is&is_upper=1.1) it is
#   almost 1;
# - [the run over its steps](http://localhost:8501/?run=smol_kv_fp8_e5m2) and [the run with fine
#   rounding](http://localhost:8501/?run=smol_bf16_both).
#
# ## Pitfalls
#
# - **Direction.** Here $r$ is always the trainer's probability divided by the engine's. Some systems divide the other
#   way.
# - **The wrong probability.** $q$ must be the probability with which the token was sampled, temperature included.
# - **Tokens that are never written.** If an engine has $q = 0$ for a token (top-k, top-p), no weight can replace it.
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
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### The equation by hand
#
# The three actions X, Y and Z again, with the ratios ½, 1, 2 and the rewards 1, 0, 4. These are four typical tokens of
# the engine:
#
# | | X | X | Y | Z | average |
# |---|---|---|---|---|---|
# | reward | 1 | 1 | 0 | 4 | 1.5 |
# | ratio | ½ | ½ | 1 | 2 | **1** |
# | ratio × reward | ½ | ½ | 0 | 8 | **2.25** |
#
# The trainer's own average is ¼·1 + ¼·0 + ½·4 = 2.25: the weighted average is right. The plain average, 1.5, is the
# engine's.
#
# ### Right on average, noisy in each sample
#
# The ratios must average to 1. In a sample, their average differs from 1 by chance. The **standard error** says by how
# much, typically: it is the standard deviation of the $N$ ratios, divided by $\sqrt{N}$.

# %%
steps = runs.list_steps(runs.find_run("smol_kv_fp8_e5m2"))
batches = [load("smol_kv_fp8_e5m2", n)[1] for n in range(len(steps))]
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
All averages are within two standard errors of 1. But look at step {steps[heaviest]}. One token of {count:,} has the
ratio {largest:.0f}. This token alone adds {largest:.0f}/{count:,} = {largest / count:.4f} to the average. That is
about the whole standard error, {errors[heaviest]:.4f}. A sample with such a token has an average that is too high, and
a sample without one has an average that is too low. **Weights that are right on average can be wrong in any one
sample.** Corrections exist to reduce this noise.
""")

# %% [markdown]
# ### Exercise 2: what would the trainer have earned?
#
# *5 minutes.* You have the rewards of the engine's answers and their ratios, both `(B,)`. Estimate the average reward
# that the trainer's policy **would** have earned.
#
# <details><summary>Hint 1</summary>It is the equation, with the reward as f.</details>
# <details><summary>Hint 2</summary>Look at the last row of the table with X, X, Y, Z.</details>


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
# ### Check yourself
#
# **1. A token has $q = 0.2$ and $p = 0.3$. What does its ratio say?**
#
# <details><summary>The trainer would write it less often.</summary>No. p/q = 1.5 is above 1, so the trainer would write
# it more often.</details>
# <details><summary>The trainer would write it 1.5 times as often as the engine, so it has weight 1.5.</summary>Yes.
# </details>
# <details><summary>It was the best token.</summary>No. The ratio says nothing about rewards.</details>
#
# **2. The ratios of a step average to 1.000. Do the two policies agree?**
#
# <details><summary>Yes: an average of 1 means no mismatch.</summary>No. The ratios average to 1 for every pair of
# policies. A ratio of ½ and a ratio of 2 can both be among them.</details>
# <details><summary>The average does not show it. Look at the spread: mean |d|, or the picture.</summary>Yes. But an
# average that is far from 1 is an alarm: was the token really sampled with the recorded q?</details>
# <details><summary>Only if the average of d is 0 as well.</summary>Nearly. For the exact averages this is right. In a
# sample, the average of d is noisy.</details>
#
# **3. Each of the 64 tokens of an answer has the ratio 1.1. What are the product and the geometric mean?**
#
# <details><summary>Both are about 1.1.</summary>No. Only the geometric mean is the ratio of a typical token.</details>
# <details><summary>The product is about 446, the geometric mean is 1.1.</summary>Yes. Small disagreements of the same
# sign do not cancel, they multiply.</details>
# <details><summary>The product is 70.4, the geometric mean is 1.1.</summary>No. 64 · 1.1 = 70.4 is the sum of the
# ratios.</details>

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.

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
# This is the second picture of the app. The horizontal axis is the probability in the engine, the vertical axis is the
# ratio, and a darker cell has more tokens. As before, blue is below 1 and orange above. **Look for** the shape. Above
# 1, the cloud becomes narrower to the right, because $p \le 1$ and so $r \le 1/q$. Below 1 there is no such limit: the
# engine can be certain of a token that the trainer would hardly ever write.

# %%
axes = {"xaxis.title.text": "probability in the engine, q", "yaxis.title.text": "ratio r = p/q"}
picture(ratio_density(batch).update_layout(axes))

# %% [markdown]
# ### Why the standard error may count tokens
#
# The tokens of one answer depend on each other. But each ratio averages to 1, whatever was written before it. So the
# differences $r - 1$ of two tokens are uncorrelated, and their variances add up. As a check, we sample whole answers
# with replacement, and compare the spread of the average.

# %% tags=["hide-input"]
excess = (drawn @ (ratio(d) * mask).sum(-1)) / (drawn @ lengths)
say(f"""
The last step: the average ratio is {averages[-1]:.4f}, and the standard error computed from tokens is
{errors[-1]:.4f}. Sampling answers gives the interval {bracketed(interval_of(excess, signed=False), 4)}.
""")
