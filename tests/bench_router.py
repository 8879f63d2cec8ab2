"""Measure router replay: `python tests/bench_router.py [checkpoint]`, by default on the shipped mixture of experts.

Per engine format, with and without replay: the mismatch with the float32 trainer, and how often the trainer's router
would rather take another set of experts than the engine took.
"""

import itertools
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from processes import ROOT

from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config import RolloutConfig, Sampling
from rlcorr.train.engine import start_engine
from rlcorr.train.model import Policy, load_lm
from rlcorr.train.ranks import ALONE
from rlcorr.train.rollout import RolloutEngine, to_batch
from rlcorr.train.router import replayed
from rlcorr.train.tasks import examples, get_task
from rlcorr.train.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.types import TokenBatch

CPU = torch.device("cpu")
WARM_START = ROOT / "runs" / "warm_start_moe" / "checkpoint"


@dataclass(frozen=True)
class Gap:
    """d = log π_trainer − log π_engine on the tokens that the engine sampled."""

    k3: float  # mean of e^d − 1 − d
    abs_log_ratio: float  # mean |d|
    other_set: float  # share of all (token, layer) where the trainer's own choice differs from the engine's
    any_layer: float  # share of the tokens where it does in some layer


@torch.no_grad()
def measure(engine: RolloutEngine, policy: Policy, prompts: list[list[int]], max_tokens: int) -> tuple[Gap, Gap]:
    """Without and with replay, on the same samples of an engine whose router is read."""
    batch = to_batch(prompts, engine.generate(prompts, n=1, max_tokens=max_tokens, sampling=Sampling()), CPU)
    return _gap(policy, batch, replay=False), _gap(policy, batch, replay=True)


def _gap(policy: Policy, batch: TokenBatch, *, replay: bool) -> Gap:
    mask = batch.response_mask
    d = log_ratio(policy(batch, 1.0, replay=replay).log_probs, batch.rollout_log_probs, mask)
    other = _other_sets(policy, batch, replay=replay)
    return Gap(
        k3=float(masked_mean(k3(d), mask)),
        abs_log_ratio=float(masked_mean(d.abs(), mask)),
        other_set=float(other.float().mean()),
        any_layer=float(other.any(-1).float().mean()),
    )


def _other_sets(policy: Policy, batch: TokenBatch, *, replay: bool) -> torch.Tensor:
    """(tokens fed to the engine, layers): the largest router logits are others than the engine's."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    assert batch.routed_experts is not None
    ids = torch.cat([batch.prompt_ids, batch.response_ids], -1)
    attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)
    positions = (attention.long().cumsum(-1) - 1).clamp(min=0)
    with replayed(policy.lm, batch.routed_experts if replay else None, attention):
        out = policy.lm(ids, attention_mask=attention, position_ids=positions, output_router_logits=True)
    k = batch.routed_experts.shape[-1]
    own = torch.stack([layer.topk(k).indices for layer in out.router_logits], 1)  # (B · S, layers, k)
    engines = batch.routed_experts.flatten(0, 1)
    fed = engines[:, 0, 0] >= 0
    return (own[fed].sort(-1).values != engines[fed].sort(-1).values).any(-1)


def main(model: Path = WARM_START) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, task = load_tokenizer(model), get_task("addition")
        held_out = itertools.islice(examples(task, 0, held_out=True), 512)
        prompts = [encode(tokenizer, example.prompt) for example in held_out]
        base, policy = RolloutConfig(engine="vllm", router_replay=True), Policy(load_lm(model, CPU), None)
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
