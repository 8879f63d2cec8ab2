"""The real verl 0.9.1, called with plain tensors. `make peers` installs it into .venv/peers, without its dependencies.

One package that verl imports is replaced: **ray**, which weighs more than everything else together and runs nothing in
the functions called here (`verl.protocol` names `ray.ObjectRef` in a class of futures). The stand-in has that one name,
so any other use of ray fails at once.
"""

import functools
import importlib
import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError

PEERS = Path(os.environ.get("RLCORR_PEERS", Path(__file__).resolve().parent.parent.parent / ".venv")) / "peers"


@dataclass(frozen=True)
class Verl:
    """The modules of verl that are compared."""

    helper: types.ModuleType  # verl.trainer.ppo.rollout_corr_helper
    algos: types.ModuleType  # verl.trainer.ppo.core_algos
    algorithm: types.ModuleType  # verl.trainer.config.algorithm
    workers: types.ModuleType  # verl.workers.config


@functools.cache
def load() -> Verl:
    """Import verl from .venv/peers. Raises `UsageError` where `make peers` has not been run."""
    if not (PEERS / "verl").is_dir():
        raise UsageError("verl is not installed for comparison: run `make peers`.")
    ray = types.ModuleType("ray")
    ray.ObjectRef = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["ray"] = ray
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"  # plugins of the user's own verl have no place here
    sys.path.append(str(PEERS))  # last: it must add packages and replace none
    modules = Verl(
        importlib.import_module("verl.trainer.ppo.rollout_corr_helper"),
        importlib.import_module("verl.trainer.ppo.core_algos"),
        importlib.import_module("verl.trainer.config.algorithm"),
        importlib.import_module("verl.workers.config"),
    )
    del sys.modules["ray"]  # whoever asks for ray from here on must not take the stand-in for it
    return modules


def verl_correction(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor | None, Tensor, dict[str, float]]:
    """verl's weights (None where `rollout_is` is), mask after rejection, and metrics."""
    weights, kept, metrics = load().helper.compute_rollout_correction_and_rejection_mask(
        old_log_probs, rollout_log_probs, mask.long(), **options
    )
    return (None if weights is None else weights.batch["rollout_is_weights"]), kept, metrics


def verl_presets() -> dict[str, dict[str, Any]]:
    """The fields of every preset, by name."""
    config = load().algorithm.RolloutCorrectionConfig
    made = {name: getattr(config, name)() for name, kind in vars(config).items() if isinstance(kind, classmethod)}
    return {name: {key: preset[key] for key in preset if key != "_target_"} for name, preset in made.items()}


def verl_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    """verl's penalty per token."""
    return load().algos.kl_penalty(log_probs, ref_log_probs, estimator)


def verl_loss(
    name: str,
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | None = None,
    *,
    policy_loss: dict[str, Any] | None = None,
    **actor: Any,
) -> tuple[Tensor, dict[str, float]]:
    """A loss from verl's registry, and its metrics. `actor` and `policy_loss` are fields of its two configs.

    clip_cov draws from torch's global generator.
    """
    configs = load()
    nested = dict(policy_loss or {})
    if "rollout_correction" in nested:
        nested["rollout_correction"] = configs.algorithm.RolloutCorrectionConfig(**nested["rollout_correction"])
    config = configs.workers.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=configs.workers.PolicyLossConfig(loss_mode=name, **nested),
        **actor,
    )
    return configs.algos.get_policy_loss_fn(name)(
        old_log_prob=old_log_probs,
        log_prob=log_probs,
        advantages=advantages,
        response_mask=mask.to(torch.long),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )
