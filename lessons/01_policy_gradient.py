# %% [markdown]
# # 01 · The policy gradient: a derivative that one can sample
#
# **Claim.** The derivative of an average reward is itself an average, that of advantage times ∇ log π. So it can be
# estimated from sampled answers, and subtracting a baseline changes its noise but not its average.
#
# *100 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00, and you need to know what a derivative
# is. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - derive the gradient from which every method of this course starts;
# - compute a score, a baseline and an advantage by hand;
# - explain why a baseline may reduce the noise or increase it;
# - explain why the loss that is differentiated does not measure success.

# %% tags=["hide-input"]
from dataclasses import replace

import sympy
import torch
from count_on import END, LONGEST, START
from curves import curves
from exercises.lesson_01 import ADVANTAGES, BEST_BASELINE, SOFTMAX_SCORE, TOKEN_MEAN_LOSS
from exercises.mini_checks import LOG_PROBS, SAMPLE, described, scored
from sentences import above, below, say, untold
from show import picture, show

from rlcorr import CorrectionConfig
from rlcorr.config import LossConfig
from rlcorr.figures.canvas import REJECTED, vertical_line
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval, interval_of, resampled
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import report
from rlcorr.losses.advantages import group_normalised, leave_one_out
from rlcorr.losses.per_token import reinforce
from rlcorr.masked import masked_sum
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(1)

# %% [markdown]
# ## Three actions, by hand
#
# These are the actions X, Y, Z of lesson 00. The trainer's probabilities are ¼, ¼, ½, and the rewards $R$ are 1, 0, 4.
# So the average reward is $J$ = ¼·1 + ¼·0 + ½·4 = 2.25. Training should increase $J$. In this lesson there is only one
# policy, π: the same policy samples and is trained. (Lesson 00 had two.)
#
# Probabilities must add up to 1, so we cannot change one of them alone. Instead, a model computes one number per
# action, the **logit** $z$, which may be any number. The **softmax** turns logits into probabilities:
#
# $$ \pi_a = \frac{e^{z_a}}{e^{z_X} + e^{z_Y} + e^{z_Z}}, \qquad J = \sum_a \pi_a\, R_a . $$
#
# The logits are what training changes here. Change one logit a little, and $J$ changes a little. The change of $J$ per
# change of the logit is a slope. The three slopes together are the **gradient** $\nabla J$. The cell measures them.

# %%
z = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
R = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
pi = z.softmax(-1)


def average_reward(z):
    return (z.softmax(-1) * R).sum()


nudges = 1e-5 * torch.eye(3, dtype=torch.float64)  # one logit at a time, a little
slopes = [float(average_reward(z + nudge) - average_reward(z - nudge)) / 2e-5 for nudge in nudges]

show("action", "X", "Y", "Z")
show("slope of the average reward", slopes)
show("probability × (reward − average)", pi * (R - average_reward(z)))

# %% [markdown]
# The two lines agree. So the slope for an action is: how often the action is taken, times how much more than the
# average it earns.
#
# ## The equation
#
# A language model has far too many answers to list. We can only **sample** some, and look at their rewards. A sample is
# enough to estimate an average. But how can a sample estimate a slope? If we change a logit, the probabilities change,
# but the rewards of the answers that we have stay the same.
#
# A logarithm solves this. The derivative of a logarithm is $\nabla \log \pi = \nabla \pi / \pi$. Multiply by $\pi$:
# $\nabla \pi = \pi\, \nabla \log \pi$. Put this into $\nabla J$. Now every term has a probability in front, so the sum
# is again an average:
#
# $$ \nabla J = \sum_a R_a \nabla \pi_a = \sum_a \pi_a\, R_a \nabla \log \pi_a = \mathbb{E}_\pi[\,R\, s\,],
# \qquad s = \nabla \log \pi . $$
#
# The vector $s$ is the **score** of an action. It is the direction that makes this action more probable. For a softmax,
# $\log \pi_a = z_a - \log \sum_j e^{z_j}$. The derivative of the sum's logarithm by $z_j$ is $\pi_j$. So the derivative
# of $\log \pi_a$ by $z_j$ is $1 - \pi_j$ if $j$ is the action itself, and $-\pi_j$ if it is another one. (This is the
# push of lesson 00.)
#
# ### Four samples, by hand
#
# We sampled X, Y, Z and Z, and look at the first number of each score, that of the logit of X:
#
# | logit of X | X | Y | Z | Z | average |
# |---|---|---|---|---|---|
# | score | ¾ | −¼ | −¼ | −¼ | **0** |
# | reward | 1 | 0 | 4 | 4 | 2.25 |
# | reward × score | ¾ | 0 | −1 | −1 | **−0.3125** |
#
# The average, −0.3125, is the slope that the first cell measured. Each sample raises the probability of its own action
# in proportion to its reward, and lowers all others.
#
# ## A baseline
#
# Scores average to 0, because the probabilities always add up to 1:
#
# $$ \sum_a \pi_a\, s_a = \sum_a \nabla \pi_a = \nabla \sum_a \pi_a = \nabla 1 = 0 . $$
#
# So we may subtract a constant $b$, the **baseline**, from every reward: $(R - b)\,s$ has the same average as $R\,s$,
# because $b$ times 0 is 0. But its **variance** changes. The variance is the mean squared distance of one sample from
# the average; here it is added up over the three logits.

