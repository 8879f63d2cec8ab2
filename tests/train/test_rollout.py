"""The transformers engine: its log-probs, its weights, and the proof of a sync."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Forgetful, mismatch
from tiny import CPU

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import to_batch
from rlcorr.train.rollout.start import resolve_engine, start_engine
from rlcorr.train.rollout.sync_proof import prove_sync, sync_proof
from rlcorr.train.rollout.transformers_engine import TransformersEngine

FLOAT32 = RolloutConfig(engine="transformers", dtype="float32")
PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]]


def engine_and_policy(tiny_model: Path, config: RolloutConfig = FLOAT32) -> tuple[TransformersEngine, Policy]:
    engine = start_engine(config, tiny_model, ALONE, [EOS_ID], Path("unused"))
    assert isinstance(engine, TransformersEngine)
    return engine, Policy(load_lm(tiny_model, CPU))


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_of_the_sampled_distribution(tiny_model: Path, temperature: float) -> None:
    engine, policy = engine_and_policy(tiny_model)
    sampled = engine.generate(PROMPTS, n=3, max_tokens=5, sampling=Sampling(temperature))
    batch = to_batch([p for p in PROMPTS for _ in range(3)], sampled, CPU)
    trained = policy(batch, temperature).log_probs[batch.response_mask]
    torch.testing.assert_close(batch.rollout_log_probs[batch.response_mask], trained, rtol=0, atol=1e-4)


def test_greedy_takes_the_likeliest_token(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    first = engine.generate(PROMPTS, n=1, max_tokens=1, sampling=GREEDY).response_ids
    with torch.no_grad():
        expected = [[int(policy.lm(torch.tensor([p])).logits[0, -1].argmax())] for p in PROMPTS]
    assert first == expected


def test_sync_replaces_every_weight(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    with torch.no_grad():
        for parameter in policy.lm.parameters():
            parameter.add_(0.3)
    assert mismatch(engine, policy, PROMPTS) > 1e-3
    engine.sync(engine_weights(policy.state_dict(), policy.lm))
    assert mismatch(engine, policy, PROMPTS) < 1e-7


def test_the_proof_passes_and_leaves_the_weights_as_they_were(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    before = {name: tensor.clone() for name, tensor in policy.lm.state_dict().items()}
    proof = prove_sync(engine, policy, FLOAT32)
    assert proof.k3 < 1e-7
    assert proof.left_behind == []
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.lm.state_dict().items())
    assert mismatch(engine, policy, PROMPTS) < 1e-7


@pytest.mark.parametrize("changes", [{}, {"dtype": "float16"}, {"weights": "fp8_e4m3"}, {"weights": "int4"}], ids=str)
def test_the_proof_names_every_tensor_left_behind(tiny_model: Path, changes: dict[str, Any]) -> None:
    """Each alone, whatever the engine's number format is; a tied head goes with its embedding."""
    engine, policy = engine_and_policy(tiny_model, replace(FLOAT32, **changes))
    tied = ["model.embed_tokens.weight", "lm_head.weight"]
    for name in policy.lm.state_dict():
        if name != "model.embed_tokens.weight":  # the head, which comes later, replaces it
            left_behind = sync_proof(Forgetful(engine, policy, {name}), policy).left_behind
            assert left_behind == (tied if name == "lm_head.weight" else [name])


def test_a_run_ends_with_the_name_of_the_tensor(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    names = {name for name in policy.lm.state_dict() if "norm" in name}
    with pytest.raises(UsageError, match=r"keeps the old .*input_layernorm\.weight, .* and 2 more\.$"):
        prove_sync(Forgetful(engine, policy, names), policy, FLOAT32)


def test_transformers_has_no_kv_cache_format() -> None:
    with pytest.raises(UsageError, match="needs the vllm engine"):
        resolve_engine(RolloutConfig(engine="transformers", kv_cache_dtype="fp8"))


def test_a_cache_in_e5m2_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100, vllm 0.25.1 ended in an assertion without a message."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="'fp8_e5m2' needs vLLM's CPU engine"):
        resolve_engine(RolloutConfig(engine="vllm", kv_cache_dtype="fp8_e5m2"))
