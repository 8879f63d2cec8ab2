"""`python -m rlcorr threshold`: bounds from quantiles of a run, checked on its last step, as another system's text."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rlcorr import TokenBatch
from rlcorr.command.cli import run_verb
from rlcorr.errors import UsageError
from rlcorr.recorders import Recorder, verl
from rlcorr.records import runs
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.verl.config import from_verl

DUMPS = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(name: str, *differences: list[float]) -> None:
    """Record a run with a step per list of log-ratios of one response."""
    with Recorder(name) as recorder:
        for step, row in enumerate(differences):
            rollout = torch.full((1, len(row)), -2.0)
            recorder.add(
                step=step, batch=TokenBatch.from_log_probs(rollout + torch.tensor([row]), rollout, rollout < 0)
            )


def text_of(output: str) -> Any:
    """Return the configuration, which an empty line ends."""
    return yaml.safe_load(output[output.index("\n# ") :].split("\n\n")[0])


def test_turns_are_bounded_on_their_own(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two turns with products 2 and 1/3 in each of two steps: to keep both, the band must reach 3. The whole answer has
    the product 2/3, for which 1.5 is enough."""
    d = torch.tensor([[math.log(2.0), 0.0, math.log(1 / 3)]])
    rollout = torch.full((1, 3), -2.0)
    with Recorder("agent") as recorder:
        for step in range(2):
            batch = TokenBatch.from_log_probs(rollout + d, rollout, rollout < 0)
            recorder.add(step=step, batch=batch.replace(turn_ids=torch.tensor([[0, 0, 1]])))
    words = ["threshold", "agent", "--preset", "skyrl_product_mask", "--keep", "100"]
    assert run_verb([*words, "--per-turn"]) == 0
    told = capsys.readouterr().out
    assert float(told.split("threshold ")[1].split(". ")[0]) == pytest.approx(3, rel=1e-3)
    assert "# verl" not in told
    assert run_verb(words) == 0
    assert float(capsys.readouterr().out.split("threshold ")[1].split(". ")[0]) == pytest.approx(1.5, rel=1e-3)
    record("plain", [0.1, 0.2], [0.1, 0.2])
    with pytest.raises(UsageError, match="needs turn_ids"):
        run_verb(["threshold", "plain", "--preset", "skyrl_product_mask", "--per-turn"])


