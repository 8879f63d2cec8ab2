# %% [markdown]
# # 15 · Kernels and experts: rounding that hardware makes
#
# **Claim.** A sum of rounded numbers depends on its order, and fast kernels choose the order by the size of the batch.
# So a policy can differ from itself, in every number format. A router turns such a small error into another expert.
# Then the mismatch gets a heavy tail; finer rounding makes swaps rarer, and router replay removes them.
#
# *100 minutes · advanced · any laptop; no GPU, no network.* Optional. You need lessons 00, 02, 06 and 08. All
# letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - add the same numbers by hand in two orders, and get two results;
# - say what batch-invariant kernels give, what they cost, and how to check that yours are invariant;
# - derive how often rounding swaps an expert, and distinguish a heavy tail from a wide one;
# - say what router replay repairs, and four things that it does not repair.

# %% tags=["hide-input"]
import math
import warnings
from typing import Any

import sympy
import torch
from curves import curves, rows
from exercises.experts import SWAPPED
from exercises.kernels import COMPARABLE, OWN_SHARE
from kernels import VOCABULARY, add_in_parts, log_probs, make_model
from recorded import load
from sentences import above, below, reveal, say
from show import picture, show, text

from rlcorr import correct, preset
from rlcorr.figures.canvas import ACROSS, REJECTED
from rlcorr.figures.comparison import tails
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

torch.set_num_threads(1)

generator = torch.Generator().manual_seed(17)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a progress bar asks for a widget that nobody needs
    from rlcorr.train.learner.policy import Policy, load_lm

drawing = torch.Generator().manual_seed(14)

# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 06) The engine computes in bfloat16 and the trainer in float32. What does rounding do to the mean of the
# ratios $p/q$?**
#
# <details><summary>It stays 1, up to chance.</summary>Yes. The engine samples from its own rounded policy, and for any
# $q$ that samples, the ratios average to 1.</details>
# <details><summary>It falls below 1: rounding loses something.</summary>No. A rounded policy is still a policy whose
# probabilities add up to 1.</details>
#
# **2. (Lesson 00) For one token $d = \log p - \log q$ is 0.1. How large is its k3, roughly?**
#
# <details><summary>0.1.</summary>No. That is the size of d. For small d, k3 is about d²/2.</details>
# <details><summary>0.005.</summary>Yes. $e^{0.1} - 1 - 0.1 = 0.0052$, close to $0.1^2/2$.</details>
#
# ## By hand: three numbers, two orders
#
# A computer stores a number with a fixed count of digits. Take three decimal digits, and add 1.00, 0.004 and 0.004.
#
# - From the left: 1.00 + 0.004 = 1.004, which is stored as 1.00. The same again: the result is **1.00**.
# - The small ones first: 0.004 + 0.004 = 0.008, and 1.00 + 0.008 = 1.008, which is stored as **1.01**.
#
# Both results are correctly rounded at every step. Addition with rounding is not associative: the order matters.
#
# The format **bfloat16** has eight binary digits. Between 256 and 512 it can store only even numbers.

# %%
a, b, c = (torch.tensor(x, dtype=torch.bfloat16) for x in (256.0, 1.0, 1.0))
show("(256 + 1) + 1", float((a + b) + c), digits=1)
show("256 + (1 + 1)", float(a + (b + c)), digits=1)

# %% [markdown]
# ## The equation
#
# Let $\nu$ be the largest relative error of one rounding. With eight binary digits, as in bfloat16, it is $2^{-8}$;
# each further digit halves it, and float32 has twenty-four. Add the numbers $x_1, \dots, x_N$ in two orders. To first
# order in $\nu$ the two sums $\Sigma$ and $\Sigma'$ differ by at most
#
# $$ |\Sigma - \Sigma'| \;\le\; 2\,(N - 1)\,\nu \sum_{i=1}^N |x_i| . $$
#
# Every number goes through at most $N - 1$ additions, and each of them multiplies it by a factor between $1 - \nu$ and
# $1 + \nu$. So each sum is at most half of the bound away from the exact sum. This is true for both orders, hence the
# factor two. There is no number format in which the bound is 0: more digits make the difference smaller, and never
# remove it.
#
# ## Who chooses the order?
#
# A **kernel** is a small program that computes one operation on a processor, for example a product of matrices. Each
# number of the result is a sum. The processor has many units that can add at the same time. If the batch has many
# answers, there are enough sums to keep all units busy, and each unit computes whole sums. If the batch has one answer,
# there are few sums. Then a fast kernel splits every sum: several units add a part each, and at the end the parts are
# added. So the order of the additions depends on **how many other answers are in the batch**.
#
# A kernel that always uses the same order, whatever the batch, is called **batch-invariant**.
#
# The next model is a small transformer without training. Each of its sums is written out addition by addition
# (`kernels.py`), and `by_size` is the rule of a fast kernel: four parts for a small batch, one part for a large one.

# %%
ids = torch.randint(0, VOCABULARY, (16, 24), generator=generator)  # 16 answers of 24 tokens


def by_size(rows):
    return 1 if rows >= 8 else 4


def together(model, order):
    return log_probs(model, ids, order)


def one_by_one(model, order):
    return torch.cat([log_probs(model, row[None], order) for row in ids])


# %% [markdown]
# ## Predict, then reveal
#
# We compute the log-probs of the same answers all together and one at a time, with models of one to eight layers, in
# bfloat16 and in float32.
#
# **Write down a guess:**
#
# 1. In which of the two formats are more log-probs exactly the same, bit by bit?
# 2. float32 has sixteen more binary digits than bfloat16. By what factor do the two gaps differ?
#
# **Look for** the distance between the two lines.

# %%
depths, formats = [1, 2, 4, 8], {"bfloat16": torch.bfloat16, "float32": torch.float32}
gaps = {name: [] for name in formats}
for depth in depths:
    for name, dtype in formats.items():
        model = make_model(depth).to(dtype)
        gaps[name].append((together(model, by_size) - one_by_one(model, by_size)).double())

sizes = {name: [float(d.abs().mean()) for d in of_depths] for name, of_depths in gaps.items()}
picture(curves(depths, sizes, x_name="layers", y_name="mean |d|, alone against in a batch", log="xy"))

# %% tags=["hide-input"]
same = {name: float((of_depths[-1] == 0).double().mean()) for name, of_depths in gaps.items()}
assert same["bfloat16"] < same["float32"] < 0.5
factor = sizes["bfloat16"][-1] / sizes["float32"][-1]
reveal(f"""
1. With {depths[-1]} layers, the share of the log-probs that are exactly the same is {same["bfloat16"]:.2f} in bfloat16
   and {same["float32"]:.2f} in float32. **Neither format makes the two computations equal.** This share does not show
   how large a gap is: two numbers that differ only in the last digit of float32 count as different.
2. The mean |d| is {sizes["bfloat16"][-1]:.3f} in bfloat16 and {sizes["float32"][-1]:.1e} in float32. The factor is
   {factor:.1e}. Sixteen binary digits are a factor of {2**16:,}, which is of the same order.

Only the number of other answers in the batch has changed. Weights, tokens, format and program are the same. With $d$ of
this size, the policy in bfloat16 has ratios to **itself** that are not 1.
""")

# %% [markdown]
# ## The same format, or the same order?
#
# Lesson 06 showed that bfloat16 on both sides does not remove the gap. The next cell shows why. Our model is engine and
# trainer at once. As the engine it computes in bfloat16, one answer at a time, so it splits each sum into four parts.
# As the trainer it scores the same answers all together, in four ways. With "other order" it does not split its sums.
# With "one order for all sizes" it splits them into four parts, too.

# %%
model = make_model(8)
coarse = model.to(torch.bfloat16)
engine = one_by_one(coarse, by_size)
trainers = {
    "float32, other order": together(model, by_size),
    "bfloat16, other order": together(coarse, by_size),
    "bfloat16, one order for all sizes": together(coarse, lambda rows: 4),
    "float32, one order for all sizes": together(model, lambda rows: 4),
}
show("trainer", "mean |d|", "k3", "same bits")
for name, scores in trainers.items():
    d = (scores - engine).double()
    show(name, d.abs().mean(), k3(d).mean(), bool((d == 0).all()))