# %%
scores = torch.eye(3, dtype=torch.float64) - pi  # (3, 3): row a is the score of action a


def mean_and_variance(b):
    """Return mean and variance of (R − b) s for one sample; the variance is added up over the logits."""
    pushes = (R - b)[:, None] * scores
    mean = pi @ pushes
    return mean, float(pi @ (pushes - mean).square().sum(-1))


for baseline in (0.0, 2.25, 10.0):
    mean, variance = mean_and_variance(baseline)
    show(f"baseline {baseline}: average", mean)
    show("… and variance", variance, digits=2)

# %% [markdown]
# The average is the same three times, and the variance is very different. As a function of $b$ the variance is a
# parabola. Its lowest point is at
#
# $$ b^* = \frac{\mathbb{E}[R\,\|s\|^2]}{\mathbb{E}[\|s\|^2]} , $$
#
# which is an average of the rewards, too, but each reward is weighted by the squared length of its score. (The appendix
# proves it.)
#
# ## Whole answers
#
# The probability of an answer is a product over its tokens. The logarithm of a product is a sum, so the score of an
# answer is a sum over its tokens: $s = \sum_t s_t$.
#
# Take any beginning of an answer. The score of the *next* token averages to 0, as for X, Y and Z. So the baseline of
# token $t$ may depend on everything that was written **before** $t$. It must not depend on token $t$ itself. Reward
# minus baseline is called the **advantage** $A$:
#
# $$ \nabla J = \mathbb{E}\Big[\sum_t A_t\, s_t\Big] . $$
#
# Where does the baseline come from? There are two usual sources:
#
# - a **critic**, a second model that predicts the reward from what was written so far;
# - the **group**, the other answers to the same prompt. Leave-one-out (RLOO) takes the mean of the *other* answers,
#   GRPO the mean of all.
#
# Optimisers make a **loss** smaller, and we want $J$ to become larger. So the loss is $-A \log \pi$, averaged over
# tokens, and $A$ is treated as a constant. Its derivative is what we want, with a minus sign. The **value** of this
# loss means nothing: another baseline gives another value, and the same average derivative.
#
# ## The same on a recorded run
#
# `control_fp32` trains a tiny model on sums: `12+35=` must become `47`. A right answer earns 1, a wrong one 0. Engine
# and trainer compute in 32 bits, so the tokens come from the policy that is differentiated, and there is no mismatch.
#
# A score has as many numbers as the model has weights. That is too many to store for every token, so the run stores a
# **sketch** of each score: $K$ random sums of these numbers. A sketch is enough to compute averages exactly, and
# lengths approximately (lesson 10).


# %%
def load(name):
    """Return the last sketched step of a run, in float64: batch and sketch."""
    run = runs.find_run(name)
    step = last_sketch(run)
    batch, sketch = runs.read_step(run, step).batch, read_sketch(run, step)
    pair = {key: batch.tensors()[key].double() for key in ("old_log_probs", "rollout_log_probs")}
    return batch.replace(**pair), replace(sketch, scores=sketch.scores.double())


def pushes(batch, sketch, advantages):
    """Return Σ_t A_t s_t of each answer, (B, K), for advantages (B,)."""
    whole = LossConfig(loss_agg_mode="seq-mean-token-sum")  # add up the tokens of an answer
    per_token = batch.replace(advantages=advantages[:, None].expand(batch.response_mask.shape))
    return contributions(per_token, sketch, [CorrectionConfig()], whole)[0].u


