"""Texts of the presets into the systems' real configuration objects, and their real code on random batches.

The objects of verl, SkyRL and TRL are read back.

One process for each, because each package brings its own neighbours: `real_systems.py TRL`. `make peers` runs them all.
Where a package imports what weighs more than it and does nothing here, a stand-in takes its place, and says so.
"""

import ast
import functools
import importlib
import math
import os
import sys
import tempfile
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems import areal, ms_swift, openrlhf, skyrl, torchtitan, trl
from rlcorr.systems.verl import config as verl
from rlcorr.types import TokenBatch

FOLDER = Path(os.environ.get("RLCORR_PEERS", Path(__file__).resolve().parent.parent.parent / ".venv"))
BATCHES = 20
Weigh = Callable[[Any, TokenBatch], Tensor]
Back = Callable[..., Any] | None


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


def stand_in(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module


def block_of(path: Path, function: str, marker: str) -> types.CodeType:
    """The real code of an if statement of a method whose test contains the marker, to be executed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
    holding = [n for m in methods for n in ast.walk(m) if isinstance(n, ast.If) and marker in ast.unparse(n.test)]
    best = max((n for n in holding if "torch.exp(logps_diff)" in ast.unparse(n)), key=lambda n: n.lineno)
    return compile(ast.fix_missing_locations(ast.Module([best], [])), str(path), "exec")


def method_of(path: Path, *names: str) -> dict[str, Any]:
    """Methods of a class as functions, without importing what else their file needs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    chosen = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    space: dict[str, Any] = {"torch": torch, "math": math, **vars(typing)}
    exec(compile(ast.fix_missing_locations(ast.Module(list(chosen), [])), str(path), "exec"), space)
    return space


# --- one function per system: the real object of a configuration, how it is read back, and what its code does ---


def of_verl() -> tuple[Callable[..., Any], Callable[..., Any], Weigh]:
    from verl_peer import load, verl_correction

    config = load().algorithm.RolloutCorrectionConfig
    fields = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        assert given.old_log_probs is not None
        options = {name: getattr(made, name) for name in fields}
        weights, kept, _ = verl_correction(given.old_log_probs, given.rollout_log_probs, given.response_mask, **options)
        return kept * (1 if weights is None else weights)

    def build(c: CorrectionConfig, loss: LossConfig) -> Any:
        if loss.score_centering:
            raise UsageError("no release of verl has score centering.")
        return config(**verl.to_verl(c))

    return build, verl.from_verl, weigh


def of_skyrl() -> tuple[Callable[..., Any], Callable[..., Any], Weigh]:
    find("peers", "skyrl", "skyrl/skyrl-gym")
    typing.TypedDict = typing_extensions.TypedDict  # pydantic wants it below Python 3.12, which SkyRL 0.4.0 asks for
    stand_in("cloudpathlib", AnyPath=object)  # for checkpoints in a cloud
    config = importlib.import_module("skyrl.train.config.config").OffPolicyCorrectionConfig
    code = importlib.import_module("skyrl.backends.skyrl_train.utils.off_policy_correction_utils")

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        weights, _, kept = code.compute_off_policy_correction(
            given.old_log_probs, given.rollout_log_probs, given.response_mask.float(), made
        )
        return kept * (1 if weights is None else weights)

    return (lambda c, loss: config(**skyrl.to_skyrl(c))), skyrl.from_skyrl, weigh


def of_trl() -> tuple[Callable[..., Any], Callable[..., Any], Weigh]:
    find("trl")
    config = importlib.import_module("trl").GRPOConfig
    path = FOLDER / "trl" / "trl" / "trainer" / "grpo_trainer.py"
    code = block_of(path, "_generate_and_score_completions", "self.vllm_importance_sampling_correction")

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        if not made.vllm_importance_sampling_correction or made.loss_type == "vespo":  # in its product: real_losses.py
            return given.response_mask.float()
        space = {
            "self": made, "torch": torch, "math": importlib.import_module("math"), "tool_mask": None,
            "completion_mask": given.response_mask.long(), "old_per_token_logps": given.old_log_probs,
            "sampling_per_token_logps": given.rollout_log_probs,
        }  # fmt: skip
        exec(code, space)
        return space["vllm_importance_sampling_ratio"].expand(given.response_mask.shape)

    folder = tempfile.mkdtemp()
    return (lambda c, loss: config(output_dir=folder, bf16=False, **trl.to_trl(c, loss))), trl.from_trl, weigh


def of_openrlhf() -> tuple[Callable[..., Any], Back, Weigh]:
    """Its loss.py alone: the package wants deepspeed and flash_attn. Where π_θ = π_old and A = 1, −∂L/∂log π_θ is w.

    In float64: in float32 its KL of nearly equal coins falls below 0, and its gate, which starts at 0, then drops the
    sequence (issue 1354).
    """
    folder = FOLDER / "openrlhf" / "openrlhf" / "models"
    utils = method_of(folder / "utils.py", "masked_mean")
    stand_in("openrlhf_models", __path__=[str(folder)])
    stand_in("openrlhf_models.utils", masked_mean=utils["masked_mean"])
    loss = importlib.import_module("openrlhf_models.loss").PolicyLoss

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        assert given.old_log_probs is not None
        old, rollout, mask = (
            given.old_log_probs.double(),
            given.rollout_log_probs.double(),
            given.response_mask.double(),
        )
        theta = old.clone().requires_grad_()
        value = made(theta, old, torch.ones_like(mask), mask, rollout, batch_num_tokens=1.0)[0]
        return -torch.autograd.grad(value, theta)[0]

    return (lambda c, _: loss(**openrlhf.to_openrlhf(c))), None, weigh


def of_areal() -> tuple[Callable[..., Any], Back, Weigh]:
    find("peers", "areal")
    config = importlib.import_module("areal.api.cli_args").RejectionSamplingConfig
    code = importlib.import_module("areal.utils.functional.functional")

    def build(c: CorrectionConfig, loss: LossConfig) -> Any:
        fields = areal.to_areal(c)["rejection_sampling"]
        return None if fields is None else config(**fields)

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        if made is None:
            return given.response_mask.float()
        result = code.apply_rejection_sampling(
            given.old_log_probs, given.rollout_log_probs, given.response_mask, None, made
        )
        return result.behave_imp_weight

    return build, None, weigh


def of_ms_swift() -> tuple[Callable[..., Any], Back, Weigh]:
    """Its arguments are the real class; its trainer wants another TRL, so the two methods come from its file alone."""
    find("ms_swift")
    config = importlib.import_module("swift.rlhf_trainers.args_mixin").GRPOArgumentsMixin
    names = ("_apply_rollout_importance_sampling", "_compute_sequence_level_ratios")
    code = method_of(FOLDER / "ms_swift" / "swift" / "rlhf_trainers" / "grpo_trainer.py", *names)

    def weigh(made: Any, given: TokenBatch) -> Tensor:
        mask = given.response_mask.float()
        if made.rollout_importance_sampling_mode is None or given.old_log_probs is None:
            return mask
        me = types.SimpleNamespace(
            rollout_importance_sampling_mode=made.rollout_importance_sampling_mode,
            rollout_importance_sampling_threshold=made.rollout_importance_sampling_threshold,
        )
        me._compute_sequence_level_ratios = functools.partial(code["_compute_sequence_level_ratios"], me)
        return code["_apply_rollout_importance_sampling"](me, given.old_log_probs - given.rollout_log_probs, mask)

    return (lambda c, loss: config(**ms_swift.to_ms_swift(c))), None, weigh


def of_torchtitan() -> tuple[Callable[..., Any], Back, None]:
    """Its losses alone, on a stand-in for the class above them: the package imports kernels for GPUs."""
    folder = FOLDER / "torchtitan" / "torchtitan" / "experiments" / "rl" / "losses"

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    base = type("BaseLoss", (), {"Config": Config})
    stand_in("torchtitan.components.loss", BaseLoss=base, compute_logprobs=None)
    stand_in("torchtitan.config", CompileConfig=object)
    for name in ("torchtitan", "torchtitan.components", "torchtitan.experiments", "torchtitan.experiments.rl"):
        stand_in(name, __path__=[])
    stand_in("torchtitan.experiments.rl.losses", __path__=[str(folder)])
    config = importlib.import_module("torchtitan.experiments.rl.losses.dapo").DAPOLoss.Config
    return (lambda c, loss: config(**torchtitan.to_torchtitan(c, loss))), None, None


SYSTEMS = {
    "verl": of_verl, "SkyRL": of_skyrl, "TRL": of_trl, "OpenRLHF": of_openrlhf, "AReaL": of_areal,
    "ms-swift": of_ms_swift, "torchtitan": of_torchtitan,
}  # fmt: skip
OPSM = "seq_mean_k1_negative"
"""TRL and ms-swift ask π_θ, in the loss: not compared on a batch."""


def compare(system: str) -> list[str]:
    """What differs, a line each; prints what was compared."""
    build, back, weigh = SYSTEMS[system]()
    told, refused, batches = 0, 0, 0
    wrong: list[str] = []
    for name, preset in PRESETS.items():
        try:
            made = build(preset.config, preset.loss)
        except UsageError:
            refused += 1
            continue
        told += 1
        if back is not None and _plain(back(made)) != _plain(preset.config):
            wrong.append(f"{name} comes back as {back(made)}")
        if weigh is None:
            continue
        for seed in range(BATCHES):
            batches += 1
            wrong += _weights(name, preset.config, weigh, made, batch(seed), seed)
    way = "in its real object" if back is None else "in its real object and back"
    print(f"{system}: {told} presets {way}, {refused} refused; {batches} batches weighed")
    return wrong


def _plain(config: CorrectionConfig) -> CorrectionConfig:
    rules = [
        replace(r, upper=float(f"{r.upper:.12g}"), lower=r.lower and float(f"{r.lower:.12g}"))
        for r in config.rollout_rs
    ]
    rules.sort(key=lambda r: r.name)
    upper = config.rollout_is_threshold if config.rollout_is else 2.0
    return replace(config, rollout_rs=tuple(rules), rollout_is_threshold=upper)


def _weights(name: str, config: CorrectionConfig, weigh: Weigh, made: Any, given: TokenBatch, seed: int) -> list[str]:
    rules = tuple(rule for rule in config.rollout_rs if rule.name != OPSM)
    result = correct(given, replace(config, rollout_rs=rules, bypass_mode=False, loss_type="ppo_clip"))
    ours = torch.where(result.keep_mask, result.weights, 0)
    theirs = torch.where(given.response_mask, weigh(made, given), 0).to(ours)
    if torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7):
        return []
    worst = (ours - theirs).abs().max().item()
    return [f"{name}, batch {seed}: weights differ by up to {worst:g}"]


def main() -> None:
    torch.set_num_threads(1)
    wrong = compare(sys.argv[1])
    print("\n".join(wrong[:20]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
