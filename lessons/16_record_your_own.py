# %% [markdown]
# # 16 · Record your own
#
# **Claim.** Two numbers per token are a recording; one command makes it, and three short formulas say how many answers,
# directions and bytes it takes.
#
# *30 minutes · intermediate · any laptop, or one GPU; no network.* You need the ratio and its average (lesson 00); for
# the sketches, what the bias of a gradient is (lesson 10).
#
# At the end you can
#
# - record a training with both log-probs of every token, on a CPU or a GPU;
# - turn the dump of another system into a run that every tool here opens;
# - read a run with nothing but pandas;
# - say beforehand how many answers, how many directions and how much disk a question needs.

# %%
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
from exercises.lesson_16 import ANSWERS_NEEDED, DIRECTIONS_NEEDED, MEAN_AND_ERROR
from show import picture, show

from rlcorr.figures.curves import curves
from rlcorr.foreign.imported import import_file
from rlcorr.foreign.unsaid import missing
from rlcorr.gradients import toy
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.records import runs, sketch_files
from rlcorr.records.verify import verify
from rlcorr.teaching.check import check

warnings.filterwarnings("error", module="(?!ipykernel)")  # what becomes deprecated fails here, at its source
torch.set_num_threads(1)
folder = tempfile.TemporaryDirectory()  # what this lesson records goes here, and disappears with it

# %% [markdown]
# ## The smallest recording
#
# For every token that was sampled, a recording needs two numbers: `rollout_log_probs`, the log-prob that the engine
# drew it with, and `old_log_probs`, the log-prob that the trainer gives to it, after the same text, before the update.
# Nothing that was corrected belongs into it: weights and masks can be computed again, with any preset; the pair cannot.
#
# Here are two answers as a file, one line each. The first has three tokens, the second two.

# %%
lines = [
    {"rollout_log_probs": [-0.7, -0.2, -0.7], "old_log_probs": [-0.5, -0.9, -0.7], "reward": 1.0},
    {"rollout_log_probs": [-0.9, -1.4], "old_log_probs": [-0.2, -1.4], "reward": 0.0},
]
file = Path(folder.name) / "pairs.jsonl"
file.write_text("".join(json.dumps(line) + "\n" for line in lines))

imported = Path(folder.name) / "imported"
record = import_file(file, imported)  # what `python -m rlcorr import pairs.jsonl --run imported` calls
batch = record.batch
d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)

show("mask", [int(counted) for counted in batch.response_mask.flatten()])
show("d", d, digits=2)
show("mean ratio", float(ratio(d)[batch.response_mask].double().mean()), digits=2)
report = verify(imported)
show("verified", report.status, len(report.problems), "problems")
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

# %% [markdown]
# ## A real recording
#
# Now a training. The next cell starts the command in a process of its own, as you would in a terminal; it takes about
# ten seconds. The model is the warm start of this project, 1.3 million parameters; the engine is the one of
# transformers, in bfloat16, so that no vLLM is needed. Two updates, each from 32 answers, both recorded, and at the
# second a **score sketch** (below) with 8 directions.
#
# `RLCORR_RUNS` says where runs are written. Leave it out, and they go to `runs/local`.

# %%
options = """--run mine --rollout.engine transformers --steps 2 --prompts-per-step 32 --eval-prompts 16
    --sketch.every 2 --sketch.directions 8 --sketch.places 2 --sketch.reference-prompts 64
    --checkpoint-every 0 --no-save-model --no-tensorboard"""
command = [sys.executable, "-m", "rlcorr", "train", "--model", str(runs.ROOT / "warm_start" / "checkpoint")]
done = subprocess.run(
    [*command, *options.split()],
    env=os.environ | {"RLCORR_RUNS": folder.name},
    capture_output=True,
    text=True,
    check=False,
)
mine = Path(folder.name) / "local" / "mine"

show("exit code", done.returncode)
assert done.returncode == 0, done.stderr
for path in sorted(mine.rglob("*")):
    if path.is_file():
        show("", str(path.relative_to(mine)))

# %% [markdown]
# Before the first update the command has done three things that are easy to forget: it **proved the sync** (with
# perturbed weights, that every tensor reaches the engine), it **probed the gap** and named what it looks like, and it
# wrote both to the manifest.

