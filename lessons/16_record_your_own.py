# %% [markdown]
# # 16 · Record your own
#
# **Claim.** Two numbers per token are a recording; one command makes it, and three short formulas say how many answers,
# directions and bytes it takes.
#
# *30 minutes · intermediate · any laptop, or one GPU; no network.* You need the ratio and its average (lesson 00); for
# the sketches, what the bias of a gradient is (lesson 10); for the last part, `mini.py` (lessons 01 to 13). Letters:
# [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - record a training with both log-probs of every token, on a CPU or a GPU;
# - turn the dump of another system into a run that every tool here opens, and read a run with nothing but pandas;
# - say beforehand how many answers, how many directions and how much disk a question needs;
# - train a language model with your own `mini.py`, on answers that vLLM draws.

# %% tags=["hide-input"]
import ast
import gzip
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path

import pandas
import sympy
import torch
from curves import curves
from exercises.lesson_16 import ANSWERS_NEEDED, DIRECTIONS_NEEDED, MEAN_AND_ERROR
from sentences import above, bracketed, say
from show import picture, show

from rlcorr.analysis.published import rounding
from rlcorr.foreign.import_run import import_file
from rlcorr.foreign.missing_fields import missing
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs, sketch_files
from rlcorr.records.verify import verify
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
folder = tempfile.TemporaryDirectory()  # what this lesson records goes here, and disappears with it
generator = torch.Generator().manual_seed(16)

# %% [markdown]
# ## The smallest recording
#
# For every token that was sampled, a recording needs two numbers: `rollout_log_probs`, the log-prob that the engine
# drew it with, and `old_log_probs`, the log-prob that the trainer gives to it, after the same text, before the update.
# Nothing that was corrected belongs into it: weights and masks can be computed again, with any preset; the pair cannot.
#
# By hand: two answers as a file, one line each. The first has three tokens, the second two.

# %%
lines = [
    {"rollout_log_probs": [-0.7, -0.2, -0.7], "old_log_probs": [-0.5, -0.9, -0.7], "reward": 1.0},
    {"rollout_log_probs": [-0.9, -1.4], "old_log_probs": [-0.2, -1.4], "reward": 0.0},
]
file, imported = Path(folder.name) / "pairs.jsonl", Path(folder.name) / "imported"
file.write_text("".join(json.dumps(line) + "\n" for line in lines))
record = import_file(file, imported)  # what `python -m rlcorr import pairs.jsonl --run imported` calls
batch = record.batch
d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)
show("mask", [int(counted) for counted in batch.response_mask.flatten()])
show("d", d, digits=2)
show("mean ratio", float(ratio(d)[batch.response_mask].double().mean()), digits=2)
show("problems", len(verify(imported).problems))
for name, use in missing(record).items():
    show(f"missing: {name}", use)

# %% [markdown]
# That is all a view needs that looks at ratios. What is missing is said, with what it would enable. The command takes
# `.jsonl`, `.json`, `.parquet`, `.npz` and `.safetensors`, and knows the dumps of NeMo RL, prime-rl, slime and verl:
#
# ```
# python -m rlcorr import pairs.jsonl --run mine       # → runs/local/mine
# python -m rlcorr verify mine                         # hashes, and every step is read once
# ```
#
# The one thing that no file can say for itself is *which* log-prob it holds. With vLLM ask for
# `logprobs_mode="processed_logprobs"`: of the distribution that was sampled, temperature and top-p included. The
# default is raw, and lesson 15 shows a run on which nobody can see that.
#
# ## A real recording
#
# Now a training. The next cell starts the command in a process of its own, as you would in a terminal; it takes about
# ten seconds. The model is the warm start of this project; the engine is the one of transformers, in bfloat16, so that
# no vLLM is needed. Two updates, both recorded, and at the second a **score sketch** (below). `RLCORR_RUNS` says where
# runs are written. Leave it out, and they go to `runs/local`.

# %%
options = """--run mine --rollout.engine transformers --steps 2 --prompts-per-step 32 --eval-prompts 16
    --sketch.every 2 --sketch.directions 8 --sketch.places 2 --sketch.reference-prompts 64
    --checkpoint-every 0 --no-save-model --no-tensorboard"""
command = [sys.executable, "-m", "rlcorr", "train", "--model", str(runs.ROOT / "warm_start" / "checkpoint")]
where_to = os.environ | {"RLCORR_RUNS": folder.name}
done = subprocess.run([*command, *options.split()], env=where_to, capture_output=True, text=True, check=False)
assert done.returncode == 0, done.stderr
mine = Path(folder.name) / "local" / "mine"
for path in sorted(mine.rglob("*")):
    if path.is_file():
        show("", str(path.relative_to(mine)))