# %% [markdown]
# With the same format and another order, the gap is about as large as with another format. With the same format **and**
# the same order it is 0: all bits are the same. With the same order in another format, the gap is as large as before.
#
# So the remedy is not a format. It is the same kernels in the same order on both sides, and kernels whose order does
# not depend on the batch.
#
# ## On real kernels
#
# Does a real library choose its order by the size of the batch? The next cell asks the matrix product of this machine
# for one row, alone and among others. Its output depends on your processor, so it is not compared when the lesson is
# tested.

# %% tags=["nbval-ignore-output"] reason="Which kernels a processor uses, and so which bits, depends on the machine."
x, w = torch.randn(64, 576, generator=generator), torch.randn(576, 576, generator=generator)
alone = torch.cat([row[None] @ w for row in x])
show("float32: share of equal results", float(((x @ w) == alone).double().mean()))
show("float32: largest difference", float((x @ w - alone).abs().max()), digits=8)

# %% [markdown]
# We asked the same of a real model, SmolLM2, with greedy answers, on two CPU cores and on a GPU.
# `make bench ARGS=invariance` makes these numbers. A bar shows how many log-probs are the same, bit by bit, in two
# computations. "64 against 1" means that the engine answers 64 prompts together, and then the same prompts one at a
# time. "8 rows against 1" means that the trainer scores eight answers together, and then one at a time. "Twice the same
# 64" means the same computation, made twice. **Look for** the bars that reach the right end: these pairs of
# computations are equal.

# %% tags=["hide-input"]
MEASURED = (  # where, what, share of equal log-probs, mean |d|, answers that differ of 64
    ("CPU", "engine in bfloat16, twice the same 64", 1.0, 0.0, 0),
    ("CPU", "engine in bfloat16, 64 against 1", 0.147, 1.4e-2, 12),
    ("CPU", "engine in float32, 64 against 1", 0.226, 2.1e-6, 0),
    ("CPU", "trainer in bfloat16, 8 rows against 1", 1.0, 0.0, None),
    ("CPU", "trainer against engine, bfloat16", 0.001, 2.1e-2, None),
    ("GPU", "engine in bfloat16, 64 against 1", 1.0, 0.0, 0),
    ("GPU", "engine in float32, 64 against 1", 0.155, 3e-6, None),
    ("GPU", "trainer in bfloat16, 8 rows against 1", 0.405, 9.8e-3, None),
    ("GPU", "trainer in float32, 8 rows against 1", 0.171, 2.4e-6, None),
    ("GPU", "trainer against engine, bfloat16", 0.001, 2.2e-2, None),
)
shares = {f"{place}: {what.replace(', ', ',<br>')}": 100 * share for place, what, share, _, _ in MEASURED}
picture(rows(shares, x_name="% of the log-probs that are the same bits"))

# %% tags=["hide-input"]
VARIANT, VARIANT_ANSWERS = 0.002, 21  # with VLLM_BATCH_INVARIANT=1 on the GPU
lines = "\n".join(
    f"| {place} | {what} | {share:.1%} | {f'{size:.1e}' if size else '0'} | {'' if n is None else n} |"
    for place, what, share, size, n in MEASURED
)
say(f"""
| machine | compared | same bits | mean abs. d | answers that differ |
|---|---|---|---|---|
{lines}

- **The same computation twice gives the same bits.** Nothing random is at work. What changes the bits is the batch.
- **It depends on the machine which side varies.** On this CPU the engine varies with the batch and the trainer does
  not; on this GPU, in bfloat16, it is the other way round. (The GPU is an H100 with vLLM 0.25.1.)
- **A difference in the second decimal of a log-prob is enough for another greedy answer**: with the engine in bfloat16
  on the CPU, {MEASURED[1][4]} of 64 answers differ. With the engine in float32 on the CPU none does.
- **Trainer and engine hardly ever compute the same bits**, although both compute in bfloat16.

vLLM has a switch for batch-invariant kernels, `VLLM_BATCH_INVARIANT=1`. On that GPU it did **not** make this small
model invariant: with it {VARIANT:.1%} of the log-probs were the same for 64 prompts and for one, {VARIANT_ANSWERS} of
64 answers differed, and the 64 answers took 0.8 s instead of 0.4 s. We saw this once, with one version, and cannot
explain it. **So do not trust a switch: measure.** Exercise 3 is the mask that such a measurement needs.
""")

# %% [markdown]
# How much of the gap between engine and trainer does the trainer have with itself? `make bench ARGS=smol` let an engine
# sample tokens of SmolLM2 on a GPU. A trainer in bfloat16 scored them eight rows at a time, and then again one row at a
# time (part A of `runs/README.md`).

# %% tags=["hide-input"]
ENGINE_GAP, OWN_GAP = 0.00186, 0.000742  # k3: trainer against engine; trainer with 8 rows against 1 row
say(f"""
Over 42,551 tokens the k3 between trainer and engine is {ENGINE_GAP:.5f} [0.00182, 0.00191]. The k3 of the trainer
**against itself**, with no engine at all, is {OWN_GAP:.6f} [0.000698, 0.000792]. That is {OWN_GAP / ENGINE_GAP:.0%} of
it. Now apply bounds of ±0.1 % on the geometric mean to the trainer compared with itself. They keep 44.5 % of the
tokens. So such bounds reject more than half of the tokens only because a micro-batch has another size.
""")

# %% [markdown]
# In [an issue of TRL](https://github.com/huggingface/trl/issues/6789) a contributor scored 3,916 tokens of Qwen2.5-0.5B
# with a trainer in bfloat16, 8 rows and 1 row at a time, without any engine. 8.0 % of the ratios were outside 0.9 to
# 1.1. Between vLLM and the trainer it was 7.5 %.
#
# ## What bitwise-consistent kernels give, and what they cost
#
# - Thinking Machines [rewrote](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) the matrix
#   product, the normalisation and the attention so that their order does not depend on the batch (September 2025).
#   Before, 1,000 greedy answers to one prompt had 80 different texts; after, all were equal.
# - The teams of vLLM and TorchTitan
#   [trained](https://blog.vllm.ai/2025/11/10/bitwise-consistent-train-inference.html) Qwen3-1.7B with the same kernels
#   in engine and trainer (November 2025). The KL divergence between the two was exactly 0 at every step, and the run
#   earned more reward in fewer steps than the one with different kernels. It was 2.4 times slower.
# - According to `docs/bitwise_parity.md` of [torchtitan](https://github.com/pytorch/torchtitan), the time per generated
#   token rises from 9.6 to 22.8 ms with batch invariance on Qwen3-8B.
#
# Such kernels do not change two things. The trainer's **backward** pass may still round differently from batch to
# batch. That is noise of the gradient, and no mismatch of two policies. And old weights are not rounding: an answer
# that older weights have sampled needs its ratio, whatever the kernels (lesson 12).
#
# ## A story: float32 that was not float32
#
# We once set engine and trainer to float32 on an H100, and expected a gap that is nearly 0, as on a CPU. On the random
# texts that check each sync, it was tens of millions of times larger.
#
# We excluded the other causes of lesson 06: no cut, no other temperature, and the same weights on both sides. So
# something was rounded, although all tensors were float32. It was in vLLM's attention kernel, written in the language
# Triton. There the product of two blocks, `tl.dot`, rounds float32 **inputs** to TF32 by default, a format with eleven
# binary digits. The next cell shows the error that TF32 makes in a dot product, a sum of products of pairs of numbers:


# %%
def to_tf32(x):
    """Round float32 to eleven binary digits: drop thirteen of its bits."""
    bits = x.view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


x, y = (torch.randn(2000, 64, generator=generator) for _ in range(2))
exact = (x.double() * y.double()).sum(-1)
show("error of a dot product of 64 pairs", "float32", "TF32", "bfloat16")
errors = [
    add_in_parts(of(x).float() * of(y).float(), 1).double() - exact
    for of in (lambda x: x, to_tf32, torch.Tensor.bfloat16)
]
show("root mean square", *(f"{float(error.square().mean().sqrt()):.0e}" for error in errors))

