# %% [markdown]
# # 16 · Capstone: six recordings of unknown origin
#
# **Claim.** Pairs of log-probs, rewards and groups are enough to find the cause of a gap, if one asks the questions in
# the right order. A correction is for what cannot be repaired before the next step, and it is judged on a step that
# nobody has looked at.
#
# *100 minutes · advanced · any laptop; no GPU, no network.* You need lesson 06 for the causes, lesson 04 for budgets,
# lesson 12 for old weights and lesson 13 for bugs. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - go from a file of log-probs to a cause, and name the number that is evidence for it;
# - decide whether to repair or to correct;
# - choose a correction only if there is evidence for it, and predict which share of the tokens it keeps.

# %% tags=["hide-input"]

import torch
from curves import curves
from exercises.capstone import CAUSES, DIAGNOSES, MOVED, NAMES, PLANS, gaps, load, opened, sound_plan
from sentences import reveal
from show import picture, show

from rlcorr.analysis.published import rounding
from rlcorr.gradients import toy
from rlcorr.ratios import k3, ratio
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(19)


# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 06) The mean ratio of a batch is 0.94 ± 0.001, and nearly no ratio is above 1. What do you think of
# first?**
#
# <details><summary>Weights that are too old.</summary>No. Whatever q is, ratios of tokens that q has sampled average to
# 1. Old weights alone do not change that.</details>
# <details><summary>A cut, such as top-p: the trainer gives probability to tokens that the engine never draws.</summary>
# Yes. The ratios are the probability mass that the cut has kept.</details>
#
# **2. (Lesson 08) A rule keeps 40 % of the tokens of a run whose only fault is rounding. What should you change?**
#
# <details><summary>The rule.</summary>Yes. Its bounds are narrower than rounding, so it rejects without a reason.
# </details>
# <details><summary>The engine: its rounding is too coarse.</summary>No. Rounding to 16 bits is normal. The
# rule was made for longer answers or for another gap.</details>
#
# ## The case
#
# Six recordings have arrived, and nothing is known about their origin. Each has two steps with some dozens of answers
# of a language model: both log-probs of every token, token ids (renumbered), rewards, and groups of answers to the same
# prompt. Texts, settings and versions are missing. The gap of each recording has **one** cause, and the six causes are
# different. They come from this list:
#
# | cause | what it is | where |
# |---|---|---|
# | `rounding` | bfloat16 or float16, on one side or on both | lessons 06 and 15 |
# | `coarse format` | the engine's weights or its KV cache in fewer bits | lesson 06 |
# | `old weights` | the engine's weights are some updates old | lesson 12 |
# | `cut` | the engine samples by top-p or top-k, the trainer computes over all tokens | lesson 06 |
# | `temperature` | the two log-probs are of different temperatures | lesson 13 |
# | `shift by one` | one list begins a token earlier than the other | lesson 13 |
# | `padding` | log-probs of padding are counted | lesson 13 |
# | `stale head` | the output head of the engine was not updated | lesson 13 |
#
# We made the recordings once, with seeds that no file names. Into some of them we planted the cause afterwards. You may
# use everything: your own code, the library, and the app (below). But do not use `triage` at first. Find the causes
# yourself, and then look whether `triage` agrees.

# %%
show("recordings", *NAMES)
show("answers of their first steps", *(len(load(name, 1).response_mask) for name in NAMES))
show("causes", ", ".join(CAUSES))

