"""Every preset's text and override line in the real configuration of verl, SkyRL or TRL and back, and its real weights.

verl: Hydra merges the text into verl's own ppo_trainer.yaml, or composes it with the line, and verl's class is built
from the result. SkyRL: its typed configuration, and its own parser of a command line. TRL: the call is executed. Then
the system's own code weighs random batches with this object. Texts of score centering are for versions that are not
installed, so they are counted apart.

One process for each, because each package brings its own neighbours: `real_systems.py TRL`. `make peers` runs them all.
Where a package imports what weighs more than it and does nothing here, a stand-in takes its place, and says so.
"""

import ast
import importlib
import os
import shlex
import sys
import tempfile
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typing_extensions
import yaml
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.export import default_text, export
from rlcorr.systems.overrides import overrides
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl import from_verl
from rlcorr.types import TokenBatch

FOLDER = Path(os.environ.get("RLCORR_PEERS", Path(__file__).resolve().parent.parent.parent / ".venv"))
BATCHES = 20
Read = Callable[[str, str], list[Any]]
"""(text, line) → the system's own objects of the text and of the line."""
Weigh = Callable[[Any, TokenBatch], Tensor]
System = tuple[Read, Callable[[Any], CorrectionConfig], Weigh]


def batch(seed: int) -> TokenBatch:
    """Rows of 1 to 12 tokens, each with its own size of mismatch, and an advantage of either sign."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 13, (6, 1), generator=rng)
    rollout = -torch.rand(6, 12, generator=rng, dtype=torch.float64) * 3 - 0.05
    scale = torch.tensor([1e-4, 1e-3, 0.01, 0.1, 0.6, 2.0], dtype=torch.float64)[:, None]
    old = (rollout + scale * torch.randn(6, 12, generator=rng, dtype=torch.float64)).clamp(max=-1e-3)
    mask = torch.arange(12) < lengths
    advantages = torch.randn(6, 1, generator=rng, dtype=torch.float64).expand(6, 12)
    return TokenBatch.from_log_probs(old.float(), rollout.float(), mask).replace(advantages=advantages.float())


def find(*folders: str) -> None:
    """Packages of these folders are found after those of .venv, of which they must replace none."""
    sys.path += [str(FOLDER / folder) for folder in folders]


# --- one function per system: its real objects of a text, how they are read back, and what its code does ---


def of_verl() -> System:
    from verl_peer import load, verl_correction

    find("peers")
    real = load().algorithm.RolloutCorrectionConfig
    hydra, omegaconf = importlib.import_module("hydra"), importlib.import_module("omegaconf")
    fields = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")

    def read(text: str, line: str) -> list[Any]:
        with hydra.initialize_config_dir(str(FOLDER / "peers" / "verl" / "trainer" / "config"), version_base=None):
            pasted = hydra.compose("ppo_trainer")
            omegaconf.OmegaConf.set_struct(pasted, False)  # a file may have new keys
            pasted.merge_with(yaml.safe_load(text))
            composed = hydra.compose("ppo_trainer", overrides=shlex.split(line, comments=True))
        return [correction_of(made) for made in (pasted, composed)]

    def correction_of(made: Any) -> Any:
        correction = omegaconf.OmegaConf.to_container(made.algorithm.rollout_correction, resolve=True)
        assert made.actor_rollout_ref.rollout.calculate_log_probs is True
        loss = made.actor_rollout_ref.actor.policy_loss
        if correction["loss_type"] == "reinforce":
            workers = omegaconf.OmegaConf.to_container(loss.rollout_correction, resolve=True)
            assert (loss.loss_mode, workers) == ("bypass_mode", correction)
        return real(**correction)

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        assert given.old_log_probs is not None
        options = {name: getattr(made, name) for name in fields}
        weights, kept, _ = verl_correction(given.old_log_probs, given.rollout_log_probs, given.response_mask, **options)
        return kept * (1 if weights is None else weights)

    return read, from_verl, weigh


def of_skyrl() -> System:
    find("peers", "skyrl", "skyrl/skyrl-gym")
    typing.TypedDict = typing_extensions.TypedDict  # pydantic wants it below Python 3.12, which SkyRL 0.4.0 asks for
    cloud = types.ModuleType("cloudpathlib")  # for checkpoints in a cloud
    cloud.AnyPath = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["cloudpathlib"] = cloud
    omegaconf = importlib.import_module("omegaconf")
    real = importlib.import_module("skyrl.train.config.config").SkyRLTrainConfig
    code = importlib.import_module("skyrl.backends.skyrl_train.utils.off_policy_correction_utils")

    def read(text: str, line: str) -> list[Any]:
        pasted = real.from_dict_config(omegaconf.OmegaConf.create(yaml.safe_load(text)))
        both = [pasted, real.from_cli_overrides(shlex.split(line, comments=True))]
        assert all(made.generator.sampling_params.logprobs == 1 for made in both)
        assert all(made.trainer.algorithm.policy_loss_type == "regular" for made in both)
        return [made.trainer.algorithm.off_policy_correction for made in both]

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        weights, _, kept = code.compute_off_policy_correction(
            given.old_log_probs, given.rollout_log_probs, given.response_mask.float(), made
        )
        return kept * (1 if weights is None else weights)

    return read, from_skyrl, weigh


def of_trl() -> System:
    find("trl")
    config, folder = importlib.import_module("trl").GRPOConfig, tempfile.mkdtemp()
    code = _trls_weights(FOLDER / "trl" / "trl" / "trainer" / "grpo_trainer.py")

    def read(text: str, line: str) -> list[Any]:
        del line  # TRL has no command line for these
        return [eval(text, {"GRPOConfig": lambda **fields: config(output_dir=folder, bf16=False, **fields)})]

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        if not made.vllm_importance_sampling_correction or made.loss_type == "vespo":  # in its product
            return given.response_mask.float()
        space = {
            "self": made, "torch": torch, "math": importlib.import_module("math"), "tool_mask": None,
            "completion_mask": given.response_mask.long(), "old_per_token_logps": given.old_log_probs,
            "sampling_per_token_logps": given.rollout_log_probs,
        }  # fmt: skip
        exec(code, space)
        return space["vllm_importance_sampling_ratio"].expand(given.response_mask.shape)

    return read, from_trl, weigh


def _trls_weights(path: Path) -> types.CodeType:
    """The real code of the if statement of TRL's trainer that makes the weights, to be executed."""
    methods = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]
    inside = (n for m in methods if m.name == "_generate_and_score_completions" for n in ast.walk(m))
    switch = "self.vllm_importance_sampling_correction"
    holding = [n for n in inside if isinstance(n, ast.If) and switch in ast.unparse(n.test)]
    best = max((n for n in holding if "torch.exp(logps_diff)" in ast.unparse(n)), key=lambda n: n.lineno)
    return compile(ast.fix_missing_locations(ast.Module([best], [])), str(path), "exec")