# %% tags=["hide-input"]
CHECK, ANSWERS, AFTER = 1e-3, 4e-6, 3.3e-11
say(f"""
With `TRITON_F32_DEFAULT=ieee` the kernel computes in float32, and no step had a k3 above {AFTER:.1e}. The {CHECK:.0e}
before came from random texts. On real answers, TF32 makes about {ANSWERS:.0e}, emulated on a CPU: a fifth of float16.
The library now sets this variable (`rlcorr/train/rollout/vllm_engine.py`).
So **the format of the tensors is not the format of the computation.** Only a measurement shows in which format a
program computes. The best one is a control run with float32 on both sides: there k3 must be nearly 0.
""")

# %% [markdown]
# ## A part of the model that decides
#
# In a **mixture of experts** a layer contains several networks, the **experts**. A token goes through only a few of
# them. A small linear map, the **router**, gives each expert $i$ a logit $z_i$. The experts with the largest logits are
# taken. Their outputs are added with the weights $e^{z_i}/\sum_j e^{z_j}$, where the sum is over the experts that are
# taken. A model without experts is called **dense**.
#
# Everything else in a network is smooth: a small error at its input makes a small error at its output. Taking the
# largest is not smooth. The **gap** $\gamma$ is the distance between the logits of the last expert that is taken and
# the first one that is not. If rounding moves these two logits by more than the gap, the engine takes another expert
# than the trainer. This is a **swap**.
#
# ## By hand: one token, two experts
#
# The router gives expert one the logit 1.00 and expert two the logit 0.99. It takes one of them. Expert one predicts
# the next token with probabilities 0.8, 0.1, 0.1; expert two predicts it with 0.1, 0.8, 0.1. In the engine, rounding
# has moved both logits by 0.01, to 0.99 and 1.00. What is the ratio of the first token? And what would it be if the
# layer took both experts and blended them?

# %%
EXPERTS = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)


def mixture(z, taken, experts=EXPERTS):
    """Next-token probabilities: the `taken` experts with the largest logits, blended by their weights."""
    best = z.topk(taken).indices
    return (z.gather(-1, best).softmax(-1)[..., None] * experts[best]).sum(-2)


trainer, engine = (torch.tensor(z, dtype=torch.float64) for z in ([1.00, 0.99], [0.99, 1.00]))
show("token", "first", "second", "third")
show("one expert: r = p/q", mixture(trainer, 1) / mixture(engine, 1))
show("both blended: r = p/q", mixture(trainer, 2) / mixture(engine, 2))

# %% [markdown]
# By hand: if the experts are blended, an error of 0.01 moves the ratio by less than 1 %. If one of them is chosen, the
# ratio is 8. With a rounding error ten times smaller, the ratio would still be 8. It would only happen less often.
#
# ## How often does a swap happen?
#
# Let $D$ be the density of the gap over tokens. Let rounding move the difference of the two logits by a normal error
# with the standard deviation $\sigma$. A token with the gap $\gamma$ is swapped if this error is below $-\gamma$. The
# probability of this is $\Phi(-\gamma/\sigma)$, where $\Phi$ is the distribution function of the normal distribution.
# Average it over all gaps. Only gaps about as small as $\sigma$ matter, and for these $D(\gamma)$ is nearly $D(0)$.
# Then write $\gamma = \sigma u$, so that $d\gamma = \sigma\,du$; the last integral is $1/\sqrt{2\pi}$ (appendix):
#
# $$ \Pr(\text{swap}) = \int_0^\infty D(\gamma)\,\Phi(-\gamma/\sigma)\,d\gamma \approx
# D(0)\,\sigma\int_0^\infty \Phi(-u)\,du = \frac{D(0)\,\sigma}{\sqrt{2\pi}} . $$
#
# So the share of swaps is **proportional to the rounding error**. As a test, draw random logits of eight experts, of
# which two are taken. A swap is possible between the second expert, which is taken last, and the third, which is not
# taken. Add noise to each logit. The noise of a difference of two logits is $\sqrt2$ times that of one logit.

# %%
N = 400_000
z = torch.randn(N, 8, dtype=torch.float64, generator=drawing)
edge = z.topk(3).indices[:, 1:]  # the second expert, which is taken last, and the third, which is not taken
second, third = z.gather(-1, edge).unbind(-1)
gap = second - third
density = float((gap < 0.05).double().mean()) / 0.05  # D(0)
counted = {}
show("noise on a logit", "swaps", "D(0) σ/√2π", digits=5)
for noise in (0.04, 0.02, 0.01):
    moved = z + noise * torch.randn(N, 8, dtype=torch.float64, generator=drawing)
    moved_second, moved_third = moved.gather(-1, edge).unbind(-1)
    swaps, sigma = float((moved_second < moved_third).double().mean()), math.sqrt(2) * noise
    show(f"{noise}", swaps, density * sigma / math.sqrt(2 * math.pi), digits=5)
    counted[sigma] = swaps

# %% tags=["hide-input"]
for sigma, swaps in counted.items():
    exact = float(torch.special.ndtr(-gap / sigma).mean())
    assert abs(swaps - exact) < 3 * math.sqrt(swaps / N)
    assert abs(density * sigma / math.sqrt(2 * math.pi) / exact - 1) < 0.06
ends = list(counted.values())
say(f"""
The formula is right to a few per cent. With a quarter of the noise, {ends[-1] / ends[0]:.2f} of the swaps are left.
""")

# %% [markdown]
# ## Predict, then reveal: the router
#
# Now there is no noise. The eight logits are rounded to bfloat16, and nothing else is rounded. **Write down a guess:**
# for what share of the tokens do the second and the third expert change their order? And for what share do they become
# equal?

# %%
rounded_second, rounded_third = (x.to(torch.bfloat16).double() for x in (second, third))
opposite, ties = int((rounded_second < rounded_third).sum()), int((rounded_second == rounded_third).sum())
show("tokens", N)
show("in the opposite order", opposite)
show("equal", ties, f"{ties / N:.1%}")

# %% tags=["hide-input"]
spacing = 2.0 ** (torch.floor(torch.log2(second.abs())) - 7)  # from one bfloat16 number to the next
expected_ties = float((1 - gap / spacing).clamp(min=0).sum())
assert opposite == 0
assert abs(ties - expected_ties) < 4 * math.sqrt(expected_ties)

# %% [markdown]
# **Rounding is monotone.** The larger of two numbers stays larger, or the two become equal. So rounding the logits
# reverses no order. It only makes a few ties, and a tie is decided by something that has nothing to do with the token,
# such as the number of the expert.
#
# Most swaps come from rounding that happened **before** the router: in attention, in the KV cache, in the layers below.
# These errors reach two logits differently, so they can reverse an order. A router that computes in 32 bits avoids the
# ties, but it cannot prevent these swaps. It decides precisely, on inputs that are not precise.
#
# ## A heavy tail is not a wide one
#
# Let $d$ be small noise, proportional to $\sigma$, for most tokens. For a share $\Pr(\text{swap})$, which is
# proportional to $\sigma$, let $d$ be a jump $d_{\text{swap}}$, whose size does not depend on $\sigma$. Then, for small
# $\sigma$,
#
# $$ \mathbb{E}[k_3] \approx \underbrace{\tfrac12\, \mathbb{E}[\text{noise}^2]}_{\propto\, \sigma^2} +
# \underbrace{\Pr(\text{swap})\;\mathbb{E}[k_3(d_{\text{swap}})]}_{\propto\, \sigma}, \qquad
# \frac{\mathbb{E}[d^4]}{\mathbb{E}[d^2]^2} \approx \frac{1}{\Pr(\text{swap})}\,
# \frac{\mathbb{E}[d_{\text{swap}}^4]}{\mathbb{E}[d_{\text{swap}}^2]^2} . $$
#
# The first formula says: if rounding becomes ten times finer, the k3 of the noise falls a hundredfold, and that of the
# swaps falls only tenfold. So **the finer the rounding, the larger the share of the swaps** in what is left.
#
# The second formula is about the **kurtosis**, the mean of $d^4$ divided by the square of the mean of $d^2$. It
# measures how heavy a tail is, whatever its width. For small $\sigma$, the noise hardly counts in either mean, because
# $d$ enters with its square or its fourth power. So the mean of $d^2$ is about $\Pr(\text{swap})$ times the mean square
# of a jump, and the mean of $d^4$ has one such factor as well. In the quotient one factor $\Pr(\text{swap})$ is left,
# in the denominator: the kurtosis **grows** as swaps become rarer.
#
# A tiny world shows it. It has the two experts from above, each with a softmax over three tokens. The engine has noise
# on the logits of the router and on the outputs of the experts; the trainer has none. The average over the next token
# is exact. Both sides compute a token in one of three ways:
#
# - each blends both experts;
# - the router of each takes one expert;
# - the engine's router takes one expert, and the trainer takes the same one. This is **router replay**.

