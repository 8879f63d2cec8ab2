"""Texts of the presets into the systems' real configuration objects and back, and their real code on random batches.

One process for each, because each package brings its own neighbours: `real_systems.py TRL`. `make peers` runs them all.
Where a package imports what weighs more than it and does nothing here, a stand-in takes its place, and says so.
"""

import ast
import importlib
import os
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
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems import skyrl, trl
from rlcorr.systems.verl import config as verl
from rlcorr.types import TokenBatch

FOLDER = Path(os.environ.get("RLCORR_PEERS", Path(__file__).resolve().parent.parent.parent / ".venv"))
BATCHES = 20
Weigh = Callable[[Any, TokenBatch], Tensor]
System = tuple[Callable[..., Any], Callable[..., Any], Weigh]


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


# --- one function per system: the real object of a configuration, how it is read back, and what its code does ---


def of_verl() -> System:
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


def of_skyrl() -> System:
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


def of_trl() -> System:
    find("trl")
    config = importlib.import_module("trl").GRPOConfig
    path = FOLDER / "trl" / "trl" / "trainer" / "grpo_trainer.py"
    code = block_of(path, "_generate_and_score_completions", "self.vllm_importance_sampling_correction")

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

    folder = tempfile.mkdtemp()
    return (lambda c, loss: config(output_dir=folder, bf16=False, **trl.to_trl(c, loss))), trl.from_trl, weigh


SYSTEMS = {"verl": of_verl, "SkyRL": of_skyrl, "TRL": of_trl}
OPSM = "seq_mean_k1_negative"
"""TRL asks π_θ, in the loss: not compared on a batch."""


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
        if _plain(back(made)) != _plain(preset.config):
            wrong.append(f"{name} comes back as {back(made)}")
        for seed in range(BATCHES):
            batches += 1
            wrong += _weights(name, preset.config, weigh, made, batch(seed), seed)
    print(f"{system}: {told} presets in its real object and back, {refused} refused; {batches} batches weighed")
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
