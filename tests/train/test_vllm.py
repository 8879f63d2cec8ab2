"""The real vLLM engine on real weights: the warm start that ships with the project."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import Forgetful, forget_engines, mismatch, train_alone

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling
from rlcorr.train.config.training import WARM_START
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import EOS_ID, decode, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import RolloutEngine
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import prove_sync, sync_proof

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

FLOAT32 = RolloutConfig(engine="vllm", dtype="float32")
"""k3 between engine and trainer in float32: only summation order is left. A stale tensor gives 1e-4 and more."""
FLOAT32_K3 = 1e-7


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> RolloutEngine:
    return start_engine(FLOAT32, WARM_START, ALONE, [EOS_ID], tmp_path_factory.mktemp("vllm") / "engine.log")


@pytest.fixture
def policy() -> Policy:
    return Policy(load_lm(WARM_START, torch.device("cpu")))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(WARM_START)
    held_out = itertools.islice(examples(get_task("running_sum"), 0, held_out=True), 32)
    return [encode(tokenizer, example.prompt) for example in held_out]


def test_engine_and_trainer_agree(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> None:
    assert mismatch(engine, policy, prompts) <= FLOAT32_K3


def test_responses_are_text(engine: RolloutEngine, prompts: list[list[int]]) -> None:
    tokenizer = load_tokenizer(WARM_START)
    sampled = engine.generate(prompts, n=2, max_tokens=80, sampling=Sampling())
    texts = [decode(tokenizer, row) for row in sampled.response_ids]
    assert len(texts) == 2 * len(prompts)
    assert all(set(text) <= set("0123456789,") for text in texts)
    assert [len(row) for row in sampled.log_probs] == [len(row) for row in sampled.response_ids]


def test_greedy_is_the_trainers_likeliest_token(
    engine: RolloutEngine, policy: Policy, prompts: list[list[int]]
) -> None:
    sampled = engine.generate(prompts, n=1, max_tokens=1, sampling=GREEDY)
    with torch.no_grad():
        expected = [[int(policy.lm(torch.tensor([prompt])).logits[0, -1].argmax())] for prompt in prompts]
    assert sampled.response_ids == expected


def test_every_next_token_has_the_trainers_log_prob(
    engine: RolloutEngine, policy: Policy, prompts: list[list[int]]
) -> None:
    got = engine.next_log_probs(prompts[:4], Sampling()).log_probs
    with torch.no_grad():
        expected = torch.stack([policy.lm(torch.tensor([p])).logits[0, -1].log_softmax(-1) for p in prompts[:4]])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    two = engine.next_log_probs(prompts[:4], Sampling(top_k=2)).log_probs
    assert two.isfinite().sum(-1).tolist() == [2] * 4
    torch.testing.assert_close(two.exp().sum(-1), torch.ones(4))


def test_a_sync_is_proved_on_every_tensor(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> None:
    proof = prove_sync(engine, policy, FLOAT32)
    assert proof.left_behind == []
    assert proof.k3 <= FLOAT32_K3
    assert mismatch(engine, policy, prompts) <= FLOAT32_K3


def test_the_stale_head_is_found(engine: RolloutEngine, policy: Policy) -> None:
    """The sync that everybody writes first: a tied checkpoint has no lm_head.weight, so none is sent."""
    with pytest.raises(UsageError, match=r"it keeps the old lm_head\.weight\.$"):
        prove_sync(Forgetful(engine, policy, {"lm_head.weight"}, sends=False), policy, FLOAT32)
    engine.sync(engine_weights(policy.state_dict(), policy.lm))


def test_each_tensor_left_behind_is_named(engine: RolloutEngine, policy: Policy) -> None:
    assert_each_is_named(engine, policy)


def test_each_worker_of_a_tensor_parallel_engine_is_read(tiny_model: Path, tmp_path: Path) -> None:
    """Two processes, which start here and end with the engine. The second one has a vocabulary of padding."""
    forget_engines()
    parallel = replace(FLOAT32, tensor_parallel_size=2, max_model_len=64)
    engine = start_engine(parallel, tiny_model, ALONE, [EOS_ID], tmp_path / "engine.log")
    policy = Policy(load_lm(tiny_model, torch.device("cpu")))
    proof = prove_sync(engine, policy, parallel)
    assert proof.left_behind == []
    assert proof.k3 <= FLOAT32_K3
    assert_each_is_named(engine, policy)


def assert_each_is_named(engine: RolloutEngine, policy: Policy) -> None:
    """vLLM ties the head of these models to their embedding, so neither can stay old alone; the head has a test."""
    names = policy.lm.state_dict().keys()
    assert engine.fingerprints().keys() | {"lm_head.weight"} == names
    for name in names - {"model.embed_tokens.weight", "lm_head.weight"}:
        assert sync_proof(Forgetful(engine, policy, {name}), policy).left_behind == [name]


def train_with_vllm(local_runs: Path, *options: str) -> tuple[Path, list[float]]:
    """Ten steps that move as far as fifty at the usual learning rate; the run, and k3 of every step."""
    few = ("--steps", "10", "--prompts-per-step", "32", "--eval-prompts", "8", "--optim.learning-rate", "1e-3")
    run = train_alone(["--model", str(WARM_START), *few, "--rollout.engine", "vllm", *options], local_runs)
    rows = runs.read_metrics(run)
    assert len(rows) == 10
    assert rows[-1]["actor/kl_loss"] > 1e-3  # the weights moved away from where they began
    return run, [row["rollout_corr/k3_kl"] for row in rows]


def test_float32_stays_exact(local_runs: Path) -> None:
    """A stale tensor anywhere makes k3 grow with every step."""
    run, k3 = train_with_vllm(local_runs, "--rollout.dtype", "float32")
    assert max(k3) <= FLOAT32_K3
    assert verify(run).problems == []


def test_bfloat16_mismatch_is_rounding_and_does_not_drift(local_runs: Path) -> None:
    run, k3 = train_with_vllm(local_runs)
    assert all(1e-6 < value < 1e-3 for value in k3)
    assert sum(k3[-4:]) < 5 * sum(k3[:4])
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["engine_settings"]["name"] == "vllm"
    assert manifest["engine_settings"]["logprobs_mode"] == "processed_logprobs"
    assert manifest["engine_settings"]["attention"] == "CPU_ATTN"