# %%
TOKENS, NOISES = 40_000, [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
router = 2 * torch.randn(TOKENS, 2, dtype=torch.float64, generator=drawing)  # logits of the two experts
outputs = EXPERTS.log() + 0.3 * torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=drawing)
router_noise = torch.randn(TOKENS, 2, dtype=torch.float64, generator=drawing)
output_noise = torch.randn(TOKENS, 2, 3, dtype=torch.float64, generator=drawing)


def log_next(logits, out, expert):
    """Log-probs of the next token, (N, 3): of both experts blended, or of one expert per token, (N,)."""
    if expert is None:
        return (logits.softmax(-1)[..., None] * out.softmax(-1)).sum(-2).log()
    return out[torch.arange(len(out)), expert].log_softmax(-1)


# %% [markdown]
# **Look for** the slopes on the logarithmic axes. The lines of *blend* and of *replay* coincide. If the noise becomes
# ten times smaller, they fall a hundredfold, as the dotted line of slope two does. The line of the router falls only
# tenfold, so it is further and further above them.

# %% tags=["hide-input"]
WAYS = ("blend of both", "router", "router, replayed")
toy_k3, kurtosis = {name: [] for name in WAYS}, {name: [] for name in WAYS}
for noise in NOISES:
    seen, out = router + noise * router_noise, outputs + noise * output_noise
    mine, theirs = router.argmax(-1), seen.argmax(-1)
    for name, (of_trainer, of_engine) in zip(WAYS, ((None, None), (mine, theirs), (theirs, theirs)), strict=True):
        log_q = log_next(seen, out, of_engine)
        d, q = log_next(router, outputs, of_trainer) - log_q, log_q.exp()
        toy_k3[name].append(float((q * k3(d)).sum(-1).mean()))
        kurtosis[name].append(float((q * d**4).sum(-1).mean() / (q * d**2).sum(-1).mean() ** 2))
by_noise = curves(NOISES, toy_k3, x_name="noise σ on a logit", y_name="mean k3", log="xy")
for slope, name in ((1, "router"), (2, "blend of both")):
    dotted = {"x": NOISES, "y": [toy_k3[name][0] * (noise / NOISES[0]) ** slope for noise in NOISES]}
    by_noise.add_scatter(**dotted, mode="lines", name=f"slope {slope}", line={"color": REJECTED, "dash": "dot"})
picture(by_noise)

# %% tags=["hide-input"]
slopes = {name: math.log(of_way[2] / of_way[0]) / math.log(NOISES[2] / NOISES[0]) for name, of_way in toy_k3.items()}
assert all(1.9 < slopes[name] < 2.1 for name in ("blend of both", "router, replayed"))
assert 0.7 < slopes["router"] < 1.3
say(f"""
Over the finer half of the noise, the slopes are {slopes["blend of both"]:.1f} (blended), {slopes["router"]:.1f}
(router) and {slopes["router, replayed"]:.1f} (router, replayed).

| kurtosis of d | at σ = {NOISES[-2]} | at σ = {NOISES[0]} |
|---|---|---|
| router | {kurtosis["router"][-2]:.0f} | {kurtosis["router"][0]:.0f} |
| router, replayed | {kurtosis["router, replayed"][-2]:.0f} | {kurtosis["router, replayed"][0]:.0f} |

A normal distribution has the kurtosis 3. With finer rounding the tail of the router becomes heavier. With replay the
kurtosis does not depend on the rounding: only the usual noise is left.
""")

# %% [markdown]
# ## The same on recorded runs
#
# `moe_bf16` trains a small mixture of experts: three layers with eight experts each, of which a token takes two. Its
# engine computes in bfloat16. Its trainer computes in 32 bits and follows its own router. `moe_replay` is the same
# training run with router replay. The picture has the last recorded step of both. A point shows which share of the
# tokens has at least this $|d|$. To the left, where most tokens are, the two lines coincide. **Look for** the $|d|$ at
# which they separate.

# %% tags=["hide-input"]
RUNS = ("moe_bf16", "moe_replay", "bf16")
STEPS = {"moe_bf16": -1, "moe_replay": -1, "bf16": 0, "kv_fp8_e5m2": -1}
batches = {name: load(name, n) for name, n in STEPS.items()}
every_d = {name: batch.tensors()["old_log_probs"] - batch.rollout_log_probs for name, batch in batches.items()}


def log_ratios_of(name):
    """Return d of every token of the recorded step of a run, in one row."""
    return every_d[name][batches[name].response_mask]


both_tails = tails(batches["moe_bf16"], batches["moe_replay"])
traces: Any = both_tails.data
for trace, name in zip(traces, ("moe_bf16", "moe_replay"), strict=True):
    trace.update(name=name, hovertemplate=f"%{{y:.2g}} of the tokens: |d| ≥ %{{x:.2g}}<extra>{name}</extra>")
    trace.line.color = ACROSS[RUNS.index(name)]
picture(
    both_tails.update_layout({"xaxis.title.text": "|d|", "yaxis.title.text": "share of tokens with at least this |d|"})
)

# %% [markdown]
# The table compares them with two runs of dense models: `bf16`, and `kv_fp8_e5m2` with a coarse KV cache.

# %%
flat = {name: log_ratios_of(name) for name in STEPS}
show("", *(name.rjust(12) for name in flat))


def compare(label, measure, digits):
    show(label, *(text(float(measure(d)), digits).rjust(12) for d in flat.values()))


compare("tokens", len, 0)
compare("median |d|", lambda d: d.abs().median(), 5)
compare("largest |d|", lambda d: d.abs().max(), 2)
compare("mean k3", lambda d: k3(d).mean(), 5)
compare("  without the largest token", lambda d: k3(d).sort().values[:-1].mean(), 5)
compare("  share of the largest token", lambda d: k3(d).max() / k3(d).sum(), 2)
compare("kurtosis of d", lambda d: (d**4).mean() / (d**2).mean() ** 2, 0)

# %% tags=["hide-input"]
largest = {name: float(d.abs().max()) for name, d in flat.items()}
of_one = {name: float(k3(d).max() / k3(d).sum()) for name, d in flat.items()}
assert largest["kv_fp8_e5m2"] > largest["moe_bf16"] > 3 * max(largest["bf16"], largest["moe_replay"])
assert of_one["moe_bf16"] > 0.9
say(f"""
The typical token is the same with replay and without it. But in the step without replay, one token of
{len(flat["moe_bf16"])} has {of_one["moe_bf16"]:.0%} of the k3.

Be careful with the other lines. In `bf16`, which has no experts, one token has {of_one["bf16"]:.0%} of the k3, and the
kurtosis is larger than with replay. A likely reason: rounding moves the probability of an uncertain token far more than
that of a certain one, and this task has few uncertain tokens. So if a few tokens have most of the k3, this **alone
proves nothing**. A large $|d|$ proves nothing, either: a coarse KV cache reaches {largest["kv_fp8_e5m2"]:.1f} without
any expert. The evidence for swaps is the pair of runs, whose settings differ in nothing except replay. (After the first
step their weights differ as well. And there is one training run of each.)
""")

# %% [markdown]
# Here is the answer with that token, in columns of one token each.

# %% tags=["hide-input"]
batch, d = batches["moe_bf16"], every_d["moe_bf16"]
record = runs.read_step(runs.find_run("moe_bf16"), 40)
row, position = divmod(int((d.abs() * batch.response_mask).argmax()), d.shape[1])
written = [*record.responses[row], "<eos>"][: int(batch.response_mask[row].sum())]
cells = slice(0, len(written))
r = ratio(d[row, cells])
show("prompt", record.prompts[row])
show("token", written)
show("q, engine", batch.rollout_log_probs[row, cells].exp())
show("p, trainer", batch.tensors()["old_log_probs"][row, cells].exp())
show("r = p/q", r)
show("weight, cap at 2", correct(batch, preset("decoupled_token_is")).weights[row, cells])
say(f"""
The engine gave the token of column {position + 1} a probability {1 / float(r[position]):.0f} times as large as the
trainer does. It looks as if another expert preferred another digit. (The run did not record the experts, so we can only
suppose that this was a swap.)

A cap has no effect here, because the ratio is below 1. The weight is {float(r[position]):.2f}, and this is right: the
trainer hardly ever writes this token. Such a token is drawn **because** the engine gives it a high probability. So a
sample shows this side of the tail. The other side has tokens that the trainer would write and the engine would not.
They are rarely drawn, but if they are, they have a large weight. This is the side that needs a cap.
""")

