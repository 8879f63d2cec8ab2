# %% [markdown]
# # 06 · One model, two policies
#
# **Claim.** Rounding, the settings of the sampler, and old weights each turn one model into two policies. Three causes
# leave a recognisable pattern in the pairs of log-probs. The others change only the size of the gap, and one leaves no
# trace in the pairs at all.
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# *60 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00, and for one section the rare token of
# lesson 01. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - name seven causes of a mismatch, and say what each of them does to the pairs of log-probs;
# - recognise a cut, a temperature and a stale output head;
# - say what a mean ratio below 1 can mean;
# - find the cause that leaves no trace in the pairs;
# - say which remedies remove rounding, and which do not.
#
# ## Warm-up
#
# Two questions on older lessons.
#
# **1. A token has $q = 0.4$ and $p = 0.1$. What is its ratio, and does the engine write it too often or too rarely?**
# (Lesson 00)
#
# <details><summary>4; too rarely.</summary>No. The ratio is trainer over engine, p/q.</details>
# <details><summary>¼; too often, compared with the trainer.</summary>Yes.</details>
# <details><summary>¼; too rarely.</summary>No. The trainer would write it only a quarter as often.</details>
#
# **2. The engine gives a token the probability 0.001, and the trainer 0.03. In a sample of 100 tokens it does not
# occur. What is the mean ratio of this sample?** (Lesson 01)
#
# <details><summary>1, because ratios average to 1.</summary>No. They do so over all possible samples.</details>
# <details><summary>About 0.97.</summary>Yes. The missing token has 3 % of the trainer's probability.</details>
# <details><summary>About 30.</summary>No. That is the ratio of the missing token.</details>

# %% tags=["hide-input"]
import math
from collections import Counter

import sympy
import torch
from curves import curves
from exercises.two_policies import SAME_TOKENS, TEMPERATURE_BETWEEN
from recorded import load
from sentences import above, below, bracketed, reveal, say
from show import picture, show

from rlcorr import TokenBatch
from rlcorr.analysis.log_prob_pairs import RESOLVED, tokens_of
from rlcorr.analysis.log_prob_pairs import logits as logits_of
from rlcorr.analysis.triage import PER_TOKEN, triage
from rlcorr.figures.canvas import interval_bars
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.comparison import tails
from rlcorr.figures.mismatch import token_labels
from rlcorr.gradients.bootstrap import Interval, interval_of, resampled
from rlcorr.losses.per_token import reinforce
from rlcorr.measuring.gap_parts import age_part, engine_part
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)


# %% [markdown]
# ## By hand: one position, three tokens, five ways to disagree
#
# At one position the trainer gives the tokens X, Y, Z the probabilities ½, ¼, ¼. One of five things has happened to the
# engine:
#
# - **temperature ½**: it squares the probabilities and divides them by their sum;
# - **top-p ¾**: it keeps the most probable tokens until they have ¾ of the probability together, and removes Z;
# - **rounding**: each logit (the number before the softmax) is a little wrong;
# - **old weights**: it lacks an update that moved probability from Y to X;
# - **a stale row**: it lacks one part of an update, so the logit of Y alone is too low, by log 2.
#
# Compute $q$ and $r = p/q$ for the first two, and then run the cell.


# %%
def off(p, *by):
    """Return the probabilities after each logit has been shifted."""
    return (p.log() + torch.tensor(by, dtype=torch.float64)).softmax(-1)


p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
top_p, old = (torch.tensor(x, dtype=torch.float64) for x in ([2 / 3, 1 / 3, 0], [0.25, 0.5, 0.25]))
engines = {"temperature 1/2": p.square() / p.square().sum(), "top-p 3/4": top_p}
engines |= {"rounding": off(p, 0.02, 0, -0.02), "old weights": old, "stale row of Y": off(p, 0, -math.log(2), 0)}
show("r = p/q with", "X", "Y", "Z", "mean r", "mean k3")
for name, q in engines.items():
    d = log_ratio(p.log(), q.log(), q > 0)
    show(name, ratio(d).where(q > 0, torch.nan), (q * ratio(d)).sum(), (q * k3(d)).sum())

# %% [markdown]
# With all engines except one, the mean ratio is 1. The engine with top-p never samples Z. So a quarter of the trainer's
# probability is missing, and the mean ratio is the ¾ that is left.
#
# The last column is the mean of $k_3=r-1-\log r$. It is our measure of the size of a mismatch. It is never negative,
# and it is 0 only if all ratios are 1. If the mean ratio is 1, this mean is the **KL divergence** KL(q‖p), the average
# of $\log q - \log p$ over tokens from $q$ (lesson 02).
#
# ## The equation: one shift per token
#
# Let the trainer's logit of token $a$ be the engine's logit plus a shift $\Delta_a$. Then the probabilities are
#
# $$ p_a = \frac{q_a\,e^{\Delta_a}}{\sum_b q_b\,e^{\Delta_b}}, \qquad\text{so}\qquad
# d_a = \log\frac{p_a}{q_a} = \Delta_a - \log \sum_b q_b\,e^{\Delta_b} . $$
#
# For small shifts, the logarithm of the sum is nearly the average shift, and the divergence is nearly half the variance
# of the shifts:
#
# $$ d_a \approx \Delta_a - \sum_b q_b\,\Delta_b, \qquad
# \mathrm{KL}(q\Vert p)\approx\tfrac12\operatorname{Var}_q(\Delta) . $$
#
# For example, a temperature divides all logits by one number. So $p_a$ is proportional to $q_a^{1/\tau}$, where $\tau$
# is the trainer's temperature divided by the engine's, and the shift is $\Delta_a = (1/\tau - 1)\log q_a$.
#
# So to know a cause, we ask which shifts it makes:
#
# | cause | shift $\Delta_a$ | pattern in the pairs |
# |---|---|---|
# | **temperature**, $\tau$ times the engine's | $(1/\tau-1)\log q_a$ | at one position, $d$ is linear in $\log q$ |
# | **top-p, top-k**, a cut | 0 for kept tokens | $d$ is the log of the kept probability |
# | **a stale output head** | nearly constant per token | the same gap in log-odds at all its positions |
# | **rounding** | small, positive and negative | only a small $k_3$ |
# | **old weights** | anything | only the size of $d$ |
# | **updates that rounding hides** (lesson 11) | anything | only the size of $d$, which grows in training |
# | **a swapped expert** (lesson 15) | large at a few positions | a few very large or very small ratios |
#
# With a cut, no ratio is above 1, and the mean ratio is the kept probability. A gap in log-odds is
# $\log\frac{p}{1-p}-\log\frac{q}{1-q}$. We use it for a stale head because it is exactly $\Delta_a$ if only the logit
# of token $a$ is shifted (see the appendix). An expert is a part of the model.
#
# **Why does rounding make a gap?** Engine and trainer add the same numbers in a different order.
#
# By hand: bfloat16 keeps 8 binary digits, so between 256 and 512 it has only the even integers. There
# $(256+1)+1=256$, because 257 is rounded to 256 each time. But $256+(1+1)=258$. One binary digit less doubles $\Delta$,
# and multiplies $k_3$ by four.
#
# **Why is a stale head constant per token?** The output head is the last matrix of a model. It has one row per token,
# and the logit of a token is its row times a vector that describes the text. The vectors of different texts have much
# in common. So an old row makes nearly the same error everywhere.
#
# ## A cut in a real model
#
# In `smol_top_p`, SmolLM2-135M sampled with top-p: only from the most probable tokens, until these have nine tenths of
# the probability. Its trainer computes over all tokens. Both round to bfloat16. **Look for** the cells below the
# horizontal line at ratio 1. (A darker cell has more tokens. Blue is below 1, orange above.)

# %% tags=["hide-input"]
axes = {"xaxis.title.text": "probability in the engine, q", "yaxis.title.text": "ratio r = p/q"}
picture(ratio_density(load("smol_top_p", 0)).update_layout(axes))


# %% tags=["hide-input"]
def recorded(name):
    """Return all recorded steps of a run."""
    return [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]


def log_ratios(batch):
    return (batch.old_log_probs - batch.rollout_log_probs).where(batch.response_mask, 0)


def over_answers(values, mask):
    """Return the mean of (B, T) values over tokens, with its interval; the bootstrap draws whole answers."""
    drawn = resampled(len(mask), 1000, 0).double()
    return interval_of(drawn @ values.where(mask, 0).sum(-1) / (drawn @ mask.sum(-1).double()), signed=True)


def mean_ratio(batch):
    return over_answers(ratio(log_ratios(batch)), batch.response_mask)


def larger(batch, than=1.1):
    """Return the share of tokens with a ratio above this."""
    return float((log_ratios(batch) > math.log(than))[batch.response_mask].double().mean())


TOP_P, ROUNDING = runs.read_manifest(runs.find_run("top_p")).config["rollout"]["top_p"], 0.02
tiny = load("top_p")
in_strip = (log_ratios(tiny) > math.log(TOP_P) - ROUNDING) & (log_ratios(tiny) < ROUNDING)
strip = over_answers(in_strip.double(), tiny.response_mask)
first, coarse = load("smol_top_p", 0), load("smol_kv_fp8", 0)
replayed = [mean_ratio(step) for step in recorded("gpu_smol_replay")]
say(f"""
The mean ratio at this step is {below(mean_ratio(first), 1, 3)}. Only {larger(first):.1%} of the tokens have a ratio
above 1.1, compared with {larger(coarse):.1%} in `smol_kv_fp8`, whose cache rounds coarsely and where nothing is cut. In
the tiny model of `top_p`, which rounds much less, the pattern is sharp: with a top-p of {TOP_P},
{100 * strip.value:.1f} % of the tokens have a ratio from {TOP_P} to 1, if we allow an error of {ROUNDING} in $d$. (The
intervals of this lesson are bootstraps over answers.)

The remedy is to compute the trainer's probabilities among the tokens that were kept. `gpu_smol_replay` does so on a
GPU: its mean ratio at the recorded steps is {" and ".join(bracketed(x, 3) for x in replayed)}.
""")

# %% [markdown]
# ## A mean ratio below 1 can have another cause
#
# A cut removes tokens completely. But a token that the engine samples **hardly ever** is missing from a sample as well,
# although its recorded $q$ is right. (This was the rare token of lesson 01.) The missing token makes the mean ratio too
# low, and the standard error does not show it, because it is computed from the tokens that are there. Here is one token
# that the engine almost never writes, and a sample of ten thousand tokens.

# %%
rare_q, rare_p, tokens = 3e-6, 0.03, 10_000
show("probability that no such token is sampled", (1 - rare_q) ** tokens, digits=3)
show("then every ratio is", (1 - rare_p) / (1 - rare_q), digits=3)
show("… and the standard error is", 0.0, digits=3)

