# %% [markdown]
# # 03 · One model, two policies
#
# **Claim.** Rounding, a sampler's setting and weights that came too late each turn one model into two policies; a cut,
# a temperature and a stale output head leave marks of their own in the pairs of log-probs, other causes only a size,
# and one leaves nothing.
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# *30 minutes · beginner · any laptop; no GPU, no network.* You need lesson 00. Letters: [Notation](NOTATION.md).
#
# At the end you can name six causes of a mismatch and their marks in $d$, and find the one that leaves none.

# %% tags=["hide-input"]
import math
import warnings
from collections import Counter

import sympy
import torch
from curves import bars, curves
from exercises.lesson_03 import SAME_TOKENS, SURPRISE, TEMPERATURE_BETWEEN
from recorded import load
from sentences import above, below, bracketed, say
from show import picture, show

from rlcorr import TokenBatch
from rlcorr.analysis.log_prob_pairs import logits as logits_of
from rlcorr.analysis.log_prob_pairs import tokens_of
from rlcorr.analysis.triage import PER_TOKEN, triage
from rlcorr.figures.cells import ratio_density
from rlcorr.figures.comparison import tails
from rlcorr.figures.mismatch import token_labels
from rlcorr.gradients.bootstrap import Interval, interval_of, resampled
from rlcorr.losses.per_token import reinforce
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)

# %% [markdown]
# ## By hand: one place, three tokens, five ways to disagree
#
# The trainer gives the tokens X, Y, Z the probabilities ½, ¼, ¼. One of five things has happened to the engine:
#
# - **temperature ½**: it squares the probabilities and divides them by their sum;
# - **top-p ¾**: it keeps the most probable tokens until they hold ¾ of the probability, and drops Z;
# - **rounding**: each logit (the number before the softmax) is off a little;
# - **older weights**: it lacks an update that moved probability from Y to X;
# - **a stale row**: it lacks part of an update, so the logit of Y alone is too low, by log 2.
#
# Compute $q$ and $r = p/q$ for the first two, then run the cell.


# %%
def off(p, *by):
    """The probabilities after each logit has moved."""
    return (p.log() + torch.tensor(by, dtype=torch.float64)).softmax(-1)


p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
top_p, old = (torch.tensor(x, dtype=torch.float64) for x in ([2 / 3, 1 / 3, 0], [0.25, 0.5, 0.25]))
engines = {"temperature 1/2": p.square() / p.square().sum(), "top-p 3/4": top_p}
engines |= {"rounding": off(p, 0.02, 0, -0.02), "older weights": old, "stale row of Y": off(p, 0, -math.log(2), 0)}
show("r = p/q of", "X", "Y", "Z", "mean r", "mean k3")
for name, q in engines.items():
    d = log_ratio(p.log(), q.log(), q > 0)
    show(name, ratio(d).where(q > 0, torch.nan), (q * ratio(d)).sum(), (q * k3(d)).sum())