# %% [markdown]
# A single step may be chance. The runs keep the metrics of every step. **Look for** the spikes of one line.

# %% tags=["hide-input"]
COUNT, BLOCK = 40, 5
METRIC = {"k3": "rollout_corr/k3_kl", "high": "rollout_corr/is_ratio_max", "low": "rollout_corr/is_ratio_min"}
METRIC |= {"ratio": "rollout_corr/is_ratio_mean", "abs": "rollout_corr/abs_log_ratio", "tokens": "rollout_corr/tokens"}
rows_of = {name: runs.read_metrics(runs.find_run(name))[:COUNT] for name in RUNS}
over_steps = {
    (name, key): torch.tensor([line[METRIC[key]] for line in rows_of[name]], dtype=torch.float64)
    for name in RUNS
    for key in METRIC
}
lines = {name: over_steps[name, "k3"].tolist() for name in RUNS}
picture(curves(list(range(1, COUNT + 1)), lines, x_name="step", y_name="mean k3 of a step", log="y"))

# %% tags=["hide-input"]
blocks = torch.randint(COUNT // BLOCK, (4000, COUNT // BLOCK), generator=drawing)
resampled = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)  # steps next to each other are similar


def interval(statistic, *series):
    """A number of these series of steps with its bootstrap interval, from the same drawn steps of each."""
    samples = statistic(*(x[resampled] for x in series))
    low, high = torch.quantile(samples, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(statistic(*series)), low, high)


def of_means(a, b):
    return a.mean(-1) / b.mean(-1)


# %% tags=["hide-input"]
unreplayed, replayed = ({key: over_steps[name, key] for key in METRIC} for name in ("moe_bf16", "moe_replay"))
gain = {key: interval(of_means, unreplayed[key], replayed[key]) for key in ("k3", "abs")}
middle = interval(lambda a, b: a.median(-1).values / b.median(-1).values if a.ndim > 1 else a.median() / b.median(),
                  unreplayed["k3"], replayed["k3"])  # fmt: skip

spikes = unreplayed["k3"] > 5e-4
extreme = torch.maximum(k3(unreplayed["high"].log()), k3(unreplayed["low"].log())) / unreplayed["tokens"]
share = (extreme / unreplayed["k3"])[spikes].median()
engine_s = int((unreplayed["low"].log().abs() > unreplayed["high"].log())[spikes].sum())
say(f"""
Let a spike be a step with a k3 above 5e-4. `moe_bf16` has {int(spikes.sum())} of them. In the median spike one token
has {share:.0%} of the k3. In {engine_s} of the spikes it is a token to which the engine gave a high probability and the
trainer did not.

- Without replay, the mean k3 over {COUNT} steps is {above(gain["k3"], 1, digits=1)} times that with replay. The largest
  1/r is {float(replayed["low"].min() / unreplayed["low"].min()):.0f} times as large.
- The mean |d| is {above(gain["abs"], 1)} times as large. If every |d| had grown by this factor, k3 would have grown by
  its square, {gain["abs"].value ** 2:.1f}. It has grown much more. So it is the **tail** that differs.
- k3 of the median step is {above(middle, 1, digits=1)} times as large. Perhaps usual steps contain swaps, too, between
  experts that nearly agree.
- The mean ratio of every run cannot be distinguished from 1. A swapped expert yields a different policy, but $q$ is
  still the policy that drew the tokens, so the ratios average to 1.

All factors with an interval differ significantly from 1: the interval excludes 1. The intervals are bootstrap intervals
that draw blocks of {BLOCK} steps, because neighbouring steps are similar. For a mean over a heavy tail such an interval
is too narrow, because it knows only the steps that were recorded. Step {int(unreplayed["k3"].argmax()) + 1} alone has
{float(unreplayed["k3"].max() / unreplayed["k3"].sum()):.0%} of the sum.
""")
assert gain["k3"].low > gain["abs"].high ** 2
for name in RUNS:
    mean_ratio = interval(lambda x: x.mean(-1), over_steps[name, "ratio"])
    assert mean_ratio.low < 1 < mean_ratio.high

# %% [markdown]
# ## What replay does, and what it does not do
#
# With replay, the engine reports which experts it took, for every token and every layer. The router of the trainer
# computes its logits as always. But the experts are those of the engine:
#
# ```python
# experts = logits.topk(2).indices  # without replay: the trainer's own choice
# experts = engine_experts          # with replay
# ```
#
# The weights of the experts are the trainer's own probabilities of these experts, divided by their sum. So $p$ is a
# smooth function of the rounding errors again. The choice at a position depends only on the text up to this position.
# So $p$ is still a policy, and the ratios still average to 1. (In the appendix the model is its own engine, so that
# every swap is known. There, with replay, all tokens have the small k3 of those tokens that no swap has reached.)
#
# Replay leaves four things:
#
# 1. **Rounding.** With replay, a mixture is a model of the usual kind, with the usual noise.
# 2. **Old choices.** Let $\pi$ be the policy after an update. With replay it uses experts that its own router would no
#    longer take. But in the next step the engine will use this new router.
# 3. **A wrong router is harder to see.** Suppose that a router was not synchronised. With replay it takes the right
#    experts all the same, because they are prescribed. Only its weights are wrong.
# 4. **The choice has no gradient**, with replay or without. The gradient does not see which change of the logits would
#    choose another expert.
#
# We test the second and the third on the model from which both runs started, in 64 bits. First all weights are moved a
# little, as by an update. Then only the routers are moved, by random numbers with a fifth of the size of their weights.
# At last one router gets its rows in a wrong order. Each of the three changes is drawn several times, and the table has
# the means.

# %% tags=["hide-input"]
lm = load_lm(runs.ROOT / "warm_start_moe" / "checkpoint", torch.device("cpu")).double().eval()
lm.set_experts_implementation("eager")  # the only one in 64 bits
policy = Policy(lm, critic=False)
gates = [module for name, module in lm.named_modules() if name.endswith("mlp.gate")]
router_rows = [gate.get_parameter("weight") for gate in gates]  # (experts, width) each

scored = load("moe_bf16", 0)
scored = scored.replace(**{key: scored.tensors()[key].long() for key in ("prompt_ids", "response_ids")})
real = scored.response_mask
attention = torch.cat([scored.tensors()["prompt_mask"], real], -1)
before_first = scored.tensors()["prompt_ids"].shape[1] - 1  # the position that predicts the first response token


def forward(batch, noise=0.0, replay=False):
    """Log-probs of the responses; the router's logits and the experts taken, for every token and layer."""
    seen, hooks = [], []

    def shake(_, given):
        return (given[0] + noise * torch.randn(given[0].shape, dtype=torch.float64, generator=drawing),)

    for gate_module in gates:
        if noise:
            hooks.append(gate_module.register_forward_pre_hook(shake))
        hooks.append(gate_module.register_forward_hook(lambda _, __, out: seen.append((out[0], out[2]))))
    with torch.no_grad():
        log_probs = policy(batch, 1.0, replay=replay).log_probs.double()
    for hook in hooks:
        hook.remove()
    by_layer = (torch.stack(x, 1).view(*attention.shape, len(gates), -1) for x in zip(*seen, strict=True))
    return log_probs, *by_layer


def differ(some, others):
    return (some.sort(-1).values != others.sort(-1).values).any(-1)  # (B, P + T, layers)


clean, logits, experts = forward(scored)

# %% tags=["hide-input"]
DRAWS = 8