# %%
manifest = runs.read_manifest(mine)
report = verify(mine)

show("status, problems", report.status, len(report.problems))
show("steps recorded, rows of metrics", report.recorded_steps, report.metric_rows)
show("engine, its number format", manifest.engine, manifest.engine_settings["dtype"])
show("task, seed", manifest.task, str(manifest.seed))
show("the probe says", manifest.probe["pattern"])

assert report.problems == []
assert (report.recorded_steps, report.readable_steps, report.metric_rows) == (2, 2, 2)
assert runs.list_sketches(mine) == [2]

# %% [markdown]
# And is it a good recording? The last digits depend on the machine, so here are only truths. The bound for k3 is what
# rounding in bfloat16 may leave (lesson 12).

# %%
pairs = [runs.read_step(mine, step).batch for step in runs.list_steps(mine)]
d = torch.cat(
    [log_ratio(b.tensors()["old_log_probs"], b.rollout_log_probs, b.response_mask)[b.response_mask] for b in pairs]
).double()
r = ratio(d)
away = abs(float(r.mean()) - 1) / (float(r.std()) / len(r) ** 0.5)

show("answers", sum(len(b.response_mask) for b in pairs))
show("the two log-probs differ", bool((d != 0).any()))
show("k3 is rounding, no more", 0 < float(k3(d).mean()) < 1e-3)
show("mean ratio within 4 errors of 1", away < 4)

assert 0 < float(k3(d).mean()) < 1e-3
assert away < 4

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
# (`SELECT reward FROM 'steps/*.parquet'`), by anything. Here is pandas, on the committed run `bf16`.

# %%
path = runs.ROOT / "bf16" / "steps" / "step_000400.parquet"
table = pandas.read_parquet(path)

show("columns", ", ".join(table))
show("rows", len(table))
show("a prompt and its answer", table["prompt"][3], table["response"][3])
show("rollout_log_probs", table["rollout_log_probs"][3].tolist(), digits=6)
show("old_log_probs", table["old_log_probs"][3].tolist(), digits=6)

gaps = [
    p - q
    for old, rollout in zip(table["old_log_probs"], table["rollout_log_probs"], strict=True)
    for p, q in zip(old.tolist(), rollout.tolist(), strict=True)
]
by_library = runs.read_step(runs.find_run("bf16"), 400).batch
mask = by_library.response_mask
same = log_ratio(by_library.tensors()["old_log_probs"].double(), by_library.rollout_log_probs.double(), mask)[mask]
show("mean |d|, by hand and by the library", sum(map(abs, gaps)) / len(gaps), float(same.abs().mean()), digits=6)
assert gaps == same.tolist()

# %% [markdown]
# The log-probs are bit-exact float32. A run that was copied badly is found by its hashes; here one byte of your own run
# is changed.

# %%
step_file = mine / "steps" / "step_000001.parquet"
whole = step_file.read_bytes()
assert hashlib.sha256(whole).hexdigest() == manifest.files["steps/step_000001.parquet"]

step_file.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
show("problems, one byte changed", len(verify(mine).problems) > 0)
assert "sha256" in verify(mine).problems[0]
step_file.write_bytes(whole)
assert verify(mine).problems == []

# %% [markdown]
# ## How many answers?
#
# A reward is 0 or 1, and half of the answers are right. Its **standard deviation**, the typical distance from the mean,
# is σ = ½. The average of $n$ independent answers has a **standard error** of
#
# $$ \mathrm{SE} = \frac{\sigma}{\sqrt n}, \qquad\text{so}\qquad n = \Big(\frac{\sigma}{\mathrm{SE}}\Big)^2 . $$
#
# 100 answers give ± 0.05. To halve that takes 400; ± 0.01 takes 2,500. The reason is that variances of independent
# numbers add: $\mathrm{Var}(\frac1n \sum x_i) = \frac{1}{n^2}\, n\, \sigma^2$.
#
# ### Check 1, with symbols

# %%
P = sympy.symbols("p_A p_B p_C", positive=True)
X = sympy.symbols("x_A x_B x_C", real=True)


