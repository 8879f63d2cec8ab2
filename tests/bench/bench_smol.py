"""`make bench ARGS=smol`: part A of runs/study/smol.md, the gaps of SmolLM2-135M without training.

512 prompts with four answers each, sampled by a vLLM engine in bfloat16 and by one with a KV cache in e5m2 (on a GPU,
which has no e5m2 for this model, in e4m3), and scored by trainers in several precisions; then the answers of the first
engine scored by weights that are six updates newer. Intervals (95 %) are over prompts: 1,000 bootstrap samples. About
half an hour on two cores.
"""

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from rlcorr import PRESETS, correct
from rlcorr.ratios import k3, log_ratio
from rlcorr.records import runs
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.packaged import SMOLLM2
from rlcorr.train.config.rollout import KvCacheDtype, RolloutConfig, Sampling
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tasks import Example, examples, get_task
from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.start import start_engine
from rlcorr.types import TokenBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COARSE: KvCacheDtype = "fp8" if DEVICE.type == "cuda" else "fp8_e5m2"
PROMPTS, SAMPLES, DRAWS = 512, 4, 1000
LENGTHS = (4, 8, 16, 24)
UPDATES = 6
REJECTING = (
    "decoupled_geo_rs", "skyrl_geo_mask", "decoupled_k3_rs", "decoupled_seq_is_rs", "openrlhf_tv", "roll_ratio_filter",
    "slime_mis", "prime_rl_ipo",
)  # fmt: skip
Statistic = Callable[[Tensor, Tensor], Tensor]
"""From d and its mask, (prompts, samples, T) each, to sums per prompt, (2, prompts), numerator and denominator."""


def main() -> None:
    model, task = smollm2.fetched(), get_task("sum_questions")
    tokenizer = load_tokenizer(model)
    drawn = list(itertools.islice(examples(task, 0), PROMPTS))
    policy = Policy(load_lm(model, DEVICE), False)
    with tempfile.TemporaryDirectory() as folder:
        newer = trained(Path(folder))
        sampled = {kv: answers(model, tokenizer, drawn, kv, Path(folder)) for kv in ("auto", COARSE)}
        fresh, coarse = sampled["auto"], sampled[COARSE]
        exact = scored(policy, fresh, "float32", 16)
        eight, one = scored(policy, fresh, "bfloat16", 8), scored(policy, fresh, "bfloat16", 1)
        settings = {
            "engine bf16, trainer float32": (fresh, exact),
            "engine bf16, trainer bf16, 8 rows": (fresh, eight),
            "engine bf16, trainer bf16, 1 row": (fresh, one),
            "trainer bf16, 8 rows, compared with 1 row": (fresh.replace(rollout_log_probs=one), eight),
            f"engine with a cache in {COARSE}, trainer float32": (coarse, scored(policy, coarse, "float32", 16)),
            f"engine {UPDATES} updates old, trainer bf16, 8 rows": (fresh, scored(newer, fresh, "bfloat16", 8)),
        }
    pairs = {name: batch.replace(old_log_probs=old) for name, (batch, old) in settings.items()}
    sizes(pairs)
    by_length(pairs)
    kept(pairs)


def trained(folder: Path) -> Policy:
    """Return the policy after the updates of seed 0, from answers of fresh weights."""
    runs.LOCAL = folder
    config = replace(SMOLLM2, run="newer", steps=UPDATES, checkpoint_every=0, tensorboard=False, eval_every=UPDATES)
    return Policy(load_lm(train(config) / "checkpoint", DEVICE), False)


def answers(model: Path, tokenizer: Any, drawn: list[Example], kv: KvCacheDtype, folder: Path) -> TokenBatch:
    """Return the answers of one engine, those of a prompt next to each other."""
    task = get_task("sum_questions")
    prompts = [encode(tokenizer, example.prompt, task.instruction, smollm2.SYSTEM) for example in drawn]
    config = RolloutConfig(engine="vllm", kv_cache_dtype=kv)
    engine = start_engine(config, model, ALONE, eos_ids(model, tokenizer), folder / f"{kv}.log")
    samples = engine.generate(prompts, n=SAMPLES, max_tokens=task.max_tokens, sampling=Sampling(), seed=0)
    KEPT.append(engine)
    return to_batch([ids for ids in prompts for _ in range(SAMPLES)], samples, DEVICE)


KEPT: list[RolloutEngine] = []
"""Engines: one that dies takes vLLM's global state along."""


@torch.no_grad()
def scored(policy: Policy, batch: TokenBatch, precision: Precision, rows: int) -> Tensor:
    """Return the trainer's log-probs, computed this many rows at a time."""
    policy.precision = precision
    parts = [slice(at, at + rows) for at in range(0, len(batch.response_mask), rows)]
    return torch.cat([policy(batch.rows(part), 1.0).log_probs for part in parts])


