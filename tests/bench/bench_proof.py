"""`make bench ARGS=proof`: what the proof of a sync names, with nothing old and with each group of tensors really old.

Each case is tried with several seeds: other noise and other texts. About 40 minutes on two cores, most of it SmolLM2.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import torch
from engines import Forgetful, forget_engines, groups
from processes import ROOT

from rlcorr.train.config.rollout import KvCacheDtype, RolloutConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import sync_proof

SEEDS = {"warm start": (20, 3), smollm2.NAME: (3, 1)}
"""Model → tries with nothing old, and with each group old."""
FORMATS: dict[str, list[KvCacheDtype]] = {
    "warm start": list(get_args(KvCacheDtype)),
    smollm2.NAME: ["auto", "fp8"],
}
LAYERS = {"warm start": 1, smollm2.NAME: 15}
"""The layer that stays old alone."""


def bench_proof() -> None:
    print("| model | KV cache | nothing named of nothing old | named | not seen, and said so | wrong | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name in SEEDS:
        model = smollm2.fetched() if name == smollm2.NAME else ROOT / "runs" / "warm_start" / "checkpoint"
        for kv_cache in FORMATS[name]:
            print(f"| {name} | {kv_cache} | {row(name, model, kv_cache)} |", flush=True)


def row(name: str, model: Path, kv_cache: KvCacheDtype) -> str:
    """Start an engine, and try every group."""
    forget_engines()
    policy = Policy(load_lm(model, torch.device("cpu")), None)
    config = RolloutConfig(engine="vllm", kv_cache_dtype=kv_cache)
    with tempfile.TemporaryDirectory() as folder:
        stops = eos_ids(model, load_tokenizer(model))
        engine = start_engine(config, model, ALONE, stops, Path(folder) / "engine.log")
    nothing, each_group = SEEDS[name]
    begin = time.perf_counter()
    quiet = sum(not sync_proof(engine, policy, seed).left_behind for seed in range(nothing))
    seconds = (time.perf_counter() - begin) / nothing
    verdicts = [
        verdict(engine, policy, label, tensors, seed)
        for label, tensors in groups(policy, LAYERS[name]).items()
        for seed in range(each_group)
    ]
    counts = [f"{verdicts.count(word)} of {len(verdicts)}" for word in ("named", "unseen", "wrong")]
    return " | ".join([f"{quiet} of {nothing}", *counts, f"{seconds:.1f}"])


def verdict(engine: Any, policy: Policy, label: str, tensors: set[str], seed: int) -> str:
    """Return whether the proof names the group, cannot see it and says so, or is wrong."""
    forgetful: Any = Forgetful(engine, policy, tensors)
    proof = sync_proof(forgetful, policy, seed)
    if proof.left_behind:
        tied = ["embed_tokens", "lm_head"]  # one tensor, in two groups
        return "named" if proof.left_behind == (tied if label == "lm_head" else [label]) else "wrong"
    layer = label.removeprefix("layer ")
    blind = any(label in group or (layer.isdigit() and "one layer alone" in group) for group in proof.unseen)
    return "unseen" if blind else "wrong"
