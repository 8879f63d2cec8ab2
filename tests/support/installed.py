"""Environments that hold the wheel of rlcorr with the packages of some extras, and nothing else."""

import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parent.parent.parent


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the tracked files, as from a fresh clone, without the network."""
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=PROJECT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (PROJECT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to(PROJECT / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(folder),
    ]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path, *extras: str) -> Path:
    """Make an environment and return its Python. Packages are links to those of this environment."""
    venv.create(folder, symlinks=True)
    python, site = folder / "bin" / "python", next((folder / "lib").glob("python*")) / "site-packages"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    (info,) = site.glob("rlcorr-*.dist-info")
    for package in sorted(closure(Distribution.at(info), extras)):
        _link(distribution(package), site)
    return python


def closure(of: Distribution, extras: Iterable[str]) -> set[str]:
    """Return the names of all packages that a distribution with these extras asks for, on this platform."""
    names: set[str] = set()
    todo = [(of, frozenset(extras))]
    while todo:
        package, wanted = todo.pop()
        for requirement in _required(package, wanted):
            if requirement.name == "rlcorr":
                todo.append((of, frozenset(requirement.extras)))
            elif requirement.name not in names or requirement.extras:
                names.add(requirement.name)
                todo.append((distribution(requirement.name), frozenset(requirement.extras)))
    return names


def _required(package: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def _link(package: Distribution, site: Path) -> None:
    for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(package.locate_file(top)))
        if not (site / top).exists():
            (site / top).symlink_to(source)
