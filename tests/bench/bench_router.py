"""Measure router replay: `python tests/bench/bench_router.py [checkpoint]`, by default on the shipped mixture.

Per engine format, with and without replay: the mismatch with the float32 trainer, and how often the trainer's router
would rather take another set of experts than the engine took.
"""

import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from processes import ROOT
from router_gap import measure

from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.start import start_engine

CPU = torch.device("cpu")
WARM_START = ROOT / "runs" / "warm_start_moe" / "checkpoint"


def main(model: Path = WARM_START) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, task = load_tokenizer(model), get_task("addition")
        held_out = itertools.islice(examples(task, 0, held_out=True), 512)
        prompts = [encode(tokenizer, example.prompt) for example in held_out]
        base, policy = RolloutConfig(engine="vllm", router_replay=True), Policy(load_lm(model, CPU), False)
        engines = []  # kept: an engine that dies takes vLLM's global state along
        print("| engine | trainer | k3 | mean \\|d\\| | other experts, per token and layer | in some layer |")
        print("|---|---|---|---|---|---|")
        for dtype in ("float32", "bfloat16"):
            config = replace(base, dtype=dtype)
            engines.append(start_engine(config, model, ALONE, eos_ids(model, tokenizer), Path(folder) / "engine.log"))
            gaps = measure(engines[-1], policy, prompts, task.max_tokens)
            for name, gap in zip(("own experts", "replay"), gaps, strict=True):
                print(
                    f"| {dtype} | {name} | {gap.k3:.1e} | {gap.abs_log_ratio:.5f} | {gap.other_set:.2%} | "
                    f"{gap.any_layer:.2%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
