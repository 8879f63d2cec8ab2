"""From the words of a command line, and from the files that they name, to the configuration of a training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from rlcorr.errors import UsageError
from rlcorr.train.config.packaged import SMOLLM2
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.training import TrainConfig

Config = TypeVar("Config", bound=TrainConfig | PretrainConfig)


@dataclass(frozen=True)
class FromFile(Generic[Config]):
    """The options of a verb that can start from a file."""

    options: Annotated[Config, tyro.conf.arg(name="")]
    config: Path | None = None
    """YAML file of options to start from, like the config.yaml of every run; options given here override it."""


@dataclass(frozen=True)
class FromRun(FromFile[TrainConfig]):
    """The options of `train`, which can also go on with a run."""

    resume: str = ""
    """Name or directory of a run to go on with, from its last checkpoint, as if it had never stopped. Its own options
    hold; only steps, stop-at-accuracy, eval-every, record-every, checkpoint-every, max-bad-steps, save-model,
    tensorboard and wandb may be given anew."""


def train_config(words: Sequence[str], prog: str) -> TrainConfig:
    """`configured`; with --resume the options of that run, and of the user's own those that may change on the way."""
    name = run_to_resume(words)
    if name is None:
        return configured(TrainConfig, words, prog)
    from rlcorr.train.output.config_file import arguments_of
    from rlcorr.train.session import resume

    path = resume.run_to_resume(name)
    recorded = [*arguments_of(path / "config.yaml", TrainConfig), f"--run={path.name}"]  # the directory's name counts
    config = configured(TrainConfig, words, prog, recorded)
    resume.check_resumed(path, before=configured(TrainConfig, recorded, prog), after=config)
    return config


def configured(config_type: type[Config], words: Sequence[str], prog: str, recorded: Sequence[str] = ()) -> Config:
    """The typed options: those recorded with a run, those of a file that --config names, and the user's. The last one
    wins, and only what comes of all of them is checked."""
    from rlcorr.train.output.config_file import arguments_of

    file = _value_of("--config", words, "YAML file")
    of_file = [] if file is None else arguments_of(Path(file), config_type)
    wrapper: Any = FromRun if config_type is TrainConfig else FromFile[config_type]
    all_words = [*recorded, *of_file, *words]
    named: dict[str, Any] = {}
    if config_type is TrainConfig and _value_of("--model", all_words, "model") == SMOLLM2.model:
        named["default"] = FromRun(options=SMOLLM2)
    return tyro.cli(wrapper, args=all_words, prog=prog, description=config_type.__doc__, **named).options


def run_to_resume(words: Sequence[str]) -> str | None:
    """What --resume names; None where it is not given."""
    return _value_of("--resume", words, "run")


def _value_of(option: str, words: Sequence[str], kind: str) -> str | None:
    """The last value given to an option, as `--option VALUE` or `--option=VALUE`."""
    value = None
    for word, next_word in zip(words, [*words, "--"][1:], strict=True):
        if word == option and next_word.startswith("--"):
            raise UsageError(f"{option} needs the name of a {kind}.")
        if word == option:
            value = next_word
        elif word.startswith(f"{option}="):
            value = word.removeprefix(f"{option}=")
    return value
