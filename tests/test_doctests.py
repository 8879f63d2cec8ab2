"""The examples in the docstrings of the correction run, and every public function there has one."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import torch

import rlcorr

FOLDER = Path(rlcorr.__file__).parent
ROOMS = (".", "measuring", "losses", "presets")
FILES = [path.relative_to(FOLDER) for room in ROOMS for path in sorted((FOLDER / room).glob("*.py"))]
MODULES = [".".join(file.with_suffix("").parts) for file in FILES if file.name != "__main__.py"]


GIVEN = {"torch": torch} | {name: getattr(rlcorr, name) for name in rlcorr.__all__}
"""What an example may use besides its own module: `import torch` and what `rlcorr` exports."""


def module(name: str) -> ModuleType:
    return importlib.import_module(f"rlcorr.{name}".removesuffix(".__init__"))


def test_the_root_has_modules() -> None:
    assert {"config", "correction", "measuring.measure", "measuring.metrics"} <= set(MODULES)


def test_the_examples_run() -> None:
    for name in MODULES:
        assert doctest.testmod(module(name), extraglobs=GIVEN).failed == 0, name


def test_every_public_function_has_an_example() -> None:
    for name in MODULES:
        functions = inspect.getmembers(module(name), inspect.isfunction)
        here = [(key, f) for key, f in functions if f.__module__ == module(name).__name__ and not key.startswith("_")]
        assert [key for key, f in here if ">>>" not in (f.__doc__ or "")] == [], name