def k3_after(change):
    """Mean k3 of the model that `change` has moved against the model before, by its own router and replayed; of its own
    router against itself replayed; and the share of tokens with other experts."""
    before = [parameter.detach().clone() for parameter in lm.parameters()]
    with torch.no_grad():
        change()
    mine, _, mine_experts = forward(scored)
    prescribed, _, _ = forward(scored.replace(routed_experts=experts), replay=True)
    with torch.no_grad():
        for parameter, saved in zip(lm.parameters(), before, strict=True):
            parameter.copy_(saved)
    pairs = ((mine, clean), (prescribed, clean), (prescribed, mine))  # log p, log q
    other = float(differ(experts, mine_experts).any(-1)[attention].double().mean())
    return [*(float(k3((x - y)[real]).mean()) for x, y in pairs), other]


def moved_by(size, parameters):
    for parameter in parameters:
        step = torch.randn(parameter.shape, dtype=torch.float64, generator=drawing)
        parameter.add_(size * parameter.square().mean().sqrt() * step)


def wrong_order():
    rows = router_rows[int(torch.randint(len(gates), (), generator=drawing))]
    rows.copy_(rows[torch.randperm(len(rows), generator=drawing)])


def drawn(change):
    return torch.tensor([k3_after(change) for _ in range(DRAWS)], dtype=torch.float64)


# %% tags=["hide-input"]
updated = drawn(lambda: moved_by(0.03, lm.parameters()))
slight, worst = drawn(lambda: moved_by(0.2, router_rows)), drawn(wrong_order)
show("all weights moved by 3 %: other experts", updated[:, 3].mean())
show("k3 between π replayed and its own router", updated[:, 2].mean())
show("a wrong router: mean k3", "its own", "replayed", "other experts")
show("routers moved by a fifth", slight.mean(0)[[0, 1, 3]], digits=5)
show("rows of one router in a wrong order", worst.mean(0)[[0, 1, 3]], digits=5)

# %% tags=["hide-input"]
BOUND = 1e-3  # alarm of NeMo RL's guide on the KL (lesson 11); rounding of this model is smaller: see moe_replay
rings, still = (int((slight[:, way] > BOUND).sum()) for way in (0, 1))
assert bool((slight[:, 1] < slight[:, 0]).all() & (worst[:, 1] < worst[:, 0]).all())
assert float(worst[:, 1].min()) > BOUND
assert rings > DRAWS / 2
assert still == 0
say(f"""
- **Old choices.** After the update {float(updated[:, 3].mean()):.0%} of the tokens would go to other experts in some
  layer. The policy that replays the old choices is not the policy that the engine serves next: k3 between the two is
  {float(updated[:, 2].mean()):.4f}.
- **A wrong router.** With replay, k3 is smaller in every draw. Rows in a wrong order are still found: their smallest k3
  with replay is {float(worst[:, 1].min()):.3f}, above the bound of {BOUND:.3f} that NeMo RL's guide uses (lesson 11).
  Routers that are off by a fifth exceed this bound in {rings} of {DRAWS} draws without replay, and in none with replay.
  Yet {float(slight[:, 3].mean()):.0%} of the tokens would go to other experts in some layer.

So with replay, watch the share of tokens that the trainer's own router would send to other experts.
""")

# %% [markdown]
# Replay can also go wrong itself. Suppose that a step is cut into four micro-batches, and that the last one is replayed
# with the experts of the one before it, because an old list was not replaced. All shapes are right, and no error is
# raised.

# %% tags=["hide-input"]
quarter = len(clean) // 4
of_another = experts.clone()
of_another[-quarter:] = experts[-2 * quarter : -quarter]
stale, _, _ = forward(scored.replace(routed_experts=of_another), replay=True)
hit, spared = (float(k3((stale - clean)[rows][real[rows]]).mean()) for rows in (slice(-quarter, None), slice(-quarter)))
assert spared < 1e-12
say(f"""
The mean k3 of the last micro-batch is {hit:.2f}, and that of the others is 0. For comparison, rounding alone makes
{float(k3(flat["moe_replay"]).mean()):.5f} in `moe_replay`. So compare the gaps of the micro-batches of a step. (Lesson
13 plants this bug.)
""")

# %% [markdown]
# ## Exercise 1: was it swapped?
#
# *5 minutes.* You get the logits of the trainer's and of the engine's router, both with one row per token and one
# column per expert, and how many experts are taken, `k`. Return for each token whether the engine took other experts:
# `(N,)`, True or False.
#
# <details><summary>Hint 1</summary><code>z.topk(k).indices</code> gives the numbers of the experts, the largest logit
# first.</details>
# <details><summary>Hint 2</summary>The order among the taken experts does not matter. Sort their numbers.</details>


# %%
def swapped(trainer_logits, engine_logits, k):
    raise NotImplementedError("exercise 1: write swapped, then run this cell and the next.")


# %% tags=["check"]
check(swapped, SWAPPED)


# %% tags=["solution", "hide-input"]
def swapped_solution(trainer_logits, engine_logits, k):
    own_set = trainer_logits.topk(k).indices.sort(-1).values
    engine_set = engine_logits.topk(k).indices.sort(-1).values
    return (own_set != engine_set).any(-1)


check(swapped_solution, SWAPPED)

# %% [markdown]
# ## Check yourself
#
# **1. Engine and trainer both compute in bfloat16, and k3 is 0.002. A colleague proposes float16 on both sides. What
# will happen?**
#
# <details><summary>The gap becomes 0: then both formats are the same.</summary>No. They are the same now, too. The two
# sides add in different orders, and no format makes the order irrelevant.</details>
# <details><summary>The gap becomes smaller, because float16 has three more binary digits.</summary>Yes, if nothing
# overflows. In lesson 06 it left a fiftieth of the k3. It does not become 0.</details>
# <details><summary>Nothing: both formats have 16 bits.</summary>No. They divide the 16 bits differently: float16 has
# eleven digits, bfloat16 eight.</details>
#
# **2. You score the same answers twice with the same trainer and get different log-probs. What do you look at first?**
#
# <details><summary>The random seed.</summary>Without dropout nothing in a forward pass is random. The same computation
# twice gave the same bits in every case that we measured.</details>
# <details><summary>The sizes of the micro-batches.</summary>Yes. Packing by length, or another limit of tokens, puts
# other rows together, and the kernels choose another order.</details>
# <details><summary>A broken GPU.</summary>That is possible, and rare. First compare the shapes.</details>
#
# **3. Your engine runs batch-invariant kernels, your trainer does not. Is the gap 0?**
#
# <details><summary>Yes: invariance removes the dependence on the batch.</summary>No. It does so only for the engine.
# The trainer still adds in orders of its own.</details>
# <details><summary>No, but the engine now computes the same bits in every batch.</summary>Yes. Its log-probs no longer
# depend on its load, so they can be computed again. The trainer adds in another order, and it may still vary with its
# micro-batches. So the gap is as large as rounding makes it.</details>
# <details><summary>No, and nothing is known about its size.</summary>Its size is known: it is that of rounding, as
# before.</details>
#
# ## In the app
#
# Start it with `make app`:
#
# - [the real model, bfloat16 on both sides](http://localhost:8501/mismatch?run=smol_bf16_both): a gap without any
#   fault;
# - [the same model, float32 on both sides](http://localhost:8501/mismatch?run=smol_fp32): what is left when only the
#   order differs;
# - [a tiny model, bfloat16 on both sides](http://localhost:8501/mismatch?run=both_bf16);
# - [the mismatch of moe_bf16 at step 40](http://localhost:8501/mismatch?run=moe_bf16&step=40): the tail on both sides
#   of ratio 1;
# - [the same of moe_replay](http://localhost:8501/mismatch?run=moe_replay&step=40);
# - [the tokens of moe_bf16](http://localhost:8501/tokens?run=moe_bf16&step=40&preset=decoupled_token_is): the one from
#   above;
# - [both runs over their steps](http://localhost:8501/training?run=moe_bf16&with=moe_replay).
#
# ## Pitfalls
#
# - **"Deterministic" is not "invariant".** A deterministic kernel gives the same bits for the same batch. That does not
#   say what it gives for another batch.
# - **Comparing texts.** Two greedy answers can be equal although no log-prob is. Compare log-probs.
# - **Comparing after the first difference.** From there on the two answers have different inputs.
# - **A single large |d|.** With an engine in bfloat16 the log-prob of a rare token may move by a quarter without any
#   fault (the largest |d| of the run `bf16` above). Look at the mean.
# - **Averages.** One token can decide a mean over a heavy tail. Report the median step and the largest token with it.
# - **Concentration.** If a model is certain of most tokens, a few tokens have much of the k3 even without experts. This
#   does not prove swaps.
# - **Padding and prompts.** Replay needs the experts of every position that the trainer computes, also those of the
#   prompt. If they are missing, the trainer must use its own choice, and report it.
# - **Recomputation.** If the forward pass is repeated for the backward pass, it must be replayed again. Otherwise the
#   gradient belongs to other experts.
# - **Experts of another batch.** If the list of experts is left over from the micro-batch before, the trainer computes
#   nonsense without an error. Lesson 13 has this patient.
# - **Old choices.** With stale or asynchronous sampling (lesson 12) the replayed choices are as old as the tokens.
# - **Small models.** Our model has only three layers with experts. For a large model it was reported that a tenth of
#   the routers differ, and that 94 % of the tokens differ in at least one layer ([Rollout routing
#   replay](https://arxiv.org/abs/2510.11370)). Then hardly any token is without a swap, and the swaps are not a tail
#   but the whole gap.
# - **Stricter rejection.** Suppose that a rule rejects an answer because the size of the micro-batch has moved its
#   log-probs. Then it rejects at random, and the policy does not become more correct.
#
# ## References
#
# 1. Horace He and Thinking Machines Lab, [Defeating Nondeterminism in LLM
#    Inference](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/), 2025: batch invariance and
#    its kernels.
# 2. The vLLM and TorchTitan teams, [Bitwise consistent on-policy reinforcement
#    learning](https://blog.vllm.ai/2025/11/10/bitwise-consistent-train-inference.html), 2025: the same kernels in
#    engine and trainer.
# 3. TRL, [issue 6789](https://github.com/huggingface/trl/issues/6789), 2026: a trainer that differs from itself.
# 4. [Stabilizing MoE RL by Aligning Training and Inference Routers](https://arxiv.org/abs/2510.11370), 2025: router
#    replay, and how often routers differ in a large model.
# 5. [Stabilizing RL with LLMs: Formulation and Practices](https://arxiv.org/abs/2512.01374), 2025: when replay is
#    needed in addition to weights and clipping.
# 6. [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556), 2025: a system that keeps the routing of its samples.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: the trainer's own part
#
# *5 minutes.* Three arrays of log-probs of the same tokens, `(B, T)`: the trainer with 8 rows at a time, `eight`; the
# trainer with one row at a time, `one`; and the engine, `engine`. Padding may contain anything. Return the mean k3 of
# `eight` against `one`, divided by the mean k3 of `eight` against `engine`.
#
# <details><summary>Hint 1</summary>k3 of a token is $e^d - 1 - d$, with $d$ = `eight` minus the other.</details>
# <details><summary>Hint 2</summary>Index with the mask first, then take the mean.</details>


# %%
def own_share(eight, one, engine, mask):
    raise NotImplementedError("exercise 2: write own_share, then run this cell and the next.")


# %% tags=["check"]
check(own_share, OWN_SHARE)


# %% tags=["solution", "hide-input"]
def own_share_solution(eight, one, engine, mask):
    def mean_k3(d):
        return (d.exp() - 1 - d)[mask].mean()

    return mean_k3(eight - one) / mean_k3(eight - engine)


check(own_share_solution, OWN_SHARE)

# %% [markdown]
# ### Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 06) The engine computes in bfloat16, the trainer in float32. Everything else is equal, and $q$ is what
# the engine really drew with. What is the mean of the ratios, on average over all samples?**
#
# <details><summary>1.</summary>Yes. The mean of $p/q$ over tokens that were drawn from $q$ is 1, however large the
# rounding errors are.</details>
# <details><summary>A little below 1, because rounding loses digits.</summary>No. Rounding makes some ratios larger and
# some smaller. If $q$ is the policy that drew the tokens, the average over all samples is exactly 1.</details>
#
# **2. (Lesson 02) k3 of a token is $e^d - 1 - d$. A usual token has $d = 0.01$, and so a k3 of 0.00005. One token has
# $d = -3$. How many usual tokens have as much k3 together as this one?**
#
# <details><summary>300, because its d is 300 times as large.</summary>No. For small $d$, k3 is about $d^2/2$. It grows
# with the square, not in proportion.</details>
# <details><summary>About 40,000.</summary>Yes. $e^{-3} - 1 + 3 = 2.05$, divided by 0.00005. A mean of k3 can be decided
# by a single token. The second half of this lesson is about such tokens.</details>
#
# ### Exercise 3: which tokens can be compared?
#
# *5 minutes.* An engine answered the same prompts greedily, once together and once one by one. `first` and `second`
# have the token ids, `(B, T)`; `mask` is True where both answers have a token. A log-prob can be compared only while
# both answers are the same up to and including this token. Return the mask of these tokens.
#
# <details><summary>Hint 1</summary>As soon as one token differs, everything after it has another text before it.
# </details>
# <details><summary>Hint 2</summary><code>cumprod(1)</code> of ones and zeros stays 1 up to the first 0.</details>


# %%
def comparable(first, second, mask):
    raise NotImplementedError("exercise 3: write comparable, then run this cell and the next.")


# %% tags=["check"]
check(comparable, COMPARABLE)


# %% tags=["solution", "hide-input"]
def comparable_solution(first, second, mask):
    return ((first == second) & mask).cumprod(1).bool()


check(comparable_solution, COMPARABLE)

# %% [markdown]
# ### Check yourself: experts
#
# **1. You change the engine from bfloat16 to a format with errors that are ten times smaller. What happens to the
# swaps?**
#
# <details><summary>They become ten times rarer, and are as large as before.</summary>Yes. The rate is proportional to
# the rounding error. The size is the difference between two experts.</details>
# <details><summary>They become ten times smaller, like all of the mismatch.</summary>No. This is true for tokens
# without a swap. A swap gives another expert, whatever the reason was.</details>
# <details><summary>They stop: the router now computes precisely enough.</summary>No. On some token the gap is always
# smaller than the error.</details>
#
# **2. k3 of a step jumps from 0.0003 to 0.003, and the mean |d| hardly changes. What do you look at first?**
#
# <details><summary>The temperature of the engine.</summary>No. A wrong temperature moves all tokens, and so the mean
# |d|.</details>
# <details><summary>The share of the tokens with the largest k3.</summary>Yes. If a few tokens have nearly all of it,
# read these tokens, and ask which part of the model makes choices.</details>
# <details><summary>The learning rate.</summary>Not yet. If the policy is too far from the engine's, many tokens show it
# and not only one.</details>
#
# **3. With replay the mismatch is small. Is the router right?**
#
# <details><summary>Yes: replay compares both routers.</summary>No. It compares nothing. It replaces the choice of the
# trainer's router.</details>
# <details><summary>We do not know: a large fault would show, a small one need not. Score one batch without
# replay.</summary>Yes. Watch the share of tokens for which the trainer would take other experts.</details>
# <details><summary>Yes: a wrong router would show in the weights of the experts.</summary>A very wrong router does. The
# weights of a router that is a little wrong cannot be distinguished from rounding.</details>

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Further checks; nothing above needs them.

# %% [markdown]
# ### The bound, on random sums
#
# We add random numbers in one, two, four and more parts, in both formats. The table has the largest difference of two
# orders, as a share of the bound.

# %%
show("format", "largest share of the bound")
for name, nu in (("bfloat16", 2.0**-8), ("float32", 2.0**-24)):
    terms = torch.randn(500, 64, generator=generator).to(formats[name])
    sums = torch.stack([add_in_parts(terms, parts).double() for parts in (1, 2, 4, 8, 16)])
    largest = (sums[:, None] - sums).abs().amax((0, 1))
    share = float((largest / (2 * 63 * nu * terms.double().abs().sum(-1))).max())
    show(name, share, digits=3)
    assert 0 < share < 1

# %% [markdown]
# ### How a difference in float32 gets into bfloat16
#
# Most kernels add in float32 and round only the result to bfloat16. Then two orders give two float32 sums that differ
# in their last digits, and the rounded results are nearly always the same. They differ only where a border between two
# bfloat16 numbers lies between the two sums. How often is that? And how many such sums does a model compute per token?

# %%
factors = torch.randn(2, 100_000, 64, generator=generator)
one_run, four_runs = (add_in_parts(factors[0] * factors[1], parts) for parts in (1, 4))
show("float32 sums that differ", float((one_run != four_runs).double().mean()), digits=2)
flips = float((one_run.bfloat16() != four_runs.bfloat16()).double().mean())
assert 0 < flips < 1e-3

