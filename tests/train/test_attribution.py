"""What each setting adds to the gap of a model, on its own answers: exact where nothing is changed, named where not."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny import CPU

from rlcorr.command.attribute import table
from rlcorr.command.cli import run_verb
from rlcorr.errors import UsageError
from rlcorr.train import attribution
from rlcorr.train.attribution import Cause, Request, attribute, measured, prompts_of
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.rollout.engine import Samples
from rlcorr.types import TokenBatch


@pytest.mark.slow
def test_each_setting_adds_its_own_gap(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With transformers engines, of which the last runs in a process of its own. Nothing changed leaves the order of
    sums; top-p moves the mean ratio below 1, and rounding does not; coarser formats make larger gaps."""
    in_process = attribution._sample

    def sample(request: Request, settings: RolloutConfig) -> Samples:
        return (in_process if settings.top_p < 1 else attribution.sample)(request, settings)

    monkeypatch.setattr(attribution, "_sample", sample)
    prompts = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [4, 4]]
    request = Request(tiny_model, prompts, 8, 12, [2], RolloutConfig(engine="transformers"), tmp_path / "log")
    causes = {cause.name: cause for cause in attribute(request, CPU)}
    assert "needs the vllm engine" in causes.pop("engine in bfloat16, KV cache in e4m3").why_not
    size = {name: cause.k3.value for name, cause in causes.items() if cause.k3 is not None}
    assert size["nothing: float32 on both sides"] < 1e-9
    assert size["nothing: float32 on both sides"] < size["engine in bfloat16"] < size["engine's weights in fp8"]
    assert size["engine's weights in int8"] < size["engine's weights in fp8"]
    assert causes["top-p 0.9 in the engine only"].mean_ratio < 0.97
    assert size["trainer in bfloat16"] > 1e-8
    assert "trainer in bfloat16: many answers at a time against one" in size
    for name, cause in causes.items():
        assert cause.k3 is not None
        assert cause.k3.low <= cause.k3.value <= cause.k3.high, name


def test_the_numbers_of_a_cause_worked_out_by_hand() -> None:
    """Ratios 1.2, 1 and 0.5 of one prompt's two answers."""
    d = torch.tensor([[1.2, 1.0], [0.5, 7.0]]).double().log()
    batch = TokenBatch(torch.tensor([[1, 1], [1, 0]]).bool(), torch.full((2, 2), -4.0).double())
    cause = measured("x", batch, batch.rollout_log_probs + d, 2)
    assert cause.tokens == 3
    assert cause.k3 is not None
    assert cause.k3.value == pytest.approx((0.2 - math.log(1.2) - 0.5 - math.log(0.5)) / 3)
    assert cause.abs_log_ratio == pytest.approx((math.log(1.2) + math.log(2)) / 3)
    assert cause.outside == pytest.approx(2 / 3)
    assert cause.mean_ratio == pytest.approx(2.7 / 3)
    *_, row, refused = table([cause, Cause("y", why_not="the engine's process ended.")])
    assert row.startswith("| x | 3 | ")
    assert refused == "| y | not measured: the engine's process ended. | | | | | |"


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two different ones"):
        prompts_of([[1, 2], [1, 2]], 5)
    with pytest.raises(UsageError, match="no model at"):
        run_verb(["attribute", str(tmp_path / "none")])
    (tmp_path / "p.jsonl").write_text(json.dumps({"question": "1+1="}))
    with pytest.raises(UsageError, match="line 1"):
        run_verb(["attribute", "smollm2", str(tmp_path / "p.jsonl")])