def expected(f, n):
    """The average of f over n independent draws of three actions: a sum of 3ⁿ terms."""
    draws = product(range(3), repeat=n)
    return sympy.Add(*(sympy.prod(P[a] for a in drawn) * f([X[a] for a in drawn]) for drawn in draws))


mean = expected(lambda x: x[0], 1)
variance = expected(lambda x: (x[0] - mean) ** 2, 1)
for n in (2, 3):
    of_mean = expected(lambda x: (sum(x) / len(x) - mean) ** 2, n)
    left = sympy.expand((of_mean - variance / n).subs(P[2], 1 - P[0] - P[1]))
    show(f"Var(mean of {n}) − Var/{n}", str(left))
    assert left == 0

# %% [markdown]
# ### Check 2, with numbers: tokens are not answers
#
# The formula wants *independent* numbers. Are the tokens of one answer independent? That depends on the number. In a
# small world all averages are sums:
#
# - $r_t - 1$ has average 0 **whatever was written before**, because $\sum_a q\,(p/q - 1) = 0$ at every place. So
#   $\mathbb{E}[(r_s - 1)(r_t - 1)] = 0$ for $s < t$: these numbers are **uncorrelated**, and the formula holds with
#   tokens in place of answers.
# - $|d_t|$ has no such law.
# - A reward is the same number on every token of its answer. Counting it 59 times adds nothing.

# %%
where = toy.world(3, 4)
engine, trainer = toy.random_policy(where, 16), toy.random_policy(where, 17)
chance = toy.probabilities(where, engine)  # (N,)
d_toy = toy.log_probs(where, trainer) - toy.log_probs(where, engine)
both = where.mask[:, :, None] & where.mask[:, None, :] & torch.ones(4, 4).triu(1).bool()  # pairs s < t of one answer


def together(x):
    """E Σ_{s<t} x_s x_t, over all answers."""
    return float((chance[:, None, None] * x[:, :, None] * x[:, None, :])[both.expand(len(chance), 4, 4)].sum())


centred = d_toy.abs() - (chance[:, None] * d_toy.abs())[where.mask].sum() / (chance[:, None] * where.mask).sum()
show("answers of the world", len(chance))
show("r − 1: pairs of tokens", together(ratio(d_toy) - 1), digits=6)
show("|d| − mean: pairs of tokens", together(centred), digits=6)
assert abs(together(ratio(d_toy) - 1)) < 1e-12
assert abs(together(centred)) > 1e-3

# two answers of the world: their mean ratio has half the variance of one
total = ((ratio(d_toy) - 1) * where.mask).sum(-1)
pair_chance = chance[:, None] * chance
halves = float((pair_chance * ((total[:, None] + total) / 2).square()).sum())
show("variance of one, of the mean of two", float((chance * total.square()).sum()), halves)
assert abs(halves - float((chance * total.square()).sum()) / 2) < 1e-12

# %% [markdown]
# ### Check 3, on a recorded run
#
# `kv_fp8_e5m2` has 768 answers in its six recorded steps, of 59 tokens each. The error of a mean over tokens, **by
# answers**, takes each answer as one draw: with $T_b$ tokens and the sum $S_b$, and $n$ answers,
#
# $$ \bar x = \frac{\sum_b S_b}{\sum_b T_b}, \qquad
# \mathrm{SE}^2 = \frac{n}{n-1} \cdot \frac{\sum_b (S_b - \bar x\, T_b)^2}{(\sum_b T_b)^2} . $$


# %%
def mean_and_error(x, mask):
    tokens, totals = mask.sum(-1), torch.where(mask, x, 0).sum(-1)
    mean, n = totals.sum() / tokens.sum(), len(tokens)
    squares = (totals - mean * tokens).square().sum()
    return float(mean), float((squares * n / (n - 1)).sqrt() / tokens.sum())


long_run = runs.find_run("kv_fp8_e5m2")
batches = [runs.read_step(long_run, step).batch for step in runs.list_steps(long_run)]
width = max(b.response_mask.shape[1] for b in batches)


def joined(name):
    return torch.cat(
        [torch.nn.functional.pad(b.tensors()[name], (0, width - b.response_mask.shape[1])) for b in batches]
    )


