"""Two ranks under torchrun, by gloo, against one process that takes the same steps with nothing but PyTorch."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_worker import MAX_NORM, ROWS, SHARDINGS, adam, log_probs, loss_of, policy_of
from torch import Tensor, nn

from rlcorr.train.learner.ranks import (
    accumulate,
    clip_gradients,
    full_optimizer_state,
    full_state,
    gather,
    load_state,
    start_ranks,
    stop_ranks,
    sum_over_ranks,
    wrap,
)

WORKER = Path(__file__).resolve().parent.parent / "support" / "rank_worker.py"
UNDER_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER)]
CLOSE = {"rtol": 0, "atol": 1e-6}


def step_alone(policy: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole batch at once, in PyTorch's own words."""
    optimizer.zero_grad()
    loss = loss_of(policy, ROWS)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    norm = nn.utils.clip_grad_norm_(policy.parameters(), MAX_NORM)
    optimizer.step()
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    return {"loss": loss.detach(), "gradients": gradients, "norm": norm, "state": state}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two steps of one process, and its checkpoint between them."""
    policy = policy_of(seed=0)
    optimizer = adam(policy)
    first = step_alone(policy, optimizer)
    file = tmp_path_factory.mktemp("alone") / "alone.pt"
    torch.save((full_state(policy), full_optimizer_state(policy, optimizer)), file)
    between = log_probs(policy)
    return {"first": first, "checkpoint": file, "log_probs": between, "second": step_alone(policy, optimizer)}


@dataclass(frozen=True)
class TwoRanks:
    """What a start under torchrun left behind."""

    folder: Path
    returncode: int
    stderr: str


@pytest.fixture(scope="module")
def two_ranks(alone: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> TwoRanks:
    """One start for everything: three processes that import torch take longer than what they do."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "alone.pt").write_bytes(alone["checkpoint"].read_bytes())
    done = subprocess.run(
        [*UNDER_TORCHRUN, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
    )
    return TwoRanks(folder, done.returncode, done.stderr)


@pytest.fixture(scope="module", params=SHARDINGS)
def both(request: pytest.FixtureRequest, two_ranks: TwoRanks) -> list[Any]:
    """What each of two ranks computed."""
    files = [two_ranks.folder / f"{request.param}_{rank}.pt" for rank in range(2)]
    assert all(file.exists() for file in files), two_ranks.stderr[-5000:]
    return [{"sharding": request.param, **torch.load(file)} for file in files]


def assert_same(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_the_steps_move_and_clip(alone: dict[str, Any]) -> None:
    """Otherwise the comparisons below would compare nothing."""
    assert float(alone["first"]["norm"]) > 2 * MAX_NORM
    first, second = alone["first"]["state"], alone["second"]["state"]
    assert all(float((first[name] - second[name]).abs().max()) > 1e-4 for name in first if "k_proj.bias" not in name)


@pytest.mark.slow
def test_objects_arrive_in_rank_order_and_sums_are_over_all_ranks(both: list[Any]) -> None:
    for number, rank in enumerate(both, 1):
        assert [sent["rank"] for sent in rank["gathered"]] == [0, 1]
        assert [[row.tolist() for row in sent["rows"]] for sent in rank["gathered"]] == [[], [[0, 1]]]
        total, given = rank["summed"]
        assert total.tolist() == [3.0, 30.0]  # 1 · (1, 10) + 2 · (1, 10)
        assert given.tolist() == [number, 10 * number]


@pytest.mark.slow
def test_fsdp_shards_every_parameter_and_ddp_none(both: list[Any]) -> None:
    """Each of the two decoder layers is gathered by itself, and the rest as a third piece."""
    parameters = len(list(policy_of(seed=0).parameters()))
    expected = (parameters, 3) if both[0]["sharding"] == "fsdp" else (0, 0)
    assert {(rank["sharded"], rank["gathered_alone"]) for rank in both} == {expected}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "of_ranks"), [("first", "first"), ("second", "from_alone")])
def test_two_ranks_take_the_steps_of_one(both: list[Any], alone: dict[str, Any], step: str, of_ranks: str) -> None:
    """Also after loading the checkpoint of one process."""
    for rank in both:
        for name in ("loss", "norm"):  # of order 10
            torch.testing.assert_close(rank[of_ranks][name], alone[step][name], rtol=1e-6, atol=0)
        assert_same(rank[of_ranks]["gradients"], alone[step]["gradients"])
        assert_same(rank[of_ranks]["state"], alone[step]["state"])


@pytest.mark.slow
def test_the_next_forward_pass_uses_what_was_loaded(both: list[Any], alone: dict[str, Any]) -> None:
    for rank in both:
        torch.testing.assert_close(rank["from_alone"]["log_probs"], alone["log_probs"], **CLOSE)


@pytest.mark.slow
def test_one_process_goes_on_from_a_checkpoint_of_two(both: list[Any], alone: dict[str, Any]) -> None:
    for rank in both:
        policy = policy_of(seed=1)
        optimizer = adam(policy)
        load_state(policy, optimizer, rank["first"]["state"], rank["optimizer"])
        assert_same(step_alone(policy, optimizer)["state"], alone["second"]["state"])


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(two_ranks: TwoRanks) -> None:
    assert two_ranks.returncode != 0
    assert "RuntimeError: rank 1 gives up" in two_ranks.stderr
    assert not (two_ranks.folder / "went_on").exists()


def test_one_process_needs_no_group(alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    ranks = start_ranks()
    assert (ranks.rank, ranks.size, ranks.local_rank, ranks.main) == (0, 1, 0, True)
    assert gather(ranks, "value") == ["value"]
    assert sum_over_ranks(ranks, torch.tensor(2.0)) == 2
    policy = policy_of(seed=0)
    assert wrap(policy, ranks, "fsdp") is policy
    for last in (False, True):
        with accumulate(policy, last):
            loss_of(policy, [0, 1, 2] if last else [3, 4, 5]).backward()
    torch.testing.assert_close(clip_gradients(policy, MAX_NORM), alone["first"]["norm"], rtol=1e-6, atol=0)
    stop_ranks(ranks)
