"""`make bench ARGS=proof`: what the proof of a sync names if one tensor stays old, or none, and how long it takes.

Every tensor of the warm start is tried alone, and of SmolLM2 those of one layer and the last norm. Four minutes.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from engines import Forgetful, forget_engines
from processes import ROOT

from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import sync_proof

WARM = "warm start"
ENGINES: list[tuple[str, dict[str, Any]]] = [
    (WARM, {"dtype": "float32"}),
    (WARM, {"weights": "int4"}),
    (smollm2.NAME, {}),
    (smollm2.NAME, {"weights": "fp8_e4m3"}),
]
TRIED = {WARM: re.compile(r"(layers|norm)\."), smollm2.NAME: re.compile(r"(layers\.15|model\.norm)\.")}


def main() -> None:
    print("| model | engine | named, of the tensors that alone stayed old | named of none | seconds, fastest of four |")
    print("|---|---|---|---|---|")
    for name, changes in ENGINES:
        model = smollm2.fetched() if name == smollm2.NAME else ROOT / "runs" / "warm_start" / "checkpoint"
        config = RolloutConfig(engine="vllm", **changes)
        weights = "" if config.weights == "none" else f", weights in {config.weights}"
        print(f"| {name} | {config.dtype}{weights} | {row(model, config, TRIED[name])} |", flush=True)


def row(model: Path, config: RolloutConfig, tried: re.Pattern[str]) -> str:
    """Start an engine, and try the tensors."""
    forget_engines()
    policy = Policy(load_lm(model, torch.device("cpu")), False)
    with tempfile.TemporaryDirectory() as folder:
        stops = eos_ids(model, load_tokenizer(model))
        engine = start_engine(config, model, ALONE, stops, Path(folder) / "engine.log")
    seconds, none = [], []
    for _ in range(4):
        begin = time.perf_counter()
        none += sync_proof(engine, policy).left_behind
        seconds.append(time.perf_counter() - begin)
    names = [name for name in policy.lm.state_dict() if tried.search(name)]
    right = sum(sync_proof(Forgetful(engine, policy, {name}), policy).left_behind == [name] for name in names)
    return f"{right} of {len(names)} | {len(none)} | {min(seconds):.1f}"