mask = joined("response_mask")
d = log_ratio(joined("old_log_probs").double(), joined("rollout_log_probs").double(), mask)
rewards = torch.cat([b.tensors()["rewards"] for b in batches]).double()
quantities = {"r": ratio(d), "k3": k3(d), "|d|": d.abs(), "reward": rewards[:, None].expand_as(d)}

show("quantity", "mean", "by token", "by answer", "factor")
factors = {}
for name, x in quantities.items():
    average, by_answer = mean_and_error(x, mask)
    by_token = float(x[mask].std()) / int(mask.sum()) ** 0.5
    factors[name] = by_answer / by_token
    show(name, average, by_token, by_answer, factors[name])

assert factors["r"] < factors["|d|"] < factors["reward"]
assert factors["r"] < 1.1
assert abs(factors["reward"] - float(mask.sum(-1).double().mean()) ** 0.5) < 0.5

# %% [markdown]
# As derived: the ratios of one answer behave like independent draws, $|d|$ does not quite, and the error of a reward by
# tokens is too small by $\sqrt{59} \approx 7.7$. **Count answers, unless you know better.**
#
# Now the $\sqrt n$ itself. The 768 answers are shuffled and cut into blocks of $n$; the spread of the block means
# should be $\sigma/\sqrt n$. With $m$ blocks a spread is known to about $1/\sqrt{2(m-1)}$ of itself.