# %% tags=["hide-input"]
batch, sketch = load("control_fp32")
rewards = batch.tensors()["rewards"].double()
answer_scores = pushes(batch, sketch, torch.ones_like(rewards))
prompt = torch.unique(batch.tensors()["prompt_ids"], dim=0, return_inverse=True)[1]  # number of each answer's prompt
run = runs.find_run("control_fp32")
updated = updated_batch(run, last_sketch(run))
of_step = report(updated, read_sketch(run, last_sketch(run)), CorrectionConfig(), batch_sizes=[len(rewards)])
say(f"""
The last step has {len(rewards)} answers to {int(prompt.max()) + 1} prompts, and {rewards.mean():.0%} of them are right.
Each answer has a reward in `rewards`, a row of `answer_scores` with {sketch.directions} numbers, and the number of its
prompt in `prompt`.

How noisy is the gradient of this step? We measured the true gradient on many other answers. The distance between the
step's gradient and its average (one standard deviation) is {above(of_step.noise[0], 1, 1)} times the length of the true
gradient. (The brackets contain a 95 % interval.)
""")

# %% [markdown]
# ## Why a baseline?
#
# **The zero of a reward is arbitrary.** Give every answer ten points more. Nothing that we want to learn has changed,
# but without a baseline every score is now multiplied by a large number, and the variance grows enormously. With the
# mean subtracted, nothing changes at all. So everybody subtracts a baseline. But which zero is the best one is not
# clear beforehand, and it need not be the mean, as the next example shows.
#
# ## Predict, then reveal
#
# **Write down a guess:**
#
# 1. We subtract the mean reward from all rewards. Does the variance of $(R - b)\,s$ become smaller or larger, and how
#    much?
# 2. Instead, we subtract from each reward the mean of the *other* answers to the same prompt. And now?
# 3. We add ten to every reward, without a baseline. What happens to the average of $R\,s$?
# 4. Which scores are longer: those of right answers, or those of wrong ones?
#
# **Look for** the lowest point of the curve, and for the two dotted lines: the best baseline and the mean reward.


# %%
def variance_of(advantages):
    """Return the variance for one answer, added up over all directions."""
    return float(pushes(batch, sketch, advantages).var(0).sum())


squared_lengths = answer_scores.square().sum(-1)
best = float((rewards * squared_lengths).sum() / squared_lengths.sum())
show("variance: no baseline", variance_of(rewards), digits=0)
show("minus the mean reward", variance_of(rewards - rewards.mean()), digits=0)
show("minus the others of the same prompt", variance_of(leave_one_out(rewards, prompt)), digits=0)
show("10 added", variance_of(rewards + 10), digits=0)

# %% tags=["hide-input"]
grid = [0.05 * number for number in range(-4, 21)]
line = {"variance": [variance_of(rewards - b) for b in grid]}
drawn = curves(grid, line, x_name="baseline b (a right answer earns 1)", y_name="variance of (R − b) s")
dotted = {"colour": REJECTED, "dash": "dot", "width": 2}
marks = [vertical_line(x=best, label="best", side="left", **dotted)]
marks += [vertical_line(x=float(rewards.mean()), label="mean reward", side="right", **dotted)]
picture(drawn.update_layout(shapes=marks))


def resample(batch, sketch):
    """Return four quotients with their intervals; the bootstrap draws prompts, with all answers to them.

    Variance with the mean reward subtracted, and with the others of the prompt subtracted, over that without a
    baseline; the best baseline over the mean reward; the mean ‖s‖² of wrong answers over that of right ones.
    """
    R = batch.tensors()["rewards"].double()
    number = torch.unique(batch.tensors()["prompt_ids"], dim=0, return_inverse=True)[1]
    s = pushes(batch, sketch, torch.ones_like(R))
    n, right = s.square().sum(-1), torch.eq(R, R.max()).double()
    share = resampled(int(number.max()) + 1, 1000, 1).double()[:, number]  # how often each answer is drawn
    share /= share.sum(-1, keepdim=True)

    def variance(advantages):
        """Return the variance of A s, each sample with its own advantages, (1000, B) or (B,)."""
        counted = share * advantages
        return (counted * advantages) @ n - (counted @ s).square().sum(-1)

    none = variance(R)
    quotients = (
        variance(R - (share @ R)[:, None]) / none,
        variance(leave_one_out(R, number)) / none,
        (share @ (R * n)) / (share @ n) / (share @ R),
        (share @ ((1 - right) * n)) / (share @ (1 - right)) / ((share @ (right * n)) / (share @ right)),
    )
    return [interval_of(quotient, signed=False) for quotient in quotients]


