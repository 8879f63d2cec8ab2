"""`make bench ARGS=precision`: the mismatch of the warm start by the number formats of engine and trainer.

Every engine answers the same prompts with the same seed, and every trainer scores all of its answers. Intervals are
over prompts, which all settings share: 95 % of 2,000 bootstrap samples.
"""

import itertools
import tempfile
from pathlib import Path
from typing import get_args

import torch
from processes import ROOT
from torch import Tensor

from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import Dtype, RolloutConfig, Sampling
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import to_batch
from rlcorr.train.rollout.start import start_engine

CPU = torch.device("cpu")
MODEL = ROOT / "runs" / "warm_start" / "checkpoint"
PROMPTS, DRAWS = 4096, 2000
USUAL = ("bfloat16", "float32")


def main() -> None:
    tables = differences()
    baseline = tables[USUAL]
    print("| engine | trainer | mean k3 | of k3 in bfloat16, float32 | largest ratio |\n|---|---|---|---|---|")
    for (engine, trainer), d in tables.items():
        low, high = interval(d, baseline)
        share = mean_k3(d) / mean_k3(baseline)
        largest = max(float(row.abs().max()) for row in d)
        print(
            f"| {engine} | {trainer} | {mean_k3(d):.2e} | {share:.4f} [{low:.4f}, {high:.4f}] | "
            f"{2.718281828**largest:.3f} |",
            flush=True,
        )


def differences() -> dict[tuple[str, str], list[Tensor]]:
    """(engine, trainer) → d of every token of each prompt's answer."""
    tokenizer, task = load_tokenizer(MODEL), get_task("addition")
    held_out = itertools.islice(examples(task, 0, held_out=True), PROMPTS)
    prompts = [encode(tokenizer, example.prompt) for example in held_out]
    policy, tables, engines = Policy(load_lm(MODEL, CPU), False), {}, []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in get_args(Dtype):
            config = RolloutConfig(engine="vllm", dtype=dtype)
            # Kept: an engine that dies takes vLLM's global state along.
            engines.append(start_engine(config, MODEL, ALONE, eos_ids(MODEL, tokenizer), Path(folder) / "engine.log"))
            sampled = engines[-1].generate(prompts, n=1, max_tokens=task.max_tokens, sampling=Sampling(), seed=0)
            batch = to_batch(prompts, sampled, CPU)
            for precision in get_args(Precision):
                policy.precision = precision
                with torch.no_grad():
                    parts = [policy(batch.rows(slice(at, at + 512)), 1.0).log_probs for at in range(0, PROMPTS, 512)]
                d = log_ratio(torch.cat(parts), batch.rollout_log_probs, batch.response_mask)
                tables[dtype, precision] = [row[real] for row, real in zip(d, batch.response_mask, strict=True)]
    return tables


def mean_k3(rows: list[Tensor]) -> float:
    return float(k3(torch.cat(rows).double()).mean())


def interval(rows: list[Tensor], baseline: list[Tensor]) -> tuple[float, float]:
    """Of the quotient of both means, over prompts drawn for both together."""
    drawn = torch.randint(len(rows), (DRAWS, len(rows)), generator=torch.Generator().manual_seed(0))

    def means(of: list[Tensor]) -> Tensor:
        sums = torch.stack([k3(row.double()).sum() for row in of])
        counts = torch.tensor([len(row) for row in of])
        return sums[drawn].sum(-1) / counts[drawn].sum(-1)

    low, high = (means(rows) / means(baseline)).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return low, high


if __name__ == "__main__":
    main()