# %%
generator = torch.Generator().manual_seed(16)
mean_sizes = (torch.where(mask, d.abs(), 0).sum(-1) / mask.sum(-1))[torch.randperm(len(mask), generator=generator)]
sigma = float(mean_sizes.std())
sizes = [4, 8, 16, 32, 64]
spreads = [float(mean_sizes.view(-1, n).mean(-1).std()) for n in sizes]
expected_spreads = [sigma / n**0.5 for n in sizes]
margins = [2 * s / (2 * (len(mean_sizes) // n - 1)) ** 0.5 for s, n in zip(expected_spreads, sizes, strict=True)]

show("answers in a block", sizes)
show("spread of the means of |d|", spreads, digits=5)
show("σ/√n", expected_spreads, digits=5)
show("± (two errors)", margins, digits=5)
assert all(abs(a - b) < c for a, b, c in zip(spreads, expected_spreads, margins, strict=True))

# %% [markdown]
# **Look for** the straight line: on two logarithmic axes $1/\sqrt n$ falls by half for four times the answers. The band
# is two errors.

# %%
band = (
    [s - m for s, m in zip(expected_spreads, margins, strict=True)],
    [s + m for s, m in zip(expected_spreads, margins, strict=True)],
)
picture(
    curves(
        sizes,
        {"σ/√n": expected_spreads, "spread of block means": spreads},
        x_name="answers in a block",
        y_name="standard error of mean |d|",
        log="xy",
        bands={"σ/√n": band},
    )
)

# %% [markdown]
# ## How many directions?
#
# A gradient of a model with millions of parameters is too long to store for every token. A **score sketch** keeps $K$
# numbers of it: its inner products with $K$ random directions $v_k$, whose entries are standard normal. With the
# sketches $a_k = \langle g, v_k\rangle$ and $b_k = \langle h, v_k\rangle$ of two gradients,
#
# $$ \mathbb{E}[a_k b_k] = \langle g, h \rangle, \qquad
# \mathrm{Var}(a_k b_k) = \lVert g\rVert^2 \lVert h\rVert^2 + \langle g, h\rangle^2 . $$
#
# The model's size appears nowhere. From this, with $c$ the cosine between $g$ and $h$, an average over $K$ directions
# has
#
# - a relative error of the squared length $\lVert g\rVert^2$ of $\sqrt{2/K}$ (put $h = g$);
# - an error of the cosine $\dfrac{\sum a_k b_k}{\sqrt{\sum a_k^2 \sum b_k^2}}$ of about $\dfrac{1 - c^2}{\sqrt K}$.
#
# 64 directions: lengths to 9 %, a cosine near 0 to ± 0.125, a cosine of 0.9 to ± 0.024.
#
# ### Check 1, with symbols
#
# For a standard normal, $\mathbb{E}[v^2] = 1$, $\mathbb{E}[v^4] = 3$, and odd powers average to 0.

# %%
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
moments = {  # E[a²b²] = 1 + 2c², E[a³b] = 3c, E[a⁴] = 3, less the products of means
    (0, 0): 1 + c**2,
    (0, 1): 2 * c,
    (0, 2): 2 * c,
    (1, 1): 2,
    (2, 2): 2,
    (1, 2): 2 * c**2,
}
of_cosine = sum(slopes[i] * slopes[j] * moments[min(i, j), max(i, j)] for i in range(3) for j in range(3))
assert sympy.expand(of_cosine - (1 - c**2) ** 2) == 0
unit = {**dict(zip(G, (1, 0, 0), strict=True)), **dict(zip(H, (c, sympy.sqrt(1 - c**2), 0), strict=True))}
for (i, j), value in moments.items():
    of = [a_k * b_k, a_k**2, b_k**2]
    covariance = normal_mean(of[i] * of[j]) - normal_mean(of[i]) * normal_mean(of[j])
    assert sympy.expand(covariance.subs(unit) - value) == 0

show("K · Var(squared length), of length 1", str(moments[1, 1]))
show("K · Var(cosine)", str(sympy.factor(of_cosine)))

# %% [markdown]
# ### Check 2, with numbers: every direction of a small space
#
# The Gauss–Hermite rule replaces a standard normal by three numbers, $-\sqrt3, 0, \sqrt3$ with chances 1/6, 2/3, 1/6,
# and is exact for powers up to the fifth. So three dimensions have 27 directions, and averages over them are exact
# sums. The gradients are real: of $\log\pi$ for two actions of a softmax of three.

# %%
points = torch.tensor([-(3**0.5), 0.0, 3**0.5], dtype=torch.float64)
directions = torch.cartesian_prod(points, points, points)
weights = torch.cartesian_prod(*[torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=torch.float64)] * 3).prod(-1)

logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
scores = [torch.autograd.grad(logits.log_softmax(-1)[action], logits)[0] for action in (0, 1)]
g, h = scores
inner = (directions @ g) * (directions @ h)
exact_variance = float(g @ g * (h @ h) + (g @ h) ** 2)

show("⟨g, h⟩, and its average", float(g @ h), float(weights @ inner))
show("variance, and its formula", float(weights @ (inner - g @ h).square()), exact_variance)
assert abs(float(weights @ inner - g @ h)) < 1e-12
assert abs(float(weights @ (inner - g @ h).square()) - exact_variance) < 1e-12

# %% [markdown]
# ### Check 3, on recorded sketches
#
# Eleven committed runs have a sketch with $K = 64$ or $96$ directions, and in it the gradients of 32 on-policy blocks.
# Take blocks in pairs. Cut their directions into groups of eight, and compute the cosine from each group: how far do
# the groups' answers spread around that of all directions? Expected is $(1 - c^2)/\sqrt 8$, and of the squared length
# $\sqrt{2/8} = 0.5$. The interval is over the eleven runs.

# %%
of_cosine, of_length, expected_cosine = [], [], []
names = [name for name, path in runs.list_runs().items() if path.parent == runs.ROOT and runs.list_sketches(path)]
for name in names:
    run = runs.find_run(name)
    blocks = sketch_files.read_sketch(run, sketch_files.last_sketch(run)).reference.by_token
    x, y = blocks.double()[0::2], blocks.double()[1::2]  # (16, K) each
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    groups = x.shape[1] // 8
    x8, y8 = x.reshape(-1, groups, 8), y.reshape(-1, groups, 8)
    cosines = (x8 * y8).sum(-1) / (x8.norm(dim=-1) * y8.norm(dim=-1))
    lengths = x8.square().sum(-1) * groups / x.square().sum(-1, keepdim=True)
    # a group is part of the whole that it is compared with: with eight groups, 8/7 of the spread that is seen
    of_cosine.append(float(((cosines - cosine[:, None]).square().mean() * groups / (groups - 1)).sqrt()))
    of_length.append(float(((lengths - 1).square().mean() * groups / (groups - 1)).sqrt()))
    expected_cosine.append(float((1 - cosine.square()).square().mean().sqrt()) / 8**0.5)


def with_error(values):
    values = torch.tensor(values, dtype=torch.float64)
    return float(values.mean()), float(values.std()) / len(values) ** 0.5


mean_cosine, error_cosine = with_error(of_cosine)
mean_length, error_length = with_error(of_length)
foretold = with_error(expected_cosine)[0]
drawn = {
    sketch_files.read_sketch(runs.find_run(name), sketch_files.last_sketch(runs.find_run(name))).directions_hash
    for name in names
}
show("runs, sets of directions", len(names), len(drawn))
assert len(drawn) == 3
show("spread of the cosine, K = 8", mean_cosine, "±", error_cosine, "expected", foretold, digits=3)
show("relative spread of the length²", mean_length, "±", error_length, "expected", 0.5, digits=3)
assert abs(mean_cosine - foretold) < 2 * error_cosine
assert abs(mean_length - 0.5) < 2 * error_length

# %% [markdown]
# 0.340 ± 0.004 where 0.331 is foretold, and 0.492 ± 0.008 for 0.5. So 64 directions know a cosine near 0 to ± 0.12, and
# 96 to ± 0.10: enough to say that a gradient points the right way, too little to rank two good presets by
# their cosines. (Two presets on one sketch share its directions, and part of the error cancels in their difference.)
#
# The interval may be a little too narrow: nine of the eleven runs share their first 64 directions, because they share a
# seed.
#
# ## How many bytes?
#
# A response token has five float32 (both log-probs, the reference's, the value, the advantage) and one int32 (its id):
# 24 bytes. A prompt token has its id: 4. Text, rewards and names are small beside them. A sketch has $K$ int8 per
# response token, of which it uses -15 to 15, and a bfloat16 that they are multiplied by. The reference is there once,
# in float32, and at $P$ places all $V$ tokens, in float16.
#
# $$ \text{pairs} \approx 24\,N + 4\,N_{\text{prompt}}, \qquad \text{sketch} \approx (K + 2)\,N
# + 2 \cdot 32 \cdot 4K + 2\,P\,V K $$
#
# with $N$ response tokens, 32 blocks of the reference, and two ways to average them. `kv_fp8_e5m2` has 1,024 further
# answers, of $N'$ tokens, with $K' = 16$ of the 64 directions. Each of their tokens takes $K' + 2$ bytes for its score,
# 8 for the log-probs of both policies and 2 for its advantage, a float16.
#
# ### Checks 1 and 2: symbols, and the exact size of a sketch

# %%
N, K, M, PLACES, VOCABULARY = sympy.symbols("N K M P V", positive=True)
pair_bytes = sum([4] * 5 + [4]) * N
sketch_bytes = (K + 2) * N + 2 * M * 4 * K + 2 * PLACES * VOCABULARY * K
assert sympy.diff(pair_bytes, N) == 24
assert sympy.diff(sketch_bytes, K).free_symbols == {N, M, PLACES, VOCABULARY}  # linear in K

path = runs.sketch_path(long_run, 48)
sketch = sketch_files.read_sketch(long_run, 48)
further, of_further = sketch_files.read_gradients(long_run, 48)
further_bytes = (of_further.directions + 2 + 8 + 2) * of_further.scores.shape[0]
small = 4 * (2 * 32 + 3 * 16 * 21)  # counts of the blocks, and three tables of log-probs at the places
small += len(further.response_mask)  # a byte for the length of each further answer
content = gzip.decompress(path.read_bytes())
header = 8 + int.from_bytes(content[:8], "little")  # of a safetensors file: names, shapes, hashes
sizes_of = {N: sketch.scores.shape[0], K: sketch.directions, M: 32, PLACES: 16, VOCABULARY: 21}
foretold_bytes = int(sketch_bytes.subs(sizes_of))

show("tokens, directions", sketch.scores.shape[0], sketch.directions)
show("further tokens, directions", of_further.scores.shape[0], of_further.directions)
show("foretold, own and further", foretold_bytes, further_bytes)
show("small things, header", small, header)
show("the content", len(content))
show("packed", path.stat().st_size)
assert foretold_bytes + further_bytes + small + header == len(content)
assert path.stat().st_size < 0.8 * len(content)

# %% [markdown]
# To the byte. gzip then stores scores of five bits in five bits and not in eight. The pairs carry texts and are
# compressed: a file keeps the first bytes of all floats of a column together, which are much alike, then all second
# bytes. So theirs is an upper estimate.
#
# ### Check 3, on all recorded steps

# %%
over, tokens_in = [], []
for name in names:
    run = runs.find_run(name)
    for step in runs.list_steps(run):
        b = runs.read_step(run, step).batch
        count, prompt = int(b.response_mask.sum()), int(b.tensors()["prompt_mask"].sum())
        over.append(runs.step_path(run, step).stat().st_size / (24 * count + 4 * prompt))
        tokens_in.append(count)
average, error = with_error(over)

show("recorded steps", len(over))
show("size over 24 N + 4 N_prompt", average, "±", error, digits=2)
show("least, most", min(over), max(over), digits=2)
assert all(0.5 < quotient < 0.9 for quotient in over)

# %% [markdown]
# ## Predict, then reveal
#
# You plan a run like `kv_fp8_e5m2`: 128 answers of 59 tokens per step, 1,000 steps. **Write down a guess:**
#
# 1. Mean $|d|$ of one step: to how many per cent is it known?
# 2. How many steps' answers must you put together to know it to 1 %?
# 3. Every step recorded: megabytes? And with a sketch of 64 directions at every step, how many times that?
#
# Then run the cell.

# %%
per_step = 128
relative = sigma / per_step**0.5 / float(mean_sizes.mean())
steps_needed = (sigma / (0.01 * float(mean_sizes.mean()))) ** 2 / per_step
megabytes = (24 * 59 * per_step + 4 * 41 * per_step) * 1000 / 1e6
with_sketch = float(sketch_bytes.subs(sizes_of | {N: 59 * per_step})) * 1000 / 1e6

show("mean |d| of a step, to per cent", 100 * relative, digits=0)
show("steps for 1 per cent", steps_needed, digits=0)
show("pairs of 1,000 steps, MB", megabytes, digits=0)
show("sketches of 1,000 steps, MB", with_sketch, digits=0)
show("times as much", with_sketch / megabytes, digits=1)

assert round(100 * relative) == 10
assert round(steps_needed) == 99

# %% [markdown]
# One step knows mean $|d|$ to 10 per cent, and a tenth of that takes a hundred times as many answers. 200 MB of pairs
# are nothing; a sketch at every step is three times that, and takes far longer to compute than to store. That is why
# recording and sketching have intervals of their own.
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

# %% [markdown]
# ## Exercise 1: how many answers?
#
# *3 minutes.* A number has the standard deviation `std` from answer to answer. Return how many answers it takes for a
# standard error of at most `error`, as a whole number.
#
# <details><summary>Hint 1</summary>Solve SE = σ/√n for n.</details>
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
# <details><summary>Hint 1</summary>The formula is under "Check 3, on a recorded run"; so is code that does
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
# <details><summary>Hint 1</summary>Solve (1 − c²)/√K = error for K.</details>
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
# <details><summary>To ± 0.05.</summary>Yes. σ/√n = 0.5/10, with n the number of answers.</details>
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
# <details><summary>Yes, as for everything else.</summary>No. For |d| it was too small by a fifth, and for the reward
# by √T.</details>
#
# **3. A model is a thousand times as large. How many more directions does its sketch need?**
#
# <details><summary>A thousand times.</summary>No. The size of the model does not appear in the variance.</details>
# <details><summary>√1000, about 32 times.</summary>No. That is how the error falls with K, not how K grows with the
# model.</details>
# <details><summary>None.</summary>Yes. The error depends on K and on the cosine. Each direction takes longer to
# compute, and no more disk.</details>

# %%
folder.cleanup()  # the runs of this lesson; yours, in runs/local, stay

# %% [markdown]
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
#   old one without a word. Prove the sync in float32: k3 must be below 1e-7.
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
