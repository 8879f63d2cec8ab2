"""`python -m rlcorr train`: its configuration, from the words of a command line and from the files that they name."""

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
    """YAML file of options, like the config.yaml of every run. Options on the command line override it."""


@dataclass(frozen=True)
class FromRun(FromFile[TrainConfig]):
    """The options of `train`, which can also resume a run."""

    resume: str = ""
    """Name or directory of a run to resume from its last checkpoint, as if it had never stopped. The run keeps its
    options; only steps, stop-at-accuracy, eval-every, record-every, checkpoint-every, max-bad-steps, save-model,
    tensorboard and rollout.max-model-len can be changed. Prompts, reward function and weights must be the same."""


def run_train(words: list[str]) -> int:
    """Train from the words after the verb, and return the exit code."""
    config = train_config(words, "python -m rlcorr train")
    from rlcorr.train.loop import train

    train(config, resume=run_to_resume(words) is not None)
    return 0


def train_config(words: Sequence[str], prog: str) -> TrainConfig:
    """Return the configuration for the options of `train`; with --resume, that of the run to resume.

    Raises `UsageError` for a wrong option, and with --resume for one that cannot be changed.
    """
    name = run_to_resume(words)
    if name is None:
        return configured(TrainConfig, words, prog)
    from rlcorr.train.output.config_file import arguments_of
    from rlcorr.train.session import resume

    path = resume.run_to_resume(name)
    # --run, because the directory may have been renamed since
    recorded = [*arguments_of(path / "config.yaml", TrainConfig), f"--run={path.name}"]
    config = configured(TrainConfig, words, prog, recorded)
    resume.check_resumed(path, before=configured(TrainConfig, recorded, prog), after=config)
    return config


def configured(config_type: type[Config], words: Sequence[str], prog: str, recorded: Sequence[str] = ()) -> Config:
    """Return the configuration from options recorded with a run, those of the file in --config, and the user's.

    Later options override earlier ones; only the result is checked.
    """
    from rlcorr.train.output.config_file import arguments_of, current_words

    words = current_words(words)
    file = _value_of("--config", words, "YAML file")
    wrapper: Any = FromRun if config_type is TrainConfig else FromFile[config_type]
    all_words = [*recorded, *(arguments_of(Path(file), config_type) if file else ()), *words]
    defaults: dict[str, Any] = {}
    if config_type is TrainConfig and _value_of("--model", all_words, "model") == SMOLLM2.model:
        defaults["default"] = FromRun(options=SMOLLM2)
    return tyro.cli(wrapper, args=all_words, prog=prog, description=config_type.__doc__, **defaults).options


def run_to_resume(words: Sequence[str]) -> str | None:
    """Return the run that --resume names; None if the option is not given."""
    return _value_of("--resume", words, "run")


def _value_of(option: str, words: Sequence[str], kind: str) -> str | None:
    """Return the last value of an option, given as `--option VALUE` or `--option=VALUE`; None if it is not given."""
    value = None
    for word, next_word in zip(words, [*words, "--"][1:], strict=True):
        if word == option and next_word.startswith("--"):
            raise UsageError(f"{option} needs the name of a {kind}.")
        if word == option:
            value = next_word
        elif word.startswith(f"{option}="):
            value = word.removeprefix(f"{option}=")
    return value
