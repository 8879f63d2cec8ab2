"""The real vLLM engine on real weights: the warm start that ships with the project."""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Forgetful, mismatch, train_alone
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling
from rlcorr.train.config.training import WARM_START
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import EOS_ID, decode, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import NextLogProbs, RolloutEngine, Samples
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import prove_sync, sync_proof
from rlcorr.train.rollout.tensor_groups import kinds

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
    assert proof.left_behind == proof.unseen == []
    assert proof.k3 <= FLOAT32_K3
    assert mismatch(engine, policy, prompts) <= FLOAT32_K3


class WithoutHead:
    """The sync that everybody writes first: a tied checkpoint has no lm_head.weight, so none is sent."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self.description = engine.description

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        return self._engine.generate(prompts, n=n, max_tokens=max_tokens, sampling=sampling, seed=seed)

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> NextLogProbs:
        return self._engine.next_log_probs(prompts, sampling)

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        self._engine.sync([(name, tensor) for name, tensor in weights if name != "lm_head.weight"])

    def close(self) -> None: ...


def test_the_stale_head_is_found(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="head stay old"):
        prove_sync(WithoutHead(engine), policy, FLOAT32)
    engine.sync(engine_weights(policy.state_dict(), policy.lm))


def test_each_kind_of_tensor_left_behind_is_named(
    engine: RolloutEngine, policy: Policy, prompts: list[list[int]]
) -> None:
    """vLLM ties the head of this model to its embedding, so neither can stay old alone; the test before is of both."""
    for kind, names in kinds(policy.lm.state_dict()).items():
        if kind not in ("embed_tokens", "lm_head"):
            forgetful: Any = Forgetful(engine, policy, set(names))
            assert sync_proof(forgetful, policy).left_behind == [kind]


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
