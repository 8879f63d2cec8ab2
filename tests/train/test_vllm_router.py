"""A mixture of experts in the real vLLM engine: its choices are read, and a sync replaces every expert."""

import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import Forgetful, forget_engines, mismatch
from router_gap import measure
from tiny import CPU, save_random
from transformers import PreTrainedModel

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.pretrain import new_lm, new_moe_lm
from rlcorr.train.rollout import vllm_engine, vllm_router
from rlcorr.train.rollout.engine import RolloutEngine, Samples
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import prove_sync, sync_proof

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

FLOAT32 = RolloutConfig(engine="vllm", dtype="float32", router_replay=True)
FLOAT32_K3 = 1e-7
BFLOAT16 = replace(FLOAT32, dtype="bfloat16")
FEW_BLOCKS = replace(FLOAT32, kv_cache_mib=3, max_model_len=256)
"""Room for eight blocks of 128 tokens: longer sequences preempt one another."""


WARM_START_MOE = runs.ROOT / "warm_start_moe" / "checkpoint"
Start = Callable[[RolloutConfig, Path], RolloutEngine]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """These engines stay to the end."""
    forget_engines()
    alive: list[RolloutEngine] = []
    log = tmp_path_factory.mktemp("router") / "engine.log"

    def begin(config: RolloutConfig, model: Path) -> RolloutEngine:
        for handler in logging.getLogger("vllm").handlers:
            handler.close()  # of the engine before
        alive.append(start_engine(config, model, ALONE, [EOS_ID], log))
        return alive[-1]

    yield begin
    alive.clear()
    forget_engines()


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("tied"), new_moe_lm, tied=True)


@pytest.fixture(scope="module")
def engine(start: Start, tied: Path) -> RolloutEngine:
    return start(FLOAT32, tied)


@pytest.fixture
def policy(tied: Path) -> Policy:
    return Policy(load_lm(tied, CPU), False)


def prompts(count: int, shortest: int, longest: int) -> list[list[int]]:
    some = torch.Generator().manual_seed(0)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=some).tolist()
    return [torch.randint(3, 21, (length,), generator=some).tolist() for length in lengths]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[vllm_router.Step]:
    """The forward passes of the engine, as the tap saw them."""
    seen, table = [], vllm_router._table
    monkeypatch.setattr(vllm_router, "_table", lambda steps, *rest: table(seen.extend(steps) or steps, *rest))
    return seen


def passes(steps: list[vllm_router.Step]) -> Counter[Any]:
    """How often each position of each sample was computed."""
    owners = ([o for o, n in zip(s.owners, s.counts.tolist(), strict=True) for _ in range(n)] for s in steps)
    flat = itertools.chain.from_iterable(owners)
    return Counter(zip(flat, (p for s in steps for p in s.positions.tolist()), strict=True))


@torch.no_grad()
def assert_the_trainer_routes_alike(policy: Policy, asked: list[list[int]], got: Samples) -> None:
    """In float32 both choose the largest router logits of the same states, for every token and layer."""
    assert got.routed_experts is not None
    for prompt, response, experts in zip(asked, got.response_ids, got.routed_experts, strict=True):
        fed = torch.tensor([prompt + response[:-1]])
        logits = policy.lm(fed, output_router_logits=True).router_logits
        largest = torch.stack([layer.topk(2).indices for layer in logits], 1)
        assert experts.dtype == torch.int16
        assert torch.equal(experts.long().sort(-1).values, largest.sort(-1).values)


def test_chunked_prompts_and_several_samples(
    engine: RolloutEngine, policy: Policy, steps: list[vllm_router.Step]
) -> None:
    asked = prompts(64, 2, 100)
    for _ in range(2):  # the second call starts from nothing
        got = engine.generate(asked, n=3, max_tokens=20, sampling=Sampling())
        assert_the_trainer_routes_alike(policy, [p for p in asked for _ in range(3)], got)
    started = [(o, n) for s in steps for o, n in zip(s.owners, s.counts.tolist(), strict=True) if n > 1]
    assert len(started) > len({owner for owner, _ in started})  # some prompt took more than one pass
    assert set(passes(steps).values()) == {1}


