# %% [markdown]
# # 17 · The same computation twice
#
# **Claim.** A sum of rounded numbers depends on its order, and fast kernels choose the order by the size of the batch.
# So a policy can differ from itself. The same number format on both sides does not remove this gap; the same kernels
# in the same order do, and they cost time.
#
# *80 minutes · intermediate · any laptop; no GPU, no network.* You need lesson 00 for the ratio and k3, and lesson 03
# for rounding as a cause of the gap. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - add the same numbers by hand in two orders, and get two results;
# - explain why one answer has other log-probs alone than in a batch, and why another number format does not help;
# - say what batch-invariant kernels give, what they cost, and how to check that yours are invariant;
# - measure how much of the gap between engine and trainer the trainer has with itself.

# %% tags=["hide-input"]

import torch
from curves import curves, rows
from exercises.lesson_17 import COMPARABLE, IN_PARTS, OWN_SHARE
from kernels import VOCABULARY, add_in_parts, log_probs, make_model
from sentences import say
from show import picture, show

from rlcorr.ratios import k3
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(17)

# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 03) The engine computes in bfloat16 and the trainer in float32. What does rounding do to the mean of the
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
# Every number goes through at most $N - 1$ additions, and each of them multiplies it by a factor between
# $1 - \nu$ and $1 + \nu$. So each sum is at most half of the bound away from the exact sum. This is true for both
# orders, hence the factor two. There is no number format in which the bound is 0: more digits make the difference
# smaller, and never remove it.
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
say(f"""
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
# Lesson 03 showed that bfloat16 on both sides does not remove the gap. The next cell shows why. Our model is engine and
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
explain it. **So do not trust a switch: measure.** Exercise 2 is the mask that such a measurement needs.
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
# In [an issue of TRL](https://github.com/huggingface/trl/issues/6789) a contributor scored
# 3,916 tokens of Qwen2.5-0.5B with a trainer in bfloat16, 8 rows and 1 row at a time, without any engine. 8.0 % of the
# ratios were outside 0.9 to 1.1. Between vLLM and the trainer it was 7.5 %.
#
# ## What bitwise-consistent kernels give, and what they cost
#
# - Thinking Machines
#   [rewrote](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) the matrix product, the
#   normalisation and the attention so that their order does not depend on the batch (September 2025). Before, 1,000
#   greedy answers to one prompt had 80 different texts; after, all were equal.
# - The teams of vLLM and TorchTitan
#   [trained](https://blog.vllm.ai/2025/11/10/bitwise-consistent-train-inference.html) Qwen3-1.7B with the same kernels
#   in engine and trainer (November 2025). The KL divergence between the two was exactly 0 at every step, and the run
#   earned more reward in fewer steps than the one with different kernels. It was 2.4 times slower.
# - According to `docs/bitwise_parity.md` of [torchtitan](https://github.com/pytorch/torchtitan), the time per generated
#   token rises from 9.6 to 22.8 ms with batch invariance on Qwen3-8B.
#
# Such kernels do not change two things. The trainer's **backward** pass may still round differently from batch to
# batch. That is noise of the gradient, and no mismatch of two policies. And old weights are not rounding: an answer
# that older weights have sampled needs its ratio, whatever the kernels (lesson 13).
#
# ## A story: float32 that was not float32
#
# We once set engine and trainer to float32 on an H100, and expected a gap that is nearly 0, as on a CPU. On the random
# texts that check each sync, it was tens of millions of times larger.
#
# We excluded the other causes of lesson 03: no cut, no other temperature, and the same weights on both sides. So
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
# ## Exercise 1: a sum in parts
#
# *5 minutes.* `x` has `N` numbers in bfloat16. Return their sum as a kernel with `parts` parts computes it: within each
# run of `N / parts` neighbours one addition after the other, then the sums of the parts, from the first to the last.
# Every addition is rounded to bfloat16. `N` can be divided by `parts`.
#
# <details><summary>Hint 1</summary>The sum of two bfloat16 tensors is rounded to bfloat16. <code>x.sum()</code> is not
# what you want: it adds in another order, with more digits inside.</details>
# <details><summary>Hint 2</summary><code>x.view(parts, -1)</code> has one part per row. A loop over its columns adds in
# all parts at once.</details>


# %%
def sum_in_parts(x, parts):
    raise NotImplementedError("exercise 1: write sum_in_parts, then run this cell and the next.")


# %% tags=["check"]
check(sum_in_parts, IN_PARTS)


# %% tags=["solution", "hide-input"]
def sum_in_parts_solution(x, parts):
    def added(values):
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total

    return added([added(part) for part in x.view(parts, -1)])


check(sum_in_parts_solution, IN_PARTS)

# %% [markdown]
# ## Exercise 2: which tokens can be compared?
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
    raise NotImplementedError("exercise 2: write comparable, then run this cell and the next.")


# %% tags=["check"]
check(comparable, COMPARABLE)


# %% tags=["solution", "hide-input"]
def comparable_solution(first, second, mask):
    return ((first == second) & mask).cumprod(1).bool()


check(comparable_solution, COMPARABLE)

# %% [markdown]
# ## Exercise 3: the trainer's own part
#
# *5 minutes.* Three arrays of log-probs of the same tokens, `(B, T)`: the trainer with 8 rows at a time, `eight`; the
# trainer with one row at a time, `one`; and the engine, `engine`. Padding may contain anything. Return the mean k3 of
# `eight` against `one`, divided by the mean k3 of `eight` against `engine`.
#
# <details><summary>Hint 1</summary>k3 of a token is $e^d - 1 - d$, with $d$ = `eight` minus the other.</details>
# <details><summary>Hint 2</summary>Index with the mask first, then take the mean.</details>


# %%
def own_share(eight, one, engine, mask):
    raise NotImplementedError("exercise 3: write own_share, then run this cell and the next.")


# %% tags=["check"]
check(own_share, OWN_SHARE)


# %% tags=["solution", "hide-input"]
def own_share_solution(eight, one, engine, mask):
    def mean_k3(d):
        return (d.exp() - 1 - d)[mask].mean()

    return mean_k3(eight - one) / mean_k3(eight - engine)


check(own_share_solution, OWN_SHARE)

# %% [markdown]
# ## Check yourself
#
# **1. Engine and trainer both compute in bfloat16, and k3 is 0.002. A colleague proposes float16 on both sides. What
# will happen?**
#
# <details><summary>The gap becomes 0: then both formats are the same.</summary>No. They are the same now, too. The two
# sides add in different orders, and no format makes the order irrelevant.</details>
# <details><summary>The gap becomes smaller, because float16 has three more binary digits.</summary>Yes, if nothing
# overflows. In lesson 03 it left a fiftieth of the k3. It does not become 0.</details>
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
# - [a tiny model, bfloat16 on both sides](http://localhost:8501/mismatch?run=both_bf16).
#
# ## Pitfalls
#
# - **"Deterministic" is not "invariant".** A deterministic kernel gives the same bits for the same batch. That does not
#   say what it gives for another batch.
# - **Comparing texts.** Two greedy answers can be equal although no log-prob is. Compare log-probs.
# - **Comparing after the first difference.** From there on the two answers have different inputs.
# - **A single large |d|.** With an engine in bfloat16 the log-prob of a rare token may move by a quarter without any
#   fault (lesson 14: the largest |d| of the run `bf16`). Look at the mean.
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