# %% [markdown]
# Before the first update the command has done three things that are easy to forget: it **proved the sync** (with
# perturbed weights, that every tensor reaches the engine), it **probed the gap** and named what it looks like, and it
# wrote both to the manifest. Is it a good recording? The last digits depend on the machine, so here are only
# answers of yes and no.

# %%
manifest, report = runs.read_manifest(mine), verify(mine)
show("status, problems", report.status, len(report.problems))
show("steps recorded, rows of metrics", report.recorded_steps, report.metric_rows)
show("engine, its number format", manifest.engine, manifest.engine_settings["dtype"])
show("the probe says", manifest.probe["pattern"])

pairs = [runs.read_step(mine, step).batch for step in runs.list_steps(mine)]
d = torch.cat([(b.tensors()["old_log_probs"] - b.rollout_log_probs)[b.response_mask] for b in pairs]).double()
r = ratio(d)
show("the two log-probs differ", bool((d != 0).any()))
show("k3 is rounding, no more", float(k3(d).mean()) < rounding("bfloat16")[1])
show("mean ratio within 4 errors of 1", abs(float(r.mean()) - 1) < 4 * float(r.std()) / len(r) ** 0.5)

# %% tags=["hide-input"]
assert report.problems == []
assert (report.recorded_steps, report.readable_steps, report.metric_rows) == (2, 2, 2)
assert runs.list_sketches(mine) == [2]
assert 0 < float(k3(d).mean()) < rounding("bfloat16")[1]
assert abs(float(r.mean()) - 1) < 4 * float(r.std()) / len(r) ** 0.5

# %% [markdown]
# ## What a run folder holds
#
# | file | what is in it |
# |---|---|
# | `manifest.json` | engine, settings, versions, hardware, seed, commit, the probe, and a sha256 per file |
# | `config.yaml` | every option; `--config` makes the run again |
# | `metrics.jsonl` | a line per step: losses, rewards, every metric of lesson 12; the committed runs have it as `.gz` |
# | `steps/step_000002.parquet` | one row per answer: texts, token ids, both log-probs, advantages |
# | `sketch/step_000002.safetensors.gz` | projections of $\nabla\log\pi$ of every token, and of other answers |
#
# None of it needs this library. Parquet is read by pandas, by `pyarrow.parquet.read_table(path)`, by DuckDB
# (`SELECT reward FROM 'steps/*.parquet'`), by anything. Here is pandas, on the committed run `bf16`. The log-probs are
# bit-exact float32, and a run that was copied badly is found by its hashes.

# %%
table = pandas.read_parquet(runs.ROOT / "bf16" / "steps" / "step_000400.parquet")
show("columns", ", ".join(table))
show("rows", len(table))
show("a prompt and its answer", table["prompt"][3], table["response"][3])
show("rollout_log_probs", table["rollout_log_probs"][3].tolist(), digits=6)
show("old_log_probs", table["old_log_probs"][3].tolist(), digits=6)
answers = zip(table["old_log_probs"], table["rollout_log_probs"], strict=True)
gaps = [p - q for old, rollout in answers for p, q in zip(old.tolist(), rollout.tolist(), strict=True)]
show("mean |d|", sum(map(abs, gaps)) / len(gaps), digits=6)

# %% [markdown]
# ## How many answers?
#
# A reward is 0 or 1, and half of the answers are right. Its **standard deviation**, the typical distance from the mean,
# is σ = ½. The average of $N$ independent answers has a **standard error** of
#
# $$ \mathrm{SE} = \frac{\sigma}{\sqrt N}, \qquad\text{so}\qquad N = \Big(\frac{\sigma}{\mathrm{SE}}\Big)^2 , $$
#
# because variances of independent numbers add.
#
# By hand: 100 answers give ± 0.05; to halve that takes 400; ± 0.01 takes 2,500.
#
# The formula wants *independent* numbers. Are the tokens of one answer independent? That depends on what is averaged:
#
# - $r_t - 1$ has average 0 **whatever was written before**, because $\sum_a q\,(p/q - 1) = 0$ at every place. So
#   $\mathbb{E}[(r_s - 1)(r_t - 1)] = 0$ for $s < t$: these numbers are **uncorrelated**, and the formula holds with
#   tokens in place of answers.
# - $|d_t|$ has no such law.
# - A reward is the same number on every token of its answer. To count it once for each adds nothing.
#
# The error of a mean over tokens, **by answers**, takes each answer as one draw. With $T_b$ tokens and the sum $S_b$ of
# answer $b$, and $N$ answers,
#
# $$ \bar x = \frac{\sum_b S_b}{\sum_b T_b}, \qquad
# \mathrm{SE}^2 = \frac{N}{N-1} \cdot \frac{\sum_b (S_b - \bar x\, T_b)^2}{(\sum_b T_b)^2} . $$
#
# On all recorded answers of `kv_fp8_e5m2`, the error by answers over that by tokens:


# %% tags=["hide-input"]
def mean_and_error(x, mask):
    tokens, totals = mask.sum(-1), torch.where(mask, x, 0).sum(-1)
    mean, n = totals.sum() / tokens.sum(), len(tokens)
    squares = (totals - mean * tokens).square().sum()
    return float(mean), float((squares * n / (n - 1)).sqrt() / tokens.sum())


long_run = runs.find_run("kv_fp8_e5m2")
batches = [runs.read_step(long_run, step).batch for step in runs.list_steps(long_run)]
width = max(b.response_mask.shape[1] for b in batches)


def joined(name):
    parts = [b.tensors()[name] for b in batches]
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])


mask = joined("response_mask")
d = log_ratio(joined("old_log_probs").double(), joined("rollout_log_probs").double(), mask)
rewards = torch.cat([b.tensors()["rewards"] for b in batches]).double()[:, None].expand_as(d)
quantities = {"r": ratio(d), "k3": k3(d), "|d|": d.abs(), "reward": rewards}


def factor_of(x, mask):
    return mean_and_error(x, mask)[1] / (float(x[mask].std()) / int(mask.sum()) ** 0.5)


drawn = torch.randint(len(mask), (200, len(mask)), generator=generator)
show("quantity", "mean", "by token", "by answer")
factors = {}
for name, x in quantities.items():
    average, by_answer = mean_and_error(x, mask)
    show(name, average, by_answer / factor_of(x, mask), by_answer)
    samples = torch.tensor([factor_of(x[rows], mask[rows]) for rows in drawn], dtype=torch.float64)
    factors[name] = Interval(factor_of(x, mask), *samples.quantile(torch.tensor([0.025, 0.975]).double()).tolist())

# %% tags=["hide-input"]
length = float(mask.sum(-1).double().mean())
assert factors["r"].high < 1.15 < factors["reward"].low
assert abs(factors["reward"].value / length**0.5 - 1) < 0.01
say(f"""
{len(mask)} answers of {length:.0f} tokens. By answers the error of the mean ratio is {bracketed(factors["r"])} times
that by tokens, nearly the same, as derived. For $|d|$ it is {above(factors["|d|"], 1)} times as large. For a reward it
is {above(factors["reward"], 1, digits=1)} times as large; $\\sqrt{{T}}$ is {length**0.5:.1f}. **Count answers, unless
you know better.**
""")

# %% [markdown]
# Now the answers are shuffled and cut into blocks of $N$, and the spread of the block means is compared with the
# formula, which falls by half for four times the answers. **Look for** the band of two errors around the formula: no
# point leaves it. (All points are of the same answers, so they err to the same side.)