# %% [markdown]
# All engines but one have a mean ratio of 1. Top-p never draws Z, so a quarter of the trainer's probability
# is missing: the mean ratio is the ¾ that is left. The mean of $k_3=r-1-\log r$ is the size of a mismatch: where the
# mean ratio is 1, it is KL(q‖p) (lesson 08).
#
# ## The equation: one shift per token
#
# The trainer's logit of token $a$ is the engine's plus a shift $\Delta_a$, so $p_a\propto q_ae^{\Delta_a}$, and
#
# $$ d_a=\Delta_a-\log\sum_bq_b\,e^{\Delta_b}\approx\Delta_a-\sum_bq_b\,\Delta_b,\qquad
# \mathrm{KL}(q\|p)\approx\tfrac12\operatorname{Var}_q(\Delta), $$
#
# (≈ for small shifts). Each cause has its shape of $\Delta$:
#
# | cause | shift $\Delta_a$ | mark |
# |---|---|---|
# | **temperature**, trainer's over engine's: $\tau$ | $(1/\tau-1)\log q_a$ | at one place, $d$ is linear in $\log q$ |
# | **top-p, top-k** | 0 on what is kept | $d$ is the log of the kept mass: no ratio above 1; their mean is that mass |
# | **rounding** | small, of either sign | a small $k_3$ |
# | **older weights** | anything | only the size of $d$ |
# | **a stale output head** | nearly constant per token | the same gap in log-odds wherever the token is written |
# | **a swapped expert** (a part of the model, lesson 14) | large at few places | a few enormous ratios |
#
# **Why rounding?** Engine and trainer add the same numbers in another order.
#
# By hand: bfloat16 keeps 8 binary digits, so near 256 it holds only every second integer. There $(256+1)+1=256$, but
# $256+(1+1)=258$. One digit less doubles $\Delta$, and quadruples $k_3$.
#
# **Why a constant per token?** The output head, the last matrix, has a row for each token; the logit is this row times
# a vector of the text. These vectors have much in common, so an old row is off by nearly the same everywhere.
#
# ## Two marks on recorded data
#
# In the run `top_p` the engine drew from the most probable tokens alone. **Look for** the strip (darker: more tokens):
# nearly all lie just below the line $r=1$.

# %%
drawn = ratio_density(load("top_p"))
picture(drawn.update_layout({"xaxis.title.text": "probability in the engine, q", "yaxis.title.text": "ratio r = p/q"}))


# %% tags=["hide-input"]
def recorded(name):
    """All recorded steps of a run."""
    return [load(name, n) for n in range(len(runs.list_steps(runs.find_run(name))))]


def log_ratios(batch):
    return (batch.old_log_probs - batch.rollout_log_probs).where(batch.response_mask, 0)


def over_answers(values, mask):
    """The mean of (B, T) values over tokens, with its interval; the bootstrap draws whole answers."""
    drawn = resampled(len(mask), 1000, 0).double()
    return interval_of(drawn @ values.where(mask, 0).sum(-1) / (drawn @ mask.sum(-1).double()), signed=True)


TOP_P, ROUNDING = runs.read_manifest(runs.find_run("top_p")).config["rollout"]["top_p"], 0.02
batch = load("top_p")
in_strip = (log_ratios(batch) > math.log(TOP_P) - ROUNDING) & (log_ratios(batch) < ROUNDING)
strip = over_answers(in_strip.double(), batch.response_mask)
mean_ratio = over_answers(ratio(log_ratios(batch)), batch.response_mask)
say(f"""
With a top-p of {TOP_P}, ratios lie between {TOP_P} and 1. Give or take {ROUNDING} in $d$, {100 * strip.value:.1f} % of
the tokens do. The mean ratio is {below(mean_ratio, 1, 3)}. (Intervals here are bootstraps over answers.)
""")

# %% [markdown]
# In `stale_head` every sync left the output head as it was, and reported success. Each bar is the mean gap in log-odds,
# $\log\frac{p}{1-p}-\log\frac{q}{1-q}$, where the engine wrote this character. **Look for** bars that are long beside
# their error bars (two standard errors).


# %% tags=["hide-input"]
def constants(name):
    """Of the last step: the mean gap per token that occurs at least ten times, and its standard error."""
    run = runs.find_run(name)
    record = runs.read_step(run, runs.list_steps(run)[-1])
    _, gap, ids = logits_of(tokens_of(record.batch))
    assert ids is not None
    labels = token_labels(record)
    groups = {labels[token]: gap[ids == token] for token in ids.unique().tolist()}
    return {label: (float(x.mean()), float(x.std() / len(x) ** 0.5)) for label, x in groups.items() if len(x) >= 10}


def share_per_token(batch):
    """Of the variance of the gap: the share that constants per token explain, 0 where triage finds none."""
    return triage(batch)[0].numbers.get("share_per_token", 0.0)


