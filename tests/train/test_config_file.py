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
from rlcorr.records import runs
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.output.config_file import RETIRED, arguments_of, write_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config_file")


def read(path: Path, config_type: Any = TrainConfig) -> Any:
    return tyro.cli(config_type, args=arguments_of(path, config_type))


RUN_NAMES = ["", "a b", "007", "null", "yes", "-x", "=", "1e3", "2024-01-01", "ünï: #", "'", "--steps"]


@pytest.mark.parametrize("name", RUN_NAMES)
def test_the_trainers_configuration_comes_back(folder: Path, name: str) -> None:
    """Also texts that YAML may take for something else, infinity, the smallest float and integers beyond 64 bits."""
    config = TrainConfig(
        run=name, task="running_sum", loss_type="kl_cov", stop_at_accuracy=-math.inf, samples_per_prompt=2,
        batch_normalize=True, tensorboard=False, seed=-(10**20), optim=OptimConfig(learning_rate=5e-324),
        advantage=AdvantageConfig(estimator="rloo", norm_by_std=False),
        rollout=RolloutConfig(
            engine="vllm", kv_cache_dtype="fp8", trainer_temperature=math.inf, staleness=10**12, asynchronous=True,
        ),
        loss=LossConfig(numbers={"clip_cov_lb": -math.inf, "cppo_delta": 0.1 + 0.2}, loss_scale_factor=1e300),
    )  # fmt: skip
    write_config(folder / "run.yaml", config)
    assert read(folder / "run.yaml") == config


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


def test_a_file_with_some_keys_leaves_the_others_as_they_are(folder: Path) -> None:
    # loss starts from the trainer's default, not from LossConfig's, whose use_kl_loss is False.
    path = file(folder, "steps: 3\nloss: {clip_ratio_low: 0.1}\noptim:\n  learning_rate: 3e-4\n")
    expected = TrainConfig(steps=3, loss=LossConfig(use_kl_loss=True, clip_ratio_low=0.1))
    assert read(path) == expected


@pytest.mark.parametrize("place", [0, 6], ids=["before", "after"])
def test_the_command_line_overrides_the_file(folder: Path, place: int) -> None:
    text = "steps: 9\nseed: 5\ntensorboard: false\nrollout: {dtype: float32, stale_lm_head: true}"
    options = ["--steps", "10", "--tensorboard", "--rollout.no-stale-lm-head", "--rollout.top-k", "4"]
    options[place:place] = ["--config", str(file(folder, text))]
    config = configured(TrainConfig, options, "rlcorr")
    expected = TrainConfig(steps=10, seed=5, rollout=RolloutConfig(dtype="float32", top_k=4))
    assert config == expected


def test_the_command_line_may_complete_a_file(folder: Path) -> None:
    """The file alone would be refused: a task of one's own needs prompts, and this model is on another machine."""
    path = file(folder, "task: jsonl\nmodel: /no/such/model")
    options = ["--config", str(path), "--data", "prompts.jsonl", "--model", TrainConfig().model]
    assert configured(TrainConfig, options, "rlcorr") == TrainConfig(task="jsonl", data=Path("prompts.jsonl"))


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


def test_options_of_earlier_versions_are_read_if_they_change_nothing(folder: Path) -> None:
    path = file(folder, "mask_truncated: false\nsteps: 3\noptim: {warmup_steps: 0}\nsketch: {answers: 1024}")
    assert read(path) == TrainConfig(steps=3)


def test_the_numbers_of_a_loss_are_read_where_earlier_versions_had_them(folder: Path) -> None:
    path = file(folder, "loss: {cppo_delta: 0.3, tau_pos: 1.0, fipo_clip_high_only: true, numbers: {cppo_w_min: 0.5}}")
    assert read(path).loss == LossConfig(use_kl_loss=True, numbers={"cppo_delta": 0.3, "cppo_w_min": 0.5})