# %% tags=["hide-input"]
mean_sizes = (torch.where(mask, d.abs(), 0).sum(-1) / mask.sum(-1))[torch.randperm(len(mask), generator=generator)]
sigma, sizes = float(mean_sizes.std()), [4, 8, 16, 32, 64]
spreads = [float(mean_sizes.view(-1, n).mean(-1).std()) for n in sizes]
foretold = [sigma / n**0.5 for n in sizes]
margins = [2 * s / (2 * (len(mean_sizes) // n - 1)) ** 0.5 for s, n in zip(foretold, sizes, strict=True)]
assert all(abs(a - b) < c for a, b, c in zip(spreads, foretold, margins, strict=True))
both = {"σ/√N": foretold, "spread of block means": spreads}
low, high = ([s + sign * m for s, m in zip(foretold, margins, strict=True)] for sign in (-1, 1))
picture(
    curves(sizes, both, x_name="answers in a block", y_name="error of mean |d|", log="xy", bands={"σ/√N": (low, high)})
)

# %% [markdown]
# ## How many directions?
#
# A gradient of a model with millions of parameters is too long to store for every token. A **score sketch** keeps $K$
# numbers of it: its inner products with $K$ random directions $v_k$, whose entries are standard normal. With the
# sketches $a_k = \langle g, v_k\rangle$ and $b_k = \langle g', v_k\rangle$ of two gradients,
#
# $$ \mathbb{E}[a_k b_k] = \langle g, g' \rangle, \qquad
# \mathrm{Var}(a_k b_k) = \lVert g\rVert^2 \lVert g'\rVert^2 + \langle g, g'\rangle^2 . $$
#
# The model's size appears nowhere. With $\cos$ the cosine between $g$ and $g'$, an average over $K$ directions has
#
# - a relative error of the squared length $\lVert g\rVert^2$ of $\sqrt{2/K}$ (put $g' = g$);
# - an error of the cosine $\dfrac{\sum a_k b_k}{\sqrt{\sum a_k^2 \sum b_k^2}}$ of about $\dfrac{1 - \cos^2}{\sqrt K}$.
#
# By hand: with 64 directions a length is known to 9 %, a cosine near 0 to ± 0.125, a cosine of 0.9 to ± 0.024. That is
# enough to say that a gradient points the right way, and too little to rank two good presets by their cosines. (Two
# presets on one sketch share its directions, and part of the error cancels in their difference.)
#
# ## How many bytes?
#
# By hand: a response token has five float32 (both log-probs, the reference's, the value, the advantage) and one int32
# (its id), 24 bytes; a prompt token has its id, 4. Text, rewards and names are small beside them. A sketch has $K$ int8
# per response token and a bfloat16 that they are multiplied by. The reference is there once, in float32: 32 blocks, in
# two averages; and at $L$ places all $W$ tokens of the vocabulary, in float16. With $N$ response tokens
# $$ \text{pairs} \approx 24\,N + 4\,N_{\text{prompt}}, \qquad \text{sketch} \approx (K + 2)\,N
# + 2 \cdot 32 \cdot 4K + 2\,L\,W K . $$
#
# ## Predict, then reveal
#
# By hand, with the formulas: you plan a run like `kv_fp8_e5m2`, 1,000 steps of 128 answers of 59 tokens. A prompt has
# 41 tokens, the vocabulary 21, and a sketch 16 places. **Write down a guess:**
# 1. Mean $|d|$ of one step: to how many per cent is it known?
# 2. How many steps' answers must you put together to know it to 1 %?
# 3. Every step recorded: megabytes? And with a sketch of 64 directions at every step, how many times that?
#
# Then run the cell.

# %%
STEPS, ANSWERS, TOKENS, PROMPT = 1000, 128, 59, 41
K, PLACES, VOCABULARY = 64, 16, 21
spread = sigma / float(mean_sizes.mean())  # of |d| from answer to answer, over its mean
megabytes = STEPS * ANSWERS * (24 * TOKENS + 4 * PROMPT) / 1e6
sketches = STEPS * ((K + 2) * ANSWERS * TOKENS + 2 * 32 * 4 * K + 2 * PLACES * VOCABULARY * K) / 1e6
show("mean |d| of a step, to per cent", 100 * spread / ANSWERS**0.5, digits=0)
show("steps for 1 per cent", (spread / 0.01) ** 2 / ANSWERS, digits=0)
show("pairs, MB", megabytes, digits=0)
show("sketches, MB", sketches, digits=0)
show("times as much", sketches / megabytes, digits=1)

# %% [markdown]
# A tenth of an error takes a hundred times as many answers. Pairs take little disk; a sketch at every step takes
# more, and takes far longer to compute than to store. That is why recording and sketching have intervals of their own.
#
# ## With vLLM
#
# The same command with the real engine, on two CPU cores or one GPU. It takes under three minutes on two cores, and a
# test of this project runs exactly this line:
#
# ```
# make train ARGS="--run my_first --rollout.engine vllm --steps 20 --record-every 10 \
#   --eval-every 20 --eval-prompts 128 \
#   --sketch.every 20 --sketch.directions 16 --sketch.places 4 --sketch.reference-prompts 256 \
#   --checkpoint-every 0 --no-save-model --no-tensorboard"
# .venv/bin/python -m rlcorr verify my_first
# make app
# ```
#
# | to | use |
# |---|---|
# | make a committed run again | `make record RUN=bf16` (its options are in `runs/index.toml`) |
# | widen the gap | `--rollout.kv-cache-dtype fp8_e5m2`, `--rollout.staleness 4`, `--rollout.temperature 0.7` |
# | record less | `--record-every 10`; metrics are written at every step all the same |
# | know the gradient's bias | `--sketch.every 40 --sketch.directions 64 --sketch.reference-prompts 8192` |
# | the same, exact over short answers | `--sketch.exact-prompts 128` as well: lesson 10 |
# | the same, on more of long answers | `--sketch.answers 1024` as well |
# | train your own model | `--model DIRECTORY --task jsonl --data prompts.jsonl --reward my_module:score` |
# | follow it | `.venv/bin/tensorboard --logdir runs/local`, or the view Training of the app |
#
# `--rollout.engine auto`, the default, takes vLLM where it is installed and transformers elsewhere; the manifest says
# which it was. On a GPU the options are the same.
#
# ## Your own loop on a real engine
#
# In lessons 01 to 13 you wrote `mini.py`: advantages, ratios, a cap, a rule, a loss. `mini_vllm.py` puts these very
# functions on a language model. `draw` asks vLLM for answers to sums, with the log-probs that it drew them with;
# `update` is yours:

# %% tags=["hide-input"]
source = Path("mini_vllm.py").read_text(encoding="utf-8")
(update,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "update"]
say(f"```python\n{ast.get_source_segment(source, update)}\n```")

# %% [markdown]
# After the step, `train` sends the new weights to the engine, by default after every one. Here it sends them after
# every fifth only, so that two mismatches can be told apart. It takes about twenty seconds; where vLLM is not
# installed, transformers draws the answers. In a terminal: `.venv/bin/python lessons/mini_vllm.py 15 5`.
#
# **Look for** the k3 of the steps right after new weights, and for what it does until the next.

# %% tags=["nbval-skip"] reason="It starts vLLM, which is not installed everywhere; a test of its own runs it."
done = subprocess.run([sys.executable, "mini_vllm.py", "15", "5"], capture_output=True, text=True, check=False)
print(done.stdout.strip() if done.returncode == 0 else done.stderr.splitlines()[-1])
if done.returncode == 0:  # else a function of mini.py is still to be written
    k3_of = [float(line.split()[-1]) for line in done.stdout.splitlines()[1:]]
    fresh = k3_of[0::5]
    assert 0 < min(fresh) < max(fresh) < rounding("bfloat16")[1]
    assert min(set(k3_of) - set(fresh)) > 10 * max(fresh)
    assert max(k3_of) > 100 * max(fresh)

# %% [markdown]
# Right after new weights k3 is rounding: the engine computes in bfloat16, the trainer in float32, and no sync brings it
# to 0. With the updates that the engine has not seen it grows, a hundredfold and more, and the next sync takes it back.
# A sync that forgets a tensor looks like such an update, but never comes back (lesson 15).
#
# Now change it. Send the weights after every step: `mini_vllm.py 40`. Take the cap off, or `kept`; then set a higher
# learning rate and send the weights rarely: which of your weights holds the reward? A single training tells little, so
# ask three seeds.

# %% [markdown]
# ## Exercise 1: how many answers?
#
# *3 minutes.* A number has the standard deviation `std` from answer to answer. Return how many answers it takes for a
# standard error of at most `error`, as a whole number.
#
# <details><summary>Hint 1</summary>Solve SE = σ/√N for N.</details>
# <details><summary>Hint 2</summary><code>math.ceil</code> rounds up.</details>


# %%
def answers_needed(std, error):
    raise NotImplementedError("exercise 1: write answers_needed, then run this cell and the next.")


# %% tags=["check"]
check(answers_needed, ANSWERS_NEEDED)


# %% tags=["solution", "hide-input"]
def answers_needed_solution(std, error):
    return math.ceil((std / error) ** 2 - 1e-9)


check(answers_needed_solution, ANSWERS_NEEDED)

# %% [markdown]
# ## Exercise 2: the error by answers
#
# *7 minutes.* Return the mean of `x` over the tokens and its standard error by answers, two numbers. `x` and `mask` are
# `(B, T)`; padding holds nan; every answer has a token.
#
# <details><summary>Hint 1</summary>The formula is under "How many answers?"; so is, folded, code that does
# it.</details>
# <details><summary>Hint 2</summary>nan times 0 is nan: use <code>torch.where(mask, x, 0)</code>.</details>


# %%
def token_mean(x, mask):
    raise NotImplementedError("exercise 2: write token_mean, then run this cell and the next.")


# %% tags=["check"]
check(token_mean, MEAN_AND_ERROR)


# %% tags=["solution", "hide-input"]
def token_mean_solution(x, mask):
    tokens, totals = mask.sum(-1), torch.where(mask, x, 0).sum(-1)
    mean, n = totals.sum() / tokens.sum(), len(tokens)
    return mean, ((totals - mean * tokens).square().sum() * n / (n - 1)).sqrt() / tokens.sum()


check(token_mean_solution, MEAN_AND_ERROR)

# %% [markdown]
# ## Exercise 3: how many directions?
#
# *3 minutes.* You expect a cosine of `cosine` and want to know it to ± `error`. Return how many directions the sketch
# needs: a whole number, at least 1.
#
# <details><summary>Hint 1</summary>Solve (1 − cosine²)/√K = error for K.</details>
# <details><summary>Hint 2</summary>Round up as in exercise 1, and take the larger of that and 1.</details>


# %%
def directions_needed(cosine, error):
    raise NotImplementedError("exercise 3: write directions_needed, then run this cell and the next.")


# %% tags=["check"]
check(directions_needed, DIRECTIONS_NEEDED)


# %% tags=["solution", "hide-input"]
def directions_needed_solution(cosine, error):
    return max(math.ceil(((1 - cosine**2) / error) ** 2 - 1e-9), 1)


check(directions_needed_solution, DIRECTIONS_NEEDED)

# %% [markdown]
# ## Check yourself
#
# **1. You recorded 100 answers of 1,000 tokens. The reward is 0.50. How well is it known?**
#
# <details><summary>To ± 0.0016: there are 100,000 tokens.</summary>No. A reward is one number per answer; its tokens
# repeat it. That error is too small by √1000.</details>
# <details><summary>To ± 0.05.</summary>Yes. σ/√N = 0.5/10, with N the number of answers.</details>
# <details><summary>It cannot be known without the policy.</summary>No. The spread between the answers says it, as long
# as they are independent.</details>
#
# **2. The same data; you want the mean *ratio*. May you count tokens?**
#
# <details><summary>Yes: r − 1 averages to 0 after every text, so that tokens of an answer are
# uncorrelated.</summary>Yes. It is a law of honest pairs, and so it fails where the mean ratio does: with a wrong
# q.</details>
# <details><summary>No: tokens of one answer are never independent.</summary>They are not independent, but for the error
# of a mean it is enough that they are uncorrelated.</details>
# <details><summary>Yes, as for everything else.</summary>No. For |d| that error was too small, and for the reward by
# √T.</details>
#
# **3. A model is a thousand times as large. How many more directions does its sketch need?**
#
# <details><summary>A thousand times.</summary>No. The size of the model does not appear in the variance.</details>
# <details><summary>√1000, about 32 times.</summary>No. That is how the error falls with K, not how K grows with the
# model.</details>
# <details><summary>None.</summary>Yes. The error depends on K and on the cosine. Each direction takes longer to
# compute, and no more disk.</details>
#
# ## In the app
#
# Start it with `make app`; your runs stand below the committed ones, and a file can be dropped into it as well.
#
# - [a run over its steps](http://localhost:8501/training?run=bf16), where yours will stand;
# - [the pairs of its last step](http://localhost:8501/mismatch?run=bf16&step=latest);
# - [what its sketch is for](http://localhost:8501/gradient?run=bf16&step=400&preset=decoupled_token_is): bias and noise
#   with their intervals;
# - [one answer, token by token](http://localhost:8501/tokens?run=bf16&step=400).
#
# ## Pitfalls
#
# - **Recording after the correction.** Weights, clipped ratios and rejected tokens cannot be undone. Record the pair.
# - **Another version of the weights.** `old_log_probs` are of the weights before the update, on the same text, with the
#   same temperature. Scored a step later, the pair measures staleness.
# - **A sync that forgets a tensor.** Tied embeddings omit the output head from a checkpoint, and the engine keeps the
#   old one without a word. Prove the sync with an engine in float32, whose k3 must be next to nothing.
# - **bfloat16 on disk.** Log-probs rounded to 8 bits are a bug of their own (lesson 15). Keep float32.
# - **One seed.** An error over answers says nothing about another training. Three seeds say a little.
# - **The first seconds.** The start of an engine and its first call take longer than a hundred small steps. Do not
#   conclude from two steps how long two hundred take.
#
# ## References
#
# 1. vLLM, [engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, and what
#    "processed" means.
# 2. Apache Arrow, [Reading and Writing the Apache Parquet Format](https://arrow.apache.org/docs/python/parquet.html):
#    the files of a run without this library.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): what the recorded pair is
#    used for in a large system.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks of the three formulas; and what a hash notices.
#
# ### One changed byte

# %% tags=["hide-input"]
by_library = runs.read_step(runs.find_run("bf16"), 400).batch
real = by_library.response_mask
same = log_ratio(by_library.tensors()["old_log_probs"].double(), by_library.rollout_log_probs.double(), real)[real]
assert gaps == same.tolist()  # what pandas reads

step_file = mine / "steps" / "step_000001.parquet"
whole = step_file.read_bytes()
assert hashlib.sha256(whole).hexdigest() == manifest.files["steps/step_000001.parquet"]
step_file.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
show("problems, one byte changed", len(verify(mine).problems) > 0)
assert "sha256" in verify(mine).problems[0]
step_file.write_bytes(whole)
assert verify(mine).problems == []
folder.cleanup()  # the runs of this lesson; yours, in runs/local, stay

# %% [markdown]
# ### How many answers: symbols, and a world whose averages are sums

# %% tags=["hide-input"]
P = sympy.symbols("p_X p_Y p_Z", positive=True)
X = sympy.symbols("x_X x_Y x_Z", real=True)


def expected(f, n):
    """The average of f over n independent draws of three actions: a sum of 3ⁿ terms."""
    draws = product(range(3), repeat=n)
    return sympy.Add(*(sympy.prod(P[a] for a in some) * f([X[a] for a in some]) for some in draws))


mean = expected(lambda x: x[0], 1)
variance = expected(lambda x: (x[0] - mean) ** 2, 1)
for n in (2, 3):
    of_mean = expected(lambda x: (sum(x) / len(x) - mean) ** 2, n)
    assert sympy.expand((of_mean - variance / n).subs(P[2], 1 - P[0] - P[1])) == 0
show("Var(mean of N) = Var/N", "proved for 2 and 3")

where = toy.world(3, 4)
engine, trainer = toy.random_policy(where, 16), toy.random_policy(where, 17)
chance = toy.probabilities(where, engine)
d_toy = toy.log_probs(where, trainer) - toy.log_probs(where, engine)
later = where.mask[:, :, None] & where.mask[:, None, :] & torch.ones(4, 4).triu(1).bool()  # pairs s < t of one answer


def together(x):
    """E Σ_{s<t} x_s x_t, over all answers."""
    return float((chance[:, None, None] * x[:, :, None] * x[:, None, :])[later].sum())


centred = d_toy.abs() - (chance[:, None] * d_toy.abs())[where.mask].sum() / (chance[:, None] * where.mask).sum()
show("r − 1: pairs of tokens", together(ratio(d_toy) - 1), digits=6)
show("|d| − mean: pairs of tokens", together(centred), digits=6)
assert abs(together(ratio(d_toy) - 1)) < 1e-12
assert abs(together(centred)) > 1e-3

# %% [markdown]
# ### How many directions: symbols
#
# For a standard normal, $\mathbb{E}[v^2] = 1$, $\mathbb{E}[v^4] = 3$, and odd powers average to 0.

# %% tags=["hide-input"]
G, H, V = (sympy.symbols(f"{name}1:4", real=True) for name in "ghv")
MOMENTS = {0: 1, 1: 0, 2: 1, 3: 0, 4: 3}


def normal_mean(expression):
    """The average over v1, v2, v3, independent and standard normal."""
    terms = sympy.Poly(sympy.expand(expression), *V).terms()
    return sympy.expand(sum(factor * sympy.prod(MOMENTS[power] for power in powers) for powers, factor in terms))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


a_k, b_k = dot(G, V), dot(H, V)
assert normal_mean(a_k * b_k) == sympy.expand(dot(G, H))
variance = normal_mean((a_k * b_k) ** 2) - normal_mean(a_k * b_k) ** 2
assert sympy.expand(variance - dot(G, G) * dot(H, H) - dot(G, H) ** 2) == 0

# the cosine, to first order: lengths 1, cosine c, and covariances of the three sums as above
c, s_ab, s_aa, s_bb = sympy.symbols("c s_ab s_aa s_bb", positive=True)
slopes = [sympy.diff(s_ab / sympy.sqrt(s_aa * s_bb), s).subs({s_ab: c, s_aa: 1, s_bb: 1}) for s in (s_ab, s_aa, s_bb)]
unit = {**dict(zip(G, (1, 0, 0), strict=True)), **dict(zip(H, (c, sympy.sqrt(1 - c**2), 0), strict=True))}
sums = [a_k * b_k, a_k**2, b_k**2]
covariance = [[normal_mean(x * y) - normal_mean(x) * normal_mean(y) for y in sums] for x in sums]
of_cosine = sum(slopes[i] * slopes[j] * covariance[i][j].subs(unit) for i in range(3) for j in range(3))
assert sympy.expand(of_cosine - (1 - c**2) ** 2) == 0
show("K · Var(cosine)", str(sympy.factor(sympy.expand(of_cosine))))

# %% [markdown]
# ### How many directions: recorded sketches
#
# Committed runs have sketches, and in them the gradients of on-policy blocks. Take blocks in pairs, cut their
# directions into groups of eight, and compute the cosine from each group: how far do the groups' answers spread around
# that of all directions? The intervals are over the runs.

# %% tags=["hide-input"]
of_cosine, of_length, expected_cosine, sets = [], [], [], set()
names = [name for name, path in runs.list_runs().items() if path.parent == runs.ROOT and runs.list_sketches(path)]
for name in names:
    sketch = sketch_files.read_sketch(runs.find_run(name), sketch_files.last_sketch(runs.find_run(name)))
    x, y = sketch.reference.by_token.double()[0::2], sketch.reference.by_token.double()[1::2]  # (16, K) each
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    groups = x.shape[1] // 8
    x8, y8 = x.reshape(-1, groups, 8), y.reshape(-1, groups, 8)
    cosines = (x8 * y8).sum(-1) / (x8.norm(dim=-1) * y8.norm(dim=-1))
    lengths = x8.square().sum(-1) * groups / x.square().sum(-1, keepdim=True)
    # a group is part of the whole that it is compared with: with eight groups, 8/7 of the spread that is seen
    of_cosine.append(float(((cosines - cosine[:, None]).square().mean() * groups / (groups - 1)).sqrt()))
    of_length.append(float(((lengths - 1).square().mean() * groups / (groups - 1)).sqrt()))
    expected_cosine.append(float((1 - cosine.square()).square().mean().sqrt()) / 8**0.5)
    sets.add(sketch.directions_hash)


def over_runs(values):
    values = torch.tensor(values, dtype=torch.float64)
    half = 1.96 * float(values.std()) / len(values) ** 0.5
    return Interval(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


of_chance = over_runs([seen - said for seen, said in zip(of_cosine, expected_cosine, strict=True)])
assert abs(of_chance.value) < 0.02
assert abs(over_runs(of_length).value - 0.5) < 0.02
say(f"""
{len(names)} runs: the cosine of eight directions spreads by {bracketed(over_runs(of_cosine), 3)}, where
{over_runs(expected_cosine).value:.3f} is foretold, and the squared length by {bracketed(over_runs(of_length), 3)},
where 0.5 is. (The runs share {len(sets)} sets of directions, because they share a seed, so the intervals may be too
narrow.)
""")

# %% [markdown]
# ### How many bytes: a sketch, and all recorded steps
#
# By hand: `kv_fp8_e5m2` has further answers, with fewer directions $K'$. Each of their tokens takes $K' + 2$ bytes for
# its score, 8 for the log-probs of both policies and 2 for its advantage, a float16.

# %% tags=["hide-input"]
path, sketch = runs.sketch_path(long_run, 48), sketch_files.read_sketch(long_run, 48)
further, of_further = sketch_files.read_gradients(long_run, 48)
tokens, K = sketch.scores.shape[0], sketch.directions
foretold_bytes = (K + 2) * tokens + 2 * 32 * 4 * K + 2 * PLACES * VOCABULARY * K
foretold_bytes += (of_further.directions + 2 + 8 + 2) * of_further.scores.shape[0]
small = 4 * (2 * 32 + 3 * PLACES * VOCABULARY)  # counts of the blocks, and three tables of log-probs at the places
small += len(further.response_mask)  # a byte for the length of each further answer
content = gzip.decompress(path.read_bytes())
header = 8 + int.from_bytes(content[:8], "little")  # of a safetensors file: names, shapes, hashes
assert foretold_bytes + small + header == len(content)

over = []
for name in names:
    run = runs.find_run(name)
    for step in runs.list_steps(run):
        b = runs.read_step(run, step).batch
        expected_bytes = 24 * int(b.response_mask.sum()) + 4 * int(b.tensors()["prompt_mask"].sum())
        over.append(runs.step_path(run, step).stat().st_size / expected_bytes)
assert all(0.5 < quotient < 0.9 for quotient in over)
say(f"""
The sketch has {len(content):,} bytes, of which the formulas foretell {foretold_bytes:,}; counts, names and shapes are
the rest, to the byte. Packed it has {path.stat().st_size:,}: gzip stores scores of five bits in five bits and not in
eight. The pairs are compressed too: {len(over)} recorded steps have {min(over):.2f} to {max(over):.2f} of the formula,
which is an upper estimate.
""")