noise, of_others, lower, longer = resample(batch, sketch)
EIGHTY = "async", "kv_fp8", "stale_4", "stale_head", "temperature_raw", "top_p"  # several answers to each of 80 sums
others = [*EIGHTY, "bf16", "kv_fp8_e5m2", "moe_bf16", "moe_replay"]  # all that have a sketch
elsewhere = {name: resample(*load(name)) for name in others}
by_mean = [quotients[0] for quotients in elsewhere.values()]
by_group = [elsewhere[name][1] for name in EIGHTY]
rises, falls = sum(x.low > 1 for x in by_mean), sum(x.high < 1 for x in by_mean)
assert all(quotients[2].high < 1 for quotients in elsewhere.values())
correct_shares = [float(load(name)[0].tensors()["rewards"].mean()) for name in ("control_fp32", *EIGHTY)]
say(f"""
1. It became **{above(noise, 1, 0)} times** as large. In the {len(others)} other runs with sketches it is significantly
   larger in {rises} and significantly smaller in {falls}. *Significantly* means that the 95 % interval excludes 1.
2. It became {above(of_others, 1, 0)} times as large. In {len(EIGHTY)} other runs with several answers to a prompt, it
   is significantly larger in {sum(x.low > 1 for x in by_group)} and significantly smaller in
   {sum(x.high < 1 for x in by_group)}.
3. The average stays the same. The variance is on the same parabola, at $b = -10$.
4. The scores of wrong answers: their squared length is {above(longer, 1, 0)} times as large. A score is long if the
   policy was not certain of its token. Without a baseline, a wrong answer has reward 0, so its long score does not
   appear in the gradient. With a baseline it does. So the best baseline here is small: {below(lower, 1)} times the mean
   reward. It is significantly below the mean reward in all other runs, too.
""")

# %% [markdown]
# ## Why did it get worse here?
#
# A baseline may reduce the noise or add to it. Two things decide which. **The zero:** here a wrong answer earns exactly
# 0, which happens to be a good zero for these policies. With ten points more (the last printed line) it would not be.

# %% tags=["hide-input"]
say(f"""
**These policies are nearly done.** In `control_fp32` and the other runs with eighty sums, {min(correct_shares):.0%} to
{max(correct_shares):.0%} of the answers are right at this step, and the policies know their prompts by heart. The
scores of right answers are short, and those of wrong answers are long. Early in training, most answers are wrong and
the mean reward is close to 0, so the picture may be different there. We have not measured it.
""")

# %% [markdown]
# ## What a mismatch changes
#
# Now let an engine sample with $q$, while the trainer differentiates $p$. Then the scores no longer average to 0, so
# subtracting a baseline biases the gradient. If each token is weighted by its ratio, the scores average
# to 0 again: $\sum_a q_a \frac{p_a}{q_a} s_a = \sum_a p_a s_a = 0$. Lesson 02 shows what the weights cost.

# %% [markdown]
# ## Exercise 1: the score of a softmax
#
# *4 minutes.* You get a row of logits per sample, `(B, V)`, and the number of the action that was sampled, `(B,)`.
# There are $B$ samples and $V$ possible actions. Return the score, one number per logit, `(B, V)`.
#
# <details><summary>Hint 1</summary>It is 1 at the sampled action and 0 elsewhere, minus the probabilities
# everywhere.</details>
# <details><summary>Hint 2</summary><code>torch.nn.functional.one_hot(action, V)</code> gives the ones.</details>


# %%
def softmax_score(logits, action):
    raise NotImplementedError("exercise 1: write softmax_score, then run this cell and the next.")


# %% tags=["check"]
check(softmax_score, SOFTMAX_SCORE)


# %% tags=["solution", "hide-input"]
def softmax_score_solution(logits, action):
    return torch.nn.functional.one_hot(action, logits.shape[-1]) - logits.softmax(-1)