def test_words_that_change_nothing_any_more_are_left_out() -> None:
    """Studies have them in their options, whose digest is recorded with each arm."""
    words = ["--sketch.answers", "1024", "--steps", "3", "--optim.no-share-prompts", "--sketch.tree-mib=64", "--seed=2"]
    assert configured(TrainConfig, words, "rlcorr") == TrainConfig(steps=3, seed=2)


def test_every_recorded_run_can_be_read() -> None:
    for path in sorted(runs.ROOT.glob("*/config.yaml")):
        assert len(arguments_of(path, TrainConfig)) > 50, path
    for name in ("kv_fp8_e5m2", "gpu_smol_replay"):  # half a second each
        words = ["--config", str(runs.ROOT / name / "config.yaml")]
        assert configured(TrainConfig, words, "rlcorr").run == name


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--wandb", "mine"], "wandb is no option since version 0.2: TensorBoard shows the run's event files."),
        (["--advantage.no-whiten"], "advantage.whiten is no option since version 0.2: rloo has advantages in units"),
        (["--loss.cppo-delta=0.3"], "loss.cppo_delta is no option since version 0.2: write --loss.numbers cppo_delta"),
    ],
)
def test_retired_words_of_a_command_line_say_what_to_do_instead(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in refusal(["train", *words], capsys)


WRONG = [
    ("step: 5", ("unknown key 'step'", "Did you mean 'steps'?")),
    ("rollout: {dtyp: float32}", ("unknown key 'rollout.dtyp'", "Did you mean 'rollout.dtype'?")),
    ("mask_truncated: true", ("mask_truncated is no option since version 0.2", "got True", "returns None")),
    ("eval_data: mine.jsonl", ("eval_data is no option", "one line in eight of --data is held out")),
    ("rollout:", ("rollout must be a mapping", "got None")),
    ("true: 1", ("unknown key 'True'",)),
    ("steps: ten", ("steps must be INT", "got 'ten'")),
    ("steps: true", ("steps must be INT", "got True")),
    ("steps: [1, 2]", ("steps must be INT", "got [1, 2]")),
    ("optim: {learning_rate: false}", ("optim.learning_rate must be FLOAT", "got False")),
    ("rollout: {trainer_temperature: no}", ("rollout.trainer_temperature must be {None}|FLOAT", "got False")),
    ("rollout: {dtype: int8}", ("rollout.dtype must be {float32,float16,bfloat16}", "got 'int8'")),
    ("tensorboard: 1", ("tensorboard must be true or false", "got 1")),
    ("run: 007", ("run must be a text", "got 7: put it in quotes")),
    ("run: yes", ("run must be a text", "got True: put it in quotes")),
    ("- steps", ("the file must be a mapping", "got ['steps']")),
    ("steps: [", ("is not YAML", "line 1")),
    ("run: 2024-13-45", ("is not YAML", "month")),
    ("run: \0", ("is not YAML",)),
    ("rollout: {temperature: 0}", ("temperature must be > 0; got 0.0.",)),
]


def refusal(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a call that ends with exit code 2. A file accepted by mistake starts nothing: with a
    task that does not exist the verb meets a second fault."""
    verb, *others = words
    wrong = ["--seed", "none"] if verb == "pretrain" else ["--task", "none"]
    with pytest.raises(SystemExit) as ended:
        main([verb, *wrong, *others])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(("text", "parts"), WRONG, ids=[text.replace("\0", "NUL") for text, _ in WRONG])
def test_a_wrong_file_is_one_line(
    folder: Path, text: str, parts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(folder, text)
    error = refusal(["train", "--config", str(path)], capsys)
    assert all(part in error for part in parts)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train", "--config", "no/such.yaml"], "no/such.yaml: cannot be read (No such file or directory)."),
        (["train", "--config"], "--config needs the name of a YAML file."),
        (["train", "--config", "--steps", "3"], "--config needs the name of a YAML file."),
        (["play", "--config", "no/such.yaml"], "no/such.yaml: cannot be read"),
        (["pretrain", "--config", "no/such.yaml"], "no/such.yaml: cannot be read"),
    ],
)
def test_a_missing_file_is_one_line(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refusal(arguments, capsys)