def test_the_tightest_bounds_on_all_steps_but_the_last(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keep 19 of twenty log-ratios: |d| ≤ 0.19. Half of the last step, which must not be used, is within that."""
    distances = [0.01 * k for k in range(1, 21)]
    signed = [x if k % 2 else -x for k, x in enumerate(distances)]
    record("mine", signed[:13], signed[13:], [0.1, 0.18, -0.19, 0.1])
    assert run_verb(["threshold", "mine", "--preset", "token_k1"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Your gap is larger than bfloat16 rounding")
    (rule,) = from_verl(text_of(output)["algorithm"]["rollout_correction"]).rollout_rs
    assert math.exp(0.19) <= rule.upper <= math.exp(0.19) * 1.001
    assert rule.lower == pytest.approx(1 / rule.upper, rel=5e-5)  # the text has five digits
    assert "Chosen on steps 0 to 1: 95.00% of 20 tokens are kept" in output
    assert "On step 2, which was not used for the choice: 100.00% of 4 tokens are kept" in output


def test_a_missed_promise_gets_no_configuration(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is 0.19 again, and half of the last step is within it: 45 points less than 95 %."""
    record("mine", [0.01 * k for k in range(1, 21)], [0.1, 0.3, -0.19, 0.4])
    assert run_verb(["threshold", "mine", "--preset", "token_k1"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "On step 1, which was not used for the choice: 50.00% of 4 tokens are kept" in output
    assert "That is missed by 45 points on step 1: it does not carry over." in output
    assert "No configuration is printed" in output
    assert "# verl" not in output


def test_a_fault_is_named_and_gets_no_threshold(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One side of the second step is the other: a ratio of 1 everywhere, for which any threshold would do."""
    record("copied", [0.1, -0.2, 0.3], [0.0, 0.0, 0.0])
    assert run_verb(["threshold", "copied", "--preset", "token_k1"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("Step 1: Identical: both sides have the same 3 log-probs, to the last bit.")
    assert "changes nothing, and no other setting would." in " ".join(output.split())
    assert "In bypass mode this is so by design" in " ".join(output.split())
    assert run_verb(["threshold", "copied", "--details"]) == 1
    assert "identical (1 step): Identical: both sides" in capsys.readouterr().out
    assert "# verl" not in output


def test_a_cut_of_the_sampler_gets_the_text_that_replays_it(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SkyRL 0.4.0's keys, skyrl/train/config/config.py."""
    record("mine", [0.01 * k for k in range(1, 21)])
    words = ["threshold", "mine", "--preset", "token_k1", "--system", "SkyRL"]
    assert run_verb(words) == 0
    alone = capsys.readouterr().out
    assert run_verb([*words, "--top-p", "0.9", "--top-k", "20"]) == 0
    both = capsys.readouterr().out
    assert text_of(both)["trainer"]["algorithm"] == text_of(alone)["trainer"]["algorithm"]
    added = yaml.safe_load(both.split("\n\n")[2])
    assert added["trainer"]["algorithm"] == {"enable_sample_support_replay": True}
    assert added["generator"]["sampling_params"] == {"top_p": 0.9, "top_k": 20, "logprobs": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "0"], "keep must be a percentage above 0 and at most 100; got 0"),
        (["--preset", "disabled"], "neither weights nor rejection rules"),
        (["--preset", "geo"], "unknown preset 'geo'"),
        (["--system", "Verl"], "unknown system 'Verl'"),
        (["--top-p", "0.9"], "verl has no replay of the sampler's support that was read"),
        (["--system", "SkyRL", "--top-p", "0"], "top_p must be above 0 and at most 1"),
        (
            ["--preset", "token_prefix_gap_outward"],
            "so not token_prefix_gap_outward; nearest: actor.policy_loss.loss_mode",
        ),
        (["--rule", "1"], "1"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(local: Path, words: list[str], said: str) -> None:
    with Recorder("mine") as recorder:
        zeros = torch.zeros(1, 3)
        recorder.add(
            step=0, batch=TokenBatch.from_log_probs(zeros - 1, zeros - 2, zeros == 0).replace(advantages=zeros + 1)
        )
    with pytest.raises(UsageError, match=re.escape(said)):
        run_verb(["threshold", "mine", *words])
    with pytest.raises(UsageError, match="nobody"):
        run_verb(["threshold", "nobody"])


# --- the walks of rlcorr/foreign/README.md, typed as it says ---


def walks() -> list[list[str]]:
    foreign = Path(__file__).resolve().parent.parent.parent / "rlcorr" / "foreign"
    section = (foreign / "README.md").read_text(encoding="utf-8").split("## To a threshold")[1].split("##")[0]
    return [
        line.split("#")[0].split()[3:] for line in re.findall(r"^    \.venv/bin/python -m rlcorr .*$", section, re.M)
    ]


def test_from_every_systems_dump_to_its_own_text(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Import a file, TRL 1.16's batch, and the input of verl's correction."""
    lines = [{"rollout_log_probs": [-0.5, -1.0, -2.0], "old_log_probs": [-0.75, -0.5, -2.5]}] * 2
    (local / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run_verb(["import", str(DUMPS / "trl" / "inputs.npz"), "--run", "my_run"])
    theirs = np.load(DUMPS / "trl" / "inputs.npz")
    tensors = {
        "rollout_log_probs": torch.tensor(theirs["sampling_per_token_logps"]),
        "old_log_probs": torch.tensor(theirs["old_per_token_logps"]),
        "response_mask": torch.tensor(theirs["completion_mask"]),
    }
    helper, recorder = SimpleNamespace(**{verl.FUNCTION: lambda batch, _: batch}), Recorder(runs.free_name("verl"))
    verl.wrap(helper, recorder)
    getattr(helper, verl.FUNCTION)(SimpleNamespace(batch=tensors, meta_info={"global_steps": 1}), None)
    recorder.close()
    capsys.readouterr()
    commands, outputs = walks(), []
    assert [words[0] for words in commands] == ["import", *["threshold"] * 3]
    for words in commands:
        assert run_verb(words) == 0
        outputs.append(capsys.readouterr().out)
    assert from_skyrl(text_of(outputs[1])["trainer"]["algorithm"]["off_policy_correction"]).rollout_rs
    assert 'vllm_importance_sampling_mode="token_mask"' in outputs[2]
    assert from_verl(text_of(outputs[3])["algorithm"]["rollout_correction"]).rollout_rs