# %% [markdown]
# ## By hand: the order of the questions
#
# A large fault hides a small one. So ask in this order, and stop as soon as you have found a cause:
#
# 1. Are the two lists about different tokens? Move one of them by one token. If $d$ becomes small, it is a **shift**.
#    If both log-probs are exactly 0 at many positions, these are **padding**.
# 2. Is the mean ratio far from 1? If it is below 1, and nearly no ratio is above 1, there was a **cut**. If it is
#    **above** 1 by many standard errors, the tokens were not sampled from $q$: go on with the next question.
# 3. Take the gap in log-odds, $o = \log\frac{p}{1-p} - \log\frac{q}{1-q}$, as in lesson 13. Does it follow a line over
#    $\log\frac{q}{1-q}$? Then it is a **temperature**. Does it depend on the token id? Then it is a **stale head**.
# 4. Is k3 at most a few thousandths? Then **rounding** to 16 bits is enough to explain it.
# 5. If none of these is the cause, the hard question is left: was the engine **coarse**, or was it **old**? Here both
#    leave a k3 of a few hundredths and a mean ratio near 1.
#
# By hand, for the last one: an answer earned 1, and the other answers to its prompt earned 0. If the trainer has
# learned since the engine was synchronised, it has learned to write such answers. So it gives them **more** probability
# than the engine did. Rounding has nothing to do with rewards.
#
# ## The equation
#
# Suppose that the trainer has made one step $\lambda g$ since the engine got its weights. Here $g$ is the gradient of
# the average reward. The log-prob of an answer changes by about the step times its own derivative, the score
# $s = \nabla \log p(y)$. So the log-ratio of an answer is $d(y) = \sum_t d_t \approx \lambda\, s \cdot g$. The average
# of advantage times score is the gradient, $\mathbb{E}_q[A s] = g$ (lesson 02). So
#
# $$ \mathbb{E}_q[A\, d(y)] \;\approx\; \lambda\, \mathbb{E}_q[A s] \cdot g \;=\; \lambda\, \|g\|^2 \;\ge\; 0 . $$
#
# The mean of advantage times log-ratio is **positive** after learning. If the two policies differ by something that is
# independent of the rewards, it is near 0. (It need not be exactly 0. A coarse engine sometimes makes a mistake to
# which a finer trainer gives less probability, and this makes the mean a little positive, too. So look how many
# standard errors it is from 0.)
#
# In exercise 1 you compute this number with its standard error. First a test in a tiny world, whose averages are exact:
# the trainer makes either a step along $g$, or a step of the same length in a random direction.

# %%
where = toy.world(4, 4)
start = toy.random_policy(where, seed=19)
rewards = torch.rand(len(where.tokens), dtype=torch.float64, generator=generator)
q = toy.probabilities(where, start)
advantage = rewards - float(q @ rewards)  # of every possible answer
leaf = start.clone().requires_grad_()
g = toy.gradient_of((q * advantage * toy.log_probs(where, leaf).sum(-1)).sum(), leaf)
noise = torch.randn(start.shape, dtype=torch.float64, generator=generator)
for name, moved in (("a step along g", 0.3 * g), ("noise of the same length", 0.3 * noise * g.norm() / noise.norm())):
    d_y = (toy.log_probs(where, start + moved) - toy.log_probs(where, start)).sum(-1)
    show(name, "E[A d(y)]", float(q @ (advantage * d_y)), digits=6)
show("λ‖g‖²", "", float(0.3 * g.square().sum()), digits=6)

# %% [markdown]
# ## Predict, then reveal
#
# The next cell prints for each recording what a dashboard would show: the mean ratio with its standard error, k3, and
# the share of the ratios that are clearly above 1, in the last column. The picture has the values of $d$ of each
# recording in ascending order: the line goes from the smallest on the left to the largest on the right. Values beyond
# the ends of the axis are drawn at its ends.
#
# **Write down a guess:** how many of the six can you name from these numbers alone, without any further test?
#
# **Look for** lines that are nearly everywhere on one side of 0, and for two lines with the same shape.

# %%
levels = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
lines = {}
show("recording", "tokens", "mean r", "error", "k3", "> 1.02")
for name in NAMES:
    d = gaps(name)
    r = ratio(d)
    show(name, len(d), r.mean(), float(r.std()) / len(r) ** 0.5, k3(d).mean(), (r > 1.02).double().mean(), digits=3)
    lines[name] = d.clamp(-1.5, 1.5).quantile(levels).tolist()
picture(
    curves(levels.tolist(), lines, x_name="share of the tokens with a smaller d", y_name="d, up to ±1.5", height=380)
)