def test_preempted_requests(start: Start, tied: Path, policy: Policy, steps: list[vllm_router.Step]) -> None:
    asked = prompts(24, 110, 126)
    got = start(FEW_BLOCKS, tied).generate(asked, n=1, max_tokens=40, sampling=Sampling())
    assert max(passes(steps).values()) > 1  # some token was computed again
    assert_the_trainer_routes_alike(policy, asked, got)


def test_a_sync_replaces_every_expert(engine: RolloutEngine, policy: Policy) -> None:
    assert mismatch(engine, policy, prompts(32, 6, 6)) <= FLOAT32_K3
    assert prove_sync(engine, policy, FLOAT32).k3 <= FLOAT32_K3
    assert mismatch(engine, policy, prompts(32, 6, 6)) <= FLOAT32_K3
    in_vllm = {"experts.gate_up_proj": "experts.routed_experts.w13_weight"}
    in_vllm["experts.down_proj"] = "experts.routed_experts.w2_weight"
    for name in policy.lm.state_dict():
        if name not in ("model.embed_tokens.weight", "lm_head.weight"):  # tied
            kind = next((kind for kind in in_vllm if name.endswith(kind)), "")
            expected = name.replace(kind, in_vllm[kind]) if kind else name
            assert sync_proof(Forgetful(engine, policy, {name}), policy).left_behind == [expected]


@pytest.mark.parametrize("new", [new_lm, new_moe_lm])
def test_an_untied_head_is_synced_too(new: Callable[[int], PreTrainedModel], start: Start, tmp_path: Path) -> None:
    model = save_random(tmp_path / "untied", new, tied=False)
    config = replace(FLOAT32, router_replay=new is new_moe_lm)
    proved = prove_sync(start(config, model), Policy(load_lm(model, CPU), False), config)
    assert proved.left_behind == []
    assert proved.k3 <= FLOAT32_K3


def test_experts_that_stay_unpacked_are_found(
    engine: RolloutEngine, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why `forget_packing` is there: without it vLLM takes the weights, and its kernel misreads them."""
    with monkeypatch.context() as without:
        without.setattr(vllm_engine, "forget_packing", lambda worker: None)
        with pytest.raises(UsageError, match="the engine did not take"):
            prove_sync(engine, policy, FLOAT32)
    assert prove_sync(engine, policy, FLOAT32).k3 <= FLOAT32_K3


def test_replay_makes_the_mismatch_smaller(start: Start) -> None:
    """A model that was trained, in bfloat16, against the float32 trainer."""
    engine, policy = start(BFLOAT16, WARM_START_MOE), Policy(load_lm(WARM_START_MOE, CPU), False)
    without, replayed = measure(engine, policy, prompts(128, 20, 40), max_tokens=60)
    assert without.other_set > 1e-3  # bfloat16 tips some choices
    assert replayed.k3 < without.k3
    assert replayed.abs_log_ratio < without.abs_log_ratio
    assert replayed.other_set < without.other_set  # what tipped a router upstream is undone


def test_what_the_tap_cannot_read(engine: Any) -> None:
    """A dense model has no router, and a token of a cached prefix is never routed, so there is nothing to replay."""
    runner = SimpleNamespace(get_model=lambda: torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="this model has no experts"):
        vllm_router.RouterTap(SimpleNamespace(collective_rpc=lambda _: [runner]))
    experts = torch.zeros(2, 3, 2, dtype=torch.int16)
    engine._tap._steps.append(vllm_router.Step([("0", 0)], torch.tensor([2]), torch.tensor([1, 2]), experts))
    answer = SimpleNamespace(token_ids=[8], index=0)
    with pytest.raises(UsageError, match="prefix caching must be off"):
        engine._tap.take([SimpleNamespace(request_id="0", prompt_token_ids=[5, 6, 7], outputs=[answer])])