SYSTEMS = {"verl": of_verl, "SkyRL": of_skyrl, "TRL": of_trl}
OPSM = "seq_mean_k1_negative"
"""TRL asks π_θ, in the loss: not compared on a batch."""


def compare(system: str) -> list[str]:
    """What differs, a line each; prints what was compared."""
    read, back, weigh = SYSTEMS[system]()
    pasted, refused, unreleased, batches = 0, 0, 0, 0
    wrong: list[str] = []
    for name, preset in PRESETS.items():
        try:
            text = export(preset.config, system, preset.loss)
        except UsageError:
            refused += 1
            continue
        if _version(text, system) != _version(default_text(system), system):
            unreleased += 1
            continue
        pasted += 1
        for made in read(text, overrides(preset.config, system, preset.loss) or ""):
            config = back(made)
            if _rounded(config) != _rounded(preset.config):
                wrong.append(f"{name}: read as {config}")
            for seed in range(BATCHES):
                batches += 1
                wrong += _weights(name, config, weigh, made, batch(seed), seed)
    print(f"{system}: texts and lines of {pasted} presets pasted, {refused} refused, {unreleased} for another version; "
          f"{batches} batches weighed")  # fmt: skip
    return wrong


def _version(text: str, system: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"# {system}"))


def _rounded(config: CorrectionConfig) -> CorrectionConfig:
    """The correction with the five digits of a text, its rules in the order of their names."""
    space: dict[str, Any] = {}
    exec(export(config, "Python"), space)
    made: CorrectionConfig = space["config"]
    rules = tuple(sorted(made.rollout_rs, key=lambda rule: rule.name))
    return replace(made, rollout_rs=rules, rollout_is_threshold=made.rollout_is_threshold if made.rollout_is else 2.0)


def _weights(name: str, config: CorrectionConfig, weigh: Weigh, made: Any, given: TokenBatch, seed: int) -> list[str]:
    rules = tuple(rule for rule in config.rollout_rs if rule.name != OPSM)
    result = correct(given, replace(config, rollout_rs=rules, bypass_mode=False, loss_type="ppo_clip"))
    ours = torch.where(result.keep_mask, result.weights, 0)
    theirs = torch.where(given.response_mask, weigh(made, given), 0).to(ours)
    if torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7):
        return []
    worst = (ours - theirs).abs().max().item()
    return [f"{name}, batch {seed}: weights differ by up to {worst:g}"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    differing = compare(sys.argv[1])
    print("\n".join(differing[:20]))
    sys.exit(bool(differing))
