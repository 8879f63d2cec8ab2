"""A configuration written as YAML and read back is the same one; what the command line refuses, a file cannot pass."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml

from rlcorr.command.cli import main
from rlcorr.command.train import configured
from rlcorr.config import LossConfig
from rlcorr.presets import PRESETS, RANKED
from rlcorr.records import runs
from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.output.config_file import RETIRED, arguments_of, write_config

LOSS = LossConfig(
    clip_ratio_high=5e-324, loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=1e300, use_kl_loss=True,
    numbers={"clip_cov_lb": -math.inf, "cppo_delta": 1e-9},
)  # fmt: skip
CONFIGURATIONS = [
    TrainConfig(),
    TrainConfig(loss=LOSS, loss_type="kl_cov", stop_at_accuracy=-math.inf, seed=-(10**20), batch_normalize=True),
    TrainConfig(rollout=RolloutConfig(engine="vllm", kv_cache_dtype="fp8", temperature=math.inf, staleness=10**12)),
    TrainConfig(rollout=RolloutConfig(trainer_temperature=0.1, stale_lm_head=True), tensorboard=False),
    TrainConfig(advantage=AdvantageConfig("rloo", gae_lambda=0.25, norm_by_std=False), samples_per_prompt=4),
]
TEXTS = ["", "a b", "007", "null", "yes", "-x", "=", "1e3", "2024-01-01", "ünï: #", "'", "--steps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config_file")


def test_the_trainers_configuration_comes_back(folder: Path) -> None:
    texts = [TrainConfig(run=text) for text in TEXTS]
    presets = [TrainConfig(preset=preset) for preset in {PRESETS[name].system: name for name in RANKED}.values()]
    for config in (*CONFIGURATIONS, *texts, *presets):
        write_config(folder / "run.yaml", config)
        assert tyro.cli(TrainConfig, args=arguments_of(folder / "run.yaml", TrainConfig)) == config


def test_the_file_holds_every_value_and_no_path_of_this_machine(folder: Path) -> None:
    write_config(folder / "run.yaml", TrainConfig(steps=7))
    text = (folder / "run.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert list(content) == [f.name for f in dataclasses.fields(TrainConfig)]
    assert list(content["rollout"]) == [f.name for f in dataclasses.fields(RolloutConfig)]
    assert content["steps"] == 7
    assert content["model"] == "$RLCORR_RUNS/warm_start/checkpoint"
    assert str(runs.ROOT) not in text


def file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("place", [0, 2, 4, 6], ids=lambda place: f"after {place} words")
def test_the_command_line_overrides_the_file(folder: Path, place: int) -> None:
    text = "steps: 9\nseed: 5\ntensorboard: false\nrollout: {dtype: float32, stale_lm_head: true}"
    options = ["--steps", "10", "--tensorboard", "--rollout.no-stale-lm-head", "--rollout.top-k", "4"]
    options[place:place] = ["--config", str(file(folder, text))]
    config = configured(TrainConfig, options, "rlcorr")
    expected = TrainConfig(steps=10, seed=5, rollout=RolloutConfig(dtype="float32", top_k=4))
    assert config == expected


READ: list[tuple[str, list[str], TrainConfig | PretrainConfig]] = [
    # loss starts from the trainer's default, not from LossConfig's, whose use_kl_loss is False
    ("steps: 3\nloss: {clip_ratio_low: 0.1}\noptim:\n  learning_rate: 3e-4\n", [],
     TrainConfig(steps=3, loss=LossConfig(use_kl_loss=True, clip_ratio_low=0.1))),
    ("stop_at_accuracy: .inf", [], TrainConfig(stop_at_accuracy=math.inf)),
    ("stop_at_accuracy: inf\nrun: 007", [], TrainConfig(stop_at_accuracy=math.inf, run="007")),
    # alone it would be refused: a task of one's own needs prompts, and this model is on another machine
    ("task: jsonl\nmodel: /no/such/model", ["--data", "prompts.jsonl", "--model", TrainConfig().model],
     TrainConfig(task="jsonl", data=Path("prompts.jsonl"))),
    ("max_steps: 12\nseed: 1", ["--seed", "2"], PretrainConfig(max_steps=12, seed=2)),
    # options of earlier versions that change nothing, and numbers of a loss where these had them
    ("mask_truncated: false\nsteps: 3\noptim: {warmup_steps: 0}\nsketch: {answers: 1024}", [], TrainConfig(steps=3)),
    ("loss: {cppo_delta: 0.3, tau_pos: 1.0, fipo_clip_high_only: true, numbers: {cppo_w_min: 0.5}}", [],
     TrainConfig(loss=LossConfig(use_kl_loss=True, numbers={"cppo_delta": 0.3, "cppo_w_min": 0.5}))),
    # studies have such words in their options, whose digest is recorded with each arm
    ("seed: 1", ["--sketch.answers", "1024", "--steps", "3", "--sketch.tree-mib=64"], TrainConfig(steps=3, seed=1)),
]  # fmt: skip


def test_a_file_and_the_command_line_together(folder: Path) -> None:
    for text, words, expected in READ:
        arguments = ["--config", str(file(folder, text)), *words]
        assert configured(type(expected), arguments, "rlcorr") == expected, text


def test_the_trainer_gets_no_more_options() -> None:
    """The aim is 80. A new option needs a recorded run, a lesson or a page that uses it."""
    options = list(_leaves(TrainConfig(), ""))
    assert len(options) <= 80
    assert set(options) & set(RETIRED) == set()


def _leaves(config: Any, prefix: str) -> Iterator[str]:
    for option in dataclasses.fields(config):
        value = getattr(config, option.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{option.name}.")
        else:
            yield prefix + option.name


def test_every_recorded_run_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcorr.train.config.training.check_model", lambda name: None)  # some models are made first
    for path in sorted(runs.ROOT.glob("*/config.yaml")):
        config_type = PretrainConfig if path.parent.name.startswith("warm_start") else TrainConfig
        assert configured(config_type, ["--config", str(path)], "rlcorr").run == path.parent.name, path


WRONG = [
    ("step: 5", ("unknown key 'step'", "Did you mean 'steps'?")),
    ("rollout: {dtyp: float32}", ("unknown key 'rollout.dtyp'", "Did you mean 'rollout.dtype'?")),
    ("mask_truncated: true", ("mask_truncated is no option since version 0.2", "got 'true'")),
    ("rollout: 3", ("rollout must be a mapping", "got '3'")),
    ("rollout: {temperature: 0}", ("temperature must be > 0; got 0.0.",)),
    ("tensorboard: 1", ("tensorboard must be true or false; got '1'.",)),
    ("", ("the file must be a mapping",)),
    ("- steps", ("the file must be a mapping", "got ['steps']")),
    ("steps: [", ("line 1",)),
]

# Were a file accepted by mistake, the verb would meet a second fault here, rather than start.
REFUSED_ANYHOW = {"train": ["--task", "none"], "play": ["--port", "70000"], "pretrain": ["--seed", "none"]}


def refusal(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return stderr of a call that ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments[:1], *REFUSED_ANYHOW[arguments[0]], *arguments[1:]])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "play"])
def test_a_wrong_file_is_one_line(folder: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text, parts in WRONG:
        error = refusal([verb, "--config", str(file(folder, text))], capsys)
        assert all(part in error for part in parts), (text, error)
        assert error.count("\n") == 1
    assert "'ten'" in refusal([verb, "--config", str(file(folder, "steps: ten"))], capsys)  # as on a command line


def test_a_file_that_cannot_be_read_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "mine.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    for words, part in (
        (["--config", str(path)], "mine.yaml: "),
        (["--config", "no/such.yaml"], "No such file or directory"),
        (["--config"], "--config needs the name of a YAML file."),
        (["--config", "--steps", "3"], "--config needs the name of a YAML file."),
    ):
        assert part in refusal(["train", *words], capsys)
    error = refusal(["pretrain", "--config", str(file(folder, "steps: 3"))], capsys)
    assert "unknown key 'steps'. Did you mean 'max_steps'?" in error


def test_play_takes_a_good_file_and_its_own_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No port can be free there, so that nothing starts; it is looked for only after the training options are checked.
    assert "no free port from 70000" in refusal(["play", "--config", str(file(folder, "steps: 3"))], capsys)
