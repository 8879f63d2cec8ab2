"""The examples in the docstrings of the correction run; what `rlcorr` exports, and every loss, has one."""

import doctest
import importlib
import inspect
from pathlib import Path
from typing import get_args

import torch

import rlcorr
from rlcorr.config import LossType
from rlcorr.losses import per_token, policy_losses

FOLDER = Path(rlcorr.__file__).parent
ROOMS = (".", "measuring", "losses", "presets")
FILES = [path.relative_to(FOLDER) for room in ROOMS for path in sorted((FOLDER / room).glob("*.py"))]
MODULES = [".".join(("rlcorr", *file.with_suffix("").parts)).removesuffix(".__init__") for file in FILES]
GIVEN = {"torch": torch} | {name: getattr(rlcorr, name) for name in rlcorr.__all__}
"""What an example may use besides its own module: `import torch` and what `rlcorr` exports."""


def test_the_examples_run() -> None:
    assert {"rlcorr.correction", "rlcorr.measuring.metrics", "rlcorr.presets"} <= set(MODULES)
    for name in set(MODULES) - {"rlcorr.__main__"}:
        assert doctest.testmod(importlib.import_module(name), extraglobs=GIVEN).failed == 0, name


def test_what_people_call_has_an_example() -> None:
    exported = [getattr(rlcorr, name) for name in rlcorr.__all__]
    functions = [f for f in exported if inspect.isfunction(f) and f.__module__ in MODULES]
    losses = [getattr(room, name, None) for room in (per_token, policy_losses) for name in get_args(LossType)]
    functions += [loss for loss in losses if loss is not None]
    assert len(functions) > 20
    assert [f.__name__ for f in functions if ">>>" not in (f.__doc__ or "")] == []