# %% tags=["hide-input"]
layers, width, inner, heads = 30, 576, 1536, 960  # SmolLM2-135M; 960: queries, keys and values together
per_token = layers * (heads + width + 2 * inner + width)
assert 1 < per_token * flips < 1000
say(f"""
Fewer than one rounded result in a thousand changes. But SmolLM2-135M computes {per_token:,} such results per token. So
even if only one result in 30,000 changes, about five of them change for **every** token. If a result changes to the
neighbouring bfloat16 number, it changes by about half a percent, and all later layers compute with it. This can explain
why 8 rows against 1 row changed most of the log-probs on the GPU, although matrix kernels usually add in float32. In
the small model above, the sum of each part is rounded to bfloat16, as kernels that split may do. So there a few layers
are enough.
""")

# %% [markdown]
# ### The integral, the jump and the gradient

# %% tags=["hide-input"]
u, s, x = sympy.symbols("u", positive=True), sympy.symbols("s", positive=True), sympy.Symbol("x", real=True)
tail = sympy.erfc(u / sympy.sqrt(2)) / 2  # Φ(−u)
assert sympy.simplify(sympy.integrate(tail, (u, 0, sympy.oo)) - 1 / sympy.sqrt(2 * sympy.pi)) == 0

# log-prob of the first token as the difference of the logits goes through 0
high, low = sympy.Rational(8, 10), sympy.Rational(1, 10)
blend = sympy.log(high / (1 + sympy.exp(-x)) + low / (1 + sympy.exp(x)))
decided = sympy.log(high) * sympy.Heaviside(x) + sympy.log(low) * sympy.Heaviside(-x)
assert sympy.limit(blend, x, 0, "+") == sympy.limit(blend, x, 0, "-")
assert sympy.simplify(sympy.exp(sympy.limit(decided, x, 0, "+") - sympy.limit(decided, x, 0, "-"))) == 8

# two of three experts: the output jumps by (weight of the last one taken) · (difference of experts)
E1, E2, E3 = sympy.symbols("E_1 E_2 E_3")  # what each expert gives
top, tie = sympy.symbols("z_top z_tie", real=True)
weight_top, weight_tie = (sympy.exp(z) / (sympy.exp(top) + sympy.exp(tie)) for z in (top, tie))
jump = weight_top * E1 + weight_tie * E2 - (weight_top * E1 + weight_tie * E3)
assert sympy.simplify(jump - weight_tie * (E2 - E3)) == 0

# the weights of two taken experts have a gradient; the weight of a single one has none
z_i, z_j = sympy.symbols("z_i z_j", real=True)
two_taken = sympy.exp(z_i) / (sympy.exp(z_i) + sympy.exp(z_j))
assert sympy.diff(sympy.exp(z_i) / sympy.exp(z_i), z_i) == 0
assert sympy.simplify(sympy.diff(two_taken, z_i) - two_taken * (1 - two_taken)) == 0
show("∫ Φ(−u) du = 1/√2π", "proved")
show("the jump at a tie; blended there is none", "proved")

# %% [markdown]
# ### k3 and kurtosis of noise and jumps

# %% tags=["hide-input"]
density_0, c, J = sympy.symbols("D_0 c J", positive=True)
P = density_0 * s / sympy.sqrt(2 * sympy.pi)
k3_of_jump = sympy.exp(J) - 1 - J
k3_of_noise = sympy.series(sympy.exp(u) - 1 - u, u, 0, 3).removeO().coeff(u, 2) * (c * s) ** 2  # E[u²] = c² s²
fourth, square = (1 - P) * 3 * (c * s) ** 4 + P * J**4, (1 - P) * (c * s) ** 2 + P * J**2
mean_k3 = (1 - P) * k3_of_noise + P * k3_of_jump
assert k3_of_noise == c**2 * s**2 / 2
assert sympy.simplify(sympy.limit(mean_k3 / s, s, 0) - k3_of_jump * density_0 / sympy.sqrt(2 * sympy.pi)) == 0
assert sympy.limit((1 - P) * k3_of_noise / mean_k3, s, 0) == 0  # in the limit there are only swaps
assert sympy.limit(P * fourth / square**2, s, 0) == 1  # kurtosis · Pr(swap) → 1 for jumps of one size
show("k3 is linear in the noise, as it goes to 0", "proved")
show("kurtosis · Pr(swap) → 1", "proved")

# %% [markdown]
# ### A real router
#
# A run records the engine's log-probs, and not which experts it took. So here the model from which both runs started is
# its own engine. It gets normal noise on the inputs of its routers, and nowhere else. Then every swap is known. If the
# noise on each input has the standard deviation $\epsilon$, then the noise of the difference of two logits has
# $\sigma = \epsilon\,\lVert \mathrm{row}_i - \mathrm{row}_j\rVert$, where $\mathrm{row}_i$ is the row of expert $i$ in
# the router. So the swaps of the first layer can be predicted, token by token, by $\Phi(-\gamma/\sigma)$. The columns
# of the table: swaps in the first layer, their predicted number, k3 of all tokens, of those that no swap has reached,
# and of all tokens with replay, and the largest $|d|$ without and with replay.

# %% tags=["hide-input"]
order = logits[..., 0, :].sort(-1, descending=True)  # first layer: no earlier layer has got noise
gap = order.values[..., 1] - order.values[..., 2]
rows = router_rows[0].detach()
apart = (rows[order.indices[..., 1]] - rows[order.indices[..., 2]]).norm(dim=-1)
REPEATS, SIZES, measured = 8, (0.02, 0.01, 0.005), {}
show("noise", "swaps", "predicted", "k3 · 10⁶", "no swap", "replayed", "max |d|", "replayed")
for noise in SIZES:
    swaps, parts = 0, {"all": [], "no swap": [], "replayed": []}
    for _ in range(REPEATS):
        noisy, _, other = forward(scored, noise)
        moved = differ(experts, other)
        swaps += int(moved[..., 0][attention].sum())
        reached = moved.any(-1).cumsum(1)[:, before_first:-1] > 0  # at this token or before
        again, _, _ = forward(scored.replace(routed_experts=other), replay=True)
        for part, x in (("all", clean[real] - noisy[real]), ("no swap", (clean - noisy)[real & ~reached]),
                        ("replayed", (again - noisy)[real])):  # fmt: skip
            parts[part].append(x)
    predicted = REPEATS * float(torch.special.ndtr(-gap / (noise * apart))[attention].sum())
    joined = {name: torch.cat(part) for name, part in parts.items()}
    means = {name: 1e6 * float(k3(x).mean()) for name, x in joined.items()}
    tops = [float(joined[name].abs().max()) for name in ("all", "replayed")]
    show(f"{noise}", swaps, text(predicted, 1), *(text(x, 1) for x in means.values()), *(text(x, 2) for x in tops))
    measured[noise] = means | {"top": tops[0], "steps": torch.stack([k3(x).mean() for x in parts["all"]])}
    assert abs(swaps - predicted) < 3 * math.sqrt(predicted)
    assert abs(means["replayed"] / means["no swap"] - 1) < 0.2
    assert tops[1] < tops[0] / 3

# %% tags=["hide-input"]
coarse, fine = measured[SIZES[0]], measured[SIZES[-1]]
redrawn = torch.randint(REPEATS, (2, 4000, REPEATS), generator=drawing)
falls = coarse["steps"][redrawn[0]].mean(-1) / fine["steps"][redrawn[1]].mean(-1)
low, high = torch.quantile(falls, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
fall = Interval(coarse["all"] / fine["all"], low, high)
assert 14 < coarse["no swap"] / fine["no swap"] < 18
say(f"""
The counts agree with the prediction. The finest noise is a quarter of the coarsest. For tokens without a swap, at this
token or before it, k3 falls {coarse["no swap"] / fine["no swap"]:.0f} times. Over all tokens it falls
{below(fall, 14, digits=1)} times. The largest |d| is {coarse["top"]:.2f} with the coarsest noise and {fine["top"]:.2f}
with the finest. So swaps become rarer, but their size does not fall in proportion. **Replay brings all tokens back to
the k3 of tokens that no swap has reached.**
""")
