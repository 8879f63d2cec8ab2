"""The examples in the docstrings of the root run, and every public function there has one."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import torch

import rlcorr

MODULES = sorted(path.stem for path in Path(rlcorr.__file__).parent.glob("*.py") if not path.stem.startswith("__"))


GIVEN = {"torch": torch} | {name: getattr(rlcorr, name) for name in rlcorr.__all__}
"""What an example may use besides its own module: `import torch` and what `rlcorr` exports."""


def module(name: str) -> ModuleType:
    return importlib.import_module(f"rlcorr.{name}")


def test_the_root_has_modules() -> None:
    assert {"config", "correction", "diagnostics", "report"} <= set(MODULES)


def test_the_examples_run() -> None:
    for name in MODULES:
        assert doctest.testmod(module(name), extraglobs=GIVEN).failed == 0, name


def test_every_public_function_has_an_example() -> None:
    for name in MODULES:
        functions = inspect.getmembers(module(name), inspect.isfunction)
        here = [(key, f) for key, f in functions if f.__module__ == f"rlcorr.{name}" and not key.startswith("_")]
        assert [key for key, f in here if ">>>" not in (f.__doc__ or "")] == [], name