def sizes(pairs: dict[str, TokenBatch]) -> None:
    print("| | tokens | mean abs. d | k3 | outside 0.9 to 1.1 | smallest, largest ratio |\n|---|---|---|---|---|---|")
    statistics: list[Statistic] = [mean_of(torch.abs), mean_of(k3), mean_of(outside_band)]
    for name, batch in pairs.items():
        d, mask = grouped(batch)
        cells = [interval(statistic(d, mask)) for statistic in statistics]
        ends = f"{float(d[mask].exp().min()):.2g}, {float(d[mask].exp().max()):.3g}"
        print(f"| {name} | {int(mask.sum()):,} | {' | '.join(cells)} | {ends} |", flush=True)


def by_length(pairs: dict[str, TokenBatch]) -> None:
    print(f"\nESS of the products of the first T tokens\n\n| | {' | '.join(f'T = {length}' for length in LENGTHS)} |")
    print("|---|" + "---|" * len(LENGTHS))
    for name, batch in pairs.items():
        d, mask = grouped(batch)
        cells = []
        for length in LENGTHS:
            long, weights = mask[..., length - 1], d[..., :length].sum(-1).exp()
            sums = torch.stack([(weights * long).sum(-1), (weights**2 * long).sum(-1), long.sum(-1).double()])
            cells.append(interval(sums, lambda total: total[0] ** 2 / (total[1] * total[2])))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def kept(pairs: dict[str, TokenBatch]) -> None:
    print(f"\nKept tokens\n\n| | {' | '.join(f'`{name}`' for name in REJECTING)} |\n|---|{'---|' * len(REJECTING)}")
    for name, batch in pairs.items():
        cells = []
        for preset in REJECTING:
            result = correct(batch, PRESETS[preset].config)
            both = torch.stack([result.keep_mask & batch.response_mask, batch.response_mask]).double()
            cells.append(interval(both.view(2, PROMPTS, -1).sum(-1)))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def outside_band(d: Tensor) -> Tensor:
    return ((d.exp() - 1).abs() > 0.1).double()


def grouped(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Return d and its mask, (prompts, samples, T) each."""
    d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask).double()
    shape = (-1, SAMPLES, d.shape[-1])
    return d.view(shape), batch.response_mask.view(shape)


def mean_of(function: Callable[[Tensor], Tensor]) -> Statistic:
    return lambda d, mask: torch.stack([(function(d) * mask).sum((1, 2)), mask.sum((1, 2)).double()])


def interval(sums: Tensor, value: Callable[[Tensor], Tensor] = lambda total: total[0] / total[1]) -> str:
    """Return a statistic of sums over prompts, (n, prompts), with its interval."""
    sums = sums.cpu()
    prompts = sums.shape[-1]
    drawn = torch.randint(prompts, (DRAWS, prompts), generator=torch.Generator().manual_seed(0))
    low, high = value(sums[:, drawn].sum(-1)).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return f"{float(value(sums.sum(-1))):.3g} [{low:.3g}, {high:.3g}]"


def smol_runs() -> None:
    """Print what became of the recorded runs of the real model."""
    print("| run | engine; trainer | reward, first and last five steps | accuracy, first and last |", end="")
    print(" k3 over the steps | outside ±10 % | kept by ±0.1 % on the mean, last step | seconds per step |")
    print(f"|{'---|' * 8}")
    for name, path in runs.list_runs().items():
        if path.parent != runs.ROOT or "smol" not in name:
            continue
        rows = runs.read_metrics(path)
        rewards, k3s = [row["reward"] for row in rows], [row["rollout_corr/k3_kl"] for row in rows]
        right = [row["accuracy"] for row in rows if "accuracy" in row]
        first, last = runs.list_steps(path)[0], runs.list_steps(path)[-1]
        early, late = (runs.read_step(path, step).batch for step in (first, last))
        cells = [
            f"`{name}`",
            formats(runs.read_manifest(path)),
            f"{fmean(rewards[:5]):.2f}, {fmean(rewards[-5:]):.2f}",
            f"{right[0]:.2f}, {right[-1]:.2f}" if len(right) > 1 else f"one: {right[0]:.2f}",
            f"{min(k3s):.1e} to {max(k3s):.1e}",
            f"{outside(early):.1%} at step {first}, {outside(late):.1%} at step {last}",
            f"{inside(late):.0%}",
            f"{median(row['timing/step'] for row in rows):.3g}",
        ]
        print(f"| {' | '.join(cells)} |")


def formats(manifest: runs.RunManifest) -> str:
    """Return the number formats of the engine and of the trainer."""
    settings, weights = manifest.engine_settings, manifest.config["rollout"].get("weights", "none")
    engine = [settings["dtype"]]
    engine += [] if settings["kv_cache_dtype"] == "auto" else [f"cache {settings['kv_cache_dtype']}"]
    engine += ["weights and activations fp8"] if settings.get("quantization") == "fp8" else []
    engine += [] if weights == "none" else [f"weights {weights}"]
    return f"{', '.join(engine)}; {manifest.trainer_dtype}"


def outside(batch: TokenBatch) -> float:
    d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)
    return float(outside_band(d[batch.response_mask]).mean())


def inside(batch: TokenBatch) -> float:
    """Return the share of the tokens that a geometric mean within 0.1 % keeps."""
    kept = correct(batch, PRESETS["decoupled_geo_rs"].config).keep_mask & batch.response_mask
    return float(kept.sum() / batch.response_mask.sum())
