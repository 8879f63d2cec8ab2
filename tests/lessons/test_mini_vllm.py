"""`lessons/mini_vllm.py`: mini.py's pieces train a language model on answers that vLLM drew."""

import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from engines import forget_engines

from rlcorr.ratios import k3
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.types import TokenBatch

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
ROUNDING = 1e-3
"""A k3 that rounding does not reach here: this model has at most 3e-4 in the 400 steps of runs/bf16."""


def imported(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import mini_vllm.py, which reads mini.py."""
    monkeypatch.syspath_prepend(LESSONS)
    for name in ("mini_pieces", "mini_vllm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("mini_vllm")


def start_of_training(module: ModuleType) -> Policy:
    return Policy(load_lm(module.TINY.model, ALONE.device), critic=False)


def distance(policy: Policy, batch: TokenBatch) -> float:
    with torch.no_grad():
        d = policy(batch, 1.0).log_probs - batch.rollout_log_probs
    return float(k3(d[batch.response_mask]).mean())


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")
def test_four_steps_with_vllm_and_three_without_new_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = imported(monkeypatch)
    forget_engines()
    policy, worker = module.start(module.TINY, tmp_path / "engine.log")
    assert (worker.engine.description["name"], worker.engine.description["dtype"]) == ("vllm", "bfloat16")
    for reward, of_step in module.train(policy, worker, module.TINY, 4):
        assert 0 < reward < 1
        assert 0 < of_step < ROUNDING
        gradient = torch.cat(
            [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
        )
        assert bool(gradient.isfinite().all())
        assert float(gradient.norm()) > 1e-3

    batch = module.draw(worker, list(itertools.islice(examples(worker.task, seed=1), 32)), step=5)
    assert 0 < distance(policy, batch) < ROUNDING  # the engine has the weights of the fourth step,
    assert distance(start_of_training(module), batch) > 10 * ROUNDING  # which are not those it began with

    fresh, *old = [of_step for _, of_step in module.train(policy, worker, module.TINY, 3, sync_every=4)]
    assert fresh < ROUNDING < min(old)
    worker.engine.close()
    forget_engines()


def few_answers(policy: Policy) -> TokenBatch:
    """To one prompt, `4+5=`: eight answers of two tokens, the second <eos>, each by an engine that gives a token 10 %
    more than the policy. The first is rewarded."""
    samples = Samples([[3 + digit, 2] for digit in range(8)], [[0.0, 0.0]] * 8)
    batch = to_batch([[1, 7, 13, 8, 18]] * 8, samples, ALONE.device)
    with torch.no_grad():
        engine = policy(batch, 1.0).log_probs + torch.tensor(1.1).log()
    return batch.replace(rollout_log_probs=engine, rewards=torch.eye(8)[0])


def test_a_step_moves_the_policy_towards_what_was_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch)
    policy = start_of_training(module)
    batch = few_answers(policy)
    before = policy(batch, 1.0).log_probs.detach()
    reward, of_step = module.update(policy, torch.optim.SGD(policy.parameters(), 0.1), batch)
    gained = (policy(batch, 1.0).log_probs.detach() - before).sum(-1)
    assert reward == pytest.approx(1 / 8)
    assert of_step == pytest.approx(float(k3(-torch.tensor(1.1).log())), rel=1e-3)
    assert gained[0] > 0
    assert int(gained.argmax()) == 0


def test_an_unwritten_piece_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workshop edition, which has no solution."""
    imported(monkeypatch)
    monkeypatch.setattr(sys.modules["mini_pieces"], "solution_cells", dict)
    monkeypatch.delitem(sys.modules, "mini_vllm")
    module = importlib.import_module("mini_vllm")
    policy = start_of_training(module)
    with pytest.raises(NotImplementedError, match=r"^write capped in mini\.py\.$"):
        module.update(policy, torch.optim.SGD(policy.parameters(), 0.1), few_answers(policy))
