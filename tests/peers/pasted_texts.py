"""Every preset's text and override line, pasted into the real configuration of verl, SkyRL and TRL.

verl: Hydra composes verl's own ppo_trainer.yaml with the line, or merges the text into it, and verl's class is built
from the result. SkyRL: its own parser of a command line, and its typed configuration. TRL: the call is executed.
One process for each: `pasted_texts.py verl`.

Texts of score centering are for verl main and SkyRL 0.5.0, which are not installed, so they are counted apart.
"""

import importlib
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from real_systems import FOLDER, _plain, find, of_skyrl, of_trl

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.export import default_text, export
from rlcorr.systems.overrides import overrides
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl import from_verl

Read = Callable[[str, str], Iterator[CorrectionConfig]]
"""(text, line) → the correction that the system's real configuration has after the text, and after the line."""


def read_verl(text: str, line: str) -> Iterator[CorrectionConfig]:
    hydra, omegaconf = importlib.import_module("hydra"), importlib.import_module("omegaconf")
    real = importlib.import_module("verl.trainer.config.algorithm").RolloutCorrectionConfig
    with hydra.initialize_config_dir(str(FOLDER / "peers" / "verl" / "trainer" / "config"), version_base=None):
        pasted = hydra.compose("ppo_trainer")
        omegaconf.OmegaConf.set_struct(pasted, False)  # a file may have new keys
        pasted.merge_with(yaml.safe_load(text))
        composed = hydra.compose("ppo_trainer", overrides=shlex.split(line, comments=True))
    for made in (pasted, composed):
        correction = omegaconf.OmegaConf.to_container(made.algorithm.rollout_correction, resolve=True)
        assert made.actor_rollout_ref.rollout.calculate_log_probs is True
        loss = made.actor_rollout_ref.actor.policy_loss
        if correction["loss_type"] == "reinforce":
            workers = omegaconf.OmegaConf.to_container(loss.rollout_correction, resolve=True)
            assert (loss.loss_mode, workers) == ("bypass_mode", correction)
        yield from_verl(real(**correction))


def read_skyrl(text: str, line: str) -> Iterator[CorrectionConfig]:
    omegaconf = importlib.import_module("omegaconf")
    real = importlib.import_module("skyrl.train.config.config").SkyRLTrainConfig
    pasted = real.from_dict_config(omegaconf.OmegaConf.create(yaml.safe_load(text)))
    for made in (pasted, real.from_cli_overrides(shlex.split(line, comments=True))):
        assert made.generator.sampling_params.logprobs == 1
        assert made.trainer.algorithm.policy_loss_type == "regular"
        yield from_skyrl(made.trainer.algorithm.off_policy_correction)


def read_trl(text: str, line: str) -> Iterator[CorrectionConfig]:
    del line  # TRL has no command line for these
    config = importlib.import_module("trl").GRPOConfig
    with tempfile.TemporaryDirectory() as folder:
        yield from_trl(eval(text, {"GRPOConfig": lambda **fields: config(output_dir=folder, bf16=False, **fields)}))


def of_verl() -> Read:
    find("peers")
    importlib.import_module("verl_peer").load()
    return read_verl


def started(start: Callable[[], Any], read: Read) -> Callable[[], Read]:
    """Import a system as real_systems.py does."""
    return lambda: (start(), read)[1]


SYSTEMS: dict[str, Callable[[], Read]] = {
    "verl": of_verl, "SkyRL": started(of_skyrl, read_skyrl), "TRL": started(of_trl, read_trl),
}  # fmt: skip


def close(ours: CorrectionConfig, theirs: CorrectionConfig) -> bool:
    """Check that two corrections are the same up to the five digits of a text."""
    return _plain(_rounded(ours)) == _plain(_rounded(theirs))


def _rounded(config: CorrectionConfig) -> CorrectionConfig:
    text = export(config, "Python")
    space: dict[str, Any] = {}
    exec(text, space)
    return space["config"]


def compare(system: str) -> list[str]:
    """Return what differs, a line each, and print what was compared."""
    read = SYSTEMS[system]()
    pasted, refused, unreleased = 0, 0, 0
    wrong: list[str] = []
    for name, preset in PRESETS.items():
        try:
            text, line = _texts(system, preset.config, preset.loss)
        except UsageError:
            refused += 1
            continue
        if _version(text, system) != _version(default_text(system), system):
            unreleased += 1
            continue
        pasted += 1
        for way, config in zip(("text", "line"), read(text, line), strict=False):
            if not close(config, preset.config):
                wrong.append(f"{name}, {way}: read as {config}")
    print(f"{system}: texts and lines of {pasted} presets pasted, {refused} refused, {unreleased} for another version")
    return wrong


def _version(text: str, system: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"# {system}"))


def _texts(system: str, config: CorrectionConfig, loss: LossConfig) -> tuple[str, str]:
    return export(config, system, loss), overrides(config, system, loss) or ""


if __name__ == "__main__":
    differing = compare(sys.argv[1])
    print("\n".join(differing[:20]))
    sys.exit(bool(differing))
