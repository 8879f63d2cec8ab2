"""The training of a chat model of the hub in rlcorr/train/README.md, on a small random model of that kind."""

import re
from pathlib import Path

import pytest
import torch
from chat_models import END_OF_TEXT, END_OF_TEXT_ID, END_OF_TURN, END_OF_TURN_ID, TEMPLATE, byte_level, save
from huggingface_hub import constants
from processes import ROOT
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcorr.command.train import train_config
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.inputs.countdown import INSTRUCTION
from rlcorr.train.loop import train

HUB_ID = "Qwen/Qwen2.5-0.5B-Instruct"
COMMIT = "0" * 40
SMALL = ("--steps", "1", "--prompts-per-step", "2", "--samples-per-prompt", "4", "--eval-prompts", "4")
SMALL += ("--no-tensorboard", "--run", "chat")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the hub's cache, without a way to the hub: 14 heads over 2 groups and tied embeddings as in Qwen2.5-0.5B,
    with more entries than the tokenizer has tokens, and two ids that end an answer; two layers of its 24, half as
    wide."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    home = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    tokenizer = byte_level(eos_token=END_OF_TURN, pad_token=END_OF_TEXT, chat_template=TEMPLATE)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 22, hidden_size=448, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.05,
    )  # fmt: skip
    lm = Qwen2ForCausalLM(config).bfloat16()
    lm.generation_config.eos_token_id = [END_OF_TURN_ID, END_OF_TEXT_ID]
    path = save(tokenizer, home / "snapshots" / COMMIT)
    lm.save_pretrained(path)
    return path


def recipe() -> list[str]:
    """The options of the command in rlcorr/train/README.md."""
    text = (ROOT / "rlcorr" / "train" / "README.md").read_text(encoding="utf-8")
    command = re.search(rf"rlcorr train (--model {HUB_ID}.*?)\n\n", text, re.DOTALL)
    assert command is not None
    return command[1].replace("\\\n", " ").split()


@pytest.mark.slow
@pytest.mark.engine
def test_the_recipe_trains(cached: Path, local_runs: Path) -> None:
    config = train_config([*recipe(), *SMALL, "--rollout.engine", "vllm", "--checkpoint-every", "1"], "test")
    assert (config.model, config.task, config.optim.precision) == (HUB_ID, "countdown", "bfloat16")
    run = train(config)
    assert verify(run).problems == []
    manifest = runs.read_manifest(run)
    assert (manifest.model, manifest.trainer_dtype, manifest.probe["pattern"]) == (HUB_ID, "bfloat16", "precision")
    assert [row["bad/log_probs"] + row["bad/loss"] + row["bad/gradient"] for row in runs.read_metrics(run)] == [0]
    step = runs.read_step(run, 1)
    ids = step.batch.tensors()["prompt_ids"][0][step.batch.tensors()["prompt_mask"][0]].tolist()
    said = f"<|im_start|>user\n{INSTRUCTION}\n{step.prompts[0]}<|im_end|>\n<|im_start|>assistant\n"
    assert Tokenizer.from_file(str(cached / "tokenizer.json")).decode(ids, skip_special_tokens=False) == said


def test_messages_without_a_template_end_the_run_in_one_sentence(
    cached: Path, local_runs: Path, tmp_path: Path
) -> None:
    """Before a step is made: a base model has no template."""
    (cached / "chat_template.jinja").unlink(missing_ok=True)
    prompts = tmp_path / "prompts.jsonl"
    line = '{"prompt": [{"role": "user", "content": "1+%d="}], "answer": "2"}\n'
    prompts.write_text("".join(line % number for number in range(64)))
    options = ["--model", HUB_ID, "--task", "jsonl", "--data", str(prompts), "--rollout.engine", "transformers", *SMALL]
    with pytest.raises(UsageError, match=r"^prompts made of messages need a chat template; .* has none") as raised:
        train(train_config(options, "test"))
    assert "\n" not in str(raised.value)
    assert not (local_runs / "chat" / "metrics.jsonl").exists()