# %% [markdown]
# So if the recorded $q$ is right, a mean ratio significantly below 1 means one of two things: a cut, or tokens that the
# engine hardly ever samples. Both do the same harm: weights cannot restore tokens that are missing from the sample. To
# distinguish a top-p or top-k cut from coarse rounding or old weights, look at the ratios **above** 1: a cut leaves
# hardly any.
#
# ## A stale output head
#
# In `stale_head`, a run of a tiny model, every sync left the engine's output head as it was, and reported success. Each
# bar is the mean gap in log-odds over all positions at which the engine wrote this character; ⏎ is the token that ends
# an answer. **Look for** bars that are long compared with their error bars (95 % intervals).


# %% tags=["hide-input"]
def constants(name):
    """Return the mean gap of every token that occurs at least ten times in the last step, with its interval."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[-1])
    _, gap, ids = logits_of(tokens_of(record.batch))
    assert ids is not None
    mask = record.batch.response_mask & (record.batch.rollout_log_probs < RESOLVED)  # the tokens that `logits_of` keeps
    gap, ids = (torch.zeros(mask.shape, dtype=x.dtype).masked_scatter(mask, x) for x in (gap, ids))
    labels, counts = token_labels(record), Counter(ids[mask].tolist())
    frequent = [token for token in sorted(counts) if counts[token] >= 10]
    return {labels[token]: over_answers(gap.double(), mask & (ids == token)) for token in frequent}


def share_per_token(batch):
    """Return the share of the gap's variance that constants per token explain, 0 where triage finds none."""
    return max(symptom.numbers.get("share_per_token", 0.0) for symptom in triage(batch))


def drawn_again(batch, generator):
    """Return as many answers of the batch, drawn with replacement."""
    rows = torch.randint(len(batch.response_mask), (len(batch.response_mask),), generator=generator)
    names = ("response_mask", "rollout_log_probs", "old_log_probs", "response_ids")
    return TokenBatch(**{name: batch.tensors()[name][rows] for name in names})


stale = constants("stale_head")
drawn = interval_bars({"mean gap": stale}, "mean gap in log-odds")
picture(drawn.update_layout({"xaxis.title.text": "character that the engine wrote"}))

batch = load("stale_head")
shares = torch.tensor([share_per_token(batch), *(share_per_token(drawn_again(batch, generator)) for _ in range(200))])
share = interval_of(shares.double(), signed=False)
say(f"""
One constant per token explains a share of {above(share, PER_TOKEN)} of the gap's variance. **Triage** is the library's
search for patterns. It says "stale tensor" if this share is at least {PER_TOKEN}.
""")

# %% [markdown]
# ## Which remedies remove rounding?
#
# **The same format on both sides?** Would it help if the trainer rounded as the engine does? Three runs of a tiny model
# have the same prompts. `bf16` has an engine in bfloat16 and a trainer in float32. `both_bf16` has bfloat16 on both
# sides. `both_fp16` has float16 on both sides, which has three binary digits more.

# %% tags=["hide-input"]
STEPS, BLOCK = 40, 5


def first_k3(name):
    """Return k3 of each of the first steps of a run."""
    metrics = runs.read_metrics(runs.find_run(name))[:STEPS]
    return torch.tensor([of_step["rollout_corr/k3_kl"] for of_step in metrics], dtype=torch.float64)


