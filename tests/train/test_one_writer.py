"""What a run is made of stays as it was: its files while it trains, and its inputs when it is resumed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tiny import save_tiny_model, tiny_config

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.train import loop
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.session.resume import resumed_manifest


@pytest.mark.parametrize("name", ["metrics.jsonl", "steps/step_000001.parquet", "answers.jsonl"])
@pytest.mark.parametrize("last", [False, True])
def test_a_reward_function_cannot_change_its_run_unnoticed(
    name: str, last: bool, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a file that is emptied during the second step, and during the last evaluation, after which none follows."""
    path = local_runs / "tiny" / name

    def reward(_: Any, response: str) -> float:
        rows = len(runs.read_metrics(local_runs / "tiny")) if (local_runs / "tiny").exists() else 0
        if path.exists() and rows == (1 if not last else 2):
            path.write_bytes(b"")
        return 0.0

    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=reward))
    config = tiny_config(tiny_model, tensorboard=False, save_model=False, record_every=1, eval_every=1, steps=3)
    with pytest.raises(UsageError, match=f"{name} was changed by something else than the training run"):
        loop.train(config)
    assert runs.read_manifest(local_runs / "tiny").status == "interrupted"


def test_a_run_is_resumed_with_the_inputs_that_it_had(
    tmp_path: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the prompts, the reward function and the weights, one after the other."""
    monkeypatch.syspath_prepend(tmp_path)
    model, data, judge = save_tiny_model(tmp_path / "model"), tmp_path / "data.jsonl", tmp_path / "my_judge.py"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1="}) + "\n" for n in range(50)))
    judge.write_text("def judge(prompt, response, answer):\n    return len(response) / 5\n")
    config = tiny_config(model, task="jsonl", data=data, reward="my_judge:judge", max_response_tokens=4)
    run = loop.train(replace(config, tensorboard=False))
    weights = model / "model.safetensors"
    other_weights = {name: x + 1 for name, x in load_file(weights).items()}
    for path, said in ((data, "data data.jsonl"), (judge, "reward my_judge:judge"), (weights, "model.safetensors")):
        content = path.read_bytes()
        if path == weights:
            save_file(other_weights, weights, metadata={"format": "pt"})
        else:
            path.write_bytes(content + b"\n")
        with pytest.raises(UsageError, match=f"{said} has changed since it began"):
            loop.train(replace(config, tensorboard=False, steps=3), resume=True)
        path.write_bytes(content)
        assert len(runs.read_metrics(run)) == 2  # nothing was taken away
    loop.train(replace(config, tensorboard=False, steps=3), resume=True)
    assert (len(runs.read_metrics(run)), runs.read_manifest(run).resumed) == (3, [])


def test_the_manifest_says_which_steps_other_code_has_made(capsys: pytest.CaptureFixture[str]) -> None:
    first = RunManifest("r", git_commit="a", versions={"torch": "1"}, started="then")
    second = resumed_manifest(first, replace(first, git_commit="b", started="now"), 7)
    assert "resumed with other code" in capsys.readouterr().out
    assert (second.git_commit, second.started) == ("a", "then")
    assert second.resumed == [{"after_step": 7, "git_commit": "b", "versions": {"torch": "1"}}]
    assert resumed_manifest(second, replace(first, git_commit="b"), 9).resumed == second.resumed
    assert capsys.readouterr().out == ""


def test_a_prompt_that_is_too_long_is_named_before_the_first_step(
    tmp_path: Path, tiny_model: Path, local_runs: Path
) -> None:
    """The model takes 128 tokens, and a token is a character."""
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": "1"} for n in range(50)] + [{"prompt": "1+" * 61, "answer": "1"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config(tiny_model, task="jsonl", data=data, max_response_tokens=8)
    with pytest.raises(UsageError, match=r"the prompt '1\+1.*may take 13\d tokens, but the model takes at most 128"):
        loop.train(config)