def drawn_again(batch, generator):
    """As many answers of the batch, drawn with replacement."""
    rows = torch.randint(len(batch.response_mask), (len(batch.response_mask),), generator=generator)
    names = ("response_mask", "rollout_log_probs", "old_log_probs", "response_ids")
    return TokenBatch(**{name: batch.tensors()[name][rows] for name in names})


stale = constants("stale_head")
means, errors = ({label: pair[n] for label, pair in stale.items()} for n in (0, 1))
drawn = bars(means, errors={label: 2 * error for label, error in errors.items()}, y_name="mean gap in log-odds")
picture(drawn.update_layout({"xaxis.title.text": "character that the engine wrote"}))

batch = load("stale_head")
shares = torch.tensor([share_per_token(batch), *(share_per_token(drawn_again(batch, generator)) for _ in range(200))])
share = interval_of(shares.double(), signed=False)
say(f"""
One constant per token explains {above(share, PER_TOKEN)} of the gap's variance. **Triage**, the library's search for
marks, says "stale" from {PER_TOKEN} on.
""")

# %% [markdown]
# ## The same number format on both sides
#
# Would it help if the trainer rounded as the engine does? `bf16` has an engine in bfloat16 beside a trainer in float32.
# On the same prompts, `both_bf16` has bfloat16 on both sides, `both_fp16` float16, with three binary digits more.

# %% tags=["hide-input"]
STEPS, BLOCK = 40, 5


def first_k3(name):
    """k3 of each of the first steps of a training."""
    metrics = runs.read_metrics(runs.find_run(name))[:STEPS]
    return torch.tensor([of_step["rollout_corr/k3_kl"] for of_step in metrics], dtype=torch.float64)