def times_bf16(name):
    """Return k3 over that of bf16 at the same steps, their geometric mean; the bootstrap draws blocks of steps."""
    drawn = resampled(STEPS // BLOCK, 1000, 0).double().repeat_interleave(BLOCK, 1) / STEPS
    return interval_of((drawn @ (first_k3(name) / first_k3("bf16")).log()).exp(), signed=False)


say(f"""
- **bfloat16 on both sides does not help**: over the same {STEPS} steps, $k_3$ is {above(times_bf16("both_bf16"), 1)}
  times that of `bf16`. Each side rounds at different points of its computation.
- **float16 on both sides leaves a small gap**: $k_3$ is {below(times_bf16("both_fp16"), 1, 3)} times that of `bf16`.
  That is about what three binary digits more give, $1/8^2\\approx{1 / 64:.3f}$.

(There is one training run of each kind. The bootstrap draws blocks of {BLOCK} neighbouring steps, because these are
similar.)
""")

# %% [markdown]
# **The same kernels in the same order.** Rounding is not random. Two programs that add the same numbers in the same
# order get the same result, to the last bit. But the usual kernels choose the order by the size of the batch. So even
# one program disagrees with itself:
#
# - The engine. On two CPU cores, SmolLM2's engine in bfloat16 answered 64 prompts, once together and once one after the
#   other. Only 14.7 % of the log-probs were the same to the last bit, 12 of 64 answers differed, and the mean $|d|$ was
#   0.014. In float32, 22.6 % were the same, and the mean $|d|$ was 2e-6. (`make bench ARGS=invariance` prints this.)
# - The trainer. Scored in bfloat16 with 8 rows at a time and with 1 row at a time, without any engine, the same answers
#   have 40 % of the $k_3$ between trainer and engine. (`make bench ARGS=smol` measured it on a GPU, see
#   `runs/README.md`.)
#
# Kernels whose result does not depend on the batch are called **batch-invariant**
# ([explanation](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)). If engine and trainer
# use the same ones, the gap of rounding is exactly 0: torchtitan reports a KL of up to 0.0084 without them and of 0
# with them, for Qwen3-8B, and 22.8 instead of 9.6 ms per token ([bitwise
# parity](https://github.com/pytorch/torchtitan/blob/main/docs/bitwise_parity.md)). So the same *format* is no remedy;
# the same *kernels in the same order* are one, and they cost time. Lesson 15 is about this.
#
# ## The chart
#
# These are ten runs. For the last recorded step of each, the chart has the size $k_3$, the mean ratio with its
# interval, and the share of tokens whose ratio is more than a tenth above 1. The last column has what triage says about
# the pairs of **each** recorded step: **clean** (there is no gap), **precision** (a gap as large as rounding to 16 bits
# makes), **undecided** (a larger gap, and no pattern), or the name of the pattern that it recognised. "Top-p mass" is a
# cut.
#
# The `smol_` runs are SmolLM2. `smol_fp32` computes in float32 on both sides, `smol_kv_fp8` and `smol_kv_fp8_e5m2` have
# a KV cache in 8 bits, fine and coarse, and `smol_stale_6` has weights that are six updates old. The last three runs
# are of tiny models: in `temperature_raw` the engine samples at a temperature below 1, and `moe_bf16` is a mixture of
# experts.

# %%
TEN = "smol_fp32", "smol_bf16_both", "smol_kv_fp8", "smol_kv_fp8_e5m2", "smol_bf16", "smol_stale_6", "smol_top_p"
TEN += "stale_head", "temperature_raw", "moe_bf16"
show("last step of", "k3", "mean r", "from", "to", "r > 1.1", "", "triage, at the recorded steps")
for name in TEN:
    last = load(name)
    size, mean = k3(log_ratios(last))[last.response_mask].mean(), mean_ratio(last)
    patterns = Counter(triage(step)[0].pattern for step in recorded(name))
    findings = ", ".join(f"{pattern} {times}×" for pattern, times in patterns.items())
    show(name, f"{size:.0e}", mean.value, mean.low, mean.high, larger(last), "", findings, digits=3)

# %% tags=["hide-input"]
PATTERNS = {name: {triage(step)[0].pattern for step in recorded(name)} for name in TEN}
for pattern, run in {"top-p mass": "smol_top_p", "stale tensor": "stale_head"}.items():
    assert PATTERNS[run] == {pattern}
    assert [name for name, patterns in PATTERNS.items() if pattern in patterns] == [run]
UNDECIDED = "smol_kv_fp8", "smol_kv_fp8_e5m2", "smol_bf16", "smol_stale_6"
assert all(PATTERNS[run] == {"undecided"} for run in UNDECIDED)
assert all(PATTERNS[run] == {"precision"} for run in ("smol_bf16_both", "temperature_raw", "moe_bf16"))
means = [mean_ratio(step) for name in TEN if name not in ("smol_top_p", "smol_fp32") for step in recorded(name)]
low, high = sum(x.high < 1 for x in means), sum(x.low > 1 for x in means)
split = load("gpu_smol_stale_6")
parts = [float(k3(log_ratios(part(split)))[split.response_mask].mean()) for part in (engine_part, age_part)]
say(f"""
- `smol_top_p` and `stale_head` are recognised at every step, and no other run is taken for them.
- Four runs are **undecided**: coarse rounding, old weights and hidden updates make gaps of the same size. Look at the
  versions of the weights and at the engine's settings. Or measure once more: let the trainer also score the answers
  with the old weights, those that sampled. `gpu_smol_stale_6` does this, so its gap has two parts: a $k_3$ of
  {parts[0]:.4f} by the engine, and of {parts[1]:.3f} by the age of the weights.
- `temperature_raw` and `moe_bf16` get the same answer as `smol_bf16_both`, **precision**: gaps of this size have been
  measured for rounding to 16 bits. Size alone proves nothing.
- The mean ratio. Apart from `smol_top_p` and `smol_fp32`, the interval contains 1 at {len(means) - low - high} of
  {len(means)} steps, is below 1 at {low} and above 1 at {high}. At the last step of `smol_bf16` it is
  {below(mean_ratio(load("smol_bf16")), 1, 3)}, although nothing is cut. Rare tokens are probably missing there, as in
  the section above. Its large share of ratios above 1.1 shows that it is no cut.
""")
assert low > high

# %% [markdown]
# ## Predict, then reveal
#
# In `temperature_raw` the engine samples at a temperature below 1, but reports the log-probs at temperature 1. These
# are called **raw** log-probs, and they are vLLM's default. The trainer computes at temperature 1, too. **Write down a
# guess:**
#
# 1. Would a cap or a rejection rule change this batch?
# 2. The mean ratio is 1. So is the gradient right?
# 3. Is there any number on a dashboard that looks wrong?
#
# A hint: the **surprise** of a token is $-\log q$. The **entropy** of a policy, which trainers report, is the average
# surprise over tokens that this policy itself samples.


# %%
def entropies(name):
    run = runs.find_run(name)
    return [runs.read_metrics(run)[step - 1]["entropy"] for step in runs.list_steps(run)]


show("last step of", "entropy", "surprise", "from", "to")
for name in TEN:
    batch, entropy = load(name), entropies(name)[-1]
    surprise = over_answers(-batch.rollout_log_probs, batch.response_mask)
    show(name, entropy, surprise.value, surprise.low, surprise.high)

# %% tags=["hide-input"]
SAFE = "smol_top_p", "temperature_raw"


def sides(names):
    """Count over all recorded steps: intervals of the surprise that are below the entropy, around it, above it."""
    pairs = [(step, entropy) for name in names for step, entropy in zip(recorded(name), entropies(name), strict=True)]
    surprises = [(over_answers(-step.rollout_log_probs, step.response_mask), entropy) for step, entropy in pairs]
    return Counter("below" if x.high < e else "above" if x.low > e else "around" for x, e in surprises)


batch = load("temperature_raw")
r = ratio(log_ratios(batch))[batch.response_mask]
safe, rest = sides(SAFE), sides([name for name in TEN if name not in SAFE])
assert set(safe) == {"below"} and not rest["below"]  # noqa: PT018
reveal(f"""
1. No. At the last step all ratios are between {r.min():.2f} and {r.max():.2f}.
2. No. Ratios average to 1 over tokens that were **sampled from** $q$. Here neither of the two log-probs belongs to the
   policy that sampled, the one at the lower temperature. So no correction helps.
3. Yes, but no function of the pairs can show it. A sampler with a low temperature, or with a cut, avoids surprising
   tokens. At all {safe["below"]} recorded steps of `temperature_raw` and `smol_top_p`, the interval of the surprise is
   below the trainer's entropy. In the other runs it is below at none of {rest.total()} steps. (It is above at
   {rest["above"]}: there the engine's policy has a higher entropy than the trainer's.) **So look at the entropy
   together with the mean of $-\\log q$.**

The remedy: let the engine report **processed** log-probs, those of the distribution from which it sampled.
""")

# %% [markdown]
# ## Exercise 1: which temperature?
#
# *5 minutes.* You get both sides' log-probs of **all** tokens at one position, `log_p` and `log_q`, both `(V,)`. They
# differ by a temperature. Return $\tau$: the trainer's temperature divided by the engine's.
#
# <details><summary>Hint 1</summary>The sum that normalises is the same for all tokens. How can you remove it?</details>
# <details><summary>Hint 2</summary>For two tokens, log p_a − log p_b = (log q_a − log q_b)/τ.</details>


# %%
def temperature_between(log_p, log_q):
    raise NotImplementedError("exercise 1: write temperature_between, then run this cell and the next.")


# %% tags=["check"]
check(temperature_between, TEMPERATURE_BETWEEN)


# %% tags=["solution", "hide-input"]
def temperature_between_solution(log_p, log_q):
    return (log_q.max() - log_q.min()) / (log_p.max() - log_p.min())


check(temperature_between_solution, TEMPERATURE_BETWEEN)

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a batch is 0.97, with a standard error of 0.001. What may be the cause?**
#
# <details><summary>Chance: 0.97 is nearly 1.</summary>No. It is thirty standard errors below 1.</details>
# <details><summary>A cut that keeps 0.97 of the probability, or tokens that the engine hardly ever samples.</summary>
# Yes. The standard error cannot know about tokens that are not in the sample. Look at the ratios above 1 and at the
# engine's settings.</details>
# <details><summary>Certainly a cut: all other causes keep the mean at 1.</summary>They keep the average over all
# possible samples at 1. In one sample, rare tokens with large ratios may be missing.</details>
#
# **2. Engine and trainer change from bfloat16 to float16, which has three binary digits more. What happens to k3?**
#
# <details><summary>It falls to an eighth.</summary>No, that is what d does. k3 is about ½d², a square.</details>
# <details><summary>It falls to about 1/64.</summary>Yes. Each digit halves d, and divides k3 by four.</details>
# <details><summary>Nothing: both have 16 bits.</summary>No. float16 uses fewer of them for the exponent.</details>
#
# **3. Triage says "undecided". What do you do?**
#
# <details><summary>I conclude that the weights are old.</summary>Perhaps they are, but a cache in 8 bits and hidden
# updates make gaps of the same size.</details>
# <details><summary>I look at the versions of the weights and at the engine's settings, or let the trainer score the
# answers with the weights that sampled.</summary>Yes. These are things that the pairs do not contain.</details>
# <details><summary>I add a tighter cap.</summary>Not first. A cap hides a bug as well as a mismatch.</details>
#
# ## In the app
#
# After `make app`:
#
# - [a cut](http://localhost:8501/mismatch?run=smol_top_p&step=5): nearly all cells are below the line;
# - [a stale output head](http://localhost:8501/mismatch?run=stale_head&step=latest): the bars per token;
# - [coarse rounding](http://localhost:8501/mismatch?run=smol_kv_fp8_e5m2&step=latest) and [old
#   weights](http://localhost:8501/mismatch?run=smol_stale_6&step=latest);
# - [the cause that leaves no trace](http://localhost:8501/mismatch?run=temperature_raw&step=latest).
#
# ## Pitfalls
#
# - **Raw log-probs.** vLLM reports them unless it gets `logprobs_mode="processed_logprobs"`. Then $d$ looks perfect.
# - **Temperature on one side.** TRL's trainer divided by it, and vLLM's raw log-probs did not: ratios of about 2 at a
#   temperature of 0.6 ([issue 4159](https://github.com/huggingface/trl/issues/4159)).
# - **Masks** of tokens that must not be written are cuts: the trainer must apply them, too. A **repetition penalty** is
#   none. It shifts logits, so there are ratios on both sides of 1, and their mean is 1.
# - **A small $k_3$** does not prove that the sync works. The gap of a stale head is small at first, and grows. In
#   `stale_head` it becomes more than fifty times as large within ten steps ([its
#   steps](http://localhost:8501/?run=stale_head)).
#
# ## References
#
# 1. Feng Yao et al., [Your Efficient RL Framework Secretly Brings You Off-Policy RL
#    Training](https://fengyao.notion.site/off-policy-rl), 2025: the gap between engine and trainer, named and measured.
# 2. Qi et al., [Defeating the Training-Inference Mismatch via FP16](https://arxiv.org/abs/2510.26788), 2025: three more
#    digits, and what they are worth.
# 3. vLLM, [Engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, raw and
#    processed.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Exercise 2: undo the cut
#
# *7 minutes.* The engine sampled with top-p, and recorded **which** tokens it had kept. For each position, return the
# trainer's log-prob of the sampled token among the kept ones. `log_p` and `kept` are `(N, V)`, `token` is `(N,)`.
#
# <details><summary>Hint 1</summary>Divide by the probability that was kept. In logarithms, subtract.</details>
# <details><summary>Hint 2</summary>The log of this probability is <code>torch.where(kept, log_p,
# -torch.inf).logsumexp(-1)</code>.</details>


# %%
def log_prob_among_kept(log_p, kept, token):
    raise NotImplementedError("exercise 2: write log_prob_among_kept, then run this cell and the next.")


# %% tags=["check"]
check(log_prob_among_kept, SAME_TOKENS)


# %% tags=["solution", "hide-input"]
def log_prob_among_kept_solution(log_p, kept, token):
    among = torch.where(kept, log_p, -torch.inf).log_softmax(-1)
    return among.gather(-1, token[:, None])[:, 0]


check(log_prob_among_kept_solution, SAME_TOKENS)

# %% [markdown]
# Now both log-probs are those of the cut policy. A contributor to TRL reports a mean ratio of 0.896 before this repair
# and 1.001 after it, with top-p 0.8 among 1,024 tokens, in a [pull
# request](https://github.com/huggingface/trl/pull/7269) that was closed without being merged.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks. The lesson does not depend on them.

# %% [markdown]
# ### The equation and the patterns, with symbols
#
# Let $o_a$ be the gap in log-odds. With $q_b/(1 - q_a)$, the engine's share of token $b$ among the other tokens, it is
#
# $$ o_a = \log\frac{p_a}{1-p_a} - \log\frac{q_a}{1-q_a}
# = \Delta_a - \log \sum_{b \ne a} \frac{q_b}{1 - q_a}\, e^{\Delta_b} . $$
#
# A lower temperature always lowers the surprise. For tokens that are sampled from $p_\tau \propto p^{1/\tau}$,
#
# $$ \frac{d}{d(1/\tau)}\, \mathbb{E}_{p_\tau}[-\log p] = -\operatorname{Var}_{p_\tau}(\log p) \le 0 . $$

# %%
q = sympy.symbols("q_X q_Y q_Z", positive=True)
f = sympy.symbols("f_X f_Y f_Z", positive=True)  # e to the power of the shift
unit = [x / sum(q) for x in q]  # probabilities
shifted = [x * y / sum(a * b for a, b in zip(unit, f, strict=True)) for x, y in zip(unit, f, strict=True)]
for a in range(3):
    odds = shifted[a] / (1 - shifted[a]) / (unit[a] / (1 - unit[a]))  # e to the power of the gap
    rest = sum(unit[b] / (1 - unit[a]) * f[b] for b in range(3) if b != a)
    assert sympy.simplify(odds - f[a] / rest) == 0

cold = sympy.symbols("cold", positive=True)  # 1/τ
heated = [x**cold / sum(y**cold for y in unit) for x in unit]
line = sympy.log(heated[0] / unit[0]) - sympy.log(heated[1] / unit[1])
assert sympy.simplify(sympy.expand_log(line - (cold - 1) * sympy.log(q[0] / q[1]), force=True)) == 0

surprise = sum(-x * sympy.log(y) for x, y in zip(heated, unit, strict=True))
variance = sum(x * sympy.log(y) ** 2 for x, y in zip(heated, unit, strict=True)) - surprise**2
assert sympy.simplify(sympy.diff(surprise, cold) + variance) == 0

t, delta = sympy.symbols("t"), sympy.symbols("Delta_X Delta_Y Delta_Z")
total = sum(x * sympy.exp(t * s) for x, s in zip(unit, delta, strict=True))
mean = sum(x * s for x, s in zip(unit, delta, strict=True))
divergence = sympy.log(total) - t * mean  # the mean of −d over q
spread = sympy.Add(*(x * (s - mean) ** 2 for x, s in zip(unit, delta, strict=True)))
assert sympy.simplify(sympy.diff(divergence, t).subs(t, 0)) == 0
assert sympy.simplify((sympy.diff(divergence, t, 2) - spread).subs(t, 0)) == 0  # KL is ½ t² times the variance
show("log-odds, temperature, surprise, KL", "proved")

# %% [markdown]
# ### A temperature, found in pairs alone
#
# A batch has one token per position, and the sum that normalises differs from position to position. So the straight
# line of a temperature is blurred. Triage looks for it nevertheless. Here it gets batches that are sampled at a lower
# temperature, at positions of recorded runs at which the log-probs of all next tokens are stored.

# %%
RUNS = "control_fp32", "bf16", "kv_fp8", "stale_4", "async", "top_p", "temperature_raw", "stale_head"
COOLED, BATCHES, TIMES = 0.7, 20, 12


def places(name):
    """Return the trainer's log-probs of every next token at the recorded positions of a run's last step, (N, V)."""
    run = runs.find_run(name)
    next_tokens = read_sketch(run, runs.list_sketches(run)[-1]).next_tokens
    assert next_tokens is not None
    return next_tokens.log_probs.double()


def drawn_batch(log_p, log_q, generator):
    """Return a batch of one-token answers: at each position some tokens from q, with their pairs of log-probs."""
    token = torch.multinomial(log_q.exp(), TIMES, replacement=True, generator=generator).flatten()[:, None]
    old, rollout = (x.repeat_interleave(TIMES, 0).gather(-1, token) for x in (log_p, log_q))
    return TokenBatch.from_log_probs(old, rollout, torch.ones_like(token)).replace(response_ids=token)


# %% tags=["hide-input"]
log_p = torch.cat([places(name) for name in RUNS]).log_softmax(-1)
log_q = (log_p / COOLED).log_softmax(-1)
findings = [triage(drawn_batch(log_p, log_q, generator))[0] for _ in range(BATCHES)]
named = [finding for finding in findings if finding.pattern == "temperature"]
guesses = torch.tensor([finding.numbers["temperature"] for finding in named], dtype=torch.float64)
half = 2 * float(guesses.std()) / len(named) ** 0.5
guess = Interval(float(guesses.mean()), float(guesses.mean()) - half, float(guesses.mean()) + half)
say(f"""
The engine's temperature was {COOLED}, so the trainer's is {1 / COOLED:.3f} times as high. Triage names a temperature in
{len(named)} of {BATCHES} batches. Its estimate is {above(guess, 1 / COOLED, 3)} on average, a little too high. A likely
reason is that the normalising sum varies with $q$.
""")

# %% [markdown]
# ### Rounding, digit by digit
#
# We take random logits and round them to few or many binary digits. Averages over tokens from the rounded policy are
# exact sums. **Look for** the two lines: they are nearly the same, so one digit less doubles $d$. A real engine rounds
# in every layer, not only at the end.

# %%
assert torch.tensor(256.0, dtype=torch.bfloat16) + 1 + 1 == 256  # as by hand


def rounded(x, digits):
    """Round x to so many binary digits, to nearest, ties to even."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**digits).round(), exponent - digits)


logits = 4 * torch.randn(500, 21, dtype=torch.float64, generator=generator)
formats, typical, exact_kl, predicted_kl = list(range(3, 25)), [], [], []
for digits in formats:
    error = rounded(logits, digits) - logits
    d, q = logits.log_softmax(-1) - (logits + error).log_softmax(-1), (logits + error).softmax(-1)
    typical.append(float((q * d.square()).sum(-1).mean().sqrt()))
    exact_kl.append(float((q * k3(d)).sum(-1).mean()))
    predicted_kl.append(float(((q * error.square()).sum(-1) - (q * error).sum(-1).square()).mean() / 2))
halved = [typical[0] * 2.0 ** (3 - digits) for digits in formats]
lines = {"rounded logits": typical, "half as much per digit": halved}
picture(curves(formats, lines, x_name="binary digits", y_name="typical |d|, root of the mean square", log="y"))

# %%
FORMATS = {"e5m2": 3, "e4m3": 4, "bfloat16": 8, "float16": 11, "float32": 24}
show("format", *FORMATS)
picked = [formats.index(digits) for digits in FORMATS.values()]
for label, values in (("KL(q‖p)", exact_kl), ("half the variance of the shifts", predicted_kl)):
    show(label, [f"{values[n]:.1e}" for n in picked])
assert all(abs(exact_kl[n] / predicted_kl[n] - 1) < 0.1 for n in picked[:-1])

show("before the first step of a run", "tokens", "mean |d|")
for name in ("control_fp32", "both_fp16", "bf16", "kv_fp8", "kv_fp8_e5m2"):
    probe = runs.read_manifest(runs.find_run(name)).probe
    show(name, probe["tokens"], f"{probe['abs_log_ratio']:.1e}")

# %% [markdown]
# No setting is wrong in these runs, and no code has a bug. A mismatch of this size is normal. How well can one step
# distinguish the formats? These are intervals of $k_3$ over the answers of one recorded step:


# %% tags=["hide-input"]
def millionths(name):
    """Return k3 of the first recorded step, with its interval over answers."""
    batch = load(name, 0)
    of_answers = over_answers(k3(log_ratios(batch)), batch.response_mask)
    return Interval(1e6 * of_answers.value, 1e6 * of_answers.low, 1e6 * of_answers.high)


say(f"""
In millionths, it is {bracketed(millionths("bf16"), 0)} in `bf16` and {bracketed(millionths("both_bf16"), 0)} in
`both_bf16`. These intervals overlap, so one step cannot distinguish the two. In `both_fp16` it is
{above(millionths("both_fp16"), 0, 1)}.
""")
assert millionths("both_fp16").high < min(millionths("bf16").low, millionths("both_bf16").low)

# %% [markdown]
# ### A swapped expert
#
# A **mixture of experts** sends each token through a few of its parts, which are chosen by a score. If two scores are
# nearly equal, rounding can swap them, and then another part of the model computes the token. Both runs of the picture
# are in bfloat16: `moe_bf16` is a mixture, `bf16` a plain model. **Look for** the right ends of the lines: the largest
# gaps. In `moe_replay` the trainer takes the experts that the engine chose (lesson 15).

# %%
drawn = tails(load("moe_bf16"), load("bf16"))
NAMES = {"A": "moe_bf16", "B": "bf16"}
drawn.for_each_trace(lambda trace: trace.update(name=NAMES.get(trace.name, trace.name)))
picture(drawn)
show("largest ratio or 1/ratio, at each step")
for name in ("bf16", "moe_bf16", "moe_replay"):
    show(name, [float(log_ratios(step).abs().max().exp()) for step in recorded(name)], digits=1)

# %% [markdown]
# ### One stale tensor, or all
#
# These are texts whose vectors have a part in common, and two engines that each miss an update. One misses the update
# of the head, the other that of the vectors. What share of the variance of the gap in log-odds is **between** tokens?

# %%
width, vocabulary, texts = 16, 21, 300
normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
vectors, head = normal(width) + 0.5 * normal(texts, width), 0.5 * normal(vocabulary, width)
old_vectors, old_head = vectors - 0.1 * normal(texts, width), head - 0.05 * normal(vocabulary, width)


def share_between_tokens(log_p, log_q):
    """Return the variance of the mean gap per token over that of the gap, with equal weights."""
    gap = torch.special.logit(log_p.exp()) - torch.special.logit(log_q.exp())  # (texts, tokens)
    return float(gap.mean(0).var(correction=0) / gap.var(correction=0))


scored = (vectors @ head.T).log_softmax(-1)
for name, engine in {"old head": vectors @ old_head.T, "old vectors": old_vectors @ head.T}.items():
    log_q = engine.log_softmax(-1)
    pattern = triage(drawn_batch(scored, log_q, generator))[0].pattern
    show(name, share_between_tokens(scored, log_q), "", pattern)

# %% [markdown]
# ### Four tutorials
#
# A frequent mismatch needs no engine. A program samples with a temperature or a cut, and trains with
# `log_softmax(logits)`, as if it had sampled without them. Four teaching repositories that many people learn from do
# so:
#
# - [nanochat](https://github.com/karpathy/nanochat/tree/92d63d4), `chat_rl.py`, samples with top-k 50, trains on the
#   full softmax, and says "we are on policy";
# - [reasoning-from-scratch](https://github.com/rasbt/reasoning-from-scratch/tree/f79c9cd), `ch06.py`, samples at
#   temperature 0.8 with top-p 0.9, trains on the full softmax at temperature 1, and does not say so;
# - [rlhf-book](https://github.com/natolambert/rlhf-book/tree/a66b0bf), `policy_gradients`, samples at temperature 0.6
#   with top-p 0.95 and top-k 20, trains on the full softmax at temperature 1, and its docstring says the opposite;
# - [nano-aha-moment](https://github.com/McGill-NLP/nano-aha-moment/tree/6cd0306) samples with top-p 0.999, trains on
#   the full softmax, and says why.
#
# They are good tutorials. The mistake is easy to make, because nothing fails, the reward climbs, and no ratio is ever
# computed. What does it cost? We take random logits and a random advantage for each token, and compute exact averages:

# %%
logits, advantage = 3 * normal(200, 2000), normal(200, 2000)


def sampler(logits, temperature, top_k, top_p):
    """Return the sampler's log-probs, −∞ for what is cut: first temperature, then top-k, then top-p, as in vLLM."""
    log_q = (logits / temperature).log_softmax(-1)
    if top_k:
        log_q = torch.where(log_q >= log_q.topk(top_k, -1).values[:, -1:], log_q, -torch.inf).log_softmax(-1)
    ordered, order = log_q.exp().sort(-1, descending=True)
    kept = torch.zeros_like(log_q, dtype=torch.bool).scatter(-1, order, ordered.cumsum(-1) - ordered < top_p)
    return torch.where(kept, log_q, -torch.inf).log_softmax(-1)


# %%
def trained(q):
    """Return −∇ of the mean loss −A log p over tokens from q, with the mean advantage as the baseline."""
    leaf = logits.clone().requires_grad_()
    loss = (q * reinforce(leaf.log_softmax(-1), advantage - (q * advantage).sum(-1, keepdim=True))).sum()
    return -torch.autograd.grad(loss, leaf)[0]


wanted = trained(logits.softmax(-1))
show("sampled with (temperature, top-k, top-p)", "mean r", "cosine", "length", digits=3)
for setting in ((1.0, 0, 1.0), (1.0, 50, 1.0), (0.8, 0, 0.9), (0.6, 20, 0.95), (1.0, 0, 0.999)):
    log_q = sampler(logits, *setting)
    r, got = ratio(log_ratio(logits.log_softmax(-1), log_q, log_q.isfinite())), trained(log_q.exp())
    cosine = torch.cosine_similarity(got.flatten(), wanted.flatten(), 0)
    show(str(setting), (log_q.exp() * r).sum(-1).mean(), cosine, got.norm() / wanted.norm(), digits=3)

# %% [markdown]
# The last two columns compare the gradient that is used with the one that is meant: by direction (a cosine of 1 is the
# same direction) and by length. With a cut or a low temperature, likely tokens are sampled more often than the policy
# says, so the gradient has another direction and is longer. How much this is for a real model depends on how certain it
# is of its tokens. The mean ratio would have shown it at the first step, at the price of one more forward pass.
