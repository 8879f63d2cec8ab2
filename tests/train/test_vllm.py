"""The real vLLM engine on real weights: the warm start that ships with the project."""

import itertools
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Forgetful, forget_engines, mismatch, train_alone
from outcome import outcome

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling
from rlcorr.train.config.training import WARM_START
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import EOS_ID, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import prove_sync, sync_proof

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

FLOAT32 = RolloutConfig(engine="vllm", dtype="float32", top_logprobs=5)
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


def test_it_lists_its_likeliest_tokens_and_their_support_is_replayed(engine: RolloutEngine, policy: Policy) -> None:
    """vLLM adds the sampled token to its lists, which must not stay there; of a cut distribution it lists the cut."""
    prompts = [[1, 5, 6, 13], [1, 7, 4, 13]]
    for sampling, support in ((Sampling(), False), (Sampling(top_p=0.9, top_k=4), True)):
        samples = engine.generate(prompts, n=16, max_tokens=6, sampling=sampling)
        batch = to_batch([prompt for prompt in prompts for _ in range(16)], samples, torch.device("cpu"))
        with torch.no_grad():
            scores = policy(batch, 1.0, support=support)
        mask, listed = batch.response_mask, batch.tensors()["rollout_top_log_probs"]
        torch.testing.assert_close(scores.log_probs[mask], batch.rollout_log_probs[mask], atol=1e-3, rtol=0)
        drawable = listed[mask] > -torch.inf
        assert bool(drawable.all()) is not support
        torch.testing.assert_close(scores.top_log_probs[mask][drawable], listed[mask][drawable], atol=1e-3, rtol=0)
        assert float(listed[mask].exp().sum(-1).max()) < 1 + 1e-5
        assert bool((listed[mask].diff(dim=-1)[drawable[:, 1:]] <= 0).all())


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
    """vLLM ties the head of this model to its embedding, so neither can stay old alone; the head has a test."""
    names = policy.lm.state_dict().keys()
    assert engine.fingerprints().keys() | {"lm_head.weight"} == names
    for name in names - {"model.embed_tokens.weight", "lm_head.weight"}:
        assert sync_proof(Forgetful(engine, policy, {name}), policy).left_behind == [name]


def test_each_worker_of_a_tensor_parallel_engine_is_read(tiny_model: Path, tmp_path: Path) -> None:
    """Two processes, which start here and end with the engine. The second one has a vocabulary of padding. One tensor
    that is split by rows, one by columns, one that is joined with others, and one that each worker has whole."""
    forget_engines()
    parallel = replace(FLOAT32, tensor_parallel_size=2, max_model_len=64)
    engine = start_engine(parallel, tiny_model, ALONE, [EOS_ID], tmp_path / "engine.log")
    policy = Policy(load_lm(tiny_model, torch.device("cpu")))
    proof = prove_sync(engine, policy, parallel)
    assert proof.left_behind == []
    assert proof.k3 <= FLOAT32_K3
    layer = "model.layers.1."
    for name in ("self_attn.k_proj.bias", "mlp.up_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"):
        assert sync_proof(Forgetful(engine, policy, {layer + name}), policy).left_behind == [layer + name]


def train_with_vllm(local_runs: Path, code: int = 0) -> Path:
    """Six steps in float32, which move as far as thirty at the usual learning rate."""
    few = ("--steps", "6", "--prompts-per-step", "32", "--eval-prompts", "8", "--optim.learning-rate", "1e-3")
    words = ("--model", str(WARM_START), *few, "--rollout.engine", "vllm", "--rollout.dtype", "float32")
    return train_alone(words, local_runs, code)


def test_float32_stays_exact_also_in_a_resumed_run(local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale tensor anywhere makes k3 grow with every step. The engine is not in the checkpoint: a new one must draw
    what the first would have drawn."""
    true_save = loop.save

    def interrupted(session: Any, path: Path, step: int, *rest: Any) -> None:
        if step == 4:
            raise KeyboardInterrupt
        true_save(session, path, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", interrupted)
        train_with_vllm(local_runs, code=130)
    assert len(runs.read_metrics(local_runs / "r")) == 4
    resumed = outcome(train_alone(["--resume", "r"], local_runs))
    shutil.rmtree(local_runs / "r")
    run = train_with_vllm(local_runs)
    assert outcome(run) == resumed
    rows = runs.read_metrics(run)
    assert max(row["rollout_corr/k3_kl"] for row in rows) <= FLOAT32_K3
    assert rows[-1]["actor/kl_loss"] > 1e-3  # the weights moved away from where they began
    assert verify(run).problems == []
    settings = json.loads((run / "manifest.json").read_text())["engine_settings"]
    assert (settings["name"], settings["attention"]) == ("vllm", "CPU_ATTN")
    assert settings["logprobs_mode"] == "processed_logprobs"