# %% tags=["hide-input"]
sizes = {name: float(k3(gaps(name)).mean()) for name in NAMES}
small = [name for name in NAMES if sizes[name] <= rounding("bfloat16")[1]]
assert len(small) == 1
reveal(f"""
Three recordings have a mean ratio that is far from 1. In one of them nearly all values of $d$ are below 0. Of the other
three, one has a k3 as small as rounding leaves, {sizes[small[0]]:.4f}. **The last two have the same pattern**: a mean
ratio near 1, and a k3 of a few hundredths. These numbers do not show which of them is coarse and which is old. The mean
of $A \\cdot d(y)$ does.
""")

# %% [markdown]
# ## Exercise 1: has the trainer learned?
#
# *6 minutes.* `d` has the log-ratio of every token, `(B, T)`, `advantages` one number per answer, `(B,)`, and `mask`
# the real tokens. Return the mean of $A \cdot d(y)$ over the answers and its standard error, with $d(y)$ the sum of `d`
# over the real tokens of an answer.
#
# <details><summary>Hint 1</summary>First one number per answer, then mean and spread over the answers.</details>
# <details><summary>Hint 2</summary><code>d.where(mask, 0).sum(1)</code> is $d(y)$. The standard error is the standard
# deviation divided by √B.</details>


# %%
def moved_by_reward(d, advantages, mask):
    raise NotImplementedError("exercise 1: write moved_by_reward, then run this cell and the next.")


# %% tags=["check"]
check(moved_by_reward, MOVED)


# %% tags=["solution", "hide-input"]
def moved_by_reward_solution(d, advantages, mask):
    values = advantages * d.where(mask, 0).sum(1)
    return values.mean(), values.std() / len(values) ** 0.5


check(moved_by_reward_solution, MOVED)

# %% [markdown]
# ## Exercise 2: the six causes
#
# *20 minutes.* `load(name, step)` returns step 1 or 2 of a recording as a batch. `gaps(name)` has $d$ of all its
# tokens. The advantages of its answers are `load(name, 1).advantages[:, 0]`. Return a dictionary from the six names to
# their causes. The check gives a measured reason against every wrong cause, and does not tell you the right one.
#
# <details><summary>Hint 1</summary>Write one small function per question of the list above, and print its number for
# all six.</details>
# <details><summary>Hint 2</summary>For the temperature, compute the gap in log-odds $o$, and plot it over
# $\log\frac{q}{1-q}$.</details>


# %%
def diagnoses():
    raise NotImplementedError("exercise 2: write diagnoses, then run this cell and the next.")


# %% tags=["check"]
check(diagnoses, DIAGNOSES)


# %% tags=["solution", "hide-input"]
def diagnoses_solution():
    return opened()  # decodes capstone/answers.txt; `print(opened())` shows the causes


check(diagnoses_solution, DIAGNOSES)

# %% [markdown]
# ## Exercise 3: repair or correct, and what it will keep
#
# *10 minutes.* Return a dictionary from the six names to pairs.
#
# - If the cause can be **repaired** before the next step, the pair is `(None, None)`. A bug or a wrong setting can be
#   repaired. Rounding, a coarse format and old weights are chosen on purpose, because they save time or memory.
# - Otherwise the first part of the pair is a `CorrectionConfig`, and the second is the **share of the tokens that it
#   will keep** on a third step, which you have not seen. `CorrectionConfig()` corrects nothing and keeps all: the share
#   is 1. `CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)` is a cap on the token weights. Use what this
#   course has shown to help, and nothing that it has shown to be of no use.
#
# The check measures the share on the third step, and gives the evidence against a plan as a number. Yours may be off by
# 0.02.
#
# <details><summary>Hint 1</summary>For which cause did a planned study show that a correction recovers accuracy
# (lesson 04)?</details>
# <details><summary>Hint 2</summary>Has a rejection rule ever been better than none on the real model (lessons 08 and
# 04)?</details>


# %%
def plan():
    raise NotImplementedError("exercise 3: write plan, then run this cell and the next.")


# %% tags=["check"]
check(plan, PLANS)

# %% tags=["solution", "hide-input"]
check(sound_plan, PLANS)