def times_bf16(name):
    """k3 over that of bf16 at the same steps, their geometric mean; the bootstrap draws blocks of steps."""
    drawn = resampled(STEPS // BLOCK, 1000, 0).double().repeat_interleave(BLOCK, 1) / STEPS
    return interval_of((drawn @ (first_k3(name) / first_k3("bf16")).log()).exp(), signed=False)


say(f"""
- **bfloat16 on both sides is no remedy**: over the same {STEPS} steps $k_3$ is {above(times_bf16("both_bf16"), 1)}
  times that of `bf16`. Each side rounds at other places.
- **float16 on both sides leaves a small gap**: {below(times_bf16("both_fp16"), 1, 3)} times that of `bf16`. Three
  digits more promise $1/8^2\\approx{1 / 64:.3f}$.

(One training each; the bootstrap draws blocks of {BLOCK} steps.)
""")

# %% [markdown]
# ## The chart
#
# Nine runs: $k_3$ and the mean ratio of the last step, and what triage makes of the pairs of **each** recorded step. In
# `kv_fp8` and, more coarsely, `kv_fp8_e5m2` the engine keeps its memory of the text in 8 bits; `stale_4` and `async`
# have older weights; `moe_bf16` has experts.

# %%
NINE = "bf16", "kv_fp8", "kv_fp8_e5m2", "stale_4", "async", "top_p", "temperature_raw", "stale_head", "moe_bf16"
show("last step of", "k3", "mean r", "from", "to", "", "findings at the recorded steps")
for name in NINE:
    d, mask = log_ratios(load(name)), load(name).response_mask
    mean = over_answers(ratio(d), mask)
    patterns = Counter(triage(step)[0].pattern for step in recorded(name))
    findings = ", ".join(f"{pattern} {times}×" for pattern, times in patterns.items())
    show(name, f"{k3(d)[mask].mean():.1e}", mean.value, mean.low, mean.high, "", findings)

# %% tags=["hide-input"]
PATTERNS = {name: {triage(step)[0].pattern for step in recorded(name)} for name in NINE}
for pattern, run in {"top-p mass": "top_p", "stale tensor": "stale_head"}.items():
    assert PATTERNS[run] == {pattern}
    assert [name for name, patterns in PATTERNS.items() if pattern in patterns] == [run]
for run in ("stale_4", "async", "kv_fp8_e5m2"):
    assert PATTERNS[run] == {"undecided"}
for run in ("bf16", "kv_fp8", "moe_bf16"):
    assert PATTERNS[run] == {"precision"}
others = [step for name in NINE if name != "top_p" for step in recorded(name)]
intervals = [over_answers(ratio(log_ratios(step)), step.response_mask) for step in others]
holding = sum(interval.low <= 1 <= interval.high for interval in intervals)
say(f"""
- `top_p` and `stale_head` are recognised at every step, and no other run is taken for them.
- `stale_4`, `async` and `kv_fp8_e5m2` are **undecided**: old weights and few digits make gaps of the same size. The
  versions of the weights and the settings of the engine show which it is; so does one more measurement, right after a
  sync or with an engine in float32.
- `kv_fp8` and `moe_bf16` pass for **precision**, as `bf16` does: rounding to bfloat16 has been measured to make gaps
  of this size. Size alone decides nothing.
- The mean ratio shows only the cut: outside `top_p`, {holding} of {len(others)} intervals hold 1.
""")

# %% [markdown]
# ## Predict, then reveal
#
# In `temperature_raw` the engine samples at a temperature below 1, and reports log-probs at temperature 1 (**raw**
# log-probs, vLLM's default). The trainer scores at 1, too. **Write down a guess:**
#
# 1. Would any cap or rejection rule change this batch?
# 2. Is the gradient right, the mean ratio being 1?
# 3. Is there any number in a training that would look wrong?
#
# A clue: the **surprise** of a token is $-\log q$; the **entropy** of a policy, which trainers report, is its average
# surprise over its own tokens.


# %%
def entropies(name):
    run = runs.find_run(name)
    return [runs.read_metrics(run)[step - 1]["entropy"] for step in runs.list_steps(run)]


show("last step of", "entropy", "surprise", "from", "to")
for name in NINE:
    batch, entropy = load(name), entropies(name)[-1]
    surprise = over_answers(-batch.rollout_log_probs, batch.response_mask)
    show(name, entropy, surprise.value, surprise.low, surprise.high)

# %% tags=["hide-input"]
SAFE = "top_p", "temperature_raw"


def sides(names):
    """Over all recorded steps: how many intervals of the surprise lie below the entropy, around it, above it."""
    pairs = [(step, entropy) for name in names for step, entropy in zip(recorded(name), entropies(name), strict=True)]
    surprises = [(over_answers(-step.rollout_log_probs, step.response_mask), entropy) for step, entropy in pairs]
    return Counter("below" if x.high < e else "above" if x.low > e else "around" for x, e in surprises)


batch = load("temperature_raw")
r = ratio(log_ratios(batch))[batch.response_mask]
safe, rest = sides(SAFE), sides([name for name in NINE if name not in SAFE])
assert set(safe) == {"below"} and not rest["below"]  # noqa: PT018
say(f"""
1. No: in the last step all ratios lie between {r.min():.2f} and {r.max():.2f}.
2. No. Ratios average to 1 over tokens **drawn from** $q$. Neither log-prob knows the cooled policy that drew these, so
   no correction helps.
3. Yes. A cooled or cut sampler avoids surprises: at all {safe["below"]} recorded steps of `temperature_raw` and `top_p`
   the interval of the surprise lies below the entropy. In the other runs it lies below at none of {rest.total()} steps,
   and above at {rest["above"]}.

The repair: let the engine report **processed** log-probs, those of the distribution that it drew from.
""")

# %% [markdown]
# ## Exercise 1: which temperature?
#
# *5 minutes.* Both sides' log-probs of **all** tokens at one place, `log_p` and `log_q`, both `(V,)`, differ by a
# temperature. Return $\tau$: the trainer's temperature, divided by the engine's.
#
# <details><summary>Hint 1</summary>The sum that normalises is the same for all tokens. What removes it?</details>
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
# ## Exercise 2: undo the cut
#
# *7 minutes.* The engine sampled with top-p, and recorded **which** tokens it had kept. For each place, return the
# trainer's log-prob of the drawn token among the kept ones. `log_p` and `kept` are `(N, V)`, `token` is `(N,)`.
#
# <details><summary>Hint 1</summary>Divide by the kept mass. In logarithms, subtract.</details>
# <details><summary>Hint 2</summary>The log of the mass is <code>torch.where(kept, log_p,
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
# Now both log-probs are those of the cut policy.
# [TRL measured](https://github.com/huggingface/trl/pull/7269) a mean ratio of 0.896 before this repair and 1.001 after.
#
# ## Exercise 3: is the sampler as bold as it says?
#
# *5 minutes.* From the log-probs of drawn tokens, `log_q` `(N,)`, and the mean entropy, return by how many standard
# errors the mean surprise is above the entropy.
#
# <details><summary>Hint 1</summary>The surprise of a token is −log q.</details>
# <details><summary>Hint 2</summary>The standard error is the standard deviation over √N.</details>


# %%
def errors_above_entropy(log_q, entropy):
    raise NotImplementedError("exercise 3: write errors_above_entropy, then run this cell and the next.")


# %% tags=["check"]
check(errors_above_entropy, SURPRISE)


# %% tags=["solution", "hide-input"]
def errors_above_entropy_solution(log_q, entropy):
    return (-log_q.mean() - entropy) / (log_q.std() / len(log_q) ** 0.5)


check(errors_above_entropy_solution, SURPRISE)

# %% [markdown]
# ## Check yourself
#
# **1. The mean ratio of a batch is 0.97, with a standard error of 0.001. What is it?**
#
# <details><summary>Chance: 0.97 is nearly 1.</summary>No. It is thirty standard errors below 1.</details>
# <details><summary>A cut, which keeps 0.97 of the probability.</summary>Yes. The other causes keep the mean at 1, if
# the tokens were drawn from q.</details>
# <details><summary>Old weights: <code>stale_4</code> has 0.99.</summary>With a standard error of 0.01: that is
# chance.</details>
#
# **2. Engine and trainer change from bfloat16 to float16, three digits more. What happens to k3?**
#
# <details><summary>It falls to an eighth.</summary>No, that is d. k3 is about ½d², a square.</details>
# <details><summary>It falls to about 1/64.</summary>Yes: each digit halves d and quarters k3.</details>
# <details><summary>Nothing: both have 16 bits.</summary>No. float16 spends fewer of them on the exponent.</details>
#
# **3. Triage says "undecided". What now?**
#
# <details><summary>The weights are old.</summary>Maybe; an 8-bit cache and swapped experts look alike.</details>
# <details><summary>Look at the versions of the weights, the engine's settings, and a score in float32.</summary>Yes: at
# what the pairs do not hold.</details>
# <details><summary>Add a tighter cap.</summary>Not first. A cap hides a bug as well as a mismatch.</details>
#
# ## In the app
#
# After `make app`:
#
# - [a cut](http://localhost:8501/mismatch?run=top_p&step=latest): the strip below the line;
# - [a stale output head](http://localhost:8501/mismatch?run=stale_head&step=latest): the bars per token;
# - [coarse rounding](http://localhost:8501/mismatch?run=kv_fp8_e5m2&step=latest) and
#   [old weights](http://localhost:8501/mismatch?run=stale_4&step=latest);
# - [the one that hides](http://localhost:8501/mismatch?run=temperature_raw&step=latest).
#
# ## Pitfalls
#
# - **Raw log-probs.** vLLM reports them unless told `logprobs_mode="processed_logprobs"`. Then $d$ looks perfect.
# - **Temperature on one side.** TRL's trainer divided by it, vLLM's raw log-probs did not: ratios of about 2 at 0.6
#   ([issue 4159](https://github.com/huggingface/trl/issues/4159)).
# - **Penalties and masks** act like cuts: the trainer must apply them, too.
# - **A small $k_3$** does not prove that the sync works. A stale head starts small and grows.
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
# ## Appendix
#
# Proofs and further checks; no step of the lesson needs them.
#
# ### The equation and the marks, with symbols
#
# The gap in log-odds is, with $q_b/(1 - q_a)$ the engine's share of token $b$ among the others,
#
# $$ \log\frac{p_a}{1-p_a} - \log\frac{q_a}{1-q_a}
# = \Delta_a - \log \sum_{b \ne a} \frac{q_b}{1 - q_a}\, e^{\Delta_b} . $$
#
# And how much a temperature lowers the surprise is a theorem: for tokens drawn from $p_\tau \propto p^{1/\tau}$,
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
# A batch holds one token per place, and the sum that normalises differs from place to place, so the straight line of a
# temperature is blurred. Triage looks for it all the same. Here it gets batches drawn from a cooled engine, at places
# of recorded runs where all next tokens are stored.

# %%
RUNS = "control_fp32", "bf16", "kv_fp8", "stale_4", "async", "top_p", "temperature_raw", "stale_head"
COOLED, BATCHES, TIMES = 0.7, 20, 12


def places(name):
    """The trainer's log-probs of every next token at the recorded places of a run's last step, (P, V)."""
    run = runs.find_run(name)
    next_tokens = read_sketch(run, runs.list_sketches(run)[-1]).next_tokens
    assert next_tokens is not None
    return next_tokens.log_probs.double()


def drawn_batch(log_p, log_q, generator):
    """A batch of one-token answers: at each place some tokens drawn from q, with their pairs of log-probs."""
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
{len(named)} of {BATCHES} batches, and puts it at {above(guess, 1 / COOLED, 3)} on average: a little too high, because
the normalising sum varies with $q$.
""")

# %% [markdown]
# ### Rounding, digit by digit
#
# At random places the logits are rounded to $n$ binary digits; averages over tokens from the rounded policy are exact.
# **Look for** a straight line: one digit less doubles $d$. A real engine rounds in every layer, not only at the end.

# %%
assert torch.tensor(256.0, dtype=torch.bfloat16) + 1 + 1 == 256  # as by hand


def rounded(x, digits):
    """x to so many binary digits, to nearest, ties to even."""
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
rule = [typical[0] * 2.0 ** (3 - digits) for digits in formats]
lines = {"rounded logits": typical, "half per digit": rule}
picture(curves(formats, lines, x_name="binary digits", y_name="typical |d|", log="y"))

# %%
FORMATS = {"e5m2": 3, "e4m3": 4, "bfloat16": 8, "float16": 11, "float32": 24}
show("format", *FORMATS)
picked = [formats.index(digits) for digits in FORMATS.values()]
for label, values in (("KL(q‖p)", exact_kl), ("half the variance of the shifts", predicted_kl)):
    show(label, [f"{values[n]:.1e}" for n in picked])
assert all(abs(exact_kl[n] / predicted_kl[n] - 1) < 0.1 for n in picked[:-1])

show("first score of a run's own answers", "tokens", "mean |d|")
for name in ("control_fp32", "both_fp16", "bf16", "kv_fp8", "kv_fp8_e5m2"):
    probe = runs.read_manifest(runs.find_run(name)).probe
    show(name, probe["tokens"], f"{probe['abs_log_ratio']:.1e}")

# %% [markdown]
# No setting is wrong in these runs, and no code has a bug. A mismatch of this size is normal. Over the answers of one
# recorded step, $k_3$ has these intervals:


# %% tags=["hide-input"]
def millionths(name):
    """k3 of the first recorded step, over its answers."""
    batch = load(name, 0)
    of_answers = over_answers(k3(log_ratios(batch)), batch.response_mask)
    return Interval(1e6 * of_answers.value, 1e6 * of_answers.low, 1e6 * of_answers.high)


say(f"""
In millionths: {bracketed(millionths("bf16"), 0)} in `bf16`, {bracketed(millionths("both_bf16"), 0)} in `both_bf16`: one
step does not tell them apart. In `both_fp16`: {above(millionths("both_fp16"), 0, 1)}.
""")
assert millionths("both_fp16").high < min(millionths("bf16").low, millionths("both_bf16").low)

# %% [markdown]
# ### A swapped expert
#
# A **mixture of experts** sends each token through a few of its parts, chosen by a score. Where two scores nearly tie,
# rounding can swap them, and then a whole part of the model is another one. **Look for** the ends of both lines: A is
# the mixture `moe_bf16`, B the plain model `bf16`, both in bfloat16. In `moe_replay` the trainer takes the experts that
# the engine chose (lesson 14).

# %%
picture(tails(load("moe_bf16"), load("bf16")))
show("largest ratio, either way, at each step")
for name in ("bf16", "moe_bf16", "moe_replay"):
    show(name, [float(log_ratios(step).abs().max().exp()) for step in recorded(name)], digits=1)

# %% [markdown]
# ### One stale tensor, or all
#
# Texts with a part in common, and two engines that each miss an update. One misses the head's, the other what makes the
# vectors of the texts. What share of the variance of the gap in log-odds lies **between** tokens?

# %%
width, vocabulary, texts = 16, 21, 300
normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
vectors, head = normal(width) + 0.5 * normal(texts, width), 0.5 * normal(vocabulary, width)
old_vectors, old_head = vectors - 0.1 * normal(texts, width), head - 0.05 * normal(vocabulary, width)


def share_between_tokens(log_p, log_q):
    """Variance of the mean gap per token over that of the gap, all tokens and texts alike."""
    gap = torch.special.logit(log_p.exp()) - torch.special.logit(log_q.exp())  # (texts, tokens)
    return float(gap.mean(0).var(correction=0) / gap.var(correction=0))


scored = (vectors @ head.T).log_softmax(-1)
for name, engine in {"old head": vectors @ old_head.T, "old rest": old_vectors @ head.T}.items():
    log_q = engine.log_softmax(-1)
    pattern = triage(drawn_batch(scored, log_q, generator))[0].pattern
    show(name, share_between_tokens(scored, log_q), "", pattern)

# %% [markdown]
# ### Four tutorials
#
# The commonest mismatch needs no engine. A program samples with one setting, and trains with `log_softmax(logits)`, as
# if it had sampled with none. Four teaching repositories that many people learn from do it:
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
# They are good tutorials. The point is how easy it is to miss: nothing fails, the reward climbs, and no ratio is ever
# computed. What does it cost? Made-up logits, a random advantage for each token, and exact averages:

# %%
logits, advantage = 3 * normal(200, 2000), normal(200, 2000)


def sampler(logits, temperature, top_k, top_p):
    """log-probs of what is drawn; −∞ on what is cut. Temperature first, then top-k, then top-p, as vLLM does."""
    log_q = (logits / temperature).log_softmax(-1)
    if top_k:
        log_q = torch.where(log_q >= log_q.topk(top_k, -1).values[:, -1:], log_q, -torch.inf).log_softmax(-1)
    ordered, order = log_q.exp().sort(-1, descending=True)
    kept = torch.zeros_like(log_q, dtype=torch.bool).scatter(-1, order, ordered.cumsum(-1) - ordered < top_p)
    return torch.where(kept, log_q, -torch.inf).log_softmax(-1)


# %%
def trained(q):
    """−∇ of the mean loss −A log p over tokens drawn from q, with the mean advantage as the baseline."""
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
# The last two columns compare the gradient that is used with the one that is meant: its direction (a cosine of 1 is the
# same) and its length. Sampling safely turns the gradient and makes it longer, because likely tokens are drawn, and
# moved, more often than the policy says. How much it is for a real model depends on how sure the model is. The mean
# ratio would have told it in the first step, at the price of one more forward pass.