check(softmax_score_solution, SOFTMAX_SCORE)

# %% [markdown]
# ## Exercise 2: the baseline with the least noise
#
# *4 minutes.* Estimate $b^*$, a number, from the rewards `(B,)` and the scores `(B, K)` of sampled answers.
#
# <details><summary>Hint 1</summary>Weight each reward by the squared length of its score.</details>
# <details><summary>Hint 2</summary>Both averages divide by the same number of answers, so you can use
# sums.</details>


# %%
def best_baseline(reward, scores):
    raise NotImplementedError("exercise 2: write best_baseline, then run this cell and the next.")


# %% tags=["check"]
check(best_baseline, BEST_BASELINE)


# %% tags=["solution", "hide-input"]
def best_baseline_solution(reward, scores):
    lengths = scores.square().sum(-1)
    return (reward * lengths).sum() / lengths.sum()


check(best_baseline_solution, BEST_BASELINE)
assert abs(best_baseline_solution(rewards, answer_scores) - best) < 1e-12

# %% [markdown]
# ## Exercise 3: the loss of a batch
#
# *4 minutes.* Return the mean of $-A \log \pi$ over all **real** tokens. All arguments are `(B, T)`; padding may
# contain anything.
#
# <details><summary>Hint 1</summary>Select before you multiply: a nan in the padding makes the whole sum
# nan.</details>
# <details><summary>Hint 2</summary><code>x[mask]</code> is a flat list of the real tokens.</details>


# %%
def token_mean_loss(log_probs, advantages, mask):
    raise NotImplementedError("exercise 3: write token_mean_loss, then run this cell and the next.")


# %% tags=["check"]
check(token_mean_loss, TOKEN_MEAN_LOSS)


# %% tags=["solution", "hide-input"]
def token_mean_loss_solution(log_probs, advantages, mask):
    return reinforce(log_probs[mask], advantages[mask]).mean()


check(token_mean_loss_solution, TOKEN_MEAN_LOSS)

# %% [markdown]
# ## mini.py, pieces 1 to 3: draw, score, compare
#
# From here to lesson 13 you write a corrected training loop, from an empty file: `lessons/mini.py`. Each piece is
# checked in its lesson. When a check says "Right.", copy the function into the file, below the line of its lesson. The
# imports are there already. `python lessons/mini.py` says which pieces are yours, and trains with them.
#
# A reminder of lesson 00: the answers of a batch have different lengths, so they are rows of one table of $T$ columns.
# What follows the end of a short answer is **padding**, and the **mask** is True on real tokens only.
#
# The task is in `count_on.py`: prompt 3 asks to count in steps of 3, modulo 8, until 0 comes: 3, 6, 1, 4, 7, 2, 5, 0,
# and then the token END. So answers have several lengths. The network is given: `policy(prompts, before, places)`
# returns the logits of the next token from the prompt, the token before it and its place; all three are tensors of
# integers, of one shape.
#
# *10 minutes.* **`sample`**: draw one answer to every prompt, `(B,)`. At the first place, the token before it is
# `START`. Draw at every one of the `LONGEST` places, from the softmax of the logits in float64. Return the tokens,
# their log-probs, and a mask that is True up to and including END; all are `(B, LONGEST)`.
#
# <details><summary>Hint 1</summary><code>logp.exp().multinomial(1, generator=generator)</code> draws one token per row,
# and <code>logp.gather(-1, tokens)</code> picks its log-prob.</details>
# <details><summary>Hint 2</summary>Keep a vector that says which answers have not ended, and set it after the mask of
# this place is stored.</details>


# %%
def sample(policy, prompts, generator):
    raise NotImplementedError("mini.py: write sample, then run this cell and the next.")


# %% tags=["check"]
check(described(sample), SAMPLE)


# %% tags=["solution", "hide-input"]
@torch.no_grad()
def sample_solution(policy, prompts, generator):
    before, going = torch.full_like(prompts, START), torch.ones_like(prompts, dtype=torch.bool)
    columns = []
    for place in range(LONGEST):
        logp = policy(prompts, before, torch.full_like(prompts, place)).double().log_softmax(-1)
        before = logp.exp().multinomial(1, generator=generator)[:, 0]
        columns.append((before, logp.gather(-1, before[:, None])[:, 0], going))
        going = going & (before != END)
    tokens, logp, mask = (torch.stack(column, 1) for column in zip(*columns, strict=True))
    return tokens, logp, mask


