"""The sampler's likeliest tokens: recorded, scored by the trainer, and used by score centering and support replay."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import forget_engines
from learners import EACH_ROW, ONE_STEP, one_update, rows_alone, scored_batch, small_policy, train_config
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import WARM_START
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import joined, to_batch
from rlcorr.train.rollout.start import start_engine

TOP = RolloutConfig(engine="transformers", dtype="float32", top_logprobs=4)
PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]]
VOCABULARY = 11
ALL = replace(TOP, top_logprobs=VOCABULARY)


def whole(batch: TokenBatch) -> TokenBatch:
    """With the log-probs of all tokens under a random sampler."""
    rng = torch.Generator().manual_seed(5)
    shape = (*batch.response_mask.shape, VOCABULARY)
    log_q = torch.randn(shape, generator=rng).log_softmax(-1)
    ids = torch.arange(VOCABULARY).expand(shape)
    sampled = log_q.gather(-1, batch.tensors()["response_ids"][..., None])[..., 0]
    return batch.replace(top_ids=ids, rollout_top_log_probs=log_q, rollout_log_probs=sampled)


@pytest.mark.parametrize("microbatch", [EACH_ROW, 10_000])
def test_an_update_follows_the_centred_score(monkeypatch: pytest.MonkeyPatch, microbatch: int) -> None:
    """−Σ A (∇log p(a) − Σ_v q(v) ∇log p(v)) / N, from the logits of every row by itself."""
    policy = small_policy()
    batch = whole(scored_batch(policy))
    pg = CorrectionConfig(bypass_mode=True, loss_type="reinforce")
    optim = replace(ONE_STEP, microbatch_tokens=microbatch)
    config = train_config(monkeypatch, pg, rollout=ALL, loss=LossConfig(score_centering=True), optim=optim)
    gradient, _ = one_update(policy, config, batch)

    policy.zero_grad()
    parts = []
    fields = batch.tensors()
    for row, mask in enumerate(batch.response_mask):
        ids = torch.cat([fields["prompt_ids"][row][fields["prompt_mask"][row]], fields["response_ids"][row][mask]])
        log_p = policy.lm(ids[None]).logits[0, -int(mask.sum()) - 1 : -1].log_softmax(-1)
        q = fields["rollout_top_log_probs"][row][mask].exp()
        sampled = log_p.gather(-1, fields["response_ids"][row][mask][:, None])[:, 0]
        parts.append((fields["advantages"][row][mask] * (sampled - (q * log_p).sum(-1))).sum())
    (-torch.stack(parts).sum() / batch.response_mask.sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


def test_the_policy_scores_all_listed_tokens(tiny_model: Path) -> None:
    """Also among the tokens that could be drawn: there the probabilities sum to 1."""
    policy = small_policy()
    batch = whole(scored_batch(policy))
    drawable = batch.tensors()["rollout_top_log_probs"] > -2.5
    drawable.scatter_(
        -1, batch.tensors()["response_ids"][..., None], torch.tensor(True).expand(*batch.response_mask.shape, 1)
    )
    batch = batch.replace(
        rollout_top_log_probs=torch.where(drawable, batch.tensors()["rollout_top_log_probs"], -torch.inf)
    )
    with torch.no_grad():
        scores, among = policy(batch, 0.7), policy(batch, 0.7, support=True)
    mask = batch.response_mask
    torch.testing.assert_close(scores.top_log_probs.exp().sum(-1)[mask], torch.ones(int(mask.sum())))
    torch.testing.assert_close(among.top_log_probs.exp().sum(-1)[mask], torch.ones(int(mask.sum())))
    assert bool((among.top_log_probs[~drawable] == -torch.inf).all())
    alone = torch.cat([log_p.detach() for log_p, _ in rows_alone(policy, batch, 0.7)])
    kept = torch.where(drawable, scores.top_log_probs.exp(), 0).sum(-1)[mask]
    torch.testing.assert_close(scores.log_probs[mask], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(among.log_probs[mask], alone - kept.log(), atol=1e-5, rtol=0)


def test_the_engine_lists_its_likeliest_tokens(tiny_model: Path) -> None:
    engine = start_engine(TOP, tiny_model, ALONE, [EOS_ID], Path("unused"))
    samples = engine.generate(PROMPTS, n=2, max_tokens=5, sampling=Sampling())
    assert samples.top is not None
    batch = to_batch([p for p in PROMPTS for _ in range(2)], samples, CPU)
    assert batch.top_ids is not None
    assert batch.top_ids.shape == (*batch.response_mask.shape, 4)
    with torch.no_grad():
        scores = Policy(load_lm(tiny_model, CPU))(batch, 1.0)
    mask = batch.response_mask
    torch.testing.assert_close(
        scores.top_log_probs[mask], batch.tensors()["rollout_top_log_probs"][mask], atol=1e-4, rtol=0
    )
    assert bool((batch.top_ids[~mask] == -1).all())
    cut = engine.generate(PROMPTS, n=1, max_tokens=1, sampling=Sampling(top_k=2)).top
    assert cut is not None
    assert all((log_probs > -torch.inf).sum(-1).tolist() == [2] for _, log_probs in cut)
    rows = joined([samples.rows([4]), samples.rows([1])]).top
    assert rows is not None
    assert torch.equal(rows[0][0], samples.top[4][0])
    assert torch.equal(rows[1][1], samples.top[1][1])


def ratio_after(model: Path, run: str, **changes: object) -> Tensor:
    rollout = replace(TOP, top_p=0.8, top_k=4, **changes)  # pyright: ignore[reportArgumentType]
    path = train(tiny_config(model, rollout=rollout, steps=1, prompts_per_step=32, run=run))
    batch = runs.read_step(path, 1).batch
    d = batch.tensors()["old_log_probs"] - batch.rollout_log_probs
    return d[batch.response_mask].exp()


def test_replaying_the_support_brings_the_ratios_back_to_1(tiny_model: Path, local_runs: Path) -> None:
    """Without it, π_old keeps the mass that top-p gives to the tokens that are left: each ratio is at most 1."""
    cut = ratio_after(tiny_model, "cut")
    assert float(cut.mean()) < 0.95
    replayed = ratio_after(tiny_model, "replayed", support_replay=True)
    torch.testing.assert_close(replayed, torch.ones_like(replayed), atol=1e-4, rtol=0)


def test_settings_that_do_not_fit_are_refused(tiny_model: Path) -> None:
    centred = LossConfig(score_centering=True)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"loss": centred}, r"rollout\.top_logprobs"),
        ({"preset": "nemo_rl_score_centering"}, r"rollout\.top_logprobs"),
        ({"rollout": TOP, "loss": centred, "preset": "decoupled_seq_is"}, "one position"),
    ]
    for changed, message in changes:
        with pytest.raises(UsageError, match=message):
            tiny_config(tiny_model, **changed)
    with pytest.raises(UsageError, match="every token that the sampler could draw"):
        replace(TOP, support_replay=True, top_k=5)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")
def test_vllm_lists_its_likeliest_tokens_and_their_support_is_replayed(local_runs: Path, tmp_path: Path) -> None:
    """vLLM adds the sampled token to its lists, which must not stay there; of a cut distribution it lists the cut."""
    forget_engines()
    config = RolloutConfig(engine="vllm", dtype="float32", top_logprobs=5)
    engine = start_engine(config, WARM_START, ALONE, [EOS_ID], tmp_path / "engine.log")
    policy, prompts = Policy(load_lm(WARM_START, CPU)), [[1, 5, 6, 13], [1, 7, 4, 13]]
    for sampling, support in ((Sampling(), False), (Sampling(top_p=0.9, top_k=4), True)):
        samples = engine.generate(prompts, n=16, max_tokens=6, sampling=sampling)
        batch = to_batch([prompt for prompt in prompts for _ in range(16)], samples, CPU)
        with torch.no_grad():
            scores = policy(batch, 1.0, support=support)
        mask, listed = batch.response_mask, batch.tensors()["rollout_top_log_probs"]
        torch.testing.assert_close(scores.log_probs[mask], batch.rollout_log_probs[mask], atol=1e-3, rtol=0)
        drawable = listed[mask] > -torch.inf
        assert bool(drawable.all()) is not support
        torch.testing.assert_close(scores.top_log_probs[mask][drawable], listed[mask][drawable], atol=1e-3, rtol=0)
        assert float(listed[mask].exp().sum(-1).max()) < 1 + 1e-5
        assert bool((listed[mask].diff(dim=-1)[drawable[:, 1:]] <= 0).all())
    forget_engines()