# %% [markdown]
# ## Check yourself
#
# **1. You have named a cause, and the number that speaks for it is two standard errors from 0. What do you write?**
#
# <details><summary>The cause, as established.</summary>No. One of twenty such numbers is that large by chance, and you
# have looked at several.</details>
# <details><summary>The cause as the most likely one, and what to measure to be sure.</summary>Yes. More answers, or the
# engine's settings, cost less than a wrong repair.</details>
# <details><summary>Nothing: it is not known.</summary>No. You know which cause is the most likely one, and this helps
# those who must act. Write it down together with the doubt.</details>
#
# **2. The log-probs of a recording are of two temperatures. Somebody adds weights with a cap, and the reward rises. Is
# that all right?**
#
# <details><summary>Yes: what counts is the reward.</summary>No. The weights compare the trainer with a policy that has
# sampled nothing. The fault is still there, and the cap hides it.</details>
# <details><summary>No: repair the temperature, then measure again.</summary>Yes. It costs one line. A correction costs
# bias or tokens in every step, and the fault stays.</details>
# <details><summary>Only without a cap.</summary>No. The weights themselves are wrong.</details>
#
# **3. Your bounds kept 0.91 and 0.92 of the tokens of two steps, and 0.80 of the third. What is the first thing to
# check?**
#
# <details><summary>Whether the gap of the third step is larger.</summary>Yes. If the gap grows, bounds that were chosen
# on earlier steps keep less. Then look for the reason why it grows.</details>
# <details><summary>Whether the bounds were computed correctly.</summary>No. They were right on two steps. A mistake in
# the code would show there, too.</details>
# <details><summary>Nothing: shares vary.</summary>No. With thousands of tokens a share varies by one or two hundredths
# by chance, and not by a tenth.</details>
#
# ## In the app
#
# Start it with `make app`. `python -m rlcorr import lessons/capstone/one_1.parquet --run one` makes a run of a
# recording, which the app then lists. Compare it with recordings of known origin:
#
# - [rounding in 16 bits](http://localhost:8501/mismatch?run=smol_bf16_both);
# - [a coarse cache](http://localhost:8501/mismatch?run=smol_kv_fp8) and [old
#   weights](http://localhost:8501/mismatch?run=smol_stale_6);
# - [a cut](http://localhost:8501/mismatch?run=smol_top_p).
#
# ## Pitfalls
#
# - **The first number that fits.** A large k3 fits most of the eight causes. Ask which number would be evidence
#   **against** your cause.
# - **Testing everything.** With eight causes, six recordings and several numbers for each, some number is two standard
#   errors away from 0 by chance.
# - **Choosing and judging on the same step.** On other steps, bounds often keep less than on the steps on which they
#   were chosen.
# - **Correcting a bug.** With a correction the curves of a run with a bug may look healthy. The loss becomes visible
#   only if somebody compares them with the repaired run.
#
# ## References
#
# 1. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the corrections of this
#    course under their names there.
# 2. TRL, [issue 6789](https://github.com/huggingface/trl/issues/6789), 2026: a diagnosis in public, with every step.
# 3. SkyRL, [pull request 1811](https://github.com/NovaSky-AI/SkyRL/pull/1811): two bugs in micro-batches that only fill
#    up a step (lesson 13).

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Further checks; nothing above needs them.

# %% [markdown]
# ### The equation, over the length of the step
#
# The table has $\mathbb{E}_q[A\, d(y)]$ of the tiny world above, divided by $\lambda \|g\|^2$, for steps of several
# lengths. For short steps it is 1. For long steps the terms that the equation leaves out become visible.

# %%
show("λ", "E[A d(y)] over λ‖g‖²")
for length in (0.01, 0.1, 1.0, 10.0):
    d_y = (toy.log_probs(where, start + length * g) - toy.log_probs(where, start)).sum(-1)
    quotient = float(q @ (advantage * d_y)) / (length * float(g.square().sum()))
    show(f"{length:g}", quotient)
    assert length > 0.1 or abs(quotient - 1) < 0.01