# %% tags=["solution", "hide-input"]
check(described(sample_solution), SAMPLE)

# %% [markdown]
# *6 minutes.* **`log_probs`**: the tokens of the answers are known now. Return the log-prob of every one of them under
# a policy, `(B, T)`, with **one** call of the policy. The token before token $t$ is token $t - 1$; before the first one
# it is START. What the function returns on padding does not matter.
#
# <details><summary>Hint 1</summary>Shift the tokens by one place to the right.</details>
# <details><summary>Hint 2</summary><code>prompts[:, None].expand_as(tokens)</code> and
# <code>torch.arange(T).expand_as(tokens)</code> have the shape of the tokens.</details>


# %%
def log_probs(policy, prompts, tokens):
    raise NotImplementedError("mini.py: write log_probs, then run this cell and the next.")


# %% tags=["check"]
check(scored(log_probs), LOG_PROBS)


# %% tags=["solution", "hide-input"]
def log_probs_solution(policy, prompts, tokens):
    before = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], 1)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = policy(prompts[:, None].expand_as(tokens), before, places)
    return logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


# %% tags=["solution", "hide-input"]
check(scored(log_probs_solution), LOG_PROBS)

# %% [markdown]
# *5 minutes.* **`advantages`**: you get the rewards of `n` answers to each of several prompts, `(prompts, n)`. Subtract
# from each reward the mean reward of the **other** answers to the same prompt.
#
# <details><summary>Hint 1</summary>The sum of the others is the sum of the row minus the reward itself.</details>
# <details><summary>Hint 2</summary><code>rewards.sum(1, keepdim=True)</code>.</details>


# %%
def advantages(rewards):
    raise NotImplementedError("mini.py: write advantages, then run this cell and the next.")


# %% tags=["check"]
check(advantages, ADVANTAGES)


# %% tags=["solution", "hide-input"]
def advantages_solution(rewards):
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return rewards - others


# %% tags=["solution", "hide-input"]
check(advantages_solution, ADVANTAGES)

# %% [markdown]
# ## Check yourself
#
# **1. X and Y have probability ¼. X was sampled and earned 4. Without a baseline, what does that do to the logit of
# Y?**
#
# <details><summary>Nothing: Y was not sampled.</summary>No. Making X more probable takes probability from all
# others.</details>
# <details><summary>It lowers it by 1, times the step length.</summary>Yes. It is the reward 4 times the score −¼.
# </details>
# <details><summary>It raises it by 1, times the step length.</summary>No. Only the sampled action has a positive
# score.</details>
#
# **2. The loss fell from 0.3 to −0.2 during a step of training. What do you know?**
#
# <details><summary>The policy became better.</summary>No. Another baseline alone can change the sign of the
# loss.</details>
# <details><summary>The policy became worse: a loss must not be negative.</summary>No. Advantages are positive and
# negative, so the loss is, too.</details>
# <details><summary>Nothing about the reward.</summary>Yes. Only the derivative of this loss has a meaning.</details>
#
# **3. Which of these may be the baseline of token 5?**
#
# <details><summary>A critic's prediction from the first 5 tokens.</summary>No. It has seen token 5.</details>
# <details><summary>A critic's prediction from the first 4 tokens.</summary>Yes. It does not depend on token 5.
# </details>
# <details><summary>The answer's own reward.</summary>No. Reward minus itself is 0, so nothing would be learned.
# </details>
#
# ## In the app
#
# After `make app`:
#
# - [the gradient of control_fp32](http://localhost:8501/gradient?run=control_fp32&step=latest&preset=disabled), and
#   [of kv_fp8_e5m2](http://localhost:8501/gradient?run=kv_fp8_e5m2&step=latest&preset=disabled);
# - [the training curves of control_fp32](http://localhost:8501/training?run=control_fp32).
#
# ## Pitfalls
#
# - **A derivative through the advantage.** In the loss, the advantage is a constant, also if a critic computed it.
# - **A baseline that has seen the token** changes the average gradient. The mean of the group does so a little: it
#   multiplies the gradient by $1 - 1/n$ (appendix).
# - **Dividing by the group's standard deviation**, as GRPO does, is more than a baseline: prompts whose rewards hardly
#   differ get more weight.
#
# ## References
#
# 1. OpenAI Spinning Up, [Intro to Policy
#    Optimization](https://spinningup.openai.com/en/latest/spinningup/rl_intro3.html): the same derivation with states
#    and actions of any kind.
# 2. Arash Ahmadian et al., [Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
#    LLMs](https://arxiv.org/abs/2402.14740), 2024: leave-one-out for language models.
# 3. [Stable Asynchrony: variance-controlled off-policy RL for LLMs](https://arxiv.org/abs/2602.17616), 2026: the
#    baseline with the least variance, used in training.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.

# %% [markdown]
# ### The proof with symbols, for all logits and rewards

# %%
Z, REWARDS = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", real=True) for name in "zR")
b = sympy.Symbol("b", real=True)
PI = [sympy.exp(z_a) / sympy.Add(*map(sympy.exp, Z)) for z_a in Z]
THREE = range(3)


def same(left, right):
    return sympy.simplify(left - right) == 0


def average(values):
    """Return the average over the three actions, with the probabilities of the softmax."""
    return sympy.Add(*(pi_a * value for pi_a, value in zip(PI, values, strict=True)))


J = average(REWARDS)
score = [[sympy.diff(sympy.log(PI[a]), Z[k]) for k in THREE] for a in THREE]  # of action a, by logit k
for k in THREE:
    assert all(same(score[a][k], int(a == k) - PI[k]) for a in THREE)  # the score of a softmax
    assert all(same(sympy.diff(PI[a], Z[k]), PI[a] * score[a][k]) for a in THREE)  # the trick
    assert same(sympy.diff(J, Z[k]), average([REWARDS[a] * score[a][k] for a in THREE]))  # the slope is an average
    assert same(average([score[a][k] for a in THREE]), 0)  # scores average to 0
    assert same(sympy.diff(J, Z[k]), average([(REWARDS[a] - b) * score[a][k] for a in THREE]))  # a baseline is free

PROBABILITIES, LENGTHS = (sympy.symbols(f"{name}_X {name}_Y {name}_Z", positive=True) for name in ("pi", "n"))
VARIANCE = sum(PROBABILITIES[a] * (REWARDS[a] - b) ** 2 * LENGTHS[a] for a in THREE)  # the variance, up to a constant
lowest = sum(PROBABILITIES[a] * REWARDS[a] * LENGTHS[a] for a in THREE)
lowest /= sum(PROBABILITIES[a] * LENGTHS[a] for a in THREE)
assert same(sympy.diff(VARIANCE, b).subs(b, lowest), 0)
assert sympy.diff(VARIANCE, b, 2).is_positive  # so it is the lowest point

lengths = scores.square().sum(-1)
show("best baseline of X, Y, Z", float(pi @ (R * lengths) / (pi @ lengths)))

# %% [markdown]
# ### Which baselines are free: a world of all answers
#
# This world has only three tokens and answers of at most three tokens. All answers can be listed, so every average is
# an exact sum. The number is how far the average is from the right gradient, relative to its length.

# %%
where = toy.world(3, 3)
theta = toy.random_policy(where, seed=1)
answer_rewards = torch.randn(len(where.tokens), dtype=torch.float64, generator=generator)
truth = toy.policy_gradient(where, theta, answer_rewards)


def off_by(advantages):
    """Return the distance of E[Σ_t A_t s_t] over all answers from ∇J, over the length of ∇J; advantages (N, T)."""
    leaf = theta.clone().requires_grad_()
    answer_losses = masked_sum(reinforce(toy.log_probs(where, leaf), advantages), where.mask, -1)
    gradient = -torch.autograd.grad((toy.probabilities(where, theta) * answer_losses).sum(), leaf)[0]
    return float((gradient - truth).norm() / truth.norm())


whole = answer_rewards[:, None].expand(where.mask.shape)
by_prefix = torch.randn(where.state_count, dtype=torch.float64, generator=generator)[where.states]
by_token = torch.randn(3, dtype=torch.float64, generator=generator)[where.tokens]
show("answers", len(where.tokens))
show("no baseline: off by", off_by(whole))
show("baseline from the tokens before: off by", off_by(whole - by_prefix))
show("baseline from the token itself: off by", off_by(whole - by_token), digits=2)

# %% [markdown]
# ### The mean of the group is nearly a baseline
#
# The mean of all answers of a group contains the answer's own reward. It multiplies the gradient by $1 - 1/n$. The cell
# computes this exactly, over all groups of two and of three samples of X, Y, Z.

# %%
gradient = torch.tensor(slopes, dtype=torch.float64)
for n in (2, 3):
    groups = torch.cartesian_prod(*[torch.arange(3)] * n)  # (3^n, n): every group
    chance, number = pi[groups].prod(-1), torch.arange(len(groups)).repeat_interleave(n)
    drawn = R[groups].flatten()
    for name, of_answers, expected in (
        ("mean of the group", group_normalised(drawn, number, by_std=False), 1 - 1 / n),
        ("mean of the others", leave_one_out(drawn, number), 1.0),
    ):
        factor = chance @ (of_answers.view(-1, n, 1) * scores[groups]).mean(1) / gradient
        show(f"groups of {n}, minus {name}", float(factor[0]), "× the gradient")
        assert torch.allclose(factor, torch.full_like(factor, expected), rtol=0, atol=1e-8)

# %% [markdown]
# ### The mismatch, seen in the scores
#
# `kv_fp8_e5m2` is a run of a tiny model on running sums: `3+5+9=` must become `3,8,17`. Its engine has a KV cache in
# 8 bits, as in lesson 00. It samples with $q$, and the trainer differentiates $p$. At some positions the run recorded
# **all** possible next tokens, so the average score there is an exact sum. **Look for** the distance between the two
# lines. The height of a point is the length of the average score, as a share of the length of a typical score. Weighted
# by $p/q$, the average score is 0, up to the 16 bits in which scores are stored.

# %%
gap_batch, gap_sketch = load("kv_fp8_e5m2")
places = gap_sketch.next_tokens
assert places is not None
assert places.rollout_log_probs is not None
p_next, q_next = places.log_probs.double().exp(), places.rollout_log_probs.double().exp()
s_next = places.scores.double()  # (places, tokens, K)
typical = (p_next * s_next.square().sum(-1)).sum(-1).sqrt()
once, by_ratio = (
    (counts[..., None] * s_next).sum(1).norm(dim=-1) / typical for counts in (q_next, q_next * (p_next / q_next))
)

lines = {"weight 1": once.tolist(), "weight p/q": by_ratio.tolist()}
y_name = "‖average score‖ / typical ‖s‖"
picture(curves(list(range(1, len(once) + 1)), lines, x_name="recorded position", y_name=y_name, log="y"))


# %% tags=["hide-input"]
def against_chance(scores):
    """Return (length of the average over the length that chance alone gives)², ± two standard deviations of that."""
    average, covariance = scores.mean(0), scores.T.cov() / len(scores)
    share = float(average.square().sum() / covariance.trace())
    spread = float((2 * covariance.square().sum()).sqrt() / covariance.trace())
    return Interval(share, share - 2 * spread, share + 2 * spread)


assert (by_ratio < 1e-3).all()
gap_scores = pushes(gap_batch, gap_sketch, torch.ones(len(gap_batch.response_mask), dtype=torch.float64))
say(f"""
With weight 1, the average score reaches {once.max():.2f} of a typical score. Then every baseline adds
$-b\\, \\mathbb{{E}}_q[s]$ to the gradient, which has nothing to do with rewards. A sample may not show this: over the
{len(gap_scores)} sampled answers, the squared length of the average score is
{untold(against_chance(gap_scores), 1, 1)} times what chance alone gives, and this interval contains 1.
""")

# %% [markdown]
# ### Do the scores of control_fp32 average to 0?
#
# They should, because there is no mismatch. We check the exact averages at the positions whose next tokens are all
# recorded, and then the sampled answers, compared with chance.

# %% tags=["hide-input"]
places = sketch.next_tokens
assert places is not None
p_next, s_next = places.log_probs.double().exp(), places.scores.double()
typical = (p_next * s_next.square().sum(-1)).sum(-1).sqrt()
assert ((p_next[..., None] * s_next).sum(1).norm(dim=-1) < 1e-3 * typical).all()
say(f"""
At all {len(p_next)} positions the average over the next token is below a thousandth of a typical score. Over the
{len(answer_scores)} sampled answers, the squared length of the average score is
{untold(against_chance(answer_scores), 1)} times what chance alone gives, and this interval contains 1.
""")
